"""Monotone operators with known constants and zeros, for the study of anchored methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = [
    "Saddle",
    "bilinear",
    "hard_instance",
    "nonlinear",
    "robust_logistic",
    "robust_logistic_minibatch",
    "well_conditioned",
]


@dataclass(frozen=True)
class Saddle:
    """A monotone operator with its Lipschitz constant, a zero, and where to start."""

    name: str
    field: Callable[[np.ndarray], np.ndarray]
    lipschitz: float
    start: np.ndarray
    zero: np.ndarray

    @property
    def distance(self) -> float:
        """From the start to the zero."""
        return float(np.linalg.norm(self.start - self.zero))


def bilinear(rng: np.random.Generator, size: int = 50, spread: str = "even", start: str = "ones") -> Saddle:
    """``min_x max_y x' A y`` with singular values from 0.01 to 1.

    They are spread evenly, or (``spread="logarithmic"``) so that their logarithms are. The start has a one in every
    singular direction of both players, or (``start="random"``) a normal number.
    """
    left, right = (np.linalg.qr(rng.normal(size=(size, size)))[0] for _ in range(2))
    values = np.geomspace(0.01, 1.0, size) if spread == "logarithmic" else np.linspace(0.01, 1.0, size)
    matrix = np.ascontiguousarray((left * values) @ right.T)

    def field(z: np.ndarray) -> np.ndarray:
        value = np.empty(2 * size)
        np.dot(matrix, z[size:], out=value[:size])
        np.dot(z[:size], matrix, out=value[size:])
        value[size:] *= -1.0
        return value

    name = "bilinear"
    name += {"even": "", "logarithmic": ", logarithmic"}[spread] + {"ones": "", "random": ", random start"}[start]
    first = np.concatenate([left.sum(axis=1), right.sum(axis=1)])
    if start == "random":
        first = rng.normal(size=2 * size)
    return Saddle(name, field, 1.0, first, np.zeros(2 * size))


def hard_instance(size: int = 200) -> Saddle:
    """A quadratic with constraints, ``x' H x / 2 - h' x - y' (A x - b)``, that is hard for every first-order method."""

    def product(v: np.ndarray) -> np.ndarray:
        # The matrix is symmetric, with 1 on one antidiagonal and -1 on the next, over 4.
        turned = v[::-1]
        value = turned.copy()
        value[:-1] -= turned[1:]
        return 0.25 * value

    linear = 0.25 * np.eye(size)[-1]

    def field(z: np.ndarray) -> np.ndarray:
        x, y = z[:size], z[size:]
        residual = product(x)
        return np.concatenate([2.0 * product(residual) - linear - product(y), residual - 0.25])

    columns = np.eye(2 * size)
    offset = field(np.zeros(2 * size))
    matrix = np.stack([field(column) - offset for column in columns], axis=1)
    lipschitz = float(np.linalg.norm(matrix, 2))
    return Saddle("hard", field, lipschitz, np.zeros(2 * size), np.linalg.solve(matrix, -offset))


def nonlinear(rng: np.random.Generator, size: int = 100) -> Saddle:
    """``F(z) = (W - W') z + 0.1 z + arctan(z)``."""
    raw = rng.normal(size=(size, size)) / math.sqrt(size)
    skew = raw - raw.T
    matrix = skew + 0.1 * np.eye(size)
    # The norm of a skew matrix plus a multiple of the identity, and at most 1 for the slope of arctan.
    lipschitz = math.hypot(float(np.linalg.norm(skew, 2)), 0.1) + 1.0
    return Saddle("nonlinear", lambda z: matrix @ z + np.arctan(z), lipschitz, rng.normal(size=size), np.zeros(size))


def well_conditioned(rng: np.random.Generator) -> tuple[Saddle, float]:
    """A skew matrix of 8 rows with singular values from 0.5 to 1, and the smallest of them."""
    basis = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    blocks = np.zeros((8, 8))
    for k, speed in enumerate(np.linspace(0.5, 1.0, 4)):
        blocks[2 * k, 2 * k + 1], blocks[2 * k + 1, 2 * k] = speed, -speed
    matrix = basis @ blocks @ basis.T
    return Saddle("well-conditioned", lambda z: matrix @ z, 1.0, rng.normal(size=8), np.zeros(8)), 0.5


def _breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    features, labels = load_breast_cancer(return_X_y=True)
    return np.ascontiguousarray(StandardScaler().fit_transform(features)), 2.0 * labels - 1.0


def robust_logistic() -> Saddle:
    """Logistic regression on breast cancer data, against shifts of the scores that pay their squares."""
    from scipy.special import expit

    features, labels = _breast_cancer()
    n, d = features.shape
    price = 1.0 / n  # at least 1 / (4 n), for which the shifts' part is concave

    def field(z: np.ndarray) -> np.ndarray:
        slopes = -labels * expit(-labels * (features @ z[:d] + z[d:])) / n
        return np.concatenate([slopes @ features, price * z[d:] - slopes])

    def newton_matrix(z: np.ndarray) -> np.ndarray:
        chance = expit(labels * (features @ z[:d] + z[d:]))
        curvature = chance * (1.0 - chance) / n
        mixed = features.T * curvature
        return np.block([[mixed @ features, mixed], [-mixed.T, np.diag(price - curvature)]])

    zero = np.zeros(n + d)
    for _ in range(100):
        step = np.linalg.solve(newton_matrix(zero), field(zero))
        shorter = 1.0
        while np.linalg.norm(field(zero - shorter * step)) > np.linalg.norm(field(zero)) and shorter > 1e-6:
            shorter *= 0.5
        zero = zero - shorter * step
        if np.linalg.norm(step) < 1e-10:
            break
    lipschitz = (float(np.linalg.norm(features, 2)) ** 2 + 1.0) / (4.0 * n) + price
    return Saddle("robust logistic", field, lipschitz, np.zeros(n + d), zero)


def robust_logistic_minibatch(batch_size: int = 32) -> Callable[[np.ndarray, int, np.random.Generator], np.ndarray]:
    """Unbiased estimates of the field of :func:`robust_logistic` from some of the samples."""
    from scipy.special import expit

    features, labels = _breast_cancer()
    n, d = features.shape

    def oracle(z: np.ndarray, n_batches: int, rng: np.random.Generator) -> np.ndarray:
        chosen = rng.integers(0, n, size=batch_size * n_batches)
        rows, signs = features[chosen], labels[chosen]
        slopes = -signs * expit(-signs * (rows @ z[:d] + z[d:][chosen])) / chosen.size
        shifts = np.bincount(chosen, weights=z[d:][chosen] / chosen.size - slopes, minlength=n)
        return np.concatenate([slopes @ rows, shifts])

    return oracle
