"""What learning from a log of a Markov game returns: policies, values, and what the log says about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.games.offline_certificate import Coverage
from assay.games.stage_equilibrium import iterations_needed
from assay.result import Result
from assay.validation import check_integer

__all__ = ["OfflineNashResult"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class OfflineNashResult(Result):
    """Policies learned from a log, and what the log says about them.

    Parameters
    ----------
    mu : numpy.ndarray of shape (horizon, n_states, A)
        Policy of the max player.
    nu : numpy.ndarray of shape (horizon, n_states, B)
        Policy of the min player.
    V : numpy.ndarray of shape (horizon + 1, n_states)
        Estimated regularised values; the last row is 0.
    Q_hat : list of numpy.ndarray of shape (n_states, A, B)
        Estimated action values, one table per step.
    beta : numpy.ndarray of shape (horizon,)
        Weights of the pull towards the references.
    mu_ref, nu_ref : numpy.ndarray of shape (horizon, n_states, n_actions)
        References that were used.
    opt_gap_per_step : numpy.ndarray of shape (horizon,)
        Regularised gap of the worst stage game of each step, in closed form.
    n_iter_per_step : numpy.ndarray of shape (horizon,)
        Updates in the state that took the most.
    half_range_per_step : numpy.ndarray of shape (horizon,)
        Half of the range of the action values in the state where it is largest.
    coverage : Coverage
        What of the game is in the log.
    n_samples : numpy.ndarray of shape (horizon,)
        Samples per step.
    schedule : {"optimistic", "constant", "harmonic"}
        How the stage games were solved.
    split_half_gap : float
        Regularised gap of policies learned on one half of the log in the game of the other half: an estimate, with the
        noise of half the data on both sides. nan if it was not computed.
    certificates : tuple of Certificate
        The gap of the worst stage game (``rose``); the gap in the game that the log describes (for means of cells); the
        contraction of self-play (``sos_md`` with a constant step and exact gains); coverage (for numbered states); the
        estimate from two halves.
    history : dict of str to numpy.ndarray
        Columns ``step`` (from ``horizon`` down to 1), ``iteration``, ``gap`` (of the worst stage game) and ``seconds``.
    """

    mu: Float[np.ndarray, "steps states rows"]
    nu: Float[np.ndarray, "steps states columns"]
    V: Float[np.ndarray, "steps_and_end states"]
    Q_hat: list = field(repr=False)
    beta: Float[np.ndarray, " steps"]
    mu_ref: Float[np.ndarray, "steps states rows"]
    nu_ref: Float[np.ndarray, "steps states columns"]
    opt_gap_per_step: Float[np.ndarray, " steps"]
    n_iter_per_step: Int[np.ndarray, " steps"]
    half_range_per_step: Float[np.ndarray, " steps"] = field(repr=False)
    coverage: Coverage
    n_samples: Int[np.ndarray, " steps"]
    schedule: str
    split_half_gap: float
    eta: float | None = field(default=None, repr=False)
    policy_at: Any = field(default=None, repr=False)

    @property
    def opt_gap(self) -> float:
        """Sum over the steps of the gap of the worst stage game."""
        return float(self.opt_gap_per_step.sum())

    def mu_policy(self, h: int, states: ArrayLike) -> np.ndarray:
        """Policy of the max player at a step and in states, new vectors of features included.

        Parameters
        ----------
        h : int
            Step, from 1.
        states : int or array_like of int, or array_like of shape (n, n_features)
            Numbers of states, or features where the log has features.

        Returns
        -------
        numpy.ndarray of shape (A,) or (n, A)

        Raises
        ------
        TypeError, ValueError
            If there is no such step or state.
        """
        return self._policy(0, h, states)

    def nu_policy(self, h: int, states: ArrayLike) -> np.ndarray:
        """Policy of the min player at a step and in states; see :meth:`mu_policy`.

        Parameters
        ----------
        h : int
            Step, from 1.
        states : int or array_like of int, or array_like of shape (n, n_features)
            Numbers of states, or features where the log has features.

        Returns
        -------
        numpy.ndarray of shape (B,) or (n, B)
        """
        return self._policy(1, h, states)

    def _policy(self, player: int, h: int, states: Any) -> np.ndarray:
        h = check_integer(h, "h", minimum=1)
        horizon, n_states = self.mu.shape[:2]
        if h > horizon:
            raise ValueError(f"h must be at most {horizon}, got {h}")
        if self.policy_at is not None:
            return self.policy_at(h - 1, states)[player]
        numbers = np.asarray(states)
        if numbers.dtype.kind not in "iu":
            raise TypeError(f"states must be integers, got dtype {numbers.dtype}")
        if numbers.size and (numbers.min() < 0 or numbers.max() >= n_states):
            raise ValueError(f"states must be from 0 to {n_states - 1}, got {numbers.min()} to {numbers.max()}")
        return (self.mu, self.nu)[player][h - 1, numbers].copy()

    def iterations_needed(self, tol: float) -> int:
        """Updates of self-play after which the relative entropy to every stage equilibrium is ``tol`` of the start's.

        Parameters
        ----------
        tol : float
            Factor below 1.

        Returns
        -------
        int
            Largest over the steps, with the step size of this run, or the proven one after :func:`rose`.
        """
        needed = [
            iterations_needed(tol, float(radius), float(beta), self.eta)
            for radius, beta in zip(self.half_range_per_step, self.beta, strict=True)
        ]
        return max(needed)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-ready types, without the function for new states."""
        return {name: content for name, content in super().to_dict().items() if name != "policy_at"}
