"""The consistency certificate: the known constants, the bound on data, and that it fails where it must."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from assay.supervised import linear_core_certificate
from assay.supervised.linear_core import LinearCoreTail, linear_core
from assay.supervised.linear_core_certificate import (
    calibration_gap,
    consistency_certificate,
    consistency_constant_certificate,
)
from assay.supervised.linear_core_loss import LinearCoreLoss

TAILS = ("exp", "quad", "gamma", "smoothstep")


def exp_gap(theta, tau, sigma):
    """Closed form for the exponential tail."""
    return theta * (sigma + tau) - (1 - theta) / 2 * sigma * math.log((1 + theta) / (1 - theta))


def conditional_risk(scores, law, tail="exp"):
    centred = scores - scores.mean()
    return float((1 - law) @ linear_core(-centred, tail=tail))


def least_risk(law, tail="exp"):
    start = np.zeros(len(law))
    return min(
        minimize(conditional_risk, start + shift * (law == law.max()), args=(law, tail), method="BFGS").fun
        for shift in (0.5, 2.0)
    )


class TestCalibrationGap:
    def test_known_values(self):
        gap = calibration_gap(linear_core, [0.2, 0.5, 0.9])
        np.testing.assert_allclose(gap, [0.1513441870, 0.4176040783, 0.8558334153], atol=2e-10)

    @settings(max_examples=15, deadline=None)
    @given(tau=st.floats(0.05, 5), sigma=st.floats(0.01, 5), theta=st.floats(0.01, 0.999))
    def test_closed_form(self, tau, sigma, theta):
        gap = calibration_gap(partial(linear_core, tau=tau, sigma=sigma), [theta])
        assert gap[0] == pytest.approx(exp_gap(theta, tau, sigma), rel=1e-9, abs=1e-11)

    @pytest.mark.parametrize(
        ("tail", "constant"), [("exp", 0.7003), ("gamma", 0.7128), ("quad", 0.7003), ("smoothstep", 0.7052)]
    )
    def test_known_constants(self, tail, constant):
        theta = np.linspace(0.001, 1, 1000)
        ratio = calibration_gap(partial(linear_core, tail=tail), theta) / theta
        assert ratio.min() == pytest.approx(constant, abs=6e-5)

    def test_hinge_and_logistic(self):
        theta = np.array([1e-3, 0.1, 0.5, 1.0])
        np.testing.assert_allclose(calibration_gap(lambda t: np.maximum(1 - t, 0), theta), theta, atol=1e-12)
        entropy = -sum(
            np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0) for p in ((1 + theta) / 2, (1 - theta) / 2)
        )
        logistic = calibration_gap(lambda t: np.logaddexp(0, -t), theta)
        np.testing.assert_allclose(logistic, math.log(2) - entropy, atol=1e-12)

    def test_constant_loss_has_none(self):
        np.testing.assert_allclose(calibration_gap(lambda t: np.ones_like(t), [0.3]), [0.0])

    @pytest.mark.parametrize("theta", [[0.0], [-0.1], [1.1], [math.nan], [], [[0.5]]])
    def test_bad_theta(self, theta):
        with pytest.raises(ValueError, match="theta"):
            calibration_gap(linear_core, theta)

    def test_exponential_loss_even_without_noise(self):
        theta = np.array([0.1, 0.5, 0.99, 1.0])
        exact = 1.0 - np.sqrt(1.0 - theta**2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_allclose(calibration_gap(lambda t: np.exp(-t), theta), exact, atol=1e-12)

    @pytest.mark.parametrize("size", [1e-300, 1e-30, 1e-8, 1e8, 1e30, 1e300])
    def test_any_scale(self, size):
        theta = np.array([0.01, 0.5, 1.0])
        gap = calibration_gap(lambda t: np.maximum(size - t, 0), theta)
        np.testing.assert_allclose(gap, size * theta, rtol=1e-12)


class TestConstant:
    @pytest.mark.parametrize(
        ("tau", "sigma"), [(1e7, 0.3), (1e8, 1e8), (1e-8, 1e-8), (1e-300, 1e-300), (1e300, 1e300), (1e8, 1e-8)]
    )
    def test_extreme_shapes(self, tau, sigma):
        assert consistency_constant_certificate(tau, sigma).holds

    @pytest.mark.parametrize(
        ("settings", "error", "name"),
        [
            ({"tau": [0.7]}, TypeError, "tau"),
            ({"tau": -1}, ValueError, "tau"),
            ({"sigma": None}, TypeError, "sigma"),
            ({"tail": ["exp"]}, TypeError, "tail"),
        ],
    )
    def test_bad_input(self, settings, error, name):
        with pytest.raises(error, match=name):
            consistency_constant_certificate(**settings)

    @settings(max_examples=12, deadline=None)
    @given(tau=st.floats(0.01, 10), sigma=st.floats(0.01, 10), tail=st.sampled_from(TAILS))
    def test_is_at_least_tau(self, tau, sigma, tail):
        certificate = consistency_constant_certificate(tau, sigma, tail)
        assert certificate.holds
        # and tends to tau at a coin flip: the constant cannot be improved
        assert certificate.value <= tau + 0.05 * sigma

    def test_own_tail(self):
        heavy = LinearCoreTail("algebraic", lambda z: (1 / (1 + z), 1 / (1 + z) ** 2), curvature=2.0)
        assert consistency_constant_certificate(0.4, 0.2, heavy).holds


class TestMulticlassBound:
    def test_known_minimum(self):
        law = np.array([0.5, 0.3, 0.2])
        scores = np.array([1.64194, -0.80094, -0.84100])
        assert least_risk(law) == pytest.approx(1.6209713799, abs=1e-8)
        assert conditional_risk(scores, law) == pytest.approx(1.6209713799, abs=1e-8)

    @pytest.mark.parametrize("tail", TAILS)
    def test_excess_is_that_of_a_general_solver(self, tail):
        rng = np.random.default_rng(0)
        loss = LinearCoreLoss(tail=tail)
        for n_classes in (2, 3, 5):
            law, scores = rng.dirichlet(np.full(n_classes, 2.0)), rng.normal(size=n_classes)
            report = consistency_certificate(loss, scores[None], probabilities=law[None])
            expected = conditional_risk(scores, law, tail) - least_risk(law, tail)
            assert report.excess_risk == pytest.approx(expected, abs=1e-5)
            assert report.excess_error == pytest.approx(law.max() - law[scores.argmax()], abs=1e-12)

    @pytest.mark.parametrize("scale", [1.0, 3.0])
    @pytest.mark.parametrize("tail", TAILS)
    def test_random_laws_and_scores(self, tail, scale):
        rng = np.random.default_rng(1)
        loss = LinearCoreLoss(tail=tail, score_scale=scale)
        worst = math.inf
        for _ in range(20):
            n_classes = rng.integers(2, 6)
            law = rng.dirichlet(np.ones(n_classes))
            for scores in rng.normal(size=(4, n_classes)) * rng.choice([0.05, 1, 3]):
                report = consistency_certificate(loss, scores[None], probabilities=law[None])
                assert report.certified
                if report.excess_error > 0:
                    worst = min(worst, report.excess_risk / report.excess_error)
        assert 0.7 - 1e-9 <= worst < 1.2

    def test_bound_is_attained_near_a_coin_flip(self):
        # Scores that predict the wrong one of two classes, by as little as can be.
        law = np.array([[0.5005, 0.4995]])
        report = consistency_certificate(LinearCoreLoss(), np.array([[-1e-9, 1e-9]]), probabilities=law)
        assert report.excess_risk / report.excess_error == pytest.approx(0.7003, abs=1e-3)

    def test_pairs_have_no_constant(self):
        report = consistency_certificate(LinearCoreLoss(constrained=False))
        assert [certificate.holds for certificate in report.certificates] == [True, True, False]
        assert report.certificates[2].value < 0.01
        assert not report.certified
        assert math.isnan(report.excess_error)

    @pytest.mark.parametrize(("tau", "sigma"), [(1e-2, 1.0), (1e-4, 1.0), (0.7, 100.0), (10.0, 0.1), (1e-6, 1e-3)])
    def test_pairs_have_no_constant_of_any_shape(self, tau, sigma):
        loss = LinearCoreLoss(tau, sigma, constrained=False)
        assert [c.holds for c in consistency_certificate(loss).certificates] == [True, True, False]

    def test_pairs_by_another_solver(self):
        # The same near tie, by one-dimensional searches.
        lead = 1e-2
        law = np.array([0.4 + lead / 2, 0.4 - lead / 2, 0.2])

        def risk(v):
            pairs = linear_core(v[:, None] - v)
            return law @ (pairs.sum(axis=1) - np.diag(pairs))

        tied = minimize_scalar(lambda a: risk(np.array([a, a, 0.0])), options={"xtol": 1e-12}).fun
        free = minimize(lambda v: risk(np.array([*v, 0.0])), [0.5, 0.5], method="Nelder-Mead", tol=1e-12).fun
        assert 0 <= (tied - free) / lead < 0.05


class TestSmoothness:
    """The certificate has to notice a loss that is not what its parameters say, however wide its tail."""

    @pytest.mark.parametrize("sigma", [1e-8, 1e-5, 1e-3, 0.3, 10.0, 1e6])
    @pytest.mark.parametrize("tail", TAILS)
    def test_holds(self, tail, sigma):
        smooth, convex, _ = consistency_certificate(LinearCoreLoss(sigma=sigma, tail=tail)).certificates
        assert smooth.holds
        assert convex.holds

    @pytest.mark.parametrize("sigma", [1e-8, 1e-5, 1e-3, 0.3, 10.0, 1e6])
    @pytest.mark.parametrize("fault", ["kink", "slope"])
    def test_fails(self, monkeypatch, fault, sigma):
        def broken(margin, tau=0.7, sigma=0.3, tail="exp"):
            right = linear_core(margin, tau, sigma, tail)
            if fault == "slope":  # the value is not the integral of what is differentiated
                return right if isinstance(margin, torch.Tensor) else 1.01 * right
            hinge = torch.relu if isinstance(margin, torch.Tensor) else lambda t: np.maximum(t, 0.0)
            return right + 0.1 * hinge(tau + 0.5 * sigma - margin)

        monkeypatch.setattr(linear_core_certificate, "linear_core", broken)
        smooth = linear_core_certificate._smoothness_certificates(LinearCoreLoss(sigma=sigma))[0]
        assert not smooth.holds

    @pytest.mark.parametrize("sigma", [1e-8, 1e-3, 0.3, 10.0, 1e6])
    def test_sees_a_tail_that_is_not_convex(self, monkeypatch, sigma):
        def wavy(margin, tau=0.7, sigma=0.3, tail="exp"):
            z = (margin - tau) / sigma
            wave = torch.sin(8 * z) if isinstance(margin, torch.Tensor) else np.sin(8 * z)
            return linear_core(margin, tau, sigma, tail) + 1e-2 * sigma * wave

        monkeypatch.setattr(linear_core_certificate, "linear_core", wavy)
        assert not linear_core_certificate._smoothness_certificates(LinearCoreLoss(sigma=sigma))[1].holds

    def test_a_tail_below_rounding_is_no_tail(self):
        assert not consistency_certificate(LinearCoreLoss(sigma=1e-300)).certificates[0].holds


class TestOnData:
    @pytest.mark.parametrize("offset", [0.0, 1e6, 1e9])
    @pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
    def test_minimisers_with_an_offset(self, offset, scale):
        # Rounding of the offset moves the scores, but not below the least risk.
        rng = np.random.default_rng(0)
        loss = LinearCoreLoss(score_scale=scale)
        for law in rng.dirichlet(np.ones(4), 20):
            scores = -(0.7 + 0.3 * np.log((1 - law) / (1 - law.max())))
            scores[law.argmax()] = 0.0
            scores[law.argmax()] = -scores.sum()
            report = consistency_certificate(loss, scores[None] / scale + offset, probabilities=law[None])
            assert report.certificates[-1].holds

    @pytest.mark.parametrize("tau", [1e4, 1e8])
    def test_minimisers_of_a_large_loss(self, tau):
        law = np.array([[0.5, 0.3, 0.2], [0.4, 0.35, 0.25]])
        scores = -(tau + 0.3 * np.log((1 - law) / (1 - law.max(axis=1, keepdims=True))))
        scores[:, 0] = -scores[:, 1:].sum(axis=1)
        report = consistency_certificate(LinearCoreLoss(tau=tau), scores, probabilities=law)
        assert report.certificates[-1].holds

    def test_binary_with_known_law(self):
        rng = np.random.default_rng(2)
        scores = rng.normal(size=2000)
        positive = 1 / (1 + np.exp(-2 * scores + 0.8))
        laws = np.column_stack([1 - positive, positive])
        report = consistency_certificate(LinearCoreLoss(mode="binary"), scores, probabilities=laws)
        assert report.certified
        wrong = (scores > 0) != (positive > 0.5)
        assert report.excess_error == pytest.approx(np.mean(np.abs(2 * positive - 1) * wrong))
        risk = positive * linear_core(scores) + (1 - positive) * linear_core(-scores)
        best = [
            minimize_scalar(lambda t, p=p: p * linear_core(t) + (1 - p) * linear_core(-t), bounds=(-9, 9)).fun
            for p in positive[:50]
        ]
        first = consistency_certificate(LinearCoreLoss(mode="binary"), scores[:50], probabilities=laws[:50])
        assert first.excess_risk == pytest.approx(np.mean(risk[:50] - best), abs=1e-6)

    @pytest.mark.parametrize("mode", ["binary", "multiclass"])
    def test_frequencies_in_bins(self, mode):
        rng = np.random.default_rng(3)
        n_classes = 2 if mode == "binary" else 4
        y = rng.integers(0, n_classes, 600)
        scores = rng.normal(size=(600, n_classes)) + 1.2 * np.eye(n_classes)[y]
        given_scores = scores[:, 1] - scores[:, 0] if mode == "binary" else scores
        loss = LinearCoreLoss(mode=mode)
        report = consistency_certificate(loss, torch.tensor(given_scores), torch.tensor(y), n_bins=8)
        assert report.certified
        assert report.certificates[-1].assumptions[0].satisfied is None
        one_bin = consistency_certificate(loss, given_scores, y, n_bins=1)
        assert one_bin.excess_error <= report.excess_error + 1e-12
        if mode == "binary":
            signs = consistency_certificate(loss, given_scores, 2 * y - 1, n_bins=8)
            assert signs.excess_risk == report.excess_risk

    def test_optimal_scores_have_no_excess(self):
        laws = np.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
        scores = np.array([[1.64194, -0.80094, -0.84100], [1e4, -5e3, -5e3], [0.0, 0.0, 0.0]])
        report = consistency_certificate(LinearCoreLoss(), scores, probabilities=laws)
        assert report.excess_error == pytest.approx(0, abs=1e-12)
        assert report.excess_risk == pytest.approx(0, abs=1e-9)

    def test_huge_and_tiny_scores(self):
        rng = np.random.default_rng(4)
        y, scores = rng.integers(0, 3, 50), rng.normal(size=(50, 3))
        for scale in (1e-8, 1e8):
            assert consistency_certificate(LinearCoreLoss(), scale * scores, y).certified

    def test_result(self):
        report = consistency_certificate(LinearCoreLoss(), np.zeros((4, 2)), [0, 1, 1, 0])
        assert report.theta.shape == report.calibration.shape == (1000,)
        assert len(report.certificates) == 4
        assert report.require() is report
        assert report.to_dict()["certificates"][0]["holds"]
        assert "4 of 4 hold" in repr(report)


class TestBadInput:
    @pytest.mark.parametrize(
        ("loss", "arguments", "message"),
        [
            (LinearCoreLoss(weight=torch.ones(2)), {}, "loss must have no class weights"),
            (LinearCoreLoss(), {"scores": np.zeros((2, 3))}, "y or probabilities must be given"),
            (LinearCoreLoss(), {"y": [0, 1]}, "scores must be given"),
            (LinearCoreLoss(), {"scores": np.zeros(3), "y": [0, 1, 0]}, "scores must be"),
            (LinearCoreLoss(), {"scores": np.zeros((3, 1)), "y": [0, 0, 0]}, "at least 2 columns"),
            (LinearCoreLoss(), {"scores": [[math.nan, 0.0]], "y": [0]}, "scores must be"),
            (LinearCoreLoss(), {"scores": np.zeros((2, 3)), "y": [0, 3]}, "y must have integer labels"),
            (LinearCoreLoss(), {"scores": np.zeros((2, 3)), "y": [0, 0.5]}, "y must have integer labels"),
            (LinearCoreLoss(), {"scores": np.zeros((2, 3)), "y": [0]}, "y must have length 2"),
            (LinearCoreLoss(), {"scores": np.zeros((2, 3)), "y": [0, 1], "n_bins": 0}, "n_bins"),
            (
                LinearCoreLoss(),
                {"scores": np.zeros((1, 2)), "probabilities": [[0.5, 0.6]]},
                "probabilities must be non",
            ),
            (LinearCoreLoss(), {"scores": np.zeros((1, 2)), "probabilities": [[1.0]]}, "probabilities must have shape"),
            (LinearCoreLoss(mode="binary"), {"scores": np.zeros(2), "y": [0, 2]}, "y must have values"),
            (LinearCoreLoss(constrained=False), {"scores": np.zeros((2, 3)), "y": [0, 1]}, "constrained=False"),
        ],
    )
    def test_values(self, loss, arguments, message):
        with pytest.raises(ValueError, match=message):
            consistency_certificate(loss, **arguments)

    def test_type_of_loss(self):
        with pytest.raises(TypeError, match="loss"):
            consistency_certificate(torch.nn.CrossEntropyLoss())
