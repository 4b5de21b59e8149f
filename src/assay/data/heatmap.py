"""Edge scores from a file: a matrix, or a list of edges."""

from __future__ import annotations

import io
import tokenize
import zipfile
import zlib
from os import PathLike
from pathlib import Path

import numpy as np
import scipy.sparse
from jaxtyping import Float

from assay.validation import as_float_array, check_integer

__all__ = ["read_heatmap"]

_MOST_CITIES_WITH_MATRIX = 20_000
_MOST_CITIES = 10_000_000
_MOST_BYTES = 4 * 2**30
# What the reader of archives raises on a file that is one at first sight; among it are seeks to where nothing is.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, UnicodeDecodeError)


def read_heatmap(
    path: str | PathLike[str], *, n: int | None = None
) -> Float[np.ndarray, "cities cities"] | scipy.sparse.csr_array:
    r"""Read edge scores.

    Parameters
    ----------
    path : path-like
        - ``.npy``: a square matrix. Its diagonal, which means nothing, is set to 0.
        - ``.npz``: a square matrix ``p``, or vectors ``i``, ``j`` and ``p`` (city, city, score), optionally ``n``.
        - ``.csv``: columns i, j, p, with or without that header; lines that start with ``#`` are skipped.

        Cities are numbered from 0, also when the cities themselves come from a TSPLIB file, which counts from 1.
    n : int, optional
        Number of cities; for a list of edges otherwise the ``n`` of the file or, without it, the largest city plus 1.

    Returns
    -------
    numpy.ndarray of shape (n, n), or scipy.sparse.csr_array of shape (n, n)
        Dense for a matrix, sparse for a list of edges: upper triangular when each is listed in one direction only, and
        as listed otherwise. Scores are finite; that they are in [0, 1] is checked where they are used.

    Raises
    ------
    OSError
        If the file cannot be read.
    TypeError, ValueError
        If the file has another suffix, is too large, or is not in the format.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from assay.data.heatmap import read_heatmap
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "scores.csv")
    ...     _ = path.write_text("i,j,p\n0,1,0.9\n1,2,0.5\n")
    ...     read_heatmap(path, n=4).shape
    (4, 4)
    """
    source = Path(path)
    if n is not None:
        n = check_integer(n, "n", minimum=1)
    size = source.stat().st_size
    if size > _MOST_BYTES:
        raise ValueError(f"{source}: the file has {size} bytes, at most {_MOST_BYTES} are read")
    if source.suffix == ".npy":
        with source.open("rb") as stream:
            _check_header(stream, str(source))
            stream.seek(0)
            try:
                matrix = np.load(stream, allow_pickle=False)
            except ValueError as error:  # shorter than its header says
                raise ValueError(f"{source}: not an array of numpy: {error}") from None
        return _square(matrix, n, str(source))
    if source.suffix == ".npz":
        return _read_archive(source, n)
    if source.suffix == ".csv":
        return _edges(*_read_rows(source), n, str(source))
    raise ValueError(f"{source}: a heatmap must be a .npy, .npz or .csv file, got {source.suffix!r}")


