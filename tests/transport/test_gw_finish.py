"""Conditional gradient steps: monotone, exactly feasible, with the best step, out of saddle points."""

import networkx as nx
import numpy as np
import pytest
import torch

from assay.transport.gw_bounds import coupling_violation, frank_wolfe_gap, gw_value
from assay.transport.gw_finish import vertex_finish
from assay.transport.gw_problem import prepare_problem
from assay.transport.gw_products import Sandwich
from assay.transport.sinkhorn import round_to_marginals


def finish(problem, X, max_steps=30, gap_tol=1e-10, products="auto", torch_backend=False):
    values = []
    sandwich = Sandwich.of(problem.C1, problem.C2, products, torch.device("cpu") if torch_backend else None)
    X = torch.from_numpy(X.copy()) if torch_backend else X.copy()
    end = vertex_finish(
        sandwich,
        X,
        sandwich.product(X),
        problem.p,
        problem.q,
        scale=problem.scale,
        max_steps=max_steps,
        gap_tol=gap_tol,
        record=lambda kind, value, cost: values.append((kind, value, cost)),
    )
    return end, values


def relabelled_paths():
    order = [1, 0, 2]
    path = nx.to_numpy_array(nx.path_graph(3))
    return prepare_problem(path, path[np.ix_(order, order)])


def test_from_the_product_plan_of_a_path_to_its_relabelling():
    problem = relabelled_paths()
    start = np.full((3, 3), 1 / 9)
    end, values = finish(problem, start)
    falling = [gw_value(problem.C1, problem.C2, start)] + [value for _, value, _ in values]
    assert (np.diff(falling) < 0).all()
    assert end.gap == 0.0
    assert end.value == pytest.approx(0.0, abs=1e-15)
    assert end.stationary
    np.testing.assert_array_equal(np.unique(end.plan), [0.0, 1 / 3])


def test_first_step_is_the_best_on_its_segment():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 2)), rng.normal(size=(9, 2))
    C1, C2 = (np.linalg.norm(z[:, None] - z, axis=2) for z in (x, y))
    problem = prepare_problem(C1, -C2, rng.dirichlet(np.ones(12)), rng.dirichlet(np.ones(9)))
    start = round_to_marginals(rng.random((12, 9)), problem.p, problem.q)
    one, values = finish(problem, start, max_steps=1)
    direction = one.plan - start
    along = [gw_value(C1, -C2, start + t * direction, problem.p, problem.q) for t in np.linspace(0, 1, 21)]
    assert along[-1] <= min(along) + 1e-12
    assert values[0][1] == pytest.approx(along[-1], abs=1e-12)


@pytest.mark.parametrize("torch_backend", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("products", ["sparse", "dense"])
@pytest.mark.parametrize("weights", ["uniform", "random"])
def test_monotone_feasible_and_stationary(weights, products, torch_backend):
    rng = np.random.default_rng(1)
    A, B = nx.barabasi_albert_graph(40, 2, seed=1), nx.barabasi_albert_graph(40, 2, seed=2)
    p = q = None
    if weights == "random":
        p, q = rng.dirichlet(np.ones(40)), rng.dirichlet(np.ones(40))
    problem = prepare_problem(A, B, p, q)
    start = round_to_marginals(rng.random((40, 40)), problem.p, problem.q)
    end, values = finish(problem, start, 200, products=products, torch_backend=torch_backend)
    plan = np.asarray(end.plan)
    falling = [v for _, v, _ in values]
    assert (np.diff(falling) <= 1e-14 * problem.scale).all()
    assert coupling_violation(plan, problem.p, problem.q) <= 1e-14
    assert end.stationary
    assert end.steps == len(values) <= end.products
    args = problem.C1, problem.C2, plan, problem.p, problem.q
    assert end.value == pytest.approx(gw_value(*args, normalize=False), abs=1e-13)
    assert frank_wolfe_gap(*args, normalize=False) <= 1e-9 * problem.scale


def test_both_backends_and_products_take_the_same_steps():
    rng = np.random.default_rng(2)
    A, B = nx.barabasi_albert_graph(30, 2, seed=1), nx.barabasi_albert_graph(30, 2, seed=2)
    for graph in (A, B):  # weights without ties, so that the vertices are unique
        nx.set_edge_attributes(graph, {edge: rng.random() for edge in graph.edges}, "weight")
    problem = prepare_problem(A, B, rng.dirichlet(np.ones(30)))
    start = np.outer(problem.p, problem.q)
    plans = [
        np.asarray(finish(problem, start, products=products, torch_backend=torch_backend)[0].plan)
        for products in ("sparse", "dense")
        for torch_backend in (False, True)
    ]
    for plan in plans[1:]:
        np.testing.assert_allclose(plan, plans[0], atol=1e-15)


def test_saddle_point_is_left():
    problem = prepare_problem([[0, 1], [1, 0]], [[0, 2], [2, 0]])
    start = np.full((2, 2), 0.25)
    assert frank_wolfe_gap(problem.C1, problem.C2, start) == 0.0
    assert gw_value(problem.C1, problem.C2, start) == pytest.approx(1.5)
    end, _ = finish(problem, start)
    assert end.value == pytest.approx(0.5)
    assert end.steps == 1


def test_too_few_steps_say_so():
    rng = np.random.default_rng(3)
    A, B = nx.watts_strogatz_graph(60, 6, 0.3, seed=1), nx.watts_strogatz_graph(60, 6, 0.3, seed=2)
    problem = prepare_problem(A, B)
    start = round_to_marginals(rng.random((60, 60)), problem.p, problem.q)
    end, values = finish(problem, start, max_steps=1)
    assert not end.stationary
    assert end.steps == len(values) == 1
    assert end.gap == pytest.approx(frank_wolfe_gap(A, B, end.plan), rel=1e-9)
    assert end.gap > 1e-10 * problem.scale
    none, values = finish(problem, start, max_steps=0)
    assert values == []
    np.testing.assert_array_equal(none.plan, start)
