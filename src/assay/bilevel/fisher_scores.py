r"""Gradients of single samples, the raw material of an empirical Fisher matrix.

The mean of the scores is the gradient that stochastic descent needs anyway, so curvature is a by-product. Three ways
to have them: layers that are linear in their parameters give them as outer products of what goes in and the gradient
of what comes out (:mod:`~assay.bilevel.fisher_layers`); any other model by mapping the gradient over samples; and where
samples cannot be told apart (batch normalisation in training) means over micro-batches stand in for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from assay.bilevel.hypergradient_batches import batch_length, part_of
from assay.bilevel.hypergradient_problem import BilevelProblem

__all__ = ["LayerRecord", "Scores", "map_scores", "mean_loss", "micro_batch_scores", "refuse_batch_norm"]

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

    def squares(self) -> list[Float[Tensor, ""]]:
        """Sums of the squares of what goes into outer products: not finite where one of these is not."""
        if self.rows is not None:
            flat = [self.rows.detach().view(-1)]
        else:
            flat = [part.reshape(-1) for record in self.layers for part in (record.inputs, record.gradients)]
        return [part @ part for part in flat]

    def checked(self, where: str, penalty: Tensor | None = None) -> float:
        """The weighted mean loss plus a penalty, if the scores can be used; ``where`` is said in messages.

        Raises
        ------
        ValueError
            If a score is not finite, or too large to be squared, or a weight is negative.
        """
        loss = self.loss.detach() if penalty is None else self.loss.detach() + penalty
        least = loss.new_zeros(()) if self.weights is None else self.weights.min()
        size = self.gradient.detach().abs().sum()
        # One transfer from the device for all that has to be known.
        known = torch.stack([loss.to(size.dtype), size, least.to(size.dtype), *self.squares()])
        value, size, lowest, *squares = known.tolist()
        if not size < math.inf:
            raise ValueError(f"scores must be finite, got a nan or an infinity {where}")
        if not sum(squares) < math.inf:
            raise ValueError(
                f"scores must have squares that are finite in {self.gradient.dtype}, got larger ones {where}; scale "
                "the inner loss"
            )
        if lowest < 0:
            raise ValueError(f"sample_weight must be at least 0, got {lowest:g}")
        return value


def refuse_batch_norm(module: torch.nn.Module | None) -> None:
    """Raise when batch normalisation mixes the samples of a batch."""
    for name, part in module.named_modules() if module is not None else ():
        if isinstance(part, _BATCH_NORM) and (part.training or part.running_mean is None):
            raise TypeError(
                f"inner_params must not use batch normalisation in training mode, in which samples have no gradient of "
                f"their own, got {name or 'a module'}; call eval() or give micro_batch"
            )


def mean_loss(losses: Float[Tensor, " batch"], weights: Float[Tensor, " batch"] | None) -> Float[Tensor, ""]:
    """Mean of the losses, with weights if there are any."""
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
    weights = problem.weights(v, batch, rows.dtype)
    gradient = rows.mean(0) if weights is None else weights @ rows / count
    return Scores(rows, [], weights, gradient, mean_loss(losses, weights))


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
        losses, weights = problem.losses(leaves, v, part), problem.weights(v, part, leaves[0].dtype)
        mean = mean_loss(losses, weights)

        def flat_gradient(value: Tensor, keep: bool = False) -> Tensor:
            found = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=keep)
            return problem.inner.flat(found)

        own = flat_gradient(mean, keep=weights is not None)
        root = own if weights is None else flat_gradient((losses * weights.sqrt()).mean())
        rows.append(length**0.5 * root)
        gradient = gradient + own * (length / count)
        loss = loss + mean.detach() * (length / count)
    return Scores(torch.stack(rows), [], None, torch.as_tensor(gradient), torch.as_tensor(loss))
