r"""Inner loops of the regularised stage games, compiled: one state after the other, all of its updates at once.

A policy is kept as its log-ratio to the reference, ``l = log(mu / mu_ref)``, which makes the pull towards the
reference a multiplication and keeps every digit when the pull is strong and the policy hardly differs from it. Each
state has its own step size and leaves the loop when its own gap is small enough.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

__all__ = ["LARGEST_STEP", "closed_form_gaps", "optimistic_equilibria", "sampled_self_play", "self_play"]

# Where all payoffs of a state are equal, no step is too long.
LARGEST_STEP = 1e3


@njit(cache=True, fastmath={"reassoc", "contract"})
def _gains(payoff, mu, nu, row_gain, column_loss):
    """Both products with the payoffs, ``Q nu`` and ``Q' mu``, in one pass."""
    column_loss[:] = 0.0
    for a in range(payoff.shape[0]):
        total, weight = 0.0, mu[a]
        for b in range(payoff.shape[1]):
            total += payoff[a, b] * nu[b]
            column_loss[b] += payoff[a, b] * weight
        row_gain[a] = total


@njit(cache=True)
def _extremes(payoff):
    low, high = payoff[0, 0], payoff[0, 0]
    for a in range(payoff.shape[0]):
        for b in range(payoff.shape[1]):
            low, high = min(low, payoff[a, b]), max(high, payoff[a, b])
    return low, high


@njit(cache=True)
def _normalise(log_ratio, reference, policy):
    """Shift log-ratios so that ``reference * exp(log_ratio)`` has mass 1, and fill in that policy."""
    top, low = log_ratio[0], log_ratio[0]
    for i in range(1, log_ratio.size):
        top, low = max(top, log_ratio[i]), min(low, log_ratio[i])
    total = 0.0
    if top - low < 1.0:  # a policy near its reference: differences from 1, where the digits are
        for i in range(log_ratio.size):
            policy[i] = math.expm1(log_ratio[i] - top)
            total += reference[i] * policy[i]
        for i in range(log_ratio.size):
            policy[i] = reference[i] * (1.0 + policy[i]) / (1.0 + total)
        shift = top + math.log1p(total)
    else:
        for i in range(log_ratio.size):
            policy[i] = reference[i] * math.exp(log_ratio[i] - top)
            total += policy[i]
        for i in range(log_ratio.size):
            policy[i] /= total
        shift = top + math.log(total)
    for i in range(log_ratio.size):
        log_ratio[i] -= shift


@njit(cache=True)
def _soft_maximum(gain, sign, reference, beta):
    """``beta log sum_i reference_i exp(sign * gain_i / beta)``."""
    top, low = sign * gain[0], sign * gain[0]
    for i in range(1, gain.size):
        top, low = max(top, sign * gain[i]), min(low, sign * gain[i])
    total = 0.0
    if top - low < beta:
        for i in range(gain.size):
            total += reference[i] * math.expm1((sign * gain[i] - top) / beta)
        return top + beta * math.log1p(total)
    for i in range(gain.size):
        total += reference[i] * math.exp((sign * gain[i] - top) / beta)
    return top + beta * math.log(total)


@njit(cache=True)
def _relative_entropy(policy, log_ratio):
    total = 0.0
    for i in range(policy.size):
        total += policy[i] * log_ratio[i]
    return total


@njit(cache=True)
def _gap(payoff, mu_ref, nu_ref, beta, row, column, mu, nu, row_gain, column_loss):
    """Gap of normalised policies in one state; the last two arguments receive their gains."""
    _gains(payoff, mu, nu, row_gain, column_loss)
    upper = _soft_maximum(row_gain, 1.0, mu_ref, beta) + beta * _relative_entropy(nu, column)
    lower = -_soft_maximum(column_loss, -1.0, nu_ref, beta) - beta * _relative_entropy(mu, row)
    return upper - lower


@njit(cache=True)
def closed_form_gaps(payoffs, mu_refs, nu_refs, beta, rows, columns, mus, nus, gaps):
    """Fill in the gap of every state, of normalised policies with the given log-ratios."""
    row_gain, column_loss = np.empty(payoffs.shape[1]), np.empty(payoffs.shape[2])
    for s in range(payoffs.shape[0]):
        gaps[s] = _gap(
            payoffs[s], mu_refs[s], nu_refs[s], beta, rows[s], columns[s], mus[s], nus[s], row_gain, column_loss
        )


