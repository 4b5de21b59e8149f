"""Checks of policies and reference policies of Markov games."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.validation import as_float_array

__all__ = ["as_betas", "as_references"]

_MASS_TOLERANCE = 1e-6


def as_references(
    policy: ArrayLike | None,
    name: str,
    shape: tuple[int, ...],
    *,
    full_support: bool = True,
    smoothing: float = 0.0,
) -> Float[np.ndarray, "*states actions"]:
    """Check a policy and spread it over states and steps.

    Parameters
    ----------
    policy : array_like or None
        Probabilities of actions in the last axis; leading axes of ``shape`` may be missing. None is uniform.
    name : str
        Name of the argument, for the message.
    shape : tuple of int
        What to spread it to: ``(n_states, n_actions)`` or ``(horizon, n_states, n_actions)``.
    full_support : bool, default=True
        Whether zeros are refused.
    smoothing : float, default=0.0
        Share of the uniform policy that is mixed in first.

    Returns
    -------
    numpy.ndarray of shape ``shape``
        A new array, rescaled to mass 1.

    Raises
    ------
    TypeError, ValueError
        If the shape does not fit, a probability is negative, they do not sum to 1 within 1e-6, or one is 0 (or so small
        that its reciprocal overflows).
    """
    if policy is None:
        return np.full(shape, 1.0 / shape[-1])
    array = as_float_array(policy, name, ndim=range(1, len(shape) + 1))
    if array.shape != shape[len(shape) - array.ndim :]:
        accepted = " or ".join(str(shape[k:]) for k in range(len(shape) - 1, -1, -1))
        raise ValueError(f"{name} must be of shape {accepted}, got {array.shape}")
    if array.min() < 0:
        raise ValueError(f"{name} must be non-negative, got a minimum of {array.min():g}")
    mass = array.sum(axis=-1, keepdims=True)
    worst = float(mass.flat[abs(mass - 1).argmax()])
    if abs(worst - 1) > _MASS_TOLERANCE:
        raise ValueError(f"{name} must have probabilities that sum to 1 (within 1e-6), got a sum of {worst:.9g}")
    array = (1 - smoothing) * (array / mass) + smoothing / shape[-1]
    if full_support and array.min() < 1e-300:
        raise ValueError(
            f"{name} must give every action a positive probability, got a minimum of {array.min():g}; "
            "mix in a share of the uniform policy"
        )
    return np.array(np.broadcast_to(array, shape))


def as_betas(beta: ArrayLike, horizon: int) -> Float[np.ndarray, " steps"]:
    """Weights of the regularisation, one per step, from one number or a list."""
    array = as_float_array(beta, "beta", ndim=(0, 1))
    if isinstance(beta, bool | np.bool_):
        raise TypeError(f"beta must be a number or one per step, got {beta!r}")
    if array.ndim and array.shape != (horizon,):
        raise ValueError(f"beta must be a number or one per step, {horizon} of them, got {array.shape[0]}")
    if array.min() <= 0:
        raise ValueError(f"beta must be greater than 0, got {array.min():g}")
    return np.array(np.broadcast_to(array, (horizon,)))
