"""Scores from the inputs and output gradients of linear and convolutional layers.

The gradient of such a layer's weight is, for every sample, the outer product of what goes in and the gradient of what
comes out. One pass back to the outputs gives all of them, which is no dearer than the gradient of the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from assay.bilevel.fisher_scores import LayerRecord, Scores, mean_loss
from assay.bilevel.hypergradient_batches import batch_length
from assay.bilevel.hypergradient_problem import BilevelProblem

__all__ = ["LayerScores"]

_FORWARDS = {kind.forward for kind in (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)}


class LayerScores:
    """Scores from the inputs and output gradients of linear and convolutional layers.

    Parameters
    ----------
    problem : BilevelProblem
        Its inner parameters must be those of a module, and its loss must call it, with
        :func:`torch.func.functional_call`.
    """

    def __init__(self, problem: BilevelProblem):
        self.problem = problem
        inner = problem.inner
        position = {id(tensor): index for index, tensor in enumerate(inner.tensors)}
        self._slot_of: dict[torch.nn.Module, int] = {}
        self.slots: list[tuple[int, int | None]] = []  # weight and bias, as indices of inner parameters
        covered: set[int] = set()
        self.reason = ""
        if inner.module is None:
            self.reason = "inner_params are not a torch.nn.Module"
            return
        for layer in inner.module.modules():
            weight = position.get(id(getattr(layer, "weight", None)))
            if weight is None or not _is_linear(layer):
                continue
            bias = position.get(id(layer.bias)) if layer.bias is not None else None
            if (weight, bias) not in self.slots:
                self.slots.append((weight, bias))
            self._slot_of[layer] = self.slots.index((weight, bias))
            covered |= {weight} if bias is None else {weight, bias}
        missed = [key for index, key in enumerate(inner.keys or ()) if index not in covered]
        if missed:
            self.reason = f"{missed[0]} is not a parameter of a Linear, Conv1d or Conv2d layer without groups"
        elif len({weight for weight, _ in self.slots}) < len(self.slots):
            self.reason = "layers share a weight but not the bias"

    @property
    def applicable(self) -> bool:
        """Whether every inner parameter is one of a layer that is linear in it."""
        return not self.reason

    def shapes(self) -> list[tuple[int, int]]:
        """Sides (fan_in with a bias counted, fan_out) of the matrix of every layer."""
        found = []
        for weight, bias in self.slots:
            shape = self.problem.inner.shapes[weight]
            found.append((shape[1:].numel() + (bias is not None), shape[0]))
        return found

    def matrices(self, flat: Float[Tensor, " dim"]) -> list[Tensor]:
        """A flat vector as one matrix (fan_in, fan_out) per layer, the bias in the last row."""
        parts = self.problem.inner.split(flat)
        found = []
        for weight, bias in self.slots:
            matrix = parts[weight].flatten(1).T
            found.append(matrix if bias is None else torch.cat([matrix, parts[bias][None]]))
        return found

    def flat(self, matrices: Sequence[Tensor]) -> Float[Tensor, " dim"]:
        """Inverse of :meth:`matrices`."""
        parts: list[Tensor | None] = [None] * len(self.problem.inner.tensors)
        for (weight, bias), matrix in zip(self.slots, matrices, strict=True):
            fan_in = self.problem.inner.shapes[weight][1:].numel()
            parts[weight] = matrix[:fan_in].T.reshape(self.problem.inner.shapes[weight])
            if bias is not None:
                parts[bias] = matrix[fan_in]
        return self.problem.inner.flat(parts)

    @contextmanager
    def _hooked(self, hook: Callable[[torch.nn.Module, tuple[Tensor, ...], Tensor], Tensor]) -> Iterator[None]:
        handles = [layer.register_forward_hook(hook) for layer in self._slot_of]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def agree(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> bool | None:
        """Whether scores of layers are those of the loss; None when its gradient here is not finite.

        They are not when the loss uses a parameter other than by calling its layer. That is seen without numbers, by
        cutting off the outputs of all layers: what still depends on a parameter goes around them. The numbers then show
        what else changes the gradient, such as a hook.
        """
        device = self.problem.inner.device
        devices = [device] if device.type == "cuda" else []
        # All passes see the same masks of a dropout, and leave the generator as they found it.
        leaves = [x.detach().requires_grad_() for x in theta]
        with torch.random.fork_rng(devices), self._hooked(lambda layer, inputs, output: output.detach()):
            losses = self.problem.losses(leaves, v, batch)
        if losses.requires_grad:
            around = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
            if any(part is not None for part in around):
                return False
        with torch.random.fork_rng(devices):
            expected = self.problem.inner_gradient(leaves, v, batch)
        with torch.random.fork_rng(devices):
            found = self(theta, v, batch, rows=False)
        off, size = float((found.gradient - expected).norm()), float(expected.norm()) + _score_size(found)
        if not size < float("inf"):
            return None
        # Against the size of the scores, which at a minimum cancel in their mean up to rounding.
        return off <= torch.finfo(expected.dtype).eps ** 0.5 * size

    def __call__(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any, *, rows: bool) -> Scores:
        """Scores of a batch; ``rows`` says whether they are wanted as vectors too."""
        calls: list[tuple[int, torch.nn.Module, Tensor, Tensor]] = []

        def probe(layer: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            # What is added is zero; its gradient is that of the output, also if the output is changed in place later.
            zero = torch.zeros_like(output, requires_grad=True)
            calls.append((self._slot_of[layer], layer, inputs[0].detach(), zero))
            return output + zero

        with self._hooked(probe):
            losses = self.problem.losses([x.detach() for x in theta], v, batch)
        zeros = [zero for _, _, _, zero in calls]
        reached = bool(zeros) and losses.requires_grad
        gradients = torch.autograd.grad(losses.sum(), zeros, allow_unused=True) if reached else [None] * len(zeros)
        count = batch_length(batch)
        parts: list[list[LayerRecord]] = [[] for _ in self.slots]
        for (slot, layer, inputs, zero), gradient in zip(calls, gradients, strict=True):
            found = torch.zeros_like(zero) if gradient is None else gradient
            parts[slot].append(_record(layer, inputs, found, count, self.slots[slot][1] is not None))
        records = [self._joined(slot, own, count) for slot, own in enumerate(parts)]

        weights = self.problem.weights(v, batch, self.problem.inner.dtype)
        weights = None if weights is None else weights.detach()
        if rows:
            matrices = [torch.einsum("bti,bto->bio", record.inputs, record.gradients) for record in records]
            scores = self._rows(matrices, count)
            gradient = scores.mean(0) if weights is None else weights @ scores / count
        else:
            scores = None
            gradient = self.flat([_mean_outer(record, weights) for record in records])
        return Scores(scores, records, weights, gradient, mean_loss(losses.detach(), weights))

    def _rows(self, matrices: Sequence[Tensor], count: int) -> Float[Tensor, "rows dim"]:
        parts: list[Tensor | None] = [None] * len(self.problem.inner.tensors)
        for (weight, bias), matrix in zip(self.slots, matrices, strict=True):
            fan_in = self.problem.inner.shapes[weight][1:].numel()
            parts[weight] = matrix[:, :fan_in].transpose(1, 2).reshape(count, -1)
            if bias is not None:
                parts[bias] = matrix[:, fan_in]
        return torch.cat([part for part in parts if part is not None], dim=1)

    def _joined(self, slot: int, records: list[LayerRecord], count: int) -> LayerRecord:
        """Calls of one layer are positions of one record; a layer that was not called has none that counts."""
        if len(records) == 1:
            return records[0]
        if not records:
            fan_in, fan_out = self.shapes()[slot]
            like = self.problem.inner.tensors[0].detach()
            return LayerRecord(like.new_zeros(count, 1, fan_in), like.new_zeros(count, 1, fan_out))
        return LayerRecord(
            torch.cat([record.inputs for record in records], dim=1),
            torch.cat([record.gradients for record in records], dim=1),
        )


def _is_linear(layer: torch.nn.Module) -> bool:
    """Whether it is one of the layers, by what it does: a subclass may do something else with its weight."""
    if type(layer).forward not in _FORWARDS or "forward" in vars(layer):
        return False
    if isinstance(layer, torch.nn.Conv1d | torch.nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return True


def _score_size(scores: Scores) -> float:
    """A bound on the mean norm of weighted scores."""
    total = 0.0
    for record in scores.layers:
        sizes = (record.inputs.norm(dim=2) * record.gradients.norm(dim=2)).sum(dim=1)
        total += float((sizes if scores.weights is None else sizes * scores.weights).mean())
    return total


def _mean_outer(record: LayerRecord, weights: Tensor | None) -> Tensor:
    """Mean over samples, with weights, of the sum over positions of input times gradient."""
    gradients = record.gradients if weights is None else record.gradients * weights[:, None, None]
    return record.inputs.flatten(0, 1).T @ gradients.flatten(0, 1) / len(record.inputs)


def _record(layer: Any, inputs: Tensor, gradient: Tensor, count: int, bias: bool) -> LayerRecord:
    """Inputs as rows per position: those of a convolution are the patches that it looks at."""
    if isinstance(layer, torch.nn.Conv1d):
        inputs, gradient = inputs.unsqueeze(-2), gradient.unsqueeze(-2)
        geometry = [(1, *layer.kernel_size), (1, *layer.dilation), (0, *layer.padding), (1, *layer.stride)]
    elif isinstance(layer, torch.nn.Conv2d):
        geometry = [layer.kernel_size, layer.dilation, layer.padding, layer.stride]
    else:
        geometry = []
    if geometry:
        inputs = functional.unfold(inputs, *geometry).transpose(1, 2)
        gradient = gradient.flatten(2).transpose(1, 2)
    if len(inputs) != count:
        raise ValueError(f"inner_loss_per_sample must give its module {count} samples at once, got {len(inputs)}")
    inputs = inputs.reshape(count, -1, inputs.shape[-1])
    if bias:
        inputs = torch.cat([inputs, inputs.new_ones(*inputs.shape[:2], 1)], dim=2)
    return LayerRecord(inputs, gradient.reshape(count, -1, gradient.shape[-1]))
