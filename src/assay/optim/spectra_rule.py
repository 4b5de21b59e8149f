r"""What the SPECTRA optimizers share: the threshold schedule, what is clipped, and the bound on the weights.

A step is :math:`X_{k+1} = (1 - \lambda\eta_k) X_k - \alpha\,\eta_k\,H_{c_k}(U_k)`, with ``U`` the update of the base
optimizer, ``H`` a clip of its singular values at the threshold :math:`c_k`, and
:math:`\alpha = \sqrt{\max(1, \text{rows}/\text{columns})}`. Since :math:`\|H_c(U)\|_2 \le c`, the scalar recursion
:math:`B_{k+1} = |1 - \lambda\eta_k| B_k + \alpha\eta_k c_k`, started at a bound on the initial weights, stays above
:math:`\|X_k\|_2` for ever, and it costs one multiplication per matrix and step. That is why every optimizer here
carries it along and can certify the spectral norms of its weights at any time.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from assay.certificate import Assumption, Certificate
from assay.optim import spectral, spectral_kernels
from assay.validation import check_choice, check_integer, check_real

__all__ = ["PlannedStep", "SpectralOptimizer"]

DEFAULT_SETTINGS: Mapping[str, Any] = {
    "clip": 10.0,
    "pre_clip": None,
    "method": "auto",
    "ns_steps": "auto",
    "scope": "matrix",
    "rect_scale": True,
    "warmup_steps": 0,
    "base_lr": None,
    "clip_schedule": "constant",
    "final_scale": 0.0,
    "total_steps": None,
    "decay_fraction": 0.2,
    "vector_rule": "smooth",
    "strict": False,
}

METHODS = ("auto", "newton_schulz", "eigh", "svd", "hard", "normalize")
SCHEDULES = ("constant", "linear", "sqrt", "cosine", "exp", "square")

# Relative excess over a bound that rounding in float32 can explain.
TOLERANCE = 1e-4


@runtime_checkable
class Tracker(Protocol):
    """What an optimizer asks an attached tracker for."""

    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates of the steps that were watched."""
        ...


@dataclass(frozen=True)
class PlannedStep:
    """What the next step will do to one parameter, apart from its direction.

    Parameters
    ----------
    parameter : Tensor
        The parameter.
    name : str
        Its name if the groups were built from named parameters, else ``"group.position"``.
    lr, decay, scale, threshold : float
        The numbers of the step: learning rate, decoupled decay, factor for tall matrices, clip.
    method : str
        How the singular values are clipped.
    """

    parameter: Tensor
    name: str
    lr: float
    decay: float
    scale: float
    threshold: float
    method: str

    @property
    def cap(self) -> float:
        """Largest spectral norm that the step may have."""
        return self.lr * self.scale * self.threshold


