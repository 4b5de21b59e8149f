r"""One iteration of a decentralised run: mix, move, evaluate, average and track.

With the mixing matrix ``W`` and a state ``s`` for ``x``, ``y`` and ``z``, node ``k``

1. mixes and moves, :math:`s_k \leftarrow s_k + \eta((Ws)_k - \gamma_s v_k - s_k)`;
2. evaluates its gradients at the new state, three pairs of first derivatives;
3. averages them, :math:`u_k \leftarrow (1 - a\eta)u_k + a\eta G_k`;
4. tracks their mean, :math:`v_k \leftarrow (Wv)_k + u_k^{new} - u_k^{old}`.

All nodes at hand are rows of one array, so that every line above is one expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.decentralized_oracle import MeanLosses
from assay.bilevel.decentralized_setup import StepScales
from assay.bilevel.decentralized_states import NodeStates, copied
from assay.bilevel.mixing_network import Stack, Vector

__all__ = ["IterationOptions", "NodeIteration"]

# A run is given up when the squared mean gradient is this many times that at the start.
_DIVERGED = 1e6


@dataclass(frozen=True, eq=False)
class IterationOptions:
    """What an iteration depends on, as in :class:`~assay.bilevel.DecentralizedBilevel`, all of it checked."""

    sigma: float
    eta: float
    a: float
    estimator: str
    tracking: bool
    sampler: Callable[[np.random.Generator], Any] | None
    sigma_decay: int | None
    bounds: tuple[Float[np.ndarray, " dx"], Float[np.ndarray, " dx"]] | None


class NodeIteration:
    """States of the nodes at hand, and how they change.

    Parameters
    ----------
    losses : MeanLosses
        With the losses of the nodes and their network.
    start : array or tensor of shape (K, d_x + 2 d_y)
        First states. Their gradients are evaluated at once.
    options : IterationOptions
        What an iteration depends on.
    rng : numpy.random.Generator
        Passed to the sampler.

    Attributes
    ----------
    nodes : NodeStates
        States, estimators and trackers.
    count : int
        Iterations done.
    sigma : float
        Penalty parameter at present.
    first_size : float
        Mean square of the first estimators.
    """

    def __init__(self, losses: MeanLosses, start: Stack, options: IterationOptions, rng: np.random.Generator):
        self.oracle, self.network = losses.oracle, losses.network
        self.options, self.rng = options, rng
        self.sigma = options.sigma
        self.count = 0
        self._steps_known: tuple[float, Any] = (math.nan, None)
        self.nodes = self._started(start)
        self.first_size = self.nodes.size(self.network)

    def advance(self, scales: StepScales, audit: bool = False) -> float:
        """One iteration; with ``audit``, by how much the mean state did not move along the mean estimator."""
        options, eta = self.options, self.options.eta
        if options.sigma_decay and self.count and self.count % options.sigma_decay == 0:
            self.sigma *= 0.5
            self.nodes = self._started(self.nodes.states)
        nodes, steps = self.nodes, self._steps(scales)
        moved = self.network.mix(nodes.states)
        moved -= nodes.states
        moved *= eta
        moved += nodes.states
        moved -= steps * (nodes.estimators if nodes.trackers is None else nodes.trackers)
        error = nodes.motion_error(self.network, moved, steps) if audit else 0.0
        if options.bounds is not None:
            self._clip(moved, options.bounds)
        batches = self._batches()
        fresh = self.oracle.directions(moved, batches, self.sigma, self.count + 1)
        if options.estimator == "momentum":
            fresh *= options.a * eta
            fresh += (1.0 - options.a * eta) * nodes.estimators
        elif options.estimator == "storm":
            before = self.oracle.directions(nodes.states, batches, self.sigma, self.count + 1)
            fresh += (1.0 - options.a * eta**2) * (nodes.estimators - before)
        trackers = None
        if nodes.trackers is not None:
            trackers = self.network.mix(nodes.trackers)
            trackers += fresh
            trackers -= nodes.estimators
        self.nodes = NodeStates(moved, fresh, trackers)
        self.count += 1
        return error

    def gamma_x(self, scales: StepScales) -> float:
        """Scale of the steps of ``x`` at the present penalty parameter."""
        return scales.x * self.sigma / self.options.sigma

    def has_diverged(self) -> bool:
        """Whether the estimators are out of all proportion to the first ones."""
        size = self.nodes.size(self.network)
        return not size <= _DIVERGED * (self.first_size if self.first_size > 0.0 else 1.0)

    def most_bytes(self) -> int:
        """Two vectors of ``d_x + 2 d_y`` numbers (one without tracking) per link, direction and iteration."""
        states = self.nodes.states
        vectors = 1 if self.nodes.trackers is None else 2
        return self.network.n_links * self.count * vectors * states.shape[1] * states.dtype.itemsize

    def state_dict(self) -> dict[str, Any]:
        """What it goes on from, but for what the losses and the network have counted."""
        nodes = self.nodes
        return {
            "states": copied(nodes.states),
            "estimators": copied(nodes.estimators),
            "trackers": None if nodes.trackers is None else copied(nodes.trackers),
            "iteration": self.count,
            "sigma": self.sigma,
            "first_size": self.first_size,
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; what does not fit is refused before anything has changed."""
        names = ("states", "estimators", "trackers")
        for name in names:
            own, other = _described(getattr(self.nodes, name)), _described(state[name])
            if own != other:
                raise ValueError(f"{name} of state must be {own}, got {other}")
        self.rng.bit_generator.state = state["rng"]  # refuses that of another kind
        rows = {name: None if state[name] is None else copied(state[name]) for name in names}
        if isinstance(self.nodes.states, Tensor):
            rows = {name: None if one is None else one.to(self.nodes.states.device) for name, one in rows.items()}
        self.nodes = NodeStates(**rows)
        self.count, self.sigma, self.first_size = state["iteration"], state["sigma"], state["first_size"]

    def _started(self, states: Stack) -> NodeStates:
        """Estimators and trackers from the gradients at these states."""
        estimators = self.oracle.directions(states, self._batches(), self.sigma, self.count)
        return NodeStates(states, estimators, copied(estimators) if self.options.tracking else None)

    def _steps(self, scales: StepScales) -> Vector:
        """What an entry of a state moves by, for a gradient of 1."""
        if self._steps_known[0] != self.sigma:
            states = self.nodes.states
            steps = np.empty(states.shape[1])
            gammas = (self.gamma_x(scales), scales.y, scales.z)
            for block, gamma in zip(self.oracle.blocks, gammas, strict=True):
                steps[block] = self.options.eta * gamma
            self._steps_known = (self.sigma, _like(states, steps))
        return self._steps_known[1]

    def _clip(self, states: Stack, bounds: tuple[np.ndarray, np.ndarray]) -> None:
        block = self.oracle.blocks[0]
        if isinstance(states, Tensor):
            states[:, block] = states[:, block].clamp(*(_like(states, bound) for bound in bounds))
        else:
            states[:, block] = np.clip(states[:, block], *bounds)

    def _batches(self) -> Any:
        sampler, n_local = self.options.sampler, self.network.n_local
        if sampler is None:
            return None
        batches = sampler(self.rng)
        sized = hasattr(batches, "__len__") and hasattr(batches, "__getitem__") and not isinstance(batches, Mapping)
        if not sized or len(batches) != n_local:
            got = len(batches) if sized else type(batches).__name__
            raise ValueError(f"sampler must return a batch for each of the {n_local} nodes, got {got}")
        for k, batch in enumerate(batches):
            if hasattr(batch, "__len__") and len(batch) == 0:
                raise ValueError(f"sampler must return data for every node, got none for node {k}")
        return batches


def _like(states: Stack, vector: Float[np.ndarray, " _"]) -> Vector:
    """A vector in the type, precision and device of the states."""
    if isinstance(states, Tensor):
        return torch.as_tensor(vector, dtype=states.dtype, device=states.device)
    return vector


def _described(rows: Stack | None) -> str:
    if rows is None:
        return "None"
    shape = getattr(rows, "shape", None)
    return type(rows).__name__ if shape is None else f"{type(rows).__name__} of shape {tuple(shape)} and {rows.dtype}"
