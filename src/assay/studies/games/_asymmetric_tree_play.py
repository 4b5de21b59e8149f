"""Measurements of last-iterate play in game trees, and of OpenSpiel's regret minimisers."""

from __future__ import annotations

import functools
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.extras import import_extra
from assay.lab import Measurement, interleave
from assay.studies.games._asymmetric_games import (
    AUTO,
    CFR,
    CFR_PLUS,
    DCFR,
    FIXED,
    GDA,
    OGDA,
    SYM,
    TreeCase,
    random_tree,
)

_OVER_UPDATES = "NashConv over updates of both players"
_STEP_SIZES = (0.25, 0.5, 1.0, 2.0)


@functools.lru_cache(maxsize=4)
def sequence_form(name: str) -> Any:
    """The game, built once per process."""
    from assay.games.sequence_form import SequenceFormGame

    return SequenceFormGame.from_openspiel(name)


def measure_tree(measurement: Measurement, contender: str, case: TreeCase) -> None:
    """Play one game; methods of one run take as many steps as both runs of asymmetric play together."""
    from assay.games.asymmetric_tree_baselines import dgda, dogda, sym_dgda
    from assay.games.asymmetric_trees import asym_dgda

    if contender in (CFR, CFR_PLUS, DCFR):
        _minimise_regret(measurement, contender, case)
        return
    game = sequence_form(case.openspiel)
    runs = 2 if contender in (AUTO, FIXED) else 1
    options = {"n_iter": case.steps * 2 // runs, "check_every": 50, "eps": 1e-13}
    methods: dict[str, Callable[..., Any]] = {
        AUTO: functools.partial(asym_dgda, game, mu="auto"),
        FIXED: functools.partial(asym_dgda, game, mu=case.mu, eta=case.eta),
        SYM: functools.partial(sym_dgda, game, mu=case.mu, eta=case.eta),
        GDA: functools.partial(dgda, game),
        OGDA: functools.partial(dogda, game),
    }
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if contender in (GDA, OGDA):
            tried = [methods[contender](eta=factor * case.eta, **options) for factor in _STEP_SIZES]
            result = min(tried, key=lambda run: (run.nashconv, run.n_iter))
        else:
            result = methods[contender](**options)
    measurement.add("seconds", time.perf_counter() - started, case=case.name)
    measurement.add("nashconv", result.nashconv, case=case.name)
    measurement.add("value_error_bound", result.value_upper - result.value_lower, case=case.name)
    if contender in (AUTO, FIXED):
        measurement.add("nashconv_of_openspiel", _open_spiel_nash_conv(game, result), case=case.name)
    if contender == AUTO:
        measurement.add("halvings", result.halvings, case=case.name)
    _add_curve(measurement, case.name, runs * result.history["iteration"], result.history["nashconv"])


def _open_spiel_nash_conv(game: Any, result: Any) -> float:
    exploitability = import_extra("open_spiel.python.algorithms.exploitability", extra="games")
    policy = game.to_policy(1, result.y, game.to_policy(0, result.x))
    return float(exploitability.nash_conv(game.source, policy))


def _minimise_regret(measurement: Measurement, contender: str, case: TreeCase) -> None:
    pyspiel = import_extra("pyspiel", extra="games")
    game = sequence_form(case.openspiel).source
    if contender == DCFR:
        discounted = import_extra("open_spiel.python.algorithms.discounted_cfr", extra="games")
        exploitability = import_extra("open_spiel.python.algorithms.exploitability", extra="games")
        solver, n_iter, nash_conv = discounted.DCFRSolver(game), case.discounted_iterations, exploitability.nash_conv
    else:
        solver = (pyspiel.CFRSolver if contender == CFR else pyspiel.CFRPlusSolver)(game)
        n_iter, nash_conv = case.regret_iterations, pyspiel.nash_conv
    stops = sorted({int(stop) for stop in np.geomspace(10, n_iter, 12)})
    done, gaps, started = 0, [], time.perf_counter()
    for stop in stops:
        for _ in range(stop - done):
            solver.evaluate_and_update_policy()
        done = stop
        gaps.append(float(nash_conv(game, solver.average_policy())))
    measurement.add("seconds", time.perf_counter() - started, case=case.name)
    measurement.add("nashconv", gaps[-1], case=case.name)
    measurement.add("iterations", done, case=case.name)
    _add_curve(measurement, case.name, np.array(stops), np.array(gaps))


def _add_curve(measurement: Measurement, case: str, updates: np.ndarray, gaps: np.ndarray) -> None:
    measurement.add_curve(
        _OVER_UPDATES, updates[updates > 0], np.maximum(gaps[updates > 0], 1e-16), case=case,
        x_label="updates of both players, all runs together", y_label="NashConv", x_log=True, y_log=True,
    )  # fmt: skip


def measure_tree_speed(measurement: Measurement, case: TreeCase, n_steps: int) -> None:
    """Compiled steps per second, and how many times longer the same recursion takes in Python."""
    from assay.games.treeplex_dynamics import TreePlay

    game = sequence_form(case.openspiel)
    by_column = game.payoff.T.tocsr()
    plays = {
        compiled: TreePlay(
            game.trees, game.payoff, by_column, 1.0, "perturbed", eta=case.eta, mu=(case.mu, 0.0), compiled=compiled
        )
        for compiled in (True, False)
    }
    functions = {"compiled": lambda: plays[True].advance(n_steps), "python": lambda: plays[False].advance(3)}
    timings = interleave(functions, repeats=3, clock="cpu")
    measurement.add("steps_per_second", n_steps / timings.median("compiled"), case=case.name)
    ratio = timings.ratio("python", "compiled").median * n_steps / 3
    measurement.add("python_over_compiled", ratio, case=case.name)


def measure_scaling(measurement: Measurement, sizes: tuple[int, ...], n_steps: int = 20) -> None:
    """How time of a step and memory of play grow with the non-zeros of the payoff matrix."""
    from assay.games.treeplex_dynamics import TreePlay

    seconds, memory, nonzeros = [], [], []
    for n_infosets in sizes:
        game = random_tree(n_infosets, 10 * n_infosets, 0)
        by_column = game.payoff.T.tocsr()
        tracemalloc.start()
        play = TreePlay(game.trees, game.payoff, by_column, 1.0, "perturbed", mu=(1e-3, 0.0))
        play.advance(1)
        memory.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        timings = interleave({"steps": functools.partial(play.advance, n_steps)}, repeats=5, clock="cpu")
        seconds.append(timings.median("steps") / n_steps)
        nonzeros.append(game.payoff.nnz)
        measurement.add("seconds_per_step", seconds[-1], case=f"{game.payoff.nnz} non-zeros")
    logarithms = np.log(nonzeros)
    measurement.add("time_slope", float(np.polyfit(logarithms, np.log(seconds), 1)[0]))
    measurement.add("memory_slope", float(np.polyfit(logarithms, np.log(memory), 1)[0]))
    measurement.add("bytes_per_nonzero", memory[-1] / nonzeros[-1])
