"""Decoders without guarantees: how edge scores are usually turned into a tour.

Greedy decoding takes edges by score per cost. Beam search extends partial tours city by city and keeps the likeliest.
Guided k-opt samples sequences of edge exchanges in which the scores, corrected by what was learned during the search,
propose the edges to add; this is the local search that papers on neural heatmaps call Monte-Carlo tree search. None of
them says how good its tour is; :func:`assay.graphs.heatmap_tour.decode_heatmap` does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse
from jaxtyping import Float, Int
from numba import njit
from numpy.typing import ArrayLike

from assay.graphs.local_search import two_opt
from assay.graphs.tour_costs import CityCosts, EdgeScores, normalize_tour, pair_cost, read_costs, read_scores
from assay.graphs.tour_fragments import close_fragments, greedy_fragments, greedy_order
from assay.graphs.tours import nearest_cities
from assay.validation import as_generator, check_integer, check_real

__all__ = ["beam_decode", "greedy_decode", "kopt_decode"]

Costs = ArrayLike | nx.Graph | CityCosts
Heatmap = ArrayLike | scipy.sparse.sparray | scipy.sparse.spmatrix | Mapping[Any, Any] | EdgeScores

# A score of zero is unlikely, not impossible.
_LEAST_SCORE = 1e-12
_N_PROPOSED = 10
_DEEPEST = 10
# An exchange must gain this part of the cost of the tour, which rounding cannot pretend.
_SMALLEST_GAIN = 1e-13
_ACTIONS_PER_CHECK = 256


def greedy_decode(cost: Costs, heatmap: Heatmap, *, weight: str = "weight") -> Int[np.ndarray, " cities"]:
    """Take edges by decreasing score per cost as long as they form paths, then join the paths by cheapest edges.

    Parameters
    ----------
    cost : array_like of shape (n, n) or (n, 2), networkx.Graph or CityCosts
        Symmetric costs, points whose distances are the costs, or a complete graph with edge weights.
    heatmap : array_like or sparse matrix of shape (n, n), or mapping of pairs to scores
        Scores in [0, 1].
    weight : str, default="weight"
        Edge attribute that holds the cost, for a graph.

    Returns
    -------
    numpy.ndarray of shape (n,), int64
        City numbers (for a graph: positions in its list of nodes), starting at city 0, second below last.

    Raises
    ------
    TypeError, ValueError
        If the costs or the scores are not valid.

    Notes
    -----
    O(m log m) for m scored edges, and O(n^2) to join the paths; memory O(n + m) for points. Ties are broken by the
    lowest city numbers.

    References
    ----------
    .. [1] J. L. Bentley. Fast algorithms for geometric traveling salesman problems. ORSA Journal on Computing 4 (1992),
       387-411.

    Examples
    --------
    >>> from assay.graphs.tour_decoders import greedy_decode
    >>> greedy_decode([[0, 0], [0, 1], [1, 1], [1, 0]], {(0, 1): 0.9, (1, 2): 0.8, (0, 2): 0.1})
    array([0, 1, 2, 3])
    """
    costs, scores = _checked(cost, heatmap, weight)
    return _greedy(costs, scores)


def beam_decode(
    cost: Costs, heatmap: Heatmap, width: int = 100, *, weight: str = "weight"
) -> Int[np.ndarray, " cities"]:
    r"""Beam search: of all one-city extensions of the partial tours from city 0, keep the likeliest ``width``.

    The likelihood of a partial tour is :math:`\sum \log(p_e + 10^{-12})` over its edges; of the complete ones that are
    left at the end, the cheapest is returned.

    Parameters
    ----------
    cost : array_like of shape (n, n) or (n, 2), networkx.Graph or CityCosts
        Symmetric costs, points whose distances are the costs, or a complete graph with edge weights.
    heatmap : array_like or sparse matrix of shape (n, n), or mapping of pairs to scores
        Scores in [0, 1].
    width : int, default=100
        Number of partial tours that are kept.
    weight : str, default="weight"
        Edge attribute that holds the cost, for a graph.

    Returns
    -------
    numpy.ndarray of shape (n,), int64
        City numbers (for a graph: positions in its list of nodes), starting at city 0, second below last.

    Raises
    ------
    TypeError, ValueError
        If the costs or the scores are not valid, or ``width`` is less than 1.

    Notes
    -----
    O(width n^2) time, O(width n) memory beyond the input. Ties are broken by the better parent, then the lowest city.

    References
    ----------
    .. [1] C. K. Joshi, T. Laurent, X. Bresson. An efficient graph convolutional network technique for the travelling
       salesman problem. arXiv:1906.01227, 2019.

    Examples
    --------
    >>> from assay.graphs.tour_decoders import beam_decode
    >>> beam_decode([[0, 0], [0, 1], [1, 1], [1, 0]], {(0, 1): 0.9, (1, 2): 0.8, (0, 2): 0.1}, width=4)
    array([0, 1, 2, 3])
    """
    width = check_integer(width, "width", minimum=1)
    costs, scores = _checked(cost, heatmap, weight)
    n = costs.n
    # Every extension adds one logarithm, so those of a missing score are subtracted everywhere.
    log_scores = _symmetric(scores, n)
    log_scores.data = np.log(log_scores.data + _LEAST_SCORE) - math.log(_LEAST_SCORE)
    tours = np.zeros((1, 1), dtype=np.int64)
    likelihood = np.zeros(1)
    visited = np.zeros((1, n), dtype=bool)
    visited[0, 0] = True
    for _ in range(n - 1):
        extended = likelihood[:, None] + log_scores[tours[:, -1]].toarray()
        extended[visited] = -np.inf
        parents, cities = np.divmod(_largest(extended.ravel(), width), n)
        likelihood = extended[parents, cities]
        tours = np.column_stack([tours[parents], cities])
        visited = visited[parents]
        visited[np.arange(len(cities)), cities] = True
    following = np.roll(tours, -1, axis=1)
    lengths = costs.between(tours.ravel(), following.ravel()).reshape(tours.shape).sum(axis=1)
    return normalize_tour(tours[np.argmin(lengths)])


def kopt_decode(
    cost: Costs,
    heatmap: Heatmap,
    *,
    n_actions: int | None = None,
    time_limit: float | int | None = None,
    weight: str = "weight",
    random_state: int | np.random.Generator | None = None,
) -> Int[np.ndarray, " cities"]:
    r"""Sample edge exchanges that the scores propose, and keep those that shorten the tour.

    It starts from the greedy tour after 2-opt. An action removes the edge from a random city to the next and then, up
    to 10 times, adds an edge from the loose end b of the path to one of the 10 cities j with the largest potential

    .. math:: Z_{bj} = \frac{W_{bj}}{\mathrm{mean}_k W_{bk}} + \sqrt{\frac{\log(M + 1)}{Q_{bj} + 1}},

    drawn with probability proportional to it, and removes the edge that closes a cycle, until closing the path makes a
    shorter tour. M counts actions, Q how often an edge was tried, W starts as 100 times the score and grows on the
    edges of improvements.

    Parameters
    ----------
    cost : array_like of shape (n, n) or (n, 2), networkx.Graph or CityCosts
        Symmetric costs, points whose distances are the costs, or a complete graph with edge weights.
    heatmap : array_like or sparse matrix of shape (n, n), or mapping of pairs to scores
        Scores in [0, 1].
    n_actions : int, optional
        Number of actions, 50 n by default.
    time_limit : float, optional
        Seconds after which no further action starts. The result then depends on the machine.
    weight : str, default="weight"
        Edge attribute that holds the cost, for a graph.
    random_state : int, numpy.random.Generator or None, default=None
        Source of randomness.

    Returns
    -------
    numpy.ndarray of shape (n,), int64
        City numbers (for a graph: positions in its list of nodes), starting at city 0, second below last.

    Raises
    ------
    TypeError, ValueError
        If the costs or the scores are not valid, ``n_actions`` is negative, or ``time_limit`` is not positive.

    Notes
    -----
    O(n) for each added edge, and O(n^2) memory for W and Q.

    References
    ----------
    .. [1] Z.-H. Fu, K.-B. Qiu, H. Zha. Generalize a small pre-trained model to arbitrarily large TSP instances. AAAI
       35 (2021), 7474-7482.

    Examples
    --------
    >>> from assay.graphs.tour_decoders import kopt_decode
    >>> kopt_decode([[0, 0], [0, 1], [1, 1], [1, 0]], {(0, 2): 0.9, (1, 3): 0.8}, random_state=0)
    array([0, 1, 2, 3])
    """
    if time_limit is not None:
        time_limit = check_real(time_limit, "time_limit", above=0)
    generator = as_generator(random_state, "random_state")
    costs, scores = _checked(cost, heatmap, weight)
    n = costs.n
    n_actions = 50 * n if n_actions is None else check_integer(n_actions, "n_actions", minimum=0)
    started = time.perf_counter()
    tour = two_opt(costs, _greedy(costs, scores))
    if n < 5:  # a tour of 4 cities without a 2-opt move is optimal
        return tour
    potential = 100 * _symmetric(scores, n).toarray()
    tried, rarity = np.zeros((n, n), dtype=np.int32), np.ones((n, n))
    closest = nearest_cities(costs, n - 1)
    done = 0
    while done < n_actions and (time_limit is None or time.perf_counter() - started < time_limit):
        batch = min(n_actions - done, n_actions if time_limit is None else _ACTIONS_PER_CHECK)
        total = costs.tour_cost(tour)
        _sample_exchanges(
            costs.points, costs.matrix, closest, tour, total, potential, tried, rarity, done, batch, generator
        )
        done += batch
    return normalize_tour(tour)


def _checked(cost: Costs, heatmap: Heatmap, weight: str) -> tuple[CityCosts, EdgeScores]:
    costs = read_costs(cost, weight=weight)
    return costs, read_scores(heatmap, costs.n, costs.nodes)


def _greedy(costs: CityCosts, scores: EdgeScores) -> Int[np.ndarray, " cities"]:
    wanted = greedy_order(costs, scores)
    taken = greedy_fragments(costs.n, wanted.first, wanted.second)
    return normalize_tour(close_fragments(costs, wanted.first[taken], wanted.second[taken]))


def _symmetric(scores: EdgeScores, n: int) -> scipy.sparse.csr_array:
    rows = np.concatenate([scores.first, scores.second])
    columns = np.concatenate([scores.second, scores.first])
    return scipy.sparse.csr_array((np.tile(scores.score, 2), (rows, columns)), shape=(n, n))


def _largest(values: Float[np.ndarray, " values"], count: int) -> Int[np.ndarray, " kept"]:
    """Positions of the largest finite values, largest first, ties by position."""
    finite = np.flatnonzero(values > -np.inf)
    if len(finite) > count:
        smallest = np.partition(values[finite], len(finite) - count)[len(finite) - count]
        above = finite[values[finite] > smallest]
        equal = finite[values[finite] == smallest][: count - len(above)]
        finite = np.sort(np.concatenate([above, equal]))
    return finite[np.argsort(-values[finite], kind="stable")]


@njit(cache=True)
def _propose(closest, weight, rarity, exploration, city, banned, last, proposed, preference):
    """The cities of largest potential from ``city``, ties by lower cost and number; returns how many."""
    mean = weight[city].sum() / closest.shape[1]
    scale = 1 / mean if mean > 0 else 0.0
    count = 0
    for other in closest[city]:
        potential = scale * weight[city, other] + exploration * rarity[city, other]
        if count == _N_PROPOSED and potential <= preference[count - 1]:
            continue
        if other in (banned, last):
            continue
        count = min(count + 1, _N_PROPOSED)
        place = count - 1
        while place > 0 and potential > preference[place - 1]:
            proposed[place], preference[place] = proposed[place - 1], preference[place - 1]
            place -= 1
        proposed[place], preference[place] = other, potential
    return count


@njit(cache=True)
def _draw(preference, count, uniform):
    """Position drawn with probability proportional to the preference; uniformly if all are zero."""
    total = 0.0
    for k in range(count):
        total += preference[k]
    if total == 0:
        return min(int(uniform * count), count - 1)
    rest = uniform * total
    for k in range(count):
        rest -= preference[k]
        if rest < 0:
            return k
    return count - 1


@njit(cache=True)
def _sample_exchanges(points, matrix, closest, tour, total, weight, tried, rarity, n_before, n_actions, generator):
    """Do ``n_actions`` actions; ``tour``, ``weight``, ``tried`` and ``rarity`` change in place."""
    n = tour.shape[0]
    proposed, preference = np.empty(_N_PROPOSED, np.int64), np.empty(_N_PROPOSED)
    added = np.empty((_DEEPEST + 1, 2), np.int64)
    path = np.empty(n, np.int64)
    for action in range(n_actions):
        exploration = np.sqrt(np.log(n_before + action + 1.0))
        start = generator.integers(0, n)
        for k in range(n):
            path[k] = tour[(start + 1 + k) % n]
        last = path[n - 1]
        gain = pair_cost(points, matrix, last, path[0])
        accepted = False
        for depth in range(_DEEPEST):
            city = path[0]
            count = _propose(closest, weight, rarity, exploration, city, path[1], last, proposed, preference)
            other = proposed[_draw(preference, count, generator.random())]
            tried[city, other] = tried[other, city] = tried[city, other] + 1
            rarity[city, other] = rarity[other, city] = 1 / np.sqrt(tried[city, other] + 1.0)
            place = 2
            while path[place] != other:
                place += 1
            gain += pair_cost(points, matrix, path[place - 1], other) - pair_cost(points, matrix, city, other)
            path[:place] = path[:place][::-1].copy()
            added[depth] = city, other
            if gain - pair_cost(points, matrix, path[0], last) > _SMALLEST_GAIN * total:
                added[depth + 1] = path[0], last
                accepted = True
                break
        if accepted:
            tour[:] = path
            gain -= pair_cost(points, matrix, path[0], last)
            reward = 10 * (np.exp(gain / total) - 1)
            for k in range(depth + 2):
                weight[added[k, 0], added[k, 1]] += reward
                weight[added[k, 1], added[k, 0]] += reward
            total -= gain
