import json

import numpy as np
import pytest

from assay.games.game_tree import CHANCE, LEAF, GameTree

pygambit = pytest.importorskip("pygambit")
pyspiel = pytest.importorskip("pyspiel")


def leaf(*payoffs):
    return {"type": "leaf", "payoffs": list(payoffs)}


def decision(infoset, player=None, **actions):
    owner = {} if player is None else {"player": player}
    moves = [{"label": label, "child": child} for label, child in actions.items()]
    return {"type": "decision", "infoset": infoset, "actions": moves, **owner}


def chance(*edges):
    return {"type": "chance", "actions": [{"label": str(i), "prob": p, "child": c} for i, (p, c) in enumerate(edges)]}


DRIVER = {
    "players": ["driver"],
    "root": decision("road", exit=leaf(0), go=decision("road", exit=leaf(4), go=leaf(1))),
}

EFG = """EFG 2 R "guess a card" { "Ann" "Bob" } ""
c "" 1 "" { "red" 1/4 "black" 3/4 } 0
p "" 1 1 "Ann" { "tell" "pass" } 1 "ante" { 1, -1 }
p "" 2 1 "Bob" { "red" "black" } 0
t "" 2 "" { 1, -1 }
t "" 3 "" { 0, 0 }
t "" 3
p "" 1 1 "Ann" { "tell" "pass" } 0
p "" 2 1 "Bob" { "red" "black" } 0
t "" 4 "" { 2, -2 }
t "" 5 "" { -3, 3 }
t "" 6 "" { 5, -5 }
"""


def uniform(tree):
    return [np.full(len(infoset.actions), 1 / len(infoset.actions)) for infoset in tree.infosets]


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker", "matrix_rps", "goofspiel(num_cards=3,imp_info=True)"])
def test_openspiel_values_of_the_uniform_strategies(name):
    from open_spiel.python import policy
    from open_spiel.python.algorithms import expected_game_score

    game = pyspiel.load_game(name)
    tree = GameTree.from_openspiel(game)
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        game = pyspiel.convert_to_turn_based(game)
    want = expected_game_score.policy_value(game.new_initial_state(), [policy.UniformRandomPolicy(game)] * 2)
    np.testing.assert_allclose(tree.expected_payoffs(uniform(tree)), want, atol=1e-12)
    assert tree.is_zero_sum()
    assert tree.recall_violation(0) is None
    assert tree.recall_violation(1) is None
    assert np.all(tree.parent[1:] < np.arange(1, len(tree.parent)))


def test_known_sizes_of_kuhn_poker():
    tree = GameTree.from_openspiel("kuhn_poker")
    assert (len(tree.infosets_of(0)), len(tree.infosets_of(1))) == (6, 6)
    assert np.count_nonzero(tree.player == LEAF) == 30
    assert np.count_nonzero(tree.player == CHANCE) == 4


def test_a_file_of_gambit_with_payoffs_at_inner_nodes(tmp_path):
    path = tmp_path / "card.efg"
    path.write_text(EFG)
    tree = GameTree.from_file(path)
    game = pygambit.read_efg(path)
    assert tree.players == ("Ann", "Bob")
    assert [infoset.label for infoset in tree.infosets] == ["Ann", "Bob"]
    want = [float(game.mixed_behavior_profile().payoff(player)) for player in game.players]
    np.testing.assert_allclose(tree.expected_payoffs(uniform(tree)), want, atol=1e-14)
    # the outcome at Ann's red card is paid on top of what follows
    tell_red, red = [1.0, 0.0], [1.0, 0.0]
    assert tree.expected_payoffs([tell_red, red])[0] == pytest.approx(0.25 * (1 + 1) + 0.75 * 2)


def test_a_strategic_game_of_gambit(tmp_path):
    path = tmp_path / "three.nfg"
    payoffs = " ".join(str(v) for v in range(3 * 12))
    path.write_text(f'NFG 1 R "three" {{ "A" "B" "C" }} {{ 2 3 2 }} {payoffs}')
    tree = GameTree.from_file(path)
    game = pygambit.read_nfg(path)
    profile = game.mixed_strategy_profile()
    want = [float(profile.payoff(player)) for player in game.players]
    np.testing.assert_allclose(tree.expected_payoffs(uniform(tree)), want)
    assert len(tree.infosets) == 3
    assert not tree.is_zero_sum()


def test_the_absent_minded_driver():
    tree = GameTree.from_json(DRIVER)
    assert tree.is_absent_minded(0)
    assert tree.recall_violation(0) == "road"
    assert tree.expected_payoffs([[1 / 3, 2 / 3]])[0] == pytest.approx(4 / 3)


def test_json_from_a_file_with_chance(tmp_path):
    root = chance((0.25, decision("a", "x", l=leaf(1, 2), r=leaf(3, 4))), (0.75, leaf(5, 6)))
    path = tmp_path / "game.json"
    path.write_text(json.dumps({"players": ["x", "y"], "root": root}))
    tree = GameTree.from_file(path)
    np.testing.assert_allclose(tree.expected_payoffs([[1, 0]]), [0.25 + 3.75, 0.5 + 4.5])
    assert not tree.is_absent_minded(0)


