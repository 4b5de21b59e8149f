r"""Minimum-cost perfect matching of a complete graph, with a certificate of how far from optimal it can be.

Any vertex values ``y`` and non-negative values ``z`` on odd vertex sets whose reduced costs
``c(i, j) - y(i) - y(j) + sum of z(B) over the sets B that contain i and j`` are non-negative prove that no perfect
matching is cheaper than ``sum y - sum z(B) (|B| - 1) / 2``. The compiled blossom algorithm returns such values together
with its matching; here they are checked against the original costs in double precision (and lowered where rounding
made a reduced cost negative), so that the reported gap does not rest on the algorithm's own arithmetic.

Small graphs are solved complete. Larger ones start from the nearest neighbours of every vertex and add the edges that
the duals prove to be missing until none is left (``"exact"``), or stop there and exchange pairs (``"sparse"``);
neither ever holds a matrix when the vertices are points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from jaxtyping import Float, Int
from numba import njit
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from assay.certificate import Certificate
from assay.graphs.rounded_matching import MatchingDuals, preorder_matching, solve_complete, solve_on_neighbors
from assay.graphs.tour_costs import CityCosts, check_range, pair_cost, without_diagonal
from assay.result import Result
from assay.validation import as_float_array, check_choice

__all__ = [
    "MatchingResult",
    "dual_bound",
    "matching_lower_bound",
    "min_weight_perfect_matching",
    "perfect_matching",
]

# Above this many vertices "auto" no longer insists on optimality.
_EXACT_LIMIT = 10_000
_N_NEIGHBORS = 8
_SYMMETRY_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MatchingResult(Result):
    """A perfect matching and how far from optimal it can be.

    Parameters
    ----------
    pairs : numpy.ndarray of shape (k / 2, 2), int64
        Matched vertices, each pair and the list of pairs in ascending order.
    cost : float
        Sum of the costs of the pairs.
    lower_bound : float
        No perfect matching costs less.
    gap : float
        ``cost - lower_bound``, at least 0; exactly 0 when it is no more than rounding.
    exact : bool
        Whether the matching is of minimum cost: proven by ``gap == 0``, except for the engine ``"networkx"``, which
        returns no duals and is taken at its word.
    method : str
        ``"exact"``, ``"sparse"`` or ``"networkx"``.
    vertex_duals : numpy.ndarray of shape (k,)
        The values ``y`` of the vertices that prove ``lower_bound``; empty for ``"networkx"``.
    blossoms : tuple of numpy.ndarray
        Odd vertex sets with a positive dual.
    blossom_duals : numpy.ndarray of shape (len(blossoms),)
        The values ``z`` of these sets.
    """

    pairs: Int[np.ndarray, "pairs 2"]
    cost: float
    lower_bound: float
    gap: float
    exact: bool
    method: str
    vertex_duals: Float[np.ndarray, " vertices"]
    blossoms: tuple[Int[np.ndarray, " _members"], ...]
    blossom_duals: Float[np.ndarray, " blossoms"]


def perfect_matching(cost: ArrayLike | CityCosts, method: str = "auto") -> MatchingResult:
    """Match an even number of vertices in pairs of small total cost.

    Parameters
    ----------
    cost : array_like of shape (k, k) or (k, 2), or CityCosts
        Symmetric costs of any sign (the diagonal is ignored), or points whose distances are the costs. A 2 by 2 array
        is a cost matrix.
    method : {"auto", "exact", "sparse", "networkx"}, default="auto"
        ``"exact"`` is :func:`min_weight_perfect_matching`. ``"sparse"`` is optimal on the graph of the 8 nearest
        neighbours and one fallback matching (consecutive vertices in preorder of a minimum spanning tree), then
        exchanges two pairs for as long as that pays. ``"networkx"`` calls ``networkx.min_weight_matching`` and bounds
        its gap with :func:`matching_lower_bound`. ``"auto"`` is exact up to 10000 vertices, sparse beyond.

    Returns
    -------
    MatchingResult

    Raises
    ------
    TypeError, ValueError
        If the number of vertices is odd, the costs are not finite or not symmetric, or the method is unknown.

    Examples
    --------
    >>> from assay.graphs.matching import perfect_matching
    >>> matching = perfect_matching([[0, 0], [0, 1], [5, 0], [5, 1]])
    >>> matching.pairs.tolist(), matching.cost, matching.gap
    ([[0, 1], [2, 3]], 2.0, 0.0)
    """
    costs = _matching_costs(cost)
    check_choice(method, "method", ("auto", "exact", "sparse", "networkx"))
    if method == "auto":
        method = "exact" if costs.n <= _EXACT_LIMIT else "sparse"
    if costs.n == 0:
        return _empty(method)
    if method == "networkx":
        return _solve_with_networkx(costs)
    if method == "sparse":
        fallback = preorder_matching(costs)
        duals = solve_on_neighbors(costs, _N_NEIGHBORS, fallback)
        _exchange_pairs(costs.points, costs.matrix, duals.mate)
        return _certified(costs, duals, "sparse", fallback)
    return _certified(costs, solve_complete(costs), "exact")


def min_weight_perfect_matching(cost: ArrayLike | CityCosts) -> MatchingResult:
    """Match an even number of vertices in pairs of minimum total cost.

    Edmonds' blossom algorithm on costs rounded to 44-bit integers (integers of up to 44 bits are not rounded), where
    it needs no tolerances. Costs that no optimal matching can use are cut off first, so that a few huge ones do not
    cost the others their precision.

    Parameters
    ----------
    cost : array_like of shape (k, k) or (k, 2), or CityCosts
        Symmetric costs of any sign (the diagonal is ignored), or points whose distances are the costs. A 2 by 2 array
        is a cost matrix.

    Returns
    -------
    MatchingResult
        With the duals that prove optimality.

    Raises
    ------
    TypeError, ValueError
        If the number of vertices is odd, or the costs are not finite or not symmetric.

    Notes
    -----
    O(k^3 log k) in the worst case, in practice about quadratic: 10 ms for 600 points in the plane. Memory O(k) for
    points, plus the O(k) edges that are looked at.

    References
    ----------
    .. [1] J. Edmonds. Maximum matching and a polyhedron with 0,1-vertices. Journal of Research of the National Bureau
       of Standards 69B (1965), 125-130.
    .. [2] Z. Galil. Efficient algorithms for finding maximum matching in graphs. ACM Computing Surveys 18 (1986),
       23-38.
    .. [3] W. Cook, A. Rohe. Computing minimum-weight perfect matchings. INFORMS Journal on Computing 11 (1999),
       138-148.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.matching import min_weight_perfect_matching
    >>> points = np.random.default_rng(0).random((100, 2))
    >>> matching = min_weight_perfect_matching(points)
    >>> round(matching.cost, 7), matching.exact
    (3.3717841, True)
    """
    return perfect_matching(cost, "exact")


def matching_lower_bound(cost: ArrayLike | CityCosts) -> float:
    """Half the cost of the assignment problem without fixed points: no perfect matching costs less.

    A perfect matching taken in both directions is such an assignment. The bound needs no duals, only a solver of
    assignment problems, but it allows odd cycles and is usually a few per cent low.

    Parameters
    ----------
    cost : array_like of shape (k, k) or (k, 2), or CityCosts
        As in :func:`perfect_matching`.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        As :func:`perfect_matching`.

    Notes
    -----
    O(k^3) time and O(k^2) memory.

    Examples
    --------
    >>> from assay.graphs.matching import matching_lower_bound
    >>> matching_lower_bound([[0, 0], [0, 1], [5, 0], [5, 1]])
    2.0
    """
    costs = _matching_costs(cost)
    if costs.n == 0:
        return 0.0
    matrix = costs.block(np.arange(costs.n)).copy()
    np.fill_diagonal(matrix, np.inf)
    rows, columns = linear_sum_assignment(matrix)
    return math.fsum(matrix[rows, columns]) / 2


def dual_bound(
    cost: ArrayLike | CityCosts,
    vertex_duals: ArrayLike,
    blossoms: Sequence[ArrayLike] = (),
    blossom_duals: ArrayLike = (),
) -> float:
    """Lower bound on the cost of every perfect matching that given duals prove.

    Parameters
    ----------
    cost : array_like of shape (k, k) or (k, 2), or CityCosts
        As in :func:`perfect_matching`.
    vertex_duals : array_like of shape (k,)
        Any values. Where they leave a reduced cost negative, they are lowered until none is.
    blossoms : sequence of array_like of int, default=()
        Vertex sets of odd size, any two of them disjoint or nested.
    blossom_duals : array_like of shape (len(blossoms),), default=()
        Non-negative values of these sets.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        As :func:`perfect_matching`, and if a set is not an odd set of vertices, two sets overlap, a value is negative,
        or sizes differ.

    Notes
    -----
    O(k^2) pairs, each of which costs at most the depth to which the sets are nested; O(k) memory beyond the input.

    Examples
    --------
    >>> from assay.graphs.matching import dual_bound
    >>> dual_bound([[0, 0], [0, 1], [5, 0], [5, 1]], [0.5, 0.5, 0.5, 0.5])
    2.0
    """
    costs = _matching_costs(cost)
    values = as_float_array(vertex_duals, "vertex_duals", ndim=1, allow_empty=True)
    if values.shape != (costs.n,):
        raise ValueError(f"vertex_duals must have length {costs.n}, got {values.shape[0]}")
    if not isinstance(blossoms, Sequence):
        raise TypeError(f"blossoms must be a sequence of vertex sets, got {type(blossoms).__name__}")
    set_values = as_float_array(blossom_duals, "blossom_duals", ndim=1, allow_empty=True)
    if set_values.shape != (len(blossoms),):
        raise ValueError(f"blossom_duals must have length {len(blossoms)}, got {set_values.shape[0]}")
    if set_values.size and set_values.min() < 0:
        raise ValueError(f"blossom_duals must be non-negative, got a minimum of {set_values.min():g}")
    if not max(np.abs(values).max(initial=0.0), set_values.max(initial=0.0)) < np.finfo(float).max / (8 * costs.n + 8):
        raise ValueError("vertex_duals and blossom_duals must have sums in the range of floats")
    sets = [np.unique(np.asarray(members)) for members in blossoms]
    for given, members in zip(blossoms, sets, strict=True):
        if members.dtype.kind not in "iu" or len(members) != len(given) or len(members) % 2 == 0:
            raise ValueError(f"blossoms must be odd sets of vertex numbers, got {given!r}")
        if members[0] < 0 or members[-1] >= costs.n:
            raise ValueError(f"blossoms must have vertex numbers from 0 to {costs.n - 1}, got {given!r}")
    return _dual_bound(costs, values, sets, set_values)


def _certified(
    costs: CityCosts, duals: MatchingDuals, method: str, fallback: Int[np.ndarray, " vertices"] | None = None
) -> MatchingResult:
    """The result, with cost and bound computed anew from the pairs and the duals."""
    pairs, cost = _pairs_and_cost(costs, duals.mate)
    bound = _dual_bound(costs, duals.vertex, duals.sets, duals.of_sets)
    if cost - bound <= duals.precision:
        bound = cost
    certificates = [Certificate("cost of the matching against the bound of its duals", cost, bound)]
    if fallback is not None:
        statement = "cost against the matching of consecutive vertices in preorder of a minimum spanning tree"
        certificates = [Certificate(statement, cost, _pairs_and_cost(costs, fallback)[1])]
    return MatchingResult(
        pairs=pairs,
        cost=cost,
        lower_bound=bound,
        gap=cost - bound,
        exact=cost == bound,
        method=method,
        vertex_duals=duals.vertex,
        blossoms=tuple(duals.sets),
        blossom_duals=duals.of_sets,
        certificates=tuple(certificates),
    )


def _solve_with_networkx(costs: CityCosts) -> MatchingResult:
    matrix = costs.block(np.arange(costs.n))
    # networkx subtracts the costs from the largest plus 1, in which small ones would drown.
    _, exponent = math.frexp(np.abs(matrix).max())
    scaled = np.ldexp(matrix, 10 - exponent)
    graph = nx.Graph()
    graph.add_weighted_edges_from((i, j, float(scaled[i, j])) for i in range(costs.n) for j in range(i))
    mate = np.empty(costs.n, dtype=np.int64)
    for i, j in nx.min_weight_matching(graph):
        mate[i], mate[j] = j, i
    pairs, cost = _pairs_and_cost(costs, mate)
    bound = min(matching_lower_bound(costs), cost)
    return MatchingResult(
        pairs=pairs,
        cost=cost,
        lower_bound=bound,
        gap=cost - bound,
        exact=True,
        method="networkx",
        vertex_duals=np.empty(0),
        blossoms=(),
        blossom_duals=np.empty(0),
        certificates=(Certificate("half the assignment bound against the cost of the matching", bound, cost),),
    )


def _pairs_and_cost(costs: CityCosts, mate: np.ndarray) -> tuple[Int[np.ndarray, "pairs 2"], float]:
    smaller = np.flatnonzero(np.arange(costs.n) < mate)
    pairs = np.column_stack([smaller, mate[smaller]])
    return pairs, math.fsum(costs.between(pairs[:, 0], pairs[:, 1]))


@njit(cache=True)
def _exchange_pairs(points, matrix, mate):
    """Exchange the partners of two pairs, in place, for as long as some exchange pays."""
    n = mate.shape[0]
    # An exchange that pays, after all pairs were looked at once, involves a new pair. A pair waits as one of its ends.
    waiting = np.empty(n, np.int64)
    is_waiting = np.arange(n) < mate
    front, count = 0, 0
    for vertex in np.flatnonzero(is_waiting):
        waiting[count] = vertex
        count += 1
    while count > 0:
        a = waiting[front]
        front = (front + 1) % n
        count -= 1
        is_waiting[a] = False
        for c in range(n):
            b, d = mate[a], mate[c]
            if c in (a, b):
                continue
            # The other way to exchange the two pairs is met when c is d.
            before = pair_cost(points, matrix, a, b) + pair_cost(points, matrix, c, d)
            after = pair_cost(points, matrix, a, c) + pair_cost(points, matrix, b, d)
            if after < before - 1e-12 * abs(before):
                mate[a], mate[c], mate[b], mate[d] = c, a, d, b
                for vertex in (a, b):
                    if not is_waiting[vertex]:
                        is_waiting[vertex] = True
                        waiting[(front + count) % n] = vertex
                        count += 1


def _dual_bound(costs: CityCosts, values: np.ndarray, sets: list[np.ndarray], set_values: np.ndarray) -> float:
    sizes = np.array([len(members) for members in sets], dtype=np.int64)
    order = np.argsort(sizes, kind="stable")
    members = np.concatenate([np.empty(0, np.int64), *(sets[b] for b in order)]).astype(np.int64)
    start = np.concatenate([[0], np.cumsum(sizes[order])]).astype(np.int64)
    up = _containment(costs.n, start, members)
    if len(up) == 0:
        raise ValueError("blossoms must be disjoint or nested, got two sets that overlap")
    excess = _largest_excess(costs.points, costs.matrix, values, up, set_values[order])
    return math.fsum([*values, *(-excess / 2), *(-set_values * ((sizes - 1) // 2))])


@njit(cache=True)
def _containment(n, start, members):
    """The smallest set around every vertex and every set (of ascending sizes), -1 if none; empty if sets overlap."""
    n_sets = start.shape[0] - 1
    up = np.full(n + n_sets, -1, np.int64)
    outermost = np.arange(n)
    size = np.ones(n + n_sets, np.int64)
    for b in range(n_sets):
        node = n + b
        size[node] = start[b + 1] - start[b]
        covered = 0
        for member in members[start[b] : start[b + 1]]:
            part = outermost[member]
            if up[part] != node:
                up[part] = node
                covered += size[part]
        if covered != size[node]:
            return np.empty(0, np.int64)
        for member in members[start[b] : start[b + 1]]:
            outermost[member] = node
    return up


@njit(cache=True)
def _largest_excess(points, matrix, values, up, set_values):
    """For every vertex, by how much its worst reduced cost is below zero."""
    n = values.shape[0]
    depth = np.zeros(up.shape[0], np.int64)
    total = np.zeros(up.shape[0])
    for node in range(up.shape[0] - 1, -1, -1):
        if node >= n:
            total[node] = set_values[node - n]
        if up[node] >= 0:
            depth[node] = depth[up[node]] + 1
            total[node] += total[up[node]]
    excess = np.zeros(n)
    for i in range(n):
        for j in range(i):
            below = values[i] + values[j] - pair_cost(points, matrix, i, j)
            if below > excess[i] or below > excess[j]:
                left, right = np.int64(i), np.int64(j)
                while left != right and left >= 0:
                    if depth[left] < depth[right]:
                        left, right = right, left
                    left = up[left]
                if left >= 0:
                    below -= total[left]
                excess[i] = max(excess[i], below)
                excess[j] = max(excess[j], below)
    return excess


def _matching_costs(cost: ArrayLike | CityCosts) -> CityCosts:
    if isinstance(cost, CityCosts):
        costs = cost
    else:
        array = as_float_array(without_diagonal(cost), "cost", ndim=2, allow_empty=True)
        rows, columns = array.shape
        if rows == columns:
            asymmetry = 2 * np.abs(array / 2 - array.T / 2).max(initial=0.0)
            if asymmetry > _SYMMETRY_TOLERANCE * np.abs(array).max(initial=0.0):
                raise ValueError(f"cost must be symmetric, got entries that differ by {asymmetry:g} from their mirror")
            costs = CityCosts(np.empty((0, 2)), np.ascontiguousarray(array / 2 + array.T / 2))
        elif columns == 2:
            costs = CityCosts(np.ascontiguousarray(array), np.empty((0, 0)))
        else:
            raise ValueError(f"cost must have shape (k, k) or (k, 2), got {array.shape}")
        check_range(costs)
    if costs.n % 2:
        raise ValueError(f"cost must have an even number of vertices, got {costs.n}")
    return costs


def _empty(method: str) -> MatchingResult:
    return MatchingResult(
        pairs=np.empty((0, 2), dtype=np.int64),
        cost=0.0,
        lower_bound=0.0,
        gap=0.0,
        exact=True,
        method=method,
        vertex_duals=np.empty(0),
        blossoms=(),
        blossom_duals=np.empty(0),
        certificates=(Certificate("cost of the matching against its lower bound", 0.0, 0.0),),
    )
