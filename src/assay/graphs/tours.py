"""Neighbour lists and sub-problems for tours; costs, scores and tours are in :mod:`assay.graphs.tour_costs`."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int
from numba import njit
from scipy.spatial import cKDTree

from assay.graphs.tour_costs import CityCosts, pair_cost

__all__ = ["costs_among", "nearest_cities"]

# Up to this many neighbours are kept in order by insertion; more are sorted.
_FEW = 40
# From this many points on, a k-d tree is faster than a look at all pairs.
_TREE_FROM = 1000


def costs_among(costs: CityCosts, cities: Int[np.ndarray, " some"]) -> CityCosts:
    """Costs among some of the cities, renumbered in the given order; points stay points.

    Parameters
    ----------
    costs : CityCosts
        The costs.
    cities : numpy.ndarray of shape (k,), int
        City numbers.

    Returns
    -------
    CityCosts

    Examples
    --------
    >>> import numpy as np
    >>> from assay.graphs.tour_costs import read_costs
    >>> from assay.graphs.tours import costs_among
    >>> costs_among(read_costs([[0, 0], [3, 0], [3, 4]]), np.array([0, 2])).points
    array([[0., 0.],
           [3., 4.]])
    """
    if costs.is_euclidean:
        return CityCosts(np.ascontiguousarray(costs.points[cities]), costs.matrix)
    return CityCosts(costs.points, np.ascontiguousarray(costs.matrix[np.ix_(cities, cities)]))


def nearest_cities(costs: CityCosts, n_neighbors: int) -> Int[np.ndarray, "cities neighbors"]:
    """The cheapest neighbours of every city, cheapest first, ties by lowest number.

    Parameters
    ----------
    costs : CityCosts
        The costs.
    n_neighbors : int
        At most n - 1 are returned.

    Returns
    -------
    numpy.ndarray of shape (n, min(n_neighbors, n - 1)), int64
        The city itself is not among them. From 1000 points on, a k-d tree makes it O(n k log n) for k up to n / 2,
        and more than 4 cities at the very same distance may be cut without regard to their numbers. Otherwise
        O(n^2), with O(n k) memory for up to 40 neighbours.

    Examples
    --------
    >>> from assay.graphs.tour_costs import read_costs
    >>> from assay.graphs.tours import nearest_cities
    >>> nearest_cities(read_costs([[0, 0], [3, 0], [3, 4]]), 1)
    array([[1],
           [0],
           [1]])
    """
    n = costs.n
    k = min(n_neighbors, n - 1)
    if costs.is_euclidean and n > _TREE_FROM and 2 * k < n:
        # The city itself need not come first among duplicates, and ties at the end are cut: ask for a few more.
        _, found = cKDTree(costs.points).query(costs.points, k=min(k + 4, n))
        own = np.arange(n)[:, None]
        dx = costs.points[found, 0] - costs.points[:, :1]
        dy = costs.points[found, 1] - costs.points[:, 1:]
        lengths = np.where(found == own, np.inf, np.sqrt(dx * dx + dy * dy))
        order = np.lexsort((found, lengths), axis=1)[:, :k]
        return np.take_along_axis(found, order, axis=1).astype(np.int64)
    if k <= _FEW:
        return _few_nearest(costs.points, costs.matrix, n, k)
    lengths = costs.block(np.arange(n)).copy()
    np.fill_diagonal(lengths, np.inf)
    return np.argsort(lengths, axis=1, kind="stable")[:, :k]


@njit(cache=True)
def _few_nearest(points, matrix, n, k):
    """By insertion into a short sorted list, for every city."""
    nearest = np.empty((n, k), np.int64)
    length = np.empty(k)
    for city in range(n):
        count = 0
        for other in range(n):
            if other == city:
                continue
            cost = pair_cost(points, matrix, city, other)
            if count == k and cost >= length[k - 1]:
                continue
            count = min(count + 1, k)
            place = count - 1
            while place > 0 and cost < length[place - 1]:
                length[place] = length[place - 1]
                nearest[city, place] = nearest[city, place - 1]
                place -= 1
            length[place] = cost
            nearest[city, place] = other
    return nearest
