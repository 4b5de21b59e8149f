"""FFOLayer: known derivatives, other layers, batches as CvxpyLayer takes them, and what it refuses."""

import copy
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from assay.bilevel import FFOLayer, certificate
from assay.extras import MissingExtraError

cp = pytest.importorskip("cvxpy")
pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor")


def tensor(values, grad=True):
    return torch.tensor(np.asarray(values, dtype=float), requires_grad=grad)


def random(*shape, seed=0, grad=True):
    return tensor(np.random.default_rng(seed).normal(size=shape), grad)


def ball(**options):
    x, y = cp.Parameter(3), cp.Variable(3)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y - x)), [cp.norm(y) <= 1])
    return FFOLayer(problem, [x], [y], **options)


def box(**options):
    x, y = cp.Parameter(4), cp.Variable(4)
    return FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [y <= 1, y >= -1]), [x], [y], **options)


def least_squares(constraints=lambda y: [y >= 0], **options):
    A, b, y = cp.Parameter((5, 3)), cp.Parameter(5), cp.Variable(3)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ y - b)), constraints(y))
    return FFOLayer(problem, [A, b], [y], **options)


POINT, UPSTREAM = [1.5, -0.7, 0.4], [0.3, 1.0, -0.5]


def gradient(layer, *points, upstream):
    outputs = layer(*points)
    return torch.autograd.grad(outputs[0], points, tensor(upstream, grad=False))


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (10.0, [0.31312927, 0.52390885, -0.25739429]),
        (100.0, [0.31284946, 0.52344069, -0.25716428]),
        (1e5, [0.31284663, 0.52343595, -0.25716196]),
    ],
)
def test_projection_on_a_ball(alpha, expected):
    (found,) = gradient(ball(alpha=alpha, difference="forward"), tensor(POINT), upstream=UPSTREAM)
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize(("difference", "order"), [("forward", 1.0), ("central", 2.0)])
def test_order_of_the_error(difference, order):
    """By the radius of the ball and the matrix of least squares; the exact gradient is the dense implicit one."""
    A, r, y = cp.Parameter((4, 3)), cp.Parameter(nonneg=True), cp.Variable(3)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ y - np.arange(4.0))), [cp.norm(y) <= r])
    errors = []
    for alpha in (50.0, 100.0):
        layer = FFOLayer(problem, [A, r], [y], alpha=alpha, difference=difference)
        outputs = layer(random(4, 3), tensor(0.7))
        outputs[0].backward(tensor(UPSTREAM, grad=False))
        report = certificate(layer, check_gradient=True)
        assert report.certified
        assert report.order == pytest.approx(order, abs=0.1)
        errors.append(report.gradient_error)
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1)


def test_projection_on_a_box():
    (found,) = gradient(box(), tensor([2.0, 0.3, -0.4, -3.0]), upstream=[1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(found, [0.0, 2.0, 3.0, 0.0], atol=1e-12)


def test_projection_on_a_simplex():
    x, y = cp.Parameter(4), cp.Variable(4)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [y >= 0, cp.sum(y) == 1]), [x], [y])
    upstream = np.array([1.0, -2.0, 0.5, 3.0])
    (found,) = gradient(layer, tensor([0.6, 0.5, 0.4, -2.0]), upstream=upstream)
    expected = upstream - upstream[:3].mean()
    expected[3] = 0.0
    np.testing.assert_allclose(found, expected, atol=1e-12)


def entropy_layer(**options):
    x, y = cp.Parameter(4), cp.Variable(4)
    return FFOLayer(cp.Problem(cp.Minimize(-x @ y - cp.sum(cp.entr(y))), [cp.sum(y) == 1]), [x], [y], **options)


@pytest.mark.parametrize("mode", ["tangent", "resolve"])
def test_entropy_is_softmax(mode):
    """An exponential cone: the layer is softmax, and its derivative is known."""
    point, upstream = random(4), random(4, seed=1, grad=False)
    layer = entropy_layer(cone_mode=mode, alpha=1e3)
    expected = torch.softmax(point, 0)
    torch.testing.assert_close(layer(point)[0], expected, atol=1e-9, rtol=0)
    (found,) = gradient(layer, point, upstream=upstream)
    (wanted,) = torch.autograd.grad(expected, point, upstream)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", ["tangent", "resolve"])
