import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from assay.games.matrix_game import duality_gap, nearest_distribution, project_simplex
from assay.games.semismooth_newton import GameSplitting, drs_residual, lift, newton_step, residual_gap_bound

SHAPES = [(6, 9), (9, 6), (7, 7), (1, 4), (4, 1), (70, 80)]


def skew(payoff):
    n, m = payoff.shape
    return np.block([[np.zeros((n, n)), payoff], [-payoff.T, np.zeros((m, m))]])


def plain_residual(payoff, w, step_size):
    """The map as it is defined, with the whole matrix."""
    n = payoff.shape[0]
    z = np.concatenate((project_simplex(w[:n]), project_simplex(w[n:])))
    return z - np.linalg.solve(np.eye(w.size) + step_size * skew(payoff), 2 * z - w), z


def plain_jacobian(payoff, z, step_size):
    """Derivative of the map on the piece where ``z`` is."""
    n = payoff.shape[0]
    projection = np.zeros((z.size, z.size))
    for part in (np.flatnonzero(z[:n] > 0), n + np.flatnonzero(z[n:] > 0)):
        projection[np.ix_(part, part)] = np.eye(part.size) - 1 / part.size
    identity = np.eye(z.size)
    return projection - np.linalg.solve(identity + step_size * skew(payoff), 2 * projection - identity)


