"""From what users pass to what a decentralised run needs: starting points, network, bounds and step scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.decentralized_hook import DecentralizedBilevelHook
from assay.bilevel.decentralized_losses import BatchedLoss
from assay.bilevel.decentralized_oracle import MeanLosses
from assay.bilevel.decentralized_states import as_vector
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
    "options_of_problem",
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
        if like.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"x0 must be of dtype torch.float32 or torch.float64, got {like.dtype}")
        form = {"device": like.device, "dtype": like.dtype}
        checked = {name: as_float_array(point, name, ndim=1) for name, point in named.items()}
        start = tuple(
            point.detach().to(**form, copy=True) if isinstance(point, Tensor) else torch.tensor(checked[name], **form)
            for name, point in named.items()
        )
    if start[1].shape != start[2].shape:
        raise ValueError(f"z0 must have the shape of y0, {tuple(start[1].shape)}, got {tuple(start[2].shape)}")
    return start


def options_of_problem(problem: Any, noise: float, options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Starting points and options for a problem with a closed form: from the origin, and compared with the exact one.

    Raises
    ------
    TypeError, ValueError
        If it is no such problem, or an option does not go with it.
    """
    if not all(hasattr(problem, name) for name in ("f", "g", "F", "shape", "noise")):
        raise TypeError(f"problem must be a PLProblem, got {type(problem).__name__}")
    noise = check_real(noise, "noise", minimum=0.0)
    if options.get("backend", "numpy") != "numpy":
        raise ValueError(f"backend must be 'numpy' for a problem with a closed form, got {options['backend']!r}")
    start = {name: options.pop(name, np.zeros(d)) for name, d in zip(("x0", "y0"), problem.shape, strict=True)}
    for (name, point), d in zip(start.items(), problem.shape, strict=True):
        if as_float_array(point, name, ndim=1).shape != (d,):
            raise ValueError(f"{name} must have shape ({d},), got {np.shape(point)}")
    if noise:
        options.setdefault("sampler", partial(problem.noise, noise))
    options.setdefault("true_hypergradient", problem.F)
    return start["x0"], start["y0"], options


def as_network(graph: Any, backend: str, like: np.ndarray | Tensor) -> SimulatedNetwork | DecentralizedBilevelHook:
    """The network of a graph: simulated, or of processes."""
    if isinstance(graph, DecentralizedBilevelHook):
        if backend != "dist":
            raise ValueError(f"graph must not be a hook with backend={backend!r}")
        return graph
    return DecentralizedBilevelHook(graph) if backend == "dist" else SimulatedNetwork(as_mixing_matrix(graph), like)


def losses_at_hand(losses: Any, network: Any, name: str) -> Any:
    """The losses of the nodes that are here: all of them, or that of this process."""
    if isinstance(network, SimulatedNetwork) or not isinstance(losses, BatchedLoss | Sequence):
        return losses
    if isinstance(losses, BatchedLoss):
        if losses.n_nodes != 1:
            raise ValueError(f"{name} must be the loss of this process with backend='dist', got {losses.n_nodes} nodes")
        return losses
    if len(losses) not in (1, network.n_nodes):
        raise ValueError(f"{name} must have 1 loss, or one for each of the {network.n_nodes} nodes, got {len(losses)}")
    return losses if len(losses) == 1 else losses[network.rank : network.rank + 1]


def as_bounds(bounds: Any, x0: Vector) -> tuple[Float[np.ndarray, " dx"], Float[np.ndarray, " dx"]] | None:
    """Lower and upper bounds on ``x``, one for each entry, within which it starts."""
    if bounds is None:
        return None
    if not isinstance(bounds, Sequence | np.ndarray) or isinstance(bounds, str) or len(bounds) != 2:
        raise ValueError("x_bounds must be a pair (lower, upper) of numbers or arrays")
    lower, upper = (
        _as_bound(bound, f"{name} bound of x_bounds", infinity, len(x0))
        for name, infinity, bound in zip(("lower", "upper"), (-math.inf, math.inf), bounds, strict=True)
    )
    if not (lower <= upper).all():
        raise ValueError("x_bounds must have lower bounds that are at most the upper ones")
    start = as_vector(x0)
    single = isinstance(x0, Tensor) and x0.dtype == torch.float32
    inside = (bound.astype(np.float32) if single else bound for bound in (lower, upper))
    outside = np.flatnonzero(start != np.clip(start, *inside))
    if outside.size:
        raise ValueError(f"x0 must be within x_bounds, got {start[outside[0]]:g} in entry {outside[0]}")
    return lower, upper


def _as_bound(bound: Any, name: str, infinity: float, dx: int) -> Float[np.ndarray, " dx"]:
    """One bound for each entry, finite or at infinity; None is at infinity."""
    if isinstance(bound, Tensor):
        bound = bound.detach().cpu().numpy()
    raw = np.asarray(infinity if bound is None else bound)
    open_end = np.asarray(raw == infinity)
    array = as_float_array(np.where(open_end, 0.0, raw) if open_end.any() else raw, name, ndim=(0, 1))
    array = np.where(open_end, infinity, array)
    if array.ndim and array.shape != (dx,):
        raise ValueError(f"{name} must be a number or have shape ({dx},), got {array.shape}")
    return np.broadcast_to(array, (dx,)).copy()


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
            why = "are not finite" if math.isnan(known) else "do not change"
            raise ValueError(f"smoothness must be given, as the gradients of g_list {why} around x0 and y0")
    return StepScales(
        x=0.2 * sigma / max(known, 1.0) if x is None else x,
        y=0.5 / known if y is None else y,
        z=0.5 / known if z is None else z,
        smoothness=known if smoothness is None else float(smoothness),
    )


def estimate_smoothness(losses: MeanLosses, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, " dy"]) -> float:
    """Largest curvature of the mean lower loss in ``y`` at a point, by power iteration on differences of gradients.

    An estimate from below, and of the curvature at this point only; nan where gradients are not finite.
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
        with np.errstate(over="ignore", invalid="ignore"):
            curvature = float(np.linalg.norm(product))
        if not 0.0 < curvature < math.inf:
            return math.nan if curvature else 0.0
        direction = product / curvature
    return curvature
