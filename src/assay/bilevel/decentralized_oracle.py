r"""Gradients of the penalised problem, at every node and on average.

With :math:`z` near the minimisers of the lower loss and :math:`y` near those of :math:`\sigma f + g`, the derivative of
the value is a difference of first derivatives,

.. math:: \nabla F(x) \approx \partial_x f(x, y) + \frac1\sigma\bigl(\partial_x g(x, y) - \partial_x g(x, z)\bigr),

off by :math:`O(\sigma)`. The two derivatives of :math:`g` are taken on the same data: their noise cancels, and the
factor :math:`1/\sigma` does not blow it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.decentralized_losses import LossGradients, NodeLosses
from assay.bilevel.mixing_network import Stack, Vector

__all__ = ["MeanLosses", "MeanValue", "PenaltyOracle"]


@dataclass(frozen=True, eq=False)
class PenaltyOracle:
    """Directions of all nodes; a state is a row with ``x``, ``y`` and ``z`` one after the other.

    Parameters
    ----------
    upper, lower : NodeLosses
        Losses of the nodes.
    dx, dy : int
        Dimensions of ``x`` and ``y``.
    regularizer : float
        Factor of half the squared norm of ``y`` that is added to the lower loss; 0 for the method itself.
    first_node : int
        The number of the first node at hand, for messages.
    """

    upper: NodeLosses
    lower: NodeLosses
    dx: int
    dy: int
    regularizer: float
    first_node: int

    @property
    def blocks(self) -> tuple[slice, slice, slice]:
        """Where ``x``, ``y`` and ``z`` are in a state."""
        return slice(0, self.dx), slice(self.dx, self.dx + self.dy), slice(self.dx + self.dy, self.dx + 2 * self.dy)

    def directions(self, states: Stack, batches: Any, sigma: float, iteration: int) -> Stack:
        """Gradient of the penalised loss in ``x``, of ``sigma f + g`` in ``y`` and of ``g`` in ``z``, at every node.

        Raises
        ------
        ValueError
            If a gradient or a state is not finite; the loss, the node and the iteration are named.
        """
        x_block, y_block, z_block = self.blocks
        x, y, z = states[:, x_block], states[:, y_block], states[:, z_block]
        upper = self.upper.gradients(x, y, batches)
        at_y = self.lower.gradients(x, y, batches)
        at_z = self.lower.gradients(x, z, batches)
        found = torch.empty_like(states) if isinstance(states, Tensor) else np.empty_like(states)
        found[:, x_block] = upper.x + (at_y.x - at_z.x) / sigma
        found[:, y_block] = sigma * upper.y + at_y.y
        found[:, z_block] = at_z.y
        if self.regularizer:
            found[:, y_block] += self.regularizer * y
            found[:, z_block] += self.regularizer * z
        # A sum is a cheaper question than one about every entry, and an infinity or a nan goes through it.
        if not bool(np.isfinite(float(found.sum()))):
            self._name_the_culprit(states, ((self.upper, upper), (self.lower, at_y), (self.lower, at_z)), iteration)
        return found

    def _name_the_culprit(
        self, states: Stack, evaluated: Sequence[tuple[NodeLosses, LossGradients]], iteration: int
    ) -> None:
        if not np.isfinite(_as_float64(states)).all():
            raise ValueError(f"gamma_x must be smaller: the states are not finite any more in iteration {iteration}")
        for losses, gradients in evaluated:
            for part in (gradients.x, gradients.y):
                rows = np.isfinite(_as_float64(part)).all(axis=1)
                if not rows.all():
                    node = self.first_node + int(np.argmin(rows))
                    raise ValueError(
                        f"{losses.name} must have finite gradients, got a nan or an infinity from node {node} "
                        f"in iteration {iteration}"
                    )


class MeanValue(NamedTuple):
    """A mean loss and its gradients, in float64."""

    value: float
    x: Float[np.ndarray, " dx"]
    y: Float[np.ndarray, " dy"]


class MeanLosses:
    """Mean losses of all nodes at one point, on all of their data: what reports are made from.

    Parameters
    ----------
    oracle : PenaltyOracle
        The losses of the nodes at hand.
    network : object
        With ``n_local`` and ``mean``.
    like : numpy.ndarray or torch.Tensor
        The type in which the losses want their arguments.
    """

    def __init__(self, oracle: PenaltyOracle, network: Any, like: np.ndarray | Tensor):
        self.oracle, self.network, self.like = oracle, network, like

    def upper(self, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, " dy"]) -> MeanValue:
        """The mean upper loss."""
        return self._mean(self.oracle.upper, x, y)

    def lower(self, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, " dy"]) -> MeanValue:
        """The mean lower loss, with the regulariser if there is one."""
        found, rho = self._mean(self.oracle.lower, x, y), self.oracle.regularizer
        return MeanValue(found.value + 0.5 * rho * float(y @ y), found.x, found.y + rho * y) if rho else found

    def hypergradient(
        self,
        x: Float[np.ndarray, " dx"],
        y: Float[np.ndarray, " dy"],
        z: Float[np.ndarray, " dy"],
        sigma: float,
    ) -> Float[np.ndarray, " dx"]:
        """The estimate by differences of first derivatives."""
        return self.upper(x, y).x + (self.lower(x, y).x - self.lower(x, z).x) / sigma

    def penalised(self, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, " dy"], sigma: float) -> MeanValue:
        """``sigma f + g``."""
        upper, lower = self.upper(x, y), self.lower(x, y)
        return MeanValue(sigma * upper.value + lower.value, sigma * upper.x + lower.x, sigma * upper.y + lower.y)

    def _mean(self, losses: NodeLosses, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, " dy"]) -> MeanValue:
        before = losses.evaluations
        rows = [_repeated(point, self.network.n_local, self.like) for point in (x, y)]
        found = losses.gradients(*rows, None)
        losses.evaluations = before  # reports are not charged
        join = torch.cat if isinstance(found.x, Tensor) else np.concatenate
        mean = _as_float64(self.network.mean(join([found.values[:, None], found.x, found.y], 1)))
        return MeanValue(float(mean[0]), mean[1 : 1 + len(x)], mean[1 + len(x) :])


def _repeated(point: Float[np.ndarray, " size"], times: int, like: np.ndarray | Tensor) -> Stack:
    if isinstance(like, Tensor):
        return torch.as_tensor(point, dtype=like.dtype, device=like.device).repeat(times, 1)
    return np.tile(point, (times, 1))


def _as_float64(rows: Stack | Vector) -> np.ndarray:
    return rows.detach().cpu().double().numpy() if isinstance(rows, Tensor) else np.asarray(rows, dtype=np.float64)
