"""Reference policies for a log: given, uniform, or cloned from the behaviour in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from assay.games.markov_policies import as_references
from assay.games.offline_data import OfflineGameData
from assay.validation import check_real

__all__ = ["Reference", "reference_policy"]


class Reference(NamedTuple):
    """A reference policy of one player: at the states of the log, and at any vectors of features."""

    table: Float[np.ndarray, "steps states actions"]
    at: Callable[[int, np.ndarray], np.ndarray] | None = None


def reference_policy(policy: Any, name: str, data: OfflineGameData, player: int, smoothing: float) -> Reference:
    """Check a reference policy, or estimate it.

    Parameters
    ----------
    policy : None, "uniform", array_like or callable
        None clones the behaviour in the log, with one added to every count. An array has the probabilities in its last
        axis: (n_actions,), (n_states, n_actions) or (horizon, n_states, n_actions); for states that are vectors of
        features (n_actions,), or a function ``policy(h, features)`` that returns an array of shape (n, n_actions).
    name : str
        Name of the argument, for messages.
    data : OfflineGameData
        The log.
    player : {0, 1}
        Whose policy.
    smoothing : float
        Share of the uniform policy that is mixed in, in [0, 1).

    Returns
    -------
    Reference

    Raises
    ------
    TypeError, ValueError
        If it is none of these, or has zeros after smoothing.
    """
    smoothing = check_real(smoothing, "ref_smoothing", minimum=0.0, below=1.0)
    n_actions = data.n_actions[player]
    shape = (data.horizon, data.n_states, n_actions)
    if isinstance(policy, str) and policy != "uniform":
        raise ValueError(f"{name} must be None, 'uniform', an array or a function, got {policy!r}")
    if callable(policy):
        if data.state_features is None:
            raise TypeError(f"{name} must be None, 'uniform' or an array when states are numbers, got a function")
        at = _AtFeatures(policy, name, n_actions, smoothing)
        return Reference(np.stack([at(step, data.state_features) for step in range(data.horizon)]), at)
    if policy is None:
        given: Any = _cloned(data, player)
    else:
        given = None if isinstance(policy, str) else policy
        if data.state_features is not None and given is not None and np.ndim(given) != 1:
            raise ValueError(f"{name} must be a vector or a function when states are vectors of features")
    table = as_references(given, name, shape, smoothing=smoothing)
    if data.state_features is None:
        return Reference(table)
    return Reference(table, _Everywhere(table[:, 0]))


@dataclass(frozen=True)
class _AtFeatures:
    """A function of the user's, checked at every call."""

    policy: Callable[[int, np.ndarray], Any]
    name: str
    n_actions: int
    smoothing: float

    def __call__(self, step: int, states: np.ndarray) -> np.ndarray:
        found = self.policy(step + 1, states)
        return as_references(found, f"{self.name}(h, s)", (len(states), self.n_actions), smoothing=self.smoothing)


@dataclass(frozen=True)
class _Everywhere:
    """One distribution per step, whatever the state."""

    policies: Float[np.ndarray, "steps actions"]

    def __call__(self, step: int, states: np.ndarray) -> np.ndarray:
        return np.repeat(self.policies[step][None], len(states), axis=0)


def _cloned(data: OfflineGameData, player: int) -> np.ndarray:
    """Frequencies of actions with one added to each count; of all states together if states are features."""
    n_actions = data.n_actions[player]
    counts = np.stack([data.counts(step).sum(axis=2 - player) for step in range(data.horizon)]).astype(float)
    if data.state_features is not None:
        counts = np.repeat(counts.sum(axis=1, keepdims=True), data.n_states, axis=1)
    return (counts + 1) / (counts.sum(axis=-1, keepdims=True) + n_actions)
