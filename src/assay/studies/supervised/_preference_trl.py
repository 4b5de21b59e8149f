"""The losses of TRL's DPOTrainer, called as they are: a trainer without a model, on given log-probabilities."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch

from assay.extras import import_extra

__all__ = ["TrlLoss", "trl_loss"]


def trl_loss(
    loss_type: str,
    logps: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    beta: float,
    label_smoothing: float = 0.0,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean loss of DPOTrainer for log-probabilities (chosen, rejected, reference chosen, reference rejected).

    ``lengths``, of chosen and then of rejected responses, spreads the log-probabilities over so many tokens.
    """
    trainer = import_extra("trl", extra="peers").DPOTrainer
    chosen, rejected, reference_chosen, reference_rejected = logps
    n = len(chosen)
    lengths = torch.ones(2 * n, dtype=torch.int64) if lengths is None else lengths
    width = int(lengths.max())
    completion = torch.cat(
        [torch.zeros(2 * n, 1, dtype=torch.int64), (torch.arange(width) < lengths[:, None]).long()], dim=1
    )

    def tokens(values: torch.Tensor) -> torch.Tensor:
        return (values / lengths.to(values))[:, None] * completion[:, 1:].to(values)

    policy = tokens(torch.cat([chosen, rejected]))

    def model(**_: Any) -> SimpleNamespace:
        still = policy.detach()
        return SimpleNamespace(log_probs=policy, entropy=still, mean_logits=still, is_top1=still > 0)

    stub = SimpleNamespace(
        model=SimpleNamespace(training=False),
        accelerator=SimpleNamespace(
            device=chosen.device, gather=lambda tensor: tensor, gather_for_metrics=lambda tensor: tensor
        ),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        beta=beta,
        label_smoothing=label_smoothing,
        loss_types=[loss_type],
        loss_weights=[1.0],
        use_weighting=False,
        args=SimpleNamespace(discopop_tau=0.05),
        _metrics={"eval": defaultdict(list)},
        _total_train_tokens=0,
    )
    inputs = {
        "input_ids": torch.zeros_like(completion),
        "attention_mask": torch.ones_like(completion),
        "completion_mask": completion,
        "ref_chosen_logps": reference_chosen,
        "ref_rejected_logps": reference_rejected,
    }
    return trainer._compute_loss(stub, model, inputs, return_outputs=False)


class TrlLoss:
    """A loss of TRL as a loss of the margin.

    TRL returns the mean over the batch. Every margin is given that mean: sums and means of values and their gradients
    are those of the loss, and nothing else is used in training.
    """

    def __init__(self, loss_type: str, label_smoothing: float = 0.0) -> None:
        self.name = f"trl {loss_type}"
        self.loss_type, self.label_smoothing = loss_type, label_smoothing

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Mean loss of the margins, once for each of them."""
        flat = z.reshape(-1)
        zero = torch.zeros_like(flat.detach())
        mean = trl_loss(self.loss_type, (flat, zero, zero, zero), 1.0, self.label_smoothing)
        return mean.expand(z.shape)
