"""Gaps of policies from logs: how they fall with data, what coverage does to them, and real rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from assay.certificate import Certificate
from assay.games.offline_baselines import pessimistic_equilibrium, plugin_equilibrium
from assay.games.offline_data import OfflineGameData
from assay.games.offline_markov import rose, sos_md
from assay.lab import Measurement
from assay.studies.games._offline_names import HARMONIC, PESSIMISTIC, PLUGIN, ROSE, SOS_MD
from assay.studies.games._offline_problems import (
    BETAS,
    RuledGame,
    deterministic_behaviour,
    equilibrium,
    random_game,
    real_rules,
    soccer,
    unilateral_behaviour,
)

BONUSES = (0.01, 0.1, 1.0)
UPDATES = (5, 20, 80, 320)
# The sizes of logs at which single claims are judged.
MANY, SOME, FEW = 32_000, 8_000, 500
CONTROL_BETA = 0.3
SOCCER_BETAS = (0.01, 0.03, 0.1)
UNILATERAL_BETAS = (0.1, 0.2, 0.5)


class Found(NamedTuple):
    """Policies, and what is promised about them."""

    mu: np.ndarray
    nu: np.ndarray
    certificates: tuple[Certificate, ...] = ()
    opt_gap: float = math.nan


def learn(contender: str, game: RuledGame, data: OfflineGameData, beta: float, **options: Any) -> list[Found]:
    """Policies of a contender: one pair, or for pessimism one for every size of the bonus."""
    if contender in (PLUGIN, PESSIMISTIC):
        results = (
            [plugin_equilibrium(data)] if contender == PLUGIN else [pessimistic_equilibrium(data, c) for c in BONUSES]
        )
        return [Found(result.mu, result.nu, result.certificates) for result in results]
    if contender == ROSE:
        result = rose(data, beta, *game.references, **options)
    else:
        schedule = "harmonic" if contender == HARMONIC else "constant"
        result = sos_md(data, beta, *game.references, schedule=schedule, **options)
    return [Found(result.mu, result.nu, result.certificates, result.opt_gap)]


def best_gaps(game: RuledGame, beta: float, found: list[Found]) -> tuple[float, float]:
    """Regularised and plain gap, each of the best of several."""
    gaps = [game.gaps(beta, one.mu, one.nu) for one in found]
    return min(gap for gap, _ in gaps), min(gap for _, gap in gaps)


def slope(points: Mapping[int, float]) -> float:
    """Exponent of the power law through the points; nan where one of them is 0."""
    sizes, values = np.array(list(points)), np.array(list(points.values()))
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0]) if values.min() > 0 else math.nan


def measure_true_model(measurement: Measurement, seed: int) -> None:
    """What is to be found has no gap."""
    game = random_game(seed)
    for beta in BETAS:
        solution = equilibrium(game, beta)
        gap, plain = game.gaps(beta, solution.mu, solution.nu)
        measurement.add("gap", gap, case=f"random, beta={beta:g}")
        measurement.add("nash_gap", plain, case=f"random, beta={beta:g}")
        measurement.certify(solution.certificates, case=f"random, beta={beta:g}")


def measure_rates(
    measurement: Measurement, contender: str, seed: int, sizes: tuple[int, ...], replications: int
) -> None:
    """Both gaps against the size of the log, averaged over logs, on a random game with uniform behaviour."""
    game = random_game(seed)
    gaps: dict[float, dict[int, float]] = {beta: {} for beta in BETAS}
    plain: dict[float, dict[int, float]] = {beta: {} for beta in BETAS}
    options = {"split_half": False, "estimate_coverage": False} if contender == ROSE else {}
    for n in sizes:
        pairs: dict[float, list[tuple[float, float]]] = {beta: [] for beta in BETAS}
        for replication in range(replications):
            data = game.sample(n, "uniform", seed, replication)
            shared = None if contender == ROSE else learn(contender, game, data, 1.0)
            for beta in BETAS:
                found = learn(contender, game, data, beta, **options) if shared is None else shared
                pairs[beta].append(best_gaps(game, beta, found))
        for beta in BETAS:
            gaps[beta][n], plain[beta][n] = map(float, np.mean(pairs[beta], axis=0))
    for beta in BETAS:
        for n in sizes:
            measurement.add("gap", gaps[beta][n], case=f"random, beta={beta:g}, n={n}")
            measurement.add("nash_gap", plain[beta][n], case=f"random, beta={beta:g}, n={n}")
        measurement.add("gap_slope", slope(gaps[beta]), case=f"random, beta={beta:g}")
        measurement.add("nash_gap_slope", slope(plain[beta]), case=f"random, beta={beta:g}")
        for name, values in (("regularised gap", gaps[beta]), ("gap without regularisation", plain[beta])):
            measurement.add_curve(
                name,
                list(sizes),
                list(values.values()),
                case=f"beta={beta:g}",
                x_label="samples per step",
                x_log=True,
                y_log=True,
            )
    for n in sizes:
        measurement.add("gap_over_that_of_beta_1", gaps[0.2][n] / gaps[1.0][n], case=f"n={n}")


def measure_certificates(measurement: Measurement, seed: int, n: int) -> None:
    """What ROSE says about its own answer, everything included."""
    game = random_game(seed)
    data = game.sample(n, "uniform", seed, 0)
    for beta in BETAS:
        result = rose(data, beta, *game.references)
        measurement.certify(result.certificates, case=f"random, beta={beta:g}, n={n}")
        true_gap, _ = game.gaps(beta, result.mu, result.nu)
        measurement.add("split_half_over_true_gap", result.split_half_gap / true_gap, case=f"beta={beta:g}, n={n}")


def measure_self_play(measurement: Measurement, contender: str, seed: int) -> None:
    """True gap after more and more updates, next to ROSE's on the same log, and the optimisation gap alone."""
    game = random_game(seed)
    data = game.sample(MANY, "uniform", seed, 0)
    for beta in BETAS:
        target, _ = best_gaps(game, beta, learn(ROSE, game, data, beta, split_half=False, estimate_coverage=False))
        left: dict[int, float] = {}
        for updates in UPDATES:
            found = learn(contender, game, data, beta, n_iter=updates, split_half=False, estimate_coverage=False)
            gap, plain = best_gaps(game, beta, found)
            case = f"random, beta={beta:g}, n={MANY}, T={updates}"
            measurement.add("gap", gap, case=case)
            measurement.add("nash_gap", plain, case=case)
            measurement.add("gap_over_rose", gap / target, case=case)
            measurement.add("opt_gap", found[0].opt_gap, case=case)
            measurement.certify(found[0].certificates, case=case)
            left[updates] = found[0].opt_gap
        measurement.add_curve(
            "optimisation gap of self-play",
            list(left),
            np.maximum(list(left.values()), 1e-16),
            case=f"beta={beta:g}",
            x_label="updates per stage game",
            x_log=True,
            y_log=True,
        )
        if contender == SOS_MD:
            _measure_contraction(measurement, game, data, beta)


