"""Stage games alone: how many updates the solvers take, and what an update costs."""

from __future__ import annotations

import functools
import math
import tracemalloc
from collections.abc import Callable

import numpy as np

from assay.games.offline_data import OfflineGameData
from assay.games.offline_markov import rose, sos_md
from assay.games.stage_equilibrium import iterations_needed, play_stage, solve_stage
from assay.lab import Measurement, interleave
from assay.studies.games._offline_measures import slope

_TARGET = 1e-6
_HARMONIC_UPDATES = (160, 320, 640, 1280, 2560)


def fixed_stage_games() -> tuple[np.ndarray, np.ndarray]:
    """Twenty games of 5 x 5 with payoffs up to 4, and uniform references."""
    return np.random.default_rng(3).uniform(0, 4, (20, 5, 5)), np.full((20, 5), 0.2)


def measure_harmonic(measurement: Measurement) -> None:
    """The worst gap of 20 games against the number of updates with harmonic steps."""
    payoffs, uniform = fixed_stage_games()
    for beta in (0.1, 0.3, 1.0):
        gaps = {
            updates: float(play_stage(payoffs, uniform, uniform, beta, updates, harmonic=True).gap.max())
            for updates in _HARMONIC_UPDATES
        }
        measurement.add("gap_slope_in_updates", slope(gaps), case=f"stage games, beta={beta:g}")
        for updates, gap in gaps.items():
            measurement.add("stage_gap", gap, case=f"stage games, beta={beta:g}, T={updates}")
        measurement.add_curve(
            "worst gap of stage games, harmonic steps",
            list(gaps),
            list(gaps.values()),
            case=f"beta={beta:g}",
            x_label="updates",
            x_log=True,
            y_log=True,
        )


def measure_updates(measurement: Measurement, betas: tuple[float, ...]) -> None:
    """Updates to a worst gap of 1e-6: optimistic multiplicative weights against mirror descent in self-play."""
    payoffs, uniform = fixed_stage_games()
    for beta in betas:
        optimistic = _first(lambda n, beta=beta: solve_stage(payoffs, uniform, uniform, beta, 1e-300, n).gap.max())
        self_play = _first(lambda n, beta=beta: play_stage(payoffs, uniform, uniform, beta, n).gap.max())
        case = f"stage games, beta={beta:g}"
        measurement.add("updates_of_rose", optimistic, case=case)
        measurement.add("updates_of_self_play", self_play, case=case)
        measurement.add("updates_over_self_play", optimistic / self_play, case=case)


def _first(gap_after: Callable[[int], float]) -> int:
    """Fewest updates after which the gap is small: doubling, then halving the interval."""
    high = 64
    while gap_after(high) > _TARGET:
        high *= 2
    low = high // 2
    while high - low > max(1, high // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if gap_after(middle) <= _TARGET else (middle, high)
    return high


def measure_speed(measurement: Measurement, repeats: int) -> None:
    """All states at once against a loop over them in Python, and how the time grows."""
    beta, half_range = 0.5, 2.0
    updates = iterations_needed(1e-3, half_range, beta)  # what self-play does by default with such payoffs
    payoffs = np.random.default_rng(0).uniform(0, 2 * half_range, (200, 10, 10))
    uniform = np.full((200, 10), 0.1)
    timings = interleave(
        {
            "compiled": lambda: play_stage(payoffs, uniform, uniform, beta, updates),
            "loop": lambda: loop_over_states(payoffs, uniform, beta, updates),
        },
        repeats=repeats,
        clock="cpu",
    )
    measurement.add("loop_over_compiled", timings.ratio("loop", "compiled").median)
    apart = abs(timings.answers["compiled"].mu - timings.answers["loop"]).max()
    measurement.add("loop_difference", apart)
    measurement.add("seconds_slope_in_states", _slope_of_time({n: (n, 100) for n in (250, 500, 1000, 2000)}, repeats))
    measurement.add("seconds_slope_in_updates", _slope_of_time({n: (500, n) for n in (100, 200, 400, 800)}, repeats))


def _slope_of_time(sizes: dict[int, tuple[int, int]], repeats: int) -> float:
    """Exponent of the median times of several numbers of states and updates, run in turns."""
    runs = {}
    for name, (n_states, updates) in sizes.items():
        payoffs = np.random.default_rng(1).uniform(0, 4, (n_states, 10, 10))
        uniform = np.full((n_states, 10), 0.1)
        runs[str(name)] = functools.partial(play_stage, payoffs, uniform, uniform, 0.5, updates)
    timings = interleave(runs, repeats=repeats, clock="cpu")
    return slope({name: timings.median(str(name)) for name in sizes})


def loop_over_states(payoffs: np.ndarray, reference: np.ndarray, beta: float, updates: int) -> np.ndarray:
    """Mirror descent in self-play, one state after the other and one update after the other."""
    policies = []
    for payoff, ref in zip(payoffs, reference, strict=True):
        half_range = (payoff.max() - payoff.min()) / 2
        eta = beta / half_range**2
        shrink = 1 / (1 + eta * beta)
        step, pull = eta * shrink, (1 - shrink) * np.log(ref)
        log_mu, log_nu = np.log(ref), np.log(ref)
        mu, nu, turned = ref, ref, payoff.T
        for _ in range(updates):
            gain, loss = payoff @ nu, turned @ mu
            log_mu = shrink * log_mu + pull + step * gain
            log_nu = shrink * log_nu + pull - step * loss
            mu, nu = np.exp(log_mu), np.exp(log_nu)  # payoffs are of moderate size
            mass_mu, mass_nu = mu.sum(), nu.sum()
            mu, nu = mu / mass_mu, nu / mass_nu
            log_mu -= math.log(mass_mu)
            log_nu -= math.log(mass_nu)
        policies.append(mu)
    return np.array(policies)


def random_log(n_states: int, n_actions: int, horizon: int, n: int) -> OfflineGameData:
    """A log without a game behind it: cost does not depend on what is in it."""
    rng = np.random.default_rng(2)
    size = horizon * n
    return OfflineGameData(
        np.repeat(np.arange(1, horizon + 1), n),
        rng.integers(n_states, size=size),
        rng.integers(n_actions, size=size),
        rng.integers(n_actions, size=size),
        rng.random(size),
        rng.integers(n_states, size=size),
        horizon,
        n_states,
        (n_actions, n_actions),
    )


def measure_large(measurement: Measurement) -> None:
    """A thousand states, 10 x 10 actions, ten steps, 200 updates, everything included."""
    data = random_log(1000, 10, 10, 100_000)
    run = {"": lambda: sos_md(data, 0.5, "uniform", "uniform", n_iter=200)}
    timings = interleave(run, repeats=1, warmup=0, clock="wall")
    measurement.add("seconds_large", timings.median(""))


def measure_memory(measurement: Measurement) -> None:
    """Peak memory beyond the data, per cell of all tables of values, and how it grows with the states."""
    peaks = {}
    for n_states in (100, 200, 400):
        data = random_log(n_states, 10, 4, 5_000)
        rose(data, 1.0, "uniform", "uniform", split_half=False, estimate_coverage=False)
        tracemalloc.start()
        rose(data, 1.0, "uniform", "uniform", split_half=False, estimate_coverage=False)
        peaks[n_states] = float(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        measurement.add("numbers_per_cell", peaks[n_states] / 8 / (4 * n_states * 100), case=f"S={n_states}")
    measurement.add("memory_slope_in_states", slope(peaks))
