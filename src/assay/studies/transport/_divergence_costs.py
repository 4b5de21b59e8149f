"""Error terms, rates and costs of the kernel critic."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave
from assay.studies.transport._alpha_laws import normal_divergence

__all__ = [
    "epoch_of_network",
    "epoch_of_ours",
    "measure_error_terms",
    "measure_gram_ratio",
    "measure_memory",
    "measure_rate",
    "measure_scaling",
    "network_epoch_ratio",
]

MEAN, VARIANCE, DIMENSION, ALPHA = 0.5, 1.44, 2, 0.5


def _pair(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return (
        rng.normal(size=(n, DIMENSION)),
        rng.normal(MEAN, np.sqrt(VARIANCE), size=(n, DIMENSION)),
    )


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    if min(y) <= 0.0:
        return float("nan")
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def measure_error_terms(measurement: Measurement, parameters: dict[str, Any], rng: np.random.Generator) -> None:
    """Statistical error against n, spread over features against D, shortfall against R; two dimensions."""
    from assay.transport import AmariDivergence, alpha_divergence

    exact = normal_divergence(ALPHA, MEAN, VARIANCE, DIMENSION)
    fresh, divergence = _pair(parameters["population"], rng), AmariDivergence(ALPHA)
    seeds = parameters["term_seeds"]

    def fit(sample: tuple[np.ndarray, np.ndarray], **options: Any) -> tuple[float, float]:
        result = alpha_divergence(
            *sample, ALPHA, holdout=0.0, rng=np.random.default_rng(rng.integers(2**31)), **options
        )
        g, h = (result.critic(points) for points in fresh)
        population = divergence.p_integrand(g)[0].mean() + divergence.q_integrand(h)[0].mean()
        return result.train_value, float(population)

    sizes = parameters["term_sizes"]
    gaps = []
    for n in sizes:
        runs = [fit(_pair(n, rng)) for _ in range(seeds)]
        gaps.append(abs(float(np.mean([train - population for train, population in runs]))))
        measurement.add("statistical", gaps[-1], f"terms n={n}")
    measurement.add("statistical_slope", _slope(sizes, gaps), "terms")
    measurement.add_curve(
        "statistical error", sizes, gaps, x_label="points", y_label="train - population value", x_log=True, y_log=True
    )

    sample = _pair(parameters["term_points"], rng)
    counts, spreads = (16, 64, 256), []
    for count in counts:
        spreads.append(float(np.std([fit(sample, n_features=count)[0] for _ in range(seeds)], ddof=1)))
        measurement.add("feature_sd", spreads[-1], f"terms D={count}")
    measurement.add("feature_slope", _slope(counts[:2], spreads[:2]), "terms")

    radii = (0.5, 1.0, 2.0, 5.0)
    shortfalls = [exact - float(np.mean([fit(sample, radius=r)[1] for _ in range(seeds)])) for r in radii]
    for radius, shortfall in zip(radii, shortfalls, strict=True):
        measurement.add("shortfall", shortfall, f"terms R={radius:g}")
    measurement.add("shortfall_rise", float(np.max(np.diff(shortfalls))), "terms")
    measurement.add_curve(
        "shortfall", radii, shortfalls, x_label="radius of the ball", y_label="exact - population value", x_log=True
    )


def measure_rate(measurement: Measurement, rng: np.random.Generator) -> None:
    """Fitted linear factor of full Armijo ascent less that of the Hessian."""
    from assay.transport import armijo_rate

    rate = armijo_rate(*_pair(1000, rng), ALPHA, n_features=20, ridge=1e-3, max_iter=1500, rng=rng)
    measurement.add("fitted_factor", rate.fitted_factor, "rate")
    measurement.add("predicted_factor", rate.predicted_factor, "rate")
    measurement.add("rate_excess", rate.fitted_factor - rate.predicted_factor, "rate")
    measurement.certify(rate.certificates, "rate")
    measurement.add_curve(
        "full Armijo ascent",
        rate.history["iteration"],
        np.maximum(rate.history["distance"], 1e-16),
        y_label="distance to the maximum",
        y_log=True,
    )


def epoch_of_ours(P: np.ndarray, Q: np.ndarray, n_features: int, rng: np.random.Generator) -> Any:
    """A function that makes one stochastic epoch of the kernel critic."""
    from assay.transport import AmariDivergence
    from assay.transport.critic_training import ascend_by_minibatches
    from assay.transport.divergence_critic import CriticProblem, Sample
    from assay.transport.random_features import draw_random_features

    features = draw_random_features(P.shape[1], n_features, np.sqrt(2.0 * P.shape[1]), rng)
    problem = CriticProblem(AmariDivergence(0.5), Sample.whole(P), Sample.whole(Q), features, 5.0, 5.0)

    def epoch() -> None:
        ascend_by_minibatches(
            problem,
            np.zeros(problem.n_parameters),
            batch_size=512,
            epochs=1,
            average=False,
            rng=np.random.default_rng(0),
        )

    return epoch


def epoch_of_network(P: np.ndarray, Q: np.ndarray) -> Any:
    """A function that makes one epoch of the perceptron (64, 64) with Adam."""
    import torch

    from assay.studies.transport._neural_critics import perceptron
    from assay.transport import gan_value

    first, second = torch.from_numpy(P).float(), torch.from_numpy(Q).float()
    net = perceptron(P.shape[1], 0)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    source = torch.Generator().manual_seed(0)

    def epoch() -> None:
        orders = [torch.randperm(len(sample), generator=source) for sample in (first, second)]
        for start in range(0, len(first) - 511, 512):
            optimizer.zero_grad()
            p, q = first[orders[0][start : start + 512]], second[orders[1][start : start + 512]]
            (-gan_value(net(p)[:, 0], net(q)[:, 0], 0.5)).backward()
            optimizer.step()

    return epoch


def network_epoch_ratio(measurement: Measurement, n: int, rng: np.random.Generator) -> None:
    """Time of an epoch of the network over that of ours, ten dimensions, 256 features."""
    P, Q = rng.normal(size=(n, 10)), rng.normal(0.5, 1.0, size=(n, 10))
    timings = interleave(
        {"ours": epoch_of_ours(P, Q, 256, rng), "network": epoch_of_network(P, Q)}, repeats=5, budget=20.0, clock="cpu"
    )
    measurement.add("epoch_ratio", timings.ratio("network", "ours").median, f"epoch n={n}")
    measurement.add("epoch_seconds", timings.median("network"), f"epoch n={n}")


def measure_scaling(
    measurement: Measurement, sizes: Sequence[int], counts: Sequence[int], rng: np.random.Generator
) -> None:
    """Exponents of the points and of the features in the time of an epoch."""
    P, Q = rng.normal(size=(max(sizes), 10)), rng.normal(0.5, 1.0, size=(max(sizes), 10))
    for name, case, epochs in (
        ("points", sizes, {n: epoch_of_ours(P[:n], Q[:n], 256, rng) for n in sizes}),
        ("features", counts, {D: epoch_of_ours(P[: min(sizes)], Q[: min(sizes)], D, rng) for D in counts}),
    ):
        timings = interleave({str(key): epoch for key, epoch in epochs.items()}, repeats=5, budget=20.0, clock="cpu")
        seconds = [timings.median(str(key)) for key in case]
        slope = _slope([float(key) for key in case], seconds)
        measurement.add("time_slope", slope, f"scaling {name}")
        measurement.add("time_slope_error", abs(slope - 1.0), f"scaling {name}")
        measurement.add_curve(
            f"time of an epoch against {name}", case, seconds, x_label=name, y_label="seconds", x_log=True, y_log=True
        )


def measure_memory(measurement: Measurement, n: int, rng: np.random.Generator) -> None:
    """Peak memory of an epoch and of a whole fit beyond the data, in blocks of 512 by 256 numbers."""
    from assay.transport import AlphaDivergence

    P, Q = rng.normal(size=(n, 10)), rng.normal(0.5, 1.0, size=(n, 10))
    estimator = AlphaDivergence(epochs=1, random_state=0)
    # What compiled functions and imported modules take is not of the method.
    estimator.fit(P[:2000], Q[:2000])
    for metric, work in (("epoch_blocks", epoch_of_ours(P, Q, 256, rng)), ("fit_blocks", lambda: estimator.fit(P, Q))):
        tracemalloc.start()
        started = time.perf_counter()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        measurement.add(metric, peak / (8 * 512 * 256), f"memory n={n}")
        measurement.add(metric.replace("blocks", "traced_seconds"), time.perf_counter() - started, f"memory n={n}")


def measure_gram_ratio(measurement: Measurement, n: int, rng: np.random.Generator) -> None:
    """Time of the Gram-matrix solution over that of ours, n points in all; no held-out points."""
    from assay.studies.transport._divergence_peers import gram_value
    from assay.transport import alpha_divergence

    P, Q = rng.normal(size=(n // 2, 5)), rng.normal(0.5, 1.0, size=(n // 2, 5))
    timings = interleave(
        {
            "ours": lambda: alpha_divergence(P, Q, holdout=0.0, rng=0).train_value,
            "gram": lambda: gram_value(P, Q, 0.5),
        },
        repeats=3,
        warmup=1,
        budget=30.0,
        clock="cpu",
    )
    case = f"gram n={n}"
    measurement.add("gram_ratio", timings.ratio("gram", "ours").median, case)
    measurement.add("fit_seconds", timings.median("gram"), case)
    measurement.add("train_value", timings.answers["gram"], case)
    measurement.add("train_value_of_ours", timings.answers["ours"], case)
    measurement.add("exact", normal_divergence(0.5, 0.5, 1.0, 5), case)
