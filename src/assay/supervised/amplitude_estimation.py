r"""Quantum amplitude estimation, drawn from its exact law.

The estimate of a probability :math:`a = \sin^2 \theta` by phase estimation with ``M`` evaluations is
:math:`\sin^2(\pi k / M)`, where :math:`k` follows a known law. Drawing from it costs O(M) and gives exactly what the
quantum algorithm would, as often, without a quantum computer; what is counted are its evaluations.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numba import njit

from assay.validation import as_generator, check_integer, check_real

__all__ = ["amplitude_estimate", "estimation_law", "estimation_size", "median_failure"]

_SINGULAR = 1e-13


def estimation_law(a: float, n_eval: int) -> Float[np.ndarray, " n_eval"]:
    r"""Law of the outcome :math:`k` of amplitude estimation.

    Parameters
    ----------
    a : float
        The probability, in [0, 1].
    n_eval : int
        Evaluations M.

    Returns
    -------
    numpy.ndarray of shape (n_eval,)
        :math:`\tfrac12 [F(k / M - \theta / \pi) + F(k / M + \theta / \pi)]` with
        :math:`F(x) = \sin^2(M \pi x) / (M \sin(\pi x))^2`.

    Examples
    --------
    >>> from assay.supervised.amplitude_estimation import estimation_law
    >>> estimation_law(0.5, 4).round(3).tolist()
    [0.0, 0.5, 0.0, 0.5]
    """
    return _law(math.asin(math.sqrt(a)), n_eval)


def amplitude_estimate(a: float, n_eval: int, rng: int | np.random.Generator | None = None, repeats: int = 1) -> float:
    r"""Estimate a probability as quantum amplitude estimation does.

    Parameters
    ----------
    a : float
        The true probability, in [0, 1].
    n_eval : int
        Evaluations M of each run, a power of two on a quantum computer.
    rng : int, numpy.random.Generator or None, default=None
        Source of the outcome.
    repeats : int, default=1
        Runs whose median is returned.

    Returns
    -------
    float
        One run is within :math:`2 \pi \sqrt{a (1 - a)} / M + \pi^2 / M^2` of ``a`` with probability at least
        :math:`8 / \pi^2`.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of its range.

    Notes
    -----
    O(n_eval), whatever ``repeats``.

    References
    ----------
    G. Brassard, P. Hoyer, M. Mosca, A. Tapp. Quantum Amplitude Amplification and Estimation. Contemporary Mathematics
    305, 2002. arXiv:quant-ph/0005055.

    Examples
    --------
    >>> from assay.supervised import amplitude_estimate
    >>> amplitude_estimate(0.0, 64, rng=0), amplitude_estimate(1.0, 64, rng=0)
    (0.0, 1.0)
    >>> abs(amplitude_estimate(0.1, 1024, rng=0, repeats=7) - 0.1) < 0.002
    True
    """
    a = check_real(a, "a", minimum=0, maximum=1)
    n_eval = check_integer(n_eval, "n_eval", minimum=1)
    repeats = check_integer(repeats, "repeats", minimum=1)
    cumulative = np.cumsum(estimation_law(a, n_eval))
    draws = as_generator(rng).random(repeats)
    outcomes = np.minimum(np.searchsorted(cumulative, draws * cumulative[-1], side="right"), n_eval - 1)
    return float(np.median(np.sin(np.pi * outcomes / n_eval) ** 2))


def estimation_size(eps: float, delta: float) -> int:
    r"""Evaluations with which a density near ``eps`` is estimated within ``eps delta / 4``.

    Parameters
    ----------
    eps : float
        Density.
    delta : float
        Relative accuracy.

    Returns
    -------
    int
        The power of two from :math:`8 \pi / (\delta \sqrt{\varepsilon})` on.

    Examples
    --------
    >>> from assay.supervised.amplitude_estimation import estimation_size
    >>> estimation_size(0.1, 0.2)
    512
    """
    return 1 << math.ceil(math.log2(8.0 * math.pi / (delta * math.sqrt(eps))))


def median_failure(repeats: int) -> float:
    """Most often that a median of estimates misses the bound that each one keeps with probability 8 / pi^2.

    Parameters
    ----------
    repeats : int
        Estimates, an odd number.

    Returns
    -------
    float

    Examples
    --------
    >>> from assay.supervised.amplitude_estimation import median_failure
    >>> round(median_failure(1), 4), round(median_failure(7), 4)
    (0.1894, 0.0276)
    """
    miss = 1.0 - 8.0 / math.pi**2
    least = (repeats + 1) // 2
    return sum(math.comb(repeats, k) * miss**k * (1.0 - miss) ** (repeats - k) for k in range(least, repeats + 1))


@njit(cache=True)
def _law(theta: float, n_eval: int) -> np.ndarray:
    # sin^2(M (pi k / M - theta)) is the same for all k.
    numerator = math.sin(n_eval * theta) ** 2 / n_eval**2
    law = np.zeros(n_eval)
    total = 0.0
    for k in range(n_eval):
        angle = math.pi * k / n_eval
        for shifted in (angle - theta, angle + theta):
            sine = math.sin(shifted)
            law[k] += 1.0 if abs(sine) < _SINGULAR else numerator / sine**2
        total += law[k]
    return law / total
