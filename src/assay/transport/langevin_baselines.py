r"""What people do instead: Langevin particles that are projected to the set, or punished for leaving it.

Both move in the coordinates of the set with plain Gaussian noise. The projection puts a share of the particles on the
boundary that shrinks only with the root of the step size; the penalty lets them leave it, by a distance that shrinks
with the root of the penalty, and the step size has to shrink with it. They are here to be compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from assay.transport.langevin_run import LangevinResult, Particles, RunSettings
from assay.transport.mirror_langevin import certified_run
from assay.validation import check_real

__all__ = ["penalized_langevin", "projected_langevin"]


def projected_langevin(
    grad: Callable[[Any], Any],
    init: ArrayLike | Tensor,
    *,
    domain: Any,
    temperature: float,
    lr: float | Callable[[int], float] = 0.01,
    n_steps: int = 1000,
    rng: Any = None,
    record: int | None = None,
    functional: Callable[[Any], Any] | None = None,
    first_variation: Callable[[Any, Any], Any] | None = None,
    tol: float | None = None,
    lsi_constant: float | None = None,
    callback: Callable[[Mapping[str, Any]], None] | None = None,
) -> LangevinResult:
    r"""Langevin particles that are projected to the set after every step.

    .. math:: x \leftarrow \Pi\bigl(x - \eta g + \sqrt{2\lambda\eta}\,\xi\bigr)

    Parameters
    ----------
    grad, init, domain, temperature, lr, n_steps, rng, record, functional, first_variation, tol, lsi_constant, callback
        As for :func:`~assay.transport.mirror_langevin`. A set of your own needs the method ``project``. On the simplex
        and for density matrices the noise is in the directions that keep the sum.

    Returns
    -------
    LangevinResult
        The certificate that all particles are strictly inside fails as soon as one is on the boundary.

    Notes
    -----
    ``O(N d)`` per step (``O(N d log d)`` on the simplex, ``O(N p^3)`` for matrices; one small least-squares problem per
    particle that left a polytope).

    References
    ----------
    S. Bubeck, R. Eldan, J. Lehec. Sampling from a log-concave distribution with projected Langevin Monte Carlo.
    Discrete and Computational Geometry 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import Box, projected_langevin
    >>> run = projected_langevin(lambda x: 0 * x, 500, domain=Box(0, 1, 1), temperature=1.0, n_steps=100, rng=0)
    >>> run.inside
    0.0
    """
    settings = RunSettings.checked(
        domain=domain, barrier=None, init=init, temperature=temperature, lr=lr, n_steps=n_steps, rng=rng,
        record=record, functional=functional, first_variation=first_variation, tol=tol, callback=callback,
    )  # fmt: skip
    found = settings.domain

    def update(particles: Particles, gradient: Tensor, step_size: float) -> Tensor:
        return found._project(_euler_step(particles, gradient, step_size, settings))

    return certified_run(update, grad, init, settings, lsi_constant)


def penalized_langevin(
    grad: Callable[[Any], Any],
    init: ArrayLike | Tensor,
    *,
    domain: Any,
    temperature: float,
    penalty: float = 0.01,
    lr: float | Callable[[int], float] = 0.01,
    n_steps: int = 1000,
    rng: Any = None,
    record: int | None = None,
    functional: Callable[[Any], Any] | None = None,
    first_variation: Callable[[Any, Any], Any] | None = None,
    tol: float | None = None,
    lsi_constant: float | None = None,
    callback: Callable[[Mapping[str, Any]], None] | None = None,
) -> LangevinResult:
    r"""Langevin particles with a penalty on the squared distance from the set.

    .. math:: x \leftarrow x - \eta\bigl(g + \tfrac{1}{\delta}(x - \Pi(x))\bigr) + \sqrt{2\lambda\eta}\,\xi

    Parameters
    ----------
    grad, init, domain, temperature, lr, n_steps, rng, record, functional, first_variation, tol, lsi_constant, callback
        As for :func:`~assay.transport.projected_langevin`. The gradient is asked for outside the set, too.
    penalty : float, default=0.01
        :math:`\delta`: the force outside is the distance divided by it. A step size above ``2 * penalty`` is unstable.

    Returns
    -------
    LangevinResult
        The certificate that all particles are inside fails as soon as one is outside.

    Notes
    -----
    As :func:`~assay.transport.projected_langevin`.

    References
    ----------
    M. Gurbuzbalaban, Y. Hu, L. Zhu. Penalized overdamped and underdamped Langevin Monte Carlo algorithms for
    constrained sampling. JMLR 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import Box, penalized_langevin
    >>> run = penalized_langevin(lambda x: 0 * x, 500, domain=Box(0, 1, 1), temperature=1.0, n_steps=100, rng=0)
    >>> run.inside < 0
    True
    """
    settings = RunSettings.checked(
        domain=domain, barrier=None, init=init, temperature=temperature, lr=lr, n_steps=n_steps, rng=rng,
        record=record, functional=functional, first_variation=first_variation, tol=tol, callback=callback,
    )  # fmt: skip
    softness = check_real(penalty, "penalty", above=0.0)
    found = settings.domain

    def update(particles: Particles, gradient: Tensor, step_size: float) -> Tensor:
        # The force back is explicit: it is that of the place where the particle is before the step.
        outside = found._project(particles.x) - particles.x
        return _euler_step(particles, gradient, step_size, settings).add_(outside, alpha=step_size / softness)

    return certified_run(update, grad, init, settings, lsi_constant)


def _euler_step(particles: Particles, gradient: Tensor, step_size: float, settings: RunSettings) -> Tensor:
    """A step of the free dynamics, in the affine hull of the set."""
    noise = particles.noise(tuple(particles.x.shape))
    direction = noise.mul_(math.sqrt(2.0 * settings.temperature * step_size)).sub_(gradient, alpha=step_size)
    return particles.x + settings.domain._tangent(direction)