def test_projection_on_semidefinite_matrices(mode):
    """The derivative of the positive part of a matrix, from its eigenvectors."""
    S, X = cp.Parameter((4, 4), symmetric=True), cp.Variable((4, 4), PSD=True)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(X - S))), [S], [X], cone_mode=mode, alpha=1e3)
    raw = np.random.default_rng(2).normal(size=(4, 4))
    matrix, upstream = raw + raw.T, np.random.default_rng(3).normal(size=(4, 4))
    (found,) = gradient(layer, tensor(matrix), upstream=upstream)
    values, vectors = np.linalg.eigh(matrix)
    positive = np.maximum(values, 0.0)
    apart = values[:, None] - values
    quotients = np.where(
        apart == 0, values[:, None] > 0, (positive[:, None] - positive) / np.where(apart == 0, 1, apart)
    )
    rotated = vectors.T @ (0.5 * (upstream + upstream.T)) @ vectors
    np.testing.assert_allclose(found, vectors @ (quotients * rotated) @ vectors.T, atol=1e-5)


@pytest.mark.parametrize("name", ["nonnegative", "ball", "exponential", "matrices", "weights", "semidefinite program"])
def test_gradcheck(name):
    options = {"alpha": 1e3}
    z, q = cp.Variable(4), cp.Parameter(4)
    if name == "nonnegative":
        layer, points = least_squares(**options), (random(5, 3), random(5, seed=4))
    elif name == "ball":
        layer = least_squares(lambda y: [cp.norm(y) <= 0.5, cp.sum(y) <= 0.2], **options)
        points = random(5, 3), random(5, seed=1)
    elif name == "exponential":
        problem = cp.Problem(cp.Minimize(-q @ z - cp.sum(cp.entr(z))), [cp.sum(z) == 1, z <= 0.4])
        layer, points = FFOLayer(problem, [q], [z], **options), (random(4),)
    elif name == "matrices":
        W, B = cp.Variable((2, 3)), cp.Parameter((2, 3))
        problem = cp.Problem(cp.Minimize(cp.sum_squares(W - B)), [W <= 0.3, cp.sum(W, axis=0) == 0.1])
        layer, points = FFOLayer(problem, [B], [W], **options), (random(2, 3),)
    elif name == "weights":
        p = cp.Parameter(nonneg=True)
        problem = cp.Problem(cp.Minimize(p * cp.sum_squares(z) + cp.sum(cp.exp(z)) + q @ z), [cp.norm(z) <= 1.5])
        layer, points = FFOLayer(problem, [p, q], [z], **options), (tensor(0.7), 3 * random(4))
    else:
        C, X = cp.Parameter((3, 3)), cp.Variable((3, 3), symmetric=True)
        objective = cp.Minimize(cp.trace(C @ X) + 0.1 * cp.sum_squares(X))
        layer = FFOLayer(cp.Problem(objective, [X >> 0, cp.trace(X) == 1]), [C], [X], **options)
        points = (random(3, 3),)
    points = tuple(point.detach().requires_grad_() for point in points)
    fast = name not in ("nonnegative", "matrices")
    assert gradcheck(lambda *a: layer(*a), points, atol=1e-5, rtol=1e-3, fast_mode=fast)


def test_batches_and_shared_parameters():
    layer = least_squares()
    points, shared = random(3, 5, 3), random(5, seed=4)
    upstream = random(3, 3, seed=5, grad=False)
    (together,) = layer(points, shared)
    assert together.shape == (3, 3)
    by_points, by_shared = torch.autograd.grad(together, (points, shared), upstream)
    total = torch.zeros(5, dtype=torch.float64)
    for i in range(3):
        point = points[i].detach().requires_grad_()
        (alone,) = layer(point, shared)
        assert alone.shape == (3,)
        torch.testing.assert_close(alone, together[i])
        one, other = torch.autograd.grad(alone, (point, shared), upstream[i])
        torch.testing.assert_close(one, by_points[i])
        total += other
        (single,) = layer(point[None], shared)
        assert single.shape == (1, 3)
        torch.testing.assert_close(single[0], alone)
    torch.testing.assert_close(total, by_shared)
    torch.testing.assert_close(layer(points, shared.expand(3, 5))[0], together)


def test_threads_give_the_same():
    points, shared = random(4, 5, 3), random(5, seed=4)
    found = [
        torch.autograd.grad(layer(points, shared)[0].sum(), points)[0]
        for layer in (least_squares(), least_squares(max_workers=2))
    ]
    assert torch.equal(*found)


