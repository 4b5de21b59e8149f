r"""Divergences as concave games of a critic, and Amari's family of them.

A divergence of two laws is here the supremum of a concave functional of one function ``g``, the critic:

.. math:: D(P \| Q) = \sup_g J(g), \qquad J(g) = E_P[a(g)] + E_Q[b(g)],

with two concave integrands ``a`` and ``b``. Every critic gives a lower bound, whoever found it, and with a critic that
is linear in its parameters the search is a concave problem. Amari's alpha-divergence is of this form with integrals of
exponentials,

.. math:: a(g) = \int_0^g e^{(\alpha - 1) t}\,dt, \qquad b(g) = -\int_0^g e^{\alpha t}\,dt,

whose best critic is the log-ratio ``log p/q``. Written like this the two Kullback-Leibler limits are no special cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import rel_entr

from assay.validation import as_distribution, check_real

__all__ = ["AmariDivergence", "CriticDivergence", "check_divergence", "gives_log_ratio", "integrand_range"]

# Where a divergence is looked at when it is given: critics of standardised data rarely leave this interval.
_GRID = np.linspace(-8.0, 8.0, 257)


@runtime_checkable
class CriticDivergence(Protocol):
    """What a divergence must have: two concave integrands with their first two derivatives.

    Any object with these methods will do; it need not derive from this class. Both take an array of values of the
    critic and return three arrays of its shape. To be used with :func:`assay.transport.gan_value` they must take
    tensors too.
    """

    def p_integrand(self, g: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature (never positive) of the integrand under P."""
        ...

    def q_integrand(self, g: Any) -> tuple[Any, Any, Any]:
        """Value, slope and curvature (never positive) of the integrand under Q."""
        ...


