r"""Optimal transport for any cost, with a map that can be used on new points and a bound on its error.

Given a sample of sources, a sample of targets and a cost, look for the potential

.. math:: u(x) = \min_j c(x, y_j) - b_j

that maximises the dual of transport, a concave function of one number per target whose every value is a lower bound on
the cost of transport (:mod:`assay.transport.semidual_ascent`). The potential is a generalized concave function
(:class:`~assay.transport.GCFLayer`), and the map sends ``x`` to the target that attains the minimum. A coupling with
the exact marginals is made from the same numbers, so that the true cost is known to lie between two values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.cluster import KMeans

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.transport.generalized_convex import GCFLayer
from assay.transport.semidual_ascent import Adam, dual_value_and_slope, fill_rows, soft_plan_rows
from assay.transport.transport_kernels import check_kernel, kernel_scores
from assay.validation import (
    as_distribution,
    as_float_array,
    as_generator,
    check_choice,
    check_integer,
    check_real,
    warn_not_converged,
)

__all__ = ["TransportResult", "transport_map"]

# Up to this many sources every step sees all of them, if their costs have at most so many entries together.
_ALL_SOURCES = 4096
_ALL_ENTRIES = 2**24
_BATCH = 1024

# Costs that are not kept are computed in pieces of about this many entries.
_PIECE = 2**20

# The first temperature in units of the inverse median cost, and by how much it rises: at the first one the smooth dual
# is easy to climb, and at the last one its maximum is hardly below that of the dual itself.
_HEAT = 250.0
_RISE = 30.0

# Steps from one look at the gap to the next.
_LOOK = 250

# Relative to the largest cost, what rounding may do to a difference of sums of costs.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TransportResult(Result):
    """What :func:`transport_map` returns.

    Attributes
    ----------
    intercept : numpy.ndarray of shape (m,)
        The ``b_j``, of mean zero.
    targets : numpy.ndarray of shape (m, k)
        The points that mass is sent to: the targets that were given, or their cluster centres.
    masses : numpy.ndarray of shape (m,)
        What each of them receives.
    dual : float
        No coupling costs less.
    primal : float
        Cost of the plan; the optimal cost is between the two.
    gap : float
        ``primal - dual``.
    plan : scipy.sparse.csr_array of shape (n, m)
        A coupling with the exact marginals.
    quantization_error : float
        How far the optimal cost for the cluster centres can be from that for the targets themselves; 0 without
        clusters.
    temperature : float
        Of the soft choice in smooth maps: that of the first step.
    cost : object or callable
        The cost.
    converged : bool
        Whether the gap is at most ``tol`` times the cost.
    n_iter : int
        Steps that were done.
    history : dict
        ``iteration``, ``seconds``, ``dual`` (of that step), ``best`` (so far) and ``primal`` (of the last look).
    """

    intercept: Float[np.ndarray, " m"]
    targets: Float[np.ndarray, "m k"]
    masses: Float[np.ndarray, " m"]
    dual: float
    primal: float
    gap: float
    plan: Any
    quantization_error: float
    temperature: float
    cost: Any
    converged: bool
    n_iter: int

    def layer(self, selection: str = "hard") -> GCFLayer:
        """The potential as a layer in float64, e.g. to go on training it or to move it to a device."""
        return GCFLayer(
            self.cost,
            torch.tensor(self.targets),
            mode="concave",
            selection=selection,
            temperature=self.temperature,
            intercept=torch.tensor(self.intercept),
        )

    def map(self, X: ArrayLike, *, kind: str = "hard") -> Float[np.ndarray, "S k"]:
        """Where points go.

        Parameters
        ----------
        X : array_like of shape (S, d)
            Points, of the sample or new.
        kind : {"hard", "smooth"}, default="hard"
            ``"hard"`` sends a point to one target. ``"smooth"`` inverts the gradient of the potential with a soft
            minimum; the cost needs the method ``inverse_gradient``. For the squared distance that is
            ``x - grad u / 2``, the average of the targets in the weights of the soft choice.

        Returns
        -------
        numpy.ndarray of shape (S, k)

        Raises
        ------
        ValueError
            If ``kind`` is unknown, or ``X`` is not finite.
        TypeError
            For a smooth map, if the cost has no method ``inverse_gradient``.
        """
        check_choice(kind, "kind", ("hard", "smooth"))
        points = torch.tensor(as_float_array(X, "X", ndim=2))
        if kind == "hard":
            with torch.no_grad():
                return self.layer().choose(points)[0].numpy()
        if not hasattr(self.cost, "inverse_gradient"):
            raise TypeError(
                f"kind='smooth' needs a cost with the method 'inverse_gradient', and {_name_of(self.cost)} has none"
            )
        potential = self.layer("soft")
        potential.lse = True  # the gradient of this soft minimum is the average of the gradients of the pieces
        slopes = []
        for part in points.split(max(1, _PIECE // len(self.targets))):
            leaf = part.clone().requires_grad_()
            slopes.append(torch.autograd.grad(potential(leaf).sum(), leaf)[0])
        with torch.no_grad():
            return self.cost.inverse_gradient(points, torch.cat(slopes)).numpy()

    def potential(self, X: ArrayLike) -> Float[np.ndarray, " S"]:
        """Values of the potential ``u`` at points.

        Parameters
        ----------
        X : array_like of shape (S, d)
            Points.

        Returns
        -------
        numpy.ndarray of shape (S,)
        """
        with torch.no_grad():
            return self.layer()(torch.tensor(as_float_array(X, "X", ndim=2))).numpy()


def transport_map(
    X: ArrayLike,
    Y: ArrayLike,
    cost: Any = "sqeuclidean",
    *,
    p: ArrayLike | None = None,
    q: ArrayLike | None = None,
    n_pieces: int | None = None,
    max_iter: int = 3000,
    tol: float = 1e-3,
    lr: float = 0.05,
    temperature: float | None = None,
    batch_size: int | None = None,
    rng: Any = None,
    callback: Callable[[Mapping[str, Any]], None] | None = None,
) -> TransportResult:
    r"""Transport one sample to another at least cost, for any cost.

    .. math::

        \max_{b \in R^m} \sum_i p_i \min_j \bigl( c(x_i, y_j) - b_j \bigr) + \sum_j q_j b_j
        \;=\; \min_{P \ge 0,\; P 1 = p,\; P^\top 1 = q} \sum_{ij} P_{ij}\, c(x_i, y_j)

    Parameters
    ----------
    X : array_like of shape (n, d)
        Sources.
    Y : array_like of shape (m, k)
        Targets; of another dimension if the cost can compare them.
    cost : str, callable or object, default="sqeuclidean"
        ``"sqeuclidean"``, ``"power"`` (1.5), a function of tensors of shapes (S, 1, d) and (1, J, k), or an object with
        the method ``evaluate`` (see :mod:`assay.transport.transport_kernels`). It need not be symmetric or
        non-negative.
    p, q : array_like of shapes (n,) and (m,), optional
        Masses, of sum 1; uniform by default.
    n_pieces : int, optional
        Replace the targets by this many cluster centres (k-means) with the masses of their clusters, for large
        samples of a continuous distribution.
    max_iter : int, default=3000
        Steps of Adam at most.
    tol : float, default=1e-3
        The ascent ends when the gap between plan and dual is at most ``tol`` times the cost of the plan. That is
        looked at every 250 steps.
    lr : float, default=0.05
        First step size, in units of the median cost; it falls linearly to zero.
    temperature : float, optional
        Of the soft minimum at the first step, ``250 / median cost`` by default; it rises by a factor of 30 while the
        step size falls.
    batch_size : int, optional
        Sources per step. By default all of them up to 4096 sources (and 2**24 costs), and 1024 beyond.
    rng : None, int or numpy.random.Generator, optional
        Draws minibatches, the pairs for the median, and the starts of k-means.
    callback : callable, optional
        Called at every look with the last row of the history as a dict.

    Returns
    -------
    TransportResult
        Certificates: the plan has the marginals; the dual is below its cost (weak duality) and as near as asked.

    Raises
    ------
    TypeError, ValueError
        If the cost has not the method or returns another shape or nan, a sample is empty or not finite, masses are
        negative or do not sum to 1, or an option is out of range.

    Warns
    -----
    ConvergenceWarning
        If the gap is larger than ``tol`` asks for after ``max_iter`` steps.

    Notes
    -----
    A step costs ``O(batch m)`` (plus the costs, when they are not kept). Memory is one matrix of costs for all
    sources, or ``O(batch m)`` with minibatches; the plan is sparse.

    The network simplex (``ot.emd2``) is faster and exact for a few thousand points. What this adds is the map for
    points outside the sample, samples that do not fit as a matrix, and costs that are trained.

    References
    ----------
    M. Nehzati. Universal Representation of Generalized Convex Functions and their Gradients. ICML 2026.
    arXiv:2509.04477.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import transport_map
    >>> X = np.random.default_rng(0).normal(size=(50, 2))
    >>> result = transport_map(X, X + [3.0, 0.0], lambda x, y: (x - y).abs().pow(1.5).sum(-1), rng=0)
    >>> result.certified, bool(result.dual - 1e-9 <= 3.0**1.5 <= result.primal + 1e-9)
    (True, True)
    >>> result.map([[0.0, 0.0]]).shape
    (1, 2)
    """
    cost = check_kernel(cost, "cost")
    sources, given = as_float_array(X, "X", ndim=2), as_float_array(Y, "Y", ndim=2)
    n, m = len(sources), len(given)
    p = np.full(n, 1.0 / n) if p is None else as_distribution(p, "p", size=n)
    given_q = np.full(m, 1.0 / m) if q is None else as_distribution(q, "q", size=m)
    max_iter = check_integer(max_iter, "max_iter", minimum=0)
    tol, lr = check_real(tol, "tol", minimum=0), check_real(lr, "lr", above=0)
    if temperature is not None:
        temperature = check_real(temperature, "temperature", above=0)
    if batch_size is not None:
        batch_size = check_integer(batch_size, "batch_size", minimum=1)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    generator = as_generator(rng)
    targets, masses, assigned = given, given_q, None
    if n_pieces is not None and check_integer(n_pieces, "n_pieces", minimum=1) < m:
        targets, masses, assigned = _clusters(given, given_q, n_pieces, generator)
    problem = _Problem(cost, sources, targets, p, masses, generator)
    heat = _HEAT / problem.scale if temperature is None else temperature
    ascent = _Ascent(problem, heat, lr * problem.scale, batch_size, generator)
    answer = ascent.run(max_iter, tol, callback)
    shift = float(masses @ answer.b)  # what is added to all intercepts changes nothing
    b, plan = answer.b - shift, answer.plan
    dual, primal, largest = problem.dual(b), problem.cost_of(plan), problem.largest
    result = TransportResult(
        intercept=b,
        targets=targets,
        masses=masses,
        dual=dual,
        primal=primal,
        gap=primal - dual,
        plan=plan,
        quantization_error=0.0 if assigned is None else problem.quantization_error(given, given_q, assigned),
        temperature=heat,
        cost=cost,
        converged=primal - dual <= max(tol * abs(primal), _ROUNDING * largest),
        n_iter=answer.n_iter,
        certificates=_certificates(problem, plan, dual, primal, tol),
        history=answer.history,
    )
    if not result.converged:
        warn_not_converged("transport_map", answer.n_iter, result.gap / max(abs(primal), 1e-300), tol)
    return result


def _certificates(
    problem: _Problem, plan: sp.csr_array, dual: float, primal: float, tol: float
) -> tuple[Certificate, ...]:
    rounding = _ROUNDING * problem.largest
    violation = max(
        float(np.abs(plan.sum(axis=1) - problem.p).max()),
        float(np.abs(plan.sum(axis=0) - problem.q).max()),
        float(-min(plan.data.min(initial=0.0), 0.0)),
    )
    return (
        Certificate("largest error of a marginal or a sign of the plan", violation, 1e-12),
        Certificate("weak duality: cost of the plan less dual of the intercepts", primal - dual, -rounding, ">="),
        Certificate(
            "gap: cost of the plan less dual of the intercepts, on the points that mass is sent to",
            primal - dual,
            max(tol * abs(primal), rounding),
            assumptions=(Assumption("the ascent has converged to the tolerance", None),),
        ),
    )


@dataclass(frozen=True)
class _Answer:
    """Where an ascent ended."""

    b: np.ndarray
    plan: sp.csr_array
    n_iter: int
    history: dict[str, np.ndarray]


class _Problem:
    """Sources, targets, masses, and the costs between them in float64, kept when they fit."""

    def __init__(
        self,
        cost: Any,
        sources: Float[np.ndarray, "n d"],
        targets: Float[np.ndarray, "m k"],
        p: Float[np.ndarray, " n"],
        q: Float[np.ndarray, " m"],
        generator: np.random.Generator,
    ):
        self.cost, self.p, self.q = cost, p, q
        # Copies, because a cost of the user's own may write to what it is given.
        self.sources, self.targets = torch.tensor(sources), torch.tensor(targets)
        self.n, self.m = len(sources), len(targets)
        some = self.costs(generator.permutation(self.n)[: max(1, min(self.n, _PIECE // (4 * self.m)))])
        self.scale = float(np.median(np.abs(some))) or float(np.abs(some).max()) or 1.0
        self.largest = float(np.abs(some).max()) or 1.0

    def costs(self, rows: Any) -> Float[np.ndarray, "rows m"]:
        """Costs of some sources to all targets."""
        with torch.no_grad():
            values = kernel_scores(self.cost, self.sources[rows], self.targets).double().numpy()
        if not np.isfinite(values).all():
            raise ValueError(
                f"cost must be finite between all points, got nan or infinities from {_name_of(self.cost)}"
            )
        return np.ascontiguousarray(values)

    def pieces(self) -> Iterator[slice]:
        """Slices of the sources whose costs are not too many at a time."""
        step = max(1, _PIECE // self.m)
        for first in range(0, self.n, step):
            yield slice(first, min(first + step, self.n))

    def dual(self, b: Float[np.ndarray, " m"]) -> float:
        """Dual at ``b``, of all sources, straight from its definition."""
        least = np.concatenate([(self.costs(part) - b).min(axis=1) for part in self.pieces()])
        return float(self.p @ least + self.q @ b)

    def cost_of(self, plan: sp.csr_array) -> float:
        """Total cost of a plan."""
        total = 0.0
        for part in self.pieces():
            rows = plan[part].tocoo()
            total += float(self.costs(part)[rows.row, rows.col] @ rows.data)
        return total

    def quantization_error(
        self, given: Float[np.ndarray, "M k"], mass: Float[np.ndarray, " M"], assigned: np.ndarray
    ) -> float:
        """Average over the targets of the most that any source can gain or lose when a target becomes its centre."""
        worst = np.zeros(len(given))
        original = torch.tensor(given)
        step = max(1, _PIECE // self.m // 4)
        for first in range(0, self.n, step):
            part = slice(first, first + step)
            centres = self.costs(part)
            for begin in range(0, len(given), 4 * self.m):
                some = slice(begin, begin + 4 * self.m)
                with torch.no_grad():
                    there = kernel_scores(self.cost, self.sources[part], original[some]).double().numpy()
                worst[some] = np.maximum(worst[some], np.abs(there - centres[:, assigned[some]]).max(axis=0))
        return float(mass @ worst)

    def plan(self, b: Float[np.ndarray, " m"], temperature: float) -> sp.csr_array:
        """Coupling from the soft choices at ``b``.

        Columns that receive too much are cut, and what the rows then miss goes to where there is room.
        """
        counts, columns, mass = [], [], []
        for part in self.pieces():
            for store, found in zip(
                (counts, columns, mass), soft_plan_rows(self.costs(part), self.p[part], b, temperature), strict=True
            ):
                store.append(found)
        start = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        plan = sp.csr_array((np.concatenate(mass), np.concatenate(columns), start), shape=(self.n, self.m))
        received = plan.sum(axis=0)
        plan.data *= np.minimum(1.0, self.q / np.maximum(received, 1e-300))[plan.indices]
        missing = np.maximum(self.p - plan.sum(axis=1), 0.0)
        room = np.maximum(self.q - plan.sum(axis=0), 0.0)
        missing[missing < 1e-17] = 0.0
        rows, columns, mass = [], [], []
        for part in self.pieces():
            if not missing[part].any():
                continue
            row, column, sent = fill_rows(self.costs(part), b, missing[part], room)
            rows.append(row + part.start)
            columns.append(column)
            mass.append(sent)
        if not rows:
            return plan
        entries = np.concatenate(mass), (np.concatenate(rows), np.concatenate(columns))
        return sp.csr_array(plan + sp.csr_array(entries, shape=plan.shape))


class _Ascent:
    """Adam on the smooth dual, which remembers the best intercepts and the cheapest plan that it has seen."""

    def __init__(
        self, problem: _Problem, temperature: float, lr: float, batch_size: int | None, generator: np.random.Generator
    ):
        n, m = problem.n, problem.m
        if batch_size is None:
            batch_size = n if n <= _ALL_SOURCES and n * m <= _ALL_ENTRIES else _BATCH
        self.problem, self.temperature, self.lr, self.generator = problem, temperature, lr, generator
        self.batch_size = min(batch_size, n)
        self.kept = problem.costs(slice(None)) if self.batch_size == n else None

    def run(self, max_iter: int, tol: float, callback: Callable[[Mapping[str, Any]], None] | None) -> _Answer:
        problem, began = self.problem, time.perf_counter()
        b = np.zeros(problem.m)
        self.best, self.best_b = self._whole(b), b.copy()
        self.primal, self.plan = np.inf, None
        adam, done, rows = Adam(problem.m), 0, []
        for step in range(max_iter + 1):
            share = step / max(1, max_iter)
            temperature = self.temperature * _RISE**share
            if step % _LOOK == 0 or step == max_iter:
                self._look(b, temperature)
                row = (step, time.perf_counter() - began, self._whole(b), self.best, self.primal)
                rows.append(row)
                if callback is not None:
                    callback(dict(zip(("iteration", "seconds", "dual", "best", "primal"), row, strict=True)))
                small = max(tol * abs(self.primal), _ROUNDING * problem.largest)
                if self.primal - self.best <= small or step == max_iter:
                    break
            value, slope = self._step(b, temperature)
            if value is not None and value > self.best:
                self.best, self.best_b = value, b.copy()
            b += adam.step(slope, self.lr * (1.0 - share))
            b -= b.mean()
            done = step + 1
        columns = zip(*rows, strict=True)
        names = ("iteration", "seconds", "dual", "best", "primal")
        return _Answer(
            self.best_b, self.plan, done, {name: np.array(column) for name, column in zip(names, columns, strict=True)}
        )

    def _step(self, b: Float[np.ndarray, " m"], temperature: float) -> tuple[float | None, Float[np.ndarray, " m"]]:
        """Dual at ``b`` if all sources were looked at, and a direction that climbs."""
        problem = self.problem
        if self.kept is not None:
            hard, _, slope = dual_value_and_slope(self.kept, problem.p, problem.q, b, temperature)
            return hard, slope
        rows = self.generator.choice(problem.n, self.batch_size, p=problem.p)
        mass = np.full(len(rows), 1.0 / len(rows))
        return None, dual_value_and_slope(problem.costs(rows), mass, problem.q, b, temperature)[2]

    def _whole(self, b: Float[np.ndarray, " m"]) -> float:
        if self.kept is None:
            return self.problem.dual(b)
        return dual_value_and_slope(self.kept, self.problem.p, self.problem.q, b, self.temperature)[0]

    def _look(self, b: Float[np.ndarray, " m"], temperature: float) -> None:
        """Compare with the best so far, and make plans from the intercepts, softly and with everyone at the best."""
        value = self._whole(b)
        if value > self.best:
            self.best, self.best_b = value, b.copy()
        for intercepts, heat in ((self.best_b, temperature), (self.best_b, np.inf), (b, temperature)):
            plan = self.problem.plan(intercepts, heat)
            total = self.problem.cost_of(plan)
            if total < self.primal:
                self.primal, self.plan = total, plan


def _clusters(
    targets: Float[np.ndarray, "M k"], q: Float[np.ndarray, " M"], n_pieces: int, generator: np.random.Generator
) -> tuple[Float[np.ndarray, "m k"], Float[np.ndarray, " m"], np.ndarray]:
    """Centres of the clusters that have mass, their masses, and the cluster of each target."""
    model = KMeans(n_pieces, n_init=1, random_state=int(generator.integers(2**31))).fit(targets, sample_weight=q)
    used, assigned = np.unique(model.labels_, return_inverse=True)
    masses = np.bincount(assigned, weights=q)
    return model.cluster_centers_[used], masses / masses.sum(), assigned


def _name_of(cost: Any) -> str:
    return getattr(cost, "__name__", type(cost).__name__)
