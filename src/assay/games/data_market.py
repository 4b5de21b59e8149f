r"""Prices for datasets that are stable up to a known factor.

Data is not used up by a sale, so sellers compete for the budgets of buyers and not for goods, and uniform prices
undercut each other for ever. A seller that offers fractions of its dataset at increasing unit prices, a convex and
piecewise linear schedule, has no reason to jump. Here all sellers move a little in every round towards the uniform
price that would pay best; the profile that no seller can better by much with a uniform price is kept, and what it
promises is computed from it: at a fixed point nobody gains more than a factor of two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from assay.games.market_deviation import best_schedule
from assay.games.market_model import DataMarket, check_market, spending_graph
from assay.games.market_standing import best_to_own
from assay.games.pricing_certificate import assess
from assay.games.pricing_dynamics import DYNAMICS
from assay.result import Result
from assay.validation import as_generator, check_choice, check_integer, check_real, warn_not_converged

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["PricingResult", "pruned", "solve_pricing"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PricingResult(Result):
    """Price schedules of all sellers, and how stable they are.

    Parameters
    ----------
    lengths : numpy.ndarray of shape (n_sellers, n_prices)
        Fraction of each dataset that is sold at each unit price; rows sum to 1.
    prices : numpy.ndarray of shape (n_sellers, n_prices)
        The unit prices, padded with nan where grids differ in length.
    revenue : numpy.ndarray of shape (n_sellers,)
        What each seller earns.
    incentive_ratio : float
        Largest factor by which a seller gains with a uniform price of its grid.
    any_price_ratio : float
        The same for any uniform price above 0.
    plc_ratio : float
        A lower bound on the same for any schedule: the largest factor that was found. nan if none was looked for.
    fixed_point_residual : float
        By what share the best price earns more than a random price of the schedule, for the worst seller.
    lemma_min_ratio : float
        Smallest ratio of the revenue of a schedule to that of its random price at all profiles that were visited.
    pieces_per_seller : numpy.ndarray of shape (n_sellers,)
        Segments of at least ``prune``.
    buyer_utility : numpy.ndarray of shape (n_buyers,)
        Value of what each buyer gets.
    spend : numpy.ndarray of shape (n_buyers, n_sellers)
        Money that flows, times the weights of buyers.
    buyer_names, seller_names : tuple of str
        Those of the market.
    n_rounds : int
        Rounds that were played.
    best_round : int
        The round after which the schedules were as returned (before short segments were removed).
    converged : bool
        Whether schedules changed by at most ``tol`` in the last round.
    certificates : tuple of Certificate
        The incentive ratio against 2, and against 2 (1 + residual); the ratio for any price against what the grid says
        about it; and the smallest ratio of the lemma against 1/2.
    history : dict of str to numpy.ndarray
        Columns ``round``, ``ratio``, ``best_ratio``, ``residual``, ``change`` (of a fraction, in the last round before)
        and ``seconds``.
    """

    lengths: Float[np.ndarray, "sellers prices"]
    prices: Float[np.ndarray, "sellers prices"]
    revenue: Float[np.ndarray, " sellers"]
    incentive_ratio: float
    any_price_ratio: float
    plc_ratio: float
    fixed_point_residual: float
    lemma_min_ratio: float
    pieces_per_seller: Int[np.ndarray, " sellers"]
    buyer_utility: Float[np.ndarray, " buyers"]
    spend: Float[np.ndarray, "buyers sellers"]
    buyer_names: tuple[str, ...]
    seller_names: tuple[str, ...]
    n_rounds: int
    best_round: int
    converged: bool

    def to_networkx(self) -> nx.Graph:
        """Bipartite graph of who buys from whom.

        Returns
        -------
        networkx.Graph
            Nodes ``("buyer", name)`` and ``("seller", name)``; the money is the edge attribute ``spend``.
        """
        return spending_graph(self.spend, self.buyer_names, self.seller_names)


def solve_pricing(
    market: DataMarket,
    dynamics: str = "inertial",
    lr: float = 0.1,
    tol: float = 1e-4,
    max_rounds: int = 1000,
    check_every: int = 5,
    prune: float = 1e-2,
    rng: int | np.random.Generator | None = None,
    *,
    plc_restarts: int = 8,
    callback: Callable[[Mapping[str, Any]], Any] | None = None,
) -> PricingResult:
    r"""Find price schedules that no seller can better by much with a uniform price.

    Seller ``j`` sells the fraction ``l_jk`` of its dataset at unit price ``p_jk``. In every round all sellers look at
    their revenue with the whole dataset at each single price, ``r_j(e_k, l_{-j})``, and move towards the best. The
    profile with the smallest ``max_j max_k r_j(e_k, l_{-j}) / r_j(l)`` of those that were checked is returned.

    Parameters
    ----------
    market : DataMarket
        Buyers with budgets and values, sellers with price grids.
    dynamics : {"inertial", "fictitious", "regret"}, default="inertial"
        Move a share ``lr`` to the best price; or a share that falls as 1 / (t + 1), which may cycle; or match
        regrets and answer with the mean schedule.
    lr : float, default=0.1
        Share of the inertial dynamics, in (0, 1].
    tol : float, default=1e-4
        Largest change of a fraction in a round at which schedules count as settled.
    max_rounds : int, default=1000
        Rounds at most.
    check_every : int, default=5
        Rounds between two evaluations of the answer.
    prune : float, default=0.01
        At the end, segments shorter than this are removed and the others scaled up, if the ratio does not grow by it:
        under the inertial dynamics no fraction ever vanishes.
    rng : int or numpy.random.Generator, optional
        For the starts of the search for better schedules.
    plc_restarts : int, default=8
        Starts of that search for each seller; 0 does without ``plc_ratio``.
    callback : callable, optional
        Called with a dict of the columns of ``history`` after every evaluation; a true answer ends the run.

    Returns
    -------
    PricingResult

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If schedules still changed by more than ``tol`` after ``max_rounds``. The certificates say whether that matters.

    Notes
    -----
    O(n m K) per round for n buyers, m sellers and K prices, after sorting O(n m K log(m K)) once. There is no proof
    that any of the dynamics converges; the certificates are evaluated on the answer and assume nothing beyond the
    model. They cover deviations to uniform prices; for schedules there is the lower bound ``plc_ratio`` only.

    References
    ----------
    .. [1] Ray Chaudhury, Garg, Sharma, Song. Equilibrium Pricing in Oligopolistic Data Markets. ICML 2026.
       arXiv:2608.14018.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games import DataMarket, solve_pricing
    >>> values = np.random.default_rng(0).random((10, 10))
    >>> market = DataMarket(np.ones(10), values, price_grid=np.arange(1, 11) / 10)
    >>> result = solve_pricing(market, rng=0)
    >>> result.converged, result.certified, round(result.incentive_ratio, 2)
    (True, True, 1.0)
    """
    check_market(market)
    dynamics = check_choice(dynamics, "dynamics", DYNAMICS)
    lr = check_real(lr, "lr", above=0, maximum=1)
    tol = check_real(tol, "tol", minimum=0)
    max_rounds = check_integer(max_rounds, "max_rounds", minimum=1)
    check_every = check_integer(check_every, "check_every", minimum=1)
    prune = check_real(prune, "prune", minimum=0, below=1)
    plc_restarts = check_integer(plc_restarts, "plc_restarts", minimum=0)
    generator = as_generator(rng)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable or None, got {type(callback).__name__}")

    rule = DYNAMICS[dynamics](_even(market), lr)
    search = _Search(market)
    search.check(rule.profile, 0, math.nan)
    converged, change, stopped, number = False, math.nan, False, 0
    for number in range(1, max_rounds + 1):
        standing = market.standing(rule.play)
        search.lemma_ratio = min(search.lemma_ratio, standing.lemma_ratio)
        change = rule.step(standing.deviation)
        converged = change <= tol
        if converged or number % check_every == 0 or number == max_rounds:
            search.check(rule.profile, number, change)
            stopped = callback is not None and bool(callback(search.rows[-1]))
        if converged or stopped:
            break
    lengths = search.best
    for profile in (rule.profile, search.best):
        short = pruned(profile, prune)
        if market.standing(short).incentive_ratio <= market.standing(lengths).incentive_ratio:
            lengths = short
            search.best_round = search.best_round if profile is search.best else number
    if not converged and not stopped:
        warn_not_converged("solve_pricing", number, change, tol)
    return _result(market, lengths, search, number, converged, prune, plc_restarts, generator)


def pruned(lengths: Float[np.ndarray, "sellers prices"], shortest: float) -> Float[np.ndarray, "sellers prices"]:
    """Schedules without segments below ``shortest``, the others scaled up; the longest always stays.

    Parameters
    ----------
    lengths : numpy.ndarray of shape (n_sellers, n_prices)
        Schedules.
    shortest : float
        Segments of at least this length are kept.

    Returns
    -------
    numpy.ndarray of shape (n_sellers, n_prices)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.data_market import pruned
    >>> pruned(np.array([[0.005, 0.995]]), 0.01)
    array([[0., 1.]])
    """
    kept = np.where((lengths >= shortest) | (lengths == lengths.max(axis=1, keepdims=True)), lengths, 0.0)
    return kept / kept.sum(axis=1, keepdims=True)


class _Search:
    """The best profile so far, and the record of those that were checked."""

    def __init__(self, market: DataMarket) -> None:
        self.market = market
        self.started = time.perf_counter()
        self.rows: list[dict[str, float]] = []
        self.best = _even(market)
        self.best_ratio, self.best_round, self.lemma_ratio = math.inf, 0, math.inf

    def check(self, profile: np.ndarray, number: int, change: float) -> None:
        standing = self.market.standing(profile)
        ratio = standing.incentive_ratio
        self.lemma_ratio = min(self.lemma_ratio, standing.lemma_ratio)
        if ratio < self.best_ratio:
            self.best, self.best_ratio, self.best_round = profile.copy(), ratio, number
        self.rows.append(
            {
                "round": number,
                "ratio": ratio,
                "best_ratio": self.best_ratio,
                "residual": standing.fixed_point_residual,
                "change": change,
                "seconds": time.perf_counter() - self.started,
            }
        )


def _even(market: DataMarket) -> np.ndarray:
    """The same fraction at every price of a seller."""
    return np.where(np.isfinite(market.prices), 1.0 / market.n_prices[:, None], 0.0)


def _result(
    market: DataMarket,
    lengths: np.ndarray,
    search: _Search,
    n_rounds: int,
    converged: bool,
    prune: float,
    plc_restarts: int,
    generator: np.random.Generator,
) -> PricingResult:
    assessed = assess(market, lengths, search.lemma_ratio)
    plc_ratio = math.nan
    if plc_restarts:
        sellers = range(market.n_prices.size)
        found = [best_schedule(market, lengths, j, plc_restarts, generator).revenue for j in sellers]
        plc_ratio = float(best_to_own(np.array(found), assessed.revenue).max())
    return PricingResult(
        lengths=lengths,
        prices=market.prices.copy(),
        revenue=assessed.revenue,
        incentive_ratio=assessed.incentive_ratio,
        any_price_ratio=assessed.any_price_ratio,
        plc_ratio=plc_ratio,
        fixed_point_residual=assessed.fixed_point_residual,
        lemma_min_ratio=assessed.lemma_ratio,
        pieces_per_seller=np.count_nonzero(pruned(lengths, prune), axis=1),
        buyer_utility=market.buyer_utility(lengths),
        spend=market.weights[:, None] * market.spend(lengths).sum(axis=2),
        buyer_names=market.buyer_names,
        seller_names=market.seller_names,
        n_rounds=n_rounds,
        best_round=search.best_round,
        converged=converged,
        certificates=assessed.certificates,
        history={name: np.array([row[name] for row in search.rows]) for name in search.rows[0]},
    )
