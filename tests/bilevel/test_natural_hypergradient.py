"""Natural hypergradients: known values, agreement between forms, certificates, and what is refused."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from assay.bilevel.hypergradient_descent import NHGD
from assay.bilevel.hypergradient_methods import hypergradient
from assay.bilevel.natural_hypergradient import NaturalHypergradient

D = torch.float64


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def square_loss(theta, v, batch):
    x, y = batch
    return 0.5 * (x @ theta - y - x @ v) ** 2


def distance(theta, v, target):
    return 0.5 * (theta if target is None else theta - target).square().sum()


def shift_problem(fisher="average", dim=4, **options):
    theta, v = draw(dim, seed=1).requires_grad_(), torch.zeros(dim, dtype=D)
    return NaturalHypergradient(theta, square_loss, distance, outer_params=v, fisher=fisher, burn_in=0, **options)


def shift_batch(count=64, dim=4, seed=2):
    """Responses with the mean of the problem above, so that its theta is the solution."""
    x = draw(count, dim, seed=seed)
    return x, x @ draw(dim, seed=1) + draw(count, seed=seed + 1)


def classification(hidden=(), dtype=D, conv=False, bias=True):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 6, generator=generator, dtype=dtype)
    y = torch.randint(3, (30,), generator=generator)
    widths = (6, *hidden, 3)
    layers = []
    if conv:
        layers += [torch.nn.Unflatten(1, (1, 6)), torch.nn.Conv1d(1, 2, 3, padding=1), torch.nn.Flatten()]
        widths = (12, *hidden, 3)
    for fan_in, fan_out in pairwise(widths):
        layers += [torch.nn.Linear(fan_in, fan_out, bias=bias), torch.nn.ReLU(inplace=True)]
    net = torch.nn.Sequential(*layers[:-1]).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=dtype))
    v = 0.3 * torch.randn(30, generator=generator, dtype=dtype)

    def loss(theta, v, index):
        return cross_entropy(functional_call(net, theta, (x[index],)), y[index], reduction="none")

    def outer(theta, v, _):
        return cross_entropy(functional_call(net, theta, (x,)), y.flip(0))

    return net, v, loss, outer


def hyper_of(pieces, **options):
    net, v, loss, outer = pieces
    settings = {"outer_params": v, "sample_weight": lambda v, index: torch.sigmoid(v[index]), "burn_in": 0} | options
    return NaturalHypergradient(net, loss, outer, **settings)


# ------------------------------------------------------------------------------------------------------ known values
def test_exact_hypergradient_of_the_shift_problem():
    """It is theta_0 + v - target, whatever the covariance of x."""
    theta, v, target = draw(3, seed=1), torch.zeros(3, dtype=D), draw(3, seed=5)
    x = draw(4000, 3, seed=6) * torch.tensor([0.5, 1.0, 3.0], dtype=D)
    y = x @ theta + draw(4000, seed=7)
    fitted = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    answers = {
        method: hypergradient(
            fitted, v, square_loss, distance, (x, y), target, method=method, damping=0.0, reference="cg"
        )
        for method in ("exact", "cg", "nhgd")
    }
    for method in ("exact", "cg"):
        torch.testing.assert_close(answers[method].grad, fitted - target)
        assert answers[method].residual < 1e-7
        assert answers[method].cosine_to_reference == pytest.approx(1.0)
    assert (answers["nhgd"].grad - (fitted - target)).norm() < 0.1 * (fitted - target).norm()
    assert answers["nhgd"].n_hvp == 0
    assert answers["exact"].n_hvp == 3
    assert answers["cg"].n_hvp <= 4


def test_error_falls_with_the_number_of_samples():
    errors = []
    for count in (400, 6400):
        found = []
        for seed in range(4):
            batch = shift_batch(count, seed=10 * seed)
            answer = hypergradient(
                draw(4, seed=1), torch.zeros(4, dtype=D), square_loss, distance, batch, fisher="average"
            )
            found.append(float((answer.grad - draw(4, seed=1)).norm() / draw(4, seed=1).norm()))
        errors.append(np.mean(found))
    assert -0.75 < np.log(errors[1] / errors[0]) / np.log(16) < -0.25


def test_sherman_morrison():
    hyper = NaturalHypergradient(
        torch.zeros(2, dtype=D, requires_grad=True), square_loss, distance, outer_params=torch.zeros(2, dtype=D),
        fisher="average", gamma0=1.0,
    )  # fmt: skip
    for score in ([1.0, 0.0], [0.0, 2.0], [1.0, 1.0]):
        hyper.observe(torch.tensor(score, dtype=D))
    expected = torch.tensor([[6.0, -1.0], [-1.0, 3.0]], dtype=D) / 17
    torch.testing.assert_close(hyper.state.matrix, expected)
    grad = torch.tensor([1.0, 2.0], dtype=D)
    torch.testing.assert_close(hyper.solve(grad), 3 * expected @ grad)


def test_residual_of_known_matrices():
    """H = diag(2, 1), F = diag(1.5, 1), damping 0.5: w = (1/2, 2/3), residual 0.2357023."""
    x = torch.eye(2, dtype=D) * torch.tensor([2.0, math.sqrt(2.0)], dtype=D)  # mean x x' = diag(2, 1)
    theta = torch.zeros(2, dtype=D, requires_grad=True)
    hyper = NaturalHypergradient(
        theta,
        lambda theta, v, batch: 0.5 * (batch @ (theta - v)) ** 2,
        lambda theta, v, _: theta.sum(),
        outer_params=torch.zeros(2, dtype=D), damping=0.5, cross_batch=x,
    )  # fmt: skip
    hyper.observe(torch.diag(torch.tensor([3.0, 2.0], dtype=D).sqrt()))
    hyper.hypergradient()
    torch.testing.assert_close(hyper.w, torch.tensor([0.5, 2 / 3], dtype=D))
    report = hyper.certify()
    assert report.system_residual == pytest.approx(0.2357023, abs=1e-7)
    assert report.n_hvp == 1
    assert hyper.n_hvp == 0
    assert not report.certificates[0].holds
    assert hyper.certify(tol=0.3).certificates[0].holds


def logistic_gap(count, ridge=0.0):
    """Distance between the Fisher matrix and the Hessian of logistic data at the true parameters."""
    x = draw(count, 20, seed=3)
    theta = draw(20, seed=4)
    y = (torch.rand(count, dtype=D, generator=torch.Generator().manual_seed(5)) < torch.sigmoid(x @ theta)).to(D)
    if ridge:  # the minimum of the regularised loss, by Newton's method
        for _ in range(20):
            p = torch.sigmoid(x @ theta)
            curvature = (x * (p * (1 - p))[:, None]).T @ x / count + ridge * torch.eye(20, dtype=D)
            theta = theta - torch.linalg.solve(curvature, x.T @ (p - y) / count + ridge * theta)
    p = torch.sigmoid(x @ theta)
    hessian = (x * (p * (1 - p))[:, None]).T @ x / count
    hyper = NaturalHypergradient(
        torch.zeros(20, dtype=D, requires_grad=True), square_loss, distance, outer_params=theta, beta=1.0
    )
    hyper.observe(x * (p - y)[:, None])
    return float((hyper.state.matrix - hessian).norm() / hessian.norm())


def test_fisher_is_the_hessian_of_a_right_model():
    gaps = [logistic_gap(count) for count in (2000, 32000)]
    assert gaps[1] == pytest.approx(0.05, abs=0.025)
    assert gaps[1] < 0.5 * gaps[0]


def test_a_regularised_fit_has_a_floor():
    """Its parameters are not those of the model, and no number of samples helps."""
    gaps = [logistic_gap(count, ridge=1e-2) for count in (20_000, 80_000)]
    assert 0.08 < gaps[1] < 0.3
    assert gaps[1] > 0.7 * gaps[0]


@pytest.mark.parametrize("fisher", ["smoothed", "average", "window", "kfac"])
def test_weights_enter_once(fisher):
    """Weights of 1/2 halve the Fisher matrix."""
    pieces = classification()
    found = []
    for weight in (None, lambda v, index: torch.full((len(index),), 0.5, dtype=D)):
        hyper = hyper_of(pieces, fisher=fisher, sample_weight=weight)
        hyper.inner_step(torch.arange(30))
        found.append(hyper.state.trace())
    assert found[1] == pytest.approx(0.5 * found[0])


# ------------------------------------------------------------------------------------------------- forms that agree
@pytest.mark.parametrize("hidden", [(), (4,)])
@pytest.mark.parametrize("conv", [False, True])
def test_scores_of_layers_are_mapped_scores(hidden, conv):
    from assay.bilevel.fisher_layers import LayerScores
    from assay.bilevel.fisher_scores import map_scores, micro_batch_scores

    hyper = hyper_of(classification(hidden, conv=conv))
    problem = hyper.problem
    theta, v, index = problem.inner.detached(), problem.outer.detached(), torch.arange(30)
    by_layer = LayerScores(problem)(theta, v, index, rows=True)
    mapped = map_scores(problem, theta, v, index)
    single = micro_batch_scores(problem, theta, v, index, 1)
    torch.testing.assert_close(by_layer.rows, mapped.rows)
    torch.testing.assert_close(by_layer.gradient, mapped.gradient)
    torch.testing.assert_close(by_layer.loss, mapped.loss)
    torch.testing.assert_close(single.rows, mapped.rows * mapped.weights.sqrt()[:, None])
    torch.testing.assert_close(single.gradient, mapped.gradient)
    leaves = problem.inner.leaves()
    torch.testing.assert_close(by_layer.gradient, problem.inner_gradient(leaves, v, index))


def test_images_and_sequences():
    from assay.bilevel.fisher_layers import LayerScores
    from assay.bilevel.fisher_scores import map_scores

    x = draw(5, 2, 6, 6)
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3, stride=2, padding=1), torch.nn.Flatten(), torch.nn.Linear(27, 2))
    net = net.to(D)
    words = draw(5, 4, 3)
    shared = torch.nn.Linear(3, 2).to(D)
    for module, data in ((net, x), (shared, words)):
        hyper = NaturalHypergradient(
            module,
            lambda theta, v, batch, net=module: v * functional_call(net, theta, (batch,)).flatten(1).square().sum(1),
            lambda theta, v, _: sum(part.sum() for part in theta.values()),
            outer_params=torch.ones(1, dtype=D), fisher="kfac",
        )  # fmt: skip
        problem = hyper.problem
        arguments = problem.inner.detached(), problem.outer.detached(), data
        torch.testing.assert_close(
            LayerScores(problem)(*arguments, rows=True).rows, map_scores(problem, *arguments).rows
        )
        hyper.inner_step(data)
        assert torch.isfinite(hyper.hypergradient()[0]).all()


def test_a_loss_that_goes_around_the_module():
    """Its scores are mapped then; Kronecker factors have no use for it."""
    net, v, loss, outer = classification(bias=False)

    def around(theta, v, index):
        return loss(theta, v, index) + theta["0.weight"].sum() * torch.ones(len(index), dtype=D)

    hyper = hyper_of((net, v, around, outer))
    hyper.inner_step(torch.arange(30))
    theta = hyper.problem.inner.leaves()
    expected = hyper.problem.inner_gradient(theta, hyper.problem.outer.detached(), torch.arange(30))
    torch.testing.assert_close(net[0].weight.grad.reshape(-1), expected)
    with pytest.raises(TypeError, match="functional_call"):
        hyper_of((net, v, around, outer), fisher="kfac").inner_step(torch.arange(30))


def test_dropout():
    """A mask that differs from pass to pass is no loss that goes around the module."""
    net, v, loss, outer = classification((8,))
    net.insert(2, torch.nn.Dropout(0.5))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hyper = hyper_of((net, v, loss, outer), fisher="kfac")
        assert hyper.inner_step(torch.arange(30)) > 0
        assert hyper.n_samples == 30


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 12), st.floats(0.0, 2.0), st.floats(0.05, 1.0), st.integers(0, 100))
def test_solves_against_dense_ones(rows, ridge, damping, seed):
    """Every dense form is the system that it says it is."""
    scores, grad = draw(rows, 5, seed=seed), draw(5, seed=seed + 1)
    weights = draw(rows, seed=seed + 2).abs()
    eye = torch.eye(5, dtype=D)
    moment = (scores * weights[:, None]).T @ scores
    expected = {
        "smoothed": torch.linalg.solve(moment / rows + (ridge + damping) * eye, grad),
        "window": torch.linalg.solve(moment / rows + (ridge + damping) * eye, grad),
        "average": torch.linalg.solve((moment + eye) / rows + ridge * eye, grad),
    }
    for fisher, solution in expected.items():
        hyper = NaturalHypergradient(
            torch.zeros(5, dtype=D, requires_grad=True), square_loss, distance, outer_params=torch.zeros(5, dtype=D),
            fisher=fisher, ridge=ridge, damping=damping, beta=1.0,
        )  # fmt: skip
        hyper.observe(scores, weights)
        torch.testing.assert_close(hyper.solve(grad), solution)
        residual = hyper.state.residual(
            solution, grad, hyper.problem.ridge.checked(hyper.problem.outer.detached()), damping
        )
        assert residual < 1e-9
        if not (fisher == "average" and ridge == 0.0):
            assert (
                hyper.state.residual(
                    2 * solution, grad, hyper.problem.ridge.checked(hyper.problem.outer.detached()), damping
                )
                > 0.5
            )


def test_kept_inverse_is_the_inverse():
    """Batches of any size, of more rows than parameters too."""
    parts = [draw(count, 4, seed=count) for count in (1, 3, 9, 2)]
    inverse = shift_problem()
    dense = shift_problem(ridge=1e-30)
    for part in parts:
        inverse.observe(part)
        dense.observe(part)
    torch.testing.assert_close(torch.linalg.inv(inverse.state.matrix), dense.state.matrix)
    assert inverse.state.trace() == pytest.approx(dense.state.trace())
    grad = draw(4, seed=9)
    torch.testing.assert_close(inverse.solve(grad), dense.solve(grad))
    ridge = torch.zeros((), dtype=D)
    assert inverse.state.residual(grad, grad, ridge, 0.0) < 1e-12
    inverse.state.matrix.mul_(1.1)
    assert inverse.state.residual(grad, grad, ridge, 0.0) == pytest.approx(0.1)


def test_smoothing_is_unbiased_and_does_not_blow_up():
    """An exponential average of a constant is the constant; directions without scores stay damped."""
    hyper = shift_problem("smoothed", beta=0.1)
    score = torch.tensor([[1.0, 2.0, 0.0, 0.0]], dtype=D)
    for _ in range(500):
        hyper.observe(score)
        if hyper.n_samples in (1, 5, 500):
            w = hyper.solve(torch.ones(4, dtype=D))
            torch.testing.assert_close(w[2:], torch.full((2,), 1e3, dtype=D))
            expected = torch.linalg.solve(score.T @ score + 1e-3 * torch.eye(4, dtype=D), torch.ones(4, dtype=D))
            torch.testing.assert_close(w, expected)


def test_window_forgets():
    hyper = shift_problem("window", window=5, damping=0.1)
    rows = draw(13, 4)
    for part in rows.split([2, 4, 7]):
        hyper.observe(part)
    last = rows[-5:]
    expected = torch.linalg.solve(last.T @ last / 5 + 0.1 * torch.eye(4, dtype=D), torch.ones(4, dtype=D))
    torch.testing.assert_close(hyper.solve(torch.ones(4, dtype=D)), expected)
    assert hyper.state_bytes() == 8 * 5 * 4
    assert shift_problem("smoothed").state_bytes() == 8 * 4 * 4


def test_kfac_is_exact_for_independent_factors():
    """One sample per pair of an input and a gradient: the Fisher matrix is the Kronecker product."""
    from assay.bilevel.fisher_kfac import kronecker_solve

    inputs, gradients = draw(6, 3), draw(5, 2, seed=1)
    a, g = inputs.T @ inputs / 6, gradients.T @ gradients / 5
    scores = torch.einsum("ni,mo->nmio", inputs, gradients).reshape(30, 6)
    grad = draw(3, 2, seed=2)
    expected = torch.linalg.solve(scores.T @ scores / 30, grad.reshape(-1)).view(3, 2)
    torch.testing.assert_close(kronecker_solve(a, g, grad, 0.0), expected)
    damped = kronecker_solve(a, g, grad, 0.3)
    pi = math.sqrt(float(a.trace() / 3) / float(g.trace() / 2))
    eye3, eye2 = torch.eye(3, dtype=D), torch.eye(2, dtype=D)
    torch.testing.assert_close((a + pi * math.sqrt(0.3) * eye3) @ damped @ (g + math.sqrt(0.3) / pi * eye2), grad)
    zero = kronecker_solve(torch.zeros(3, 3, dtype=D), g, grad, 0.25)  # without a ratio both get the root
    torch.testing.assert_close(zero, torch.linalg.solve(g + 0.5 * eye2, grad.T).T / 0.5)


def test_kfac_factors_and_residual():
    pieces = classification((4,))
    hyper = hyper_of(pieces, fisher="kfac", beta=1.0, ridge=0.2)
    index = torch.arange(30)
    hyper.inner_step(index)
    net = pieces[0]
    hidden = net[0](torch.randn(30, 6, generator=torch.Generator().manual_seed(0), dtype=D)).relu()
    c = torch.sigmoid(pieces[1])
    with_one = torch.cat([hidden, torch.ones(30, 1, dtype=D)], dim=1)
    torch.testing.assert_close(hyper.state.factors()[1][0], (with_one * c[:, None]).T @ with_one / 30)
    hyper.hypergradient()
    report = hyper.certify()
    assert report.solve_residual < 1e-12
    ridge = hyper.problem.ridge.checked(hyper.problem.outer.detached())
    assert hyper.state.residual(1.5 * hyper.w, hyper.last_point()["grad"], ridge, hyper.damping) == pytest.approx(0.5)
    matrices = hyper.state.layers.matrices(hyper.w)
    torch.testing.assert_close(hyper.state.layers.flat(matrices), hyper.w)


@pytest.mark.parametrize("fisher", ["smoothed", "average", "window", "kfac"])
def test_threads_give_the_same_iterates(fisher):
    found = []
    for parallel in ("sync", "thread"):
        net, v, loss, outer = classification((4,))
        v.requires_grad_()
        hyper = hyper_of((net, v, loss, outer), fisher=fisher, parallel=parallel, ridge=1e-3)
        train = NHGD(hyper, torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD([v], lr=1.0), inner_steps=6)
        for _ in range(4):
            train.step([torch.arange(start, start + 5) for start in range(6)])
        found.append(torch.cat([v.detach(), *(p.detach().reshape(-1) for p in net.parameters())]))
    assert torch.equal(*found)


def test_an_error_in_the_thread_is_raised():
    hyper = shift_problem("smoothed", parallel="thread")
    hyper.state.update = lambda rows, weights: 1 / 0
    hyper.observe(draw(2, 4))
    with pytest.raises(ZeroDivisionError):
        hyper.solve(draw(4))


# --------------------------------------------------------------------------------------------------- hypergradients
def test_methods_agree_on_a_weighted_problem():
    """Conjugate gradients, a long series, long unrolling and the Hessian itself, with everything that there is."""
    net, v, loss, _ = classification()
    weight = lambda v, index: torch.sigmoid(v[index])  # noqa: E731

    def outer(theta, v, _):
        return sum((part - 1).square().sum() for part in theta.values()) + v.square().sum()

    index = torch.arange(30)
    theta = {key: value.detach().clone() for key, value in net.named_parameters()}
    common = {"sample_weight": weight, "ridge": 0.3}
    # bring theta to its minimum first
    start = {key: value.clone().requires_grad_() for key, value in theta.items()}
    for _ in range(100):
        value = (loss(start, v, index) * weight(v, index)).mean() + 0.15 * sum(p.square().sum() for p in start.values())
        gradients = torch.autograd.grad(value, list(start.values()))
        start = {
            key: (p - 0.8 * g).detach().requires_grad_() for (key, p), g in zip(start.items(), gradients, strict=True)
        }
    solved = {
        method: hypergradient(
            start, v, loss, outer, index, method=method, step_size=0.8, n_terms=120, n_steps=100, **common
        )
        for method in ("exact", "cg", "neumann", "unroll")
    }
    for method in ("cg", "neumann", "unroll"):
        torch.testing.assert_close(solved[method].grad, solved["exact"].grad, atol=1e-7, rtol=1e-6)
    assert solved["unroll"].w is None
    assert math.isnan(solved["unroll"].residual)
    assert solved["unroll"].certificate is None
    assert solved["neumann"].n_hvp == 119
    # and the derivative of the outer loss by finite differences of the inner minimum agrees with it
    step = 1e-4 * draw(30, seed=8)

    def value_at(shift):
        point = {key: p.detach().clone() for key, p in start.items()}
        for _ in range(100):
            leaves = {key: p.requires_grad_() for key, p in point.items()}
            objective = (loss(leaves, v, index) * weight(v + shift, index)).mean()
            objective = objective + 0.15 * sum(p.square().sum() for p in leaves.values())
            gradients = torch.autograd.grad(objective, list(leaves.values()))
            point = {key: (p - 0.8 * g).detach() for (key, p), g in zip(leaves.items(), gradients, strict=True)}
        return float(outer(point, v + shift, None))

    difference = value_at(step) - value_at(-step)
    assert difference == pytest.approx(2 * float(step @ solved["exact"].grad), rel=1e-4)


def test_a_ridge_that_is_the_outer_variable():
    """Its curvature and its part of the mixed derivative are exact: with a quadratic loss nothing is left to sample."""
    x = draw(50, 3)
    theta = x.mean(0) / (1 + torch.exp(torch.tensor([0.0, 1.0, -1.0], dtype=D)))
    v = torch.tensor([0.0, 1.0, -1.0], dtype=D)
    options = {"ridge": torch.exp, "damping": 0.0}
    loss = lambda theta, v, batch: 0.5 * (theta - batch).square().sum(1)  # noqa: E731
    exact = hypergradient(theta, v, loss, distance, x, method="exact", **options)
    expected = -torch.exp(v) * theta * theta / (1 + torch.exp(v))
    torch.testing.assert_close(exact.grad, expected)
    natural = hypergradient(theta, v, loss, distance, x, reference="cg", **options)
    assert natural.cosine_to_reference > 0.98
    average = hypergradient(theta, v, loss, distance, x, fisher="average", gamma0=1e-6, **options)
    torch.testing.assert_close(average.grad, natural.grad, atol=1e-4, rtol=1e-4)


def test_numpy_in_numpy_out():
    batch = shift_batch(500)
    inner, outer = draw(4, seed=1), torch.zeros(4, dtype=D)
    expected = hypergradient(inner, outer, square_loss, distance, batch)
    arrays = hypergradient(
        inner.numpy(), outer.numpy(), square_loss, distance, [part.numpy() for part in batch], batch_size=500
    )
    assert isinstance(arrays.grad, np.ndarray)
    assert isinstance(arrays.w, np.ndarray)
    np.testing.assert_allclose(arrays.grad, expected.grad.numpy())
    assert arrays.n_samples == 500
    assert arrays.to_dict()["method"] == "nhgd"
    assert "HypergradResult" in repr(arrays)


def test_structures_of_parameters():
    batch = shift_batch(40)
    flat = hypergradient(draw(4, seed=1), torch.zeros(4, dtype=D), square_loss, distance, batch)
    for make in (lambda parts: list(parts), lambda parts: {"a": parts[0], "b": parts[1]}):
        get = (lambda parts: torch.cat(list(parts.values()))) if isinstance(make([0, 1]), dict) else torch.cat
        found = hypergradient(
            make(draw(4, seed=1).split(2)), make(torch.zeros(4, dtype=D).split(2)),
            lambda theta, v, batch, get=get: square_loss(get(theta), get(v), batch),
            lambda theta, v, _, get=get: distance(get(theta), None, None), batch,
        )  # fmt: skip
        assert type(found.grad) is type(make([0, 1]))
        torch.testing.assert_close(get(found.grad), flat.grad)


def test_arguments_are_not_changed():
    net, v, loss, outer = classification()
    before = [p.detach().clone() for p in net.parameters()]
    answer = hypergradient(net, v, loss, outer, torch.arange(30), sample_weight=lambda v, i: torch.sigmoid(v[i]))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    assert answer.grad.shape == v.shape


# ------------------------------------------------------------------------------------------------------ certificates
def right_problem(count=4000, ridge=0.1, **options):
    """A problem whose Fisher matrix is the Hessian but for sampling."""
    theta = torch.zeros(4, dtype=D, requires_grad=True)
    x, y = shift_batch(count)
    curvature = x.T @ x / count + ridge * torch.eye(4, dtype=D)
    with torch.no_grad():
        theta.copy_(torch.linalg.solve(curvature, x.T @ y / count))
    v = torch.zeros(4, dtype=D)
    hyper = NaturalHypergradient(theta, square_loss, distance, outer_params=v, ridge=ridge, **options)
    hyper.inner_step((x, y))
    hyper.hypergradient()
    return hyper


def test_certificates_of_a_right_model_hold():
    report = right_problem().certify(bound=True, reference="cg", tol=0.15)
    assert len(report.certificates) == 7
    assert all(certificate.holds for certificate in report.certificates), report.certificates
    assert report.certified
    assert report.curvature == pytest.approx(0.1)
    assert report.relative_error <= report.system_residual / 0.1
    assert report.error_bound < math.inf
    assert report.stationarity < 1e-8


def test_certificates_fail_for_a_spoilt_solution():
    from assay.bilevel.hypergradient_certificate import certify_solution

    hyper = right_problem()
    point = hyper.last_point()
    problem, batch = hyper.problem, hyper._last["batch"]

    def report_of(w, found, theta=point["theta"], **options):
        return certify_solution(
            problem, theta, point["v"], w, found, batch, None, bound=True, reference="cg", tol=0.15, **options
        )

    good = report_of(point["w"], point["hypergradient"])
    assert all(certificate.holds for certificate in good.certificates)
    bad = report_of(2 * point["w"], [2 * part for part in point["hypergradient"]], solve_residual=1.0)
    failed = [certificate.statement for certificate in bad.certificates if not certificate.holds]
    assert any("true Hessian" in name for name in failed)
    assert any("that was solved" in name for name in failed)
    assert any("relative error" in name for name in failed)
    # the bounds are about what w is, and a hypergradient that is not made of w breaks them
    torn = report_of(point["w"], [part + 100 for part in point["hypergradient"]])
    assert any("against the bound" in c.statement and not c.holds for c in torn.certificates)
    assert any("cosine" in c.statement and not c.holds for c in torn.certificates)
    away = report_of(point["w"], point["hypergradient"], theta=[x + 5 for x in point["theta"]], score_size=1.0)
    assert any("inner gradient" in c.statement and not c.holds for c in away.certificates)
    empty = report_of(float("nan") * point["w"], point["hypergradient"])
    assert not empty.certificates[0].holds


def test_bounds_bound():
    """With a strongly convex inner problem the errors are below their bounds, also for very few samples."""
    for seed in range(3):
        theta = draw(4, seed=seed).requires_grad_()
        x = draw(6, 4, seed=seed + 1)
        hyper = NaturalHypergradient(
            theta, square_loss, distance, outer_params=torch.zeros(4, dtype=D), ridge=0.3, fisher="window"
        )
        hyper.inner_step((x, draw(6, seed=seed + 2)))
        hyper.hypergradient()
        report = hyper.certify(bound=True, reference="cg")
        bounds = [c for c in report.certificates if "against" in c.statement and "conjugate" in c.statement]
        assert len([c for c in bounds if c.relation == "<="]) >= 2
        assert all(c.holds for c in bounds if "bound" in c.statement or "curvature" in c.statement)


def test_norm_of_the_mixed_derivative():
    from assay.bilevel.hypergradient_certificate import cross_norm

    x, y = shift_batch(30)
    hyper = shift_problem()
    norm = cross_norm(hyper.problem, hyper.problem.inner.leaves(), hyper.problem.outer.leaves(), (x, y), steps=60)
    assert norm == pytest.approx(float(torch.linalg.matrix_norm(x.T @ x / 30, 2)), rel=1e-6)


def test_old_scores_and_micro_batches_are_flagged():
    batch = shift_batch()
    for reset, fresh in (("never", None), ("outer", True)):
        hyper = shift_problem("smoothed", reset=reset)
        for _ in range(2):
            hyper.inner_step(batch)
            hyper.hypergradient()
        assumptions = hyper.certify().certificates[0].assumptions
        assert [a.satisfied for a in assumptions] == [True, fresh]
    hyper = shift_problem("smoothed", micro_batch=8)
    hyper.inner_step(batch)
    hyper.hypergradient()
    report = hyper.certify()
    assert [a.satisfied for a in report.certificates[0].assumptions] == [False, True]
    assert not report.certified


def test_reset_forgets():
    hyper = shift_problem(reset="outer")
    hyper.inner_step(shift_batch())
    hyper.hypergradient()
    assert hyper.n_samples == 64
    hyper.inner_step(shift_batch(8))
    assert hyper.n_samples == 8


def test_burn_in():
    hyper = NaturalHypergradient(
        torch.zeros(4, dtype=D, requires_grad=True), square_loss, distance, outer_params=torch.zeros(4, dtype=D),
        fisher="average",
    )  # fmt: skip
    for step in range(7):
        hyper.inner_step(shift_batch(8))
        assert hyper.n_samples == 8 * max(0, step - 4)
    theta = torch.zeros(4, dtype=D, requires_grad=True)
    v = torch.zeros(4, dtype=D, requires_grad=True)
    own = NaturalHypergradient(theta, square_loss, distance, outer_params=v, fisher="average")
    train = NHGD(own, torch.optim.SGD([theta], lr=0.1), torch.optim.SGD([v], lr=0.1), inner_steps=6)
    train.step([shift_batch(8)] * 6)
    assert own.n_samples == 24
    train.step([shift_batch(8)] * 6)
    assert own.n_samples == 72


def test_micro_batches_are_unbiased_where_scores_average_to_zero():
    x = draw(6000, 3)
    scores = x - x.mean(0)
    parts = scores.split(10)
    rows = torch.stack([10**0.5 * part.mean(0) for part in parts])
    assert ((rows.T @ rows / 600 - scores.T @ scores / 6000).norm() / 3**0.5) < 0.15
    hyper = NaturalHypergradient(
        torch.zeros(3, dtype=D, requires_grad=True), lambda theta, v, batch: batch @ theta + v.sum() * theta.sum(),
        distance, outer_params=torch.zeros(3, dtype=D), micro_batch=10, beta=1.0,
    )  # fmt: skip
    hyper.inner_step(scores)
    torch.testing.assert_close(hyper.state.matrix, rows.T @ rows / 600)


def test_certify_belongs_to_a_hypergradient():
    hyper = shift_problem()
    with pytest.raises(RuntimeError, match="hypergradient must be called"):
        hyper.certify()
    hyper.inner_step(shift_batch())
    hyper.hypergradient()
    hyper.inner_step(shift_batch())
    with pytest.raises(RuntimeError, match="before the next inner step"):
        hyper.certify()


# --------------------------------------------------------------------------------------------------------- the loop
@pytest.mark.parametrize(
    ("inner", "certify"),
    [
        (torch.optim.SGD, None),
        (torch.optim.SGD, "residual"),
        (torch.optim.SGD, "cg"),
        (torch.optim.Adam, "residual"),
        (torch.optim.LBFGS, None),
    ],
)
def test_loop_with_any_optimizer(inner, certify):
    net, v, loss, outer = classification()
    v.requires_grad_()
    hyper = hyper_of((net, v, loss, outer), ridge=1e-2, cross_batch=torch.arange(30))
    groups = [{"params": [net[0].weight]}, {"params": [net[0].bias], "lr": 0.02}]
    outer_opt = torch.optim.Adam([v], lr=0.2)
    if inner is torch.optim.LBFGS:
        groups, outer_opt = list(net.parameters()), torch.optim.LBFGS([v], lr=0.1, max_iter=2)
    inner_opt = inner(groups, lr=0.05, **({"max_iter": 4} if inner is torch.optim.LBFGS else {}))
    train = NHGD(hyper, inner_opt, outer_opt, inner_steps=4, certify=certify)
    found = [train.step(torch.arange(30).split(8)) for _ in range(3)]
    assert set(found[0]) == {"outer_loss", "inner_loss", "seconds_inner", "seconds_hyper", "certificate"}
    assert all(math.isfinite(one["outer_loss"]) for one in found)
    if inner is not torch.optim.LBFGS:  # whose long steps on batches of eight go anywhere
        assert found[-1]["outer_loss"] < found[0]["outer_loss"] + 0.05
    assert len(found[0]["certificate"].certificates) == {None: 2, "residual": 3, "cg": 7}[certify]
    assert train.n_outer == 3
    assert hyper.n_inner == 12
    assert hyper.n_samples == 3 * 30


def test_state_goes_on():
    def fresh():
        net, v, loss, outer = classification((4,))
        v.requires_grad_()
        hyper = hyper_of((net, v, loss, outer), fisher=fisher, ridge=1e-3)
        train = NHGD(
            hyper, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), torch.optim.Adam([v], lr=0.1), inner_steps=3
        )
        return net, v, train

    batches = torch.arange(30).split(10)
    for fisher in ("smoothed", "average", "window", "kfac"):
        net, v, train = fresh()
        train.step(batches)
        state, theta, weights = copy.deepcopy(train.state_dict()), copy.deepcopy(net.state_dict()), v.detach().clone()
        train.step(batches)
        other, u, again = fresh()
        other.load_state_dict(theta)
        with torch.no_grad():
            u.copy_(weights)
        again.load_state_dict(state)
        again.step(batches)
        assert torch.equal(u, v), fisher
        assert again.n_outer == 2
        wrong = hyper_of(classification((5,)), fisher=fisher, ridge=1e-3)
        with pytest.raises(ValueError, match="state must be of"):
            wrong.load_state_dict(state["hypergradient"])
    with pytest.raises(ValueError, match="fisher='smoothed'"):
        hyper_of(classification()).load_state_dict(state["hypergradient"])


def test_loop_arguments():
    net, v, loss, outer = classification()
    v.requires_grad_()
    hyper = hyper_of((net, v, loss, outer))
    sgd, adam = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam([v])
    with pytest.raises(TypeError, match="NaturalHypergradient"):
        NHGD(net, sgd, adam)
    with pytest.raises(TypeError, match="inner_opt must be a torch"):
        NHGD(hyper, None, adam)
    with pytest.raises(ValueError, match="outer_opt must have parameters of its own level"):
        NHGD(hyper, sgd, sgd)
    with pytest.raises(ValueError, match="certify"):
        NHGD(hyper, sgd, adam, certify="all")
    with pytest.raises(ValueError, match="inner_iter must give 10 batches, got 1"):
        NHGD(hyper, sgd, adam).step([torch.arange(3)])


def test_half_precision_is_kept_out():
    net, v, loss, outer = classification(dtype=torch.float32)
    hyper = hyper_of((net, v, loss, outer))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hyper.inner_step(torch.arange(30))
        (found,) = hyper.hypergradient()
    plain = hyper_of((net, v, loss, outer))
    plain.inner_step(torch.arange(30))
    assert torch.equal(found, plain.hypergradient()[0])
    assert hyper.state.matrix.dtype == torch.float32


def test_float32_certificate_is_in_double():
    net, v, loss, outer = classification(dtype=torch.float32)
    hyper = hyper_of((net, v, loss, outer), ridge=0.1)
    hyper.inner_step(torch.arange(30))
    hyper.hypergradient()
    assert 0 < hyper.certify().system_residual < 10  # the data are float32 constants of the loss
    theta = torch.zeros(4, requires_grad=True)
    single = NaturalHypergradient(theta, square_loss, distance, outer_params=torch.zeros(4), damping=0.5)
    single.inner_step([part.float() for part in shift_batch()])
    with torch.no_grad():
        theta.add_(1.0)
    single.hypergradient()
    x = shift_batch()[0].float().double()
    expected = (x.T @ x / 64 @ single.w.double() - 1).norm() / 2  # in single precision they differ in the eighth digit
    assert single.certify().system_residual == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("parallel", ["sync", "stream"])
def test_on_a_gpu(parallel):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    expected = right_problem()
    x, y = shift_batch(4000)
    theta = expected.problem.inner.detached()[0].cuda().requires_grad_()
    hyper = NaturalHypergradient(
        theta, square_loss, distance, outer_params=torch.zeros(4, dtype=D, device="cuda"), ridge=0.1, parallel=parallel
    )
    hyper.inner_step((x.cuda(), y.cuda()))
    torch.testing.assert_close(hyper.hypergradient()[0].cpu(), expected.last_point()["hypergradient"][0])
    assert hyper.certify().system_residual == pytest.approx(expected.certify().system_residual)


# -------------------------------------------------------------------------------------------------------- bad input
def bad(**options):
    settings = {
        "inner_params": torch.zeros(4, dtype=D, requires_grad=True), "inner_loss_per_sample": square_loss,
        "outer_loss": distance, "outer_params": torch.zeros(4, dtype=D),
    }  # fmt: skip
    return NaturalHypergradient(**(settings | options))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"damping": -1e-3}, ValueError, "damping must be at least 0"),
        ({"gamma0": 0.0}, ValueError, "gamma0 must be greater than 0"),
        ({"ridge": -1.0}, ValueError, "ridge must be at least 0"),
        ({"ridge": torch.tensor([1.0, -1.0, 1.0, 1.0])}, ValueError, "ridge must be finite and at least 0"),
        ({"ridge": torch.ones(3)}, ValueError, r"ridge must be a number or have shape \(4,\)"),
        ({"ridge": [torch.ones(3)]}, ValueError, "ridge must have the shapes"),
        ({"ridge": "l2"}, TypeError, "ridge must be a real number"),
        ({"beta": 0.0}, ValueError, "beta must be greater than 0"),
        ({"beta": 1.5}, ValueError, "beta must be at most 1"),
        ({"window": 0}, ValueError, "window must be at least 1"),
        ({"burn_in": -1}, ValueError, "burn_in"),
        ({"fisher": "exact"}, ValueError, "fisher must be one of"),
        ({"reset": "always"}, ValueError, "reset must be one of"),
        ({"parallel": "process"}, ValueError, "parallel must be one of"),
        ({"parallel": "stream"}, ValueError, "CUDA device"),
        ({"micro_batch": 0}, ValueError, "micro_batch must be at least 1"),
        ({"cross_batch": 0}, ValueError, "cross_batch must be at least 1"),
        ({"cross_batch": torch.zeros(0, 4)}, ValueError, "batch must have at least 1 sample"),
        ({"inner_params": torch.zeros(4, dtype=D)}, ValueError, "inner_params must require gradients"),
        (
            {"inner_params": torch.nn.Linear(2, 2).requires_grad_(False)},
            ValueError,
            "parameters that require gradients",
        ),
        ({"inner_params": []}, ValueError, "at least 1 tensor"),
        ({"inner_params": 3.0}, TypeError, "inner_params must be tensors or a torch.nn.Module"),
        ({"inner_params": [1.0]}, TypeError, "inner_params must have tensors only"),
        ({"inner_params": torch.zeros(4, dtype=torch.bfloat16, requires_grad=True)}, TypeError, "float32 or float64"),
        ({"inner_params": torch.zeros(4).to_sparse().requires_grad_()}, TypeError, "dense tensors"),
        ({"outer_params": torch.zeros(4).to_sparse()}, TypeError, "outer_params must be dense"),
        (
            {"inner_params": [torch.zeros(2, requires_grad=True), torch.zeros(2, dtype=D, requires_grad=True)]},
            ValueError,
            "one dtype",
        ),
        ({"inner_params": torch.zeros(8001, requires_grad=True)}, ValueError, "use 'kfac' or 'window'"),
        ({"inner_params": torch.zeros(8001, requires_grad=True), "fisher": "average"}, ValueError, "8000"),
        ({"fisher": "kfac"}, TypeError, "not a torch.nn.Module"),
        (
            {"fisher": "kfac", "inner_params": torch.nn.Embedding(3, 2)},
            TypeError,
            "weight is not a parameter of a Linear",
        ),
        ({"fisher": "kfac", "micro_batch": 2}, ValueError, "micro_batch must be None"),
        ({"inner_loss_per_sample": None}, TypeError, "inner_loss_per_sample must be callable"),
        ({"outer_loss": 1.0}, TypeError, "outer_loss must be callable"),
        ({"sample_weight": 1.0}, TypeError, "sample_weight must be callable or None"),
    ],
)
def test_settings_that_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        bad(**options)


def test_many_parameters_fit_in_a_window():
    theta = torch.zeros(9000, dtype=D, requires_grad=True)
    hyper = bad(inner_params=theta, fisher="window", window=3, outer_params=torch.zeros(9000, dtype=D))
    hyper.inner_step((draw(4, 9000), draw(4)))
    assert hyper.solve(draw(9000)).shape == (9000,)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((torch.zeros(0, 4, dtype=D), torch.zeros(0, dtype=D)), ValueError, "at least 1 sample"),
        ((torch.zeros(3, 4, dtype=D), torch.zeros(2, dtype=D)), ValueError, "equally many samples"),
        (5, TypeError, "batch must be a tensor"),
        ((torch.full((3, 4), math.nan, dtype=D), torch.zeros(3, dtype=D)), ValueError, "nan .* in inner step 2"),
        ((torch.full((3, 4), math.inf, dtype=D), torch.zeros(3, dtype=D)), ValueError, "in inner step 2"),
    ],
)
def test_batches_that_are_refused(batch, error, message):
    hyper = shift_problem("smoothed")
    hyper.inner_step(shift_batch())
    before = hyper.state.matrix.clone()
    with pytest.raises(error, match=message):
        hyper.inner_step(batch)
    assert torch.equal(before, hyper.state.matrix)


def test_losses_that_are_refused():
    batch = shift_batch()
    for loss, error, message in (
        (lambda theta, v, batch: square_loss(theta, v, batch).mean(), ValueError, "one loss per sample"),
        (lambda theta, v, batch: 0.0, TypeError, "must return a tensor"),
    ):
        with pytest.raises(error, match=message):
            bad(inner_loss_per_sample=loss).inner_step(batch)
    for weight, message in (
        (lambda v, batch: torch.ones(3, dtype=D), "one weight per sample"),
        (lambda v, batch: -torch.ones(64, dtype=D), "sample_weight must be at least 0"),
        (lambda v, batch: 1.0, "one weight per sample"),
    ):
        with pytest.raises(ValueError, match=message):
            bad(sample_weight=weight).inner_step(batch)
    for outer, error, message in (
        (lambda theta, v, _: v.sum(), ValueError, "depend on the inner parameters, got a gradient of None"),
        (lambda theta, v, _: torch.zeros(()), ValueError, "depend on the inner parameters"),
        (lambda theta, v, _: theta, TypeError, "one entry"),
    ):
        hyper = bad(outer_loss=outer)
        hyper.inner_step(batch)
        with pytest.raises(error, match=message):
            hyper.hypergradient()
    free = bad(inner_loss_per_sample=lambda theta, v, batch: (batch[0] @ theta - batch[1]) ** 2)
    free.inner_step(batch)
    with pytest.raises(ValueError, match="must depend on outer_params"):
        free.hypergradient()
    with pytest.raises(ValueError, match="ridge must be finite and at least 0"):
        bad(ridge=lambda v: v - 1).inner_step(batch)


def test_singular_without_damping():
    """It says what to raise; with as many scores as parameters, or with a ridge, it is solved."""
    grad = draw(4)
    for fisher in ("smoothed", "window"):
        hyper = shift_problem(fisher, damping=0.0)
        hyper.observe(draw(3, 4))
        with pytest.raises(ValueError, match="damping or ridge must be positive"):
            hyper.solve(grad)
        hyper.observe(draw(6, 4, seed=3))
        assert torch.isfinite(hyper.solve(grad)).all()
        double = shift_problem(fisher, damping=0.0)
        double.observe(draw(1, 4).expand(9, 4))
        with pytest.raises(ValueError, match="rank-deficient"):
            double.solve(grad)
        ridged = shift_problem(fisher, damping=0.0, ridge=1e-2)
        ridged.observe(draw(3, 4))
        assert torch.isfinite(ridged.solve(grad)).all()
    kfac = hyper_of(classification(), fisher="kfac", damping=0.0)
    kfac.inner_step(torch.arange(2))
    with pytest.raises(ValueError, match="damping or ridge must be positive"):
        kfac.solve(draw(21))


@pytest.mark.parametrize("fisher", ["smoothed", "average", "window", "kfac"])
def test_no_scores(fisher):
    hyper = hyper_of(classification(), fisher=fisher)
    with pytest.raises(ValueError, match="must have scores, got none"):
        hyper.solve(draw(21))
    with pytest.raises(ValueError, match="cross_batch must be given"):
        hyper.hypergradient()


def test_observations_that_are_refused():
    hyper = shift_problem()
    for scores, weights, message in (
        (draw(2, 3), None, r"shape \(n, 4\)"),
        (draw(0, 4), None, "at least 1"),
        (torch.full((1, 4), math.nan, dtype=D), None, "scores must be finite"),
        (draw(2, 4), [1.0], "weights must be"),
        (draw(2, 4), [1.0, -1.0], "at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            hyper.observe(scores, weights)
    with pytest.raises(TypeError, match="use inner_step"):
        hyper_of(classification(), fisher="kfac").observe(draw(2, 21))


def test_batch_normalisation():
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)).to(D)
    x, y = draw(12, 6), torch.arange(12) % 3
    pieces = (
        net, torch.zeros(12, dtype=D),
        lambda theta, v, i: cross_entropy(functional_call(net, theta, (x[i],)), y[i], reduction="none"),
        lambda theta, v, i: cross_entropy(functional_call(net, theta, (x,)), y),
    )  # fmt: skip
    index = torch.arange(12)
    with pytest.raises(TypeError, match=r"batch normalisation .* eval\(\) or give micro_batch"):
        hyper_of(pieces).inner_step(index)
    assert hyper_of(pieces, micro_batch=4).inner_step(index) > 0
    theta = dict(net.named_parameters())  # the module is out of sight when its parameters are passed as a dict
    with pytest.raises(TypeError, match="micro_batch"):
        NaturalHypergradient(theta, pieces[2], pieces[3], outer_params=pieces[1]).inner_step(index)
    net.eval()
    assert hyper_of(pieces).inner_step(index) > 0


def test_cross_samples():
    """Those since the last hypergradient, the last so many of them, or a batch."""
    first, second = shift_batch(8), shift_batch(8, seed=7)
    for cross_batch, expected in ((None, 16), (5, 5), (first, 8)):
        hyper = shift_problem("smoothed", cross_batch=cross_batch)
        hyper.inner_step(first)
        hyper.inner_step(second)
        hyper.hypergradient()
        assert len(hyper._last["batch"][0]) == expected
        again = hyper.hypergradient()  # no step in between
        torch.testing.assert_close(again[0], hyper.last_point()["hypergradient"][0])
        hyper.hypergradient(None, second)
        assert len(hyper._last["batch"][0]) == 8


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "newton"}, ValueError, "method must be one of"),
        ({"method": "neumann"}, ValueError, "step_size must be given"),
        ({"method": "unroll", "step_size": 0.0}, ValueError, "step_size must be greater than 0"),
        ({"method": "neumann", "step_size": 0.1, "n_terms": 0}, ValueError, "n_terms"),
        ({"method": "unroll", "step_size": 0.1, "n_steps": 0}, ValueError, "n_steps"),
        ({"tol": 0.0}, ValueError, "tol"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"reference": "exact"}, ValueError, "reference must be one of"),
        ({"accuracy": 0.0}, ValueError, "tol must be greater than 0"),
        ({"ridge": -1.0}, ValueError, "ridge"),
    ],
)
def test_options_that_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        hypergradient(draw(4), draw(4), square_loss, distance, shift_batch(), **options)


def test_a_hessian_that_is_not_positive():
    from assay.bilevel.hessian_systems import conjugate_gradients
    from assay.validation import ConvergenceWarning

    matrix = torch.diag(torch.tensor([1.0, -1.0], dtype=D))
    stopped = conjugate_gradients(lambda x: matrix @ x, torch.tensor([0.5, 1.0], dtype=D), tol=1e-8, max_iter=10)
    assert stopped.indefinite
    x = draw(20, 2)
    with pytest.warns(ConvergenceWarning, match="hypergradient did not reach"):
        hypergradient(
            draw(2), draw(2), lambda theta, v, batch: -((batch @ (theta - v)) ** 2), distance, x, method="cg",
            residual=False,
        )  # fmt: skip
    assert conjugate_gradients(lambda x: x, torch.zeros(2, dtype=D), tol=1e-8, max_iter=5).n_products == 0
