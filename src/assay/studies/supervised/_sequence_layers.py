"""Losses for label sequences as layers of torch: one forward and backward pass on the same scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["torch_layers"]


def torch_layers(n_labels: int, n_samples: int, seed: int) -> dict[str, Callable[[], Any]]:
    """Forward and backward pass of the losses on the same scores of eight sequences."""
    import torch

    from assay.supervised import StructuredLinearCore, viterbi

    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(8, 20, n_labels, generator=generator, requires_grad=True)
    transitions = torch.randn(n_labels, n_labels, generator=generator, requires_grad=True)
    target = torch.randint(n_labels, (8, 20), generator=generator)
    cost = torch.nn.functional.one_hot(target, n_labels).neg().add(1)

    def score(labels: Any) -> Any:
        pairs = (labels[:, :-1] * n_labels + labels[:, 1:]).reshape(-1)
        return unary.gather(2, labels[..., None]).sum() + transitions.reshape(-1).gather(0, pairs).sum()

    def svm() -> Any:
        worst = viterbi(unary.detach() + cost, transitions.detach())
        return (score(worst) - score(target)) / 8

    def cross_entropy() -> Any:
        scores = torch.cat([unary[:, :1], unary[:, 1:] + transitions[target[:, :-1]]], dim=1)
        return torch.nn.functional.cross_entropy(scores.reshape(-1, n_labels), target.reshape(-1))

    def linear_core(**settings: Any) -> Callable[[], Any]:
        loss = StructuredLinearCore(n_labels, generator=generator, **settings)
        return lambda: loss(unary, transitions, target)

    losses = {
        "svm": svm,
        "cross-entropy": cross_entropy,
        "sampled": linear_core(sampler="positionwise", n_samples=n_samples),
        "all labels": linear_core(sampler="positionwise", n_samples=None),
        "whole": linear_core(sampler="uniform", n_samples=n_samples),
    }
    return {name: lambda loss=loss: torch.autograd.grad(loss(), (unary, transitions)) for name, loss in losses.items()}
