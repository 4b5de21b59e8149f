"""Anchored optimistic steps: known values, bounds, certificates that can fail, bad input."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.games.goma import StochasticSpec, goma
from assay.games.goma_certificate import Potential, potential_certificate, residual_certificates
from assay.games.goma_schedule import (
    PRESETS,
    Horizon,
    anchored_step,
    anchored_step_plain,
    deterministic_weights,
    paper_stochastic_bound,
)
from assay.games.monotone_operator import (
    CheckedOperator,
    PairCheck,
    estimate_lipschitz,
    fitted_slope,
    length,
    pair_sums,
)
from assay.validation import ConvergenceWarning

ROTATION = np.array([[0.0, 1.0], [-1.0, 0.0]])
DETERMINISTIC = ("halpern", "paper", "explore")


def rotate(z):
    return ROTATION @ z


def monotone(d, seed, conditioning=1e-2):
    """A linear monotone operator with its Lipschitz constant."""
    rng = np.random.default_rng(seed)
    raw, spread = rng.normal(size=(d, d)), rng.normal(size=(d, d)) * conditioning
    matrix = raw - raw.T + spread @ spread.T
    return matrix, float(np.linalg.norm(matrix, 2))


class TestKnownValues:
    @pytest.mark.parametrize(
        "preset, step_size, z10, residuals",
        [
            ("halpern", 0.5, (-0.15056818, 0.20454545), {1: 2.03125, 2: 1.80555556, 10: 0.0645096204}),
            ("paper", 0.25, (-0.38454939, 0.8363351), {1: 1.9618055556, 2: 1.8944338152, 10: 0.8473346306}),
            ("explore", 0.25, (-0.47850415, 0.42369424), {10: 0.4084830390}),
        ],
    )
    def test_ten_steps_of_a_rotation(self, preset, step_size, z10, residuals):
        result = goma(rotate, [1.0, 1.0], L=1.0, preset=preset, n_iter=10, step_size=step_size, z_star=[0, 0])
        np.testing.assert_allclose(result.z, z10, atol=5e-9)
        for k, expected in residuals.items():
            assert result.history["residual_sq"][k] == pytest.approx(expected, abs=5e-9)
        assert (result.n_calls, result.n_iter, result.n_check_calls) == (11, 10, 12)
        assert result.certified
        np.testing.assert_array_equal(result.history["calls"], np.arange(1, 12))

    def test_constants_of_the_bounds(self):
        at = {name: preset.residual_bound(0, preset.largest, 1.0, 1.0) for name, preset in PRESETS.items()}
        assert at["halpern"] == pytest.approx(17.945, abs=1e-3)
        assert at["explore"] == pytest.approx(67.9, abs=0.05)
        assert 36 * at["paper"] == pytest.approx(259, abs=0.05)

    def test_default_steps_are_the_largest(self):
        steps = {name: goma(rotate, [1.0, 1.0], L=2.0, preset=name, n_iter=1).step_size for name in DETERMINISTIC}
        assert steps == pytest.approx({"halpern": 0.25, "paper": 0.999 / (4 * math.sqrt(3)), "explore": 0.125})

    def test_a_constant_operator_has_no_zero(self):
        for given_l in (1.0, None):
            result = goma(lambda z: np.array([1.0, -2.0]), [0.0, 0.0], L=given_l, n_iter=50)
            np.testing.assert_allclose(result.history["residual_sq"], 5.0)
            assert np.isfinite(result.z).all()

    def test_the_zero_operator_stays(self):
        result = goma(lambda z: 0.0 * z, [1.0, -3.0], L=1.0, n_iter=20, z_star=[1.0, -3.0])
        np.testing.assert_array_equal(result.z, [1.0, -3.0])
        assert result.residual_sq == 0.0
        assert all(c.holds for c in result.certificates)
        np.testing.assert_array_equal(goma(lambda z: 0.0 * z, [1.0, -3.0], n_iter=5).z, [1.0, -3.0])

    def test_the_anchor_slows_a_strongly_monotone_operator_down(self):
        result = goma(lambda z: z, [1.0, 2.0], L=1.0, n_iter=4000, check_every=20, z_star=[0.0, 0.0])
        assert result.slope == pytest.approx(-2.0, abs=0.1)  # like 1/k, and not linearly
        assert all(c.holds for c in result.certificates)

    @pytest.mark.parametrize(
        "kappa, expected", [(1.0, (0.26, 0.0565, 0.0135)), (4.0, (0.81, 0.199, 0.0496))], ids=["kappa 1", "kappa 4"]
    )
    def test_a_rotation_with_noise(self, kappa, expected):
        n, iterations = 200, (100, 1600, 25600)

        def field(z):
            pairs = z.reshape(n, 2)
            return np.stack([pairs[:, 1], -pairs[:, 0]], axis=1).ravel()

        def oracle(z, batch_size, rng):
            exact = field(z).reshape(n, 2)
            variance = 0.25 + (kappa - 1) * (exact**2).sum(axis=1)
            return (exact + rng.standard_normal((n, 2)) * np.sqrt(variance / 2)[:, None]).ravel()

        noise = StochasticSpec(sigma=0.5, kappa=kappa, oracle=oracle)
        result = goma(field, np.ones(2 * n), L=1.0, noise=noise, n_iter=25600, check_every=100, rng=1)
        rows = dict(zip(result.history["iteration"], result.history["residual_sq"] / n, strict=True))
        for iteration, value in zip(iterations, expected, strict=True):
            assert rows[iteration] == pytest.approx(value, rel=0.15)
        assert -0.6 <= result.slope <= -0.4
        assert result.n_calls == 25600


def largest_growth(preset, k, step_size):
    """The most that the potential can grow in step k, over all operators of constant 1; by a semidefinite program.

    The unknown is the Gram matrix of z_k - z_0, F(z_k), g_{k-1}, g_k and F(z_{k+1}). What is known of it is that all
    pairs of the three points are monotone and Lipschitz.
    """
    import cvxpy as cp

    way, here, old, new, there = np.eye(5)
    if k == 0:
        way, old = np.zeros(5), here
    anchored = (1.0 - preset.anchor_weight(k)) * way
    looked, moved = anchored - preset.exploration(k, step_size) * old, anchored - preset.update(k, step_size) * new

    def product(a, b):
        return (np.outer(a, b) + np.outer(b, a)) / 2

    def potential(k, point, value, gradient):
        inner, square, change = preset.potential_weights(k, step_size)
        apart = value - gradient
        return inner * product(value, point) + square * product(value, value) + change * product(apart, apart)

    growth = potential(k + 1, moved, there, new) - potential(k, way, here, old)
    gram = cp.Variable((5, 5), PSD=True)
    known = [cp.trace(gram) <= 1.0]
    pairs = ((way, here, looked, new), (way, here, moved, there), (looked, new, moved, there))
    for a, at_a, b, at_b in pairs:
        apart, change = a - b, at_a - at_b
        known.append(cp.trace(product(apart, change) @ gram) >= 0.0)
        known.append(cp.trace((product(apart, apart) - product(change, change)) @ gram) >= 0.0)
    program = cp.Problem(cp.Maximize(cp.trace(growth @ gram) / np.abs(growth).max()), known)
    return program.solve(solver=cp.CLARABEL)


class TestProofs:
    @pytest.mark.parametrize("preset", DETERMINISTIC)
    def test_the_potential_falls_for_every_operator(self, preset):
        chosen = PRESETS[preset]
        for k in (0, 1, 40):
            for share in (1.0, 0.3):
                assert largest_growth(chosen, k, share * chosen.largest) <= 1e-6
        assert largest_growth(chosen, 3, 2.0 * chosen.largest) > 1e-2

    @settings(max_examples=8, deadline=None)
    @given(seed=st.integers(0, 10**6), d=st.integers(1, 8), share=st.floats(0.05, 1.0))
    @pytest.mark.parametrize("preset", DETERMINISTIC)
    def test_the_bound_and_the_potential(self, preset, seed, d, share):
        matrix, lipschitz = monotone(d, seed)
        if lipschitz == 0.0:
            return
        rng = np.random.default_rng(seed)
        zero, start = rng.normal(size=d), rng.normal(size=d)
        step_size = share * PRESETS[preset].default_step(lipschitz)
        result = goma(
            lambda z: matrix @ (z - zero),
            start,
            L=lipschitz,
            preset=preset,
            n_iter=150,
            check_every=3,
            step_size=step_size,
            z_star=zero,
        )
        here, everywhere, potential = result.certificates
        assert here.holds
        assert everywhere.holds
        assert potential.holds
        assert not any(c.violated for c in result.certificates)
        assert here.value == pytest.approx(np.sum((matrix @ (result.z - zero)) ** 2), rel=1e-9)
        assert result.history["potential"][-1] <= result.history["potential"][0]

    @pytest.mark.parametrize("preset", DETERMINISTIC)
    def test_the_potential_falls_for_a_nonlinear_operator(self, preset):
        raw = np.random.default_rng(0).normal(size=(10, 10))
        skew = raw - raw.T
        lipschitz = float(np.hypot(np.linalg.norm(skew, 2), 0.1)) + 1.0
        result = goma(
            lambda z: skew @ z + 0.1 * z + np.arctan(z),
            np.ones(10),
            L=lipschitz,
            preset=preset,
            n_iter=400,
            z_star=np.zeros(10),
        )
        assert (np.diff(result.history["potential"]) <= 1e-12 * result.history["potential"][0]).all()
        assert all(c.holds for c in result.certificates)

    def test_small_steps_exceed_the_constant_of_the_paper_but_not_the_bound(self):
        singular = np.linspace(0.01, 1.0, 50)

        def field(z):
            return np.concatenate([singular * z[50:], -singular * z[:50]])

        constants = {}
        for step_size in (0.1, 0.25):
            result = goma(
                field,
                np.ones(100),
                L=1.0,
                preset="paper",
                step_size=step_size,
                n_iter=1500,
                check_every=5,
                z_star=np.zeros(100),
            )
            k = result.history["iteration"]
            constants[step_size] = float((result.history["residual_sq"] * (k + 6) ** 2).max() / 100)
            assert all(c.holds for c in result.certificates)
            assert 3.5 <= constants[step_size] * step_size**2 <= 8.0
        assert constants[0.1] > 264

    def test_every_scheduled_number_of_the_explore_potential(self):
        assert PRESETS["explore"].potential_weights(0, 0.2) == pytest.approx((1.0, 0.2, 0.1))
        assert PRESETS["halpern"].potential_weights(2, 0.2) == pytest.approx((3.0, 0.9, 0.9))
        assert PRESETS["paper"].potential_weights(0, 0.2) == pytest.approx((20.0, 6.0, 6.0))

    def test_restarts_recover_a_linear_rate(self):
        raw = np.random.default_rng(3).normal(size=(8, 8))
        skew = (raw - raw.T) / np.linalg.norm(raw - raw.T, 2)
        weakest = np.linalg.svd(skew, compute_uv=False)[-1]
        every = math.ceil(9 / weakest)
        result = goma(lambda z: skew @ z, np.ones(8), L=1.0, n_iter=20 * every, check_every=every, restart_every=every)
        norms = np.sqrt(result.history["residual_sq"])
        assert (norms[1:] <= 0.5 * norms[:-1]).all()
        assert result.n_calls == result.n_iter + 1 + 19
        assert result.bound is None
        assert result.certificates[0].holds  # within the cycles
        plain = goma(lambda z: skew @ z, np.ones(8), L=1.0, n_iter=20 * every, check_every=every)
        assert result.residual_sq < 1e-6 * plain.residual_sq


class TestNoise:
    def test_the_horizon_schedule_is_within_its_bound(self):
        rng = np.random.default_rng(0)
        raw = rng.normal(size=(20, 20))
        skew = (raw - raw.T) / np.linalg.norm(raw - raw.T, 2)
        found = []
        for n_iter in (1000, 8000):
            noise = StochasticSpec(sigma=0.5)
            result = goma(
                lambda z: skew @ z, np.ones(20) / math.sqrt(20), L=1.0, noise=noise, schedule="horizon", n_iter=n_iter,
                z_star=np.zeros(20), rng=2, check_every=n_iter,
            )  # fmt: skip
            assert result.certificates[0].holds
            assert result.residual_sq <= result.bound
            assert result.n_calls == n_iter
            found.append(result.residual_sq)
        assert found[1] < 0.7 * found[0]

    def test_the_recursion_behind_the_horizon_bound(self):
        horizon = Horizon(100, 1.0, 0.3, 2.0, 1.5, 0.4)
        assert horizon.growth == 1.0
        assert horizon.shift == math.ceil(2 * (1.4**2 + 2) / 0.16)
        noise, error = 0.3**2 + 2 * 1.5**2, 1.5**2
        for k in range(100):
            error = (1 - 2 / (k + horizon.shift)) * error + 4 * noise / (0.4 * (k + horizon.shift)) ** 2
        assert 2 * error + 2 * (0.4 * 1.5) ** 2 == pytest.approx(horizon.residual_bound(100), rel=0.02)
        assert 2 * error + 2 * (0.4 * 1.5) ** 2 <= horizon.residual_bound(100)
        assert Horizon.default_pull(100, 2.0, 0.3, 1.0, 0.0) == 2.0
        assert Horizon.default_pull(10**6, 1.0, 0.5, 1.0, 2.0) == pytest.approx(math.sqrt(2 * 0.5 / 2000))

    def test_batches_that_grow(self):
        sizes = []

        def oracle(z, batch_size, rng):
            sizes.append(batch_size)
            return ROTATION @ z + rng.standard_normal(2) / math.sqrt(batch_size)

        goma(
            rotate,
            [1.0, 1.0],
            L=1.0,
            noise=StochasticSpec(sigma=2**0.5, oracle=oracle, batch="linear"),
            n_iter=5,
            rng=0,
        )
        assert sizes == [1, 2, 3, 4, 5]
        errors = {
            batch: goma(
                rotate,
                [1.0, 1.0],
                1.0,
                noise=StochasticSpec(sigma=10, batch=batch),
                n_iter=2000,
                rng=0,
                check_every=2000,
            ).residual_sq
            for batch in ("constant", "linear")
        }
        assert errors["linear"] < errors["constant"]

    def test_the_same_seed_gives_the_same_run(self):
        runs = [
            goma(rotate, [1.0, 1.0], 1.0, noise=StochasticSpec(sigma=1), rng=seed, n_iter=50).z for seed in (0, 0, 1)
        ]
        np.testing.assert_array_equal(runs[0], runs[1])
        assert not np.array_equal(runs[0], runs[2])

    def test_the_certificate_allows_for_one_run(self):
        result = goma(
            rotate, [1.0, 1.0], 1.0, noise=StochasticSpec(sigma=0.5, kappa=2), rng=0, z_star=[0, 0], n_iter=99
        )
        (certificate,) = result.certificates
        assert result.bound == pytest.approx((1570 * 2 * 2 + 8 * 0.25 / 2) / 10)
        assert certificate.bound == pytest.approx(20 * result.bound)
        assert "probability" in certificate.statement
        assert certificate.assumptions[-1].satisfied is True  # simulated
        assert paper_stochastic_bound(99, 1.0, 2.0, 0.5, math.sqrt(2)) == pytest.approx(result.bound)

    def test_a_run_that_stopped_early_has_no_bound_in_expectation(self):
        result = goma(
            rotate, [1.0, 1.0], 1.0, noise=StochasticSpec(sigma=0.1), rng=0, z_star=[0, 0], tol=0.3, n_iter=9999
        )
        assert result.converged
        assert result.n_iter < 9999
        assert result.bound is None
        assert result.certificates[-1].holds


class TestPaths:
    @pytest.mark.parametrize("d", [1, 7, 1000])
    def test_the_fused_pass_is_the_formula(self, d):
        rng = np.random.default_rng(d)
        z, anchor, gradient = (rng.normal(size=d) for _ in range(3))
        plain, point, plain_point = z.copy(), np.empty(d), np.empty(d)
        weights = (0.3, 0.2, 0.25, 0.15)
        assert anchored_step(z, anchor, gradient, *weights, point)
        assert anchored_step_plain(plain, anchor, gradient, *weights, plain_point)
        np.testing.assert_allclose(z, plain, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(point, plain_point, rtol=1e-13, atol=1e-15)
        gradient[-1] = np.nan
        assert not anchored_step(z, anchor, gradient, *weights, point)
        assert not anchored_step_plain(z, anchor, gradient, *weights, point)

    @pytest.mark.parametrize("preset", DETERMINISTIC)
    def test_the_loop_is_the_method_as_it_is_written(self, preset):
        matrix, lipschitz = monotone(6, 1)
        step_size = PRESETS[preset].default_step(lipschitz)
        start = np.arange(6.0)
        z, old = start.copy(), matrix @ start
        for k in range(40):
            beta = {"halpern": 1 / (k + 2), "paper": 2 / (k + 6), "explore": 1 / (k + 2)}[preset]
            gamma, eta = ((1 - beta) * step_size, step_size)
            if preset == "explore":
                gamma, eta = step_size, step_size / (1 - beta)
            anchored = beta * start + (1 - beta) * z
            old = matrix @ (anchored - gamma * old)
            z = anchored - eta * old
        result = goma(lambda z: matrix @ z, start, L=lipschitz, preset=preset, n_iter=40)
        np.testing.assert_allclose(result.z, z, rtol=1e-11, atol=1e-12)

    def test_functions_that_return_their_argument_or_one_buffer(self):
        buffer = np.empty(2)

        def reused(z):
            np.matmul(ROTATION, z, out=buffer)
            return buffer

        first, second = (goma(f, [1.0, 1.0], 1.0, n_iter=30, check_every=7) for f in (rotate, reused))
        np.testing.assert_array_equal(first.z, second.z)
        np.testing.assert_array_equal(first.history["potential"], second.history["potential"])
        first, second = (goma(f, [1.0, 2.0], 1.0, n_iter=30) for f in (lambda z: z, lambda z: z.copy()))
        np.testing.assert_array_equal(first.z, second.z)
        np.testing.assert_array_equal(first.history["potential"], second.history["potential"])

    def test_one_buffer_does_not_spoil_the_estimate_of_the_constant(self):
        buffer = np.empty(2)

        def reused(z):
            np.matmul(ROTATION, z, out=buffer)
            return buffer

        first, second = (goma(f, [1.0, 1.0], n_iter=5, rng=0) for f in (rotate, reused))
        assert second.lipschitz == pytest.approx(1.2)
        np.testing.assert_array_equal(first.z, second.z)

    def test_a_restart_that_never_comes_changes_nothing(self):
        plain, never = (
            goma(rotate, [1.0, 1.0], 1.0, n_iter=30, z_star=[0, 0], restart_every=every) for every in (None, 30)
        )
        assert never.bound == plain.bound
        np.testing.assert_array_equal(never.z, plain.z)
        assert goma(rotate, [1.0, 1.0], 1.0, n_iter=30, z_star=[0, 0], restart_every=29).bound is None

    def test_a_model_in_single_precision_is_not_accused(self):
        import torch

        single = ROTATION.astype(np.float32)
        tensor = torch.tensor(ROTATION, dtype=torch.bfloat16)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for function in (
                lambda z: single @ z.astype(np.float32),
                lambda z: tensor @ torch.from_numpy(z).bfloat16(),
            ):
                result = goma(function, [1.0, 1.0], 1.0, n_iter=1000, check_every=3, z_star=[0.0, 0.0])
                assert not any(certificate.violated for certificate in result.certificates)
                assert result.certified
            assert goma(lambda z: single @ z.astype(np.float32), [1.0, 1.0], n_iter=5, rng=0).lipschitz < 1.3

    def test_positions_of_the_noise(self):
        assert StochasticSpec(0.5, 4.0) == StochasticSpec(sigma=0.5, kappa=4.0)

    def test_tensors_and_lists_are_taken(self):
        import torch

        matrix = torch.tensor(ROTATION)
        results = [
            goma(f, start, 1.0, n_iter=10)
            for f, start in (
                (lambda z: matrix @ torch.from_numpy(z), torch.ones(2)),
                (lambda z: [z[1], -z[0]], [1, 1]),
            )
        ]
        for result in results:
            np.testing.assert_allclose(result.z, (-0.15056818, 0.20454545), atol=5e-9)

    def test_check_points_change_nothing(self):
        every, rare = (goma(rotate, [1.0, 1.0], 1.0, n_iter=50, check_every=c) for c in (1, 20))
        np.testing.assert_array_equal(every.z, rare.z)
        np.testing.assert_array_equal(rare.history["iteration"], [0, 20, 40, 50])
        assert (every.n_calls, rare.n_calls, rare.n_check_calls) == (51, 51, 4)
        np.testing.assert_allclose(rare.history["potential"], every.history["potential"][[0, 20, 40, 50]], atol=1e-14)

    def test_the_tolerance_stops_and_warns(self):
        result = goma(rotate, [1.0, 1.0], 1.0, n_iter=10_000, tol=1e-2, check_every=5)
        assert result.converged
        assert result.n_iter % 5 == 0
        assert math.sqrt(result.residual_sq) <= 1e-2
        assert result.certificates[-1].holds
        with pytest.warns(ConvergenceWarning, match="goma did not reach"):
            short = goma(rotate, [1.0, 1.0], 1.0, n_iter=5, tol=1e-9)
        assert not short.converged
        assert not short.certificates[-1].holds
        assert goma(lambda z: 0 * z, [1.0], 1.0, tol=0.0).n_iter == 0

    def test_the_callback_sees_rows_and_stops(self):
        seen = []
        result = goma(rotate, [1.0, 1.0], 1.0, callback=lambda row: seen.append(row) or row["iteration"] == 4)
        assert [row["iteration"] for row in seen] == [0, 1, 2, 3, 4]
        assert result.n_iter == 4
        assert set(seen[0]) == {"iteration", "calls", "residual_sq", "potential", "seconds"}

    def test_the_result_is_ready_for_json(self):
        import json

        result = goma(rotate, [1.0, 1.0], 1.0, n_iter=5, z_star=[0, 0])
        assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["n_calls"] == 6
        assert "goma" not in repr(result)
        assert "n_calls=6" in repr(result)


class TestLipschitz:
    def test_the_estimate(self):
        matrix, lipschitz = monotone(12, 4, conditioning=0.0)
        result = goma(lambda z: matrix @ z, np.ones(12), n_iter=300, rng=0)
        assert 1.0 < result.lipschitz / lipschitz <= 1.2001
        assert result.bound is None  # which the estimate cannot promise
        assert result.certificates[0].holds
        assert "estimated" in result.certificates[0].assumptions[1].statement
        assert result.n_check_calls == 300 + 1 + 20
        assert result.n_calls == 301

    def test_it_stops_where_nothing_changes(self):
        operator = CheckedOperator(lambda z: np.ones(3), 3)
        assert estimate_lipschitz(operator, np.zeros(3), np.ones(3), np.random.default_rng(0)) == 0.0
        assert operator.n_calls == 1

    def test_a_constant_that_is_too_small_is_found_out(self):
        result = goma(rotate, [1.0, 1.0], L=0.9, n_iter=20, z_star=[0, 0])
        assert result.bound is None
        assert any("Lipschitz" in a.statement for c in result.certificates for a in c.violated)
        assert not result.certified


class TestSpoilt:
    def test_a_point_that_is_not_the_answer(self):
        result = goma(rotate, [1.0, 1.0], 1.0, n_iter=200, z_star=[0, 0])
        value = rotate(result.z + 0.1)
        here, everywhere = residual_certificates(float(value @ value), result.bound, 2.0, ())
        assert not here.holds
        assert not everywhere.holds
        assert result.certificates[0].holds

    def test_a_potential_that_grows(self):
        potential, pairs, origin = Potential(PRESETS["halpern"], 0.5), PairCheck(1.0), np.zeros(2)
        small, large = np.array([1.0, 0.0]), np.array([1.5, 0.0])
        potential.look(1, origin, origin, small, small, pairs)
        potential.look(2, origin, origin, large, small, pairs)
        assert potential.worst_growth == pytest.approx(0.25 * 9 * (2.25 + 0.25) - 0.25 * 4)
        assert not potential_certificate(potential.worst_growth, 2, ()).holds
        potential.look(3, origin, origin, small * np.nan, small, pairs)
        potential.look(4, origin, origin, small, small, pairs)
        assert not potential_certificate(potential.worst_growth, 3, ()).holds
        assert math.isnan(potential.worst_growth)

    def test_sums_of_one_pass(self):
        from assay.games.goma_certificate import _potential_sums

        a, b, c, d = np.random.default_rng(0).normal(size=(4, 1000))
        sums = [
            np.dot(p, q) for p, q in ((a - c, b - d), (a - c, a - c), (b - d, b - d), (a, a), (b, b), (c, c), (d, d))
        ]
        np.testing.assert_allclose(pair_sums(a, b, c, d), sums, rtol=1e-12)
        sums = [np.dot(p, q) for p, q in ((c, a - b), (c, c), (c - d, c - d), (a - b, a - b), (a, a), (b, b))]
        np.testing.assert_allclose(_potential_sums(a, b, c, d), sums, rtol=1e-12)

    def test_what_underflows_is_not_held_against_an_operator(self):
        pairs = PairCheck(1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for scale in (1e-100, 1e-160, 1e-200, 5e-324):
                pairs.look(scale * np.ones(2), scale * ROTATION @ np.ones(2), np.zeros(2), np.zeros(2))
        assert (pairs.n_not_monotone, pairs.n_not_lipschitz) == (0, 0)

    def test_a_step_that_is_too_long_breaks_the_potential(self):
        result = goma(rotate, [1.0, 1.0], 1.0, n_iter=100, step_size=1.5, allow_unproved=True, z_star=[0, 0])
        (certificate,) = result.certificates
        assert not certificate.holds
        assert certificate.violated[0].statement.startswith("the step size")
        assert result.bound is None

    def test_an_operator_that_is_not_monotone(self):
        with pytest.warns(RuntimeWarning, match="monotone") as caught:
            result = goma(lambda z: ROTATION @ z - 0.2 * z, [1.0, 1.0], L=1.1, n_iter=50, z_star=[0, 0])
        assert len([w for w in caught if "monotone" in str(w.message)]) == 1
        assert result.bound is None
        assert len(result.certificates) == 1
        assert result.certificates[0].assumptions[0].satisfied is False
        assert not result.certified

    def test_monotone_operators_are_not_accused(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for scale in (1e-12, 1.0, 1e12):
                result = goma(rotate, [scale, scale], 1.0, n_iter=2000, check_every=31)
                assert all(c.holds and not c.violated for c in result.certificates)

    def test_pairs(self):
        pairs = PairCheck(1.0)
        pairs.look(np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2))
        assert pairs.n_pairs == 0
        pairs.look(np.ones(2), 2 * np.ones(2), np.zeros(2), np.zeros(2))
        assert (pairs.n_pairs, pairs.n_not_monotone, pairs.n_not_lipschitz) == (1, 0, 1)

    def test_a_point_that_is_no_zero(self):
        with pytest.raises(ValueError, match=r"z_star must be a zero of F, got a point with \|F\(z_star\)\| = 1.27"):
            goma(rotate, [1.0, 1.0], 1.0, z_star=[0.9, 0.9])
        near = goma(rotate, [1.0, 1.0], 1.0, n_iter=50, z_star=[1e-9, 0.0])
        assert near.certificates[0].assumptions[-1].satisfied is True
        given = goma(rotate, [1.0, 1.0], 1.0, n_iter=50, distance=1.5)
        assert given.certificates[0].assumptions[-1].satisfied is None
        wrong = goma(rotate, [1.0, 1.0], 1.0, n_iter=50, distance=0.1)
        assert not wrong.certificates[0].holds

    def test_numbers_that_are_too_large_to_be_squared(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(FloatingPointError, match=r"length of 1.41e\+200 at step 0"):
                goma(rotate, [1e200, 1e200], 1.0, n_iter=5)
            with pytest.raises(FloatingPointError, match=r"squared length is finite.* step 48:"):
                goma(lambda z: 2.0 * z, [1.0], 1e-3, n_iter=5000, check_every=3, step_size=499.0)
            assert goma(rotate, [1.0, 1.0], 1.0, n_iter=5, distance=1e200).bound is None
            noise = StochasticSpec(sigma=0.1)
            assert goma(rotate, [1.0, 1.0], 1.0, n_iter=5, distance=1e200, noise=noise, rng=0).bound is None

    def test_numbers_that_are_too_small_to_be_squared(self):
        with pytest.warns(ConvergenceWarning):
            result = goma(rotate, [1e-300, 1e-300], 1.0, n_iter=10, tol=1e-310)
        assert not result.converged
        assert result.certificates[-1].value == pytest.approx(1e-300 * math.sqrt(0.0645096204))
        assert goma(lambda z: 1e-70 * rotate(z), [1e-90, 1e-90], 1e-70, n_iter=10).certificates[0].holds
        assert length(np.array([3e-200, 4e-200])) == pytest.approx(5e-200)
        assert length(np.array([3e200, -4e200])) == pytest.approx(5e200)
        assert length(np.zeros(3)) == 0.0

    def test_warnings_point_at_the_caller(self):
        program = """
