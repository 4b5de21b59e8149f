"""The linear-core loss: its shape, its derivatives, its fast path, and that it stands in for CrossEntropyLoss."""

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.supervised.linear_core import (
    LinearCoreTail,
    linear_core,
    linear_core_conjugate,
    linear_core_slope,
    resolve_tail,
)
from assay.supervised.linear_core_loss import LabelRangeError, LabelTypeError, LinearCoreLoss

TAILS = ("exp", "quad", "gamma", "smoothstep")
tails = pytest.mark.parametrize("tail", TAILS)


def algebraic(z):
    return 1 / (1 + z), 1 / (1 + z) ** 2


def by_definition(t, tau, sigma, tail):
    """The table of the tails, one margin at a time."""
    value = {
        "exp": lambda z: math.exp(-z),
        "quad": lambda z: 0.5 * max(1 - z, 0) ** 2,
        "gamma": lambda z: (2 + z) * math.exp(-z),
        "smoothstep": lambda z: 0.5 - z + z**3 - z**4 / 2 if z <= 1 else 0.0,
    }[tail]
    return sigma * value(0) + tau - t if t <= tau else sigma * value((t - tau) / sigma)


def multiclass_by_definition(scores, label, tau, sigma, tail, scale):
    centred = [scale * (score - sum(scores) / len(scores)) for score in scores]
    return sum(by_definition(-h, tau, sigma, tail) for k, h in enumerate(centred) if k != label)


