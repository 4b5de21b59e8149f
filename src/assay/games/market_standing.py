"""How far a profile of price schedules is from one that no seller can better with a uniform price."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

__all__ = ["Standing", "best_to_own", "plain_standing"]


@dataclass(frozen=True, eq=False)
class Standing:
    """How a profile of schedules stands against deviations to uniform prices of the grid.

    Parameters
    ----------
    revenue : numpy.ndarray of shape (n_sellers,)
        Of the profile.
    deviation : numpy.ndarray of shape (n_sellers, n_prices)
        Of each seller with the whole dataset at one price, the others staying where they are.
    randomized : numpy.ndarray of shape (n_sellers,)
        Mean of ``deviation`` when the price is drawn with the fractions of the schedule as probabilities.
    """

    revenue: Float[np.ndarray, " sellers"]
    deviation: Float[np.ndarray, "sellers prices"]
    randomized: Float[np.ndarray, " sellers"]

    @property
    def incentive_ratio(self) -> float:
        """Largest factor by which a seller gains; inf where it earns nothing and could earn something."""
        return float(best_to_own(self.deviation.max(axis=1), self.revenue).max())

    @property
    def fixed_point_residual(self) -> float:
        """By what share the best price earns more than a random price of the schedule, for the worst seller."""
        return float(best_to_own(self.deviation.max(axis=1), self.randomized).max()) - 1.0

    @property
    def lemma_ratio(self) -> float:
        """Smallest ratio of the revenue of a schedule to that of its random price; at least 1/2 for any profile."""
        return float(best_to_own(self.revenue, self.randomized).min())


def best_to_own(best: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Ratio of two revenues: 1 where both are 0, inf where only the second is."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = best / own
    return np.where((best == 0) & (own == 0), 1.0, ratio)


def plain_standing(
    budgets: Float[np.ndarray, " buyers"],
    weights: Float[np.ndarray, " buyers"],
    prices: Float[np.ndarray, "sellers prices"],
    lengths: Float[np.ndarray, "sellers prices"],
    order: tuple[np.ndarray, np.ndarray],
) -> Standing:
    """What :meth:`DataMarket.evaluate` returns, by prefix sums over whole arrays: slower, shorter, and independent.

    Parameters
    ----------
    budgets, weights : numpy.ndarray of shape (n_buyers,)
        Of the buyers.
    prices, lengths : numpy.ndarray of shape (n_sellers, n_prices)
        Unit prices, padded with nan, and the fractions sold at them.
    order : tuple of numpy.ndarray
        Of the segments, as from :func:`assay.games.market_kernels.purchase_order`.

    Returns
    -------
    Standing
    """
    segments, n_wanted = order
    n_buyers, (n_sellers, n_prices) = budgets.size, prices.shape
    unit = np.nan_to_num(prices)
    wanted = np.zeros(segments.shape, dtype=bool)
    np.put_along_axis(wanted, segments, np.arange(segments.shape[1]) < n_wanted[:, None], axis=1)
    # A segment that costs more than the budget ends it, whatever more it costs.
    cost = np.minimum((unit * lengths).ravel(), budgets[:, None]) * wanted
    sorted_cost = np.take_along_axis(cost, segments, axis=1)
    before = np.empty(cost.shape)
    np.put_along_axis(before, segments, np.cumsum(sorted_cost, axis=1) - sorted_cost, axis=1)
    own = cost.reshape(n_buyers, n_sellers, n_prices)
    # The prices of one seller are met in increasing order by everyone.
    own_before = (np.cumsum(own, axis=2) - own).reshape(cost.shape)
    nothing = _SPENT * budgets[:, None]
    left, left_by_others = budgets[:, None] - before, budgets[:, None] - (before - own_before)
    spent = np.where(left > nothing, np.minimum(left, cost), 0.0)
    could = np.where(wanted & (left_by_others > nothing), np.minimum(left_by_others, unit.ravel()), 0.0)
    revenue, deviation = ((weights @ money).reshape(n_sellers, n_prices) for money in (spent, could))
    return Standing(revenue.sum(axis=1), deviation, np.einsum("jk,jk->j", lengths, deviation))


# Of a budget: money that is left because a sum was rounded buys nothing.
_SPENT = 1e-13
