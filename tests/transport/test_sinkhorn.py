"""Scaling and rounding: exact marginals from anything, and the fused loops against plain formulas."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.transport.sinkhorn import round_to_marginals, scale_and_round, sinkhorn_scaling


def plain_scaling(K, p, q, n_iter):
    v = np.ones(len(q))
    for _ in range(n_iter):
        u = p / (K @ v)
        v = q / (K.T @ u)
    return u, v


def plain_rounding(X, p, q):
    X = X * np.minimum(1, p / X.sum(1))[:, None]
    X = X * np.minimum(1, q / X.sum(0))
    rows, columns = np.maximum(p - X.sum(1), 0), np.maximum(q - X.sum(0), 0)
    return X + np.outer(rows, columns) / rows.sum() if rows.sum() > 0 else X


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    return rng.random((23, 31)), rng.dirichlet(np.ones(23)), rng.dirichlet(np.ones(31))


def violation(X, p, q):
    return max(abs(X.sum(1) - p).max(), abs(X.sum(0) - q).max())


def test_scaling_is_the_plain_iteration(problem):
    K, p, q = problem
    for got, wanted in zip(sinkhorn_scaling(K, p, q, 7), plain_scaling(K, p, q, 7), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_scaling_converges_to_the_marginals(problem):
    K, p, q = problem
    u, v = sinkhorn_scaling(K, p, q, 300)
    assert violation(u[:, None] * K * v, p, q) < 1e-15


def test_column_sums_are_exact_after_any_number_of_iterations(problem):
    K, p, q = problem
    u, v = sinkhorn_scaling(K, p, q, 1)
    np.testing.assert_allclose((u[:, None] * K * v).sum(0), q, rtol=1e-13)


def test_rounding_is_the_plain_formula(problem):
    X, p, q = problem
    np.testing.assert_allclose(round_to_marginals(X, p, q), plain_rounding(X, p, q), atol=1e-17, rtol=1e-12)


def test_scale_and_round_is_one_after_the_other(problem):
    K, p, q = problem
    u, v = plain_scaling(K, p, q, 3)
    np.testing.assert_allclose(scale_and_round(K, p, q, 3), plain_rounding(u[:, None] * K * v, p, q), rtol=1e-12)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_rounding_gives_exact_marginals_for_any_positive_matrix(data):
    n, m = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    positive = st.floats(1e-12, 1e12)
    X = data.draw(arrays(np.float64, (n, m), elements=positive))
    weights = st.floats(1e-6, 1.0)
    p, q = (data.draw(arrays(np.float64, size, elements=weights)) for size in (n, m))
    p, q = p / p.sum(), q / q.sum()
    Y = round_to_marginals(X, p, q)
    assert violation(Y, p, q) <= 1e-15
    assert Y.min() >= 0.0


def test_rounding_moves_no_more_than_twice_the_violation(problem):
    rng = np.random.default_rng(1)
    _, p, q = problem
    X = np.outer(p, q) * rng.uniform(0.9, 1.1, (23, 31))
    bound = 2 * (abs(X.sum(1) - p).sum() + abs(X.sum(0) - q).sum())
    assert abs(round_to_marginals(X, p, q) - X).sum() <= bound


def test_exact_coupling_is_left_alone(problem):
    _, p, q = problem
    X = round_to_marginals(np.outer(p, q), p, q)
    np.testing.assert_allclose(round_to_marginals(X, p, q), X, rtol=1e-12)


def test_rows_and_columns_that_underflowed_are_filled(problem):
    K, p, q = (array.copy() for array in problem)
    K[3], K[:, 5] = 0.0, 0.0
    K[7] = 1e-200
    X = scale_and_round(K, p, q, 20)
    assert np.isfinite(X).all()
    assert X.min() >= 0.0
    assert violation(X, p, q) <= 1e-15


def test_extreme_kernel_stays_finite():
    rng = np.random.default_rng(2)
    K = np.exp(-rng.uniform(0, 700, (40, 40)))
    w = np.full(40, 1 / 40)
    X = scale_and_round(K, w, w, 50)
    assert np.isfinite(X).all()
    assert violation(X, w, w) <= 1e-16


def test_arguments_are_only_read_and_out_may_be_the_kernel(problem):
    K, p, q = problem
    copies = K.copy(), p.copy(), q.copy()
    fresh = scale_and_round(K, p, q, 4)
    round_to_marginals(K, p, q)
    for array, copy in zip((K, p, q), copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert scale_and_round(K, p, q, 4, K) is K
    np.testing.assert_array_equal(K, fresh)


def test_torch_takes_the_same_formulas(problem):
    K, p, q = problem
    tensors = [torch.from_numpy(array.copy()) for array in problem]
    np.testing.assert_allclose(scale_and_round(*tensors, 6).numpy(), scale_and_round(K, p, q, 6), rtol=1e-12)
    out = torch.empty_like(tensors[0])
    assert round_to_marginals(*tensors, out) is out
    np.testing.assert_allclose(out.numpy(), round_to_marginals(K, p, q), atol=1e-17, rtol=1e-12)
    tensors[0][3] = 0.0
    assert bool(scale_and_round(*tensors, 20).isfinite().all())


def test_single_entry():
    one = np.ones(1)
    np.testing.assert_array_equal(scale_and_round(np.array([[1e-9]]), one, one, 1), [[1.0]])
