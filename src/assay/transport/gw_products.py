r"""Products ``C1 X C2`` of a coupling with the two symmetric matrices it aligns, and their cheap updates.

The gradient of the Gromov-Wasserstein objective at a coupling ``X`` is ``C1 X C2`` up to constants, so this product
decides the speed of every first-order method for it. For dense matrices it is two matrix products, ``n^2 m + n m^2``
multiply-adds. For a graph it need not be: with ``e1`` and ``e2`` stored entries it takes ``e1 m + e2 n``, one percent
of that at eight edges a node and a thousand nodes.

Each of the two matrices is a *factor* that knows how to multiply from its side: sparse or dense, on numpy arrays,
or on torch tensors of any device. A :class:`Sandwich` puts two factors around a coupling. Besides the full product
it updates it for a coupling that changed in a block of rows and columns only, evaluates it inside the block, and
forms it for a vertex of the polytope, which has only ``n + m - 1`` non-zeros. It counts the multiply-adds of each.

The sparse kernels move whole rows (``y += c x``), never gather single entries: those vectorise. From the right
side, sixteen rows of the coupling are transposed at a time, which makes the same row operation out of the other
product without a second matrix in memory.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from numba import njit

__all__ = ["DENSITY_OF_SPARSE", "DenseFactor", "Sandwich", "SparseFactor", "TorchSparseFactor"]

# Below this share of stored entries the sparse kernels are faster than BLAS.
DENSITY_OF_SPARSE = 0.1

# Price of a mirror step (exponential, ten scalings, rounding, and the passes that go with it) per entry of the plan, in
# multiply-adds of the product: measured at 1000 and 2000 points, where a step takes 8 to 12 ns an entry, a sparse
# multiply-add 0.4 to 0.5 ns, and one of BLAS 0.04 to 0.05 ns.
_STEP_PRICE_SPARSE = 22
_STEP_PRICE_DENSE = 200

# Rows that the right-hand sparse kernel handles together: two vector registers of eight doubles.
_LANES = 16


class DenseFactor:
    """A symmetric dense matrix, numpy or torch, as one side of the product.

    Parameters
    ----------
    matrix : array or tensor of shape (n, n)
        Symmetric, float64.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_products import DenseFactor
    >>> DenseFactor(np.array([[0.0, 2.0], [2.0, 0.0]])).left(np.eye(2))
    array([[0., 2.],
           [2., 0.]])
    """

    def __init__(self, matrix: np.ndarray | torch.Tensor):
        self.matrix = matrix
        self.size = int(matrix.shape[0])
        self.weight = self.size**2

    def on_cpu(self) -> np.ndarray:
        """The matrix as a numpy array."""
        return self.matrix.cpu().numpy() if isinstance(self.matrix, torch.Tensor) else self.matrix

    def restricted(self, index: np.ndarray) -> DenseFactor:
        """``C[index, index]`` as a factor on numpy arrays."""
        return DenseFactor(self.on_cpu()[np.ix_(index, index)])

    def left(self, coupling, out=None):
        """``C X``."""
        return _matmul(self.matrix, coupling, out)

    def right(self, product, scratch=None):
        """``Y C``; ``scratch`` may be used for the answer, ``Y`` may not."""
        return _matmul(product, self.matrix, scratch)

    def block_weight(self, index: np.ndarray) -> int:
        """Multiply-adds per column of :meth:`left_block`."""
        return len(index) ** 2

    def column_weight(self, index: np.ndarray) -> int:
        """Multiply-adds per column of :meth:`left_columns`."""
        return len(index) * self.size

    def reached(self, index: np.ndarray) -> np.ndarray:
        """Rows of ``C[:, index]`` that are not zero: all."""
        return np.arange(self.size)

    def left_block(self, index: np.ndarray, block):
        """``C[index, index] @ block``."""
        return self.matrix[index][:, index] @ block

    def right_block(self, index: np.ndarray, block):
        """``block @ C[index, index]``."""
        return block @ self.matrix[index][:, index]

    def left_columns(self, index: np.ndarray, rows: np.ndarray, block):
        """``C[rows, index] @ block`` for ``rows`` from :meth:`reached`."""
        return self.matrix[:, index] @ block

    def add_right_columns(self, index: np.ndarray, block, target, rows: np.ndarray) -> None:
        """``target[rows] += block @ C[index, :]``."""
        if len(rows) == len(target):
            target += block @ self.matrix[index]
        else:
            target[rows] += block @ self.matrix[index]


class SparseFactor:
    """A symmetric sparse matrix as one side of the product.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array of shape (n, n)
        Symmetric, float64.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> from assay.transport.gw_products import SparseFactor
    >>> SparseFactor(sp.csr_array([[0.0, 2.0], [2.0, 0.0]])).left(np.eye(2))
    array([[0., 2.],
           [2., 0.]])
    """

    def __init__(self, matrix: sp.csr_array):
        self.matrix = matrix
        self.size = int(matrix.shape[0])
        self.weight = int(matrix.nnz)
        self._csr = (matrix.indptr, matrix.indices, matrix.data)

    def on_cpu(self) -> sp.csr_array:
        """The matrix."""
        return self.matrix

    def restricted(self, index: np.ndarray) -> SparseFactor:
        """``C[index, index]`` as a factor on numpy arrays."""
        return SparseFactor(sp.csr_array(self.matrix[index][:, index]))

    def left(self, coupling: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """``C X``."""
        target = np.empty_like(coupling) if out is None else out
        _sparse_times_rows(*self._csr, coupling, target)
        return target

    def right(self, product: np.ndarray, scratch: np.ndarray | None = None) -> np.ndarray:
        """``Y C``, written over ``Y``."""
        _rows_times_sparse(*self._csr, product)
        return product

    def block_weight(self, index: np.ndarray) -> int:
        """Stored entries of ``C[index, index]``."""
        return int(_entries_within(*self._csr[:2], index, self._positions(index)))

    def column_weight(self, index: np.ndarray) -> int:
        """Stored entries of ``C[:, index]``."""
        indptr = self.matrix.indptr
        return int((indptr[index + 1] - indptr[index]).sum())

    def reached(self, index: np.ndarray) -> np.ndarray:
        """Rows of ``C[:, index]`` that are not zero."""
        touched = np.zeros(self.size, dtype=np.bool_)
        _mark_neighbours(*self._csr[:2], index, touched)
        return np.flatnonzero(touched)

    def left_block(self, index: np.ndarray, block: np.ndarray) -> np.ndarray:
        """``C[index, index] @ block``."""
        return self.left_columns(index, index, block)

    def right_block(self, index: np.ndarray, block: np.ndarray) -> np.ndarray:
        """``block @ C[index, index]``."""
        return np.ascontiguousarray(self.left_block(index, np.ascontiguousarray(block.T)).T)

    def left_columns(self, index: np.ndarray, rows: np.ndarray, block: np.ndarray) -> np.ndarray:
        """``C[rows, index] @ block``."""
        target = np.zeros((len(rows), block.shape[1]))
        _sparse_times_block(*self._csr, rows, self._positions(index), block, target)
        return target

    def add_right_columns(self, index: np.ndarray, block: np.ndarray, target: np.ndarray, rows: np.ndarray) -> None:
        """``target[rows] += block @ C[index, :]``."""
        _add_block_times_sparse(*self._csr, index, block, target, rows)

    def _positions(self, index: np.ndarray) -> np.ndarray:
        positions = np.full(self.size, -1, dtype=np.int64)
        positions[index] = np.arange(len(index))
        return positions


class TorchSparseFactor:
    """A symmetric sparse torch matrix as one side of the product, in plain tensor operations on its device.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array of shape (n, n)
        Symmetric, float64.
    device : torch.device or str
        Where to compute.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import torch
    >>> from assay.transport.gw_products import TorchSparseFactor
    >>> TorchSparseFactor(sp.csr_array([[0.0, 2.0], [2.0, 0.0]]), "cpu").left(torch.eye(2, dtype=torch.float64))
    tensor([[0., 2.],
            [2., 0.]], dtype=torch.float64)
    """

    def __init__(self, matrix: sp.csr_array, device: torch.device | str):
        self.size = int(matrix.shape[0])
        self.weight = int(matrix.nnz)
        self._pattern = SparseFactor(matrix)
        triplets = matrix.tocoo()
        where = torch.from_numpy(np.vstack([triplets.row, triplets.col]).astype(np.int64))
        values = torch.from_numpy(np.asarray(triplets.data))
        tensor = torch.sparse_coo_tensor(where, values, matrix.shape, device=device, check_invariants=True)
        self.matrix = tensor.coalesce()

    def on_cpu(self) -> sp.csr_array:
        """The matrix, as scipy has it."""
        return self._pattern.matrix

    def restricted(self, index: np.ndarray) -> SparseFactor:
        """``C[index, index]`` as a factor on numpy arrays."""
        return self._pattern.restricted(index)

    def left(self, coupling: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``C X``."""
        return torch.sparse.mm(self.matrix, coupling)

    def right(self, product: torch.Tensor, scratch: torch.Tensor | None = None) -> torch.Tensor:
        """``Y C``, through the transpose."""
        return torch.sparse.mm(self.matrix, product.T.contiguous()).T.contiguous()

    def block_weight(self, index: np.ndarray) -> int:
        """Stored entries of ``C[index, index]``."""
        return self._pattern.block_weight(index)

    def column_weight(self, index: np.ndarray) -> int:
        """Stored entries of ``C[:, index]``."""
        return self._pattern.column_weight(index)

    def reached(self, index: np.ndarray) -> np.ndarray:
        """Rows of ``C[:, index]`` that are not zero."""
        return self._pattern.reached(index)

    def left_block(self, index: np.ndarray, block: torch.Tensor) -> torch.Tensor:
        """``C[index, index] @ block``."""
        return self._part(index, index) @ block

    def right_block(self, index: np.ndarray, block: torch.Tensor) -> torch.Tensor:
        """``block @ C[index, index]``."""
        return (self._part(index, index) @ block.T.contiguous()).T.contiguous()

    def left_columns(self, index: np.ndarray, rows: np.ndarray, block: torch.Tensor) -> torch.Tensor:
        """``C[rows, index] @ block``."""
        return self._part(rows, index) @ block

    def add_right_columns(self, index: np.ndarray, block: torch.Tensor, target: torch.Tensor, rows: np.ndarray) -> None:
        """``target[rows] += block @ C[index, :]``."""
        everything = np.arange(self.size)
        update = (self._part(everything, index) @ block.T.contiguous()).T
        target[torch.from_numpy(rows).to(target.device)] += update

    def _part(self, rows: np.ndarray, columns: np.ndarray) -> torch.Tensor:
        device = self.matrix.device
        part = self.matrix.index_select(0, torch.from_numpy(rows).to(device))
        return part.index_select(1, torch.from_numpy(columns).to(device))


