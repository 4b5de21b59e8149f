"""From what users pass to what a decentralised run needs: starting points, network, bounds and step scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.decentralized_hook import DecentralizedBilevelHook
from assay.bilevel.decentralized_losses import BatchedLoss
from assay.bilevel.decentralized_oracle import MeanLosses
from assay.bilevel.mixing_matrix import as_mixing_matrix
from assay.bilevel.mixing_network import SimulatedNetwork, Vector
from assay.validation import as_float_array, check_real

__all__ = [
    "StepScales",
    "as_bounds",
    "as_network",
    "as_starting_point",
    "estimate_smoothness",
    "losses_at_hand",
    "step_scales",
]

_STEPS_OF_POWER_ITERATION = 50


@dataclass(frozen=True)
class StepScales:
    """Scales of the steps of ``x``, ``y`` and ``z``, and the smoothness that defaults were taken from (nan if none)."""

    x: float
    y: float
    z: float
    smoothness: float


def as_starting_point(x0: Any, y0: Any, z0: Any, backend: str) -> tuple[Vector, Vector, Vector]:
    """Check where a run starts; arrays in float64 with numpy, tensors as ``x0`` with torch."""
    z0 = y0 if z0 is None else z0
    named = {"x0": x0, "y0": y0, "z0": z0}
    if backend == "numpy":
        start = tuple(as_float_array(point, name, ndim=1).copy() for name, point in named.items())
    else:
        like = x0 if isinstance(x0, Tensor) else torch.zeros(0, dtype=torch.float64)
        if not like.is_floating_point():
            raise TypeError(f"x0 must be of a floating-point dtype, got {like.dtype}")
        for name, point in named.items():
            as_float_array(point, name, ndim=1)
        start = tuple(torch.as_tensor(point).detach().to(like.device, like.dtype).clone() for point in named.values())
    if start[1].shape != start[2].shape:
        raise ValueError(f"z0 must have the shape of y0, {tuple(start[1].shape)}, got {tuple(start[2].shape)}")
    return start


def as_network(graph: Any, backend: str, like: np.ndarray | Tensor) -> SimulatedNetwork | DecentralizedBilevelHook:
    """The network of a graph: simulated, or of processes."""
    if isinstance(graph, DecentralizedBilevelHook):
        if backend != "dist":
            raise ValueError(f"graph must not be a hook with backend={backend!r}")
        return graph
    return DecentralizedBilevelHook(graph) if backend == "dist" else SimulatedNetwork(as_mixing_matrix(graph), like)


def losses_at_hand(losses: Any, network: Any, name: str) -> Any:
    """The losses of the nodes that are here: all of them, or that of this process."""
    if isinstance(network, SimulatedNetwork) or isinstance(losses, BatchedLoss) or not isinstance(losses, Sequence):
        return losses
    if len(losses) not in (1, network.n_nodes):
        raise ValueError(f"{name} must have 1 loss, or one for each of the {network.n_nodes} nodes, got {len(losses)}")
    return losses if len(losses) == 1 else losses[network.rank : network.rank + 1]


def as_bounds(bounds: Any, dx: int) -> tuple[Float[np.ndarray, " dx"], Float[np.ndarray, " dx"]] | None:
    """Lower and upper bounds on ``x``, one for each entry."""
    if bounds is None:
        return None
    if not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise ValueError("x_bounds must be a pair (lower, upper) of numbers or arrays")
    both = []
    for name, bound in zip(("lower", "upper"), bounds, strict=True):
        array = as_float_array(bound, f"{name} bound of x_bounds", ndim=(0, 1))
        if array.ndim and array.shape != (dx,):
            raise ValueError(f"{name} bound of x_bounds must be a number or have shape ({dx},), got {array.shape}")
        both.append(np.broadcast_to(array, (dx,)).copy())
    if not (both[0] <= both[1]).all():
        raise ValueError("x_bounds must have lower bounds that are at most the upper ones")
    return both[0], both[1]


def step_scales(
    gammas: tuple[float | None, float | None, float | None],
    sigma: float,
    smoothness: float | None,
    estimate: Callable[[], float],
) -> StepScales:
    """Check the step scales that were given, and derive the others from the smoothness of the lower loss."""
    x, y, z = (
        None if gamma is None else check_real(gamma, f"gamma_{name}", above=0.0)
        for name, gamma in zip("xyz", gammas, strict=True)
    )
    known = math.nan
    if None in (x, y, z):
        known = estimate() if smoothness is None else check_real(smoothness, "smoothness", above=0.0)
        if not known > 0.0:
            raise ValueError("smoothness must be given, as the gradients of g_list do not change around x0 and y0")
    return StepScales(
        x=0.2 * sigma / max(known, 1.0) if x is None else x,
        y=0.5 / known if y is None else y,
        z=0.5 / known if z is None else z,
        smoothness=known if smoothness is None else float(smoothness),
    )


def estimate_smoothness(losses: MeanLosses, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, " dy"]) -> float:
    """Largest curvature of the mean lower loss in ``y`` at a point, by power iteration on differences of gradients.

    An estimate from below, and of the curvature at this point only.
    """
    direction = np.random.default_rng(0).normal(size=y.shape)
    direction /= np.linalg.norm(direction)
    # The cube root of the precision balances rounding and curvature in central differences.
    double = not isinstance(losses.like, Tensor) or losses.like.dtype == torch.float64
    length = (1e-5 if double else 1e-2) * (1.0 + float(np.linalg.norm(y)))
    curvature = 0.0
    for _ in range(_STEPS_OF_POWER_ITERATION):
        ahead, behind = (losses.lower(x, y + sign * length * direction).y for sign in (1.0, -1.0))
        product = (ahead - behind) / (2.0 * length)
        curvature = float(np.linalg.norm(product))
        if not curvature > 0.0:
            return 0.0
        direction = product / curvature
    return curvature
