"""Pieces of the study of decentralised bilevel optimisation."""

import math

import networkx as nx
import numpy as np
import pytest

from assay.bilevel import DecentralizedBilevel, metropolis_weights, quadratic_pl_problem
from assay.lab import Measurement
from assay.studies.bilevel import _decentralized_digits as digits
from assay.studies.bilevel import _decentralized_noise as noise
from assay.studies.bilevel import _decentralized_quadratic as quadratic
from assay.studies.bilevel.decentralized_pl import (
    HVP,
    OURS,
    RETRAINED,
    TIMESCALES,
    DecentralizedPLStudy,
    Problem,
)

SMALL = DecentralizedPLStudy.sizes["quick"] | {
    "iterations": 20, "hvp": 3, "ridge": 3, "pruning": 2, "ridge_contenders": (), "reach": 100,
}  # fmt: skip


def scalars(measurement, metric):
    return {scalar.case: scalar.value for scalar in measurement.scalars if scalar.metric == metric}


def test_declarations():
    DecentralizedPLStudy.check_declarations()
    assert DecentralizedPLStudy.name == "bilevel/decentralized_pl"
    names = {contender.name for contender in DecentralizedPLStudy.contenders}
    for size in DecentralizedPLStudy.sizes.values():
        assert set(size["ridge_contenders"]) <= names
    assert len(DecentralizedPLStudy.sizes["full"]["graphs"]) == 12


def test_claims_have_the_promised_numbers():
    numbers = {claim.id: claim.number for claim in DecentralizedPLStudy.claims}
    promised = {
        "C1d": 1.7, "C1e": 2.1, "C2a": 1e-10, "C2b": 1e-3, "C3": 2.5, "C4a": 0.25, "C4b": 0.93, "C4d": 1.5, "C5": -0.01,
        "C5b": -0.01, "C6": 0.0, "C7a": 5e-4, "C7b": 1e-4, "C7c": 1e-4, "C8g": 20.0, "C9": 2.0, "P1": 5.0,
        "P2": 0.0, "P3": 9.0,
    }  # fmt: skip
    assert promised.items() <= numbers.items()


@pytest.mark.parametrize("kind", ["ring", "grid", "complete", "Erdos-Renyi"])
@pytest.mark.parametrize("n", [4, 8, 16])
def test_graphs(kind, n):
    graph = quadratic.graph_of(kind, n)
    assert len(graph) == n
    assert nx.is_connected(graph)


@pytest.mark.parametrize(
    ("rho", "expected"), [(0.0, (0.00475, 2.1e-4)), (0.01, (0.0079, None)), (0.1, (0.126, 0.106)), (0.3, (0.945, None))]
)
def test_known_values_of_stationary_points(rho, expected):
    measurement = Measurement()
    quadratic.measure_stationary_point(measurement, rho)
    found = scalars(measurement, "stationary_point_square")
    for sigma, number in zip(("0.05", "0.01"), expected, strict=True):
        if number is not None:
            assert found[f"sigma={sigma}"] == pytest.approx(number, rel=0.02)


def test_hessian_method_is_implicit_differentiation():
    """A lower loss of full rank on a complete graph: the hypergradient is exact, and it goes to the best point."""
    problem = quadratic_pl_problem(3, d=3, rank=3)
    W = metropolis_weights(nx.complete_graph(3))
    start = np.zeros((3, 5)), np.zeros((3, 3))
    x, _, cost = quadratic.hessian_descent(problem.f, problem.g, *start, W, 600, 0.01, 0.3 / problem.L)
    assert np.abs(problem.F(x.mean(axis=0))[1]).max() < 1e-4 < np.abs(problem.F(np.zeros(5))[1]).max()
    assert cost["products"] == 6 * 601


def test_reach():
    measurement = Measurement()
    curves = {1.0: np.r_[np.ones(20), np.zeros(30)], 2.0: np.ones(50)}
    noise.measure_reach(measurement, curves.__getitem__, tuple(curves))
    found = scalars(measurement, "iterations_to_level")
    assert found["setting 1"] == found["best"] == 300
    assert math.isinf(found["setting 2"])


def test_two_timescales_go_down():
    squares = noise.two_timescales(1.0, 150, seed=0)
    assert len(squares) == 15
    assert squares[-1] < 0.5 * squares[0]


