"""AdamW and Signum with the spectral clip built in.

The wrapper recovers the update from a difference of weights; here the update is at hand, so that no copy of the
weights is kept and 16-bit weights lose no digits of it. All settings live in the parameter groups, as torch's own
options do, so that a group can have its own and a checkpoint carries them.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from assay.optim import spectral
from assay.optim.spectra_rule import (
    SpectralOptimizer,
    check_bool,
    check_parameter,
    check_settings,
    clip_gradients,
    covers,
    pieces,
    resolve_base_lr,
    shape_scale,
    with_gradient,
)
from assay.validation import check_real

__all__ = ["SpectraAdamW", "SpectraSignum"]

Method = Literal["auto", "newton_schulz", "eigh", "svd", "hard", "normalize"]
Schedule = Literal["constant", "linear", "sqrt", "cosine", "exp", "square"]


class IntegratedSpectra(SpectralOptimizer):
    """Base of the optimizers that compute their update themselves."""

    def __init__(self, params: Any, defaults: dict[str, Any]):
        super().__init__(params, {**defaults, "spectral_step": 0, "nonfinite_updates": 0})

    def __setstate__(self, state: dict[str, Any]) -> None:
        replaced = self.__dict__.get("param_groups", [])
        super().__setstate__(state)
        # A checkpoint of the plain optimizer has no spectral settings: those of the group it is loaded into hold, but
        # for its counters.
        for group, own in itertools.zip_longest(self.param_groups, replaced, fillvalue={}):
            settings = {**own, "spectral_step": 0, "nonfinite_updates": 0}
            for name in self.defaults:
                group.setdefault(name, settings.get(name, self.defaults[name]))

    @property
    def steps_done(self) -> int:
        """Number of steps taken."""
        return self.param_groups[0]["spectral_step"]

    @property
    def nonfinite_updates(self) -> int:
        """Updates that were not finite and therefore not clipped."""
        return sum(group["nonfinite_updates"] for group in self.param_groups)

    def settings_of(self, index: int) -> Mapping[str, Any]:
        """The settings that hold for a parameter group."""
        return self.param_groups[index]

    def norm_bound(self, parameter: Tensor) -> float | None:
        """Bound on the spectral norm of a parameter that was carried along; None before its first clipped step."""
        return self.state.get(parameter, {}).get("norm_bound")

    def _set_norm_bound(self, parameter: Tensor, bound: float | None) -> None:
        if bound is None:
            self.state.get(parameter, {}).pop("norm_bound", None)
        else:
            self.state[parameter]["norm_bound"] = bound

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with settings of its own or those of the constructor."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            group["base_lr"] = resolve_base_lr(group, float(group.get("initial_lr", group["lr"])))
        except Exception:
            self.param_groups.pop()
            raise
        group["spectral_step"] = self.steps_done

    @torch._disable_dynamo  # the number of products and the batches depend on the update
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step.

        Parameters
        ----------
        closure : callable, optional
            Reevaluates the model and returns the loss.

        Returns
        -------
        object
            The loss if there is a closure.

        Raises
        ------
        RuntimeError
            If ``strict`` is set and a gradient is not finite, and then nothing has changed; or if an update is not
            although the gradients are, and then no weight of its group has moved.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_gradients()
        for index, group in enumerate(self.param_groups):
            parameters, threshold = with_gradient(group), self.threshold(index)
            foreach = group["foreach"] is not False
            clip_gradients(parameters, group)
            # Pieces bound the temporary memory. Strictness is about a group as a whole.
            limit = math.inf if group["strict"] else spectral.BATCH_ENTRIES if foreach else 0
            for piece in pieces(parameters, limit):
                self._step_piece(group, piece, threshold, foreach)
        for group in self.param_groups:
            group["spectral_step"] += 1
        return loss

    def _step_piece(
        self, group: dict[str, Any], parameters: list[Tensor], threshold: float | None, foreach: bool
    ) -> None:
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        self._accumulate(group, parameters, foreach)
        clipped = [p for p in parameters if threshold is not None and covers(group, p)]
        directions = self._directions(group, clipped, foreach)
        results = self._clip_directions(directions, group, threshold, batched=foreach) if clipped else []
        self._start_norm_bounds(clipped, clipped)
        if decay:
            if foreach:
                torch._foreach_mul_(parameters, 1.0 - lr * decay)
            else:
                for parameter in parameters:
                    parameter.mul_(1.0 - lr * decay)
        chosen = set(clipped)
        unclipped = [p for p in parameters if p not in chosen]
        self._step_unclipped(group, unclipped, foreach)
        for parameter in unclipped:  # its bound ends here
            self._set_norm_bound(parameter, None)
        for parameter, direction, result in zip(clipped, directions, results, strict=True):
            if result is None:
                group["nonfinite_updates"] += 1
                parameter.add_(direction, alpha=-lr)
                continue
            scale = shape_scale(group, parameter)
            parameter.add_(result, alpha=-lr * scale)
            self._advance_norm_bound(parameter, lr * decay, lr * scale * threshold)

    def _check_group(self, group: dict[str, Any]) -> None:
        check_settings(group)
        lr = group["lr"]
        check_real(lr.item() if isinstance(lr, Tensor) and lr.numel() == 1 else lr, "lr", minimum=0)
        check_real(group["weight_decay"], "weight_decay", minimum=0)
        if group["foreach"] is not None:
            check_bool(group["foreach"], "foreach", "None, True or False")
        check_bool(group["maximize"], "maximize")
        for parameter in group["params"]:
            check_parameter(parameter)

    @abc.abstractmethod
    def _accumulate(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> None:
        """Take the gradients up into the state."""

    @abc.abstractmethod
    def _directions(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> list[Tensor]:
        """The updates of the base method, in new tensors."""

    @abc.abstractmethod
    def _step_unclipped(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> None:
        """The step of the base method (its decay is done)."""


class SpectraAdamW(IntegratedSpectra):
    r"""AdamW with the singular values of every update clipped softly at ``clip``.

    :math:`U = \hat m/(\sqrt{\hat v} + \epsilon)` is AdamW's direction; a matrix moves by
    :math:`-\alpha\,\text{lr}\,H_c(U)` after its decoupled decay, everything else as in AdamW.

    Parameters
    ----------
    params : iterable of Tensor, of dict, or of (str, Tensor)
        As for any torch optimizer. A group can have settings of its own; ``clip=None`` makes it plain AdamW.
    lr : float or Tensor, default=1e-3
        Learning rate.
    betas : pair of float, default=(0.8, 0.999)
        Decay of the running means of the gradient and of its square.
    eps : float, default=1e-8
        Added to the denominator.
    weight_decay : float, default=0.1
        Decoupled decay.
    clip, pre_clip, method, ns_steps, scope, rect_scale : optional
        What is clipped and how, as in :class:`~assay.optim.spectra.Spectra`.
    warmup_steps, base_lr, clip_schedule, final_scale, total_steps, decay_fraction : optional
        Schedule of the threshold, as in :class:`~assay.optim.spectra.Spectra`.
    vector_rule, strict : optional
        As in :class:`~assay.optim.spectra.Spectra`.
    maximize : bool, default=False
        Go up instead of down.
    foreach : bool, optional
        False handles one tensor after the other, which needs the least memory. Otherwise tensors are handled
        together, and matrices of one shape are clipped in one batch; the results agree to rounding.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As :class:`~assay.optim.spectra.Spectra`, and for an ``lr``, ``betas``, ``eps`` or ``weight_decay`` out of
        range.

    Notes
    -----
    With ``clip=None`` or infinity the steps are those of ``torch.optim.AdamW``, bit for bit if the learning rate is a
    float. Its checkpoints (without amsgrad) can be loaded: they leave the spectral settings of the groups as they are.
    Memory: the two moments, as in AdamW. A loop compiled with :func:`torch.compile` runs the step eagerly.

    References
    ----------
    .. [1] X. Jiang, A. Semenov, S. U. Stich. Enhancing LLM Training via Spectral Clipping. ICML 2026,
       arXiv:2603.14315.

    Examples
    --------
    >>> import torch
    >>> from assay.optim.spectra import SpectraAdamW
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(8, 4)
    >>> optimizer = SpectraAdamW(model.parameters(), lr=3e-2, clip=1.0)
    >>> for _ in range(5):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(2, 8)).square().mean().backward()
    ...     optimizer.step()
    >>> print(optimizer.certificates()[0].holds)
    True
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.8, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
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
        maximize: bool = False,
        foreach: bool | None = None,
    ):
        defaults = {name: value for name, value in locals().items() if name not in ("self", "params", "__class__")}
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if not isinstance(group["betas"], Sequence) or isinstance(group["betas"], str):
            raise TypeError(f"betas must be two numbers in [0, 1), got {group['betas']!r}")
        if len(group["betas"]) != 2:
            raise ValueError(f"betas must be two numbers in [0, 1), got {group['betas']!r}")
        for i, beta in enumerate(group["betas"]):
            check_real(beta, f"betas[{i}]", minimum=0, below=1)
        check_real(group["eps"], "eps", minimum=0)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if any(group.get("amsgrad") for group in state.get("param_groups", ())):
            raise ValueError("state_dict must be of an AdamW without amsgrad")
        super().__setstate__(state)

    def _accumulate(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> None:
        beta1, beta2 = group["betas"]
        for parameter in parameters:
            state = self.state[parameter]
            if "exp_avg" not in state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["step"] = int(state["step"]) + 1
        gradients = _gradients(parameters, group["maximize"])
        means, squares = self._moments(parameters)
        if foreach:
            torch._foreach_lerp_(means, gradients, 1.0 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
        else:
            for mean, square, gradient in zip(means, squares, gradients, strict=True):
                mean.lerp_(gradient, 1.0 - beta1)
                square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)

    def _directions(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> list[Tensor]:
        means, _ = self._moments(parameters)
        denominators = self._denominators(group, parameters, foreach)
        beta1 = group["betas"][0]
        corrections = [1.0 - beta1 ** self.state[p]["step"] for p in parameters]
        if foreach and parameters:
            directions = torch._foreach_div(means, corrections)
            torch._foreach_div_(directions, denominators)
            return list(directions)
        return [
            (mean / correction).div_(denominator)
            for mean, correction, denominator in zip(means, corrections, denominators, strict=True)
        ]

    def _step_unclipped(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> None:
        means, _ = self._moments(parameters)
        denominators = self._denominators(group, parameters, foreach)
        lr, beta1 = float(group["lr"]), group["betas"][0]
        lengths = [-lr / (1.0 - beta1 ** self.state[p]["step"]) for p in parameters]
        if foreach and parameters:
            torch._foreach_addcdiv_(parameters, means, denominators, lengths)
            return
        for parameter, mean, denominator, length in zip(parameters, means, denominators, lengths, strict=True):
            parameter.addcdiv_(mean, denominator, value=length)

    def _moments(self, parameters: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        states = [self.state[p] for p in parameters]
        return [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]

    def _denominators(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> Sequence[Tensor]:
        _, squares = self._moments(parameters)
        roots = [math.sqrt(1.0 - group["betas"][1] ** self.state[p]["step"]) for p in parameters]
        if foreach and parameters:
            denominators = torch._foreach_sqrt(squares)
            torch._foreach_div_(denominators, roots)
            torch._foreach_add_(denominators, group["eps"])
            return denominators
        return [(square.sqrt() / root).add_(group["eps"]) for square, root in zip(squares, roots, strict=True)]


class SpectraSignum(IntegratedSpectra):
    r"""Sign descent with momentum, the singular values of every sign matrix clipped softly at ``clip``.

    With the buffer :math:`b \leftarrow \mu b + g`, the direction is :math:`\operatorname{sign}(g + \mu b)`
    (``nesterov=True``) or :math:`\operatorname{sign}(b)`. A sign matrix of size ``m`` by ``n`` has a spectral norm
    between :math:`\sqrt{\max(m, n)}` and :math:`\sqrt{mn}`: here the clip matters most.

    Parameters
    ----------
    params : iterable of Tensor, of dict, or of (str, Tensor)
        As for any torch optimizer. A group can have settings of its own; ``clip=None`` makes it plain Signum.
    lr : float or Tensor, default=1e-3
        Learning rate.
    momentum : float, default=0.95
        Decay of the buffer; 0 keeps none.
    nesterov : bool, default=True
        Look ahead by one step of the momentum.
    weight_decay : float, default=0.1
        Decoupled decay.
    clip, pre_clip, method, ns_steps, scope, rect_scale : optional
        What is clipped and how, as in :class:`~assay.optim.spectra.Spectra`.
    warmup_steps, base_lr, clip_schedule, final_scale, total_steps, decay_fraction : optional
        Schedule of the threshold, as in :class:`~assay.optim.spectra.Spectra`.
    vector_rule, strict : optional
        As in :class:`~assay.optim.spectra.Spectra`.
    maximize, foreach : optional
        As in :class:`SpectraAdamW`.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As :class:`SpectraAdamW`.

    References
    ----------
    .. [1] X. Jiang, A. Semenov, S. U. Stich. Enhancing LLM Training via Spectral Clipping. ICML 2026,
       arXiv:2603.14315.

    Examples
    --------
    >>> import torch
    >>> from assay.optim.spectra import SpectraSignum
    >>> weight = torch.nn.Parameter(torch.zeros(4, 4))
    >>> optimizer = SpectraSignum([weight], lr=0.1, clip=1.0)
    >>> weight.grad = torch.ones(4, 4)
    >>> optimizer.step()
    >>> weight.detach().norm()  # the sign matrix has norm 4, its clip 4 / sqrt(17)
    tensor(0.0970)
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
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
        maximize: bool = False,
        foreach: bool | None = None,
    ):
        defaults = {name: value for name, value in locals().items() if name not in ("self", "params", "__class__")}
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_real(group["momentum"], "momentum", minimum=0, below=1)
        check_bool(group["nesterov"], "nesterov")
        if group["nesterov"] and not group["momentum"]:
            raise ValueError("momentum must be greater than 0 for nesterov=True, got 0")

    def _accumulate(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> None:
        if not group["momentum"]:
            return
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        gradients = _gradients(parameters, group["maximize"])
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        if foreach:
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, gradients)
        else:
            for buffer, gradient in zip(buffers, gradients, strict=True):
                buffer.mul_(group["momentum"]).add_(gradient)

    def _directions(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> list[Tensor]:
        if not parameters:
            return []
        gradients = _gradients(parameters, group["maximize"])
        if not group["momentum"]:
            return [_sign(gradient) for gradient in gradients]
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        if not group["nesterov"]:
            return [_sign(buffer) for buffer in buffers]
        if foreach:
            ahead = torch._foreach_add(gradients, buffers, alpha=group["momentum"])
        else:
            ahead = [g.add(b, alpha=group["momentum"]) for g, b in zip(gradients, buffers, strict=True)]
        return [_sign(direction) for direction in ahead]

    def _step_unclipped(self, group: dict[str, Any], parameters: list[Tensor], foreach: bool) -> None:
        if not parameters:
            return
        directions, lr = self._directions(group, parameters, foreach), float(group["lr"])
        if foreach:
            torch._foreach_add_(parameters, directions, alpha=-lr)
            return
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.add_(direction, alpha=-lr)


def _sign(x: Tensor) -> Tensor:
    """The sign, with nan kept: ``torch.sign`` turns it into 0, which would hide it."""
    return torch.where(torch.isnan(x), x, torch.sign(x))


def _gradients(parameters: Sequence[Tensor], maximize: bool) -> list[Tensor]:
    gradients = [p.grad for p in parameters]
    return list(torch._foreach_neg(gradients)) if maximize else gradients
