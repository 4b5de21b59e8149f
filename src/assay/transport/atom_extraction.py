"""From moments to atoms: what a finitely supported measure is, read off its moment matrix.

When the moment matrix of order ``n`` has the rank of that of a lower order (it is *flat*), the moments are those of
that many atoms. Multiplication by a coordinate is then a symmetric matrix on the space of polynomials modulo those that
vanish on the atoms; all these matrices commute, and their joint eigenvalues are the coordinates of the atoms. In a
basis that is orthonormal for the measure, they are symmetric to rounding, so that the eigenvalues are real whatever
the noise in the moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.optimize import least_squares, minimize, nnls

from assay.transport.moment_matrices import (
    MonomialBasis,
    Polynomial,
    evaluate_monomials,
    monomial_exponents,
)
from assay.validation import as_float_array, as_generator, check_real

__all__ = ["Atoms", "extract_atoms", "moment_ranks", "polish_atoms", "project_on_set"]


@dataclass(frozen=True)
class Atoms:
    """Atoms of a measure.

    Attributes
    ----------
    points : numpy.ndarray of shape (n_atoms, dim)
        Where they are; no rows when the moment matrix is not flat.
    weights : numpy.ndarray of shape (n_atoms,)
        Their masses, of sum 1.
    ranks : tuple of int
        Rank of the moment matrix of each order 0, 1, ..., n.
    flat : bool
        Whether the last two ranks are equal.
    """

    points: Float[np.ndarray, "atoms dim"]
    weights: Float[np.ndarray, " atoms"]
    ranks: tuple[int, ...]
    flat: bool


def extract_atoms(M: ArrayLike, monomials: ArrayLike, rank_tol: float = 1e-3, *, rng: Any = 0) -> Atoms:
    """Atoms of the measure with a given moment matrix, when it is flat.

    Parameters
    ----------
    M : array_like of shape (n_monomials, n_monomials)
        Moment matrix of order n: symmetric, positive semidefinite up to rounding.
    monomials : array_like of int of shape (n_monomials, dim)
        Exponents of its rows: all monomials of degree at most n, in any order.
    rank_tol : float, default=1e-3
        Eigenvalues up to this share of the largest one count as zero.
    rng : None, int or numpy.random.Generator, default=0
        For the random combination of coordinates whose eigenvectors are taken.

    Returns
    -------
    Atoms
        Without points when the rank still grows from order n - 1 to order n: nothing is invented.

    Raises
    ------
    TypeError, ValueError
        If the shapes do not fit, or the monomials are not all those up to some degree.

    Notes
    -----
    O(n_monomials^3). The rank condition is sufficient for a measure with that many atoms to have these moments, and
    they are unique then.

    References
    ----------
    D. Henrion, J.-B. Lasserre. Detecting Global Optimality and Extracting Solutions in GloptiPoly. Positive
    Polynomials in Control, 2005.

    Examples
    --------
    The moments of two atoms at -1 and 1 with weights 1/4 and 3/4:

    >>> import numpy as np
    >>> from assay.transport import extract_atoms
    >>> M = np.array([[1.0, 0.5, 1.0], [0.5, 1.0, 0.5], [1.0, 0.5, 1.0]])
    >>> atoms = extract_atoms(M, [[0], [1], [2]])
    >>> atoms.ranks, np.round(atoms.points[:, 0], 6), np.round(atoms.weights, 6)
    ((1, 2, 2), array([-1.,  1.]), array([0.25, 0.75]))
    """
    matrix, exponents = _checked(M, monomials)
    rank_tol = check_real(rank_tol, "rank_tol", above=0, below=1)
    rng = as_generator(rng)
    dim = exponents.shape[1]
    order = int(exponents.sum(axis=1).max())
    graded = MonomialBasis(dim, order)
    back = np.empty(len(exponents), dtype=np.int64)
    back[graded.positions(exponents)] = np.arange(len(exponents))
    matrix = matrix[np.ix_(back, back)]
    ranks = moment_ranks(matrix, dim, order, rank_tol)
    if order == 0:
        raise ValueError("monomials must contain those of degree 1, got the constant alone")
    flat = ranks[-1] == ranks[-2]
    if not flat:
        return Atoms(np.empty((0, dim)), np.empty(0), ranks, flat)

    inner = graded.count(order - 1)
    values, vectors = np.linalg.eigh(matrix[:inner, :inner])
    kept = slice(inner - ranks[-1], inner)
    orthonormal = vectors[:, kept] / np.sqrt(values[kept])
    multiplications = []
    for unit in np.eye(dim, dtype=np.int64):
        shifted = matrix[:inner, graded.positions(graded.exponents[:inner] + unit)]
        multiplications.append(orthonormal.T @ (0.5 * (shifted + shifted.T)) @ orthonormal)
    mixture = sum(c * N for c, N in zip(rng.dirichlet(np.ones(dim)), multiplications, strict=True))
    _, joint = np.linalg.eigh(mixture)
    points = np.column_stack([np.einsum("ij,ik,kj->j", joint, N, joint) for N in multiplications])
    points = points[np.lexsort(points.T[::-1])]
    weights = fit_weights(points, matrix[0], graded.exponents)
    present = weights > 0
    return Atoms(points[present], weights[present], ranks, flat)


def moment_ranks(matrix: Float[np.ndarray, "n n"], dim: int, order: int, rank_tol: float) -> tuple[int, ...]:
    """Numerical rank of the moment matrices of order 0 to ``order``, which are the leading blocks of the last one."""
    ranks = []
    for t in range(order + 1):
        size = len(monomial_exponents(dim, t))
        values = np.linalg.eigvalsh(matrix[:size, :size])
        ranks.append(int(np.count_nonzero(values > rank_tol * values[-1])))
    return tuple(ranks)


def fit_weights(
    points: Float[np.ndarray, "atoms dim"], moments: Float[np.ndarray, " monomials"], exponents: Int[np.ndarray, "m d"]
) -> Float[np.ndarray, " atoms"]:
    """Non-negative weights of sum 1 with which the atoms come closest to given moments."""
    weights, _ = nnls(evaluate_monomials(points, exponents).T, moments)
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(points), 1.0 / len(points))


def polish_atoms(
    points: Float[np.ndarray, "atoms dim"],
    weights: Float[np.ndarray, " atoms"],
    moments: Float[np.ndarray, " monomials"],
    linear_map: Any,
    basis: MonomialBasis,
    box: Float[np.ndarray, "dim 2"],
) -> tuple[Float[np.ndarray, "atoms dim"], Float[np.ndarray, " atoms"]]:
    """Least-squares fit of atoms and weights to moments, or to a linear map of them, from a good start.

    Parameters
    ----------
    points, weights : numpy.ndarray
        Start.
    moments : numpy.ndarray
        What the map of the moments of the atoms is to meet.
    linear_map : sparse matrix or None
        None for the moments themselves.
    basis : MonomialBasis
        Monomials of the moments of the atoms.
    box : numpy.ndarray of shape (dim, 2)
        Bounds of the atoms.

    Returns
    -------
    points, weights : numpy.ndarray
        Never a worse fit than the start.
    """
    n_atoms, dim = points.shape
    slopes = [_derivative(basis, k) for k in range(dim)]

    def mapped(columns: np.ndarray) -> np.ndarray:
        return columns if linear_map is None else linear_map @ columns

    def residual(x: np.ndarray) -> np.ndarray:
        return mapped(evaluate_monomials(x[n_atoms:].reshape(n_atoms, dim), basis.exponents).T @ x[:n_atoms]) - moments

    def jacobian(x: np.ndarray) -> np.ndarray:
        values = evaluate_monomials(x[n_atoms:].reshape(n_atoms, dim), basis.exponents)
        by_point = np.empty((len(basis), n_atoms, dim))
        for k, (positions, factors) in enumerate(slopes):
            by_point[:, :, k] = (values[:, positions] * factors).T * x[:n_atoms]
        return np.asarray(mapped(np.hstack([values.T, by_point.reshape(len(basis), -1)])))

    lower = np.concatenate([np.zeros(n_atoms), np.tile(box[:, 0], n_atoms)])
    upper = np.concatenate([np.full(n_atoms, np.inf), np.tile(box[:, 1], n_atoms)])
    start = np.concatenate([weights, np.clip(points, box[:, 0], box[:, 1]).ravel()])
    # The solver wants to start inside.
    inside = np.clip(start, lower + 1e-10, upper - 1e-10)
    fit = least_squares(
        residual, inside, jacobian, bounds=(lower, upper), x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15
    )
    end = fit.x.copy()
    end[:n_atoms] /= end[:n_atoms].sum()
    best = min((start, end), key=lambda x: float(np.sum(residual(x) ** 2)))
    return best[n_atoms:].reshape(n_atoms, dim), best[:n_atoms]


def project_on_set(
    points: Float[np.ndarray, "atoms dim"],
    box: Float[np.ndarray, "dim 2"],
    inequalities: Sequence[Polynomial],
) -> Float[np.ndarray, "atoms dim"]:
    """Nearest points (locally) of a box in which polynomials are non-negative."""
    projected = np.clip(points, box[:, 0], box[:, 1])
    functions = [_polynomial_function(g) for g in inequalities]
    for i, point in enumerate(projected):
        if all(g(point) >= 0 for g in functions):
            continue
        nearest = minimize(
            lambda x, point=point: float(np.sum((x - point) ** 2)),
            point,
            method="SLSQP",
            bounds=box,
            constraints=[{"type": "ineq", "fun": g} for g in functions],
            options={"ftol": 1e-14},
        )
        projected[i] = np.clip(nearest.x, box[:, 0], box[:, 1])
    return projected


def _polynomial_function(polynomial: Polynomial) -> Callable[[np.ndarray], float]:
    exponents, coefficients = np.array(list(polynomial)), np.array(list(polynomial.values()))
    return lambda x: float(evaluate_monomials(x[None, :], exponents)[0] @ coefficients)


def _derivative(basis: MonomialBasis, k: int) -> tuple[Int[np.ndarray, " monomials"], Float[np.ndarray, " monomials"]]:
    """Which monomial each one becomes under the derivative by variable ``k``, and the factor."""
    lowered = basis.exponents.copy()
    lowered[:, k] = np.maximum(lowered[:, k] - 1, 0)
    return basis.positions(lowered), basis.exponents[:, k].astype(float)


def _checked(M: ArrayLike, monomials: ArrayLike) -> tuple[Float[np.ndarray, "n n"], Int[np.ndarray, "n dim"]]:
    matrix = as_float_array(M, "M", ndim=2)
    exponents = np.asarray(monomials)
    if exponents.dtype.kind not in "iu" or exponents.ndim != 2 or exponents.shape[1] == 0 or exponents.min() < 0:
        raise ValueError(
            "monomials must be a 2-D array of non-negative integers, one row of exponents per monomial, "
            f"got shape {exponents.shape} and dtype {exponents.dtype}"
        )
    exponents = exponents.astype(np.int64)
    if matrix.shape != (len(exponents),) * 2:
        raise ValueError(f"M must have one row and column per monomial ({len(exponents)}), got shape {matrix.shape}")
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-8 * abs(matrix).max()):
        raise ValueError(f"M must be symmetric, got a difference of {abs(matrix - matrix.T).max():.3g}")
    complete = monomial_exponents(exponents.shape[1], int(exponents.sum(axis=1).max()))
    if {tuple(row) for row in exponents.tolist()} != {tuple(row) for row in complete.tolist()} or len(complete) != len(
        exponents
    ):
        raise ValueError("monomials must be all those up to some degree, each once")
    return 0.5 * (matrix + matrix.T), exponents
