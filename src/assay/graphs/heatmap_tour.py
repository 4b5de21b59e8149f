r"""A tour from predicted edge scores whose cost is bounded by how wrong the prediction is.

Take any set of edges F, connect it by the cheapest edges, pair the cities of odd degree at least cost, walk around and
shortcut (:mod:`assay.graphs.tour_skeleton`). Against any tour T the result costs at most
:math:`c(T) + 2\, c(F \mathbin{\triangle} T)`:

- T connects what F leaves apart, so the connecting edges cost at most :math:`c(T \setminus F)`, and the skeleton S has
  :math:`c(S \setminus T) \le c(F \setminus T) + c(T \setminus F)`;
- S minus T plus T minus S has the odd degrees of S, so it contains paths that pair the odd cities, and the matching
  costs at most :math:`c(S \setminus T) + c(T \setminus S)`;
- added up, :math:`c(S) + c(J) \le c(T) + 2\, c(S \setminus T)`.

For scores p take :math:`F_\theta = \{e : p_e \ge \theta\}` with :math:`\theta` uniform in (0, 1]: the expected cost of
:math:`F_\theta \mathbin{\triangle} T` is :math:`\eta(T) = \sum_e c_e |p_e - x_T(e)|`, so the best threshold costs at
most :math:`c(T) + 2 \eta(T)`. The empty set is a threshold too, and its tour is that of Christofides, at most 1.5 times
the optimum. Any other tour may join the minimum.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.graphs.local_search import or_opt, two_opt
from assay.graphs.tour_bounds import held_karp_bound
from assay.graphs.tour_certificates import (
    christofides_certificate,
    divide,
    ratio_certificate,
    reference_certificate,
    score_error,
    skeleton_certificate,
    structural_certificate,
    threshold_certificate,
    triangle_check,
)
from assay.graphs.tour_costs import CityCosts, EdgeScores, check_tour, normalize_tour, read_costs, read_scores
from assay.graphs.tour_search import SetDecoder, TourSearch
from assay.result import Result
from assay.validation import as_generator, check_choice, check_integer

__all__ = ["TourResult", "christofides", "decode_heatmap", "heatmap_error", "heatmap_tsp"]

Costs = ArrayLike | nx.Graph | CityCosts
Heatmap = ArrayLike | scipy.sparse.sparray | scipy.sparse.spmatrix | Mapping[Any, Any] | EdgeScores | str

_METHODS = ("auto", "thresholds", "integral", "random", "modified_cost")
_MATCHINGS = ("auto", "exact", "sparse", "networkx")
_IMPROVEMENTS = ("2opt", "oropt", "both")
_MOST_LEVELS = 2000


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TourResult(Result):
    """A tour, where it came from, and what is proved about it.

    Parameters
    ----------
    tour : numpy.ndarray of shape (n,)
        Cities in order, from city 0, in the direction in which the second city is below the last.
    cost : float
        Cost of the closed tour.
    nodes : list or None
        The tour as nodes of the graph that was passed, None for other input.
    source : {"threshold", "fragment", "greedy", "empty", "modified"}
        Which candidate won: a thresholded set, the greedy paths inside of one, the greedy tour of all scores, the empty
        set (Christofides), or the connected set of least modified cost.
    threshold : float
        Threshold of the winner; infinity for the empty set, nan where there is none.
    skeleton, pairs : numpy.ndarray of shape (edges, 2) and (matched, 2)
        The connected edges and the matching that the winner was cut out of; empty for closed greedy paths.
    skeleton_cost, matching_cost, matching_gap : float
        Their costs, and by how much the matching may be dearer than an optimal one; nan for closed greedy paths.
    n_odd : int
        Number of cities that were matched.
    n_thresholds : int
        Number of different sets that were decoded.
    candidates : numpy.ndarray of records (source, threshold, cost, matching_gap)
        All tours that were compared.
    eta : float or None
        Error of the scores against the reference tour.
    bound : float or None
        Smallest proved bound against the reference tour.
    holds : bool or None
        Whether the cost is within it; None without a reference tour, or if the triangle inequality is violated.
    lower_bound, ratio_bound : float or None
        Held-Karp bound, and cost over it: no tour is cheaper than ``cost / ratio_bound``.
    metric_ok : bool or None
        Whether the triangle inequality holds; None when only a sample of triples was checked.
    exact_matching : bool
        Whether all matchings are optimal.
    """

    tour: Int[np.ndarray, " cities"]
    cost: float
    nodes: list[Any] | None = None
    source: str
    threshold: float
    skeleton: Int[np.ndarray, "edges 2"]
    pairs: Int[np.ndarray, "matched 2"]
    skeleton_cost: float
    matching_cost: float
    matching_gap: float
    n_odd: int
    n_thresholds: int
    candidates: Shaped[np.ndarray, " tours"]
    eta: float | None = None
    bound: float | None = None
    holds: bool | None = None
    lower_bound: float | None = None
    ratio_bound: float | None = None
    metric_ok: bool | None
    exact_matching: bool


def decode_heatmap(
    cost: Costs,
    heatmap: Heatmap = "p",
    *,
    method: str = "auto",
    candidates: str = "all",
    matching: str = "auto",
    max_thresholds: int | None = None,
    n_samples: int = 16,
    patience: int | None = None,
    prune: bool = True,
    shortcut: str = "best",
    improve: str | None = None,
    metric: str = "check",
    reference: ArrayLike | Sequence[Hashable] | None = None,
    lower_bound: bool = False,
    weight: str = "weight",
    random_state: int | np.random.Generator | None = None,
    callback: Callable[[dict[str, Any]], object] | None = None,
) -> TourResult:
    r"""Tour from edge scores, at most ``c(T) + 2 eta(T)`` against every tour T and at most 1.5 times the optimum.

    Parameters
    ----------
    cost : array_like of shape (n, n) or (n, 2), or networkx.Graph
        Symmetric costs, points in the plane (nothing of size n^2 is built from them, except for exact matchings), or a
        complete undirected graph with edge weights.
    heatmap : array_like or sparse of shape (n, n), mapping of pairs to scores, or str, default="p"
        Scores in [0, 1], how likely each edge is in a good tour; missing ones are 0, the diagonal is ignored. For a
        graph also the name of the edge attribute that holds them.
    method : {"auto", "thresholds", "integral", "random", "modified_cost"}, default="auto"
        - "thresholds", which "auto" stands for: decode :math:`\{e : p_e \ge \theta\}` for all thresholds, the empty set
          included, and keep the best.
        - "integral": scores are 0 or 1; decode the edges with score 1 only.
        - "random": ``n_samples`` thresholds drawn from (0, 1]. The bound then holds in expectation.
        - "modified_cost": decode the connected set of least :math:`\sum c_e (1 - 2 p_e)`.
    candidates : {"all", "thresholds"}, default="all"
        With "all", the methods "thresholds" and "random" also try the paths that the greedy rule finds inside of each
        set (decoded, and closed greedily), and the greedy tour. The result is then never worse than greedy decoding.
    matching : {"auto", "exact", "sparse", "networkx"}, default="auto"
        See :func:`assay.graphs.matching.perfect_matching`.
    max_thresholds : int, optional
        Number of quantiles of the positive scores to use, beside 0.5 and the empty set. By default every value is a
        threshold, up to 2000.
    n_samples : int, default=16
        Number of thresholds of the method "random".
    patience : int, optional
        Stop after so many thresholds in a row without a better tour. The bounds are then those of the sets decoded.
    prune : bool, default=True
        Drop edges that the skeleton and the matching share, where that does not disconnect.
    shortcut : {"best", "first"}, default="best"
        Which visit to a city stays: drop the dearest again and again, or keep the first.
    improve : {None, "2opt", "oropt", "both"}, default=None
        Local search on the tour found. It never increases the cost.
    metric : {"check", "closure"}, default="check"
        What to do about the triangle inequality: check and warn, or replace the costs by the lengths of shortest paths.
        With the closure, all costs in the result are those of walks along shortest paths.
    reference : sequence of int, or of nodes, optional
        A tour T (the best known, yesterday's) to state the bound against.
    lower_bound : bool, default=False
        Compute the Held-Karp bound, which certifies a ratio to the optimum without a reference.
    weight : str, default="weight"
        Edge attribute that holds the cost, for a graph.
    random_state : int, numpy.random.Generator or None, default=None
        For the method "random".
    callback : callable, optional
        Called after each decoded set with a dict of ``threshold``, ``cost`` and ``best_cost``. What it returns is
        ignored; what it raises ends the search.

    Returns
    -------
    TourResult
        With a row of ``history`` for each decoded set.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If there are fewer than 3 cities; costs are negative, asymmetric, nan, infinite, or so large or small that their
        sums or squares are no floats; scores are outside [0, 1] or of the wrong shape; the reference is not a
        permutation; or an option is unknown.

    Warns
    -----
    UserWarning
        If the triangle inequality is violated, the two directions of an edge have different scores, or there are more
        than 2000 thresholds.

    Notes
    -----
    O(n^2 + k^3) for a set that leaves k odd cities, with a small constant; matchings are computed once per set of odd
    cities.

    The first call of all compiles the kernels, which takes 10 to 15 seconds of one core. numba keeps the result on disk
    (in ``NUMBA_CACHE_DIR``, by default next to the sources), and later processes load it in a fraction of a second.

    References
    ----------
    M. Elias, F. Grandoni, A. Polak, E. Vercesi. TSP with predictions. PMLR 306, 2026. The treatment of fractional
    scores by thresholds and the further candidates are derived here.

    Examples
    --------
    >>> from assay.graphs.heatmap_tour import decode_heatmap
    >>> square = [[0, 0], [0, 1], [1, 1], [1, 0]]
    >>> scores = {(0, 1): 0.9, (0, 2): 0.8, (2, 3): 0.7}  # the diagonal is wrong
    >>> result = decode_heatmap(square, scores, reference=[0, 1, 2, 3])
    >>> result.tour.tolist(), result.cost, result.certified
    ([0, 1, 2, 3], 4.0, True)
    """
    method = check_choice(method, "method", _METHODS)
    check_choice(candidates, "candidates", ("all", "thresholds"))
    check_choice(shortcut, "shortcut", ("best", "first"))
    check_choice(metric, "metric", ("check", "closure"))
    check_choice(matching, "matching", _MATCHINGS)
    for name, flag in (("prune", prune), ("lower_bound", lower_bound)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {flag!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    if max_thresholds is not None:
        max_thresholds = check_integer(max_thresholds, "max_thresholds", minimum=1)
    if patience is not None:
        patience = check_integer(patience, "patience", minimum=1)
    n_samples = check_integer(n_samples, "n_samples", minimum=1)
    generator = as_generator(random_state, "random_state")
    if not (improve is None or (isinstance(improve, str) and improve in _IMPROVEMENTS)):
        raise ValueError(f"improve must be one of None, '2opt', 'oropt', 'both', got {improve!r}")
    costs = read_costs(cost, weight=weight, closure=metric == "closure")
    scores = _scores_of(cost, heatmap, costs)
    reference_tour = None if reference is None else check_tour(reference, costs.n, "reference", costs.nodes)

    search = TourSearch(costs, SetDecoder(costs, matching, prune, shortcut == "best"), patience, callback)
    if method == "modified_cost":
        search.modified_cost(scores)
        return _certified(search, None, False, reference_tour, scores, improve, lower_bound)
    if method == "integral":
        if np.any(scores.score != 1.0):
            raise ValueError('heatmap must have scores 0 and 1 only for method="integral"')
        levels, complete = np.ones(1), True
    elif method == "random":
        levels, complete = np.sort(1.0 - generator.random(n_samples))[::-1], False
    else:
        levels, complete = _threshold_levels(scores, max_thresholds)
    stopped = search.thresholds(scores, levels, fragments=candidates == "all" and method != "integral")
    return _certified(search, scores, complete and not stopped, reference_tour, scores, improve, lower_bound)


def christofides(
    cost: Costs,
    *,
    matching: str = "auto",
    prune: bool = True,
    shortcut: str = "best",
    improve: str | None = None,
    metric: str = "check",
    reference: ArrayLike | Sequence[Hashable] | None = None,
    lower_bound: bool = False,
    weight: str = "weight",
) -> TourResult:
    """Christofides' tour: what :func:`decode_heatmap` makes of a heatmap without any edge.

    Parameters
    ----------
    cost, matching, prune, shortcut, improve, metric, reference, lower_bound, weight
        As for :func:`decode_heatmap`.

    Returns
    -------
    TourResult
        At most 1.5 times the optimum.

    Raises
    ------
    TypeError, ValueError
        As for :func:`decode_heatmap`.

    References
    ----------
    N. Christofides. Worst-case analysis of a new heuristic for the travelling salesman problem. Carnegie Mellon
    University, 1976.

    Examples
    --------
    >>> from assay.graphs.heatmap_tour import christofides
    >>> christofides([[0, 0], [0, 1], [1, 1], [1, 0]]).cost
    4.0
    """
    return decode_heatmap(
        cost,
        {},
        candidates="thresholds",
        matching=matching,
        prune=prune,
        shortcut=shortcut,
        improve=improve,
        metric=metric,
        reference=reference,
        lower_bound=lower_bound,
        weight=weight,
    )


def heatmap_error(
    cost: Costs, heatmap: Heatmap, tour: ArrayLike | Sequence[Hashable], *, weight: str = "weight"
) -> float:
    r"""How wrong edge scores are about a tour: :math:`\eta(T) = \sum_e c_e |p_e - x_T(e)|`.

    Parameters
    ----------
    cost, heatmap, weight
        As for :func:`decode_heatmap`.
    tour : sequence of int, or of nodes
        The tour.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        As for :func:`decode_heatmap`.

    Examples
    --------
    >>> from assay.graphs.heatmap_tour import heatmap_error
    >>> heatmap_error([[0, 0], [0, 1], [1, 1], [1, 0]], {(0, 1): 1, (1, 2): 1, (2, 3): 0.5}, [0, 1, 2, 3])
    1.5
    """
    costs = read_costs(cost, weight=weight)
    order = check_tour(tour, costs.n, "tour", costs.nodes)
    return score_error(costs, _scores_of(cost, heatmap, costs), order)[0]


def heatmap_tsp(graph: nx.Graph, weight: str = "weight", *, heatmap: Heatmap = "p", **options: Any) -> list[Any]:
    """Closed list of nodes, as the methods of :func:`networkx.approximation.traveling_salesman_problem` return it.

    Parameters
    ----------
    graph : networkx.Graph
        Complete, with edge weights.
    weight : str, default="weight"
        Edge attribute that holds the cost.
    heatmap : str, mapping of pairs of nodes to scores, or matrix in the order of the nodes, default="p"
        The scores; a string names the edge attribute that holds them.
    **options
        Passed to :func:`decode_heatmap`.

    Returns
    -------
    list
        Nodes in order, the first one repeated at the end.

    Raises
    ------
    TypeError, ValueError
        As for :func:`decode_heatmap`.

    Notes
    -----
    ``traveling_salesman_problem`` hands its method a new graph that has the costs only. Pass the scores as a
    mapping, as below; an edge attribute is not there any more.

    Examples
    --------
    >>> from functools import partial
    >>> import networkx as nx
    >>> from assay.graphs.heatmap_tour import heatmap_tsp
    >>> ring = nx.cycle_graph(4)
    >>> method = partial(heatmap_tsp, heatmap={(0, 1): 0.9, (2, 3): 0.8})
    >>> nx.approximation.traveling_salesman_problem(ring, weight="weight", method=method)
    [0, 1, 2, 3, 0]
    """
    if not isinstance(graph, nx.Graph):
        raise TypeError(f"graph must be a networkx.Graph, got {type(graph).__name__}")
    nodes = decode_heatmap(graph, heatmap, weight=weight, **options).nodes
    return [*nodes, nodes[0]]


def _certified(
    search: TourSearch,
    sets: EdgeScores | None,
    complete: bool,
    reference: np.ndarray | None,
    scores: EdgeScores,
    improve: str | None,
    lower_bound: bool,
) -> TourResult:
    """Polish the best tour of the search, and evaluate what is promised about it."""
    costs, best = search.costs, search.best
    if best is None:
        raise RuntimeError("no set was decoded")
    source, threshold, winner = best
    tour = normalize_tour(_improved(costs, winner.tour, winner.cost, improve))
    cost = costs.tour_cost(tour)
    metric = triangle_check(costs)
    if metric.satisfied is False:
        warnings.warn(
            f"the triangle inequality is violated by up to {metric.violation:g}; "
            'metric="closure" replaces the costs by the lengths of shortest paths',
            UserWarning,
            stacklevel=3,
        )
    table = search.table
    from_sets = table[np.isin(table["source"], ("threshold", "empty"))]
    empty = from_sets[from_sets["source"] == "empty"]

    certificates: list[Certificate] = []
    if len(winner.skeleton):
        certificates.append(structural_certificate(costs, tour, winner.skeleton, winner.pairs, metric))
    if len(empty):
        certificates.append(christofides_certificate(costs, tour, float(empty["cost"][0])))
    eta, against_reference = None, []
    if reference is not None:
        eta, n_different = score_error(costs, scores, reference)
        if complete:
            gap = float(from_sets["matching_gap"].max())
            against_reference.append(
                reference_certificate(costs, tour, reference, eta, n_different, gap, metric, "the error of the scores")
            )
        against_reference.append(
            skeleton_certificate(costs, tour, reference, winner.skeleton, winner.matching_gap, metric)
            if sets is None
            else threshold_certificate(
                costs, sets, tour, reference, from_sets["threshold"], from_sets["matching_gap"], metric
            )
        )
    bound = min((certificate.bound for certificate in against_reference), default=None)
    lower, against_optimum = None, []
    if lower_bound:
        ascent = held_karp_bound(costs, upper=cost)
        lower = ascent.lower_bound
        if len(empty):
            gap = float(empty["matching_gap"][0])
            against_optimum.append(ratio_certificate(costs, tour, ascent.potentials, gap, metric))
    has_skeleton = len(winner.skeleton) > 0
    return TourResult(
        tour=tour,
        cost=cost,
        nodes=None if costs.nodes is None else [costs.nodes[city] for city in tour],
        source=source,
        threshold=threshold,
        skeleton=winner.skeleton,
        pairs=winner.pairs,
        skeleton_cost=math.fsum(costs.between(*winner.skeleton.T)) if has_skeleton else math.nan,
        matching_cost=math.fsum(costs.between(*winner.pairs.T)) if has_skeleton else math.nan,
        matching_gap=winner.matching_gap,
        n_odd=2 * len(winner.pairs),
        n_thresholds=len(search.rows),
        candidates=table,
        eta=eta,
        bound=bound,
        holds=None if bound is None or metric.satisfied is False else all(c.holds for c in against_reference),
        lower_bound=lower,
        ratio_bound=None if lower is None else divide(cost, lower),
        metric_ok=metric.satisfied,
        exact_matching=search.decoder.exact,
        certificates=(*certificates, *against_reference, *against_optimum),
        history=search.history,
    )


def _scores_of(cost: Costs, heatmap: Heatmap, costs: CityCosts) -> EdgeScores:
    if not isinstance(heatmap, str):
        return read_scores(heatmap, costs.n, costs.nodes)
    if not isinstance(cost, nx.Graph):
        raise TypeError(f"heatmap must hold scores unless cost is a networkx.Graph, got {heatmap!r}")
    named = nx.get_edge_attributes(cost, heatmap)
    if not named:
        raise ValueError(f"heatmap must name an edge attribute of the graph, no edge has {heatmap!r}")
    return read_scores(named, costs.n, costs.nodes)


def _threshold_levels(scores: EdgeScores, max_thresholds: int | None) -> tuple[Float[np.ndarray, " levels"], bool]:
    """Decreasing thresholds, infinity (the empty set) first, and whether they are all that matter."""
    values = np.unique(scores.score)
    if max_thresholds is None and values.size > _MOST_LEVELS:
        warnings.warn(
            f"heatmap has {values.size} different scores, {_MOST_LEVELS} quantiles of them are used as thresholds; "
            f"max_thresholds={values.size} uses all",
            UserWarning,
            stacklevel=3,
        )
        max_thresholds = _MOST_LEVELS
    if max_thresholds is None or max_thresholds >= values.size:
        return np.concatenate([[math.inf], values[::-1]]), True
    quantiles = np.quantile(scores.score, np.linspace(0, 1, max_thresholds), method="inverted_cdf")
    return np.concatenate([[math.inf], np.unique(np.append(quantiles, 0.5))[::-1]]), False


def _improved(costs: CityCosts, tour: np.ndarray, cost: float, improve: str | None) -> np.ndarray:
    """Local search until nothing changes; "both" alternates."""
    steps = {None: (), "2opt": (two_opt,), "oropt": (or_opt,), "both": (two_opt, or_opt)}[improve]
    while steps:
        before = cost
        for step in steps:
            polished = step(costs, tour)
            polished_cost = costs.tour_cost(polished)
            if polished_cost < cost:
                tour, cost = polished, polished_cost
        if len(steps) == 1 or not cost < before:
            break
    return tour
