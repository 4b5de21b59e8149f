"""What a layer of a convex problem keeps of a call, for its backward pass and its certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from assay.bilevel.ffo_cones import program_residual
from assay.bilevel.ffo_cvxpy import CompiledProblem, DataGradient
from assay.bilevel.ffo_faces import ActiveRule, SecondOrderFace
from assay.bilevel.ffo_ghost import Ghost, Move, NotUniqueError, dense_move
from assay.bilevel.ffo_polish import polished

__all__ = ["Instance", "LayerRecord"]

_LARGEST_DENSE = 300


@dataclass(frozen=True, eq=False)
class Instance:
    """One solved instance."""

    index: int
    ghost: Ghost
    status: str
    accurate: bool
    polished: bool


@dataclass(eq=False)
class LayerRecord:
    """What is needed for the backward pass of a call, and to certify it."""

    compiled: CompiledProblem
    instances: list[Instance]
    delta: float
    central: bool
    resolve: bool
    rule: ActiveRule
    solve: Callable[..., Instance]
    run: Callable[..., list[Any]]
    upstream: Float[ndarray, "B outputs"] | None = field(default=None)

    def __post_init__(self) -> None:
        # where the ghost problem was of no use
        self.unsettled = np.zeros(len(self.instances), dtype=bool)

    @property
    def statuses(self) -> tuple[str, ...]:
        """What the solver said, by instance."""
        return tuple(instance.status for instance in self.instances)

    @property
    def accurate(self) -> Bool[ndarray, " B"]:
        """Whether the solver met its tolerances."""
        return np.array([instance.accurate for instance in self.instances])

    @property
    def polished(self) -> Bool[ndarray, " B"]:
        """Whether the polished solution was accepted."""
        return np.array([instance.polished for instance in self.instances])

    @property
    def capped(self) -> Bool[ndarray, " B"]:
        """Whether active constraints were left out."""
        return np.array([instance.ghost.faces.capped for instance in self.instances])

    @property
    def iterations(self) -> Int[ndarray, " B"]:
        """Iterations of a first-order method; there is none here."""
        return np.zeros(len(self.instances), dtype=int)

    @property
    def output_shape(self) -> tuple[int, int]:
        """Shape of an upstream gradient."""
        return len(self.instances), sum(int(np.prod(shape)) for shape in self.compiled.shapes)

    @property
    def exact_in_delta(self) -> bool:
        """Whether gradients do not depend on ``delta``."""
        flat = not any(instance.ghost.faces.curved for instance in self.instances)
        return flat and self.central and not self.resolve

    def measured(self) -> dict[str, Float[ndarray, " B"]]:
        """Residual, independence, margin, number of active constraints and whether these are right, by instance."""
        names = ("residual", "independence", "margin", "n_active", "confirmed")
        columns: dict[str, list[float]] = {name: [] for name in names}
        for instance in self.instances:
            ghost = instance.ghost
            columns["residual"].append(max(program_residual(ghost.program, ghost.point, ghost.dual)))
            rows = ghost.tangent_plane.toarray()
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.where(norms > 0, norms, 1.0)
            least = np.inf if not len(rows) else float(np.linalg.svd(rows, compute_uv=False)[-1])
            columns["independence"].append(0.0 if len(rows) > rows.shape[1] else least)
            # The margin of a solution that is not exact is not that of the problem; its faces say what it is.
            exact = ghost if instance.polished else polished(ghost, self.rule, exchanges=0)
            margin = (exact or ghost).faces.margin
            columns["margin"].append(margin if ghost.faces.known else 0.0)
            columns["n_active"].append(ghost.faces.size)
            columns["confirmed"].append(exact is not None and not self.unsettled[instance.index])
        return {name: np.array(column, dtype=float) for name, column in columns.items()}

    def gradients(
        self, upstream: Float[ndarray, "B outputs"], delta: float | Float[ndarray, " B"]
    ) -> tuple[Float[ndarray, "B p"], Float[ndarray, " B"]]:
        """Gradients by the parameter vectors, and the sizes of the perturbations that were used."""
        deltas = np.broadcast_to(delta, len(self.instances))

        def of(instance: Instance) -> tuple[Float[ndarray, " p"], float]:
            size = float(deltas[instance.index])
            direction = self.compiled.upstream(upstream[instance.index])
            if not direction.any() or not np.isfinite(direction).all():  # nothing to solve: 0 or nan
                return np.full(self.compiled.n_parameters, 0.0 * direction.sum()), size
            ghost, sides = instance.ghost, (1.0, -1.0) if self.central else (1.0,)
            scale = ghost.program.scale
            moves = (
                None if self.resolve or _face_in_doubt(ghost) else self._moved(instance, direction / scale, size, sides)
            )
            if moves is None:
                moves = [self._between_solutions(instance, direction / scale, side * size) for side in sides]
            if self.central and not self.resolve and not ghost.faces.curved and ghost.faces.known:
                parts = [DataGradient.of_flat_move(ghost.point, ghost.dual * scale, moves[0].times(scale))]
            else:
                parts = [DataGradient.of_move(ghost.point, ghost.dual * scale, move.times(scale)) for move in moves]
            found = np.mean([self.compiled.to_parameters(part) for part in parts], axis=0)
            return found, abs(moves[0].delta) if ghost.faces.curved and not self.resolve else size

        found, used = zip(*self.run(of, self.instances), strict=True)
        return np.stack(found), np.array(used)

    def _between_solutions(self, instance: Instance, direction: Float[ndarray, " N"], delta: float) -> Move:
        """From one solution to another; solvers leave noise, above which the perturbation has to be."""
        ghost = instance.ghost
        delta = delta / float(np.abs(direction).max())
        other = self.solve(instance.index, ghost.program.tilted(delta * direction), backward=True).ghost
        return Move(delta, other.point - ghost.point, other.dual - ghost.dual, np.zeros(ghost.dual.size))

    def _moved(
        self, instance: Instance, direction: Float[ndarray, " N"], delta: float, sides: tuple[float, ...]
    ) -> list[Move] | None:
        try:
            moves = instance.ghost.moves(direction, delta, sides)
        except NotUniqueError as error:
            raise ValueError(f"variables must have unique solutions, got instance {instance.index}: {error}") from error
        if moves is None:
            self.unsettled[instance.index] = True
        return moves

    def gradient(
        self, upstream: Float[ndarray, "B outputs"], delta: float | Float[ndarray, " B"]
    ) -> tuple[Float[ndarray, " n"], Float[ndarray, " B"]]:
        """All gradients in a row, and the sizes of the perturbations that were used."""
        found, used = self.gradients(upstream, delta)
        return found[:, :-1].ravel(), used  # the last entry belongs to the constant

    def implicit_gradient(self, upstream: Float[ndarray, "B outputs"]) -> Float[ndarray, " n"]:
        """The same by implicit differentiation with a dense system."""
        found = []
        for instance, row in zip(self.instances, upstream, strict=True):
            ghost = instance.ghost
            if ghost.point.size > _LARGEST_DENSE:
                raise ValueError(
                    f"check_gradient must have at most {_LARGEST_DENSE} unknowns, got {ghost.point.size} in cone form"
                )
            scale = ghost.program.scale
            move, dual = dense_move(ghost, self.compiled.upstream(row) / scale).times(scale), ghost.dual * scale
            # The limit of the differences: terms of second order are left out.
            gradient = DataGradient(
                move.step,
                np.column_stack([move.turn + move.multipliers, dual]),
                np.stack([ghost.point, move.step]),
                -(move.turn + move.multipliers),
                move.step[:, None],
                ghost.point[None],
            )
            found.append(self.compiled.to_parameters(gradient)[:-1])
        return np.concatenate(found)


def _face_in_doubt(ghost: Ghost) -> bool:
    """Whether a cone other than a bound or a second-order cone has no face that is known for sure."""
    if not ghost.faces.known:
        return True
    hard = any(not isinstance(face, SecondOrderFace) for face in ghost.faces.curved)
    return hard and ghost.faces.margin < 1e-6
