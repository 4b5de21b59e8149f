"""Pieces of the study of anchored methods."""

import numpy as np
import pytest

from assay.lab import Measurement
from assay.studies.games import _goma_costs as costs
from assay.studies.games import _goma_runs as runs
from assay.studies.games import _saddle_problems as problems
from assay.studies.games.goma import GomaStudy, Problem


def scalars(measurement):
    return {(scalar.metric, scalar.case): scalar.value for scalar in measurement.scalars}


@pytest.fixture(scope="module")
def logistic():
    return problems.robust_logistic()


def test_declarations():
    GomaStudy.check_declarations()
    assert GomaStudy.name == "games/goma"
    numbers = {claim.id: (claim.relation, claim.number) for claim in GomaStudy.claims}
    assert numbers["C1a-halpern"] == ("<=", 1.0)
    assert numbers["C2a"] == ("<=", -1.9)
    assert numbers["C2b-upper"] == ("<=", -0.9)
    assert numbers["C2c-lower"] == (">=", -1.3)
    assert numbers["C3"] == numbers["C3-tuned"] == (">=", 1000)
    assert numbers["C4a-upper"] == ("<=", -0.4)
    assert numbers["C4b-lower"] == (">=", -0.6)
    assert numbers["C4c"] == numbers["C4c-both"] == (">=", -0.1)
    assert numbers["C5-goma"] == ("<=", 0)
    assert numbers["C5-hard"] == ("<=", 1.0)
    assert (numbers["C6b"], numbers["C6c"], numbers["C6d"]) == (("<=", 8.0), (">=", 3.5), (">=", 264.0))
    assert numbers["C7a"] == (">=", 1e6)
    assert (numbers["P1"], numbers["P2"], numbers["P3"], numbers["P4"]) == (
        ("<=", 1.3), ("<=", 3.0), ("<=", 3.0), ("<=", 0.1),
    )  # fmt: skip


def test_the_bilinear_game_is_that_of_the_reference_numbers():
    saddle = problems.bilinear(np.random.default_rng(1))
    assert saddle.distance == pytest.approx(10.0)
    assert runs.run(runs.GOMA, saddle, 20_000).residual_sq == pytest.approx(9.8e-7, rel=0.01)
    # Extra anchored gradients, written out in the singular directions, where the operator is a rotation of each.
    speeds, start = np.linspace(0.01, 1.0, 50), np.full(50, 1.0 + 1.0j)
    for step, expected in ((0.125, 5.7e-5), (0.5, 3.9e-6)):
        z = start
        for k in range(10_000):
            pulled = z + (start - z) / (k + 2)
            z = pulled + 1j * step * speeds * (pulled + 1j * step * speeds * z)
        assert np.sum(np.abs(speeds * z) ** 2) == pytest.approx(expected, rel=0.01)
    few = runs.run(runs.EAG, saddle, 200, 0.5).residual_sq
    z = start
    for k in range(100):
        pulled = z + (start - z) / (k + 2)
        z = pulled + 0.5j * speeds * (pulled + 0.5j * speeds * z)
    assert few == pytest.approx(np.sum(np.abs(speeds * z) ** 2), rel=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "bilinear",
        "bilinear, logarithmic",
        "bilinear, random start",
        "hard",
        "nonlinear",
        "well-conditioned",
        "robust logistic",
    ],
)
def test_operators_are_what_they_say(name, logistic):
    rng = np.random.default_rng(0)
    make = {
        "bilinear": lambda: problems.bilinear(rng),
        "bilinear, logarithmic": lambda: problems.bilinear(rng, spread="logarithmic"),
        "bilinear, random start": lambda: problems.bilinear(rng, start="random"),
        "hard": lambda: problems.hard_instance(20),
        "nonlinear": lambda: problems.nonlinear(rng, 30),
        "well-conditioned": lambda: problems.well_conditioned(rng)[0],
        "robust logistic": lambda: logistic,
    }
    saddle = make[name]()
    assert saddle.name == name
    scale = saddle.lipschitz * max(saddle.distance, 1.0)
    assert np.linalg.norm(saddle.field(saddle.zero)) <= 1e-12 * scale
    for _ in range(20):
        a, b = rng.normal(size=(2, saddle.start.size))
        change = saddle.field(a) - saddle.field(b)
        assert change @ (a - b) >= -1e-10 * np.linalg.norm(change) * np.linalg.norm(a - b)
        assert np.linalg.norm(change) <= saddle.lipschitz * np.linalg.norm(a - b) * (1 + 1e-12)


