"""SPECTRA optimizers: the formula, the wrapper against the built-in classes, schedules, bad input."""

import copy
import inspect
import math

import numpy as np
import pytest
import torch

from assay.optim.spectra import Spectra, SpectraAdamW, SpectraSignum
from assay.optim.spectra_rule import DEFAULT_SETTINGS, scheduled_threshold
from assay.optim.spectral import hard_spectral_clip, soft_spectral_clip, spectral_normalize


class FixedDirection(torch.optim.Optimizer):
    """A base optimizer with decoupled decay whose update is the gradient itself."""

    def __init__(self, params, lr, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(p.grad, alpha=-group["lr"])
        return loss


def parameter(shape, seed=0, dtype=torch.float64, scale=1.0):
    rng = np.random.default_rng(seed)
    p = torch.nn.Parameter(torch.tensor(rng.normal(size=shape), dtype=dtype))
    p.grad = torch.tensor(rng.normal(size=shape) * scale, dtype=dtype)
    return p


def model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3)).to(dtype)


def train(net, optimizer, steps=6, seed=1, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    dtype = next(net.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(16, 6, generator=generator).to(dtype)
        optimizer.zero_grad()
        ((net(x) - x[:, :3]).square().mean() * scale).backward()
        optimizer.step()


def assert_same(first, second, **tolerance):
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerance)


ADAMW = {"lr": 3e-2, "betas": (0.8, 0.999), "weight_decay": 0.1}


class TestFormula:
    @pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (1, 1)])
    @pytest.mark.parametrize("rect_scale", [True, False])
    def test_the_wrapper_takes_the_clipped_step(self, shape, rect_scale):
        p = parameter(shape, scale=3)
        start, direction = p.detach().clone(), p.grad.clone()
        optimizer = Spectra(FixedDirection([p], 0.1, 0.2), clip=1.5, rect_scale=rect_scale)
        optimizer.step()
        alpha = math.sqrt(max(1, shape[0] / shape[1])) if rect_scale else 1.0
        expected = (1 - 0.02) * start - alpha * 0.1 * soft_spectral_clip(direction, 1.5)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(
        "method, clip",
        [
            ("auto", soft_spectral_clip),
            ("newton_schulz", soft_spectral_clip),
            ("eigh", soft_spectral_clip),
            ("svd", soft_spectral_clip),
            ("hard", hard_spectral_clip),
            ("normalize", spectral_normalize),
        ],
    )
    def test_every_method(self, method, clip):
        p = parameter((5, 3), scale=3)
        start, direction = p.detach().clone(), p.grad.clone()
        Spectra(FixedDirection([p], 0.1), clip=1.5, method=method, rect_scale=False).step()
        torch.testing.assert_close(p.detach(), start - 0.1 * clip(direction, 1.5), rtol=1e-9, atol=1e-9)

    def test_higher_dimensions_are_matrices_and_vectors_are_left_alone(self):
        kernel, bias, scalar = parameter((4, 3, 2, 2), scale=5), parameter((4,), scale=50), parameter((), scale=50)
        starts = [p.detach().clone() for p in (kernel, bias, scalar)]
        directions = [p.grad.clone() for p in (kernel, bias, scalar)]
        Spectra(FixedDirection([kernel, bias, scalar], 0.1), clip=1.0).step()
        clipped = soft_spectral_clip(directions[0].view(4, 12), 1.0).view(4, 3, 2, 2)
        torch.testing.assert_close(kernel.detach(), starts[0] - 0.1 * clipped)
        torch.testing.assert_close(bias.detach(), starts[1] - 0.1 * directions[1])
        torch.testing.assert_close(scalar.detach(), starts[2] - 0.1 * directions[2])

    @pytest.mark.parametrize("batched", [True, False])
    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
    def test_tall_kernels_in_any_memory_layout(self, layout, batched):
        kernel = parameter((9, 2, 2, 1), scale=5)
        kernel = torch.nn.Parameter(kernel.detach().to(memory_format=layout))
        kernel.grad = parameter((9, 2, 2, 1), scale=5).grad.to(memory_format=layout)
        start = kernel.detach().clone()
        options = {"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip": 1.0}
        SpectraSignum([kernel], **options, foreach=batched).step()
        clipped = soft_spectral_clip(torch.sign(kernel.grad).reshape(9, 4), 1.0).reshape(9, 2, 2, 1)
        torch.testing.assert_close(kernel.detach(), start - 0.1 * 1.5 * clipped)
        assert kernel.is_contiguous(memory_format=layout)

    @pytest.mark.parametrize("rule", ["smooth", "code"])
    def test_scope_all_clips_vectors_by_their_norm(self, rule):
        small, large = parameter((4,)), parameter((4,), seed=1)
        small.grad = torch.tensor([0.3, 0, 0.4, 0], dtype=torch.float64)
        large.grad = torch.tensor([3.0, 0, 4.0, 0], dtype=torch.float64)
        starts = [p.detach().clone() for p in (small, large)]
        Spectra(FixedDirection([small, large], 0.1), clip=1.0, scope="all", vector_rule=rule).step()
        factor = 1.0 if rule == "code" else 1 / math.sqrt(1.25)
        torch.testing.assert_close(small.detach(), starts[0] - 0.1 * factor * small.grad)
        torch.testing.assert_close(large.detach(), starts[1] - 0.1 * large.grad / math.sqrt(26))

    def test_a_long_vector_is_capped_and_not_lost(self):
        p = torch.nn.Parameter(torch.zeros(4))
        p.grad = torch.full((4,), 1e30)  # whose square is infinite in float32
        Spectra(FixedDirection([p], 1.0), clip=3.0, scope="all").step()
        torch.testing.assert_close(p.detach(), torch.full((4,), -1.5))

    def test_the_direction_of_adamw(self):
        p = parameter((5, 3))
        start, gradient = p.detach().clone(), p.grad.clone()
        SpectraAdamW([p], lr=0.1, eps=1e-3, weight_decay=0.2, clip=0.7).step()
        expected = soft_spectral_clip(gradient / (gradient.abs() + 1e-3), 0.7)
        torch.testing.assert_close(p.detach(), 0.98 * start - 0.1 * math.sqrt(5 / 3) * expected)

    @pytest.mark.parametrize("nesterov", [True, False])
    def test_the_direction_of_signum(self, nesterov):
        p = parameter((3, 5))
        optimizer = SpectraSignum([p], lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.2, clip=0.7)
        expected, buffer = p.detach().clone(), torch.zeros(3, 5, dtype=torch.float64)
        for seed in range(3):
            p.grad = parameter((3, 5), seed=seed + 10).grad
            buffer = 0.9 * buffer + p.grad
            direction = torch.sign(p.grad + 0.9 * buffer if nesterov else buffer)
            expected = 0.98 * expected - 0.1 * soft_spectral_clip(direction, 0.7)
            optimizer.step()
        torch.testing.assert_close(p.detach(), expected)

    def test_signum_without_momentum_is_sign_descent(self):
        p = parameter((3, 5))
        start = p.detach().clone()
        optimizer = SpectraSignum([p], lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0, clip=None)
        optimizer.step()
        torch.testing.assert_close(p.detach(), start - 0.1 * torch.sign(p.grad))
        assert optimizer.state_dict()["state"] == {}

    def test_tall_and_zero_gradients(self):
        p = parameter((4, 2))
        p.grad = torch.zeros(4, 2, dtype=torch.float64)
        start = p.detach().clone()
        SpectraAdamW([p], lr=0.1, weight_decay=0.2, clip=1.0).step()
        torch.testing.assert_close(p.detach(), 0.98 * start)

    def test_pre_clip_comes_before_the_base(self):
        for make in (
            lambda p: Spectra(FixedDirection([p], 0.1), clip=None, pre_clip=0.3),
            lambda p: SpectraSignum([p], lr=0.1, clip=None, pre_clip=0.3, weight_decay=0.0),
        ):
            p = parameter((4, 3))
            gradient = p.grad.clone()
            make(p).step()
            torch.testing.assert_close(p.grad, soft_spectral_clip(gradient, 0.3))

    def test_pre_clip_comes_after_the_closure(self):
        p = parameter((4, 3))
        start, gradient = p.detach().clone(), p.grad.clone()

        def closure():
            p.grad = gradient.clone()
            return 7.0

        assert Spectra(FixedDirection([p], 0.1), clip=None, pre_clip=0.3).step(closure) == 7.0
        torch.testing.assert_close(p.detach(), start - 0.1 * soft_spectral_clip(gradient, 0.3))


