r"""Menus that sell best: revenue-optimal screening of one buyer, for any surplus.

A seller offers bundles ``y_j`` at prices ``b_j``. A buyer of type ``x`` takes the best one, so that the utility

.. math:: u(x) = \max_j \Phi(x, y_j) - b_j

is a generalized convex function of the type, and the seller keeps :math:`\Phi - u - \text{cost}`. Every menu is a
mechanism in which nobody gains by a lie and, with a free outside option, nobody loses by taking part; the revelation
and the taxation principle say that no other mechanism does better than the best menu. What remains is to choose the
prices (and, if wanted, the bundles) by gradient ascent on the mean revenue over a sample of types, with the choice of
the buyers softened while the ascent runs and hard when the menu is judged.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.transport.generalized_convex import HOTTEST, LEAST_SPREAD, GCFLayer
from assay.transport.mechanism_certificates import mechanism_certificates
from assay.transport.menu_ascent import soft_revenue_and_slope
from assay.transport.sample_files import read_points
from assay.transport.semidual_ascent import Adam
from assay.transport.temperature_schedules import geometric_temperature
from assay.transport.transport_kernels import check_kernel, kernel_scores
from assay.validation import as_float_array, as_generator, check_integer, check_real

__all__ = ["AuctionResult", "QuadraticProductionCost", "bundle_grid", "optimal_auction"]

# Steps from one row of the history to the next, and what is in a row.
_LOOK = 25
_COLUMNS = ("iteration", "seconds", "temperature", "soft", "hard")

# Steps from one menu of trained bundles to the next that is judged by hard choices.
_JUDGED = 5

# Buyers who are indifferent up to this share of the largest score of a bundle take what is best for the seller.
_TIE = 1e-13

# Below so many types none are held out, since what is left would be no sample.
_FEW = 8

# Up to this many numbers the worth of all bundles to all types is kept.
_KEPT = 2**23

# Gradients, which are pure numbers, are cut to this length.
_LONGEST = 5.0

_LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
_CHUNK = 4096

# The 97.5 % point of the normal distribution.
_NORMAL = 1.959963984540054


@dataclass(frozen=True)
class QuadraticProductionCost:
    r"""Cost :math:`\beta \|y\|^2` of making a bundle; write another one as a function of the menu.

    Parameters
    ----------
    beta : float, default=0.1
        The factor.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import QuadraticProductionCost
    >>> QuadraticProductionCost(0.5)(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([0.5000, 1.0000])
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        check_real(self.beta, "beta", minimum=0)

    def __call__(self, menu: Float[torch.Tensor, "J k"]) -> Float[torch.Tensor, " J"]:
        """Cost of each bundle."""
        return self.beta * menu.square().sum(-1)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class AuctionResult(Result):
    """What :func:`optimal_auction` returns.

    Attributes
    ----------
    menu : numpy.ndarray of shape (J, k)
        Bundles; the first one is the outside option.
    price : numpy.ndarray of shape (J,)
        Their prices; that of the outside option is not changed.
    share : numpy.ndarray of shape (J,)
        Shares of the test types that take each bundle.
    revenue : float
        Mean of price less production cost over the test types, each with its best bundle.
    revenue_se : float
        Standard error of that mean.
    utility : float
        Mean utility that the test types are left with.
    surplus : float
        Their sum.
    train_revenue : float
        As ``revenue``, over the types that the menu was trained on.
    ic_violation : float
        Largest gain of a test type from the report of another one.
    ir_violation : float
        Largest loss of a test type against the outside option.
    soft_hard_gap : float
        By how much the objective of the training, with softened choices, overstates ``revenue``.
    n_test : int
        Number of test types.
    kernel : object or callable
        The surplus.
    production_cost : callable or None
        Cost of making bundles.
    history : dict
        ``iteration``, ``seconds``, ``temperature``, ``soft`` and ``hard`` (revenues on the training types).
    """

    menu: Float[np.ndarray, "J k"]
    price: Float[np.ndarray, " J"]
    share: Float[np.ndarray, " J"]
    revenue: float
    revenue_se: float
    utility: float
    surplus: float
    train_revenue: float
    ic_violation: float
    ir_violation: float
    soft_hard_gap: float
    n_test: int
    kernel: Any
    production_cost: Any

    @property
    def revenue_interval(self) -> tuple[float, float]:
        """Normal interval that covers the expected revenue with probability 95 %."""
        return self.revenue - _NORMAL * self.revenue_se, self.revenue + _NORMAL * self.revenue_se

    def sell(self, types: ArrayLike | str | PathLike) -> tuple[Float[np.ndarray, "S k"], Float[np.ndarray, " S"]]:
        """What buyers take and pay.

        Parameters
        ----------
        types : array_like of shape (S, d), or path of a csv file
            Their types.

        Returns
        -------
        allocation : numpy.ndarray of shape (S, k)
            Their bundles.
        payment : numpy.ndarray of shape (S,)
            Their payments.
        """
        points = torch.tensor(_as_types(types))
        index = _choices(self.kernel, points, self.menu, self.price, _costs_of(self.production_cost, self.menu))[0]
        return self.menu[index], self.price[index]


def bundle_grid(n_goods: int, levels: Sequence[float] | ArrayLike = _LEVELS) -> Float[np.ndarray, "J k"]:
    """All bundles with the given amounts of each good, the empty one first.

    Parameters
    ----------
    n_goods : int
        Number of goods.
    levels : array_like of shape (L,), default=(0, 0.25, 0.5, 0.75, 1)
        Amounts, or probabilities of getting the good.

    Returns
    -------
    numpy.ndarray of shape (L**n_goods, n_goods)

    Examples
    --------
    >>> from assay.transport import bundle_grid
    >>> bundle_grid(2, [0, 1]).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    amounts = np.unique(as_float_array(levels, "levels", ndim=1))
    return np.array(list(itertools.product(amounts, repeat=check_integer(n_goods, "n_goods", minimum=1))))


def optimal_auction(
    types: ArrayLike | str | PathLike,
    *,
    kernel: Any = "dot",
    menu: ArrayLike | None = None,
    cost: Callable[[torch.Tensor], torch.Tensor] | None = None,
    learn_y: bool = False,
    n_pieces: int | None = None,
    y_bounds: Any = (0.0, 1.0),
    outside: Any = True,
    ir: bool = True,
    exchangeable: bool = False,
    test_types: ArrayLike | str | PathLike | None = None,
    test_size: float = 0.25,
    max_iter: int = 1500,
    lr: float = 0.02,
    rng: Any = None,
    callback: Callable[[Mapping[str, Any]], None] | None = None,
) -> AuctionResult:
    r"""Menu of bundles and prices that earns the most from buyers of these types.

    .. math::

        \max_{b} \; E_x \bigl[ b_{j^*(x)} - \mathrm{cost}(y_{j^*(x)}) \bigr],
        \qquad j^*(x) = \arg\max_j \Phi(x, y_j) - b_j, \qquad (y_0, b_0) = (0, 0)

    Parameters
    ----------
    types : array_like of shape (S, d), or path
        A sample of types, or a csv file with one type per row (with or without names of columns).
    kernel : str, callable or object, default="dot"
        Worth of a bundle to a type: ``"dot"``, ``"hinge"``, ``"neg_sqeuclidean"``, ``"neg_power"``, a function, or an
        object with the method ``evaluate`` (see :mod:`assay.transport.transport_kernels`).
    menu : array_like of shape (J, k), optional
        Bundles that may be offered (the outside option need not be among them). By default all with amounts 0, 1/4,
        1/2, 3/4 and 1 for up to three goods; for exchangeable goods the bundles of the best 1, 2, ... goods; for up to
        10 goods all with amounts 0 and 1.
    cost : callable, optional
        Cost of making each bundle: from a tensor of shape (J, k) to one of shape (J,), such as
        :class:`QuadraticProductionCost`.
    learn_y : bool, default=False
        Whether the bundles are trained too, within ``y_bounds``. Without ``menu`` they start at random, and the ascent
        may then end with the grand bundle alone: a grid with free prices does better for few goods.
    n_pieces : int, optional
        Number of random bundles for ``learn_y`` without ``menu``; ``k + 10`` by default.
    y_bounds : pair, default=(0, 1)
        Limits of the amounts, for ``learn_y``.
    outside : bool, array_like or pair, default=True
        The outside option: True for nothing at no price, a bundle at no price, or a bundle and a price.
    ir : bool, default=True
        Whether taking part must be voluntary. Without it, ``outside=False`` makes the first bundle of the menu, at
        price 0, what everybody is entitled to.
    exchangeable : bool, default=False
        Whether only the sizes of the values matter and not which good they belong to. Types (and trained bundles) are
        then sorted in decreasing order, and the menu is of the best goods of each buyer.
    test_types : array_like of shape (T, d), or path, optional
        Fresh types that the menu is judged on. By default a share of ``types`` is held out.
    test_size : float, default=0.25
        That share. Of fewer than 8 types none is held out, and an assumption of the certificates says so.
    max_iter : int, default=1500
        Steps of Adam.
    lr : float, default=0.02
        First step size, in units of the value of a good; it falls to zero along half a cosine.
    rng : None, int or numpy.random.Generator, optional
        Draws the held-out types, the noise in the first prices, and random bundles.
    callback : callable, optional
        Called every 25 steps with the last row of the history as a dict.

    Returns
    -------
    AuctionResult
        Certificates: incentive compatibility and individual rationality on the test types.

    Raises
    ------
    TypeError
        If the kernel has not the method, or there is no outside option although taking part must be voluntary.
    ValueError
        If the types are empty or not finite, the menu is outside ``y_bounds`` when it is trained, there is no default
        menu for so many goods, or an option is out of range.

    Notes
    -----
    A step takes ``O(S J d)`` time and ``O(S J)`` memory. The prices with the highest revenue of hard choices on the
    training types are returned, whichever step they are of (with trained bundles, every fifth step is judged).
    On fresh types they earn what those of the last step earn, for 20 types as for 1000: what few types cost is the
    sampling error of the prices, which no choice among the steps undoes.

    Softened choices overstate revenue, by up to several percent at a temperature of 60: ``soft_hard_gap`` says by how
    much. The temperature rises from 10 to 200 over four fifths of the steps.

    With few goods the linear program over a grid of types, which needs no gradient, is as good; it has as many
    constraints as there are pairs of types.

    References
    ----------
    M. Nehzati. Universal Representation of Generalized Convex Functions and their Gradients. ICML 2026.
    arXiv:2509.04477. R. B. Myerson. Optimal Auction Design. Mathematics of Operations Research 6, 1981 (one good).
    A. M. Manelli, D. R. Vincent. Bundling as an optimal selling mechanism for a multiple-good monopolist. Journal of
    Economic Theory 127, 2006 (uniform values).

    Examples
    --------
    One good, values uniform on [0, 1]: the best price is 1/2 and earns 1/4.

    >>> import numpy as np
    >>> from assay.transport import optimal_auction
    >>> values = (np.arange(1000) + 0.5) / 1000
    >>> result = optimal_auction(values[:, None], menu=[[1.0]], test_types=values[:, None], max_iter=300, rng=0)
    >>> round(result.revenue, 3), abs(float(result.price[1]) - 0.5) < 0.02, result.certified
    (0.25, True, True)
    """
    kernel = check_kernel(kernel)
    generator = as_generator(rng)
    max_iter = check_integer(max_iter, "max_iter", minimum=0)
    lr = check_real(lr, "lr", above=0)
    if cost is not None and not callable(cost):
        raise TypeError(f"cost must be None or a function of the menu, got {type(cost).__name__}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    sample = _as_types(types)
    if test_types is None:
        train, test, fresh = _held_out(sample, check_real(test_size, "test_size", above=0, below=1), generator)
    else:
        train, test, fresh = sample, _as_types(test_types, "test_types"), True
        if train.shape[1] != test.shape[1]:
            raise ValueError(f"test_types must have {train.shape[1]} columns, got {test.shape[1]}")
    if exchangeable:
        train, test = -np.sort(-train, axis=1), -np.sort(-test, axis=1)
    bundles = _first_menu(menu, train.shape[1], learn_y, n_pieces, y_bounds, exchangeable, generator)
    bundles, away = _apart_from_outside(bundles, outside, ir)
    training = _Training(kernel, cost, train, bundles, away, learn_y, y_bounds, lr, exchangeable, generator)
    soft, history = training.run(max_iter, callback)
    return _judged(training, train, test, fresh, soft, ir, history)


class _Training:
    """Gradient ascent on the soft revenue, which remembers the menu with the highest hard one."""

    def __init__(
        self,
        kernel: Any,
        cost: Any,
        types: Float[np.ndarray, "S d"],
        bundles: Float[np.ndarray, "J k"],
        away: tuple[Float[np.ndarray, " k"], float],
        learn_y: bool,
        y_bounds: Any,
        lr: float,
        exchangeable: bool,
        generator: np.random.Generator,
    ):
        self.kernel, self.cost, self.lr, self.sorted = kernel, cost, lr, exchangeable and learn_y
        self.types = torch.tensor(types)
        self.unit, worth = _worth(kernel, self.types, bundles, away)
        prices = away[1] + 1.1 * worth + generator.normal(0.0, 0.02 * self.unit, len(bundles))
        self.layer = GCFLayer(
            kernel,
            torch.tensor(bundles),
            selection="soft",
            intercept=torch.tensor(prices),
            learn_y=learn_y,
            y_bounds=y_bounds if learn_y else None,
            outside=(torch.tensor(away[0]), away[1]),
        )
        self.scores = None
        # Not those of a kernel: what bundles are worth to the buyers is not for the seller to choose.
        trained = {name: p for name, p in self.layer.named_parameters() if not name.startswith("kernel.")}
        if not learn_y and len(types) * (len(bundles) + 1) <= _KEPT:
            with torch.no_grad():  # bundles that stay have the same worth at every step
                self.scores = _finite(kernel_scores(kernel, self.types, self.layer.points)).contiguous().numpy()
            self.production, self.adam = _costs_of(cost, self.layer.points.numpy()), Adam(len(bundles))
            return
        # Prices are stepped in units of the value of a good, bundles in those of the layer. Adam divides the gradient
        # by its size: its safeguard must be smaller than any gradient.
        groups = [{"params": [p], "unit": self.unit if n == "intercept" else 1.0} for n, p in trained.items()]
        self.optimizer = torch.optim.Adam(groups, lr=lr, eps=1e-12)

    def run(
        self, max_iter: int, callback: Callable[[Mapping[str, Any]], None] | None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Train; returns the soft revenue of the menu that is kept, and the history."""
        advance = self._prices_step if self.scores is not None else self._layer_step
        every = _JUDGED if self.layer.learn_y else 1
        warmup, began, rows = max(1, int(0.8 * max_iter)), time.perf_counter(), []
        best, kept, kept_soft = -math.inf, None, math.nan
        for step in range(max_iter + 1):
            temperature = geometric_temperature(step, warmup=warmup)
            # Half a cosine from the first step size to zero.
            share = 0.5 * (1.0 + math.cos(math.pi * step / max(1, max_iter)))
            judged = step % every == 0 or step == max_iter
            if judged:
                before = {name: tensor.clone() for name, tensor in self.layer.state_dict().items()}
            soft, hard = advance(temperature, self.lr * share if step < max_iter else 0.0, judged)
            if hard > best:
                best, kept, kept_soft = hard, before, soft
            if step % _LOOK == 0 or step == max_iter:
                rows.append((step, time.perf_counter() - began, temperature, soft, hard))
                if callback is not None:
                    callback(dict(zip(_COLUMNS, rows[-1], strict=True)))
        self.layer.load_state_dict(kept)
        columns = zip(*rows, strict=True)
        return kept_soft, {name: np.array(column) for name, column in zip(_COLUMNS, columns, strict=True)}

    def _prices_step(self, temperature: float, lr: float, judged: bool) -> tuple[float, float]:
        """Soft and hard revenue before a step of the prices alone, in one pass over the worth of the bundles."""
        price = self.layer.intercepts.detach().numpy()
        profit = price - self.production
        soft, hard, slope = soft_revenue_and_slope(
            self.scores, price, profit, self.unit, temperature, LEAST_SPREAD, HOTTEST, _TIE
        )
        if lr > 0.0:
            with torch.no_grad():  # the slope is a pure number; the price of the outside option stays
                self.layer.intercept += torch.from_numpy(self.adam.step(_clipped(slope[1:]), lr * self.unit))
        return soft, hard

    def _layer_step(self, temperature: float, lr: float, judged: bool) -> tuple[float, float]:
        """The same by automatic differentiation, for bundles that move too; nan for hard choices if not judged."""
        soft, hard = self._revenues(temperature, judged)
        if lr > 0.0:
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group["unit"]
            self.optimizer.zero_grad(set_to_none=True)
            (-soft / self.unit).backward()
            torch.nn.utils.clip_grad_norm_([p for g in self.optimizer.param_groups for p in g["params"]], _LONGEST)
            self.optimizer.step()
        return float(soft.detach()), hard

    def menu(self) -> tuple[Float[np.ndarray, "J k"], Float[np.ndarray, " J"]]:
        """Bundles and prices, the outside option first."""
        with torch.no_grad():
            return self._points().numpy().copy(), self.layer.intercepts.numpy().copy()

    def _points(self) -> Float[torch.Tensor, "J k"]:
        points = self.layer.points
        return points.sort(dim=1, descending=True).values if self.sorted else points

    def _revenues(self, temperature: float, judged: bool = True) -> tuple[Float[torch.Tensor, ""], float]:
        """Revenue of soft choices, which can be differentiated, and of hard ones (if judged), from the same scores."""
        points, prices = self._points(), self.layer.intercepts
        profit = prices if self.cost is None else prices - _production(self.cost, points)
        self.layer.temperature = temperature
        soft, hard = torch.zeros((), dtype=torch.float64), 0.0 if judged else math.nan
        for part in self.types.split(_CHUNK):
            scores = _finite(kernel_scores(self.kernel, part, points)) - prices
            soft = soft + (self.layer.soft_weights(scores / self.unit) @ profit).sum()
            if not judged:
                continue
            with torch.no_grad():
                hard += float(profit[_seller_best(scores, profit)[0]].sum())
        return soft / len(self.types), hard / len(self.types)


def _judged(
    training: _Training,
    train: Float[np.ndarray, "S d"],
    test: Float[np.ndarray, "T d"],
    fresh: bool,
    soft: float,
    ir: bool,
    history: dict[str, np.ndarray],
) -> AuctionResult:
    """Sell to the test types, and look at what they could have had instead."""
    kernel, cost = training.kernel, training.cost
    menu, price = training.menu()
    costs = _costs_of(cost, menu)
    types = torch.tensor(test)
    index, utility = _choices(kernel, types, menu, price, costs)
    profit = price[index] - costs[index]
    trained = _choices(kernel, training.types, menu, price, costs)[0]
    revenue = float(profit.mean())
    table = types, torch.as_tensor(menu[index]), torch.as_tensor(price[index])
    away = torch.as_tensor(menu[0]), float(price[0])
    promises = mechanism_certificates(kernel, *table, outside=away)
    gain, loss = (promise.value for promise in promises)
    sample = Assumption("the test types were not trained on", fresh)
    return AuctionResult(
        menu=menu,
        price=price,
        share=np.bincount(index, minlength=len(menu)) / len(index),
        revenue=revenue,
        revenue_se=float(profit.std(ddof=1) / math.sqrt(len(profit))) if len(profit) > 1 else math.nan,
        utility=float(utility.mean()),
        surplus=revenue + float(utility.mean()),
        train_revenue=float((price[trained] - costs[trained]).mean()),
        ic_violation=gain,
        ir_violation=loss,
        soft_hard_gap=soft - revenue,
        n_test=len(test),
        kernel=kernel,
        production_cost=cost,
        certificates=tuple(
            Certificate(c.statement, c.value, c.bound, c.relation, (sample,)) for c in promises[: 2 if ir else 1]
        ),
        history=history,
    )


def _choices(
    kernel: Any,
    types: Float[torch.Tensor, "S d"],
    menu: Float[np.ndarray, "J k"],
    price: Float[np.ndarray, " J"],
    costs: Float[np.ndarray, " J"],
) -> tuple[Int[np.ndarray, " S"], Float[np.ndarray, " S"]]:
    """Best bundle of each type (of several, the one that is best for the seller) and the utility from it."""
    points, prices = torch.as_tensor(menu), torch.as_tensor(price)
    profit = prices - torch.as_tensor(costs)
    indices, utilities = [], []
    with torch.no_grad():
        for part in types.split(max(64, 2**20 // len(points))):
            index, utility = _seller_best(_finite(kernel_scores(kernel, part, points)) - prices, profit)
            indices.append(index.numpy())
            utilities.append(utility.numpy())
    return np.concatenate(indices), np.concatenate(utilities)


def _seller_best(
    scores: Float[torch.Tensor, "S J"], profit: Float[torch.Tensor, " J"]
) -> tuple[Int[torch.Tensor, " S"], Float[torch.Tensor, " S"]]:
    best = scores.amax(1, keepdim=True)
    size = torch.maximum(best.abs(), scores.amin(1, keepdim=True).abs())
    near = scores >= best - _TIE * size
    index = torch.where(near, profit, -torch.inf).argmax(1)
    return index, scores.gather(1, index[:, None])[:, 0]


def _worth(
    kernel: Any,
    types: Float[torch.Tensor, "S d"],
    bundles: Float[np.ndarray, "J k"],
    away: tuple[Float[np.ndarray, " k"], float],
) -> tuple[float, Float[np.ndarray, " J"]]:
    """The unit of prices (1 for values uniform on [0, 1]), and the mean worth of each bundle above the outside."""
    with torch.no_grad():
        some = types[:_CHUNK]
        gain = kernel_scores(kernel, some, torch.tensor(bundles)) - kernel_scores(
            kernel, some, torch.tensor(away[0])[None]
        )
        gain = _finite(gain)
    unit = 2.0 * float(gain.abs().amax(1).mean()) / bundles.shape[1]
    return unit or 1.0, gain.mean(0).numpy()


def _clipped(slope: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    length = float(np.linalg.norm(slope))
    return slope * (_LONGEST / length) if length > _LONGEST else slope


def _finite(scores: torch.Tensor) -> torch.Tensor:
    # nan is both the least and the largest of what it is among
    if scores.numel() and not all(math.isfinite(end) for end in torch.aminmax(scores.detach())):
        raise ValueError("kernel must be finite for all types and bundles, got nan or infinities")
    return scores


def _production(cost: Any, points: Float[torch.Tensor, "J k"]) -> Float[torch.Tensor, " J"]:
    costs = cost(points)
    if not isinstance(costs, torch.Tensor) or costs.shape != points.shape[:1]:
        raise ValueError(f"cost must return a tensor of shape ({len(points)},) for a menu of {len(points)} bundles")
    return costs.to(points.dtype)


def _costs_of(cost: Any, menu: Float[np.ndarray, "J k"]) -> Float[np.ndarray, " J"]:
    if cost is None:
        return np.zeros(len(menu))
    with torch.no_grad():
        return _production(cost, torch.tensor(menu)).numpy().copy()


def _held_out(
    sample: Float[np.ndarray, "S d"], share: float, generator: np.random.Generator
) -> tuple[Float[np.ndarray, "A d"], Float[np.ndarray, "B d"], bool]:
    if len(sample) < _FEW:
        return sample, sample, False
    order = generator.permutation(len(sample))
    cut = min(len(sample) - 1, max(1, round(share * len(sample))))
    return sample[order[cut:]], sample[order[:cut]], True


def _first_menu(
    menu: Any,
    k: int,
    learn_y: bool,
    n_pieces: int | None,
    y_bounds: Any,
    exchangeable: bool,
    generator: np.random.Generator,
) -> Float[np.ndarray, "J k"]:
    if n_pieces is not None and (menu is not None or not learn_y):
        raise ValueError("n_pieces must be left out with a menu, or without learn_y")
    if menu is not None:
        return as_float_array(menu, "menu", ndim=2)
    if learn_y:
        try:
            low, high = (np.broadcast_to(np.asarray(bound, dtype=float), (k,)) for bound in y_bounds)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"y_bounds must be a pair of numbers or vectors of length {k}, got {y_bounds!r}"
            ) from error
        count = k + 10 if n_pieces is None else check_integer(n_pieces, "n_pieces", minimum=1)
        return low + (high - low) * generator.uniform(size=(count, k))
    if exchangeable:
        return np.tril(np.ones((k, k)))
    if k <= 3:
        return bundle_grid(k)
    if k <= 10:
        return bundle_grid(k, (0.0, 1.0))
    raise ValueError(f"menu must be given for {k} goods, unless they are exchangeable or learn_y is set")


def _apart_from_outside(
    bundles: Float[np.ndarray, "J k"], outside: Any, ir: bool
) -> tuple[Float[np.ndarray, "others k"], tuple[Float[np.ndarray, " k"], float]]:
    """The bundles without the outside option, and that with its price."""
    k = bundles.shape[1]
    if outside is None or outside is False:
        if ir:
            raise TypeError(
                "outside must be an option that buyers have without the menu, got none; individual rationality is then "
                "not guaranteed, and ir=False says that it need not be"
            )
        if len(bundles) < 2:
            raise ValueError("menu must have at least two bundles without an outside option, got 1")
        return bundles[1:], (bundles[0], 0.0)
    option, price = (np.zeros(k), 0.0) if outside is True else (outside, 0.0)
    if isinstance(outside, tuple) and len(outside) == 2 and np.ndim(outside[0]) == 1:
        option, price = outside
    option = as_float_array(option, "outside", ndim=1)
    if option.shape != (k,):
        raise ValueError(f"outside must be a bundle of {k} goods, got shape {option.shape}")
    others = bundles[(bundles != option).any(axis=1)]
    if len(others) == 0:
        raise ValueError("menu must have a bundle besides the outside option, got none")
    return others, (option, check_real(price, "the price of outside"))


def _as_types(types: Any, name: str = "types") -> Float[np.ndarray, "S d"]:
    if isinstance(types, str | PathLike):
        types = read_points(types)
    if isinstance(types, pd.DataFrame):
        types = types.to_numpy()
    return as_float_array(types, name, ndim=2)
