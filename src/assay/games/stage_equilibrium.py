r"""Matrix games with a pull towards reference policies, many at a time: the stage games of a regularised Markov game.

The max player picks ``mu``, the min player ``nu``, and both pay ``beta`` times the relative entropy to a reference.
This makes the equilibrium unique and the best responses explicit, so that the distance of any pair from equilibrium
has a closed form, and first-order methods converge at a linear rate. Two are here: optimistic multiplicative weights,
which runs until that distance is small, and mirror descent in self-play, which runs for a given number of updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.special import xlog1py, xlogy

from assay.games.markov_policies import as_references
from assay.games.stage_kernels import (
    LARGEST_STEP,
    closed_form_gaps,
    optimistic_equilibria,
    sampled_self_play,
    self_play,
)
from assay.validation import as_float_array, check_integer, check_real, warn_not_converged

__all__ = ["iterations_needed", "stage_equilibrium", "stage_gap"]

Payoffs = Float[np.ndarray, "states rows columns"]
RowPolicies = Float[np.ndarray, "states rows"]
ColumnPolicies = Float[np.ndarray, "states columns"]
PerState = Float[np.ndarray, " states"]

# Beyond, the difference of two payoffs may overflow.
LARGEST_PAYOFF = 1e300
# What rounding may leave of a sum of probabilities.
_MASS_ROUNDING = 1e-9
# Random numbers that are held at a time.
_UNIFORMS = 2**20


class StageSolution(NamedTuple):
    """Policies of all states of one step, and how they were found."""

    mu: RowPolicies
    nu: ColumnPolicies
    gap: PerState
    n_iter: int
    iterations: Int[np.ndarray, " rows_of_history"]
    worst_gaps: Float[np.ndarray, " rows_of_history"]


def stage_equilibrium(
    Q: ArrayLike,
    mu_ref: ArrayLike | None,
    nu_ref: ArrayLike | None,
    beta: float,
    *,
    tol: float = 1e-10,
    max_iter: int = 200_000,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
    r"""Equilibrium of matrix games with relative entropy to reference policies.

    Solves, for every state on its own,

    .. math:: \max_\mu \min_\nu \; \mu' Q \nu - \beta\, \mathrm{KL}(\mu \| \mu_{ref})
              + \beta\, \mathrm{KL}(\nu \| \nu_{ref}) .

    Parameters
    ----------
    Q : array_like of shape (n_states, n_rows, n_columns) or (n_rows, n_columns)
        What the max player, who chooses rows, gets from the min player.
    mu_ref, nu_ref : array_like of shape (n_actions,) or (n_states, n_actions), or None
        Reference policies with full support; None is uniform.
    beta : float
        Weight of the pull towards the references, in the units of ``Q``.
    tol : float, default=1e-10
        Gap to reach in every state (see :func:`stage_gap`).
    max_iter : int, default=200_000
        Most updates per state.

    Returns
    -------
    mu : numpy.ndarray of shape (n_states, n_rows) or (n_rows,)
        Policy of the max player.
    nu : numpy.ndarray of shape (n_states, n_columns) or (n_columns,)
        Policy of the min player.
    V : numpy.ndarray of shape (n_states,) or float
        Values.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    assay.validation.ConvergenceWarning
        When a state has not reached ``tol`` after ``max_iter`` updates.

    Notes
    -----
    Optimistic multiplicative weights with step :math:`\eta = \min(1/(2\beta + 2R), 1/(4R))`, R being half the range of
    the payoffs of a state: the distance falls by :math:`1 - \eta\beta` per update, which costs O(n_rows n_columns).
    About :math:`4 R / \beta \cdot \log(1/tol)` updates are done.

    References
    ----------
    C. Chen, Q. Zhang, Z. Liu, X. Xie, J. Liu, N. Jiang. Offline Two-Player Zero-Sum Markov Games with KL
    Regularization. ICML 2026. arXiv:2605.13025.

    Examples
    --------
    >>> from assay.games.stage_equilibrium import stage_equilibrium
    >>> mu, nu, V = stage_equilibrium([[1, -1], [-1, 1]], [0.7, 0.3], [0.5, 0.5], beta=0.5)
    >>> mu.round(4), nu.round(4), round(V, 6)
    (array([0.5427, 0.4573]), array([0.4155, 0.5845]), -0.034582)
    """
    payoffs = _as_payoffs(Q)
    single = payoffs.ndim == 2
    payoffs = payoffs[None] if single else payoffs
    n_states, n_rows, n_columns = payoffs.shape
    beta = check_real(beta, "beta", above=0.0)
    tol = check_real(tol, "tol", above=0.0)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    mu_refs = as_references(mu_ref, "mu_ref", (n_states, n_rows))
    nu_refs = as_references(nu_ref, "nu_ref", (n_states, n_columns))
    found = solve_stage(payoffs, mu_refs, nu_refs, beta, tol, max_iter)
    if not found.gap.max() <= tol:
        warn_not_converged("stage_equilibrium", found.n_iter, float(found.gap.max()), tol)
    values = stage_values(payoffs, found.mu, found.nu, mu_refs, nu_refs, beta)
    return (found.mu[0], found.nu[0], float(values[0])) if single else (found.mu, found.nu, values)


def stage_gap(
    Q: ArrayLike, mu: ArrayLike, nu: ArrayLike, mu_ref: ArrayLike | None, nu_ref: ArrayLike | None, beta: float
) -> np.ndarray | float:
    r"""What both players could gain together by best responses in a regularised matrix game, in closed form.

    The best response of the max player to :math:`\nu` has the value :math:`U = \beta \log \sum_a \mu_{ref}(a)
    e^{(Q\nu)_a/\beta} + \beta\,\mathrm{KL}(\nu\|\nu_{ref})`, that of the min player to :math:`\mu` the value
    :math:`W = -\beta \log \sum_b \nu_{ref}(b) e^{-(Q'\mu)_b/\beta} - \beta\,\mathrm{KL}(\mu\|\mu_{ref})`. The gap
    ``U - W`` is non-negative, zero exactly at the equilibrium, and bounds the distance to it:
    :math:`\beta\,\mathrm{KL}((\mu,\nu)\|(\mu^*,\nu^*)) \le U - W`.

    Parameters
    ----------
    Q : array_like of shape (n_states, n_rows, n_columns) or (n_rows, n_columns)
        What the max player gets.
    mu, nu : array_like of shape (n_actions,) or (n_states, n_actions)
        Policies.
    mu_ref, nu_ref : array_like of shape (n_actions,) or (n_states, n_actions), or None
        Reference policies with full support; None is uniform.
    beta : float
        Weight of the pull towards the references.

    Returns
    -------
    numpy.ndarray of shape (n_states,), or float

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> from assay.games.stage_equilibrium import stage_gap
    >>> round(stage_gap([[1, -1], [-1, 1]], [0.5, 0.5], [0.5, 0.5], None, None, beta=0.1), 12)
    0.0
    >>> round(stage_gap([[1, -1], [-1, 1]], [1, 0], [0.5, 0.5], None, None, beta=0.1), 6)
    1.0
    """
    payoffs = _as_payoffs(Q)
    single = payoffs.ndim == 2
    payoffs = payoffs[None] if single else payoffs
    n_states, n_rows, n_columns = payoffs.shape
    beta = check_real(beta, "beta", above=0.0)
    gaps = stage_gaps(
        payoffs,
        as_references(mu, "mu", (n_states, n_rows), full_support=False),
        as_references(nu, "nu", (n_states, n_columns), full_support=False),
        as_references(mu_ref, "mu_ref", (n_states, n_rows)),
        as_references(nu_ref, "nu_ref", (n_states, n_columns)),
        beta,
    )
    return float(gaps[0]) if single else gaps


def iterations_needed(tol: float, half_range: float, beta: float, eta: float | None = None) -> int:
    r"""Updates of self-play after which the relative entropy to the equilibrium is at most ``tol`` of what it was.

    It falls by ``1 + eta * beta`` per update as long as ``eta <= beta / half_range**2``.

    Parameters
    ----------
    tol : float
        Factor below 1.
    half_range : float
        Half of the largest minus the smallest payoff.
    beta : float
        Weight of the pull towards the references.
    eta : float, optional
        Step size, ``beta / half_range**2`` by default.

    Returns
    -------
    int
        About ``(half_range / beta)**2 * log(1 / tol)``, at least 1 and at most 2**62.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> from assay.games.stage_equilibrium import iterations_needed
    >>> iterations_needed(1e-3, half_range=2.0, beta=0.5)
    114
    """
    tol = check_real(tol, "tol", above=0.0, below=1.0)
    half_range = check_real(half_range, "half_range", minimum=0.0)
    beta = check_real(beta, "beta", above=0.0)
    step = float(constant_steps(np.array([half_range]), beta)[0]) if eta is None else check_real(eta, "eta", above=0.0)
    rate = math.log1p(step * beta)
    return max(1, math.ceil(min(-math.log(tol) / rate, 2.0**62))) if rate > 0 else 2**62


def solve_stage(
    payoffs: Payoffs, mu_refs: RowPolicies, nu_refs: ColumnPolicies, beta: float, tol: float, max_iter: int
) -> StageSolution:
    """Optimistic multiplicative weights on checked arguments."""
    payoffs, mu_refs, nu_refs = _writable(payoffs), _writable(mu_refs), _writable(nu_refs)
    mu, nu = np.empty_like(mu_refs), np.empty_like(nu_refs)
    gaps, steps = np.empty(len(payoffs)), np.empty(len(payoffs), dtype=np.int64)
    optimistic_equilibria(payoffs, mu_refs, nu_refs, beta, tol, max_iter, mu, nu, gaps, steps)
    n_iter = int(steps.max())
    return StageSolution(mu, nu, gaps, n_iter, np.array([n_iter]), np.array([gaps.max()]))


def play_stage(
    payoffs: Payoffs,
    mu_refs: RowPolicies,
    nu_refs: ColumnPolicies,
    beta: float,
    n_iter: int,
    *,
    harmonic: bool = False,
    eta: float | None = None,
    sampled: int | None = None,
    rng: np.random.Generator | None = None,
    watch: Callable[[int, float], object] | None = None,
) -> StageSolution:
    """Mirror descent in self-play on checked arguments; the worst gap is looked at about six times per decade."""
    payoffs, mu_refs, nu_refs = _writable(payoffs), _writable(mu_refs), _writable(nu_refs)
    steps = constant_steps(half_ranges(payoffs), beta) if eta is None else np.full(len(payoffs), eta)
    mu, nu = mu_refs.copy(), nu_refs.copy()
    rows, columns = np.zeros_like(mu), np.zeros_like(nu)
    gaps, iterations, worst, done = np.empty(len(payoffs)), [], [], 0
    for stop in _checkpoints(n_iter):
        if sampled is None:
            self_play(payoffs, mu_refs, nu_refs, beta, steps, harmonic, done, stop - done, rows, columns, mu, nu)
        else:
            length = max(1, _UNIFORMS // (2 * sampled * len(payoffs)))
            for start in range(done, stop, length):
                uniforms = rng.random((len(payoffs), min(length, stop - start), 2, sampled))
                sampled_self_play(
                    payoffs, mu_refs, nu_refs, beta, steps, harmonic, start, uniforms, rows, columns, mu, nu
                )
        done = stop
        iterations.append(done)
        closed_form_gaps(payoffs, mu_refs, nu_refs, beta, rows, columns, mu, nu, gaps)
        worst.append(float(gaps.max()))
        if watch is not None:
            watch(done, worst[-1])
    return StageSolution(mu, nu, gaps, done, np.array(iterations, dtype=np.int64), np.array(worst))


def half_ranges(payoffs: Payoffs) -> PerState:
    """Half of the largest minus the smallest payoff of every state."""
    return 0.5 * (payoffs.max(axis=(1, 2)) - payoffs.min(axis=(1, 2)))


def constant_steps(half_range: PerState, beta: float) -> PerState:
    """The longest step of self-play for which contraction is proven: ``beta / half_range**2``, at most 1000."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.minimum(LARGEST_STEP, beta / half_range**2)


