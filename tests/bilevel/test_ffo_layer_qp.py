"""FFOQPLayer: gradients against the dense optimality system, active sets, linear programs, and what it refuses."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from assay.bilevel import FFOQPLayer, certificate
from assay.validation import ConvergenceWarning

pytest.importorskip("clarabel")

UPSTREAM = np.random.default_rng(7).normal(size=20)


def tensor(values, grad=True):
    return torch.tensor(np.asarray(values, dtype=float), requires_grad=grad)


def random_qp(n=20, m=30, p=5, seed=0):
    """A feasible instance with a definite form; about half of its inequalities are close to its solution."""
    rng = np.random.default_rng(seed)
    root, point = rng.normal(size=(n, n)), rng.normal(size=n)
    G, A = rng.normal(size=(m, n)), rng.normal(size=(p, n))
    q, h = 3 * rng.normal(size=n), G @ point + rng.random(m)
    return [tensor(part) for part in (root @ root.T / n + np.eye(n), q, G, h, A, A @ point)]


def boxed(x, lower=-1.0, upper=1.0):
    """Projection on a box."""
    eye = torch.eye(x.shape[-1], dtype=torch.float64)
    ones = torch.ones(x.shape[-1], dtype=torch.float64)
    return eye, -x, torch.cat([eye, -eye]), torch.cat([upper * ones, -lower * ones])


def dense(data, point, multipliers, equality_multipliers, upstream):
    """All six gradients by implicit differentiation, written out for one instance."""
    Q, q, G, h, A, b = (part.detach().numpy() for part in data)
    n, m, p = q.size, h.size, b.size
    matrix = np.zeros((n + m + p, n + m + p))
    matrix[:n, :n], matrix[:n, n : n + m], matrix[:n, n + m :] = Q, G.T, A.T
    matrix[n : n + m, :n] = multipliers[:, None] * G
    matrix[n : n + m, n : n + m] = np.diag(G @ point - h)
    matrix[n + m :, :n] = A
    w = np.linalg.solve(matrix.T, -np.concatenate([upstream, np.zeros(m + p)]))
    d, u, v = w[:n], multipliers * w[n : n + m], w[n + m :]
    return [
        0.5 * (np.outer(d, point) + np.outer(point, d)),
        d,
        np.outer(multipliers, d) + np.outer(u, point),
        -u,
        np.outer(equality_multipliers, d) + np.outer(v, point),
        -v,
    ]


def duals(layer):
    call = layer._last_call
    return call.solutions.points[0], call.multipliers[0], call.equality_multipliers[0]


@pytest.mark.parametrize("solver", ["clarabel", "osqp"])
def test_against_the_dense_system(solver):
    if solver == "osqp":
        pytest.importorskip("osqp")
    data, layer = random_qp(), FFOQPLayer(solver=solver)
    found = torch.autograd.grad(layer(*data), data, tensor(UPSTREAM, grad=False))
    for one, other in zip(found, dense(data, *duals(layer), UPSTREAM), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-12)


def test_forward_difference_of_the_form():
    """Everything but the gradient by Q is exact; that one has an error proportional to delta."""
    data, errors = random_qp(), []
    for alpha in (10.0, 100.0):
        layer = FFOQPLayer(difference="forward", alpha=alpha)
        found = torch.autograd.grad(layer(*data), data, tensor(UPSTREAM, grad=False))
        exact = dense(data, *duals(layer), UPSTREAM)
        step = exact[1]
        np.testing.assert_allclose(found[0] - exact[0], 0.5 / alpha * np.outer(step, step), atol=1e-11)
        for one, other in zip(found[1:], exact[1:], strict=True):
            np.testing.assert_allclose(one, other, atol=2e-12)
        errors.append(float(np.linalg.norm(found[0] - exact[0])))
        assert certificate(layer, check_gradient=True).order == pytest.approx(1.0, abs=0.01)
    assert errors[0] / errors[1] == pytest.approx(10.0, rel=1e-6)


def test_gradcheck():
    data = random_qp(4, 5, 1, seed=2)
    layer = FFOQPLayer()
    assert gradcheck(layer, data, atol=1e-6)
    assert certificate(layer).n_active[0] >= 2
    rng = np.random.default_rng(1)
    batch = [part.detach().clone() for part in data]
    batch[0], batch[1] = batch[0].expand(2, 4, 4).clone(), tensor(3 * rng.normal(size=(2, 4)), grad=False)
    assert gradcheck(layer, [part.requires_grad_() for part in batch], atol=1e-6, fast_mode=True)
    assert certificate(layer, check_gradient=True).certified


def test_projections():
    layer, x = FFOQPLayer(), tensor([2.0, 0.3, -0.4, -3.0])
    found = layer(*boxed(x))
    torch.testing.assert_close(found, x.clamp(-1, 1), atol=1e-12, rtol=0)
    (slope,) = torch.autograd.grad(found, x, tensor([1.0, 2.0, 3.0, 4.0], grad=False))
    np.testing.assert_allclose(slope, [0, 2, 3, 0], atol=1e-14)
    eye, ones = torch.eye(4, dtype=torch.float64), torch.ones(1, 4, dtype=torch.float64)
    x = tensor([0.6, 0.5, 0.4, -2.0])
    found = layer(eye, -x, -eye, torch.zeros(4, dtype=torch.float64), ones, ones[0, :1])
    upstream = np.array([1.0, -2.0, 0.5, 3.0])
    (slope,) = torch.autograd.grad(found, x, tensor(upstream, grad=False))
    np.testing.assert_allclose(slope, np.append(upstream[:3] - upstream[:3].mean(), 0.0), atol=1e-14)


@pytest.mark.parametrize("alpha", [1.0, 1e3])
def test_equations_only_is_exact_for_every_delta(alpha):
    Q, q, _, _, A, b = random_qp()
    layer = FFOQPLayer(difference="forward", alpha=alpha)
    point = layer(Q, q, None, None, A, b)
    found = torch.autograd.grad(point, (q, b), tensor(UPSTREAM, grad=False))
    form, rows = Q.detach().numpy(), A.detach().numpy()
    matrix = np.block([[form, rows.T], [rows, np.zeros((5, 5))]])
    w = np.linalg.solve(matrix, np.concatenate([-UPSTREAM, np.zeros(5)]))
    np.testing.assert_allclose(found[0], w[:20], atol=1e-12)
    np.testing.assert_allclose(found[1], -w[20:], atol=1e-12)


def test_without_constraints():
    Q, q = random_qp()[:2]
    torch.testing.assert_close(FFOQPLayer()(Q, q), -torch.linalg.solve(Q, q), atol=1e-10, rtol=0)


def test_rows_with_one_entry_and_diagonal_forms_change_nothing():
    """Bounds are eliminated and a diagonal form is not factorised; a rotation of the same problem has neither."""
    rng = np.random.default_rng(3)
    n = 8
    turn = np.linalg.qr(rng.normal(size=(n, n)))[0]
    Q, q = np.diag(rng.random(n) + 0.5), 2 * rng.normal(size=n)
    G = np.vstack([np.eye(n), -np.eye(n), np.ones(n)])
    h = np.concatenate([0.4 * np.ones(2 * n), [1.0]])
    upstream = rng.normal(size=n)
    plain = [tensor(part) for part in (Q, q, G, h)]
    turned = [tensor(part) for part in (turn @ Q @ turn.T, turn @ q, G @ turn.T, h)]
    one, other = FFOQPLayer()(*plain), FFOQPLayer()(*turned)
    np.testing.assert_allclose(turn @ one.detach().numpy(), other.detach(), atol=1e-12)
    by_plain = torch.autograd.grad(one, plain, tensor(upstream, grad=False))
    by_turned = torch.autograd.grad(other, turned, tensor(turn @ upstream, grad=False))
    np.testing.assert_allclose(by_turned[0], turn @ by_plain[0].numpy() @ turn.T, atol=1e-12)
    np.testing.assert_allclose(by_turned[1], turn @ by_plain[1].numpy(), atol=1e-12)
    np.testing.assert_allclose(by_turned[2], by_plain[2].numpy() @ turn.T, atol=1e-12)
    np.testing.assert_allclose(by_turned[3], by_plain[3], atol=1e-12)


def test_dense_form_with_many_bounds():
    """The factor is of the free coordinates only, and the gradients are those of the dense system."""
    Q, q = random_qp()[:2]
    eye = torch.eye(20, dtype=torch.float64)
    data = [
        Q,
        q,
        torch.cat([eye, -eye]).requires_grad_(),
        tensor(0.1 * np.ones(40)),
        tensor(np.ones((1, 20))),
        tensor([0.3]),
    ]
    layer = FFOQPLayer()
    found = torch.autograd.grad(layer(*data), data, tensor(UPSTREAM, grad=False))
    assert certificate(layer).n_active[0] > 10
    for one, other in zip(found, dense(data, *duals(layer), UPSTREAM), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("shared", ["nothing", "matrices", "vectors", "all but q"])
def test_batches(shared):
    names = ("Q", "q", "G", "h", "A", "b")
    kept = {"nothing": "", "matrices": "QGA", "vectors": "qhb", "all but q": "QGhAb"}[shared]
    instances = [random_qp(6, 8, 2, seed) for seed in range(3)]
    data = [
        instances[0][k] if names[k] in kept else torch.stack([one[k] for one in instances]).detach().requires_grad_()
        for k in range(6)
    ]
    if shared != "nothing":  # so that there are solutions
        data[3] = data[3] + 5.0
        if data[4].ndim != data[5].ndim + 1 or shared == "vectors":
            data[4], data[5] = instances[0][4], instances[0][5]
    layer, upstream = FFOQPLayer(), np.random.default_rng(0).normal(size=(3, 6))
    together = layer(*data)
    assert together.shape == (3, 6)
    leaves = [part.detach().requires_grad_() for part in data]
    found = torch.autograd.grad(layer(*leaves), leaves, tensor(upstream, grad=False))
    total = [torch.zeros_like(part) for part in data]
    for i in range(3):
        alone = [(part if part.ndim == base.ndim else part[i]).detach().requires_grad_()
                 for part, base in zip(data, instances[0], strict=True)]  # fmt: skip
        single = layer(*alone)
        assert single.shape == (6,)
        torch.testing.assert_close(single, together[i])
        parts = torch.autograd.grad(single, alone, tensor(upstream[i], grad=False))
        for whole, part, base in zip(total, parts, instances[0], strict=True):
            if whole.ndim == base.ndim:
                whole += part
            else:
                whole[i] = part
        assert layer(*(part[None] for part in alone)).shape == (1, 6)
    for one, other in zip(found, total, strict=True):
        torch.testing.assert_close(one, other)


def test_only_what_is_needed():
    Q, q, G, h, A, b = random_qp()
    data = [part.detach() for part in (Q, q, G, h, A, b)]
    data[3].requires_grad_()
    FFOQPLayer()(*data).sum().backward()
    assert data[3].grad is not None
    assert all(part.grad is None for k, part in enumerate(data) if k != 3)


def test_first_order_inner_solver():
    data = random_qp()
    direct = torch.autograd.grad(FFOQPLayer()(*data), data, tensor(UPSTREAM, grad=False))
    counts = []
    for tol in (1e-4, 1e-8, 1e-12):
        layer = FFOQPLayer(inner="first_order", tol=tol)
        found = torch.autograd.grad(layer(*data), data, tensor(UPSTREAM, grad=False))
        for one, other in zip(found, direct, strict=True):
            torch.testing.assert_close(one, other, atol=1e3 * tol, rtol=0)
        counts.append(int(certificate(layer).iterations[0]))
    assert 0 < counts[0] < counts[1] < counts[2] < 200
    assert counts[2] - counts[1] < 3 * (counts[1] - counts[0])  # linear in the digits
    layer = FFOQPLayer(inner="first_order", tol=1e-12, max_iter=3)
    with pytest.warns(ConvergenceWarning, match="tol=1e-12 in 3 iterations"):
        layer(*data).sum().backward()


def test_active_sets_at_default_tolerance():
    """The comparison finds the active rows that polishing confirms; a threshold on the slacks misses some."""
    wrong = {"compare": 0, "threshold": 0}
    for seed in range(25):
        data = random_qp(10, 15, 2, seed)
        reference = FFOQPLayer(solver_args={"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13})
        reference(*data)
        truth = reference._last_call.solutions.active[0].tolist()
        assert certificate(reference).certified
        for name in wrong:
            layer = FFOQPLayer(active=name, polish=name == "compare")
            layer(*data)
            wrong[name] += layer._last_call.solutions.active[0].tolist() != truth
    assert wrong["compare"] == 0
    assert wrong["threshold"] >= 3


def test_polishing_is_kept_only_where_it_is_right():
    data = random_qp()
    rough, fine = FFOQPLayer(polish=False), FFOQPLayer()
    rough(*data), fine(*data)
    assert certificate(fine).kkt_residual[0] < 1e-14 < certificate(rough).kkt_residual[0]
    assert certificate(fine).polished.all()
    missing = FFOQPLayer(active="threshold", slack_tol=0.0, dual_cutoff=1e3)  # no row counts as active
    missing(*data)
    assert not certificate(missing).polished.any()
    assert certificate(missing).kkt_residual[0] < 1e-6  # what the solver returned


def test_linear_program_with_a_unique_vertex():
    zero, eye = torch.zeros(3, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    c = tensor([1.0, 2.0, 3.0])
    A, b, h = tensor(np.ones((1, 3))), tensor([1.0]), tensor(np.zeros(3))
    layer = FFOQPLayer()
    point = layer(zero, c, -eye, h, A, b)
    np.testing.assert_allclose(point.detach(), [1, 0, 0], atol=1e-12)
    by_c, by_h, by_b = torch.autograd.grad(point, (c, h, b), tensor([5.0, 7.0, 9.0], grad=False))
    np.testing.assert_allclose(by_c, 0.0, atol=1e-9)
    # y = (b + h_2 + h_3, -h_2, -h_3)
    np.testing.assert_allclose(by_h, [0.0, 5.0 - 7.0, 5.0 - 9.0], atol=1e-9)
    np.testing.assert_allclose(by_b, [5.0], atol=1e-9)
    assert certificate(layer, check_gradient=True).certified


def test_linear_program_with_an_edge():
    eye = torch.eye(3, dtype=torch.float64)
    data = [torch.zeros(3, 3, dtype=torch.float64), tensor([1.0, 1.0, 3.0]), -eye, tensor(np.zeros(3))]
    with pytest.raises(ValueError, match="instance 0 whose solution is not unique"):
        FFOQPLayer()(*data, tensor(np.ones((1, 3))), tensor([1.0]))


def test_singular_form_where_constraints_decide():
    """Rank one and not diagonal: the shift of the factor leaves no trace in the gradient."""
    direction = np.array([1.0, 1.0, 0.0])
    data = [tensor(part) for part in (np.outer(direction, direction), [1.0, 0.0, 1.0], -np.eye(3), 0.1 * np.ones(3))]
    layer = FFOQPLayer()
    point = layer(*data)
    np.testing.assert_allclose(point.detach(), [-0.1, 0.1, -0.1], atol=1e-9)
    assert gradcheck(lambda *a: layer(data[0].detach(), *a), data[1:], atol=1e-5)
    layer(*data)
    assert certificate(layer).differentiable == "yes"


def test_multiplier_of_zero_is_doubtful():
    layer, x = FFOQPLayer(), tensor([1.0, 0.3])  # at its bound, and wants no further
    layer(*boxed(x)).sum().backward()
    report = certificate(layer)
    assert report.differentiable == "doubtful"
    assert report.margin[0] < 1e-6
    assert not report.certified


def test_degenerate_vertex_is_capped_and_flagged():
    """Four rows through a point of the plane, all with positive multipliers."""
    G = tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 2.0]])
    data = [torch.eye(2, dtype=torch.float64), tensor([-3.0, -4.0]), G, tensor(np.zeros(4))]
    layer = FFOQPLayer()
    layer(*data).sum().backward()
    report = certificate(layer)
    assert report.n_active[0] <= 2
    assert report.differentiable == "doubtful"
    assert layer._last_call.capped.all()
    assert torch.isfinite(data[2].grad).all()


def test_repeated_bounds_are_flagged():
    eye = torch.eye(2, dtype=torch.float64)
    q = tensor([-3.0, 0.2])
    layer = FFOQPLayer()
    point = layer(eye, q, torch.cat([eye, eye]), torch.ones(4, dtype=torch.float64))
    (slope,) = torch.autograd.grad(point, q, tensor([1.0, 2.0], grad=False))
    np.testing.assert_allclose(slope, [0.0, -2.0], atol=1e-12)
    assert certificate(layer).differentiable == "doubtful"


def test_sudoku():
    """A puzzle of four by four as a quadratic program; the given cells decide it."""
    solution = np.array([[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]) - 1
    cells = np.eye(4)[solution].reshape(64)
    index = np.arange(64).reshape(4, 4, 4)
    groups = [index[r, c] for r in range(4) for c in range(4)]
    groups += [index[r, :, k] for r in range(4) for k in range(4)] + [
        index[:, c, k] for c in range(4) for k in range(4)
    ]
    groups += [index[r : r + 2, c : c + 2, k].ravel() for r in (0, 2) for c in (0, 2) for k in range(4)]
    A = np.zeros((64, 64))
    for row, group in enumerate(groups):
        A[row, group] = 1.0
    shown = np.zeros((4, 4, 4))
    for r, c in ((0, 0), (0, 1), (1, 2), (2, 1), (3, 3), (1, 1), (2, 2)):
        shown[r, c, solution[r, c]] = 1.0
    q = tensor(-shown.reshape(64))
    independent = A[np.unique(np.linalg.qr(A.T)[1].round(9).nonzero()[0])]
    rank = np.linalg.matrix_rank(A)
    layer = FFOQPLayer()
    eye = torch.eye(64, dtype=torch.float64)
    point = layer(0.1 * eye, q, -eye, tensor(np.zeros(64)), tensor(A), tensor(np.ones(64)))
    np.testing.assert_allclose(
        point.detach().numpy().reshape(16, 4).argmax(axis=1), cells.reshape(16, 4).argmax(axis=1)
    )
    point.square().sum().backward()
    assert torch.isfinite(q.grad).all()
    assert rank < 64
    assert len(independent) <= 64
    assert certificate(layer).differentiable == "doubtful"  # its equations depend on each other


def test_solver_of_the_users():
    def solver(Q, q, G, h, A, b):
        assert isinstance(Q, np.ndarray)
        point = np.clip(-q, -1, 1)
        return point, np.maximum(np.concatenate([-q - 1, q - 1]), 0.0), np.zeros(0)

    x = tensor([2.0, 0.3])
    layer = FFOQPLayer(solver=solver)
    np.testing.assert_allclose(layer(*boxed(x)).detach(), [1.0, 0.3])
    layer(*boxed(x)).sum().backward()
    np.testing.assert_allclose(x.grad, [0.0, 1.0])
    assert certificate(layer).certified
    assert "callable" in repr(layer)

    tiny = FFOQPLayer(solver=lambda *data: (np.zeros(2), -1e-10 * np.ones(4), np.zeros(0)), polish=False)
    with pytest.warns(UserWarning, match="did not meet its tolerances"):
        tiny(*boxed(x))
    assert (tiny._last_call.multipliers == 0).all()
    with pytest.raises(ValueError, match=r"multipliers of at least 0, got -0.1 for instance 0"):
        FFOQPLayer(solver=lambda *data: (np.zeros(2), -0.1 * np.ones(4), np.zeros(0)))(*boxed(x))
    with pytest.raises(ValueError, match=r"vectors of sizes \(2, 4, 0\)"):
        FFOQPLayer(solver=lambda *data: (np.zeros(2), np.zeros(3), np.zeros(0)))(*boxed(x))
    with pytest.raises(TypeError, match="must return a tuple"):
        FFOQPLayer(solver=lambda *data: np.zeros(2))(*boxed(x))


@pytest.mark.parametrize("solver", ["clarabel", "osqp"])
def test_instances_without_a_solution_are_named(solver):
    pytest.importorskip(solver)
    layer = FFOQPLayer(solver=solver)
    Q, q, G, h = boxed(tensor(np.zeros((2, 2))))
    h = torch.stack([h, -h])
    with pytest.raises(ValueError, match=r"instance 1 that is infeasible"):
        layer(Q, q, G, h)
    with pytest.raises(ValueError, match="instance 1 that is unbounded"):
        layer(torch.diag(tensor([1.0, 0.0])), tensor([[0.0, 1.0], [0.0, -1.0]]), tensor([[0.0, -1.0]]), tensor([1.0]))


def test_types_and_module_manners():
    layer, x = FFOQPLayer(), tensor([2.0, 0.3])
    single = x.detach().float().requires_grad_()
    Q, _, G, h = boxed(single.double())
    point = layer(Q.float(), -single, G.float(), h)
    assert point.dtype == torch.float32
    point.sum().backward()
    assert single.grad.dtype == torch.float32
    assert layer.state_dict() == {}
    assert pickle.loads(pickle.dumps(layer))(*boxed(x)).shape == (2,)
    assert copy.deepcopy(layer)(*boxed(x)).shape == (2,)
    assert "clarabel" in repr(layer)
    (slope,) = torch.autograd.grad(layer(*boxed(x)).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once only"):
        slope.sum().backward()


@pytest.mark.gpu
def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    data = [part.detach().cuda().requires_grad_() for part in random_qp()]
    found = torch.autograd.grad(FFOQPLayer()(*data), data, torch.tensor(UPSTREAM, device="cuda"))
    plain = random_qp()
    expected = torch.autograd.grad(FFOQPLayer()(*plain), plain, tensor(UPSTREAM, grad=False))
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == "cuda"
        torch.testing.assert_close(one.cpu(), other)


def test_asymmetric_forms_count_by_their_symmetric_part():
    data = random_qp()
    skew = np.random.default_rng(9).normal(size=(20, 20))
    other = [data[0].detach() + tensor(skew - skew.T, grad=False), *data[1:]]
    torch.testing.assert_close(FFOQPLayer()(*other), FFOQPLayer()(*data), atol=1e-9, rtol=0)


def test_inaccurate_solutions_are_said():
    layer, data = FFOQPLayer(solver_args={"max_iter": 2}, polish=False), random_qp()
    with pytest.warns(UserWarning, match=r"instance 0 \(status 'MaxIterations'\)"):
        layer(*data)
    report = certificate(layer)
    assert not report.certified
    assert not report.certificates[0].holds
    assert report.certificates[0].violated


def test_certificates_are_of_the_answer():
    layer = FFOQPLayer()
    layer(*random_qp())
    assert certificate(layer, check_gradient=True).certified
    layer._last_call.solutions.points += 1e-3
    assert not certificate(layer).certificates[0].holds
    layer._last_call.solutions.points -= 1e-3
    found = layer._last_call.solutions
    found.lam[0, found.active[0]] *= 1.5  # gradients by G are off by as much
    found.systems, found.active = [None], [found.active[0][1:]]
    assert not certificate(layer, check_gradient=True).certificates[-1].holds


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(0, 15), st.integers(0, 3))
def test_random_programs(seed, n, m, p):
    """The gradient is that of the dense system, or is called doubtful."""
    data = random_qp(n, m, min(p, n - 1), seed)
    layer = FFOQPLayer()
    layer(*data).backward(tensor(np.random.default_rng(seed).normal(size=n), grad=False))
    report = certificate(layer, check_gradient=True)
    assert report.certified or report.differentiable == "doubtful"
    assert report.to_dict()["differentiable"] == report.differentiable
    assert repr(report)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"alpha": 0.0}, ValueError, "alpha must be greater than 0"),
        ({"eps": 0.0}, ValueError, "eps must be greater than 0"),
        ({"active": "some"}, ValueError, "active must be one of"),
        ({"polish": "yes"}, TypeError, "polish must be True or False"),
        ({"inner": "cg"}, ValueError, "inner must be one of"),
        ({"difference": "both"}, ValueError, "difference must be one of"),
        ({"solver": "gurobi"}, ValueError, "solver must be one of"),
        ({"solver_args": 3}, TypeError, "solver_args must be a dict"),
        ({"tol": 0.0}, ValueError, "tol must be greater than 0"),
        ({"max_iter": 0}, ValueError, "max_iter"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        FFOQPLayer(**options)


def test_bad_data():
    layer = FFOQPLayer()
    Q, q, G, h, A, b = random_qp(4, 3, 1)
    with pytest.raises(ValueError, match=r"Q must be positive semidefinite, got a smallest eigenvalue of -"):
        layer(Q - 9.0 * torch.eye(4), q, G, h)
    with pytest.raises(ValueError, match=r"smallest eigenvalue of -2"):
        layer(torch.diag(tensor([1.0, 1.0, 1.0, -2.0])), q, G, h)
    with pytest.raises(ValueError, match=r"Q must have shape \(4, 4\)"):
        layer(Q[:3], q, G, h)
    with pytest.raises(ValueError, match=r"G must have shape \(3, 4\)"):
        layer(Q, q, G[:2], h)
    with pytest.raises(ValueError, match=r"A must have shape \(1, 4\)"):
        layer(Q, q, G, h, A[:, :3], b)
    with pytest.raises(ValueError, match="G and h must be given together"):
        layer(Q, q, G)
    with pytest.raises(ValueError, match="A and b must be given together"):
        layer(Q, q, G, h, None, b)
    with pytest.raises(ValueError, match="one batch size, at least 1, got 3 for h after 2"):
        layer(Q, q.expand(2, 4), G, h.expand(3, 3))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        layer(Q, q.expand(0, 4), G, h)
    with pytest.raises(ValueError, match="h must be finite"):
        layer(Q, q, G, h * float("inf"))
    with pytest.raises(ValueError, match="q must be finite"):
        layer(Q, q * float("nan"), G, h)
    with pytest.raises(ValueError, match="q must have shape"):
        layer(Q, q.sum(), G, h)
    with pytest.raises(TypeError, match="Q must be a tensor, got ndarray"):
        layer(Q.detach().numpy(), q)
    with pytest.raises(TypeError, match="q must have a real floating-point dtype"):
        layer(Q, torch.arange(4))


def test_certificate_bounds_the_size_of_its_check():
    layer = FFOQPLayer()
    eye = torch.eye(301, dtype=torch.float64)
    layer(eye, tensor(np.ones(301)))
    assert certificate(layer).certified
    with pytest.raises(ValueError, match="at most 300 unknowns, got 301"):
        certificate(layer, check_gradient=True)