def game(seed, shape):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), rng.normal(size=sum(shape)) * rng.choice([0.01, 0.1, 1.0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_residual_is_that_of_the_definition(shape, seed):
    payoff, w = game(seed, shape)
    residual, x, y = drs_residual(payoff, w, 0.7)
    expected, z = plain_residual(payoff, w, 0.7)
    np.testing.assert_allclose(residual, expected, atol=1e-12)
    np.testing.assert_allclose(np.concatenate((x, y)), z, atol=1e-15)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("regularization", [1e-3, 0.1, 10.0])
def test_the_step_solves_the_regularised_newton_equation(shape, regularization):
    payoff, w = game(1, shape)
    residual, x, y = drs_residual(payoff, w, 0.7)
    step = newton_step(payoff, residual, x, y, regularization, 0.7)
    jacobian = plain_jacobian(payoff, np.concatenate((x, y)), 0.7)
    expected = np.linalg.solve(jacobian + regularization * np.eye(w.size), -residual)
    np.testing.assert_allclose(step, expected, atol=1e-9 * max(1, abs(expected).max()))


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_the_jacobian_is_the_derivative(shape):
    payoff, w = game(2, shape)
    residual, x, y = drs_residual(payoff, w, 0.7)
    jacobian = plain_jacobian(payoff, np.concatenate((x, y)), 0.7)
    direction = np.random.default_rng(0).normal(size=w.size)
    forward = drs_residual(payoff, w + 1e-7 * direction, 0.7)[0]
    np.testing.assert_allclose((forward - residual) / 1e-7, jacobian @ direction, atol=1e-5)


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (90, 100)])
@pytest.mark.parametrize("density", [0.05, 0.4])
def test_sparse_equals_dense(shape, density):
    rng = np.random.default_rng(0)
    payoff = sp.random_array(shape, density=density, rng=rng, format="csr")
    w = rng.normal(size=sum(shape))
    sparse, dense = drs_residual(payoff, w, 0.7), drs_residual(payoff.toarray(), w, 0.7)
    for one, other in zip(sparse, dense, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    steps = [newton_step(kind, *dense, 0.1, 0.7) for kind in (payoff, payoff.toarray())]
    np.testing.assert_allclose(*steps, atol=1e-9)


def linear_program(payoff):
    n, m = payoff.shape
    answer = linprog(
        np.append(np.zeros(n), 1),
        A_ub=np.column_stack((payoff.T, -np.ones(m))),
        b_ub=np.zeros(m),
        A_eq=np.append(np.ones(n), 0)[None],
        b_eq=[1],
        bounds=[(0, None)] * n + [(None, None)],
        method="highs-ds",
    )
    return answer.x[:-1], np.maximum(-answer.ineqlin.marginals, 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_residual_vanishes_at_a_solution_of_the_linear_program(seed):
    payoff = np.random.default_rng(seed).uniform(-1, 1, (20, 30))
    x, y = linear_program(payoff)
    residual, x_back, y_back = drs_residual(payoff, lift(payoff, x, y, 1.0), 1.0)
    assert np.linalg.norm(residual) <= 1e-12
    np.testing.assert_allclose(x_back, x, atol=1e-12)
    np.testing.assert_allclose(y_back, y, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_one_step_from_the_right_supports_lands_on_the_equilibrium(seed):
    rng = np.random.default_rng(seed)
    payoff = rng.uniform(-1, 1, (20, 30))
    w = lift(payoff, *linear_program(payoff), 1.0) + 1e-6 * rng.normal(size=50)
    residual, x, y = drs_residual(payoff, w, 1.0)
    assert np.linalg.norm(residual) > 1e-7
    after = drs_residual(payoff, w + newton_step(payoff, residual, x, y, 1e-10, 1.0), 1.0)
    assert np.linalg.norm(after[0]) <= 1e-10
    assert duality_gap(payoff, *after[1:]) <= 1e-10


@given(
    payoff=arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(-10, 10)),
    seed=st.integers(0, 1000),
    step_size=st.floats(0.01, 100),
    spread=st.floats(1e-6, 100),
)
@settings(max_examples=200, deadline=None)
def test_the_residual_bounds_the_gap_everywhere(payoff, seed, step_size, spread):
    w = spread * np.random.default_rng(seed).normal(size=sum(payoff.shape))
    residual, x, y = drs_residual(payoff, w, step_size)
    bound = residual_gap_bound(float(np.linalg.norm(residual)), step_size, float(np.linalg.norm(payoff, 2)))
    assert duality_gap(payoff, x, y) <= bound * (1 + 1e-6) + 1e-10


def test_the_bound_is_within_a_factor_of_what_can_happen():
    # Both players at the wrong action of matching pennies with a saddle point: gap 2, residual of order 1.
    payoff = np.array([[0.0, 1.0], [-1.0, 0.0]])
    w = np.array([1.0, 0.0, 1.0, 0.0])
    residual, x, y = drs_residual(payoff, w, 1.0)
    bound = residual_gap_bound(float(np.linalg.norm(residual)), 1.0, 1.0)
    assert duality_gap(payoff, x, y) <= bound <= 10 * duality_gap(payoff, x, y)


def test_the_splitting_iteration_converges_to_the_equilibrium():
    payoff = np.array([[0.0, -1, 3], [1, 0, -1], [-3, 1, 0]])
    w = np.random.default_rng(0).normal(size=6)
    for _ in range(400):
        residual, x, _ = drs_residual(payoff, w, 1.0)
        w = w - residual
    np.testing.assert_allclose(x, [0.2, 0.6, 0.2], atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (70, 90)])
def test_spectral_norm_and_default_step(shape):
    payoff = np.random.default_rng(0).normal(size=shape)
    splitting = GameSplitting(payoff)
    assert splitting.spectral_norm == pytest.approx(np.linalg.norm(payoff, 2), rel=1e-9)
    assert splitting.step_size * splitting.spectral_norm == pytest.approx(3.0)


def test_a_singular_system_is_reported():
    # Two equal columns and next to no regularisation: the system is singular to working precision.
    payoff = 1e3 * np.ones((3, 3))
    splitting = GameSplitting(payoff, step_size=1e3)
    x = y = np.full(3, 1 / 3)
    with pytest.raises(np.linalg.LinAlgError, match="singular to working precision"):
        splitting.newton(x, y, np.full(3, np.inf), x, 1e-10)


@pytest.mark.parametrize("unit", [1e-300, 1e-8, 1e8, 1e300])
def test_only_the_product_of_step_and_payoffs_matters(unit):
    payoff, w = game(3, (6, 9))
    payoff /= abs(payoff).max()
    plain, scaled = drs_residual(payoff, w, 0.7), drs_residual(unit * payoff, w, 0.7 / unit)
    for one, other in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    steps = newton_step(payoff, *plain, 0.1, 0.7), newton_step(unit * payoff, *plain, 0.1, 0.7 / unit)
    np.testing.assert_allclose(*steps, atol=1e-9)


def test_a_game_of_zeros():
    residual, x, y = drs_residual(np.zeros((2, 3)), np.zeros(5), 1.0)
    np.testing.assert_allclose(residual, -np.concatenate((x, y)))


def test_weighted_products_with_columns():
    rng = np.random.default_rng(0)
    for payoff in (rng.normal(size=(5, 8)), rng.normal(size=(8, 5))):
        weights = rng.random(8)
        for kind in (payoff, sp.csr_array(payoff), sp.csr_array(payoff * (rng.random(payoff.shape) < 0.06))):
            dense = kind if kind is payoff else kind.toarray()
            small = dense if dense.shape[0] == 5 else dense.T
            product = GameSplitting(kind, 1.0).weighted_gram(weights)
            np.testing.assert_allclose(np.tril(product), np.tril(small * weights @ small.T), atol=1e-12)


# Projection onto the simplex.


@given(point=arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e6, 1e6)))
@settings(max_examples=200, deadline=None)
def test_the_projection_satisfies_its_optimality_conditions(point):
    projected = project_simplex(point)
    assert projected.min() >= 0
    assert projected.sum() == pytest.approx(1, abs=1e-9)
    # point - projected is a normal vector: no action gains over those that are played.
    direction = point - projected
    assert direction.max() <= direction[projected > 0].min() + 1e-9 * max(1, abs(point).max())


