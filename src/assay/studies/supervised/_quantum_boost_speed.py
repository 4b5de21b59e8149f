"""Times and memory of boosting and of its projections, and the growth of queries."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave

__all__ = ["measure_boosting", "measure_memory", "measure_projection", "measure_queries"]

LADDER = tuple(2.0**-k for k in range(2, 9))


def bisection(measure: np.ndarray, eps: float) -> float:
    """Constant of the projection by bisection to a relative accuracy of 1e-12."""
    low, high = eps, 1.0
    while np.minimum(1.0, high * measure).mean() < eps:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.minimum(1.0, middle * measure).mean() < eps else (low, middle)
    return 0.5 * (low + high)


def lazy_measure(m: int, eps: float, rng: np.random.Generator) -> np.ndarray:
    """A measure after ten lazy rounds in which 60 % of the answers were right."""
    return eps * 0.9 ** rng.binomial(10, 0.6, size=m)


def measure_projection(measurement: Measurement) -> None:
    """A million weights, exactly against by bisection."""
    from assay.supervised import bregman_project

    rng = np.random.default_rng(0)
    measure = rng.random(10**6) ** 3
    timings = interleave(
        {"exact": lambda: bregman_project(measure, 0.3), "bisection": lambda: bisection(measure, 0.3)}, repeats=5
    )
    add_ratio(measurement, "bisection_time_ratio", timings.ratio("bisection", "exact"))
    measurement.add("projection_seconds", timings.median("exact"))
    difference = timings.answers["exact"].constant / timings.answers["bisection"] - 1.0
    measurement.add("constant_difference", abs(difference))


def measure_queries(measurement: Measurement, rng: np.random.Generator) -> None:
    """Queries of simulated projections against the density."""
    from assay.supervised import bregman_project

    queries = []
    for eps in LADDER:
        measure = lazy_measure(4096, eps, rng)
        projections = [bregman_project(measure, eps, "quantum_sim", 0.2, rng) for _ in range(5)]
        queries.append(np.mean([projection.queries for projection in projections]))
        measurement.add("queries_per_projection", queries[-1], case=f"epsilon {eps:g}")
        for projection in projections:
            measurement.certify(projection.certificates, case=f"epsilon {eps:g}")
    measurement.add("query_exponent", np.polyfit(np.log(LADDER), np.log(queries), 1)[0])
    measurement.add_curve(
        "queries of a projection",
        LADDER,
        queries,
        x_label="density epsilon",
        y_label="looks at the measure",
        x_log=True,
        y_log=True,
    )


def measure_boosting(measurement: Measurement, features: np.ndarray, labels: np.ndarray, rounds: int) -> None:
    """Whole fits against AdaBoost, and what boosting adds to its weak learners."""
    from sklearn.base import clone
    from sklearn.ensemble import AdaBoostClassifier
    from sklearn.tree import DecisionTreeClassifier

    from assay.supervised import QuantumBoostClassifier

    stump = DecisionTreeClassifier(max_depth=1)
    weights = np.ones(len(labels))

    def learners_only() -> None:
        for seed in range(rounds):
            learner = clone(stump).set_params(random_state=seed)
            learner.fit(features, labels, sample_weight=weights).predict(features)

    def ours(estimator: Any) -> Any:
        return QuantumBoostClassifier(estimator, early_stop=False, n_rounds=rounds, random_state=0).fit(
            features, labels
        )

    timings = interleave(
        {
            "same stumps": lambda: quietly(ours, stump),
            "built-in stumps": lambda: quietly(ours, "stump"),
            "AdaBoost": lambda: AdaBoostClassifier(stump, n_estimators=rounds, random_state=0).fit(features, labels),
            "learners only": learners_only,
        },
        repeats=5,
        budget=2.0 if rounds < 100 else 20.0,
    )
    add_ratio(measurement, "fit_time_ratio", timings.ratio("same stumps", "AdaBoost"))
    add_ratio(measurement, "fit_speedup", timings.ratio("AdaBoost", "built-in stumps"))
    measurement.add("overhead", 1.0 - timings.median("learners only") / timings.median("same stumps"))


def quietly(call: Any, *arguments: Any) -> Any:
    """Call without the warning that the rounds ended first."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments)


def measure_memory(measurement: Measurement) -> None:
    """Growth of the peak memory with the number of examples, and of the time of an estimate with its evaluations."""
    from assay.supervised import QuantumBoostClassifier, amplitude_estimate

    rng = np.random.default_rng(0)
    counts, peaks = (2000, 8000, 32000), []
    # The first fit loads compiled code, which is not counted.
    for m in (100, *counts):
        features = rng.normal(size=(m, 4))
        labels = (features.sum(axis=1) + rng.normal(size=m) > 0).astype(int)
        model = QuantumBoostClassifier(n_rounds=20, early_stop=False)
        tracemalloc.start()
        quietly(model.fit, features, labels)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    measurement.add("memory_exponent", np.polyfit(np.log(counts), np.log(peaks[1:]), 1)[0])
    sizes = tuple(1 << k for k in (12, 14, 16))
    timings = interleave(
        {str(size): (lambda size=size: amplitude_estimate(0.1, size, rng=0, repeats=7)) for size in sizes}, repeats=5
    )
    seconds = [timings.median(str(size)) for size in sizes]
    measurement.add("estimate_time_exponent", np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def add_ratio(measurement: Measurement, metric: str, ratio: Any) -> None:
    """Add a ratio of medians with its quartiles."""
    measurement.add(metric, ratio.median)
    measurement.add(f"{metric}_lower", ratio.lower)
    measurement.add(f"{metric}_upper", ratio.upper)