def test_several_variables_and_shapes():
    x, y, W = cp.Parameter((2, 2)), cp.Variable((2, 2)), cp.Variable((2, 2), symmetric=True)
    D, t = cp.Variable((2, 2), diag=True), cp.Variable()
    objective = cp.sum_squares(y - x) + cp.sum_squares(W - x) + cp.sum_squares(D - x) + cp.square(t - x[0, 1])
    layer = FFOLayer(cp.Problem(cp.Minimize(objective)), [x], [y, W, D, t])
    point = random(2, 2)
    free, symmetric, diagonal, number = layer(point)
    torch.testing.assert_close(free, point)
    torch.testing.assert_close(symmetric, 0.5 * (point + point.mT))
    torch.testing.assert_close(diagonal, torch.diag(point.diagonal()))
    torch.testing.assert_close(number, point[0, 1])
    found = torch.autograd.grad(free[0, 1] + symmetric[0, 1] + diagonal[1, 1] + number, point)[0]
    torch.testing.assert_close(found, tensor([[0.0, 2.5], [0.5, 1.0]], grad=False))
    assert layer(point.expand(3, 2, 2))[3].shape == (3,)


def test_order_of_parameters_is_the_users():
    a, b, y = cp.Parameter(2), cp.Parameter(2), cp.Variable(2)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - a) + cp.sum_squares(y - 3 * b)))
    one, two = random(2), random(2, seed=1)
    forward = torch.autograd.grad(FFOLayer(problem, [a, b], [y])(one, two)[0].sum(), (one, two))
    backward = torch.autograd.grad(FFOLayer(problem, [b, a], [y])(two, one)[0].sum(), (one, two))
    for found in (forward, backward):
        torch.testing.assert_close(found[0], torch.full((2,), 0.5, dtype=torch.float64))
        torch.testing.assert_close(found[1], torch.full((2,), 1.5, dtype=torch.float64))


def test_symmetric_and_diagonal_parameters():
    S, y = cp.Parameter((2, 2), symmetric=True), cp.Variable(2)
    D = cp.Parameter((2, 2), diag=True)
    layer = FFOLayer(
        cp.Problem(cp.Minimize(cp.sum_squares(y - S @ np.array([1.0, 2.0]) - D @ np.ones(2)))), [S, D], [y]
    )
    matrix, diagonal = tensor([[1.0, 0.5], [0.5, 2.0]]), tensor([[1.0, 0.0], [0.0, 3.0]])
    (found,) = layer(matrix, diagonal)
    torch.testing.assert_close(found, tensor([3.0, 7.5], grad=False))
    by_matrix, by_diagonal = torch.autograd.grad(found[0], (matrix, diagonal))
    torch.testing.assert_close(by_matrix, tensor([[1.0, 1.0], [1.0, 0.0]], grad=False))
    torch.testing.assert_close(by_diagonal, tensor([[1.0, 0.0], [0.0, 0.0]], grad=False))


def test_types_devices_and_module_manners():
    layer = ball()
    point = tensor(POINT).detach().float().requires_grad_()
    (found,) = layer(point)
    assert found.dtype == torch.float32
    (slope,) = torch.autograd.grad(found, point, torch.tensor(UPSTREAM))
    assert slope.dtype == torch.float32
    np.testing.assert_allclose(slope, [0.31284946, 0.52344069, -0.25716428], atol=1e-6)
    assert layer.state_dict() == {}
    assert layer.to("cpu") is layer
    assert "alpha=100" in repr(layer)
    assert not list(layer.parameters())


@pytest.mark.gpu
def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    point = tensor(POINT).detach().cuda().requires_grad_()
    (found,) = ball().to("cuda")(point)
    assert found.device.type == "cuda"
    found.backward(torch.tensor(UPSTREAM, dtype=torch.float64, device="cuda"))
    np.testing.assert_allclose(point.grad.cpu(), [0.31284946, 0.52344069, -0.25716428], atol=1e-8)


