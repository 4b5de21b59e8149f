"""The sets: barriers, their inverse maps, noise, projections, laws to draw from."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.transport import Ball, Box, Domain, Orthant, Polytope, Simplex, Spectraplex
from assay.transport.mirror_user_domain import as_domain

RNG = np.random.default_rng(0)
NORMALS, OFFSETS = RNG.standard_normal((12, 3)), 1.0 + RNG.random(12)
DOMAINS = [
    Box(0, 1, 4),
    Box([-1, 0], [2, 0.5]),
    Box(0, 1, 2, barrier="entropy"),
    Orthant(3),
    Orthant(3, barrier="hybrid"),
    Ball(3),
    Ball(2, 3.0, [1.0, -1.0]),
    Simplex(2),
    Simplex(4),
    Simplex(3, barrier="entropy"),
    Spectraplex(3),
    Spectraplex(3, barrier="entropy"),
    Polytope(NORMALS, OFFSETS),
    Polytope(NORMALS, OFFSETS, barrier="hybrid"),
    Polytope(-np.eye(2), np.zeros(2), barrier="hybrid"),
]
EVERY = pytest.mark.parametrize("domain", DOMAINS, ids=repr)


def duals(domain, n, magnitude, seed=0):
    """Dual coordinates in the range of the mirror map."""
    y = magnitude * np.random.default_rng(seed).standard_normal(domain.mirror(domain.start(n, 0)).shape)
    if domain.particle_ndim == 2:
        y = (y + y.transpose(0, 2, 1)) / 2
        y -= np.trace(y, axis1=1, axis2=2)[:, None, None] * np.eye(y.shape[1]) / y.shape[1]
    return -np.abs(y) if isinstance(domain, Orthant) and domain.barrier == "log" else y


def tangents(domain, x):
    """A basis of the directions in which a particle can move."""
    d = domain.dimension
    if isinstance(domain, Simplex):
        return [np.eye(d)[i] - np.eye(d)[-1] for i in range(d - 1)]
    if isinstance(domain, Spectraplex):
        units = []
        for i in range(d):
            for j in range(i):
                units.append((np.outer(np.eye(d)[i], np.eye(d)[j]) + np.outer(np.eye(d)[j], np.eye(d)[i])) / 2)
            if i:
                units.append(np.diag(np.eye(d)[i] - np.eye(d)[0]))
        return units
    return list(np.eye(x.shape[1]))


def paired(domain, y, direction):
    """A dual vector applied to a tangent direction."""
    if isinstance(domain, Simplex):
        return y @ direction[:-1]
    return np.tensordot(y, direction, axes=direction.ndim)


class TestEveryDomain:
    @EVERY
    def test_the_maps_undo_each_other(self, domain):
        x = domain.start(50, 1)
        np.testing.assert_allclose(domain.inverse(domain.mirror(x)), x, rtol=1e-10, atol=1e-12)
        scale = 2.0 if domain.barrier == "entropy" else 1e3
        y = duals(domain, 50, scale)
        np.testing.assert_allclose(domain.mirror(domain.inverse(y)), y, rtol=1e-9, atol=1e-10 * scale)

    @EVERY
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("magnitude", [1e3, 1e12])
    def test_nothing_leaves_the_set(self, domain, dtype, magnitude):
        x = domain.inverse(torch.as_tensor(duals(domain, 40, magnitude), dtype=dtype))
        assert x.dtype == dtype
        assert bool(domain.contains(x).all())
        assert float(domain._exact_slack(x).min()) > 0
        assert bool(torch.isfinite(domain.mirror(x)).all())

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("ball", [Ball(2, center=[1e3, 5.0]), Ball(50, 0.1, np.full(50, -7.0))], ids=repr)
    def test_a_ball_far_from_the_origin_is_not_left(self, ball, dtype):
        y = torch.as_tensor(duals(ball, 500, 1e12), dtype=dtype)
        x = ball.inverse(y)
        assert bool((ball.slack(x) > 0).all())
        assert bool((torch.linalg.vector_norm(x.double() - torch.as_tensor(ball.center), dim=1) < ball.radius).all())

    def test_a_ball_that_the_precision_does_not_resolve_is_refused(self):
        ball = Ball(2, 1e-6, [5.0, 5.0])
        ball.check_particles(torch.as_tensor(ball.start(5, 0)), "init")
        with pytest.raises(ValueError, match=r"init must be of a dtype that resolves Ball.*float32"):
            ball.check_particles(torch.full((5, 2), 5.0), "init")

    @EVERY
    def test_the_noise_has_the_covariance_of_the_hessian(self, domain):
        x, n, step = domain.start(1, 3), 100_000, 1e-5
        many = np.repeat(x, n, axis=0)
        noise = domain.noise(many, np.random.default_rng(4).standard_normal(domain.noise_shape(many)))
        basis = tangents(domain, x)
        # The Hessian by differences of the mirror map, an independent way to it.
        hessian = np.array(
            [
                [
                    paired(domain, domain.mirror(x + step * v)[0] - domain.mirror(x - step * v)[0], u) / (2 * step)
                    for u in basis
                ]
                for v in basis
            ]
        )
        images = np.stack([paired(domain, noise, u) for u in basis])
        covariance = images @ images.T / n
        scale = np.sqrt(np.outer(np.diag(hessian), np.diag(hessian)))
        assert np.abs(covariance - hessian).max() <= 0.02 * scale.max()
        assert (np.abs(covariance - hessian) / scale).max() <= 0.02
        np.testing.assert_allclose(hessian, hessian.T, rtol=1e-4, atol=1e-6 * scale.max())

    @EVERY
    def test_diffusing_in_dual_coordinates_is_adding_noise(self, domain):
        x = domain.start(6, 5)
        y = domain.mirror(x)
        xi = np.random.default_rng(6).standard_normal(domain.noise_shape(x))
        scale = 1e-6
        moved = domain._diffuse(torch.tensor(y), torch.tensor(xi), scale, torch.tensor(x)).numpy()
        expected = domain.noise(x, xi)
        np.testing.assert_allclose((moved - y) / scale, expected, rtol=2e-5, atol=1e-5 * np.abs(expected).max())

    @EVERY
    def test_projection_is_the_nearest_point(self, domain):
        rng = np.random.default_rng(7)
        start = domain.start(30, 8)
        x = start + rng.standard_normal(start.shape)
        nearest = domain.project(x)
        np.testing.assert_allclose(domain.project(nearest), nearest, atol=1e-12)
        inside = domain.start(60, 9)
        symmetric = (x + x.transpose(0, 2, 1)) / 2 if domain.particle_ndim == 2 else x
        # No point of the set is on the other side of the hyperplane at the projection.
        sides = np.einsum(
            "ni,mni->mn", (symmetric - nearest).reshape(30, -1), (inside[:, None] - nearest).reshape(60, 30, -1)
        )
        assert sides.max() <= 1e-10
        if not isinstance(domain, Simplex | Spectraplex):
            np.testing.assert_array_equal(domain.project(start), start)

    @EVERY
    def test_draws_are_inside(self, domain):
        assert domain.contains(domain.sample(200, 0)).all()
        assert domain.contains(domain.start(200, 0)).all()
        np.testing.assert_array_equal(domain.sample(5, 3), domain.sample(5, 3))

    @EVERY
    def test_it_is_copied_and_pickled(self, domain):
        x = domain.start(3, 0)
        for again in (copy.deepcopy(domain), pickle.loads(pickle.dumps(domain)), domain.with_barrier(domain.barrier)):
            assert repr(again) == repr(domain)
            np.testing.assert_array_equal(again.mirror(x), domain.mirror(x))

    @EVERY
    def test_arguments_are_left_alone_and_answers_are_in_kind(self, domain):
        x = domain.start(4, 0)
        before = x.copy()
        y = domain.mirror(x)
        assert isinstance(y, np.ndarray)
        kept = y.copy()
        domain.inverse(y)
        domain.project(x)
        domain.noise(x, np.ones(domain.noise_shape(x)))
        np.testing.assert_array_equal(x, before)
        np.testing.assert_array_equal(y, kept)
        np.testing.assert_allclose(domain.mirror(torch.tensor(x)).numpy(), y, rtol=1e-14)


class TestKnownValues:
    def test_simplex(self):
        expected = [[0.396738, 0.248722, 0.354540]]
        np.testing.assert_allclose(Simplex(3).inverse([[0.3, -1.2]]), expected, atol=5e-7)
        np.testing.assert_allclose(Simplex(5).inverse(np.zeros((1, 4))), np.full((1, 5), 0.2), rtol=1e-15)

    def test_ball(self):
        x = Ball(2).inverse([[3.0, 4.0]])
        np.testing.assert_allclose(x, [[0.491882, 0.655843]], atol=5e-7)

    def test_box(self):
        np.testing.assert_allclose(Box(0, 1).inverse([[0.0]]), [[0.5]])
        small = 1e-6
        np.testing.assert_allclose(Box(0, 1).inverse([[small]]), [[0.5 + small / 8]], rtol=1e-15)
        x = Box(0, 1).inverse([[-3.0, 3.0]])
        np.testing.assert_allclose(-1 / x + 1 / (1 - x), [[-3.0, 3.0]], rtol=1e-14)

    def test_a_triangle_is_a_simplex_without_its_last_share(self):
        triangle = Polytope([[-1, 0], [0, -1], [1, 1]], [0, 0, 1])
        y = duals(Simplex(3), 30, 20.0)
        np.testing.assert_allclose(triangle.inverse(y), Simplex(3).inverse(y)[:, :2], rtol=1e-9)

    def test_a_box_is_a_polytope(self):
        cube = Polytope(np.vstack([np.eye(3), -np.eye(3)]), np.array([1.0, 1, 1, 0, 0, 0]))
        y = duals(Box(0, 1, 3), 30, 20.0)
        np.testing.assert_allclose(cube.inverse(y), Box(0, 1, 3).inverse(y), rtol=1e-9)
        np.testing.assert_allclose(cube.center, 0.5, rtol=1e-9)

    def test_diagonal_matrices_are_shares(self):
        y = np.array([0.7, -0.2, -0.5])
        for barrier in ("log", "entropy"):
            x = Spectraplex(3, barrier=barrier).inverse(np.diag(y)[None])[0]
            expected = np.exp(y) / np.exp(y).sum()
            if barrier == "log":  # the log barrier of the matrices is that of the shares
                expected = Simplex(3).inverse((y[:2] - y[2])[None])[0]
            np.testing.assert_allclose(x, np.diag(expected), atol=1e-12)

    @pytest.mark.parametrize("p", [2, 4])
    def test_von_neumann_noise_at_equal_eigenvalues(self, p):
        domain = Spectraplex(p, barrier="entropy")
        xi = np.random.default_rng(0).standard_normal((1, p, p))
        symmetric = (xi + xi.transpose(0, 2, 1)) / 2
        symmetric -= np.trace(symmetric, axis1=1, axis2=2)[:, None, None] * np.eye(p) / p
        np.testing.assert_allclose(domain.noise(np.eye(p)[None] / p, xi), np.sqrt(p) * symmetric, atol=1e-12)
        near = np.diag(np.full(p, 1 / p) + 1e-9 * (np.arange(p) - (p - 1) / 2))[None]
        np.testing.assert_allclose(domain.noise(near, xi), np.sqrt(p) * symmetric, atol=1e-6)


class TestLaws:
    def test_shares_and_triangles_are_uniform(self):
        shares = Simplex(3).sample(2000, 0)[:, 0]
        assert stats.kstest(shares, stats.beta(1, 2).cdf).pvalue > 1e-3
        triangle = Polytope([[-1, 0], [0, -1], [1, 1]], [0, 0, 1]).sample(2000, 1)
        assert stats.kstest(triangle[:, 1], stats.beta(1, 2).cdf).pvalue > 1e-3

    def test_ball_is_uniform(self):
        x = Ball(3, 2.0, [1, 0, 0]).sample(2000, 0)
        assert stats.kstest((np.linalg.norm(x - [1, 0, 0], axis=1) / 2) ** 3, "uniform").pvalue > 1e-3

    def test_density_matrices_are_uniform(self):
        # Of 2 x 2 matrices of trace one: a disc of radius 1/2 in (a - 1/2, b).
        x = Spectraplex(2).sample(3000, 0)
        radius = np.hypot(x[:, 0, 0] - 0.5, x[:, 0, 1])
        assert stats.kstest((2 * radius) ** 2, "uniform").pvalue > 1e-3

    def test_an_unbounded_polyhedron_is_drawn_from_a_normal_law(self):
        domain = Polytope([[-1.0]], [0.0], barrier="hybrid")
        assert not domain.bounded
        center = domain.center[0]
        assert center == pytest.approx(1.0)  # of -log x + x^2 / 2
        law = stats.truncnorm(-center, np.inf, loc=center)
        assert stats.kstest(domain.sample(1000, 0)[:, 0], law.cdf).pvalue > 1e-3
        x = np.array([[0.5], [2.0]])
        difference = law.logpdf(x[:, 0])
        assert np.ptp(domain._log_density(x) - difference) < 1e-12


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6))
def test_shares_of_any_dual_coordinates_sum_to_one(y):
    x = Simplex(len(y) + 1).inverse([y])
    assert x.min() > 0
    assert x.sum() == pytest.approx(1.0, abs=1e-14)
    largest = np.abs(np.array(y)).max()
    np.testing.assert_allclose(Simplex(len(y) + 1).mirror(x), [y], rtol=1e-9, atol=1e-9 * max(1.0, largest))


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 4), st.integers(0, 10**6), st.floats(-3, 5))
def test_any_polytope(d, seed, magnitude):
    rng = np.random.default_rng(seed)
    domain = Polytope(np.vstack([rng.standard_normal((6, d)), np.eye(d), -np.eye(d)]), 0.1 + rng.random(6 + 2 * d))
    y = 10**magnitude * rng.standard_normal((5, d))
    x = domain.inverse(y)
    assert domain.contains(x).all()
    np.testing.assert_allclose(domain.mirror(x), y, rtol=1e-6, atol=1e-6 * 10**magnitude)


class HalfPlane:
    """Positive first coordinate, any second: a mirror map of one's own."""

    def mirror(self, x):
        return torch.stack([x[:, 0] - 1 / x[:, 0], x[:, 1]], dim=1)

    def inverse(self, y):
        first = y[:, 0]
        return torch.stack([0.5 * (first + torch.sqrt(first**2 + 4)), y[:, 1]], dim=1)

    def noise(self, x, xi):
        return xi * torch.stack([torch.sqrt(1 + x[:, 0] ** -2), torch.ones_like(x[:, 1])], dim=1)

    def slack(self, x):
        return x[:, 0]


