"""Pairs of laws whose divergence is known, and samples of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["DivergenceCase", "divergence_cases", "normal_divergence"]


def normal_divergence(alpha: float, mean: float, variance: float, dimension: int) -> float:
    """Amari's divergence of N(0, I) and N(mean, variance I), the mean in every coordinate."""
    if alpha == 1.0:
        return dimension * 0.5 * ((1.0 + mean**2) / variance - 1.0 + math.log(variance))
    if alpha == 0.0:
        return dimension * 0.5 * (variance + mean**2 - 1.0 - math.log(variance))
    scale = alpha * variance + 1.0 - alpha
    log_integral = 0.5 * (alpha * math.log(variance) - math.log(scale) - alpha * (1.0 - alpha) * mean**2 / scale)
    return math.expm1(dimension * log_integral) / (alpha * (alpha - 1.0))


@dataclass(frozen=True, eq=False)
class DivergenceCase:
    """Samples of two normal laws, several times."""

    name: str
    alpha: float
    exact: float
    radius: float
    samples: list[tuple[np.ndarray, np.ndarray]]

    @property
    def dimension(self) -> int:
        """Of the points."""
        return self.samples[0][0].shape[1]


def divergence_cases(
    rows: Sequence[tuple[int, float, int, float, float, float, int]], rng: np.random.Generator
) -> list[DivergenceCase]:
    """One case for each (dimension, alpha, points, mean, variance, radius, repeats)."""
    cases = []
    for dimension, alpha, n, mean, variance, radius, repeats in rows:
        samples = [
            (rng.normal(size=(n, dimension)), rng.normal(mean, math.sqrt(variance), size=(n, dimension)))
            for _ in range(repeats)
        ]
        exact = normal_divergence(alpha, mean, variance, dimension)
        cases.append(DivergenceCase(f"d={dimension} alpha={alpha:g}", alpha, exact, radius, samples))
    return cases
