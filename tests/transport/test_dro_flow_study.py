"""Pieces of the study of flows to the worst case."""

import importlib.util
import math
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from assay.extras import MissingExtraError
from assay.lab import Measurement, judge
from assay.studies.transport import _flow_oracle as oracle
from assay.studies.transport import _robust_training as training
from assay.studies.transport.dro_flow import DROFlowStudy, Problem
from assay.transport import FlowSampler

PARAMETERS = {
    "tasks": ("linear",),
    "trained": DROFlowStudy.sizes["full"]["trained"],
    "epochs": 1,
    "repeats": 1,
    "report": 0,
    "density": (10, 20),
}


def scalars(measurement, metric):
    return {scalar.case: scalar.value for scalar in measurement.scalars if scalar.metric == metric}


def test_declarations():
    DROFlowStudy.check_declarations()
    assert DROFlowStudy.name == "transport/dro_flow"
    for size in DROFlowStudy.sizes.values():
        assert set(size["trained"]) <= {contender.name for contender in DROFlowStudy.contenders}


def test_claims_have_the_promised_numbers():
    numbers = {claim.id: claim.number for claim in DROFlowStudy.claims}
    promised = {
        "C1 ERM": 0.1,
        "C1 dual": 0.02,
        "C2": 0.2,
        "C3 linear": -0.02,
        "C3 network": -0.08,
        "P2": 20.0,
        "P3": 6.0,
    }
    assert promised.items() <= numbers.items()


def test_tasks():
    digits = training.digits_task("network", 3, 5)
    assert digits.x.shape == (898, 64)
    assert digits.x.min() >= 0
    assert digits.x.max() <= 1
    assert abs(torch.bincount(digits.y) - torch.bincount(digits.y_test)).max() <= 1
    circle = training.circle_task(3, 30)
    assert circle.x.shape == (500, 2)
    assert not (circle.x > 0).all(1).any()
    assert (circle.x_test > 0).all(1).double().mean() == pytest.approx(0.25, abs=0.03)
    assert torch.equal(circle.y, (circle.x.norm(dim=1) > math.sqrt(2)).long())


def test_same_weights_for_all():
    task = training.digits_task("linear", 0, 1)
    state = torch.get_rng_state()
    assert torch.equal(training.make_model(task)[0].weight, training.make_model(task)[0].weight)
    assert torch.equal(state, torch.get_rng_state())


def test_attack():
    """On a linear model of two classes it goes straight to the boundary, and no further than the radius."""
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        model.bias.zero_()
    x = torch.tensor([[0.1, 0.0], [0.3, 1.0], [-0.2, 0.0], [-0.6, 0.0]])
    y = torch.tensor([0, 0, 1, 1])
    assert [training.attacked_accuracy(model, x, y, radius) for radius in (0.0, 0.15, 0.25, 0.7)] == [1, 0.75, 0.5, 0]


@pytest.mark.parametrize(
    "name", [training.WGF, training.WRM, training.DUAL, training.SVGD, training.NOISE, training.ERM]
)
def test_every_training_learns(name):
    task = training.digits_task("linear", 0, 2)
    model = training.train(name, task, steps=3)
    assert training.attacked_accuracy(model, task.x_test, task.y_test, 0.0) > 0.6
    again = training.train(name, task, steps=3)
    assert torch.equal(model[0].weight, again[0].weight)


@pytest.fixture
def peers():
    pytest.importorskip("torchattacks")
    try:
        return training.import_dro()
    except ImportError:
        pytest.skip("dro is not installed")


@pytest.mark.parametrize("name", [training.DRO_DUAL, training.DRO_WRM, training.DRO_BALL])
def test_every_peer_learns(peers, name):
    task = training.digits_task("linear", 0, 2)
    model = training.train(name, task, steps=3)
    assert training.attacked_accuracy(model, task.x_test, task.y_test, 0.0) > 0.6


def test_ascent_of_the_library_is_ours(peers):
    """The same penalty, steps and start give the same points: an independent implementation of WRM."""
    task = training.digits_task("linear", 0, 1)
    model = training.make_model(task)
    peer = training.make_peer(training.DRO_WRM, task, model, steps=7)
    loss = training.new_loss()
    theirs = peer._transport_attack(task.x[:50], task.y[:50])
    ours = FlowSampler("wrm", tau=task.tau, epsilon=task.epsilon, steps=7, step_size=0.1).sample(
        lambda a, b: loss(model(a), b), task.x[:50], task.y[:50]
    )
    torch.testing.assert_close(ours.points[:, 0], theirs, atol=1e-5, rtol=1e-5)


