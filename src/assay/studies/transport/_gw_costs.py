"""What the parts of the method cost: a full step, a block, and the memory of a large run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.lab import Measurement

__all__ = ["measure_block_costs", "measure_memory", "measure_step_costs"]


def measure_step_costs(measurement: Measurement, sizes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> None:
    """Seconds of a step on the whole plan and of its products, for sparse and dense products, against the size."""
    for products, several in sizes.items():
        seconds = []
        for n in several:
            mirror, plan, product = _state(n, products, rng)
            _, low, high = mirror.scan(plan, product)
            out, spare = np.empty_like(plan), np.empty_like(plan)

            def step(mirror=mirror, plan=plan, product=product, out=out, heat=0.02 * (high - low)) -> Any:
                mirror.scan(plan, product)
                return mirror.step(plan, product, heat, out)

            def multiply(mirror=mirror, out=out, spare=spare) -> Any:
                return mirror.sandwich.product(out, spare)

            elapsed, in_product = _median(step), _median(multiply)
            seconds.append(elapsed + in_product)
            case = f"{products} n={n}"
            measurement.add("step_seconds", elapsed + in_product, case=case)
            measurement.add("product_share", in_product / (elapsed + in_product), case=case)
        measurement.add("step_slope", _slope(several, seconds), case=products)
        measurement.add_curve(
            "cost of a full step",
            several,
            seconds,
            case=products,
            x_label="points",
            y_label="CPU seconds",
            x_log=True,
            y_log=True,
        )


def measure_block_costs(measurement: Measurement, n: int, sides: tuple[int, ...], rng: np.random.Generator) -> None:
    """Seconds of a block update against the side of the block."""
    mirror, plan, product = _state(n, "sparse", rng)
    seconds = []
    for side in sides:
        rows, columns = (np.sort(rng.choice(n, side, replace=False)) for _ in range(2))

        def update(rows=rows, columns=columns) -> None:
            block = mirror.solve_block(plan, product, rows, columns, rho=0.02, max_steps=5, tol=0.0)
            mirror.write_block(plan, product, block)

        seconds.append(_median(update))
    measurement.add("block_slope", _slope(sides, seconds), case=f"n={n}")
    measurement.add_curve(
        "cost of a block update",
        sides,
        seconds,
        case=f"n={n}",
        x_label="rows and columns of the block",
        y_label="CPU seconds",
        x_log=True,
        y_log=True,
    )


def measure_memory(measurement: Measurement, n: int) -> None:
    """Peak memory of one alignment in a process of its own, in arrays of shape (n, n)."""
    answer = subprocess.run([sys.executable, "-c", _ALIGN_LARGE, str(n)], capture_output=True, text=True, check=True)
    seen = json.loads(answer.stdout.strip().splitlines()[-1])
    case = f"ba n={n} noise 0.2"
    measurement.add("peak_arrays", seen["bytes"] / (8.0 * n * n), case=case)
    measurement.add("cpu_seconds", seen["seconds"], case=case)
    measurement.add("correctness", seen["correctness"], case=case)
    measurement.add("violation", seen["violation"], case=case)


_ALIGN_LARGE = """
import json, pathlib, resource, sys, time
import numpy as np
from assay.studies.transport._gw_instances import alignment_cases
from assay.transport.gromov_wasserstein import lobcd_gw

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def resident():
    statm = pathlib.Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else peak()

n = int(sys.argv[1])
small, case = alignment_cases([("ba", 300, 0.2), ("ba", n, 0.2)], 20, np.random.default_rng(0))[:2]
lobcd_gw(small.first, small.second)  # compiles
before, started = resident(), time.process_time()
result = lobcd_gw(case.first, case.second)
print(json.dumps({
    "seconds": time.process_time() - started,
    "bytes": peak() - before,
    "correctness": float((result.mapping == case.truth).mean()),
    "violation": result.feasibility,
}))
"""


def _state(n: int, products: str, rng: np.random.Generator) -> tuple[Any, np.ndarray, np.ndarray]:
    import networkx as nx

    from assay.transport.gw_mirror import MirrorDescent
    from assay.transport.gw_problem import prepare_problem
    from assay.transport.gw_products import Sandwich
    from assay.transport.sinkhorn import round_to_marginals

    graphs = (nx.watts_strogatz_graph(n, 8, 0.3, seed=seed) for seed in (1, 2))
    problem = prepare_problem(*graphs)
    sandwich = Sandwich.of(problem.C1, problem.C2, products)
    mirror = MirrorDescent(sandwich, problem.p, problem.q, problem.left, problem.right, 10)
    plan = round_to_marginals(rng.random((n, n)), problem.p, problem.q)
    return mirror, plan, sandwich.product(plan)


def _median(function: Callable[[], Any], repeats: int = 5) -> float:
    function()
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        function()
        seconds.append(time.process_time() - started)
    return float(np.median(seconds))


def _slope(sizes: tuple[int, ...], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
