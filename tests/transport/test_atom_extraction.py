"""Atoms from moment matrices: exact measures, noise, and the echelon form as an independent method."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.transport import extract_atoms
from assay.transport.atom_extraction import polish_atoms, project_on_set
from assay.transport.moment_matrices import MonomialBasis, evaluate_monomials, monomial_exponents


def moment_matrix(points, weights, order):
    values = evaluate_monomials(points, monomial_exponents(points.shape[1], order))
    return (values.T * weights) @ values


def echelon_atoms(matrix, exponents, rank):
    """Henrion and Lasserre: reduced echelon form of a factor, unsymmetric multiplication matrices, real Schur form."""
    values, vectors = np.linalg.eigh(matrix)
    factor = vectors[:, -rank:] * np.sqrt(values[-rank:])
    inner = np.flatnonzero(exponents.sum(axis=1) < exponents.sum(axis=1).max())
    pivots = inner[scipy.linalg.qr(factor[inner].T, pivoting=True)[2][:rank]]
    reduced = factor @ np.linalg.inv(factor[pivots])
    rows = {tuple(e): i for i, e in enumerate(exponents.tolist())}
    multiplications = []
    for unit in np.eye(exponents.shape[1], dtype=int):
        multiplications.append(reduced[[rows[tuple(e)] for e in (exponents[pivots] + unit).tolist()]])
    combined = sum((k + 1.0) * N for k, N in enumerate(multiplications))
    q = scipy.linalg.schur(combined, output="real")[1]
    return np.column_stack([np.einsum("ij,ik,kj->j", q, N, q) for N in multiplications])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 10**6))
def test_recovers_atoms(dim, n_atoms, seed):
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1, 1, size=(n_atoms, dim))
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2) + 9 * np.eye(n_atoms)
    if gaps.min() < 0.2:
        return
    weights = 0.1 + rng.dirichlet(np.ones(n_atoms))
    weights /= weights.sum()
    order = 4 if dim == 1 else 3
    atoms = extract_atoms(
        moment_matrix(points, weights, order), monomial_exponents(dim, order), rank_tol=1e-9, rng=seed
    )
    assert atoms.flat
    assert atoms.ranks[-1] == n_atoms
    back = np.lexsort(points.T[::-1])
    np.testing.assert_allclose(atoms.points, points[back], atol=1e-4)
    np.testing.assert_allclose(atoms.weights, weights[back], atol=1e-3)
    found = echelon_atoms(moment_matrix(points, weights, order), monomial_exponents(dim, order), n_atoms)
    np.testing.assert_allclose(np.sort(found, axis=0), np.sort(points, axis=0), atol=1e-3)


def test_rows_in_any_order():
    points, weights = np.array([[0.5, -0.3], [-0.2, 0.8]]), np.array([0.25, 0.75])
    exponents = monomial_exponents(2, 2)
    shuffled = np.random.default_rng(0).permutation(6)
    M = moment_matrix(points, weights, 2)
    atoms = extract_atoms(M[np.ix_(shuffled, shuffled)], exponents[shuffled].tolist())
    np.testing.assert_allclose(atoms.points, [[-0.2, 0.8], [0.5, -0.3]], atol=1e-8)
    np.testing.assert_allclose(atoms.weights, [0.75, 0.25], atol=1e-8)


def test_noise_keeps_atoms_real():
    rng = np.random.default_rng(1)
    points, weights = np.array([[0.5], [0.1], [-0.7]]), np.array([0.2, 0.3, 0.5])
    noise = 1e-5 * rng.normal(size=(5, 5))
    atoms = extract_atoms(moment_matrix(points, weights, 4) + noise + noise.T, monomial_exponents(1, 4), 1e-3)
    np.testing.assert_allclose(atoms.points[:, 0], [-0.7, 0.1, 0.5], atol=0.02)


def test_nothing_is_invented():
    # Lebesgue measure on [-1, 1] is no sum of few atoms.
    exponents = monomial_exponents(1, 3)
    sums = exponents + exponents.T
    M = np.where(sums % 2 == 0, 1.0 / (sums + 1.0), 0.0)
    atoms = extract_atoms(M, exponents)
    assert not atoms.flat
    assert atoms.ranks == (1, 2, 3, 4)
    assert atoms.points.shape == (0, 1)


def test_polish_and_project():
    points, weights = np.array([[-0.6], [0.1], [0.7]]), np.array([0.5, 0.3, 0.2])
    basis = MonomialBasis(1, 8)
    moments = evaluate_monomials(points, basis.exponents).T @ weights
    box = np.array([[-1.0, 1.0]])
    start = points + np.array([[0.03], [-0.04], [0.02]])
    better, masses = polish_atoms(start, np.full(3, 1 / 3), moments, None, basis, box)
    np.testing.assert_allclose(better, points, atol=1e-6)
    np.testing.assert_allclose(masses, weights, atol=1e-6)
    disk = {(0, 0): 1.0, (2, 0): -1.0, (0, 2): -1.0}
    square = np.array([[-2.0, 2.0], [-2.0, 2.0]])
    moved = project_on_set(np.array([[0.1, 0.2], [3.0, 0.0], [1.0, 1.0]]), square, [disk])
    np.testing.assert_allclose(moved, [[0.1, 0.2], [1.0, 0.0], [0.5**0.5, 0.5**0.5]], atol=1e-5)


@pytest.mark.parametrize(
    "M, monomials, message",
    [
        (np.eye(3), [[0], [1]], "one row and column per monomial"),
        (np.eye(3), [[0], [1], [3]], "all those up to some degree"),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), [[0], [1]], "must be symmetric"),
        (np.eye(2), [[0.0], [1.0]], "array of non-negative integers"),
        (np.eye(1), [[0]], "must contain those of degree 1"),
        (np.full((2, 2), np.nan), [[0], [1]], "M must be a finite"),
    ],
)
def test_bad_input(M, monomials, message):
    with pytest.raises(ValueError, match=message):
        extract_atoms(M, monomials)
