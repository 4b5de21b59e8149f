"""The study of asymmetric perturbation, on games that take no time."""

import fnmatch

import numpy as np
import pytest

from assay.studies.games import _asymmetric_games as games
from assay.studies.games._asymmetric_games import KUHN, LinearProgram, TreeCase, uniform_games
from assay.studies.games.asymmetric_perturbation import _MATRIX_PLAYERS, AsymmetricPerturbationStudy

STUDY = AsymmetricPerturbationStudy
TINY = TreeCase("Kuhn", "kuhn_poker", 100, 0.01, 2.0, 20, 12)


@pytest.fixture(scope="module")
def problem():
    return {
        "games": uniform_games(((4, 5), (10, 10)), (0,)),
        "steps": 2000,
        "incumbent_steps": 1000,
        "trees": (TINY,),
        "rejection_games": 2,
        "linear_program_steps": 200,
        "linear_program": LinearProgram.random(4, 3, 1),
        "speed": (10, 12),
        "scaling": (20, 60),
    }


def measure(contender, problem):
    measurement = STUDY().measure(contender, problem, np.random.default_rng(0))
    scalars = {(scalar.metric, scalar.case): scalar.value for scalar in measurement.scalars}
    assert all(np.isfinite(value) for value in scalars.values())
    return measurement, scalars


def test_declarations():
    STUDY.check_declarations()
    assert STUDY.name == "games/asymmetric_perturbation"


def test_claims_have_their_numbers():
    numbers = {claim.id: (claim.relation, claim.number) for claim in STUDY.claims}
    assert numbers["C1a"] == ("<=", 1e-9)
    assert numbers["C1c"] == ("<=", 0.01)
    assert (numbers["C2a"], numbers["C2b"], numbers["C2c"]) == ((">=", 0.283), ("<=", 0.289), ("<=", 1e-10))
    assert (numbers["C3a"], numbers["C3b"]) == (("<=", 1e-10), ("<=", 0.3))
    assert (numbers["C4a"], numbers["C4c"], numbers["C4d"]) == (("<=", 1e-10), (">=", 1e-6), ("<=", 2e-3))
    assert numbers["C5"] == ("<=", 0)
    assert numbers["C6"] == ("<=", 1e-3)
    assert (numbers["P1"], numbers["P2"], numbers["P3"]) == ((">=", 5000), ("<=", 1.6), (">=", 1500))
    assert (numbers["P4"], numbers["P5"]) == ((">=", 50), ("<=", 1.1))


def test_ours_measures_what_the_claims_are_about(problem):
    pytest.importorskip("clarabel")
    _, scalars = measure(games.AUTO, problem)
    for mu in ("0.1", "0.5", "1", "2"):
        assert scalars["loss_of_perturbed_strategy", f"mu = {mu}"] <= 1e-9
    assert scalars["loss_of_perturbed_strategy", "mu = 4"] == pytest.approx(0.075)
    assert scalars["threshold_error", "BRPS, x side"] <= 0.01
    assert scalars["nashconv", "10x10 #0"] <= 1e-10
    assert scalars["wrong_rejections", ""] == 0
    assert scalars["rejections", ""] > 0
    assert scalars["steps_per_second", "10x12"] > 0
    assert ("objective_error", "linear program") in scalars
    cases = {case for _, case in scalars}
    assert {case for case in cases if fnmatch.fnmatch(case, "mu = [!4]*")} == {
        f"mu = {m}" for m in ("0.1", "0.5", 1, 2)
    }
    assert fnmatch.filter(cases, "*x* #*") == [case for case in cases if "#" in case]


@pytest.mark.parametrize("contender", [name for name in _MATRIX_PLAYERS if name != games.AUTO])
def test_the_others_play_the_same_games(contender, problem):
    pytest.importorskip("pyspiel")
    measurement, scalars = measure(contender, problem)
    for name in (*problem["games"], *games.SMALL_GAMES):
        assert scalars["nashconv", name] >= -1e-15
    if contender == games.SYM:
        assert scalars["nashconv", "BRPS"] == pytest.approx(0.2857, abs=1e-3)
    if contender == games.FIXED:
        assert scalars["nashconv", "BRPS"] <= 1e-10
        assert scalars["nashconv_of_openspiel", "Kuhn"] == pytest.approx(scalars["nashconv", "Kuhn"], abs=1e-9)
        assert scalars["python_over_compiled", "Kuhn"] > 0
        assert np.isfinite(scalars["time_slope", ""] + scalars["memory_slope", ""])
    assert measurement.curves


@pytest.mark.parametrize("contender", [games.CFR, games.CFR_PLUS, games.DCFR])
def test_regret_minimisers_of_openspiel_are_called(contender, problem):
    pytest.importorskip("pyspiel")
    measurement, scalars = measure(contender, problem)
    assert 0 < scalars["nashconv", "Kuhn"] < 0.5
    assert scalars["iterations", "Kuhn"] == (12 if contender == games.DCFR else 20)
    assert measurement.curves[0].x[0] == 10


def test_linear_programming_is_raced(problem):
    _, scalars = measure(games.HIGHS, problem)
    for name in problem["games"]:
        assert scalars["nashconv", name] <= 1e-9
        assert scalars["seconds_over_ours", name] > 0


def test_without_openspiel_nothing_breaks(problem, monkeypatch):
    from assay.extras import MissingExtraError
    from assay.studies.games import asymmetric_perturbation as study

    def missing(*args):
        raise MissingExtraError("pyspiel is not installed")

    monkeypatch.setattr(study, "measure_tree", missing)
    _, scalars = measure(games.CFR, problem)
    assert scalars == {("installed", "OpenSpiel"): 0.0}


def test_problems_are_those_of_the_known_seeds():
    one, two = (STUDY().problem("quick", np.random.default_rng(seed)) for seed in (0, 1))
    np.testing.assert_array_equal(one["games"]["30x50 #0"], np.random.default_rng(0).uniform(-1, 1, (30, 50)))
    np.testing.assert_array_equal(one["linear_program"].matrix, two["linear_program"].matrix)
    assert one["linear_program"].matrix.shape == (20, 30)
    assert KUHN in one["trees"]
    assert np.isfinite(one["linear_program"].solve())


def test_the_demonstration_certifies_its_answer(capsys):
    assert all(certificate.holds for certificate in STUDY().demonstrate())
    assert "mu = 1.5" in capsys.readouterr().out
