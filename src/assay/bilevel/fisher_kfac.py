r"""The Fisher matrix of layers as Kronecker products, for models that are too wide for a dense one.

For a layer with inputs :math:`x` (a 1 appended when there is a bias) and gradients :math:`g` of its outputs the score
is :math:`x g^\top`, and its Fisher block is taken to be :math:`E[c\,xx^\top] \otimes E[gg^\top]`. That is exact for a
layer whose inputs and output gradients are independent. A system with it costs two small factorisations; memory is that
of the squared sides of the layers. The damping :math:`\lambda` is shared between the factors in the ratio
:math:`\pi` of their mean eigenvalues, so that neither is swamped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from assay.bilevel.fisher_layers import LayerScores
from assay.bilevel.fisher_scores import LayerRecord
from assay.bilevel.fisher_states import check_state, debias, relative, solve_positive

__all__ = ["KroneckerFisher", "kronecker_solve"]


def kronecker_solve(
    inputs: Float[Tensor, "fan_in fan_in"],
    gradients: Float[Tensor, "fan_out fan_out"],
    grad: Float[Tensor, "fan_in fan_out"],
    damping: float,
) -> Float[Tensor, "fan_in fan_out"]:
    r"""Solve with the damped Kronecker product of two factors.

    Parameters
    ----------
    inputs : Tensor of shape (fan_in, fan_in)
        Second moment of the inputs of a layer.
    gradients : Tensor of shape (fan_out, fan_out)
        Second moment of the gradients of its outputs.
    grad : Tensor of shape (fan_in, fan_out)
        Right-hand side.
    damping : float
        :math:`\lambda \ge 0`: the factors get :math:`\pi\sqrt\lambda` and :math:`\sqrt\lambda/\pi` on their diagonals.

    Returns
    -------
    Tensor of shape (fan_in, fan_out)

    Raises
    ------
    ValueError
        If a factor is singular.

    Notes
    -----
    O(fan_in^3 + fan_out^3).

    Examples
    --------
    >>> import torch
    >>> from assay.bilevel.fisher_kfac import kronecker_solve
    >>> A, G = torch.diag(torch.tensor([2.0, 4.0])), torch.diag(torch.tensor([1.0, 3.0]))
    >>> kronecker_solve(A, G, torch.ones(2, 2), 0.0)
    tensor([[0.5000, 0.1667],
            [0.2500, 0.0833]])
    """
    left, right = _damped(inputs, gradients, damping)
    half = solve_positive(left, grad, full_rank=True)
    return solve_positive(right, half.T, full_rank=True).T


def _damped(inputs: Tensor, gradients: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    if not damping:
        return inputs, gradients
    mean_in, mean_out = float(inputs.trace()) / len(inputs), float(gradients.trace()) / len(gradients)
    pi = math.sqrt(mean_in / mean_out) if mean_in > 0 and mean_out > 0 else 1.0
    left, right = inputs.clone(), gradients.clone()
    left.diagonal().add_(pi * math.sqrt(damping))
    right.diagonal().add_(math.sqrt(damping) / pi)
    return left, right


class KroneckerFisher:
    """Exponential averages of both factors of every layer.

    Parameters
    ----------
    layers : LayerScores
        Which layers there are, and how a flat vector falls into their matrices.
    beta : float
        Weight of the newest batch.
    """

    def __init__(self, layers: LayerScores, beta: float):
        self.layers, self.beta = layers, beta
        like = layers.problem.inner.tensors[0].detach()
        self.dim = layers.problem.inner.dim
        self.inputs = [like.new_zeros(fan_in, fan_in) for fan_in, _ in layers.shapes()]
        self.gradients = [like.new_zeros(fan_out, fan_out) for _, fan_out in layers.shapes()]
        self.n_samples, self.n_updates = 0, 0

    def reset(self) -> None:
        """Forget all scores."""
        for factor in (*self.inputs, *self.gradients):
            factor.zero_()
        self.n_samples, self.n_updates = 0, 0

    def update(self, records: Sequence[LayerRecord], weights: Float[Tensor, " batch"] | None) -> None:
        """Take in the inputs and output gradients of a batch.

        Positions (of a convolution, or of a sequence) are summed in the factor of the inputs and averaged in that of
        the gradients, as if they were independent of each other. The weight enters the factor of the inputs only.
        """
        keep, new = 1.0 - self.beta, self.beta
        for record, inputs, gradients in zip(records, self.inputs, self.gradients, strict=True):
            count, positions = record.inputs.shape[:2]
            rows, columns = record.inputs.flatten(0, 1), record.gradients.flatten(0, 1)
            weighted = rows
            if weights is not None:
                weighted = (record.inputs * weights[:, None, None]).flatten(0, 1)
            inputs.addmm_(weighted.T, rows, beta=keep, alpha=new / count)
            gradients.addmm_(columns.T, columns, beta=keep, alpha=new / (count * positions))
        self.n_samples += len(records[0].inputs)
        self.n_updates += 1

    def factors(self) -> list[tuple[Tensor, Tensor]]:
        """Both factors of every layer, without the bias of the average towards zero."""
        if not self.n_updates:
            raise ValueError("the Fisher matrix must have scores, got none: make an inner step first")
        total = debias(self.beta, self.n_updates)
        return [(a / total, g / total) for a, g in zip(self.inputs, self.gradients, strict=True)]

    def solve(self, grad: Float[Tensor, " dim"], ridge: Tensor, damping: float) -> Float[Tensor, " dim"]:
        """Solve layer by layer; a ridge enters by its mean."""
        total = float(ridge.mean()) + damping
        pairs = zip(self.factors(), self.layers.matrices(grad), strict=True)
        return self.layers.flat([kronecker_solve(a, g, matrix, total) for (a, g), matrix in pairs])

    def residual(self, w: Float[Tensor, " dim"], grad: Float[Tensor, " dim"], ridge: Tensor, damping: float) -> float:
        """Relative residual of a solution of the damped Kronecker system, in float64."""
        total = float(ridge.mean()) + damping
        products = []
        for (a, g), matrix in zip(self.factors(), self.layers.matrices(w.double()), strict=True):
            left, right = _damped(a.double(), g.double(), total)
            products.append(left @ matrix @ right)
        return relative(self.layers.flat(products), grad)

    def trace(self) -> float:
        """Trace of the Kronecker products together."""
        return sum(float(a.trace()) * float(g.trace()) for a, g in self.factors())

    def state_dict(self) -> dict[str, Any]:
        """Everything that was learned."""
        return {
            "kind": "kfac", "inputs": [a.clone() for a in self.inputs],
            "gradients": [g.clone() for g in self.gradients], "n_samples": self.n_samples, "n_updates": self.n_updates,
        }  # fmt: skip

    def load_state_dict(self, state: Any) -> None:
        """Go on from what :meth:`state_dict` returned."""
        check_state(state, "kfac", {}, ("inputs", "gradients", "n_samples", "n_updates"))
        ours = [tuple(factor.shape) for factor in (*self.inputs, *self.gradients)]
        theirs = [tuple(factor.shape) for factor in (*state["inputs"], *state["gradients"])]
        if ours != theirs:
            raise ValueError(f"state must be of a 'kfac' Fisher matrix with factors of shapes {ours}, got {theirs}")
        for mine, other in zip((*self.inputs, *self.gradients), (*state["inputs"], *state["gradients"]), strict=True):
            mine.copy_(other)
        self.n_samples, self.n_updates = int(state["n_samples"]), int(state["n_updates"])

    def tensors(self) -> list[Tensor]:
        """The tensors that are kept, for their memory."""
        return [*self.inputs, *self.gradients]
