r"""The linear systems of an interior-point method for moment relaxations, with sparsity exploited.

Every iteration solves least-squares problems with the columns ``r' A_i r``, where ``A_i`` says where in the matrix
moment ``i`` is, and ``r`` is a scaling. Each entry of a moment matrix is one moment, so that all ``A_i`` together have
as many entries as one matrix: their products with ``r`` from the right cost next to nothing, and those from the left
are one dense product per moment. A QR factorisation of the columns follows, ``O(m side^3 + m^2 side^2)`` in total for
``m`` moments, in ``m side^2 / 2`` numbers.

(The Cholesky factor of their inner products would be cheaper, but near an optimum, where most of ``A_i`` cancels in
``r' A_i r``, it loses the digits that the last iterations need.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from jaxtyping import Float

from assay.games.moment_basis import MatrixMap, triangle

__all__ = ["ScaledBlock", "ScaledSystem"]

# Numbers held at a time while products are made.
_CHUNK = 500_000

# Columns that the factorisation takes at once.
_PANEL = 64


class ScaledBlock:
    """One positive semidefinite block, whose matrices of moments are to be scaled.

    Parameters
    ----------
    block : MatrixMap
        The block, with a map that is sparse.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.moment_basis import MonomialBasis
    >>> from assay.games.sos_scaling import ScaledBlock
    >>> block = ScaledBlock(MonomialBasis([1], 2).localizing({(0,): 1.0}, 1))
    >>> scaled = np.zeros((3, 3))
    >>> block.fill(np.eye(2), scaled)
    >>> (scaled @ scaled.T).round(6).tolist()
    [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def __init__(self, block: MatrixMap):
        self.side = block.side
        entries = block.entries.tocsc()
        self.moments = np.flatnonzero(np.diff(entries.indptr))
        rows, columns = triangle(self.side)
        self._upper = rows * self.side + columns
        self._weight = np.where(rows == columns, 1.0, math.sqrt(2.0))
        # All matrices on top of each other: row ``k * side + a`` is row a of the k-th.
        coo = entries[:, self.moments].tocoo()
        a, b = rows[coo.row], columns[coo.row]
        off = a != b
        stacked = np.concatenate([coo.col * self.side + a, (coo.col * self.side + b)[off]])
        across = np.concatenate([b, a[off]])
        value = np.concatenate([coo.data, coo.data[off]])
        shape = (len(self.moments) * self.side, self.side)
        self._stacked = sp.csr_array((value, (stacked, across)), shape=shape)

    def fill(self, scaling: Float[np.ndarray, "side side"], rows: Float[np.ndarray, "moments pairs"]) -> None:
        """Write the scaled triangle of ``r' A_i r`` into row ``i``, for each moment that the block has."""
        transposed = np.ascontiguousarray(scaling.T)
        step = max(1, _CHUNK // self.side**2)
        for start in range(0, len(self.moments), step):
            end = min(start + step, len(self.moments))
            right = (self._stacked[start * self.side : end * self.side] @ scaling).reshape(-1, self.side, self.side)
            both = np.matmul(transposed, right).reshape(end - start, -1)
            rows[self.moments[start:end]] = both[:, self._upper] * self._weight

    def packed(self, matrix: Float[np.ndarray, "side side"]) -> Float[np.ndarray, " pairs"]:
        """The scaled triangle of a symmetric matrix."""
        return matrix.ravel()[self._upper] * self._weight

    def unpacked(self, entries: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, "side side"]:
        """The symmetric matrix of a scaled triangle."""
        matrix = np.zeros((self.side, self.side))
        matrix.ravel()[self._upper] = entries / self._weight
        return matrix + np.triu(matrix, 1).T


class ScaledSystem:
    """The solver of linear systems that is given to CVXOPT.

    Parameters
    ----------
    blocks : sequence of MatrixMap
        Positive semidefinite blocks.
    equations : numpy.ndarray of shape (n_equations, n_moments)
        Linearly independent rows, the normalisation among them.
    """

    def __init__(self, blocks: Sequence[MatrixMap], equations: Float[np.ndarray, "equations moments"]):
        self._blocks = [ScaledBlock(block) for block in blocks]
        self._n_moments = equations.shape[1]
        # Moments are split into what the equations fix and what they leave free.
        orthogonal, triangular = scipy.linalg.qr(equations.T)
        self._triangular = triangular[: len(equations)]
        self._fixed = orthogonal[:, : len(equations)]
        self._free = sp.csc_array(orthogonal[:, len(equations) :])
        self._ends = np.cumsum([block.side * (block.side + 1) // 2 for block in self._blocks])

    def __call__(self, scaling: dict[str, Any]) -> Callable[[Any, Any, Any], None]:
        """Factorise for a scaling of CVXOPT, and return its solver.

        Raises
        ------
        ArithmeticError
            If the system is singular to rounding, which CVXOPT understands.
        """
        inverses = [np.array(one) for one in scaling["rti"]]
        # Moments in rows, so that LAPACK, which goes by columns, takes the transpose without a copy.
        columns = np.zeros((self._n_moments, self._ends[-1]))
        for block, inverse, end in zip(self._blocks, inverses, self._ends, strict=True):
            block.fill(inverse, columns[:, end - block.side * (block.side + 1) // 2 : end])
        reflectors, tau, _, _ = scipy.linalg.lapack.dgeqrf(
            (self._free.T @ columns).T, lwork=_PANEL * self._n_moments, overwrite_a=1
        )
        n_free = self._free.shape[1]
        upper = np.triu(reflectors[:n_free])
        if not np.all(np.isfinite(upper)) or np.any(np.diag(upper) == 0):
            raise ArithmeticError("the scaled moments are linearly dependent")

        def rotated(vector: np.ndarray, transpose: str) -> np.ndarray:
            return scipy.linalg.lapack.dormqr("L", transpose, reflectors, tau, vector[:, None], 64)[0][:, 0]

        def solve(x: Any, y: Any, z: Any) -> None:
            gained = np.array(x).ravel()
            shift = np.concatenate(
                [
                    block.packed(inverse.T @ part @ inverse)
                    for block, inverse, part in zip(self._blocks, inverses, self._split(z), strict=True)
                ]
            )
            fixed = self._fixed @ scipy.linalg.solve_triangular(self._triangular, np.array(y).ravel(), trans="T")
            target = rotated(-(fixed @ columns) - shift, "T")
            inner = -scipy.linalg.solve_triangular(upper, self._free.T @ gained, trans="T")
            moments = fixed + self._free @ scipy.linalg.solve_triangular(upper, target[:n_free] - inner)
            target[:n_free] = inner
            slack = rotated(target, "N")
            multipliers = scipy.linalg.solve_triangular(self._triangular, self._fixed.T @ (gained + columns @ slack))
            parts = np.split(slack, self._ends[:-1])
            unpacked = [block.unpacked(part).ravel() for block, part in zip(self._blocks, parts, strict=True)]
            x[:], y[:], z[:] = _column(x, moments), _column(y, multipliers), _column(z, np.concatenate(unpacked))

        return solve

    def _split(self, z: Any) -> list[np.ndarray]:
        """Symmetric matrices out of a stacked vector, of whose blocks only the lower triangles count."""
        stacked = np.array(z).ravel()
        parts, at = [], 0
        for block in self._blocks:
            whole = np.tril(stacked[at : at + block.side**2].reshape(block.side, block.side, order="F"))
            parts.append(whole + np.tril(whole, -1).T)
            at += block.side**2
        return parts


def _column(like: Any, values: np.ndarray) -> Any:
    """A column of the type that CVXOPT assigns from."""
    return type(like)(values.tolist(), (len(values), 1), "d")
