"""What the measurements of matrix-game solvers share: how ours is called, timed and drawn."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from assay.lab import Measurement, Timings, interleave
from assay.studies.games._matrix_games import Game

OVER_TIME = "Duality gap over time"


@functools.lru_cache(maxsize=1)
def warm_up() -> None:
    """Compile, so that no one pays for it in a measurement."""
    import scipy.sparse as sp

    from assay.games.ssn import solve_matrix_game

    payoff = np.random.default_rng(0).normal(size=(6, 9))
    for kind in (payoff, sp.csr_array(payoff)):
        solve_matrix_game(kind)


def solve(payoff: Any, **options: Any) -> Any:
    """Ours to 1e-10 of the largest payoff; variants may fail without a word."""
    from assay.games.ssn import solve_matrix_game
    from assay.validation import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return solve_matrix_game(payoff, rtol=True, **options)


def add_gap_curve(measurement: Measurement, game: Game, seconds: np.ndarray, gaps: np.ndarray) -> None:
    """Best gap so far, and when it passed 1e-4, 1e-8 and 1e-10."""
    best = np.minimum.accumulate(gaps) / game.largest
    for digits in (4, 8, 10):
        reached = np.flatnonzero(best <= 10.0**-digits)
        if reached.size:
            measurement.add(f"seconds_to_1e-{digits}", seconds[reached[0]], case=game.name)
    measurement.add_curve(
        OVER_TIME,
        seconds,
        np.maximum(best, 1e-17),
        case=game.name,
        x_label="seconds",
        y_label="duality gap / largest payoff",
        x_log=True,
        y_log=True,
    )


def slope(points: Mapping[int, float]) -> float:
    """Exponent of the power law through the points."""
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])


def race(functions: Mapping[str, Callable[[], Any]], **options: Any) -> Timings:
    """Turns, in processor time: with one thread each, that is what a quiet machine takes."""
    return interleave(functions, clock="cpu", **options)
