r"""Cone programs: the form in which every convex problem of a layer is solved, and how far a pair is from optimal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray

__all__ = ["Block", "ConeProgram", "matrix_of", "program_residual", "vector_of"]


@dataclass(frozen=True)
class Block:
    """Consecutive rows that belong to one cone: ``zero``, ``nonneg``, ``soc``, ``psd`` or ``exp``."""

    kind: str
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        """The rows."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, eq=False)
class ConeProgram:
    r"""Minimise :math:`\frac12 z'Pz + q'z` subject to :math:`b - Az` in a product of cones.

    Parameters
    ----------
    quadratic : scipy.sparse.csc_array of shape (N, N)
        Symmetric, positive semidefinite.
    linear : numpy.ndarray of shape (N,)
        Linear term.
    matrix : scipy.sparse.csr_array of shape (M, N)
        Constraint matrix.
    offset : numpy.ndarray of shape (M,)
        Right-hand side.
    blocks : tuple of Block
        Cones, in the order of the rows. Matrices are upper triangles by columns, off-diagonal entries times
        the root of two.
    scale : float, default=1.0
        What the objective of the user's has been divided by.
    """

    quadratic: sp.csc_array
    linear: Float[ndarray, " N"]
    matrix: sp.csr_array
    offset: Float[ndarray, " M"]
    blocks: tuple[Block, ...]
    scale: float = 1.0

    @cached_property
    def row_norms(self) -> Float[ndarray, " M"]:
        """Norms of the rows, 1 for a row of zeros."""
        norms = np.sqrt(self.matrix.power(2).sum(axis=1))
        return np.where(norms > 0, norms, 1.0)

    @cached_property
    def block_norms(self) -> list[float]:
        """Root mean squares of the norms of the rows of every cone, 1 where all vanish."""
        squares = np.concatenate([[0.0], np.cumsum(self.matrix.power(2).sum(axis=1))])
        norms = [float(np.sqrt((squares[b.stop] - squares[b.start]) / (b.stop - b.start))) for b in self.blocks]
        return [norm if norm > 0 else 1.0 for norm in norms]

    def slack(self, point: Float[ndarray, " N"]) -> Float[ndarray, " M"]:
        """What has to be in the cones."""
        return self.offset - self.matrix @ point

    def tilted(self, direction: Float[ndarray, " N"]) -> ConeProgram:
        """The program with another linear term."""
        return replace(self, linear=self.linear + direction)

    def normalised(self) -> ConeProgram:
        """The program with an objective of size 1, by its largest quadratic or its middle linear coefficient."""
        linear = np.abs(self.linear[self.linear != 0])
        middle = float(np.median(linear)) if linear.size else 0.0
        size = max(float(np.abs(self.quadratic.data).max(initial=0.0)), middle) or 1.0
        return replace(self, quadratic=self.quadratic / size, linear=self.linear / size, scale=self.scale * size)


@lru_cache(maxsize=64)
def _triangle(side: int) -> tuple[Int[ndarray, " k"], Int[ndarray, " k"], Float[ndarray, " k"]]:
    """Rows and columns of an upper triangle by columns, and what its entries are multiplied by."""
    columns, rows = np.tril_indices(side)
    return rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0))


def matrix_of(vector: Float[ndarray, "*batch k"]) -> Float[ndarray, "*batch side side"]:
    """Symmetric matrix of a scaled upper triangle, or of several."""
    side = int((np.sqrt(8 * vector.shape[-1] + 1) - 1) / 2 + 0.5)
    rows, columns, weights = _triangle(side)
    matrix = np.empty((*vector.shape[:-1], side, side))
    matrix[..., rows, columns] = matrix[..., columns, rows] = vector / weights
    return matrix


def vector_of(matrix: Float[ndarray, "*batch side side"]) -> Float[ndarray, "*batch k"]:
    """Inverse of :func:`matrix_of`."""
    rows, columns, weights = _triangle(matrix.shape[-1])
    return matrix[..., rows, columns] * weights


def _lorentz_distance(vector: Float[ndarray, " k"]) -> float:
    """How far the first entry is below the norm of the others, at least 0."""
    return max(float(np.linalg.norm(vector[1:]) - vector[0]), 0.0)