def test_the_hard_instance_is_the_matrix_that_is_published():
    size = 6
    matrix = np.zeros((size, size))
    for i in range(size):
        matrix[i, size - 1 - i] = 0.25
        if i < size - 1:
            matrix[i, size - 2 - i] = -0.25
    linear, offset = 0.25 * np.eye(size)[-1], 0.25 * np.ones(size)
    z = np.random.default_rng(0).normal(size=2 * size)
    x, y = z[:size], z[size:]
    expected = np.concatenate([2 * matrix.T @ matrix @ x - linear - matrix.T @ y, matrix @ x - offset])
    np.testing.assert_allclose(problems.hard_instance(size).field(z), expected, atol=1e-14)


def test_minibatches_are_unbiased(logistic):
    rng, saddle, oracle = np.random.default_rng(0), logistic, problems.robust_logistic_minibatch()
    z = rng.normal(size=saddle.start.size)
    means = np.mean([oracle(z, 40, rng) for _ in range(300)], axis=0)
    exact = saddle.field(z)
    assert np.linalg.norm(means - exact) < 0.02 * np.linalg.norm(exact)


@pytest.mark.parametrize("contender", [runs.GOMA, runs.EG, runs.EAG, runs.OGDA, runs.SGDA, runs.ADAM])
def test_equal_calls(contender):
    saddle = problems.bilinear(np.random.default_rng(0), 5)
    measurement = Measurement()
    runs.measure_deterministic(measurement, contender, [saddle], 100, ("bilinear",))
    found = scalars(measurement)
    assert found["residual_default", "bilinear"] > 0
    if contender in (runs.GOMA, runs.EG, runs.EAG, runs.OGDA):
        assert found["residual_tuned", "bilinear"] <= found["residual_default", "bilinear"]
        assert found["calls_off", "bilinear"] == 0
        assert runs.run(contender, saddle, 100).n_calls == 100


def test_the_smaller_measures():
    measurement, rng = Measurement(), np.random.default_rng(0)
    runs.measure_small_steps(measurement, problems.bilinear(rng), 2000)
    runs.measure_well_conditioned(measurement, *problems.well_conditioned(rng), 300)
    found = scalars(measurement)
    assert found["unscaled_constant", "eta L = 0.05"] > 264
    assert found["share_of_scaled_bound", "eta L = 0.1"] <= 1
    assert found["worst_factor_of_restart", "well-conditioned"] <= 0.5
    assert found["residual_over_eg", "well-conditioned"] > 1


@pytest.mark.parametrize("contender", [runs.NOISY, runs.HORIZON, runs.SEG, runs.DSEG, runs.DSEG_BOTH])
def test_noise(contender):
    measurement = Measurement()
    runs.measure_noise(measurement, contender, 20, 60, (15, 30, 60), np.random.default_rng(0))
    assert {case for _, case in scalars(measurement)} == {"kappa 1", "kappa 4"}


def test_minibatch_runs(logistic):
    for contender in (runs.NOISY, runs.SGDA, runs.DSEG, runs.DSEG_BOTH, runs.ADAM):
        measurement = Measurement()
        runs.measure_minibatches(measurement, contender, logistic, 12, np.random.default_rng(0))
        (value,) = scalars(measurement).values()
        assert 0 < value < np.sum(logistic.field(logistic.start) ** 2) * 10


def test_costs():
    measurement = Measurement()
    costs.measure_numpy_costs(measurement, (100, 1000), 2, 0.2)
    costs.measure_torch_costs(measurement, 1000, 2, 0.2)
    found = scalars(measurement)
    assert found["copies_with_parameters", "1000 parameters"] == 3.0
    assert found["vector_passes", "d = 1000"] > 0


def test_the_quick_problem_and_the_demonstration(capsys):
    problem = GomaStudy().problem("quick", np.random.default_rng(0))
    assert isinstance(problem, Problem)
    assert [saddle.name for saddle in problem.saddles] == ["bilinear", "hard", "nonlinear", "bilinear, logarithmic"]
    assert all(c.holds for c in GomaStudy().demonstrate())
    assert "calls" in capsys.readouterr().out
