r"""Projected gradient ascent with a stochastic Armijo search, for critics that are linear in their features.

On a minibatch the functional is known exactly, and so is whether a step improves it. The search starts from twice the
step size that worked last, and halves it until

.. math:: \hat J_B(\theta^+) \ge \hat J_B(\theta) + \frac{c}{\eta}|\theta^+ - \theta|^2,
          \qquad \theta^+ = \mathrm{Proj}(\theta + \eta\nabla\hat J_B(\theta)),

where a value that is not finite counts as no improvement. There is no learning rate to tune, and no step that
explodes. :class:`~assay.transport.ArmijoSGD` is the same rule as a torch optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

from assay.transport.amari_divergence import AmariDivergence
from assay.transport.amari_kernels import mean_integral_and_slopes
from assay.transport.divergence_critic import CriticProblem, Sample

__all__ = ["AscentRun", "SearchLine", "armijo_step", "ascend_by_gradient", "ascend_by_minibatches", "minibatch_rows"]

FIRST_STEP = 10.0
LARGEST_STEP = 100.0
SMALLEST_STEP = 1e-10
_SHARE = 0.1

Parameters = Float[np.ndarray, " parameters"]
Record = Callable[[float, float, float], None]


def armijo_step(
    theta: Parameters, value: float, trial: Callable[[float], tuple[Parameters, float]], step_size: float
) -> tuple[Parameters, float, float]:
    """One step of projected ascent, as long as the functional allows.

    Parameters
    ----------
    theta : array of shape (D + 1,)
        Where it starts.
    value : float
        The functional there.
    trial : callable
        Maps a step size to the feasible parameters where it leads and the functional there.
    step_size : float
        The first to be tried.

    Returns
    -------
    theta : array of shape (D + 1,)
        Unchanged if no step size down to 1e-10 improved the functional enough.
    value : float
        The functional there.
    step_size : float
        The one that was taken; 0 if none was.
    """
    while step_size >= SMALLEST_STEP:
        candidate, reached = trial(step_size)
        moved = candidate - theta
        if math.isfinite(reached) and reached >= value + _SHARE / step_size * float(moved @ moved):
            return candidate, reached, step_size
        step_size *= 0.5
    return theta, value, 0.0


@dataclass(frozen=True, eq=False)
class SearchLine:
    """Projected parameters along the gradient, and the functional there, without another look at the features.

    The critic is linear in its weights and the projection scales them, so that the values of the critic at every step
    size follow from those at the start and those of the gradient.

    Parameters
    ----------
    problem : CriticProblem
        What is maximised.
    theta, gradient : array of shape (D + 1,)
        Where it starts and where it goes.
    scores : tuple of arrays
        Values, on both samples, of the critic at ``theta`` without its constant.
    changes : tuple of arrays
        Those of the critic with the parameters ``gradient``.
    """

    problem: CriticProblem
    theta: Parameters
    gradient: Parameters
    scores: tuple[Float[np.ndarray, " rows_p"], Float[np.ndarray, " rows_q"]]
    changes: tuple[Float[np.ndarray, " rows_p"], Float[np.ndarray, " rows_q"]]

    def __call__(self, step_size: float) -> tuple[Parameters, float]:
        """Parameters at a step size, and the functional there."""
        moved = self.theta + step_size * self.gradient
        candidate = self.problem.project(moved)
        norm = float(np.linalg.norm(moved[:-1]))
        scale = self.problem.radius / norm if norm > self.problem.radius else 1.0
        value = self.problem.value_on_line(candidate, self.scores, self.changes, step_size, scale, float(candidate[-1]))
        return candidate, value


@dataclass(frozen=True, eq=False)
class AscentRun:
    """Where an ascent ended, and how.

    Parameters
    ----------
    theta : array of shape (D + 1,)
        The parameters.
    values : array
        The functional: after every full step, or the mean over the minibatches of every epoch.
    step_sizes : array
        The accepted step sizes (their median in an epoch).
    skipped : int
        Steps that were not made because nothing improved.
    """

    theta: Parameters
    values: Float[np.ndarray, " records"]
    step_sizes: Float[np.ndarray, " records"]
    skipped: int


def ascend_by_gradient(
    problem: CriticProblem, start: Parameters, max_iter: int, tol: float = 0.0, record: Record | None = None
) -> AscentRun:
    """Projected gradient ascent on all rows.

    Parameters
    ----------
    problem : CriticProblem
        What is maximised.
    start : array of shape (D + 1,)
        Feasible parameters.
    max_iter : int
        Steps at most.
    tol : float, default=0.0
        Frank-Wolfe gap at which it ends.
    record : callable, optional
        Called with value, gap and step size of every iterate.

    Returns
    -------
    AscentRun
    """
    theta, step_size, step_sizes = start, 0.5 * FIRST_STEP, []
    scores = problem.scores(theta)
    value = problem.value(theta, scores)
    values, taken = [value], math.nan
    for step in range(max_iter + 1):
        gradient = problem.gradient(theta, scores)
        gap = problem.gap(theta, gradient)
        if record is not None:
            record(value, gap, taken)
        if gap <= tol or step == max_iter:
            break
        without_constant = tuple(g - theta[-1] for g in scores)
        changes = tuple(g - gradient[-1] for g in problem.scores(gradient))
        line = SearchLine(problem, theta, gradient, without_constant, changes)
        theta, value, taken = armijo_step(theta, value, line, min(2.0 * step_size, LARGEST_STEP))
        if taken == 0.0:  # the same again would be tried for ever
            break
        scores = problem.scores(theta)
        step_size = taken
        values.append(value)
        step_sizes.append(taken)
    return AscentRun(theta, np.array(values), np.array([math.nan, *step_sizes]), 0)


def ascend_by_minibatches(
    problem: CriticProblem,
    start: Parameters,
    *,
    batch_size: int,
    epochs: int,
    average: bool,
    rng: np.random.Generator,
    record: Record | None = None,
) -> AscentRun:
    """Stochastic projected ascent on paired minibatches of the two samples.

    Parameters
    ----------
    problem : CriticProblem
        What is maximised.
    start : array of shape (D + 1,)
        Feasible parameters.
    batch_size : int
        Rows of each sample in a minibatch; all of a sample that has fewer.
    epochs : int
        Passes over the larger sample.
    average : bool
        Return the mean of the iterates of the last epoch instead of the last one.
    rng : numpy.random.Generator
        The order of the rows.
    record : callable, optional
        Called after every epoch with the mean value and the median step size; the gap, second, is not known.

    Returns
    -------
    AscentRun

    Notes
    -----
    Features and steps are in single precision: the noise of a minibatch is many times larger than rounding, and the
    cosines, which are most of the work, take half the time.
    """
    if epochs == 0:
        return AscentRun(start, np.empty(0), np.empty(0), 0)
    # The two means have batches of their own, so that a small sample does not make the epochs of a large one long.
    sizes = min(batch_size, len(problem.P)), min(batch_size, len(problem.Q))
    steps = max(len(problem.P), len(problem.Q)) // max(sizes)
    streams = minibatch_rows(problem.P, sizes[0], rng), minibatch_rows(problem.Q, sizes[1], rng)
    minibatch = _Minibatch(problem, sizes)
    theta, step_size, skipped = start, 0.5 * FIRST_STEP, 0
    values, step_sizes = [], []
    for _ in range(epochs):
        batch_values, taken, total = [], [], np.zeros_like(theta)
        for _ in range(steps):
            value, line = minibatch.enter(theta, next(streams[0]), next(streams[1]))
            theta, _, step = armijo_step(theta, value, line, min(2.0 * step_size, LARGEST_STEP))
            if step == 0.0:
                skipped += 1
            else:
                step_size = step
            batch_values.append(value)
            taken.append(step)
            total += theta
        values.append(float(np.mean(batch_values)))
        step_sizes.append(float(np.median(taken)))
        if record is not None:
            record(values[-1], math.nan, step_sizes[-1])
        last_mean = total / steps
    if average:
        theta = problem.project(last_mean)
    return AscentRun(theta, np.array(values), np.array(step_sizes), skipped)


class _Minibatch:
    """Room for the features of one minibatch in single precision."""

    def __init__(self, problem: CriticProblem, sizes: tuple[int, int]):
        self.problem, self.sizes = problem, sizes
        self.features = problem.features.astype(np.float32)
        self.block = np.empty((sum(sizes), problem.features.n_features), dtype=np.float32)
        self.points = np.empty((sum(sizes), problem.P.points.shape[1]))
        self.slopes = np.empty(sum(sizes), dtype=np.float32)

    def enter(
        self,
        theta: Parameters,
        rows_p: Integer[np.ndarray, " batch_p"],
        rows_q: Integer[np.ndarray, " batch_q"],
    ) -> tuple[float, SearchLine]:
        """Make the features of a minibatch; the functional at the parameters, and the line along its gradient."""
        problem, n_p = self.problem, self.sizes[0]
        # The rows are those of the sample, so that no index has to be clipped.
        np.take(problem.P.points, rows_p, axis=0, out=self.points[:n_p], mode="clip")
        np.take(problem.Q.points, rows_q, axis=0, out=self.points[n_p:], mode="clip")
        self.features.transform(self.points, out=self.block)
        scores = self._scores(theta)
        total, slope = self._slopes(scores, float(theta[-1]))
        value = total - 0.5 * problem.ridge * float(theta @ theta)
        gradient = np.append((self.slopes @ self.block).astype(float), slope) - problem.ridge * theta
        return value, SearchLine(problem, theta, gradient, scores, self._scores(gradient))

    def _slopes(
        self, scores: tuple[Float[np.ndarray, " batch_p"], Float[np.ndarray, " batch_q"]], constant: float
    ) -> tuple[float, float]:
        """The functional and the sum of its slopes; the slopes are kept."""
        divergence, (n_p, n_q) = self.problem.divergence, self.sizes
        slopes_p, slopes_q = self.slopes[:n_p], self.slopes[n_p:]
        if type(divergence) is AmariDivergence:
            rate = divergence.alpha - 1.0
            p_value, p_slope = mean_integral_and_slopes(rate, scores[0], constant, 1.0 / n_p, slopes_p)
            q_value, q_slope = mean_integral_and_slopes(divergence.alpha, scores[1], constant, -1.0 / n_q, slopes_q)
            return p_value - q_value, p_slope + q_slope
        value = slope = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for integrand, g, kept in (
                (divergence.p_integrand, scores[0], slopes_p),
                (divergence.q_integrand, scores[1], slopes_q),
            ):
                values, slopes, _ = integrand(g + constant)
                value += float(values.mean())
                slope += float(slopes.mean())
                kept[...] = slopes / len(g)
        return value, slope

    def _scores(self, theta: Parameters) -> tuple[Float[np.ndarray, " batch_p"], Float[np.ndarray, " batch_q"]]:
        """Values of a critic without its constant."""
        g = (self.block @ theta[:-1].astype(np.float32)).astype(float)
        return g[: self.sizes[0]], g[self.sizes[0] :]


def minibatch_rows(
    sample: Sample, batch_size: int, rng: np.random.Generator
) -> Iterator[Integer[np.ndarray, " batch"]]:
    """Minibatches of different rows without end: a permutation at a time, what does not fill a batch left out.

    Parameters
    ----------
    sample : Sample
        Where the rows come from.
    batch_size : int
        At most the size of the sample.
    rng : numpy.random.Generator
        The order.

    Yields
    ------
    array of int of shape (batch_size,)
        Rows of ``sample.points``.
    """
    while True:
        order = rng.permutation(sample.rows)
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield order[start : start + batch_size]
