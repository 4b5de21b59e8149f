"""What a preference loss assumes: proper losses, implied choice models, verdicts, and the fit to held-out pairs."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit, ndtr
from scipy.stats import binomtest

from assay.supervised import (
    ChoiceModel,
    PreferenceLoss,
    certify_preference_fit,
    certify_preference_loss,
    implied_choice_model,
    proper_loss,
)
from assay.supervised import preference_certificate as module
from assay.supervised.choice_models import Cauchit, RaoKupper, Thurstone, resolve_choice
from assay.supervised.preference_psi import resolve_psi, shifted, smoothed
from assay.supervised.proper_losses import ProperLoss

CHOICES = ("btl", "thurstone", "cauchit", "abstain(0.5)")


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


class TestChoiceModels:
    @pytest.mark.parametrize("name", CHOICES)
    def test_inverse_complement_and_abstention(self, name):
        model = resolve_choice(name)
        z = torch.linspace(-6, 6, 25, dtype=torch.float64)
        p = model.probability(z)
        torch.testing.assert_close(model.inverse(p), z, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(model.complement(z), 1 - p)
        torch.testing.assert_close(model.abstention(z), 1 - p - model.probability(-z), rtol=0, atol=1e-15)
        assert model.abstains == (name == "abstain(0.5)")

    def test_tails_keep_their_digits(self):
        assert Thurstone().complement(vector(12.0)).item() == pytest.approx(1.7764821120776762e-33, rel=1e-10)
        assert Cauchit().probability(vector(-1e8)).item() == pytest.approx(1 / (math.pi * 1e8), rel=1e-12)
        # sigma(z - a) is 1 there, and sigma(-z - a) is exp(-z - a)
        assert RaoKupper(0.5).log_abstention(vector(800.0)).item() == pytest.approx(math.log(math.expm1(1)) - 800.5)

    @pytest.mark.parametrize(
        ("choice", "error", "words"),
        [
            ("luce", ValueError, "choice must be one of"),
            ("abstain", ValueError, "choice must be one of"),
            ("abstain(-1)", ValueError, "threshold"),
            (object(), TypeError, "'probability', 'inverse'"),
            (Thurstone, TypeError, "class"),
            ((torch.sigmoid,), TypeError, "pair"),
            ((torch.sigmoid, torch.special.ndtri), ValueError, "inverts"),
            ((lambda z: 2 * torch.sigmoid(z), torch.logit), ValueError, r"\[0, 1\]"),
            ((lambda z: torch.sigmoid(-z), torch.logit), ValueError, "increases"),
        ],
    )
    def test_bad_choice(self, choice, error, words):
        with pytest.raises(error, match=words):
            resolve_choice(choice)

    def test_user_pair_is_the_built_in_one(self):
        pair = proper_loss("savage", (torch.sigmoid, torch.logit))
        built_in = proper_loss("savage", "btl")
        q = np.array([0.1, 0.5, 0.9])
        np.testing.assert_allclose(pair.l0(q), built_in.l0(q), rtol=1e-9)

    def test_base_class_asks_for_its_methods(self):
        with pytest.raises(NotImplementedError, match="probability"):
            ChoiceModel().probability(vector(0.0))


class TestImplied:
    @pytest.mark.parametrize(
        ("psi", "curve", "reach"),
        [
            ("logistic", expit, 12.0),
            ("savage", expit, 12.0),
            ("exp", expit, 12.0),
            ("exp(1)", lambda z: expit(2 * z), 12.0),
            ("probit", ndtr, 12.0),
            ("matusita", lambda z: 0.5 + 0.5 * z / np.sqrt(1 + z**2), 12.0),
            ("robust(0.1)", lambda z: 0.1 + 0.8 * expit(z), 12.0),
            ("ipo", lambda z: 0.5 + z, 0.5),
            ("tangent", lambda z: 0.5 + np.arctan(z), math.tan(0.5)),
            ("cdpo(0.1)", lambda z: (expit(z) - 0.1) / 0.8, math.log(9)),
            ("ramp", lambda z: 0.5 + 0 * z, 0.0),
        ],
    )
    def test_closed_forms(self, psi, curve, reach):
        model = implied_choice_model(psi)
        assert model.reach == pytest.approx(reach, abs=1e-9)
        z = np.linspace(-1, 1, 9) * min(reach or 2.0, 3.0) * 0.99
        np.testing.assert_allclose(model.probability(torch.tensor(z)).numpy(), curve(z), rtol=1e-8, atol=1e-12)

    def test_known_value(self):
        assert implied_choice_model(lambda z: torch.exp(-z)).probability(vector(1.0)).item() == pytest.approx(
            0.8807970780, abs=1e-10
        )

    def test_inverse(self):
        model = implied_choice_model("probit")
        torch.testing.assert_close(
            model.inverse(vector(0.1, 0.5, 0.84134474606854)), vector(-1.2815515655446, 0.0, 1.0)
        )
        assert torch.isnan(implied_choice_model("robust(0.1)").inverse(vector(0.95))).all()
        with pytest.raises(ValueError, match="calibrated"):
            implied_choice_model("ramp").inverse(vector(0.5))

    def test_margin_can_cost_the_savage_loss_its_calibration(self):
        below, above = math.log(2) - 0.01, math.log(2) + 0.01
        assert implied_choice_model(shifted("savage", below)).calibrated
        assert not implied_choice_model(shifted("savage", above)).calibrated
        assert PreferenceLoss("logistic", margin=3.0).implied_choice_model().calibrated


class TestProperLoss:
    def test_known_values(self):
        def l0(psi, choice, z):
            return proper_loss(psi, choice).l0_of_margin(vector(z)).item()

        assert l0("logistic", "btl", 1.0) == pytest.approx(1.3132616875, abs=1e-10)
        assert l0("savage", "btl", 1.0) == pytest.approx(0.5344466454, abs=1e-10)
        assert l0("logistic", "thurstone", 0.5) == pytest.approx(0.6945003562, abs=1e-10)

    @pytest.mark.parametrize("psi", ["logistic", "savage", "matusita", "hinge", "probit"])
    @pytest.mark.parametrize("choice", ["btl", "thurstone"])
    def test_integral_against_scipy(self, psi, choice):
        loss, slope, model = proper_loss(psi, choice), resolve_psi(psi).slope, resolve_choice(choice)

        def density(s):
            s = vector(s)
            return float(model.probability(s) / model.complement(s) * -slope(s))

        for z in (-2.0, 0.3, 2.5):
            expected = quad(density, -30, z, points=[1.0] if z > 1 else None, limit=200, epsabs=1e-12)[0]
            assert loss.l0_of_margin(vector(z)).item() == pytest.approx(expected, rel=1e-8)

    def test_closed_forms(self):
        q = np.linspace(0.02, 0.98, 25)
        log = proper_loss("logistic", "btl")
        np.testing.assert_allclose(log.l1(q), -np.log(q), rtol=1e-12)
        np.testing.assert_allclose(log.l0(q), -np.log1p(-q), rtol=1e-12)
        np.testing.assert_allclose(log.weight(q), 1 / (q * (1 - q)), rtol=1e-9)
        brier = proper_loss("savage", "btl")
        np.testing.assert_allclose(brier.l1(q), (1 - q) ** 2, rtol=1e-10)
        np.testing.assert_allclose(brier.l0(q), q**2, rtol=1e-10)
        np.testing.assert_allclose(brier.regret(0.3, q), (0.3 - q) ** 2, atol=1e-12)
        np.testing.assert_allclose(brier.bregman(0.3, q), (0.3 - q) ** 2, atol=1e-12)

    def test_divergent_integral_is_reported(self):
        assert not proper_loss("logistic", "cauchit").constant_known  # a tail like 1/s
        assert proper_loss("savage", "cauchit").constant_known
        assert proper_loss("exp(1)", "btl").constant_known  # only because of the tangent below -20
        assert not proper_loss(lambda z: torch.exp(-z), "btl").constant_known

    @settings(max_examples=20, deadline=None)
    @given(
        psi=st.sampled_from(["logistic", "savage", "exp", "probit", "matusita", "ramp", "hinge", "tangent"]),
        choice=st.sampled_from(CHOICES),
        p=st.floats(0.03, 0.97),
        q=st.floats(0.03, 0.97),
    )
    def test_regret_is_the_bregman_divergence(self, psi, choice, p, q):
        loss = proper_loss(psi, choice)
        assert loss.regret(p, q) == pytest.approx(loss.bregman(p, q), rel=1e-8, abs=1e-10)
        if psi != "tangent":
            assert loss.regret(p, q) >= -1e-10
            assert loss.weight(q) >= 0

    @pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.1, math.nan])
    def test_bad_probability(self, q):
        with pytest.raises(ValueError, match="q must be"):
            proper_loss("logistic").l1([q])


class TestVerdicts:
    @pytest.mark.parametrize("choice", CHOICES)
    @pytest.mark.parametrize(
        ("psi", "verdict"),
        [
            ("logistic", "compliant & calibrated"),
            ("savage", "compliant & calibrated"),
            ("exp", "compliant & calibrated"),
            ("probit", "compliant & calibrated"),
            ("ramp", "compliant, not calibrated"),
            ("hinge", "compliant, not calibrated"),
            ("tangent", "compliant on (-inf, 0.5463]"),
            ("ipo", "compliant on (-inf, 0.5]"),
            ("cdpo(0.1)", "compliant on (-inf, 2.197]"),
            ("discopop", "not compliant"),
        ],
    )
    def test_table(self, psi, choice, verdict):
        report = certify_preference_loss(psi, choice)
        assert report.verdict == verdict
        assert report.compliant == (verdict in ("compliant & calibrated", "compliant, not calibrated"))
        assert report.certified == (verdict == "compliant & calibrated")

    def test_argmin_distances_are_those_that_were_measured_before(self):
        assert certify_preference_loss("savage", "thurstone").certificates[1].value <= 0.0024
        assert certify_preference_loss("tangent", "btl").certificates[1].value >= 9.9

    def test_on_its_own_domain_the_square_is_fine(self):
        report = certify_preference_loss("ipo", domain=(-12.0, 0.5))
        assert report.verdict == "compliant & calibrated"

    def test_fields(self):
        report = certify_preference_loss("savage")
        assert (report.convex, report.matches_choice, report.compliant_until) == (False, True, math.inf)
        assert certify_preference_loss("savage", "thurstone").link_gap == pytest.approx(0.1173, abs=1e-3)
        assert certify_preference_loss("logistic", "abstain(0.5)").most_abstention == pytest.approx(math.tanh(0.25))
        assert certify_preference_loss("logistic").convex
        text = json.dumps(report.to_dict(), allow_nan=False)
        assert "compliant & calibrated" in text
        assert len(repr(report).splitlines()) < 20

    @pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
    def test_scale_of_the_loss_does_not_matter(self, scale):
        report = certify_preference_loss(lambda z: scale * torch.sigmoid(-z) ** 2)
        assert report.verdict == "compliant & calibrated"
        assert certify_preference_loss(lambda z: scale * torch.sigmoid(-z)).verdict == "compliant, not calibrated"

    def test_undeclared_kinks(self):
        kinked = certify_preference_loss(lambda z: torch.maximum(1 - z, 0.5 - 0.25 * z) + torch.exp(-z), "thurstone")
        assert kinked.certified

    def test_increasing_losses(self):
        assert certify_preference_loss(lambda z: z).verdict == "not compliant"
        assert certify_preference_loss(lambda z: (z + 1) ** 2).verdict == "not compliant"
        assert certify_preference_loss(lambda z: 0 * z).verdict == "compliant, not calibrated"

    def test_label_smoothing_does_not_keep_a_loss_decreasing(self):
        report = certify_preference_loss(smoothed("logistic", 0.2))
        assert report.compliant_until == pytest.approx(math.log(4), abs=1e-6)
        assert PreferenceLoss(label_smoothing=0.2).certify().verdict == report.verdict

    def test_a_model_with_more_than_one_in_total_is_noticed(self):
        too_much = (lambda z: torch.sigmoid(z + 0.5), lambda p: torch.logit(p) - 0.5)
        report = certify_preference_loss("logistic", too_much)
        assert not report.certificates[4].holds
        assert report.verdict == "not compliant"

    def test_nothing_to_measure_is_no_verdict(self):
        with pytest.raises(ValueError, match=r"domain must have margins .* widen it"):
            certify_preference_loss("logistic", "abstain(50)")
        assert certify_preference_loss("logistic", "abstain(50)", domain=(-60.0, 60.0)).verdict.startswith("compliant")

    def test_corrupted_proper_loss_is_noticed(self, monkeypatch):
        class Wrong(ProperLoss):
            def l0_of_margin(self, margin):
                return super().l0_of_margin(margin) * 1.05

        monkeypatch.setattr(module, "ProperLoss", Wrong)
        report = certify_preference_loss("logistic")
        assert not report.certificates[1].holds
        assert not report.certificates[2].holds
        assert report.verdict == "not compliant"

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"domain": (1.0, 2.0)}, ValueError),
            ({"domain": 3}, TypeError),
            ({"n": 5}, ValueError),
            ({"psi": "x"}, ValueError),
        ],
    )
    def test_bad_input(self, options, error):
        with pytest.raises(error):
            certify_preference_loss(**{"psi": "logistic", **options})


@pytest.fixture(scope="module")
def leads():
    rng = np.random.default_rng(0)
    lead = rng.normal(scale=2, size=4000)
    return np.where(rng.random(4000) < expit(lead), lead, -lead)


class TestFit:
    def test_calibrated_model(self, leads):
        fit = certify_preference_fit(leads)
        assert fit.certified
        assert fit.accuracy == np.mean(leads > 0)
        assert fit.bin_count.sum() == fit.n_pairs == 4000

    def test_bins_by_hand(self, leads):
        fit = certify_preference_fit(leads, confidence=0.9)
        predicted, won = expit(np.abs(leads)), leads > 0
        inside = (predicted >= 0.75) & (predicted < 0.8)
        assert fit.bin_count[5] == inside.sum()
        assert fit.bin_predicted[5] == pytest.approx(predicted[inside].mean())
        interval = binomtest(int(won[inside].sum()), int(inside.sum())).proportion_ci(0.9, method="wilson")
        assert (fit.bin_lower[5], fit.bin_upper[5]) == pytest.approx((interval.low, interval.high))
        filled = fit.bin_count > 0
        expected = fit.bin_count[filled] / 4000 @ np.abs(fit.bin_predicted - fit.bin_frequency)[filled]
        assert fit.calibration_error == pytest.approx(expected)

    @pytest.mark.parametrize("factor", [3.0, 0.2, -1.0])
    def test_corrupted_scores_are_noticed(self, leads, factor):
        assert not certify_preference_fit(factor * leads).certificates[0].holds

    def test_tolerance(self, leads):
        assert certify_preference_fit(1.3 * leads, tol=0.08).certificates[0].holds

    def test_outside_of_the_domain(self, leads):
        fit = certify_preference_fit(leads, psi="ipo")
        assert fit.outside == pytest.approx(np.mean(np.abs(leads) > 0.5))
        assert not fit.certificates[1].holds

    def test_misordered_pairs_are_bounded_by_the_loss(self, leads):
        for psi in ("logistic", "savage", "hinge"):
            assert certify_preference_fit(leads, psi=psi, choice="btl").certificates[2].holds

    def test_ties(self):
        rng = np.random.default_rng(1)
        lead, draw = rng.normal(scale=2, size=5000), rng.random(5000)
        first, second = expit(lead - 0.8), expit(-lead - 0.8)
        tie = draw > first + second
        leads = np.where(draw < first, lead, -lead)
        fit = certify_preference_fit(leads, choice="abstain(0.8)", tie=tie)
        assert fit.certified
        assert fit.abstention_rate == tie.mean()
        assert not certify_preference_fit(leads, choice="abstain(0.3)", tie=tie).certificates[3].holds

    def test_scores_and_pairs(self):
        fit = certify_preference_fit([3.0, 1.0, 2.0], [[0, 1], [2, 1], [1, 0]])
        assert (fit.n_pairs, fit.accuracy) == (3, pytest.approx(2 / 3))

    @pytest.mark.parametrize(
        ("arguments", "options", "words"),
        [
            (([1.0, 2.0], [[0, 2]]), {}, r"indices in \[0, 2\), got 2"),
            (([1.0, 2.0], [[0.0, 1.0]]), {}, "integers"),
            (([1.0, 2.0], [[0, 1, 1]]), {}, "shape"),
            (([1.0, math.nan],), {}, "finite"),
            (([1.0, 2.0], [[0, 1], [1, 1]]), {}, "two different items, got the same in pair 1"),
            (([1.0],), {"tol": math.nan}, "tol"),
            (([1.0],), {"tol": -1.0}, "tol"),
            (([1.0],), {"tie": [True]}, "at least one pair"),
            (([1.0],), {"tie": [1]}, "bool"),
            (([1.0],), {"confidence": 1.0}, "confidence"),
            (([],), {}, "empty"),
        ],
    )
    def test_bad_input(self, arguments, options, words):
        with pytest.raises(ValueError, match=words):
            certify_preference_fit(*arguments, **options)
