r"""Functions of the singular values of a matrix: clip them softly, clip them, or make them all equal.

With :math:`X = P \operatorname{diag}(s) Q^\top`, the *soft* clip at ``c`` maps every singular value :math:`s` to
:math:`s / \sqrt{1 + s^2/c^2}`, the *hard* clip maps it to :math:`\min(s, c)`, and *normalization* maps it to ``c``.
None of them needs the singular vectors: each is :math:`f(X X^\top) X` for a scalar function ``f`` applied to the
Gram matrix of the shorter side (see :mod:`assay.optim.spectral_kernels`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from assay.optim.spectral_kernels import (
    exact_dtype,
    hard_clip,
    largest_singular_values,
    normalize,
    soft_clip,
)
from assay.validation import check_choice, check_integer, check_real

__all__ = [
    "clip_gradients_spectral_",
    "hard_spectral_clip",
    "soft_spectral_clip",
    "spectral_normalize",
]

Method = Literal["auto", "newton_schulz", "eigh", "svd"]

# Batches of equal shapes are cut into pieces of at most this many entries, which bounds the temporary memory.
BATCH_ENTRIES = 1 << 24


def soft_spectral_clip(
    x: Tensor, c: float, *, method: Method = "auto", ns_steps: int | Literal["auto"] = "auto"
) -> Tensor:
    r"""Clip the singular values smoothly: every :math:`s` becomes :math:`s / \sqrt{1 + s^2/c^2}`.

    The result is :math:`(I + X X^\top/c^2)^{-1/2} X`. Its spectral norm is below ``c``, singular values much
    smaller than ``c`` are left alone, and :math:`\min(s, c)/\sqrt 2 \le s_{\text{clipped}} \le \min(s, c)`.

    Parameters
    ----------
    x : Tensor of shape (..., rows, columns)
        A matrix or a batch of matrices, on any device. Integers are cast to the default dtype.
    c : float
        Threshold, positive; infinity returns a copy.
    method : {"auto", "newton_schulz", "eigh", "svd"}, default="auto"
        ``"eigh"`` decomposes the Gram matrix in float64, ``"newton_schulz"`` uses matrix products in float32 (float64
        for float64 input), ``"svd"`` is the reference. ``"auto"`` takes ``"eigh"`` on a CPU and ``"newton_schulz"``
        elsewhere.
    ns_steps : int or "auto", default="auto"
        Newton-Schulz iterations. ``"auto"`` takes as many as the range of the singular values asks for (one number
        is read from the device) and works off a large range in stages. A fixed number of 10 leaves the small singular
        values 47 % too small when the largest one is 100 ``c``; one that is large enough, or that rounding does not
        permit in one stage (about 15 in float32), is the same as ``"auto"``.

    Returns
    -------
    Tensor of shape (..., rows, columns)
        Of the same dtype and device.

    Raises
    ------
    TypeError
        If ``x`` is not a dense real tensor.
    ValueError
        If ``x`` has fewer than two dimensions, is empty or not finite, if ``c`` is not positive, or if an option is
        unknown.

    Notes
    -----
    With ``m <= n`` the sides of the matrix: :math:`2 m^2 n` flops for the Gram matrix, the same for the last
    product, and in between :math:`O(m^3)` (``"eigh"``) or :math:`6 m^3` per iteration (``"newton_schulz"``).

    References
    ----------
    .. [1] X. Jiang, A. Semenov, S. U. Stich. Enhancing LLM Training via Spectral Clipping. ICML 2026,
       arXiv:2603.14315.

    Examples
    --------
    >>> import torch
    >>> from assay.optim.spectral import soft_spectral_clip
    >>> x = torch.diag(torch.tensor([100.0, 1.0, 0.01]))
    >>> soft_spectral_clip(x, c=1.0).diagonal()
    tensor([0.9999, 0.7071, 0.0100])
    """
    matrix, threshold = _check_clip(x, c)
    check_choice(method, "method", ("auto", "newton_schulz", "eigh", "svd"))
    steps = check_ns_steps(ns_steps)
    if math.isinf(threshold):
        return matrix.clone()
    return soft_clip(matrix, threshold, method, steps)


def hard_spectral_clip(x: Tensor, c: float, *, method: Literal["auto", "eigh", "svd"] = "auto") -> Tensor:
    r"""Clip the singular values: every :math:`s` becomes :math:`\min(s, c)`.

    This is the projection onto the ball of spectral norm ``c``.

    Parameters
    ----------
    x : Tensor of shape (..., rows, columns)
        A matrix or a batch of matrices, on any device.
    c : float
        Threshold, positive; infinity returns a copy.
    method : {"auto", "eigh", "svd"}, default="auto"
        ``"eigh"`` decomposes the Gram matrix in float64, ``"svd"`` is the reference; ``"auto"`` is ``"eigh"``.

    Returns
    -------
    Tensor of shape (..., rows, columns)
        Of the same dtype and device.

    Raises
    ------
    TypeError, ValueError
        As :func:`soft_spectral_clip`.

    Examples
    --------
    >>> import torch
    >>> from assay.optim.spectral import hard_spectral_clip
    >>> hard_spectral_clip(torch.diag(torch.tensor([100.0, 1.0, 0.01])), c=0.5).diagonal()
    tensor([0.5000, 0.5000, 0.0100])
    """
    matrix, threshold = _check_clip(x, c)
    check_choice(method, "method", ("auto", "eigh", "svd"))
    if math.isinf(threshold):
        return matrix.clone()
    return hard_clip(matrix, threshold, method)


def spectral_normalize(
    x: Tensor, c: float = 1.0, *, method: Method = "auto", ns_steps: int | Literal["auto"] = "auto"
) -> Tensor:
    r"""Make all singular values equal to ``c``: ``c`` times the orthogonal polar factor, as in Muon.

    Parameters
    ----------
    x : Tensor of shape (..., rows, columns)
        A matrix or a batch of matrices, on any device.
    c : float, default=1.0
        The common singular value, positive and finite.
    method : {"auto", "newton_schulz", "eigh", "svd"}, default="auto"
        As in :func:`soft_spectral_clip`. Singular values that ``"eigh"`` does not resolve, below about 1e-5 of the
        largest one, become zero.
    ns_steps : int or "auto", default="auto"
        Newton-Schulz steps: ``"auto"`` is 10. The last three of them converge, those before raise small singular
        values about 3.4-fold each, so that values below ``3.4 ** -(ns_steps - 3)`` of the Frobenius norm end below
        ``c``.

    Returns
    -------
    Tensor of shape (..., rows, columns)
        Of the same dtype and device.

    Raises
    ------
    TypeError, ValueError
        As :func:`soft_spectral_clip`.

    Examples
    --------
    >>> import torch
    >>> from assay.optim.spectral import spectral_normalize
    >>> spectral_normalize(torch.diag(torch.tensor([100.0, -1.0, 0.01]))).diagonal()
    tensor([ 1., -1.,  1.])
    """
    matrix, threshold = _check_clip(x, c, allow_infinite=False)
    check_choice(method, "method", ("auto", "newton_schulz", "eigh", "svd"))
    return normalize(matrix, threshold, method, check_ns_steps(ns_steps))


@torch.no_grad()
def clip_gradients_spectral_(
    parameters: Tensor | Iterable[Tensor],
    c: float,
    *,
    method: Method = "auto",
    ns_steps: int | Literal["auto"] = "auto",
) -> int:
    """Clip the gradient of every matrix softly at ``c``, in place, each on its own.

    Call it after ``backward`` and before :func:`torch.nn.utils.clip_grad_norm_`. A spike of low rank in one
    gradient is removed while the rest of that gradient keeps its size, which a clip of the global norm cannot do.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Those without a gradient, vectors and scalars are left alone; a tensor that occurs twice (tied weights) is
        clipped once. More than two dimensions are read as (first, all others).
    c : float
        Threshold on the singular values, positive.
    method, ns_steps : optional
        As in :func:`soft_spectral_clip`.

    Returns
    -------
    int
        Number of matrices whose largest singular value exceeded ``c``.

    Raises
    ------
    TypeError
        If ``parameters`` are not tensors, or a gradient is sparse or complex.
    ValueError
        If ``c`` is not positive, an option is unknown or a gradient is not finite (then none is changed).

    Examples
    --------
    >>> import torch
    >>> from assay.optim.spectral import clip_gradients_spectral_
    >>> layer = torch.nn.Linear(3, 3)
    >>> layer.weight.grad = torch.diag(torch.tensor([50.0, 0.1, 0.1]))
    >>> clip_gradients_spectral_(layer.parameters(), c=1.0)
    1
    >>> layer.weight.grad.diagonal()
    tensor([0.9998, 0.0995, 0.0995])
    """
    threshold = check_real(c, "c", above=0, allow_infinite=True)
    check_choice(method, "method", ("auto", "newton_schulz", "eigh", "svd"))
    steps = check_ns_steps(ns_steps)
    if not isinstance(parameters, Iterable):
        raise TypeError(f"parameters must be tensors, got {type(parameters).__name__}")
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"parameters must be tensors, got {type(tensor).__name__}")
    unique = {id(p): p for p in tensors}.values()
    gradients = [p.grad for p in unique if p.grad is not None and p.grad.ndim >= 2 and p.grad.numel()]
    for gradient in gradients:
        check_dense_real(gradient, "gradient")
    if not gradients or math.isinf(threshold):
        return 0
    if not all(are_finite(gradients)):
        raise ValueError("parameters must have finite gradients, got nan or infinite entries")
    exceeded = 0
    for batch, members in _batches(gradients):
        exceeded += int((largest_singular_values(batch) > threshold).sum())
        for gradient, clipped in zip(members, soft_clip(batch, threshold, method, steps), strict=True):
            gradient.copy_(clipped.reshape(gradient.shape))
    return exceeded


def as_matrix(x: Tensor) -> Tensor:
    """A tensor of two or more dimensions as (first, all others)."""
    return x if x.ndim == 2 else x.reshape(x.shape[0], -1)


def clip_vector(v: Tensor, c: float, rule: Literal["smooth", "code"]) -> Tensor:
    r"""The soft clip of a vector (or scalar) as a matrix of one column: :math:`v/\sqrt{1 + \|v\|^2/c^2}`.

    The rule ``"code"`` leaves a vector of norm at most ``c`` alone and jumps from ``c`` to ``c / sqrt(2)`` above.
    """
    norm = torch.linalg.vector_norm(v, dtype=exact_dtype(v))  # in which the squares of float32 do not overflow
    below = torch.rsqrt(1.0 + (norm / c).square())
    above = c / norm * torch.rsqrt(1.0 + (c / norm).square())
    factor = torch.where(norm <= c, torch.ones_like(norm) if rule == "code" else below, above)
    return (v * factor).to(v.dtype)


def clip_tensors(
    tensors: Sequence[Tensor],
    clip: Callable[[Tensor], Tensor],
    clip_one_vector: Callable[[Tensor], Tensor],
    *,
    batched: bool,
) -> list[Tensor]:
    """Apply ``clip`` to matrices and ``clip_one_vector`` to the others, equal shapes in one call if ``batched``."""
    clipped: list[Tensor | None] = [clip_one_vector(t) if t.ndim < 2 else None for t in tensors]
    matrices = [(i, t) for i, t in enumerate(tensors) if t.ndim >= 2]
    if not batched:
        for i, tensor in matrices:
            clipped[i] = clip(as_matrix(tensor)).reshape(tensor.shape)
    else:
        position = {id(t): i for i, t in matrices}
        for batch, members in _batches([t for _, t in matrices]):
            for tensor, one in zip(members, clip(batch), strict=True):
                clipped[position[id(tensor)]] = one.reshape(tensor.shape)
    return [t for t in clipped if t is not None]


def spectral_norm(x: Tensor) -> float:
    """Largest singular value by an SVD in the widest float of the device; nan if an entry is not finite.

    A vector is a matrix of one column.
    """
    if not are_finite([x])[0]:
        return math.nan
    matrix = as_matrix(x) if x.ndim >= 2 else x.reshape(-1, 1)
    return float(torch.linalg.svdvals(matrix.to(exact_dtype(x)))[0])


def are_finite(tensors: Sequence[Tensor]) -> list[bool]:
    """Whether each tensor has finite entries only; one number per tensor is read from the device, all at once."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for i, tensor in enumerate(tensors):
        by_kind[tensor.device, tensor.dtype].append(i)
    finite = [True] * len(tensors)
    for members in by_kind.values():
        largest = torch.stack(torch._foreach_norm([tensors[i] for i in members], math.inf))
        for i, flag in zip(members, torch.isfinite(largest).tolist(), strict=True):
            finite[i] = flag
    return finite


