"""Conic solvers called directly: the same sparse maps in three layouts of a symmetric matrix.

Clarabel stores the triangle above the diagonal with off-diagonal entries scaled, SCS the one below, CVXOPT the whole
matrix. All three are interior-point or first-order methods whose answer is a claim only; what is proved is decided by
:mod:`assay.games.sos_program`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import threadpoolctl
from jaxtyping import Float

from assay.extras import import_extra
from assay.games.moment_basis import triangle
from assay.games.sos_program import ConicProgram, Multipliers
from assay.games.sos_scaling import ScaledSystem

__all__ = ["ConicAnswer", "solve_conic"]

_TIGHT = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10, "max_iter": 100}
_CVXOPT = {"show_progress": False, "abstol": 1e-10, "reltol": 1e-10, "feastol": 1e-10, "maxiters": 35, "refinement": 1}
_SCS = {"eps_abs": 1e-7, "eps_rel": 1e-7, "max_iters": 100_000}

# Up to this side matrices are too small for several threads, which then wait for each other most of the time.
_ONE_THREAD = 200

# Rows of the equations whose pivot is below this share of the largest one are combinations of others.
_DEPENDENT = 1e-9


@dataclass(frozen=True, eq=False)
class ConicAnswer:
    """What a solver says.

    Attributes
    ----------
    status : {"solved", "infeasible", "failed"}
        ``"solved"`` covers reduced accuracy.
    accurate : bool
        Whether the solver reached its tolerances.
    moments : numpy.ndarray or None
        Values of the unknowns, when solved.
    multipliers : Multipliers or None
        When solved those of the optimum, when infeasible a ray; None when failed.
    solver, said : str
        Who, and its own words.
    seconds : float
        Time in the solver.
    """

    status: str
    accurate: bool
    moments: Float[np.ndarray, " moments"] | None
    multipliers: Multipliers | None
    solver: str
    said: str
    seconds: float


def solve_conic(program: ConicProgram, solver: str) -> ConicAnswer:
    """Solve a relaxation.

    Parameters
    ----------
    program : ConicProgram
        What to solve.
    solver : {"clarabel", "cvxopt", "scs"}
        By whom.

    Returns
    -------
    ConicAnswer

    Raises
    ------
    MissingExtraError
        If the solver is not installed.
    """
    return {"clarabel": _clarabel, "cvxopt": _cvxopt, "scs": _scs}[solver](program)


def _clarabel(program: ConicProgram) -> ConicAnswer:
    clarabel = import_extra("clarabel", extra="cvxpy")
    linear, right, sides = _stacked(program, lower=False)
    cones = [clarabel.ZeroConeT(1 + program.equations.shape[0])]
    cones += [clarabel.PSDTriangleConeT(side) for side in sides]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    for name, value in _TIGHT.items():
        setattr(settings, name, value)
    n = len(program.objective)
    begun = time.perf_counter()
    answer = clarabel.DefaultSolver(
        sp.csc_matrix((n, n)), -program.objective, sp.csc_matrix(linear), right, cones, settings
    ).solve()
    seconds = time.perf_counter() - begun
    said = str(answer.status)
    status = {
        "Solved": "solved",
        "AlmostSolved": "solved",
        "PrimalInfeasible": "infeasible",
        "AlmostPrimalInfeasible": "infeasible",
    }.get(said, "failed")
    return _answer(program, status, not said.startswith("Almost"), answer.x, answer.z, False, "clarabel", said, seconds)


def _scs(program: ConicProgram) -> ConicAnswer:
    scs = import_extra("scs", extra="cvxpy")
    linear, right, sides = _stacked(program, lower=True)
    data = {"A": sp.csc_matrix(linear), "b": right, "c": -program.objective}
    cone = {"z": 1 + program.equations.shape[0], "s": sides}
    begun = time.perf_counter()
    answer = scs.SCS(data, cone, verbose=False, **_SCS).solve()
    seconds = time.perf_counter() - begun
    said = answer["info"]["status"]
    status = {"solved": "solved", "infeasible": "infeasible"}.get(said, "failed")
    return _answer(program, status, True, answer["x"], answer["y"], True, "scs", said, seconds)


def _cvxopt(program: ConicProgram) -> ConicAnswer:
    cvxopt = import_extra("cvxopt", extra="cvxpy")
    solvers = import_extra("cvxopt.solvers", extra="cvxpy")
    n = len(program.objective)
    kept = _independent_rows(program.equations)
    equal = sp.vstack([sp.csr_array(program.normalisation[None, :]), program.equations[kept]], format="coo")
    wholes = []
    for block in program.blocks:
        rows, columns = triangle(block.side)
        entries = block.entries.tocoo()
        i, j = rows[entries.row], columns[entries.row]
        off = i != j
        where = np.concatenate([i + block.side * j, (j + block.side * i)[off]])
        moment = np.concatenate([entries.col, entries.col[off]])
        value = np.concatenate([entries.data, entries.data[off]])
        wholes.append(sp.coo_array((-value, (where, moment)), shape=(block.side**2, n)))
    stacked = sp.vstack(wholes, format="coo")
    dims = {"l": 0, "q": [], "s": [block.side for block in program.blocks]}
    begun = time.perf_counter()
    try:
        with _threads(program.side):
            answer = solvers.conelp(
                cvxopt.matrix(-program.objective),
                _spmatrix(cvxopt, stacked),
                cvxopt.matrix(0.0, (stacked.shape[0], 1)),
                dims,
                _spmatrix(cvxopt, equal),
                cvxopt.matrix([1.0] + [0.0] * len(kept)),
                kktsolver=ScaledSystem(program.blocks, equal.toarray()),
                options=_CVXOPT,
            )
    except (ValueError, ArithmeticError, ZeroDivisionError) as error:  # a singular linear system
        return ConicAnswer("failed", False, None, None, "cvxopt", str(error), time.perf_counter() - begun)
    seconds = time.perf_counter() - begun
    said = answer["status"]
    if said == "primal infeasible":
        status = "infeasible"
    else:  # what stopped for lack of progress is judged by its multipliers
        status = "solved" if said in ("optimal", "unknown") and answer["z"] is not None else "failed"
    if status == "failed":
        return ConicAnswer(status, False, None, None, "cvxopt", said, seconds)
    equations = np.zeros(program.equations.shape[0])
    y = np.array(answer["y"]).ravel()
    equations[kept] = -y[1:]
    grams, z, at = [], np.array(answer["z"]).ravel(), 0
    for block in program.blocks:
        gram = np.tril(z[at : at + block.side**2].reshape(block.side, block.side, order="F"))
        grams.append(gram + np.tril(gram, -1).T)
        at += block.side**2
    moments = np.array(answer["x"]).ravel() if status == "solved" else None
    return ConicAnswer(
        status, said != "unknown", moments, Multipliers(float(y[0]), equations, tuple(grams)), "cvxopt", said, seconds
    )


def _stacked(program: ConicProgram, lower: bool) -> tuple[sp.csc_array, np.ndarray, list[int]]:
    """Rows of ``A x + s = b`` for solvers that take scaled triangles."""
    parts = [sp.csr_array(program.normalisation[None, :]), program.equations]
    for block in program.blocks:
        scale, order = _layout(block.side, lower)
        parts.append(-(sp.diags_array(scale) @ block.entries)[order])
    linear = sp.vstack(parts, format="csc")
    right = np.zeros(linear.shape[0])
    right[0] = 1.0
    return linear, right, [block.side for block in program.blocks]


def _layout(side: int, lower: bool) -> tuple[np.ndarray, np.ndarray]:
    """Scale of each entry of the upper triangle, and the order in which a solver lists them."""
    rows, columns = triangle(side)
    scale = np.where(rows == columns, 1.0, math.sqrt(2.0))
    # The triangle below the diagonal column by column is that above it row by row.
    order = np.lexsort((columns, rows)) if lower else np.arange(len(rows))
    return scale, order


def _answer(
    program: ConicProgram,
    status: str,
    accurate: bool,
    x: Any,
    z: Any,
    lower: bool,
    solver: str,
    said: str,
    seconds: float,
) -> ConicAnswer:
    if status == "failed" or not np.all(np.isfinite(np.asarray(z))):
        return ConicAnswer("failed", False, None, None, solver, said, seconds)
    z = np.asarray(z, dtype=np.float64)
    n_equations = program.equations.shape[0]
    grams, at = [], 1 + n_equations
    for block in program.blocks:
        scale, order = _layout(block.side, lower)
        entries = np.empty(len(scale))
        entries[order] = z[at : at + len(scale)]
        gram = np.zeros((block.side, block.side))
        rows, columns = triangle(block.side)
        gram[rows, columns] = gram[columns, rows] = entries / scale
        grams.append(gram)
        at += len(scale)
    moments = np.asarray(x, dtype=np.float64) if status == "solved" else None
    multipliers = Multipliers(float(z[0]), -z[1 : 1 + n_equations], tuple(grams))
    return ConicAnswer(status, accurate, moments, multipliers, solver, said, seconds)


def _independent_rows(equations: sp.csr_array) -> np.ndarray:
    """Rows that span all of them; CVXOPT takes no redundant equations."""
    if equations.shape[0] == 0:
        return np.empty(0, dtype=np.int64)
    # The first moment is fixed by the normalisation, so that a row must differ from others elsewhere.
    dense = equations.toarray()
    triangular, pivots = scipy.linalg.qr(dense.T, mode="r", pivoting=True)
    diagonal = np.abs(np.diag(triangular))
    return np.sort(pivots[: int(np.count_nonzero(diagonal > _DEPENDENT * diagonal.max(initial=0.0)))])


def _threads(side: int) -> contextlib.AbstractContextManager[Any]:
    """Context in which linear algebra uses as many threads as pay off."""
    if side > _ONE_THREAD:
        return contextlib.nullcontext()
    return _thread_pools().limit(limits=1, user_api="blas")


@functools.cache
def _thread_pools() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


def _spmatrix(cvxopt: Any, matrix: Any) -> Any:
    coo = matrix.tocoo()
    return cvxopt.spmatrix(coo.data.tolist(), coo.row.tolist(), coo.col.tolist(), coo.shape)
