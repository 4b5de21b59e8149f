"""Handwritten digits at eight nodes: a ridge penalty for every feature, and gates of hidden units."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from assay.lab import Measurement
from assay.studies.bilevel._decentralized_quadratic import graph_of, hessian_descent

__all__ = ["DigitsTask", "digits_task", "measure_magnitude", "measure_pruning", "measure_ridge", "measure_sklearn"]

N_NODES, N_PIXELS = 8, 64
N_TRAIN, N_VALIDATION = 400, 600
SIGMA, GAMMA_X, GAMMA_Y = 0.1, 4.0, 2.0
BOX = (-8.0, 2.0)
X0 = -4.0
DAMPINGS = (0.01, 0.03, 0.1)
N_HIDDEN, KEPT = 32, 16


@dataclass(frozen=True)
class DigitsTask:
    """Pixels and noise columns, in three parts."""

    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


@cache
def digits_task(seed: int, noise: bool) -> DigitsTask:
    """Digits divided by 16, in random order; with 64 columns of normal noise of variance 1/4, or without."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    features = pixels / 16.0
    if noise:
        features = np.hstack([features, 0.5 * rng.standard_normal(features.shape)])
    order = rng.permutation(len(labels))
    parts = np.split(order, [N_TRAIN, N_TRAIN + N_VALIDATION])
    return DigitsTask(*((features[part], labels[part]) for part in parts))


def ridge_problem(task: DigitsTask, n_nodes: int = N_NODES) -> Any:
    """Softmax regression with a penalty for every feature."""
    from assay.bilevel import ridge_tuning_problem

    return ridge_tuning_problem(*task.train, *task.validation, n_nodes, x0=X0)


def measure_ridge(measurement: Measurement, contender: str, seed: int, n_iter: int, **options: Any) -> None:
    """Tune the penalties and score on the test rows, at the mean of the nodes."""
    from assay.bilevel import DecentralizedBilevel, metropolis_weights

    task = digits_task(seed, noise=True)
    if contender == "local only":
        measure_local_ridge(measurement, task, seed, n_iter)
        return
    problem = ridge_problem(task)
    graph = graph_of("ring", N_NODES)
    if contender == "fixed":
        _score(measurement, problem, task, problem.x0, _trained(problem, 3000))
    elif contender == "HVP":
        start = np.tile(problem.x0, (N_NODES, 1)), np.tile(problem.y0, (N_NODES, 1))
        found = []
        for damping in DAMPINGS:
            rng = np.random.default_rng(seed)
            with np.errstate(all="ignore"):  # with too little damping it overflows
                x, y, cost = hessian_descent(
                    problem.f, problem.g, *start, metropolis_weights(graph), n_iter, 0.3 * GAMMA_X, 0.3 * GAMMA_Y,
                    length=1e-3, rounds=20, damping=damping, bounds=BOX,
                    batches=lambda rng=rng: problem.sampler(rng),
                )  # fmt: skip
            if np.isfinite(x).all() and np.isfinite(y).all():
                x, y = x.mean(axis=0), y.mean(axis=0)
                found.append((problem.score(x, y, *task.validation)[0], damping, x, y))
        if found:
            _, _, x, y = min(found, key=lambda one: one[:2])
            _score(measurement, problem, task, x, y)
        measurement.add("runs_that_overflowed", len(DAMPINGS) - len(found), case="ridge")
        measurement.add("hessian_products", cost["products"], case="ridge")
    else:
        W = np.full((N_NODES, N_NODES), 1.0 / N_NODES) if contender == "centralised" else graph
        result = DecentralizedBilevel(
            problem.f, problem.g, problem.x0, problem.y0, W, sigma=SIGMA, gamma_x=GAMMA_X, gamma_y=GAMMA_Y,
            gamma_z=GAMMA_Y, x_bounds=BOX, sampler=problem.sampler, tracking=contender != "no tracking", rng=seed,
            **options,
        ).run(n_iter)  # fmt: skip
        _score(measurement, problem, task, result.x, result.y)
        loss, accuracy = problem.score(result.x, result.z, *task.test)
        measurement.add("test_loss_z", loss, case="ridge")
        measurement.add("test_accuracy_z", accuracy, case="ridge")
        measurement.add("consensus_x", result.consensus["x"], case="ridge")
        measurement.certify(result.certificates, case="ridge")
        measurement.add_curve(
            "validation loss", result.history["iteration"], result.history["upper_loss"], case="ridge",
            y_label="mean validation cross-entropy",
        )  # fmt: skip


