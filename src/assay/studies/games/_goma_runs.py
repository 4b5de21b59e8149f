"""Runs of anchored methods and of what they are compared with, at equal numbers of calls."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.lab import Measurement
from assay.studies.games._saddle_problems import Saddle, robust_logistic_minibatch

__all__ = [
    "ADAM",
    "DSEG",
    "DSEG_BOTH",
    "EAG",
    "EG",
    "EXPLORE",
    "GOMA",
    "HORIZON",
    "NOISY",
    "OGDA",
    "PAPER",
    "SEG",
    "SGDA",
    "measure_deterministic",
    "measure_minibatches",
    "measure_noise",
    "measure_small_steps",
    "measure_well_conditioned",
]

GOMA, PAPER, EXPLORE = "GOMA", "GOMA, paper", "GOMA, explore"
NOISY, HORIZON = "GOMA, noise", "GOMA, horizon"
EG, OGDA, EAG, SGDA, ADAM = "EG", "OGDA", "EAG-C", "SGDA", "Adam"
SEG, DSEG, DSEG_BOTH = "stochastic EG", "double-stepsize EG", "double-stepsize EG, both shrink"

PRESET_OF = {GOMA: "halpern", PAPER: "paper", EXPLORE: "explore"}
# Step sizes times the Lipschitz constant that every contender is tuned over.
STEPS = (0.125, 0.25, 0.5, 0.7, 1.0)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def run(contender: str, problem: Saddle, calls: int, step_size: float | None = None) -> Any:
    """Let one method use a number of calls; with a step size of its own, or its default."""
    from assay.games.goma import goma
    from assay.games.saddle_peers import (
        anchored_extragradient_operator,
        extragradient_operator,
        gradient_operator,
        optimistic_operator,
    )

    n_iter = {EG: calls // 2, EAG: calls // 2, OGDA: calls, SGDA: calls}.get(contender, calls - 1)
    options: dict[str, Any] = {"n_iter": n_iter, "check_every": max(1, n_iter // 500)}
    if step_size is not None:
        options["step_size"] = step_size
    if contender in PRESET_OF:
        return goma(
            problem.field, problem.start, problem.lipschitz, PRESET_OF[contender], z_star=problem.zero,
            allow_unproved=step_size is not None, **options,
        )  # fmt: skip
    peers = {
        EG: extragradient_operator,
        OGDA: optimistic_operator,
        EAG: anchored_extragradient_operator,
        SGDA: gradient_operator,
    }
    return peers[contender](problem.field, problem.start, problem.lipschitz, **options)


def residual_or_inf(contender: str, problem: Saddle, calls: int, step_size: float) -> float:
    """Squared norm of the operator at the end, or infinity where the method diverges."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            residual_sq = run(contender, problem, calls, step_size).residual_sq
    except FloatingPointError:
        return math.inf
    return residual_sq if math.isfinite(residual_sq) else math.inf


def measure_deterministic(
    measurement: Measurement, contender: str, problems: list[Saddle], calls: int, tuned: tuple[str, ...]
) -> None:
    """Residuals, slopes, counted calls, and for our presets the bound and the potential."""
    for problem in problems:
        if contender == ADAM:
            measure_adam(measurement, problem, calls)
            continue
        result = run(contender, problem, calls)
        case = problem.name
        measurement.add("residual_default", result.residual_sq, case=case)
        measurement.add("slope", result.slope, case=case)
        promised = 2 * result.n_iter if contender in (EG, EAG) else result.n_iter + (contender in PRESET_OF)
        measurement.add("calls_off", abs(result.n_calls - promised), case=case)
        if contender in PRESET_OF:
            measurement.certify(result.certificates, case=case)
            shift = 6 if contender == PAPER else 1
            scaled = result.history["residual_sq"] * (result.history["iteration"] + shift) ** 2
            measurement.add("constant", scaled.max() / (problem.lipschitz * problem.distance) ** 2, case=case)
            measurement.add("share_of_bound", _of(result, "over its bound"), case=case)
            measurement.add("growth_of_potential", _of(result, "potential"), case=case)
        if problem.name in tuned and contender in (GOMA, EG, OGDA, EAG):
            found = [residual_or_inf(contender, problem, calls, step / problem.lipschitz) for step in STEPS]
            measurement.add("residual_tuned", min(found), case=case)
            measurement.add("best_step", STEPS[int(np.argmin(found))], case=case)
        _draw(measurement, result.history["calls"], result.history["residual_sq"], case)


def _of(result: Any, words: str) -> float:
    (value,) = (c.value for c in result.certificates if words in c.statement)
    return value


