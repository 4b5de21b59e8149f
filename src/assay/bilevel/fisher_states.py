r"""Running empirical Fisher matrices, and systems with them.

Scores come in batches and are forgotten; what remains is one of

* ``average``: the sum :math:`A = \gamma_0 I + \sum c_i s_i s_i^\top` over all samples, as an inverse that a batch of
  ``B`` rows changes by rank ``B`` (Woodbury), or as a matrix when a ridge has to be added to it;
* ``smoothed``: an exponential average, with its bias towards the start removed. Only the matrix is averaged and damped
  when it is factorised: averaging the inverse itself has a fixed point at infinity in every direction that the scores
  of the moment miss, and diverges;
* ``window``: the last ``m`` scores themselves, with which a system takes ``O(m^2 d)``.

Every weight enters the outer product once, since the Hessian of :math:`c\,\ell` is :math:`c` times that of
:math:`\ell`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "AverageFisher",
    "FisherState",
    "SmoothedFisher",
    "WindowFisher",
    "check_dense",
    "check_state",
    "debias",
    "matvec64",
    "relative",
    "solve_cholesky",
    "solve_positive",
]

_DENSE_LIMIT = 8000
_PROBES = 4


class FisherState(ABC):
    """What all running Fisher matrices can do.

    Attributes
    ----------
    dim : int
        Number of inner parameters.
    n_samples : int
        Rows that it has seen since it was made or reset.
    """

    dim: int
    n_samples: int

    @abstractmethod
    def update(self, rows: Float[Tensor, "rows dim"], weights: Float[Tensor, " rows"] | None) -> None:
        """Take in the scores of a batch."""

    @abstractmethod
    def solve(self, grad: Float[Tensor, " dim"], ridge: Tensor, damping: float) -> Float[Tensor, " dim"]:
        """``(F + R + damping I)^{-1} grad``."""

    @abstractmethod
    def residual(self, w: Float[Tensor, " dim"], grad: Float[Tensor, " dim"], ridge: Tensor, damping: float) -> float:
        """Relative residual of a solution, in float64."""

    @abstractmethod
    def trace(self) -> float:
        """Trace of ``F``: the mean squared norm of a score, with weights."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all scores."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that was learned, as tensors and numbers."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Go on from what :meth:`state_dict` returned."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """The tensors that are kept, for their memory."""


