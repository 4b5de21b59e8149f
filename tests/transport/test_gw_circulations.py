"""Steps along cycles: the best step, exact bookkeeping, and where zigzagging ends."""

import itertools

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.transport.exact_transport import exact_transport
from assay.transport.gw_bounds import coupling_violation, frank_wolfe_gap, gw_value
from assay.transport.gw_circulations import best_step, circulate, exchange
from assay.transport.gw_finish import vertex_finish
from assay.transport.gw_problem import prepare_problem
from assay.transport.gw_products import Sandwich
from assay.transport.gw_settle import settle_block


@given(slope=st.floats(-1e3, 1e3), curvature=st.floats(-1e3, 1e3), limit=st.floats(0.0, 10.0))
def test_best_step_beats_a_grid(slope, curvature, limit):
    t = best_step(slope, curvature, limit)
    assert 0.0 <= t <= limit
    grid = np.linspace(0, limit, 101)
    gain = 2 * grid * slope + grid**2 * curvature
    assert 2 * t * slope + t * t * curvature >= gain.max() - 1e-9 * (abs(slope) + abs(curvature)) * (1 + limit**2)


def mixture(problem, rng, n_vertices=4):
    """Average of random vertices: a plan in the inside of a face."""
    shape = len(problem.p), len(problem.q)
    vertices = [exact_transport(rng.random(shape), problem.p, problem.q).toarray() for _ in range(n_vertices)]
    return np.mean(vertices, axis=0)


