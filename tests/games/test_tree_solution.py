"""One call for any game tree: the method it takes, what it says about players and strategies, and what it refuses."""

import copy
import json
import pickle
import warnings

import numpy as np
import pytest

from assay.games import GameTree, solve_game_tree
from assay.validation import ConvergenceWarning

PLAYERS = ("Even", "Odd")


def leaf(*payoffs):
    return {"type": "leaf", "payoffs": list(payoffs)}


def decision(infoset, player=0, **actions):
    moves = [{"label": label, "child": child} for label, child in actions.items()]
    return {"type": "decision", "infoset": infoset, "player": player, "actions": moves}


def tree_of(root, players=PLAYERS):
    return GameTree.from_json({"players": list(players), "root": root})


def two_by_two(rows, columns):
    """Payoffs of both players in a game in which the second does not see what the first did."""
    replies = [
        decision("reply", 1, l=leaf(rows[i][0], columns[i][0]), r=leaf(rows[i][1], columns[i][1])) for i in (0, 1)
    ]
    return decision("move", 0, l=replies[0], r=replies[1])


def pennies(scale=1.0):
    rows = scale * np.array([[3.0, -1.0], [-1.0, 1.0]])
    return tree_of(two_by_two(rows.tolist(), (-rows).tolist()))


def best_responses(tree, solution):
    """What each player could gain, by trying all of its pure strategies; for games with few information sets."""
    local = [
        np.array(list(solution.strategies[tree.players[infoset.player]][infoset.label].values()))
        for infoset in tree.infosets
    ]
    gains = []
    for player in range(len(tree.players)):
        best = -np.inf
        own = tree.infosets_of(player)
        for choice in np.ndindex(*(len(tree.infosets[i].actions) for i in own)):
            other = list(local)
            for i, action in zip(own, choice, strict=True):
                other[i] = np.eye(len(tree.infosets[i].actions))[action]
            best = max(best, tree.expected_payoffs(other)[player])
        gains.append(best - tree.expected_payoffs(local)[player])
    return np.array(gains)


class TestZeroSum:
    def test_by_default_in_sequence_form(self):
        tree = pennies()
        solution = solve_game_tree(tree)
        assert (solution.method, solution.status, solution.certified) == ("asymmetric", "equilibrium", True)
        assert solution.strategies["Even"]["move"] == pytest.approx({"l": 1 / 3, "r": 2 / 3}, abs=1e-6)
        np.testing.assert_allclose(solution.payoffs, [1 / 3, -1 / 3], atol=1e-8)
        np.testing.assert_allclose(solution.gains, best_responses(tree, solution), atol=1e-12)

    def test_gains_of_a_run_that_stopped_early(self):
        tree = pennies()
        with pytest.warns(ConvergenceWarning):
            solution = solve_game_tree(tree, max_iter=2)
        assert solution.status == "unresolved"
        assert not solution.certified
        assert solution.gains.max() > 1e-3
        np.testing.assert_allclose(solution.gains, best_responses(tree, solution), atol=1e-12)

    def test_payoffs_that_sum_to_a_constant(self):
        rows = np.array([[3.0, 1.0], [1.0, 3.0]])
        solution = solve_game_tree(tree_of(two_by_two(rows.tolist(), (4 - rows).tolist())))
        assert solution.method == "asymmetric"
        np.testing.assert_allclose(solution.payoffs, [2, 2], atol=1e-8)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("scale", [1e-100, 1e-20, 1e20, 1e290])
    def test_the_unit_of_payoffs_does_not_matter(self, scale):
        plain, solution = solve_game_tree(pennies()), solve_game_tree(pennies(scale))
        np.testing.assert_allclose(solution.payoffs / scale, plain.payoffs, atol=1e-7)
        assert solution.certificates[0].bound == pytest.approx(3e-9 * scale)
        assert solution.certified

    def test_players_without_a_choice(self):
        for owner, want in ((0, [2.0, -2.0]), (1, [1.0, -1.0])):
            solution = solve_game_tree(tree_of(decision("only", owner, l=leaf(1, -1), r=leaf(2, -2))))
            np.testing.assert_allclose(solution.payoffs, want, atol=1e-8)
            assert solution.strategies[PLAYERS[1 - owner]] == {}

    def test_nothing_to_win(self):
        solution = solve_game_tree(pennies(0.0))
        assert solution.certified
        np.testing.assert_array_equal(solution.payoffs, 0)


