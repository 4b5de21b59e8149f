r"""Mirror mean-field Langevin dynamics: minimize over the laws on a convex set, with particles that never leave it.

The objective is :math:`F(\mu) + \lambda\,\mathrm{Ent}(\mu)` over probability laws on a convex set. Its minimizer is the
law :math:`\mu^* \propto \exp(-\frac{1}{\lambda}\frac{\delta F}{\delta\mu}(\mu^*))`. Langevin dynamics that is projected
to the set piles mass up on the boundary; here every particle moves in the dual coordinates
:math:`y = \nabla\varphi(x)` of a barrier,

.. math:: dY = -\nabla \frac{\delta F}{\delta\mu}(\mu)(X)\,dt + \sqrt{2\lambda\nabla^2\varphi(X)}\,dB, \qquad
          X = \nabla\varphi^*(Y),

so that it stays strictly inside for every step size, and the limit is the right law.

:func:`mirror_step` is the step, :func:`mirror_langevin` the loop around it. The same step as a torch optimizer is
:class:`assay.transport.MirrorLangevin`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from assay.transport.convex_domain import Domain
from assay.transport.langevin_residual import FixedPointResidual
from assay.transport.langevin_run import LangevinResult, Particles, RunSettings, run_particles, warn_about_entropy
from assay.transport.mirror_langevin_certificate import certificates_of
from assay.validation import check_integer

__all__ = ["certified_run", "mirror_langevin", "mirror_step"]


def mirror_step(
    domain: Domain,
    x: Tensor,
    gradient: Tensor,
    lr: float,
    temperature: float,
    inner: int,
    draw: Callable[[tuple[int, ...]], Tensor],
) -> Tensor:
    """One step of all particles.

    Parameters
    ----------
    domain : Domain
        The set.
    x : Tensor of shape (particles, d)
        Strictly inside.
    gradient : Tensor of shape (particles, d)
        Of the first variation at the particles.
    lr : float
        Step size.
    temperature : float
        Weight of the entropy.
    inner : int
        Parts in which the noise is added.
    draw : callable
        ``draw(shape)`` returns standard normal numbers.

    Returns
    -------
    Tensor of shape (particles, d)
        Strictly inside.
    """
    y = domain._mirror(x).sub_(domain._dual_gradient(gradient), alpha=lr)
    if temperature > 0.0:
        scale = math.sqrt(2.0 * temperature * lr / inner)
        shape = domain._noise_shape(x.shape)
        for _ in range(inner):
            y = domain._diffuse(y, draw(shape), scale, x)
    return domain._inverse_near(y, x)


def mirror_langevin(
    grad: Callable[[Any], Any],
    init: ArrayLike | Tensor,
    *,
    domain: Any,
    temperature: float,
    barrier: str | None = None,
    lr: float | Callable[[int], float] = 0.1,
    n_steps: int = 1000,
    inner: int = 1,
    rng: Any = None,
    record: int | None = None,
    functional: Callable[[Any], Any] | None = None,
    first_variation: Callable[[Any, Any], Any] | None = None,
    tol: float | None = None,
    lsi_constant: float | None = None,
    callback: Callable[[Mapping[str, Any]], None] | None = None,
) -> LangevinResult:
    r"""Minimize :math:`F(\mu) + \lambda\,\mathrm{Ent}(\mu)` over the laws on a convex set by particles.

    Parameters
    ----------
    grad : callable
        ``grad(x)`` returns :math:`\nabla\frac{\delta F}{\delta\mu}(\mu_N)` at the ``N`` particles ``x``, of the same
        shape; it may be an unbiased estimate. For :math:`F(\mu) = R(E_\mu h)` it is ``N`` times the gradient of
        :math:`R(\frac1N\sum h(x_i))` with respect to ``x``.
    init : int, array_like or Tensor of shape (N, d)
        Where the particles start, strictly inside, or how many to draw. With a tensor, everything is computed and
        handed over as tensors of its dtype and on its device; otherwise in float64 arrays.
    domain : Domain, str or object
        :class:`~assay.transport.Box`, :class:`~assay.transport.Orthant`, :class:`~assay.transport.Simplex`,
        :class:`~assay.transport.Ball`, :class:`~assay.transport.Spectraplex`, :class:`~assay.transport.Polytope`; the
        name of one of the first five, for the unit box or ball in the coordinates of the particles; or an object of
        yours with the methods ``mirror``, ``inverse``, ``noise`` and ``slack``, see
        :func:`~assay.transport.mirror_user_domain.as_domain`.
    temperature : float
        :math:`\lambda`, the weight of the entropy. Zero is deterministic mirror descent, with a warning.
    barrier : str, optional
        Another barrier than that of the set.
    lr : float or callable, default=0.1
        Step size, or a function of the step's number. Logarithmic barriers are accurate for ``lr * temperature`` up to
        about 0.02. Particles remain inside for every step size; only the orthant's logarithmic barrier refuses steps
        that are too long, see :class:`~assay.transport.Orthant`.
    n_steps : int, default=1000
        Steps at most.
    inner : int, default=1
        Parts in which the noise of a step is added. One is as good as many.
    rng : None, int or numpy.random.Generator, optional
        For the noise, the start and the residual.
    record : int, optional
        Steps between two rows of the history; by default there are about 100 rows.
    functional : callable, optional
        ``functional(x)`` returns :math:`F(\mu_N)`, for the history.
    first_variation : callable, optional
        ``first_variation(points, x)`` returns :math:`\frac{\delta F}{\delta\mu}(\mu_N)` at points, up to a constant.
        With it, the distance to the fixed point is certified, in up to 10 dimensions.
    tol : float, optional
        Stop when the residual is at most this, looked at whenever a row is recorded. Needs ``first_variation``.
    lsi_constant : float, optional
        Constant of a mirror log-Sobolev inequality; with it and ``functional``, the rate is certified.
    callback : callable, optional
        Called with every row of the history.

    Returns
    -------
    LangevinResult
        With certificates, see :func:`~assay.transport.certify_langevin`.

    Raises
    ------
    TypeError, ValueError
        For particles outside the set, an unknown barrier, options out of range, methods that a set lacks, or a gradient
        of another shape or with a nan (the message has the number of the step).

    Warns
    -----
    UserWarning
        With the entropic barrier unless the set declares enough ``repulsion``, and for a temperature of zero.

    Notes
    -----
    A step costs ``O(N d)`` and the gradient; ``O(N p^3)`` for matrices, and a few Newton steps per particle for
    polytopes. If every Gibbs law satisfies a mirror log-Sobolev inequality with the constant :math:`C`, the
    objective of the continuous flow falls as :math:`e^{-2C\lambda t}`; ``N`` particles follow it down to a floor of
    order :math:`1/N`, uniformly in time, plus a bias of the order of the step size.

    References
    ----------
    Mirror Mean-Field Langevin Dynamics. ICML 2026, arXiv:2505.02621.

    Examples
    --------
    Find a law on the simplex whose mean is close to a given one and that is as spread out as possible:

    >>> import numpy as np
    >>> from assay.transport import mirror_langevin
    >>> target = np.array([0.7, 0.2, 0.1])
    >>> def grad(x):
    ...     return np.tile(2 * (x.mean(axis=0) - target), (len(x), 1))
    >>> start = np.random.default_rng(0).dirichlet([3, 3, 3], 500)
    >>> run = mirror_langevin(grad, start, domain="simplex", temperature=0.05, lr=0.2, n_steps=300, rng=0)
    >>> run.inside > 0, bool(abs(run.mean - [0.6196, 0.2183, 0.1622]).max() < 0.03)
    (True, True)
    """
    inner = check_integer(inner, "inner", minimum=1)
    settings = RunSettings.checked(
        domain=domain, barrier=barrier, init=init, temperature=temperature, lr=lr, n_steps=n_steps, rng=rng,
        record=record, functional=functional, first_variation=first_variation, tol=tol, callback=callback,
    )  # fmt: skip
    warn_about_entropy(settings.domain, settings.temperature, stacklevel=3)

    def update(particles: Particles, gradient: Tensor, step_size: float) -> Tensor:
        return mirror_step(
            settings.domain, particles.x, gradient, step_size, settings.temperature, inner, particles.noise
        )

    return certified_run(update, grad, init, settings, lsi_constant)


def certified_run(
    update: Callable[[Particles, Tensor, float], Tensor],
    grad: Callable[[Any], Any],
    init: Any,
    settings: RunSettings,
    lsi_constant: float | None,
) -> LangevinResult:
    """Run particles and attach the certificates of where they ended."""
    if lsi_constant is not None and settings.functional is None:
        raise ValueError("lsi_constant must be None without functional, from which the rate is fitted")
    run = run_particles(update, grad, init, settings)
    residual = None
    if settings.first_variation is not None:
        residual = FixedPointResidual(run.residual, run.residual_se, run.effective_sample_size)
    return replace(run, certificates=certificates_of(run, residual, lsi_constant))
