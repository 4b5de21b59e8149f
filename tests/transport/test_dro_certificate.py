"""The report on a sampler: it holds for one that has arrived, and notices one that has not."""

import math

import numpy as np
import pytest
import torch

from assay.transport import FlowSampler, certify_robustness, worst_case_value
from assay.transport.dro_measurements import largest_curvature
from assay.transport.flow_problem import WorstCaseProblem

PER_SAMPLE = torch.nn.CrossEntropyLoss(reduction="none")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def problem():
    """A linear softmax model with a loss so smooth that tau L is below 1."""
    generator = seeded(5)
    x = torch.randn(24, 3, generator=generator, dtype=torch.float64)
    model = torch.nn.Linear(3, 3).double()
    with torch.no_grad():
        model.weight.copy_(torch.randn(3, 3, generator=generator, dtype=torch.float64))
        model.bias.zero_()
    return model, x, x.argmax(1)


def report(problem, flow="wgf", tau=0.4, epsilon=0.1, model=None, **options):
    own, x, y = problem
    settings = {"draws": 2048}
    for name in ("tol", "gradient_tol", "method", "repeats", "draws"):
        if name in options:
            settings[name] = options.pop(name)
    sampler = FlowSampler(flow, tau=tau, epsilon=epsilon, generator=seeded(1), **options)
    return certify_robustness(model or own, PER_SAMPLE, x, y, sampler, generator=seeded(2), **settings)


@pytest.mark.parametrize(
    ("flow", "options"),
    [
        ("wgf", {"steps": 80, "particles": 16, "step_size": 0.02}),
        ("rgo", {"smoothness": 2.0, "particles": 16}),
        ("dual", {"particles": 2048, "tau": 0.1}),
    ],
)
def test_holds_for_samplers_that_have_arrived(problem, flow, options):
    answer = report(problem, flow, **options)
    assert answer.certified, answer.certificates
    assert len(answer.certificates) == 5
    assert answer.sampler_gap <= 0.05 * answer.reference_loss + 3 * answer.sampler_error + 3 * answer.reference_error
    assert answer.gradient_gap < 0.2
    assert answer.transport == pytest.approx(answer.reference_transport, rel=0.1)


@pytest.mark.parametrize(
    ("flow", "options"),
    [
        ("erm", {}),
        ("wgf", {"steps": 1}),
        ("pgd", {"radius": 0.05}),
        ("dual", {"particles": 1}),
        ("pgd", {"radius": 5.0}),
    ],
)
def test_notices_samplers_that_have_not(problem, flow, options):
    answer = report(problem, flow, **options)
    known, loss, gradient, lower, upper = answer.certificates
    assert known.holds
    assert lower.holds
    assert not loss.holds
    assert not gradient.holds
    assert upper.holds == (options == {"radius": 5.0})  # an adversary that is too strong has a larger loss


def test_values_agree_with_the_dual_value(problem):
    model, x, y = problem
    answer = report(problem, "rgo", smoothness=2.0, draws=8192)
    with torch.no_grad():
        value = worst_case_value(
            lambda a, b: PER_SAMPLE(model(a), b), x, y, tau=0.4, epsilon=0.1, draws=8192, generator=seeded(7)
        )
        plain = float(PER_SAMPLE(model(x), y).mean())
    assert answer.value == pytest.approx(value.value, abs=4 * (answer.value_error + value.standard_error))
    assert answer.reference_loss == pytest.approx(value.upper, abs=4 * (answer.reference_error + value.upper_error))
    assert answer.lower == pytest.approx(value.lower, abs=4 * (answer.lower_error + value.lower_error))
    assert answer.plain == pytest.approx(plain)
    assert answer.reference_transport == pytest.approx(value.transport, rel=0.1)


def test_reference_that_is_not_known_makes_the_rest_unknown(problem):
    answer = report(problem, epsilon=0.002, method="importance", draws=200)
    assert answer.ess < 50
    assert math.isnan(answer.sampler_gap)
    assert not any(certificate.holds for certificate in answer.certificates)
    rescued = report(problem, epsilon=0.002, draws=2048)
    assert "tempered" in rescued.methods
    assert rescued.certificates[0].holds


def test_curvature_beyond_the_assumption_is_reported(problem):
    mild, wild = report(problem, steps=5), report(problem, tau=30.0, step_size=0.1, epsilon=20.0, steps=5)
    assert mild.certificates[1].assumptions[0].satisfied
    assert wild.certificates[1].assumptions[0].satisfied is False
    assert not wild.certified
    assert mild.contraction == pytest.approx((1 - 0.04 * (1 - 0.4 * mild.smoothness) / 0.4) ** 5)
    assert math.isnan(report(problem, "svgd", steps=5).contraction)


