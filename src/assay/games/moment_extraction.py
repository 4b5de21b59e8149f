"""From moments to maximisers: the points at which a measure sits, read off its moment matrix.

When the moment matrix of some order has the rank ``r`` of one that is lower by half the degree of the constraints (it
is *flat*), its moments are those of ``r`` points, all of them feasible and all of them optimal. The columns of a
factor of the matrix, brought to echelon form, express every monomial by ``r`` of them; multiplication by a variable is
then a matrix of size ``r``, and an ordered Schur form of a random combination of these matrices has the points in its
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from jaxtyping import Float

from assay.games.moment_basis import MatrixMap, MonomialBasis

__all__ = ["Extraction", "candidate_points", "extract_points"]

# Eigenvalues up to this share of the largest one count as zero.
RANK_TOL = 1e-6


@dataclass(frozen=True, eq=False)
class Extraction:
    """What the moments of a solved relaxation say.

    Attributes
    ----------
    ranks : tuple of int
        Rank of the moment matrix of each order 0, 1, ..., d.
    flat : bool
        Whether some order has the rank of the one that is lower by half the degree of the constraints.
    points : numpy.ndarray of shape (n_points, dim)
        The points of the measure where they could be extracted.
    """

    ranks: tuple[int, ...]
    flat: bool
    points: Float[np.ndarray, "points dim"]

    @property
    def rank(self) -> int:
        """Rank of the whole moment matrix."""
        return self.ranks[-1]


def extract_points(
    basis: MonomialBasis,
    block: MatrixMap,
    moments: Float[np.ndarray, " moments"],
    order: int,
    least_order: int = 1,
    half_degree: int = 1,
) -> Extraction:
    """Points of the measure with given moments, when they are flat.

    Parameters
    ----------
    basis : MonomialBasis
        Of the moments.
    block : MatrixMap
        The moment matrix.
    moments : numpy.ndarray
        Values.
    order : int
        Order of the relaxation.
    least_order : int, default=1
        Smallest order that the relaxation has.
    half_degree : int, default=1
        Half the largest degree of a constraint, rounded up.

    Returns
    -------
    Extraction
        Points of rank one are the first moments, flat or not.

    References
    ----------
    .. [1] D. Henrion, J.-B. Lasserre. Detecting Global Optimality and Extracting Solutions in GloptiPoly. Positive
       Polynomials in Control, 2005.

    Examples
    --------
    The mean of the point masses at 0 and at 1:

    >>> import numpy as np
    >>> from assay.games.moment_basis import MonomialBasis
    >>> from assay.games.moment_extraction import extract_points
    >>> basis = MonomialBasis([1], 4)
    >>> block = basis.localizing({(0,): 1.0}, 2)
    >>> found = extract_points(basis, block, np.array([1, 0.5, 0.5, 0.5, 0.5]), 2)
    >>> found.ranks, found.flat, np.sort(found.points[:, 0]).round(6).tolist()
    ((1, 2, 2), True, [0.0, 1.0])
    """
    matrix = block.matrix(moments)
    sizes = [basis.count(t) for t in range(order + 1)]
    ranks = tuple(_rank(matrix[:size, :size]) for size in sizes)
    if ranks[-1] == 1:
        return Extraction(ranks, True, _first_moments(basis, moments)[None, :])
    for t in range(max(least_order, half_degree), order + 1):
        if ranks[t] == ranks[t - half_degree]:
            return Extraction(ranks, True, _henrion_lasserre(basis, matrix[: sizes[t], : sizes[t]], ranks[t]))
    return Extraction(ranks, False, np.empty((0, basis.dim)))


def candidate_points(basis: MonomialBasis, moments: Float[np.ndarray, " moments"]) -> Float[np.ndarray, "points dim"]:
    """Starts for a local search from any moments: the mean, and the means given that one action is played.

    When the measure is a mixture of several optima its mean may be none of them; given an action that only some of them
    take, the others are left out.
    """
    eye = np.eye(basis.dim, dtype=np.int64)
    first = _first_moments(basis, moments)
    points = [first]
    for k in np.flatnonzero(first > 1e-3):
        where = basis.positions(eye + eye[k])
        points.append(np.where(where < 0, 0.0, moments[where]) / first[k])
    return np.clip(np.array(points), 0.0, 1.0)


def _first_moments(basis: MonomialBasis, moments: np.ndarray) -> Float[np.ndarray, " dim"]:
    return moments[basis.positions(np.eye(basis.dim, dtype=np.int64))]


def _rank(matrix: np.ndarray) -> int:
    values = np.linalg.eigvalsh(matrix)
    return int(np.count_nonzero(values > RANK_TOL * values[-1]))


def _henrion_lasserre(basis: MonomialBasis, matrix: np.ndarray, rank: int) -> Float[np.ndarray, "points dim"]:
    values, vectors = np.linalg.eigh(matrix)
    factor = vectors[:, -rank:] * np.sqrt(values[-rank:])
    echelon, pivots = _column_echelon(factor)
    nothing = np.empty((0, basis.dim))
    if len(pivots) < rank:
        return nothing
    multiplications = []
    for unit in np.eye(basis.dim, dtype=np.int64):
        where = basis.positions(basis.exponents[pivots] + unit)
        if np.any(where >= len(matrix)):  # the pivots are not of low degree: not flat after all
            return nothing
        multiplications.append(np.where((where < 0)[:, None], 0.0, echelon[where]))
    weights = np.random.default_rng(0).dirichlet(np.ones(basis.dim))
    mixture = sum(w * one for w, one in zip(weights, multiplications, strict=True))
    _, orthogonal = scipy.linalg.schur(mixture)
    return np.column_stack([np.einsum("ij,ik,kj->j", orthogonal, one, orthogonal) for one in multiplications])


def _column_echelon(factor: np.ndarray, tol: float = 1e-4) -> tuple[np.ndarray, Sequence[int]]:
    """Columns combined so that the rows of ``pivots``, the first that are independent, are unit vectors."""
    echelon = factor.copy()
    pivots: list[int] = []
    for row in range(len(echelon)):
        k = len(pivots)
        if k == echelon.shape[1]:
            break
        column = k + int(np.argmax(np.abs(echelon[row, k:])))
        if abs(echelon[row, column]) <= tol:
            continue
        echelon[:, [k, column]] = echelon[:, [column, k]]
        echelon[:, k] /= echelon[row, k]
        others = np.arange(echelon.shape[1]) != k
        echelon[:, others] -= np.outer(echelon[:, k], echelon[row, others])
        pivots.append(row)
    return echelon, pivots
