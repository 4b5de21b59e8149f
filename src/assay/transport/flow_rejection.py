r"""Exact draws from the worst case of a smooth loss, by rejection from a Gaussian.

If the gradient of the loss is ``L``-Lipschitz and :math:`\tau L < 1`, then :math:`r` is strongly concave. Around its
maximiser :math:`y^*` a Gaussian of variance :math:`\varepsilon / (2 (1 - \tau L))` lies above :math:`p_x`, and a
proposal is kept with probability

.. math:: \exp\Bigl(\tfrac{2\tau}{\varepsilon}\bigl(r(y) - r(y^*)\bigr)
          + \tfrac{1 - \tau L}{\varepsilon}\, |y - y^*|^2 \Bigr) \le 1 .

What is kept follows :math:`p_x` exactly. The expected number of proposals grows like
:math:`((1 + \tau L)/(1 - \tau L))^{d/2}`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from assay.transport.flow_problem import WorstCaseProblem, check_finite_losses, normal_like

__all__ = ["ascend_to_peak", "rejection_draws"]

# Logarithm by which rounding and the last digits of the peak may lift an acceptance probability above 1.
_TOLERANCE = 1e-3


def rejection_draws(
    problem: WorstCaseProblem, particles: int, smoothness: float, max_trials: int, generator: torch.Generator
) -> tuple[Float[Tensor, "n particles d"], float]:
    """Independent exact draws for every data point, and the share of proposals that were kept.

    Raises
    ------
    ValueError
        If the loss turns out to be less smooth than was said.
    RuntimeError
        If a draw is still missing after ``max_trials`` proposals.
    """
    peak = ascend_to_peak(problem, smoothness)
    beta, gap = problem.inverse_temperature, 1.0 - problem.tau * smoothness
    losses = problem.losses(peak)
    check_finite_losses(losses)
    height = problem.reward(losses, peak)
    scale = math.sqrt(problem.epsilon / (2.0 * gap))
    rounding = 64.0 * torch.finfo(peak.dtype).eps * beta
    cloud = peak.repeat(1, particles, 1)
    missing = torch.ones(cloud.shape[:2], dtype=torch.bool, device=cloud.device)
    proposed = 0
    for _ in range(max_trials):
        open_rows = missing.any(1).nonzero().flatten()
        part, centre, top = problem.rows(open_rows), peak[open_rows], height[open_rows]
        proposal = centre + scale * normal_like(cloud[open_rows], generator)
        reward = part.reward(part.losses(proposal), proposal)
        log_accept = beta * (reward - top) + (gap / problem.epsilon) * (proposal - centre).square().sum(-1)
        if (log_accept > _TOLERANCE + rounding * (reward.abs() + top.abs())).any():
            raise ValueError(
                f"smoothness must bound the Lipschitz constant of the gradient of the loss, got {smoothness:g}, "
                "which the loss exceeds"
            )
        chance = torch.rand(log_accept.shape, generator=generator, dtype=cloud.dtype, device=cloud.device)
        wanted = missing[open_rows]
        kept = wanted & (chance.log() < log_accept)
        cloud[open_rows] = torch.where(kept[:, :, None], proposal, cloud[open_rows])
        missing[open_rows] = wanted & ~kept
        proposed += int(wanted.sum())
        if not missing.any():
            return cloud, missing.numel() / proposed
    rate = (missing.numel() - int(missing.sum())) / proposed
    raise RuntimeError(
        f"rejection sampling did not end in {max_trials} trials (acceptance rate {rate:.2g}): use another flow, or a "
        "smaller tau"
    )


def ascend_to_peak(problem: WorstCaseProblem, smoothness: float) -> Float[Tensor, "n one d"]:
    """Maximiser of ``r`` for every data point, by accelerated gradient ascent with the known constants.

    It stops when the gradient could lift an acceptance probability by no more than a small part.
    """
    tau = problem.tau
    steepest, flattest = 1.0 / tau + smoothness, 1.0 / tau - smoothness
    root = math.sqrt(steepest / flattest)
    momentum = (root - 1.0) / (root + 1.0)
    typical = math.sqrt(problem.epsilon / (2.0 * (1.0 - tau * smoothness)) * problem.points.shape[1])
    target = 1e-2 * _TOLERANCE / (problem.inverse_temperature * typical)
    peak = problem.start(1)
    ahead = peak
    eps = torch.finfo(peak.dtype).eps
    for _ in range(200 + int(60.0 * root)):
        losses, ascent = problem.losses_and_ascent(ahead)
        length = torch.linalg.vector_norm(ascent, dim=-1)
        # In float32 the gradient cannot be told from rounding sooner than the target may ask for.
        floor = 8.0 * eps * (ahead.abs().amax(-1) + problem.points.abs().amax(-1, keepdim=True)) / tau
        if (length <= torch.clamp_min(floor, target)).all():
            return ahead
        check_finite_losses(losses)
        following = ahead + ascent / steepest
        ahead = following + momentum * (following - peak)
        peak = following
    raise ValueError(
        f"smoothness must bound the Lipschitz constant of the gradient of the loss, got {smoothness:g}, with which the "
        "ascent to the peak does not converge"
    )
