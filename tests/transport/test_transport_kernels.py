"""Kernels: values, inverse gradients, and what is said of objects that are none."""

import copy
import pickle

import pytest
import torch

from assay.transport.transport_kernels import (
    DotKernel,
    HingeKernel,
    NegatedCost,
    PowerCost,
    SquaredEuclideanCost,
    check_kernel,
    kernel_scores,
)

X = torch.tensor([[0.3, -1.0], [2.0, 0.5], [0.0, 0.0]], dtype=torch.float64)
Y = torch.tensor([[0.3, -1.0], [1.0, 1.0]], dtype=torch.float64)

FORMULAS = {
    "dot": lambda x, y: float(x @ y),
    "hinge": lambda x, y: sum(max(float(b - a), 0.0) for a, b in zip(x, y, strict=True)),
    "sqeuclidean": lambda x, y: float(((x - y) ** 2).sum()),
    "neg_sqeuclidean": lambda x, y: -float(((x - y) ** 2).sum()),
    "power": lambda x, y: float(((x - y).abs() ** 1.5).sum()),
    "neg_power": lambda x, y: -float(((x - y).abs() ** 1.5).sum()),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_pair_by_pair(name):
    kernel = check_kernel(name)
    wanted = torch.tensor([[FORMULAS[name](x, y) for y in Y] for x in X], dtype=torch.float64)
    torch.testing.assert_close(kernel_scores(kernel, X, Y), wanted)
    recorded = kernel_scores(kernel, X.clone().requires_grad_(), Y)
    torch.testing.assert_close(recorded, wanted)


def test_squared_distance_far_from_the_origin():
    x = torch.tensor([[1e8, 1e8]], dtype=torch.float64)
    scores = kernel_scores(SquaredEuclideanCost(), x, x + torch.tensor([1.0, 2.0]))
    assert float(scores) == pytest.approx(5.0, rel=1e-14)


@pytest.mark.parametrize("kernel", [SquaredEuclideanCost(), PowerCost(1.5), PowerCost(3.0), DotKernel()])
@pytest.mark.parametrize("negate", [False, True])
def test_inverse_gradient_finds_the_target(kernel, negate):
    kernel = NegatedCost(kernel) if negate else kernel
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slope = torch.autograd.grad(kernel_scores(kernel, x, y).diagonal().sum(), x)[0]
    torch.testing.assert_close(kernel.inverse_gradient(x.detach(), slope), y)


def test_what_has_no_inverse_does_not_look_as_if_it_had():
    assert not hasattr(HingeKernel(), "inverse_gradient")
    assert not hasattr(NegatedCost(HingeKernel()), "inverse_gradient")
    assert hasattr(NegatedCost(PowerCost()), "inverse_gradient")
    with pytest.raises(ValueError, match="p must be greater than 1"):
        PowerCost(1.0).inverse_gradient(X, X)


@pytest.mark.parametrize("kernel", [NegatedCost(PowerCost(2.5)), HingeKernel(3.0), DotKernel()])
def test_copies_and_pickles(kernel):
    assert copy.deepcopy(kernel) == kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel


class NoMethod:
    """Nothing that could be evaluated."""


class NotCallable:
    evaluate = 3


@pytest.mark.parametrize(
    "kernel, error, message",
    [
        ("cosine", ValueError, "kernel must be one of 'dot'"),
        (NoMethod(), TypeError, "NoMethod without 'evaluate'"),
        (NotCallable(), TypeError, "NotCallable whose 'evaluate' is not callable"),
        (PowerCost, TypeError, "the class PowerCost instead of an instance"),
        (None, TypeError, "NoneType without 'evaluate'"),
    ],
)
def test_bad_kernels_are_refused_by_name(kernel, error, message):
    with pytest.raises(error, match=message):
        check_kernel(kernel)


def test_bad_answers_of_kernels():
    with pytest.raises(ValueError, match=r"kernel must return \(S, J\) = \(3, 2\)"):
        kernel_scores(lambda x, y: (x - y).sum((-1, -2)), X, Y)
    with pytest.raises(TypeError, match=r"kernel must return \(S, J\)"):
        kernel_scores(lambda x, y: 1.0, X, Y)


@pytest.mark.parametrize("make", [lambda: PowerCost(0.5), lambda: HingeKernel(0.0), lambda: HingeKernel(float("nan"))])
def test_bad_parameters(make):
    with pytest.raises(ValueError, match="must be"):
        make()
