"""Labelled rows of nodes: dealt out in turns, kept in one array with a leading axis over nodes, drawn in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.validation import as_float_array, check_integer

__all__ = ["NodeRows", "as_labels", "deal_out", "row_sampler"]


@dataclass(frozen=True, eq=False)
class NodeRows:
    """Labelled rows of all nodes; nodes with fewer rows than others have rows of weight 0 at the end.

    Parameters
    ----------
    features : numpy.ndarray of shape (K, rows, features)
        The rows.
    labels : numpy.ndarray of shape (K, rows)
        Numbers of classes.
    weights : numpy.ndarray of shape (K, rows)
        They sum to 1 at every node.
    """

    features: Float[np.ndarray, "nodes rows features"]
    labels: Int[np.ndarray, "nodes rows"]
    weights: Float[np.ndarray, "nodes rows"]

    @property
    def counts(self) -> Int[np.ndarray, " nodes"]:
        """Rows of every node."""
        return (self.weights > 0.0).sum(axis=1)

    def chosen(self, rows: Int[np.ndarray, "nodes batch"] | None) -> NodeRows:
        """A batch, of which all rows have the same weight; all rows for None."""
        if rows is None:
            return self
        nodes = np.arange(len(rows))[:, None]
        even = np.full(rows.shape, 1.0 / rows.shape[1])
        return NodeRows(self.features[nodes, rows], self.labels[nodes, rows], even)


def row_sampler(train: NodeRows, validation: NodeRows, batch_size: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Sampler of row numbers, with repetition: for every node a row of training and a row of validation rows."""
    batch_size = check_integer(batch_size, "batch_size", minimum=1)
    return partial(_drawn, np.stack([train.counts, validation.counts], axis=1)[:, :, None], batch_size)


def _drawn(
    counts: Int[np.ndarray, "nodes 2 1"], batch_size: int, rng: np.random.Generator
) -> Int[np.ndarray, "nodes 2 batch"]:
    return (rng.random((*counts.shape[:2], batch_size)) * counts).astype(np.int64)


def deal_out(
    X_train: ArrayLike, y_train: ArrayLike, X_validation: ArrayLike, y_validation: ArrayLike, n_nodes: int
) -> tuple[NodeRows, NodeRows, int]:
    """Check labelled rows and deal them to the nodes; with the number of classes."""
    n_nodes = check_integer(n_nodes, "n_nodes", minimum=1)
    named = {"train": (X_train, y_train), "validation": (X_validation, y_validation)}
    tables, n_rows = {}, 0
    for name, (features, labels) in named.items():
        rows = as_float_array(features, f"X_{name}", ndim=2)
        tables[name] = rows, labels
        n_rows += len(rows)
        if len(rows) < n_nodes:
            raise ValueError(f"X_{name} must have a row for each of the {n_nodes} nodes, got {len(rows)}: "
                             f"node {len(rows)} would have empty data")  # fmt: skip
    widths = [rows.shape[1] for rows, _ in tables.values()]
    if widths[0] != widths[1]:
        raise ValueError(f"X_train and X_validation must have the same features, got {widths[0]} and {widths[1]}")
    classes = {name: as_labels(labels, f"y_{name}", len(rows), n_rows) for name, (rows, labels) in tables.items()}
    train, validation = (_deal(tables[name][0], classes[name], n_nodes) for name in named)
    return train, validation, 1 + max(int(labels.max()) for labels in classes.values())


def _deal(features: Float[np.ndarray, "n features"], labels: Int[np.ndarray, " n"], n_nodes: int) -> NodeRows:
    """Row ``i`` to node ``i`` modulo the number of nodes."""
    n = len(features)
    longest = -(-n // n_nodes)
    order = np.arange(longest * n_nodes).reshape(longest, n_nodes).T
    weights = (order < n).astype(float)
    weights /= weights.sum(axis=1, keepdims=True)
    order = np.minimum(order, n - 1)
    return NodeRows(features[order], labels[order], weights)


def as_labels(labels: ArrayLike, name: str, n: int, n_classes: int) -> Int[np.ndarray, " n"]:
    """Check classes 0, 1, ... of ``n`` rows."""
    numbers = as_float_array(labels, name, ndim=1)
    if len(numbers) != n:
        raise ValueError(f"{name} must have a class for each of the {n} rows, got {len(numbers)}")
    wrong = (numbers % 1.0 != 0.0) | (numbers < 0.0) | (numbers >= n_classes)
    if wrong.any():
        raise ValueError(f"{name} must have classes 0, 1, ..., less than {n_classes}, got {numbers[wrong][0]:g}")
    return numbers.astype(np.int64)
