"""Heatmap decoders for the travelling salesman problem: with and without a guarantee, on good and bad heatmaps."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study
from assay.studies.graphs._tour_instances import NOISE, Case, Instance, make_problem, noisy_heatmap, tour_cost
from assay.studies.graphs._tour_timing import time_against_networkx, time_two_opt

OURS = "ours"
EVERY = "ours, every threshold"
THRESHOLDS = "thresholds only"
EMPTY = "empty set (Christofides)"
GREEDY = "greedy"
BEAM = "beam search"
KOPT = "guided k-opt"
NETWORKX = "networkx Christofides"
BY_LEVEL = "networkx, set by set"
PYTHON_2OPT = "2-opt in Python"
LKH = "LKH"

SCATTER = "Ratio against the error of the heatmap"
FEW = 24
# At most this is less than 0.
STRICTLY_BELOW = -math.ulp(0.0)


class HeatmapTourStudy(Study):
    """Decoders of heatmaps."""

    title = "TSP with predictions: from a heatmap to a tour with a guarantee"
    summary = (
        "For people who have scores on edges (a neural heatmap, yesterday's route, votes of heuristics) and need a "
        "tour. They get one whose cost is bounded by how wrong the scores are, and never worse than Christofides'."
    )
    promise = (
        "The tour costs at most c(T) + 2 eta(T) for every tour T, where eta is the cost-weighted L1 distance of the "
        "heatmap from T, and at most 1.5 times the optimum whatever the heatmap."
    )
    interface = "solver"
    method = "assay.graphs.decode_heatmap"
    paper = Paper(
        "TSP with predictions",
        "Marek Elias, Fabrizio Grandoni, Adam Polak, Eleonora Vercesi",
        code="https://github.com/eleonoravercesi/tour_from_neural_predictions",
    )
    data = (
        "berlin52 and eil51 of TSPLIB, uniform random cities (50 to 1000), optima by LKH; heatmaps that are an optimal "
        "tour with noise, and heatmaps of a gradient-boosting classifier trained on other instances."
    )
    contenders = (
        Contender(OURS, "method", f"all candidates, {FEW} thresholds"),
        Contender(EVERY, "ablation", "all candidates, every score a threshold (small instances only when quick)"),
        Contender(THRESHOLDS, "ablation", f"thresholded sets and the empty set only, {FEW} thresholds"),
        Contender("threshold 0.5", "ablation", "the edges with a score of at least 0.5 only"),
        Contender("modified cost", "ablation", "the connected set of least c (1 - 2 p)"),
        Contender("random threshold", "ablation", "one threshold, uniform in (0, 1]"),
        Contender(EMPTY, "ablation", "the heatmap is ignored"),
        Contender(GREEDY, "incumbent", "edges by score per cost, no guarantee"),
        Contender(BEAM, "incumbent", "beam search over log scores, width 100"),
        Contender(KOPT, "incumbent", "heatmap-guided k-opt sampling, 50 n actions: a local search"),
        Contender(NETWORKX, "incumbent", "networkx.approximation.christofides", library="networkx"),
        Contender(BY_LEVEL, "incumbent", "each threshold decoded anew with networkx, timed", library="networkx"),
        Contender(PYTHON_2OPT, "ablation", "2-opt as a plain loop over all pairs, timed"),
        Contender(
            LKH,
            "incumbent",
            "elkai, 10 runs (1 for the scaling with the number of cities): the gold standard",
            library="elkai",
        ),
    )
    claims = (
        Claim(
            "C1",
            "No tour contradicts the bound c(T) + 2 eta(T): all 360 tours of random instances with 7 cities",
            "violations",
            OURS,
            "<=",
            0,
            "derived: proof in the docstring of the module",
            reduce="max",
        ),
        Claim(
            "C1b",
            "All certificates hold on every instance and heatmap",
            "certificates_failed",
            OURS,
            "<=",
            0,
            "derived: proof in the docstring of the module",
            reduce="max",
        ),
        Claim(
            "C2",
            "Without noise, the edges of an optimal tour give back its cost exactly",
            "ratio",
            OURS,
            "<=",
            1.0,
            "paper: consistency of the guarantee",
            reduce="max",
            case="* integral q=0",
        ),
        Claim(
            "C3a",
            "Learned heatmap: thresholds alone beat greedy by 5 points",
            "ratio",
            THRESHOLDS,
            "<=",
            -0.05,
            "prototype: 1.114 against 1.191",
            versus=GREEDY,
            compare="difference",
            reduce="mean",
            case="* learned*",
        ),
        Claim(
            "C3b",
            "Learned heatmap: thresholds alone beat greedy by half a point after 2-opt",
            "ratio_2opt",
            THRESHOLDS,
            "<=",
            -0.005,
            "prototype: 1.0475 against 1.0585",
            versus=GREEDY,
            compare="difference",
            reduce="mean",
            case="* learned*",
        ),
        *(
            Claim(
                f"C4-{noise}",
                f"berlin52 with noise {noise}: thresholds alone beat greedy on average",
                "ratio",
                THRESHOLDS,
                "<=",
                0.0,
                f"prototype: {prototype}",
                versus=GREEDY,
                compare="difference",
                reduce="mean",
                case=f"berlin52 fractional q={noise}*",
            )
            for noise, prototype in (
                (0.1, "1.136 against 1.220"),
                (0.2, "1.139 against 1.275"),
                (0.4, "1.125 against 1.402"),
            )
        ),
        *(
            Claim(
                f"C4m-{noise}",
                f"berlin52 with noise {noise}: thresholds alone beat greedy by {-margin:g} of the optimum on average",
                "ratio",
                THRESHOLDS,
                "<=",
                margin,
                "prototype",
                versus=GREEDY,
                compare="difference",
                reduce="mean",
                case=f"berlin52 fractional q={noise}*",
            )
            for noise, margin in ((0.1, -0.084), (0.2, -0.136), (0.4, -0.277))
        ),
        *(
            Claim(
                f"C4b-{label}",
                f"With all candidates never worse than {other}, on every instance",
                "ratio",
                OURS,
                "<=",
                1.0,
                "derived: it is among the candidates",
                versus=other,
                reduce="max",
            )
            for label, other in (("greedy", GREEDY), ("thresholds", THRESHOLDS), ("Christofides", EMPTY))
        ),
        *(
            Claim(
                f"C4c-{label}",
                f"berlin52 with noise 0.2: with all candidates strictly better than {other} on average",
                "ratio",
                OURS,
                "<=",
                STRICTLY_BELOW,
                f"prototype: 1.075 against {number}",
                versus=other,
                compare="difference",
                reduce="mean",
                case="berlin52 fractional q=0.2*",
            )
            for label, other, number in (
                ("greedy", GREEDY, 1.094),
                ("thresholds", THRESHOLDS, 1.131),
                ("Christofides", EMPTY, 1.139),
            )
        ),
        Claim(
            "C5",
            "The Held-Karp bound is within 2% of the optimum",
            "lower_bound_ratio",
            OURS,
            ">=",
            0.98,
            "prototype: 0.987 to 0.9998",
            reduce="min",
        ),
        Claim(
            "P1",
            "berlin52 with every threshold takes at most half a second, whatever the heatmap",
            "seconds",
            EVERY,
            "<=",
            0.5,
            "design target",
            reduce="max",
            case="berlin52 fractional*",
            timed=True,
        ),
        Claim(
            "P2",
            "At least 5 times faster than decoding each threshold with networkx",
            "speedup",
            BY_LEVEL,
            ">=",
            5,
            "design target",
            timed=True,
        ),
        Claim(
            "P2b",
            "Skeletons and matchings cost the same as those of networkx",
            "cost_difference",
            BY_LEVEL,
            "<=",
            1e-9,
            "derived: both are optimal",
            reduce="max",
        ),
        Claim(
            "P3",
            f"1000 cities, {FEW} thresholds: at most 10 seconds",
            "seconds",
            OURS,
            "<=",
            10,
            "design target",
            reduce="max",
            case="n=1000",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "P4",
            f"1000 cities, {FEW} thresholds: at most 200 MB",
            "peak_megabytes",
            OURS,
            "<=",
            200,
            "design target",
            reduce="max",
        ),
        Claim(
            "P5",
            "Time grows at most as n to the 2.5",
            "time_slope",
            OURS,
            "<=",
            2.5,
            "design target",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "P6",
            "2-opt is at least 50 times faster than the plain Python loop, for 100, 200 and 500 cities",
            "speedup",
            PYTHON_2OPT,
            ">=",
            50,
            "design target",
            reduce="min",
            timed=True,
        ),
    )
    sizes: ClassVar = {
        "quick": {"random": 2, "large": 0, "repeats": 5, "training": 15, "scaling": (50, 100, 200), "brute_force": 30},
        "full": {
            "random": 6,
            "large": 1,
            "repeats": 20,
            "training": 40,
            "scaling": (50, 100, 200, 500, 1000),
            "brute_force": 150,
        },
    }
    seeds: ClassVar = {"quick": 1, "full": 2}

    def problem(self, size: str, rng: np.random.Generator) -> dict[str, Any]:
        """Instances with their optima, and heatmaps for them."""
        # Optima and training are the same for all contenders of a seed, and a worker runs several of them.
        return make_problem(size, tuple(self.sizes[size].items()), int(rng.integers(2**31)))

    def measure(self, contender: str, problem: dict[str, Any], rng: np.random.Generator) -> Measurement:
        """Decode every heatmap, with and without 2-opt after it."""
        measurement = Measurement()
        if contender == BY_LEVEL:
            time_against_networkx(measurement, problem, FEW)
            return measurement
        if contender == PYTHON_2OPT:
            time_two_opt(measurement)
            return measurement
        cases = problem["cases"]
        if contender == EVERY and problem["size"] == "quick":
            cases = [case for case in cases if case.instance.rounded]
        rows = [_measure_case(measurement, contender, case, rng) for case in cases]
        _add_curves(measurement, cases, rows)
        if contender != EVERY:
            _scaling(measurement, contender, problem["scaling"], rng)
        if contender == OURS:
            measurement.add("violations", _violations(self.sizes[problem["size"]]["brute_force"], rng))
            _lower_bounds(measurement, cases)
            _memory(measurement)
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """A heatmap from nothing but ranks of neighbours."""
        from assay.data.tsplib import load_tsplib
        from assay.graphs.heatmap_tour import decode_heatmap

        distances = load_tsplib("berlin52").distances()
        rank = np.argsort(np.argsort(distances, axis=1), axis=1)
        heatmap = 1 / np.maximum(1, np.minimum(rank, rank.T))  # 1 for a nearest neighbour, 1/2 for the second, ...
        result = decode_heatmap(distances, heatmap, lower_bound=True, improve="2opt")
        return result.certificates

    def figures(self, table: Any) -> Sequence[Any]:
        """The default figures, with the scatter of ratios against errors drawn with its two bounds."""
        from assay.lab.figures import curve_figures

        return [_scatter(self, table) if figure.title == SCATTER else figure for figure in curve_figures(self, table)]


# Contenders.


def _decoder(contender: str, rng: np.random.Generator) -> Callable[[Instance, Any], np.ndarray]:
    from assay.graphs import heatmap_tour, tour_decoders

    def ours(**options: Any) -> Callable[[Instance, Any], np.ndarray]:
        return lambda instance, heatmap: heatmap_tour.decode_heatmap(instance.cost, heatmap, **options).tour

    return {
        OURS: ours(max_thresholds=FEW),
        EVERY: ours(),
        THRESHOLDS: ours(max_thresholds=FEW, candidates="thresholds"),
        "threshold 0.5": lambda instance, heatmap: (
            heatmap_tour.decode_heatmap(instance.cost, (heatmap >= 0.5).astype(float), method="integral").tour
        ),
        "modified cost": ours(method="modified_cost"),
        "random threshold": ours(method="random", n_samples=1, candidates="thresholds", random_state=rng),
        EMPTY: lambda instance, heatmap: heatmap_tour.christofides(instance.cost).tour,
        GREEDY: lambda instance, heatmap: tour_decoders.greedy_decode(instance.cost, heatmap),
        BEAM: lambda instance, heatmap: tour_decoders.beam_decode(instance.cost, heatmap, width=100),
        KOPT: lambda instance, heatmap: tour_decoders.kopt_decode(instance.cost, heatmap, random_state=rng),
        NETWORKX: lambda instance, heatmap: _networkx_christofides(instance),
        LKH: lambda instance, heatmap: instance.best,
    }[contender]


@functools.lru_cache(maxsize=64)
def _christofides_tour(distances: bytes, n: int) -> tuple[np.ndarray, float]:
    import networkx as nx

    matrix = np.frombuffer(distances).reshape(n, n)
    graph = nx.complete_graph(n)
    for i, j in graph.edges:
        graph[i][j]["weight"] = matrix[i, j]
    begin = time.perf_counter()
    tour = nx.approximation.christofides(graph)
    return np.array(tour[:-1]), time.perf_counter() - begin


def _networkx_christofides(instance: Instance) -> np.ndarray:
    return _christofides_tour(instance.distances.tobytes(), len(instance.points))[0]


def _timed(contender: str, case: Case, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Tour and seconds; compilation is not counted, and what does not look at the heatmap is run once."""
    decode = _decoder(contender, rng)
    if contender == LKH:
        return case.instance.best, case.instance.seconds
    if contender == NETWORKX:
        return _christofides_tour(case.instance.distances.tobytes(), len(case.instance.points))
    _warm_up(contender)
    begin = time.perf_counter()
    tour = decode(case.instance, case.heatmap)
    return np.asarray(tour), time.perf_counter() - begin


