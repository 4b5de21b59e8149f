"""A game in extensive form as flat arrays, whatever library or file it comes from.

OpenSpiel, Gambit and JSON files each describe the same object: a tree whose inner nodes belong to chance or to a
player, whose decision nodes are grouped into information sets, and whose leaves pay. Here it is a handful of arrays
over the nodes in depth-first order, parents before children, so that what flows down the tree (probabilities of being
reached) or up (values) is one pass over an array. Solvers build their own form from it and need to know no reader.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.games.tree_checks import as_columns, check_tree
from assay.games.tree_nodes import CHANCE, LEAF, InformationSet, different_infosets, path_to
from assay.games.tree_readers import read_file, read_gambit, read_json, read_openspiel
from assay.validation import as_float_array, check_integer

__all__ = ["CHANCE", "LEAF", "GameTree", "InformationSet"]

_COLUMNS = ("parent", "player", "infoset", "action", "chance", "payoffs")
_MOST_NODES = 5_000_000
# What solvers may leave of a sum of probabilities.
_MASS_TOLERANCE = 1e-6


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
    TypeError
        If an array is not of numbers.
    ValueError
        If the arrays are not those of a tree; if an information set has nodes with different actions, or of different
        players; if the probabilities of a chance node are negative or do not sum to one; if a payoff is not finite, or
        larger than 1e300; if nobody ever moves.

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
        columns = as_columns({name: getattr(self, name) for name in _COLUMNS})
        for name, column in columns.items():
            object.__setattr__(self, name, column)
        check_tree(self.players, self.infosets, **columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.players, self.infosets, *(getattr(self, name) for name in _COLUMNS))

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
            ``legal_actions``; a prime tells apart what OpenSpiel gives one name.

        Raises
        ------
        MissingExtraError
            If OpenSpiel is not installed.
        TypeError
            If it is neither a game nor a name.
        ValueError
            If OpenSpiel does not know the name, the tree is too large, or the game has sampled chance or no
            information states.
        """
        return cls(**read_openspiel(game, check_integer(max_nodes, "max_nodes", minimum=1)).columns())

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
        return cls(**read_gambit(game, check_integer(max_nodes, "max_nodes", minimum=1)).columns())

    @classmethod
    def from_json(cls, source: Any, *, max_nodes: int = _MOST_NODES) -> GameTree:
        """Read a tree that is written out in JSON.

        Parameters
        ----------
        source : str, path-like or dict
            A file, or its content, with strings or integers for names: ``{"players": [names], "root": node}``, where a
            node is one of

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
        TypeError
            If it is neither a path nor a dict.
        ValueError
            If the content is not such a tree; the message says at which node.
        """
        return cls(**read_json(source, check_integer(max_nodes, "max_nodes", minimum=1)).columns())

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
        return cls(**read_file(path, check_integer(max_nodes, "max_nodes", minimum=1)).columns())

    # ------------------------------------------------------------------ what can be asked of it

    def path(self, node: int) -> str:
        """How a node is reached: the actions from the root, for messages."""
        return path_to(self.parent, self.player, self.infoset, self.action, self.infosets, node)

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
        TypeError, ValueError
            If there are not as many distributions as information sets, or one has the wrong length, a negative number,
            or a sum that is not 1 within 1e-6.
        """
        if isinstance(strategy, Mapping) or not hasattr(strategy, "__len__"):
            raise TypeError(f"strategy must be a sequence of distributions, got {type(strategy).__name__}")
        if len(strategy) != len(self.infosets):
            raise ValueError(f"strategy must have {len(self.infosets)} distributions, got {len(strategy)}")
        local = []
        for infoset, given in zip(self.infosets, strategy, strict=True):
            name = f"strategy at {infoset.label!r}"
            row = as_float_array(given, name, ndim=1)
            if row.shape != (len(infoset.actions),):
                raise ValueError(f"{name} must have shape ({len(infoset.actions)},), got {row.shape}")
            if row.min() < -_MASS_TOLERANCE or abs(row.sum() - 1) > _MASS_TOLERANCE:
                raise ValueError(f"{name} must be non-negative and sum to 1 (within 1e-6), got {row.tolist()}")
            local.append(row)
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
        TypeError
            If ``label`` is no function.
        ValueError
            If information sets with different actions, or of different players, are given one label.
        """
        if not callable(label):
            raise TypeError(f"label must be a function from labels to labels, got {type(label).__name__}")
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
                raise ValueError(different_infosets(joined[names[name]], new))
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
