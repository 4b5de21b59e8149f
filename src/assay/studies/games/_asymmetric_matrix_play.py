"""Measurements of last-iterate play in matrix games."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave
from assay.studies.games._asymmetric_games import (
    AUTO,
    BIASED_RPS,
    DECREASING,
    EXTRA,
    FIXED,
    GDA,
    OGDA,
    SMALL_GAMES,
    SYM,
    LinearProgram,
    uniform_game,
)

_OVER_STEPS = "NashConv over steps"
# What every method of today may try, as multiples of its default step size; the best is kept.
_STEP_SIZES = (0.5, 1.0, 2.0, 4.0)
_FIXED_MU = 0.01


def solve(method: Callable[..., Any], payoff: Any, **options: Any) -> Any:
    """Call a method that may stop without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method(payoff, **options)


def measure_small_games(measurement: Measurement, contender: str) -> None:
    """Biased rock-paper-scissors and a game with many equilibria: 5000 steps with mu = 1 and one step size."""
    from assay.games.asymmetric_baselines import extragradient, gda, ogda, sym_gda
    from assay.games.asymmetric_perturbation import asym_gda

    methods: dict[str, Callable[..., Any]] = {
        AUTO: functools.partial(asym_gda, mu="auto"),
        FIXED: functools.partial(asym_gda, mu=1.0),
        SYM: functools.partial(sym_gda, mu=1.0),
        DECREASING: functools.partial(sym_gda, mu=1.0, decreasing=True),
        GDA: gda,
        OGDA: ogda,
        EXTRA: extragradient,
    }
    for name, payoff in SMALL_GAMES.items():
        # At 1 / ||A|| extragradient would not settle at all, and optimistic steps would leave.
        eta = {OGDA: 0.5, EXTRA: 0.5**0.5}.get(contender, 1.0) / np.linalg.norm(payoff, 2)
        result = solve(methods[contender], payoff, eta=eta, n_iter=5000, eps=1e-13)
        _add_run(measurement, name, result)
        measurement.certify(result.certificates if contender == AUTO else (), case=name)


def measure_invariance(measurement: Measurement) -> None:
    """What x^mu loses in biased rock-paper-scissors, from play and from the quadratic program; the threshold."""
    from assay.extras import MissingExtraError
    from assay.games.asymmetric_invariance import invariance_threshold
    from assay.games.asymmetric_perturbation import asym_gda

    strengths, losses = (0.1, 0.5, 1.0, 2.0, 4.0), []
    for mu in strengths:
        result = solve(asym_gda, BIASED_RPS, mu=mu, eps=1e-13)
        losses.append(float((BIASED_RPS.T @ result.x).max()))  # the value of the game is 0
        measurement.add("loss_of_perturbed_strategy", losses[-1], case=f"mu = {mu:g}")
    measurement.add_curve(
        "Loss of the perturbed strategy", strengths, np.maximum(losses, 1e-16), x_label="mu", x_log=True, y_log=True,
        y_label="loss to a best response",
    )  # fmt: skip
    try:
        for side in ("x", "y"):
            low, high = invariance_threshold(BIASED_RPS, side=side)
            error = max(abs(low - 2.5), abs(high - 2.5)) / 2.5
            measurement.add("threshold_error", error, case=f"BRPS, {side} side")
    except MissingExtraError:
        measurement.add("installed", 0.0, case="Clarabel")


def measure_random_games(measurement: Measurement, contender: str, games: dict[str, np.ndarray], most: int) -> None:
    """Steps to 1e-6, 1e-8 and 1e-10, and what is left after 20000."""
    from assay.games.asymmetric_baselines import extragradient, gda, ogda, sym_gda
    from assay.games.asymmetric_perturbation import asym_gda

    for name, payoff in games.items():
        norm = np.linalg.norm(payoff, 2)
        if contender == AUTO:
            result = solve(asym_gda, payoff, n_iter=most, eps=1e-10)
            measurement.certify(result.certificates, case=name)
            measurement.add("halvings", result.halvings, case=name)
            measurement.add("rate", result.rate, case=name)
            measurement.add("rate_over_sanity_line", result.rate / result.rate_certificate().bound, case=name)
        elif contender == FIXED:
            result = solve(asym_gda, payoff, mu=_FIXED_MU, n_iter=most, eps=1e-10)
        else:
            method, default = {
                SYM: (functools.partial(sym_gda, mu=_FIXED_MU), 1.0 / norm),
                DECREASING: (functools.partial(sym_gda, mu=1.0, decreasing=True), min(1.0 / norm, 0.5)),
                GDA: (gda, 1.0 / norm),
                OGDA: (ogda, 0.5 / norm),
                EXTRA: (extragradient, 1.0 / norm),
            }[contender]
            runs = [
                solve(method, payoff, eta=factor * default, n_iter=most, eps=1e-10, check_every=100)
                for factor in _STEP_SIZES
            ]
            result = min(runs, key=lambda run: (run.nashconv, run.n_iter))
            measurement.add("best_step_size", result.eta, case=name)
        _add_run(measurement, name, result)


