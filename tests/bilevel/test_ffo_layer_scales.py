"""Gradients that do not depend on units, on what the solver has left undone, or on what happens to the data later."""

import numpy as np
import pytest
import torch
from torch.autograd.functional import hessian

from assay.bilevel import FFOLayer, FFOQPLayer, certificate
from assay.bilevel.ffo_faces import strongest_independent
from assay.bilevel.ffo_ghost import Ghost
from assay.bilevel.qp_ghost import QuadraticForm, first_order_move

cp = pytest.importorskip("cvxpy")
EYE = torch.eye(2, dtype=torch.float64)
BOX = torch.cat([EYE, -EYE]), torch.ones(4, dtype=torch.float64)


def tensor(values, grad=True):
    return torch.tensor(np.asarray(values, dtype=float), requires_grad=grad)


def random_qp(seed, n=8, m=12, p=2):
    rng = np.random.default_rng(seed)
    root, point = rng.normal(size=(n, n)), rng.normal(size=n)
    G, A = rng.normal(size=(m, n)), rng.normal(size=(p, n))
    return [root @ root.T / n + np.eye(n), 3 * rng.normal(size=n), G, G @ point + rng.random(m), A, A @ point]


def gradients(layer, data, upstream):
    leaves = [tensor(part) for part in data]
    return [part.numpy() for part in torch.autograd.grad(layer(*leaves), leaves, tensor(upstream, grad=False))]


@pytest.mark.parametrize("size", [1e-150, 1e-12, 1e-6, 1e6, 1e12, 1e150])
def test_units_of_the_objective(size):
    data, upstream = random_qp(0), np.arange(8.0)
    layer = FFOQPLayer()
    plain = gradients(layer, data, upstream)
    scaled = gradients(layer, [size * data[0], size * data[1], *data[2:]], upstream)
    report = certificate(layer, check_gradient=True)
    assert report.certified
    for factor, one, other in zip((size, size, 1, 1, 1, 1), scaled, plain, strict=True):
        np.testing.assert_allclose(factor * one, other, atol=1e-9)


def test_units_of_the_rows_and_of_the_unknowns():
    data, upstream = random_qp(1), np.arange(8.0)
    plain = gradients(FFOQPLayer(), data, upstream)
    sizes = 10.0 ** np.linspace(-8, 8, 12)
    rows = [data[0], data[1], sizes[:, None] * data[2], sizes * data[3], 1e-7 * data[4], 1e-7 * data[5]]
    layer = FFOQPLayer()
    found = gradients(layer, rows, upstream)
    assert certificate(layer, check_gradient=True).certified
    factors = (1.0, 1.0, sizes[:, None], sizes, 1e-7, 1e-7)
    for factor, one, other in zip(factors, found, plain, strict=True):
        np.testing.assert_allclose(factor * one, other, atol=1e-8)
    for size in (1e-7, 1e9):  # the point is so many times as long
        long = [data[0], size * data[1], data[2], size * data[3], data[4], size * data[5]]
        np.testing.assert_allclose(gradients(FFOQPLayer(), long, upstream)[1], plain[1], atol=1e-8)


def test_against_differences_of_tight_solutions():
    """By all data at once, in a random direction."""
    tight = FFOQPLayer(solver_args=dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12), polish=False)
    for seed in range(6):
        rng, data = np.random.default_rng(seed), random_qp(seed)
        direction = [rng.normal(size=part.shape) for part in data]
        upstream, layer = rng.normal(size=8), FFOQPLayer()
        found = sum(np.sum(a * b) for a, b in zip(gradients(layer, data, upstream), direction, strict=True))
        sides = [
            tight(*(tensor(a + sign * 1e-5 * b, grad=False) for a, b in zip(data, direction, strict=True)))
            for sign in (1, -1)
        ]
        assert found == pytest.approx(float(upstream @ (sides[0] - sides[1]).numpy()) / 2e-5, rel=1e-4, abs=1e-4)
        assert certificate(layer).certified


