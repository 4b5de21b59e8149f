"""Better solutions of cone programs than a solver returns: Newton's method on the faces that are active.

The system of the ghost problem serves here as well. Which faces are active is a guess at first. Where Newton's method
ends outside of a cone, or with a multiplier of the wrong sign, it has shown which ones were wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from assay.bilevel.ffo_cones import program_residual
from assay.bilevel.ffo_faces import ActiveRule, find_faces
from assay.bilevel.ffo_ghost import Ghost, GhostSystem

__all__ = ["polished"]


@np.errstate(over="ignore", invalid="ignore")  # what is no number is never accepted
def polished(ghost: Ghost, rule: ActiveRule, tol: float = 1e-9, exchanges: int = 5) -> Ghost | None:
    """Newton's method on the optimality conditions of the active faces.

    Parameters
    ----------
    ghost : Ghost
        At what the solver returned.
    rule : ActiveRule
        Decides on the active faces.
    tol : float, default=1e-9
        Largest relative violation of a constraint that is accepted.
    exchanges : int, default=5
        How often other faces are tried.

    Returns
    -------
    Ghost or None
        At the polished solution; None if it is not feasible in the primal and the dual, or no better.
    """
    program = ghost.program
    # what is below rounding counts as better than anything
    before = max(*program_residual(program, ghost.point, ghost.dual), 1e-12)
    for start in _starts(ghost, rule, exchanges):
        for _ in range(1 + exchanges):
            point, dual = _newton(start)
            residual, violation = program_residual(program, point, dual)
            again = find_faces(program, program.slack(point), dual, rule)
            same = again.same(start.faces)
            if violation <= tol and max(residual, violation) < before:
                # Without strict complementarity rounding decides on the faces; those that were used stay.
                faces = again if same else replace(start.faces, margin=min(start.faces.margin, again.margin))
                # without curved faces the system does not depend on the point
                return Ghost(program, point, dual, faces, None if faces.curved else start.system())
            if same or not np.isfinite(residual):
                break
            start = Ghost(program, point, dual, again)
    return None


def _starts(ghost: Ghost, rule: ActiveRule, exchanges: int) -> Iterator[Ghost]:
    """What the solver suggests; then with dual vectors and slacks compared relative to the largest ones."""
    yield ghost
    cones = [block.rows for block in ghost.program.blocks if block.kind != "zero"]
    largest = [
        max((float(np.abs(part[rows]).max()) for rows in cones), default=0.0) for part in (ghost.slack, ghost.dual)
    ]
    if exchanges and min(largest) > 0:
        faces = find_faces(ghost.program, ghost.slack, ghost.dual * (largest[0] / largest[1]), rule)
        if not faces.same(ghost.faces):
            yield Ghost(ghost.program, ghost.point, ghost.dual, faces)


def _newton(ghost: Ghost, max_iter: int = 12) -> tuple[Float[ndarray, " N"], Float[ndarray, " M"]]:
    """The best point and dual vector on the way; two or three steps are usual, one without curved faces."""
    program, faces, n = ghost.program, ghost.faces, ghost.point.size
    point, flat = ghost.point.copy(), ghost.dual[faces.flat]
    multipliers = [part.copy() for part in ghost.frozen]
    best, least = (ghost.point, ghost.dual), np.inf
    if not all(face.inside(ghost.slack[face.rows]) for face in faces.curved):
        return best
    system = ghost.system()
    for step in range(max_iter):
        slack = program.slack(point)
        if not all(face.inside(slack[face.rows]) for face in faces.curved):
            break
        dual = np.zeros(slack.size)
        dual[faces.flat] = flat
        for face, multiplier in zip(faces.curved, multipliers, strict=True):
            dual[face.rows] = face.dual(slack[face.rows], multiplier)
        worst = max(program_residual(program, point, dual))
        if step:  # what one starts from is no solution on the faces
            if worst >= least:
                break
            best, least = (point, dual), worst
            if not faces.curved:
                break
        stationarity = program.quadratic @ point + program.linear + program.matrix.T @ dual
        values = [slack[faces.flat], *(-face.value(slack[face.rows]) for face in faces.curved)]
        if faces.curved and step:
            system = GhostSystem(ghost.form(slack, multipliers), ghost.equations(slack))
        found, _ = system.solve(np.concatenate([-stationarity, *values]))
        if not np.isfinite(found).all():
            break
        point, flat = point + found[:n], flat + found[n : n + faces.flat.size]
        at, moved = n + faces.flat.size, []
        for face, multiplier in zip(faces.curved, multipliers, strict=True):
            moved.append(multiplier + found[at : at + face.size])
            at += face.size
        multipliers = moved
    return best
