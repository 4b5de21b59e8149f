"""A game in extensive form as flat arrays, whatever library or file it comes from.

OpenSpiel, Gambit and JSON files each describe the same object: a tree whose inner nodes belong to chance or to a
player, whose decision nodes are grouped into information sets, and whose leaves pay. Here it is a handful of arrays
over the nodes in depth-first order, parents before children, so that what flows down the tree (probabilities of being
reached) or up (values) is one pass over an array. Solvers build their own form from it and need to know no reader.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.extras import import_extra
from assay.validation import check_integer

__all__ = ["CHANCE", "LEAF", "GameTree", "InformationSet"]

CHANCE = -1
LEAF = -2
_KINDS = {"chance", "decision", "leaf"}
_MOST_NODES = 5_000_000


@dataclass(frozen=True)
class InformationSet:
    """Nodes between which a player cannot tell.

    Attributes
    ----------
    player : int
        Who moves.
    label : str
        Its name, unique in the game.
    actions : tuple of str
        What can be done at each of its nodes.
    """

    player: int
    label: str
    actions: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class GameTree:
    """A game in extensive form.

    Attributes
    ----------
    players : tuple of str
        Their names.
    infosets : tuple of InformationSet
        In the order in which a depth-first walk meets them.
    parent : numpy.ndarray of shape (n_nodes,)
        Index of each node's parent, -1 at the root; parents come before their children.
    player : numpy.ndarray of shape (n_nodes,)
        Who moves at the node; -1 for chance, -2 at a leaf.
    infoset : numpy.ndarray of shape (n_nodes,)
        Index into ``infosets``, -1 at leaves and chance nodes.
    action : numpy.ndarray of shape (n_nodes,)
        Index of the parent's action that leads to the node, -1 at the root.
    chance : numpy.ndarray of shape (n_nodes,)
        Probability of the edge into the node, 1 where the parent is not a chance node.
    payoffs : numpy.ndarray of shape (n_nodes, n_players)
        What each player receives at a leaf, 0 elsewhere.

    Raises
    ------
    ValueError
        If an information set has nodes with different actions, or of different players; if the probabilities of a
        chance node are negative or do not sum to one; if a payoff is missing or not finite; if nobody ever moves.

    References
    ----------
    .. [1] H. W. Kuhn. Extensive games and the problem of information. Contributions to the Theory of Games II, 1953.

    Examples
    --------
    Matching pennies, the second player not seeing the first one's choice:

    >>> from assay.games.game_tree import GameTree
    >>> leaf = lambda a: {"type": "leaf", "payoffs": [a, -a]}
    >>> guess = lambda left, right: {
    ...     "type": "decision", "player": "Odd", "infoset": "guess",
    ...     "actions": [{"label": "heads", "child": leaf(left)}, {"label": "tails", "child": leaf(right)}]}
    >>> tree = GameTree.from_json({"players": ["Even", "Odd"], "root": {
    ...     "type": "decision", "player": "Even", "infoset": "hide",
    ...     "actions": [{"label": "heads", "child": guess(1, -1)}, {"label": "tails", "child": guess(-1, 1)}]}})
    >>> tree
    GameTree(7 nodes, 4 leaves, players ('Even', 'Odd'), 2 information sets)
    >>> tree.expected_payoffs([[0.5, 0.5], [0.25, 0.75]])
    array([0., 0.])
    >>> tree.recall_violation(0) is None
    True
    """

    players: tuple[str, ...]
    infosets: tuple[InformationSet, ...]
    parent: Int[np.ndarray, " nodes"]
    player: Int[np.ndarray, " nodes"]
    infoset: Int[np.ndarray, " nodes"]
    action: Int[np.ndarray, " nodes"]
    chance: Float[np.ndarray, " nodes"]
    payoffs: Float[np.ndarray, "nodes players"]

    def __post_init__(self) -> None:
        for name in ("parent", "player", "infoset", "action", "chance", "payoffs"):
            getattr(self, name).setflags(write=False)
        if not self.infosets:
            raise ValueError("tree must have a decision of some player, got one of depth 0 or with chance moves only")
        if not np.all(np.isfinite(self.payoffs)):
            node = int(np.argwhere(~np.isfinite(self.payoffs))[0, 0])
            raise ValueError(f"payoffs must be finite, got {self.payoffs[node].tolist()} at {self.path(node)}")
        self._check_chance()

    def _check_chance(self) -> None:
        inner = np.flatnonzero(self.player == CHANCE)
        below = np.flatnonzero(np.isin(self.parent, inner))
        if np.any(~(self.chance[below] >= 0)):
            node = int(below[~(self.chance[below] >= 0)][0])
            raise ValueError(f"chance probabilities must be >= 0, got {self.chance[node]} at {self.path(node)}")
        totals = np.bincount(self.parent[below], weights=self.chance[below], minlength=len(self.parent))[inner]
        off = np.abs(totals - 1) > 1e-9
        if np.any(off):
            node = int(inner[off][0])
            raise ValueError(
                f"chance probabilities must sum to 1 at every chance node, got {totals[off][0]:.12g} at "
                f"{self.path(node)}"
            )

    def __repr__(self) -> str:
        leaves = int(np.count_nonzero(self.player == LEAF))
        return (
            f"GameTree({len(self.parent)} nodes, {leaves} leaves, players {self.players}, "
            f"{len(self.infosets)} information sets)"
        )

    # ------------------------------------------------------------------ where it comes from

    @classmethod
    def from_openspiel(cls, game: Any, *, max_nodes: int = _MOST_NODES) -> GameTree:
        """Take over a game of OpenSpiel.

        Parameters
        ----------
        game : pyspiel.Game or str
            A sequential game with explicit chance, or the name of one; a simultaneous game is made turn-based.
        max_nodes : int, default=5_000_000
            A larger tree is refused.

        Returns
        -------
        GameTree
            Information sets are labelled by ``information_state_string``, their actions in the order of
            ``legal_actions``.

        Raises
        ------
        MissingExtraError
            If OpenSpiel is not installed.
        ValueError
            If the tree is too large, or the game has sampled chance or no information states.
        """
        pyspiel = import_extra("pyspiel", extra="games")
        max_nodes = check_integer(max_nodes, "max_nodes", minimum=1)
        game = pyspiel.load_game(game) if isinstance(game, str) else game
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
        builder = _Builder(tuple(f"player {i}" for i in range(game.num_players())), max_nodes)
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
        return builder.tree()

    @classmethod
    def from_gambit(cls, game: Any, *, max_nodes: int = _MOST_NODES) -> GameTree:
        """Take over a game of Gambit, in extensive or in strategic form.

        Parameters
        ----------
        game : pygambit.Game
            Payoffs attached to inner nodes are added to those of the leaves below; a leaf without an outcome pays
            nothing, as in Gambit. In a game in strategic form the players choose one after another without seeing
            what was chosen.
        max_nodes : int, default=5_000_000
            A larger tree is refused.

        Returns
        -------
        GameTree
            Information sets keep Gambit's labels; those without one are named after their player and number.

        Raises
        ------
        ValueError
            If the tree is too large.
        """
        max_nodes = check_integer(max_nodes, "max_nodes", minimum=1)
        if not hasattr(game, "is_tree"):
            raise TypeError(f"game must be a pygambit.Game, got {type(game).__name__}")
        players = tuple(player.label or f"player {i}" for i, player in enumerate(game.players))
        if not game.is_tree:
            return _strategic(game, players, max_nodes)
        builder = _Builder(players, max_nodes)
        number = {player.number: i for i, player in enumerate(game.players)}
        nothing = np.zeros(len(players))
        stack = [(game.root, -1, -1, 1.0, nothing)]
        while stack:
            place, parent, action, chance, paid = stack.pop()
            if place.outcome:
                paid = paid + [float(place.outcome[player]) for player in game.players]
            if place.is_terminal:
                builder.leaf(parent, action, chance, paid.tolist())
                continue
            if place.player.is_chance:
                node = builder.chance_node(parent, action, chance)
                weights = [float(move.prob) for move in place.infoset.actions]
            else:
                who = number[place.player.number]
                label = place.infoset.label or f"{players[who]}, {place.infoset.number}"
                actions = tuple(move.label or str(i) for i, move in enumerate(place.infoset.actions))
                key = (who, int(place.infoset.number))
                node = builder.decision(parent, action, chance, who, label, actions, key=key)
                weights = [1.0] * len(actions)
            children = list(enumerate(zip(place.children, weights, strict=True)))
            stack += [(child, node, i, weight, paid) for i, (child, weight) in reversed(children)]
        return builder.tree()

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any], *, max_nodes: int = _MOST_NODES) -> GameTree:
        """Read a tree that is written out in JSON.

        Parameters
        ----------
        source : str, path-like or dict
            A file, or its content: ``{"players": [names], "root": node}``, where a node is one of

            - ``{"type": "leaf", "payoffs": [one number per player]}``;
            - ``{"type": "chance", "actions": [{"label": ..., "prob": ..., "child": node}, ...]}``;
            - ``{"type": "decision", "player": name or index, "infoset": label, "actions": [{"label": ...,
              "child": node}, ...]}``; ``player`` may be left out when there is one player.
        max_nodes : int, default=5_000_000
            A larger tree is refused.

        Returns
        -------
        GameTree

        Raises
        ------
        ValueError
            If the content is not such a tree; the message says at which node.
        """
        max_nodes = check_integer(max_nodes, "max_nodes", minimum=1)
        if not isinstance(source, Mapping):
            file = Path(source)
            try:
                source = json.loads(file.read_text(encoding="utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(f"{file.name}: not a JSON file that can be read: {error}") from None
        if not isinstance(source, Mapping) or "root" not in source or "players" not in source:
            raise ValueError("tree must be an object with the keys 'players' and 'root'")
        players = source["players"]
        if not isinstance(players, Sequence) or isinstance(players, str) or not players:
            raise ValueError(f"players must be a list of names, got {players!r}")
        players = tuple(str(name) for name in players)
        if len(set(players)) != len(players):
            raise ValueError(f"players must have different names, got {list(players)}")
        builder = _Builder(players, max_nodes)
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
                node = builder.decision(parent, action, chance, who, str(place["infoset"]), labels)
                weights = [1.0] * len(children)
            moves = list(enumerate(zip(children, weights, strict=True)))
            stack += [(child, node, i, weight) for i, (child, weight) in reversed(moves)]
        return builder.tree()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, max_nodes: int = _MOST_NODES) -> GameTree:
        """Read a game from a file: ``.efg`` and ``.nfg`` of Gambit (through pygambit), or ``.json``.

        Parameters
        ----------
        path : str or path-like
            The kind of file is taken from its suffix.
        max_nodes : int, default=5_000_000
            A larger tree is refused.

        Returns
        -------
        GameTree

        Raises
        ------
        OSError
            If the file cannot be opened.
        ValueError
            If its suffix is unknown or its content is no game.
        """
        file = Path(path)
        suffix = file.suffix.lower()
        if suffix not in {".efg", ".nfg", ".json"}:
            raise ValueError(f"path must end in .efg, .nfg or .json, got {file.name!r}")
        with file.open("rb"):  # the readers word a missing file each in its own way
            pass
        if suffix == ".json":
            return cls.from_json(file, max_nodes=max_nodes)
        pygambit = import_extra("pygambit", extra="gambit")
        read = pygambit.read_efg if suffix == ".efg" else pygambit.read_nfg
        try:
            game = read(file)
        except Exception as error:  # noqa: BLE001  it raises several kinds, none of them public
            raise ValueError(f"{file.name}: Gambit cannot read it: {error}") from None
        return cls.from_gambit(game, max_nodes=max_nodes)

    # ------------------------------------------------------------------ what can be asked of it

    def path(self, node: int) -> str:
        """How a node is reached: the actions from the root, for messages."""
        return _path(self.parent, self.player, self.infoset, self.action, self.infosets, node)

    @cached_property
    def depth(self) -> Int[np.ndarray, " nodes"]:
        """Number of moves before each node."""
        depth = np.zeros(len(self.parent), dtype=np.int64)
        for node, parent in enumerate(self.parent[1:].tolist(), start=1):
            depth[node] = depth[parent] + 1
        return depth

    def _index_of(self, player: int) -> int:
        player = check_integer(player, "player", minimum=0)
        if player >= len(self.players):
            raise ValueError(f"player must be less than {len(self.players)}, the number of players, got {player}")
        return player

    def infosets_of(self, player: int) -> tuple[int, ...]:
        """Indices of a player's information sets."""
        player = self._index_of(player)
        return tuple(i for i, infoset in enumerate(self.infosets) if infoset.player == player)

    def expected_payoffs(self, strategy: Sequence[Any]) -> Float[np.ndarray, " players"]:
        """What each player receives on average.

        Parameters
        ----------
        strategy : sequence of array_like
            One distribution over actions per information set, in the order of ``infosets``.

        Returns
        -------
        numpy.ndarray of shape (n_players,)

        Raises
        ------
        ValueError
            If there are not as many distributions as information sets, or one has the wrong length.
        """
        if len(strategy) != len(self.infosets):
            raise ValueError(f"strategy must have {len(self.infosets)} distributions, got {len(strategy)}")
        local = [np.asarray(row, dtype=np.float64) for row in strategy]
        for infoset, row in zip(self.infosets, local, strict=True):
            if row.shape != (len(infoset.actions),):
                raise ValueError(
                    f"strategy at {infoset.label!r} must have shape ({len(infoset.actions)},), got {row.shape}"
                )
        start = np.concatenate([[0], np.cumsum([len(row) for row in local])])
        flat = np.concatenate(local)
        factor = self.chance.copy()
        decided = np.flatnonzero((self.parent >= 0) & (self.player[self.parent] >= 0))
        factor[decided] = flat[start[self.infoset[self.parent[decided]]] + self.action[decided]]
        reach = factor.copy()
        order = np.argsort(self.depth, kind="stable")
        level_ends = np.flatnonzero(np.diff(self.depth[order])) + 1
        for level in np.split(order, level_ends)[1:]:
            reach[level] *= reach[self.parent[level]]
        leaves = self.player == LEAF
        return reach[leaves] @ self.payoffs[leaves]

    @cached_property
    def _own_history(self) -> list[tuple[int, ...]]:
        """For each node and player a number that names the player's own infosets and actions before the node."""
        numbers: dict[tuple[int, int, int], int] = {}
        nobody = (0,) * len(self.players)
        histories = [nobody]
        parents, movers = self.parent.tolist(), self.player.tolist()
        infosets, actions = self.infoset.tolist(), self.action.tolist()
        for node in range(1, len(parents)):
            above = parents[node]
            history, mover = histories[above], movers[above]
            if mover >= 0:
                key = (history[mover], infosets[above], actions[node])
                longer = numbers.setdefault(key, len(numbers) + 1)
                history = (*history[:mover], longer, *history[mover + 1 :])
            histories.append(history)
        return histories

    def recall_violation(self, player: int) -> str | None:
        """Where a player forgets: an information set that is reached after different own moves.

        Parameters
        ----------
        player : int

        Returns
        -------
        str or None
            The label of the first such information set; None when the player has perfect recall.
        """
        player = self._index_of(player)
        seen: dict[int, int] = {}
        for node in np.flatnonzero(self.player == player).tolist():
            infoset = int(self.infoset[node])
            if seen.setdefault(infoset, self._own_history[node][player]) != self._own_history[node][player]:
                return self.infosets[infoset].label
        return None

    def is_absent_minded(self, player: int) -> bool:
        """Whether some path visits one information set of the player twice."""
        player = self._index_of(player)
        visited: list[frozenset[int]] = []
        parents, movers, infosets = self.parent.tolist(), self.player.tolist(), self.infoset.tolist()
        for node, above in enumerate(parents):
            before = visited[above] if above >= 0 else frozenset()
            if movers[node] == player:
                if infosets[node] in before:
                    return True
                before = before | {infosets[node]}
            visited.append(before)
        return False

    def is_zero_sum(self, rtol: float = 1e-9) -> bool:
        """Whether the payoffs of all players sum to one constant at every leaf, relative to the largest payoff."""
        totals = self.payoffs[self.player == LEAF].sum(axis=1)
        scale = max(float(np.abs(self.payoffs).max()), math.ulp(0.0))
        return bool(np.ptp(totals) <= rtol * scale)

    def merged(self, label: Callable[[str], str]) -> GameTree:
        """Make a player forget: join the information sets of one player that are given one label.

        Parameters
        ----------
        label : callable
            From the label of an information set to its new label.

        Returns
        -------
        GameTree

        Raises
        ------
        ValueError
            If information sets with different actions, or of different players, are given one label.
        """
        names: dict[str, int] = {}
        joined: list[InformationSet] = []
        index = np.empty(len(self.infosets) + 1, dtype=np.int64)
        index[-1] = -1  # where self.infoset is -1
        for i, old in enumerate(self.infosets):
            name = str(label(old.label))
            new = InformationSet(old.player, name, old.actions)
            if name not in names:
                names[name] = len(joined)
                joined.append(new)
            elif joined[names[name]] != new:
                raise ValueError(_different(joined[names[name]], new))
            index[i] = names[name]
        return GameTree(
            self.players,
            tuple(joined),
            self.parent,
            self.player,
            index[self.infoset],
            self.action,
            self.chance,
            self.payoffs,
        )


