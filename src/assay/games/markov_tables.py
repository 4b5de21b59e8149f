"""Transitions written out as lists, the way gymnasium's toy-text environments keep them, as matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float

__all__ = ["read_transition_lists"]


def read_transition_lists(table: Any) -> tuple[int, sp.csr_array, Float[np.ndarray, "states rows columns"]]:
    """Matrices of ``table[s][a, b]``, lists of ``(probability, next state, reward, ended)``.

    Parameters
    ----------
    table : mapping
        See :meth:`~assay.games.markov_model.MarkovGameModel.from_transition_lists`.

    Returns
    -------
    n_listed : int
        Number of states of the table; after them comes an absorbing one if any transition ends the game.
    P : scipy.sparse.csr_array of shape (n_states * A * B, n_states)
    rewards : numpy.ndarray of shape (n_states, A, B)

    Raises
    ------
    TypeError, ValueError
        If it is no such table.
    """
    n_listed, (n_rows, n_columns) = _check_table(table)
    entries = [
        (s, a, b, *_as_transition(entry, s, n_listed))
        for s in range(n_listed)
        for (a, b), listed in table[s].items()
        for entry in listed
    ]
    ends = any(entry[-1] for entry in entries)
    n_states = n_listed + ends
    rewards = np.zeros((n_states, n_rows, n_columns))
    rows, columns, chances = [], [], []
    for s, a, b, chance, successor, reward, ended in entries:
        rewards[s, a, b] += chance * reward
        rows.append((s * n_rows + a) * n_columns + b)
        columns.append(n_listed if ended else successor)
        chances.append(chance)
    for pair in range(n_rows * n_columns if ends else 0):
        rows.append(n_listed * n_rows * n_columns + pair)
        columns.append(n_listed)
        chances.append(1.0)
    P = sp.csr_array((chances, (rows, columns)), shape=(n_states * n_rows * n_columns, n_states), dtype=np.float64)
    return n_listed, P, rewards


def _check_table(table: Any) -> tuple[int, tuple[int, int]]:
    """Number of states of a table of transitions, and of actions of both players."""
    if not isinstance(table, Mapping) or not all(isinstance(actions, Mapping) for actions in table.values()):
        raise TypeError("table must be a mapping from states to mappings from pairs of actions to lists")
    if not table or set(table) != set(range(len(table))):
        accepted = f"the states 0 to {len(table) - 1}" if table else "at least one state, numbered from 0 on"
        raise ValueError(f"table must have {accepted}, got {list(table)[:5]}")
    for pair in table[0]:
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(k, int | np.integer) for k in pair):
            raise TypeError(f"table must have pairs of integers as actions, got {pair!r} in state 0")
    n_rows, n_columns = (1 + max((int(pair[k]) for pair in table[0]), default=0) for k in (0, 1))
    pairs = {(a, b) for a in range(n_rows) for b in range(n_columns)}
    for s, actions in table.items():
        if set(actions) != pairs:
            raise ValueError(f"table must have all {n_rows} x {n_columns} pairs of actions in state {s}")
    return len(table), (n_rows, n_columns)


def _as_transition(entry: Any, s: int, n_listed: int) -> tuple[float, int, float, bool]:
    try:
        chance, successor, reward, ended = entry
        chance, reward, whole = float(chance), float(reward), int(successor)
    except (TypeError, ValueError):
        raise TypeError(
            f"table must have entries (probability, next state, reward, ended), got {entry!r} in state {s}"
        ) from None
    if whole != successor or not 0 <= whole < n_listed:
        raise ValueError(f"table must have next states in 0 to {n_listed - 1}, got {successor} in state {s}")
    if not chance >= 0:
        raise ValueError(f"table must have probabilities that are not negative, got {chance:g} in state {s}")
    return chance, whole, reward, bool(ended)
