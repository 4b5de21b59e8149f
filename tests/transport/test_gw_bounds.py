"""The value, the gap and the lower bound, each against an independent computation."""

import itertools

import networkx as nx
import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.transport.gw_bounds import (
    coupling_violation,
    frank_wolfe_gap,
    gw_certificates,
    gw_value,
    second_lower_bound,
)
from assay.transport.gw_problem import prepare_problem
from assay.transport.sinkhorn import round_to_marginals


def symmetric(rng, n):
    C = rng.normal(size=(n, n))
    return C + C.T


def random_coupling(rng, p, q):
    return round_to_marginals(rng.random((len(p), len(q))), p, q)


def quadruple_sum(C1, C2, X):
    n, m = X.shape
    return sum(
        (C1[i, k] - C2[j, h]) ** 2 * X[i, j] * X[k, h]
        for i, k, j, h in itertools.product(range(n), range(n), range(m), range(m))
    )


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (1, 4)])
def test_value_is_the_sum_over_pairs_of_pairs(shape):
    rng = np.random.default_rng(shape)
    C1, C2 = symmetric(rng, shape[0]), symmetric(rng, shape[1])
    p, q = rng.dirichlet(np.ones(shape[0])), rng.dirichlet(np.ones(shape[1]))
    X = random_coupling(rng, p, q)
    assert gw_value(C1, C2, X, p, q) == pytest.approx(quadruple_sum(C1, C2, X), abs=1e-12)
    assert gw_value(torch.tensor(C1), C2, torch.tensor(X), p, q) == pytest.approx(quadruple_sum(C1, C2, X), abs=1e-12)


@pytest.mark.parametrize("uniform", [True, False])
def test_gap_is_the_largest_linear_decrease_over_couplings(uniform):
    rng = np.random.default_rng(uniform)
    C1, C2 = symmetric(rng, 6), symmetric(rng, 6)
    p = np.full(6, 1 / 6) if uniform else rng.dirichlet(np.ones(6))
    q = np.full(6, 1 / 6) if uniform else rng.dirichlet(np.ones(6))
    X = random_coupling(rng, p, q)
    gradient = -4.0 * C1 @ X @ C2
    wanted = (gradient * X).sum() - (gradient * ot.emd(p, q, gradient)).sum()
    assert wanted > 0.1
    assert frank_wolfe_gap(C1, C2, X, p, q) == pytest.approx(wanted, rel=1e-10)


def test_gap_is_the_derivative_towards_the_best_vertex():
    rng = np.random.default_rng(1)
    C1, C2, w = symmetric(rng, 5), symmetric(rng, 5), np.full(5, 0.2)
    X = random_coupling(rng, w, w)
    h = 1e-6
    slopes = []
    for order in itertools.permutations(range(5)):
        P = np.zeros((5, 5))
        P[np.arange(5), list(order)] = 0.2
        ahead, behind = gw_value(C1, C2, X + h * (P - X)), gw_value(C1, C2, X - h * (P - X))
        slopes.append((ahead - behind) / (2 * h))
    assert frank_wolfe_gap(C1, C2, X) == pytest.approx(-min(slopes), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), m=st.integers(1, 6), units=st.booleans())
def test_lower_bound_is_below_every_coupling(seed, n, m, units):
    rng = np.random.default_rng(seed)
    C1, C2 = symmetric(rng, n), symmetric(rng, m)
    p = np.full(n, 1 / n) if units else rng.dirichlet(np.ones(n))
    q = np.full(m, 1 / m) if units else rng.dirichlet(np.ones(m))
    bound = second_lower_bound(C1, C2, p, q)
    for _ in range(5):
        assert bound <= gw_value(C1, C2, random_coupling(rng, p, q), p, q) + 1e-12


@pytest.mark.parametrize("units", [True, False])
def test_lower_bound_is_the_transport_cost_of_the_entries(units):
    rng = np.random.default_rng(2)
    C1, C2 = symmetric(rng, 5), symmetric(rng, 7)
    p = np.full(5, 1 / 5) if units else rng.dirichlet(np.ones(5))
    q = np.full(7, 1 / 7) if units else rng.dirichlet(np.ones(7))
    wanted = ot.emd2_1d(C1.ravel(), C2.ravel(), np.outer(p, p).ravel(), np.outer(q, q).ravel(), metric="sqeuclidean")
    assert second_lower_bound(C1, C2, p, q) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("units", [True, False])
