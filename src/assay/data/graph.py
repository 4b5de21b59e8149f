"""Graphs and distance matrices from files, in the formats in which people have them.

Whatever the file, what comes back is one thing: a matrix, and a name for each of its rows. Nothing in a file is
ever executed (arrays of objects are refused), and how large an answer would be is looked up in the file's header
before it is read.
"""

from __future__ import annotations

import csv
import math
import xml.parsers.expat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import networkx as nx
import numpy as np
import scipy.io
import scipy.sparse as sp

from assay.validation import check_integer

__all__ = ["RelationFile", "read_graph"]

_FORMATS = ".graphml, .gml, .csv, .txt, .npy, .npz, .mtx"
_COMMENTS = ("#", "%")

# Pairs of words that make the first line of an edge list a heading and not an edge.
_HEADINGS = {("source", "target"), ("from", "to"), ("u", "v"), ("i", "j"), ("node1", "node2"), ("a", "b")}


@dataclass(frozen=True, eq=False)
class RelationFile:
    """What a file says about how its points are related.

    Parameters
    ----------
    nodes : tuple
        A name for each row: labels of the file, or 0, 1, ... where it has none.
    matrix : numpy.ndarray or scipy.sparse.csr_array of shape (n, n)
        Float64. Sparse for a graph; dense for a matrix that is stored dense.
    directed : bool, default=False
        Whether the file says that its edges have a direction. The matrix then need not be symmetric.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.data.graph import RelationFile
    >>> RelationFile(nodes=("a", "b"), matrix=np.array([[0.0, 2.0], [2.0, 0.0]]))
    RelationFile(2 nodes, 2 non-zeros, dense)
    """

    nodes: tuple
    matrix: np.ndarray | sp.csr_array
    directed: bool = False

    def __repr__(self) -> str:
        sparse = sp.issparse(self.matrix)
        stored = self.matrix.nnz if sparse else int(np.count_nonzero(self.matrix))
        kind = ("sparse" if sparse else "dense") + (", directed" if self.directed else "")
        return f"RelationFile({len(self.nodes)} nodes, {stored} non-zeros, {kind})"


def read_graph(path: str | PathLike[str], *, max_bytes: int = 4 * 2**30) -> RelationFile:
    r"""Read a graph or a matrix of relations.

    Parameters
    ----------
    path : path-like
        - ``.graphml``, ``.gml``: a graph; the attribute ``weight`` of its edges, where present, is their weight.
        - ``.csv``, ``.txt``: a list of edges, one a line: two labels and optionally a weight, separated by commas,
          semicolons, tabs or spaces. Lines that start with ``#`` or ``%`` are skipped, and so is a heading such as
          ``source,target``. Labels that are all integers are read as integers. An edge may be listed in both
          directions.
        - ``.npy``: a square matrix.
        - ``.npz``: a sparse matrix as ``scipy.sparse.save_npz`` writes it, or an archive of one square matrix.
        - ``.mtx``: a square matrix in the Matrix Market format.
    max_bytes : int, default=4 GiB
        Largest file, and largest array in memory, that is accepted.

    Returns
    -------
    RelationFile
        With the matrix and a name for each row.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it has another suffix, is too large, is not in the format, is not square, is empty, or has a nan or
        infinite entry.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from assay.data.graph import read_graph
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "friends.csv")
    ...     _ = path.write_text("source,target,weight\nann,bob,1\nbob,eve,0.5\n")
    ...     graph = read_graph(path)
    >>> graph.nodes
    ('ann', 'bob', 'eve')
    >>> graph.matrix.toarray()
    array([[0. , 1. , 0. ],
           [1. , 0. , 0.5],
           [0. , 0.5, 0. ]])
    """
    source = Path(path)
    max_bytes = check_integer(max_bytes, "max_bytes", minimum=1)
    size = source.stat().st_size
    if size > max_bytes:
        raise ValueError(f"{source}: the file has {size} bytes, at most {max_bytes} are read")
    suffix = source.suffix.lower()
    if suffix in (".graphml", ".gml"):
        return _from_networkx(_read_markup(source, suffix), source)
    if suffix in (".csv", ".txt"):
        return _from_networkx(_read_edges(source), source)
    readers = {".npy": _read_npy, ".npz": _read_npz, ".mtx": _read_matrix_market}
    if suffix not in readers:
        raise ValueError(f"{source}: a graph must be one of {_FORMATS}, got {source.suffix!r}")
    return _from_matrix(readers[suffix](source, max_bytes), source)


