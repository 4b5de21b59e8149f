r"""Costs and surpluses between points of two spaces, as objects that users can write in a few lines.

A kernel says what a source (or buyer) ``x`` and a target (or bundle) ``y`` are worth to each other: a surplus that is
maximised, or a cost that is minimised. Everything in this family that works "for any cost" needs one method of it,

- ``evaluate(x, y)``: from tensors of shapes ``(S, 1, d)`` and ``(1, J, k)`` to the ``(S, J)`` matrix of values, by
  operations that torch can differentiate;

and uses a second one where it is there,

- ``inverse_gradient(x, slope)``: the ``y`` of shape ``(S, k)`` at which the gradient of the kernel in ``x`` is
  ``slope``, both of shape ``(S, d)``. It exists when the gradient tells targets apart (the *twist* condition), and is
  what a smooth transport map needs.

A plain function of ``x`` and ``y`` is a kernel without the second method. A :class:`torch.nn.Module` may be one too:
its parameters are then trained together with what it is put into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.validation import check_real

__all__ = [
    "DotKernel",
    "HingeKernel",
    "NegatedCost",
    "PowerCost",
    "SquaredEuclideanCost",
    "check_kernel",
    "kernel_scores",
]


@dataclass(frozen=True)
class DotKernel:
    r"""The surplus :math:`\langle x, y \rangle`: values add up over goods, and generalized convex is convex.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import DotKernel
    >>> DotKernel().evaluate(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[1.0, 0.0], [1.0, 1.0]]]))
    tensor([[1., 3.]])
    """

    def evaluate(self, x: Float[Tensor, "S 1 d"], y: Float[Tensor, "1 J d"]) -> Float[Tensor, "S J"]:
        """Values of all pairs, by one matrix product."""
        return x[:, 0] @ y[0].T

    def inverse_gradient(self, x: Float[Tensor, "S d"], slope: Float[Tensor, "S d"]) -> Float[Tensor, "S d"]:
        """The gradient in ``x`` is the target itself."""
        return slope


@dataclass(frozen=True)
class HingeKernel:
    r"""The surplus :math:`\kappa \sum_d (y_d - x_d)_+`: only what exceeds what one has already is of use.

    Parameters
    ----------
    kappa : float, default=1.0
        Worth of a unit.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import HingeKernel
    >>> HingeKernel(2.0).evaluate(torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[1.0, 0.0], [1.0, 1.0]]]))
    tensor([[1., 2.]])
    """

    kappa: float = 1.0

    def __post_init__(self) -> None:
        check_real(self.kappa, "kappa", above=0)

    def evaluate(self, x: Float[Tensor, "S 1 d"], y: Float[Tensor, "1 J d"]) -> Float[Tensor, "S J"]:
        """Values of all pairs."""
        return self.kappa * (y - x).clamp_min(0.0).sum(-1)


@dataclass(frozen=True)
class SquaredEuclideanCost:
    r"""The cost :math:`\|x - y\|^2`.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import SquaredEuclideanCost
    >>> SquaredEuclideanCost().evaluate(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[1.0, 0.0], [1.0, 2.0]]]))
    tensor([[4., 0.]])
    """

    def evaluate(self, x: Float[Tensor, "S 1 d"], y: Float[Tensor, "1 J d"]) -> Float[Tensor, "S J"]:
        """Values of all pairs."""
        recorded = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
        if recorded or x.element_size() < 4:
            return (x - y).square().sum(-1)
        # Never the expansion by a matrix product, which cancels when the points are far from the origin. Distances of
        # torch are not differentiable twice, and not there in 16 bits.
        distance = torch.cdist(x[:, 0], y[0], compute_mode="donot_use_mm_for_euclid_dist")
        return distance.square_()

    def inverse_gradient(self, x: Float[Tensor, "S d"], slope: Float[Tensor, "S d"]) -> Float[Tensor, "S d"]:
        """The target at which the gradient ``2 (x - y)`` is ``slope``."""
        return x - slope / 2


@dataclass(frozen=True)
class PowerCost:
    r"""The cost :math:`\sum_d |x_d - y_d|^p`.

    Parameters
    ----------
    p : float, default=1.5
        The power, at least 1. A smooth map needs more than 1.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import PowerCost
    >>> PowerCost(1.0).evaluate(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    tensor([[2., 2.]])
    """

    p: float = 1.5

    def __post_init__(self) -> None:
        check_real(self.p, "p", minimum=1)

    def evaluate(self, x: Float[Tensor, "S 1 d"], y: Float[Tensor, "1 J d"]) -> Float[Tensor, "S J"]:
        """Values of all pairs."""
        return (x - y).abs().pow(self.p).sum(-1)

    def inverse_gradient(self, x: Float[Tensor, "S d"], slope: Float[Tensor, "S d"]) -> Float[Tensor, "S d"]:
        """The target at which the gradient is ``slope``.

        Raises
        ------
        ValueError
            For ``p=1``, where the gradient only tells directions.
        """
        if self.p == 1:
            raise ValueError("p must be greater than 1 for the gradient of the cost to determine the target, got 1")
        return x - slope.sign() * (slope.abs() / self.p).pow(1.0 / (self.p - 1.0))


@dataclass(frozen=True)
class NegatedCost:
    r"""The surplus :math:`-c(x, y)` of a cost.

    Parameters
    ----------
    cost : object or callable
        As described in :mod:`assay.transport.transport_kernels`.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import NegatedCost, PowerCost
    >>> NegatedCost(PowerCost(1.0)).evaluate(torch.tensor([[[1.0]]]), torch.tensor([[[0.0], [3.0]]]))
    tensor([[-1., -2.]])
    """

    cost: Any

    def __post_init__(self) -> None:
        check_kernel(self.cost, "cost")

    def evaluate(self, x: Float[Tensor, "S 1 d"], y: Float[Tensor, "1 J k"]) -> Float[Tensor, "S J"]:
        """Values of all pairs."""
        return -_evaluate(self.cost, x, y)

    def __getattr__(self, name: str) -> Any:
        # The map is invertible when that of the cost is; an object that cannot do it must not look as if it could.
        if name == "inverse_gradient":
            inverse = getattr(self.cost, name, None)
            if inverse is not None:
                return lambda x, slope: inverse(x, -slope)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def check_kernel(kernel: Any, name: str = "kernel") -> Any:
    """Return the kernel of that name, or the kernel itself once it is known to be one.

    Parameters
    ----------
    kernel : str, callable or object
        ``"dot"``, ``"hinge"``, ``"neg_sqeuclidean"``, ``"neg_power"``, ``"sqeuclidean"``, ``"power"``; a function of
        ``x`` and ``y``; or an object with the method ``evaluate``.
    name : str, default="kernel"
        Name of the argument, for the message.

    Returns
    -------
    object or callable

    Raises
    ------
    TypeError
        If it has no method ``evaluate`` and is not callable.
    ValueError
        If it is a name that is not known.

    Examples
    --------
    >>> from assay.transport.transport_kernels import check_kernel
    >>> check_kernel("neg_power")
    NegatedCost(cost=PowerCost(p=1.5))
    >>> check_kernel(3.0)
    Traceback (most recent call last):
        ...
    TypeError: kernel must be a name, a callable or an object with the method 'evaluate', got float without 'evaluate'
    """
    if isinstance(kernel, str):
        if kernel not in _NAMED:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, _NAMED))} or an object, got {kernel!r}")
        return _NAMED[kernel]
    wanted = f"{name} must be a name, a callable or an object with the method 'evaluate'"
    if isinstance(kernel, type):
        raise TypeError(f"{wanted}, got the class {kernel.__name__} instead of an instance of it")
    for method in ("evaluate", "inverse_gradient"):
        if hasattr(kernel, method) and not callable(getattr(kernel, method)):
            raise TypeError(f"{wanted}, got {type(kernel).__name__} whose {method!r} is not callable")
    if not hasattr(kernel, "evaluate") and not callable(kernel):
        raise TypeError(f"{wanted}, got {type(kernel).__name__} without 'evaluate'")
    return kernel


def kernel_scores(kernel: Any, x: Float[Tensor, "S d"], y: Float[Tensor, "J k"]) -> Float[Tensor, "S J"]:
    """Values of all pairs, with the shape of what the kernel returns checked.

    Parameters
    ----------
    kernel : object or callable
        What :func:`check_kernel` returned.
    x, y : tensors of shapes (S, d) and (J, k)
        Sources and targets.

    Returns
    -------
    tensor of shape (S, J)

    Raises
    ------
    TypeError
        If the kernel returns something else than a tensor of floats.
    ValueError
        If it returns another shape.

    Examples
    --------
    >>> import torch
    >>> from assay.transport.transport_kernels import kernel_scores
    >>> kernel_scores(lambda x, y: (x - y).norm(dim=-1), torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5., 1.]])
    """
    scores = _evaluate(kernel, x.unsqueeze(1), y.unsqueeze(0))
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        raise TypeError(f"kernel must return (S, J) values as a tensor of floats, got {type(scores).__name__}")
    if scores.shape != (x.shape[0], y.shape[0]):
        raise ValueError(
            f"kernel must return (S, J) = ({x.shape[0]}, {y.shape[0]}) values for x of shape (S, 1, d) and y of shape "
            f"(1, J, k), got shape {tuple(scores.shape)}"
        )
    return scores


def _evaluate(kernel: Any, x: Tensor, y: Tensor) -> Any:
    return kernel.evaluate(x, y) if hasattr(kernel, "evaluate") else kernel(x, y)


_NAMED: Mapping[str, Any] = {
    "dot": DotKernel(),
    "hinge": HingeKernel(),
    "neg_sqeuclidean": NegatedCost(SquaredEuclideanCost()),
    "neg_power": NegatedCost(PowerCost()),
    "sqeuclidean": SquaredEuclideanCost(),
    "power": PowerCost(),
}
