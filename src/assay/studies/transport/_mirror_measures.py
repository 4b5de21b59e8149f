"""What the study of mirror Langevin dynamics measures: runs of particles, fluctuations, the density flow, costs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave
from assay.studies.transport._mirror_problems import (
    Problem,
    exact_interval_mean,
    interval_problem,
    system_means,
    truncated_exponential,
)

__all__ = [
    "measure_chaos",
    "measure_costs",
    "measure_flow",
    "measure_fluctuations",
    "measure_memory",
    "run_problem",
]

# A particle with a share, or a distance from a wall, below this is at the boundary.
NEAR = 1e-3


def run_problem(
    measurement: Measurement,
    problem: Problem,
    method: str,
    *,
    n: int,
    lr: float,
    time: float,
    rng: np.random.Generator,
    case: str | None = None,
    **options: Any,
) -> np.ndarray:
    """Run one method on all systems of a problem and add what came out."""
    import assay.transport as transport

    name = case or problem.name
    barrier = options.pop("barrier", "log")
    domain = problem.domain(barrier)
    start = domain.start(n * problem.n_systems, rng)
    function = getattr(transport, method)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the entropic barrier")
        run = function(
            problem.grad,
            start,
            domain=domain,
            temperature=problem.temperature,
            lr=lr,
            n_steps=max(1, round(time / lr)),
            rng=rng,
            **options,
        )
    x = run.particles
    slack = domain.slack(x) if method == "mirror_langevin" else domain.slack(_on_hull(domain, x))
    measurement.add("outside_share", float(np.mean(slack < -1e-12)), case=name)
    measurement.add("not_strictly_inside", float(np.sum(~(slack > 0))), case=name)
    measurement.add("boundary_share", float(np.mean(np.abs(slack) <= NEAR)), case=name)
    measurement.add("run_seconds", float(run.history["seconds"][-1]), case=name)
    if problem.exact_mean is not None:
        error = system_means(x, problem.n_systems).mean(axis=0) - problem.exact_mean
        measurement.add("mean_error", float(np.abs(error).sum()), case=name)
    if problem.measure is not None:
        for metric, value in problem.measure(x).items():
            measurement.add(metric, value, case=name)
    if method == "mirror_langevin":
        measurement.certify(run.certificates, case=name)
    mean = run.history["mean"].reshape(len(run.history["time"]), -1)
    measurement.add_curve(
        "first coordinate of the mean", run.history["time"], mean[:, 0], case=name, x_label="time", y_label="mean"
    )
    return x


def _on_hull(domain: Any, x: np.ndarray) -> np.ndarray:
    """Remove the rounding of sums over many steps without a projection."""
    if type(domain).__name__ == "Simplex":
        return x + (1.0 - x.sum(axis=1, keepdims=True)) / x.shape[1]
    return x


def measure_fluctuations(
    measurement: Measurement, sizes: tuple[int, ...], n_systems: int, time: float, rng: np.random.Generator
) -> None:
    """Variance over time of the mean of the particles, at equilibrium, against their number."""
    from assay.transport import certify_scaling, mirror_langevin

    problem, lr = interval_problem(0.8, n_systems), 0.4
    variances = []
    for n in sizes:
        means: list[np.ndarray] = []
        mirror_langevin(
            problem.grad,
            truncated_exponential(0.8, problem.temperature, n * n_systems, rng),
            domain=problem.domain("log"),
            temperature=problem.temperature,
            lr=lr,
            n_steps=round(time / lr),
            record=5,
            rng=rng,
            # The particles themselves are seen by the functional only.
            functional=lambda x, means=means: means.append(system_means(x, n_systems)[:, 0]) or 0.0,
        )
        late = np.stack(means)[len(means) // 8 :]
        variances.append(float(late.var()))
        measurement.add("mean_variance", variances[-1], case=f"N={n}")
    promise = certify_scaling(list(sizes), variances)
    measurement.certify(promise, case="fluctuations")
    measurement.add("slope_error", promise.value, case="fluctuations")
    measurement.add_curve(
        "variance of the mean",
        sizes,
        variances,
        x_label="particles",
        y_label="variance over time",
        x_log=True,
        y_log=True,
    )


def measure_chaos(
    measurement: Measurement, sizes: tuple[int, ...], n_systems: int, time: float, rng: np.random.Generator
) -> None:
    """Distance of the mean of the particles from that of the density flow, all along the way, and its decay."""
    from assay.transport import mirror_flow_1d, mirror_langevin
    from assay.transport.langevin_residual import linear_rate

    problem, lr, record = interval_problem(0.8, n_systems), 0.1, 10
    flow_dt = lr
    laws: list[float] = []

    def variation(x: np.ndarray, mass: np.ndarray) -> np.ndarray:
        return (mass @ x - 0.8) * x

    flow = mirror_flow_1d(
        variation,
        200,
        _start_density,
        temperature=problem.temperature,
        dt=flow_dt,
        n_steps=round(time / flow_dt),
        functional=lambda x, mass: laws.append(float(mass @ x)) or 0.5 * (mass @ x - 0.8) ** 2,
    )
    expected = np.array(laws[: len(flow.time)])[::record]
    distances, exact = [], exact_interval_mean(0.8, problem.temperature)
    for n in sizes:
        means: list[np.ndarray] = []
        run = mirror_langevin(
            problem.grad,
            _draw_start(n * n_systems, rng),
            domain=problem.domain("log"),
            temperature=problem.temperature,
            lr=lr,
            n_steps=round(time / lr),
            record=record,
            rng=rng,
            functional=lambda x, means=means: means.append(system_means(x, n_systems)[:, 0]) or 0.0,
        )
        path = np.stack(means)
        distance = ((path - expected[: len(path), None]) ** 2).mean(axis=1)
        distances.append(float(distance[1:].mean()))
        measurement.add("distance_from_flow", distances[-1], case=f"N={n}")
        measurement.add("largest_distance_times_n", n * float(distance[1:].max()), case=f"N={n}")
        error = (path.mean(axis=1) - exact) ** 2
        measurement.add_curve(
            "squared error of the mean",
            run.history["time"],
            np.maximum(((path - exact) ** 2).mean(axis=1), 1e-12),
            case=f"N={n}",
            x_label="time",
            y_label="squared error",
            y_log=True,
        )
    # The largest systems together are the least noisy view of the linear phase.
    floor = 9.0 * float(path[-len(path) // 4 :].var()) / n_systems
    measurement.add("particle_rate", linear_rate(run.history["time"], error, floor=floor), case=f"N={sizes[-1]}")
    slope = float(np.polyfit(np.log(sizes), np.log(distances), 1)[0])
    measurement.add("slope_error", abs(slope + 1.0), case="distance from the flow")
    measurement.add("slope", slope, case="distance from the flow")


def measure_flow(measurement: Measurement) -> None:
    """The density flow with known values, and its certified rate."""
    from assay.transport import mirror_flow_1d

    flow = mirror_flow_1d(
        lambda x, mass: (mass @ x - 0.8) * x,
        200,
        _start_density,
        temperature=0.05,
        dt=0.25,
        n_steps=1200,
        functional=lambda x, mass: 0.5 * (mass @ x - 0.8) ** 2,
    )
    measurement.add("gap", flow.gap, case="flow")
    measurement.add("gap_error", abs(flow.gap - 0.384836), case="flow")
    measurement.add("flow_rate", flow.rate, case="flow")
    known = {0: 1.63e-1, 30: 2.1e-3, 120: 1.7e-5, 300: 3.4e-9}
    errors = [abs(flow.excess[round(t / 0.25)] / value - 1.0) for t, value in known.items()]
    measurement.add("known_value_error", max(errors), case="flow")
    measurement.certify(flow.certificates, case="flow")
    measurement.add_curve(
        "objective above its minimum", flow.time, flow.excess, case="flow", x_label="time", y_label="excess", y_log=True
    )


def measure_costs(measurement: Measurement, n: int, repeats: int, steps: int = 10) -> None:
    """Seconds per step against projected Langevin, and their growth with the number of particles."""
    from assay.transport import Ball, Box, Simplex, mirror_langevin, projected_langevin

    def run(function: Any, domain: Any, x: np.ndarray) -> Any:
        pull = np.full_like(x, 0.1)
        options = {"domain": domain, "temperature": 0.05, "lr": 0.01, "n_steps": steps, "record": steps, "rng": 0}
        return lambda: function(lambda _: pull, x, **options)

    for name, domain in (("simplex", Simplex(50)), ("ball", Ball(50)), ("box", Box(0, 1, 50))):
        x = domain.start(n, 0)
        timings = interleave(
            {"mirror": run(mirror_langevin, domain, x), "projected": run(projected_langevin, domain, x)},
            repeats=repeats,
            clock="cpu",
        )
        ratio = timings.ratio("mirror", "projected")
        measurement.add("step_over_projected", ratio.median, case=name)
        measurement.add("step_over_projected_upper", ratio.upper, case=name)
    domain, sizes = Simplex(50), (n // 2, n, 2 * n, 4 * n)
    timings = interleave(
        {str(size): run(mirror_langevin, domain, domain.start(size, 0)) for size in sizes}, repeats=repeats, clock="cpu"
    )
    seconds = [timings.median(str(size)) for size in sizes]
    measurement.add("time_slope", float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]), case="simplex")


def measure_memory(measurement: Measurement) -> None:
    """Largest memory that a step has at one time, in arrays of the size of the particles, theirs included."""
    import torch

    from assay.transport import Ball, Box, Simplex
    from assay.transport.mirror_langevin import mirror_step

    generator = torch.Generator()
    for name, domain in (("simplex", Simplex(50)), ("ball", Ball(50)), ("box", Box(0, 1, 50))):
        x = torch.tensor(domain.start(2000, 0))
        gradient = torch.full_like(x, 0.1)

        def draw(shape: tuple[int, ...]) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            mirror_step(domain, x, gradient, 0.1, 0.05, 1, draw)
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).max()
        measurement.add("memory_arrays", float(held) / (8 * x.numel()) + 1.0, case=name)


def _start_density(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * ((x - 0.3) / 0.08) ** 2)


def _draw_start(n: int, rng: np.random.Generator) -> np.ndarray:
    from scipy.stats import truncnorm

    return truncnorm.rvs(-0.3 / 0.08, 0.7 / 0.08, loc=0.3, scale=0.08, size=(n, 1), random_state=rng)
