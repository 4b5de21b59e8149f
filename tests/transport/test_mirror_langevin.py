"""Particles that stay inside: known fixed points, options, certificates, baselines."""

import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from assay.certificate import CertificateError
from assay.transport import (
    Ball,
    Box,
    LangevinResult,
    Orthant,
    Polytope,
    Simplex,
    Spectraplex,
    certify_langevin,
    certify_scaling,
    mirror_langevin,
    penalized_langevin,
    projected_langevin,
)
from assay.transport.langevin_residual import fixed_point_residual, linear_rate

TARGET = np.array([0.7, 0.2, 0.1])


def to_mean(target):
    """Gradient, first variation and value of half the squared distance of the mean."""
    return {
        "grad": lambda x: np.broadcast_to(x.mean(axis=0) - target, x.shape).copy(),
        "first_variation": lambda points, x: points @ (x.mean(axis=0) - target),
        "functional": lambda x: 0.5 * float(np.sum((x.mean(axis=0) - target) ** 2)),
    }


def run_interval(target=0.8, method=mirror_langevin, **options):
    problem = to_mean(np.array([target]))
    grad = problem.pop("grad")
    settings = {"domain": Box(0, 1, 1), "temperature": 0.05, "lr": 0.4, "n_steps": 400, "rng": 0}
    return method(grad, options.pop("init", 1500), **{**settings, **problem, **options})


@pytest.fixture(scope="module")
def interval():
    return run_interval()


class TestKnownFixedPoints:
    @pytest.mark.parametrize("target, mean", [(0.8, 0.6813597858), (1.2, 0.8557719642), (0.5, 0.5)])
    def test_interval(self, target, mean):
        run = run_interval(target)
        assert float(run.mean[0]) == pytest.approx(mean, abs=0.015)
        assert run.certified
        assert run.time == pytest.approx(160.0)
        c = (mean - target) / 0.05
        if c:
            expected = [-np.log(1 - p * (1 - np.exp(-c))) / c for p in (0.1, 0.5, 0.9)]
            np.testing.assert_allclose(np.quantile(run.particles, [0.1, 0.5, 0.9]), expected, atol=0.05)

    @pytest.mark.parametrize(
        "repulsion, mean", [(0.0, (0.61961, 0.21825, 0.16215)), (0.02, (0.60274, 0.22403, 0.17323))]
    )
    def test_simplex(self, repulsion, mean):
        def grad(x):
            return 2 * (x.mean(axis=0) - TARGET) - repulsion / x

        run = mirror_langevin(grad, 1500, domain=Simplex(3), temperature=0.05, lr=0.2, n_steps=300, rng=1)
        np.testing.assert_allclose(run.mean, mean, atol=0.02)
        assert run.inside > 0

    def test_the_triangle_has_the_law_of_the_simplex(self):
        triangle = Polytope([[-1, 0], [0, -1], [1, 1]], [0, 0, 1])

        def grad(x):
            shares = np.column_stack([x, 1 - x.sum(axis=1)])
            slope = 2 * (shares.mean(axis=0) - TARGET)
            return np.tile(slope[:2] - slope[2], (len(x), 1))

        run = mirror_langevin(grad, 300, domain=triangle, temperature=0.05, lr=0.4, n_steps=60, rng=2)
        np.testing.assert_allclose(run.mean, [0.61961, 0.21825], atol=0.04)
        assert run.inside > 0

    @pytest.mark.parametrize("barrier", ["log", "hybrid"])
    def test_exponential_and_truncated_laws_on_the_orthant(self, barrier):
        # Independent particles: the Gibbs law of the potential x / scale at temperature 1.
        scale = np.array([0.5, 2.0])
        run = mirror_langevin(
            lambda x: np.tile(1 / scale, (len(x), 1)),
            np.ones((2000, 2)),
            domain=Orthant(barrier=barrier),
            temperature=1.0,
            lr=0.02,
            n_steps=600,
            rng=3,
        )
        np.testing.assert_allclose(run.mean, scale, rtol=0.12)
        assert run.inside > 0

    def test_a_uniform_law_on_every_bounded_set(self):
        # Without a potential the Gibbs law is uniform: second moments are known.
        for domain, moment in ((Ball(3), 3 / 5), (Box(-1, 1, 3), 1.0), (Ball(2, 2.0), 2.0)):
            run = mirror_langevin(
                lambda x: np.zeros_like(x), 2000, domain=domain, temperature=1.0, lr=0.05, n_steps=80, rng=4
            )
            assert float(np.sum(run.particles**2, axis=1).mean()) == pytest.approx(moment, rel=0.06)

    def test_density_matrices(self):
        aim = np.diag([0.8, 0.2])
        run = mirror_langevin(
            lambda x: np.broadcast_to(x.mean(axis=0) - aim, x.shape).copy(),
            600,
            domain=Spectraplex(2),
            temperature=0.05,
            lr=0.2,
            n_steps=200,
            rng=5,
            first_variation=lambda points, x: np.einsum("nij,ij->n", points, x.mean(axis=0) - aim),
        )
        assert run.particles.shape == (600, 2, 2)
        # On the disc around I/2: the mean a of the law exp(-k z), z = a - 1/2 in [-1/2, 1/2], is its own slope.
        z = np.linspace(-0.5, 0.5, 20001)
        disc = np.sqrt(0.25 - z**2)
        low, high = 0.0, 0.3
        for _ in range(60):
            middle = 0.5 * (low + high)
            weights = disc * np.exp(-(2 * (middle - 0.3)) * z / 0.05)
            low, high = (middle, high) if (weights @ z) / weights.sum() > middle else (low, middle)
        assert run.mean[0, 0] - 0.5 == pytest.approx(middle, abs=0.02)
        assert run.certified


