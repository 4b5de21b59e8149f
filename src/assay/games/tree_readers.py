"""Game trees from OpenSpiel, Gambit and JSON: every reader walks its tree and hands node by node to a builder."""

from __future__ import annotations

import difflib
import json
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.extras import import_extra
from assay.games.tree_nodes import TreeBuilder

__all__ = ["load_openspiel", "read_file", "read_gambit", "read_json", "read_openspiel"]

_KINDS = {"chance", "decision", "leaf"}


def load_openspiel(game: Any) -> Any:
    """Load a game of OpenSpiel by its name, or return the one that is given.

    Parameters
    ----------
    game : pyspiel.Game or str
        A name may have parameters: ``"goofspiel(num_cards=3)"``.

    Returns
    -------
    pyspiel.Game

    Raises
    ------
    MissingExtraError
        If OpenSpiel is not installed.
    TypeError
        If it is neither.
    ValueError
        If OpenSpiel cannot load it.
    """
    pyspiel = import_extra("pyspiel", extra="games")
    if isinstance(game, pyspiel.Game):
        return game
    if not isinstance(game, str):
        raise TypeError(f"game must be a name or a pyspiel.Game, got {type(game).__name__}")
    name, known = game.partition("(")[0], pyspiel.registered_names()
    if name not in known:  # OpenSpiel would print the names of all games first
        near = difflib.get_close_matches(name, known)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"game must be one that OpenSpiel has, got {game!r}{meant}")
    try:
        return pyspiel.load_game(game)
    except pyspiel.SpielError as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"game must be one that OpenSpiel can load, got {game!r}: {first}") from None


def read_openspiel(game: Any, max_nodes: int) -> TreeBuilder:
    """Walk a game of OpenSpiel; see :meth:`~assay.games.game_tree.GameTree.from_openspiel`."""
    pyspiel = import_extra("pyspiel", extra="games")
    game = load_openspiel(game)
    kind = game.get_type()
    if kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        game = pyspiel.convert_to_turn_based(game)
        kind = game.get_type()
    if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise ValueError(f"game must be sequential or simultaneous, got the dynamics {kind.dynamics}")
    if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        raise ValueError(f"game must list its chance outcomes, {kind.short_name} samples them")
    named = kind.provides_information_state_string
    perfect = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
    if not named and not perfect:
        raise ValueError(f"game must provide information states, {kind.short_name} does not")
    builder = TreeBuilder(tuple(f"player {i}" for i in range(game.num_players())), max_nodes)
    stack = [(game.new_initial_state(), -1, -1, 1.0)]
    while stack:
        state, parent, action, chance = stack.pop()
        if state.is_terminal():
            builder.leaf(parent, action, chance, state.returns())
            continue
        if state.is_chance_node():
            node = builder.chance_node(parent, action, chance)
            moves = [(a, p) for a, p in state.chance_outcomes() if p > 0]
        else:
            who = state.current_player()
            moves = [(a, 1.0) for a in state.legal_actions()]
            label = state.information_state_string(who) if named else state.history_str()
            actions = tuple(state.action_to_string(who, a) for a, _ in moves)
            node = builder.decision(parent, action, chance, who, label, actions)
        stack += [(state.child(a), node, i, p) for i, (a, p) in reversed(list(enumerate(moves)))]
    return builder


