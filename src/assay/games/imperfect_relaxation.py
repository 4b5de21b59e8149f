"""A polynomial to maximise over strategies, and its relaxations, each solved until its multipliers are a proof.

One solver after another is asked; what counts is not what a solver says of itself but whether its multipliers pass the
check of :mod:`assay.games.sos_program`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float

from assay.extras import MissingExtraError
from assay.games.imperfect_polynomials import CompiledPolynomial, Polynomial, polynomial_degree
from assay.games.moment_extraction import Extraction, candidate_points, extract_points
from assay.games.sos_program import (
    CLARABEL_SIDE,
    ConicProgram,
    RelaxationSize,
    SOSIdentity,
    build_relaxation,
    check_identity,
    check_refutation,
    least_order,
    relaxation_size,
)
from assay.games.sos_solvers import ConicAnswer, solve_conic

__all__ = ["Level", "PolynomialProblem"]

# What is accepted of multipliers: eigenvalues and coefficients of the identity.
LEAST_EIGENVALUE = -1e-7
LARGEST_RESIDUAL = 1e-6

# A proof that there is no feasible point is one when the left-over is below 1; half leaves room for rounding.
LARGEST_REFUTATION = 0.5


@dataclass(frozen=True, eq=False)
class Level:
    """A solved relaxation.

    Attributes
    ----------
    status : {"solved", "infeasible", "failed"}
        Only multipliers that passed the check make it one of the first two.
    order : int
        Of the relaxation.
    size : RelaxationSize
        What it took.
    program : ConicProgram
        The relaxation.
    answer : ConicAnswer
        Of the solver that was believed.
    identity : SOSIdentity or None
        Check of the bound, when solved.
    refutation : float
        Left-over of the proof of infeasibility; inf when there is none.
    seconds : float
        Time in all solvers.
    """

    status: str
    order: int
    size: RelaxationSize
    program: ConicProgram
    answer: ConicAnswer
    identity: SOSIdentity | None
    refutation: float
    seconds: float

    @property
    def bound(self) -> float:
        """Proved upper bound of the objective; inf when there is none."""
        return self.identity.bound if self.identity is not None else math.inf

    @property
    def claimed(self) -> float:
        """Upper bound that the solver claims, without what its errors may cost."""
        return self.answer.multipliers.bound if self.answer.multipliers is not None else math.inf

    def extraction(self, least: int, half_degree: int) -> Extraction:
        """Ranks, flatness and points of the moments."""
        assert self.answer.moments is not None  # for a solved level
        block = self.program.blocks[0]
        return extract_points(self.program.basis, block, self.answer.moments, self.order, least, half_degree)

    def candidates(self) -> Float[np.ndarray, "points dim"]:
        """Starts for a local search."""
        assert self.answer.moments is not None
        return candidate_points(self.program.basis, self.answer.moments)


@dataclass(frozen=True)
class PolynomialProblem:
    """Maximise a polynomial over strategies that satisfy constraints.

    Attributes
    ----------
    objective : polynomial
        In the free variables.
    ineqs, eqs : tuple of polynomial
        Non-negative and zero; those that describe strategies are among them unless ``vertex``.
    blocks : tuple of int
        Free variables of each information set.
    vertex : bool
        Whether strategies are pure.
    """

    objective: Polynomial
    ineqs: tuple[Polynomial, ...]
    eqs: tuple[Polynomial, ...]
    blocks: tuple[int, ...]
    vertex: bool = False
    _programs: dict[int, ConicProgram] = field(default_factory=dict, repr=False, compare=False)

    @property
    def dim(self) -> int:
        """Number of free variables."""
        return sum(self.blocks)

    @cached_property
    def least_order(self) -> int:
        """Smallest order of a relaxation."""
        return least_order([self.objective, *self.ineqs, *self.eqs])

    @cached_property
    def half_degree(self) -> int:
        """Half the largest degree of a constraint, rounded up, at least 1."""
        return least_order([*self.ineqs, *self.eqs, {(0,) * self.dim: 1.0}])

    def size(self, order: int, solver: str = "auto") -> RelaxationSize:
        """What a relaxation would cost."""
        # Without localising matrices CVXOPT is the faster and the more accurate one at all sizes.
        if solver == "auto" and self.vertex:
            solver = "cvxopt"
        return relaxation_size(self.blocks, order, self.vertex, self.ineqs, self.eqs, solver)

    def solve(
        self,
        order: int,
        solver: str = "auto",
        force: bool = False,
        enough: Callable[[Level], bool] = lambda level: True,
    ) -> Level:
        """Solve the relaxation of an order.

        Parameters
        ----------
        order : int
            At least ``least_order``.
        solver : {"auto", "clarabel", "cvxopt", "scs"}, default="auto"
            Who is asked first.
        force : bool, default=False
            Whether to try what may not fit into memory.
        enough : callable, optional
            Whether a bound that is proved will do; if not, another interior-point solver is asked too. The first one
            will do by default.

        Returns
        -------
        Level

        Raises
        ------
        ValueError
            If it is too large.
        """
        size = self.size(order, solver)
        size.refuse_if_too_large(force)
        program = build_relaxation(self.objective, self.ineqs, self.eqs, self.blocks, order, self.vertex)
        best: Level | None = None
        seconds = 0.0
        for name in self._solvers(size, order):
            if name == "scs" and best is not None and best.status == "solved":
                break  # a first-order method would not be more accurate
            try:
                answer = solve_conic(program, name)
            except MissingExtraError:
                if best is None and name == size.solver:
                    raise
                continue
            seconds += answer.seconds
            level = _judged(order, size, program, answer, seconds)
            if best is None or (level.status != "failed" and level.bound < best.bound):
                best = level
            if level.status == "infeasible":
                return level
            if level.status == "solved" and enough(level):
                break
        assert best is not None
        return Level(best.status, order, size, program, best.answer, best.identity, best.refutation, seconds)

    def _solvers(self, size: RelaxationSize, order: int) -> Iterator[str]:
        yield size.solver
        if size.solver != "clarabel" and size.side <= CLARABEL_SIDE:
            yield "clarabel"
        elif size.solver == "clarabel" and not _too_large(self.size(order, "cvxopt")):
            yield "cvxopt"
        if size.solver != "scs":
            yield "scs"

    def identity_error(self, level: Level, points: Float[np.ndarray, "points dim"]) -> float:
        """Largest difference of the two sides of the identity at some points.

        Computed from the polynomials and the Gram matrices alone, without the maps that the program was built of.
        """
        multipliers = level.answer.multipliers
        assert multipliers is not None
        basis = level.program.basis
        monomials = basis.evaluate(points)
        left = np.full(len(points), multipliers.bound) - self._values(self.objective, points)
        one = {(0,) * self.dim: 1.0}
        for g, gram in zip([one, *self.ineqs], multipliers.grams, strict=True):
            small = monomials[:, : len(gram)]
            left -= self._values(g, points) * np.einsum("ki,ij,kj->k", small, gram, small)
        at = 0
        for h in self.eqs:
            count = basis.count(2 * level.order - polynomial_degree(h))
            left -= self._values(h, points) * (monomials[:, :count] @ multipliers.equations[at : at + count])
            at += count
        return float(np.abs(left).max())

    def random_points(self, n_points: int, rng: np.random.Generator) -> Float[np.ndarray, "n_points dim"]:
        """Strategies, pure ones if ``vertex``, without their last actions."""
        parts = []
        for size in self.blocks:
            rows = rng.dirichlet(np.ones(size + 1), n_points)
            if self.vertex:
                rows = np.eye(size + 1)[rng.integers(0, size + 1, n_points)]
            parts.append(rows[:, :-1])
        return np.hstack(parts)

    def _values(self, polynomial: Polynomial, points: np.ndarray) -> Float[np.ndarray, " points"]:
        compiled = CompiledPolynomial(polynomial, self.dim)
        return np.array([compiled(point) for point in points])


def _judged(order: int, size: RelaxationSize, program: ConicProgram, answer: ConicAnswer, seconds: float) -> Level:
    if answer.status == "solved" and answer.multipliers is not None:
        identity = check_identity(program, answer.multipliers)
        if identity.residual <= LARGEST_RESIDUAL and identity.least_eigenvalue >= LEAST_EIGENVALUE:
            return Level("solved", order, size, program, answer, identity, math.inf, seconds)
    if answer.status == "infeasible" and answer.multipliers is not None:
        refutation = check_refutation(program, answer.multipliers)
        if refutation <= LARGEST_REFUTATION:
            return Level("infeasible", order, size, program, answer, None, refutation, seconds)
    return Level("failed", order, size, program, answer, None, math.inf, seconds)


def _too_large(size: RelaxationSize) -> bool:
    try:
        size.refuse_if_too_large()
    except ValueError:
        return True
    return False
