"""A heatmap learned from solved instances: which edges of new cities are likely in a good tour.

Whether an edge is in a good tour can be told quite well from where it stands among its neighbours: how near the two
cities are compared with their other neighbours, and whether the edge is in the minimum spanning tree or the Delaunay
triangulation. Nine such numbers per edge, which do not depend on scale, rotation or the order of the cities, and any
classifier with probabilities make a predictor that is trained in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.spatial import Delaunay, QhullError, cKDTree
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.utils.validation import check_is_fitted

from assay.graphs.tour_costs import CityCosts, check_range, check_tour
from assay.graphs.tour_skeleton import minimum_spanning_tree, unit_square
from assay.graphs.tours import nearest_cities
from assay.validation import as_float_array, check_integer

__all__ = ["EDGE_FEATURES", "EdgeHeatmapClassifier", "edge_features"]

EDGE_FEATURES = (
    "smaller neighbour rank",
    "larger neighbour rank",
    "length over mean distance to the 5 nearest, smaller",
    "length over mean distance to the 5 nearest, larger",
    "length over mean distance to the 5 nearest of all cities",
    "in the minimum spanning tree",
    "in the Delaunay triangulation",
    "degree in the minimum spanning tree, smaller",
    "degree in the minimum spanning tree, larger",
)
_N_NEAREST = 5


def edge_features(
    points: ArrayLike, k: int = 10
) -> tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"], Float[np.ndarray, "edges 9"]]:
    """Candidate edges and what describes them.

    Parameters
    ----------
    points : array_like of shape (n, 2)
        City coordinates.
    k : int, default=10
        The candidates are the edges between a city and its k nearest neighbours, the edges of the minimum spanning
        tree, and those of the Delaunay triangulation.

    Returns
    -------
    first, second : numpy.ndarray of shape (edges,), int64
        End points, ``first < second``, in lexicographic order.
    features : numpy.ndarray of shape (edges, 9)
        Columns as named in :data:`EDGE_FEATURES`; the same (up to ties) for cities that are moved,
        turned, mirrored or scaled.

    Raises
    ------
    TypeError, ValueError
        If there are fewer than 3 points, they are not finite and in the plane, or ``k`` is less than 1.

    Notes
    -----
    O(n log n) time for k fixed and points without large clusters of ties, O(n k) memory.

    Examples
    --------
    >>> from assay.graphs.edge_heatmap import edge_features
    >>> first, second, features = edge_features([[0, 0], [0, 1], [1, 1], [1, 0]], k=2)
    >>> features.shape
    (5, 9)
    """
    costs = _as_points(points, "points")
    k = check_integer(k, "k", minimum=1)
    return _edge_features(costs, k)


def _as_points(points: ArrayLike, name: str) -> CityCosts:
    array = as_float_array(points, name, ndim=2)
    if array.shape[1] != 2 or array.shape[0] < 3:
        raise ValueError(f"{name} must have shape (n, 2) with n at least 3, got {array.shape}")
    costs = CityCosts(np.array(array, order="C"), np.empty((0, 0)))
    check_range(costs, name)
    return costs


def _edge_features(
    costs: CityCosts, k: int
) -> tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"], Float[np.ndarray, "edges 9"]]:
    n, points = costs.n, costs.points
    neighbors = nearest_cities(costs, max(k, _N_NEAREST))
    tree = minimum_spanning_tree(costs)
    in_tree = tree.first * n + tree.second
    in_delaunay = _delaunay_edges(points, in_tree)
    own = np.repeat(np.arange(n), min(k, n - 1))
    near = neighbors[:, :k].ravel()
    near = np.minimum(own, near) * n + np.maximum(own, near)
    key = np.unique(np.concatenate([near, in_tree, in_delaunay]))
    first, second = key // n, key % n

    length = costs.between(first, second)
    # The number of cities at most as far away; the radius allows for rounding.
    index = cKDTree(points)
    radius = length * (1 + 1e-12)
    rank = np.column_stack(
        [index.query_ball_point(points[ends], radius, return_length=True) - 1 for ends in (first, second)]
    )
    nearest = neighbors[:, :_N_NEAREST]
    sizes = nearest.shape[1]
    around = costs.between(np.repeat(np.arange(n), sizes), nearest.ravel()).reshape(n, sizes).mean(axis=1)
    relative = np.column_stack([_ratio(length, around[first]), _ratio(length, around[second])])
    degree = np.bincount(np.concatenate([tree.first, tree.second]), minlength=n)
    degrees = np.column_stack([degree[first], degree[second]])
    features = np.column_stack(
        [
            np.sort(rank, axis=1),
            np.sort(relative, axis=1),
            _ratio(length, np.full(len(length), around.mean())),
            np.isin(key, in_tree),
            np.isin(key, in_delaunay),
            np.sort(degrees, axis=1),
        ]
    )
    return first, second, features.astype(np.float64)


def _ratio(length: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Length in units; cities that all coincide have length 0 and unit 0."""
    limit = np.finfo(np.float32).max  # what classifiers accept
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.where(length == 0, 0.0, np.minimum(length / unit, limit))


def _delaunay_edges(points: np.ndarray, in_tree: np.ndarray) -> np.ndarray:
    """Edges of the triangulation; of cities on one line, those between consecutive ones."""
    n = len(points)
    try:
        triangles = Delaunay(unit_square(points)).simplices
    except QhullError:
        return in_tree
    sides = np.sort(np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [0, 2]]]), axis=1)
    return np.unique(sides[:, 0].astype(np.int64) * n + sides[:, 1])


