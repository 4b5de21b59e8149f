"""What a layer of quadratic programs keeps of a call, for its backward pass and its certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from assay.bilevel.ffo_faces import ActiveRule
from assay.bilevel.qp_active import QPSolutions, polished
from assay.bilevel.qp_batch import QPBatch
from assay.bilevel.qp_ghost import EqualitySystem, first_order_move
from assay.validation import warn_not_converged

__all__ = ["QPOptions", "QPRecord"]

_LARGEST_DENSE = 300


@dataclass(frozen=True)
class QPOptions:
    """What the constructor was given."""

    delta: float
    eps: float
    rule: ActiveRule
    polish: bool
    inner: str
    central: bool
    solver: str | Callable[..., Any]
    solver_args: Mapping[str, Any]
    tol: float
    max_iter: int


@dataclass(eq=False)
class QPRecord:
    """Solutions of a batch, and what the backward pass needs."""

    batch: QPBatch
    options: QPOptions
    solutions: QPSolutions
    statuses: tuple[str, ...]
    accurate: Bool[ndarray, " B"]
    iterations: Int[ndarray, " B"]
    upstream: Float[ndarray, "B n"] | None = field(default=None)

    @property
    def polished(self) -> Bool[ndarray, " B"]:
        """Whether the polished solution was accepted."""
        return self.solutions.confirmed

    @property
    def capped(self) -> Bool[ndarray, " B"]:
        """Whether active rows were left out."""
        return self.solutions.capped

    @property
    def delta(self) -> float:
        """Size of the perturbation."""
        return self.options.delta

    @property
    def central(self) -> bool:
        """Whether differences are central."""
        return self.options.central

    @property
    def exact_in_delta(self) -> bool:
        """Whether gradients do not depend on ``delta``."""
        return self.central and self.options.inner == "direct"

    @property
    def output_shape(self) -> tuple[int, int]:
        """Shape of an upstream gradient."""
        return self.solutions.points.shape[0], self.solutions.points.shape[1]

    @property
    def multipliers(self) -> Float[ndarray, "B m"]:
        """Of the inequalities, in the units of the user's data."""
        return self._weight(self.solutions.lam, self.batch.norms)

    @property
    def equality_multipliers(self) -> Float[ndarray, "B p"]:
        """Of the equations."""
        return self._weight(self.solutions.nu, self.batch.equality_norms)

    def _weight(self, weights: Float[ndarray, "B k"], norms: Float[ndarray, "... k"]) -> Float[ndarray, "B k"]:
        return weights * (self.batch.scale[:, None] / norms)

    def measured(self) -> dict[str, Float[ndarray, " B"]]:
        """Residual, independence, margin, number of active constraints and whether they are right, by instance."""
        batch, found = self.batch, self.solutions
        everyone = np.arange(batch.size)
        residual, _ = batch.residuals(found.points, found.lam, found.nu, everyone)
        # The margin of a solution that is not exact is not that of the program; the active rows say what it is.
        exact = found if found.confirmed.all() else polished(batch, found, exchange=False)
        slack = batch.h - batch.values(exact.points, everyone)[:, batch.n_equations :]
        margin = np.maximum(slack, exact.lam).min(axis=1, initial=np.inf)
        independence, n_active = np.empty(batch.size), np.empty(batch.size)
        for index, active in enumerate(found.active):
            rows = batch.rows(index).take(batch.picked(active))
            n_active[index] = len(rows)
            if len(rows) > rows.shape[1]:
                independence[index] = 0.0
            else:
                independence[index] = np.linalg.svd(rows, compute_uv=False)[-1] if len(rows) else np.inf
        return {
            "residual": residual,
            "independence": independence,
            "margin": margin,
            "n_active": n_active,
            "confirmed": exact.confirmed.astype(float),
        }

    def moves(
        self, upstream: Float[ndarray, "B n"]
    ) -> tuple[Float[ndarray, "B n"], Float[ndarray, "B m"], Float[ndarray, "B p"]]:
        """Minimisers and multipliers of the ghost problems, over ``delta``; they are linear in it."""
        batch, found = self.batch, self.solutions
        step, lam, nu = np.zeros(found.points.shape), np.zeros(found.lam.shape), np.zeros(found.nu.shape)
        unfinished, n_equations = 0.0, batch.n_equations
        for index, row in enumerate(upstream / batch.scale[:, None]):
            if not row.any():
                continue
            active = found.active[index]
            if self.options.inner == "direct":
                step[index], multipliers = self._system(index).solve(row)
            else:
                step[index], multipliers, self.iterations[index], residual = first_order_move(
                    batch.form(index),
                    batch.rows(index).take(batch.picked(active)),
                    row,
                    self.options.tol,
                    self.options.max_iter,
                )
                unfinished = max(unfinished, residual)
            nu[index], lam[index, active] = multipliers[:n_equations], multipliers[n_equations:]
        batch.forget()
        if unfinished > self.options.tol:
            warn_not_converged("FFOQPLayer", int(self.iterations.max()), unfinished, self.options.tol, stacklevel=6)
        return step, self._weight(lam, batch.norms), self._weight(nu, batch.equality_norms)

    def _system(self, index: int) -> EqualitySystem:
        systems = self.solutions.systems
        if systems[index] is None:
            systems[index] = self.batch.system(index, self.solutions.active[index])
        return systems[index]

    def gradients(
        self,
        upstream: Float[ndarray, "B n"],
        delta: float | Float[ndarray, " B"],
        needed: tuple[bool, ...] = (True,) * 6,
    ) -> list[Float[ndarray, " ..."] | None]:
        """Gradients by the six data, summed over the batch for those that it shares."""
        step, lam, nu = self.moves(upstream)
        # Central differences: the mean of both sides, in which the second-order term of Q cancels.
        bend = 0.0 if self.central else 0.5 * np.broadcast_to(delta, len(step))[:, None]
        middle = self.solutions.points + bend * step
        return self._products(step, middle, lam, nu, needed)

    def _products(
        self,
        step: Float[ndarray, "B n"],
        middle: Float[ndarray, "B n"],
        lam: Float[ndarray, "B m"],
        nu: Float[ndarray, "B p"],
        needed: tuple[bool, ...],
    ) -> list[Float[ndarray, " ..."] | None]:
        points = self.solutions.points
        makers: tuple[Callable[[bool], Float[ndarray, " ..."]], ...] = (
            lambda shared: _two_outer(0.5 * step, middle, middle, 0.5 * step, shared),
            lambda shared: _total(step, shared),
            lambda shared: _two_outer(self.multipliers, step, lam, points, shared),
            lambda shared: -_total(lam, shared),
            lambda shared: _two_outer(self.equality_multipliers, step, nu, points, shared),
            lambda shared: -_total(nu, shared),
        )
        return [
            make(shared) if wanted else None
            for make, shared, wanted in zip(makers, self.batch.shared, needed, strict=True)
        ]

    def gradient(
        self, upstream: Float[ndarray, "B n"], delta: float | Float[ndarray, " B"]
    ) -> tuple[Float[ndarray, " k"], Float[ndarray, " B"]]:
        """All gradients in a row, and the sizes of the perturbations."""
        found = np.concatenate([np.ravel(part) for part in self.gradients(upstream, delta)])
        return found, np.broadcast_to(delta, len(upstream))

    def implicit_gradient(self, upstream: Float[ndarray, "B n"]) -> Float[ndarray, " k"]:
        """The same by implicit differentiation with a dense system."""
        batch, found = self.batch, self.solutions
        if found.points.shape[1] > _LARGEST_DENSE:
            raise ValueError(f"check_gradient must have at most {_LARGEST_DENSE} unknowns, got {found.points.shape[1]}")
        solved = [_dense_kkt(batch, found, index, row / batch.scale[index]) for index, row in enumerate(upstream)]
        step, lam, nu = (np.stack(parts) for parts in zip(*solved, strict=True))
        lam, nu = self._weight(lam, batch.norms), self._weight(nu, batch.equality_norms)
        return np.concatenate([np.ravel(part) for part in self._products(step, found.points, lam, nu, (True,) * 6)])


