r"""How strongly one player may be perturbed before its equilibrium strategy moves.

The perturbed minimiser solves ``min_x g(x) + (mu / 2) |x|^2``, where ``g(x) = max_j (A'x)_j`` is a maximum of linear
functions: a quadratic program in one variable more. Since equilibria of least norm are the same for all small ``mu``,
and a ``mu`` that moves nothing allows every smaller one, the threshold is found by bisection.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from scipy.optimize import linprog

from assay.extras import import_extra
from assay.games.bilinear_saddle import power_of_two
from assay.games.matrix_game import PayoffLike, as_payoff
from assay.validation import check_choice, check_real

__all__ = ["invariance_threshold", "perturbed_minimax"]

# With payoffs of about 1: how far from optimal a strategy of the quadratic program may be.
_EXACT = 1e-7
_SMALLEST, _LARGEST = 1e-9, 1e9


def perturbed_minimax(A: PayoffLike, mu: float, *, side: str = "x") -> Float[np.ndarray, " actions"]:
    r"""Solution of ``min_x max_y x'Ay + (mu / 2) |x|^2`` over distributions, by quadratic programming.

    Parameters
    ----------
    A : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the row player pays to the column player.
    mu : float
        Strength of the perturbation, above 0, in payoff units.
    side : {"x", "y"}, default="x"
        Which player is perturbed.

    Returns
    -------
    numpy.ndarray of shape (n_rows,) or (n_columns,)
        To about 8 digits.

    Raises
    ------
    MissingExtraError
        If Clarabel is not installed.
    TypeError, ValueError
        If an argument is not as described.
    RuntimeError
        If the program could not be solved.

    Notes
    -----
    An interior-point method: O(k^3) with k the number of actions of both players. This is a reference for small games.

    Examples
    --------
    >>> from assay.games.asymmetric_invariance import perturbed_minimax
    >>> perturbed_minimax([[0, -1, 3], [1, 0, -1], [-3, 1, 0]], 4.0).round(4)  # doctest: +SKIP
    array([0.2  , 0.525, 0.275])
    """
    matrix, unit = _view(A, side)
    return _solve(matrix, check_real(mu, "mu", above=0.0) / unit)


def invariance_threshold(A: PayoffLike, *, side: str = "x", rtol: float = 1e-3) -> tuple[float, float]:
    r"""Largest perturbation of one player of a matrix game that leaves its strategy an equilibrium strategy.

    Parameters
    ----------
    A : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the row player pays to the column player.
    side : {"x", "y"}, default="x"
        Which player is perturbed.
    rtol : float, default=1e-3
        Ratio, less 1, of the bounds that are returned.

    Returns
    -------
    mu_lo, mu_hi : float
        In payoff units: ``mu_lo`` leaves the strategy optimal (within 1e-7 of the largest payoff), ``mu_hi`` does not.
        Both are infinite where the uniform strategy is optimal, so that no perturbation moves it. ``mu_lo`` is 0 if
        even 1e-9 of the largest payoff is too much.

    Raises
    ------
    MissingExtraError
        If Clarabel is not installed.
    TypeError, ValueError
        If an argument is not as described.
    RuntimeError
        If a program could not be solved.

    Notes
    -----
    Some 20 quadratic programs and one linear program. A little above the threshold the strategy loses little, so that
    ``mu_lo`` may exceed it by what 1e-7 hides.

    References
    ----------
    .. [1] Abe, Sakamoto, Ariu, Iwasaki. Asymmetric Perturbation in Solving Bilinear Saddle-Point Optimization. ICML
       2026. arXiv:2506.05747.

    Examples
    --------
    >>> from assay.games.asymmetric_invariance import invariance_threshold
    >>> lo, hi = invariance_threshold([[0, -1, 3], [1, 0, -1], [-3, 1, 0]])  # doctest: +SKIP
    >>> lo <= 2.5 <= hi  # doctest: +SKIP
    True
    """
    matrix, unit = _view(A, side)
    rtol = check_real(rtol, "rtol", above=0.0)
    value = _value(matrix)

    def exact(mu: float) -> bool:
        return excess(matrix, _solve(matrix, mu), value) <= _EXACT

    uniform = np.full(matrix.shape[0], 1.0 / matrix.shape[0])
    if excess(matrix, uniform, value) <= _EXACT:
        return math.inf, math.inf
    low = high = 1.0
    if exact(1.0):
        while exact(high):
            low, high = high, 4.0 * high
            if high > _LARGEST:
                return low * unit, math.inf
    else:
        while not exact(low):
            low, high = 0.25 * low, low
            if low < _SMALLEST:
                return 0.0, high * unit
    while high > low * (1.0 + rtol):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if exact(middle) else (low, middle)
    return low * unit, high * unit


def excess(matrix: np.ndarray, x: np.ndarray, value: float) -> float:
    """What a row strategy loses to a best response, over the value of the game."""
    return float((matrix.T @ x).max() - value)


def _view(A: Any, side: str) -> tuple[np.ndarray, float]:
    """Payoffs of the player who is perturbed, of magnitude about 1, and their unit."""
    matrix = as_payoff(A, "A")
    check_choice(side, "side", ("x", "y"))
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    unit = power_of_two(float(np.abs(dense).max()))
    return (dense if side == "x" else -dense.T) / unit, unit


def _value(matrix: np.ndarray) -> float:
    n_rows, n_columns = matrix.shape
    answer = linprog(
        np.append(np.zeros(n_rows), 1.0),
        A_ub=np.column_stack((matrix.T, -np.ones(n_columns))),
        b_ub=np.zeros(n_columns),
        A_eq=np.append(np.ones(n_rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * n_rows + [(None, None)],
        method="highs",
    )
    if answer.status != 0:
        raise RuntimeError(f"the linear program of the game could not be solved: {answer.message}")
    x = np.maximum(answer.x[:-1], 0.0)
    return float((matrix.T @ (x / x.sum())).max())


def _solve(matrix: np.ndarray, mu: float) -> np.ndarray:
    """The quadratic program in ``(x, t)``: ``A'x <= t``, ``x`` a distribution."""
    clarabel = import_extra("clarabel", extra="cvxpy")
    n_rows, n_columns = matrix.shape
    # Scaled so that neither the linear nor the quadratic part is tiny.
    weight = max(1.0, mu)
    quadratic = sp.diags(np.append(np.full(n_rows, mu / weight), 0.0), format="csc")
    linear = np.append(np.zeros(n_rows), 1.0 / weight)
    constraints = sp.vstack(
        [
            sp.csc_matrix(np.append(np.ones(n_rows), 0.0)[None]),
            sp.hstack([sp.csc_matrix(matrix.T), sp.csc_matrix(-np.ones((n_columns, 1)))]),
            sp.hstack([-sp.identity(n_rows), sp.csc_matrix((n_rows, 1))]),
        ],
        format="csc",
    )
    bounds = np.concatenate(([1.0], np.zeros(n_columns + n_rows)))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n_columns + n_rows)]
    answer = clarabel.DefaultSolver(quadratic, linear, constraints, bounds, cones, settings).solve()
    x = np.maximum(np.asarray(answer.x)[:-1], 0.0)
    if "Solved" not in str(answer.status) or not np.all(np.isfinite(x)) or not x.sum() > 0.5:
        raise RuntimeError(f"the quadratic program of the perturbed game could not be solved: {answer.status}")
    return x / x.sum()
