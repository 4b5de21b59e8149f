"""Problems with a closed form: their known values, gradients and conditions; tuning problems on labelled rows."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from assay.bilevel import gate_pruning_problem, nonconvex_pl_problem, quadratic_pl_problem, ridge_tuning_problem

BOTH = [quadratic_pl_problem, nonconvex_pl_problem]


def test_known_values_of_the_quadratic_problem():
    problem = quadratic_pl_problem(8)
    assert problem.mu == pytest.approx(0.6227988, abs=5e-8)
    assert round(problem.L, 7) == 1.2558751
    assert np.allclose(problem.x_star - [-0.799903, 0.245729, -0.360741, 0.47036, -0.385068], 0, atol=5e-7)
    assert problem.F(problem.x_star)[0] == pytest.approx(6.3988156, abs=5e-8)
    value, grad = problem.F(np.zeros(5))
    assert value == pytest.approx(7.7891648, abs=5e-8)
    assert grad @ grad == pytest.approx(9.2816252, abs=5e-8)
    expected = [3.343187, 3.851318, 2.901223, 3.458351, 5.993821]
    assert np.allclose(problem.F(np.full(5, 0.3))[1], expected, atol=5e-7)


@pytest.mark.parametrize(("sigma", "norm"), [(0.1, 0.885848), (0.01, 0.0974318)])
def test_known_bias_of_the_penalty(sigma, norm):
    problem = quadratic_pl_problem(8)
    x, target = np.full(5, 0.3), problem.targets.mean(axis=0)
    y = np.linalg.solve(sigma * np.eye(12) + problem.lower_map, sigma * target + problem.upper_map @ x)
    z = problem.lower_solution(x)
    rows = [np.tile(point, (8, 1)) for point in (x, y, z)]
    estimate = (
        0.1 * x + (problem.g(rows[0], rows[1], None)[1][0] - problem.g(rows[0], rows[2], None)[1][0]).mean(0) / sigma
    )
    assert np.linalg.norm(estimate - problem.F(x)[1]) == pytest.approx(norm, rel=1e-5)


def test_known_values_of_the_nonconvex_problem():
    problem = nonconvex_pl_problem(8)
    assert np.allclose(problem.x_star - [0.320674, -0.868091, -0.711086, -0.854005, -0.391351], 0, atol=5e-7)
    assert problem.F(problem.x_star)[0] == pytest.approx(6.1855657, abs=5e-8)
    value, grad = problem.F(np.zeros(5))
    assert value == pytest.approx(8.9044551, abs=5e-8)
    assert grad @ grad == pytest.approx(19.3812335, abs=5e-8)
    assert round(problem.L, 7) == 13.8545519


@pytest.mark.parametrize("make", BOTH)
def test_gradients_and_closed_form(make):
    problem = make(3, seed=5)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=5), rng.normal(size=12)
    assert np.allclose(problem.F(x)[1], approx_fprime(x, lambda p: problem.F(p)[0], 1e-6), atol=1e-4)
    for losses, batched in ((problem.f_list, problem.f), (problem.g_list, problem.g)):
        every = batched(np.tile(x, (3, 1)), np.tile(y, (3, 1)), None)
        for k, loss in enumerate(losses):
            value, (grad_x, grad_y) = loss(x, y, None)
            assert value == pytest.approx(every[0][k])
            assert np.allclose(grad_x, every[1][0][k], atol=1e-13)
            assert np.allclose(grad_y, every[1][1][k], atol=1e-13)
            assert np.allclose(grad_x, approx_fprime(x, lambda p, loss=loss: loss(p, y, None)[0], 1e-6), atol=1e-4)
            assert np.allclose(grad_y, approx_fprime(y, lambda p, loss=loss: loss(x, p, None)[0], 1e-6), atol=1e-4)
    # among the minimisers, the best one: stationary below, and no better one along the flat directions
    best = problem.lower_solution(x)
    rows = np.tile(x, (3, 1)), np.tile(best, (3, 1))
    assert np.allclose(problem.g(*rows, None)[1][1].mean(axis=0), 0, atol=1e-12)
    assert np.allclose(problem.lower_map @ best, problem.upper_map @ x, atol=1e-12)
    assert np.allclose(problem.kernel @ (best - problem.targets.mean(axis=0)), 0, atol=1e-12)
    assert np.allclose(problem.lower_map @ problem.kernel, 0, atol=1e-12)
    assert problem.f(*rows, None)[0].mean() == pytest.approx(problem.F(x)[0])


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 100), scale=st.floats(0.1, 6.0))
@pytest.mark.parametrize("make", BOTH)
def test_polyak_lojasiewicz_inequality(make, seed, scale):
    problem = make(2, seed=seed)
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=5), scale * rng.normal(size=12)
    values, (_, grads) = problem.g(np.tile(x, (2, 1)), np.tile(y, (2, 1)), None)
    best = problem.g(np.tile(x, (2, 1)), np.tile(problem.lower_solution(x), (2, 1)), None)[0].mean()
    grad = grads.mean(axis=0)
    assert grad @ grad >= 2 * problem.mu * (values.mean() - best) * (1 - 1e-9)


def test_noise_is_the_same_in_both_lower_gradients():
    problem = quadratic_pl_problem(2)
    noise = problem.noise(0.5, np.random.default_rng(0))
    assert noise.shape == (2, 2, 17)
    rows = np.zeros((2, 5)), np.zeros((2, 12))
    other = np.ones((2, 12))
    with_noise = problem.g(*rows, noise)[1][0] - problem.g(rows[0], other, noise)[1][0]
    without = problem.g(*rows, None)[1][0] - problem.g(rows[0], other, None)[1][0]
    assert np.allclose(with_noise, without, atol=1e-14)
    assert not np.allclose(problem.f(*rows, noise)[1][0], problem.f(*rows, None)[1][0])


def test_identical_nodes():
    problem = quadratic_pl_problem(4, heterogeneous=False)
    alone = quadratic_pl_problem(1)
    assert np.allclose(problem.x_star, alone.x_star)
    assert np.ptp(problem.targets, axis=0).max() == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"K": 0}, ValueError, "K"),
        ({"K": 2, "rank": 13}, ValueError, "rank"),
        ({"K": 2, "dx": 0}, ValueError, "dx"),
        ({"K": 2, "seed": -1}, ValueError, "seed"),
    ],
)
@pytest.mark.parametrize("make", BOTH)
def test_dimensions_are_checked(make, arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


def test_more_dimensions_are_checked():
    with pytest.raises(ValueError, match="rank must be at most n"):
        quadratic_pl_problem(2, n=5)
    with pytest.raises(TypeError, match="heterogeneous"):
        quadratic_pl_problem(2, heterogeneous="no")
    with pytest.raises(ValueError, match=r"x must have shape \(5,\)"):
        quadratic_pl_problem(2).F([0.0])


def rows_of(n=50, p=4, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, p))
    labels = rng.integers(0, classes, n)
    return features[: n // 2 + 2], labels[: n // 2 + 2], features[n // 2 + 2 :], labels[n // 2 + 2 :]


def test_ridge_losses_and_gradients():
    """Nodes with unequal numbers of rows; full data and batches against plain formulas."""
    X, labels, X_validation, labels_validation = rows_of()
    problem = ridge_tuning_problem(X, labels, X_validation, labels_validation, 4, batch_size=5)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(4, 4)), rng.normal(size=(4, 12))
    batch = problem.sampler(rng)
    assert batch.shape == (4, 2, 5)

    def plain(k, features, classes, x, y, ridge):
        scores = features @ y.reshape(4, 3)
        losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(classes)), classes]
        return losses.mean() + ridge * 0.5 * (np.exp(x)[:, None] * y.reshape(4, 3) ** 2).sum()

    for loss, features, classes, which in (
        (problem.g, X, labels, 0),
        (problem.f, X_validation, labels_validation, 1),
    ):
        for rows in (None, batch):
            values, (grad_x, grad_y) = loss(x, y, rows)
            for k in range(4):
                own, own_classes = features[k::4], classes[k::4]
                if rows is not None:
                    own, own_classes = own[rows[k, which]], own_classes[rows[k, which]]
                arguments = k, own, own_classes
                assert values[k] == pytest.approx(plain(*arguments, x[k], y[k], 1 - which))
                slopes = (
                    approx_fprime(x[k], lambda p, a=arguments, k=k, ridge=1 - which: plain(*a, p, y[k], ridge), 1e-6),
                    approx_fprime(y[k], lambda p, a=arguments, k=k, ridge=1 - which: plain(*a, x[k], p, ridge), 1e-6),
                )
                assert np.allclose(grad_x[k], slopes[0], atol=1e-4)
                assert np.allclose(grad_y[k], slopes[1], atol=1e-4)
    counts = np.array([[len(X[k::4]), len(X_validation[k::4])] for k in range(4)])
    drawn = np.stack([problem.sampler(rng) for _ in range(100)])
    assert (drawn.max(axis=(0, 3)) == counts - 1).all()
    assert drawn.min() == 0


def test_scores():
    X, labels, *_ = rows = rows_of()
    problem = ridge_tuning_problem(*rows, 2)
    loss, accuracy = problem.score(problem.x0, problem.y0, X, labels)
    assert loss == pytest.approx(np.log(3))
    assert accuracy == pytest.approx((labels == 0).mean())


def validation_loss(problem, x, features, labels):
    scores = problem.logits(x.numpy(), problem.y0.numpy(), features)
    return (np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]).mean()


def test_gates():
    """A network by hand; a gate at minus infinity cuts its unit."""
    X, labels, *_ = rows = rows_of()
    problem = gate_pruning_problem(*rows, 2, n_hidden=3, cost=0.5, rng=0)
    x = torch.tensor([[0.3, -1.0, 2.0]] * 2, dtype=torch.float64)
    y = problem.y0.repeat(2, 1)
    first, bias, second, shift = (part.numpy() for part in problem.y0.split([12, 3, 9, 3]))
    assert not bias.any()
    assert not shift.any()
    gates = 1 / (1 + np.exp(-x[0].numpy()))
    scores = np.maximum(X @ first.reshape(4, 3), 0) * gates @ second.reshape(3, 3)
    assert np.allclose(problem.logits(x[0].numpy(), problem.y0.numpy(), X), scores, atol=1e-12)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(X)), labels]
    assert float(problem.g(x, y, None)[0]) == pytest.approx(losses[::2].mean())
    upper = problem.f(x, y, None)[0] - validation_loss(problem, x[0], rows[2][::2], rows[3][::2])
    assert float(upper) == pytest.approx(0.5 * gates.sum())
    cut = np.array([0.0, -np.inf, 0.0])
    without = np.maximum(X @ first.reshape(4, 3), 0) * [0.5, 0.0, 0.5] @ second.reshape(3, 3)
    assert np.allclose(problem.logits(cut, problem.y0.numpy(), X), without, atol=1e-12)


@pytest.mark.parametrize("make", [ridge_tuning_problem, gate_pruning_problem])
def test_rows_are_checked(make):
    X, labels, X_validation, labels_validation = rows_of()
    with pytest.raises(ValueError, match="node 20 would have empty data"):
        make(X[:20], labels[:20], X_validation, labels_validation, 25)
    with pytest.raises(ValueError, match="same features"):
        make(X[:, :2], labels, X_validation, labels_validation, 2)
    with pytest.raises(ValueError, match="y_train must have a class for each"):
        make(X, labels[1:], X_validation, labels_validation, 2)
    with pytest.raises(ValueError, match="y_validation must have classes"):
        make(X, labels, X_validation, labels_validation - 0.5, 2)
    with pytest.raises(ValueError, match="n_nodes"):
        make(X, labels, X_validation, labels_validation, 0)
    with pytest.raises(ValueError, match="batch_size"):
        make(X, labels, X_validation, labels_validation, 2, batch_size=0)
    for label, message in ((1e300, "less than 50, got 1e\\+300"), (50, "less than 50, got 50"), (-1, "got -1")):
        with pytest.raises(ValueError, match=f"y_train must have classes 0, 1, .*{message}"):
            make(X, [label, *labels[1:]], X_validation, labels_validation, 2)


@pytest.mark.parametrize("make", [ridge_tuning_problem, gate_pruning_problem])
def test_what_is_scored_is_checked(make):
    X, labels, *_ = rows = rows_of()
    problem = make(*rows, 2)
    x, y = (np.asarray(point) for point in (problem.x0, problem.y0))
    for arguments, message in (
        ((x[1:], y, X, labels), f"x must have {len(x)} entries, got {len(x) - 1}"),
        ((x, y[1:], X, labels), f"y must have {len(y)} entries, got {len(y) - 1}"),
        ((x, y, X[:, 1:], labels), "features must have 4 columns, got 3"),
        ((x, y, X, labels + 3), "labels must have classes 0, 1, ..., less than 3"),
        ((x, y * np.nan, X, labels), "y must be a finite"),
        ((x + np.inf, y, X, labels), "x must be a finite"),
    ):
        with pytest.raises(ValueError, match=message):
            problem.score(*arguments)
    grad = torch.as_tensor(y).clone().requires_grad_()
    closed = np.where(np.arange(len(x)) == 0, -np.inf, x)
    for point in (x, closed):
        assert problem.score(torch.as_tensor(point), grad, X, labels) == problem.score(point, y, X, labels)


def test_gates_of_one_unit_or_feature_are_alive():
    X, labels, X_validation, labels_validation = rows_of()
    whole = X, labels, X_validation, labels_validation
    narrow = X[:, :1], labels, X_validation[:, :1], labels_validation
    for rows, n_hidden in ((whole, 1), (narrow, 3)):
        problem = gate_pruning_problem(*rows, 2, n_hidden=n_hidden, rng=0)
        first, second = rows[0].shape[1] * n_hidden, n_hidden * 3
        parts = problem.y0.split([first, n_hidden, second, 3])
        assert [bool(part.any()) for part in parts] == [True, False, True, False]
    with pytest.raises(TypeError, match="dtype must be"):
        gate_pruning_problem(*rows, 2, dtype=torch.int32)


def test_problems_can_be_sent_to_processes():
    rng = np.random.default_rng(0)
    for problem in (quadratic_pl_problem(2), nonconvex_pl_problem(2), ridge_tuning_problem(*rows_of(), 2)):
        other = pickle.loads(pickle.dumps(problem))
        sizes = (len(problem.x0), len(problem.y0)) if hasattr(problem, "x0") else problem.shape
        rows = [rng.normal(size=(2, size)) for size in sizes]
        assert np.array_equal(problem.g(*rows, None)[0], other.g(*rows, None)[0])
    problem = gate_pruning_problem(*rows_of(), 2, rng=0)
    other = pickle.loads(pickle.dumps(problem))
    rows = problem.x0.repeat(2, 1), problem.y0.repeat(2, 1)
    assert torch.equal(problem.f(*rows, None), other.f(*rows, None))
    assert np.array_equal(*(one.sampler(np.random.default_rng(1)) for one in (problem, other)))
