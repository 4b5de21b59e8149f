r"""Anchored optimistic steps as a torch optimizer, for min-max training with one backward pass per step.

While training, the parameters hold the point :math:`y_k` at which the next gradient is taken; the iterate
:math:`z_k`, of which the theory speaks, is :math:`w_k = \beta_k z_0 + (1-\beta_k) z_k` without its anchor. With the
gradient :math:`g_k` that the parameters bring,

.. math:: z_{k+1} = w_k - \eta_k g_k, \qquad w_{k+1} = z_{k+1} + \beta_{k+1} (z_0 - z_{k+1}), \qquad
          y_{k+1} = w_{k+1} - \gamma_{k+1} g_k,

which is three passes over memory. The old gradient is not kept: it is in the parameters themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.certificate import Certificate
from assay.games.goma_measurements import FieldMeasurements
from assay.games.goma_schedule import PRESETS, STOCHASTIC, deterministic_weights, noisy_weights
from assay.games.goma_tensors import advance, explore
from assay.validation import check_choice, check_integer, check_real

__all__ = ["GOMA"]


class GOMA(Optimizer):
    r"""Anchored optimistic gradient steps for ``min_x max_y f(x, y)``.

    Parameters
    ----------
    params : iterable of Tensor, of dict, or of (str, Tensor)
        Parameters of both players. Those of the player that maximizes are in a group with ``maximize=True``.
    lr : float or Tensor
        Step size; for a gradient field with Lipschitz constant L at most ``1 / (2 L)`` with ``"halpern"``, less than
        ``1 / (2 sqrt(3) L)`` with ``"paper"``, at most ``1 / (4 L)`` with ``"explore"``, and ``1 / L`` with
        ``"stochastic"``. A group may have its own; the rate is proved for one step size.
    preset : {"halpern", "paper", "explore", "stochastic"}, default="halpern"
        Schedule, as in :func:`~assay.games.goma`. The last is for minibatches:
        :math:`\beta_k = 1/(k+2)`, no exploration, :math:`\eta_k = lr / (\sqrt\kappa (k+2)^{3/4})`.
    kappa : float, default=1.0
        Growth of the noise with the gradient, at least 1; used by ``"stochastic"`` only.
    maximize : bool, default=False
        Whether a group goes up instead of down.
    foreach : bool, optional
        Whether to treat the parameters of a group in one call; by default on CUDA devices. The results are the same.
    restart_every : int, optional
        Make the iterate the anchor after so many updates, as :meth:`reset_anchor` does.

    Attributes
    ----------
    steps_done : int
        Calls of :meth:`step`.

    Raises
    ------
    TypeError, ValueError
        If a setting is of another type or out of range, a parameter is complex, or groups differ in their preset.

    Notes
    -----
    The gradient that the first :meth:`step` sees is that at the start, :math:`g_{-1} = F(z_0)`, and it only moves the
    parameters to :math:`y_0`; ``K + 1`` steps make ``K`` updates. With ``"stochastic"`` there is no exploration, and
    ``K`` steps make as many updates. For validation and for checkpoints of the model call :meth:`eval_mode`, which puts
    :math:`z_k` into the parameters, and :meth:`train_mode` before training goes on.

    Every parameter counts its own updates. One without a gradient is left alone, its anchor too. State per parameter:
    the anchor and :math:`w_k`, in the dtype of the parameter (in 16 bits the weight of the anchor soon drops below what
    an addition can resolve). Gradients are not looked at: as in ``torch.optim.SGD`` a nan in one makes nan parameters;
    :class:`torch.amp.GradScaler` and clipping come before the step as usual. The learning rate may follow any schedule,
    but the rate is proved for a constant one, and the pull to the anchor does not depend on it: with a learning rate of
    0 parameters still move, towards where they started.

    References
    ----------
    .. [1] M. Sohrabi, Y. You, S. Lacoste-Julien, E. Gorbunov, G. Gidel. Accelerated and Stable Convergence with
       Anchored (Generalized) Optimistic Method. ICML 2026, arXiv:2606.21528.

    Examples
    --------
    ``min_x max_y x y``:

    >>> import torch
    >>> from assay.games.goma_optimizer import GOMA
    >>> x, y = (torch.tensor(1.0, dtype=torch.float64, requires_grad=True) for _ in range(2))
    >>> optimizer = GOMA([{"params": [x]}, {"params": [y], "maximize": True}], lr=0.5)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = x * y
    ...     loss.backward()
    ...     return loss
    >>> for _ in range(11):
    ...     loss = optimizer.step(closure)
    >>> optimizer.eval_mode()
    >>> round(x.item(), 8), round(y.item(), 8)
    (-0.15056818, 0.20454545)
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        preset: str = "halpern",
        kappa: float = 1.0,
        maximize: bool = False,
        foreach: bool | None = None,
        *,
        restart_every: int | None = None,
    ):
        self._measured = FieldMeasurements()
        defaults = {
            "lr": lr,
            "preset": preset,
            "kappa": kappa,
            "maximize": maximize,
            "foreach": foreach,
            "restart_every": restart_every,
            "evaluating": False,
            "steps_done": 0,
            "anchors": 0,
            "lr_used": None,
            "lr_constant": True,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, which start at an anchor of their own."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_group(group)
            group["evaluating"] = self.param_groups[0]["evaluating"]
            if group["preset"] != self.param_groups[0]["preset"]:
                raise ValueError(f"preset must be the same in all groups, got {group['preset']!r} in one of them")
        except Exception:
            self.param_groups.pop()
            raise

    @property
    def steps_done(self) -> int:
        """Calls of :meth:`step`."""
        return max(group["steps_done"] for group in self.param_groups)

    @torch._disable_dynamo  # which parameters have a gradient, and how far they are, is decided in Python
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step with the gradients at the parameters.

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
            In evaluation mode.
        TypeError
            If a gradient is sparse; nothing has changed then.
        """
        if self._evaluating:
            raise RuntimeError("step needs the parameters where gradients are to be taken: call train_mode() first")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moving = [[p for p in dict.fromkeys(group["params"]) if p.grad is not None] for group in self.param_groups]
        for parameter in itertools.chain.from_iterable(moving):
            if parameter.grad.layout != torch.strided:  # type: ignore[union-attr]
                raise TypeError(f"GOMA needs dense gradients, got a sparse one of layout {parameter.grad.layout}")  # type: ignore[union-attr]
        for group, parameters in zip(self.param_groups, moving, strict=True):
            lr = float(group["lr"])
            if parameters:
                group["lr_constant"] = group["lr_constant"] and group["lr_used"] in (None, lr)
                group["lr_used"] = lr
            by_step: dict[int, list[Tensor]] = {}
            for parameter in parameters:
                by_step.setdefault(self._entered(group, parameter), []).append(parameter)
            for k, together in by_step.items():
                self._move(group, k, together, lr)
            group["steps_done"] += 1
        return loss

    def _entered(self, group: Mapping[str, Any], parameter: Tensor) -> int:
        """Updates that a parameter has had; -1 at the step that only explores."""
        if parameter in self.state:
            return self.state[parameter]["step"]
        anchor = parameter.detach().clone(memory_format=torch.preserve_format)
        self.state[parameter] = {"step": 0, "anchor": anchor, "anchored": anchor.clone()}
        return 0 if group["preset"] == STOCHASTIC else -1

    def _move(self, group: dict[str, Any], k: int, parameters: list[Tensor], lr: float) -> None:
        """Move parameters that have had the same number of updates."""
        foreach = group["foreach"]
        if foreach is None:
            foreach = all(parameter.is_cuda for parameter in parameters)
        sign = -1.0 if group["maximize"] else 1.0
        gradients = [parameter.grad for parameter in parameters]
        if k < 0:
            explore(parameters, gradients, sign * PRESETS[group["preset"]].exploration(0, lr), foreach)  # type: ignore[arg-type]
            return
        states = [self.state[parameter] for parameter in parameters]
        _, update, weight, exploration = _weights(group, lr)(k)
        restart = k + 1 == group["restart_every"]
        advance(
            parameters,
            gradients,  # type: ignore[arg-type]
            [state["anchored"] for state in states],
            [state["anchor"] for state in states],
            (sign * update, 0.0 if restart else weight, 0.0 if restart else sign * exploration),
            foreach,
        )
        for parameter, state in zip(parameters, states, strict=True):
            state["step"] = k + 1
            if restart:  # the parameters hold the iterate, which the next step takes for an anchor
                del self.state[parameter]
        group["anchors"] += restart

    @property
    def _evaluating(self) -> bool:
        return bool(self.param_groups[0]["evaluating"])

    @torch.no_grad()
    def eval_mode(self) -> None:
        """Put the iterate into the parameters. Keeps a copy of what they were."""
        if self._evaluating:
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self.state:
                    state = self.state[parameter]
                    share = _anchor_weight(group, state["step"])
                    state["exploration"] = parameter.detach().clone(memory_format=torch.preserve_format)
                    parameter.copy_(state["anchor"]).lerp_(state["anchored"], 1.0 / (1.0 - share))
            group["evaluating"] = True

    @torch.no_grad()
    def train_mode(self) -> None:
        """Put the point of the next gradient back into the parameters, bit for bit."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if "exploration" in self.state.get(parameter, {}):
                    parameter.copy_(self.state[parameter].pop("exploration"))
            group["evaluating"] = False

    @torch.no_grad()
    def reset_anchor(self) -> None:
        """Make the iterate the anchor and count from 0; the next step only explores."""
        evaluating = self._evaluating
        self.eval_mode()
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state.pop(parameter, None)
            group["evaluating"] = evaluating
            group["anchors"] += 1

    @torch._disable_dynamo
    @torch.no_grad()
    def measure(self, closure: Callable[[], Any]) -> float:
        """Evaluate the gradient field at the iterate, for :meth:`certificates`; training goes on as if it had not.

        Parameters
        ----------
        closure : callable
            Computes the loss of all data at the parameters and calls ``backward``.

        Returns
        -------
        float
            Squared norm of the gradients of all parameters.

        Raises
        ------
        ValueError
            If the closure leaves no gradient.
        """
        evaluating, parameters = self._evaluating, [p for group in self.param_groups for p in group["params"]]
        gradients = [parameter.grad for parameter in parameters]
        self.eval_mode()
        try:
            for parameter in parameters:
                parameter.grad = None
            with torch.enable_grad():
                closure()
            if all(parameter.grad is None for parameter in parameters):
                raise ValueError("closure must call backward at the parameters, got no gradient for any of them")
            residual_sq = self._measured.look(self.param_groups, self.state)
        finally:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            if not evaluating:
                self.train_mode()
        return residual_sq

    def certificates(
        self, L: float | None = None, distance: float | None = None, sigma: float | None = None
    ) -> tuple[Certificate, ...]:
        """Certify what :meth:`measure` saw.

        Parameters
        ----------
        L : float, optional
            Lipschitz constant of the gradient field, for the bound.
        distance : float, optional
            Of a saddle point from the anchor, or more, for the bound.
        sigma : float, optional
            With ``"stochastic"``: noise where the gradient field is zero, for the bound.

        Returns
        -------
        tuple of Certificate
            The potential, unless the preset is ``"stochastic"``, and the bound if the numbers for it are given. Empty
            before the first measurement.

        Raises
        ------
        TypeError, ValueError
            If a number is out of range.
        """
        if L is not None:
            L = check_real(L, "L", above=0.0)
        if distance is not None:
            distance = check_real(distance, "distance", minimum=0.0)
        if sigma is not None:
            sigma = check_real(sigma, "sigma", minimum=0.0)
        if self.param_groups[0]["preset"] == STOCHASTIC:
            return self._measured.certify_noisy(self.param_groups, L, distance, sigma)
        return self._measured.certify(self.param_groups, L, distance)

    def state_dict(self) -> dict[str, Any]:
        """State of tensors and plain numbers, the measurements among them."""
        return {**super().state_dict(), "measured": self._measured.columns()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; the run goes on bit for bit.

        Raises
        ------
        ValueError
            If it is of another preset or of another optimizer; nothing has changed then.
        """
        groups = state_dict.get("param_groups") if isinstance(state_dict, Mapping) else None
        if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
            raise ValueError(f"state_dict must be what GOMA.state_dict returns, with param_groups, got {groups!r:.80}")
        if not isinstance(state_dict.get("state"), Mapping):
            raise ValueError("state_dict must be what GOMA.state_dict returns, got none of its key 'state'")
        ours = self.param_groups[0]["preset"]
        for group in groups:
            if group.get("preset") != ours:
                raise ValueError(f"state_dict must be of the preset {ours!r}, got {group.get('preset')!r}")
            missing = sorted(self.defaults.keys() - group.keys())
            if missing:
                raise ValueError(f"state_dict must have all settings of a group, got none of {', '.join(missing)}")
        content = dict(state_dict)
        measured = FieldMeasurements(content.pop("measured", None))
        super().load_state_dict(content)
        self._measured = measured

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_measured": self._measured}


def _weights(group: Mapping[str, Any], lr: float) -> Callable[[int], tuple[float, float, float, float]]:
    if group["preset"] == STOCHASTIC:
        return noisy_weights(lr / math.sqrt(group["kappa"]))
    return deterministic_weights(PRESETS[group["preset"]], lr)


def _anchor_weight(group: Mapping[str, Any], k: int) -> float:
    return 1.0 / (k + 2) if group["preset"] == STOCHASTIC else PRESETS[group["preset"]].anchor_weight(k)


def _check_group(group: dict[str, Any]) -> None:
    """Check the settings of a new group."""
    lr = group["lr"]
    rate = check_real(lr.item() if isinstance(lr, Tensor) and lr.numel() == 1 else lr, "lr", above=0.0)
    # Numbers of numpy would keep a checkpoint from being loaded with weights_only=True.
    group["lr"] = lr if isinstance(lr, Tensor) else rate
    check_choice(group["preset"], "preset", (*PRESETS, STOCHASTIC))
    group["kappa"] = check_real(group["kappa"], "kappa", minimum=1.0)
    if not isinstance(group["maximize"], bool):
        raise TypeError(f"maximize must be True or False, got {group['maximize']!r}")
    if group["foreach"] is not None and not isinstance(group["foreach"], bool):
        raise TypeError(f"foreach must be None, True or False, got {group['foreach']!r}")
    if group["restart_every"] is not None:
        group["restart_every"] = check_integer(group["restart_every"], "restart_every", minimum=1)
    for parameter in group["params"]:
        if parameter.is_complex():
            raise TypeError(f"params must be real, got a parameter of dtype {parameter.dtype}")
