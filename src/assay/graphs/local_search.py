"""Local search on tours: moves that lower the cost, until there is none.

2-opt replaces two edges by the other two that close the tour again, which turns round the path between them. Or-opt
moves a path of one to three cities somewhere else, turned round or not. Both look, from every city, only at its nearest
neighbours, and look again only at cities whose edges changed (*don't-look bits*), so that a search costs little more
than a look at every city and a last one that finds nothing. The tour is an array with the position of every city;
turning a path round reverses the shorter side.

A move counts as an improvement when it gains more than rounding could pretend, so the cost never increases and the
search ends.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int
from numba import njit
from numpy.typing import ArrayLike

from assay.graphs.tour_costs import CityCosts, check_tour, normalize_tour, pair_cost, read_costs
from assay.graphs.tours import nearest_cities
from assay.validation import check_choice, check_integer

__all__ = ["or_opt", "two_opt"]

# Of the cost of the removed edges.
_SMALLEST_GAIN = 1e-12
_LONGEST_SEGMENT = 3


def two_opt(
    cost: ArrayLike | CityCosts, tour: ArrayLike, *, n_neighbors: int = 10, method: str = "neighbors"
) -> Int[np.ndarray, " cities"]:
    """Exchange two edges of a tour for two others for as long as that lowers its cost.

    Parameters
    ----------
    cost : array_like of shape (n, n) or (n, 2), or CityCosts
        Symmetric costs, or points whose distances are the costs.
    tour : array_like of int, shape (n,)
        City numbers in the order of the visit.
    n_neighbors : int, default=10
        How many of the nearest neighbours of each city may become its new neighbour. With n - 1, the result is a local
        optimum of the complete neighbourhood.
    method : {"neighbors", "plain"}, default="neighbors"
        ``"plain"`` is the textbook loop over all pairs of edges, in pure Python, to compare with.

    Returns
    -------
    numpy.ndarray of shape (n,), int64
        A tour of at most the same cost, starting at city 0, its second city smaller than its last.

    Raises
    ------
    TypeError, ValueError
        If the costs or the tour are not valid, or an option is unknown.

    Notes
    -----
    O(n k) for a pass plus O(n) at worst for every improvement; memory O(n k) for points.

    References
    ----------
    .. [1] G. A. Croes. A method for solving traveling-salesman problems. Operations Research 6 (1958), 791-812.
    .. [2] J. L. Bentley. Fast algorithms for geometric traveling salesman problems. ORSA Journal on Computing 4 (1992),
       387-411.

    Examples
    --------
    >>> from assay.graphs.local_search import two_opt
    >>> two_opt([[0, 0], [0, 1], [1, 1], [1, 0]], [0, 2, 1, 3])
    array([0, 1, 2, 3])
    """
    n_neighbors = check_integer(n_neighbors, "n_neighbors", minimum=1)
    costs, start = _checked(cost, tour)
    if check_choice(method, "method", ("neighbors", "plain")) == "plain":
        found = _plain_two_opt(costs.block(np.arange(costs.n)).tolist(), start.tolist())
    else:
        neighbors = nearest_cities(costs, n_neighbors)
        found = start.copy()
        _two_opt(costs.points, costs.matrix, neighbors, found)
    return _not_worse(costs, start, np.asarray(found, dtype=np.int64))


def or_opt(
    cost: ArrayLike | CityCosts, tour: ArrayLike, *, n_neighbors: int = 10, method: str = "neighbors"
) -> Int[np.ndarray, " cities"]:
    """Move paths of one to three cities to another place in a tour for as long as that lowers its cost.

    Parameters
    ----------
    cost : array_like of shape (n, n) or (n, 2), or CityCosts
        Symmetric costs, or points whose distances are the costs.
    tour : array_like of int, shape (n,)
        City numbers in the order of the visit.
    n_neighbors : int, default=10
        How many of the nearest neighbours of each city may become its new neighbour. With n - 1, the result is a local
        optimum of the complete neighbourhood.
    method : {"neighbors", "plain"}, default="neighbors"
        ``"plain"`` is the textbook loop over all segments and places, in pure Python, to compare with.

    Returns
    -------
    numpy.ndarray of shape (n,), int64
        A tour of at most the same cost, starting at city 0, its second city smaller than its last.

    Raises
    ------
    TypeError, ValueError
        If the costs or the tour are not valid, or an option is unknown.

    Notes
    -----
    O(n k) for a pass plus O(n) at worst for every improvement; memory O(n k) for points.

    References
    ----------
    .. [1] I. Or. Traveling salesman-type combinatorial problems and their relation to the logistics of regional blood
       banking. PhD thesis, Northwestern University, 1976.

    Examples
    --------
    >>> from assay.graphs.local_search import or_opt
    >>> or_opt([[0, 0], [1, 0], [2, 0], [2, 1], [0, 1]], [0, 2, 1, 3, 4])
    array([0, 1, 2, 3, 4])
    """
    n_neighbors = check_integer(n_neighbors, "n_neighbors", minimum=1)
    costs, start = _checked(cost, tour)
    if check_choice(method, "method", ("neighbors", "plain")) == "plain":
        found = _plain_or_opt(costs.block(np.arange(costs.n)).tolist(), start.tolist())
    else:
        neighbors = nearest_cities(costs, n_neighbors)
        found = start.copy()
        _or_opt(costs.points, costs.matrix, neighbors, found)
    return _not_worse(costs, start, np.asarray(found, dtype=np.int64))


def _checked(cost: ArrayLike | CityCosts, tour: ArrayLike) -> tuple[CityCosts, Int[np.ndarray, " cities"]]:
    costs = read_costs(cost)
    return costs, check_tour(tour, costs.n, "tour")


def _not_worse(
    costs: CityCosts, start: Int[np.ndarray, " cities"], found: Int[np.ndarray, " cities"]
) -> Int[np.ndarray, " cities"]:
    """Every accepted move gains, but it is the sums of all edges that are compared in the end."""
    return normalize_tour(found if costs.tour_cost(found) <= costs.tour_cost(start) else start)


def _plain_two_opt(cost: list[list[float]], tour: list[int]) -> list[int]:
    n = len(tour)
    improved = True
    while improved:
        improved = False
        for i in range(n - 2):
            for j in range(i + 2, n if i > 0 else n - 1):
                a, b, c, d = tour[i], tour[i + 1], tour[j], tour[(j + 1) % n]
                removed = cost[a][b] + cost[c][d]
                if removed - cost[a][c] - cost[b][d] > _SMALLEST_GAIN * removed:
                    tour[i + 1 : j + 1] = tour[i + 1 : j + 1][::-1]
                    improved = True
    return tour


def _plain_or_opt(cost: list[list[float]], tour: list[int]) -> list[int]:
    n = len(tour)
    improved = True
    while improved:
        improved = False
        for length in range(1, min(_LONGEST_SEGMENT, n - 3) + 1):
            for _ in range(n):
                tour = tour[1:] + tour[:1]  # every city comes first once
                segment, rest = tour[:length], tour[length:]
                first, last = segment[0], segment[-1]
                before = cost[rest[-1]][first] + cost[last][rest[0]]
                joined = cost[rest[-1]][rest[0]]
                for j in range(len(rest) - 1):
                    x, y = rest[j], rest[j + 1]
                    removed = before + cost[x][y]
                    straight = removed - joined - cost[x][first] - cost[last][y]
                    turned = removed - joined - cost[x][last] - cost[first][y]
                    if max(straight, turned) > _SMALLEST_GAIN * removed:
                        moved = segment if straight >= turned else segment[::-1]
                        tour = rest[: j + 1] + moved + rest[j + 1 :]
                        improved = True
                        break
    return tour


@njit(cache=True)
def _reverse(tour, position, first, last):
    """Turn round the path from position ``first`` forward to ``last``, or, to the same effect, the rest of the tour."""
    n = tour.shape[0]
    length = (last - first) % n + 1
    if 2 * length > n:
        first, last = (last + 1) % n, (first - 1) % n
        length = n - length
    for _ in range(length // 2):
        tour[first], tour[last] = tour[last], tour[first]
        position[tour[first]], position[tour[last]] = first, last
        first = first + 1 if first + 1 < n else 0
        last = last - 1 if last > 0 else n - 1


@njit(cache=True)
def _step(tour, position, city, forward):
    """The city after or before ``city``."""
    n = tour.shape[0]
    place = position[city] + (1 if forward else -1)
    return tour[place - n if place == n else place]


@njit(cache=True)
def _exchange(tour, position, a, b, c, d):
    """Replace the edges (a, b), (c, d) by (a, c), (b, d), where b follows a as d follows c, in either direction."""
    if _step(tour, position, a, True) == b:
        _reverse(tour, position, position[b], position[c])
    else:
        _reverse(tour, position, position[a], position[d])


@njit(cache=True)
def _enqueue(queue, is_queued, front, count, city):
    """Put a city at the end of the ring unless it is in it; returns the new count."""
    if is_queued[city]:
        return count
    is_queued[city] = True
    queue[(front + count) % queue.shape[0]] = city
    return count + 1


@njit(cache=True)
def _two_opt_move(points, matrix, neighbors, tour, position, a):
    """Make the first improving exchange of an edge at ``a``; returns the four cities whose edges change."""
    for forward in (True, False):
        b = _step(tour, position, a, forward)
        old = pair_cost(points, matrix, a, b)
        for c in neighbors[a]:
            # Of the two new edges of an improvement, one is cheaper than the old edge at one of its ends.
            new = pair_cost(points, matrix, a, c)
            if new >= old:
                break
            d = _step(tour, position, c, forward)
            removed = old + pair_cost(points, matrix, c, d)
            if removed - new - pair_cost(points, matrix, b, d) > _SMALLEST_GAIN * removed:
                _exchange(tour, position, a, b, c, d)
                return a, b, c, d
    return -1, -1, -1, -1


@njit(cache=True)
def _two_opt(points, matrix, neighbors, tour):
    """2-opt with neighbour lists, in place."""
    n = tour.shape[0]
    position = np.empty(n, np.int64)
    position[tour] = np.arange(n)
    improved = True
    while improved:  # the last pass looks at every city and changes nothing
        improved = False
        queue, is_queued = tour.copy(), np.ones(n, np.bool_)
        front, count = 0, n
        while count > 0:
            a = queue[front]
            front = (front + 1) % n
            count -= 1
            is_queued[a] = False
            changed = _two_opt_move(points, matrix, neighbors, tour, position, a)
            if changed[0] >= 0:
                improved = True
                for city in changed:
                    count = _enqueue(queue, is_queued, front, count, city)


@njit(cache=True)
def _move_segment(tour, position, p, first, last, q, x, y, turned):
    """Take the path first..last from between p and q and put it between x and y, first next to x unless turned."""
    if y == p:  # the same move, seen in the other direction
        p, q, first, last, x, y = q, p, last, first, y, x
    _exchange(tour, position, p, first, x, y)
    if x != q:
        _exchange(tour, position, p, x, q, last)
    if not turned:
        _exchange(tour, position, x, last, first, y)


@njit(cache=True)
def _or_move(points, matrix, neighbors, tour, position, a):
    """Make the first improving move of a segment that ends at ``a``; returns the six cities whose edges change."""
    n = tour.shape[0]
    for forward in (True, False):
        p = _step(tour, position, a, not forward)
        last = a
        for length in range(1, min(_LONGEST_SEGMENT, n - 3) + 1):
            if length > 1:
                last = _step(tour, position, last, forward)
            q = _step(tour, position, last, forward)
            before = pair_cost(points, matrix, p, a) + pair_cost(points, matrix, last, q)
            joined = pair_cost(points, matrix, p, q)
            for c in neighbors[a]:
                offset = position[c] - position[a] if forward else position[a] - position[c]
                if offset % n < length:
                    continue
                for turned in (False, True):
                    # The segment goes between c and this neighbour of it, with a next to c.
                    f = _step(tour, position, c, forward != turned)
                    if f in (a, last):
                        continue
                    removed = before + pair_cost(points, matrix, c, f)
                    added = joined + pair_cost(points, matrix, c, a) + pair_cost(points, matrix, last, f)
                    if removed - added > _SMALLEST_GAIN * removed:
                        if turned:
                            _move_segment(tour, position, p, a, last, q, f, c, True)
                        else:
                            _move_segment(tour, position, p, a, last, q, c, f, False)
                        return p, a, last, q, c, f
    return -1, -1, -1, -1, -1, -1


@njit(cache=True)
def _or_opt(points, matrix, neighbors, tour):
    """Or-opt with neighbour lists, in place."""
    n = tour.shape[0]
    position = np.empty(n, np.int64)
    position[tour] = np.arange(n)
    improved = True
    while improved:  # the last pass looks at every city and changes nothing
        improved = False
        queue, is_queued = tour.copy(), np.ones(n, np.bool_)
        front, count = 0, n
        while count > 0:
            a = queue[front]
            front = (front + 1) % n
            count -= 1
            is_queued[a] = False
            changed = _or_move(points, matrix, neighbors, tour, position, a)
            if changed[0] >= 0:
                improved = True
                for city in changed:
                    count = _enqueue(queue, is_queued, front, count, city)
