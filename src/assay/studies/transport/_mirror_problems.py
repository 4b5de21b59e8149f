"""The problems of the study of mirror Langevin dynamics, as gradients of particles in several independent systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

__all__ = [
    "Problem",
    "exact_interval_mean",
    "exact_simplex_mean",
    "interval_problem",
    "matrix_problem",
    "mixture_problem",
    "simplex_problem",
    "truncated_exponential",
    "xor_problem",
]


@dataclass(frozen=True)
class Problem:
    """Particles of one kind and what pulls them.

    ``grad`` takes the particles of all systems, system after system, and returns the gradient of the first variation
    within each; ``domain`` makes the set with a barrier.
    """

    name: str
    domain: Callable[[str], Any]
    grad: Callable[[Any], Any]
    temperature: float
    n_systems: int
    exact_mean: np.ndarray | None = None
    measure: Callable[[np.ndarray], dict[str, float]] | None = None


def system_means(x: np.ndarray, n_systems: int) -> np.ndarray:
    """Mean of the particles of each system, of shape (systems, d)."""
    return x.reshape(n_systems, -1, *x.shape[1:]).mean(axis=1)


def interval_problem(target: float, n_systems: int, temperature: float = 0.05) -> Problem:
    """Match a mean on (0, 1)."""
    from assay.transport import Box

    def grad(x: np.ndarray) -> np.ndarray:
        pull = system_means(x, n_systems) - target
        return np.repeat(pull, len(x) // n_systems, axis=0)

    return Problem(
        f"interval q={target:g}",
        lambda barrier: Box(0, 1, 1, barrier=barrier),
        grad,
        temperature,
        n_systems,
        np.array([exact_interval_mean(target, temperature)]),
    )


def exact_interval_mean(target: float, temperature: float) -> float:
    """The mean that is that of the truncated exponential law which it makes, by scipy's root finder."""
    from scipy.optimize import brentq

    def excess(mean: float) -> float:
        rate = (mean - target) / temperature
        if abs(rate) < 1e-8:
            return 0.5 - mean
        return 1.0 / rate - 1.0 / np.expm1(rate) - mean

    return float(brentq(excess, 1e-6, 1 - 1e-6, xtol=1e-14))