class TestSetsOfOnesOwn:
    def test_it_is_accepted(self):
        domain = as_domain(HalfPlane())
        x = np.array([[0.5, -3.0]])
        np.testing.assert_allclose(domain.inverse(domain.mirror(x)), x)
        domain.check_particles(torch.tensor(x), "init")
        assert repr(domain) == "HalfPlane"
        assert as_domain(domain) is domain

    def test_missing_methods_are_named(self):
        class Half:
            mirror = inverse = HalfPlane.mirror

        with pytest.raises(TypeError, match=r"domain must have the methods .* but Half lacks noise, slack"):
            as_domain(Half())
        with pytest.raises(TypeError, match="a class, not an object"):
            as_domain(HalfPlane)

    def test_maps_that_do_not_fit_are_noticed(self):
        class Wrong(HalfPlane):
            def inverse(self, y):
                return super().inverse(y) + 0.1

        class Loud(HalfPlane):
            def noise(self, x, xi):
                return xi / 0

        class Numpy(HalfPlane):
            def mirror(self, x):
                return x.numpy()

        x = torch.tensor([[0.5, 1.0]])
        with pytest.raises(ValueError, match="inverse of Wrong must undo mirror"):
            as_domain(Wrong()).check_particles(x, "init")
        with pytest.raises(ValueError, match="noise of Loud must be finite"):
            as_domain(Loud()).check_particles(x, "init")
        with pytest.raises(TypeError, match=r"mirror of Numpy must return a torch\.Tensor"):
            as_domain(Numpy()).check_particles(x, "init")
        with pytest.raises(ValueError, match="barrier must be None"):
            as_domain(HalfPlane()).with_barrier("log")
        with pytest.raises(NotImplementedError, match="no projection"):
            as_domain(HalfPlane()).project(x)

    def test_a_set_can_derive_from_ours(self):
        class Line(Domain):
            def _mirror(self, x):
                return x.clone()

            _inverse = _mirror

            def _noise(self, x, xi):
                return xi

            def _slack(self, x):
                return torch.ones_like(x[:, 0])

        assert Line().contains([[1e9]]).all()


