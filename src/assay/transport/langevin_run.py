r"""Running a system of particles: the loop that the mirror method and its baselines share.

A mean-field Langevin method moves ``N`` particles, each along the gradient of the first variation of a functional of
their empirical law, with noise. The methods differ in how a particle makes one step; starting, checking, recording,
stopping and certifying are here.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from assay.result import Result
from assay.transport.convex_domain import Domain
from assay.transport.langevin_residual import MIN_ESS, FixedPointResidual, fixed_point_residual
from assay.transport.mirror_domains import Ball, Box, Orthant
from assay.transport.mirror_simplex import Simplex, Spectraplex
from assay.transport.mirror_user_domain import as_domain
from assay.validation import as_float_array, as_generator, check_integer, check_real

__all__ = ["LangevinResult", "RunSettings", "check_temperature", "find_domain", "run_particles", "warn_about_entropy"]

# A barrier that is not self-concordant in the dual needs a target that falls off at the boundary at least like the
# distance to this power.
ENTROPY_REPULSION = 0.4


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class LangevinResult(Result):
    """What a run of particles returns.

    Attributes
    ----------
    particles : numpy.ndarray or torch.Tensor of shape (N, d)
        Where the particles ended, in the type of the start; (N, p, p) for matrices.
    mean : numpy.ndarray or torch.Tensor of shape (d,)
        Their mean.
    residual : float
        Unbiased squared energy distance between the particles and the Gibbs law of their own first variation, zero at
        the fixed point; nan without ``first_variation`` or if it could not be estimated.
    residual_se : float
        Standard error of the residual at the fixed point.
    effective_sample_size : float
        Of the importance sample behind the residual; nan without one.
    inside : float
        Smallest slack of a particle: positive if all are strictly inside.
    time : float
        Sum of the step sizes.
    n_steps : int
        Steps that were made.
    status : str
        ``"tolerance"`` if the residual fell below ``tol``, ``"steps"`` if all steps were made.
    domain : Domain
        The set.
    temperature : float
        Weight of the entropy.
    history : dict of arrays
        ``iteration``, ``time``, ``seconds``, ``mean`` of shape (rows, d), ``functional`` if there is one, and
        ``residual`` if there is a tolerance.
    """

    particles: np.ndarray | Tensor
    mean: np.ndarray | Tensor
    residual: float
    residual_se: float
    effective_sample_size: float
    inside: float
    time: float
    n_steps: int
    status: str
    domain: Domain
    temperature: float


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What the loop is told by the function that calls it.

    Attributes
    ----------
    domain : Domain
        The set.
    temperature : float
        Weight of the entropy.
    lr : float or callable
        Step size, or a function of the step's number.
    n_steps : int
        Steps at most.
    rng : numpy.random.Generator
        For the start, the noise and the residual.
    record : int or None
        Steps between two rows of the history.
    functional, first_variation, callback : callable or None
        What the user gave.
    tol : float or None
        Residual at which to stop.
    """

    domain: Domain
    temperature: float
    lr: float | Callable[[int], float]
    n_steps: int
    rng: np.random.Generator
    record: int | None
    functional: Callable[[Any], Any] | None
    first_variation: Callable[[Any, Any], Any] | None
    tol: float | None
    callback: Callable[[Mapping[str, Any]], None] | None

    @classmethod
    def checked(
        cls,
        *,
        domain: Any,
        barrier: str | None,
        init: Any,
        temperature: Any,
        lr: Any,
        n_steps: Any,
        rng: Any,
        record: Any,
        functional: Any,
        first_variation: Any,
        tol: Any,
        callback: Any,
    ) -> RunSettings:
        """Check what the user gave."""
        for function, name in (
            (functional, "functional"),
            (first_variation, "first_variation"),
            (callback, "callback"),
        ):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be callable, got {function!r}")
        if tol is not None and first_variation is None:
            raise ValueError("tol must be None without first_variation, from which the residual is computed")
        return cls(
            domain=find_domain(domain, barrier, None if isinstance(init, int) else np.shape(init)),
            temperature=check_temperature(temperature),
            lr=lr if callable(lr) else check_real(lr, "lr", above=0.0),
            n_steps=check_integer(n_steps, "n_steps", minimum=0),
            rng=as_generator(rng),
            record=None if record is None else check_integer(record, "record", minimum=1),
            functional=functional,
            first_variation=first_variation,
            tol=None if tol is None else check_real(tol, "tol", minimum=0.0),
            callback=callback,
        )

    def step_size(self, step: int) -> float:
        """Step size of one step."""
        return check_real(self.lr(step), f"lr({step})", above=0.0) if callable(self.lr) else self.lr


