"""PreferenceLoss: known values, the losses that people know, the fast path against the composed one, bad input."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.supervised import PreferenceLoss
from assay.supervised.preference_psi import MarginLoss, resolve_psi, shifted, smoothed

NAMES = ("logistic", "savage", "exp", "probit", "matusita", "ramp", "tangent", "hinge", "ipo", "cdpo(0.1)",
         "robust(0.1)", "exo(0.1)", "discopop")  # fmt: skip


def random_logps(n=40, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(-30 * torch.rand(n, generator=generator, dtype=torch.float64)).to(dtype) for _ in range(4)]


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


class TestPsi:
    def test_closed_forms(self):
        z = torch.linspace(-6, 6, 49, dtype=torch.float64)
        sigma, normal = 1 / (1 + torch.exp(-z)), torch.distributions.Normal(0.0, 1.0)
        expected = {
            "logistic": torch.log1p(torch.exp(-z)),
            "savage": (1 - sigma) ** 2,
            "exp": torch.exp(-z / 2),
            "exp(1)": torch.exp(-z),
            "probit": -torch.log(normal.cdf(z)),
            "matusita": torch.sqrt(1 + z**2) - z,
            "ramp": 1 - sigma,
            "tangent": (2 * torch.atan(z) - 1) ** 2,
            "hinge": (1 - z).clamp_min(0),
            "ipo": (z - 0.5) ** 2,
            "cdpo(0.1)": -0.9 * torch.log(sigma) - 0.1 * torch.log(1 - sigma),
            "robust(0.1)": (-0.9 * torch.log(sigma) + 0.1 * torch.log(1 - sigma)) / 0.8,
        }
        for name, values in expected.items():
            torch.testing.assert_close(resolve_psi(name).value(z), values, rtol=1e-9, atol=1e-12)

    def test_no_overflow_and_no_cancellation(self):
        far = vector(-1e4, 1e8)
        for name in NAMES:
            assert torch.isfinite(resolve_psi(name).value(far)).all()
            assert torch.isfinite(resolve_psi(name).slope(far)).all()
        assert resolve_psi("matusita").value(vector(1e8)).item() == pytest.approx(0.5e-8)
        # the exponential goes on along its tangent, still decreasing
        exp = resolve_psi("exp")
        assert exp.slope(vector(-25.0)).item() == pytest.approx(-0.5 * math.exp(10))
        assert exp.value(vector(-20.0)).item() == pytest.approx(math.exp(10))

    @pytest.mark.parametrize("name", NAMES)
    def test_slope_is_the_difference_quotient(self, name):
        psi, z, h = resolve_psi(name), vector(-3.3, -0.7, 0.4, 2.1), 1e-6
        quotient = (psi.value(z + h) - psi.value(z - h)) / (2 * h)
        torch.testing.assert_close(psi.slope(z), quotient, rtol=1e-6, atol=1e-8)

    def test_which_ones_fade(self):
        fading = {name for name in NAMES if resolve_psi(name).fades}
        assert fading == {"savage", "ramp", "tangent", "exo(0.1)"}

    def test_user_defined(self):
        class Quadratic:
            def value(self, z):
                return (2 - z).clamp_min(0) ** 2

        assert resolve_psi(Quadratic()).name == "Quadratic"
        assert resolve_psi(lambda z: torch.exp(-z)).value(vector(0.0)).item() == 1
        assert isinstance(resolve_psi(Quadratic()), MarginLoss)

    @pytest.mark.parametrize(
        ("psi", "error", "words"),
        [
            ("dpo", ValueError, "psi must be one of logistic"),
            ("cdpo", ValueError, "cdpo"),
            ("cdpo(0.5)", ValueError, "less than 0.5"),
            ("logistic(1)", ValueError, "psi must be one of"),
            (3, TypeError, "method 'value'"),
            (lambda z: z.sum(), ValueError, "shape of the margins"),
            (lambda z: z.detach(), ValueError, "differentiable"),
            (lambda z: z.log(), ValueError, "finite at the margins"),
            (lambda z: 1.0, TypeError, r"torch\.Tensor"),
            (MarginLoss, TypeError, "class"),
        ],
    )
    def test_bad_psi(self, psi, error, words):
        with pytest.raises(error, match=words):
            resolve_psi(psi)

    def test_smoothing_and_shift(self):
        z = vector(-1.0, 0.3)
        psi = resolve_psi("savage")
        torch.testing.assert_close(smoothed(psi, 0.2).value(z), 0.8 * psi.value(z) + 0.2 * psi.value(-z))
        torch.testing.assert_close(shifted(psi, 0.7).value(z), psi.value(z - 0.7))
        assert smoothed(psi, 0) is psi
        assert shifted(psi, 0) is psi


class TestKnownValues:
    def test_page_of_numbers(self):
        output = PreferenceLoss()(vector(-5.0), vector(-7.0), vector(-6.0), vector(-6.5))
        assert output.margins.item() == pytest.approx(0.15, abs=1e-12)
        assert output.loss.item() == pytest.approx(0.6209570478, abs=1e-10)
        assert output.chosen_rewards.item() == pytest.approx(0.1)
        assert output.rejected_rewards.item() == pytest.approx(-0.05)

    def test_dpo_bit_for_bit(self):
        pc, pr, rc, rr = random_logps()
        expected = -F.logsigmoid(0.1 * ((pc - rc) - (pr - rr)))
        assert torch.equal(PreferenceLoss(reduction="none")(pc, pr, rc, rr).loss, expected)

    def test_relatives(self):
        pc, pr, rc, rr = random_logps()
        delta = 0.3 * ((pc - rc) - (pr - rr))
        log, flipped = -F.logsigmoid(delta), -F.logsigmoid(-delta)
        cases = {
            "hinge": torch.relu(1 - delta),
            "ipo": 0.3**2 * ((pc - rc) - (pr - rr) - 1 / (2 * 0.3)) ** 2,
            "cdpo(0.1)": 0.9 * log + 0.1 * flipped,
            "robust(0.1)": (0.9 * log - 0.1 * flipped) / 0.8,
            "exp(1)": torch.exp(-delta),
        }
        for name, expected in cases.items():
            loss = PreferenceLoss(name, beta=0.3, reduction="none")(pc, pr, rc, rr).loss
            torch.testing.assert_close(loss, expected, rtol=1e-13, atol=1e-13)
        conservative = PreferenceLoss(beta=0.3, label_smoothing=0.1, reduction="none")(pc, pr, rc, rr).loss
        torch.testing.assert_close(conservative, cases["cdpo(0.1)"], rtol=1e-13, atol=1e-13)

    def test_simpo(self):
        pc, pr, _, _ = random_logps()
        lengths = torch.arange(1, 41), torch.arange(41, 1, -1)
        loss = PreferenceLoss(beta=2.0, margin=0.5, length_power=1, reference_free=True, reduction="none")
        expected = -F.logsigmoid(2.0 * (pc / lengths[0] - pr / lengths[1]) - 0.5)
        output = loss(pc, pr, chosen_lengths=lengths[0], rejected_lengths=lengths[1])
        torch.testing.assert_close(output.loss, expected, rtol=1e-14, atol=0)

    def test_links(self):
        logps = [torch.log(vector(*p)) for p in ((0.2, 0.5), (0.1, 0.3), (0.3, 0.4), (0.25, 0.1))]
        p = [torch.exp(one) for one in logps]
        linear = PreferenceLoss(beta=1.0, link="linear")(*logps).margins
        torch.testing.assert_close(linear, (p[0] - p[2]) - (p[1] - p[3]))
        half = PreferenceLoss(beta=1.0, link="tsallis(0.5)")(*logps).margins
        h = [(one**-0.5 - 1) / -0.5 for one in p]
        torch.testing.assert_close(half, (h[0] - h[2]) - (h[1] - h[3]))
        near = PreferenceLoss(beta=1.0, link="tsallis(1.000001)")(*logps).margins
        torch.testing.assert_close(near, PreferenceLoss(beta=1.0)(*logps).margins, atol=1e-5, rtol=0)

    def test_ties_of_rao_and_kupper(self):
        pc, pr, rc, rr = random_logps(4)
        tie = torch.tensor([True, False, False, True])
        loss = PreferenceLoss(choice="abstain(0.5)", margin=0.5, beta=0.2, reduction="none")
        z = 0.2 * ((pc - rc) - (pr - rr))
        first, second = torch.sigmoid(z - 0.5), torch.sigmoid(-z - 0.5)
        expected = torch.where(tie, -torch.log(1 - first - second), -torch.log(first))
        torch.testing.assert_close(loss(pc, pr, rc, rr, tie=tie).loss, expected)

    def test_margin_per_pair_replaces_the_constant(self):
        logps = random_logps(3)
        margin = vector(0.0, 1.0, 2.0)
        with_constant = PreferenceLoss(margin=5.0)(*logps, margin=margin).margins
        torch.testing.assert_close(with_constant, PreferenceLoss()(*logps).margins - margin)

    def test_continuation(self):
        logps = random_logps()
        loss = PreferenceLoss("ramp", beta=0.3)
        pure = PreferenceLoss("ramp", beta=0.3, continuation=None)(*logps).loss
        logistic = PreferenceLoss(beta=0.3)(*logps).loss
        torch.testing.assert_close(loss(*logps).loss, pure)  # nobody has said that training began
        for progress, weight in ((0.0, 0.0), (0.05, 0.25), (0.2, 1.0), (0.9, 1.0)):
            loss.set_progress(progress)
            torch.testing.assert_close(loss(*logps).loss, weight * pure + (1 - weight) * logistic)
        loss.set_progress(0.0)
        torch.testing.assert_close(loss.eval()(*logps).loss, pure)
        assert PreferenceLoss("exp").continuation is None
        assert PreferenceLoss("exp", continuation=0.5).continuation == 0.5


class TestAgainstTrl:
    """The code of TRL itself on the same log-probabilities."""

    @pytest.fixture
    def trl_loss(self):
        pytest.importorskip("trl")
        from assay.studies.supervised._preference_trl import trl_loss

        return trl_loss

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ("sigmoid", "logistic"),
            ("hinge", "hinge"),
            ("ipo", "ipo"),
            ("robust", "robust(0.1)"),
            ("exo_pair", "exo(0.1)"),
            ("discopop", "discopop"),
            ("sigmoid_norm", "logistic"),
        ],
    )
    def test_dpo_losses(self, trl_loss, theirs, ours):
        logps = random_logps()
        lengths = torch.arange(1, 81) % 7 + 1
        by_length = theirs in ("ipo", "sigmoid_norm")
        options = {"chosen_lengths": lengths[:40], "rejected_lengths": lengths[40:]} if by_length else {}
        for one in logps[:2]:
            one.requires_grad_()
        mine = PreferenceLoss(ours, beta=0.3, length_power=float(by_length))(*logps, **options).loss
        scale = 0.3**2 if theirs == "ipo" else 1.0  # IPO's margin is not multiplied by beta
        expected = trl_loss(theirs, logps, 0.3, 0.1, lengths) * scale
        rtol = 1e-6 if theirs == "exo_pair" else 1e-12  # TRL keeps epsilon in single precision
        torch.testing.assert_close(mine, expected, rtol=rtol, atol=1e-12)
        for gradients in zip(
            torch.autograd.grad(mine, logps[:2]), torch.autograd.grad(expected, logps[:2]), strict=True
        ):
            torch.testing.assert_close(*gradients, rtol=rtol, atol=1e-12)

    def test_simpo(self):
        cpo = pytest.importorskip("trl.experimental.cpo")
        from types import SimpleNamespace

        pc, pr, _, _ = random_logps()
        stub = SimpleNamespace(
            alpha=0.0, accelerator=SimpleNamespace(device="cpu"), loss_type="simpo", simpo_gamma=0.5, beta=2.0,
            label_smoothing=0.1,
        )  # fmt: skip
        losses, chosen, rejected = cpo.CPOTrainer.cpo_loss(stub, pc, pr)
        loss = PreferenceLoss(beta=2.0, margin=0.5, reference_free=True, label_smoothing=0.1, reduction="none")
        output = loss(pc, pr)
        torch.testing.assert_close(output.loss, losses, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(output.chosen_rewards, chosen)
        torch.testing.assert_close(output.rejected_rewards, rejected)


class TestFastPath:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("options", [{}, {"margin": 0.4, "label_smoothing": 0.1, "beta": 0.3}])
    def test_equals_the_composed_one(self, name, options):
        loss = PreferenceLoss(name, reduction="sum", **options)
        plain, fast = random_logps(), random_logps()
        for one in (*plain[:2], *fast[:2]):
            one.requires_grad_()
        assert loss._is_plain(tuple(fast))
        expected = loss._composed(*plain, None, None, None, None)
        output = loss(*fast)
        for mine, theirs in zip(output, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=1e-13)
        output.loss.backward()
        expected.loss.backward()
        for mine, theirs in zip(fast[:2], plain[:2], strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-13)

    def test_second_derivative(self):
        logps = random_logps(5)
        assert torch.autograd.gradgradcheck(
            lambda c, r: PreferenceLoss("savage", beta=0.3)(c, r, *logps[2:]).loss,
            tuple(one.requires_grad_() for one in logps[:2]),
        )

    def test_half_precision_is_computed_in_single(self):
        logps = random_logps(dtype=torch.bfloat16)
        output = PreferenceLoss("exp")(*logps)
        assert output.loss.dtype == torch.float32
        torch.testing.assert_close(output.loss, PreferenceLoss("exp")(*(one.float() for one in logps)).loss)

    @settings(max_examples=20, deadline=None)
    @given(scale=st.sampled_from([1e-8, 1.0, 1e8]), name=st.sampled_from(NAMES))
    def test_any_scale(self, scale, name):
        logps = [one * scale for one in random_logps(6)]
        logps[0].requires_grad_()
        output = PreferenceLoss(name)(*logps)
        output.loss.backward()
        assert torch.isfinite(output.loss)
        assert torch.isfinite(logps[0].grad).all()

    def test_inputs_are_not_written_to(self):
        logps = random_logps()
        kept = [one.clone() for one in logps]
        PreferenceLoss("savage", margin=1.0)(*logps)
        assert all(map(torch.equal, logps, kept))

    def test_copies_and_state(self):
        loss = PreferenceLoss("savage", margin=0.3)
        loss.set_progress(0.1)
        logps = random_logps()
        for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), loss.double()):
            assert torch.equal(other(*logps).loss, loss(*logps).loss)
        fresh = PreferenceLoss("savage", margin=0.3)
        fresh.load_state_dict(loss.state_dict())
        assert fresh.phase == loss.phase == 0.5

    def test_functional_transforms(self):
        logps = random_logps(6)
        gradient = torch.func.grad(lambda c: PreferenceLoss()(c, *logps[1:]).loss)(logps[0])
        leaf = logps[0].clone().requires_grad_()
        PreferenceLoss()(leaf, *logps[1:]).loss.backward()
        torch.testing.assert_close(gradient, leaf.grad)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_gpu(self):
        logps = random_logps()
        there = [one.cuda().requires_grad_() for one in logps[:2]] + [one.cuda() for one in logps[2:]]
        output = PreferenceLoss("savage")(*there)
        torch.testing.assert_close(output.loss.cpu(), PreferenceLoss("savage")(*logps).loss)
        output.loss.backward()
        assert there[0].grad.device.type == "cuda"


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"beta": 0}, ValueError, "beta must be greater than 0"),
            ({"beta": -1}, ValueError, "beta"),
            ({"margin": -0.1}, ValueError, "margin must be at least 0"),
            ({"label_smoothing": 0.5}, ValueError, "label_smoothing"),
            ({"length_power": -1}, ValueError, "length_power"),
            ({"reference_free": 1}, TypeError, "reference_free"),
            ({"link": "sqrt"}, ValueError, "link must be one of"),
            ({"link": object()}, TypeError, "of_log"),
            ({"choice": "luce"}, ValueError, "choice must be one of"),
            ({"continuation": "on"}, ValueError, "continuation"),
            ({"continuation": 2.0}, ValueError, "continuation"),
            ({"reduction": "max"}, ValueError, "reduction"),
        ],
    )
    def test_settings(self, options, error, words):
        with pytest.raises(error, match=words):
            PreferenceLoss(**options)

    def test_strict(self):
        for psi in ("logistic", "savage", "hinge", "ramp"):
            PreferenceLoss(psi, strict=True)
        for psi in ("ipo", "tangent", "cdpo(0.1)", "discopop"):
            PreferenceLoss(psi)
            with pytest.raises(ValueError, match="increases at"):
                PreferenceLoss(psi, strict=True)
        PreferenceLoss("ipo", strict=True, domain=(-12.0, 0.5))

    @pytest.mark.parametrize("which", [0, 1, 2, 3])
    @pytest.mark.parametrize("bad", [math.nan, -math.inf])
    def test_not_finite(self, which, bad):
        logps = random_logps()
        logps[which][7] = bad
        for loss in (PreferenceLoss(), PreferenceLoss(link="linear")):
            with pytest.raises(ValueError, match=r"logps must be finite, got .* at index 7"):
                loss(*logps)

    def test_missing_and_misshapen(self):
        pc, pr, rc, rr = random_logps()
        loss = PreferenceLoss()
        with pytest.raises(ValueError, match="reference_chosen_logps must be given unless reference_free"):
            loss(pc, pr)
        with pytest.raises(ValueError, match="chosen_lengths must be given"):
            PreferenceLoss(length_power=1)(pc, pr, rc, rr)
        with pytest.raises(ValueError, match="chosen_lengths must be at least 1"):
            PreferenceLoss(length_power=1)(
                pc, pr, rc, rr, chosen_lengths=torch.zeros(40), rejected_lengths=torch.ones(40)
            )
        with pytest.raises(ValueError, match="policy_rejected_logps must have the shape"):
            loss(pc, pr[:3], rc, rr[:3])
        with pytest.raises(ValueError, match="at least one pair"):
            loss(*(one[:0] for one in (pc, pr, rc, rr)))
        with pytest.raises(TypeError, match="floating point"):
            loss(pc.long(), pr, rc, rr)
        with pytest.raises(TypeError, match=r"torch\.Tensor"):
            PreferenceLoss(reference_free=True)(None, pr)
        with pytest.raises(ValueError, match="choice must abstain"):
            loss(pc, pr, rc, rr, tie=torch.ones(40, dtype=torch.bool))
        with pytest.raises(ValueError, match="margin must be at least 0"):
            loss(pc, pr, rc, rr, margin=-torch.ones(40))
        with pytest.raises(ValueError, match="progress"):
            loss.set_progress(1.5)


class TestEdges:
    @pytest.mark.parametrize("domain", [(3.0, 1.0), (1.0, 2.0), (math.nan, 1.0), (-math.inf, 1.0)])
    def test_domain_is_checked(self, domain):
        for strict in (False, True):
            with pytest.raises(ValueError, match="domain must be"):
                PreferenceLoss(domain=domain, strict=strict)

    def test_strict_sees_small_losses_and_missing_slopes(self):
        with pytest.raises(ValueError, match="increases at -12"):
            PreferenceLoss(lambda z: 1e-13 * z, strict=True)
        with pytest.raises(ValueError, match="has no slope at"):
            PreferenceLoss(lambda z: torch.where(z > 5, torch.nan * z, -z), strict=True)
        PreferenceLoss(lambda z: 1e8 * torch.sigmoid(-z) ** 2, strict=True)

    def test_a_branch_that_does_not_count_has_no_gradient(self):
        # abstention of this pair of functions underflows at a lead of 1000, and its logarithm has no slope there
        choice = (lambda z: torch.sigmoid(z - 0.5), lambda p: torch.logit(p) + 0.5)
        loss = PreferenceLoss(choice=choice, beta=1.0, reference_free=True, reduction="sum")
        chosen, rejected = vector(-1000.0, -1.0).requires_grad_(), vector(0.0, -2.0)
        loss(chosen, rejected, tie=torch.tensor([False, True])).loss.backward()
        lead = vector(1.0).requires_grad_()
        (-torch.log(1 - torch.sigmoid(lead - 0.5) - torch.sigmoid(-lead - 0.5))).sum().backward()
        torch.testing.assert_close(chosen.grad, torch.cat([vector(-1.0), lead.grad]))

    @pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
    def test_margins_and_lengths_are_finite(self, value):
        logps, other = random_logps(1), torch.tensor([2])
        with pytest.raises(ValueError, match="margin must be at least 0 and finite"):
            PreferenceLoss()(*logps, margin=vector(value))
        with pytest.raises(ValueError, match="rejected_lengths must be at least 1 and finite"):
            PreferenceLoss(length_power=1)(*logps, chosen_lengths=other, rejected_lengths=vector(value))
