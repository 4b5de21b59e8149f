"""The layer: known values, gradients, conjugates, choices, and life as a module of torch."""

import copy
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import qmc

from assay.transport import GCFLayer, HingeKernel, NegatedCost, PowerCost
from assay.transport.temperature_schedules import cosine_temperature, geometric_temperature

F64 = torch.float64


def random_layer(seed, kernel="dot", J=7, d=3, **options):
    generator = torch.Generator().manual_seed(seed)
    y, b = torch.randn(J, d, dtype=F64, generator=generator), torch.randn(J, dtype=F64, generator=generator)
    x = torch.randn(11, d, dtype=F64, generator=generator)
    return GCFLayer(kernel, y, intercept=b, **options), x


def sobol(k, m=16):
    return torch.tensor(qmc.Sobol(k, rng=0).random(2**m))


class TestKnownValues:
    @pytest.mark.parametrize(
        "menu, price, revenue",
        [
            ([[1.0]], [0.5], 0.25),
            ([[1, 0], [0, 1], [1, 1]], [2 / 3, 2 / 3, (4 - math.sqrt(2)) / 3], (12 + 2 * math.sqrt(2)) / 27),
            ([[1.0, 1.0]], [math.sqrt(2 / 3)], (2 / 3) ** 1.5),
            (
                [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]],
                [0.75] * 3 + [1.1464] * 3 + [1.2257],
                0.87545,
            ),
        ],
    )
    def test_revenue_of_known_menus(self, menu, price, revenue):
        layer = GCFLayer("dot", torch.tensor(menu, dtype=F64), intercept=price, outside=True)
        index = layer.choose(sobol(len(menu[0])))[1]
        assert float(layer.intercepts[index].mean().detach()) == pytest.approx(revenue, abs=2e-4)

    @pytest.mark.parametrize("J, error, bound", [(9, 0.0078125, 0.25), (17, 0.001953125, 0.125)])
    def test_half_a_square_on_a_grid(self, J, error, bound):
        y = torch.linspace(-1, 1, J, dtype=F64)[:, None]
        layer = GCFLayer("dot", y, intercept=y[:, 0] ** 2 / 2)
        x = torch.linspace(-1, 1, 20001, dtype=F64)[:, None]
        promise = layer.approximation(lambda x: x[:, 0] ** 2 / 2, x, lipschitz=1.0, delta=1 / (J - 1), net_of=x)
        assert promise.value == pytest.approx(error, rel=1e-6)
        assert promise.bound == bound
        assert promise.holds
        assert [a.satisfied for a in promise.assumptions] == [True, True, None]

    def test_approximation_notices_wrong_intercepts(self):
        y = torch.linspace(-1, 1, 9, dtype=F64)[:, None]
        x = torch.linspace(-1, 1, 101, dtype=F64)[:, None]
        layer = GCFLayer("dot", y, intercept=y[:, 0] ** 2 / 2 - 0.3)
        promise = layer.approximation(lambda x: x[:, 0] ** 2 / 2, x, lipschitz=1.0, delta=0.01, net_of=x)
        assert not promise.holds
        assert [a.satisfied for a in promise.assumptions] == [False, False, None]

    def test_distance_to_a_net(self):
        layer, x = random_layer(0, "neg_sqeuclidean")
        y, b = layer.y, layer.intercept.detach()
        wanted = torch.stack([((x - point) ** 2).sum(1) for point in y], 1)
        torch.testing.assert_close(layer(x).detach(), -(wanted + b).amin(1))
        plain = GCFLayer("neg_sqeuclidean", y)
        torch.testing.assert_close(plain(x).detach(), -wanted.amin(1))

    def test_lean_vectors_are_not_a_convex_set(self):
        worth = torch.tensor([[0.0, -2.0, 0.0], [0.0, 0.0, 1.0]], dtype=F64)

        def table(x, y):
            return worth[x[:, 0, 0].long()][:, y[0, :, 0].long()]

        x, y = torch.tensor([[0.0], [1.0]], dtype=F64), torch.tensor([[0.0], [1.0], [2.0]], dtype=F64)
        one, other = [0.0, -2.0, 0.0], [0.0, 0.0, 1.0]
        for b, lean in ((one, one), (other, other), ([0.0, -1.0, 0.5], [0.0, -1.0, 0.0])):
            layer = GCFLayer(table, y, intercept=b)
            assert layer.conjugate(y, x).tolist() == lean
            before = layer(x).tolist()
            assert layer.lean_(x).intercept.tolist() == lean
            assert layer(x).tolist() == before