def test_merging_makes_a_player_forget():
    tree = GameTree.from_openspiel("kuhn_poker")
    forgetful = tree.merged(lambda label: label[1:] if label[0] in "012" else label)
    assert len(forgetful.infosets) < len(tree.infosets)
    # the label without the card is the betting so far; both players see different ones
    assert forgetful.recall_violation(0) is None or not forgetful.is_absent_minded(0)
    same = tree.merged(lambda label: label)
    assert same.infosets == tree.infosets
    np.testing.assert_array_equal(same.infoset, tree.infoset)


def test_merging_different_actions_is_refused():
    root = decision("a", None, l=leaf(1), r=decision("b", None, up=leaf(2), down=leaf(3)))
    tree = GameTree.from_json({"players": ["x"], "root": root})
    with pytest.raises(ValueError, match=r"same actions at every node, got \['l', 'r'\] and \['up', 'down'\]"):
        tree.merged(lambda label: "one")


def test_merging_two_players_is_refused():
    tree = GameTree.from_openspiel("matrix_rps")
    with pytest.raises(ValueError, match="must belong to one player"):
        tree.merged(lambda label: "one")


@pytest.mark.parametrize(
    "root, message",
    [
        (leaf(1), "depth 0"),
        (chance((1.0, leaf(1))), "chance moves only"),
        (chance((0.5, leaf(1)), (0.4, decision("a", l=leaf(1)))), "must sum to 1 at every chance node, got 0.9"),
        (chance((-0.5, leaf(1)), (1.5, decision("a", l=leaf(1)))), "must be >= 0, got -0.5"),
        (decision("a", l=leaf()), "payoffs must be a list of 1 numbers"),
        (decision("a", l={"type": "leaf"}), "payoffs must be a list of 1 numbers"),
        (decision("a", l=leaf(float("nan"))), "payoffs must be finite"),
        (decision("a", l=leaf("1")), "payoffs must be a list of 1 numbers"),
        (decision("a", l={"type": "twig"}), "type must be .* got 'twig' at the root, then action 0"),
        (decision("a"), "at least one action"),
        (decision("a", 3, l=leaf(1)), "player must be one of"),
        (decision("a", l=decision("a", r=leaf(1))), "same actions at every node"),
        ({"type": "decision", "actions": [{"label": "l", "child": leaf(1)}]}, "infoset must be given"),
        ({"type": "decision", "infoset": "a", "actions": [{"label": "l"}]}, "'label' and 'child'"),
        ({"type": "chance", "actions": [{"label": "l", "child": leaf(1)}]}, "prob must be a number"),
    ],
)
def test_bad_trees(root, message):
    with pytest.raises(ValueError, match=message):
        GameTree.from_json({"players": ["x"], "root": root})


def test_two_players_with_one_label_keep_their_own_information_sets():
    root = decision("a", 0, l=leaf(1, 2), r=decision("a", 1, l=leaf(3, 4), r=leaf(5, 6)))
    tree = GameTree.from_json({"players": ["x", "y"], "root": root})
    assert [infoset.label for infoset in tree.infosets] == ["a", "y: a"]


def test_bad_files(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "broken.efg").write_text("EFG 2 R nothing")
    with pytest.raises(ValueError, match=r"broken.json: not a JSON file"):
        GameTree.from_file(tmp_path / "broken.json")
    with pytest.raises(ValueError, match=r"broken.efg: Gambit cannot read it"):
        GameTree.from_file(tmp_path / "broken.efg")
    with pytest.raises(ValueError, match=r"must end in .efg, .nfg or .json"):
        GameTree.from_file(tmp_path / "game.txt")
    with pytest.raises(OSError):
        GameTree.from_file(tmp_path / "absent.efg")
    with pytest.raises(ValueError, match="'players' and 'root'"):
        GameTree.from_json({"players": ["x"]})
    with pytest.raises(ValueError, match="different names"):
        GameTree.from_json({"players": ["x", "x"], "root": leaf(1, 1)})
    with pytest.raises(TypeError, match=r"must be a pygambit.Game"):
        GameTree.from_gambit(3)


def test_a_tree_that_is_too_large_is_refused():
    with pytest.raises(ValueError, match="at most max_nodes=1000 nodes"):
        GameTree.from_openspiel("leduc_poker", max_nodes=1000)
    with pytest.raises(ValueError, match="at most max_nodes=10 nodes"):
        GameTree.from_gambit(pygambit.Game.from_arrays(np.zeros((4, 4)), np.zeros((4, 4))), max_nodes=10)


def test_a_deep_tree_does_not_recurse():
    root = leaf(1)
    for _ in range(3000):
        root = {"type": "decision", "infoset": "a", "actions": [
            {"label": "stop", "child": leaf(0)}, {"label": "go", "child": root}]}  # fmt: skip
    tree = GameTree.from_json({"players": ["x"], "root": root})
    assert tree.depth.max() == 3000
    assert tree.expected_payoffs([[0.0, 1.0]])[0] == 1.0


def test_games_that_cannot_be_listed_are_refused():
    with pytest.raises(ValueError, match=r"strategy must have 12 distributions"):
        GameTree.from_openspiel("kuhn_poker").expected_payoffs([])
    with pytest.raises(ValueError, match=r"must have shape \(2,\)"):
        GameTree.from_openspiel("kuhn_poker").expected_payoffs([[1.0]] * 12)
