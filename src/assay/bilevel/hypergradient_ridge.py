"""The curvature of a ridge, which is known exactly and which the scores do not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.hypergradient_parameters import ParameterSet
from assay.validation import check_real

__all__ = ["RidgeCurvature"]


class RidgeCurvature:
    """Diagonal of the curvature of a regulariser, as a function of the outer variable.

    Parameters
    ----------
    ridge : float, Tensor, array, sequence or mapping of these, or callable
        One number, a vector with one per entry of theta, or parts of the shapes of theta. A callable gets ``v``, in the
        structure of the user, and returns any of these. What does not depend on ``v`` is copied.
    inner, outer : ParameterSet
        Both variables.

    Attributes
    ----------
    present : bool
        False when the ridge is zero everywhere, for every ``v``.
    """

    def __init__(self, ridge: Any, inner: ParameterSet, outer: ParameterSet):
        self._inner, self._outer, self._ridge = inner, outer, ridge
        self._fixed: Tensor | None = None
        self._by_dtype: dict[torch.dtype, Tensor] = {}
        if callable(ridge):
            self.present = True
            return
        self._fixed = self._converted(ridge).detach().double().clone()
        self._check(self._fixed.to(inner.dtype))
        self.present = bool((self._fixed > 0).any())

    def __call__(
        self, v: Sequence[Tensor], dtype: torch.dtype | None = None
    ) -> Float[Tensor, ""] | Float[Tensor, " dim"]:
        """One number, or one per entry of theta, in the dtype of theta by default; differentiable in ``v``."""
        dtype = dtype or self._inner.dtype
        if self._fixed is None:
            return self._converted(self._ridge(self._outer.structured(v))).to(dtype)
        if dtype not in self._by_dtype:
            self._by_dtype[dtype] = self._fixed.to(dtype)
        return self._by_dtype[dtype]

    def checked(self, v: Sequence[Tensor]) -> Float[Tensor, ""] | Float[Tensor, " dim"]:
        """As a constant; what is not convex is refused."""
        diagonal = self(v).detach()
        if self._fixed is None:
            self._check(diagonal)
        return diagonal

    @staticmethod
    def _check(diagonal: Tensor) -> None:
        if not bool(((diagonal >= 0) & torch.isfinite(diagonal)).all()):
            raise ValueError(f"ridge must be finite and at least 0, got entries {_extremes(diagonal)}")

    def _converted(self, diagonal: Any) -> Tensor:
        inner = self._inner
        if isinstance(diagonal, Mapping):
            keys = inner.keys or []
            if set(diagonal) != set(keys):
                raise ValueError(f"ridge must have the keys of inner_params, {keys}, got {list(diagonal)}")
            diagonal = [diagonal[key] for key in keys]
        if isinstance(diagonal, list | tuple):
            if [np.shape(part) for part in diagonal] != [tuple(shape) for shape in inner.shapes]:
                raise ValueError(
                    f"ridge must have the shapes of inner_params, {[tuple(shape) for shape in inner.shapes]}, "
                    f"got {[np.shape(part) for part in diagonal]}"
                )
            diagonal = torch.cat([torch.as_tensor(part, device=inner.device).reshape(-1) for part in diagonal])
        if isinstance(diagonal, np.ndarray):
            diagonal = torch.as_tensor(np.array(diagonal, dtype=np.float64), device=inner.device)
        if not isinstance(diagonal, Tensor):
            number = check_real(diagonal, "ridge", minimum=0)
            return torch.tensor(number, dtype=torch.float64, device=inner.device)
        diagonal = diagonal.to(inner.device)
        if diagonal.ndim and diagonal.shape != (inner.dim,):
            if not (inner.single and diagonal.shape == inner.shapes[0]):
                raise ValueError(f"ridge must be a number or have shape ({inner.dim},), got {tuple(diagonal.shape)}")
            diagonal = diagonal.reshape(-1)
        return diagonal


def _extremes(diagonal: Tensor) -> str:
    return f"from {float(diagonal.min()):g} to {float(diagonal.max()):g}"