@functools.lru_cache(maxsize=32)
def _warm_up(contender: str) -> None:
    points = np.random.default_rng(0).random((12, 2))
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    tour = np.arange(12)
    for rounded in (True, False):
        instance = Instance("warm-up", points, distances, rounded, tour, tour_cost(distances, tour), 0.0)
        heatmap = noisy_heatmap(instance, 0.1, contender == "threshold 0.5", np.random.default_rng(0))
        _decoder(contender, np.random.default_rng(0))(instance, heatmap)


def _measure_case(
    measurement: Measurement, contender: str, case: Case, rng: np.random.Generator
) -> tuple[float, float]:
    from assay.graphs.heatmap_tour import decode_heatmap
    from assay.graphs.local_search import two_opt

    instance = case.instance
    if contender == OURS:
        _warm_up(contender)
        begin = time.perf_counter()
        result = decode_heatmap(instance.cost, case.heatmap, max_thresholds=FEW, reference=instance.best)
        tour, seconds = result.tour, time.perf_counter() - begin  # with its certificates
        measurement.certify(result.certificates, case=case.name)
    else:
        tour, seconds = _timed(contender, case, rng)
    ratio = tour_cost(instance.distances, tour) / instance.optimum
    polished = tour_cost(instance.distances, two_opt(instance.cost, tour)) / instance.optimum
    measurement.add("ratio", ratio, case=case.name)
    measurement.add("ratio_2opt", polished, case=case.name)
    measurement.add("seconds", seconds, case=case.name)
    return ratio, polished


