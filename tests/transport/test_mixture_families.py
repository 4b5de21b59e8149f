"""Moments of the families against quadrature and scipy, and what is asked of families of users."""

import numpy as np
import pytest
from scipy import stats

from assay.transport import ExponentialFamily, GaussianFamily, MixtureFamily, PoissonFamily, PolynomialFamily
from assay.transport.mixture_families import check_family, resolve_family
from assay.transport.moment_matrices import monomial_exponents


def moment(family, alpha, theta):
    return sum(c * np.prod(np.array(theta) ** np.array(e)) for e, c in family.moment_polynomial(alpha).items())


@pytest.mark.parametrize(
    "family, theta, law",
    [
        (GaussianFamily(0.3), (0.4,), stats.norm(0.4, 0.3**0.5)),
        (GaussianFamily("isotropic"), (0.4, 0.3), stats.norm(0.4, 0.3**0.5)),
        (GaussianFamily("diagonal"), (-0.4, 0.7), stats.norm(-0.4, 0.7**0.5)),
        (ExponentialFamily(), (0.8,), stats.expon(scale=0.8)),
        (PoissonFamily(), (1.7,), stats.poisson(1.7)),
    ],
)
def test_moments_on_the_line(family, theta, law):
    for k in range(9):
        assert moment(family, (k,), theta) == pytest.approx(law.expect(lambda x, k=k: x**k), rel=1e-6)
        assert all(sum(e) <= k for e in family.moment_polynomial((k,)))


@pytest.mark.parametrize(
    "covariance, theta, matrix",
    [
        ([[0.5, 0.2], [0.2, 0.3]], (0.3, -0.6), [[0.5, 0.2], [0.2, 0.3]]),
        ([0.5, 0.1], (0.3, -0.6), [[0.5, 0], [0, 0.1]]),
        ("isotropic", (0.3, -0.6, 0.4), [[0.4, 0], [0, 0.4]]),
        ("diagonal", (0.3, -0.6, 0.4, 0.2), [[0.4, 0], [0, 0.2]]),
    ],
)
def test_gaussian_moments_in_the_plane(covariance, theta, matrix):
    family = GaussianFamily(covariance, dim=2)
    # A Gauss-Hermite rule of 8 nodes is exact for polynomials of degree 15.
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel() / weights.sum() ** 2
    points = np.array(theta[:2]) + grid @ np.linalg.cholesky(np.array(matrix, dtype=float)).T
    for a, b in monomial_exponents(2, 6).tolist():
        wanted = mass @ (points[:, 0] ** a * points[:, 1] ** b)
        assert moment(family, (a, b), theta) == pytest.approx(wanted, abs=1e-10)
    density = family.log_density(points, np.array([theta]))
    np.testing.assert_allclose(density[:, 0], stats.multivariate_normal(theta[:2], matrix).logpdf(points), rtol=1e-10)


@pytest.mark.parametrize(
    "family, params",
    [
        (GaussianFamily(0.3), [[0.4], [-1.0]]),
        (GaussianFamily("isotropic"), [[0.4, 0.2], [0.0, 1.0]]),
        (ExponentialFamily(), [[0.8], [2.0]]),
        (PoissonFamily(), [[0.8], [3.0]]),
    ],
)
def test_partial_means_and_draws(family, params):
    params = np.array(params)
    rng = np.random.default_rng(0)
    draws = family.sample(params, [100_000, 100_000], rng)
    assert draws.shape == (200_000, 1)
    x = np.array([-0.5, 0.7, 2.0])
    for k, part in enumerate(np.split(draws[:, 0], 2)):
        below = part[:, None] <= x
        np.testing.assert_allclose(family.cdf(x, params)[:, k], below.mean(axis=0), atol=0.01)
        wanted = (part[:, None] * below).mean(axis=0)
        np.testing.assert_allclose(family.partial_mean(x, params)[:, k], wanted, atol=0.03)


def test_point_masses():
    family = GaussianFamily(0.0)
    params = np.array([[0.5], [-1.0]])
    np.testing.assert_array_equal(family.cdf(np.array([0.0, 0.5]), params), [[0.0, 1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(family.partial_mean(np.array([0.0, 0.5]), params), [[0.0, -1.0], [0.5, -1.0]])
    waits = ExponentialFamily().cdf(np.array([-1.0, 0.0]), np.array([[0.0]]))
    np.testing.assert_array_equal(waits, [[1.0], [1.0]])


class Half:
    """Without n_params."""

    dim = 1

    def moment_polynomial(self, alpha):
        return {alpha: 1.0}


class NoMoments:
    dim = 1
    n_params = 1


class Bad(Half):
    n_params = 1

    def __init__(self, answer):
        self.answer = answer

    def moment_polynomial(self, alpha):
        return self.answer(alpha)


@pytest.mark.parametrize(
    "family, error, message",
    [
        (NoMoments(), TypeError, "method moment_polynomial"),
        (Half(), TypeError, "attribute n_params"),
        (GaussianFamily, TypeError, "must be an object, got the class GaussianFamily"),
        (Bad(lambda alpha: 1.0), TypeError, "must return a dict"),
        (Bad(lambda alpha: {(0,): 2.0}), ValueError, "of the constant must be 1"),
        (Bad(lambda alpha: {(0, 0): 1.0}), ValueError, "tuples of 1 exponents"),
        (Bad(lambda alpha: {(0,): np.nan}), ValueError, "finite coefficients"),
    ],
)
def test_check_by_name(family, error, message):
    with pytest.raises(error, match=message):
        check_family(family)


def test_optional_methods_are_checked_by_name():
    family = Bad(lambda alpha: {alpha: 1.0})
    check_family(family)
    family.cdf = 3
    with pytest.raises(TypeError, match=r"family\.cdf must be a method"):
        check_family(family)


def test_resolve():
    assert resolve_family("gaussian", {"variance": 0.2}, 2).covariance.tolist() == [[0.2, 0], [0, 0.2]]
    assert resolve_family("gaussian", {"covariance": "diagonal"}, 2).n_params == 4
    assert isinstance(resolve_family("poisson", None, 1), PoissonFamily)
    assert isinstance(resolve_family(lambda alpha: {alpha: 1.0}, None, 1), PolynomialFamily)
    assert resolve_family(lambda alpha: {(*alpha, 0): 1.0}, {"n_params": 2}, 1).n_params == 2
    assert isinstance(GaussianFamily(1.0), MixtureFamily)
    for family, params, dim, message in (
        ("gaussian", None, 1, "params must have the covariance"),
        ("gaussian", {"variance": 1.0, "covariance": 1.0}, 1, "params must have the covariance"),
        ("poisson", {"rate": 1.0}, 1, "must not have 'rate'"),
        ("exponential", None, 2, "must be of dimension 2"),
        ("cauchy", None, 1, "family must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            resolve_family(family, params, dim)


@pytest.mark.parametrize("covariance", [-1.0, [1.0, 2.0], [[1.0, 2.0], [0.0, 1.0]], "full", np.nan])
def test_bad_covariance(covariance):
    with pytest.raises(ValueError, match="covariance must"):
        GaussianFamily(covariance, dim=1 if np.ndim(covariance) < 2 else 2)