def test_noise_floor_is_the_sum_of_squared_responses():
    """To a unit of noise in every entry of a batch, which the iteration itself answers."""
    problem = quadratic_pl_problem(1, dx=1, d=1, rank=1, n=3, seed=8, heterogeneous=False)
    options = {"sigma": 0.2, "x0": problem.x_star, "y0": problem.lower_solution(problem.x_star)}
    quiet = np.zeros((1, 2, 2))

    def slopes(unit):
        batches = iter([quiet, unit])
        run = DecentralizedBilevel.from_problem(
            problem, [[1.0]], sampler=lambda rng: next(batches, quiet), refine_steps=0, **options
        )
        for _ in range(200):
            run.step()
            yield problem.F(run.x_nodes[0])[1][0]

    free = np.array(list(slopes(quiet)))
    total = 0.0
    for entry in range(4):
        unit = np.zeros(4)
        unit[entry] = 1.0
        total += float(((np.array(list(slopes(unit.reshape(1, 2, 2)))) - free) ** 2).sum())
    assert noise.expected_noise_floor(problem, 0.2, 0.5) == pytest.approx(0.25 * total, rel=0.01)


def test_noise_floor_of_the_study():
    """As by 4000 steps of the recursion of the covariance."""
    assert noise.expected_noise_floor(quadratic_pl_problem(1), 0.05, 0.5) == pytest.approx(0.2938219, abs=1e-6)
    measurement = Measurement()
    noise.measure_noise_floor(measurement, 15, (2, 3), 0)
    found = scalars(measurement, "excess_times_nodes")
    assert scalars(measurement, "excess_spread")[""] == pytest.approx(max(found.values()) / min(found.values()))


def test_digits_task():
    task = digits.digits_task(3, True)
    assert [len(part[1]) for part in (task.train, task.validation, task.test)] == [400, 600, 797]
    assert task.train[0].shape[1] == 128
    assert task.train[0][:, 64:].std() == pytest.approx(0.5, abs=0.01)
    assert digits.digits_task(3, False).train[0].shape[1] == 64


@pytest.mark.parametrize("contender", ["no tracking", "HVP", "fixed"])
def test_ridge_is_measured(monkeypatch, contender):
    monkeypatch.setattr(digits, "_trained", lambda problem, n_iter: problem.y0)
    monkeypatch.setattr(digits, "N_TRAIN", 40)
    monkeypatch.setattr(digits, "N_VALIDATION", 40)
    measurement = Measurement()
    digits.measure_ridge(measurement, contender, 77, 2, refine_steps=2)
    assert 0.0 < scalars(measurement, "test_accuracy")["ridge"] < 1.0


def test_contenders_can_be_measured():
    study, problem = DecentralizedPLStudy(), Problem(0, SMALL)
    for contender, metric in (
        (HVP, "hessian_products"),
        (RETRAINED, "pruned_accuracy_z"),
        (TIMESCALES, "iterations_to_level"),
    ):
        measurement = study.measure(contender, problem, np.random.default_rng(0))
        assert scalars(measurement, metric)
    measurement = Measurement()
    quadratic.measure_first_order(measurement)
    quadratic.measure_costs(measurement, 1, ())
    quadratic.measure_convergence(measurement, 5, {0.1: 5}, (("grid", 4),), refine_steps=2)
    assert set(scalars(measurement, "spectral_gap")) == {"grid 4", "not convex, grid 4"}
    assert scalars(measurement, "hessian_products") == {"torch, 4 nodes": 0.0}
    assert scalars(measurement, "message_off")[""] == 0.0
    assert scalars(measurement, "vectors_per_node")[""] == 9.0
    quadratic.measure_nonconvex(measurement, {0.1: 5}, refine_steps=2)
    assert scalars(measurement, "least_curvature")["not convex, sigma=0.1"] < 0.0


def test_problem_is_the_same_for_all():
    study = DecentralizedPLStudy()
    first, second = (study.problem("quick", study.problem_rng("quick", 0)) for _ in range(2))
    assert first == second
    assert OURS in {claim.contender for claim in study.claims}


def test_demonstration():
    certificates = DecentralizedPLStudy().demonstrate()
    assert len(certificates) == 9
    assert all(certificate.holds for certificate in certificates)