class EdgeHeatmapClassifier(BaseEstimator):
    """Learns from instances with good tours which edges of a new instance are likely in a good tour.

    Parameters
    ----------
    estimator : scikit-learn classifier with ``predict_proba``, optional
        Cloned and fitted on the edges of all instances together. By default
        :class:`sklearn.ensemble.HistGradientBoostingClassifier`.
    k : int, default=10
        Number of nearest neighbours of a city that make candidate edges, besides the edges of the minimum spanning
        tree and of the Delaunay triangulation.
    random_state : int, numpy.random.RandomState or None, default=None
        Passed to the estimator if it has such a parameter and it is None there.

    Attributes
    ----------
    estimator_ : classifier
        The fitted estimator.
    k_ : int
        The ``k`` that it was fitted with, and predicts with.
    n_instances_ : int
        Number of instances seen.
    n_edges_ : int
        Number of candidate edges that it was fitted on.
    candidate_recall_ : float
        Fraction of the edges of the tours that are among the candidates; all others get score 0.

    See Also
    --------
    assay.graphs.heatmap_tour.decode_heatmap : Makes a tour of the heatmap, with a bound on its cost.

    Notes
    -----
    The samples are instances, not rows: ``X`` is a list of coordinate arrays and ``y`` the list of their tours.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from assay.graphs.edge_heatmap import EdgeHeatmapClassifier
    >>> from assay.graphs.local_search import two_opt
    >>> rng = np.random.default_rng(0)
    >>> instances = [rng.random((30, 2)) for _ in range(4)]
    >>> tours = [two_opt(points, np.arange(30)) for points in instances]
    >>> model = EdgeHeatmapClassifier(LogisticRegression(max_iter=1000), k=5).fit(instances, tours)
    >>> model.predict_heatmap(rng.random((20, 2))).shape
    (20, 20)
    """

    def __init__(self, estimator: Any = None, k: int = 10, random_state: Any = None):
        self.estimator = estimator
        self.k = k
        self.random_state = random_state

    def fit(self, X: Sequence[ArrayLike] | np.ndarray, y: Sequence[ArrayLike] | np.ndarray) -> EdgeHeatmapClassifier:
        """Learn from instances and their tours.

        Parameters
        ----------
        X : sequence of array_like of shape (n_i, 2)
            Coordinates of the cities of every instance.
        y : sequence of array_like of int, shape (n_i,)
            A good tour of every instance.

        Returns
        -------
        EdgeHeatmapClassifier
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            If the two do not match, an instance or a tour is not valid, or all candidate edges are in tours.
        """
        if isinstance(X, np.ndarray) and X.ndim == 2:
            raise ValueError("X must be a list of coordinate arrays of shape (n, 2), got one array")
        for name, given, of_what in (("X", X, "coordinate arrays"), ("y", y, "tours")):
            if not hasattr(given, "__len__") or not hasattr(given, "__iter__"):
                raise TypeError(f"{name} must be a list of {of_what}, got {type(given).__name__}")
        k = check_integer(self.k, "k", minimum=1)
        if len(X) == 0 or len(X) != len(y):
            raise ValueError(f"X and y must have equal length and not be empty, got {len(X)} and {len(y)}")
        features, labels, n_cities = [], [], 0
        for number, (points, tour) in enumerate(zip(X, y, strict=True)):
            costs = _as_points(points, f"X[{number}]")
            order = check_tour(tour, costs.n, f"y[{number}]")
            first, second, of_edges = _edge_features(costs, k)
            following = np.roll(order, -1)
            in_tour = np.minimum(order, following) * costs.n + np.maximum(order, following)
            features.append(of_edges)
            labels.append(np.isin(first * costs.n + second, in_tour))
            n_cities += costs.n
        rows, target = np.concatenate(features), np.concatenate(labels)
        if target.all() or not target.any():
            raise ValueError(
                f"y must use some of the candidate edges and leave out others, got tours that use {target.sum()} of "
                f"{len(target)}"
            )
        self.estimator_ = self._fresh_estimator().fit(rows, target)
        self.k_ = k
        self.n_instances_ = len(X)
        self.n_edges_ = len(target)
        self.candidate_recall_ = float(target.sum() / n_cities)
        return self

    def _fresh_estimator(self) -> Any:
        if self.estimator is None:
            return HistGradientBoostingClassifier(random_state=self.random_state)
        if not hasattr(self.estimator, "fit") or not hasattr(self.estimator, "predict_proba"):
            raise TypeError(f"estimator must be a classifier with predict_proba, got {self.estimator!r}")
        estimator = clone(self.estimator)
        if self.random_state is not None and estimator.get_params().get("random_state", 0) is None:
            estimator.set_params(random_state=self.random_state)
        return estimator

    def predict_heatmap(self, X: ArrayLike) -> scipy.sparse.csr_array:
        """Score of every candidate edge of one instance.

        Parameters
        ----------
        X : array_like of shape (n, 2)
            City coordinates.

        Returns
        -------
        scipy.sparse.csr_array of shape (n, n)
            Symmetric, probabilities of being in a good tour; edges that are no candidates are absent.

        Raises
        ------
        TypeError, ValueError
            If the coordinates are not valid.
        sklearn.exceptions.NotFittedError
            Before :meth:`fit`.
        """
        check_is_fitted(self)
        costs = _as_points(X, "X")
        first, second, features = _edge_features(costs, self.k_)
        score = self.estimator_.predict_proba(features)[:, 1]
        rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
        return scipy.sparse.csr_array((np.tile(score, 2), (rows, columns)), shape=(costs.n, costs.n))
