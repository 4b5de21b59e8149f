r"""Ascent on the dual of transport to finitely many targets, and couplings made from where it ends.

For a source distribution ``p``, targets of masses ``q`` and costs ``c`` the dual over the potentials
:math:`u(x) = \min_j c(x, y_j) - b_j` has one level only,

.. math:: D(b) = \sum_i p_i \min_j (c_{ij} - b_j) + \sum_j q_j b_j \;\le\; \min_{P \in \Pi(p, q)} \langle c, P \rangle,

and every ``b`` is a lower bound. ``D`` is concave with kinks; the ascent follows its smooth neighbour, in which the
minimum is :math:`-\log \sum_j e^{-T (c_{ij} - b_j)} / T`. The gradient is the difference between ``q`` and what the
targets would receive if every source chose softly, and at high temperature all but a few targets of a source have a
weight of zero to working precision: one pass finds the best target, and exponentials are taken of its rivals only.

The weights of the soft choice, rounded to the marginals, are a coupling and with it an upper bound. What the rounding
has to move is sent where the reduced cost is least, which costs less than spreading it in proportion to what is
missing.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numba import njit

__all__ = ["Adam", "dual_value_and_slope", "fill_rows", "soft_plan_rows"]

# exp(-36) is below the last bit of 1.
_NEGLIGIBLE = 36.0

# Sums may be reordered, which is what lets the search for the minimum run on vector units.
_FAST = {"reassoc", "contract", "nsz", "nnan"}


class Adam:
    """Adam for one vector, with the step size given at each step.

    Parameters
    ----------
    size : int
        Length of the vector.

    References
    ----------
    D. P. Kingma, J. Ba. Adam: A Method for Stochastic Optimization. ICLR 2015.
    """

    def __init__(self, size: int):
        self.first, self.second, self.steps = np.zeros(size), np.zeros(size), 0

    def step(self, slope: Float[np.ndarray, " n"], lr: float) -> Float[np.ndarray, " n"]:
        """What is to be added to the vector in order to climb."""
        self.steps += 1
        self.first += 0.1 * (slope - self.first)
        self.second += 0.001 * (slope * slope - self.second)
        first = self.first / (1.0 - 0.9**self.steps)
        second = self.second / (1.0 - 0.999**self.steps)
        return lr * first / np.maximum(np.sqrt(second), 1e-300)


@njit(cache=True, fastmath=_FAST)
def _least(costs, b, reduced):
    low = np.inf
    for j in range(len(b)):
        reduced[j] = costs[j] - b[j]
        low = min(low, reduced[j])
    return low


@njit(cache=True)
def _dual_pass(cost, p, b, temperature, received):
    n, m = cost.shape
    reduced, chosen, weight = np.empty(m), np.empty(m, np.int64), np.empty(m)
    reach = _NEGLIGIBLE / temperature
    hard, soft = 0.0, 0.0
    for i in range(n):
        low = _least(cost[i], b, reduced)
        count, total = 0, 0.0
        for j in range(m):
            if reduced[j] <= low + reach:
                chosen[count] = j
                weight[count] = np.exp(-temperature * (reduced[j] - low))
                total += weight[count]
                count += 1
        for k in range(count):
            received[chosen[k]] += p[i] * (weight[k] / total)
        hard += p[i] * low
        soft += p[i] * (low - np.log(total) / temperature)
    return hard, soft


def dual_value_and_slope(
    cost: Float[np.ndarray, "n m"],
    p: Float[np.ndarray, " n"],
    q: Float[np.ndarray, " m"],
    b: Float[np.ndarray, " m"],
    temperature: float,
) -> tuple[float, float, Float[np.ndarray, " m"]]:
    """Dual at ``b``, its smooth neighbour, and the gradient of the latter.

    Parameters
    ----------
    cost : numpy.ndarray of shape (n, m)
        Costs.
    p, q : numpy.ndarrays of shapes (n,) and (m,)
        Masses of the sources and the targets.
    b : numpy.ndarray of shape (m,)
        Intercepts.
    temperature : float
        Of the soft minimum.

    Returns
    -------
    hard, soft : float
        ``soft`` is at most ``hard``, and at least ``hard - log(m) / temperature``.
    slope : numpy.ndarray of shape (m,)
        ``q`` less what the targets receive.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.semidual_ascent import dual_value_and_slope
    >>> cost, half = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.5, 0.5])
    >>> hard, soft, slope = dual_value_and_slope(cost, half, half, np.zeros(2), 100.0)
    >>> hard, soft, slope.tolist()
    (0.0, 0.0, [0.0, 0.0])
    """
    received = np.zeros(len(b))
    hard, soft = _dual_pass(cost, p, b, temperature, received)
    more = float(q @ b)
    return hard + more, soft + more, q - received


@njit(cache=True)
def soft_plan_rows(
    cost: Float[np.ndarray, "n m"],
    p: Float[np.ndarray, " n"],
    b: Float[np.ndarray, " m"],
    temperature: float,
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " entries"], Float[np.ndarray, " entries"]]:
    """Rows of the soft plan as numbers of entries, columns and masses. An infinite temperature splits ties evenly."""
    n, m = cost.shape
    reduced = np.empty(m)
    reach = _NEGLIGIBLE / temperature
    counts = np.zeros(n, np.int64)
    for i in range(n):
        low = _least(cost[i], b, reduced)
        for j in range(m):
            counts[i] += reduced[j] <= low + reach
    columns, mass = np.empty(counts.sum(), np.int64), np.empty(counts.sum())
    at = 0
    for i in range(n):
        low = _least(cost[i], b, reduced)
        first, total = at, 0.0
        for j in range(m):
            if reduced[j] <= low + reach:
                columns[at] = j
                excess = reduced[j] - low
                mass[at] = np.exp(-temperature * excess) if excess > 0.0 else 1.0
                total += mass[at]
                at += 1
        mass[first:at] *= p[i] / total
    return counts, columns, mass


@njit(cache=True)
def fill_rows(
    cost: Float[np.ndarray, "n m"],
    b: Float[np.ndarray, " m"],
    missing: Float[np.ndarray, " n"],
    room: Float[np.ndarray, " m"],
) -> tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " entries"], Float[np.ndarray, " entries"]]:
    """Send what the rows miss to the columns with room, each to those of least reduced cost. ``room`` is used up."""
    n, m = cost.shape
    rows, columns, mass = np.empty(n + m, np.int64), np.empty(n + m, np.int64), np.empty(n + m)
    count = 0
    for i in range(n):
        left = missing[i]
        while left > 0.0:
            low, at = np.inf, -1
            for j in range(m):
                if room[j] > 0.0 and cost[i, j] - b[j] < low:
                    low, at = cost[i, j] - b[j], j
            if at < 0:  # what is left is rounding
                break
            sent = min(left, room[at])
            rows[count], columns[count], mass[count] = i, at, sent
            count += 1
            left -= sent
            room[at] -= sent
    return rows[:count], columns[:count], mass[:count]
