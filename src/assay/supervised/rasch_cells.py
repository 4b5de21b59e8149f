"""Sums over the cells of a table that the iteration for a Rasch model needs, in chunks that stay in the cache."""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int8
from numba import njit
from scipy import sparse

from assay.supervised.rasch_responses import row_slices

__all__ = ["DenseCells", "SparseCells", "cell_terms"]

_CHUNK_CELLS = 1 << 15
_GRAM_ROWS = 512
# Curvatures of this many cells are kept between the two passes of an iteration instead of being computed again.
_STORED_CELLS = 1 << 22
_SMALL = 1e-4
_LARGE = 1e300
_EVERYTHING = np.empty((0, 0), dtype=np.int8)


def cell_terms(margins: np.ndarray, information: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every margin: ``exp(-|margin|)``, ``tanh(margin / 2)``, and a curvature.

    Parameters
    ----------
    margins : numpy.ndarray
        Ability minus difficulty.
    information : bool, default=False
        Whether the curvature is that of the log-likelihood, ``p (1 - p)``, or that of its minorant,
        ``tanh(margin / 2) / (2 margin)``.

    Returns
    -------
    decay, half_tanh, curvature : numpy.ndarray
        Of the shape of ``margins``.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.rasch_cells import cell_terms
    >>> cell_terms(np.array([0.0, 2.0]))[2].round(7).tolist()
    [0.25, 0.1903985]
    """
    size = np.abs(margins)
    decay = np.exp(-size)
    both = 1.0 + decay
    half_tanh = (1.0 - decay) / both
    if information:
        curvature = decay / (both * both)
    else:
        small = size < _SMALL
        if small.any():
            size[small] = 1.0
        curvature = half_tanh / size
        curvature *= 0.5
        if small.any():
            curvature[small] = 0.25 - margins[small] ** 2 / 48.0
    return decay, np.copysign(half_tanh, margins, out=half_tanh), curvature


class DenseCells:
    """Sums over a dense table of cells, in chunks that stay in the cache."""

    def __init__(self, codes: np.ndarray, complete: bool) -> None:
        self.codes = None if complete else codes
        self.shape = codes.shape
        n_cells = self.shape[0] * self.shape[1]
        self._kept: np.ndarray | None = np.empty(self.shape) if n_cells <= _STORED_CELLS else None

    def sums(
        self, a: np.ndarray, b: np.ndarray, weights: np.ndarray, information: bool
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Per block of rows: log-normalisers, row sums of tanh, curvatures of the cells, column sums of tanh."""
        n_rows, n_columns = self.shape
        scratch = None
        codes = _EVERYTHING if self.codes is None else self.codes
        for block in row_slices(n_rows, n_columns, max(_GRAM_ROWS * n_columns, _CHUNK_CELLS)):
            length = block.stop - block.start
            if self._kept is not None and not information:
                cells = self._kept[block]
            else:
                scratch = np.empty((length, n_columns)) if scratch is None else scratch
                cells = scratch[:length]
            normalizers, row_tanh, column_tanh = np.empty(length), np.empty(length), np.zeros(n_columns)
            _dense_sums(
                a[block], b, codes[block], weights[block], information, cells, normalizers, row_tanh, column_tanh
            )
            yield block, normalizers, row_tanh, cells, column_tanh

    def times(self, a: np.ndarray, b: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Curvatures of the minorant at the point of the last evaluation, times a vector of columns."""
        if self._kept is not None:
            return self._kept @ vector
        product = np.empty(self.shape[0])
        for rows in row_slices(*self.shape, _CHUNK_CELLS):
            product[rows] = self._curvatures(a, b, rows, False) @ vector
        return product

    def information_rows(self, a: np.ndarray, b: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Observed information of the cells, block by block."""
        for rows in row_slices(*self.shape, max(_CHUNK_CELLS, _GRAM_ROWS * self.shape[1])):
            yield rows, self._curvatures(a, b, rows, True)

    def _curvatures(self, a: np.ndarray, b: np.ndarray, rows: slice, information: bool) -> np.ndarray:
        curvature = cell_terms(a[rows, None] - b, information)[2]
        if self.codes is not None:
            curvature *= self.codes[rows] >= 0
        return curvature


class SparseCells:
    """Sums over the observed cells of a sparse table."""

    def __init__(self, table: sparse.csr_array) -> None:
        self.shape = table.shape
        self.indptr, self.columns = table.indptr, table.indices
        self.rows = np.repeat(np.arange(self.shape[0]), np.diff(table.indptr))
        self._kept: sparse.csr_array | None = None

    def _matrix(self, data: np.ndarray) -> sparse.csr_array:
        return sparse.csr_array((data, self.columns, self.indptr), shape=self.shape)

    def sums(
        self, a: np.ndarray, b: np.ndarray, weights: np.ndarray, information: bool
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray, sparse.csr_array, np.ndarray]]:
        """All rows as one block."""
        n_rows, n_columns = self.shape
        margins = a[self.rows] - b[self.columns]
        decay, half_tanh, curvature = cell_terms(margins, information)
        matrix = self._matrix(curvature)
        if not information:
            self._kept = matrix
        normalizers = np.bincount(self.rows, np.maximum(margins, 0.0) + np.log1p(decay), minlength=n_rows)
        row_tanh = np.bincount(self.rows, half_tanh, minlength=n_rows)
        column_tanh = np.bincount(self.columns, weights[self.rows] * half_tanh, minlength=n_columns)
        yield slice(0, n_rows), normalizers, row_tanh, matrix, column_tanh

    def times(self, a: np.ndarray, b: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Curvatures of the minorant at the point of the last evaluation, times a vector of columns."""
        return self._kept @ vector

    def information_rows(self, a: np.ndarray, b: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Observed information of the cells, block by block."""
        information = self._matrix(cell_terms(a[self.rows] - b[self.columns], True)[2])
        for rows in row_slices(*self.shape, 1 << 20):
            yield rows, information[rows].toarray()


@njit(cache=True)
def _dense_sums(
    a: Float[np.ndarray, " rows"],
    b: Float[np.ndarray, " columns"],
    codes: Int8[np.ndarray, "some_rows some_columns"],
    weights: Float[np.ndarray, " rows"],
    information: bool,
    cells: Float[np.ndarray, "rows columns"],
    normalizers: Float[np.ndarray, " rows"],
    row_tanh: Float[np.ndarray, " rows"],
    column_tanh: Float[np.ndarray, " columns"],
) -> None:
    """What :func:`cell_terms` gives, with its sums, in one pass; the last four arguments are written to."""
    complete = codes.size == 0
    for i in range(len(a)):
        total, tanh, product = 0.0, 0.0, 1.0
        for j in range(len(b)):
            if not complete and codes[i, j] < 0:
                cells[i, j] = 0.0
                continue
            margin = a[i] - b[j]
            size = abs(margin)
            decay = math.exp(-size)
            both = 1.0 + decay
            half_tanh = (1.0 - decay) / both
            if information:
                cells[i, j] = decay / (both * both)
            elif size < _SMALL:
                cells[i, j] = 0.25 - size * size / 48.0
            else:
                cells[i, j] = 0.5 * half_tanh / size
            if margin < 0.0:
                half_tanh = -half_tanh
            else:
                total += margin
            tanh += half_tanh
            column_tanh[j] += weights[i] * half_tanh
            # The logarithm of a product of factors of at most 2 in place of a logarithm per cell.
            product *= both
            if product > _LARGE:
                total += math.log(product)
                product = 1.0
        row_tanh[i] = tanh
        normalizers[i] = total + math.log(product)
