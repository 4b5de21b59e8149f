r"""Kernels behind the clips of singular values: each is a function of the Gram matrix of the shorter side.

Two of them need no SVD: an eigendecomposition of the Gram matrix (the accurate one, for processors), and a
Newton-Schulz iteration made of matrix products only (for accelerators).

Forming the Gram matrix squares the range of the singular values, so that a Newton-Schulz iteration in float32 loses
digits as :math:`(s_{\max}/c)^2`. Soft clips compose, however: a clip at ``b`` followed by one at ``d`` is the clip at
``c`` with :math:`1/c^2 = 1/b^2 + 1/d^2`. A large ratio is therefore worked off in stages of a moderate one, which
costs about the same number of products and loses digits as :math:`s_{\max}/c` only.

The functions here do not check their arguments; :mod:`assay.optim.spectral` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

__all__ = ["exact_dtype", "hard_clip", "largest_singular_values", "newton_schulz_steps", "normalize", "soft_clip"]

# One stage of the Newton-Schulz soft clip reduces the range of the singular values by at most this factor.
_STAGE_RATIO = 32.0
# An iteration multiplies the eigenvalues that are still small by 9/4; quadratic convergence takes over for the last 4.
_GROWTH = 9.0 / 4.0
_FINAL_STEPS = 4
# Within this range an eigendecomposition in float32 is good to 1e-5.
_FLOAT32_RATIO = 10.0
# Within this range the products that follow it can be in float32.
_PRODUCT_RATIO = 20.0
# Beyond this range the Gram matrix does not resolve the singular values near the threshold, not even in float64.
_EIGH_RATIO = 1e5
# In float32 the squares of matrices in the unit of a threshold outside of these would be subnormal or overflow.
_FLOAT32_THRESHOLDS = (1e-15, 1e15)
# The quintic of Muon raises small singular values 3.4-fold per step; the second one then converges cubically to 1.
_MUON_QUINTIC = (3.4445, -4.7750, 2.0315)
_CONVERGENT_QUINTIC = (15 / 8, -10 / 8, 3 / 8)
_POLISHING_STEPS = 3
_NORMALIZE_STEPS = 10


def soft_clip(x: Tensor, c: float, method: str, ns_steps: int | Literal["auto"]) -> Tensor:
    """The soft clip of a batch, by one of ``"auto"``, ``"newton_schulz"``, ``"eigh"`` and ``"svd"``."""
    chosen = _resolve(method, x)
    if chosen == "newton_schulz":
        work = x.to(working_dtype(x))
        clipped = None if ns_steps == "auto" else _soft_newton_schulz(work, c, ns_steps)
        lowest, highest = _FLOAT32_THRESHOLDS
        if clipped is None and (work.dtype == torch.float64 or lowest <= c <= highest):
            clipped = _soft_in_stages(work, c)
        if clipped is not None:
            return clipped.to(x.dtype)
        chosen = "svd"
    return _by_decomposition(x, lambda s2: torch.rsqrt(1.0 + s2), _soft_values, chosen, c)


def hard_clip(x: Tensor, c: float, method: str) -> Tensor:
    """The hard clip of a batch, by ``"svd"`` or, for any other method, by ``"eigh"``."""
    chosen = "svd" if method == "svd" else "eigh"
    return _by_decomposition(x, lambda s2: torch.rsqrt(s2.clamp_min(1.0)), lambda s, c: s.clamp_max(c), chosen, c)


def normalize(x: Tensor, c: float, method: str, ns_steps: int | Literal["auto"]) -> Tensor:
    """The orthogonal polar factors of a batch times ``c``."""
    chosen = _resolve(method, x)
    if chosen == "newton_schulz":
        return (_orthogonalize(x, _NORMALIZE_STEPS if ns_steps == "auto" else ns_steps) * c).to(x.dtype)
    wide, transposed = _wide(_unit(x.to(exact_dtype(x))))
    if chosen == "eigh":
        squares, vectors = torch.linalg.eigh(_gram(wide))
        # Below this the decomposition does not know a square to 4 digits, and its inverse root would break the cap.
        floor = squares[..., -1:] * (squares.shape[-1] * torch.finfo(squares.dtype).eps * 1e4)
        inverse = torch.where(squares > floor, torch.rsqrt(squares), torch.zeros_like(squares))
        result = c * (((vectors * inverse.unsqueeze(-2)) @ vectors.mT) @ wide)
    else:
        left, values, right = torch.linalg.svd(wide, full_matrices=False)
        floor = values[..., :1] * (values.shape[-1] * torch.finfo(values.dtype).eps)
        result = c * ((left * (values > floor).unsqueeze(-2)) @ right)
    return (result.mT if transposed else result).to(x.dtype)


def largest_singular_values(x: Tensor) -> Tensor:
    """Largest singular value of every matrix of a batch, in the widest float of the device."""
    wide, _ = _wide(x.to(exact_dtype(x)))
    scale = _scale(wide)
    return scale[..., 0, 0] * torch.linalg.eigvalsh(_gram(wide / scale))[..., -1].clamp_min(0).sqrt()


def newton_schulz_steps(a: float) -> int:
    """Iterations that the inverse root needs when the eigenvalues lie in ``[1/a, 1]``."""
    return math.ceil(math.log(a) / math.log(_GROWTH)) + _FINAL_STEPS


def working_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def exact_dtype(x: Tensor) -> torch.dtype:
    """The widest float of the device: Apple's GPUs have no float64."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def _resolve(method: str, x: Tensor) -> str:
    if method != "auto":
        return method
    return "eigh" if x.device.type == "cpu" else "newton_schulz"


