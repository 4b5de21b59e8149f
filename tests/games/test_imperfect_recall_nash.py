"""Equilibria of several players who forget, and proofs that there are none."""

import dataclasses
import math

import numpy as np
import pytest

from assay.games import imperfect_relaxation, imperfect_search
from assay.games.imperfect_first_order import FirstOrderPoints
from assay.games.imperfect_nash import find_nash
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.games.imperfect_search import SelectVerifyCut
from assay.games.sos_program import Multipliers, build_relaxation, check_refutation
from assay.games.sos_solvers import ConicAnswer
from assay.studies.games._imperfect_games import monotone_game, shootout, two_player_tree
from assay.validation import ConvergenceWarning


def bimatrix(first, second):
    u = [{}, {}]
    for i in (0, 1):
        for j in (0, 1):
            key = (int(i == 0), int(i == 1), int(j == 0), int(j == 1))
            for payoffs, one in zip((first, second), u, strict=True):
                one[key] = float(payoffs[i][j])
    return ImperfectRecallGame.from_polynomials(u, [[0, 1], [2, 3]], [0, 1])


@pytest.mark.parametrize("mismatch, most_cuts", [(2.0, 2), (3.0, 2), (0.5, 1)])
def test_shootouts_without_an_equilibrium(mismatch, most_cuts):
    answer = find_nash(shootout(mismatch))
    assert answer.status == "no_equilibrium"
    assert answer.n_cuts <= most_cuts
    assert answer.order == 2
    assert answer.refutation <= 1e-6
    assert answer.x == ()
    assert answer.complete
    assert np.all(np.isnan(answer.gains))
    assert len(answer.certificates) == 3  # the proof, at points, and at the next order
    assert answer.certified


def test_a_shootout_with_an_equilibrium():
    answer = find_nash(shootout(0.0))
    assert answer.status == "equilibrium"
    assert answer.gains.max() <= 1e-6
    assert answer.n_cuts == 0
    p, q, r = (row[0] for row in answer.x)
    assert p + q == pytest.approx(1, abs=1e-6)
    assert r == pytest.approx(0.5, abs=1e-6)
    np.testing.assert_allclose(answer.values, 0.0, atol=1e-8)
    assert answer.certified
    assert not answer.complete


def test_all_equilibria_of_a_battle():
    answer = find_nash(bimatrix([[2, 0], [0, 1]], [[1, 0], [0, 2]]), all_equilibria=True)
    found = sorted(tuple(round(float(row[0]), 4) for row in x) for x in answer.equilibria)
    assert found == [(0.0, 0.0), (0.6667, 0.3333), (1.0, 1.0)]
    assert answer.complete
    assert answer.certified
    assert np.all(np.diff(answer.history["objective"][:-1]) > 0)


def test_a_band_that_cannot_be_narrowed_is_not_called_complete():
    """In a game with a continuum of equilibria no band around one is free of others."""
    with pytest.warns(ConvergenceWarning):
        answer = find_nash(bimatrix([[1, 1], [0, 0]], [[1, 1], [1, 1]]), all_equilibria=True, max_order=2)
    assert answer.status == "unresolved"
    assert not answer.complete
    assert len(answer.equilibria) == 1


def test_matching_pennies_and_a_dominant_strategy():
    pennies = find_nash(bimatrix([[1, -1], [-1, 1]], [[-1, 1], [1, -1]]))
    for row in pennies.x:
        np.testing.assert_allclose(row, 0.5, atol=1e-6)
    dilemma = find_nash(bimatrix([[3, 0], [5, 1]], [[3, 5], [0, 1]]))
    for row in dilemma.x:
        np.testing.assert_allclose(row, [0, 1], atol=1e-6)
    np.testing.assert_allclose(dilemma.values, 1.0, atol=1e-6)


