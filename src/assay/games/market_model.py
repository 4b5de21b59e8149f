r"""Data markets: sellers of datasets that a sale does not use up, and buyers with budgets.

A buyer has a budget and a value for every dataset, linear in the fraction that is bought, and spends the budget where
it buys most value: money has no other use. A seller sets a price schedule, convex and piecewise linear: fractions of
the dataset at increasing unit prices from a grid. One fraction at one price is uniform pricing. Because data is not
used up, sellers compete for budgets only, and uniform prices may have no stable point at all; schedules always have one
that no seller can better by more than a factor of two with a uniform price.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.games.market_kernels import purchase_order, spending, walk
from assay.games.market_prices import as_grids
from assay.games.market_standing import Standing
from assay.validation import as_distribution, as_float_array, check_integer

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["DataMarket", "check_market", "spending_graph"]

# Money of a buyer, times weights, must be finite.
_LARGEST = 1e150


class DataMarket:
    r"""Buyers with budgets, sellers of datasets, and what is bought at which prices.

    Buyer ``i`` with budget ``b_i`` solves the fractional knapsack ``max sum_j tau_ij z_j`` over ``z`` in
    ``[0, 1]^m`` with cost at most ``b_i``, and buys nothing of what has no value to it. Seller ``j`` sells the fraction
    ``lengths[j, k]`` of its dataset at unit price ``prices[j, k]``. A buyer takes segments in decreasing order
    of ``tau_ij / p_jk`` until the budget ends; equal ones (to a few roundings) by seller index, then by price.

    Parameters
    ----------
    budgets : array_like of shape (n_buyers,)
        Money of each buyer, 0 or more.
    values : array_like of shape (n_buyers, n_sellers)
        Value of each whole dataset to each buyer, 0 or more, in any unit that a buyer likes.
    weights : array_like of shape (n_buyers,), optional
        How many such buyers there are, any real number from 0; 1 each by default.
    price_grid : array_like of shape (n_prices,) or sequence of such, optional
        Unit prices that a seller may use, increasing: one grid for all sellers, or one per seller. By default
        ``geometric_grid(0.02, 1e-3 * max(budgets), max(budgets))``.
    seller_names, buyer_names : sequence of str, optional
        By default ``"seller 0"``, ``"buyer 0"`` and so on.

    Attributes
    ----------
    budgets, values, weights : numpy.ndarray
        As given, in float64. They and the prices are read-only: another market is another object.
    prices : numpy.ndarray of shape (n_sellers, n_prices)
        Grids of the sellers, padded with nan where one is shorter than the longest.
    n_prices : numpy.ndarray of shape (n_sellers,)
        Length of each grid.

    Raises
    ------
    TypeError, ValueError
        If a budget, value or weight is negative or not finite, a grid is empty, not positive or not increasing, or
        shapes do not fit.

    Notes
    -----
    The order of segments is sorted at the first use, O(n m K log(m K)) for n buyers, m sellers and K prices; every
    evaluation after that is one walk, O(n m K), and so is what all sellers would earn at all of their prices. Memory
    O(n m K).

    References
    ----------
    .. [1] Ray Chaudhury, Garg, Sharma, Song. Equilibrium Pricing in Oligopolistic Data Markets. ICML 2026.
       arXiv:2608.14018.

    Examples
    --------
    >>> from assay.games import DataMarket
    >>> market = DataMarket([1, 2], [[2, 1], [1, 3]], price_grid=[0.5, 1, 2])
    >>> schedules = [[0.5, 0.5, 0], [0, 1, 0]]
    >>> market.revenue(schedules), market.deviation_revenue(schedules, 0)
    (array([1.5 , 1.25]), array([1., 2., 2.]))
    """

    def __init__(
        self,
        budgets: ArrayLike,
        values: ArrayLike,
        weights: ArrayLike | None = None,
        price_grid: ArrayLike | Sequence[ArrayLike] | None = None,
        seller_names: Sequence[str] | None = None,
        buyer_names: Sequence[str] | None = None,
    ) -> None:
        self.budgets = _non_negative(budgets, "budgets", 1)
        self.values = _non_negative(values, "values", 2)
        n_buyers = self.budgets.size
        if self.values.shape[0] != n_buyers:
            raise ValueError(f"values must have one row per budget ({n_buyers}), got shape {self.values.shape}")
        self.weights = np.ones(n_buyers) if weights is None else _non_negative(weights, "weights", 1)
        if self.weights.size != n_buyers:
            raise ValueError(f"weights must have one entry per budget ({n_buyers}), got {self.weights.size}")
        n_sellers = self.values.shape[1]
        self.prices, self.n_prices = as_grids(price_grid, n_sellers, float(self.budgets.max()))
        for array in (self.budgets, self.values, self.weights, self.prices, self.n_prices):
            array.setflags(write=False)  # the order of segments is kept
        self.seller_names = _as_names(seller_names, "seller", n_sellers)
        self.buyer_names = _as_names(buyer_names, "buyer", n_buyers)

    def __repr__(self) -> str:
        return f"DataMarket({self.budgets.size} buyers, {self.prices.shape[0]} sellers, {self.prices.shape[1]} prices)"

    @classmethod
    def from_csv(
        cls, path: str | os.PathLike[str], *, price_grid: ArrayLike | Sequence[ArrayLike] | None = None
    ) -> DataMarket:
        r"""Read a market from a long csv file with columns buyer, seller, value, and optionally budget and weight.

        Parameters
        ----------
        path : path
            A row per buyer and seller, with a header; pairs that are missing have value 0. Budget and weight, 1 where
            the column is missing, are repeated in every row of a buyer.
        price_grid : array_like, optional
            As for the constructor.

        Returns
        -------
        DataMarket
            Buyers and sellers in order of appearance.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is larger than 2 GiB, is no such table, has a pair twice, or two budgets or weights of one buyer.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> from assay.games import DataMarket
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "market.csv"
        >>> _ = path.write_text("buyer,seller,value,budget\nann,news,2,5\nann,maps,1,5\nbob,maps,3,4\n")
        >>> market = DataMarket.from_csv(path)
        >>> market.buyer_names, market.values.tolist(), market.budgets.tolist()
        (('ann', 'bob'), [[2.0, 1.0], [0.0, 3.0]], [5.0, 4.0])
        """
        from assay.games.market_sources import read_market

        return cls(**read_market(path), price_grid=price_grid)

    @classmethod
    def from_models(
        cls,
        X_shards: Sequence[ArrayLike],
        tasks: Sequence[tuple[Sequence[ArrayLike], ArrayLike, ArrayLike]],
        budgets: ArrayLike,
        scorer: Callable[[np.ndarray, np.ndarray], float] | None = None,
        *,
        estimator: Any = None,
        rescale: bool = True,
        **options: Any,
    ) -> DataMarket:
        """Values of datasets from what models trained on them achieve.

        ``values[i, j]`` is the error of a constant guess (the commonest label of the shard) less that of a classifier
        trained on shard ``j`` for task ``i``, both on the task's test records, and 0 when that is negative.

        Parameters
        ----------
        X_shards : sequence of array_like of shape (n_records, n_features)
            Records of each seller.
        tasks : sequence of (labels, X_test, y_test)
            For each buyer: a vector of labels for every shard, and test records with their labels.
        budgets : array_like of shape (n_tasks,)
            Money of each buyer.
        scorer : callable, optional
            ``scorer(y_true, y_predicted)`` is an error, a finite number, smaller is better; by default the variance of
            ``y_true - y_predicted``, for labels that are numbers.
        estimator : scikit-learn classifier, optional
            Cloned for every fit; by default a logistic regression.
        rescale : bool, default=True
            Whether to divide all values by the largest, which changes no purchase.
        **options
            Further arguments of the constructor.

        Returns
        -------
        DataMarket

        Raises
        ------
        TypeError, ValueError
            If shards, labels and tasks do not fit together.

        Examples
        --------
        >>> import numpy as np
        >>> from assay.games import DataMarket
        >>> x = np.linspace(-1, 1, 40)[:, None]
        >>> good, bad = (x[:, 0] > 0).astype(int), (abs(x[:, 0]) > 0.7).astype(int)
        >>> market = DataMarket.from_models([x, x], [([good, bad], x, good)], [1.0])
        >>> market.values.tolist()
        [[1.0, 0.0]]
        """
        from assay.games.market_sources import model_values

        return cls(budgets, model_values(X_shards, tasks, scorer, estimator, rescale), **options)

    def revenue(self, lengths: ArrayLike) -> Float[np.ndarray, " sellers"]:
        """What each seller earns.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            Fraction of each dataset at each of its prices; rows sum to 1 (within 1e-8).

        Returns
        -------
        numpy.ndarray of shape (n_sellers,)
        """
        return self.evaluate(lengths).revenue

    def evaluate(self, lengths: ArrayLike) -> Standing:
        """Revenue, revenue of all deviations to uniform prices, and of a random price, in one walk over the buyers.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            As in :meth:`revenue`.

        Returns
        -------
        Standing
        """
        return self.standing(self.check_lengths(lengths))

    def deviation_revenue(self, lengths: ArrayLike, j: int) -> Float[np.ndarray, " own_prices"]:
        """What seller ``j`` would earn with its whole dataset at each of its prices, others staying where they are.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            As in :meth:`revenue`; row ``j`` does not matter.
        j : int
            The seller.

        Returns
        -------
        numpy.ndarray of shape (n_prices[j],)
        """
        j = self.check_seller(j)
        return self.evaluate(lengths).deviation[j, : self.n_prices[j]]

    def incentive_ratio(self, lengths: ArrayLike) -> float:
        """Largest factor by which any seller gains with a uniform price of its grid.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            As in :meth:`revenue`.

        Returns
        -------
        float
            1 or less at an equilibrium (a schedule may earn more than any uniform price); inf when a seller earns
            nothing and could earn something.
        """
        return self.evaluate(lengths).incentive_ratio

    def spend(self, lengths: ArrayLike) -> Float[np.ndarray, "buyers sellers prices"]:
        """Money that one buyer of each kind pays for each segment.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            As in :meth:`revenue`.

        Returns
        -------
        numpy.ndarray of shape (n_buyers, n_sellers, n_prices)
        """
        return spending(self.budgets, self.prices, self.check_lengths(lengths), *self.order)

    def purchases(self, lengths: ArrayLike) -> Float[np.ndarray, "buyers sellers prices"]:
        """Fraction of each dataset that each buyer takes from each segment.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            As in :meth:`revenue`.

        Returns
        -------
        numpy.ndarray of shape (n_buyers, n_sellers, n_prices)
        """
        lengths = self.check_lengths(lengths)
        paid = spending(self.budgets, self.prices, lengths, *self.order)
        cost = np.where(lengths > 0, self.prices * lengths, 0.0)  # 0 also where a fraction is next to none
        return np.where(cost > 0, lengths * (paid / np.where(cost > 0, cost, 1.0)), 0.0)

    def buyer_utility(self, lengths: ArrayLike) -> Float[np.ndarray, " buyers"]:
        """Value of what each buyer takes.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            As in :meth:`revenue`.

        Returns
        -------
        numpy.ndarray of shape (n_buyers,)
        """
        return np.einsum("ij,ijk->i", self.values, self.purchases(lengths))

    def price_function(self, lengths: ArrayLike, j: int) -> tuple[Callable[[ArrayLike], Any], np.ndarray]:
        """The schedule of a seller: what a fraction of its dataset costs, convex and piecewise linear.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            As in :meth:`revenue`.
        j : int
            The seller.

        Returns
        -------
        cost : callable
            From a fraction in [0, 1], or an array of them, to money.
        kinks : numpy.ndarray of shape (n_pieces + 1, 2)
            Fraction and cost where pieces begin and end, from (0, 0) to (1, cost of the whole dataset).
        """
        j = self.check_seller(j)
        own = self.check_lengths(lengths)[j]
        sold = np.flatnonzero(own > 0)
        fractions = np.concatenate(([0.0], np.cumsum(own[sold])))
        fractions[-1] = 1.0
        costs = np.concatenate(([0.0], np.cumsum(own[sold] * self.prices[j, sold])))

        def cost(fraction: ArrayLike) -> Any:
            x = as_float_array(fraction, "fraction", ndim=(0, 1, 2))
            if x.min() < 0 or x.max() > 1:
                raise ValueError(f"fraction must be in [0, 1], got {float(x.min()):g} to {float(x.max()):g}")
            answer = np.interp(x, fractions, costs)
            return float(answer) if x.ndim == 0 else answer

        return cost, np.column_stack((fractions, costs))

    def uniform_lengths(self, indices: ArrayLike) -> Float[np.ndarray, "sellers prices"]:
        """The profile in which every seller asks one price of its grid.

        Parameters
        ----------
        indices : array_like of int of shape (n_sellers,)
            Position of each seller's price in its grid.

        Returns
        -------
        numpy.ndarray of shape (n_sellers, n_prices)
        """
        chosen = np.asarray(indices)
        n_sellers = self.n_prices.size
        if chosen.shape != (n_sellers,) or chosen.dtype.kind not in "iu":
            raise ValueError(f"indices must be {n_sellers} integers, got {chosen.dtype} of shape {chosen.shape}")
        if (chosen < 0).any() or (chosen >= self.n_prices).any():
            raise ValueError(f"indices must be from 0 and below n_prices {self.n_prices.tolist()}, got {indices!r}")
        lengths = np.zeros(self.prices.shape)
        lengths[np.arange(n_sellers), chosen] = 1.0
        return lengths

    def with_prices(self, price_grid: ArrayLike | Sequence[ArrayLike]) -> DataMarket:
        """The same buyers and sellers with other price grids.

        Parameters
        ----------
        price_grid : array_like of shape (n_prices,) or sequence of such
            As for the constructor.

        Returns
        -------
        DataMarket
        """
        return DataMarket(self.budgets, self.values, self.weights, price_grid, self.seller_names, self.buyer_names)

    def to_networkx(self, lengths: ArrayLike) -> nx.Graph:
        """Bipartite graph of who buys from whom.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            As in :meth:`revenue`.

        Returns
        -------
        networkx.Graph
            Nodes ``("buyer", name)`` and ``("seller", name)``, an edge where money flows, with its amount (times the
            weight of the buyer) as the attribute ``spend``.
        """
        spend = self.weights[:, None] * self.spend(lengths).sum(axis=2)
        return spending_graph(spend, self.buyer_names, self.seller_names)

    @functools.cached_property
    def order(self) -> tuple[np.ndarray, np.ndarray]:
        """Segments of every buyer, the best first, and how many of them have a value."""
        return purchase_order(self.values, self.prices)

    def standing(self, lengths: Float[np.ndarray, "sellers prices"]) -> Standing:
        """As :meth:`evaluate`, of a profile that has been checked."""
        revenue, deviation = walk(self.budgets, self.weights, self.prices, lengths, *self.order)
        return Standing(revenue, deviation, np.einsum("jk,jk->j", lengths, deviation))

    def check_lengths(self, lengths: ArrayLike) -> Float[np.ndarray, "sellers prices"]:
        """Check that every row is a distribution over the prices of its seller.

        Parameters
        ----------
        lengths : array_like of shape (n_sellers, n_prices)
            What a user passed.

        Returns
        -------
        numpy.ndarray of shape (n_sellers, n_prices)

        Raises
        ------
        TypeError, ValueError
            If it is not.
        """
        profile = as_float_array(lengths, "lengths", ndim=2)
        if profile.shape != self.prices.shape:
            raise ValueError(
                f"lengths must have a row per seller and a column per price, {self.prices.shape}, got {profile.shape}"
            )
        rows = [as_distribution(row, f"lengths[{j}]") for j, row in enumerate(profile)]
        checked = np.array(rows)
        if checked[np.isnan(self.prices)].any():
            raise ValueError("lengths must be 0 beyond the grid of a seller")
        return checked

    def check_seller(self, j: int) -> int:
        """Check the index of a seller."""
        index = check_integer(j, "j", minimum=0)
        if index >= self.n_prices.size:
            raise ValueError(f"j must be below the number of sellers, {self.n_prices.size}, got {index}")
        return index


def check_market(market: DataMarket) -> None:
    """Refuse what is not a market."""
    if not isinstance(market, DataMarket):
        raise TypeError(f"market must be a DataMarket, got {type(market).__name__}")


def spending_graph(spend: np.ndarray, buyer_names: Sequence[str], seller_names: Sequence[str]) -> nx.Graph:
    """Bipartite graph with the money that flows from buyers to sellers as the edge attribute ``spend``."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from((("buyer", name) for name in buyer_names), bipartite=0)
    graph.add_nodes_from((("seller", name) for name in seller_names), bipartite=1)
    for i, j in zip(*np.nonzero(spend), strict=True):
        graph.add_edge(("buyer", buyer_names[i]), ("seller", seller_names[j]), spend=float(spend[i, j]))
    return graph


def _non_negative(array: ArrayLike, name: str, ndim: int) -> np.ndarray:
    numbers = as_float_array(array, name, ndim=ndim).copy()
    if numbers.min() < 0:
        raise ValueError(f"{name} must be 0 or more, got a minimum of {numbers.min():g}")
    if name != "values" and numbers.max() > _LARGEST:
        raise ValueError(f"{name} must be at most {_LARGEST:g}, got {numbers.max():g}")
    return numbers


def _as_names(names: Sequence[str] | None, what: str, size: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"{what} {index}" for index in range(size))
    given = tuple(names) if isinstance(names, Iterable) else (names,)
    if isinstance(names, str) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"{what}_names must be strings, got {names!r}")
    if len(given) != size or len(set(given)) != size:
        raise ValueError(f"{what}_names must be {size} different names, got {len(given)} of which {len(set(given))}")
    return given
