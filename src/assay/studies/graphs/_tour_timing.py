"""Two timings: decoding each threshold anew with networkx, and 2-opt as a plain loop."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave
from assay.studies.graphs._tour_instances import tour_cost

TWO_OPT_SIZES = (100, 200, 500)


def time_against_networkx(measurement: Measurement, problem: dict[str, Any], few: int) -> None:
    """Skeletons, matchings and tours of all thresholds: ours against one decode with networkx for each."""
    from assay.graphs.heatmap_tour import decode_heatmap

    case = next(case for case in problem["cases"] if case.name == "berlin52 fractional q=0.1")
    distances, heatmap = case.instance.distances, case.heatmap
    levels = few if problem["size"] == "quick" else None

    def ours() -> Any:
        return decode_heatmap(distances, heatmap, candidates="thresholds", max_thresholds=levels, shortcut="first")

    thresholds = ours().history["threshold"]
    timings = interleave(
        {"networkx": lambda: [_networkx_decode(distances, heatmap, theta) for theta in thresholds], "ours": ours},
        repeats=3,
        warmup=0,
    )
    ratio = timings.ratio("networkx", "ours")
    history = timings.answers["ours"].history
    total = history["skeleton_cost"] + history["matching_cost"]
    name = f"berlin52, {len(thresholds)} sets"
    measurement.add("speedup", ratio.median, case=name)
    measurement.add("speedup_lower", ratio.lower, case=name)
    measurement.add("speedup_upper", ratio.upper, case=name)
    measurement.add("seconds", timings.median("networkx"), case=name)
    difference = np.abs(total - np.array(timings.answers["networkx"])) / total
    measurement.add("cost_difference", difference.max(), case=name)


def _networkx_decode(distances: np.ndarray, heatmap: Any, threshold: float) -> float:
    """Cost of skeleton and matching; the tour is made as well, since it belongs to the work."""
    import networkx as nx

    n = len(distances)
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    triplets = heatmap.tocoo()
    chosen = triplets.data >= threshold
    graph.add_edges_from(zip(triplets.row[chosen].tolist(), triplets.col[chosen].tolist(), strict=True))
    complete = nx.Graph()
    complete.add_weighted_edges_from(
        (i, j, -1.0 if graph.has_edge(i, j) else distances[i, j]) for i, j in itertools.combinations(range(n), 2)
    )
    graph.add_edges_from(nx.minimum_spanning_edges(complete, data=False))
    odd = [city for city in graph if graph.degree(city) % 2]
    between = nx.Graph()
    between.add_weighted_edges_from((i, j, distances[i, j]) for i, j in itertools.combinations(odd, 2))
    pairs = nx.min_weight_matching(between)
    walkable = nx.MultiGraph(graph)
    walkable.add_edges_from(pairs)
    list(dict.fromkeys(city for city, _ in nx.eulerian_circuit(walkable, source=0)))
    return math.fsum(distances[edge] for edge in graph.edges) + math.fsum(distances[edge] for edge in pairs)


def time_two_opt(measurement: Measurement) -> None:
    """The compiled search with neighbour lists against the textbook loop over all pairs."""
    from assay.graphs.local_search import two_opt

    for n in TWO_OPT_SIZES:
        points = np.random.default_rng(n).random((n, 2)) * 1000
        distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
        start = np.argsort(points[:, 0])
        two_opt(points, start)  # compiles
        functions = {
            "Python": functools.partial(two_opt, points, start, method="plain"),
            "compiled": functools.partial(two_opt, points, start),
        }
        timings = interleave(functions, repeats=25, warmup=0, budget=1.5)
        ratio = timings.ratio("Python", "compiled")
        name = f"{n} cities"
        measurement.add("speedup", ratio.median, case=name)
        measurement.add("speedup_lower", ratio.lower, case=name)
        measurement.add("speedup_upper", ratio.upper, case=name)
        costs = {which: tour_cost(distances, tour) for which, tour in timings.answers.items()}
        measurement.add("cost_over_compiled", costs["Python"] / costs["compiled"], case=name)
