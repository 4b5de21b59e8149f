"""The loop of anchored steps, which is the same for every schedule, with and without noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from assay.games.goma_certificate import Monitor
from assay.games.goma_schedule import Weights, anchored_step
from assay.games.monotone_operator import check_unchanged, not_finite

__all__ = ["Stops", "iterate"]

Vector = Float[np.ndarray, " d"]


@dataclass(frozen=True)
class Stops:
    """When a run looks, starts anew, and ends.

    Parameters
    ----------
    n_iter : int
        Largest number of steps.
    check_every : int
        Steps between check points.
    tol : float, optional
        Norm of the operator that is small enough.
    restart_every : int, optional
        Steps after which the iterate becomes the anchor.
    """

    n_iter: int
    check_every: int
    tol: float | None = None
    restart_every: int | None = None

    def is_small(self, monitor: Monitor) -> bool:
        """Whether the operator was small enough at the last check point."""
        return self.tol is not None and monitor.norm <= self.tol


def iterate(
    evaluate: Callable[[Vector, int], Vector],
    start: Vector,
    value: Vector,
    weights: Weights,
    stops: Stops,
    monitor: Monitor,
    exploration: float | None,
    name: str = "F",
) -> Vector:
    """Make the steps.

    Parameters
    ----------
    evaluate : callable
        The operator, or an estimate of it, at a point in a step.
    start, value : numpy.ndarray of shape (d,)
        Start, and the exact operator there.
    weights : callable
        Of a step, counted from the anchor.
    stops : Stops
        When to look, to start anew, and to end.
    monitor : Monitor
        Looks at the iterates.
    exploration : float or None
        Step size with which the operator at the anchor leads to the first point of evaluation; None with noise, where
        the first is the start itself and the operator there is not a call.
    name : str, default="F"
        What the user calls the function that is evaluated.

    Returns
    -------
    numpy.ndarray of shape (d,)
        The last iterate.

    Raises
    ------
    FloatingPointError
        If an evaluation is not finite.
    ValueError
        If the operator changes an iterate.
    """
    z, anchor, gradient = start.copy(), start.copy(), value
    exact = exploration is not None
    point = z - (exploration or 0.0) * gradient
    old_point = point.copy()
    n_calls = int(exact)
    stop = monitor.look(0, 0, z, anchor, (z, gradient) if exact else None, n_calls, gradient)
    k = 0
    for iteration in range(stops.n_iter):
        if stop or stops.is_small(monitor):
            break
        last = iteration + 1 == stops.n_iter
        restart = k + 1 == stops.restart_every and not last
        looking = last or restart or (iteration + 1) % stops.check_every == 0
        if looking:
            old_point[:] = point
        gradient = evaluate(point, iteration)
        n_calls += 1
        if not anchored_step(z, anchor, gradient, *weights(k), point):
            raise not_finite(iteration, name, gradient)
        k += 1
        if not looking:
            continue
        old = (old_point, gradient) if exact else None
        if not restart:
            stop = monitor.look(iteration + 1, k, z, anchor, old, n_calls)
            continue
        # The new anchor is evaluated anyway, so that this check point costs nothing.
        old = None if old is None else (old[0], old[1].copy())
        before = z.copy()
        gradient = evaluate(z, iteration + 1)
        n_calls += 1
        check_unchanged(z, before, iteration + 1)
        if not np.isfinite(gradient).all():
            raise not_finite(iteration + 1, name, gradient)
        stop = monitor.look(iteration + 1, k, z, anchor, old, n_calls, gradient)
        anchor[:], k = z, 0
        point = z - (exploration or 0.0) * gradient
        monitor.restart(z, gradient)
    return z