class TestTheRun:
    def test_the_result(self, interval):
        assert isinstance(interval, LangevinResult)
        assert interval.particles.shape == (1500, 1)
        assert interval.status == "steps"
        assert interval.n_steps == 400
        assert len(repr(interval).splitlines()) <= 16
        assert set(interval.history) == {"iteration", "time", "seconds", "mean", "functional"}
        assert interval.history["functional"][-1] == pytest.approx(0.5 * (interval.mean[0] - 0.8) ** 2)
        assert interval.to_dict()["domain"] == "Box(0., 1., d=1, barrier='log')"

    def test_it_is_determined_by_the_seed(self):
        first, again, other = (run_interval(init=100, n_steps=40, rng=seed).particles for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_arrays_and_tensors_agree(self):
        start = Box(0, 1, 1).start(50, 0)
        kept = start.copy()
        arrays = run_interval(init=start, n_steps=20)
        tensors = mirror_langevin(
            lambda x: (x.mean(dim=0) - 0.8).expand_as(x),
            torch.tensor(start),
            domain=Box(0, 1, 1),
            temperature=0.05,
            lr=0.4,
            n_steps=20,
            rng=0,
        )
        np.testing.assert_array_equal(start, kept)
        assert isinstance(tensors.particles, torch.Tensor)
        np.testing.assert_allclose(tensors.particles.numpy(), arrays.particles, rtol=1e-12)

    def test_float32_particles(self):
        start = torch.tensor(Simplex(3).start(400, 0), dtype=torch.float32)
        run = mirror_langevin(
            lambda x: 2 * (x.mean(dim=0) - torch.tensor(TARGET, dtype=x.dtype)).expand_as(x),
            start,
            domain="simplex",
            temperature=0.05,
            lr=0.2,
            n_steps=100,
            rng=0,
            first_variation=lambda points, x: 2 * points @ (x.mean(dim=0) - torch.tensor(TARGET, dtype=x.dtype)),
        )
        assert run.particles.dtype == torch.float32
        assert run.certified

    def test_inner_steps_change_little(self):
        means = [float(run_interval(inner=inner, init=500, n_steps=200).mean[0]) for inner in (1, 4)]
        assert means[0] != means[1]
        assert abs(means[0] - means[1]) < 0.05

    def test_step_sizes_can_shrink(self):
        run = run_interval(lr=lambda k: 0.4 / (1 + k) ** 0.5, n_steps=100, init=20)
        assert run.time == pytest.approx(sum(0.4 / (1 + k) ** 0.5 for k in range(100)))
        with pytest.raises(ValueError, match=r"lr\(0\) must be greater than 0"):
            run_interval(lr=lambda k: 0.0, init=20)

    def test_it_stops_at_the_tolerance(self):
        rows = []
        run = run_interval(tol=0.005, record=10, init=300, callback=rows.append)
        assert run.status == "tolerance"
        assert run.n_steps < 400
        assert run.residual <= 0.005
        assert [row["iteration"] for row in rows] == run.history["iteration"].tolist()
        assert run.history["residual"][0] > 0.005

    def test_temperature_zero_is_mirror_descent(self):
        with pytest.warns(UserWarning, match="deterministic mirror descent"):
            run = run_interval(
                temperature=0.0, init=[[0.3], [0.6]], n_steps=50, lr=0.01, functional=None, first_variation=None
            )
        x = np.array([[0.3], [0.6]])
        for _ in range(50):
            y = -1 / x + 1 / (1 - x) - 0.01 * (x.mean() - 0.8)
            x = ((y - 2) + np.sqrt(y**2 + 4)) / (2 * y)
        np.testing.assert_allclose(run.particles, x, rtol=1e-9)

    def test_the_entropic_barrier_warns_unless_the_target_vanishes(self):
        with pytest.warns(UserWarning, match="not self-concordant"):
            run_interval(barrier="entropy", n_steps=1, init=5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run_interval(domain=Box(0, 1, 1, barrier="entropy", repulsion=0.02), n_steps=1, init=5)
            run_interval(n_steps=1, init=5)

    def test_huge_steps_and_gradients_stay_inside(self):
        for domain in (
            Box(0, 1, 2),
            Ball(2),
            Simplex(3),
            Spectraplex(2),
            Polytope(np.vstack([np.eye(2), -np.eye(2)]), [1.0] * 4),
        ):
            rng = np.random.default_rng(0)
            run = mirror_langevin(
                lambda x, rng=rng: 1e8 * rng.standard_normal(x.shape),
                30,
                domain=domain,
                temperature=10.0,
                lr=10.0,
                n_steps=10,
                rng=0,
            )
            assert run.certified

    def test_a_set_of_ones_own(self):
        class HalfLine:
            def mirror(self, x):
                return x - 1 / x

            def inverse(self, y):
                return 0.5 * (y + torch.sqrt(y**2 + 4))

            def noise(self, x, xi):
                return xi * torch.sqrt(1 + x**-2)

            def slack(self, x):
                return x[:, 0]

        start = np.ones((1500, 1))
        own, ours = (
            mirror_langevin(lambda x: np.ones_like(x), start, domain=d, temperature=1.0, lr=0.05, n_steps=100, rng=0)
            for d in (HalfLine(), Orthant(1, barrier="hybrid"))
        )
        np.testing.assert_allclose(own.particles, ours.particles, rtol=1e-8)
        assert own.mean[0] == pytest.approx(1.0, abs=0.1)

    def test_a_mirror_map_that_returns_its_argument(self):
        class Free:
            def mirror(self, x):
                return x

            inverse = mirror

            def noise(self, x, xi):
                return xi

            def slack(self, x):
                return torch.ones(len(x), dtype=x.dtype)

        seen = []
        mirror_langevin(
            lambda x: seen.append(x.copy()) or np.ones_like(x),
            np.zeros((4, 2)),
            domain=Free(),
            temperature=1.0,
            n_steps=3,
            rng=0,
        )
        np.testing.assert_array_equal(seen[0], 0.0)
        assert np.all(seen[1] != 0.0)


class TestCertificates:
    def test_a_run_that_has_not_arrived_is_noticed(self):
        short = run_interval(n_steps=5)
        assert short.inside > 0
        assert not short.certified
        with pytest.raises(CertificateError, match="energy distance"):
            short.require()

    def test_corrupted_particles_are_noticed(self, interval):
        from dataclasses import replace

        problem = to_mean(np.array([0.8]))
        assert all(c.holds for c in certify_langevin(interval, first_variation=problem["first_variation"], rng=1))
        outside = interval.particles.copy()
        outside[3] = 1.0
        assert not certify_langevin(replace(interval, particles=outside))[0].holds
        outside[3] = np.nan
        assert not certify_langevin(replace(interval, particles=outside))[0].holds
        shifted = replace(interval, particles=0.85 * interval.particles)
        found = certify_langevin(shifted, first_variation=problem["first_variation"], rng=1)
        assert found[0].holds
        assert not found[1].holds

    def test_the_residual_is_small_for_a_sample_and_large_for_another_law(self):
        rng = np.random.default_rng(0)
        held = 0
        for _ in range(10):
            uniform = rng.random((300, 1))
            found = fixed_point_residual(uniform, lambda p, x: np.zeros(len(p)), Box(0, 1, 1), 1.0, rng=rng)
            held += found.value <= 3 * found.standard_error
        assert held >= 9
        beta = rng.beta(4, 4, (600, 1))
        found = fixed_point_residual(beta, lambda p, x: np.zeros(len(p)), Box(0, 1, 1), 1.0, rng=rng)
        assert found.value > 3 * found.standard_error
        # Energy distance of the two laws: twice the integral of the squared difference of the distributions.
        t = np.linspace(0, 1, 10001)
        assert found.value == pytest.approx(2 * np.mean((t - stats.beta(4, 4).cdf(t)) ** 2), rel=0.35)

    def test_what_cannot_be_known_is_unknown(self):
        sharp = fixed_point_residual(np.full((50, 8), 0.5), lambda p, x: 1e4 * p.sum(axis=1), Box(0, 1, 8), 1.0, rng=0)
        assert np.isnan(sharp.value)
        assert sharp.effective_sample_size < 200
        many = mirror_langevin(
            lambda x: 0 * x, 20, domain=Box(0, 1, 12), temperature=1.0, n_steps=2, rng=0,
            first_variation=lambda p, x: np.zeros(len(p)),
        )  # fmt: skip
        assert not many.certificates[1].holds
        assert many.certificates[1].violated

    def test_a_rare_target_is_found_by_thinning(self):
        rng = np.random.default_rng(1)
        rate = 400.0
        x = rng.exponential(1 / rate, (500, 1))
        found = fixed_point_residual(x, lambda p, x: rate * p[:, 0], Box(0, 1, 1), 1.0, rng=rng)
        assert found.effective_sample_size >= 200
        assert abs(found.value) <= 4 * found.standard_error
        wrong = fixed_point_residual(2 * x, lambda p, x: rate * p[:, 0], Box(0, 1, 1), 1.0, rng=rng)
        assert wrong.value > 3 * wrong.standard_error

    def test_the_rate(self, interval):
        # The constant of the linear flow at the fixed point, 0.384836, is an upper bound on that of the inequality.
        run = run_interval(init=np.full((1500, 1), 0.1), lr=0.1, record=10)
        slow = certify_langevin(run, lsi_constant=0.2)
        assert slow[1].value > slow[1].bound == pytest.approx(2 * 0.2 * 0.05)
        assert not certify_langevin(run, lsi_constant=50.0)[1].holds
        with pytest.raises(ValueError, match="lsi_constant must be None without functional"):
            run_interval(functional=None, lsi_constant=0.2)
        t = np.arange(30.0)
        assert linear_rate(t, np.exp(-0.5 * t) + 1e-3, floor=0.02) == pytest.approx(0.5, rel=0.05)
        assert np.isnan(linear_rate(t, np.zeros(30)))

    def test_scaling(self):
        sizes = np.array([10, 40, 160, 640])
        assert certify_scaling(sizes, 0.3 / sizes).holds
        assert not certify_scaling(sizes, 0.3 / sizes**0.5).holds
        assert not certify_scaling(sizes, np.full(4, 0.3)).holds
        for bad in ((sizes, sizes[:2]), (sizes, -sizes), ([10, 10], [1, 2])):
            with pytest.raises(ValueError, match=r"sizes|variances"):
                certify_scaling(*bad)


class TestBaselines:
    def test_projection_puts_particles_on_the_boundary(self):
        run = run_interval(method=projected_langevin, lr=0.01, n_steps=300)
        assert run.inside == 0.0
        assert not run.certificates[0].holds
        assert np.mean((run.particles == 0) | (run.particles == 1)) > 0.01

    def test_the_penalty_lets_them_out(self):
        run = run_interval(method=penalized_langevin, lr=0.01, n_steps=300, penalty=0.01)
        assert run.inside < 0
        assert run.particles.min() > -0.5

    def test_a_smaller_penalty_keeps_them_closer(self):
        near, far = (
            run_interval(method=penalized_langevin, lr=0.001, n_steps=500, penalty=p, init=300) for p in (0.002, 0.1)
        )
        assert far.inside < near.inside < 0

    @pytest.mark.parametrize(
        "domain",
        [Simplex(4), Ball(3), Orthant(2), Spectraplex(3), Polytope(np.vstack([np.eye(2), -np.eye(2)]), np.ones(4))],
        ids=repr,
    )
    def test_every_set(self, domain):
        for method in (projected_langevin, penalized_langevin):
            run = method(lambda x: np.ones_like(x), 40, domain=domain, temperature=0.5, lr=0.005, n_steps=30, rng=0)
            assert np.isfinite(run.particles).all()
            if isinstance(domain, Simplex):  # the noise stays in the plane
                np.testing.assert_allclose(run.particles.sum(axis=1), 1.0, atol=1e-12)

    def test_one_step_against_the_formula(self):
        start = np.array([[0.2], [0.5], [0.99]])
        with pytest.warns(UserWarning, match="temperature is 0"):
            projected = run_interval(
                method=projected_langevin,
                temperature=0.0,
                init=start,
                n_steps=1,
                lr=0.1,
                functional=None,
                first_variation=None,
            )
        np.testing.assert_allclose(projected.particles, np.clip(start - 0.1 * (start.mean() - 0.8), 0, 1))


class TestBadInput:
    @pytest.mark.parametrize(
        "change, message",
        [
            ({"temperature": -1.0}, "temperature must be at least 0"),
            ({"temperature": float("nan")}, "temperature must be finite"),
            ({"lr": 0.0}, "lr must be greater than 0"),
            ({"n_steps": -1}, "n_steps must be at least 0"),
            ({"inner": 0}, "inner must be at least 1"),
            ({"record": 0}, "record must be at least 1"),
            ({"barrier": "wall"}, "barrier must be one of"),
            ({"domain": "cone"}, "domain must be one of 'box'"),
            ({"domain": "box"}, "domain must be a set"),
            ({"init": 0}, "init must be at least 1"),
            ({"init": 1}, "at least 2 particles"),
            ({"init": [[0.5], [1.0]]}, "strictly inside .* got 1 of 2 particles outside"),
            ({"init": [[0.5], [np.nan]]}, "init must be a finite"),
            ({"init": [0.5, 0.6]}, "2-D"),
            ({"init": [[0.5, 0.5], [0.5, 0.5]]}, "shape"),
            ({"tol": 0.1, "first_variation": None}, "tol must be None without first_variation"),
            ({"tol": -1.0}, "tol must be at least 0"),
            ({"rng": -1}, "rng must be a non-negative seed"),
        ],
    )
    def test_it_is_refused_by_name(self, change, message):
        with pytest.raises(ValueError, match=message):
            run_interval(**{"init": 10, "n_steps": 3, **change})

    def test_what_the_gradient_returns_is_checked(self):
        calls = []

        def fails_at_two(x):
            calls.append(0)
            return x * (np.nan if len(calls) == 3 else 1.0)

        with pytest.raises(ValueError, match="grad must return finite numbers, got nan or infinite ones at step 2"):
            mirror_langevin(fails_at_two, 10, domain=Box(0, 1, 1), temperature=0.1, rng=0)
        with pytest.raises(ValueError, match="grad must return the shape of the particles"):
            mirror_langevin(lambda x: x[:3], 10, domain=Box(0, 1, 1), temperature=0.1, rng=0)
        with pytest.raises(ValueError, match="one number per point"):
            run_interval(first_variation=lambda p, x: p[:2, 0], n_steps=1, init=10)

        def writes(x):
            x += 1.0
            return x

        with pytest.raises(ValueError, match="read-only"):
            mirror_langevin(writes, 10, domain=Box(0, 1, 1), temperature=0.1, rng=0)

    def test_a_step_past_infinity_is_refused(self):
        with pytest.raises(ValueError, match="lr must be smaller"):
            mirror_langevin(lambda x: -np.ones_like(x), 10, domain=Orthant(1), temperature=1.0, lr=10.0, rng=0)

    def test_types(self):
        with pytest.raises(TypeError, match="init must be of dtype float32 or float64"):
            mirror_langevin(lambda x: x, torch.full((3, 1), 0.5).half(), domain=Box(0, 1, 1), temperature=1.0)
        with pytest.raises(TypeError, match="lacks mirror, inverse, noise, slack"):
            mirror_langevin(lambda x: x, 3, domain=object(), temperature=1.0)
        integers = mirror_langevin(
            lambda x: 0 * x, np.array([[0], [0]]), domain=Ball(1), temperature=1.0, n_steps=2, rng=0
        )
        assert integers.particles.dtype == np.float64

    def test_one_particle_and_duplicates(self):
        one = mirror_langevin(lambda x: x, [[0.5]], domain=Box(0, 1, 1), temperature=0.1, n_steps=5, rng=0)
        assert one.certified
        same = mirror_langevin(lambda x: x, [[0.5]] * 9, domain=Box(0, 1, 1), temperature=0.1, n_steps=5, rng=0)
        assert len(np.unique(same.particles)) == 9
