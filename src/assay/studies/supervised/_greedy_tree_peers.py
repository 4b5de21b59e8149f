"""Planted trees, the smallest tree of scikit-learn that reaches an error, and influences by loops over points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LoopLeaves", "Planted", "cube_of", "planted_tree", "smallest_cart", "weights_of"]


@dataclass(frozen=True)
class Planted:
    """A random tree as a table, with its depths."""

    table: np.ndarray
    p: np.ndarray
    depth: int
    average_depth: float


def cube_of(n: int) -> np.ndarray:
    """All points; bit i of the row number is variable i."""
    return ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1).astype(np.uint8)


def weights_of(p: np.ndarray) -> np.ndarray:
    """Probabilities of all points."""
    weights = np.ones(1)
    for chance in p:
        weights = np.concatenate([weights * (1.0 - chance), weights * chance])
    return weights


def planted_tree(n: int, depth: int, rng: np.random.Generator) -> Planted:
    """Random tree: a variable uniform among the unused, below the root a leaf with probability 0.15."""
    p = rng.uniform(0.15, 0.85, n)
    cube = cube_of(n)
    table = np.zeros(1 << n, dtype=np.uint8)
    depths: list[tuple[int, float]] = []

    def grow(inside: np.ndarray, unused: list[int], level: int, reach: float) -> None:
        if level == depth or (level > 0 and rng.random() < 0.15):
            table[inside] = rng.integers(0, 2)
            depths.append((level, reach))
            return
        i = int(rng.choice(unused))
        rest = [j for j in unused if j != i]
        on = cube[inside, i] == 1
        grow(inside[~on], rest, level + 1, reach * (1.0 - p[i]))
        grow(inside[on], rest, level + 1, reach * p[i])

    grow(np.arange(1 << n), list(range(n)), 0, 1.0)
    return Planted(table, p, max(level for level, _ in depths), sum(level * reach for level, reach in depths))


def smallest_cart(points: np.ndarray, labels: np.ndarray, weights: np.ndarray, eps: float, criterion: str) -> int:
    """Fewest leaves with which a best-first tree of scikit-learn has a weighted error of at most eps.

    Best-first trees of one seed are nested, so that the number can be found by bisection.
    """
    from sklearn.tree import DecisionTreeClassifier

    if min(weights @ labels, weights @ (1 - labels)) <= eps:
        return 1

    def error(leaves: int) -> float:
        tree = DecisionTreeClassifier(criterion=criterion, max_leaf_nodes=leaves, random_state=0)
        return float(weights @ (tree.fit(points, labels, sample_weight=weights).predict(points) != labels))

    low, high = 1, 2
    while error(high) > eps * (1.0 + 1e-12):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if error(middle) <= eps * (1.0 + 1e-12) else (middle, high)
    return high


class LoopLeaves:
    """Scores of leaves by loops over points in Python: what the fast kernel is compared with."""

    def __init__(self, table: np.ndarray, p: np.ndarray) -> None:
        self.values, self.p = table.tolist(), p.tolist()
        self.weights = weights_of(p).tolist()

    def root(self) -> Any:
        """Points of the leaf and the variables that are free in it."""
        return list(range(len(self.values))), list(range(len(self.p)))

    def evaluate(self, state: Any) -> tuple[float, float, np.ndarray]:
        """Reach probability, probability of 1 and influences."""
        points, free = state
        reach = sum(self.weights[x] for x in points)
        ones = sum(self.weights[x] for x in points if self.values[x]) / reach
        influences = np.zeros(len(self.p))
        for i in free:
            changed = sum(self.weights[x] for x in points if self.values[x] != self.values[x ^ (1 << i)])
            influences[i] = 2.0 * self.p[i] * (1.0 - self.p[i]) * changed / reach
        return reach, ones, influences

    def split(self, state: Any, variable: int) -> tuple[Any, Any]:
        """Both halves."""
        points, free = state
        rest = [i for i in free if i != variable]
        return tuple(([x for x in points if (x >> variable) & 1 == bit], rest) for bit in (0, 1))
