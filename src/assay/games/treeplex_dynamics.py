r"""Dilated gradient play of a game tree: the steps of :mod:`assay.games.saddle_dynamics` over treeplexes.

A step minimises the linear part of the loss plus the Bregman distance of the dilated regulariser, which is one pass
from the leaves up (:mod:`assay.games.treeplex`); the perturbation is the same regulariser, so it only shrinks a
coefficient. The loop is compiled; the reference takes the same steps information set by information set.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numba import njit

from assay.games.treeplex import Treeplex, nearest_local, write_plan, write_psi_gradient

__all__ = ["TreePlay"]


class TreePlay:
    """The state of dilated gradient play, to be advanced in pieces.

    Parameters
    ----------
    trees : tuple of Treeplex
        Of the minimiser and of the maximiser.
    by_row, by_column : scipy.sparse.csr_array
        What the minimiser pays, up to the sign, and its transpose.
    sign : float
    step : {"perturbed", "optimistic"}
        Alternating steps with perturbations ``mu`` of both players, or simultaneous optimistic steps.
    eta : float
        Step size.
    mu : tuple of float, default=(0, 0)
    compiled : bool, default=True
        Whether to run the compiled loop.
    """

    def __init__(
        self,
        trees: tuple[Treeplex, Treeplex],
        by_row: sp.csr_array,
        by_column: sp.csr_array,
        sign: float,
        step: str,
        *,
        eta: float = 1.0,
        mu: tuple[float, float] = (0.0, 0.0),
        compiled: bool = True,
    ):
        self.trees, self.by_row, self.by_column, self.sign = trees, by_row, by_column, sign
        self.step, self.eta, self.mu, self.compiled = step, eta, mu, compiled
        self.local_x, self.local_y = trees[0].uniform, trees[1].uniform
        self.x, self.y = trees[0].plan(self.local_x), trees[1].plan(self.local_y)
        self._last = (self.paid(), self.received())
        self._rows = (by_row.indptr, by_row.indices, by_row.data)
        self._columns = (by_column.indptr, by_column.indices, by_column.data)

    def paid(self) -> np.ndarray:
        """Gradient for the minimiser."""
        return self.sign * (self.by_row @ self.y)

    def received(self) -> np.ndarray:
        """Gradient for the maximiser."""
        return self.sign * (self.by_column @ self.x)

    def advance(self, n_iter: int) -> None:
        """Take ``n_iter`` steps."""
        if not self.compiled:
            for _ in range(n_iter):
                self._plain_step()
        elif self.step == "perturbed":
            _play_perturbed(
                self.trees[0].arrays, self.trees[1].arrays, self._rows, self._columns, self.sign,
                self.local_x, self.local_y, self.x, self.y, self.eta, self.mu[0], self.mu[1], n_iter,
            )  # fmt: skip
        else:
            _play_optimistic(
                self.trees[0].arrays, self.trees[1].arrays, self._rows, self._columns, self.sign,
                self.local_x, self.local_y, self.x, self.y, self._last[0], self._last[1], self.eta, n_iter,
            )  # fmt: skip

    def gap(self, mu: float) -> float:
        """Duality gap in the game in which the minimiser also pays ``mu`` times the dilated regulariser."""
        tree_x, tree_y = self.trees
        received, paid = self.received(), self.paid()
        most = -tree_y.least(-received) + mu * tree_x.psi(self.local_x, self.x)
        return most - mu * tree_x.prox(paid / mu)[1]

    def _plain_step(self) -> None:
        tree_x, tree_y = self.trees
        gradient_x, gradient_y = tree_x.plain_psi_gradient(self.local_x), tree_y.plain_psi_gradient(self.local_y)
        if self.step == "perturbed":
            loss = self.eta * self.paid() - (1.0 - self.eta * self.mu[0]) * gradient_x
            self.local_x = tree_x.plain_prox(loss)[0]
            self.x = tree_x.plain_plan(self.local_x)
            loss = -self.eta * self.received() - (1.0 - self.eta * self.mu[1]) * gradient_y
            self.local_y = tree_y.plain_prox(loss)[0]
            self.y = tree_y.plain_plan(self.local_y)
            return
        before, self._last = self._last, (self.paid(), self.received())
        self.local_x = tree_x.plain_prox(self.eta * (2 * self._last[0] - before[0]) - gradient_x)[0]
        self.local_y = tree_y.plain_prox(-self.eta * (2 * self._last[1] - before[1]) - gradient_y)[0]
        self.x, self.y = tree_x.plain_plan(self.local_x), tree_y.plain_plan(self.local_y)


@njit(cache=True)
def _product(rows, vector, out):
    """``out = matrix @ vector`` for a matrix in compressed rows."""
    indptr, indices, data = rows
    for i in range(out.size):
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            total += data[k] * vector[indices[k]]
        out[i] = total


@njit(cache=True)
def _step(tree, local, plan, loss, gradient, keep):
    """Minimise ``loss @ plan`` plus ``psi`` less its linear part at the last strategies, ``keep`` times."""
    parent, start, length = tree
    write_psi_gradient(parent, start, length, local, gradient)
    for s in range(loss.size):
        loss[s] -= keep * gradient[s]
    nearest_local(parent, start, length, loss, local)
    write_plan(parent, start, length, local, plan)


@njit(cache=True)
def _play_perturbed(tree_x, tree_y, rows, columns, sign, local_x, local_y, x, y, eta, mu_x, mu_y, n_iter):
    loss_x, loss_y = np.empty_like(x), np.empty_like(y)
    gradient_x, gradient_y = np.empty_like(x), np.empty_like(y)
    for _ in range(n_iter):
        _product(rows, y, loss_x)
        for s in range(x.size):
            loss_x[s] *= sign * eta
        _step(tree_x, local_x, x, loss_x, gradient_x, 1.0 - eta * mu_x)
        _product(columns, x, loss_y)
        for s in range(y.size):
            loss_y[s] *= -sign * eta
        _step(tree_y, local_y, y, loss_y, gradient_y, 1.0 - eta * mu_y)


@njit(cache=True)
def _play_optimistic(
    tree_x, tree_y, rows, columns, sign, local_x, local_y, x, y, last_paid, last_received, eta, n_iter
):
    loss_x, loss_y = np.empty_like(x), np.empty_like(y)
    gradient_x, gradient_y = np.empty_like(x), np.empty_like(y)
    for _ in range(n_iter):
        _product(rows, y, loss_x)
        _product(columns, x, loss_y)
        for s in range(x.size):
            now = sign * loss_x[s]
            loss_x[s] = eta * (2.0 * now - last_paid[s])
            last_paid[s] = now
        for s in range(y.size):
            now = sign * loss_y[s]
            loss_y[s] = -eta * (2.0 * now - last_received[s])
            last_received[s] = now
        _step(tree_x, local_x, x, loss_x, gradient_x, 1.0)
        _step(tree_y, local_y, y, loss_y, gradient_y, 1.0)
