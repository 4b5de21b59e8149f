r"""Markets in which no uniform prices are stable, and a proof that there are none.

Many poor buyers like dataset 1 much more than dataset 2; one rich buyer wants dataset 1 only. Seller 1 would skim the
rich buyer at a high price, but then the poor buy dataset 2, and so on round a cycle. With the number of poor buyers
going to infinity and money counted in units of it, the largest gain at prices ``(P, q)`` has a simple form: with
``a`` and ``b`` for the value and the budget of the rich buyer, a price ``P > a q`` leaves

.. math:: R_1 = \min(P, b) + 1 - \min(q, 1), \qquad R_2 = \min(q, 1),

while the best answers earn ``B_1 = max(1 + min(aq, b), b + 1 - min(q, 1))`` and ``B_2 = min(1, P / a)``; at ``P < a q``
seller 2 earns nothing. Below price 1 (a vanishing ``P``) the poor buy all of dataset 1, and the largest gain is at
least ``B_1``. Everything is monotone in ``P`` and ``q`` apart, so boxes of prices have simple lower bounds, and branch
and bound proves that no prices at all come below a given ratio.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.games.market_model import DataMarket
from assay.games.market_prices import geometric_grid
from assay.result import Result
from assay.validation import ConvergenceWarning, as_float_array, check_integer, check_real

__all__ = [
    "NoEquilibriumProof",
    "certify_no_equilibrium",
    "limit_ratio",
    "limit_ratio_at",
    "no_equilibrium_instance",
]

# Bounds are rounded down by more than a dozen floating-point operations can move them.
_ROUNDING = 1e-14


def no_equilibrium_instance(
    nu: float, alpha: float = 0.733, beta: float = 0.860, *, price_grid: ArrayLike | None = None
) -> DataMarket:
    """Two sellers, many poor buyers and a rich one: no uniform prices are stable, not even nearly.

    Parameters
    ----------
    nu : float
        Weight of the poor buyers, who have budget 1 and values ``(alpha * nu, 1)``; above 0.
    alpha : float, default=0.733
        Value of dataset 1 to a poor buyer, in units of ``nu``.
    beta : float, default=0.86
        Budget of the rich buyer, who wants dataset 1 only, in units of ``nu``.
    price_grid : array_like or sequence of such, optional
        By default geometric grids with steps of 2 %: from 0.1 to ``max(1.2 * nu, beta * nu)`` and from 0.01 to 1.2.

    Returns
    -------
    DataMarket

    Raises
    ------
    TypeError, ValueError
        If a number is not positive and finite.

    References
    ----------
    .. [1] Ray Chaudhury, Garg, Sharma, Song. Equilibrium Pricing in Oligopolistic Data Markets. ICML 2026.
       arXiv:2608.14018. Example 3.1, Theorem 3.2.

    Examples
    --------
    >>> from assay.games import no_equilibrium_instance
    >>> no_equilibrium_instance(10).values
    array([[7.33, 1.  ],
           [8.6 , 0.  ]])
    """
    nu = check_real(nu, "nu", above=0)
    alpha, beta = check_real(alpha, "alpha", above=0), check_real(beta, "beta", above=0)
    if price_grid is None:
        price_grid = [geometric_grid(0.02, 0.1, max(1.2, beta, 0.2 / nu) * nu), geometric_grid(0.02, 0.01, 1.2)]
    return DataMarket(
        [1.0, beta * nu],
        [[alpha * nu, 1.0], [beta * nu, 0.0]],
        [nu, 1.0],
        price_grid,
        buyer_names=("poor", "rich"),
    )


def limit_ratio(alpha: float, beta: float) -> float:
    """Smallest ratio that any uniform prices reach in the limit of many poor buyers.

    Parameters
    ----------
    alpha, beta : float
        As in :func:`no_equilibrium_instance`; above 0.

    Returns
    -------
    float
        At least 1. A ratio above 1 means that there are no stable prices.

    Raises
    ------
    TypeError, ValueError
        If a number is not positive and finite.

    Notes
    -----
    Below price 1 the smallest ratio is ``max(1 + a b / (1 + a), b)``. Above it, prices of ratio ``c`` or less exist if
    and only if for some ``q`` in (0, 1] the largest price ``P`` of seller 1 that seller 2 puts up with,
    ``b`` or less and, while ``c q < 1``, ``c a q`` or less, satisfies ``B_1 <= c (P + 1 - q)``. Both sides are linear
    in ``q`` between five points, so these decide, and ``c`` is found by bisection to the last digit.

    References
    ----------
    .. [1] Ray Chaudhury, Garg, Sharma, Song. Equilibrium Pricing in Oligopolistic Data Markets. ICML 2026.
       arXiv:2608.14018.

    Examples
    --------
    >>> from assay.games import limit_ratio
    >>> round(limit_ratio(0.733, 0.860), 5)
    1.36375
    """
    a, b = check_real(alpha, "alpha", above=0), check_real(beta, "beta", above=0)
    low, high = 1.0, max(1.0 + a * b / (1.0 + a), b)
    if _reachable(a, b, low):
        return low
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return high
        if _reachable(a, b, middle):
            high = middle
        else:
            low = middle


def _reachable(a: float, b: float, c: float) -> bool:
    """Whether prices above 1 have ratio ``c`` or less."""
    # Seller 2 puts up with any price from q = 1 / c on, where the answer 1 / q is c.
    q = np.array([1.0 / c, 1.0, b / (a * c), b / a, b / (1.0 + a)])
    tolerated = np.where((np.arange(q.size) < 2) | (c * q >= 1.0), b, np.minimum(b, a * c * q))
    answer = _best_of_first(a, b, q, q)
    return bool(((tolerated + 1.0 - q >= answer / c) & (q <= 1.0)).any())


def _best_of_first(a: float, b: float, q_low: ArrayLike, q_high: ArrayLike) -> Any:
    """Lower bound on what the best answer of seller 1 earns, for prices of seller 2 in an interval."""
    return np.maximum(1.0 + np.minimum(a * q_low, b), b + 1.0 - np.minimum(q_high, 1.0))


def limit_ratio_at(alpha: float, beta: float, p: ArrayLike, q: ArrayLike) -> Float[np.ndarray, ...]:
    """Largest gain at prices ``p`` (in units of the number of poor buyers) and ``q``, in the limit of many of them.

    Parameters
    ----------
    alpha, beta : float
        As in :func:`no_equilibrium_instance`.
    p, q : array_like
        Prices of seller 1 and 2, above 0, of shapes that broadcast.

    Returns
    -------
    numpy.ndarray
        inf where seller 2 earns nothing, also at a tie.

    Raises
    ------
    TypeError, ValueError
        If a number is not positive and finite.

    Examples
    --------
    >>> from assay.games import limit_ratio_at
    >>> float(limit_ratio_at(0.733, 0.86, 0.86, 0.733).round(5))
    1.36426
    """
    alpha, beta = check_real(alpha, "alpha", above=0), check_real(beta, "beta", above=0)
    p, q = as_float_array(p, "p", ndim=(0, 1, 2, 3)), as_float_array(q, "q", ndim=(0, 1, 2, 3))
    for name, prices in (("p", p), ("q", q)):
        if prices.min() <= 0:
            raise ValueError(f"{name} must be greater than 0, got a minimum of {prices.min():g}")
    first = _best_of_first(alpha, beta, q, q) / (np.minimum(p, beta) + 1.0 - np.minimum(q, 1.0))
    second = np.minimum(1.0, p / alpha) / np.minimum(q, 1.0)
    return np.where(p > alpha * q, np.maximum(first, second), np.inf)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NoEquilibriumProof(Result):
    """Whether all uniform prices have at least a given ratio; it unpacks into ``holds, n_boxes``.

    Parameters
    ----------
    holds : bool
        True when it is proved.
    n_boxes : int
        Boxes of prices that were bounded.
    witness : tuple of float or None
        Prices ``(P, q)``, ``P`` in units of the number of poor buyers, with a smaller ratio, when it is disproved. A
        ``P`` of 0 stands for a price just below 1.
    witness_ratio : float
        Their ratio; nan without a witness.
    certificates : tuple of Certificate
        The smallest lower bound of the boxes that cover all prices, and that of prices below 1, against the ratio.
    """

    holds: bool
    n_boxes: int
    witness: tuple[float, float] | None
    witness_ratio: float

    def __iter__(self):
        return iter((self.holds, self.n_boxes))


def certify_no_equilibrium(alpha: float, beta: float, c: float, *, max_boxes: int = 1_000_000) -> NoEquilibriumProof:
    """Prove or disprove that all uniform prices have ratio ``c`` or more, in the limit of many poor buyers.

    Parameters
    ----------
    alpha, beta : float
        As in :func:`no_equilibrium_instance`; above 0.
    c : float
        The ratio, at least 1.
    max_boxes : int, default=1000000
        Boxes after which the question is left open, with a warning: ``c`` is then very close to the true ratio.

    Returns
    -------
    NoEquilibriumProof
        Unpacks into ``(holds, n_boxes)``.

    Raises
    ------
    TypeError, ValueError
        If a number is not positive and finite, or ``c`` is below 1.

    Notes
    -----
    Prices beyond the boxes are no better than those on their border: ``P`` above ``max(2, a, b)`` changes nothing, and
    above ``q = 1`` the earnings of seller 2 stay while the best answer of seller 1 grows. Ties at ``P = a q`` are
    covered when all poor buyers resolve them alike. Bounds are rounded down, so that a proof is one in spite of
    floating-point arithmetic. A box is split across its longer side; about 1e4 boxes for ``c`` within 1e-4 of
    the truth.

    References
    ----------
    .. [1] Ray Chaudhury, Garg, Sharma, Song. Equilibrium Pricing in Oligopolistic Data Markets. ICML 2026.
       arXiv:2608.14018. Theorem 3.2.

    Examples
    --------
    >>> from assay.games import certify_no_equilibrium
    >>> holds, n_boxes = certify_no_equilibrium(0.733, 0.860, 1.36)
    >>> holds, certify_no_equilibrium(0.733, 0.860, 1.365).holds
    (True, False)
    """
    a, b = check_real(alpha, "alpha", above=0), check_real(beta, "beta", above=0)
    c = check_real(c, "c", minimum=1)
    max_boxes = check_integer(max_boxes, "max_boxes", minimum=1)
    below_one = max(1.0 + a * b / (1.0 + a), b)
    if below_one < c:
        return _proof(c, math.nan, below_one, 0, (0.0, max(1.0, b) if b > 1.0 + a else b / (1.0 + a)))
    boxes = np.array([[0.0, max(2.0, a, b), 0.0, 3.0]])
    n_boxes, smallest = 0, math.inf
    while len(boxes):
        n_boxes += len(boxes)
        p_low, p_high, q_low, q_high = boxes.T
        p, q = 0.5 * (p_low + p_high), 0.5 * (q_low + q_high)
        reached = limit_ratio_at(a, b, p, q)
        lowest = int(np.argmin(reached))
        if reached[lowest] < c:
            return _proof(c, math.nan, below_one, n_boxes, (float(p[lowest]), float(q[lowest])), float(reached[lowest]))
        bound = _box_bounds(a, b, boxes)
        open_ = bound < c
        smallest = min(smallest, float(bound[~open_].min(initial=math.inf)))
        if open_.any() and n_boxes + 2 * np.count_nonzero(open_) > max_boxes:
            warnings.warn(
                f"certify_no_equilibrium left c={c:g} open after {n_boxes} boxes; raise max_boxes={max_boxes}",
                ConvergenceWarning,
                stacklevel=2,
            )
            return _proof(c, float(bound.min()), below_one, n_boxes, None)
        boxes = _halves(boxes[open_])
    return _proof(c, smallest, below_one, n_boxes, None)


def _box_bounds(a: float, b: float, boxes: np.ndarray) -> np.ndarray:
    """Lower bounds of the ratio in boxes: inf where seller 2 earns nothing in all of it."""
    p_low, p_high, q_low, q_high = boxes.T
    first = _best_of_first(a, b, q_low, q_high) / (np.minimum(p_high, b) + 1.0 - np.minimum(q_low, 1.0))
    second = np.minimum(1.0, p_low / a) / np.minimum(q_high, 1.0)
    bound = np.maximum(first, second) * (1.0 - _ROUNDING)
    return np.where(p_high >= a * q_low * (1.0 - _ROUNDING), bound, np.inf)


def _halves(boxes: np.ndarray) -> np.ndarray:
    wide = (boxes[:, 1] - boxes[:, 0] >= boxes[:, 3] - boxes[:, 2])[:, None]
    lower, upper = boxes.copy(), boxes.copy()
    middle_p, middle_q = boxes[:, :2].mean(axis=1), boxes[:, 2:].mean(axis=1)
    lower[:, 1], upper[:, 0] = (np.where(wide[:, 0], middle_p, boxes[:, end]) for end in (1, 0))
    lower[:, 3], upper[:, 2] = (np.where(wide[:, 0], boxes[:, end], middle_q) for end in (3, 2))
    return np.vstack((lower, upper))


def _proof(
    c: float,
    smallest: float,
    below_one: float,
    n_boxes: int,
    witness: tuple[float, float] | None,
    witness_ratio: float = math.nan,
) -> NoEquilibriumProof:
    if witness is not None and witness[0] == 0.0:
        witness_ratio = below_one
    statements = (
        Certificate("ratio of all prices above 1 at least", smallest, c, ">="),
        Certificate("ratio of all prices of seller 1 below 1 at least", below_one * (1.0 - _ROUNDING), c, ">="),
    )
    return NoEquilibriumProof(
        holds=all(statement.holds for statement in statements),
        n_boxes=n_boxes,
        witness=witness,
        witness_ratio=witness_ratio,
        certificates=statements,
    )