def _two_outer(
    one: Float[ndarray, "B k"],
    by_one: Float[ndarray, "B n"],
    other: Float[ndarray, "B k"],
    by_other: Float[ndarray, "B n"],
    shared: bool,
) -> Float[ndarray, " ..."]:
    """Sum of two outer products, by instance or over the batch; nothing of its size is made besides."""
    left, right = np.stack([one, other], axis=1), np.stack([by_one, by_other], axis=1)
    if shared:
        size = 2 * len(one)
        return left.reshape(size, one.shape[1]).T @ right.reshape(size, by_one.shape[1])
    return left.mT @ right


def _total(rows: Float[ndarray, "B k"], shared: bool) -> Float[ndarray, " ..."]:
    return rows.sum(axis=0) if shared else rows


def _dense_kkt(
    batch: QPBatch, found: QPSolutions, index: int, upstream: Float[ndarray, " n"]
) -> tuple[Float[ndarray, " n"], Float[ndarray, " m"], Float[ndarray, " p"]]:
    """Implicit differentiation of all optimality conditions; it does not look at an active set."""
    rows, p, lam = batch.rows(index).take(None), batch.n_equations, found.lam[index]
    A, G, point = rows[:p], rows[p:], found.points[index]
    n, m = point.size, lam.size
    matrix = np.block(
        [
            [batch.form(index).matrix, G.T * lam, A.T],
            [G, np.diag(G @ point - batch.h[index]), np.zeros((m, p))],
            [A, np.zeros((p, m)), np.zeros((p, p))],
        ]
    )
    solution = np.linalg.lstsq(matrix, np.concatenate([-upstream, np.zeros(m + p)]), rcond=1e-14)[0]
    return solution[:n], lam * solution[n : n + m], solution[n + m :]
