r"""Stochastic gradient descent whose step size is found on the minibatch: no learning rate to tune, no explosion.

On one minibatch the loss is a deterministic function, so a step can be tried and judged. Every step starts from
``growth`` times the step size that was accepted last, at most ``lr_max``, and shrinks it until the loss has decreased
enough,

.. math:: f(\theta^+) \le f(\theta) - \frac{c}{\eta}|\theta^+ - \theta|^2,
          \qquad \theta^+ = \mathrm{Proj}(\theta - \eta\nabla f(\theta)),

with the projection left out when there is no constraint. A loss that is not finite is no decrease. On a strongly
concave critic problem the rule converges linearly; on a network it is a plain and robust baseline.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.certificate import Assumption, Certificate
from assay.validation import check_integer, check_real

__all__ = ["ArmijoSGD"]

SMALLEST_STEP = 1e-10


class ArmijoSGD(Optimizer):
    r"""Gradient descent with a backtracking search on every minibatch.

    Parameters
    ----------
    params : iterable
        Parameters, named parameters, or groups of them. A group may have its own ``lr``, ``lr_max``, ``c``, ``beta``
        and ``growth``; the search shrinks the step sizes of all groups together.
    lr : float, default=10.0
        Step size that is tried first.
    c : float, default=0.1
        Share of the decrease that the gradient promises which has to come true, in ``(0, 1)``.
    beta : float, default=0.5
        Factor by which a step size that does not decrease the loss is shrunk, in ``(0, 1)``.
    growth : float, default=2.0
        The next search starts from so many times the accepted step size; at least 1.
    lr_max : float, optional
        Largest step size; ten times ``lr`` when not given, so that a learning rate scheduler moves it.
    maximize : bool, default=False
        Ascend instead.
    project : callable, optional
        Called without arguments after the parameters were moved, also for trial, to bring them back to a feasible
        set in place, e.g. ``critic.project_``. The set has to be convex.
    strict : bool, default=False
        Raise if the loss or a gradient at the parameters has a nan or an infinity in it. Otherwise no step is made and
        the step is counted in ``skipped_steps``.

    Attributes
    ----------
    steps_done : int
        Steps that were made.
    skipped_steps : int
        Steps that were not made: the loss or a gradient was not finite, no step size down to 1e-10 decreased the loss
        enough, or nothing moved. Parameters and step sizes are then as before.
    evaluations : int
        Trial evaluations of the loss, without gradients.

    Raises
    ------
    TypeError, ValueError
        If an option is of the wrong type or out of range, or a parameter is complex.

    Notes
    -----
    ``step`` needs a closure with a parameter ``backward``: with the default ``backward=True`` it makes gradients and
    returns the loss; with ``backward=False`` it returns the loss of the *same* minibatch and makes none. What is random
    in the model (dropout) has to be the same in both, and modules that change when they are called (batch norm in
    training mode) change with every trial.

    Nothing else is kept than the step size of every group, in ``group["step_size"]``. Extra memory while stepping: a
    copy of the parameters. Parameters without a gradient are left alone. A loop compiled with :func:`torch.compile`
    runs the step eagerly.

    References
    ----------
    .. [1] J. Wang, F. Zhang, L. Wang. Scalable and Stable Estimation of Amari alpha-Divergence using Random
       Fourier Features. ICML 2026.
    .. [2] S. Vaswani, A. Mishkin, I. Laradji, M. Schmidt, G. Gidel, S. Lacoste-Julien. Painless Stochastic Gradient:
       Interpolation, Line-Search, and Convergence Rates. NeurIPS 2019, arXiv:1905.09997.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import ArmijoSGD
    >>> x = torch.tensor([1.0, 0.0], requires_grad=True)
    >>> optimizer = ArmijoSGD([x])
    >>> def closure(backward=True):
    ...     optimizer.zero_grad()
    ...     loss = (x - torch.tensor([3.0, 4.0])).square().sum()
    ...     if backward:
    ...         loss.backward()
    ...     return loss
    >>> for _ in range(20):
    ...     loss = optimizer.step(closure)
    >>> bool(loss < 1e-6)
    True
    >>> [certificate.holds for certificate in optimizer.certificates()]
    [True]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 10.0,
        c: float = 0.1,
        beta: float = 0.5,
        growth: float = 2.0,
        lr_max: float | None = None,
        maximize: bool = False,
        *,
        project: Callable[[], Any] | None = None,
        strict: bool = False,
    ):
        if project is not None and not callable(project):
            raise TypeError(f"project must be callable, got {project!r}")
        if not isinstance(strict, bool):
            raise TypeError(f"strict must be True or False, got {strict!r}")
        self.project, self.strict = project, strict
        self.steps_done = self.skipped_steps = self.evaluations = 0
        self._worst_excess = -math.inf
        defaults = {"lr": lr, "c": c, "beta": beta, "growth": growth, "lr_max": lr_max, "maximize": maximize}
        _check_group(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, which starts from its own ``lr``.

        Parameters
        ----------
        param_group : dict
            As in :class:`torch.optim.Optimizer`.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_group(group)
            for parameter in group["params"]:
                if parameter.is_complex():
                    raise TypeError(f"params must be real, got a parameter of dtype {parameter.dtype}")
            if any(other["maximize"] != group["maximize"] for other in self.param_groups):
                raise ValueError("maximize must be the same in all groups, since they share one loss")
        except Exception:
            self.param_groups.pop()
            raise
        group.setdefault("step_size", None)

    @torch._disable_dynamo  # how often the loss is evaluated depends on its values
    @torch.no_grad()
    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """Make one step.

        Parameters
        ----------
        closure : callable
            ``closure()`` clears the gradients, computes the loss and calls ``backward``; ``closure(backward=False)``
            computes the loss of the same minibatch only. Both return it.

        Returns
        -------
        Tensor or float
            The loss before the step.

        Raises
        ------
        TypeError
            If there is no closure, or it has no parameter ``backward``.
        RuntimeError
            If ``strict`` is set and the loss or a gradient is not finite.

        Notes
        -----
        Where the closure raises, in a trial too, the parameters are what they were before the step.
        """
        evaluate = _check_closure(closure)
        with torch.enable_grad():
            loss = evaluate()
        start = _as_float(loss)
        moving = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        moving = [(group, parameters) for group, parameters in moving if parameters]
        if not moving:
            return loss
        if any(p.grad.is_sparse for _, parameters in moving for p in parameters):  # type: ignore[union-attr]
            raise RuntimeError("ArmijoSGD does not support sparse gradients")
        if not (math.isfinite(start) and all(bool(p.grad.isfinite().all()) for _, ps in moving for p in ps)):  # type: ignore[union-attr]
            if self.strict:
                raise RuntimeError("the loss and its gradients must be finite, got a nan or an infinity")
            self.skipped_steps += 1
            return loss
        # The projection may move parameters that have no gradient.
        projected = [p for group in self.param_groups for p in group["params"]] if self.project is not None else []
        kept = {p: p.detach().clone() for p in [*projected, *(p for _, parameters in moving for p in parameters)]}
        directions = {p: p.grad.detach().clone() for _, parameters in moving for p in parameters}  # type: ignore[union-attr]
        moved = False
        try:
            moved = self._search(evaluate, start, moving, kept, directions)
        finally:  # also where a trial raises: parameters of a trial are no place to be left at
            if not moved:
                torch._foreach_copy_(list(kept), list(kept.values()))
        self.skipped_steps += not moved
        return loss

    def _search(
        self,
        evaluate: Callable[..., Any],
        start: float,
        moving: list[tuple[dict[str, Any], list[Tensor]]],
        kept: Mapping[Tensor, Tensor],
        directions: Mapping[Tensor, Tensor],
    ) -> bool:
        """Move the parameters by the first step sizes that decrease the loss enough; False if there are none."""
        sign = 1.0 if moving[0][0]["maximize"] else -1.0
        step_sizes = [_first_step(group) for group, _ in moving]
        while max(step_sizes) >= SMALLEST_STEP:
            if self.project is not None:
                torch._foreach_copy_(list(kept), list(kept.values()))
            promised = distance = 0.0
            for (_, parameters), step_size in zip(moving, step_sizes, strict=True):
                starts = [kept[p] for p in parameters]
                steps = torch._foreach_mul([directions[p] for p in parameters], sign * step_size)
                torch._foreach_copy_(parameters, torch._foreach_add(starts, steps))
            if self.project is not None:
                self.project()
            for (group, parameters), step_size in zip(moving, step_sizes, strict=True):
                moved = torch._foreach_sub(parameters, [kept[p] for p in parameters])
                squared = sum(float(norm) ** 2 for norm in torch._foreach_norm(moved))
                promised += group["c"] / step_size * squared
                distance += squared
            if distance == 0.0:  # a stationary point, or a step below rounding
                return False
            reached = _as_float(evaluate(backward=False))
            self.evaluations += 1
            excess = sign * (start - reached) + promised
            if math.isfinite(reached) and excess <= 0.0:
                for (group, _), step_size in zip(moving, step_sizes, strict=True):
                    group["step_size"] = step_size
                self.steps_done += 1
                self._worst_excess = max(self._worst_excess, excess)
                return True
            step_sizes = [group["beta"] * step_size for (group, _), step_size in zip(moving, step_sizes, strict=True)]
        return False

    def certificates(self) -> tuple[Certificate, ...]:
        """Certify the decrease of the loss in the steps so far.

        Returns
        -------
        tuple of Certificate
            Empty before the first step.
        """
        if not self.steps_done:
            return ()
        return (
            Certificate(
                "loss after a step on its minibatch, less the loss before, plus the decrease promised: "
                f"the worst of {self.steps_done} steps",
                self._worst_excess,
                0.0,
                assumptions=(Assumption("the closure is the same function of the parameters in all calls of a step"),),
            ),
        )

    def state_dict(self) -> dict[str, Any]:
        """State as tensors and plain numbers; ``project`` is not in it."""
        content = super().state_dict()
        content["armijo"] = {
            "steps_done": self.steps_done,
            "skipped_steps": self.skipped_steps,
            "evaluations": self.evaluations,
            "worst_excess": self._worst_excess,
        }
        return content

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` returned.

        Parameters
        ----------
        state_dict : mapping
            The state.

        Raises
        ------
        TypeError, ValueError
            If it is of another optimizer or damaged; nothing has changed then.
        """
        _check_state(state_dict)
        super().load_state_dict({name: content for name, content in state_dict.items() if name != "armijo"})
        own = state_dict["armijo"]
        self.steps_done, self.skipped_steps = int(own["steps_done"]), int(own["skipped_steps"])
        self.evaluations, self._worst_excess = int(own["evaluations"]), float(own["worst_excess"])

    def __getstate__(self) -> dict[str, Any]:
        names = ("project", "strict", "steps_done", "skipped_steps", "evaluations", "_worst_excess")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}


def _first_step(group: Mapping[str, Any]) -> float:
    """The step size that is tried first."""
    largest = 10.0 * group["lr"] if group["lr_max"] is None else group["lr_max"]
    proposed = group["lr"] if group["step_size"] is None else group["growth"] * group["step_size"]
    return min(float(proposed), float(largest))


def _as_float(loss: Any) -> float:
    """What a closure returned, as a number."""
    return float(loss.detach() if isinstance(loss, Tensor) else loss)


def _check_state(state_dict: Mapping[str, Any]) -> None:
    """Check what :meth:`ArmijoSGD.load_state_dict` is given, all of it before anything is changed."""
    own, groups = state_dict.get("armijo"), state_dict.get("param_groups")
    counts = ("steps_done", "skipped_steps", "evaluations")
    if not isinstance(own, Mapping) or not {*counts, "worst_excess"} <= own.keys():
        names = sorted({*counts, "worst_excess"})
        raise ValueError(f"state_dict must have the key 'armijo' with {names}, got {sorted(state_dict)}")
    if not isinstance(groups, list):
        raise ValueError(f"state_dict must have the key 'param_groups' with a list, got {sorted(state_dict)}")
    for name in counts:
        check_integer(own[name], f"state_dict['armijo'][{name!r}]", minimum=0)
    # Before the first step it is minus infinity.
    if not isinstance(own["worst_excess"], float) or not own["worst_excess"] <= 0.0:
        raise ValueError(f"state_dict['armijo']['worst_excess'] must be at most 0, got {own['worst_excess']!r}")
    options = ("lr", "c", "beta", "growth", "lr_max", "maximize", "step_size")
    for group in groups:
        missing = [name for name in options if name not in group]
        if missing:
            raise ValueError(f"state_dict must have {', '.join(options)} in every group, got none of {missing}")
        _check_group(group)
        if group["step_size"] is not None:
            check_real(group["step_size"], "step_size", above=0)


def _check_group(group: Mapping[str, Any]) -> None:
    """Check the options of a group."""
    check_real(group["lr"], "lr", above=0)
    check_real(group["c"], "c", above=0, below=1)
    check_real(group["beta"], "beta", above=0, below=1)
    check_real(group["growth"], "growth", minimum=1)
    if group["lr_max"] is not None:
        check_real(group["lr_max"], "lr_max", above=0)
    if not isinstance(group["maximize"], bool):
        raise TypeError(f"maximize must be True or False, got {group['maximize']!r}")


def _check_closure(closure: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the closure if it can be called as the search needs it."""
    if closure is None:
        raise TypeError("closure must be given: the search evaluates the loss again, as closure(backward=False)")
    try:
        inspect.signature(closure).bind(backward=False)
    except TypeError:
        raise TypeError(
            "closure must have a parameter backward: with backward=False it returns the loss of the same minibatch "
            "and makes no gradients"
        ) from None
    return closure
