r"""The smooth face of its cone that a slack lies on.

A solution of a cone program sits on the boundary of some of its cones. Close to it the boundary is the zero set of a
smooth function ``h`` as long as the face does not change: the coordinates of a bound that is active, ``|v| - t`` on a
second-order cone, ``y exp(x / y) - z`` on an exponential cone, the Schur complement of the part that vanishes on a
cone of matrices. Everything that first-order differentiation asks of a constraint is asked of such a face: its value,
its tangent, the dual vector that belongs to a multiplier, and how that vector turns when the slack moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from assay.bilevel.ffo_cones import ConeProgram, matrix_of, vector_of

__all__ = [
    "ActiveRule",
    "CurvedFace",
    "ExponentialFace",
    "FaceSet",
    "SecondOrderFace",
    "SemidefiniteFace",
    "find_faces",
    "strongest_independent",
]


class CurvedFace:
    """A face whose tangent turns; ``rows`` are those of its cone, ``size`` the number of equations."""

    rows: slice
    size: int

    def value(self, slack: Float[ndarray, " k"]) -> Float[ndarray, " size"]:
        """The functions that vanish on the face and are negative inside."""
        raise NotImplementedError

    def tangent(self, slack: Float[ndarray, " k"]) -> Float[ndarray, "size k"]:
        """Minus the derivative of :meth:`value`."""
        raise NotImplementedError

    def dual(self, slack: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]) -> Float[ndarray, " k"]:
        """The dual vector of a multiplier."""
        raise NotImplementedError

    def curvature(self, slack: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]) -> Float[ndarray, "k k"]:
        """Minus the derivative of :meth:`dual` in the slack; positive semidefinite for a multiplier of the cone."""
        raise NotImplementedError

    def turn(
        self, slack: Float[ndarray, " k"], moved: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]
    ) -> Float[ndarray, " k"]:
        """Change of :meth:`dual` when the slack moves, to relative accuracy however small the move."""
        raise NotImplementedError

    def multiplier(self, dual: Float[ndarray, " k"]) -> Float[ndarray, " size"]:
        """The multiplier that belongs to a dual vector at the solution."""
        raise NotImplementedError

    def inside(self, slack: Float[ndarray, " k"]) -> bool:
        """Whether the functions are smooth here."""
        raise NotImplementedError


class SecondOrderFace(CurvedFace):
    """The boundary of a second-order cone without its apex: ``|v| - t`` for the slack ``(t, v)``."""

    def __init__(self, rows: slice):
        self.rows, self.size = rows, 1

    def value(self, slack: Float[ndarray, " k"]) -> Float[ndarray, " size"]:
        """The functions that vanish on the face."""
        return np.array([np.linalg.norm(slack[1:]) - slack[0]])

    def tangent(self, slack: Float[ndarray, " k"]) -> Float[ndarray, "size k"]:
        """Minus their derivative."""
        return np.concatenate([[1.0], -slack[1:] / np.linalg.norm(slack[1:])])[None]

    def dual(self, slack: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]) -> Float[ndarray, " k"]:
        """The dual vector of a multiplier."""
        return multiplier[0] * self.tangent(slack)[0]

    def curvature(self, slack: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]) -> Float[ndarray, "k k"]:
        """Minus the derivative of the dual vector."""
        length = np.linalg.norm(slack[1:])
        unit = slack[1:] / length
        bent = np.zeros((slack.size, slack.size))
        bent[1:, 1:] = (np.eye(unit.size) - np.outer(unit, unit)) * (multiplier[0] / length)
        return bent

    def turn(
        self, slack: Float[ndarray, " k"], moved: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]
    ) -> Float[ndarray, " k"]:
        """Change of the dual vector."""
        before, after = np.linalg.norm(slack[1:]), np.linalg.norm(slack[1:] + moved[1:])
        longer = moved[1:] @ (2.0 * slack[1:] + moved[1:]) / (before + after)
        return np.concatenate([[0.0], (slack[1:] * (longer / before) - moved[1:]) * (multiplier[0] / after)])

    def multiplier(self, dual: Float[ndarray, " k"]) -> Float[ndarray, " size"]:
        """The multiplier of a dual vector."""
        return np.array([dual[0]])

    def inside(self, slack: Float[ndarray, " k"]) -> bool:
        """Whether the functions are smooth here."""
        return bool(np.linalg.norm(slack[1:]) > 1e-10)


class ExponentialFace(CurvedFace):
    """The curved boundary of an exponential cone: ``y exp(x / y) - z`` for the slack ``(x, y, z)``, ``y > 0``."""

    def __init__(self, rows: slice):
        self.rows, self.size = rows, 1

    def value(self, slack: Float[ndarray, " k"]) -> Float[ndarray, " size"]:
        """The functions that vanish on the face."""
        x, y, z = slack
        return np.array([y * np.exp(x / y) - z])

    def tangent(self, slack: Float[ndarray, " k"]) -> Float[ndarray, "size k"]:
        """Minus their derivative."""
        x, y, _ = slack
        growth = np.exp(x / y)
        return np.array([[-growth, -growth * (1.0 - x / y), 1.0]])

    def dual(self, slack: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]) -> Float[ndarray, " k"]:
        """The dual vector of a multiplier."""
        return multiplier[0] * self.tangent(slack)[0]

    def curvature(self, slack: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]) -> Float[ndarray, "k k"]:
        """Minus the derivative of the dual vector."""
        x, y, _ = slack
        direction = np.array([1.0, -x / y, 0.0])
        return np.outer(direction, direction) * (multiplier[0] * np.exp(x / y) / y)

    def turn(
        self, slack: Float[ndarray, " k"], moved: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]
    ) -> Float[ndarray, " k"]:
        """Change of the dual vector."""
        ratio = slack[0] / slack[1]
        change = (moved[0] - ratio * moved[1]) / (slack[1] + moved[1])
        before, growth = np.exp(ratio), np.exp(ratio) * np.expm1(change)
        return multiplier[0] * np.array([-growth, (before + growth) * change - growth * (1.0 - ratio), 0.0])

    def multiplier(self, dual: Float[ndarray, " k"]) -> Float[ndarray, " size"]:
        """The multiplier of a dual vector."""
        return np.array([dual[2]])

    def inside(self, slack: Float[ndarray, " k"]) -> bool:
        """Whether the functions are smooth here."""
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

    def _rotated(self, slack: Float[ndarray, " k"]) -> Float[ndarray, "side kernel"]:
        """Basis of what takes the place of the kernel when the slack has moved."""
        matrix = matrix_of(slack)
        if not self.image.shape[1]:
            return self.null
        within = self.image.T @ matrix @ self.image
        return self.null - self.image @ np.linalg.solve(within, self.image.T @ matrix @ self.null)

    def value(self, slack: Float[ndarray, " k"]) -> Float[ndarray, " size"]:
        """The functions that vanish on the face."""
        return -vector_of(_symmetric(self.null.T @ matrix_of(slack) @ self._rotated(slack)))

    def tangent(self, slack: Float[ndarray, " k"]) -> Float[ndarray, "size k"]:
        """Minus their derivative."""
        basis = self._rotated(slack)
        return vector_of(_symmetric(basis @ matrix_of(np.eye(self.size)) @ basis.T))

    def dual(self, slack: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]) -> Float[ndarray, " k"]:
        """The dual vector of a multiplier."""
        basis = self._rotated(slack)
        return vector_of(_symmetric(basis @ matrix_of(multiplier) @ basis.T))

    def curvature(self, slack: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]) -> Float[ndarray, "k k"]:
        """Minus the derivative of the dual vector."""
        if not self.image.shape[1]:
            return np.zeros((slack.size, slack.size))
        basis = self._rotated(slack)
        inverse = self.image @ np.linalg.inv(self.image.T @ matrix_of(slack) @ self.image) @ self.image.T
        weight = basis @ matrix_of(multiplier) @ basis.T
        moved = inverse @ matrix_of(np.eye(slack.size)) @ weight
        return vector_of(moved + moved.mT)

    def turn(
        self, slack: Float[ndarray, " k"], moved: Float[ndarray, " k"], multiplier: Float[ndarray, " size"]
    ) -> Float[ndarray, " k"]:
        """Change of the dual vector."""
        if not self.image.shape[1]:
            return np.zeros(slack.size)
        basis, weight = self._rotated(slack), matrix_of(multiplier)
        within = self.image.T @ matrix_of(slack + moved) @ self.image
        change = -self.image @ np.linalg.solve(within, self.image.T @ matrix_of(moved) @ basis)
        mixed = change @ weight @ basis.T
        return vector_of(_symmetric(mixed + mixed.T + change @ weight @ change.T))

    def multiplier(self, dual: Float[ndarray, " k"]) -> Float[ndarray, " size"]:
        """The multiplier of a dual vector."""
        return vector_of(_symmetric(self.null.T @ matrix_of(dual) @ self.null))

    def inside(self, slack: Float[ndarray, " k"]) -> bool:
        """Whether the functions are smooth here."""
        if not self.image.shape[1]:
            return True
        return bool(np.linalg.eigvalsh(self.image.T @ matrix_of(slack) @ self.image)[0] > 1e-12)


def _symmetric(matrix: Float[ndarray, "*batch side side"]) -> Float[ndarray, "*batch side side"]:
    return 0.5 * (matrix + matrix.mT)


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

    flat: Int[ndarray, " e"]
    curved: tuple[CurvedFace, ...]
    margin: float
    known: bool
    capped: bool = False

    @property
    def size(self) -> int:
        """Number of equations."""
        return self.flat.size + sum(face.size for face in self.curved)

    def same(self, other: FaceSet) -> bool:
        """Whether another set has the same equations."""
        pairs = [[(face.rows, face.size) for face in faces.curved] for faces in (self, other)]
        return pairs[0] == pairs[1] and np.array_equal(self.flat, other.flat)


def strongest_independent(
    rows: Float[ndarray, "all n"], n_fixed: int, strength: Float[ndarray, " k"]
) -> Int[ndarray, " kept"]:
    """Which rows after some fixed ones to keep: those that are independent of the fixed and of stronger ones."""
    order = np.argsort(-strength, kind="stable")
    arranged = np.vstack([rows[:n_fixed], rows[n_fixed:][order]])
    norms = np.linalg.norm(arranged, axis=1, keepdims=True)
    basis = np.zeros((0, rows.shape[1]))
    kept = []
    for place, row in enumerate(arranged / np.where(norms > 0, norms, 1.0)):
        for _ in range(2):  # the second pass takes out what rounding has left
            row = row - basis.T @ (basis @ row)
        length = float(np.linalg.norm(row))
        if length > 1e-9:
            basis = np.vstack([basis, row / length])
            if place >= n_fixed:
                kept.append(order[place - n_fixed])
    return np.sort(np.array(kept, dtype=int))


@np.errstate(over="ignore", invalid="ignore")  # what is no number is never accepted
def find_faces(
    program: ConeProgram, slack: Float[ndarray, " M"], dual: Float[ndarray, " M"], rule: ActiveRule
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
    flat: list[Int[ndarray, " ..."]] = []
    curved: list[CurvedFace] = []
    margins, known, capped = [np.inf], True, False
    row_norms = program.row_norms
    bounds: list[Int[ndarray, " ..."]] = []
    for block, scale in zip(program.blocks, program.block_norms, strict=True):
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
            if not face.inside(slack[rows]) or s[0] < -30.0 * s[1]:
                # the flat face y = 0, x < 0, z > 0, whose dual vector has its second entry only
                interior = float(min(-s[0], s[2]))
                margins.append(min(interior, float(max(s[1], d[1]))))
                known = known and interior > 1e-6
                if rule.active(s[1:2], d[1:2])[0]:
                    flat.append(indices[1:2])
                continue
            gap = -float(face.value(slack[rows])[0]) / scale
            margins.append(max(gap, float(d[2])))
            if rule.active(np.array([gap]), d[2:])[0]:
                curved.append(face)
    candidates = np.concatenate([*bounds, np.zeros(0, dtype=int)]).astype(int)
    n_equations = sum(part.size for part in flat) + sum(face.size for face in curved)
    if candidates.size + n_equations > program.linear.size:
        fixed = [program.matrix[part] for part in flat]
        smooth = [face for face in curved if face.inside(slack[face.rows])]
        fixed += [sp.csr_array(face.tangent(slack[face.rows]) @ program.matrix[face.rows]) for face in smooth]
        rows = np.vstack([part.toarray() for part in (*fixed, program.matrix[candidates])])
        n_equations = len(rows) - candidates.size
        kept = strongest_independent(rows, n_equations, (dual * row_norms)[candidates])
        candidates, capped = candidates[kept], kept.size < candidates.size
    flat.append(candidates)
    return FaceSet(np.sort(np.concatenate(flat)), tuple(curved), min(margins), known, capped)