@dataclass(frozen=True)
class AmariDivergence:
    r"""Amari's alpha-divergence, between the two Kullback-Leibler divergences.

    .. math:: D_\alpha(P \| Q) = \frac{\int p^\alpha q^{1-\alpha} - 1}{\alpha(\alpha - 1)}, \qquad
              D_0 = \mathrm{KL}(Q \| P), \quad D_1 = \mathrm{KL}(P \| Q);

    at 1/2 it is twice the squared Hellinger distance :math:`2(1 - \int\sqrt{pq})`.

    Parameters
    ----------
    alpha : float, default=0.5
        In ``[0, 1]``. Outside of it the functional of the critic is not concave.

    Raises
    ------
    TypeError, ValueError
        If ``alpha`` is not a number in ``[0, 1]``.

    References
    ----------
    J. Wang, F. Zhang, L. Wang. Scalable and Stable Estimation of Amari alpha-Divergence using Random Fourier
    Features. ICML 2026.

    Examples
    --------
    >>> from assay.transport import AmariDivergence
    >>> round(AmariDivergence(0.5).between([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), 6)
    0.270178
    >>> AmariDivergence(1.5)
    Traceback (most recent call last):
        ...
    ValueError: alpha must be in [0, 1], where 1 is KL(P|Q) and 0 is KL(Q|P), got 1.5
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        value = check_real(self.alpha, "alpha", allow_infinite=True)
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"alpha must be in [0, 1], where 1 is KL(P|Q) and 0 is KL(Q|P), got {value:g}")
        object.__setattr__(self, "alpha", value)

    def p_integrand(self, g: Any) -> tuple[Any, Any, Any]:
        """Integral of ``exp((alpha - 1) t)`` from 0 to ``g``, with its two derivatives.

        Parameters
        ----------
        g : array_like or torch.Tensor
            Values of the critic.

        Returns
        -------
        tuple of array or tensor
            Value, slope, curvature.
        """
        return _integral_of_exponential(self.alpha - 1.0, g)

    def q_integrand(self, g: Any) -> tuple[Any, Any, Any]:
        """Minus the integral of ``exp(alpha t)`` from 0 to ``g``, with its two derivatives.

        Parameters
        ----------
        g : array_like or torch.Tensor
            Values of the critic.

        Returns
        -------
        tuple of array or tensor
            Value, slope, curvature.
        """
        value, slope, curvature = _integral_of_exponential(self.alpha, g)
        return -value, -slope, -curvature

    def between(self, p: ArrayLike, q: ArrayLike) -> float:
        """The divergence of two distributions on a finite set.

        Parameters
        ----------
        p, q : array_like of shape (k,)
            Probabilities.

        Returns
        -------
        float
            Infinite only at the two limits, where one law has mass that the other has not.

        Raises
        ------
        TypeError, ValueError
            If they are not distributions of one length.
        """
        first = as_distribution(p, "p")
        second = as_distribution(q, "q", size=len(first))
        if self.alpha in (0.0, 1.0):
            return float(rel_entr(*((first, second) if self.alpha == 1.0 else (second, first))).sum())
        both = (first > 0.0) & (second > 0.0)
        log_ratio = np.log(first[both]) - np.log(second[both])
        # The sum less 1, from the law to which the integrand is closer, so that nothing cancels near the limits.
        if self.alpha >= 0.5:
            excess = first[both] @ np.expm1((self.alpha - 1.0) * log_ratio) - first[~both].sum()
        else:
            excess = second[both] @ np.expm1(self.alpha * log_ratio) - second[~both].sum()
        return float(excess / (self.alpha * (self.alpha - 1.0)))


def _integral_of_exponential(rate: float, g: Any) -> tuple[Any, Any, Any]:
    """Integral of ``exp(rate * t)`` from 0 to ``g``, the integrand at ``g``, and its derivative."""
    library: Any = torch if isinstance(g, torch.Tensor) else np
    values = g if isinstance(g, torch.Tensor) else np.asarray(g, dtype=np.result_type(g, np.float32))
    # Far below the spacing of numbers the limit is exact, and a quotient of numbers that are not normal is not.
    if abs(rate) < float(library.finfo(values.dtype).tiny) ** 0.5:
        return values, library.ones_like(values), library.zeros_like(values)
    slope = library.exp(rate * values)
    return library.expm1(rate * values) / rate, slope, rate * slope


def check_divergence(divergence: Any, name: str = "divergence") -> CriticDivergence:
    """Check that an object is a divergence in the sense of :class:`CriticDivergence`, and return it.

    Parameters
    ----------
    divergence : object
        What the user passed.
    name : str, default="divergence"
        Name of the argument, for the message.

    Returns
    -------
    object
        The same.

    Raises
    ------
    TypeError
        If a method is missing.
    ValueError
        If a method does not return value, slope and curvature of a concave function, or the two do not balance at 0,
        where they must sum to 0 with slopes that sum to 0: equal laws must have the divergence 0.

    Examples
    --------
    >>> from assay.transport import AmariDivergence
    >>> from assay.transport.amari_divergence import check_divergence
    >>> check_divergence(AmariDivergence(0.3))
    AmariDivergence(alpha=0.3)
    >>> check_divergence("hellinger")
    Traceback (most recent call last):
        ...
    TypeError: divergence must have the methods p_integrand and q_integrand; str has no p_integrand
    """
    methods = ("p_integrand", "q_integrand")
    for method in methods:
        if not callable(getattr(divergence, method, None)) or isinstance(divergence, type):
            kind = (
                divergence.__name__ + " is a class and" if isinstance(divergence, type) else type(divergence).__name__
            )
            raise TypeError(f"{name} must have the methods p_integrand and q_integrand; {kind} has no {method}")
    if isinstance(divergence, AmariDivergence):
        return divergence
    at_zero = []
    for method in methods:
        value, slope, _ = _check_integrand(getattr(divergence, method), f"{name}.{method}")
        middle = len(_GRID) // 2
        at_zero.append((value[middle], slope[middle]))
    for what, (p, q) in zip(("values", "slopes"), zip(*at_zero, strict=True), strict=True):
        if abs(p + q) > 1e-9 * (1.0 + abs(p)):
            raise ValueError(
                f"{name} must have integrands whose {what} at g = 0 sum to 0 (equal laws have divergence 0), "
                f"got {p:g} and {q:g}"
            )
    return divergence


def _check_integrand(integrand: Any, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What an integrand returns on the grid, after checks that it is concave and that its parts belong together."""
    parts = integrand(_GRID.copy())
    if not isinstance(parts, tuple) or len(parts) != 3 or any(np.shape(part) != _GRID.shape for part in parts):
        raise ValueError(f"{name} must return value, slope and curvature, three arrays of the shape of g")
    value, slope, curvature = (np.asarray(part, dtype=float) for part in parts)
    if not all(np.isfinite(part).all() for part in (value, slope, curvature)):
        raise ValueError(f"{name} must be finite for every real g, got a nan or an infinity for |g| <= 8")
    if curvature.max() > 0.0:
        raise ValueError(f"{name} must be concave, got a curvature of {curvature.max():g}")
    gap = np.diff(_GRID)
    for what, upper, lower in (("slope", value, slope), ("curvature", slope, curvature)):
        # Simpson's rule over two cells of the grid; 1/16 between the points.
        integral = (gap[0] / 3.0) * (lower[:-2] + 4.0 * lower[1:-1] + lower[2:])
        error = np.abs(upper[2:] - upper[:-2] - integral)
        if (error > 1e-3 * np.abs(integral) + 1e-6 * (1.0 + np.abs(upper[1:-1]))).any():
            raise ValueError(f"{name} must return a {what} that is the derivative of what comes before it")
    return value, slope, curvature


def gives_log_ratio(divergence: CriticDivergence) -> bool:
    """Whether the best critic of a divergence is ``log p/q``: ``a'(g) exp(g) + b'(g) = 0`` for all ``g``.

    Parameters
    ----------
    divergence : object with p_integrand and q_integrand
        The divergence.

    Returns
    -------
    bool

    Examples
    --------
    >>> from assay.transport.amari_divergence import AmariDivergence, gives_log_ratio
    >>> gives_log_ratio(AmariDivergence(0.3))
    True
    """
    rising, falling = divergence.p_integrand(_GRID)[1] * np.exp(_GRID), divergence.q_integrand(_GRID)[1]
    return bool((np.abs(rising + falling) <= 1e-9 * (np.abs(rising) + np.abs(falling))).all())


def integrand_range(integrand: Any, bound: float) -> float:
    """Largest less smallest value of a concave integrand on ``[-bound, bound]``.

    Parameters
    ----------
    integrand : callable
        A method of a divergence.
    bound : float
        At least 0.

    Returns
    -------
    float

    Examples
    --------
    >>> from assay.transport.amari_divergence import AmariDivergence, integrand_range
    >>> round(integrand_range(AmariDivergence(1.0).p_integrand, 2.0), 6)
    4.0
    """
    ends = np.array([-bound, bound])
    value, slope, _ = integrand(ends)
    highest = float(np.max(value))
    if slope[0] > 0.0 > slope[1]:
        top = brentq(lambda g: float(integrand(np.array([g]))[1][0]), -bound, bound)
        highest = max(highest, float(integrand(np.array([top]))[0][0]))
    return highest - float(np.min(value))
