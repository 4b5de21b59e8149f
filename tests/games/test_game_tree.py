import copy
import json
import pickle

import numpy as np
import pytest

from assay.games.game_tree import CHANCE, LEAF, GameTree, InformationSet
from assay.games.tree_checks import as_columns
from assay.games.tree_nodes import TreeBuilder

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
        (chance((float("nan"), decision("a", l=leaf(1)))), "must be >= 0, got nan"),
        (chance((10**400, decision("a", l=leaf(1)))), "must sum to 1 at every chance node, got inf"),
        (decision("a", l=leaf(10**400)), "payoffs must be finite, got .inf. at the node after l"),
        (decision("a", l=leaf(1e301)), "payoffs must be of size at most 1e.300, got .1e.301. at the node after l"),
        (decision("a", l=leaf(True)), "payoffs must be a list of 1 numbers"),
        (decision(None, l=leaf(1)), "infoset must be a string or an integer, got None at the root"),
        (decision({"a": 1}, l=leaf(1)), "infoset must be a string or an integer"),
        (
            {"type": "decision", "infoset": "a", "actions": [{"label": None, "child": leaf(1)}]},
            "label must be a string",
        ),
        (decision("a", True, l=leaf(1)), "player must be one of"),
        (None, "type must be .* got None at the root"),
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
    for file in ("folder.efg", "folder.json"):
        (tmp_path / file).mkdir()
        with pytest.raises(ValueError, match="path must be a file, got the directory"):
            GameTree.from_file(tmp_path / file)
    (tmp_path / "deep.json").write_text('{"players": ["x"], "root": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ValueError, match=r"deep.json: not a JSON file that can be read"):
        GameTree.from_file(tmp_path / "deep.json")
    (tmp_path / "huge.efg").write_text(EFG.replace("{ 5, -5 }", "{ 1e400, -5 }"))
    with pytest.raises(ValueError, match="payoffs must be finite"):
        GameTree.from_file(tmp_path / "huge.efg")
    with pytest.raises(TypeError, match="source must be a path or a dict, got int"):
        GameTree.from_json(3)
    with pytest.raises(ValueError, match="players must be a string or an integer, got None"):
        GameTree.from_json({"players": [None], "root": leaf(1)})
    with pytest.raises(ValueError, match="different names"):
        GameTree.from_json({"players": ["x", "x"], "root": leaf(1, 1)})
    with pytest.raises(TypeError, match=r"must be a pygambit.Game"):
        GameTree.from_gambit(3)


def test_a_byte_order_mark_is_no_content(tmp_path):
    (tmp_path / "tree.json").write_text(json.dumps(DRIVER), encoding="utf-8-sig")
    assert GameTree.from_file(tmp_path / "tree.json").players == ("driver",)


def test_numbers_of_numpy():
    root = decision("a", l=leaf(np.float32(2)), r={"type": "leaf", "payoffs": np.array([3])})
    tree = GameTree.from_json({"players": ["x"], "root": root})
    np.testing.assert_array_equal(tree.payoffs[1:, 0], [2, 3])


def arrays(**changes):
    """A tree of two moves, as arrays."""
    columns = {
        "players": ("x",),
        "infosets": (InformationSet(0, "a", ("l", "r")),),
        "parent": np.array([-1, 0, 0]),
        "player": np.array([0, LEAF, LEAF]),
        "infoset": np.array([0, -1, -1]),
        "action": np.array([-1, 0, 1]),
        "chance": np.ones(3),
        "payoffs": np.array([[0.0], [1.0], [2.0]]),
    }
    return columns | changes


def test_from_arrays():
    given = arrays()
    tree = GameTree(**given)
    assert given["payoffs"].flags.writeable
    given["payoffs"][:] = 9.0
    assert tree.expected_payoffs([[0.5, 0.5]])[0] == 1.5
    for other in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
        assert not other.payoffs.flags.writeable
        np.testing.assert_array_equal(other.payoffs, tree.payoffs)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"players": ("x", "x"), "payoffs": np.zeros((3, 2))}, "players must have different names"),
        ({"players": ()}, "players must have different names"),
        ({"payoffs": np.zeros((3, 2))}, "payoffs must have one column per player, 1, got 2"),
        ({"payoffs": np.array([[1.0], [1.0], [2.0]])}, "payoffs must be 0 at inner nodes, got .1.0. at the root"),
        ({"parent": np.array([0, 0, 0])}, "parent must be -1 at node 0"),
        ({"parent": np.array([-1, 1, 0])}, "parent must be .* got 1 at node 1"),
        ({"parent": np.array([-1, -1, 0])}, "parent must be .* got -1 at node 1"),
        ({"player": np.array([0, LEAF, 0])}, "player must be -2 exactly where there are no moves, got 0 at node 2"),
        ({"player": np.array([LEAF, LEAF, LEAF])}, "player must be -2 exactly"),
        ({"player": np.array([7, LEAF, LEAF])}, "infoset 'a' must belong to one player, got 0 and 7"),
        ({"player": np.array([-3, LEAF, LEAF])}, "infoset must be from 0 to 0"),
        ({"infoset": np.array([7, -1, -1])}, "infoset must be from 0 to 0 at decisions and -1 elsewhere, got 7"),
        (
            {"infoset": np.array([0, 0, -1])},
            "infoset must be .* and -1 elsewhere, got 0 at node 1",
        ),
        ({"action": np.array([-1, 0, 0])}, "action must be -1 at node 0 and number the moves"),
        ({"action": np.array([-1, 0, 2])}, "action must be -1 at node 0 and number the moves"),
        ({"action": np.array([0, 0, 1])}, "action must be -1 at node 0"),
        ({"chance": np.array([1.0, 0.5, 0.5])}, "chance must be 1 below players, got 0.5 at the node after l"),
        ({"infosets": (InformationSet(0, "a", ("l",)),)}, "infoset 'a' must have 1 actions at every node, got 2"),
        ({"infosets": (InformationSet(0, "a", ("l", "l")),)}, "infoset 'a' must have different actions"),
        ({"infosets": (InformationSet(1, "a", ("l", "r")),)}, "infoset 'a' must be of a player below 1, got 1"),
        ({"infosets": (InformationSet(0, "a", ("l", "r")),) * 2}, "infosets must have different labels"),
        (
            {"infosets": (InformationSet(0, "a", ("l", "r")), InformationSet(0, "b", ("l", "r")))},
            "infosets must all have nodes, got none of 'b'",
        ),
    ],
)
def test_arrays_that_are_no_tree(changes, message):
    with pytest.raises(ValueError, match=message):
        GameTree(**arrays(**changes))


