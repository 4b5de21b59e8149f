r"""Quadratic programs with equations only: the system that polishing and the backward pass share.

With ``E`` the active rows, the minimiser of :math:`\frac12 d'Qd + c'd` subject to :math:`Ed = t` follows from a
Cholesky factor of ``Q`` and one of :math:`E Q^{-1} E'`; the big symmetric system is never formed. Rows with one entry
(bounds that are active) are taken out first, since they fix a coordinate; a diagonal ``Q`` needs no factor.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray

from assay.bilevel.qp_rows import UnitRows

__all__ = ["EqualitySystem", "QuadraticForm", "first_order_move"]


class QuadraticForm:
    """A positive semidefinite matrix over its largest entry, factorised once for a whole batch.

    Whether it is singular is decided by its pivots, each relative to the diagonal entry, so that neither the units of
    the objective nor those of the unknowns matter.

    Parameters
    ----------
    matrix : numpy.ndarray of shape (n, n)
        Its symmetric part counts.
    eps : float
        Added to the diagonal, times its entries, where there is no Cholesky factor without it.
    """

    def __init__(self, matrix: Float[ndarray, "n n"], eps: float):
        diagonal = np.diagonal(matrix)
        self.size, self.eps = diagonal.size, eps
        self.is_diagonal = np.count_nonzero(matrix) == np.count_nonzero(diagonal)
        entries = diagonal if self.is_diagonal else matrix
        self.scale = _largest_entry(entries)
        if self.scale < 1e-307:  # where its inverse is no number
            self.scale, self.is_diagonal, diagonal = 0.0, True, np.zeros(self.size)
        factor = 1.0 / self.scale if self.scale else 0.0
        self._matrix: Float[ndarray, "n n"] | None = None
        if not self.is_diagonal:
            half = matrix * (0.5 * factor)
            self._matrix = half + half.T
        self.diagonal = diagonal * factor
        self.factorise()

    @property
    def matrix(self) -> Float[ndarray, "n n"]:
        """The symmetric matrix over its largest entry."""
        return np.diag(self.diagonal) if self._matrix is None else self._matrix

    @property
    def upper(self) -> sp.csc_matrix:
        """The upper triangle of it."""
        if self._matrix is not None:
            return sp.csc_matrix(np.triu(self._matrix))
        kept = np.flatnonzero(self.diagonal)
        starts = np.searchsorted(kept, np.arange(self.size + 1))
        return sp.csc_matrix((self.diagonal[kept], kept, starts), shape=(self.size, self.size))

    @property
    def units(self) -> Float[ndarray, " n"]:
        """Diagonal entries, 1 where they vanish."""
        return np.where(self.diagonal > 1e-13, self.diagonal, 1.0)

    def factorise(self) -> None:
        """Find the factor, or raise an error if there is none."""
        self.shifted = False
        if self._matrix is not None:
            self._factorise()
            return
        least = float(self.diagonal.min(initial=np.inf))
        if least < -1e-12:
            raise _not_semidefinite(least * self.scale)
        self.shifted = least <= 1e-13
        self._roots = np.sqrt(self.diagonal + self.eps * self.units if self.shifted else self.diagonal)

    def _factorise(self) -> None:
        units = self.units
        try:
            lower = np.linalg.cholesky(self._matrix)
            if (np.diagonal(lower) ** 2 > self.eps * units).all():
                self._lower = lower
                return
        except np.linalg.LinAlgError:
            pass
        self.shifted = True
        for shift in (units, np.ones(self.size)):
            try:
                self._lower = np.linalg.cholesky(self._matrix + np.diag(self.eps * shift))
                return
            except np.linalg.LinAlgError:
                continue
        raise _not_semidefinite(float(np.linalg.eigvalsh(self._matrix)[0]) * self.scale)

    def on(self, free: Int[ndarray, " k"]) -> QuadraticForm:
        """The principal submatrix."""
        if free.size == self.size:
            return self
        part = object.__new__(QuadraticForm)
        part.size, part.eps, part.scale, part.is_diagonal = free.size, self.eps, self.scale, self.is_diagonal
        part.diagonal = self.diagonal[free]
        part._matrix = None if self._matrix is None else self._matrix[np.ix_(free, free)]
        part.factorise()
        return part

    def times(self, vector: Float[ndarray, "*B n"]) -> Float[ndarray, "*B n"]:
        """Product with the matrix itself, of a vector or of every row."""
        return self.diagonal * vector if self._matrix is None else vector @ self._matrix

    def whitened(self, columns: Float[ndarray, "n k"]) -> Float[ndarray, "n k"]:
        """The inverse of the factor times some columns: their products are those with the inverse matrix."""
        if self.is_diagonal:
            return columns / self._roots[:, None]
        return scipy.linalg.solve_triangular(self._lower, columns, lower=True, check_finite=False)

    def unwhitened(self, vector: Float[ndarray, " n"]) -> Float[ndarray, " n"]:
        """The inverse of the transposed factor times a vector."""
        if self.is_diagonal:
            return vector / self._roots
        return scipy.linalg.solve_triangular(self._lower, vector, lower=True, trans="T", check_finite=False)


def _largest_entry(entries: Float[ndarray, " ..."]) -> float:
    return max(float(entries.max(initial=0.0)), -float(entries.min(initial=0.0)))


def _not_semidefinite(least: float) -> ValueError:
    return ValueError(f"Q must be positive semidefinite, got a smallest eigenvalue of {least:g}")


class EqualitySystem:
    r"""Minimise :math:`\frac12 d'Qd + c'd` subject to :math:`Ed = t` for several ``c`` and ``t``.

    Parameters
    ----------
    form : QuadraticForm
        The matrix, with its factor.
    rows : UnitRows
        Rows that the equations are taken from.
    picked : numpy.ndarray of shape (r,)
        Which rows are equations.
    """

    def __init__(self, form: QuadraticForm, rows: UnitRows, picked: Int[ndarray, " r"]):
        self.form = form
        n = form.size
        self.size = picked.size
        column = rows.single_columns[picked]
        alone = column >= 0
        singles = np.flatnonzero(alone)
        pinned, first = _first_ones(column, singles, n)
        if pinned.size and not form.is_diagonal and not self._worthwhile(n, picked.size, pinned.size):
            singles, pinned, first, alone = singles[:0], pinned[:0], first[:0], np.zeros_like(alone)
        self._singles = singles
        self._single_columns = column[self._singles]
        self._single_values = rows.single_values[picked[singles]]
        self._pinned, self._pins = pinned, first
        self._values = rows.single_values[picked[first]]
        self._others = np.flatnonzero(~alone)
        self._dense = rows.take(picked[self._others])
        free = np.ones(n, dtype=bool)
        free[pinned] = False
        self._free = np.flatnonzero(free)
        self._sub = form.on(self._free)
        self._part = self._dense[:, self._free]
        self._white = self._sub.whitened(np.ascontiguousarray(self._part.T))
        self._gram = _SafeInverse(self._white.T @ self._white)
        # fixed coordinates and a division: nothing to refine
        self._explicit = form.is_diagonal and not self._others.size and not self._sub.shifted

    @staticmethod
    def _worthwhile(n: int, r: int, pinned: int) -> bool:
        """Whether factorising what is left without the fixed coordinates costs less than using the factor at hand."""
        left, kept = n - pinned, r - pinned
        return left**3 / 3 + left**2 * kept + left * kept**2 < n**2 * r + n * r**2 + r**3 / 3

    @property
    def unique(self) -> bool:
        """Whether the equations determine what the form leaves open."""
        if not self._sub.shifted:
            return True
        roots = np.sqrt(self._sub.units)
        part = self._part / roots
        norms = np.linalg.norm(part, axis=1, keepdims=True)
        part = part / np.where(norms > 0, norms, 1.0)
        basis = scipy.linalg.null_space(part, rcond=1e-12) if len(part) else np.eye(self._free.size)
        if not basis.shape[1]:
            return True
        basis = basis / roots[:, None]
        return bool(np.linalg.eigvalsh(basis.T @ self._sub.times(basis.T).T)[0] > 1e-9)

    def _apply(self, point: Float[ndarray, " n"]) -> Float[ndarray, " r"]:
        values = np.empty(self.size)
        values[self._singles] = self._single_values * point[self._single_columns]
        values[self._others] = self._dense @ point
        return values

    def _adjoint(self, multipliers: Float[ndarray, " r"]) -> Float[ndarray, " n"]:
        total = multipliers[self._others] @ self._dense
        np.add.at(total, self._single_columns, self._single_values * multipliers[self._singles])
        return total

    def solve(
        self, linear: Float[ndarray, " n"], target: Float[ndarray, " r"] | None = None
    ) -> tuple[Float[ndarray, " n"], Float[ndarray, " r"]]:
        """Minimiser and multipliers, refined until the residual is at rounding level or no longer falls."""
        target = np.zeros(self.size) if target is None else target
        if self._explicit:
            return self._explicitly(linear, target)
        point, multipliers = self._once(linear, target)
        least = np.inf
        for _ in range(25):
            first = -(self.form.times(point) + linear + self._adjoint(multipliers))
            second = target - self._apply(point)
            worst = max(float(np.abs(first).max()), float(np.abs(second).max(initial=0.0)))
            if worst > 0.5 * least:
                break
            best, least = (point, multipliers), worst
            size = max(float(np.abs(linear).max()), float(np.abs(target).max(initial=0.0)))
            if worst <= 1e-15 * size:
                break
            correction = self._once(-first, second)
            point, multipliers = point + correction[0], multipliers + correction[1]
        return best

    def _explicitly(
        self, linear: Float[ndarray, " n"], target: Float[ndarray, " r"]
    ) -> tuple[Float[ndarray, " n"], Float[ndarray, " r"]]:
        point, multipliers = np.empty(linear.size), np.zeros(target.size)
        point[self._free] = -linear[self._free] / self._sub.diagonal
        point[self._pinned] = target[self._pins] / self._values
        balance = self.form.diagonal[self._pinned] * point[self._pinned] + linear[self._pinned]
        multipliers[self._pins] = -balance / self._values
        return point, multipliers

    def _once(
        self, linear: Float[ndarray, " n"], target: Float[ndarray, " r"]
    ) -> tuple[Float[ndarray, " n"], Float[ndarray, " r"]]:
        point, multipliers = np.zeros(linear.size), np.zeros(target.size)
        point[self._pinned] = target[self._pins] / self._values
        moved = bool(point.any())
        push = linear + self.form.times(point) if moved else linear
        left = target[self._others]
        if moved:
            left = left - self._dense @ point
        white = self._sub.whitened(push[self._free][:, None])[:, 0]
        multipliers[self._others] = -self._gram.solve(self._white.T @ white + left)
        point[self._free] = -self._sub.unwhitened(white + self._white @ multipliers[self._others])
        if self._pins.size:
            balance = self.form.times(point) + linear
            if self._others.size:
                balance = balance + multipliers[self._others] @ self._dense
            multipliers[self._pins] = -balance[self._pinned] / self._values
        return point, multipliers


def _first_ones(
    column: Int[ndarray, " r"], singles: Int[ndarray, " s"], n: int
) -> tuple[Int[ndarray, " k"], Int[ndarray, " k"]]:
    """Coordinates that rows with one entry fix, and of several bounds on one coordinate the first one."""
    first = np.full(n, -1)
    first[column[singles[::-1]]] = singles[::-1]
    pinned = np.flatnonzero(first >= 0)
    return pinned, first[pinned]


class _SafeInverse:
    """Inverse of a Gram matrix, or its pseudo-inverse when its rows depend on each other; lengths do not matter."""

    def __init__(self, gram: Float[ndarray, "k k"]):
        self._factor = self._pseudo = None
        lengths = np.sqrt(np.diagonal(gram))
        self._inverse_lengths = np.divide(1.0, lengths, out=np.zeros(lengths.size), where=lengths > 0)
        gram = gram * self._inverse_lengths * self._inverse_lengths[:, None]
        try:
            lower = np.linalg.cholesky(gram + 1e-12 * np.eye(len(gram))) if len(gram) else gram
            if len(gram) and np.diagonal(lower).min() ** 2 <= 1e-11:
                raise np.linalg.LinAlgError
            self._factor = lower
        except np.linalg.LinAlgError:
            self._pseudo = np.linalg.pinv(gram, rcond=1e-12, hermitian=True)

    def solve(self, right: Float[ndarray, " k"]) -> Float[ndarray, " k"]:
        if not right.size:
            return right
        right = right * self._inverse_lengths
        if self._pseudo is not None:
            return self._inverse_lengths * (self._pseudo @ right)
        return self._inverse_lengths * scipy.linalg.cho_solve((self._factor, True), right, check_finite=False)


def first_order_move(
    form: QuadraticForm,
    rows: Float[ndarray, "r n"],
    linear: Float[ndarray, " n"],
    tol: float,
    max_iter: int,
) -> tuple[Float[ndarray, " n"], Float[ndarray, " r"], int, float]:
    r"""The same minimiser without a factor of the form, for ``t = 0``: accelerated gradients on the null space.

    The momentum starts anew when it points uphill, so that strong convexity need not be known.

    Parameters
    ----------
    form : QuadraticForm
        Used for products only.
    rows : numpy.ndarray of shape (r, n)
        The equations.
    linear : numpy.ndarray of shape (n,)
        Linear term.
    tol : float
        The projected gradient is at most ``tol`` times the norm of ``linear`` at the end.
    max_iter : int
        Largest number of steps.

    Returns
    -------
    tuple
        Minimiser, multipliers, steps taken, and the relative residual.
    """
    basis, triangle, order = scipy.linalg.qr(rows.T, mode="economic", pivoting=True, check_finite=False)
    pivots = np.abs(np.diagonal(triangle))
    rank = int(np.count_nonzero(pivots > 1e-12 * pivots.max(initial=0.0)))
    basis = basis[:, :rank]

    def project(vector: Float[ndarray, " n"]) -> Float[ndarray, " n"]:
        return vector - basis @ (basis.T @ vector)

    size = max(float(np.linalg.norm(linear)), 1e-300)
    lipschitz = _largest(form, project, linear)
    point = trial = np.zeros(linear.size)
    momentum, steps = 1.0, 0
    gradient = project(linear)
    residual = first = float(np.linalg.norm(gradient)) / size
    while residual > tol and steps < max_iter:
        if not residual <= 10.0 * first:  # the power iteration has missed the largest eigenvalue
            lipschitz, momentum, residual = 2.0 * lipschitz, 1.0, first
            point = trial = np.zeros(linear.size)
            gradient = project(linear)
        ahead = trial - gradient / lipschitz
        if float(gradient @ (ahead - point)) > 0:
            momentum = 1.0
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        trial = ahead + (momentum - 1.0) / following * (ahead - point)
        point, momentum = ahead, following
        gradient = project(form.times(trial) + linear)
        residual = float(np.linalg.norm(gradient)) / size
        steps += 1
    multipliers = np.zeros(len(rows))
    if rank:
        balance = -basis.T @ (form.times(trial) + linear)
        multipliers[order[:rank]] = scipy.linalg.solve_triangular(triangle[:rank, :rank], balance)
    return trial, multipliers, steps, residual


def _largest(form: QuadraticForm, project: object, start: Float[ndarray, " n"]) -> float:
    """Upper estimate of the largest eigenvalue on the null space, by power iteration."""
    vector = project(start + np.cos(np.arange(start.size)))  # type: ignore[operator]
    estimate = 0.0
    for _ in range(40):
        norm = float(np.linalg.norm(vector))
        if norm == 0.0:
            break
        vector = project(form.times(vector / norm))  # type: ignore[operator]
        before, estimate = estimate, float(np.linalg.norm(vector))
        if estimate <= 1.01 * before:
            break
    return 1.1 * estimate if estimate > 0 else 1.0
