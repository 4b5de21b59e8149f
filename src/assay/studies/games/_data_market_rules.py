"""What sellers of data do today, and the plain loops that fast code is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["clearing_prices", "monopoly_prices", "naive_round", "nearest", "smallest_worst_ratio"]


def monopoly_prices(market: Any) -> np.ndarray:
    """Position of the lowest price of each grid that earns most as if there were no other seller."""
    wanted = market.values > 0
    spent = np.minimum(np.nan_to_num(market.prices)[None], market.budgets[:, None, None]) * wanted[:, :, None]
    earned = np.einsum("i,ijk->jk", market.weights, spent)
    return np.argmax(earned >= earned.max(axis=1, keepdims=True) * (1 - 1e-12), axis=1)


def clearing_prices(market: Any, rounds: int = 500) -> np.ndarray:
    """Positions next to the prices at which money would clear if each dataset had one copy per buyer and no more.

    The money that goes to a dataset over the number of copies, in the equilibrium of a market of divisible goods with
    linear values; found by proportional response.
    """
    bids = market.budgets[:, None] * np.where(market.values > 0, 1.0, 0.0)
    bids /= np.maximum(np.count_nonzero(market.values > 0, axis=1), 1)[:, None]
    for _ in range(rounds):
        price = market.weights @ bids
        useful = market.values * bids / np.where(price > 0, price, 1.0)
        total = useful.sum(axis=1, keepdims=True)
        bids = np.where(total > 0, market.budgets[:, None] * useful / np.where(total > 0, total, 1.0), 0.0)
    return nearest(market, market.weights @ bids / market.weights.sum())


def nearest(market: Any, prices: np.ndarray) -> np.ndarray:
    """Positions of the grid prices with the smallest ratio to given ones."""
    smallest = np.nanmin(market.prices)
    distance = np.abs(np.log(market.prices) - np.log(np.maximum(prices, smallest))[:, None])
    return np.nanargmin(distance, axis=1)


def naive_round(market: Any, lengths: np.ndarray) -> tuple[list[float], list[list[float]]]:
    """Revenue of every seller and of all of its deviations by loops: every deviation is a market of its own."""

    def revenue_of(profile: list[list[float]], seller: int) -> float:
        earned = 0.0
        for i, budget in enumerate(market.budgets):
            segments = [
                (-market.values[i, j] / prices[k], j, k)
                for j in range(n_sellers)
                for k in range(n_prices)
                if market.values[i, j] > 0 and profile[j][k] > 0
            ]
            left = float(budget)
            for _, j, k in sorted(segments):
                paid = min(left, prices[k] * profile[j][k])
                left -= paid
                if j == seller:
                    earned += market.weights[i] * paid
                if left <= 0:
                    break
        return earned

    n_sellers, n_prices = lengths.shape
    prices = market.prices[0].tolist()
    profile = lengths.tolist()
    revenue = [revenue_of(profile, j) for j in range(n_sellers)]
    deviation = []
    for j in range(n_sellers):
        row = []
        for k in range(n_prices):
            changed = [*profile[:j], [float(k == other) for other in range(n_prices)], *profile[j + 1 :]]
            row.append(revenue_of(changed, j))
        deviation.append(row)
    return revenue, deviation


def smallest_worst_ratio(market: Any, p: np.ndarray, q: np.ndarray) -> tuple[float, float, float]:
    """Smallest ratio of uniform prices, ties going against everyone, over a grid of prices of two sellers.

    What the best answer of one seller earns depends on the price of the other only, so it is found once for each.
    """
    from assay.games.market_deviation import best_uniform_deviation
    from assay.games.market_uniform import uniform_revenue

    def best_answers(seller: int, prices_of_other: np.ndarray) -> np.ndarray:
        found = []
        for price in prices_of_other:
            grids = [[price], [price]]  # the own one does not matter
            posted = market.with_prices(grids)
            found.append(best_uniform_deviation(posted, [[1.0], [1.0]], seller).revenue)
        return np.array(found)

    first, second = best_answers(0, q), best_answers(1, p)
    smallest, where = np.inf, (np.nan, np.nan)
    for index, price in enumerate(p):
        own = uniform_revenue(market, np.column_stack((np.full(q.size, price), q)), ties="worst")
        with np.errstate(divide="ignore"):
            ratio = np.maximum(first / own[:, 0], second[index] / own[:, 1])
        at = int(np.argmin(ratio))
        if ratio[at] < smallest:
            smallest, where = float(ratio[at]), (float(price), float(q[at]))
    return smallest, *where
