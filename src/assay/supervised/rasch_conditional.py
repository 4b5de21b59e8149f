r"""Conditional maximum likelihood: the abilities cancel.

Given how many items a user solved, which ones they were does not depend on the ability. The likelihood of the answers
given the totals has the elementary symmetric functions of :math:`e^{-\beta}` in place of the abilities.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import linalg

from assay.supervised.rasch_ability import solve_abilities
from assay.supervised.rasch_calibration import (
    ItemCalibration,
    certified_calibration,
    hessian_of,
    minimize_smooth,
    require_comparable_items,
)
from assay.supervised.rasch_responses import Responses, check_responses
from assay.supervised.rasch_spectral import spectral_difficulties
from assay.validation import check_integer, check_real

__all__ = ["rasch_cml", "symmetric_sums"]


def rasch_cml(X: Any, *, mask: Any = None, tol: float = 1e-8, max_iter: int = 1000) -> ItemCalibration:
    r"""Difficulties by conditional maximum likelihood.

    Maximises the likelihood of the answers given the totals of the users, in which the elementary symmetric functions
    of :math:`e^{-\beta}` replace the abilities.

    Parameters
    ----------
    X : array_like, data frame or sparse matrix of shape (n_users, n_items)
        Responses, as for :func:`~assay.supervised.fit_rasch`.
    mask : array_like or sparse matrix, optional
        Which cells of ``X`` are observed.
    tol : float, default=1e-8
        Largest difference between the observed and the expected total of an item, relative to the number of users.
    max_iter : int, default=1000
        Most iterations of L-BFGS.

    Returns
    -------
    ItemCalibration
        Centred difficulties; abilities are those of maximum likelihood.

    Raises
    ------
    ValueError, TypeError
        For what is no table of responses, or when a group of items is separated from the others.

    Notes
    -----
    The symmetric functions are added up in logarithms, and differentiated in reverse: O(n_items^2) per iteration and
    pattern of observed cells, of which there is one in a complete table. Standard errors take 2 n_items gradients.

    Examples
    --------
    >>> from assay.data.lsat import load_lsat6
    >>> from assay.supervised import rasch_cml
    >>> rasch_cml(load_lsat6()).difficulties.round(4).tolist()
    [-1.2561, 0.4749, 1.236, 0.1684, -0.6232]
    """
    tol, max_iter = check_real(tol, "tol", above=0), check_integer(max_iter, "max_iter", minimum=1)
    responses = check_responses(X, mask)
    wins = require_comparable_items(responses)
    parts = _conditional_parts(responses)
    n_users = sum(part[1].sum() for part in parts)

    def negative(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = np.zeros(len(points)), np.zeros_like(points)
        for items, counts, right in parts:
            normalizer, expected = symmetric_sums(-points[:, items], counts)
            value += normalizer + points[:, items] @ right
            gradient[:, items] += right - expected
        return value / n_users, gradient / n_users

    answer = minimize_smooth(
        lambda point: tuple(part[0] for part in negative(point[None])), spectral_difficulties(wins), tol, max_iter
    )
    hessian = hessian_of(lambda point: negative(point[None])[1][0], answer.x)
    covariance = linalg.pinvh(hessian, rtol=1e-8)
    # The last digits: a line search cannot see differences of the value that its slope still tells apart.
    difficulties = answer.x - covariance @ negative(answer.x[None])[1][0]
    difficulties -= difficulties.mean()
    value, gradient = negative(difficulties[None])
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0) / n_users)
    abilities, ability_errors = solve_abilities(responses, difficulties, math.inf)
    return certified_calibration(
        responses,
        answer,
        "largest difference of observed and expected totals of an item, per user",
        float(np.abs(gradient).max()),
        tol,
        "rasch_cml",
        difficulties=difficulties,
        se_difficulties=errors,
        abilities=abilities,
        se_abilities=ability_errors,
        log_likelihood=float(-n_users * value[0]),
    )


def _conditional_parts(responses: Responses) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Per pattern of observed cells: the items, how many users had each total, and the right answers per item."""
    n_items = responses.shape[1]
    cells = responses.cells.toarray() if responses.is_sparse else responses.cells
    if responses.is_sparse:
        pattern = responses.cells.copy()
        pattern.data = np.ones_like(pattern.data)
        cells = np.where(pattern.toarray() > 0, cells, -1)
    if not responses.is_sparse and responses.is_complete:
        patterns, of_user = np.ones((1, n_items), dtype=bool), np.zeros(len(cells), dtype=int)
    else:
        patterns, of_user = np.unique(cells >= 0, axis=0, return_inverse=True)
    parts = []
    for index, observed in enumerate(patterns):
        items = np.flatnonzero(observed)
        answers = cells[of_user == index] if len(patterns) > 1 else cells
        totals = (answers == 1).sum(axis=1)
        # Perfect and zero scores have one possible set of answers, and say nothing.
        informative = (totals > 0) & (totals < len(items))
        if informative.any():
            counts = np.bincount(totals[informative], minlength=len(items) + 1).astype(float)
            parts.append((items, counts, (answers[informative][:, items] == 1).sum(axis=0).astype(float)))
    return parts


def symmetric_sums(
    logs: Float[np.ndarray, "points items"], counts: Float[np.ndarray, " totals"]
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, "points items"]]:
    """Sum of counts times the logarithms of elementary symmetric functions, and its derivative in ``logs``."""
    n_points, n_items = logs.shape
    prefix = np.full((n_items + 1, n_points, n_items + 1), -np.inf)
    prefix[0, :, 0] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        for item in range(n_items):
            before, after = prefix[item], prefix[item + 1]
            after[:] = before
            after[:, 1:] = np.logaddexp(before[:, 1:], before[:, :-1] + logs[:, item, None])
        used = counts > 0
        value = prefix[-1][:, used] @ counts[used]
        adjoint = np.where(used, np.log(counts) - prefix[-1], -np.inf)
        expected = np.empty_like(logs)
        for item in range(n_items - 1, -1, -1):
            through = adjoint[:, 1:] + logs[:, item, None]
            expected[:, item] = np.exp(through + prefix[item][:, :-1]).sum(axis=1)
            adjoint[:, :-1] = np.logaddexp(adjoint[:, :-1], through)
    return value, expected
