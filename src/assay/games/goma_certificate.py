"""What a run of an anchored method has to show for itself: the operator where it stands, its potential, its bound.

The monitor evaluates the operator at the iterates, which the method itself never does: it knows the operator at the
points that it extrapolated to. These evaluations are counted apart, and their time is left out of the history.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
from jaxtyping import Float

from assay.certificate import Assumption, Certificate
from assay.games.goma_schedule import Preset
from assay.games.monotone_operator import CheckedOperator, PairCheck, check_unchanged, length, sum_of_squares

__all__ = ["Monitor", "Potential", "potential_certificate", "residual_certificates", "stochastic_certificate"]

Vector = Float[np.ndarray, " d"]

_SMALLEST = float(np.finfo(float).tiny)

# An expected value is exceeded this many times over with a probability of at most its inverse (Markov).
MARKOV = 20.0


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def _potential_sums(z, anchor, value, old_gradient):  # type: ignore[no-untyped-def]
    """What the potential and its rounding are made of, in one pass without copies.

    The inner product of the operator with the way from the anchor; squared lengths of the operator, of its change, of
    the way from the anchor, of the iterate, and of the anchor.
    """
    product = length = drift = distance = point = start = 0.0
    for i in range(z.size):
        way, change = z[i] - anchor[i], value[i] - old_gradient[i]
        product += value[i] * way
        length += value[i] * value[i]
        drift += change * change
        distance += way * way
        point += z[i] * z[i]
        start += anchor[i] * anchor[i]
    return product, length, drift, distance, point, start


class Potential:
    """The potential of a deterministic schedule along a run.

    Parameters
    ----------
    preset : Preset
        The schedule.
    step_size : float
        Its step size.

    Attributes
    ----------
    worst_growth : float
        Largest growth between two check points beyond what rounding explains; minus infinity before the second.
    """

    def __init__(self, preset: Preset, step_size: float):
        self._preset, self._step_size = preset, step_size
        self._last: tuple[float, float] | None = None
        self.worst_growth = -math.inf

    def restart(self) -> None:
        """The next value is of a new anchor, and not compared with the last."""
        self._last = None

    def look(self, k: int, z: Vector, anchor: Vector, value: Vector, old_gradient: Vector, pairs: PairCheck) -> float:
        """The potential at iterate ``k``.

        Parameters
        ----------
        k : int
            Steps since the anchor was set.
        z, anchor, value, old_gradient : numpy.ndarray of shape (d,)
            The iterate, its anchor, the operator at the iterate, and at the last point of evaluation.
        pairs : PairCheck
            Knows how far an evaluation may be off.

        Returns
        -------
        float
        """
        product, *squares = _potential_sums(z, anchor, value, old_gradient)
        inner, square, change = self._preset.potential_weights(k, self._step_size)
        potential = inner * product + square * squares[0] + change * squares[1]
        size, drift, distance, point, start = (math.sqrt(entry) for entry in squares)
        of_point = 4.0 * float(np.finfo(float).eps) * (point + start)
        of_value = pairs.rounding(point, size, z.size)
        error = inner * (size * of_point + distance * of_value)
        error += 2.0 * of_value * (square * size + change * drift)
        error += (square + change) * of_value**2
        error += (inner + square + change) * z.size * _SMALLEST  # products that are too small to be numbers
        if math.isnan(potential):
            self.worst_growth = math.nan
        elif self._last is not None:
            before, error_before = self._last
            self.worst_growth = float(np.maximum(self.worst_growth, potential - before - error - error_before))
        self._last = potential, error
        return potential


class Monitor:
    """Looks at the iterates of a run.

    Parameters
    ----------
    operator : CheckedOperator
        The exact operator; its calls here are for checking only.
    pairs : PairCheck, optional
        Where pairs of iterates are looked at; a potential needs it.
    potential : Potential, optional
        Of a deterministic schedule.
    callback : callable, optional
        Called with every row; a true answer stops the run.

    Attributes
    ----------
    n_calls : int
        Calls for checking.
    norm : float
        Length of the operator at the last check point.
    rows : list of dict
        One for every check point.
    """

    def __init__(
        self,
        operator: CheckedOperator,
        pairs: PairCheck | None,
        potential: Potential | None,
        callback: Callable[[Mapping[str, Any]], object] | None,
    ):
        self.operator, self.pairs, self.potential = operator, pairs, potential
        self._callback = callback
        self._last: tuple[Vector, Vector] | None = None
        self._spare: tuple[Vector, Vector] | None = None
        self._old_gradient: Vector | None = None
        self._started, self._spent = time.perf_counter(), 0.0
        self.n_calls = 0
        self.norm = math.inf
        self.rows: list[dict[str, Any]] = []

    def look(
        self,
        iteration: int,
        k: int,
        z: Vector,
        anchor: Vector,
        old: tuple[Vector, Vector] | None,
        n_calls: int,
        value: Vector | None = None,
    ) -> bool:
        """Evaluate the operator at an iterate and add a row.

        Parameters
        ----------
        iteration, k : int
            Steps since the start, and since the anchor was set.
        z, anchor : numpy.ndarray of shape (d,)
            The iterate, and its anchor.
        old : tuple of numpy.ndarray, optional
            The last point of evaluation and the operator there, of a deterministic run.
        n_calls : int
            Calls that the method has made.
        value : numpy.ndarray of shape (d,), optional
            The operator at ``z`` if it is known.

        Returns
        -------
        bool
            Whether the callback wants to stop.
        """
        entered = time.perf_counter()
        if old is not None:  # which a user's function may overwrite when it is called again
            self._old_gradient = _copied(old[1], self._old_gradient)
            old = old[0], self._old_gradient
        spare_z, spare_value = (None, None) if self._spare is None else self._spare
        iterate, z = z, _copied(z, spare_z)
        if value is None:
            value = self.operator(iterate, iteration)
            self.n_calls += 1
            check_unchanged(iterate, z, iteration)
        value = _copied(value, spare_value)
        residual_sq = sum_of_squares(value)
        self.norm = math.sqrt(residual_sq) if residual_sq > 1e-280 else length(value)
        if self.pairs is not None:
            self.pairs.eps = self.operator.eps
        for point in (self._last, old):
            if point is not None and self.pairs is not None:
                self.pairs.look(z, value, *point)
        self._last, self._spare = (z, value), self._last
        potential = math.nan
        if self.potential is not None and self.pairs is not None and old is not None:
            potential = self.potential.look(k, z, anchor, value, old[1], self.pairs)
        row = {
            "iteration": iteration,
            "calls": n_calls,
            "residual_sq": residual_sq,
            "potential": potential,
            "seconds": entered - self._started - self._spent,
        }
        self.rows.append(row)
        stop = self._callback is not None and bool(self._callback(dict(row)))
        self._spent += time.perf_counter() - entered
        return stop

    def restart(self, z: Vector, value: Vector) -> None:
        """Take an iterate, with the operator there, as the new anchor."""
        if self.potential is not None and self.pairs is not None:
            self.potential.restart()
            self.potential.look(0, z, z, value, value, self.pairs)

    def evaluate_anew(self, z: Vector) -> tuple[float, float]:
        """Squared norm and norm of the operator at the answer, apart from all that was recorded."""
        value = self.operator(z.copy(), self.rows[-1]["iteration"])
        self.n_calls += 1
        return sum_of_squares(value), length(value)

    def history(self) -> dict[str, np.ndarray]:
        """The rows as columns."""
        return {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}


def _copied(vector: Vector, into: Vector | None) -> Vector:
    """A copy, in memory that is there already if it is: new memory for every check would cost more than the check."""
    if into is None:
        return vector.copy()
    into[:] = vector
    return into


def residual_certificates(
    residual_sq: float, bound: float, worst_share: float, assumptions: tuple[Assumption, ...]
) -> tuple[Certificate, Certificate]:
    """That the operator is as small as promised, where the run ended and at every check point.

    Parameters
    ----------
    residual_sq, bound : float
        Squared norm of the operator at the returned point, evaluated anew, and what is promised.
    worst_share : float
        Largest ratio of the two over all check points.
    assumptions : tuple of Assumption
        About the operator.

    Returns
    -------
    tuple of Certificate
    """
    return (
        Certificate("squared norm of F at the returned point", residual_sq, bound, assumptions=assumptions),
        Certificate(
            "squared norm of F over its bound, the largest ratio of all check points",
            worst_share,
            1.0,
            assumptions=assumptions,
        ),
    )


def potential_certificate(worst_growth: float, n_checks: int, assumptions: tuple[Assumption, ...]) -> Certificate:
    """That the potential never grew, which needs no zero and no distance to it.

    Parameters
    ----------
    worst_growth : float
        Largest growth beyond rounding.
    n_checks : int
        Number of check points.
    assumptions : tuple of Assumption
        About the operator and the step size.

    Returns
    -------
    Certificate
    """
    return Certificate(
        f"largest growth of the potential between {n_checks} check points, beyond rounding",
        worst_growth,
        0.0,
        assumptions=assumptions,
    )


def stochastic_certificate(residual_sq: float, bound: float, assumptions: tuple[Assumption, ...]) -> Certificate:
    """That one run is not far above a bound on its expected value.

    Parameters
    ----------
    residual_sq, bound : float
        Squared norm of the operator at the returned point, and the bound on its expected value.
    assumptions : tuple of Assumption
        About the operator and the noise.

    Returns
    -------
    Certificate
        It fails with a probability of at most 1/20.
    """
    return Certificate(
        f"squared norm of F at the returned point, against {MARKOV:g} times the bound on its expected value "
        f"(exceeded with probability at most 1/{MARKOV:g})",
        residual_sq,
        MARKOV * bound,
        assumptions=assumptions,
    )