@pytest.mark.parametrize("gap", [1e-3, 1e-5])
def test_close_to_a_change_of_the_active_set(gap):
    """An interior point stops within 1e-4 of such a solution; exchanging rows gives the exact one."""
    layer, x = FFOQPLayer(), tensor([1.0 + gap, 1.0 - gap])
    found = layer(EYE, -x, *BOX)
    np.testing.assert_allclose(found.detach(), [1.0, 1.0 - gap], atol=1e-15)
    found.sum().backward()
    np.testing.assert_allclose(x.grad, [0.0, 1.0])
    report = certificate(layer)
    assert report.certified
    assert report.margin[0] == pytest.approx(gap)
    rough = FFOQPLayer(polish=False, solver_args={"tol_gap_abs": 1e-3, "tol_gap_rel": 1e-3})
    with pytest.warns(UserWarning, match="did not meet its tolerances"):
        rough(EYE, -x, *BOX)
    assert not certificate(rough).certified


def test_a_solver_that_is_wrong_is_mended_or_said_to_be_wrong():
    def nothing(*data):
        return np.zeros(2), np.zeros(4), np.zeros(0)

    x = tensor([2.0, 0.3])
    np.testing.assert_allclose(FFOQPLayer(solver=nothing)(EYE, -x, *BOX).detach(), [1.0, 0.3])
    layer = FFOQPLayer(solver=nothing, polish=False)
    with pytest.warns(UserWarning, match="did not meet its tolerances on instance 0"):
        layer(EYE, -x, *BOX)
    report = certificate(layer)
    assert report.differentiable == "doubtful"
    assert [one.holds for one in report.certificates[:4]] == [False, True, True, False]


def test_wrong_active_sets_are_flagged():
    """With thresholds and the default tolerance of the solver, gradients are wrong at times, and then doubtful."""
    wrong = 0
    for seed in range(12):
        data, upstream = random_qp(seed), np.ones(8)
        layer = FFOQPLayer(active="threshold", polish=False)
        apart = np.abs(gradients(layer, data, upstream)[1] - gradients(FFOQPLayer(), data, upstream)[1]).max()
        if apart > 1e-3:
            wrong += 1
            assert certificate(layer).differentiable == "doubtful"
    assert wrong > 0


@pytest.mark.parametrize("twice", ["equations", "inequalities", "both"])
def test_rows_that_are_there_twice(twice):
    """What is there twice takes no room from other rows."""
    x = tensor([2.0, 0.3, -0.5])
    eye, ones = torch.eye(3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    G, h, A, b = torch.cat([eye, -eye]), torch.ones(6, dtype=torch.float64), ones, 1.5 * ones[0, :1]
    layer = FFOQPLayer()
    expected = torch.autograd.grad(layer(eye, -x, G, h, A, b), x, tensor([1.0, 2.0, 4.0], grad=False))[0]
    assert certificate(layer).certified
    if twice != "inequalities":
        A, b = torch.cat([A, 2 * A]), torch.cat([b, 2 * b])
    if twice != "equations":
        G, h = torch.cat([G, G]), torch.cat([h, h])
    found = torch.autograd.grad(layer(eye, -x, G, h, A, b), x, tensor([1.0, 2.0, 4.0], grad=False))[0]
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    assert certificate(layer).differentiable == "doubtful"  # multipliers are not unique


def test_strongest_independent_rows():
    rows = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [1.0, 2.0, 3.0]])
    assert strongest_independent(rows, 1, np.array([1.0, 2.0, 0.5, 0.1])).tolist() == [1, 2]
    assert strongest_independent(rows, 0, np.array([5.0, 1.0, 2.0, 0.5, 0.1])).tolist() == [0, 2, 3]


