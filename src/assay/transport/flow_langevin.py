r"""Flows that carry particles uphill: Langevin steps, and the reaction that lets good particles grow.

The Wasserstein gradient flow of the relative entropy to :math:`p_x` is the Langevin diffusion; its Euler step is

.. math:: y \leftarrow y + h\, \nabla r(y) + \sqrt{h \varepsilon / \tau}\, \xi .

The Wasserstein-Fisher-Rao flow also lets mass appear where the law of the particles is below :math:`p_x` and vanish
where it is above. Two rules for that step are known here. Either estimates the density of the particles: by their
weights, which is cheap but counts the density of the Langevin steps twice and makes the cloud too narrow, or by a
Gaussian kernel estimate, which has the right limit. Afterwards a particle that has become too light is replaced by a
copy of a heavy one, with which it shares the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.transport.flow_problem import WorstCaseProblem, check_finite_losses, normal_like

__all__ = ["ball_ascent", "birth_death", "density_reaction", "langevin", "langevin_reaction", "weight_reaction"]

# Below this spread the particles still sit on their data point, and there is no density to estimate.
_COINCIDENT = 1e-12

Reaction = Callable[[Tensor, Tensor, Tensor], Tensor]


def langevin(
    problem: WorstCaseProblem,
    particles: int,
    steps: int,
    step_size: float,
    noise: float,
    generator: torch.Generator,
) -> Float[Tensor, "n particles d"]:
    """Particles after Langevin steps from the data points; without noise, after steps of gradient ascent."""
    cloud = problem.start(particles)
    for _ in range(steps):
        _, ascent = problem.losses_and_ascent(cloud)
        cloud.add_(ascent, alpha=step_size)
        if noise:
            cloud.add_(normal_like(cloud, generator), alpha=noise)
    return cloud


def langevin_reaction(
    problem: WorstCaseProblem,
    particles: int,
    steps: int,
    step_size: float,
    noise: float,
    reaction: Reaction,
    min_weight: float,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "n particles d"], Float[Tensor, "n particles"]]:
    """Particles and log weights after Langevin steps, each followed by a reaction, a birth and a death."""
    cloud = problem.start(particles)
    log_weights = cloud.new_full(cloud.shape[:2], -math.log(particles))
    _, ascent = problem.losses_and_ascent(cloud)
    for step in range(steps):
        cloud.add_(ascent, alpha=step_size).add_(normal_like(cloud, generator), alpha=noise)
        if step + 1 < steps:
            losses, ascent = problem.losses_and_ascent(cloud)
        else:
            losses = problem.losses(cloud)
        check_finite_losses(losses)
        log_weights = reaction(log_weights, problem.reward(losses, cloud), cloud)
        source, log_weights = birth_death(log_weights, min_weight, generator)
        if source is not None:
            index = source[:, :, None].expand_as(cloud)
            cloud, ascent = cloud.gather(1, index), ascent.gather(1, index)
    return cloud, log_weights


def weight_reaction(weight_step: float, inverse_temperature: float) -> Reaction:
    r"""Reaction with the weights in place of the density: :math:`w^{1 - \varepsilon h/(2\tau)} \exp(h\, r)`."""

    def react(log_weights: Tensor, reward: Tensor, cloud: Tensor) -> Tensor:
        grown = (1.0 - weight_step / inverse_temperature) * log_weights + weight_step * reward
        return grown.log_softmax(1)

    return react


def density_reaction(weight_step: float, inverse_temperature: float) -> Reaction:
    r"""Reaction with a kernel density estimate: growth at the rate :math:`r - (\varepsilon/2\tau) \log\hat\rho`."""

    def react(log_weights: Tensor, reward: Tensor, cloud: Tensor) -> Tensor:
        log_density, spread = log_kernel_density(cloud, log_weights)
        grown = (log_weights + weight_step * (reward - log_density / inverse_temperature)).log_softmax(1)
        return torch.where(spread[:, None] < _COINCIDENT, log_weights, grown)

    return react


def log_kernel_density(
    cloud: Float[Tensor, "n particles d"], log_weights: Float[Tensor, "n particles"]
) -> tuple[Float[Tensor, "n particles"], Float[Tensor, " n"]]:
    """Log of a Gaussian kernel estimate at its own particles, up to a constant for each cloud, and least spread."""
    particles, d = cloud.shape[1:]
    weights = log_weights.exp()[:, :, None]
    centred = cloud - (weights * cloud).sum(1, keepdim=True)
    spread = (weights * centred.square()).sum(1, keepdim=True).sqrt()
    bandwidth = particles ** (-1.0 / (d + 4)) * spread.clamp_min(_COINCIDENT)
    squared = torch.cdist(centred / bandwidth, centred / bandwidth).square()
    return torch.logsumexp(log_weights[:, None, :] - 0.5 * squared, dim=2), spread.amin((1, 2))


def birth_death(
    log_weights: Float[Tensor, "n particles"], min_weight: float, generator: torch.Generator
) -> tuple[Int[Tensor, "n particles"] | None, Float[Tensor, "n particles"]]:
    """Replace light particles by copies of heavy ones.

    Particles below ``min_weight`` are taken one after the other: a donor is drawn by weight, and both get the mean of
    their weights. All clouds do this at the same time, so the loop is as long as the largest number of light particles.

    Returns
    -------
    torch.Tensor of shape (n, particles) or None
        Which particle stands at each place afterwards; None when nothing moved.
    torch.Tensor of shape (n, particles)
        Log weights afterwards.
    """
    weights = log_weights.exp()
    light = weights < min_weight
    most = int(light.sum(1).max())
    if not most:
        return None, log_weights
    # Light particles first, in order: a stable sort of booleans.
    order = light.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    source = torch.arange(weights.shape[1], device=weights.device).repeat(len(weights), 1)
    for rank in range(most):
        dying = order[:, rank : rank + 1]
        donor = torch.multinomial(weights, 1, generator=generator)
        lightness, mass = weights.gather(1, dying), weights.gather(1, donor)
        # An earlier one may have made this particle its donor, or a row has none left.
        active = light.gather(1, dying) & (lightness < min_weight)
        shared = 0.5 * (lightness + mass)
        source.scatter_(1, dying, torch.where(active, source.gather(1, donor), source.gather(1, dying)))
        weights.scatter_(1, dying, torch.where(active, shared, lightness))
        weights.scatter_(1, donor, torch.where(active, shared, weights.gather(1, donor)))
    return source, (weights / weights.sum(1, keepdim=True)).log()


def ball_ascent(problem: WorstCaseProblem, steps: int, step_size: float, radius: float) -> Float[Tensor, "n one d"]:
    """Projected gradient ascent of the loss in a Euclidean ball, with steps of fixed length."""
    centre = problem.points[:, None, :]
    cloud = problem.start(1)
    tiny = torch.finfo(cloud.dtype).tiny
    for _ in range(steps):
        _, gradient = problem.losses_and_gradient(cloud)
        length = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True).clamp_min(tiny)
        move = cloud + step_size * gradient / length - centre
        size = torch.linalg.vector_norm(move, dim=-1, keepdim=True).clamp_min(tiny)
        cloud = centre + move * (radius / size).clamp_max(1.0)
    return cloud
