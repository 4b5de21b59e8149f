r"""The inner problem of distributionally robust training: where should each data point move to hurt most?

A model with loss :math:`f` is to be robust to moves of its features. The penalised entropic Wasserstein problem is

.. math:: \max_\rho\; E_\rho f - \frac{1}{2\tau} W_{2,\varepsilon}^2(\rho, \hat\rho),

and its maximiser is a mixture, over the data points :math:`x`, of the Gibbs laws

.. math:: p_x(y) \propto \exp\bigl((2\tau / \varepsilon)\, r(y)\bigr), \qquad
          r(y) = f(y) - \frac{|y - x|^2}{2\tau} .

:class:`WorstCaseProblem` holds the loss, the data and the two numbers, and evaluates :math:`f` and the gradient of
:math:`r` on clouds of particles, many for every data point, in one call of the loss. All samplers, the dual value and
the certificate are written on top of it. It is also where a loss that a user wrote is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.validation import as_float_array, check_real

__all__ = ["WorstCaseProblem", "fresh_generator", "normal_like"]

# Dimensions that an array of features may have: samples first.
_DIMENSIONS = tuple(range(2, 9))


class WorstCaseProblem:
    """A loss, data points and the penalty on moving them.

    Parameters
    ----------
    loss : callable
        ``loss(features, y)`` maps features of shape ``(n, ...)`` and their labels to ``n`` losses and is differentiable
        in the features. It may be called with every label repeated.
    x : torch.Tensor or array_like of shape (n, ...)
        Data points. Arrays become float64 tensors, integer tensors get the default dtype of torch.
    y : torch.Tensor, array_like or None
        Labels, first dimension ``n``; they do not move.
    tau : float
        Strength of the shift: moving by ``|y - x|`` costs ``|y - x|^2 / (2 tau)``.
    epsilon : float
        Entropy of the worst case; 0 is the deterministic one.

    Attributes
    ----------
    points : torch.Tensor of shape (n, d)
        Data points with all feature dimensions in one.
    inverse_temperature : float
        ``2 tau / epsilon``, the factor of ``r`` in the exponent.

    Raises
    ------
    TypeError, ValueError
        If something is not of that form.

    Examples
    --------
    >>> import torch
    >>> from assay.transport.flow_problem import WorstCaseProblem
    >>> problem = WorstCaseProblem(lambda x, y: x.sum(1), torch.zeros(3, 2), None, tau=0.5, epsilon=0.1)
    >>> losses, ascent = problem.losses_and_ascent(torch.ones(3, 4, 2))
    >>> losses.shape, ascent[0, 0]  # gradient of the loss less (y - x) / tau
    (torch.Size([3, 4]), tensor([-1., -1.]))
    """

    def __init__(self, loss: Callable[..., Any], x: Any, y: Any, tau: float, epsilon: float):
        if not callable(loss):
            raise TypeError(f"loss must be a callable loss(features, y), got {type(loss).__name__}")
        self.loss = loss
        self.tau = check_real(tau, "tau", above=0)
        self.epsilon = check_real(epsilon, "epsilon", minimum=0)
        features = as_features(x)
        self.feature_shape = tuple(features.shape[1:])
        self.points = features.flatten(1)
        self.labels = as_labels(y, features)
        self._repeated: tuple[int, Any] = (1, self.labels)

    @property
    def inverse_temperature(self) -> float:
        """``2 tau / epsilon``, infinite without entropy."""
        return 2.0 * self.tau / self.epsilon if self.epsilon else math.inf

    def __len__(self) -> int:
        return len(self.points)

    def rows(self, chosen: slice | Tensor) -> WorstCaseProblem:
        """The same problem on some of the data points."""
        part = object.__new__(WorstCaseProblem)
        part.__dict__.update(self.__dict__)
        part.points = self.points[chosen]
        part.labels = None if self.labels is None else self.labels[chosen]
        part._repeated = (1, part.labels)
        return part

    def start(self, particles: int) -> Float[Tensor, "n particles d"]:
        """``particles`` copies of every data point."""
        return self.points[:, None, :].repeat(1, particles, 1)

    def blur(self, particles: int, generator: torch.Generator) -> Float[Tensor, "n particles d"]:
        """Draws from the Gaussian of variance ``epsilon / 2`` around every data point."""
        cloud = self.start(particles)
        return cloud.add_(normal_like(cloud, generator), alpha=math.sqrt(0.5 * self.epsilon))

    def losses(self, cloud: Float[Tensor, "n particles d"]) -> Float[Tensor, "n particles"]:
        """Losses of particles, without gradients."""
        with torch.no_grad():
            return self._evaluate(cloud)

    def losses_and_ascent(
        self, cloud: Float[Tensor, "n particles d"]
    ) -> tuple[Float[Tensor, "n particles"], Float[Tensor, "n particles d"]]:
        """Losses of particles, and the gradient of ``r`` at them."""
        losses, gradient = self.losses_and_gradient(cloud)
        # The gradient of a sum is an expanded tensor, which cannot be written to.
        ascent = gradient.sub(cloud, alpha=1.0 / self.tau)
        return losses, ascent.add_(self.points[:, None, :], alpha=1.0 / self.tau)

    def losses_and_gradient(
        self, cloud: Float[Tensor, "n particles d"]
    ) -> tuple[Float[Tensor, "n particles"], Float[Tensor, "n particles d"]]:
        """Losses of particles, and their gradient."""
        with torch.enable_grad():
            leaf = cloud.detach().requires_grad_()
            losses = self._evaluate(leaf)
            if not losses.requires_grad:
                raise ValueError("loss must be differentiable in the features, got values without a gradient")
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradient

    def reward(
        self, losses: Float[Tensor, "n particles"], cloud: Float[Tensor, "n particles d"]
    ) -> Float[Tensor, "n particles"]:
        """``r``: the loss less the price of the move."""
        return losses - self.squared_moves(cloud) / (2.0 * self.tau)

    def squared_moves(self, cloud: Float[Tensor, "n particles d"]) -> Float[Tensor, "n particles"]:
        """Squared distances of particles to their data points."""
        return (cloud - self.points[:, None, :]).square().sum(-1)

    def features(self, cloud: Float[Tensor, "n particles d"]) -> Tensor:
        """Particles of all data points in one batch, in the shape of the data."""
        return cloud.reshape(-1, *self.feature_shape)

    def repeated_labels(self, particles: int) -> Any:
        """Labels that belong to :meth:`features`."""
        if self._repeated[0] != particles:
            labels = None if self.labels is None else self.labels.repeat_interleave(particles, dim=0)
            self._repeated = (particles, labels)
        return self._repeated[1]

    def _evaluate(self, cloud: Tensor) -> Tensor:
        particles = cloud.shape[1]
        losses = evaluate_loss(self.loss, self.features(cloud), self.repeated_labels(particles))
        return losses.reshape(len(cloud), particles)


def evaluate_loss(loss: Callable[..., Any], features: Tensor, labels: Any) -> Float[Tensor, " samples"]:
    """Call a loss and check that there is one value per sample."""
    try:
        values = loss(features, labels)
    except Exception as error:
        if labels is None:
            raise ValueError(f"y must be given: without labels the loss fails ({error})") from error
        raise
    if not isinstance(values, Tensor):
        raise TypeError(f"loss must return a tensor with one value per sample, got {type(values).__name__}")
    if values.shape != (len(features),):
        raise ValueError(
            f"loss must return one value per sample, a tensor of shape ({len(features)},), got shape "
            f"{tuple(values.shape)}; losses of torch do so with reduction='none'"
        )
    if not values.dtype.is_floating_point:
        raise TypeError(f"loss must return real numbers, got dtype {values.dtype}")
    return values


def check_finite_losses(losses: Tensor) -> None:
    """Refuse losses that are nan or infinite, and say how many are."""
    finite = torch.isfinite(losses)
    if not finite.all():
        bad = losses.numel() - int(finite.sum())
        raise ValueError(f"loss must be finite, got {bad} nan or infinite values of {losses.numel()}")


def as_features(x: Any) -> Tensor:
    """Convert data points to a floating-point tensor that the caller does not share."""
    if not isinstance(x, Tensor):
        return torch.from_numpy(np.array(as_float_array(x, "x", ndim=_DIMENSIONS)))
    if x.is_complex():
        raise TypeError(f"x must be a tensor of real numbers, got dtype {x.dtype}")
    features = x.detach()
    if not features.is_floating_point():
        features = features.to(torch.get_default_dtype())
    if features.ndim < 2 or features.numel() == 0:
        raise ValueError(f"x must have shape (n, ...) with at least 1 feature, got shape {tuple(x.shape)}")
    finite = torch.isfinite(features)
    if not finite.all():
        raise ValueError(f"x must be finite, got {features.numel() - int(finite.sum())} nan or infinite entries")
    return features


def as_labels(y: Any, features: Tensor) -> Tensor | None:
    """Convert labels to a tensor, one entry per data point."""
    if y is None:
        return None
    if isinstance(y, Tensor):
        labels = y
    else:
        array = np.array(y)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"y must be numeric, got dtype {array.dtype}")
        labels = torch.from_numpy(array).to(features.device)
    if labels.ndim == 0 or len(labels) != len(features):
        raise ValueError(f"y must have one label for each of the {len(features)} points, got {tuple(labels.shape)}")
    return labels


def fresh_generator(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """The generator itself if it lives where it is needed, or a new one with fresh entropy."""
    if generator is None:
        generator = torch.Generator(device=device)
        generator.seed()
    elif generator.device.type != device.type:
        raise ValueError(f"generator must be on the device of x, {device.type}, got one on {generator.device.type}")
    return generator


def normal_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in the shape, dtype and place of a tensor."""
    return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)
