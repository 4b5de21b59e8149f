"""Points and moments from files of the user's own: csv and npz, read without pickle and checked before use."""

from __future__ import annotations

import zipfile
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

__all__ = ["read_moments", "read_points"]

# Larger files are refused before they are opened.
_LARGEST = 2**31


def read_points(path: str | PathLike[str]) -> pd.DataFrame:
    """Read one point per row from a csv file, with or without names of columns.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    pandas.DataFrame
        Its columns; whether they are numbers is for the caller to check.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is empty, or it is larger than 2 GiB.
    """
    file = _checked_file(path)
    # A file without names of columns has numbers in its first row.
    first = pd.read_csv(file, header=None, nrows=1)
    named = any(not pd.api.types.is_numeric_dtype(column) for column in first.dtypes)
    return pd.read_csv(file, header=0 if named else None)


def read_moments(path: str | PathLike[str]) -> dict[tuple[int, ...], float]:
    """Read moments from an npz file.

    Parameters
    ----------
    path : path
        The file, with an array ``moments`` of shape (n,) and, for more than one dimension, an array of whole numbers
        ``exponents`` of shape (n, dim); without it the moments are those of degrees 0, 1, 2, ... in one dimension.

    Returns
    -------
    dict
        From tuples of exponents to moments.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is not an npz file of plain arrays, larger than 2 GiB, or the arrays do not fit.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from assay.transport.sample_files import read_moments
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "moments.npz"
    ...     np.savez(file, moments=[1.0, 0.0, 0.5], exponents=[[0, 0], [1, 0], [1, 1]])
    ...     read_moments(file)
    {(0, 0): 1.0, (1, 0): 0.0, (1, 1): 0.5}
    """
    file = _checked_file(path)
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with archive:
            arrays = {name: archive[name] for name in archive.files if name in ("moments", "exponents")}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"moments must be in an npz file of plain arrays, got {file.name}: {error}") from error
    if "moments" not in arrays:
        raise ValueError(f"moments must be in an array 'moments', got none in {file.name}")
    values = _as_numbers(arrays["moments"], "moments")
    exponents = arrays.get("exponents", np.arange(values.size)[:, None])
    if values.ndim != 1 or exponents.ndim != 2 or len(exponents) != len(values):
        raise ValueError(
            "moments must have shape (n,) and exponents shape (n, dim), "
            f"got {values.shape} and {exponents.shape} in {file.name}"
        )
    if not np.issubdtype(exponents.dtype, np.integer) or exponents.min(initial=0) < 0:
        raise ValueError(f"exponents must be whole numbers of 0 or more, got dtype {exponents.dtype} in {file.name}")
    keys = [tuple(row) for row in exponents.tolist()]
    if len(set(keys)) < len(keys):
        raise ValueError(f"exponents must be different from one another, got one twice in {file.name}")
    return dict(zip(keys, values.tolist(), strict=True))


def _as_numbers(values: np.ndarray, name: str) -> np.ndarray:
    if not (np.issubdtype(values.dtype, np.floating) or np.issubdtype(values.dtype, np.integer)):
        raise ValueError(f"{name} must be real numbers, got dtype {values.dtype}")
    return values.astype(np.float64)


def _checked_file(path: str | PathLike[str]) -> Path:
    file = Path(path)
    size = file.stat().st_size
    if size > _LARGEST:
        raise ValueError(f"{file.name} must be at most {_LARGEST} bytes, got {size}")
    return file
