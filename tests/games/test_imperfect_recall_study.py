"""The study of imperfect recall, on games that take no time."""

import fnmatch

import numpy as np
import pytest

from assay.games.game_tree import GameTree
from assay.games.imperfect_recall_sos import ex_ante_optimum
from assay.studies.games import _imperfect_games as games
from assay.studies.games import _imperfect_rivals as rivals
from assay.studies.games import imperfect_recall_sos as study

STUDY = study.ImperfectRecallStudy


@pytest.fixture(scope="module")
def problem():
    quick = STUDY().problem("quick", np.random.default_rng(0))
    return study.Problem(quick.pure[:1], [games.tensor_game(2, 0)], quick.absent[:1], quick.parameters, 3)


def scalars_of(contender, problem):
    measurement = STUDY().measure(contender, problem, np.random.default_rng(0))
    scalars = {(scalar.metric, scalar.case): scalar.value for scalar in measurement.scalars}
    assert all(np.isfinite(value) for value in scalars.values())
    return scalars


def test_declarations():
    STUDY.check_declarations()
    assert STUDY.name == "games/imperfect_recall_sos"


def test_claims_have_their_numbers():
    numbers = {claim.id: (claim.relation, claim.number) for claim in STUDY.claims}
    assert numbers["C1a"] == ("<=", 1e-6)
    assert numbers["C4b"] == ("<=", 3)
    assert numbers["C5a"] == ("<=", 0.17)
    assert numbers["C5b"] == ("<=", 0.01)
    assert numbers["C6a"] == (">=", 0.2)
    assert numbers["C6b"] == (">=", 0.9)
    assert numbers["P1"] == (">=", 5)
    assert numbers["P3b"] == (">=", 3.0)
    assert all(claim.timed for claim in STUDY.claims if "second" in claim.metric or "time" in claim.metric)


@pytest.mark.parametrize("contender", [study.ENUMERATION, study.MILP, study.ASCENT, study.GRADIENT])
def test_rivals_find_the_optimum_of_small_games(contender, problem):
    scalars = scalars_of(contender, problem)
    for case in ("pure C3", "pure tensor 2, 0"):
        assert scalars["optimum_error", case] <= 1e-6
        assert scalars["seconds", case] > 0


def test_regret_matching_is_stuck_where_the_game_is_symmetric(problem):
    pytest.importorskip("pyspiel")
    assert scalars_of(study.CFR, problem)["value", "pure C3"] == pytest.approx(0.5)


def test_ablations_are_measured(problem):
    for contender in (study.MIXED, study.KKT):
        scalars = scalars_of(contender, problem)
        assert scalars["gap", "pure C3"] > 1e-6  # order 2 over all strategies is not exact
        assert scalars["order", "pure C3"] == 2


def test_a_library_that_is_not_there_is_recorded(problem, monkeypatch):
    monkeypatch.setattr(rivals, "is_there", lambda module: False)
    for contender in (study.CFR, study.GAMBIT, study.CVXPY):
        assert scalars_of(contender, problem) == {("installed", ""): 0.0}


def test_gambit_solves_perfect_recall_only(problem):
    pytest.importorskip("pygambit")
    scalars = scalars_of(study.GAMBIT, problem)
    assert scalars["solves_imperfect_recall", ""] == 0.0
    assert scalars["ours_resolved", "recalling 0"] == 1.0
    assert scalars["n_lcp", "recalling 0"] >= 1


def test_equilibria_of_gambit_are_equilibria():
    pytest.importorskip("pygambit")
    game = games.recalling_tree(np.random.default_rng(4))
    for x in rivals.gambit_equilibria(game.tree, "lcp"):
        for player in (0, 1):
            best = ex_ante_optimum(game, player, others=x)
            assert best.upper_bound <= game.utility(player, x) + 1e-6


def test_texts_of_trees_are_read_back():
    pygambit = pytest.importorskip("pygambit")
    import io

    game = games.cycle(3).game
    tree = GameTree.from_gambit(pygambit.read_efg(io.BytesIO(rivals.as_efg(game.tree).encode())))
    x = game.random_strategy(0)
    assert tree.expected_payoffs(x)[0] == pytest.approx(game.utility(0, x))


def test_games_are_what_they_say():
    rng = np.random.default_rng(0)
    for one in games.absent_minded_trees(3, rng):
        assert one.game.is_absentminded(0)
    assert not games.forgetful_tree(3, rng).game.is_absentminded(0)
    forgetful, recalling = games.two_player_tree(rng).tree, games.recalling_tree(rng).tree
    assert forgetful.recall_violation(0) == "again"
    assert recalling.recall_violation(0) is None
    assert games.tensor_game(2, 5).optimum == np.random.default_rng(5).standard_normal((3, 3)).max()


def test_forgetting_the_card_costs():
    pytest.importorskip("pyspiel")
    game, loose = games.forgetful_kuhn()
    assert ex_ante_optimum(game, 0, others=loose).value == pytest.approx(1 / 3)
    assert rivals.enumerate_pure(game, 0, loose) == pytest.approx(1 / 3)  # with the card it is 1.1 / 3


def test_claims_name_cases_that_exist():
    quick = STUDY().problem("quick", np.random.default_rng(0))
    names = [one.name for one in quick.pure + quick.tensors]
    for claim in STUDY.claims:
        if claim.case.startswith("pure") and "quick" in claim.sizes:
            assert fnmatch.filter(names, claim.case), claim.id


def test_problems_depend_on_the_seed_only():
    one, two, other = (STUDY().problem("quick", STUDY.problem_rng("quick", seed)) for seed in (0, 0, 1))
    assert one.absent[0].game.polynomials == two.absent[0].game.polynomials
    assert one.absent[0].game.polynomials != other.absent[0].game.polynomials


def test_the_demonstration_certifies_its_answer(capsys):
    assert all(certificate.holds for certificate in STUDY().demonstrate())
    assert "0.6667" in capsys.readouterr().out
