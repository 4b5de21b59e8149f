r"""Predictive regret matching+ (PRM+): the first-order method for the first digits of a matrix game.

Each player keeps, for every action, the regret of not having played it (cut off at zero) and plays in proportion to
these regrets plus a prediction, namely that the next payoffs will equal the last ones. In alternating play the column
player has seen the row player's newest strategy. One iteration is two matrix-vector products and no step size has to be
chosen. Regret matching plays few actions with positive probability, so the products here run over the rows that carry
weight, in blocks of four that stay in registers; the duality gaps of the last strategies and of the running average
come out of the same products, so that watching for convergence costs nothing.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
from numba import njit
from numba.extending import overload

from assay.certificate import Certificate
from assay.games.matrix_game import MatrixGameResult, PayoffLike, as_payoff, check_flag, gap_of, gap_of_answer
from assay.validation import check_choice, check_integer

__all__ = ["RegretMatching", "prm_plus"]

_AVERAGES = {"none": -1, "linear": 1, "quadratic": 2}


def prm_plus(
    payoff: PayoffLike, n_iter: int, *, alternating: bool = True, average: str = "quadratic"
) -> MatrixGameResult:
    r"""Run predictive regret matching+ for a given number of iterations.

    Parameters
    ----------
    payoff : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the row player, who minimises, pays to the column player, who maximises.
    n_iter : int
        Number of iterations, at least 1.
    alternating : bool, default=True
        Whether the column player updates after seeing the row player's new strategy, or both at once.
    average : {"quadratic", "linear", "none"}, default="quadratic"
        What is returned: the average of all strategies with weights ``t**2`` or ``t``, or the last strategies.

    Returns
    -------
    MatrixGameResult
        ``tol`` is nan. The certificate says that the gap of the average is within the bound by the regrets (see
        Notes); the last strategies come without a promise. ``history`` has the gap at about 10 iterations per decade.

    Raises
    ------
    TypeError, ValueError
        If the payoff is not a finite real matrix, or an option is not as described.

    See Also
    --------
    solve_matrix_game : Runs until a duality gap is reached.

    Notes
    -----
    Regrets are cut off at zero, so the regret vector of a player bounds the regrets over the last iterations, however
    many. By summation by parts, the duality gap of an average with non-decreasing weights ``w`` is at most
    ``w_T / (w_1 + ... + w_T)`` times the sum of the largest regrets of both players (plus, in alternating play, the
    average of ``x_t' A (y_{t-1} - y_t)``). The norm of a regret vector is at most ``2 sqrt(n T)`` times the spread
    of the payoffs, and in practice much smaller, so the gap falls at least like ``1 / sqrt(T)`` in simultaneous play.

    Time O(n_rows * n_columns) per iteration (the number of non-zeros for a sparse matrix); the matrix is stored twice,
    by rows and by columns.

    References
    ----------
    .. [1] G. Farina, C. Kroer, T. Sandholm. Faster game solving via predictive Blackwell approachability. AAAI 2021.

    Examples
    --------
    >>> from assay.games import prm_plus
    >>> result = prm_plus([[0, -1, 3], [1, 0, -1], [-3, 1, 0]], 2000)
    >>> result.x.round(3)
    array([0.2, 0.6, 0.2])
    """
    matrix = as_payoff(payoff)
    n_iter = check_integer(n_iter, "n_iter", minimum=1)
    check_choice(average, "average", _AVERAGES)
    run = RegretMatching(matrix, alternating=check_flag(alternating, "alternating"), average=average)
    iterations, gaps = [], []
    for stop in checkpoints(n_iter):
        run.advance(stop - run.n_iter)
        x, y = run.last if average == "none" else run.averaged
        iterations.append(run.n_iter)
        gaps.append(gap_of(matrix, x, y))
    gap = gap_of_answer(matrix, x, y)
    statement = "duality gap of the average strategies, within the bound by the regrets (and rounding)"
    return MatrixGameResult(
        x=x,
        y=y,
        value=float(x @ (matrix @ y)),
        gap=gap,
        tol=math.nan,
        converged=False,
        n_prm=n_iter,
        certificates=() if average == "none" else (Certificate(statement, gap, run.regret_bound),),
        history={"iteration": np.array(iterations), "gap": np.array(gaps)},
    )


def checkpoints(n_iter: int, start: int = 0, ratio: float = 1.25) -> list[int]:
    """Iterations at which to look: about 10 per decade, and the last one."""
    stops, stop = [], start
    while stop < n_iter:
        stop = min(n_iter, max(stop + 1, int(stop * ratio)))
        stops.append(stop)
    return stops


class RegretMatching:
    """The state of predictive regret matching+ on one game, to be advanced in pieces.

    Parameters
    ----------
    matrix : numpy.ndarray or scipy.sparse.csr_array of shape (n_rows, n_columns)
        Checked payoff matrix in float64.
    alternating : bool, default=True
        Whether the column player sees the row player's new strategy.
    average : {"quadratic", "linear", "none"}, default="quadratic"
        Weights of the running average.
    x, y : numpy.ndarray, optional
        First strategies; uniform by default.
    columns : numpy.ndarray or scipy.sparse.csr_array of shape (n_columns, n_rows), optional
        The transposed matrix, stored by its rows, if the caller has it already.

    Attributes
    ----------
    n_iter : int
        Iterations so far.
    last, averaged : tuple of numpy.ndarray
        Strategies of the last iteration, and their weighted average.
    last_gap, averaged_gap : float
        Their duality gaps, as a by-product of the iteration.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.regret_matching import RegretMatching
    >>> run = RegretMatching(np.array([[0.0, 1.0], [2.0, 0.0]]))
    >>> run.advance(1000, target=1e-3) < 1000
    True
    """

    def __init__(
        self,
        matrix: np.ndarray | sp.csr_array,
        *,
        alternating: bool = True,
        average: str = "quadratic",
        x: np.ndarray | None = None,
        y: np.ndarray | None = None,
        columns: np.ndarray | sp.csr_array | None = None,
    ):
        n_rows, n_columns = matrix.shape
        if sp.issparse(matrix):
            by_columns = matrix.T.tocsr() if columns is None else columns
            self._rows = (matrix.indptr, matrix.indices, matrix.data)
            self._columns = (by_columns.indptr, by_columns.indices, by_columns.data)
        else:
            self._rows = (np.ascontiguousarray(matrix),)
            self._columns = (np.ascontiguousarray(matrix.T) if columns is None else columns,)
        first_x = np.full(n_rows, 1.0 / n_rows) if x is None else x.copy()
        first_y = np.full(n_columns, 1.0 / n_columns) if y is None else y.copy()
        # Regrets are in units of payoffs: with this scale a given start is not drowned by the first regrets.
        self._scale = scale = float(abs(matrix).max())
        self._regrets = (
            np.zeros(n_rows) if x is None else scale * first_x,
            np.zeros(n_columns) if y is None else scale * first_y,
        )
        self._predictions = (np.zeros(n_rows), np.zeros(n_columns))
        self._strategies = (first_x, first_y)
        self._means = (first_x.copy(), first_y.copy())
        self._mean_gains = (np.zeros(n_rows), np.zeros(n_columns))
        self._alternating = bool(alternating)
        self._power = _AVERAGES[average]
        self.n_iter = 0
        self.last_gap = self.averaged_gap = math.inf
        self._lag = 0.0

    @property
    def last(self) -> tuple[np.ndarray, np.ndarray]:
        """Strategies of the last iteration."""
        return self._strategies[0].copy(), self._strategies[1].copy()

    @property
    def averaged(self) -> tuple[np.ndarray, np.ndarray]:
        """Weighted average of the strategies of all iterations."""
        return self._means[0] / self._means[0].sum(), self._means[1] / self._means[1].sum()

    @property
    def better(self) -> tuple[np.ndarray, np.ndarray]:
        """Whichever of ``last`` and ``averaged`` has the smaller gap."""
        return self.last if self.last_gap <= self.averaged_gap else self.averaged

    @property
    def gap(self) -> float:
        """The smaller of both gaps."""
        return min(self.last_gap, self.averaged_gap)

    @property
    def regret_bound(self) -> float:
        """What the regrets say that the gap of the averaged strategies can be at most."""
        rate = _rate(self._power, self.n_iter)
        regrets = rate * (self._regrets[0].max() + self._regrets[1].max()) + self._lag
        # The bound is attained in the first iteration, where rounding must not decide.
        return float(regrets) + 16 * np.finfo(float).eps * self._scale

    def advance(self, n_iter: int, target: float = -math.inf) -> int:
        """Do up to ``n_iter`` iterations, fewer once one of the two gaps is at most ``target``; return how many."""
        done, self.last_gap, self.averaged_gap, self._lag = _play(
            self._rows,
            self._columns,
            self._regrets,
            self._predictions,
            self._strategies,
            self._means,
            self._mean_gains,
            self._alternating,
            self._power,
            self.n_iter,
            self._lag,
            n_iter,
            target,
        )
        self.n_iter += done
        return done


# Sums may be reordered for the sake of vector instructions; nan and infinities keep their meaning.
_REORDER = {"contract", "reassoc"}


@njit(cache=True, fastmath=_REORDER)
def _weighted_rows(matrix, weights, active, out):
    """``out = weights @ matrix`` over the rows of positive weight, four at a time."""
    n_active = 0
    for i in range(weights.size):
        if weights[i] > 0.0:
            active[n_active] = i
            n_active += 1
    out[:] = 0.0
    n_blocked = n_active - n_active % 4
    for k in range(0, n_blocked, 4):
        i0, i1, i2, i3 = active[k], active[k + 1], active[k + 2], active[k + 3]
        w0, w1, w2, w3 = weights[i0], weights[i1], weights[i2], weights[i3]
        r0, r1, r2, r3 = matrix[i0], matrix[i1], matrix[i2], matrix[i3]
        for j in range(out.size):
            out[j] += (w0 * r0[j] + w1 * r1[j]) + (w2 * r2[j] + w3 * r3[j])
    for k in range(n_blocked, n_active):
        w, r = weights[active[k]], matrix[active[k]]
        for j in range(out.size):
            out[j] += w * r[j]


@njit(cache=True)
def _weighted_sparse_rows(indptr, indices, data, weights, out):
    """``out = weights @ matrix`` for a matrix in compressed rows."""
    out[:] = 0.0
    for i in range(weights.size):
        if weights[i] > 0.0:
            for k in range(indptr[i], indptr[i + 1]):
                out[indices[k]] += weights[i] * data[k]


def _multiply(rows, weights, active, out):
    """``out = weights @ matrix``, for the one array of a dense matrix or the three of a sparse one."""
    out[:] = weights @ (rows[0] if len(rows) == 1 else sp.csr_array(rows[::-1], shape=(weights.size, out.size)))


@overload(_multiply)
def _choose_product(rows, weights, active, out):
    if len(rows) == 1:
        return lambda rows, weights, active, out: _weighted_rows(rows[0], weights, active, out)
    return lambda rows, weights, active, out: _weighted_sparse_rows(rows[0], rows[1], rows[2], weights, out)


@njit(cache=True, fastmath=_REORDER)
def _choose(regret, prediction, strategy):
    """Play in proportion to the positive part of regret plus prediction."""
    total = 0.0
    for i in range(regret.size):
        strategy[i] = max(regret[i] + prediction[i], 0.0)
        total += strategy[i]
    if total > 0.0:
        for i in range(regret.size):
            strategy[i] /= total
    else:
        strategy[:] = 1.0 / regret.size


@njit(cache=True, fastmath=_REORDER)
def _observe(gain, strategy, regret, prediction):
    """Add the regrets of the strategy just played and predict that they will be the same again; return its gain."""
    played = 0.0
    for i in range(gain.size):
        played += gain[i] * strategy[i]
    for i in range(gain.size):
        prediction[i] = gain[i] - played
        regret[i] = max(regret[i] + prediction[i], 0.0)
    return played


@njit(cache=True)
def _rate(power, t):
    """Share of iteration ``t`` in an average over the iterations 1 to ``t`` with weights ``t`` or ``t**2``."""
    if power == 2:
        return 6.0 * t / ((t + 1.0) * (2.0 * t + 1.0))
    return 2.0 / (t + 1.0)


@njit(cache=True, fastmath=_REORDER)
def _mix(mean, new, rate):
    for i in range(mean.size):
        mean[i] += rate * (new[i] - mean[i])


@njit(cache=True)
def _play(
    rows,
    columns,
    regrets,
    predictions,
    strategies,
    means,
    mean_gains,
    alternating,
    power,
    done,
    mean_lag,
    n_iter,
    target,
):
    """Advance the state in place; return the number of iterations, the gaps of the last and of the mean strategies, and
    the mean of how much more the newest row strategy pays to the previous column strategy than to the newest.
    """
    regret_x, regret_y = regrets
    prediction_x, prediction_y = predictions
    x, y = strategies
    mean_x, mean_y = means
    mean_gain_x, mean_gain_y = mean_gains
    gain_x, gain_y = np.empty_like(x), np.empty_like(y)
    active = np.empty(max(x.size, y.size), dtype=np.int64)
    last_gap = averaged_gap = np.inf
    for iteration in range(1, n_iter + 1):
        _choose(regret_x, prediction_x, x)
        if not alternating:
            _choose(regret_y, prediction_y, y)
        _multiply(rows, x, active, gain_y)
        received = _observe(gain_y, y, regret_y, prediction_y)
        if alternating:
            _choose(regret_y, prediction_y, y)
        _multiply(columns, y, active, gain_x)
        for i in range(gain_x.size):
            gain_x[i] = -gain_x[i]
        paid = -_observe(gain_x, x, regret_x, prediction_x)
        # Both products are of the current pair, so its gap costs nothing more; nor does that of the mean,
        # whose products are the means of the products.
        last_gap = averaged_gap = gain_y.max() + gain_x.max()
        if power > 0:
            rate = _rate(power, done + iteration)
            _mix(mean_x, x, rate)
            _mix(mean_y, y, rate)
            _mix(mean_gain_x, gain_x, rate)
            _mix(mean_gain_y, gain_y, rate)
            mean_lag += rate * (received - paid - mean_lag)
            averaged_gap = mean_gain_y.max() + mean_gain_x.max()
        if min(last_gap, averaged_gap) <= target:
            return iteration, last_gap, averaged_gap, mean_lag
    return n_iter, last_gap, averaged_gap, mean_lag
