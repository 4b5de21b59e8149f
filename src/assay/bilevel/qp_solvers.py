"""Solvers of a batch of quadratic programs, with what the instances share set up once.

Clarabel and OSQP are called directly. A solver is made once per pair of matrices and gets new vectors for every
instance; when each instance has its own matrices it is made anew. Functions of the user's serve as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy import ndarray

from assay.bilevel.ffo_cone_solvers import clarabel_outcome, clarabel_settings, refuse
from assay.extras import import_extra

__all__ = ["QPSolution", "QPSolver", "UserSolver"]

#: Negative multipliers above this, relative to the largest one, are rounding.
NEGATIVE = -1e-8
_OSQP_DEFAULTS = {"verbose": False, "eps_abs": 1e-8, "eps_rel": 1e-8, "max_iter": 50_000}


@dataclass(frozen=True, eq=False)
class QPSolution:
    """Solution of one quadratic program.

    Parameters
    ----------
    point : numpy.ndarray of shape (n,)
        Minimiser.
    multipliers : numpy.ndarray of shape (m,)
        Of the inequalities, at least 0.
    equality_multipliers : numpy.ndarray of shape (p,)
        Of the equations.
    status : str
        In the words of the solver.
    accurate : bool
        Whether it met its tolerances.
    """

    point: Float[ndarray, " n"]
    multipliers: Float[ndarray, " m"]
    equality_multipliers: Float[ndarray, " p"]
    status: str
    accurate: bool


class QPSolver:
    r"""Minimise :math:`\frac12 y'Qy + q'y` subject to :math:`Gy \le h`, :math:`Ay = b` for several vectors.

    Parameters
    ----------
    solver : {"clarabel", "osqp"}
        Which one.
    solver_args : mapping
        Options in the words of the solver.
    upper : scipy.sparse.csc_matrix of shape (n, n)
        Upper triangle of ``Q``.
    rows : scipy.sparse.csc_matrix of shape (p + m, n)
        ``A`` above ``G``.
    """

    def __init__(self, solver: str, solver_args: Mapping[str, Any], upper: sp.csc_matrix, rows: sp.csc_matrix):
        self.solver, self._args, self._upper, self._rows = solver, solver_args, upper, rows
        self._prepared = None

    @classmethod
    def of(
        cls,
        solver: str,
        solver_args: Mapping[str, Any],
        Q: Float[ndarray, "n n"],
        G: Float[ndarray, "m n"],
        A: Float[ndarray, "p n"],
    ) -> QPSolver:
        """From the matrices as they are."""
        return cls(solver, solver_args, sp.csc_matrix(np.triu(0.5 * (Q + Q.T))), sp.csc_matrix(np.vstack([A, G])))

    def solve(
        self, q: Float[ndarray, " n"], h: Float[ndarray, " m"], b: Float[ndarray, " p"], instance: int
    ) -> QPSolution:
        """Solve one instance.

        Raises
        ------
        ValueError
            If it is infeasible or unbounded, with its number.
        """
        found = (self._by_clarabel if self.solver == "clarabel" else self._by_osqp)(q, h, b, instance)
        return _without_negative(found, instance)

    def _by_clarabel(
        self, q: Float[ndarray, " n"], h: Float[ndarray, " m"], b: Float[ndarray, " p"], instance: int
    ) -> QPSolution:
        right = np.concatenate([b, h])
        if self._prepared is None:
            clarabel = import_extra("clarabel", extra="cvxpy")
            settings = clarabel_settings(clarabel, {"presolve_enable": False, **self._args})
            cones = [clarabel.ZeroConeT(b.size)] * bool(b.size) + [clarabel.NonnegativeConeT(h.size)] * bool(h.size)
            self._prepared = clarabel.DefaultSolver(self._upper, q, self._rows, right, cones, settings)
        elif self._prepared.is_data_update_allowed():
            self._prepared.update(q=q, b=right)
        else:  # settings of the user's rule it out
            self._prepared = None
            return self._by_clarabel(q, h, b, instance)
        solution = self._prepared.solve()
        status, accurate = clarabel_outcome(solution, instance)
        dual = np.array(solution.z)
        return QPSolution(np.array(solution.x), dual[b.size :], dual[: b.size], status, accurate)

    def _by_osqp(
        self, q: Float[ndarray, " n"], h: Float[ndarray, " m"], b: Float[ndarray, " p"], instance: int
    ) -> QPSolution:
        upper, lower = np.concatenate([b, h]), np.concatenate([b, np.full(h.size, -np.inf)])
        if self._prepared is None:
            osqp = import_extra("osqp", extra="cvxpy")
            prepared = osqp.OSQP()
            try:
                prepared.setup(self._upper, q, self._rows, lower, upper, **{**_OSQP_DEFAULTS, **self._args})
            except (TypeError, ValueError) as error:
                raise type(error)(f"solver_args must have settings of OSQP, got {dict(self._args)}: {error}") from error
            self._prepared = prepared
        else:
            self._prepared.update(q=q, l=lower, u=upper)
        solution = self._prepared.solve(raise_error=False)
        status = solution.info.status
        if status not in ("solved", "solved inaccurate", "maximum iterations reached", "run time limit reached"):
            raise refuse(status.replace("dual infeasible", "unbounded"), "OSQP", instance)
        dual = np.array(solution.y)
        return QPSolution(np.array(solution.x), dual[b.size :], dual[: b.size], status, status == "solved")


@dataclass(frozen=True, eq=False)
class UserSolver:
    """A function of the user's as a solver.

    Parameters
    ----------
    function : callable
        Is given copies of ``(Q, q, G, h, A, b)`` and returns minimiser, multipliers of the inequalities and of the
        equations.
    Q, G, A : numpy.ndarray of shape (n, n), (m, n) and (p, n)
        The matrices.
    """

    function: Callable[..., Any]
    Q: Float[ndarray, "n n"]
    G: Float[ndarray, "m n"]
    A: Float[ndarray, "p n"]

    def solve(
        self, q: Float[ndarray, " n"], h: Float[ndarray, " m"], b: Float[ndarray, " p"], instance: int
    ) -> QPSolution:
        """Solve one instance.

        Raises
        ------
        TypeError, ValueError
            If what is returned is not three finite vectors of the right sizes, or a multiplier is negative.
        """
        answer = self.function(*(part.copy() for part in (self.Q, q, self.G, h, self.A, b)))
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise TypeError("solver must return a tuple (point, multipliers, equality multipliers)")
        parts = [np.array(part, dtype=float).ravel() for part in answer]
        for part, size in zip(parts, (q.size, h.size, b.size), strict=True):
            if part.size != size or not np.isfinite(part).all():
                raise ValueError(
                    f"solver must return finite vectors of sizes {(q.size, h.size, b.size)}, "
                    f"got {tuple(one.size for one in parts)} for instance {instance}"
                )
        return _without_negative(QPSolution(parts[0], parts[1], parts[2], "returned", True), instance)


def _without_negative(found: QPSolution, instance: int) -> QPSolution:
    """Rounding below 0 is cut off; anything else below 0 is an error."""
    least = float(found.multipliers.min(initial=0.0))
    if least == 0.0:
        return found
    if least < NEGATIVE * (1.0 + float(found.multipliers.max())):
        raise ValueError(
            f"solver must return multipliers of at least 0, got {least:g} for instance {instance} ({found.status})"
        )
    return replace(found, multipliers=np.maximum(found.multipliers, 0.0))
