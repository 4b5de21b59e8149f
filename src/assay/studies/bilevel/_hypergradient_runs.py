"""The loops that are compared in the study of natural hypergradients: one function runs any of them on any task."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.extras import import_extra
from assay.studies.bilevel._hypergradient_tasks import Task

__all__ = ["Run", "products_counted", "run", "torchopt_is_there", "tuned_rate"]

KFAC, SMOOTHED, AVERAGE, WINDOW = "NHGD kfac", "NHGD smoothed", "NHGD average", "NHGD window"
CG, NEUMANN, SOBA, UNROLLED = "CG-10", "Neumann-10", "SOBA", "unrolled"
IDENTITY, NOTHING, TORCHOPT = "identity", "no outer step", "torchopt"
NATURAL = {KFAC: "kfac", SMOOTHED: "smoothed", AVERAGE: "average", WINDOW: "window"}
_TERMS = 10


@dataclass
class Run:
    """What a loop ended with, and test accuracy and seconds on the way (evaluations not counted)."""

    net: Any
    v: Any
    rate: float
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    outer_loss: list[float] = field(default_factory=list)

    def time_to(self, accuracy: float) -> float:
        """Seconds until a test accuracy was first seen; nan if it never was."""
        return next((s for s, a in zip(self.seconds, self.accuracy, strict=True) if a >= accuracy), float("nan"))

    def accuracy_at(self, seconds: float) -> float:
        """Best test accuracy seen until then; 0 before the first evaluation, nan without a time."""
        if not np.isfinite(seconds):
            return float("nan")
        return max((a for s, a in zip(self.seconds, self.accuracy, strict=True) if s <= seconds), default=0.0)


def torchopt_is_there() -> bool:
    """Whether the library is installed."""
    return importlib.util.find_spec("torchopt") is not None


@contextmanager
def products_counted() -> Iterator[list[int]]:
    """Count products with a Hessian that anybody makes, in a list with one number."""
    from assay.bilevel.hypergradient_problem import HessianOperator

    count, original = [0], HessianOperator.__call__

    def counted(self: Any, direction: Any) -> Any:
        count[0] += 1
        return original(self, direction)

    HessianOperator.__call__ = counted  # type: ignore[method-assign]
    try:
        yield count
    finally:
        HessianOperator.__call__ = original  # type: ignore[method-assign]


def tuned_rate(contender: str, task: Task, steps: int) -> float:
    """The outer step size of the grid with the least outer loss after some steps; one that diverges has none."""
    if len(task.rates) == 1 or contender == NOTHING:
        return task.rates[0]
    losses = []
    for rate in task.rates:
        try:
            losses.append(run(contender, task, rate, steps, every=steps).outer_loss[-1])
        except (ValueError, RuntimeError):  # NHGD says so when something is no longer finite
            losses.append(np.inf)
    finite = np.where(np.isfinite(losses), losses, np.inf)
    return task.rates[int(finite.argmin())]


def run(
    contender: str,
    task: Task,
    rate: float,
    steps: int | None = None,
    *,
    every: int = 10,
    visit: Callable[[Any], None] | None = None,
    **options: Any,
) -> Run:
    """Run a contender on a task.

    Parameters
    ----------
    contender : str
        One of the names above.
    task : Task
        The problem.
    rate : float
        Outer step size.
    steps : int, optional
        Outer steps, by default those of the task.
    every : int, default=10
        Outer steps between evaluations.
    visit : callable, optional
        Called with the NaturalHypergradient after every outer step of NHGD.
    **options
        For NaturalHypergradient.
    """
    import torch

    steps = task.outer_steps if steps is None else steps
    net, v = task.new_net(), task.start.clone().requires_grad_()
    found = Run(net, v, rate)
    advance = (
        _natural(contender, task, net, v, rate, visit, options)
        if contender in NATURAL
        else _plain(contender, task, net, v, rate)
    )
    elapsed = 0.0
    for step in range(steps):
        begin = time.perf_counter()
        advance()
        elapsed += time.perf_counter() - begin
        if (step + 1) % every == 0 or step + 1 == steps:
            with torch.no_grad():
                measured = task.evaluate(net, v)
            found.seconds.append(elapsed)
            found.accuracy.append(measured["test_accuracy"])
            found.outer_loss.append(measured["outer_loss"])
    return found


def _natural(
    contender: str, task: Task, net: Any, v: Any, rate: float, visit: Callable[[Any], None] | None, options: Any
) -> Callable[[], None]:
    import torch

    from assay.bilevel.hypergradient_descent import NHGD
    from assay.bilevel.natural_hypergradient import NaturalHypergradient

    settings = {"fisher": NATURAL[contender], "ridge": task.ridge, "cross_batch": task.cross_batch} | options
    hyper = NaturalHypergradient(net, task.loss, task.outer_loss, outer_params=v, sample_weight=task.weight, **settings)
    train = NHGD(
        hyper,
        torch.optim.SGD(net.parameters(), lr=task.inner_rate),
        torch.optim.SGD([v], lr=rate),
        inner_steps=task.inner_steps,
    )
    batches = task.batches()

    def advance() -> None:
        train.step(batches)
        if visit is not None:
            visit(hyper)

    return advance


def _plain(contender: str, task: Task, net: Any, v: Any, rate: float) -> Callable[[], None]:
    """Loops that are not ours, by hand or with torchopt."""
    import torch

    from assay.bilevel.hessian_systems import conjugate_gradients, neumann_series
    from assay.bilevel.hypergradient_parameters import ParameterSet
    from assay.bilevel.hypergradient_problem import BilevelProblem, HessianOperator

    problem = BilevelProblem(
        ParameterSet(net, "net", require_grad=True), ParameterSet(v, "v", require_grad=True), task.loss,
        task.outer_loss, task.weight, task.ridge,
    )  # fmt: skip
    batches = task.batches()
    auxiliary = torch.zeros(problem.inner.dim, dtype=problem.inner.dtype)

    def inner_loop() -> None:
        for _ in range(task.inner_steps):
            step_down(next(batches))

    def step_down(batch: Any) -> None:
        gradients = torch.autograd.grad(
            problem.inner_loss(problem.inner.tensors, [v.detach()], batch), problem.inner.tensors
        )
        with torch.no_grad():
            for parameter, gradient in zip(problem.inner.tensors, gradients, strict=True):
                parameter -= task.inner_rate * gradient

    def step_out(gradient: Any, size: float = rate) -> None:
        with torch.no_grad():
            v.sub_(size * gradient)

    def implicit() -> None:
        inner_loop()
        theta, outer = problem.inner.leaves(), problem.outer.leaves()
        _, grad, direct = problem.outer_gradients(theta, outer, None)
        if contender == IDENTITY:
            w = grad
        else:
            hessian = HessianOperator(problem, theta, outer, task.cross_batch)
            if contender == CG:
                w = conjugate_gradients(hessian, grad, tol=1e-8, max_iter=_TERMS).solution
            else:
                w = neumann_series(hessian, grad, step_size=task.inner_rate, n_terms=_TERMS).solution
        cross, _ = problem.cross_term(theta, outer, w, task.cross_batch)
        step_out(direct[0] - cross[0])

    def single_loop() -> None:
        nonlocal auxiliary
        for _ in range(task.inner_steps):
            batch = next(batches)
            theta, outer = problem.inner.leaves(), problem.outer.leaves()
            _, grad, direct = problem.outer_gradients(theta, outer, None)
            hessian = HessianOperator(problem, theta, outer, batch)
            cross, gradient = problem.cross_term(theta, outer, auxiliary, batch)
            auxiliary = auxiliary - task.inner_rate * (hessian(auxiliary) - grad)
            with torch.no_grad():
                for parameter, part in zip(problem.inner.tensors, problem.inner.split(gradient), strict=True):
                    parameter -= task.inner_rate * part
            # As many small steps as there are inner steps, in place of one.
            step_out(direct[0] - cross[0], rate / task.inner_steps)

    def unrolled() -> None:
        theta, outer = problem.inner.leaves(), problem.outer.leaves()
        for _ in range(task.inner_steps):
            gradients = torch.autograd.grad(problem.inner_loss(theta, outer, next(batches)), theta, create_graph=True)
            theta = [x - task.inner_rate * gradient for x, gradient in zip(theta, gradients, strict=True)]
        (gradient,) = torch.autograd.grad(problem.outer_value(theta, outer, None), outer)
        with torch.no_grad():
            for parameter, part in zip(problem.inner.tensors, theta, strict=True):
                parameter.copy_(part)
        step_out(gradient)

    if contender == TORCHOPT:
        return _torchopt_step(problem, task, v, inner_loop, step_out)
    return {NOTHING: inner_loop, SOBA: single_loop, UNROLLED: unrolled}.get(contender, implicit)


def _torchopt_step(
    problem: Any, task: Task, v: Any, inner_loop: Callable[[], None], step_out: Callable[[Any], None]
) -> Callable[[], None]:
    """Implicit differentiation by torchopt, with as many conjugate gradient steps as the others have."""
    import torch

    implicit = import_extra("torchopt.diff.implicit", extra="peers")
    solvers = import_extra("torchopt.linear_solve", extra="peers")

    def optimality(theta: Any, outer: Any) -> Any:
        return torch.func.grad(lambda point: problem.inner_loss(list(point), [outer], task.cross_batch))(theta)

    @implicit.custom_root(optimality, argnums=1, solve=solvers.solve_cg(maxiter=_TERMS))
    def solution(start: Any, outer: Any) -> Any:
        with torch.enable_grad():
            inner_loop()
        return tuple(parameter.detach().clone().requires_grad_() for parameter in problem.inner.tensors)

    def advance() -> None:
        outer = v.detach().clone().requires_grad_()
        theta = solution(tuple(problem.inner.detached()), outer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it still calls functorch by its old name
            (gradient,) = torch.autograd.grad(problem.outer_value(list(theta), [outer], None), outer)
        step_out(gradient)

    return advance
