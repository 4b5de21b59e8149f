"""From a set of edges to a tour: connect, make even, walk, shortcut.

Any set of edges F becomes a tour in four steps. Its components are joined by the cheapest edges; the cities of odd
degree are paired (by a matching, which is not done here); what results is connected and even, so one closed walk
uses every edge once; visits after the first are skipped. Two facts make this cheap for many sets of the same instance:

- The edges that join the components can always be taken from one minimum spanning tree of the costs: an edge outside
  of it is the dearest of a cycle, and stays the dearest of a cycle (or becomes a loop) when components are contracted.
  So the tree is made once, and each set costs a pass over n - 1 sorted edges.
- The sets of a threshold sweep are nested, so components and degrees are updated edge by edge.

Everything is compiled and takes points or a matrix of costs (see :mod:`assay.graphs.tour_costs`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numba
import numpy as np
import scipy.spatial
from jaxtyping import Float, Int

from assay.graphs.tour_costs import CityCosts, pair_cost

__all__ = [
    "SpanningTree",
    "ThresholdSweep",
    "connecting_edges",
    "eulerian_tour",
    "find_root",
    "minimum_spanning_tree",
    "odd_cities",
    "unit_square",
]

# Below this, the quadratic algorithm on points is faster than a triangulation.
_TRIANGULATE_FROM = 2000


@dataclass(frozen=True)
class SpanningTree:
    """Edges of a minimum spanning tree, by increasing cost (ties: by increasing cities).

    Parameters
    ----------
    first, second : numpy.ndarray of shape (n - 1,)
        End points, ``first < second``.
    cost : numpy.ndarray of shape (n - 1,)
        Costs of the edges.
    """

    first: Int[np.ndarray, " edges"]
    second: Int[np.ndarray, " edges"]
    cost: Float[np.ndarray, " edges"]


def minimum_spanning_tree(costs: CityCosts, *, triangulate: bool | None = None) -> SpanningTree:
    """Minimum spanning tree of all cities.

    Parameters
    ----------
    costs : CityCosts
        A matrix, or points.
    triangulate : bool, optional
        For points: look for the tree among the edges of the Delaunay triangulation, which contains one, in
        O(n log n) instead of O(n^2). By default from 2000 cities on. Where the triangulation is degenerate (collinear
        points), the quadratic algorithm is used. A matrix is never triangulated.

    Returns
    -------
    SpanningTree

    Notes
    -----
    O(n) memory besides the costs.

    Examples
    --------
    >>> from assay.graphs.tour_costs import read_costs
    >>> from assay.graphs.tour_skeleton import minimum_spanning_tree
    >>> tree = minimum_spanning_tree(read_costs([[0, 0], [0, 1], [5, 0], [5, 2]]))
    >>> list(zip(tree.first.tolist(), tree.second.tolist(), tree.cost.tolist()))
    [(0, 1, 1.0), (2, 3, 2.0), (0, 2, 5.0)]
    """
    if triangulate is None:
        triangulate = costs.n >= _TRIANGULATE_FROM
    tree = _tree_of_triangulation(costs.points) if triangulate and costs.is_euclidean else None
    if tree is None:
        parent = _prim(costs.points, costs.matrix)
        city = np.arange(1, costs.n)
        tree = np.minimum(city, parent[1:]), np.maximum(city, parent[1:])
    first, second = tree
    cost = costs.between(first, second)
    order = np.lexsort((second, first, cost))
    return SpanningTree(first[order], second[order], cost[order])


class ThresholdSweep:
    """Nested sets of edges: the first m of a list, for growing m.

    Components and degrees are kept up to date, so that going through all sets costs no more than the last one.

    Parameters
    ----------
    n : int
        Number of cities.
    first, second : numpy.ndarray of shape (edges,)
        The edges, in the order in which they enter.
    tree : SpanningTree
        Where the connecting edges are taken from.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_costs import read_costs
    >>> from assay.graphs.tour_skeleton import ThresholdSweep, minimum_spanning_tree
    >>> tree = minimum_spanning_tree(read_costs([[0, 0], [0, 1], [1, 1], [1, 0]]))
    >>> sweep = ThresholdSweep(4, np.array([0]), np.array([2]), tree)
    >>> sweep.advance(1)  # the diagonal, and two sides that connect the rest
    >>> [ends.tolist() for ends in sweep.skeleton()]
    [[0, 0, 0], [2, 1, 3]]
    """

    def __init__(self, n: int, first: np.ndarray, second: np.ndarray, tree: SpanningTree):
        self.first, self.second, self.tree = first, second, tree
        self.size = 0
        self._root = np.arange(n)
        self._degree = np.zeros(n, dtype=np.int64)

    def advance(self, size: int) -> None:
        """Let the first ``size`` edges be the set; it can only grow."""
        if not self.size <= size <= self.first.size:
            raise ValueError(f"size must be from {self.size} to {self.first.size}, got {size}")
        _add_edges(self._root, self._degree, self.first, self.second, self.size, size)
        self.size = size

    def skeleton(self) -> tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]]:
        """End points of the current set and of the cheapest edges that connect its components."""
        joined = _joining(self._root.copy(), self.tree.first, self.tree.second)
        return (
            np.concatenate([self.first[: self.size], self.tree.first[joined]]),
            np.concatenate([self.second[: self.size], self.tree.second[joined]]),
        )


def connecting_edges(
    n: int, first: Int[np.ndarray, " edges"], second: Int[np.ndarray, " edges"], tree: SpanningTree
) -> tuple[Int[np.ndarray, " joining"], Int[np.ndarray, " joining"]]:
    """Cheapest edges that connect the components of a set of edges.

    Parameters
    ----------
    n : int
        Number of cities.
    first, second : numpy.ndarray of shape (edges,)
        The set.
    tree : SpanningTree
        A minimum spanning tree of all cities.

    Returns
    -------
    first, second : numpy.ndarray of shape (components - 1,)
    """
    root, degree = np.arange(n), np.zeros(n, dtype=np.int64)
    _add_edges(root, degree, first, second, 0, first.size)
    joined = _joining(root, tree.first, tree.second)
    return tree.first[joined], tree.second[joined]


def odd_cities(n: int, first: Int[np.ndarray, " edges"], second: Int[np.ndarray, " edges"]) -> Int[np.ndarray, " odd"]:
    """Cities of odd degree, in increasing order; their number is even.

    Parameters
    ----------
    n : int
        Number of cities.
    first, second : numpy.ndarray of shape (edges,)
        The edges.

    Returns
    -------
    numpy.ndarray

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_skeleton import odd_cities
    >>> odd_cities(4, np.array([0, 0, 0]), np.array([1, 2, 3]))
    array([0, 1, 2, 3])
    """
    degree = np.bincount(first, minlength=n) + np.bincount(second, minlength=n)
    return np.flatnonzero(degree % 2)


def eulerian_tour(
    costs: CityCosts,
    skeleton: tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]],
    pairs: Int[np.ndarray, "matched 2"],
    *,
    prune: bool = True,
    shortcut_best: bool = True,
) -> Int[np.ndarray, " cities"]:
    """Tour along a connected graph whose odd cities are paired.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    skeleton : pair of numpy.ndarray of shape (edges,)
        End points of the edges of a connected graph on all cities, each edge once.
    pairs : numpy.ndarray of shape (matched, 2)
        A perfect matching of the cities of odd degree.
    prune : bool, default=True
        Drop an edge that is in both (dearest first) when what remains is connected: degrees stay even, and the walk
        gets shorter by twice its cost.
    shortcut_best : bool, default=True
        Of the visits to a city, keep dropping the one that saves most; otherwise keep the first.

    Returns
    -------
    numpy.ndarray of shape (n,)
        Under the triangle inequality it costs at most the skeleton and the pairs together.

    Notes
    -----
    O(m log m) for m edges, plus one search per pruned edge.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_costs import read_costs
    >>> from assay.graphs.tour_skeleton import eulerian_tour
    >>> square = read_costs([[0, 0], [0, 1], [1, 1], [1, 0]])
    >>> path = np.array([0, 1, 2]), np.array([1, 2, 3])
    >>> tour = eulerian_tour(square, path, np.array([[0, 3]]))
    >>> square.tour_cost(tour)
    4.0
    """
    first = np.concatenate([skeleton[0], pairs[:, 0]]).astype(np.int64)
    second = np.concatenate([skeleton[1], pairs[:, 1]]).astype(np.int64)
    alive = np.ones(first.size, dtype=np.bool_)
    start, edge_at = _incidence(costs.n, first, second)
    if prune and len(pairs):
        _drop_doubles(costs, first, second, alive, start, edge_at, skeleton[0].size)
    walk = _closed_walk(costs.n, first, second, alive, start, edge_at)
    if shortcut_best:
        return _shortcut_by_saving(costs.points, costs.matrix, costs.n, walk)
    return _shortcut_to_first(costs.n, walk)


def unit_square(points: Float[np.ndarray, "points 2"]) -> Float[np.ndarray, "points 2"]:
    """Points moved to the origin and divided by a power of two, so that all are within 1 of it.

    What Qhull makes of points depends on where they are and how large, because it multiplies coordinates.

    Parameters
    ----------
    points : numpy.ndarray of shape (n, 2)
        Points in the plane.

    Returns
    -------
    numpy.ndarray of shape (n, 2)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_skeleton import unit_square
    >>> unit_square(np.array([[1e9, 0.0], [1e9 + 4, 6.0]]))
    array([[-0.5 , -0.75],
           [ 0.5 ,  0.75]])
    """
    centred = points - (points.min(axis=0) / 2 + points.max(axis=0) / 2)
    return np.ldexp(centred, -np.frexp(np.abs(centred).max())[1])


@numba.njit(cache=True)
def find_root(root, city):
    """Root of a city in a union-find forest, inside compiled kernels; halves the path."""
    while root[city] != city:
        root[city] = root[root[city]]
        city = root[city]
    return city


@numba.njit(cache=True)
def _prim(points, matrix):
    """Parent of each city in a minimum spanning tree rooted at city 0."""
    n = max(points.shape[0], matrix.shape[0])
    parent = np.zeros(n, dtype=np.int64)
    distance = np.full(n, np.inf)
    outside = np.ones(n, dtype=np.bool_)
    city = 0
    for _ in range(n - 1):
        outside[city] = False
        nearest = -1
        for other in range(n):
            if outside[other]:
                cost = pair_cost(points, matrix, city, other)
                if cost < distance[other]:
                    distance[other] = cost
                    parent[other] = city
                if nearest < 0 or distance[other] < distance[nearest]:
                    nearest = other
        city = nearest
    return parent


def _tree_of_triangulation(points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Spanning tree among the Delaunay edges, or None when the triangulation does not contain every city."""
    place, sample, which = np.unique(points, axis=0, return_index=True, return_inverse=True)
    try:
        triangulation = scipy.spatial.Delaunay(unit_square(place))
    except (scipy.spatial.QhullError, ValueError):  # all on a line, or too few different places
        return None
    if triangulation.coplanar.size:
        return None
    corner = np.sort(triangulation.simplices, axis=1)
    edges = np.unique(np.concatenate([corner[:, [0, 1]], corner[:, [0, 2]], corner[:, [1, 2]]]), axis=0)
    ends = np.sort(sample[edges], axis=1)
    copies = np.flatnonzero(sample[which] != np.arange(len(points)))
    ends = np.concatenate([np.column_stack([sample[which[copies]], copies]), ends])
    first, second = ends.min(axis=1), ends.max(axis=1)
    cost = CityCosts(points, np.empty((0, 0))).between(first, second)
    order = np.lexsort((second, first, cost))
    first, second = first[order], second[order]
    joined = _joining(np.arange(len(points)), first, second)
    if joined.size != len(points) - 1:
        return None
    return first[joined], second[joined]


