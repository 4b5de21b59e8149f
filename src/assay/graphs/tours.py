"""Neighbour lists and sub-problems for tours; costs, scores and tours are in :mod:`assay.graphs.tour_costs`."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int
from scipy.spatial import cKDTree

from assay.graphs.tour_costs import CityCosts

__all__ = ["costs_among", "nearest_cities"]


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
        The city itself is not among them. Points take O(n log n) through a k-d tree, a matrix O(n^2 log n).

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
    own = np.arange(n)
    if costs.is_euclidean and n > 400:
        # The city itself need not come first among duplicates, and ties at the end are cut: ask for a few more.
        _, found = cKDTree(costs.points).query(costs.points, k=min(k + 4, n))
        dx = costs.points[found, 0] - costs.points[:, :1]
        dy = costs.points[found, 1] - costs.points[:, 1:]
        lengths = np.sqrt(dx * dx + dy * dy)
    else:
        found = np.broadcast_to(own, (n, n))
        lengths = costs.block(own)
    lengths = np.where(found == own[:, None], np.inf, lengths)
    order = np.lexsort((found, lengths), axis=1)[:, :k]
    return np.take_along_axis(found, order, axis=1).astype(np.int64)
