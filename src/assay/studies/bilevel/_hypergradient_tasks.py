"""Bilevel problems of the study of natural hypergradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["TASKS", "Task", "cleaning_task", "distillation_task", "gaussian_shift_error", "ridge_task"]


@dataclass(frozen=True)
class Task:
    """A problem with both losses, where to start, and how to step.

    ``rates`` is the grid of outer step sizes of everybody, ``usual_rate`` the one of it that is tuned to most often;
    ``evaluate(net, v)`` returns numbers by their name.
    """

    name: str
    net: Any
    loss: Callable[..., Any]
    outer_loss: Callable[..., Any]
    weight: Callable[..., Any] | None
    ridge: Any
    start: Any
    cross_batch: Any
    n_samples: int
    batch_size: int
    inner_rate: float
    rates: tuple[float, ...]
    usual_rate: float
    inner_steps: int
    outer_steps: int
    evaluate: Callable[[Any, Any], dict[str, float]]
    seed: int

    def new_net(self) -> Any:
        """The module, with zero weights."""
        import torch

        torch.nn.init.zeros_(self.net.weight)
        return self.net

    def batches(self) -> Iterator[Any]:
        """Random indices of inner samples, the same for everybody."""
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield torch.randperm(self.n_samples, generator=generator)[: self.batch_size]


def _linear(inputs: int, outputs: int, dtype: Any) -> Any:
    import torch

    return torch.nn.utils.skip_init(torch.nn.Linear, inputs, outputs, bias=False, dtype=dtype)


def _digits(seed: int) -> tuple[Any, Any]:
    """Handwritten digits in [0, 1], shuffled."""
    import torch
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(digits))
    return torch.as_tensor(images[order] / 16.0).float(), torch.as_tensor(digits[order])


def _accuracy(net: Any, x: Any, y: Any) -> float:
    return float((net(x).argmax(1) == y).double().mean())


def cleaning_task(seed: int, outer_steps: int = 150) -> Task:
    """Which of 900 labels of digits to believe, half of which were drawn at random, given 300 that are right."""
    import torch
    from torch.func import functional_call
    from torch.nn.functional import cross_entropy

    x, y = _digits(seed)
    rng = np.random.default_rng(seed + 1)
    given = y[:900].clone()
    redrawn = torch.as_tensor(rng.random(900) < 0.5)
    given[redrawn] = torch.as_tensor(rng.integers(0, 10, int(redrawn.sum())))
    right = given == y[:900]
    net = _linear(64, 10, torch.float32)

    def loss(theta: Any, v: Any, index: Any) -> Any:
        return cross_entropy(functional_call(net, theta, (x[index],)), given[index], reduction="none")

    def outer_loss(theta: Any, v: Any, _: Any) -> Any:
        return cross_entropy(functional_call(net, theta, (x[900:1200],)), y[900:1200])

    def evaluate(net: Any, v: Any) -> dict[str, float]:
        trusted = torch.sigmoid(v.detach()) > 0.5
        return {
            "test_accuracy": _accuracy(net, x[1200:], y[1200:]),
            "detection": float((trusted == right).double().mean()),
            "outer_loss": float(cross_entropy(net(x[900:1200]), y[900:1200]).detach()),
        }

    return Task(
        "cleaning", net, loss, outer_loss, lambda v, index: torch.sigmoid(v[index]), 1e-4, torch.zeros(900),
        torch.arange(900), 900, 256, 1.0, (1000.0, 3000.0, 10000.0), 3000.0, 10, outer_steps, evaluate, seed,
    )  # fmt: skip


def clean_only_accuracy(seed: int) -> float:
    """Test accuracy of a logistic regression of the 300 samples of that problem whose labels are right."""
    from sklearn.linear_model import LogisticRegression

    x, y = (part.numpy() for part in _digits(seed))
    return float(LogisticRegression(max_iter=1000).fit(x[900:1200], y[900:1200]).score(x[1200:], y[1200:]))


def ridge_task(seed: int, outer_steps: int = 60, start: float = 1.0) -> Task:
    """A ridge per feature of a logistic regression on the Wisconsin breast cancer data, from one that is the same."""
    import torch
    from sklearn.datasets import load_breast_cancer
    from torch.func import functional_call
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    features, labels = features[order], labels[order]
    features = (features - features[:200].mean(0)) / features[:200].std(0)
    x, y = torch.as_tensor(features), torch.as_tensor(labels).double()
    net = _linear(30, 1, torch.float64)

    def loss(theta: Any, v: Any, index: Any) -> Any:
        return cross_entropy(functional_call(net, theta, (x[index],))[:, 0], y[index], reduction="none")

    def outer_loss(theta: Any, v: Any, _: Any) -> Any:
        return cross_entropy(functional_call(net, theta, (x[200:400],))[:, 0], y[200:400])

    def evaluate(net: Any, v: Any) -> dict[str, float]:
        logits = net(x[400:])[:, 0]
        return {
            "test_accuracy": float(((logits > 0) == (y[400:] > 0)).double().mean()),
            "test_loss": float(cross_entropy(logits, y[400:]).detach()),
            "outer_loss": float(cross_entropy(net(x[200:400])[:, 0], y[200:400]).detach()),
        }

    return Task(
        "ridge", net, loss, outer_loss, None, torch.exp, torch.full((30,), np.log(start), dtype=torch.float64),
        torch.arange(200), 200, 64, 0.1, (1.0, 10.0, 100.0), 100.0, 10, outer_steps, evaluate, seed,
    )  # fmt: skip


def distillation_task(seed: int, outer_steps: int = 100) -> Task:
    """Fifty images, five of every digit, to be learned from in place of 900."""
    import torch
    from torch.func import functional_call
    from torch.nn.functional import cross_entropy

    x, y = _digits(seed)
    chosen = torch.cat([(y[:900] == digit).nonzero()[:5, 0] for digit in range(10)])
    labels = y[chosen]
    net = _linear(64, 10, torch.float32)

    def loss(theta: Any, v: Any, index: Any) -> Any:
        return cross_entropy(functional_call(net, theta, (v[index],)), labels[index], reduction="none")

    def outer_loss(theta: Any, v: Any, _: Any) -> Any:
        return cross_entropy(functional_call(net, theta, (x[:900],)), y[:900])

    def evaluate(net: Any, v: Any) -> dict[str, float]:
        return {
            "test_accuracy": _accuracy(net, x[1200:], y[1200:]),
            "outer_loss": float(cross_entropy(net(x[:900]), y[:900]).detach()),
        }

    return Task(
        "distillation", net, loss, outer_loss, None, 1e-2, x[chosen].clone(), torch.arange(50), 50, 50, 0.5,
        (10.0, 30.0, 100.0), 30.0, 10, outer_steps, evaluate, seed,
    )  # fmt: skip


TASKS: dict[str, Callable[[int, int], Task]] = {
    "cleaning": cleaning_task,
    "ridge": ridge_task,
    "distillation": distillation_task,
}


def gaussian_shift_error(n_samples: int, seed: int, *, fisher: str = "average", dim: int = 20) -> float:
    """Relative error of the hypergradient of a linear Gaussian problem, whose exact one is known.

    Responses have mean ``x'(theta_0 + v)`` and the outer loss is half the squared distance of theta to a target, so
    that the hypergradient is ``theta_0 + v - target``. The inner loop starts at its solution, with batches of 8.
    """
    import torch

    from assay.bilevel.natural_hypergradient import NaturalHypergradient

    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    solution, target = draw(dim), draw(dim)
    scales = torch.linspace(0.5, 2.0, dim, dtype=torch.float64)
    theta, v = solution.clone().requires_grad_(), torch.zeros(dim, dtype=torch.float64)
    hyper = NaturalHypergradient(
        theta,
        lambda theta, v, batch: 0.5 * (batch[0] @ (theta - solution - v) - batch[1]) ** 2,
        lambda theta, v, _: 0.5 * (theta - target).square().sum(),
        outer_params=v,
        fisher=fisher,
        burn_in=0,
    )
    optimizer = torch.optim.SGD([theta], lr=0.02)
    for step in range(n_samples // 8):
        optimizer.param_groups[0]["lr"] = 0.02 / (1.0 + 0.02 * step)
        hyper.inner_step((draw(8, dim) * scales, draw(8)))
        optimizer.step()
    exact = solution - target
    return float((hyper.hypergradient()[0] - exact).norm() / exact.norm())
