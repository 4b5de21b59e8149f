"""A structured SVM for label sequences, written for speed: what the sampled loss is timed against.

No structured-SVM library is maintained any more, so the incumbent is written here, and as fast as we can make it:
compiled, with scores stored row by row so that the inner loop of Viterbi is one vector addition and maximum, without
back pointers (which label was best is asked again for the labels of the answer), and with updates that touch only what
the loss-augmented sequence has wrong. Step sizes and the ridge penalty are those of the sampled descent it is compared
with: AdaGrad with one accumulator per feature, lazy shrinking.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import scipy.sparse as sp

__all__ = ["StructuredSVM"]


class StructuredSVM:
    """Stochastic subgradient descent on the margin-rescaled structured hinge loss with Hamming cost.

    Coefficients have a row per feature, then one per previous label, one for the start of a sequence, and a constant.
    """

    def __init__(self, n_features: int, n_labels: int, *, alpha: float, learning_rate: float, scale: float) -> None:
        self.n_features, self.n_labels = n_features, n_labels
        self.settings = (alpha, learning_rate, scale)
        n_rows = n_features + n_labels + 2
        self.table = np.zeros((n_rows, n_labels))
        self.shrink = np.ones(n_rows)  # coefficients = shrink * table
        self.history = np.zeros(n_rows)
        self.visited = np.zeros(n_rows, dtype=np.int64)
        self.steps = 0

    def run(self, rows: sp.csr_array, lengths: np.ndarray, target: np.ndarray, order: np.ndarray) -> None:
        """Take one step for every sequence in ``order``: find its worst labels, and move away from them."""
        ends = np.cumsum(lengths)
        self.steps = _steps(
            rows.indptr, rows.indices, rows.data, ends - lengths, ends, target, order, *self.settings,
            self.table, self.shrink, self.history, self.visited, self.steps, self.n_features,
        )  # fmt: skip

    def coefficients(self) -> np.ndarray:
        """All coefficients, with the shrinking done, in the units in which scores are added up."""
        alpha, rate, scale = self.settings
        size = np.divide(rate, np.sqrt(self.history), out=np.zeros_like(self.history), where=self.history > 0)
        return (scale * self.shrink * np.exp(-alpha * size * (self.steps - 1 - self.visited)))[:, None] * self.table


@numba.njit(cache=True)
def _catch_up(row, step, alpha, rate, shrink, history, visited):
    """Shrink a row by what it would have shrunk in every step since it was last looked at."""
    if history[row] > 0.0:
        shrink[row] *= math.exp(-alpha * rate / math.sqrt(history[row]) * (step - visited[row]))
    visited[row] = step


@numba.njit(cache=True)
def _move(row, value, wrong, right, rate, table, shrink, history):
    history[row] += 2.0 * value * value
    size = rate / math.sqrt(history[row]) * value / shrink[row]
    table[row, wrong] -= size
    table[row, right] += size


@numba.njit(cache=True)
def _worst_labels(
    pointers, features, values, first, last, target, scale, table, shrink, n_features, best, joint, factors
):
    """Viterbi on scores plus cost; the labels from ``first`` to ``last``."""
    n_labels = table.shape[1]
    constant = len(table) - 1
    for j in range(n_labels):
        factors[j] = scale * shrink[n_features + j]
    labels = np.empty(last - first, dtype=np.int64)
    for t in range(last - first):
        for k in range(n_labels):
            joint[k] = 1.0 + scale * shrink[constant] * table[constant, k]
        joint[target[first + t]] -= 1.0
        for entry in range(pointers[first + t], pointers[first + t + 1]):
            row = features[entry]
            factor = scale * values[entry] * shrink[row]
            for k in range(n_labels):
                joint[k] += factor * table[row, k]
        if t == 0:
            for k in range(n_labels):
                best[0, k] = joint[k] + scale * shrink[constant - 1] * table[constant - 1, k]
        else:
            for k in range(n_labels):
                best[t, k] = -np.inf
            for j in range(n_labels):
                start, factor = best[t - 1, j], factors[j]
                for k in range(n_labels):
                    score = start + factor * table[n_features + j, k]
                    best[t, k] = score if score > best[t, k] else best[t, k]
            for k in range(n_labels):
                best[t, k] += joint[k]
    label = np.argmax(best[last - first - 1])
    for t in range(last - first - 1, -1, -1):
        labels[t] = label
        if t > 0:
            highest, previous = -np.inf, 0
            for j in range(n_labels):
                score = best[t - 1, j] + factors[j] * table[n_features + j, label]
                if score > highest:
                    highest, previous = score, j
            label = previous
    return labels


@numba.njit(cache=True)
def _steps(
    pointers, features, values, starts, ends, target, order, alpha, rate, scale,
    table, shrink, history, visited, step, n_features,
):  # fmt: skip
    n_labels = table.shape[1]
    constant = len(table) - 1
    longest = 0
    for sequence in order:
        longest = max(longest, ends[sequence] - starts[sequence])
    best, joint, factors = np.empty((longest, n_labels)), np.empty(n_labels), np.empty(n_labels)
    for sequence in order:
        first, last = starts[sequence], ends[sequence]
        for entry in range(pointers[first], pointers[last]):
            _catch_up(features[entry], step, alpha, rate, shrink, history, visited)
        for row in range(n_features, len(table)):
            _catch_up(row, step, alpha, rate, shrink, history, visited)
        labels = _worst_labels(
            pointers, features, values, first, last, target, scale, table, shrink, n_features, best, joint, factors
        )
        for t in range(last - first):
            wrong, right = labels[t], target[first + t]
            if wrong != right:
                for entry in range(pointers[first + t], pointers[first + t + 1]):
                    _move(features[entry], scale * values[entry], wrong, right, rate, table, shrink, history)
                _move(constant, scale, wrong, right, rate, table, shrink, history)
            if t == 0:
                if wrong != right:
                    _move(constant - 1, scale, wrong, right, rate, table, shrink, history)
            elif wrong != right or labels[t - 1] != target[first + t - 1]:
                for previous, label, sign in ((labels[t - 1], wrong, -1.0), (target[first + t - 1], right, 1.0)):
                    row = n_features + previous
                    history[row] += scale * scale
                    table[row, label] += sign * rate * scale / math.sqrt(history[row]) / shrink[row]
        step += 1
    return step
