"""Who is linked to whom, from files of the user's own.

Three forms in which networks of machines are written down: a list of links, an adjacency matrix, and GraphML. What
comes back is always the same, the Metropolis weights of the graph.
"""

from __future__ import annotations

import csv
import os
import xml.parsers.expat
from pathlib import Path
from xml.etree.ElementTree import ParseError

import networkx as nx
import numpy as np
from jaxtyping import Float

from assay.bilevel.mixing_matrix import metropolis_weights
from assay.validation import check_choice

__all__ = ["mixing_from_edgelist"]

_MAX_BYTES = 256 * 1024**2
_MAX_NODES = 20_000  # their matrix has 3 GiB

# First lines of a list of links that name its columns.
_HEADINGS = ({"source", "target"}, {"from", "to"}, {"u", "v"}, {"node1", "node2"})


def mixing_from_edgelist(path: str | os.PathLike[str], *, kind: str = "auto") -> Float[np.ndarray, "nodes nodes"]:
    r"""Mixing matrix of a network in a file.

    Parameters
    ----------
    path : path
        ``.graphml``, or text with values separated by commas, semicolons, tabs or spaces; lines that start with ``#``
        or ``%`` are skipped. In a list of links, a line has the names of two nodes; what follows them is not read, and
        a heading such as ``source,target`` is skipped. An adjacency matrix has a number for each pair of nodes,
        symmetric, with 0 where there is no link. All that counts is who is linked.
    kind : {"auto", "edges", "adjacency", "graphml"}, default="auto"
        What is in the file. By default the suffix tells GraphML, and a square table of numbers with at least 3
        columns that is symmetric is an adjacency matrix.

    Returns
    -------
    numpy.ndarray of shape (K, K)
        Metropolis weights. Nodes are in the order of their numbers if all are named by integers, otherwise in the
        order in which they appear.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    TypeError, ValueError
        If it is no file, larger than 256 MiB or not in the format, or its graph has more than 20000 nodes, is directed,
        has parallel links or is not connected.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from assay.bilevel import mixing_from_edgelist
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "links.txt"
    >>> _ = path.write_text("# three hospitals\nnorth south\nsouth east\n")
    >>> mixing_from_edgelist(path).round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a path, got {type(path).__name__}")
    source = Path(path)
    kind = check_choice(kind, "kind", ("auto", "edges", "adjacency", "graphml"))
    size = source.stat().st_size
    if not source.is_file():
        raise ValueError(f"path must be a file, got {source.name}")
    if size > _MAX_BYTES:
        raise ValueError(f"{source.name} must be at most {_MAX_BYTES} bytes, got {size}")
    if kind == "graphml" or (kind == "auto" and source.suffix.lower() == ".graphml"):
        graph = _read_graphml(source)
    else:
        rows = _rows(source)
        if kind == "adjacency":
            graph = _from_matrix(_as_matrix(rows, source), source)
        elif kind == "auto" and (matrix := _symmetric_table(rows)) is not None:
            graph = _from_matrix(matrix, source)
        else:
            graph = _from_links(rows, source)
    if len(graph) > _MAX_NODES:
        raise ValueError(f"{source.name} must have at most {_MAX_NODES} nodes, got {len(graph)}")
    try:
        return metropolis_weights(_in_order(graph))
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from None


def _read_graphml(source: Path) -> nx.Graph:
    try:
        return nx.read_graphml(source)
    except (nx.NetworkXError, ParseError, xml.parsers.expat.ExpatError, ValueError, KeyError) as error:
        raise ValueError(f"{source.name} is not a GraphML file: {str(error)[:200]}") from None


def _rows(source: Path) -> list[list[str]]:
    try:
        lines = source.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{source.name} is not a text file: {error.reason}") from None
    rows = []
    for line in lines:
        text = line.strip()
        if text and text[0] not in "#%":
            mark = next((mark for mark in ",;\t" if mark in text), None)
            cells = next(csv.reader([text], delimiter=mark)) if mark else text.split()
            rows.append([cell.strip() for cell in cells])
    if not rows:
        raise ValueError(f"{source.name} must have at least 1 line, got none")
    return rows


def _symmetric_table(rows: list[list[str]]) -> Float[np.ndarray, "nodes nodes"] | None:
    """The rows as a matrix, if that is what they are without a doubt."""
    if len(rows) < 3 or any(len(row) != len(rows) for row in rows):
        return None
    try:
        matrix = np.array(rows, dtype=float)
    except ValueError:
        return None
    return matrix if np.array_equal(matrix, matrix.T) else None


def _as_matrix(rows: list[list[str]], source: Path) -> Float[np.ndarray, "nodes nodes"]:
    if any(len(row) != len(rows) for row in rows):
        raise ValueError(f"{source.name} must be a square matrix, got {len(rows)} rows of {len(rows[0])} values")
    try:
        matrix = np.array(rows, dtype=float)
    except ValueError:
        raise ValueError(f"{source.name} must have a number for each pair of nodes") from None
    if not np.array_equal(matrix, matrix.T):
        raise ValueError(f"{source.name} must be a symmetric matrix of finite numbers")
    return matrix


def _from_matrix(matrix: Float[np.ndarray, "nodes nodes"], source: Path) -> nx.Graph:
    if not np.isfinite(matrix).all():
        raise ValueError(f"{source.name} must be a symmetric matrix of finite numbers")
    graph = nx.empty_graph(len(matrix))
    graph.add_edges_from(np.argwhere(np.triu(matrix, 1) != 0).tolist())
    return graph


def _from_links(rows: list[list[str]], source: Path) -> nx.Graph:
    graph = nx.Graph()
    headed = {cell.lower() for cell in rows[0][:2]} in _HEADINGS
    for number, row in enumerate(rows[headed:], start=1 + headed):
        if len(row) < 2 or not row[0] or not row[1]:
            raise ValueError(f"{source.name} must name two nodes in every line, got {row} in line {number}")
        graph.add_edge(row[0], row[1])
    return graph


def _in_order(graph: nx.Graph) -> nx.Graph:
    """The same graph with nodes that are named by integers in the order of these."""
    try:
        numbers = {node: int(node) for node in graph}
    except ValueError:
        return graph
    ordered = graph.__class__()
    ordered.add_nodes_from(sorted(graph, key=numbers.__getitem__))
    ordered.add_edges_from(graph.edges)
    return ordered