def test_in_a_training_loop():
    layer, model = box(), torch.nn.Linear(2, 4, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(random(4, 2, grad=False))
        model.bias.zero_()
    data = torch.utils.data.TensorDataset(random(12, 2, grad=False), 0.3 * torch.ones(12, 4, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for _ in range(4):
        for inputs, targets in torch.utils.data.DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            loss = (layer(model(inputs))[0] - targets).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_differentiable_once_and_twice_in_a_graph():
    layer, point = ball(), tensor(POINT)
    first, second = layer(point)[0], layer(2 * point)[0]  # the second call must not disturb the first
    (slope,) = torch.autograd.grad(first, point, tensor(UPSTREAM, grad=False), retain_graph=True)
    np.testing.assert_allclose(slope, [0.31284946, 0.52344069, -0.25716428], atol=1e-8)
    both = torch.autograd.grad((first + second).sum(), point)[0]
    assert torch.isfinite(both).all()
    (slope,) = torch.autograd.grad(layer(point)[0].sum(), point, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once only"):
        slope.sum().backward()


def test_no_gradient_is_needed():
    with torch.no_grad():
        (found,) = ball()(tensor(POINT))
    assert not found.requires_grad
    torch.testing.assert_close(found, tensor(POINT, grad=False) / np.linalg.norm(POINT))


def test_gradients_that_are_not_numbers_stay_so():
    (found,) = gradient(ball(), tensor(POINT), upstream=[np.nan, 1.0, 1.0])
    assert torch.isnan(found).all()
    (found,) = gradient(ball(), tensor(POINT), upstream=np.zeros(3))
    assert not found.any()


def test_polishing():
    (rough,), (fine,) = (ball(polish=polish)(tensor(POINT, grad=False)) for polish in (False, True))
    exact = np.array(POINT) / np.linalg.norm(POINT)
    assert np.abs(fine.numpy() - exact).max() < 1e-14 < np.abs(rough.numpy() - exact).max() < 1e-6


def test_other_solvers():
    for name in ("SCS", "scs"):
        layer = ball(solver=name, solver_args={"eps_abs": 1e-9, "eps_rel": 1e-9})
        (found,) = gradient(layer, tensor(POINT), upstream=UPSTREAM)
        np.testing.assert_allclose(found, [0.31284946, 0.52344069, -0.25716428], atol=1e-8)
    entropy = entropy_layer(solver="SCS", backward_solver="CLARABEL", cone_mode="resolve", alpha=1e3)
    point = random(4)
    torch.testing.assert_close(entropy(point)[0], torch.softmax(point, 0), atol=1e-7, rtol=0)
    assert torch.isfinite(gradient(entropy, point, upstream=np.ones(4))[0]).all()
    layer = box(solver="OSQP")
    (found,) = gradient(layer, tensor([2.0, 0.3, -0.4, -3.0]), upstream=[1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(found, [0.0, 2.0, 3.0, 0.0], atol=1e-10)
    S, X = cp.Parameter((3, 3)), cp.Variable((3, 3), symmetric=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(X - S)), [X >> 0, cp.sum(X) == 1])
    point = random(3, 3)
    one, other = (FFOLayer(problem, [S], [X], solver=name)(point)[0] for name in ("CLARABEL", "SCS"))
    torch.testing.assert_close(one, other, atol=1e-7, rtol=0)


def test_options_of_the_solver():
    layer = ball(solver_args={"max_iter": 2}, polish=False)
    with pytest.warns(UserWarning, match=r"instance 0 \(status 'MaxIterations'\)"):
        layer(tensor(POINT))
    assert not certificate(layer).certified
    assert certificate(layer).statuses == ("MaxIterations",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns once
        layer(tensor(POINT))
        layer(tensor(POINT), solver_args={"max_iter": 50})
    assert certificate(layer).statuses == ("Solved",)
    with pytest.raises(ValueError, match="solver_args must have settings of Clarabel, got 'steps'"):
        layer(tensor(POINT), solver_args={"steps": 3})
    with pytest.raises(TypeError, match="solver_args must be a dict"):
        layer(tensor(POINT), solver_args=3)


def test_certificate_of_good_and_bad_instances():
    layer = box()
    layer(tensor([[2.0, 0.3, -0.4, -3.0], [1.0, 0.3, 0.2, 0.1]]))
    report = certificate(layer)
    assert report.differentiable == "doubtful"
    assert report.doubtful.tolist() == [False, True]  # the first coordinate is only just at its bound
    assert not report.certified
    layer(tensor([[2.0, 0.3, -0.4, -3.0]]))
    assert certificate(layer, check_gradient=True).certified
    assert certificate(layer).n_active.tolist()[0] >= 2
    # What was recorded is not what is certified: another point fails.
    ghost = layer._last_call.instances[0].ghost
    ghost.point[:] += 1e-3
    assert not certificate(layer).certificates[0].holds


def test_apex_of_a_cone():
    """A group whose norm is penalised away: its gradient is 0, and that of the other is known."""
    x, y = cp.Parameter(4), cp.Variable(4)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y - x) + cp.norm(y[:2]) + cp.norm(y[2:])))
    layer = FFOLayer(problem, [x], [y], alpha=1e4)
    point = np.array([0.3, -0.4, 3.0, 4.0])
    (found,) = gradient(layer, tensor(point), upstream=[1.0, 1.0, 1.0, 0.0])
    unit = point[2:] / 5.0
    shrunk = np.eye(2) - (np.eye(2) - np.outer(unit, unit)) / 5.0
    np.testing.assert_allclose(found, [0.0, 0.0, *shrunk[0]], atol=1e-6)


def test_degenerate_vertex_is_flagged():
    """Three bounds through one point of the plane."""
    x, y = cp.Parameter(2), cp.Variable(2)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [y <= 0, cp.sum(y) <= 0])
    layer = FFOLayer(problem, [x], [y])
    assert torch.isfinite(gradient(layer, tensor([1.0, 1.0]), upstream=[1.0, 2.0])[0]).all()
    assert certificate(layer).differentiable == "doubtful"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4))