class AverageFisher(FisherState):
    """Sum over all scores, with a multiple of the identity to begin with.

    Parameters
    ----------
    dim : int
        Number of inner parameters.
    gamma0 : float
        That multiple; it is all the damping of this state.
    inverse : bool
        Keep the inverse, which is cheaper to use; a ridge cannot be added to it.
    like : Tensor
        Of the dtype and device to use.
    """

    def __init__(self, dim: int, gamma0: float, inverse: bool, like: Tensor):
        check_dense(dim, "average")
        self.dim, self.gamma0, self.inverse = dim, gamma0, inverse
        self.matrix = torch.empty(dim, dim, dtype=like.dtype, device=like.device)
        # Vectors with their products by the sum, kept without inverting anything: they show how far the inverse drifts.
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(
            dim, _PROBES if inverse else 0, dtype=torch.float64, generator=generator, device=generator.device
        )
        self.probes = drawn.to(like.device, like.dtype)
        self.reset()

    def reset(self) -> None:  # noqa: D102
        self.matrix.zero_()
        self.matrix.diagonal().fill_(1.0 / self.gamma0 if self.inverse else self.gamma0)
        self.images = self.gamma0 * self.probes
        self.n_samples, self._trace = 0, torch.zeros((), dtype=self.matrix.dtype, device=self.matrix.device)

    def update(self, rows: Float[Tensor, "rows dim"], weights: Float[Tensor, " rows"] | None) -> None:  # noqa: D102
        scaled = rows if weights is None else rows * weights.sqrt()[:, None]
        if self.inverse:
            for part in scaled.split(self.dim):  # more rows than parameters at once would only cost more
                self._change_inverse(part)
            self.images += scaled.T @ (scaled @ self.probes)
        else:
            self.matrix.addmm_(scaled.T, scaled)
        self._trace = self._trace + scaled.square().sum()
        self.n_samples += len(rows)

    def _change_inverse(self, rows: Tensor) -> None:
        images = rows @ self.matrix
        if len(rows) == 1:  # Sherman and Morrison
            added = float(images[0] @ rows[0])
            if not 0.0 <= added < math.inf:
                self._refuse_drift()
            self.matrix.addmm_(images.T, images, alpha=-1.0 / (1.0 + added))
            return
        core = images @ rows.T
        core.diagonal().add_(1.0)
        factor, info = torch.linalg.cholesky_ex(core)
        if int(info):
            self._refuse_drift()
        half = torch.linalg.solve_triangular(factor, images, upper=False)
        self.matrix.addmm_(half.T, half, alpha=-1.0)

    def _refuse_drift(self) -> None:
        raise ValueError(
            f"scores must not be so large that the inverse kept by fisher='average' loses its sign in "
            f"{self.matrix.dtype}; scale the inner loss, raise gamma0, use float64 or fisher='smoothed'"
        )

    def solve(self, grad: Float[Tensor, " dim"], ridge: Tensor, damping: float) -> Float[Tensor, " dim"]:  # noqa: D102
        self._require_samples()
        if self.inverse:
            return self.n_samples * (self.matrix @ grad)
        return solve_positive(self._system(ridge), grad, full_rank=True)

    def _system(self, ridge: Tensor) -> Tensor:
        system = self.matrix / self.n_samples
        system.diagonal().add_(ridge)
        return system

    def _require_samples(self) -> None:
        if not self.n_samples:
            raise ValueError("the Fisher matrix must have scores, got none: make more inner steps than burn_in")

    def residual(self, w: Float[Tensor, " dim"], grad: Float[Tensor, " dim"], ridge: Tensor, damping: float) -> float:
        """As for the others; of a kept inverse the largest relative error on four vectors with known products."""
        self._require_samples()
        if not self.inverse:
            return relative(matvec64(self._system(ridge), w), grad)
        back = self.matrix.double() @ self.images.double()
        error = (back - self.probes.double()).norm(dim=0) / self.probes.double().norm(dim=0)
        return float(error.max())

    def trace(self) -> float:  # noqa: D102
        return float(self._trace) / max(self.n_samples, 1)

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {
            "kind": "average", "inverse": self.inverse, "matrix": self.matrix.clone(), "images": self.images.clone(),
            "n_samples": self.n_samples, "trace": self._trace.clone(),
        }  # fmt: skip

    def load_state_dict(self, state: Any) -> None:  # noqa: D102
        check_state(state, "average", {"matrix": self.matrix}, ("inverse", "images", "n_samples", "trace"))
        if state["inverse"] != self.inverse:
            raise ValueError("state must be of an average with a ridge where this one has a ridge, and without else")
        self.matrix.copy_(state["matrix"])
        self.images = state["images"].to(self.matrix).clone()
        self.n_samples, self._trace = int(state["n_samples"]), state["trace"].to(self.matrix)

    def tensors(self) -> list[Tensor]:  # noqa: D102
        return [self.matrix, self.probes, self.images]


