"""Disjoint paths: picked greedily from a list of edges, and joined to a tour.

Both follow the greedy rule, which takes edges in order of preference as long as no city gets a third one and no cycle
closes before the end. The first works on listed edges; the second on all pairs of open ends, of which there may be
many, so they are never listed: each open end knows the nearest end of another path.
"""

from __future__ import annotations

import heapq
import math

import numba
import numpy as np
from jaxtyping import Int

from assay.graphs.tour_costs import CityCosts, EdgeScores, pair_cost
from assay.graphs.tour_skeleton import find_root

__all__ = ["close_fragments", "greedy_fragments", "greedy_order"]


def greedy_order(costs: CityCosts, scores: EdgeScores) -> EdgeScores:
    """The scored edges by decreasing score per cost, most wanted first.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    scores : EdgeScores
        The edges with a positive score.

    Returns
    -------
    EdgeScores
        The same edges; those that cost nothing come first, ties are in the order of the cities.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_costs import read_costs, read_scores
    >>> from assay.graphs.tour_fragments import greedy_order
    >>> scores = read_scores({(0, 1): 0.5, (0, 2): 0.8, (1, 2): 0.9}, 3)
    >>> greedy_order(read_costs([[0, 1, 2], [1, 0, 2], [2, 2, 0]]), scores).second
    array([1, 2, 2])
    """
    cost = costs.between(scores.first, scores.second)
    # In a unit that is a power of two, which rounds nothing: scores over the tiniest costs would all be infinite.
    unit = -math.frexp(cost.max(initial=0.0))[1]
    with np.errstate(divide="ignore", over="ignore"):
        ratio = scores.score / np.ldexp(cost, unit)
    order = np.lexsort((scores.second, scores.first, -ratio))
    return EdgeScores(scores.first[order], scores.second[order], scores.score[order])


def greedy_fragments(
    n: int, first: Int[np.ndarray, " edges"], second: Int[np.ndarray, " edges"]
) -> Int[np.ndarray, " accepted"]:
    """Positions of the edges that are accepted one by one, as long as they form disjoint paths.

    Parameters
    ----------
    n : int
        Number of cities.
    first, second : numpy.ndarray of shape (edges,)
        The edges, most wanted first.

    Returns
    -------
    numpy.ndarray of shape (accepted,)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_fragments import greedy_fragments
    >>> greedy_fragments(4, np.array([0, 1, 0, 1]), np.array([1, 2, 2, 3]))  # the third would close a cycle
    array([0, 1])
    """
    return np.flatnonzero(_fragments(n, first, second))


def close_fragments(
    costs: CityCosts, first: Int[np.ndarray, " edges"], second: Int[np.ndarray, " edges"]
) -> Int[np.ndarray, " cities"]:
    """Join disjoint paths to a tour by the greedy rule: always the cheapest edge that joins two of them.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    first, second : numpy.ndarray of shape (edges,)
        The edges of the paths; cities without an edge are paths of their own.

    Returns
    -------
    numpy.ndarray of shape (n,)

    Notes
    -----
    Exactly the order of a sort of all pairs (ties: by increasing cities), with O(n) memory: every open end remembers
    the nearest end of another path, and looks again only when that one is taken.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_costs import read_costs
    >>> from assay.graphs.tour_fragments import close_fragments
    >>> none = np.array([], dtype=int)
    >>> close_fragments(read_costs([[0, 0], [1, 1], [0, 1], [1, 0]]), none, none).tolist()
    [1, 2, 0, 3]
    """
    return _close(costs.points, costs.matrix, costs.n, first.astype(np.int64), second.astype(np.int64))


@numba.njit(cache=True)
def _fragments(n, first, second):
    root = np.arange(n)
    degree = np.zeros(n, dtype=np.int64)
    accepted = np.zeros(first.size, dtype=np.bool_)
    for k in range(first.size):
        i, j = first[k], second[k]
        if degree[i] == 2 or degree[j] == 2:
            continue
        a, b = find_root(root, i), find_root(root, j)
        if a != b:
            root[max(a, b)] = min(a, b)
            degree[i] += 1
            degree[j] += 1
            accepted[k] = True
    return accepted


@numba.njit(cache=True)
def _nearest_end(points, matrix, root, degree, ends, city):
    """Cheapest edge from an open end to an end of another path, as (cost, smaller city, larger city)."""
    own = find_root(root, city)
    best, low, high = np.inf, np.int64(-1), np.int64(-1)
    for other in ends:
        if degree[other] < 2:
            cost = pair_cost(points, matrix, city, other)
            if cost <= best and find_root(root, other) != own:
                a, b = min(city, other), max(city, other)
                if cost < best or a < low or (a == low and b < high):
                    best, low, high = cost, a, b
    return best, low, high


@numba.njit(cache=True)
def _close(points, matrix, n, first, second):
    root = np.arange(n)
    degree = np.zeros(n, dtype=np.int64)
    neighbour = np.full((n, 2), -1, dtype=np.int64)
    for k in range(first.size):
        i, j = first[k], second[k]
        neighbour[i, degree[i]] = j
        neighbour[j, degree[j]] = i
        degree[i] += 1
        degree[j] += 1
        a, b = find_root(root, i), find_root(root, j)
        root[max(a, b)] = min(a, b)
    ends = np.flatnonzero(degree < 2)
    n_missing = n - 1 - first.size
    queue = [(0.0, np.int64(0), np.int64(0), np.int64(0)) for _ in range(0)]
    if n_missing > 0:
        for city in ends:
            cost, low, high = _nearest_end(points, matrix, root, degree, ends, city)
            queue.append((cost, low, high, city))
    heapq.heapify(queue)
    while n_missing > 0:
        cost, i, j, owner = heapq.heappop(queue)
        if degree[owner] == 2:
            continue
        a, b = find_root(root, i), find_root(root, j)
        if degree[i] < 2 and degree[j] < 2 and a != b:
            neighbour[i, degree[i]] = j
            neighbour[j, degree[j]] = i
            degree[i] += 1
            degree[j] += 1
            root[max(a, b)] = min(a, b)
            n_missing -= 1
            if 4 * n_missing < ends.size:  # forget the ends that are taken
                ends = ends[degree[ends] < 2]
        if degree[owner] < 2 and n_missing > 0:
            cost, low, high = _nearest_end(points, matrix, root, degree, ends, owner)
            heapq.heappush(queue, (cost, low, high, owner))
    # One path is left: walk it from one end to the other.
    tour = np.empty(n, dtype=np.int64)
    city, previous = np.flatnonzero(degree < 2)[0], -1
    for k in range(n):
        tour[k] = city
        following = neighbour[city, 0] if neighbour[city, 0] != previous else neighbour[city, 1]
        previous, city = city, following
    return tour