class _Builder:
    """Collects nodes in depth-first order; information sets are made when they are first met."""

    def __init__(self, players: tuple[str, ...], max_nodes: int) -> None:
        self.players = players
        self.max_nodes = max_nodes
        self.infosets: list[InformationSet] = []
        self.index: dict[Any, int] = {}
        self.labels: set[str] = set()
        self.parent: list[int] = []
        self.player: list[int] = []
        self.infoset: list[int] = []
        self.action: list[int] = []
        self.chance: list[float] = []
        self.leaves: list[int] = []
        self.payoffs: list[Sequence[float]] = []

    def _node(self, parent: int, action: int, chance: float, player: int, infoset: int) -> int:
        if len(self.parent) >= self.max_nodes:
            raise ValueError(f"tree must have at most max_nodes={self.max_nodes} nodes, got more")
        self.parent.append(parent)
        self.action.append(action)
        self.chance.append(chance)
        self.player.append(player)
        self.infoset.append(infoset)
        return len(self.parent) - 1

    def leaf(self, parent: int, action: int, chance: float, payoffs: Sequence[float]) -> None:
        self.leaves.append(self._node(parent, action, chance, LEAF, -1))
        self.payoffs.append(payoffs)

    def chance_node(self, parent: int, action: int, chance: float) -> int:
        return self._node(parent, action, chance, CHANCE, -1)

    def decision(
        self,
        parent: int,
        action: int,
        chance: float,
        player: int,
        label: str,
        actions: tuple[str, ...],
        key: Any = None,
    ) -> int:
        key = (player, label) if key is None else key
        if key not in self.index:
            if label in self.labels:  # two players, or two unnamed sets, with one name
                label = f"{self.players[player]}: {label}"
            while label in self.labels:
                label += "'"
            self.labels.add(label)
            self.index[key] = len(self.infosets)
            self.infosets.append(InformationSet(player, label, actions))
        infoset = self.index[key]
        if self.infosets[infoset].actions != actions:
            raise ValueError(_different(self.infosets[infoset], InformationSet(player, label, actions)))
        return self._node(parent, action, chance, player, infoset)

    def path(self, parent: int, action: int) -> str:
        if parent < 0:
            return "the root"
        above = _path(self.parent, self.player, self.infoset, self.action, self.infosets, parent)
        return f"{above}, then action {action}"

    def tree(self) -> GameTree:
        payoffs = np.zeros((len(self.parent), len(self.players)))
        payoffs[self.leaves] = np.asarray(self.payoffs, dtype=np.float64)
        return GameTree(
            self.players,
            tuple(self.infosets),
            np.asarray(self.parent, dtype=np.int64),
            np.asarray(self.player, dtype=np.int64),
            np.asarray(self.infoset, dtype=np.int64),
            np.asarray(self.action, dtype=np.int64),
            np.asarray(self.chance, dtype=np.float64),
            payoffs,
        )


