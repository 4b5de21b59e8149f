r"""Two-player zero-sum matrix games: what the solvers of this family share.

In a matrix game the row player picks a distribution ``x`` over the rows of a payoff matrix ``A`` and pays
``x' A y`` to the column player, who picks ``y`` over the columns. A pair is a Nash equilibrium exactly when neither
player gains by deviating, and the most that they could gain together is the duality gap
``max_j (A'x)_j - min_i (Ay)_i``: two matrix-vector products certify any pair, whoever computed it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.validation import as_distribution, as_float_array

__all__ = ["MatrixGameResult", "PayoffLike", "duality_gap", "project_simplex"]

# A tensor is array-like: it has __array__.
PayoffLike = ArrayLike | sp.spmatrix | sp.sparray


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MatrixGameResult(Result):
    """Strategies for a matrix game, with the proof of how close they are to equilibrium.

    Parameters
    ----------
    x : numpy.ndarray of shape (n_rows,)
        Mixed strategy of the row player, who minimises.
    y : numpy.ndarray of shape (n_columns,)
        Mixed strategy of the column player, who maximises.
    value : float
        ``x' A y``. The value of the game is within ``gap`` of it.
    gap : float
        Duality gap of ``(x, y)``, computed in float64 from the payoff matrix that was passed in.
    tol : float
        The gap that was asked for, in payoff units; nan where a number of iterations was asked for.
    converged : bool
        Whether ``gap <= tol``.
    n_prm : int
        Iterations of predictive regret matching.
    n_newton : int
        Newton steps, those of discarded trials included.
    n_trials : int
        Runs of Newton steps that were started.
    n_interior : int
        Interior-point steps: 0 unless trials of Newton steps failed.
    newton_order : float
        Observed order of convergence of the last Newton steps: 1 is linear, 2 quadratic; nan when the run is too
        short to tell, or when it did not solve the game. See :meth:`rate_certificate`.
    step_size : float
        Step constant of the operator splitting, nan where there was none.
    support_x, support_y : numpy.ndarray of int
        Indices of the actions that are played with positive probability.
    certificates : tuple of Certificate
        The duality gap and, where Newton steps could be done, the bound of the gap by the residual of the splitting.
        The gap of what is not a pair of distributions is nan, which never holds.
    history : dict of str to numpy.ndarray
        Columns ``phase`` (``"prm+"``, ``"newton"`` or ``"interior"``), ``trial``, ``iteration`` (within the phase or
        trial), ``gap``, ``residual`` and ``regularization`` (nan outside Newton steps), ``seconds`` since the start.
        Empty where an answer was read off the payoffs. :func:`prm_plus` has ``iteration`` and ``gap`` only.

    Examples
    --------
    >>> from assay.games import solve_matrix_game
    >>> result = solve_matrix_game([[0, 1, -1], [-1, 0, 1], [1, -1, 0]])
    >>> result.x.round(6), round(result.value, 9)
    (array([0.333333, 0.333333, 0.333333]), 0.0)
    >>> print(result.certificates[0].statement)
    duality gap of the returned strategies
    """

    x: Float[np.ndarray, " rows"]
    y: Float[np.ndarray, " columns"]
    value: float
    gap: float
    tol: float
    converged: bool
    n_prm: int = 0
    n_newton: int = 0
    n_trials: int = 0
    n_interior: int = 0
    newton_order: float = math.nan
    step_size: float = math.nan

    @property
    def support_x(self) -> np.ndarray:
        """Rows that are played with positive probability."""
        return np.flatnonzero(self.x > 0)

    @property
    def support_y(self) -> np.ndarray:
        """Columns that are played with positive probability."""
        return np.flatnonzero(self.y > 0)

    def rate_certificate(self) -> Certificate:
        """Whether the last Newton steps converged superlinearly: observed order of at least 1.3.

        It is not among ``certificates`` because a game may be solved without it: in a step or two (then the order
        is nan, and nan never holds), or although its equilibrium is degenerate.

        Returns
        -------
        Certificate
            With the assumption that the supports have equal size, which a non-singular generalised Jacobian needs.
        """
        square = bool(self.support_x.size == self.support_y.size)
        return Certificate(
            "order of convergence of the last Newton steps",
            self.newton_order,
            1.3,
            ">=",
            (
                Assumption("the supports of the equilibrium have equal size", square),
                Assumption("the generalised Jacobian is non-singular at the equilibrium"),
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields and the supports as JSON-ready types."""
        return super().to_dict() | {"support_x": self.support_x.tolist(), "support_y": self.support_y.tolist()}


