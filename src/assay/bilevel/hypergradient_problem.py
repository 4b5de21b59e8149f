r"""A problem inside a problem, and the derivatives of it that hypergradients are made of.

The inner problem is :math:`\theta^*(v) = \arg\min_\theta g(\theta, v)` with

.. math:: g(\theta, v) = \frac1n \sum_i c_i(v)\, \ell_i(\theta, v) + \frac12 \sum_j R_j(v)\, \theta_j^2,

the outer one :math:`\min_v f(\theta^*(v), v)`. Losses are functions of both variables and a batch, in the structure in
which the user holds the variables (a tensor, a list, a dict, the parameters of a module). Here they become functions of
flat vectors, with the curvature of the ridge kept apart from that of the data: it is known exactly, and the scores do
not have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from assay.validation import check_real

__all__ = [
    "BilevelProblem",
    "HessianOperator",
    "ParameterSet",
    "batch_length",
    "full_precision",
    "join_batches",
    "part_of",
]


class ParameterSet:
    """Tensors in the structure in which the user holds them, with a flat view of all of them.

    Parameters
    ----------
    parameters : Tensor, sequence or mapping of Tensor, or torch.nn.Module
        In float32 or float64, of one dtype and on one device. Of a module, the parameters that require gradients.
    name : str
        Name of the argument, for messages.
    require_grad : bool
        Whether tensors that do not require gradients are refused.
    """

    def __init__(self, parameters: Any, name: str, *, require_grad: bool):
        self.module = parameters if isinstance(parameters, torch.nn.Module) else None
        self.keys: list[str] | None = None
        self.single = isinstance(parameters, Tensor)
        if self.module is not None:
            named = {key: tensor for key, tensor in self.module.named_parameters() if tensor.requires_grad}
            self.keys, tensors = list(named), list(named.values())
        elif isinstance(parameters, Tensor):
            tensors = [parameters]
        elif isinstance(parameters, Mapping):
            self.keys, tensors = [str(key) for key in parameters], list(parameters.values())
        elif isinstance(parameters, Sequence | Iterator) and not isinstance(parameters, str | bytes):
            tensors = list(parameters)
        else:
            raise TypeError(f"{name} must be tensors or a torch.nn.Module, got {type(parameters).__name__}")
        if not tensors:
            what = "parameters that require gradients" if self.module is not None else "at least 1 tensor"
            raise ValueError(f"{name} must have {what}, got none")
        for tensor in tensors:
            _check_tensor(tensor, name, require_grad)
        if len({(tensor.dtype, tensor.device) for tensor in tensors}) > 1:
            raise ValueError(f"{name} must be of one dtype and on one device, got {_kinds(tensors)}")
        self.tensors = tensors
        self.shapes = [tensor.shape for tensor in tensors]
        self.sizes = [tensor.numel() for tensor in tensors]
        self.dim = sum(self.sizes)
        self.dtype, self.device = tensors[0].dtype, tensors[0].device
        if not self.dim:
            raise ValueError(f"{name} must have at least 1 entry, got empty tensors")

    def detached(self) -> list[Tensor]:
        """The tensors as constants."""
        return [tensor.detach() for tensor in self.tensors]

    def leaves(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Copies of the references that gradients can be taken with respect to."""
        return [tensor.detach().to(dtype or tensor.dtype).requires_grad_() for tensor in self.tensors]

    def structured(self, tensors: Sequence[Tensor]) -> Any:
        """Tensors in the structure of the user."""
        if self.keys is not None:
            return dict(zip(self.keys, tensors, strict=True))
        return tensors[0] if self.single else list(tensors)

    def split(self, flat: Float[Tensor, " dim"]) -> list[Tensor]:
        """The parts of a flat vector, in the shapes of the tensors."""
        if len(self.shapes) == 1:
            return [flat.view(self.shapes[0])]
        return [part.view(shape) for part, shape in zip(flat.split(self.sizes), self.shapes, strict=True)]

    def flat(self, tensors: Sequence[Tensor | None]) -> Float[Tensor, " dim"]:
        """One vector; a part that is None is zero."""
        parts = [
            like.new_zeros(like.numel()) if tensor is None else tensor.reshape(-1)
            for tensor, like in zip(tensors, self.tensors, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _check_tensor(tensor: Any, name: str, require_grad: bool) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must have tensors only, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be dense tensors, got layout {tensor.layout}")
    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be in float32 or float64, got {tensor.dtype}")
    if require_grad and not tensor.requires_grad:
        raise ValueError(f"{name} must require gradients, got a tensor with requires_grad=False")


def _kinds(tensors: Sequence[Tensor]) -> str:
    return ", ".join(sorted({f"{tensor.dtype} on {tensor.device}" for tensor in tensors}))


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
        Curvature of the regulariser; a callable gets ``v``.
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
        self._ridge = ridge
        self.has_ridge = callable(ridge) or not (isinstance(ridge, int | float) and ridge == 0)
        self._fixed: dict[torch.dtype, Tensor] = {}  # a ridge that does not depend on v, by dtype
        if not callable(ridge):
            self.check_ridge(self.ridge(outer.detached()))

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

    def weights(self, v: Sequence[Tensor], batch: Any) -> Float[Tensor, " batch"] | None:
        """Weight of every sample, or None where all are 1."""
        if self._weight is None:
            return None
        weights = self._weight(self.outer.structured(v), batch)
        count = batch_length(batch)
        if not isinstance(weights, Tensor) or weights.shape != (count,):
            found = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ValueError(f"sample_weight must return one weight per sample, shape ({count},), got {found}")
        return weights

    def ridge(self, v: Sequence[Tensor]) -> Float[Tensor, ""] | Float[Tensor, " dim"]:
        """Diagonal of the curvature of the regulariser: one number, or one per entry of theta."""
        if callable(self._ridge):
            return self._converted_ridge(v)
        if v[0].dtype not in self._fixed:
            self._fixed[v[0].dtype] = self._converted_ridge(v).detach()
        return self._fixed[v[0].dtype]

    def _converted_ridge(self, v: Sequence[Tensor]) -> Tensor:
        diagonal = self._ridge(self.outer.structured(v)) if callable(self._ridge) else self._ridge
        inner = self.inner
        if isinstance(diagonal, Mapping):
            diagonal = [diagonal[key] for key in inner.keys or ()]
        if isinstance(diagonal, list | tuple):
            if [np.shape(part) for part in diagonal] != [tuple(shape) for shape in inner.shapes]:
                raise ValueError("ridge must have the shapes of inner_params")
            diagonal = torch.cat([torch.as_tensor(part).reshape(-1) for part in diagonal])
        if isinstance(diagonal, Tensor):
            dtype = v[0].dtype if v[0].dtype == torch.float64 else inner.dtype
            diagonal = diagonal.to(inner.device, dtype)
            if diagonal.ndim and diagonal.shape != (inner.dim,):
                if not (inner.single and diagonal.shape == inner.shapes[0]):
                    raise ValueError(
                        f"ridge must be a number or have shape ({inner.dim},), got {tuple(diagonal.shape)}"
                    )
                diagonal = diagonal.reshape(-1)
            return diagonal
        return torch.tensor(check_real(diagonal, "ridge", minimum=0), dtype=inner.dtype, device=inner.device)

    def checked_ridge(self) -> Float[Tensor, ""] | Float[Tensor, " dim"]:
        """The ridge at the present outer parameters, as a constant; one that is not convex is refused."""
        diagonal = self.ridge(self.outer.detached()).detach()
        if callable(self._ridge):
            self.check_ridge(diagonal)
        return diagonal

    @staticmethod
    def check_ridge(diagonal: Tensor) -> None:
        """Refuse a regulariser that is not convex."""
        if not bool((diagonal >= 0).all()) or not bool(torch.isfinite(diagonal).all()):
            raise ValueError(f"ridge must be finite and at least 0, got a minimum of {float(diagonal.min()):g}")

    # -------------------------------------------------------------------------------------------- derivatives
    def data_loss(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> Float[Tensor, ""]:
        """Weighted mean loss of a batch, without ridge."""
        losses, weights = self.losses(theta, v, batch), self.weights(v, batch)
        return (losses if weights is None else losses * weights).mean()

    def inner_loss(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> Float[Tensor, ""]:
        """Inner objective: weighted mean loss and ridge."""
        return self.data_loss(theta, v, batch) + self.penalty(theta, v)

    def penalty(self, theta: Sequence[Tensor], v: Sequence[Tensor]) -> Float[Tensor, ""]:
        """Half the sum of ridge times squared parameters."""
        if not self.has_ridge:
            return theta[0].new_zeros(())
        return 0.5 * (self.ridge(v) * self.inner.flat(theta).square()).sum()

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
        return value.detach(), self.inner.flat(by_theta), direct

    def cross_term(
        self, theta: Sequence[Tensor], v: Sequence[Tensor], w: Float[Tensor, " dim"], batch: Any
    ) -> tuple[list[Tensor], Float[Tensor, " dim"]]:
        """Derivative by v of the inner gradient in direction w, and that gradient (ridge included)."""
        gradient = self.inner_gradient(theta, v, batch, create_graph=True)
        if self.has_ridge:
            gradient = gradient + self.ridge(v) * self.inner.flat(theta)
        along = gradient @ w.detach()
        found: Sequence[Tensor | None] = [None] * len(v)
        if along.requires_grad:
            found = torch.autograd.grad(along, list(v), allow_unused=True)
        if all(part is None for part in found):
            raise ValueError("inner_loss_per_sample, sample_weight or ridge must depend on outer_params, got none")
        parts = [torch.zeros_like(x) if part is None else part for part, x in zip(found, v, strict=True)]
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
        self._ridge = problem.ridge(constants).detach()
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


# ---------------------------------------------------------------------------------------------------------- batches
def batch_length(batch: Any) -> int:
    """Number of samples of a tree of tensors that have the samples as their first dimension."""
    if isinstance(batch, Tensor) and batch.ndim and len(batch):
        return len(batch)
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    if not leaves:
        raise TypeError(f"batch must be a tensor, or a tuple, list or dict of tensors, got {type(batch).__name__}")
    lengths = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves}
    if len(lengths) > 1 or -1 in lengths:
        raise ValueError("batch must have tensors of equally many samples, in their first dimension")
    (length,) = lengths
    if not length:
        raise ValueError("batch must have at least 1 sample, got an empty one")
    return length


def join_batches(batches: Sequence[Any], limit: int | None = None) -> Any:
    """One batch with the samples of several, or with the last ``limit`` of them."""
    if len(batches) == 1:
        joined = batches[0]
    else:
        leaves = [tree_leaves(batch) for batch in batches]
        whole = iter([torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0] for parts in zip(*leaves)])  # noqa: B905
        joined = tree_map(lambda _: next(whole), batches[0])
    if limit is not None and batch_length(joined) > limit:
        joined = tree_map(lambda leaf: leaf[-limit:] if isinstance(leaf, Tensor) else leaf, joined)
    return joined


def part_of(batch: Any, start: int, length: int) -> Any:
    """Some consecutive samples of a batch."""
    return tree_map(lambda leaf: leaf[start : start + length] if isinstance(leaf, Tensor) else leaf, batch)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Gradients on, automatic mixed precision off: scores in half precision would spoil the curvature."""
    with torch.enable_grad():
        if torch.is_autocast_enabled(device.type):
            with torch.autocast(device.type, enabled=False):
                yield
        else:
            yield
