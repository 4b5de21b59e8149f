r"""A moment relaxation as a conic program, and the proof that its multipliers are.

In moments ``y`` the program is

.. math:: \max\ c^\top y \quad\text{subject to}\quad n^\top y = 1,\ E y = 0,\ M_b(y) \succeq 0,

with ``n`` picking the moment of 1. Multipliers are a number ``t``, a vector ``p`` and one positive semidefinite *Gram
matrix* ``Q_b`` per block. Those of an exact solution satisfy, coefficient by coefficient,

.. math:: t\, n - c = \sum_b M_b^* Q_b + E^\top p ,

that is: ``t`` minus the objective is a sum of squares, plus sums of squares times the constraints, plus multiples of
the equations, hence nowhere negative where all constraints hold. No solver is exact. :func:`check_identity` takes the
positive part of the Gram matrices, computes what is left over between the two sides, and pays for it: as all monomials
are between 0 and 1 on strategies, the left-over is at least the sum of its negative coefficients there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float

from assay.games.imperfect_polynomials import Polynomial, polynomial_degree
from assay.games.moment_basis import MatrixMap, MonomialBasis, count_monomials

__all__ = [
    "ConicProgram",
    "Multipliers",
    "RelaxationSize",
    "SOSIdentity",
    "build_relaxation",
    "check_identity",
    "check_refutation",
    "least_order",
    "relaxation_size",
]

# Largest side of a block at which "auto" takes Clarabel.
CLARABEL_SIDE = 60

# Bytes that Clarabel needs per squared length of a vectorised block: the block of the scaling, its copy in the linear
# system, its factor, and the indices of both.
_CLARABEL_BYTES = 48

# Relative error of the coefficients of constraints, and of the sums over them.
_ROUNDING = 1e-14


@dataclass(frozen=True)
class RelaxationSize:
    """What a relaxation costs, known before it is built.

    Attributes
    ----------
    side : int
        Rows of the largest positive semidefinite matrix.
    n_moments : int
        Unknowns.
    n_blocks : int
        Positive semidefinite matrices.
    n_equations : int
        Equations, without that of the total mass.
    solver : str
        Solver that it is meant for.
    n_bytes : int
        Estimate of the memory that the solver takes.
    """

    side: int
    n_moments: int
    n_blocks: int
    n_equations: int
    solver: str
    n_bytes: int

    def refuse_if_too_large(self, force: bool = False) -> None:
        """Raise ``ValueError`` when the solver would take more than half of the memory of this machine."""
        limit = machine_memory() // 2
        if self.n_bytes > limit and not force:
            raise ValueError(
                f"the relaxation must fit into half of the memory ({limit / 2**30:.3g} GiB), got an estimate of "
                f"{self.n_bytes / 2**30:.3g} GiB with {self.solver}: side {self.side}, {self.n_moments} moments; "
                "force=True tries nevertheless"
            )


@dataclass(frozen=True, eq=False)
class ConicProgram:
    """A relaxation, ready for a solver.

    Attributes
    ----------
    basis : MonomialBasis
        Which moment is what.
    objective : numpy.ndarray of shape (n_moments,)
        Maximised.
    normalisation : numpy.ndarray of shape (n_moments,)
        Its inner product with the moments is 1.
    blocks : tuple of MatrixMap
        Positive semidefinite.
    equations : scipy.sparse.csr_array of shape (n_equations, n_moments)
        Zero.
    """

    basis: MonomialBasis
    objective: Float[np.ndarray, " moments"]
    normalisation: Float[np.ndarray, " moments"]
    blocks: tuple[MatrixMap, ...]
    equations: sp.csr_array

    @property
    def side(self) -> int:
        """Rows of the largest block."""
        return max(block.side for block in self.blocks)


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Dual variables of a program, as a solver gave them.

    Attributes
    ----------
    bound : float
        That of the normalisation: the bound on the objective.
    equations : numpy.ndarray of shape (n_equations,)
        Those of the equations.
    grams : tuple of numpy.ndarray
        A symmetric matrix per block.
    """

    bound: float
    equations: Float[np.ndarray, " equations"]
    grams: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class SOSIdentity:
    """What a check of the multipliers found.

    Attributes
    ----------
    bound : float
        Proved bound: the solver's, plus what its errors may cost.
    residual : float
        Largest coefficient left over between the two sides, with the Gram matrices as the solver gave them.
    least_eigenvalue : float
        Of all Gram matrices, divided by their largest entry where that is above 1.
    """

    bound: float
    residual: float
    least_eigenvalue: float


def least_order(polynomials: Sequence[Polynomial]) -> int:
    """Smallest order at which all of the polynomials have their moments: half the largest degree, at least 1."""
    return max(1, *(math.ceil(polynomial_degree(one) / 2) for one in polynomials))


