r"""Exact equilibria and exact gaps of Markov games whose rules are known, and how well a log covers them.

Against a fixed opponent the other player faces a Markov decision process whose optimal value is one backward
recursion, with a log-sum-exp in place of the maximum when there is a pull to a reference. The gap of two policies is
the difference of the two recursions: nobody's bookkeeping enters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.games.markov_model import MarkovGameModel, as_markov_model
from assay.games.markov_policies import as_betas, as_references
from assay.games.stage_equilibrium import best_response_to_mu, best_response_to_nu, solve_stage, stage_values
from assay.result import Result
from assay.validation import as_float_array, check_integer, check_real, warn_not_converged

__all__ = [
    "MarkovEquilibrium",
    "concentrability",
    "nash_gap",
    "regularized_equilibrium",
    "regularized_gap",
]

RowPolicies = Float[np.ndarray, "steps states rows"]
ColumnPolicies = Float[np.ndarray, "steps states columns"]

# States whose reachability is computed at a time.
_TARGETS = 512


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MarkovEquilibrium(Result):
    """Equilibrium of a regularised Markov game with known rules.

    Parameters
    ----------
    mu : numpy.ndarray of shape (horizon, n_states, A)
        Policy of the max player.
    nu : numpy.ndarray of shape (horizon, n_states, B)
        Policy of the min player.
    V : numpy.ndarray of shape (horizon + 1, n_states)
        Values; the last row is 0.
    gap : float
        Largest gap over first states, recomputed from the rules.
    """

    mu: Float[np.ndarray, "steps states rows"]
    nu: Float[np.ndarray, "steps states columns"]
    V: Float[np.ndarray, "steps_and_end states"]
    gap: float


def regularized_equilibrium(
    model: Any,
    beta: ArrayLike,
    mu_ref: ArrayLike | None = None,
    nu_ref: ArrayLike | None = None,
    *,
    tol: float = 1e-10,
    max_iter: int = 200_000,
) -> MarkovEquilibrium:
    r"""Equilibrium of a Markov game with known rules and a pull towards reference policies.

    Parameters
    ----------
    model : MarkovGameModel, MatrixMarkovGame or object with arrays ``P`` and ``r``
        The rules.
    beta : float or array_like of shape (horizon,)
        Weight of the pull.
    mu_ref, nu_ref : array_like, optional
        Reference policies of shape (n_actions,), (n_states, n_actions) or (horizon, n_states, n_actions), with full
        support; uniform by default.
    tol : float, default=1e-10
        Gap of every stage game.
    max_iter : int, default=200_000
        Most updates per stage game.

    Returns
    -------
    MarkovEquilibrium
        The certificate is that the gap, recomputed from the rules, is at most ``horizon * tol`` (and rounding).

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    assay.validation.ConvergenceWarning
        When a stage game did not reach ``tol``.

    Notes
    -----
    Backward in the steps; O(horizon * n_states * (A B n_states + updates A B)).

    References
    ----------
    C. Chen, Q. Zhang, Z. Liu, X. Xie, J. Liu, N. Jiang. Offline Two-Player Zero-Sum Markov Games with KL
    Regularization. ICML 2026. arXiv:2605.13025.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.markov_gap import regularized_equilibrium
    >>> from assay.games.markov_model import MarkovGameModel
    >>> rng = np.random.default_rng(0)
    >>> P = rng.dirichlet(np.ones(5), size=(4, 5, 3, 3))
    >>> model = MarkovGameModel(P, rng.uniform(0, 1, (4, 5, 3, 3)))
    >>> regularized_equilibrium(model, beta=0.5).V[0].round(6)
    array([1.855843, 1.824884, 1.935269, 2.005452, 2.031317])
    """
    game = as_markov_model(model)
    betas, mu_refs, nu_refs = _regularisation(game, beta, mu_ref, nu_ref)
    tol = check_real(tol, "tol", above=0.0)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    mu, nu = np.empty_like(mu_refs), np.empty_like(nu_refs)
    V = np.zeros((game.horizon + 1, game.n_states))
    worst, steps = 0.0, 0
    for h in reversed(range(game.horizon)):
        payoffs = game.backup(h, V[h + 1])
        found = solve_stage(payoffs, mu_refs[h], nu_refs[h], betas[h], tol, max_iter)
        mu[h], nu[h] = found.mu, found.nu
        V[h] = stage_values(payoffs, mu[h], nu[h], mu_refs[h], nu_refs[h], betas[h])
        worst, steps = max(worst, float(found.gap.max())), max(steps, found.n_iter)
    if not worst <= tol:
        warn_not_converged("regularized_equilibrium", steps, worst, tol)
    upper, lower = _best_responses(game, betas, mu_refs, nu_refs, mu, nu)
    gap = float((upper - lower).max())
    certificate = Certificate(
        "largest gap over first states of the returned policies, recomputed from the rules",
        gap,
        game.horizon * (tol + 4 * np.finfo(float).eps * game.horizon),
    )
    return MarkovEquilibrium(mu=mu, nu=nu, V=V, gap=gap, certificates=(certificate,))


def regularized_gap(
    model: Any,
    beta: ArrayLike,
    mu_ref: ArrayLike | None,
    nu_ref: ArrayLike | None,
    mu: ArrayLike,
    nu: ArrayLike,
    rho: ArrayLike | None = None,
) -> float:
    r"""Distance of two policies from the equilibrium of a regularised Markov game, exactly.

    .. math:: \max_{\mu'} J(\mu', \nu) - \min_{\nu'} J(\mu, \nu'), \qquad
              J(\mu, \nu) = E \sum_h r_h - \beta\, \mathrm{KL}(\mu_h \| \mu_{ref,h})
              + \beta\, \mathrm{KL}(\nu_h \| \nu_{ref,h})

    Parameters
    ----------
    model : MarkovGameModel, MatrixMarkovGame or object with arrays ``P`` and ``r``
        The rules.
    beta : float or array_like of shape (horizon,)
        Weight of the pull towards the references, positive. Without one: :func:`nash_gap`.
    mu_ref, nu_ref : array_like or None
        Reference policies of shape (n_actions,), (n_states, n_actions) or (horizon, n_states, n_actions), with full
        support; None is uniform.
    mu, nu : array_like
        Policies, of the same shapes.
    rho : array_like of shape (n_states,), optional
        Distribution of the first state; that of the model by default.

    Returns
    -------
    float
        Non-negative up to rounding.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    Two backward recursions of O(horizon * n_states^2 A B).

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.markov_gap import regularized_gap
    >>> from assay.games.markov_model import MarkovGameModel
    >>> pennies = MarkovGameModel(np.ones((1, 2, 2, 1)), [[[1, 0], [0, 1]]], horizon=1)
    >>> round(regularized_gap(pennies, 0.1, None, None, [1, 0], [0.5, 0.5]), 4)
    0.5
    """
    game = as_markov_model(model)
    betas, mu_refs, nu_refs = _regularisation(game, beta, mu_ref, nu_ref)
    upper, lower = _best_responses(game, betas, mu_refs, nu_refs, *_both(game, mu, nu))
    return float(_first_states(game, rho) @ (upper - lower))


def nash_gap(model: Any, mu: ArrayLike, nu: ArrayLike, rho: ArrayLike | None = None) -> float:
    r"""What both players could gain together by best responses, without regularisation.

    Parameters
    ----------
    model : MarkovGameModel, MatrixMarkovGame or object with arrays ``P`` and ``r``
        The rules.
    mu, nu : array_like
        Policies of shape (n_actions,), (n_states, n_actions) or (horizon, n_states, n_actions).
    rho : array_like of shape (n_states,), optional
        Distribution of the first state; that of the model by default.

    Returns
    -------
    float
        Non-negative up to rounding; 0 exactly at a Nash equilibrium.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.markov_gap import nash_gap
    >>> from assay.games.markov_model import MarkovGameModel
    >>> pennies = MarkovGameModel(np.ones((1, 2, 2, 1)), [[[1, 0], [0, 1]]], horizon=1)
    >>> nash_gap(pennies, [1, 0], [0.5, 0.5]), nash_gap(pennies, [0.5, 0.5], [0.5, 0.5])
    (0.5, 0.0)
    """
    game = as_markov_model(model)
    mu, nu = _both(game, mu, nu)
    # Not looked at where beta is 0.
    unused = np.ones_like(mu), np.ones_like(nu)
    upper, lower = _best_responses(game, np.zeros(game.horizon), *unused, mu, nu)
    return float(_first_states(game, rho) @ (upper - lower))


def concentrability(model: Any, mu: ArrayLike, nu: ArrayLike, d_data: ArrayLike) -> float:
    r"""How much rarer the data are than what a player can reach who deviates from a pair of policies on its own.

    .. math:: C = \max_{h, s, a, b} \max\left( \max_{\mu'} \frac{d_h^{\mu', \nu}(s, a, b)}{d^D_h(s, a, b)},
              \max_{\nu'} \frac{d_h^{\mu, \nu'}(s, a, b)}{d^D_h(s, a, b)} \right)

    Parameters
    ----------
    model : MarkovGameModel, MatrixMarkovGame or object with arrays ``P`` and ``r``
        The rules.
    mu, nu : array_like
        Policies, usually an equilibrium, of shape (n_actions,), (n_states, n_actions) or
        (horizon, n_states, n_actions).
    d_data : array_like of shape (horizon, n_states, A, B)
        Distribution of states and actions in the data at every step.

    Returns
    -------
    float
        At least 1; infinite when something that can be reached is not in the data.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    For each step and state the largest probability of being there is the value of a Markov decision process:
    O(horizon^2 * n_states^3 (A + B)) altogether, as matrix products, or less with sparse transitions.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.markov_gap import concentrability
    >>> from assay.games.markov_model import MarkovGameModel
    >>> pennies = MarkovGameModel(np.ones((1, 2, 2, 1)), [[[1, 0], [0, 1]]], horizon=1)
    >>> concentrability(pennies, [0.5, 0.5], [0.5, 0.5], np.full((1, 1, 2, 2), 0.25))
    2.0
    """
    game = as_markov_model(model)
    mu, nu = _both(game, mu, nu)
    shares = as_float_array(d_data, "d_data", ndim=4)
    if shares.shape != game.rewards.shape:
        raise ValueError(f"d_data must be of shape {game.rewards.shape}, got {shares.shape}")
    mass = shares.sum(axis=(1, 2, 3))
    if shares.min() < 0 or abs(mass - 1).max() > 1e-6:
        raise ValueError("d_data must be non-negative and sum to 1 (within 1e-6) at every step")
    against_nu = [_moves(game, h, nu[h], player=0) for h in range(game.horizon)]
    against_mu = [_moves(game, h, mu[h], player=1) for h in range(game.horizon)]
    return max(
        worst_ratio(largest_reach(against_nu, game.rho), nu[:, :, None, :], shares),
        worst_ratio(largest_reach(against_mu, game.rho), mu[:, :, :, None], shares),
    )


def largest_reach(
    moves: Sequence[np.ndarray | sp.csr_array], rho: Float[np.ndarray, " states"]
) -> Float[np.ndarray, "steps states"]:
    """The largest probability, over all policies, of being in a state at a step.

    Parameters
    ----------
    moves : sequence of array or sparse matrix of shape (n_states * n_actions, n_states)
        Transition probabilities of each step. Rows may sum to less than 1.
    rho : numpy.ndarray of shape (n_states,)
        Distribution of the first state.

    Returns
    -------
    numpy.ndarray of shape (horizon, n_states)
    """
    n_states = len(rho)
    reach = np.empty((len(moves), n_states))
    for first in range(0, n_states, _TARGETS):
        targets = np.arange(first, min(first + _TARGETS, n_states))
        reach[0, targets] = rho[targets]
        for h in range(1, len(moves)):
            # one column per state that one may want to be in
            chance = np.zeros((n_states, len(targets)))
            chance[targets, np.arange(len(targets))] = 1.0
            for step in reversed(range(h)):
                chance = np.asarray(moves[step] @ chance).reshape(n_states, -1, len(targets)).max(axis=1)
            reach[h, targets] = rho @ chance
    return reach


def worst_ratio(reach: Float[np.ndarray, "steps states"], opponent: np.ndarray, shares: np.ndarray) -> float:
    """Largest ratio of what can be reached, against an opponent's policy, to the share of it in the data."""
    reachable = np.broadcast_to(reach[:, :, None, None] * opponent, shares.shape)
    there = reachable > 0
    with np.errstate(divide="ignore", over="ignore"):
        return float((reachable[there] / shares[there]).max(initial=0.0))


