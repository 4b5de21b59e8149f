r"""The spectral method: difficulties from the stationary distribution of a Markov chain on the items.

The chain moves along the pairs of items of which a user solved one and not the other. No ability is needed, and no
iteration.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.certificate import Certificate
from assay.supervised.rasch_ability import solve_abilities
from assay.supervised.rasch_calibration import ItemCalibration, require_comparable_items
from assay.supervised.rasch_responses import check_responses

__all__ = ["spectral_difficulties", "spectral_rasch"]


def spectral_difficulties(wins: Float[np.ndarray, "items items"]) -> Float[np.ndarray, " items"]:
    """Centred logarithm of the stationary distribution of the chain that moves from solved to unsolved items.

    Parameters
    ----------
    wins : numpy.ndarray of shape (n_items, n_items)
        How often the row's item was solved by a user who did not solve the column's item; irreducible.

    Returns
    -------
    numpy.ndarray of shape (n_items,)

    Notes
    -----
    By the elimination of Grassmann, Taksar and Heyman, which subtracts nothing, so that small probabilities have as
    many correct digits as large ones. O(n_items^3).
    """
    rates = wins.astype(float).copy()
    np.fill_diagonal(rates, 0.0)
    # Any common divisor makes the rows those of a chain and leaves the stationary distribution as it is.
    rates /= 2.0 * rates.sum(axis=1).max()
    size = len(rates)
    for last in range(size - 1, 0, -1):
        rates[:last, last] /= rates[last, :last].sum()
        rates[:last, :last] += np.outer(rates[:last, last], rates[last, :last])
    stationary = np.ones(size)
    for state in range(1, size):
        stationary[state] = stationary[:state] @ rates[:state, state]
        stationary[: state + 1] /= stationary[: state + 1].sum()
    logarithm = np.log(stationary)
    return logarithm - logarithm.mean()


def spectral_rasch(X: Any, *, mask: Any = None) -> ItemCalibration:
    r"""Difficulties by the spectral method.

    The chain moves from item ``i`` to item ``j`` at a rate proportional to the number of users who solved ``i`` and not
    ``j``. Under a Rasch model :math:`P(x_i = 1, x_j = 0) / P(x_i = 0, x_j = 1) = e^{\beta_j - \beta_i}`, whatever the
    ability, so that :math:`\log \pi` estimates the difficulties up to a constant.

    Parameters
    ----------
    X : array_like, data frame or sparse matrix of shape (n_users, n_items)
        Responses, as for :func:`~assay.supervised.fit_rasch`.
    mask : array_like or sparse matrix, optional
        Which cells of ``X`` are observed.

    Returns
    -------
    ItemCalibration
        Centred difficulties without standard errors; abilities are those of maximum likelihood.

    Raises
    ------
    ValueError, TypeError
        For what is no table of responses, or when a group of items is separated from the others.

    References
    ----------
    D. Nguyen, A. Y. Zhang. A spectral approach to item response theory. NeurIPS 2022.

    Examples
    --------
    >>> from assay.data.lsat import load_lsat6
    >>> from assay.supervised import spectral_rasch
    >>> spectral_rasch(load_lsat6()).difficulties.round(2).tolist()
    [-1.3, 0.48, 1.25, 0.17, -0.6]
    """
    responses = check_responses(X, mask)
    wins = require_comparable_items(responses)
    difficulties = spectral_difficulties(wins)
    abilities, errors = solve_abilities(responses, difficulties, math.inf)
    stationary = np.exp(difficulties - difficulties.max())
    flow = stationary[:, None] * wins
    imbalance = np.abs(flow.sum(axis=0) - flow.sum(axis=1)).max() / flow.sum()
    return ItemCalibration(
        difficulties=difficulties,
        se_difficulties=np.full(len(difficulties), np.nan),
        abilities=abilities,
        se_abilities=errors,
        item_names=responses.item_names,
        certificates=(Certificate("largest imbalance of the chain's flow in an item", imbalance, 1e-12),),
    )
