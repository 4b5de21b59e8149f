r"""Revenue of a menu and its gradient in the prices, in one pass over the types.

When the bundles stay, their worth to each type is a matrix that is computed once, and a step of the ascent needs no
more than one pass over it: the scores of a type, the soft choice among them, and what that choice earns. With weights
:math:`w_{ij}` at inverse temperature :math:`T_i`, profits :math:`\pi_j` and :math:`R_i = \sum_j w_{ij} \pi_j`,

.. math:: \frac{\partial}{\partial b_j} \sum_i R_i = \sum_i w_{ij} - T_i\, w_{ij} (\pi_j - R_i),

the temperature of a type, which depends on the spread of its scores, being held fixed. The same pass finds the hard
choice, so that the best menu of all steps is known and not only the last one.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numba import njit

__all__ = ["soft_revenue_and_slope"]

# exp(-36) is below the last bit of 1.
_NEGLIGIBLE = 36.0


@njit(cache=True)
def soft_revenue_and_slope(
    worth: Float[np.ndarray, "S J"],
    price: Float[np.ndarray, " J"],
    profit: Float[np.ndarray, " J"],
    unit: float,
    temperature: float,
    least_spread: float,
    hottest: float,
    tie: float,
) -> tuple[float, float, Float[np.ndarray, " J"]]:
    """Mean profit from soft and from hard choices, and the gradient of the former in the prices.

    Parameters
    ----------
    worth : numpy.ndarray of shape (S, J)
        Worth of each bundle to each type.
    price, profit : numpy.ndarrays of shape (J,)
        Prices, and these less the costs of production.
    unit : float
        Scores are divided by it.
    temperature, least_spread, hottest : float
        The temperature of a type is the first over the spread of its scores (at least the second), at least the first
        and at most the third.
    tie : float
        Share of the largest score up to which types are indifferent; they take what is best for the seller.

    Returns
    -------
    soft, hard : float
        Means over the types.
    slope : numpy.ndarray of shape (J,)
        Gradient of ``soft``.

    Examples
    --------
    A type of value 0.7, nothing for nothing or the good for 0.5:

    >>> import numpy as np
    >>> from assay.transport.menu_ascent import soft_revenue_and_slope
    >>> price = np.array([0.0, 0.5])
    >>> soft, hard, slope = soft_revenue_and_slope(np.array([[0.0, 0.7]]), price, price, 1.0, 60.0, 1e-3, 5e3, 1e-13)
    >>> soft, hard, slope.round(6).tolist()
    (0.5, 0.5, [0.0, 1.0])
    """
    n, m = worth.shape
    slope, score, weight = np.zeros(m), np.empty(m), np.empty(m)
    soft, hard = 0.0, 0.0
    for i in range(n):
        best, worst, largest = -np.inf, np.inf, 0.0
        for j in range(m):
            score[j] = worth[i, j] - price[j]
            best, worst = max(best, score[j]), min(worst, score[j])
            largest = max(largest, abs(score[j]))
        heat = temperature / max((best - worst) / unit, least_spread)
        heat = min(max(heat, temperature), hottest) / unit
        total, earned, taken = 0.0, 0.0, -np.inf
        for j in range(m):
            behind = best - score[j]
            if behind <= tie * largest:
                taken = max(taken, profit[j])
            weight[j] = np.exp(-heat * behind) if heat * behind < _NEGLIGIBLE else 0.0
            total += weight[j]
            earned += weight[j] * profit[j]
        earned /= total
        for j in range(m):
            if weight[j] > 0.0:
                slope[j] += weight[j] / total * (1.0 - heat * (profit[j] - earned))
        soft += earned
        hard += taken
    return soft / n, hard / n, slope / n
