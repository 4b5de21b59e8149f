"""What is known exactly about the worst case, and what the flows cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave

__all__ = ["measure_costs", "measure_density_costs", "measure_gradient", "measure_oracle", "measure_values"]

# f(y) = slope.y + curvature |y|^2 / 2 has a Gaussian worst case.
SLOPE, CURVATURE, TAU, EPSILON, START = (0.5, -0.3), 0.4, 1.0, 0.3, (1.0, 2.0)
MEAN = (2.5, 17.0 / 6.0)
VALUE = 1.8599571769
# f(y) = log(1 + exp(-2 y)) at 0.3 with tau = 0.5, epsilon = 0.2: value and mean loss.
LOGISTIC_VALUE, LOGISTIC_LOSS = 0.73562214, 1.1720575


def quadratic(x: Any, y: Any) -> Any:
    """The loss with the Gaussian worst case."""
    return x @ x.new_tensor(SLOPE) + 0.5 * CURVATURE * x.square().sum(1)


def logistic(x: Any, y: Any) -> Any:
    """The loss of the one-dimensional oracle."""
    import torch

    return torch.nn.functional.softplus(-2.0 * x[:, 0])


def cloud_moments(flow: str, generator: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and variance of particles for the Gaussian oracle."""
    import torch

    from assay.transport import FlowSampler

    sampler = FlowSampler(flow, tau=TAU, epsilon=EPSILON, generator=generator, **options)
    worst = sampler.sample(quadratic, torch.tensor([START], dtype=torch.float64))
    points, weights = worst.points[0].numpy(), worst.weights[0].numpy()
    mean = weights @ points
    return mean, weights @ (points - mean) ** 2


