r"""What a fitted Rasch model promises, recomputed from the answers and the returned parameters.

With proper priors the log-posterior is strongly concave: minus its Hessian is at least the inverse prior variances. Its
gradient at *any* point then bounds how far that point is below the maximum,

.. math:: Q^* - Q \le \tfrac12 v_\theta |g_\theta|^2 + \tfrac12 v_\beta |g_\beta|^2 ,

and no eigenvalue is needed. The gradient is a table of residuals added up along rows and columns; here that is done
cell by cell, without the sufficient totals and groups that the iteration works with.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import expit

from assay.certificate import Assumption, Certificate
from assay.supervised.rasch_em import RaschProblem
from assay.supervised.rasch_responses import DenseBlock, Responses, check_responses
from assay.validation import as_float_array, check_real

__all__ = ["Posterior", "fitted_rate", "posterior_at", "rasch_certificates", "rate_bound"]

_SEEN_GAP = 1e-7
_LAST = 5


@dataclass(frozen=True, eq=False)
class Posterior:
    """The log-posterior at a point, its gradient, and the largest margin of an observed cell."""

    abilities: np.ndarray
    difficulties: np.ndarray
    log_posterior: float
    log_likelihood: float
    ability_gradient: np.ndarray
    difficulty_gradient: np.ndarray
    largest_margin: float
    v_theta: float
    v_beta: float

    @property
    def gap_bound(self) -> float:
        """Bound on how far the log-posterior is below its maximum, infinite with an infinite variance."""
        if math.isinf(self.v_theta) or math.isinf(self.v_beta):
            return math.inf
        abilities = self.v_theta * (self.ability_gradient @ self.ability_gradient)
        return float(0.5 * abilities + 0.5 * self.v_beta * (self.difficulty_gradient @ self.difficulty_gradient))

    @property
    def gradient_norm(self) -> float:
        """Largest entry of the gradient."""
        return float(max(np.abs(self.ability_gradient).max(), np.abs(self.difficulty_gradient).max()))


def posterior_at(
    responses: Responses,
    abilities: Float[np.ndarray, " users"],
    difficulties: Float[np.ndarray, " items"],
    v_theta: float,
    v_beta: float,
) -> Posterior:
    """Evaluate the log-posterior and its gradient cell by cell.

    Parameters
    ----------
    responses : Responses
        The table.
    abilities, difficulties : numpy.ndarray
        The point.
    v_theta, v_beta : float
        Prior variances, possibly infinite.

    Returns
    -------
    Posterior
    """
    by_user, by_item = np.empty(len(abilities)), np.zeros(len(difficulties))
    log_likelihood = largest = 0.0
    for block in responses.blocks():
        margins = block.margins(abilities, difficulties)
        residuals = block.answers - expit(margins)
        by_user[block.users] = block.sum_items(residuals)
        by_item += block.sum_users(residuals)
        terms = block.answers * margins - np.logaddexp(0.0, margins)
        size = np.abs(margins)
        if isinstance(block, DenseBlock) and block.observed is not None:
            terms, size = terms[block.observed], size[block.observed]
        log_likelihood += float(terms.sum())
        largest = max(largest, float(size.max(initial=0.0)))
    prior = (abilities @ abilities) / v_theta + (difficulties @ difficulties) / v_beta
    return Posterior(
        abilities,
        difficulties,
        log_likelihood - 0.5 * float(prior),
        log_likelihood,
        by_user - abilities / v_theta,
        -by_item - difficulties / v_beta,
        largest,
        v_theta,
        v_beta,
    )


def rate_bound(largest_margin: float) -> float:
    r"""Bound on the linear rate of the joint iteration, from the largest margin of an observed cell.

    The curvature of the log-likelihood in a cell is at least :math:`\psi / \sinh \psi` times that of its minorant.

    Parameters
    ----------
    largest_margin : float
        Largest ``|ability - difficulty|``.

    Returns
    -------
    float

    Examples
    --------
    >>> from assay.supervised.rasch_certificate import rate_bound
    >>> round(rate_bound(2.0), 4)
    0.4486
    """
    if largest_margin < 1e-4:
        return largest_margin**2 / 6.0
    # Beyond 700 the hyperbolic sine overflows, and the quotient is 0.
    return 1.0 - largest_margin / math.sinh(largest_margin) if largest_margin < 700.0 else 1.0


def fitted_rate(values: ArrayLike, best: float) -> float:
    """Factor by which the distance to ``best`` fell per iteration, over the last five that can be told from rounding.

    Parameters
    ----------
    values : array_like of shape (n_iter,)
        Log-posterior of every iteration.
    best : float
        Its maximum.

    Returns
    -------
    float
        nan when fewer than two distances are above 1e-7.

    Examples
    --------
    >>> from assay.supervised.rasch_certificate import fitted_rate
    >>> round(fitted_rate([-8.0, -4.0, -2.0, -1.0], 0.0), 12)
    0.5
    """
    gaps = best - np.asarray(values, dtype=float)
    gaps = gaps[gaps > _SEEN_GAP * max(1.0, 1e-6 * abs(best))][-_LAST:]
    if len(gaps) < 2:
        return math.nan
    return float((gaps[-1] / gaps[0]) ** (1.0 / (len(gaps) - 1)))


def rasch_certificates(
    X: Any,
    abilities: ArrayLike,
    difficulties: ArrayLike,
    *,
    mask: Any = None,
    v_theta: float = 1.0,
    v_beta: float = 1.0,
    tol: float = 1e-8,
    trace: ArrayLike | None = None,
    linear: bool = False,
) -> tuple[Certificate, ...]:
    r"""Check a fitted Rasch model against the table it was fitted to.

    Parameters
    ----------
    X, mask
        The responses, as for :func:`~assay.supervised.fit_rasch`.
    abilities : array_like of shape (n_users,)
        Abilities, in the coordinates of the priors (not centred).
    difficulties : array_like of shape (n_items,)
        Difficulties.
    v_theta, v_beta : float, default=1.0
        Prior variances, possibly infinite.
    tol : float, default=1e-8
        How far from the maximum the log-posterior may be, relative to its size.
    trace : array_like of shape (n_iter,), optional
        Log-posterior of every iteration, to be checked for growth.
    linear : bool, default=False
        Whether ``trace`` is one of joint updates without acceleration, whose rate is bounded.

    Returns
    -------
    tuple of Certificate
        The distance of the log-posterior to its maximum, that it never fell, and, for a long enough trace with
        ``linear``, the rate at which it came there: near the maximum it is at most the square of
        ``1 - min psi / sinh(psi)`` over the observed cells (within five per cent, as the log-posterior is no
        quadratic), and at most the bound itself always. With an infinite variance there is no bound on the distance,
        and half the squared Newton decrement estimates it.

    Raises
    ------
    ValueError, TypeError
        For what is no table of responses, or parameters that do not fit to it.

    Notes
    -----
    O(n_users n_items), or the number of observed cells of a sparse table, and a quarter of a million cells in memory.

    Examples
    --------
    >>> from assay.supervised import fit_rasch
    >>> from assay.supervised.rasch_certificate import rasch_certificates
    >>> X = [[1, 0, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1]]
    >>> fit = fit_rasch(X)
    >>> rasch_certificates(X, fit.abilities, fit.difficulties)[0].holds
    True
    >>> rasch_certificates(X, fit.abilities + 0.1, fit.difficulties)[0].holds
    False
    """
    responses = check_responses(X, mask)
    n_users, n_items = responses.shape
    abilities = as_float_array(abilities, "abilities", ndim=1)
    difficulties = as_float_array(difficulties, "difficulties", ndim=1)
    if len(abilities) != n_users or len(difficulties) != n_items:
        raise ValueError(
            f"abilities and difficulties must have lengths {n_users} and {n_items}, got {len(abilities)} and "
            f"{len(difficulties)}"
        )
    v_theta = check_real(v_theta, "v_theta", above=0, allow_infinite=True)
    v_beta = check_real(v_beta, "v_beta", above=0, allow_infinite=True)
    values = None if trace is None else as_float_array(trace, "trace", ndim=1)
    at = posterior_at(responses, abilities, difficulties, v_theta, v_beta)
    return certificates_at(responses, at, tol, values, linear)


def certificates_at(
    responses: Responses, at: Posterior, tol: float, trace: np.ndarray | None, linear: bool
) -> tuple[Certificate, ...]:
    """Certificates of a point at which the log-posterior has been evaluated."""
    size = abs(at.log_posterior)
    if math.isinf(at.gap_bound):
        problem = RaschProblem(responses, at.v_theta, at.v_beta, grouped=False)
        decrement = problem.newton_decrement(at.abilities, at.difficulties, at.ability_gradient, at.difficulty_gradient)
        estimate = Assumption("a quadratic model is exact: this is an estimate, and with an infinite variance no bound")
        certificates = [
            Certificate(
                "estimated distance of the log-posterior to its maximum (half the squared Newton decrement)",
                decrement,
                tol * size,
                assumptions=(estimate,),
            )
        ]
    else:
        certificates = [Certificate("distance of the log-posterior to its maximum, at most", at.gap_bound, tol * size)]
    if trace is None or not len(trace):
        return tuple(certificates)
    values = np.append(trace, at.log_posterior)
    certificates.append(
        Certificate("least growth of the log-posterior in an iteration", np.diff(values).min(), -1e-10 * size, ">=")
    )
    rate = fitted_rate(trace, at.log_posterior)
    if linear and not math.isnan(rate):
        bound = rate_bound(at.largest_margin)
        certificates.append(Certificate("factor of the distance to the maximum per iteration", rate, bound))
        certificates.append(
            Certificate(
                "the same near the maximum, against the square of the bound and 5 %",
                rate,
                1.05 * bound**2,
                assumptions=(Assumption("the last iterations are where a quadratic model holds"),),
            )
        )
    return tuple(certificates)