@dataclass(frozen=True)
class _Where:
    """The place of a node that is being read, worded only when a message needs it."""

    builder: _Builder
    parent: int
    action: int

    def __str__(self) -> str:
        return self.builder.path(self.parent, self.action)


def _path(parent: Any, player: Any, infoset: Any, action: Any, infosets: Sequence[InformationSet], node: int) -> str:
    moves: list[str] = []
    while parent[node] >= 0:
        above = int(parent[node])
        if player[above] == CHANCE:
            moves.append(f"chance {int(action[node])}")
        else:
            moves.append(infosets[int(infoset[above])].actions[int(action[node])])
        node = above
    return "the node after " + " / ".join(reversed(moves)) if moves else "the root"


def _different(first: InformationSet, second: InformationSet) -> str:
    if first.player != second.player:
        return f"infoset {first.label!r} must belong to one player, got {first.player} and {second.player}"
    return (
        f"infoset {first.label!r} must have the same actions at every node, got {list(first.actions)} and "
        f"{list(second.actions)}"
    )


def _strategic(game: Any, players: tuple[str, ...], max_nodes: int) -> GameTree:
    """The players of a strategic game move in turn, each in one information set."""
    strategies = [tuple(s.label or str(i) for i, s in enumerate(player.strategies)) for player in game.players]
    size = math.prod(len(choices) for choices in strategies)
    if size > max_nodes:
        raise ValueError(f"tree must have at most max_nodes={max_nodes} nodes, got a game of {size} profiles")
    tables = [np.asarray(table, dtype=np.float64) for table in game.to_arrays(dtype=float)]
    builder = _Builder(players, max_nodes)
    stack: list[tuple[int, int, tuple[int, ...]]] = [(-1, -1, ())]
    while stack:
        parent, action, profile = stack.pop()
        who = len(profile)
        if who == len(players):
            builder.leaf(parent, action, 1.0, [float(table[profile]) for table in tables])
            continue
        node = builder.decision(parent, action, 1.0, who, players[who], strategies[who])
        stack += [(node, i, (*profile, i)) for i in reversed(range(len(strategies[who])))]
    return builder.tree()


