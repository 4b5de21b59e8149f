r"""Two uses of decentralised bilevel optimisation: a penalty for every feature, and a gate for every hidden unit.

Nodes hold labelled rows, some of them for training, the others for validation. Below, weights are fitted to the
training rows; above, the shared hyper-parameters are fitted to the validation rows. Rows are dealt to the nodes in
turns and never leave their node.
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
from assay.bilevel.decentralized_rows import NodeRows, as_labels, deal_out, row_sampler
from assay.validation import as_float_array, as_generator, check_integer, check_real

__all__ = ["TuningProblem", "gate_pruning_problem", "ridge_tuning_problem"]

Rows = Int[np.ndarray, "nodes 2 batch"] | None
Stacked = Float[np.ndarray, "nodes _"]
Answer = tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]


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
    n_features, n_classes : int
        Columns of rows and of logits.
    """

    f: BatchedLoss
    g: BatchedLoss
    x0: Float[np.ndarray, " dx"] | Float[Tensor, " dx"]
    y0: Float[np.ndarray, " dy"] | Float[Tensor, " dy"]
    sampler: Callable[[np.random.Generator], np.ndarray]
    logits: Callable[..., np.ndarray]
    n_features: int
    n_classes: int

    def score(self, x: ArrayLike, y: ArrayLike, features: ArrayLike, labels: ArrayLike) -> tuple[float, float]:
        """Cross-entropy and accuracy on rows that no node has.

        Parameters
        ----------
        x, y : array_like of shape (d_x,) and (d_y,)
            Hyper-parameters and weights. An entry of ``x`` may be minus infinity: no penalty, or a closed gate.
        features : array_like of shape (n, features)
            Test rows.
        labels : array_like of shape (n,)
            Their classes.

        Raises
        ------
        TypeError, ValueError
            If an array is not of its shape, or a label not a class of the problem.
        """
        x, y = (array.detach().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array) for array in (x, y))
        closed = np.asarray(x == -np.inf)
        point = np.where(closed, -np.inf, as_float_array(np.where(closed, 0.0, x) if closed.any() else x, "x", ndim=1))
        weights = as_float_array(y, "y", ndim=1)
        for name, vector, start in (("x", point, self.x0), ("y", weights, self.y0)):
            if len(vector) != len(start):
                raise ValueError(f"{name} must have {len(start)} entries, got {len(vector)}")
        rows = as_float_array(features, "features", ndim=2)
        if rows.shape[1] != self.n_features:
            raise ValueError(f"features must have {self.n_features} columns, got {rows.shape[1]}")
        classes = as_labels(labels, "labels", len(rows), self.n_classes)
        scores = self.logits(point, weights, rows)
        right = scores[np.arange(len(rows)), classes]
        top = scores.max(axis=1)
        losses = top + np.log(np.exp(scores - top[:, None]).sum(axis=1)) - right
        return float(losses.mean()), float((scores.argmax(axis=1) == classes).mean())


