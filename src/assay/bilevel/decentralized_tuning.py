r"""Two uses of decentralised bilevel optimisation: a penalty for every feature, and a gate for every hidden unit.

Nodes hold labelled rows, some of them for training, the others for validation. Below, weights are fitted to the
training rows; above, the shared hyper-parameters are fitted to the validation rows. Rows are dealt to the nodes in
turns, kept in one array with a leading axis over nodes, and never leave their node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from assay.bilevel.decentralized_losses import BatchedLoss
from assay.validation import as_float_array, as_generator, check_integer, check_real

__all__ = ["TuningProblem", "gate_pruning_problem", "ridge_tuning_problem"]

Rows = Int[np.ndarray, "nodes 2 batch"] | None


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


@dataclass(frozen=True, eq=False)
class TuningProblem:
    """Losses of the nodes, and what goes with them.

    Parameters
    ----------
    f, g : BatchedLoss
        Validation and training losses.
    x0, y0 : numpy.ndarray or torch.Tensor of shape (d_x,) and (d_y,)
        Starting points.
    sampler : callable
        ``sampler(rng)`` draws batches of training and validation rows, with repetition, for every node.
    logits : callable
        ``logits(x, y, features)`` of shape (rows, classes), from vectors ``x`` and ``y``.
    """

    f: BatchedLoss
    g: BatchedLoss
    x0: Float[np.ndarray, " dx"] | Float[Tensor, " dx"]
    y0: Float[np.ndarray, " dy"] | Float[Tensor, " dy"]
    sampler: Callable[[np.random.Generator], np.ndarray]
    logits: Callable[..., np.ndarray]

    def score(self, x: ArrayLike, y: ArrayLike, features: ArrayLike, labels: ArrayLike) -> tuple[float, float]:
        """Cross-entropy and accuracy on rows that no node has.

        Parameters
        ----------
        x, y : array_like of shape (d_x,) and (d_y,)
            Hyper-parameters and weights.
        features : array_like of shape (n, features)
            Test rows.
        labels : array_like of shape (n,)
            Their classes.
        """
        rows = as_float_array(features, "features", ndim=2)
        scores = self.logits(np.asarray(x, dtype=float), np.asarray(y, dtype=float), rows)
        classes = _labels(labels, "labels", len(rows))
        right = scores[np.arange(len(rows)), classes]
        top = scores.max(axis=1)
        losses = top + np.log(np.exp(scores - top[:, None]).sum(axis=1)) - right
        return float(losses.mean()), float((scores.argmax(axis=1) == classes).mean())


def ridge_tuning_problem(
    X_train: ArrayLike,
    y_train: ArrayLike,
    X_validation: ArrayLike,
    y_validation: ArrayLike,
    n_nodes: int,
    *,
    batch_size: int = 32,
    x0: float = -4.0,
) -> TuningProblem:
    r"""Softmax regression with a ridge penalty for every feature, tuned on validation rows.

    .. math:: g_k(x, Y) = \mathrm{CE}_k^{train}(Y) + \tfrac12 \sum_j e^{x_j} \|Y_j\|^2, \qquad
              f_k(x, Y) = \mathrm{CE}_k^{validation}(Y).

    Parameters
    ----------
    X_train, X_validation : array_like of shape (n, p)
        Rows, dealt to the nodes in turns.
    y_train, y_validation : array_like of shape (n,)
        Classes 0, 1, ...
    n_nodes : int
        The number K of nodes.
    batch_size : int, default=32
        Rows of each kind in a batch of a node.
    x0 : float, default=-4.0
        Logarithm of all penalties at the start.

    Returns
    -------
    TuningProblem
        For ``backend="numpy"``, with ``x`` of shape (p,) and ``y`` the coefficients, row by row, of shape
        (p * classes,).

    Raises
    ------
    TypeError, ValueError
        If arrays do not fit together, or a node would have no rows.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.bilevel.decentralized_tuning import ridge_tuning_problem
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3))
    >>> labels = (X[:, 0] > 0).astype(int)
    >>> problem = ridge_tuning_problem(X[:20], labels[:20], X[20:], labels[20:], n_nodes=4)
    >>> problem.x0.shape, problem.y0.shape
    ((3,), (6,))
    """
    train, validation, n_classes = _dealt(X_train, y_train, X_validation, y_validation, n_nodes)
    n_features = train.features.shape[2]
    x0 = check_real(x0, "x0")

    def upper(x: np.ndarray, y: np.ndarray, batch: Rows) -> tuple:
        values, slopes = _cross_entropy(validation.chosen(None if batch is None else batch[:, 1]), y, n_classes)
        return values, (np.zeros_like(x), slopes)

    def lower(x: np.ndarray, y: np.ndarray, batch: Rows) -> tuple:
        values, slopes = _cross_entropy(train.chosen(None if batch is None else batch[:, 0]), y, n_classes)
        penalties = np.exp(x)
        coefficients = y.reshape(len(y), n_features, n_classes)
        along_x = 0.5 * penalties * (coefficients**2).sum(axis=2)
        along_y = slopes + (penalties[:, :, None] * coefficients).reshape(y.shape)
        return values + along_x.sum(axis=1), (along_x, along_y)

    def logits(x: np.ndarray, y: np.ndarray, features: np.ndarray) -> np.ndarray:
        return features @ y.reshape(n_features, n_classes)

    return TuningProblem(
        f=BatchedLoss(upper, n_nodes),
        g=BatchedLoss(lower, n_nodes),
        x0=np.full(n_features, x0),
        y0=np.zeros(n_features * n_classes),
        sampler=_sampler(train, validation, batch_size),
        logits=logits,
    )


def gate_pruning_problem(
    X_train: ArrayLike,
    y_train: ArrayLike,
    X_validation: ArrayLike,
    y_validation: ArrayLike,
    n_nodes: int,
    *,
    n_hidden: int = 32,
    cost: float = 0.01,
    batch_size: int = 32,
    rng: int | np.random.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> TuningProblem:
    r"""A network with one hidden layer whose units have gates; units whose gate ends up low can be cut.

    .. math:: g_k(x, y) = \mathrm{CE}_k^{train}, \qquad
              f_k(x, y) = \mathrm{CE}_k^{validation} + c \sum_j s(x_j)

    with hidden units :math:`s(x_j)\max(0, (W_1 a + b_1)_j)` and the logistic function ``s``; ``y`` has all weights.

    Parameters
    ----------
    X_train, X_validation : array_like of shape (n, p)
        Rows, dealt to the nodes in turns.
    y_train, y_validation : array_like of shape (n,)
        Classes 0, 1, ...
    n_nodes : int
        The number K of nodes.
    n_hidden : int, default=32
        Hidden units.
    cost : float, default=0.01
        Price c of an open gate.
    batch_size : int, default=32
        Rows of each kind in a batch of a node.
    rng : None, int or numpy.random.Generator
        For the first weights.
    dtype : torch.dtype, default=torch.float64
        Precision of the run.

    Returns
    -------
    TuningProblem
        For ``backend="torch"``, with ``x`` of shape (n_hidden,); all gates are half open at the start. An ``x`` of
        minus infinity cuts a unit.

    Raises
    ------
    TypeError, ValueError
        If arrays do not fit together, or a node would have no rows.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.bilevel.decentralized_tuning import gate_pruning_problem
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3))
    >>> labels = (X[:, 0] > 0).astype(int)
    >>> problem = gate_pruning_problem(X[:20], labels[:20], X[20:], labels[20:], n_nodes=4, n_hidden=5, rng=0)
    >>> tuple(problem.x0.shape), tuple(problem.y0.shape)
    ((5,), (32,))
    """
    train, validation, n_classes = _dealt(X_train, y_train, X_validation, y_validation, n_nodes)
    n_hidden = check_integer(n_hidden, "n_hidden", minimum=1)
    cost = check_real(cost, "cost", minimum=0.0)
    random = as_generator(rng)
    n_features = train.features.shape[2]
    shapes = ((n_features, n_hidden), (1, n_hidden), (n_hidden, n_classes), (1, n_classes))
    sizes = [rows * columns for rows, columns in shapes]
    start = np.concatenate(
        [
            random.normal(size=size) * np.sqrt(2.0 / shape[0]) * (shape[0] > 1)
            for shape, size in zip(shapes, sizes, strict=True)
        ]
    )

    def forward(x: Tensor, y: Tensor, features: Tensor) -> Tensor:
        first, bias, second, shift = (
            part.reshape(len(y), *shape) for part, shape in zip(y.split(sizes, dim=1), shapes, strict=True)
        )
        hidden = torch.relu(torch.baddbmm(bias, features, first)) * torch.sigmoid(x)[:, None, :]
        return torch.baddbmm(shift, hidden, second)

    def cross_entropy(data: NodeRows, x: Tensor, y: Tensor) -> Tensor:
        features, weights = (torch.as_tensor(array).to(y) for array in (data.features, data.weights))
        labels = torch.as_tensor(data.labels, device=y.device)
        scores = torch.log_softmax(forward(x, y, features), dim=2)
        return -(weights * scores.gather(2, labels[:, :, None])[:, :, 0]).sum(dim=1)

    def upper(x: Tensor, y: Tensor, batch: Rows) -> Tensor:
        data = validation.chosen(None if batch is None else batch[:, 1])
        return cross_entropy(data, x, y) + cost * torch.sigmoid(x).sum(dim=1)

    def lower(x: Tensor, y: Tensor, batch: Rows) -> Tensor:
        return cross_entropy(train.chosen(None if batch is None else batch[:, 0]), x, y)

    def logits(x: np.ndarray, y: np.ndarray, features: np.ndarray) -> np.ndarray:
        tensors = (torch.as_tensor(array, dtype=torch.float64)[None] for array in (x, y, features))
        return forward(*tensors)[0].numpy()

    return TuningProblem(
        f=BatchedLoss(upper, n_nodes),
        g=BatchedLoss(lower, n_nodes),
        x0=torch.zeros(n_hidden, dtype=dtype),
        y0=torch.as_tensor(start, dtype=dtype),
        sampler=_sampler(train, validation, batch_size),
        logits=logits,
    )


def _cross_entropy(
    data: NodeRows, y: Float[np.ndarray, "nodes dy"], n_classes: int
) -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, "nodes dy"]]:
    """Mean cross-entropy of softmax regression at every node, and its gradient."""
    scores = np.matmul(data.features, y.reshape(len(y), -1, n_classes))
    scores -= scores.max(axis=2, keepdims=True)
    right = np.take_along_axis(scores, data.labels[:, :, None], axis=2)[:, :, 0]
    chances = np.exp(scores)
    totals = chances.sum(axis=2)
    values = (data.weights * (np.log(totals) - right)).sum(axis=1)
    chances *= (data.weights / totals)[:, :, None]
    nodes, rows = np.indices(data.labels.shape, sparse=True)
    chances[nodes, rows, data.labels] -= data.weights
    return values, np.matmul(data.features.transpose(0, 2, 1), chances).reshape(y.shape)


def _sampler(train: NodeRows, validation: NodeRows, batch_size: int) -> Callable[[np.random.Generator], np.ndarray]:
    batch_size = check_integer(batch_size, "batch_size", minimum=1)
    counts = np.stack([train.counts, validation.counts], axis=1)[:, :, None]

    def sampler(rng: np.random.Generator) -> np.ndarray:
        return (rng.random((*counts.shape[:2], batch_size)) * counts).astype(np.int64)

    return sampler


def _dealt(
    X_train: ArrayLike, y_train: ArrayLike, X_validation: ArrayLike, y_validation: ArrayLike, n_nodes: int
) -> tuple[NodeRows, NodeRows, int]:
    n_nodes = check_integer(n_nodes, "n_nodes", minimum=1)
    named = {"train": (X_train, y_train), "validation": (X_validation, y_validation)}
    tables = {}
    for name, (features, labels) in named.items():
        rows = as_float_array(features, f"X_{name}", ndim=2)
        tables[name] = rows, _labels(labels, f"y_{name}", len(rows))
        if len(rows) < n_nodes:
            raise ValueError(f"X_{name} must have a row for each of the {n_nodes} nodes, got {len(rows)}: "
                             f"node {len(rows)} would have empty data")  # fmt: skip
    widths = [rows.shape[1] for rows, _ in tables.values()]
    if widths[0] != widths[1]:
        raise ValueError(f"X_train and X_validation must have the same features, got {widths[0]} and {widths[1]}")
    n_classes = 1 + max(int(labels.max()) for _, labels in tables.values())
    return _deal(*tables["train"], n_nodes), _deal(*tables["validation"], n_nodes), n_classes


def _deal(features: Float[np.ndarray, "n features"], labels: Int[np.ndarray, " n"], n_nodes: int) -> NodeRows:
    """Row ``i`` to node ``i`` modulo the number of nodes."""
    n = len(features)
    longest = -(-n // n_nodes)
    order = np.arange(longest * n_nodes).reshape(longest, n_nodes).T
    weights = (order < n).astype(float)
    weights /= weights.sum(axis=1, keepdims=True)
    order = np.minimum(order, n - 1)
    return NodeRows(features[order], labels[order], weights)


def _labels(labels: ArrayLike, name: str, n: int) -> Int[np.ndarray, " n"]:
    numbers = as_float_array(labels, name, ndim=1)
    if len(numbers) != n:
        raise ValueError(f"{name} must have a class for each of the {n} rows, got {len(numbers)}")
    if (numbers != np.round(numbers)).any() or numbers.min() < 0:
        raise ValueError(f"{name} must have classes 0, 1, ..., got {numbers[(numbers % 1 != 0) | (numbers < 0)][0]:g}")
    return numbers.astype(np.int64)
