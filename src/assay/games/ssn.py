r"""Nash equilibria of zero-sum matrix games to machine precision: regret matching, then semismooth Newton steps.

First-order methods give the first digits of an equilibrium quickly and the others slowly; a linear programming solver
gives them all but pays for it from the start. Here predictive regret matching+ runs for a block of iterations, then
Newton steps on the Douglas-Rachford map of the game (:mod:`assay.games.semismooth_newton`) try to finish. Far from the
solution the steps are damped in proportion to the residual and shortened where that helps, without asking that the
residual falls at every step; near it they converge quadratically. A trial that does not reach the tolerance is thrown
away and regret matching goes on as if nothing had happened, so that its global guarantee is kept. Should trials keep
failing, as they may with payoffs of very different magnitude, the central path (:mod:`assay.games.interior_point`) is
followed to where a last trial starts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.games.equilibrium_search import ROUNDING, EquilibriumSearch
from assay.games.matrix_game import (
    MatrixGameResult,
    PayoffLike,
    as_payoff,
    check_flag,
    gap_of,
    gap_of_answer,
    is_constant,
    pure_saddle_point,
    typical_payoff,
)
from assay.games.regret_matching import RegretMatching
from assay.games.semismooth_newton import GameSplitting, residual_gap_bound
from assay.validation import (
    as_distribution,
    as_float_array,
    check_choice,
    check_integer,
    check_real,
    warn_not_converged,
)

__all__ = ["convergence_order", "solve_matrix_game"]

METHODS = ("hpssn", "pssn", "ssn", "prm+")

_SMALLEST_STEP = 1e-8
# A sparse matrix with more entries than this share is solved as a dense one, which is faster and no larger.
_DENSE_SHARE = 0.5


def solve_matrix_game(
    payoff: PayoffLike,
    *,
    method: str = "hpssn",
    tol: float = 1e-10,
    max_iter: int = 100_000,
    max_newton: int = 60,
    block: int | None = None,
    growth: float = 2.0,
    interior_after: int | None = 2,
    step_size: float | None = None,
    damping: float | None = None,
    switch_gap: float | None = None,
    alternating: bool = True,
    rtol: bool = False,
    x0: ArrayLike | None = None,
    y0: ArrayLike | None = None,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> MatrixGameResult:
    r"""Nash equilibrium of a two-player zero-sum game in matrix form.

    Finds distributions that solve ``min_x max_y x' A y``, with the duality gap as proof.

    Parameters
    ----------
    payoff : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the row player, who minimises, pays to the column player, who maximises. Negate a matrix of gains of the
        row player.
    method : {"hpssn", "pssn", "ssn", "prm+"}, default="hpssn"
        - ``"hpssn"``: blocks of regret matching of growing length, a trial of Newton steps after each; see
          ``interior_after`` for games on which trials fail;
        - ``"pssn"``: one block of regret matching, then Newton steps to the end;
        - ``"ssn"``: Newton steps from ``(x0, y0)``; no global guarantee;
        - ``"prm+"``: regret matching only.
    tol : float, default=1e-10
        Duality gap to reach, in payoff units (see ``rtol``).
    max_iter : int, default=100_000
        Most iterations of regret matching.
    max_newton : int, default=60
        Most Newton steps in a trial.
    block : int, optional
        Iterations of regret matching before the first trial; ``max(100, (n_rows + n_columns) // 3)`` by default.
    growth : float, default=2.0
        Factor from one block to the next, at least 1.
    interior_after : int or None, default=2
        For ``"hpssn"``: after this many failed trials, or when ``max_iter`` is reached, follow the central path once
        and make a trial from its end. None never does.
    step_size : float, optional
        Step constant of the splitting (the paper's gamma), in units of one over payoff; ``3 / ||A||_2`` by default,
        and between ``1e-8`` and ``1e8`` over it.
    damping : float, optional
        Regularisation of a Newton step divided by the norm of the residual (the paper's theta); the regularisation is
        kept between 1e-10 and 0.3. By default ``20 * sqrt(max(1, k / 100))``, k the smaller number of actions: large
        games have more pieces to get lost between.
    switch_gap : float, optional
        For ``"pssn"``: switch to Newton steps at this duality gap (in the units of ``tol``) instead of after ``block``
        iterations.
    alternating : bool, default=True
        Whether, in regret matching, the column player sees the row player's new strategy.
    rtol : bool, default=False
        Whether ``tol`` and ``switch_gap`` are multiples of the largest absolute payoff.
    x0, y0 : array_like, optional
        Strategies to start from; uniform by default. ``"hpssn"`` makes a first trial from them, before regret
        matching.
    callback : callable, optional
        Called as ``callback(row)`` after every Newton or interior-point step and at every recorded iteration of regret
        matching, with a dict of the columns of ``history``. Return True to stop.

    Returns
    -------
    MatrixGameResult
        The pair of strategies with the smallest gap that was seen.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If the gap of the answer is above ``tol``.

    Notes
    -----
    With k the smaller and p the larger number of actions, regret matching costs O(kp) per iteration (the number of
    non-zeros for a sparse matrix) and a Newton or interior-point step O(k^2 p); memory is O(k^2 + kp), O(k^2) and
    the non-zeros for a sparse matrix. With more than some 10,000 actions of both players only ``"prm+"`` is possible.
    The problem does not change when the payoffs are multiplied or, for a dense matrix, shifted, and both are undone
    internally. A game with an equilibrium in pure strategies is recognised and answered directly.

    No gap below about 1e-15 of the largest payoff can be told from rounding errors, so with payoffs of 1e6 the default
    ``tol`` is often out of reach; ``rtol=True`` asks for what can be had. Actions that differ by about 1e-8 of the
    largest payoff, and by nothing else, may leave a gap of about 1e-9 of it.

    References
    ----------
    .. [1] Yang, Gao, Lin, Kroer. A Direct Second-Order Method for Solving Two-Player Zero-Sum Games. ICML 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games import solve_matrix_game
    >>> result = solve_matrix_game(np.random.default_rng(7).uniform(-1, 1, (50, 70)))
    >>> round(result.value, 9), result.support_x.size, result.support_y.size
    (0.038481743, 28, 28)
    >>> result.gap <= 1e-10, result.certified
    (True, True)
    """
    matrix = as_payoff(payoff)
    n_rows, n_columns = matrix.shape
    check_choice(method, "method", METHODS)
    tol = check_real(tol, "tol", above=0.0)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    max_newton = check_integer(max_newton, "max_newton", minimum=1)
    block = max(100, (n_rows + n_columns) // 3) if block is None else check_integer(block, "block", minimum=1)
    growth = check_real(growth, "growth", minimum=1.0)
    if interior_after is not None:
        interior_after = check_integer(interior_after, "interior_after", minimum=1)
    step_size = None if step_size is None else check_real(step_size, "step_size", above=0.0)
    if damping is None:
        damping = 20.0 * math.sqrt(max(1.0, min(n_rows, n_columns) / 100))
    damping = check_real(damping, "damping", above=0.0)
    if switch_gap is not None:
        if method != "pssn":
            raise ValueError(f"switch_gap must be None unless method is 'pssn', got {switch_gap!r} with {method!r}")
        switch_gap = check_real(switch_gap, "switch_gap", above=0.0)
    alternating, rtol = check_flag(alternating, "alternating"), check_flag(rtol, "rtol")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be None or a function of one row of the history, got {callback!r}")
    warm = x0 is not None or y0 is not None
    x = np.full(n_rows, 1 / n_rows) if x0 is None else as_distribution(x0, "x0", size=n_rows)
    y = np.full(n_columns, 1 / n_columns) if y0 is None else as_distribution(y0, "y0", size=n_columns)

    largest = float(abs(matrix).max())
    if rtol and largest > 0:
        tol, switch_gap = tol * largest, None if switch_gap is None else switch_gap * largest
    immediate = _immediate(matrix, tol)
    if immediate is not None:
        return _result(matrix, *immediate, tol)

    game, scale = _normalised(matrix, largest)
    by_columns = game.T.tocsr() if sp.issparse(game) else np.ascontiguousarray(game.T)
    search = EquilibriumSearch(tol, scale, callback)
    splitting = None
    if method != "prm+":
        splitting = GameSplitting(game, None if step_size is None else step_size * scale, by_columns=by_columns)
        if splitting.step_size * splitting.spectral_norm < _SMALLEST_STEP:
            raise ValueError(
                f"step_size must be at least {_SMALLEST_STEP:g} over the largest singular value of the payoffs, "
                f"got {step_size:g}: Newton steps would only move rounding errors"
            )
    if method == "ssn" or (method == "hpssn" and warm):
        search.newton(splitting, x, y, damping, max_newton)
    if method != "ssn" and not search.done:
        start = {"x": x, "y": y} if warm else {}
        matching = RegretMatching(game, alternating=alternating, columns=by_columns, **start)
        if method == "prm+":
            search.match(matching, max_iter)
        elif method == "pssn":
            search.match(matching, min(block, max_iter) if switch_gap is None else max_iter, switch_gap or 0.0)
            if not search.done:
                search.newton(splitting, *matching.better, damping, max_newton)
        length = float(block)
        while method == "hpssn" and not (search.done or search.at_rounding) and matching.n_iter < max_iter:
            search.match(matching, int(min(matching.n_iter + length, max_iter)))
            if not search.done:
                search.newton(splitting, *matching.better, damping, max_newton)
            length = min(growth * length, float(max_iter))
            if interior_after is not None and search.n_trials >= interior_after:
                search.follow_path(splitting, damping, max_newton)
        if method == "hpssn" and interior_after is not None:
            search.follow_path(splitting, damping, max_newton)

    result = _result(matrix, search.x, search.y, tol, search, splitting, scale)
    if not result.converged:
        n_iter = result.n_prm + result.n_newton + result.n_interior
        warn_not_converged("solve_matrix_game", n_iter, result.gap, tol)
    return result


def convergence_order(residuals: ArrayLike) -> float:
    r"""Observed order of convergence at the end of a sequence of residuals.

    Of the last run of falling residuals, those between 1e-2 and 1e-12 count. The order is the larger of the last two
    values of ``log(r[k+1] / r[k]) / log(r[k] / r[k-1])``; of two, because rounding flattens the very last step.

    Parameters
    ----------
    residuals : array_like of shape (n,)
        Norms of the residuals, in the order of the iterations.

    Returns
    -------
    float
        1 for linear, 2 for quadratic convergence; nan with fewer than three residuals to tell from.

    Raises
    ------
    TypeError, ValueError
        If it is not a finite vector of real numbers.

    Notes
    -----
    It is an observation, not an estimate with error bars. After a step that gained next to nothing, every step looks
    superlinear, so that single orders far above 2 mean a late start and not a faster method; and a last step that falls
    below 1e-12 is not seen. Medians over many runs are hardly touched by either.

    Examples
    --------
    >>> from assay.games.ssn import convergence_order
    >>> round(convergence_order([1e-1, 1e-2, 1e-4, 1e-8]), 6)
    2.0
    """
    return _order(as_float_array(residuals, "residuals", ndim=1, allow_empty=True).tolist())


def _order(residuals: list[float]) -> float:
    falling: list[float] = []
    for residual in reversed(residuals):
        if falling and not residual > falling[-1]:
            break
        falling.append(residual)
    counted = [residual for residual in reversed(falling) if 1e-12 <= residual <= 1e-2]
    steps = [math.log(after / before) for before, after in itertools.pairwise(counted)]
    orders = [after / before for before, after in itertools.pairwise(steps)]
    return max(orders[-2:], default=math.nan)


def _immediate(matrix: np.ndarray | sp.csr_array, tol: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Uniform strategies when all payoffs are equal, pure ones when they are an equilibrium; None otherwise."""
    n_rows, n_columns = matrix.shape
    if is_constant(matrix):
        uniform = np.full(n_rows, 1 / n_rows), np.full(n_columns, 1 / n_columns)
        if gap_of(matrix, *uniform) <= tol:
            return uniform
    saddle = pure_saddle_point(matrix)
    if saddle is None:
        return None
    x, y = np.zeros(n_rows), np.zeros(n_columns)
    x[saddle[0]] = y[saddle[1]] = 1.0
    return x, y


def _normalised(matrix: np.ndarray | sp.csr_array, largest: float) -> tuple[np.ndarray | sp.csr_array, float]:
    """Payoffs with the same equilibria, of magnitude about 1 and, if dense, about 0 on average; and their unit."""
    # A power of two changes no digit of the payoffs.
    if sp.issparse(matrix) and matrix.nnz > _DENSE_SHARE * math.prod(matrix.shape):
        matrix = matrix.toarray()
    if sp.issparse(matrix):
        scale = 2.0 ** math.frexp(largest)[1]
        return matrix / scale, scale
    scale = 2.0 ** (math.frexp(largest)[1] + 1)
    centred = matrix / scale
    centred -= typical_payoff(centred)
    unit = 2.0 ** math.frexp(float(abs(centred).max()))[1]
    centred /= unit
    return centred, scale * unit


def _result(
    matrix: np.ndarray | sp.csr_array,
    x: np.ndarray,
    y: np.ndarray,
    tol: float,
    search: EquilibriumSearch | None = None,
    splitting: GameSplitting | None = None,
    scale: float = 1.0,
) -> MatrixGameResult:
    """Recompute everything that is promised from the strategies and the matrix that was passed in."""
    gap = gap_of_answer(matrix, x, y)
    certificates = [Certificate("duality gap of the returned strategies", gap, tol)]
    if splitting is not None:
        certificates.append(_residual_certificate(splitting, x, y, scale))
    return MatrixGameResult(
        x=x,
        y=y,
        value=float(x @ (matrix @ y)),
        gap=gap,
        tol=tol,
        converged=gap <= tol,
        n_prm=search.n_prm if search else 0,
        n_newton=search.n_newton if search else 0,
        n_trials=search.n_trials if search else 0,
        n_interior=search.n_interior if search else 0,
        newton_order=_order(search.final_residuals) if search else math.nan,
        step_size=splitting.step_size / scale if splitting else math.nan,
        certificates=tuple(certificates),
        history=search.history() if search else {},
    )


def _residual_certificate(splitting: GameSplitting, x: np.ndarray, y: np.ndarray, scale: float) -> Certificate:
    """Gap at the projection of the lifted answer, against its bound by the residual there."""
    point = splitting.evaluate(*splitting.lift(*splitting.players(x, y)))
    # Strategies and payoffs are of magnitude 1 here: this is what rounding may take from a residual, or add to a gap.
    bound = residual_gap_bound(point.norm + ROUNDING, splitting.step_size, splitting.spectral_norm)
    return Certificate(
        "gap at the lifted strategies, within the bound by the residual (and rounding)",
        scale * point.gap,
        scale * (bound + ROUNDING),
    )
