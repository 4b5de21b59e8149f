"""Logs of Markov games from files and from OpenSpiel. Nothing is unpickled, and sizes are checked first."""

from __future__ import annotations

import itertools
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["episodes_from_open_spiel", "read_archive", "read_npz_log", "read_table_log"]

_COLUMNS = ("h", "s", "a", "b", "r", "s_next")
_MORE = ("horizon", "phi", "episode")
_LARGEST = 2 << 30
# What the readers of archives and tables raise when a file is damaged; objects, which would have to be unpickled, too.
_DAMAGED = (
    ValueError,
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz_log(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Arrays of a NumPy archive: the six columns, and ``horizon``, ``phi`` and ``episode`` where it has them."""
    file = _checked(path, ".npz")
    stored = read_archive(file, (*_COLUMNS, *_MORE), _LARGEST)
    missing = [name for name in _COLUMNS if name not in stored]
    if missing:
        raise ValueError(f"path must have the arrays {', '.join(_COLUMNS)}, got no {', '.join(missing)}: {file}")
    return stored


def read_archive(file: Path, names: Iterable[str], most_bytes: int) -> dict[str, np.ndarray]:
    """Those arrays of a NumPy archive that have the given names; nothing is unpickled.

    Parameters
    ----------
    file : Path
        The archive.
    names : iterable of str
        Names of arrays.
    most_bytes : int
        Largest size of all arrays together that is read.

    Returns
    -------
    dict of str to numpy.ndarray

    Raises
    ------
    ValueError
        If it is no archive, damaged, or too large.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked <= most_bytes:
            with np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in names if name in stored.files}
    except _DAMAGED as error:
        raise ValueError(f"path must be a NumPy archive of numbers, got one that is not: {file} ({error})") from error
    if unpacked > most_bytes:
        raise ValueError(f"path must hold arrays of at most {most_bytes} bytes, got {unpacked} bytes: {file}")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # a member of the archive that is not in NumPy's format comes as bytes
            raise ValueError(f"{name} must be an array in NumPy's format, got another kind of content: {file}")
    return arrays


def read_table_log(path: str | os.PathLike[str], suffix: str) -> dict[str, Any]:
    """Columns of a table, with ``episode`` where it has one."""
    file = _checked(path, suffix)
    try:
        if suffix == ".csv":
            table = pd.read_csv(file, skipinitialspace=True)
        else:
            table = pd.read_parquet(file, engine="pyarrow")
    except _DAMAGED as error:
        raise ValueError(f"path must be a {suffix} table, got one that is not: {file} ({error})") from error
    if suffix == ".csv" and not isinstance(table.index, pd.RangeIndex):  # pandas would shift all columns
        raise ValueError(f"path must have rows of {table.shape[1]} cells as in the header, got longer ones: {file}")
    missing = [name for name in _COLUMNS if name not in table]
    if missing:
        raise ValueError(f"path must have the columns {', '.join(_COLUMNS)}, got no {', '.join(missing)}: {file}")
    if table.empty:
        raise ValueError(f"path must have at least one row, got none: {file}")
    columns = {}
    for name in _COLUMNS:
        if pd.api.types.is_bool_dtype(table[name]):
            raise TypeError(f"{name} must have numbers, got True and False: {file}")
        numbers = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        if name == "s_next":
            ended = table[name].isna().to_numpy()
            numbers = np.where(ended, -1.0, numbers)
        if np.isnan(numbers).any():
            row = int(np.isnan(numbers).argmax())
            raise ValueError(f"{name} must have numbers, got {table[name].iloc[row]} in row {row + 1}: {file}")
        columns[name] = numbers
    if "episode" in table:
        columns["episode"] = table["episode"].to_numpy()
    return columns


def episodes_from_open_spiel(trajectories: Any) -> tuple[dict[str, Any], list[Any]]:
    """Columns of a log, and the labels of the states in the order of their numbers."""
    numbers: dict[Any, int] = {}
    rows: list[tuple[int, int, int, int, float, int, int]] = []
    if not isinstance(trajectories, Iterable):
        raise TypeError(f"trajectories must be a sequence of episodes, got {type(trajectories).__name__}")
    for which, trajectory in enumerate(trajectories):
        if not isinstance(trajectory, Iterable):
            raise TypeError(f"trajectories must have sequences of steps, got {trajectory!r} for episode {which}")
        labels, actions, rewards = _episode(list(trajectory), which)
        try:
            states = [numbers.setdefault(label, len(numbers)) for label in labels]
        except TypeError as error:
            raise TypeError(f"trajectories must have states that can be keys, got {error} in episode {which}") from None
        states += [-1] * (len(actions) + 1 - len(states))
        rows += [
            (t + 1, states[t], *actions[t], rewards[t], states[t + 1] if t + 1 < len(actions) else -1, which)
            for t in range(len(actions))
        ]
    if not rows:
        raise ValueError("trajectories must have at least one episode with one step, got none")
    columns = (np.array(column) for column in zip(*rows, strict=True))
    return dict(zip((*_COLUMNS, "episode"), columns, strict=True)), list(numbers)


def _episode(steps: list[Any], which: int) -> tuple[list[Any], list[tuple[int, int]], list[float]]:
    if all(isinstance(step, Mapping) for step in steps):
        for key in ("state", "actions", "rewards"):
            if any(key not in step for step in steps):
                raise ValueError(
                    f"trajectories must have steps with the key {key!r}, got one without in episode {which}"
                )
        return (
            [_hashable(step["state"]) for step in steps],
            [_pair(step["actions"], which) for step in steps],
            [_reward(step["rewards"], which) for step in steps],
        )
    if not all(isinstance(step, tuple) and len(step) == 2 and hasattr(step[0], "observations") for step in steps):
        raise TypeError(
            f"trajectories must be episodes of mappings or of pairs (time_step, actions), got another kind in {which}"
        )
    if len(steps) < 2 or steps[-1][1] is not None:
        raise ValueError(f"trajectories must end with a pair (time_step, None), got another end in episode {which}")
    labels, actions, rewards = [], [], []
    for (now, moved), (then, _) in itertools.pairwise(steps):
        if moved is None:
            raise ValueError(f"trajectories must have actions before the last time step, got None in episode {which}")
        moves = [_move(move, which) for move in moved]
        mover = int(now.observations["current_player"])
        if mover >= 0:  # turn by turn: one moves and the other waits
            moves = [moves[0], 0] if mover == 0 else [0, moves[0]]
        labels.append(tuple(_hashable(seen) for seen in now.observations["info_state"]))
        actions.append(_pair(moves, which))
        rewards.append(_reward(then.rewards, which))
    return labels, actions, rewards


def _hashable(label: Any) -> Any:
    if hasattr(label, "detach"):
        label = label.detach().cpu().numpy()
    return tuple(np.asarray(label).ravel().tolist()) if isinstance(label, list | np.ndarray) else label


def _pair(actions: Any, which: int) -> tuple[int, int]:
    if np.ndim(actions) != 1 or len(actions) != 2:
        raise ValueError(f"trajectories must have a pair of actions per step, got {actions!r} in episode {which}")
    return _move(actions[0], which), _move(actions[1], which)


def _move(action: Any, which: int) -> int:
    number = action.item() if hasattr(action, "item") else action
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"trajectories must have actions that are integers, got {action!r} in episode {which}")
    return number


def _reward(rewards: Any, which: int) -> float:
    if rewards is None:
        return 0.0
    try:
        both = np.asarray(rewards, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"trajectories must have rewards that are numbers, got {rewards!r} in episode {which}"
        ) from None
    if both.ndim == 0:
        return float(both)
    if both.shape != (2,) or not abs(both.sum()) <= 1e-9:
        raise ValueError(
            f"trajectories must have rewards of two players that sum to 0, got {rewards!r} in episode {which}"
        )
    return float(both[0])


def _checked(path: str | os.PathLike[str], suffix: str) -> Path:
    file = Path(path)
    if file.suffix.lower() != suffix:
        raise ValueError(f"path must end in {suffix}, got {file.name!r}")
    size = file.stat().st_size
    if size == 0 or size > _LARGEST:
        raise ValueError(f"path must be a file of 1 byte to 2 GiB, got {size} bytes: {file}")
    return file