def test_the_projection_of_known_points():
    np.testing.assert_array_equal(project_simplex([0.3, 0.7]), [0.3, 0.7])
    np.testing.assert_array_equal(project_simplex([5]), [1])
    np.testing.assert_array_equal(project_simplex([2, 0, 0]), [1, 0, 0])
    np.testing.assert_allclose(project_simplex([1e17, 1e17, 0]), [0.5, 0.5, 0])
    np.testing.assert_allclose(project_simplex(np.zeros(4)), 0.25)
    assert nearest_distribution(np.full(3, 1e300)).sum() == pytest.approx(1)
    np.testing.assert_array_equal(project_simplex([1.7e308, -1.7e308]), [1, 0])
    with pytest.raises(ValueError, match="point must be a finite 1-D array"):
        project_simplex([np.nan])


# Bad input.


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda a: drs_residual(a, np.zeros(3), 1.0), r"w must have length 5 \(rows plus columns\), got 3"),
        (lambda a: drs_residual(a, np.full(5, np.nan), 1.0), "w must be a finite 1-D array"),
        (lambda a: drs_residual(a, np.zeros(5), 0.0), "step_size must be greater than 0"),
        (lambda a: lift(a, [1, 0], [1, 0], 1.0), "y must have length 3"),
        (lambda a: lift(a, [1, 0], [1, 0, 0], -1.0), "step_size must be greater than 0"),
        (lambda a: drs_residual(a, np.zeros(5), 1e9), r"step_size must be at most 1e\+08 over"),
        (lambda a: lift(1e299 * a, [1, 0], [0, 1, 0], 1e12), "step_size must be such that its products with payoffs"),
        (lambda a: residual_gap_bound(1.0, 0.0, 1.0), "step_size must be greater than 0"),
        (lambda a: residual_gap_bound(-1.0, 1.0, 1.0), "residual_norm must be at least 0"),
        (lambda a: residual_gap_bound(1.0, 1.0, np.nan), "spectral_norm must be finite"),
        (lambda a: lift(a[0], [1, 0], [1, 0, 0], 1.0), "payoff must be a finite 2-D array"),
        (lambda a: newton_step(a, np.zeros(4), [1, 0], [1, 0, 0], 1.0, 1.0), "residual must have length 5"),
        (lambda a: newton_step(a, np.zeros(5), [1, 1], [1, 0, 0], 1.0, 1.0), "x must sum to 1"),
        (lambda a: newton_step(a, np.zeros(5), [1, 0], [1, 0, 0], 0.0, 1.0), "regularization must be greater than 0"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.arange(6.0).reshape(2, 3))
