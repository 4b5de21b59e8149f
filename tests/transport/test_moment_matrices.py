"""Monomials, polynomials and moment matrices against naive loops."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.transport import raw_moments
from assay.transport.moment_matrices import (
    MonomialBasis,
    evaluate_monomials,
    monomial_exponents,
    multiply_polynomials,
    polynomial_degree,
    substitute_affine,
)


@pytest.mark.parametrize("dim, degree", [(1, 6), (2, 4), (3, 3), (4, 2)])
def test_exponents_are_all_and_graded(dim, degree):
    exponents = monomial_exponents(dim, degree)
    wanted = {e for e in itertools.product(range(degree + 1), repeat=dim) if sum(e) <= degree}
    assert len(exponents) == math.comb(dim + degree, degree)
    assert {tuple(row) for row in exponents.tolist()} == wanted
    assert (np.diff(exponents.sum(axis=1)) >= 0).all()
    basis = MonomialBasis(dim, degree)
    np.testing.assert_array_equal(basis.positions(exponents), np.arange(len(exponents)))


def test_matrices_are_those_of_a_measure():
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(7, 2)), rng.dirichlet(np.ones(7))
    basis = MonomialBasis(2, 6)
    moments = evaluate_monomials(points, basis.exponents).T @ weights
    g = {(0, 0): 2.0, (1, 1): -0.5, (0, 2): 1.0}
    small = evaluate_monomials(points, basis.exponents[: basis.count(3)])
    np.testing.assert_allclose(
        (basis.moment_map(3) @ moments).reshape(10, 10), (small.T * weights) @ small, rtol=1e-12, atol=1e-12
    )
    values = 2.0 - 0.5 * points[:, 0] * points[:, 1] + points[:, 1] ** 2
    smaller = small[:, : basis.count(2)]
    np.testing.assert_allclose(
        (basis.localizing_map(g, 2) @ moments).reshape(6, 6),
        (smaller.T * weights * values) @ smaller,
        rtol=1e-12,
        atol=1e-12,
    )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-2, 2), min_size=6, max_size=6),
    st.lists(st.floats(-2, 2), min_size=2, max_size=2),
    st.lists(st.floats(-2, 2), min_size=4, max_size=4),
)
def test_polynomial_arithmetic(coefficients, point, affine):
    exponents = monomial_exponents(2, 2)
    p = {tuple(e): c for e, c in zip(exponents.tolist(), coefficients, strict=True)}
    q = {(1, 0): 1.0, (0, 1): -2.0}

    def value(polynomial, x):
        return sum(c * x[0] ** a * x[1] ** b for (a, b), c in polynomial.items())

    shift, scale, x = np.array(affine[:2]), np.array(affine[2:]), np.array(point)
    assert value(multiply_polynomials(p, q), x) == pytest.approx(value(p, x) * value(q, x), abs=1e-9)
    assert value(substitute_affine(p, shift, scale), x) == pytest.approx(value(p, shift + scale * x), abs=1e-9)
    assert polynomial_degree({(3, 1): 0.0, (1, 0): 2.0}) == 1


def test_raw_moments():
    X = np.random.default_rng(1).normal(size=(50, 2))
    moments = raw_moments(X, 2)
    assert len(moments) == 15
    for (a, b), value in moments.items():
        assert value == pytest.approx(np.mean(X[:, 0] ** a * X[:, 1] ** b))
    assert raw_moments([1, 2, 3], 1) == {(0,): 1.0, (1,): 2.0, (2,): pytest.approx(14 / 3)}
    assert raw_moments(np.array([1, 2, 3], dtype=np.float32), 1)[(1,)] == 2.0


@pytest.mark.parametrize(
    "X, order, error, message",
    [
        ([1.0, np.nan], 1, ValueError, "X must be a finite"),
        ([], 1, ValueError, "X must be a finite"),
        (np.zeros((2, 2, 2)), 1, ValueError, "X must be a finite"),
        ([1.0, 2.0], 0, ValueError, "order must be at least 1"),
        ([1e200, 1.0], 2, ValueError, "finite moments"),
    ],
)
def test_raw_moments_bad_input(X, order, error, message):
    with pytest.raises(error, match=message):
        raw_moments(X, order)
