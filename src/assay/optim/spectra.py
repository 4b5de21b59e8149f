r"""SPECTRA: cap the spectral norm of every update of the optimizer that you already use.

Adaptive optimizers make updates whose largest singular values are far above the rest. SPECTRA clips the singular
values of the base optimizer's update ``U`` softly, :math:`s \mapsto s/\sqrt{1 + s^2/c^2}`, and steps

.. math:: X_{k+1} = (1 - \lambda\eta_k) X_k - \alpha\,\eta_k\, H_{c_k}(U_k),

so that no step moves a matrix by more than :math:`\alpha\eta_k c_k` in spectral norm. Larger learning rates stay
stable, and decoupled decay keeps every weight matrix below an explicit bound (see
:mod:`assay.optim.spectra_rule`).

:class:`Spectra` wraps any optimizer with decoupled weight decay and recovers its update from the weights before and
after its step. :class:`SpectraAdamW` and :class:`SpectraSignum` have the clip built in: no copy of the weights, and
no digits lost in the difference.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.optim import spectral
from assay.optim.spectra_integrated import Method, Schedule, SpectraAdamW, SpectraSignum
from assay.optim.spectra_rule import (
    SpectralOptimizer,
    check_parameter,
    check_settings,
    clip_gradients,
    covers,
    pieces,
    resolve_base_lr,
    shape_scale,
    with_gradient,
)

__all__ = ["Spectra", "SpectraAdamW", "SpectraSignum"]

# torch optimizers whose weight decay is an L2 penalty in the gradient and that have no switch to decouple it.
_COUPLED = (
    torch.optim.SGD,
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)


class Spectra(SpectralOptimizer):
    r"""Clip the singular values of another optimizer's updates.

    The base optimizer makes its step; the wrapper recovers the update
    :math:`U_k = (X_k - X_{k+1})/\eta_k - \lambda X_k`, clips it, and steps from :math:`X_k` again. Parameter groups
    and state are those of the base: schedulers, ``zero_grad``, ``add_param_group`` and gradient scalers work on the
    wrapper. Build a learning rate scheduler on the wrapper *or* on the base, not on both.

    Parameters
    ----------
    base_optimizer : torch.optim.Optimizer
        With decoupled weight decay, e.g. ``torch.optim.AdamW``.
    clip : float or None, default=10.0
        Threshold ``c`` on the singular values of the update; try 1, 5 and 10 together with a learning rate 3 to 10
        times the usual one. None or infinity leaves the base optimizer as it is. A parameter group of the base that
        has an entry ``"clip"`` (or ``"pre_clip"``) uses its own.
    pre_clip : float or None, default=None
        Threshold on the singular values of the raw gradients, 0.1 in the paper's experiments, where it is advised
        against together with ``clip``. It comes before a clip of the global norm; if you make one, call
        :func:`~assay.optim.spectral.clip_gradients_spectral_` before it yourself instead.
    method : {"auto", "newton_schulz", "eigh", "svd", "hard", "normalize"}, default="auto"
        The first four compute the soft clip, see :func:`~assay.optim.spectral.soft_spectral_clip`. ``"hard"`` is
        :math:`\min(s, c)`; ``"normalize"`` makes all singular values ``c``, as Muon makes them 1.
    ns_steps : int or "auto", default="auto"
        Newton-Schulz iterations. ``"auto"`` adapts them to the update.
    scope : {"matrix", "all"}, default="matrix"
        Clip tensors of two or more dimensions, read as (first, all others), or vectors too, by their norm.
    rect_scale : bool, default=True
        Scale the step of a matrix by ``sqrt(max(1, rows / columns))``.
    warmup_steps : int, default=0
        During so many steps the threshold is ``clip * base_lr / lr``, so that the cap on the step is constant.
    base_lr : float, optional
        Learning rate after the warmup. By default ``initial_lr`` of the group if a scheduler has left it there, else
        its learning rate when it was added.
    clip_schedule : {"constant", "linear", "sqrt", "cosine", "exp", "square"}, default="constant"
        How the threshold decays in the last part of the run.
    final_scale : float, default=0.0
        What it decays to, as a part of ``clip``.
    total_steps : int, optional
        Length of the run; needed unless the schedule is constant.
    decay_fraction : float, default=0.2
        Part of the run in which it decays.
    vector_rule : {"smooth", "code"}, default="smooth"
        With ``scope="all"``: the soft clip of the norm, or the rule of the authors' code, which leaves a vector of
        norm at most ``c`` alone and is discontinuous there.
    strict : bool, default=False
        Raise if a gradient or an update to be clipped has a nan or an infinity in it. Otherwise that step of the base
        optimizer is kept, and counted in ``nonfinite_updates`` if it was to be clipped.

    Attributes
    ----------
    base_optimizer : torch.optim.Optimizer
        The wrapped optimizer.
    nonfinite_updates : int
        Updates that were not finite and therefore not clipped.

    Raises
    ------
    TypeError
        If ``base_optimizer`` is not an optimizer, an option has the wrong type, or a parameter is complex.
    ValueError
        If the weight decay of the base is coupled, or an option is out of range.
    NotImplementedError
        If a parameter is sharded (FSDP, DTensor).

    Notes
    -----
    Extra memory: one copy of the clipped weights while it steps, of all weights if it is strict. The difference of
    the weights loses the digits of the update when ``lr * |U|`` is below the spacing of the numbers: keep the weights
    in float32 or use :class:`SpectraAdamW` or :class:`SpectraSignum`; the wrapper warns about 16-bit weights. A loop
    compiled with :func:`torch.compile` runs the step eagerly.

    References
    ----------
    .. [1] X. Jiang, A. Semenov, S. U. Stich. Enhancing LLM Training via Spectral Clipping. ICML 2026,
       arXiv:2603.14315.

    Examples
    --------
    >>> import torch
    >>> from assay.optim.spectra import Spectra
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(8, 4)
    >>> optimizer = Spectra(torch.optim.AdamW(model.parameters(), lr=3e-2, weight_decay=0.1), clip=1.0)
    >>> for _ in range(5):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(2, 8)).square().mean().backward()
    ...     optimizer.step()
    >>> [certificate.holds for certificate in optimizer.certificates()]
    [True]
    """

    def __init__(
        self,
        base_optimizer: Optimizer,
        *,
        clip: float | None = 10.0,
        pre_clip: float | None = None,
        method: Method = "auto",
        ns_steps: int | Literal["auto"] = "auto",
        scope: Literal["matrix", "all"] = "matrix",
        rect_scale: bool = True,
        warmup_steps: int = 0,
        base_lr: float | None = None,
        clip_schedule: Schedule = "constant",
        final_scale: float = 0.0,
        total_steps: int | None = None,
        decay_fraction: float = 0.2,
        vector_rule: Literal["smooth", "code"] = "smooth",
        strict: bool = False,
    ):
        if not isinstance(base_optimizer, Optimizer):
            raise TypeError(f"base_optimizer must be a torch.optim.Optimizer, got {type(base_optimizer).__name__}")
        if isinstance(base_optimizer, SpectralOptimizer):
            raise TypeError("base_optimizer must be an optimizer that does not clip its updates already")
        settings = {
            "clip": clip,
            "pre_clip": pre_clip,
            "method": method,
            "ns_steps": ns_steps,
            "scope": scope,
            "rect_scale": rect_scale,
            "warmup_steps": warmup_steps,
            "base_lr": base_lr,
            "clip_schedule": clip_schedule,
            "final_scale": final_scale,
            "total_steps": total_steps,
            "decay_fraction": decay_fraction,
            "vector_rule": vector_rule,
            "strict": strict,
        }
        check_settings(settings)
        # Optimizer.__init__ would make groups and a state of its own; what it sets up besides is what unpickling needs.
        self.__setstate__(
            {
                "base_optimizer": base_optimizer,
                "defaults": dict(base_optimizer.defaults),
                "_settings": settings,
                "_base_lrs": [],
                "_norm_bounds": {},
                "_steps_done": 0,
                "nonfinite_updates": 0,
            }
        )
        self._enter_new_groups()

    # The groups and the state are those of the base, also after it replaced them in load_state_dict.
    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the base optimizer."""
        return self.base_optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base_optimizer.param_groups = groups

    @property
    def state(self) -> MutableMapping[Tensor, Any]:
        """The state of the base optimizer."""
        return self.base_optimizer.state

    @state.setter
    def state(self, state: MutableMapping[Tensor, Any]) -> None:
        self.base_optimizer.state = state

    @property
    def steps_done(self) -> int:
        """Number of steps taken."""
        return self._steps_done

    def settings_of(self, index: int) -> Mapping[str, Any]:
        """The settings that hold for a parameter group."""
        self._enter_new_groups()
        group = self.param_groups[index]
        own = {name: group[name] for name in ("clip", "pre_clip") if name in group}
        return {**self._settings, "base_lr": self._base_lrs[index], **own}

    def norm_bound(self, parameter: Tensor) -> float | None:
        """Bound on the spectral norm of a parameter that was carried along; None before its first clipped step."""
        return self._norm_bounds.get(parameter)

    def _set_norm_bound(self, parameter: Tensor, bound: float | None) -> None:
        if bound is None:
            self._norm_bounds.pop(parameter, None)
        else:
            self._norm_bounds[parameter] = bound

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer."""
        self.base_optimizer.add_param_group(param_group)
        try:
            self._enter_new_groups()
        except Exception:
            self.param_groups.pop()
            raise

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients."""
        self.base_optimizer.zero_grad(set_to_none=set_to_none)

    @torch._disable_dynamo  # the number of products and the batches depend on the update
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of the base optimizer with the singular values of its updates clipped.

        Parameters
        ----------
        closure : callable, optional
            Reevaluates the model and returns the loss; passed to the base optimizer.

        Returns
        -------
        object
            What the base optimizer returned: the loss if there is a closure.

        Raises
        ------
        RuntimeError
            If ``strict`` is set and a gradient or an update is not finite; the weights are then as before the step,
            and so is the state of the base optimizer if it was a gradient.
        """
        if closure is None:
            self._prepare_gradients()
        before = self._snapshot(all_parameters=closure is not None)
        restore = self._undo(before, all_parameters=closure is not None) if self._settings["strict"] else None
        loss = self.base_optimizer.step() if closure is None else self.base_optimizer.step(self._prepared(closure))
        try:
            for index, plan in before.items():
                self._redo(index, *plan)
        except RuntimeError:
            if restore is not None:
                restore()
            raise
        self._steps_done += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        """State as ``{"base": ..., "spectra": ...}``, of tensors and plain numbers."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        position = {p: i for i, p in enumerate(self._all_parameters())}
        self._enter_new_groups()
        content = {
            "base": self.base_optimizer.state_dict(),
            "spectra": {
                "step": self._steps_done,
                "base_lrs": list(self._base_lrs),
                "nonfinite_updates": self.nonfinite_updates,
                "norm_bounds": {position[p]: bound for p, bound in self._norm_bounds.items()},
            },
        }
        for hook in self._optimizer_state_dict_post_hooks.values():
            replaced = hook(self, content)
            content = content if replaced is None else replaced
        return content

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` returned.

        Raises
        ------
        ValueError
            If it has another form, the groups differ, or their weight decay is coupled; nothing has changed then.
        """
        content = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = hook(self, content)
            content = content if replaced is None else replaced
        if not {"base", "spectra"} <= content.keys():
            raise ValueError(f"state_dict must have the keys 'base' and 'spectra', got {sorted(map(str, content))}")
        own, parameters = content["spectra"], self._all_parameters()
        missing = {"step", "base_lrs", "nonfinite_updates", "norm_bounds"} - own.keys()
        if missing:
            raise ValueError(f"state_dict['spectra'] must have the keys {sorted(missing)}")
        step, base_lrs = int(own["step"]), [float(lr) for lr in own["base_lrs"]]
        bounds = {int(i): float(bound) for i, bound in own["norm_bounds"].items()}
        if len(base_lrs) != len(self.param_groups) or any(i not in range(len(parameters)) for i in bounds):
            raise ValueError(
                f"state_dict must be of an optimizer with as many groups and parameters, {len(self.param_groups)} and "
                f"{len(parameters)}, got {len(base_lrs)} groups"
            )
        for group in content["base"]["param_groups"]:
            _check_decoupled(self.base_optimizer, group)
        self.base_optimizer.load_state_dict(content["base"])
        self._steps_done, self._base_lrs = step, base_lrs
        self.nonfinite_updates = int(own["nonfinite_updates"])
        self._norm_bounds = {parameters[i]: bound for i, bound in bounds.items()}
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        names = ("base_optimizer", "defaults", "_settings", "_base_lrs", "_norm_bounds", "_steps_done")
        return {name: getattr(self, name) for name in (*names, "nonfinite_updates")}

    def _all_parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _enter_new_groups(self) -> None:
        """Take in groups that were added, to the base optimizer perhaps."""
        for group in self.param_groups[len(self._base_lrs) :]:
            self._enter_group(group)

    def _enter_group(self, group: dict[str, Any]) -> None:
        """Check a group of the base optimizer and note its learning rate."""
        _check_decoupled(self.base_optimizer, group)
        if "lr" not in group:
            raise ValueError("base_optimizer must have a learning rate 'lr' in every parameter group")
        own = {name: group[name] for name in ("clip", "pre_clip") if name in group}
        settings = {**self._settings, **own}
        check_settings(settings)
        for parameter in group["params"]:
            check_parameter(parameter)
        clipped = [p for p in group["params"] if settings["clip"] is not None and covers(settings, p)]
        if any(torch.finfo(p.dtype).bits < 32 for p in clipped):
            warnings.warn(
                "Spectra recovers updates from a difference of weights, which has few digits in 16 bits: keep the "
                "weights in float32, or use SpectraAdamW or SpectraSignum",
                stacklevel=5,
            )
        self._base_lrs.append(resolve_base_lr(settings, float(group.get("initial_lr", group["lr"]))))

    def _prepare_gradients(self) -> None:
        self._check_gradients()
        for index, group in enumerate(self.param_groups):
            clip_gradients(with_gradient(group), self.settings_of(index))

    def _prepared(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, with the raw gradients clipped behind it."""

        def evaluate() -> Any:
            loss = closure()
            with torch.no_grad():
                self._prepare_gradients()
            return loss

        return evaluate

    def _snapshot(self, *, all_parameters: bool) -> dict[int, tuple[float, float, float, list[Tensor], list[Tensor]]]:
        """By group: learning rate, decay, threshold, the parameters to be clipped and copies of them."""
        before = {}
        for index, group in enumerate(self.param_groups):
            lr, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
            settings, threshold = self.settings_of(index), self.threshold(index)
            stepping = list(dict.fromkeys(group["params"])) if all_parameters else with_gradient(group)
            if threshold is None:
                for parameter in stepping:  # its bound ends here
                    self._set_norm_bound(parameter, None)
            if threshold is None or lr == 0:  # a step of length 0 has no direction to recover
                continue
            parameters = [p for p in stepping if covers(settings, p)]
            if parameters:
                before[index] = lr, decay, threshold, parameters, [p.detach().clone() for p in parameters]
        return before

    def _undo(self, before: Mapping[int, tuple[Any, ...]], *, all_parameters: bool) -> Callable[[], None]:
        """What brings the weights and their bounds back, copying what has not been copied yet."""
        saved: dict[Tensor, Tensor] = {}
        for *_, parameters, copies in before.values():
            saved.update(zip(parameters, copies, strict=True))
        for parameter in self._all_parameters():
            if parameter not in saved and (all_parameters or parameter.grad is not None):
                saved[parameter] = parameter.detach().clone()
        bounds = dict(self._norm_bounds)

        def undo() -> None:
            for parameter, copy in saved.items():
                parameter.copy_(copy)
            self._norm_bounds = bounds

        return undo

    def _redo(
        self, index: int, lr: float, decay: float, threshold: float, parameters: list[Tensor], before: list[Tensor]
    ) -> None:
        """Replace the step of the base optimizer by one with a clipped direction."""
        settings = self.settings_of(index)
        start_of = {p: start for p, start in zip(parameters, before, strict=True) if p.grad is not None}
        for piece in pieces(list(start_of), spectral.BATCH_ENTRIES):
            starts = [start_of[p] for p in piece]
            self._start_norm_bounds(piece, starts)
            directions = []
            for parameter, start in zip(piece, starts, strict=True):
                wide = torch.promote_types(parameter.dtype, torch.float32)
                directions.append((start.to(wide) - parameter.to(wide)).div_(lr).sub_(start, alpha=decay))
            clipped = self._clip_directions(directions, settings, threshold, batched=True)
            for parameter, start, direction in zip(piece, starts, clipped, strict=True):
                if direction is None:
                    self.nonfinite_updates += 1
                    continue
                scale = shape_scale(settings, parameter)
                kept = start.to(direction.dtype, copy=True).mul_(1.0 - lr * decay)
                parameter.copy_(kept.add_(direction, alpha=-lr * scale))
                self._advance_norm_bound(parameter, lr * decay, lr * scale * threshold)


def _check_decoupled(base_optimizer: Optimizer, group: Mapping[str, Any]) -> None:
    """Refuse weight decay that is an L2 penalty, or that does not scale with the learning rate."""
    if not group.get("weight_decay", 0.0):
        return
    name = type(base_optimizer).__name__
    # torch's flag, and that of pytorch-optimizer; an optimizer with neither is taken at its word.
    decoupled = group.get("decoupled_weight_decay", group.get("weight_decouple"))
    if decoupled is None:
        decoupled = not isinstance(base_optimizer, _COUPLED)
    if not decoupled:
        raise ValueError(
            f"base_optimizer must use decoupled weight decay, but {name} with weight_decay={group['weight_decay']:g} "
            "adds it to the gradient; use AdamW, its option for decoupled decay, or weight_decay=0"
        )
    if group.get("fixed_decay"):
        raise ValueError(f"base_optimizer must scale its weight decay by the learning rate, but {name} has fixed_decay")
