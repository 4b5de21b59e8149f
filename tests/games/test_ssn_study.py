"""The study of matrix games, on games that take no time."""

import fnmatch

import numpy as np
import pytest

from assay.games.matrix_game import duality_gap
from assay.lab import Measurement
from assay.studies.games import _matrix_games as matrix_games
from assay.studies.games import ssn as study
from assay.studies.games._matrix_game_measures import OVER_TIME
from assay.studies.games.ssn import MatrixGameStudy


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    games = matrix_games.random_games(((6, 9), (12, 8)), rng)
    return {
        "shapes": ((5, 8), (6, 7)),
        "squares": (6, 12),
        "steps": (10, 20),
        "orders": 4,
        "seconds": 0.01,
        "games": games,
        "seed": 0,
    }


def measure(contender, problem):
    measurement = MatrixGameStudy().measure(contender, problem, np.random.default_rng(0))
    scalars = {(scalar.metric, scalar.case): scalar.value for scalar in measurement.scalars}
    assert all(np.isfinite(value) for value in scalars.values())
    return measurement, scalars


@pytest.mark.parametrize(
    "contender",
    [study.OURS, study.PSSN, study.SSN, study.BLOCK_200, study.BLOCK_ALL, study.FULL_STEPS, study.MONOTONE],
)
def test_variants_of_ours_solve_small_games(contender, problem):
    measurement, scalars = measure(contender, problem)
    for game in problem["games"]:
        assert scalars["relative_gap", game.name] <= 1e-10
        assert scalars["seconds_to_1e-10", game.name] >= scalars["seconds_to_1e-4", game.name]
    assert all(certificate.holds for _, certificate in measurement.certificates)
    assert {curve.name for curve in measurement.curves} >= {OVER_TIME}


def test_ours_measures_what_the_claims_are_about(problem):
    measurement, scalars = measure(study.OURS, problem)
    assert len(measurement.certificates) == 2 * len(problem["games"])
    for game in problem["games"]:
        assert 0 < scalars["gap_over_bound", game.name] <= 1
        assert scalars["n_interior", game.name] == 0
    orders = [value for (metric, _), value in scalars.items() if metric == "newton_order"]
    assert len(orders) == problem["orders"]
    assert scalars["share_of_order_1.6", ""] == np.mean(np.array(orders) >= 1.6)
    assert 0 <= scalars["share_of_order_1.6", ""] <= 1
    assert scalars["newton_step_seconds", "10x20"] > 0
    assert scalars["memory_over_target", "300x300"] > 0.2


@pytest.mark.parametrize("contender", [study.PRM, study.SIMULTANEOUS])
def test_regret_matching_is_raced(contender, problem):
    _, scalars = measure(contender, problem)
    for game in problem["games"]:
        reached = scalars["gap_when_stopped", game.name] <= 1e-8
        assert reached or scalars["speedup", game.name] >= study.CAP
    assert (("iteration_over_products", "") in scalars) == (contender == study.PRM)


def test_linear_programming_is_raced(problem):
    _, scalars = measure(study.HIGHS, problem)
    for game in problem["games"]:
        assert scalars["relative_gap", game.name] <= 1e-8
        assert scalars["speedup_default", game.name] >= scalars["speedup", game.name] * 0.999
    _, scalars = measure(study.HIGHS_SCALING, problem)
    slope = np.log(scalars["speedup", "square 12"] / scalars["speedup", "square 6"]) / np.log(2)
    assert scalars["speedup_slope", ""] == pytest.approx(slope)


@pytest.mark.parametrize("contender, module", [(study.OPEN_SPIEL, "pyspiel"), (study.NASHPY, "nashpy")])
def test_other_libraries_are_called(contender, module, problem):
    pytest.importorskip(module)
    _, scalars = measure(contender, problem)
    gaps = [value for (metric, _), value in scalars.items() if metric == "relative_gap"]
    assert len(gaps) == 2
    assert max(gaps) <= 1e-6


def test_open_spiel_is_left_as_it_was():
    pytest.importorskip("pyspiel")
    from open_spiel.python.algorithms import lp_solver

    before = lp_solver.LinearProgram.solve
    payoff = np.random.default_rng(1).normal(size=(4, 5))
    assert duality_gap(payoff, *matrix_games.open_spiel_equilibrium(payoff)) <= 1e-6
    assert lp_solver.LinearProgram.solve is before


def test_blotto_is_the_game_of_open_spiel():
    pyspiel = pytest.importorskip("pyspiel")
    game = pyspiel.load_matrix_game("blotto(coins=5,fields=3)")
    utilities = np.array(game.row_utilities()).reshape(game.num_rows(), game.num_cols())
    np.testing.assert_array_equal(-utilities, matrix_games.colonel_blotto(5, 3))


def test_both_linear_programs_give_both_strategies():
    payoff = np.random.default_rng(2).normal(size=(7, 9))
    for side in ("row", "column"):
        answer = matrix_games.linear_program(payoff, "highs-ds", side)
        assert duality_gap(payoff, *matrix_games.strategies_of(answer, side)) <= 1e-9


def test_problems_depend_on_the_seed_only():
    one, two, other = (
        MatrixGameStudy().problem("quick", MatrixGameStudy.problem_rng("quick", seed)) for seed in (0, 0, 1)
    )
    assert [game.name for game in one["games"]] == [game.name for game in other["games"]]
    np.testing.assert_array_equal(one["games"][0].payoff, two["games"][0].payoff)
    assert not np.array_equal(one["games"][0].payoff, other["games"][0].payoff)
    names = [game.name for game in one["games"]]
    assert "Blotto 286x286" in names
    assert any(name.startswith("sparse") for name in names)


def test_claims_name_cases_that_exist():
    names = {
        size: {f"{kind} {r}x{c}" for kind in ("uniform", "normal") for r, c in options["shapes"]}
        for size, options in MatrixGameStudy.sizes.items()
    }
    for claim in MatrixGameStudy.claims:
        MatrixGameStudy.contender(claim.contender)
        if claim.case.startswith("* "):
            for size in claim.sizes:
                assert fnmatch.filter(names[size], claim.case), claim.id


def test_the_advantage_over_regret_matching_is_claimed_for_the_median_and_for_every_game():
    claims = {claim.id: claim for claim in MatrixGameStudy.claims}
    for shape in ("200x400", "400x800", "600x1200"):
        median, every = claims[f"C2-{shape}"], claims[f"C2-{shape}-every"]
        assert (median.reduce, every.reduce) == ("median", "min")
        assert (median.number, median.case, median.sizes) == (every.number, every.case, every.sizes)


def test_an_unsolved_game_counts_as_one_without_order(problem, monkeypatch):
    from assay.games.ssn import solve_matrix_game
    from assay.studies.games import _matrix_game_newton as measures

    unsolved = solve_matrix_game(np.eye(3), method="prm+", tol=1e-2)
    monkeypatch.setattr(measures, "solve", lambda payoff: unsolved)
    measurement = Measurement()
    measures.measure_orders(measurement, problem)
    assert {scalar.value for scalar in measurement.scalars if scalar.metric == "newton_order"} == {0.0}
    assert {scalar.value for scalar in measurement.scalars if scalar.metric == "share_of_order_1.6"} == {0.0}


def test_the_demonstration_certifies_its_answer(capsys):
    assert all(certificate.holds for certificate in MatrixGameStudy().demonstrate())
    assert "value" in capsys.readouterr().out
