"""The density flow on an interval: exact structure, known values, the rate."""

import numpy as np
import pytest
from scipy import integrate, optimize

from assay.certificate import Certificate
from assay.transport import FlowResult, mirror_flow_1d
from assay.validation import ConvergenceWarning


def matching(target):
    return (lambda x, mass: (mass @ x - target) * x), (lambda x, mass: 0.5 * (mass @ x - target) ** 2)


def start(x):
    return np.exp(-0.5 * ((x - 0.3) / 0.08) ** 2)


def fixed_mean(target, temperature):
    """The mean of the truncated exponential law that is its own fixed point."""

    def excess(m):
        slope = (m - target) / temperature
        mass = integrate.quad(lambda x: np.exp(-slope * x), 0, 1)[0]
        return integrate.quad(lambda x: x * np.exp(-slope * x), 0, 1)[0] / mass - m

    return optimize.brentq(excess, 1e-3, 1 - 1e-3, xtol=1e-13)


@pytest.fixture(scope="module")
def flow():
    variation, functional = matching(0.8)
    return mirror_flow_1d(variation, 200, start, temperature=0.05, n_steps=1200, functional=functional)


class TestMeanMatching:
    def test_the_known_values(self, flow):
        assert flow.gap == pytest.approx(0.384836, abs=1e-6)
        assert flow.rate == pytest.approx(0.0472, abs=5e-4)
        for t, value in ((0, 1.63e-1), (30, 2.1e-3), (120, 1.7e-5), (300, 3.4e-9)):
            assert flow.excess[flow.time.tolist().index(t)] == pytest.approx(value, rel=0.02)
        assert flow.objective[-1] == pytest.approx(0.0173305446, abs=1e-6)
        assert flow.certified
        assert isinstance(flow, FlowResult)

    @pytest.mark.parametrize(
        "target, temperature, mean",
        [(0.8, 0.05, 0.6813597858), (1.2, 0.05, 0.8557719642), (0.8, 0.01, 0.7615907984), (0.5, 0.05, 0.5)],
    )
    def test_fixed_points(self, target, temperature, mean):
        assert fixed_mean(target, temperature) == pytest.approx(mean, abs=1e-9)
        variation, _ = matching(target)
        found = mirror_flow_1d(variation, 400, start, temperature=temperature, n_steps=0)
        # The midpoint rule is off by the square of the width of a cell.
        assert found.stationary @ found.centers / 400 == pytest.approx(mean, abs=1e-4)

    def test_the_stationary_law_is_a_truncated_exponential(self, flow):
        slope = (0.6813597858 - 0.8) / 0.05
        law = np.exp(-slope * flow.centers)
        np.testing.assert_allclose(flow.stationary, 200 * law / law.sum(), rtol=1e-3)
        quantiles = np.interp([0.1, 0.5, 0.9], np.cumsum(flow.stationary) / 200, flow.edges[1:])
        np.testing.assert_allclose(quantiles, [0.286, 0.745, 0.960], atol=1e-3)

    def test_the_sandwich(self, flow):
        lower, upper = flow.history["lower"], flow.history["upper"]
        assert np.all(lower <= flow.excess + 1e-12)
        assert np.all(flow.excess <= upper + 1e-12)

    def test_the_objective_never_rises(self, flow):
        assert np.all(np.diff(flow.objective) <= 1e-15)

    def test_without_a_functional_the_divergence_is_followed(self, flow):
        variation, _ = matching(0.8)
        found = mirror_flow_1d(variation, 200, start, temperature=0.05, n_steps=1200)
        np.testing.assert_array_equal(found.density, flow.density)
        assert np.isnan(found.objective).all()
        np.testing.assert_array_equal(found.excess, flow.history["lower"])
        assert found.certified
        assert len(found.certificates) == 3


