"""Matching problems with real costs, rounded to integers and solved on few edges.

The blossom algorithm wants even integers. Costs are shifted to start at zero, cut off at twice the cost of some
matching (no optimal matching uses a dearer edge, so that a few huge costs do not take the precision of the others),
multiplied by a power of two and rounded to 44 bits; integers that fit are not changed.

An optimal matching of a complete graph needs only few of its edges. The problem is solved on candidate edges, the duals
are tested on all others, those with negative slack join the candidates, and so on until there are none: the matching
is then optimal on the complete graph, whose edges were never stored.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numba import njit

from assay.graphs.blossom import solve_integer_matching
from assay.graphs.tour_costs import CityCosts, pair_cost
from assay.graphs.tours import nearest_cities

__all__ = ["MatchingDuals", "preorder_matching", "solve_complete", "solve_on_neighbors"]

# Sums of n such costs, and twice that, fit into 64 bits for every n whose edges fit into memory.
_COST_BITS = 44

Rounding = namedtuple("Rounding", ["shift", "cap", "factor", "second_factor"])


@dataclass(frozen=True, eq=False)
class MatchingDuals:
    """A matching, and the dual values that the blossom algorithm returned with it.

    Parameters
    ----------
    mate : numpy.ndarray of shape (k,), int64
        Partner of every vertex.
    vertex : numpy.ndarray of shape (k,)
        Dual of every vertex.
    sets : list of numpy.ndarray
        Odd vertex sets with a positive dual.
    of_sets : numpy.ndarray of shape (len(sets),)
        Duals of these sets.
    precision : float
        How much of the difference between cost and bound rounding may explain.
    """

    mate: Int[np.ndarray, " vertices"]
    vertex: Float[np.ndarray, " vertices"]
    sets: list[np.ndarray]
    of_sets: Float[np.ndarray, " sets"]
    precision: float


def solve_complete(costs: CityCosts, *, complete_limit: int | None = None, n_neighbors: int = 8) -> MatchingDuals:
    """Minimum-cost perfect matching of the complete graph.

    Parameters
    ----------
    costs : CityCosts
        Costs between an even, positive number of vertices.
    complete_limit : int, optional
        Up to this many vertices all edges are candidates from the start. By default 400 for points, whose neighbours
        are cheap to find, and 1000 for a matrix.
    n_neighbors : int, default=8
        Beyond that, the first candidates are the edges to so many nearest neighbours, and a fallback matching.

    Returns
    -------
    MatchingDuals
    """
    if complete_limit is None:
        complete_limit = 400 if costs.is_euclidean else 1000
    if costs.n <= complete_limit:
        return _refined(
            costs, lambda rounding: _solve(costs, rounding, *_complete_graph(costs.points, costs.matrix, rounding))
        )
    nearest = _neighbor_edges(costs, n_neighbors, preorder_matching(costs))
    return _refined(costs, lambda rounding: _solve_with_pricing(costs, rounding, nearest))


def solve_on_neighbors(costs: CityCosts, n_neighbors: int, fallback: Int[np.ndarray, " vertices"]) -> MatchingDuals:
    """Minimum-cost perfect matching that uses only edges to nearest neighbours and those of a fallback matching.

    Parameters
    ----------
    costs : CityCosts
        Costs between an even, positive number of vertices.
    n_neighbors : int
        Number of nearest neighbours of every vertex.
    fallback : numpy.ndarray of shape (k,), int64
        Partner of every vertex in some perfect matching.

    Returns
    -------
    MatchingDuals
    """
    edges = _neighbor_edges(costs, n_neighbors, fallback)
    return _refined(costs, lambda rounding: _solve(costs, rounding, *_graph_of(costs, rounding, edges)))


def preorder_matching(costs: CityCosts) -> Int[np.ndarray, " vertices"]:
    """Match consecutive vertices in the preorder of a minimum spanning tree.

    Parameters
    ----------
    costs : CityCosts
        Costs between an even, positive number of vertices.

    Returns
    -------
    numpy.ndarray of shape (k,), int64
        Partner of every vertex. O(k^2) time, O(k) memory.
    """
    order = _preorder(costs.points, costs.matrix, costs.n)
    mate = np.empty(costs.n, dtype=np.int64)
    mate[order[0::2]], mate[order[1::2]] = order[1::2], order[0::2]
    return mate


def _refined(costs: CityCosts, solve: Callable[[Rounding], MatchingDuals]) -> MatchingDuals:
    """Solve with rounded costs, again with finer ones if the solution shows that most of the range is not needed."""
    low, high, integral = _range(costs.points, costs.matrix, costs.n)
    total = _nearest_free_cost(costs.points, costs.matrix, costs.n, low)
    while True:
        cap = min(high - low, 2 * total) if total > 0 else high - low
        rounding = _rounding(low, cap, integral)
        found = solve(rounding)
        partners = np.flatnonzero(np.arange(costs.n) < found.mate)
        total = float((costs.between(partners, found.mate[partners]) - low).sum())
        if total <= 0 or 8 * total >= cap or rounding.factor == rounding.second_factor == 1.0:
            return found


def _rounding(low: float, cap: float, integral: bool) -> Rounding:
    if cap == 0 or (integral and cap <= 2.0**_COST_BITS):
        return Rounding(low, cap, 1.0, 1.0)
    # Tiny costs may need a factor beyond the largest float.
    exponent = _COST_BITS - math.frexp(cap)[1]
    return Rounding(low, cap, 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2))


def _solve(
    costs: CityCosts, rounding: Rounding, indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray
) -> MatchingDuals:
    _, mate, dual, blossom_dual, up = solve_integer_matching(indptr, indices, weights)
    return _real_duals(costs.n, rounding, mate, dual, blossom_dual, up)


def _solve_with_pricing(costs: CityCosts, rounding: Rounding, edges: Int[np.ndarray, " edges"]) -> MatchingDuals:
    while True:
        _, mate, dual, blossom_dual, up = solve_integer_matching(*_graph_of(costs, rounding, edges))
        missing = _edges_with_negative_slack(costs.points, costs.matrix, rounding, dual, blossom_dual, up)
        if len(missing) == 0:
            return _real_duals(costs.n, rounding, mate, dual, blossom_dual, up)
        edges = np.unique(np.concatenate([edges, missing]))


def _graph_of(
    costs: CityCosts, rounding: Rounding, edges: Int[np.ndarray, " edges"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _graph(costs.points, costs.matrix, rounding, edges // costs.n, edges % costs.n)


@njit(cache=True)
def _range(points, matrix, n):
    """Smallest and largest cost, and whether all are integers."""
    low, high, integral = np.inf, -np.inf, True
    for i in range(n):
        for j in range(i):
            cost = pair_cost(points, matrix, i, j)
            low, high = min(low, cost), max(high, cost)
            integral = integral and cost == np.rint(cost)
    return low, high, integral


@njit(cache=True)
def _nearest_free_cost(points, matrix, n, low):
    """Cost above ``low`` of the matching of every vertex, in turn, with the nearest free one."""
    free = np.ones(n, np.bool_)
    total = 0.0
    for i in range(n):
        if free[i]:
            free[i] = False
            nearest, smallest = -1, np.inf
            for j in range(i + 1, n):
                if free[j]:
                    cost = pair_cost(points, matrix, i, j)
                    if nearest < 0 or cost < smallest:
                        nearest, smallest = j, cost
            free[nearest] = False
            total += smallest - low
    return total


@njit(cache=True, inline="always")
def _weight(points, matrix, rounding, i, j):
    cost = min(pair_cost(points, matrix, i, j) - rounding.shift, rounding.cap)
    return 2 * np.int64(np.rint(cost * rounding.factor * rounding.second_factor))


@njit(cache=True)
def _complete_graph(points, matrix, rounding):
    n = max(points.shape[0], matrix.shape[0])
    indptr = np.arange(n + 1) * (n - 1)
    indices = np.empty(n * (n - 1), np.int64)
    weights = np.empty(n * (n - 1), np.int64)
    for i in range(n):
        for j in range(i):
            weight = _weight(points, matrix, rounding, i, j)
            at, mirrored = indptr[i] + j, indptr[j] + i - 1
            indices[at], indices[mirrored] = j, i
            weights[at], weights[mirrored] = weight, weight
    return indptr, indices, weights


@njit(cache=True)
def _graph(points, matrix, rounding, tail, head):
    """Adjacency of the edges (tail < head)."""
    n = max(points.shape[0], matrix.shape[0])
    indptr = np.zeros(n + 1, np.int64)
    for e in range(tail.shape[0]):
        indptr[tail[e] + 1] += 1
        indptr[head[e] + 1] += 1
    indptr = np.cumsum(indptr)
    place = indptr[:-1].copy()
    indices = np.empty(2 * tail.shape[0], np.int64)
    weights = np.empty(2 * tail.shape[0], np.int64)
    for e in range(tail.shape[0]):
        i, j = tail[e], head[e]
        weight = _weight(points, matrix, rounding, i, j)
        indices[place[i]], indices[place[j]] = j, i
        weights[place[i]], weights[place[j]] = weight, weight
        place[i] += 1
        place[j] += 1
    return indptr, indices, weights


def _neighbor_edges(costs: CityCosts, n_neighbors: int, fallback: np.ndarray) -> Int[np.ndarray, " edges"]:
    """Sorted edges, each as the number ``smaller end * n + larger end``."""
    neighbors = nearest_cities(costs, n_neighbors)
    own = np.arange(costs.n)
    tail = np.concatenate([np.repeat(own, neighbors.shape[1]), own])
    head = np.concatenate([neighbors.ravel(), fallback])
    return np.unique(np.minimum(tail, head) * costs.n + np.maximum(tail, head))


@njit(cache=True)
def _edges_with_negative_slack(points, matrix, rounding, dual, blossom_dual, up):
    n = dual.shape[0]
    depth, above = _laminar_sums(n, blossom_dual, up)
    missing = [np.int64(0) for _ in range(0)]
    for i in range(n):
        for j in range(i):
            slack = _weight(points, matrix, rounding, i, j) - dual[i] - dual[j]
            if slack < 0 and slack + _shared(up, depth, above, i, j) < 0:
                missing.append(j * n + i)
    return np.array(missing, dtype=np.int64)


@njit(cache=True)
def _laminar_sums(n, blossom_dual, up):
    """For every node in use: its depth, and the sum of the duals from it to the outermost blossom."""
    depth = np.full(up.shape[0], -1, np.int64)
    above = np.zeros(up.shape[0], np.int64)
    path = np.empty(up.shape[0], np.int64)
    for vertex in range(n):
        length = 0
        node = np.int64(vertex)
        while node >= 0 and depth[node] < 0:
            path[length] = node
            length += 1
            node = up[node]
        level = depth[node] if node >= 0 else -1
        total = above[node] if node >= 0 else 0
        for k in range(length - 1, -1, -1):
            level += 1
            total += blossom_dual[path[k]]
            depth[path[k]], above[path[k]] = level, total
    return depth, above


@njit(cache=True)
def _shared(up, depth, above, i, j):
    """Sum of the duals of the blossoms that contain both vertices."""
    while i != j:
        if depth[i] < depth[j]:
            i, j = j, i
        i = up[i]
        if i < 0:
            return 0
    return above[i]


def _real_duals(
    n: int, rounding: Rounding, mate: np.ndarray, dual: np.ndarray, blossom_dual: np.ndarray, up: np.ndarray
) -> MatchingDuals:
    scale = 0.5 / rounding.factor
    start, members, nodes = _members(n, blossom_dual, up)
    return MatchingDuals(
        mate,
        dual * scale / rounding.second_factor + rounding.shift / 2,
        np.split(members, start[1:-1]) if len(nodes) else [],
        blossom_dual[nodes] * scale / rounding.second_factor,
        n * (2.0 ** (2 - _COST_BITS) * rounding.cap + 2.0**-50 * (abs(rounding.shift) + rounding.cap)),
    )


@njit(cache=True)
def _members(n, blossom_dual, up):
    """Vertices of the blossoms with a positive dual, in compressed rows."""
    count = np.zeros(up.shape[0], np.int64)
    for vertex in range(n):
        node = up[vertex]
        while node >= 0:
            count[node] += 1
            node = up[node]
    nodes = np.flatnonzero((blossom_dual > 0) & (count > 0))
    start = np.zeros(nodes.shape[0] + 1, np.int64)
    place = np.zeros(up.shape[0], np.int64)
    kept = np.zeros(up.shape[0], np.bool_)
    for k, node in enumerate(nodes):
        start[k + 1] = start[k] + count[node]
        place[node] = start[k]
        kept[node] = True
    members = np.empty(start[-1], np.int64)
    for vertex in range(n):
        node = up[vertex]
        while node >= 0:
            if kept[node]:
                members[place[node]] = vertex
                place[node] += 1
            node = up[node]
    return start, members, nodes


@njit(cache=True)
def _preorder(points, matrix, n):
    """Vertices in the preorder of the minimum spanning tree that grows from vertex 0."""
    parent = np.zeros(n, np.int64)
    distance = np.full(n, np.inf)
    outside = np.ones(n, np.bool_)
    joined = np.empty(n, np.int64)
    vertex = np.int64(0)
    for position in range(n):
        outside[vertex] = False
        joined[position] = vertex
        nearest = np.int64(-1)
        for j in range(n):
            if outside[j]:
                cost = pair_cost(points, matrix, vertex, j)
                if cost < distance[j]:
                    distance[j], parent[j] = cost, vertex
                if nearest < 0 or distance[j] < distance[nearest]:
                    nearest = np.int64(j)
        vertex = nearest
    # Children as linked lists, the one that joined first in front.
    first_child, next_sibling = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    for position in range(n - 1, 0, -1):
        child = joined[position]
        next_sibling[child] = first_child[parent[child]]
        first_child[parent[child]] = child
    order = np.empty(n, np.int64)
    stack = np.empty(n, np.int64)
    stack[0] = 0
    height = 1
    length = 0
    while height > 0:
        height -= 1
        vertex = stack[height]
        order[length] = vertex
        length += 1
        if next_sibling[vertex] >= 0:
            stack[height] = next_sibling[vertex]
            height += 1
        if first_child[vertex] >= 0:
            stack[height] = first_child[vertex]
            height += 1
    return order
