r"""What can be proved about a Gromov-Wasserstein coupling after the fact.

Three quantities, each computed from the plan and the two matrices alone:

- the *value* of the objective, and by how much the plan misses its marginals;
- the *Frank-Wolfe gap* ``max_P <grad(X), X - P>`` over the couplings ``P``. It is never negative, and zero exactly
  at first-order stationary points. The maximum is a linear transport problem; what is reported is not the value of
  some solver for it but an upper bound from dual potentials, which anyone can check with one pass over the matrix;
- a *lower bound* on the objective over all couplings (Memoli's second lower bound): the transport cost between the
  distributions of the entries of the two matrices, a problem on the line. When it meets the value, the plan is
  globally optimal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from numba import njit

from assay.certificate import Assumption, Certificate
from assay.transport.exact_transport import largest_feasible_potential, network_simplex
from assay.transport.gw_problem import GWProblem, Relation, prepare_problem
from assay.transport.gw_products import Sandwich

__all__ = ["coupling_violation", "frank_wolfe_gap", "gw_certificates", "gw_value", "second_lower_bound"]

Plan = Any


def gw_value(
    C1: Relation, C2: Relation, plan: Plan, p: Any = None, q: Any = None, *, normalize: bool | str = "auto"
) -> float:
    r"""Gromov-Wasserstein objective of a coupling, with the square loss.

    .. math:: \sum_{ikjl} (C^1_{ik} - C^2_{jl})^2 X_{ij} X_{kl} = u^\top p + v^\top q - 2 \langle C^1 X C^2, X\rangle

    with ``u = (C1 * C1) p`` and ``v = (C2 * C2) q``.

    Parameters
    ----------
    C1, C2 : array_like, torch.Tensor, sparse matrix or networkx.Graph
        Symmetric, of shapes (n, n) and (m, m).
    plan : array or tensor of shape (n, m)
        A coupling of ``p`` and ``q``.
    p, q : array_like of shapes (n,) and (m,), optional
        Distributions; uniform by default.
    normalize : bool or "auto", default="auto"
        As in :func:`assay.transport.lobcd_gw`.

    Returns
    -------
    float
        Non-negative up to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_bounds import gw_value
    >>> gw_value([[0, 1], [1, 0]], [[0, 2], [2, 0]], np.eye(2) / 2)
    0.5
    """
    problem = prepare_problem(C1, C2, p, q, normalize)
    X = _active(plan, problem)
    return problem.scale - 2.0 * float((Sandwich.of(problem.C1, problem.C2).product(X) * X).sum())


def coupling_violation(plan: Plan, p: Float[np.ndarray, " n"], q: Float[np.ndarray, " m"]) -> float:
    """By how much a plan misses being a coupling: the largest error of a row sum, a column sum or a sign.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_bounds import coupling_violation
    >>> coupling_violation(np.array([[0.5, 0.25], [0.0, 0.25]]), np.array([0.5, 0.5]), np.array([0.5, 0.5]))
    0.25
    """
    if isinstance(plan, torch.Tensor):
        plan = plan.detach().cpu().numpy()
    X = np.asarray(plan, dtype=np.float64)
    return max(
        float(np.abs(X.sum(axis=1) - p).max()), float(np.abs(X.sum(axis=0) - q).max()), max(-float(X.min()), 0.0)
    )


def frank_wolfe_gap(
    C1: Relation, C2: Relation, plan: Plan, p: Any = None, q: Any = None, *, normalize: bool | str = "auto"
) -> float:
    r"""Proved upper bound on the Frank-Wolfe gap of a coupling: zero exactly at first-order stationary points.

    .. math:: g(X) = \langle \nabla(X), X\rangle - \min_{P \in \Pi(p,q)} \langle \nabla(X), P\rangle,
              \qquad \nabla(X) = -4\, C^1 X C^2

    The minimum is bounded from below by a dual solution of the linear transport problem, made feasible by one pass
    over the gradient, so that the bound does not rest on the solver that found it.

    Parameters
    ----------
    C1, C2, plan, p, q, normalize
        As in :func:`gw_value`.

    Returns
    -------
    float
        Equal to the gap up to rounding.

    Notes
    -----
    One product with the two matrices and one linear transport problem.

    References
    ----------
    M. Jaggi. Revisiting Frank-Wolfe: projection-free sparse convex optimization. ICML 2013.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_bounds import frank_wolfe_gap
    >>> path = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    >>> frank_wolfe_gap(path, path, np.eye(3) / 3)
    0.0
    >>> round(frank_wolfe_gap(path, path, np.full((3, 3), 1 / 9)), 4)
    0.0988
    """
    problem = prepare_problem(C1, C2, p, q, normalize)
    X = _active(plan, problem)
    return _gap_from_product(Sandwich.of(problem.C1, problem.C2).product(X), X, problem)


def second_lower_bound(
    C1: Relation, C2: Relation, p: Any = None, q: Any = None, *, normalize: bool | str = "auto"
) -> float:
    """Lower bound on the Gromov-Wasserstein objective over all couplings.

    It compares how the entries of the two matrices are distributed, when pairs of points are drawn from ``p x p`` and
    ``q x q``: the squared Wasserstein distance between these two distributions on the line. A coupling of the points
    couples the pairs, so no coupling can do better.

    Parameters
    ----------
    C1, C2, p, q, normalize
        As in :func:`gw_value`.

    Returns
    -------
    float
        Zero for two relabellings of one space.

    Notes
    -----
    Sorts the entries: ``O(n^2 log n)``. Of a sparse matrix it sorts the stored entries only; the others are one
    atom at zero.

    References
    ----------
    F. Memoli. Gromov-Wasserstein distances and the metric approach to object matching. Foundations of Computational
    Mathematics 11, 2011.

    Examples
    --------
    >>> import networkx as nx
    >>> from assay.transport.gw_bounds import second_lower_bound
    >>> round(second_lower_bound(nx.complete_graph(3), nx.path_graph(3), normalize=False), 4)
    0.2222
    """
    problem = prepare_problem(C1, C2, p, q, normalize)
    return lower_bound_of(problem)


def lower_bound_of(problem: GWProblem) -> float:
    """:func:`second_lower_bound` of a checked problem."""
    values1, masses1 = _distribution_of_entries(problem.C1, problem.p)
    values2, masses2 = _distribution_of_entries(problem.C2, problem.q)
    return float(_line_transport(values1, masses1, values2, masses2))


def gw_certificates(
    problem: GWProblem, plan: Float[np.ndarray, "n m"], *, finished: bool
) -> tuple[float, float, float, float, tuple[Certificate, ...]]:
    """Evaluate what is promised about a plan, from the plan and the problem alone.

    Parameters
    ----------
    problem : GWProblem
        The checked problem.
    plan : numpy.ndarray of shape (n, m)
        A plan on its points.
    finished : bool
        Whether the plan is promised to be a first-order stationary point.

    Returns
    -------
    value, lower_bound, gap, violation : float
        The objective, the bound on it, the Frank-Wolfe gap, and the violation of the marginals.
    certificates : tuple of Certificate
        Feasibility, the lower bound, and, when it is promised, stationarity.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_bounds import gw_certificates
    >>> from assay.transport.gw_problem import prepare_problem
    >>> problem = prepare_problem([[0, 1], [1, 0]], [[0, 2], [2, 0]])
    >>> value, bound, gap, violation, certificates = gw_certificates(problem, np.eye(2) / 2, finished=True)
    >>> value, bound, gap, violation, all(c.holds for c in certificates)
    (0.5, 0.5, 0.0, 0.0, True)
    """
    scale = problem.scale
    product = Sandwich.of(problem.C1, problem.C2).product(plan)
    value = max(scale - 2.0 * float(np.vdot(product, plan)), 0.0)
    gap = _gap_from_product(product, plan, problem)
    del product
    bound = lower_bound_of(problem)
    violation = coupling_violation(plan, problem.p, problem.q)
    certificates = [
        Certificate("violation of the marginals and of the signs by the float64 plan", violation, 1e-14),
        Certificate(
            "second lower bound on every coupling, against the value of this one", bound, value + 1e-12 * scale
        ),
    ]
    if finished:
        certificates.append(
            Certificate(
                "Frank-Wolfe gap (zero exactly at first-order stationary points), bounded by dual potentials",
                gap,
                1e-9 * scale,
                assumptions=(Assumption("C1 and C2 are symmetric", True),),
            )
        )
    return value, bound, gap, violation, tuple(certificates)


def _active(plan: Plan, problem: GWProblem) -> np.ndarray:
    """The plan between the points of positive weight, as a float64 array."""
    if isinstance(plan, torch.Tensor):
        plan = plan.detach().cpu().numpy()
    X = np.ascontiguousarray(plan, dtype=np.float64)
    if X.shape != problem.shape:
        raise ValueError(f"plan must have shape {problem.shape}, got {X.shape}")
    if not np.isfinite(X).all():
        raise ValueError("plan must be finite, got nan or infinite entries")
    n, m = len(problem.p), len(problem.q)
    return X if X.shape == (n, m) else np.ascontiguousarray(X[np.ix_(problem.kept1, problem.kept2)])


def _gap_from_product(product: np.ndarray, plan: np.ndarray, problem: GWProblem) -> float:
    """The gap of a plan from ``C1 X C2`` at it, whose memory is used up."""
    inner = float(np.vdot(product, plan))
    cost = np.negative(product, out=product)
    _, _, _, _, psi = network_simplex(cost, problem.p, problem.q)
    # Any psi gives a valid bound with this phi; it is found here rather than taken from the solver.
    phi = largest_feasible_potential(cost, psi)
    return max(4.0 * (-inner - float(problem.p @ phi) - float(problem.q @ psi)), 0.0)


def _distribution_of_entries(matrix: np.ndarray | sp.csr_array, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted entries and their masses when rows and columns are drawn from the weights."""
    if sp.issparse(matrix):
        triplets = matrix.tocoo()
        masses = weights[triplets.row] * weights[triplets.col]
        values = np.append(triplets.data, 0.0)
        masses = np.append(masses, max(1.0 - masses.sum(), 0.0))
    elif weights.min() == weights.max():
        # Equal masses need no permutation: half the memory of the general case.
        values = np.sort(matrix, axis=None)
        return values, np.full(1, weights[0] ** 2)
    else:
        values, masses = matrix.ravel(), np.outer(weights, weights).ravel()
    order = np.argsort(values)
    return values[order], masses[order]


@njit(cache=True)
def _line_transport(values1, masses1, values2, masses2):
    """Squared Wasserstein distance on the line; a vector of one mass stands for equal masses."""
    i, j = 0, 0
    left1 = masses1[0]
    left2 = masses2[0]
    total = 0.0
    while True:
        amount = min(left1, left2)
        total += amount * (values1[i] - values2[j]) ** 2
        left1 -= amount
        left2 -= amount
        if left1 <= 0.0:
            i += 1
            if i == len(values1):
                return total
            left1 = masses1[i] if len(masses1) > 1 else masses1[0]
        if left2 <= 0.0:
            j += 1
            if j == len(values2):
                return total
            left2 = masses2[j] if len(masses2) > 1 else masses2[0]