@numba.njit(cache=True)
def _add_edges(root, degree, first, second, start, stop):
    for k in range(start, stop):
        degree[first[k]] += 1
        degree[second[k]] += 1
        a, b = find_root(root, first[k]), find_root(root, second[k])
        if a != b:
            root[max(a, b)] = min(a, b)


@numba.njit(cache=True)
def _joining(root, first, second):
    """Positions of the edges, in the given order, that connect two components; updates ``root``."""
    joined = np.empty(first.size, dtype=np.int64)
    count = 0
    for k in range(first.size):
        a, b = find_root(root, first[k]), find_root(root, second[k])
        if a != b:
            root[max(a, b)] = min(a, b)
            joined[count] = k
            count += 1
    return joined[:count]


@numba.njit(cache=True)
def _incidence(n, first, second):
    """For each city the edges at it, one list after the other: those of city v are edge_at[start[v]:start[v + 1]]."""
    start = np.zeros(n + 1, dtype=np.int64)
    for k in range(first.size):
        start[first[k] + 1] += 1
        start[second[k] + 1] += 1
    for city in range(n):
        start[city + 1] += start[city]
    fill = start[:-1].copy()
    edge_at = np.empty(2 * first.size, dtype=np.int64)
    for k in range(first.size):
        edge_at[fill[first[k]]] = k
        fill[first[k]] += 1
        edge_at[fill[second[k]]] = k
        fill[second[k]] += 1
    return start, edge_at


