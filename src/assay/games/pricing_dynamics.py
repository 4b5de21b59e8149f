r"""How sellers move: each looks at what it would earn at every price of its grid and changes its schedule a little.

All sellers move at once. What they look at is the auxiliary game in which a seller draws one price with the fractions
of its schedule as probabilities: its payoff is linear in the own schedule, so it has a fixed point, and near one a
schedule is within a factor of two of the best uniform price.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from jaxtyping import Float

__all__ = ["DYNAMICS", "Dynamics", "FictitiousPlay", "InertialResponse", "RegretMatching", "best_prices"]

_ROUNDING = 1e-12


class Dynamics(Protocol):
    """A rule by which schedules move."""

    play: np.ndarray
    """Schedules that the sellers have now."""

    profile: np.ndarray
    """Schedules that the rule proposes as its answer."""

    def step(self, deviation: np.ndarray) -> float:
        """Move, knowing what every seller would earn at each price; return the largest change of ``profile``."""


def best_prices(deviation: Float[np.ndarray, "sellers prices"]) -> np.ndarray:
    """Position of the best price of every seller, the lowest of those that are equal within rounding."""
    return np.argmax(deviation >= deviation.max(axis=1, keepdims=True) * (1.0 - _ROUNDING), axis=1)


class InertialResponse:
    """Move a share of every schedule to the best price, the same share in every round.

    Parameters
    ----------
    start : numpy.ndarray of shape (n_sellers, n_prices)
        Schedules.
    lr : float
        The share.
    """

    def __init__(self, start: Float[np.ndarray, "sellers prices"], lr: float) -> None:
        self.play = start
        self.lr = lr

    @property
    def profile(self) -> np.ndarray:
        """Present schedules."""
        return self.play

    def step(self, deviation: Float[np.ndarray, "sellers prices"]) -> float:
        """Move; return the largest change of a fraction."""
        return self._move(deviation, self.lr)

    def _move(self, deviation: np.ndarray, share: float) -> float:
        moved = (1.0 - share) * self.play
        moved[np.arange(moved.shape[0]), best_prices(deviation)] += share
        change = float(np.abs(moved - self.play).max())
        self.play = moved
        return change


class FictitiousPlay(InertialResponse):
    """Best price against the mean of the past: the share is 1 / (t + 1) in round t. It may cycle.

    Parameters
    ----------
    start : numpy.ndarray of shape (n_sellers, n_prices)
        Schedules.
    lr : float
        Not used.
    """

    def __init__(self, start: Float[np.ndarray, "sellers prices"], lr: float) -> None:
        super().__init__(start, lr)
        self.round = 0

    def step(self, deviation: Float[np.ndarray, "sellers prices"]) -> float:
        """Move; return the largest change of a fraction."""
        self.round += 1
        return self._move(deviation, 1.0 / (self.round + 1.0))


class RegretMatching:
    """Fractions in proportion to how much more each price would have earned so far; the answer is their mean.

    Parameters
    ----------
    start : numpy.ndarray of shape (n_sellers, n_prices)
        Schedules; also those of a seller without regrets.
    lr : float
        Not used.
    """

    def __init__(self, start: Float[np.ndarray, "sellers prices"], lr: float) -> None:
        self.start = self.play = self.profile = start
        self.regret = np.zeros_like(start)
        self.round = 0

    def step(self, deviation: Float[np.ndarray, "sellers prices"]) -> float:
        """Move; return the largest change of a mean fraction."""
        self.round += 1
        earned = np.einsum("jk,jk->j", self.play, deviation)
        self.regret += np.where(self.start > 0, deviation - earned[:, None], 0.0)
        positive = np.maximum(self.regret, 0.0)
        total = positive.sum(axis=1, keepdims=True)
        self.play = np.where(total > 0, positive / np.where(total > 0, total, 1.0), self.start)
        mean = self.profile + (self.play - self.profile) / (self.round + 1.0)
        change = float(np.abs(mean - self.profile).max())
        self.profile = mean
        return change


DYNAMICS = {"inertial": InertialResponse, "fictitious": FictitiousPlay, "regret": RegretMatching}
