"""The certificates of Rasch models: they hold where they should, and notice answers that were tampered with."""

import math

import numpy as np
import pytest
from scipy.special import expit

from assay.data import load_lsat6
from assay.supervised import fit_rasch
from assay.supervised.rasch_certificate import fitted_rate, posterior_at, rasch_certificates, rate_bound
from assay.supervised.rasch_responses import check_responses


@pytest.fixture(scope="module")
def lsat():
    return load_lsat6()[::3]


@pytest.fixture(scope="module")
def fit(lsat):
    return fit_rasch(lsat)


class TestGap:
    def test_bounds_the_distance_to_the_maximum(self, lsat, fit):
        rng = np.random.default_rng(0)
        for scale in (1e-6, 1e-3, 0.1, 1.0):
            theta = fit.abilities + scale * rng.normal(size=len(lsat))
            beta = fit.difficulties + scale * rng.normal(size=5)
            at = posterior_at(check_responses(lsat), theta, beta, 1.0, 1.0)
            assert 0 <= fit.log_posterior - at.log_posterior <= at.gap_bound

    @pytest.mark.parametrize("variances", [(1.0, 1.0), (1.0, math.inf)])
    def test_notices_corruption(self, lsat, variances):
        v_theta, v_beta = variances
        fit = fit_rasch(lsat, v_theta=v_theta, v_beta=v_beta)
        settings = {"v_theta": v_theta, "v_beta": v_beta, "trace": fit.history["log_posterior"], "linear": True}
        assert all(c.holds for c in rasch_certificates(lsat, fit.abilities, fit.difficulties, **settings))
        one = np.zeros(len(lsat))
        one[7] = 0.1
        corrupted = [
            (fit.abilities + one, fit.difficulties),
            (fit.abilities, fit.difficulties[::-1]),
            (-fit.abilities, fit.difficulties),
            (fit.abilities, fit.difficulties + 0.01),
        ]
        for abilities, difficulties in corrupted:
            gap, growth, *_ = rasch_certificates(lsat, abilities, difficulties, **settings)
            assert not gap.holds
            assert not growth.holds
        flipped = lsat.copy()
        flipped[0] = 1 - flipped[0]
        assert not rasch_certificates(flipped, fit.abilities, fit.difficulties, **settings)[0].holds

    def test_another_prior_has_another_maximum(self, lsat, fit):
        assert not rasch_certificates(lsat, fit.abilities, fit.difficulties, v_theta=2.0)[0].holds

    def test_unconverged_answers_fail(self, lsat):
        with pytest.warns(UserWarning, match="did not reach"):
            fit = fit_rasch(lsat, max_iter=3)
        assert not fit.certificates[0].holds
        assert fit.certificates[1].holds

    def test_newton_decrement_estimates_the_distance(self, lsat):
        best = fit_rasch(lsat, v_beta=math.inf)
        shifted = best.difficulties + np.array([0.02, 0, 0, 0, -0.01])
        certificate = rasch_certificates(lsat, best.abilities, shifted, v_beta=math.inf)[0]
        at = posterior_at(check_responses(lsat), best.abilities, shifted, 1.0, math.inf)
        assert certificate.value == pytest.approx(best.log_posterior - at.log_posterior, rel=0.05)
        assert certificate.assumptions[0].satisfied is None

    def test_falling_trace(self, lsat, fit):
        trace = fit.history["log_posterior"].copy()
        trace[3] = trace[2] - 1e-3
        assert not rasch_certificates(lsat, fit.abilities, fit.difficulties, trace=trace)[1].holds


class TestRate:
    def test_bound(self):
        margins = np.array([1e-6, 1e-3, 0.5, 3.0, 30.0])
        exact = 1 - margins / np.sinh(margins)
        np.testing.assert_allclose([rate_bound(x) for x in margins[1:]], exact[1:], rtol=1e-6)
        assert rate_bound(0.0) == 0
        assert rate_bound(1e-6) == pytest.approx(1e-12 / 6)
        assert rate_bound(1e6) == 1

    def test_curvatures_are_what_the_bound_says(self):
        # p (1 - p) / omega is psi / sinh(psi).
        psi = np.linspace(0.1, 20, 50)
        omega = np.tanh(psi / 2) / (2 * psi)
        np.testing.assert_allclose(expit(psi) * expit(-psi) / omega, psi / np.sinh(psi), rtol=1e-12)

    def test_bounds_the_spectral_radius(self):
        rng = np.random.default_rng(1)
        for spread in (0.3, 1.0, 3.0):
            theta, beta = spread * rng.normal(size=6), spread * rng.normal(size=4)
            psi = theta[:, None] - beta

            def curvature(weights):
                return np.block(
                    [
                        [np.diag(weights.sum(1) + 1), -weights],
                        [-weights.T, np.diag(weights.sum(0) + 1)],
                    ]
                )

            em = curvature(np.tanh(psi / 2) / (2 * psi))
            information = curvature(expit(psi) * expit(-psi))
            rho = np.linalg.eigvals(np.eye(10) - np.linalg.solve(em, information)).real.max()
            assert 0 < rho <= rate_bound(np.abs(psi).max()) + 1e-12

    def test_fitted(self):
        values = -(0.3 ** np.arange(12))
        assert fitted_rate(values, 0.0) == pytest.approx(0.3)
        assert math.isnan(fitted_rate([-1e-9, -1e-10], 0.0))
        assert math.isnan(fitted_rate([], 0.0))

    def test_a_slow_trace_fails(self, lsat, fit):
        trace = fit.log_posterior - 0.9 ** np.arange(200.0)
        certificates = rasch_certificates(lsat, fit.abilities, fit.difficulties, trace=trace, linear=True)
        assert [certificate.holds for certificate in certificates] == [True, True, False, False]

    def test_not_promised_for_other_iterations(self, lsat):
        for settings in ({"accelerate": True}, {"update": "coordinate"}):
            assert len(fit_rasch(lsat, **settings).certificates) == 2


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"abilities": np.zeros(3)}, "lengths"),
        ({"difficulties": [0, 0, np.nan, 0, 0]}, "difficulties"),
        ({"v_theta": -1.0}, "v_theta"),
        ({"trace": [[1.0]]}, "trace"),
    ],
)
def test_bad_input(lsat, fit, arguments, name):
    arguments = {"abilities": fit.abilities, "difficulties": fit.difficulties} | arguments
    with pytest.raises(ValueError, match=name):
        rasch_certificates(lsat, **arguments)