def read_gambit(game: Any, max_nodes: int) -> TreeBuilder:
    """Walk a game of Gambit; see :meth:`~assay.games.game_tree.GameTree.from_gambit`."""
    if not hasattr(game, "is_tree"):
        raise TypeError(f"game must be a pygambit.Game, got {type(game).__name__}")
    players = tuple(player.label or f"player {i}" for i, player in enumerate(game.players))
    if not game.is_tree:
        return _strategic(game, players, max_nodes)
    builder = TreeBuilder(players, max_nodes)
    number = {player.number: i for i, player in enumerate(game.players)}
    nothing = np.zeros(len(players))
    stack = [(game.root, -1, -1, 1.0, nothing)]
    while stack:
        place, parent, action, chance, paid = stack.pop()
        if place.outcome:
            paid = paid + [_number(place.outcome[player]) for player in game.players]
        if place.is_terminal:
            builder.leaf(parent, action, chance, paid.tolist())
            continue
        if place.player.is_chance:
            node = builder.chance_node(parent, action, chance)
            weights = [_number(move.prob) for move in place.infoset.actions]
        else:
            who = number[place.player.number]
            label = place.infoset.label or f"{players[who]}, {place.infoset.number}"
            actions = tuple(move.label or str(i) for i, move in enumerate(place.infoset.actions))
            key = (who, int(place.infoset.number))
            node = builder.decision(parent, action, chance, who, label, actions, key=key)
            weights = [1.0] * len(actions)
        children = list(enumerate(zip(place.children, weights, strict=True)))
        stack += [(child, node, i, weight, paid) for i, (child, weight) in reversed(children)]
    return builder


def read_json(source: Any, max_nodes: int) -> TreeBuilder:
    """Walk a tree that is written out in JSON; see :meth:`~assay.games.game_tree.GameTree.from_json`."""
    if not isinstance(source, Mapping):
        if not isinstance(source, str | os.PathLike):
            raise TypeError(f"source must be a path or a dict, got {type(source).__name__}")
        file = Path(source)
        try:
            source = json.loads(file.read_text(encoding="utf-8-sig"))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{file.name}: not a JSON file that can be read: {error}") from None
    if not isinstance(source, Mapping) or "root" not in source or "players" not in source:
        raise ValueError("tree must be an object with the keys 'players' and 'root'")
    players = source["players"]
    if not isinstance(players, Sequence) or isinstance(players, str) or not players:
        raise ValueError(f"players must be a list of names, got {players!r}")
    players = tuple(_name(name, "players") for name in players)
    if len(set(players)) != len(players):
        raise ValueError(f"players must have different names, got {list(players)}")
    builder = TreeBuilder(players, max_nodes)
    stack: list[tuple[Any, int, int, float]] = [(source["root"], -1, -1, 1.0)]
    while stack:
        place, parent, action, chance = stack.pop()
        where = _Where(builder, parent, action)
        kind = place.get("type") if isinstance(place, Mapping) else None
        if kind not in _KINDS:
            raise ValueError(f"type must be 'chance', 'decision' or 'leaf', got {kind!r} at {where}")
        if kind == "leaf":
            builder.leaf(parent, action, chance, _json_payoffs(place, len(players), where))
            continue
        labels, weights, children = _json_actions(place, where)
        if kind == "chance":
            node = builder.chance_node(parent, action, chance)
        else:
            who = _json_player(place, players, where)
            if "infoset" not in place:
                raise ValueError(f"infoset must be given at every decision, none at {where}")
            node = builder.decision(parent, action, chance, who, _name(place["infoset"], "infoset", where), labels)
            weights = [1.0] * len(children)
        moves = list(enumerate(zip(children, weights, strict=True)))
        stack += [(child, node, i, weight) for i, (child, weight) in reversed(moves)]
    return builder


def read_file(path: Any, max_nodes: int) -> TreeBuilder:
    """Read a file by its suffix; see :meth:`~assay.games.game_tree.GameTree.from_file`."""
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in {".efg", ".nfg", ".json"}:
        raise ValueError(f"path must end in .efg, .nfg or .json, got {file.name!r}")
    if file.is_dir():
        raise ValueError(f"path must be a file, got the directory {file.name!r}")
    with file.open("rb"):  # the readers word a missing file each in its own way
        pass
    if suffix == ".json":
        return read_json(file, max_nodes)
    pygambit = import_extra("pygambit", extra="gambit")
    read = pygambit.read_efg if suffix == ".efg" else pygambit.read_nfg
    try:
        game = read(file)
    except Exception as error:  # noqa: BLE001  it raises several kinds, none of them public
        raise ValueError(f"{file.name}: Gambit cannot read it: {error}") from None
    return read_gambit(game, max_nodes)


