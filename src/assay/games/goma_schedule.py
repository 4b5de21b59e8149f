r"""Anchored optimistic steps: how far the iterate is pulled back to its start, and how far it moves, at every step.

A method of this kind keeps one iterate and its start, and asks for the operator once per step, at a point that it
extrapolates to with the operator of the step before,

.. math::
    w_k = \beta_k z_0 + (1 - \beta_k) z_k, \quad y_k = w_k - \gamma_k g_{k-1}, \quad g_k = F(y_k), \quad
    z_{k+1} = w_k - \eta_k g_k .

A schedule says what :math:`\beta_k`, :math:`\gamma_k` and :math:`\eta_k` are. For each of the deterministic ones there
is a potential :math:`V_k = c_k \langle F(z_k), z_k - z_0\rangle + a_k |F(z_k)|^2 + b_k |F(z_k) - g_{k-1}|^2` that never
grows when :math:`F` is monotone and Lipschitz. Since :math:`\langle F(z_k), z_k - z_0\rangle \ge -|F(z_k)||z_0 - z^*|`,
it bounds the operator at the last iterate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float

__all__ = [
    "PRESETS",
    "STOCHASTIC",
    "Horizon",
    "Preset",
    "anchored_step",
    "anchored_step_plain",
    "deterministic_weights",
    "horizon_weights",
    "noisy_weights",
    "paper_stochastic_bound",
]

Vector = Float[np.ndarray, " d"]


@dataclass(frozen=True)
class Preset:
    """A deterministic schedule with a proved rate.

    Parameters
    ----------
    name : str
        What users call it.
    anchor : tuple of int
        Numbers (a, s) of the weight of the anchor, a / (k + s).
    largest : float
        The largest proved step size, times the Lipschitz constant.
    attained : bool
        Whether the largest step size itself is proved.
    explores : bool
        Whether the step size is that of the exploration; otherwise it is that of the update.
    """

    name: str
    anchor: tuple[int, int]
    largest: float
    attained: bool = True
    explores: bool = False

    def anchor_weight(self, k: int) -> float:
        """Share of the anchor at step ``k``."""
        return self.anchor[0] / (k + self.anchor[1])

    def exploration(self, k: int, step_size: float) -> float:
        """Step size with the old gradient."""
        return step_size if self.explores else (1.0 - self.anchor_weight(k)) * step_size

    def update(self, k: int, step_size: float) -> float:
        """Step size with the new gradient."""
        return step_size / (1.0 - self.anchor_weight(k)) if self.explores else step_size

    def default_step(self, lipschitz: float) -> float:
        """The largest proved step size, or just below it where it is not itself proved."""
        return (self.largest if self.attained else 0.999 * self.largest) / lipschitz

    def is_proved(self, step_size: float, lipschitz: float) -> bool:
        """Whether a step size is within the limit; a float of relative 1e-12 above one that is attained counts."""
        reached = step_size * lipschitz
        return reached <= self.largest * (1.0 + 1e-12) if self.attained else reached < self.largest

    def potential_weights(self, k: int, step_size: float) -> tuple[float, float, float]:
        """Weights of the inner product, of the squared operator and of the squared change of the operator."""
        if self.name == "paper":
            inner = (k + 4.0) * (k + 5.0)
            square = 0.25 * step_size * inner * (k + 6.0)
            return inner, square, square
        square = 0.5 * step_size * (k + 1.0) ** 2
        # A fixed exploration has updates that are longer by (k + 2) / (k + 1), which this weight has to pay for.
        return k + 1.0, square * (k + 2.0) / (k + 1.0) if self.explores else square, square

    def residual_bound(self, k: int, step_size: float, lipschitz: float, distance: float) -> float:
        """Proved bound on the squared norm of the operator at iterate ``k``; infinite where it overflows."""
        product = step_size * lipschitz * step_size * lipschitz
        if self.name == "paper":
            norm = 2.0 * (1.0 + math.sqrt(1.0 + 9.0 * product)) / step_size * distance / (k + 6.0)
        else:
            inside = 1.0 + (2.0 if self.explores else 1.0) * product
            norm = (1.0 + math.sqrt(inside)) / step_size * distance / (k + 1.0)
        return norm * norm  # a power would raise an error


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("halpern", (1, 2), 0.5),
        Preset("paper", (2, 6), 0.5 / math.sqrt(3.0), attained=False),
        Preset("explore", (1, 2), 0.25, explores=True),
    )
}


# The name of the schedule for minibatches, which has no exploration and no potential.
STOCHASTIC = "stochastic"


def paper_stochastic_bound(n_iter: int, lipschitz: float, kappa: float, sigma: float, distance: float) -> float:
    """Theorem 4 of the paper: bound on the expected squared norm of the operator after ``n_iter`` noisy steps."""
    steepest = lipschitz * distance
    return (1570.0 * kappa * steepest * steepest + 8.0 * sigma * sigma / kappa) / math.sqrt(n_iter + 1.0)


@dataclass(frozen=True)
class Horizon:
    r"""Noisy steps whose number is known: gradient descent on :math:`F + \lambda(\cdot - z_0)`.

    The distance to the zero of that operator, which is strongly monotone, contracts by :math:`1 - 2/(k + k_0)` per step
    up to the noise; the zero itself is as close to that of :math:`F` as :math:`\lambda` is small.

    Parameters
    ----------
    n_iter : int
        Number of steps.
    lipschitz, sigma, kappa : float
        Constant of the operator; noise ``E|g|^2 <= sigma^2 + kappa |F|^2``.
    distance : float
        From the start to the zero.
    pull : float
        The strength of the anchor, called lambda.
    """

    n_iter: int
    lipschitz: float
    sigma: float
    kappa: float
    distance: float
    pull: float

    @staticmethod
    def default_pull(n_iter: int, lipschitz: float, sigma: float, kappa: float, distance: float) -> float:
        """Where the two terms of the bound are of the same size; 0 without noise."""
        if distance == 0.0:
            return lipschitz
        steepest = lipschitz * distance
        noise = sigma * sigma + 2.0 * (kappa - 1.0) * steepest * steepest
        return min(lipschitz, math.sqrt(2.0 * lipschitz * math.sqrt(noise) / (distance * math.sqrt(n_iter))))

    @property
    def growth(self) -> float:
        """Squared coefficient of the noise with the distance to the zero, called tau^2."""
        return (self.kappa - 1.0) * self.lipschitz * self.lipschitz

    @property
    def shift(self) -> float:
        """Number of steps that the schedule begins at, called k_0; infinite where it overflows."""
        ratio = self.lipschitz / self.pull
        first = 2.0 * ((ratio + 1.0) * (ratio + 1.0) + 2.0 * (self.kappa - 1.0) * ratio * ratio)
        return math.ceil(first) if first < 2.0**53 else first

    def anchor_weight(self, k: int) -> float:
        """Share of the anchor at step ``k``."""
        return 2.0 / (k + self.shift)

    def residual_bound(self, k: int) -> float:
        """Proved bound on the expected squared norm of the operator at iterate ``k``."""
        noise = self.sigma * self.sigma + 2.0 * self.growth * self.distance * self.distance
        first, last = self.shift, k + self.shift
        kept = (first - 1.0) / (last - 1.0) * ((first - 2.0) / (last - 2.0))
        added = 4.0 * k / (last - 1.0) * (noise / self.pull / (last - 2.0) / self.pull)
        moved, pulled = self.lipschitz * self.distance, self.pull * self.distance
        return 2.0 * (kept * moved * moved + self.lipschitz * self.lipschitz * added + pulled * pulled)


def anchored_step_plain(
    z: Vector,
    anchor: Vector,
    gradient: Vector,
    anchor_weight: float,
    update: float,
    next_anchor_weight: float,
    next_exploration: float,
    exploration: Vector,
) -> bool:
    """The formulas as they are written, which :func:`anchored_step` does in one pass; the arguments are the same."""
    z[:] = z + anchor_weight * (anchor - z) - update * gradient
    exploration[:] = z + next_anchor_weight * (anchor - z) - next_exploration * gradient
    return bool(np.isfinite(gradient).all())


@numba.njit(cache=True)
def anchored_step(  # type: ignore[no-untyped-def]
    z, anchor, gradient, anchor_weight, update, next_anchor_weight, next_exploration, exploration
):
    """Move the iterate and the point of the next evaluation, both in place, in one pass over memory.

    Parameters
    ----------
    z, anchor, gradient : numpy.ndarray of shape (d,)
        Iterate, start, and the operator at the last point of evaluation.
    anchor_weight, update : float
        Weight of the anchor and step size of this update.
    next_anchor_weight, next_exploration : float
        Weight of the anchor and step size of the exploration of the next step.
    exploration : numpy.ndarray of shape (d,)
        Overwritten by the next point of evaluation.

    Returns
    -------
    bool
        Whether the gradient was finite.
    """
    finite = True
    for i in range(z.size):
        slope = gradient[i]
        finite &= np.isfinite(slope)
        # In this form an iterate that is at its anchor stays there to the last bit.
        moved = z[i] + anchor_weight * (anchor[i] - z[i]) - update * slope
        z[i] = moved
        exploration[i] = moved + next_anchor_weight * (anchor[i] - moved) - next_exploration * slope
    return finite


# The four weights of step k, as ``anchored_step`` takes them.
Weights = Callable[[int], tuple[float, float, float, float]]


def deterministic_weights(preset: Preset, step_size: float) -> Weights:
    """Weights of a deterministic schedule."""

    def weights(k: int) -> tuple[float, float, float, float]:
        return (
            preset.anchor_weight(k),
            preset.update(k, step_size),
            preset.anchor_weight(k + 1),
            preset.exploration(k + 1, step_size),
        )

    return weights


def noisy_weights(step_size: float) -> Weights:
    """Weights of the paper's schedule for noise: a step ``step_size / (k + 2)^{3/4}`` from the anchored iterate."""

    def weights(k: int) -> tuple[float, float, float, float]:
        return 1.0 / (k + 2), step_size / (k + 2) ** 0.75, 1.0 / (k + 3), 0.0

    return weights


def horizon_weights(horizon: Horizon) -> Weights:
    """Weights of the schedule with a known number of steps, which evaluates at the iterate itself."""

    def weights(k: int) -> tuple[float, float, float, float]:
        share = horizon.anchor_weight(k)
        return share, share / horizon.pull, 0.0, 0.0

    return weights
