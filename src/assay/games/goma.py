r"""Saddle points and monotone equations with an anchor: one call per step, a bound on the last iterate.

The gradient field of a min-max problem rotates around its solution, so that plain descent spirals outwards.
Extragradient asks for the gradient twice per step to turn inwards, and its squared residual falls like :math:`1/k`.
Here every step is pulled a little back to where the run began, with a weight that vanishes like :math:`1/k`, and
extrapolates with the gradient of the step before: one call per step, and the squared residual of the *last* iterate
falls like :math:`1/k^2`, at a constant step size, with a constant that is known. With noise the same anchor, without
extrapolation, gives :math:`1/\sqrt k` even where the noise grows with the gradient.
"""

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
from assay.games.goma_run import Stops, iterate
from assay.games.goma_schedule import PRESETS, Preset, deterministic_weights
from assay.games.monotone_operator import CheckedOperator, PairCheck, estimate_lipschitz, fitted_slope
from assay.result import Result
from assay.validation import (
    as_float_array,
    as_generator,
    check_choice,
    check_integer,
    check_real,
    warn_not_converged,
)

__all__ = ["GomaResult", "StochasticSpec", "goma"]

Vector = Float[np.ndarray, " d"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GomaResult(Result):
    """A point where a monotone operator is small.

    Parameters
    ----------
    z, z0 : numpy.ndarray of shape (d,)
        The last iterate, and the start.
    residual_sq : float
        Squared norm of the operator at ``z``.
    n_iter : int
        Steps.
    n_calls : int
        Evaluations that the method made: one more than steps, and one more per restart; with noise, as many as steps.
    n_check_calls : int
        Evaluations for checking, and for estimating the Lipschitz constant.
    bound : float or None
        What is promised for ``residual_sq`` (with noise: for its expected value); None when the distance or the
        Lipschitz constant is not known, or an assumption was refuted.
    slope : float
        Exponent of the decay of the squared norm, fitted to the check points on the last three quarters of a
        logarithmic grid; nan where there are too few.
    lipschitz, step_size : float
        What was used.
    converged : bool
        Whether ``tol`` was reached; False without one.
    certificates : tuple of Certificate
        The operator against the bound, the potential, and the tolerance if there is one.
    history : dict of str to numpy.ndarray
        ``iteration``, ``calls``, ``residual_sq``, ``potential`` (nan with noise) and ``seconds`` (without the checks)
        at the check points.
    """

    z: Vector
    z0: Vector
    residual_sq: float
    n_iter: int
    n_calls: int
    n_check_calls: int
    bound: float | None
    slope: float
    lipschitz: float
    step_size: float
    converged: bool


def goma(
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
    r"""Solve :math:`F(z) = 0` for a monotone Lipschitz operator with anchored optimistic steps.

    For ``min_x max_y f(x, y)``, convex in ``x`` and concave in ``y``, take ``z = (x, y)`` and
    ``F(z) = (grad_x f, -grad_y f)``. With a start :math:`z_0`, :math:`g_{-1} = F(z_0)`, and weights
    :math:`\beta_k \to 0`,

    .. math::
        y_k = \beta_k z_0 + (1 - \beta_k) z_k - \gamma_k g_{k-1}, \quad g_k = F(y_k), \quad
        z_{k+1} = \beta_k z_0 + (1 - \beta_k) z_k - \eta_k g_k .

    With the step size :math:`s`, :math:`D = |z_0 - z^*|` and the operator's constant :math:`L` a ``preset`` is

    - ``"halpern"``: :math:`\beta_k = 1/(k+2)`, :math:`\eta_k = s \le 1/(2L)`, :math:`\gamma_k = (1-\beta_k) s`, with
      :math:`|F(z_k)|^2 \le 17.95\, L^2D^2/(k+1)^2`;
    - ``"paper"``: :math:`\beta_k = 2/(k+6)`, :math:`\eta_k = s < 1/(2\sqrt 3 L)`, :math:`\gamma_k = (1-\beta_k) s`,
      with :math:`|F(z_k)|^2 \le 259.4\, L^2D^2/(k+6)^2`;
    - ``"explore"``: :math:`\beta_k = 1/(k+2)`, :math:`\gamma_k = s \le 1/(4L)`, :math:`\eta_k = s/(1-\beta_k)`, with
      :math:`|F(z_k)|^2 \le 67.95\, L^2D^2/(k+1)^2`.

    The constants are those at the default step; smaller steps have larger ones, growing like :math:`1/s^2`.

    Parameters
    ----------
    F : callable
        Takes a float64 array of shape (d,) and returns one. The array is reused: a function that keeps it has to copy
        it, and may not change it.
    z0 : array_like of shape (d,)
        Start and anchor.
    L : float, optional
        Lipschitz constant. When not given it is estimated from 20 finite differences around ``z0``, and multiplied by
        1.2.
    preset : {"halpern", "paper", "explore", "stochastic"}, default="halpern"
        The schedule without noise; with noise leave the default or say "stochastic".
    n_iter : int, default=1000
        Largest number of steps.
    tol : float, optional
        Stop at a check point where the norm of ``F`` is at most so much.
    check_every : int, default=1
        Steps between check points, at which ``F`` is evaluated at the iterate.
    noise : StochasticSpec, optional
        Use a noisy oracle. ``F`` is then evaluated at check points only (and by the simulated noise).
    schedule : {"paper", "horizon"}, default="paper"
        With noise: steps that shrink like :math:`k^{-3/4}`, for any number of them; or steps for exactly ``n_iter``,
        from a bound on the noise by the distance to the zero, which is proved and much tighter.
    z_star : array_like of shape (d,), optional
        A zero, for the bound.
    rng : None, int or numpy.random.Generator, optional
        For the estimate of ``L`` and the noise.
    step_size : float, optional
        Step size; by default the largest that is proved, from the table; with noise the factor of
        :math:`(k+2)^{-3/4}`, by default :math:`1/(L\sqrt\kappa)`.
    distance : float, optional
        Instead of ``z_star``: an upper bound on the distance of a zero from ``z0``.
    restart_every : int, optional
        Make the current iterate the anchor after so many steps, which costs a call. For well-conditioned problems: with
        ``|F(z)| >= m |z - z_star|``, any number of at least ``9 L / m`` halves the norm every time.
    allow_unproved : bool, default=False
        Accept a larger step size, without a bound.
    callback : callable, optional
        Called with every row of the history as a dict; a true answer ends the run.

    Returns
    -------
    GomaResult

    Raises
    ------
    TypeError
        If an argument or what ``F`` returns is of another type.
    ValueError
        If an argument is out of range, a step size is larger than what is proved, or ``F`` returns another shape.
    FloatingPointError
        If ``F`` returns a nan or an infinity; the message has the number of the step.

    Warns
    -----
    RuntimeWarning
        Once, if two iterates show that ``F`` is not monotone.
    ConvergenceWarning
        If ``tol`` was not reached.

    Notes
    -----
    The potential certificate says that the bound's own proof goes through on this run: it needs neither a zero nor a
    distance. Cost: a call and one pass over five vectors per step. Memory: five vectors.

    On problems that are well conditioned (a nonsingular bilinear game, a strongly monotone operator) extragradient
    converges linearly and an anchored method does not, unless ``restart_every`` is given.

    The update of the preset ``"explore"`` is the one for which the bound is proved; how the paper means its case of a
    fixed exploration step is not certain. The paper's theorem about noise supposes a bound on :math:`E|g|^2`, the
    schedule ``"horizon"`` one on the variance, :math:`\sigma^2 + (\kappa - 1) L^2 |z - z^*|^2`, which follows from it.

    References
    ----------
    .. [1] M. Sohrabi, Y. You, S. Lacoste-Julien, E. Gorbunov, G. Gidel. Accelerated and Stable Convergence with
       Anchored (Generalized) Optimistic Method. ICML 2026, arXiv:2606.21528.

    Examples
    --------
    ``min_x max_y x y``, whose gradient field is a rotation:

    >>> import numpy as np
    >>> from assay.games.goma import goma
    >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> result = goma(lambda z: rotation @ z, z0=[1.0, 1.0], L=1.0, n_iter=10, z_star=[0.0, 0.0])
    >>> result.z.round(8), round(result.residual_sq, 8), result.n_calls
    (array([-0.15056818,  0.20454545]), 0.06450962, 11)
    >>> print(result.certificates[0])
    holds: squared norm of F at the returned point: 0.0645096 <= 0.2966 [if F is monotone (0 violations ...
    """
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
    start_distance = _distance(start, z_star, distance)
    operator = CheckedOperator(F, start.size)
    value = operator(start, 0)
    lipschitz = check_real(L, "L", above=0.0) if L is not None else 0.0
    if L is None:
        lipschitz = 1.2 * estimate_lipschitz(operator, start, value, generator)
    stops = Stops(n_iter, check_every, tol, restart_every)
    task = _Task(
        operator, start, value, lipschitz, L is not None, start_distance, stops, callback, operator.n_calls - 1
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


def _distance(start: Vector, z_star: ArrayLike | None, distance: float | None) -> float | None:
    """Distance of a zero from the start, as far as it is known."""
    if z_star is None:
        return None if distance is None else check_real(distance, "distance", minimum=0.0)
    if distance is not None:
        raise ValueError("distance must be None when z_star is given")
    zero = as_float_array(z_star, "z_star", ndim=1)
    if zero.shape != start.shape:
        raise ValueError(f"z_star must have the shape of z0, {start.shape}, got {zero.shape}")
    return float(np.linalg.norm(start - zero))


@dataclass(frozen=True)
class _Task:
    """What is known before the first step."""

    operator: CheckedOperator
    start: Vector
    value: Vector
    lipschitz: float
    lipschitz_given: bool
    distance: float | None
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
    residual_sq = monitor.evaluate_anew(z)
    assumptions = pairs.assumptions(task.lipschitz_given)
    bound, certificates = None, []
    if proved and task.distance is not None and task.stops.restart_every is None and _can_promise(task, assumptions):
        most = [preset.residual_bound(row["iteration"], step_size, lipschitz, task.distance) for row in monitor.rows]
        shares = [_share(row["residual_sq"], limit) for row, limit in zip(monitor.rows, most, strict=True)]
        bound = most[-1]
        certificates += residual_certificates(residual_sq, bound, max(shares), assumptions)
    within = Assumption("the step size is one that the proof covers", proved)
    certificates.append(potential_certificate(potential.worst_growth, len(monitor.rows), (*assumptions, within)))
    return _result(task, monitor, z, residual_sq, bound, step_size, certificates)


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
    z = iterate(oracle, task.start, task.value, steps.weights, task.stops, monitor, None)
    residual_sq = monitor.evaluate_anew(z)
    assumptions = pairs.assumptions(task.lipschitz_given)
    bound, certificates = None, []
    # A run that ended where its operator happened to be small is not one that ended after a number of steps.
    ended = monitor.rows[-1]["iteration"] == n_iter
    if ended and steps.proved and steps.bound_at is not None and _can_promise(task, assumptions):
        bound = steps.bound_at(n_iter)
        model = Assumption(f"the oracle is unbiased and {steps.noise_model}", True if noise.oracle is None else None)
        certificates.append(stochastic_certificate(residual_sq, bound, (*assumptions, model)))
    return _result(task, monitor, z, residual_sq, bound, steps.step_size, certificates)


def _can_promise(task: _Task, assumptions: tuple[Assumption, ...]) -> bool:
    """Whether the constant is known and nothing has been refuted."""
    return task.lipschitz_given and all(assumption.satisfied is not False for assumption in assumptions)


def _result(
    task: _Task,
    monitor: Monitor,
    z: Vector,
    residual_sq: float,
    bound: float | None,
    step_size: float,
    certificates: list[Certificate],
) -> GomaResult:
    n_iter, tol = monitor.rows[-1]["iteration"], task.stops.tol
    norm, converged = math.sqrt(residual_sq), task.stops.is_small(monitor)
    if tol is not None:
        certificates.append(Certificate("norm of F at the returned point", norm, tol))
        if not converged:
            warn_not_converged("goma", n_iter, norm, tol, stacklevel=5)
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