def test_arrays_of_another_kind():
    with pytest.raises(TypeError, match="parent must be an array of integers"):
        as_columns({"parent": np.array([-1.0, 0.0])})
    with pytest.raises(ValueError, match="payoffs must be a 2-D array"):
        as_columns({"payoffs": np.zeros(3)})
    with pytest.raises(ValueError, match="arrays of nodes must be of one length"):
        as_columns({"parent": np.array([-1, 0]), "chance": np.ones(3)})


def test_what_is_no_strategy():
    tree = GameTree.from_json(DRIVER)
    for strategy, error, message in (
        ([[np.nan, 1.0]], ValueError, "strategy at 'road' must be a finite 1-D array"),
        ([[-1.0, 2.0]], ValueError, r"strategy at 'road' must be non-negative and sum to 1"),
        ([[1.0, 2.0]], ValueError, r"strategy at 'road' must be non-negative and sum to 1"),
        ([["a", "b"]], TypeError, "strategy at 'road' must be"),
    ):
        with pytest.raises(error, match=message):
            tree.expected_payoffs(strategy)


def test_names_that_openspiel_does_not_have():
    with pytest.raises(ValueError, match="OpenSpiel has, got 'kuhn_pocker'; did you mean kuhn_poker"):
        GameTree.from_openspiel("kuhn_pocker")
    with pytest.raises(ValueError, match=r"game must be one that OpenSpiel can load, got 'kuhn_poker\(x=1\)'"):
        GameTree.from_openspiel("kuhn_poker(x=1)")
    with pytest.raises(TypeError, match=r"game must be a name or a pyspiel.Game, got int"):
        GameTree.from_openspiel(3)


def test_actions_of_one_name_are_told_apart():
    builder = TreeBuilder(("x",), 10)
    node = builder.decision(-1, -1, 1.0, 0, "a", ("go", "go", "stay"))
    for action in range(3):
        builder.leaf(node, action, 1.0, [float(action)])
    assert GameTree(**builder.columns()).infosets[0].actions == ("go", "go'", "stay")


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