def _drop_doubles(
    costs: CityCosts,
    first: np.ndarray,
    second: np.ndarray,
    alive: np.ndarray,
    start: np.ndarray,
    edge_at: np.ndarray,
    n_skeleton: int,
) -> None:
    """Remove both copies of an edge of the skeleton that is also a pair, dearest first, unless that disconnects."""
    twin = _twins(first, second, start, edge_at, n_skeleton)
    dearest_first = np.argsort(-costs.between(first[n_skeleton:], second[n_skeleton:]), kind="stable")
    _drop_in_order(first, second, alive, start, edge_at, twin, dearest_first[twin[dearest_first] >= 0])


@numba.njit(cache=True)
def _twins(first, second, start, edge_at, n_skeleton):
    """For each pair the edge of the skeleton with the same ends, -1 if there is none."""
    n_pairs = first.size - n_skeleton
    twin = np.full(n_pairs, -1, dtype=np.int64)
    for pair in range(n_pairs):
        a, b = first[n_skeleton + pair], second[n_skeleton + pair]
        for position in range(start[a], start[a + 1]):
            edge = edge_at[position]
            if edge < n_skeleton and first[edge] + second[edge] - a == b:
                twin[pair] = edge
                break
    return twin


@numba.njit(cache=True)
def _drop_in_order(first, second, alive, start, edge_at, twin, pairs):
    """Kill these pairs and their twins, one after the other, unless that disconnects."""
    n_skeleton = first.size - twin.size
    seen = np.full(start.size - 1, -1, dtype=np.int64)
    queue = np.empty(start.size - 1, dtype=np.int64)
    for pair in pairs:
        alive[twin[pair]] = alive[n_skeleton + pair] = False
        source, target = first[twin[pair]], second[twin[pair]]
        seen[source] = pair
        queue[0] = source
        head, tail = 0, 1
        while head < tail and seen[target] != pair:
            city = queue[head]
            head += 1
            for position in range(start[city], start[city + 1]):
                edge = edge_at[position]
                other = first[edge] + second[edge] - city
                if alive[edge] and seen[other] != pair:
                    seen[other] = pair
                    queue[tail] = other
                    tail += 1
        if seen[target] != pair:
            alive[twin[pair]] = alive[n_skeleton + pair] = True


