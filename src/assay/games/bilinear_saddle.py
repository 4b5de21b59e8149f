r"""A bilinear saddle point ``min_x max_y x'Ay + p'x + q'y`` over two sets, seen from either player.

The column player's problem is the row player's problem of another game, ``min_v max_u v'(-A')u - q'v - p'u``. A method
that is told how to play the first player is therefore told how to play both. Here are the game with its two products,
its mirror image, and the two gaps by which play is judged: NashConv, and the gap of the game in which the minimiser
also pays ``mu / 2`` times its squared norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from assay.games.matrix_game import as_payoff
from assay.games.polytope import Simplex, as_feasible_set, directions_of
from assay.validation import as_float_array

__all__ = ["BilinearSaddle"]

# Differences of payoffs of magnitude 1 that are nothing but rounding.
ROUNDING = 2.0**-50
_LARGEST_DENSE_SVD = 400
# A singular value that is nothing but rounding, as a multiple of the norm of all entries.
_NOTHING = 1e-13


class BilinearSaddle:
    """A bilinear game over two feasible sets.

    Parameters
    ----------
    by_row : numpy.ndarray or scipy.sparse.csr_array of shape (n_rows, n_columns)
        Payoff matrix, up to its sign.
    by_column : numpy.ndarray or scipy.sparse.csr_array of shape (n_columns, n_rows)
        Its transpose, stored by rows.
    p : numpy.ndarray of shape (n_rows,)
        What the minimiser pays in any case.
    q : numpy.ndarray of shape (n_columns,)
        What the maximiser receives in any case.
    x_set, y_set : FeasibleSet
        Where they choose from.
    sign : float, default=1.0
        The payoff matrix is ``sign * by_row``: the mirror image shares the arrays.
    """

    def __init__(
        self,
        by_row: np.ndarray | sp.csr_array,
        by_column: np.ndarray | sp.csr_array,
        p: np.ndarray,
        q: np.ndarray,
        x_set: Any,
        y_set: Any,
        sign: float = 1.0,
    ):
        self.by_row, self.by_column = by_row, by_column
        self.p, self.q = p, q
        self.x_set, self.y_set = x_set, y_set
        self.sign = sign

    @classmethod
    def of(cls, payoff: Any, p: Any, q: Any, x_set: Any, y_set: Any) -> BilinearSaddle:
        """From what a user passes in."""
        matrix = as_payoff(payoff, "A")
        n_rows, n_columns = matrix.shape
        offsets = []
        for name, vector, length in (("p", p, n_rows), ("q", q, n_columns)):
            offset = np.zeros(length) if vector is None else as_float_array(vector, name, ndim=1)
            if offset.size != length:
                raise ValueError(f"{name} must have length {length}, got {offset.size}")
            if np.abs(offset).max() > _LARGEST_OFFSET:
                raise ValueError(f"{name} must have entries of at most {_LARGEST_OFFSET:g}, got larger ones")
            offsets.append(offset)
        x_set = Simplex(n_rows) if x_set is None else as_feasible_set(x_set, "X", n_rows)
        y_set = Simplex(n_columns) if y_set is None else as_feasible_set(y_set, "Y", n_columns)
        by_row = matrix if sp.issparse(matrix) else np.ascontiguousarray(matrix)
        by_column = matrix.T.tocsr() if sp.issparse(matrix) else np.ascontiguousarray(matrix.T)
        return cls(by_row, by_column, *offsets, x_set, y_set)

    @property
    def largest(self) -> float:
        """Largest absolute payoff, of the matrix and of the offsets."""
        return max(float(abs(self.by_row).max()), float(np.abs(self.p).max()), float(np.abs(self.q).max()))

    def scaled(self, unit: float) -> BilinearSaddle:
        """The same game with payoffs counted in this unit."""
        arrays = (self.by_row / unit, self.by_column / unit, self.p / unit, self.q / unit)
        return BilinearSaddle(*arrays, self.x_set, self.y_set, self.sign)

    def centred(self) -> BilinearSaddle:
        """The same game without what all payoffs share, if all have one sign and strategies are distributions.

        A constant does not move equilibria, but it would make steps short and perturbations weak.
        """
        if sp.issparse(self.by_row) or not (isinstance(self.x_set, Simplex) and isinstance(self.y_set, Simplex)):
            return self
        least, most = float(self.by_row.min()), float(self.by_row.max())
        if least <= 0.0 <= most:
            return self
        middle = 0.5 * least + 0.5 * most
        arrays = (self.by_row - middle, self.by_column - middle, self.p, self.q)
        return BilinearSaddle(*arrays, self.x_set, self.y_set, self.sign)

    @property
    def mirrored(self) -> BilinearSaddle:
        """The game in which the maximiser of this one minimises."""
        return BilinearSaddle(self.by_column, self.by_row, -self.q, -self.p, self.y_set, self.x_set, -self.sign)

    def paid(self, y: np.ndarray) -> np.ndarray:
        """What each unit of ``x`` pays: the gradient for the minimiser."""
        return self.sign * (self.by_row @ y) + self.p

    def received(self, x: np.ndarray) -> np.ndarray:
        """What each unit of ``y`` receives: the gradient for the maximiser."""
        return self.sign * (self.by_column @ x) + self.q

    def worst_case(self, x: np.ndarray) -> float:
        """What ``x`` pays to a best response."""
        received = self.received(x)
        return float(received @ self.y_set.minimise(-received) + self.p @ x)

    def best_case(self, y: np.ndarray) -> float:
        """What ``y`` receives from a best response."""
        paid = self.paid(y)
        return float(paid @ self.x_set.minimise(paid) + self.q @ y)

    def nash_conv(self, x: np.ndarray, y: np.ndarray) -> float:
        """What both players together could gain by deviating from ``(x, y)``."""
        paid, received = self.paid(y), self.received(x)
        # Differences from the current payoff: both are 0 at an equilibrium whatever the value of the game is.
        loss = paid @ x - paid @ self.x_set.minimise(paid)
        gain = received @ self.y_set.minimise(-received) - received @ y
        return float(loss + gain)

    def perturbed_gap(self, x: np.ndarray, y: np.ndarray, mu: float) -> float:
        """Duality gap of ``(x, y)`` in the game in which the minimiser also pays ``mu / 2`` times its squared norm.

        It is added up from terms that are small where the gap is small, since the exit test takes its square root.
        """
        paid, received = self.paid(y), self.received(x)
        best = self.x_set.project(-paid / mu)
        step = x - best
        if isinstance(self.x_set, Simplex):
            slope = paid + mu * best
            loss = float((slope - slope.min()) @ step)
        else:
            loss = float((paid + mu * best) @ step)
        loss += 0.5 * mu * float(step @ step)
        if isinstance(self.y_set, Simplex):
            gain = float((received.max() - received) @ y)
        else:
            gain = float(received @ (self.y_set.minimise(-received) - y))
        return loss + gain

    @property
    def magnitude(self) -> float:
        """What the payoffs of points of the sets can amount to, for judging rounding errors."""
        x_radius, y_radius = max(1.0, self.x_set.radius), max(1.0, self.y_set.radius)
        return x_radius * y_radius

    def spectral_norm(self) -> float:
        """Largest singular value of the payoff matrix on differences of points of the sets: the curvature of play.

        Differences of distributions sum to 0, so that nothing counts that all rows or all columns have in common.
        """
        return spectral_norm(self.by_row, directions_of(self.x_set), directions_of(self.y_set))


_LARGEST_OFFSET = 1e300


def spectral_norm(
    matrix: np.ndarray | sp.csr_array,
    left: Callable[[np.ndarray], np.ndarray] = lambda vectors: vectors,
    right: Callable[[np.ndarray], np.ndarray] = lambda vectors: vectors,
) -> float:
    """Largest singular value, by a dense decomposition of a small matrix and the Lanczos method for a large one.

    ``left`` and ``right`` project the columns of what they are given on subspaces, to which the matrix is restricted.
    """
    if min(matrix.shape) == 0:
        return 0.0
    size = math.sqrt(float((matrix * matrix).sum()))
    if max(matrix.shape) <= _LARGEST_DENSE_SVD or min(matrix.shape) <= 2:
        dense = left(matrix.toarray() if sp.issparse(matrix) else matrix)
        norm = float(np.linalg.norm(right(dense.T), 2))
    else:
        norm = _lanczos(matrix, left, right, _NOTHING * size)
    return norm if norm > _NOTHING * size else 0.0


def _lanczos(matrix: Any, left: Any, right: Any, nothing: float) -> float:
    from scipy.sparse.linalg import LinearOperator, svds

    operator = LinearOperator(
        matrix.shape,
        matvec=lambda vector: left(matrix @ right(vector.ravel())),
        rmatvec=lambda vector: right(matrix.T @ left(vector.ravel())),
        dtype=np.float64,
    )
    # A fixed vector that is orthogonal to nothing in particular keeps runs reproducible.
    start = 1.0 + 0.5 * np.cos(np.arange(min(matrix.shape)))
    first = operator.matvec(start) if matrix.shape[0] >= matrix.shape[1] else operator.rmatvec(start)
    if not float(np.linalg.norm(first)) > nothing * float(np.linalg.norm(start)):
        return 0.0
    return float(svds(operator, k=1, v0=start, tol=1e-6, return_singular_vectors=False)[0])


def power_of_two(largest: float) -> float:
    """The unit in which the largest payoff is between 1/2 and 1; dividing by it changes no digit."""
    return 2.0 ** math.frexp(largest)[1] if largest > 0 else 1.0
