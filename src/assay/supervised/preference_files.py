"""Read files of preference pairs: JSON lines of log-probabilities, or tables of winners and losers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.validation import check_choice

__all__ = ["read_preference_pairs"]

_LOGPS = ("chosen_logps", "rejected_logps", "reference_chosen_logps", "reference_rejected_logps")
_NUMBERS = (*_LOGPS, "chosen_length", "rejected_length", "margin")
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
_LIMIT = 2 << 30


def read_preference_pairs(path: Any, format: str = "auto") -> pd.DataFrame:
    r"""Read preference pairs.

    Parameters
    ----------
    path : str or path-like
        A file of one of these kinds, at most 2 GiB:

        - JSON lines with ``chosen_logps`` and ``rejected_logps``, optionally ``reference_chosen_logps`` and
          ``reference_rejected_logps``, ``chosen_length``, ``rejected_length``, ``margin``, ``tie`` and, passed on as
          they are, other keys such as ``prompt``, ``chosen`` and ``rejected``;
        - CSV with the columns ``winner`` and ``loser``, indices of items from 0 on, optionally ``margin`` and ``tie``.
          A file with just two columns of whole numbers needs no header.
    format : {"auto", "jsonl", "csv"}, default="auto"
        By default the suffix of the file tells.

    Returns
    -------
    pandas.DataFrame
        One row per pair. Numbers are float64, indices int64, ``tie`` is bool.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it has no pairs, a column is missing, or an entry is not what it should be; the message names the row.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from assay.supervised import read_preference_pairs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pairs.csv")
    ...     _ = path.write_text("winner,loser\n0,2\n1,2\n")
    ...     read_preference_pairs(path)[["winner", "loser"]].to_numpy().tolist()
    [[0, 2], [1, 2]]
    """
    file = Path(path)
    check_choice(format, "format", ("auto", "jsonl", "csv"))
    if format == "auto":
        if file.suffix.lower() not in _FORMATS:
            raise ValueError(f"format must be given for a file with the suffix {file.suffix!r}, got 'auto'")
        format = _FORMATS[file.suffix.lower()]
    size = file.stat().st_size
    if size == 0 or size > _LIMIT:
        raise ValueError(f"path must be a file of 1 byte to 2 GiB, got {size} bytes: {file}")
    table = _read_jsonl(file) if format == "jsonl" else _read_csv(file)
    if table.empty:
        raise ValueError(f"path must have at least one pair, got none: {file}")
    if "tie" in table:
        table["tie"] = _flags(table["tie"])
    for name in _NUMBERS:
        if name in table:
            table[name] = _numbers(table[name], name)
    return table


def _read_jsonl(file: Path) -> pd.DataFrame:
    try:
        table = pd.read_json(file, lines=True, precise_float=True, dtype=False)
    except ValueError as error:
        raise ValueError(f"path must be a file of JSON lines, got one that is not: {file} ({error})") from error
    missing = [name for name in _LOGPS[:2] if name not in table]
    if missing:
        raise ValueError(f"path must have the keys {', '.join(_LOGPS[:2])}, got none of {', '.join(missing)}: {file}")
    return table


def _read_csv(file: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(file, skipinitialspace=True)
        if len(table.columns) == 2 and all(str(name).strip().isdecimal() for name in table.columns):
            table = pd.read_csv(file, header=None, names=["winner", "loser"], skipinitialspace=True)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"path must be a CSV file, got one that is not: {file} ({error})") from error
    missing = [name for name in ("winner", "loser") if name not in table]
    if missing:
        raise ValueError(f"path must have the columns winner and loser, got no {', '.join(missing)}: {file}")
    for name in ("winner", "loser"):
        numbers = _numbers(table[name], name)
        _refuse(numbers, (numbers < 0) | (numbers != np.floor(numbers)), name, "indices from 0 on")
        table[name] = numbers.astype(np.int64)
    same = (table["winner"] == table["loser"]).to_numpy()
    _refuse(table["winner"].to_numpy(), same, "winner", "another item than the loser")
    return table


def _numbers(column: pd.Series, name: str) -> np.ndarray:
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    _refuse(column.to_numpy(), ~np.isfinite(numbers), name, "finite numbers")
    return numbers


def _flags(column: pd.Series) -> np.ndarray:
    # 1 and 0 are equal to True and False, as keys too.
    values = column.map({True: True, False: False, "true": True, "false": False, "True": True, "False": False})
    _refuse(column.to_numpy(), values.isna().to_numpy(), "tie", "true or false")
    return values.to_numpy(dtype=bool)


def _refuse(column: np.ndarray, bad: np.ndarray, name: str, accepted: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{name} must have {accepted}, got {column[row]!r} in pair {row}")