def test_data_may_change_later():
    h, x = torch.ones(4, dtype=torch.float64), tensor([2.0, 0.3])
    layer = FFOQPLayer()
    layer(EYE, -x, BOX[0], h).sum().backward()
    h.mul_(5.0)
    assert certificate(layer, check_gradient=True).certified  # of the call, not of what has become of its data
    layer = FFOQPLayer()
    found = layer(EYE, -x, BOX[0], h)
    h.mul_(5.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_the_users_solver_gets_copies():
    def careless(Q, q, G, h, A, b):
        q *= 3.0
        return np.clip(-q / 3.0, -1, 1), np.zeros(4), np.zeros(0)

    q = tensor([-2.0, -0.3], grad=False)
    FFOQPLayer(solver=careless)(EYE, q, *BOX)
    assert q.tolist() == [-2.0, -0.3]


def test_second_derivatives_are_refused_by_any_route():
    def value(x):
        return FFOQPLayer()(EYE, -x, *BOX).square().sum()

    with pytest.raises(RuntimeError, match="differentiated once only"):
        hessian(value, tensor([2.0, 0.3], grad=False))


def test_first_order_solver_finds_its_step():
    """The start of the power iteration has nothing of the largest eigenvalue."""
    n = 6
    form = QuadraticForm(np.diag(np.append(np.linspace(1.0, 2.0, n - 1), 50.0)), 1e-8)
    linear = np.append(np.ones(n - 1), -np.cos(n - 1))
    move, _, steps, residual = first_order_move(form, np.zeros((0, n)), linear, 1e-10, 5000)
    assert residual <= 1e-10
    assert steps < 1000
    np.testing.assert_allclose(move, -linear / form.diagonal, atol=1e-8)


def test_words_for_what_is_wrong(capfd):
    x = tensor([2.0, 0.3])
    with pytest.raises(TypeError, match=r"Q must be a dense tensor, got layout torch\.sparse_coo"):
        FFOQPLayer()(EYE.to_sparse(), x)
    with pytest.raises(TypeError, match="q must be a tensor with values"):
        FFOQPLayer()(EYE, x.to("meta"))
    with pytest.raises(ValueError, match=r"h must be a vector, .* got shape \(\)"):
        FFOQPLayer()(EYE, x, BOX[0], torch.tensor(1.0, dtype=torch.float64))
    with pytest.raises(ValueError, match="smallest eigenvalue of -1 for instance 1"):
        FFOQPLayer()(torch.stack([EYE, -EYE]), x)
    with pytest.raises(TypeError, match="solver_args must have settings of Clarabel, got max_iter='many'"):
        FFOQPLayer(solver_args={"max_iter": "many"})(EYE, x)
    layer = FFOQPLayer()
    layer(EYE, x)
    with pytest.raises(TypeError, match="check_gradient must be True or False"):
        certificate(layer, check_gradient=1)
    pytest.importorskip("osqp")
    with pytest.raises(ValueError, match=r"solver_args must have settings of OSQP, got {'steps': 3}"):
        FFOQPLayer(solver="osqp", solver_args={"steps": 3})(EYE, x)
    FFOQPLayer(solver="osqp")(EYE, x)
    assert capfd.readouterr() == ("", "")


def test_default_device_and_dtype_are_of_no_account():
    x, y = cp.Parameter(2), cp.Variable(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [y <= 1]), [x], [y])
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float16)
    try:
        point = torch.tensor([2.0, 0.3], dtype=torch.float64, device="cpu", requires_grad=True)
        (layer(point)[0] + FFOQPLayer()(EYE, -point, *BOX)).sum().backward()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    np.testing.assert_allclose(point.grad, [0.0, 2.0], atol=1e-12)


def group_lasso(**options):
    """Second-order cones at their boundary and at their apex."""
    x, size, y = cp.Parameter(4), cp.Parameter(nonneg=True), cp.Variable(4)
    objective = 0.5 * cp.sum_squares(y - x) + size * (cp.norm(y[:2]) + cp.norm(y[2:]))
    return FFOLayer(cp.Problem(cp.Minimize(objective)), [x, size], [y], **options)


def softmax(**options):
    x, size, y = cp.Parameter(4), cp.Parameter(nonneg=True), cp.Variable(4)
    problem = cp.Problem(cp.Minimize(-x @ y - size * cp.sum(cp.entr(y))), [cp.sum(y) == 1])
    return FFOLayer(problem, [x, size], [y], **options)


def spectrum(**options):
    C, size, X = cp.Parameter((3, 3)), cp.Parameter(nonneg=True), cp.Variable((3, 3), symmetric=True)
    objective = cp.Minimize(cp.trace(C @ X) + 0.2 * size * cp.sum_squares(X))
    return FFOLayer(cp.Problem(objective, [X >> 0, cp.trace(X) == 1]), [C, size], [X], **options)


