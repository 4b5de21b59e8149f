"""Handwritten digits with wrong labels, the losses that are tried on them, and one way of training for all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LINEAR", "NETWORK", "Digits", "criteria", "noisy_digits", "train"]

WIDTH, BATCH, LEARNING_RATE = 128, 64, 3e-3

NETWORK = "network"
LINEAR = "linear model"


@dataclass(frozen=True)
class Digits:
    """Handwritten digits: clean test labels, and training labels for every rate of noise."""

    train: np.ndarray
    labels: dict[float, np.ndarray]
    test: np.ndarray
    truth: np.ndarray
    seed: int


def noisy_digits(rates: Sequence[float], rng: np.random.Generator) -> Digits:
    """Flip training labels to the runner-up of a weak model, in proportion to its probability."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    images, truth = load_digits(return_X_y=True)
    images = images / 16.0
    law = LogisticRegression(C=0.05, max_iter=1000).fit(images, truth).predict_proba(images)
    law[np.arange(len(truth)), truth] = -1.0
    runner_up, likelihood = law.argmax(axis=1), law.max(axis=1)
    order = rng.permutation(len(truth))
    train, test = order[: int(0.7 * len(order))], order[int(0.7 * len(order)) :]
    draws = rng.random(len(truth))
    labels = {}
    for rate in rates:
        flipped = draws < flip_probabilities(likelihood, rate, train)
        labels[rate] = np.where(flipped, runner_up, truth)[train]
    return Digits(images[train], labels, images[test], truth[test], int(rng.integers(2**31)))


def flip_probabilities(likelihood: np.ndarray, rate: float, train: np.ndarray) -> np.ndarray:
    """Probabilities in proportion to the likelihood, cut at 1, whose mean over the training set is the rate."""
    low, high = 0.0, 1e9
    for _ in range(200):
        factor = 0.5 * (low + high)
        too_many = np.minimum(1.0, factor * likelihood[train]).mean() > rate
        low, high = (low, factor) if too_many else (factor, high)
    return np.minimum(1.0, low * likelihood)


def criteria() -> dict[str, Callable[[], Callable[[Any, Any], Any]]]:
    """Losses that networks are trained with, by contender."""

    def probability_of_label(scores: Any, labels: Any) -> Any:
        return scores.softmax(1).gather(1, labels[:, None])[:, 0]

    def generalised(scores: Any, labels: Any) -> Any:
        return ((1.0 - probability_of_label(scores, labels) ** 0.7) / 0.7).mean()

    def absolute(scores: Any, labels: Any) -> Any:
        return (1.0 - probability_of_label(scores, labels)).mean()

    def lee_lin_wahba(scores: Any, labels: Any) -> Any:
        hinge = (1.0 + scores - scores.mean(1, keepdim=True)).clamp_min(0.0)
        return hinge.scatter(1, labels[:, None], 0.0).sum(1).mean()

    def ours(**settings: Any) -> Callable[[], Any]:
        def make() -> Any:
            from assay.supervised import LinearCoreLoss

            return LinearCoreLoss(**settings)

        return make

    def theirs(name: str, **settings: Any) -> Callable[[], Any]:
        def make() -> Any:
            import torch

            return getattr(torch.nn, name)(**settings)

        return make

    return {
        "linear core": ours(),
        "linear core, gamma tail": ours(tail="gamma"),
        "linear core, pairs": ours(constrained=False),
        "CrossEntropyLoss": theirs("CrossEntropyLoss"),
        "label smoothing 0.1": theirs("CrossEntropyLoss", label_smoothing=0.1),
        "generalised cross-entropy": lambda: generalised,
        "mean absolute error": lambda: absolute,
        "MultiMarginLoss": theirs("MultiMarginLoss"),
        "Lee-Lin-Wahba hinge": lambda: lee_lin_wahba,
    }


def train(
    criterion: Callable[[Any, Any], Any], digits: Digits, rates: Sequence[float], architecture: str, epochs: int
) -> list[float]:
    """Train one model per rate of noise and return their accuracies on clean labels.

    All models of all contenders start from the same weights and see the same batches. Those of one contender are
    independent, but trained in one pass, stacked along the first axis.
    """
    import torch

    images = torch.tensor(digits.train, dtype=torch.float32)
    labels = torch.tensor(np.stack([digits.labels[rate] for rate in rates]))
    generator = torch.Generator().manual_seed(digits.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(digits.seed)
        widths = (64, WIDTH, 10) if architecture == NETWORK else (64, 10)
        layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(widths)]
    weights = [layer.weight.detach().T.repeat(len(rates), 1, 1).requires_grad_() for layer in layers]
    biases = [layer.bias.detach().repeat(len(rates), 1, 1).requires_grad_() for layer in layers]

    def forward(batch: Any) -> Any:
        hidden = batch.expand(len(rates), -1, -1)
        for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden.relu() if index else hidden, weight)
        return hidden

    optimizer = torch.optim.Adam(weights + biases, lr=LEARNING_RATE, fused=True)
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator).split(BATCH):
            optimizer.zero_grad()
            scores = forward(images[batch]).flatten(0, 1)
            # The criteria are means, so this is the sum of the losses of the models.
            (len(rates) * criterion(scores, labels[:, batch].flatten())).backward()
            optimizer.step()
    with torch.no_grad():
        predicted = forward(torch.tensor(digits.test, dtype=torch.float32)).argmax(2).numpy()
    return [float(accuracy) for accuracy in (predicted == digits.truth).mean(axis=1)]
