r"""How far particles are from their fixed point, and how fast something converges.

The minimizer of :math:`F(\mu) + \lambda\,\mathrm{Ent}(\mu)` is the law that equals the Gibbs law of its own first
variation, :math:`\hat\mu \propto \exp(-\frac{\delta F}{\delta\mu}(\mu)/\lambda)`. Particles that have arrived are a
sample of the Gibbs law of their own empirical law. The distance of the two is estimated by drawing points from a known
law on the set and weighting them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.spatial.distance import cdist
from torch import Tensor

from assay.transport.convex_domain import Domain
from assay.validation import as_float_array, as_generator

__all__ = ["FixedPointResidual", "fixed_point_residual", "linear_rate"]

# Below this effective size an importance sample says nothing, and beyond this dimension there is none to be had.
MIN_ESS = 200.0
MAX_DIMENSION = 10

# Points drawn at first and at most, particles that are compared, and resamplings for the standard error.
_N_POINTS = 2000
_MOST_POINTS = 64000
_N_PARTICLES = 600
_N_BOOTSTRAP = 60


@dataclass(frozen=True)
class FixedPointResidual:
    """Distance of particles from the Gibbs law of their first variation.

    Attributes
    ----------
    value : float
        Unbiased squared energy distance; nan if it could not be estimated.
    standard_error : float
        Its standard deviation at the fixed point.
    effective_sample_size : float
        Of the weighted points; 0 if there are none.
    """

    value: float
    standard_error: float
    effective_sample_size: float


def fixed_point_residual(
    particles: ArrayLike | Tensor,
    first_variation: Callable[[Any, Any], Any],
    domain: Domain,
    temperature: float,
    *,
    rng: Any = None,
) -> FixedPointResidual:
    r"""Squared energy distance between particles and the Gibbs law of their first variation.

    Parameters
    ----------
    particles : array_like or Tensor of shape (N, d)
        At least two. Of more than 600, as many are drawn.
    first_variation : callable
        ``first_variation(points, particles)`` returns :math:`\frac{\delta F}{\delta\mu}(\mu_N)` at the points, one
        number each; both arguments are arrays, or tensors if the particles are.
    domain : Domain
        The set, with a law to draw from.
    temperature : float
        Positive.
    rng : None, int or numpy.random.Generator, optional
        For the points and the resampling.

    Returns
    -------
    FixedPointResidual
        Unknown (nan) in more than 10 dimensions, or if the weighted points are worth fewer than 200.

    Notes
    -----
    The standard error is of the statistic under the fixed point. Resampled particles have resampled Gibbs laws, so
    that the pull of the particles on their own target is in it. At the fixed point the statistic is a degenerate
    quadratic form, of which a resampling of the statistic itself would give the wrong spread; the form is applied to
    the resampled differences instead.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import Box
    >>> from assay.transport.langevin_residual import fixed_point_residual
    >>> uniform = np.random.default_rng(0).random((400, 1))
    >>> found = fixed_point_residual(uniform, lambda points, x: np.zeros(len(points)), Box(0, 1, 1), 1.0, rng=0)
    >>> abs(found.value) <= 3 * found.standard_error
    True
    """
    generator = as_generator(rng)
    given = particles if isinstance(particles, Tensor) else as_float_array(particles, "particles", ndim=(2, 3))
    if len(given) < 2:
        raise ValueError(f"particles must be at least 2, got {len(given)}")
    unknown = FixedPointResidual(float("nan"), float("nan"), 0.0)
    freedom = domain.degrees_of_freedom
    if temperature <= 0.0 or freedom is None or freedom > MAX_DIMENSION:
        return unknown
    for n_points in (_N_POINTS, 8 * _N_POINTS, _MOST_POINTS):
        try:
            points = domain.sample(n_points, generator)
        except NotImplementedError:
            return unknown
        density = domain._log_density(points)
        weights = _weights(first_variation, points, given, density, temperature)
        size = 1.0 / float(np.sum(weights**2))
        if size >= 2.0 * MIN_ESS:
            break
    if len(points) > _N_POINTS:
        kept, density = _thinned(weights, density, generator)
        points = points[kept]
    chosen = np.arange(len(given))
    if len(given) > _N_PARTICLES:
        chosen = np.sort(generator.choice(len(given), _N_PARTICLES, replace=False))
    near = _rows(given, chosen)
    # The Gibbs law is that of the particles which are compared, so that resampling them sees all there is.
    weights = _weights(first_variation, points, near, density, temperature)
    size = 1.0 / float(np.sum(weights**2))
    if size < MIN_ESS:
        return FixedPointResidual(float("nan"), float("nan"), size)
    return _energy(
        near, points, weights, lambda x: _weights(first_variation, points, x, density, temperature), generator
    )


def linear_rate(time: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"], *, floor: float = 0.0) -> float:
    """Rate of an exponential decay, from the values before they reach a floor.

    Parameters
    ----------
    time : array of shape (n,)
        Increasing.
    values : array of shape (n,)
        What decays.
    floor : float, default=0.0
        Values from the first that is not above it are left out.

    Returns
    -------
    float
        Minus the slope of the logarithm by least squares; nan for fewer than three values.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.langevin_residual import linear_rate
    >>> t = np.arange(10.0)
    >>> round(linear_rate(t, 3 * np.exp(-0.25 * t)), 12)
    0.25
    """
    below = np.flatnonzero(~(values > floor))
    stop = int(below[0]) if len(below) else len(values)
    if stop < 3:
        return float("nan")
    return -float(np.polyfit(time[:stop], np.log(values[:stop]), 1)[0])


def _weights(
    first_variation: Callable[[Any, Any], Any],
    points: np.ndarray,
    particles: np.ndarray | Tensor,
    log_density: np.ndarray,
    temperature: float,
) -> np.ndarray:
    """Normalized importance weights, for the Gibbs law, of points that were drawn with a density."""
    if isinstance(particles, Tensor):
        at = torch.as_tensor(points, dtype=particles.dtype, device=particles.device)
        answer = first_variation(at, particles)
    else:
        answer = first_variation(points, particles)
    potential = as_float_array(answer, "first_variation", ndim=1)
    if potential.shape != (len(points),):
        raise ValueError(f"first_variation must return one number per point, {len(points)}, got {len(potential)}")
    logarithm = -potential / temperature - log_density
    weights = np.exp(logarithm - logarithm.max())
    return weights / weights.sum()


def _thinned(weights: np.ndarray, log_density: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """About 2000 of the points, those of large weight first, and the density with which these are drawn."""

    def excess(log_cut: float) -> float:
        return float(np.minimum(1.0, weights / np.exp(log_cut)).sum()) - _N_POINTS

    tiny = float(np.log(weights[weights > 0].min()))
    cut = tiny if excess(tiny) <= 0 else brentq(excess, tiny, float(np.log(weights.max())) + np.log(len(weights)))
    share = np.minimum(1.0, weights / np.exp(cut))
    kept = np.flatnonzero(rng.random(len(weights)) < share)
    return kept, log_density[kept] + np.log(share[kept])


def _rows(particles: np.ndarray | Tensor, chosen: np.ndarray) -> np.ndarray | Tensor:
    return (
        particles[torch.from_numpy(chosen).to(particles.device)] if isinstance(particles, Tensor) else particles[chosen]
    )


def _energy(
    particles: np.ndarray | Tensor,
    points: np.ndarray,
    weights: np.ndarray,
    weights_of: Callable[[np.ndarray | Tensor], np.ndarray],
    rng: np.random.Generator,
) -> FixedPointResidual:
    """The distance between particles and weighted points, and its spread when the particles are drawn anew."""
    rows = particles.detach().double().cpu().numpy() if isinstance(particles, Tensor) else particles
    n, size = len(rows), 1.0 / float(np.sum(weights**2))
    everything = np.concatenate([rows.reshape(n, -1), points.reshape(len(points), -1)])
    distances = cdist(everything, everything)
    difference = np.concatenate([np.full(n, 1.0 / n), -weights])
    value = -float(difference @ distances @ difference)
    # A particle, or a point, paired with itself has distance 0 and biases the two inner means.
    value -= float(distances[:n, :n].sum()) / n**2 / (n - 1)
    value -= float(weights @ distances[n:, n:] @ weights) / (size - 1.0)
    changes = np.empty((_N_BOOTSTRAP, len(everything)))
    for change in changes:
        drawn = rng.integers(n, size=n)
        counts = np.bincount(drawn, minlength=n) / n
        shift = weights_of(_rows(particles, drawn)) - weights
        # The points are a sample, too: as many as they are worth are drawn anew.
        noise = rng.multinomial(round(size), weights) / round(size) - weights
        change[:] = np.concatenate([counts - 1.0 / n, -shift - noise])
    spread = -np.einsum("bi,bi->b", changes @ distances, changes)
    return FixedPointResidual(value, float(spread.std(ddof=1)), size)
