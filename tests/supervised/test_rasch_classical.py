"""Conditional, marginal and joint likelihood and the spectral method: known values, brute force, and bad input."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm

from assay.data import load_lsat6
from assay.supervised import rasch_abilities, rasch_cml, rasch_jml, rasch_mml, spectral_rasch
from assay.supervised.rasch_conditional import symmetric_sums
from assay.supervised.rasch_spectral import spectral_difficulties

METHODS = [rasch_cml, rasch_mml, rasch_jml, spectral_rasch]


def simulate(n_users, n_items, seed, missing=0.0):
    rng = np.random.default_rng(seed)
    X = (rng.random((n_users, n_items)) < expit(rng.normal(size=(n_users, 1)) - rng.normal(size=n_items))).astype(float)
    X[rng.random(X.shape) < missing] = np.nan
    return X


class TestKnownValues:
    def test_conditional(self):
        fit = rasch_cml(load_lsat6())
        np.testing.assert_allclose(fit.difficulties, [-1.2562, 0.4750, 1.2360, 0.1684, -0.6232], atol=2e-4)
        np.testing.assert_allclose(fit.se_difficulties, [0.1044, 0.0699, 0.0688, 0.0726, 0.0859], atol=1e-4)
        assert fit.certified

    def test_conditional_is_that_of_girth(self):
        girth = pytest.importorskip("girth")
        X = simulate(200, 12, 0)
        expected = girth.rasch_conditional(X.astype(int).T, options={"max_iteration": 200})["Difficulty"]
        np.testing.assert_allclose(rasch_cml(X).difficulties, expected, atol=5e-3)

    def test_marginal(self):
        fit = rasch_mml(load_lsat6())
        np.testing.assert_allclose(fit.difficulties, [-2.7300, -0.9986, -0.2399, -1.3065, -2.0994], atol=1e-4)
        assert fit.ability_scale == pytest.approx(0.7551, abs=1e-4)
        assert fit.log_likelihood == pytest.approx(-2466.938, abs=1e-3)
        assert fit.certified

    def test_joint_has_its_bias(self):
        fit = rasch_jml(load_lsat6())
        ratio = fit.difficulties / rasch_cml(load_lsat6()).difficulties
        assert np.all(np.abs(ratio[[0, 2]] - 5 / 4) < 0.1)
        scores = load_lsat6().sum(axis=1)
        assert (fit.abilities[scores == 5] == np.inf).all()
        assert (fit.abilities[scores == 0] == -np.inf).all()


class TestAgainstBruteForce:
    @pytest.mark.parametrize("n_items", [2, 5])
    def test_symmetric_functions(self, n_items):
        rng = np.random.default_rng(1)
        logs, counts = rng.normal(size=(3, n_items)), rng.integers(0, 5, n_items + 1).astype(float)
        patterns = np.array(list(itertools.product([0, 1], repeat=n_items)))
        for row, value, slope in zip(logs, *symmetric_sums(logs, counts), strict=True):
            weight = np.exp(patterns @ row)
            expected, gradient = 0.0, np.zeros(n_items)
            for total in range(n_items + 1):
                chosen = patterns.sum(axis=1) == total
                gamma = weight[chosen].sum()
                expected += counts[total] * np.log(gamma)
                gradient += counts[total] * (weight[chosen] @ patterns[chosen]) / gamma
            assert value == pytest.approx(expected)
            np.testing.assert_allclose(slope, gradient, rtol=1e-12)

    def test_symmetric_functions_of_a_long_test(self):
        logs, counts = np.full((1, 1500), 3.0), np.zeros(1501)
        counts[700] = 2.0
        value, slope = symmetric_sums(logs, counts)
        exact = math.lgamma(1501) - math.lgamma(701) - math.lgamma(801) + 700 * 3.0
        assert value[0] == pytest.approx(2 * exact, rel=1e-12)
        np.testing.assert_allclose(slope, 2 * 700 / 1500, rtol=1e-9)

    def test_marginal_likelihood_by_integration(self):
        X = simulate(40, 4, 2, missing=0.2)
        fit = rasch_mml(X)

        # The trapezoidal rule is exact to rounding for what is smooth and fades at both ends.
        theta = np.linspace(-12, 12, 2001)[:, None]
        seen = ~np.isnan(X)

        def log_likelihood(beta, scale):
            p = expit(theta - beta)
            likelihood = np.where(X[:, None] == 1, p, 1 - p)
            likelihood = np.where(seen[:, None], likelihood, 1).prod(axis=2)
            return np.log(likelihood @ norm.pdf(theta[:, 0], scale=scale) * 0.012).sum()

        best = log_likelihood(fit.difficulties, fit.ability_scale)
        assert fit.log_likelihood == pytest.approx(best, abs=1e-6)
        for step in np.r_[np.eye(4), -np.eye(4)] * 0.05:
            assert log_likelihood(fit.difficulties + step, fit.ability_scale) < best
        for factor in (0.97, 1.03):
            assert log_likelihood(fit.difficulties, factor * fit.ability_scale) < best

    def test_joint_likelihood_by_a_general_optimiser(self):
        X = simulate(30, 6, 3)
        X = X[(X.mean(axis=1) > 0) & (X.mean(axis=1) < 1)]
        n = len(X)

        def negative(z):
            psi = z[:n, None] - z[n:]
            return -(X * psi - np.logaddexp(0, psi)).sum()

        best = minimize(negative, np.zeros(n + 6), method="BFGS")
        fit = rasch_jml(X)
        assert fit.log_likelihood == pytest.approx(-best.fun, abs=1e-6)
        np.testing.assert_allclose(fit.difficulties, best.x[n:] - best.x[n:].mean(), atol=1e-3)
        assert fit.certified

    def test_spectral_recovers_exact_ratios(self):
        beta = np.array([-3.0, -0.5, 1.0, 2.5])
        wins = np.exp(beta[None] - beta[:, None]) ** 0.5 + 0.0
        np.testing.assert_allclose(spectral_difficulties(wins), beta - beta.mean(), atol=1e-12)

    def test_spectral_with_a_nearly_impossible_item(self):
        beta = np.array([0.0, 40.0, 0.0])
        wins = np.exp(0.5 * (beta[None] - beta[:, None]))
        np.testing.assert_allclose(spectral_difficulties(wins), beta - beta.mean(), rtol=1e-12)


class TestMissing:
    @pytest.mark.parametrize("method", METHODS)
    def test_sparse_is_dense(self, method):
        X = simulate(80, 5, 4, missing=0.3)
        X[3] = np.nan
        dense = method(X)
        other = method(sparse.csr_array(np.nan_to_num(X)), mask=~np.isnan(X))
        np.testing.assert_allclose(other.difficulties, dense.difficulties, atol=1e-6)
        np.testing.assert_allclose(other.abilities, dense.abilities, atol=1e-5)

    @pytest.mark.parametrize("method", METHODS)
    def test_recovers_difficulties(self, method):
        rng = np.random.default_rng(5)
        beta = np.linspace(-1.5, 1.5, 5)
        X = (rng.random((4000, 5)) < expit(rng.normal(size=(4000, 1)) - beta)).astype(float)
        X[rng.random(X.shape) < 0.3] = np.nan
        estimate = method(X).difficulties
        if method is rasch_jml:
            estimate = estimate * (0.7 * 5 - 1) / (0.7 * 5)
        np.testing.assert_allclose(estimate - estimate.mean(), beta, atol=0.2)

    def test_booklets_share_items(self):
        X = simulate(400, 6, 6)
        X[:200, :2] = np.nan
        X[200:, 4:] = np.nan
        fit = rasch_cml(X)
        assert fit.certified
        assert np.isfinite(fit.se_difficulties).all()


class TestAbilities:
    def test_maximum_likelihood_matches_the_totals(self):
        beta = np.array([-1.0, 0.2, 0.9, 2.0])
        X = np.array([[1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
        abilities, errors = rasch_abilities(X, beta, v_theta=math.inf)
        p = expit(abilities[:2, None] - beta)
        np.testing.assert_allclose(p.sum(axis=1), [1, 3], atol=1e-10)
        np.testing.assert_allclose(errors[:2], (p * (1 - p)).sum(axis=1) ** -0.5)
        assert abilities[2:].tolist() == [np.inf, -np.inf]
        assert np.isinf(errors[2:]).all()

    def test_with_a_prior(self):
        X = simulate(50, 5, 7, missing=0.3)
        X[0] = np.nan
        beta = np.linspace(-2, 2, 5)
        abilities, errors = rasch_abilities(X, beta, v_theta=0.5)
        p = expit(abilities[:, None] - beta)
        gradient = np.nansum(np.where(np.isnan(X), 0, X - p), axis=1) - abilities / 0.5
        np.testing.assert_allclose(gradient, 0, atol=1e-10)
        assert abilities[0] == 0
        assert errors[0] == pytest.approx(math.sqrt(0.5))
        assert np.isnan(rasch_abilities(X, beta, v_theta=math.inf)[0][0])

    def test_far_away_items(self):
        abilities, _ = rasch_abilities([[1, 0]], [80.0, 120.0], v_theta=math.inf)
        assert abilities[0] == pytest.approx(100.0, abs=1e-6)


class TestBadInput:
    @pytest.mark.parametrize("method", [rasch_cml, rasch_mml, spectral_rasch])
    def test_item_that_all_solve(self, method):
        frame = pd.DataFrame({"a": [1, 1, 1, 1], "b": [1, 0, 0, 1], "c": [0, 1, 0, 1]})
        with pytest.raises(ValueError, match="'a'"):
            method(frame)

    def test_joint_sets_it_aside(self):
        X = simulate(60, 5, 8)
        X[:, 2] = 1
        fit = rasch_jml(X)
        assert fit.difficulties[2] == -np.inf
        np.testing.assert_allclose(fit.difficulties[[0, 1, 3, 4]].mean(), 0, atol=1e-12)
        rest = rasch_jml(np.delete(X, 2, axis=1)).difficulties
        np.testing.assert_allclose(np.delete(fit.difficulties, 2), rest, atol=1e-6)

    def test_nothing_remains(self):
        with pytest.raises(ValueError, match="got fewer"):
            rasch_jml([[1, 1, 1], [0, 0, 0]])

    def test_separated_items(self):
        X = np.array([[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
        for method in (rasch_cml, rasch_jml, spectral_rasch):
            with pytest.raises(ValueError, match="can be separated"):
                method(X)

    @pytest.mark.parametrize(
        ("settings", "error", "name"),
        [
            ({"tol": 0.0}, ValueError, "tol"),
            ({"max_iter": 0}, ValueError, "max_iter"),
            ({"nodes": 2}, ValueError, "nodes"),
        ],
    )
    def test_settings(self, settings, error, name):
        with pytest.raises(error, match=name):
            rasch_mml(load_lsat6(), **settings)

    def test_warns_when_iterations_end(self):
        with pytest.warns(UserWarning, match="rasch_cml did not reach"):
            fit = rasch_cml(load_lsat6(), max_iter=1)
        assert not fit.converged
        assert not fit.certificates[0].holds
