r"""Marginal maximum likelihood: the abilities are integrated over a normal distribution, whose scale is estimated."""

import math
from typing import Any

import numpy as np
from scipy import linalg

from assay.supervised.rasch_ability import AbilityMixture
from assay.supervised.rasch_calibration import (
    ItemCalibration,
    certified_calibration,
    hessian_of,
    minimize_smooth,
    require_mixed_answers,
)
from assay.supervised.rasch_responses import Responses, check_responses
from assay.validation import check_integer, check_real

__all__ = ["rasch_mml"]

_LEAST_LOG_SCALE = -8.0


def rasch_mml(X: Any, nodes: int = 61, *, mask: Any = None, tol: float = 1e-8, max_iter: int = 1000) -> ItemCalibration:
    r"""Difficulties and the scale of the abilities by marginal maximum likelihood.

    Abilities are normal with mean 0 and standard deviation ``s``, and integrated out by a Gauss-Hermite rule.

    Parameters
    ----------
    X : array_like, data frame or sparse matrix of shape (n_users, n_items)
        Responses, as for :func:`~assay.supervised.fit_rasch`.
    nodes : int, default=61
        Nodes of the rule.
    mask : array_like or sparse matrix, optional
        Which cells of ``X`` are observed.
    tol : float, default=1e-8
        Largest entry of the gradient in the difficulties and ``log s``, per user.
    max_iter : int, default=1000
        Most iterations of L-BFGS.

    Returns
    -------
    ItemCalibration
        Abilities are the means of their distributions given the answers, with the standard deviations.

    Raises
    ------
    ValueError, TypeError
        For what is no table of responses, or when an item has only right or only wrong answers.

    Notes
    -----
    O(nodes n_items) per iteration for a complete table of any length, O(nodes n_users n_items) with missing cells.

    References
    ----------
    R. D. Bock, M. Aitkin. Marginal maximum likelihood estimation of item parameters: application of an EM algorithm.
    Psychometrika 46, 1981.

    Examples
    --------
    >>> from assay.data.lsat import load_lsat6
    >>> from assay.supervised import rasch_mml
    >>> fit = rasch_mml(load_lsat6())
    >>> fit.difficulties.round(3).tolist(), round(fit.ability_scale, 4)
    ([-2.73, -0.999, -0.24, -1.306, -2.099], 0.7551)
    """
    nodes = check_integer(nodes, "nodes", minimum=3)
    tol, max_iter = check_real(tol, "tol", above=0), check_integer(max_iter, "max_iter", minimum=1)
    responses = check_responses(X, mask)
    require_mixed_answers(responses, items=True)
    mixture = AbilityMixture.of_size(nodes)
    table, of_user, weights = _by_total(responses)
    n_users, n_items = responses.shape
    item_right = responses.totals[3]
    right = table.totals[1]

    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        beta, scale = point[:-1], math.exp(point[-1])
        p = 1.0 / (1.0 + np.exp(np.clip(beta - scale * mixture.nodes[:, None], -700.0, 700.0)))
        value, slope, expected = float(-(item_right @ beta)), 0.0, np.zeros(n_items)
        for rows, log_likelihood, posterior, observed in mixture.posterior(table, beta, scale):
            value += float(weights[rows] @ log_likelihood)
            heavy = posterior * weights[rows, None]
            if observed is None:
                per_node = heavy.sum(axis=0)
                expected += per_node @ p
                slope += float((right[rows] @ heavy - per_node * p.sum(axis=1)) @ mixture.nodes)
            else:
                by_item = observed.T @ heavy
                expected += (by_item * p.T).sum(axis=1)
                slope += float((right[rows] @ heavy - (by_item * p.T).sum(axis=0)) @ mixture.nodes)
        return -value / n_users, -np.append(expected - item_right, scale * slope) / n_users

    counts, right_of_items = responses.totals[2], responses.totals[3]
    start = np.append(-np.log(right_of_items / (counts - right_of_items)), 0.0)
    answer = minimize_smooth(negative, start, tol, max_iter, last_bounds=(_LEAST_LOG_SCALE, 5.0))
    point = answer.x
    value, gradient = negative(point)
    # Data may vary less than answers of users who are all alike: the scale is then 0, the end of its interval.
    at_bound = point[-1] <= _LEAST_LOG_SCALE and gradient[-1] > 0
    covariance = linalg.pinvh(hessian_of(lambda near: negative(near)[1], point))
    if not at_bound:
        # The last digits: a line search cannot see differences of the value that its slope still tells apart.
        finer = point - covariance @ gradient
        if np.abs(negative(finer)[1]).max() < np.abs(gradient).max():
            point = finer
            value, gradient = negative(point)
    difficulties, scale = point[:-1], math.exp(point[-1])
    errors = np.sqrt(np.maximum(np.diag(covariance)[:-1], 0.0) / n_users)
    mean, spread = np.empty(table.shape[0]), np.empty(table.shape[0])
    for rows, _, posterior, _ in mixture.posterior(table, difficulties, scale):
        mean[rows] = scale * (posterior @ mixture.nodes)
        second = scale**2 * (posterior @ mixture.nodes**2)
        spread[rows] = np.sqrt(np.maximum(second - mean[rows] ** 2, 0.0))
    return certified_calibration(
        responses,
        answer,
        "largest entry of the gradient of the marginal log-likelihood, per user",
        float(np.abs(gradient[:-1] if at_bound else gradient).max()),
        tol,
        "rasch_mml",
        difficulties=difficulties,
        se_difficulties=errors,
        abilities=mean[of_user],
        se_abilities=spread[of_user],
        log_likelihood=-value * n_users,
        ability_scale=scale,
    )


def _by_total(responses: Responses) -> tuple[Responses, np.ndarray, np.ndarray]:
    """One row per total of a complete table, the row of every user, and how many users a row stands for."""
    n_users, n_items = responses.shape
    if responses.is_sparse or not responses.is_complete:
        return responses, np.arange(n_users), np.ones(n_users)
    totals, of_user, counts = np.unique(responses.totals[1], return_inverse=True, return_counts=True)
    staircase = Responses((np.arange(n_items) < totals[:, None]).astype(np.int8))
    return staircase, of_user, counts.astype(float)