class TestValues:
    @pytest.mark.parametrize("mode", ["convex", "concave"])
    @pytest.mark.parametrize("kernel", ["dot", HingeKernel(2.0), PowerCost(1.5), lambda x, y: (x * y).sum(-1).sin()])
    def test_piece_by_piece(self, kernel, mode):
        layer, x = random_layer(1, kernel, mode=mode, chunk_size=4, outside=(torch.ones(3, dtype=F64), 0.2))
        pieces = []
        for y, b in zip(layer.points, layer.intercepts, strict=True):
            evaluate = getattr(layer.kernel, "evaluate", layer.kernel)
            pieces.append(evaluate(x[:, None], y[None, None])[:, 0] - b)
        pieces = torch.stack(pieces, 1)
        wanted = pieces.max(1) if mode == "convex" else pieces.min(1)
        for value in (layer(x), layer(x.clone().requires_grad_())):
            torch.testing.assert_close(value, wanted.values)
        with torch.no_grad():
            torch.testing.assert_close(layer(x), wanted.values)
            choice, index = layer.choose(x)
        assert index.tolist() == wanted.indices.tolist()
        torch.testing.assert_close(choice, layer.points[index])

    def test_ties_go_to_the_first_piece(self):
        layer = GCFLayer("dot", [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        assert layer.choose(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))[1].tolist() == [0, 2]

    def test_leading_axes_and_no_samples(self):
        layer, x = random_layer(2)
        batch = x[:10].reshape(2, 5, 3)
        assert layer(batch).shape == (2, 5)
        torch.testing.assert_close(layer(batch).reshape(-1), layer(x[:10]))
        assert layer.choose(batch)[0].shape == (2, 5, 3)
        assert layer.gradient(batch).shape == (2, 5, 3)
        assert layer(x[0]).shape == ()
        assert layer(x[:0]).shape == (0,)
        assert layer.gradient(x[:0]).shape == (0, 3)

    @given(st.integers(0, 10**6), st.sampled_from([0.3, 5.0, 60.0]))
    @settings(max_examples=15, deadline=None)
    def test_soft_values_by_the_formula(self, seed, temperature):
        layer, x = random_layer(seed, selection="soft", temperature=temperature)
        scores = (x @ layer.y.T - layer.intercept).detach().numpy()
        for row, value, weights in zip(scores, layer(x).tolist(), layer.weights(x).tolist(), strict=True):
            heat = np.clip(temperature / max(np.ptp(row), 1e-3), temperature, 5000.0)
            w = np.exp(heat * (row - row.max()))
            w /= w.sum()
            assert value == pytest.approx(w @ row, rel=1e-12)
            np.testing.assert_allclose(weights, w, rtol=1e-10, atol=1e-300)

    @pytest.mark.parametrize("mode, sign", [("convex", 1.0), ("concave", -1.0)])
    def test_logsumexp_is_on_the_outer_side(self, mode, sign):
        hard, x = random_layer(3, mode=mode)
        soft, _ = random_layer(3, mode=mode, selection="soft", lse=True, temperature=10.0)
        excess = sign * (soft(x) - hard(x))
        assert (excess >= 0).all()
        assert (excess <= math.log(7) / 10.0).all()

    @pytest.mark.parametrize("lse", [False, True])
    def test_straight_through_has_hard_values_and_soft_gradients(self, lse):
        layers = {s: random_layer(4, selection=s, lse=lse, learn_y=True)[0] for s in ("hard", "soft", "ste")}
        x = random_layer(4)[1]
        assert layers["ste"](x).tolist() == layers["hard"](x).tolist()
        assert torch.equal(layers["ste"].choose(x)[0], layers["hard"].choose(x)[0])
        for layer in (layers["soft"], layers["ste"]):
            (layer(x).sum() + layer.choose(x)[0].sum()).backward()
        for name in ("intercept", "_raw_y"):
            torch.testing.assert_close(getattr(layers["ste"], name).grad, getattr(layers["soft"], name).grad)

    def test_equal_scores_and_hot_single_precision(self):
        layer = GCFLayer("dot", torch.ones(4, 2), selection="soft", temperature=5000.0)
        x = torch.full((3, 2), 1e4)
        torch.testing.assert_close(layer.weights(x), torch.full((3, 4), 0.25))
        layer = GCFLayer("dot", torch.eye(2), selection="soft", temperature=5000.0)
        assert torch.isfinite(layer(1e6 * torch.tensor([[1.0, 0.5]]))).all()


class TestGradient:
    @pytest.mark.parametrize("kernel", ["dot", "neg_sqeuclidean", "neg_power", "hinge"])
    def test_finite_differences(self, kernel):
        layer, x = random_layer(5, kernel)
        slope, h = layer.gradient(x), 1e-6
        for axis in range(3):
            step = torch.zeros(3, dtype=F64)
            step[axis] = h
            with torch.no_grad():
                numeric = (layer(x + step) - layer(x - step)) / (2 * h)
            torch.testing.assert_close(slope[:, axis].detach(), numeric, atol=1e-6, rtol=1e-6)

    def test_of_the_dot_kernel_is_the_choice(self):
        layer, x = random_layer(6)
        torch.testing.assert_close(layer.gradient(x), layer.choose(x)[0])

    def test_is_differentiable_in_outcomes_and_can_be_detached(self):
        layer, x = random_layer(7, learn_y=True)
        layer.gradient(x).sum().backward()
        assert layer._raw_y.grad.abs().sum() > 0
        with torch.no_grad():
            assert not layer.gradient(x).requires_grad

    def test_of_intercepts_is_minus_the_shares(self):
        layer, x = random_layer(8)
        layer(x).mean().backward()
        shares = torch.bincount(layer.choose(x)[1], minlength=7) / len(x)
        torch.testing.assert_close(-layer.intercept.grad, shares.to(F64))


class TestConjugate:
    @pytest.mark.parametrize("mode", ["convex", "concave"])
    def test_brute_force_in_chunks(self, mode):
        layer, x = random_layer(9, PowerCost(1.5), mode=mode, chunk_size=3)
        y = torch.randn(70, 3, dtype=F64, generator=torch.Generator().manual_seed(3))
        cost = ((x[:, None] - y) ** 2).sqrt().pow(1.5).sum(-1) - layer(x).detach()[:, None]
        wanted = cost.amax(0) if mode == "convex" else cost.amin(0)
        torch.testing.assert_close(layer.conjugate(y, x).detach(), wanted)
        assert layer.conjugate(y[:0], x).shape == (0,)

    @given(st.integers(0, 10**6))
    @settings(max_examples=15, deadline=None)
    def test_lean_keeps_values_and_makes_pieces_tight(self, seed):
        layer, x = random_layer(seed, "neg_power")
        before, intercept = layer(x).detach(), layer.intercept.detach().clone()
        layer.lean_(x)
        torch.testing.assert_close(layer(x).detach(), before)
        assert (layer.intercept <= intercept + 1e-12).all()
        again = layer.intercept.detach().clone()
        torch.testing.assert_close(layer.lean_(x).intercept.detach(), again)

    def test_gradient_by_the_envelope_theorem(self):
        layer, x = random_layer(10)
        y = layer.y[:2] * 0.5
        layer.conjugate(y, x).sum().backward()
        slope, h = layer.intercept.grad.clone(), 1e-6
        for j in range(7):
            values = []
            for sign in (1, -1):
                moved = copy.deepcopy(layer)
                with torch.no_grad():
                    moved.intercept[j] += sign * h
                    values.append(float(moved.conjugate(y, x).sum()))
            assert float(slope[j]) == pytest.approx((values[0] - values[1]) / (2 * h), abs=1e-6)

    def test_refinement_reaches_the_continuous_maximum(self):
        x = torch.tensor([[-1.0], [-0.1], [0.4], [1.0]], dtype=F64)
        # x^2 - (x - 1/2)^2 rises to the end of the box, at 1
        rising = GCFLayer("neg_sqeuclidean", torch.tensor([[0.0]], dtype=F64))
        assert rising.conjugate(torch.tensor([[0.5]], dtype=F64), x, refine=True).item() == pytest.approx(0.75)
        # 0.1 sin(5 x) between the candidates: its maximum is at x = pi / 10
        wave = GCFLayer(lambda x, y: y[..., 0] * (5.0 * x[..., 0]).sin(), torch.tensor([[0.0]], dtype=F64))
        outcome = torch.tensor([[0.1]], dtype=F64)
        assert wave.conjugate(outcome, x).item() < 0.0999
        assert wave.conjugate(outcome, x, refine=True).item() == pytest.approx(0.1, abs=1e-9)

    def test_refinement_of_a_curved_problem(self):
        def kernel(x, y):
            return (x * y).sum(-1) - (x.square() * y.square()).sum(-1)

        layer = GCFLayer(kernel, torch.tensor([[0.0]], dtype=F64))
        x = torch.tensor([[-1.0], [0.2], [1.0]], dtype=F64)
        y = torch.tensor([[1.0], [2.0], [0.75]], dtype=F64)
        coarse, fine = layer.conjugate(y, x), layer.conjugate(y, x, refine=True)
        assert (fine >= coarse).all()
        # x y - x^2 y^2 is at most 1/4, at x = 1 / (2 y)
        torch.testing.assert_close(fine.detach(), torch.full((3,), 0.25, dtype=F64), atol=1e-9, rtol=0)
        assert layer.intercept.requires_grad

    def test_no_candidates(self):
        layer, x = random_layer(11)
        with pytest.raises(ValueError, match="x_candidates must have at least one row"):
            layer.conjugate(layer.y, x[:0])


class TestParameters:
    def test_trained_outcomes_stay_in_their_box(self):
        for bounds in ((0.0, 1.0), (0.0, None), (None, 1.0), ([0.0, -1.0], [1.0, 2.0])):
            y = torch.rand(5, 2, dtype=F64, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.05
            layer = GCFLayer("dot", y, learn_y=True, y_bounds=bounds)
            torch.testing.assert_close(layer.y.detach(), y, atol=1e-3, rtol=0)
            with torch.no_grad():
                layer._raw_y.add_(100.0 * torch.randn(5, 2, dtype=F64, generator=torch.Generator().manual_seed(1)))
            low, high = bounds
            assert low is None or (layer.y >= torch.tensor(low)).all()
            assert high is None or (layer.y <= torch.tensor(high)).all()
        free = GCFLayer("dot", y, learn_y=True, y_bounds=(None, None))
        assert torch.equal(free.y, y)

    def test_edges_of_the_box_can_be_left(self):
        layer = GCFLayer("dot", [[0.0, 1.0]], learn_y=True, y_bounds=(0.0, 1.0))
        layer.y.sum().backward()
        assert (layer._raw_y.grad > 0).all()

    def test_which_parameters_there_are(self):
        assert [name for name, _ in GCFLayer("dot", [[1.0]]).named_parameters()] == ["intercept"]
        names = [name for name, _ in GCFLayer("dot", [[1.0]], learn_y=True, outside=True).named_parameters()]
        assert sorted(names) == ["_raw_y", "intercept"]

    def test_kernels_that_are_modules_are_trained(self):
        class Weighted(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(2))

            def forward(self, x, y):
                return (self.weight * x * y).sum(-1)

        layer = GCFLayer(Weighted(), torch.eye(2))
        layer(torch.tensor([[1.0, 2.0]])).sum().backward()
        assert layer.kernel.weight.grad.tolist() == [0.0, 2.0]
        assert "kernel.weight" in layer.state_dict()
        assert "Weighted" in repr(layer)

    def test_callers_tensors_are_not_shared(self):
        y, b = torch.eye(2), torch.zeros(2)
        layer = GCFLayer("dot", y, intercept=b)
        with torch.no_grad():
            layer.intercept.add_(1.0)
            layer.y.add_(1.0)
        assert torch.equal(y, torch.eye(2))
        assert torch.equal(b, torch.zeros(2))

    def test_temperatures(self):
        assert cosine_temperature(0) == 5.0
        assert cosine_temperature(2000) == 60.0
        assert cosine_temperature(250) == pytest.approx(5.0 + 55.0 * (1 - math.cos(math.pi / 4)) / 2)
        assert geometric_temperature(600) == pytest.approx(math.sqrt(2000.0))
        with pytest.raises(ValueError, match="start must be greater than 0"):
            geometric_temperature(0, start=0.0)


class TestModule:
    @pytest.mark.parametrize("options", [{}, {"learn_y": True, "y_bounds": (-9.0, 9.0), "outside": True}])
    def test_state_dict_copy_and_pickle(self, options):
        layer, x = random_layer(12, **options)
        other, _ = random_layer(13, **options)
        other.load_state_dict(layer.state_dict())
        for twin in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(twin(x), layer(x))
        assert layer.temperature == 60.0

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("kernel", ["dot", "neg_sqeuclidean"])
    def test_dtypes(self, dtype, kernel):
        layer, x = random_layer(14, kernel, outside=True, selection="ste")
        cast = layer.to(dtype)
        out = cast(x.to(dtype))
        assert out.dtype == cast.choose(x.to(dtype))[0].dtype == cast.gradient(x.to(dtype)).dtype == dtype
        assert torch.isfinite(out).all()
        with torch.no_grad():
            assert cast(x.to(dtype)).dtype == dtype

    def test_integers_have_the_default_dtype(self):
        assert GCFLayer("dot", [[1, 0], [0, 1]]).y.dtype == torch.get_default_dtype()

    def test_in_a_sequence(self):
        layer, x = random_layer(15)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3, dtype=F64), layer)
        model(x).sum().backward()
        assert all(p.grad is not None for p in model.parameters())

    @pytest.mark.processes
    def test_compiled_without_a_break(self):
        # in a process of its own, because the checks of types in the tests cannot be compiled
        code = """
import torch
from assay.transport.generalized_convex import GCFLayer
layer, x = GCFLayer("dot", torch.randn(7, 3), selection="ste", outside=True), torch.randn(11, 3)
compiled = torch.compile(layer, backend="eager", fullgraph=True)
assert torch.equal(compiled(x), layer(x))
compiled(x).sum().backward()
assert layer.intercept.grad.abs().sum() > 0
"""
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=250)

    def test_gradcheck(self):
        layer, x = random_layer(16, selection="soft", lse=True, temperature=3.0)
        assert torch.autograd.gradcheck(layer, (x[:4].requires_grad_(),))

    def test_repr(self):
        assert "DotKernel(), pieces=7, outcomes of length 3, mode='convex'" in repr(random_layer(0)[0])

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_on_a_gpu(self):
        for kernel in ("dot", "neg_sqeuclidean", NegatedCost(PowerCost(1.5))):
            layer, x = random_layer(17, kernel, outside=True, learn_y=True, y_bounds=(-9.0, 9.0))
            there, far = copy.deepcopy(layer).cuda(), x.cuda()
            torch.testing.assert_close(there(far).cpu(), layer(x))
            torch.testing.assert_close(there.gradient(far).cpu(), layer.gradient(x))
            torch.testing.assert_close(there.conjugate(far, far, refine=True).cpu(), layer.conjugate(x, x, refine=True))
            assert there.choose(far)[0].device.type == "cuda"
            assert all(promise.holds for promise in there.certificates(far))