def _wide(x: Tensor) -> tuple[Tensor, bool]:
    """The matrix with no more rows than columns, and whether that is the transpose."""
    return (x.mT, True) if x.shape[-2] > x.shape[-1] else (x, False)


def _gram(wide: Tensor) -> Tensor:
    return wide @ wide.mT


def _scale(x: Tensor) -> Tensor:
    """Largest absolute entry of every matrix, positive: what it is divided by so that no square overflows."""
    return x.abs().amax((-2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)


def _unit(x: Tensor) -> Tensor:
    return x / _scale(x)


def _soft_values(values: Tensor, c: float) -> Tensor:
    """The soft clip of singular values of any size: ``s c / hypot(s, c)`` without an overflow."""
    smaller, larger = values.clamp_max(c), values.clamp_min(c)
    return smaller / torch.sqrt(1.0 + (smaller / larger).square())


def _largest_eigenvalue_bound(gram: Tensor) -> Tensor:
    """An upper bound that is rarely 1.5 times too large: the fourth root of the sum of the fourth powers.

    The largest absolute row sum, a bound too, takes the scale out and so prevents an overflow.
    """
    rows = gram.abs().sum(-1).amax(-1)
    unit = gram / rows.clamp_min(torch.finfo(gram.dtype).tiny)[..., None, None]
    return rows * torch.linalg.matrix_norm(unit @ unit).sqrt().clamp_max(1.0)


def _by_decomposition(
    x: Tensor,
    factor: Callable[[Tensor], Tensor],
    clipped: Callable[[Tensor, float], Tensor],
    method: str,
    unit: float,
) -> Tensor:
    """``x`` with every singular value ``s`` replaced by ``clipped(s, unit)``.

    For the Gram matrix that is a multiplication by ``factor((s / unit) ** 2)``, which is 1 for ``s << unit``.
    """
    if method == "eigh":
        wide, transposed = _wide(x.to(working_dtype(x)))
        gram = _gram(wide / unit)
        narrow = bool(_largest_eigenvalue_bound(gram).amax() <= _FLOAT32_RATIO**2)
        if not narrow and wide.dtype != exact_dtype(x):
            wide = wide.to(exact_dtype(x))
            gram = _gram(wide / unit)
        # The trace, the sum of the squares, is above this only if the largest square is above its limit (or infinite).
        limit = gram.shape[-1] * _EIGH_RATIO**2
        if narrow or bool((gram.diagonal(dim1=-2, dim2=-1).sum(-1) <= limit).all()):
            squares, vectors = torch.linalg.eigh(gram)
            squares = squares.clamp_min(0)
            if bool((squares[..., -1] <= _EIGH_RATIO**2).all()):
                # What is taken away, not what is left: a matrix far below the threshold comes back to the last digit.
                excess = (1.0 - factor(squares)).unsqueeze(-2)
                if bool((squares[..., -1] <= _PRODUCT_RATIO**2).all()):
                    wide, vectors, excess = (t.to(working_dtype(x)) for t in (wide, vectors, excess))
                result = wide - ((vectors * excess) @ vectors.mT) @ wide
                return (result.mT if transposed else result).to(x.dtype)
    left, values, right = torch.linalg.svd(x.to(exact_dtype(x)), full_matrices=False)
    return ((left * clipped(values, unit).unsqueeze(-2)) @ right).to(x.dtype)


def _soft_in_stages(x: Tensor, c: float) -> Tensor | None:
    """Newton-Schulz soft clip with as many iterations and stages as the largest singular value asks for.

    None if the squares of the singular values overflow.
    """
    wide, transposed = _wide(x / c)
    gram = _gram(wide)
    bound = _largest_eigenvalue_bound(gram)
    largest = math.sqrt(float(bound.detach().amax()))
    if not largest <= math.sqrt(torch.finfo(x.dtype).max) / _STAGE_RATIO:
        return None
    # Nothing to clip, and in a unit that is much larger the digits would be lost.
    if largest**2 < torch.finfo(x.dtype).eps / 4:
        return x.clone()
    n_stages = max(1, math.ceil(math.log(max(largest, 1.0)) / math.log(_STAGE_RATIO)))
    reduction = largest ** (1 / n_stages)
    remaining = 1.0  # of 1/c^2, in units in which c is 1
    for stage in range(1, n_stages + 1):
        threshold = largest / reduction**stage if stage < n_stages else remaining**-0.5
        reach = largest / reduction ** (stage - 1) / threshold
        # The last four iterations leave an error of 1e-9, which one more squares.
        steps = newton_schulz_steps(1.0 + reach**2) + (x.dtype == torch.float64)
        wide = _inverse_root(gram / threshold**2, bound / threshold**2, steps) @ wide
        if stage < n_stages:
            remaining -= threshold**-2
            gram = _gram(wide)
            bound = torch.full_like(bound, threshold**2)
    return c * (wide.mT if transposed else wide)


def _soft_newton_schulz(x: Tensor, c: float, steps: int) -> Tensor | None:
    """Newton-Schulz soft clip with a given number of iterations, in one stage.

    None if they are as many as the matrix asks for or more, or so many that they would raise the rounding errors of
    the smallest eigenvalues to the size of the largest one, from where the iteration diverges.
    """
    wide, transposed = _wide(x)
    c = min(max(c, torch.finfo(x.dtype).tiny), torch.finfo(x.dtype).max)
    # In units of the threshold or of the largest entry, whichever is larger, nothing overflows.
    unit = _scale(wide).clamp_min(c)
    gram = _gram(wide / unit)
    bound = _largest_eigenvalue_bound(gram)
    reach = float((bound.detach().sqrt() * (unit.detach() / c)[..., 0, 0]).amax())
    enough = math.isfinite(reach * reach) and steps >= newton_schulz_steps(1.0 + reach * reach)
    if enough or steps * math.log(_GROWTH) > -math.log(torch.finfo(x.dtype).eps * math.sqrt(gram.shape[-1])):
        return None
    inverse = _inverse_root(gram, bound, steps, shift=(c / unit).square())
    result = (c / unit * inverse) @ wide
    return result.mT if transposed else result


def _inverse_root(gram: Tensor, bound: Tensor, steps: int, *, shift: Tensor | float = 1.0) -> Tensor:
    """``(shift I + gram)^(-1/2)`` by the coupled Newton-Schulz iteration; ``bound`` is above all eigenvalues."""
    scale = shift + bound[..., None, None]
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    root = (gram + shift * identity) / scale
    correction = 1.5 * identity - 0.5 * root
    inverse = correction
    for _ in range(steps - 1):
        root = root @ correction
        correction = 1.5 * identity - 0.5 * (inverse @ root)
        inverse = correction @ inverse
    return inverse / scale.sqrt()


def _orthogonalize(x: Tensor, steps: int) -> Tensor:
    """Polar factor by Muon's quintic iteration, with convergent steps at the end."""
    wide, transposed = _wide(x.to(working_dtype(x)))
    wide = _unit(wide)  # no overflow in the norm
    y = wide / torch.linalg.matrix_norm(wide, keepdim=True).clamp_min(torch.finfo(wide.dtype).tiny)
    polishing = min(steps, _POLISHING_STEPS)
    for a, b, c in (steps - polishing) * [_MUON_QUINTIC] + polishing * [_CONVERGENT_QUINTIC]:
        gram = y @ y.mT
        y = a * y + (b * gram + c * (gram @ gram)) @ y
    return y.mT if transposed else y
