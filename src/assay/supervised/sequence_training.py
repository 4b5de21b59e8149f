r"""The training problem of the sequence tagger: a multi-class linear-core loss on a sparse matrix, and a ridge penalty.

The duality gap needs no dual variables of its own. For a mean of convex losses plus ``alpha / 2 |theta|^2``, the slopes
of the losses at ``theta`` are feasible for the dual problem, and the two objectives differ by
``|gradient|^2 / (2 alpha)``.

What the features cannot tell apart, no function of them can tag differently. So the least training error and the least
surrogate risk of *any* function of the features are known: they come from disagreement among the tags of equal rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse as sp
from jaxtyping import Float, Int

from assay.supervised.linear_core import LinearCoreTail, linear_core, linear_core_slope, resolve_tail
from assay.supervised.sampled_descent import SampledDescent
from assay.supervised.structured_consistency import least_conditional_risk

__all__ = ["TaggingProblem", "training_rows"]

#: Scores that are held at once while the objective is evaluated.
_BLOCK_ENTRIES = 4_000_000


def training_rows(
    features: sp.csr_array,
    lengths: Int[np.ndarray, " sequences"],
    target: Int[np.ndarray, " rows"],
    n_tags: int | None,
) -> sp.csr_array:
    """Features of the positions, with indicators of the true tag before (or of the start) and a constant.

    Parameters
    ----------
    features : scipy.sparse.csr_array of shape (rows, columns)
        One row per position.
    lengths : numpy.ndarray of shape (sequences,)
        Rows of each sequence.
    target : numpy.ndarray of shape (rows,)
        The tags.
    n_tags : int or None
        Number of tags; None leaves the tag before out.

    Returns
    -------
    scipy.sparse.csr_array
        With ``columns + n_tags + 2`` columns, or ``columns + 1``.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from assay.supervised.sequence_training import training_rows
    >>> features = sp.csr_array([[5.0], [6.0], [7.0]])
    >>> training_rows(features, np.array([2, 1]), np.array([0, 1, 1]), 2).toarray()
    array([[5., 0., 0., 1., 1.],
           [6., 1., 0., 0., 1.],
           [7., 0., 0., 1., 1.]])
    """
    n_rows = features.shape[0]
    blocks = [features]
    if n_tags is not None:
        previous = np.roll(target, 1)
        previous[np.cumsum(lengths) - lengths] = n_tags
        blocks.append(sp.csr_array((np.ones(n_rows), previous, np.arange(n_rows + 1)), shape=(n_rows, n_tags + 1)))
    blocks.append(sp.csr_array(np.ones((n_rows, 1))))
    return sp.csr_array(sp.hstack(blocks, format="csr"))


class TaggingProblem:
    """Mean linear-core loss of a linear model plus a ridge penalty.

    Parameters
    ----------
    design : scipy.sparse.csr_array of shape (rows, features)
        The data.
    target : numpy.ndarray of shape (rows,)
        The true tags.
    n_tags : int
        Number of tags, at least 2.
    alpha : float
        The penalty is ``alpha / 2`` times the squared coefficients.
    tau, sigma, tail
        The linear-core loss.
    scale : float
        Factor of the centred scores.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from assay.supervised.sequence_training import TaggingProblem
    >>> problem = TaggingProblem(
    ...     sp.csr_array(np.eye(3)), np.arange(3), 3, alpha=0.01, tau=0.7, sigma=0.3, tail="exp", scale=1.0
    ... )
    >>> coefficients, history = problem.solve(max_iter=100, tol=1e-6)
    >>> objective, gap = problem.objective_and_gap(coefficients)
    >>> gap <= 1e-6 * objective, coefficients.argmax(axis=1).tolist()
    (True, [0, 1, 2])
    """

    def __init__(
        self,
        design: sp.csr_array,
        target: Int[np.ndarray, " rows"],
        n_tags: int,
        *,
        alpha: float,
        tau: float,
        sigma: float,
        tail: str | LinearCoreTail,
        scale: float,
    ) -> None:
        tail = resolve_tail(tail)
        self.design = design
        self.target = target
        self.n_tags = n_tags
        self.alpha = alpha
        self.shape_of_loss = (tau, sigma, tail)
        self.scale = scale
        with np.errstate(over="ignore"):
            squares = np.asarray(design.multiply(design).mean(axis=0)).reshape(-1, 1)
            self.curvature = np.square(np.float64(scale)) * (tail.curvature / sigma) * squares
        if not np.isfinite(self.curvature).all():
            raise ValueError(
                f"X and score_scale must be so small that the curvature of the loss is finite, got features up to "
                f"{abs(design).max():g} and a scale of {scale:g}"
            )

    def loss_and_gradient(
        self, coefficients: Float[np.ndarray, "features tags"]
    ) -> tuple[float, Float[np.ndarray, "features tags"]]:
        """Mean loss without the penalty, a block of rows at a time."""
        total, gradient = 0.0, np.zeros_like(coefficients)
        for block, true in self._blocks():
            places = np.arange(len(true))
            scores = block @ coefficients
            margins = self.scale * (scores.mean(axis=1, keepdims=True) - scores)
            losses = linear_core(margins, *self.shape_of_loss)
            losses[places, true] = 0.0
            total += float(losses.sum())
            slopes = -linear_core_slope(margins, *self.shape_of_loss)
            slopes[places, true] = 0.0
            slopes -= slopes.mean(axis=1, keepdims=True)
            gradient += block.T @ slopes
        return total / len(self.target), gradient * (self.scale / len(self.target))

    def objective_and_gap(self, coefficients: Float[np.ndarray, "features tags"]) -> tuple[float, float]:
        """Value of the problem, and how far at most it is from the least one."""
        loss, gradient = self.loss_and_gradient(coefficients)
        with np.errstate(over="ignore"):
            return self._objective(loss, coefficients), self._gap(gradient, coefficients)

    def solve(self, max_iter: int, tol: float) -> tuple[Float[np.ndarray, "features tags"], dict[str, np.ndarray]]:
        """Minimise by L-BFGS until the gap is ``tol`` times the objective; the coefficients and the history."""
        # Columns differ in frequency by orders of magnitude. Scaled by their share of the curvature (a tenth of its
        # largest value, since few scores are in the curved part) the problem takes a tenth of the iterations.
        unit = 1.0 / np.sqrt(self.alpha + 0.1 * self.curvature)
        shape = (self.design.shape[1], self.n_tags)
        recorded: list[tuple[float, float]] = []
        latest = (np.inf, np.inf)

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal latest
            coefficients = unit * flat.reshape(shape)
            loss, gradient = self.loss_and_gradient(coefficients)
            latest = (self._objective(loss, coefficients), self._gap(gradient, coefficients))
            return latest[0], (unit * (gradient + self.alpha * coefficients)).reshape(-1)

        def stop_at_the_gap(intermediate_result: Any) -> None:
            recorded.append(latest)
            # A little less than is promised, since rounding differs when the certificate computes the gap anew.
            if latest[1] <= 0.99 * tol * latest[0]:
                raise StopIteration

        start = np.zeros(shape[0] * shape[1])
        objective(start)
        if latest[1] <= 0.99 * tol * latest[0]:  # a gradient that is hardly there would send L-BFGS far away
            return start.reshape(shape), {"iteration": np.arange(0), "objective": np.empty(0), "gap": np.empty(0)}
        answer = scipy.optimize.minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            callback=stop_at_the_gap,
            options={"maxiter": max_iter, "maxfun": 2 * max_iter + 20, "maxcor": 10, "ftol": 0.0, "gtol": 0.0},
        )
        values, gaps = np.array(recorded).reshape(-1, 2).T
        history = {"iteration": np.arange(1, len(recorded) + 1), "objective": values, "gap": gaps}
        return unit * answer.x.reshape(shape), history

    def descend(
        self, n_passes: int, n_samples: int, learning_rate: float, rng: np.random.Generator
    ) -> Float[np.ndarray, "features tags"]:
        """Minimise by stochastic steps on sampled wrong tags, a number of passes over the data in random order."""
        tau, sigma, tail = self.shape_of_loss
        descent = SampledDescent(
            self.design.shape[1],
            self.n_tags,
            alpha=self.alpha,
            learning_rate=learning_rate * self.n_tags / self.scale,
            n_samples=n_samples,
            tau=tau,
            sigma=sigma,
            tail=tail.name,
        )
        scaled = sp.csr_array(
            (self.scale * self.design.data, self.design.indices, self.design.indptr), shape=self.design.shape
        )
        for _ in range(n_passes):
            descent.run(scaled, self.target, rng.permutation(len(self.target)), rng)
        return descent.coefficients()

    def excess_risks(self, coefficients: Float[np.ndarray, "features tags"]) -> tuple[float, float]:
        """Training error and mean loss, each minus the least that any function of the features can have."""
        wrong = 0
        for block, true in self._blocks():
            wrong += int(((block @ coefficients).argmax(axis=1) != true).sum())
        least_wrong, least_loss, costs = 0, 0.0, []
        for members in self._equal_rows():
            counts = np.bincount(self.target[members], minlength=self.n_tags)
            if counts.max() == len(members):
                continue
            least_wrong += len(members) - int(counts.max())
            costs.append(float(len(members)) - counts)
            if len(costs) * self.n_tags >= _BLOCK_ENTRIES:
                least_loss += float(least_conditional_risk(np.array(costs), *self.shape_of_loss).sum())
                costs = []
        if costs:
            least_loss += float(least_conditional_risk(np.array(costs), *self.shape_of_loss).sum())
        loss, _ = self.loss_and_gradient(coefficients)
        n_rows = len(self.target)
        return (wrong - least_wrong) / n_rows, loss - least_loss / n_rows

    def _objective(self, loss: float, coefficients: np.ndarray) -> float:
        return loss + 0.5 * self.alpha * float(np.vdot(coefficients, coefficients))

    def _gap(self, gradient: np.ndarray, coefficients: np.ndarray) -> float:
        residual = gradient + self.alpha * coefficients
        return float(np.vdot(residual, residual)) / (2.0 * self.alpha)

    def _blocks(self) -> list[tuple[sp.csr_array, np.ndarray]]:
        size = max(1, _BLOCK_ENTRIES // self.n_tags)
        if size >= len(self.target):
            return [(self.design, self.target)]
        starts = range(0, len(self.target), size)
        return [(self.design[first : first + size], self.target[first : first + size]) for first in starts]

    def _equal_rows(self) -> list[list[int]]:
        groups: dict[tuple[bytes, bytes], list[int]] = {}
        pointers, columns, values = self.design.indptr, self.design.indices, self.design.data
        for row in range(len(self.target)):
            entries = slice(pointers[row], pointers[row + 1])
            groups.setdefault((columns[entries].tobytes(), values[entries].tobytes()), []).append(row)
        return list(groups.values())