class SmoothedFisher(FisherState):
    """Exponential average of the outer products of batches.

    Parameters
    ----------
    dim : int
        Number of inner parameters.
    beta : float
        Weight of the newest batch.
    like : Tensor
        Of the dtype and device to use.
    """

    def __init__(self, dim: int, beta: float, like: Tensor):
        check_dense(dim, "smoothed")
        self.dim, self.beta = dim, beta
        self.matrix = torch.empty(dim, dim, dtype=like.dtype, device=like.device)
        self.reset()

    def reset(self) -> None:  # noqa: D102
        self.matrix.zero_()
        self.n_samples, self.n_updates = 0, 0

    def update(self, rows: Float[Tensor, "rows dim"], weights: Float[Tensor, " rows"] | None) -> None:  # noqa: D102
        scaled = rows if weights is None else rows * weights.sqrt()[:, None]
        self.matrix.addmm_(scaled.T, scaled, beta=1.0 - self.beta, alpha=self.beta / len(rows))
        self.n_samples += len(rows)
        self.n_updates += 1

    def _system(self, ridge: Tensor, damping: float) -> Tensor:
        if not self.n_updates:
            raise ValueError("the Fisher matrix must have scores, got none: make an inner step first")
        system = self.matrix / debias(self.beta, self.n_updates)
        system.diagonal().add_(ridge + damping)
        return system

    def solve(self, grad: Float[Tensor, " dim"], ridge: Tensor, damping: float) -> Float[Tensor, " dim"]:  # noqa: D102
        full_rank = self.n_samples >= self.dim or bool((ridge + damping > 0).all())
        return solve_positive(self._system(ridge, damping), grad, full_rank=full_rank)

    def residual(  # noqa: D102
        self, w: Float[Tensor, " dim"], grad: Float[Tensor, " dim"], ridge: Tensor, damping: float
    ) -> float:
        return relative(matvec64(self._system(ridge, damping), w), grad)

    def trace(self) -> float:  # noqa: D102
        return float(self.matrix.trace()) / debias(self.beta, max(self.n_updates, 1))

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {
            "kind": "smoothed", "matrix": self.matrix.clone(), "n_samples": self.n_samples, "n_updates": self.n_updates
        }  # fmt: skip

    def load_state_dict(self, state: Any) -> None:  # noqa: D102
        check_state(state, "smoothed", {"matrix": self.matrix}, ("n_samples", "n_updates"))
        self.matrix.copy_(state["matrix"])
        self.n_samples, self.n_updates = int(state["n_samples"]), int(state["n_updates"])

    def tensors(self) -> list[Tensor]:  # noqa: D102
        return [self.matrix]


class WindowFisher(FisherState):
    """The last scores themselves.

    Parameters
    ----------
    dim : int
        Number of inner parameters.
    window : int
        How many scores are kept.
    like : Tensor
        Of the dtype and device to use.
    """

    def __init__(self, dim: int, window: int, like: Tensor):
        self.dim, self.window = dim, window
        self.ring = torch.zeros(window, dim, dtype=like.dtype, device=like.device)
        self.reset()

    def reset(self) -> None:  # noqa: D102
        self.n_samples, self._next = 0, 0

    def update(self, rows: Float[Tensor, "rows dim"], weights: Float[Tensor, " rows"] | None) -> None:  # noqa: D102
        scaled = rows if weights is None else rows * weights.sqrt()[:, None]
        self.n_samples += len(scaled)
        scaled = scaled[-self.window :]
        first = min(len(scaled), self.window - self._next)
        self.ring[self._next : self._next + first] = scaled[:first]
        self.ring[: len(scaled) - first] = scaled[first:]
        self._next = (self._next + len(scaled)) % self.window

    def _kept(self) -> Tensor:
        kept = self.ring[: min(self.n_samples, self.window)]
        if not len(kept):
            raise ValueError("the Fisher matrix must have scores, got none: make an inner step first")
        return kept

    def solve(self, grad: Float[Tensor, " dim"], ridge: Tensor, damping: float) -> Float[Tensor, " dim"]:  # noqa: D102
        kept, diagonal = self._kept(), ridge + damping
        positive = bool((diagonal > 0).all())
        if len(kept) >= self.dim or not positive:
            system = kept.T @ kept / len(kept) if len(kept) >= self.dim else grad.new_zeros(1, 1)
            if len(kept) >= self.dim:
                system.diagonal().add_(diagonal)
            return solve_positive(system, grad, full_rank=len(kept) >= self.dim)
        divided = kept / diagonal
        core = divided @ kept.T
        core.diagonal().add_(float(len(kept)))
        factor, info = torch.linalg.cholesky_ex(core)
        if int(info):
            raise _singular(core.dtype)
        return grad / diagonal - divided.T @ torch.cholesky_solve((divided @ grad)[:, None], factor)[:, 0]

    def residual(  # noqa: D102
        self, w: Float[Tensor, " dim"], grad: Float[Tensor, " dim"], ridge: Tensor, damping: float
    ) -> float:
        kept, w64 = self._kept(), w.double()
        product = matvec64(kept.T, matvec64(kept, w64)) / len(kept) + (ridge.double() + damping) * w64
        return relative(product, grad)

    def trace(self) -> float:  # noqa: D102
        return float(self._kept().square().sum()) / len(self._kept())

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {"kind": "window", "matrix": self.ring.clone(), "n_samples": self.n_samples, "next": self._next}

    def load_state_dict(self, state: Any) -> None:  # noqa: D102
        check_state(state, "window", {"matrix": self.ring}, ("n_samples", "next"))
        self.ring.copy_(state["matrix"])
        self.n_samples, self._next = int(state["n_samples"]), int(state["next"])

    def tensors(self) -> list[Tensor]:  # noqa: D102
        return [self.ring]


