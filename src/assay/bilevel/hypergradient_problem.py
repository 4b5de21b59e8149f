r"""A problem inside a problem, and the derivatives of it that hypergradients are made of.

The inner problem is :math:`\theta^*(v) = \arg\min_\theta g(\theta, v)` with

.. math:: g(\theta, v) = \frac1n \sum_i c_i(v)\, \ell_i(\theta, v) + \frac12 \sum_j R_j(v)\, \theta_j^2,

the outer one :math:`\min_v f(\theta^*(v), v)`. Losses are functions of both variables and a batch, in the structure in
which the user holds the variables (a tensor, a list, a dict, the parameters of a module). Here they become functions of
flat vectors, with the curvature of the ridge kept apart from that of the data: it is known exactly, and the scores do
not have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.hypergradient_batches import batch_length
from assay.bilevel.hypergradient_parameters import ParameterSet
from assay.bilevel.hypergradient_ridge import RidgeCurvature

__all__ = ["BilevelProblem", "HessianOperator", "full_precision", "require_finite"]


class BilevelProblem:
    """The losses of both levels as functions of lists of tensors.

    Parameters
    ----------
    inner, outer : ParameterSet
        Both variables.
    inner_loss_per_sample : callable
        ``inner_loss_per_sample(theta, v, batch)``: a loss per sample, without weights and ridge.
    outer_loss : callable
        ``outer_loss(theta, v, outer_batch)``: a number.
    sample_weight : callable or None
        ``sample_weight(v, batch)``: a weight per sample.
    ridge : float, Tensor, sequence or mapping of Tensor, or callable
        Curvature of the regulariser, see :class:`~assay.bilevel.hypergradient_ridge.RidgeCurvature`.
    """

    def __init__(
        self,
        inner: ParameterSet,
        outer: ParameterSet,
        inner_loss_per_sample: Any,
        outer_loss: Any,
        sample_weight: Any,
        ridge: Any,
    ):
        for name, function in (("inner_loss_per_sample", inner_loss_per_sample), ("outer_loss", outer_loss)):
            if not callable(function):
                raise TypeError(f"{name} must be callable, got {type(function).__name__}")
        if sample_weight is not None and not callable(sample_weight):
            raise TypeError(f"sample_weight must be callable or None, got {type(sample_weight).__name__}")
        if outer.device != inner.device:
            raise ValueError(f"outer_params must be on {inner.device} as inner_params are, got {outer.device}")
        self.inner, self.outer = inner, outer
        self._per_sample, self._outer_loss, self._weight = inner_loss_per_sample, outer_loss, sample_weight
        self.ridge = RidgeCurvature(ridge, inner, outer)

    # ------------------------------------------------------------------------------------------------- pieces
    def losses(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> Float[Tensor, " batch"]:
        """Loss of every sample, without weight."""
        count = batch_length(batch)
        losses = self._per_sample(self.inner.structured(theta), self.outer.structured(v), batch)
        if not isinstance(losses, Tensor):
            raise TypeError(f"inner_loss_per_sample must return a tensor, got {type(losses).__name__}")
        if losses.shape != (count,):
            raise ValueError(
                f"inner_loss_per_sample must return one loss per sample, shape ({count},), got {tuple(losses.shape)}"
            )
        return losses

    def weights(self, v: Sequence[Tensor], batch: Any, dtype: torch.dtype) -> Float[Tensor, " batch"] | None:
        """Weight of every sample, or None where all are 1."""
        if self._weight is None:
            return None
        weights = self._weight(self.outer.structured(v), batch)
        count = batch_length(batch)
        if not isinstance(weights, Tensor) or weights.shape != (count,):
            found = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ValueError(f"sample_weight must return one weight per sample, shape ({count},), got {found}")
        return weights.to(dtype)

    def check_weights(self, batch: Any) -> None:
        """Refuse weights at the present outer parameters that are negative or not finite."""
        weights = self.weights(self.outer.detached(), batch, torch.float64)
        if weights is not None and not bool(((weights >= 0) & torch.isfinite(weights)).all()):
            raise ValueError("sample_weight must be finite and at least 0, got a weight that is not")

    # -------------------------------------------------------------------------------------------- derivatives
    def data_loss(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> Float[Tensor, ""]:
        """Weighted mean loss of a batch, without ridge."""
        losses, weights = self.losses(theta, v, batch), self.weights(v, batch, theta[0].dtype)
        return (losses if weights is None else losses * weights).mean()

    def inner_loss(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> Float[Tensor, ""]:
        """Inner objective: weighted mean loss and ridge."""
        return self.data_loss(theta, v, batch) + self.penalty(theta, v)

    def penalty(self, theta: Sequence[Tensor], v: Sequence[Tensor]) -> Float[Tensor, ""]:
        """Half the sum of ridge times squared parameters."""
        if not self.ridge.present:
            return theta[0].new_zeros(())
        return 0.5 * (self.ridge(v, theta[0].dtype) * self.inner.flat(theta).square()).sum()

    def inner_gradient(
        self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any, *, create_graph: bool = False
    ) -> Float[Tensor, " dim"]:
        """Gradient of the weighted mean loss with respect to theta, without ridge."""
        gradients = torch.autograd.grad(
            self.data_loss(theta, v, batch), list(theta), create_graph=create_graph, allow_unused=True
        )
        return self.inner.flat(gradients)

    def outer_value(self, theta: Sequence[Tensor], v: Sequence[Tensor], outer_batch: Any) -> Float[Tensor, ""]:
        """Outer loss."""
        value = self._outer_loss(self.inner.structured(theta), self.outer.structured(v), outer_batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise TypeError("outer_loss must return a tensor with one entry")
        return value.reshape(())

    def outer_gradients(
        self, theta: Sequence[Tensor], v: Sequence[Tensor], outer_batch: Any
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " dim"], list[Tensor]]:
        """Outer loss and its gradients with respect to theta (flat) and v."""
        value = self.outer_value(theta, v, outer_batch)
        if not value.requires_grad:
            raise ValueError("outer_loss must depend on the inner parameters, got one that depends on nothing")
        gradients = torch.autograd.grad(value, [*theta, *v], allow_unused=True)
        by_theta, by_v = gradients[: len(theta)], gradients[len(theta) :]
        if all(gradient is None for gradient in by_theta):
            raise ValueError("outer_loss must depend on the inner parameters, got a gradient of None")
        direct = [torch.zeros_like(x) if gradient is None else gradient for gradient, x in zip(by_v, v, strict=True)]
        flat = self.inner.flat(by_theta)
        require_finite("outer_loss must be finite with finite gradients", value, flat, *direct)
        return value.detach(), flat, direct

    def cross_term(
        self, theta: Sequence[Tensor], v: Sequence[Tensor], w: Float[Tensor, " dim"], batch: Any
    ) -> tuple[list[Tensor], Float[Tensor, " dim"]]:
        """Derivative by v of the inner gradient in direction w, and that gradient (ridge included)."""
        gradient = self.inner_gradient(theta, v, batch, create_graph=True)
        if self.ridge.present:
            gradient = gradient + self.ridge(v, gradient.dtype) * self.inner.flat(theta)
        along = gradient @ w.detach()
        found: Sequence[Tensor | None] = [None] * len(v)
        if along.requires_grad:
            found = torch.autograd.grad(along, list(v), allow_unused=True)
        if all(part is None for part in found):
            raise ValueError("inner_loss_per_sample, sample_weight or ridge must depend on outer_params, got none")
        parts = [torch.zeros_like(x) if part is None else part for part, x in zip(found, v, strict=True)]
        require_finite(
            "inner_loss_per_sample, sample_weight and ridge must have finite gradients and mixed derivatives",
            gradient.detach(), *parts,
        )  # fmt: skip
        return parts, gradient.detach()


class HessianOperator:
    """Products with the Hessian of the inner objective, each of them counted.

    Parameters
    ----------
    problem : BilevelProblem
        Both losses.
    theta, v : sequence of Tensor
        Where; theta must require gradients.
    batch : tree of Tensor
        The samples of the inner objective.
    """

    def __init__(self, problem: BilevelProblem, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any):
        self.problem, self.theta = problem, list(theta)
        constants = [x.detach() for x in v]
        self._gradient = problem.inner_gradient(self.theta, constants, batch, create_graph=True)
        self._ridge = problem.ridge(constants, self.theta[0].dtype).detach()
        self.count = 0

    def __call__(self, direction: Float[Tensor, " dim"]) -> Float[Tensor, " dim"]:
        """The Hessian times a vector."""
        self.count += 1
        product = self._ridge * direction
        if not self._gradient.requires_grad:  # losses that are linear in theta
            return product
        parts = torch.autograd.grad(
            self._gradient, self.theta, grad_outputs=direction, retain_graph=True, allow_unused=True
        )
        return self.problem.inner.flat(parts) + product

    def gradient(self) -> Float[Tensor, " dim"]:
        """Gradient of the inner objective, ridge included."""
        theta = self.problem.inner.flat([x.detach() for x in self.theta])
        return self._gradient.detach() + self._ridge * theta


def require_finite(demand: str, *tensors: Tensor) -> None:
    """Raise what is demanded when a tensor has a nan or an infinity in it."""
    if not bool(torch.stack([torch.isfinite(tensor.detach()).all() for tensor in tensors]).all()):
        raise ValueError(f"{demand}, got a nan or an infinity")


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Gradients on, automatic mixed precision off: scores in half precision would spoil the curvature."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        if torch.is_autocast_enabled(device.type):
            with torch.autocast(device.type, enabled=False):
                yield
        else:
            yield
