r"""Bregman projection of example weights onto measures of a given density.

A measure gives each example a weight in [0, 1]; its density is the mean weight. The Kullback-Leibler projection of
a measure ``N`` onto density :math:`\varepsilon` is :math:`\min(1, c N)` with the one ``c`` that gives it that density.
Normalised, it is the projection onto distributions that put at most :math:`1 / (\varepsilon m)` on each of ``m``
examples. The constant is found exactly, by bisection up to a factor :math:`1 + \delta`, or as a quantum computer would:
by bisection on estimated amplitudes, with its queries counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numba import njit
from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.result import Result
from assay.supervised.amplitude_estimation import amplitude_estimate, estimation_size, median_failure
from assay.validation import as_float_array, as_generator, check_choice, check_real

__all__ = ["METHODS", "LogProjection", "Projection", "bregman_project", "project_log_measure"]

METHODS = ("exact", "approx", "quantum_sim")

_REPEATS = 7
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Projection(Result):
    """A measure of a given density.

    Parameters
    ----------
    measure : numpy.ndarray of shape (m,)
        ``min(1, constant * N)``.
    constant : float
        The factor.
    density : float
        Mean of the measure.
    eps : float
        Density that was asked for.
    method : str
        How the constant was found.
    queries : int
        Evaluations of the measure: m for each density that is computed, or those of amplitude estimation.
    """

    measure: Float[np.ndarray, " m"]
    constant: float
    density: float
    eps: float
    method: str
    queries: int


@dataclass(frozen=True)
class LogProjection:
    """The constant of a projection, in logarithms.

    Parameters
    ----------
    log_constant : float
        Logarithm of the factor.
    density : float
        Density of the projected measure.
    queries : int
        Evaluations of the measure.
    tests : int
        Densities that were estimated by amplitude estimation.
    """

    log_constant: float
    density: float
    queries: int
    tests: int = 0


def bregman_project(
    N: ArrayLike,
    eps: float,
    method: str = "exact",
    delta: float = 0.0,
    rng: int | np.random.Generator | None = None,
    *,
    weights: ArrayLike | None = None,
) -> Projection:
    r"""Project a measure onto density ``eps`` in Kullback-Leibler divergence.

    The solution of :math:`\min_M \sum_i M_i \log(M_i / N_i) - M_i + N_i` over :math:`0 \le M \le 1` of mean
    :math:`\varepsilon` is :math:`\min(1, c N)`.

    Parameters
    ----------
    N : array_like of shape (m,)
        Non-negative, positive on a share of at least ``eps``.
    eps : float
        Density, in (0, 1).
    method : {"exact", "approx", "quantum_sim"}, default="exact"
        ``"approx"`` bisects until the density is in ``[eps, (1 + delta) eps]``; ``"quantum_sim"`` does so on densities
        that are estimated by amplitude estimation, the median of seven each time, and so with a chance of failure.
    delta : float, default=0.0
        Relative accuracy, in (0, 1] for the two bisections.
    rng : int, numpy.random.Generator or None, default=None
        Source of the outcomes of amplitude estimation.
    weights : array_like of shape (m,), optional
        How often each entry counts in the density; once by default.

    Returns
    -------
    Projection
        With certificates for its density and for its form.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of its range, or no multiple of ``N`` has that density.

    Notes
    -----
    Exact: Newton's method on a concave piecewise linear function from the left. It ends after finitely many passes,
    each O(m), in practice after about ten.

    References
    ----------
    A. Abbas, Y. Chen, T. Nguyen, R. de Wolf. QuantumBoost: A lazy, yet fast, quantum algorithm for learning with weak
    hypotheses. ICML 2026. arXiv:2510.05089.

    Examples
    --------
    >>> from assay.supervised import bregman_project
    >>> projection = bregman_project([0.9, 0.5, 0.3, 0.1, 0.05], 0.5)
    >>> round(projection.constant, 6), projection.measure.round(6).tolist()
    (1.578947, [1.0, 0.789474, 0.473684, 0.157895, 0.078947])
    """
    given = as_float_array(N, "N", ndim=1)
    if given.min() < 0.0:
        raise ValueError(f"N must be non-negative, got a minimum of {given.min():g}")
    eps = check_real(eps, "eps", above=0, below=1)
    check_choice(method, "method", METHODS)
    if method == "exact":
        delta = check_real(delta, "delta", minimum=0, maximum=1)
    else:
        delta = check_real(delta, "delta", above=0, maximum=1)
    share = as_shares(weights, len(given))
    positive = float(share[given > 0.0].sum())
    if positive < eps * (1.0 - _ROUNDING) or not positive:
        raise ValueError(f"N must be positive on a share of at least eps = {eps:g}, got {positive:g}")
    top = float(given.max())
    scaled = given / top
    found = _search(scaled, eps, method, delta, as_generator(rng), share, None)
    factor = math.exp(found.log_constant)
    measure = np.minimum(1.0, factor * scaled)
    with np.errstate(over="ignore"):
        constant = float(np.float64(factor) / top)
    density = float(np.sum(share * measure))
    slack = 0.0 if method == "exact" else delta
    failure = f", which fails with probability {found.tests * median_failure(_REPEATS):.2g} at most"
    note = failure if method == "quantum_sim" else ""
    residual = np.abs(measure - np.minimum(1.0, constant * given))
    certificates = (
        Certificate(f"density of the measure{note}", density, eps * (1.0 - 1e-9), ">="),
        Certificate(f"density of the measure{note}", density, eps * (1.0 + slack) * (1.0 + 1e-9)),
        Certificate("largest difference from min(1, c N)", float(residual.max()), _ROUNDING),
    )
    return Projection(
        measure=measure,
        constant=constant,
        density=density,
        eps=eps,
        method=method,
        queries=found.queries,
        certificates=certificates,
    )


def as_shares(weights: ArrayLike | None, m: int) -> Float[np.ndarray, " m"]:
    """Weights that sum to one.

    Parameters
    ----------
    weights : array_like of shape (m,), optional
        Non-negative; equal by default.
    m : int
        Number of entries.

    Returns
    -------
    numpy.ndarray of shape (m,)

    Examples
    --------
    >>> from assay.supervised.bregman_projection import as_shares
    >>> as_shares([1, 3], 2).tolist()
    [0.25, 0.75]
    """
    if weights is None:
        return np.full(m, 1.0 / m)
    array = as_float_array(weights, "weights", ndim=1)
    if array.shape != (m,) or array.min() < 0.0 or array.sum() <= 0.0:
        raise ValueError(f"weights must be {m} non-negative numbers, not all 0, got shape {array.shape}")
    return array / array.sum()


def project_log_measure(
    log_n: Float[np.ndarray, " m"],
    eps: float,
    method: str,
    delta: float,
    rng: np.random.Generator | None,
    share: Float[np.ndarray, " m"],
    upper: float | None = None,
) -> LogProjection:
    """Constant of the projection of a measure that is given by its logarithm.

    Parameters
    ----------
    log_n : numpy.ndarray of shape (m,)
        Logarithm of the measure; far below what a float can hold is fine.
    eps, method, delta
        As in :func:`bregman_project`.
    rng : numpy.random.Generator
        Source of the outcomes of amplitude estimation.
    share : numpy.ndarray of shape (m,)
        Weights of the entries in the density, of sum 1.
    upper : float, optional
        A guess of the logarithm of the constant from above, for the bisections.

    Returns
    -------
    LogProjection

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.bregman_projection import project_log_measure
    >>> found = project_log_measure(np.array([-5000.0, -5001.0]), 0.5, "exact", 0.0, None, np.full(2, 0.5))
    >>> round(found.log_constant - 5000, 6)
    -0.313262
    """
    top = float(log_n.max())
    found = _search(np.exp(log_n - top), eps, method, delta, rng, share, None if upper is None else upper + top)
    return replace(found, log_constant=found.log_constant - top)


def _search(
    scaled: Float[np.ndarray, " m"],
    eps: float,
    method: str,
    delta: float,
    rng: np.random.Generator | None,
    share: Float[np.ndarray, " m"],
    upper: float | None,
) -> LogProjection:
    """Constant of the projection of a measure whose largest entry is 1."""
    m = len(scaled)
    if method == "exact":
        constant, passes = _newton(scaled, share, eps)
        return LogProjection(math.log(constant), _density(scaled, share, constant), m * passes)

    size = estimation_size(eps, delta)
    counts = {"queries": 0, "tests": 0}
    goal = eps * (1.0 + 0.5 * delta)

    def high_enough(log_constant: float) -> tuple[bool, bool]:
        """Whether the density is at least the goal, and whether that ends the search."""
        density = _density(scaled, share, math.exp(log_constant))
        if method == "approx":
            counts["queries"] += m
            return density >= eps, eps <= density <= (1.0 + delta) * eps
        counts["queries"] += _REPEATS * size
        counts["tests"] += 1
        return amplitude_estimate(min(density, 1.0), size, rng, _REPEATS) >= goal, False

    # The density is at most the constant, as the scaled measure is at most 1.
    low = math.log(eps)
    high = max(low + 0.5 * delta, 1.0 + low if upper is None else upper)
    reached, done = high_enough(high)
    step = 1.0
    while not reached:
        low, high = high, high + step
        step *= 2.0
        reached, done = high_enough(high)
    while not done and high - low >= (0.25 * delta if method == "quantum_sim" else 1e-13):
        middle = 0.5 * (low + high)
        reached, done = high_enough(middle)
        if reached or done:
            high = middle
        else:
            low = middle
    return LogProjection(high, _density(scaled, share, math.exp(high)), counts["queries"], counts["tests"])


def _density(scaled: np.ndarray, share: np.ndarray, constant: float) -> float:
    return float(share @ np.minimum(1.0, constant * scaled))


@njit(cache=True)
def _newton(scaled: Any, share: Any, eps: float) -> Any:
    """Constant from below: as long as entries reach 1, solve for the others."""
    constant, passes = 0.0, 0
    while True:
        passes += 1
        full, rest = 0.0, 0.0
        smallest = np.inf
        for i in range(scaled.size):
            if scaled[i] > 0.0 and constant * scaled[i] >= 1.0:
                full += share[i]
                smallest = min(smallest, scaled[i])
            else:
                rest += share[i] * scaled[i]
        if rest <= 0.0 or full >= eps:
            return 1.0 / smallest, passes
        following = (eps - full) / rest
        if following <= constant * (1.0 + 4e-16):
            return following, passes
        constant = following