class SpectralOptimizer(Optimizer, abc.ABC):
    """Base class of the optimizers that clip the singular values of their updates."""

    _tracker: Tracker | None = None

    @abc.abstractmethod
    def settings_of(self, index: int) -> Mapping[str, Any]:
        """The settings that hold for a parameter group."""

    @abc.abstractmethod
    def norm_bound(self, parameter: Tensor) -> float | None:
        """Bound on the spectral norm of a parameter that was carried along; None before its first clipped step."""

    @abc.abstractmethod
    def _set_norm_bound(self, parameter: Tensor, bound: float | None) -> None:
        """Enter a bound, or forget it."""

    @property
    @abc.abstractmethod
    def steps_done(self) -> int:
        """Number of steps taken, which the threshold schedule counts from."""

    def attach(self, tracker: Tracker) -> None:
        """Let :meth:`certificates` report what a tracker has seen, instead of one that was attached before."""
        self._tracker = tracker

    def detach(self, tracker: Tracker) -> None:
        """Undo :meth:`attach`, unless another tracker has taken its place."""
        if self._tracker is tracker:
            self._tracker = None

    def threshold(self, index: int = 0) -> float | None:
        """Threshold of the next step for the parameter group ``index``; None if the group is not clipped."""
        settings = self.settings_of(index)
        # Users set group["clip"] in mid-training.
        if settings["clip"] is None or math.isinf(check_real(settings["clip"], "clip", above=0, allow_infinite=True)):
            return None
        return scheduled_threshold(settings, self.steps_done, float(self.param_groups[index]["lr"]))

    def planned_steps(self) -> list[PlannedStep]:
        """What the next step will do, for every parameter whose update it clips (if it has a gradient)."""
        planned, seen = [], set()
        for index, group in enumerate(self.param_groups):
            settings, threshold = self.settings_of(index), self.threshold(index)
            if threshold is None:
                continue
            names = group.get("param_names") or [f"{index}.{i}" for i in range(len(group["params"]))]
            lr, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
            for parameter, name in zip(group["params"], names, strict=True):
                if covers(settings, parameter) and parameter not in seen:
                    seen.add(parameter)
                    scale = shape_scale(settings, parameter)
                    planned.append(PlannedStep(parameter, name, lr, decay, scale, threshold, settings["method"]))
        return planned

    def certificates(self) -> tuple[Certificate, ...]:
        """Certify the spectral norms of the weights as they are now.

        The weight norms come from an SVD in float64 that is made when this is called; the bound was carried along
        at no measurable cost. With a :class:`~assay.optim.spectra_certificate.SpectraCertificate` attached, its
        certificate for the size of the applied updates is included.

        Returns
        -------
        tuple of Certificate
            Empty before the first step, or if nothing is clipped.
        """
        parameters = [plan.parameter for plan in self.planned_steps()]
        bounded = [(p, bound) for p in parameters if (bound := self.norm_bound(p)) is not None]
        watched = self._tracker.certificates() if self._tracker is not None else ()
        if not bounded:
            return watched
        norms = [spectral.spectral_norm(p.detach()) for p, _ in bounded]
        return *watched, weight_norm_certificate(norms, [bound for _, bound in bounded], [p for p, _ in bounded])

    def _clip_directions(
        self, directions: Sequence[Tensor], settings: Mapping[str, Any], threshold: float, *, batched: bool
    ) -> list[Tensor | None]:
        """Clipped directions; None in place of one that is not finite.

        Raises RuntimeError instead if the settings are strict.
        """
        finite = spectral.are_finite(directions)
        if settings["strict"]:
            refuse_nonfinite(finite)
        clipped: list[Tensor | None] = [None] * len(directions)
        usable = [i for i, flag in enumerate(finite) if flag]
        results = clip_directions([directions[i] for i in usable], settings, threshold, batched=batched)
        for i, result in zip(usable, results, strict=True):
            clipped[i] = result
        return clipped

    def _check_gradients(self) -> None:
        """Refuse what no step can be made of, before anything has changed."""
        for index, group in enumerate(self.param_groups):
            parameters = with_gradient(group)
            for parameter in parameters:
                spectral.check_dense_real(parameter.grad, "gradients")
            if self.settings_of(index)["strict"]:
                refuse_nonfinite(spectral.are_finite([p.grad for p in parameters]))

    def _start_norm_bounds(self, parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Enter the Frobenius norm of the weights for the parameters that have no bound yet."""
        fresh = [(p, w) for p, w in zip(parameters, weights, strict=True) if self.norm_bound(p) is None]
        norms = [torch.linalg.vector_norm(w, dtype=torch.promote_types(w.dtype, torch.float32)) for _, w in fresh]
        for (parameter, _), norm in zip(fresh, norms, strict=True):
            # A sum of squares in float32 may come out a little low.
            self._set_norm_bound(parameter, float(norm) * (1 + TOLERANCE / 10))

    def _advance_norm_bound(self, parameter: Tensor, decay: float, cap: float) -> None:
        self._set_norm_bound(parameter, abs(1.0 - decay) * self.norm_bound(parameter) + cap)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check every setting of a parameter group."""
    for name in ("clip", "pre_clip"):
        if settings[name] is not None:
            check_real(settings[name], name, above=0, allow_infinite=True)
    check_choice(settings["method"], "method", METHODS)
    spectral.check_ns_steps(settings["ns_steps"])
    check_choice(settings["scope"], "scope", ("matrix", "all"))
    check_choice(settings["vector_rule"], "vector_rule", ("smooth", "code"))
    for name in ("rect_scale", "strict"):
        check_bool(settings[name], name)
    check_integer(settings["warmup_steps"], "warmup_steps", minimum=0)
    if settings["base_lr"] is not None:
        check_real(settings["base_lr"], "base_lr", above=0)
    schedule = check_choice(settings["clip_schedule"], "clip_schedule", SCHEDULES)
    final_scale = check_real(settings["final_scale"], "final_scale", minimum=0, maximum=1)
    check_real(settings["decay_fraction"], "decay_fraction", above=0, maximum=1)
    if settings["total_steps"] is not None:
        check_integer(settings["total_steps"], "total_steps", minimum=1)
    elif schedule != "constant":
        raise ValueError(f"total_steps must be given for clip_schedule={schedule!r}, got None")
    if schedule == "exp" and final_scale == 0:
        raise ValueError("final_scale must be greater than 0 for clip_schedule='exp', got 0")


def check_bool(flag: Any, name: str, accepted: str = "True or False") -> None:
    """Refuse what only looks like a flag: "no" is true."""
    if not isinstance(flag, bool):
        raise TypeError(f"{name} must be {accepted}, got {flag!r}")


def resolve_base_lr(settings: Mapping[str, Any], lr: float) -> float:
    """The learning rate after the warmup: the one asked for, else that of the group."""
    if settings["base_lr"] is not None:
        return float(settings["base_lr"])
    if settings["warmup_steps"] and lr == 0:
        raise ValueError("base_lr must be given for warmup_steps > 0 if the learning rate starts at 0")
    return lr


def check_parameter(parameter: Tensor) -> None:
    """Refuse parameters whose singular values are out of reach."""
    if hasattr(parameter, "device_mesh") or getattr(parameter, "_is_flat_param", False):
        raise NotImplementedError(
            "params must be whole tensors: a matrix sharded by FSDP or DTensor has no singular values on one rank"
        )
    spectral.check_dense_real(parameter, "params")


def refuse_nonfinite(finite: Sequence[bool]) -> None:
    """What strict settings do about updates that are not finite."""
    if not all(finite):
        raise RuntimeError(
            f"{finite.count(False)} of {len(finite)} updates are not finite or have a gradient that is not; with "
            "strict=False they are applied without a clip and counted in nonfinite_updates"
        )


def with_gradient(group: Mapping[str, Any]) -> list[Tensor]:
    """The parameters of a group that have a gradient; one that is in it twice (tied weights) comes once."""
    return list(dict.fromkeys(p for p in group["params"] if p.grad is not None))


def pieces(tensors: Sequence[Tensor], limit: float) -> Iterator[list[Tensor]]:
    """Consecutive tensors with at most ``limit`` entries together, or one with more."""
    piece, entries = [], 0
    for tensor in tensors:
        if piece and entries + tensor.numel() > limit:
            yield piece
            piece, entries = [], 0
        piece.append(tensor)
        entries += tensor.numel()
    if piece:
        yield piece


def covers(settings: Mapping[str, Any], parameter: Tensor) -> bool:
    """Whether the updates of a parameter are clipped: matrices always, the others with ``scope="all"``.

    Neither the integers of a quantized layer, which have no gradient, nor what has no shape yet.
    """
    if is_lazy(parameter) or not parameter.is_floating_point() or parameter.numel() == 0:
        return False
    return parameter.ndim >= 2 or settings["scope"] == "all"


def shape_scale(settings: Mapping[str, Any], parameter: Tensor) -> float:
    """The factor ``sqrt(max(1, rows / columns))`` of a matrix."""
    if not settings["rect_scale"] or parameter.ndim < 2:
        return 1.0
    rows = parameter.shape[0]
    return math.sqrt(max(1.0, rows / (parameter.numel() // rows)))


def scheduled_threshold(settings: Mapping[str, Any], step: int, lr: float) -> float:
    """Threshold at a step: ``clip * base_lr / lr`` in the warmup, then ``clip``, then its decay."""
    clip = float(settings["clip"])
    if step < settings["warmup_steps"]:
        return clip * settings["base_lr"] / max(lr, 1e-10)
    schedule, total = settings["clip_schedule"], settings["total_steps"]
    if schedule == "constant":
        return clip
    n_decay = int(settings["decay_fraction"] * total)
    if step < total - n_decay:
        return clip
    progress = min((step - (total - n_decay)) / max(n_decay, 1), 1.0)
    final = settings["final_scale"]
    if schedule == "exp":
        return clip * final**progress
    remaining = {
        "linear": 1.0 - progress,
        "sqrt": 1.0 - math.sqrt(progress),
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        "square": 1.0 - progress**2,
    }[schedule]
    return clip * (final + (1.0 - final) * remaining)


def clip_directions(
    directions: Sequence[Tensor], settings: Mapping[str, Any], threshold: float, *, batched: bool
) -> list[Tensor]:
    """Clip finite directions at one threshold, equal shapes in one call if ``batched``."""
    if threshold == 0:  # the end of a schedule that decays to nothing
        return [torch.zeros_like(direction) for direction in directions]
    method, ns_steps = settings["method"], settings["ns_steps"]

    def clip_matrix(x: Tensor) -> Tensor:
        if method == "hard":
            return spectral_kernels.hard_clip(x, threshold, "auto")
        if method == "normalize":
            return spectral_kernels.normalize(x, threshold, "auto", ns_steps)
        return spectral_kernels.soft_clip(x, threshold, method, ns_steps)

    def clip_one_vector(v: Tensor) -> Tensor:
        return spectral.clip_vector(v, threshold, settings["vector_rule"])

    return spectral.clip_tensors(directions, clip_matrix, clip_one_vector, batched=batched)


def clip_gradients(parameters: Sequence[Tensor], settings: Mapping[str, Any]) -> None:
    """Clip the finite gradients of matrices in place at ``pre_clip``."""
    threshold = settings["pre_clip"]
    if threshold is None or math.isinf(check_real(threshold, "pre_clip", above=0, allow_infinite=True)):
        return
    gradients = [p.grad for p in parameters if p.grad is not None and p.grad.ndim >= 2 and p.grad.numel()]
    finite = [g for g, flag in zip(gradients, spectral.are_finite(gradients), strict=True) if flag]
    method = settings["method"] if settings["method"] in ("newton_schulz", "eigh", "svd") else "auto"
    soft = {**settings, "method": method}
    for piece in pieces(finite, spectral.BATCH_ENTRIES):
        for gradient, clipped in zip(piece, clip_directions(piece, soft, threshold, batched=True), strict=True):
            gradient.copy_(clipped)


def weight_norm_certificate(
    norms: Sequence[float], bounds: Sequence[float], parameters: Sequence[Tensor]
) -> Certificate:
    """Certificate for the worst of several weights; nan if one of them is."""
    ratios = [_ratio(norm, bound) for norm, bound in zip(norms, bounds, strict=True)]
    worst = max(ratios, key=lambda ratio: math.inf if math.isnan(ratio) else ratio)
    wide = all(torch.finfo(p.dtype).bits >= 32 for p in parameters)
    return Certificate(
        "spectral norm of the weights over the bound B <- (1 - lr * decay) B + scale * lr * clip, "
        f"largest of {len(ratios)}",
        worst,
        1.0 + TOLERANCE,
        assumptions=(
            Assumption("the weights are kept in float32 or wider", wide),
            Assumption("only this optimizer changes the weights"),
        ),
    )


def _ratio(norm: float, bound: float) -> float:
    if bound == 0:
        return 0.0 if norm == 0 else math.nan if math.isnan(norm) else math.inf
    return norm / bound
