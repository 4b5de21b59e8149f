r"""Weighted draws from the worst case that no flow made: what flows and dual values are compared with.

The worst case near a data point is a Gaussian :math:`N(x, (\varepsilon/2) I)`, reweighted by
:math:`\exp(2\tau f(y)/\varepsilon)`; the mean of these weights gives the dual value. Importance weights on Gaussian
draws are what the dual methods use; their effective sample size says when they fail, which is for small
:math:`\varepsilon`. Tempering goes from the Gaussian to the worst case in stages that each keep half of the draws
effective. In one dimension a grid gives all digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.transport.flow_problem import WorstCaseProblem, check_finite_losses, normal_like
from assay.validation import check_choice, check_integer

__all__ = ["LEAST_ESS", "GibbsDraws", "gibbs_draws"]

METHODS = ("auto", "importance", "tempered", "quadrature")

# Fewer effective draws say nothing.
LEAST_ESS = 50.0
# Numbers in one block of draws.
_BLOCK = 4_000_000
_MOVES = 5
# Half of the draws stay effective in tempering, so that fewer will do where it is the last resort.
_FEWER = 8
_MAX_STAGES = 100
_GRID = 4097
# Logarithm of what is left out at the ends of the grid.
_NEGLIGIBLE = 45.0
# How often the grid is doubled in search of its ends.
_DOUBLINGS = 40


@dataclass(frozen=True, kw_only=True)
class GibbsDraws:
    """Weighted draws from the worst case for some data points, and what they say about the dual value.

    Numbers of shape ``(n,)`` and the weights are in float64; ``lower_variance`` and ``upper_variance`` are variances
    of the two means, ``variance`` that of ``value``; ``rows`` are the places of the data points.
    """

    problem: WorstCaseProblem
    rows: Int[Tensor, " n"]
    cloud: Float[Tensor, "n draws d"]
    weights: Float[Tensor, "n draws"]
    losses: Float[Tensor, "n draws"]
    value: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    ess: Float[Tensor, " n"]
    lower: Float[Tensor, " n"]
    lower_variance: Float[Tensor, " n"]
    method: str

    @property
    def upper(self) -> Float[Tensor, " n"]:
        """Mean loss under the worst case."""
        return (self.weights * self.losses).sum(1)

    @property
    def upper_variance(self) -> Float[Tensor, " n"]:
        """Variance of :attr:`upper`."""
        if self.method == "quadrature":
            return torch.zeros_like(self.value)
        return (self.weights * (self.losses - self.upper[:, None])).square().sum(1)

    def select(self, chosen: Bool[Tensor, " n"]) -> GibbsDraws:
        """The same for some of the data points."""
        content = {f.name: getattr(self, f.name) for f in fields(self)}
        parts = {name: part[chosen] for name, part in content.items() if isinstance(part, Tensor)}
        return GibbsDraws(**(content | parts | {"problem": self.problem.rows(chosen)}))


def gibbs_draws(
    problem: WorstCaseProblem,
    draws: int,
    method: str,
    generator: torch.Generator,
    summary: Callable[[GibbsDraws], Any],
) -> Iterator[Any]:
    """Make weighted draws from the worst case block by block, and yield what ``summary`` makes of each block.

    With ``"auto"`` the data points on which importance weights fail come in a block of their own.
    """
    draws = check_integer(draws, "draws", minimum=1)
    check_choice(method, "method", METHODS)
    d = problem.points.shape[1]
    if method == "quadrature" and d > 1:
        raise ValueError(f"method must not be 'quadrature' in more than 1 dimension, got {d}")
    size = max(1, _BLOCK // (max(draws, _GRID) * d))
    everywhere = torch.arange(len(problem), device=problem.points.device)
    for rows in everywhere.split(size):
        block = problem.rows(rows)
        if method in _EXACT:
            yield summary(_EXACT[method](block, rows, draws, generator))
            continue
        weighted = _importance(block, rows, draws, generator)
        poor = weighted.ess < LEAST_ESS
        if method == "importance" or not poor.any():
            yield summary(weighted)
            continue
        if not poor.all():
            yield summary(weighted.select(~poor))
        fallback = _quadrature if d == 1 else _tempered
        yield summary(fallback(block.rows(poor), rows[poor], max(draws // _FEWER, 4 * int(LEAST_ESS)), generator))


def _evaluate(problem: WorstCaseProblem, cloud: Float[Tensor, "n draws d"]) -> Float[Tensor, "n draws"]:
    losses = problem.losses(cloud)
    check_finite_losses(losses)
    return losses.double()


def _importance(problem: WorstCaseProblem, rows: Tensor, draws: int, generator: torch.Generator) -> GibbsDraws:
    """Gaussian draws, weighted by the exponential of the loss."""
    beta = problem.inverse_temperature
    cloud = problem.blur(draws, generator)
    losses = _evaluate(problem, cloud)
    weights = (beta * losses).softmax(1)
    ess = 1.0 / weights.square().sum(1)
    return GibbsDraws(
        problem=problem,
        rows=rows,
        cloud=cloud,
        weights=weights,
        losses=losses,
        value=(torch.logsumexp(beta * losses, 1) - math.log(draws)) / beta,
        variance=(1.0 / ess - 1.0 / draws).clamp_min(0.0) / beta**2,
        ess=ess,
        lower=losses.mean(1),
        lower_variance=losses.var(1, correction=0) / draws,
        method="importance",
    )


def _tempered(problem: WorstCaseProblem, rows: Tensor, draws: int, generator: torch.Generator) -> GibbsDraws:
    """Draws that are carried from the Gaussian to the worst case in stages, each data point at its own pace.

    A stage raises the factor of the loss in the exponent as far as half of the draws stay effective, resamples, and
    moves the draws by Langevin steps that are corrected by acceptance and rejection.
    """
    beta = problem.inverse_temperature
    cloud = problem.blur(draws, generator)
    losses = _evaluate(problem, cloud)
    lower, lower_variance = losses.mean(1), losses.var(1, correction=0) / draws
    reached = torch.zeros_like(lower)
    log_mean, variance = torch.zeros_like(lower), torch.zeros_like(lower)
    least = torch.full_like(lower, float(draws))
    _, gradient = problem.losses_and_gradient(cloud)
    step = torch.full_like(lower, 0.5 * problem.tau)
    for _ in range(_MAX_STAGES):
        if (reached >= 1.0).all():
            break
        stage = _longest_stage(beta * losses, 1.0 - reached)
        exponents = stage[:, None] * beta * losses
        weights = exponents.softmax(1)
        ess = 1.0 / weights.square().sum(1)
        log_mean += torch.logsumexp(exponents, 1) - math.log(draws)
        variance += (1.0 / ess - 1.0 / draws).clamp_min(0.0)
        least = torch.minimum(least, ess)
        reached = torch.where(stage >= 1.0 - reached, torch.ones_like(reached), reached + stage)
        chosen = _systematic(weights, generator)
        index = chosen[:, :, None].expand_as(cloud)
        losses, cloud, gradient = losses.gather(1, chosen), cloud.gather(1, index), gradient.gather(1, index)
        for _ in range(_MOVES):
            cloud, losses, gradient, rate = _move(problem, cloud, losses, gradient, reached, step, generator)
            step = (step * torch.exp(rate - 0.6)).clamp(1e-6 * problem.tau, problem.tau)
    # Whoever has not arrived is not known.
    least = torch.where(reached >= 1.0, least, torch.zeros_like(least))
    return GibbsDraws(
        problem=problem,
        rows=rows,
        cloud=cloud,
        weights=torch.full_like(losses, 1.0 / draws),
        losses=losses,
        value=log_mean / beta,
        variance=variance / beta**2,
        ess=least,
        lower=lower,
        lower_variance=lower_variance,
        method="tempered",
    )


def _longest_stage(exponents: Float[Tensor, "n draws"], most: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Largest factor, up to ``most``, with which the exponents keep half of the draws effective; by bisection."""
    target = 0.5 * exponents.shape[1]

    def effective(factor: Tensor) -> Tensor:
        return 1.0 / (factor[:, None] * exponents).softmax(1).square().sum(1)

    low, high = torch.zeros_like(most), most.clone()
    enough = effective(high) >= target
    low = torch.where(enough, high, low)
    # In logarithms, since a stage can be very short.
    high = high.clamp_min(1e-300)
    floor = high * 1e-12
    bottom = torch.where(enough, high, floor)
    for _ in range(40):
        middle = (bottom * high).sqrt()
        keeps = effective(middle) >= target
        bottom, high = torch.where(keeps, middle, bottom), torch.where(keeps, high, middle)
    return torch.where(enough, low, bottom)


