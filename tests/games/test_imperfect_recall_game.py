"""Games as polynomials: from trees, files, libraries, and by hand."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.games.game_tree import GameTree
from assay.games.imperfect_polynomials import (
    CompiledPolynomial,
    differentiate,
    eliminate_last,
    fix_variables,
    listed,
    multiply,
    polynomial_degree,
    total,
)
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.studies.games._imperfect_games import absent_minded_trees, driver, forgetful_tree, two_player_tree
from assay.studies.games._imperfect_rivals import as_efg


def leaf(*payoffs):
    return {"type": "leaf", "payoffs": list(payoffs)}


def decision(infoset, *children, player=0):
    actions = [{"label": str(i), "child": child} for i, child in enumerate(children)]
    return {"type": "decision", "player": player, "infoset": infoset, "actions": actions}


def test_the_driver_is_a_quadratic():
    game = driver(2).game
    assert game.polynomials[0] == {(1, 1): 4.0, (2, 0): 1.0}
    assert game.reduced[0] == {(1,): 1.0, (2,): -0.75}
    assert game.is_absentminded(0)
    for p in (0.0, 0.3, 1.0):
        assert game.utility(0, [[p, 1 - p]]) == pytest.approx(4 * p - 3 * p**2)


@pytest.mark.parametrize("seed", range(3))
def test_utility_is_the_expectation_over_the_tree(seed):
    rng = np.random.default_rng(seed)
    games = [forgetful_tree(3, rng).game, two_player_tree(rng), absent_minded_trees(1, rng)[0].game]
    for game in games:
        x = game.random_strategy(rng)
        expected = game.tree.expected_payoffs(x)
        for i in range(len(game.players)):
            assert game.utility(i, x) == pytest.approx(expected[i], abs=1e-12)
            reduced = CompiledPolynomial(game.reduced[i], len(game.free_part(x)))
            assert game.payoff_scale * reduced(game.free_part(x)) == pytest.approx(expected[i], abs=1e-12)


def test_gradient_is_that_of_differences():
    rng = np.random.default_rng(4)
    game = absent_minded_trees(1, rng)[0].game
    x = game.random_strategy(rng)
    gradient = np.concatenate(game.gradient(0, x))
    flat = np.concatenate(x)
    payoff = CompiledPolynomial(game.polynomials[0], game.n_variables)
    for k, step in enumerate(1e-6 * np.eye(len(flat))):
        assert gradient[k] == pytest.approx((payoff(flat + step) - payoff(flat - step)) / 2e-6, abs=1e-7)


def test_gradient_where_probabilities_are_zero():
    payoff = CompiledPolynomial({(1, 1): 2.0, (2, 0): 3.0, (0, 0): 1.0}, 2)
    np.testing.assert_array_equal(payoff.gradient(np.array([0.0, 5.0])), [10.0, 0.0])
    constant = CompiledPolynomial({}, 2)
    assert constant(np.ones(2)) == 0
    np.testing.assert_array_equal(constant.gradient(np.ones(2)), [0.0, 0.0])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_elimination_of_the_last_action_changes_nothing_on_strategies(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, rng.integers(1, 4))
    ends = np.cumsum(sizes)
    simplices = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    polynomial = {tuple(int(k) for k in rng.integers(0, 3, ends[-1])): float(rng.standard_normal()) for _ in range(6)}
    reduced = eliminate_last(polynomial, simplices)
    x = [rng.dirichlet(np.ones(size)) for size in sizes]
    free = np.concatenate([row[:-1] for row in x])
    full, small = CompiledPolynomial(polynomial, int(ends[-1])), CompiledPolynomial(reduced, len(free))
    assert small(free) == pytest.approx(full(np.concatenate(x)), abs=1e-10)


def test_arithmetic():
    first, second = {(1, 0): 2.0, (0, 0): 1.0}, {(1, 0): -2.0, (0, 2): 3.0}
    assert total(first, second) == {(0, 0): 1.0, (0, 2): 3.0}
    assert multiply(first, {}) == {}
    assert polynomial_degree(multiply(first, second)) == 3
    assert polynomial_degree({}) == 0
    assert differentiate({(3, 1): 2.0, (0, 1): 1.0}, 0) == {(2, 1): 6.0}
    assert fix_variables({(1, 2): 3.0, (1, 0): -12.0}, {1: 2.0}, [0]) == {}


def test_json_from_a_file(tmp_path):
    root = decision("a", leaf(1.0), decision("a", leaf(0.0), leaf(2.0)))
    content = {"players": ["one"], "root": root}
    path = tmp_path / "game.json"
    path.write_text(json.dumps(content))
    for game in (ImperfectRecallGame.from_json(path), ImperfectRecallGame.from_file(path)):
        assert game.polynomials == ImperfectRecallGame.from_json(content).polynomials
        assert game.is_absentminded(0)
        assert game.infosets[0].actions == ("0", "1")


def test_gambit_reads_the_same_game():
    pygambit = pytest.importorskip("pygambit")
    import io

    tree = two_player_tree(np.random.default_rng(0)).tree
    game = ImperfectRecallGame.from_gambit(pygambit.read_efg(io.BytesIO(as_efg(tree).encode())))
    x = game.random_strategy(1)
    np.testing.assert_allclose([game.utility(i, x) for i in (0, 1)], tree.expected_payoffs(x), atol=1e-9)


def test_openspiel_with_merged_information_sets():
    pytest.importorskip("pyspiel")
    plain = ImperfectRecallGame.from_openspiel("kuhn_poker")
    assert len(plain.infosets) == 12
    assert plain.tree.recall_violation(0) is None
    forgetful = ImperfectRecallGame.from_openspiel(
        "kuhn_poker", merge=lambda label: "pb" if label.endswith("pb") else label
    )
    assert len(forgetful.infosets) == 10
    assert forgetful.tree.recall_violation(0) == "pb"
    assert not forgetful.is_absentminded(0)
    uniform = [np.full(len(simplex), 0.5) for simplex in forgetful.simplices]
    assert forgetful.utility(0, uniform) == pytest.approx(plain.utility(0, [[0.5, 0.5]] * 12))


def test_polynomials_keep_the_order_of_variables():
    game = ImperfectRecallGame.from_polynomials([{(0, 1, 1, 0): 2.0}], [[0, 2], [3, 1]], [0, 0])
    assert game.utility(0, [[0.25, 0.75], [0.4, 0.6]]) == pytest.approx(2 * 0.6 * 0.75)
    assert not game.is_absentminded(0)


def test_an_information_set_with_one_action():
    game = ImperfectRecallGame.from_polynomials([{(1, 1, 0): 2.0}], [[0], [1, 2]], [0, 0])
    assert game.free_variables == ((), (0,))
    assert game.reduced == ({(1,): 1.0},)
    assert game.utility(0, [[1.0], [0.5, 0.5]]) == 1.0


@pytest.mark.parametrize(
    "arguments, match",
    [
        (([{(1, 0): 1.0}], [[0, 1]], [1]), "owner must be less than 1"),
        (([{(1, 0): 1.0}], [[0, 1]], [0, 0]), "one player per simplex"),
        (([{(1, 0): 1.0}], [[0, 0]], [0]), "each variable"),
        (([{(1, 0): 1.0}], [[0], []], [0, 0]), "at least one variable"),
        (([{(1,): 1.0}], [[0, 1]], [0]), "tuples of 2 exponents"),
        (([{(1, -1): 1.0}], [[0, 1]], [0]), "at least 0"),
        (([{(1, 0): math.nan}], [[0, 1]], [0]), "must be finite"),
        (([{(1, 0): math.inf}], [[0, 1]], [0]), "must be finite"),
        (([{(0, 0): 1.0}], [[0, 1]], [0]), "depend on some decision"),
        (([], [[0, 1]], [0]), "list of at least one polynomial"),
    ],
)
def test_polynomials_that_do_not_fit(arguments, match):
    with pytest.raises(ValueError, match=match):
        ImperfectRecallGame.from_polynomials(*arguments)


@pytest.mark.parametrize("u", [[[1.0]], {(1, 0): 1.0}, [{(1, 0): "1"}], [{(1.0, 0): 1.0}], [{(1, 0): True}]])
def test_polynomials_of_other_types(u):
    with pytest.raises(TypeError):
        ImperfectRecallGame.from_polynomials(u, [[0, 1]], [0])


def test_a_tree_of_another_type():
    with pytest.raises(TypeError):
        ImperfectRecallGame.from_tree({"players": []})


@pytest.mark.parametrize(
    "root, match",
    [
        (decision("a", leaf(0.0), decision("a", leaf(0.0), leaf(1.0), leaf(2.0))), "same actions"),
        (
            {
                "type": "chance",
                "actions": [
                    {"label": "x", "prob": 0.5, "child": decision("a", leaf(0.0), leaf(1.0))},
                    {"label": "y", "prob": 0.4, "child": leaf(0.0)},
                ],
            },
            "sum to 1",
        ),
        (decision("a", leaf(0.0), {"type": "leaf"}), "payoffs"),
        (decision("a", leaf(0.0), leaf(math.inf)), "finite"),
        (leaf(1.0), "depth 0"),
    ],
)
def test_trees_that_are_no_games(root, match):
    with pytest.raises(ValueError, match=match):
        ImperfectRecallGame.from_json({"players": ["one"], "root": root})


def test_strategies_that_do_not_fit():
    game = driver(2).game
    for x, match in [([[0.5, 0.4]], "sum to 1"), ([[0.5, 0.5]] * 2, "1 distributions"), ([[1.0]], "length 2")]:
        with pytest.raises(ValueError, match=match):
            game.utility(0, x)
    with pytest.raises(ValueError, match="list of one distribution"):
        game.utility(0, np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="player must be less than 1"):
        game.utility(1, [[0.5, 0.5]])


def test_random_strategies_are_reproducible():
    game = forgetful_tree(3, np.random.default_rng(0)).game
    for one, other in zip(game.random_strategy(5), game.random_strategy(5), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.sum() == pytest.approx(1)


def test_profiles_are_projected():
    game = ImperfectRecallGame.from_polynomials([{(1, 0, 0): 1.0}], [[0, 1, 2]], [0])
    (row,) = game.profile(np.array([0.8, 0.6]))
    np.testing.assert_allclose(row, [0.6, 0.4, 0.0], atol=1e-12)


def test_the_representation_is_one_line():
    game = two_player_tree(np.random.default_rng(0))
    assert repr(game) == (
        "ImperfectRecallGame(players ('player 0', 'player 1'), 3 information sets, degrees (3, 3), absent-minded: ())"
    )


def test_a_tree_of_every_combination_has_every_term():
    tree = GameTree.from_json(
        {"players": ["one"], "root": decision("a", *[decision("b", leaf(1.0 + i), leaf(5.0 + i)) for i in (0, 1)])}
    )
    game = ImperfectRecallGame.from_tree(tree)
    for a, b in itertools.product((0, 1), repeat=2):
        assert game.utility(0, [np.eye(2)[a], np.eye(2)[b]]) == 1.0 + a + 4.0 * b


@pytest.mark.parametrize(
    "u, simplices, owner",
    [
        (3, [[0, 1]], [0]),
        ([{(1, 0): 1.0}], 3, [0]),
        ([{(1, 0): 1.0}], [0, 1], [0]),
        ([{(1, 0): 1.0}], [[0.7, 1.2]], [0]),
        ([{(1, 0): 1.0}], ["01"], [0]),
        ([{(1, 0): 1.0}], [[0, 1]], 0),
        ([{(1, 0): np.complex128(1)}], [[0, 1]], [0]),
    ],
)
def test_arguments_of_other_types(u, simplices, owner):
    with pytest.raises(TypeError):
        ImperfectRecallGame.from_polynomials(u, simplices, owner)


def test_lists_have_names():
    with pytest.raises(TypeError, match="owner must be a list of players, got int"):
        listed(3, "owner", "players")
    with pytest.raises(TypeError, match="u must be a list of polynomials, got str"):
        listed("01", "u", "polynomials")


def test_coefficients_and_profiles_that_are_none():
    with pytest.raises(ValueError, match="must be finite numbers of 64 bits"):
        ImperfectRecallGame.from_polynomials([{(1, 0): 10**400}], [[0, 1]], [0])
    game = ImperfectRecallGame.from_polynomials([{(1, 0): 1.0}], [[0, 1]], [0])
    with pytest.raises(TypeError):
        game.utility(0, None)
    with pytest.raises(TypeError):
        ImperfectRecallGame.from_openspiel("kuhn_poker", merge=3)
