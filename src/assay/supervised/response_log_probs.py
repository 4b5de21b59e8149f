"""Log-probabilities of whole responses from the logits of a language model."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.validation import check_integer

__all__ = ["SequenceLogProbs", "sequence_log_probs"]

_IGNORED = -100


class SequenceLogProbs(NamedTuple):
    """What :func:`sequence_log_probs` returns.

    Parameters
    ----------
    log_probs : torch.Tensor of shape (n_sequences,)
        Sum of the log-probabilities of the tokens of each response.
    lengths : torch.Tensor of shape (n_sequences,)
        Number of these tokens.
    """

    log_probs: Tensor
    lengths: Tensor


def sequence_log_probs(
    logits: Tensor, labels: Tensor, mask: Tensor | None = None, *, shift: bool = True, ignore_index: int = _IGNORED
) -> SequenceLogProbs:
    """Log-probability and length of each response.

    Parameters
    ----------
    logits : torch.Tensor of shape (n_sequences, n_tokens, n_vocabulary)
        What the model returns for the tokens of prompt and response.
    labels : torch.Tensor of int64 of shape (n_sequences, n_tokens)
        The tokens themselves.
    mask : torch.Tensor of shape (n_sequences, n_tokens), optional
        True (or 1) at the tokens of the response, not at those of the prompt and the padding. All tokens by default.
    shift : bool, default=True
        Whether the logits at a token are those of the next one, as causal language models return them. Then the first
        token of a sequence has no probability and is not counted, even if the mask has it.
    ignore_index : int, default=-100
        Label of tokens that are not counted, in addition to the mask.

    Returns
    -------
    SequenceLogProbs
        In single precision for logits in half; a response without a token has log-probability 0 and length 0.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, or the labels are not int64.

    Notes
    -----
    Half precision is computed in single, a sequence at a time, so that no copy of all logits is made.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised import sequence_log_probs
    >>> tokens = torch.tensor([[3, 1, 2, 0]])
    >>> response = torch.tensor([[False, False, True, True]])
    >>> log_probs, lengths = sequence_log_probs(torch.zeros(1, 4, 5), tokens, response)
    >>> round(log_probs.item(), 4), lengths.item()  # two tokens of probability 1/5
    (-3.2189, 2)
    """
    _check(logits, labels, mask)
    ignore_index = check_integer(ignore_index, "ignore_index")
    wanted = labels != ignore_index if mask is None else (labels != ignore_index) & (mask != 0)
    if shift:
        logits, labels, wanted = logits[:, :-1], labels[:, 1:], wanted[:, 1:]
    targets = torch.where(wanted, labels, _IGNORED)
    if logits.dtype.itemsize < 4:
        rows = [_token_losses(row.float(), target) for row, target in zip(logits, targets, strict=True)]
        losses = torch.stack(rows)
    else:
        losses = _token_losses(logits.flatten(0, 1), targets.flatten()).view(targets.shape)
    return SequenceLogProbs(-losses.sum(1), wanted.sum(1))


def _token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, ignore_index=_IGNORED, reduction="none")


def _check(logits: Any, labels: Any, mask: Any) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise TypeError(f"logits must be a torch.Tensor of floating point, got {_kind(logits)}")
    if logits.ndim != 3 or 0 in logits.shape:
        raise ValueError(f"logits must have shape (n_sequences, n_tokens, n_vocabulary), got {tuple(logits.shape)}")
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        raise TypeError(f"labels must be a torch.Tensor of dtype torch.int64, got {_kind(labels)}")
    if mask is not None and (not isinstance(mask, Tensor) or mask.is_complex()):
        raise TypeError(f"mask must be a torch.Tensor, got {_kind(mask)}")
    for name, tensor in (("labels", labels), ("mask", mask)):
        if tensor is not None and tensor.shape != logits.shape[:2]:
            raise ValueError(f"{name} must have shape {tuple(logits.shape[:2])}, got {tuple(tensor.shape)}")


def _kind(thing: Any) -> str:
    return str(thing.dtype) if isinstance(thing, Tensor) else type(thing).__name__
