"""Variables of a bilevel problem, in the structure in which the user holds them and as flat vectors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["ParameterSet"]


class ParameterSet:
    """Tensors in the structure in which the user holds them, with a flat view of all of them.

    Parameters
    ----------
    parameters : Tensor, iterable or mapping of Tensor, or torch.nn.Module
        In float32 or float64, of one dtype and on one device. Of a module, the parameters that require gradients.
    name : str
        Name of the argument, for messages.
    require_grad : bool
        Whether tensors that do not require gradients are refused.
    """

    def __init__(self, parameters: Any, name: str, *, require_grad: bool):
        self.module = parameters if isinstance(parameters, torch.nn.Module) else None
        self.keys: list[Hashable] | None = None
        self.single = isinstance(parameters, Tensor)
        if self.module is not None:
            named = {key: tensor for key, tensor in self.module.named_parameters() if tensor.requires_grad}
            self.keys, tensors = list(named), list(named.values())
        elif isinstance(parameters, Tensor):
            tensors = [parameters]
        elif isinstance(parameters, Mapping):
            self.keys, tensors = list(parameters), list(parameters.values())
        elif isinstance(parameters, Iterable) and not isinstance(parameters, str | bytes):
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
        if len({id(tensor) for tensor in tensors}) < len(tensors):
            raise ValueError(f"{name} must be different tensors, got one of them twice")
        self.tensors = tensors
        self.shapes = [tensor.shape for tensor in tensors]
        self.sizes = [tensor.numel() for tensor in tensors]
        self.dim = sum(self.sizes)
        self.dtype, self.device = tensors[0].dtype, tensors[0].device
        if not self.dim:
            raise ValueError(f"{name} must have at least 1 entry, got empty tensors")
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            raise ValueError(f"{name} must be finite, got a nan or an infinity")

    def detached(self) -> list[Tensor]:
        """The tensors as constants."""
        return [tensor.detach() for tensor in self.tensors]

    def leaves(self) -> list[Tensor]:
        """References to the tensors that gradients can be taken with respect to."""
        return [tensor.detach().requires_grad_() for tensor in self.tensors]

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

    def numbers(self, content: Any, name: str, where: str = "") -> Tensor:
        """A copy of what the user passes, finite, in the dtype and on the device of the tensors."""
        try:
            # Of an array a copy: torch warns of one that is read-only.
            given = np.array(content) if isinstance(content, np.ndarray) else content
            found = given.detach() if isinstance(given, Tensor) else torch.as_tensor(given, device=self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} must be real numbers, got {type(content).__name__}") from error
        if found.is_complex() or found.layout != torch.strided:
            raise TypeError(f"{name} must be real numbers in a dense tensor, got {found.dtype}, {found.layout}")
        found = found.to(self.device, self.dtype, copy=True)
        if not bool(torch.isfinite(found).all()):
            raise ValueError(f"{name} must be finite in {self.dtype}, got a nan or an infinity{where and ' ' + where}")
        return found

    def vector(self, content: Any, name: str) -> Float[Tensor, " dim"]:
        """The same for one number per entry."""
        found = self.numbers(content, name)
        if found.shape != (self.dim,):
            raise ValueError(f"{name} must have shape ({self.dim},), got {tuple(found.shape)}")
        return found


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
