r"""Is the worst case that a sampler delivers the worst case? A report on the user's own model and data.

A sampler that has not arrived trains against too weak an adversary, and nothing in the training loss shows it. Here the
particles are compared with draws that do not come from the flow (importance weights, tempering, quadrature; see
:mod:`assay.transport.gibbs_reference`): the loss on them, the gradient that they give to the parameters, and the
place of the dual value between the two means that enclose it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.transport.dro_flow import for_model, frozen_evaluation, loss_of_features
from assay.transport.dro_measurements import (
    ParticleMeans,
    ReferenceMeans,
    gaussian_mean,
    largest_curvature,
    measure_particles,
    measure_reference,
)
from assay.transport.dual_value import value_certificates
from assay.transport.flow_problem import (
    WorstCaseProblem,
    as_labels,
    fresh_generator,
)
from assay.transport.flow_sampler import FlowSampler
from assay.validation import check_integer, check_real

__all__ = ["DROCertificate", "certify_robustness"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class DROCertificate(Result):
    """What was measured about a sampler of the worst case.

    Parameters
    ----------
    value, value_error : float
        Estimate of the dual value, and its standard error.
    ess : float
        Least effective number of draws behind it, over the data points.
    sampler_loss, sampler_error : float
        Mean loss on the particles of the sampler, and its standard error over repeated runs.
    reference_loss, reference_error : float
        Mean loss on the reference draws from the worst case.
    sampler_gap : float
        Absolute difference of the two.
    gradient_gap : float
        Norm of the difference of the parameter gradients, relative to that of the reference; nan without parameters.
    lower, lower_error : float
        Mean loss under the Gaussian, of draws that are independent of those for ``value``.
    plain : float
        Mean loss at the data, which is not a bound unless the loss is convex in the features.
    transport, reference_transport : float
        Mean squared move of the particles, and of the reference draws.
    smoothness : float
        Largest curvature of the loss in the features that power iteration met at the data and the particles: an
        estimate from below; nan when the loss cannot be differentiated twice.
    contraction : float
        For Langevin flows, the part of the initial distance to the worst case that the steps leave if ``smoothness``
        is right; nan for other flows.
    methods : tuple of str
        How the reference was made for every data point.
    """

    value: float
    value_error: float
    ess: float
    sampler_loss: float
    sampler_error: float
    reference_loss: float
    reference_error: float
    sampler_gap: float
    gradient_gap: float
    lower: float
    lower_error: float
    plain: float
    transport: float
    reference_transport: float
    smoothness: float
    contraction: float
    methods: tuple[str, ...]


def certify_robustness(
    model: torch.nn.Module | None,
    loss: Callable[..., Any],
    x: Any,
    y: Any = None,
    sampler: FlowSampler | None = None,
    *,
    draws: int = 4096,
    repeats: int = 16,
    tol: float = 0.05,
    gradient_tol: float = 0.1,
    method: str = "auto",
    generator: torch.Generator | None = None,
) -> DROCertificate:
    r"""Compare the particles of a sampler with the worst case that they stand for.

    Parameters
    ----------
    model : torch.nn.Module or None
        The model, which is evaluated in evaluation mode and left as it was. None if ``loss`` takes the features.
    loss : callable
        ``loss(model(x), y)``, or ``loss(x, y)`` without a model; one loss per sample.
    x : torch.Tensor or array_like of shape (n, ...)
        Data points to evaluate on; some tens are enough.
    y : torch.Tensor or array_like of shape (n, ...), optional
        Labels.
    sampler : FlowSampler
        The sampler that the model is trained with. Its ``epsilon`` must be greater than 0.
    draws : int, default=4096
        Reference draws for every data point.
    repeats : int, default=16
        Runs of the sampler, at least 2. Their spread gives its standard error, which particles of one run do not
        when they depend on each other.
    tol : float, default=0.05
        Tolerance of the loss, relative to the loss on the reference.
    gradient_tol : float, default=0.1
        Tolerance of the gradient, relative.
    method : {"auto", "importance", "tempered", "quadrature"}, default="auto"
        As in :func:`~assay.transport.worst_case_value`.
    generator : torch.Generator, optional
        Source of randomness of the reference, on the device of the data; by default fresh entropy.

    Returns
    -------
    DROCertificate
        With the certificates

        1. the reference is known: enough effective draws for every data point; if not, the following are nan,
        2. the gap of the loss is at most 3 standard errors and the tolerance,
        3. the same for the gradient of the parameters (left out when there are none),
        4. the Gaussian mean is at most the dual value (Jensen), within 3 standard errors,
        5. the dual value is at most the loss on the particles (Gibbs), within 3 standard errors.

    Raises
    ------
    TypeError, ValueError
        If the data, the loss or an option is not of its form.

    Notes
    -----
    The gap and the gradient carry the assumption that :math:`\tau L < 1` at the points that were looked at, under
    which Langevin flows contract. Cost: ``draws`` evaluations for every data point twice, one backward pass over
    them, and ``repeats`` runs of the sampler. Sums are in float64; losses are evaluated in the precision of the model.

    References
    ----------
    .. [1] Z. Xu, J.-J. Zhu. Gradient Flow Sampler-based Distributionally Robust Optimization. ICML 2026,
       arXiv:2510.25956.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import FlowSampler, certify_robustness
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    >>> def loss(x, y):
    ...     return torch.nn.functional.softplus(x @ torch.tensor([1.0, 2.0], dtype=torch.float64))
    >>> def report(steps):
    ...     sampler = FlowSampler("wgf", tau=0.5, epsilon=0.1, steps=steps, generator=generator)
    ...     return certify_robustness(None, loss, x, None, sampler, generator=generator)
    >>> report(steps=60).certificates[1].holds, report(steps=2).certificates[1].holds
    (True, False)
    """
    if not isinstance(sampler, FlowSampler):
        raise TypeError(f"sampler must be a FlowSampler, got {type(sampler).__name__}")
    if not sampler.epsilon:
        raise ValueError("epsilon of sampler must be greater than 0, got 0: there is no law to compare with")
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module or None, got {type(model).__name__}")
    repeats = check_integer(repeats, "repeats", minimum=2)
    tol = check_real(tol, "tol", minimum=0)
    gradient_tol = check_real(gradient_tol, "gradient_tol", minimum=0)
    if not callable(loss):
        raise TypeError(f"loss must be a callable, got {type(loss).__name__}")
    owner = model if model is not None else torch.nn.Module()
    features = for_model(owner, x)
    composed = loss if model is None else loss_of_features(model, loss)
    problem = WorstCaseProblem(composed, features, as_labels(y, features), sampler.tau, sampler.epsilon)
    random = fresh_generator(generator, features.device)
    with frozen_evaluation(owner):
        parameters = [p for p in owner.parameters() if p.requires_grad]
        reference = measure_reference(problem, parameters, draws, method, random)
        particles = [measure_particles(problem, sampler, parameters) for _ in range(repeats)]
        lower, lower_error = gaussian_mean(problem, draws, random)
        plain = float(problem.losses(problem.start(1)).double().mean())
        smoothness = largest_curvature(problem, particles[0].cloud, random)
    return _judge(problem, sampler, reference, particles, lower, lower_error, plain, smoothness, tol, gradient_tol)


def _judge(
    problem: WorstCaseProblem,
    sampler: FlowSampler,
    reference: ReferenceMeans,
    particles: list[ParticleMeans],
    lower: float,
    lower_error: float,
    plain: float,
    smoothness: float,
    tol: float,
    gradient_tol: float,
) -> DROCertificate:
    """Put both sides of every promise side by side."""
    losses = np.array([run.loss for run in particles])
    sampler_loss, sampler_error = float(losses.mean()), float(losses.std(ddof=1)) / math.sqrt(len(losses))
    known = list(value_certificates(reference.methods, reference.ess, reference.variance))
    unknown = 1.0 if all(certificate.holds for certificate in known) else math.nan
    gap = unknown * abs(sampler_loss - reference.loss)
    errors = math.hypot(sampler_error, reference.loss_error)
    product = sampler.tau * smoothness
    concave = Assumption(
        f"tau L < 1 at the data and the particles, L = {smoothness:.3g} by power iteration",
        None if math.isnan(product) else product < 1.0,
    )
    promises = [
        Certificate(
            "difference of the loss on the particles and on the worst case, against 3 standard errors and tol",
            gap,
            3.0 * errors + tol * abs(reference.loss),
            assumptions=(concave,),
        )
    ]
    gradient_gap, gradient_error = _gradient_gap(reference.gradient, [run.gradient for run in particles])
    if reference.gradient[0].numel():
        promises.append(
            Certificate(
                "relative difference of the parameter gradients, against 3 standard errors and gradient_tol",
                unknown * gradient_gap,
                3.0 * gradient_error + gradient_tol,
                assumptions=(concave,),
            )
        )
    promises.append(
        Certificate(
            "mean loss under the Gaussian, at most the dual value (with 3 standard errors)",
            lower,
            unknown * reference.value + 3.0 * math.hypot(lower_error, reference.value_error),
        )
    )
    promises.append(
        Certificate(
            "dual value, at most the loss on the particles (with 3 standard errors)",
            unknown * reference.value,
            sampler_loss + 3.0 * math.hypot(sampler_error, reference.value_error),
        )
    )
    langevin = sampler.flow in ("wgf", "wfr", "wrm")
    shrink = 1.0 - sampler.step_size * (1.0 - product) / sampler.tau
    return DROCertificate(
        value=reference.value,
        value_error=reference.value_error,
        ess=float(reference.ess.min()),
        sampler_loss=sampler_loss,
        sampler_error=sampler_error,
        reference_loss=reference.loss,
        reference_error=reference.loss_error,
        sampler_gap=gap,
        gradient_gap=gradient_gap,
        lower=lower,
        lower_error=lower_error,
        plain=plain,
        transport=float(np.mean([run.transport for run in particles])),
        reference_transport=reference.transport,
        smoothness=smoothness,
        contraction=abs(shrink) ** sampler.steps if langevin else math.nan,
        methods=reference.methods,
        certificates=(*known, *promises),
    )


def _gradient_gap(reference: tuple[Tensor, Tensor], runs: list[Tensor]) -> tuple[float, float]:
    """Relative distance of the mean gradients, and the standard error of that distance."""
    if not reference[0].numel():
        return math.nan, math.nan
    target = 0.5 * (reference[0] + reference[1])
    sampled = torch.stack(runs)
    noise = float(sampled.var(0).sum()) / len(runs) + 0.25 * float((reference[0] - reference[1]).square().sum())
    size = max(float(target.norm()), torch.finfo(torch.float64).tiny)
    return float((sampled.mean(0) - target).norm()) / size, math.sqrt(noise) / size