def truncated_exponential(target: float, temperature: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws from the fixed point on the interval."""
    rate = (exact_interval_mean(target, temperature) - target) / temperature
    return -np.log1p(-rng.random((n, 1)) * (1 - np.exp(-rate))) / rate


SIMPLEX_TARGET = np.array([0.7, 0.2, 0.1])


def simplex_problem(repulsion: float, n_systems: int, temperature: float = 0.05) -> Problem:
    """Match a mean on the simplex, with a repulsion from its boundary."""
    from assay.transport import Simplex

    def grad(x: np.ndarray) -> np.ndarray:
        pull = np.repeat(2 * (system_means(x, n_systems) - SIMPLEX_TARGET), len(x) // n_systems, axis=0)
        # Projected and penalised particles are on the boundary and beyond, where the repulsion is not defined.
        return pull - repulsion / np.maximum(x, 1e-3) if repulsion else pull

    return Problem(
        f"simplex beta={repulsion:g}",
        lambda barrier: Simplex(3, barrier=barrier, repulsion=repulsion),
        grad,
        temperature,
        n_systems,
        exact_simplex_mean(repulsion, temperature),
    )


@cache
def exact_simplex_mean(repulsion: float, temperature: float, n: int = 600) -> np.ndarray:
    """The fixed point on the simplex by scipy's root finder and a midpoint rule on triangles."""
    from scipy.optimize import root

    edge = (np.arange(n) + 1.0 / 3.0) / n
    lower = np.stack(np.meshgrid(edge, edge, indexing="ij"), axis=-1).reshape(-1, 2)
    upper = lower + 1.0 / (3.0 * n)
    points = np.concatenate([lower[lower.sum(axis=1) < 1 - 0.5 / n], upper[upper.sum(axis=1) < 1 - 0.1 / n]])
    x = np.column_stack([points, 1.0 - points.sum(axis=1)])
    walls = (repulsion / temperature) * np.log(x).sum(axis=1)

    def excess(mean: np.ndarray) -> np.ndarray:
        exponent = walls - x @ (2 * (mean - SIMPLEX_TARGET)) / temperature
        weights = np.exp(exponent - exponent.max())
        return weights @ x / weights.sum() - mean

    return root(excess, np.full(3, 1.0 / 3.0), tol=1e-12).x


def matrix_problem(p: int, rng: np.random.Generator, temperature: float = 1e-3, gamma: float = 10.0) -> Problem:
    """Match a mean density matrix, with a penalty on pure states."""
    from assay.transport import Spectraplex

    target = Spectraplex(p).sample(1, rng)[0]

    def grad(x: np.ndarray) -> np.ndarray:
        return (x.mean(axis=0) - target) + x / gamma

    def measure(x: np.ndarray) -> dict[str, float]:
        distance = float(np.linalg.norm(x.mean(axis=0) - target))
        spread = float(np.mean(np.sum(x**2, axis=(1, 2))))
        return {"functional": 0.5 * distance**2 + spread / (2 * gamma), "mean_distance": distance}

    return Problem(
        f"matrices {p}x{p}", lambda barrier: Spectraplex(p, barrier=barrier), grad, temperature, 1, measure=measure
    )


def xor_problem(n_train: int, rng: np.random.Generator, temperature: float = 1e-3) -> Problem:
    """Train the units (a, w) of a two-layer network in the unit ball of R^4 on noisy XOR."""
    import torch

    from assay.transport import Ball

    def draw(n: int) -> tuple[Any, Any]:
        corners = rng.choice([-1.0, 1.0], (n, 2))
        inputs = np.column_stack([corners + 0.3 * rng.standard_normal((n, 2)), np.ones(n)])
        return torch.tensor(inputs), torch.tensor(corners.prod(axis=1))

    inputs, labels = draw(n_train)
    test_inputs, test_labels = draw(4000)

    def output(x: Any, z: Any) -> Any:
        return 10.0 * torch.relu(z @ x[:, 1:].T) @ x[:, 0] / len(x)

    def loss(x: Any) -> Any:
        return torch.nn.functional.softplus(-labels * output(x, inputs)).mean()

    def grad(x: np.ndarray) -> np.ndarray:
        particles = torch.tensor(x, requires_grad=True)
        (found,) = torch.autograd.grad(loss(particles), particles)
        return len(x) * found.numpy()

    def measure(x: np.ndarray) -> dict[str, float]:
        units = torch.tensor(x)
        with torch.no_grad():
            right = (output(units, test_inputs) * test_labels > 0).double().mean()
            return {
                "accuracy": float(right),
                "functional": float(loss(units)),
                "at_boundary": float((torch.linalg.vector_norm(units, dim=1) > 0.999).double().mean()),
            }

    return Problem("noisy xor", lambda barrier: Ball(4), grad, temperature, 1, measure=measure)


def mixture_problem(rng: np.random.Generator, temperature: float = 1e-3) -> Problem:
    """Find the shares of the ten digits in a held-out mixture, from its mean image and the means of the classes."""
    from sklearn.datasets import load_digits

    from assay.transport import Simplex

    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    train, test = order[::2], order[1::2]
    dictionary = np.stack([images[train][labels[train] == k].mean(axis=0) for k in range(10)]) / 16.0
    wanted = rng.dirichlet(np.ones(10))
    drawn = np.concatenate(
        [rng.choice(test[labels[test] == k], round(1000 * share)) for k, share in enumerate(wanted)]
    ).astype(int)
    shares = np.bincount(labels[drawn], minlength=10) / len(drawn)
    target = images[drawn].mean(axis=0) / 16.0

    def grad(x: np.ndarray) -> np.ndarray:
        slope = dictionary @ (x.mean(axis=0) @ dictionary - target)
        return np.broadcast_to(slope, x.shape).copy()

    def measure(x: np.ndarray) -> dict[str, float]:
        mean = x.mean(axis=0)
        return {
            "functional": 0.5 * float(np.sum((mean @ dictionary - target) ** 2)),
            "weights_error": float(np.abs(mean - shares).sum()),
        }

    return Problem(
        "digits mixture", lambda barrier: Simplex(10, barrier=barrier), grad, temperature, 1, measure=measure
    )