def check_ns_steps(ns_steps: Any) -> int | Literal["auto"]:
    """A number of Newton-Schulz steps, or ``"auto"``."""
    if isinstance(ns_steps, str):
        if ns_steps == "auto":
            return "auto"
        raise ValueError(f"ns_steps must be a positive integer or 'auto', got {ns_steps!r}")
    return check_integer(ns_steps, "ns_steps", minimum=1)


def check_dense_real(tensor: Tensor, name: str) -> None:
    """Refuse sparse and complex tensors, and those without data."""
    if tensor.is_meta:
        raise TypeError(f"{name} must have data, got a tensor on the meta device")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be dense, got layout {tensor.layout}")
    if tensor.is_complex():
        raise TypeError(f"{name} must be real, got dtype {tensor.dtype}")


def _check_clip(x: Any, c: Any, *, allow_infinite: bool = True) -> tuple[Tensor, float]:
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
    check_dense_real(x, "x")
    if x.ndim < 2:
        raise ValueError(
            f"x must have shape (..., rows, columns), got {tuple(x.shape)}; "
            "the optimizers treat vectors with scope='all' and vector_rule"
        )
    if x.numel() == 0:
        raise ValueError(f"x must not be empty, got shape {tuple(x.shape)}")
    threshold = check_real(c, "c", above=0, allow_infinite=allow_infinite)
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    if not all(are_finite([x.detach()])):
        raise ValueError("x must be finite, got nan or infinite entries")
    return x, threshold


def _batches(tensors: Sequence[Tensor]) -> Iterable[tuple[Tensor, list[Tensor]]]:
    """Stacks of matrices of one shape, dtype and device, with the tensors that they were made of."""
    kinds: dict[tuple[tuple[int, ...], torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        kinds[tuple(as_matrix(tensor).shape), tensor.dtype, tensor.device].append(tensor)
    for members in kinds.values():
        size = max(1, BATCH_ENTRIES // members[0].numel())
        for start in range(0, len(members), size):
            piece = members[start : start + size]
            yield torch.stack([as_matrix(t) for t in piece]), piece
