"""Batches of pairs of responses: token ids, what of them is the response, and how to pad them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.validation import check_integer

__all__ = ["PreferenceBatch", "preference_batch"]


@dataclass(frozen=True, eq=False)
class PreferenceBatch:
    """Pairs of responses as token ids, padded on the right.

    Parameters
    ----------
    chosen_ids, rejected_ids : torch.Tensor of int64 of shape (n_pairs, n_tokens)
        Prompt and response; the two may differ in length.
    chosen_mask, rejected_mask : torch.Tensor of bool of the same shapes
        True at the tokens of the response.
    chosen_attention, rejected_attention : torch.Tensor of the same shapes, optional
        Passed to the model as ``attention_mask``: 1 at tokens, 0 at padding.
    margin : torch.Tensor of shape (n_pairs,), optional
        Margin of each pair.
    tie : torch.Tensor of bool of shape (n_pairs,), optional
        Pairs without an order.
    reference_chosen_logps, reference_rejected_logps : torch.Tensor of shape (n_pairs,), optional
        Log-probabilities under the reference, if they were computed before.

    Examples
    --------
    >>> from assay.supervised import preference_batch
    >>> preference_batch([([5, 6], [1, 2, 3], [4])]).rejected_mask
    tensor([[False, False,  True]])
    """

    chosen_ids: Tensor
    rejected_ids: Tensor
    chosen_mask: Tensor
    rejected_mask: Tensor
    chosen_attention: Tensor | None = None
    rejected_attention: Tensor | None = None
    margin: Tensor | None = None
    tie: Tensor | None = None
    reference_chosen_logps: Tensor | None = None
    reference_rejected_logps: Tensor | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if not isinstance(value, Tensor):
                raise TypeError(f"{field.name} must be a torch.Tensor, got {type(value).__name__}")
        for which in ("chosen", "rejected"):
            ids = getattr(self, f"{which}_ids")
            if ids.ndim != 2 or ids.dtype != torch.int64 or len(ids) == 0:
                raise ValueError(
                    f"{which}_ids must be int64 of shape (n_pairs, n_tokens), got {ids.dtype}, {tuple(ids.shape)}"
                )
            for part in ("mask", "attention"):
                tensor = getattr(self, f"{which}_{part}")
                if tensor is not None and tensor.shape != ids.shape:
                    raise ValueError(f"{which}_{part} must have shape {tuple(ids.shape)}, got {tuple(tensor.shape)}")
        if len(self.chosen_ids) != len(self.rejected_ids):
            raise ValueError(
                f"rejected_ids must have {len(self.chosen_ids)} rows, as chosen_ids, got {len(self.rejected_ids)}"
            )

    def __len__(self) -> int:
        return len(self.chosen_ids)

    def to(self, device: Any) -> PreferenceBatch:
        """The batch on another device."""
        moved = {f.name: value.to(device) for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(self, **moved)

    def n_identical(self) -> int:
        """Number of pairs whose two responses are the same tokens, from which nothing can be learned."""
        if self.chosen_ids.shape != self.rejected_ids.shape:
            width = max(self.chosen_ids.shape[1], self.rejected_ids.shape[1])
        else:
            width = self.chosen_ids.shape[1]
        padded = [
            nn.functional.pad(torch.where(mask != 0, ids, -1), (0, width - ids.shape[1]), value=-1)
            for ids, mask in ((self.chosen_ids, self.chosen_mask), (self.rejected_ids, self.rejected_mask))
        ]
        same = (padded[0] == padded[1]).all(1)
        return int((same if self.tie is None else same & ~self.tie).sum())


def preference_batch(
    records: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]], pad_id: int = 0
) -> PreferenceBatch:
    """Pad token ids of prompts and responses to one batch.

    Parameters
    ----------
    records : sequence of (prompt, chosen, rejected)
        Token ids; a response needs at least one, and the prompt too, as the first token has no probability.
    pad_id : int, default=0
        What to pad with; padding is neither attended to nor counted.

    Returns
    -------
    PreferenceBatch
        With attention masks.

    Raises
    ------
    ValueError
        If there is no record, or a prompt or a response is empty.

    Examples
    --------
    >>> from assay.supervised import preference_batch
    >>> batch = preference_batch([([5], [1, 2], [4]), ([6, 7], [1], [2])])
    >>> batch.chosen_ids
    tensor([[5, 1, 2],
            [6, 7, 1]])
    """
    if not records:
        raise ValueError("records must have at least one pair, got none")
    pad_id = check_integer(pad_id, "pad_id", minimum=0)
    parts: dict[str, list[Tensor]] = {}
    for column, which in ((1, "chosen"), (2, "rejected")):
        width = max(len(record[0]) + len(record[column]) for record in records)
        ids = torch.full((len(records), width), pad_id)
        mask, attention = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids)
        for row, record in enumerate(records):
            prompt, response = list(record[0]), list(record[column])
            if not prompt or not response:
                raise ValueError(f"records must have a non-empty prompt and responses, got an empty one at {row}")
            end = len(prompt) + len(response)
            ids[row, :end] = torch.tensor(prompt + response)
            mask[row, len(prompt) : end] = True
            attention[row, :end] = 1
        parts |= {f"{which}_ids": ids, f"{which}_mask": mask, f"{which}_attention": attention}
    return PreferenceBatch(**parts)
