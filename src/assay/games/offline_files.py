"""Logs of Markov games from files and from OpenSpiel. Nothing is unpickled, and sizes are checked first."""

from __future__ import annotations

import itertools
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["episodes_from_open_spiel", "read_npz_log", "read_table_log"]

_COLUMNS = ("h", "s", "a", "b", "r", "s_next")
_LARGEST = 2 << 30


def read_npz_log(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Arrays of a NumPy archive: the six columns, and ``horizon`` and ``phi`` where it has them."""
    file = _checked(path, ".npz")
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > _LARGEST:
            raise ValueError(f"path must hold arrays of at most 2 GiB, got {unpacked} bytes: {file}")
        with np.load(file, allow_pickle=False) as stored:
            missing = [name for name in _COLUMNS if name not in stored.files]
            if missing:
                raise ValueError(
                    f"path must have the arrays {', '.join(_COLUMNS)}, got no {', '.join(missing)}: {file}"
                )
            return {name: stored[name] for name in (*_COLUMNS, "horizon", "phi") if name in stored.files}
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"path must be a NumPy archive, got one that is not: {file} ({error})") from error


def read_table_log(path: str | os.PathLike[str], suffix: str) -> dict[str, Any]:
    """Columns of a table; rows of an episode are in the order of its steps."""
    file = _checked(path, suffix)
    try:
        table = pd.read_csv(file) if suffix == ".csv" else pd.read_parquet(file, engine="pyarrow")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError, ValueError) as error:
        raise ValueError(f"path must be a {suffix} table, got one that is not: {file} ({error})") from error
    missing = [name for name in _COLUMNS if name not in table]
    if missing:
        raise ValueError(f"path must have the columns {', '.join(_COLUMNS)}, got no {', '.join(missing)}: {file}")
    if table.empty:
        raise ValueError(f"path must have at least one row, got none: {file}")
    columns = {}
    for name in _COLUMNS:
        numbers = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        if name == "s_next":
            ended = table[name].isna().to_numpy()
            numbers = np.where(ended, -1.0, numbers)
        if np.isnan(numbers).any():
            row = int(np.isnan(numbers).argmax())
            raise ValueError(f"{name} must have numbers, got {table[name].iloc[row]!r} in row {row + 1}: {file}")
        columns[name] = numbers
    return columns


def episodes_from_open_spiel(trajectories: Iterable[Iterable[Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Columns of a log, and the labels of the states in the order of their numbers."""
    numbers: dict[Any, int] = {}
    rows: list[tuple[int, int, int, int, float, int]] = []
    for which, trajectory in enumerate(trajectories):
        labels, actions, rewards = _episode(list(trajectory), which)
        states = [numbers.setdefault(label, len(numbers)) for label in labels]
        states += [-1] * (len(actions) + 1 - len(states))
        rows += [
            (t + 1, states[t], *actions[t], rewards[t], states[t + 1] if t + 1 < len(actions) else -1)
            for t in range(len(actions))
        ]
    if not rows:
        raise ValueError("trajectories must have at least one episode with one step, got none")
    columns = (np.array(column) for column in zip(*rows, strict=True))
    return dict(zip(_COLUMNS, columns, strict=True)), list(numbers)


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
        moves = [int(move) for move in moved]
        mover = int(now.observations["current_player"])
        if mover >= 0:  # turn by turn: one moves and the other waits
            moves = [moves[0], 0] if mover == 0 else [0, moves[0]]
        labels.append(tuple(_hashable(seen) for seen in now.observations["info_state"]))
        actions.append(_pair(moves, which))
        rewards.append(_reward(then.rewards, which))
    return labels, actions, rewards


def _hashable(label: Any) -> Any:
    return tuple(np.asarray(label).ravel().tolist()) if isinstance(label, list | np.ndarray) else label


def _pair(actions: Any, which: int) -> tuple[int, int]:
    if len(actions) != 2:
        raise ValueError(f"trajectories must have a pair of actions per step, got {actions!r} in episode {which}")
    return int(actions[0]), int(actions[1])


def _reward(rewards: Any, which: int) -> float:
    if rewards is None:
        return 0.0
    if np.ndim(rewards) == 0:
        return float(rewards)
    if len(rewards) != 2 or abs(rewards[0] + rewards[1]) > 1e-9:
        raise ValueError(f"trajectories must have rewards of two players that sum to 0, got {rewards!r} in {which}")
    return float(rewards[0])


def _checked(path: str | os.PathLike[str], suffix: str) -> Path:
    file = Path(path)
    if file.suffix.lower() != suffix:
        raise ValueError(f"path must end in {suffix}, got {file.name!r}")
    size = file.stat().st_size
    if size == 0 or size > _LARGEST:
        raise ValueError(f"path must be a file of 1 byte to 2 GiB, got {size} bytes: {file}")
    return file
