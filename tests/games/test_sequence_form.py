"""Sequence form of game trees, and the treeplexes of the players."""

import inspect
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.games.game_tree import GameTree
from assay.games.matrix_game import nearest_distribution
from assay.games.sequence_form import SequenceFormGame
from assay.games.treeplex import Treeplex
from assay.studies.games._asymmetric_games import random_tree


def openspiel(name="kuhn_poker"):
    pytest.importorskip("pyspiel")
    return SequenceFormGame.from_openspiel(name)


def random_plan(tree, rng):
    local = tree.uniform
    for start, length in zip(tree.start, tree.length, strict=True):
        local[start : start + length] = rng.dirichlet(np.ones(length))
    return local, tree.plan(local)


def leaf(loss):
    return {"type": "leaf", "payoffs": [-loss, loss]}


def decision(player, infoset, *children):
    actions = [{"label": str(i), "child": child} for i, child in enumerate(children)]
    return {"type": "decision", "player": player, "infoset": infoset, "actions": actions}


def game(root):
    return GameTree.from_json({"players": ["one", "two"], "root": root})


# Games with known numbers.


def test_kuhn_poker():
    kuhn = openspiel()
    assert [tree.size for tree in kuhn.trees] == [13, 13]
    assert [tree.length.size for tree in kuhn.trees] == [6, 6]
    uniform = kuhn.uniform(0), kuhn.uniform(1)
    assert kuhn.nashconv(*uniform) == pytest.approx(0.9166666667, abs=1e-10)
    assert kuhn.value(*uniform) == pytest.approx(-0.125)


def test_leduc_poker():
    leduc = openspiel("leduc_poker")
    assert [tree.size for tree in leduc.trees] == [1093, 1093]
    assert [tree.length.size for tree in leduc.trees] == [468, 468]
    assert leduc.nashconv(leduc.uniform(0), leduc.uniform(1)) == pytest.approx(4.7472222222, abs=1e-9)


@pytest.mark.parametrize(
    "name",
    ["kuhn_poker", "matrix_rps", "goofspiel(num_cards=3,imp_info=True)", "liars_dice(numdice=1,dice_sides=2)"],
)
def test_nashconv_is_that_of_openspiel(name):
    form = openspiel(name)
    from open_spiel.python.algorithms import expected_game_score, exploitability

    rng = np.random.default_rng(0)
    plans = [random_plan(tree, rng)[1] for tree in form.trees]
    policy = form.to_policy(1, plans[1], form.to_policy(0, plans[0]))
    assert exploitability.nash_conv(form.source, policy) == pytest.approx(form.nashconv(*plans), abs=1e-12)
    scores = expected_game_score.policy_value(form.source.new_initial_state(), [policy, policy])
    assert scores[0] == pytest.approx(-form.value(*plans), abs=1e-12)
    # A policy of one player leaves the other uniform.
    alone = form.to_policy(0, plans[0])
    assert exploitability.nash_conv(form.source, alone) == pytest.approx(
        form.nashconv(plans[0], form.uniform(1)), abs=1e-12
    )


def test_best_responses_are_those_of_openspiel():
    kuhn = openspiel()
    from open_spiel.python.algorithms import best_response

    rng = np.random.default_rng(1)
    plans = [random_plan(tree, rng)[1] for tree in kuhn.trees]
    policy = kuhn.to_policy(1, plans[1], kuhn.to_policy(0, plans[0]))
    losses = kuhn.payoff @ plans[1], -(kuhn.payoff.T @ plans[0])
    for player, loss in enumerate(losses):
        response = kuhn.best_response(player, loss)
        expected = best_response.BestResponsePolicy(kuhn.source, player, policy).value(kuhn.source.new_initial_state())
        assert loss @ response == pytest.approx(-expected, abs=1e-12)
        assert set(np.round(response, 12)) == {0.0, 1.0}