def test_one_player_alone():
    game = ImperfectRecallGame.from_polynomials([{(1, 1): 4.0, (2, 0): 1.0}], [[0, 1]], [0])
    answer = find_nash(game)
    assert answer.status == "equilibrium"
    np.testing.assert_allclose(answer.x[0], [2 / 3, 1 / 3], atol=1e-5)


def test_no_pure_or_mixed_deviation_gains():
    rng = np.random.default_rng(3)
    answer = find_nash(two_player_tree(rng))
    game = two_player_tree(np.random.default_rng(3))
    assert answer.status in ("equilibrium", "no_equilibrium")
    if answer.status == "equilibrium":
        for player in (0, 1):
            for _ in range(100):
                other = game.random_strategy(rng)
                own = game.infosets_of(player)
                mixed = [other[j] if j in own else answer.x[j] for j in range(3)]
                assert game.utility(player, mixed) <= answer.values[player] + answer.gains[player] + 1e-9


def test_monotone_games_need_no_cut():
    answer = find_nash(monotone_game(np.random.default_rng(1)))
    assert answer.status == "equilibrium"
    assert answer.n_cuts == 0
    assert answer.certified


def test_the_history_has_a_row_per_selection():
    rows = []
    answer = find_nash(shootout(2.0), callback=lambda row: rows.append(row))
    assert len(rows) == 3
    assert answer.history["cuts"].tolist() == [0, 1, 2]
    assert math.isnan(answer.history["gain"][-1])
    with pytest.warns(ConvergenceWarning):
        stopped = find_nash(shootout(2.0), callback=lambda row: True)
    assert stopped.status == "unresolved"
    assert stopped.gains.max() > 1e-5
    assert not stopped.certified


def test_without_cuts_it_remains_open():
    with pytest.warns(ConvergenceWarning, match="find_nash did not reach"):
        answer = find_nash(shootout(2.0), max_cuts=0)
    assert answer.status == "unresolved"
    assert answer.n_cuts == 0
    assert len(answer.x) == 3


def test_a_failed_solver_proves_nothing(monkeypatch):
    def fails(program, solver):
        return ConicAnswer("failed", False, None, None, solver, "no", 0.0)

    monkeypatch.setattr(imperfect_relaxation, "solve_conic", fails)
    with pytest.warns(ConvergenceWarning):
        answer = find_nash(shootout(2.0))
    assert answer.status == "unresolved"
    assert answer.refutation == math.inf
    assert not answer.certified


def test_a_false_claim_of_infeasibility_is_not_believed(monkeypatch):
    solve = imperfect_relaxation.solve_conic

    def liar(program, solver):
        answer = solve(program, solver)
        multipliers = dataclasses.replace(answer.multipliers, bound=-1.0)
        return dataclasses.replace(answer, status="infeasible", moments=None, multipliers=multipliers)

    monkeypatch.setattr(imperfect_relaxation, "solve_conic", liar)
    with pytest.warns(ConvergenceWarning):
        answer = find_nash(shootout(0.0))
    assert answer.status == "unresolved"


def test_spoilt_refutations_fail_their_certificates():
    search = SelectVerifyCut(shootout(2.0), 1e-5, 4, 50, False, np.random.default_rng(0), "auto", None)
    search.run()
    selected = search._select([])
    assert selected.point is None
    gram = selected.level.answer.multipliers.grams[0]
    grams = (gram + 2.0 * np.eye(len(gram)) * abs(selected.level.answer.multipliers.bound),)
    grams += selected.level.answer.multipliers.grams[1:]
    multipliers = dataclasses.replace(selected.level.answer.multipliers, grams=grams)
    answer = dataclasses.replace(selected.level.answer, multipliers=multipliers)
    spoilt = dataclasses.replace(selected, level=dataclasses.replace(selected.level, answer=answer))
    certificates = search._refutation_certificates(spoilt, some=False)
    assert not certificates[1].holds


