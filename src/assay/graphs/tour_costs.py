"""What every tour method reads: the costs between cities, scores on edges, and tours.

Costs come as a symmetric matrix, as points in the plane, or as a complete networkx graph. Points are never turned
into a matrix: a cost is computed when it is asked for, so that memory stays linear in the number of cities. Compiled
kernels take the pair ``(points, matrix)``, of which one is empty, and look a cost up with :func:`pair_cost`.

Scores come as a matrix, a sparse matrix, a mapping of edges, or edge attributes of the graph; they are kept as a list
of the edges with a positive score.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numba
import numpy as np
import scipy.sparse
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.validation import as_float_array, check_real

__all__ = [
    "CityCosts",
    "EdgeScores",
    "check_range",
    "check_tour",
    "is_tour",
    "normalize_tour",
    "pair_cost",
    "read_costs",
    "read_scores",
    "without_diagonal",
]

SCORE_TOLERANCE = 1e-9
_SYMMETRY_TOLERANCE = 1e-9
# From here on, squares are precise enough for distances to be right to 1e-10 of the spread.
_SMALLEST_SPREAD = 1e-151


@numba.njit(cache=True)
def pair_cost(points, matrix, i, j):
    """Cost between two cities, inside compiled kernels."""
    if points.shape[0] > 0:
        dx = points[i, 0] - points[j, 0]
        dy = points[i, 1] - points[j, 1]
        return math.sqrt(dx * dx + dy * dy)
    return matrix[i, j]


@dataclass(frozen=True)
class CityCosts:
    """Symmetric, non-negative costs between ``n`` cities.

    Made by :func:`read_costs`, which checks them: here only shapes and types are.

    Parameters
    ----------
    points : numpy.ndarray of shape (n, 2) or (0, 2)
        Cities in the plane; the cost is their distance.
    matrix : numpy.ndarray of shape (n, n) or (0, 0)
        Costs, when there are no points.
    nodes : tuple or None, default=None
        The nodes of the graph that the costs were read from, in the order of the rows.

    Examples
    --------
    >>> from assay.graphs.tour_costs import read_costs
    >>> square = read_costs([[0, 0], [0, 1], [1, 1], [1, 0]])
    >>> square.n, square.tour_cost([0, 1, 2, 3])
    (4, 4.0)
    """

    points: Float[np.ndarray, "points 2"]
    matrix: Float[np.ndarray, "rows rows"]
    nodes: tuple[Hashable, ...] | None = None

    def __post_init__(self) -> None:
        for name, array, width in (("points", self.points, 2), ("matrix", self.matrix, len(self.matrix))):
            if not isinstance(array, np.ndarray) or array.dtype != np.float64 or array.ndim != 2:
                raise TypeError(f"{name} must be a 2-D array of float64, got {type(array).__name__}")
            if array.shape[1] != width:
                raise ValueError(f"{name} must have {width} columns, got shape {array.shape}")
        if len(self.points) and len(self.matrix):
            raise ValueError("points and matrix must not both be given")

    @property
    def n(self) -> int:
        """Number of cities."""
        return max(self.points.shape[0], self.matrix.shape[0])

    @property
    def is_euclidean(self) -> bool:
        """Whether the costs are distances of points, so that the triangle inequality needs no check."""
        return self.points.shape[0] > 0

    def between(
        self, first: Int[np.ndarray, " edges"], second: Int[np.ndarray, " edges"]
    ) -> Float[np.ndarray, " edges"]:
        """Costs of the edges ``(first[k], second[k])``."""
        if not self.is_euclidean:
            return self.matrix[first, second]
        difference = self.points[first] - self.points[second]
        return np.sqrt(difference[:, 0] * difference[:, 0] + difference[:, 1] * difference[:, 1])

    def block(self, cities: Int[np.ndarray, " some"]) -> Float[np.ndarray, "some some"]:
        """Matrix of the costs among some of the cities."""
        if not self.is_euclidean:
            return self.matrix[np.ix_(cities, cities)]
        dx = np.subtract.outer(self.points[cities, 0], self.points[cities, 0])
        dy = np.subtract.outer(self.points[cities, 1], self.points[cities, 1])
        return np.sqrt(dx * dx + dy * dy)

    def tour_edges(self, tour: ArrayLike) -> Float[np.ndarray, " cities"]:
        """Costs of the edges of a closed tour."""
        order = np.asarray(tour, dtype=np.int64)
        return self.between(order, np.concatenate([order[1:], order[:1]]))

    def tour_cost(self, tour: ArrayLike) -> float:
        """Cost of a closed tour, correctly rounded, hence independent of where the tour starts."""
        return math.fsum(self.tour_edges(tour))


@dataclass(frozen=True)
class EdgeScores:
    """Edges with a positive score: ``first < second``, in lexicographic order.

    Parameters
    ----------
    first, second : numpy.ndarray of shape (edges,)
        End points.
    score : numpy.ndarray of shape (edges,)
        Scores in (0, 1].
    """

    first: Int[np.ndarray, " edges"]
    second: Int[np.ndarray, " edges"]
    score: Float[np.ndarray, " edges"]

    def of(self, first: Int[np.ndarray, " pairs"], second: Int[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
        """Scores of given pairs, 0 for those that are not listed."""
        if self.first.size == 0:
            return np.zeros(len(first))
        base = int(max(self.second.max(), first.max(initial=0), second.max(initial=0))) + 1
        known = self.first * base + self.second
        asked = np.minimum(first, second) * base + np.maximum(first, second)
        position = np.minimum(np.searchsorted(known, asked), known.size - 1)
        return np.where(known[position] == asked, self.score[position], 0.0)


def read_costs(cost: ArrayLike | nx.Graph | CityCosts, *, weight: str = "weight", closure: bool = False) -> CityCosts:
    """Check costs and bring them into one form.

    Parameters
    ----------
    cost : array_like of shape (n, n), array_like of shape (n, 2), networkx.Graph or CityCosts
        A symmetric non-negative matrix (its diagonal is ignored), points in the plane, or an undirected graph with
        edge weights. A graph must be complete unless ``closure=True``.
    weight : str, default="weight"
        Edge attribute that holds the cost, for a graph.
    closure : bool, default=False
        Replace the costs by the lengths of shortest paths.

    Returns
    -------
    CityCosts

    Raises
    ------
    TypeError
        If the costs are not numbers, or the graph is directed or a multigraph.
    ValueError
        If there are fewer than 3 cities, a cost is negative, nan or infinite, the matrix is not symmetric, the graph
        is not complete (with ``closure=True``: not connected), or sums of costs or squares of distances are out of the
        range of floats.

    Examples
    --------
    >>> from assay.graphs.tour_costs import read_costs
    >>> read_costs([[0, 1, 5], [1, 0, 1], [5, 1, 0]], closure=True).matrix[0, 2]
    np.float64(2.0)
    """
    if isinstance(cost, CityCosts):
        return _metric_closure(cost) if closure else cost
    nodes: tuple[Hashable, ...] | None = None
    if isinstance(cost, nx.Graph):
        nodes = tuple(cost)
        matrix = _matrix_of_graph(cost, weight, allow_missing=closure)
    else:
        array = as_float_array(without_diagonal(cost), "cost", ndim=2)
        if array.shape[1] == 2 and array.shape[0] != 2:
            _require_three(array.shape[0])
            planar = CityCosts(np.ascontiguousarray(array), np.empty((0, 0)))
            check_range(planar)
            return planar
        if array.shape[0] != array.shape[1]:
            raise ValueError(f"cost must be a square matrix or points of shape (n, 2), got shape {array.shape}")
        matrix = array
    _require_three(matrix.shape[0])
    if matrix.min() < 0:
        raise ValueError(f"cost must be non-negative, got a minimum of {matrix.min():g}")
    with np.errstate(invalid="ignore"):  # inf - inf at missing edges of a graph, which are missing both ways
        asymmetry = float(np.nanmax(np.abs(matrix - matrix.T)))
    largest = float(np.max(matrix, where=np.isfinite(matrix), initial=0.0))
    if asymmetry > _SYMMETRY_TOLERANCE * largest:
        raise ValueError(f"cost must be symmetric, got entries that differ by {asymmetry:g} from their mirror image")
    if asymmetry > 0:
        matrix = matrix / 2 + matrix.T / 2
    costs = CityCosts(np.empty((0, 2)), np.ascontiguousarray(matrix), nodes)
    if closure:
        costs = _metric_closure(costs)
    check_range(costs)
    return costs


def read_scores(
    heatmap: ArrayLike | scipy.sparse.sparray | scipy.sparse.spmatrix | Mapping[Any, Any] | EdgeScores,
    n: int,
    nodes: Sequence[Hashable] | None = None,
) -> EdgeScores:
    """Check edge scores and bring them into one form.

    Parameters
    ----------
    heatmap : array_like of shape (n, n), scipy sparse array of shape (n, n), mapping of pairs to scores, or EdgeScores
        Scores in [0, 1]; the diagonal is ignored, whatever is on it. A strictly triangular matrix gives each edge
        once. Otherwise the two directions of an edge should agree; if they do not, the larger one counts, and a warning
        says so.
    n : int
        Number of cities.
    nodes : sequence of hashable, optional
        Names of the cities, which the keys of a mapping refer to; by default they are numbers.

    Returns
    -------
    EdgeScores

    Raises
    ------
    TypeError
        If a score is not a number, or a key of a mapping is not a pair.
    ValueError
        If the shape is wrong, a score is nan or outside [0, 1] (by more than 1e-9), or a key is not an edge.

    Examples
    --------
    >>> from assay.graphs.tour_costs import read_scores
    >>> scores = read_scores({(2, 0): 0.5, (0, 1): 1}, n=3)
    >>> scores.second.tolist(), scores.score.tolist()
    ([1, 2], [1.0, 0.5])
    """
    if isinstance(heatmap, EdgeScores):
        return _checked_scores(heatmap, n)
    is_sparse = scipy.sparse.issparse(heatmap)
    once = isinstance(heatmap, Mapping) and not is_sparse  # a sparse matrix in DOK format is a mapping, too
    if is_sparse:
        if heatmap.shape != (n, n):
            raise ValueError(f"heatmap must have shape ({n}, {n}), got {heatmap.shape}")
        compressed = scipy.sparse.csr_array(heatmap, copy=True)
        compressed.sum_duplicates()
        triplets = compressed.tocoo()
        row, column = (index.astype(np.int64) for index in triplets.coords)
        inside = row != column
        row, column = row[inside], column[inside]
        value = as_float_array(triplets.data[inside], "heatmap", ndim=1, allow_empty=True)
    elif once:
        row, column, value = _triplets_of_mapping(heatmap, n, nodes)
    else:
        matrix = as_float_array(without_diagonal(heatmap), "heatmap", ndim=2)
        if matrix.shape != (n, n):
            raise ValueError(f"heatmap must have shape ({n}, {n}), got {matrix.shape}")
        row, column = np.nonzero(matrix)
        value = matrix[row, column]
    if value.size and not (value.min() >= -SCORE_TOLERANCE and value.max() <= 1 + SCORE_TOLERANCE):
        raise ValueError(
            f"heatmap must have scores in [0, 1], got values from {value.min():g} to {value.max():g}; "
            "apply a sigmoid, or divide each row by its maximum"
        )
    # In a mapping, as in a triangular matrix, an edge that is given in one direction only is given once.
    once = once or bool(np.all(row < column) or np.all(row > column))
    return _one_score_per_edge(row, column, np.clip(value, 0.0, 1.0), n, once)


def check_tour(
    tour: ArrayLike | Sequence[Hashable], n: int, name: str, nodes: Sequence[Hashable] | None = None
) -> Int[np.ndarray, " cities"]:
    """Check that ``tour`` visits each of ``n`` cities once; a closed one may repeat its first city at the end.

    Parameters
    ----------
    tour : sequence of int, or of nodes
        The order of the visits.
    n : int
        Number of cities.
    name : str
        Name of the argument, for the message.
    nodes : sequence of hashable, optional
        Names of the cities, if the tour is written in them.

    Returns
    -------
    numpy.ndarray of shape (n,)

    Raises
    ------
    TypeError
        If it is not a sequence of integers (or of nodes).
    ValueError
        If it is not a permutation.

    Examples
    --------
    >>> from assay.graphs.tour_costs import check_tour
    >>> check_tour([2, 0, 1, 2], 3, "reference")
    array([2, 0, 1])
    """
    if nodes is not None:
        number = {node: k for k, node in enumerate(nodes)}
        try:
            visits = list(tour)
            unknown = [node for node in visits if node not in number]
        except TypeError as error:  # not iterable, or what is in it has no hash
            raise TypeError(f"{name} must be a sequence of nodes, got {type(tour).__name__}: {error}") from None
        if unknown:
            raise ValueError(f"{name} must list nodes of the graph, got {unknown[0]!r}")
        tour = [number[node] for node in visits]
    try:
        order = np.asarray(tour)
    except (TypeError, ValueError) as error:  # ragged
        raise TypeError(f"{name} must be a sequence of integers, got {type(tour).__name__}: {error}") from None
    if order.dtype.kind not in "iu" or order.ndim != 1:
        raise TypeError(f"{name} must be a sequence of integers, got dtype {order.dtype} and shape {order.shape}")
    if order.size == n + 1 and order[0] == order[-1]:
        order = order[:-1]
    if not is_tour(order, n):
        raise ValueError(f"{name} must be a permutation of 0..{n - 1}, got {order.size} entries that are not one")
    return order.astype(np.int64)


def is_tour(tour: Int[np.ndarray, " visits"], n: int) -> bool:
    """Whether every one of ``n`` cities is visited exactly once.

    Parameters
    ----------
    tour : numpy.ndarray of shape (visits,)
        City numbers.
    n : int
        Number of cities.

    Returns
    -------
    bool

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_costs import is_tour
    >>> is_tour(np.array([2, 0, 1]), 3), is_tour(np.array([2, 0, 0]), 3)
    (True, False)
    """
    return tour.size == n and bool(np.array_equal(np.sort(tour), np.arange(n)))


def normalize_tour(tour: Int[np.ndarray, " cities"]) -> Int[np.ndarray, " cities"]:
    """The same closed tour, started at city 0 and run in the direction in which the second city is below the last.

    Parameters
    ----------
    tour : numpy.ndarray of shape (n,)
        A permutation.

    Returns
    -------
    numpy.ndarray of shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_costs import normalize_tour
    >>> normalize_tour(np.array([1, 0, 3, 2]))
    array([0, 1, 2, 3])
    """
    order = np.roll(tour, -int(np.argmin(tour)))
    if order[1] > order[-1]:
        order[1:] = order[:0:-1].copy()
    return order


def without_diagonal(square: Any) -> Any:
    """A copy with a zero diagonal of what looks like a square matrix: nothing, or infinity, is common there.

    Parameters
    ----------
    square : array_like
        Anything; what is not a square matrix is returned as it is, for the checks that follow.

    Returns
    -------
    object

    Examples
    --------
    >>> from assay.graphs.tour_costs import without_diagonal
    >>> without_diagonal([[float("inf"), 1.0], [1.0, float("nan")]])
    array([[0., 1.],
           [1., 0.]])
    """
    if hasattr(square, "detach"):
        tensor = square.detach().cpu()
        if "strided" not in str(tensor.layout):
            return square
        square = (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    try:
        # A mask has to stay: what is under it is nobody's number.
        array = square.copy() if isinstance(square, np.ma.MaskedArray) else np.array(square)
    except ValueError:  # ragged; the general check words the message
        return square
    if array.ndim == 2 and array.shape[0] == array.shape[1] and array.dtype.kind in "biufO":
        np.fill_diagonal(array, 0)
    return array


def check_range(costs: CityCosts, name: str = "cost") -> None:
    """Check that sums of costs, and squares of distances, neither overflow nor vanish.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    name : str, default="cost"
        Name of the argument, for the message.

    Raises
    ------
    ValueError
        If they are out of the range of floats.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_costs import CityCosts, check_range
    >>> check_range(CityCosts(np.array([[0.0, 0.0], [0.0, 1e-170]]), np.empty((0, 0))))
    Traceback (most recent call last):
        ...
    ValueError: cost must have distances with squares in the range of floats, got a spread of 1e-170; change the unit
    """
    # Twice the sum of all costs, and the potentials of a long ascent.
    headroom = 2.0**10 * max(costs.n, 1) ** 2
    with np.errstate(over="ignore"):
        if costs.is_euclidean:
            spread = float(np.max(costs.points.max(axis=0) - costs.points.min(axis=0)))
            if not np.isfinite(np.float64(spread) ** 2 * headroom) or 0 < spread < _SMALLEST_SPREAD:
                raise ValueError(
                    f"{name} must have distances with squares in the range of floats, got a spread of {spread:g}; "
                    "change the unit"
                )
        else:
            largest = np.abs(costs.matrix).max(initial=0.0)
            if not np.isfinite(headroom * largest):
                raise ValueError(
                    f"{name} must have sums in the range of floats, got entries of {largest:g}; change the unit"
                )


def _require_three(n: int) -> None:
    if n < 3:
        raise ValueError(f"cost must describe at least 3 cities, got {n}")


def _checked_scores(scores: EdgeScores, n: int) -> EdgeScores:
    """Scores that were made elsewhere, for another number of cities perhaps."""
    first, second, score = scores.first, scores.second, scores.score
    if not (first.shape == second.shape == score.shape and first.ndim == 1):
        raise ValueError("heatmap must have as many first and second cities as scores")
    key = first * n + second
    if first.size and not (
        first.min() >= 0 and second.max() < n and np.all(first < second) and np.all(key[:-1] < key[1:])
    ):
        raise ValueError(f"heatmap must list edges between {n} cities in lexicographic order, each once")
    if score.size and not (score.min() > 0 and score.max() <= 1):
        raise ValueError(f"heatmap must list scores in (0, 1], got values from {score.min():g} to {score.max():g}")
    return scores


def _matrix_of_graph(graph: nx.Graph, weight: str, allow_missing: bool) -> Float[np.ndarray, "nodes nodes"]:
    if graph.is_directed() or graph.is_multigraph():
        raise TypeError(f"cost must be an undirected graph without parallel edges, got {type(graph).__name__}")
    n = graph.number_of_nodes()
    _require_three(n)
    number = {node: k for k, node in enumerate(graph)}
    matrix = np.full((n, n), np.inf)
    np.fill_diagonal(matrix, 0.0)
    for u, v, attributes in graph.edges(data=True):
        if u != v and weight not in attributes:
            raise ValueError(f"cost must have the attribute {weight!r} on every edge, edge {(u, v)!r} has none")
        if u != v:
            value = check_real(attributes[weight], f"cost of the edge {(u, v)!r}")
            matrix[number[u], number[v]] = matrix[number[v], number[u]] = value
    n_missing = int(np.count_nonzero(np.isinf(matrix))) // 2
    if n_missing and not allow_missing:
        raise ValueError(
            f"cost must be a complete graph, {n_missing} edges are missing; "
            'metric="closure" gives them the length of the shortest path'
        )
    return matrix


def _metric_closure(costs: CityCosts) -> CityCosts:
    if costs.is_euclidean:
        return costs
    closed = _shortest_paths(costs.matrix)
    if not np.all(np.isfinite(closed)):
        raise ValueError("cost must be a connected graph, some nodes cannot be reached")
    return CityCosts(costs.points, closed, costs.nodes)


@numba.njit(cache=True)
def _shortest_paths(matrix):
    """Lengths of the shortest paths between all pairs (Floyd and Warshall), O(n^3)."""
    n = matrix.shape[0]
    length = matrix.copy()
    for via in range(n):
        for i in range(n):
            first_leg = length[i, via]
            for j in range(n):
                detour = first_leg + length[via, j]
                if detour < length[i, j]:
                    length[i, j] = detour
    # The two directions add the same legs in another order; they must agree in every bit.
    for i in range(n):
        for j in range(i):
            length[i, j] = length[j, i] = min(length[i, j], length[j, i])
    return length


def _triplets_of_mapping(
    heatmap: Mapping[Any, Any], n: int, nodes: Sequence[Hashable] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    number = {node: k for k, node in enumerate(range(n) if nodes is None else nodes)}
    row, column, value = [], [], []
    for edge, score in heatmap.items():
        if not isinstance(edge, tuple) or len(edge) != 2:
            raise TypeError(f"heatmap must map pairs of cities to scores, got the key {edge!r}")
        if edge[0] not in number or edge[1] not in number:
            raise ValueError(f"heatmap must have pairs of the {n} cities as keys, got {edge!r}")
        if number[edge[0]] != number[edge[1]]:
            row.append(number[edge[0]])
            column.append(number[edge[1]])
            value.append(score)
    scores = as_float_array(value, "heatmap", ndim=1, allow_empty=True)
    return np.array(row, dtype=np.int64), np.array(column, dtype=np.int64), scores


def _one_score_per_edge(row: np.ndarray, column: np.ndarray, value: np.ndarray, n: int, once: bool) -> EdgeScores:
    first, second = np.minimum(row, column), np.maximum(row, column)
    key, edge = np.unique(first * n + second, return_inverse=True)
    largest, smallest = np.zeros(key.size), np.ones(key.size)
    np.maximum.at(largest, edge, value)
    np.minimum.at(smallest, edge, value)
    if not once:
        smallest[np.bincount(edge, minlength=key.size) == 1] = 0.0  # the other direction is an implicit 0
    n_directed = int(np.count_nonzero(largest - smallest > SCORE_TOLERANCE))
    if n_directed:
        warnings.warn(
            f"heatmap is not symmetric: {n_directed} edges have two different scores, the larger one counts",
            UserWarning,
            stacklevel=5,
        )
    positive = largest > 0
    return EdgeScores(key[positive] // n, key[positive] % n, largest[positive])
