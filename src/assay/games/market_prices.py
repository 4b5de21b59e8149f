"""Grids of unit prices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.validation import as_float_array, check_real

__all__ = ["as_grids", "geometric_grid"]

_DEFAULT_STEP, _DEFAULT_SPAN = 0.02, 1e-3
_MOST_PRICES = 10**7
# Prices times fractions must be more than nothing, and times weights finite.
_SMALLEST, _LARGEST = 1e-290, 1e150


def geometric_grid(eps: float, p_min: float, p_max: float) -> Float[np.ndarray, " prices"]:
    """Prices from ``p_min`` to ``p_max`` of which each is at most ``1 + eps`` times the one before.

    What a seller can earn at any price between them is at most ``1 + eps`` times what it earns at the next grid price
    below: a lower price never loses a place in a buyer's order.

    Parameters
    ----------
    eps : float
        Relative step, above 0.
    p_min, p_max : float
        Ends, both in the grid; above 0.

    Returns
    -------
    numpy.ndarray of shape (n_prices,)
        Increasing.

    Raises
    ------
    TypeError, ValueError
        If a number is not positive and finite, or ``p_max`` is below ``p_min``.

    Examples
    --------
    >>> from assay.games import geometric_grid
    >>> geometric_grid(1.0, 0.5, 4.0)
    array([0.5, 1. , 2. , 4. ])
    """
    eps = check_real(eps, "eps", above=0)
    p_min = check_real(p_min, "p_min", above=0)
    p_max = check_real(p_max, "p_max", minimum=p_min)
    # A whole number of steps is not to become one more by rounding.
    steps = math.ceil((math.log(p_max) - math.log(p_min)) / math.log1p(eps) - 1e-9)
    if steps >= _MOST_PRICES:
        raise ValueError(f"eps must be so large that there are fewer than {_MOST_PRICES} prices, got {eps:g}")
    grid = np.geomspace(p_min, p_max, steps + 1) if steps else np.array([p_min])
    if (np.diff(grid) <= 0).any():
        raise ValueError(
            f"eps and p_min must be so large that prices differ as floating-point numbers, got {eps:g} and {p_min:g}"
        )
    return grid


def as_grids(
    price_grid: ArrayLike | Sequence[ArrayLike] | None, n_sellers: int, largest_budget: float
) -> tuple[np.ndarray, np.ndarray]:
    """Grids as the rows of a matrix that is padded with nan, and their lengths."""
    if price_grid is None:
        if largest_budget <= 0:
            raise ValueError("price_grid must be given when no buyer has a budget")
        price_grid = geometric_grid(_DEFAULT_STEP, _DEFAULT_SPAN * largest_budget, largest_budget)
    if isinstance(price_grid, str | bytes | Mapping | Set) or not hasattr(price_grid, "__len__"):
        raise TypeError(f"price_grid must be an array of prices, or one per seller, got {price_grid!r}")
    rows = as_float_array(price_grid, "price_grid", ndim=(1, 2)) if hasattr(price_grid, "ndim") else price_grid
    if len(rows) and all(_is_sequence(entry) for entry in rows):
        if len(rows) != n_sellers:
            raise ValueError(f"price_grid must be one grid, or one per seller ({n_sellers}), got {len(rows)}")
        grids = [_as_grid(grid, f"price_grid[{j}]") for j, grid in enumerate(rows)]
    else:
        grids = [_as_grid(rows, "price_grid")] * n_sellers
    n_prices = np.array([grid.size for grid in grids])
    prices = np.full((n_sellers, n_prices.max()), np.nan)
    for row, grid in zip(prices, grids, strict=True):
        row[: grid.size] = grid
    return prices, n_prices


def _is_sequence(entry: Any) -> bool:
    # an array or tensor of no dimensions has a length, too, but only by name
    return hasattr(entry, "__len__") and getattr(entry, "ndim", 1) > 0


def _as_grid(grid: Any, name: str) -> np.ndarray:
    prices = as_float_array(grid, name, ndim=1)
    if prices.min() <= 0:
        raise ValueError(f"{name} must be greater than 0, got a minimum of {prices.min():g}")
    if (np.diff(prices) <= 0).any():
        raise ValueError(f"{name} must be increasing, got {prices.tolist()[:8]}")
    if prices.min() < _SMALLEST:
        raise ValueError(f"{name} must be at least {_SMALLEST:g}, got a minimum of {prices.min():g}")
    if prices.max() > _LARGEST:
        raise ValueError(f"{name} must be at most {_LARGEST:g}, got {prices.max():g}")
    return prices
