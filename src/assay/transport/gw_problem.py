"""What a Gromov-Wasserstein problem is, whatever form it comes in: arrays, tensors, sparse matrices or graphs.

Two symmetric matrices and two distributions, checked, in float64, without the points that have no weight, and
normalised by degrees when they are adjacency matrices and it was not declined. Everything downstream works on a
:class:`GWProblem`; :meth:`GWProblem.restore` brings a plan back to the caller's points and to the caller's kind of
array.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int

from assay.validation import as_distribution, as_float_array

__all__ = ["GWProblem", "Relation", "normalize_by_degrees", "prepare_problem", "relation_matrix"]

# What a relation between the points of one space may be given as.
Relation = Any

# Asymmetry below this share of the largest entry is rounding.
_SYMMETRY = 1e-8

# Squares of entries beyond these magnitudes leave the range of float64 in the objective.
_SMALLEST, _LARGEST = 1e-140, 1e140

# As in the authors' code: degrees are not taken to be smaller than this.
_SMALLEST_DEGREE = 1e-12


@dataclass(frozen=True)
class GWProblem:
    """A checked problem.

    Attributes
    ----------
    C1, C2 : numpy.ndarray or scipy.sparse.csr_array
        Symmetric float64 matrices between the points of positive weight.
    p, q : numpy.ndarray
        Their positive weights.
    degrees1, degrees2 : numpy.ndarray
        Row sums before normalisation.
    kept1, kept2 : numpy.ndarray of int
        Which of the caller's points these are.
    shape : tuple of int
        Numbers of points that the caller gave.
    normalized : bool
        Whether the matrices were divided by degrees.
    like : torch.Tensor or None
        A tensor of the caller's: plans are returned on its device and in its dtype.
    """

    C1: Any
    C2: Any
    p: Float[np.ndarray, " n"]
    q: Float[np.ndarray, " m"]
    degrees1: Float[np.ndarray, " n"]
    degrees2: Float[np.ndarray, " m"]
    kept1: Int[np.ndarray, " n"]
    kept2: Int[np.ndarray, " m"]
    shape: tuple[int, int]
    normalized: bool
    like: torch.Tensor | None

    @property
    def left(self) -> np.ndarray:
        """``u = (C1 * C1) p``, the part of the objective that only depends on the rows."""
        return _squares_times(self.C1, self.p)

    @property
    def right(self) -> np.ndarray:
        """``v = (C2 * C2) q``, the part of the objective that only depends on the columns."""
        return _squares_times(self.C2, self.q)

    @property
    def scale(self) -> float:
        """``u p + v q``: what the objective would be without any agreement between the two spaces."""
        return float(self.left @ self.p + self.right @ self.q)

    def restore(self, plan: Float[np.ndarray, "n m"] | torch.Tensor) -> np.ndarray | torch.Tensor:
        """A plan on all the caller's points, as the caller's kind of array."""
        if plan.shape != self.shape:
            full = np.zeros(self.shape)
            full[np.ix_(self.kept1, self.kept2)] = plan.cpu().numpy() if isinstance(plan, torch.Tensor) else plan
            plan = full
        if self.like is None:
            return plan.cpu().numpy() if isinstance(plan, torch.Tensor) else plan
        tensor = plan if isinstance(plan, torch.Tensor) else torch.from_numpy(plan)
        dtype = self.like.dtype if self.like.dtype.is_floating_point else torch.float64
        return tensor.to(device=self.like.device, dtype=dtype)


def prepare_problem(
    C1: Relation, C2: Relation, p: Any = None, q: Any = None, normalize: bool | str = "auto"
) -> GWProblem:
    """Check the two spaces of a Gromov-Wasserstein problem.

    Parameters
    ----------
    C1, C2 : array_like, torch.Tensor, sparse matrix or networkx.Graph
        Symmetric, of shapes (n, n) and (m, m).
    p, q : array_like of shapes (n,) and (m,), optional
        Distributions; uniform by default.
    normalize : bool or "auto", default="auto"
        Whether to divide every entry by the square roots of the two degrees. ``"auto"`` does so for graphs and
        sparse matrices.

    Returns
    -------
    GWProblem

    Raises
    ------
    TypeError, ValueError
        With the argument's name, what was wrong with it, and what is accepted.

    Examples
    --------
    >>> import networkx as nx
    >>> from assay.transport.gw_problem import prepare_problem
    >>> problem = prepare_problem(nx.path_graph(3), nx.cycle_graph(3))
    >>> problem.normalized, problem.shape
    (True, (3, 3))
    """
    matrices, adjacency = [], []
    for relation, name in ((C1, "C1"), (C2, "C2")):
        matrices.append(relation_matrix(relation, name))
        adjacency.append(_is_adjacency(relation))
    if not (isinstance(normalize, bool | np.bool_) or (isinstance(normalize, str) and normalize == "auto")):
        raise ValueError(f"normalize must be True, False or 'auto', got {normalize!r}")
    if isinstance(normalize, str):
        if adjacency[0] != adjacency[1]:
            raise ValueError(
                "normalize must be True or False when one of C1 and C2 is a graph or sparse and the other a dense array"
            )
        normalize = adjacency[0]
    shape = (matrices[0].shape[0], matrices[1].shape[0])
    weights, degrees, kept = [], [], []
    for k, (given, name) in enumerate(((p, "p"), (q, "q"))):
        matrix, size = matrices[k], shape[k]
        weight = np.full(size, 1.0 / size) if given is None else as_distribution(given, name, size=size)
        degree = np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
        if normalize:
            matrix = normalize_by_degrees(matrix, f"C{k + 1}")
        positive = np.flatnonzero(weight > 0.0)
        if len(positive) < size:
            # A point without weight appears in no term of the objective, but it does count in the degrees.
            matrix = (
                matrix[np.ix_(positive, positive)] if isinstance(matrix, np.ndarray) else matrix[positive][:, positive]
            )
        matrices[k] = matrix
        weights.append(weight[positive])
        degrees.append(degree[positive])
        kept.append(positive)
    like = next((r for r in (C1, C2) if isinstance(r, torch.Tensor)), None)
    return GWProblem(*matrices, *weights, *degrees, *kept, shape, bool(normalize), like)


def relation_matrix(relation: Relation, name: str) -> np.ndarray | sp.csr_array:
    """A symmetric relation between points as a checked float64 matrix, sparse for graphs and sparse input.

    Parameters
    ----------
    relation : array_like, torch.Tensor, sparse matrix or networkx.Graph
        Entries that differ from their mirror image by rounding (1e-8 of the largest) are averaged.
    name : str
        Name of the argument, for messages.

    Returns
    -------
    numpy.ndarray or scipy.sparse.csr_array
        The argument itself where nothing had to be changed.

    Raises
    ------
    TypeError, ValueError
        If it is not a finite, symmetric, real, square matrix, or is a directed graph.

    Examples
    --------
    >>> from assay.transport.gw_problem import relation_matrix
    >>> relation_matrix([[0, 1], [2, 0]], "C1")
    Traceback (most recent call last):
        ...
    ValueError: C1 must be symmetric, got entries that differ by 1 across the diagonal
    """
    if isinstance(relation, nx.Graph):
        if relation.is_directed():
            raise ValueError(f"{name} must be an undirected graph, got a {type(relation).__name__}")
        if relation.number_of_nodes() == 0:
            raise ValueError(f"{name} must have at least one node, got an empty graph")
        relation = nx.to_scipy_sparse_array(relation, dtype=np.float64, format="csr")
    elif isinstance(relation, torch.Tensor) and relation.layout != torch.strided:
        relation = _from_torch_sparse(relation)
    if sp.issparse(relation):
        matrix = _checked_sparse(relation, name)
        largest = float(abs(matrix).max()) if matrix.nnz else 0.0
        mirror = sp.csr_array(matrix.T)
        difference = abs(matrix - mirror)
        asymmetry = float(difference.max()) if difference.nnz else 0.0
    else:
        matrix = as_float_array(relation, name, ndim=2)
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"{name} must be square, got shape {matrix.shape}")
        mirror = matrix.T
        largest = max(float(matrix.max()), -float(matrix.min()))
        asymmetry = _largest_asymmetry(matrix)
    if asymmetry > _SYMMETRY * largest:
        raise ValueError(f"{name} must be symmetric, got entries that differ by {asymmetry:.3g} across the diagonal")
    if largest > _LARGEST or 0.0 < largest < _SMALLEST:
        raise ValueError(
            f"{name} must have a largest entry between {_SMALLEST:g} and {_LARGEST:g} in magnitude, got {largest:.3g}"
        )
    if asymmetry > 0.0:
        matrix = 0.5 * (matrix + mirror)
        return sp.csr_array(matrix) if sp.issparse(matrix) else matrix
    return matrix


def normalize_by_degrees(matrix: np.ndarray | sp.csr_array, name: str = "matrix") -> np.ndarray | sp.csr_array:
    """Divide every entry of an adjacency matrix by the square roots of its two degrees.

    Parameters
    ----------
    matrix : numpy.ndarray or scipy.sparse.csr_array of shape (n, n)
        Non-negative and symmetric.
    name : str, default="matrix"
        Name of the argument, for messages.

    Returns
    -------
    numpy.ndarray or scipy.sparse.csr_array
        Isolated points keep a row of zeros; there is a warning about them.

    Raises
    ------
    ValueError
        If an entry is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_problem import normalize_by_degrees
    >>> normalize_by_degrees(np.array([[0.0, 4.0], [4.0, 0.0]]))
    array([[0., 1.],
           [1., 0.]])
    """
    entries = matrix.data if sp.issparse(matrix) else matrix
    if entries.size and entries.min() < 0.0:
        raise ValueError(f"{name} must be non-negative to be normalised by degrees, got {entries.min():g}")
    degrees = np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
    # Degrees are counted in units of the mean one, so that edge weights of 1e-13 are not taken for isolation.
    unit = float(degrees.mean()) or 1.0
    isolated = int((degrees == 0.0).sum())
    if isolated:
        warnings.warn(
            f"{name} has {isolated} isolated points; their rows stay zero and do not inform the alignment", stacklevel=4
        )
    factors = 1.0 / np.sqrt(np.maximum(degrees / unit, _SMALLEST_DEGREE) * unit)
    if sp.issparse(matrix):
        scaling = sp.diags_array(factors)
        return sp.csr_array(scaling @ matrix @ scaling)
    return factors[:, None] * matrix * factors


def _is_adjacency(relation: Relation) -> bool:
    sparse_tensor = isinstance(relation, torch.Tensor) and relation.layout != torch.strided
    return isinstance(relation, nx.Graph) or sp.issparse(relation) or sparse_tensor


def _squares_times(matrix: np.ndarray | sp.csr_array, weights: np.ndarray) -> np.ndarray:
    if sp.issparse(matrix):
        return matrix.power(2) @ weights
    # Row by row: the squares need no second matrix.
    return np.einsum("ij,ij,j->i", matrix, matrix, weights)


def _largest_asymmetry(matrix: np.ndarray) -> float:
    """Largest difference across the diagonal, a band of rows at a time."""
    height = 256
    return max(
        float(np.abs(matrix[s : s + height] - matrix[:, s : s + height].T).max()) for s in range(0, len(matrix), height)
    )


def _checked_sparse(relation: Any, name: str) -> sp.csr_array:
    if relation.ndim != 2 or relation.shape[0] != relation.shape[1]:
        raise ValueError(f"{name} must be square, got shape {relation.shape}")
    if relation.shape[0] == 0:
        raise ValueError(f"{name} must have at least one node, got shape {relation.shape}")
    if relation.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be a finite sparse matrix of real numbers, got dtype {relation.dtype}")
    matrix = sp.csr_array(relation, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    bad = int(np.count_nonzero(~np.isfinite(matrix.data)))
    if bad:
        raise ValueError(f"{name} must be a finite sparse matrix, got {bad} nan or infinite entries")
    return matrix


def _from_torch_sparse(tensor: torch.Tensor) -> sp.coo_array:
    triplets = tensor.detach().cpu().to_sparse_coo().coalesce()
    rows, columns = triplets.indices().numpy()
    return sp.coo_array((triplets.values().numpy(), (rows, columns)), shape=tuple(triplets.shape))
