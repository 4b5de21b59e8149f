r"""Training on pairwise preferences with any margin loss and any choice model.

A pair of responses has the margin

.. math:: z = \beta\,(\hat r(y_w) - \hat r(y_l)) - m, \qquad \hat r(y) = H(\pi(y|x)) - H(\pi_0(y|x)),

and pays :math:`\psi(z)`. With ``H = log`` and the logistic :math:`\psi` this is DPO; IPO, SLiC, conservative and robust
DPO, and without a reference SimPO, are other choices of :math:`\psi`, margin and length. What such a loss assumes about
human choice is not a matter of belief: :func:`~assay.supervised.certify_preference_loss` measures it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.supervised.choice_models import ImpliedChoiceModel, resolve_choice
from assay.supervised.policy_links import LogLink, resolve_link
from assay.supervised.preference_psi import MarginLoss, check_domain, resolve_psi, shifted, slope_rounding, smoothed
from assay.validation import check_choice, check_real

if TYPE_CHECKING:
    from assay.supervised.preference_certificate import PreferenceLossCertificate

__all__ = ["PreferenceLoss", "PreferenceOutput"]

# Part of the training in which a loss that fades for badly ordered pairs is phased in.
_PHASE_IN = 0.2


class PreferenceOutput(NamedTuple):
    """What :class:`PreferenceLoss` returns.

    Parameters
    ----------
    loss : torch.Tensor
        The loss after its reduction.
    margins : torch.Tensor of shape (n_pairs,)
        By how much the chosen response leads, minus the margin it should; detached.
    chosen_rewards, rejected_rewards : torch.Tensor of shape (n_pairs,)
        Implicit rewards, ``beta`` times those of the policy; detached.
    """

    loss: Tensor
    margins: Tensor
    chosen_rewards: Tensor
    rejected_rewards: Tensor


class PreferenceLoss(nn.Module):
    r"""Preference loss from log-probabilities, called with the arguments of TRL's ``dpo_loss``.

    Parameters
    ----------
    psi : str, callable or object, default="logistic"
        Loss of a margin: a name such as ``"savage"``, ``"ipo"`` or ``"robust(0.1)"``, a torch function, or an object
        with the method ``value``; see :func:`~assay.supervised.preference_psi.resolve_psi`.
    choice : str, ChoiceModel, object or pair of callables, default="btl"
        The declared choice model. It has no influence on pairs with an order; a tie pays minus the logarithm of its
        probability of abstention.
    beta : float, default=0.1
        How strongly the policy is held to the reference.
    margin : float, default=0.0
        By how much a chosen response has to lead, at least 0; a call may bring one per pair instead.
    length_power : float, default=0.0
        Rewards are divided by the length of the response to this power; 1 makes them averages over tokens.
    reference_free : bool, default=False
        Leave out the reference, as SimPO does.
    label_smoothing : float, default=0.0
        Assumed share of wrong labels ``e``, in [0, 0.5): the loss becomes :math:`(1-e)\psi(z) + e\psi(-z)`.
    link : str or object, default="log"
        Policy link ``H``: ``"log"``, ``"linear"``, ``"tsallis(q)"``, or an object with ``of_log`` and ``inverse``.
    continuation : "auto", float or None, default="auto"
        Part of the training over which :math:`\psi` is phased in from the logistic loss. ``"auto"`` is 0.2 for a loss
        whose slope fades for badly ordered pairs, as that of every bounded loss does, and None otherwise. The training
        loop has to say where it is with :meth:`set_progress`; in evaluation mode the loss is always :math:`\psi`.
    reduction : {"mean", "sum", "none"}, default="mean"
        Over the pairs.
    strict : bool, default=False
        Refuse a loss that is not decreasing for margins in ``domain``.
    domain : tuple of float, default=(-12.0, 12.0)
        Margins that ``strict`` is about.

    Raises
    ------
    ValueError, TypeError
        If a parameter is outside its range or of a wrong type, or the loss increases and ``strict`` is set.

    Notes
    -----
    Half precision is computed in single, and the loss is in single. On a processor a nan or an infinity in the
    log-probabilities raises an error that names the first pair; on an accelerator it goes through to the loss, so that
    no step waits. Memory is about six vectors of the length of the batch.

    Known losses: DPO is ``PreferenceLoss()``; IPO ``PreferenceLoss("ipo", length_power=1)`` (times ``beta**2``);
    SLiC ``PreferenceLoss("hinge")``; conservative DPO ``label_smoothing=e``; robust DPO
    ``PreferenceLoss("robust(e)")``; SimPO ``PreferenceLoss(beta=2, margin=gamma, length_power=1,
    reference_free=True)``. With ties, the maximum likelihood of Rao and Kupper is
    ``PreferenceLoss(choice="abstain(a)", margin=a)``.

    References
    ----------
    W. Zhou, S. Zhang, B. Magdalou, J. Lambert, E. Amid, R. Nock, A. Hard. DPO Unchained: Your Training Algorithm is
    Secretly Disentangled in Human Choice Theory (and its Loss' Convexity is Dispensable). ICML 2026.
    arXiv:2507.07855.

    R. Rafailov, A. Sharma, E. Mitchell, S. Ermon, C. D. Manning, C. Finn. Direct Preference Optimization: Your
    Language Model is Secretly a Reward Model. NeurIPS 2023.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised import PreferenceLoss
    >>> chosen, rejected = torch.tensor([-5.0]), torch.tensor([-7.0])
    >>> output = PreferenceLoss()(chosen, rejected, torch.tensor([-6.0]), torch.tensor([-6.5]))
    >>> round(output.loss.item(), 6), round(output.margins.item(), 6)
    (0.620957, 0.15)
    """

    def __init__(
        self,
        psi: Any = "logistic",
        choice: Any = "btl",
        beta: float = 0.1,
        margin: float = 0.0,
        length_power: float = 0.0,
        reference_free: bool = False,
        label_smoothing: float = 0.0,
        link: Any = "log",
        continuation: Any = "auto",
        *,
        reduction: str = "mean",
        strict: bool = False,
        domain: tuple[float, float] = (-12.0, 12.0),
    ) -> None:
        super().__init__()
        self.psi = resolve_psi(psi)
        self.choice = resolve_choice(choice)
        self.beta = check_real(beta, "beta", above=0)
        self.margin = check_real(margin, "margin", minimum=0)
        self.length_power = check_real(length_power, "length_power", minimum=0)
        self.label_smoothing = check_real(label_smoothing, "label_smoothing", minimum=0, below=0.5)
        self.link = resolve_link(link)
        self.reduction = check_choice(reduction, "reduction", ("mean", "sum", "none"))
        for option, name in ((reference_free, "reference_free"), (strict, "strict")):
            if not isinstance(option, bool):
                raise TypeError(f"{name} must be True or False, got {option!r}")
        self.reference_free = reference_free
        self.continuation = self._check_continuation(continuation)
        self._smoothed = smoothed(self.psi, self.label_smoothing)
        self._progress = 1.0
        low, high = check_domain(domain)
        if strict:
            self._require_decreasing(low, high)

    def _check_continuation(self, continuation: Any) -> float | None:
        if continuation is None:
            return None
        if isinstance(continuation, str):
            check_choice(continuation, "continuation", ("auto",))
            return _PHASE_IN if self.psi.fades else None
        return check_real(continuation, "continuation", above=0, maximum=1)

    def _require_decreasing(self, low: float, high: float) -> None:
        grid = torch.linspace(low, high, 2401, dtype=torch.float64)
        slopes = self.effective_psi().slope(grid)
        rising = ~(slopes <= slope_rounding(slopes))
        if bool(rising.any()):
            first = int(rising.long().argmax())
            how = "increases" if float(slopes[first]) > 0.0 else "has no slope"
            raise ValueError(
                f"psi must decrease on the domain [{low:g}, {high:g}] when strict=True, "
                f"got {self.effective_psi().name!r}, which {how} at {float(grid[first]):g}"
            )

    def extra_repr(self) -> str:
        """What ``print`` shows between the brackets."""
        return (
            f"psi={self.psi.name!r}, choice={self.choice.name!r}, beta={self.beta:g}, margin={self.margin:g}, "
            f"length_power={self.length_power:g}, reference_free={self.reference_free}, "
            f"label_smoothing={self.label_smoothing:g}, link={self.link.name!r}"
        )

    def get_extra_state(self) -> dict[str, float]:
        """Progress of the training, for ``state_dict``."""
        return {"progress": self._progress}

    def set_extra_state(self, state: dict[str, float]) -> None:
        """Inverse of :meth:`get_extra_state`."""
        self._progress = float(state["progress"])

    def set_progress(self, progress: float) -> None:
        """Say what part of the training is done, for the continuation.

        Parameters
        ----------
        progress : float
            From 0 at the first step to 1 at the end.
        """
        self._progress = check_real(progress, "progress", minimum=0, maximum=1)

    @property
    def phase(self) -> float:
        r"""Weight of :math:`\psi` against the logistic loss at this point of the training."""
        if self.continuation is None or not self.training:
            return 1.0
        return min(1.0, self._progress / self.continuation)

    def effective_psi(self) -> MarginLoss:
        """The loss as a function of the difference of the rewards, with label smoothing and the constant margin."""
        return shifted(self._smoothed, self.margin)

    def implied_choice_model(self) -> ImpliedChoiceModel:
        """The choice model that this loss implies for differences of rewards."""
        return ImpliedChoiceModel(self.effective_psi())

    def certify(self, domain: tuple[float, float] = (-12.0, 12.0)) -> PreferenceLossCertificate:
        """Certify this loss, with its margin and smoothing; see :func:`~assay.supervised.certify_preference_loss`."""
        from assay.supervised.preference_certificate import certify_preference_loss

        return certify_preference_loss(self.effective_psi(), self.choice, domain=domain)

    def pair_losses(self, margins: Tensor) -> Tensor:
        """Loss of each margin at this point of the training.

        Parameters
        ----------
        margins : torch.Tensor
            Any shape.

        Returns
        -------
        torch.Tensor
            Of that shape.
        """
        losses, phase = self._smoothed.value(margins), self.phase
        return losses if phase == 1.0 else phase * losses - (1.0 - phase) * F.logsigmoid(margins)

    def forward(
        self,
        policy_chosen_logps: Tensor,
        policy_rejected_logps: Tensor,
        reference_chosen_logps: Tensor | None = None,
        reference_rejected_logps: Tensor | None = None,
        *,
        chosen_lengths: Tensor | None = None,
        rejected_lengths: Tensor | None = None,
        margin: Tensor | None = None,
        tie: Tensor | None = None,
    ) -> PreferenceOutput:
        """Loss of a batch of pairs.

        Parameters
        ----------
        policy_chosen_logps, policy_rejected_logps : torch.Tensor of shape (n_pairs,)
            Log-probabilities of the responses under the policy.
        reference_chosen_logps, reference_rejected_logps : torch.Tensor of shape (n_pairs,)
            The same under the reference; not needed, and not used, when ``reference_free``.
        chosen_lengths, rejected_lengths : torch.Tensor of shape (n_pairs,)
            Tokens of the responses; needed when ``length_power`` is positive.
        margin : torch.Tensor of shape (n_pairs,), optional
            Replaces the constant margin.
        tie : bool torch.Tensor of shape (n_pairs,), optional
            Pairs without an order; which of the two is called chosen is of no matter, and neither is the margin.

        Returns
        -------
        PreferenceOutput

        Raises
        ------
        ValueError
            If something that is needed is missing, shapes differ, or a log-probability is not finite.
        TypeError
            If something is not a tensor, or not of floating point.
        """
        logps = (policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps)
        if margin is None and tie is None and self._is_plain(logps):
            return self._fast(*logps)
        return self._composed(*logps, chosen_lengths, rejected_lengths, margin, tie)

    def _composed(
        self,
        policy_chosen_logps: Tensor,
        policy_rejected_logps: Tensor,
        reference_chosen_logps: Tensor | None,
        reference_rejected_logps: Tensor | None,
        chosen_lengths: Tensor | None,
        rejected_lengths: Tensor | None,
        margin: Tensor | None,
        tie: Tensor | None,
    ) -> PreferenceOutput:
        """The loss in differentiable operations, with all that it can take into account."""
        chosen = self._implicit_reward("chosen", policy_chosen_logps, reference_chosen_logps, chosen_lengths)
        rejected = self._implicit_reward("rejected", policy_rejected_logps, reference_rejected_logps, rejected_lengths)
        if chosen.shape != rejected.shape:
            raise ValueError(
                "policy_rejected_logps must have the shape of policy_chosen_logps, "
                f"{tuple(chosen.shape)}, got {tuple(rejected.shape)}"
            )
        lead = self.beta * (chosen - rejected)
        if margin is not None:
            margins = lead - self._check_margin(margin, lead)
        else:
            margins = lead - self.margin if self.margin else lead
        _require_finite(
            margins,
            policy_chosen_logps=policy_chosen_logps,
            policy_rejected_logps=policy_rejected_logps,
            reference_chosen_logps=None if self.reference_free else reference_chosen_logps,
            reference_rejected_logps=None if self.reference_free else reference_rejected_logps,
        )
        if tie is None:
            losses = self.pair_losses(margins)
        else:
            # Each branch sees margin 0 where it does not count: an infinite slope there would still make a nan.
            tied = self._check_tie(tie, margins)
            losses = torch.where(
                tied,
                -self.choice.log_abstention(torch.where(tied, lead, 0.0)),
                self.pair_losses(torch.where(tied, 0.0, margins)),
            )
        return PreferenceOutput(
            self._reduced(losses), margins.detach(), self.beta * chosen.detach(), self.beta * rejected.detach()
        )

    def _is_plain(self, logps: tuple[Tensor | None, ...]) -> bool:
        """Whether the fast path computes this call: log-ratios of vectors of one kind that only need a gradient."""
        first = logps[0]
        if self.reference_free or self.length_power or not isinstance(self.link, LogLink) or self.phase != 1.0:
            return False
        if torch.compiler.is_compiling() or torch.autograd.forward_ad._current_level >= 0:
            return False
        for one in logps:
            if not isinstance(one, Tensor) or one.dtype not in (torch.float32, torch.float64) or one.ndim != 1:
                return False
            if one.dtype != first.dtype or one.shape != first.shape or one.device != first.device or not len(one):
                return False
            if torch._C._functorch.is_functorch_wrapped_tensor(one):
                return False
        return not (logps[2].requires_grad or logps[3].requires_grad)

    def _fast(
        self, policy_chosen: Tensor, policy_rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor
    ) -> PreferenceOutput:
        """The same with as few temporary vectors as can be: on large batches the memory traffic is the cost."""
        with torch.no_grad():
            chosen, rejected = policy_chosen - reference_chosen, policy_rejected - reference_rejected
            margins = (chosen - rejected).mul_(self.beta)
            if self.margin:
                margins -= self.margin
            _require_finite(
                margins,
                policy_chosen_logps=policy_chosen,
                policy_rejected_logps=policy_rejected,
                reference_chosen_logps=reference_chosen,
                reference_rejected_logps=reference_rejected,
            )
        losses = _LossOfMargins.apply(policy_chosen, policy_rejected, margins, self._smoothed, self.beta)
        return PreferenceOutput(self._reduced(losses), margins, chosen.mul_(self.beta), rejected.mul_(self.beta))

    def _reduced(self, losses: Tensor) -> Tensor:
        return losses if self.reduction == "none" else losses.mean() if self.reduction == "mean" else losses.sum()

    def _implicit_reward(self, which: str, policy: Tensor, reference: Tensor | None, lengths: Tensor | None) -> Tensor:
        logps = _as_logps(policy, f"policy_{which}_logps")
        reward = self.link.of_log(logps)
        if not self.reference_free:
            if reference is None:
                raise ValueError(f"reference_{which}_logps must be given unless reference_free=True, got None")
            reference = _as_logps(reference, f"reference_{which}_logps")
            if reference.shape != logps.shape:
                raise ValueError(
                    f"reference_{which}_logps must have the shape of policy_{which}_logps, "
                    f"{tuple(logps.shape)}, got {tuple(reference.shape)}"
                )
            reward = reward - self.link.of_log(reference)
        if not self.length_power:
            return reward
        if lengths is None:
            raise ValueError(f"{which}_lengths must be given when length_power is positive, got None")
        if not isinstance(lengths, Tensor) or lengths.shape != logps.shape:
            raise ValueError(f"{which}_lengths must be a tensor of shape {tuple(logps.shape)}, got {_shape(lengths)}")
        if lengths.device.type == "cpu" and not bool(((lengths >= 1) & torch.isfinite(lengths)).all()):
            raise ValueError(f"{which}_lengths must be at least 1 and finite, got {_ends(lengths)}")
        lengths = lengths.to(reward)
        return reward / (lengths if self.length_power == 1.0 else lengths**self.length_power)

    def _check_margin(self, margin: Tensor, lead: Tensor) -> Tensor:
        if not isinstance(margin, Tensor) or margin.shape != lead.shape:
            raise ValueError(f"margin must be a tensor of shape {tuple(lead.shape)}, got {_shape(margin)}")
        if margin.device.type == "cpu" and margin.numel() and not bool(((margin >= 0) & torch.isfinite(margin)).all()):
            raise ValueError(f"margin must be at least 0 and finite, got {_ends(margin)}")
        return margin.to(lead)

    def _check_tie(self, tie: Tensor, margins: Tensor) -> Tensor:
        if not isinstance(tie, Tensor) or tie.dtype != torch.bool or tie.shape != margins.shape:
            raise ValueError(f"tie must be a bool tensor of shape {tuple(margins.shape)}, got {_shape(tie)}")
        if not self.choice.abstains:
            raise ValueError(
                f"choice must abstain, as 'abstain(0.5)' does, for pairs that tie, got {self.choice.name!r}"
            )
        return tie


class _LossOfMargins(torch.autograd.Function):
    """Loss of margins that were computed beside the graph; its slope is computed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, chosen: Tensor, rejected: Tensor, margins: Tensor, psi: MarginLoss, beta: float) -> Tensor:
        ctx.save_for_backward(chosen, rejected, margins)
        ctx.parameters = psi, beta
        return psi.value(margins)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        chosen, rejected, margins = ctx.saved_tensors
        psi, beta = ctx.parameters
        if torch.is_grad_enabled():
            # The gradient is to be differentiated again: the slope has to depend on the log-probabilities.
            at = margins + beta * ((chosen - chosen.detach()) - (rejected - rejected.detach()))
            (slopes,) = torch.autograd.grad(psi.value(at).sum(), at, create_graph=True)
            gradient = slopes * upstream * beta
        else:
            gradient = torch.mul(psi.slope(margins), upstream).mul_(beta)
        return gradient, -gradient, None, None, None


