"""Plain descent methods on the mean loss with ridge penalty, for what smoothness is worth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

__all__ = ["RIDGE", "hinge_subgradient", "plain_descent"]

RIDGE = 1e-3
SUBGRADIENT_STEPS = (0.01, 0.1, 1.0, 10.0)


def plain_descent(features: np.ndarray, labels: np.ndarray, steps: int, accelerated: bool) -> tuple[np.ndarray, float]:
    """Objectives of steps of 1/L on the mean linear-core loss with ridge penalty, with momentum or without, and L."""
    from assay.supervised.linear_core import linear_core, linear_core_slope

    extended = np.column_stack([features, np.ones(len(labels))]) * (2.0 * labels - 1.0)[:, None]
    penalised = np.append(np.full(features.shape[1], RIDGE), 0.0)
    lipschitz = float(np.linalg.norm(extended, 2) ** 2 / len(labels) / 0.3 + RIDGE)
    weights = ahead = np.zeros(extended.shape[1])
    momentum, objectives = 1.0, []
    for _ in range(steps):
        slope = linear_core_slope(extended @ ahead)
        following = ahead - (penalised * ahead + extended.T @ slope / len(labels)) / lipschitz
        ahead = following
        if accelerated:
            next_momentum = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
            ahead = following + (momentum - 1.0) / next_momentum * (following - weights)
            momentum = next_momentum
        weights = following
        objectives.append(0.5 * penalised @ weights**2 + linear_core(extended @ weights).mean())
    return np.array(objectives), lipschitz


def hinge_subgradient(features: np.ndarray, labels: np.ndarray, steps: int) -> np.ndarray:
    """Best objective so far above the least one, of the best of five subgradient methods on the hinge loss.

    Four have steps of ``c / sqrt(t)``. The fifth knows the ridge, as the smooth methods know their Lipschitz constant,
    and takes steps of ``2 / (ridge (t + 1))``.
    """
    from sklearn.svm import SVC

    extended = np.column_stack([features, np.ones(len(labels))]) * (2.0 * labels - 1.0)[:, None]
    penalised = np.append(np.full(features.shape[1], RIDGE), 0.0)

    def objective(weights: np.ndarray) -> float:
        return float(0.5 * penalised @ weights**2 + np.maximum(0.0, 1.0 - extended @ weights).mean())

    def descend(size: Callable[[int], float]) -> np.ndarray:
        weights, objectives = np.zeros(extended.shape[1]), []
        for step in range(1, steps + 1):
            active = extended[extended @ weights < 1.0].sum(axis=0) / len(labels)
            weights = weights - size(step) * (penalised * weights - active)
            objectives.append(objective(weights))
        return np.minimum.accumulate(objectives) - least

    exact = SVC(kernel="linear", C=1.0 / (RIDGE * len(labels)), tol=1e-8).fit(features, labels)
    least = objective(np.append(exact.coef_[0], exact.intercept_))
    # Every step size is tried, and the one that turned out best is reported.
    runs = [descend(lambda step, size=size: size / math.sqrt(step)) for size in SUBGRADIENT_STEPS]
    runs.append(descend(lambda step: 2.0 / (RIDGE * (step + 1.0))))
    return min(runs, key=lambda run: run[-1])
