r"""The strategies of one player of a game tree: treeplexes, and what first-order play does on them.

With perfect recall a mixed strategy is a *realisation plan*: a number for every sequence of own actions, 1 for the
empty one, the numbers of an information set's actions adding up to that of the sequence which leads there. Its local
(*behaviour*) strategies ``b_j`` are distributions, one per information set ``j``. Sums over the tree go from the
leaves up, plans from the root down, each in one pass, since sequences are numbered so that parents come first.

The dilated regulariser ``psi(x) = sum_j x_{p(j)} |b_j|^2 / 2`` weighs the squared norm of every local strategy with the
probability of getting there. It is convex, and linear functions plus ``psi`` are minimised in one pass from the leaves
up: project, then hand the value to the sequence above. The local strategies are kept beside the plan, so that they are
defined where the plan never goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numba import njit

from assay.games.matrix_game import nearest_distribution
from assay.games.saddle_dynamics import project_in_place
from assay.validation import check_integer

__all__ = ["Treeplex"]


@dataclass(frozen=True, eq=False)
class Treeplex:
    """Information sets of one player, as flat arrays in an order in which parents come first.

    Sequence 0 is the empty one; the actions of information set ``j`` are the sequences ``start[j]`` to
    ``start[j] + length[j] - 1``.

    Parameters
    ----------
    parent : numpy.ndarray of shape (n_infosets,)
        Sequence that leads to each information set.
    start, length : numpy.ndarray of shape (n_infosets,)
        First sequence and number of actions of each.

    Examples
    --------
    Two actions at the root, and two more after the second:

    >>> import numpy as np
    >>> from assay.games.treeplex import Treeplex
    >>> tree = Treeplex.from_actions([0, 2], [2, 2])
    >>> tree.size, tree.plan(np.array([1, 0.25, 0.75, 0.5, 0.5]))
    (5, array([1.   , 0.25 , 0.75 , 0.375, 0.375]))
    """

    parent: Int[np.ndarray, " infosets"]
    start: Int[np.ndarray, " infosets"]
    length: Int[np.ndarray, " infosets"]

    @classmethod
    def from_actions(cls, parents: Any, actions: Any, name: str = "parents") -> Treeplex:
        """From the sequence that leads to each information set, and its number of actions.

        Raises
        ------
        TypeError, ValueError
            If they are no integers, or a parent is not a sequence of an earlier information set.
        """
        for which, given in ((name, parents), ("actions", actions)):
            if not hasattr(given, "__iter__"):
                raise TypeError(f"{which} must be a sequence of integers, got {type(given).__name__}")
        parents, actions = list(parents), list(actions)
        if len(parents) != len(actions):
            raise ValueError(f"{name} must have one entry per information set, {len(actions)}, got {len(parents)}")
        length = np.array([check_integer(n, f"actions[{j}]", minimum=1) for j, n in enumerate(actions)], dtype=np.int64)
        parent = np.array([check_integer(s, f"{name}[{j}]", minimum=0) for j, s in enumerate(parents)], dtype=np.int64)
        start = np.concatenate(([1], 1 + np.cumsum(length)[:-1])).astype(np.int64)[: len(length)]
        late = np.flatnonzero(parent >= start)
        if late.size:
            j = int(late[0])
            raise ValueError(
                f"{name} must be sequences of earlier information sets, got {parent[j]} at information set {j}, whose "
                f"own sequences start at {start[j]}"
            )
        return cls(parent, start, length)

    @property
    def size(self) -> int:
        """Number of sequences, the empty one included."""
        return 1 + int(self.length.sum())

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the compiled passes take."""
        return self.parent, self.start, self.length

    @property
    def uniform(self) -> Float[np.ndarray, " sequences"]:
        """Uniform local strategies, with a 1 for the empty sequence."""
        local = np.ones(self.size)
        local[1:] = np.repeat(1.0 / self.length, self.length)
        return local

    def plan(self, local: np.ndarray) -> Float[np.ndarray, " sequences"]:
        """Realisation plan of local strategies."""
        plan = np.empty(self.size)
        write_plan(*self.arrays, np.ascontiguousarray(local, dtype=np.float64), plan)
        return plan

    def local(self, plan: np.ndarray) -> Float[np.ndarray, " sequences"]:
        """Local strategies of a realisation plan; uniform where the plan never goes."""
        local = self.uniform
        for parent, start, length in zip(*self.arrays, strict=True):
            mass = plan[start : start + length].sum()
            if plan[parent] > 0 and mass > 0:
                local[start : start + length] = plan[start : start + length] / mass
        return local

    def violation(self, plan: np.ndarray) -> float:
        """How far a vector is from being a realisation plan: the largest violation of a constraint; nan for nan."""
        if not np.all(np.isfinite(plan)):
            return float("nan")
        worst = max(abs(float(plan[0]) - 1.0), -float(plan.min()))
        if self.length.size:
            worst = max(worst, float(np.abs(np.add.reduceat(plan, self.start) - plan[self.parent]).max()))
        return worst

    def directions(self, vectors: np.ndarray) -> Float[np.ndarray, ...]:
        """Projection of a vector, or of the columns of a matrix, on the directions in which plans differ: O(n)."""
        columns = np.array(vectors.reshape(self.size, -1), dtype=np.float64)
        project_on_differences(*self.arrays, columns)
        return columns.reshape(vectors.shape)

    def best_response(self, loss: np.ndarray) -> Float[np.ndarray, " sequences"]:
        """Plan of pure local strategies at which ``loss @ plan`` is least."""
        carried, local = np.array(loss, dtype=np.float64), np.empty(self.size)
        least_loss(*self.arrays, carried, local)
        return self.plan(local)

    def least(self, loss: np.ndarray) -> float:
        """Smallest ``loss @ plan`` of all plans."""
        carried, local = np.array(loss, dtype=np.float64), np.empty(self.size)
        return float(least_loss(*self.arrays, carried, local))

    def prox(self, loss: np.ndarray) -> tuple[Float[np.ndarray, " sequences"], float]:
        """Local strategies at which ``loss @ plan + psi(plan)`` is least, and the least value."""
        carried, local = np.array(loss, dtype=np.float64), np.empty(self.size)
        value = nearest_local(*self.arrays, carried, local)
        return local, float(value)

    def psi(self, local: np.ndarray, plan: np.ndarray) -> float:
        """The dilated regulariser."""
        if not self.length.size:
            return 0.0
        return float(0.5 * plan[self.parent] @ np.add.reduceat(local**2, self.start))

    def psi_gradient(self, local: np.ndarray) -> Float[np.ndarray, " sequences"]:
        """Its gradient, which depends on the local strategies only."""
        gradient = np.empty(self.size)
        write_psi_gradient(*self.arrays, local, gradient)
        return gradient

    # The reference for the compiled passes.

    def plain_prox(self, loss: np.ndarray) -> tuple[Float[np.ndarray, " sequences"], float]:
        """As :meth:`prox`, information set by information set in Python."""
        carried, local = np.array(loss, dtype=np.float64), np.ones(self.size)
        for j in range(self.length.size - 1, -1, -1):
            own = slice(self.start[j], self.start[j] + self.length[j])
            local[own] = nearest_distribution(-carried[own])
            carried[self.parent[j]] += carried[own] @ local[own] + 0.5 * local[own] @ local[own]
        return local, float(carried[0])

    def plain_psi_gradient(self, local: np.ndarray) -> Float[np.ndarray, " sequences"]:
        """As :meth:`psi_gradient`."""
        gradient = local.copy()
        gradient[0] = 0.0
        for j in range(self.length.size):
            own = slice(self.start[j], self.start[j] + self.length[j])
            gradient[self.parent[j]] -= 0.5 * local[own] @ local[own]
        return gradient

    def plain_plan(self, local: np.ndarray) -> Float[np.ndarray, " sequences"]:
        """As :meth:`plan`."""
        plan = np.ones(self.size)
        for j in range(self.length.size):
            own = slice(self.start[j], self.start[j] + self.length[j])
            plan[own] = plan[self.parent[j]] * local[own]
        return plan