class TestAgainstTheBase:
    @pytest.mark.parametrize("off", [None, math.inf])
    def test_without_a_clip_it_is_adamw_bit_for_bit(self, off):
        reference, wrapped, built_in, plain = (model() for _ in range(4))
        train(reference, torch.optim.AdamW(reference.parameters(), **ADAMW))
        train(wrapped, Spectra(torch.optim.AdamW(wrapped.parameters(), **ADAMW), clip=off))
        train(built_in, SpectraAdamW(built_in.parameters(), **ADAMW, clip=off))
        train(plain, SpectraAdamW(plain.parameters(), **ADAMW, clip=off, foreach=False))
        for net in (wrapped, built_in, plain):
            assert_same(net, reference, rtol=0, atol=0)

    @pytest.mark.parametrize("method", ["auto", "newton_schulz", "hard", "normalize"])
    def test_the_wrapper_agrees_with_the_built_in_class(self, method):
        wrapped, built_in, plain = (model(dtype=torch.float64) for _ in range(3))
        options = {"clip": 1.0, "method": method, "scope": "all"}
        train(wrapped, Spectra(torch.optim.AdamW(wrapped.parameters(), **ADAMW), **options))
        train(built_in, SpectraAdamW(built_in.parameters(), **ADAMW, **options))
        train(plain, SpectraAdamW(plain.parameters(), **ADAMW, **options, foreach=False))
        assert_same(wrapped, built_in, rtol=1e-7, atol=1e-8)
        assert_same(plain, built_in, rtol=1e-7, atol=1e-8)

    def test_a_group_can_have_its_own_clip(self):
        reference, wrapped, built_in = (model() for _ in range(3))
        options = {"lr": 3e-2, "weight_decay": 0.1, "betas": (0.8, 0.999)}

        def groups(net):
            first, _, second = net
            return [{"params": first.parameters(), "clip": None}, {"params": second.parameters(), "clip": 0.5}]

        train(reference, torch.optim.AdamW(reference.parameters(), **options), steps=1)
        train(wrapped, Spectra(torch.optim.AdamW(groups(wrapped), **options), clip=3.0), steps=1)
        train(built_in, SpectraAdamW(groups(built_in), **options, clip=3.0), steps=1)
        assert_same(wrapped[0], reference[0], rtol=0, atol=0)
        assert_same(built_in[0], reference[0], rtol=0, atol=0)
        assert_same(built_in[2], wrapped[2], rtol=1e-5, atol=1e-6)
        assert not torch.allclose(built_in[2].weight, reference[2].weight, atol=1e-4)

    def test_other_bases_with_decoupled_decay(self):
        for make in (
            lambda p: torch.optim.Muon(p, lr=0.1, weight_decay=0.1),
            lambda p: torch.optim.Adafactor(p, lr=0.1, weight_decay=0.1),
            lambda p: torch.optim.NAdam(p, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True),
            lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True),
            lambda p: torch.optim.SGD(p, lr=0.1),
        ):
            p = parameter((6, 4), dtype=torch.float32, scale=10)
            optimizer = Spectra(make([p]), clip=0.01)
            start = p.detach().clone()
            optimizer.step()
            decay = optimizer.param_groups[0]["weight_decay"]
            moved = torch.linalg.matrix_norm(p.detach() - (1 - 0.1 * decay) * start, 2)
            assert 0 < float(moved) <= 0.1 * 0.01 * math.sqrt(6 / 4) * (1 + 1e-3)

    def test_bases_of_pytorch_optimizer(self):
        library = pytest.importorskip("pytorch_optimizer")
        for make in (
            lambda p: library.AdEMAMix(p, lr=0.1, weight_decay=0.1, weight_decouple=True),
            lambda p: library.MARS(p, lr=0.1, weight_decay=0.1),
            lambda p: library.Lion(p, lr=0.1, weight_decay=0.1),
        ):
            p = parameter((6, 4), dtype=torch.float32)
            optimizer = Spectra(make([p]), clip=0.05)
            for seed in range(3):
                start = p.detach().clone()
                p.grad = parameter((6, 4), seed=seed, dtype=torch.float32).grad
                optimizer.step()
                moved = torch.linalg.matrix_norm(p.detach() - 0.99 * start, 2)
                assert 0 < float(moved) <= 0.1 * 0.05 * math.sqrt(6 / 4) * (1 + 1e-3)
        with pytest.raises(ValueError, match=r"fixed_decay"):
            Spectra(library.AdEMAMix([p], weight_decay=0.1, weight_decouple=True, fixed_decay=True))
        with pytest.raises(ValueError, match=r"decoupled"):
            Spectra(library.AdEMAMix([p], weight_decay=0.1))