class TestCertificates:
    @given(st.integers(0, 10**6), st.sampled_from(["dot", "hinge", "neg_sqeuclidean", "neg_power"]))
    @settings(max_examples=20, deadline=None)
    def test_truth_is_best_for_any_parameters(self, seed, kernel):
        layer, x = random_layer(seed, kernel, outside=True)
        incentive, rationality = layer.certificates(x)
        assert incentive.holds
        assert rationality.holds
        assert len(random_layer(seed, kernel)[0].certificates(x)) == 1

    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    def test_any_scale(self, scale):
        layer, x = random_layer(18, outside=True)
        scaled = GCFLayer("dot", layer.y, intercept=layer.intercept.detach() * scale, outside=True)
        assert all(promise.holds for promise in scaled.certificates(x * scale))

    def test_single_precision_is_judged_in_double(self):
        layer, x = random_layer(19, outside=True)
        assert all(promise.holds for promise in layer.float().certificates(x.float()))

    def test_costs_are_no_prices(self):
        layer, x = random_layer(20, mode="concave")
        with pytest.raises(ValueError, match="mode must be 'convex'"):
            layer.certificates(x)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"y": torch.zeros(0, 2)}, ValueError, "y must have shape"),
        ({"y": torch.zeros(3)}, ValueError, "y must have shape"),
        ({"y": [[float("nan")]]}, ValueError, "y must be finite"),
        ({"y": torch.ones(2, 2, dtype=torch.complex64)}, TypeError, "y must be real"),
        ({"intercept": [0.0]}, ValueError, r"intercept must have shape \(2,\)"),
        ({"intercept": [0.0, float("inf")]}, ValueError, "intercept must be finite"),
        ({"temperature": 0.0}, ValueError, "temperature must be greater than 0"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1"),
        ({"mode": "linear"}, ValueError, "mode must be one of"),
        ({"selection": "argmax"}, ValueError, "selection must be one of"),
        ({"y_bounds": (0.0, 0.5)}, ValueError, "y must be within y_bounds"),
        ({"y_bounds": (1.0, 0.0)}, ValueError, "lower limit below"),
        ({"y_bounds": 1.0}, TypeError, "y_bounds must be a pair"),
        ({"y_bounds": ([0.0] * 3, None)}, ValueError, "vectors of length 2"),
        ({"outside": [0.0]}, ValueError, r"outside must have shape \(2,\)"),
        ({"outside": ([0.0, 0.0], float("nan"))}, ValueError, "the intercept of outside must be finite"),
        ({"kernel": 3}, TypeError, "without 'evaluate'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        GCFLayer(**({"kernel": "dot", "y": torch.eye(2)} | arguments))


def test_bad_input_of_methods():
    layer, x = random_layer(21)
    with pytest.raises(TypeError):
        layer(x.long())
    with pytest.raises(ValueError, match=r"kernel must return \(S, J\)"):
        GCFLayer(lambda x, y: x.sum(-1) + y.sum(), torch.eye(3))(torch.ones(4, 3))
    with pytest.raises(ValueError, match="f must return a tensor of shape"):
        layer.approximation(lambda x: x, x, lipschitz=1.0, delta=0.1)
    layer.temperature = 3
    with pytest.raises(ValueError, match="temperature must be greater than 0"):
        layer.temperature = -1.0
