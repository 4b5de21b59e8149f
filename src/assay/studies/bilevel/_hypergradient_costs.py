"""What natural hypergradients cost: seconds against what they replace, memory, and how both grow."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.lab import Measurement, interleave
from assay.studies.bilevel._hypergradient_runs import CG, KFAC, tuned_rate
from assay.studies.bilevel._hypergradient_runs import run as run_contender
from assay.studies.bilevel._hypergradient_tasks import Task, cleaning_task, ridge_task

__all__ = ["measure_costs", "measure_race", "measure_same_iterates"]


def _new_hyper(task: Task, fisher: str, **options: Any) -> Any:
    from assay.bilevel.natural_hypergradient import NaturalHypergradient

    return NaturalHypergradient(
        task.new_net(), task.loss, task.outer_loss, outer_params=task.start.clone(), sample_weight=task.weight,
        fisher=fisher, ridge=task.ridge, cross_batch=task.cross_batch, **options,
    )  # fmt: skip


def measure_costs(measurement: Measurement, seed: int, repeats: int, dims: tuple[int, ...]) -> None:
    """Hypergradients, inner steps, threads, memory, and growth of the window with the number of parameters."""
    task = cleaning_task(seed)
    _time_hypergradients(measurement, task, repeats)
    _time_inner_steps(measurement, task, repeats)
    _time_threads(measurement, task, repeats)
    _weigh(measurement, dims)
    _time_windows(measurement, dims, repeats)


def _time_hypergradients(measurement: Measurement, task: Task, repeats: int) -> None:
    from assay.bilevel.hessian_systems import conjugate_gradients
    from assay.bilevel.hypergradient_problem import HessianOperator

    natural = {}
    for fisher in ("kfac", "smoothed"):
        natural[fisher] = _new_hyper(task, fisher)
        batches = task.batches()
        for _ in range(task.inner_steps):
            natural[fisher].inner_step(next(batches))
    problem = natural["kfac"].problem

    def by_products() -> Any:
        theta, v = problem.inner.leaves(), problem.outer.leaves()
        _, grad, direct = problem.outer_gradients(theta, v, None)
        hessian = HessianOperator(problem, theta, v, task.cross_batch)
        w = conjugate_gradients(hessian, grad, tol=1e-8, max_iter=10).solution
        cross, _ = problem.cross_term(theta, v, w, task.cross_batch)
        return direct[0] - cross[0]

    timings = interleave(
        {
            "kfac": natural["kfac"].hypergradient,
            "smoothed": natural["smoothed"].hypergradient,
            "cg": by_products,
        },
        repeats=4 * repeats,
        budget=10.0,
    )
    measurement.add("hypergradient_to_cg", timings.ratio("kfac", "cg").median, case="kfac")
    measurement.add("hypergradient_to_cg", timings.ratio("smoothed", "cg").median, case="smoothed")
    measurement.add("hypergradient_seconds", timings.median("kfac"), case="kfac")


def _time_inner_steps(measurement: Measurement, task: Task, repeats: int) -> None:
    import torch

    hyper = _new_hyper(task, "kfac")
    net, v = hyper.problem.inner.module, task.start.clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=task.inner_rate)
    source = task.batches()
    batches = [next(source) for _ in range(10)]

    def natural() -> None:
        for batch in batches:
            hyper.inner_step(batch)
            optimizer.step()
        hyper.clear_batches()

    def plain() -> None:
        for batch in batches:
            optimizer.zero_grad()
            losses = task.loss(dict(net.named_parameters()), v, batch) * task.weight(v, batch)  # type: ignore[misc]
            (losses.mean() + 0.5 * task.ridge * net.weight.square().sum()).backward()
            optimizer.step()

    timings = interleave({"kfac": natural, "plain": plain}, repeats=6 * repeats, budget=10.0)
    measurement.add("inner_step_to_plain", timings.ratio("kfac", "plain").median, case="kfac")


def _time_threads(measurement: Measurement, task: Task, repeats: int) -> None:
    import torch

    runs = {}
    for parallel in ("sync", "thread"):
        hyper = _new_hyper(task, "smoothed", parallel=parallel)
        optimizer = torch.optim.SGD(hyper.problem.inner.module.parameters(), lr=1e-3)
        source = task.batches()
        batches = [next(source) for _ in range(10)]

        def loop(hyper: Any = hyper, optimizer: Any = optimizer, batches: Any = batches) -> int:
            for batch in batches:
                hyper.inner_step(batch)
                optimizer.step()
            hyper.clear_batches()
            return hyper.n_samples  # waits for the worker

        runs[parallel] = loop
    timings = interleave(runs, repeats=2 * repeats, budget=10.0)
    measurement.add("thread_speedup", timings.ratio("sync", "thread").median)


def _weigh(measurement: Measurement, dims: tuple[int, ...]) -> None:
    """Bytes of the matrices in float64 against what is promised."""
    import torch

    from assay.bilevel.fisher_states import SmoothedFisher, WindowFisher

    like = torch.zeros(1, dtype=torch.float64)
    for name, state, promised in (
        ("smoothed", SmoothedFisher(dims[0], 0.1, like), 8 * dims[0] ** 2),
        ("window", WindowFisher(dims[0], 128, like), 8 * 128 * dims[0]),
    ):
        held = sum(tensor.numel() * tensor.element_size() for tensor in state.tensors())
        measurement.add("memory_to_promise", held / promised, case=name)


def _time_windows(measurement: Measurement, dims: tuple[int, ...], repeats: int) -> None:
    import torch

    from assay.bilevel.fisher_states import WindowFisher

    generator, ridge = torch.Generator().manual_seed(0), torch.zeros((), dtype=torch.float64)

    def solve(dim: int) -> Any:
        rows = torch.randn(128, dim, generator=generator, dtype=torch.float64)
        state = WindowFisher(dim, 128, rows)

        def once() -> Any:
            state.update(rows, None)
            return state.solve(rows[0], ridge, 1e-2)

        return once

    timings = interleave({str(dim): solve(dim) for dim in dims}, repeats=2 * repeats, budget=10.0, clock="cpu")
    seconds = [timings.median(str(dim)) for dim in dims]
    measurement.add("window_exponent", float(np.polyfit(np.log(dims), np.log(seconds), 1)[0]))
    measurement.add_curve(
        "update and solve with 128 scores", list(dims), seconds, x_label="inner parameters", y_label="seconds",
        x_log=True, y_log=True,
    )  # fmt: skip


def measure_race(measurement: Measurement, seed: int, outer_steps: int) -> None:
    """Test accuracy of NHGD with Kronecker factors when CG-10 first reaches 0.94, or ends without."""
    task = cleaning_task(seed, outer_steps)
    rates = {name: tuned_rate(name, task, max(1, outer_steps // 3)) for name in (CG, KFAC)}
    products = run_contender(CG, task, rates[CG], every=2)
    natural = run_contender(KFAC, task, rates[KFAC], every=2)
    reached = products.time_to(0.94)
    measurement.add("seconds_to_0.94", reached, case=CG)
    measurement.add("seconds_to_0.94", natural.time_to(0.94), case=KFAC)
    by_then = reached if np.isfinite(reached) else products.seconds[-1]
    measurement.add("accuracy_at_that_time", natural.accuracy_at(by_then))
    for name, found in ((CG, products), (KFAC, natural)):
        measurement.add_curve(
            "test accuracy in time", found.seconds, found.accuracy, case=name, x_label="seconds",
            y_label="test accuracy",
        )  # fmt: skip


def measure_same_iterates(measurement: Measurement, seed: int) -> None:
    """Largest difference between the parameters of a run in turn and one with a thread, in float64."""
    found = []
    for parallel in ("sync", "thread"):
        finished = run_contender("NHGD smoothed", ridge_task(seed, 10), 10.0, parallel=parallel)
        found.append((finished.net.weight.detach().clone(), finished.v.detach().clone()))
    difference = max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))
    measurement.add("thread_difference", difference)