Factor = DenseFactor | SparseFactor | TorchSparseFactor


class Sandwich:
    """The product ``C1 X C2`` for couplings ``X`` of shape ``(n, m)``.

    Parameters
    ----------
    left, right : DenseFactor, SparseFactor or TorchSparseFactor
        The symmetric matrices on the two sides.

    Attributes
    ----------
    full_cost : int
        Multiply-adds of one full product.
    dense_cost : int
        Multiply-adds of one full product if both matrices were dense, ``n^2 m + n m^2``.
    step_price : int
        Price of a mirror step per entry of the plan, in multiply-adds of this product (a measured constant).

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_products import Sandwich
    >>> path = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    >>> Sandwich.of(path, path).product(np.full((3, 3), 1 / 9))
    array([[0.11111111, 0.22222222, 0.11111111],
           [0.22222222, 0.44444444, 0.22222222],
           [0.11111111, 0.22222222, 0.11111111]])
    """

    def __init__(self, left: Factor, right: Factor):
        self.left, self.right = left, right
        self.shape = (left.size, right.size)
        n, m = self.shape
        self.full_cost = left.weight * m + right.weight * n
        self.dense_cost = n * n * m + n * m * m
        dense = isinstance(left, DenseFactor) or isinstance(right, DenseFactor)
        self.step_price = _STEP_PRICE_DENSE if dense else _STEP_PRICE_SPARSE

    @classmethod
    def of(cls, C1, C2, products: str = "auto", device: torch.device | None = None) -> Sandwich:
        """Choose the factors for two matrices.

        Parameters
        ----------
        C1, C2 : numpy.ndarray or scipy.sparse.csr_array
            Symmetric, float64.
        products : {"auto", "sparse", "dense"}, default="auto"
            ``"auto"`` keeps a matrix sparse when at most a tenth of its entries are stored.
        device : torch.device, optional
            Compute with torch on this device instead of with numpy.

        Returns
        -------
        Sandwich
        """
        return cls(_factor(C1, products, device), _factor(C2, products, device))

    def product(self, coupling, out=None, scratch=None):
        """``C1 X C2``.

        Parameters
        ----------
        coupling : array or tensor of shape (n, m)
            Contiguous; it is only read.
        out, scratch : arrays or tensors of shape (n, m), optional
            Memory that may be used; the answer is in one of them, or in new memory.

        Returns
        -------
        array or tensor of shape (n, m)
        """
        return self.right.right(self.left.left(coupling, out), scratch)

    def within_block(self, rows: np.ndarray, columns: np.ndarray, change):
        """``C1[rows, rows] D C2[columns, columns]``: the product's change inside a block, for a change ``D`` of it."""
        return self.right.right_block(columns, self.left.left_block(rows, change))

    def add_block(self, rows: np.ndarray, columns: np.ndarray, change, product) -> None:
        """Update ``product`` in place for a coupling that changed by ``change`` in the block of rows and columns."""
        reached = self.left.reached(rows)
        self.right.add_right_columns(columns, self.left.left_columns(rows, reached, change), product, reached)

    def within_block_cost(self, rows: np.ndarray, columns: np.ndarray) -> int:
        """Multiply-adds of :meth:`within_block`."""
        return self.left.block_weight(rows) * len(columns) + self.right.block_weight(columns) * len(rows)

    def add_block_cost(self, rows: np.ndarray, columns: np.ndarray) -> int:
        """Multiply-adds of :meth:`add_block`."""
        reached = len(self.left.reached(rows))
        return self.left.column_weight(rows) * len(columns) + reached * self.right.column_weight(columns)

    def of_vertex(self, vertex: sp.csr_array):
        """``C1 P C2`` for a sparse coupling ``P``: sparse when both factors are, else an array or tensor."""
        if isinstance(self.left.matrix, torch.Tensor):
            P = torch.from_numpy(vertex.toarray()).to(self.left.matrix.device)
            return self.product(P)
        return (self.left.matrix @ vertex) @ self.right.matrix

    def vertex_cost(self, vertex: sp.csr_array) -> int:
        """Multiply-adds of :meth:`of_vertex`, counted from the sizes."""
        triplets = vertex.tocoo()
        first = self.left.column_weight(triplets.row)
        if isinstance(self.left, DenseFactor):
            return first + self.left.size * self.right.weight
        reached_entries = np.zeros(self.right.size)
        per_row = np.asarray(_degrees(self.left))
        np.add.at(reached_entries, triplets.col, per_row[triplets.row])
        return first + int(reached_entries @ _degrees(self.right))


