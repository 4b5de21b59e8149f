"""Goldstein descent: its budget, its certificate, kinks, and bad input."""

import math

import numpy as np
import pytest
import torch

from assay.bilevel import FFOQPLayer, goldstein_descent
from assay.validation import ConvergenceWarning


def folded(d=5, m=20):
    """Half the squared distance of a projected linear map to a target, with a small ridge."""
    rng = np.random.default_rng(0)
    B, t = rng.normal(size=(m, d)), rng.normal(size=m)

    def value(x):
        return 0.5 * np.sum((np.clip(B @ x, -1, 1) - t) ** 2) + 0.01 * x @ x

    def slope(x):
        inside = np.abs(B @ x) < 1
        return B.T @ ((np.clip(B @ x, -1, 1) - t) * inside) + 0.02 * x

    return B, t, value, slope


@pytest.mark.parametrize(("eps", "delta"), [(4.0, 0.5), (2.0, 0.5), (2.0, 0.1)])
def test_finds_a_stationary_point_within_its_budget(eps, delta):
    _, _, value, slope = folded()
    x0 = 2 * np.ones(5)
    result = goldstein_descent(slope, x0, delta, eps, 13.6, value(x0), rng=0)
    assert result.certified
    assert result.block_length == math.ceil((2 * (13.6 + eps / 8) / eps) ** 2)
    assert result.call_budget == math.ceil(4 * value(x0) * result.block_length / (delta * eps))
    assert result.n_calls == result.n_blocks * result.block_length <= result.call_budget
    # by hand from the block
    assert np.linalg.norm(result.gradients.mean(axis=0)) + eps / 8 <= eps
    np.testing.assert_allclose(result.x, result.points.mean(axis=0))
    apart = np.linalg.norm(result.points[:, None] - result.points, axis=2)
    assert apart.max() <= delta
    for point, gradient in zip(result.points[::7], result.gradients[::7], strict=True):
        np.testing.assert_allclose(gradient, slope(point))
    assert value(result.x) <= value(x0)
    assert set(result.history) == {"iteration", "seconds", "stationarity", "largest_gradient"}


def test_the_budget_is_cubic_in_eps():
    def budget(eps):
        return goldstein_descent(np.sign, [0.0], 0.5, eps, 1.0, 1.0, max_blocks=1, rng=0).call_budget

    assert budget(0.1) / budget(0.2) == pytest.approx(8.0, rel=0.1)


def test_hypergradients_by_the_layer():
    pytest.importorskip("clarabel")
    B, t, value, slope = folded()
    layer = FFOQPLayer()
    eye = torch.eye(20, dtype=torch.float64)
    G, h, matrix, target = torch.cat([eye, -eye]), torch.ones(40).double(), torch.tensor(B), torch.tensor(t)

    def oracle(x):
        point = torch.tensor(x, requires_grad=True)
        loss = 0.5 * (layer(eye, -matrix @ point, G, h) - target).square().sum() + 0.01 * point.square().sum()
        return torch.autograd.grad(loss, point)[0].numpy()

    x0 = 2 * np.ones(5)
    np.testing.assert_allclose(oracle(x0 / 7), slope(x0 / 7), atol=1e-9)
    result = goldstein_descent(oracle, x0, 0.5, 4.0, 13.6, value(x0), rng=0)
    assert result.certified


def test_a_kink_is_found_to_be_stationary():
    """The gradients of an absolute value are 1 and -1 on its two sides, and nowhere small."""
    result = goldstein_descent(np.sign, [0.7], 0.2, 0.4, 1.0, 0.7, rng=1)
    assert result.certified
    assert abs(result.x[0]) <= 0.2
    assert np.abs(result.gradients).min() == 1.0


def test_is_reproducible():
    _, _, value, slope = folded()
    x0 = np.ones(5)
    runs = [goldstein_descent(slope, x0, 0.5, 2.0, 13.6, value(x0), rng=seed) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(runs[0].points, runs[1].points)
    assert not np.array_equal(runs[0].points, runs[2].points)


def test_a_wrong_constant_is_said():
    result = goldstein_descent(lambda x: 10 * np.sign(x), [0.5], 0.2, 2.0, 1.0, 5.0, rng=0)
    assert result.certificates[0].violated
    assert not result.certified


def test_stops_early_with_a_warning():
    def steep(x):
        return np.ones(1)

    with pytest.warns(ConvergenceWarning, match="goldstein_descent did not reach tol=0.5"):
        result = goldstein_descent(steep, [0.0], 0.5, 0.5, 1.0, 100.0, max_blocks=2, rng=0)
    assert result.n_blocks == 2
    assert not result.certificates[0].holds
    rows = []
    with pytest.warns(ConvergenceWarning):
        result = goldstein_descent(
            steep, [0.0], 0.5, 0.5, 1.0, 100.0, rng=0, callback=lambda row: rows.append(row) or len(rows) == 3
        )
    assert result.n_blocks == len(rows) == 3
    assert rows[-1]["iteration"] == 3
    assert rows[0]["stationarity"] == pytest.approx(1.0 + 0.5 / 8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"oracle": None}, TypeError, "oracle must be a callable"),
        ({"x0": [[1.0]]}, ValueError, "x0 must be a finite 1-D array"),
        ({"x0": [np.nan]}, ValueError, "x0"),
        ({"delta": 0.0}, ValueError, "delta must be greater than 0"),
        ({"eps": -1.0}, ValueError, "eps must be greater than 0"),
        ({"lipschitz": 0.0}, ValueError, "lipschitz must be greater than 0"),
        ({"f_gap": -1.0}, ValueError, "f_gap must be at least 0"),
        ({"max_blocks": 0}, ValueError, "max_blocks"),
        ({"rng": "seed"}, TypeError, "rng"),
        ({"callback": 3}, TypeError, "callback must be a callable, got int"),
        ({"eps": 1e-7}, ValueError, r"eps must be so large that a block .* got 1e-07, .* 400000010000001 points of 1"),
        ({"oracle": lambda x: np.ones(3)}, ValueError, r"oracle must return a gradient of shape \(1,\)"),
        ({"oracle": lambda x: [np.nan]}, ValueError, "the gradient of oracle must be a finite"),
    ],
)
def test_bad_input(change, error, message):
    arguments = {"oracle": np.sign, "x0": [1.0], "delta": 0.5, "eps": 0.5, "lipschitz": 1.0, "f_gap": 1.0, "rng": 0}
    with pytest.raises(error, match=message):
        goldstein_descent(**(arguments | change))
