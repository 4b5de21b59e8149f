r"""Newton's method on a ball times an interval, each step solved exactly.

First-order methods leave a Frank-Wolfe gap of a few hundredths on badly conditioned features, too much to certify
anything. Newton's method takes a handful of steps. Each maximises the quadratic model

.. math:: \nabla^\top(x - \theta) - \tfrac12 (x - \theta)^\top H (x - \theta)
          \quad\text{over}\quad |w| \le R,\ |c| \le C

exactly: the constant is eliminated, an eigendecomposition of the rest makes the ball a scalar equation for its
multiplier, and the step towards the maximiser is cut back until it pays. The set is convex, so all iterates are
feasible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh
from scipy.optimize import brentq

from assay.transport.divergence_critic import CriticProblem

__all__ = ["NewtonRun", "hessian_stride", "maximise_by_newton", "maximise_quadratic"]

# The Hessian is estimated from at most this many rows of both samples together; gradient and gap take all of them.
HESSIAN_ROWS = 50_000

_RIDGE = 1e-10
_SLOPE_SHARE = 0.1
_SHORTEST_STEP = 1e-10


@dataclass(frozen=True, eq=False)
class NewtonRun:
    """Where Newton's method ended, and how.

    Parameters
    ----------
    theta : array of shape (D + 1,)
        The parameters.
    values, gaps, step_sizes : array
        The functional, the Frank-Wolfe gap and the part of the step that was taken, at the start (where that is nan)
        and after every step.
    curvature : array of shape (D + 1, D + 1)
        Minus the Hessian there, as it was estimated.
    """

    theta: Float[np.ndarray, " parameters"]
    values: Float[np.ndarray, " iterates"]
    gaps: Float[np.ndarray, " iterates"]
    step_sizes: Float[np.ndarray, " iterates"]
    curvature: Float[np.ndarray, "parameters parameters"]


def maximise_by_newton(
    problem: CriticProblem,
    start: Float[np.ndarray, " parameters"],
    *,
    tol: float,
    max_iter: int,
    record: Callable[[float, float, float], None] | None = None,
) -> NewtonRun:
    """Maximise the functional of a linear critic over its ball.

    Parameters
    ----------
    problem : CriticProblem
        What is maximised.
    start : array of shape (D + 1,)
        Feasible parameters.
    tol : float
        Frank-Wolfe gap at which it ends.
    max_iter : int
        Steps at most.
    record : callable, optional
        Called with value, gap and step size at the start and after every step.

    Returns
    -------
    NewtonRun
        It has ended earlier with a larger gap if rounding let no step improve the functional.

    Notes
    -----
    ``O(n D^2 + D^3)`` a step, in memory for one block of features and a few ``D`` by ``D`` matrices. With more than
    50 000 rows the Hessian is estimated from that many; the gap that ends the iteration is still one of all rows.
    """
    stride = hessian_stride(problem)
    theta = start
    value, gradient, curvature = problem.expand(theta, stride)
    values, gaps, step_sizes = [value], [problem.gap(theta, gradient)], [math.nan]
    if record is not None:
        record(values[-1], gaps[-1], step_sizes[-1])
    while gaps[-1] > tol and len(gaps) <= max_iter:
        ridge = _RIDGE * max(1.0, float(np.diag(curvature).mean()))
        direction = _model_maximiser(curvature, gradient, theta, ridge, problem) - theta
        slope = float(gradient @ direction)
        # The gap is of first order in the distance to the optimum and the functional of second: where the functional
        # no longer tells two points apart, the gap still does.
        rounding = 8.0 * np.finfo(float).eps * (1.0 + abs(value))
        # Nearly always the whole step pays, and then this pass has made all that the next one needs.
        step = 1.0
        del curvature  # not needed again, and two of them would be a good part of the memory
        candidate = problem.project(theta + direction)
        reached, new_gradient, curvature = problem.expand(candidate, stride)
        if not reached >= value + _SLOPE_SHARE * slope - rounding:
            step = _shorter_step(problem, theta, direction, value - rounding, slope)
            if step == 0.0:
                curvature = problem.expand(theta, stride)[2]
                break
            # Convex combinations are feasible up to rounding, which the projection takes away.
            candidate = problem.project(theta + step * direction)
            reached, new_gradient, curvature = problem.expand(candidate, stride)
        gap = problem.gap(candidate, new_gradient)
        if slope <= rounding and gap >= gaps[-1]:
            curvature = problem.expand(theta, stride)[2]
            break
        theta, value, gradient = candidate, reached, new_gradient
        values.append(value)
        gaps.append(gap)
        step_sizes.append(step)
        if record is not None:
            record(value, gap, step)
    return NewtonRun(theta, np.array(values), np.array(gaps), np.array(step_sizes), curvature)


def _model_maximiser(
    curvature: Float[np.ndarray, "parameters parameters"],
    gradient: Float[np.ndarray, " parameters"],
    theta: Float[np.ndarray, " parameters"],
    ridge: float,
    problem: CriticProblem,
) -> Float[np.ndarray, " parameters"]:
    """Where the quadratic model at ``theta`` is largest."""
    diagonal = np.diag(curvature).copy()
    curvature[np.diag_indices_from(curvature)] += ridge
    target = maximise_quadratic(curvature, gradient + curvature @ theta, problem.radius, problem.offset)
    curvature[np.diag_indices_from(curvature)] = diagonal
    return target


def _shorter_step(
    problem: CriticProblem,
    theta: Float[np.ndarray, " parameters"],
    direction: Float[np.ndarray, " parameters"],
    floor: float,
    slope: float,
) -> float:
    """The longest of 1/2, 1/4, ... that pays; 0 if none down to 1e-10 does. One pass tries eight of them."""
    longest = 0.5
    while longest >= _SHORTEST_STEP:
        steps = longest * 0.5 ** np.arange(8)
        pays = problem.values_towards(theta, direction, steps) >= floor + _SLOPE_SHARE * steps * slope
        if pays.any():
            return float(steps[np.argmax(pays)])
        longest = 0.5 * float(steps[-1])
    return 0.0


def hessian_stride(problem: CriticProblem) -> int:
    """Every so-manieth block of rows makes at most about 50 000 of them."""
    return max(1, -(-(len(problem.P) + len(problem.Q)) // HESSIAN_ROWS))


def maximise_quadratic(
    H: Float[np.ndarray, "parameters parameters"],
    rhs: Float[np.ndarray, " parameters"],
    radius: float,
    offset: float,
) -> Float[np.ndarray, " parameters"]:
    r"""Maximise :math:`r^\top x - \frac12 x^\top H x` over a ball for all entries but the last, an interval for that.

    Parameters
    ----------
    H : array of shape (D + 1, D + 1)
        Positive definite.
    rhs : array of shape (D + 1,)
        The linear part.
    radius, offset : float
        Bounds on the norm of the first ``D`` entries and on the size of the last.

    Returns
    -------
    array of shape (D + 1,)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.ball_newton import maximise_quadratic
    >>> maximise_quadratic(np.eye(3), np.array([3.0, 4.0, 0.5]), radius=1.0, offset=5.0).round(6)
    array([0.6, 0.8, 0.5])
    """
    H_ww, H_wc, H_cc = H[:-1, :-1], H[:-1, -1], H[-1, -1]
    w = _maximise_on_ball(H_ww - np.outer(H_wc, H_wc / H_cc), rhs[:-1] - H_wc * (rhs[-1] / H_cc), radius)
    c = (rhs[-1] - H_wc @ w) / H_cc
    if abs(c) > offset:
        # The best value for a given constant is concave in it, so its maximiser on the interval is the nearer end.
        c = np.sign(c) * offset
        w = _maximise_on_ball(H_ww.copy(), rhs[:-1] - H_wc * c, radius)
    return np.append(w, c)


def _maximise_on_ball(
    H: Float[np.ndarray, "features features"], rhs: Float[np.ndarray, " features"], radius: float
) -> Float[np.ndarray, " features"]:
    """Maximise ``rhs @ w - w @ H @ w / 2`` over ``|w| <= radius``; ``H`` is overwritten."""
    # Of a symmetric matrix in C order, the transpose is itself in the order in which it need not be copied.
    eigenvalues, basis = eigh(H.T, driver="evd", check_finite=False, overwrite_a=True)
    eigenvalues = np.maximum(eigenvalues, np.finfo(float).tiny)
    z = basis.T @ rhs
    length = float(np.linalg.norm(z))
    if length == 0.0:
        return np.zeros_like(rhs)

    def excess(multiplier: float) -> float:
        """Zero where the norm is the radius; nearly linear in the multiplier."""
        return 1.0 / radius - 1.0 / float(np.linalg.norm(z / (eigenvalues + multiplier)))

    with np.errstate(over="ignore"):
        multiplier = 0.0 if excess(0.0) <= 0.0 else float(brentq(excess, 0.0, length / radius, xtol=1e-300, rtol=1e-15))
    w = basis @ (z / (eigenvalues + multiplier))
    norm = float(np.linalg.norm(w))
    return w * (radius / norm) if norm > radius else w
