"""Train a language model on pairs of responses: a policy, a frozen reference, an optimizer, and nothing else.

The trainer is a loop that people would otherwise write themselves around :class:`~assay.supervised.PreferenceLoss`. It
works with any module that maps token ids to logits, those of ``transformers`` included, and with any torch optimizer;
devices, precision and schedules are those that the caller has set up.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.certificate import Certificate
from assay.supervised.preference import PreferenceLoss, PreferenceOutput
from assay.supervised.preference_batches import PreferenceBatch
from assay.supervised.preference_fit import PreferenceFit, certify_preference_fit
from assay.supervised.response_log_probs import SequenceLogProbs, sequence_log_probs
from assay.validation import check_integer, check_real

__all__ = ["PreferenceTrainer"]


class PreferenceTrainer:
    r"""Train a policy on pairs of responses.

    Parameters
    ----------
    policy : torch.nn.Module
        Maps token ids of shape (n, t) to logits of shape (n, t, v), or to an object with them in ``logits``, as the
        models of ``transformers`` do. Called with ``attention_mask=`` if the batch has one and the model takes it.
    loss : PreferenceLoss
        The loss.
    optimizer : torch.optim.Optimizer
        Of the parameters of the policy.
    reference : torch.nn.Module, optional
        A copy of the policy as it is now by default. It is frozen: set to evaluation mode, without gradients.
    clip : float or None, default=1.0
        Largest norm of the gradient.

    Attributes
    ----------
    policy, reference : torch.nn.Module
        The models; ``reference`` is None when the loss does without.
    history : dict of str to list of float
        ``loss``, ``accuracy`` and ``margin`` of each step.
    n_steps : int
        Steps taken.

    Raises
    ------
    TypeError
        If an argument is not what it should be.
    ValueError
        If the optimizer has no parameter of the policy, or the reference shares one that is trained.

    Notes
    -----
    A step costs a forward and a backward pass for each of the two responses, and the forward passes of the reference.

    References
    ----------
    W. Zhou, S. Zhang, B. Magdalou, J. Lambert, E. Amid, R. Nock, A. Hard. DPO Unchained: Your Training Algorithm is
    Secretly Disentangled in Human Choice Theory (and its Loss' Convexity is Dispensable). ICML 2026.
    arXiv:2507.07855.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised import PreferenceLoss, PreferenceTrainer, preference_batch
    >>> _ = torch.manual_seed(0)
    >>> policy = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Linear(16, 8))
    >>> trainer = PreferenceTrainer(policy, PreferenceLoss("savage"), torch.optim.Adam(policy.parameters(), lr=0.01))
    >>> batch = preference_batch([([1], [2, 3], [4]), ([5], [2], [4, 4, 6])])
    >>> trainer.fit([batch], n_epochs=20).evaluate([batch]).accuracy
    1.0
    """

    def __init__(
        self,
        policy: nn.Module,
        loss: PreferenceLoss,
        optimizer: torch.optim.Optimizer,
        reference: nn.Module | None = None,
        *,
        clip: float | None = 1.0,
    ) -> None:
        for argument, name, kind in (
            (policy, "policy", nn.Module),
            (loss, "loss", PreferenceLoss),
            (optimizer, "optimizer", torch.optim.Optimizer),
        ):
            if not isinstance(argument, kind):
                raise TypeError(f"{name} must be a {kind.__module__}.{kind.__name__}, got {type(argument).__name__}")
        if reference is not None and not isinstance(reference, nn.Module):
            raise TypeError(f"reference must be a torch.nn.Module or None, got {type(reference).__name__}")
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(parameter) in trained for parameter in policy.parameters()):
            raise ValueError("optimizer must have parameters of the policy, got none of them")
        if reference is not None and any(id(parameter) in trained for parameter in reference.parameters()):
            raise ValueError(
                "reference must share no trained parameter with the policy, got the same: pass None to copy"
            )
        self.policy, self.loss, self.optimizer = policy, loss, optimizer
        self.clip = None if clip is None else check_real(clip, "clip", above=0)
        self.reference = None
        if not loss.reference_free:
            self.reference = copy.deepcopy(policy) if reference is None else reference
            self.reference.eval().requires_grad_(False)
            self._fingerprint = _fingerprint(self.reference)
        self.history: dict[str, list[float]] = {"loss": [], "accuracy": [], "margin": []}
        self.n_steps = 0

    def log_probs(
        self, model: nn.Module, ids: Tensor, mask: Tensor, attention: Tensor | None = None
    ) -> SequenceLogProbs:
        """Log-probabilities and lengths of responses under a model.

        Parameters
        ----------
        model : torch.nn.Module
            The policy or the reference.
        ids, mask, attention : torch.Tensor of shape (n_pairs, n_tokens)
            As in :class:`PreferenceBatch`.

        Returns
        -------
        SequenceLogProbs
        """
        takes_mask = attention is not None and _takes_attention_mask(model)
        output = model(ids, attention_mask=attention) if takes_mask else model(ids)
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor):
            raise TypeError(
                f"policy must return logits, or an object with 'logits', got {type(output).__name__} without"
            )
        return sequence_log_probs(logits, ids, mask)

    def compute_loss(self, batch: PreferenceBatch) -> PreferenceOutput:
        """Loss of a batch, with its graph.

        Parameters
        ----------
        batch : PreferenceBatch
            On the device of the policy.

        Returns
        -------
        PreferenceOutput
        """
        _check_batch(batch)
        sides = [
            (batch.chosen_ids, batch.chosen_mask, batch.chosen_attention),
            (batch.rejected_ids, batch.rejected_mask, batch.rejected_attention),
        ]
        chosen, rejected = (self.log_probs(self.policy, *side) for side in sides)
        reference = [batch.reference_chosen_logps, batch.reference_rejected_logps]
        if self.reference is not None and None in reference:
            with torch.no_grad():
                reference = [self.log_probs(self.reference, *side).log_probs for side in sides]
        return self.loss(
            chosen.log_probs,
            rejected.log_probs,
            *reference,
            chosen_lengths=chosen.lengths,
            rejected_lengths=rejected.lengths,
            margin=batch.margin,
            tie=batch.tie,
        )

    def step(self, batch: PreferenceBatch) -> PreferenceOutput:
        """One step of the optimizer on a batch.

        Parameters
        ----------
        batch : PreferenceBatch
            Pairs.

        Returns
        -------
        PreferenceOutput

        Raises
        ------
        ValueError
            If the loss is not finite.

        Warns
        -----
        UserWarning
            If the two responses of a pair are the same.
        """
        _check_batch(batch)
        if identical := batch.n_identical():
            warnings.warn(
                f"{identical} of {len(batch)} pairs have one response as chosen and as rejected; they teach nothing",
                stacklevel=2,
            )
        self.policy.train()
        self.loss.train()
        self.optimizer.zero_grad(set_to_none=True)
        output = self.compute_loss(batch)
        loss = output.loss if output.loss.ndim == 0 else output.loss.mean()
        if not math.isfinite(loss.item()):
            raise ValueError(f"loss must be finite, got {loss.item()} at step {self.n_steps}: lower the learning rate")
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.policy.parameters(), self.clip)
        self.optimizer.step()
        self.n_steps += 1
        margins = output.margins
        self.history["loss"].append(loss.item())
        self.history["accuracy"].append(float((margins > 0).double().mean()))
        self.history["margin"].append(float(margins.mean()))
        return output

    def fit(
        self,
        batches: Iterable[PreferenceBatch],
        n_epochs: int = 1,
        *,
        callback: Callable[[PreferenceTrainer], Any] | None = None,
    ) -> PreferenceTrainer:
        """Train on all batches, ``n_epochs`` times.

        Parameters
        ----------
        batches : iterable of PreferenceBatch
            Something that can be gone through once per epoch: a list, or a ``DataLoader`` that collates to batches. If
            it has no length, the continuation of a loss that wants one takes the epoch as its unit.
        n_epochs : int, default=1
            Number of passes.
        callback : callable, optional
            Called with the trainer after each step.

        Returns
        -------
        PreferenceTrainer
            The trainer itself.
        """
        n_epochs = check_integer(n_epochs, "n_epochs", minimum=1)
        per_epoch = len(batches) if hasattr(batches, "__len__") else None
        seen = 0
        for epoch in range(n_epochs):
            for index, batch in enumerate(batches):
                done = epoch / n_epochs if per_epoch is None else (epoch * per_epoch + index) / (n_epochs * per_epoch)
                self.loss.set_progress(min(1.0, done))
                self.step(batch)
                seen += 1
                if callback is not None:
                    callback(self)
        if not seen:
            raise ValueError("batches must have at least one batch, got none")
        self.loss.set_progress(1.0)
        return self

    def evaluate(self, batches: Iterable[PreferenceBatch], **options: Any) -> PreferenceFit:
        """Hold the policy against pairs that it was not trained on.

        Parameters
        ----------
        batches : iterable of PreferenceBatch
            Held-out pairs.
        **options
            Of :func:`~assay.supervised.certify_preference_fit`: ``choice``, ``n_bins``, ``confidence``, ``tol``.

        Returns
        -------
        PreferenceFit
            Its last certificate is about the reference, if there is one.
        """
        leads, ties = [], []
        modes = self.policy.training, self.loss.training
        self.policy.eval()
        self.loss.eval()
        try:
            with torch.no_grad():
                for batch in batches:
                    output = self.compute_loss(batch)
                    leads.append((output.chosen_rewards - output.rejected_rewards).double().cpu())
                    ties.append(torch.zeros(len(batch), dtype=torch.bool) if batch.tie is None else batch.tie.cpu())
        finally:
            self.policy.train(modes[0])
            self.loss.train(modes[1])
        if not leads:
            raise ValueError("batches must have at least one batch, got none")
        fit = certify_preference_fit(
            torch.cat(leads).numpy(), psi=self.loss.effective_psi(), tie=torch.cat(ties).numpy(), **options
        )
        return replace(fit, certificates=(*fit.certificates, *self.certificates()))

    def certificates(self) -> tuple[Certificate, ...]:
        """That the reference is still the one that the training began with; nothing without a reference."""
        if self.reference is None:
            return ()
        now = _fingerprint(self.reference)
        change = float(np.abs(now - self._fingerprint).max()) if now.shape == self._fingerprint.shape else math.nan
        return (Certificate("change of the frozen reference since the training began", change, 0.0),)

    def state_dict(self) -> dict[str, Any]:
        """State of policy, optimizer, loss and step count, for ``torch.save``."""
        return {
            "policy": self.policy.state_dict(),
            "reference": None if self.reference is None else self.reference.state_dict(),
            "fingerprint": None if self.reference is None else self._fingerprint.tolist(),
            "optimizer": self.optimizer.state_dict(),
            "loss": self.loss.state_dict(),
            "history": {name: list(column) for name, column in self.history.items()},
            "n_steps": self.n_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; a reference that was changed before it was saved is still noticed."""
        if (self.reference is None) != (state["reference"] is None):
            raise ValueError("state must be of a trainer that has a reference if this one has, and else of one without")
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])
            self._fingerprint = np.array(state["fingerprint"])
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss.load_state_dict(state["loss"])
        self.history = {name: list(column) for name, column in state["history"].items()}
        self.n_steps = int(state["n_steps"])


def _check_batch(batch: Any) -> None:
    if not isinstance(batch, PreferenceBatch):
        raise TypeError(f"batch must be a PreferenceBatch, got {type(batch).__name__}")


def _takes_attention_mask(model: nn.Module) -> bool:
    try:
        return "attention_mask" in inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # compiled code shows no signature
        return False


def _fingerprint(model: nn.Module) -> np.ndarray:
    """Two numbers per parameter and buffer that any change of it changes, up to rounding."""
    sums = []
    with torch.no_grad():
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            flat = tensor.reshape(-1).double()
            # The second one notices entries that change places.
            sums += [flat.sum(), flat @ torch.cos(torch.arange(len(flat), dtype=flat.dtype, device=flat.device))]
    return torch.stack(sums).cpu().numpy() if sums else np.zeros(0)
