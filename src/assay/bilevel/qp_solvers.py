"""Solvers of a batch of quadratic programs, with what the instances share set up once.

Clarabel and OSQP are called directly. A solver is made once per pair of matrices and gets new vectors for every
instance; when each instance has its own matrices it is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy import ndarray

from assay.bilevel.ffo_cone_solvers import clarabel_outcome, clarabel_settings, refuse
from assay.extras import import_extra

__all__ = ["QPSolution", "QPSolver"]

#: Negative multipliers above this, relative to the largest one, are rounding.
NEGATIVE = -1e-8
_OSQP_DEFAULTS = {"verbose": False, "eps_abs": 1e-8, "eps_rel": 1e-8, "max_iter": 50_000, "polishing": True}


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
    solver : {"clarabel", "osqp"} or callable
        A callable is given ``(Q, q, G, h, A, b)`` as numpy arrays and returns minimiser, multipliers of the
        inequalities and of the equations.
    solver_args : mapping
        Options in the words of the solver.
    Q, G, A : numpy.ndarray of shape (n, n), (m, n) and (p, n)
        The matrices.
    rows : scipy.sparse.sparray or numpy.ndarray of shape (p + m, n), optional
        ``A`` above ``G``, if it is at hand.
    """

    def __init__(
        self,
        solver: str | Callable[..., Any],
        solver_args: Mapping[str, Any],
        Q: Float[ndarray, "n n"],
        G: Float[ndarray, "m n"],
        A: Float[ndarray, "p n"],
        rows: Any = None,
    ):
        self.solver, self.Q, self.G, self.A = solver, Q, G, A
        self._args = solver_args
        self._form = self._rows = self._prepared = None
        if not callable(solver):
            self._form = sp.csc_matrix(np.triu(0.5 * (Q + Q.T)))
            self._rows = sp.csc_matrix(np.vstack([A, G]) if rows is None else rows)

    def solve(
        self, q: Float[ndarray, " n"], h: Float[ndarray, " m"], b: Float[ndarray, " p"], instance: int
    ) -> QPSolution:
        """Solve one instance.

        Raises
        ------
        ValueError
            If it is infeasible or unbounded, with its number, or a multiplier is negative.
        """
        if callable(self.solver):
            found = self._by_user(q, h, b, instance)
        elif self.solver == "clarabel":
            found = self._by_clarabel(q, h, b, instance)
        else:
            found = self._by_osqp(q, h, b, instance)
        least = float(found.multipliers.min(initial=0.0))
        if least < NEGATIVE * (1.0 + float(np.abs(found.multipliers).max(initial=0.0))):
            raise ValueError(
                f"solver must return multipliers of at least 0, got {least:g} for instance {instance} ({found.status})"
            )
        return QPSolution(
            found.point, np.maximum(found.multipliers, 0.0), found.equality_multipliers, found.status, found.accurate
        )

    def _by_clarabel(
        self, q: Float[ndarray, " n"], h: Float[ndarray, " m"], b: Float[ndarray, " p"], instance: int
    ) -> QPSolution:
        right = np.concatenate([b, h])
        if self._prepared is None:
            clarabel = import_extra("clarabel", extra="cvxpy")
            settings = clarabel_settings(clarabel, {"presolve_enable": False, **self._args})
            cones = [clarabel.ZeroConeT(b.size)] * bool(b.size) + [clarabel.NonnegativeConeT(h.size)] * bool(h.size)
            self._prepared = clarabel.DefaultSolver(self._form, q, self._rows, right, cones, settings)
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
            self._prepared = osqp.OSQP()
            self._prepared.setup(self._form, q, self._rows, lower, upper, **{**_OSQP_DEFAULTS, **self._args})
        else:
            self._prepared.update(q=q, l=lower, u=upper)
        solution = self._prepared.solve(raise_error=False)
        status = solution.info.status
        if status not in ("solved", "solved inaccurate", "maximum iterations reached", "run time limit reached"):
            raise refuse(status.replace("dual infeasible", "unbounded"), "OSQP", instance)
        dual = np.array(solution.y)
        return QPSolution(np.array(solution.x), dual[b.size :], dual[: b.size], status, status == "solved")

    def _by_user(
        self, q: Float[ndarray, " n"], h: Float[ndarray, " m"], b: Float[ndarray, " p"], instance: int
    ) -> QPSolution:
        answer = self.solver(self.Q, q, self.G, h, self.A, b)
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise TypeError("solver must return a tuple (point, multipliers, equality multipliers)")
        parts = [np.array(part, dtype=float).ravel() for part in answer]
        for part, size in zip(parts, (q.size, h.size, b.size), strict=True):
            if part.size != size or not np.isfinite(part).all():
                raise ValueError(
                    f"solver must return finite vectors of sizes {(q.size, h.size, b.size)}, "
                    f"got {tuple(one.size for one in parts)} for instance {instance}"
                )
        return QPSolution(parts[0], parts[1], parts[2], "returned", True)
