r"""Sets that users write themselves: an object with four methods on tensors is enough.

A missing method is reported by name when the set is given, and that the maps undo each other is checked at the first
particles, so that a mistake does not show as a wrong law.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.transport.convex_domain import Domain
from assay.validation import as_float_array

__all__ = ["UserDomain", "as_domain"]


class UserDomain(Domain):
    """A set that a user wrote, see :func:`as_domain`.

    Parameters
    ----------
    given : object
        With the methods ``mirror``, ``inverse``, ``noise`` and ``slack``.
    """

    def __init__(self, given: Any):
        super().__init__()
        self.given = given
        self.dimension = getattr(given, "dimension", None)

    def __repr__(self) -> str:
        return type(self.given).__name__

    @property
    def degrees_of_freedom(self) -> int | None:
        """Dimension of the set itself, if the user said it."""
        return getattr(self.given, "degrees_of_freedom", self.dimension)

    def with_barrier(self, barrier: str) -> Domain:
        """Refused: the object is the barrier."""
        raise ValueError(f"barrier must be None for a set with a mirror map of its own, got {barrier!r}")

    def check_particles(self, x: Tensor, name: str) -> None:
        """As for every set, and that the maps fit together at these particles."""
        super().check_particles(x, name)
        there = self._mirror(x)
        back = self._inverse(there)
        tolerance = 10.0 * torch.finfo(x.dtype).eps ** 0.5
        error = float((back - x).abs().max() / (1.0 + x.abs().max()))
        if not error <= tolerance:
            raise ValueError(f"inverse of {self!r} must undo mirror, got a relative error of {error:.3g}")
        noise = self._noise(x, torch.ones(self._noise_shape(x.shape), dtype=x.dtype, device=x.device))
        if noise.shape != there.shape or not bool(torch.isfinite(noise).all()):
            raise ValueError(
                f"noise of {self!r} must be finite and have the shape of the dual coordinates {tuple(there.shape)}, "
                f"got {tuple(noise.shape)}"
            )

    def _mirror(self, x: Tensor) -> Tensor:
        return self._called("mirror", x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._called("inverse", y)

    def _noise(self, x: Tensor, xi: Tensor) -> Tensor:
        return self._called("noise", x, xi)

    def _slack(self, x: Tensor) -> Tensor:
        slack = self._called("slack", x)
        if slack.shape != x.shape[:1]:
            raise ValueError(f"slack of {self!r} must have the shape {tuple(x.shape[:1])}, got {tuple(slack.shape)}")
        return slack

    def _project(self, x: Tensor) -> Tensor:
        return self._called("project", x) if hasattr(self.given, "project") else super()._project(x)

    def _dual_gradient(self, gradient: Tensor) -> Tensor:
        return self._called("dual_gradient", gradient) if hasattr(self.given, "dual_gradient") else gradient

    def _noise_shape(self, shape: torch.Size) -> tuple[int, ...]:
        return tuple(self.given.noise_shape(shape)) if hasattr(self.given, "noise_shape") else tuple(shape)

    def _sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        if not hasattr(self.given, "sample"):
            return super()._sample(n, rng)
        return as_float_array(self.given.sample(n, rng), "sample", ndim=2)

    def _log_density(self, x: np.ndarray) -> np.ndarray:
        if not hasattr(self.given, "log_density"):
            return super()._log_density(x)
        return as_float_array(self.given.log_density(x), "log_density", ndim=1)

    def _called(self, method: str, *arguments: Tensor) -> Tensor:
        answer = getattr(self.given, method)(*arguments)
        if not isinstance(answer, Tensor):
            raise TypeError(f"{method} of {self!r} must return a torch.Tensor, got {type(answer).__name__}")
        # What comes back is written to, which must not reach the particles.
        return answer.clone() if any(answer.data_ptr() == argument.data_ptr() for argument in arguments) else answer


def as_domain(given: Any, name: str = "domain") -> Domain:
    """Accept a set: one of ours, or an object that a user wrote.

    Parameters
    ----------
    given : Domain or object
        An object has four methods on tensors, a particle per row: ``mirror(x)``, ``inverse(y)``, ``noise(x, xi)`` and
        ``slack(x)`` (one number per particle, positive exactly inside). It may have ``project(x)``,
        ``dual_gradient(g)`` and ``noise_shape(shape)``; the arrays ``sample(n, rng)`` and ``log_density(x)`` of a law
        to check the fixed point with; and numbers ``dimension`` and ``degrees_of_freedom``.
    name : str, default="domain"
        Name of the argument, for the message.

    Returns
    -------
    Domain

    Raises
    ------
    TypeError
        That names the methods which are missing.

    Examples
    --------
    >>> from assay.transport.mirror_user_domain import as_domain
    >>> class HalfLine:
    ...     def mirror(self, x):
    ...         return x - 1 / x
    >>> as_domain(HalfLine())
    Traceback (most recent call last):
        ...
    TypeError: domain must have the methods mirror, inverse, noise, slack, but HalfLine lacks inverse, noise, slack
    """
    if isinstance(given, Domain):
        return given
    required = ("mirror", "inverse", "noise", "slack")
    missing = [method for method in required if not callable(getattr(given, method, None))]
    if missing or isinstance(given, type):
        kind = given.__name__ + " (a class, not an object)" if isinstance(given, type) else type(given).__name__
        raise TypeError(
            f"{name} must have the methods {', '.join(required)}, but {kind} lacks {', '.join(missing or required)}"
        )
    return UserDomain(given)
