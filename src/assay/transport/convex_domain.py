r"""What a convex set must know to be the home of mirror particles: the interface of all sets.

A barrier :math:`\varphi` of a convex set grows without bound at its boundary. Its gradient, the *mirror map*
:math:`y = \nabla\varphi(x)`, takes the open set to a space without walls, in which a step of any length can be made,
and :math:`x = \nabla\varphi^*(y)` comes back inside. Langevin dynamics in :math:`y` needs Gaussian noise whose
covariance is the Hessian :math:`\nabla^2\varphi(x)`; every set of this library makes it in closed form, without a
matrix square root.

Particles are rows. Every public method takes arrays or tensors and answers in kind.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from assay.validation import as_float_array, as_generator, check_choice, check_integer

__all__ = ["Domain"]


class Domain(abc.ABC):
    r"""A convex set with a barrier.

    Derive from it for a set of your own whose steps are to be made fast; for everything else an object with the
    methods ``mirror``, ``inverse``, ``noise`` and ``slack`` will do, see
    :func:`~assay.transport.mirror_user_domain.as_domain`.

    Parameters
    ----------
    barrier : str
        One of ``barriers``.

    Attributes
    ----------
    barriers : tuple of str
        The barriers there are, the default first.
    barrier : str
        The one that is used.
    dimension : int or None
        Coordinates of a particle; None if any number will do. Matrices have ``dimension`` rows.
    degrees_of_freedom : int or None
        Dimension of the set itself: one less than ``dimension`` for a simplex.
    repulsion : float
        Strength of a term of the functional that keeps particles off the boundary, as far as the user declared it.
    """

    barriers: ClassVar[tuple[str, ...]] = ("log",)
    particle_ndim: ClassVar[int] = 1
    dimension: int | None = None
    repulsion: float = 0.0

    def __init__(self, barrier: str = "log"):
        self.barrier = check_choice(barrier, "barrier", self.barriers)

    # What a set must define, on tensors.

    @abc.abstractmethod
    def _mirror(self, x: Tensor) -> Tensor:
        """Dual coordinates."""

    @abc.abstractmethod
    def _inverse(self, y: Tensor) -> Tensor:
        """The point strictly inside with these dual coordinates."""

    @abc.abstractmethod
    def _noise(self, x: Tensor, xi: Tensor) -> Tensor:
        """Linear image of standard normal ``xi`` whose covariance is the Hessian of the barrier at ``x``."""

    @abc.abstractmethod
    def _slack(self, x: Tensor) -> Tensor:
        """Distance to the boundary or a multiple of it, one per particle; positive exactly inside."""

    # What it may define.

    def _project(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{self!r} has no projection")

    def _inverse_near(self, y: Tensor, near: Tensor) -> Tensor:
        """The same as :meth:`_inverse`, with a point close to the answer."""
        return self._inverse(y)

    def _diffuse(self, y: Tensor, xi: Tensor, scale: float, near: Tensor) -> Tensor:
        """Dual coordinates after noise with standard deviation ``scale``, from ``y``, which may be overwritten."""
        return y.add_(self._noise(self._inverse_near(y, near), xi), alpha=scale)

    def _dual_gradient(self, gradient: Tensor) -> Tensor:
        """A gradient with respect to the coordinates of a particle as a change of its dual coordinates."""
        return gradient

    def _exact_slack(self, x: Tensor) -> Tensor:
        """Slack in float64 of particles in any precision."""
        return self._slack(x.double())

    def _tangent(self, direction: Tensor) -> Tensor:
        """Orthogonal projection of a direction on those that do not leave the affine hull."""
        return direction

    def _noise_shape(self, shape: torch.Size) -> tuple[int, ...]:
        """Shape of the normal numbers that the noise of particles of this shape takes."""
        return tuple(shape)

    def _sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        raise NotImplementedError(f"{self!r} cannot be sampled")

    def _start(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self._sample(n, rng)

    def _log_density(self, x: np.ndarray) -> np.ndarray:
        """Logarithm of the density of what ``sample`` draws, up to a constant."""
        return np.zeros(len(x))

    @property
    def degrees_of_freedom(self) -> int | None:
        """Dimension of the set itself."""
        return self.dimension

    # What users call.

    def mirror(self, x: ArrayLike | Tensor) -> Any:
        """Dual coordinates of particles.

        Parameters
        ----------
        x : array_like or Tensor of shape (particles, coordinates)
            Strictly inside.

        Returns
        -------
        numpy.ndarray or Tensor
            The gradient of the barrier, a row per particle.
        """
        return self._in_kind(self._mirror, x)

    def inverse(self, y: ArrayLike | Tensor) -> Any:
        """Particles with the dual coordinates ``y``, strictly inside for finite ``y``."""
        return self._in_kind(self._inverse, y)

    def noise(self, x: ArrayLike | Tensor, xi: ArrayLike | Tensor) -> Any:
        """Noise in dual coordinates with the covariance of the barrier's Hessian.

        Parameters
        ----------
        x : array_like or Tensor of shape (particles, coordinates)
            Where the particles are.
        xi : array_like or Tensor of shape ``noise_shape(x)``
            Independent standard normal numbers.
        """
        return self._in_kind(self._noise, x, xi)

    def noise_shape(self, x: ArrayLike | Tensor) -> tuple[int, ...]:
        """Shape of the normal numbers that :meth:`noise` takes."""
        return self._noise_shape(torch.Size(np.shape(x)))

    def slack(self, x: ArrayLike | Tensor) -> Any:
        """How far inside each particle is: positive inside, zero on the boundary, negative outside."""
        return self._in_kind(self._slack, x)

    def contains(self, x: ArrayLike | Tensor) -> Any:
        """Whether each particle is strictly inside."""
        return self.slack(x) > 0

    def project(self, x: ArrayLike | Tensor) -> Any:
        """Nearest points of the closed set."""
        return self._in_kind(self._project, x)

    def sample(self, n: int, rng: Any = None) -> np.ndarray:
        """Draw from a law on the set that has a density everywhere inside: the uniform one if there is one.

        Parameters
        ----------
        n : int
            Number of points.
        rng : None, int or numpy.random.Generator, optional
            For the draws.
        """
        return self._sample(check_integer(n, "n", minimum=1), as_generator(rng))

    def start(self, n: int, rng: Any = None) -> np.ndarray:
        """Draw particles to start from, away from the boundary."""
        return self._start(check_integer(n, "n", minimum=1), as_generator(rng))

    def with_barrier(self, barrier: str) -> Domain:
        """The same set with another barrier."""
        other = copy.copy(self)
        other.barrier = check_choice(barrier, "barrier", self.barriers)
        return other

    def check_particles(self, x: Tensor, name: str) -> None:
        """Refuse particles that do not have the right shape or are not strictly inside.

        Raises
        ------
        ValueError
            With the number of particles that are outside.
        """
        shape = tuple(x.shape)
        if x.ndim != self.particle_ndim + 1 or (
            self.dimension is not None and any(side != self.dimension for side in shape[1:])
        ):
            sides = ", ".join(["particles"] + [str(self.dimension or "coordinates")] * self.particle_ndim)
            raise ValueError(f"{name} must have the shape ({sides}) to be in {self!r}, got {shape}")
        if 0 in shape:
            raise ValueError(f"{name} must not be empty, got shape {shape}")
        n_outside = int((~(self._slack(x) > 0)).sum())
        if n_outside:
            raise ValueError(
                f"{name} must be strictly inside {self!r}, got {n_outside} of {shape[0]} particles outside"
            )

    def _in_kind(self, method: Callable[..., Tensor], *arguments: ArrayLike | Tensor) -> Any:
        if isinstance(arguments[0], Tensor):
            return method(*arguments)
        dims = self.particle_ndim + 1
        tensors = (torch.tensor(as_float_array(argument, "points", ndim=dims)) for argument in arguments)
        return method(*tensors).numpy()

    def _need_dimension(self) -> int:
        if self.dimension is None:
            raise ValueError(f"{self!r} must be given its number of coordinates to be sampled")
        return self.dimension
