"""Gradients that are computed outside torch, as parts of a graph of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["differentiable_once"]


class _Once(torch.autograd.Function):
    """Gradients by some inputs: they depend on the upstream gradient and the inputs, but cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, found: list[Tensor], *depends_on: Tensor) -> tuple[Tensor, ...]:
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, ...]:
        raise RuntimeError("the solution of an optimization layer can be differentiated once only")


def differentiable_once(
    found: list[Tensor | None], upstream: Tensor, inputs: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Make differentiating gradients an error, whatever they are differentiated by.

    torch's own ``once_differentiable`` leaves out, without a word, how the gradient depends on the inputs.

    Parameters
    ----------
    found : list of torch.Tensor or None
        Gradients by the inputs, None where it is not needed.
    upstream : torch.Tensor
        The upstream gradient.
    inputs : tuple of torch.Tensor
        As saved for the backward pass.

    Returns
    -------
    tuple of torch.Tensor or None
    """
    linked = iter(_Once.apply([part for part in found if part is not None], upstream, *inputs))
    return tuple(None if part is None else next(linked) for part in found)