import warnings
from assay.games.goma import goma
from assay.games.saddle_peers import anchored_popov, extragradient_operator
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    goma(lambda z: z, [1.0], 1.0, n_iter=2, tol=0.0)
    anchored_popov(lambda z: z, [1.0], 0.5, n_iter=2, tol=0.0)
    extragradient_operator(lambda z: z, [1.0], 1.0, n_iter=2, tol=0.0)
    goma(lambda z: -z, [1.0], 1.0, n_iter=2)
    anchored_popov(lambda z: -z, [1.0], 0.5, n_iter=2)
assert [warning.lineno for warning in caught] == [7, 8, 9, 10, 11], caught
assert ["anchored_popov did not" in str(warning.message) for warning in caught] == [0, 1, 0, 0, 0]
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class TestBadInput:
    @pytest.mark.parametrize(
        "options, error, match",
        [
            ({"z0": [np.nan, 1.0]}, ValueError, "z0"),
            ({"z0": np.ones((2, 2))}, ValueError, "z0"),
            ({"z0": []}, ValueError, "z0"),
            ({"n_iter": 0}, ValueError, "n_iter"),
            ({"n_iter": 2.5}, TypeError, "n_iter"),
            ({"check_every": 0}, ValueError, "check_every"),
            ({"restart_every": 0}, ValueError, "restart_every"),
            ({"L": 0.0}, ValueError, "L must"),
            ({"L": -1.0}, ValueError, "L must"),
            ({"L": math.inf}, ValueError, "L must"),
            ({"L": 1e-300}, ValueError, "L must be at least"),
            ({"L": 1e300}, ValueError, "L must be at most"),
            ({"tol": -1.0}, ValueError, "tol"),
            ({"preset": "nesterov"}, ValueError, "preset"),
            ({"preset": "stochastic"}, ValueError, "noise"),
            ({"schedule": "horizon"}, ValueError, "schedule"),
            ({"schedule": "forever"}, ValueError, "schedule"),
            ({"step_size": 0.0}, ValueError, "step_size"),
            ({"step_size": -0.1}, ValueError, "step_size"),
            ({"step_size": 0.51}, ValueError, "step_size must be at most 0.5"),
            ({"step_size": 0.5 / math.sqrt(3), "preset": "paper"}, ValueError, "step_size must be below"),
            ({"step_size": 0.26, "preset": "explore"}, ValueError, "allow_unproved"),
            ({"z_star": [0.0]}, ValueError, "z_star"),
            ({"z_star": [0.0, np.inf]}, ValueError, "z_star"),
            ({"z_star": [0.0, 0.0], "distance": 1.0}, ValueError, "distance"),
            ({"distance": -1.0}, ValueError, "distance"),
            ({"allow_unproved": 1}, TypeError, "allow_unproved"),
            ({"callback": 3}, TypeError, "callback"),
            ({"rng": "seed"}, TypeError, "rng"),
            ({"noise": 0.5}, TypeError, "noise"),
            ({"noise": StochasticSpec(sigma=1.0), "preset": "paper"}, ValueError, "preset"),
            ({"noise": StochasticSpec(sigma=1.0), "restart_every": 3}, ValueError, "restart_every"),
            ({"noise": StochasticSpec(sigma=1.0), "step_size": 1.01}, ValueError, "step_size"),
            ({"noise": StochasticSpec(sigma=1.0, pull=0.1)}, ValueError, "pull"),
            ({"noise": StochasticSpec(sigma=1.0), "schedule": "horizon"}, ValueError, "distance"),
            ({"noise": StochasticSpec(sigma=0.0), "schedule": "horizon", "distance": 1.0}, ValueError, "pull"),
            ({"noise": StochasticSpec(sigma=1.0, pull=2.0), "schedule": "horizon"}, ValueError, "pull"),
            (
                {"noise": StochasticSpec(sigma=1.0, pull=1e-200), "schedule": "horizon"},
                ValueError,
                "pull must be larger",
            ),
            (
                {"noise": StochasticSpec(sigma=1.0), "schedule": "horizon", "distance": 1.0, "step_size": 0.1},
                ValueError,
                "step_size",
            ),
        ],
    )
    def test_arguments(self, options, error, match):
        arguments = {"z0": [1.0, 1.0], "L": 1.0, **options}
        with pytest.raises(error, match=match):
            goma(rotate, **arguments)

    def test_the_operator(self):
        with pytest.raises(TypeError, match="F"):
            goma(np.eye(2), [1.0, 1.0])
        with pytest.raises(ValueError, match=r"F must return a vector of length 2, got shape \(3,\)"):
            goma(lambda z: np.zeros(3), [1.0, 1.0], 1.0)
        with pytest.raises(ValueError, match=r"length 2, got shape \(2, 1\)"):
            goma(lambda z: z[:, None], [1.0, 1.0], 1.0)
        with pytest.raises(TypeError, match="vector of real numbers"):
            goma(lambda z: "none", [1.0, 1.0], 1.0)
        with pytest.raises(FloatingPointError, match="step 0"):
            goma(lambda z: z * np.nan, [1.0, 1.0], 1.0)

    @pytest.mark.parametrize(
        "function, got",
        [
            (lambda z: z + 0j, "ndarray of dtype complex128"),
            (lambda z: ["1", "2"], "list"),
            (lambda z: [None, 1.0], "list"),
            (lambda z: None, "NoneType"),
            (lambda z: np.ma.array(z, mask=[True, False]), "masked"),
            (lambda z: np.array([10**400, 1], dtype=object), "dtype object"),
        ],
    )
    def test_what_is_no_vector_of_real_numbers(self, function, got):
        with pytest.raises(TypeError, match=f"F must return a vector of real numbers, got .*{got}"):
            goma(function, [1.0, 1.0], 1.0)

    def test_sparse_tensors(self):
        import torch

        with pytest.raises(TypeError, match=r"layout torch\.sparse_coo"):
            goma(lambda z: torch.tensor(z).to_sparse(), [1.0, 1.0], 1.0)

    def test_an_operator_that_changes_its_argument(self):
        with pytest.raises(ValueError, match="F must not change its argument, which it did at step 0"):
            goma(lambda z: np.multiply(z, 0.9, out=z), [1.0, 1.0], 1.0)
        calls = []

        def later(z):
            calls.append(None)
            if len(calls) > 4:
                z *= 0.5
            return rotate(z)

        with pytest.raises(ValueError, match=r"change its argument, which it did at step \d"):
            goma(later, [1.0, 1.0], 1.0, check_every=3)

    @pytest.mark.parametrize("check_every", [1, 100])
    def test_a_nan_names_the_step(self, check_every):
        calls = []

        def fails(z):
            calls.append(None)
            return rotate(z) if len(calls) <= 3 else z * np.nan

        with pytest.raises(FloatingPointError, match=r"step \d"):
            goma(fails, [1.0, 1.0], 1.0, check_every=check_every)
        calls.clear()
        with pytest.raises(FloatingPointError, match="step 2"):
            goma(fails, [1.0, 1.0], 1.0, check_every=100)

    def test_the_oracle(self):
        with pytest.raises(ValueError, match="oracle must return a vector of length 2"):
            goma(rotate, [1.0, 1.0], 1.0, noise=StochasticSpec(sigma=1, oracle=lambda z, n, rng: np.zeros(3)))
        with pytest.raises(FloatingPointError, match=r"oracle must return finite numbers.*step 0"):
            goma(rotate, [1.0, 1.0], 1.0, noise=StochasticSpec(sigma=1, oracle=lambda z, n, rng: z * np.nan))
        with pytest.raises(ValueError, match="L must be given"):
            goma(lambda z: np.ones(2), [1.0, 1.0], noise=StochasticSpec(sigma=1))

    @pytest.mark.parametrize(
        "options, error, match",
        [
            ({"sigma": -1.0}, ValueError, "sigma"),
            ({"sigma": math.nan}, ValueError, "sigma"),
            ({"kappa": 0.99}, ValueError, "kappa"),
            ({"sigma": 1e200}, ValueError, "sigma"),
            ({"kappa": 1e200}, ValueError, "kappa"),
            ({"batch": "huge"}, ValueError, "batch"),
            ({"pull": 0.0}, ValueError, "pull"),
            ({"oracle": 3}, TypeError, "oracle"),
        ],
    )
    def test_noise(self, options, error, match):
        with pytest.raises(error, match=match):
            StochasticSpec(**{"sigma": 1.0, **options})


def test_slopes():
    k = np.arange(1, 2000)
    assert fitted_slope(k, 3.0 * k**-2.0) == pytest.approx(-2.0)
    assert fitted_slope(np.arange(0, 2000), np.r_[7.0, 3.0 * k**-1.5]) == pytest.approx(-1.5)
    assert math.isnan(fitted_slope(np.array([0, 1, 2]), np.ones(3)))
    assert math.isnan(fitted_slope(k, 0.0 * k))


def test_a_vector_of_one_entry_and_a_start_at_the_zero():
    result = goma(lambda z: z - 3.0, [3.0], 1.0, z_star=[3.0])
    assert result.z == pytest.approx([3.0])
    assert result.residual_sq == 0.0
    assert result.bound == 0.0
    assert all(c.holds for c in result.certificates)


def test_weights_do_not_depend_on_the_name_of_the_step():
    anchor, update, next_anchor, exploration = deterministic_weights(PRESETS["halpern"], 0.5)(0)
    assert (anchor, update, next_anchor) == (0.5, 0.5, pytest.approx(1 / 3))
    assert exploration == pytest.approx(1 / 3)