def test_box_property(point):
    """Wherever no coordinate is near a kink, the gradient picks the free ones."""
    values = np.array(point)
    if np.abs(np.abs(values) - 1).min() < 1e-3:
        return
    (found,) = gradient(_BOX, tensor(values), upstream=np.arange(1.0, 5.0))
    np.testing.assert_allclose(found, np.arange(1.0, 5.0) * (np.abs(values) < 1), atol=1e-9)


_BOX = box()


def test_instances_without_a_solution_are_named():
    r, y = cp.Parameter(), cp.Variable(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y)), [y >= 1, cp.sum(y) <= r]), [r], [y])
    with pytest.raises(ValueError, match=r"instance 1 that is infeasible .status 'PrimalInfeasible' of CLARABEL"):
        layer(tensor([3.0, 1.0]))
    layer = FFOLayer(cp.Problem(cp.Minimize(r * cp.sum(y)), [y >= 0]), [r], [y])
    with pytest.raises(ValueError, match=r"instance 2 that is unbounded .status 'DualInfeasible'"):
        layer(tensor([3.0, 1.0, -1.0]))
    layer = FFOLayer(cp.Problem(cp.Minimize(r * cp.sum(y)), [y >= 0]), [r], [y], solver="SCS")
    with pytest.raises(ValueError, match="instance 0 that is unbounded"):
        layer(tensor([-1.0]))


def test_solutions_that_are_not_unique():
    c, y = cp.Parameter(2), cp.Variable(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(c @ y), [y >= 0, y <= 1, cp.sum(y) == 1]), [c], [y])
    (found,) = layer(tensor([[0.0, 1.0], [1.0, 1.0]]))  # a vertex, and a whole edge
    with pytest.raises(ValueError, match="unique solutions, got instance 1"):
        found[:, 0].sum().backward()
    (slope,) = gradient(layer, tensor([0.0, 1.0]), upstream=[1.0, 2.0])
    np.testing.assert_allclose(slope, 0.0, atol=1e-9)