def _ends(tensor: Tensor) -> str:
    return f"values from {tensor.min().item():g} to {tensor.max().item():g}"


def _shape(thing: Any) -> str:
    if not isinstance(thing, Tensor):
        return type(thing).__name__
    return f"dtype {thing.dtype} and shape {tuple(thing.shape)}"


def _as_logps(logps: Any, name: str) -> Tensor:
    if not isinstance(logps, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(logps).__name__}")
    if not logps.is_floating_point():
        raise TypeError(f"{name} must be of floating point, got dtype {logps.dtype}")
    if logps.ndim != 1 or logps.shape[0] == 0:
        raise ValueError(f"{name} must have shape (n_pairs,) with at least one pair, got {tuple(logps.shape)}")
    return logps.float() if logps.dtype.itemsize < 4 else logps


def _require_finite(margins: Tensor, **logps: Tensor | None) -> None:
    """Raise for the first nan or infinity; on an accelerator, and under transforms, that would stop everything."""
    if margins.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if torch._C._functorch.is_functorch_wrapped_tensor(margins):
        return
    for name, tensor in logps.items():
        # One pass without a temporary: the sum is finite unless an entry is not (or it overflows).
        if tensor is None or bool(torch.isfinite(tensor.detach().sum())):
            continue
        bad = ~torch.isfinite(tensor.detach())
        if bool(bad.any()):
            index = int(bad.long().argmax())
            raise ValueError(f"{name} must be finite, got {tensor[index].item()} at index {index}")
