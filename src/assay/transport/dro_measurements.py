"""What a report on a sampler measures: reference draws, particles, Gaussian means, and the curvature of the loss.

Nothing is judged here; :mod:`assay.transport.dro_certificate` puts the two sides of every promise side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.transport.flow_problem import WorstCaseProblem, check_finite_losses, evaluate_loss, normal_like
from assay.transport.flow_sampler import FlowSampler
from assay.transport.gibbs_reference import GibbsDraws, gibbs_draws

__all__ = [
    "ParticleMeans",
    "ReferenceMeans",
    "gaussian_mean",
    "largest_curvature",
    "measure_particles",
    "measure_reference",
]

_POWER_STEPS = 20
_CURVATURE_POINTS = 256
_GAUSSIAN_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class ReferenceMeans:
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
class ParticleMeans:
    """One run of the sampler."""

    cloud: Float[Tensor, "n particles d"]
    loss: float
    transport: float
    gradient: Tensor


def measure_reference(
    problem: WorstCaseProblem, parameters: list[Tensor], draws: int, method: str, generator: torch.Generator
) -> ReferenceMeans:
    """Means of draws from the worst case that no flow made."""
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
    return ReferenceMeans(
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


def measure_particles(problem: WorstCaseProblem, sampler: FlowSampler, parameters: list[Tensor]) -> ParticleMeans:
    """Run the sampler once."""
    worst = sampler.sample_problem(problem)
    cloud, weights = worst.points.flatten(2), worst.weights.double()
    losses = problem.losses(cloud).double()
    return ParticleMeans(
        cloud=cloud,
        loss=float((weights * losses).sum(1).mean()),
        transport=float((weights * problem.squared_moves(cloud).double()).sum(1).mean()),
        gradient=_weighted_gradient(problem, cloud, weights, parameters) / len(problem),
    )


def gaussian_mean(problem: WorstCaseProblem, draws: int, generator: torch.Generator) -> tuple[float, float]:
    """Mean loss under the Gaussian around the data, and its standard error."""
    blocks = [problem.losses(problem.blur(_GAUSSIAN_BLOCK, generator)) for _ in range(-(-draws // _GAUSSIAN_BLOCK))]
    losses = torch.cat(blocks, dim=1).double()
    check_finite_losses(losses)
    error = float(losses.var(1).sum() / losses.shape[1]) ** 0.5 / len(problem)
    return float(losses.mean()), error


def largest_curvature(
    problem: WorstCaseProblem, cloud: Float[Tensor, "n particles d"], generator: torch.Generator
) -> float:
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