class TestMargin:
    @tails
    @pytest.mark.parametrize(("tau", "sigma"), [(0.7, 0.3), (2.0, 0.01), (0.05, 5.0)])
    def test_is_the_table(self, tail, tau, sigma):
        margins = np.concatenate([np.linspace(-5, 10, 301), [tau, tau + sigma]])
        expected = [by_definition(t, tau, sigma, tail) for t in margins]
        np.testing.assert_allclose(linear_core(margins, tau, sigma, tail), expected, rtol=1e-12, atol=1e-13)
        ours = linear_core(torch.tensor(margins), tau, sigma, tail)
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12, atol=1e-13)

    def test_default_is_one_at_zero(self):
        assert linear_core(0.0) == pytest.approx(1.0, abs=1e-15)

    @tails
    def test_slope_joins_without_a_jump(self, tail):
        for shift in (-1e-9, 0.0, 1e-9):
            margin = torch.tensor(0.7 + shift, dtype=torch.float64, requires_grad=True)
            linear_core(margin, tail=tail).backward()
            assert margin.grad.item() == pytest.approx(-1.0, abs=1e-7)
            assert linear_core_slope(0.7 + shift, tail=tail) == pytest.approx(-1.0, abs=1e-7)

    @tails
    def test_slope_is_the_derivative_and_curvature_its_bound(self, tail):
        margins = torch.linspace(-2, 4, 2001, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(linear_core(margins, tail=tail).sum(), margins, create_graph=True)
        np.testing.assert_allclose(slope.detach(), linear_core_slope(margins.detach(), tail=tail), atol=1e-15)
        np.testing.assert_allclose(slope.detach(), linear_core_slope(margins.detach().numpy(), tail=tail), atol=1e-15)
        (curvature,) = torch.autograd.grad(slope.sum(), margins)
        bound = resolve_tail(tail).curvature / 0.3
        assert curvature.min() >= 0
        assert curvature.max() <= bound * (1 + 1e-12)
        assert curvature.max() >= 0.99 * bound
        assert slope.min() >= -1
        assert slope.max() <= 0

    @pytest.mark.parametrize("tail", ["gamma", "smoothstep"])
    def test_twice_differentiable(self, tail):
        assert resolve_tail(tail).twice_differentiable
        points = torch.tensor([0.6, 0.75, 0.9, 1.4], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(lambda t: linear_core(t, tail=tail), points)

    @settings(max_examples=60, deadline=None)
    @given(
        tail=st.sampled_from(TAILS),
        tau=st.floats(0.01, 10),
        sigma=st.floats(1e-3, 10),
        margin=st.floats(-1e3, 1e3),
        slope=st.floats(0, 1),
    )
    def test_fenchel_young(self, tail, tau, sigma, margin, slope):
        loss, conjugate = linear_core(margin, tau, sigma, tail), linear_core_conjugate(slope, tau, sigma, tail)
        size = 1 + abs(margin) + tau + sigma
        assert loss + conjugate >= -slope * margin - 1e-12 * size
        steepness = -linear_core_slope(margin, tau, sigma, tail)
        at_slope = linear_core_conjugate(steepness, tau, sigma, tail)
        assert loss + at_slope == pytest.approx(-steepness * margin, abs=1e-9 * size)

    @pytest.mark.parametrize("slope", [0.0, 0.2, 0.5, 0.99, 1.0])
    def test_conjugate_known_forms(self, slope):
        log_term = slope * math.log(slope) if slope else 0.0
        assert linear_core_conjugate(slope) == pytest.approx(-0.7 * slope + 0.3 * (log_term - slope), abs=1e-14)
        quad = -0.7 * slope - 0.3 * slope + 0.15 * slope**2
        assert linear_core_conjugate(slope, tail="quad") == pytest.approx(quad, abs=1e-14)

    @tails
    def test_conjugate_is_the_supremum(self, tail):
        grid = np.linspace(-5, 20, 200_001)
        for slope in (0.01, 0.3, 0.8):
            supremum = np.max(-slope * grid - linear_core(grid, tail=tail))
            assert linear_core_conjugate(slope, tail=tail) == pytest.approx(supremum, abs=1e-7)

    @tails
    def test_becomes_the_hinge(self, tail):
        margins = np.linspace(-3, 3, 50)
        np.testing.assert_allclose(linear_core(margins, 0.7, 1e-9, tail), np.maximum(0.7 - margins, 0), atol=3e-9)

    @tails
    def test_extremes(self, tail):
        margins = [-1e300, -1e8, -1e-8, 1e-8, 1e8, 1e300, math.inf, -math.inf]
        values = linear_core(margins, tail=tail)
        centre = linear_core(0.0, tail=tail)
        np.testing.assert_allclose(values, [1e300, 1e8, centre, centre, 0, 0, 0, math.inf], rtol=2e-8, atol=1e-300)
        tensor = torch.tensor(margins, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(linear_core(tensor, tail=tail).sum(), tensor)
        assert slope.tolist() == [-1, -1, -1, -1, 0, 0, 0, -1]

    def test_dtypes(self):
        assert linear_core(np.array([1, 2])).dtype == np.float64
        assert linear_core([0, 1])[0] == pytest.approx(1.0)
        assert linear_core(np.float32([0.5])).dtype == np.float32
        assert linear_core(torch.tensor([0, 1])).tolist() == pytest.approx([1.0, linear_core(1.0)])
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            assert linear_core(torch.tensor([0.25], dtype=dtype)).dtype == dtype
        assert linear_core(torch.tensor([0.25], dtype=torch.float16)).item() == pytest.approx(0.75, abs=1e-3)

    def test_argument_is_not_modified(self):
        margins = np.linspace(-1, 2, 7)
        kept = margins.copy()
        linear_core(margins)
        linear_core_slope(margins)
        np.testing.assert_array_equal(margins, kept)

    @pytest.mark.parametrize(
        ("arguments", "error", "name"),
        [
            ({"tau": 0.0}, ValueError, "tau"),
            ({"tau": -1.0}, ValueError, "tau"),
            ({"sigma": 0.0}, ValueError, "sigma"),
            ({"sigma": math.nan}, ValueError, "sigma"),
            ({"sigma": "wide"}, TypeError, "sigma"),
            ({"tail": "cosine"}, ValueError, "tail"),
            ({"tail": None}, TypeError, "tail"),
            ({"margin": [math.nan]}, ValueError, "margin"),
            ({"margin": ["a"]}, TypeError, "margin"),
            ({"margin": [1j]}, TypeError, "margin"),
        ],
    )
    def test_bad_input(self, arguments, error, name):
        for function in (linear_core, linear_core_slope):
            with pytest.raises(error, match=name):
                function(**{"margin": [0.0], **arguments})

    def test_nan_in_a_tensor_goes_through(self):
        assert math.isnan(linear_core(torch.tensor(math.nan)))

    def test_own_tail(self):
        tail = LinearCoreTail("algebraic", algebraic, curvature=2.0)
        assert linear_core(1.0, tail=tail) == pytest.approx(0.15)
        assert linear_core_conjugate(0.25, tail=tail) == pytest.approx(-0.25 * 0.7 - 0.3 * (0.25 * 1 + 0.5), abs=1e-9)
        with pytest.raises(ValueError, match="slope -1 at z = 0"):
            LinearCoreTail("steep", lambda z: (np.exp(-2 * z), 2 * np.exp(-2 * z)), curvature=4.0)
        with pytest.raises(ValueError, match="0 at reach"):
            LinearCoreTail("short", lambda z: (np.exp(-z), np.exp(-z)), curvature=1.0, reach=1.0)
        with pytest.raises(ValueError, match="derivative"):
            LinearCoreTail("other slope", lambda z: (np.exp(-z), (1 + z) * np.exp(-z)), curvature=1.0, reach=1000.0)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"curvature": 1e-3}, "a curvature of at least the rise of its slope"),
            ({"curvature": 1.9}, "a curvature of at least the rise of its slope"),
            ({"twice_differentiable": True}, "a second derivative of 0 at z = 0"),
            ({"invert_slope": lambda slope: 1.0 - slope}, "an invert_slope that inverts its slope"),
            ({"invert_slope": lambda slope: 1.0 / np.sqrt(slope + 1e-30) - 1.0 + 1e-6}, "an invert_slope"),
            ({"evaluate": lambda z: 1 / (1 + z)}, "evaluate must return a pair"),
            ({"evaluate": lambda z: (1.0, 1.0)}, "evaluate must return a pair"),
        ],
    )
    def test_a_tail_that_does_not_keep_its_word(self, settings, message):
        # A wrong inverse would make dual bounds too high, a wrong curvature steps too long.
        settings = {"name": "own", "evaluate": algebraic, "curvature": 2.0} | settings
        with pytest.raises(ValueError, match=message):
            LinearCoreTail(**settings)

    @pytest.mark.parametrize(
        ("settings", "name"),
        [
            ({"name": 3}, "name"),
            ({"evaluate": None}, "evaluate"),
            ({"invert_slope": 0.5}, "invert_slope"),
            ({"twice_differentiable": 1}, "twice_differentiable"),
            ({"curvature": "2"}, "curvature"),
        ],
    )
    def test_a_tail_of_wrong_types(self, settings, name):
        with pytest.raises(TypeError, match=name):
            LinearCoreTail(**{"name": "own", "evaluate": algebraic, "curvature": 2.0} | settings)

    def test_own_inverse_is_used(self):
        def invert(slope):
            return np.minimum(1.0 / np.sqrt(np.maximum(slope, 1e-300)) - 1.0, 1e6)

        own = LinearCoreTail("own", algebraic, 2.0, invert_slope=invert)
        slope = np.linspace(1e-6, 1, 9)
        expected = linear_core_conjugate(slope, tail=LinearCoreTail("own", algebraic, 2.0))
        np.testing.assert_allclose(linear_core_conjugate(slope, tail=own), expected, rtol=1e-12)

    @pytest.mark.parametrize("slope", [1e-10, 1e-20, 1e-100, 1e-300])
    def test_conjugate_of_small_slopes_of_a_slow_tail(self, slope):
        # The supremum is at z = slope^(-1/2) - 1; a nearer point would make a dual bound that is none.
        own = LinearCoreTail("own", algebraic, 2.0)
        exact = -0.7 * slope - 0.3 * (2.0 * math.sqrt(slope) - slope)
        assert linear_core_conjugate(slope, tail=own) == pytest.approx(exact, rel=1e-12)

    @pytest.mark.parametrize("settings", [{"sigma": 1e-300}, {"sigma": 1e300}, {"tau": 1e-300}, {"tau": 1e300}])
    def test_settings_outside_the_range_of_a_tensor(self, settings):
        (name,) = settings
        margin = torch.tensor([0.5, 0.7])
        for function in (linear_core, linear_core_slope):
            with pytest.raises(ValueError, match=f"{name} must be between .* for scores in torch.float32"):
                function(margin, **settings)
            assert torch.isfinite(function(margin.double(), **settings)).all()

    def test_own_tail_is_pickled_and_built_in_ones_stay_themselves(self):
        tail = LinearCoreTail("algebraic", algebraic, curvature=2.0)
        assert pickle.loads(pickle.dumps(tail)) == tail
        for name in TAILS:
            assert copy.deepcopy(resolve_tail(name)) is resolve_tail(name)
            assert pickle.loads(pickle.dumps(resolve_tail(name))) is resolve_tail(name)


