"""Projections of measures and simulated amplitude estimation: known values, plain versions, laws."""

import math

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.supervised import Projection, amplitude_estimate, bregman_project
from assay.supervised.amplitude_estimation import estimation_law, estimation_size, median_failure
from assay.supervised.bregman_projection import project_log_measure

EXAMPLE = [0.9, 0.5, 0.3, 0.1, 0.05]


def by_sorting(measure, eps, weights=None):
    """The first number of saturated entries for which the next one stays below 1."""
    measure = np.asarray(measure, dtype=float)
    share = np.full(len(measure), 1 / len(measure)) if weights is None else np.asarray(weights) / np.sum(weights)
    order = np.argsort(-measure)
    ordered, share = measure[order], share[order]
    for k in range(len(ordered)):
        rest = share[k:] @ ordered[k:]
        constant = (eps - share[:k].sum()) / rest
        if constant * ordered[k] <= 1 + 1e-12:
            return constant
    raise AssertionError("no constant")


class TestExact:
    @pytest.mark.parametrize(("eps", "constant"), [(0.3, 0.8108108108), (0.5, 1.5789473684), (0.8, 6.6666666667)])
    def test_known_values(self, eps, constant):
        projection = bregman_project(EXAMPLE, eps)
        assert projection.constant == pytest.approx(constant, abs=1e-10)
        assert projection.certified
        assert isinstance(projection, Projection)
        if eps == 0.5:
            np.testing.assert_allclose(projection.measure, [1, 0.789474, 0.473684, 0.157895, 0.078947], atol=5e-7)

    @pytest.mark.parametrize("value", [1e-8, 0.2, 1.0, 1e8])
    def test_equal_entries(self, value):
        projection = bregman_project([value] * 7, 0.3)
        assert projection.constant == pytest.approx(0.3 / value, rel=1e-14)

    @settings(max_examples=60, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1), eps=st.floats(0.01, 0.95), power=st.floats(0.1, 30))
    def test_sorting(self, seed, eps, power):
        rng = np.random.default_rng(seed)
        measure, weights = rng.random(40) ** power, rng.integers(1, 5, 40)
        for given_weights in (None, weights):
            projection = bregman_project(measure, eps, weights=given_weights)
            assert projection.constant == pytest.approx(by_sorting(measure, eps, given_weights), rel=1e-9)
            assert projection.density == pytest.approx(eps, rel=1e-12)

    def test_convex_solver(self):
        measure = np.random.default_rng(0).random(12)
        variable = cvxpy.Variable(12)
        divergence = cvxpy.sum(cvxpy.kl_div(variable, measure))
        cvxpy.Problem(cvxpy.Minimize(divergence), [variable <= 1, cvxpy.sum(variable) == 0.6 * 12]).solve(
            solver="CLARABEL"
        )
        ours = bregman_project(measure, 0.6).measure
        np.testing.assert_allclose(ours, variable.value, atol=1e-3)
        assert np.sum(ours * np.log(ours / measure) - ours + measure) == pytest.approx(divergence.value, abs=1e-7)

    def test_weights_are_multiplicities(self):
        measure, weights = np.random.default_rng(1).random(6), np.array([1, 2, 3, 1, 2, 1])
        repeated = bregman_project(np.repeat(measure, weights), 0.4)
        assert bregman_project(measure, 0.4, weights=weights).constant == pytest.approx(repeated.constant, rel=1e-12)

    def test_edges(self):
        # as many positive entries as are needed, and no more
        full = bregman_project([0.5, 0.1, 0.0, 0.0], 0.5)
        np.testing.assert_allclose(full.measure, [1, 1, 0, 0])
        assert bregman_project([1.0] * 4, 0.25).measure.tolist() == [0.25] * 4
        # far apart: one pass per order of magnitude at most
        assert bregman_project(10.0 ** -np.arange(0, 300, 10), 0.9).certified

    def test_logarithms_below_the_range_of_floats(self):
        log_n = np.array([-5000.0, -5000.5, -5001.0, -9000.0])
        found = project_log_measure(log_n, 0.3, "exact", 0.0, None, np.full(4, 0.25))
        shifted = bregman_project(np.exp(log_n + 5000), 0.3)
        assert found.log_constant - 5000 == pytest.approx(math.log(shifted.constant), rel=1e-12)

    def test_input_is_left_alone(self):
        measure = np.array(EXAMPLE)
        bregman_project(measure, 0.5)
        np.testing.assert_array_equal(measure, EXAMPLE)
        assert bregman_project(np.array([1, 2, 3], dtype=np.int32), 0.5).certified
        assert bregman_project(np.array(EXAMPLE, dtype=np.float32), 0.5).constant == pytest.approx(1.578947, abs=1e-5)


