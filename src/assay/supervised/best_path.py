"""The best label sequence of a chain, by dynamic programming.

The score of a sequence is the sum of what its labels score at their positions and of what its neighbouring pairs
score. The best sequence that ends in label ``k`` at position ``t`` extends the best one that ends in some ``j`` at
``t - 1``, so the maximum over all ``K^L`` sequences takes ``O(L K^2)`` steps. On the processor the recursion runs
compiled and keeps only the scores: which ``j`` was best is asked again for the ``L`` labels of the answer, and not
remembered for all ``L K`` of them. On other devices it runs as tensor operations over the whole batch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from assay.validation import as_float_array

__all__ = ["viterbi"]


def viterbi(
    unary: ArrayLike | Tensor,
    transitions: ArrayLike | Tensor | None = None,
    mask: ArrayLike | Tensor | None = None,
) -> np.ndarray | Tensor:
    r"""Find the label sequences of highest score.

    Maximises :math:`\sum_t s_t(y_t) + \sum_t A[y_t, y_{t+1}]` over all label sequences, exactly.

    Parameters
    ----------
    unary : array_like or torch.Tensor of shape (positions, labels) or (batch, positions, labels)
        Scores :math:`s_t(k)` of the labels at the positions.
    transitions : array_like or torch.Tensor of shape (labels, labels), optional
        Scores :math:`A` of a label (row) being followed by a label (column). None means zero: then every position
        takes its own best label.
    mask : array_like or torch.Tensor of bool, of shape (positions,) or (batch, positions), optional
        True where there is a position; the others are padding. A pair of neighbours counts when both are there.

    Returns
    -------
    numpy.ndarray or torch.Tensor of int64, of the shape of ``unary`` without its last axis
        The labels, with -1 at padding. A tensor if ``unary`` is one, on its device. Among sequences of equal score
        the compiled form prefers the lower label, from the last position backwards.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong shape, is not numeric, or has a nan or an infinity in it.

    Notes
    -----
    Time ``O(batch * positions * labels^2)``; memory ``O(positions * labels)`` on the processor.

    References
    ----------
    A. Viterbi. Error bounds for convolutional codes and an asymptotically optimum decoding algorithm. IEEE
    Transactions on Information Theory, 1967.

    Examples
    --------
    The middle position prefers label 1 by a little, but staying pays more:

    >>> from assay.supervised import viterbi
    >>> unary = [[2.0, 0.0], [0.0, 0.5], [2.0, 0.0]]
    >>> viterbi(unary)
    array([0, 1, 0])
    >>> viterbi(unary, transitions=[[1.0, 0.0], [0.0, 1.0]])
    array([0, 0, 0])
    """
    if isinstance(unary, Tensor) and unary.device.type != "cpu":
        return _on_device(unary, transitions, mask)
    # numpy has no bfloat16, which the cast to double precision takes care of.
    scores = as_float_array(unary.detach().double() if isinstance(unary, Tensor) else unary, "unary", ndim=(2, 3))
    batch = scores[None] if scores.ndim == 2 else scores
    n_labels = batch.shape[2]
    if transitions is None:
        pairs = np.zeros((n_labels, n_labels))
    else:
        joint = transitions.detach().double() if isinstance(transitions, Tensor) else transitions
        pairs = np.ascontiguousarray(as_float_array(joint, "transitions", ndim=2))
    present = _as_mask(mask, scores.shape[:-1]).reshape(batch.shape[:2])
    _check_transitions(pairs.shape, n_labels)
    if transitions is None:
        labels = np.where(present, batch.argmax(axis=2), -1)
    else:
        labels = _best_sequences(np.ascontiguousarray(batch), pairs, present)
    labels = labels.reshape(scores.shape[:-1])
    return torch.from_numpy(labels) if isinstance(unary, Tensor) else labels


def _check_transitions(shape: tuple[int, ...], n_labels: int) -> None:
    if tuple(shape) != (n_labels, n_labels):
        raise ValueError(
            f"transitions must have a row and a column per label, shape ({n_labels}, {n_labels}), got {tuple(shape)}"
        )


def _as_mask(mask: Any, shape: tuple[int, ...]) -> Bool[np.ndarray, "*axes"]:
    if mask is None:
        return np.ones(shape, dtype=bool)
    present = mask.detach().cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
    if present.dtype != bool:
        raise TypeError(f"mask must be an array of bool, got dtype {present.dtype}")
    if present.shape != tuple(shape):
        raise ValueError(
            f"mask must have the shape of unary without its last axis, {tuple(shape)}, got {present.shape}"
        )
    return present


@numba.njit(cache=True)
def _best_sequences(
    unary: Float[np.ndarray, "batch positions labels"],
    transitions: Float[np.ndarray, "labels labels"],
    present: Bool[np.ndarray, "batch positions"],
) -> Int[np.ndarray, "batch positions"]:
    n_sequences, n_positions, n_labels = unary.shape
    labels = np.full((n_sequences, n_positions), -1, dtype=np.int64)
    best = np.empty((n_positions, n_labels))  # best[t, k]: highest score up to t of those that have label k at t
    for b in range(n_sequences):
        for t in range(n_positions):
            linked = t > 0 and present[b, t - 1] and present[b, t]
            if linked:
                for k in range(n_labels):
                    best[t, k] = -np.inf
                for j in range(n_labels):
                    start = best[t - 1, j]
                    for k in range(n_labels):
                        score = start + transitions[j, k]
                        best[t, k] = score if score > best[t, k] else best[t, k]
            else:
                highest = best[t - 1].max() if t > 0 else 0.0
                for k in range(n_labels):
                    best[t, k] = highest
            if present[b, t]:
                for k in range(n_labels):
                    best[t, k] += unary[b, t, k]
        label = np.argmax(best[n_positions - 1])
        for t in range(n_positions - 1, -1, -1):
            if present[b, t]:
                labels[b, t] = label
            if t > 0:
                linked = present[b, t - 1] and present[b, t]
                highest, previous = -np.inf, 0
                for j in range(n_labels):
                    score = best[t - 1, j] + (transitions[j, label] if linked else 0.0)
                    if score > highest:
                        highest, previous = score, j
                label = previous
    return labels


def _on_device(unary: Tensor, transitions: Any, mask: Any) -> Tensor:
    """Check tensors where they are, and decode there."""
    if unary.ndim not in (2, 3) or unary.numel() == 0:
        raise ValueError(f"unary must be a finite 2-D or 3-D array and not empty, got shape {tuple(unary.shape)}")
    if not unary.is_floating_point():
        unary = unary.double()
    n_labels = unary.shape[-1]
    pairs = torch.zeros(n_labels, n_labels) if transitions is None else torch.as_tensor(transitions)
    pairs = pairs.detach().to(unary)
    _check_transitions(tuple(pairs.shape), n_labels)
    for name, scores in (("unary", unary), ("transitions", pairs)):
        if not bool(torch.isfinite(scores).all()):
            raise ValueError(f"{name} must be finite, got nan or infinite entries")
    present = torch.from_numpy(_as_mask(mask, tuple(unary.shape[:-1]))).to(unary.device)
    labels = _tensor_viterbi(unary.detach().reshape(-1, *unary.shape[-2:]), pairs, present.reshape(-1, unary.shape[-2]))
    return labels.reshape(unary.shape[:-1])


def _tensor_viterbi(
    unary: Float[Tensor, "batch positions labels"],
    transitions: Float[Tensor, "labels labels"],
    present: Bool[Tensor, "batch positions"],
) -> Int[Tensor, "batch positions"]:
    """The recursion as tensor operations, one position of the whole batch at a time."""
    added = unary * present[..., None]
    linked = present[:, 1:] & present[:, :-1]
    best, origins = added[:, 0], []
    for t in range(1, unary.shape[1]):
        joined = linked[:, t - 1, None, None] * transitions
        highest, origin = (best[:, :, None] + joined).max(dim=1)
        origins.append(origin)
        best = highest + added[:, t]
    labels = [best.argmax(dim=1)]
    for origin in reversed(origins):
        labels.append(origin.gather(1, labels[-1][:, None])[:, 0])
    path = torch.stack(labels[::-1], dim=1)
    return torch.where(present, path, path.new_full((), -1))
