"""Primal and dual solutions of a cone program: Clarabel called directly, other solvers through cvxpy.

A differentiable layer needs the primal point, the dual vector and an honest status, instance by instance. What a
solver calls infeasible or unbounded becomes an error with the number of the instance; an inaccurate solution is
marked, and the layer warns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy import ndarray

from assay.bilevel.ffo_cones import ConeProgram, matrix_of, vector_of
from assay.extras import import_extra

__all__ = ["ConeSolution", "refuse", "solve_cone_program"]

_INACCURATE = ("AlmostSolved", "InsufficientProgress", "MaxIterations", "MaxTime", "optimal_inaccurate", "user_limit")
_MEANING = {
    "PrimalInfeasible": "infeasible",
    "AlmostPrimalInfeasible": "infeasible",
    "DualInfeasible": "unbounded",
    "AlmostDualInfeasible": "unbounded",
}


@dataclass(frozen=True, eq=False)
class ConeSolution:
    """A primal and a dual solution.

    Parameters
    ----------
    point : numpy.ndarray of shape (N,)
        Primal solution.
    dual : numpy.ndarray of shape (M,)
        Dual solution.
    status : str
        In the words of the solver.
    accurate : bool
        Whether the solver says that it met its tolerances.
    """

    point: Float[ndarray, " N"]
    dual: Float[ndarray, " M"]
    status: str
    accurate: bool


def refuse(status: str, solver: str, instance: int) -> ValueError:
    """The error for an instance without a solution."""
    meaning = _MEANING.get(status) or next(
        (word for word in ("infeasible", "unbounded") if word in status.lower()), "not solved"
    )
    return ValueError(
        f"every instance of the inner problem must have a solution, got instance {instance} that is {meaning} "
        f"(status {status!r} of {solver})"
    )


def solve_cone_program(
    program: ConeProgram, solver: str, solver_args: Mapping[str, Any], instance: int
) -> ConeSolution:
    """Solve one instance.

    Parameters
    ----------
    program : ConeProgram
        What to solve.
    solver : str
        ``"CLARABEL"``, or the name of another solver that cvxpy knows.
    solver_args : mapping
        Options in the words of the solver.
    instance : int
        Number of the instance, for the error.

    Returns
    -------
    ConeSolution

    Raises
    ------
    ValueError
        If it is infeasible or unbounded, or the solver gave up without a point.
    """
    run = _by_clarabel if solver.upper() == "CLARABEL" else partial(_by_cvxpy, solver=solver)
    failure: ValueError | None = None
    for scaled, size in _scaled(program):
        try:
            found = run(scaled, solver_args=solver_args, instance=instance)
        except ValueError as error:
            failure = failure or error
        else:
            return replace(found, point=found.point * size, dual=found.dual * size)
    raise failure


def _scaled(program: ConeProgram) -> Iterator[tuple[ConeProgram, float]]:
    """The program, small vectors made larger; then, for when that fails, large ones smaller.

    Tolerances of solvers are absolute in part, so that they call anything a solution of a small problem, and large
    ones infeasible or unbounded.
    """
    offset = np.abs(program.offset / program.row_norms)
    reach = max(float(np.abs(program.linear).max(initial=0.0)), float(offset.max(initial=0.0))) or 1.0
    for size in (min(reach, 1.0), *([reach] if reach > 1.0 else [])):
        yield replace(program, linear=program.linear / size, offset=program.offset / size), size


def clarabel_settings(clarabel: Any, solver_args: Mapping[str, Any]) -> Any:
    """Settings of Clarabel: silent, one thread, and what the user wants."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    for name, choice in solver_args.items():
        if not hasattr(settings, name):
            raise ValueError(f"solver_args must have settings of Clarabel, got {name!r}")
        try:
            setattr(settings, name, choice)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"solver_args must have settings of Clarabel, got {name}={choice!r}: {error}") from error
    return settings


def clarabel_outcome(solution: Any, instance: int) -> tuple[str, bool]:
    """Status of a run of Clarabel, and whether it is accurate; raises if there is no solution."""
    status = str(solution.status)
    if status != "Solved" and status not in _INACCURATE:
        raise refuse(status, "CLARABEL", instance)
    return status, status == "Solved"


def _by_clarabel(program: ConeProgram, solver_args: Mapping[str, Any], instance: int) -> ConeSolution:
    clarabel = import_extra("clarabel", extra="cvxpy")
    kinds = {
        "zero": clarabel.ZeroConeT,
        "nonneg": clarabel.NonnegativeConeT,
        "soc": clarabel.SecondOrderConeT,
        "psd": lambda size: clarabel.PSDTriangleConeT(int((np.sqrt(8 * size + 1) - 1) / 2 + 0.5)),
        "exp": lambda _: clarabel.ExponentialConeT(),
    }
    solution = clarabel.DefaultSolver(
        sp.csc_matrix(sp.triu(program.quadratic)),
        program.linear,
        sp.csc_matrix(program.matrix),
        program.offset,
        [kinds[block.kind](block.stop - block.start) for block in program.blocks],
        clarabel_settings(clarabel, solver_args),
    ).solve()
    status, accurate = clarabel_outcome(solution, instance)
    return ConeSolution(np.array(solution.x), np.array(solution.z), status, accurate)


def _by_cvxpy(program: ConeProgram, solver_args: Mapping[str, Any], instance: int, solver: str) -> ConeSolution:
    """State the cone program in cvxpy, so that whatever cvxpy can call can solve it."""
    cp = import_extra("cvxpy", extra="cvxpy")
    point = cp.Variable(program.linear.size)
    slack = program.offset - program.matrix @ point
    objective = program.linear @ point
    if program.quadratic.nnz:
        objective = objective + 0.5 * cp.quad_form(point, cp.psd_wrap(program.quadratic))
    constraints, readers = [], []
    for block in program.blocks:
        part = slack[block.rows]
        if block.kind == "zero":
            constraints.append(part == 0)
            readers.append(lambda c: -np.ravel(c.dual_value))
        elif block.kind == "nonneg" or (block.kind == "soc" and block.stop - block.start == 1):
            constraints.append(part >= 0)
            readers.append(lambda c: np.ravel(c.dual_value))
        elif block.kind == "soc":
            constraints.append(cp.SOC(part[0], part[1:]))
            readers.append(lambda c: np.concatenate([np.ravel(value) for value in c.dual_value]))
        elif block.kind == "psd":
            basis = np.array([np.ravel(matrix_of(unit)) for unit in np.eye(block.stop - block.start)])
            side = int(np.sqrt(basis.shape[1]))
            constraints.append(cp.reshape(basis.T @ part, (side, side), order="C") >> 0)
            readers.append(lambda c: vector_of(0.5 * (c.dual_value + c.dual_value.T)))
        else:
            constraints.append(cp.ExpCone(part[0], part[1], part[2]))
            readers.append(lambda c: np.concatenate([np.ravel(value) for value in c.dual_value]))
    problem = cp.Problem(cp.Minimize(objective), constraints)
    try:
        problem.solve(solver=solver.upper(), **solver_args)
    except TypeError as error:
        raise TypeError(f"solver_args must have settings of {solver}, got {dict(solver_args)}: {error}") from error
    except cp.SolverError as error:
        raise ValueError(f"solver must be able to solve every instance, got instance {instance}: {error}") from error
    if problem.status not in ("optimal", "optimal_inaccurate"):
        raise refuse(problem.status, solver.upper(), instance)
    dual = np.concatenate([read(constraint) for read, constraint in zip(readers, constraints, strict=True)])
    return ConeSolution(np.array(point.value), dual, problem.status, problem.status == "optimal")
