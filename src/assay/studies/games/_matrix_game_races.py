"""Races against regret matching, HiGHS, OpenSpiel and nashpy; one thread each, in processor time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.lab import Measurement
from assay.studies.games._matrix_game_measures import add_gap_curve, race, slope, solve
from assay.studies.games._matrix_games import (
    OPEN_SPIEL,
    OURS,
    Game,
    linear_program,
    nashpy_equilibrium,
    open_spiel_equilibrium,
    random_games,
    strategies_of,
)

PROGRAMS = tuple((method, side) for method in ("highs", "highs-ds", "highs-ipm") for side in ("row", "column"))
# With regret matching, stop once it has taken this many times as long as ours.
CAP = 20.0


def _our_seconds(game: Game, repeats: int = 3) -> float:
    return race({OURS: lambda: solve(game.payoff)}, repeats=repeats, warmup=0).median(OURS)


def race_regret_matching(measurement: Measurement, problem: dict[str, Any], *, alternating: bool) -> None:
    """Regret matching to 1e-8 while ours goes to 1e-10, in the same process."""
    from assay.games.matrix_game import as_payoff
    from assay.games.regret_matching import RegretMatching

    for game in problem["games"]:
        ours = _our_seconds(game)
        begin = time.process_time()
        matching = RegretMatching(as_payoff(game.payoff), alternating=alternating)
        seconds, gaps, iterations = [], [], []
        while not gaps or (gaps[-1] > 1e-8 * game.largest and seconds[-1] < CAP * ours):
            matching.advance(max(20, matching.n_iter // 10), 1e-8 * game.largest)
            seconds.append(time.process_time() - begin)
            gaps.append(matching.gap)
            iterations.append(matching.n_iter)
        measurement.add("speedup", seconds[-1] / ours, case=game.name)
        measurement.add("gap_when_stopped", gaps[-1] / game.largest, case=game.name)
        measurement.add("n_prm", matching.n_iter, case=game.name)
        if len(gaps) > 1:
            best = np.maximum(np.minimum.accumulate(gaps), 1e-17 * game.largest)
            measurement.add("gap_slope", slope(dict(zip(iterations, best, strict=True))), case=game.name)
        add_gap_curve(measurement, game, np.array(seconds), np.array(gaps))
    if alternating:
        _measure_iteration(measurement, problem)


def _measure_iteration(measurement: Measurement, problem: dict[str, Any]) -> None:
    from assay.games.regret_matching import RegretMatching

    payoff = np.random.default_rng(problem["seed"]).uniform(-1, 1, (400, 800))
    x, y = np.full(400, 1 / 400), np.full(800, 1 / 800)
    matching = RegretMatching(payoff)
    matching.advance(100)

    def products() -> None:
        for _ in range(100):
            payoff.T @ x
            payoff @ y

    timings = race({"iterations": lambda: matching.advance(100), "products": products}, repeats=7)
    ratio = timings.ratio("iterations", "products")
    measurement.add("iteration_over_products", ratio.median)
    measurement.add("iteration_over_products_lower", ratio.lower)
    measurement.add("iteration_over_products_upper", ratio.upper)


def race_highs(measurement: Measurement, problem: dict[str, Any]) -> None:
    """Ours and six ways to call HiGHS take turns; the fastest of the six is the one to beat."""
    from assay.games.matrix_game import duality_gap

    for game in problem["games"]:
        # Interior point is the fastest of the six from 400x800 on, and simplex takes too long beyond.
        programs = PROGRAMS if max(game.payoff.shape) <= 800 else [p for p in PROGRAMS if p[0] == "highs-ipm"]
        functions: dict[str, Callable[[], Any]] = {OURS: functools.partial(solve, game.payoff)}
        for method, side in programs:
            functions[f"{method} {side}"] = functools.partial(linear_program, game.dense, method, side)
        timings = race(functions, repeats=3, warmup=0, budget=problem["seconds"])
        names = [name for name in functions if name != OURS]
        fastest = min(names, key=timings.median)
        _add_ratio(measurement, "speedup", timings.ratio(fastest, OURS), game.name)
        if "highs row" in functions:
            _add_ratio(measurement, "speedup_default", timings.ratio("highs row", OURS), game.name)
        for name in names:
            measurement.add("seconds", timings.median(name), case=f"{game.name}, {name}")
        measurement.add("seconds_ours", timings.median(OURS), case=game.name)
        answer = strategies_of(timings.answers[fastest], fastest.rpartition(" ")[2])
        measurement.add("relative_gap", duality_gap(game.payoff, *answer) / game.largest, case=game.name)


def _add_ratio(measurement: Measurement, name: str, ratio: Any, case: str) -> None:
    measurement.add(name, ratio.median, case=case)
    measurement.add(f"{name}_lower", ratio.lower, case=case)
    measurement.add(f"{name}_upper", ratio.upper, case=case)


def race_highs_on_squares(measurement: Measurement, problem: dict[str, Any]) -> None:
    """How the ratio to the fastest of HiGHS changes with the number of actions of each player."""
    speedups = {}
    for size in problem["squares"]:
        payoff = np.random.default_rng([problem["seed"], size]).uniform(-1, 1, (size, size))
        programs = PROGRAMS if size < 500 else [("highs-ipm", "column")]
        functions: dict[str, Callable[[], Any]] = {OURS: functools.partial(solve, payoff)}
        for method, side in programs:
            # A program that is stopped counts with the time it had.
            functions[f"{method} {side}"] = functools.partial(linear_program, payoff, method, side, time_limit=100.0)
        timings = race(functions, repeats=3, warmup=0, budget=problem["seconds"])
        fastest = min((name for name in functions if name != OURS), key=timings.median)
        ratio = timings.ratio(fastest, OURS)
        speedups[size] = ratio.median
        _add_ratio(measurement, "speedup", ratio, f"square {size}")
        measurement.add("seconds", timings.median(fastest), case=f"square {size}")
        measurement.add("seconds_ours", timings.median(OURS), case=f"square {size}")
        measurement.add("relative_gap_ours", timings.answers[OURS].gap / abs(payoff).max(), case=f"square {size}")
    measurement.add("speedup_slope", slope(speedups))
    measurement.add_curve(
        "How many times faster than the fastest HiGHS",
        list(speedups),
        list(speedups.values()),
        x_label="actions of each player",
        y_label="seconds of HiGHS / seconds of ours",
        x_log=True,
        y_log=True,
    )


def race_library(measurement: Measurement, problem: dict[str, Any], contender: str) -> None:
    """Ours and another library take turns on the games that it can solve in the time."""
    from assay.games.matrix_game import duality_gap

    rng = np.random.default_rng([problem["seed"], 2])
    if contender == OPEN_SPIEL:
        games, theirs = random_games(problem["shapes"][: 1 + (len(problem["shapes"]) > 3)], rng), open_spiel_equilibrium
        theirs(rng.uniform(-1, 1, (3, 3)))  # imports cvxpy
    else:
        games, theirs = random_games(((8, 8),), rng), nashpy_equilibrium
        theirs(rng.uniform(-1, 1, (3, 3)))
    for game in games:
        functions = {OURS: functools.partial(solve, game.payoff), "theirs": functools.partial(theirs, game.payoff)}
        timings = race(functions, repeats=5, warmup=0, budget=problem["seconds"])
        _add_ratio(measurement, "speedup", timings.ratio("theirs", OURS), game.name)
        measurement.add("seconds", timings.median("theirs"), case=game.name)
        measurement.add("relative_gap", duality_gap(game.payoff, *timings.answers["theirs"]) / game.largest, game.name)
