"""What makes flat arrays a game tree: one root, parents first, moves and information sets that fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.games.tree_nodes import CHANCE, LEAF, InformationSet, different_infosets, path_to

__all__ = ["as_columns", "check_tree"]

_INTEGERS = ("parent", "player", "infoset", "action")
# Beyond, the sum of two payoffs may overflow.
_LARGEST_PAYOFF = 1e300


def as_columns(columns: dict[str, Any]) -> dict[str, np.ndarray]:
    """Read-only arrays; copies of what is not read-only yet.

    Parameters
    ----------
    columns : dict
        The fields of a :class:`~assay.games.game_tree.GameTree` that have a row per node.

    Returns
    -------
    dict of str to numpy.ndarray

    Raises
    ------
    TypeError, ValueError
        If one is not an array of numbers, or they differ in length.
    """
    checked: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        array = np.asarray(column)
        kind = "integers" if name in _INTEGERS else "numbers"
        if array.dtype.kind not in ("iu" if name in _INTEGERS else "iuf"):
            raise TypeError(f"{name} must be an array of {kind}, got dtype {array.dtype}")
        dims = 2 if name == "payoffs" else 1
        if array.ndim != dims:
            raise ValueError(f"{name} must be a {dims}-D array, got shape {array.shape}")
        dtype = np.int64 if name in _INTEGERS else np.float64
        if array.dtype != dtype or array.flags.writeable:
            array = np.array(array, dtype=dtype)
            array.setflags(write=False)
        checked[name] = array
    lengths = {name: len(array) for name, array in checked.items()}
    if len(set(lengths.values())) > 1 or not lengths["parent"]:
        raise ValueError(f"arrays of nodes must be of one length, at least 1, got {lengths}")
    return checked


def check_tree(
    players: tuple[str, ...],
    infosets: tuple[InformationSet, ...],
    parent: Int[np.ndarray, " nodes"],
    player: Int[np.ndarray, " nodes"],
    infoset: Int[np.ndarray, " nodes"],
    action: Int[np.ndarray, " nodes"],
    chance: Float[np.ndarray, " nodes"],
    payoffs: Float[np.ndarray, "nodes players"],
) -> None:
    """Refuse what is not a tree.

    Parameters
    ----------
    players, infosets, parent, player, infoset, action, chance, payoffs
        The fields of a :class:`~assay.games.game_tree.GameTree`.

    Raises
    ------
    ValueError
        With the node in question.
    """
    _check_names(players, infosets)
    _check_shape(parent, player, action)
    _check_infosets(infosets, parent, player, infoset, action)

    def where(node: int) -> str:
        return path_to(parent, player, infoset, action, infosets, node)

    if payoffs.shape[1] != len(players):
        raise ValueError(f"payoffs must have one column per player, {len(players)}, got {payoffs.shape[1]}")
    bad = ~np.isfinite(payoffs).all(axis=1)
    if bad.any():
        node = int(bad.argmax())
        raise ValueError(f"payoffs must be finite, got {payoffs[node].tolist()} at {where(node)}")
    bad = np.abs(payoffs).max(axis=1) > _LARGEST_PAYOFF
    if bad.any():
        node = int(bad.argmax())
        raise ValueError(
            f"payoffs must be of size at most {_LARGEST_PAYOFF:g}, got {payoffs[node].tolist()} at {where(node)}"
        )
    bad = (player != LEAF) & (payoffs != 0).any(axis=1)
    if bad.any():
        raise ValueError(
            f"payoffs must be 0 at inner nodes, got {payoffs[bad][0].tolist()} at {where(int(bad.argmax()))}"
        )
    _check_chance(parent, player, chance, where)


def _check_names(players: tuple[str, ...], infosets: tuple[InformationSet, ...]) -> None:
    if not players or len(set(players)) != len(players):
        raise ValueError(f"players must have different names, got {list(players)}")
    if not infosets:
        raise ValueError("tree must have a decision of some player, got one of depth 0 or with chance moves only")
    labels: set[str] = set()
    for one in infosets:
        if not 0 <= one.player < len(players):
            raise ValueError(f"infoset {one.label!r} must be of a player below {len(players)}, got {one.player}")
        if one.label in labels:
            raise ValueError(f"infosets must have different labels, got {one.label!r} twice")
        if not one.actions or len(set(one.actions)) != len(one.actions):
            raise ValueError(f"infoset {one.label!r} must have different actions, got {list(one.actions)}")
        labels.add(one.label)


def _check_shape(
    parent: Int[np.ndarray, " nodes"], player: Int[np.ndarray, " nodes"], action: Int[np.ndarray, " nodes"]
) -> None:
    """One root, parents first, and the moves of every inner node numbered from 0 on."""
    n = len(parent)
    bad = (parent < 0) | (parent >= np.arange(n))
    bad[0] = parent[0] != -1
    if bad.any():
        node = int(bad.argmax())
        raise ValueError(
            f"parent must be -1 at node 0 and an earlier node elsewhere, got {parent[node]} at node {node}"
        )
    children = np.bincount(parent[1:], minlength=n)
    bad = (children == 0) != (player == LEAF)
    if bad.any():
        node = int(bad.argmax())
        raise ValueError(
            f"player must be {LEAF} exactly where there are no moves, got {player[node]} at node {node} "
            f"with {children[node]} of them"
        )
    first = np.cumsum(children) - children
    within = (action[1:] >= 0) & (action[1:] < children[parent[1:]])
    places = np.bincount((first[parent[1:]] + action[1:])[within], minlength=max(n - 1, 1))
    if not within.all() or (places[: n - 1] != 1).any() or action[0] != -1:
        raise ValueError("action must be -1 at node 0 and number the moves of every other node from 0 on")


def _check_infosets(
    infosets: tuple[InformationSet, ...],
    parent: Int[np.ndarray, " nodes"],
    player: Int[np.ndarray, " nodes"],
    infoset: Int[np.ndarray, " nodes"],
    action: Int[np.ndarray, " nodes"],
) -> None:
    decides = player >= 0
    bad = np.where(decides, (infoset < 0) | (infoset >= len(infosets)), infoset != -1) | (player < LEAF)
    if bad.any():
        node = int(bad.argmax())
        raise ValueError(
            f"infoset must be from 0 to {len(infosets) - 1} at decisions and -1 elsewhere, got {infoset[node]} at node "
            f"{node} of player {player[node]}"
        )
    owner = np.array([one.player for one in infosets])
    size = np.array([len(one.actions) for one in infosets])
    children = np.bincount(parent[1:], minlength=len(parent))
    here = np.flatnonzero(decides)
    bad = (owner[infoset[here]] != player[here]) | (size[infoset[here]] != children[here])
    if bad.any():
        node = int(here[bad.argmax()])
        one = infosets[infoset[node]]
        if one.player != player[node]:
            raise ValueError(different_infosets(one, InformationSet(int(player[node]), one.label, one.actions)))
        where = path_to(parent, player, infoset, action, infosets, node)
        raise ValueError(
            f"infoset {one.label!r} must have {len(one.actions)} actions at every node, got {children[node]} at {where}"
        )
    used = np.bincount(infoset[here], minlength=len(infosets))
    if not used.all():
        raise ValueError(f"infosets must all have nodes, got none of {infosets[int(used.argmin())].label!r}")


def _check_chance(
    parent: Int[np.ndarray, " nodes"],
    player: Int[np.ndarray, " nodes"],
    chance: Float[np.ndarray, " nodes"],
    where: Any,
) -> None:
    drawn = np.append(False, player[parent[1:]] == CHANCE)
    bad = np.where(drawn, ~(chance >= 0), chance != 1)
    if bad.any():
        node = int(bad.argmax())
        accepted = "chance probabilities must be >= 0" if drawn[node] else "chance must be 1 below players"
        raise ValueError(f"{accepted}, got {chance[node]} at {where(node)}")
    inner = np.flatnonzero(player == CHANCE)
    totals = np.bincount(parent[drawn], weights=chance[drawn], minlength=len(parent))[inner]
    off = ~(np.abs(totals - 1) <= 1e-9)
    if off.any():
        raise ValueError(
            f"chance probabilities must sum to 1 at every chance node, got {totals[off][0]:.12g} at "
            f"{where(int(inner[off][0]))}"
        )
