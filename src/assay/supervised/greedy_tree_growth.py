"""Growing a decision tree from the top: always split the leaf that matters most on its most influential variable.

The score of a leaf is the probability of reaching it times the largest influence in it. Here scores are known: from the
table of the function, or from labelled data.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, UInt8

from assay.supervised.boolean_influence import table_influences

__all__ = ["NEGLIGIBLE", "ROUNDING", "DataLeaves", "Growth", "TableLeaves", "first_of_the_largest", "grow", "leaves_of"]

ROUNDING = 1e-12
"""Two numbers that differ by less are taken to be equal, where they decide."""

NEGLIGIBLE = 1e-300
"""Leaves that are reached less often than this are left alone."""

_TIE = 1e-10


@dataclass
class Growth:
    """A tree under construction, and what was noted on the way; nodes are numbered as they are made."""

    feature: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    prob: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    trace: list[tuple[float, ...]] = field(default_factory=list)
    status: str = ""
    _error: float = 0.0
    _cost: float = 0.0
    _impure: int = 0

    @property
    def n_leaves(self) -> int:
        """Leaves so far."""
        return (len(self.feature) + 1) // 2

    @property
    def error(self) -> float:
        """Error of the majority labels, exactly 0 when no leaf has both."""
        return self._error if self._impure else 0.0

    def add(self, prob: float, value: float, cost: float) -> int:
        """Add a leaf and return its number."""
        self.feature.append(-1)
        self.left.append(-1)
        self.right.append(-1)
        self.value.append(value)
        self.prob.append(prob)
        self.cost.append(cost)
        self._count(len(self.feature) - 1, 1)
        return len(self.feature) - 1

    def split(self, node: int, variable: int, children: tuple[int, int]) -> None:
        """Make a leaf an inner node of two leaves that were added."""
        self.feature[node] = variable
        self.left[node], self.right[node] = children
        self._count(node, -1)

    def revise(self, node: int, value: float, cost: float) -> None:
        """Replace what is known of a leaf."""
        self._count(node, -1)
        self.value[node], self.cost[node] = value, cost
        self._count(node, 1)

    def note(self, node: int, variable: int, score: float) -> None:
        """Record the tree as it is, and what will be split next (-1 for nothing)."""
        cost = self._cost if self._impure else 0.0
        self.trace.append((self.n_leaves, self.error, cost, node, variable, score))

    def _count(self, node: int, sign: int) -> None:
        minority = min(self.value[node], 1.0 - self.value[node])
        self._error += sign * self.prob[node] * minority
        self._cost += sign * self.cost[node]
        self._impure += sign * (minority > 0.0)


@runtime_checkable
class LeafSource(Protocol):
    """Where the exact scores of leaves come from."""

    def root(self) -> Any:
        """State of the leaf that holds everything."""

    def evaluate(self, state: Any) -> tuple[float, float, np.ndarray]:
        """Reach probability, probability of 1 in the leaf, and influence of every variable in it."""

    def split(self, state: Any, variable: int) -> tuple[Any, Any]:
        """States of the two children."""


class TableLeaves:
    """Leaves of a tabulated function: each holds its own part of the table.

    Parameters
    ----------
    table : numpy.ndarray of shape (2**n,)
        Values of the function.
    p : numpy.ndarray of shape (n,)
        Probabilities of the bits.
    assumed : numpy.ndarray of shape (n,), optional
        Probabilities with which influences are computed, when they are not to be those of ``p``.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.greedy_tree_growth import TableLeaves
    >>> source = TableLeaves(np.array([0, 0, 0, 1], dtype=np.uint8), np.full(2, 0.5))
    >>> source.evaluate(source.split(source.root(), 0)[1])
    (0.5, 0.5, array([0. , 0.5]))
    """

    def __init__(
        self,
        table: UInt8[np.ndarray, " size"],
        p: Float[np.ndarray, " n"],
        assumed: Float[np.ndarray, " n"] | None = None,
    ) -> None:
        self.table, self.p, self.assumed = table, p, assumed

    def root(self) -> Any:
        """State of the leaf that holds everything."""
        return self.table, np.arange(len(self.p)), 1.0

    def evaluate(self, state: Any) -> tuple[float, float, Float[np.ndarray, " n"]]:
        """Reach probability, probability of 1 in the leaf, and influence of every variable in it."""
        values, free, reach = state
        influences = np.zeros(len(self.p))
        first = values[0]
        if (values == first).all():
            return reach, float(first), influences
        ones, influences[free] = table_influences(values, self.p[free])
        if self.assumed is not None:
            influences[free] = table_influences(values, self.assumed[free])[1]
        # A leaf with both values must not be taken for a pure one because its weights are tiny.
        return reach, min(max(ones, np.finfo(float).tiny), 1.0 - np.finfo(float).epsneg), influences

    def split(self, state: Any, variable: int) -> tuple[Any, Any]:
        """States of the two children."""
        values, free, reach = state
        axis = int(np.searchsorted(free, variable))
        halves = values.reshape(-1, 2, 1 << axis)
        rest, chance = np.delete(free, axis), float(self.p[variable])
        return (
            (halves[:, 0].reshape(-1), rest, reach * (1.0 - chance)),
            (halves[:, 1].reshape(-1), rest, reach * chance),
        )


class DataLeaves:
    r"""Leaves of labelled data: each holds the rows that reach it.

    Without an oracle the influence of a bit cannot be seen. What can is
    :math:`2 \hat p_i (1 - \hat p_i) |\hat E[y | x_i = 1] - \hat E[y | x_i = 0]| = 2 |\mathrm{Cov}(x_i, y)|`,
    which equals it when the function is monotone in the bit, and is at most that otherwise.

    Parameters
    ----------
    codes : numpy.ndarray of shape (n_samples, n)
        Bits.
    labels : numpy.ndarray of shape (n_samples,)
        Labels 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.greedy_tree_growth import DataLeaves
    >>> source = DataLeaves(np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.uint8), np.array([0, 0, 0, 1]))
    >>> source.evaluate(source.root())
    (1.0, 0.25, array([0.25, 0.25]))
    """

    def __init__(self, codes: UInt8[np.ndarray, "n_samples n"], labels: Int[np.ndarray, " n_samples"]) -> None:
        self.codes, self.labels = codes, labels

    def root(self) -> Any:
        """State of the leaf that holds everything."""
        return np.arange(len(self.labels))

    def evaluate(self, state: Any) -> tuple[float, float, Float[np.ndarray, " n"]]:
        """Share of the rows, share of label 1 among them, and the proxy of every influence."""
        labels = self.labels[state]
        rows, positive = len(state), int(labels.sum())
        codes = self.codes[state]
        set_, both = codes.sum(axis=0, dtype=np.int64), codes[labels == 1].sum(axis=0, dtype=np.int64)
        # In integers, so that what is independent has the proxy 0.
        covariance = np.abs(rows * both - set_ * positive)
        return rows / len(self.labels), positive / rows, 2.0 * covariance / float(rows) ** 2

    def split(self, state: Any, variable: int) -> tuple[Any, Any]:
        """States of the two children."""
        on = self.codes[state, variable] == 1
        return state[~on], state[on]


def grow(source: LeafSource, eps: float, max_leaves: int) -> Growth:
    """Grow a tree on scores that are known exactly.

    Parameters
    ----------
    source : object
        Where scores come from: :class:`TableLeaves`, :class:`DataLeaves`, or anything with their three methods.
    eps : float
        Error to stop at.
    max_leaves : int
        Most leaves.

    Returns
    -------
    Growth
        With status ``"reached"``, ``"budget"`` or, when every score is 0 and the error is not, ``"stalled"``.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.greedy_tree_growth import TableLeaves, grow
    >>> tree = grow(TableLeaves(np.array([0, 1, 1, 0], dtype=np.uint8), np.full(2, 0.5)), 0.0, 100)
    >>> tree.n_leaves, tree.status
    (4, 'reached')
    """
    growth = Growth()
    heap: list[tuple[float, int, int, float, Any]] = []

    def add(state: Any) -> int:
        reach, value, influences = source.evaluate(state)
        node = growth.add(reach, value, reach * float(influences.sum()))
        variable = first_of_the_largest(influences) if len(influences) else -1
        score = reach * float(influences[variable]) if len(influences) else 0.0
        if score > 0.0 and reach >= NEGLIGIBLE:
            heapq.heappush(heap, (-_without_last_bits(score), node, variable, score, state))
        return node

    add(source.root())
    while True:
        growth.status = (
            "reached"
            if growth.error <= eps * (1.0 + ROUNDING)
            else "stalled"
            if not heap
            else "budget"
            if growth.n_leaves >= max_leaves
            else ""
        )
        if growth.status:
            growth.note(-1, -1, 0.0)
            return growth
        _, node, variable, score, state = heapq.heappop(heap)
        growth.note(node, variable, score)
        low, high = source.split(state, variable)
        growth.split(node, variable, (add(low), add(high)))


def leaves_of(
    codes: UInt8[np.ndarray, "B n"],
    feature: Int[np.ndarray, " nodes"],
    left: Int[np.ndarray, " nodes"],
    right: Int[np.ndarray, " nodes"],
) -> Int[np.ndarray, " B"]:
    """Leaf that each point reaches.

    Parameters
    ----------
    codes : numpy.ndarray of shape (B, n)
        Points.
    feature, left, right : numpy.ndarray of shape (nodes,)
        The tree; ``feature`` is -1 at leaves.

    Returns
    -------
    numpy.ndarray of shape (B,)
        Numbers of nodes.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.greedy_tree_growth import leaves_of
    >>> leaves_of(np.array([[0], [1]], dtype=np.uint8), *np.array([[0, -1, -1], [1, -1, -1], [2, -1, -1]])).tolist()
    [1, 2]
    """
    node = np.zeros(len(codes), dtype=np.int64)
    rows = np.arange(len(codes)) if feature[0] >= 0 else np.arange(0)
    while len(rows):
        at = node[rows]
        node[rows] = np.where(codes[rows, feature[at]] == 1, right[at], left[at])
        rows = rows[feature[node[rows]] >= 0]
    return node


def first_of_the_largest(numbers: np.ndarray) -> int:
    """Lowest index of what is the largest up to rounding.

    Parameters
    ----------
    numbers : numpy.ndarray of shape (n,)
        Non-negative numbers.

    Returns
    -------
    int

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.greedy_tree_growth import first_of_the_largest
    >>> first_of_the_largest(np.array([0.1, 0.3 - 1e-15, 0.3]))
    1
    """
    return int(np.argmax(numbers >= (1.0 - _TIE) * numbers.max()))


def _without_last_bits(score: float) -> float:
    """The score to twelve digits, so that ties are ties and the older leaf goes first."""
    mantissa, exponent = math.frexp(score)
    return math.ldexp(round(mantissa * 2.0**40) / 2.0**40, exponent)
