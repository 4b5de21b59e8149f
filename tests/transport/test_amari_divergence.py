"""The integrands of the critic, what a divergence of the user's own must have, and values in closed form."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import entropy, norm

from assay.transport import AmariDivergence
from assay.transport.amari_divergence import check_divergence, gives_log_ratio, integrand_range
from assay.transport.amari_kernels import mean_integral, mean_integral_and_slopes

ALPHAS = (0.0, 1e-300, 1e-9, 0.25, 0.5, 0.9, 1.0 - 1e-9, 1.0)
P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])


class JensenShannon:
    def p_integrand(self, g):
        odds = np.exp(-np.abs(g))
        share = np.where(g > 0, odds, 1.0) / (1.0 + odds)
        return math.log(2.0) - np.logaddexp(0.0, -g), share, -share * (1.0 - share)

    def q_integrand(self, g):
        value, slope, curvature = self.p_integrand(-np.asarray(g))
        return value, -slope, curvature


class ChiSquared:
    """With the critic 2 (p/q - 1), which is not the log-ratio."""

    def p_integrand(self, g):
        return g, np.ones_like(g), np.zeros_like(g)

    def q_integrand(self, g):
        return -g - 0.25 * g**2, -1.0 - 0.5 * g, np.full_like(g, -0.5)


def functional(divergence, gp, gq):
    return divergence.p_integrand(np.asarray(gp))[0].mean() + divergence.q_integrand(np.asarray(gq))[0].mean()


@pytest.mark.parametrize("alpha, value", [(0.3, 0.2709269651), (0.5, 0.2701778719), (0.9, 0.2731842938)])
def test_discrete_laws(alpha, value):
    assert AmariDivergence(alpha).between(P, Q) == pytest.approx(value, abs=1e-10)


@pytest.mark.parametrize("alpha, value", [(0.3, 0.3889488945), (0.7, 0.4024724507)])
def test_functional_of_given_scores(alpha, value):
    assert functional(AmariDivergence(alpha), [0.3, -0.1, 0.8], [-0.5, 0.2]) == pytest.approx(value, abs=1e-10)


def test_the_limits_are_kullback_leibler():
    assert AmariDivergence(1).between(P, Q) == pytest.approx(entropy(P, Q), rel=1e-14)
    assert AmariDivergence(0).between(P, Q) == pytest.approx(entropy(Q, P), rel=1e-14)
    assert AmariDivergence(1 - 1e-10).between(P, Q) == pytest.approx(entropy(P, Q), rel=1e-8)
    assert AmariDivergence(1e-10).between(P, Q) == pytest.approx(entropy(Q, P), rel=1e-8)
    assert AmariDivergence(1).between([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert AmariDivergence(0).between([0.5, 0.5], [1.0, 0.0]) == pytest.approx(math.log(2))
    for alpha in (0.3, 0.7):
        assert AmariDivergence(alpha).between([1.0, 0.0], [0.0, 1.0]) == pytest.approx(1 / (alpha * (1 - alpha)))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_log_ratio_is_the_best_critic(alpha):
    divergence = AmariDivergence(alpha)
    log_ratio = np.log(P / Q)

    def weighted(g):
        return P @ divergence.p_integrand(g)[0] + Q @ divergence.q_integrand(g)[0]

    best = weighted(log_ratio)
    assert best == pytest.approx(divergence.between(P, Q), rel=1e-8)
    rng = np.random.default_rng(0)
    assert all(weighted(log_ratio + rng.normal(size=3)) < best for _ in range(20))
    assert gives_log_ratio(divergence)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("method", ["p_integrand", "q_integrand"])
def test_slope_and_curvature_are_derivatives(alpha, method):
    integrand, g = getattr(AmariDivergence(alpha), method), np.linspace(-3, 3, 25)
    h = 1e-4
    value, slope, curvature = integrand(g)
    ahead, behind = integrand(g + h), integrand(g - h)
    np.testing.assert_allclose(slope, (ahead[0] - behind[0]) / (2 * h), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(curvature, (ahead[1] - behind[1]) / (2 * h), rtol=1e-6, atol=1e-8)
    assert (curvature <= 0).all()
    assert integrand(np.zeros(1))[0] == 0.0
    for ours, tensor in zip((value, slope, curvature), integrand(torch.from_numpy(g)), strict=True):
        np.testing.assert_allclose(tensor.numpy(), ours, rtol=1e-12, atol=1e-300)


@given(
    st.floats(0, 1),
    st.lists(st.floats(-20, 20), min_size=1, max_size=8),
    st.lists(st.floats(-20, 20), min_size=1, max_size=8),
)
@settings(max_examples=100, deadline=None)
def test_swapping_the_laws_is_swapping_alpha(alpha, gp, gq):
    ours = functional(AmariDivergence(alpha), gp, gq)
    swapped = functional(AmariDivergence(1.0 - alpha), [-g for g in gq], [-g for g in gp])
    assert ours == pytest.approx(swapped, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("alpha", [-0.01, 1.5, 2, math.inf, -1])
def test_alpha_outside_of_the_unit_interval(alpha):
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\], where 1 is KL\(P\|Q\) and 0 is KL\(Q\|P\)"):
        AmariDivergence(alpha)


@pytest.mark.parametrize("alpha, error", [("0.5", TypeError), (None, TypeError), (math.nan, ValueError)])
def test_alpha_that_is_no_number(alpha, error):
    with pytest.raises(error, match="alpha"):
        AmariDivergence(alpha)


def test_extreme_scores_stay_finite():
    for alpha in ALPHAS:
        for method in ("p_integrand", "q_integrand"):
            for part in getattr(AmariDivergence(alpha), method)(np.array([-80.0, 80.0])):
                assert np.isfinite(part).all()


class TestOwnDivergence:
    def test_good_ones_are_accepted(self):
        for divergence in (JensenShannon(), ChiSquared()):
            assert check_divergence(divergence) is divergence
        assert gives_log_ratio(JensenShannon())
        assert not gives_log_ratio(ChiSquared())

    @pytest.mark.parametrize(
        "divergence, missing",
        [
            (object(), "object has no p_integrand"),
            (JensenShannon, "JensenShannon is a class"),
            (type("Half", (), {"p_integrand": lambda self, g: g})(), "Half has no q_integrand"),
        ],
    )
    def test_missing_methods_are_named(self, divergence, missing):
        with pytest.raises(TypeError, match=missing):
            check_divergence(divergence)

    @pytest.mark.parametrize(
        "integrand, message",
        [
            (lambda self, g: g, r"q_integrand must return value, slope and curvature"),
            (lambda self, g: (g[:3], g, g), r"q_integrand must return value, slope and curvature"),
            (lambda self, g: (-g + g**2, -1 + 2 * g, np.full_like(g, 2.0)), "q_integrand must be concave"),
            (lambda self, g: (-g - g**2, -1 - g, -np.ones_like(g)), "slope that is the derivative"),
            (lambda self, g: (-g - g**2, -1 - 2 * g, -np.ones_like(g)), "curvature that is the derivative"),
            (lambda self, g: (np.where(g > 5, -np.inf, -g), -np.ones_like(g), 0 * g), "must be finite"),
            (lambda self, g: (1 - g - g**2, -1 - 2 * g, np.full_like(g, -2.0)), "values at g = 0 sum to 0"),
            (lambda self, g: (-2 * g - g**2, -2 - 2 * g, np.full_like(g, -2.0)), "slopes at g = 0 sum to 0"),
        ],
    )
    def test_wrong_integrands_are_refused(self, integrand, message):
        wrong = type("Wrong", (ChiSquared,), {"q_integrand": integrand})()
        with pytest.raises(ValueError, match=message):
            check_divergence(wrong)


def test_range_of_an_integrand_with_its_top_inside():
    # -g - g^2/4 on [-4, 4]: 1 at -2, -8 at 4
    assert integrand_range(ChiSquared().q_integrand, 4.0) == pytest.approx(9.0)
    grid = np.linspace(-3, 3, 100001)
    for alpha in (0.0, 0.4, 1.0):
        values = AmariDivergence(alpha).q_integrand(grid)[0]
        assert integrand_range(AmariDivergence(alpha).q_integrand, 3.0) == pytest.approx(np.ptp(values))


@pytest.mark.parametrize(
    "m, variance, alpha, value",
    [
        (1, 1.5, 0.3, 0.4547299398),
        (1, 1.5, 0.5, 0.4173997539),
        (1, 1.5, 0.8, 0.3827353830),
        (2, 1.0, 0.5, 4 * (1 - math.exp(-0.5))),
        (0.5, 0.5, 0.25, 0.2431542260),
    ],
)
def test_functional_at_the_log_ratio_of_normal_laws(m, variance, alpha, value):
    p, q = norm(0, 1), norm(m, math.sqrt(variance))
    divergence = AmariDivergence(alpha)

    def integrand(x):
        g = np.array(p.logpdf(x) - q.logpdf(x))
        return p.pdf(x) * divergence.p_integrand(g)[0] + q.pdf(x) * divergence.q_integrand(g)[0]

    assert quad(integrand, -15, 15, limit=200)[0] == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("alpha", [0.0, 1e-300, 1e-20, 1e-9, 0.3, 1.0 - 1e-9, 1.0])
def test_one_loop_gives_the_same_means(alpha):
    rng = np.random.default_rng(3)
    start, change = 3.0 * rng.normal(size=(2, 101))
    g = 0.7 * (start + 0.4 * change) + 0.1
    for rate, sign, integrand in (
        (alpha - 1.0, 1.0, AmariDivergence(alpha).p_integrand),
        (alpha, -1.0, AmariDivergence(alpha).q_integrand),
    ):
        value, slope, _ = integrand(g)
        assert sign * mean_integral(rate, start, change, 0.4, 0.7, 0.1) == pytest.approx(value.mean(), rel=1e-13)
        slopes = np.empty(101, dtype=np.float32)
        mean, total = mean_integral_and_slopes(rate, g - 0.1, 0.1, sign / 101, slopes)
        assert sign * mean == pytest.approx(value.mean(), rel=1e-13)
        assert total == pytest.approx(slope.mean(), rel=1e-13)
        np.testing.assert_allclose(slopes, slope / 101, rtol=1e-6)
