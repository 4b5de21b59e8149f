"""Instances of the travelling salesman problem with their optima, and heatmaps that are more or less wrong."""

from __future__ import annotations

import functools
import itertools
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

NOISE = (0.0, 0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True)
class Instance:
    """Cities with their best known tour."""

    name: str
    points: np.ndarray
    distances: np.ndarray
    rounded: bool
    best: np.ndarray
    optimum: float
    seconds: float

    @property
    def cost(self) -> np.ndarray:
        """What a decoder is given: points, or a matrix if distances are rounded."""
        return self.distances if self.rounded else self.points


@dataclass(frozen=True)
class Case:
    """An instance with a heatmap."""

    name: str
    instance: Instance
    heatmap: Any
    kind: str
    noise: float
    error: float


@functools.lru_cache(maxsize=4)
def make_problem(size: str, parameters: tuple[tuple[str, Any], ...], seed: int) -> dict[str, Any]:
    """Solved instances with their heatmaps, and one instance per size for the scaling."""
    from assay.data.tsplib import load_tsplib

    settings = dict(parameters)
    rng = np.random.default_rng(seed)
    instances = []
    for name in ("berlin52", "eil51"):
        loaded = load_tsplib(name)
        instances.append(solved_instance(name, loaded.coords, loaded.distances(), rounded=True))
    for k in range(settings["random"]):
        instances.append(random_instance(f"random100-{k}", 100, 100 + k))
    for k in range(settings["large"]):
        instances.append(random_instance(f"random200-{k}", 200, 200 + k))
    learned = _learned_heatmaps(settings["training"], [instance.points for instance in instances], rng)
    cases = []
    for instance, prediction in zip(instances, learned, strict=True):
        for kind, noise in itertools.product(("fractional", "integral"), NOISE):
            # On the two classics, noise is averaged over several heatmaps.
            for repeat in range(settings["repeats"] if instance.rounded and kind == "fractional" else 1):
                heatmap = noisy_heatmap(instance, noise, kind == "integral", rng)
                name = f"{instance.name} {kind} q={noise:g}" + (f" ({repeat + 1})" if repeat else "")
                cases.append(_with_error(name, instance, heatmap, kind, noise))
        cases.append(_with_error(f"{instance.name} learned", instance, prediction, "learned", math.nan))
    scaling = []
    for n in settings["scaling"]:
        instance = random_instance(f"n={n}", n, n, runs=1)
        scaling.append(_with_error(instance.name, instance, noisy_heatmap(instance, 0.1, False, rng), "scaling", 0.1))
    return {"size": size, "cases": cases, "scaling": scaling}


def random_instance(name: str, n: int, seed: int, runs: int = 10) -> Instance:
    """Uniform cities in a square of side 1000."""
    points = np.random.default_rng(seed).random((n, 2)) * 1000
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    return solved_instance(name, points, distances, rounded=False, runs=runs)


def solved_instance(name: str, points: np.ndarray, distances: np.ndarray, *, rounded: bool, runs: int = 10) -> Instance:
    """Cities with the best tour that LKH finds."""
    from elkai import DistanceMatrix

    begin = time.perf_counter()
    tour = DistanceMatrix(distances.tolist()).solve_tsp(runs=runs)
    seconds = time.perf_counter() - begin
    best = np.array(tour[:-1])
    return Instance(name, points, distances, rounded, best, tour_cost(distances, best), seconds)


def tour_cost(distances: np.ndarray, tour: np.ndarray) -> float:
    """Cost of a closed tour, correctly rounded."""
    return math.fsum(distances[tour, np.roll(tour, -1)])


def _with_error(name: str, instance: Instance, heatmap: Any, kind: str, noise: float) -> Case:
    from assay.graphs.heatmap_tour import heatmap_error

    error = heatmap_error(instance.cost, heatmap, instance.best) / instance.optimum
    return Case(name, instance, heatmap, kind, noise, error)


def noisy_heatmap(instance: Instance, noise: float, integral: bool, rng: np.random.Generator) -> Any:
    """An optimal tour and the edges to the 5 nearest neighbours, with scores that are wrong with probability noise."""
    import scipy.sparse

    n = len(instance.points)
    tour = np.sort(np.column_stack([instance.best, np.roll(instance.best, -1)]), axis=1)
    near = np.argsort(instance.distances + np.diag(np.full(n, np.inf)), axis=1, kind="stable")[:, :5]
    around = np.sort(np.column_stack([np.repeat(np.arange(n), 5), near.ravel()]), axis=1)
    right = np.unique(tour[:, 0] * n + tour[:, 1])
    wrong = np.setdiff1d(around[:, 0] * n + around[:, 1], right)
    if integral:
        kept = np.concatenate([right[rng.random(right.size) >= noise], wrong[rng.random(wrong.size) < noise / 2]])
        score = np.ones(kept.size)
    else:
        kept = np.concatenate([right, wrong])
        high, low = rng.beta(8, 2, kept.size), rng.beta(2, 8, kept.size)
        is_right = np.arange(kept.size) < right.size
        score = np.where(is_right != (rng.random(kept.size) < noise), high, low)
    return scipy.sparse.csr_array((score, (kept // n, kept % n)), shape=(n, n))


def _learned_heatmaps(n_training: int, points: list[np.ndarray], rng: np.random.Generator) -> list[Any]:
    from assay.graphs.edge_heatmap import EdgeHeatmapClassifier

    training = [random_instance("training", 60, int(rng.integers(2**31)), runs=1) for _ in range(n_training)]
    model = EdgeHeatmapClassifier(random_state=int(rng.integers(2**31))).fit(
        [instance.points for instance in training], [instance.best for instance in training]
    )
    return [model.predict_heatmap(cities) for cities in points]