def stage_gaps(
    payoffs: Payoffs,
    mu: RowPolicies,
    nu: ColumnPolicies,
    mu_refs: RowPolicies,
    nu_refs: ColumnPolicies,
    beta: float,
) -> PerState:
    """Gap of every state on checked arguments; nan where a policy is not a distribution."""
    upper = best_response_to_nu(payoffs, nu, mu_refs, nu_refs, beta)
    lower = best_response_to_mu(payoffs, mu, mu_refs, nu_refs, beta)
    gaps = upper - lower
    for policy in (mu, nu):
        gaps[~((policy.min(axis=1) >= 0) & (abs(policy.sum(axis=1) - 1) <= _MASS_ROUNDING))] = np.nan
    return gaps


def best_response_to_nu(
    payoffs: Payoffs, nu: ColumnPolicies, mu_refs: RowPolicies, nu_refs: ColumnPolicies, beta: float
) -> PerState:
    """The most that the max player can get from a given min player; with ``beta=0``, without entropies."""
    gains = (payoffs @ nu[:, :, None])[:, :, 0]
    if beta == 0:
        return gains.max(axis=1)
    return soft_maximum(gains, mu_refs, beta) + beta * relative_entropy(nu, nu_refs)


def best_response_to_mu(
    payoffs: Payoffs, mu: RowPolicies, mu_refs: RowPolicies, nu_refs: ColumnPolicies, beta: float
) -> PerState:
    """The least that the min player can give to a given max player; with ``beta=0``, without entropies."""
    losses = (mu[:, None, :] @ payoffs)[:, 0, :]
    if beta == 0:
        return losses.min(axis=1)
    return -soft_maximum(-losses, nu_refs, beta) - beta * relative_entropy(mu, mu_refs)