def check_dense(dim: int, fisher: str) -> None:
    """Refuse a matrix that does not fit."""
    if dim > _DENSE_LIMIT:
        raise ValueError(
            f"fisher={fisher!r} must have at most {_DENSE_LIMIT} inner parameters, got {dim}; use 'kfac' or 'window'"
        )


def check_state(state: Any, kind: str, tensors: Mapping[str, Tensor], others: tuple[str, ...]) -> None:
    """Refuse the state of another kind or size, and one with parts missing."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wanted = f"state must be of a {kind!r} Fisher matrix with {shapes} and {', '.join(others)}"
    if not isinstance(state, Mapping) or state.get("kind") != kind:
        found = state.get("kind") if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(f"{wanted}, got {found!r}")
    missing = [name for name in (*tensors, *others) if name not in state]
    if missing:
        raise ValueError(f"{wanted}, got none for {', '.join(missing)}")
    wrong = {name: tuple(np.shape(state[name])) for name in tensors if tuple(np.shape(state[name])) != shapes[name]}
    if wrong:
        raise ValueError(f"{wanted}, got {wrong}")


def debias(beta: float, n_updates: int) -> float:
    """Total weight of an exponential average that began at zero."""
    return -math.expm1(n_updates * math.log1p(-beta)) if beta < 1.0 else 1.0


def solve_positive(system: Float[Tensor, "n n"], right: Tensor, *, full_rank: bool) -> Tensor:
    """Solve by Cholesky, or say what makes the matrix singular."""
    found = solve_cholesky(system, right) if full_rank else None
    if found is None:
        raise _singular(system.dtype)
    return found


def solve_cholesky(system: Float[Tensor, "n n"], right: Tensor) -> Tensor | None:
    """Solve by Cholesky; None when the matrix is not positive definite to working precision."""
    factor, info = torch.linalg.cholesky_ex(system)
    pivots, largest = factor.diagonal(), system.diagonal().max()
    smallest_accepted = len(system) * torch.finfo(system.dtype).eps * largest
    if int(info) or not bool((pivots.square() > smallest_accepted).all()):
        return None
    columns = right[:, None] if right.ndim == 1 else right
    return torch.cholesky_solve(columns, factor).view(right.shape)


def _singular(dtype: torch.dtype) -> ValueError:
    return ValueError(
        "damping or ridge must be positive, and not lost in rounding, when the Fisher matrix is rank-deficient, got a "
        f"matrix that is singular in {dtype}; raise damping or scale the inner problem"
    )


def matvec64(matrix: Tensor, vector: Tensor) -> Tensor:
    """Product in float64, by blocks of rows so that no large copy is made."""
    return torch.cat([block.double() @ vector.double() for block in matrix.split(256)])


def relative(product: Tensor, grad: Tensor) -> float:
    """Norm of the residual over that of the right-hand side; 0 when both are 0."""
    right = grad.double()
    off, size = float((product.double() - right).norm()), float(right.norm())
    return off / size if size else (0.0 if off == 0.0 else math.inf)