def _add_curves(measurement: Measurement, cases: list[Case], rows: list[tuple[float, float]]) -> None:
    errors = np.array([case.error for case in cases])
    ratios = np.array(rows)
    order = np.argsort(errors, kind="stable")
    measurement.add_curve(
        SCATTER,
        errors[order],
        ratios[order, 0],
        x_label="error of the heatmap eta / optimum",
        y_label="cost of the tour / optimum",
    )
    for kind, (column, suffix) in itertools.product(("fractional", "integral"), ((0, ""), (1, " after 2-opt"))):
        noise = np.array([case.noise if case.kind == kind else math.nan for case in cases])
        levels = [q for q in NOISE if np.any(noise == q)]
        measurement.add_curve(
            "Mean ratio over the instances, by noise",
            levels,
            [ratios[noise == q, column].mean() for q in levels],
            case=f"{kind} heatmap{suffix}",
            x_label="probability that the score of an edge is wrong",
            y_label="cost of the tour / optimum, mean",
        )


def _scaling(measurement: Measurement, contender: str, cases: list[Case], rng: np.random.Generator) -> None:
    limit = 500 if contender == NETWORKX else math.inf  # the matching of networkx takes minutes beyond
    kept = [case for case in cases if len(case.instance.points) <= limit]
    sizes = np.array([len(case.instance.points) for case in kept])
    rows = [_measure_case(measurement, contender, case, rng) for case in kept]
    recorded = {s.case: s.value for s in measurement.scalars if s.metric == "seconds"}
    seconds = np.array([recorded[case.name] for case in kept])
    measurement.add_curve(
        "Time for one heatmap", sizes, seconds, x_label="cities", y_label="seconds", x_log=True, y_log=True
    )
    measurement.add_curve(
        "Ratio to LKH, by size", sizes, [ratio for ratio, _ in rows], x_label="cities", y_label="cost / LKH", x_log=True
    )
    if contender == OURS:
        slope = np.polyfit(np.log(sizes[1:]), np.log(seconds[1:]), 1)[0]
        measurement.add("time_slope", float(slope))


