r"""Noise of an operator that is only seen through estimates: what is supposed of it, and which steps go with it.

Anchored steps bear noise whose variance grows with the operator itself, as it does where the data are sampled: near the
zero it is small, and far from it the anchor keeps the iterates from wandering off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.games.goma_schedule import Horizon, Weights, horizon_weights, noisy_weights, paper_stochastic_bound
from assay.games.monotone_operator import LARGEST, CheckedOperator, sum_of_squares
from assay.validation import check_choice, check_real

__all__ = ["NoisySchedule", "StochasticSpec", "noisy_oracle", "noisy_schedule"]

Vector = Float[np.ndarray, " d"]


@dataclass(frozen=True)
class StochasticSpec:
    r"""The noise of an oracle :math:`g` of the operator: :math:`E g = F`, :math:`E|g|^2 \le \sigma^2 + \kappa |F|^2`.

    Parameters
    ----------
    sigma : float
        Noise where the operator is zero.
    kappa : float, default=1.0
        Growth of the noise with the operator, at least 1. The variance may be unbounded.
    oracle : callable, optional
        ``oracle(z, batch_size, rng)`` returns the mean of ``batch_size`` independent estimates, of shape (d,). When not
        given, noise is simulated: normal, isotropic, of variance ``sigma^2 + (kappa - 1) |F|^2`` over ``batch_size``.
    batch : {"constant", "linear"}, default="constant"
        Estimates per step: one, or ``k + 1`` in step ``k``.
    pull : float, optional
        Strength of the anchor with the schedule ``"horizon"``, in (0, L]; called lambda. By default the two terms of
        the bound are made equal.

    Raises
    ------
    TypeError, ValueError
        If something is out of range.

    Examples
    --------
    >>> from assay.games.goma import StochasticSpec
    >>> StochasticSpec(sigma=0.5, kappa=4.0).batch
    'constant'
    """

    sigma: float
    kappa: float = 1.0
    oracle: Callable[..., Any] | None = None
    batch: str = "constant"
    pull: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", check_real(self.sigma, "sigma", minimum=0.0, maximum=LARGEST))
        object.__setattr__(self, "kappa", check_real(self.kappa, "kappa", minimum=1.0, maximum=LARGEST))
        check_choice(self.batch, "batch", ("constant", "linear"))
        if self.oracle is not None and not callable(self.oracle):
            raise TypeError(f"oracle must be a function of z, batch_size and rng, got {type(self.oracle).__name__}")
        if self.pull is not None:
            object.__setattr__(self, "pull", check_real(self.pull, "pull", above=0.0))


@dataclass(frozen=True)
class NoisySchedule:
    """Steps for noise.

    Parameters
    ----------
    weights : callable
        Weights of a step.
    step_size : float
        Factor of the steps.
    bound_at : callable or None
        Bound on the expected squared norm of the operator by the number of steps, where the distance is known.
    proved : bool
        Whether the bound is proved for the step size.
    noise_model : str
        What the bound supposes of the noise.
    """

    weights: Weights
    step_size: float
    bound_at: Callable[[int], float] | None
    proved: bool
    noise_model: str


def noisy_schedule(
    noise: StochasticSpec,
    schedule: str,
    n_iter: int,
    lipschitz: float,
    distance: float | None,
    step_size: float | None,
    allow_unproved: bool,
) -> NoisySchedule:
    """Steps of the schedule ``"paper"`` or ``"horizon"``, as :func:`~assay.games.goma` explains them.

    Raises
    ------
    ValueError
        If a step size or a pull is larger than what is proved, or the horizon lacks the distance.
    """
    if schedule == "horizon":
        return _horizon_schedule(noise, n_iter, lipschitz, distance, step_size)
    largest = 1.0 / (lipschitz * math.sqrt(noise.kappa))
    if step_size is None:
        step_size = largest
    if step_size > largest * (1.0 + 1e-12) and not allow_unproved:
        raise ValueError(
            f"step_size must be at most {largest:g} with noise, L={lipschitz:g} and kappa={noise.kappa:g} "
            f"(or say allow_unproved=True, without a bound), got {step_size:g}"
        )

    def bound_at(n_iter: int) -> float:
        return paper_stochastic_bound(n_iter, lipschitz, noise.kappa, noise.sigma, distance or 0.0)

    return NoisySchedule(
        noisy_weights(step_size),
        step_size,
        None if distance is None else bound_at,
        math.isclose(step_size, largest, rel_tol=1e-9),  # the theorem is about this one
        f"E|g|^2 <= {noise.sigma:g}^2 + {noise.kappa:g} |F|^2",
    )


def _horizon_schedule(
    noise: StochasticSpec, n_iter: int, lipschitz: float, distance: float | None, step_size: float | None
) -> NoisySchedule:
    if step_size is not None:
        raise ValueError("step_size must be None with schedule='horizon', which finds it from pull")
    pull = noise.pull
    if pull is None and distance is None:
        raise ValueError("distance must be given (or z_star, or pull of the noise) with schedule='horizon'")
    if pull is None:
        pull = Horizon.default_pull(n_iter, lipschitz, noise.sigma, noise.kappa, distance or 0.0)
        if pull == 0.0:
            raise ValueError("pull must be given with schedule='horizon' where there is no noise, got None")
    if pull > lipschitz:
        raise ValueError(f"pull must be at most L, {lipschitz:g}, got {pull:g}")
    horizon = Horizon(n_iter, lipschitz, noise.sigma, noise.kappa, distance or 0.0, pull)
    if horizon.shift >= 2.0**53:
        raise ValueError(
            f"pull must be larger, got {pull:g}, with which the steps would be numbered from {horizon.shift:.2g} on"
        )
    return NoisySchedule(
        horizon_weights(horizon),
        pull,
        None if distance is None else horizon.residual_bound,
        True,
        f"the variance is at most {noise.sigma:g}^2 + {noise.kappa - 1:g} L^2 |z - z*|^2",
    )


def noisy_oracle(
    noise: StochasticSpec, operator: CheckedOperator, size: int, generator: np.random.Generator
) -> Callable[[Vector, int], Vector]:
    """Estimates of the operator at a point, in a step: those of the user, or simulated."""

    def batch_size(step: int) -> int:
        return step + 1 if noise.batch == "linear" else 1

    def simulated(z: Vector, step: int) -> Vector:
        exact = operator(z, step)
        variance = noise.sigma**2 + (noise.kappa - 1.0) * sum_of_squares(exact)
        return exact + generator.standard_normal(size) * math.sqrt(variance / (size * batch_size(step)))

    if noise.oracle is None:
        return simulated
    own = CheckedOperator(noise.oracle, size, "oracle")

    def asked(z: Vector, step: int) -> Vector:
        return own.raw(z, step, batch_size(step), generator)

    return asked
