"""Pieces of the study of decentralised bilevel optimisation."""

import math

import networkx as nx
import numpy as np
import pytest

from assay.bilevel.mixing_matrix import metropolis_weights
from assay.bilevel.pl_problems import quadratic_pl_problem
from assay.lab import Measurement
from assay.studies.bilevel import _decentralized_digits as digits
from assay.studies.bilevel import _decentralized_quadratic as quadratic
from assay.studies.bilevel.decentralized_pl import HVP, MAGNITUDE, OURS, TIMESCALES, DecentralizedPLStudy, Problem

SMALL = DecentralizedPLStudy.sizes["quick"] | {
    "iterations": 20, "hvp": 3, "ridge": 3, "pruning": 2, "ridge_contenders": (), "reach": 200,
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
        "C6": 0.0, "C7a": 5e-4, "C7b": 1e-4, "C7c": 1e-4, "C8g": 20.0, "C9": 2.0, "P1": 5.0, "P2": 0.0, "P3": 9.0,
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
    quadratic.measure_reach(measurement, curves.__getitem__, tuple(curves))
    found = scalars(measurement, "iterations_to_level")
    assert found["setting 1"] == found["best"] == 300
    assert math.isinf(found["setting 2"])


def test_two_timescales_go_down():
    squares = quadratic.two_timescales(1.0, 300, seed=0)
    assert len(squares) == 30
    assert squares[-1] < 0.3 * squares[0]


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
    digits.measure_ridge(measurement, contender, 77, 2)
    assert 0.0 < scalars(measurement, "test_accuracy")["ridge"] < 1.0


def test_contenders_can_be_measured():
    study, problem = DecentralizedPLStudy(), Problem(0, SMALL)
    for contender, metric in (
        (HVP, "hessian_products"),
        (MAGNITUDE, "pruned_accuracy"),
        (TIMESCALES, "iterations_to_level"),
    ):
        measurement = study.measure(contender, problem, np.random.default_rng(0))
        assert scalars(measurement, metric)
    measurement = Measurement()
    quadratic.measure_first_order(measurement)
    quadratic.measure_costs(measurement, 1, ())
    assert scalars(measurement, "hessian_products") == {"torch, 4 nodes": 0.0}
    assert scalars(measurement, "message_off")[""] == 0.0
    assert scalars(measurement, "vectors_per_node")[""] == 9.0
    quadratic.measure_nonconvex(measurement, {0.1: 5})
    assert scalars(measurement, "least_curvature")["not convex, sigma=0.1"] < 0.0


def test_problem_is_the_same_for_all():
    study = DecentralizedPLStudy()
    first, second = (study.problem("quick", study.problem_rng("quick", 0)) for _ in range(2))
    assert first == second
    assert OURS in {claim.contender for claim in study.claims}


def test_demonstration():
    certificates = DecentralizedPLStudy().demonstrate()
    assert len(certificates) == 8
    assert all(certificate.holds for certificate in certificates)