# What is measured once.


def _violations(n_instances: int, rng: np.random.Generator) -> int:
    """Number of instances with 7 cities on which some tour contradicts a bound."""
    from assay.graphs.heatmap_tour import decode_heatmap

    tours = np.array([(0, *rest) for rest in itertools.permutations(range(1, 7)) if rest[0] < rest[-1]])
    following = np.roll(tours, -1, axis=1)
    count = 0
    for k in range(n_instances):
        points = rng.random((7, 2))
        distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
        density = rng.random()
        heatmap = np.triu(rng.random((7, 7)) * (rng.random((7, 7)) < density), 1)
        if k % 2:
            heatmap = np.ceil(heatmap)
        heatmap = heatmap + heatmap.T
        cost = distances[tours, following].sum(axis=1)
        error = (distances * heatmap).sum() / 2 + (distances * (1 - 2 * heatmap))[tours, following].sum(axis=1)
        bound = min((cost + 2 * error).min(), 1.5 * cost.min())
        found = [decode_heatmap(points, heatmap, candidates=which).cost for which in ("all", "thresholds")]
        if k % 2:
            integral = decode_heatmap(points, heatmap, method="integral").cost
            count += integral > (cost + 2 * error).min() * (1 + 1e-12)
        count += max(found) > bound * (1 + 1e-12)
    return int(count)


