"""The concave problem of a linear critic: blocks against plain formulas, the gap, and the two ways to solve it."""

import math

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize

from assay.transport import AmariDivergence
from assay.transport.ball_newton import hessian_stride, maximise_by_newton, maximise_quadratic
from assay.transport.critic_training import (
    SearchLine,
    armijo_step,
    ascend_by_gradient,
    ascend_by_minibatches,
    minibatch_rows,
)
from assay.transport.divergence_critic import CriticProblem, GivenFeatures, Sample, project_to_ball
from assay.transport.random_features import draw_random_features

ALPHAS = (0.0, 0.3, 0.9, 1.0)


class Counting(AmariDivergence):
    """Notes how many points of P it is asked about."""

    def __init__(self, seen):
        super().__init__(0.5)
        object.__setattr__(self, "seen", seen)

    def p_integrand(self, g):
        self.seen.append(len(g))
        return super().p_integrand(g)


def problem_of(alpha, radius=3.0, offset=1.0, n=157, ridge=0.0, block_rows=32, n_features=10):
    rng = np.random.default_rng(0)
    features = draw_random_features(2, n_features, 2.0, rng)
    P, Q = rng.normal(size=(n, 2)), rng.normal(0.7, 1.2, size=(n + 40, 2))
    return CriticProblem(
        AmariDivergence(alpha), Sample.whole(P), Sample.whole(Q), features, radius, offset, ridge, block_rows
    )


def design(problem):
    return [
        np.column_stack([problem.features.transform(s.points[s.rows]), np.ones(len(s))]) for s in (problem.P, problem.Q)
    ]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_blocks_add_up_to_the_plain_formulas(alpha, ridge):
    problem = problem_of(alpha, ridge=ridge)
    theta = np.random.default_rng(1).normal(size=problem.n_parameters)
    A, B = design(problem)
    g, h = problem.scores(theta)
    np.testing.assert_allclose(g, A @ theta, rtol=1e-12)
    np.testing.assert_allclose(h, B @ theta, rtol=1e-12)
    p, q = problem.divergence.p_integrand(A @ theta), problem.divergence.q_integrand(B @ theta)
    assert problem.value(theta, (g, h)) == pytest.approx(p[0].mean() + q[0].mean() - ridge / 2 * theta @ theta)
    gradient = A.T @ p[1] / len(A) + B.T @ q[1] / len(B) - ridge * theta
    curvature = -(A.T * p[2]) @ A / len(A) - (B.T * q[2]) @ B / len(B) + ridge * np.eye(len(theta))
    np.testing.assert_allclose(problem.gradient(theta), gradient, atol=1e-12)
    value, *ours = problem.expand(theta)
    assert value == pytest.approx(problem.value(theta, (g, h)), rel=1e-12)
    for one, plain in zip(ours, (gradient, curvature), strict=True):
        np.testing.assert_allclose(one, plain, atol=1e-12)
    value, one, none = problem.expand(theta, stride=0)
    assert value == pytest.approx(problem.value(theta, (g, h)), rel=1e-12)
    np.testing.assert_allclose(one, gradient, atol=1e-12)
    assert none is None
    direction, steps = np.random.default_rng(2).normal(size=len(theta)), np.array([0.0, 0.3, 2.0])
    towards = problem.values_towards(theta, direction, steps)
    for step, reached in zip(steps, towards, strict=True):
        moved = theta + step * direction
        assert reached == pytest.approx(problem.value(moved, (A @ moved, B @ moved)), rel=1e-11)


def test_a_subsampled_hessian_leaves_the_gradient_whole():
    problem = problem_of(0.5)
    theta = np.full(problem.n_parameters, 0.1)
    value, gradient, curvature = problem.expand(theta, stride=2)
    assert value == pytest.approx(problem.value(theta, problem.scores(theta)), rel=1e-12)
    np.testing.assert_allclose(gradient, problem.gradient(theta), atol=1e-13)
    assert np.linalg.eigvalsh(curvature).min() >= -1e-12
    whole = problem.expand(theta)[2]
    assert 0 < np.linalg.norm(curvature - whole) < 0.5 * np.linalg.norm(whole)