def _json_payoffs(place: Mapping[str, Any], n_players: int, where: _Where) -> list[float]:
    payoffs = place.get("payoffs")
    if not isinstance(payoffs, Sequence) or isinstance(payoffs, str) or len(payoffs) != n_players:
        raise ValueError(f"payoffs must be a list of {n_players} numbers at every leaf, got {payoffs!r} at {where}")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in payoffs):
        raise ValueError(f"payoffs must be a list of {n_players} numbers at every leaf, got {payoffs!r} at {where}")
    return [float(value) for value in payoffs]


def _json_actions(place: Mapping[str, Any], where: _Where) -> tuple[tuple[str, ...], list[float], list[Any]]:
    actions = place.get("actions")
    if not isinstance(actions, Sequence) or isinstance(actions, str) or not actions:
        raise ValueError(f"actions must be a list of at least one action, got {actions!r} at {where}")
    for action in actions:
        if not isinstance(action, Mapping) or "child" not in action:
            raise ValueError(f"actions must be objects with the keys 'label' and 'child', got {action!r} at {where}")
    labels = tuple(str(action.get("label", i)) for i, action in enumerate(actions))
    if len(set(labels)) != len(labels):
        raise ValueError(f"actions must have different labels, got {list(labels)} at {where}")
    weights = [math.nan] * len(actions)
    if place["type"] == "chance":
        for i, action in enumerate(actions):
            weight = action.get("prob")
            if not isinstance(weight, int | float) or isinstance(weight, bool):
                raise ValueError(f"prob must be a number for every action of chance, got {weight!r} at {where}")
            weights[i] = float(weight)
    return labels, weights, [action["child"] for action in actions]


def _json_player(place: Mapping[str, Any], players: tuple[str, ...], where: _Where) -> int:
    player = place.get("player", 0 if len(players) == 1 else None)
    if isinstance(player, int) and not isinstance(player, bool) and 0 <= player < len(players):
        return player
    if isinstance(player, str) and player in players:
        return players.index(player)
    raise ValueError(f"player must be one of {list(players)} or an index at every decision, got {player!r} at {where}")