def _systematic(weights: Float[Tensor, "n draws"], generator: torch.Generator) -> Tensor:
    """Systematic resampling: every draw is copied about as often as its weight says."""
    draws = weights.shape[1]
    offset = torch.rand(len(weights), 1, generator=generator, device=weights.device, dtype=weights.dtype)
    ticks = (torch.arange(draws, device=weights.device, dtype=weights.dtype) + offset) / draws
    return torch.searchsorted(weights.cumsum(1), ticks).clamp_max(draws - 1)


def _move(
    problem: WorstCaseProblem,
    cloud: Float[Tensor, "n draws d"],
    losses: Float[Tensor, "n draws"],
    gradient: Float[Tensor, "n draws d"],
    reached: Float[Tensor, " n"],
    step: Float[Tensor, " n"],
    generator: torch.Generator,
) -> tuple[Float[Tensor, "n draws d"], Float[Tensor, "n draws"], Float[Tensor, "n draws d"], Float[Tensor, " n"]]:
    """One Metropolis-adjusted Langevin step in the law that is reached, and the share of draws that moved."""
    centre = problem.points[:, None, :]
    size, share = (number[:, None, None].to(cloud.dtype) for number in (step, reached))
    variance = size * problem.epsilon / problem.tau

    def drift(at: Tensor, slope: Tensor) -> Tensor:
        return at + size * (share * slope - (at - centre) / problem.tau)

    def log_density(at: Tensor, loss: Tensor) -> Tensor:
        return problem.inverse_temperature * problem.reward(reached[:, None] * loss, at)

    forward = drift(cloud, gradient)
    proposal = forward + variance.sqrt() * normal_like(cloud, generator)
    proposed, slope = problem.losses_and_gradient(proposal)
    check_finite_losses(proposed)
    proposed = proposed.double()
    back = ((cloud - drift(proposal, slope)).square() / (2.0 * variance)).sum(-1)
    ahead = ((proposal - forward).square() / (2.0 * variance)).sum(-1)
    log_ratio = log_density(proposal, proposed) - log_density(cloud, losses) + ahead - back
    chance = torch.rand(losses.shape, generator=generator, dtype=losses.dtype, device=losses.device)
    kept = chance.log() < log_ratio
    return (
        torch.where(kept[:, :, None], proposal, cloud),
        torch.where(kept, proposed, losses),
        torch.where(kept[:, :, None], slope, gradient),
        kept.double().mean(1),
    )


