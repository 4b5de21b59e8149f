r"""What a log can say about policies learned from it, computed anew from the log.

Three questions: are the policies an equilibrium of the game that the log describes; does the log cover what a player
could reach who leaves the equilibrium on its own; and do policies from one half of the log still look good on the other
half. The first is proof, the second decides whether a rate is promised at all, the third is an estimate.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float

from assay.certificate import Assumption, Certificate
from assay.games.markov_gap import largest_reach, worst_ratio
from assay.games.offline_data import ENDED, OfflineGameData
from assay.games.offline_values import ValueRegression
from assay.games.stage_equilibrium import (
    best_response_to_mu,
    best_response_to_nu,
    constant_steps,
    half_ranges,
    relative_entropy,
    solve_stage,
)

__all__ = ["Coverage", "contraction_certificate", "coverage_of", "estimated_gap"]

RowTables = Float[np.ndarray, "steps states rows"]
ColumnTables = Float[np.ndarray, "steps states columns"]

# Multiplications that the estimate of concentrability may take by default: a few seconds.
_AFFORDABLE = 5e9
_EPS = float(np.finfo(float).eps)


@dataclass(frozen=True)
class Coverage:
    """How much of the game is in a log.

    Parameters
    ----------
    min_count : int
        Fewest samples of a pair of actions in a state at a step; where states are vectors of features, at a step.
    n_cells, n_unseen_cells : int
        How many of them there are, and how many have no samples.
    n_unseen_states : int
        Pairs of step and state that never occur: the policies are the references there.
    concentrability : float
        Estimate, on the game that the log describes, of :func:`~assay.games.markov_gap.concentrability` at the learned
        policies. Infinite where a player could reach what the log has not; nan when it was not estimated.
    """

    min_count: int
    n_cells: int
    n_unseen_cells: int
    n_unseen_states: int
    concentrability: float


def coverage_of(data: OfflineGameData, mu: RowTables, nu: ColumnTables, estimate: bool | None) -> Coverage:
    """Counts, and the estimated concentrability if ``estimate`` is True, or is None and it is affordable."""
    if data.state_features is not None:
        n_pairs = data.n_actions[0] * data.n_actions[1]
        pairs = np.stack([np.bincount(data.cells(h) % n_pairs, minlength=n_pairs) for h in range(data.horizon)])
        return Coverage(int(pairs.min()), pairs.size, int((pairs == 0).sum()), 0, float("nan"))
    smallest, unseen, unvisited = sys.maxsize, 0, 0
    for h in range(data.horizon):
        counts = data.counts(h)
        smallest = min(smallest, int(counts.min()))
        unseen += int((counts == 0).sum())
        unvisited += int((counts.sum(axis=(1, 2)) == 0).sum())
    n_cells = data.horizon * data.n_states * data.n_actions[0] * data.n_actions[1]
    c = float("nan") if estimate is False else _estimated_concentrability(data, mu, nu, estimate is None)
    return Coverage(smallest, n_cells, unseen, unvisited, c)


def _estimated_concentrability(data: OfflineGameData, mu: RowTables, nu: ColumnTables, if_affordable: bool) -> float:
    rho = np.bincount(data.step(0).s, minlength=data.n_states) / data.n_samples[0]
    if _reaches_unseen(data, rho, nu, 0) or _reaches_unseen(data, rho, mu, 1):
        return float("inf")
    work = sum(data.n_samples[h] * (data.horizon - 1 - h) for h in range(data.horizon)) * float(data.n_states)
    if if_affordable and 2 * work > _AFFORDABLE:
        return float("nan")
    shares = np.stack([data.counts(h) / data.n_samples[h] for h in range(data.horizon)])
    reach = [largest_reach(_moves(data, policy, player), rho) for player, policy in ((0, nu), (1, mu))]
    return max(worst_ratio(reach[0], nu[:, :, None, :], shares), worst_ratio(reach[1], mu[:, :, :, None], shares))


def _reaches_unseen(data: OfflineGameData, rho: np.ndarray, opponent: np.ndarray, player: int) -> bool:
    """Whether a player can come, in the game of the log, to where an action of the opponent leads into the unknown."""
    here = rho > 0
    for h in range(data.horizon):
        samples, counts = data.step(h), data.counts(h)
        played = (opponent[h] > 0)[:, None, :] if player == 0 else (opponent[h] > 0)[:, :, None]
        if ((counts == 0) & played & here[:, None, None]).any():
            return True
        theirs = samples.b if player == 0 else samples.a
        taken = here[samples.s] & (opponent[h][samples.s, theirs] > 0) & (samples.s_next != ENDED)
        here = np.zeros(data.n_states, dtype=bool)
        here[samples.s_next[taken]] = True
    return False


def _moves(data: OfflineGameData, opponent: np.ndarray, player: int) -> list[sp.csr_array]:
    """Transitions, in the game of the log, of a player whose opponent follows a policy."""
    n_own = data.n_actions[player]
    moves = []
    for h in range(data.horizon):
        samples = data.step(h)
        mine, theirs = (samples.a, samples.b) if player == 0 else (samples.b, samples.a)
        weights = opponent[h][samples.s, theirs] / data.counts(h)[samples.s, samples.a, samples.b]
        goes_on = samples.s_next != ENDED
        rows, columns = (samples.s * n_own + mine)[goes_on], samples.s_next[goes_on]
        moves.append(sp.csr_array((weights[goes_on], (rows, columns)), shape=(data.n_states * n_own, data.n_states)))
    return moves


def estimated_gap(
    data: OfflineGameData,
    regression: ValueRegression,
    betas: Float[np.ndarray, " steps"],
    mu_ref: RowTables,
    nu_ref: ColumnTables,
    mu: RowTables,
    nu: ColumnTables,
) -> float:
    """Regularised gap of policies in the game that a log describes, by fitted best responses.

    Averaged over the first states of the log. With means of cells it is the exact gap of a tabular game.
    """
    upper, lower = np.zeros(data.n_states), np.zeros(data.n_states)
    for h in reversed(range(data.horizon)):
        beta = float(betas[h])
        against_nu = regression.fit(data, h, data.targets(h, upper)).table
        against_mu = regression.fit(data, h, data.targets(h, lower)).table
        upper = best_response_to_nu(against_nu, nu[h], mu_ref[h], nu_ref[h], beta)
        lower = best_response_to_mu(against_mu, mu[h], mu_ref[h], nu_ref[h], beta)
    rho = np.bincount(data.step(0).s, minlength=data.n_states) / data.n_samples[0]
    return float(rho @ (upper - lower))


def stage_certificate(gaps: Float[np.ndarray, " steps"], tol: float) -> Certificate:
    """Worst gap of the stage games against the tolerance."""
    return Certificate("regularised gap of the worst stage game, over states and steps", float(gaps.max()), tol)


def estimated_game_certificate(gap: float, stage_gaps: Float[np.ndarray, " steps"]) -> Certificate:
    """Gap in the game of the log against what the gaps of the stage games can add up to."""
    rounding = 16 * _EPS * len(stage_gaps) ** 2
    return Certificate(
        "regularised gap in the game that the data describe, within twice the sum of the stage gaps",
        gap,
        2 * float(np.maximum(stage_gaps, 0.0).sum()) + rounding,
    )


def coverage_certificate(coverage: Coverage) -> Certificate:
    """Whether what a player can reach by deviating on its own is in the data at all."""
    return Certificate(
        "unilateral concentrability, estimated on the data, is finite",
        coverage.concentrability,
        sys.float_info.max,
        assumptions=(Assumption("the data describe which states can be reached"),),
    )


def halves_certificate(gap: float, reference_gap: float) -> Certificate:
    """Policies of one half of the data on the other half, against the references there."""
    return Certificate(
        "estimate, no bound: gap of policies of half of the data in the game of the other half, against the references",
        gap,
        reference_gap,
        assumptions=(Assumption("the halves are independent"),),
    )


def contraction_certificate(
    Q_hat: list[np.ndarray],
    betas: Float[np.ndarray, " steps"],
    mu_ref: RowTables,
    nu_ref: ColumnTables,
    mu: RowTables,
    nu: ColumnTables,
    n_iter: np.ndarray,
    eta: float | None,
) -> Certificate:
    r"""Relative entropy of the stage equilibria to the last iterates, against the bound of mirror descent.

    The bound :math:`(1 + \eta\beta)^{-T}\, \mathrm{KL}(z^* \| z_0)` is for the exact equilibrium. The one that is used
    here has a gap g, so that it is within ``g / beta`` of it in relative entropy, and on either side
    ``g / beta + sqrt(2 g / beta) max |log(z* / z_T)|`` is what this can change (with z_0 for z_T at the start).
    """
    worst, value, bound, short_enough, known = -1.0, 0.0, 0.0, True, True
    for h, payoffs in enumerate(Q_hat):
        beta, radius = float(betas[h]), half_ranges(payoffs)
        proven = constant_steps(radius, beta)
        steps = proven if eta is None else np.full(len(payoffs), eta)
        short_enough &= bool((steps <= proven * (1 + 1e-12)).all())
        size = np.maximum(abs(payoffs).max(axis=(1, 2)), _EPS)
        rounding = 1e-12 * float(size.max())
        exact = solve_stage(payoffs, mu_ref[h], nu_ref[h], beta, rounding, 20_000)
        known &= bool((exact.gap <= rounding).all())
        start = relative_entropy(exact.mu, mu_ref[h]) + relative_entropy(exact.nu, nu_ref[h])
        now = relative_entropy(exact.mu, mu[h]) + relative_entropy(exact.nu, nu[h])
        travelled = _largest_log_ratio(exact.mu, mu_ref[h]) + _largest_log_ratio(exact.nu, nu_ref[h])
        apart = _largest_log_ratio(exact.mu, mu[h]) + _largest_log_ratio(exact.nu, nu[h])
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            off = (np.maximum(exact.gap, 0.0) + 4 * _EPS * size) / beta
            shift = np.sqrt(2 * off)
            left = np.exp(-n_iter[h] * np.log1p(steps * beta))
            bounds = left * (start + shift * travelled) + off + shift * apart
            ratios = np.where(now > 0, now / bounds, 0.0)
        ratios[np.isnan(now)] = np.inf
        s = int(np.nanargmax(ratios)) if not np.isnan(ratios).all() else 0
        if not ratios[s] <= worst:
            worst, value, bound = float(ratios[s]), float(now[s]), float(bounds[s])
    return Certificate(
        "relative entropy of the equilibrium to the last iterate, at the worst state and step",
        value,
        bound,
        assumptions=(
            Assumption("the step size is at most beta / (half the range of the payoffs)^2", short_enough),
            Assumption("the stage equilibria that distances are measured from are solved to rounding", known),
        ),
    )


def _largest_log_ratio(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    both = (one > 0) & (other > 0)
    return abs(np.log(np.where(both, one, 1.0)) - np.log(np.where(both, other, 1.0))).max(axis=1)
