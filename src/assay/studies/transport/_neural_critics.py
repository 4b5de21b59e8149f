"""Critics that are neural networks, trained as people train them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["NeuralEstimate", "neural_estimate", "perceptron", "split"]


class NeuralEstimate:
    """Values of a trained critic's functional, on training and held-out points."""

    def __init__(self, train: float, held_out: float):
        self.train, self.held_out = train, held_out


def split(points: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """70 % to train, 30 % to evaluate."""
    order = rng.permutation(len(points))
    n_held = round(0.3 * len(points))
    return points[order[n_held:]], points[order[:n_held]]


def perceptron(dimension: int, seed: int) -> Any:
    """Two hidden layers of 64, from a seed of its own."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(dimension, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def neural_estimate(
    P: np.ndarray, Q: np.ndarray, alpha: float, rng: np.random.Generator, *, f_gan: bool, steps: int = 1500
) -> NeuralEstimate:
    """Train the perceptron by Adam (1e-3, minibatches of 512) on the functional of the divergence.

    Parameters
    ----------
    P, Q : arrays of shapes (n, d) and (m, d)
        The samples.
    alpha : float
        In (0, 1).
    rng : numpy.random.Generator
        For the split, the network and the minibatches.
    f_gan : bool
        Let the network give T = f'(u), squashed into the domain of the conjugate, instead of the log-ratio.
    steps : int, default=1500
        Of Adam.
    """
    import torch

    parts = [[torch.from_numpy(part).float() for part in split(sample, rng)] for sample in (P, Q)]
    net = perceptron(P.shape[1], int(rng.integers(2**31)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    value = _f_gan_value(alpha) if f_gan else _log_ratio_value(alpha)
    train_p, train_q = parts[0][0], parts[1][0]
    size = min(512, len(train_p), len(train_q))
    for _ in range(steps):
        rows = [torch.from_numpy(rng.choice(len(sample), size, replace=False)) for sample in (train_p, train_q)]
        optimizer.zero_grad()
        (-value(net(train_p[rows[0]])[:, 0], net(train_q[rows[1]])[:, 0])).backward()
        optimizer.step()
    with torch.no_grad():
        values = [float(value(net(p)[:, 0].double(), net(q)[:, 0].double())) for p, q in zip(*parts, strict=True)]
    return NeuralEstimate(*values)


def _log_ratio_value(alpha: float) -> Callable[[Any, Any], Any]:
    from assay.transport import gan_value

    return lambda real, fake: gan_value(real, fake, alpha)


def _f_gan_value(alpha: float) -> Callable[[Any, Any], Any]:
    """E_P[T] - E_Q[f*(T)] with T = 1/(1 - alpha) - softplus(-v) below the end of the domain of f*."""
    import torch
    from torch.nn.functional import softplus

    def value(real: Any, fake: Any) -> Any:
        # (1 - alpha) (1/(1 - alpha) - T) is u^(alpha - 1); written in the distance to the end, which never is negative.
        log_u = torch.log((1.0 - alpha) * softplus(-fake)) / (alpha - 1.0)
        return (1.0 / (1.0 - alpha) - softplus(-real)).mean() - (torch.expm1(alpha * log_u) / alpha).mean()

    return value
