r"""Stochastic descent for multi-class linear models with so many classes that a step must not look at all of them.

A step takes one row ``x`` of the data and ``m`` wrong classes, drawn uniformly. The gradient of
:math:`\sum_k \Phi(-(\theta_k - \bar\theta) x)` with respect to the coefficients of a feature has an entry for each
drawn class and, because of the centring, the same small entry for all classes. The second part only shifts the
coefficients of that feature by a constant, which the loss does not see. So it is left out, and the mean of the
coefficients of every feature is kept up to date instead. A step then costs ``O(m)`` per non-zero feature, whatever the
number of classes.

Step sizes are AdaGrad's with one accumulator per feature, so that they treat all classes of a feature alike (otherwise
the shift would not be invisible any more) and frequent and rare features each by their own history. The ridge penalty
shrinks a feature between two visits by what it would have shrunk step by step.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int

__all__ = ["SAMPLED_TAILS", "SampledDescent"]

#: Tails that the compiled step knows.
SAMPLED_TAILS = ("exp", "quad", "gamma", "smoothstep")


class SampledDescent:
    """Coefficients under training, and the state of their step sizes.

    Parameters
    ----------
    n_features, n_labels : int
        Shape of the coefficients; at least 2 labels.
    alpha : float
        Ridge penalty ``alpha / 2`` times the squared coefficients, next to the mean loss.
    learning_rate : float
        Length of the first step of a feature.
    n_samples : int
        Wrong labels that are drawn per row.
    tau, sigma, tail
        The linear-core loss; ``tail`` is one of ``SAMPLED_TAILS``.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from assay.supervised.sampled_descent import SampledDescent
    >>> descent = SampledDescent(2, 3, alpha=1e-3, learning_rate=0.5, n_samples=1)
    >>> rows, target, rng = sp.csr_array(np.eye(2)), np.array([0, 2]), np.random.default_rng(0)
    >>> for _ in range(50):
    ...     descent.run(rows, target, np.arange(2), rng)
    >>> descent.coefficients().argmax(axis=1).tolist()
    [0, 2]
    """

    def __init__(
        self,
        n_features: int,
        n_labels: int,
        *,
        alpha: float,
        learning_rate: float,
        n_samples: int,
        tau: float = 0.7,
        sigma: float = 0.3,
        tail: str = "exp",
    ) -> None:
        self.settings = (alpha, learning_rate, n_samples, tau, sigma, SAMPLED_TAILS.index(tail))
        self.table = np.zeros((n_features, n_labels))
        self.mean = np.zeros(n_features)
        self.shrink = np.ones(n_features)  # coefficients = shrink * (table - mean)
        self.history = np.zeros(n_features)  # accumulated squared gradients
        self.visited = np.zeros(n_features, dtype=np.int64)  # the step of the last visit
        self.steps = 0

    def run(
        self,
        rows: sp.csr_array,
        target: Int[np.ndarray, " rows"],
        order: Int[np.ndarray, " steps"],
        rng: np.random.Generator,
    ) -> None:
        """Take one step for every row in ``order``."""
        self.steps = _sampled_steps(
            rows.indptr, rows.indices, rows.data, target, order, rng, *self.settings,
            self.table, self.mean, self.shrink, self.history, self.visited, self.steps,
        )  # fmt: skip

    def coefficients(self) -> Float[np.ndarray, "features labels"]:
        """The coefficients, centred over the labels, with all shrinking done."""
        alpha, rate = self.settings[:2]
        pause = self.steps - 1 - self.visited
        step_size = rate / np.sqrt(np.maximum(self.history, 1e-300))
        factor = self.shrink * np.exp(-alpha * np.where(self.history > 0, step_size, 0.0) * pause)
        return factor[:, None] * (self.table - self.table.mean(axis=1, keepdims=True))


@numba.njit(cache=True)
def _tail_slope(z: float, tail: int) -> float:
    """Steepness of the tail at ``z >= 0``, numbered as in ``SAMPLED_TAILS``."""
    if tail == 0:
        return math.exp(-z)
    if tail == 1:
        return max(1.0 - z, 0.0)
    if tail == 2:
        return (1.0 + z) * math.exp(-z)
    rest = max(1.0 - z, 0.0)
    return rest * rest * (3.0 - 2.0 * rest)


@numba.njit(cache=True)
def _sampled_steps(
    pointers,
    features,
    values,
    target,
    order,
    rng,
    alpha,
    rate,
    n_samples,
    tau,
    sigma,
    tail,
    table,
    mean,
    shrink,
    history,
    visited,
    step,
):
    n_labels = table.shape[1]
    weight = (n_labels - 1) / n_samples
    drawn = np.empty(n_samples, dtype=np.int64)
    slopes = np.empty(n_samples)
    factors = np.empty(0)
    for row in order:
        first, last = pointers[row], pointers[row + 1]
        if last - first > len(factors):
            factors = np.empty(2 * (last - first))
        centre = 0.0
        for entry in range(first, last):
            feature = features[entry]
            if history[feature] > 0.0:
                pause = step - visited[feature]
                shrink[feature] *= math.exp(-alpha * rate / math.sqrt(history[feature]) * pause)
                if shrink[feature] < 1e-100:  # before the division by it overflows
                    for label in range(n_labels):
                        table[feature, label] = (table[feature, label] - mean[feature]) * shrink[feature]
                    mean[feature], shrink[feature] = 0.0, 1.0
            visited[feature] = step
            factors[entry - first] = values[entry] * shrink[feature]
            centre += factors[entry - first] * mean[feature]
        total = squares = 0.0
        for sample in range(n_samples):
            label = min(int(rng.random() * (n_labels - 1)), n_labels - 2)
            if label >= target[row]:  # a right label is not drawn
                label += 1
            score = -centre
            for entry in range(first, last):
                score += factors[entry - first] * table[features[entry], label]
            past = (-score - tau) / sigma
            slope = weight * (1.0 if past <= 0.0 else _tail_slope(past, tail))
            drawn[sample], slopes[sample] = label, slope
            total += slope
            squares += slope * slope
            for earlier in range(sample):  # a label that is drawn twice has one entry of the gradient
                if drawn[earlier] == label:
                    squares += 2.0 * slope * slopes[earlier]
        # Squared length of the gradient without its part along the constant vector.
        squared = squares - total * total / n_labels
        if squared > 0.0:
            for entry in range(first, last):
                feature, value = features[entry], values[entry]
                history[feature] += value * value * squared
                if history[feature] > 0.0:
                    size = rate / math.sqrt(history[feature]) * value / shrink[feature]
                    for sample in range(n_samples):
                        table[feature, drawn[sample]] -= size * slopes[sample]
                    mean[feature] -= size * total / n_labels
        step += 1
    return step
