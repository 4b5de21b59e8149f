r"""The linear model with linear-core loss as an optimization problem: objective, gradient, duality gap, two solvers.

With costs :math:`c_i` (``C`` times the weight of example ``i``) the problem is

.. math:: P = \min_{W, b} \tfrac12 \|W\|^2 + \sum_i c_i \sum_k \Phi(m_{ik}),

where the margins ``m`` are the label times the score for two classes, and minus the centred scores of the wrong classes
for more. Any steepnesses :math:`s_{ik} \in [0, 1]` give the lower bound

.. math:: D = -\tfrac12 \|\textstyle\sum_i c_i g_i x_i^\top\|^2 - \sum_{ik} c_i \Phi^*(-s_{ik})
              \quad\text{when}\quad \textstyle\sum_i c_i g_i = 0,

with ``g`` the gradient of the margins in the scores, applied to ``s``. The slopes at the current model are such
steepnesses once the intercept's condition is met, and it is met by scaling down the classes whose slopes weigh most:
the totals of all classes have to agree. At the optimum they agree already, so the gap closes without any assumption on
the size of the intercept.

The solvers work in coordinates in which the features have been centred, scaled and, when they are few, decorrelated;
the penalty is still that of the original coefficients, so this changes how fast they arrive and not where.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import solve_triangular
from scipy.optimize import OptimizeResult, minimize
from scipy.sparse.linalg import LinearOperator, eigsh

from assay.supervised.linear_core import LinearCoreTail, linear_core, linear_core_conjugate, linear_core_slope

__all__ = ["TrainingProblem", "minimize_lbfgs", "minimize_nesterov"]


# Deviation, relative to the mean, of a feature that is constant but for rounding.
_CONSTANT = 1e-12

# So many features at most are decorrelated for the solvers, which takes time of the square of their number.
_FEW_FEATURES = 128


class TrainingProblem:
    """Penalised training loss of a linear model, its gradient and its duality gap.

    Parameters
    ----------
    features : numpy.ndarray or scipy.sparse matrix of shape (n_samples, n_features)
        In float64.
    labels : numpy.ndarray of shape (n_samples,)
        Classes as integers from 0.
    n_classes : int
        Two classes have one score, more have one each.
    costs : numpy.ndarray of shape (n_samples,)
        Positive factors of the losses.
    tau, sigma, tail
        As in :func:`~assay.supervised.linear_core`.
    fit_intercept : bool
        Whether there is an unpenalised intercept.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.linear_core import resolve_tail
    >>> from assay.supervised.linear_core_training import TrainingProblem
    >>> problem = TrainingProblem(np.array([[-1.0], [1.0]]), np.array([0, 1]), 2, np.ones(2), 0.7, 0.3,
    ...                           resolve_tail("quad"), True)
    >>> primal, dual = problem.primal_dual(np.array([[20 / 23]]), np.zeros(1))
    >>> round(primal, 4), round(dual, 4)
    (0.4348, 0.4348)
    """

    def __init__(
        self,
        features: Any,
        labels: np.ndarray,
        n_classes: int,
        costs: np.ndarray,
        tau: float,
        sigma: float,
        tail: LinearCoreTail,
        fit_intercept: bool,
    ) -> None:
        self.features, self.labels, self.costs = features, labels, costs
        self.tau, self.sigma, self.tail, self.fit_intercept = tau, sigma, tail, fit_intercept
        self.n_outputs = 1 if n_classes == 2 else n_classes
        self.sign = (2.0 * labels - 1.0)[:, None] if n_classes == 2 else None
        self.own = None if n_classes == 2 else (np.arange(len(labels)), labels)
        total = costs.sum()
        n_features = features.shape[1]
        self.centre = np.asarray(costs @ features).reshape(-1) / total if fit_intercept else np.zeros(n_features)
        curvature = tail.curvature / sigma
        with np.errstate(over="ignore", invalid="ignore"):
            if sparse.issparse(features):
                squares = np.asarray(costs @ features.multiply(features)).reshape(-1) - total * self.centre**2
            else:
                squares = costs @ (features - self.centre) ** 2
            if not np.isfinite(curvature * np.append(squares, total)).all():
                raise ValueError(
                    f"X, C and sample_weight must be so small that the curvature of the objective is finite, got "
                    f"features up to {abs(features).max():g} and a sum of weights times C of {total:g}"
                )
        # Square roots of a bound on the diagonal of the Hessian.
        self.scale = np.sqrt(1.0 + curvature * np.maximum(squares, 0.0))
        if fit_intercept:
            # A constant feature does what the intercept does for free, so its coefficient is 0, not rounding errors.
            self.scale[squares <= total * (_CONSTANT * self.centre) ** 2] = np.inf
        self.intercept_scale = np.sqrt(curvature * total)
        self.mixing = self._decorrelation(curvature)

    @property
    def size(self) -> int:
        """Number of variables."""
        return self.n_outputs * (self.features.shape[1] + self.fit_intercept)

    def value_and_gradient(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Objective and gradient in the coordinates of the solvers."""
        coef, shift = self._split(point)
        scores = self.features @ coef.T + (shift - coef @ self.centre)
        margins = self._margins(scores)
        tail_value, steepness = self.tail.evaluate(np.clip((margins - self.tau) / self.sigma, 0.0, self.tail.reach))
        losses = np.maximum(self.tau - margins, 0.0) + self.sigma * tail_value
        if self.own is not None:
            losses[self.own] = 0.0
            steepness = steepness.copy()
            steepness[self.own] = 0.0
        in_scores = self._to_scores(steepness * self.costs[:, None])
        totals = in_scores.sum(axis=0)
        in_coef = coef + (self.features.T @ in_scores).T - np.outer(totals, self.centre)
        gradient = in_coef / self.scale
        if self.mixing is not None:
            gradient = gradient @ self.mixing.T
        gradient = gradient.ravel()
        if self.fit_intercept:
            gradient = np.concatenate([gradient, totals / self.intercept_scale])
        return float(0.5 * np.sum(coef**2) + self.costs @ losses.sum(axis=1)), gradient

    def model(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients (n_outputs, n_features) and intercepts; of several classes, those that sum to zero."""
        coef, shift = self._split(point)
        intercept = shift - coef @ self.centre if self.fit_intercept else np.zeros(self.n_outputs)
        if self.own is not None:
            coef, intercept = coef - coef.mean(axis=0), intercept - intercept.mean()
        return coef, intercept

    def primal_dual(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[float, float]:
        """Objective at a model, and a lower bound of the least objective made from its slopes."""
        margins = self._margins(self.features @ coef.T + intercept)
        loss = linear_core(margins, self.tau, self.sigma, self.tail)
        steepness = -linear_core_slope(margins, self.tau, self.sigma, self.tail)
        if self.own is not None:
            loss[self.own] = steepness[self.own] = 0.0
        primal = 0.5 * np.sum(coef**2) + self.costs @ loss.sum(axis=1)
        if self.fit_intercept:
            steepness = self._balanced(steepness)
        conjugate = linear_core_conjugate(steepness, self.tau, self.sigma, self.tail)
        with np.errstate(over="ignore"):  # a bound of minus infinity is one
            weight_sum = self.features.T @ self._to_scores(steepness * self.costs[:, None])
            dual = -0.5 * np.sum(weight_sum**2) - self.costs @ conjugate.sum(axis=1)
        return float(primal), float(dual)

    def lipschitz_constant(self) -> float:
        """Bound on the curvature of the objective in the coordinates of the solvers."""
        n_features = self.features.shape[1]
        if np.isinf(self.scale).all():  # the intercept alone is left
            return 1.01

        def apply(direction: np.ndarray) -> np.ndarray:
            scaled = direction.reshape(-1)
            scaled = (scaled if self.mixing is None else scaled @ self.mixing) / self.scale
            scores = self.features @ scaled - self.centre @ scaled
            weighted = self.costs * scores * (self.tail.curvature / self.sigma)
            image = (scaled + self.features.T @ weighted - weighted.sum() * self.centre) / self.scale
            return image if self.mixing is None else self.mixing @ image

        if n_features <= 2:
            dense = np.column_stack([apply(column) for column in np.eye(n_features)])
            largest = np.linalg.eigvalsh(0.5 * (dense + dense.T))[-1]
        else:
            operator = LinearOperator((n_features, n_features), matvec=apply, dtype=float)
            start = np.ones(n_features)
            largest = eigsh(operator, k=1, which="LA", v0=start, tol=1e-3, return_eigenvectors=False)[0]
        # The intercept is orthogonal to the centred features and has curvature 1; the margin covers the tolerance.
        return 1.01 * max(float(largest), 1.0)

    def _decorrelation(self, curvature: float) -> np.ndarray | None:
        """Inverse Cholesky factor of a bound on the scaled Hessian, for dense features that are few."""
        n_features = self.features.shape[1]
        if sparse.issparse(self.features) or n_features > _FEW_FEATURES:
            return None
        scaled = (self.features - self.centre) / self.scale
        bound = curvature * (scaled.T * self.costs) @ scaled + np.diag(1.0 / self.scale**2)
        # The small multiple of the identity keeps the factorisation possible; what it factorises need not be exact.
        factor = np.linalg.cholesky(bound + 1e-8 * np.eye(n_features))
        return solve_triangular(factor, np.eye(n_features), lower=True)

    def _split(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients, and scores at the centre of the features."""
        n_coef = self.n_outputs * self.features.shape[1]
        coef = point[:n_coef].reshape(self.n_outputs, -1)
        coef = (coef if self.mixing is None else coef @ self.mixing) / self.scale
        shift = point[n_coef:] / self.intercept_scale if self.fit_intercept else np.zeros(self.n_outputs)
        return coef, shift

    def _margins(self, scores: np.ndarray) -> np.ndarray:
        return self.sign * scores if self.sign is not None else scores.mean(axis=1, keepdims=True) - scores

    def _to_scores(self, steepness: np.ndarray) -> np.ndarray:
        """Gradient in the scores of an objective whose gradient in the margins is minus ``steepness``."""
        if self.sign is not None:
            return -self.sign * steepness
        return steepness - steepness.mean(axis=1, keepdims=True)

    def _balanced(self, steepness: np.ndarray) -> np.ndarray:
        """Scale the steepnesses down, class by class, so that the intercept's dual condition holds."""
        weighted = steepness * self.costs[:, None]
        if self.sign is None:
            totals = weighted.sum(axis=0)
            return steepness * np.divide(totals.min(), totals, out=np.zeros_like(totals), where=totals > 0)
        positive = self.labels == 1
        totals = np.array([weighted[~positive].sum(), weighted[positive].sum()])
        factors = np.divide(totals.min(), totals, out=np.zeros(2), where=totals > 0)
        return steepness * factors[self.labels][:, None]


class _Progress:
    """Decides from the duality gap when to stop; looks at it ever more rarely, since it costs half an evaluation."""

    def __init__(self, problem: TrainingProblem, tol: float) -> None:
        self.problem, self.tol = problem, tol
        self.evaluations = self.iteration = self.next_check = 0
        self.rows: list[tuple[float, ...]] = []
        self.started = time.perf_counter()
        self.converged = False

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        self.evaluations += 1
        return self.problem.value_and_gradient(point)

    def check(self, point: np.ndarray, force: bool = False) -> bool:
        """Note that an iteration is done; return whether the gap is small enough, as far as it was computed."""
        if force or self.iteration >= self.next_check:
            self.next_check = self.iteration + max(4, self.iteration // 10)
            primal, dual = self.problem.primal_dual(*self.problem.model(point))
            gap = primal - dual
            seconds = time.perf_counter() - self.started
            self.rows.append((self.iteration, self.evaluations, seconds, primal, gap))
            self.converged = gap <= self.tol * primal
        return self.converged

    def history(self) -> dict[str, np.ndarray]:
        columns = np.array(self.rows).reshape(-1, 5).T
        names = ("iteration", "evaluations", "seconds", "objective", "gap")
        return {
            name: column.astype(int) if name in names[:2] else column
            for name, column in zip(names, columns, strict=True)
        }


def minimize_lbfgs(
    problem: TrainingProblem, tol: float, max_iter: int
) -> tuple[np.ndarray, int, dict[str, np.ndarray]]:
    """Minimise by L-BFGS until the duality gap is at most ``tol`` times the objective.

    Parameters
    ----------
    problem : TrainingProblem
        What to minimise.
    tol : float
        Relative duality gap to stop at.
    max_iter : int
        Most iterations.

    Returns
    -------
    point : numpy.ndarray
        The solution, for :meth:`TrainingProblem.model`.
    n_iter : int
        Iterations.
    history : dict of str to numpy.ndarray
        ``iteration``, ``evaluations``, ``seconds``, ``objective`` and ``gap``, each time the gap was looked at.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.linear_core import resolve_tail
    >>> from assay.supervised.linear_core_training import TrainingProblem, minimize_lbfgs
    >>> problem = TrainingProblem(np.array([[-1.0], [1.0]]), np.array([0, 1]), 2, np.ones(2), 0.7, 0.3,
    ...                           resolve_tail("quad"), True)
    >>> point, n_iter, history = minimize_lbfgs(problem, tol=1e-10, max_iter=100)
    >>> bool(history["gap"][-1] <= 1e-10)
    True
    """
    progress = _Progress(problem, tol)
    point = np.zeros(problem.size)

    def after_iteration(intermediate_result: OptimizeResult) -> None:
        progress.iteration += 1
        if progress.check(intermediate_result.x):
            raise StopIteration

    progress.check(point)
    while not progress.converged and progress.iteration < max_iter:
        before = progress.iteration
        # scipy also returns an inverse Hessian, which is not used and overflows for objectives near 0.
        with np.errstate(over="ignore", divide="ignore"):
            answer = minimize(
                progress.evaluate,
                point,
                jac=True,
                method="L-BFGS-B",
                callback=after_iteration,
                options={
                    "maxiter": max_iter - progress.iteration,
                    "maxfun": 20 * max_iter,
                    "maxcor": 20,
                    "ftol": 0.0,
                    "gtol": 0.0,
                },
            )
        point = answer.x
        # A line search that fails ends the run. Its memory may be to blame, so it starts again without. When that makes
        # no headway, the differences of objectives are below rounding; gradients can be followed further than that.
        if progress.iteration - before <= 1:
            point = _accelerate(progress, point, max_iter)
    if not progress.converged:
        progress.check(point, force=True)
    return point, progress.iteration, progress.history()


def minimize_nesterov(
    problem: TrainingProblem, tol: float, max_iter: int
) -> tuple[np.ndarray, int, dict[str, np.ndarray]]:
    """Minimise by accelerated gradient descent with step ``1 / L``, restarted when the momentum points uphill.

    Parameters
    ----------
    problem : TrainingProblem
        What to minimise.
    tol : float
        Relative duality gap to stop at.
    max_iter : int
        Most iterations, of one evaluation each.

    Returns
    -------
    point, n_iter, history
        As for :func:`minimize_lbfgs`.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.linear_core import resolve_tail
    >>> from assay.supervised.linear_core_training import TrainingProblem, minimize_nesterov
    >>> problem = TrainingProblem(np.array([[-1.0], [1.0]]), np.array([0, 1]), 2, np.ones(2), 0.7, 0.3,
    ...                           resolve_tail("quad"), True)
    >>> point, n_iter, history = minimize_nesterov(problem, tol=1e-10, max_iter=100)
    >>> bool(history["gap"][-1] <= 1e-10)
    True
    """
    progress = _Progress(problem, tol)
    point = np.zeros(problem.size)
    progress.check(point)
    point = _accelerate(progress, point, max_iter)
    if not progress.converged:
        progress.check(point, force=True)
    return point, progress.iteration, progress.history()


def _accelerate(progress: _Progress, point: np.ndarray, max_iter: int) -> np.ndarray:
    """Accelerated steps from ``point``, as long as the gap is too large and there are iterations left."""
    step = 1.0 / progress.problem.lipschitz_constant()
    ahead, momentum = point, 1.0
    while not progress.converged and progress.iteration < max_iter:
        _, gradient = progress.evaluate(ahead)
        following = ahead - step * gradient
        move = following - point
        if gradient @ move > 0.0:
            momentum, ahead = 1.0, following
        else:
            next_momentum = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
            ahead = following + (momentum - 1.0) / next_momentum * move
            momentum = next_momentum
        point = following
        progress.iteration += 1
        progress.check(point)
    return point
