r"""Semismooth Newton steps on the Douglas-Rachford map of a matrix game.

A pair of strategies ``z = (x, y)`` is an equilibrium exactly when ``0`` is in ``M z + N(z)``, with the skew matrix
``M = [[0, A], [-A', 0]]`` and the normal cone ``N`` of the two simplices. Douglas-Rachford splitting turns that
inclusion into one equation for a *lifted* point ``w`` from which the strategies are recovered by projection,
``z(w) = P(w)``:

    R(w) = z(w) - (I + s M)^{-1} (2 z(w) - w) = 0,        s the step size of the splitting.

``R`` is piecewise affine. On each piece, a choice of the actions that are played, its derivative is known, and once the
right piece is found one Newton step solves the game up to rounding. Because ``M`` is skew and acts between the players,
the step reduces to one symmetric positive definite system with a row per action of the player who has fewer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.linalg import blas, eigvalsh, lapack
from scipy.sparse.linalg import ArpackError, eigsh

from assay.games.matrix_game import PayoffLike, as_payoff, nearest_distribution
from assay.validation import as_distribution, as_float_array, check_real

__all__ = ["GameSplitting", "drs_residual", "lift", "newton_step", "residual_gap_bound"]

# Beyond this product of step size and spectral norm, `I + s^2 A A'` is not told from `s^2 A A'` in double precision.
_LARGEST_STEP = 1e8
# Below this density a product of sparse columns beats the dense one that it replaces.
_SPARSE_DENSITY = 0.1


def lift(payoff: PayoffLike, x: ArrayLike, y: ArrayLike, step_size: float) -> Float[np.ndarray, " actions"]:
    r"""Point at which the Douglas-Rachford map is evaluated for a pair of strategies.

    ``w = (x - s A y, y + s A' x)``. If the pair is an equilibrium, its projection gives the pair back and
    the residual there is zero.

    Parameters
    ----------
    payoff : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the row player pays to the column player.
    x, y : array_like of shape (n_rows,) and (n_columns,)
        The strategies.
    step_size : float
        Step constant ``s > 0`` of the splitting (the paper's gamma).

    Returns
    -------
    numpy.ndarray of shape (n_rows + n_columns,)

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> from assay.games import drs_residual, lift
    >>> payoff = [[0, 1, -1], [-1, 0, 1], [1, -1, 0]]
    >>> w = lift(payoff, [1 / 3] * 3, [1 / 3] * 3, step_size=1.0)
    >>> float(abs(drs_residual(payoff, w, step_size=1.0)[0]).max()) < 1e-15
    True
    """
    matrix = as_payoff(payoff)
    first, second = as_distribution(x, "x", size=matrix.shape[0]), as_distribution(y, "y", size=matrix.shape[1])
    step_size = check_real(step_size, "step_size", above=0.0)
    with np.errstate(over="ignore"):
        point = np.concatenate((first - step_size * (matrix @ second), second + step_size * (matrix.T @ first)))
    if not np.isfinite(point).all():
        raise ValueError(f"step_size must be such that its products with payoffs are finite, got {step_size:g}")
    return point


def drs_residual(
    payoff: PayoffLike, w: ArrayLike, step_size: float
) -> tuple[Float[np.ndarray, " actions"], Float[np.ndarray, " rows"], Float[np.ndarray, " columns"]]:
    r"""Residual of the Douglas-Rachford map at a lifted point, and the strategies there.

    Parameters
    ----------
    payoff : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the row player pays to the column player.
    w : array_like of shape (n_rows + n_columns,)
        Lifted point, rows first.
    step_size : float
        Step constant ``s > 0`` of the splitting, at most ``1e8 / ||A||``.

    Returns
    -------
    residual : numpy.ndarray of shape (n_rows + n_columns,)
        ``R(w)``; the Douglas-Rachford iteration is ``w <- w - R(w)``.
    x, y : numpy.ndarray of shape (n_rows,) and (n_columns,)
        Projection of ``w`` onto the two simplices.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    See Also
    --------
    residual_gap_bound : Bounds the duality gap of ``(x, y)`` by the norm of the residual.

    Notes
    -----
    O(k^2 (n_rows + n_columns)) with k the smaller number of actions, for a factorisation that
    :func:`~assay.games.solve_matrix_game` does once.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games import drs_residual
    >>> residual, x, y = drs_residual([[0, 1], [1, 0]], np.array([1.0, 0.0, 0.0, 0.0]), step_size=1.0)
    >>> x, y
    (array([1., 0.]), array([0.5, 0.5]))
    """
    matrix = as_payoff(payoff)
    point = _lifted(w, "w", matrix)
    splitting = _splitting(matrix, check_real(step_size, "step_size", above=0.0))
    there = splitting.evaluate(*splitting.split(point))
    return splitting.join(*there.residual), *splitting.players(there.x, there.y)


def newton_step(
    payoff: PayoffLike, residual: ArrayLike, x: ArrayLike, y: ArrayLike, regularization: float, step_size: float
) -> Float[np.ndarray, " actions"]:
    r"""Regularised semismooth Newton step ``d`` for the Douglas-Rachford map: ``(J + mu I) d = -R``.

    ``J`` is the derivative of ``R`` on the piece on which the played actions are those of ``x`` and ``y``.

    Parameters
    ----------
    payoff : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the row player pays to the column player.
    residual : array_like of shape (n_rows + n_columns,)
        ``R(w)`` from :func:`drs_residual`.
    x, y : array_like of shape (n_rows,) and (n_columns,)
        The strategies at ``w``, also from :func:`drs_residual`.
    regularization : float
        ``mu > 0``.
    step_size : float
        Step constant ``s > 0`` of the splitting, at most ``1e8 / ||A||``.

    Returns
    -------
    numpy.ndarray of shape (n_rows + n_columns,)
        To be added to ``w``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.
    numpy.linalg.LinAlgError
        If the system is singular to working precision; a larger ``regularization`` helps.

    Notes
    -----
    With k the smaller and p the larger number of actions: O(k^2 p) for the system and O(k^3) for its Cholesky
    factor. A sparse payoff is multiplied as such; the system itself is dense.

    References
    ----------
    .. [1] Yang, Gao, Lin, Kroer. A Direct Second-Order Method for Solving Two-Player Zero-Sum Games. ICML 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games import drs_residual, newton_step
    >>> payoff = np.diag([1.0, 2.0, 4.0])
    >>> w = np.full(6, 1 / 3)
    >>> residual, x, y = drs_residual(payoff, w, step_size=1.0)
    >>> w = w + newton_step(payoff, residual, x, y, regularization=1e-10, step_size=1.0)
    >>> drs_residual(payoff, w, step_size=1.0)[1].round(6)
    array([0.571429, 0.285714, 0.142857])
    """
    matrix = as_payoff(payoff)
    direction = _lifted(residual, "residual", matrix)
    n_rows, n_columns = matrix.shape
    first, second = as_distribution(x, "x", size=n_rows), as_distribution(y, "y", size=n_columns)
    regularization = check_real(regularization, "regularization", above=0.0)
    splitting = _splitting(matrix, check_real(step_size, "step_size", above=0.0))
    scaled = splitting.multiply(*splitting.split(direction))
    return splitting.join(*splitting.newton(*splitting.players(first, second), *scaled, regularization))


def residual_gap_bound(residual_norm: float, step_size: float, spectral_norm: float) -> float:
    r"""Upper bound of the duality gap of the strategies at a lifted point, from the residual there.

    Since ``w - z`` is a normal vector of the simplices at ``z``, for every other pair ``u``,
    ``s <M z, z - u> <= <(I + s M) R(w), z - u>``. The left side is largest, ``s`` times the duality gap, at the best
    responses; on the right ``||I + s M|| = sqrt(1 + s^2 ||A||^2)`` and ``||z - u|| <= 2``. Hence

        gap <= (2 / s) sqrt(1 + s^2 ||A||^2) ||R(w)||.

    Parameters
    ----------
    residual_norm : float
        Euclidean norm of ``R(w)``.
    step_size : float
        Step constant ``s > 0`` of the splitting.
    spectral_norm : float
        Largest singular value of the payoff matrix.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument is not a number, a norm is negative, or the step is not positive.

    Examples
    --------
    >>> from assay.games.semismooth_newton import residual_gap_bound
    >>> residual_gap_bound(0.0, step_size=1.0, spectral_norm=5.0)
    0.0
    """
    residual_norm = check_real(residual_norm, "residual_norm", minimum=0.0, allow_infinite=True)
    step_size = check_real(step_size, "step_size", above=0.0)
    spectral_norm = check_real(spectral_norm, "spectral_norm", minimum=0.0)
    return 2.0 / step_size * math.hypot(1.0, step_size * spectral_norm) * residual_norm


def _splitting(matrix: np.ndarray | sp.csr_array, step_size: float) -> GameSplitting:
    """The map of a game in any unit: it depends on the product of step size and payoffs only."""
    scale = 2.0 ** math.frexp(max(float(matrix.max()), -float(matrix.min())))[1]
    return GameSplitting(matrix / scale, step_size * scale)


def _lifted(point: ArrayLike, name: str, matrix: np.ndarray | sp.csr_array) -> np.ndarray:
    vector = as_float_array(point, name, ndim=1)
    if vector.size != sum(matrix.shape):
        raise ValueError(f"{name} must have length {sum(matrix.shape)} (rows plus columns), got {vector.size}")
    return vector


class LiftedPoint(NamedTuple):
    """A lifted point ``(u, v)`` in the order of the smaller and the larger player, and what the map says there.

    Attributes
    ----------
    u, v : numpy.ndarray
        The point.
    x, y : numpy.ndarray
        The strategies there.
    scaled : tuple of numpy.ndarray
        ``(I + s M)`` times the residual, which is ``w - z + s M z``.
    residual : tuple of numpy.ndarray
        Both parts of ``R(w)``.
    norm : float
        Euclidean norm of the residual.
    gap : float
        Duality gap of the strategies.
    """

    u: np.ndarray
    v: np.ndarray
    x: np.ndarray
    y: np.ndarray
    scaled: tuple[np.ndarray, np.ndarray]
    residual: tuple[np.ndarray, np.ndarray]
    norm: float
    gap: float


class GameSplitting:
    """The Douglas-Rachford map of one game and its Newton steps, with what can be computed once kept.

    The player with fewer actions comes first: with more rows than columns the game is played as ``-A'``, with the
    players exchanged. :meth:`players`, :meth:`split` and :meth:`join` translate.

    Parameters
    ----------
    matrix : numpy.ndarray or scipy.sparse.csr_array of shape (n_rows, n_columns)
        Checked payoff matrix in float64.
    step_size : float, optional
        Step constant ``s`` of the splitting; ``relative_step / ||A||`` by default.
    relative_step : float, default=3.0
        Used when ``step_size`` is not given.
    by_columns : numpy.ndarray or scipy.sparse.csr_array, optional
        The transposed matrix stored by its rows, if the caller has it already.

    Attributes
    ----------
    step_size : float
    spectral_norm : float
        Largest singular value of the payoff matrix.
    """

    def __init__(
        self,
        matrix: np.ndarray | sp.csr_array,
        step_size: float | None = None,
        relative_step: float = 3.0,
        by_columns: np.ndarray | sp.csr_array | None = None,
    ):
        self.exchanged = matrix.shape[0] > matrix.shape[1]
        self._sparse = sp.issparse(matrix)
        if self._sparse:
            other = matrix.T.tocsr() if by_columns is None else by_columns
        else:
            matrix = np.ascontiguousarray(matrix)
            other = np.ascontiguousarray(matrix.T) if by_columns is None else by_columns
        # `_by_column` has the actions of the larger player as rows; the smaller player's payoff is `_sign` times it.
        self._by_column = matrix if self.exchanged else other
        self._sign = -1.0 if self.exchanged else 1.0
        self._density = matrix.nnz / math.prod(matrix.shape) if self._sparse else 1.0
        self._gram = self._gram_of(self._by_column)
        self.n_small, self.n_large = self._gram.shape[0], self._by_column.shape[0]
        self.spectral_norm = _largest_singular_value(self._gram)
        self.step_size = relative_step / self.spectral_norm if step_size is None else step_size
        if not self.step_size * self.spectral_norm <= _LARGEST_STEP:
            raise ValueError(
                f"step_size must be at most {_LARGEST_STEP:g} over the largest singular value of the payoffs, "
                f"got {self.step_size * self.spectral_norm:g} over it"
            )
        system = self._gram * self.step_size**2
        system.flat[:: self.n_small + 1] += 1.0
        self._resolvent_factor, info = lapack.dpotrf(system, lower=1, overwrite_a=1, clean=0)
        if info:
            raise np.linalg.LinAlgError("the resolvent of the game could not be factorised")
        self._system = np.empty_like(self._gram)
        dense_products = not self._sparse or self._density >= _SPARSE_DENSITY
        self._columns_played = np.empty((self.n_large + 1, self.n_small)) if dense_products else None

    def players(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Exchange the players if the game is played with them exchanged (its own inverse)."""
        return (second, first) if self.exchanged else (first, second)

    def split(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parts of a vector over all rows and columns that belong to the smaller and the larger player."""
        n_rows = self.n_large if self.exchanged else self.n_small
        return self.players(point[:n_rows], point[n_rows:])

    def join(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Inverse of :meth:`split`."""
        return np.concatenate(self.players(first, second))

    def payoff_dot(self, second: np.ndarray) -> np.ndarray:
        """Payoff matrix (of the game with the smaller player first) times a vector."""
        return self._sign * (self._by_column.T @ second)

    def payoff_transpose_dot(self, first: np.ndarray) -> np.ndarray:
        """Transposed payoff matrix times a vector."""
        return self._sign * (self._by_column @ first)

    def lift(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lifted point of a pair of strategies."""
        return x - self.step_size * self.payoff_dot(y), y + self.step_size * self.payoff_transpose_dot(x)

    def multiply(self, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``(I + s M) (u, v)``."""
        return u + self.step_size * self.payoff_dot(v), v - self.step_size * self.payoff_transpose_dot(u)

    def resolvent(self, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``(I + s M)^{-1} (u, v)``."""
        x, _ = lapack.dpotrs(self._resolvent_factor, u - self.step_size * self.payoff_dot(v), lower=1)
        return x, v + self.step_size * self.payoff_transpose_dot(x)

    def evaluate(self, u: np.ndarray, v: np.ndarray) -> LiftedPoint:
        """Everything about a lifted point; the products that the gap needs give the residual, too."""
        x, y = nearest_distribution(u), nearest_distribution(v)
        cost, gain = self.payoff_dot(y), self.payoff_transpose_dot(x)
        scaled = (u - x + self.step_size * cost, v - y - self.step_size * gain)
        residual = self.resolvent(*scaled)
        norm = math.hypot(*map(np.linalg.norm, residual))
        return LiftedPoint(u, v, x, y, scaled, residual, norm, float(gain.max() - cost.min()))

    def newton(
        self, x: np.ndarray, y: np.ndarray, scaled_u: np.ndarray, scaled_v: np.ndarray, regularization: float
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""Newton step from the strategies at a point and ``(I + s M)`` times the residual there.

        With ``P`` the derivative of the projection and ``e = (P + mu I) d``, the step solves ``(D + s M) e = -(I + s M)
        R``, where ``D`` is ``low = mu / (1 + mu)`` on the range of ``P`` and ``high = 1 / low`` off it. Eliminating
        the larger player leaves ``D_x + s^2 A D_y^{-1} A'``.
        """
        s, low = self.step_size, regularization / (1.0 + regularization)
        high = 1.0 / low
        played_x, played_y = x > 0, y > 0
        n_played = int(np.count_nonzero(played_x))
        # D_x is low on the support and high off it, plus a rank one that joins the columns of the product.
        spread = played_x / (s * math.sqrt(n_played))
        system = self._weighted_gram(np.flatnonzero(played_y), spread, s * s * low, s * s * (high - low))
        system.flat[:: self.n_small + 1] += np.where(played_x, low, high)
        factor, info = lapack.dpotrf(system, lower=1, overwrite_a=1, clean=0)
        if info:
            raise np.linalg.LinAlgError("the Newton system is singular to working precision")
        along, across = _split_at_support(scaled_v, played_y)
        right = s * self.payoff_dot(high * along + low * across) - scaled_u
        e_x, _ = lapack.dpotrs(factor, right, lower=1, overwrite_b=1)
        # d = e / (1 + mu) on the range of P and e / mu off it. The parts are kept apart: their sum would bury the small
        # one, which is divided by mu, under the rounding errors of the large one.
        along_x, across_x = _split_at_support(e_x, played_x)
        along_y, across_y = _split_at_support(s * self.payoff_transpose_dot(e_x) - scaled_v, played_y)
        step_x = along_x / (1.0 + regularization) + across_x / regularization
        step_y = along_y / regularization + across_y / (1.0 + regularization)
        if not (np.isfinite(step_x).all() and np.isfinite(step_y).all()):
            raise np.linalg.LinAlgError("the Newton system is singular to working precision")
        return step_x, step_y

    def weighted_gram(self, weights: np.ndarray) -> np.ndarray:
        """``A diag(weights) A'`` for positive weights: in the lower triangle of a buffer, in Fortran order."""
        if self._columns_played is None:
            weighted = self._by_column.copy()
            weighted.data *= np.repeat(weights, np.diff(weighted.indptr))
            self._system[:] = (self._by_column.T @ weighted).toarray()
            return self._system
        rows = self._columns_played[:-1]
        rows[:] = self._by_column.toarray() if self._sparse else self._by_column
        rows *= np.sqrt(weights)[:, None]
        return blas.dsyrk(1.0, rows.T, beta=0.0, c=self._system, lower=1, overwrite_c=1)

    def _gram_of(self, vectors: np.ndarray | sp.csr_array) -> np.ndarray:
        """``vectors' vectors``, in Fortran order; of a dense one only the lower triangle."""
        if self._sparse:
            return np.asfortranarray((vectors.T @ vectors).toarray())
        return blas.dsyrk(1.0, vectors.T, lower=1)

    def _weighted_gram(self, played: np.ndarray, spread: np.ndarray, whole: float, part: float) -> np.ndarray:
        """``whole A A' + part (A_J A_J' + spread spread')``, ``A_J`` the played columns less their mean.

        In the lower triangle of a buffer, in Fortran order.
        """
        if self._columns_played is None:
            columns = self._by_column[played]
            product = columns.T @ columns
            product.data *= part
            np.multiply(self._gram, whole, out=self._system)
            self._system += product.toarray(order="F")
            mean = np.asarray(columns.mean(axis=0)).ravel()
            for weight, vector in ((-part * played.size, mean), (part, spread)):
                blas.dsyr(weight, vector, lower=1, a=self._system, overwrite_a=1)
            return self._system
        rows = self._columns_played[: played.size + 1]
        if self._sparse:
            rows[:-1] = self._by_column[played].toarray()
        else:
            np.take(self._by_column, played, axis=0, out=rows[:-1], mode="clip")
        rows[:-1] -= rows[:-1].mean(axis=0)
        rows[-1] = spread
        np.multiply(self._gram, whole, out=self._system)
        return blas.dsyrk(part, rows.T, beta=1.0, c=self._system, lower=1, overwrite_c=1)


def _split_at_support(vector: np.ndarray, played: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parts on the range of the projection's derivative (played actions, mean zero) and orthogonal to it."""
    mean = float(vector @ played) / np.count_nonzero(played)
    across = np.where(played, mean, vector)
    return np.where(played, vector - mean, 0.0), across


def _largest_singular_value(gram: np.ndarray) -> float:
    """Square root of the largest eigenvalue of a matrix given by its lower triangle."""
    size = gram.shape[0]
    if size <= 64:
        return math.sqrt(max(0.0, float(eigvalsh(gram, lower=True)[-1])))
    full = np.tril(gram)
    full += np.tril(gram, -1).T
    start = np.random.default_rng(0).standard_normal(size)
    try:
        largest = eigsh(full, k=1, v0=start, return_eigenvectors=False)[0]
    except ArpackError:
        largest = eigvalsh(full)[-1]
    return math.sqrt(max(0.0, float(largest)))
