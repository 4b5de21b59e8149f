r"""Expectation maximisation with Polya-Gamma variables for abilities and difficulties together.

With :math:`\psi_{ui} = \theta_u - \beta_i` and a latent Polya-Gamma variable per observed cell, the log-posterior of a
Rasch model has the minorant

.. math:: \sum_{ui} \left[(x_{ui} - \tfrac12) \psi_{ui} - \tfrac12 \omega_{ui} \psi_{ui}^2\right]
          - |\theta|^2 / 2 v_\theta - |\beta|^2 / 2 v_\beta, \qquad
          \omega_{ui} = \tanh(\psi_{ui} / 2) / 2 \psi_{ui},

a quadratic that touches it at the current point. Its maximiser is the current point plus ``A^{-1} g``, with ``g`` the
gradient of the log-posterior and ``A`` the curvature of the minorant. ``A`` is diagonal but for the block that couples
users with items, so one side is eliminated and a system of the size of the other is solved.

The answers enter through the totals of rows and columns alone. Rows with the same observed cells and the same total
have the same parameter, and are one row with a weight: a complete table of any length has at most as many rows as there
are possible scores.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg, sparse

from assay.supervised.rasch_cells import DenseCells, SparseCells
from assay.supervised.rasch_responses import Responses

__all__ = ["EMTrace", "RaschProblem", "maximize_posterior"]


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """The log-posterior at a point, its gradient per row and column, and the curvature of its minorant there."""

    value: float
    row_gradient: np.ndarray
    column_gradient: np.ndarray
    row_curvature: np.ndarray
    column_curvature: np.ndarray
    gram: np.ndarray | None
    pushed: np.ndarray | None


class RaschProblem:
    """The log-posterior of a Rasch model as a function of the parameters of rows and columns.

    Rows are the longer side of the table: users, or items when there are fewer users. In the latter case the table is
    mirrored, wrong answers counting as right ones, and nothing else changes.

    Parameters
    ----------
    responses : Responses
        The table.
    v_theta, v_beta : float
        Prior variances of abilities and difficulties, possibly infinite.
    grouped : bool, default=True
        Whether rows with the same observed cells and total become one.
    """

    def __init__(self, responses: Responses, v_theta: float, v_beta: float, grouped: bool = True) -> None:
        n_users, n_items = responses.shape
        # Without priors the mean difficulty is fixed, which is a condition on the side that is not eliminated.
        self.free = math.isinf(v_theta) and math.isinf(v_beta)
        self.mirrored = n_users < n_items and not self.free
        user_counts, user_right, item_counts, item_right = responses.totals
        cells: Any = responses.cells
        if self.mirrored:
            row_counts, row_right = item_counts, item_counts - item_right
            column_counts, column_right = user_counts, user_counts - user_right
            cells = cells.T.tocsr() if responses.is_sparse else np.ascontiguousarray(cells.T)
        else:
            row_counts, row_right, column_counts, column_right = user_counts, user_right, item_counts, item_right
        self.row_prior = 1.0 / (v_beta if self.mirrored else v_theta)
        self.column_prior = 1.0 / (v_theta if self.mirrored else v_beta)
        first, self.group = _groups(cells, row_right, responses, grouped)
        n_groups = len(first)
        self.weights = np.bincount(self.group, minlength=n_groups).astype(float)
        self.row_counts, self.row_right = row_counts[first].astype(float), row_right[first].astype(float)
        self.column_counts, self.column_right = column_counts.astype(float), column_right.astype(float)
        if responses.is_sparse:
            self.cells: DenseCells | SparseCells = SparseCells(cells[first] if n_groups < len(self.group) else cells)
        else:
            self.cells = DenseCells(cells[first] if n_groups < len(self.group) else cells, responses.is_complete)

    @property
    def n_groups(self) -> int:
        """Number of rows after grouping."""
        return len(self.weights)

    def start(
        self, abilities: Float[np.ndarray, " users"] | None, difficulties: Float[np.ndarray, " items"] | None
    ) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " columns"]]:
        """Parameters of rows and columns, of which there may be none to begin with."""
        on_rows, on_columns = (difficulties, abilities) if self.mirrored else (abilities, difficulties)
        a = np.zeros(self.n_groups)
        if on_rows is not None:
            a[self.group] = on_rows
        b = np.zeros(len(self.column_counts)) if on_columns is None else np.array(on_columns, dtype=float)
        return a, b

    def unpack(
        self, a: Float[np.ndarray, " rows"], b: Float[np.ndarray, " columns"]
    ) -> tuple[Float[np.ndarray, " users"], Float[np.ndarray, " items"]]:
        """Numbers of users and of items from those of rows and columns."""
        return (b, a[self.group]) if self.mirrored else (a[self.group], b)

    def evaluate(self, a: np.ndarray, b: np.ndarray, *, information: bool = False, gram: bool = True) -> _Evaluation:
        """Log-posterior, its gradient, and the curvature of the minorant or (``information``) its own."""
        n_rows, n_columns = self.cells.shape
        normalizers, row_tanh, row_curvature = np.empty(n_rows), np.empty(n_rows), np.empty(n_rows)
        column_tanh, column_curvature = np.zeros(n_columns), np.full(n_columns, self.column_prior)
        total = np.zeros((n_columns, n_columns)) if gram else None
        pushed = np.zeros(n_columns) if gram else None
        row_gradient = np.empty(n_rows)
        for rows, block_normalizers, block_tanh, cells, block_columns in self.cells.sums(
            a, b, self.weights, information
        ):
            normalizers[rows], row_tanh[rows] = block_normalizers, block_tanh
            column_tanh += block_columns
            row_curvature[rows] = np.asarray(cells.sum(axis=1)).ravel() + self.row_prior
            row_gradient[rows] = self._row_gradient(a, row_tanh, rows)
            column_curvature += self.weights[rows] @ cells
            if gram:
                share = self.weights[rows] / row_curvature[rows]
                pushed += (share * row_gradient[rows]) @ cells
                total += _gram(cells, share)
        value = (
            self.weights @ (self.row_right * a - normalizers)
            - self.column_right @ b
            - 0.5 * self.row_prior * (self.weights @ (a * a))
            - 0.5 * self.column_prior * (b @ b)
        )
        column_gradient = 0.5 * (self.column_counts + column_tanh) - self.column_right - self.column_prior * b
        return _Evaluation(float(value), row_gradient, column_gradient, row_curvature, column_curvature, total, pushed)

    def _row_gradient(self, a: np.ndarray, row_tanh: np.ndarray, rows: slice) -> np.ndarray:
        expected = 0.5 * (self.row_counts[rows] + row_tanh[rows])
        return self.row_right[rows] - expected - self.row_prior * a[rows]

    def gap(self, at: _Evaluation) -> float:
        """Bound on how far the log-posterior is below its maximum; infinite without priors."""
        rows = self.weights @ at.row_gradient**2
        columns = at.column_gradient @ at.column_gradient
        if self.row_prior == 0.0 or self.column_prior == 0.0:
            return math.inf
        return float(0.5 * rows / self.row_prior + 0.5 * columns / self.column_prior)

    def joint_step(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, _Evaluation]:
        """Maximiser of the minorant over all parameters."""
        at = self.evaluate(a, b)
        column_step = self.solve(at, at.column_gradient + at.pushed)
        row_step = (at.row_gradient + self.cells.times(a, b, column_step)) / at.row_curvature
        return a + row_step, b + column_step, at

    def solve(self, at: _Evaluation, right_side: np.ndarray) -> np.ndarray:
        """Solve with the Schur complement of the rows; by LAPACK itself, as small systems are solved very often."""
        schur = self._schur(at)
        _, solution, info = linalg.lapack.dposv(schur, right_side, lower=1)
        if info:
            solution = linalg.lapack.dposv(self._stiffened(schur, at), right_side, lower=1)[1]
        return solution

    def _schur(self, at: _Evaluation) -> np.ndarray:
        size = len(at.column_curvature)
        schur = -at.gram
        schur.flat[:: size + 1] += at.column_curvature
        if self.free:  # constant vectors are its kernel; the mean of the columns is fixed
            schur += np.trace(schur) / size**2
        return schur

    def _stiffened(self, schur: np.ndarray, at: _Evaluation) -> np.ndarray:
        # With wide priors the direction in which all parameters move together is flat to rounding.
        return schur + np.diag(1e-14 * at.column_curvature) + np.trace(schur) / len(schur) ** 2

    def _inverse(self, at: _Evaluation) -> np.ndarray:
        schur = self._schur(at)
        try:
            factor = linalg.cho_factor(schur)
        except linalg.LinAlgError:
            factor = linalg.cho_factor(self._stiffened(schur, at))
        return linalg.cho_solve(factor, np.eye(len(schur)))

    def coordinate_step(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, _Evaluation]:
        """Maximiser over the rows, then over the columns, then over a shift of all parameters together."""
        at = self.evaluate(a, b, gram=False)
        new_a = a + at.row_gradient / at.row_curvature
        between = self.evaluate(new_a, b, gram=False)
        new_b = b + between.column_gradient / between.column_curvature
        pull = self.row_prior * (self.weights @ new_a) + self.column_prior * new_b.sum()
        stiffness = self.row_prior * self.weights.sum() + self.column_prior * len(b)
        shift = new_b.mean() if self.free else pull / stiffness
        return new_a - shift, new_b - shift, at

    def standard_errors(
        self, a: np.ndarray, b: np.ndarray, centred: bool
    ) -> tuple[Float[np.ndarray, " users"], Float[np.ndarray, " items"]]:
        """Square roots of the diagonal of the inverse of the observed information.

        Parameters
        ----------
        a, b : numpy.ndarray
            Parameters of rows and columns.
        centred : bool
            Whether they are those of differences to the mean difficulty.
        """
        at = self.evaluate(a, b, information=True)
        columns = self._inverse(at)
        if self.free:
            columns -= columns.mean()
        n_items = len(self.group) if self.mirrored else len(b)
        mean = self._information_mean(a, b, at) if self.mirrored else np.full(len(b), 1.0 / len(b))
        with_mean = columns @ mean
        own = 1.0 / (n_items * at.row_curvature) if self.mirrored else np.zeros(self.n_groups)
        row_variance, row_with_mean = 1.0 / at.row_curvature, own
        for rows, cells in self.cells.information_rows(a, b):
            curvature = at.row_curvature[rows]
            row_variance[rows] += np.einsum("ij,ij->i", cells @ columns, cells) / curvature**2
            row_with_mean[rows] += cells @ with_mean / curvature
        column_variance = np.diag(columns).copy()
        if centred:
            of_mean = mean @ with_mean
            if self.mirrored:
                of_mean += self.weights @ (1.0 / at.row_curvature) / n_items**2
            row_variance += of_mean - 2.0 * row_with_mean
            column_variance += of_mean - 2.0 * with_mean
        return self.unpack(np.sqrt(np.maximum(row_variance, 0.0)), np.sqrt(np.maximum(column_variance, 0.0)))

    def _information_mean(self, a: np.ndarray, b: np.ndarray, at: _Evaluation) -> np.ndarray:
        """How the mean of the rows depends on the columns, when the rows follow them."""
        mean = np.zeros(len(b))
        for rows, cells in self.cells.information_rows(a, b):
            mean += (self.weights[rows] / at.row_curvature[rows]) @ cells
        return mean / len(self.group)

    def newton_decrement(
        self,
        abilities: Float[np.ndarray, " users"],
        difficulties: Float[np.ndarray, " items"],
        ability_gradient: Float[np.ndarray, " users"],
        difficulty_gradient: Float[np.ndarray, " items"],
    ) -> float:
        """Half the squared Newton decrement at a point with that gradient; for a problem without groups."""
        a, b = self.start(abilities, difficulties)
        row_gradient, column_gradient = self.start(ability_gradient, difficulty_gradient)
        at = self.evaluate(a, b, information=True)
        right_side = column_gradient.copy()
        for rows, cells in self.cells.information_rows(a, b):
            right_side += (row_gradient[rows] / at.row_curvature[rows]) @ cells
        column_step = self.solve(at, right_side)
        row_step = row_gradient / at.row_curvature
        for rows, cells in self.cells.information_rows(a, b):
            row_step[rows] += cells @ column_step / at.row_curvature[rows]
        return float(0.5 * (row_gradient @ row_step + column_gradient @ column_step))


def _gram(cells: Any, share: np.ndarray) -> np.ndarray:
    if sparse.issparse(cells):
        return (cells.T @ (cells * share[:, None])).toarray()
    scaled = cells * np.sqrt(share)[:, None]
    return scaled.T @ scaled


def _groups(
    cells: Any, right: np.ndarray, responses: Responses, grouped: bool
) -> tuple[Int[np.ndarray, " groups"], Int[np.ndarray, " rows"]]:
    """First row of every group, and the group of every row."""
    every = np.arange(len(right))
    if not grouped:
        return every, every
    if responses.is_sparse:
        return every, every
    if responses.is_complete:
        _, first, group = np.unique(right, return_index=True, return_inverse=True)
        return first, group
    packed = np.packbits(cells >= 0, axis=1)
    keys = np.column_stack([packed, right.astype(np.int64).view(np.uint8).reshape(len(right), -1)])
    keys = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1]))).ravel()
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    # With few repetitions a copy of the table would cost more than it saves.
    return (first, group) if len(first) <= 0.9 * len(every) else (every, every)


@dataclass(frozen=True, eq=False)
class EMTrace:
    """Where the iteration ended, and how it came there."""

    a: np.ndarray
    b: np.ndarray
    n_iter: int
    converged: bool
    history: dict[str, np.ndarray]


def maximize_posterior(
    problem: RaschProblem,
    a: np.ndarray,
    b: np.ndarray,
    *,
    update: str,
    accelerate: bool,
    tol: float,
    max_iter: int,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> EMTrace:
    """Iterate until no parameter changes by more than ``tol`` and the bound on the gap is ``tol`` times the value.

    Parameters
    ----------
    problem : RaschProblem
        What to maximise.
    a, b : numpy.ndarray
        Where to begin.
    update : {"joint", "coordinate"}
        All parameters at once, or rows and columns in turns.
    accelerate : bool
        Extrapolate from pairs of iterations, unless the value would fall.
    tol : float
        Tolerance.
    max_iter : int
        Most iterations.
    callback : callable, optional
        Called with each row of the history.

    Returns
    -------
    EMTrace
    """
    advance = problem.joint_step if update == "joint" else problem.coordinate_step
    started = time.perf_counter()
    record: list[dict[str, float]] = []
    n_iter, converged = 0, False

    def step(a: np.ndarray, b: np.ndarray, least: float = -math.inf) -> tuple[np.ndarray, np.ndarray] | None:
        """One iteration, or None when the value at its start is not even ``least``."""
        nonlocal n_iter, converged
        new_a, new_b, at = advance(a, b)
        n_iter += 1
        if not at.value >= least:
            return None
        change = max(float(np.abs(new_a - a).max()), float(np.abs(new_b - b).max()))
        gap = problem.gap(at)
        row = {
            "iteration": n_iter,
            "seconds": time.perf_counter() - started,
            "log_posterior": at.value,
            "gap_bound": gap,
            "change": change,
        }
        record.append(row)
        if callback is not None:
            callback(row)
        converged = change < tol and (gap <= tol * abs(at.value) or math.isinf(gap))
        return new_a, new_b

    while not converged and n_iter < max_iter:
        first = step(a, b)
        if not accelerate or converged or n_iter + 1 >= max_iter:
            a, b = first  # type: ignore[misc]
            continue
        second = step(*first)  # type: ignore[misc]
        if converged or n_iter >= max_iter:
            a, b = second  # type: ignore[misc]
            continue
        ahead = _extrapolate((a, b), first, second)  # type: ignore[arg-type]
        further = None if ahead is None else step(*ahead, least=record[-1]["log_posterior"])
        a, b = second if further is None else further  # type: ignore[misc]
    history = {
        name: np.array([row[name] for row in record], dtype=int if name == "iteration" else float)
        for name in ("iteration", "seconds", "log_posterior", "gap_bound", "change")
    }
    return EMTrace(a, b, n_iter, converged, history)


def _extrapolate(
    start: tuple[np.ndarray, np.ndarray], first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Squared extrapolation: the step length of Barzilai and Borwein applied twice."""
    zero, one, two = (np.concatenate(point) for point in (start, first, second))
    move = one - zero
    bend = two - one - move
    size = np.linalg.norm(bend)
    if size == 0.0:
        return None
    length = np.linalg.norm(move) / size
    if length <= 1.0:
        return None
    point = zero + 2.0 * length * move + length**2 * bend
    return point[: len(start[0])], point[len(start[0]) :]