def _moves(game: MarkovGameModel, h: int, policy: np.ndarray, player: int) -> np.ndarray | sp.csr_array:
    """Transitions that a player faces when the other one follows ``policy``."""
    n_states, (n_rows, n_columns) = game.n_states, game.n_actions
    own = n_rows if player == 0 else n_columns
    cells = np.arange(n_states * n_rows * n_columns)
    s, pair = np.divmod(cells, n_rows * n_columns)
    a, b = np.divmod(pair, n_columns)
    mine, theirs = (a, b) if player == 0 else (b, a)
    average = sp.csr_array((policy[s, theirs], (s * own + mine, cells)), shape=(n_states * own, len(cells)))
    return average @ game.transition_matrix(h)


def _best_responses(
    game: MarkovGameModel,
    betas: np.ndarray,
    mu_refs: np.ndarray,
    nu_refs: np.ndarray,
    mu: np.ndarray,
    nu: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Values, at the first step, of best responses to ``nu`` and to ``mu``."""
    upper, lower = np.zeros(game.n_states), np.zeros(game.n_states)
    for h in reversed(range(game.horizon)):
        beta = float(betas[h])
        upper = best_response_to_nu(game.backup(h, upper), nu[h], mu_refs[h], nu_refs[h], beta)
        lower = best_response_to_mu(game.backup(h, lower), mu[h], mu_refs[h], nu_refs[h], beta)
    return upper, lower


def _regularisation(
    game: MarkovGameModel, beta: Any, mu_ref: Any, nu_ref: Any
) -> tuple[np.ndarray, RowPolicies, ColumnPolicies]:
    lead = (game.horizon, game.n_states)
    return (
        as_betas(beta, game.horizon),
        as_references(mu_ref, "mu_ref", (*lead, game.n_actions[0])),
        as_references(nu_ref, "nu_ref", (*lead, game.n_actions[1])),
    )


def _both(game: MarkovGameModel, mu: Any, nu: Any) -> tuple[RowPolicies, ColumnPolicies]:
    lead = (game.horizon, game.n_states)
    return (
        as_references(mu, "mu", (*lead, game.n_actions[0]), full_support=False),
        as_references(nu, "nu", (*lead, game.n_actions[1]), full_support=False),
    )


def _first_states(game: MarkovGameModel, rho: Any) -> np.ndarray:
    return game.rho if rho is None else as_references(rho, "rho", (game.n_states,), full_support=False)