def test_bad_problems():
    x, y, n = cp.Parameter(2), cp.Variable(2), cp.Variable(2, integer=True)
    good = cp.Problem(cp.Minimize(cp.sum_squares(y - x)))
    with pytest.raises(TypeError, match=r"problem must be a cvxpy\.Problem"):
        FFOLayer("problem", [x], [y])
    with pytest.raises(ValueError, match="DPP"):
        FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y) + (x[0] * x[1]) * y[0])), [x], [y])
    with pytest.raises(ValueError, match="DCP"):
        FFOLayer(cp.Problem(cp.Maximize(cp.sum_squares(y - x))), [x], [y])
    with pytest.raises(ValueError, match="integer"):
        FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(n - x))), [x], [n])
    with pytest.raises(ValueError, match="power cones"):
        FFOLayer(cp.Problem(cp.Minimize(cp.sum(y) + x[0]), [cp.PowCone3D(y[0], y[1], 1.0, 0.3)]), [x], [y])
    with pytest.raises(ValueError, match="parameters must be exactly those of the problem"):
        FFOLayer(good, [cp.Parameter(2)], [y])
    with pytest.raises(ValueError, match="parameters must be at least one"):
        FFOLayer(good, [], [y])
    with pytest.raises(ValueError, match="variables must be primal variables"):
        FFOLayer(good, [x], [cp.Variable(2)])
    with pytest.raises(TypeError, match=r"variables must contain cvxpy\.Variable"):
        FFOLayer(good, [x], [x])
    with pytest.raises(TypeError, match="variables must be a list"):
        FFOLayer(good, [x], y)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"alpha": 0.0}, ValueError, "alpha must be greater than 0"),
        ({"alpha": -1.0}, ValueError, "alpha must be greater than 0"),
        ({"active": "all"}, ValueError, "active must be one of"),
        ({"polish": 1}, TypeError, "polish must be True or False"),
        ({"dual_cutoff": -1.0}, ValueError, "dual_cutoff"),
        ({"slack_tol": float("nan")}, ValueError, "slack_tol"),
        ({"difference": "both"}, ValueError, "difference must be one of"),
        ({"cone_mode": "ignore"}, ValueError, "cone_mode must be one of"),
        ({"max_workers": 0}, ValueError, "max_workers"),
        ({"solver": None}, TypeError, "solver must be the name"),
        ({"solver_args": 3}, TypeError, "solver_args must be a dict"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        ball(**options)


def test_bad_tensors():
    layer = least_squares()
    A, b = random(5, 3), random(5)
    with pytest.raises(ValueError, match="one tensor per parameter, 2, got 1"):
        layer(A)
    with pytest.raises(ValueError, match=r"params\[1\] must have shape \(5,\), .* got \(4,\)"):
        layer(A, random(4))
    with pytest.raises(ValueError, match=r"params\[0\] must have shape \(5, 3\)"):
        layer(random(2, 2, 5, 3), b)
    with pytest.raises(ValueError, match=r"one batch size, at least 1, got 3 for params\[1\] after 2"):
        layer(random(2, 5, 3), random(3, 5))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        layer(random(0, 5, 3), b)
    with pytest.raises(ValueError, match=r"params\[1\] must be finite"):
        layer(A, b * torch.tensor(float("nan")))
    with pytest.raises(TypeError, match=r"params\[0\] must be a tensor"):
        layer(A.detach().numpy(), b)
    with pytest.raises(TypeError, match=r"params\[1\] must have a real floating-point dtype"):
        layer(A, torch.arange(5))


def test_parameters_keep_what_was_declared():
    def layer(**attributes):
        shape = () if attributes.keys() & {"nonneg", "neg"} else (2, 2)
        p, y = cp.Parameter(shape, **attributes), cp.Variable(2)
        return FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y - cp.sum(p)))), [p], [y])

    with pytest.raises(ValueError, match="must be nonneg"):
        layer(nonneg=True)(tensor(-1.0))
    with pytest.raises(ValueError, match="must be neg"):
        layer(neg=True)(tensor(0.0))
    with pytest.raises(ValueError, match="must be symmetric"):
        layer(symmetric=True)(tensor([[1.0, 2.0], [3.0, 4.0]]))
    with pytest.raises(ValueError, match=r"must be PSD.* eigenvalue of -1"):
        layer(PSD=True)(tensor([[1.0, 0.0], [0.0, -1.0]]))
    with pytest.raises(ValueError, match=r"must be NSD.* eigenvalue of 1"):
        layer(NSD=True)(tensor([[1.0, 0.0], [0.0, -1.0]]))
    with pytest.raises(ValueError, match="must be diagonal"):
        layer(diag=True)(tensor([[1.0, 2.0], [0.0, 4.0]]))


def test_without_cvxpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(MissingExtraError, match=r"assay\[cvxpy\]"):
        FFOLayer(None, [], [])


def test_certificate_needs_a_call():
    with pytest.raises(ValueError, match="must have been called"):
        certificate(ball())
    with pytest.raises(TypeError, match="layer must be an FFOLayer"):
        certificate(torch.nn.Linear(2, 2))
    layer = ball()
    layer(tensor(POINT))
    with pytest.raises(ValueError, match="tol must be greater than 0"):
        certificate(layer, tol=0.0)


def test_layer_can_be_copied():
    layer = ball()
    layer(tensor(POINT))
    layer = copy.deepcopy(layer)
    torch.testing.assert_close(layer(tensor(POINT))[0], ball()(tensor(POINT))[0])
