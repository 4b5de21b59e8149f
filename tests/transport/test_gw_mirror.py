"""Mirror steps and block solves against their formulas, in both kinds of arrays."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from assay.transport.gw_mirror import MirrorDescent, largest_per_row, movement, smallest_cover
from assay.transport.gw_problem import prepare_problem
from assay.transport.gw_products import Sandwich
from assay.transport.gw_start import degree_plan
from assay.transport.sinkhorn import round_to_marginals, scale_and_round

N, M = 40, 35


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    A = nx.barabasi_albert_graph(N, 2, seed=1)
    B = nx.barabasi_albert_graph(M, 3, seed=2)
    return prepare_problem(A, B, rng.dirichlet(np.full(N, 5.0)), rng.dirichlet(np.full(M, 5.0)))


def descent(problem, torch_backend=False):
    vectors = [problem.p, problem.q, problem.left, problem.right]
    device = torch.device("cpu") if torch_backend else None
    if torch_backend:
        vectors = [torch.from_numpy(vector) for vector in vectors]
    return MirrorDescent(Sandwich.of(problem.C1, problem.C2, "auto", device), *vectors, 10)


def state(problem, torch_backend=False, seed=1):
    rng = np.random.default_rng(seed)
    X = round_to_marginals(rng.random((N, M)) ** 3, problem.p, problem.q)
    mirror = descent(problem, torch_backend)
    X = torch.from_numpy(X) if torch_backend else X
    return mirror, X, mirror.sandwich.product(X)


BACKENDS = pytest.mark.parametrize("torch_backend", [False, True], ids=["numpy", "torch"])


@BACKENDS
def test_scan_finds_the_range_of_the_gradient(problem, torch_backend):
    mirror, X, product = state(problem, torch_backend)
    inner, low, high = mirror.scan(X, product)
    F = problem.left[:, None] + problem.right - 2.0 * np.asarray(product)
    assert inner == pytest.approx(float((np.asarray(product) * np.asarray(X)).sum()), rel=1e-13)
    assert (low, high) == pytest.approx((F.min(), F.max()), rel=1e-13)


@BACKENDS
def test_step_is_the_formula(problem, torch_backend):
    mirror, X, product = state(problem, torch_backend)
    before = np.asarray(X).copy()
    F = problem.left[:, None] + problem.right - 2.0 * np.asarray(product)
    temperature = 0.02 * np.ptp(F)
    kernel = before * np.exp(-(F - F.min(axis=1, keepdims=True)) / temperature)
    wanted = scale_and_round(kernel, problem.p, problem.q, 10)
    got = np.asarray(mirror.step(X, product, temperature))
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-18)
    np.testing.assert_array_equal(np.asarray(X), before)
    assert max(abs(got.sum(1) - problem.p).max(), abs(got.sum(0) - problem.q).max()) <= 1e-16


def test_step_in_bands_of_rows_is_the_same():
    rng = np.random.default_rng(3)
    n, m = 70, 4000  # more than one band of the exponential
    p, q = np.full(n, 1 / n), np.full(m, 1 / m)
    X, product = round_to_marginals(rng.random((n, m)), p, q), rng.random((n, m))
    mirror = MirrorDescent(Sandwich.of(sp.csr_array((n, n)), sp.csr_array((m, m))), p, q, np.zeros(n), np.zeros(m), 5)
    F = -2.0 * product
    kernel = X * np.exp(-(F - F.min(axis=1, keepdims=True)) / 0.1)
    np.testing.assert_allclose(mirror.step(X, product, 0.1), scale_and_round(kernel, p, q, 5), rtol=1e-11, atol=1e-18)


@BACKENDS
def test_block_keeps_its_masses_and_follows_its_gradient(problem, torch_backend):
    mirror, X, product = state(problem, torch_backend)
    rows, columns = np.arange(1, N, 4), np.arange(0, M, 3)
    before = np.asarray(X).copy()
    block = mirror.solve_block(X, product, rows, columns, rho=0.1, max_steps=4, tol=0.0)
    np.testing.assert_array_equal(np.asarray(X), before)
    assert block.steps == 4
    change = np.asarray(block.change)
    assert abs(change).max() > 1e-6
    assert max(abs(change.sum(0)).max(), abs(change.sum(1)).max()) <= 1e-17
    value = problem.scale - 2.0 * mirror.scan(X, product)[0]
    mirror.write_block(X, product, block)
    C1, C2 = problem.C1.toarray(), problem.C2.toarray()
    np.testing.assert_allclose(np.asarray(product), C1 @ np.asarray(X) @ C2, atol=1e-12)
    after = problem.scale - 2.0 * (np.asarray(product) * np.asarray(X)).sum()
    assert block.increase == pytest.approx(after - value, abs=1e-15)
    assert block.increase < 0.0
    outside = np.ones((N, M), dtype=bool)
    outside[np.ix_(rows, columns)] = False
    np.testing.assert_array_equal(np.asarray(X)[outside], before[outside])
    assert block.multiply_adds == 4 * mirror.sandwich.within_block_cost(rows, columns)


def test_whole_plan_as_a_block_is_a_full_step(problem):
    mirror, X, product = state(problem)
    everything = np.arange(N), np.arange(M)
    block = mirror.solve_block(X, product, *everything, rho=0.05, max_steps=1, tol=0.0)
    _, low, high = mirror.scan(X, product)
    np.testing.assert_allclose(block.coupling, mirror.step(X, product, 0.05 * (high - low)), rtol=1e-8, atol=1e-17)


def test_both_backends_solve_the_same_block(problem):
    rows, columns = np.arange(0, N, 3), np.arange(0, M, 2)
    answers = []
    for torch_backend in (False, True):
        mirror, X, product = state(problem, torch_backend)
        block = mirror.solve_block(X, product, rows, columns, rho=0.05, max_steps=3, tol=1e-12)
        answers.append((np.asarray(block.coupling), block.increase))
    np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-9, atol=1e-17)
    assert answers[0][1] == pytest.approx(answers[1][1], rel=1e-9)


@BACKENDS
def test_rows_without_mass_are_left_out_of_a_block(problem, torch_backend):
    mirror, X, product = state(problem, torch_backend)
    rows, columns = np.arange(10), np.arange(12)
    X[3, :12] = 0.0
    X[:10, 5] = 1e-310
    block = mirror.solve_block(X, product, rows, columns, rho=0.05, max_steps=2, tol=0.0)
    assert 3 not in block.rows
    assert 5 not in block.columns
    assert np.isfinite(np.asarray(block.coupling)).all()
    X[:10, :12] = 0.0
    assert mirror.solve_block(X, product, rows, columns, rho=0.05, max_steps=2, tol=0.0) is None


@BACKENDS
def test_movement(torch_backend):
    rng = np.random.default_rng(4)
    X, Y = rng.random((5, 8)), rng.random((5, 8))
    wrap = torch.from_numpy if torch_backend else np.asarray
    row_sums, column_sums, row_peaks, column_peaks = movement(wrap(X), wrap(Y))
    D = abs(X - Y)
    np.testing.assert_allclose(row_sums, D.sum(1))
    np.testing.assert_allclose(column_sums, D.sum(0))
    np.testing.assert_allclose(row_peaks, D.max(1))
    np.testing.assert_allclose(column_peaks, D.max(0))
    np.testing.assert_array_equal(largest_per_row(wrap(X)), X.argmax(1))


def test_cover_is_the_smallest():
    rng = np.random.default_rng(5)
    moved = rng.random(30) ** 4
    for coverage in (0.3, 0.9, 0.99, 1.0):
        chosen = smallest_cover(moved, coverage)
        assert moved[chosen].sum() >= coverage * moved.sum() * (1 - 1e-12)
        assert np.sort(moved)[::-1][: len(chosen) - 1].sum() < coverage * moved.sum()
        assert (np.diff(chosen) > 0).all()
    assert len(smallest_cover(np.zeros(4), 0.9)) == 0


def test_degree_plan_is_the_formula(problem):
    d1, d2 = problem.degrees1, problem.degrees2
    difference = abs(d1[:, None] - d2)
    kernel = np.exp(-difference / (0.1 * difference.mean()))
    np.testing.assert_allclose(
        degree_plan(problem), scale_and_round(kernel, problem.p, problem.q, 50), rtol=1e-6, atol=1e-12
    )


def test_degrees_of_a_regular_graph_say_nothing():
    problem = prepare_problem(nx.cycle_graph(6), nx.cycle_graph(6))
    np.testing.assert_array_equal(degree_plan(problem), np.full((6, 6), np.outer(problem.p, problem.q)[0, 0]))


def test_hubs_do_not_underflow():
    star = nx.star_graph(3000)
    plan = degree_plan(prepare_problem(star, nx.path_graph(20)))
    assert np.isfinite(plan).all()
    assert abs(plan.sum(1) - 1 / 3001).max() <= 1e-16
