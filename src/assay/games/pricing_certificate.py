r"""What can be promised of price schedules, evaluated on them.

Let ``r_j`` be what seller ``j`` earns with its schedule and ``rhat_j`` what it would earn on average with one price
drawn with the fractions of the schedule as probabilities, the others staying where they are. For every profile
``r_j >= rhat_j / 2``, so

.. math:: \max_k r_j(e_k) \le 2 (1 + \rho) r_j, \qquad \rho = \max_j \max_k r_j(e_k) / \hat r_j - 1,

and a fixed point of the randomised game has ``rho = 0``. Prices off the grid: lowering a price loses no place in a
buyer's order, so a price earns at most its ratio to the next grid price below times what that one earns; above the
largest budget it is never better; and below the grid it earns at most the lowest price from every buyer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from assay.certificate import Certificate
from assay.games.market_deviation import best_uniform
from assay.games.market_model import DataMarket
from assay.games.market_standing import Standing, best_to_own, plain_standing

__all__ = ["Assessment", "any_price_bound", "any_price_ratio", "assess"]

_MASS_ROUNDING, _LEMMA_ROUNDING = 1e-9, 1e-12


class Assessment(NamedTuple):
    """What is known about a profile of schedules.

    Parameters
    ----------
    revenue : numpy.ndarray of shape (n_sellers,)
        What the sellers earn.
    incentive_ratio : float
        Largest gain with a uniform price of the grid.
    any_price_ratio : float
        Largest gain with any uniform price.
    fixed_point_residual : float
        Of the randomised game.
    lemma_ratio : float
        Smallest revenue over that of the randomised game.
    certificates : tuple of Certificate
        The promises.
    """

    revenue: Float[np.ndarray, " sellers"]
    incentive_ratio: float
    any_price_ratio: float
    fixed_point_residual: float
    lemma_ratio: float
    certificates: tuple[Certificate, ...]


def any_price_ratio(market: DataMarket, lengths: Float[np.ndarray, "sellers prices"], revenue: np.ndarray) -> float:
    """Largest factor by which a seller gains with any uniform price, on the grid or not."""
    best = np.array([best_uniform(market, lengths, j).revenue for j in range(market.n_prices.size)])
    return float(best_to_own(best, revenue).max())


def any_price_bound(market: DataMarket, standing: Standing) -> float:
    """What the deviations to grid prices say about deviations to any uniform price: no larger gain than this."""
    wanted = market.values > 0
    bounds = []
    for j, size in enumerate(market.n_prices):
        prices = market.prices[j, :size]
        largest_budget = float(market.budgets[wanted[:, j]].max(initial=0.0))
        with np.errstate(over="ignore"):  # a step beyond all numbers says nothing
            step = float((np.append(prices[1:], max(prices[-1], largest_budget)) / prices).max())
        below_grid = prices[0] * float(market.weights[wanted[:, j]].sum())
        bounds.append(max(step * float(standing.deviation[j].max()) if step < math.inf else math.inf, below_grid))
    return float(best_to_own(np.array(bounds), standing.revenue).max())


def assess(market: DataMarket, lengths: Float[np.ndarray, "sellers prices"], lemma_ratio: float = 1.0) -> Assessment:
    """Evaluate a profile from the market alone, by other means than the solver's.

    Parameters
    ----------
    market : DataMarket
        Buyers and sellers.
    lengths : numpy.ndarray of shape (n_sellers, n_prices)
        The profile. All numbers of what is none are nan, which no certificate survives.
    lemma_ratio : float, default=1.0
        Smallest ratio of revenue to that of the randomised game of other profiles that were visited.

    Returns
    -------
    Assessment
    """
    sums = lengths.sum(axis=1)
    if lengths.min() >= 0.0 and np.abs(sums - 1.0).max() <= _MASS_ROUNDING:
        standing = plain_standing(market.budgets, market.weights, market.prices, lengths, market.order)
        ratio, residual = standing.incentive_ratio, standing.fixed_point_residual
        lemma = min(lemma_ratio, standing.lemma_ratio)
        any_price = any_price_ratio(market, lengths, standing.revenue)
        any_bound, revenue = any_price_bound(market, standing), standing.revenue
    else:
        ratio = residual = lemma = any_price = any_bound = math.nan
        revenue = np.full(lengths.shape[0], math.nan)
    certificates = (
        Certificate("largest factor gained with a uniform price of the grid", ratio, 2.0),
        Certificate(
            "largest factor gained with a uniform price of the grid, against 2 (1 + residual of the fixed point)",
            ratio,
            2.0 * (1.0 + residual),
        ),
        Certificate(
            "largest factor gained with any uniform price, against what the grid says about it",
            any_price,
            any_bound * (1.0 + _LEMMA_ROUNDING),
        ),
        Certificate(
            "smallest revenue of a schedule over that of its random price, at all profiles that were visited",
            lemma,
            0.5 - _LEMMA_ROUNDING,
            ">=",
        ),
    )
    return Assessment(revenue, ratio, any_price, residual, lemma, certificates)
