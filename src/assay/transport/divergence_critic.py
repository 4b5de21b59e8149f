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

from assay.transport.amari_divergence import CriticDivergence

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

    def _feature_blocks(self, sample: Sample) -> Iterator[tuple[slice, Float[np.ndarray, "block features"]]]:
        buffer = np.empty((min(self.block_rows, len(sample)), self.features.n_features))
        for block, points in sample.blocks(self.block_rows):
            yield block, self.features.transform(points, out=buffer[: len(points)])

    def value(
        self,
        theta: Float[np.ndarray, " parameters"],
        scores: tuple[Float[np.ndarray, " rows_p"], Float[np.ndarray, " rows_q"]],
    ) -> float:
        """The functional, from the values of the critic; -inf where it overflows."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = self.divergence.p_integrand(scores[0])[0].mean() + self.divergence.q_integrand(scores[1])[0].mean()
        value = float(total) - 0.5 * self.ridge * float(theta @ theta)
        return value if np.isfinite(value) else -np.inf

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

    def gradient_and_curvature(
        self,
        theta: Float[np.ndarray, " parameters"],
        scores: tuple[Float[np.ndarray, " rows_p"], Float[np.ndarray, " rows_q"]],
        stride: int = 1,
    ) -> tuple[Float[np.ndarray, " parameters"], Float[np.ndarray, "parameters parameters"]]:
        """Gradient, and minus the Hessian, in one pass.

        Parameters
        ----------
        theta : array of shape (D + 1,)
            The parameters.
        scores : tuple of arrays
            Values of the critic on both samples.
        stride : int, default=1
            The Hessian is estimated from every so-manieth block of rows; the gradient takes all of them.

        Returns
        -------
        gradient : array of shape (D + 1,)
        curvature : array of shape (D + 1, D + 1)
            Positive semidefinite.
        """
        n_features = self.features.n_features
        gradient = -self.ridge * theta
        curvature = np.zeros((n_features + 1, n_features + 1))
        for sample, integrand, g in (
            (self.P, self.divergence.p_integrand, scores[0]),
            (self.Q, self.divergence.q_integrand, scores[1]),
        ):
            _, slope, bend = integrand(g)
            used = sum(block.stop - block.start for i, block in enumerate(self._slices(sample)) if i % stride == 0)
            slope, weight = slope / len(g), np.maximum(-bend, 0.0) / used
            for i, (block, features) in enumerate(self._feature_blocks(sample)):
                gradient[:-1] += slope[block] @ features
                if i % stride or not weight[block].any():
                    continue
                root = np.sqrt(weight[block])
                curvature[:-1, -1] += weight[block] @ features
                curvature[-1, -1] += weight[block].sum()
                features *= root[:, None]
                curvature[:-1, :-1] += features.T @ features
            gradient[-1] += slope.sum()
        curvature[-1, :-1] = curvature[:-1, -1]
        curvature[np.diag_indices_from(curvature)] += self.ridge
        return gradient, curvature

    def _slices(self, sample: Sample) -> Iterator[slice]:
        for start in range(0, len(sample), self.block_rows):
            yield slice(start, min(start + self.block_rows, len(sample)))

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
