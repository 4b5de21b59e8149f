r"""Fit statistics of items and persons: do the residuals have the size that the model says?

A response that the model gives the probability ``p`` has variance ``W = p (1 - p)``. *Outfit* is the mean of squared
residuals over ``W``, and is sensitive to surprises far from a person's level; *infit* is the ratio of their sums, and
is sensitive to what happens near it. Both are 1 on average under the model. The standardised forms turn them into
approximate standard normals by the cube root of Wilson and Hilferty.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import expit

from assay.result import Result
from assay.supervised.rasch_responses import check_responses
from assay.validation import as_float_array

__all__ = ["RaschFitStatistics", "rasch_fit_statistics"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RaschFitStatistics(Result):
    """Mean squares of items and persons, and their standardised forms.

    Parameters
    ----------
    item_infit, item_outfit, item_infit_z, item_outfit_z : numpy.ndarray of shape (n_items,)
        Of every item; nan without responses.
    user_infit, user_outfit, user_infit_z, user_outfit_z : numpy.ndarray of shape (n_users,)
        Of every user; nan without responses.
    item_names, user_names : list or None
        Labels, when the responses had them.
    """

    item_infit: Float[np.ndarray, " items"]
    item_outfit: Float[np.ndarray, " items"]
    item_infit_z: Float[np.ndarray, " items"]
    item_outfit_z: Float[np.ndarray, " items"]
    user_infit: Float[np.ndarray, " users"]
    user_outfit: Float[np.ndarray, " users"]
    user_infit_z: Float[np.ndarray, " users"]
    user_outfit_z: Float[np.ndarray, " users"]
    item_names: list[Any] | None = None
    user_names: list[Any] | None = None

    def items(self) -> pd.DataFrame:
        """Table with a row per item."""
        return self._frame("item", self.item_names)

    def users(self) -> pd.DataFrame:
        """Table with a row per user."""
        return self._frame("user", self.user_names)

    def _frame(self, side: str, names: list[Any] | None) -> pd.DataFrame:
        columns = ("infit", "infit_z", "outfit", "outfit_z")
        return pd.DataFrame({name: getattr(self, f"{side}_{name}") for name in columns}, index=names)


def rasch_fit_statistics(
    X: Any, abilities: ArrayLike, difficulties: ArrayLike, *, mask: Any = None
) -> RaschFitStatistics:
    r"""Infit and outfit of every item and person.

    With residuals :math:`y = x - p`, variances :math:`W = p(1-p)` and fourth moments :math:`C = W (1 - 3 W)` of the
    observed cells of a row or column,

    .. math:: \text{outfit} = \tfrac1N \sum y^2 / W, \qquad \text{infit} = \sum y^2 / \sum W,

    with variances :math:`q^2 = \sum (C / W^2) / N^2 - 1 / N` and :math:`q^2 = \sum (C - W^2) / (\sum W)^2`, and
    standardised forms :math:`z = (\text{fit}^{1/3} - 1) \, 3 / q + q / 3`.

    Parameters
    ----------
    X : array_like, data frame or sparse matrix of shape (n_users, n_items)
        Responses, as for :func:`~assay.supervised.fit_rasch`.
    abilities : array_like of shape (n_users,)
        Abilities; infinite ones (of perfect scores, by methods without priors) give nan and count for no item.
    difficulties : array_like of shape (n_items,)
        Difficulties, on the same scale.
    mask : array_like or sparse matrix, optional
        Which cells of ``X`` are observed.

    Returns
    -------
    RaschFitStatistics

    Raises
    ------
    ValueError, TypeError
        For what is no table of responses, or parameters that do not fit to it.

    Notes
    -----
    The mean squares are a little below 1 on average, as the parameters were fitted to the same responses. As a rule of
    thumb, values of .7 to 1.3 are productive for measurement, above 2 they distort it. O(n_users n_items).

    References
    ----------
    B. D. Wright, G. N. Masters. Rating Scale Analysis. MESA Press, 1982. Chapter 5.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import fit_rasch, rasch_fit_statistics
    >>> rng = np.random.default_rng(0)
    >>> chance = 1 / (1 + np.exp(rng.normal(size=20) - rng.normal(size=(500, 1))))
    >>> X = (rng.random((500, 20)) < chance).astype(int)
    >>> X[:, 0] = rng.integers(0, 2, 500)  # an item that measures nothing
    >>> fit = fit_rasch(X)
    >>> statistics = rasch_fit_statistics(X, fit.abilities, fit.difficulties)
    >>> int(statistics.item_infit_z.argmax()), bool(statistics.item_infit_z[0] > 3)
    (0, True)
    """
    responses = check_responses(X, mask, min_users=1)
    n_users, n_items = responses.shape
    theta, beta = (
        _parameters(abilities, "abilities", n_users),
        _parameters(difficulties, "difficulties", n_items),
    )
    user_sums, item_sums = np.zeros((6, n_users)), np.zeros((6, n_items))
    for block in responses.blocks():
        margins = block.margins(theta, beta)
        finite = np.isfinite(margins)
        margins = np.where(finite, margins, 0.0)
        p = expit(margins)
        # p (1 - p) and 1 / W of far margins, without the cancellation in 1 - p.
        variance = p * expit(-margins)
        squared = np.where(block.answers == 1, expit(-margins), p) ** 2
        # y^2 / W: the odds of what did not happen.
        surprise = np.exp(np.where(block.answers == 1, -margins, margins))
        terms = (
            finite.astype(float),
            squared * finite,
            variance * finite,
            surprise * finite,
            variance * (1.0 - 4.0 * variance) * finite,
            (1.0 / variance - 3.0) * finite,
        )
        for row, term in enumerate(terms):
            user_sums[row, block.users] = block.sum_items(term)
            item_sums[row] += block.sum_users(term)
    user, item = _mean_squares(user_sums), _mean_squares(item_sums)
    return RaschFitStatistics(
        item_infit=item[0],
        item_outfit=item[1],
        item_infit_z=item[2],
        item_outfit_z=item[3],
        user_infit=user[0],
        user_outfit=user[1],
        user_infit_z=user[2],
        user_outfit_z=user[3],
        item_names=responses.item_names,
        user_names=responses.user_names,
    )


def _parameters(values: ArrayLike, name: str, size: int) -> Float[np.ndarray, " size"]:
    vector = np.asarray(values, dtype=float)
    as_float_array(np.where(np.isinf(vector), math.pi, vector), name, ndim=1)
    if vector.shape != (size,):
        raise ValueError(f"{name} must have length {size}, got shape {vector.shape}")
    return vector


def _mean_squares(sums: Float[np.ndarray, "6 n"]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Infit, outfit and their standardised forms from sums over cells."""
    count, squared, variance, surprise, infit_variance, kurtosis = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        infit, outfit = squared / variance, surprise / count
        infit_spread = np.sqrt(np.maximum(infit_variance, 0.0)) / variance
        outfit_spread = np.sqrt(np.maximum(kurtosis / count**2 - 1.0 / count, 0.0))
        return infit, outfit, _standardised(infit, infit_spread), _standardised(outfit, outfit_spread)


def _standardised(mean_square: np.ndarray, spread: np.ndarray) -> np.ndarray:
    # Where every response is a coin flip, the mean square is 1 whatever the answers, and nothing deviates.
    known = spread > 1e-8
    safe = np.where(known, spread, 1.0)
    z = (np.cbrt(mean_square) - 1.0) * 3.0 / safe + safe / 3.0
    return np.where(known, z, np.where(np.isnan(mean_square), np.nan, 0.0))
