"""A level of the hierarchy, solved: its value, its proved bound, and the atoms when the rank condition holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from assay.transport.atom_extraction import Atoms, extract_atoms, moment_ranks, polish_atoms, project_on_set
from assay.transport.mixture_problem import MixtureProblem
from assay.transport.moment_matrices import evaluate_monomials
from assay.transport.moment_relaxation import LevelSize, LevelSolution, MomentRelaxation

__all__ = ["Level", "mixing_matrix", "mixing_moments", "rank_step", "solve_level", "tighten_bound"]

# Eigenvalues up to this share of the largest count as zero: for exact moments, and for those of a sample.
RANK_TOL = {True: 1e-3, False: 1e-2}

# Below this a distance in scaled units is zero.
ZERO = 1e-6

# By how much an atom may leave the parameter set, in scaled units.
INSIDE = 1e-8


@dataclass(frozen=True)
class Level:
    """A solved level.

    Attributes
    ----------
    relaxation : MomentRelaxation
        What was solved.
    size : LevelSize
        Its size.
    solution : LevelSolution
        Optimum with the tie-break, from which the atoms are taken.
    atoms : Atoms
        In scaled parameters, inside the set; none when the level is not flat.
    residual : float
        Largest difference between moments of the measure and of the mixture.
    lower, potential : float and numpy.ndarray
        Proved bound, and the dual polynomial.
    rank_tol : float
        Share of the largest eigenvalue below which the others count as zero.
    seconds : float
        Time of the solver.
    """

    relaxation: MomentRelaxation
    size: LevelSize
    solution: LevelSolution
    atoms: Atoms
    residual: float
    lower: float
    potential: Float[np.ndarray, " monomials"]
    rank_tol: float
    seconds: float

    @property
    def loose(self) -> bool:
        """Whether the value is 0 although the mixture has other moments: a higher level will have a larger value."""
        return self.solution.value <= ZERO and self.residual > ZERO


def solve_level(
    problem: MixtureProblem,
    order: int,
    size: LevelSize,
    *,
    distance: str = "W2",
    rank_tol: float | None = None,
    trace_weight: float = 1e-6,
    solver: str = "CLARABEL",
    polish: bool = True,
    bound: bool = True,
) -> Level:
    """Solve a level, and read off its atoms.

    Parameters
    ----------
    problem : MixtureProblem
        In scaled units.
    order : int
        Order of the relaxation.
    size : LevelSize
        What :func:`~assay.transport.moment_relaxation.level_size` says of it.
    distance, rank_tol, trace_weight, solver, polish
        As in :func:`closest_mixture`.
    bound : bool, default=True
        Whether to solve it without the tie-break, too, for a lower bound that does not pay for it.

    Returns
    -------
    Level
    """
    relaxation = MomentRelaxation(
        problem.moments(order),
        problem.dim,
        problem.family_map(order),
        problem.n_params,
        problem.inequalities,
        order,
        distance,
    )
    solution = relaxation.solve(trace_weight, solver)
    lower, potential = relaxation.lower_bound(solution.multipliers)
    exact = problem.points is None
    tolerances: tuple[float, ...] = (RANK_TOL[exact] if rank_tol is None else rank_tol,)
    if exact and getattr(problem.family, "determined", True) and solution.value <= ZERO:
        # At distance 0 the mixture must have the moments of the measure, which the relaxation does not enforce: of its
        # many solutions of value 0 the tie-break may prefer one with too few atoms.
        phi = relaxation.matching_moments()
        if phi is not None:
            solution = replace(solution, phi=phi, value=0.0)
            if rank_tol is None:
                # These moments are exact, so that components of small weight can be told from rounding.
                tolerances = tuple(10.0**-k for k in range(3, 10))
    first = None
    for tolerance in tolerances:
        atoms = _atoms(problem, relaxation, solution, tolerance, polish)
        of_mixture = mixing_moments(atoms, relaxation) if atoms.flat else solution.phi
        residual = float(abs(relaxation.family_map @ of_mixture - relaxation.target).max())
        level = Level(relaxation, size, solution, atoms, residual, lower, potential, tolerance, solution.seconds)
        if bound and trace_weight > 0 and first is None:
            level = tighten_bound(level, solver)
            lower, potential = level.lower, level.potential
        if atoms.flat and not level.loose:
            return level
        first = first or level
    return first


def tighten_bound(level: Level, solver: str) -> Level:
    """The same level with the bound of the relaxation without the tie-break, which is better by what that weighs."""
    try:
        pure = level.relaxation.solve(0.0, solver)
    except RuntimeError:
        return level
    lower, potential = level.relaxation.lower_bound(pure.multipliers)
    seconds = level.seconds + pure.seconds
    if lower <= level.lower:
        return replace(level, seconds=seconds)
    return replace(level, lower=lower, potential=potential, seconds=seconds)


def _atoms(
    problem: MixtureProblem, relaxation: MomentRelaxation, solution: LevelSolution, rank_tol: float, polish: bool
) -> Atoms:
    """Atoms in scaled parameters, inside the set; none when the rank condition fails."""
    order, basis = relaxation.order, relaxation.parameter_basis
    matrix = mixing_matrix(solution.phi, relaxation)
    ranks = moment_ranks(matrix, problem.n_params, order, rank_tol)
    if ranks[order] != ranks[max(order - rank_step(problem), 0)]:
        return Atoms(np.empty((0, problem.n_params)), np.empty(0), ranks, False)
    atoms = extract_atoms(matrix, basis.exponents[: basis.count(order)], rank_tol)
    points, weights = project_on_set(atoms.points, problem.box, problem.constraints), atoms.weights
    if polish:
        in_family = solution.value <= ZERO
        goal, linear_map = (relaxation.target, relaxation.family_map) if in_family else (solution.phi, None)
        better, weights_of_better = polish_atoms(points, weights, goal, linear_map, basis, problem.box)
        if problem.set_violation(better) <= INSIDE:
            points, weights = better, weights_of_better
    present = weights > 0
    return Atoms(points[present], weights[present] / weights[present].sum(), ranks, True)


def mixing_moments(atoms: Atoms, relaxation: MomentRelaxation) -> Float[np.ndarray, " monomials"]:
    """Moments of the atoms, in graded order."""
    return evaluate_monomials(atoms.points, relaxation.parameter_basis.exponents).T @ atoms.weights


def rank_step(problem: MixtureProblem) -> int:
    """How many orders below the rank must be the same: half the largest degree of an inequality."""
    return max(math.ceil(degree / 2) for degree in problem.degrees)


def mixing_matrix(
    phi: Float[np.ndarray, " monomials"], relaxation: MomentRelaxation
) -> Float[np.ndarray, "small small"]:
    """Moment matrix of the mixing measure."""
    size = relaxation.parameter_basis.count(relaxation.order)
    return (relaxation.parameter_basis.moment_map(relaxation.order) @ phi).reshape(size, size)
