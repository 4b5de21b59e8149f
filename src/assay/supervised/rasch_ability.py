"""Abilities when the difficulties are known: one concave problem in one variable per user.

Also the distribution over users: the likelihood of a user's answers with the ability integrated out, which is what
marginal maximum likelihood maximises and what scores users who were not there at calibration.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.special import expit, logsumexp

from assay.supervised.rasch_responses import Responses, check_responses, row_slices
from assay.validation import as_float_array, check_real

__all__ = ["AbilityMixture", "rasch_abilities", "solve_abilities"]

_NEWTON_STEPS = 200


def rasch_abilities(
    X: Any, difficulties: ArrayLike, *, v_theta: float = 1.0, mask: Any = None
) -> tuple[Float[np.ndarray, " users"], Float[np.ndarray, " users"]]:
    """Abilities and their standard errors, with the difficulties held fixed.

    Parameters
    ----------
    X : array_like, data frame or sparse matrix of shape (n_users, n_items)
        Responses, as for :func:`~assay.supervised.fit_rasch`; one user is enough.
    difficulties : array_like of shape (n_items,)
        Difficulties.
    v_theta : float, default=1.0
        Variance of the normal prior of an ability. With ``inf`` the abilities are maximum likelihood estimates, and
        those of perfect and zero scores infinite.
    mask : array_like or sparse matrix, optional
        Which cells of ``X`` are observed.

    Returns
    -------
    abilities, standard_errors : numpy.ndarray of shape (n_users,)
        Without an answer, and with an infinite variance, nan.

    Raises
    ------
    ValueError, TypeError
        For what is no table of responses, or a parameter outside its range.

    Notes
    -----
    Newton steps of at most 1, which converge as the curvature of a log-likelihood of this kind changes by at most a
    factor ``e`` within such a step. O(n_users n_items) each, and O(n_items^2) for a complete table.

    Examples
    --------
    >>> from assay.supervised import rasch_abilities
    >>> abilities, errors = rasch_abilities([[1, 1, 0], [0, 0, 0]], [-1.0, 0.0, 1.0])
    >>> abilities.round(4).tolist()
    [0.3048, -0.9282]
    """
    beta = as_float_array(difficulties, "difficulties", ndim=1)
    responses = check_responses(X, mask, min_users=1, n_items=len(beta))
    return solve_abilities(responses, beta, check_real(v_theta, "v_theta", above=0, allow_infinite=True))


def solve_abilities(
    responses: Responses, difficulties: Float[np.ndarray, " items"], v_theta: float
) -> tuple[Float[np.ndarray, " users"], Float[np.ndarray, " users"]]:
    """As :func:`rasch_abilities`, of a checked table."""
    n_users, n_items = responses.shape
    counts, right = responses.totals[:2]
    if not responses.is_sparse and responses.is_complete and n_users > n_items + 1:
        # The total is all that matters, and there are fewer totals than users.
        totals, of_user = np.unique(right, return_inverse=True)
        staircase = Responses((np.arange(n_items) < totals[:, None]).astype(np.int8))
        by_total = solve_abilities(staircase, difficulties, v_theta)
        return by_total[0][of_user], by_total[1][of_user]
    precision = 1.0 / v_theta
    abilities, information = np.zeros(n_users), np.zeros(n_users)
    for block in responses.blocks():
        ability = np.zeros(block.users.stop - block.users.start)
        finite = (right[block.users] > 0) & (right[block.users] < counts[block.users]) | (precision > 0.0)
        local = np.zeros(n_users)
        for _ in range(_NEWTON_STEPS):
            local[block.users] = ability
            p = expit(block.margins(local, difficulties))
            curvature = block.sum_items(p * (1.0 - p)) + precision
            gradient = right[block.users] - block.sum_items(p) - precision * ability
            step = np.where(finite, np.clip(gradient / np.maximum(curvature, 1e-300), -1.0, 1.0), 0.0)
            ability = ability + step
            if np.abs(step).max(initial=0.0) < 1e-12:
                break
        local[block.users] = ability
        p = expit(block.margins(local, difficulties))
        abilities[block.users] = ability
        information[block.users] = block.sum_items(p * (1.0 - p)) + precision
    if precision == 0.0:
        abilities = np.where(counts == 0, np.nan, abilities)
        abilities = np.where((counts > 0) & (right == 0), -np.inf, abilities)
        abilities = np.where((counts > 0) & (right == counts), np.inf, abilities)
        information[~np.isfinite(abilities)] = 0.0
        information[counts == 0] = np.nan
    with np.errstate(divide="ignore"):
        return abilities, 1.0 / np.sqrt(information)


@dataclass(frozen=True, eq=False)
class AbilityMixture:
    """Normal abilities on the nodes of a Gauss-Hermite rule.

    Parameters
    ----------
    nodes, log_weights : numpy.ndarray of shape (n_nodes,)
        Of the standard normal distribution.
    """

    nodes: np.ndarray
    log_weights: np.ndarray

    @classmethod
    def of_size(cls, n_nodes: int) -> "AbilityMixture":
        """Rule with that many nodes."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
        return cls(nodes, np.log(weights) - 0.5 * math.log(2.0 * math.pi))

    def posterior(
        self, responses: Responses, difficulties: np.ndarray, scale: float
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray, Any]]:
        """Per block of rows: log-likelihood, probability of each node given the answers, and what was observed.

        The log-likelihoods leave out the sum of the difficulties of the items that were answered rightly.
        """
        right = responses.totals[1]
        margins = scale * self.nodes[:, None] - difficulties
        normalizers = np.logaddexp(0.0, margins).T
        for rows in row_slices(responses.shape[0], max(responses.shape[1], len(self.nodes)), 1 << 20):
            observed = _pattern(responses, rows)
            loss = normalizers.sum(axis=0) if observed is None else observed @ normalizers
            joint = self.log_weights + np.outer(right[rows], scale * self.nodes) - loss
            log_likelihood = logsumexp(joint, axis=1)
            yield rows, log_likelihood, np.exp(joint - log_likelihood[:, None]), observed

    def log_likelihood(self, responses: Responses, difficulties: np.ndarray, scale: float) -> float:
        """Log-likelihood of the whole table."""
        total = sum(values.sum() for _, values, _, _ in self.posterior(responses, difficulties, scale))
        return float(total - responses.totals[3] @ difficulties)


def _pattern(responses: Responses, rows: slice) -> Any:
    """1 where observed, or None when everything is."""
    if responses.is_sparse:
        block = responses.cells[rows]
        return sparse.csr_array((np.ones(block.nnz), block.indices, block.indptr), shape=block.shape)
    return None if responses.is_complete else (responses.cells[rows] >= 0).astype(float)