def _measure_contraction(measurement: Measurement, game: RuledGame, data: OfflineGameData, beta: float) -> None:
    """How fast the gap of the first step falls between any two looks at it, against what is proven for distances.

    The values of the first step range widest. Looked at from the first update on, to where rounding begins.
    """
    result = sos_md(data, beta, *game.references, n_iter=512, split_half=False, estimate_coverage=False)
    counted = (result.history["step"] == 1) & (result.history["gap"] > 1e-12)
    updates, logs = result.history["iteration"][counted], np.log(result.history["gap"][counted])
    proven = math.log1p((beta / float(result.half_range_per_step[0])) ** 2)
    slowest = float((-np.diff(logs) / np.diff(updates)).min())
    measurement.add("decay_over_proven", slowest / proven, case=f"random, beta={beta:g}")
    result = sos_md(data, beta, *game.references, n_iter=20, split_half=False, estimate_coverage=False)
    contraction = next(c for c in result.certificates if c.statement.startswith("relative entropy"))
    measurement.add("contraction_over_bound", contraction.value / contraction.bound, case=f"beta={beta:g}, T=20")


def measure_unilateral(measurement: Measurement, contender: str, seed: int, replications: int) -> None:
    """Behaviour that is near the equilibrium on one side at a time, against uniform behaviour."""
    game = random_game(seed)
    regularised = contender not in (PLUGIN, PESSIMISTIC)
    options = {"split_half": False, "estimate_coverage": False} if regularised else {}
    flat = [game.sample(SOME, "uniform", seed, replication) for replication in range(replications)]
    shared = None if regularised else [learn(contender, game, data, 1.0) for data in flat]
    for beta in UNILATERAL_BETAS:
        behaviour = unilateral_behaviour(equilibrium(game, beta))
        near = [game.sample(SOME, behaviour, seed, replication) for replication in range(replications)]
        means = {}
        for name, logs in (("uniform", flat), ("unilateral", near)):
            if logs is flat and shared is not None:
                found = shared
            else:
                found = [learn(contender, game, data, beta, **options) for data in logs]
            gaps = [best_gaps(game, beta, one) for one in found]
            means[name] = np.mean(gaps, axis=0)
        case = f"unilateral, beta={beta:g}, n={SOME}"
        measurement.add("gap", means["unilateral"][0], case=case)
        measurement.add("nash_gap", means["unilateral"][1], case=case)
        measurement.add("gap_over_uniform", means["unilateral"][0] / means["uniform"][0], case=case)
        measurement.add("nash_gap_over_uniform", means["unilateral"][1] / means["uniform"][1], case=case)


