r"""The best that one seller can do while the others stay: with a uniform price, exactly; with a schedule, nearly.

As a function of its uniform price ``p``, the revenue of a seller is ``sum_i w_i min(p, M_i(p))``, where the money
``M_i(p)`` that buyer ``i`` has left falls at the prices that tie with a segment of another seller and is constant
between them. It rises until the next tie, so the supremum is found just below a tie, or at a price that equals what
some buyer has left.

A schedule with cumulated costs ``X_1 <= X_2 <= ...`` at its prices takes ``max_k min(X_k, M_i(p_k))`` from buyer ``i``.
Its best choice is NP-hard in general; ascent along single segments gives a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numba import njit
from numpy.typing import ArrayLike

from assay.games.market_kernels import deviation_events, left_at_price, leftovers
from assay.games.market_model import DataMarket, check_market
from assay.validation import as_generator, check_integer

__all__ = ["ScheduleResponse", "UniformDeviation", "best_uniform_deviation", "plc_best_response"]

_ROUNDING = 1e-12
# Prices of a schedule that is looked for, and points of a line search.
_MOST_PRICES, _MOST_POINTS, _MOST_SWEEPS = 12, 128, 20


@dataclass(frozen=True)
class UniformDeviation:
    """The best uniform price of one seller; it unpacks into revenue, price and whether it is attained.

    Parameters
    ----------
    revenue : float
        Supremum over all prices above 0.
    price : float
        Where it is: at this price if it is attained, else for prices just below it.
    attained : bool
        False when a buyer must be undercut: any price below ``price`` earns less than the supremum, by as little as
        one likes.
    """

    revenue: float
    price: float
    attained: bool

    def __iter__(self):
        return iter((self.revenue, self.price, self.attained))


def best_uniform_deviation(market: DataMarket, lengths: ArrayLike, j: int) -> UniformDeviation:
    """Largest revenue of a seller over all uniform prices above 0, of the grid or not, others staying where they are.

    Parameters
    ----------
    market : DataMarket
        Buyers and sellers.
    lengths : array_like of shape (n_sellers, n_prices)
        Schedules; row ``j`` does not matter.
    j : int
        The seller.

    Returns
    -------
    UniformDeviation
        Unpacks into ``(revenue, price, attained)``.

    Raises
    ------
    TypeError, ValueError
        If ``lengths`` is not a profile of the market, or there is no such seller.

    Notes
    -----
    O(N log N + n m K) with N the number of pairs of a buyer and a segment that is sold.

    References
    ----------
    .. [1] Ray Chaudhury, Garg, Sharma, Song. Equilibrium Pricing in Oligopolistic Data Markets. ICML 2026.
       arXiv:2608.14018.

    Examples
    --------
    The buyer takes the other dataset first unless this one is cheaper than 2.

    >>> from assay.games import DataMarket, best_uniform_deviation
    >>> market = DataMarket([3], [[2, 1]], price_grid=[[5], [1]])
    >>> revenue, price, attained = best_uniform_deviation(market, [[1], [1]], 0)
    >>> revenue, price, attained
    (2.0, 2.0, True)
    """
    check_market(market)
    return best_uniform(market, market.check_lengths(lengths), market.check_seller(j))


def best_uniform(market: DataMarket, lengths: Float[np.ndarray, "sellers prices"], seller: int) -> UniformDeviation:
    """As :func:`best_uniform_deviation`, of a profile that has been checked."""
    sold = (market.values, market.prices, lengths, *market.order, seller)
    where, level, slope, stops = deviation_events(market.budgets, market.weights, *sold)
    by_price = np.argsort(where, kind="stable")
    by_price = by_price[np.isfinite(where[by_price])]  # a tie beyond all numbers is none
    where, level, slope, stops = (column[by_price] for column in (where, level, slope, stops))
    if not where.any():
        return UniformDeviation(0.0, float(market.prices[seller, 0]), True)
    paying = stops.sum() - np.concatenate(([0], np.cumsum(stops)[:-1]))
    level_before = np.concatenate(([0.0], np.cumsum(level)[:-1]))
    slope_before = np.where(paying > 0, np.concatenate(([0.0], np.cumsum(slope)[:-1])) - slope.sum(), 0.0)
    value = level_before + slope_before * where
    highest = np.flatnonzero(value >= value.max() * (1.0 - _ROUNDING))

    def earned_at(price: float, undercut: bool) -> float:
        return float(market.weights @ np.minimum(left_at_price(market.budgets, *sold, price, undercut), price))

    # sums of falls have cancelled; the value is summed anew
    revenue = earned_at(float(where[highest[0]]), True)
    enough = revenue * (1.0 - _ROUNDING)
    for at in highest:  # several prices may have the supremum, and not the first of them attain it
        price = float(where[at])
        if earned_at(price, False) >= enough:
            return UniformDeviation(revenue, price, True)
        if paying[at] == 0:  # the revenue is constant below the tie
            middle = 0.5 * (float(where[at - 1]) + price)
            if earned_at(middle, False) >= enough:
                return UniformDeviation(revenue, middle, True)
    return UniformDeviation(revenue, float(where[highest[0]]), False)


@dataclass(frozen=True, eq=False)
class ScheduleResponse:
    """The best schedule that was found for one seller.

    Parameters
    ----------
    revenue : float
        What it earns: a lower bound on what the best schedule earns.
    prices : numpy.ndarray of shape (n_pieces,)
        Unit prices, increasing. The price just below a tie, where the best uniform price is not attained, counts as
        the tie with this seller served first.
    lengths : numpy.ndarray of shape (n_pieces,)
        Fractions of the dataset sold at them, with sum 1.
    """

    revenue: float
    prices: Float[np.ndarray, " pieces"]
    lengths: Float[np.ndarray, " pieces"]


def plc_best_response(
    market: DataMarket,
    lengths: ArrayLike,
    j: int,
    *,
    restarts: int = 8,
    rng: int | np.random.Generator | None = None,
) -> ScheduleResponse:
    """A good schedule of one seller against those of the others, by ascent along single segments.

    The exact problem is NP-hard, so the answer is a lower bound on what a deviation to a schedule can earn. It is never
    below the best uniform price.

    Parameters
    ----------
    market : DataMarket
        Buyers and sellers.
    lengths : array_like of shape (n_sellers, n_prices)
        Schedules; row ``j`` is one of the starts.
    j : int
        The seller.
    restarts : int, default=8
        Starts: the present schedule, the best uniform price, and random schedules.
    rng : int or numpy.random.Generator, optional
        For the random starts.

    Returns
    -------
    ScheduleResponse

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    At most a dozen prices are considered: those of the present schedule with the largest fractions, the best one of
    the grid, the best one of all, and others of the grid spread evenly. A step moves a fraction from all segments in
    proportion to one of them, as far as pays most; it costs O(n) times a constant.

    References
    ----------
    .. [1] Ray Chaudhury, Garg, Sharma, Song. Equilibrium Pricing in Oligopolistic Data Markets. ICML 2026.
       arXiv:2608.14018.

    Examples
    --------
    A hundred poor buyers spend their money on a cheap part of dataset 0, a rich one buys the expensive rest, too.

    >>> from assay.games import best_uniform_deviation, no_equilibrium_instance, plc_best_response
    >>> market = no_equilibrium_instance(100, price_grid=[[36, 86], [0.5, 1]])
    >>> schedules = [[0, 1], [1, 0]]
    >>> round(best_uniform_deviation(market, schedules, 0).revenue, 2)
    136.65
    >>> answer = plc_best_response(market, schedules, 0, rng=0)
    >>> round(answer.revenue, 2), answer.prices.round(2), answer.lengths.round(3)
    (184.65, array([36.65, 86.  ]), array([0.027, 0.973]))
    """
    check_market(market)
    profile, seller = market.check_lengths(lengths), market.check_seller(j)
    restarts = check_integer(restarts, "restarts", minimum=1)
    return best_schedule(market, profile, seller, restarts, as_generator(rng))


def best_schedule(
    market: DataMarket,
    lengths: Float[np.ndarray, "sellers prices"],
    seller: int,
    restarts: int,
    generator: np.random.Generator,
) -> ScheduleResponse:
    """As :func:`plc_best_response`, of arguments that have been checked."""
    money = leftovers(market.budgets, market.prices, lengths, *market.order, seller)
    n_prices = int(market.n_prices[seller])
    grid, present = market.prices[seller, :n_prices], lengths[seller, :n_prices]
    uniform = best_uniform(market, lengths, seller)
    earned = market.weights @ np.minimum(money[:, :n_prices], grid)
    kept = _chosen_prices(present, int(np.argmax(earned)))
    prices, left = grid[kept], money[:, kept]
    # Just below the tie of the best price of all, the seller is served first there.
    sold = (market.values, market.prices, lengths, *market.order, seller)
    left_at_best = left_at_price(market.budgets, *sold, uniform.price, not uniform.attained)
    position = int(np.searchsorted(prices, uniform.price))
    prices = np.insert(prices, position, uniform.price)
    left = np.insert(left, position, left_at_best, axis=1)
    start = np.insert(present[kept], position, 0.0)
    starts = [np.eye(prices.size)[position]]
    if start.sum() > 0:
        starts.append(start / start.sum())
    while len(starts) < restarts:
        starts.append(generator.dirichlet(np.full(prices.size, 0.5)))
    left, weights = np.ascontiguousarray(left), market.weights
    best_revenue, best_lengths = -1.0, start
    for one in starts[:restarts]:
        schedule = one.copy()
        revenue = float(_ascend(prices, left, weights, schedule, _MOST_POINTS, _MOST_SWEEPS))
        if revenue > best_revenue:
            best_revenue, best_lengths = revenue, schedule
    sold = best_lengths > 0
    return ScheduleResponse(best_revenue, prices[sold], best_lengths[sold])


def _chosen_prices(present: np.ndarray, best: int) -> np.ndarray:
    """Positions of the prices that are considered: the largest of the present schedule, the best one, and a spread."""
    largest = [int(k) for k in np.argsort(-present, kind="stable")[: _MOST_PRICES // 2] if present[k] > 0]
    chosen = {*largest, best}
    room = _MOST_PRICES - len(chosen)
    rest = np.array([k for k in range(present.size) if k not in chosen], dtype=int)
    if rest.size:
        chosen |= {int(k) for k in rest[np.linspace(0, rest.size - 1, min(room, rest.size)).astype(int)]}
    return np.array(sorted(chosen))


@njit(cache=True)
def _schedule_revenue(cumulated, left, weights):
    """Revenue of cumulated costs, where every buyer pays up to what it has left at the price that it stops at."""
    revenue = 0.0
    for i in range(weights.size):
        paid = 0.0
        for k in range(cumulated.size):
            if left[i, k] <= cumulated[k]:  # no later price adds anything: less is left there
                paid = max(paid, left[i, k])
                break
            paid = cumulated[k]
        revenue += weights[i] * paid
    return revenue


@njit(cache=True)
def _kinks(cumulated, change, left, lowest):
    """Fractions between ``lowest`` and 1 of a move along ``change`` at which the revenue may have a kink."""
    n_buyers, n_prices = left.shape
    found = np.empty(2 * n_buyers * n_prices + 2)
    found[0], found[1] = lowest, 1.0
    count = 2
    for k in range(n_prices):
        if change[k] == 0.0:
            continue
        for at in range(k, min(k + 2, n_prices)):
            for i in range(n_buyers):
                if left[i, at] > 0.0:
                    step = (left[i, at] - cumulated[k]) / change[k]
                    if lowest < step < 1.0:
                        found[count] = step
                        count += 1
    return np.sort(found[:count])


@njit(cache=True)
def _ascend(prices, left, weights, lengths, most_points, most_sweeps):
    """Improve a schedule in place and return its revenue.

    A move puts the fraction ``step`` of the dataset at one price and scales all other segments by ``1 - step``; a
    negative step takes from the segment and scales the others up.
    """
    n_prices = prices.size
    cumulated = np.cumsum(prices * lengths)
    revenue = _schedule_revenue(cumulated, left, weights)
    for _ in range(most_sweeps):
        before = revenue
        for k in range(n_prices):
            if lengths[k] >= 1.0:
                continue
            change = -cumulated
            change[k:] += prices[k]
            steps = _kinks(cumulated, change, left, -lengths[k] / (1.0 - lengths[k]))
            stride = max(1, steps.size // most_points)
            best_step = 0.0
            for index in range(0, steps.size, stride):
                trial = _schedule_revenue(cumulated + steps[index] * change, left, weights)
                if trial > revenue * (1.0 + 1e-12):
                    revenue, best_step = trial, steps[index]
            if best_step != 0.0:
                for other in range(n_prices):
                    lengths[other] *= 1.0 - best_step
                lengths[k] = max(0.0, lengths[k] + best_step)
                lengths /= lengths.sum()
                cumulated = np.cumsum(prices * lengths)
                revenue = _schedule_revenue(cumulated, left, weights)
        if revenue <= before * (1.0 + 1e-9):
            break
    return revenue