def test_the_gap_is_the_best_linear_gain():
    problem = problem_of(0.4)
    theta = project_to_ball(np.random.default_rng(2).normal(size=problem.n_parameters), 3.0, 1.0)
    gradient = problem.gradient(theta)
    x = cp.Variable(problem.n_parameters)
    best = cp.Problem(cp.Maximize(gradient @ (x - theta)), [cp.norm(x[:-1]) <= 3.0, cp.abs(x[-1]) <= 1.0]).solve()
    assert problem.gap(theta, gradient) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("radius, offset", [(100.0, 100.0), (0.5, 100.0), (0.5, 0.01), (100.0, 0.01)])
def test_quadratic_step_against_a_conic_solver(radius, offset):
    rng = np.random.default_rng(3)
    root = rng.normal(size=(7, 7))
    H, rhs = root @ root.T + 0.1 * np.eye(7), 3.0 * rng.normal(size=7)
    x = cp.Variable(7)
    objective = cp.Maximize(rhs @ x - 0.5 * cp.sum_squares(root.T @ x) - 0.05 * cp.sum_squares(x))
    cp.Problem(objective, [cp.norm(x[:-1]) <= radius, cp.abs(x[-1]) <= offset]).solve(solver="CLARABEL")
    ours = maximise_quadratic(H, rhs, radius, offset)
    np.testing.assert_allclose(ours, x.value, atol=1e-4)
    feasible = x.value * np.append(np.full(6, min(1.0, radius / np.linalg.norm(x.value[:-1]))), 1.0)
    assert rhs @ ours - 0.5 * ours @ H @ ours >= rhs @ feasible - 0.5 * feasible @ H @ feasible - 1e-9
    assert np.linalg.norm(ours[:-1]) <= radius * (1 + 1e-14)
    assert abs(ours[-1]) <= offset


def test_quadratic_step_where_the_hessian_is_singular_or_the_gradient_zero():
    H = np.diag([1.0, 0.0, 1.0])
    np.testing.assert_allclose(maximise_quadratic(H, np.array([0.0, 1.0, 0.5]), 2.0, 1.0), [0.0, 2.0, 0.5], atol=1e-9)
    np.testing.assert_array_equal(maximise_quadratic(np.eye(3), np.zeros(3), 2.0, 1.0), np.zeros(3))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("radius, offset", [(0.5, 5.0), (8.0, 5.0), (8.0, 0.01)])
def test_newton_reaches_the_optimum_of_scipy(alpha, radius, offset):
    problem = problem_of(alpha, radius, offset)
    run = maximise_by_newton(problem, np.zeros(problem.n_parameters), tol=1e-9, max_iter=50)
    assert run.gaps[-1] <= 1e-9
    assert (np.diff(run.values) >= -1e-12).all()
    A, B = design(problem)

    def loss(theta):
        return -problem.value(theta, (A @ theta, B @ theta))

    constraints = [
        {"type": "ineq", "fun": lambda x: radius**2 - x[:-1] @ x[:-1], "jac": lambda x: np.append(-2 * x[:-1], 0.0)},
        {"type": "ineq", "fun": lambda x: offset - np.array([x[-1], -x[-1]])},
    ]
    peer = minimize(
        loss,
        np.zeros(problem.n_parameters),
        jac=lambda x: -problem.gradient(x),
        method="SLSQP",
        constraints=constraints,
        options={"ftol": 1e-13, "maxiter": 2000},
    )
    assert -peer.fun == pytest.approx(run.values[-1], abs=1e-6)


def test_the_gap_bounds_what_is_missing():
    problem = problem_of(0.5)
    best = maximise_by_newton(problem, np.zeros(problem.n_parameters), tol=1e-11, max_iter=50).values[-1]
    rng = np.random.default_rng(4)
    for _ in range(20):
        theta = problem.project(rng.normal(size=problem.n_parameters))
        missing = best - problem.value(theta, problem.scores(theta))
        assert -1e-10 <= missing <= problem.gap(theta, problem.gradient(theta)) + 1e-10


