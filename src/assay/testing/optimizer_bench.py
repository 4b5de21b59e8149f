"""The small models, batches and comparisons that the checks of optimizers share."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Bench", "SkipCheckError", "bit_equal", "save_and_load", "state_tensors"]

Factory = Callable[..., torch.optim.Optimizer]


class SkipCheckError(Exception):
    """A check has nothing to look at: the optimizer lacks the option it is about."""


class Net(torch.nn.Module):
    """Matrices, vectors and a number, and nothing else that is random."""

    def __init__(self, dtype: torch.dtype = torch.float32, seed: int = 0, matrices_only: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter((0.5 * torch.randn(*shape, generator=generator)).to(dtype))

        self.first, self.second = drawn(8, 5), drawn(3, 8)
        self.bias = None if matrices_only else drawn(8)
        self.scale = None if matrices_only else torch.nn.Parameter(torch.tensor(1.0, dtype=dtype))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs @ self.first.T
        if self.bias is not None:
            hidden = hidden + self.bias
        out = torch.tanh(hidden) @ self.second.T
        return out if self.scale is None else out * self.scale


@dataclass(frozen=True)
class Bench:
    """An optimizer under test, and how it wants to be used.

    Attributes
    ----------
    factory : callable
        ``factory(params, **options)`` makes the optimizer.
    needs_closure : bool
        Whether ``step`` has to be given a closure.
    matrices_only : bool
        Whether only parameters with two dimensions are supported; then the models have no others.
    nan_gradients : str
        What a nan in a gradient does: ``"propagates"``, ``"raises"`` or ``"skips"``.
    """

    factory: Factory
    needs_closure: bool = False
    matrices_only: bool = False
    nan_gradients: str = "propagates"

    def net(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> Net:
        """A small model; the same for the same seed."""
        return Net(dtype, seed, self.matrices_only)

    def make(self, params: Any, **options: Any) -> torch.optim.Optimizer:
        """An optimizer; skip the check when the factory does not take an option."""
        if options:
            try:
                return self.factory(params, **options)
            except TypeError as error:
                words = str(error)
                if any(name in words for name in options) or "unexpected keyword" in words:
                    raise SkipCheckError(f"the factory takes no {', '.join(options)}") from None
                raise
        return self.factory(params)

    def batches(self, n: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> list[tuple[Any, Any]]:
        """Inputs and targets of a regression that a net of another seed makes."""
        generator = torch.Generator().manual_seed(seed)
        teacher = Net(torch.float64, 99, self.matrices_only)
        found = []
        for _ in range(n):
            inputs = torch.randn(16, 5, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                found.append((inputs.to(dtype), teacher(inputs).to(dtype)))
        return found

    def step(
        self,
        net: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: tuple[torch.Tensor, torch.Tensor],
        sign: float = 1.0,
    ) -> torch.Tensor:
        """One step of training; returns the loss before it."""

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = sign * torch.nn.functional.mse_loss(net(batch[0]).float(), batch[1].float())
            loss.backward()
            return loss

        if self.needs_closure:
            return torch.as_tensor(optimizer.step(closure)).detach()
        loss = closure().detach()
        optimizer.step()
        return loss

    def train(
        self, net: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any], sign: float = 1.0
    ) -> list[float]:
        """Steps on all batches; returns the losses."""
        return [float(self.step(net, optimizer, batch, sign)) for batch in batches]


def bit_equal(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    """Whether all parameters agree in every bit; nan agrees with nan."""
    return all(
        a.dtype == b.dtype and torch.equal(a.detach().nan_to_num(nan=7.0), b.detach().nan_to_num(nan=7.0))
        for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def save_and_load(content: Any) -> Any:
    """Through a file as users do, with nothing but tensors and plain types allowed."""
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def state_tensors(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    """All tensors of the state, by the number of their parameter and their name."""
    found: list[tuple[str, torch.Tensor]] = []

    def walk(name: str, content: Any) -> None:
        if isinstance(content, torch.Tensor):
            found.append((name, content))
        elif isinstance(content, dict):
            for key, value in content.items():
                walk(f"{name}.{key}", value)
        elif isinstance(content, list | tuple):
            for i, value in enumerate(content):
                walk(f"{name}[{i}]", value)

    numbers: Sequence[Any] = [p for group in optimizer.param_groups for p in group["params"]]
    for i, parameter in enumerate(numbers):
        walk(str(i), dict(optimizer.state.get(parameter, {})))
    return found