@pytest.mark.parametrize("kind", [group_lasso, softmax, spectrum])
def test_perturbations_of_any_size_and_objectives_in_any_units(kind):
    rng = np.random.default_rng(2)
    point, upstream = rng.normal(size=(3, 3) if kind is spectrum else 4), rng.normal(size=(3, 3))
    upstream = upstream if kind is spectrum else upstream[0, 0] + np.arange(4.0)
    exact = None
    for alpha, size in ((1e9, 1.0), (1e2, 1.0), (1e5, 1.0), (1e2, 1e-5), (1e2, 1e5)):
        layer, leaves = kind(alpha=alpha), (tensor(size * point), tensor(size))
        found = torch.autograd.grad(layer(*leaves)[0], leaves, tensor(upstream, grad=False))
        report = certificate(layer, check_gradient=True)
        assert report.certified
        # the solution is the same, or as much larger
        factor = 1.0 if kind is group_lasso else size
        found = np.append(factor * found[0].numpy(), factor * found[1].numpy())
        exact = found if exact is None else exact
        assert np.linalg.norm(found - exact) < 1e-3 * np.linalg.norm(exact)
        if alpha > 1e4:
            np.testing.assert_allclose(found, exact, atol=1e-7)


def test_upstream_gradients_that_move_nothing():
    layer, leaves = softmax(), (tensor([0.3, -1.0, 2.0, 0.1]), tensor(1.0))
    found = torch.autograd.grad(layer(*leaves)[0].sum(), leaves)  # which is 1 whatever the data
    np.testing.assert_allclose(found[0], 0.0, atol=1e-12)


@pytest.mark.parametrize("length", [1e-3, 1e4, 1e7])
def test_far_and_near_points_on_a_ball(length):
    x, y = cp.Parameter(3), cp.Variable(3)
    radius = min(length, 1.0) / 2
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [cp.norm(y) <= radius]), [x], [y])
    unit, upstream = np.array([2.0, -1.0, 2.0]) / 3.0, np.array([0.3, 1.0, -0.5])
    point = tensor(length * unit)
    (found,) = layer(point)
    np.testing.assert_allclose(found.detach(), radius * unit, rtol=1e-9)
    found.backward(tensor(upstream, grad=False))
    expected = radius * (upstream - unit * (unit @ upstream)) / length
    np.testing.assert_allclose(point.grad, expected, atol=1e-3 * np.linalg.norm(expected))
    report = certificate(layer)
    assert report.certified
    assert report.delta <= 0.01


def test_solutions_that_are_none_are_warned_about():
    x, y = cp.Parameter(3), cp.Variable(3)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [cp.norm(y) <= 1]), [x], [y])
    with pytest.warns(UserWarning, match="CLARABEL did not meet its tolerances on instance 0"):
        layer(tensor([1e20, 1.0, 1.0]))
    assert certificate(layer).differentiable == "doubtful"
    assert not certificate(layer).certificates[0].holds


def test_where_the_ghost_problem_is_of_no_use(monkeypatch):
    """The problem itself is perturbed, and the certificate is not given."""
    layer, leaves = softmax(alpha=1e3), (tensor([0.3, -1.0, 2.0, 0.1]), tensor(1.0))
    expected = torch.autograd.grad(layer(*leaves)[0][0], leaves)
    monkeypatch.setattr(Ghost, "moves", lambda *a: None)
    found = torch.autograd.grad(layer(*leaves)[0][0], leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert certificate(layer).differentiable == "doubtful"


def test_parameters_with_bounds_and_integers():
    x, n, y = cp.Parameter(2, bounds=[-1, 1]), cp.Parameter(2, integer=True), cp.Variable(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y - x))), [x], [y])
    with pytest.raises(ValueError, match=r"params\[0\] must be within its bounds"):
        layer(tensor([2.0, 0.0]))
    with pytest.raises(ValueError, match="must not have the attribute 'integer'"):
        FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y - n))), [n], [y])
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.norm(y - x))), [x], [y], solver="SCS", solver_args={"steps": 3})
    with pytest.raises(TypeError, match=r"solver_args must have settings of SCS, got {'steps': 3}"):
        layer(tensor([1.0, 0.0]))