@pytest.mark.parametrize("alpha", [0.1, 0.9])
def test_newton_shortens_steps_that_do_not_pay(alpha):
    # Two points with the masses 2/3, 1/3 and 1/3, 2/3: the best critic is log 2 times the point.
    P, Q = np.array([[1.0], [1.0], [-1.0]]), np.array([[1.0], [-1.0], [-1.0]])
    problem = CriticProblem(AmariDivergence(alpha), Sample.whole(P), Sample.whole(Q), GivenFeatures(1), 30.0, 5.0)
    run = maximise_by_newton(problem, np.array([4.0, 0.0]), tol=1e-9, max_iter=50)
    assert run.gaps[-1] <= 1e-9
    assert run.step_sizes[1:].min() == 0.5
    assert (np.diff(run.values) >= -1e-12).all()
    np.testing.assert_allclose(run.theta, [math.log(2.0), 0.0], atol=1e-6)
    assert run.values[-1] == pytest.approx(AmariDivergence(alpha).between([2 / 3, 1 / 3], [1 / 3, 2 / 3]), abs=1e-9)
    np.testing.assert_allclose(run.curvature, problem.expand(run.theta)[2], rtol=1e-12)


def test_a_hessian_of_some_rows_still_ends_at_the_gap_of_all(monkeypatch):
    monkeypatch.setattr("assay.transport.ball_newton.HESSIAN_ROWS", 100)
    problem = problem_of(0.5)
    run = maximise_by_newton(problem, np.zeros(problem.n_parameters), tol=1e-8, max_iter=50)
    assert hessian_stride(problem) == 4
    assert problem.gap(run.theta, problem.gradient(run.theta)) <= 1e-8


def test_a_small_sample_does_not_lengthen_the_epochs_of_a_large_one():
    rng = np.random.default_rng(10)
    features = draw_random_features(1, 8, 2.0, rng)
    P, Q = rng.normal(size=(10, 1)), rng.normal(2.0, 1.0, size=(4000, 1))
    problem = CriticProblem(AmariDivergence(0.5), Sample.whole(P), Sample.whole(Q), features, 5.0, 5.0)
    seen = []
    counted = CriticProblem(Counting(seen), problem.P, problem.Q, features, 5.0, 5.0)
    ascend_by_minibatches(counted, np.zeros(9), batch_size=500, epochs=1, average=False, rng=rng)
    assert set(seen) == {10}
    assert len(seen) <= 8 * 12


def test_identical_laws_and_an_active_ball():
    rng = np.random.default_rng(5)
    X, Z = rng.normal(size=(1400, 3)), rng.normal(size=(1400, 3))
    features = draw_random_features(3, 256, 2.4, rng)
    problem = CriticProblem(AmariDivergence(0.5), Sample.whole(X), Sample.whole(Z), features, 5.0, 5.0)
    run = maximise_by_newton(problem, np.zeros(257), tol=1e-6, max_iter=50)
    assert run.gaps[-1] <= 1e-6
    assert len(run.gaps) <= 8
    same = CriticProblem(AmariDivergence(0.5), Sample.whole(X), Sample.whole(X), features, 5.0, 5.0)
    assert abs(maximise_by_newton(same, np.zeros(257), tol=1e-10, max_iter=50).values[-1]) <= 1e-10


@pytest.mark.parametrize("alpha, value", [(0.3, 0.2709269651), (0.5, 0.2701778719), (0.9, 0.2731842938)])
def test_a_saturated_critic_reaches_the_divergence_of_discrete_laws(alpha, value):
    eye = np.eye(3)
    P, Q = eye.repeat([5, 3, 2], axis=0), eye.repeat([2, 3, 5], axis=0)
    problem = CriticProblem(AmariDivergence(alpha), Sample.whole(P), Sample.whole(Q), GivenFeatures(3), 50.0, 5.0)
    run = maximise_by_newton(problem, np.zeros(4), tol=1e-10, max_iter=100)
    assert run.values[-1] == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(run.theta[:-1] + run.theta[-1], np.log([2.5, 1.0, 0.4]), atol=1e-5)


