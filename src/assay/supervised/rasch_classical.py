r"""What Rasch models are fitted with today: conditional, marginal and joint likelihood, and the spectral method.

All four estimate difficulties from the same sufficient totals and differ in what they do with the abilities.
*Conditional* likelihood removes them, as the distribution of the answers given a user's total does not depend on the
ability. *Marginal* likelihood integrates them over a normal distribution whose scale it estimates. *Joint* likelihood
maximises over them, which is biased for short tests and has no maximum when a user or an item has only right or only
wrong answers. The *spectral* method reads the difficulties off the stationary distribution of a Markov chain on the
items that moves along the pairs of which a user solved one and not the other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import linalg
from scipy.optimize import minimize
from scipy.sparse.csgraph import connected_components

from assay.certificate import Certificate
from assay.result import Result
from assay.supervised.rasch_ability import AbilityMixture, solve_abilities
from assay.supervised.rasch_certificate import certificates_at, posterior_at
from assay.supervised.rasch_em import RaschProblem, maximize_posterior
from assay.supervised.rasch_responses import Responses, check_responses
from assay.validation import check_integer, check_real, warn_not_converged

__all__ = [
    "ItemCalibration",
    "rasch_cml",
    "rasch_jml",
    "rasch_mml",
    "require_comparable_items",
    "spectral_difficulties",
    "spectral_rasch",
]

_LEAST_LOG_SCALE = -8.0


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ItemCalibration(Result):
    """Difficulties by one of the classical methods, and abilities that go with them.

    Parameters
    ----------
    difficulties, se_difficulties : numpy.ndarray of shape (n_items,)
        Estimates, and their standard errors (nan where the method gives none).
    abilities, se_abilities : numpy.ndarray of shape (n_users,)
        Estimates given the difficulties; infinite for perfect and zero scores unless the method integrates.
    log_likelihood : float
        Of the kind that was maximised; nan for the spectral method.
    ability_scale : float
        Standard deviation of the abilities, of marginal likelihood; else nan.
    n_iter : int
        Iterations.
    converged : bool
        Whether ``tol`` was reached.
    item_names : list or None
        Labels, when the responses had them.
    """

    difficulties: Float[np.ndarray, " items"]
    se_difficulties: Float[np.ndarray, " items"]
    abilities: Float[np.ndarray, " users"]
    se_abilities: Float[np.ndarray, " users"]
    log_likelihood: float = math.nan
    ability_scale: float = math.nan
    n_iter: int = 0
    converged: bool = True
    item_names: list[Any] | None = None

    def items(self) -> pd.DataFrame:
        """Table with a row per item."""
        return pd.DataFrame({"difficulty": self.difficulties, "se": self.se_difficulties}, index=self.item_names)


def require_comparable_items(responses: Responses) -> Float[np.ndarray, "items items"]:
    """Check that no group of items was always solved before the others, and return the counts of comparisons.

    Parameters
    ----------
    responses : Responses
        The table.

    Returns
    -------
    numpy.ndarray of shape (n_items, n_items)
        How many users answered the row's item rightly and the column's item wrongly.

    Raises
    ------
    ValueError
        If the directed graph of these comparisons is not strongly connected: then the estimates are not finite.
    """
    wins = responses.comparisons()
    n_parts, part = connected_components(wins > 0, directed=True, connection="strong")
    if n_parts > 1:
        smallest = np.flatnonzero(part == np.bincount(part).argmin())
        names = ", ".join(responses.name_of_item(int(one)) for one in smallest[:5])
        more = f" and {len(smallest) - 5} more" if len(smallest) > 5 else ""
        raise ValueError(
            f"X must compare all items with each other, but {names}{more} can be separated from the rest: no chain of "
            "users who solved one item and not the next leads there and back, and without priors the estimates are "
            "infinite"
        )
    return wins


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
            normalizer, expected = _symmetric(-points[:, items], counts)
            value += normalizer + points[:, items] @ right
            gradient[:, items] += right - expected
        return value / n_users, gradient / n_users

    answer = _minimize(
        lambda point: tuple(part[0] for part in negative(point[None])), spectral_difficulties(wins), tol, max_iter
    )
    hessian = _differences(lambda point: negative(point[None])[1][0], answer.x)
    covariance = linalg.pinvh(hessian, rtol=1e-8)
    # The last digits: a line search cannot see differences of the value that its slope still tells apart.
    difficulties = answer.x - covariance @ negative(answer.x[None])[1][0]
    difficulties -= difficulties.mean()
    value, gradient = negative(difficulties[None])
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0) / n_users)
    abilities, ability_errors = solve_abilities(responses, difficulties, math.inf)
    return _calibration(
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


def _symmetric(
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
    answer = _minimize(negative, start, tol, max_iter, last_bounds=(_LEAST_LOG_SCALE, 5.0))
    point = answer.x
    value, gradient = negative(point)
    # Data may vary less than answers of users who are all alike: the scale is then 0, the end of its interval.
    at_bound = point[-1] <= _LEAST_LOG_SCALE and gradient[-1] > 0
    covariance = linalg.pinvh(_differences(lambda near: negative(near)[1], point))
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
    return _calibration(
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


def require_mixed_answers(responses: Responses, *, items: bool) -> None:
    """Refuse a table in which an item (or a user) has only right or only wrong answers.

    Parameters
    ----------
    responses : Responses
        The table.
    items : bool
        Whether to look at items, or at users.

    Raises
    ------
    ValueError
        With the first such item or user.
    """
    user_counts, user_right, item_counts, item_right = responses.totals
    counts, right = (item_counts, item_right) if items else (user_counts, user_right)
    same = np.flatnonzero((right == 0) | (right == counts))
    if len(same):
        one = int(same[0])
        name = responses.name_of_item(one) if items else responses.name_of_user(one)
        what = "no" if counts[one] == 0 else "only wrong" if right[one] == 0 else "only right"
        side = "item" if items else "user"
        raise ValueError(
            f"X must have a right and a wrong answer of every {side}, but {name} has {what} answers: without a prior "
            "its estimate is not finite"
        )


def _minimize(
    objective: Callable[[np.ndarray], Any],
    start: np.ndarray,
    tol: float,
    max_iter: int,
    last_bounds: tuple[float, float] | None = None,
) -> Any:
    bounds = None if last_bounds is None else [(None, None)] * (len(start) - 1) + [last_bounds]
    return minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": max_iter, "maxfun": 20 * max_iter, "maxcor": 30, "ftol": 0.0, "gtol": 0.3 * tol},
    )


def _differences(gradient: Callable[[np.ndarray], np.ndarray], point: np.ndarray) -> Float[np.ndarray, "n n"]:
    """Hessian by central differences of a gradient."""
    steps = 1e-4 * np.eye(len(point))
    hessian = np.stack([(gradient(point + step) - gradient(point - step)) / 2e-4 for step in steps])
    return 0.5 * (hessian + hessian.T)


def _calibration(
    responses: Responses, answer: Any, statement: str, reached: float, tol: float, name: str, **fields: Any
) -> ItemCalibration:
    certificate = Certificate(statement, reached, tol)
    if not certificate.holds:
        warn_not_converged(name, int(answer.nit), reached, tol, stacklevel=4)
    return ItemCalibration(
        n_iter=int(answer.nit),
        converged=certificate.holds,
        item_names=responses.item_names,
        certificates=(certificate,),
        **fields,
    )
