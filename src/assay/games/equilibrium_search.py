"""The steps that are alternated in the search for an equilibrium, what they have found, and when they stop.

Three things move through strategies of one game: regret matching, trials of semismooth Newton steps, and the central
path. Whatever they come upon, the pair with the smallest gap is kept, every look is recorded, and the search is over
once a gap is small enough or the user's callback says so. In which order they are called is the business of
:mod:`assay.games.ssn`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from assay.games.interior_point import CentralPath
from assay.games.regret_matching import RegretMatching, checkpoints
from assay.games.semismooth_newton import GameSplitting, LiftedPoint

__all__ = ["ROUNDING", "EquilibriumSearch"]

# With more than the first, steps are so short that small games, where residuals are large, stand still.
_MAX_REGULARIZATION, _MIN_REGULARIZATION = 0.3, 1e-10
# A step of full length is taken if the residual is then below the largest of the last few: to ask that it falls
# every time would stall at kinks. Otherwise the best of these lengths is taken.
_MEMORY, _LENGTHS = 3, (1.0, 0.5, 0.25, 0.125)
# When this many steps have not halved the smallest residual of the trial, short steps are leading nowhere, and one of
# full length is taken wherever it leads.
_STALL_STEPS, _STALL_FALL = 6, 0.5
# Relative to the largest payoff: no gap below the first can be told from rounding; below the second, steps that
# do not halve the gap are only moving rounding errors.
ROUNDING, _NEARLY_ROUNDING, _IDLE_STEPS = 16 * np.finfo(float).eps, 1e-11, 5
# The central path is left after this many steps, or when this many in a row have not halved the gap.
_PATH_STEPS, _PATH_IDLE_STEPS = 100, 15


class EquilibriumSearch:
    """The best pair so far, the history, and when to stop.

    The game is normalised: a gap times ``scale`` is in payoff units.
    """

    def __init__(self, tol: float, scale: float, callback: Callable[[Mapping[str, Any]], object] | None):
        self.x, self.y = np.empty(0), np.empty(0)
        self.gap = math.inf
        self.done = False
        # Whether Newton steps have gone on to where they only move rounding errors, above the target.
        self.at_rounding = False
        self.n_prm = self.n_newton = self.n_trials = self.n_interior = 0
        self._path_followed = False
        # Of the trial that solved the game.
        self.final_residuals: list[float] = []
        # A margin for the rounding of the products with the matrix that was passed in.
        self._target = max(0.9 * tol / scale, ROUNDING)
        self._scale = scale
        self._callback = callback
        self._rows: list[dict[str, Any]] = []
        self._start = time.perf_counter()

    def match(self, matching: RegretMatching, stop: int, switch_gap: float = 0.0) -> None:
        """Advance regret matching to iteration ``stop`` or, in payoff units, to ``switch_gap``."""
        goal = max(self._target, switch_gap / self._scale)
        for checkpoint in checkpoints(stop, matching.n_iter):
            matching.advance(checkpoint - matching.n_iter, goal)
            self.n_prm = matching.n_iter
            self._see(*matching.better, matching.gap)
            self._record("prm+", matching.n_iter, matching.gap, math.nan, math.nan)
            if self.done or matching.gap <= goal:
                return

    def newton(self, splitting: GameSplitting, x: np.ndarray, y: np.ndarray, damping: float, max_newton: int) -> None:
        """One trial of Newton steps from a pair of strategies."""
        self.n_trials += 1
        residuals = []
        point = splitting.evaluate(*splitting.lift(*splitting.players(x, y)))
        best, idle, smallest, stalled = math.inf, 0, math.inf, 0
        for step in range(max_newton + 1):
            residuals.append(point.norm)
            self._see(*splitting.players(point.x, point.y), point.gap)
            idle = 0 if point.gap < 0.5 * best else idle + 1
            best = min(best, point.gap)
            self.at_rounding = best <= _NEARLY_ROUNDING and idle >= _IDLE_STEPS
            if self.done or self.at_rounding:
                self.final_residuals = residuals
            regularization = min(max(damping * point.norm, _MIN_REGULARIZATION), _MAX_REGULARIZATION)
            self._record("newton", step, point.gap, point.norm, regularization)
            if self.done or self.at_rounding or step == max_newton:
                return
            stalled = 0 if point.norm <= _STALL_FALL * smallest else stalled + 1
            smallest = smallest if stalled else point.norm
            direction = _safe_step(splitting, point, regularization)
            if direction is None:
                return
            leap = stalled == _STALL_STEPS
            stalled = 0 if leap else stalled
            point = self._move(splitting, point, direction, math.inf if leap else max(residuals[-_MEMORY:]))
            self.n_newton += 1

    def follow_path(self, splitting: GameSplitting, damping: float, max_newton: int) -> None:
        """The central path as far as it leads, and a trial of Newton steps from its end; only once."""
        if self.done or self._path_followed:
            return
        self._path_followed = True
        path = CentralPath(splitting)
        x, y, best, idle = path.x, path.y, path.gap, 0
        while self.n_interior < _PATH_STEPS and idle < _PATH_IDLE_STEPS and path.advance():
            self.n_interior += 1
            idle = 0 if path.gap < 0.5 * best else idle + 1
            if path.gap < best:
                x, y, best = path.x, path.y, path.gap
            self._see(*splitting.players(path.x, path.y), path.gap)
            self._record("interior", self.n_interior, path.gap, math.nan, math.nan)
            if self.done:
                return
        self.newton(splitting, *splitting.players(x, y), damping, max_newton)

    def _move(
        self,
        splitting: GameSplitting,
        point: LiftedPoint,
        direction: tuple[np.ndarray, np.ndarray],
        acceptable: float,
    ) -> LiftedPoint:
        """The next point along a Newton direction: the first acceptable one, or the best."""
        tried = []
        for length in _LENGTHS:
            tried.append(splitting.evaluate(point.u + length * direction[0], point.v + length * direction[1]))
            if tried[-1].norm < acceptable or tried[-1].gap <= self._target:
                return tried[-1]
        return min(tried, key=lambda candidate: candidate.norm)

    def history(self) -> dict[str, np.ndarray]:
        """What was recorded, by columns."""
        return {name: np.array([row[name] for row in self._rows], dtype=kind) for name, kind in _COLUMNS.items()}

    def _see(self, x: np.ndarray, y: np.ndarray, gap: float) -> None:
        if gap < self.gap:
            self.x, self.y, self.gap = x, y, gap
        if gap <= self._target:
            self.done = True

    def _record(self, phase: str, iteration: int, gap: float, residual: float, regularization: float) -> None:
        row = {
            "phase": phase,
            "trial": self.n_trials,
            "iteration": iteration,
            "gap": gap * self._scale,
            "residual": residual,
            "regularization": regularization,
            "seconds": time.perf_counter() - self._start,
        }
        self._rows.append(row)
        if self._callback is not None:
            stop = self._callback(dict(row))
            # A comparison with an array's entry gives numpy's own True.
            self.done = self.done or (isinstance(stop, bool | np.bool_) and bool(stop))


_COLUMNS = {
    "phase": np.str_,
    "trial": np.int64,
    "iteration": np.int64,
    "gap": np.float64,
    "residual": np.float64,
    "regularization": np.float64,
    "seconds": np.float64,
}


def _safe_step(
    splitting: GameSplitting, point: LiftedPoint, regularization: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Newton direction, regularised tenfold more as often as the system is singular to working precision."""
    for _ in range(10):
        try:
            return splitting.newton(point.x, point.y, *point.scaled, regularization)
        except np.linalg.LinAlgError:
            regularization *= 10.0
    return None
