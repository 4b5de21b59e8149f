"""Pieces of the study of fully first-order layers."""

import numpy as np
import pytest
import torch

from assay.lab import Measurement
from assay.studies.bilevel import _ffo_accuracy as accuracy
from assay.studies.bilevel import _ffo_contenders as contenders
from assay.studies.bilevel import _ffo_costs as costs
from assay.studies.bilevel import _ffo_tasks as tasks
from assay.studies.bilevel.ffo_layer import FFOLayerStudy

pytest.importorskip("cvxpy")
ALL = [contender.name for contender in FFOLayerStudy.contenders]


def scalars(measurement, metric):
    return {scalar.case: scalar.value for scalar in measurement.scalars if scalar.metric == metric}


def test_declarations():
    FFOLayerStudy.check_declarations()
    assert FFOLayerStudy.name == "bilevel/ffo_layer"
    for size in FFOLayerStudy.sizes.values():
        assert set(size["races"]) | set(size["large"]) <= set(ALL)


def test_claims_have_the_promised_numbers():
    numbers = {claim.id: claim.number for claim in FFOLayerStudy.claims}
    promised = {
        "C1 QP decisions above": 1.01,
        "C1 CP portfolio below": 0.99,
        "C2 backward": 5.0,
        "C2 total": 1.5,
        "C3 ours": 2.1,
        "C4 forward Q": 0.1,
        "C4 central": 0.2,
        "C5 linear": 0.95,
        "C5 sizes": 1.5,
        "C6 calls": 1.0,
        "C7 compare": 0.0,
        "C7 threshold": 0.1,
        "C8": 1.0,
        "P1": 0.2,
    }
    assert promised.items() <= numbers.items()


@pytest.mark.parametrize("name", ALL)
def test_contenders_solve_the_same_program(name):
    if not contenders.installed(name):
        pytest.skip(f"{name} is not installed")
    program = contenders.box_program(4)
    q = torch.tensor([[2.0, 0.4, -1.0, 0.6], [0.3, 3.0, 0.5, -2.0]], dtype=torch.float64, requires_grad=True)
    solve = contenders.make(name, program)
    found = solve(q)
    torch.testing.assert_close(found, (-q).clamp(-1, 0), atol=1e-3, rtol=0)
    (slope,) = torch.autograd.grad(solve(q[:1])[0].sum(), q)
    torch.testing.assert_close(slope[0], -((q[0] > 0) & (q[0] < 1)).double(), atol=5e-2, rtol=0)


def test_peer_that_is_absent_is_recorded(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None)
    study = FFOLayerStudy()
    problem = study.problem("quick", study.problem_rng("quick", 0))
    measurement = study.measure("proxsuite", problem, np.random.default_rng(0))
    assert [(s.metric, s.value) for s in measurement.scalars] == [("installed", 0.0)]


def test_tasks():
    rng = np.random.default_rng(0)
    decision = tasks.decision_task(5, 12, 4, rng)
    assert decision.inputs.shape == (12, 640)
    portfolio = tasks.portfolio_task(16, 8)
    assert portfolio.targets.shape == (16, 20)
    equal = torch.full((16, 20), 0.05, dtype=torch.float64)
    assert portfolio.loss(equal, portfolio.targets, torch.arange(16)) > 0  # regret
    puzzles, solutions = tasks.sudokus(5, rng)
    grids = solutions.reshape(5, 4, 4, 4)
    assert (grids.sum(axis=1) == 1).all()
    assert (grids.sum(axis=2) == 1).all()
    assert (grids.sum(axis=3) == 1).all()
    assert ((puzzles <= solutions).all(axis=1)).all()
    measurement = Measurement()
    tasks.measure_training(measurement, "FFOQP", decision, 2, 0)
    tasks.measure_sudoku(measurement, "FFOQP", 20, 1, rng)
    assert set(scalars(measurement, "train_loss")) == {"decisions n=5", "sudoku"}
    assert all(np.isfinite(value) for value in scalars(measurement, "train_loss").values())


def test_orders_and_errors():
    measurement = Measurement()
    accuracy.measure_order(measurement, "forward differences", np.random.default_rng(0))
    deviations = scalars(measurement, "order_deviation")
    assert deviations["Q of a program"] < 0.1
    assert deviations["radius of a ball"] < 0.1
    # By symmetry the first-order term vanishes for the projected point, which the claim does not foresee.
    assert deviations["point to a ball"] == pytest.approx(1.0, abs=0.01)
    accuracy.measure_gradient(measurement, "dense KKT", np.random.default_rng(0))
    assert scalars(measurement, "gradient_error")["random programs"] < 1e-3


def test_active_sets_and_iterations():
    measurement = Measurement()
    accuracy.measure_active_sets(measurement, "FFOQP", 5, np.random.default_rng(0))
    assert scalars(measurement, "wrong_active_sets") == {"random programs": 0.0}
    accuracy.measure_iterations(measurement, (20,), np.random.default_rng(0))
    assert scalars(measurement, "fit_of_iterations")["n=20"] > 0.9


def test_costs_and_descent():
    measurement = Measurement()
    costs.measure_race(measurement, "dense KKT", 10, 2, 1, 0)
    assert scalars(measurement, "backward_ratio")["n=10, batch 2"] > 0
    costs.measure_memory(measurement, (10, 20), 0)
    assert set(scalars(measurement, "memory_exponent")) == {"ours", "dense KKT"}
    costs.measure_growth(measurement, (10, 20), 1, 0)
    assert set(scalars(measurement, "overhead")) == {"n=10", "n=20"}
    accuracy.measure_descent(measurement, (4.0,), (0.5,), np.random.default_rng(0))
    assert scalars(measurement, "calls_over_budget")["delta=0.5, eps=4"] < 1
    assert all(certificate.holds for _, certificate in measurement.certificates)


def test_demonstration():
    certificates = FFOLayerStudy().demonstrate()
    assert len(certificates) == 6
    assert all(certificate.holds for certificate in certificates)
