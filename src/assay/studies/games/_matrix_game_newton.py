"""Measurements of ours, its variants, and its Newton steps with parts taken out."""

from __future__ import annotations

import functools
import math
import time
import tracemalloc
from typing import Any

import numpy as np

from assay.lab import Measurement
from assay.studies.games._matrix_game_measures import add_gap_curve, race, slope, solve
from assay.studies.games._matrix_games import BLOCK_200, BLOCK_ALL, MONOTONE, OURS, PSSN, SSN, Game


def measure_ours(measurement: Measurement, game: Game, contender: str) -> None:
    """Solve one game with one of our variants."""
    options: dict[str, Any] = {
        OURS: {},
        PSSN: {"method": "pssn"},
        SSN: {"method": "ssn"},
        BLOCK_200: {"block": 200},
        BLOCK_ALL: {"block": sum(game.payoff.shape)},
    }[contender]
    begin = time.perf_counter()
    result = solve(game.payoff, **options)
    measurement.add("seconds", time.perf_counter() - begin, case=game.name)
    measurement.add("relative_gap", result.gap / game.largest, case=game.name)
    for name in ("n_prm", "n_newton", "n_trials", "n_interior"):
        measurement.add(name, getattr(result, name), case=game.name)
    add_gap_curve(measurement, game, result.history["seconds"], result.history["gap"])
    if contender != OURS:
        return
    measurement.certify(result.certificates, case=game.name)
    measurement.add("gap_over_bound", _gap_over_bound(game, result), case=game.name)
    last = (result.history["trial"] == result.n_trials) & (result.history["phase"] == "newton")
    measurement.add_curve(
        "Residual of the last trial",
        result.history["iteration"][last],
        result.history["residual"][last],
        case=game.name,
        x_label="Newton step",
        y_label="norm of the residual",
        y_log=True,
    )


def _gap_over_bound(game: Game, result: Any) -> float:
    """Largest ratio of the gap to its bound by the residual, over all Newton steps; rounding is allowed for."""
    from assay.games.matrix_game import typical_payoff
    from assay.games.semismooth_newton import residual_gap_bound

    # Dense games are solved with a typical payoff subtracted, which leaves gaps and equilibria as they are.
    payoff = game.dense if hasattr(game.payoff, "toarray") else game.payoff - typical_payoff(game.payoff)
    norm = float(np.linalg.norm(payoff, 2))
    steps = result.history["phase"] == "newton"
    rounding = 64 * np.finfo(float).eps * game.largest
    bounds = [residual_gap_bound(r, result.step_size, norm) + rounding for r in result.history["residual"][steps]]
    return float(np.max(result.history["gap"][steps] / bounds, initial=0.0))


def measure_orders(measurement: Measurement, problem: dict[str, Any]) -> None:
    """Order of convergence on many random games."""
    rng = np.random.default_rng([problem["seed"], 1])
    orders = []
    for index in range(problem["orders"]):
        payoff = rng.uniform(-1, 1, (50, 100) if index % 2 else (100, 200))
        result = solve(payoff)
        # Neither what is not solved nor what takes too few steps to tell may drop out of the median.
        told = result.converged and math.isfinite(result.newton_order)
        orders.append(result.newton_order if told else 0.0)
        measurement.add("newton_order", orders[-1], case=f"order {index}")
        measurement.add("n_interior", result.n_interior, case=f"order {index}")
    measurement.add("share_of_order_1.6", float(np.mean(np.array(orders) >= 1.6)))


