"""What the nodes bring: losses of their own data, evaluated for all nodes at once.

Every node has two losses of the shared variable ``x`` and of ``y``. Users write them as one function per node, or as
one function for all nodes whose arguments have a leading axis over them (:class:`BatchedLoss`); with numpy they return
their gradients, with torch these come from one backward pass. Only first derivatives are ever taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.validation import check_integer, check_real

__all__ = ["BatchedLoss", "LossGradients", "LowerPoints", "NodeLosses", "UpperPoints", "minibatch_sampler"]

UpperPoints = Float[np.ndarray, "nodes dx"] | Float[Tensor, "nodes dx"]
LowerPoints = Float[np.ndarray, "nodes dy"] | Float[Tensor, "nodes dy"]
Values = Float[np.ndarray, " nodes"] | Float[Tensor, " nodes"]


class BatchedLoss:
    """The losses of all nodes in one call.

    Parameters
    ----------
    function : callable
        ``function(x, y, batch)`` with ``x`` of shape (K, d_x) and ``y`` of shape (K, d_y), a row per node, and
        ``batch`` what the sampler drew for all nodes, or None for all data. With torch it returns a tensor of K losses,
        of which the ``k``-th depends on the ``k``-th rows only. With numpy it returns ``(values, (grad_x, grad_y))`` of
        shapes (K,), (K, d_x) and (K, d_y).
    n_nodes : int
        The number K of nodes.
    smoothness : float, optional
        A Lipschitz constant of the gradient of the mean loss in ``y``, from which default step sizes are taken.

    Raises
    ------
    TypeError, ValueError
        If an argument is not of its form.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.bilevel import BatchedLoss
    >>> def half_square(x, y, batch):
    ...     residual = y - x
    ...     return 0.5 * (residual**2).sum(axis=1), (-residual, residual)
    >>> loss = BatchedLoss(half_square, n_nodes=3, smoothness=1.0)
    >>> loss(np.zeros((3, 2)), np.ones((3, 2)), None)[0]
    array([1., 1., 1.])
    """

    def __init__(self, function: Any, n_nodes: int, *, smoothness: float | None = None):
        if not callable(function):
            raise TypeError(f"function must be a callable function(x, y, batch), got {type(function).__name__}")
        self.function = function
        self.n_nodes = check_integer(n_nodes, "n_nodes", minimum=1)
        self.smoothness = None if smoothness is None else check_real(smoothness, "smoothness", above=0.0)

    def __call__(self, x: Any, y: Any, batch: Any) -> Any:
        """Evaluate all nodes."""
        return self.function(x, y, batch)


class LossGradients(NamedTuple):
    """Losses of the nodes and their gradients, a row per node."""

    values: Values
    x: UpperPoints
    y: LowerPoints


class NodeLosses:
    """Losses of the nodes at hand, whatever the form in which they were given.

    Parameters
    ----------
    losses : sequence of callable, or BatchedLoss
        One function per node, or one for all.
    name : str
        Name of the argument, for messages.
    n_nodes : int
        How many nodes there are to be.
    backend : {"numpy", "torch", "dist"}
        Whether the functions return gradients or torch scalars.

    Attributes
    ----------
    evaluations : int
        Gradients of single nodes that were computed.

    Raises
    ------
    TypeError
        If the losses are no callables.
    ValueError
        If their number is not that of the nodes.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.bilevel.decentralized_losses import NodeLosses
    >>> losses = [lambda x, y, batch, k=k: (k * y @ y / 2, (0 * x, k * y)) for k in range(2)]
    >>> NodeLosses(losses, "g_list", 2, "numpy").gradients(np.zeros((2, 1)), np.ones((2, 3)), None).y
    array([[0., 0., 0.],
           [1., 1., 1.]])
    """

    def __init__(self, losses: Any, name: str, n_nodes: int, backend: str):
        self.name = name
        self.backend = backend
        self.n_nodes = n_nodes
        self.evaluations = 0
        self.smoothness = getattr(losses, "smoothness", None)
        self.batched = isinstance(losses, BatchedLoss)
        if not self.batched and (isinstance(losses, str) or not isinstance(losses, Sequence)):
            raise TypeError(f"{name} must be a list of callables or a BatchedLoss, got {type(losses).__name__}")
        given = losses.n_nodes if self.batched else len(losses)
        if given != n_nodes:
            raise ValueError(f"{name} must have a loss for each of the {n_nodes} nodes, got {given}")
        self._function = losses.function if self.batched else None
        self._functions = () if self.batched else tuple(losses)
        for k, function in enumerate(self._functions):
            if not callable(function):
                raise TypeError(f"{name}[{k}] must be a callable loss(x, y, batch), got {type(function).__name__}")

    def gradients(self, x: UpperPoints, y: LowerPoints, batches: Any) -> LossGradients:
        """Losses and gradients of all nodes at their own points.

        Parameters
        ----------
        x, y : array or tensor of shape (K, d_x) and (K, d_y)
            A row per node.
        batches : sequence of length K, or None
            Data of every node.

        Raises
        ------
        TypeError, ValueError
            If a function returns something else than losses and gradients of the shapes of ``x`` and ``y``.
        """
        self.evaluations += self.n_nodes
        if self.backend != "numpy":
            return self._by_autograd(x, y, batches)
        x, y = x.copy(), y.copy()  # a loss that writes to its arguments must not spoil the states
        if self.batched:
            return self._checked(self._function(x, y, batches), x.shape, y.shape)
        values, grad_x, grad_y = np.empty(len(x)), np.empty(x.shape), np.empty(y.shape)
        for k, function in enumerate(self._functions):
            who = f"{self.name}[{k}]"
            answer = self._unpacked(function(x[k], y[k], None if batches is None else batches[k]), who)
            shapes, wanted = [part.shape for part in answer], [(), x.shape[1:], y.shape[1:]]
            if shapes != wanted:
                raise ValueError(
                    f"{who} must return a number and gradients of shapes {wanted[1]} and {wanted[2]}, "
                    f"got shapes {', '.join(map(str, shapes))}"
                )
            values[k], grad_x[k], grad_y[k] = answer
        return LossGradients(values, grad_x, grad_y)

    def _by_autograd(self, x: UpperPoints, y: LowerPoints, batches: Any) -> LossGradients:
        if torch.is_inference_mode_enabled():
            raise RuntimeError(f"{self.name} cannot be differentiated within torch.inference_mode")
        points = x.detach().requires_grad_(), y.detach().requires_grad_()
        with torch.enable_grad():
            if self.batched:
                values = self._as_tensor(self._function(*points, batches), (self.n_nodes,), self.name)
            else:
                each = []
                for k, function in enumerate(self._functions):
                    loss = function(points[0][k], points[1][k], None if batches is None else batches[k])
                    each.append(self._as_tensor(loss, (), f"{self.name}[{k}]"))
                values = torch.stack(each)
            total = values.sum()
        # One backward pass for all nodes, since a loss depends on the rows of its node only.
        grads = torch.autograd.grad(total, points, allow_unused=True)
        grad_x, grad_y = (torch.zeros_like(p) if g is None else g for g, p in zip(grads, points, strict=True))
        return LossGradients(values.detach().to(x.dtype), grad_x, grad_y)

    @staticmethod
    def _as_tensor(loss: Any, shape: tuple[int, ...], who: str) -> Tensor:
        if not isinstance(loss, Tensor):
            raise TypeError(f"{who} must return a torch tensor unless backend='numpy', got {type(loss).__name__}")
        if loss.shape != shape:
            raise ValueError(f"{who} must return a tensor of shape {shape}, got {tuple(loss.shape)}")
        if not loss.requires_grad:  # more often cut off by mistake than constant, and its gradient would be 0
            raise ValueError(
                f"{who} must depend on x or y, got a tensor without a gradient (a constant c is c + 0 * y.sum())"
            )
        return loss

    def _checked(self, answer: Any, x_shape: tuple[int, int], y_shape: tuple[int, int]) -> LossGradients:
        parts = self._unpacked(answer, self.name)
        shapes, wanted = [part.shape for part in parts], [x_shape[:1], x_shape, y_shape]
        if shapes != wanted:
            raise ValueError(
                f"{self.name} must return values and gradients of shapes {', '.join(map(str, wanted))}, "
                f"got {', '.join(map(str, shapes))}"
            )
        return LossGradients(*parts)

    @staticmethod
    def _unpacked(answer: Any, who: str) -> list[np.ndarray]:
        try:
            value, (grad_x, grad_y) = answer
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{who} must return (value, (grad_x, grad_y)) with backend='numpy', got {type(answer).__name__}"
            ) from error
        return [_as_real(part, who) for part in (value, grad_x, grad_y)]


def _as_real(part: Any, who: str) -> np.ndarray:
    """A copy in float64, so that a loss may use its buffers again."""
    if np.iscomplexobj(part):
        raise TypeError(f"{who} must return real numbers, got complex ones")
    try:
        return np.array(np.asarray(part), dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{who} must return numbers and arrays, got {type(part).__name__}") from error


def minibatch_sampler(sizes: Sequence[int], batch_size: int) -> Callable[[np.random.Generator], list[np.ndarray]]:
    """Sampler of rows: for every node as many row numbers of its own data, without repetition.

    Parameters
    ----------
    sizes : sequence of int
        Number of rows of every node.
    batch_size : int
        Rows in a batch; a node with fewer uses all of its own.

    Returns
    -------
    callable
        ``sampler(rng)`` returns a list with an integer array per node.

    Raises
    ------
    TypeError, ValueError
        If there are no nodes, a node has no data (it is named), or ``batch_size`` is less than 1.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.bilevel import minibatch_sampler
    >>> sampler = minibatch_sampler([50, 20], batch_size=4)
    >>> [rows.shape for rows in sampler(np.random.default_rng(0))]
    [(4,), (4,)]
    """
    if not isinstance(sizes, Sequence | np.ndarray) or isinstance(sizes, str):
        raise TypeError(f"sizes must be a sequence of integers, got {type(sizes).__name__}")
    counts = [check_integer(size, f"sizes[{k}]", minimum=0) for k, size in enumerate(sizes)]
    if not counts:
        raise ValueError("sizes must have at least 1 node, got none")
    for k, count in enumerate(counts):
        if not count:
            raise ValueError(f"sizes must be at least 1, got node {k} with empty data")
    batch_size = check_integer(batch_size, "batch_size", minimum=1)

    return partial(_drawn_without_repetition, counts, batch_size)


def _drawn_without_repetition(counts: list[int], batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.choice(count, min(batch_size, count), replace=False) for count in counts]
