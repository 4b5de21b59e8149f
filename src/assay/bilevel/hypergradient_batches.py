"""Batches of samples: trees of tensors that have the samples as their first dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["batch_length", "copy_of", "join_batches", "part_of"]


def batch_length(batch: Any, name: str = "batch") -> int:
    """Number of samples of a batch.

    Parameters
    ----------
    batch : tree of Tensor
        Leaves that are neither tensors nor arrays are left alone.
    name : str, default="batch"
        Name of the argument, for messages.

    Returns
    -------
    int

    Raises
    ------
    TypeError
        If there is no tensor, or an array or data frame in place of one.
    ValueError
        If the tensors differ in length, or are empty.
    """
    if isinstance(batch, Tensor) and batch.ndim and len(batch):
        return len(batch)
    found = tree_leaves(batch)
    for leaf in found:
        if not isinstance(leaf, Tensor | np.generic) and (hasattr(leaf, "__array__") or hasattr(leaf, "tocsr")):
            raise TypeError(f"{name} must have tensors (see torch.as_tensor), got {type(leaf).__name__}")
    leaves = [leaf for leaf in found if isinstance(leaf, Tensor)]
    if not leaves:
        raise TypeError(f"{name} must be a tensor, or a tuple, list or dict of tensors, got {type(batch).__name__}")
    lengths = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves}
    if len(lengths) > 1 or -1 in lengths:
        raise ValueError(f"{name} must have tensors of equally many samples, in their first dimension")
    (length,) = lengths
    if not length:
        raise ValueError(f"{name} must have at least 1 sample, got an empty one")
    return length


def join_batches(batches: Sequence[Any], limit: int | None = None) -> Any:
    """One batch with the samples of several, or with the last ``limit`` of them."""
    if len(batches) == 1:
        joined = batches[0]
    else:
        leaves = [tree_leaves(batch) for batch in batches]
        whole = iter([torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0] for parts in zip(*leaves)])  # noqa: B905
        joined = tree_map(lambda _: next(whole), batches[0])
    if limit is not None and batch_length(joined) > limit:
        joined = tree_map(lambda leaf: leaf[-limit:] if isinstance(leaf, Tensor) else leaf, joined)
    return joined


def part_of(batch: Any, start: int, length: int) -> Any:
    """Some consecutive samples of a batch."""
    return tree_map(lambda leaf: leaf[start : start + length] if isinstance(leaf, Tensor) else leaf, batch)


def copy_of(batch: Any) -> Any:
    """A batch that stays as it is when the tensors of this one are filled with the next samples."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, batch)