def _lower_bounds(measurement: Measurement, cases: list[Case]) -> None:
    from assay.graphs.tour_bounds import held_karp_bound

    for instance in {case.instance.name: case.instance for case in cases}.values():
        result = held_karp_bound(instance.cost)
        measurement.add("lower_bound_ratio", result.lower_bound / instance.optimum, case=instance.name)
        measurement.certify(result.certificates, case=instance.name)


def _memory(measurement: Measurement) -> None:
    """Peak of what is allocated while 1000 cities are decoded."""
    import tracemalloc

    from assay.graphs.heatmap_tour import decode_heatmap

    points = np.random.default_rng(1000).random((1000, 2)) * 1000
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    instance = Instance("memory", points, distances, False, np.argsort(points[:, 0]), 1.0, 0.0)
    heatmap = noisy_heatmap(instance, 0.1, False, np.random.default_rng(0))
    tracemalloc.start()
    decode_heatmap(points, heatmap, max_thresholds=FEW)
    measurement.add("peak_megabytes", tracemalloc.get_traced_memory()[1] / 2**20)
    tracemalloc.stop()


def _scatter(study: HeatmapTourStudy, table: Any) -> Any:
    import plotly.graph_objects as go

    from assay.lab.figures import Figure, contender_styles

    rows = table.curves[table.curves["name"] == SCATTER]
    styles = contender_styles(study)
    plot = go.Figure()
    limit = max(float(x.max()) for x in rows["x"])
    plot.add_scatter(
        x=[0, limit], y=[1, 1 + 2 * limit], name="1 + 2 eta / optimum", mode="lines", line={"color": "#8A8C8C"}
    )
    plot.add_scatter(x=[0, limit], y=[1.5, 1.5], name="1.5", mode="lines", line={"color": "#8A8C8C", "dash": "dot"})
    shown = (OURS, THRESHOLDS, GREEDY, BEAM, EMPTY)
    for row in rows[rows["seed"] == rows["seed"].min()].itertuples():
        plot.add_scatter(
            x=row.x,
            y=row.y,
            name=row.contender,
            mode="markers",
            marker={"color": styles[row.contender]["color"], "size": 8 if row.contender == OURS else 6},
            visible=True if row.contender in shown else "legendonly",
        )
    plot.update_xaxes(title=rows.iloc[0]["x_label"])
    plot.update_yaxes(
        title=rows.iloc[0]["y_label"], range=[0.98, float(np.clip(max(y.max() for y in rows["y"]), 1.6, 2.5))]
    )
    return Figure(
        SCATTER,
        "One point per instance and heatmap. Our tours stay below both lines, whatever the heatmap; decoders without "
        "a guarantee leave them when the heatmap is wrong. Other contenders can be switched on in the legend.",
        plot,
    )
