r"""Matrix scaling and exact rounding onto the transport polytope.

Two operations turn a positive matrix into a coupling of two distributions. *Scaling* (Sinkhorn) multiplies rows and
columns until the row and column sums come close to the prescribed ones; it converges only in the limit. *Rounding*
(Altschuler, Weed and Rigollet) closes what is left: rows and columns that are too heavy are shrunk, and what is then
missing is filled by a matrix of rank one. After rounding the marginals are exact to the last bits, whatever
went in, which is what makes a first-order method on the polytope strictly feasible at every iterate.

A matrix of a thousand rows does not fit into the fast caches, so the cost of an iteration is the number of times it is
read. The fused loops below read it once per Sinkhorn iteration (row by row: scale the row, then add it to the
column sums) instead of twice, and scaling plus rounding never writes an intermediate matrix. numpy arrays take the
fused loops; torch tensors, on any device, take the same formulas as plain tensor operations.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from numba import njit

__all__ = ["round_to_marginals", "scale_and_round", "sinkhorn_scaling"]

Matrix = np.ndarray | torch.Tensor
Vector = np.ndarray | torch.Tensor

# Added to sums before dividing. A row that underflowed then gets a large scaling, and even the product of the scalings
# of such a row and such a column is finite, so that it times zero is zero and not nan.
TINY = 1e-150

# Sums may be reordered (that is what lets them run on vector units), but nan and infinities keep their meaning.
_FAST = {"reassoc", "contract", "nsz"}


def sinkhorn_scaling(
    kernel: Float[Matrix, "rows columns"],
    p: Float[Vector, " rows"],
    q: Float[Vector, " columns"],
    n_iter: int,
) -> tuple[Float[Vector, " rows"], Float[Vector, " columns"]]:
    """Scalings ``u``, ``v`` such that ``u[:, None] * kernel * v`` has nearly the marginals ``p`` and ``q``.

    Parameters
    ----------
    kernel : array or tensor of shape (rows, columns)
        Non-negative float64 matrix. It is only read.
    p, q : arrays or tensors of shapes (rows,) and (columns,)
        Positive marginals of equal total mass.
    n_iter : int
        Number of iterations: rows, then columns.

    Returns
    -------
    u, v : arrays or tensors of shapes (rows,) and (columns,)
        After the last iteration the column sums are exact and the row sums are close.

    Notes
    -----
    One iteration costs ``2 rows columns`` multiply-adds and reads the kernel once.

    References
    ----------
    R. Sinkhorn. Diagonal equivalence to matrices with prescribed row and column sums. American Mathematical
    Monthly 74, 1967.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.sinkhorn import sinkhorn_scaling
    >>> kernel = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> u, v = sinkhorn_scaling(kernel, np.array([0.5, 0.5]), np.array([0.25, 0.75]), 100)
    >>> coupling = u[:, None] * kernel * v
    >>> coupling.sum(axis=1), coupling.sum(axis=0)
    (array([0.5, 0.5]), array([0.25, 0.75]))
    """
    if isinstance(kernel, torch.Tensor):
        u, v = torch.ones_like(p), torch.ones_like(q)
        for _ in range(n_iter):
            u = p / (kernel @ v + TINY)
            v = q / (u @ kernel + TINY)
        return u, v
    u, v = np.ones(len(p)), np.ones(len(q))
    _scaling_loop(kernel, p, q, n_iter, u, v)
    return u, v


def round_to_marginals(
    coupling: Float[Matrix, "rows columns"],
    p: Float[Vector, " rows"],
    q: Float[Vector, " columns"],
    out: Float[Matrix, "rows columns"] | None = None,
) -> Float[Matrix, "rows columns"]:
    """Nearby coupling whose marginals are ``p`` and ``q`` to machine precision.

    Parameters
    ----------
    coupling : array or tensor of shape (rows, columns)
        Non-negative float64 matrix.
    p, q : arrays or tensors of shapes (rows,) and (columns,)
        Non-negative marginals of equal total mass.
    out : array or tensor of shape (rows, columns), optional
        Where to write; may be ``coupling`` itself. By default a new matrix.

    Returns
    -------
    array or tensor of shape (rows, columns)
        Non-negative. Its distance to ``coupling`` in the sum of absolute values is at most twice the sum of
        the violations of the marginals.

    Notes
    -----
    ``O(rows columns)``.

    References
    ----------
    J. Altschuler, J. Weed, P. Rigollet. Near-linear time approximation algorithms for optimal transport via
    Sinkhorn iteration. NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.sinkhorn import round_to_marginals
    >>> rounded = round_to_marginals(np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([0.5, 0.5]), np.array([0.25, 0.75]))
    >>> rounded.sum(axis=1), rounded.sum(axis=0)
    (array([0.5, 0.5]), array([0.25, 0.75]))
    """
    if isinstance(coupling, torch.Tensor):
        rounded = coupling * (p / (coupling.sum(1) + TINY)).clamp(max=1.0)[:, None]
        rounded = rounded * (q / (rounded.sum(0) + TINY)).clamp(max=1.0)
        missing_rows = (p - rounded.sum(1)).clamp(min=0.0)
        missing_columns = (q - rounded.sum(0)).clamp(min=0.0)
        # An all-zero deficit gives 0 * 0 / TINY, which is 0.
        rounded += torch.outer(missing_rows / (missing_rows.sum() + TINY), missing_columns)
        return rounded if out is None else out.copy_(rounded)
    target = _copied(coupling, out)
    _apply_and_round(target, p, q, np.ones(len(p)), np.ones(len(q)))
    return target


def scale_and_round(
    kernel: Float[Matrix, "rows columns"],
    p: Float[Vector, " rows"],
    q: Float[Vector, " columns"],
    n_iter: int,
    out: Float[Matrix, "rows columns"] | None = None,
) -> Float[Matrix, "rows columns"]:
    """Coupling with exact marginals in the shape of a kernel: scaling, then rounding, without a matrix in between.

    Parameters
    ----------
    kernel : array or tensor of shape (rows, columns)
        Non-negative float64 matrix.
    p, q : arrays or tensors of shapes (rows,) and (columns,)
        Positive marginals of equal total mass.
    n_iter : int
        Sinkhorn iterations before the rounding.
    out : array or tensor of shape (rows, columns), optional
        Where to write; may be ``kernel`` itself. By default a new matrix.

    Returns
    -------
    array or tensor of shape (rows, columns)

    Notes
    -----
    ``O(n_iter rows columns)``; the kernel is read ``n_iter + 2`` times and the answer written once and corrected once.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.sinkhorn import scale_and_round
    >>> coupling = scale_and_round(np.exp(-np.eye(3)), np.full(3, 1 / 3), np.array([0.2, 0.3, 0.5]), 10)
    >>> float(abs(coupling.sum(axis=0) - [0.2, 0.3, 0.5]).max()) <= 1e-15
    True
    """
    u, v = sinkhorn_scaling(kernel, p, q, n_iter)
    if isinstance(kernel, torch.Tensor):
        return round_to_marginals(u[:, None] * kernel * v, p, q, out)
    target = _copied(kernel, out)
    _apply_and_round(target, p, q, u, v)
    return target


def _copied(matrix: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if out is None:
        return matrix.copy()
    if out is not matrix:
        np.copyto(out, matrix)
    return out


@njit(cache=True, fastmath=_FAST)
def _scaling_loop(kernel, p, q, n_iter, u, v):
    n, m = kernel.shape
    columns = np.empty(m)
    for _ in range(n_iter):
        columns[:] = 0.0
        for i in range(n):
            row = kernel[i]
            total = 0.0
            for j in range(m):
                total += row[j] * v[j]
            scale = p[i] / (total + TINY)
            u[i] = scale
            for j in range(m):
                columns[j] += scale * row[j]
        for j in range(m):
            v[j] = q[j] / (columns[j] + TINY)


@njit(cache=True, fastmath=_FAST)
def _apply_and_round(kernel, p, q, u, v):
    """Turn the kernel into ``u * kernel * v``, rounded. Changes ``u`` and ``v`` too."""
    n, m = kernel.shape
    columns = np.zeros(m)
    for i in range(n):
        row = kernel[i]
        total = 0.0
        for j in range(m):
            total += row[j] * v[j]
        total *= u[i]
        if total > p[i]:
            u[i] *= p[i] / total
        scale = u[i]
        for j in range(m):
            columns[j] += scale * row[j] * v[j]
    for j in range(m):
        if columns[j] > q[j]:
            v[j] *= q[j] / columns[j]
    # The deficits are those of the numbers as they are stored, not as they were predicted.
    columns[:] = 0.0
    missing_rows = np.empty(n)
    total_missing = 0.0
    for i in range(n):
        row = kernel[i]
        scale = u[i]
        total = 0.0
        for j in range(m):
            entry = scale * row[j] * v[j]
            row[j] = entry
            total += entry
            columns[j] += entry
        # Clipping at zero keeps a row that is too heavy by one bit from making entries of -1e-18.
        missing_rows[i] = max(p[i] - total, 0.0)
        total_missing += missing_rows[i]
    if total_missing == 0.0:
        return
    for j in range(m):
        columns[j] = max(q[j] - columns[j], 0.0) / total_missing
    for i in range(n):
        if missing_rows[i] > 0.0:
            row = kernel[i]
            share = missing_rows[i]
            for j in range(m):
                row[j] += share * columns[j]