def test_smoothness_is_the_largest_curvature():
    scales = torch.tensor([0.3, -2.0, 1.0], dtype=torch.float64)
    x = torch.randn(5, 3, generator=seeded(), dtype=torch.float64)
    for loss, expected in [
        (lambda a, b: 0.5 * (scales * a.square()).sum(1), 2.0),
        (lambda a, b: a @ scales, 0.0),
        (lambda a, b: torch.relu(a @ scales), 0.0),
    ]:
        found = largest_curvature(WorstCaseProblem(loss, x, None, 1.0, 0.1), x[:, None], seeded())
        assert found == pytest.approx(expected, abs=1e-3)


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.square().sum(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return 2.0 * x * gradient[:, None]


def test_a_loss_with_one_derivative(problem):
    _, x, _ = problem
    sampler = FlowSampler("wgf", tau=0.1, epsilon=0.1, steps=5, generator=seeded())
    answer = certify_robustness(None, lambda a, b: OnceDifferentiable.apply(a), x, None, sampler, draws=500)
    assert math.isnan(answer.smoothness)
    assert answer.certificates[1].assumptions[0].satisfied is None


def test_without_a_model_there_is_no_gradient(problem):
    _, x, _ = problem
    sampler = FlowSampler("wgf", tau=0.3, epsilon=0.1, steps=100, step_size=0.01, particles=16, generator=seeded())
    answer = certify_robustness(
        None, lambda a, b: torch.nn.functional.softplus(a.sum(1)), x, None, sampler, generator=seeded()
    )
    assert math.isnan(answer.gradient_gap)
    assert len(answer.certificates) == 4
    assert answer.certified, answer.certificates


def test_one_dimension_by_quadrature():
    x = torch.tensor([[0.3], [0.5]], dtype=torch.float64)
    sampler = FlowSampler("rgo", tau=0.5, epsilon=0.2, smoothness=1.0, particles=200, generator=seeded())
    answer = certify_robustness(
        None, lambda a, b: torch.nn.functional.softplus(-2.0 * a[:, 0]), x, None, sampler, method="quadrature"
    )
    assert answer.methods == ("quadrature", "quadrature")
    assert answer.certified
    assert answer.value_error < 1e-8


def test_model_is_left_as_it_was(problem):
    _, x, y = problem
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)
    ).double()
    model[1].eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sampler = FlowSampler("wgf", tau=0.1, epsilon=0.1, steps=3)
    one, other = (
        certify_robustness(model, PER_SAMPLE, x, y, sampler, draws=200, generator=seeded(), repeats=2) for _ in range(2)
    )
    assert one.plain == other.plain  # no dropout
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name])
    assert [module.training for module in model] == [True, False, True, True]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_halves_of_the_gradient_average_to_the_gradient_of_the_dual(problem):
    """By differences of the dual value, with common random numbers."""
    model, x, y = problem
    answer = report(problem, "dual", tau=0.1, particles=4096, repeats=4)

    def value(shift):
        with torch.no_grad():
            model.weight[0, 0] += shift
            found = worst_case_value(
                lambda a, b: PER_SAMPLE(model(a), b),
                x,
                y,
                tau=0.1,
                epsilon=0.1,
                draws=8192,
                generator=seeded(3),
                method="importance",
            ).value
            model.weight[0, 0] -= shift
        return found

    slope = (value(1e-4) - value(-1e-4)) / 2e-4
    worst = FlowSampler("dual", tau=0.1, epsilon=0.1, particles=8192, generator=seeded(4)).sample(
        lambda a, b: PER_SAMPLE(model(a), b), x, y
    )
    losses = PER_SAMPLE(model(worst.points.flatten(0, 1)), y.repeat_interleave(8192))
    ((worst.weights.flatten() * losses).sum() / len(x)).backward()
    assert float(model.weight.grad[0, 0]) == pytest.approx(slope, abs=0.01)
    assert answer.gradient_gap < 0.05


def test_float32_models_and_arrays(problem):
    model, x, y = problem
    answer = report((model.float(), x.numpy(), y.numpy()), steps=40)
    assert np.isfinite(answer.value)
    assert len(repr(answer).splitlines()) < 24
    assert answer.to_dict()["certificates"][0]["holds"]


def test_bad_input(problem):
    model, x, y = problem
    sampler = FlowSampler("wgf", tau=0.1, epsilon=0.1)
    with pytest.raises(TypeError, match="sampler must be a FlowSampler"):
        certify_robustness(model, PER_SAMPLE, x, y)
    with pytest.raises(ValueError, match="epsilon of sampler must be greater than 0"):
        certify_robustness(model, PER_SAMPLE, x, y, FlowSampler("wgf", tau=0.1, epsilon=0.0))
    with pytest.raises(ValueError, match="repeats must be at least 2"):
        certify_robustness(model, PER_SAMPLE, x, y, sampler, repeats=1)
    with pytest.raises(ValueError, match="reduction='none'"):
        certify_robustness(model, torch.nn.CrossEntropyLoss(), x, y, sampler)
    with pytest.raises(ValueError, match="y must be given"):
        certify_robustness(model, PER_SAMPLE, x, None, sampler)
    with pytest.raises(TypeError, match="model"):
        certify_robustness("linear", PER_SAMPLE, x, y, sampler)
