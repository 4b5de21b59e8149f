r"""The concave problem of a linear critic: features, a ball, and the functional of a divergence.

The critic is :math:`g(x) = w^\top\phi(x) + c` with :math:`|w|_2 \le R` and :math:`|c| \le C`, its parameters
``theta = (w, c)``. The functional :math:`J(\theta) = E_P[a(g)] + E_Q[b(g)]` is concave in them, so at any point the
largest value of its linearisation over the feasible set bounds what is missing to the optimum, the Frank-Wolfe gap

.. math:: G(\theta) = R|\nabla_w| + C|\nabla_c| - \langle\nabla, \theta\rangle \;\ge\; \max J - J(\theta).

Features are never stored: every pass makes them block by block, in memory for two blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Integer

from assay.transport.amari_divergence import AmariDivergence, CriticDivergence
from assay.transport.amari_kernels import mean_integral

__all__ = ["CriticProblem", "FeatureMap", "GivenFeatures", "Sample", "project_to_ball", "row_numbers"]


def row_numbers(n: int) -> Integer[np.ndarray, " rows"]:
    """The numbers from 0 to n - 1 in half the memory that they would take by default, where that is possible."""
    return np.arange(n, dtype=np.int32 if n < 2**31 else np.int64)


@runtime_checkable
class FeatureMap(Protocol):
    """What turns points into features."""

    @property
    def n_features(self) -> int:
        """Number of features."""
        ...

    def transform(self, X: Any, out: Any = None) -> Any:
        """Features of points, one row each, written to ``out`` if that is given."""
        ...

    def astype(self, dtype: Any) -> Any:
        """The same features in another precision."""
        ...


@dataclass(frozen=True)
class GivenFeatures:
    """The map for points that are features already.

    Parameters
    ----------
    n_features : int
        Number of columns.
    """

    n_features: int

    def transform(
        self, X: Float[np.ndarray, "rows features"], out: Float[np.ndarray, "rows features"] | None = None
    ) -> Float[np.ndarray, "rows features"]:
        """The points themselves, copied."""
        if out is None:
            return X.copy()
        out[...] = X
        return out

    def astype(self, dtype: type) -> GivenFeatures:
        """The same: precision is that of what is written to."""
        return self


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of an array, which is not copied.

    Parameters
    ----------
    points : array of shape (n, d)
        All rows.
    rows : array of int
        Those that count.
    """

    points: Float[np.ndarray, "all dimension"]
    rows: Integer[np.ndarray, " rows"]

    @classmethod
    def whole(cls, points: Float[np.ndarray, "all dimension"]) -> Sample:
        """All rows of an array."""
        return cls(points, row_numbers(len(points)))

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self, size: int) -> Iterator[tuple[slice, Float[np.ndarray, "block dimension"]]]:
        """The points in blocks, with their positions."""
        for start in range(0, len(self.rows), size):
            block = slice(start, min(start + size, len(self.rows)))
            yield block, self.points[self.rows[block]]