def measure_oracle(measurement: Measurement, contender: str, seed: int) -> None:
    """Largest error of a coordinate of the mean, and the variance against what is known of it."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    runs: dict[str, dict[str, dict[str, Any]]] = {
        "WGF": {"wgf": {"particles": 20_000, "steps": 100, "step_size": 0.1}},
        "WFR": {
            "kde": {"particles": 400, "steps": 100, "step_size": 0.05, "density": "kde"},
            "weights": {"particles": 4000, "steps": 100, "density": "weights"},
        },
        "SVGD": {"svgd": {"particles": 100}},
        "RGO": {"rgo": {"particles": 20_000, "smoothness": CURVATURE}},
    }
    flows = {"WGF": "wgf", "WFR": "wfr", "SVGD": "svgd", "RGO": "rgo"}
    for case, options in runs[contender].items():
        mean, variance = cloud_moments(flows[contender], generator, **options)
        measurement.add("oracle_mean_error", np.abs(mean - MEAN).max(), case=case)
        measurement.add("oracle_variance", variance.mean(), case=case)
        if contender == "WGF":
            step = options["step_size"]
            stationary = step * EPSILON / TAU / (1.0 - (1.0 - step * (1.0 - TAU * CURVATURE) / TAU) ** 2)
            measurement.add("oracle_variance_error", np.abs(variance / stationary - 1.0).max(), case=case)
    if contender == "WFR":
        short = {"particles": 400, "steps": 20, "step_size": 0.05}
        errors = {
            flow: np.mean([np.linalg.norm(cloud_moments(flow, generator, **short)[0] - MEAN) for _ in range(5)])
            for flow in ("wgf", "wfr")
        }
        measurement.add("short_flow_error_ratio", errors["wfr"] / errors["wgf"])


def measure_values(measurement: Measurement, seed: int) -> None:
    """Dual values against closed forms and quadrature, and the certificate of a sampler that has arrived."""
    import torch

    from assay.transport import FlowSampler, certify_robustness, worst_case_value

    generator = torch.Generator().manual_seed(seed)
    answer = worst_case_value(quadratic, [START], tau=TAU, epsilon=EPSILON, draws=2**16, generator=generator)
    measurement.add("dual_value_error", abs(answer.value - VALUE), case="quadratic, d = 2")
    measurement.add("dual_value_ess", answer.ess.min(), case="quadratic, d = 2")
    line = worst_case_value(logistic, [[0.3]], tau=0.5, epsilon=0.2, method="quadrature")
    measurement.add("dual_value_error", abs(line.value - LOGISTIC_VALUE), case="logistic, d = 1")
    sampler = FlowSampler("wgf", tau=0.5, epsilon=0.2, particles=4000, steps=300, step_size=0.01, generator=generator)
    start = torch.tensor([[0.3]], dtype=torch.float64)
    loss = sampler.sample(logistic, start).mean_loss
    measurement.add("worst_loss_error", abs(loss / LOGISTIC_LOSS - 1.0), case="logistic, d = 1")
    report = certify_robustness(None, logistic, start, None, sampler, method="quadrature", repeats=4)
    measurement.certify(report.certificates, case="logistic, d = 1")


def measure_gradient(measurement: Measurement, flow: str, seed: int, **options: Any) -> None:
    """Error of the gradient of the dual value of a linear loss in ten dimensions, against the entropy.

    The worst case of ``slope.y`` is Gaussian around ``x + tau slope``, which is also the gradient of the value in the
    slope; the error is relative to the part that robustness adds, ``tau slope``.
    """
    import torch

    from assay.transport import FlowSampler

    d, tau, count = 10, 0.5, 256
    slope = torch.ones(d, dtype=torch.float64) / math.sqrt(d)
    x = torch.zeros(count, d, dtype=torch.float64)
    entropies, errors = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003), []
    for epsilon in entropies:
        generator = torch.Generator().manual_seed(seed)
        worst = FlowSampler(flow, tau=tau, epsilon=epsilon, generator=generator, **options).sample(
            lambda a, b: a @ slope, x
        )
        gradient = (worst.weights[:, :, None] * worst.points).sum(1).mean(0)
        errors.append(float((gradient - tau * slope).norm()) / tau)
        measurement.add("gradient_error", errors[-1], case=f"epsilon = {epsilon:g}")
    measurement.add_curve(
        "error of the robust gradient",
        entropies,
        errors,
        x_label="entropy epsilon",
        y_label="relative error",
        x_log=True,
        y_log=True,
    )


def measure_costs(measurement: Measurement, task: Any, steps: int, repeats: int) -> None:
    """Seconds of an outer step against WRM and against a loop over data points; memory of the sampler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from assay.studies.transport._robust_training import make_model, new_loss, sampler_options
    from assay.transport import DROTrainer, FlowSampler

    x, y = task.x[:128], task.y[:128]

    def trainer(name: str, **options: Any) -> Any:
        model = make_model(task)
        settings = sampler_options(name, steps) | {"generator": torch.Generator().manual_seed(0)} | options
        sampler = FlowSampler(tau=task.tau, epsilon=task.epsilon, **settings)
        return DROTrainer(model, new_loss(), torch.optim.SGD(model.parameters(), lr=0.0), sampler)

    flow, ascent = trainer("WGF"), trainer("WRM")

    def point_by_point() -> None:
        for i in range(len(x)):
            flow.worst_case(x[i : i + 1], y[i : i + 1])

    functions = {
        "flow": lambda: flow.step(x, y),
        "ascent": lambda: ascent.step(x, y),
        "batch": lambda: flow.worst_case(x, y),
        "loop": point_by_point,
    }
    timings = interleave(functions, repeats=repeats, budget=3.0)
    ratio = timings.ratio("flow", "ascent")
    measurement.add("step_ratio_per_particle", ratio.median / flow.sampler.particles)
    measurement.add("step_ratio_per_particle_upper", ratio.upper / flow.sampler.particles)
    measurement.add("loop_speedup", timings.ratio("loop", "batch").median)

    d = 2000  # so wide that the particles are what counts, and not the logits
    wide = torch.zeros(32, d)
    direction = torch.ones(d)
    sampler = FlowSampler("wgf", tau=0.5, epsilon=0.02, particles=8, steps=3)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        sampler.sample(lambda a, b: torch.sin(a @ direction), wide)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    measurement.add("memory_per_particle_coordinate", held.max() / (4 * 32 * 8 * d))


def measure_density_costs(measurement: Measurement, particles: tuple[int, ...], repeats: int) -> None:
    """Exponent of the time of the flow with a density estimate in the number of particles."""
    import torch

    from assay.transport import FlowSampler

    start = torch.zeros(4, 2)
    samplers = {
        str(count): FlowSampler(
            "wfr", tau=TAU, epsilon=EPSILON, particles=count, steps=5, density="kde",
            generator=torch.Generator().manual_seed(0),
        )
        for count in particles
    }  # fmt: skip
    timings = interleave(
        {name: lambda one=one: one.sample(quadratic, start) for name, one in samplers.items()},
        repeats=repeats,
        budget=3.0,
    )
    seconds = [timings.median(name) for name in samplers]
    measurement.add("density_slope", np.polyfit(np.log(particles), np.log(seconds), 1)[0])