def test_the_equilibria_of_kuhn_poker():
    kuhn = openspiel()
    local = {name: np.array([0.5, 0.5]) for label in kuhn.labels for name in label}
    bluff = 0.2  # any from 0 to 1/3
    first = {"0": bluff, "1": 0.0, "2": 3 * bluff, "0pb": 0.0, "1pb": bluff + 1 / 3, "2pb": 1.0}
    second = {"0p": 1 / 3, "1p": 0.0, "2p": 1.0, "0b": 0.0, "1b": 1 / 3, "2b": 1.0}
    plans = []
    for player, bets in enumerate((first, second)):
        tree = kuhn.trees[player]
        vector = tree.uniform
        for label, start in zip(kuhn.labels[player], tree.start, strict=True):
            vector[start : start + 2] = 1 - bets[label], bets[label]
        plans.append(tree.plan(vector))
    assert len(local) == 12
    assert kuhn.nashconv(*plans) == pytest.approx(0, abs=1e-15)
    assert kuhn.value(*plans) == pytest.approx(1 / 18)
    np.testing.assert_allclose(kuhn.behaviour(0, plans[0])["1pb"], [2 / 3 - bluff, bluff + 1 / 3])


def test_strategic_games_of_gambit():
    pygambit = pytest.importorskip("pygambit")
    payoff = np.array([[0.0, -1, 3], [1, 0, -1], [-3, 1, 0]])
    strategic = pygambit.Game.from_arrays(-payoff, payoff)
    form = SequenceFormGame.from_gambit(strategic)
    np.testing.assert_array_equal(form.payoff.toarray()[1:, 1:], payoff)
    with pytest.raises(ValueError, match="must come from from_openspiel"):
        form.to_policy(0, form.uniform(0))


def test_files(tmp_path):
    import json

    root = decision("one", "a", decision("two", "b", leaf(1), leaf(-1)), decision("two", "b", leaf(-1), leaf(1)))
    path = tmp_path / "pennies.json"
    path.write_text(json.dumps({"players": ["one", "two"], "root": root}))
    form = SequenceFormGame.from_file(path)
    assert form.nashconv(form.uniform(0), form.uniform(1)) == 0
    assert form.labels == (("a",), ("b",))


def test_chance_and_one_player_who_never_moves():
    root = {
        "type": "chance",
        "actions": [
            {"label": "l", "prob": 0.25, "child": decision("one", "a", leaf(4), leaf(8))},
            {"label": "r", "prob": 0.75, "child": decision("one", "b", leaf(3), leaf(1))},
        ],
    }
    form = SequenceFormGame.from_tree(game(root))
    assert [tree.size for tree in form.trees] == [5, 1]
    np.testing.assert_allclose(form.payoff.toarray().ravel(), [0, 1, 2, 2.25, 0.75])
    best = form.best_response(0, form.payoff @ form.uniform(1))
    np.testing.assert_array_equal(best, [1, 1, 0, 0, 1])
    assert form.nashconv(best, form.uniform(1)) == 0
    assert form.value(best, [1.0]) == 1.75


def test_constant_sum_games_are_taken_for_what_player_0_pays():
    shifted = decision("one", "a", {"type": "leaf", "payoffs": [3, 1]}, {"type": "leaf", "payoffs": [0, 4]})
    form = SequenceFormGame.from_tree(game(shifted))
    assert form.value(form.best_response(0, form.payoff @ [1.0]), [1.0]) == -3


# Passes over the tree.


