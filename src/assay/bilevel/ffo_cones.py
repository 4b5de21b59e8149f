r"""Cone programs: the form in which every convex problem of a layer is solved, and how far a pair is from optimal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
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
    """

    quadratic: sp.csc_array
    linear: Float[ndarray, " N"]
    matrix: sp.csr_array
    offset: Float[ndarray, " M"]
    blocks: tuple[Block, ...]

    def slack(self, point: Float[ndarray, " N"]) -> Float[ndarray, " M"]:
        """What has to be in the cones."""
        return self.offset - self.matrix @ point

    def tilted(self, direction: Float[ndarray, " N"]) -> ConeProgram:
        """The program with another linear term."""
        return ConeProgram(self.quadratic, self.linear + direction, self.matrix, self.offset, self.blocks)


def matrix_of(vector: Float[ndarray, " k"]) -> Float[ndarray, "side side"]:
    """Symmetric matrix of a scaled upper triangle."""
    side = int((np.sqrt(8 * vector.size + 1) - 1) / 2 + 0.5)
    columns, rows = np.tril_indices(side)
    matrix = np.zeros((side, side))
    matrix[rows, columns] = vector / np.where(rows == columns, 1.0, np.sqrt(2.0))
    return matrix + np.triu(matrix, 1).T


def vector_of(matrix: Float[ndarray, "side side"]) -> Float[ndarray, " k"]:
    """Inverse of :func:`matrix_of`."""
    columns, rows = np.tril_indices(len(matrix))
    return matrix[rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))


def _lorentz_distance(vector: Float[ndarray, " k"]) -> float:
    """How far the first entry is below the norm of the others, at least 0."""
    return max(float(np.linalg.norm(vector[1:]) - vector[0]), 0.0)


def _violations(
    program: ConeProgram, slack: Float[ndarray, " M"], dual: Float[ndarray, " M"]
) -> Iterator[tuple[float, float]]:
    """By cone: how far the slack is outside, and how far the dual vector is outside the dual cone."""
    for block in program.blocks:
        s, d = slack[block.rows], dual[block.rows]
        if not s.size:
            continue
        if block.kind == "zero":
            yield float(np.abs(s).max()), 0.0
        elif block.kind == "nonneg":
            yield max(float(-s.min()), 0.0), max(float(-d.min()), 0.0)
        elif block.kind == "soc":
            yield _lorentz_distance(s), _lorentz_distance(d)
        elif block.kind == "psd":
            yield tuple(max(-float(np.linalg.eigvalsh(matrix_of(part))[0]), 0.0) for part in (s, d))
        else:
            yield _outside_exponential(s), _outside_dual_exponential(d)


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


def program_residual(
    program: ConeProgram, point: Float[ndarray, " N"], dual: Float[ndarray, " M"]
) -> tuple[float, float]:
    """How far a pair is from optimal: the largest violation of stationarity and complementarity, and of the cones.

    Both are relative to the size of the terms that they are differences of.
    """
    slack = program.slack(point)
    pieces = (program.quadratic @ point, program.linear, program.matrix.T @ dual)
    size = 1.0 + max(float(np.abs(piece).max(initial=0.0)) for piece in pieces)
    stationarity = float(np.abs(sum(pieces)).max(initial=0.0)) / size
    reach = 1.0 + float(np.abs(program.offset).max(initial=0.0)) + float(np.abs(point).max(initial=0.0))
    weight = 1.0 + float(np.abs(dual).max(initial=0.0))
    outside = [(primal / reach, other / weight) for primal, other in _violations(program, slack, dual)]
    gap = abs(float(slack @ dual)) / (reach * weight)
    violation = max((max(pair) for pair in outside), default=0.0)
    return max(stationarity, gap), violation