def _degrees(factor: Factor) -> np.ndarray:
    """Stored entries of every row."""
    if isinstance(factor, DenseFactor):
        return np.full(factor.size, float(factor.size))
    return np.diff(getattr(factor, "_pattern", factor).matrix.indptr).astype(float)


def _factor(matrix, products: str, device: torch.device | None) -> Factor:
    n = matrix.shape[0]
    stored = matrix.nnz if sp.issparse(matrix) else int(np.count_nonzero(matrix))
    if products == "sparse" or (products == "auto" and stored <= DENSITY_OF_SPARSE * n * n):
        sparse = sp.csr_array(matrix)
        return SparseFactor(sparse) if device is None else TorchSparseFactor(sparse, device)
    dense = matrix.toarray() if sp.issparse(matrix) else np.ascontiguousarray(matrix)
    return DenseFactor(dense if device is None else torch.from_numpy(dense).to(device))


def _matmul(first, second, out):
    if isinstance(first, torch.Tensor):
        return first @ second
    return np.matmul(first, second, out=out)


@njit(cache=True)
def _sparse_times_rows(indptr, indices, data, coupling, out):
    m = coupling.shape[1]
    for i in range(len(indptr) - 1):
        target = out[i]
        target[:] = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            c = data[k]
            source = coupling[indices[k]]
            for j in range(m):
                target[j] += c * source[j]