class TestMulticlass:
    @tails
    @pytest.mark.parametrize("scale", [1.0, 2.5])
    def test_is_the_definition(self, tail, scale):
        rng = np.random.default_rng(0)
        scores, labels = rng.normal(size=(12, 4)) * 2, rng.integers(0, 4, 12)
        expected = [
            multiclass_by_definition(row, label, 0.6, 0.4, tail, scale)
            for row, label in zip(scores, labels, strict=True)
        ]
        loss = LinearCoreLoss(0.6, 0.4, tail, reduction="none", score_scale=scale)
        ours = loss(torch.tensor(scores), torch.tensor(labels))
        np.testing.assert_allclose(ours, expected, rtol=1e-12)

    @tails
    def test_fast_path_agrees_with_the_plain_one(self, tail):
        # Class probabilities take the path in differentiable operations; certain ones are labels.
        torch.manual_seed(0)
        scores = (2 * torch.randn(30, 6, dtype=torch.float64)).requires_grad_()
        labels = torch.randint(0, 6, (30,))
        certain = torch.nn.functional.one_hot(labels, 6).double()
        loss = LinearCoreLoss(tail=tail, score_scale=1.3)
        direction = torch.randn_like(scores)
        derivatives = []
        for target in (labels, certain):
            value = loss(scores, target)
            (gradient,) = torch.autograd.grad(value, scores, retain_graph=True)
            (again,) = torch.autograd.grad(value, scores, create_graph=True)
            (second,) = torch.autograd.grad((again * direction).sum(), scores)
            derivatives.append([value.detach(), gradient, again.detach(), second])
        for fast, plain in zip(*derivatives, strict=True):
            torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-14)

    def test_blocks_of_rows_change_nothing(self, monkeypatch):
        torch.manual_seed(1)
        scores = torch.randn(50, 7, dtype=torch.float64, requires_grad=True)
        labels = torch.randint(0, 7, (50,))
        answers = []
        for entries in (1, 7 * 8, 1 << 18):
            monkeypatch.setattr("assay.supervised.linear_core_loss._BLOCK_ENTRIES", entries)
            value = LinearCoreLoss()(scores, labels)
            answers.append((value.detach(), *torch.autograd.grad(value, scores)))
        for other in answers[1:]:
            torch.testing.assert_close(other, answers[0], rtol=1e-13, atol=1e-15)

    @pytest.mark.parametrize("tail", ["gamma", "smoothstep"])
    @pytest.mark.parametrize("constrained", [True, False])
    def test_gradcheck(self, tail, constrained):
        torch.manual_seed(2)
        scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        labels = torch.tensor([0, 2, 1, -100])
        loss = LinearCoreLoss(tail=tail, constrained=constrained)
        assert torch.autograd.gradcheck(lambda s: loss(s, labels), scores)
        assert torch.autograd.gradgradcheck(lambda s: loss(s, labels), scores)

    def test_is_convex_and_flat_along_shifts(self):
        torch.manual_seed(3)
        a, b = torch.randn(2, 200, 5, dtype=torch.float64) * 2
        labels = torch.randint(0, 5, (200,))
        loss = LinearCoreLoss(reduction="none")
        middle = loss((a + b) / 2, labels)
        assert (middle <= (loss(a, labels) + loss(b, labels)) / 2 + 1e-12).all()
        torch.testing.assert_close(loss(a + 3.0, labels), loss(a, labels))

    def test_curvature_bounds_the_hessian(self):
        torch.manual_seed(4)
        for tail in TAILS:
            loss = LinearCoreLoss(tail=tail, score_scale=1.5)
            label = torch.tensor(1)
            largest = 0.0
            for _ in range(12):
                hessian = torch.func.hessian(loss)(torch.randn(4, dtype=torch.float64), label)
                largest = max(largest, torch.linalg.eigvalsh(hessian)[-1].item())
            assert 0.3 * loss.curvature <= largest <= loss.curvature * (1 + 1e-9)

    def test_two_classes_are_the_binary_loss_of_half_the_difference(self):
        torch.manual_seed(5)
        scores, labels = torch.randn(20, 2, dtype=torch.float64), torch.randint(0, 2, (20,))
        half = (scores[:, 1] - scores[:, 0]) / 2
        torch.testing.assert_close(LinearCoreLoss()(scores, labels), LinearCoreLoss(mode="binary")(half, labels))

    def test_pairs_are_the_definition(self):
        torch.manual_seed(6)
        scores, labels = torch.randn(9, 4, dtype=torch.float64), torch.randint(0, 4, (9,))
        expected = [
            sum(linear_core(float(1.5 * (row[label] - row[k]))) for k in range(4) if k != label)
            for row, label in zip(scores, labels, strict=True)
        ]
        loss = LinearCoreLoss(constrained=False, reduction="none", score_scale=1.5)
        np.testing.assert_allclose(loss(scores, labels), expected)
        assert loss.consistency_constant == math.inf

    def test_probabilities_are_the_expected_loss(self):
        torch.manual_seed(7)
        scores = torch.randn(6, 3, dtype=torch.float64)
        laws = torch.softmax(torch.randn(6, 3, dtype=torch.float64), 1)
        for weight in (None, torch.tensor([0.5, 1.0, 3.0])):
            loss = LinearCoreLoss(reduction="none", weight=weight)
            expected = sum(laws[:, k] * loss(scores, torch.full((6,), k)) for k in range(3))
            torch.testing.assert_close(loss(scores, laws), expected)
            mean = LinearCoreLoss(weight=weight)(scores, laws)
            torch.testing.assert_close(mean, expected.sum() / 6)

    def test_large_scores(self):
        scores = torch.tensor([[1e30, 0.0, -1e30], [1e8, -1e8, 0.0]], requires_grad=True)
        value = LinearCoreLoss(reduction="none")(scores, torch.tensor([0, 1]))
        np.testing.assert_allclose(value.detach(), [linear_core(0.0), 1e8 + 2], rtol=1e-6)
        value.sum().backward()
        assert torch.isfinite(scores.grad).all()