def stage_values(
    payoffs: Payoffs,
    mu: RowPolicies,
    nu: ColumnPolicies,
    mu_refs: RowPolicies,
    nu_refs: ColumnPolicies,
    beta: float,
) -> PerState:
    """What the max player gets when both follow their policies."""
    plain = ((payoffs @ nu[:, :, None])[:, :, 0] * mu).sum(axis=1)
    return plain - beta * relative_entropy(mu, mu_refs) + beta * relative_entropy(nu, nu_refs)


def soft_maximum(
    gains: Float[np.ndarray, "states actions"], reference: Float[np.ndarray, "states actions"], beta: float
) -> PerState:
    """``beta log sum_i reference_i exp(gains_i / beta)`` for every state, to the last digits of the gains."""
    top = gains.max(axis=1)
    with np.errstate(over="ignore"):
        below = (gains - top[:, None]) / beta
    near = below.min(axis=1) > -1  # there the sum is 1 minus something small
    logarithm = np.empty_like(top)
    if near.any():
        logarithm[near] = np.log1p((reference[near] * np.expm1(below[near])).sum(axis=1))
    if not near.all():
        logarithm[~near] = np.log((reference[~near] * np.exp(below[~near])).sum(axis=1))
    return top + beta * logarithm


def relative_entropy(
    policy: Float[np.ndarray, "states actions"], reference: Float[np.ndarray, "states actions"]
) -> PerState:
    """Relative entropy of every state; of policies near their reference to second order."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = policy / reference
        excess = (policy - reference) / reference
        near = abs(excess) < 0.5
        # As a sum of non-negative terms: rounding of the policy, of first order, drops out.
        logarithm = np.where(near, xlog1py(share, np.where(near, excess, 0.0)), xlogy(share, share))
        terms = reference * (logarithm - excess)
    return np.where(reference > 0, terms, np.where(policy > 0, np.inf, 0.0)).sum(axis=1)


def _as_payoffs(Q: ArrayLike) -> np.ndarray:
    payoffs = as_float_array(Q, "Q", ndim=(2, 3))
    if abs(payoffs).max() > LARGEST_PAYOFF:
        raise ValueError(f"Q must have entries of size at most {LARGEST_PAYOFF:g}, got {abs(payoffs).max():g}")
    return payoffs


def _checkpoints(n_iter: int) -> list[int]:
    stops, stop = [], 0
    while stop < n_iter:
        stop = min(n_iter, max(stop + 1, int(1.5 * stop)))
        stops.append(stop)
    return stops


def _writable(array: np.ndarray) -> np.ndarray:
    """Contiguous and writable, as the kernels are compiled for."""
    return np.require(array, dtype=np.float64, requirements=["C", "W"])
