r"""Means of Amari's integrands without temporary arrays, for the many short evaluations of a search on a minibatch.

A step on a minibatch asks for a handful of means over a few hundred values. Written with array operations each of them
costs a dozen calls and temporaries, which together take longer than the features of the minibatch do. Here each is one
loop. Values agree with those of :class:`assay.transport.AmariDivergence` up to the order of a sum.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from jaxtyping import Float

__all__ = ["mean_integral", "mean_integral_and_slopes"]

# As in the array form.
_SMALLEST_RATE = float(np.finfo(float).tiny) ** 0.5


def mean_integral(
    rate: float,
    start: Float[np.ndarray, " rows"],
    change: Float[np.ndarray, " rows"],
    step_size: float,
    scale: float,
    constant: float,
) -> float:
    """Mean of ``integral of exp(rate t) from 0 to g`` at ``g = scale * (start + step_size * change) + constant``.

    Parameters
    ----------
    rate : float
        In the exponent.
    start, change : arrays of shape (n,)
        In float64.
    step_size, scale, constant : float
        The point on the line.

    Returns
    -------
    float
        Not finite where an exponential overflows.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.amari_kernels import mean_integral
    >>> x = np.array([0.0, 1.0])
    >>> round(mean_integral(1.0, x, x, 0.0, 1.0, 0.0), 6)
    0.859141
    """
    return float(_mean(rate, start, change, float(step_size), float(scale), float(constant)))


def mean_integral_and_slopes(
    rate: float,
    scores: Float[np.ndarray, " rows"],
    constant: float,
    factor: float,
    slopes: Float[np.ndarray, " rows"],
) -> tuple[float, float]:
    """Mean of the integral of ``exp(rate t)`` from 0 to ``scores + constant``, and its slopes.

    Parameters
    ----------
    rate : float
        In the exponent.
    scores : array of shape (n,)
        In float64.
    constant : float
        Added to them.
    factor : float
        The slopes are multiplied by it.
    slopes : array of shape (n,)
        In float32; the slopes are written here.

    Returns
    -------
    mean : float
    total : float
        Sum of the slopes, in float64.
    """
    mean, total = _mean_and_slopes(rate, scores, float(constant), float(factor), slopes)
    return float(mean), float(total)


@numba.njit(cache=True)
def _mean(rate, start, change, step_size, scale, constant):  # type: ignore[no-untyped-def]
    total = 0.0
    flat = abs(rate) < _SMALLEST_RATE
    for i in range(start.shape[0]):
        g = scale * (start[i] + step_size * change[i]) + constant
        total += g if flat else math.expm1(rate * g)
    return (total if flat else total / rate) / start.shape[0]


@numba.njit(cache=True)
def _mean_and_slopes(rate, scores, constant, factor, slopes):  # type: ignore[no-untyped-def]
    total, sum_of_slopes = 0.0, 0.0
    flat = abs(rate) < _SMALLEST_RATE
    for i in range(scores.shape[0]):
        g = scores[i] + constant
        slope = 1.0 if flat else math.exp(rate * g)
        total += g if flat else math.expm1(rate * g)
        sum_of_slopes += slope
        slopes[i] = factor * slope
    return (total if flat else total / rate) / scores.shape[0], factor * sum_of_slopes
