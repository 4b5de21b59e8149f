"""Singular-value clips: known values, all kernels against the SVD, properties, bad input, gradients in place."""

import inspect
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.optim import spectral, spectral_kernels
from assay.optim.spectral import (
    clip_gradients_spectral_,
    hard_spectral_clip,
    soft_spectral_clip,
    spectral_normalize,
)

METHODS = ("auto", "newton_schulz", "eigh", "svd")
X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
SOFT = torch.tensor(
    [[-0.0666286844, 0.6257796916], [0.5422835170, 0.8804745981], [1.1511957183, 1.1351695046]], dtype=torch.float64
)
HARD = torch.tensor(
    [[-0.0717873681, 0.6423500135], [0.5530976509, 0.9004701494], [1.1779826700, 1.1585902852]], dtype=torch.float64
)


def with_singular_values(values, rows, columns, seed=0, dtype=torch.float64):
    """A matrix with the given singular values and random singular vectors."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(rows, len(values))))[0]
    right = np.linalg.qr(rng.normal(size=(columns, len(values))))[0]
    return torch.tensor((left * np.asarray(values)) @ right.T, dtype=dtype)


def by_numpy(x, transfer):
    """The same function of the singular values, by another library."""
    left, values, right = np.linalg.svd(x.double().numpy(), full_matrices=False)
    return torch.tensor((left * transfer(values)) @ right)


def relative_error(x, reference):
    difference = torch.linalg.matrix_norm(x.double() - reference.double(), 2)
    return float(difference / torch.linalg.matrix_norm(reference.double(), 2))


class TestKnownValues:
    @pytest.mark.parametrize("method", METHODS)
    def test_soft_clip_of_a_3_by_2_matrix(self, method):
        clipped = soft_spectral_clip(X, 2.0, method=method)
        torch.testing.assert_close(clipped, SOFT, rtol=0, atol=6e-11)
        values = torch.linalg.svdvals(clipped)
        expected = torch.tensor([1.9573218206, 0.4980955846], dtype=torch.float64)
        torch.testing.assert_close(values, expected, rtol=0, atol=6e-11)

    @pytest.mark.parametrize("method", ["auto", "eigh", "svd"])
    def test_hard_clip_of_a_3_by_2_matrix(self, method):
        torch.testing.assert_close(hard_spectral_clip(X, 2.0, method=method), HARD, rtol=0, atol=6e-11)

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("ratio, norm", [(0.5, 0.4472), (1, 0.7071), (5, 0.9806), (20, 0.9988)])
    def test_spectral_norm_after_the_soft_clip(self, method, ratio, norm):
        x = with_singular_values([3.0 * ratio, 0.1], 5, 7)
        assert float(torch.linalg.matrix_norm(soft_spectral_clip(x, 3.0, method=method), 2)) / 3 == pytest.approx(
            norm, abs=5e-5
        )

    @pytest.mark.parametrize("method", METHODS)
    def test_a_huge_threshold_changes_nothing(self, method):
        torch.testing.assert_close(soft_spectral_clip(X, 1e6, method=method), X, rtol=0, atol=1e-9)

    def test_an_infinite_threshold_gives_a_copy(self):
        for clip in (soft_spectral_clip, hard_spectral_clip):
            clipped = clip(X, math.inf)
            assert torch.equal(clipped, X)
            assert clipped.data_ptr() != X.data_ptr()

    @pytest.mark.parametrize("method", METHODS)
    def test_normalization_is_the_polar_factor(self, method):
        polar = by_numpy(X, lambda s: np.full_like(s, 1.0))
        torch.testing.assert_close(spectral_normalize(X, method=method), polar, rtol=0, atol=1e-7)
        torch.testing.assert_close(spectral_normalize(X, 2.5, method=method), 2.5 * polar, rtol=0, atol=3e-7)


class TestKernelsAgainstTheSvd:
    @pytest.mark.parametrize("ratio", [0.1, 10, 100, 300, 1000])
    def test_accuracy_in_float32(self, ratio):
        x = with_singular_values(np.geomspace(ratio, ratio * 1e-4, 24), 24, 60, dtype=torch.float32)
        reference = by_numpy(x, lambda s: s / np.sqrt(1 + s**2))
        assert relative_error(soft_spectral_clip(x, 1.0), reference) < 2e-5
        assert relative_error(soft_spectral_clip(x, 1.0, method="eigh"), reference) < 2e-5
        assert relative_error(soft_spectral_clip(x, 1.0, method="newton_schulz"), reference) < 5e-6 + 3e-7 * ratio

    def test_ten_steps_do_not_reach_far(self):
        x = with_singular_values(np.geomspace(100, 0.01, 24), 24, 60, dtype=torch.float32)
        reference = by_numpy(x, lambda s: s / np.sqrt(1 + s**2))
        fixed = soft_spectral_clip(x, 1.0, method="newton_schulz", ns_steps=10)
        enough = soft_spectral_clip(x, 1.0, method="newton_schulz", ns_steps=spectral_kernels.newton_schulz_steps(1e4))
        assert relative_error(fixed, reference) > 0.2
        assert relative_error(enough, reference) < 1e-3

    @pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (6, 6), (4, 11), (11, 4)])
    @pytest.mark.parametrize("method", METHODS)
    def test_all_shapes(self, shape, method):
        x = torch.tensor(np.random.default_rng(1).normal(size=shape) * 3)
        reference = by_numpy(x, lambda s: s / np.sqrt(1 + s**2))
        torch.testing.assert_close(soft_spectral_clip(x, 1.0, method=method), reference, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("clip", [soft_spectral_clip, hard_spectral_clip, spectral_normalize])
    def test_a_batch_is_clipped_matrix_by_matrix(self, clip):
        x = torch.tensor(np.random.default_rng(2).normal(size=(2, 3, 5, 4))) * torch.tensor([1.0, 10, 100]).view(
            1, 3, 1, 1
        )
        together = clip(x, 1.5)
        for i in range(2):
            for j in range(3):
                torch.testing.assert_close(together[i, j], clip(x[i, j], 1.5), rtol=1e-9, atol=1e-12)

    def test_a_batch_of_different_ranges_by_newton_schulz(self):
        x = torch.stack([with_singular_values([r, 0.5, 1e-3], 6, 8, dtype=torch.float32) for r in (0.1, 30.0, 2000.0)])
        together = soft_spectral_clip(x, 1.0, method="newton_schulz")
        for one, clipped in zip(x, together, strict=True):
            reference = by_numpy(one, lambda s: s / np.sqrt(1 + s**2))
            assert relative_error(clipped, reference) < 2e-4

    @pytest.mark.parametrize("method", ["auto", "newton_schulz", "svd"])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, method, dtype):
        x = with_singular_values([30.0, 3.0, 0.1], 6, 8).to(dtype)
        clipped = soft_spectral_clip(x, 1.0, method=method)
        assert clipped.dtype == dtype
        reference = by_numpy(x, lambda s: s / np.sqrt(1 + s**2))
        assert relative_error(clipped, reference) < 2 * torch.finfo(dtype).eps

    def test_integers_are_cast_not_truncated(self):
        clipped = soft_spectral_clip(X.long(), 2.0)
        assert clipped.dtype == torch.get_default_dtype()
        torch.testing.assert_close(clipped.double(), SOFT, rtol=0, atol=1e-6)

    def test_a_transposed_view_is_as_good_as_its_copy(self):
        torch.testing.assert_close(soft_spectral_clip(X.mT, 2.0), SOFT.mT, rtol=0, atol=6e-11)

    @pytest.mark.parametrize("scale", [1e-8, 1e-30, 1e8, 1e12])
    @pytest.mark.parametrize("method", METHODS)
    def test_scale_and_threshold_together(self, scale, method):
        clipped = soft_spectral_clip((X * scale).float(), 2.0 * scale, method=method)
        torch.testing.assert_close(clipped.double() / scale, SOFT, rtol=0, atol=3e-6)

    @pytest.mark.parametrize("ratio", [1e6, 1e8])
    @pytest.mark.parametrize("method", METHODS)
    def test_a_spike_far_beyond_the_range_of_the_gram_matrix_is_still_capped(self, ratio, method):
        x = with_singular_values([ratio, 1.0, 1e-2], 6, 8, dtype=torch.float32)
        clipped = soft_spectral_clip(x, 1.0, method=method)
        assert float(torch.linalg.matrix_norm(clipped.double(), 2)) < 1 + 1e-5

    @pytest.mark.parametrize("dtype, scales", [("float32", (1e-34, 1e20, 1e37)), ("float64", (1e-300, 1e200, 1e300))])
    @pytest.mark.parametrize("c", [1e-300, 1e-40, 1e-20, 1.0, 1e20, 1e300])
    @pytest.mark.parametrize("method", METHODS)
    def test_numbers_whose_squares_overflow_or_vanish(self, dtype, scales, c, method):
        x = with_singular_values([3.0, 2.0, 1.5, 1.0], 4, 5)
        left, values, right = (t.numpy() for t in torch.linalg.svd(x, full_matrices=False))
        for scale in scales:
            given = (x * scale).to(getattr(torch, dtype))
            small, large = np.minimum(values * scale, c), np.maximum(values * scale, c)
            expected = {
                soft_spectral_clip: small / np.sqrt(1 + (small / large) ** 2),
                hard_spectral_clip: small,
                spectral_normalize: np.full(4, c),
            }
            for clip, after in expected.items():
                if not torch.finfo(given.dtype).tiny * 1e3 < after[0] < torch.finfo(given.dtype).max:
                    continue
                if clip is hard_spectral_clip and method == "newton_schulz":
                    continue
                clipped = clip(given, c, method=method).double() / after[0]
                reference = torch.tensor((left * (after / after[0])) @ right)
                torch.testing.assert_close(
                    clipped, reference, rtol=0, atol=1e-3 if clip is spectral_normalize else 2e-5
                )

    @pytest.mark.parametrize("steps", [1, 10, 40])
    def test_a_fixed_number_of_steps_never_overflows(self, steps):
        for scale, c in ((1e20, 1.0), (1e-20, 1e20), (1.0, 1e-30), (1e37, 1e37)):
            x = with_singular_values([3.0, 1.0], 4, 5, dtype=torch.float64).mul(scale).float()
            clipped = soft_spectral_clip(x, c, method="newton_schulz", ns_steps=steps)
            assert bool(torch.isfinite(clipped).all())
            assert float(torch.linalg.matrix_norm(clipped.double(), 2)) <= min(c, 3 * scale) * (1 + 1e-5)

    @pytest.mark.parametrize("ratio", [1e3, 1e4, 1e6, 1e8])
    @pytest.mark.parametrize("steps", [5, 10, 15, 18, 20, 25, 40, 100])
    def test_too_many_steps_do_not_diverge(self, ratio, steps):
        x = with_singular_values([ratio, *np.linspace(2, 0.01, 31)], 32, 48, dtype=torch.float32)
        clipped = soft_spectral_clip(x, 1.0, method="newton_schulz", ns_steps=steps)
        assert float(torch.linalg.matrix_norm(clipped.double(), 2)) < 1 + 1e-4

    def test_enough_steps_are_auto(self):
        x = with_singular_values([20.0, *np.linspace(2, 0.01, 31)], 32, 48, dtype=torch.float32)
        auto = soft_spectral_clip(x, 1.0, method="newton_schulz")
        assert torch.equal(soft_spectral_clip(x, 1.0, method="newton_schulz", ns_steps=14), auto)
        assert relative_error(soft_spectral_clip(x, 1.0, method="newton_schulz", ns_steps=8), auto) > 1e-4

    @pytest.mark.parametrize("method", METHODS)
    def test_gradients_flow_through(self, method):
        x = with_singular_values([3.0, 1.0, 0.2], 4, 3).requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.autograd.gradcheck(lambda x: soft_spectral_clip(x, 1.0, method=method), x)

    @pytest.mark.parametrize("method", METHODS)
    def test_degenerate_matrices(self, method):
        zero = torch.zeros(3, 4)
        assert torch.equal(soft_spectral_clip(zero, 1.0, method=method), zero)
        assert torch.equal(spectral_normalize(zero, method=method), zero)
        constant = torch.full((5, 4), 7.0)
        expected = constant / math.sqrt(1 + 49 * 20)
        torch.testing.assert_close(soft_spectral_clip(constant, 1.0, method=method), expected, rtol=1e-5, atol=1e-6)

    def test_hard_clip_of_degenerate_matrices(self):
        assert torch.equal(hard_spectral_clip(torch.zeros(3, 4), 1.0), torch.zeros(3, 4))
        constant = torch.full((5, 4), 7.0)
        clipped = hard_spectral_clip(constant, 1.0)
        torch.testing.assert_close(clipped, constant / (7 * math.sqrt(20)), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_normalizing_never_exceeds_the_threshold(self, method, dtype):
        x = with_singular_values(np.geomspace(1e3, 1e-12, 30), 30, 40, dtype=dtype)
        normalized = spectral_normalize(x, 2.0, method=method)
        assert float(torch.linalg.matrix_norm(normalized.double(), 2)) <= 2 * (1 + 1e-4)

    def test_normalizing_a_matrix_without_full_rank_keeps_its_rank(self):
        x = with_singular_values([5.0, 0.1], 6, 8)
        values = torch.linalg.svdvals(spectral_normalize(x))
        torch.testing.assert_close(values[:2], torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-9)
        assert float(values[2]) < 1e-6


finite_matrices = st.integers(0, 2**32 - 1).flatmap(
    lambda seed: st.tuples(st.just(seed), st.integers(1, 6), st.integers(1, 6), st.floats(-3, 3), st.floats(-2, 2))
)


class TestProperties:
    @settings(max_examples=60, deadline=None)
    @given(finite_matrices)
    def test_the_soft_clip_lies_between_its_bounds(self, drawn):
        seed, rows, columns, log_scale, log_threshold = drawn
        x = torch.tensor(np.random.default_rng(seed).normal(size=(rows, columns)) * 10**log_scale)
        c = 10**log_threshold
        before, after = torch.linalg.svdvals(x), torch.linalg.svdvals(soft_spectral_clip(x, c))
        capped = before.clamp(max=c)
        assert bool((after <= capped * (1 + 1e-9)).all())
        assert bool((after >= capped / math.sqrt(2) * (1 - 1e-9) - 1e-12 * float(before[0])).all())

    @settings(max_examples=40, deadline=None)
    @given(finite_matrices, st.floats(0.1, 5), st.floats(0.1, 5))
    def test_soft_clips_compose(self, drawn, first, second):
        seed, rows, columns, *_ = drawn
        x = torch.tensor(np.random.default_rng(seed).normal(size=(rows, columns)) * 4)
        twice = soft_spectral_clip(soft_spectral_clip(x, first), second)
        once = soft_spectral_clip(x, (first**-2 + second**-2) ** -0.5)
        torch.testing.assert_close(twice, once, rtol=1e-9, atol=1e-10)

    @settings(max_examples=40, deadline=None)
    @given(finite_matrices)
    def test_the_hard_clip_is_the_nearest_point_of_the_ball(self, drawn):
        seed, rows, columns, log_scale, log_threshold = drawn
        rng = np.random.default_rng(seed)
        x, c = torch.tensor(rng.normal(size=(rows, columns)) * 10**log_scale), 10**log_threshold
        projected = hard_spectral_clip(x, c)
        other = hard_spectral_clip(torch.tensor(rng.normal(size=(rows, columns))) * c, c)
        # the projection P of X onto a convex set has <X - P, Y - P> <= 0 for all Y in the set
        inner = float(((x - projected) * (other - projected)).sum())
        assert inner <= 1e-9 * (1 + float(x.norm()) * float(other.norm() + projected.norm()))

    def test_the_input_is_not_changed(self):
        x = X.clone()
        for method in METHODS:
            soft_spectral_clip(x, 0.1, method=method)
            spectral_normalize(x, method=method)
        hard_spectral_clip(x, 0.1)
        assert torch.equal(x, X)

    def test_the_vector_rule_is_continuous_only_when_smooth(self):
        below, above = torch.tensor([3.0, 4.0]) * (1 - 1e-6), torch.tensor([3.0, 4.0]) * (1 + 1e-6)
        jump = {
            rule: float((spectral.clip_vector(below, 5.0, rule) - spectral.clip_vector(above, 5.0, rule)).norm())
            for rule in ("smooth", "code")
        }
        assert jump["smooth"] < 1e-4
        assert jump["code"] == pytest.approx(5 * (1 - math.sqrt(0.5)), abs=1e-3)
        assert torch.equal(spectral.clip_vector(below, 5.0, "code"), below)
        as_column = soft_spectral_clip(above[:, None], 5.0)[:, 0]
        torch.testing.assert_close(spectral.clip_vector(above, 5.0, "smooth"), as_column)
        assert float(spectral.clip_vector(torch.tensor(3.0), 4.0, "smooth")) == pytest.approx(3 / 1.25)


class TestGradients:
    def parameters(self):
        matrix = torch.nn.Parameter(torch.zeros(4, 3))
        matrix.grad = with_singular_values([9.0, 0.5, 0.1], 4, 3, dtype=torch.float32)
        convolution = torch.nn.Parameter(torch.zeros(2, 3, 2, 2))
        convolution.grad = with_singular_values([0.3, 0.2], 2, 12, dtype=torch.float32).view(2, 3, 2, 2)
        bias = torch.nn.Parameter(torch.zeros(3))
        bias.grad = torch.full((3,), 100.0)
        return matrix, convolution, bias, torch.nn.Parameter(torch.zeros(2, 2))

    @pytest.mark.parametrize("method", METHODS)
    def test_matrices_are_clipped_and_counted(self, method):
        matrix, convolution, bias, without = self.parameters()
        expected = [soft_spectral_clip(g, 1.0) for g in (matrix.grad, convolution.grad.flatten(1))]
        assert clip_gradients_spectral_([matrix, convolution, bias, without], 1.0, method=method) == 1
        torch.testing.assert_close(matrix.grad, expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(convolution.grad.flatten(1), expected[1], rtol=1e-5, atol=1e-5)
        assert torch.equal(bias.grad, torch.full((3,), 100.0))
        assert without.grad is None

    def test_tied_weights_are_clipped_once(self):
        matrix, *_ = self.parameters()
        expected = soft_spectral_clip(matrix.grad, 1.0)
        assert clip_gradients_spectral_([matrix, matrix], 1.0) == 1
        torch.testing.assert_close(matrix.grad, expected)

    def test_a_single_tensor_and_a_generator_are_accepted(self):
        matrix, *rest = self.parameters()
        assert clip_gradients_spectral_(matrix, 1.0) == 1
        assert clip_gradients_spectral_((p for p in rest), 0.25) == 1
        assert clip_gradients_spectral_([], 1.0) == 0

    def test_a_nan_stops_before_anything_is_changed(self):
        matrix, convolution, *_ = self.parameters()
        convolution.grad[0, 0, 0, 0] = math.nan
        before = matrix.grad.clone()
        with pytest.raises(ValueError, match="finite gradients"):
            clip_gradients_spectral_([matrix, convolution], 1.0)
        assert torch.equal(matrix.grad, before)

    def test_sparse_gradients_are_refused(self):
        table = torch.nn.Parameter(torch.zeros(3, 2))
        table.grad = torch.eye(3, 2).to_sparse()
        with pytest.raises(TypeError, match="dense"):
            clip_gradients_spectral_([table], 1.0)


class TestBadInput:
    @pytest.mark.parametrize("c", [0.0, -1.0, math.nan])
    @pytest.mark.parametrize("clip", [soft_spectral_clip, hard_spectral_clip, spectral_normalize])
    def test_threshold(self, clip, c):
        with pytest.raises(ValueError, match=r"^c must"):
            clip(X, c)

    def test_threshold_of_gradients(self):
        with pytest.raises(ValueError, match=r"^c must"):
            clip_gradients_spectral_([], 0.0)

    @pytest.mark.parametrize("steps", [0, -3])
    def test_steps(self, steps):
        with pytest.raises(ValueError, match=r"^ns_steps must"):
            soft_spectral_clip(X, 1.0, ns_steps=steps)

    def test_vectors_are_pointed_to_the_vector_rule(self):
        with pytest.raises(ValueError, match="vector_rule"):
            soft_spectral_clip(torch.ones(3), 1.0)

    @pytest.mark.parametrize("clip", [soft_spectral_clip, hard_spectral_clip, spectral_normalize])
    def test_values(self, clip):
        for bad in (math.nan, math.inf):
            with pytest.raises(ValueError, match=r"^x must be finite"):
                clip(torch.tensor([[1.0, bad]]), 1.0)
        with pytest.raises(ValueError, match=r"^x must not be empty"):
            clip(torch.zeros(0, 3), 1.0)
        with pytest.raises(TypeError, match=r"^x must be real"):
            clip(X.to(torch.complex128), 1.0)
        with pytest.raises(TypeError, match=r"^x must be dense"):
            clip(X.to_sparse(), 1.0)
        with pytest.raises(TypeError, match=r"^x must have data"):
            clip(X.to("meta"), 1.0)

    def test_wrong_kinds_of_arguments(self):
        unchecked = inspect.unwrap(soft_spectral_clip)  # without the type check of the test run
        with pytest.raises(ValueError, match=r"^method must be one of 'auto', .*'svd', got 'qr'"):
            unchecked(X, 1.0, method="qr")
        with pytest.raises(ValueError, match=r"^ns_steps must"):
            unchecked(X, 1.0, ns_steps="many")
        with pytest.raises(TypeError, match=r"^ns_steps must"):
            unchecked(X, 1.0, ns_steps=2.5)
        with pytest.raises(TypeError, match=r"^c must"):
            unchecked(X, "one")
        with pytest.raises(TypeError, match=r"^x must be a torch.Tensor"):
            unchecked(X.numpy(), 1.0)
        for parameters in (None, [("weight", X)]):
            with pytest.raises(TypeError, match=r"^parameters must be tensors"):
                inspect.unwrap(clip_gradients_spectral_)(parameters, 1.0)
