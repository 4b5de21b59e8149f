"""Steps along cycles: the best step, exact bookkeeping, and where zigzagging ends."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.transport.exact_transport import exact_transport
from assay.transport.gw_bounds import coupling_violation, frank_wolfe_gap, gw_value
from assay.transport.gw_circulations import best_step, circulate
from assay.transport.gw_finish import vertex_finish
from assay.transport.gw_problem import prepare_problem
from assay.transport.gw_products import Sandwich


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
    assert end.steps > 20  # it did come to the cycles
    assert end.stationary
    assert (np.diff(values) <= 1e-15 * problem.scale).all()
    args = problem.C1, problem.C2, end.plan, problem.p, problem.q
    assert frank_wolfe_gap(*args, normalize=False) <= 1e-9 * problem.scale
    assert end.value == pytest.approx(gw_value(*args, normalize=False), abs=1e-12)
    assert coupling_violation(end.plan, problem.p, problem.q) <= 1e-13
