r"""The dual value: how large the loss gets in the worst case, as an integral over a Gaussian.

Eliminating the worst-case distribution from the penalised problem leaves

.. math:: V = \frac1n \sum_x \frac{\varepsilon}{2\tau} \log E_{y \sim N(x, (\varepsilon/2) I)}
          \exp\bigl(2\tau f(y)/\varepsilon\bigr) .

Duality is exact, whatever the loss, so this is what a sampler of the worst case has to agree with. Three estimates are
offered. Importance weights on Gaussian draws are what the dual methods use; their effective sample size says when they
fail, which is for small :math:`\varepsilon`. Tempering goes from the Gaussian to the worst case in stages that each
keep half of the draws effective. In one dimension a grid gives all digits.

Two means enclose the value: that of the loss under the Gaussian is below it (Jensen), that under the worst case above
it (Gibbs' variational principle). The loss at the data itself is a lower bound for convex losses only.
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

from assay.certificate import Certificate
from assay.result import Result
from assay.transport.flow_problem import WorstCaseProblem, check_finite_losses, fresh_generator, normal_like
from assay.validation import check_choice, check_integer, check_real

__all__ = ["GibbsDraws", "WorstCaseValue", "gibbs_draws", "worst_case_value"]

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
_QUADRATURE_TOL = 1e-8


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class WorstCaseValue(Result):
    """Estimate of the dual value, and the two means that enclose it.

    Parameters
    ----------
    value : float
        Estimate of ``V``. The logarithm of a mean is biased downwards.
    standard_error : float
        Its standard error by the delta method, or the error of the quadrature.
    ess : numpy.ndarray of shape (n,)
        Effective number of draws for every data point: of the importance weights, the least over the stages of
        tempering, or the points of the grid.
    lower, upper : float
        Mean loss under the Gaussian, and under the worst case.
    lower_error, upper_error : float
        Their standard errors.
    plain : float
        Mean loss at the data. It is no bound unless the loss is convex.
    transport : float
        Mean squared distance of the worst case from the data.
    values : numpy.ndarray of shape (n,)
        ``V`` for every data point.
    methods : tuple of str
        How it was computed for every data point.
    """

    value: float
    standard_error: float
    ess: Float[np.ndarray, " n"]
    lower: float
    upper: float
    lower_error: float
    upper_error: float
    plain: float
    transport: float
    values: Float[np.ndarray, " n"]
    methods: tuple[str, ...]


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


def worst_case_value(
    loss: Callable[..., Any],
    x: Any,
    y: Any = None,
    *,
    tau: float,
    epsilon: float,
    draws: int = 4096,
    method: str = "auto",
    generator: torch.Generator | None = None,
) -> WorstCaseValue:
    r"""Estimate the dual value of the worst case.

    That is :math:`\max_\rho E_\rho f - W_{2,\varepsilon}^2(\rho, \hat\rho) / 2\tau`, with the empirical law
    :math:`\hat\rho` of the data.

    Parameters
    ----------
    loss : callable
        ``loss(features, y)`` returns one loss per sample; convex or not.
    x : torch.Tensor or array_like of shape (n, ...)
        Data points.
    y : torch.Tensor or array_like of shape (n, ...), optional
        Labels.
    tau : float
        Strength of the shift.
    epsilon : float
        Entropy, greater than 0.
    draws : int, default=4096
        Draws for every data point.
    method : {"auto", "importance", "tempered", "quadrature"}, default="auto"
        ``"auto"`` weights Gaussian draws by importance, and where fewer than 50 are effective turns to quadrature in
        one dimension and to tempering, with an eighth of the draws, in more.
    generator : torch.Generator, optional
        Source of randomness, on the device of the data; by default fresh entropy.

    Returns
    -------
    WorstCaseValue
        With the certificate that enough draws are effective for every data point, or for quadrature that the digits
        of the grid have settled. Where it fails the value is not known.

    Raises
    ------
    TypeError, ValueError
        If the loss or the data are not of that form, an option is out of range, or a loss is not finite.

    Notes
    -----
    ``draws`` evaluations of the loss for every data point; tempering has 5, with gradients, for every draw and stage.
    Losses are evaluated in the precision of the data, everything else is float64.

    References
    ----------
    .. [1] Z. Xu, J.-J. Zhu. Gradient Flow Sampler-based Distributionally Robust Optimization. ICML 2026,
       arXiv:2510.25956.
    .. [2] J. Wang, R. Gao, Y. Xie. Sinkhorn Distributionally Robust Optimization. Operations Research, 2025.
    .. [3] P. Del Moral, A. Doucet, A. Jasra. Sequential Monte Carlo Samplers. Journal of the Royal Statistical
       Society B, 2006.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import worst_case_value
    >>> def logistic(x, y):
    ...     return torch.nn.functional.softplus(-2.0 * x[:, 0])
    >>> answer = worst_case_value(logistic, [[0.3]], tau=0.5, epsilon=0.2, method="quadrature")
    >>> round(answer.value, 6), round(answer.upper, 6)
    (0.735622, 1.172058)
    """
    problem = WorstCaseProblem(loss, x, y, tau, check_real(epsilon, "epsilon", above=0))
    check_finite_losses(problem.losses(problem.start(1)))
    random = fresh_generator(generator, problem.points.device)
    parts = list(gibbs_draws(problem, draws, method, random, summary=_summary))
    order = np.argsort(np.concatenate([part["rows"] for part in parts]))
    columns = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
    methods = tuple(str(used) for used in columns["method"])
    n = len(problem)
    return WorstCaseValue(
        value=float(columns["value"].mean()),
        standard_error=math.sqrt(columns["variance"].sum()) / n,
        ess=columns["ess"],
        lower=float(columns["lower"].mean()),
        upper=float(columns["upper"].mean()),
        lower_error=math.sqrt(columns["lower_variance"].sum()) / n,
        upper_error=math.sqrt(columns["upper_variance"].sum()) / n,
        plain=float(problem.losses(problem.start(1)).double().mean()),
        transport=float(columns["transport"].mean()),
        values=columns["value"],
        methods=methods,
        certificates=tuple(value_certificates(methods, columns["ess"], columns["variance"])),
    )


def value_certificates(
    methods: tuple[str, ...], ess: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"]
) -> Iterator[Certificate]:
    """Whether the value is known: enough effective draws, and settled digits of quadrature."""
    grid = np.array([method == "quadrature" for method in methods])
    if not grid.all():
        yield Certificate("least effective number of draws of a data point", ess[~grid].min(), LEAST_ESS, ">=")
    if grid.any():
        yield Certificate("change of the value when the grid is halved", np.sqrt(variance[grid].max()), _QUADRATURE_TOL)


def _summary(draws: GibbsDraws) -> dict[str, Any]:
    transport = (draws.weights * draws.problem.squared_moves(draws.cloud).double()).sum(1)
    tensors = {
        "rows": draws.rows,
        "value": draws.value,
        "variance": draws.variance,
        "ess": draws.ess,
        "lower": draws.lower,
        "lower_variance": draws.lower_variance,
        "upper": draws.upper,
        "upper_variance": draws.upper_variance,
        "transport": transport,
    }
    numbers = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    return numbers | {"method": np.full(len(draws.value), draws.method)}


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