@pytest.mark.parametrize("torch_backend", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("products", ["sparse", "dense"])
@pytest.mark.parametrize("weights", ["uniform", "random"])
def test_a_round_is_an_exact_descent(weights, products, torch_backend):
    rng = np.random.default_rng(0)
    A, B = nx.watts_strogatz_graph(50, 4, 0.3, seed=1), nx.watts_strogatz_graph(50, 4, 0.3, seed=2)
    p = q = None
    if weights == "random":
        p, q = rng.dirichlet(np.full(50, 3.0)), rng.dirichlet(np.full(50, 3.0))
    problem = prepare_problem(A, B, p, q)
    sandwich = Sandwich.of(problem.C1, problem.C2, products, torch.device("cpu") if torch_backend else None)
    start = mixture(problem, rng)
    X = torch.from_numpy(start.copy()) if torch_backend else start.copy()
    product = sandwich.product(X)
    vertex = exact_transport(np.asarray(product), problem.p, problem.q, maximize=True)
    answer = circulate(sandwich, X, product, vertex, problem.p, problem.q)
    C1, C2, plan = problem.C1.toarray(), problem.C2.toarray(), np.asarray(X)
    values = [gw_value(C1, C2, P, problem.p, problem.q) for P in (start, plan)]
    assert answer.decrease == pytest.approx(values[0] - values[1], rel=1e-9)
    assert answer.decrease > 0.0
    assert answer.products >= 2
    assert coupling_violation(plan, problem.p, problem.q) <= 1e-14
    np.testing.assert_allclose(np.asarray(product), C1 @ plan @ C2, atol=1e-13)


def test_nothing_is_done_at_a_stationary_vertex():
    problem = prepare_problem(nx.path_graph(4), nx.path_graph(4))
    sandwich, X = Sandwich.of(problem.C1, problem.C2), np.eye(4) / 4
    vertex = exact_transport(-X, problem.p, problem.q)
    answer = circulate(sandwich, X, sandwich.product(X), vertex, problem.p, problem.q)
    assert answer.decrease == 0.0
    np.testing.assert_array_equal(X, np.eye(4) / 4)


def permuted(order, n):
    plan = np.zeros((n, n))
    plan[np.arange(n), order] = 1 / n
    return plan


@pytest.mark.parametrize("torch_backend", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("kind", ["graph", "loops", "distances"])
def test_exchanges_leave_no_better_exchange(kind, torch_backend):
    rng = np.random.default_rng(2)
    n = 14
    if kind == "distances":
        points = rng.normal(size=(2, n, 2))
        C1, C2 = (np.linalg.norm(x[:, None] - x, axis=2) for x in points)
    else:
        C1, C2 = (nx.to_numpy_array(nx.barabasi_albert_graph(n, 3, seed=k)) for k in (1, 2))
        if kind == "loops":
            C1, C2 = C1 + np.diag(1 + rng.random(n)), C2 + np.diag(1 + rng.random(n))
    products = "dense" if kind == "distances" else "sparse"
    sandwich = Sandwich.of(C1, C2, products, torch.device("cpu") if torch_backend else None)
    order = rng.permutation(n)
    X = permuted(order, n)
    before = gw_value(C1, C2, X)
    if torch_backend:
        X = torch.from_numpy(X)
    product = sandwich.product(X)
    for _ in range(50):
        start = gw_value(C1, C2, X)
        # At a plan that is not stationary other exchanges help to first order; take every pair into account here.
        answer = exchange(sandwich, X, product, 1.0)
        assert answer.decrease == pytest.approx(start - gw_value(C1, C2, X), abs=1e-12)
        if answer.decrease == 0.0:
            break
    np.testing.assert_allclose(np.asarray(product), C1 @ np.asarray(X) @ C2, atol=1e-12)
    order = np.asarray(X).argmax(axis=1)
    assert sorted(order) == list(range(n))
    final = gw_value(C1, C2, X)
    assert final < before
    for i, j in itertools.combinations(range(n), 2):
        related = kind != "graph" or (C1[i, j] and C2[order[i], order[j]])
        if related:
            other = order.copy()
            other[[i, j]] = other[[j, i]]
            assert gw_value(C1, C2, permuted(other, n)) >= final - 1e-12


@pytest.mark.parametrize("torch_backend", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("products", ["sparse", "dense"])
@pytest.mark.parametrize("weights", ["uniform", "random"])
def test_block_is_settled_and_the_rest_untouched(weights, products, torch_backend):
    rng = np.random.default_rng(3)
    A, B = nx.watts_strogatz_graph(60, 4, 0.3, seed=1), nx.watts_strogatz_graph(60, 4, 0.3, seed=2)
    p = None if weights == "uniform" else rng.dirichlet(np.full(60, 3.0))
    problem = prepare_problem(A, B, p, p)
    start = np.diag(problem.p)
    # A small part of the plan is undecided.
    start[:8, :8] = np.outer(problem.p[:8], problem.p[:8]) / problem.p[:8].sum()
    sandwich = Sandwich.of(problem.C1, problem.C2, products, torch.device("cpu") if torch_backend else None)
    X = torch.from_numpy(start.copy()) if torch_backend else start.copy()
    product = sandwich.product(X)
    vertex = sp.csr_array(np.diag(problem.p))
    answer = settle_block(sandwich, X, product, vertex, problem.p, problem.q, 1e-13)
    plan, C1, C2 = np.asarray(X), problem.C1.toarray(), problem.C2.toarray()
    values = [gw_value(C1, C2, P, problem.p, problem.q) for P in (start, plan)]
    assert answer.decrease == pytest.approx(values[0] - values[1], rel=1e-9)
    assert answer.decrease > 0.0
    np.testing.assert_allclose(np.asarray(product), C1 @ plan @ C2, atol=1e-13)
    assert coupling_violation(plan, problem.p, problem.q) <= 1e-15
    outside = np.ones((60, 60), dtype=bool)
    outside[:8, :8] = False
    np.testing.assert_array_equal(plan[outside], start[outside])
    # Stationary in the block: no coupling of its masses is better to first order.
    block, gradient = plan[:8, :8], (C1 @ plan @ C2)[:8, :8]
    best = exact_transport(gradient, block.sum(1), block.sum(0), maximize=True)
    assert 4.0 * ((gradient * best.toarray()).sum() - (gradient * block).sum()) <= 1e-12


@pytest.mark.parametrize("weights", ["uniform", "random"])
def test_hard_alignments_end_at_a_certified_stationary_point(weights):
    # Unrelated small worlds: minimisers inside faces, where steps towards vertices alone do not arrive.
    rng = np.random.default_rng(1)
    A, B = nx.watts_strogatz_graph(120, 6, 0.3, seed=2), nx.watts_strogatz_graph(120, 6, 0.3, seed=12)
    p = None if weights == "uniform" else rng.dirichlet(np.full(120, 5.0))
    problem = prepare_problem(A, B, p)
    sandwich, X = Sandwich.of(problem.C1, problem.C2), np.outer(problem.p, problem.q)
    values = []
    end = vertex_finish(
        sandwich,
        X,
        sandwich.product(X),
        problem.p,
        problem.q,
        scale=problem.scale,
        max_steps=300,
        gap_tol=1e-10,
        record=lambda kind, value, cost: values.append(value),
    )
    assert end.steps > 10  # it did come to the blocks
    assert end.stationary
    assert (np.diff(values) <= 1e-15 * problem.scale).all()
    args = problem.C1, problem.C2, end.plan, problem.p, problem.q
    assert frank_wolfe_gap(*args, normalize=False) <= 1e-9 * problem.scale
    assert end.value == pytest.approx(gw_value(*args, normalize=False), abs=1e-12)
    assert coupling_violation(end.plan, problem.p, problem.q) <= 1e-13
