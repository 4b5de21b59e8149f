r"""The certificates of a decoded tour, and the triangle inequality that they rest on.

Every certificate is computed from the tour, the costs, the scores and, where there is one, a reference tour: costs are
summed anew, and the decoded sets are rebuilt from their thresholds.

Costs that are rounded break the triangle inequality by a little. If :math:`c_{ac} \le c_{ab} + c_{bc} + v` for all
triples, then :math:`c + v` is a metric; spanning forests and perfect matchings are the same under both, since they all
have the same number of edges. So each promise made for metrics holds with a term in v, and the certificates have it in
their bounds: a violation makes them weaker, not wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import networkx as nx
import numba
import numpy as np
import scipy.sparse
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import connected_components

from assay.certificate import Assumption, Certificate
from assay.graphs.tour_bounds import one_tree_bound
from assay.graphs.tour_costs import CityCosts, EdgeScores, is_tour, read_costs

__all__ = [
    "MetricCheck",
    "christofides_certificate",
    "divide",
    "ratio_certificate",
    "reference_certificate",
    "score_error",
    "set_errors",
    "skeleton_certificate",
    "structural_certificate",
    "threshold_certificate",
    "triangle_check",
]

_ALL_TRIPLES_UP_TO = 500
_N_RANDOM_TRIPLES = 100_000
_ROUNDING = 4 * np.finfo(float).eps


@dataclass(frozen=True)
class MetricCheck:
    """How far costs are from the triangle inequality.

    Parameters
    ----------
    violation : float
        Largest ``c(a, c) - c(a, b) - c(b, c)`` that was seen, at least 0.
    exhaustive : bool
        Whether all triples were looked at (for points: whether there is nothing to look at).
    tolerance : float
        Violations up to here are rounding: 1e-9 of the largest cost, or 1 when all costs are integers.
    rounding : float
        What floating-point arithmetic alone may add to a sum of two costs.

    Attributes
    ----------
    satisfied : bool or None
        False when the violation is above the tolerance; otherwise True, or None when only a sample was checked.
    slack : float
        The v for which the bounds are stated: the violation and the rounding.
    """

    violation: float
    exhaustive: bool
    tolerance: float
    rounding: float

    @property
    def satisfied(self) -> bool | None:
        """Whether the triangle inequality holds."""
        if self.violation > self.tolerance:
            return False
        return True if self.exhaustive else None

    @property
    def slack(self) -> float:
        """Additive violation that the bounds allow for."""
        return self.violation + self.rounding

    @property
    def assumption(self) -> Assumption:
        """The triangle inequality as an assumption of a certificate."""
        statement = "the costs satisfy the triangle inequality"
        if self.violation > self.rounding:
            statement += f" (up to {self.violation:.6g}, which the bound includes)"
        return Assumption(statement, self.satisfied)


def triangle_check(cost: ArrayLike | nx.Graph | CityCosts) -> MetricCheck:
    """Check the triangle inequality: all triples up to 500 cities, 100000 random ones otherwise.

    Parameters
    ----------
    cost : array_like of shape (n, n) or (n, 2), networkx.Graph or CityCosts
        Symmetric costs, or points (for which it holds).

    Returns
    -------
    MetricCheck

    Notes
    -----
    O(n^3) for all triples.

    Examples
    --------
    >>> from assay.graphs.tour_certificates import triangle_check
    >>> check = triangle_check([[0, 1, 5], [1, 0, 1], [5, 1, 0]])
    >>> check.violation, check.satisfied
    (3.0, False)
    """
    costs = read_costs(cost)
    if costs.is_euclidean:
        spread = costs.points.max(axis=0) - costs.points.min(axis=0)
        return MetricCheck(0.0, True, 1e-9 * float(np.hypot(*spread)), _ROUNDING * float(np.hypot(*spread)))
    matrix = costs.matrix
    largest = float(matrix.max())
    exhaustive = costs.n <= _ALL_TRIPLES_UP_TO
    if exhaustive:
        violation = _largest_violation(matrix)
    else:
        a, b, c = np.random.default_rng(0).integers(costs.n, size=(3, _N_RANDOM_TRIPLES))
        violation = float(np.max(matrix[a, c] - matrix[a, b] - matrix[b, c]))
    rounded = bool(np.all(matrix == np.rint(matrix)))
    tolerance = max(1e-9 * largest, 1.0 if rounded else 0.0)
    return MetricCheck(max(0.0, violation), exhaustive, tolerance, _ROUNDING * largest)


def score_error(costs: CityCosts, scores: EdgeScores, tour: Int[np.ndarray, " cities"]) -> tuple[float, float]:
    r"""Distance of edge scores from a tour: :math:`\sum_e c_e |p_e - x_e|`, and the same with all costs 1.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    scores : EdgeScores
        The edges with a positive score.
    tour : numpy.ndarray of shape (n,)
        A permutation.

    Returns
    -------
    weighted, unweighted : float
    """
    first, second = tour, np.roll(tour, -1)
    on_tour = _mask_of_tour(scores, tour)
    off_score, off_cost = scores.score[~on_tour], costs.between(scores.first[~on_tour], scores.second[~on_tour])
    missing = 1.0 - scores.of(first, second)
    terms = np.concatenate([off_score * off_cost, missing * costs.between(first, second)])
    return math.fsum(terms), float(off_score.sum() + missing.sum())


def set_errors(
    costs: CityCosts,
    scores: EdgeScores,
    tour: Int[np.ndarray, " cities"],
    thresholds: Float[np.ndarray, " sets"],
) -> tuple[Float[np.ndarray, " sets"], Int[np.ndarray, " sets"]]:
    """Cost and number of the edges in which the sets ``score >= threshold`` differ from a tour.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    scores : EdgeScores
        The edges with a positive score.
    tour : numpy.ndarray of shape (n,)
        A permutation.
    thresholds : numpy.ndarray of shape (sets,)
        Positive; infinity stands for the empty set.

    Returns
    -------
    cost, number : numpy.ndarray of shape (sets,)
    """
    first, second = tour, np.roll(tour, -1)
    off = ~_mask_of_tour(scores, tour)
    extra_cost, extra = _above(scores.score[off], costs.between(scores.first[off], scores.second[off]), thresholds)
    # An edge of the tour is missing when its score is below the threshold, that is, when -score > -threshold.
    tour_score, tour_cost = scores.of(first, second), costs.between(first, second)
    missing_cost, missing = _above(-tour_score, tour_cost, np.nextafter(-thresholds, np.inf))
    return extra_cost + missing_cost, extra + missing


def structural_certificate(
    costs: CityCosts,
    tour: Int[np.ndarray, " cities"],
    skeleton: Int[np.ndarray, "edges 2"],
    pairs: Int[np.ndarray, "matched 2"],
    metric: MetricCheck,
) -> Certificate:
    """The tour costs at most the connected even graph that it was cut out of.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    tour : numpy.ndarray of shape (n,)
        The tour.
    skeleton : numpy.ndarray of shape (edges, 2)
        Its connected graph.
    pairs : numpy.ndarray of shape (matched, 2)
        The matching of the odd cities.
    metric : MetricCheck
        What is known about the costs.

    Returns
    -------
    Certificate
    """
    edges = np.concatenate([skeleton, pairs])
    graph = scipy.sparse.coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(costs.n, costs.n))
    sound = connected_components(graph, directed=False)[0] == 1 and not np.any(
        np.bincount(edges.ravel(), minlength=costs.n) % 2
    )
    # One rounding of the whole sum: it keeps the order of what is compared.
    bound = math.fsum([*costs.between(edges[:, 0], edges[:, 1]), metric.slack * max(0, len(edges) - costs.n)])
    return Certificate(
        "cost of the tour against its skeleton and matching together",
        _cost_if_tour(costs, tour),
        bound,
        assumptions=(
            Assumption("skeleton and matching together are connected and even", bool(sound)),
            metric.assumption,
        ),
    )


def reference_certificate(
    costs: CityCosts,
    tour: Int[np.ndarray, " cities"],
    reference: Int[np.ndarray, " cities"],
    error: float,
    n_different: float,
    matching_gap: float,
    metric: MetricCheck,
    what: str,
) -> Certificate:
    """The tour costs at most a reference tour plus twice an error that is measured against that tour.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    tour, reference : numpy.ndarray of shape (n,)
        The tour, and the one to compare with.
    error : float
        Error of the scores, or of the set that was decoded.
    n_different : float
        The same error with all costs 1, which multiplies the slack of the triangle inequality.
    matching_gap : float
        By how much the matchings may be dearer than optimal ones.
    metric : MetricCheck
        What is known about the costs.
    what : str
        The error in words, for the statement.

    Returns
    -------
    Certificate
    """
    reference_edges = costs.tour_edges(reference) if is_tour(reference, costs.n) else [math.nan]
    bound = math.fsum([*reference_edges, 2 * error, 2 * metric.slack * n_different, matching_gap])
    return Certificate(
        f"cost of the tour against the reference tour plus twice {what}",
        _cost_if_tour(costs, tour),
        bound,
        assumptions=(metric.assumption,),
    )


def threshold_certificate(
    costs: CityCosts,
    scores: EdgeScores,
    tour: Int[np.ndarray, " cities"],
    reference: Int[np.ndarray, " cities"],
    thresholds: Float[np.ndarray, " sets"],
    matching_gaps: Float[np.ndarray, " sets"],
    metric: MetricCheck,
) -> Certificate:
    """Bound by the decoded set that is closest to the reference.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    scores : EdgeScores
        The edges with a positive score.
    tour, reference : numpy.ndarray of shape (n,)
        The tour, and the one to compare with.
    thresholds : numpy.ndarray of shape (sets,)
        Those whose sets were decoded; infinity stands for the empty set.
    matching_gaps : numpy.ndarray of shape (sets,)
        By how much the matching of each set may be dearer than an optimal one.
    metric : MetricCheck
        What is known about the costs.

    Returns
    -------
    Certificate
        At most the bound by the error of the scores when all thresholds are there.
    """
    error, number = set_errors(costs, scores, reference, thresholds)
    closest = int(np.argmin(2 * error + 2 * metric.slack * number + matching_gaps))
    inside = scores.score >= thresholds[closest]
    closest_set = EdgeScores(scores.first[inside], scores.second[inside], np.ones(int(inside.sum())))
    error_of_set, n_different = score_error(costs, closest_set, reference)
    name = f"the set of threshold {thresholds[closest]:.6g}" if inside.any() else "the empty set"
    return reference_certificate(
        costs,
        tour,
        reference,
        error_of_set,
        n_different,
        float(matching_gaps[closest]),
        metric,
        f"the error of {name}",
    )


def skeleton_certificate(
    costs: CityCosts,
    tour: Int[np.ndarray, " cities"],
    reference: Int[np.ndarray, " cities"],
    skeleton: Int[np.ndarray, "edges 2"],
    matching_gap: float,
    metric: MetricCheck,
) -> Certificate:
    """Bound by the edges of a connected set that the reference does not have.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    tour, reference : numpy.ndarray of shape (n,)
        The tour, and the one to compare with.
    skeleton : numpy.ndarray of shape (edges, 2)
        The connected set that the tour was cut out of.
    matching_gap : float
        By how much its matching may be dearer than an optimal one.
    metric : MetricCheck
        What is known about the costs.

    Returns
    -------
    Certificate
    """
    first, second = skeleton.min(axis=1), skeleton.max(axis=1)
    extra = ~_mask_of_tour(EdgeScores(first, second, np.ones(len(skeleton))), reference)
    error = math.fsum(costs.between(first[extra], second[extra]))
    return reference_certificate(
        costs,
        tour,
        reference,
        error,
        float(extra.sum()),
        matching_gap,
        metric,
        "the edges of its skeleton that are not on it",
    )


def christofides_certificate(
    costs: CityCosts, tour: Int[np.ndarray, " cities"], christofides_cost: float
) -> Certificate:
    """The tour costs at most the Christofides tour, which decodes the empty set.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    tour : numpy.ndarray of shape (n,)
        The tour.
    christofides_cost : float
        Cost of the tour that was decoded from the empty set.

    Returns
    -------
    Certificate
    """
    return Certificate("cost of the tour against the Christofides tour", _cost_if_tour(costs, tour), christofides_cost)


def ratio_certificate(
    costs: CityCosts,
    tour: Int[np.ndarray, " cities"],
    potentials: Float[np.ndarray, " cities"],
    matching_gap: float,
    metric: MetricCheck,
) -> Certificate:
    """Ratio of the tour to a lower bound on the optimum, which for a Christofides tour is promised to be at most 1.5.

    Parameters
    ----------
    costs : CityCosts
        Of all cities.
    tour : numpy.ndarray of shape (n,)
        The tour.
    potentials : numpy.ndarray of shape (n,)
        What proves the lower bound.
    matching_gap : float
        By how much the matching of the Christofides tour may be dearer than an optimal one.
    metric : MetricCheck
        What is known about the costs.

    Returns
    -------
    Certificate

    Notes
    -----
    Christofides' tour costs at most 1.5 times the limit of the Held-Karp ascent (Wolsey 1980), not only 1.5 times the
    optimum, so the certificate fails only where the ascent has stopped far from its limit.
    """
    lower = one_tree_bound(costs, potentials)
    cost = _cost_if_tour(costs, tour)
    extra = 0.5 * costs.n * metric.slack + matching_gap
    return Certificate(
        "ratio of the tour to the Held-Karp lower bound",
        divide(cost, lower),
        1.5 + (divide(extra, lower) if extra else 0.0),
        assumptions=(metric.assumption,),
    )


def divide(cost: float, lower: float) -> float:
    """Ratio of a cost to a lower bound on it; 1 when both are 0."""
    if lower > 0:
        return cost / lower
    return math.nan if math.isnan(cost) else 1.0 if cost <= 0 else math.inf


def _cost_if_tour(costs: CityCosts, tour: np.ndarray) -> float:
    """Cost of a tour; nan, with which no certificate holds, when some city is not visited exactly once."""
    return costs.tour_cost(tour) if is_tour(tour, costs.n) else math.nan


def _mask_of_tour(scores: EdgeScores, tour: np.ndarray) -> Bool[np.ndarray, " edges"]:
    """Which of the scored edges are on the tour."""
    place = np.empty(tour.size, dtype=np.int64)
    place[tour] = np.arange(tour.size)
    distance = np.abs(place[scores.first] - place[scores.second])
    return (distance == 1) | (distance == tour.size - 1)


def _above(
    level: np.ndarray, cost: np.ndarray, thresholds: np.ndarray
) -> tuple[Float[np.ndarray, " sets"], Int[np.ndarray, " sets"]]:
    """For each threshold, total cost and number of the edges whose level is at least the threshold."""
    order = np.argsort(-level, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(cost[order])])
    number = np.searchsorted(-level[order], -thresholds, side="right")
    return total[number], number


@numba.njit(cache=True)
def _largest_violation(matrix):
    n = matrix.shape[0]
    worst = 0.0
    for a in range(n):
        for c in range(a):
            shortest = np.inf
            for b in range(n):
                detour = matrix[a, b] + matrix[c, b]
                shortest = min(shortest, detour)
            worst = max(worst, matrix[a, c] - shortest)
    return worst
