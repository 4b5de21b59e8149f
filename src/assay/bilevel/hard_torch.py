"""The hard bilevel instances as differentiable functions of PyTorch tensors, counted call by call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay.bilevel.oracle_counter import OracleOutput

if TYPE_CHECKING:
    from assay.bilevel.hard_instances import HardBilevel

__all__ = ["torch_objectives"]


class _Objective(torch.autograd.Function):
    """A value whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, value: float, by_x: Any, by_y: Any) -> torch.Tensor:
        ctx.save_for_backward(torch.as_tensor(by_x).to(x.device, x.dtype), torch.as_tensor(by_y).to(y.device, y.dtype))
        return x.new_tensor(value)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        by_x, by_y = ctx.saved_tensors
        return upstream * by_x, upstream * by_y, None, None, None


def torch_objectives(
    instance: HardBilevel,
) -> tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """Both objectives of an instance; see :meth:`assay.bilevel.HardBilevel.as_torch`."""
    last: list[tuple[np.ndarray, np.ndarray, OracleOutput, int]] = []

    def ask(x: torch.Tensor, y: torch.Tensor) -> OracleOutput:
        at_x = x.detach().cpu().double().numpy().copy()
        at_y = y.detach().cpu().double().numpy().copy()
        if last:
            old_x, old_y, answer, calls = last[0]
            # a reset of the counter makes the old answer a stranger
            if np.array_equal(old_x, at_x) and np.array_equal(old_y, at_y) and calls <= instance.counter.calls:
                return answer
        answer = instance.oracle(at_x, at_y)
        last[:] = [(at_x, at_y, answer, instance.counter.calls)]
        return answer

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        answer = ask(x, y)
        return _Objective.apply(x, y, answer.f, answer.fx.copy(), answer.fy)

    def g(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        answer = ask(x, y)
        return _Objective.apply(x, y, answer.g, answer.gx, answer.gy)

    return f, g
