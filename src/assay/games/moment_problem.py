"""A moment relaxation as a problem of cvxpy, for those who want to add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.extras import import_extra
from assay.games.imperfect_polynomials import Polynomial, checked_polynomial, listed, total
from assay.games.moment_basis import MatrixMap, triangle
from assay.games.sos_program import build_relaxation, least_order, relaxation_size
from assay.validation import check_integer

__all__ = ["moment_problem"]


def moment_problem(
    poly: Polynomial,
    ineqs: Sequence[Polynomial] = (),
    eqs: Sequence[Polynomial] = (),
    order: int = 1,
    *,
    force: bool = False,
) -> Any:
    r"""Moment relaxation of a polynomial optimisation problem, to be solved or extended with cvxpy.

    .. math:: \max_y\ L_y(p) \quad\text{s.t.}\quad y_0 = 1,\ M_d(y) \succeq 0,\
              M_{d - \lceil \deg g / 2 \rceil}(g y) \succeq 0,\ L_y(h x^\beta) = 0

    Its value is an upper bound of ``p`` on the set where all ``g >= 0`` and all ``h = 0``. Unless these bound the set
    (and say so, as ``1 - x^2 >= 0`` does), the bound may be infinite.

    Parameters
    ----------
    poly : dict
        Polynomial to maximise: coefficient by tuple of exponents.
    ineqs, eqs : sequence of dict, default=()
        Polynomials ``g`` and ``h``.
    order : int, default=1
        The order ``d``, at least half the degree of every polynomial.
    force : bool, default=False
        Whether to build what may not fit into memory.

    Returns
    -------
    cvxpy.Problem
        Its variable ``problem.var_dict["moments"]`` has the moments of all monomials up to degree ``2 d`` in order of
        their degree, those of equal degree with the powers of the first variables first: 1, the variables, and so on.

    Raises
    ------
    TypeError, ValueError
        If a polynomial is not as described, the order is too small, or the relaxation takes more than half of
        the memory of the machine with SCS, the least demanding solver.
    MissingExtraError
        If cvxpy is not installed.

    Notes
    -----
    One sparse matrix takes the moments to the entries of each positive semidefinite matrix. cvxpy hands it to a solver
    that treats the matrices as dense; :func:`assay.games.ex_ante_optimum` is several times faster on large ones.

    References
    ----------
    .. [1] J.-B. Lasserre. Global Optimization with Polynomials and the Problem of Moments. SIAM Journal on Optimization
       11, 2001.

    Examples
    --------
    >>> from assay.games.moment_problem import moment_problem
    >>> problem = moment_problem({(1,): 4.0, (2,): -3.0}, [{(1,): 1.0, (2,): -1.0}], order=1)
    >>> print(round(problem.solve(solver="CLARABEL"), 4))
    1.3333
    """
    if not isinstance(poly, Mapping) or not poly:
        raise TypeError(f"poly must be a dict from exponents to coefficients with a term, got {poly!r}")
    first = next(iter(poly))
    n = len(first) if isinstance(first, tuple) else 0
    if n == 0:
        raise ValueError(f"poly must have tuples of at least one exponent as keys, got {first!r}")
    objective = total(checked_polynomial(poly, n, "poly"))
    inequalities = [
        total(checked_polynomial(g, n, f"ineqs[{i}]")) for i, g in enumerate(listed(ineqs, "ineqs", "polynomials"))
    ]
    equations = [total(checked_polynomial(h, n, f"eqs[{i}]")) for i, h in enumerate(listed(eqs, "eqs", "polynomials"))]
    least = least_order([objective, *inequalities, *equations])
    if check_integer(order, "order") < least:
        raise ValueError(f"order must be at least {least}, half the largest degree, got {order}")
    if not isinstance(force, bool | np.bool_):
        raise TypeError(f"force must be True or False, got {force!r}")
    relaxation_size([1] * n, order, False, inequalities, equations, "scs").refuse_if_too_large(bool(force))
    cp = import_extra("cvxpy", extra="cvxpy")
    program = build_relaxation(objective, inequalities, equations, [1] * n, order)
    moments = cp.Variable(len(program.basis), name="moments")
    constraints = [moments[0] == 1]
    constraints += [_whole(cp, block, moments) >> 0 for block in program.blocks]
    if program.equations.shape[0]:
        constraints.append(program.equations @ moments == 0)
    return cp.Problem(cp.Maximize(program.objective @ moments), constraints)


def _whole(cp: Any, block: MatrixMap, moments: Any) -> Any:
    """All entries of the matrix as an expression."""
    rows, columns = triangle(block.side)
    where = np.empty((block.side, block.side), dtype=np.int64)
    where[rows, columns] = where[columns, rows] = np.arange(len(rows))
    return cp.reshape(block.entries[where.ravel()] @ moments, (block.side, block.side), order="C")
