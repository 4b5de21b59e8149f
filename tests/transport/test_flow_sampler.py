"""Samplers of the worst case: Gaussian and logistic oracles, the single steps against plain loops, and bad input."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from assay.transport import FlowSampler, worst_case_value
from assay.transport.flow_langevin import birth_death, density_reaction, log_kernel_density, weight_reaction
from assay.transport.flow_problem import WorstCaseProblem
from assay.transport.flow_rejection import ascend_to_peak
from assay.transport.flow_stein import stein_direction

SLOPE = torch.tensor([0.5, -0.3], dtype=torch.float64)
CURVATURE, TAU, EPSILON = 0.4, 1.0, 0.3
START = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
MEAN = torch.tensor([2.5, 17.0 / 6.0], dtype=torch.float64)
VARIANCE = 0.25


def quadratic(x, y):
    return x @ SLOPE.to(x) + 0.5 * CURVATURE * x.square().sum(1)


def logistic(x, y):
    return torch.nn.functional.softplus(-2.0 * x[:, 0])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def sampler(flow="wgf", **options):
    settings = {"tau": TAU, "epsilon": EPSILON, "generator": seeded()} | options
    return FlowSampler(flow, **settings)


def moments(worst):
    weights = worst.weights[:, :, None]
    mean = (weights * worst.points).sum(1)
    return mean[0], (weights * (worst.points - mean[:, None]).square()).sum(1)[0]


@pytest.mark.parametrize(
    ("flow", "options"),
    [
        ("wgf", {"particles": 4000, "steps": 100}),
        ("wfr", {"particles": 400, "steps": 100, "density": "kde"}),
        ("wfr", {"particles": 2000, "steps": 100, "density": "weights"}),
        ("svgd", {"particles": 200}),
        ("rgo", {"particles": 4000, "smoothness": 0.4}),
        ("rgo", {"particles": 4000, "smoothness": 0.7}),
    ],
)
def test_mean_of_the_gaussian_oracle(flow, options):
    mean, _ = moments(sampler(flow, **options).sample(quadratic, START))
    torch.testing.assert_close(mean, MEAN, atol=0.08, rtol=0)


@pytest.mark.parametrize("step_size", [0.1, 0.02])
def test_langevin_variance_is_that_of_an_autoregression(step_size):
    factor = 1.0 - step_size * (1.0 - TAU * CURVATURE) / TAU
    stationary = step_size * EPSILON / TAU / (1.0 - factor**2)
    assert stationary == pytest.approx({0.1: 0.257732, 0.02: 0.251509}[step_size], abs=1e-6)
    steps = round(10.0 / step_size)
    worst = sampler(particles=20_000, steps=steps, step_size=step_size).sample(quadratic, START)
    _, variance = moments(worst)
    torch.testing.assert_close(variance, torch.full_like(variance, stationary), rtol=0.05, atol=0)


def test_langevin_mean_contracts_as_promised():
    steps, factor = 20, 1.0 - 0.1 * (1.0 - TAU * CURVATURE)
    mean, _ = moments(sampler(particles=20_000, steps=steps).sample(quadratic, START))
    torch.testing.assert_close(mean, MEAN + factor**steps * (START[0] - MEAN), atol=0.015, rtol=0)


def test_reaction_reaches_the_mean_faster_and_weights_make_the_cloud_too_narrow():
    errors = {}
    for flow in ("wgf", "wfr"):
        worst = sampler(flow, particles=400, steps=20, step_size=0.05).sample(quadratic, START)
        errors[flow] = float((moments(worst)[0] - MEAN).norm())
    assert worst.density == "kde"
    assert errors["wfr"] <= 0.8 * errors["wgf"]
    narrow = sampler("wfr", particles=4000, steps=100, density="weights").sample(quadratic, START)
    assert float(moments(narrow)[1].mean()) < 0.9 * VARIANCE


def test_exact_draws_have_the_exact_law():
    worst = sampler("rgo", particles=20_000, smoothness=0.4).sample(quadratic, START)
    assert worst.accept_rate == 1.0  # the Gaussian that is proposed is the law
    mean, variance = moments(worst)
    torch.testing.assert_close(mean, MEAN, atol=0.015, rtol=0)
    torch.testing.assert_close(variance, torch.full_like(variance, VARIANCE), atol=0.01, rtol=0)
    rejecting = sampler("rgo", particles=5000, smoothness=0.7).sample(quadratic, START)
    # the share of the area under the wider Gaussian
    assert rejecting.accept_rate == pytest.approx(0.3 / 0.6, abs=0.02)


@pytest.mark.parametrize("flow", ["wgf", "rgo"])
def test_logistic_oracle(flow):
    options = {"smoothness": 1.0} if flow == "rgo" else {"step_size": 0.005, "steps": 1000}
    worst = FlowSampler(flow, tau=0.5, epsilon=0.2, particles=20_000, generator=seeded(), **options).sample(
        logistic, torch.tensor([[0.3]], dtype=torch.float64)
    )
    assert worst.mean_loss == pytest.approx(1.1720575, abs=0.015)
    assert float(worst.points.mean()) == pytest.approx(-0.34801133, abs=0.01)
    assert float((worst.points - 0.3).square().mean()) == pytest.approx(0.58816277, abs=0.015)


@pytest.mark.parametrize(("flow", "epsilon"), [("wrm", 0.2), ("wgf", 0.0)])
def test_without_noise_the_fixed_point_is_reached(flow, epsilon):
    worst = FlowSampler(flow, tau=0.5, epsilon=epsilon, steps=400).sample(logistic, [[0.5]])
    assert worst.points.abs().max() < 1e-8  # y = x - tau theta sigmoid(-theta y) has the solution 0
    assert worst.points.shape[1] == (1 if flow == "wrm" else 4)


def test_special_cases():
    x = torch.randn(6, 3, generator=seeded(1))
    y = torch.arange(6)
    still = FlowSampler("erm", tau=1.0, epsilon=0.1).sample(lambda a, b: a.sum(1), x, y)
    torch.testing.assert_close(still.points[:, 0], x)
    ball = FlowSampler("pgd", tau=1.0, epsilon=0.1, radius=0.5).sample(lambda a, b: 3.0 * a[:, 0], x, y)
    torch.testing.assert_close(ball.points[:, 0], x + torch.tensor([0.5, 0.0, 0.0]))
    tiny = FlowSampler("wgf", tau=1e-8, epsilon=1e-9, generator=seeded()).sample(lambda a, b: a.sum(1), x, y)
    torch.testing.assert_close(tiny.points, x[:, None].expand_as(tiny.points), atol=1e-3, rtol=0)
    blurred = FlowSampler("dual", tau=0.3, epsilon=0.2, particles=5, generator=seeded()).sample(logistic, x)
    torch.testing.assert_close(blurred.weights, (0.6 / 0.2 * blurred.losses).softmax(1))


def test_importance_draws_give_the_gradient_of_the_dual():
    """Of the log-mean-exp, differentiated by hand in a parameter of the loss."""
    theta = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)

    def loss(x, y):
        return torch.sin(theta * x[:, 0])

    x = torch.tensor([[0.2], [1.0]], dtype=torch.float64)
    worst = FlowSampler("dual", tau=0.4, epsilon=0.3, particles=64, generator=seeded()).sample(loss, x)
    losses = torch.sin(theta * worst.points[..., 0])
    beta = 0.8 / 0.3
    dual = torch.logsumexp(beta * losses, 1).mean() / beta
    (expected,) = torch.autograd.grad(dual, theta, retain_graph=True)
    (got,) = torch.autograd.grad((worst.weights * losses).sum(1).mean(), theta)
    torch.testing.assert_close(got, expected)
    assert theta.grad is None


def test_weights_are_distributions_and_ess_is_theirs():
    x = torch.randn(7, 4, generator=seeded(2), dtype=torch.float64)
    for flow, options in [("wfr", {}), ("wfr", {"density": "kde"}), ("dual", {}), ("svgd", {"steps": 5})]:
        worst = FlowSampler(flow, tau=0.5, epsilon=0.1, particles=9, generator=seeded(), **options).sample(logistic, x)
        torch.testing.assert_close(worst.weights.sum(1), torch.ones(7, dtype=torch.float64))
        torch.testing.assert_close(worst.ess, 1.0 / (worst.weights**2).sum(1))
        assert worst.points.shape == (7, 9, 4)


def test_density_rule_follows_the_size():
    wide = torch.zeros(2, 11, dtype=torch.float64)
    assert sampler("wfr", particles=50).sample(logistic, START).density == "kde"
    assert sampler("wfr", particles=50).sample(logistic, wide).density == "weights"
    assert sampler("wfr", particles=49).sample(logistic, START).density == "weights"


def test_coinciding_particles_do_not_react():
    react = density_reaction(0.5, 2.0)
    log_weights = torch.tensor([[0.2, 0.8]], dtype=torch.float64).log()
    cloud = torch.ones(1, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(react(log_weights, torch.tensor([[1.0, 5.0]]), cloud), log_weights)


def test_reaction_rules_by_hand():
    reward = torch.tensor([[0.3, -0.2, 1.0]], dtype=torch.float64)
    weights = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64)
    cloud = torch.tensor([[[0.0, 1.0], [0.5, -1.0], [2.0, 0.3]]], dtype=torch.float64)
    beta, h = 2 * TAU / EPSILON, 0.4
    expected = weights ** (1 - EPSILON * h / (2 * TAU)) * torch.exp(h * reward)
    got = weight_reaction(h, beta)(weights.log(), reward, cloud).exp()
    torch.testing.assert_close(got, expected / expected.sum())

    centre = (weights[0, :, None] * cloud[0]).sum(0)
    sigma = (weights[0, :, None] * (cloud[0] - centre) ** 2).sum(0).sqrt()
    width = 3 ** (-1 / 6) * sigma
    density = torch.zeros(3, dtype=torch.float64)
    for j in range(3):
        for i in range(3):
            z = (cloud[0, j] - cloud[0, i]) / width
            density[j] += weights[0, i] * torch.exp(-0.5 * z @ z) / (2 * math.pi * width.prod())
    rate = reward[0] - density.log() / beta
    expected = weights[0] * torch.exp(h * (rate - weights[0] @ rate))
    got = density_reaction(h, beta)(weights.log(), reward, cloud).exp()
    torch.testing.assert_close(got[0], expected / expected.sum())
    shift = log_kernel_density(cloud, weights.log())[0][0] - density.log()
    torch.testing.assert_close(shift, shift[0].expand(3))


def test_birth_and_death():
    weights = torch.tensor([[0.01, 0.59, 0.4], [0.3, 0.3, 0.4]], dtype=torch.float64)
    source, after = birth_death(weights.log(), 0.05, seeded(3))
    assert source[1].tolist() == [0, 1, 2]
    torch.testing.assert_close(after[1].exp(), weights[1])
    donor = int(source[0, 0])
    assert donor in (1, 2)
    torch.testing.assert_close(after[0, 0], after[0, donor])
    torch.testing.assert_close(after.exp().sum(1), torch.ones(2, dtype=torch.float64))
    assert float(after[0, 0].exp()) == pytest.approx(0.5 * (0.01 + float(weights[0, donor])))
    nothing, same = birth_death(weights.log(), 0.001, seeded())
    assert nothing is None
    torch.testing.assert_close(same, weights.log())


def test_every_light_particle_is_replaced():
    weights = torch.full((3, 20), 1e-12, dtype=torch.float64)
    weights[:, :2] = 0.5
    source, after = birth_death((weights / weights.sum(1, keepdim=True)).log(), 0.2 / 20, seeded())
    assert (source < 2).all()
    assert after.exp().min() > 0


def test_stein_direction_by_hand():
    cloud = torch.randn(2, 5, 3, generator=seeded(), dtype=torch.float64)
    score = torch.randn(2, 5, 3, generator=seeded(1), dtype=torch.float64)
    got = stein_direction(cloud, score, 1.0)
    for n in range(2):
        distances = torch.stack([(cloud[n, i] - cloud[n, j]).norm() for i in range(5) for j in range(i)])
        width = float(distances.median()) ** 2 / math.log(6)
        for i in range(5):
            expected = torch.zeros(3, dtype=torch.float64)
            for j in range(5):
                leaf = cloud[n, j].clone().requires_grad_()
                kernel = torch.exp(-(leaf - cloud[n, i]).square().sum() / width)
                (slope,) = torch.autograd.grad(kernel, leaf)
                expected += (kernel.detach() * score[n, j] + slope) / 5
            torch.testing.assert_close(got[n, i], expected)


def test_stein_without_a_distance():
    score = torch.ones(1, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(stein_direction(torch.zeros(1, 3, 2, dtype=torch.float64), score, 0.1), score)
    torch.testing.assert_close(
        stein_direction(torch.zeros(1, 1, 2, dtype=torch.float64), score[:, :1], 0.1), score[:, :1]
    )


def test_peak_is_the_maximiser():
    problem = WorstCaseProblem(quadratic, START, None, TAU, EPSILON)
    torch.testing.assert_close(ascend_to_peak(problem, 0.5)[0, 0], MEAN, atol=1e-4, rtol=0)


def test_vectorised_over_data_points():
    """Without noise a batch is what its points are one by one."""
    x = torch.randn(5, 3, generator=seeded(4), dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)

    def loss(features, labels):
        return torch.sin(features).sum(1) * labels

    settings = {"tau": 0.1, "epsilon": 0.1, "steps": 7}
    together = FlowSampler("wrm", **settings).sample(loss, x, y)
    for i in range(5):
        alone = FlowSampler("wrm", **settings).sample(loss, x[i : i + 1], y[i : i + 1])
        torch.testing.assert_close(together.points[i], alone.points[0])
        torch.testing.assert_close(together.losses[i], alone.losses[0])


def test_images_and_dtypes():
    images = torch.rand(2, 1, 4, 4, generator=seeded())
    convolution = torch.nn.Conv2d(1, 2, 3)

    def loss(x, y):
        assert x.shape[1:] == (1, 4, 4)
        return convolution(x).square().flatten(1).mean(1)

    before = images.clone()
    worst = FlowSampler("wgf", tau=0.1, epsilon=0.01, generator=seeded()).sample(loss, images)
    assert worst.points.shape == (2, 4, 1, 4, 4)
    assert worst.points.dtype == torch.float32
    torch.testing.assert_close(images, before)
    assert all(parameter.grad is None for parameter in convolution.parameters())
    assert FlowSampler("wgf", tau=1, epsilon=1).sample(logistic, [[1], [2]]).points.dtype == torch.float64
    assert FlowSampler("wgf", tau=1, epsilon=1).sample(logistic, torch.tensor([[1], [2]])).points.dtype == torch.float32
    half = FlowSampler("wgf", tau=1.0, epsilon=0.1).sample(logistic, torch.zeros(2, 1, dtype=torch.bfloat16))
    assert half.points.dtype == torch.bfloat16


@pytest.mark.parametrize("flow", ["wgf", "wfr", "svgd", "rgo", "dual"])
def test_draws_depend_on_the_generator_alone(flow):
    options = {"smoothness": 1.0} if flow == "rgo" else {}
    state = torch.get_rng_state()
    draws = [
        FlowSampler(flow, tau=0.5, epsilon=0.2, steps=5, generator=seeded(s), **options)
        .sample(logistic, [[0.3]])
        .points
        for s in (0, 0, 1)
    ]
    torch.testing.assert_close(draws[0], draws[1], rtol=0, atol=0)
    assert not torch.equal(draws[0], draws[2])
    fresh = FlowSampler(flow, tau=0.5, epsilon=0.2, steps=5, **options)
    assert not torch.equal(fresh.sample(logistic, [[0.3]]).points, fresh.sample(logistic, [[0.3]]).points)
    assert torch.equal(state, torch.get_rng_state())


def test_copies():
    original = sampler("wfr", particles=7)
    assert "wfr" in repr(original)
    for twin in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        torch.testing.assert_close(
            twin.sample(logistic, [[0.3]]).points, copy.deepcopy(original).sample(logistic, [[0.3]]).points
        )
    content = original.sample(logistic, [[0.3]]).to_dict()
    assert np.shape(content["points"]) == (1, 7, 1)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_scale_does_not_matter(scale):
    """Features in other units, with tau and epsilon in their squares."""

    def loss(x, y):
        return torch.nn.functional.softplus(-2.0 * x[:, 0] / scale)

    def draw(flow, function, unit):
        return FlowSampler(
            flow, tau=0.5 * unit**2, epsilon=0.2 * unit**2, particles=60, steps=10, generator=seeded()
        ).sample(function, torch.tensor([[0.3], [0.3]], dtype=torch.float64) * unit)

    # Coinciding is judged in absolute terms, so only the flows without a density estimate are free of units.
    for flow in ("wgf", "wrm", "svgd", "dual"):
        torch.testing.assert_close(draw(flow, loss, scale).points / scale, draw(flow, logistic, 1.0).points)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau must be greater than 0"),
        ({"tau": -1.0}, "tau must be greater than 0"),
        ({"tau": math.nan}, "tau must be finite"),
        ({"epsilon": -0.1}, "epsilon must be at least 0"),
        ({"flow": "wfr", "epsilon": 0.0}, "epsilon must be greater than 0 for flow='wfr'"),
        ({"flow": "svgd", "epsilon": 0.0}, "epsilon must be greater than 0"),
        ({"flow": "dual", "epsilon": 0.0}, "epsilon must be greater than 0"),
        ({"step_size": 2.0}, "unstable step"),
        ({"flow": "wrm", "step_size": 2.5}, "unstable step"),
        ({"step_size": 0.0}, "step_size must be greater than 0"),
        ({"particles": 0}, "particles must be at least 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"flow": "langevin"}, "flow must be one of"),
        ({"density": "histogram"}, "density must be one of"),
        ({"flow": "rgo"}, "smoothness must be given"),
        ({"flow": "rgo", "smoothness": 1.0}, "tau \\* smoothness must be less than 1"),
        ({"flow": "rgo", "smoothness": -1.0}, "smoothness must be at least 0"),
        ({"flow": "pgd"}, "radius must be given"),
        ({"min_weight": 0.3}, "min_weight must be less than 0.25"),
        ({"weight_step": 0.0}, "weight_step must be greater than 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        sampler(**options)


def test_options_of_the_wrong_type():
    for options in ({"particles": 2.0}, {"tau": "1"}, {"generator": 0}):
        with pytest.raises(TypeError, match=next(iter(options))):
            sampler(**options)
    with pytest.raises(ValueError, match="weight_step must be less than"):
        sampler("wfr", weight_step=10.0).sample(logistic, START)


@pytest.mark.parametrize(
    ("loss", "x", "y", "error", "message"),
    [
        (3, [[1.0]], None, TypeError, "loss"),
        (
            lambda x, y: x.sum(),
            [[1.0], [2.0]],
            None,
            ValueError,
            "one value per sample.*got shape \\(\\).*reduction='none'",
        ),
        (lambda x, y: x, [[1.0], [2.0]], None, ValueError, "got shape \\(2, 1\\)"),
        (lambda x, y: 1.0, [[1.0]], None, TypeError, "loss must return a tensor"),
        (lambda x, y: x[:, 0].detach(), [[1.0]], None, ValueError, "differentiable in the features"),
        (lambda x, y: x[:, 0] / 0.0 * 0.0, [[1.0], [2.0]], None, ValueError, "got 2 nan or infinite values of 2"),
        (lambda x, y: x[:, 0] * y, [[1.0]], None, ValueError, "y must be given"),
        (logistic, [1.0], None, ValueError, "x must be a finite"),
        (logistic, [[math.nan]], None, ValueError, "1 nan or infinite"),
        (logistic, torch.tensor([[math.inf]]), None, ValueError, "1 nan or infinite"),
        (logistic, torch.zeros(0, 2), None, ValueError, "x must have shape"),
        (logistic, torch.zeros(3), None, ValueError, "x must have shape"),
        (logistic, [["a"]], None, TypeError, "x must be"),
        (logistic, [[1.0]], [1, 2], ValueError, "y must have one label"),
        (logistic, [[1.0]], ["a"], TypeError, "y must be numeric"),
    ],
)
def test_bad_losses_and_data(loss, x, y, error, message):
    with pytest.raises(error, match=message):
        FlowSampler("wgf", tau=1.0, epsilon=0.1).sample(loss, x, y)


def test_errors_of_a_loss_are_its_own_when_it_has_labels():
    def loss(x, y):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        FlowSampler("wgf", tau=1.0, epsilon=0.1).sample(loss, [[1.0]], [0])


def test_a_flow_that_runs_away_is_reported():
    with pytest.raises(ValueError, match="loss must be finite"):
        FlowSampler("wgf", tau=1.0, epsilon=0.1, steps=200).sample(lambda x, y: x.pow(4).sum(1), [[10.0]])


def test_smoothness_that_is_exceeded_is_noticed():
    with pytest.raises(ValueError, match="smoothness must bound"):
        FlowSampler("rgo", tau=0.5, epsilon=0.2, particles=500, smoothness=0.1, generator=seeded()).sample(
            lambda x, y: 0.5 * x.square().sum(1), [[0.3]]
        )


def test_rejection_gives_up_with_the_rate():
    x = torch.zeros(1, 40, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="did not end in 20 trials \\(acceptance rate"):
        FlowSampler("rgo", tau=1.0, epsilon=0.2, smoothness=0.9, max_trials=20, generator=seeded()).sample(
            lambda a, b: a.sum(1), x
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu():
    x = START.cuda()
    generator = torch.Generator(device="cuda").manual_seed(0)
    for flow, options in [("wgf", {"steps": 100}), ("wfr", {"steps": 100}), ("svgd", {}), ("rgo", {"smoothness": 0.4})]:
        worst = FlowSampler(flow, tau=TAU, epsilon=EPSILON, particles=400, generator=generator, **options).sample(
            quadratic, x
        )
        assert worst.points.is_cuda
        torch.testing.assert_close(moments(worst)[0].cpu(), MEAN, atol=0.12, rtol=0)
    with pytest.raises(ValueError, match="generator must be on the device"):
        FlowSampler("wgf", tau=1.0, epsilon=0.1, generator=seeded()).sample(quadratic, x)
    assert worst_case_value(quadratic, x, tau=TAU, epsilon=EPSILON, generator=generator).value == pytest.approx(
        1.86, abs=0.05
    )
