r"""Who buys what at given prices: the loops over buyers and segments that every question about a data market comes to.

A *segment* is a part of a dataset that is sold at one unit price. A buyer takes segments in decreasing order of value
per money until the budget ends, and since a sale uses nothing up, buyers do not meet. The order depends on values and
prices, not on how long the segments are, so it is sorted once. One walk along it then gives the revenue of every
seller, and what each would earn with the whole dataset at any one of its prices: before a segment of seller ``j``, the
buyer has spent on others what was spent so far less what went to ``j``.

Values per money are compared through cross products of mantissas with their exponents apart, so that no price is too
small and no value too large; two that agree to a few roundings count as equal.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int
from numba import njit

__all__ = [
    "BEST",
    "FIXED",
    "WORST",
    "deviation_events",
    "left_at_price",
    "leftovers",
    "purchase_order",
    "spending",
    "uniform_revenues",
    "walk",
]

# Ratios of decimal fractions, such as .6 / .3 and .2 / .1, are equal within this.
_TIE = 4.0 * np.finfo(np.float64).eps
# Of a budget: money that is left because a sum was rounded buys nothing.
_SPENT = 1e-13

# Who is served first when a buyer values two segments equally per money.
FIXED, WORST, BEST = 0, 1, 2


def purchase_order(
    values: Float[np.ndarray, "buyers sellers"], prices: Float[np.ndarray, "sellers prices"]
) -> tuple[Int[np.ndarray, "buyers segments"], Int[np.ndarray, " buyers"]]:
    """Segments of every buyer, the best first: by value per money, then by seller, then by price.

    Parameters
    ----------
    values : numpy.ndarray of shape (n_buyers, n_sellers)
        Of whole datasets.
    prices : numpy.ndarray of shape (n_sellers, n_prices)
        Unit prices, increasing along rows, padded with nan.

    Returns
    -------
    order : numpy.ndarray of shape (n_buyers, n_sellers * n_prices)
        Segment ``seller * n_prices + price``; those of no value and the padding come last.
    n_wanted : numpy.ndarray of shape (n_buyers,)
        How many segments have a value.

    Notes
    -----
    O(n_buyers N log N) with N segments; ratios that are equal within rounding are put into one group, whose members are
    then ordered by seller and price.
    """
    n_buyers, n_prices = values.shape[0], prices.shape[1]
    wanted = np.repeat(values > 0, n_prices, axis=1) & np.isfinite(prices).ravel()
    value_part, value_exponent = np.frexp(np.where(values > 0, values, 1.0))
    price_part, price_exponent = np.frexp(np.where(np.isfinite(prices), prices, 1.0))
    part, carry = np.frexp(value_part[:, :, None] / price_part)
    exponent = (value_exponent[:, :, None] - price_exponent) + carry
    part, exponent = (array.reshape(n_buyers, -1) for array in (part, exponent))
    exponent = np.where(wanted, exponent, -(2**20))
    best_first = np.lexsort((-part, -exponent), axis=-1)
    part, exponent = (np.take_along_axis(array, best_first, axis=1) for array in (part, exponent))
    above = np.ldexp(part[:, :-1], np.minimum(exponent[:, :-1] - exponent[:, 1:], 2))
    group = np.zeros(best_first.shape, dtype=np.int64)
    np.cumsum(above > part[:, 1:] * (1.0 + _TIE), axis=1, out=group[:, 1:])
    by_rule = np.lexsort((best_first, group), axis=-1)
    order = np.take_along_axis(best_first, by_rule, axis=1).astype(np.int32)
    return order, np.count_nonzero(wanted, axis=1)


@njit(cache=True)
def walk(budgets, weights, prices, lengths, order, n_wanted):
    """Revenue of every seller, and its revenue with all of its dataset at each of its prices: arrays of shape
    (n_sellers,) and (n_sellers, n_prices).
    """
    n_sellers, n_prices = prices.shape
    revenue, deviation = np.zeros(n_sellers), np.zeros((n_sellers, n_prices))
    own = np.empty(n_sellers)
    for i in range(budgets.size):
        budget, weight = budgets[i], weights[i]
        nothing = _SPENT * budget
        own[:] = 0.0
        total = largest = 0.0
        for position in range(n_wanted[i]):
            if total - largest >= budget:  # whoever sold the whole dataset here would find no money left
                break
            segment = order[i, position]
            j, k = segment // n_prices, segment % n_prices
            without = budget - (total - own[j])
            if without > nothing:
                deviation[j, k] += weight * min(without, prices[j, k])
            # A segment that costs more than the budget ends it, whatever more it costs.
            cost = min(prices[j, k] * lengths[j, k], budget)
            if cost > 0.0:
                left = budget - total
                if left > nothing:
                    revenue[j] += weight * min(left, cost)
                own[j] += cost
                total += cost
                largest = max(largest, own[j])
    return revenue, deviation


@njit(cache=True)
def spending(budgets, prices, lengths, order, n_wanted):
    """Money of every buyer for every segment: an array of shape (n_buyers, n_sellers, n_prices)."""
    n_sellers, n_prices = prices.shape
    spent = np.zeros((budgets.size, n_sellers, n_prices))
    for i in range(budgets.size):
        left = budgets[i]
        nothing = _SPENT * budgets[i]
        for position in range(n_wanted[i]):
            if left <= nothing:
                break
            segment = order[i, position]
            j, k = segment // n_prices, segment % n_prices
            paid = min(left, prices[j, k] * lengths[j, k])
            spent[i, j, k] = paid
            left -= paid
    return spent


@njit(cache=True)
def leftovers(budgets, prices, lengths, order, n_wanted, seller):
    """Money that every buyer has left when it comes to each price of a seller, before anything is bought there: an
    array of shape (n_buyers, n_prices), 0 for who does not want the dataset.
    """
    n_prices = prices.shape[1]
    left = np.zeros((budgets.size, n_prices))
    for i in range(budgets.size):
        others = 0.0
        nothing = _SPENT * budgets[i]
        for position in range(n_wanted[i]):
            segment = order[i, position]
            j, k = segment // n_prices, segment % n_prices
            if budgets[i] - others <= nothing:
                break
            if j == seller:
                left[i, k] = budgets[i] - others
            else:
                others += min(prices[j, k] * lengths[j, k], budgets[i])
    return left


@njit(cache=True)
def _compare(value_a, price_a, value_b, price_b):
    """1 when ``a`` has more value per money than ``b``, -1 when it has less, 0 when they are equal."""
    value_part_a, value_exponent_a = math.frexp(value_a)
    price_part_a, price_exponent_a = math.frexp(price_a)
    value_part_b, value_exponent_b = math.frexp(value_b)
    price_part_b, price_exponent_b = math.frexp(price_b)
    difference = (value_exponent_a + price_exponent_b) - (value_exponent_b + price_exponent_a)
    # Both products are in [1/4, 1).
    a = math.ldexp(value_part_a * price_part_b, max(min(difference, 3), -3))
    b = value_part_b * price_part_a
    if a > b * (1.0 + _TIE):
        return 1
    if b > a * (1.0 + _TIE):
        return -1
    return 0


@njit(cache=True)
def uniform_revenues(budgets, weights, values, price_vectors, ties):
    """Revenue at each of several vectors of uniform prices: an array of their shape (n_vectors, n_sellers).

    Ties go to the seller of lower index (``FIXED``), or against (``WORST``) or to (``BEST``) the seller whose revenue
    is asked for.
    """
    n_vectors, n_sellers = price_vectors.shape
    revenue = np.zeros((n_vectors, n_sellers))
    for v in range(n_vectors):
        for i in range(budgets.size):
            budget = budgets[i]
            nothing = _SPENT * budget
            for j in range(n_sellers):
                if values[i, j] <= 0.0:
                    continue
                price = price_vectors[v, j]
                left = budget
                for other in range(n_sellers):
                    if other == j or values[i, other] <= 0.0:
                        continue
                    rank = _compare(values[i, other], price_vectors[v, other], values[i, j], price)
                    if rank == 0:
                        rank = 1 if ties == WORST or (ties == FIXED and other < j) else -1
                    if rank > 0:
                        left -= min(price_vectors[v, other], budget)
                if left > nothing:
                    revenue[v, j] += weights[i] * min(left, price)
    return revenue


@njit(cache=True)
def _tie_price(value, other_value, other_price):
    """Price at which a dataset has the value per money of another."""
    return value * (other_price / other_value)


@njit(cache=True)
def left_at_price(budgets, values, prices, lengths, order, n_wanted, seller, price, undercut):
    """Money that every buyer has left when it comes to a seller who asks any one price, 0 for who does not want the
    dataset.

    A segment tied at the price is bought before if its seller has the lower index; with ``undercut`` the price is
    meant to be just below ``price``, and segments tied there are bought after.
    """
    n_prices = prices.shape[1]
    answer = np.zeros(budgets.size)
    for i in range(budgets.size):
        if values[i, seller] <= 0.0:
            continue
        left = budgets[i]
        nothing = _SPENT * budgets[i]
        for position in range(n_wanted[i]):
            segment = order[i, position]
            j, k = segment // n_prices, segment % n_prices
            if j == seller or lengths[j, k] <= 0.0:
                continue
            if undercut:
                if not _tie_price(values[i, seller], values[i, j], prices[j, k]) < price:
                    continue
            else:
                rank = _compare(values[i, j], prices[j, k], values[i, seller], price)
                if rank < 0 or (rank == 0 and j > seller):
                    continue
            left -= min(prices[j, k] * lengths[j, k], budgets[i])
            if left <= nothing:
                left = 0.0
                break
        answer[i] = left
    return answer


@njit(cache=True)
def deviation_events(budgets, weights, values, prices, lengths, order, n_wanted, seller):
    """Where the revenue of a seller, as a function of its uniform price, changes its slope or falls.

    As the price rises from 0, a buyer pays it until no more money is left (a kink, or a fall when the price passes
    a tie with a segment of someone else) and then pays what is left, which falls at further ties. Returns prices,
    changes of level, changes of slope, and whether the buyer stops paying the price there, in no order.
    """
    n_prices = prices.shape[1]
    most = 0
    for i in range(budgets.size):
        most += n_wanted[i] + 1
    where, level, slope = np.empty(most), np.empty(most), np.empty(most)
    stops = np.empty(most, dtype=np.int64)
    count = 0
    for i in range(budgets.size):
        if values[i, seller] <= 0.0 or weights[i] <= 0.0:
            continue
        left = budgets[i]
        nothing = _SPENT * budgets[i]
        paying = left > nothing
        for position in range(n_wanted[i]):
            if left <= nothing:
                break
            segment = order[i, position]
            j, k = segment // n_prices, segment % n_prices
            if j == seller or lengths[j, k] <= 0.0:
                continue
            tie = _tie_price(values[i, seller], values[i, j], prices[j, k])
            if paying and left <= tie:
                where[count], level[count], slope[count], stops[count] = left, weights[i] * left, -weights[i], 1
                count += 1
                paying = False
            after = left - min(prices[j, k] * lengths[j, k], budgets[i])
            if after <= nothing:
                after = 0.0
            if paying and after <= tie:
                where[count], level[count], slope[count], stops[count] = tie, weights[i] * after, -weights[i], 1
                count += 1
                paying = False
            elif not paying:
                where[count], level[count], slope[count], stops[count] = tie, weights[i] * (after - left), 0.0, 0
                count += 1
            left = after
        if paying:
            where[count], level[count], slope[count], stops[count] = left, weights[i] * left, -weights[i], 1
            count += 1
    return where[:count], level[:count], slope[:count], stops[:count]