@njit(cache=True)
def write_plan(parent, start, length, local, plan):
    """Multiply local strategies down the tree."""
    plan[0] = 1.0
    for j in range(parent.size):
        reach = plan[parent[j]]
        for s in range(start[j], start[j] + length[j]):
            plan[s] = reach * local[s]


# Most information sets have two or three actions. The threshold is the largest of those that leave mass 1 on the
# first, the first two, ... of the sorted entries; so there is no branch for the processor to guess.


@njit(cache=True)
def _project_pair(local, begin):
    share = min(max(0.5 + 0.5 * (local[begin] - local[begin + 1]), 0.0), 1.0)
    local[begin], local[begin + 1] = share, 1.0 - share


@njit(cache=True)
def _project_triple(local, begin):
    one, two, three = local[begin], local[begin + 1], local[begin + 2]
    upper, lower = max(one, two), min(one, two)
    most = max(upper, three)
    second, third = max(lower, min(upper, three)) - most, min(lower, three) - most
    threshold = max(-1.0, (second - 1.0) / 2.0, (second + third - 1.0) / 3.0)
    local[begin] = max(one - most - threshold, 0.0)
    local[begin + 1] = max(two - most - threshold, 0.0)
    local[begin + 2] = max(three - most - threshold, 0.0)


@njit(cache=True)
def nearest_local(parent, start, length, carried, local):
    """Minimise ``carried @ plan + psi(plan)`` from the leaves up; return the minimum. ``carried`` is used up."""
    local[0] = 1.0
    for j in range(parent.size - 1, -1, -1):
        begin, end = start[j], start[j] + length[j]
        for s in range(begin, end):
            local[s] = -carried[s]
        if length[j] == 2:
            _project_pair(local, begin)
        elif length[j] == 3:
            _project_triple(local, begin)
        else:
            project_in_place(local[begin:end])
        value = 0.0
        for s in range(begin, end):
            value += (carried[s] + 0.5 * local[s]) * local[s]
        carried[parent[j]] += value
    return carried[0]


