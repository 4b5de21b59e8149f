r"""Two ways to see what a spectral clip does: as a step of Frank-Wolfe, and as a filter for spikes in the gradient.

With the momentum as direction and :math:`\gamma = \lambda\eta`, a SPECTRA step is
:math:`X \leftarrow (1-\gamma) X + \gamma V`, a step of Frank-Wolfe on the ball of spectral norm
:math:`D = \alpha c/\lambda` for the loss plus a regularizer. :func:`composite_fw_gap` is the gap of that method, which
bounds the distance to the optimum of a convex loss and is zero exactly at stationary points of any loss.

:func:`spike_report` measures why clipping spectra beats clipping norms: noise of low rank is cut down in its own
directions while the rest of the gradient keeps its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from assay.certificate import Assumption, Certificate
from assay.optim.spectral import check_dense_real
from assay.optim.spectral_kernels import exact_dtype, hard_clip, soft_clip
from assay.result import Result
from assay.validation import as_float_array, check_choice, check_real

__all__ = ["SpikeReport", "composite_fw_gap", "spike_report"]


def composite_fw_gap(
    x: Tensor | ArrayLike,
    grad: Tensor | ArrayLike,
    *,
    decay: float,
    alpha: float,
    clip: float,
    kind: Literal["soft", "hard"] = "soft",
) -> float:
    r"""Frank-Wolfe gap of the problem that SPECTRA solves: the loss plus a regularizer on a spectral ball.

    With :math:`D = \alpha c/\lambda` the problem is :math:`\min_{\|X\|_2 \le D} F(X) = f(X) + \psi(X)`, where

    * hard clip: :math:`\psi(X) = \frac{\lambda}{2\alpha}\|X\|_F^2`,
    * soft clip: :math:`\psi(X) = \frac{\lambda}{\alpha} D^2 \sum_i \left(1 - \sqrt{1 - s_i(X)^2/D^2}\right)`.

    The minimizer of :math:`\langle\nabla f(X), V\rangle + \psi(V)` over the ball is
    :math:`V = -\frac{\alpha}{\lambda} H_c(\nabla f(X))`, so that one step of Frank-Wolfe from ``X`` towards ``V`` is
    one step of SPECTRA. The gap is :math:`g(X) = \langle\nabla f(X), X - V\rangle + \psi(X) - \psi(V)`; for convex
    ``f``, :math:`g(X) \ge F(X) - \min F`.

    Parameters
    ----------
    x : Tensor or array_like of shape (rows, columns)
        A point of the ball.
    grad : Tensor or array_like of shape (rows, columns)
        Gradient of the loss at ``x``: the true one, not a momentum.
    decay : float
        Decoupled decay :math:`\lambda`, positive.
    alpha : float
        Scale of the step, positive; the optimizers take ``sqrt(max(1, rows / columns))``.
    clip : float
        Threshold ``c``, positive.
    kind : {"soft", "hard"}, default="soft"
        Which clip.

    Returns
    -------
    float
        Non-negative up to rounding, and zero exactly at a stationary point. On a network it is a heuristic measure,
        since the loss is not convex and AdamW's direction is not the gradient.

    Raises
    ------
    TypeError
        If an array is complex or not numeric.
    ValueError
        If the shapes differ, an entry is not finite, a number is not positive, or the spectral norm of ``x`` exceeds
        ``alpha * clip / decay``: project it first.

    Examples
    --------
    >>> from assay.optim.spectra_analysis import composite_fw_gap
    >>> x, gradient = [[0.5, 0.0], [0.0, 0.2]], [[-0.5, 0.0], [0.0, 0.0]]
    >>> round(composite_fw_gap(x, gradient, decay=0.1, alpha=1.0, clip=0.1), 6)
    0.17532
    """
    decay = check_real(decay, "decay", above=0)
    alpha = check_real(alpha, "alpha", above=0)
    clip = check_real(clip, "clip", above=0)
    check_choice(kind, "kind", ("soft", "hard"))
    point, gradient = _exact_matrix(x, "x"), _exact_matrix(grad, "grad")
    if point.shape != gradient.shape:
        raise ValueError(f"grad must have the shape of x, {tuple(point.shape)}, got {tuple(gradient.shape)}")
    gradient = gradient.to(point.device)
    radius = alpha * clip / decay
    if not 0 < radius < math.inf:
        raise ValueError(f"alpha * clip / decay must be a positive number, the radius of the ball, got {radius:g}")
    values = torch.linalg.svdvals(point)
    if float(values[0]) > radius * (1 + 1e-9):
        raise ValueError(
            f"x must have a spectral norm of at most alpha * clip / decay = {radius:g}, got {float(values[0]):g}; "
            "project it first"
        )
    clipped = (soft_clip(gradient, clip, "svd", "auto") if kind == "soft" else hard_clip(gradient, clip, "svd")).neg()
    vertex = clipped * (alpha / decay)

    def regularizer(s: Tensor) -> Tensor:
        ratio = (s / radius).square().clamp_max(1.0)  # which no small or large radius spoils
        # 1 - sqrt(1 - t) without cancellation
        terms = 0.5 * ratio if kind == "hard" else ratio / (1.0 + torch.sqrt(1.0 - ratio))
        return clip * radius * terms.sum()

    gap = (gradient * (point - vertex)).sum() + regularizer(values) - regularizer(torch.linalg.svdvals(vertex))
    return float(gap)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SpikeReport(Result):
    r"""What clipping does to noisy gradients whose mean is known.

    Parameters
    ----------
    signal_kept : float
        Mean of :math:`\langle G, \text{clip}(g)\rangle / \|G\|_F^2` over the samples ``g``.
    second_moment : float
        Mean of :math:`\|\text{clip}(g)\|_F^2`.
    bound : float
        :math:`r \min(c, \ell + \|G\|_2)^2 + \|G\|_F^2`, which the second moment cannot exceed.
    global_signal_kept : float
        ``signal_kept`` for a clip of the Frobenius norm at ``max_norm``.
    max_norm : float
        Threshold of that clip: by default the one that gives outputs of the same mean Frobenius norm.
    rank : int
        Largest numerical rank :math:`r` of the noise ``g - G``.
    spike : float
        Largest spectral norm :math:`\ell` of the noise.
    anisotropy : float
        :math:`\kappa`, by which the mean projector on the noise's singular vectors exceeds a uniform one; estimated
        with directions from one half of the samples and projectors from the other, nan for a single sample.
    """

    signal_kept: float
    second_moment: float
    bound: float
    global_signal_kept: float
    max_norm: float
    rank: int
    spike: float
    anisotropy: float


def spike_report(
    grad_full: Tensor | ArrayLike,
    grad_samples: Tensor | ArrayLike,
    c: float,
    *,
    kind: Literal["hard", "soft"] = "hard",
    max_norm: float | None = None,
) -> SpikeReport:
    r"""Measure how much of the signal a spectral clip keeps when the gradient noise is a spike of low rank.

    Let :math:`g = G + N` with :math:`N = \ell U V^\top` of rank ``r``, of mean zero and in directions that are
    spread out (:math:`\kappa \le q/(25 r^2)`, ``q`` the shorter side), and :math:`c \ge \|G\|_2`. A hard clip at ``c``
    then keeps at least a third of the signal, :math:`E\langle G, \text{clip}(g)\rangle \ge \|G\|_F^2/3`, and its second
    moment is at most :math:`r\min(c, \ell + \|G\|_2)^2 + \|G\|_F^2`. A clip of the Frobenius norm scales the signal
    down with the spike.

    Parameters
    ----------
    grad_full : Tensor or array_like of shape (rows, columns)
        The true gradient, e.g. of the full batch.
    grad_samples : Tensor or array_like of shape (samples, rows, columns)
        Stochastic gradients of the same weights.
    c : float
        Threshold, positive.
    kind : {"hard", "soft"}, default="hard"
        Which spectral clip.
    max_norm : float, optional
        Threshold of the clip of the Frobenius norm that it is compared with.

    Returns
    -------
    SpikeReport
        Its certificates are the two inequalities, with their assumptions as far as the samples show them. They are
        promised for the hard clip.

    Raises
    ------
    TypeError
        If an array is complex or not numeric.
    ValueError
        If the shapes do not fit, there is no sample, an entry is not finite, ``grad_full`` is zero, or a number is
        not positive.

    Notes
    -----
    Two SVDs per sample.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.optim.spectra_analysis import spike_report
    >>> rng = np.random.default_rng(0)
    >>> gradient = np.linalg.qr(rng.normal(size=(40, 30)))[0]
    >>> directions = [(rng.normal(size=(40, 1)), rng.normal(size=(30, 1))) for _ in range(50)]
    >>> samples = [gradient + 20 * (u / np.linalg.norm(u)) @ (v / np.linalg.norm(v)).T for u, v in directions]
    >>> report = spike_report(gradient, np.array(samples), c=1.0)
    >>> report.signal_kept > 0.9, report.global_signal_kept < 0.3
    (True, True)
    """
    threshold = check_real(c, "c", above=0)
    check_choice(kind, "kind", ("hard", "soft"))
    signal = _exact_matrix(grad_full, "grad_full")
    samples = _exact_matrix(grad_samples, "grad_samples", ndim=3).to(signal.device)
    if samples.shape[1:] != signal.shape:
        raise ValueError(
            f"grad_samples must have shape (samples, {signal.shape[0]}, {signal.shape[1]}), got {tuple(samples.shape)}"
        )
    largest = float(signal.abs().amax())
    if largest == 0:
        raise ValueError("grad_full must not be zero")
    # Squares are taken in a unit, a power of two, in which they neither overflow nor vanish.
    unit = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    signal, samples, threshold = signal / unit, samples / unit, threshold / unit
    energy = float(signal.square().sum())
    clipped = soft_clip(samples, threshold, "svd", "auto") if kind == "soft" else hard_clip(samples, threshold, "svd")
    lengths = torch.linalg.matrix_norm(clipped)
    raw_lengths = torch.linalg.matrix_norm(samples)
    if max_norm is None:
        radius = _radius_with_mean(raw_lengths, float(lengths.mean()))
    else:
        radius = check_real(max_norm, "max_norm", above=0) / unit
    shrink = (radius / raw_lengths.clamp_min(torch.finfo(raw_lengths.dtype).tiny)).clamp_max(1.0)
    signal_kept = float((clipped * signal).sum((-2, -1)).mean()) / energy
    second_moment = float(lengths.square().mean())
    rank, spike, high, low = _noise_shape(samples - signal, max(_precision(grad_full), _precision(grad_samples)))
    norm = float(torch.linalg.matrix_norm(signal, 2))
    bound = rank * min(threshold, spike + norm) ** 2 + energy
    limit = min(signal.shape) / (25 * rank**2) if rank else 1.0
    # With few samples the two estimates may leave it open.
    spread = Assumption(
        "the noise directions are spread out, anisotropy <= q / (25 rank^2)",
        True if high <= limit else False if low > limit else None,
    )
    above = Assumption(
        "the threshold is at least the spectral norm of the true gradient", threshold >= norm * (1 - 1e-12)
    )
    centered = Assumption("the noise has mean zero")
    certificates = (
        Certificate(
            "part of the signal kept by the spectral clip", signal_kept, 1 / 3, ">=", (above, spread, centered)
        ),
        Certificate(
            "second moment of the clipped gradients", second_moment * unit * unit, bound * (1 + 1e-9) * unit * unit
        ),
    )
    return SpikeReport(
        signal_kept=signal_kept,
        second_moment=second_moment * unit * unit,
        bound=bound * unit * unit,
        global_signal_kept=float((shrink * (samples * signal).sum((-2, -1))).mean()) / energy,
        max_norm=radius * unit,
        rank=rank,
        spike=spike * unit,
        anisotropy=low,
        certificates=certificates,
    )


def _exact_matrix(array: Any, name: str, *, ndim: int = 2) -> Tensor:
    """A finite, non-empty real array as a tensor in float64, on the device where it is."""
    if not isinstance(array, Tensor):
        # A copy in the order and byte order that torch can read.
        return torch.from_numpy(np.array(as_float_array(array, name, ndim=ndim), order="C"))
    tensor = array.detach()
    check_dense_real(tensor, name)
    if tensor.ndim != ndim or tensor.numel() == 0:
        raise ValueError(f"{name} must be a {ndim}-D array and not empty, got shape {tuple(tensor.shape)}")
    exact = tensor.to(exact_dtype(tensor))
    if not bool(torch.isfinite(exact).all()):
        raise ValueError(f"{name} must be finite, got nan or infinite entries")
    return exact


def _precision(array: Any) -> float:
    """Relative spacing of the numbers that an array came in."""
    if isinstance(array, Tensor):
        return torch.finfo(array.dtype if array.dtype.is_floating_point else torch.float64).eps
    dtype = np.asarray(array).dtype
    return float(np.finfo(dtype if dtype.kind == "f" and dtype.itemsize <= 8 else np.float64).eps)


def _radius_with_mean(lengths: Tensor, mean: float) -> float:
    """The ``radius`` for which the mean of ``min(length, radius)`` is the given one."""
    ordered = torch.sort(lengths).values
    if mean >= float(ordered.mean()):
        return float(ordered[-1])
    n = len(ordered)
    # With radius = ordered[i], the i shorter ones count in full and the others as the radius.
    sums = torch.cumsum(ordered, 0) - ordered
    remaining = n - torch.arange(n, dtype=ordered.dtype, device=ordered.device)
    means = (sums + remaining * ordered) / n
    i = min(int(torch.searchsorted(means, mean)), n - 1)  # rounding may put it one too far
    return float((mean * n - sums[i]) / remaining[i])


def _noise_shape(noise: Tensor, precision: float) -> tuple[int, float, float, float]:
    """Largest rank and spectral norm of the samples; anisotropy of their singular vectors, estimated twice.

    The plain estimate is the norm of a mean of projectors, which is too large for few samples. The other takes the
    direction from one half of the samples and the projectors from the other half, which is too small if anything.
    """
    left, values, right = torch.linalg.svd(noise, full_matrices=False)
    spike = float(values.amax())
    if spike == 0:
        return 0, 0.0, 1.0, 1.0
    present = values > spike * (10 * max(noise.shape[-2:]) * precision)
    rank = int(present.sum(-1).amax())
    high, low = 0.0, 0.0 if len(noise) > 1 else math.nan
    for vectors in (left * present[:, None, :], right.mT * present[:, None, :]):
        size = vectors.shape[1] / rank
        halves = [torch.einsum("sir,sjr->ij", half, half) / len(half) for half in (vectors[::2], vectors[1::2])]
        whole = torch.einsum("sir,sjr->ij", vectors, vectors) / len(vectors)
        high = max(high, size * float(torch.linalg.matrix_norm(whole, 2)))
        for first, second in (halves, halves[::-1]) if len(noise) > 1 else ():
            direction = torch.linalg.eigh(first).eigenvectors[:, -1]
            low = max(low, size * float(direction @ second @ direction))
    return rank, spike, high, low
