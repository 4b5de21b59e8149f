"""An anchored method from its arguments to its certificates: what is checked, what is run, what is promised."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.certificate import Assumption, Certificate
from assay.games.goma_certificate import (
    Monitor,
    Potential,
    potential_certificate,
    residual_certificates,
    stochastic_certificate,
)
from assay.games.goma_noise import StochasticSpec, noisy_oracle, noisy_schedule
from assay.games.goma_result import GomaResult
from assay.games.goma_run import Stops, iterate
from assay.games.goma_schedule import PRESETS, Preset, deterministic_weights
from assay.games.monotone_operator import (
    LARGEST,
    CheckedOperator,
    PairCheck,
    check_lipschitz,
    check_unchanged,
    estimate_lipschitz,
    fitted_slope,
    length,
)
from assay.validation import (
    as_float_array,
    as_generator,
    check_choice,
    check_integer,
    check_real,
    warn_not_converged,
)

__all__ = ["solve"]

Vector = Float[np.ndarray, " d"]


def solve(
    name: str,
    F: Callable[..., Any],
    z0: ArrayLike,
    L: float | None = None,
    preset: str = "halpern",
    n_iter: int = 1000,
    tol: float | None = None,
    check_every: int = 1,
    noise: StochasticSpec | None = None,
    schedule: str = "paper",
    z_star: ArrayLike | None = None,
    rng: Any = None,
    *,
    step_size: float | None = None,
    distance: float | None = None,
    restart_every: int | None = None,
    allow_unproved: bool = False,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> GomaResult:
    """Do what :func:`~assay.games.goma` says, for the function of some name that a user has called."""
    start = as_float_array(z0, "z0", ndim=1).copy()
    n_iter = check_integer(n_iter, "n_iter", minimum=1)
    check_every = check_integer(check_every, "check_every", minimum=1)
    check_choice(preset, "preset", (*PRESETS, "stochastic"))
    check_choice(schedule, "schedule", ("paper", "horizon"))
    if tol is not None:
        tol = check_real(tol, "tol", minimum=0.0)
    if restart_every is not None:
        restart_every = check_integer(restart_every, "restart_every", minimum=1)
    if not isinstance(allow_unproved, bool):
        raise TypeError(f"allow_unproved must be True or False, got {allow_unproved!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be None or a function of one row of the history, got {callback!r}")
    if step_size is not None:
        step_size = check_real(step_size, "step_size", above=0.0)
    _check_noise(noise, preset, schedule, restart_every)
    generator = as_generator(rng)
    if distance is not None:
        distance = check_real(distance, "distance", minimum=0.0)
    zero = None if z_star is None else _zero(z_star, start, distance)
    operator = CheckedOperator(F, start.size)
    shown = start.copy()
    value = operator(shown, 0).copy()  # a user's function may fill one array again and again
    check_unchanged(shown, start, 0)
    if L is None:
        lipschitz = 1.2 * estimate_lipschitz(operator, start, value, generator)
        if not (lipschitz == 0.0 or 1.0 / LARGEST <= lipschitz <= LARGEST):
            raise ValueError(f"L must be given, or F in other units: the estimate is {lipschitz:.3g}")
    else:
        lipschitz = check_lipschitz(L)
    near = None
    if zero is not None:
        distance = length(start - zero)
        near = _checked_zero(operator, zero, lipschitz, distance, length(value))
    elif distance is not None:
        near = Assumption(f"F has a zero within {distance:g} of z0")
    stops = Stops(n_iter, check_every, tol, restart_every)
    task = _Task(
        name, operator, start, value, lipschitz, L is not None, distance, near, stops, callback, operator.n_calls - 1
    )
    if noise is None:
        return _deterministic(task, PRESETS[preset], step_size, allow_unproved)
    return _noisy(task, noise, schedule, step_size, allow_unproved, generator)


def _check_noise(noise: StochasticSpec | None, preset: str, schedule: str, restart_every: int | None) -> None:
    """Check that what is said about noise fits together."""
    if noise is None:
        if preset == "stochastic":
            raise ValueError("noise must be a StochasticSpec with preset='stochastic', got None")
        if schedule != "paper":
            raise ValueError(f"schedule must be left at 'paper' without noise, got {schedule!r}")
        return
    if not isinstance(noise, StochasticSpec):
        raise TypeError(f"noise must be None or a StochasticSpec, got {type(noise).__name__}")
    if preset not in ("halpern", "stochastic"):
        raise ValueError(f"preset must be left at its default or be 'stochastic' with noise, got {preset!r}")
    if restart_every is not None:
        raise ValueError(f"restart_every must be None with noise, got {restart_every}")
    if noise.pull is not None and schedule != "horizon":
        raise ValueError("pull must be None with schedule='paper', which has no such parameter")


def _zero(z_star: ArrayLike, start: Vector, distance: float | None) -> Vector:
    """The zero that was given."""
    if distance is not None:
        raise ValueError("distance must be None when z_star is given")
    zero = as_float_array(z_star, "z_star", ndim=1)
    if zero.shape != start.shape:
        raise ValueError(f"z_star must have the shape of z0, {start.shape}, got {zero.shape}")
    return zero.copy()


def _checked_zero(
    operator: CheckedOperator, zero: Vector, lipschitz: float, distance: float, at_start: float
) -> Assumption:
    """That the operator is zero where it is said to be, up to a millionth of what it may be at the start."""
    norm = length(operator(zero.copy(), 0))
    rounding = PairCheck(lipschitz, operator.eps).rounding(length(zero), at_start, zero.size)
    if norm > 1e-6 * max(lipschitz * distance, at_start) + rounding:
        raise ValueError(
            f"z_star must be a zero of F, got a point with |F(z_star)| = {norm:.3g}, where |F(z0)| = {at_start:.3g} "
            "(or give an upper bound on the distance of a zero from z0 as distance)"
        )
    return Assumption("z_star is a zero of F", True)


@dataclass(frozen=True)
class _Task:
    """What is known before the first step."""

    name: str
    operator: CheckedOperator
    start: Vector
    value: Vector
    lipschitz: float
    lipschitz_given: bool
    distance: float | None
    near: Assumption | None
    stops: Stops
    callback: Callable[[Mapping[str, Any]], object] | None
    n_estimate_calls: int


def _deterministic(task: _Task, preset: Preset, step_size: float | None, allow_unproved: bool) -> GomaResult:
    """Run a preset and certify the answer."""
    lipschitz = task.lipschitz
    proved = True
    if step_size is None:
        # Where nothing moves the operator every step size is proved.
        step_size = preset.default_step(lipschitz) if lipschitz else 1.0
    elif lipschitz:
        proved = preset.is_proved(step_size, lipschitz)
        if not proved and task.lipschitz_given and not allow_unproved:
            raise ValueError(
                f"step_size must be {'at most' if preset.attained else 'below'} {preset.largest / lipschitz:g} with "
                f"preset={preset.name!r} and L={lipschitz:g} (or say allow_unproved=True, without a bound), "
                f"got {step_size:g}"
            )
    pairs, potential = PairCheck(lipschitz), Potential(preset, step_size)
    monitor = Monitor(task.operator, pairs, potential, task.callback)
    weights = deterministic_weights(preset, step_size)
    exploration = preset.exploration(0, step_size)
    z = iterate(task.operator.raw, task.start, task.value, weights, task.stops, monitor, exploration)
    residual_sq, norm = monitor.evaluate_anew(z)
    assumptions = pairs.assumptions(task.lipschitz_given)
    bound, certificates = None, []
    if proved and _can_promise(task, assumptions) and not _restarts(task.stops):
        most = [preset.residual_bound(row["iteration"], step_size, lipschitz, task.distance) for row in monitor.rows]
        shares = [_share(row["residual_sq"], limit) for row, limit in zip(monitor.rows, most, strict=True)]
        if math.isfinite(most[0]):
            bound = most[-1]
            certificates += residual_certificates(residual_sq, bound, max(shares), (*assumptions, task.near))
    within = Assumption("the step size is one that the proof covers", proved)
    certificates.append(potential_certificate(potential.worst_growth, len(monitor.rows), (*assumptions, within)))
    return _result(task, monitor, z, residual_sq, norm, bound, step_size, certificates)


def _noisy(
    task: _Task,
    noise: StochasticSpec,
    schedule: str,
    step_size: float | None,
    allow_unproved: bool,
    generator: np.random.Generator,
) -> GomaResult:
    """Run with an oracle and certify the answer."""
    if task.lipschitz == 0.0:
        raise ValueError("L must be given with noise where F does not change around z0, got None")
    n_iter = task.stops.n_iter
    lenient = allow_unproved or not task.lipschitz_given
    steps = noisy_schedule(noise, schedule, n_iter, task.lipschitz, task.distance, step_size, lenient)
    pairs = PairCheck(task.lipschitz)
    monitor = Monitor(task.operator, pairs, None, task.callback)
    oracle = noisy_oracle(noise, task.operator, task.start.size, generator)
    name = "F" if noise.oracle is None else "oracle"
    z = iterate(oracle, task.start, task.value, steps.weights, task.stops, monitor, None, name)
    residual_sq, norm = monitor.evaluate_anew(z)
    assumptions = pairs.assumptions(task.lipschitz_given)
    bound, certificates = None, []
    # A run that ended where its operator happened to be small is not one that ended after a number of steps.
    ended = monitor.rows[-1]["iteration"] == n_iter
    if ended and steps.proved and steps.bound_at is not None and _can_promise(task, assumptions):
        most = steps.bound_at(n_iter)
        model = Assumption(f"the oracle is unbiased and {steps.noise_model}", True if noise.oracle is None else None)
        if math.isfinite(most):
            bound = most
            certificates.append(stochastic_certificate(residual_sq, bound, (*assumptions, task.near, model)))
    return _result(task, monitor, z, residual_sq, norm, bound, steps.step_size, certificates)


def _can_promise(task: _Task, assumptions: tuple[Assumption, ...]) -> bool:
    """Whether the constant and the distance are known and nothing has been refuted."""
    known = task.lipschitz_given and task.distance is not None
    return known and all(assumption.satisfied is not False for assumption in assumptions)


def _restarts(stops: Stops) -> bool:
    """Whether the anchor of the last iterate may be another than the start."""
    return stops.restart_every is not None and stops.restart_every < stops.n_iter


def _result(
    task: _Task,
    monitor: Monitor,
    z: Vector,
    residual_sq: float,
    norm: float,
    bound: float | None,
    step_size: float,
    certificates: list[Certificate],
) -> GomaResult:
    n_iter, tol, converged = monitor.rows[-1]["iteration"], task.stops.tol, task.stops.is_small(monitor)
    if tol is not None:
        certificates.append(Certificate("norm of F at the returned point", norm, tol))
        if not converged:
            warn_not_converged(task.name, n_iter, norm, tol, stacklevel=6)
    history = monitor.history()
    return GomaResult(
        z=z,
        z0=task.start,
        residual_sq=residual_sq,
        n_iter=n_iter,
        n_calls=monitor.rows[-1]["calls"],
        n_check_calls=monitor.n_calls + task.n_estimate_calls,
        bound=bound,
        slope=fitted_slope(history["iteration"], history["residual_sq"]),
        lipschitz=task.lipschitz,
        step_size=step_size,
        converged=converged,
        certificates=tuple(certificates),
        history=history,
    )


def _share(residual_sq: float, limit: float) -> float:
    """Ratio to a bound; that of nothing to nothing is 0."""
    return residual_sq / limit if limit > 0.0 else (0.0 if residual_sq == 0.0 else math.inf)
