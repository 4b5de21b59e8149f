"""Certificates of decentralised runs: what holds, that spoilt answers fail, and the law of the bias."""

import copy
import functools

import networkx as nx
import numpy as np
import pytest

from assay.bilevel import DecentralizedBilevel, bias_law, quadratic_pl_problem

PROBLEM = quadratic_pl_problem(4)
RING = nx.cycle_graph(4)


def solver(**options):
    return DecentralizedBilevel.from_problem(PROBLEM, RING, **({"refine_steps": 5} | options))


def as_it_is(state):
    pass


def test_certificates_of_a_good_run():
    result = spoilt(as_it_is)
    assert result.certified
    assert len(result.certificates) == 10
    assert result.status == "budget"
    exact = PROBLEM.F(result.x)[1]
    assert result.stationarity == pytest.approx(exact @ exact)
    assert np.sqrt(result.stationarity) <= np.sqrt(result.penalised_stationarity) + result.bias
    assert result.pl_ratio >= PROBLEM.mu * (1 - 1e-6)
    assert set(result.history) >= {"iteration", "seconds", "stationarity", "true_stationarity", "consensus_x"}
    assert len(repr(result).splitlines()) < 30
    assert result.to_dict()["status"] == "budget"


def certificate_of(result, words):
    return next(c for c in result.certificates if words in c.statement)


@functools.cache
def converged():
    run = solver(sigma=0.1)
    run.run(400, 100)
    return run.state_dict()


@functools.cache
def spoilt(change):
    """Report on a converged run after its state has been changed."""
    run = solver(sigma=0.1, refine_steps=50)
    state = copy.deepcopy(converged())
    change(state)
    run.load_state_dict(state)
    return run.run(0)


def far_x(state):
    state["states"][:, :5] += 3.0


def late_z(state):
    state["states"][:, 17:] += np.random.default_rng(0).normal(size=12)


def other_y(state):
    state["states"][:, 5:17] += 5.0


def apart(state):
    state["states"][0] += 1.0


def lost_tracker(state):
    state["trackers"][2] += 1.0


def more_messages(state):
    state["bytes_sent"] += 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (far_x, "squared norm of the hypergradient"),
        (late_z, "refined ones"),
        (other_y, "which minimises it"),
        (apart, "disagreement"),
        (lost_tracker, "mean tracker"),
        (more_messages, "bytes sent"),
    ],
)
def test_spoilt_answers_fail(change, words):
    assert certificate_of(spoilt(as_it_is), words).holds
    assert not certificate_of(spoilt(change), words).holds


def test_wrong_exact_gradients_fail():
    run = solver(sigma=0.1, true_hypergradient=lambda x: (0.0, x + 5.0), refine_steps=20)
    run.load_state_dict(converged())
    result = run.run(0)
    assert not certificate_of(result, "exact hypergradient").holds


def test_means_that_move_otherwise_fail(monkeypatch):
    run = solver(sigma=0.1)
    lossy = run.network.mix
    monkeypatch.setattr(run.network, "mix", lambda rows: lossy(rows) * (1 + 1e-6))
    result = run.run(20)
    assert not certificate_of(result, "mean state").holds
    assert not certificate_of(result, "mean tracker").holds


def test_a_lower_loss_with_a_bad_valley_fails():
    """A double well: from y0 the way ends in the worse one, which is stationary."""

    def lower(x, y, batch):
        return ((y**2 - 1.0) ** 2 + 0.3 * y).sum(), (0.0 * x, 4.0 * y * (y**2 - 1.0) + 0.3)

    def upper(x, y, batch):
        return 0.5 * x @ x, (x, 0.0 * y)

    start = np.zeros(1), np.ones(1)
    result = DecentralizedBilevel(
        [upper] * 2, [lower] * 2, *start, nx.path_graph(2), smoothness=20.0, refine_steps=80, z0=[-1.0],
    ).run(20, 20)  # fmt: skip
    assert not certificate_of(result, "Polyak-Lojasiewicz").holds


def test_bias_law():
    C, slope, certificate = bias_law([0.4, 0.2, 0.1], [0.16 * 3, 0.04 * 3, 0.01 * 3])
    assert (C, slope) == (pytest.approx(3.0), pytest.approx(2.0))
    assert certificate.holds
    assert not bias_law([0.4, 0.1], [0.4, 0.1])[2].holds
    for bad in (([0.1], [0.1]), ([0.1, 0.1], [1, 2]), ([0.1, 0.2], [1, 2, 3]), ([0.1, 0.2], [0, 1]), ([-1, 1], [1, 1])):
        with pytest.raises(ValueError):
            bias_law(*bad)