class TestStructure:
    def test_a_step_against_the_dense_matrix(self):
        rng = np.random.default_rng(0)
        edges = np.concatenate([[-1.0], np.sort(rng.uniform(-1, 2, 11)), [2.0]])
        widths, centers = np.diff(edges), 0.5 * (edges[1:] + edges[:-1])
        mass = rng.random(12) + 0.1
        mass /= mass.sum()
        potential, temperature, dt = np.sin(3 * centers), 0.7, 0.4
        found = mirror_flow_1d(
            lambda x, mass: potential, edges, mass / widths, temperature=temperature, dt=dt, n_steps=1
        )
        target = widths * np.exp(-potential / temperature)
        target /= target.sum()
        generator = np.zeros((12, 12))
        for i in range(11):
            face = edges[i + 1]
            metric = (face - edges[0]) ** -2 + (edges[-1] - face) ** -2
            height = np.sqrt(target[i] / widths[i] * target[i + 1] / widths[i + 1])
            flow = height / metric / (centers[i + 1] - centers[i])
            generator[i, i] -= flow
            generator[i + 1, i + 1] -= flow
            generator[i, i + 1] += flow
            generator[i + 1, i] += flow
        expected = np.linalg.solve(np.eye(12) - dt * temperature * generator / target, mass)
        np.testing.assert_allclose(found.density * widths, expected, rtol=1e-12)
        eigenvalues = np.sort(np.linalg.eigvals(-generator / target).real)
        assert found.gap == pytest.approx(eigenvalues[1], rel=1e-9)

    @pytest.mark.parametrize("dt", [1e-3, 1.0, 1e6])
    def test_mass_and_sign_for_every_step_size(self, dt):
        init = np.zeros(50)
        init[7] = 1.0
        found = mirror_flow_1d(lambda x, m: 3 * x, 50, init, temperature=0.1, dt=dt, n_steps=5)
        assert found.density.min() >= 0
        assert found.density.sum() / 50 == pytest.approx(1.0, abs=1e-14)

    def test_the_entropic_metric_has_the_gap_of_legendre_polynomials(self):
        # Without a potential, -(x (1 - x) u')' = k (k + 1) u.
        found = mirror_flow_1d(lambda x, m: 0 * x, 800, np.ones(800), temperature=1.0, barrier="entropy", n_steps=0)
        assert found.gap == pytest.approx(2.0, rel=1e-4)
        again = mirror_flow_1d(
            lambda x, m: 0 * x, 800, np.ones(800), temperature=1.0, barrier=lambda x: 1 / (x * (1 - x)), n_steps=0
        )
        assert again.gap == pytest.approx(found.gap, rel=1e-9)

    def test_an_interval_of_another_length(self):
        # The log barrier is the same in units of the interval.
        wide = mirror_flow_1d(lambda x, m: 0.3 * x, np.linspace(2, 6, 101), np.ones(100), temperature=1.0, n_steps=0)
        unit = mirror_flow_1d(lambda x, m: 1.2 * x, 100, np.ones(100), temperature=1.0, n_steps=0)
        assert wide.gap == pytest.approx(unit.gap, rel=1e-9)


class TestCertificates:
    def test_a_decay_that_is_too_slow_is_noticed(self, flow):
        promise = flow.certificates[-1]
        slow = Certificate(promise.statement, 0.5 * promise.bound, promise.bound, ">=", promise.assumptions)
        assert promise.holds
        assert not slow.holds

    def test_a_functional_that_does_not_fit_is_noticed(self):
        variation, functional = matching(0.8)
        found = mirror_flow_1d(
            variation, 60, start, temperature=0.05, n_steps=400, functional=lambda x, m: 3 * functional(x, m)
        )
        assert [c.holds for c in found.certificates][2] is False

    def test_large_steps_void_the_assumption(self):
        variation, functional = matching(0.8)
        found = mirror_flow_1d(variation, 60, start, temperature=0.05, dt=20.0, n_steps=60, functional=functional)
        assert found.certificates[-1].violated

    def test_too_short_a_run_says_nothing_about_the_rate(self):
        variation, _ = matching(0.8)
        found = mirror_flow_1d(variation, 60, start, temperature=0.05, n_steps=3)
        assert np.isnan(found.rate)
        assert not found.certificates[-1].holds

    def test_no_fixed_point_of_a_functional_that_is_not_convex(self):
        def discontinuous(x, mass):
            return np.where(mass @ x > 0.5, 9.0, -9.0) * x

        with pytest.warns(ConvergenceWarning, match="mirror_flow_1d did not reach"):
            mirror_flow_1d(discontinuous, 20, np.ones(20), temperature=0.5, n_steps=0)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"temperature": 0}, "temperature must be greater than 0"),
        ({"dt": 0}, "dt must be greater than 0"),
        ({"n_steps": -1}, "n_steps must be at least 0"),
        ({"grid": 2}, "grid must be at least 3"),
        ({"grid": [0, 1, 0.5, 2]}, "increasing"),
        ({"init": np.ones(9)}, "one entry per cell"),
        ({"init": -np.ones(10)}, "non-negative"),
        ({"init": np.zeros(10)}, "positive mass"),
        ({"barrier": "wall"}, "barrier must be one of"),
        ({"barrier": lambda x: -x}, "positive second derivative"),
        ({"first_variation": lambda x, m: np.full_like(x, np.nan)}, "first_variation must be"),
        ({"first_variation": lambda x, m: x[:3]}, "one number per cell"),
        ({"functional": lambda x, m: np.nan}, "functional must be finite"),
    ],
)
def test_bad_input(change, message):
    arguments = {"first_variation": lambda x, m: x, "grid": 10, "init": np.ones(10), "temperature": 1.0, "n_steps": 2}
    with pytest.raises(ValueError, match=message):
        mirror_flow_1d(**{**arguments, **change})


def test_functions_must_be_callable():
    with pytest.raises(TypeError, match="first_variation"):
        mirror_flow_1d(None, 10, np.ones(10), temperature=1.0)
    with pytest.raises(TypeError, match="functional"):
        mirror_flow_1d(lambda x, m: x, 10, np.ones(10), temperature=1.0, functional=3)
