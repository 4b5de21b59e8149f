r"""Uniform prices: one price for the whole of each dataset, as they are posted today.

The revenue of uniform prices jumps where buyers value two datasets equally per money, so there may be no stable
prices, and sellers who answer each other in turn go round for ever. The functions here say how far given prices are
from stability, against every other price and not only those of a grid, and play the answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.games.market_deviation import best_uniform
from assay.games.market_kernels import BEST, FIXED, WORST, uniform_revenues
from assay.games.market_model import DataMarket, check_market
from assay.games.market_standing import best_to_own
from assay.result import Result
from assay.validation import as_float_array, check_choice, check_integer, check_real

__all__ = ["UniformPricingResult", "approx_ratio_uniform", "uniform_best_response", "uniform_revenue"]

_TIES = {"fixed": FIXED, "worst": WORST, "best": BEST}


def uniform_revenue(market: DataMarket, prices: ArrayLike, *, ties: str = "fixed") -> Float[np.ndarray, ...]:
    """Revenue of every seller at uniform prices, on the grid or not.

    Parameters
    ----------
    market : DataMarket
        Buyers and sellers; its price grids do not matter.
    prices : array_like of shape (n_sellers,) or (n_vectors, n_sellers)
        Prices above 0, one vector or several.
    ties : {"fixed", "worst", "best"}, default="fixed"
        What a buyer does with datasets that it values equally per money: it takes the one of lower index first, or
        last (or first) the one of the seller whose revenue is asked for.

    Returns
    -------
    numpy.ndarray of the shape of ``prices``

    Raises
    ------
    TypeError, ValueError
        If the prices are not positive, or not one per seller.

    Notes
    -----
    O(n m^2) per vector for n buyers and m sellers, without sorting.

    Examples
    --------
    >>> from assay.games import no_equilibrium_instance, uniform_revenue
    >>> uniform_revenue(no_equilibrium_instance(10), [8.6, 0.7331])
    array([11.269,  7.331])
    """
    check_market(market)
    ties = check_choice(ties, "ties", _TIES)
    vectors = as_float_array(prices, "prices", ndim=(1, 2))
    n_sellers = market.values.shape[1]
    if vectors.shape[-1] != n_sellers:
        raise ValueError(f"prices must have one entry per seller ({n_sellers}), got shape {vectors.shape}")
    if vectors.min() <= 0:
        raise ValueError(f"prices must be greater than 0, got a minimum of {vectors.min():g}")
    batch = np.ascontiguousarray(np.atleast_2d(vectors))
    answer = uniform_revenues(market.budgets, market.weights, market.values, batch, _TIES[ties])
    return answer.reshape(vectors.shape)


def approx_ratio_uniform(market: DataMarket, prices: ArrayLike, *, ties: str = "worst") -> float:
    """Largest factor by which a seller gains with any other uniform price.

    Parameters
    ----------
    market : DataMarket
        Buyers and sellers; its price grids do not matter.
    prices : array_like of shape (n_sellers,)
        Uniform prices above 0.
    ties : {"worst", "fixed", "best"}, default="worst"
        How buyers resolve ties at ``prices``; a deviation is worth its supremum, so that ties do not matter there.

    Returns
    -------
    float
        At least 1; 1 exactly when the prices are stable; inf when a seller earns nothing and could earn something.

    Raises
    ------
    TypeError, ValueError
        If the prices are not positive, or not one per seller.

    Notes
    -----
    O(m N log N) with N the number of pairs of a buyer and a seller.

    References
    ----------
    .. [1] Ray Chaudhury, Garg, Sharma, Song. Equilibrium Pricing in Oligopolistic Data Markets. ICML 2026.
       arXiv:2608.14018.

    Examples
    --------
    >>> from assay.games import approx_ratio_uniform, no_equilibrium_instance
    >>> round(approx_ratio_uniform(no_equilibrium_instance(100), [86.0, 0.733]), 5)
    1.36426
    """
    check_market(market)
    vector = as_float_array(prices, "prices", ndim=1)
    own = uniform_revenue(market, vector, ties=ties)
    posted, lengths = _posted(market, vector)
    best = np.array([best_uniform(posted, lengths, j).revenue for j in range(vector.size)])
    return float(best_to_own(best, own).max())


def _posted(market: DataMarket, prices: np.ndarray) -> tuple[DataMarket, np.ndarray]:
    """The market in which these prices are the grids, and its only profile."""
    return market.with_prices([[price] for price in prices]), np.ones((prices.size, 1))


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class UniformPricingResult(Result):
    """Uniform prices after sellers have answered each other in turn.

    Parameters
    ----------
    prices : numpy.ndarray of shape (n_sellers,)
        The last ones.
    revenue : numpy.ndarray of shape (n_sellers,)
        What they earn.
    ratio : float
        Largest factor by which a seller still gains, with any uniform price (``method="exact"``) or one of its grid.
    best_prices : numpy.ndarray of shape (n_sellers,)
        The prices with the smallest ratio of all rounds.
    best_ratio : float
        Their ratio.
    settled : bool
        Whether no seller wanted to move in the last round.
    undercut : bool
        Whether a best answer was not attained in the last round: a price just below a tie stands for it.
    cycle_length : int
        Rounds after which the same prices come back; 0 if none came back.
    n_rounds : int
        Rounds that were played.
    certificates : tuple of Certificate
        ``ratio`` against 1, from the final prices: it fails where there is nothing to settle on.
    history : dict of str to numpy.ndarray
        Columns ``round``, ``prices``, ``ratio`` and ``gain``, the largest factor that a move gained in that round.
    """

    prices: Float[np.ndarray, " sellers"]
    revenue: Float[np.ndarray, " sellers"]
    ratio: float
    best_prices: Float[np.ndarray, " sellers"]
    best_ratio: float
    settled: bool
    undercut: bool
    cycle_length: int
    n_rounds: int


def uniform_best_response(
    market: DataMarket,
    prices: ArrayLike | None = None,
    *,
    method: str = "exact",
    max_rounds: int = 500,
    tol: float = 1e-9,
    undercut: float = 1e-6,
) -> UniformPricingResult:
    """Let sellers answer each other's uniform prices in turn, each with its best one.

    Parameters
    ----------
    market : DataMarket
        Buyers and sellers.
    prices : array_like of shape (n_sellers,), optional
        Where to start; by default the largest price of each grid. With ``method="grid"`` they must be on the grids.
    method : {"exact", "grid"}, default="exact"
        Whether an answer may be any price above 0, or one of the seller's grid.
    max_rounds : int, default=500
        Rounds at most; every seller moves once in each.
    tol : float, default=1e-9
        A seller moves when it gains a larger share than this.
    undercut : float, default=1e-6
        By which share a price stays below a tie where the supremum is not attained.

    Returns
    -------
    UniformPricingResult

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    A round costs m evaluations of one seller's deviations and one of all. It stops early when nobody moves, or when the
    prices at the end of a round have been there before: the answers are a function of the prices, so they go
    round for ever.

    Examples
    --------
    >>> from assay.games import no_equilibrium_instance, uniform_best_response
    >>> result = uniform_best_response(no_equilibrium_instance(100), method="grid")
    >>> result.settled, result.cycle_length > 1
    (False, True)
    """
    check_market(market)
    method = check_choice(method, "method", ("exact", "grid"))
    max_rounds = check_integer(max_rounds, "max_rounds", minimum=1)
    tol = check_real(tol, "tol", minimum=0)
    undercut = check_real(undercut, "undercut", above=0, below=1)
    present = _start(market, prices, on_grid=method == "grid")
    answers = _ExactAnswers(market, undercut) if method == "exact" else _GridAnswers(market)
    rounds: list[tuple[int, np.ndarray, float, float]] = []
    seen = {present.tobytes(): 0}
    best_prices, best_ratio = present.copy(), answers.ratio(present)
    settled, cycle_length, undercutting = False, 0, False
    for number in range(1, max_rounds + 1):
        largest_gain, undercutting = 1.0, False
        for j in range(present.size):
            own, best, price, attained = answers.answer(present, j)
            gain = float(best_to_own(np.array(best), np.array(own)))
            # A price that stays below a tie earns up to the undercut less than the supremum.
            if gain > (1.0 + tol if attained else (1.0 + tol) / (1.0 - 2.0 * undercut)):
                present[j] = price
                undercutting |= not attained
                largest_gain = max(largest_gain, gain)
        ratio = answers.ratio(present)
        rounds.append((number, present.copy(), ratio, largest_gain))
        if ratio < best_ratio:
            best_prices, best_ratio = present.copy(), ratio
        settled = largest_gain == 1.0
        earlier = seen.setdefault(present.tobytes(), number)
        cycle_length = 0 if settled else number - earlier
        if settled or cycle_length:
            break
    ratio = answers.ratio(present)
    against = "any uniform price" if method == "exact" else "a uniform price of the grid"
    bound = (1.0 + tol) / (1.0 - 2.0 * undercut) if method == "exact" else 1.0 + tol
    columns = zip(("round", "prices", "ratio", "gain"), zip(*rounds, strict=True), strict=True)
    return UniformPricingResult(
        prices=present,
        revenue=uniform_revenue(market, present),
        ratio=ratio,
        best_prices=best_prices,
        best_ratio=best_ratio,
        settled=settled,
        undercut=undercutting,
        cycle_length=cycle_length,
        n_rounds=len(rounds),
        certificates=(Certificate(f"largest factor gained with {against}", ratio, bound),),
        history={name: np.array(column) for name, column in columns},
    )


def _start(market: DataMarket, prices: ArrayLike | None, on_grid: bool) -> np.ndarray:
    n_sellers = market.values.shape[1]
    if prices is None:
        return market.prices[np.arange(n_sellers), market.n_prices - 1].copy()
    vector = as_float_array(prices, "prices", ndim=1).copy()
    if vector.shape != (n_sellers,):
        raise ValueError(f"prices must have one entry per seller ({n_sellers}), got {vector.size}")
    if vector.min() <= 0:
        raise ValueError(f"prices must be greater than 0, got a minimum of {vector.min():g}")
    if on_grid and not (market.prices == vector[:, None]).any(axis=1).all():
        raise ValueError(f"prices must be on the grids of the sellers, got {vector.tolist()}")
    return vector


class _ExactAnswers:
    """Best answers among all prices."""

    def __init__(self, market: DataMarket, undercut: float) -> None:
        self.market, self.undercut = market, undercut

    def answer(self, prices: np.ndarray, seller: int) -> tuple[float, float, float, bool]:
        """Present revenue, best revenue, a price that attains or approaches it, and whether it attains it."""
        posted, lengths = _posted(self.market, prices)
        best = best_uniform(posted, lengths, seller)
        own = float(uniform_revenue(self.market, prices)[seller])
        return own, best.revenue, best.price if best.attained else best.price * (1.0 - self.undercut), best.attained

    def ratio(self, prices: np.ndarray) -> float:
        return approx_ratio_uniform(self.market, prices, ties="fixed")


class _GridAnswers:
    """Best answers on the grids."""

    def __init__(self, market: DataMarket) -> None:
        self.market = market

    def _standing(self, prices: np.ndarray):
        chosen = np.nanargmin(np.abs(self.market.prices - prices[:, None]), axis=1)
        return self.market.standing(self.market.uniform_lengths(chosen))

    def answer(self, prices: np.ndarray, seller: int) -> tuple[float, float, float, bool]:
        """Present revenue, best revenue, its lowest price, and True."""
        standing = self._standing(prices)
        earned = standing.deviation[seller, : self.market.n_prices[seller]]
        best = int(np.argmax(earned >= earned.max() * (1.0 - 1e-12)))
        return float(standing.revenue[seller]), float(earned[best]), float(self.market.prices[seller, best]), True

    def ratio(self, prices: np.ndarray) -> float:
        return self._standing(prices).incentive_ratio