@given(seed=st.integers(0, 200), n_infosets=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_compiled_passes_are_the_plain_ones(seed, n_infosets):
    rng = np.random.default_rng(seed)
    tree = random_tree(n_infosets, 10, seed).trees[0]
    loss = rng.normal(size=tree.size)
    local, value = tree.prox(loss)
    plain, plain_value = tree.plain_prox(loss)
    np.testing.assert_allclose(local, plain, atol=1e-12)
    assert value == pytest.approx(plain_value, abs=1e-12)
    some, plan = random_plan(tree, rng)
    np.testing.assert_allclose(tree.psi_gradient(some), tree.plain_psi_gradient(some), atol=1e-13)
    np.testing.assert_allclose(plan, tree.plain_plan(some), atol=1e-14)
    np.testing.assert_allclose(tree.local(plan), some, atol=1e-10)
    assert tree.violation(plan) <= 1e-12


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_prox_of_one_information_set_is_a_projection(size, data):
    entries = st.floats(-3, 3) | st.sampled_from([0.0, 1e9, -1e9, 1.0, -1.0])
    loss = np.array(data.draw(st.lists(entries, min_size=size, max_size=size)))
    local, _ = Treeplex.from_actions([0], [size]).prox(np.append(0.0, loss))
    np.testing.assert_allclose(local[1:], nearest_distribution(-loss), atol=1e-12)
    assert local.min() >= 0


@given(seed=st.integers(0, 200))
@settings(max_examples=20, deadline=None)
def test_prox_and_best_response_are_optimal(seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(6, 10, seed).trees[0]
    loss = rng.normal(size=tree.size)
    local, value = tree.prox(loss)
    best = tree.plan(local)
    assert loss @ best + tree.psi(local, best) == pytest.approx(value, abs=1e-12)
    assert loss @ tree.best_response(loss) == pytest.approx(tree.least(loss), abs=1e-12)
    for _ in range(10):
        other, plan = random_plan(tree, rng)
        assert loss @ plan + tree.psi(other, plan) >= value - 1e-12
        assert loss @ plan >= tree.least(loss) - 1e-12


def test_the_gradient_of_the_regulariser_is_its_derivative():
    rng = np.random.default_rng(0)
    tree = Treeplex.from_actions([0, 1, 2, 3], [2, 2, 3, 2])
    local, plan = random_plan(tree, rng)

    def psi(plan):
        return sum(
            0.5 * np.sum(plan[s : s + n] ** 2) / plan[p]
            for p, s, n in zip(tree.parent, tree.start, tree.length, strict=True)
        )

    assert psi(plan) == pytest.approx(tree.psi(local, plan))
    numeric = [(psi(plan + 1e-6 * e) - psi(plan - 1e-6 * e)) / 2e-6 for e in np.eye(tree.size)]
    np.testing.assert_allclose(tree.psi_gradient(local), numeric, atol=1e-7)


def test_best_responses_by_enumeration():
    tree = Treeplex.from_actions([0, 1, 0], [2, 2, 3])
    loss = np.random.default_rng(3).normal(size=tree.size)
    least = np.inf
    for choices in itertools.product(*(range(n) for n in tree.length)):
        local = np.zeros(tree.size)
        local[tree.start + np.array(choices)] = 1
        least = min(least, loss @ tree.plan(local))
    assert tree.least(loss) == pytest.approx(least)


def test_local_strategies_where_the_plan_does_not_go():
    tree = Treeplex.from_actions([0, 1], [2, 4])
    np.testing.assert_array_equal(tree.local(np.array([1.0, 0, 1, 0, 0, 0, 0]))[3:], [0.25] * 4)


# Bad input.


def test_imperfect_recall_is_named():
    forgetful = decision(
        "one",
        "first",
        decision("one", "what did I do?", leaf(1), leaf(2)),
        decision("one", "what did I do?", leaf(3), leaf(4)),
    )
    with pytest.raises(ValueError, match=r"perfect recall, got information set 'what did I do\?' of player 0"):
        SequenceFormGame.from_tree(game(forgetful))
    twice = decision("one", "again", decision("one", "again", leaf(1), leaf(2)), leaf(3))
    with pytest.raises(ValueError, match="perfect recall, got information set 'again'"):
        SequenceFormGame.from_tree(game(twice))


def test_openspiel_games_that_are_refused():
    pyspiel = pytest.importorskip("pyspiel")
    with pytest.raises(ValueError, match="perfect recall"):
        SequenceFormGame.from_openspiel("goofspiel(num_cards=4)")  # the order of own bids is forgotten
    with pytest.raises(ValueError, match="two players"):
        SequenceFormGame.from_openspiel(pyspiel.load_game("kuhn_poker(players=3)"))
    with pytest.raises(ValueError, match="zero-sum"):
        SequenceFormGame.from_openspiel("matrix_pd")
    with pytest.raises(ValueError, match="max_nodes"):
        SequenceFormGame.from_openspiel("kuhn_poker", max_nodes=10)


def test_what_openspiel_cannot_load():
    pyspiel = pytest.importorskip("pyspiel")
    with pytest.raises(ValueError, match="game must be one that OpenSpiel can load, got 'nonsense'"):
        SequenceFormGame.from_openspiel("nonsense")
    with pytest.raises(TypeError, match=r"game must be a pyspiel\.Game or the name of one, got int"):
        SequenceFormGame.from_openspiel(3)
    with pytest.raises(ValueError, match="game must have two players, got 1"):
        SequenceFormGame.from_openspiel(pyspiel.load_game("blackjack"))  # a tree that is too large to walk
    kuhn = openspiel()
    with pytest.raises(TypeError, match="policy must be None or a TabularPolicy"):
        kuhn.to_policy(0, kuhn.uniform(0), policy=3)


def test_games_that_are_not_zero_sum():
    root = decision("one", "a", {"type": "leaf", "payoffs": [1, 1]}, {"type": "leaf", "payoffs": [1, 2]})
    with pytest.raises(ValueError, match="zero-sum"):
        SequenceFormGame.from_tree(game(root))
    alone = GameTree.from_json({"players": ["one"], "root": decision(0, "a", *2 * [{"type": "leaf", "payoffs": [1]}])})
    with pytest.raises(ValueError, match="two players"):
        SequenceFormGame.from_tree(alone)


GOOD = {"parents": ([0], [0]), "actions": ([2], [2]), "payoff_triplets": ([1], [2], [1.0])}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"parents": ([0],)}, "parents must have one sequence for each of two players"),
        ({"actions": ([2], [2], [2])}, "actions must have one"),
        ({"parents": ([0, 1], [0])}, r"parents\[0\] must have one entry per information set"),
        ({"parents": ([1], [0])}, r"parents\[0\] must be sequences of earlier information sets"),
        ({"parents": ([0], [-1])}, r"parents\[1\]\[0\]"),
        ({"actions": ([0], [2])}, r"actions\[0\] must be at least 1"),
        ({"payoff_triplets": ([1], [2], [np.nan])}, r"payoff_triplets\[2\] must be a finite"),
        ({"payoff_triplets": ([1], [3], [1.0])}, r"payoff_triplets\[1\] must be sequences from 0 to 2"),
        ({"payoff_triplets": ([-1], [2], [1.0])}, r"payoff_triplets\[0\] must be sequences"),
        ({"payoff_triplets": ([1, 2], [2], [1.0])}, r"payoff_triplets\[0\] must be 1 integers"),
        ({"payoff_triplets": ([1.5], [2], [1.0])}, r"payoff_triplets\[0\] must be 1 integers"),
        ({"payoff_triplets": ([1], [2], [1e301])}, "payoffs of at most"),
        ({"labels": (["a", "b"], ["c"])}, "labels must name every information set"),
    ],
)
def test_bad_arrays(change, message):
    with pytest.raises(ValueError, match=message):
        SequenceFormGame.from_arrays(**GOOD | change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"parents": 3}, "parents must be a sequence"),
        ({"parents": (0, [0])}, r"parents\[0\] must be a sequence of integers, got int"),
        ({"actions": ([2], 2)}, "actions must be a sequence of integers, got int"),
        ({"payoff_triplets": 1.0}, "payoff_triplets must be a sequence"),
        ({"labels": 3}, "labels must be a list of names"),
        ({"labels": ("a", "b")}, "labels must be a list of names"),
    ],
)
def test_types_of_arrays_that_are_no_sequences(change, message):
    with pytest.raises(TypeError, match=message):
        # Without the runtime check of annotations, as users have it.
        inspect.unwrap(SequenceFormGame.from_arrays.__func__)(SequenceFormGame, **GOOD | change)


def test_bad_plans_and_players():
    form = SequenceFormGame.from_arrays(**GOOD, labels=(["hide"], ["seek"]))
    assert form.labels == (("hide",), ("seek",))
    for plan, message in [
        ([1.0, 0.5], "x must have length 3"),
        ([1.0, 0.5, 0.4], "violation of 0.1"),
        ([0.9, 0.5, 0.4], "x must be a realisation plan"),
        ([1.0, 1.5, -0.5], "x must be a realisation plan"),
        ([1.0, np.nan, 0.5], "x must be a finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            form.nashconv(plan, form.uniform(1))
    with pytest.raises(ValueError, match="player must be 0 or 1"):
        form.uniform(2)
    with pytest.raises(ValueError, match="loss must have length 3"):
        form.best_response(0, [1.0])
    assert np.isnan(form.trees[0].violation(np.array([1.0, np.nan, 0])))
