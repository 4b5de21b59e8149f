r"""Cone programs, and the smooth face of its cone that a slack lies on.

A solution of a cone program sits on the boundary of some of its cones. Close to it the boundary is the zero set of a
smooth function ``h`` as long as the face does not change: the coordinates of a bound that is active, ``|v| - t`` on a
second-order cone, ``y exp(x / y) - z`` on an exponential cone, the Schur complement of the part that vanishes on a
cone of matrices. Everything that first-order differentiation asks of a constraint is asked of such a face: its value,
its tangent, the dual vector that belongs to a multiplier, and how that vector turns when the slack moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int
from numpy import ndarray

__all__ = [
    "ActiveRule",
    "Block",
    "ConeProgram",
    "CurvedFace",
    "ExponentialFace",
    "FaceSet",
    "SecondOrderFace",
    "SemidefiniteFace",
    "find_faces",
    "lorentz_distance",
    "matrix_of",
    "program_residual",
    "vector_of",
]


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
    linear: Float[ndarray, "N"]
    matrix: sp.csr_array
    offset: Float[ndarray, "M"]
    blocks: tuple[Block, ...]

    def slack(self, point: Float[ndarray, "N"]) -> Float[ndarray, "M"]:
        """What has to be in the cones."""
        return self.offset - self.matrix @ point

    def tilted(self, direction: Float[ndarray, "N"]) -> ConeProgram:
        """The program with another linear term."""
        return ConeProgram(self.quadratic, self.linear + direction, self.matrix, self.offset, self.blocks)


def matrix_of(vector: Float[ndarray, "k"]) -> Float[ndarray, "side side"]:
    """Symmetric matrix of a scaled upper triangle."""
    side = int((np.sqrt(8 * vector.size + 1) - 1) / 2 + 0.5)
    columns, rows = np.tril_indices(side)
    matrix = np.zeros((side, side))
    matrix[rows, columns] = vector / np.where(rows == columns, 1.0, np.sqrt(2.0))
    return matrix + np.triu(matrix, 1).T


def vector_of(matrix: Float[ndarray, "side side"]) -> Float[ndarray, "k"]:
    """Inverse of :func:`matrix_of`."""
    columns, rows = np.tril_indices(len(matrix))
    return matrix[rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))


class CurvedFace:
    """A face whose tangent turns; ``rows`` are those of its cone, ``size`` the number of equations."""

    rows: slice
    size: int

    def value(self, slack: Float[ndarray, "k"]) -> Float[ndarray, "size"]:
        """The functions that vanish on the face and are negative inside."""
        raise NotImplementedError

    def tangent(self, slack: Float[ndarray, "k"]) -> Float[ndarray, "size k"]:
        """Minus the derivative of :meth:`value`."""
        raise NotImplementedError

    def dual(self, slack: Float[ndarray, "k"], multiplier: Float[ndarray, "size"]) -> Float[ndarray, "k"]:
        """The dual vector of a multiplier."""
        raise NotImplementedError

    def curvature(self, slack: Float[ndarray, "k"], multiplier: Float[ndarray, "size"]) -> Float[ndarray, "k k"]:
        """Minus the derivative of :meth:`dual` in the slack; positive semidefinite for a multiplier of the cone."""
        raise NotImplementedError

    def multiplier(self, dual: Float[ndarray, "k"]) -> Float[ndarray, "size"]:
        """The multiplier that belongs to a dual vector at the solution."""
        raise NotImplementedError

    def inside(self, slack: Float[ndarray, "k"]) -> bool:
        """Whether the functions are smooth here."""
        raise NotImplementedError


class SecondOrderFace(CurvedFace):
    """The boundary of a second-order cone without its apex: ``|v| - t`` for the slack ``(t, v)``."""

    def __init__(self, rows: slice):
        self.rows, self.size = rows, 1

    def value(self, slack: Float[ndarray, "k"]) -> Float[ndarray, "size"]:
        return np.array([np.linalg.norm(slack[1:]) - slack[0]])

    def tangent(self, slack: Float[ndarray, "k"]) -> Float[ndarray, "size k"]:
        return np.concatenate([[1.0], -slack[1:] / np.linalg.norm(slack[1:])])[None]

    def dual(self, slack: Float[ndarray, "k"], multiplier: Float[ndarray, "size"]) -> Float[ndarray, "k"]:
        return multiplier[0] * self.tangent(slack)[0]

    def curvature(self, slack: Float[ndarray, "k"], multiplier: Float[ndarray, "size"]) -> Float[ndarray, "k k"]:
        length = np.linalg.norm(slack[1:])
        unit = slack[1:] / length
        bent = np.zeros((slack.size, slack.size))
        bent[1:, 1:] = (np.eye(unit.size) - np.outer(unit, unit)) * (multiplier[0] / length)
        return bent

    def multiplier(self, dual: Float[ndarray, "k"]) -> Float[ndarray, "size"]:
        return np.array([dual[0]])

    def inside(self, slack: Float[ndarray, "k"]) -> bool:
        return bool(np.linalg.norm(slack[1:]) > 1e-10)


class ExponentialFace(CurvedFace):
    """The curved boundary of an exponential cone: ``y exp(x / y) - z`` for the slack ``(x, y, z)``, ``y > 0``."""

    def __init__(self, rows: slice):
        self.rows, self.size = rows, 1

    def value(self, slack: Float[ndarray, "k"]) -> Float[ndarray, "size"]:
        x, y, z = slack
        return np.array([y * np.exp(x / y) - z])

    def tangent(self, slack: Float[ndarray, "k"]) -> Float[ndarray, "size k"]:
        x, y, _ = slack
        growth = np.exp(x / y)
        return np.array([[-growth, -growth * (1.0 - x / y), 1.0]])

    def dual(self, slack: Float[ndarray, "k"], multiplier: Float[ndarray, "size"]) -> Float[ndarray, "k"]:
        return multiplier[0] * self.tangent(slack)[0]

    def curvature(self, slack: Float[ndarray, "k"], multiplier: Float[ndarray, "size"]) -> Float[ndarray, "k k"]:
        x, y, _ = slack
        direction = np.array([1.0, -x / y, 0.0])
        return np.outer(direction, direction) * (multiplier[0] * np.exp(x / y) / y)

    def multiplier(self, dual: Float[ndarray, "k"]) -> Float[ndarray, "size"]:
        return np.array([dual[2]])

    def inside(self, slack: Float[ndarray, "k"]) -> bool:
        return bool(slack[1] > 1e-10 and slack[0] / slack[1] < 600.0)


class SemidefiniteFace(CurvedFace):
    r"""Matrices of one rank: the Schur complement of the block that vanishes.

    With ``null`` and ``image`` orthonormal bases of the kernel and the range at the solution, a symmetric matrix
    :math:`S` close to it has the same rank exactly when
    :math:`U'SU - U'SW (W'SW)^{-1} W'SU = 0`.
    """

    def __init__(self, rows: slice, null: Float[ndarray, "side k"], image: Float[ndarray, "side r"]):
        self.rows, self.null, self.image = rows, null, image
        self.size = null.shape[1] * (null.shape[1] + 1) // 2

    def _rotated(self, slack: Float[ndarray, "k"]) -> Float[ndarray, "side kernel"]:
        """Basis of what takes the place of the kernel when the slack has moved."""
        matrix = matrix_of(slack)
        if not self.image.shape[1]:
            return self.null
        within = self.image.T @ matrix @ self.image
        return self.null - self.image @ np.linalg.solve(within, self.image.T @ matrix @ self.null)

    def value(self, slack: Float[ndarray, "k"]) -> Float[ndarray, "size"]:
        return -vector_of(_symmetric(self.null.T @ matrix_of(slack) @ self._rotated(slack)))

    def tangent(self, slack: Float[ndarray, "k"]) -> Float[ndarray, "size k"]:
        basis = self._rotated(slack)
        units = np.eye(self.size)
        return np.array([vector_of(_symmetric(basis @ matrix_of(unit) @ basis.T)) for unit in units])

    def dual(self, slack: Float[ndarray, "k"], multiplier: Float[ndarray, "size"]) -> Float[ndarray, "k"]:
        basis = self._rotated(slack)
        return vector_of(_symmetric(basis @ matrix_of(multiplier) @ basis.T))

    def curvature(self, slack: Float[ndarray, "k"], multiplier: Float[ndarray, "size"]) -> Float[ndarray, "k k"]:
        if not self.image.shape[1]:
            return np.zeros((slack.size, slack.size))
        basis = self._rotated(slack)
        inverse = self.image @ np.linalg.inv(self.image.T @ matrix_of(slack) @ self.image) @ self.image.T
        weight = basis @ matrix_of(multiplier) @ basis.T
        columns = []
        for unit in np.eye(slack.size):
            moved = inverse @ matrix_of(unit) @ weight
            columns.append(vector_of(moved + moved.T))
        return np.array(columns)

    def multiplier(self, dual: Float[ndarray, "k"]) -> Float[ndarray, "size"]:
        return vector_of(_symmetric(self.null.T @ matrix_of(dual) @ self.null))

    def inside(self, slack: Float[ndarray, "k"]) -> bool:
        if not self.image.shape[1]:
            return True
        return bool(np.linalg.eigvalsh(self.image.T @ matrix_of(slack) @ self.image)[0] > 1e-12)


def _symmetric(matrix: Float[ndarray, "side side"]) -> Float[ndarray, "side side"]:
    return 0.5 * (matrix + matrix.T)


@dataclass(frozen=True)
class ActiveRule:
    """When a constraint with a slack and a multiplier, both in units of scaled rows, counts as active.

    Parameters
    ----------
    mode : {"compare", "threshold"}
        The multiplier exceeds the slack; or the slack is at most ``slack_tol`` and the multiplier at least
        ``dual_cutoff``.
    slack_tol, dual_cutoff : float
        For ``"threshold"``.
    """

    mode: str = "compare"
    slack_tol: float = 1e-8
    dual_cutoff: float = 1e-3

    def active(self, slack: Float[ndarray, "*k"], dual: Float[ndarray, "*k"]) -> Bool[ndarray, "*k"]:
        """Which are active."""
        if self.mode == "compare":
            return dual > slack
        return (slack <= self.slack_tol) & (dual >= self.dual_cutoff)


@dataclass(frozen=True, eq=False)
class FaceSet:
    """The faces of all cones at one solution.

    Parameters
    ----------
    flat : numpy.ndarray of shape (e,)
        Rows that are equations: equalities, active bounds, cones at their apex.
    curved : tuple of CurvedFace
        The others that are active.
    margin : float
        Smallest of all ``max(slack, multiplier)``: 0 without strict complementarity.
    known : bool
        Whether every cone has a smooth face here.
    capped : bool
        Whether active bounds were left out, since there were more equations than unknowns.
    """

    flat: Int[ndarray, "e"]
    curved: tuple[CurvedFace, ...]
    margin: float
    known: bool
    capped: bool = False

    @property
    def size(self) -> int:
        """Number of equations."""
        return self.flat.size + sum(face.size for face in self.curved)


def _scale(program: ConeProgram, block: Block) -> float:
    norm = float(np.sqrt(program.matrix[block.rows].power(2).sum() / (block.stop - block.start)))
    return norm if norm > 0 else 1.0


def find_faces(
    program: ConeProgram, slack: Float[ndarray, "M"], dual: Float[ndarray, "M"], rule: ActiveRule
) -> FaceSet:
    """Decide on which face of its cone every slack lies.

    Parameters
    ----------
    program : ConeProgram
        For the scales of its rows and its equalities.
    slack, dual : numpy.ndarray of shape (M,)
        Primal and dual solution, to the accuracy of the solver.
    rule : ActiveRule
        What decides.

    Returns
    -------
    FaceSet
    """
    flat: list[Int[ndarray, "..."]] = []
    curved: list[CurvedFace] = []
    margins, known, capped = [np.inf], True, False
    row_norms = np.sqrt(program.matrix.power(2).sum(axis=1))
    row_norms[row_norms == 0] = 1.0
    bounds: list[Int[ndarray, "..."]] = []
    for block in program.blocks:
        rows, indices = block.rows, np.arange(block.start, block.stop)
        s, d = slack[rows], dual[rows]
        if block.kind == "zero":
            flat.append(indices)
            continue
        if block.kind == "nonneg":
            own, weight = s / row_norms[rows], d * row_norms[rows]
            margins.append(float(np.maximum(own, weight).min(initial=np.inf)))
            bounds.append(indices[rule.active(own, weight)])
            continue
        scale = _scale(program, block)
        s, d = s / scale, d * scale
        if block.kind == "soc":
            if s.size == 1:
                margins.append(float(max(s[0], d[0])))
                if rule.active(s, d)[0]:
                    bounds.append(indices)
                continue
            lengths = np.linalg.norm(s[1:]), np.linalg.norm(d[1:])
            pairs = np.array([[s[0] - lengths[0], d[0] + lengths[1]], [s[0] + lengths[0], d[0] - lengths[1]]])
            margins.append(float(pairs.max(axis=1).min()))
            boundary, apex = rule.active(pairs[:, 0], pairs[:, 1])
            if boundary and apex:
                flat.append(indices)
            elif boundary:
                curved.append(SecondOrderFace(rows))
        elif block.kind == "psd":
            values, vectors = np.linalg.eigh(matrix_of(s - d))
            margins.append(float(np.abs(values).min()))
            vanishing = rule.active(np.maximum(values, 0.0), np.maximum(-values, 0.0))
            if vanishing.any():
                curved.append(SemidefiniteFace(rows, vectors[:, vanishing], vectors[:, ~vanishing]))
        else:
            face = ExponentialFace(rows)
            if not face.inside(slack[rows]):
                known = False
                continue
            gap = -float(face.value(slack[rows])[0]) / scale
            margins.append(max(gap, float(d[2])))
            if rule.active(np.array([gap]), d[2:])[0]:
                curved.append(face)
    candidates = np.concatenate([*bounds, np.zeros(0, dtype=int)]).astype(int)
    n_equations = sum(part.size for part in flat) + sum(face.size for face in curved)
    room = max(program.linear.size - n_equations, 0)
    if candidates.size > room:
        strongest = np.argsort(-(dual * row_norms)[candidates], kind="stable")[:room]
        candidates, capped = np.sort(candidates[strongest]), True
    flat.append(candidates)
    return FaceSet(np.sort(np.concatenate(flat)), tuple(curved), min(margins), known, capped)


def lorentz_distance(vector: Float[ndarray, "k"]) -> float:
    """How far the first entry is below the norm of the others, at least 0."""
    return max(float(np.linalg.norm(vector[1:]) - vector[0]), 0.0)


def _violations(
    program: ConeProgram, slack: Float[ndarray, "M"], dual: Float[ndarray, "M"]
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
            yield lorentz_distance(s), lorentz_distance(d)
        elif block.kind == "psd":
            yield tuple(max(-float(np.linalg.eigvalsh(matrix_of(part))[0]), 0.0) for part in (s, d))
        else:
            yield _outside_exponential(s), _outside_dual_exponential(d)


def _outside_exponential(s: Float[ndarray, "three"]) -> float:
    x, y, z = s
    if y > 1e-12:
        return max(float(y * np.exp(min(x / y, 700.0)) - z), 0.0)
    return max(float(x), float(-y), float(-z), 0.0)


def _outside_dual_exponential(d: Float[ndarray, "three"]) -> float:
    u, v, w = d
    if u < -1e-12:
        return max(float(-u * np.exp(min(v / u - 1.0, 700.0)) - w), 0.0)
    return max(float(u), float(-v), float(-w), 0.0)


def program_residual(
    program: ConeProgram, point: Float[ndarray, "N"], dual: Float[ndarray, "M"]
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
