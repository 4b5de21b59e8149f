"""Anchored steps on lists of tensors: in one call for all of them, or block by block in the cache of the processor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["advance", "explore"]

# Entries of a block: two megabytes of single precision, and a multiple of what a vector register holds.
_BLOCK = 2**19


def explore(parameters: Sequence[Tensor], gradients: Sequence[Tensor], exploration: float, foreach: bool) -> None:
    """Move parameters against their gradients."""
    if foreach:
        torch._foreach_add_(parameters, gradients, alpha=-exploration)
        return
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.add_(gradient, alpha=-exploration)


def advance(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    anchored: Sequence[Tensor],
    anchors: Sequence[Tensor],
    weights: tuple[float, float, float],
    foreach: bool,
) -> None:
    """Make an update and the exploration of the next step, all in place.

    Parameters
    ----------
    parameters, gradients : sequence of Tensor
        Where the gradients were taken, and they.
    anchored, anchors : sequence of Tensor
        The iterates pulled to their anchors, and those.
    weights : tuple of float
        Step size of the update, weight of the anchor and step size of the exploration of the next step.
    foreach : bool
        Whether to treat all tensors in one call.
    """
    update, weight, exploration = weights
    if foreach:
        torch._foreach_add_(anchored, gradients, alpha=-update)
        if weight:
            torch._foreach_lerp_(anchored, anchors, weight)
        torch._foreach_copy_(parameters, anchored)
        if exploration:
            torch._foreach_add_(parameters, gradients, alpha=-exploration)
        return
    for tensors in zip(parameters, gradients, anchored, anchors, strict=True):
        for parameter, gradient, pulled, anchor in _blocks(*tensors):
            pulled.add_(gradient, alpha=-update)
            if weight:
                pulled.lerp_(anchor, weight)
            if exploration and type(parameter) in (Tensor, torch.nn.Parameter):
                torch.add(pulled, gradient, alpha=-exploration, out=parameter)  # one pass instead of two
            else:
                parameter.copy_(pulled)
                if exploration:
                    parameter.add_(gradient, alpha=-exploration)


def _blocks(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Views of large tensors that stay in the cache from one operation to the next, and are worth all threads."""
    size = max(_BLOCK, 2**15 * torch.get_num_threads())
    plain = all(
        tensor.device.type == "cpu" and tensor.is_contiguous() and type(tensor) in (Tensor, torch.nn.Parameter)
        for tensor in tensors
    )
    if tensors[0].numel() < 2 * size or not plain:
        return [tensors]
    return zip(*(tensor.view(-1).split(size) for tensor in tensors), strict=True)
