r"""Joint maximum likelihood: the estimator of Rasch models without priors.

All classical estimators start from the same sufficient totals and differ in what they do with the abilities.
*Conditional* likelihood (:mod:`~assay.supervised.rasch_conditional`) removes them, *marginal* likelihood
(:mod:`~assay.supervised.rasch_marginal`) integrates them over a normal distribution, the *spectral* method
(:mod:`~assay.supervised.rasch_spectral`) looks at pairs of items, in which they cancel. *Joint* likelihood maximises
over them, which is biased for short tests and has no maximum when a user or an item has only right or only wrong
answers.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.supervised.rasch_calibration import ItemCalibration, require_comparable_items
from assay.supervised.rasch_certificate import certificates_at, posterior_at
from assay.supervised.rasch_em import RaschProblem, maximize_posterior
from assay.supervised.rasch_responses import Responses, check_responses
from assay.validation import check_integer, check_real, warn_not_converged

__all__ = ["rasch_jml"]


def rasch_jml(X: Any, *, mask: Any = None, tol: float = 1e-8, max_iter: int = 5000) -> ItemCalibration:
    """Difficulties and abilities by joint maximum likelihood, without priors.

    Users and items that have only right or only wrong answers are set aside, again and again until none is left, and
    get infinite estimates. What remains is fitted by the same expectation maximisation as
    :func:`~assay.supervised.fit_rasch`, with acceleration.

    Parameters
    ----------
    X : array_like, data frame or sparse matrix of shape (n_users, n_items)
        Responses, as for :func:`~assay.supervised.fit_rasch`.
    mask : array_like or sparse matrix, optional
        Which cells of ``X`` are observed.
    tol : float, default=1e-8
        Largest change of a parameter in the last iteration.
    max_iter : int, default=5000
        Most iterations.

    Returns
    -------
    ItemCalibration
        Difficulties with mean 0 (over the finite ones).

    Raises
    ------
    ValueError, TypeError
        For what is no table of responses, or when a group of items is separated from the others, or nothing remains.

    Notes
    -----
    Differences of difficulties are too large by a factor of about ``n_items / (n_items - 1)``, however many users there
    are.

    Examples
    --------
    >>> from assay.data.lsat import load_lsat6
    >>> from assay.supervised import rasch_jml
    >>> fit = rasch_jml(load_lsat6())
    >>> fit.difficulties.round(2).tolist(), float(fit.abilities[0])
    ([-1.55, 0.56, 1.63, 0.17, -0.81], -inf)
    """
    tol, max_iter = check_real(tol, "tol", above=0), check_integer(max_iter, "max_iter", minimum=1)
    responses = check_responses(X, mask)
    users, items, abilities, difficulties = _without_extremes(responses)
    if len(users) < 2 or len(items) < 2:
        raise ValueError("X must have 2 users and 2 items with both right and wrong answers, got fewer")
    cells = responses.cells
    if len(users) < len(abilities):
        cells = cells[users]
    if len(items) < len(difficulties):
        cells = cells[:, items]
    part = Responses(cells)
    named = Responses(
        cells, None, [responses.item_names[i] if responses.item_names is not None else int(i) for i in items]
    )
    require_comparable_items(named)
    problem = RaschProblem(part, math.inf, math.inf)
    trace = maximize_posterior(
        problem, *problem.start(None, None), update="joint", accelerate=True, tol=tol, max_iter=max_iter
    )
    theta, beta = problem.unpack(trace.a, trace.b)
    theta, beta = theta - beta.mean(), beta - beta.mean()
    at = posterior_at(part, theta, beta, math.inf, math.inf)
    se_theta, se_beta = problem.standard_errors(trace.a, trace.b, centred=True)
    abilities[users], difficulties[items] = theta, beta
    se_abilities, se_difficulties = np.full(len(abilities), np.inf), np.full(len(difficulties), np.inf)
    se_abilities[users], se_difficulties[items] = se_theta, se_beta
    if not trace.converged:
        warn_not_converged("rasch_jml", trace.n_iter, float(trace.history["change"][-1]), tol)
    return ItemCalibration(
        difficulties=difficulties,
        se_difficulties=se_difficulties,
        abilities=abilities,
        se_abilities=se_abilities,
        log_likelihood=at.log_likelihood,
        n_iter=trace.n_iter,
        converged=trace.converged,
        item_names=responses.item_names,
        certificates=certificates_at(part, at, tol, trace.history["log_posterior"], False),
        history=trace.history,
    )


def _without_extremes(responses: Responses) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Users and items that remain, and parameters that are infinite for the others (nan without answers)."""
    abilities, difficulties = np.zeros(responses.shape[0]), np.zeros(responses.shape[1])
    users, items = np.arange(len(abilities)), np.arange(len(difficulties))
    part = responses
    while part.shape[0] and part.shape[1]:
        user_counts, user_right, item_counts, item_right = part.totals
        keep_users = (user_right > 0) & (user_right < user_counts)
        keep_items = (item_right > 0) & (item_right < item_counts)
        if keep_users.all() and keep_items.all():
            break
        abilities[users[~keep_users]] = _limits(user_counts, user_right)[~keep_users]
        difficulties[items[~keep_items]] = -_limits(item_counts, item_right)[~keep_items]
        users, items = users[keep_users], items[keep_items]
        part = Responses(part.cells[keep_users][:, keep_items])
    return users, items, abilities, difficulties


def _limits(counts: np.ndarray, right: np.ndarray) -> Float[np.ndarray, " n"]:
    return np.where(counts == 0, np.nan, np.where(right == 0, -np.inf, np.inf))