@njit(cache=True)
def _rows_times_sparse(indptr, indices, data, product):
    """``product @ C`` over ``product``, for symmetric ``C``."""
    n, m = product.shape
    lanes = np.empty((m, _LANES))
    total = np.empty(_LANES)
    for start in range(0, n, _LANES):
        width = min(_LANES, n - start)
        lanes[:] = 0.0
        for b in range(width):
            source = product[start + b]
            for j in range(m):
                lanes[j, b] = source[j]
        for j in range(m):
            total[:] = 0.0
            for k in range(indptr[j], indptr[j + 1]):
                c = data[k]
                lane = lanes[indices[k]]
                for b in range(_LANES):
                    total[b] += c * lane[b]
            for b in range(width):
                product[start + b, j] = total[b]


@njit(cache=True)
def _sparse_times_block(indptr, indices, data, rows, positions, block, out):
    width = block.shape[1]
    for a in range(len(rows)):
        target = out[a]
        for k in range(indptr[rows[a]], indptr[rows[a] + 1]):
            position = positions[indices[k]]
            if position >= 0:
                c = data[k]
                source = block[position]
                for j in range(width):
                    target[j] += c * source[j]


@njit(cache=True)
def _add_block_times_sparse(indptr, indices, data, index, block, target, rows):
    """Scatter each of the block's rows: a row of the target stays in the fastest cache meanwhile."""
    for a in range(len(rows)):
        row = target[rows[a]]
        for b in range(len(index)):
            c = block[a, b]
            for k in range(indptr[index[b]], indptr[index[b] + 1]):
                row[indices[k]] += c * data[k]


@njit(cache=True)
def _entries_within(indptr, indices, index, positions):
    count = 0
    for i in index:
        for k in range(indptr[i], indptr[i + 1]):
            count += positions[indices[k]] >= 0
    return count


@njit(cache=True)
def _mark_neighbours(indptr, indices, index, touched):
    for i in index:
        for k in range(indptr[i], indptr[i + 1]):
            touched[indices[k]] = True