@dataclass(frozen=True, eq=False)
class CriticProblem:
    """Maximise the functional of a divergence over linear critics in a ball.

    Parameters
    ----------
    divergence : object with p_integrand and q_integrand
        Which functional.
    P, Q : Sample
        The two samples.
    features : object with n_features and transform
        What the critic is linear in.
    radius : float
        Largest norm of the weights.
    offset : float
        Largest size of the constant.
    ridge : float, default=0.0
        Half of it times the squared norm of all parameters is subtracted from the functional.
    block_rows : int, default=512
        Rows whose features are in memory at one time.
    """

    divergence: CriticDivergence
    P: Sample
    Q: Sample
    features: FeatureMap
    radius: float
    offset: float
    ridge: float = 0.0
    block_rows: int = 512

    @property
    def n_parameters(self) -> int:
        """Number of features, and one for the constant."""
        return self.features.n_features + 1

    def scores(
        self, theta: Float[np.ndarray, " parameters"]
    ) -> tuple[Float[np.ndarray, " rows_p"], Float[np.ndarray, " rows_q"]]:
        """Values of the critic on both samples."""
        return self._scores(self.P, theta), self._scores(self.Q, theta)

    def _scores(self, sample: Sample, theta: Float[np.ndarray, " parameters"]) -> Float[np.ndarray, " rows"]:
        g = np.empty(len(sample))
        for block, features in self._feature_blocks(sample):
            np.matmul(features, theta[:-1], out=g[block])
        g += theta[-1]
        return g

    def _feature_blocks(
        self, sample: Sample, buffer: Float[np.ndarray, "rows features"] | None = None
    ) -> Iterator[tuple[slice, Float[np.ndarray, "block features"]]]:
        """Features of a sample, block by block in the same memory."""
        buffer = self._buffer() if buffer is None else buffer
        for block, points in sample.blocks(self.block_rows):
            yield block, self.features.transform(points, out=buffer[: len(points)])

    def _buffer(self) -> Float[np.ndarray, "rows features"]:
        """Room for the features of a block of either sample."""
        return np.empty((min(self.block_rows, max(len(self.P), len(self.Q))), self.features.n_features))

    def value(
        self,
        theta: Float[np.ndarray, " parameters"],
        scores: tuple[Float[np.ndarray, " rows_p"], Float[np.ndarray, " rows_q"]],
    ) -> float:
        """The functional, from the values of the critic; -inf where it overflows."""
        return self.value_on_line(theta, scores, scores, 0.0, 1.0, 0.0)

    def value_on_line(
        self,
        theta: Float[np.ndarray, " parameters"],
        starts: tuple[Float[np.ndarray, " rows_p"], Float[np.ndarray, " rows_q"]],
        changes: tuple[Float[np.ndarray, " rows_p"], Float[np.ndarray, " rows_q"]],
        step_size: float,
        scale: float,
        constant: float,
    ) -> float:
        """The functional at parameters whose critic is ``scale * (starts + step_size * changes) + constant``."""
        if type(self.divergence) is AmariDivergence:
            alpha = self.divergence.alpha
            total = mean_integral(alpha - 1.0, starts[0], changes[0], step_size, scale, constant)
            total -= mean_integral(alpha, starts[1], changes[1], step_size, scale, constant)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                g_P, g_Q = (scale * (g + step_size * h) + constant for g, h in zip(starts, changes, strict=True))
                total = float(self.divergence.p_integrand(g_P)[0].mean() + self.divergence.q_integrand(g_Q)[0].mean())
        return self._penalised(total, theta)

    def _penalised(self, total: float, theta: Float[np.ndarray, " parameters"]) -> float:
        value = total - 0.5 * self.ridge * float(theta @ theta)
        return value if np.isfinite(value) else -np.inf

    def values_towards(
        self,
        theta: Float[np.ndarray, " parameters"],
        direction: Float[np.ndarray, " parameters"],
        step_sizes: Float[np.ndarray, " steps"],
    ) -> Float[np.ndarray, " steps"]:
        """The functional at ``theta + t * direction`` for several ``t``, in one pass; -inf where it overflows."""
        totals = np.zeros(len(step_sizes))
        with np.errstate(over="ignore", invalid="ignore"):
            for sample, integrand in self._sides():
                for _, features in self._feature_blocks(sample):
                    start = features @ theta[:-1] + theta[-1]
                    change = features @ direction[:-1] + direction[-1]
                    for i, t in enumerate(step_sizes):
                        totals[i] += integrand(start + t * change)[0].sum() / len(sample)
        return np.array(
            [self._penalised(total, theta + t * direction) for total, t in zip(totals, step_sizes, strict=True)]
        )

    def _sides(self) -> tuple[tuple[Sample, Any], tuple[Sample, Any]]:
        return (self.P, self.divergence.p_integrand), (self.Q, self.divergence.q_integrand)

    def gradient(
        self,
        theta: Float[np.ndarray, " parameters"],
        scores: tuple[Float[np.ndarray, " rows_p"], Float[np.ndarray, " rows_q"]] | None = None,
    ) -> Float[np.ndarray, " parameters"]:
        """Gradient of the functional."""
        g_P, g_Q = self.scores(theta) if scores is None else scores
        gradient = -self.ridge * theta
        for sample, slope in (
            (self.P, self.divergence.p_integrand(g_P)[1] / len(g_P)),
            (self.Q, self.divergence.q_integrand(g_Q)[1] / len(g_Q)),
        ):
            for block, features in self._feature_blocks(sample):
                gradient[:-1] += slope[block] @ features
            gradient[-1] += slope.sum()
        return gradient

    def expand(
        self, theta: Float[np.ndarray, " parameters"], stride: int = 1
    ) -> tuple[float, Float[np.ndarray, " parameters"], Float[np.ndarray, "parameters parameters"] | None]:
        """Value, gradient and minus the Hessian, in one pass that keeps nothing of the length of a sample.

        Parameters
        ----------
        theta : array of shape (D + 1,)
            The parameters.
        stride : int, default=1
            The Hessian is estimated from every so-manieth block of rows; value and gradient take all of them. With 0
            there is none.

        Returns
        -------
        value : float
            -inf where it overflows.
        gradient : array of shape (D + 1,)
        curvature : array of shape (D + 1, D + 1) or None
            Positive semidefinite.
        """
        n_features = self.features.n_features
        total, gradient = 0.0, -self.ridge * theta
        size = n_features if stride else 0
        curvature, product = np.zeros((size + 1, size + 1)), np.empty((size, size))
        buffer = self._buffer()
        with np.errstate(over="ignore", invalid="ignore"):
            for sample, integrand in self._sides():
                n = len(sample)
                used = sum(len(rows) for i, rows in enumerate(self._slices(sample)) if stride and i % stride == 0)
                for i, (_, features) in enumerate(self._feature_blocks(sample, buffer)):
                    value, slope, bend = integrand(features @ theta[:-1] + theta[-1])
                    total += float(value.sum()) / n
                    gradient[:-1] += slope @ features / n
                    gradient[-1] += float(slope.sum()) / n
                    if not stride or i % stride:
                        continue
                    weight = np.maximum(-bend, 0.0) / used
                    if not weight.any():
                        continue
                    curvature[:-1, -1] += weight @ features
                    curvature[-1, -1] += weight.sum()
                    features *= np.sqrt(weight)[:, None]
                    curvature[:-1, :-1] += np.matmul(features.T, features, out=product)
        value = self._penalised(total, theta)
        if not stride:
            return value, gradient, None
        curvature[-1, :-1] = curvature[:-1, -1]
        curvature[np.diag_indices_from(curvature)] += self.ridge
        return value, gradient, curvature

    def _slices(self, sample: Sample) -> Iterator[range]:
        for start in range(0, len(sample), self.block_rows):
            yield range(start, min(start + self.block_rows, len(sample)))

    def gap(self, theta: Float[np.ndarray, " parameters"], gradient: Float[np.ndarray, " parameters"]) -> float:
        """Frank-Wolfe gap: the functional is at most this much higher anywhere in the feasible set."""
        steepest = self.radius * np.linalg.norm(gradient[:-1]) + self.offset * abs(gradient[-1])
        return float(steepest - gradient @ theta)

    def project(self, theta: Float[np.ndarray, " parameters"]) -> Float[np.ndarray, " parameters"]:
        """The closest feasible parameters."""
        return project_to_ball(theta, self.radius, self.offset)


def project_to_ball(
    theta: Float[np.ndarray, " parameters"], radius: float, offset: float
) -> Float[np.ndarray, " parameters"]:
    """Closest parameters whose weights are at most ``radius`` long and whose last entry is at most ``offset`` large.

    Parameters
    ----------
    theta : array of shape (D + 1,)
        Weights and constant.
    radius, offset : float
        The two bounds.

    Returns
    -------
    array of shape (D + 1,)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.divergence_critic import project_to_ball
    >>> project_to_ball(np.array([3.0, 4.0, -7.0]), radius=2.5, offset=1.0)
    array([ 1.5,  2. , -1. ])
    """
    projected = theta.copy()
    norm = np.linalg.norm(theta[:-1])
    if norm > radius:
        projected[:-1] *= radius / norm
    projected[-1] = np.clip(theta[-1], -offset, offset)
    return projected