def _add_run(measurement: Measurement, name: str, result: Any) -> None:
    iterations, gaps = result.history["iteration"], result.history["nashconv"]
    measurement.add("nashconv", result.nashconv, case=name)
    measurement.add("nashconv_at_20000", gaps[np.searchsorted(iterations, 20_000, side="right") - 1], case=name)
    reached = {}
    for digits in (6, 8, 10):
        below = np.flatnonzero(gaps <= 10.0**-digits)
        if below.size:
            reached[digits] = float(iterations[below[0]])
            measurement.add(f"steps_to_1e-{digits}", reached[digits], case=name)
    if len(reached) == 3 and reached[8] > reached[6]:
        ratio = (reached[10] - reached[8]) / (reached[8] - reached[6])
        measurement.add("departure_from_log_law", abs(ratio - 1.0), case=name)
    measurement.add_curve(
        _OVER_STEPS, iterations, np.maximum(gaps, 1e-16), case=name, x_label="steps of a run", y_label="NashConv",
        y_log=True,
    )  # fmt: skip


def measure_rejections(measurement: Measurement, n_games: int) -> None:
    """Does the quadratic program agree that every rejected perturbation moves the solution of a side?"""
    from assay.extras import MissingExtraError
    from assay.games.asymmetric_invariance import excess, perturbed_minimax
    from assay.games.asymmetric_perturbation import asym_gda
    from assay.games.ssn import solve_matrix_game

    least, rejections, wrong = np.inf, 0, 0
    try:
        for seed in range(n_games):
            payoff = uniform_game(6 + seed % 5, 6 + seed % 7, 1000 + seed)
            value = solve_matrix_game(payoff, tol=1e-13).value
            for mu in solve(asym_gda, payoff, eps=1e-10, n_iter=5000).proved_not_invariant:
                losses = (
                    excess(payoff, perturbed_minimax(payoff, mu), value),
                    excess(-payoff.T, perturbed_minimax(payoff, mu, side="y"), -value),
                )
                rejections += 1
                wrong += max(losses) <= 1e-9
                least = min(least, max(losses))
    except MissingExtraError:
        measurement.add("installed", 0.0, case="Clarabel")
        return
    measurement.add("rejections", rejections)
    measurement.add("wrong_rejections", wrong)
    measurement.add("least_loss_of_a_rejected_mu", least)


def measure_linear_program(measurement: Measurement, problem: LinearProgram, n_iter: int) -> None:
    """A linear program as a saddle point over two boxes."""
    from assay.games.asymmetric_perturbation import asym_gda

    best = problem.solve()
    started = time.perf_counter()
    saddle = problem.saddle()
    result = solve(asym_gda, saddle.pop("A"), n_iter=n_iter, eps=1e-8, check_every=100, **saddle)
    measurement.add("seconds", time.perf_counter() - started, case="linear program")
    measurement.add("objective_error", abs(problem.cost @ result.x - best), case="linear program")
    violation = max(0.0, float((problem.matrix @ result.x - problem.bound).max()))
    measurement.add("violation", violation, case="linear program")
    measurement.add("nashconv", result.nashconv, case="linear program")
    measurement.add("halvings", result.halvings, case="linear program")


def race_highs(measurement: Measurement, games: dict[str, np.ndarray], most: int) -> None:
    """Seconds of linear programming against those of AsymP to 1e-10."""
    from assay.games.asymmetric_perturbation import asym_gda
    from assay.studies.games._matrix_games import linear_program, strategies_of

    for name, payoff in games.items():
        functions = {
            "highs": functools.partial(linear_program, payoff, "highs", "row"),
            "ours": functools.partial(solve, asym_gda, payoff, n_iter=most, eps=1e-10),
        }
        timings = interleave(functions, repeats=3, clock="cpu")
        x, y = strategies_of(timings.answers["highs"], "row")
        measurement.add("nashconv", (payoff.T @ x).max() - (payoff @ y).min(), case=name)
        measurement.add("seconds", timings.median("highs"), case=name)
        measurement.add("seconds_over_ours", timings.ratio("highs", "ours").median, case=name)


def measure_speed(measurement: Measurement, shape: tuple[int, int], n_steps: int) -> None:
    """Steps per second, and a step against its two products and a sort of both strategies."""
    from assay.games.bilinear_saddle import BilinearSaddle
    from assay.games.saddle_dynamics import SaddlePlay

    payoff = uniform_game(*shape, 0)
    saddle = BilinearSaddle.of(payoff, None, None, None, None)
    x, y = (np.full(n, 1.0 / n) for n in shape)
    play = SaddlePlay(saddle, "perturbed", x, y, eta=1.0 / np.linalg.norm(payoff, 2), mu=(0.05, 0.0))
    play.advance(200)
    transposed = np.ascontiguousarray(payoff.T)

    def products() -> None:
        for _ in range(n_steps):
            np.sort(payoff @ play.y)
            np.sort(transposed @ play.x)

    timings = interleave({"step": lambda: play.advance(n_steps), "products": products}, repeats=5, clock="cpu")
    case = f"{shape[0]}x{shape[1]}"
    measurement.add("steps_per_second", n_steps / timings.median("step"), case=case)
    measurement.add("step_over_products", timings.ratio("step", "products").median, case=case)