@njit(cache=True)
def least_loss(parent, start, length, carried, local):
    """Minimise ``carried @ plan`` from the leaves up; return the minimum. ``carried`` is used up."""
    local[:] = 0.0
    local[0] = 1.0
    for j in range(parent.size - 1, -1, -1):
        best = start[j]
        for s in range(start[j] + 1, start[j] + length[j]):
            if carried[s] < carried[best]:
                best = s
        local[best] = 1.0
        carried[parent[j]] += carried[best]
    return carried[0]


@njit(cache=True)
def write_psi_gradient(parent, start, length, local, gradient):
    """Gradient of the dilated regulariser."""
    gradient[:] = local
    gradient[0] = 0.0
    for j in range(parent.size):
        square = 0.0
        for s in range(start[j], start[j] + length[j]):
            square += local[s] * local[s]
        gradient[parent[j]] -= 0.5 * square


@njit(cache=True)
def project_on_differences(parent, start, length, columns):
    """Replace each column by the closest one whose entries add up to that before, with 0 for the empty sequence.

    What the sequences below an information set cost is a parabola in the entry of the sequence before: ``weight`` is
    its curvature at each sequence, its own 1 included, and ``share`` at each information set.
    """
    weight, share = np.ones(columns.shape[0]), np.empty(parent.size)
    for j in range(parent.size - 1, -1, -1):
        total = 0.0
        for s in range(start[j], start[j] + length[j]):
            total += 1.0 / weight[s]
        share[j] = 1.0 / total
        weight[parent[j]] += share[j]
    least = np.empty(parent.size)
    for column in range(columns.shape[1]):
        entries = columns[:, column]
        for j in range(parent.size - 1, -1, -1):
            least[j] = 0.0
            for s in range(start[j], start[j] + length[j]):
                entries[s] /= weight[s]
                least[j] += entries[s]
            entries[parent[j]] += share[j] * least[j]
        entries[0] = 0.0
        for j in range(parent.size):
            missing = share[j] * (entries[parent[j]] - least[j])
            for s in range(start[j], start[j] + length[j]):
                entries[s] += missing / weight[s]