def test_sparse_lower_bound_is_the_dense_one(units):
    rng = np.random.default_rng(3)
    A, B = nx.barabasi_albert_graph(30, 2, seed=1), nx.watts_strogatz_graph(24, 4, 0.2, seed=1)
    for a, b in A.edges:
        A[a][b]["weight"] = rng.normal()
    p = None if units else rng.dirichlet(np.ones(30))
    sparse = second_lower_bound(A, B, p, normalize=False)
    dense = second_lower_bound(nx.to_numpy_array(A), nx.to_numpy_array(B), p)
    assert sparse == pytest.approx(dense, abs=1e-12)
    assert sparse > 0.01


def test_lower_bound_of_relabelled_copies_is_zero():
    graph = nx.karate_club_graph()
    order = np.random.default_rng(4).permutation(34)
    A = nx.to_scipy_sparse_array(graph, format="csr")
    assert second_lower_bound(A, A[order][:, order]) <= 1e-15
    assert second_lower_bound(A.toarray(), A.toarray()[np.ix_(order, order)]) == 0.0


def test_known_lower_bounds():
    assert second_lower_bound([[0, 1], [1, 0]], [[0, 2], [2, 0]]) == pytest.approx(0.5)
    assert second_lower_bound(nx.complete_graph(3), nx.path_graph(3), normalize=False) == pytest.approx(2 / 9)


@pytest.mark.parametrize(
    "change, violation",
    [((0, 0, 1e-3), 1e-3), ((1, 2, -0.5), 0.5), (None, 0.0)],
)
def test_violation_is_the_largest_error(change, violation):
    w = np.full(3, 1 / 3)
    X = np.eye(3) / 3
    if change:
        X[change[0], change[1]] += change[2]
    assert coupling_violation(X, w, w) == pytest.approx(violation)
    assert coupling_violation(torch.tensor(X), w, w) == pytest.approx(violation)


def test_certificates_fail_on_bad_plans():
    rng = np.random.default_rng(5)
    C1, C2 = symmetric(rng, 6), symmetric(rng, 6)
    problem = prepare_problem(C1, C2)
    X = random_coupling(rng, problem.p, problem.q)
    _, _, gap, violation, certificates = gw_certificates(problem, X, finished=True)
    assert [c.holds for c in certificates] == [True, True, False]
    assert gap == certificates[2].value > certificates[2].bound
    assert len(gw_certificates(problem, X, finished=False)[4]) == 2
    X[0, 0] += 1e-6
    _, _, _, violation, certificates = gw_certificates(problem, X, finished=False)
    assert violation == pytest.approx(1e-6)
    assert not certificates[0].holds


def test_points_without_weight_do_not_matter():
    rng = np.random.default_rng(6)
    C1, C2 = symmetric(rng, 4), symmetric(rng, 3)
    p, q = np.array([0.5, 0.0, 0.3, 0.2]), np.full(3, 1 / 3)
    X = np.zeros((4, 3))
    X[[0, 2, 3]] = random_coupling(rng, p[[0, 2, 3]], q)
    kept = np.ix_([0, 2, 3], [0, 2, 3])
    for measure in (gw_value, frank_wolfe_gap):
        reduced = measure(C1[kept], C2, X[[0, 2, 3]], p[[0, 2, 3]], q)
        assert measure(C1, C2, X, p, q) == pytest.approx(reduced, rel=1e-12)
    assert second_lower_bound(C1, C2, p, q) == pytest.approx(second_lower_bound(C1[kept], C2, p[[0, 2, 3]], q))


@pytest.mark.parametrize("plan, message", [(np.ones((2, 3)), "shape"), (np.full((3, 3), np.nan), "finite")])
def test_bad_plans(plan, message):
    for measure in (gw_value, frank_wolfe_gap):
        with pytest.raises(ValueError, match=f"plan must .*{message}"):
            measure(np.eye(3), np.eye(3), plan)


def test_plan_is_only_read():
    X = np.full((3, 3), 1 / 9)
    copy = X.copy()
    problem = prepare_problem(nx.path_graph(3), nx.path_graph(3))
    gw_certificates(problem, X, finished=True)
    frank_wolfe_gap(nx.path_graph(3), nx.path_graph(3), X)
    np.testing.assert_array_equal(X, copy)