class TestOtherGames:
    def test_one_player_who_forgets(self):
        road = decision("road", e=leaf(0), g=decision("road", e=leaf(4), g=leaf(1)))
        solution = solve_game_tree(tree_of(road, ("driver",)))
        assert (solution.method, solution.status, solution.certified) == ("sos", "optimal", True)
        assert solution.payoffs[0] == pytest.approx(4 / 3, abs=1e-6)
        assert solution.strategies["driver"]["road"] == pytest.approx({"e": 1 / 3, "g": 2 / 3}, abs=1e-3)
        assert 0 <= solution.gains[0] + 1e-9 <= 1e-5

    def test_common_interest(self):
        tree = tree_of(two_by_two([[2, 0], [0, 1]], [[1, 0], [0, 2]]))
        solution = solve_game_tree(tree)
        assert (solution.method, solution.status, solution.certified) == ("sos", "equilibrium", True)
        assert best_responses(tree, solution).max() <= 2e-5
        assert (best_responses(tree, solution) <= solution.gains + 1e-9).all()

    def test_three_players(self):
        solution = solve_game_tree(tree_of(decision("a", l=leaf(1, 0, 5), r=leaf(2, 0, 4)), ("x", "y", "z")))
        np.testing.assert_allclose(solution.payoffs, [2, 0, 4], atol=1e-5)

    def test_zero_sum_on_demand(self):
        solution = solve_game_tree(pennies(), method="sos")
        assert solution.method == "sos"
        np.testing.assert_allclose(solution.payoffs, [1 / 3, -1 / 3], atol=1e-4)


def test_the_solution_can_be_kept():
    solution = solve_game_tree(pennies())
    json.dumps(solution.to_dict(), allow_nan=False)
    for other in (pickle.loads(pickle.dumps(solution)), copy.deepcopy(solution)):
        assert other.strategies == solution.strategies
    assert len(repr(solution).splitlines()) <= 12


def test_the_same_call_has_the_same_answer():
    tree, state = pennies(), np.random.get_state()[1].copy()
    one, two = solve_game_tree(tree), solve_game_tree(tree)
    assert one.strategies == two.strategies
    np.testing.assert_array_equal(np.random.get_state()[1], state)


@pytest.mark.parametrize(
    "tree, options, error, message",
    [
        (3, {}, TypeError, "tree must be a GameTree, got int"),
        (pennies(), {"method": "simplex"}, ValueError, "method must be one of 'auto', 'asymmetric', 'sos'"),
        (pennies(), {"tol": 0.0}, ValueError, "tol must be greater than 0"),
        (pennies(), {"tol": np.nan}, ValueError, "tol must be finite"),
        (pennies(), {"max_iter": 0}, ValueError, "max_iter must be at least 1"),
        (pennies(1e-300), {}, ValueError, r"payoffs must be 0 or at least 1e-100 somewhere, got at most 3e-300"),
        (
            tree_of(two_by_two([[2, 0], [0, 1]], [[1, 0], [0, 2]])),
            {"method": "asymmetric"},
            ValueError,
            "tree must be zero-sum",
        ),
        (
            tree_of(decision("a", l=leaf(1, 0, 0), r=leaf(2, 0, 0)), ("x", "y", "z")),
            {"method": "asymmetric"},
            ValueError,
            "tree must have two players, got 3",
        ),
    ],
)
def test_refused(tree, options, error, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=message):
            solve_game_tree(tree, **options)
