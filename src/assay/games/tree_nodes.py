"""The nodes of a game tree while it is being read: collected in depth-first order, information sets as they are met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["CHANCE", "LEAF", "InformationSet", "TreeBuilder", "different_infosets", "path_to"]

CHANCE = -1
LEAF = -2


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


class TreeBuilder:
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
        """Add a leaf below ``parent``, reached by its move ``action``."""
        self.leaves.append(self._node(parent, action, chance, LEAF, -1))
        self.payoffs.append(payoffs)

    def chance_node(self, parent: int, action: int, chance: float) -> int:
        """Add a node of chance, and return its index."""
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
        """Add a decision, and return its index; nodes of one ``key`` are in one information set."""
        key = (player, label) if key is None else key
        actions = _distinct(actions)
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
            raise ValueError(different_infosets(self.infosets[infoset], InformationSet(player, label, actions)))
        return self._node(parent, action, chance, player, infoset)

    def path(self, parent: int, action: int) -> str:
        """Where a node will be that is not there yet, for messages."""
        if parent < 0:
            return "the root"
        above = path_to(self.parent, self.player, self.infoset, self.action, self.infosets, parent)
        return f"{above}, then action {action}"

    def columns(self) -> dict[str, Any]:
        """The arguments of a game tree."""
        payoffs = np.zeros((len(self.parent), len(self.players)))
        payoffs[self.leaves] = np.asarray(self.payoffs, dtype=np.float64).reshape(len(self.leaves), -1)
        columns = {
            "parent": np.asarray(self.parent, dtype=np.int64),
            "player": np.asarray(self.player, dtype=np.int64),
            "infoset": np.asarray(self.infoset, dtype=np.int64),
            "action": np.asarray(self.action, dtype=np.int64),
            "chance": np.asarray(self.chance, dtype=np.float64),
            "payoffs": payoffs,
        }
        for column in columns.values():
            column.setflags(write=False)  # nobody else has them: a tree need not copy
        return {"players": self.players, "infosets": tuple(self.infosets), **columns}


def _distinct(actions: tuple[str, ...]) -> tuple[str, ...]:
    """The same names, with a prime for each time that one has occurred before."""
    if len(set(actions)) == len(actions):
        return actions
    names: list[str] = []
    for action in actions:
        while action in names:
            action += "'"
        names.append(action)
    return tuple(names)


def path_to(parent: Any, player: Any, infoset: Any, action: Any, infosets: Sequence[InformationSet], node: int) -> str:
    """How a node is reached, in words: the moves from the root on."""
    moves: list[str] = []
    while parent[node] >= 0:
        above = int(parent[node])
        if player[above] == CHANCE:
            moves.append(f"chance {int(action[node])}")
        else:
            moves.append(infosets[int(infoset[above])].actions[int(action[node])])
        node = above
    return "the node after " + " / ".join(reversed(moves)) if moves else "the root"


def different_infosets(first: InformationSet, second: InformationSet) -> str:
    """The message about two nodes of one information set that cannot be in one."""
    if first.player != second.player:
        return f"infoset {first.label!r} must belong to one player, got {first.player} and {second.player}"
    return (
        f"infoset {first.label!r} must have the same actions at every node, got {list(first.actions)} and "
        f"{list(second.actions)}"
    )