def relaxation_size(
    blocks: Sequence[int],
    order: int,
    vertex: bool,
    ineqs: Sequence[Polynomial],
    eqs: Sequence[Polynomial],
    solver: str = "auto",
) -> RelaxationSize:
    """Size of a relaxation, and the solver for it.

    Parameters
    ----------
    blocks : sequence of int
        Free variables of each information set.
    order : int
        Order of the relaxation.
    vertex : bool
        Whether monomials are those of pure strategies.
    ineqs, eqs : sequence of polynomial
        Constraints ``g >= 0`` and ``h = 0``.
    solver : {"auto", "clarabel", "cvxopt", "scs"}, default="auto"
        ``"auto"`` takes Clarabel up to side 60 and CVXOPT above.

    Returns
    -------
    RelaxationSize

    Examples
    --------
    >>> from assay.games.sos_program import relaxation_size
    >>> size = relaxation_size([2] * 5, 3, True, [], [])
    >>> size.side, size.n_moments, size.solver
    (131, 243, 'cvxopt')
    """
    sides = [count_monomials(blocks, order, vertex)]
    sides += [count_monomials(blocks, order - math.ceil(polynomial_degree(g) / 2), vertex) for g in ineqs]
    n_moments = count_monomials(blocks, 2 * order, vertex)
    n_equations = sum(count_monomials(blocks, 2 * order - polynomial_degree(h), vertex) for h in eqs)
    if solver == "auto":
        solver = "clarabel" if max(sides) <= CLARABEL_SIDE else "cvxopt"
    lengths = [side * (side + 1) // 2 for side in sides]
    if solver == "clarabel":
        n_bytes = _CLARABEL_BYTES * sum(length**2 for length in lengths) + 16 * n_equations * n_moments
    elif solver == "cvxopt":
        # the scaled columns, their factor, what is copied between them, and those of the equations
        n_bytes = 8 * n_moments * (4 * sum(side**2 for side in sides) + 3 * n_moments + 4 * n_equations)
    else:
        n_bytes = 24 * (n_moments * (sum(lengths) // max(1, len(lengths)) + n_equations) + sum(lengths))
    return RelaxationSize(max(sides), n_moments, len(sides), n_equations, solver, n_bytes)


def build_relaxation(
    objective: Polynomial,
    ineqs: Sequence[Polynomial],
    eqs: Sequence[Polynomial],
    blocks: Sequence[int],
    order: int,
    vertex: bool = False,
) -> ConicProgram:
    """Moment relaxation of ``max objective`` over ``ineqs >= 0`` and ``eqs = 0``.

    Parameters
    ----------
    objective : polynomial
        In the free variables.
    ineqs, eqs : sequence of polynomial
        Constraints.
    blocks : sequence of int
        Free variables of each information set.
    order : int
        At least :func:`least_order` of all polynomials.
    vertex : bool, default=False
        Whether to work modulo the equations of pure strategies.

    Returns
    -------
    ConicProgram
    """
    basis = MonomialBasis(blocks, 2 * order, vertex)
    one = {(0,) * basis.dim: 1.0}
    maps = [basis.localizing(one, order)]
    maps += [basis.localizing(g, order - math.ceil(polynomial_degree(g) / 2)) for g in ineqs]
    rows = [basis.shifted(h, 2 * order - polynomial_degree(h)) for h in eqs]
    equations = sp.vstack(rows, format="csr") if rows else sp.csr_array((0, len(basis)))
    return ConicProgram(basis, basis.vector(objective), basis.vector(one), tuple(maps), sp.csr_array(equations))


def check_identity(program: ConicProgram, multipliers: Multipliers) -> SOSIdentity:
    """Proved bound on the objective out of any multipliers, for a program whose monomials lie between 0 and 1.

    Parameters
    ----------
    program : ConicProgram
        With the moment of 1 as normalisation.
    multipliers : Multipliers
        Of any quality.

    Returns
    -------
    SOSIdentity
    """
    raw = multipliers.bound * program.normalisation - program.objective - program.equations.T @ multipliers.equations
    rest, residual = raw.copy(), raw.copy()
    largest = abs(multipliers.bound) + _magnitude(program, multipliers)
    least = 0.0
    for block, gram in zip(program.blocks, multipliers.grams, strict=True):
        values, vectors = np.linalg.eigh(0.5 * (gram + gram.T))
        least = min(least, float(values[0]) / max(1.0, float(np.abs(gram).max())))
        residual -= block.adjoint(gram)
        rest -= block.adjoint((vectors * np.maximum(values, 0.0)) @ vectors.T)
    bound = multipliers.bound - float(rest[0]) + float(np.maximum(-rest[1:], 0.0).sum()) + _ROUNDING * largest
    return SOSIdentity(bound, float(np.abs(residual).max()), least)


def check_refutation(program: ConicProgram, multipliers: Multipliers) -> float:
    r"""How far multipliers are from proving that there is no feasible point.

    For a ray of the dual, ``-1`` equals a sum of squares with constraints and multiples of equations. With ``r`` the
    left-over, every feasible strategy satisfies ``-1 >= r(x) >= -\sum |r_\alpha|_-``, so that anything below 1 is a
    proof.

    Parameters
    ----------
    program : ConicProgram
        With monomials between 0 and 1.
    multipliers : Multipliers
        With a negative ``bound``.

    Returns
    -------
    float
        Sum of the negative coefficients left over, and what rounding may hide, for a ray of ``bound`` -1; inf when
        ``bound`` is not negative.
    """
    if not multipliers.bound < 0:
        return math.inf
    rest = multipliers.bound * program.normalisation - program.equations.T @ multipliers.equations
    for block, gram in zip(program.blocks, multipliers.grams, strict=True):
        values, vectors = np.linalg.eigh(0.5 * (gram + gram.T))
        rest -= block.adjoint((vectors * np.maximum(values, 0.0)) @ vectors.T)
    lost = _ROUNDING * _magnitude(program, multipliers)
    return float((np.maximum(-rest, 0.0).sum() + lost) / -multipliers.bound)


def _magnitude(program: ConicProgram, multipliers: Multipliers) -> float:
    """Sum of all terms of the identity in absolute value: large multipliers enlarge errors of coefficients."""
    answer = float((abs(program.equations).T @ np.abs(multipliers.equations)).sum())
    for block, gram in zip(program.blocks, multipliers.grams, strict=True):
        answer += float(MatrixMap(block.side, abs(block.entries)).adjoint(np.abs(gram)).sum())
    return answer


def machine_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
