"""What the nodes hold, and what can be said about it without looking at a loss.

Nine vectors at a node: states, estimators of its own gradient and trackers of the mean gradient, each for ``x``, ``y``
and ``z``. Mixing with doubly stochastic weights keeps means, from which two invariants follow that a run can be held
to: the mean tracker is the mean estimator, and the mean state moves along it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.mixing_network import Stack, Vector

__all__ = ["NodeStates", "as_vector", "copied"]


@dataclass(eq=False)
class NodeStates:
    """States, estimators and trackers of the nodes at hand, a row per node.

    Parameters
    ----------
    states, estimators : array or tensor of shape (K, d_x + 2 d_y)
        With ``x``, ``y`` and ``z`` one after the other.
    trackers : array or tensor of that shape, or None
        None without tracking.
    """

    states: Stack
    estimators: Stack
    trackers: Stack | None

    @property
    def is_double(self) -> bool:
        """Whether they are in float64."""
        return self.states.dtype in (torch.float64, np.dtype(np.float64))

    def size(self, network: Any) -> float:
        """Mean square of the estimators over the nodes."""
        return float(network.mean((self.estimators**2).sum(1)[:, None])[0])

    def means(self, network: Any, blocks: tuple[slice, ...]) -> tuple[Float[np.ndarray, " _"], ...]:
        """Mean ``x``, ``y`` and ``z``, in float64."""
        mean = as_vector(network.mean(self.states))
        return tuple(mean[block] for block in blocks)

    def consensus(self, network: Any, blocks: tuple[slice, ...]) -> dict[str, float]:
        """For ``x``, ``y`` and ``z``, mean over the nodes of the squared distance to their mean."""
        off = self.states - network.mean(self.states)
        squares = [(off[:, block] ** 2).sum(1)[:, None] for block in blocks]
        return {name: float(network.mean(square)[0]) for name, square in zip("xyz", squares, strict=True)}

    def tracker_error(self, network: Any, scale: float) -> float:
        """Distance of the mean tracker from the mean estimator, relative to the estimators or ``scale``."""
        if self.trackers is None:
            return math.nan
        off = network.mean(self.trackers) - network.mean(self.estimators)
        size = max(math.sqrt(self.size(network)), scale, np.finfo(float).tiny)
        return float(abs(off).max()) / size if size < math.inf else math.nan

    def motion_error(self, network: Any, moved: Stack, steps: Vector) -> float:
        """By how much the mean state does not move by ``steps`` times the mean estimator, relative to the states."""
        mean = network.mean
        off = mean(moved) - mean(self.states) + steps * mean(self.estimators)
        sizes = [float(abs(rows).max()) for rows in (moved, self.states, steps * self.estimators)]
        return float(abs(off).max()) / max(*sizes, np.finfo(float).tiny)


def copied(rows: Stack) -> Stack:
    """A copy."""
    return rows.clone() if isinstance(rows, Tensor) else rows.copy()


def as_vector(rows: np.ndarray | Tensor) -> np.ndarray:
    """An array in float64 on the processor."""
    return rows.detach().cpu().double().numpy() if isinstance(rows, Tensor) else np.array(rows, dtype=np.float64)
