"""Constraint rows of norm 1, kept sparse where that is faster, with an eye on rows that bound one coordinate."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray

__all__ = ["UnitRows"]

_DENSITY = 0.1


class UnitRows:
    """A copy of a matrix whose rows have been divided by their norms.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array or numpy.ndarray of shape (m, n)
        Rows of norm 1, or of zeros.
    norms : numpy.ndarray of shape (m,)
        What they were divided by, 1 for rows of zeros.
    single_columns : numpy.ndarray of shape (m,)
        Column of the entry of a row that has only one, otherwise -1.
    single_values : numpy.ndarray of shape (m,)
        That entry.
    """

    def __init__(
        self,
        matrix: Any,
        norms: Float[ndarray, " m"],
        single_columns: Int[ndarray, " m"],
        single_values: Float[ndarray, " m"],
    ):
        self.matrix, self.norms = matrix, norms
        self.single_columns, self.single_values = single_columns, single_values

    @classmethod
    def of(cls, matrix: Float[ndarray, "m n"]) -> UnitRows:
        """From any matrix."""
        m, n = matrix.shape
        if np.count_nonzero(matrix) >= _DENSITY * matrix.size:
            return cls._dense(matrix)
        line, column = matrix.nonzero()
        entries = matrix[line, column]
        counts = np.bincount(line, minlength=m)
        starts = np.concatenate([[0], np.cumsum(counts)])
        filled = np.flatnonzero(counts)
        largest = np.ones(m)
        if filled.size:  # dividing by it first keeps the squares from overflowing
            largest[filled] = np.maximum.reduceat(np.abs(entries), starts[filled])
        entries = entries / largest[line]
        lengths = np.sqrt(np.bincount(line, entries**2, minlength=m))
        lengths[lengths == 0.0] = 1.0
        entries /= lengths[line]
        alone = np.flatnonzero(counts == 1)
        columns, values = np.full(m, -1), np.zeros(m)
        columns[alone], values[alone] = column[starts[alone]], entries[starts[alone]]
        return cls(sp.csr_array((entries, column, starts), shape=(m, n)), largest * lengths, columns, values)

    @classmethod
    def _dense(cls, matrix: Float[ndarray, "m n"]) -> UnitRows:
        largest = np.maximum(matrix.max(axis=1, initial=0.0), -matrix.min(axis=1, initial=0.0))
        largest[largest == 0.0] = 1.0
        unit = matrix / largest[:, None]
        lengths = np.sqrt(np.einsum("ij,ij->i", unit, unit))
        lengths[lengths == 0.0] = 1.0
        unit /= lengths[:, None]
        columns, values = np.full(len(unit), -1), np.zeros(len(unit))
        entries = unit != 0
        alone = np.flatnonzero(np.count_nonzero(entries, axis=1) == 1)
        columns[alone] = entries[alone].argmax(axis=1)
        values[alone] = unit[alone, columns[alone]]
        return cls(unit, largest * lengths, columns, values)

    def above(self, other: UnitRows) -> UnitRows:
        """These rows, then those of another matrix."""
        if sp.issparse(self.matrix) and sp.issparse(other.matrix):
            matrix: Any = sp.vstack([self.matrix, other.matrix], format="csr")
        else:
            matrix = np.vstack([self.take(None), other.take(None)])
        pairs = (self.norms, other.norms), (self.single_columns, other.single_columns)
        return UnitRows(
            matrix, *(np.append(*pair) for pair in pairs), np.append(self.single_values, other.single_values)
        )

    def __len__(self) -> int:
        return self.matrix.shape[0]

    def take(self, picked: Int[ndarray, " k"] | None) -> Float[ndarray, "k n"]:
        """Some rows, or all, as a dense matrix."""
        if not sp.issparse(self.matrix):
            return self.matrix if picked is None else self.matrix[picked]
        if picked is None:
            return self.matrix.toarray()
        rows = np.zeros((picked.size, self.matrix.shape[1]))
        starts = self.matrix.indptr[picked]
        counts = self.matrix.indptr[picked + 1] - starts
        places = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        rows[np.repeat(np.arange(picked.size), counts), self.matrix.indices[places]] = self.matrix.data[places]
        return rows

    def times(self, points: Float[ndarray, "k n"]) -> Float[ndarray, "k m"]:
        """Products with several points."""
        return (self.matrix @ points.T).T

    def adjoint(self, weights: Float[ndarray, "k m"]) -> Float[ndarray, "k n"]:
        """Sums of the rows with several sets of weights."""
        return (self.matrix.T @ weights.T).T
