r"""Mirror mean-field Langevin dynamics as a torch optimizer: parameters are particles, one per row.

A wide network whose hidden units are to stay in a convex set is a law of units; its output is a mean over them. With

.. math:: y_i = \nabla\varphi(x_i) - \eta N \nabla_{x_i} \mathrm{loss} + \sqrt{2\lambda\eta}\,
          \nabla^2\varphi(x_i)^{1/2}\xi_i, \qquad x_i \leftarrow \nabla\varphi^*(y_i)

training the units by automatic differentiation is the particle method of :func:`~assay.transport.mirror_langevin`: the
gradient of a loss of the averaged model with respect to one of ``N`` particles is ``1/N`` of that of the first
variation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.certificate import Certificate
from assay.transport.convex_domain import Domain
from assay.transport.langevin_run import check_temperature, find_domain, warn_about_entropy
from assay.transport.mirror_langevin import mirror_step
from assay.transport.mirror_langevin_certificate import inside_certificate
from assay.validation import check_integer, check_real

__all__ = ["MirrorLangevin"]


class MirrorLangevin(Optimizer):
    r"""Move particles inside convex sets, downhill and with noise, towards the best law.

    The objective is ``loss + temperature * entropy`` of the law of the rows.

    Parameters
    ----------
    params : iterable of Tensor, of dict, or of (str, Tensor)
        Tensors of shape (N, d) in float32 or float64, a particle per row, strictly inside the set; of shape (N, p, p)
        for density matrices. Groups can have settings of their own, the set included.
    lr : float or Tensor, default=0.1
        Step size.
    domain : Domain, str or object, default="simplex"
        The set, as for :func:`~assay.transport.mirror_langevin`.
    barrier : str, optional
        Another barrier than that of the set.
    temperature : float
        Weight of the entropy. Zero is deterministic mirror descent, with a warning.
    inner : int, default=1
        Parts in which the noise of a step is added.
    scale_grad : bool, default=True
        Multiply gradients by the number of particles, which makes the gradient of a loss of the mean over particles
        that of the first variation.
    maximize : bool, default=False
        Go up with the loss instead of down; the entropy is still made large.
    generator : torch.Generator, optional
        For the noise, on the device of the parameters. By default the optimizer makes one, with a fresh seed.
    foreach : bool, optional
        False handles one tensor after the other. Otherwise tensors of a group with equally shaped particles are handled
        together; the results agree to rounding, since the noise is drawn in the same order.

    Attributes
    ----------
    generator : torch.Generator
        Where the noise comes from; its state is in ``state_dict``.

    Raises
    ------
    TypeError
        For parameters of another dtype, or a set that lacks a method (by name).
    ValueError
        For particles outside the set, an unknown barrier, or settings out of range.

    Notes
    -----
    Parameters without a gradient stay where they are, without noise. A step with a nan or an infinity in a gradient, or
    with particles that someone has moved out of the set, raises a RuntimeError with the number of the step before
    anything is changed; to look at that costs one synchronization per step on a GPU. No state is kept per parameter.

    The set of a group cannot be written into a checkpoint: ``state_dict`` has its description, and
    :meth:`load_state_dict` refuses a checkpoint of another set.

    References
    ----------
    Mirror Mean-Field Langevin Dynamics. ICML 2026, arXiv:2505.02621.

    Examples
    --------
    A law on the unit disc whose mean is close to a point:

    >>> import torch
    >>> from assay.transport import Ball, MirrorLangevin
    >>> generator = torch.Generator().manual_seed(0)
    >>> particles = torch.zeros(300, 2, dtype=torch.float64, requires_grad=True)
    >>> optimizer = MirrorLangevin([particles], lr=0.2, domain=Ball(2), temperature=0.05, generator=generator)
    >>> for _ in range(200):
    ...     optimizer.zero_grad()
    ...     (particles.mean(dim=0) - torch.tensor([0.8, 0.0])).square().sum().backward()
    ...     optimizer.step()
    >>> print(optimizer.certificates()[0].holds, bool(particles.mean(dim=0)[0] > 0.4))
    True True
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        *,
        domain: Any = "simplex",
        barrier: str | None = None,
        temperature: float,
        inner: int = 1,
        scale_grad: bool = True,
        maximize: bool = False,
        generator: torch.Generator | None = None,
        foreach: bool | None = None,
    ):
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
        self._domains: list[Domain] = []
        self.generator = generator
        defaults = {
            "lr": lr,
            "domain": domain,
            "barrier": barrier,
            "temperature": temperature,
            "inner": inner,
            "scale_grad": scale_grad,
            "maximize": maximize,
            "foreach": foreach,
            "steps_done": 0,
            "elapsed": 0.0,
        }
        super().__init__(params, defaults)
        if self.generator is None:
            self.generator = torch.Generator(self.param_groups[0]["params"][0].device)
            self.generator.seed()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with settings of its own or those of the constructor."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._domains.append(self._entered(group))
        except Exception:
            self.param_groups.pop()
            raise

    def _entered(self, group: dict[str, Any]) -> Domain:
        """Check a new group; its set is kept apart, and described in it."""
        lr = group["lr"]
        rate = check_real(lr.item() if isinstance(lr, Tensor) and lr.numel() == 1 else lr, "lr", above=0.0)
        # Numbers of numpy would keep a checkpoint from being loaded with weights_only=True.
        group["lr"] = lr if isinstance(lr, Tensor) else rate
        group["temperature"] = check_temperature(group["temperature"])
        group["inner"] = check_integer(group["inner"], "inner", minimum=1)
        for name in ("scale_grad", "maximize"):
            if not isinstance(group[name], bool):
                raise TypeError(f"{name} must be True or False, got {group[name]!r}")
        if group["foreach"] is not None and not isinstance(group["foreach"], bool):
            raise TypeError(f"foreach must be None, True or False, got {group['foreach']!r}")
        first = group["params"][0]
        domain = find_domain(group["domain"], group["barrier"], tuple(first.shape))
        for parameter in group["params"]:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise TypeError(f"params must be of dtype float32 or float64, got {parameter.dtype}")
            device = first.device if self.generator is None else self.generator.device
            if parameter.device.type != device.type:
                raise ValueError(f"params must be on the device of the generator, {device}, got {parameter.device}")
            domain.check_particles(parameter.detach(), "params")
        warn_about_entropy(domain, group["temperature"], stacklevel=6)
        group["domain"], group["barrier"] = repr(domain), domain.barrier
        return domain

    @property
    def steps_done(self) -> int:
        """Number of steps taken."""
        return max(group["steps_done"] for group in self.param_groups)

    def domain_of(self, index: int) -> Domain:
        """The set of a parameter group."""
        return self._domains[index]

    @torch._disable_dynamo  # the number of Newton steps depends on the particles
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
            If a gradient is not finite or a particle is not in its set; nothing has changed then.
        TypeError, ValueError
            If a schedule has written a step size or a temperature that is not a number of at least 0.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_ready()
        state = self.generator.get_state()
        moved: list[tuple[Tensor, Tensor]] = []
        try:
            for group, domain in zip(self.param_groups, self._domains, strict=True):
                moved.extend(self._moved(group, domain))
            if any(not bool(torch.isfinite(there).all()) for _, there in moved):
                raise RuntimeError(f"lr must be smaller, step {self.steps_done} gives particles that are not finite")
        except Exception:
            self.generator.set_state(state)
            raise
        for parameter, there in moved:
            parameter.copy_(there)
        for group in self.param_groups:
            group["steps_done"] += 1
            group["elapsed"] += float(group["lr"])
        return loss

    def _check_ready(self) -> None:
        for group, domain in zip(self.param_groups, self._domains, strict=True):
            for parameter in _with_gradient(group):
                if parameter.grad.is_sparse:
                    raise RuntimeError("MirrorLangevin needs dense gradients")
                inside = (domain._slack(parameter) > 0).all()
                if not bool(inside & torch.isfinite(parameter.grad).all()):
                    what = "nan or infinite gradients" if bool(inside) else f"particles outside {domain!r}"
                    raise RuntimeError(
                        f"params must be inside with finite gradients, got {what} at step {self.steps_done}"
                    )

    def _moved(self, group: dict[str, Any], domain: Domain) -> list[tuple[Tensor, Tensor]]:
        """The parameters of a group, and where a step takes them."""
        # Schedules write to the group.
        parameters, lr = _with_gradient(group), check_real(float(group["lr"]), "lr", minimum=0.0)
        check_real(group["temperature"], "temperature", minimum=0.0)
        if lr == 0.0:
            return []
        batches: list[list[Tensor]] = [[parameter] for parameter in parameters]
        if group["foreach"] is not False:
            alike: dict[Any, list[Tensor]] = {}
            for parameter in parameters:
                alike.setdefault((parameter.shape[1:], parameter.dtype, parameter.device), []).append(parameter)
            batches = list(alike.values())
        noises = self._noises(group, domain, parameters)
        found = []
        for batch in batches:
            gradients = [self._gradient(group, parameter) for parameter in batch]
            draws = iter([_joined([noises[parameter][k] for parameter in batch]) for k in range(len(noises[batch[0]]))])
            there = mirror_step(
                domain,
                _joined([parameter.detach() for parameter in batch]),
                _joined(gradients),
                lr,
                group["temperature"],
                group["inner"],
                lambda _, draws=draws: next(draws),
            )
            found.extend(zip(batch, there.split([len(parameter) for parameter in batch]), strict=True))
        return found

    def _noises(self, group: dict[str, Any], domain: Domain, parameters: list[Tensor]) -> dict[Tensor, list[Tensor]]:
        """Normal numbers for every parameter, drawn one parameter after the other."""
        n_draws = group["inner"] if group["temperature"] > 0.0 else 0
        return {
            parameter: [
                torch.randn(
                    domain._noise_shape(parameter.shape),
                    generator=self.generator,
                    dtype=parameter.dtype,
                    device=parameter.device,
                )
                for _ in range(n_draws)
            ]
            for parameter in parameters
        }

    @staticmethod
    def _gradient(group: dict[str, Any], parameter: Tensor) -> Tensor:
        """Gradient of the first variation."""
        factor = float(len(parameter)) if group["scale_grad"] else 1.0
        return parameter.grad * (-factor if group["maximize"] else factor)

    def certificates(self) -> tuple[Certificate, ...]:
        """That all particles are strictly inside their sets, from the parameters as they are now.

        Returns
        -------
        tuple of Certificate
            One, about the smallest slack.
        """
        slacks = [
            float(domain._exact_slack(parameter.detach()).min())
            for group, domain in zip(self.param_groups, self._domains, strict=True)
            for parameter in group["params"]
        ]
        return (inside_certificate(float(np.min(slacks))),)  # numpy's minimum keeps a nan

    def state_dict(self) -> dict[str, Any]:
        """State of tensors and plain numbers: as of any optimizer, and the state of the generator."""
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; the run goes on bit for bit.

        Raises
        ------
        ValueError
            If the sets or the device of the generator differ; nothing has changed then.
        """
        content = dict(state_dict)
        for key in ("generator", "param_groups"):
            if key not in content:
                raise ValueError(f"state_dict must have the key {key!r}, got {sorted(map(str, content))}")
        if not isinstance(content["generator"], Tensor):
            raise TypeError(f"generator of state_dict must be a tensor, got {type(content['generator']).__name__}")
        theirs = [group.get("domain") for group in content["param_groups"]]
        ours = [repr(domain) for domain in self._domains]
        if theirs != ours:
            raise ValueError(f"state_dict must be of an optimizer on {ours}, got {theirs}")
        before = self.generator.get_state()
        try:
            self.generator.set_state(content.pop("generator").cpu())
        except RuntimeError as error:
            raise ValueError("state_dict must have been saved with a generator on the same kind of device") from error
        try:
            super().load_state_dict(content)
        except Exception:
            self.generator.set_state(before)
            raise

    def __getstate__(self) -> dict[str, Any]:
        content = super().__getstate__()
        kind = str(self.generator.device)
        return {**content, "_domains": self._domains, "_generator": (kind, self.generator.get_state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        content = dict(state)
        if "_generator" in content:
            device, numbers = content.pop("_generator")
            self.generator = torch.Generator(device)
            self.generator.set_state(numbers)
        super().__setstate__(content)


def _with_gradient(group: dict[str, Any]) -> list[Tensor]:
    return [parameter for parameter in group["params"] if parameter.grad is not None]


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
