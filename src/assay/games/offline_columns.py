"""Checks of what a log is made of: integers, states that are numbers or vectors of features, rewards, episodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.validation import as_float_array, check_integer

__all__ = [
    "as_action_counts",
    "as_episodes",
    "as_integers",
    "as_names",
    "as_rewards",
    "as_states",
    "check_range",
]

# Integers that float64 has.
_LARGEST_INTEGER = 2**53


def as_integers(
    column: ArrayLike, name: str, low: int, high: int | None = None, accepted: str = "numbers from 0 on"
) -> Int[np.ndarray, " samples"]:
    """Check a column of integers, or of floats that are whole.

    Parameters
    ----------
    column : array_like of shape (n,)
        The column.
    name : str
        Name of the argument, for messages.
    low, high : int
        Smallest and largest number; None is no limit.
    accepted : str
        The range in words.

    Returns
    -------
    numpy.ndarray of shape (n,)

    Raises
    ------
    TypeError, ValueError
        If it is not such a column.
    """
    numbers = as_float_array(column, name, ndim=1)
    dtype = str(getattr(column, "dtype", "") or np.asarray(column).dtype)
    if "bool" in dtype or (numbers != np.floor(numbers)).any():
        raise TypeError(f"{name} must be a vector of integers, got dtype {dtype}")
    if abs(numbers).max() > _LARGEST_INTEGER:
        raise ValueError(f"{name} must have {accepted}, got {numbers[abs(numbers).argmax()]:g}, which is too large")
    return check_range(numbers.astype(np.int64), name, low, high, accepted)


def check_range(
    array: Int[np.ndarray, " samples"], name: str, low: int, high: int | None, accepted: str
) -> Int[np.ndarray, " samples"]:
    """Refuse numbers outside of a range; the message has the first one."""
    outside = array < low if high is None else (array < low) | (array > high)
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(f"{name} must have {accepted}, got {array[row]} in sample {row}")
    return array


def as_states(
    s: Any, s_next: Any, ended: int
) -> tuple[Float[np.ndarray, "states features"] | None, Int[np.ndarray, " samples"], Int[np.ndarray, " successors"]]:
    """Features of the distinct states, or None, and the numbers of states and next states.

    Parameters
    ----------
    s, s_next : array_like of shape (n,) or (n, n_features)
        Numbers, or vectors of features; a row of nan in ``s_next`` is the end of an episode.
    ended : int
        Number of the end.

    Returns
    -------
    features : numpy.ndarray of shape (n_states, n_features), or None
    states, successors : numpy.ndarray of shape (n,)

    Raises
    ------
    TypeError, ValueError
        If they are neither, or not of the same shape.
    """
    before = as_float_array(s, "s", ndim=(1, 2))
    if before.ndim == 1:
        states = as_integers(s, "s", 0, None, "states from 0 on")
        return None, states, as_integers(s_next, "s_next", ended, None, "states from 0 on, or -1")
    after = _with_gaps(s_next, before.shape)
    over = np.isnan(after).all(axis=1)
    after = as_float_array(after[~over], "s_next", ndim=2, allow_empty=True)
    features, numbers = np.unique(np.concatenate((before, after)), axis=0, return_inverse=True)
    numbers = numbers.ravel().astype(np.int64)
    successors = np.full(len(over), ended, dtype=np.int64)
    successors[~over] = numbers[len(before) :]
    return features, numbers[: len(before)], successors


def _with_gaps(s_next: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Vectors of features in which nan is meaningful."""
    if hasattr(s_next, "detach"):
        s_next = s_next.detach().cpu()
        s_next = (s_next.float() if "bfloat16" in str(s_next.dtype) else s_next).numpy()
    try:
        after = np.asarray(s_next, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"s_next must be an array of numbers of shape {shape}, got other objects") from error
    if after.ndim != 2 or after.shape[1] != shape[1]:
        raise ValueError(f"s_next must be of the shape of s, {shape}, got {after.shape}")
    return after


def as_rewards(
    r: Float[np.ndarray, " samples"], rescale: Any, ends_early: bool
) -> tuple[Float[np.ndarray, " samples"], float, float]:
    """Rewards in [0, 1], and where 0 of them lies and how long 1 is in the original units.

    Parameters
    ----------
    r : numpy.ndarray of shape (n,)
        Rewards.
    rescale : bool
        Whether to map rewards outside of [0, 1] to it.
    ends_early : bool
        Whether some episode ends before the horizon, after which it receives nothing.

    Returns
    -------
    rewards : numpy.ndarray of shape (n,)
    low, scale : float

    Raises
    ------
    TypeError, ValueError
        If rewards are outside of [0, 1] and may not be mapped, or are further apart than a float can be.
    """
    if not isinstance(rescale, bool | np.bool_):
        raise TypeError(f"rescale must be True or False, got {rescale!r}")
    low, high = float(r.min()), float(r.max())
    if low >= 0 and high <= 1:
        return r, 0.0, 1.0
    if not rescale:
        raise ValueError(f"r must be in [0, 1] unless rescale=True, got rewards from {low:.15g} to {high:.15g}")
    if ends_early:  # then nothing, which ended episodes receive, must be in the range too
        low, high = min(low, 0.0), max(high, 0.0)
    scale = high - low if high > low else 1.0
    if not np.isfinite(scale):
        raise ValueError(f"r must have a range below 1.8e308, got rewards from {low:g} to {high:g}")
    return np.clip((r - low) / scale, 0.0, 1.0), low, scale


def as_action_counts(n_actions: Any) -> tuple[int, int]:
    """Numbers of actions of both players."""
    try:
        rows, columns = n_actions
    except (TypeError, ValueError):
        raise TypeError(f"n_actions must be a pair of integers, got {n_actions!r}") from None
    return check_integer(rows, "n_actions", minimum=1), check_integer(columns, "n_actions", minimum=1)


def as_names(names: Any, n_states: int) -> list[Hashable]:
    """One label per state."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"state_names must be a sequence of {n_states} labels, got {names!r}")
    names = list(names)
    if len(names) != n_states:
        raise ValueError(f"state_names must have one label per state, {n_states}, got {len(names)}")
    return names


def as_episodes(episode: Any) -> Int[np.ndarray, " samples"]:
    """Numbers of episodes, from 0 on in the order in which they occur."""
    try:
        labels = np.asarray(episode.detach().cpu() if hasattr(episode, "detach") else episode)
    except ValueError as error:
        raise ValueError("episode must be a vector of numbers or names, got rows of different lengths") from error
    if labels.ndim != 1:
        raise ValueError(f"episode must be a vector of numbers or names, got shape {labels.shape}")
    if bool(pd.isna(labels).any()):
        raise ValueError(f"episode must have no gaps, got nan or None in sample {int(pd.isna(labels).argmax())}")
    return pd.factorize(labels)[0].astype(np.int64)