def measure_local_ridge(measurement: Measurement, task: DigitsTask, seed: int, n_iter: int) -> None:
    """Every node tunes on its own rows; the mean of their scores."""
    from assay.bilevel import DecentralizedBilevel, ridge_tuning_problem

    scores = []
    for k in range(N_NODES):
        rows = [array[k::N_NODES] for array in (*task.train, *task.validation)]
        problem = ridge_tuning_problem(*rows, 1, x0=X0)
        if len(problem.y0) != 10 * problem.x0.size:  # a node that has not met every class
            continue
        result = DecentralizedBilevel(
            problem.f, problem.g, problem.x0, problem.y0, [[1.0]], sigma=SIGMA, gamma_x=GAMMA_X, gamma_y=GAMMA_Y,
            gamma_z=GAMMA_Y, x_bounds=BOX, sampler=problem.sampler, rng=seed, refine_steps=0,
        ).run(n_iter, n_iter)  # fmt: skip
        scores.append(problem.score(result.x, result.y, *task.test))
    loss, accuracy = np.mean(scores, axis=0)
    measurement.add("test_loss", float(loss), case="ridge")
    measurement.add("test_accuracy", float(accuracy), case="ridge")


def measure_sklearn(measurement: Measurement, seed: int) -> None:
    """Pooled rows and one penalty for all features, the best of ten on the validation rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    task = digits_task(seed, noise=True)
    best = None
    for strength in np.logspace(-3, 2, 10):
        model = LogisticRegression(C=strength, max_iter=2000).fit(*task.train)
        loss = log_loss(task.validation[1], model.predict_proba(task.validation[0]))
        if best is None or loss < best[0]:
            best = loss, model
    measurement.add("test_loss", log_loss(task.test[1], best[1].predict_proba(task.test[0])), case="ridge")
    measurement.add("test_accuracy", best[1].score(*task.test), case="ridge")


def measure_pruning(measurement: Measurement, seed: int, n_iter: int) -> None:
    """Learn gates and weights together, and keep the half of the units whose gates are most open."""
    from assay.bilevel import DecentralizedBilevel

    task, problem = _pruning(seed)
    result = DecentralizedBilevel(
        problem.f, problem.g, problem.x0, problem.y0, graph_of("ring", N_NODES), backend="torch", sigma=SIGMA,
        gamma_x=40.0 * SIGMA, gamma_y=1.0, gamma_z=1.0, sampler=problem.sampler, rng=seed,
    ).run(n_iter)  # fmt: skip
    for suffix, weights in (("", result.y), ("_z", result.z)):
        measurement.add(f"full_accuracy{suffix}", problem.score(result.x, weights, *task.test)[1], case="pruning")
        kept = np.argsort(result.x)[-KEPT:]
        accuracy = _accuracy_of_kept(problem, task, result.x, weights, kept)
        measurement.add(f"pruned_accuracy{suffix}", accuracy, case="pruning")
    measurement.add("open_gates", float((result.x > 0.0).sum()), case="pruning")
    measurement.certify(result.certificates, case="pruning")
    measurement.add_curve(
        "gates", np.arange(N_HIDDEN), np.sort(1.0 / (1.0 + np.exp(-result.x))), case="pruning", x_label="hidden unit",
        y_label="gate",
    )  # fmt: skip


def measure_magnitude(measurement: Measurement, contender: str, seed: int, n_iter: int) -> None:
    """Train the same network with all gates as they are, and keep half of the units by magnitude or at random.

    Retrained, it is cut after half of the iterations and trained on in the other half.
    """
    task, problem = _pruning(seed)
    retrained = contender == "magnitude, retrained"
    weights = _trained_network(problem, seed, n_iter // 2 if retrained else n_iter, problem.x0, problem.y0)
    x = np.asarray(problem.x0)
    first = weights[: N_PIXELS * N_HIDDEN].reshape(N_PIXELS, N_HIDDEN)
    second = weights[N_PIXELS * N_HIDDEN + N_HIDDEN :][: N_HIDDEN * 10].reshape(N_HIDDEN, 10)
    largest = np.argsort(np.linalg.norm(first, axis=0) * np.linalg.norm(second, axis=1))[-KEPT:]
    measurement.add("full_accuracy", problem.score(x, weights, *task.test)[1], case="pruning")
    if contender == "random pruning":
        rng = np.random.default_rng(seed)
        choices = [rng.permutation(N_HIDDEN)[:KEPT] for _ in range(20)]
        accuracy = float(np.mean([_accuracy_of_kept(problem, task, x, weights, kept) for kept in choices]))
    else:
        if retrained:
            weights = _trained_network(problem, seed + 1, n_iter - n_iter // 2, _with_closed_gates(x, largest), weights)
        accuracy = _accuracy_of_kept(problem, task, x, weights, largest)
    for metric in ("pruned_accuracy", "pruned_accuracy_z"):  # these weights have seen training rows only, as z has
        measurement.add(metric, accuracy, case="pruning")


def _pruning(seed: int) -> tuple[DigitsTask, Any]:
    from assay.bilevel import gate_pruning_problem

    task = digits_task(seed, noise=False)
    return task, gate_pruning_problem(*task.train, *task.validation, N_NODES, n_hidden=N_HIDDEN, rng=seed)


def _accuracy_of_kept(problem: Any, task: DigitsTask, x: np.ndarray, weights: np.ndarray, kept: np.ndarray) -> float:
    return problem.score(_with_closed_gates(x, kept), weights, *task.test)[1]


def _with_closed_gates(x: np.ndarray, kept: np.ndarray) -> np.ndarray:
    gates = np.full(N_HIDDEN, -np.inf)
    gates[kept] = x[kept]
    return gates


def _trained(problem: Any, n_iter: int) -> np.ndarray:
    """Gradient descent on the mean training loss, with all rows."""
    x, y = (np.tile(point, (N_NODES, 1)) for point in (problem.x0, problem.y0))
    for _ in range(n_iter):
        y = y - 0.3 * GAMMA_Y * problem.g(x, y, None)[1][1].mean(axis=0)
    return y[0]


def _trained_network(problem: Any, seed: int, n_iter: int, gates: Any, start: Any) -> np.ndarray:
    """As many steps on batches as the method makes, with the mean of the gradients of all nodes."""
    import torch

    rng = np.random.default_rng(seed)
    x = torch.as_tensor(gates).repeat(N_NODES, 1)
    y = torch.as_tensor(start).clone().requires_grad_()
    average = torch.zeros_like(y)
    for _ in range(n_iter):
        loss = problem.g(x, y.expand(N_NODES, -1), problem.sampler(rng)).mean()
        average.lerp_(torch.autograd.grad(loss, y)[0], 0.9)
        with torch.no_grad():
            y -= 0.3 * average
    return y.detach().numpy()


def _score(measurement: Measurement, problem: Any, task: DigitsTask, x: np.ndarray, y: np.ndarray) -> None:
    loss, accuracy = problem.score(x, y, *task.test)
    measurement.add("test_loss", loss, case="ridge")
    measurement.add("test_accuracy", accuracy, case="ridge")
    measurement.add("noise_above_pixels", float(x[N_PIXELS:].mean() - x[:N_PIXELS].mean()), case="ridge")