def _quadrature(problem: WorstCaseProblem, rows: Tensor, draws: int, generator: torch.Generator) -> GibbsDraws:
    """Trapezoidal rule in one dimension, on a grid that ends where the integrand is negligible."""
    beta = problem.inverse_temperature
    width = torch.full_like(problem.points[:, 0].double(), 8.0 * math.sqrt(0.5 * problem.epsilon))
    centre = problem.points[:, 0].double()
    low, high = centre - width, centre + width

    def on_grid(size: int) -> tuple[Tensor, Tensor, Tensor]:
        share = torch.linspace(0.0, 1.0, size, dtype=torch.float64, device=low.device)
        grid = low[:, None] + (high - low)[:, None] * share
        losses = _evaluate(problem, grid[:, :, None].to(problem.points.dtype))
        return grid, losses, beta * losses - (grid - centre[:, None]).square() / problem.epsilon

    for _ in range(_DOUBLINGS):
        _, _, exponents = on_grid(1025)
        peak = exponents.amax(1)
        left, right = exponents[:, 0] >= peak - _NEGLIGIBLE, exponents[:, -1] >= peak - _NEGLIGIBLE
        if not (left | right).any():
            break
        length = high - low
        low, high = torch.where(left, low - length, low), torch.where(right, high + length, high)
    else:
        raise ValueError("loss must grow slower than |y - x|^2 / (2 tau), or no worst case exists; it does not seem to")
    for _ in range(3):  # towards the part that counts
        grid, _, exponents = on_grid(1025)
        counts = exponents >= exponents.amax(1, keepdim=True) - _NEGLIGIBLE
        first = counts.to(torch.uint8).argmax(1)
        last = grid.shape[1] - 1 - counts.flip(1).to(torch.uint8).argmax(1)
        at = torch.arange(len(low), device=low.device)
        low, high = grid[at, (first - 1).clamp_min(0)], grid[at, (last + 1).clamp_max(grid.shape[1] - 1)]
    grid, losses, exponents = on_grid(_GRID)
    step = (high - low) / (_GRID - 1)

    def log_integral(values: Tensor, spacing: Tensor) -> Tensor:
        return torch.logsumexp(values, 1) + spacing.log() - 0.5 * math.log(math.pi * problem.epsilon)

    value = log_integral(exponents, step) / beta
    coarse = log_integral(exponents[:, ::2], 2.0 * step) / beta
    # The Gaussian mean by the rule of Gauss and Hermite, exact for polynomials.
    nodes, shares = (torch.from_numpy(part).to(low.device) for part in np.polynomial.hermite.hermgauss(100))
    gaussian = centre[:, None] + math.sqrt(problem.epsilon) * nodes
    lower = _evaluate(problem, gaussian[:, :, None].to(problem.points.dtype)) @ shares / math.sqrt(math.pi)
    return GibbsDraws(
        problem=problem,
        rows=rows,
        cloud=grid[:, :, None].to(problem.points.dtype),
        weights=exponents.softmax(1),
        losses=losses,
        value=value,
        variance=(value - coarse).square(),
        ess=torch.full_like(value, float(_GRID)),
        lower=lower,
        lower_variance=torch.zeros_like(lower),
        method="quadrature",
    )


_EXACT = {"tempered": _tempered, "quadrature": _quadrature}