def measure_steps(measurement: Measurement, problem: dict[str, Any]) -> None:
    """Time of a Newton step at the strategies where a trial would start."""
    from assay.games.regret_matching import RegretMatching
    from assay.games.semismooth_newton import GameSplitting

    seconds = {}
    for rows in problem["steps"]:
        payoff = np.random.default_rng([problem["seed"], rows]).uniform(-1, 1, (rows, 2 * rows))
        splitting, matching = GameSplitting(payoff), RegretMatching(payoff)
        matching.advance(100)
        point = splitting.evaluate(*splitting.lift(*matching.better))
        step = functools.partial(splitting.newton, point.x, point.y, *point.scaled, 1e-3)
        seconds[rows] = race({"step": step}, repeats=9).median("step")
        measurement.add("newton_step_seconds", seconds[rows], case=f"{rows}x{2 * rows}")
    measurement.add("newton_step_slope", slope(seconds))
    measurement.add_curve(
        "Time of a Newton step",
        list(seconds),
        list(seconds.values()),
        x_label="rows (half of the columns)",
        y_label="seconds",
        x_log=True,
        y_log=True,
    )


def measure_memory(measurement: Measurement, problem: dict[str, Any]) -> None:
    """Peak of what numpy allocates in a solve, against the target."""
    for rows, columns in ((200, 400), (300, 300)):
        payoff = np.random.default_rng(problem["seed"]).uniform(-1, 1, (rows, columns))
        tracemalloc.start()
        try:
            solve(payoff)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        target = 8 * (4 * rows**2 + 4 * rows * columns)
        measurement.add("memory_over_target", peak / target, case=f"{rows}x{columns}")


def measure_ablated_newton(measurement: Measurement, problem: dict[str, Any], contender: str) -> None:
    """Solve every game with plainer Newton steps."""
    for game in problem["games"]:
        begin = time.perf_counter()
        rows, n_newton = _ablated_hpssn(game, monotone=contender == MONOTONE)
        measurement.add("seconds", time.perf_counter() - begin, case=game.name)
        seconds, gaps = (np.array(column) for column in zip(*rows, strict=True))
        measurement.add("relative_gap", gaps.min() / game.largest, case=game.name)
        measurement.add("n_newton", n_newton, case=game.name)
        add_gap_curve(measurement, game, seconds, gaps)


def _ablated_hpssn(game: Game, *, monotone: bool, max_newton: int = 60) -> tuple[list[tuple[float, float]], int]:
    """The schedule of hpssn around plainer Newton steps, for at most four trials: (seconds, gap) and number of steps.

    With ``monotone``, steps are damped as ours and halved until the residual falls, and replaced by a step of the
    splitting where it does not; otherwise every step is taken in full, with the constants of a first prototype.
    """
    from assay.games.matrix_game import as_payoff
    from assay.games.regret_matching import RegretMatching
    from assay.games.semismooth_newton import GameSplitting

    begin = time.perf_counter()
    payoff = as_payoff(game.payoff)
    splitting = GameSplitting(payoff, relative_step=3.0 if monotone else 30.0)
    by_size = 20.0 * math.sqrt(max(1.0, min(payoff.shape) / 100))
    damping, largest_regularization = (by_size, 0.3) if monotone else (30.0, math.inf)
    matching, tol = RegretMatching(payoff), 1e-10 * game.largest
    length, n_newton, rows = max(100, sum(payoff.shape) // 3), 0, []
    for _ in range(4):
        matching.advance(length, tol)
        length *= 2
        rows.append((time.perf_counter() - begin, matching.gap))
        point = splitting.evaluate(*splitting.lift(*splitting.players(*matching.better)))
        for _ in range(max_newton):
            rows.append((time.perf_counter() - begin, point.gap))
            if min(point.gap, matching.gap) <= tol:
                return rows, n_newton
            regularization = min(max(damping * point.norm, 1e-10), largest_regularization)
            try:
                direction = splitting.newton(point.x, point.y, *point.scaled, regularization)
            except np.linalg.LinAlgError:
                break
            n_newton += 1
            falls = False
            for step in (1.0, 0.5, 0.25, 0.125) if monotone else (1.0,):
                candidate = splitting.evaluate(point.u + step * direction[0], point.v + step * direction[1])
                falls = candidate.norm < point.norm
                if falls:
                    break
            if monotone and not falls:
                candidate = splitting.evaluate(point.u - point.residual[0], point.v - point.residual[1])
            point = candidate
    return rows, n_newton
