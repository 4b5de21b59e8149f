r"""The linear-core loss as a training criterion, called like ``torch.nn.CrossEntropyLoss``.

With ``K`` classes the scores ``h`` of an example are first centred, so that they sum to zero, and every class ``k``
other than the label pays :math:`\Phi(-h_k)`: it has to score ``tau`` below the average before its slope begins to fade.
The constraint on the sum makes the bound of the binary loss carry over with the same constant ``1 / tau``; a sum of
:math:`\Phi(h_y - h_k)` over pairs looks as natural and has no linear bound at all.

Slope and value of the tail come out of one pass, and the slope is all that the backward pass needs. The fast path
makes both in blocks of rows that stay in the cache, keeps the slope, and its gradient is one product; it is tested
against the same loss written in differentiable operations, which also serves second derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.supervised.linear_core import LinearCoreTail, check_range, resolve_tail, tensor_loss
from assay.validation import check_choice, check_integer, check_real

__all__ = ["LabelRangeError", "LabelTypeError", "LinearCoreLoss"]

# Entries of the scores that are worked on at a time on a processor with caches.
_BLOCK_ENTRIES = 1 << 18

Shape = tuple[float, float, LinearCoreTail]


class LabelRangeError(ValueError, IndexError):
    """A label that is not one of the classes; also an ``IndexError``, which ``CrossEntropyLoss`` raises for it."""


class LabelTypeError(TypeError, RuntimeError):
    """Labels of a wrong dtype; also a ``RuntimeError``, which ``CrossEntropyLoss`` raises for it."""


class LinearCoreLoss(nn.Module):
    r"""Smooth convex classification loss whose excess risk bounds the excess error linearly.

    For scores :math:`h \in R^K` with centred form :math:`\tilde h_k = s (h_k - \frac1K \sum_j h_j)` and label ``y``,

    .. math:: \ell(h, y) = \sum_{k \ne y} \Phi(-\tilde h_k),

    with the :math:`\Phi` of :func:`~assay.supervised.linear_core`. For every distribution and every classifier,
    ``error - Bayes error <= (risk - least risk) / tau``.

    Parameters
    ----------
    tau : float, default=0.7
        Where the linear part ends; the bound has the constant ``1 / tau``.
    sigma : float, default=0.3
        Width of the tail; the gradient has Lipschitz constant :attr:`curvature` in the scores.
    tail : {"exp", "quad", "gamma", "smoothstep"} or LinearCoreTail, default="exp"
        Shape of the tail.
    mode : {"multiclass", "binary"}, default="multiclass"
        Scores of classes, or one score whose sign is the prediction.
    reduction : {"mean", "sum", "none"}, default="mean"
        As in ``CrossEntropyLoss``: the mean is weighted when there are class weights, and leaves out ignored labels.
    score_scale : float, default=1.0
        Multiplies the scores. With many classes the correct score has to reach about ``(K - 1) tau`` before the
        slopes fade; a scale between ``sqrt(K)`` and ``K / 5`` lets a network get there sooner. The bound keeps its
        constant, for the scaled scores.
    weight : torch.Tensor of shape (n_classes,), optional
        Weights of the labels; for ``"binary"`` of the negative and the positive one. The bound is then about the
        error with these weights.
    constrained : bool, default=True
        False replaces the loss by :math:`\sum_{k \ne y} \Phi(s (h_y - h_k))`. It is there to be compared with: the
        ratio of its excess risk to the excess error has no positive lower bound for three classes or more.
    ignore_index : int, default=-100
        Label of the examples that are left out.

    Attributes
    ----------
    consistency_constant : float
        ``1 / tau``, or infinity when ``constrained=False`` and there may be more than two classes.
    curvature : float
        Lipschitz constant of the gradient of the loss of one example in its scores.

    Raises
    ------
    ValueError, TypeError
        If a parameter is outside its range or of a wrong type.

    Notes
    -----
    Takes the shapes that ``CrossEntropyLoss`` takes: scores ``(K,)``, ``(B, K)`` or ``(B, K, d1, ...)``, with class
    labels of the shape without the class axis, or with class probabilities of the same shape. For ``"binary"`` scores
    and labels have one shape and the labels are in {-1, 1} or in {0, 1}. A nan in the scores makes the loss nan, and
    so does an infinity among them, since they are centred: mask a class with a large negative number instead.
    Half-precision scores are computed in single precision, and under autocast the loss is in single precision.

    Time is linear in the number of scores, and memory is twice their size, the gradient included.

    References
    ----------
    M. Mohri, Y. Zhong. Linear-Core Surrogates: Smooth Loss Functions with Linear Rates for Classification and
    Structured Prediction. ICML 2026. arXiv:2604.27742.

    Y. Lee, Y. Lin, G. Wahba. Multicategory Support Vector Machines. Journal of the American Statistical Association,
    2004. (The constraint on the sum of the scores.)

    Examples
    --------
    >>> import torch
    >>> from assay.supervised import LinearCoreLoss
    >>> scores = torch.tensor([[2.0, -1.0, -1.0], [0.3, 0.0, 0.0]], requires_grad=True)
    >>> loss = LinearCoreLoss()(scores, torch.tensor([0, 1]))
    >>> round(loss.item(), 4)
    1.1604
    >>> loss.backward()
    """

    weight: Tensor | None

    def __init__(
        self,
        tau: float = 0.7,
        sigma: float = 0.3,
        tail: str | LinearCoreTail = "exp",
        mode: str = "multiclass",
        reduction: str = "mean",
        score_scale: float = 1.0,
        weight: Tensor | None = None,
        constrained: bool = True,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        self.tau = check_real(tau, "tau", above=0)
        self.sigma = check_real(sigma, "sigma", above=0)
        self.tail = resolve_tail(tail)
        self.mode = check_choice(mode, "mode", ("multiclass", "binary"))
        self.reduction = check_choice(reduction, "reduction", ("mean", "sum", "none"))
        self.score_scale = check_real(score_scale, "score_scale", above=0)
        self.ignore_index = check_integer(ignore_index, "ignore_index")
        if not isinstance(constrained, bool):
            raise TypeError(f"constrained must be True or False, got {constrained!r}")
        self.constrained = constrained
        self.register_buffer("weight", _check_weight(weight, self.mode))

    @property
    def consistency_constant(self) -> float:
        """Constant with which the excess risk bounds the excess error."""
        return 1.0 / self.tau if self.constrained or self.mode == "binary" else float("inf")

    @property
    def curvature(self) -> float:
        """Lipschitz constant of the gradient of the loss of one example in its scores."""
        per_margin = self.tail.curvature / self.sigma * self.score_scale**2
        # With pairs, the differences from one score have a Gram matrix of norm K, which is not known here.
        return per_margin if self.constrained or self.mode == "binary" else float("inf")

    def extra_repr(self) -> str:
        """What ``print`` shows between the brackets."""
        shown = f"tau={self.tau:g}, sigma={self.sigma:g}, tail={self.tail.name!r}, mode={self.mode!r}"
        return (
            shown + f", reduction={self.reduction!r}, score_scale={self.score_scale:g}, constrained={self.constrained}"
        )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Loss of a batch.

        Parameters
        ----------
        input : torch.Tensor of shape (K,), (B, K) or (B, K, d1, ...); any shape for ``mode="binary"``
            Scores.
        target : torch.Tensor
            Labels, or class probabilities.

        Returns
        -------
        torch.Tensor
            A scalar, or with ``reduction="none"`` one loss per label.

        Raises
        ------
        ValueError
            If shapes do not fit, there are fewer than two classes, a setting is zero or infinite in the dtype of the
            scores, or a label is not one of the classes. On an accelerator the last is an assertion of the device, so
            that no step waits for the check.
        TypeError
            If scores or labels have a dtype that is not accepted.
        """
        for name, tensor in (("input", input), ("target", target)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if input.is_complex():
            raise TypeError(f"input must be a real tensor, got dtype {input.dtype}")
        scores = input if input.is_floating_point() else input.to(torch.get_default_dtype())
        autocast = torch.is_autocast_enabled(input.device.type)
        dtype = torch.float32 if autocast and scores.dtype.itemsize < 4 else scores.dtype
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        scale = self.score_scale
        check_range(
            scores.dtype, tau=self.tau, sigma=self.sigma, score_scale=scale, **{"tau / score_scale": self.tau / scale}
        )
        losses, weights = (self._binary if self.mode == "binary" else self._multiclass)(scores, target)
        if self.reduction == "none":
            return losses.to(dtype)
        total = losses.sum()
        return (total if self.reduction == "sum" else total / weights.sum()).to(dtype)

    def _multiclass(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted losses in the shape of the labels, and the weights by whose sum the mean divides."""
        if scores.ndim == 0:
            raise ValueError("input must have a class axis: shape (K,), (B, K) or (B, K, d1, ...), got ()")
        class_axis = min(scores.ndim - 1, 1)
        label_shape = scores.shape[:class_axis] + scores.shape[class_axis + 1 :]
        classes = scores.shape[class_axis]
        if classes < 2:
            raise ValueError(f"input must have at least 2 classes, got shape {tuple(scores.shape)}")
        weight = None if self.weight is None else self.weight.to(scores)
        if weight is not None and weight.shape[0] != classes:
            raise ValueError(f"weight must have one entry per class, got {weight.shape[0]} for {classes} classes")
        rows = scores.movedim(class_axis, -1).reshape(-1, classes)
        shape = (self.tau, self.sigma, self.tail)

        if target.is_floating_point() and target.shape == scores.shape:
            if not self.constrained:
                raise ValueError("target must be class labels when constrained=False, got class probabilities")
            shares = target.movedim(class_axis, -1).reshape(-1, classes).to(rows)
            shares = shares if weight is None else shares * weight
            # The expected cost of predicting a class is the share of all the others.
            losses = _cost_weighted(rows, shares.sum(1, keepdim=True) - shares, shape, self.score_scale)
            return losses.reshape(label_shape), torch.ones_like(losses)

        if target.dtype not in (torch.int64, torch.uint8):
            raise LabelTypeError(
                f"target must be class labels of dtype torch.int64, or class probabilities of the shape of input, "
                f"{tuple(scores.shape)}; got dtype {target.dtype} and shape {tuple(target.shape)}"
            )
        if target.shape != label_shape:
            raise ValueError(
                f"target must have shape {tuple(label_shape)} for input of shape {tuple(scores.shape)}, "
                f"got {tuple(target.shape)}"
            )
        labels = target.reshape(-1).long()
        kept = labels != self.ignore_index
        labels = torch.where(kept, labels, 0)
        if not self.constrained:
            _require_labels(labels, classes)
            losses = _pairwise(rows, labels, shape, self.score_scale)
        elif _is_transformed(rows, labels):
            others = (labels[:, None] != torch.arange(classes, device=labels.device)).to(rows)
            losses = _cost_weighted(rows, others, shape, self.score_scale)
        else:
            _require_labels(labels, classes)
            losses = _OneVersusRest.apply(rows, labels, *shape, self.score_scale)
        weights = kept.to(losses) if weight is None else torch.where(kept, weight[labels], 0.0)
        losses = torch.where(kept, losses if weight is None else losses * weights, 0.0)
        return losses.reshape(label_shape), weights

    def _binary(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if target.shape != scores.shape:
            raise ValueError(
                f"target must have the shape of input, {tuple(scores.shape)}, when mode='binary', "
                f"got {tuple(target.shape)}"
            )
        if target.is_complex():
            raise LabelTypeError(f"target must be real, got dtype {target.dtype}")
        kept = target != self.ignore_index
        labels = torch.where(kept, target, 1)
        both = ((labels == 1) | (labels == 0)).all() | ((labels == 1) | (labels == -1)).all()
        if torch.compiler.is_compiling() or both.device.type == "cuda":
            torch._assert_async(both)
        elif not _is_transformed(both) and not both:
            raise LabelRangeError("target must have values in {-1, 1} or in {0, 1} when mode='binary', got others")
        positive = labels == 1
        sign = positive.to(scores) * 2.0 - 1.0
        losses = tensor_loss(sign * scores * self.score_scale, self.tau, self.sigma, self.tail)
        weights = kept.to(losses)
        if self.weight is not None:
            weights = weights * self.weight.to(losses)[positive.long()]
        return torch.where(kept, losses * weights, 0.0), weights


def _cost_weighted(scores: Tensor, costs: Tensor, shape: Shape, scale: float) -> Tensor:
    """Sum over the classes of cost times loss of minus the centred score, in differentiable operations."""
    centred = (scores - scores.mean(1, keepdim=True)) * scale
    return (costs * tensor_loss(-centred, *shape)).sum(1)


def _pairwise(scores: Tensor, labels: Tensor, shape: Shape, scale: float) -> Tensor:
    own = labels[:, None]
    margins = (scores.gather(1, own) - scores) * scale
    return tensor_loss(margins, *shape).scatter(1, own, 0.0).sum(1)


def _require_labels(labels: Tensor, classes: int) -> None:
    """Raise if a label on the processor is not a class; elsewhere the indexing kernels assert it."""
    if _is_transformed(labels) or labels.device.type != "cpu" or labels.numel() == 0:
        return
    low, high = labels.aminmax()
    if low < 0 or high >= classes:
        wrong = int(low) if low < 0 else int(high)
        raise LabelRangeError(f"target must have labels in [0, {classes}), or ignore_index, got {wrong}")


def _is_transformed(*tensors: Tensor) -> bool:
    """Whether torch is compiling, mapping or differentiating forwards, which all want plain operations."""
    return (
        torch.compiler.is_compiling()
        or torch.autograd.forward_ad._current_level >= 0
        or any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))
    )


class _OneVersusRest(torch.autograd.Function):
    """Losses of rows of scores for hard labels; keeps the slopes for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, labels: Tensor, tau: float, sigma: float, tail: LinearCoreTail, scale: float
    ) -> Tensor:
        losses, slopes = scores.new_empty(scores.shape[0]), torch.empty_like(scores)
        for block in _row_blocks(scores):
            rows, own = scores[block], labels[block, None]
            # Height of each score above -tau; the label's own is sent to where value and slope are zero.
            height = torch.sub(rows, rows.mean(1, keepdim=True) - tau / scale, out=slopes[block])
            height.mul_(scale).scatter_(1, own, -torch.inf)
            line = height.clamp_min(0.0).sum(1)
            value, slope = tail.evaluate(height.mul_(-1.0 / sigma).clamp_(0.0, tail.reach))
            torch.add(line, value.sum(1), alpha=sigma, out=losses[block])
            slopes[block] = slope
        ctx.save_for_backward(scores, labels, slopes)
        ctx.parameters = tau, sigma, tail, scale
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scores, labels, slopes = ctx.saved_tensors
        tau, sigma, tail, scale = ctx.parameters
        per_row = (upstream * scale)[:, None]
        if torch.is_grad_enabled():
            # The gradient is to be differentiated again, and what was kept has lost its dependence on the scores.
            centred = (scores - scores.mean(1, keepdim=True)) * scale
            steepness = tail.evaluate((-(centred + tau) / sigma).clamp(0.0, tail.reach))[1]
            steepness = steepness.scatter(1, labels[:, None], 0.0)
            return (steepness - steepness.mean(1, keepdim=True)) * per_row, None, None, None, None, None
        gradient = torch.empty_like(slopes)
        for block in _row_blocks(slopes):
            part = torch.sub(slopes[block], slopes[block].mean(1, keepdim=True), out=gradient[block])
            part.mul_(per_row[block])
        return gradient, None, None, None, None, None


def _row_blocks(matrix: Tensor) -> list[slice]:
    """Slices of rows that fit the cache; one slice on an accelerator, where every launch costs."""
    rows, columns = matrix.shape
    size = max(1, _BLOCK_ENTRIES // columns) if matrix.device.type == "cpu" else max(1, rows)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _check_weight(weight: Tensor | None, mode: str) -> Tensor | None:
    if weight is None:
        return None
    if not isinstance(weight, Tensor) or weight.is_complex():
        raise TypeError(f"weight must be a real torch.Tensor or None, got {type(weight).__name__}")
    if weight.ndim != 1 or (mode == "binary" and weight.shape != (2,)):
        wanted = "shape (2,), for the negative and the positive label" if mode == "binary" else "shape (n_classes,)"
        raise ValueError(f"weight must have {wanted}, got {tuple(weight.shape)}")
    values = weight.detach().double()
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        raise ValueError("weight must have finite non-negative entries, got others")
    return weight.detach().clone()