def test_points_are_polished_to_first_order_points():
    first_order = FirstOrderPoints(shootout(0.0))
    rough = np.array([0.31, 0.69, 0.502])
    point = first_order.polished(rough)
    assert first_order.regret(point) < 1e-10 < first_order.regret(rough)
    assert np.abs(point - rough).max() < 1e-2
    far = np.array([0.2, 0.2, 0.2])
    assert first_order.regret(first_order.polished(far)) <= first_order.regret(far) + 1e-12


@pytest.mark.parametrize(
    "options, match",
    [
        ({"tol": -1.0}, "tol must be greater than 0"),
        ({"max_order": 1}, "max_order must be at least 2"),
        ({"max_order": 0}, "max_order must be at least 1"),
        ({"max_cuts": -1}, "max_cuts must be at least 0"),
        ({"solver": "mosek"}, "solver must be one of"),
        ({"rng": -1}, "rng must be a non-negative seed"),
    ],
)
def test_options_that_do_not_fit(options, match):
    with pytest.raises(ValueError, match=match):
        find_nash(shootout(2.0), **options)


@pytest.mark.parametrize("options", [{"all_equilibria": 1}, {"callback": 3}, {"rng": "seed"}])
def test_options_of_other_types(options):
    with pytest.raises(TypeError):
        find_nash(shootout(2.0), **options)


def pennies(first, second):
    u = {(1, 0, 1, 0): 1.0, (0, 1, 0, 1): 1.0, (1, 0, 0, 1): -1.0, (0, 1, 1, 0): -1.0}
    payoffs = [{e: first * c for e, c in u.items()}, {e: -second * c for e, c in u.items()}]
    return ImperfectRecallGame.from_polynomials(payoffs, [[0, 1], [2, 3]], [0, 1])


@pytest.mark.parametrize("first, second", [(1e-8, 1e-8), (1e300, 1e300), (1e-320, 1e-320), (1e4, 1.0)])
def test_payoffs_of_any_size_have_the_same_equilibrium(first, second):
    answer = find_nash(pennies(first, second), tol=max(1e-5 * second, 1e-322))
    assert answer.status == "equilibrium"
    np.testing.assert_allclose(np.concatenate(answer.x), 0.5, atol=1e-3)


def test_a_cut_that_does_not_move_the_point_ends_the_search():
    with pytest.warns(ConvergenceWarning):
        answer = find_nash(pennies(1e8, 1.0))  # 1e-5 is below what can be proved of 1e8
    assert answer.status == "unresolved"
    assert answer.n_cuts < 10


def test_nobody_has_a_choice():
    game = ImperfectRecallGame.from_polynomials([{(1,): 2.0}, {(1,): -3.0}], [[0]], [1])
    answer = find_nash(game)
    assert (answer.status, answer.complete, answer.certified) == ("equilibrium", True, True)
    assert answer.values.tolist() == [2.0, -3.0]
    assert answer.gains.tolist() == [0.0, 0.0]


def test_games_too_large_are_refused_before_their_constraints_are_built(monkeypatch):
    n = 36
    u = {tuple(2 if t in (2 * i, 2 * j) else 0 for t in range(2 * n)): 1.0 for i in range(n) for j in range(i)}
    game = ImperfectRecallGame.from_polynomials([u], [[2 * i, 2 * i + 1] for i in range(n)], [0] * n)
    monkeypatch.setattr(imperfect_search, "first_order_conditions", lambda *arguments: pytest.fail("were built"))
    with pytest.raises(ValueError, match="force=True"):
        find_nash(game)
    with pytest.raises(TypeError):
        find_nash(pennies(1.0, 1.0), force="yes")


def test_huge_multipliers_are_no_proof():
    """Coefficients are known to 1e-16 of them: a constraint that fails by less proves nothing."""
    program = build_relaxation({}, [{(1,): -1.0, (0,): -1e-15}], [], [1], 1)
    grams = (np.diag([0.0, 0.0]), np.array([[1e15]]))
    sized = Multipliers(-1.0, np.zeros(0), grams)
    assert check_refutation(program, sized) > 0.5
