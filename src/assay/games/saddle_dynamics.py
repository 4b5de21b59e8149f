r"""First-order play of a bilinear game: five ways to take a projected gradient step, one state to advance.

- *perturbed*: the minimiser steps against ``A y + mu_x x``, then the maximiser, who has seen the new ``x``, along
  ``A'x - mu_y y``. With ``mu_x > 0 = mu_y`` this is asymmetric perturbation, with both positive the usual symmetric
  one, with both zero plain (alternating) gradient descent ascent.
- *optimistic*: both step at once along twice the last gradient minus the one before.
- *extragradient*: both step to a trial point and then, from where they were, along the gradient there.

Over simplices the loop is compiled: products run over the actions that are played, and a projection finds its
threshold by discarding actions until none is left to discard. Over other sets, and as a reference, the same steps are
written with NumPy.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
from numba import njit

from assay.games.bilinear_saddle import BilinearSaddle
from assay.games.polytope import Simplex

# A product of a dense or of a compressed matrix with a distribution, over the actions that are played.
from assay.games.regret_matching import _multiply as weighted_rows

__all__ = ["SaddlePlay", "project_in_place"]

STEPS = ("perturbed", "optimistic", "extragradient")


class SaddlePlay:
    """The state of first-order play on one game, to be advanced in pieces.

    Parameters
    ----------
    saddle : BilinearSaddle
        The game.
    step : {"perturbed", "optimistic", "extragradient"}
        How a step is taken.
    x, y : numpy.ndarray
        Where play starts.
    eta : float
        Step size.
    mu : tuple of float, default=(0, 0)
        Strengths of the perturbation of both players, for perturbed steps.
    decreasing : bool, default=False
        Whether the strengths are divided by the square root of the step's number.
    compiled : bool, optional
        Whether to run the compiled loop; by default wherever both sets are simplices.
    """

    def __init__(
        self,
        saddle: BilinearSaddle,
        step: str,
        x: np.ndarray,
        y: np.ndarray,
        *,
        eta: float,
        mu: tuple[float, float] = (0.0, 0.0),
        decreasing: bool = False,
        compiled: bool | None = None,
    ):
        on_simplices = isinstance(saddle.x_set, Simplex) and isinstance(saddle.y_set, Simplex)
        self.saddle, self.step = saddle, step
        self.x, self.y = x.copy(), y.copy()
        self.eta, self.mu, self.decreasing = eta, mu, decreasing
        self.compiled = on_simplices if compiled is None else compiled
        self.n_iter = 0
        self._last = (saddle.paid(self.y), saddle.received(self.x))
        self._by_row, self._by_column = (_arrays(matrix) for matrix in (saddle.by_row, saddle.by_column))

    def advance(self, n_iter: int) -> None:
        """Take ``n_iter`` steps."""
        if self.compiled:
            advance = {"perturbed": self._perturbed, "optimistic": self._optimistic}.get(self.step, self._extra)
            advance(n_iter)
        else:
            one = {"perturbed": self._perturbed_step, "optimistic": self._optimistic_step}.get(
                self.step, self._extra_step
            )
            for number in range(self.n_iter + 1, self.n_iter + n_iter + 1):
                one(number)
        self.n_iter += n_iter

    def strengths(self, number: int) -> tuple[float, float]:
        """Perturbation of both players in a step."""
        shrink = math.sqrt(number) if self.decreasing else 1.0
        return self.mu[0] / shrink, self.mu[1] / shrink

    # The reference.

    def _perturbed_step(self, number: int) -> None:
        game, (mu_x, mu_y) = self.saddle, self.strengths(number)
        self.x = game.x_set.project(self.x - self.eta * (game.paid(self.y) + mu_x * self.x))
        self.y = game.y_set.project(self.y + self.eta * (game.received(self.x) - mu_y * self.y))

    def _optimistic_step(self, number: int) -> None:
        game, (paid, received) = self.saddle, self._last
        self._last = game.paid(self.y), game.received(self.x)
        self.x = game.x_set.project(self.x - self.eta * (2 * self._last[0] - paid))
        self.y = game.y_set.project(self.y + self.eta * (2 * self._last[1] - received))

    def _extra_step(self, number: int) -> None:
        game = self.saddle
        trial_x = game.x_set.project(self.x - self.eta * game.paid(self.y))
        trial_y = game.y_set.project(self.y + self.eta * game.received(self.x))
        self.x = game.x_set.project(self.x - self.eta * game.paid(trial_y))
        self.y = game.y_set.project(self.y + self.eta * game.received(trial_x))

    # The compiled loops.

    def _perturbed(self, n_iter: int) -> None:
        game = self.saddle
        _play_perturbed(
            self._by_row, self._by_column, game.sign, game.p, game.q, self.x, self.y,
            self.eta, self.mu[0], self.mu[1], self.decreasing, self.n_iter, n_iter,
        )  # fmt: skip

    def _optimistic(self, n_iter: int) -> None:
        game = self.saddle
        _play_optimistic(
            self._by_row, self._by_column, game.sign, game.p, game.q, self.x, self.y,
            self._last[0], self._last[1], self.eta, n_iter,
        )  # fmt: skip

    def _extra(self, n_iter: int) -> None:
        game = self.saddle
        _play_extragradient(
            self._by_row, self._by_column, game.sign, game.p, game.q, self.x, self.y, self.eta, n_iter
        )  # fmt: skip


def _arrays(matrix: np.ndarray | sp.csr_array) -> tuple[np.ndarray, ...]:
    """What the compiled products take."""
    return (matrix.indptr, matrix.indices, matrix.data) if sp.issparse(matrix) else (matrix,)


@njit(cache=True)
def project_in_place(point):
    """Replace a vector by the closest distribution.

    The threshold that leaves mass 1 on the entries above it falls below the entries that are positive at the end only;
    it rises as those below it are discarded, and stands still after a few rounds.
    """
    largest = point[0]
    for i in range(1, point.size):
        largest = max(largest, point[i])
    threshold, kept = -1.0 - 1e-9, point.size + 1  # nothing that is 1 below the largest entry remains
    while True:
        total, count = 0.0, 0
        for i in range(point.size):
            shifted = point[i] - largest
            if shifted > threshold:
                total += shifted
                count += 1
        if count >= kept:  # by rounding the threshold may also fall a little, and the count rise again
            break
        kept = count
        threshold = (total - 1.0) / count
    for i in range(point.size):
        point[i] = max(point[i] - largest - threshold, 0.0)


@njit(cache=True)
def _play_perturbed(by_row, by_column, sign, p, q, x, y, eta, mu_x, mu_y, decreasing, done, n_iter):
    paid, received = np.empty_like(x), np.empty_like(y)
    active = np.empty(max(x.size, y.size), dtype=np.int64)
    for number in range(done + 1, done + n_iter + 1):
        shrink = math.sqrt(number) if decreasing else 1.0
        weighted_rows(by_column, y, active, paid)
        keep = 1.0 - eta * mu_x / shrink
        for i in range(x.size):
            x[i] = keep * x[i] - eta * (sign * paid[i] + p[i])
        project_in_place(x)
        weighted_rows(by_row, x, active, received)
        keep = 1.0 - eta * mu_y / shrink
        for j in range(y.size):
            y[j] = keep * y[j] + eta * (sign * received[j] + q[j])
        project_in_place(y)


@njit(cache=True)
def _play_optimistic(by_row, by_column, sign, p, q, x, y, last_paid, last_received, eta, n_iter):
    paid, received = np.empty_like(x), np.empty_like(y)
    active = np.empty(max(x.size, y.size), dtype=np.int64)
    for _ in range(n_iter):
        weighted_rows(by_column, y, active, paid)
        weighted_rows(by_row, x, active, received)
        for i in range(x.size):
            now = sign * paid[i] + p[i]
            x[i] -= eta * (2.0 * now - last_paid[i])
            last_paid[i] = now
        for j in range(y.size):
            now = sign * received[j] + q[j]
            y[j] += eta * (2.0 * now - last_received[j])
            last_received[j] = now
        project_in_place(x)
        project_in_place(y)


@njit(cache=True)
def _play_extragradient(by_row, by_column, sign, p, q, x, y, eta, n_iter):
    paid, received = np.empty_like(x), np.empty_like(y)
    trial_x, trial_y = np.empty_like(x), np.empty_like(y)
    active = np.empty(max(x.size, y.size), dtype=np.int64)
    for _ in range(n_iter):
        weighted_rows(by_column, y, active, paid)
        weighted_rows(by_row, x, active, received)
        for i in range(x.size):
            trial_x[i] = x[i] - eta * (sign * paid[i] + p[i])
        for j in range(y.size):
            trial_y[j] = y[j] + eta * (sign * received[j] + q[j])
        project_in_place(trial_x)
        project_in_place(trial_y)
        weighted_rows(by_column, trial_y, active, paid)
        weighted_rows(by_row, trial_x, active, received)
        for i in range(x.size):
            x[i] -= eta * (sign * paid[i] + p[i])
        for j in range(y.size):
            y[j] += eta * (sign * received[j] + q[j])
        project_in_place(x)
        project_in_place(y)
