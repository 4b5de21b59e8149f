r"""Is the worst case that a sampler delivers the worst case? A report on the user's own model and data.

A sampler that has not arrived trains against too weak an adversary, and nothing in the training loss shows it. Here the
particles are compared with draws that do not come from the flow (importance weights, tempering, quadrature; see
:mod:`assay.transport.worst_case_value`): the loss on them, the gradient that they give to the parameters, and the
place of the dual value between the two means that enclose it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.transport.dro_flow import for_model, frozen_evaluation, loss_of_features
from assay.transport.flow_problem import (
    WorstCaseProblem,
    as_labels,
    check_finite_losses,
    evaluate_loss,
    fresh_generator,
    normal_like,
)
from assay.transport.flow_sampler import FlowSampler
from assay.transport.worst_case_value import GibbsDraws, gibbs_draws, value_certificates
from assay.validation import check_integer, check_real

__all__ = ["DROCertificate", "certify_robustness"]

_POWER_STEPS = 20
_CURVATURE_POINTS = 256
_GAUSSIAN_BLOCK = 64


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
        reference = _reference(problem, parameters, draws, method, random)
        particles = [_particles(problem, sampler, parameters) for _ in range(repeats)]
        lower, lower_error = _gaussian_mean(problem, draws, random)
        plain = float(problem.losses(problem.start(1)).double().mean())
        smoothness = _smoothness(problem, particles[0].cloud, random)
    return _judge(problem, sampler, reference, particles, lower, lower_error, plain, smoothness, tol, gradient_tol)


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """Means of the reference draws over the data; the gradient in two halves that are independent."""

    value: float
    value_error: float
    loss: float
    loss_error: float
    transport: float
    gradient: tuple[Tensor, Tensor]
    ess: np.ndarray
    variance: np.ndarray
    methods: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Particles:
    """One run of the sampler."""

    cloud: Float[Tensor, "n particles d"]
    loss: float
    transport: float
    gradient: Tensor


def _reference(
    problem: WorstCaseProblem, parameters: list[Tensor], draws: int, method: str, generator: torch.Generator
) -> _Reference:
    n = len(problem)

    def summary(block: GibbsDraws) -> dict[str, Any]:
        halves = _gradient_halves(block, parameters)
        transport = (block.weights * block.problem.squared_moves(block.cloud).double()).sum()
        columns = {
            "rows": block.rows,
            "value": block.value,
            "variance": block.variance,
            "ess": block.ess,
            "upper": block.upper,
            "upper_variance": block.upper_variance,
        }
        numbers = {name: column.cpu().numpy() for name, column in columns.items()}
        return numbers | {
            "method": np.full(len(block.value), block.method),
            "transport": np.array([float(transport)]),
            "gradient": halves,
        }

    parts = list(gibbs_draws(problem, draws, method, generator, summary))
    even, odd = torch.stack([part.pop("gradient") for part in parts]).sum(0) / n
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["rows"])
    return _Reference(
        value=float(columns["value"].mean()),
        value_error=math.sqrt(columns["variance"].sum()) / n,
        loss=float(columns["upper"].mean()),
        loss_error=math.sqrt(columns["upper_variance"].sum()) / n,
        transport=float(columns["transport"].sum()) / n,
        gradient=(even, odd),
        ess=columns["ess"][order],
        variance=columns["variance"][order],
        methods=tuple(str(used) for used in columns["method"][order]),
    )


def _gradient_halves(block: GibbsDraws, parameters: list[Tensor]) -> Float[Tensor, "2 parameters"]:
    """Parameter gradient of the block, summed over its data points, from the even and from the odd draws."""
    halves = []
    for half in (0, 1):
        part = slice(half, None, 2) if block.method != "quadrature" else slice(None)
        weights = block.weights[:, part]
        total = weights.sum(1, keepdim=True)
        shares = torch.where(total > 0, weights / total.clamp_min(1e-300), torch.zeros_like(weights))
        halves.append(_weighted_gradient(block.problem, block.cloud[:, part], shares, parameters))
    return torch.stack(halves)


def _weighted_gradient(
    problem: WorstCaseProblem,
    cloud: Float[Tensor, "n particles d"],
    weights: Float[Tensor, "n particles"],
    parameters: list[Tensor],
) -> Float[Tensor, " parameters"]:
    """Gradient of the weighted sum of the losses in the parameters, as one float64 vector."""
    if not parameters:
        return torch.zeros(0, dtype=torch.float64, device=cloud.device)
    labels = None if problem.labels is None else problem.labels.repeat_interleave(cloud.shape[1], dim=0)
    with torch.enable_grad():
        losses = evaluate_loss(problem.loss, problem.features(cloud), labels)
        total = (weights.flatten().to(losses.dtype) * losses).sum()
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    flat = [
        torch.zeros(parameter.numel(), dtype=torch.float64, device=cloud.device)
        if gradient is None
        else gradient.detach().double().flatten()
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]
    return torch.cat(flat)


def _particles(problem: WorstCaseProblem, sampler: FlowSampler, parameters: list[Tensor]) -> _Particles:
    worst = sampler.sample_problem(problem)
    cloud, weights = worst.points.flatten(2), worst.weights.double()
    losses = problem.losses(cloud).double()
    return _Particles(
        cloud=cloud,
        loss=float((weights * losses).sum(1).mean()),
        transport=float((weights * problem.squared_moves(cloud).double()).sum(1).mean()),
        gradient=_weighted_gradient(problem, cloud, weights, parameters) / len(problem),
    )


def _gaussian_mean(problem: WorstCaseProblem, draws: int, generator: torch.Generator) -> tuple[float, float]:
    """Mean loss under the Gaussian around the data, and its standard error."""
    blocks = [problem.losses(problem.blur(_GAUSSIAN_BLOCK, generator)) for _ in range(-(-draws // _GAUSSIAN_BLOCK))]
    losses = torch.cat(blocks, dim=1).double()
    check_finite_losses(losses)
    error = float(losses.var(1).sum() / losses.shape[1]) ** 0.5 / len(problem)
    return float(losses.mean()), error


def _smoothness(problem: WorstCaseProblem, cloud: Float[Tensor, "n particles d"], generator: torch.Generator) -> float:
    """Largest absolute eigenvalue of the Hessian of the loss in the features, by power iteration at some points."""
    rows = torch.randperm(len(problem), generator=generator, device=cloud.device)[: _CURVATURE_POINTS // 2]
    part = problem.rows(rows)
    leaf = torch.cat([part.start(1), cloud[rows, :1]], dim=1).requires_grad_()
    labels = None if part.labels is None else part.labels.repeat_interleave(2, dim=0)
    try:
        with torch.enable_grad():
            losses = evaluate_loss(part.loss, part.features(leaf), labels)
            factor = torch.ones_like(losses).requires_grad_()
            (gradient,) = torch.autograd.grad(losses, leaf, factor, create_graph=True)
            direction = normal_like(leaf.detach(), generator)
            size = torch.zeros_like(direction[..., :1])
            for _ in range(_POWER_STEPS):
                length = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
                direction = direction / length.clamp_min(torch.finfo(length.dtype).tiny)
                product, touched = torch.autograd.grad(
                    (gradient * direction).sum(), (leaf, factor), retain_graph=True, allow_unused=True
                )
                if touched is None:  # the gradient depends on the factor, unless it cannot be differentiated
                    return math.nan
                product = torch.zeros_like(direction) if product is None else product
                size = torch.linalg.vector_norm(product, dim=-1, keepdim=True)
                direction = product
            return float(size.max())
    except (RuntimeError, NotImplementedError):
        # An operation without a second derivative: nothing is known about the curvature.
        return math.nan


def _judge(
    problem: WorstCaseProblem,
    sampler: FlowSampler,
    reference: _Reference,
    particles: list[_Particles],
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
