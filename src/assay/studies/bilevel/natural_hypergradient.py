"""Study of natural hypergradient descent against products with the Hessian, single loops and unrolling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Contender, Measurement, Paper, Study
from assay.studies.bilevel._hypergradient_claims import CLAIMS
from assay.studies.bilevel._hypergradient_costs import measure_costs, measure_race, measure_same_iterates
from assay.studies.bilevel._hypergradient_runs import (
    AVERAGE,
    CG,
    IDENTITY,
    KFAC,
    NATURAL,
    NEUMANN,
    NOTHING,
    SMOOTHED,
    SOBA,
    TORCHOPT,
    UNROLLED,
    WINDOW,
    products_counted,
    run,
    torchopt_is_there,
    tuned_rate,
)
from assay.studies.bilevel._hypergradient_tasks import TASKS, clean_only_accuracy, gaussian_shift_error, ridge_task

__all__ = ["NaturalHypergradientStudy"]

CLEAN_ONLY = "clean samples only"
_CHECKPOINTS = 5


@dataclass(frozen=True)
class Problem:
    """The tasks are made by those who run on them, from a seed."""

    seed: int
    parameters: dict[str, Any]


class NaturalHypergradientStudy(Study):
    """Curvature from per-sample gradients against curvature from products with the Hessian."""

    title = "Natural hypergradient descent"
    summary = (
        "For those who tune hyper-parameters, weights of samples or distilled data by gradients. The curvature of the "
        "inner problem comes from the gradients that inner descent computes anyway: no products with a Hessian."
    )
    promise = (
        "The residual of the solution in the system of the true Hessian, with what follows for the hypergradient, and "
        "its cosine to conjugate gradients if asked for."
    )
    interface = "torch training wrapper, function and scikit-learn estimator"
    method = "assay.bilevel.NaturalHypergradient"
    paper = Paper(
        title="Natural Hypergradient Descent: Algorithm Design, Convergence Analysis, and Parallel Implementation",
        authors="Kong, Chen, Zhang, Mou",
        arxiv="2602.10905",
    )
    data = (
        "Handwritten digits from scikit-learn: 900 with half of the labels redrawn, 300 right ones, 597 for tests, and "
        "five images of every digit to distil 900 into; the Wisconsin breast cancer data; linear Gaussian responses."
    )
    contenders = (
        Contender(KFAC, "method", "Kronecker factors, beta 0.1, damping 1e-3"),
        Contender(SMOOTHED, "method", "exponential average of the dense Fisher matrix, beta 0.1, damping 1e-3"),
        Contender(AVERAGE, "method", "sum over all scores, gamma 1"),
        Contender(WINDOW, "method", "the last 512 scores, damping 1e-3"),
        Contender(CG, "incumbent", "10 conjugate gradient steps with products with the Hessian, all inner samples"),
        Contender(NEUMANN, "incumbent", "10 terms of a Neumann series, all inner samples (as stocBiO)"),
        Contender(SOBA, "incumbent", "single loop: both variables and the solution move in every inner step"),
        Contender(UNROLLED, "incumbent", "reverse differentiation through 10 inner steps"),
        Contender(IDENTITY, "incumbent", "the Hessian replaced by the identity (T1-T2)"),
        Contender(TORCHOPT, "incumbent", "diff.implicit.custom_root with 10 conjugate gradient steps", "torchopt"),
        Contender(NOTHING, "incumbent", "inner descent only"),
        Contender(CLEAN_ONLY, "incumbent", "logistic regression of the 300 right labels", library="scikit-learn"),
    )
    claims = CLAIMS
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {
            "cleaned": (KFAC, CG, NEUMANN, NOTHING),
            "tasks": ("cleaning", "ridge"),
            "tuned": False,
            "outer_steps": {"cleaning": 150, "ridge": 40, "distillation": 0},
            "rated": (AVERAGE,),
            "batches": (100, 400, 1600),
            "repetitions": 2,
            "repeats": 2,
            "dims": (1000, 4000, 16000),
            "race": False,
        },
        "full": {
            "cleaned": (KFAC, SMOOTHED, AVERAGE, WINDOW, CG, NEUMANN, SOBA, UNROLLED, IDENTITY, TORCHOPT, NOTHING),
            "tasks": ("cleaning", "ridge", "distillation"),
            "tuned": True,
            "outer_steps": {"cleaning": 150, "ridge": 60, "distillation": 100},
            "rated": (AVERAGE, SMOOTHED),
            "batches": (100, 400, 1600, 6400),
            "repetitions": 2,
            "repeats": 5,
            "dims": (1000, 4000, 16000, 64000),
            "race": True,
        },
    }
    seeds: ClassVar[dict[str, int]] = {"quick": 1, "full": 5}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """A seed for data, batches and scores."""
        return Problem(int(rng.integers(2**31 - 1000)), dict(self.sizes[size]))

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Run the parts of the study that the contender takes part in."""
        measurement, parameters = Measurement(), problem.parameters
        if contender == TORCHOPT and not torchopt_is_there():
            measurement.add("installed", 0.0)
            return measurement
        if contender == CLEAN_ONLY:
            measurement.add("test_accuracy", clean_only_accuracy(problem.seed), case="cleaning")
            return measurement
        with products_counted() as count:
            for name in parameters["tasks"]:
                if name != "cleaning" or contender in parameters["cleaned"]:
                    measure_task(measurement, contender, name, problem)
            products = count[0]
        if contender in NATURAL:
            measurement.add("products", products)
        if contender in parameters["rated"]:
            measure_rate(measurement, contender, problem)
        if contender == SMOOTHED:
            measure_cosines(measurement, problem)
            measure_same_iterates(measurement, problem.seed)
        if contender == KFAC:
            measure_costs(measurement, problem.seed, parameters["repeats"], parameters["dims"])
            if parameters["race"]:
                measure_race(measurement, problem.seed, parameters["outer_steps"]["cleaning"])
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """A hypergradient of a ridge per parameter, and whether it can be relied on."""
        import torch

        from assay.bilevel.hypergradient_methods import hypergradient

        generator = torch.Generator().manual_seed(0)
        x = torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
        truth = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
        y = x @ truth + torch.randn(20_000, generator=generator, dtype=torch.float64)
        ridge = torch.full((3,), 1e-3, dtype=torch.float64).log()
        fitted = torch.linalg.solve(x.T @ x / len(x) + torch.diag(ridge.exp()), x.T @ y / len(x))
        answer = hypergradient(
            fitted,
            ridge,
            lambda theta, v, batch: 0.5 * (batch[0] @ theta - batch[1]) ** 2,
            lambda theta, v, _: 0.5 * (theta - truth + 1).square().sum(),
            (x, y),
            ridge=torch.exp,
            reference="cg",
        )
        print(f"hypergradient {answer.grad.tolist()}; cosine {answer.cosine_to_reference:.4f}; {answer.n_hvp} products")
        return answer.certificates


