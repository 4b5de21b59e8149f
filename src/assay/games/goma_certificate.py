"""What a run of an anchored method has to show for itself: the operator where it stands, its potential, its bound.

The monitor evaluates the operator at the iterates, which the method itself never does: it knows the operator at the
points that it extrapolated to. These evaluations are counted apart, and their time is left out of the history.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.certificate import Assumption, Certificate
from assay.games.goma_schedule import Preset
from assay.games.monotone_operator import CheckedOperator, PairCheck

__all__ = ["Monitor", "Potential", "potential_certificate", "residual_certificates", "stochastic_certificate"]

Vector = Float[np.ndarray, " d"]

# An expected value is exceeded this many times over with a probability of at most its inverse (Markov).
MARKOV = 20.0


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

    def look(
        self, k: int, from_anchor: Vector, value: Vector, old_gradient: Vector, rounding: tuple[float, float]
    ) -> float:
        """The potential at iterate ``k``.

        Parameters
        ----------
        k : int
            Steps since the anchor was set.
        from_anchor, value, old_gradient : numpy.ndarray of shape (d,)
            The iterate less its anchor, the operator there, and at the last point of evaluation.
        rounding : tuple of float
            Error of the iterate and of the operator.

        Returns
        -------
        float
        """
        inner, square, change = self._preset.potential_weights(k, self._step_size)
        drift = value - old_gradient
        potential = inner * float(value @ from_anchor) + square * float(value @ value) + change * float(drift @ drift)
        length, distance = float(np.linalg.norm(value)), float(np.linalg.norm(from_anchor))
        of_point, of_value = rounding
        error = inner * (length * of_point + distance * of_value)
        error += 2.0 * of_value * (square * length + change * float(np.linalg.norm(drift)))
        error += (square + change) * of_value**2
        if self._last is not None:
            before, error_before = self._last
            self.worst_growth = max(self.worst_growth, potential - before - error - error_before)
            if math.isnan(potential):
                self.worst_growth = math.nan
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
        self._started, self._spent = time.perf_counter(), 0.0
        self.n_calls = 0
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
            old = old[0], old[1].copy()
        if value is None:
            value = self.operator(z, iteration)
            self.n_calls += 1
        z, value = z.copy(), value.copy()
        for point in (self._last, old):
            if point is not None and self.pairs is not None:
                self.pairs.look(z, value, *point)
        self._last = z, value
        potential = math.nan
        if self.potential is not None and self.pairs is not None and old is not None:
            of_point = np.finfo(float).eps * 4.0 * float(np.linalg.norm(z) + np.linalg.norm(anchor))
            rounding = of_point, self.pairs.rounding(z, value)
            potential = self.potential.look(k, z - anchor, value, old[1], rounding)
        row = {
            "iteration": iteration,
            "calls": n_calls,
            "residual_sq": float(value @ value),
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
            rounding = 0.0, self.pairs.rounding(z, value)
            self.potential.look(0, np.zeros_like(z), value, value.copy(), rounding)

    def evaluate_anew(self, z: Vector) -> float:
        """Squared norm of the operator at the answer, apart from all that was recorded."""
        value = self.operator(z.copy(), self.rows[-1]["iteration"])
        self.n_calls += 1
        return float(value @ value)

    def history(self) -> dict[str, np.ndarray]:
        """The rows as columns."""
        return {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}


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
