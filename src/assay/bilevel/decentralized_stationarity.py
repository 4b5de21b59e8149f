r"""Where a run is, found anew: the hypergradient at the mean of the nodes, with the lower level solved further.

Nothing here is read off the run but where it stopped. From there ``y`` and ``z`` are refined on all data, to see how
much those of the run lag behind, and again with a half and a quarter of the penalty parameter: if the bias is of an
order of at least 1/2 in :math:`\sigma`, the differences of the hypergradients bound it, so that the norm of the true
one is known up to that bound without a second derivative.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.bilevel.decentralized_oracle import MeanLosses

__all__ = ["ReportSettings", "Stationarity", "least_pl_ratio", "measure_stationarity"]

# The factor of sigma^p with p >= 1/2 when sigma is halved, and all of sigma^p in terms of what a halving takes away.
_HALVING = 2.0**-0.5
_BIAS_FACTOR = 1.0 / (1.0 - _HALVING)

# Lower losses this close to the least one met, relative to the range, are too close for a ratio to it.
_SAME_LOSS = 1e-6


@dataclass(frozen=True, eq=False)
class Stationarity:
    """The hypergradient at one ``x``, estimated three ways.

    Parameters
    ----------
    refined : float
        Norm with ``y`` and ``z`` refined.
    halvings : tuple of float
        How far it moves when the penalty parameter is halved, and halved again.
    lag : float
        Distance to the estimate with ``y`` and ``z`` as they were.
    exact : float or None
        Norm of the exact one, None if it is not known.
    """

    refined: float
    halvings: tuple[float, float]
    lag: float
    exact: float | None

    @property
    def bias(self) -> float:
        """Bound on the distance to the exact hypergradient: the first halving, and all that may follow."""
        return self.halvings[0] + _BIAS_FACTOR * self.halvings[1]

    @property
    def is_in_order(self) -> bool:
        """Whether the second halving moved it less than the first one, as much as the bound takes for granted."""
        return self.halvings[1] <= _HALVING * self.halvings[0] + 1e-9 * self.refined

    @property
    def bound(self) -> float:
        """Bound on the square of the exact norm."""
        return (self.refined + self.bias) ** 2


@dataclass(frozen=True, eq=False)
class ReportSettings:
    """What a report needs to know about a run."""

    sigma: float
    gamma_y: float
    gamma_z: float
    refine_steps: int
    bounds: tuple[np.ndarray, np.ndarray] | None
    true_hypergradient: Callable[[np.ndarray], Any] | None

    def move(self, x: Float[np.ndarray, " dx"], gradient: Float[np.ndarray, " dx"]) -> Float[np.ndarray, " dx"]:
        """How far a step of length 1 goes against the gradient: the gradient itself where nothing bounds it."""
        return gradient if self.bounds is None else x - np.clip(x - gradient, *self.bounds)

    def exact(self, x: Float[np.ndarray, " dx"]) -> Float[np.ndarray, " dx"] | None:
        """The same for the exact hypergradient, if it is known.

        Raises
        ------
        TypeError, ValueError
            If the function returns something else than a value and a gradient.
        """
        if self.true_hypergradient is None:
            return None
        answer = self.true_hypergradient(x.copy())
        try:
            gradient = np.asarray(answer[1], dtype=np.float64)
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise TypeError(f"true_hypergradient must return (value, gradient), got {type(answer).__name__}") from error
        if gradient.shape != x.shape:
            raise ValueError(f"true_hypergradient must return a gradient of shape {x.shape}, got {gradient.shape}")
        return self.move(x, gradient)


def measure_stationarity(
    losses: MeanLosses,
    settings: ReportSettings,
    x: Float[np.ndarray, " dx"],
    y: Float[np.ndarray, " dy"],
    z: Float[np.ndarray, " dy"],
    *,
    n_halvings: int = 2,
) -> Stationarity:
    """Estimate the hypergradient at the means, with the lower level as it is and refined.

    Parameters
    ----------
    losses : MeanLosses
        Mean losses on all data.
    settings : ReportSettings
        Penalty parameter, step sizes, and what else is known.
    x, y, z : numpy.ndarray
        Means over the nodes.
    n_halvings : int, default=2
        How often to halve the penalty parameter; with less than 2, the bias is not known.

    Returns
    -------
    Stationarity
    """
    sigma = settings.sigma

    def refined_y(start: np.ndarray, parameter: float) -> np.ndarray:
        return _descend(lambda point: losses.penalised(x, point, parameter), start, settings.gamma_y, settings)

    best_z = _descend(lambda point: losses.lower(x, point), z, settings.gamma_z, settings)
    best_y = refined_y(y, sigma)
    estimates = [losses.hypergradient(x, best_y, best_z, sigma)]
    for _ in range(n_halvings):
        best_y, sigma = refined_y(best_y, 0.5 * sigma), 0.5 * sigma
        estimates.append(losses.hypergradient(x, best_y, best_z, sigma))
    now = settings.move(x, losses.hypergradient(x, y, z, settings.sigma))
    moves = [settings.move(x, estimate) for estimate in estimates]
    distances = [float(np.linalg.norm(after - before)) for before, after in itertools.pairwise(moves)]
    exact = settings.exact(x)
    return Stationarity(
        refined=float(np.linalg.norm(moves[0])),
        halvings=(distances[0], distances[1]) if n_halvings >= 2 else (math.nan, math.nan),
        lag=float(np.linalg.norm(moves[0] - now)),
        exact=None if exact is None else float(np.linalg.norm(exact)),
    )


def _descend(
    loss: Callable[[np.ndarray], Any], start: Float[np.ndarray, " dy"], step: float, settings: ReportSettings
) -> Float[np.ndarray, " dy"]:
    """Accelerated gradient steps, which start anew whenever they would go uphill."""
    point = ahead = start.copy()
    momentum = 1.0
    for _ in range(settings.refine_steps):
        slope = loss(ahead).y
        moved = ahead - step * slope
        if float(slope @ (moved - point)) > 0.0:
            momentum = 1.0
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
        ahead = moved + (momentum - 1.0) / following * (moved - point)
        point, momentum = moved, following
    return point


def least_pl_ratio(
    losses: MeanLosses,
    settings: ReportSettings,
    x: Float[np.ndarray, " dx"],
    starts: tuple[np.ndarray, ...],
) -> float:
    """Least ratio of the squared gradient to twice the excess of the lower loss, on the way down from some points.

    A way that ends in a stationary point above another one has a ratio near 0 there. Infinite where all points are as
    low as the lowest one, nan where a loss is not finite.
    """
    slopes, heights = [], []

    def seen(point: np.ndarray) -> Any:
        found = losses.lower(x, point)
        slopes.append(float(found.y @ found.y))
        heights.append(found.value)
        return found

    for start in starts:
        seen(_descend(seen, start, settings.gamma_z, settings))
    if not np.isfinite([*slopes, *heights]).all():
        return math.nan
    excess = np.array(heights) - min(heights)
    far = excess > _SAME_LOSS * max(excess.max(), np.finfo(float).tiny)
    far &= excess > 1e-13 * (1.0 + abs(min(heights)))
    return float((np.array(slopes)[far] / (2.0 * excess[far])).min()) if far.any() else math.inf
