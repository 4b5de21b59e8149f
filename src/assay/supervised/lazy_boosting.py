"""The rounds of smooth boosting with lazy projections, and the queries that they cost.

Weights are kept as logarithms: between projections what is right loses a constant each round, and after many rounds the
weights themselves would underflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from assay.supervised.bregman_projection import project_log_measure

__all__ = ["BoostingQueries", "BoostingRun", "BoostingTask", "boost"]

_TOO_WEAK = 3


@dataclass(frozen=True)
class BoostingQueries:
    """Evaluations of weak hypotheses on examples that a run costs.

    Parameters
    ----------
    classical_updates : int
        One per example and round.
    classical_projections : int
        ``m ceil(log2(m))`` for each projection, by sorting.
    quantum_sampling : int
        To prepare the weights for each example that a weak learner draws: ``ceil(pi / (4 sqrt(density)))`` looks at
        the measure, each of which costs one evaluation of every hypothesis so far. 0 when no examples are drawn, since
        a learner that reads all weights gains nothing from a quantum computer.
    quantum_estimation : int
        For amplitude estimation in the projections; 0 unless it is simulated.
    estimation_per_projection : tuple of int
        Looks at the measure in each projection.
    n_samples, n_rounds, n_projections : int
        Size of the run.
    """

    classical_updates: int
    classical_projections: int
    quantum_sampling: int
    quantum_estimation: int
    estimation_per_projection: tuple[int, ...]
    n_samples: int
    n_rounds: int
    n_projections: int

    @property
    def classical(self) -> int:
        """All that a classical run needs."""
        return self.classical_updates + self.classical_projections

    @property
    def quantum(self) -> int:
        """All that a quantum run needs; it does not depend on the number of examples."""
        return self.quantum_sampling + self.quantum_estimation

    @property
    def crossover(self) -> float:
        """Number of examples from which on the quantum count is the smaller one; nan when it was not simulated."""
        if not self.quantum_estimation and not self.quantum_sampling:
            return math.nan
        low, high = 0.0, 80.0
        while high - low > 1e-9:
            middle = 0.5 * (low + high)
            count = 2.0**middle * (self.n_rounds + self.n_projections * middle)
            low, high = (middle, high) if count < self.quantum else (low, middle)
        return 2.0**high


@dataclass(frozen=True)
class BoostingTask:
    """All that a run depends on.

    Parameters
    ----------
    rounds : StumpRounds or LearnerRounds
        Trains a weak learner under given weights.
    codes : numpy.ndarray of shape (m,)
        Whether a label is the second one.
    share : numpy.ndarray of shape (m,)
        How often each example counts, of sum 1.
    epsilon, gamma : float
        Density and edge.
    period : float
        Rounds between projections, possibly infinite.
    projection : str
        How to project.
    delta : float
        Relative accuracy of projections that are not exact.
    n_rounds : int
        Most rounds.
    resample : int or None
        Examples that the weak learner draws.
    early_stop : bool
        Whether to stop when the certificate holds.
    least_edge : float
        Three edges in a row that are not above it end the run.
    rng : numpy.random.Generator
        Source of everything random.
    """

    rounds: Any
    codes: Bool[np.ndarray, " m"]
    share: Float[np.ndarray, " m"]
    epsilon: float
    gamma: float
    period: float
    projection: str
    delta: float
    n_rounds: int
    resample: int | None
    early_stop: bool
    least_edge: float
    rng: np.random.Generator


@dataclass
class BoostingRun:
    """What a run leaves behind."""

    task: BoostingTask
    log_measure: np.ndarray
    estimators: list[Any] = field(default_factory=list)
    constants: list[float] = field(default_factory=list)
    projected_rounds: list[int] = field(default_factory=list)
    densities: list[float] = field(default_factory=list)
    per_projection: list[int] = field(default_factory=list)
    rows: list[tuple[float, ...]] = field(default_factory=list)
    weak: bool = False
    tests: int = 0
    sampling: int = 0
    estimation: int = 0

    def history(self) -> dict[str, np.ndarray]:
        """Columns by name, one row per round."""
        names = ("round", "edge", "potential", "error", "largest_weight")
        columns = np.array(self.rows, dtype=float).reshape(-1, len(names)).T
        return {
            name: column.astype(np.int64) if name == "round" else column
            for name, column in zip(names, columns, strict=True)
        }

    def queries(self) -> BoostingQueries:
        """What the run costs in evaluations of hypotheses."""
        m, rounds, projections = len(self.task.codes), len(self.estimators), len(self.constants)
        return BoostingQueries(
            classical_updates=m * rounds,
            classical_projections=projections * m * math.ceil(math.log2(m)),
            quantum_sampling=self.sampling,
            quantum_estimation=self.estimation,
            estimation_per_projection=tuple(self.per_projection),
            n_samples=m,
            n_rounds=rounds,
            n_projections=projections,
        )


def boost(task: BoostingTask) -> BoostingRun:
    """Run the rounds.

    Parameters
    ----------
    task : BoostingTask
        What to do.

    Returns
    -------
    BoostingRun

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.lazy_boosting import BoostingTask, boost
    >>> from assay.supervised.weak_learners import StumpRounds
    >>> X, codes = np.arange(8.0)[:, None], np.arange(8) > 3
    >>> task = BoostingTask(StumpRounds(X, codes, np.array([0, 1]), None), codes, np.full(8, 1 / 8), 0.25, 0.2, 5.0,
    ...                     "exact", 0.2, 70, None, True, 0.0, np.random.default_rng(0))
    >>> len(boost(task).estimators)
    13
    """
    m, rounds, share, gamma, epsilon = len(task.codes), task.rounds, task.share, task.gamma, task.epsilon
    run = BoostingRun(task, np.full(m, math.log(epsilon)))
    penalty = math.log1p(-gamma)
    votes, gained, weak, reached = np.zeros(m, dtype=np.int64), 0.0, 0, math.log(1.0 / epsilon)
    # A projection raises every weight that a lazy round lowers, so that this is a bound of its constant.
    upper = None if math.isinf(task.period) else -task.period * penalty + math.log1p(task.delta)
    for t in range(1, task.n_rounds + 1):
        top = run.log_measure.max()
        relative = np.exp(run.log_measure - top)
        p = share * relative
        total = p.sum()
        p /= total
        if task.resample is not None:
            density = min(1.0, total * math.exp(top))
            run.sampling += task.resample * t * math.ceil(0.25 * math.pi / math.sqrt(max(density, 1e-300)))
        estimator, answers = rounds.train(p, task.rng)
        right = answers == task.codes
        agreement = float(p @ right)
        run.log_measure += penalty * right
        votes += right
        run.estimators.append(estimator)
        gained -= math.log1p(-gamma * agreement)
        if t % task.period == 0:
            found = project_log_measure(run.log_measure, epsilon, task.projection, task.delta, task.rng, share, upper)
            run.log_measure = np.minimum(0.0, run.log_measure + found.log_constant)
            run.constants.append(found.log_constant)
            run.projected_rounds.append(t)
            run.densities.append(found.density)
            run.tests += found.tests
            if task.projection == "quantum_sim":
                run.per_projection.append(found.queries)
                run.estimation += found.queries * t
            reached = min(reached, -math.log(found.density))
        potential = gained + 0.5 * t * penalty
        error = float(share @ (2 * votes <= t))
        run.rows.append((t, agreement - 0.5, potential, error, epsilon / total))
        weak = weak + 1 if agreement - 0.5 <= task.least_edge else 0
        if task.early_stop and potential > reached:
            break
        if weak >= _TOO_WEAK:
            run.weak = True
            break
    return run
