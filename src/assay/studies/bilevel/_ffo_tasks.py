"""Training through a layer: synthetic decisions, portfolios of pseudo-assets, and small sudokus."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.lab import Measurement
from assay.studies.bilevel._ffo_contenders import OURS, Program, box_program, make

__all__ = ["decision_task", "measure_sudoku", "measure_training", "portfolio_task"]


@dataclass(frozen=True, eq=False)
class Task:
    """Inputs, what the decisions are judged by, the network and the program; ``best`` are costs in hindsight."""

    name: str
    inputs: Any
    targets: Any
    widths: tuple[int, ...]
    program: Program
    batch_size: int
    best: Any = None

    def loss(self, decisions: Any, targets: Any, chosen: Any) -> Any:
        """Mean squared error; or the regret of decisions with the true returns."""
        if self.best is None:
            return (decisions - targets).square().mean()
        return (_cost(self.program, decisions, targets) - self.best[chosen]).mean()


def _cost(program: Program, decisions: Any, returns: Any) -> Any:
    return 0.5 * ((decisions @ program.Q) * decisions).sum(1) - (returns * decisions).sum(1)


def decision_task(n: int, samples: int, batch_size: int, rng: np.random.Generator) -> Task:
    """Uniform targets from random features, through a network with batch normalisation."""
    import torch

    inputs = torch.as_tensor(rng.normal(size=(samples, 640)))
    targets = torch.as_tensor(rng.uniform(-1.0, 1.0, size=(samples, n)))
    return Task(f"decisions n={n}", inputs, targets, (640, 128, 128, n), box_program(n), batch_size)


def portfolio_task(samples: int, batch_size: int) -> Task:
    """Diabetes patients as days: ten columns, alone and times the progression, are returns of twenty assets."""
    import torch
    from sklearn.datasets import load_diabetes

    X, t = load_diabetes(return_X_y=True)
    X, t = X[:samples] / X.std(axis=0), (t[:samples] - t.mean()) / t.std()
    returns = np.hstack([0.5 * X + 0.5 * t[:, None], X * t[:, None]])
    covariance = np.cov(returns.T) + 0.1 * np.eye(20)
    eye = torch.eye(20, dtype=torch.float64)
    G = torch.cat([-eye, eye])
    h = torch.cat([torch.zeros(20), 0.3 * torch.ones(20)]).double()
    ones = torch.ones(1, 20, dtype=torch.float64)
    program = Program(torch.as_tensor(covariance), G, h, ones, ones[0, :1])
    X, returns = torch.as_tensor(X), torch.as_tensor(returns)
    best = _cost(program, make(OURS, program)(-returns), returns)
    return Task("portfolio", X, returns, (10, 64, 20), program, batch_size, best)


def _network(widths: tuple[int, ...], seed: int) -> Any:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[Any] = []
        for fan_in, fan_out in itertools.pairwise(widths):
            layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.BatchNorm1d(fan_out), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-2]).double()


def measure_training(measurement: Measurement, contender: str, task: Task, epochs: int, seed: int) -> None:
    """Mean loss of the last epoch; the same network, batches and Adam for all."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model, solve = _network(task.widths, seed), make(contender, task.program)
    loader = DataLoader(
        TensorDataset(task.inputs, task.targets, torch.arange(len(task.inputs))),
        batch_size=task.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(seed),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    curve = []
    for _ in range(epochs):
        losses = []
        for inputs, targets, chosen in loader:
            optimizer.zero_grad()
            loss = task.loss(solve(-model(inputs)), targets, chosen)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        curve.append(float(np.mean(losses)))
    measurement.add("train_loss", curve[-1], case=task.name)
    measurement.add_curve(
        "training loss", np.arange(1, epochs + 1), curve, case=task.name, x_label="epoch", y_label="mean loss"
    )


def sudokus(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Puzzles and solutions as indicators, by permuting digits, rows and columns of one solution."""
    base = np.array([[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]) - 1
    puzzles, solutions = np.zeros((count, 64)), np.zeros((count, 64))
    for k in range(count):
        rows = np.concatenate([2 * band + rng.permutation(2) for band in rng.permutation(2)])
        columns = np.concatenate([2 * stack + rng.permutation(2) for stack in rng.permutation(2)])
        solved = np.eye(4)[rng.permutation(4)[base[np.ix_(rows, columns)]]]
        shown = rng.permutation(16) < 8
        solutions[k] = solved.ravel()
        puzzles[k] = (solved * shown.reshape(4, 4, 1)).ravel()
    return puzzles, solutions


def measure_sudoku(measurement: Measurement, contender: str, count: int, epochs: int, rng: np.random.Generator) -> None:
    """Learn the equations of a program that completes puzzles; wrong cells of the last fifth, which is held out."""
    import torch

    puzzles, solutions = (torch.as_tensor(part) for part in sudokus(count, rng))
    n_train = count * 4 // 5
    eye = torch.eye(64, dtype=torch.float64)
    solve = make(contender, Program(0.1 * eye, -eye, torch.zeros(64, dtype=torch.float64)))
    A = torch.as_tensor(rng.random((40, 64)))
    start = torch.as_tensor(rng.normal(scale=0.1, size=64))  # logarithm of a point that satisfies the equations
    A.requires_grad_(), start.requires_grad_()
    optimizer = torch.optim.Adam([A, start], lr=1e-2)
    curve = []
    for _ in range(epochs):
        losses = []
        for first in range(0, n_train, 32):
            chosen = slice(first, min(first + 32, n_train))
            optimizer.zero_grad()
            loss = (solve(-puzzles[chosen], A, A @ start.exp()) - solutions[chosen]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        curve.append(float(np.mean(losses)))
    with torch.no_grad():
        filled = solve(-puzzles[n_train:], A, A @ start.exp()).reshape(-1, 16, 4).argmax(2)
    wrong = (filled != solutions[n_train:].reshape(-1, 16, 4).argmax(2)).double().mean()
    measurement.add("train_loss", curve[-1], case="sudoku")
    measurement.add("wrong_cells", float(wrong), case="sudoku")
    measurement.add_curve(
        "training loss", np.arange(1, epochs + 1), curve, case="sudoku", x_label="epoch", y_label="mean loss"
    )