@dataclass(frozen=True)
class _Where:
    """The place of a node that is being read, worded only when a message needs it."""

    builder: TreeBuilder
    parent: int
    action: int

    def __str__(self) -> str:
        return self.builder.path(self.parent, self.action)


def _strategic(game: Any, players: tuple[str, ...], max_nodes: int) -> TreeBuilder:
    """The players of a strategic game move in turn, each in one information set."""
    strategies = [tuple(s.label or str(i) for i, s in enumerate(player.strategies)) for player in game.players]
    size = math.prod(len(choices) for choices in strategies)
    if size > max_nodes:
        raise ValueError(f"tree must have at most max_nodes={max_nodes} nodes, got a game of {size} profiles")
    tables = [np.asarray(table, dtype=np.float64) for table in game.to_arrays(dtype=float)]
    builder = TreeBuilder(players, max_nodes)
    stack: list[tuple[int, int, tuple[int, ...]]] = [(-1, -1, ())]
    while stack:
        parent, action, profile = stack.pop()
        who = len(profile)
        if who == len(players):
            builder.leaf(parent, action, 1.0, [float(table[profile]) for table in tables])
            continue
        node = builder.decision(parent, action, 1.0, who, players[who], strategies[who])
        stack += [(node, i, (*profile, i)) for i in reversed(range(len(strategies[who])))]
    return builder


def _json_payoffs(place: Mapping[str, Any], n_players: int, where: _Where) -> list[float]:
    payoffs = place.get("payoffs")
    is_list = isinstance(payoffs, Sequence | np.ndarray) and not isinstance(payoffs, str)
    if not is_list or len(payoffs) != n_players or not all(map(_is_number, payoffs)):
        raise ValueError(f"payoffs must be a list of {n_players} numbers at every leaf, got {payoffs!r} at {where}")
    return [_number(value) for value in payoffs]


def _json_actions(place: Mapping[str, Any], where: _Where) -> tuple[tuple[str, ...], list[float], list[Any]]:
    actions = place.get("actions")
    if not isinstance(actions, Sequence) or isinstance(actions, str) or not actions:
        raise ValueError(f"actions must be a list of at least one action, got {actions!r} at {where}")
    for action in actions:
        if not isinstance(action, Mapping) or "child" not in action:
            raise ValueError(f"actions must be objects with the keys 'label' and 'child', got {action!r} at {where}")
    labels = tuple(_name(action.get("label", i), "label", where) for i, action in enumerate(actions))
    if len(set(labels)) != len(labels):
        raise ValueError(f"actions must have different labels, got {list(labels)} at {where}")
    weights = [math.nan] * len(actions)
    if place["type"] == "chance":
        for i, action in enumerate(actions):
            weight = action.get("prob")
            if not _is_number(weight):
                raise ValueError(f"prob must be a number for every action of chance, got {weight!r} at {where}")
            weights[i] = _number(weight)
    return labels, weights, [action["child"] for action in actions]


def _json_player(place: Mapping[str, Any], players: tuple[str, ...], where: _Where) -> int:
    player = place.get("player", 0 if len(players) == 1 else None)
    if isinstance(player, int) and not isinstance(player, bool) and 0 <= player < len(players):
        return player
    if isinstance(player, str) and player in players:
        return players.index(player)
    raise ValueError(f"player must be one of {list(players)} or an index at every decision, got {player!r} at {where}")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _number(value: Any) -> float:
    """In double precision; what is too large is infinite, which trees refuse."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _name(value: Any, argument: str, where: _Where | None = None) -> str:
    """A string, or an integer in decimals."""
    if isinstance(value, str) or (isinstance(value, numbers.Integral) and not isinstance(value, bool)):
        return str(value)
    raise ValueError(f"{argument} must be a string or an integer, got {value!r}" + (f" at {where}" if where else ""))