def _draw(measurement: Measurement, calls: np.ndarray, residual_sq: np.ndarray, case: str) -> None:
    shown = (calls > 0) & (residual_sq > 0)
    chosen = np.unique(np.geomspace(1, shown.sum(), 80).astype(int)) - 1
    measurement.add_curve(
        "squared norm of the operator", calls[shown][chosen], residual_sq[shown][chosen], case=case, x_label="calls",
        y_label="squared norm of the operator", x_log=True, y_log=True,
    )  # fmt: skip


def measure_adam(measurement: Measurement, problem: Saddle, calls: int) -> None:
    """Adam on both players, with the operator as the gradient, over as many rates as the others have step sizes."""
    found = [_adam(problem, calls, rate) for rate in RATES]
    ends = [residuals[-1] for _, residuals in found]
    best = int(np.argmin(ends))
    measurement.add("residual_default", ends[RATES.index(1e-3)], case=problem.name)
    measurement.add("residual_tuned", ends[best], case=problem.name)
    measurement.add("best_step", RATES[best], case=problem.name)
    _draw(measurement, *found[best], problem.name)


def _adam(problem: Saddle, calls: int, rate: float, oracle: Callable[[np.ndarray], np.ndarray] | None = None) -> Any:
    import torch

    z = torch.nn.Parameter(torch.tensor(problem.start))
    # Fused, since a step in Python would take longer than the operator; the second player's sign is in the operator.
    optimizer = torch.optim.Adam([z], lr=rate, fused=True)
    seen = z.detach().numpy()
    evaluate = problem.field if oracle is None else oracle
    rows = []
    for k in range(calls):
        z.grad = torch.from_numpy(evaluate(seen))
        if k % max(1, calls // 200) == 0:
            rows.append((k + 1, float(np.sum(problem.field(seen) ** 2))))
        optimizer.step()
    rows.append((calls, float(np.sum(problem.field(seen) ** 2))))
    return np.array(rows).T


def measure_small_steps(measurement: Measurement, problem: Saddle, calls: int) -> None:
    """The paper's preset with steps below its limit, where the paper's own constant is exceeded."""
    from assay.games.goma import goma

    for step in (0.05, 0.1, 0.25):
        result = goma(
            problem.field, problem.start, problem.lipschitz, "paper", n_iter=calls - 1, check_every=20,
            z_star=problem.zero, step_size=step / problem.lipschitz,
        )  # fmt: skip
        k = result.history["iteration"]
        constant = (result.history["residual_sq"] * (k + 6) ** 2).max() / (problem.lipschitz * problem.distance) ** 2
        case = f"eta L = {step:g}"
        measurement.add("unscaled_constant", constant, case=case)
        measurement.add("scaled_constant", constant * step**2, case=case)
        measurement.add("share_of_scaled_bound", _of(result, "over its bound"), case=case)


def measure_well_conditioned(measurement: Measurement, problem: Saddle, weakest: float, calls: int) -> None:
    """Where an anchored method loses, and what restarts recover."""
    from assay.games.goma import goma

    plain = run(GOMA, problem, calls)
    peer = run(EG, problem, calls)
    every = math.ceil(9.0 * problem.lipschitz / weakest)
    restarted = goma(
        problem.field, problem.start, problem.lipschitz, n_iter=calls - 1, check_every=every, restart_every=every
    )
    whole = restarted.history["iteration"] % every == 0  # the last cycle may be cut short
    norms = np.sqrt(restarted.history["residual_sq"][whole])
    norms = norms[norms > 1e-13 * norms[0]]  # below there is rounding
    case = problem.name
    measurement.add("residual_over_eg", plain.residual_sq / max(peer.residual_sq, np.finfo(float).tiny), case=case)
    measurement.add("residual_restarted", restarted.residual_sq, case=case)
    measurement.add("worst_factor_of_restart", float((norms[1:] / norms[:-1]).max()), case=case)


def _replicas(n: int, sigma: float, kappa: float) -> tuple[Callable[[np.ndarray], np.ndarray], Any]:
    """A rotation of the plane, many times over, and a noisy oracle with its own noise for each."""

    def field(z: np.ndarray) -> np.ndarray:
        pairs = z.reshape(n, 2)
        return np.stack([pairs[:, 1], -pairs[:, 0]], axis=1).ravel()

    def oracle(z: np.ndarray, batch_size: int, rng: np.random.Generator) -> np.ndarray:
        exact = field(z).reshape(n, 2)
        variance = sigma**2 + (kappa - 1.0) * (exact**2).sum(axis=1)
        return (exact + rng.standard_normal((n, 2)) * np.sqrt(0.5 * variance / batch_size)[:, None]).ravel()

    return field, oracle


def measure_noise(
    measurement: Measurement, contender: str, n: int, n_iter: int, horizons: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Mean squared norm over replicas of a noisy rotation, its slope, and its share of the bound."""
    from assay.games.goma import StochasticSpec, goma
    from assay.games.monotone_operator import fitted_slope

    sigma = 0.5
    for kappa in (1.0, 4.0):
        case = f"kappa {kappa:g}"
        field, oracle = _replicas(n, sigma, kappa)
        start, zero = np.ones(2 * n), np.zeros(2 * n)
        # All replicas are one problem: the steps depend on nothing that stacking them changes.
        noise = StochasticSpec(sigma=sigma * math.sqrt(n), kappa=kappa, oracle=oracle)
        if contender == NOISY:
            every = max(1, n_iter // 1600)
            result = goma(field, start, 1.0, noise=noise, n_iter=n_iter, check_every=every, z_star=zero, rng=rng)
            iteration, mean_sq = result.history["iteration"], result.history["residual_sq"] / n
            measurement.add("share_of_bound", result.residual_sq / result.bound, case=case)
            measurement.certify(result.certificates, case=case)
        elif contender == HORIZON:
            ends = []
            for horizon in horizons:
                result = goma(
                    field, start, 1.0, noise=noise, schedule="horizon", n_iter=horizon, check_every=horizon,
                    z_star=zero, rng=rng,
                )  # fmt: skip
                ends.append(result.residual_sq / n)
                measurement.certify(result.certificates, case=case)
            measurement.add("share_of_bound", result.residual_sq / result.bound, case=case)
            iteration, mean_sq = np.array(horizons), np.array(ends)
        else:
            iteration, mean_sq = _noisy_extragradient(contender, oracle, field, start, n_iter, rng, kappa)
            mean_sq = mean_sq / n
        measurement.add("slope", fitted_slope(iteration, mean_sq), case=case)
        measurement.add("mean_residual", mean_sq[-1], case=case)
        shown = (iteration > 0) & np.isfinite(mean_sq)
        chosen = np.unique(np.geomspace(1, shown.sum(), 60).astype(int)) - 1 if shown.any() else []
        measurement.add_curve(
            "noisy rotation", iteration[shown][chosen], mean_sq[shown][chosen], case=case, x_label="steps",
            y_label="mean squared norm of the operator", x_log=True, y_log=True,
        )  # fmt: skip


def _noisy_extragradient(
    contender: str, oracle: Any, field: Any, z: np.ndarray, n_iter: int, rng: np.random.Generator, kappa: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Stochastic extragradient at equal numbers of calls.

    With equal constant steps; with an update that shrinks; or with a look ahead on the schedule of the paper and half
    of that for the update.
    """
    rows = [(0, float(np.sum(field(z) ** 2)))]
    n_steps = n_iter // 2
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(n_steps):
            look, update = 0.5, 0.5
            if contender == DSEG:
                update = 0.5 / (k + 1) ** (2.0 / 3.0)
            elif contender == DSEG_BOTH:
                look = 1.0 / (math.sqrt(kappa) * (k + 2) ** 0.75)
                update = 0.5 * look
            z = z - update * oracle(z - look * oracle(z, 1, rng), 1, rng)
            if (k + 1) % max(1, n_steps // 1600) == 0:
                rows.append((2 * (k + 1), float(np.sum(field(z) ** 2))))
    iteration, residual_sq = np.array(rows).T
    return iteration, residual_sq


def measure_minibatches(
    measurement: Measurement, contender: str, problem: Saddle, calls: int, rng: np.random.Generator
) -> None:
    """Robust logistic regression from minibatches of 32, each contender with as many step sizes."""
    from assay.games.goma import StochasticSpec, goma
    from assay.games.saddle_peers import gradient_operator

    sampled = robust_logistic_minibatch()

    def solve(step: float) -> float:
        step_size = step / problem.lipschitz
        if contender == NOISY:
            noise = StochasticSpec(sigma=1.0, oracle=sampled)
            return goma(
                problem.field, problem.start, problem.lipschitz, noise=noise, n_iter=calls, check_every=calls,
                step_size=step_size, allow_unproved=True, rng=rng,
            ).residual_sq  # fmt: skip
        if contender == SGDA:
            result = gradient_operator(
                lambda z: sampled(z, 1, rng), problem.start, n_iter=calls, check_every=calls, step_size=step_size
            )
            return float(np.sum(problem.field(result.z) ** 2))
        if contender == ADAM:
            return float(_adam(problem, calls, RATES[STEPS.index(step)], lambda z: sampled(z, 1, rng))[1, -1])
        _, residual_sq = _noisy_extragradient(
            contender, lambda z, b, r: step_size * 2.0 * sampled(z, b, r), problem.field, problem.start, calls, rng
        )
        return float(residual_sq[-1])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = [solve(step) for step in STEPS]
    found = [value if math.isfinite(value) else math.inf for value in found]
    measurement.add("residual_tuned", min(found), case="robust logistic, minibatch 32")