class TestThresholdSchedule:
    def settings(self, **changes):
        return {**DEFAULT_SETTINGS, "base_lr": 1e-2, "clip": 4.0, **changes}

    def test_in_the_warmup_the_cap_on_the_step_is_constant(self):
        settings = self.settings(warmup_steps=5)
        for lr in (1e-4, 5e-3, 1e-2):
            assert scheduled_threshold(settings, 4, lr) * lr == pytest.approx(4e-2)
        assert scheduled_threshold(settings, 5, 5e-3) == 4.0
        assert scheduled_threshold(settings, 0, 0.0) == pytest.approx(4e-2 / 1e-10)

    @pytest.mark.parametrize(
        "schedule, halfway",
        [
            ("linear", 0.5),
            ("sqrt", 1 - math.sqrt(0.5)),
            ("cosine", 0.5),
            ("square", 0.75),
            ("exp", math.nan),
            ("constant", math.nan),
        ],
    )
    def test_decays(self, schedule, halfway):
        settings = self.settings(clip_schedule=schedule, total_steps=100, decay_fraction=0.2, final_scale=0.1)
        values = [scheduled_threshold(settings, k, 1e-2) / 4 for k in (0, 80, 90, 100, 150)]
        if schedule == "constant":
            assert values == [1.0] * 5
            return
        middle = math.sqrt(0.1) if schedule == "exp" else 0.1 + 0.9 * halfway
        assert values == pytest.approx([1, 1, middle, 0.1, 0.1])

    def test_a_threshold_of_zero_stops_the_update(self):
        p = parameter((3, 3))
        optimizer = SpectraAdamW([p], lr=0.1, clip=1.0, clip_schedule="linear", total_steps=1, decay_fraction=1.0)
        optimizer.step()
        start = p.detach().clone()
        optimizer.step()
        torch.testing.assert_close(p.detach(), 0.99 * start)

    @pytest.mark.parametrize("kind", ["wrapper", "adamw"])
    def test_the_base_learning_rate_is_found_behind_a_scheduler(self, kind):
        p = parameter((6, 6), dtype=torch.float32)
        options = {"clip": 1.0, "warmup_steps": 4}
        if kind == "wrapper":
            optimizer = Spectra(torch.optim.AdamW([p], lr=0.5), **options)
        else:
            optimizer = SpectraAdamW([p], lr=0.5, **options)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 4))
        caps = []
        for _ in range(6):
            caps.append(optimizer.threshold() * optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        assert caps == pytest.approx([0.5] * 6)
        assert optimizer.steps_done == 6

    def test_a_scheduler_that_came_before_the_wrapper(self):
        base = torch.optim.AdamW([parameter((3, 3))], lr=0.5)
        torch.optim.lr_scheduler.LinearLR(base, start_factor=0.01, total_iters=10)
        optimizer = Spectra(base, clip=1.0, warmup_steps=10)
        assert optimizer.threshold() * base.param_groups[0]["lr"] == pytest.approx(0.5)

    def test_a_step_of_length_zero_is_skipped(self):
        for make in (lambda p: Spectra(torch.optim.AdamW([p], lr=0.1)), lambda p: SpectraAdamW([p], lr=0.1)):
            p = parameter((3, 3))
            optimizer = make(p)
            optimizer.param_groups[0]["lr"] = 0.0
            start = p.detach().clone()
            optimizer.step()
            assert torch.equal(p.detach(), start)


class TestNonFiniteUpdates:
    def poisoned(self):
        good, bad = parameter((3, 3)), parameter((3, 3), seed=1)
        bad.grad[0, 0] = math.nan
        return good, bad

    @pytest.mark.parametrize("foreach", [None, False])
    def test_the_base_step_is_kept_and_counted(self, foreach):
        for make in (
            lambda ps: SpectraAdamW(ps, lr=0.1, clip=1.0, foreach=foreach),
            lambda ps: SpectraSignum(ps, lr=0.1, clip=1.0, foreach=foreach),
            lambda ps: Spectra(torch.optim.AdamW(ps, lr=0.1), clip=1.0),
        ):
            good, bad = self.poisoned()
            optimizer = make([good, bad])
            optimizer.step()
            assert optimizer.nonfinite_updates == 1
            assert bool(torch.isfinite(good).all())
            assert bool(torch.isnan(bad).any())
            assert not any(c.holds for c in optimizer.certificates())

    def test_strict_raises_before_the_weights_move(self):
        for make in (
            lambda ps: SpectraAdamW(ps, lr=0.1, clip=1.0, strict=True),
            lambda ps: Spectra(torch.optim.AdamW(ps, lr=0.1), clip=1.0, strict=True),
        ):
            good, bad = self.poisoned()
            starts = good.detach().clone(), bad.detach().clone()
            with pytest.raises(RuntimeError, match=r"1 of 2 updates are not finite"):
                make([good, bad]).step()
            assert torch.equal(good.detach(), starts[0])
            assert torch.equal(bad.detach(), starts[1])

    @pytest.mark.parametrize(
        "make",
        [
            lambda ps: SpectraAdamW(ps, lr=0.1, clip=1.0, strict=True),
            lambda ps: SpectraSignum(ps, lr=0.1, clip=1.0, strict=True),
            lambda ps: Spectra(torch.optim.AdamW(ps, lr=0.1), clip=1.0, strict=True),
        ],
    )
    @pytest.mark.parametrize("where", ["matrix", "vector", "unclipped"])
    @pytest.mark.parametrize("closure", [False, True])
    def test_strict_changes_nothing_and_can_go_on(self, make, where, closure):
        matrices = [parameter((3, 3), seed=k) for k in range(3)]
        vector = parameter((3,), seed=3)
        groups = [{"params": [matrices[0], vector]}, {"params": matrices[1:2]}, {"params": matrices[2:], "clip": None}]
        everything, optimizer = [*matrices, vector], make(groups)
        optimizer.step()
        bad = {"matrix": matrices[1], "vector": vector, "unclipped": matrices[2]}[where]
        whole, bad.grad[0] = bad.grad.clone(), math.inf
        starts, state = [p.detach().clone() for p in everything], str(optimizer.state_dict())
        with pytest.raises(RuntimeError, match=r"1 of \d updates are not finite"):
            optimizer.step((lambda: 0.0) if closure else None)
        assert all(torch.equal(p.detach(), start) for p, start in zip(everything, starts, strict=True))
        assert str(optimizer.state_dict()) == state
        bad.grad = whole
        optimizer.step()
        assert optimizer.steps_done == 2
        assert all(bool(torch.isfinite(p).all()) for p in everything)

    def test_strict_undoes_an_update_that_overflows(self):
        class Overflow(FixedDirection):
            def step(self, closure=None):
                super().step(closure)
                with torch.no_grad():
                    self.param_groups[1]["params"][0].fill_(math.inf)

        first, second, vector = parameter((3, 3)), parameter((3, 3), seed=1), parameter((3,))
        optimizer = Spectra(Overflow([{"params": [first, vector]}, {"params": [second]}], 0.1), clip=1.0, strict=True)
        starts = [p.detach().clone() for p in (first, second, vector)]
        with pytest.raises(RuntimeError, match=r"1 of 1 updates are not finite"):
            optimizer.step()
        assert all(torch.equal(p.detach(), s) for p, s in zip((first, second, vector), starts, strict=True))
        assert optimizer.norm_bound(first) is None

    def test_pre_clip_leaves_a_nan_to_the_base(self):
        good, bad = self.poisoned()
        before = bad.grad.clone()
        Spectra(FixedDirection([good, bad], 0.1), clip=None, pre_clip=0.1).step()
        assert torch.equal(torch.isnan(bad.grad), torch.isnan(before))


class TestBadInput:
    @pytest.mark.parametrize(
        "option, error, message",
        [
            ({"clip": 0.0}, ValueError, "clip must be greater than 0"),
            ({"clip": -1}, ValueError, "clip must be greater than 0"),
            ({"clip": "ten"}, TypeError, "clip must be a real number"),
            ({"pre_clip": 0.0}, ValueError, "pre_clip must"),
            ({"ns_steps": 0}, ValueError, "ns_steps must be at least 1"),
            ({"ns_steps": "few"}, ValueError, "ns_steps must"),
            ({"method": "qr"}, ValueError, "method must be one of"),
            ({"scope": "rows"}, ValueError, "scope must be one of"),
            ({"vector_rule": "none"}, ValueError, "vector_rule must be one of"),
            ({"rect_scale": 1}, TypeError, "rect_scale must be True or False"),
            ({"strict": "yes"}, TypeError, "strict must be True or False"),
            ({"warmup_steps": -1}, ValueError, "warmup_steps must"),
            ({"warmup_steps": 2.5}, TypeError, "warmup_steps must be an integer"),
            ({"base_lr": -1.0}, ValueError, "base_lr must"),
            ({"base_lr": 0.0}, ValueError, "base_lr must be greater than 0"),
            ({"clip_schedule": "step"}, ValueError, "clip_schedule must be one of"),
            ({"clip_schedule": "linear"}, ValueError, "total_steps must be given"),
            ({"clip_schedule": "exp", "total_steps": 9}, ValueError, "final_scale must be greater than 0"),
            ({"final_scale": 1.5}, ValueError, "final_scale must"),
            ({"decay_fraction": 0.0}, ValueError, "decay_fraction must"),
            ({"total_steps": 0}, ValueError, "total_steps must"),
        ],
    )
    def test_settings(self, option, error, message):
        with pytest.raises(error, match=message):
            SpectraAdamW([{"params": [parameter((2, 2))], **option}])
        # by the constructor, without the type check of the test run
        unchecked = inspect.unwrap(Spectra.__init__)
        with pytest.raises(error, match=message):
            unchecked(Spectra.__new__(Spectra), torch.optim.AdamW([parameter((2, 2))]), **option)

    @pytest.mark.parametrize(
        "make, message",
        [
            (lambda p: SpectraAdamW(p, lr=-1.0), "lr must"),
            (lambda p: SpectraAdamW(p, betas=(0.9, 1.0)), "betas"),
            (lambda p: SpectraAdamW([{"params": p, "betas": (0.9,)}]), "betas must be two numbers"),
            (lambda p: SpectraAdamW(p, eps=-1.0), "eps must"),
            (lambda p: SpectraAdamW(p, weight_decay=-0.1), "weight_decay must"),
            (lambda p: SpectraSignum(p, momentum=1.0), "momentum must"),
            (lambda p: SpectraSignum(p, momentum=0.0), "momentum must be greater than 0 for nesterov"),
            (lambda p: SpectraAdamW(p, lr=0.0, warmup_steps=3), "base_lr must be given"),
            (lambda p: SpectraAdamW([]), "empty parameter list"),
        ],
    )
    def test_numbers(self, make, message):
        with pytest.raises(ValueError, match=message):
            make([parameter((2, 2))])

    @pytest.mark.parametrize(
        "kind, option",
        [
            *((SpectraAdamW, {"lr": lr}) for lr in ("fast", None, True, torch.ones(2))),
            *((SpectraAdamW, {"betas": betas}) for betas in (0.9, "ab", None)),
            (SpectraAdamW, {"maximize": "no"}),
            (SpectraAdamW, {"foreach": 1}),
            (SpectraSignum, {"nesterov": "no"}),
            (SpectraSignum, {"momentum": None}),
        ],
    )
    def test_types_of_numbers(self, kind, option):
        with pytest.raises(TypeError, match=f"^{next(iter(option))} must be"):
            kind([{"params": [parameter((2, 2))], **option}])

    @pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
    def test_a_clip_that_was_set_later(self, clip):
        for make in (lambda p: SpectraAdamW([p]), lambda p: Spectra(torch.optim.AdamW([p]))):
            for name in ("clip", "pre_clip"):
                optimizer = make(parameter((2, 2)))
                optimizer.param_groups[0][name] = clip
                with pytest.raises(ValueError, match=f"^{name} must"):
                    optimizer.step()

    @pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.NAdam])
    def test_coupled_decay_is_refused(self, base):
        p = parameter((2, 2))
        with pytest.raises(ValueError, match=r"decoupled weight decay"):
            Spectra(base([p], lr=0.1, weight_decay=0.1))
        optimizer = Spectra(base([p], lr=0.1))
        with pytest.raises(ValueError, match=r"decoupled weight decay"):
            optimizer.add_param_group({"params": [parameter((3, 3))], "weight_decay": 0.1})
        assert len(optimizer.param_groups) == 1

    def test_the_base_must_be_an_optimizer(self):
        unchecked, fresh = inspect.unwrap(Spectra.__init__), Spectra.__new__(Spectra)
        with pytest.raises(TypeError, match=r"base_optimizer must be a torch.optim.Optimizer"):
            unchecked(fresh, [parameter((2, 2))])
        with pytest.raises(TypeError, match=r"does not clip its updates already"):
            Spectra(SpectraAdamW([parameter((2, 2))]))

    def test_kinds_of_parameters(self):
        complex_parameter = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))
        with pytest.raises(TypeError, match=r"params must be real"):
            SpectraAdamW([complex_parameter])
        with pytest.raises(TypeError, match=r"params must be real"):
            Spectra(torch.optim.AdamW([complex_parameter]))
        for make in (lambda p: SpectraSignum([p]), lambda p: Spectra(torch.optim.AdamW([p]))):
            table = torch.nn.Parameter(torch.zeros(3, 2))
            table.grad = torch.eye(3, 2).to_sparse()
            with pytest.raises(TypeError, match=r"gradients must be dense"):
                make(table).step()
            with pytest.raises(TypeError, match=r"params must have data"):
                make(torch.nn.Parameter(torch.zeros(3, 2, device="meta")))
        first, table = parameter((3, 3)), torch.nn.Parameter(torch.zeros(3, 2))
        start, table.grad = first.detach().clone(), torch.eye(3, 2).to_sparse()
        with pytest.raises(TypeError, match=r"gradients must be dense"):
            SpectraAdamW([{"params": [first]}, {"params": [table]}]).step()
        assert torch.equal(first.detach(), start)
        for mark in ("_is_flat_param", "device_mesh"):  # what tells FSDP's and DTensor's parameters
            sharded = parameter((4, 4))
            setattr(sharded, mark, True)
            with pytest.raises(NotImplementedError, match=r"FSDP"):
                SpectraAdamW([sharded])

    def test_half_precision_weights_in_the_wrapper_are_warned_about(self):
        p = parameter((3, 3), dtype=torch.bfloat16)
        with pytest.warns(UserWarning, match=r"16 bits"):
            Spectra(torch.optim.AdamW([p]))

    def test_a_refused_group_is_not_added(self):
        optimizer = SpectraAdamW([parameter((2, 2))])
        with pytest.raises(ValueError, match=r"clip must"):
            optimizer.add_param_group({"params": [parameter((3, 3))], "clip": -1.0})
        with pytest.raises(ValueError, match=r"base_lr must be given"):
            optimizer.add_param_group({"params": [parameter((3, 3))], "lr": 0.0, "warmup_steps": 3})
        assert len(optimizer.param_groups) == 1

    def test_a_foreign_state_dict(self):
        optimizer = Spectra(torch.optim.AdamW([parameter((2, 2))]))
        with pytest.raises(ValueError, match=r"state_dict must have the keys 'base' and 'spectra'"):
            optimizer.load_state_dict({"state": {}, "param_groups": []})

    @pytest.mark.parametrize(
        "spoil, message",
        [
            (lambda d: d["spectra"].pop("base_lrs"), r"must have the keys \['base_lrs'\]"),
            (lambda d: d["spectra"].update(base_lrs=[0.1, 0.2]), r"as many groups"),
            (lambda d: d["spectra"].update(norm_bounds={7: 1.0}), r"as many groups"),
            (lambda d: d["base"]["param_groups"][0].update(decoupled_weight_decay=False), r"decoupled weight decay"),
        ],
    )
    def test_a_state_dict_that_does_not_fit_changes_nothing(self, spoil, message):
        p = parameter((2, 2))
        optimizer = Spectra(torch.optim.AdamW([p], lr=0.1))
        optimizer.step()
        content = copy.deepcopy(optimizer.state_dict())
        content["base"]["param_groups"][0]["lr"] = 5.0
        spoil(content)
        before = str(optimizer.state_dict())
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(content)
        assert str(optimizer.state_dict()) == before
