r"""Polytopes given by inequalities, with the logarithmic barrier.

For :math:`\{x : Ax < b\}` with slacks :math:`s = b - Ax`, the barrier :math:`-\sum\log s_j` has the gradient
:math:`A^\top s^{-1}` and the Hessian :math:`A^\top \operatorname{diag}(s^{-2}) A`. The noise needs no factorization:
:math:`A^\top (\xi / s)` with one normal number per inequality has that covariance. Coming back from dual coordinates is
a small convex problem per particle, solved by Newton's method for all particles together, with the step length under
which self-concordance keeps every iterate inside.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import linprog, nnls
from scipy.stats import truncnorm
from torch import Tensor

from assay.transport.convex_domain import Domain
from assay.validation import as_float_array

__all__ = ["Polytope"]

# A Newton step with a decrement below this leaves an error below the rounding of the slacks.
_DECREMENT = {torch.float64: 1e-8, torch.float32: 1e-4}

# More steps than the damped phase takes even for dual coordinates of 1e8.
_MAX_NEWTON = 200

# Steps in which a particle next to the boundary gets away from it: its slack doubles in each.
_LEAVING = 8

# What a slack may be, in units of the rounding of the largest, before its sign is in doubt.
_ROOM = 64.0


class Polytope(Domain):
    r"""A polytope :math:`\{x \in R^d : Ax < b\}` with an interior.

    Parameters
    ----------
    A : array_like of shape (m, d)
        Normals, a row per inequality.
    b : array_like of shape (m,)
        Right-hand sides.
    barrier : {"log", "hybrid"}, default="log"
        :math:`-\sum \log(b - Ax)_j`, for which the set must be bounded; ``"hybrid"`` adds :math:`\tfrac12\|x\|^2`
        and takes any polyhedron.

    Attributes
    ----------
    center : numpy.ndarray of shape (d,)
        The minimizer of the barrier (the analytic centre).
    bounded : bool
        Whether the set is bounded.

    Raises
    ------
    ValueError
        If the shapes disagree, a row is zero, there is no interior, or the set is not bounded (``"log"``).

    Notes
    -----
    A step costs ``O(N m d^2 + N d^3)`` per Newton iteration. Redundant inequalities are allowed; they repel, too. An
    equality has to be eliminated: it has no interior. :meth:`sample` makes ``30 d`` steps of hit-and-run from the
    centre for every point, which is close to the uniform law, or to a normal law around the centre if the set is
    unbounded.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import Polytope
    >>> triangle = Polytope([[-1, 0], [0, -1], [1, 1]], [0, 0, 1])
    >>> triangle.center.round(6)
    array([0.333333, 0.333333])
    >>> triangle.contains([[0.2, 0.2], [0.7, 0.7]])
    array([ True, False])
    """

    barriers = ("log", "hybrid")

    def __init__(self, A: ArrayLike, b: ArrayLike, *, barrier: str = "log"):
        super().__init__(barrier)
        normals, offsets = as_float_array(A, "A", ndim=2), as_float_array(b, "b", ndim=1)
        if normals.shape[0] != offsets.shape[0]:
            raise ValueError(f"b must have one entry per row of A, {normals.shape[0]}, got {offsets.shape[0]}")
        lengths = np.linalg.norm(normals, axis=1)
        if not np.all(lengths > 0.0):
            raise ValueError(f"A must have no row of zeros, got one at {int(np.argmin(lengths))}")
        # With rows of length one the slacks are distances; the barrier changes by a constant only.
        self.normals, self.offsets = normals / lengths[:, None], offsets / lengths
        self.dimension = normals.shape[1]
        self._outer = np.einsum("mi,mj->mij", self.normals, self.normals).reshape(len(offsets), -1)
        self.center = start = self._interior_point()
        self.bounded = self._is_bounded()
        self._check_barrier()
        self.center = self._minimize(np.zeros_like(start)[None], start[None])

    def __repr__(self) -> str:
        return f"Polytope(<{len(self.offsets)} inequalities in {self.dimension} coordinates>, barrier={self.barrier!r})"

    def with_barrier(self, barrier: str) -> Domain:
        """The same set with another barrier."""
        other = super().with_barrier(barrier)
        if barrier != self.barrier:
            other._check_barrier()
            other.center = other._minimize(np.zeros((1, self.dimension)), self.center[None])
        return other

    def _interior_point(self) -> np.ndarray:
        """Centre of the largest ball inside, or of one of radius 1 + max|b| if there are larger ones."""
        m, d = self.normals.shape
        cap = 1.0 + float(np.abs(self.offsets).max())
        found = linprog(
            np.append(np.zeros(d), -1.0),
            A_ub=np.column_stack([self.normals, np.ones(m)]),
            b_ub=self.offsets,
            bounds=[(None, None)] * d + [(0.0, cap)],
            method="highs",
        )
        if found.status != 0 or not found.x[-1] > 1e-12 * cap:
            raise ValueError("A and b must describe a set with an interior: no point satisfies every A x < b")
        return found.x[:-1]

    def _check_barrier(self) -> None:
        if self.barrier == "log" and not self.bounded:
            raise ValueError(
                "A and b must describe a bounded set for the log barrier; use barrier='hybrid' for an unbounded one"
            )

    def _is_bounded(self) -> bool:
        """Exactly if the normals span the space and a combination of them with positive weights vanishes."""
        m, d = self.normals.shape
        if np.linalg.matrix_rank(self.normals) < d:
            return False
        vanishing = linprog(
            np.zeros(m), A_eq=self.normals.T, b_eq=np.zeros(d), bounds=[(1.0, None)] * m, method="highs"
        )
        return vanishing.status == 0

    def _minimize(self, y: np.ndarray, start: np.ndarray) -> np.ndarray:
        return self._newton(torch.from_numpy(y), torch.from_numpy(start))[0].numpy()

    def _tensors(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        arrays = self.normals, self.offsets, self._outer
        return tuple(torch.as_tensor(array, dtype=like.dtype, device=like.device) for array in arrays)

    def _gaps(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles m"]:
        normals, offsets, _ = self._tensors(x)
        return torch.addmm(offsets, x, normals.mT, alpha=-1.0)

    def _mirror(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        y = self._gaps(x).reciprocal_() @ self._tensors(x)[0]
        return y.add_(x) if self.barrier == "hybrid" else y

    def _inverse(self, y: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        center = torch.as_tensor(self.center, dtype=y.dtype, device=y.device)
        return self._newton(y, center.expand_as(y).clone())

    def _inverse_near(self, y: Tensor, near: Tensor) -> Tensor:
        return self._newton(y, near.clone())

    def _newton(self, y: Float[Tensor, "particles d"], x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        """Minimize ``barrier(x) - y x`` from points inside, which are overwritten."""
        normals, offsets, outer = self._tensors(y)
        d = self.dimension
        hybrid = self.barrier == "hybrid"
        target = _DECREMENT.get(y.dtype, 1e-4)
        open_, previous = torch.arange(len(y), device=y.device), torch.full_like(y[:, 0], torch.inf)
        floor = self._floor(y)
        for iteration in range(_MAX_NEWTON):
            point, wanted = x[open_], y[open_]
            gaps = torch.addmm(offsets, point, normals.mT, alpha=-1.0)
            inverse = gaps.reciprocal()
            gradient = (inverse @ normals).sub_(wanted)
            hessian = ((inverse * inverse) @ outer).reshape(-1, d, d)
            if hybrid:
                gradient += point
                hessian.diagonal(dim1=1, dim2=2).add_(1.0)
            factor = torch.linalg.cholesky_ex(hessian).L
            step = -torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]
            step = torch.nan_to_num(step, nan=0.0, posinf=0.0, neginf=0.0)
            decrement = torch.linalg.vecdot(gradient, -step).clamp_(min=0.0).sqrt_()
            # A full step converges quadratically from 1/4 on; before that this length stays in the Dikin ellipsoid.
            length = torch.where(decrement > 0.25, 1.0 / (1.0 + decrement), 1.0)
            if bool((decrement > 0.25).any()):
                length = self._longer(point, step, gaps, wanted, decrement, length)
            x[open_] = point + length[:, None] * step
            # Below 1/4 the decrement is squared by every step until rounding stops it.
            stalled = (decrement < 0.25) & (decrement > 0.5 * previous)
            # A particle that is not back from the boundary by now has its answer closer to it than rounding can tell.
            lost = gaps.amin(dim=1) <= floor if iteration >= _LEAVING else torch.zeros_like(stalled)
            going = ~((decrement <= target) | stalled | lost)
            if not bool(going.any()):
                break
            open_, previous = open_[going], decrement[going]
        return self._pulled_inside(x)

    def _longer(
        self, point: Tensor, step: Tensor, gaps: Tensor, y: Tensor, decrement: Tensor, length: Tensor
    ) -> Tensor:
        """Nearly to the boundary, or a whole step, where the objective falls by enough; else the safe length."""
        slope = step @ self._tensors(step)[0].mT  # by which the gaps shrink
        trial = (0.95 / (slope / gaps).amax(dim=1).clamp_(min=0.5)).clamp_(max=1.0)
        change = -torch.log1p(-trial[:, None] * slope / gaps).sum(dim=1) - trial * torch.linalg.vecdot(y, step)
        if self.barrier == "hybrid":
            change += trial * torch.linalg.vecdot(point, step) + 0.5 * trial**2 * torch.linalg.vecdot(step, step)
        return torch.where((change <= -0.1 * trial * decrement**2) & (trial > length), trial, length)

    def _pulled_inside(self, x: Tensor) -> Tensor:
        """Move towards the centre what rounding has put on the boundary, or so close that its sign is in doubt."""
        center = torch.as_tensor(self.center, dtype=x.dtype, device=x.device)[None]
        gaps, room = self._gaps(x), self._gaps(center)
        floor = torch.clamp(0.5 * room, max=self._floor(x))
        share = torch.where(gaps < floor, (floor - gaps) / (room - gaps), 0.0).amax(dim=1, keepdim=True)
        return x + share * (center - x)

    def _floor(self, like: Tensor) -> float:
        """Slack below which rounding decides its sign."""
        return _ROOM * torch.finfo(like.dtype).eps * (1.0 + float(np.abs(self.offsets).max()))

    def _noise(
        self, x: Float[Tensor, "particles d"], xi: Float[Tensor, "particles noises"]
    ) -> Float[Tensor, "particles d"]:
        m = len(self.offsets)
        noise = (xi[:, :m] / self._gaps(x)) @ self._tensors(x)[0]
        return noise.add_(xi[:, m:]) if self.barrier == "hybrid" else noise

    def _noise_shape(self, shape: torch.Size) -> tuple[int, ...]:
        return shape[0], len(self.offsets) + (self.dimension if self.barrier == "hybrid" else 0)

    def _slack(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, " particles"]:
        return self._gaps(x).amin(dim=1)

    def _project(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        rounding = 8.0 * torch.finfo(x.dtype).eps * (1.0 + float(np.abs(self.offsets).max()))
        outside = torch.nonzero(self._slack(x) < -rounding)[:, 0]
        projected = x.clone()
        for i in outside.tolist():
            projected[i] = torch.as_tensor(self._nearest(x[i].double().cpu().numpy()), dtype=x.dtype, device=x.device)
        return projected

    def _nearest(self, point: np.ndarray) -> np.ndarray:
        """Projection of one point: a least-distance problem, which is one of non-negative least squares."""
        # min |u| subject to -A u >= A point - b, u = the correction (Lawson and Hanson, chapter 23)
        scale = float(np.max(self.normals @ point - self.offsets))
        need = (self.normals @ point - self.offsets) / scale
        system = np.vstack([-self.normals.T, need])
        target = np.append(np.zeros(self.dimension), 1.0)
        weights, _ = nnls(system, target)
        residual = system @ weights - target
        return point - scale * residual[:-1] / residual[-1]

    def _sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        # Directions that are even where the Hessian at the centre is the identity.
        gaps = self.offsets - self.normals @ self.center
        hessian = (self.normals / gaps[:, None] ** 2).T @ self.normals
        shape = np.eye(self.dimension)
        if self.bounded:
            shape = np.linalg.inv(np.linalg.cholesky(hessian))
        x = np.tile(self.center, (n, 1))
        for _ in range(30 * self.dimension):
            direction = rng.standard_normal((n, self.dimension)) @ shape
            rates, room = direction @ self.normals.T, self.offsets - x @ self.normals.T
            with np.errstate(divide="ignore"):
                ends = room / rates
            far = np.where(rates > 0, ends, np.inf).min(axis=1)
            back = np.where(rates < 0, ends, -np.inf).max(axis=1)
            if self.bounded:
                length = back + (far - back) * rng.random(n)
            else:
                size = np.linalg.norm(direction, axis=1)
                mean = -((x - self.center) * direction).sum(axis=1) / size**2
                ends = (back - mean) * size, (far - mean) * size
                length = mean + truncnorm.rvs(*ends, random_state=rng) / size
            x += length[:, None] * direction
        return x

    def _log_density(self, x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x)) if self.bounded else -0.5 * ((x - self.center) ** 2).sum(axis=1)

    def _start(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self.center + 0.5 * (self._sample(n, rng) - self.center)