def measure_task(measurement: Measurement, contender: str, name: str, problem: Problem) -> None:
    """Tune the outer step size, run, and evaluate."""
    parameters = problem.parameters
    task = TASKS[name](problem.seed, parameters["outer_steps"][name])
    rate = task.usual_rate
    if parameters["tuned"]:
        rate = tuned_rate(contender, task, max(1, task.outer_steps // 3))
    finished = run(contender, task, rate, every=5)
    for metric, value in task.evaluate(finished.net, finished.v).items():
        measurement.add(metric, value, case=name)
    measurement.add("seconds", finished.seconds[-1], case=name)
    measurement.add("outer_rate", rate, case=name)
    measurement.add_curve(
        f"test accuracy, {name}", 5 * np.arange(1, len(finished.accuracy) + 1), finished.accuracy, case=contender,
        x_label="outer steps", y_label="test accuracy",
    )  # fmt: skip


def measure_rate(measurement: Measurement, contender: str, problem: Problem) -> None:
    """How the error falls with the number of inner samples when the model is right."""
    counts = 8 * np.array(problem.parameters["batches"])
    fisher = NATURAL[contender]
    errors = [
        np.mean(
            [
                gaussian_shift_error(int(count), problem.seed + repetition, fisher=fisher)
                for repetition in range(problem.parameters["repetitions"])
            ]
        )
        for count in counts
    ]
    measurement.add("error_slope", float(np.polyfit(np.log(counts), np.log(errors), 1)[0]))
    measurement.add("last_error", float(errors[-1]))
    measurement.add_curve(
        "error of the hypergradient", counts, np.array(errors), case=contender, x_label="inner samples",
        y_label="relative error", x_log=True, y_log=True,
    )  # fmt: skip


def measure_cosines(measurement: Measurement, problem: Problem) -> None:
    """Cosine to the exact hypergradient along runs with a ridge per feature, with the ridge in the system and not."""
    outer_steps = problem.parameters["outer_steps"]["ridge"]
    task, low = (ridge_task(problem.seed, outer_steps, start) for start in (1.0, 0.05))
    rate = task.usual_rate
    if problem.parameters["tuned"]:
        rate = tuned_rate(SMOOTHED, task, max(1, outer_steps // 3))
    for case, followed, size in (
        ("tuned step size, ridge from 1", task, rate),
        ("smallest step size, ridge from 1", task, task.rates[0]),
        ("smallest step size, ridge from 0.05", low, low.rates[0]),
    ):
        rows = cosines_along(followed, size)
        measurement.add("ridge_cosine", float(rows[:, 0].min()), case=case)
        measurement.add("ridge_cosine_gain", float((rows[:, 0] - rows[:, 1]).min()), case=case)
        steps = outer_steps // _CHECKPOINTS * np.arange(1, _CHECKPOINTS + 1)
        for column, name in enumerate(("in the system", "left out")):
            measurement.add_curve(
                "cosine to the exact hypergradient", steps, rows[:, column], case=f"{case}, {name}",
                x_label="outer steps", y_label="cosine",
            )  # fmt: skip


def cosines_along(task: Any, rate: float) -> np.ndarray:
    """Cosines at five checkpoints: of the hypergradient, and of that without the ridge in its system."""
    import torch

    from assay.bilevel.hypergradient_methods import hypergradient

    rows: list[tuple[float, float]] = []
    seen = [0]

    def visit(hyper: Any) -> None:
        seen[0] += 1
        if seen[0] % (task.outer_steps // _CHECKPOINTS):
            return
        point = hyper.last_point()
        theta = dict(zip(hyper.problem.inner.keys, point["theta"], strict=True))
        exact = hypergradient(
            theta, point["v"][0], task.loss, task.outer_loss, task.cross_batch, method="exact", ridge=task.ridge,
            residual=False,
        ).grad  # fmt: skip
        without = hyper.state.solve(point["grad"], torch.zeros((), dtype=torch.float64), hyper.damping)
        leaves = [[x.clone().requires_grad_() for x in point[level]] for level in ("theta", "v")]
        cross, _ = hyper.problem.cross_term(*leaves, without, task.cross_batch)
        rows.append((_cosine(point["hypergradient"][0], exact), _cosine(-cross[0], exact)))

    run(SMOOTHED, task, rate, visit=visit)
    return np.array(rows)


def _cosine(one: Any, other: Any) -> float:
    return float(one @ other / (one.norm() * other.norm()))