class TestStandsInForCrossEntropy:
    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (2, 5, 4), (2, 5, 4, 3), (0, 5)])
    def test_shapes_weights_and_ignored_labels(self, shape, weighted, reduction):
        torch.manual_seed(8)
        scores = torch.randn(shape, dtype=torch.float64)
        labels = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
        if labels.numel() > 2:
            labels.view(-1)[1] = -7
        weight = torch.tensor([0.2, 1.0, 0.0, 2.0, 0.5], dtype=torch.float64) if weighted else None
        settings = {"reduction": reduction, "weight": weight, "ignore_index": -7}
        ours = LinearCoreLoss(**settings)(scores, labels)
        theirs = torch.nn.CrossEntropyLoss(**settings)(scores, labels)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        # Reduce the unreduced losses as the documentation of CrossEntropyLoss says.
        flat = labels.reshape(-1)
        kept = flat != -7
        rows = scores.movedim(1, -1).reshape(-1, 5) if len(shape) > 1 else scores[None]
        factors = torch.where(kept, weight[flat * kept] if weighted else 1.0, 0.0).double()
        single = torch.zeros(len(rows), dtype=torch.float64)
        for i in torch.nonzero(kept)[:, 0]:
            single[i] = factors[i] * multiclass_by_definition(rows[i].tolist(), flat[i].item(), 0.7, 0.3, "exp", 1.0)
        expected = {"none": single.reshape(labels.shape), "sum": single.sum(), "mean": single.sum() / factors.sum()}
        torch.testing.assert_close(ours, expected[reduction], equal_nan=True)

    def test_all_ignored_and_empty(self):
        nothing = (torch.randn(3, 4), torch.full((3,), -100))
        for loss in (LinearCoreLoss, torch.nn.CrossEntropyLoss):
            assert math.isnan(loss()(*nothing))
            assert loss(reduction="sum")(*nothing) == 0

    def test_ignored_rows_have_no_gradient(self):
        scores = torch.randn(3, 4, requires_grad=True)
        LinearCoreLoss()(scores, torch.tensor([1, -100, 2])).backward()
        assert (scores.grad[1] == 0).all()
        assert (scores.grad[0] != 0).any()

    @pytest.mark.parametrize("constrained", [True, False])
    @pytest.mark.parametrize("wrong", [4, -1, 1000])
    def test_label_outside_the_classes(self, wrong, constrained):
        scores, labels = torch.randn(2, 4), torch.tensor([0, wrong])
        with pytest.raises(IndexError):
            torch.nn.CrossEntropyLoss()(scores, labels)
        with pytest.raises(LabelRangeError, match=r"target must have labels in \[0, 4\)") as caught:
            LinearCoreLoss(constrained=constrained)(scores, labels)
        assert isinstance(caught.value, IndexError)
        assert isinstance(caught.value, ValueError)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float32])
    def test_label_dtype(self, dtype):
        scores, labels = torch.randn(2, 4), torch.tensor([0, 1]).to(dtype)
        with pytest.raises(RuntimeError):
            torch.nn.CrossEntropyLoss()(scores, labels)
        with pytest.raises(LabelTypeError, match="target must be class labels") as caught:
            LinearCoreLoss()(scores, labels)
        assert isinstance(caught.value, RuntimeError)
        assert isinstance(caught.value, TypeError)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, dtype):
        torch.manual_seed(9)
        scores, labels = torch.randn(8, 300) * 3, torch.randint(0, 300, (8,))
        low = scores.to(dtype).requires_grad_()
        value = LinearCoreLoss()(low, labels)
        assert value.dtype == dtype
        exact = LinearCoreLoss()(low.detach().double(), labels)
        assert value.item() == pytest.approx(exact.item(), rel=1e-2)
        value.backward()
        assert low.grad.dtype == dtype
        assert torch.isfinite(low.grad).all()

    def test_autocast(self):
        torch.manual_seed(10)
        layer, batch, labels = torch.nn.Linear(6, 5), torch.randn(7, 6), torch.randint(0, 5, (7,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = layer(batch)
            assert scores.dtype == torch.bfloat16
            for mode, target in (("multiclass", labels), ("binary", labels[:, None].expand(7, 5) % 2)):
                value = LinearCoreLoss(mode=mode)(scores, target)
                assert value.dtype == torch.float32
        value.backward()
        assert torch.isfinite(layer.weight.grad).all()

    def test_nan_scores_make_the_loss_nan(self):
        scores = torch.tensor([[0.0, math.nan, 1.0], [0.0, 1.0, 2.0]])
        for constrained in (True, False):
            assert math.isnan(LinearCoreLoss(constrained=constrained)(scores, torch.tensor([0, 1])))

    def test_gradients_per_sample(self):
        torch.manual_seed(11)
        weights, batch = torch.randn(4, 3, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
        labels = torch.randint(0, 4, (6,))
        for mode, w, y in (("multiclass", weights, labels), ("binary", weights[0], labels % 2)):
            loss = LinearCoreLoss(mode=mode)

            def of_sample(w, x, y, loss=loss):
                return loss(torch.nn.functional.linear(x, w), y)

            single = torch.func.vmap(torch.func.grad(of_sample), (None, 0, 0))(w, batch, y)
            leaf = w.clone().requires_grad_()
            (whole,) = torch.autograd.grad(of_sample(leaf, batch, y), leaf)
            torch.testing.assert_close(single.mean(0), whole)

    def test_forward_mode(self):
        torch.manual_seed(12)
        scores, tangent = torch.randn(2, 5, 3, dtype=torch.float64)
        labels = torch.randint(0, 3, (5,))
        with torch.autograd.forward_ad.dual_level():
            dual = LinearCoreLoss()(torch.autograd.forward_ad.make_dual(scores, tangent), labels)
            derivative = torch.autograd.forward_ad.unpack_dual(dual).tangent
        leaf = scores.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(LinearCoreLoss()(leaf, labels), leaf)
        torch.testing.assert_close(derivative, (gradient * tangent).sum())

    def test_compiles_in_one_graph(self):
        torch.manual_seed(13)
        scores, labels = torch.randn(6, 3), torch.randint(0, 2, (6,))
        for loss, arguments in (
            (LinearCoreLoss(), (scores, labels)),
            (LinearCoreLoss(mode="binary"), (scores[:, 0], labels)),
        ):
            compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(*arguments), loss(*arguments))

    @tails
    def test_pickle_and_copy(self, tail):
        loss = LinearCoreLoss(0.5, 0.2, tail, weight=torch.tensor([1.0, 2.0]))
        scores, labels = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
        for again in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss)):
            assert again(scores, labels) == loss(scores, labels)

    def test_state(self):
        loss = LinearCoreLoss(weight=torch.ones(3))
        assert list(loss.state_dict()) == ["weight"]
        assert loss.double().weight.dtype == torch.float64
        assert "tau=0.7" in repr(loss)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_on_the_device(self, dtype):
        torch.manual_seed(14)
        scores = torch.randn(64, 20).to(dtype)
        labels = torch.randint(0, 20, (64,))
        labels[3] = -100
        here, there = scores.clone().requires_grad_(), scores.cuda().requires_grad_()
        on_cpu, on_gpu = LinearCoreLoss()(here, labels), LinearCoreLoss().cuda()(there, labels.cuda())
        tolerance = {"rtol": 2e-2, "atol": 1e-3} if dtype.itemsize < 4 else {"rtol": 1e-5, "atol": 1e-7}
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, **tolerance)
        on_cpu.backward()
        on_gpu.backward()
        torch.testing.assert_close(there.grad.cpu(), here.grad, **tolerance)
        with torch.autocast("cuda", dtype=torch.float16):
            assert LinearCoreLoss()(there.half(), labels.cuda()).dtype == torch.float32


