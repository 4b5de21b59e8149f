r"""What a run of a particle method promises, evaluated on where the particles ended.

:func:`certify_langevin` recomputes everything from the particles: that they are inside, that they are a sample of the
Gibbs law of their own first variation, and that the functional fell at the rate of a mirror log-Sobolev inequality
whose constant the user knows. :func:`certify_scaling` looks at several runs: fluctuations of a mean of ``N`` particles
that behave as independent ones (propagation of chaos) have a variance proportional to ``1/N``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from assay.certificate import Assumption, Certificate
from assay.transport.langevin_residual import MIN_ESS, FixedPointResidual, fixed_point_residual, linear_rate
from assay.transport.langevin_run import LangevinResult
from assay.validation import as_float_array, check_real

__all__ = ["certify_langevin", "certify_scaling"]


def certify_langevin(
    run: LangevinResult,
    *,
    first_variation: Callable[[Any, Any], Any] | None = None,
    lsi_constant: float | None = None,
    rng: Any = None,
) -> tuple[Certificate, ...]:
    r"""Certificates of a run, recomputed from its particles.

    Parameters
    ----------
    run : LangevinResult
        What :func:`~assay.transport.mirror_langevin` or a baseline returned.
    first_variation : callable, optional
        As for :func:`~assay.transport.mirror_langevin`; without it nothing is said about the fixed point.
    lsi_constant : float, optional
        :math:`C` such that every Gibbs law satisfies
        :math:`\mathrm{KL}(\mu|\hat\mu) \le \frac{1}{2C} E_\mu \|\nabla\log(\mu/\hat\mu)\|^2_{H^{-1}}`. It cannot be
        computed from a run; without it nothing is promised about the rate.
    rng : None, int or numpy.random.Generator, optional
        For the residual.

    Returns
    -------
    tuple of Certificate
        The smallest slack is positive; the squared energy distance to the Gibbs law is at most 3 standard errors (nan,
        which never holds, if it is unknown); the fitted rate is at least :math:`2C\lambda`.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import Box, certify_langevin, mirror_langevin
    >>> run = mirror_langevin(lambda x: 0 * x, 100, domain=Box(0, 1, 1), temperature=1.0, n_steps=20, rng=0)
    >>> print(certify_langevin(run)[0].holds)
    True
    """
    residual = None
    if first_variation is not None:
        residual = fixed_point_residual(run.particles, first_variation, run.domain, run.temperature, rng=rng)
    return certificates_of(run, residual, lsi_constant)


def certificates_of(
    run: LangevinResult, residual: FixedPointResidual | None, lsi_constant: float | None
) -> tuple[Certificate, ...]:
    """The certificates, with a residual that was computed already."""
    found = [inside_certificate(float(run.domain._exact_slack(torch.as_tensor(run.particles)).min()))]
    if residual is not None:
        known = residual.effective_sample_size >= MIN_ESS
        found.append(
            Certificate(
                "squared energy distance between the particles and the Gibbs law of their first variation, at most 3 "
                "standard errors",
                residual.value,
                3.0 * residual.standard_error,
                assumptions=(
                    Assumption(
                        f"the weighted points are worth at least {MIN_ESS:g}, got {residual.effective_sample_size:.0f}",
                        known,
                    ),
                ),
            )
        )
    if lsi_constant is not None:
        found.append(_rate_certificate(run, check_real(lsi_constant, "lsi_constant", above=0.0)))
    return tuple(found)


def inside_certificate(slack: float) -> Certificate:
    """All particles are strictly inside."""
    return Certificate("smallest slack of a particle, positive strictly inside", slack, np.finfo(float).tiny, ">=")


def certify_scaling(sizes: ArrayLike, variances: ArrayLike, *, tolerance: float = 0.25) -> Certificate:
    r"""Propagation of chaos: the variance of a mean of :math:`N` particles is proportional to :math:`1/N`.

    Parameters
    ----------
    sizes : array_like of shape (runs,)
        Numbers of particles, at least two different ones.
    variances : array_like of shape (runs,)
        Variance over time, at equilibrium, of the mean of the particles.
    tolerance : float, default=0.25
        How far the slope in log-log may be from -1.

    Returns
    -------
    Certificate
        On the distance of the fitted slope from -1.

    Examples
    --------
    >>> from assay.transport import certify_scaling
    >>> print(certify_scaling([10, 40, 160], [0.02, 0.005, 0.00125]).holds)
    True
    """
    numbers, spreads = as_float_array(sizes, "sizes", ndim=1), as_float_array(variances, "variances", ndim=1)
    if numbers.shape != spreads.shape:
        raise ValueError(f"variances must have one entry per size, {len(numbers)}, got {len(spreads)}")
    if numbers.min() <= 0 or spreads.min() <= 0:
        raise ValueError("sizes and variances must be positive")
    if len(np.unique(numbers)) < 2:
        raise ValueError("sizes must have at least two different numbers")
    slope = float(np.polyfit(np.log(numbers), np.log(spreads), 1)[0])
    return Certificate(
        f"distance from -1 of the slope of the variance over the number of particles ({slope:.3f})",
        abs(slope + 1.0),
        check_real(tolerance, "tolerance", above=0.0),
    )


def _rate_certificate(run: LangevinResult, lsi_constant: float) -> Certificate:
    """The functional falls to its end at the rate that the inequality gives, before the noise of the particles."""
    if "functional" not in run.history:
        raise ValueError("lsi_constant must be None for a run without a functional, from which the rate is fitted")
    values = run.history["functional"]
    last = values[-max(2, len(values) // 4) :]
    excess = values - last.mean()
    rate = linear_rate(run.history["time"], excess, floor=3.0 * float(np.abs(last - last.mean()).max()))
    return Certificate(
        "fitted linear rate of the functional before the floor of the particles",
        rate,
        2.0 * lsi_constant * run.temperature,
        ">=",
        assumptions=(Assumption("every Gibbs law satisfies the mirror log-Sobolev inequality with this constant"),),
    )