def check_temperature(temperature: Any) -> float:
    """Check a temperature; zero warns, since nothing random is left then."""
    value = check_real(temperature, "temperature", minimum=0.0)
    if value == 0.0:
        warnings.warn("temperature is 0: this is deterministic mirror descent, without noise", stacklevel=4)
    return value


def find_domain(domain: Any, barrier: str | None, shape: tuple[int, ...] | None) -> Domain:
    """The set that a user means: by name for particles of a given shape, one of ours, or one of their own.

    Parameters
    ----------
    domain : str or object
        ``"box"``, ``"orthant"``, ``"simplex"``, ``"ball"``, ``"spectraplex"``, or what
        :func:`~assay.transport.mirror_user_domain.as_domain` accepts.
    barrier : str or None
        Another barrier than that of the set.
    shape : tuple of int or None
        Shape of the particles, from which a named set takes its dimension.
    """
    named = {
        "box": lambda d: Box(0.0, 1.0, d),
        "orthant": Orthant,
        "simplex": Simplex,
        "ball": Ball,
        "spectraplex": Spectraplex,
    }
    if isinstance(domain, str):
        if domain not in named:
            raise ValueError(f"domain must be one of {', '.join(map(repr, named))} or a set, got {domain!r}")
        if shape is None or len(shape) < 2:
            raise ValueError(f"domain must be a set, not the name {domain!r}, unless particles (rows) are given")
        found = named[domain](int(shape[-1]))
    else:
        found = as_domain(domain)
    return found if barrier is None else found.with_barrier(barrier)


def warn_about_entropy(domain: Domain, temperature: float, stacklevel: int) -> None:
    """Warn about a barrier whose steps are biased for this temperature."""
    enough = ENTROPY_REPULSION * temperature * (1.0 - 1e-9)
    if domain.barrier == "entropy" and temperature > 0.0 and domain.repulsion < enough:
        warnings.warn(
            f"the entropic barrier of {domain!r} is not self-concordant: the law is biased towards the boundary unless "
            f"the target vanishes there; use barrier='log', or declare repulsion >= {ENTROPY_REPULSION} * temperature",
            stacklevel=stacklevel,
        )


class Particles:
    """The particles as a tensor, and how the user sees them.

    Parameters
    ----------
    init : int, array_like or Tensor
        How many to draw, or where they start.
    domain : Domain
        The set.
    rng : numpy.random.Generator
        For the draws.
    """

    def __init__(self, init: ArrayLike | Tensor, domain: Domain, rng: np.random.Generator):
        self.as_tensors = isinstance(init, Tensor)
        if self.as_tensors:
            if init.dtype not in (torch.float32, torch.float64):
                raise TypeError(f"init must be of dtype float32 or float64, got {init.dtype}")
            self.x = init.detach().clone()
            finite = bool(torch.isfinite(self.x).all())
            if not finite:
                raise ValueError("init must be finite, got nan or infinite entries")
        else:
            if isinstance(init, int | np.integer) and not isinstance(init, bool):
                init = domain.start(int(check_integer(init, "init", minimum=1)), rng)
            self.x = torch.tensor(as_float_array(init, "init", ndim=domain.particle_ndim + 1))
        domain.check_particles(self.x, "init")
        self.generator = torch.Generator(self.x.device).manual_seed(int(rng.integers(2**63 - 1)))

    def shown(self, x: Tensor) -> np.ndarray | Tensor:
        """Particles as the user gave them, not to be written to."""
        if self.as_tensors:
            return x
        view = x.numpy()
        view.flags.writeable = False
        return view

    def gradient(self, grad: Callable[[Any], Any], step: int) -> Tensor:
        """The user's gradient at the particles, checked."""
        answer = grad(self.shown(self.x))
        if isinstance(answer, Tensor):
            gradient = answer.detach().to(dtype=self.x.dtype, device=self.x.device)
        else:
            gradient = torch.tensor(np.asarray(answer, dtype=float), dtype=self.x.dtype, device=self.x.device)
        if gradient.shape != self.x.shape:
            raise ValueError(
                f"grad must return the shape of the particles {tuple(self.x.shape)}, got {tuple(gradient.shape)}"
            )
        if not bool(torch.isfinite(gradient).all()):
            raise ValueError(f"grad must return finite numbers, got nan or infinite ones at step {step}")
        return gradient

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """Standard normal numbers in the precision and on the device of the particles."""
        return torch.randn(shape, generator=self.generator, dtype=self.x.dtype, device=self.x.device)