def _lorentz_projection(vector: Float[ndarray, " k"]) -> Float[ndarray, " k"]:
    length = float(np.linalg.norm(vector[1:]))
    if length <= abs(vector[0]):
        return vector if vector[0] >= 0 else np.zeros(vector.size)
    unit = np.concatenate([[1.0], vector[1:] / length])
    return 0.5 * (vector[0] + length) * unit


def _lowest_eigenvalue(vector: Float[ndarray, " k"]) -> float:
    return float(np.linalg.eigvalsh(matrix_of(vector))[0])


def _semidefinite_projection(vector: Float[ndarray, " k"]) -> Float[ndarray, " k"]:
    values, vectors = np.linalg.eigh(matrix_of(vector))
    return vector_of(vectors * np.maximum(values, 0.0) @ vectors.T)


def _outside_exponential(s: Float[ndarray, " three"]) -> float:
    x, y, z = s
    if y > 1e-12:
        return max(float(y * np.exp(min(x / y, 700.0)) - z), 0.0)
    return max(float(x), float(-y), float(-z), 0.0)


def _outside_dual_exponential(d: Float[ndarray, " three"]) -> float:
    u, v, w = d
    if u < -1e-12:
        return max(float(-u * np.exp(min(v / u - 1.0, 700.0)) - w), 0.0)
    return max(float(u), float(-v), float(-w), 0.0)


def _misfit(kind: str, s: Float[ndarray, " k"], d: Float[ndarray, " k"]) -> tuple[float, float]:
    """How far two vectors are from complementary, and from the cone and its dual."""
    if kind == "nonneg":
        return float(np.abs(np.minimum(s, d)).max()), max(-float(s.min()), -float(d.min()), 0.0)
    if kind == "soc":
        return (
            float(np.abs(s - _lorentz_projection(s - d)).max()),
            max(_lorentz_distance(s), _lorentz_distance(d)),
        )
    if kind == "psd":
        return (
            float(np.abs(s - _semidefinite_projection(s - d)).max()),
            max(-_lowest_eigenvalue(s), -_lowest_eigenvalue(d), 0.0),
        )
    return abs(float(s @ d)), max(_outside_exponential(s), _outside_dual_exponential(d))


@np.errstate(over="ignore", invalid="ignore")  # what is no number is never accepted
def program_residual(
    program: ConeProgram, point: Float[ndarray, " N"], dual: Float[ndarray, " M"]
) -> tuple[float, float]:
    """How far a pair is from optimal: the largest violation of stationarity and complementarity, and of the cones.

    Every violation is relative to the terms that it is a difference of, in units of rows of norm 1. A pair of vectors
    is complementary where the first is the projection of their difference.
    """
    slack = program.slack(point)
    terms = program.quadratic @ point, program.linear, program.matrix.T @ dual
    largest = np.maximum.reduce([np.abs(term) for term in terms])
    offset = np.abs(program.offset)
    farthest = float(np.abs(point).max(initial=0.0)), float((offset / program.row_norms).max(initial=0.0))
    reach, force = _floor(farthest[0] or farthest[1]), _floor(float(largest.max(initial=0.0)))
    worst, outside = float(np.abs(sum(terms) / np.maximum(largest, force)).max(initial=0.0)), 0.0
    for block, norm in zip(program.blocks, program.block_norms, strict=True):
        s, d, size = slack[block.rows], dual[block.rows], offset[block.rows] + np.abs(slack[block.rows])
        if block.kind in ("zero", "nonneg"):
            norms: Any = program.row_norms[block.rows]
        else:
            norms, size = norm, size.max()
        s, d = s / np.maximum(size, norms * reach), d * (norms / force)
        if block.kind == "zero":
            outside = max(outside, float(np.abs(s).max()))
        else:
            gap, violation = _misfit(block.kind, s, d)
            worst, outside = max(worst, gap), max(outside, violation)
    return worst, outside


def _floor(size: float) -> float:
    """What small terms are compared with: 1 or the size of all of them, unless that is huge."""
    return max(min(size, 1.0), 1e-6 * size) or 1.0