def test_full_armijo_goes_up_and_comes_close():
    problem = problem_of(0.5, block_rows=1024)
    start = np.zeros(problem.n_parameters)
    run = ascend_by_gradient(problem, start, 150)
    best = maximise_by_newton(problem, start, tol=1e-10, max_iter=50).values[-1]
    assert (np.diff(run.values) >= 0).all()
    assert best - 1e-2 <= run.values[-1] <= best + 1e-12
    assert np.linalg.norm(run.theta[:-1]) <= 3.0 * (1 + 1e-12)
    np.testing.assert_array_equal(start, 0.0)


def test_minibatches_come_close_and_are_reproducible():
    problem = problem_of(0.5)
    options = {"batch_size": 40, "epochs": 40, "average": True}
    start = np.zeros(problem.n_parameters)
    one, other = (ascend_by_minibatches(problem, start, rng=np.random.default_rng(6), **options) for _ in range(2))
    np.testing.assert_array_equal(one.theta, other.theta)
    best = maximise_by_newton(problem, start, tol=1e-10, max_iter=50).values[-1]
    assert best - 0.1 < problem.value(one.theta, problem.scores(one.theta)) <= best + 1e-9
    assert one.values.shape == one.step_sizes.shape == (40,)
    none = ascend_by_minibatches(problem, start, batch_size=40, epochs=0, average=True, rng=np.random.default_rng(6))
    np.testing.assert_array_equal(none.theta, start)


def test_no_row_twice_in_a_minibatch_and_all_rows_in_turn():
    rows = np.arange(100, 137)
    stream = minibatch_rows(Sample(np.zeros((200, 1)), rows), 12, np.random.default_rng(7))
    batches = [next(stream) for _ in range(30)]
    assert all(len(set(batch)) == 12 and set(batch) <= set(rows) for batch in batches)
    # three batches are cut from every permutation
    assert all(len(set(np.concatenate(batches[i : i + 3]))) == 36 for i in range(0, 30, 3))


def test_armijo_step_halves_rejects_the_infinite_and_gives_up():
    def evaluate(x):
        return -float(x @ x) if abs(x[0]) < 3 else math.nan

    def trial(step):
        candidate = np.array([2.0 - 4.0 * step])
        return candidate, evaluate(candidate)

    start = np.array([2.0])
    theta, value, step = armijo_step(start, -4.0, trial, 64.0)
    # Steps of 1 and more do not improve, or are nan; from 1/2 the optimum is reached.
    assert (theta, value, step) == (0.0, 0.0, 0.5)
    stuck, value, step = armijo_step(start, -4.0, lambda step: (start, math.inf), 1.0)
    assert (stuck, value, step) == (2.0, -4.0, 0.0)


@pytest.mark.parametrize("radius, offset", [(3.0, 1.0), (0.1, 0.01)])
def test_the_search_line_is_the_projected_step(radius, offset):
    problem = problem_of(0.4, radius, offset, ridge=0.1)
    theta = problem.project(np.random.default_rng(9).normal(size=problem.n_parameters))
    gradient = problem.gradient(theta)
    scores = tuple(g - theta[-1] for g in problem.scores(theta))
    changes = tuple(g - gradient[-1] for g in problem.scores(gradient))
    line = SearchLine(problem, theta, gradient, scores, changes)
    for step in (1e-3, 0.5, 20.0):
        candidate, value = line(step)
        plain = problem.project(theta + step * gradient)
        np.testing.assert_array_equal(candidate, plain)
        assert value == pytest.approx(problem.value(plain, problem.scores(plain)), rel=1e-12)


def test_projection():
    rng = np.random.default_rng(8)
    for _ in range(20):
        theta = 3 * rng.normal(size=5)
        x = cp.Variable(5)
        cp.Problem(cp.Minimize(cp.sum_squares(x - theta)), [cp.norm(x[:-1]) <= 2.0, cp.abs(x[-1]) <= 1.0]).solve()
        np.testing.assert_allclose(project_to_ball(theta, 2.0, 1.0), x.value, atol=1e-4)
    small = np.array([0.1, 0.2, 0.3])
    np.testing.assert_array_equal(project_to_ball(small, 2.0, 1.0), small)
