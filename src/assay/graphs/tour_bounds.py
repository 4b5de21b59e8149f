r"""The Held-Karp lower bound: what every tour costs at least.

A tour is a spanning tree on all cities but one, plus two edges at that one, in which every city has degree two.
Dropping the condition on degrees leaves the cheapest 1-tree, which is easy; a potential on each city, added to the
costs of its edges, changes all tours by the same amount but not all 1-trees, so the best bound is the maximum over
potentials, approached by moving them along ``degree - 2``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import networkx as nx
import numba
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.graphs.tour_costs import CityCosts, pair_cost, read_costs
from assay.graphs.tour_fragments import close_fragments
from assay.result import Result
from assay.validation import as_float_array, check_integer, check_real

__all__ = ["HeldKarpResult", "held_karp_bound", "one_tree_bound"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HeldKarpResult(Result):
    """Lower bound on the cost of every tour.

    Parameters
    ----------
    lower_bound : float
        The best 1-tree bound.
    potentials : numpy.ndarray of shape (n,)
        The potentials that prove it: :func:`one_tree_bound` recomputes it from them.
    upper : float
        Cost of the tour that scaled the steps.
    is_tour : bool
        Whether the best 1-tree is a tour, which is then optimal.
    """

    lower_bound: float
    potentials: Float[np.ndarray, " cities"]
    upper: float
    is_tour: bool


def held_karp_bound(
    cost: ArrayLike | nx.Graph | CityCosts, n_iter: int = 300, upper: float | int | None = None
) -> HeldKarpResult:
    r"""Held-Karp lower bound on the cost of every tour, by subgradient ascent over 1-trees.

    .. math::
        L(\pi) = \min_{\text{1-tree } t} \sum_{ij \in t} (c_{ij} + \pi_i + \pi_j) - 2 \sum_i \pi_i
        \le \mathrm{OPT}

    Parameters
    ----------
    cost : array_like of shape (n, n) or (n, 2), networkx.Graph or CityCosts
        Symmetric costs, or points. The triangle inequality is not needed.
    n_iter : int, default=300
        Steps. It stops earlier when a 1-tree is a tour or the bound meets ``upper``.
    upper : float, optional
        Cost of a known tour, which scales the steps; by default that of the greedy tour.

    Returns
    -------
    HeldKarpResult

    Raises
    ------
    ValueError
        If the costs are not valid, or the bound is above ``upper``, which then is not the cost of a tour.

    Notes
    -----
    Step k is :math:`2 \cdot 0.985^k (U - L) / \|g\|^2` along :math:`g = \mathrm{degree} - 2`. O(n^2) time a step and
    O(n) memory besides the costs. The bound is usually within 2% of the optimum.

    References
    ----------
    M. Held, R. M. Karp. The traveling-salesman problem and minimum spanning trees: part II. Mathematical Programming 1,
    1971.

    Examples
    --------
    >>> from assay.graphs.tour_bounds import held_karp_bound
    >>> held_karp_bound([[0, 0], [0, 1], [1, 1], [1, 0]]).lower_bound
    4.0
    """
    costs = read_costs(cost)
    n_iter = check_integer(n_iter, "n_iter", minimum=1)
    own = upper is None
    if own:
        none = np.empty(0, dtype=np.int64)
        upper = costs.tour_cost(close_fragments(costs, none, none))
    else:
        upper = check_real(upper, "upper", minimum=0)
    potentials, bounds = _ascend(costs.points, costs.matrix, n_iter, upper)
    lower_bound, degree = _one_tree(costs, potentials)
    # A cost that the user has summed up may be rounded.
    tolerance = 0.0 if own else 1e-9 * abs(upper)
    if lower_bound > upper + tolerance:
        raise ValueError(f"upper must be the cost of a tour, which is at least {lower_bound:.9g}, got {upper:.9g}")
    certificate = Certificate(
        "1-tree bound recomputed from the potentials, against the cost of a tour", lower_bound, upper + tolerance
    )
    return HeldKarpResult(
        lower_bound=lower_bound,
        potentials=potentials,
        upper=upper,
        is_tour=bool(np.all(degree == 2)),
        certificates=(certificate,),
        history={"iteration": np.arange(bounds.size), "bound": bounds},
    )


def one_tree_bound(cost: ArrayLike | nx.Graph | CityCosts, potentials: ArrayLike) -> float:
    """Lower bound on every tour that given potentials prove, whatever rounding does.

    Parameters
    ----------
    cost : array_like of shape (n, n) or (n, 2), networkx.Graph or CityCosts
        Symmetric costs, or points.
    potentials : array_like of shape (n,)
        Any numbers; each choice gives a valid bound.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If there is not one potential per city.

    Examples
    --------
    >>> from assay.graphs.tour_bounds import one_tree_bound
    >>> one_tree_bound([[0, 3, 4], [3, 0, 5], [4, 5, 0]], [0, 0, 0])
    12.0
    """
    costs = read_costs(cost)
    vector = as_float_array(potentials, "potentials", ndim=1)
    if vector.size != costs.n:
        raise ValueError(f"potentials must have length {costs.n}, got {vector.size}")
    largest = np.abs(vector).max()
    if not largest < np.finfo(float).max / (8 * costs.n):
        raise ValueError(f"potentials must have sums in the range of floats, got a magnitude of {largest:g}")
    return _one_tree(costs, vector)[0]


@numba.njit(cache=True)
def _spanning_tree(points, matrix, potential, degree, city_at, work, parent):
    """Cost of the tree on cities 1 .. n - 1 under the potentials (Prim), its degrees added to ``degree``.

    The cities outside of the tree stay contiguous, with all that belongs to them, so that the inner loop on points is
    one that compilers turn into vector instructions.
    """
    count = potential.size - 2
    planar = points.shape[0] > 0
    distance, extra, x, y = work[0], work[1], work[2], work[3]
    for k in range(count):
        city_at[k] = k + 2
        extra[k] = potential[k + 2]
        if planar:
            x[k], y[k] = points[k + 2, 0], points[k + 2, 1]
    distance[:] = np.inf
    city, total = 1, 0.0
    while count > 0:
        own = potential[city]
        if planar:
            px, py = points[city, 0], points[city, 1]
            for k in range(count):
                dx, dy = x[k] - px, y[k] - py
                cost = math.sqrt(dx * dx + dy * dy) + own + extra[k]
                parent[k] = city if cost < distance[k] else parent[k]
                distance[k] = cost if cost < distance[k] else distance[k]
        else:
            for k in range(count):
                cost = matrix[city, city_at[k]] + own + extra[k]
                if cost < distance[k]:
                    distance[k], parent[k] = cost, city
        nearest = 0
        for k in range(1, count):
            if distance[k] < distance[nearest]:
                nearest = k
        city = city_at[nearest]
        total += distance[nearest]
        degree[city] += 1
        degree[parent[nearest]] += 1
        count -= 1
        city_at[nearest], parent[nearest] = city_at[count], parent[count]
        for row in range(4):
            work[row, nearest] = work[row, count]
    return total


@numba.njit(cache=True)
def _ascend(points, matrix, n_iter, upper):
    """Best potentials, and the bound at each step."""
    n = max(points.shape[0], matrix.shape[0])
    potential, best_potential = np.zeros(n), np.zeros(n)
    best, factor = -np.inf, 2.0
    bounds = np.empty(n_iter)
    degree, city_at, parent = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    work = np.zeros((4, n))
    for step in range(n_iter):
        degree[:] = 0
        total = _spanning_tree(points, matrix, potential, degree, city_at, work, parent)
        # The two cheapest edges at city 0.
        shortest, second = np.inf, np.inf
        near, far = -1, -1
        for other in range(1, n):
            cost = pair_cost(points, matrix, 0, other) + potential[0] + potential[other]
            if cost < shortest:
                second, far = shortest, near
                shortest, near = cost, other
            elif cost < second:
                second, far = cost, other
        degree[0] = 2
        degree[near] += 1
        degree[far] += 1
        bound = total + shortest + second - 2 * potential.sum()
        bounds[step] = bound
        if bound > best:
            best = bound
            best_potential[:] = potential
        norm = 0.0
        for k in range(n):
            norm += (degree[k] - 2) ** 2
        if norm == 0.0 or bound >= upper:
            return best_potential, bounds[: step + 1]
        length = factor * (upper - bound) / norm
        for k in range(n):
            potential[k] += length * (degree[k] - 2)
        factor *= 0.985
    return best_potential, bounds


def _one_tree(costs: CityCosts, potentials: np.ndarray) -> tuple[float, Int[np.ndarray, " cities"]]:
    """Bound and degrees of the cheapest 1-tree: the plain form of what the ascent does, and proof against rounding.

    No edge counts with more than its cost and potentials, so a 1-tree that is cheapest under what they count with costs
    at most what the true cheapest one does.
    """
    n = costs.n
    city_numbers = np.arange(n)

    def row(city: int) -> np.ndarray:
        cost = costs.between(np.full(n, city), city_numbers)
        partial, lost = _exact_sum(cost, potentials[city])
        total, lost_again = _exact_sum(partial, potentials)
        lost = np.abs(lost) + np.abs(lost_again)
        return np.where(lost == 0, total, np.nextafter(total - 2 * lost, -np.inf))

    degree = np.zeros(n, dtype=np.int64)
    edges = []
    distance, parent = np.full(n, np.inf), np.zeros(n, dtype=np.int64)
    outside = np.ones(n, dtype=bool)
    outside[[0, 1]] = False
    city = 1
    for _ in range(n - 2):
        cost = row(city)
        closer = outside & (cost < distance)
        distance[closer], parent[closer] = cost[closer], city
        city = int(np.argmin(np.where(outside, distance, np.inf)))
        outside[city] = False
        edges.append(distance[city])
        degree[[city, parent[city]]] += 1
    at_zero = row(0)[1:]
    ends = 1 + np.argsort(at_zero, kind="stable")[:2]
    edges.extend(at_zero[ends - 1])
    degree[0] = 2
    degree[ends] += 1
    return math.fsum([*edges, *(-2 * potentials)]), degree


def _exact_sum(a: np.ndarray, b: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Rounded sums, and exactly what rounding took from them (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)