def test_dual_of_the_library_is_ours(peers):
    """Its Monte-Carlo estimate with many draws is near our dual value of the same entropy and penalty."""
    from assay.transport import worst_case_value

    # with an entropy so large that thousands of draws suffice
    task = replace(training.digits_task("linear", 0, 1), epsilon=0.3)
    model = training.make_model(task)
    peer = training.make_peer(training.DRO_DUAL, task, model, steps=1)
    peer.k_sample_max = 12
    loss = training.new_loss()
    x, y = task.x[:8], task.y[:8]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        with torch.no_grad():
            theirs = float(peer._sg_criterion(x, y))
    ours = worst_case_value(
        lambda a, b: loss(model(a), b), x, y, tau=task.tau, epsilon=task.epsilon,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert theirs == pytest.approx(ours.value, abs=0.004)


def test_peers_leave_no_stand_ins():
    """In a fresh interpreter: nothing is left of the package, and whoever needs it can import it."""
    pytest.importorskip("torchattacks")
    code = """
import sys
from assay.studies.transport import _robust_training as training
if not training.dro_is_there():
    sys.exit(77)
kept = training.import_dro()
left = [name for name in sys.modules if name.split(".")[0] in ("dro", "torchvision")]
assert not left, left
assert training.import_dro() is kept
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("dro is not installed")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("absent", ["dro", "torchattacks"])
def test_peers_that_are_not_installed_are_recorded(monkeypatch, absent):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == absent else find(name, *a))
    training.import_dro.cache_clear()
    for name in (training.DRO_DUAL, training.DRO_WRM, training.DRO_BALL):
        measurement = DROFlowStudy().measure(name, Problem(0, PARAMETERS), np.random.default_rng(0))
        assert [(s.metric, s.value) for s in measurement.scalars] == [("installed", 0.0)]
    with pytest.raises(MissingExtraError, match="pip install --no-deps dro torchattacks"):
        training.import_dro()
    descriptions = [c.description for c in DROFlowStudy.contenders if c.library == "dro"]
    assert len(descriptions) == 3
    assert all("pip install --no-deps dro torchattacks" in text for text in descriptions)


def test_a_claim_against_an_absent_library_is_not_measured():
    claim = next(claim for claim in DROFlowStudy.claims if claim.id == "C1 dro")
    scalars = pd.DataFrame(
        [
            {"contender": training.WGF, "metric": "accuracy", "case": "linear, radius 0.5", "value": 0.7, "seed": 0},
            {"contender": training.DRO_DUAL, "metric": "installed", "case": "", "value": 0.0, "seed": 0},
        ]
    )
    cells = pd.DataFrame({"contender": [training.WGF, training.DRO_DUAL], "status": ["done", "done"]})
    table = SimpleNamespace(study=DROFlowStudy.name, size="quick", scalars=scalars, cells=cells)
    verdict = next(verdict for verdict in judge(DROFlowStudy, table) if verdict.claim is claim)
    assert verdict.outcome == "not measured"


def test_oracles():
    measurement = Measurement()
    oracle.measure_oracle(measurement, "RGO", 0)
    assert scalars(measurement, "oracle_mean_error")["rgo"] <= 0.08
    oracle.measure_gradient(measurement, "wgf", 0, steps=60)
    errors = list(scalars(measurement, "gradient_error").values())
    assert errors[-1] <= 0.05
    assert len(measurement.curves) == 1


def test_costs():
    measurement = Measurement()
    oracle.measure_density_costs(measurement, (10, 20), 1)
    oracle.measure_costs(measurement, training.digits_task("linear", 0, 1), 2, 1)
    assert 0 < scalars(measurement, "memory_per_particle_coordinate")[""] <= 6
    assert scalars(measurement, "loop_speedup")[""] > 0


@pytest.mark.parametrize("contender", ["SVGD", "RGO", "ERM"])
def test_contenders_can_be_measured(contender):
    measurement = DROFlowStudy().measure(contender, Problem(0, PARAMETERS), np.random.default_rng(0))
    assert bool(scalars(measurement, "accuracy")) == (contender != "RGO")
    assert bool(scalars(measurement, "oracle_mean_error")) == (contender != "ERM")


def test_problem_is_the_same_for_all():
    study = DROFlowStudy()
    assert study.problem("quick", study.problem_rng("quick", 0)) == study.problem(
        "quick", study.problem_rng("quick", 0)
    )


def test_demonstration():
    certificates = DROFlowStudy().demonstrate()
    assert len(certificates) == 5
    assert all(certificate.holds for certificate in certificates)
