r"""The linear systems of an interior-point method for moment relaxations, with sparsity exploited.

Every iteration solves with the Schur complement ``S``, whose entry ``(i, j)`` is ``tr(A_i P A_j P)``, ``A_i`` being the
matrix of zeros and ones that says where moment ``i`` is, and ``P`` a positive definite scaling. Each entry of a moment
matrix is one moment, so that all ``A_i`` together have as many entries as one matrix. ``P A_j P`` costs one dense
product per moment, and all its inner products with the ``A_i`` one sparse product: ``O(m side^3)`` for ``m`` moments,
where a solver that takes the ``A_i`` for dense matrices needs ``O(m side^3 + m^2 side^2)`` and much more memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from jaxtyping import Float, Int

from assay.games.moment_basis import MatrixMap, triangle

__all__ = ["BlockSchur", "SchurSystem"]

# Numbers held at a time while products are made.
_CHUNK = 4_000_000


class BlockSchur:
    """Contribution of one positive semidefinite block.

    Parameters
    ----------
    block : MatrixMap
        The block, with a map that is sparse.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.moment_basis import MonomialBasis
    >>> from assay.games.sos_schur import BlockSchur
    >>> block = MonomialBasis([1], 2).localizing({(0,): 1.0}, 1)
    >>> BlockSchur(block).complement(np.eye(2), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def __init__(self, block: MatrixMap):
        self.side = block.side
        entries = block.entries.tocsc()
        self.moments: Int[np.ndarray, " used"] = np.flatnonzero(np.diff(entries.indptr))
        entries = sp.csc_array(entries[:, self.moments])
        rows, columns = triangle(self.side)
        self._upper = rows * self.side + columns
        self._weighted = sp.csr_array((sp.diags_array(np.where(rows == columns, 1.0, 2.0)) @ entries).T)
        # All matrices on top of each other: row ``k * side + a`` is row a of the k-th.
        coo = entries.tocoo()
        a, b = rows[coo.row], columns[coo.row]
        off = a != b
        stacked = np.concatenate([coo.col * self.side + a, (coo.col * self.side + b)[off]])
        across = np.concatenate([b, a[off]])
        value = np.concatenate([coo.data, coo.data[off]])
        shape = (len(self.moments) * self.side, self.side)
        self._stacked = sp.csr_array((value, (stacked, across)), shape=shape)

    def complement(self, scaling: Float[np.ndarray, "side side"], n_moments: int) -> Float[np.ndarray, "m m"]:
        """``tr(A_i P A_j P)`` for all pairs of moments, ``P`` being ``scaling``."""
        n_used = len(self.moments)
        inner = np.empty((n_used, n_used))
        step = max(1, _CHUNK // self.side**2)
        for start in range(0, n_used, step):
            end = min(start + step, n_used)
            right = (self._stacked[start * self.side : end * self.side] @ scaling).reshape(-1, self.side, self.side)
            both = np.matmul(scaling, right).reshape(end - start, -1)
            inner[:, start:end] = self._weighted @ np.ascontiguousarray(both[:, self._upper].T)
        answer = np.zeros((n_moments, n_moments))
        answer[np.ix_(self.moments, self.moments)] = inner
        return answer


class SchurSystem:
    """The solver of linear systems that is given to CVXOPT.

    Parameters
    ----------
    blocks : sequence of MatrixMap
        Positive semidefinite blocks.
    equations : numpy.ndarray of shape (n_equations, n_moments)
        Linearly independent rows, the normalisation among them.
    """

    def __init__(self, blocks: Sequence[MatrixMap], equations: Float[np.ndarray, "equations moments"]):
        self._blocks = [BlockSchur(block) for block in blocks]
        self._maps = list(blocks)
        self._equations = equations
        # Moments are split into what the equations fix and what they leave free.
        orthogonal, triangular = scipy.linalg.qr(equations.T)
        self._triangular = triangular[: len(equations)]
        self._range = orthogonal[:, : len(equations)]
        self._free = sp.csc_array(orthogonal[:, len(equations) :])

    def __call__(self, scaling: dict[str, Any]) -> Callable[[Any, Any, Any], None]:
        """Factorise for a scaling of CVXOPT, and return its solver.

        Raises
        ------
        ArithmeticError
            If the system is singular to rounding, which CVXOPT understands.
        """
        inverses = [np.array(one) for one in scaling["rti"]]
        n_moments = self._equations.shape[1]
        schur = np.zeros((n_moments, n_moments))
        for block, inverse in zip(self._blocks, inverses, strict=True):
            schur += block.complement(inverse @ inverse.T, n_moments)
        try:
            factor = scipy.linalg.cho_factor(self._free.T @ schur @ self._free, lower=True, overwrite_a=True)
        except (np.linalg.LinAlgError, ValueError) as error:
            raise ArithmeticError(str(error)) from None

        def solve(x: Any, y: Any, z: Any) -> None:
            parts = [inverse.T @ part @ inverse for inverse, part in zip(inverses, self._split(z), strict=True)]
            right = np.array(x).ravel()
            for block, inverse, part in zip(self._maps, inverses, parts, strict=True):
                right -= block.adjoint(inverse @ part @ inverse.T)
            fixed = self._range @ scipy.linalg.solve_triangular(self._triangular, np.array(y).ravel(), trans="T")
            moments = fixed + self._free @ scipy.linalg.cho_solve(factor, self._free.T @ (right - schur @ fixed))
            multipliers = scipy.linalg.solve_triangular(
                self._triangular, self._range.T @ (right - schur @ moments)
            )
            scaled = [
                (-(inverse.T @ block.matrix(moments) @ inverse) - part).ravel(order="F")
                for block, inverse, part in zip(self._maps, inverses, parts, strict=True)
            ]
            x[:], y[:], z[:] = _column(x, moments), _column(y, multipliers), _column(z, np.concatenate(scaled))

        return solve

    def _split(self, z: Any) -> list[np.ndarray]:
        """Symmetric matrices out of a stacked vector, of whose blocks only the lower triangles count."""
        stacked = np.array(z).ravel()
        parts, at = [], 0
        for block in self._maps:
            whole = np.tril(stacked[at : at + block.side**2].reshape(block.side, block.side, order="F"))
            parts.append(whole + np.tril(whole, -1).T)
            at += block.side**2
        return parts


def _column(like: Any, values: np.ndarray) -> Any:
    """A column of the type that CVXOPT assigns from."""
    return type(like)(values.tolist(), (len(values), 1), "d")
