"""Seconds and memory of anchored steps, in torch and in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave

__all__ = ["measure_numpy_costs", "measure_torch_costs"]


def measure_torch_costs(measurement: Measurement, size: int, repeats: int, budget: float) -> None:
    """A step of the optimizer against one of SGD with momentum, and the memory that its state takes."""
    import torch

    from assay.games.goma_optimizer import GOMA

    def ready(make: Callable[[Any], Any]) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(size, generator=generator))
        parameter.grad = torch.randn(size, generator=generator)
        optimizer = make([parameter])
        for _ in range(3):
            optimizer.step()
        return optimizer, parameter

    ours, parameter = ready(lambda params: GOMA(params, lr=1e-3))
    sgd, _ = ready(lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True))
    timings = interleave({"goma": ours.step, "sgd": sgd.step}, repeats=repeats, budget=budget, clock="cpu")
    ratio = timings.ratio("goma", "sgd")
    case = f"{size} parameters"
    measurement.add("step_over_sgd", ratio.median, case=case)
    measurement.add("step_over_sgd_lower", ratio.lower, case=case)
    measurement.add("step_over_sgd_upper", ratio.upper, case=case)
    kept = sum(value.nbytes for value in ours.state[parameter].values() if isinstance(value, torch.Tensor))
    measurement.add("copies_with_parameters", 1.0 + kept / parameter.nbytes, case=case)


def measure_numpy_costs(measurement: Measurement, sizes: tuple[int, ...], repeats: int, budget: float) -> None:
    """What a step takes beside the operator, in passes over vectors, and how it grows with the dimension."""
    from assay.games.goma import goma

    n_iter = 150  # enough for the checks at both ends not to count
    seconds, passes = [], []
    for size in sizes:
        rng = np.random.default_rng(0)
        start, gradient, target = (rng.normal(size=size) for _ in range(3))

        def steps(start: np.ndarray = start, gradient: np.ndarray = gradient) -> None:
            # An operator that costs nothing: what is left is the method.
            goma(lambda z: gradient, start, L=1.0, n_iter=n_iter, check_every=n_iter)

        def add(start: np.ndarray = start, gradient: np.ndarray = gradient, target: np.ndarray = target) -> None:
            for _ in range(n_iter):
                np.add(start, gradient, out=target)

        functions = {"steps": steps, "passes": add}
        timings = interleave(functions, repeats=repeats, budget=budget / len(sizes), clock="cpu")
        seconds.append(timings.median("steps") / n_iter)
        passes.append(timings.ratio("steps", "passes").median)
    measurement.add("vector_passes", passes[-1], case=f"d = {sizes[-1]}")
    measurement.add("exponent_off_1", abs(float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]) - 1.0))
    measurement.add_curve(
        "time of a step beside the operator",
        sizes,
        seconds,
        x_label="dimension",
        y_label="seconds",
        x_log=True,
        y_log=True,
    )