def _check_header(stream: io.BufferedIOBase | zipfile.ZipExtFile, where: str) -> None:
    """Shape and type, before any of the array is read."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except (ValueError, SyntaxError, tokenize.TokenError) as error:  # numpy parses the header as a Python literal
        raise ValueError(f"{where}: not an array of numpy: {error}") from None
    if dtype.hasobject:
        raise ValueError(f"{where}: an array of numbers is needed, got objects, which are not read")
    if int(np.prod(shape, dtype=float)) * dtype.itemsize > _MOST_BYTES:
        raise ValueError(f"{where}: an array of shape {shape} is too large")


def _read_archive(source: Path, n: int | None) -> Float[np.ndarray, "cities cities"] | scipy.sparse.csr_array:
    where = str(source)
    with source.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.namelist():
                    with archive.open(member) as stream:
                        _check_header(stream, f"{where}: {member}")
        except _DAMAGED as error:
            raise ValueError(f"{where}: not an archive of numpy: {error}") from None
        try:
            with np.lib.npyio.NpzFile(file, allow_pickle=False) as arrays:
                content = {name: arrays[name] for name in arrays.files}
        except (ValueError, *_DAMAGED) as error:
            raise ValueError(f"{where}: not an archive of numpy: {error}") from None
    if "p" not in content:
        raise ValueError(f"{where}: must have p, or i, j and p, got {sorted(content)}")
    if "i" not in content and "j" not in content:
        return _square(content["p"], n, where)
    if "i" not in content or "j" not in content:
        raise ValueError(f"{where}: must have both i and j beside p, got {sorted(content)}")
    if n is None and "n" in content:
        if content["n"].ndim != 0 or content["n"].dtype.kind not in "iu" or content["n"] < 1:
            raise ValueError(f"{where}: n must be a positive integer, got {content['n']!r}")
        n = int(content["n"])
    return _edges(content["i"], content["j"], content["p"], n, where)


def _read_rows(source: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = []
    with source.open(encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            cells = [cell.strip() for cell in line.split(",")]
            if not rows and [cell.lower() for cell in cells] == ["i", "j", "p"]:
                continue
            try:
                first, second, score = cells
                if "_" in line:  # between digits, Python would read over it
                    raise ValueError("underscore in a number")
                # As 64-bit integers, which a number of too many digits is not.
                rows.append((np.int64(first), np.int64(second), float(score)))
            except (ValueError, OverflowError):
                raise ValueError(
                    f"{source}: line {number} must be 'city,city,score', got {line.strip()[:60]!r}"
                ) from None
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    return np.array(columns[0], dtype=int), np.array(columns[1], dtype=int), np.array(columns[2], dtype=float)


def _square(matrix: np.ndarray, n: int | None, where: str) -> Float[np.ndarray, "cities cities"]:
    if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and matrix.dtype.kind in "biuf":
        np.fill_diagonal(matrix, 0)
    scores = as_float_array(matrix, f"{where}: p", ndim=2)
    if scores.shape[0] != scores.shape[1] or (n is not None and scores.shape[0] != n):
        wanted = "square" if n is None else f"of shape ({n}, {n})"
        raise ValueError(f"{where}: the matrix must be {wanted}, got shape {scores.shape}")
    if scores.shape[0] > _MOST_CITIES_WITH_MATRIX:
        raise ValueError(f"{where}: a matrix may have at most {_MOST_CITIES_WITH_MATRIX} rows, got {scores.shape[0]}")
    return scores


def _edges(
    first: np.ndarray, second: np.ndarray, score: np.ndarray, n: int | None, where: str
) -> scipy.sparse.csr_array:
    scores = as_float_array(score, f"{where}: p", ndim=1, allow_empty=True)
    if first.dtype.kind not in "iu" or second.dtype.kind not in "iu":
        raise ValueError(f"{where}: i and j must be integers, got {first.dtype} and {second.dtype}")
    first, second = first.astype(np.int64), second.astype(np.int64)
    if first.shape != scores.shape or second.shape != scores.shape:
        raise ValueError(f"{where}: i, j and p must be equally long, got {first.shape}, {second.shape}, {scores.shape}")
    largest = int(max(first.max(initial=-1), second.max(initial=-1)))
    if n is None:
        n = largest + 1
    if n == 0:
        raise ValueError(f"{where}: has no edges; give the number of cities as n")
    smallest = int(min(first.min(initial=0), second.min(initial=0)))
    if smallest < 0 or largest >= n or n > _MOST_CITIES:
        raise ValueError(f"{where}: cities must be from 0 to {min(n, _MOST_CITIES) - 1}, got {smallest} to {largest}")
    key = first * n + second
    if np.unique(key).size < key.size:
        raise ValueError(f"{where}: an edge is listed twice")
    low, high = np.minimum(first, second), np.maximum(first, second)
    if np.unique(low * n + high).size == key.size:
        first, second = low, high  # each edge once, whichever way round it is written
    return scipy.sparse.csr_array((scores, (first, second)), shape=(n, n))
