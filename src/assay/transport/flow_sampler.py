r"""Samples from the worst case that a loss has near the data.

Robust training needs the distribution in a neighbourhood of the data on which the model does worst. With an entropic
Wasserstein penalty that distribution is a mixture of Gibbs laws :math:`p_x`, one for every data point (see
:mod:`assay.transport.flow_problem`), and sampling from it needs nothing but gradients of the loss in the features: no
dual that has to be derived for the model at hand, and no convexity. :class:`FlowSampler` offers the flows that get
there, together with what is used today as their special cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.result import Result
from assay.transport.flow_langevin import (
    ball_ascent,
    density_reaction,
    langevin,
    langevin_reaction,
    weight_reaction,
)
from assay.transport.flow_problem import WorstCaseProblem, check_finite_losses, fresh_generator
from assay.transport.flow_rejection import rejection_draws
from assay.transport.flow_stein import stein_descent
from assay.validation import check_choice, check_integer, check_real

__all__ = ["FLOWS", "FlowSampler", "WorstCase"]

FLOWS = ("wgf", "wfr", "svgd", "rgo", "wrm", "dual", "pgd", "erm")

# One particle is all that these have: they are deterministic.
_SINGLE = ("wrm", "pgd", "erm")
# From here on a kernel density estimate is worth more than the weights.
_DENSITY_PARTICLES, _DENSITY_DIMENSIONS = 50, 10


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class WorstCase(Result):
    """Weighted particles for every data point.

    Parameters
    ----------
    points : torch.Tensor of shape (n, particles, ...)
        Particles, in the shape of the data.
    weights : torch.Tensor of shape (n, particles)
        Their weights; they sum to 1 for every data point.
    losses : torch.Tensor of shape (n, particles)
        Losses at the particles.
    ess : torch.Tensor of shape (n,)
        Effective number of particles, ``1 / sum(weights ** 2)``.
    accept_rate : float or None
        Share of the proposals that rejection sampling kept; None for the other flows.
    flow : str
        The flow that made them.
    density : str or None
        For ``flow="wfr"``, which estimate of the density was used.
    """

    points: Float[Tensor, "n particles ..."]
    weights: Float[Tensor, "n particles"]
    losses: Float[Tensor, "n particles"]
    ess: Float[Tensor, " n"]
    accept_rate: float | None
    flow: str
    density: str | None

    @property
    def mean_loss(self) -> float:
        """Loss on the worst case: weighted over particles, averaged over data points."""
        return float((self.weights.double() * self.losses.double()).sum(1).mean())


class FlowSampler:
    r"""Draw from the worst-case distribution near data points.

    For a loss :math:`f` and every data point :math:`x` it draws from
    :math:`p_x(y) \propto \exp((2\tau f(y) - |y - x|^2)/\varepsilon)`, the law that maximises
    :math:`E f - W_{2,\varepsilon}^2/(2\tau)`. For it to exist, the loss must grow slower than
    :math:`|y|^2/(2\tau)`.

    Parameters
    ----------
    flow : {"wgf", "wfr", "svgd", "rgo", "wrm", "dual", "pgd", "erm"}, default="wgf"
        How to get there.

        - ``"wgf"``: Wasserstein gradient flow, unadjusted Langevin steps.
        - ``"wfr"``: Wasserstein-Fisher-Rao flow, the same with weights, births and deaths.
        - ``"svgd"``: Stein variational gradient descent.
        - ``"rgo"``: exact draws by rejection; needs ``smoothness`` and ``tau * smoothness < 1``.
        - ``"wrm"``: gradient ascent without noise, the robust training of Sinha et al.; one particle.
        - ``"dual"``: Gaussian draws around ``x`` with importance weights, which is the gradient of the Monte-Carlo
          estimate of the Sinkhorn dual.
        - ``"pgd"``: ascent of the loss in a ball of the given ``radius``, adversarial training; one particle.
        - ``"erm"``: the data points themselves, the limit of small ``tau``.
    tau : float
        Strength of the shift.
    epsilon : float
        Entropy. 0 is accepted by ``"wgf"``, ``"wrm"``, ``"pgd"`` and ``"erm"``, for which it makes no noise.
    particles : int, default=4
        Particles for every data point.
    steps : int, optional
        Steps of the flow; 20, or 300 for ``"svgd"``.
    step_size : float, optional
        Step; ``0.1 tau`` for ``"wgf"``, ``"wfr"`` and ``"wrm"``, where it must be less than ``2 tau``;
        ``epsilon / 6`` for ``"svgd"``; for ``"pgd"`` the length of a step, ``2.5 radius / steps``.
    weight_step : float, optional
        Step of the reaction of ``"wfr"``; 0.5 with ``density="kde"``, 0.2 with ``"weights"``.
    density : {"auto", "weights", "kde"}, default="auto"
        How ``"wfr"`` estimates the density of the particles. ``"weights"`` costs nothing and makes the cloud too
        narrow; ``"kde"`` has the right limit and costs O(particles^2) for every data point. ``"auto"`` is ``"kde"``
        for at least 50 particles in at most 10 dimensions. The result records which it was.
    min_weight : float, optional
        Weight below which a particle of ``"wfr"`` is replaced; ``0.2 / particles``.
    smoothness : float, optional
        For ``"rgo"``: a Lipschitz constant of the gradient of the loss in the features.
    max_trials : int, default=1000
        For ``"rgo"``: most proposals for every draw.
    radius : float, optional
        For ``"pgd"``: radius of the ball.
    generator : torch.Generator, optional
        Source of randomness, on the device of the data. By default every call has fresh entropy.

    Raises
    ------
    TypeError, ValueError
        If an option is out of range, or misses what its flow needs.

    Notes
    -----
    One step of ``"wgf"`` is a forward and a backward pass of the loss on ``n * particles`` points. If the gradient of
    the loss is ``L``-Lipschitz with ``tau * L < 1``, the distance of the particles to :math:`p_x` shrinks by the factor
    :math:`1 - h (1 - \tau L)/\tau` in every step of size ``h``, up to a bias that vanishes with ``h``: the default of
    20 steps leaves a tenth of it. :func:`~assay.transport.certify_robustness` measures what is left.

    References
    ----------
    .. [1] Z. Xu, J.-J. Zhu. Gradient Flow Sampler-based Distributionally Robust Optimization. ICML 2026,
       arXiv:2510.25956.
    .. [2] A. Sinha, H. Namkoong, J. Duchi. Certifying Some Distributional Robustness with Principled Adversarial
       Training. ICLR 2018.
    .. [3] J. Wang, R. Gao, Y. Xie. Sinkhorn Distributionally Robust Optimization. Operations Research, 2025.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import FlowSampler
    >>> slope = torch.tensor([0.5, -0.3])
    >>> sampler = FlowSampler("wgf", tau=1.0, epsilon=0.3, particles=2000, steps=60,
    ...                       generator=torch.Generator().manual_seed(0))
    >>> worst = sampler.sample(lambda x, y: x @ slope, torch.zeros(1, 2))
    >>> worst.points.shape
    torch.Size([1, 2000, 2])
    >>> worst.points.mean((0, 1)).round(decimals=1)  # the law is Gaussian around x + tau * slope
    tensor([ 0.5000, -0.3000])
    """

    def __init__(
        self,
        flow: str = "wgf",
        *,
        tau: float,
        epsilon: float,
        particles: int = 4,
        steps: int | None = None,
        step_size: float | None = None,
        weight_step: float | None = None,
        density: str = "auto",
        min_weight: float | None = None,
        smoothness: float | None = None,
        max_trials: int = 1000,
        radius: float | None = None,
        generator: torch.Generator | None = None,
    ):
        self.flow = check_choice(flow, "flow", FLOWS)
        self.tau = check_real(tau, "tau", above=0)
        self.epsilon = check_real(epsilon, "epsilon", minimum=0)
        if not self.epsilon and flow not in ("wgf", *_SINGLE):
            raise ValueError(f"epsilon must be greater than 0 for flow={flow!r}, got 0")
        self.particles = check_integer(particles, "particles", minimum=1)
        self.steps = check_integer((300 if flow == "svgd" else 20) if steps is None else steps, "steps", minimum=1)
        self.radius = self._check_needed(radius, "radius", "pgd")
        self.smoothness = self._check_needed(smoothness, "smoothness", "rgo")
        if flow == "rgo" and self.smoothness is not None and self.tau * self.smoothness >= 1.0:
            raise ValueError(
                f"tau * smoothness must be less than 1 for flow='rgo', got {self.tau * self.smoothness:g}: "
                "the worst case need not exist, or is not log-concave"
            )
        self.max_trials = check_integer(max_trials, "max_trials", minimum=1)
        self.step_size = self._check_step(step_size)
        self.density = check_choice(density, "density", ("auto", "weights", "kde"))
        if weight_step is not None:
            weight_step = check_real(weight_step, "weight_step", above=0)
        self.weight_step = weight_step
        if min_weight is not None:
            min_weight = check_real(min_weight, "min_weight", minimum=0, below=1.0 / self.particles)
        self.min_weight = min_weight
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
        self.generator = generator

    def sample(self, loss: Callable[..., Any], x: Any, y: Any = None) -> WorstCase:
        """Draw particles for every data point.

        Parameters
        ----------
        loss : callable
            ``loss(features, y)`` returns one loss per sample and is differentiable in the features. The caller decides
            about dropout and the like: put a model into ``eval()`` first. Parameters get no gradients.
        x : torch.Tensor or array_like of shape (n, ...)
            Data points.
        y : torch.Tensor or array_like of shape (n, ...), optional
            Labels.

        Returns
        -------
        WorstCase

        Raises
        ------
        TypeError
            If the loss does not return a tensor, or the data are not numeric.
        ValueError
            If the loss returns something else than one finite value per sample, cannot be differentiated, or fails
            without labels; if data have nan or infinite entries; if the smoothness that was promised is exceeded.
        RuntimeError
            If rejection sampling does not end in ``max_trials`` proposals.
        """
        problem = WorstCaseProblem(loss, x, y, self.tau, self.epsilon)
        return self.sample_problem(problem)

    def sample_problem(self, problem: WorstCaseProblem) -> WorstCase:
        """Draw particles for a loss and data that have been checked."""
        generator = fresh_generator(self.generator, problem.points.device)
        # A wrong loss is found before the flow starts.
        check_finite_losses(problem.losses(problem.start(1)))
        count = 1 if self.flow in _SINGLE else self.particles
        log_weights, accept_rate, density = None, None, None
        if self.flow in ("wgf", "wrm"):
            noise = 0.0 if self.flow == "wrm" else self._noise
            cloud = langevin(problem, count, self.steps, self.step_size, noise, generator)
        elif self.flow == "wfr":
            density = self._density(problem.points.shape[1])
            cloud, log_weights = self._react(problem, density, generator)
        elif self.flow == "svgd":
            cloud = stein_descent(problem, count, self.steps, self.step_size, generator)
        elif self.flow == "rgo":
            cloud, accept_rate = rejection_draws(problem, count, self.smoothness, self.max_trials, generator)
        elif self.flow == "dual":
            cloud = problem.blur(count, generator)
        elif self.flow == "pgd":
            cloud = ball_ascent(problem, self.steps, self.step_size, self.radius)
        else:
            cloud = problem.start(1)
        losses = problem.losses(cloud)
        check_finite_losses(losses)
        if self.flow == "dual":
            log_weights = (problem.inverse_temperature * losses).log_softmax(1)
        weights = torch.full_like(losses, 1.0 / count) if log_weights is None else log_weights.exp()
        return WorstCase(
            points=cloud.reshape(*cloud.shape[:2], *problem.feature_shape),
            weights=weights,
            losses=losses,
            ess=1.0 / weights.square().sum(1),
            accept_rate=accept_rate,
            flow=self.flow,
            density=density,
        )

    def __repr__(self) -> str:
        return f"FlowSampler({self.flow!r}, tau={self.tau:g}, epsilon={self.epsilon:g}, particles={self.particles})"

    def _react(
        self, problem: WorstCaseProblem, density: str, generator: torch.Generator
    ) -> tuple[Float[Tensor, "n particles d"], Float[Tensor, "n particles"]]:
        beta = problem.inverse_temperature
        rule, default = (density_reaction, 0.5) if density == "kde" else (weight_reaction, 0.2)
        weight_step = default if self.weight_step is None else self.weight_step
        if density == "weights" and weight_step >= beta:
            raise ValueError(f"weight_step must be less than 2 tau / epsilon = {beta:g}, got {weight_step:g}")
        min_weight = 0.2 / self.particles if self.min_weight is None else self.min_weight
        return langevin_reaction(
            problem,
            self.particles,
            self.steps,
            self.step_size,
            self._noise,
            rule(weight_step, beta),
            min_weight,
            generator,
        )

    @property
    def _noise(self) -> float:
        return math.sqrt(self.step_size * self.epsilon / self.tau)

    def _density(self, d: int) -> str:
        if self.density != "auto":
            return self.density
        return "kde" if self.particles >= _DENSITY_PARTICLES and d <= _DENSITY_DIMENSIONS else "weights"

    def _check_needed(self, number: float | None, name: str, flow: str) -> float | None:
        if number is None:
            if self.flow == flow:
                raise ValueError(f"{name} must be given for flow={flow!r}, got None")
            return None
        # A linear loss has smoothness 0.
        return check_real(number, name, minimum=0)

    def _check_step(self, step_size: float | None) -> float:
        if step_size is None:
            if self.flow == "svgd":
                return self.epsilon / 6.0
            if self.flow == "pgd" and self.radius is not None:
                return 2.5 * self.radius / self.steps
            return 0.1 * self.tau
        step = check_real(step_size, "step_size", above=0)
        if self.flow in ("wgf", "wfr", "wrm") and step >= 2.0 * self.tau:
            raise ValueError(f"unstable step: step_size must be less than 2 tau = {2.0 * self.tau:g}, got {step:g}")
        return step
