r"""Gradients of single samples, the raw material of an empirical Fisher matrix.

The mean of the scores is the gradient that stochastic descent needs anyway, so curvature is a by-product. Three ways
to have them: layers that are linear in their parameters give them as outer products of what goes in and the gradient
of what comes out; any other model by mapping the gradient over samples; and where samples cannot be told apart (batch
normalisation in training) means over micro-batches stand in for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from assay.bilevel.hypergradient_problem import BilevelProblem, batch_length, part_of

__all__ = ["LayerRecord", "LayerScores", "Scores", "map_scores", "micro_batch_scores", "refuse_batch_norm"]

# What torch says when a gradient cannot be mapped over samples.
_REFUSALS = ("vmap", "atch norm", "running_mean", "mutate a captured Tensor", "more than 1 value per channel")
_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class LayerRecord:
    """What went into a layer and the gradients of what came out, for every sample and position.

    Attributes
    ----------
    inputs : Tensor of shape (batch, positions, fan_in)
        With a 1 appended to ``fan_in`` when the layer has a bias.
    gradients : Tensor of shape (batch, positions, fan_out)
        Of the unweighted loss of the sample.
    """

    inputs: Float[Tensor, "batch positions fan_in"]
    gradients: Float[Tensor, "batch positions fan_out"]


@dataclass(frozen=True)
class Scores:
    """Scores of a batch, the gradient that they average to, and the losses.

    Attributes
    ----------
    rows : Tensor of shape (rows, dim), or None
        Unweighted scores; None when only layers are wanted.
    layers : list of LayerRecord
        Per layer; empty when scores were not taken from layers.
    weights : Tensor of shape (batch,), or None
        Weight of every row; None where all are 1.
    gradient : Tensor of shape (dim,)
        Of the weighted mean loss.
    loss : Tensor of shape ()
        The weighted mean loss.
    """

    rows: Float[Tensor, "rows dim"] | None
    layers: list[LayerRecord]
    weights: Float[Tensor, " batch"] | None
    gradient: Float[Tensor, " dim"]
    loss: Float[Tensor, ""]


def refuse_batch_norm(module: torch.nn.Module | None) -> None:
    """Raise when batch normalisation mixes the samples of a batch."""
    for name, part in module.named_modules() if module is not None else ():
        if isinstance(part, _BATCH_NORM) and (part.training or part.running_mean is None):
            raise TypeError(
                f"inner_params must not use batch normalisation in training mode, in which samples have no gradient of "
                f"their own, got {name or 'a module'}; call eval() or give micro_batch"
            )


def _mean_loss(losses: Tensor, weights: Tensor | None) -> Tensor:
    return (losses if weights is None else losses * weights).mean()


def map_scores(problem: BilevelProblem, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> Scores:
    """Scores by a gradient that is mapped over the samples."""

    def loss_of_one(parameters: tuple[Tensor, ...], sample: Any) -> Tensor:
        single = tree_map(lambda leaf: leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf, sample)
        return problem.losses(parameters, v, single)[0]

    count = batch_length(batch)
    axes = tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, batch)
    mapped = torch.func.vmap(torch.func.grad_and_value(loss_of_one), in_dims=(None, axes), randomness="different")
    try:
        gradients, losses = mapped(tuple(theta), batch)
    except (RuntimeError, ValueError) as error:
        if any(words in str(error) for words in _REFUSALS):
            raise TypeError(
                "inner_loss_per_sample must have a gradient for every sample by itself (torch.func.vmap refused: "
                f"{str(error).splitlines()[0]}); call eval() on the model or give micro_batch"
            ) from error
        raise
    rows = torch.cat([gradient.reshape(count, -1) for gradient in gradients], dim=1)
    weights = problem.weights(v, batch)
    gradient = rows.mean(0) if weights is None else weights @ rows / count
    return Scores(rows, [], weights, gradient, _mean_loss(losses, weights))


def micro_batch_scores(
    problem: BilevelProblem, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any, size: int
) -> Scores:
    """Means over micro-batches times the root of their size, in place of scores.

    The outer product of such a row has the right mean where the mean of the scores is zero. A weight enters by its
    root, so that the outer product carries it once.
    """
    count = batch_length(batch)
    leaves = [x.detach().requires_grad_() for x in theta]
    rows, gradient, loss = [], 0.0, 0.0
    for start in range(0, count, size):
        part = part_of(batch, start, size)
        length = batch_length(part)
        losses, weights = problem.losses(leaves, v, part), problem.weights(v, part)
        mean = _mean_loss(losses, weights)

        def flat_gradient(value: Tensor, keep: bool = False) -> Tensor:
            found = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=keep)
            return problem.inner.flat(found)

        own = flat_gradient(mean, keep=weights is not None)
        root = own if weights is None else flat_gradient((losses * weights.sqrt()).mean())
        rows.append(length**0.5 * root)
        gradient = gradient + own * (length / count)
        loss = loss + mean.detach() * (length / count)
    return Scores(torch.stack(rows), [], None, torch.as_tensor(gradient), torch.as_tensor(loss))


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

    def agree(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> bool:
        """Whether the scores average to the gradient, which they do not if a loss goes around the module."""
        leaves = [x.detach().requires_grad_() for x in theta]
        device = self.problem.inner.device
        devices = [device] if device.type == "cuda" else []
        # Both passes see the same masks of a dropout, and leave the generator as they found it.
        with torch.random.fork_rng(devices):
            expected = self.problem.inner_gradient(leaves, v, batch)
        with torch.random.fork_rng(devices):
            found = self(theta, v, batch, rows=False).gradient
        tolerance = torch.finfo(expected.dtype).eps ** 0.5
        return bool((found - expected).norm() <= tolerance * (expected.norm() + found.norm()))

    def __call__(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any, *, rows: bool) -> Scores:
        """Scores of a batch; ``rows`` says whether they are wanted as vectors too."""
        calls: list[tuple[int, torch.nn.Module, Tensor, Tensor]] = []

        def probe(layer: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            # What is added is zero; its gradient is that of the output, also if the output is changed in place later.
            zero = torch.zeros_like(output, requires_grad=True)
            calls.append((self._slot_of[layer], layer, inputs[0].detach(), zero))
            return output + zero

        handles = [layer.register_forward_hook(probe) for layer in self._slot_of]
        try:
            losses = self.problem.losses([x.detach() for x in theta], v, batch)
        finally:
            for handle in handles:
                handle.remove()
        zeros = [zero for _, _, _, zero in calls]
        reached = bool(zeros) and losses.requires_grad
        gradients = torch.autograd.grad(losses.sum(), zeros, allow_unused=True) if reached else [None] * len(zeros)
        count = batch_length(batch)
        parts: list[list[LayerRecord]] = [[] for _ in self.slots]
        for (slot, layer, inputs, zero), gradient in zip(calls, gradients, strict=True):
            found = torch.zeros_like(zero) if gradient is None else gradient
            parts[slot].append(_record(layer, inputs, found, count, self.slots[slot][1] is not None))
        records = [self._joined(slot, own, count) for slot, own in enumerate(parts)]

        weights = self.problem.weights(v, batch)
        weights = None if weights is None else weights.detach()
        if rows:
            matrices = [torch.einsum("bti,bto->bio", record.inputs, record.gradients) for record in records]
            scores = self._rows(matrices, count)
            gradient = scores.mean(0) if weights is None else weights @ scores / count
        else:
            scores = None
            gradient = self.flat([_mean_outer(record, weights) for record in records])
        return Scores(scores, records, weights, gradient, _mean_loss(losses.detach(), weights))

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
    if isinstance(layer, torch.nn.Linear):
        return True
    if isinstance(layer, torch.nn.Conv1d | torch.nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return False


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