def duality_gap(payoff: PayoffLike, x: ArrayLike, y: ArrayLike) -> float:
    r"""Distance of a pair of strategies from equilibrium, in payoff units (NashConv).

    The gap ``max_j (A'x)_j - min_i (Ay)_i`` is what both players together could gain by best responses. It is
    non-negative, zero exactly at a Nash equilibrium, and the value of the game is within it of ``x'Ay``.

    Parameters
    ----------
    payoff : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the row player pays to the column player.
    x : array_like of shape (n_rows,)
        Strategy of the row player, non-negative with sum 1 (within 1e-8).
    y : array_like of shape (n_columns,)
        Strategy of the column player.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If the payoff is not a finite real matrix or a strategy is not a distribution over its rows or columns.

    Notes
    -----
    Two matrix-vector products. Rounding may make the gap of an exact equilibrium a few units in the last place
    of the largest payoff instead of 0, on either side.

    Examples
    --------
    >>> from assay.games import duality_gap
    >>> duality_gap([[0, 1, -1], [-1, 0, 1], [1, -1, 0]], [1, 0, 0], [0, 1, 0])
    2.0
    """
    matrix = as_payoff(payoff)
    n_rows, n_columns = matrix.shape
    return gap_of(matrix, as_distribution(x, "x", size=n_rows), as_distribution(y, "y", size=n_columns))


def gap_of(matrix: np.ndarray | sp.csr_array, x: np.ndarray, y: np.ndarray) -> float:
    """Duality gap of checked arguments."""
    return float((matrix.T @ x).max() - (matrix @ y).min())


def gap_of_answer(matrix: np.ndarray | sp.csr_array, x: np.ndarray, y: np.ndarray) -> float:
    """Duality gap of what a solver returns: nan if it is not a pair of distributions, whose gap would prove nothing."""
    for strategy in (x, y):
        if not (strategy.min() >= 0.0 and abs(strategy.sum() - 1.0) <= _MASS_ROUNDING):
            return math.nan
    return gap_of(matrix, x, y)


# Of a sum of probabilities.
_MASS_ROUNDING = 1e-12


def as_payoff(payoff: PayoffLike, name: str = "payoff") -> np.ndarray | sp.csr_array:
    """Check a payoff matrix; sparse stays sparse (CSR, duplicates summed), everything else becomes float64."""
    matrix = _as_csr(payoff, name) if sp.issparse(payoff) else as_float_array(payoff, name, ndim=2)
    largest = max(float(matrix.max()), -float(matrix.min()))
    if largest > _LARGEST_PAYOFF:
        raise ValueError(
            f"{name} must have entries of at most {_LARGEST_PAYOFF:g}, got {largest:g}: gaps would overflow"
        )
    return matrix


# Differences of payoffs, and their products with weights, must be finite.
_LARGEST_PAYOFF = 1e300


