"""What a layer costs: seconds of both passes against other layers, growth with the size, memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave
from assay.studies.bilevel._ffo_contenders import KKT, OURS, box_program, kkt_gradient, make

__all__ = ["measure_growth", "measure_memory", "measure_race"]


def _passes(name: str, n: int, batch: int, seed: int) -> dict[str, Callable[[], Any]]:
    """A forward pass, both passes, and a backward pass of a graph that is kept."""
    import torch

    program = box_program(n)
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, n, generator=generator, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(batch, n, generator=generator, dtype=torch.float64)
    solve = make(name, program)
    kept = solve(q)
    call = solve.layer._last_call if name == OURS else None  # type: ignore[attr-defined]

    def backward() -> Any:
        if call is not None:
            _without_factors(call)
        return torch.autograd.grad(kept, q, upstream, retain_graph=True)

    return {
        "forward": lambda: solve(q),
        "backward": backward,
        "both": lambda: torch.autograd.grad(solve(q), q, upstream),
    }


def _without_factors(call: Any) -> None:
    """Factorise the form anew, and forget what polishing has made of it: all that a backward pass alone would need."""
    call.solutions.systems = [None] * call.batch.size
    call.batch.forget()
    for form in call.batch.forms:
        form.factorise()


def measure_race(measurement: Measurement, contender: str, n: int, batch: int, repeats: int, seed: int) -> None:
    """Time of another layer over that of ours, for each pass and for both; interleaved."""
    functions = {
        f"{who} {what}": function
        for who, name in (("ours", OURS), ("theirs", contender))
        for what, function in _passes(name, n, batch, seed).items()
    }
    timings = interleave(functions, repeats=repeats, budget=20.0)
    case = f"n={n}, batch {batch}"
    for what in ("forward", "backward", "both"):
        measurement.add(f"{what}_ratio", timings.ratio(f"theirs {what}", f"ours {what}").median, case=case)
        measurement.add(f"seconds_{what}", timings.median(f"theirs {what}"), case=case)


def measure_growth(measurement: Measurement, sizes: tuple[int, ...], repeats: int, seed: int) -> None:
    """Growth of a backward pass with a diagonal and a dense form; time of a forward pass outside the solver.

    All of it is ours and runs in one thread, so that processor time is what counts.
    """
    import torch

    from assay.bilevel import FFOQPLayer

    rng = np.random.default_rng(seed)
    backward: dict[str, Any] = {}
    forward: dict[str, Any] = {}
    for n in sizes:
        program = box_program(n)
        root = rng.normal(size=(n, n))
        q = torch.as_tensor(rng.normal(size=(8, n))).requires_grad_()
        upstream = torch.as_tensor(rng.normal(size=(8, n)))
        for kind, Q in (("diagonal", program.Q), ("dense", torch.as_tensor(root @ root.T / n + np.eye(n)))):
            layer = FFOQPLayer()
            backward[f"{kind} {n}"] = _cold_backward(layer, layer(Q, q, program.G, program.h), q, upstream)
        layer = FFOQPLayer()
        forward[f"layer {n}"] = lambda layer=layer, q=q, program=program: layer(program.Q, q, program.G, program.h)
        forward[f"solver {n}"] = _solver_only(program, q)
    timings = interleave(backward, repeats=repeats, budget=20.0, clock="cpu")
    for kind in ("diagonal", "dense"):
        seconds = [timings.median(f"{kind} {n}") for n in sizes]
        measurement.add("time_exponent", np.polyfit(np.log(sizes), np.log(seconds), 1)[0], case=f"{kind} form")
        measurement.add_curve(
            "backward seconds", sizes, seconds, case=f"{kind} form", x_label="unknowns", x_log=True, y_log=True,
            y_label="seconds, batch of 8",
        )  # fmt: skip
    timings = interleave(forward, repeats=repeats, budget=20.0, clock="cpu")
    for n in sizes:
        measurement.add("overhead", timings.median(f"layer {n}") / timings.median(f"solver {n}") - 1.0, case=f"n={n}")


def _cold_backward(layer: Any, kept: Any, q: Any, upstream: Any) -> Callable[[], Any]:
    import torch

    call = layer._last_call

    def backward() -> Any:
        _without_factors(call)
        return torch.autograd.grad(kept, q, upstream, retain_graph=True)

    return backward


def _solver_only(program: Any, q: Any) -> Callable[[], Any]:
    """The calls of the solver in a forward pass: a setup, and a solve per instance; its matrices are at hand."""
    import scipy.sparse as sp

    from assay.bilevel.qp_solvers import QPSolver

    h, rows = program.h.numpy(), q.detach().numpy()
    upper, matrix = sp.csc_matrix(np.triu(program.Q.numpy())), sp.csc_matrix(program.G.numpy())

    def solve() -> Any:
        solver = QPSolver("clarabel", {}, upper, matrix)
        return [solver.solve(row, h, np.zeros(0), index) for index, row in enumerate(rows)]

    return solve


def measure_memory(measurement: Measurement, sizes: tuple[int, ...], seed: int) -> None:
    """Peak memory of both passes of one instance with all six gradients, ours and of the dense system."""
    peaks: dict[str, list[int]] = {"ours": [], "dense KKT": []}
    for name, column in peaks.items():
        _all_gradients(name, sizes[0], seed)()  # imports and caches
        for n in sizes:
            run = _all_gradients(name, n, seed)
            tracemalloc.start()
            run()
            column.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        measurement.add_curve(
            "memory", sizes, column, case=name, x_label="unknowns", y_label="bytes", x_log=True, y_log=True
        )
        measurement.add("memory_exponent", np.polyfit(np.log(sizes), np.log(column), 1)[0], case=name)
    measurement.add("memory_constant", peaks["dense KKT"][-1] / (8 * sizes[-1] ** 2), case="dense KKT")
    measurement.add("memory_constant", peaks["ours"][-1] / (8 * sizes[-1] ** 2), case="ours")
    kept = []
    for name in (OURS, KKT):
        backward = _passes(name, sizes[-1], 1, seed)["backward"]
        backward()
        tracemalloc.start()
        backward()
        kept.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    measurement.add("backward_memory_ratio", kept[1] / kept[0])


def _all_gradients(name: str, n: int, seed: int) -> Callable[[], Any]:
    """Both passes with a dense form; every array that they make is one of numpy."""
    import torch

    from assay.bilevel import FFOQPLayer
    from assay.bilevel.qp_solvers import QPSolver

    rng = np.random.default_rng(seed)
    root, q, upstream = rng.normal(size=(n, n)), rng.normal(size=n), rng.normal(size=n)
    program = box_program(n)
    Q, G, h = root @ root.T / n + np.eye(n), program.G.numpy(), program.h.numpy()
    leaves = [torch.as_tensor(part).requires_grad_() for part in (Q, q, G, h)]
    nothing = np.zeros((0, n))

    def ours() -> Any:
        return torch.autograd.grad(FFOQPLayer()(*leaves), leaves, torch.as_tensor(upstream))

    def dense() -> Any:
        found = QPSolver.of("clarabel", {}, Q, G, nothing).solve(q, h, np.zeros(0), 0)
        step, moved, _ = kkt_gradient(Q, G, h, nothing, found.point, found.multipliers, upstream)
        by_form = 0.5 * (np.outer(step, found.point) + np.outer(found.point, step))
        return by_form, step, np.outer(found.multipliers, step) + np.outer(moved, found.point), -moved

    return ours if name == "ours" else dense