def measure_negative_control(measurement: Measurement, seed: int) -> None:
    """One pair of actions per state and nothing else in the log: no rate is promised, and none is seen."""
    game, beta = random_game(seed), CONTROL_BETA
    behaviour = deterministic_behaviour(equilibrium(game, beta))
    gaps, finite = {}, []
    for n in (FEW, MANY):
        result = rose(game.sample(n, behaviour, seed, 0), beta, *game.references, split_half=False)
        gaps[n], _ = game.gaps(beta, result.mu, result.nu)
        finite.append(next(c.holds for c in result.certificates if "concentrability" in c.statement))
        measurement.add("gap", gaps[n], case=f"one pair, beta={beta:g}, n={n}")
    covered = learn(ROSE, game, game.sample(MANY, "uniform", seed, 0), beta, split_half=False)
    uniform, _ = best_gaps(game, beta, covered)
    case = f"one pair, beta={beta:g}"
    measurement.add("gap_over_uniform", gaps[MANY] / uniform, case=f"{case}, n={MANY}")
    measurement.add("gap_slope", slope(gaps), case=case)
    measurement.add("coverage_certificate_holds", float(max(finite)), case=case)


def measure_soccer(measurement: Measurement, contender: str, seed: int, sizes: tuple[int, ...]) -> None:
    """Twelve steps on a grid, from logs of both players at random: most states are never seen.

    The gap without regularisation is that of the best of three weights, as it is that of the best of three bonuses.
    """
    game, beta = soccer(), SOCCER_BETAS[-1]
    references = game.gaps(beta, game.mu_ref, game.nu_ref)
    for n in sizes:
        data = game.sample(n, "uniform", seed, 0)
        if contender in (PLUGIN, PESSIMISTIC):
            found = learn(contender, game, data, beta)
            gap, plain = best_gaps(game, beta, found)
        else:
            options: dict[str, Any] = {"split_half": False, "estimate_coverage": False}
            options |= {"tol": 1e-8} if contender == ROSE else {"n_iter": 320}
            found = [learn(contender, game, data, weight, **options)[0] for weight in SOCCER_BETAS]
            gap, _ = best_gaps(game, beta, found[-1:])
            _, plain = best_gaps(game, beta, found)
        measurement.add("gap", gap, case=f"soccer, n={n}")
        measurement.add("nash_gap", plain, case=f"soccer, n={n}")
        measurement.add("gap_over_references", gap / references[0], case=f"soccer, n={n}")
        measurement.add("nash_gap_over_references", plain / references[1], case=f"soccer, n={n}")


def measure_real_rules(measurement: Measurement, contender: str, seed: int, sizes: tuple[int, ...]) -> None:
    """Games whose rules are those of OpenSpiel."""
    for name, converted in real_rules():
        short = name.partition("(")[0]
        game = RuledGame(short, converted.model, converted.mu_ref, converted.nu_ref, noise=None)
        gaps = {}
        for n in sizes:
            data = game.sample(n, "uniform", seed, 0)
            options = {"split_half": False} if contender == ROSE else {}
            gaps[n] = best_gaps(game, 0.1, learn(contender, game, data, 0.1, **options))
            measurement.add("gap", gaps[n][0], case=f"{short}, n={n}")
            measurement.add("nash_gap", gaps[n][1], case=f"{short}, n={n}")


def measure_judge(measurement: Measurement, seed: int) -> None:
    """OpenSpiel's own exploitability of policies that were learned from a log, against the gap computed here."""
    import pyspiel
    from open_spiel.python.algorithms import exploitability

    for name, converted in real_rules():
        short = name.partition("(")[0]
        game = RuledGame(short, converted.model, converted.mu_ref, converted.nu_ref, noise=None)
        data = game.sample(FEW, "uniform", seed, 0)
        found = learn(ROSE, game, data, 0.1, split_half=False)[0]
        theirs = exploitability.nash_conv(
            pyspiel.convert_to_turn_based(pyspiel.load_game(name)), _as_open_spiel(name, converted, found)
        )
        ours = 2 * converted.scale * game.gaps(0.1, found.mu, found.nu)[1]
        measurement.add("nash_conv", theirs, case=short)
        measurement.add("difference_of_gaps", abs(theirs - ours), case=short)


def _as_open_spiel(name: str, converted: Any, found: Found) -> Any:
    """Policies of both players as OpenSpiel wants them; actions that stand for one move add up."""
    import pyspiel
    from open_spiel.python import policy

    numbers = {key: s for s, key in enumerate(zip(converted.steps, converted.states, strict=True))}

    class Learned(policy.Policy):
        def action_probabilities(self, state: Any, player_id: int | None = None) -> dict[int, float]:
            player = state.current_player() if player_id is None else player_id
            step = len(state.history()) // 2
            s = numbers[step, str(state.simultaneous_game_state())]
            row = (found.mu, found.nu)[player][step, s]
            chances: dict[int, float] = {}
            for move, chance in zip(converted.moves[s][player], row, strict=True):
                chances[move] = chances.get(move, 0.0) + float(chance)
            return chances

    return Learned(pyspiel.convert_to_turn_based(pyspiel.load_game(name)), [0, 1])