def _as_csr(payoff: sp.spmatrix | sp.sparray, name: str) -> sp.csr_array:
    if np.iscomplexobj(payoff):
        raise TypeError(f"{name} must be a finite 2-D array of real numbers, got dtype {payoff.dtype}")
    if payoff.ndim != 2 or 0 in payoff.shape:
        raise ValueError(f"{name} must be a finite 2-D array and not empty, got shape {payoff.shape}")
    # A copy, because bringing it to canonical form would change the caller's matrix in place.
    matrix = sp.csr_array(payoff, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    n_bad = int(np.count_nonzero(~np.isfinite(matrix.data)))
    if n_bad:
        raise ValueError(f"{name} must be a finite 2-D array, got {n_bad} nan or infinite entries")
    return matrix


def project_simplex(point: ArrayLike) -> Float[np.ndarray, " actions"]:
    """Euclidean projection onto the probability simplex.

    Parameters
    ----------
    point : array_like of shape (n,)
        Any vector.

    Returns
    -------
    numpy.ndarray of shape (n,)
        The closest vector that is non-negative with sum 1.

    Raises
    ------
    TypeError, ValueError
        If it is not a finite vector of real numbers.

    Notes
    -----
    Exact, by sorting: O(n log n).

    References
    ----------
    .. [1] M. Held, P. Wolfe, H. Crowder. Validation of subgradient optimization. Mathematical Programming 6, 1974.

    Examples
    --------
    >>> from assay.games.matrix_game import project_simplex
    >>> project_simplex([0.75, 0.75, -3.0])
    array([0.5, 0.5, 0. ])
    """
    vector = as_float_array(point, "point", ndim=1)
    with np.errstate(over="ignore"):
        # What is more than 1 below the largest entry becomes 0, however far below.
        return nearest_distribution(np.maximum(vector - vector.max(), -1.0))


def nearest_distribution(point: np.ndarray) -> np.ndarray:
    """Projection of a checked vector."""
    # Distances from the largest entry: the threshold below is then accurate however large the entries are.
    shifted = point - point.max()
    ordered = np.sort(shifted)[::-1]
    excess = np.cumsum(ordered)
    excess -= 1.0
    excess /= _counting(point.size)
    # The entries above their own threshold are a prefix of the sorted vector.
    kept = np.count_nonzero(ordered > excess)
    return np.maximum(shifted - excess[kept - 1], 0.0)


def _counting(size: int) -> np.ndarray:
    return np.arange(1.0, size + 1.0)


def check_flag(flag: Any, name: str) -> bool:
    """Check that a switch is True or False: any other object would count as True."""
    if not isinstance(flag, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {flag!r}")
    return bool(flag)


def typical_payoff(matrix: np.ndarray) -> float:
    """A payoff that may be subtracted from all others so that they are about zero: their mean or their median.

    Equilibria stay what they are. The mean is better for the splitting, but a few huge payoffs would move it so far
    from all others that those lose their digits.
    """
    # A sample will do. Its stride has no factor in common with the shape, so that it meets all rows and columns.
    stride = max(1, matrix.size // _SAMPLED_PAYOFFS)
    while math.gcd(stride, matrix.size) > 1:
        stride += 1
    sample = matrix.ravel(order="K")[::stride]
    median = float(np.median(sample))
    largest = max(float(matrix.max()) - median, median - float(matrix.min()))
    ordinary = float(np.quantile(abs(sample - median), 0.75)) >= _ORDINARY_SHARE * largest
    return float(matrix.mean()) if ordinary else median


_SAMPLED_PAYOFFS, _ORDINARY_SHARE = 4096, 0.01


def is_constant(matrix: np.ndarray | sp.csr_array) -> bool:
    """Whether all payoffs are equal."""
    return bool(matrix.max() == matrix.min())


def pure_saddle_point(matrix: np.ndarray | sp.csr_array) -> tuple[int, int] | None:
    """Row and column of an equilibrium in pure strategies, or None if there is none."""
    worst_of_row, best_of_column = _extremes(matrix)
    row, column = int(np.argmin(worst_of_row)), int(np.argmax(best_of_column))
    return (row, column) if worst_of_row[row] == best_of_column[column] else None


def _extremes(matrix: np.ndarray | sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    if sp.issparse(matrix):
        return matrix.max(axis=1).toarray().ravel(), matrix.min(axis=0).toarray().ravel()
    return matrix.max(axis=1), matrix.min(axis=0)
