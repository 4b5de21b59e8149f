r"""Sets whose barrier has closed forms in every coordinate or in the norm: boxes, orthants and balls.

The simplex and its matrices are in :mod:`assay.transport.mirror_simplex`, polytopes in
:mod:`assay.transport.mirror_polytope`; :mod:`assay.transport.mirror_user_domain` accepts sets that users write
themselves. What a set must know is in :mod:`assay.transport.convex_domain`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from assay.transport.convex_domain import Domain
from assay.validation import as_float_array, check_integer, check_real

__all__ = ["Ball", "Box", "Orthant"]

# Where the entropy's dual coordinates are cut: the smallest share is then exp(-34), about the rounding of a float64.
ENTROPY_CLIP = 34.0


class Box(Domain):
    r"""A box :math:`\{x : l_i < x_i < u_i\}`.

    Parameters
    ----------
    lower, upper : float or array_like of shape (d,), default=0 and 1
        Finite bounds.
    d : int, optional
        Number of coordinates, if the bounds are numbers.
    barrier : {"log", "entropy"}, default="log"
        :math:`-\sum \log(x-l) + \log(u-x)`, or the entropy of the two shares of the side, which is biased unless the
        target vanishes at the walls.
    repulsion : float, default=0.0
        Declares that the functional has a term :math:`\beta\,E\sum \log(1/(x-l)) + \log(1/(u-x))` with this
        :math:`\beta`. The entropic barrier warns unless it is at least 0.4 times the temperature.

    Examples
    --------
    >>> from assay.transport import Box
    >>> Box(0, 1).inverse([[0.0, 1e3]]).round(4)
    array([[0.5  , 0.999]])
    """

    barriers = ("log", "entropy")

    def __init__(
        self,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = 1.0,
        d: int | None = None,
        *,
        barrier: str = "log",
        repulsion: float = 0.0,
    ):
        super().__init__(barrier)
        self.repulsion = check_real(repulsion, "repulsion", minimum=0.0)
        low, high = as_float_array(lower, "lower", ndim=(0, 1)), as_float_array(upper, "upper", ndim=(0, 1))
        sizes = {a.shape[0] for a in (low, high) if a.ndim} | ({check_integer(d, "d", minimum=1)} if d else set())
        if d is not None:
            check_integer(d, "d", minimum=1)
        if len(sizes) > 1:
            raise ValueError(f"lower, upper and d must agree on the number of coordinates, got {sorted(sizes)}")
        if not np.all(low < high):
            raise ValueError("lower must be less than upper in every coordinate")
        with np.errstate(over="ignore"):
            width = high - low
        if not np.all(np.isfinite(width)):
            raise ValueError("upper must be at a finite distance from lower")
        self.dimension = sizes.pop() if sizes else None
        self.lower, self.upper = low.copy(), high.copy()

    def __repr__(self) -> str:
        sides = f"{_brief(self.lower)}, {_brief(self.upper)}"
        return f"Box({sides}, d={self.dimension}, barrier={self.barrier!r})"

    def _bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds in the precision of the particles, rounded inwards."""
        low, high = (torch.as_tensor(side, device=x.device) for side in (self.lower, self.upper))
        if x.dtype == torch.float64:
            return low, high
        near_low, near_high = low.to(x.dtype), high.to(x.dtype)
        inf = torch.full_like(near_low, torch.inf), torch.full_like(near_high, torch.inf)
        return (
            torch.where(near_low.double() < low, torch.nextafter(near_low, inf[0]), near_low),
            torch.where(near_high.double() > high, torch.nextafter(near_high, -inf[1]), near_high),
        )

    def _mirror(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        low, high = self._bounds(x)
        if self.barrier == "entropy":
            return ((x - low).log_() - (high - x).log_()).div_(high - low)
        return (high - x).reciprocal_().sub_((x - low).reciprocal_())

    def _inverse(self, y: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        low, high = self._bounds(y)
        width = high - low
        scaled = y * width
        if self.barrier == "entropy":
            share = scaled.clamp_(-ENTROPY_CLIP, ENTROPY_CLIP).sigmoid_()
            return torch.addcmul(low, share, width).clamp_(torch.nextafter(low, high), torch.nextafter(high, low))
        size = scaled.abs_()
        # Distance from the nearer wall, in units of the side: no cancellation however close it is.
        near = (size * size).add_(4.0).sqrt_().add_(size)
        del scaled, size
        near.add_(2.0).reciprocal_().mul_(2.0).mul_(width)
        x = torch.where(y > 0, high - near, near.add_(low))
        return x.clamp_(torch.nextafter(low, high), torch.nextafter(high, low))

    def _noise(self, x: Float[Tensor, "particles d"], xi: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        low, high = self._bounds(x)
        if self.barrier == "entropy":
            return xi / ((x - low) * (high - x)).sqrt_()
        return xi * ((x - low).pow_(-2).add_((high - x).pow_(-2))).sqrt_()

    def _diffuse(self, y: Tensor, xi: Tensor, scale: float, near: Tensor) -> Tensor:
        if self.barrier == "entropy":
            return super()._diffuse(y, xi, scale, near)
        # With s = sqrt(y^2 + 4) in units of the side, the second derivative of the barrier is s (s + 2).
        low, high = self._bounds(y)
        width = high - low
        root = (y * width).square_().add_(4.0).sqrt_()
        root = root.mul_(root + 2.0).sqrt_().div_(width)
        return y.addcmul_(root, xi, value=scale)

    def _slack(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, " particles"]:
        low, high = self._bounds(x)
        return torch.minimum(x - low, high - x).amin(dim=1)

    def _project(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        return x.clamp(*self._bounds(x))

    def _sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(self.lower, self.upper, (n, self._need_dimension()))

    def _start(self, n: int, rng: np.random.Generator) -> np.ndarray:
        share = rng.uniform(0.05, 0.95, (n, self._need_dimension()))
        return self.lower + share * (self.upper - self.lower)


class Orthant(Domain):
    r"""The positive orthant :math:`\{x : x_i > 0\}`.

    Parameters
    ----------
    d : int, optional
        Number of coordinates; needed for drawing particles only.
    barrier : {"log", "hybrid"}, default="log"
        :math:`-\sum \log x_i`, whose diffusion is solved exactly; its dual coordinates are negative, and a step whose
        gradient pushes a particle outwards by more than ``1 / x_i`` is refused. ``"hybrid"`` adds
        :math:`\tfrac12\|x\|^2`: then every step is possible.

    Notes
    -----
    There is no uniform law: :meth:`sample` draws exponential numbers.

    Examples
    --------
    >>> from assay.transport import Orthant
    >>> Orthant(2).mirror([[0.5, 4.0]])
    array([[-2.  , -0.25]])
    """

    barriers = ("log", "hybrid")

    def __init__(self, d: int | None = None, *, barrier: str = "log"):
        super().__init__(barrier)
        self.dimension = None if d is None else check_integer(d, "d", minimum=1)

    def __repr__(self) -> str:
        return f"Orthant({self.dimension}, barrier={self.barrier!r})"

    def _mirror(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        y = x.reciprocal().neg_()
        return y.add_(x) if self.barrier == "hybrid" else y

    def _inverse(self, y: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        if self.barrier == "hybrid":
            # (y + root) / 2 without cancellation for negative y
            larger = (y * y).add_(4.0).sqrt_().add_(y.abs()).mul_(0.5)
            x = torch.where(y > 0, larger, larger.reciprocal())
            return x.clamp_(min=torch.finfo(y.dtype).tiny)
        if bool((y >= 0).any()):
            raise ValueError(
                "lr must be smaller: the step takes a particle of the orthant past infinity (its dual coordinate with "
                "the log barrier is no longer negative); lower lr or use barrier='hybrid'"
            )
        return y.reciprocal().neg_().clamp_(min=torch.finfo(y.dtype).tiny)

    def _noise(self, x: Float[Tensor, "particles d"], xi: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        if self.barrier == "hybrid":
            return xi * x.pow(-2).add_(1.0).sqrt_()
        return xi / x

    def _diffuse(self, y: Tensor, xi: Tensor, scale: float, near: Tensor) -> Tensor:
        if self.barrier == "hybrid":
            return super()._diffuse(y, xi, scale, near)
        # dY = -Y scale dB is geometric Brownian motion, which keeps its sign.
        return y.mul_((xi * -scale).sub_(0.5 * scale**2).exp_())

    def _slack(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, " particles"]:
        return x.amin(dim=1)

    def _project(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        return x.clamp(min=0.0)

    def _sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.exponential(size=(n, self._need_dimension()))

    def _log_density(self, x: np.ndarray) -> np.ndarray:
        return -x.sum(axis=1)

    def _start(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.gamma(3.0, 1.0 / 3.0, (n, self._need_dimension()))


class Ball(Domain):
    r"""A Euclidean ball, with the barrier :math:`-\log(1 - \|x-c\|^2/r^2)`.

    Parameters
    ----------
    d : int
        Number of coordinates.
    radius : float, default=1.0
        Its radius.
    center : array_like of shape (d,), optional
        Its centre; the origin by default.
    barrier : {"log"}, default="log"
        There is one.

    Examples
    --------
    >>> from assay.transport import Ball
    >>> Ball(2).inverse([[3.0, 4.0]]).round(6)
    array([[0.491882, 0.655843]])
    """

    def __init__(self, d: int, radius: float = 1.0, center: ArrayLike | None = None, *, barrier: str = "log"):
        super().__init__(barrier)
        self.dimension = check_integer(d, "d", minimum=1)
        self.radius = check_real(radius, "radius", above=0.0)
        self.center = np.zeros(self.dimension) if center is None else as_float_array(center, "center", ndim=1).copy()
        if self.center.shape != (self.dimension,):
            raise ValueError(f"center must have length {self.dimension}, got {self.center.shape[0]}")

    def __repr__(self) -> str:
        where = f", center={_brief(self.center)}" if self.center.any() else ""
        return f"Ball({self.dimension}, radius={self.radius:g}{where}, barrier={self.barrier!r})"

    def _scaled(self, x: Tensor) -> Tensor:
        """In units of the radius, from the centre."""
        if self.center.any():
            x = x - torch.as_tensor(self.center, dtype=x.dtype, device=x.device)
        return x / self.radius if self.radius != 1.0 else x

    def _mirror(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        z = self._scaled(x)
        return z * (2.0 / self.radius / self._room(z))

    def _inverse(self, y: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        w = y * self.radius if self.radius != 1.0 else y
        shrink = 1.0 + torch.hypot(torch.ones((), dtype=y.dtype, device=y.device), _norms(w))
        shrink = torch.maximum(shrink, _norms(w).div_(self._largest_norm(y.dtype))).reciprocal_().mul_(self.radius)
        x = w * shrink
        return x.add_(torch.as_tensor(self.center, dtype=y.dtype, device=y.device)) if self.center.any() else x

    def _noise(
        self, x: Float[Tensor, "particles d"], xi: Float[Tensor, "particles d_plus_1"]
    ) -> Float[Tensor, "particles d"]:
        z = self._scaled(x)
        room = self._room(z)
        radial = z * (2.0 / self.radius / room * xi[:, -1:])
        return radial.addcmul_((2.0 / room).sqrt_().div_(self.radius), xi[:, :-1])

    def _diffuse(self, y: Tensor, xi: Tensor, scale: float, near: Tensor) -> Tensor:
        # In units of the radius, 2 / (1 - |z|^2) = 1 + q with q = sqrt(1 + |w|^2), and 2 z / (1 - |z|^2) = w.
        one = torch.ones((), dtype=y.dtype, device=y.device)
        across = torch.hypot(one, _norms(y).mul_(self.radius)).add_(1.0).sqrt_().mul_(scale / self.radius)
        return y.mul_(xi[:, -1:].mul(scale).add_(1.0)).addcmul_(across, xi[:, :-1])

    def _noise_shape(self, shape: torch.Size) -> tuple[int, ...]:
        return shape[0], shape[1] + 1

    def _slack(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, " particles"]:
        return (1.0 - _norms(self._scaled(x))[:, 0]) * self.radius

    def _project(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        z = self._scaled(x)
        return x + (z / _norms(z).clamp_(min=1.0)).sub_(z).mul_(self.radius)

    def _sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        direction = rng.standard_normal((n, self.dimension))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        return self.center + self.radius * rng.random((n, 1)) ** (1.0 / self.dimension) * direction

    def _start(self, n: int, rng: np.random.Generator) -> np.ndarray:
        z = 0.1 * rng.standard_normal((n, self.dimension))
        z /= np.maximum(1.0, np.linalg.norm(z, axis=1, keepdims=True) / 0.9)
        return self.center + self.radius * z

    def check_particles(self, x: Tensor, name: str) -> None:
        """As for every set, and that a ball so far from the origin has room in the precision of the particles."""
        super().check_particles(x, name)
        if self._largest_norm(x.dtype) < 0.5:
            raise ValueError(f"{name} must be of a dtype that resolves {self!r}, got {x.dtype}")

    def _largest_norm(self, dtype: torch.dtype) -> float:
        """How far out in units of the radius, so that rounding cannot put a particle on the sphere or beyond."""
        far = math.sqrt(self.dimension) * float(np.abs(self.center).max()) / self.radius
        return 1.0 - 8.0 * torch.finfo(dtype).eps * (1.0 + far)

    @staticmethod
    def _room(z: Tensor) -> Tensor:
        """``1 - |z|^2`` as a product, which keeps its digits near the sphere."""
        norm = _norms(z)
        return (1.0 - norm).mul_(norm.add_(1.0))


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=1, keepdim=True)


def _brief(bounds: np.ndarray) -> str:
    return np.array2string(bounds, precision=6, separator=", ", threshold=8, edgeitems=2)
