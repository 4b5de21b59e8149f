"""Exact linear transport against a general LP solver, brute force and its own duals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse.csgraph import connected_components

from assay.transport.exact_transport import (
    NetworkSimplex,
    exact_transport,
    largest_feasible_potential,
    network_simplex,
)


def by_linear_programming(cost, p, q):
    n, m = cost.shape
    rows = np.kron(np.eye(n), np.ones(m))
    columns = np.kron(np.ones(n), np.eye(m))
    answer = linprog(cost.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([p, q]), method="highs")
    assert answer.status == 0
    return answer.fun


def check(cost, p, q, tol=1e-12):
    rows, columns, mass, phi, psi = network_simplex(cost, p, q)
    n, m = cost.shape
    plan = np.zeros(cost.shape)
    np.add.at(plan, (rows, columns), mass)
    scale = max(np.ptp(cost), abs(cost).max(), 1e-300)
    assert len(rows) <= n + m - 1
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == len(rows)
    assert mass.min() > 0.0
    assert max(abs(plan.sum(1) - p).max(), abs(plan.sum(0) - q).max()) <= 2e-15
    assert (cost - phi[:, None] - psi).min() >= -1e-15 * scale
    primal, dual = (cost * plan).sum(), p @ phi + q @ psi
    assert abs(primal - dual) <= tol * scale
    return primal


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (2, 2), (7, 4), (15, 22)])
def test_agrees_with_a_general_solver(shape):
    rng = np.random.default_rng(shape)
    for _ in range(4):
        cost = rng.normal(size=shape)
        p, q = rng.dirichlet(np.ones(shape[0])), rng.dirichlet(np.ones(shape[1]))
        assert check(cost, p, q) == pytest.approx(by_linear_programming(cost, p, q), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), n=st.integers(1, 9), m=st.integers(1, 9), levels=st.integers(1, 4), units=st.booleans()
)
def test_ties_do_not_make_it_cycle(seed, n, m, levels, units):
    rng = np.random.default_rng(seed)
    cost = rng.integers(0, levels, (n, m)).astype(float)
    p = np.full(n, 1 / n) if units else rng.integers(1, 4, n).astype(float)
    q = np.full(m, 1 / m) if units else rng.integers(1, 4, m).astype(float)
    p, q = p / p.sum(), q / q.sum()
    assert check(cost, p, q) == pytest.approx(by_linear_programming(cost, p, q), abs=1e-9)


@pytest.mark.parametrize("size", [2, 3, 5, 6])
def test_assignment_is_the_best_permutation(size):
    rng = np.random.default_rng(size)
    cost = rng.normal(size=(size, size))
    w = np.full(size, 1 / size)
    best = min(cost[np.arange(size), list(order)].sum() for order in itertools.permutations(range(size))) / size
    plan = exact_transport(cost, w, w).toarray()
    assert (cost * plan).sum() == pytest.approx(best)
    assert sorted(np.unique(plan)) == [0.0, w[0]]
    assert check(cost, w, w) == pytest.approx(best)


@pytest.mark.parametrize("uniform", [True, False])
def test_maximize_is_minimize_of_the_negative(uniform):
    rng = np.random.default_rng(3)
    cost = rng.normal(size=(12, 12))
    p = np.full(12, 1 / 12) if uniform else rng.dirichlet(np.ones(12))
    assert (exact_transport(cost, p, p, maximize=True) != exact_transport(-cost, p, p)).nnz == 0


def test_mixed_weights_do_not_take_the_assignment_path():
    rng = np.random.default_rng(4)
    cost, q = rng.random((8, 8)), rng.dirichlet(np.ones(8))
    plan = exact_transport(cost, np.full(8, 1 / 8), q)
    np.testing.assert_allclose(plan.sum(axis=0), q, atol=1e-15)


def test_large_problem_of_distances():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(300, 2)), rng.normal(size=(260, 2))
    cost = np.linalg.norm(x[:, None] - y, axis=2)
    check(cost, rng.dirichlet(np.ones(300)), rng.dirichlet(np.ones(260)))
    check(cost, np.full(300, 1 / 300), np.full(260, 1 / 260))


@pytest.mark.parametrize("factor", [1e-12, 1e12])
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_scale_of_the_costs_does_not_matter(factor, shift):
    rng = np.random.default_rng(6)
    cost = (rng.random((20, 25)) + shift) * factor
    p, q = rng.dirichlet(np.ones(20)), rng.dirichlet(np.ones(25))
    check(cost, p, q)


def test_very_unequal_weights():
    rng = np.random.default_rng(7)
    p, q = 10.0 ** rng.uniform(-12, 0, 30), 10.0 ** rng.uniform(-12, 0, 20)
    check(rng.random((30, 20)), p / p.sum(), q / q.sum())


def test_constant_costs():
    p, q = np.full(6, 1 / 6), np.full(4, 1 / 4)
    assert check(np.full((6, 4), 3.0), p, q) == pytest.approx(3.0)


def test_support_is_a_forest():
    rng = np.random.default_rng(8)
    rows, columns, _, _, _ = network_simplex(
        rng.random((40, 50)), rng.dirichlet(np.ones(40)), rng.dirichlet(np.ones(50))
    )
    graph = np.zeros((90, 90))
    graph[rows, 40 + columns] = 1.0
    parts, _ = connected_components(graph, directed=False)
    assert len(rows) == 90 - parts


def test_potential_is_the_largest_feasible_one():
    cost, psi = np.array([[1.0, 5.0], [2.0, 2.0]]), np.array([0.5, 3.0])
    np.testing.assert_array_equal(largest_feasible_potential(cost, psi), [0.5, -1.0])


def test_costs_and_weights_are_only_read():
    rng = np.random.default_rng(9)
    cost, p, q = rng.random((5, 7)), rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(7))
    copies = cost.copy(), p.copy(), q.copy()
    network_simplex(cost, p, q)
    for array, copy in zip((cost, p, q), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 8), m=st.integers(1, 8), units=st.booleans())
def test_going_on_from_the_last_vertex_is_the_same_as_starting_anew(seed, n, m, units):
    rng = np.random.default_rng(seed)
    p = np.full(n, 1 / n) if units else rng.dirichlet(np.ones(n))
    q = np.full(m, 1 / m) if units else rng.dirichlet(np.ones(m))
    simplex = NetworkSimplex(p, q)
    for _ in range(6):
        cost = rng.integers(0, 5, (n, m)).astype(float)
        rows, columns, mass, phi, psi = simplex.solve(cost)
        plan = np.zeros((n, m))
        np.add.at(plan, (rows, columns), mass)
        assert coupling_error(plan, p, q) <= 1e-14
        assert (cost - phi[:, None] - psi).min() >= -1e-14
        assert (cost * plan).sum() == pytest.approx(check(cost, p, q), abs=1e-12)
        assert p @ phi + q @ psi == pytest.approx((cost * plan).sum(), abs=1e-12)


def coupling_error(plan, p, q):
    return max(abs(plan.sum(1) - p).max(), abs(plan.sum(0) - q).max())
