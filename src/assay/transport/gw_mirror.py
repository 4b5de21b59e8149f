r"""Mirror steps for Gromov-Wasserstein couplings: on the whole plan, and on a block of it whose masses are kept.

With ``F = u (+) v - 2 C1 X C2`` (half the gradient, up to constants that the marginals fix) one step of mirror
descent in the entropy is ``X exp(-F / temperature)``, brought back to the marginals by scaling and rounding.

On a block of rows ``I`` and columns ``J`` the same step is made for ``X[I, J]`` with the row and column masses of
the block as its marginals. They are what the marginals leave after the mass outside the block, so the marginals of
the whole plan cannot change. The gradient inside the block counts the mass outside, and follows the block exactly:
``F[I, J]`` changes by ``-2 C1[I, I] D C2[J, J]`` when the block changes by ``D``.

Everything here takes numpy arrays or torch tensors. For numpy, passes over the matrices are fused, and the
exponential is taken in blocks of rows that stay in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numba import njit

from assay.transport.gw_products import Sandwich
from assay.transport.sinkhorn import scale_and_round

__all__ = ["BlockSolution", "MirrorDescent", "largest_per_row", "movement", "smallest_cover"]

# Rows whose mass in a block is below this are left out of it: scaling would divide by it.
_NO_MASS = 1e-300

# Elements of a block of rows for the exponential: 512 kB, half of a common second-level cache.
_CHUNK = 1 << 16


@dataclass(frozen=True)
class BlockSolution:
    """Where a block solve ended.

    Attributes
    ----------
    rows, columns : numpy.ndarrays of int
        The block.
    change : array or tensor of shape (rows, columns)
        New minus old entries of the plan.
    coupling : array or tensor of shape (rows, columns)
        New entries of the plan.
    increase : float
        What the step adds to the objective: negative when it descends.
    steps : int
        Mirror steps made.
    multiply_adds : int
        Counted in the products of those steps.
    """

    rows: Int[np.ndarray, " rows"]
    columns: Int[np.ndarray, " columns"]
    change: Any
    coupling: Any
    increase: float
    steps: int
    multiply_adds: int


class MirrorDescent:
    """Mirror steps for one problem.

    Parameters
    ----------
    sandwich : Sandwich
        The product with the two matrices.
    p, q : arrays or tensors of shapes (n,) and (m,)
        Positive weights.
    left, right : arrays or tensors of shapes (n,) and (m,)
        The constants of the objective, ``u = (C1 * C1) p`` and ``v = (C2 * C2) q``.
    sinkhorn_iters : int
        Scalings before each rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_mirror import MirrorDescent
    >>> from assay.transport.gw_products import Sandwich
    >>> C = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    >>> w = np.full(3, 1 / 3)
    >>> descent = MirrorDescent(Sandwich.of(C, C), w, w, C**2 @ w, C**2 @ w, sinkhorn_iters=10)
    >>> X = np.outer(w, w) + 0.01 * (np.eye(3) - 1 / 3)
    >>> M = descent.sandwich.product(X)
    >>> before, low, high = descent.scan(X, M)
    >>> Y = descent.step(X, M, 0.1 * (high - low))
    >>> after, _, _ = descent.scan(Y, descent.sandwich.product(Y))
    >>> after > before
    True
    """

    def __init__(self, sandwich: Sandwich, p, q, left, right, sinkhorn_iters: int):
        self.sandwich = sandwich
        self.p, self.q = p, q
        self.left, self.right = left, right
        self.sinkhorn_iters = sinkhorn_iters

    def scan(self, coupling, product) -> tuple[float, float, float]:
        """``<M, X>`` and the smallest and largest entry of ``F = u (+) v - 2 M``, in one pass."""
        return _scan(coupling, product, self.left, self.right)

    def step(self, coupling, product, temperature: float, out=None):
        """One step on the whole plan; the answer is a new plan (in ``out``, if given) with exact marginals."""
        kernel = _tilt(coupling, product, self.right, temperature, out)
        return scale_and_round(kernel, self.p, self.q, self.sinkhorn_iters, kernel)

    def solve_block(
        self,
        coupling,
        product,
        rows: Int[np.ndarray, " rows"],
        columns: Int[np.ndarray, " columns"],
        *,
        rho: float,
        max_steps: int,
        tol: float,
    ) -> BlockSolution | None:
        """Mirror steps on a block, without writing them to the plan.

        Parameters
        ----------
        coupling, product : arrays or tensors of shape (n, m)
            The plan and ``C1 X C2`` at it; only read.
        rows, columns : numpy.ndarrays of int
            The block.
        rho : float
            Temperature relative to the range of ``F`` in the block.
        max_steps : int
            Number of steps at most.
        tol : float
            Stop when no entry changes by more.

        Returns
        -------
        BlockSolution or None
            None when the block holds no mass that could move.
        """
        old, rows, columns = _block_with_mass(coupling, rows, columns)
        if len(rows) < 2 or len(columns) < 2:
            return None
        masses = old.sum(1), old.sum(0)
        start = _take(product, rows, columns)
        left, right = self.left[rows], self.right[columns]
        cost = self.sandwich.within_block_cost(rows, columns)
        current, gradient, steps = old, start, 0
        for _ in range(max_steps):
            _, low, high = _scan(current, gradient, left, right)
            if high <= low:
                break
            kernel = _tilt(current, gradient, right, rho * (high - low), None)
            new = scale_and_round(kernel, *masses, self.sinkhorn_iters)
            moved = float(abs(new - current).max())
            gradient = gradient + self.sandwich.within_block(rows, columns, new - current)
            current = new
            steps += 1
            if moved < tol:
                break
        change = current - old
        # <M', X'> - <M, X> = 2 <M, D> + <C1 D C2, D>, all of it inside the block.
        increase = -2.0 * float(((start + gradient) * change).sum())
        return BlockSolution(rows, columns, change, current, increase, steps, steps * cost)

    def write_block(self, coupling, product, block: BlockSolution) -> None:
        """Write a block solution to the plan, and its effect to the product."""
        _put(coupling, block.rows, block.columns, block.coupling)
        self.sandwich.add_block(block.rows, block.columns, block.change, product)


def movement(new, old) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """How far a plan moved: row sums, column sums, row maxima and column maxima of ``|new - old|``, as numpy arrays."""
    if isinstance(new, torch.Tensor):
        moved = (new - old).abs()
        parts = moved.sum(1), moved.sum(0), moved.amax(1), moved.amax(0)
        return tuple(part.cpu().numpy() for part in parts)  # type: ignore[return-value]
    return _movement(new, old)


def smallest_cover(moved: np.ndarray, coverage: float) -> np.ndarray:
    """Indices of the fewest entries that make up the share ``coverage`` of the total, in increasing order.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_mirror import smallest_cover
    >>> smallest_cover(np.array([0.1, 5.0, 0.0, 4.9]), 0.95)
    array([1, 3])
    """
    total = moved.sum()
    if total <= 0.0:
        return np.empty(0, dtype=np.int64)
    order = np.argsort(-moved, kind="stable")
    count = int(np.searchsorted(np.cumsum(moved[order]), coverage * total)) + 1
    return np.sort(order[:count])


def largest_per_row(coupling) -> np.ndarray:
    """Column of the largest entry of each row, as a numpy array."""
    return coupling.argmax(1).cpu().numpy() if isinstance(coupling, torch.Tensor) else coupling.argmax(axis=1)


def _block_with_mass(coupling, rows, columns):
    """The block, without the rows and columns whose mass in it is zero (for scaling)."""
    while True:
        block = _take(coupling, rows, columns)
        kept_rows = np.asarray((block.sum(1) >= _NO_MASS).tolist(), dtype=bool)
        kept_columns = np.asarray((block.sum(0) >= _NO_MASS).tolist(), dtype=bool)
        if kept_rows.all() and kept_columns.all():
            return block, rows, columns
        rows, columns = rows[kept_rows], columns[kept_columns]
        if len(rows) == 0 or len(columns) == 0:
            return block, rows, columns


def _take(matrix, rows, columns):
    return matrix[rows][:, columns] if isinstance(matrix, torch.Tensor) else matrix[np.ix_(rows, columns)]


def _put(matrix, rows, columns, block) -> None:
    matrix[np.ix_(rows, columns)] = block


def _scan(coupling, product, left, right) -> tuple[float, float, float]:
    if isinstance(coupling, torch.Tensor):
        gradient = left[:, None] + right - 2.0 * product
        return float((coupling * product).sum()), float(gradient.min()), float(gradient.max())
    return _scan_loop(coupling, product, left, right)


def _tilt(coupling, product, right, temperature: float, out):
    """``X exp(-(F - row minimum of F) / temperature)``."""
    if isinstance(coupling, torch.Tensor):
        gradient = right - 2.0 * product
        exponent = (gradient.amin(1, keepdim=True) - gradient) / temperature
        return coupling * exponent.exp()
    kernel = np.empty_like(coupling) if out is None else out
    n, m = coupling.shape
    height = max(1, _CHUNK // m)
    for start in range(0, n, height):
        part = slice(start, start + height)
        _exponents(product[part], right, 1.0 / temperature, kernel[part])
        np.exp(kernel[part], out=kernel[part])
        kernel[part] *= coupling[part]
    return kernel


@njit(cache=True, fastmath={"reassoc", "contract", "nsz", "nnan"})
def _scan_loop(coupling, product, left, right):
    n, m = coupling.shape
    inner, low, high = 0.0, np.inf, -np.inf
    for i in range(n):
        x, y = coupling[i], product[i]
        total, row_low, row_high = 0.0, np.inf, -np.inf
        for j in range(m):
            total += x[j] * y[j]
        for j in range(m):
            f = right[j] - 2.0 * y[j]
            row_low = min(row_low, f)
            row_high = max(row_high, f)
        inner += total
        low = min(low, row_low + left[i])
        high = max(high, row_high + left[i])
    return inner, low, high


@njit(cache=True, fastmath={"reassoc", "contract", "nsz", "nnan"})
def _exponents(product, right, inverse_temperature, out):
    n, m = product.shape
    for i in range(n):
        y, target = product[i], out[i]
        low = np.inf
        for j in range(m):
            f = right[j] - 2.0 * y[j]
            target[j] = f
            low = min(low, f)
        for j in range(m):
            target[j] = (low - target[j]) * inverse_temperature


@njit(cache=True, fastmath={"reassoc", "contract", "nsz", "nnan"})
def _movement(new, old):
    n, m = new.shape
    row_sums, column_sums = np.zeros(n), np.zeros(m)
    row_peaks, column_peaks = np.zeros(n), np.zeros(m)
    for i in range(n):
        x, y = new[i], old[i]
        total, peak = 0.0, 0.0
        for j in range(m):
            moved = abs(x[j] - y[j])
            total += moved
            peak = max(peak, moved)
            column_sums[j] += moved
            column_peaks[j] = max(column_peaks[j], moved)
        row_sums[i], row_peaks[i] = total, peak
    return row_sums, column_sums, row_peaks, column_peaks