@njit(cache=True)
def optimistic_equilibria(payoffs, mu_refs, nu_refs, beta, tol, max_iter, mus, nus, gaps, steps):
    """Optimistic multiplicative weights, state by state, until the gap of the state is at most ``tol``.

    ``mus`` and ``nus``, of the shapes of the references, receive the policies, ``gaps`` and ``steps`` the last gap and
    the number of updates.
    """
    n_states, n_rows, n_columns = payoffs.shape
    row, row_ahead, row_gain = np.empty(n_rows), np.empty(n_rows), np.empty(n_rows)
    column, column_ahead, column_loss = np.empty(n_columns), np.empty(n_columns), np.empty(n_columns)
    for s in range(n_states):
        payoff, mu_ref, nu_ref, mu, nu = payoffs[s], mu_refs[s], nu_refs[s], mus[s], nus[s]
        low, high = _extremes(payoff)
        mu[:], nu[:] = mu_ref, nu_ref
        gaps[s], steps[s] = 0.0, 0
        if high == low:
            continue
        half_range = 0.5 * (high - low)
        step = min(1.0 / (2.0 * beta + 2.0 * half_range), 0.25 / half_range)
        keep = 1.0 - step * beta
        row[:], column[:] = 0.0, 0.0
        _gains(payoff, mu, nu, row_gain, column_loss)
        done, check = 0, 1
        while True:
            # gains of the old look-ahead, which were those of the last update
            for a in range(n_rows):
                row_ahead[a] = keep * row[a] + step * row_gain[a]
            for b in range(n_columns):
                column_ahead[b] = keep * column[b] - step * column_loss[b]
            _normalise(row_ahead, mu_ref, mu)
            _normalise(column_ahead, nu_ref, nu)
            _gains(payoff, mu, nu, row_gain, column_loss)
            for a in range(n_rows):
                row[a] = keep * row[a] + step * row_gain[a]
            for b in range(n_columns):
                column[b] = keep * column[b] - step * column_loss[b]
            done += 1
            if done < check and done < max_iter:
                continue
            _normalise(row, mu_ref, mu)
            _normalise(column, nu_ref, nu)
            # in buffers that the next update overwrites: the gains of the look-ahead are still wanted
            gap = _gap(payoff, mu_ref, nu_ref, beta, row, column, mu, nu, row_ahead, column_ahead)
            gaps[s], steps[s] = gap, done
            if gap <= tol or done >= max_iter:
                break
            check = done + max(2, done // 16)


@njit(cache=True)
def self_play(payoffs, mu_refs, nu_refs, beta, step_sizes, harmonic, start, n_iter, rows, columns, mus, nus):
    """``n_iter`` updates of mirror descent in every state, from the log-ratios ``rows`` and ``columns``, in place.

    ``step_sizes`` has a step per state; with ``harmonic`` update ``t`` has the step ``1 / (beta (t + 2))`` instead,
    counted from ``start``.
    """
    n_states, n_rows, n_columns = payoffs.shape
    row_gain, column_loss = np.empty(n_rows), np.empty(n_columns)
    for s in range(n_states):
        payoff, row, column, mu, nu = payoffs[s], rows[s], columns[s], mus[s], nus[s]
        low, high = _extremes(payoff)
        if high == low:  # the references are the equilibrium, and the start
            continue
        step = step_sizes[s]
        for t in range(n_iter):
            if harmonic:
                step = min(LARGEST_STEP, 1.0 / (beta * (start + t + 2.0)))
            _gains(payoff, mu, nu, row_gain, column_loss)
            _pull(row, row_gain, step, beta, mu_refs[s], mu)
            _pull(column, column_loss, -step, beta, nu_refs[s], nu)


@njit(cache=True)
def sampled_self_play(payoffs, mu_refs, nu_refs, beta, step_sizes, harmonic, start, uniforms, rows, columns, mus, nus):
    """The same with gains averaged over actions drawn from the opponent's policy.

    ``uniforms`` of shape ``(n_states, n_iter, 2, n_draws)`` are the random numbers: of the column player's actions,
    which the row player sees, and of the row player's.
    """
    n_states, n_rows, n_columns = payoffs.shape
    n_iter, n_draws = uniforms.shape[1], uniforms.shape[3]
    row_gain, column_loss = np.empty(n_rows), np.empty(n_columns)
    for s in range(n_states):
        payoff, row, column, mu, nu = payoffs[s], rows[s], columns[s], mus[s], nus[s]
        low, high = _extremes(payoff)
        if high == low:  # the references are the equilibrium, and the start
            continue
        step = step_sizes[s]
        for t in range(n_iter):
            if harmonic:
                step = min(LARGEST_STEP, 1.0 / (beta * (start + t + 2.0)))
            row_gain[:] = 0.0
            column_loss[:] = 0.0
            mu_sums, nu_sums = np.cumsum(mu), np.cumsum(nu)
            for k in range(n_draws):
                b = min(np.searchsorted(nu_sums, uniforms[s, t, 0, k], side="right"), n_columns - 1)
                a = min(np.searchsorted(mu_sums, uniforms[s, t, 1, k], side="right"), n_rows - 1)
                for i in range(n_rows):
                    row_gain[i] += payoff[i, b] / n_draws
                for j in range(n_columns):
                    column_loss[j] += payoff[a, j] / n_draws
            _pull(row, row_gain, step, beta, mu_refs[s], mu)
            _pull(column, column_loss, -step, beta, nu_refs[s], nu)


@njit(cache=True)
def _pull(log_ratio, gain, step, beta, reference, policy):
    """One update: up the gain, and towards the reference."""
    shrink = 1.0 / (1.0 + abs(step) * beta)
    for i in range(log_ratio.size):
        log_ratio[i] = (log_ratio[i] + step * gain[i]) * shrink
    _normalise(log_ratio, reference, policy)
