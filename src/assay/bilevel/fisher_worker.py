"""Where the Fisher matrix is updated: at once, in a thread, or on a second CUDA stream, while descent goes on.

Updates are done one after the other, in the order in which they were handed in, on tensors that nobody changes any
more. So the result does not depend on where they are done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from assay.validation import check_choice

__all__ = ["UpdateWorker"]


class UpdateWorker:
    """Runs updates in order; :meth:`barrier` waits for all of them.

    Parameters
    ----------
    kind : {"sync", "thread", "stream"}
        Where.
    device : torch.device
        Of the tensors.
    """

    def __init__(self, kind: str, device: torch.device):
        self.kind = check_choice(kind, "parallel", ("sync", "thread", "stream"))
        if kind == "stream" and device.type != "cuda":
            raise ValueError(f"parallel='stream' must have inner_params on a CUDA device, got {device}; use 'thread'")
        self._executor = ThreadPoolExecutor(1, "fisher") if kind == "thread" else None
        self._stream = torch.cuda.Stream(device) if kind == "stream" else None
        self._device = device
        self._pending: list[Future[Any]] = []

    def submit(self, update: Callable[..., Any], *arguments: Any) -> None:
        """Run ``update(*arguments)``, now or soon."""
        if self._executor is not None:
            self._pending.append(self._executor.submit(update, *arguments))
        elif self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                update(*arguments)
            for tensor in _tensors(arguments):
                tensor.record_stream(self._stream)
        else:
            update(*arguments)

    def barrier(self) -> None:
        """Wait for all updates; an exception of one is raised here."""
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


def _tensors(arguments: Any) -> Iterator[Tensor]:
    """All tensors in nested arguments, those in dataclasses included."""
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf):
            yield from _tensors(vars(leaf))