@numba.njit(cache=True)
def _closed_walk(n, first, second, alive, start, edge_at):
    """Closed walk along every living edge once (Hierholzer), as the cities in order, the first not repeated."""
    unused = alive.copy()
    pointer = start[:-1].copy()
    stack = np.empty(first.size + 1, dtype=np.int64)
    walk = np.empty(first.size + 1, dtype=np.int64)
    stack[0] = 0
    height, length = 1, 0
    while height > 0:
        city = stack[height - 1]
        while pointer[city] < start[city + 1] and not unused[edge_at[pointer[city]]]:
            pointer[city] += 1
        if pointer[city] == start[city + 1]:
            walk[length] = city
            length += 1
            height -= 1
        else:
            edge = edge_at[pointer[city]]
            unused[edge] = False
            stack[height] = first[edge] + second[edge] - city
            height += 1
    return walk[: length - 1]


@numba.njit(cache=True)
def _shortcut_to_first(n, walk):
    visited = np.zeros(n, dtype=np.bool_)
    tour = np.empty(n, dtype=np.int64)
    length = 0
    for city in walk:
        if not visited[city]:
            visited[city] = True
            tour[length] = city
            length += 1
    return tour[:length]


@numba.njit(cache=True)
def _saving(points, matrix, walk, before, after, visit):
    a, b, c = walk[before[visit]], walk[visit], walk[after[visit]]
    return pair_cost(points, matrix, a, b) + pair_cost(points, matrix, b, c) - pair_cost(points, matrix, a, c)


@numba.njit(cache=True)
def _shortcut_by_saving(points, matrix, n, walk):
    """Drop, again and again, the visit to a city visited more than once that saves most."""
    length = walk.size
    visits = np.zeros(n, dtype=np.int64)
    for city in walk:
        visits[city] += 1
    before = np.arange(-1, length - 1)
    before[0] = length - 1
    after = np.arange(1, length + 1)
    after[length - 1] = 0
    version = np.zeros(length, dtype=np.int64)
    dropped = np.zeros(length, dtype=np.bool_)
    queue = [(0.0, np.int64(-1), np.int64(0)) for _ in range(0)]
    for visit in range(length):
        if visits[walk[visit]] > 1:
            saving = _saving(points, matrix, walk, before, after, visit)
            queue.append((-saving, np.int64(visit), np.int64(0)))
    heapq.heapify(queue)
    while len(queue) > 0:
        _, visit, stamp = heapq.heappop(queue)
        if dropped[visit] or stamp != version[visit] or visits[walk[visit]] == 1:
            continue
        dropped[visit] = True
        visits[walk[visit]] -= 1
        left, right = before[visit], after[visit]
        after[left], before[right] = right, left
        for neighbour in (left, right):
            if visits[walk[neighbour]] > 1:
                version[neighbour] += 1
                saving = _saving(points, matrix, walk, before, after, neighbour)
                heapq.heappush(queue, (-saving, np.int64(neighbour), np.int64(version[neighbour])))
    return walk[~dropped]
