r"""Stein variational gradient descent towards the worst case: particles that repel each other instead of noise.

With the kernel :math:`k(y, z) = \exp(-|y - z|^2 / b)` every particle moves along

.. math:: \phi_i = \frac1m \sum_j k(y_j, y_i)\, \nabla\log p_x(y_j) + \nabla_{y_j} k(y_j, y_i),

the first part uphill, the second away from the others. ``b`` is the squared median distance over ``log(m + 1)``. The
flow is deterministic after its start, and spreads few particles better than noise does; with few particles in many
dimensions it is known to make the cloud too narrow.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from assay.transport.flow_problem import WorstCaseProblem

__all__ = ["stein_descent", "stein_direction"]


def stein_descent(
    problem: WorstCaseProblem, particles: int, steps: int, step_size: float, generator: torch.Generator
) -> Float[Tensor, "n particles d"]:
    """Particles after Stein steps from Gaussian clouds around the data points."""
    cloud = problem.blur(particles, generator)
    for _ in range(steps):
        _, ascent = problem.losses_and_ascent(cloud)
        direction = stein_direction(cloud, problem.inverse_temperature * ascent, 0.5 * problem.epsilon)
        cloud.add_(direction, alpha=step_size)
    return cloud


def stein_direction(
    cloud: Float[Tensor, "n particles d"], score: Float[Tensor, "n particles d"], fallback: float
) -> Float[Tensor, "n particles d"]:
    """Direction of steepest descent of the relative entropy in the space of the kernel; O(n m^2 d).

    ``fallback`` is the squared bandwidth where all particles coincide.
    """
    particles = cloud.shape[1]
    centred = cloud - cloud.mean(1, keepdim=True)
    squared = torch.cdist(centred, centred).square()
    if particles > 1:
        row, column = torch.triu_indices(particles, particles, 1, device=cloud.device)
        typical = squared[:, row, column].median(dim=1).values
    else:
        typical = squared.new_zeros(len(cloud))
    width = typical / math.log(particles + 1.0)
    width = torch.where(width > 0, width, torch.full_like(width, fallback))[:, None, None]
    kernel = torch.exp(-squared / width)
    repulsion = (2.0 / width) * (kernel.sum(2, keepdim=True) * centred - kernel @ centred)
    return (kernel @ score + repulsion) / particles
