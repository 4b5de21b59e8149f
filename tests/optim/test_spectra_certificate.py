"""What the certificates of SPECTRA say, recomputed by other means, and that they can fail."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.optim.spectra import Spectra, SpectraAdamW, SpectraSignum
from assay.optim.spectra_analysis import composite_fw_gap, spike_report
from assay.optim.spectra_certificate import SpectraCertificate
from assay.optim.spectral import hard_spectral_clip, soft_spectral_clip


def parameter(shape, seed=0, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    p = torch.nn.Parameter(torch.tensor(rng.normal(size=shape), dtype=dtype))
    p.grad = torch.tensor(rng.normal(size=shape), dtype=dtype)
    return p


def renew_gradients(parameters, step):
    for i, p in enumerate(parameters):
        p.grad = parameter(tuple(p.shape), seed=1000 * step + i, dtype=p.dtype).grad


class TestTracker:
    @pytest.mark.parametrize(
        "make",
        [
            lambda ps: Spectra(torch.optim.AdamW(ps, lr=0.3, weight_decay=0.1), clip=0.8),
            lambda ps: SpectraAdamW(ps, lr=0.3, clip=0.8),
            lambda ps: SpectraSignum(ps, lr=0.3, clip=0.8, method="hard"),
            lambda ps: SpectraSignum(ps, lr=0.3, clip=0.8, method="normalize", scope="all"),
        ],
    )
    def test_the_table_is_what_numpy_finds(self, make):
        parameters = [parameter((6, 4)), parameter((4, 6), 1), parameter((2, 3, 2), 2), parameter((5,), 3)]
        optimizer = make(parameters)
        tracker = SpectraCertificate(optimizer, every=3)
        covered = parameters if optimizer.settings_of(0)["scope"] == "all" else parameters[:3]

        def matrices():
            return [p.detach().double().numpy().reshape(p.shape[0], -1) for p in covered]

        rows, bounds = [], [np.linalg.norm(w, 2) for w in matrices()]
        scales = [math.sqrt(max(1, w.shape[0] / w.shape[1])) if p.ndim > 1 else 1.0
                  for w, p in zip(matrices(), covered, strict=True)]  # fmt: skip
        for step in range(7):
            renew_gradients(parameters, step)
            before = matrices()
            optimizer.step()
            after = matrices()
            bounds = [(1 - 0.03) * b + s * 0.3 * 0.8 for b, s in zip(bounds, scales, strict=True)]
            if step % 3 == 0:
                updates = [np.linalg.norm(a - 0.97 * b, 2) for a, b in zip(after, before, strict=True)]
                norms = [np.linalg.norm(a, 2) for a in after]
                rows.append((norms, list(bounds), updates, math.sqrt(sum(np.linalg.norm(a) ** 2 for a in after))))
        report = tracker.result()
        np.testing.assert_allclose(report.norms, [r[0] for r in rows], rtol=1e-9)
        np.testing.assert_allclose(report.bounds, [r[1] for r in rows], rtol=1e-9)
        np.testing.assert_allclose(report.update_norms, [r[2] for r in rows], rtol=1e-9)
        np.testing.assert_allclose(report.update_caps, [[s * 0.24 for s in scales]] * 3, rtol=1e-9)
        np.testing.assert_allclose(report.frobenius, [r[3] for r in rows], rtol=1e-9)
        assert report.max_update_norm == pytest.approx(max(map(max, (r[2] for r in rows))))
        assert report.history["step"].tolist() == [0, 3, 6]
        assert report.holds
        assert report.certified
        assert (report.norms <= report.bounds * (1 + 1e-4)).all()
        assert (report.update_norms <= report.update_caps * (1 + 1e-4)).all()
        assert optimizer.certificates()[:2] == tracker.certificates() == report.certificates

    def test_the_free_bound_is_above_the_exact_one(self):
        p = parameter((6, 4))
        optimizer = SpectraAdamW([p], lr=0.3, clip=0.8)
        tracker = SpectraCertificate(optimizer, every=1)
        for step in range(5):
            renew_gradients([p], step)
            optimizer.step()
            exact = tracker.result().bounds[-1, 0]
            assert exact <= optimizer.norm_bound(p) <= exact + float(torch.linalg.matrix_norm(p.detach())) + 10

    def test_the_bound_tends_to_the_radius_of_the_ball(self):
        p = parameter((4, 4), dtype=torch.float64)
        optimizer = SpectraSignum([p], lr=0.5, weight_decay=0.2, clip=0.7)
        for _ in range(200):
            optimizer.step()
        assert optimizer.norm_bound(p) == pytest.approx(0.7 / 0.2, rel=1e-6)
        assert float(torch.linalg.matrix_norm(p.detach(), 2)) <= 0.7 / 0.2

    def test_the_part_of_clipped_updates(self):
        small, large = parameter((3, 3)), parameter((3, 3), 1)
        optimizer = Spectra(torch.optim.SGD([small, large], lr=0.1), clip=1.0)
        tracker = SpectraCertificate(optimizer)
        small.grad = 0.99 * torch.eye(3)
        large.grad = 1.01 * torch.eye(3)
        optimizer.step()
        assert tracker.result().clipped_fraction == 0.5

    def test_an_optimizer_that_does_not_clip_is_caught(self, monkeypatch):
        monkeypatch.setattr("assay.optim.spectra_rule.spectral_kernels.soft_clip", lambda x, *_: x)
        p = parameter((6, 4))
        optimizer = SpectraAdamW([p], lr=0.3, clip=0.1)
        tracker = SpectraCertificate(optimizer)
        for _ in range(60):
            p.grad = torch.ones(6, 4)
            optimizer.step()
        updates, _ = tracker.certificates()
        assert not updates.holds
        assert updates.value == pytest.approx(math.sqrt(24) / 0.1, rel=1e-3)
        assert not tracker.result().holds
        assert not optimizer.certificates()[-1].holds

    def test_weights_changed_by_others_are_caught(self):
        p = parameter((6, 4))
        optimizer = SpectraAdamW([p], lr=0.1, clip=0.1)
        optimizer.step()
        assert optimizer.certificates()[0].holds
        with torch.no_grad():
            p.mul_(100)
        assert not optimizer.certificates()[0].holds

    def test_what_does_not_step_is_nan(self):
        p, idle = parameter((3, 3)), parameter((3, 3), 1)
        idle.grad = None
        optimizer = SpectraAdamW([p, idle], lr=0.1, clip=1.0)
        tracker = SpectraCertificate(optimizer)
        optimizer.step()
        report = tracker.result()
        assert np.isnan(report.update_norms[0]).tolist() == [False, True]
        assert report.bounds[0, 1] == pytest.approx(report.norms[0, 1])
        assert report.holds

    def test_parameters_that_join_later(self):
        first, second = parameter((3, 3)), parameter((4, 2), 1)
        optimizer = SpectraAdamW([first], lr=0.1, clip=1.0)
        tracker = SpectraCertificate(optimizer, every=1)
        optimizer.step()
        optimizer.add_param_group({"params": [second]})
        optimizer.step()
        report = tracker.result()
        assert report.names == ("0.0", "1.0")
        assert np.isnan(report.norms).tolist() == [[False, True], [False, False]]
        assert report.holds

    def test_a_nan_is_never_certified(self):
        p = parameter((3, 3))
        optimizer = SpectraAdamW([p], lr=0.1, clip=1.0)
        tracker = SpectraCertificate(optimizer)
        p.grad[0, 0] = math.nan
        optimizer.step()
        report = tracker.result()
        assert not report.holds
        assert all(math.isnan(c.value) for c in report.certificates)
        json.dumps(report.to_dict(), allow_nan=False)

    def test_before_the_first_step_and_after_closing(self):
        p = parameter((3, 3))
        optimizer = SpectraAdamW([p], lr=0.1, clip=1.0)
        tracker = SpectraCertificate(optimizer, every=1)
        empty = tracker.result()
        assert not empty.holds
        assert empty.norms.shape == (0, 0)
        assert math.isnan(empty.max_update_norm)
        assert optimizer.certificates() == ()
        optimizer.step()
        tracker.close()
        optimizer.step()
        assert len(tracker.result().norms) == 1
        assert len(optimizer.certificates()) == 1

    @pytest.mark.parametrize(
        "make",
        [
            lambda ps: Spectra(torch.optim.AdamW(ps, lr=0.1), clip=0.1),
            lambda ps: SpectraAdamW(ps, lr=0.1, clip=0.1),
            lambda ps: SpectraSignum(ps, lr=0.1, clip=0.1),
        ],
    )
    def test_a_bound_ends_where_the_clip_is_off(self, make):
        p = parameter((4, 4))
        optimizer = make([p])
        tracker = SpectraCertificate(optimizer, every=1)
        optimizer.step()
        optimizer.param_groups[0]["clip"] = None
        p.grad = torch.ones(4, 4)
        for _ in range(100):  # the weights leave the old bound far behind
            optimizer.step()
        assert optimizer.norm_bound(p) is None
        optimizer.param_groups[0]["clip"] = 0.1
        before = float(torch.linalg.matrix_norm(p.detach(), 2))
        optimizer.step()
        assert all(c.holds for c in optimizer.certificates())
        assert tracker.result().bounds[-1, 0] == pytest.approx(before, rel=0.01)
        p.detach().mul_(2)
        assert not optimizer.certificates()[-1].holds

    def test_two_trackers(self):
        p = parameter((3, 3))
        optimizer = SpectraAdamW([p], lr=0.1, clip=1.0)
        first, second = SpectraCertificate(optimizer), SpectraCertificate(optimizer)
        optimizer.step()
        first.close()  # the other one stays attached
        assert optimizer.certificates()[:2] == second.certificates()
        second.close()
        assert len(optimizer.certificates()) == 1

    @pytest.mark.parametrize("kind", ["wrapper", "adamw"])
    def test_the_bound_follows_every_learning_rate_and_decay(self, kind):
        p = parameter((5, 3))
        if kind == "wrapper":
            optimizer = Spectra(torch.optim.AdamW([p], lr=0.1), clip=0.7)
        else:
            optimizer = SpectraAdamW([p], lr=0.1, clip=0.7)
        tracker = SpectraCertificate(optimizer, every=1)
        bound, free = float(torch.linalg.svdvals(p.detach())[0]), float(torch.linalg.vector_norm(p.detach()))
        for k, (lr, decay) in enumerate([(0.0, 0.1), (0.5, 0.0), (1e-3, 0.3), (0.9, 2.5), (0.1, 0.1)]):
            optimizer.param_groups[0].update(lr=lr, weight_decay=decay)
            renew_gradients([p], k)
            optimizer.step()
            bound, free = (abs(1 - lr * decay) * b + math.sqrt(5 / 3) * lr * 0.7 for b in (bound, free))
        assert tracker.result().bounds[-1, 0] == pytest.approx(bound, rel=1e-6)
        assert optimizer.norm_bound(p) == pytest.approx(free, rel=1e-4)
        assert tracker.result().holds

    def test_bad_input(self):
        p = parameter((3, 3))
        with pytest.raises((TypeError, ValueError), match=r"optimizer"):
            SpectraCertificate(torch.optim.AdamW([p]))
        with pytest.raises(ValueError, match=r"every must be at least 1"):
            SpectraCertificate(SpectraAdamW([p]), every=0)

    def test_the_report_is_json(self):
        p = parameter((3, 3))
        optimizer = SpectraAdamW([p], lr=0.1, clip=1.0)
        tracker = SpectraCertificate(optimizer)
        optimizer.step()
        content = tracker.result().to_dict()
        assert json.loads(json.dumps(content, allow_nan=False))["holds"] is True
        assert "certificates: 2 of 2 hold" in repr(tracker.result())


def objective(x, a, b, kind, decay, alpha, radius):
    """The composite objective, by its definition."""
    values = np.linalg.svd(x, compute_uv=False)
    if kind == "hard":
        regularizer = decay / (2 * alpha) * np.sum(values**2)
    else:
        regularizer = decay / alpha * radius**2 * np.sum(1 - np.sqrt(np.maximum(0, 1 - (values / radius) ** 2)))
    return 0.5 * np.linalg.norm(a @ x - b) ** 2 / len(a) + regularizer


class TestFrankWolfe:
    decay, alpha, radius = 0.1, 1.0, 1.0

    def problem(self):
        rng = np.random.default_rng(0)
        return rng.normal(size=(30, 12)), rng.normal(size=(30, 8))

    def test_the_vertex_of_a_scalar(self):
        # b = decay / alpha = 0.5, D = 1.2: V(0.7) = -0.9111079228, V(-3) = 1.1766968108
        for momentum, vertex in ((0.7, -0.9111079228), (-3.0, 1.1766968108)):
            clipped = soft_spectral_clip(torch.tensor([[momentum]], dtype=torch.float64), 0.6)
            assert -2 * float(clipped) == pytest.approx(vertex, abs=1e-10)
            x = 0.3
            values = [-vertex * momentum, 0.5 * 1.44 * (math.sqrt(1 - vertex**2 / 1.44) - math.sqrt(1 - x**2 / 1.44))]
            gap = composite_fw_gap([[x]], [[momentum]], decay=0.5, alpha=1.0, clip=0.6, kind="soft")
            assert gap == pytest.approx(momentum * x + sum(values), abs=1e-9)

    @pytest.mark.parametrize("kind", ["soft", "hard"])
    def test_the_vertex_minimizes_over_the_ball(self, kind):
        rng = np.random.default_rng(1)
        gradient = rng.normal(size=(5, 4))
        x = np.zeros((5, 4))
        clip = self.decay * self.radius / self.alpha
        gap = composite_fw_gap(x, gradient, decay=self.decay, alpha=self.alpha, clip=clip, kind=kind)
        none = np.zeros((1, 5)), np.zeros((1, 4))
        for _ in range(500):
            other = rng.normal(size=(5, 4)) * rng.exponential()
            other = hard_spectral_clip(torch.tensor(other), self.radius).numpy()
            linear = np.sum(gradient * other) + objective(other, *none, kind, self.decay, self.alpha, self.radius)
            assert -gap <= linear + 1e-12  # -gap is the value at the minimizer, as x = 0 contributes nothing

    @pytest.mark.parametrize("kind, minimum, at_100", [("hard", 2.59255, 3.0e-5), ("soft", 2.63526, 3.5e-9)])
    def test_a_run_on_least_squares(self, kind, minimum, at_100):
        a, b = self.problem()
        clip_function = hard_spectral_clip if kind == "hard" else soft_spectral_clip
        clip = self.decay * self.radius / self.alpha
        x, errors = np.zeros((12, 8)), {}
        lipschitz = np.linalg.eigvalsh(a.T @ a / 30)[-1]
        for k in range(101):
            gradient = a.T @ (a @ x - b) / 30
            value = objective(x, a, b, kind, self.decay, self.alpha, self.radius)
            gap = composite_fw_gap(x, gradient, decay=self.decay, alpha=self.alpha, clip=clip, kind=kind)
            errors[k] = value - minimum
            assert gap >= value - minimum - 6e-6  # the minimum is known to 5 digits
            assert k == 0 or value - minimum <= 2 * lipschitz * 4 * self.radius**2 * 8 / (k + 2)
            vertex = -self.alpha / self.decay * clip_function(torch.tensor(gradient), clip).numpy()
            x = x + 2 / (k + 2) * (vertex - x)
        assert errors[10] == pytest.approx({"hard": 5.3e-2, "soft": 3.2e-2}[kind], rel=0.03)
        assert abs(errors[100]) < at_100 + 6e-6
        assert 0 <= gap < 1e-2

    def test_the_gap_vanishes_at_a_stationary_point(self):
        # for one by one the stationarity condition of the soft regularizer can be solved for the gradient
        x, decay, alpha, clip = 0.4, 0.1, 1.0, 0.1
        gradient = -(decay / alpha) * x / math.sqrt(1 - x**2)
        assert composite_fw_gap([[x]], [[gradient]], decay=decay, alpha=alpha, clip=clip) == pytest.approx(0, abs=1e-12)
        assert composite_fw_gap(
            [[x]], [[-decay * x]], decay=decay, alpha=alpha, clip=clip, kind="hard"
        ) == pytest.approx(0, abs=1e-12)

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 2**32 - 1), st.sampled_from(["soft", "hard"]))
    def test_it_is_never_negative(self, seed, kind):
        rng = np.random.default_rng(seed)
        x = hard_spectral_clip(torch.tensor(rng.normal(size=(4, 3))), 1.0)
        gradient = rng.normal(size=(4, 3)) * 10 ** rng.uniform(-3, 3)
        assert composite_fw_gap(x, gradient, decay=0.1, alpha=1.0, clip=0.1, kind=kind) >= -1e-9

    def test_one_step_of_spectra_is_one_step_of_frank_wolfe(self):
        p = parameter((5, 4), dtype=torch.float64)
        start, gradient = p.detach().clone(), p.grad.clone()
        lr, decay, clip = 0.5, 0.2, 0.6
        Spectra(torch.optim.SGD([p], lr=lr), clip=clip, method="hard", rect_scale=False).step()
        vertex = -hard_spectral_clip(gradient, clip) / decay
        moved = (1 - lr * decay) * start + lr * decay * vertex
        torch.testing.assert_close(p.detach() - lr * decay * start, moved)

    def test_bad_input(self):
        options = {"decay": 0.1, "alpha": 1.0, "clip": 0.1}
        with pytest.raises(ValueError, match=r"^x must have a spectral norm of at most .* project it first"):
            composite_fw_gap([[1.1]], [[0.0]], **options)
        composite_fw_gap([[1.0 + 5e-10]], [[0.0]], **options)
        with pytest.raises(ValueError, match=r"^grad must have the shape of x"):
            composite_fw_gap([[0.1]], [[0.1, 0.2]], **options)
        with pytest.raises(ValueError, match=r"^grad must be a finite 2-D array"):
            composite_fw_gap([[0.1]], [[math.nan]], **options)
        with pytest.raises(ValueError, match=r"^x must be a finite 2-D array"):
            composite_fw_gap([0.1], [0.1], **options)
        with pytest.raises(TypeError, match=r"^x must be"):
            composite_fw_gap(np.array([[1j]]), [[0.1]], **options)
        for name in options:
            with pytest.raises(ValueError, match=f"^{name} must be greater than 0"):
                composite_fw_gap([[0.0]], [[0.1]], **{**options, name: 0.0})
        with pytest.raises((ValueError, TypeError), match=r"kind"):
            composite_fw_gap([[0.0]], [[0.1]], **options, kind="medium")
        with pytest.raises(ValueError, match=r"^alpha \* clip / decay must"):
            composite_fw_gap([[0.0]], [[0.1]], decay=1e-200, alpha=1.0, clip=1e200)
        with pytest.raises(TypeError, match=r"^grad must have data"):
            composite_fw_gap([[0.0]], torch.zeros(1, 1, device="meta"), **options)

    @pytest.mark.parametrize("kind", ["soft", "hard"])
    @pytest.mark.parametrize("scale", [1e-300, 1e-8, 1e8, 1e300])
    def test_a_change_of_units(self, kind, scale):
        rng = np.random.default_rng(0)
        gradient = rng.normal(size=(4, 3))
        x = 0.5 * gradient / np.linalg.norm(gradient, 2)
        gap = composite_fw_gap(x, gradient, decay=0.1, alpha=1.0, clip=0.1, kind=kind)
        of_the_loss = composite_fw_gap(x, scale * gradient, decay=0.1 * scale, alpha=1.0, clip=0.1 * scale, kind=kind)
        of_the_weights = composite_fw_gap(scale * x, gradient, decay=0.1, alpha=scale, clip=0.1, kind=kind)
        assert of_the_loss / scale == pytest.approx(gap, rel=1e-12)
        assert of_the_weights / scale == pytest.approx(gap, rel=1e-12)

    def test_every_kind_of_array(self):
        x, gradient = np.array([[1.0, 0.0], [0.0, 0.5]]), np.array([[-2.0, 1.0], [0.0, 1.0]])
        read_only = x.copy()
        read_only.setflags(write=False)
        options = {"decay": 0.1, "alpha": 1.0, "clip": 0.2}
        expected = composite_fw_gap(x, gradient, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for same in (
                *(x.tolist(), read_only, x.astype(">f8"), x.astype(np.longdouble), x.astype(np.float16)),
                *(np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x[::-1][::-1], torch.tensor(x).float()),
            ):
                assert composite_fw_gap(same, gradient, **options) == expected
        with pytest.raises(ValueError, match=r"^x must .* masked"):
            composite_fw_gap(np.ma.masked_less(x, 0.7), gradient, **options)


def spikes(rank, size, n_samples=60, shape=(64, 48), seed=0):
    rng = np.random.default_rng(seed)
    gradient = rng.normal(size=shape)
    gradient /= np.linalg.norm(gradient, 2)
    left = np.linalg.qr(rng.normal(size=(n_samples, shape[0], rank)))[0]
    right = np.linalg.qr(rng.normal(size=(n_samples, shape[1], rank)))[0]
    return gradient, gradient + size * left @ right.swapaxes(1, 2)


class TestSpikes:
    @pytest.mark.parametrize("rank, size, kept", [(1, 20.0, 0.965), (1, 100.0, 0.964), (2, 20.0, 0.931)])
    def test_known_values(self, rank, size, kept):
        gradient, samples = spikes(rank, size)
        report = spike_report(gradient, samples, 1.0)
        assert report.signal_kept == pytest.approx(kept, abs=0.01)
        assert report.rank == rank
        assert report.spike == pytest.approx(size)
        energy = np.linalg.norm(gradient) ** 2
        assert report.bound == pytest.approx(rank * 1.0 + energy)
        assert report.second_moment <= report.bound
        assert all(c.holds for c in report.certificates)
        soft = spike_report(gradient, samples, 1.0, kind="soft")
        assert soft.signal_kept >= 0.7
        fixed = spike_report(gradient, samples, 1.0, max_norm=float(np.linalg.norm(gradient)))
        assert fixed.global_signal_kept == pytest.approx(
            {20.0: 0.194, 100.0: 0.038}[size] if rank == 1 else 0.132, abs=0.02
        )

    def test_against_a_direct_computation(self):
        gradient, samples = spikes(2, 5.0, n_samples=20, shape=(7, 9))
        report = spike_report(gradient, samples, 0.8)
        clipped = []
        for sample in samples:
            left, values, right = np.linalg.svd(sample, full_matrices=False)
            clipped.append((left * np.minimum(values, 0.8)) @ right)
        energy = np.sum(gradient**2)
        assert report.signal_kept == pytest.approx(np.mean([np.sum(gradient * c) for c in clipped]) / energy)
        assert report.second_moment == pytest.approx(np.mean([np.sum(c**2) for c in clipped]))
        # the radius gives the same mean output norm
        raw = np.array([np.linalg.norm(s) for s in samples])
        assert np.minimum(raw, report.max_norm).mean() == pytest.approx(np.mean([np.linalg.norm(c) for c in clipped]))
        shrunk = [s * min(1, report.max_norm / r) for s, r in zip(samples, raw, strict=True)]
        assert report.global_signal_kept == pytest.approx(np.mean([np.sum(gradient * s) for s in shrunk]) / energy)

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 2**32 - 1), st.floats(0.01, 10))
    def test_a_threshold_above_everything_keeps_everything(self, seed, size):
        gradient, samples = spikes(2, size, n_samples=7, shape=(5, 4), seed=seed)
        report = spike_report(gradient, samples, 100.0)
        assert report.signal_kept == pytest.approx(report.global_signal_kept)
        assert report.max_norm == pytest.approx(max(np.linalg.norm(s) for s in samples))
        assert report.second_moment <= report.bound * (1 + 1e-9)

    def test_the_assumptions_are_checked(self):
        gradient, samples = spikes(1, 20.0, n_samples=800)
        report = spike_report(gradient, samples, 1.0)
        assert report.anisotropy == pytest.approx(1, abs=0.2)  # the directions are uniform
        assert [a.satisfied for a in report.certificates[0].assumptions] == [True, True, None]
        few = spike_report(gradient, samples[:100], 1.0).certificates[0]
        assert [a.satisfied for a in few.assumptions] == [True, None, None]
        single = spike_report(gradient, samples[:1], 1.0)
        assert math.isnan(single.anisotropy)
        assert single.certificates[0].assumptions[1].satisfied is None
        low = spike_report(gradient, samples, 0.5).certificates[0]
        assert [a.satisfied for a in low.assumptions] == [False, True, None]
        same_direction = gradient + np.sign(np.arange(300) % 2 - 0.5)[:, None, None] * (samples[0] - gradient)
        concentrated = spike_report(gradient, same_direction, 1.0)
        assert concentrated.anisotropy == pytest.approx(64)
        assert [a.satisfied for a in concentrated.certificates[0].assumptions] == [True, False, None]

    def test_without_noise_everything_is_kept(self):
        gradient, _ = spikes(1, 1.0, n_samples=1)
        report = spike_report(gradient, np.stack([gradient] * 3), 1.0)
        assert report.signal_kept == pytest.approx(1)
        assert report.global_signal_kept == pytest.approx(1)
        assert (report.rank, report.spike, report.anisotropy) == (0, 0.0, 1.0)
        assert report.certified

    def test_tensors_are_accepted_and_not_changed(self):
        gradient, samples = (torch.tensor(a, dtype=torch.float32) for a in spikes(1, 20.0, n_samples=5))
        before = samples.clone()
        report = spike_report(gradient, samples, 1.0)
        assert report.signal_kept > 0.9
        assert report.rank == 1  # and not the rank of the rounding to float32
        assert torch.equal(samples, before)

    def test_bad_input(self):
        gradient, samples = spikes(1, 20.0, n_samples=2)
        with pytest.raises(ValueError, match=r"^c must"):
            spike_report(gradient, samples, 0.0)
        with pytest.raises(ValueError, match=r"^grad_samples must have shape"):
            spike_report(gradient, samples[:, :5], 1.0)
        with pytest.raises(ValueError, match=r"^grad_samples must be a finite 3-D"):
            spike_report(gradient, samples[0], 1.0)
        with pytest.raises(ValueError, match=r"^grad_samples must be a finite 3-D array and not empty"):
            spike_report(gradient, samples[:0], 1.0)
        with pytest.raises(ValueError, match=r"^grad_full must not be zero"):
            spike_report(0 * gradient, samples, 1.0)
        with pytest.raises(ValueError, match=r"^max_norm must"):
            spike_report(gradient, samples, 1.0, max_norm=-1.0)

    @pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
    def test_a_change_of_units(self, scale):
        gradient, samples = spikes(1, 20.0, n_samples=10)
        plain, scaled = spike_report(gradient, samples, 1.0), spike_report(gradient * scale, samples * scale, scale)
        assert scaled.signal_kept == pytest.approx(plain.signal_kept, rel=1e-9)
        assert scaled.global_signal_kept == pytest.approx(plain.global_signal_kept, rel=1e-9)
        assert scaled.spike / scale == pytest.approx(plain.spike)
        assert scaled.max_norm / scale == pytest.approx(plain.max_norm)
        assert (scaled.rank, [c.holds for c in scaled.certificates]) == (1, [True, True])