class TestApproximate:
    @settings(max_examples=30, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1), eps=st.floats(0.02, 0.8), delta=st.floats(0.01, 1.0))
    def test_density_in_range(self, seed, eps, delta):
        measure = np.random.default_rng(seed).random(50)
        projection = bregman_project(measure, eps, "approx", delta)
        assert eps <= projection.density <= (1 + delta) * eps + 1e-12
        assert projection.certified
        assert projection.queries % 50 == 0

    def test_simulated(self):
        rng = np.random.default_rng(0)
        inside = []
        for _ in range(60):
            measure = 0.1 * 0.9 ** rng.binomial(10, 0.6, 500)
            projection = bregman_project(measure, 0.1, "quantum_sim", 0.2, rng)
            inside.append(0.1 <= projection.density <= 0.12)
            assert projection.queries % (7 * estimation_size(0.1, 0.2)) == 0
        # each of the eight tests fails with probability 0.028 at most, and only where it matters
        assert np.mean(inside) >= 0.8

    def test_queries_do_not_depend_on_the_size(self):
        queries = [
            bregman_project(np.tile(EXAMPLE, repeats), 0.3, "quantum_sim", 0.2, rng=3).queries for repeats in (10, 1000)
        ]
        assert queries[0] == queries[1]

    def test_seed(self):
        first, second = (bregman_project(EXAMPLE, 0.3, "quantum_sim", 0.5, rng=5) for _ in range(2))
        assert first.constant == second.constant
        assert "fails with probability" in first.certificates[0].statement


class TestEstimation:
    @pytest.mark.parametrize(("a", "share"), [(0.01, 0.998), (0.1, 0.825), (0.4, 0.995)])
    def test_known_shares_within_the_bound(self, a, share):
        bound = 2 * math.pi * math.sqrt(a * (1 - a)) / 64 + math.pi**2 / 64**2
        law = estimation_law(a, 64)
        inside = np.abs(np.sin(np.pi * np.arange(64) / 64) ** 2 - a) <= bound
        assert law[inside].sum() == pytest.approx(share, abs=0.01)
        assert law[inside].sum() >= 8 / math.pi**2
        rng = np.random.default_rng(0)
        drawn = np.array([amplitude_estimate(a, 64, rng) for _ in range(1500)])
        assert np.mean(np.abs(drawn - a) <= bound) == pytest.approx(law[inside].sum(), abs=0.04)

    @pytest.mark.parametrize("n_eval", [1, 2, 7, 64, 512])
    def test_law_of_a_quantum_circuit(self, n_eval):
        # phase estimation of the rotation by 2 theta, in its two eigenvectors
        for a in (0.0, 0.13, 0.5, 0.97, 1.0):
            theta = math.asin(math.sqrt(a))
            phases = np.exp(2j * theta * np.arange(n_eval)), np.exp(-2j * theta * np.arange(n_eval))
            expected = sum(0.5 * np.abs(np.fft.fft(phase) / n_eval) ** 2 for phase in phases)
            np.testing.assert_allclose(estimation_law(a, n_eval), expected, atol=1e-11)

    def test_exact_on_the_grid(self):
        for k in (0, 1, 5, 16, 32):
            a = math.sin(math.pi * k / 64) ** 2
            assert amplitude_estimate(a, 64, rng=k) == pytest.approx(a, abs=1e-15)
        assert amplitude_estimate(0.0, 64, rng=0) == 0.0
        assert amplitude_estimate(1.0, 64, rng=0) == 1.0

    def test_median_is_better(self):
        rng = np.random.default_rng(1)
        single, seven = (
            np.array([amplitude_estimate(0.1, 64, rng, repeats) for _ in range(400)]) for repeats in (1, 7)
        )
        assert np.mean(np.abs(seven - 0.1) > 0.03) < np.mean(np.abs(single - 0.1) > 0.03)

    def test_failure_of_the_median(self):
        miss = 1 - 8 / math.pi**2
        assert median_failure(1) == pytest.approx(miss)
        assert median_failure(3) == pytest.approx(3 * miss**2 * (1 - miss) + miss**3)

    def test_size(self):
        for eps, delta in [(0.1, 0.2), (0.01, 0.5), (0.5, 1.0)]:
            size = estimation_size(eps, delta)
            wanted = 8 * math.pi / (delta * math.sqrt(eps))
            assert wanted <= size < 2 * wanted
            assert size & (size - 1) == 0


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            (([], 0.1), ValueError, "N must be"),
            (([[0.1]], 0.1), ValueError, "N must be"),
            (([0.1, math.nan], 0.1), ValueError, "N must be"),
            (([0.1, -0.1], 0.1), ValueError, "N must be non-negative"),
            (([0.0, 0.0], 0.1), ValueError, "N must be positive on a share"),
            (([0.5, 0.0, 0.0], 0.5), ValueError, "N must be positive on a share"),
            ((["a"], 0.1), TypeError, "N must be"),
            ((EXAMPLE, 0.0), ValueError, "eps"),
            ((EXAMPLE, 1.0), ValueError, "eps"),
            ((EXAMPLE, 0.1, "newton"), ValueError, "method"),
            ((EXAMPLE, 0.1, "approx"), ValueError, "delta"),
            ((EXAMPLE, 0.1, "quantum_sim", 1.5), ValueError, "delta"),
        ],
    )
    def test_projection(self, arguments, error, match):
        with pytest.raises(error, match=match):
            bregman_project(*arguments)

    def test_weights(self):
        for weights in ([1.0], [1, 1, 1, 1, -1], [0] * 5):
            with pytest.raises(ValueError, match="weights"):
                bregman_project(EXAMPLE, 0.3, weights=weights)

    @pytest.mark.parametrize(
        ("arguments", "match"), [((1.5, 8), "a must"), ((0.5, 0), "n_eval"), ((0.5, 8, 0, 0), "repeats")]
    )
    def test_estimation(self, arguments, match):
        with pytest.raises(ValueError, match=match):
            amplitude_estimate(*arguments)
