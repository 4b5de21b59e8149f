r"""One level of the moment hierarchy: a semidefinite program, and a proved lower bound out of its multipliers.

Wasserstein: the unknowns are the moments ``lam`` of a coupling of the target with a mixture and the moments ``phi`` of
the mixing measure, up to degree ``2 n``. The first marginal of ``lam`` is the target, the second is linear in ``phi``,
and moment and localizing matrices are positive semidefinite. Total variation: the unknowns are the moments ``gamma`` of
what the target and the mixture have in common, and ``phi``.

The lower bound does not trust the solver. From its multipliers only the positive semidefinite matrices are taken, with
negative eigenvalues removed; those of the equations follow from them in closed form; and what of stationarity is left
over is paid for with bounds on the moments that any true coupling has. What remains is a proof in floating-point
arithmetic, whatever the solver did.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float

from assay.extras import import_extra
from assay.transport.moment_matrices import MonomialBasis, Polynomial, polynomial_degree

__all__ = ["LevelSize", "LevelSolution", "MomentRelaxation", "level_size"]

# Bytes that the interior point method needs per squared length of a vectorised block: the block of the scaling, its
# copy in the linear system, its factor, and the indices of both.
_BYTES = 48

# Tolerances of the solver, in the units in which the data have half-width 1.
_TIGHT = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9, "max_iter": 200, "max_threads": 1}

# Those of the first-order method that takes over.
_FIRST_ORDER = {"eps": 1e-9, "max_iters": 50_000}

# From this many rows on, the supernodal factorisation is the faster one.
_LARGE = 20

# An answer of reduced accuracy is accepted up to this violation of the equations and of positive semidefiniteness.
_ACCEPTABLE = 1e-5


@dataclass(frozen=True)
class LevelSize:
    """What a level costs, known before it is built.

    Attributes
    ----------
    largest_block : int
        Rows of the largest positive semidefinite matrix.
    n_variables : int
        Unknown moments.
    n_equations : int
        Linear equations.
    n_bytes : int
        Estimate of the memory that the interior point method takes.
    """

    largest_block: int
    n_variables: int
    n_equations: int
    n_bytes: int


def level_size(dim: int, n_params: int, degrees: Sequence[int], order: int, distance: str) -> LevelSize:
    """Size of the relaxation of an order.

    Parameters
    ----------
    dim, n_params : int
        Dimensions of the data and of the parameter.
    degrees : sequence of int
        Degree of each polynomial inequality.
    order : int
        Order of the relaxation.
    distance : {"W2", "TV"}
        Distance.

    Returns
    -------
    LevelSize

    Raises
    ------
    ValueError
        If the order is too low for an inequality.

    Examples
    --------
    >>> from assay.transport.moment_relaxation import level_size
    >>> level_size(dim=2, n_params=2, degrees=[2, 2], order=3, distance="W2").largest_block
    35
    """
    if 2 * order < max(degrees, default=0):
        raise ValueError(f"order must be at least half the degree {max(degrees)} of a constraint, got {order}")

    def count(n_variables: int, degree: int) -> int:
        return math.comb(n_variables + degree, degree)

    inner = [count(n_params, order - math.ceil(degree / 2)) for degree in degrees]
    if distance == "W2":
        blocks = [count(2 * dim, order), count(n_params, order), *inner]
        n_variables = count(2 * dim, 2 * order) + count(n_params, 2 * order)
        n_equations = 1 + 2 * count(dim, 2 * order)
    else:
        blocks = [count(dim, order)] * 3 + [count(n_params, order), *inner]
        n_variables = count(dim, 2 * order) + count(n_params, 2 * order)
        n_equations = 1
    n_bytes = _BYTES * sum((k * (k + 1) // 2) ** 2 for k in blocks)
    return LevelSize(max(blocks), n_variables, n_equations, n_bytes)


@dataclass(frozen=True)
class SemidefiniteBlock:
    """A matrix that must be positive semidefinite: three linear maps to its entries, row by row.

    Attributes
    ----------
    on_joint, on_phi, on_target : sparse matrix or None
        Maps of the moments of the coupling (or of the common part), of the mixing measure, and of the target.
    """

    on_joint: sp.csr_array | None = None
    on_phi: sp.csr_array | None = None
    on_target: sp.csr_array | None = None

    @property
    def size(self) -> int:
        """Number of rows."""
        return math.isqrt(next(m for m in (self.on_joint, self.on_phi) if m is not None).shape[0])


@dataclass(frozen=True)
class LevelSolution:
    """Answer of one semidefinite program.

    Attributes
    ----------
    value : float
        Distance of the relaxation without the tie-break (squared for W2), in scaled units.
    phi : numpy.ndarray
        Moments of the mixing measure.
    multipliers : tuple of numpy.ndarray
        One symmetric matrix per positive semidefinite constraint.
    violation : float
        Largest violation of an equation or of positive semidefiniteness.
    solver_status : str
        What the solver said.
    seconds : float
        Time of the solver.
    """

    value: float
    phi: Float[np.ndarray, " monomials"]
    multipliers: tuple[np.ndarray, ...]
    violation: float
    solver_status: str
    seconds: float


class MomentRelaxation:
    """The relaxation of an order for one target, family and set of parameters, all in scaled units.

    Parameters
    ----------
    target : numpy.ndarray of shape (monomials,)
        Moments of the target up to degree ``2 * order``, in graded order.
    dim : int
        Dimension of the target.
    family_map : sparse matrix of shape (monomials, parameter monomials)
        Takes moments of the mixing measure to moments of the mixture.
    n_params : int
        Dimension of the parameter.
    inequalities : sequence of polynomials
        ``g(theta) >= 0``; among them those of a box inside ``[-1, 1]``.
    order : int
        Order of the relaxation.
    distance : {"W2", "TV"}, default="W2"
        Squared Wasserstein distance or total variation.

    Attributes
    ----------
    problem : cvxpy.Problem
        For inspection.
    seconds_build : float
        Time of assembling it.
    """

    def __init__(
        self,
        target: Float[np.ndarray, " monomials"],
        dim: int,
        family_map: sp.csr_array,
        n_params: int,
        inequalities: Sequence[Polynomial],
        order: int,
        distance: str = "W2",
    ):
        begun = time.perf_counter()
        cp = import_extra("cvxpy", extra="cvxpy")
        self.order, self.distance = order, distance
        self.target, self.family_map = target, family_map
        self.data_basis = MonomialBasis(dim, 2 * order)
        self.parameter_basis = MonomialBasis(n_params, 2 * order)
        n_phi = len(self.parameter_basis)
        self._weight = cp.Parameter(nonneg=True, value=0.0)
        self._phi = cp.Variable(n_phi)

        on_phi = [self.parameter_basis.moment_map(order)]
        for g in inequalities:
            localizing_order = order - math.ceil(polynomial_degree(g) / 2)
            on_phi.append(self.parameter_basis.localizing_map(g, localizing_order))
        on_data = _equilibrated(self.data_basis, order, target, self.data_basis)
        if distance == "W2":
            self.joint_basis = MonomialBasis(2 * dim, 2 * order)
            self._cost = _transport_cost(self.joint_basis, dim)
            self._blocks = [SemidefiniteBlock(_equilibrated(self.joint_basis, order, target, self.data_basis))]
        else:
            self.joint_basis = self.data_basis
            self._cost = np.zeros(len(self.data_basis))
            self._cost[0] = -1.0
            self._blocks = [
                SemidefiniteBlock(on_data),
                SemidefiniteBlock(-on_data, on_target=on_data),
                SemidefiniteBlock(-on_data, on_phi=sp.csr_array(on_data @ family_map)),
            ]
        self._blocks += [SemidefiniteBlock(on_phi=matrix) for matrix in on_phi]
        self._trace = self._trace_cost()

        self._joint = cp.Variable(len(self.joint_basis))
        cost = self._cost @ self._joint + self._weight * (self._trace @ self._phi)
        self._semidefinite = [self._matrix(cp, block) >> 0 for block in self._blocks]
        equations = [self._phi[0] == 1.0]
        if distance == "W2":
            self._of_x, self._of_y = self._marginal_positions(dim)
            equations += [
                self._joint[self._of_x] == target,
                self._joint[self._of_y] == family_map @ self._phi,
            ]
        self._constant = 0.0 if distance == "W2" else 1.0
        self.problem = cp.Problem(cp.Minimize(cost), self._semidefinite + equations)
        self.seconds_build = time.perf_counter() - begun

    def solve(self, trace_weight: float, solver: str = "CLARABEL") -> LevelSolution:
        """Solve with a weight of the tie-break, the trace of the moment matrix of the mixing measure.

        Parameters
        ----------
        trace_weight : float
            0 for the pure relaxation.
        solver : str, default="CLARABEL"
            A conic solver that cvxpy knows. When Clarabel fails, SCS takes over.

        Returns
        -------
        LevelSolution

        Raises
        ------
        ValueError
            If the solver proves that there is no feasible point: no parameter satisfies the constraints.
        RuntimeError
            If no acceptable solution was found.
        """
        cp = import_extra("cvxpy", extra="cvxpy")
        self._weight.value = trace_weight
        attempts: list[tuple[str, dict[str, Any]]] = [(solver, _FIRST_ORDER if solver == "SCS" else {})]
        if solver == "CLARABEL":
            method = "faer" if max(block.size for block in self._blocks) >= _LARGE else "qdldl"
            attempts = [
                ("CLARABEL", _TIGHT | {"direct_solve_method": method}),
                ("CLARABEL", {}),
                ("SCS", _FIRST_ORDER),
            ]
        said = []
        for name, options in attempts:
            begun = time.perf_counter()
            try:
                with warnings.catch_warnings():
                    # It says that the solution may be inaccurate, which is measured below.
                    warnings.simplefilter("ignore", UserWarning)
                    self.problem.solve(solver=name, warm_start=False, **options)
            except cp.SolverError:
                said.append(f"{name}: failed")
                continue
            seconds = time.perf_counter() - begun
            status = self.problem.status
            said.append(f"{name}: {status}")
            if status == "infeasible":
                raise ValueError(
                    f"bounds and constraints must leave a parameter, got a relaxation of order {self.order} without a "
                    "feasible point"
                )
            if status not in ("optimal", "optimal_inaccurate"):
                continue
            violation = self._violation()
            if status == "optimal" or violation <= _ACCEPTABLE:
                return LevelSolution(
                    value=float(self._constant + self._cost @ self._joint.value),
                    phi=np.asarray(self._phi.value),
                    multipliers=tuple(np.asarray(c.dual_value) for c in self._semidefinite),
                    violation=violation,
                    solver_status=status,
                    seconds=seconds,
                )
        raise RuntimeError(f"the relaxation of order {self.order} was not solved ({'; '.join(said)})")

    def matching_moments(self, tol: float = 1e-7) -> Float[np.ndarray, " monomials"] | None:
        """Moments of the mixing measure with which the mixture has the moments of the target, if there are such.

        When the family determines them, they solve a system of linear equations; they are returned if they satisfy it
        and all semidefinite constraints, to ``tol``. The value of the relaxation is 0 then.

        Returns
        -------
        numpy.ndarray of shape (monomials,) or None
        """
        dense = self.family_map.toarray()
        weight = 1.0 / np.maximum(abs(dense).max(axis=1), 1e-300)
        phi, _, rank, _ = np.linalg.lstsq(dense * weight[:, None], self.target * weight, rcond=1e-12)
        if rank < len(phi) or abs((dense @ phi - self.target) * weight).max() > tol:
            return None
        for block in self._blocks:
            if block.on_joint is None:
                matrix = (block.on_phi @ phi).reshape(block.size, block.size)
                if np.linalg.eigvalsh(matrix)[0] < -tol * max(1.0, float(abs(matrix).max())):
                    return None
        return phi

    def lower_bound(self, multipliers: Sequence[np.ndarray]) -> tuple[float, Float[np.ndarray, " monomials"]]:
        r"""A proved lower bound on the distance of the target to all mixtures, from any multipliers.

        For any positive semidefinite matrices :math:`Z_b` the Lagrangian is linear in the moments. Where its
        coefficient can be balanced by the multiplier of an equation it is; elsewhere it is multiplied by a bound on
        the moment: for a coupling, Hölder's inequality; for the mixing measure, 1, as its parameters lie in
        :math:`[-1, 1]`.

        Parameters
        ----------
        multipliers : sequence of numpy.ndarray
            One symmetric matrix per positive semidefinite constraint.

        Returns
        -------
        bound : float
            In scaled units.
        potential : numpy.ndarray of shape (monomials,)
            Coefficients of the polynomial whose mean under the target is the part of the bound that depends on it.
        """
        left_joint, left_phi = self._cost.copy(), np.zeros(len(self.parameter_basis))
        potential = np.zeros(len(self.data_basis))
        for block, given in zip(self._blocks, multipliers, strict=True):
            multiplier = _positive_part(given).ravel()
            for rest, matrix in (
                (left_joint, block.on_joint),
                (left_phi, block.on_phi),
                (potential, block.on_target),
            ):
                if matrix is not None:
                    rest -= matrix.T @ multiplier
        powers = np.array([2 * self.order * row for row in np.eye(self.data_basis.dim, dtype=np.int64)])
        at = self.data_basis.positions(powers)
        largest_x = max(float(self.target[at].sum()), 0.0)
        if self.distance == "W2":
            potential += left_joint[self._of_x]
            second = left_joint[self._of_y]
            # A coefficient of the constant belongs to one marginal only.
            second[0] = 0.0
            left_phi += self.family_map.T @ second
            left_joint[self._of_x] = 0.0
            left_joint[self._of_y] = 0.0
            largest_y = float(abs(self.family_map[at]).sum())
            dim = self.data_basis.dim
            degrees = self.joint_basis.exponents[:, :dim].sum(axis=1), self.joint_basis.exponents[:, dim:].sum(axis=1)
            share = 1.0 / (2 * self.order)
            bounds = largest_x ** (degrees[0] * share) * largest_y ** (degrees[1] * share)
        else:
            bounds = largest_x ** (self.data_basis.exponents.sum(axis=1) / (2 * self.order))
        bound = self._constant + potential @ self.target + left_phi[0]
        bound -= abs(left_joint) @ bounds + abs(left_phi[1:]).sum()
        return float(bound), potential

    def _matrix(self, cp: Any, block: SemidefiniteBlock) -> Any:
        entries = 0.0 if block.on_target is None else block.on_target @ self.target
        for unknown, matrix in ((self._joint, block.on_joint), (self._phi, block.on_phi)):
            if matrix is not None:
                entries = entries + matrix @ unknown
        return cp.reshape(entries, (block.size, block.size), order="C")

    def _violation(self) -> float:
        joint, phi = np.asarray(self._joint.value), np.asarray(self._phi.value)
        worst = abs(phi[0] - 1.0)
        if self.distance == "W2":
            worst = max(worst, abs(joint[self._of_x] - self.target).max())
            worst = max(worst, abs(joint[self._of_y] - self.family_map @ phi).max())
        for constraint in self._semidefinite:
            worst = max(worst, -float(np.linalg.eigvalsh(constraint.args[0].value).min()))
        return float(worst)

    def _trace_cost(self) -> Float[np.ndarray, " monomials"]:
        diagonal = 2 * self.parameter_basis.exponents[: self.parameter_basis.count(self.order)]
        cost = np.zeros(len(self.parameter_basis))
        cost[self.parameter_basis.positions(diagonal)] = 1.0
        return cost

    def _marginal_positions(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        alone, nothing = self.data_basis.exponents, np.zeros_like(self.data_basis.exponents)
        of_x = self.joint_basis.positions(np.hstack([alone, nothing]))
        of_y = self.joint_basis.positions(np.hstack([nothing, alone]))
        return of_x, of_y


def _transport_cost(basis: MonomialBasis, dim: int) -> Float[np.ndarray, " monomials"]:
    cost = np.zeros(len(basis))
    eye = np.eye(2 * dim, dtype=np.int64)
    x, y = eye[:dim], eye[dim:]
    cost[basis.positions(2 * x)] = 1.0
    cost[basis.positions(2 * y)] = 1.0
    cost[basis.positions(x + y)] = -2.0
    return cost


def _equilibrated(basis: MonomialBasis, order: int, target: np.ndarray, target_basis: MonomialBasis) -> sp.csr_array:
    """The map of the moment matrix, its rows and columns divided so that the diagonal is near 1.

    Moments of high order differ by many powers of ten (those of an exponential distribution are factorials), and the
    solver scales a semidefinite block only as a whole. The divisors are for independent copies of the target.
    """
    halves = np.split(basis.exponents[: basis.count(order)], basis.dim // target_basis.dim, axis=1)
    squares = np.prod([target[target_basis.positions(2 * half)] for half in halves], axis=0)
    # A target at a single point has moments of zero.
    divisor = 1.0 / np.sqrt(np.maximum(squares, 1e-6))
    return sp.csr_array(sp.diags_array(np.outer(divisor, divisor).ravel()) @ basis.moment_map(order))


def _positive_part(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * np.maximum(values, 0.0)) @ vectors.T
