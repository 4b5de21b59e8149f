r"""What one does without a pull to references: equilibria of the estimated stage games, plain or pessimistic.

The plug-in policy solves a linear program in every state of the estimated game. Pessimistic value iteration takes a
bonus for uncertainty off the values of the max player, and adds it to those of the min player, before each solves its
own programs; the bonus falls like one over the square root of the count of a cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from assay.certificate import Certificate
from assay.games.offline_data import OfflineGameData
from assay.games.offline_values import value_regression
from assay.result import Result
from assay.validation import check_real

__all__ = ["PluginResult", "pessimistic_equilibrium", "plugin_equilibrium"]

_LP_TOLERANCE = 1e-7
# States whose programs are solved together.
_BLOCK = 256


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PluginResult(Result):
    """Policies from linear programs on an estimated Markov game.

    Parameters
    ----------
    mu : numpy.ndarray of shape (horizon, n_states, A)
        Policy of the max player.
    nu : numpy.ndarray of shape (horizon, n_states, B)
        Policy of the min player.
    V_lower, V_upper : numpy.ndarray of shape (horizon + 1, n_states)
        Values that the max player counts on, and that the min player reckons with; equal without bonuses.
    """

    mu: Float[np.ndarray, "steps states rows"]
    nu: Float[np.ndarray, "steps states columns"]
    V_lower: Float[np.ndarray, "steps_and_end states"]
    V_upper: Float[np.ndarray, "steps_and_end states"]


def plugin_equilibrium(data: OfflineGameData, *, fill: str = "mid") -> PluginResult:
    """Nash equilibrium of the tabular game that a log describes, without regularisation.

    Parameters
    ----------
    data : OfflineGameData
        The log, with numbered states.
    fill : {"mid", "zero"}, default="mid"
        What a cell without data is worth; see :func:`~assay.games.offline_markov.rose`.

    Returns
    -------
    PluginResult
        The certificate is the duality gap of the worst stage game.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    A linear program (HiGHS) for every step and state without an equilibrium in pure strategies.

    Examples
    --------
    >>> from assay.games.offline_baselines import plugin_equilibrium
    >>> from assay.games.offline_data import OfflineGameData
    >>> pennies = OfflineGameData([1] * 4, [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1], [0] * 4, horizon=1)
    >>> plugin_equilibrium(pennies).mu[0, 0]
    array([0.5, 0.5])
    """
    return _value_iteration(data, fill, 0.0)


def pessimistic_equilibrium(data: OfflineGameData, c: float, *, fill: str = "mid") -> PluginResult:
    r"""Pessimistic value iteration: every player doubts what it has seldom seen.

    The bonus of a cell with N samples is :math:`c \sqrt{\log(S A B H n) / N}`, with n samples per step; a cell without
    any is worth the least to the max player and the most to the min player.

    Parameters
    ----------
    data : OfflineGameData
        The log, with numbered states.
    c : float
        Size of the bonus, at least 0.
    fill : {"mid", "zero"}, default="mid"
        What a cell without data is worth before the bonus.

    Returns
    -------
    PluginResult
        The certificate is the duality gap of the worst stage game, of the policies together with their counterparts
        that are not returned.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    Two linear programs (HiGHS) for every step and state without an equilibrium in pure strategies.

    Examples
    --------
    >>> from assay.games.offline_baselines import pessimistic_equilibrium
    >>> from assay.games.offline_data import OfflineGameData
    >>> pennies = OfflineGameData([1] * 4, [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1], [0] * 4, horizon=1)
    >>> result = pessimistic_equilibrium(pennies, c=0.1)
    >>> result.mu[0, 0], bool(result.V_lower[0, 0] < 0.5 < result.V_upper[0, 0])
    (array([0.5, 0.5]), True)
    """
    return _value_iteration(data, fill, check_real(c, "c", minimum=0.0))


def _value_iteration(data: OfflineGameData, fill: str, c: float) -> PluginResult:
    if not isinstance(data, OfflineGameData):
        raise TypeError(f"data must be an OfflineGameData, got {type(data).__name__}")
    regression = value_regression("tabular", fill, True, data)
    (n_rows, n_columns), shape = data.n_actions, (data.horizon, data.n_states)
    mu, nu = np.empty((*shape, n_rows)), np.empty((*shape, n_columns))
    lower, upper = np.zeros((2, data.horizon + 1, data.n_states))
    gaps = []
    for h in reversed(range(data.horizon)):
        most = float(data.horizon - h)
        pessimist = regression.fit(data, h, data.targets(h, lower[h + 1])).table
        if c == 0:
            mu[h], nu[h], gap = stage_programs(pessimist)
            lower[h] = upper[h] = np.einsum("sa,sab,sb->s", mu[h], pessimist, nu[h])
            gaps.append(gap)
            continue
        optimist = regression.fit(data, h, data.targets(h, upper[h + 1])).table
        bonus = _bonus(data, h, c)
        pessimist = np.clip(pessimist - bonus, 0.0, most)
        optimist = np.clip(optimist + bonus, 0.0, most)
        mu[h], other_nu, gap = stage_programs(pessimist)
        lower[h] = np.einsum("sa,sab,sb->s", mu[h], pessimist, other_nu)
        other_mu, nu[h], other_gap = stage_programs(optimist)
        upper[h] = np.einsum("sa,sab,sb->s", other_mu, optimist, nu[h])
        gaps += [gap, other_gap]
    certificate = Certificate("duality gap of the worst stage game, over states and steps", max(gaps), _LP_TOLERANCE)
    return PluginResult(mu=mu, nu=nu, V_lower=lower, V_upper=upper, certificates=(certificate,))


def _bonus(data: OfflineGameData, h: int, c: float) -> np.ndarray:
    n_rows, n_columns = data.n_actions
    log = math.log(data.n_states * n_rows * n_columns * data.horizon * float(data.n_samples[h]))
    with np.errstate(divide="ignore"):
        return c * np.sqrt(max(log, 0.0) / data.counts(h))


def stage_programs(payoffs: ArrayLike) -> tuple[np.ndarray, np.ndarray, float]:
    """Equilibria of matrix games by linear programming, where there is none in pure strategies.

    Parameters
    ----------
    payoffs : array_like of shape (n_states, n_rows, n_columns)
        What the max player gets.

    Returns
    -------
    mu : numpy.ndarray of shape (n_states, n_rows)
    nu : numpy.ndarray of shape (n_states, n_columns)
    gap : float
        Largest duality gap.
    """
    games = np.asarray(payoffs, dtype=np.float64)
    n_states, n_rows, n_columns = games.shape
    mu, nu = np.zeros((n_states, n_rows)), np.zeros((n_states, n_columns))
    floor, ceiling = games.min(axis=2), games.max(axis=1)
    row, column = floor.argmax(axis=1), ceiling.argmin(axis=1)
    everyone = np.arange(n_states)
    mu[everyone, row], nu[everyone, column] = 1.0, 1.0
    constant = games.max(axis=(1, 2)) == games.min(axis=(1, 2))  # nothing is known there: no action is preferred
    mu[constant], nu[constant] = 1 / n_rows, 1 / n_columns
    mixed = np.flatnonzero((floor[everyone, row] < ceiling[everyone, column]) & ~constant)
    for start in range(0, len(mixed), _BLOCK):
        part = mixed[start : start + _BLOCK]
        mu[part], nu[part] = _program(games[part])
    gap = (games @ nu[:, :, None]).max(axis=(1, 2)) - (mu[:, None, :] @ games).min(axis=(1, 2))
    return mu, nu, float(gap.max())


def _program(games: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One linear program of independent blocks, a game each: the overhead of a call is that of hundreds of games."""
    n_states, n_rows, n_columns = games.shape
    width = n_rows + 1  # the mixed strategy, and the value
    blocks = np.concatenate((-games.transpose(0, 2, 1), np.ones((n_states, n_columns, 1))), axis=2)
    first = np.arange(n_states)[:, None, None] * width
    rows = np.repeat(np.arange(n_states * n_columns), width)
    columns = np.broadcast_to(first + np.arange(width), (n_states, n_columns, width)).ravel()
    mass = np.tile(np.append(np.ones(n_rows), 0.0), n_states)
    answer = linprog(
        mass - 1.0,
        A_ub=sp.csr_array((blocks.ravel(), (rows, columns)), shape=(n_states * n_columns, n_states * width)),
        b_ub=np.zeros(n_states * n_columns),
        A_eq=sp.csr_array((mass, (np.repeat(np.arange(n_states), width), np.arange(n_states * width)))),
        b_eq=np.ones(n_states),
        bounds=np.column_stack((np.where(mass > 0, 0.0, -np.inf), np.full(len(mass), np.inf))),
        method="highs",
    )
    if answer.status != 0:
        raise ValueError(f"payoffs must make games that HiGHS can solve, got: {answer.message}")
    mu = np.maximum(answer.x.reshape(n_states, width)[:, :-1], 0.0)
    nu = np.maximum(-answer.ineqlin.marginals.reshape(n_states, n_columns), 0.0)
    return mu / mu.sum(axis=1, keepdims=True), nu / nu.sum(axis=1, keepdims=True)
