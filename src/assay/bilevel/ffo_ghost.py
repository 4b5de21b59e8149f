r"""The ghost problem: the inner problem with frozen duals, restricted to the tangent of its active constraints.

At a solution the Lagrangian with the duals held fixed has the same first and second derivatives along the active
constraints as the problem itself. Minimising it plus ``delta`` times the upstream gradient, over the tangent plane, is
therefore one more solve of a simpler problem, with equations only, and the move of its minimiser divided by ``delta``
is all that a backward pass needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg
from jaxtyping import Float
from numpy import ndarray

from assay.bilevel.ffo_cones import ConeProgram
from assay.bilevel.ffo_faces import FaceSet

__all__ = ["Ghost", "GhostSystem", "Move", "NotUniqueError", "dense_move"]

# Below this size, or above this density, a dense factorisation is faster than a sparse one.
_SMALL, _DENSITY = 60, 0.15
# By how much changes may deviate from linear ones, relative to them, with one side and with both.
_BENT = 0.1, 0.02


class NotUniqueError(ValueError):
    """The upstream gradient has a component along which the solution is not unique."""


class GhostSystem:
    """The symmetric system of a quadratic form and equations, factorised with a small shift.

    Rows and columns are scaled so that their largest entries are about 1. The shift makes the system invertible
    whatever the rank of the equations; refinement takes it out again, and finds a solution whenever there is one.
    """

    def __init__(self, form: sp.sparray, equations: sp.sparray):
        n, e = form.shape[0], equations.shape[0]
        matrix = (sp.block_array([[form, equations.T], [equations, None]]) if e else form).tocoo()
        self._scales = _equilibrating(matrix)
        rows, columns = matrix.coords
        entries = matrix.data * self._scales[rows] * self._scales[columns]
        self._matrix = sp.csr_array((entries, (rows, columns)), shape=matrix.shape)
        shift = np.concatenate([np.full(n, 1e-9), np.full(e, -1e-9)])
        if n + e <= _SMALL or matrix.nnz > _DENSITY * (n + e) ** 2:
            shifted = self._matrix.toarray()
            shifted[np.diag_indices(n + e)] += shift
            factor = scipy.linalg.lu_factor(shifted, check_finite=False)
            self._solve = lambda right: scipy.linalg.lu_solve(factor, right, check_finite=False)
        else:
            shifted = (self._matrix + sp.diags_array(shift)).tocsc()
            self._solve = sp.linalg.splu(shifted, permc_spec="COLAMD").solve

    def solve(self, right: Float[ndarray, " size"], steps: int = 30) -> tuple[Float[ndarray, " size"], float]:
        """A solution and its relative residual, refined until that is at rounding level or no longer falls."""
        right = right * self._scales
        found = self._solve(right)
        size = float(np.abs(right).max(initial=0.0)) or 1.0
        best, least = found, np.inf
        for _ in range(steps):
            residual = right - self._matrix @ found
            worst = float(np.abs(residual).max(initial=0.0))
            if worst < least:
                best, least = found, worst
            elif not worst <= 4.0 * least:
                break
            if worst <= 1e-15 * size:
                break
            found = found + self._solve(residual)
        return best * self._scales, least / size


def _assembled(places: list[tuple[ndarray, ndarray, ndarray]], shape: tuple[int, int]) -> sp.csr_array:
    """A sparse matrix of several dense blocks, each as rows, columns and entries."""
    rows, columns, entries = (np.concatenate(parts) for parts in zip(*places, strict=True))
    return sp.csr_array((entries, (rows, columns)), shape=shape)


def _equilibrating(matrix: sp.coo_array, passes: int = 4) -> Float[ndarray, " size"]:
    """Scales of rows and columns of a symmetric matrix after which their largest entries are about 1."""
    scales, entries = np.ones(matrix.shape[0]), np.abs(matrix.data)
    rows, columns = matrix.coords
    for _ in range(passes):
        largest = np.zeros(scales.size)
        np.maximum.at(largest, rows, entries * scales[rows] * scales[columns])
        scales /= np.sqrt(np.where(largest > 0, largest, 1.0))
    return scales


@dataclass(frozen=True, eq=False)
class Move:
    """Minimiser of one perturbed ghost problem.

    Parameters
    ----------
    delta : float
        Size of the perturbation; negative for the other side.
    step : numpy.ndarray of shape (N,)
        How far the minimiser moved.
    multipliers : numpy.ndarray of shape (M,)
        Dual vector of the equations, by row.
    turn : numpy.ndarray of shape (M,)
        By how much the frozen dual turned as the slack moved along curved faces.
    """

    delta: float
    step: Float[ndarray, " N"]
    multipliers: Float[ndarray, " M"]
    turn: Float[ndarray, " M"]

    def times(self, scale: float) -> Move:
        """The same for an objective so many times as large."""
        return replace(self, multipliers=self.multipliers * scale, turn=self.turn * scale)


@dataclass(eq=False)
class Ghost:
    """The ghost problem at one solution.

    Parameters
    ----------
    program : ConeProgram
        The inner problem.
    point, dual : numpy.ndarray of shape (N,) and (M,)
        Its solution.
    faces : FaceSet
        Active constraints.
    """

    program: ConeProgram
    point: Float[ndarray, " N"]
    dual: Float[ndarray, " M"]
    faces: FaceSet
    _system: GhostSystem | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.slack = self.program.slack(self.point)
        self.frozen = [face.multiplier(self.dual[face.rows]) for face in self.faces.curved]

    def equations(self, slack: Float[ndarray, " M"]) -> sp.csr_array:
        """Rows of the tangent plane."""
        flat = self.faces.flat
        places, start = [(np.arange(flat.size), flat, np.ones(flat.size))], flat.size
        for face in self.faces.curved:
            tangent = face.tangent(slack[face.rows])
            rows, columns = np.indices(tangent.shape)
            places.append((start + rows.ravel(), face.rows.start + columns.ravel(), tangent.ravel()))
            start += face.size
        return sp.csr_array(_assembled(places, (start, slack.size)) @ self.program.matrix)

    def form(self, slack: Float[ndarray, " M"], multipliers: list[Float[ndarray, " ..."]]) -> sp.csc_array:
        """Second derivative of the Lagrangian with these multipliers of the curved faces."""
        places = []
        for face, multiplier in zip(self.faces.curved, multipliers, strict=True):
            bent = face.curvature(slack[face.rows], multiplier)
            rows, columns = np.indices(bent.shape) + face.rows.start
            places.append((rows.ravel(), columns.ravel(), bent.ravel()))
        if not places:
            return self.program.quadratic
        matrix = self.program.matrix
        return sp.csc_array(self.program.quadratic + matrix.T @ (_assembled(places, (slack.size, slack.size)) @ matrix))

    @cached_property
    def tangent_plane(self) -> sp.csr_array:
        """Equations at the solution."""
        return self.equations(self.slack)

    def system(self) -> GhostSystem:
        """Factorised at the solution, once."""
        if self._system is None:
            self._system = GhostSystem(self.form(self.slack, self.frozen), self.tangent_plane)
        return self._system

    def row_multipliers(self, multipliers: Float[ndarray, " e"]) -> Float[ndarray, " M"]:
        """Multipliers of the tangent plane as a dual vector."""
        rows = np.zeros(self.program.offset.size)
        rows[self.faces.flat] = multipliers[: self.faces.flat.size]
        at = self.faces.flat.size
        for face in self.faces.curved:
            rows[face.rows] += face.tangent(self.slack[face.rows]).T @ multipliers[at : at + face.size]
            at += face.size
        return rows

    @cached_property
    def curvatures(self) -> list[Float[ndarray, "k k"]]:
        """Of the curved faces at the solution."""
        return [f.curvature(self.slack[f.rows], m) for f, m in zip(self.faces.curved, self.frozen, strict=True)]

    def turned(self, moved: Float[ndarray, " M"], force: float = np.inf) -> tuple[Float[ndarray, " M"], float]:
        """Change of the frozen dual on curved faces when the slack moves; and how far that is from linear.

        The latter is the largest of all faces, relative to the change, or a small part of ``force`` where it is less.
        """
        rows, bent = np.zeros(moved.size), 0.0
        for face, multiplier, curvature in zip(self.faces.curved, self.frozen, self.curvatures, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):  # too far a move is made shorter
                turn = face.turn(self.slack[face.rows], moved[face.rows], multiplier)
            linear = curvature @ moved[face.rows]
            size = max(float(np.linalg.norm(linear)), 1e-9 * force)
            bent = max(bent, float(np.linalg.norm(turn + linear)) / size)
            rows[face.rows] = turn
        return rows, bent

    def moves(
        self, upstream: Float[ndarray, " N"], delta: float, sides: tuple[float, ...] = (1.0,)
    ) -> list[Move] | None:
        """Solve the perturbed ghost problem, with the same size of the perturbation on all sides.

        Newton's method with the system at the solution, which contracts by a factor of the order of ``delta`` per
        step; without curved faces the first step is exact. Where that would be far from linear, ``delta`` is made
        smaller; None if nothing helps.

        Raises
        ------
        NotUniqueError
            If the perturbed problem is unbounded: the solution is not unique along the upstream gradient.
        """
        system, n = self.system(), self.point.size
        right = np.concatenate([-upstream, np.zeros(self.faces.size)])
        first, residual = system.solve(right)
        if not residual <= 1e-5:
            raise NotUniqueError("the solution is not unique along the upstream gradient")
        if not self.faces.curved:
            rows, nothing = self.row_multipliers(first[n:]), np.zeros(self.slack.size)
            return [Move(side * delta, side * delta * first[:n], side * delta * rows, nothing) for side in sides]
        for _ in range(40):
            found, shorter = [], 1.0
            for side in sides:
                move, factor = self._move(upstream, side * delta, side * delta * first, _BENT[len(sides) - 1])
                found.append(move)
                shorter = min(shorter, factor)
            if shorter == 1.0:
                return found
            delta *= shorter
        return None

    def _move(
        self, upstream: Float[ndarray, " N"], delta: float, first: Float[ndarray, " size"], limit: float
    ) -> tuple[Move | None, float]:
        """The move, and by how much ``delta`` must be smaller: a power of two."""
        system, n, found = self.system(), self.point.size, first
        equations, push = self.tangent_plane, delta * upstream
        force = float(np.abs(push).max())
        longest = max(float(np.abs(first[:n]).max()), 1e-7 * force)  # below that it does not move
        previous = np.inf
        for _ in range(60):
            step = found[:n]
            moved = -(self.program.matrix @ step)
            if not all(face.inside(self.slack[face.rows] + moved[face.rows]) for face in self.faces.curved):
                return None, 0.125
            turn, bent = self.turned(moved, force)
            balance = self.program.quadratic @ step + push + self.program.matrix.T @ turn + equations.T @ found[n:]
            correction, _ = system.solve(np.concatenate([-balance, np.zeros(self.faces.size)]), steps=3)
            change = max(
                float(np.abs(correction[:n]).max()) / longest,
                float(np.abs(equations.T @ correction[n:]).max(initial=0.0)) / force,
            )
            bent = max(bent, 2.0 * change)
            if previous == np.inf and not bent <= limit:
                return None, 0.5 ** int(np.ceil(np.log2(np.clip(bent / limit, 2.0, 1024.0)))) if bent > 0 else 0.125
            if not change <= max(0.7 * previous, 1e-8):
                return None, 0.5
            found = found + correction
            if change <= 1e-15 or (change <= 1e-8 and change > 0.5 * previous):
                turn, _ = self.turned(-(self.program.matrix @ found[:n]))
                return Move(delta, found[:n], self.row_multipliers(found[n:]), turn), 1.0
            previous = change
        return None, 0.5


def dense_move(ghost: Ghost, upstream: Float[ndarray, " N"]) -> Move:
    """The limit of moves over ``delta`` as it goes to 0, by least squares with the dense system.

    This is implicit differentiation; it shares no factorisation with the layer and is there to check it.
    """
    equations = ghost.tangent_plane.toarray()
    form = ghost.form(ghost.slack, ghost.frozen).toarray()
    n, e = form.shape[0], equations.shape[0]
    matrix = np.block([[form, equations.T], [equations, np.zeros((e, e))]])
    scales = _equilibrating(sp.coo_array(matrix))
    right = scales * np.concatenate([-upstream, np.zeros(e)])
    found = scales * np.linalg.lstsq(scales[:, None] * matrix * scales, right, rcond=1e-13)[0]
    turn = np.zeros(ghost.slack.size)
    moved = ghost.program.matrix @ found[:n]
    for face, curvature in zip(ghost.faces.curved, ghost.curvatures, strict=True):
        turn[face.rows] = curvature @ moved[face.rows]
    return Move(1.0, found[:n], ghost.row_multipliers(found[n:]), turn)