def run_particles(
    update: Callable[[Particles, Tensor, float], Tensor], grad: Callable[[Any], Any], init: Any, settings: RunSettings
) -> LangevinResult:
    """Move particles step by step.

    Parameters
    ----------
    update : callable
        ``update(particles, gradient, lr)`` returns where the particles are after a step.
    grad : callable
        The user's gradient of the first variation.
    init : int, array_like or Tensor
        Where they start.
    settings : RunSettings
        Everything else.

    Returns
    -------
    LangevinResult
        Without certificates.
    """
    if not callable(grad):
        raise TypeError(f"grad must be callable, got {grad!r}")
    particles = Particles(init, settings.domain, settings.rng)
    if settings.first_variation is not None and len(particles.x) < 2:
        raise ValueError("init must have at least 2 particles for the residual, got 1")
    record = settings.record or max(1, settings.n_steps // 100)
    rows: list[dict[str, Any]] = []
    began, elapsed, status, step = time.perf_counter(), 0.0, "steps", 0
    found: FixedPointResidual | None = None
    for step in range(settings.n_steps + 1):
        if step % record == 0 or step == settings.n_steps:
            row, found = _row(particles, settings, step, elapsed, time.perf_counter() - began)
            rows.append(row)
            if settings.callback is not None:
                settings.callback(row)
            if settings.tol is not None and found.value <= settings.tol:
                status = "tolerance"
                break
        if step < settings.n_steps:
            lr = settings.step_size(step)
            moved = update(particles, particles.gradient(grad, step), lr)
            if not bool(torch.isfinite(moved).all()):
                raise ValueError(f"lr must be smaller, the particles are no longer finite after step {step}")
            particles.x = moved
            elapsed += lr
    if found is None and settings.first_variation is not None:
        found = _residual(particles, settings)
    found = found or FixedPointResidual(float("nan"), float("nan"), float("nan"))
    return LangevinResult(
        particles=particles.x if particles.as_tensors else particles.x.numpy().copy(),
        mean=particles.x.mean(dim=0) if particles.as_tensors else particles.x.mean(dim=0).numpy(),
        residual=found.value if found.effective_sample_size >= MIN_ESS else float("nan"),
        residual_se=found.standard_error,
        effective_sample_size=found.effective_sample_size,
        inside=float(settings.domain._exact_slack(particles.x).min()),
        time=elapsed,
        n_steps=step,
        status=status,
        domain=settings.domain,
        temperature=settings.temperature,
        history={name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]},
    )


def _residual(particles: Particles, settings: RunSettings) -> FixedPointResidual:
    return fixed_point_residual(
        particles.shown(particles.x),
        settings.first_variation,
        settings.domain,
        settings.temperature,
        rng=settings.rng,
    )


def _row(
    particles: Particles, settings: RunSettings, step: int, elapsed: float, seconds: float
) -> tuple[dict[str, Any], FixedPointResidual | None]:
    """What is recorded of one moment."""
    row: dict[str, Any] = {"iteration": step, "time": elapsed, "seconds": seconds}
    row["mean"] = particles.x.mean(dim=0).cpu().numpy()
    found = None
    if settings.functional is not None:
        row["functional"] = check_real(settings.functional(particles.shown(particles.x)), "functional")
    if settings.tol is not None:
        found = _residual(particles, settings)
        row["residual"] = found.value
    return row, found
