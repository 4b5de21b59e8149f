"""Active rows of quadratic programs, and the solutions that they determine.

What a solver returns suggests which rows are active. Solving with these as equations either reproduces the solution,
to rounding, or shows which rows were wrong: those whose multiplier is negative, and those that are violated. Exchanging
them and solving again is a primal-dual active set method, which is done after a step or two as a rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from assay.bilevel.ffo_faces import ActiveRule, strongest_independent
from assay.bilevel.qp_batch import QPBatch
from assay.bilevel.qp_ghost import EqualitySystem

__all__ = ["QPSolutions", "guessed", "polished"]

_POLISHED = 1e-9
_ROUNDS = 10


@dataclass(eq=False)
class QPSolutions:
    """Solutions of a batch in its units, and their active rows.

    Parameters
    ----------
    points : numpy.ndarray of shape (B, n)
        Minimisers.
    lam, nu : numpy.ndarray of shape (B, m) and (B, p)
        Multipliers of inequalities and equations.
    active : list of numpy.ndarray
        Inequalities that are equations of the ghost problem.
    systems : list of EqualitySystem or None
        With these, where they have been set up.
    capped : numpy.ndarray of shape (B,)
        Whether active rows were left out, since they cannot be independent.
    confirmed : numpy.ndarray of shape (B,)
        Whether the active rows determine the solution.
    """

    points: Float[ndarray, "B n"]
    lam: Float[ndarray, "B m"]
    nu: Float[ndarray, "B p"]
    active: list[Int[ndarray, " ..."]]
    systems: list[EqualitySystem | None]
    capped: Bool[ndarray, " B"]
    confirmed: Bool[ndarray, " B"]


def _limited(
    batch: QPBatch, index: int, active: Bool[ndarray, " m"], weight: Float[ndarray, " m"]
) -> tuple[Int[ndarray, " k"], bool]:
    """Active rows, the strongest independent ones if there are more than unknowns; and whether that was so."""
    found = np.flatnonzero(active)
    n_equations = batch.n_equations
    if found.size + n_equations <= batch.q.shape[1]:
        return found, False
    rows = batch.rows(index).take(batch.picked(found))
    kept = strongest_independent(rows, n_equations, weight[found])
    return found[kept], kept.size < found.size


def guessed(
    batch: QPBatch,
    rule: ActiveRule,
    points: Float[ndarray, "B n"],
    lam: Float[ndarray, "B m"],
    nu: Float[ndarray, "B p"],
) -> QPSolutions:
    """The active rows that a solver's answer suggests."""
    everyone = range(batch.size)
    slack = batch.h - batch.values(points, np.arange(batch.size))[:, batch.n_equations :]
    masks = rule.active(slack, lam)
    active, capped = [], np.zeros(batch.size, dtype=bool)
    for index in everyone:
        rows, capped[index] = _limited(batch, index, masks[index], lam[index])
        active.append(rows)
    return QPSolutions(points, lam, nu, active, [None] * batch.size, capped, np.zeros(batch.size, dtype=bool))


def polished(batch: QPBatch, rough: QPSolutions, *, exchange: bool) -> QPSolutions:
    """Solve on the active rows; where that does not satisfy the optimality conditions, ``exchange`` rows and go on.

    Instances for which nothing does are left as they were.
    """
    points, lam, nu = rough.points.copy(), rough.lam.copy(), rough.nu.copy()
    active, systems, capped = list(rough.active), list(rough.systems), rough.capped.copy()
    confirmed = np.zeros(batch.size, dtype=bool)
    tried = {index: (rough.active[index], bool(rough.capped[index])) for index in range(batch.size)}
    pending = np.arange(batch.size)
    for _ in range(_ROUNDS if exchange else 1):
        one, by_row, by_equation, made = _solved(batch, pending, tried)
        residual, slack = batch.residuals(one, by_row, by_equation, pending)
        good = residual <= _POLISHED  # false for nan
        done = pending[good]
        points[done], lam[done], nu[done] = one[good], np.maximum(by_row[good], 0.0), by_equation[good]
        confirmed[done] = True
        for place, index in enumerate(pending.tolist()):
            if good[place]:
                (active[index], capped[index]), systems[index] = tried[index], made[place]
            elif np.isfinite(residual[place]):
                following = _limited(batch, index, by_row[place] > slack[place], by_row[place] - slack[place])
                good[place] = np.array_equal(following[0], tried[index][0])  # no use
                tried[index] = following
            else:
                good[place] = True
        pending = pending[~good]
        if not pending.size:
            break
    return QPSolutions(points, lam, nu, active, systems, capped, confirmed)


def _solved(
    batch: QPBatch, pending: Int[ndarray, " k"], tried: dict[int, tuple[Int[ndarray, " ..."], bool]]
) -> tuple[Float[ndarray, "k n"], Float[ndarray, "k m"], Float[ndarray, "k p"], list[EqualitySystem]]:
    """Solutions with some rows as equations."""
    n_equations = batch.n_equations
    points = np.empty((pending.size, batch.q.shape[1]))
    lam, nu = np.zeros((pending.size, batch.h.shape[1])), np.empty((pending.size, n_equations))
    systems = []
    for place, index in enumerate(pending.tolist()):
        rows = tried[index][0]
        system = batch.system(index, rows)
        points[place], multipliers = system.solve(batch.q[index], np.append(batch.b[index], batch.h[index, rows]))
        lam[place, rows], nu[place] = multipliers[n_equations:], multipliers[:n_equations]
        systems.append(system)
    return points, lam, nu, systems