@dataclass(frozen=True, eq=False)
class _RidgeLosses:
    """Softmax regression with penalties ``exp(x)`` of the features, for arrays."""

    train: NodeRows
    validation: NodeRows
    n_classes: int

    def upper(self, x: Stacked, y: Stacked, batch: Rows) -> Answer:
        data = self.validation.chosen(None if batch is None else batch[:, 1])
        values, slopes = _cross_entropy(data, y, self.n_classes)
        return values, (np.zeros_like(x), slopes)

    def lower(self, x: Stacked, y: Stacked, batch: Rows) -> Answer:
        data = self.train.chosen(None if batch is None else batch[:, 0])
        values, slopes = _cross_entropy(data, y, self.n_classes)
        penalties = np.exp(x)
        coefficients = y.reshape(*x.shape, self.n_classes)
        along_x = 0.5 * penalties * (coefficients**2).sum(axis=2)
        along_y = slopes + (penalties[:, :, None] * coefficients).reshape(y.shape)
        return values + along_x.sum(axis=1), (along_x, along_y)

    def logits(
        self, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, " dy"], features: Float[np.ndarray, "n p"]
    ) -> Float[np.ndarray, "n classes"]:
        return features @ y.reshape(len(x), self.n_classes)


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
        Classes 0, 1, ..., fewer than there are rows.
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
    >>> from assay.bilevel import ridge_tuning_problem
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3))
    >>> labels = (X[:, 0] > 0).astype(int)
    >>> problem = ridge_tuning_problem(X[:20], labels[:20], X[20:], labels[20:], n_nodes=4)
    >>> problem.x0.shape, problem.y0.shape
    ((3,), (6,))
    """
    train, validation, n_classes = deal_out(X_train, y_train, X_validation, y_validation, n_nodes)
    n_features = train.features.shape[2]
    x0 = check_real(x0, "x0")
    losses = _RidgeLosses(train, validation, n_classes)
    return TuningProblem(
        f=BatchedLoss(losses.upper, n_nodes),
        g=BatchedLoss(losses.lower, n_nodes),
        x0=np.full(n_features, x0),
        y0=np.zeros(n_features * n_classes),
        sampler=row_sampler(train, validation, batch_size),
        logits=losses.logits,
        n_features=n_features,
        n_classes=n_classes,
    )


@dataclass(frozen=True, eq=False)
class _GateLosses:
    """A network with one hidden layer and gates, for tensors."""

    train: NodeRows
    validation: NodeRows
    shapes: tuple[tuple[int, int], ...]
    cost: float

    def forward(
        self, x: Float[Tensor, "nodes dx"], y: Float[Tensor, "nodes dy"], features: Float[Tensor, "nodes n p"]
    ) -> Float[Tensor, "nodes n classes"]:
        sizes = [rows * columns for rows, columns in self.shapes]
        first, bias, second, shift = (
            part.reshape(len(y), *shape) for part, shape in zip(y.split(sizes, dim=1), self.shapes, strict=True)
        )
        hidden = torch.relu(torch.baddbmm(bias, features, first)) * torch.sigmoid(x)[:, None, :]
        return torch.baddbmm(shift, hidden, second)

    def cross_entropy(
        self, data: NodeRows, x: Float[Tensor, "nodes dx"], y: Float[Tensor, "nodes dy"]
    ) -> Float[Tensor, " nodes"]:
        form = {"dtype": y.dtype, "device": y.device}
        features, weights = (torch.as_tensor(array, **form) for array in (data.features, data.weights))
        labels = torch.as_tensor(data.labels, device=y.device)
        scores = torch.log_softmax(self.forward(x, y, features), dim=2)
        return -(weights * scores.gather(2, labels[:, :, None])[:, :, 0]).sum(dim=1)

    def upper(self, x: Float[Tensor, "nodes dx"], y: Float[Tensor, "nodes dy"], batch: Rows) -> Float[Tensor, " nodes"]:
        data = self.validation.chosen(None if batch is None else batch[:, 1])
        return self.cross_entropy(data, x, y) + self.cost * torch.sigmoid(x).sum(dim=1)

    def lower(self, x: Float[Tensor, "nodes dx"], y: Float[Tensor, "nodes dy"], batch: Rows) -> Float[Tensor, " nodes"]:
        return self.cross_entropy(self.train.chosen(None if batch is None else batch[:, 0]), x, y)

    def logits(
        self, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, " dy"], features: Float[np.ndarray, "n p"]
    ) -> Float[np.ndarray, "n classes"]:
        tensors = (torch.as_tensor(array, dtype=torch.float64, device="cpu")[None] for array in (x, y, features))
        with torch.no_grad():
            return self.forward(*tensors)[0].numpy()


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
        Classes 0, 1, ..., fewer than there are rows.
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
    dtype : {torch.float64, torch.float32}
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
    >>> from assay.bilevel import gate_pruning_problem
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3))
    >>> labels = (X[:, 0] > 0).astype(int)
    >>> problem = gate_pruning_problem(X[:20], labels[:20], X[20:], labels[20:], n_nodes=4, n_hidden=5, rng=0)
    >>> tuple(problem.x0.shape), tuple(problem.y0.shape)
    ((5,), (32,))
    """
    train, validation, n_classes = deal_out(X_train, y_train, X_validation, y_validation, n_nodes)
    n_hidden = check_integer(n_hidden, "n_hidden", minimum=1)
    cost = check_real(cost, "cost", minimum=0.0)
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}")
    random = as_generator(rng)
    n_features = train.features.shape[2]
    shapes = ((n_features, n_hidden), (1, n_hidden), (n_hidden, n_classes), (1, n_classes))
    start = np.concatenate(
        [
            random.normal(size=rows * columns) * np.sqrt(2.0 / rows) * (place % 2 == 0)  # biases are 0
            for place, (rows, columns) in enumerate(shapes)
        ]
    )
    losses = _GateLosses(train, validation, shapes, cost)
    return TuningProblem(
        f=BatchedLoss(losses.upper, n_nodes),
        g=BatchedLoss(losses.lower, n_nodes),
        x0=torch.zeros(n_hidden, dtype=dtype),
        y0=torch.as_tensor(start, dtype=dtype),
        sampler=row_sampler(train, validation, batch_size),
        logits=losses.logits,
        n_features=n_features,
        n_classes=n_classes,
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