def _read_markup(source: Path, suffix: str) -> nx.Graph:
    try:
        graph = nx.read_graphml(source) if suffix == ".graphml" else nx.read_gml(source)
    except (nx.NetworkXError, xml.parsers.expat.ExpatError, SyntaxError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{source}: not a {suffix[1:]} file: {str(error)[:200] or type(error).__name__}") from None
    return graph


def _read_edges(source: Path) -> nx.Graph:
    edges: dict[tuple[str, str], tuple[float, int]] = {}
    for number, cells in _rows_of_edges(source):
        first, second = cells[0], cells[1]
        try:
            weight = float(cells[2]) if len(cells) == 3 else 1.0
        except ValueError:
            raise ValueError(f"{source}: line {number} must have a number as its weight, got {cells[2]!r}") from None
        if not math.isfinite(weight):
            raise ValueError(f"{source}: line {number} must have a finite weight, got {cells[2]!r}")
        key = (first, second) if (second, first) not in edges else (second, first)
        if key in edges and edges[key][0] != weight:
            raise ValueError(
                f"{source}: line {number} gives the edge {first!r}, {second!r} the weight {weight:g}, "
                f"but line {edges[key][1]} gave it {edges[key][0]:g}"
            )
        edges.setdefault(key, (weight, number))
    graph = nx.Graph()
    labels = dict.fromkeys(label for edge in edges for label in edge)
    if all(label.isascii() and label.isdigit() and str(int(label)) == label for label in labels):
        graph.add_nodes_from(sorted(map(int, labels)))
        graph.add_weighted_edges_from((int(a), int(b), weight) for (a, b), (weight, _) in edges.items())
    else:
        graph.add_nodes_from(labels)
        graph.add_weighted_edges_from((a, b, weight) for (a, b), (weight, _) in edges.items())
    return graph


def _rows_of_edges(source: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of every line that is an edge."""
    first, separator, width = True, None, 0
    with source.open(encoding="utf-8-sig", newline="") as stream:
        try:
            for number, line in enumerate(stream, start=1):
                text = line.strip()
                if not text or text.startswith(_COMMENTS):
                    continue
                if first:
                    separator = next((mark for mark in (",", ";", "\t") if mark in text), None)
                cells = text.split() if separator is None else next(csv.reader([text], delimiter=separator))
                cells = [cell.strip() for cell in cells]
                if first:
                    first, width = False, len(cells)
                    if width in (2, 3) and tuple(cell.lower() for cell in cells[:2]) in _HEADINGS:
                        continue
                if len(cells) != width or width not in (2, 3) or not all(cells):
                    raise ValueError(
                        f"{source}: line {number} must be two labels and optionally a weight, got {text[:60]!r}"
                    )
                yield number, cells
        except UnicodeDecodeError:
            raise ValueError(f"{source}: not a text file in UTF-8") from None


def _read_npy(source: Path, max_bytes: int) -> np.ndarray:
    with source.open("rb") as stream:
        _check_header(stream, str(source), max_bytes)
        stream.seek(0)
        try:
            return np.load(stream, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{source}: the array is not complete: {error}") from None


def _read_npz(source: Path, max_bytes: int) -> np.ndarray | sp.sparray | sp.spmatrix:
    try:
        with zipfile.ZipFile(source) as archive:
            # The sizes that the directory of the archive gives: a small file can unpack to a very large one.
            total = sum(member.file_size for member in archive.infolist())
            if total > max_bytes:
                raise ValueError(f"{source}: unpacks to {total} bytes, at most {max_bytes} are read")
            names = archive.namelist()
            for name in names:
                with archive.open(name) as stream:
                    _check_header(stream, f"{source}: {name}", max_bytes)
        if "format.npy" in names:
            return sp.load_npz(source)
        if len(names) != 1:
            raise ValueError(f"{source}: must hold one matrix, or a sparse one of scipy, got {sorted(names)}")
        with np.load(source, allow_pickle=False) as arrays:
            return arrays[arrays.files[0]]
    except (zipfile.BadZipFile, KeyError, NotImplementedError, TypeError, EOFError) as error:
        raise ValueError(f"{source}: not an archive of numpy or scipy: {error}") from None


def _check_header(stream: BinaryIO, where: str, max_bytes: int) -> None:
    """Shape and type of an array, before any of it is read."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{where}: not an array of numpy: {error}") from None
    if dtype.hasobject:
        raise ValueError(f"{where}: an array of numbers is needed, got objects, which are never read")
    if math.prod(shape) * max(dtype.itemsize, 8) > max_bytes:
        raise ValueError(f"{where}: an array of shape {shape} is larger than {max_bytes} bytes")


def _read_matrix_market(source: Path, max_bytes: int) -> np.ndarray | sp.sparray | sp.spmatrix:
    try:
        rows, columns, entries, layout, kind, _ = scipy.io.mminfo(source)
        needed = 8 * rows * columns if layout == "array" else 16 * entries + 8 * rows
        if needed > max_bytes:
            raise ValueError(f"{rows} by {columns} with {entries} entries is larger than {max_bytes} bytes")
        if kind == "complex":
            raise ValueError("the entries must be real, got complex ones")
        return scipy.io.mmread(source)
    except (ValueError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise ValueError(f"{source}: not a usable Matrix Market file: {error}") from None


def _from_networkx(graph: nx.Graph, source: Path) -> RelationFile:
    if graph.number_of_nodes() == 0:
        raise ValueError(f"{source}: the graph is empty")
    for a, b, weight in graph.edges(data="weight", default=1.0):
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ValueError(f"{source}: the edge {a!r}, {b!r} must have a finite number as its weight, got {weight!r}")
    matrix = nx.to_scipy_sparse_array(graph, dtype=np.float64, format="csr")
    return RelationFile(tuple(graph.nodes), matrix, graph.is_directed())


def _from_matrix(matrix: np.ndarray | sp.sparray | sp.spmatrix, source: Path) -> RelationFile:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{source}: the matrix must be square, got shape {matrix.shape}")
    if matrix.shape[0] == 0:
        raise ValueError(f"{source}: the matrix is empty")
    if matrix.dtype.kind not in "biuf":
        raise ValueError(f"{source}: the matrix must have real numbers, got dtype {matrix.dtype}")
    if sp.issparse(matrix):
        answer = sp.csr_array(matrix, dtype=np.float64)
        answer.sum_duplicates()
        entries = answer.data
    else:
        answer = entries = np.asarray(matrix, dtype=np.float64)
    bad = int(np.count_nonzero(~np.isfinite(entries)))
    if bad:
        raise ValueError(f"{source}: the matrix must be finite, got {bad} nan or infinite entries")
    return RelationFile(tuple(range(answer.shape[0])), answer)