class TestBinary:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32, torch.bool])
    def test_label_conventions(self, dtype):
        scores = torch.tensor([[0.5, -1.0], [2.0, 0.1]], dtype=torch.float64)
        zero_one = torch.tensor([[1, 0], [0, 1]])
        expected = linear_core((2 * zero_one - 1) * scores).mean()
        torch.testing.assert_close(LinearCoreLoss(mode="binary")(scores, zero_one.to(dtype)), expected)
        if dtype != torch.bool:
            signs = (2 * zero_one - 1).to(dtype)
            torch.testing.assert_close(LinearCoreLoss(mode="binary")(scores, signs), expected)

    def test_weights_and_ignored(self):
        scores = torch.tensor([0.3, -0.2, 5.0, 1.0], dtype=torch.float64)
        labels = torch.tensor([1, 0, 9, 0])
        loss = LinearCoreLoss(mode="binary", weight=torch.tensor([2.0, 0.5]), ignore_index=9)
        values = linear_core(torch.tensor([0.3, 0.2, -1.0], dtype=torch.float64))
        expected = (values * torch.tensor([0.5, 2.0, 2.0])).sum() / 4.5
        torch.testing.assert_close(loss(scores, labels), expected)

    def test_score_scale(self):
        scores, labels = torch.tensor([0.3, -0.2]), torch.tensor([1, 1])
        scaled = LinearCoreLoss(mode="binary", score_scale=4.0)(scores, labels)
        torch.testing.assert_close(scaled, LinearCoreLoss(mode="binary")(4 * scores, labels))

    @pytest.mark.parametrize("labels", [[0, 2], [-1, 0], [0.5, 1.0], [math.nan, 1.0]])
    def test_labels_of_neither_convention(self, labels):
        with pytest.raises(LabelRangeError, match="target"):
            LinearCoreLoss(mode="binary")(torch.zeros(2), torch.tensor(labels))


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "name"),
        [
            ({"sigma": 1e-300}, "sigma"),
            ({"tau": 1e300}, "tau"),
            ({"score_scale": 1e-300}, "score_scale"),
            ({"tau": 1e20, "score_scale": 1e-20}, "tau / score_scale"),
        ],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_settings_outside_the_range_of_the_scores(self, settings, name, dtype):
        scores, labels = torch.zeros(2, 3, dtype=dtype), torch.tensor([0, 1])
        with pytest.raises(ValueError, match=f"{name} must be between"):
            LinearCoreLoss(**settings)(scores, labels)
        assert torch.isfinite(LinearCoreLoss(**settings)(scores.double(), labels))

    @pytest.mark.parametrize(
        ("settings", "error", "name"),
        [
            ({"tau": 0.0}, ValueError, "tau"),
            ({"sigma": -0.1}, ValueError, "sigma"),
            ({"tail": "linear"}, ValueError, "tail"),
            ({"mode": "multilabel"}, ValueError, "mode"),
            ({"reduction": "median"}, ValueError, "reduction"),
            ({"score_scale": 0.0}, ValueError, "score_scale"),
            ({"ignore_index": 1.5}, TypeError, "ignore_index"),
            ({"constrained": 1}, TypeError, "constrained"),
            ({"weight": torch.ones(2, 2)}, ValueError, "weight"),
            ({"weight": torch.tensor([1.0, -1.0])}, ValueError, "weight"),
            ({"weight": torch.tensor([1.0, math.nan])}, ValueError, "weight"),
            ({"weight": torch.ones(3), "mode": "binary"}, ValueError, "weight"),
        ],
    )
    def test_parameters(self, settings, error, name):
        with pytest.raises(error, match=name):
            LinearCoreLoss(**settings)

    @pytest.mark.parametrize(
        ("settings", "scores", "target", "name"),
        [
            ({}, torch.zeros(3, 1), torch.zeros(3, dtype=torch.long), "at least 2 classes"),
            ({}, torch.tensor(1.0), torch.tensor(0), "class axis"),
            ({}, torch.zeros(3, 4), torch.zeros(2, dtype=torch.long), r"target must have shape \(3,\)"),
            ({}, torch.zeros(3, 4), torch.zeros(3, 1, dtype=torch.long), r"target must have shape \(3,\)"),
            ({"weight": torch.ones(3)}, torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), "weight"),
            ({"constrained": False}, torch.zeros(3, 4), torch.zeros(3, 4), "class labels when constrained=False"),
            ({"mode": "binary"}, torch.zeros(3), torch.zeros(3, 1), "target must have the shape of input"),
        ],
    )
    def test_shapes(self, settings, scores, target, name):
        with pytest.raises(ValueError, match=name):
            LinearCoreLoss(**settings)(scores, target)

    def test_types(self):
        with pytest.raises(TypeError, match="input must be a real tensor"):
            LinearCoreLoss()(torch.zeros(2, 3, dtype=torch.complex64), torch.zeros(2, dtype=torch.long))

    def test_integer_scores_are_cast(self):
        labels = torch.tensor([0, 1])
        whole = torch.tensor([[1, 0, 3], [2, 2, 0]])
        torch.testing.assert_close(LinearCoreLoss()(whole, labels), LinearCoreLoss()(whole.float(), labels))


def test_trains_a_network_on_what_is_separable():
    torch.manual_seed(15)
    centres = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 4.0]])
    labels = torch.arange(90) % 3
    batch = centres[labels] + 0.3 * torch.randn(90, 2)
    for tail, constrained in itertools.product(TAILS, (True, False)):
        layer = torch.nn.Linear(2, 3)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.2)
        loss = LinearCoreLoss(tail=tail, constrained=constrained)
        for _ in range(150):
            optimizer.zero_grad()
            loss(layer(batch), labels).backward()
            optimizer.step()
        assert (layer(batch).argmax(1) == labels).all()
