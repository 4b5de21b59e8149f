r"""Confidence bounds on a divergence from a critic and points that it has not seen.

Any critic gives a lower bound on the divergence, so the only question is the sampling error of two means on held-out
points. The critic is clipped to ``[-tau, tau]``, which costs nothing in validity as long as ``tau`` does not depend on
those points, and makes both integrands bounded. The empirical Bernstein inequality of Maurer and Pontil then
gives, with probability ``1 - delta`` for both means together,

.. math:: \text{mean} - \sqrt{\frac{2 V \log(4/\delta)}{n}} - \frac{7\,\text{range}\,\log(4/\delta)}{3(n - 1)} .
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from assay.transport.amari_divergence import CriticDivergence, integrand_range

# All of them, or part after part.
Scores = Float[np.ndarray, " _"] | Iterable[Float[np.ndarray, " _"]]

__all__ = ["HeldOut", "bernstein_lower_bound", "choose_clip", "evaluate_held_out"]

_CLIP_QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


@dataclass(frozen=True)
class HeldOut:
    """What held-out points say about a critic.

    Parameters
    ----------
    value : float
        The functional at the critic, an estimate of a lower bound that has no bias.
    standard_error : float
        Of ``value``.
    lower_bound : float
        The divergence is at least this with the confidence asked for, whatever the two laws are.
    normal_lower_bound : float
        The same if the means were normal: higher, and only asymptotically valid.
    """

    value: float
    standard_error: float
    lower_bound: float
    normal_lower_bound: float


def bernstein_lower_bound(
    divergence: CriticDivergence,
    scores_p: Scores,
    scores_q: Scores,
    clip: float,
    confidence: float,
    sizes: tuple[int, int] | None = None,
) -> float:
    """Lower confidence bound on a divergence.

    Parameters
    ----------
    divergence : object with p_integrand and q_integrand
        The divergence.
    scores_p, scores_q : arrays of shapes (n,) and (m,), or iterables of parts of them
        Values, at points of P and of Q, of a critic that was chosen without them.
    clip : float
        Values of the critic are cut to ``[-clip, clip]``; chosen without those points too.
    confidence : float
        In ``(0, 1)``.
    sizes : tuple of int, optional
        Number of points, if means and variances are to count as those of so many.

    Returns
    -------
    float
        -inf if there is only one point of a law.

    References
    ----------
    A. Maurer, M. Pontil. Empirical Bernstein Bounds and Sample Variance Penalization. COLT 2009.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import AmariDivergence
    >>> from assay.transport.divergence_bounds import bernstein_lower_bound
    >>> rng = np.random.default_rng(0)
    >>> x, z = rng.normal(0.0, 1.0, 5000), rng.normal(1.0, 1.0, 5000)
    >>> bound = bernstein_lower_bound(AmariDivergence(0.5), 0.5 - x, 0.5 - z, clip=3.0, confidence=0.95)
    >>> bool(0.35 < bound < 4 * (1 - np.exp(-1 / 8)))
    True
    """
    sides = (divergence.p_integrand, scores_p), (divergence.q_integrand, scores_q)
    moments = tuple(_moments(integrand, scores, (clip,))[0] for integrand, scores in sides)
    return _bound(divergence, moments, clip, confidence, sizes)


@dataclass(frozen=True)
class _Moments:
    """Number, mean and variance (nan for a single one) of the values of an integrand."""

    n: int
    mean: float
    variance: float


def _moments(integrand: Any, scores: Scores, clips: tuple[float, ...]) -> tuple[_Moments, ...]:
    """Moments of an integrand at the values of a critic, clipped in several ways, in one pass."""
    n, means, squares = 0, np.zeros(len(clips)), np.zeros(len(clips))
    for part in [scores] if isinstance(scores, np.ndarray) else scores:
        if not len(part):
            continue
        after = n + len(part)
        for i, clip in enumerate(clips):
            terms = integrand(np.clip(part, -clip, clip))[0]
            mean = float(terms.mean())
            # Of the parts together (Chan, Golub, LeVeque): sums of squares of data far from 0 would cancel.
            change = mean - means[i]
            squares[i] += float(np.square(terms - mean).sum()) + change**2 * n * len(part) / after
            means[i] += change * len(part) / after
        n = after
    variances = squares / (n - 1) if n > 1 else np.full(len(clips), math.nan)
    return tuple(_Moments(n, float(mean), float(v)) for mean, v in zip(means, variances, strict=True))


def _bound(
    divergence: CriticDivergence,
    moments: tuple[_Moments, ...],
    clip: float,
    confidence: float,
    sizes: tuple[int, int] | None,
) -> float:
    """The empirical Bernstein bound from the moments of both sides."""
    total, log_term = 0.0, math.log(4.0 / (1.0 - confidence))
    for i, (integrand, side) in enumerate(zip((divergence.p_integrand, divergence.q_integrand), moments, strict=True)):
        n = side.n if sizes is None else sizes[i]
        if min(n, side.n) < 2:
            return -math.inf
        deviation = math.sqrt(2.0 * side.variance * log_term / n)
        total += side.mean - deviation - 7.0 * integrand_range(integrand, clip) * log_term / (3.0 * (n - 1))
    return total


def choose_clip(
    divergence: CriticDivergence,
    scores_p: Float[np.ndarray, " rows_p"],
    scores_q: Float[np.ndarray, " rows_q"],
    confidence: float,
    sizes: tuple[int, int],
) -> float:
    """Where to clip a critic, from the points that it was fitted to.

    A low clip loses value and a high one pays for the range of the integrands. Taken is the quantile of the absolute
    values, from 50 to 99.9 %, that would give the highest bound if the held-out points were like these.

    Parameters
    ----------
    divergence : object with p_integrand and q_integrand
        The divergence.
    scores_p, scores_q : arrays of shapes (n,) and (m,)
        Values of the critic on training points.
    confidence : float
        Of the bound.
    sizes : tuple of int
        Number of held-out points of P and of Q.

    Returns
    -------
    float
    """
    clips = np.quantile(np.abs(np.concatenate([scores_p, scores_q])), _CLIP_QUANTILES)
    bounds = [bernstein_lower_bound(divergence, scores_p, scores_q, float(c), confidence, sizes) for c in clips]
    return float(clips[int(np.argmax(bounds))])


def evaluate_held_out(
    divergence: CriticDivergence,
    scores_p: Scores,
    scores_q: Scores,
    clip: float,
    confidence: float,
) -> HeldOut:
    """Value of a critic on held-out points, its standard error, and the lower bounds.

    Parameters
    ----------
    divergence, scores_p, scores_q, clip, confidence
        As in :func:`bernstein_lower_bound`.

    Returns
    -------
    HeldOut
    """
    plain_p, clipped_p = _moments(divergence.p_integrand, scores_p, (math.inf, clip))
    plain_q, clipped_q = _moments(divergence.q_integrand, scores_q, (math.inf, clip))
    value = plain_p.mean + plain_q.mean
    if min(plain_p.n, plain_q.n) < 2:
        return HeldOut(value, math.nan, -math.inf, -math.inf)
    error = math.sqrt(plain_p.variance / plain_p.n + plain_q.variance / plain_q.n)
    return HeldOut(
        value,
        error,
        _bound(divergence, (clipped_p, clipped_q), clip, confidence, None),
        value - float(ndtri(confidence)) * error,
    )
