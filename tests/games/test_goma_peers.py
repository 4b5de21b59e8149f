"""Extragradient, optimistic gradients, anchored extragradient."""

import math

import numpy as np
import pytest

from assay.games.goma import goma
from assay.games.saddle_peers import (
    anchored_extragradient_operator,
    anchored_popov,
    extragradient_operator,
    gradient_operator,
    optimistic_operator,
)
from assay.validation import ConvergenceWarning

ROTATION = np.array([[0.0, 1.0], [-1.0, 0.0]])
ALL = pytest.mark.parametrize(
    "solve", [extragradient_operator, optimistic_operator, anchored_extragradient_operator, gradient_operator]
)


def rotate(z):
    return ROTATION @ z


def test_one_step_by_hand():
    start = np.array([1.0, 1.0])
    ahead = start - 0.3 * ROTATION @ start
    np.testing.assert_allclose(
        extragradient_operator(rotate, start, n_iter=1, step_size=0.3).z, start - 0.3 * ROTATION @ ahead
    )
    np.testing.assert_allclose(anchored_extragradient_operator(rotate, start, n_iter=1, step_size=0.3).z,
                               start - 0.3 * ROTATION @ ahead)  # fmt: skip
    first = optimistic_operator(rotate, start, n_iter=1, step_size=0.3).z
    np.testing.assert_allclose(first, ahead)
    np.testing.assert_allclose(
        optimistic_operator(rotate, start, n_iter=2, step_size=0.3).z,
        first - 0.6 * ROTATION @ first + 0.3 * ROTATION @ start,
    )
    np.testing.assert_allclose(gradient_operator(rotate, start, n_iter=1, step_size=0.3).z, ahead)


def test_two_steps_of_the_anchored_one_by_hand():
    start = np.array([1.0, 1.0])
    z = anchored_extragradient_operator(rotate, start, n_iter=1, step_size=0.2).z
    pulled = start / 3 + 2 * z / 3
    np.testing.assert_allclose(
        anchored_extragradient_operator(rotate, start, n_iter=2, step_size=0.2).z,
        pulled - 0.2 * ROTATION @ (pulled - 0.2 * ROTATION @ z),
    )


def test_extragradient_contracts_a_rotation_by_its_factor():
    result = extragradient_operator(rotate, [1.0, 1.0], L=1.0, n_iter=30)
    factor = (1 - 0.25) ** 2 + 0.25
    np.testing.assert_allclose(result.history["residual_sq"], 2 * factor ** np.arange(31), rtol=1e-12)
    assert (result.step_size, result.n_calls, result.n_check_calls) == (0.5, 60, 32)


def test_descent_spirals_outwards():
    assert gradient_operator(rotate, [1.0, 1.0], L=1.0, n_iter=100).residual_sq > 2.0


def test_popov_with_an_anchor_is_the_default_preset():
    first = anchored_popov(rotate, [1.0, 1.0], 0.4, n_iter=20)
    second = goma(rotate, [1.0, 1.0], L=1.0, step_size=0.4, n_iter=20)
    np.testing.assert_array_equal(first.z, second.z)
    far = anchored_popov(rotate, [1.0, 1.0], 0.7, L=1.0, n_iter=20, z_star=[0, 0])
    assert far.bound is None
    assert anchored_popov(rotate, [1.0, 1.0], 0.5, L=1.0, n_iter=20, z_star=[0, 0]).bound is not None
    with pytest.raises(TypeError, match="preset"):
        anchored_popov(rotate, [1.0, 1.0], 0.5, preset="paper")
    with pytest.raises(ValueError, match="step_size"):
        anchored_popov(rotate, [1.0, 1.0], 0.0)
    with pytest.raises(TypeError, match="options must be arguments of goma, got momentum"):
        anchored_popov(rotate, [1.0, 1.0], 0.5, momentum=0.9)


@ALL
class TestEveryPeer:
    def test_default_steps_and_counts(self, solve):
        result = solve(rotate, [1.0, 1.0], L=2.0, n_iter=10, check_every=4)
        np.testing.assert_array_equal(result.history["iteration"], [0, 4, 8, 10])
        calls = 20 if "extra" in solve.__name__ else 10
        assert (result.n_calls, result.n_iter, result.n_check_calls) == (calls, 10, 5)
        assert result.step_size == (0.0625 if "anchored" in solve.__name__ else 0.25)
        assert result.residual_sq == pytest.approx(float(np.sum(rotate(result.z) ** 2)))
        assert "potential" not in result.history

    def test_tolerance_and_callback(self, solve):
        strong = solve(lambda z: z, [1.0, 2.0], L=1.0, n_iter=10_000, tol=1e-2)
        assert strong.converged
        assert strong.certificates[0].holds
        with pytest.warns(ConvergenceWarning, match=solve.__name__):
            short = solve(rotate, [1.0, 1.0], L=1.0, n_iter=2, tol=1e-9)
        assert not short.certificates[0].holds
        assert solve(rotate, [1.0, 1.0], L=1.0, callback=lambda row: row["iteration"] == 3).n_iter == 3

    @pytest.mark.parametrize(
        "options, error, match",
        [
            ({"L": None}, ValueError, "step_size must be given"),
            ({"L": 0.0}, ValueError, "L must"),
            ({"L": 1e-310}, ValueError, "L must be at least"),
            ({"z0": [1e200, 0.0]}, FloatingPointError, "squared length"),
            ({"F": lambda z: np.multiply(z, 2.0, out=z)}, ValueError, "must not change its argument"),
            ({"step_size": 0.0}, ValueError, "step_size"),
            ({"n_iter": 0}, ValueError, "n_iter"),
            ({"check_every": 0}, ValueError, "check_every"),
            ({"tol": -1.0}, ValueError, "tol"),
            ({"z0": [math.nan, 0.0]}, ValueError, "z0"),
            ({"callback": 3}, TypeError, "callback"),
            ({"F": lambda z: np.zeros(3)}, ValueError, "length 2"),
            ({"F": lambda z: z * math.nan}, FloatingPointError, "step 0"),
        ],
    )
    def test_bad_input(self, solve, options, error, match):
        arguments = {"F": rotate, "z0": [1.0, 1.0], "L": 1.0, **options}
        with pytest.raises(error, match=match):
            solve(**arguments)