class TestBadInput:
    @pytest.mark.parametrize(
        "make, message",
        [
            (lambda: Simplex(1), "d must be at least 2"),
            (lambda: Spectraplex(1), "p must be at least 2"),
            (lambda: Box(1, 0), "lower must be less than upper"),
            (lambda: Box(-1e308, 1e308), "finite distance"),
            (lambda: Box([0, 0], [1, 1, 1]), "must agree"),
            (lambda: Box(0, 1, 0), "d must be at least 1"),
            (lambda: Box(0, np.inf), "finite"),
            (lambda: Ball(2, 0.0), "radius must be greater than 0"),
            (lambda: Ball(2, center=[1.0]), "center must have length 2"),
            (lambda: Ball(2, barrier="entropy"), "barrier must be one of 'log'"),
            (lambda: Simplex(3, barrier="hybrid"), "barrier must be one of"),
            (lambda: Simplex(3, repulsion=-1), "repulsion must be at least 0"),
            (lambda: Polytope(np.eye(2), np.ones(2)), "bounded set"),
            (lambda: Polytope([[1.0], [-1.0]], [0.0, -1.0]), "interior"),
            (lambda: Polytope([[1.0], [-1.0]], [0.0, 0.0]), "interior"),
            (lambda: Polytope([[0.0], [1.0]], [1.0, 1.0]), "no row of zeros"),
            (lambda: Polytope([[1.0]], [1.0, 1.0]), "one entry per row"),
            (lambda: Polytope([[np.nan]], [1.0]), "finite"),
            (lambda: Box(0, 1).sample(3), "number of coordinates"),
            (lambda: Simplex(3).sample(0), "n must be at least 1"),
            (lambda: Simplex(3).mirror([0.2, 0.3, 0.5]), "2-D"),
            (lambda: Orthant(1).inverse([[1.0]]), "lr must be smaller"),
        ],
    )
    def test_it_is_refused_by_name(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()

    def test_slacks_outside(self):
        assert not Simplex(3).contains([[0.5, 0.5, 0.5], [1.2, -0.1, -0.1]]).any()
        assert not Spectraplex(2).contains([[[0.5, 0.1], [0.3, 0.5]], [[1.5, 0], [0, -0.5]]]).any()
        assert not Ball(2).contains([[1.0, 0.0]]).any()
        assert Ball(2).slack([[0.0, 2.0]]) == pytest.approx(-1.0)
        assert not bool(Simplex(2).contains(torch.full((1, 2), torch.nan)).any())

    def test_bounds_are_rounded_inwards(self):
        domain = Box(0.1, 0.3, 1)
        x = domain.inverse(torch.tensor([[-1e30], [1e30]]))
        assert x.dtype == torch.float32
        assert 0.1 < float(x[0]) < float(x[1]) < 0.3
