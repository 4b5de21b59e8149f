"""Data markets from files, and from models that are trained on what is for sale."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.validation import as_float_array, check_real

__all__ = ["error_variance", "model_values", "read_market"]

_MAX_BYTES = 2 * 1024**3


def read_market(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read budgets, values, weights and names from a long csv file; see :meth:`DataMarket.from_csv`.

    Parameters
    ----------
    path : path
        With columns buyer, seller, value, and optionally budget and weight.

    Returns
    -------
    dict
        Arguments of :class:`~assay.games.market_model.DataMarket`.
    """
    path = Path(path)
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ValueError(f"{path.name} must be at most {_MAX_BYTES} bytes, got {size}")
    try:
        with warnings.catch_warnings():
            # Of a row that is too long, values would otherwise be lost or taken for labels.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            names = {"buyer": str, "seller": str}
            frame = pd.read_csv(path, dtype=names, index_col=False, keep_default_na=False, na_values=[""])
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path.name} is empty") from error
    except pd.errors.ParserWarning as error:
        raise ValueError(f"{path.name} must have at most as many values in a row as names in its header") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not a table: {' '.join(str(error).split())}") from error
    missing = [name for name in ("buyer", "seller", "value") if name not in frame.columns]
    if missing:
        raise ValueError(
            f"{path.name} must have columns buyer, seller and value, got {', '.join(map(str, frame.columns))}"
        )
    if frame.empty:
        raise ValueError(f"{path.name} has no rows")
    for name in ("buyer", "seller"):
        if frame[name].isna().any():
            raise ValueError(f"{path.name} must have a {name} in every row")
    twice = frame.duplicated(["buyer", "seller"])
    if twice.any():
        one = frame[twice].iloc[0]
        raise ValueError(f"{path.name} must have one row per buyer and seller, got two of {one.buyer} and {one.seller}")
    rows, buyers = pd.factorize(frame["buyer"])
    columns, sellers = pd.factorize(frame["seller"])
    values = np.zeros((len(buyers), len(sellers)))
    values[rows, columns] = _numbers(frame, "value", path)
    return {
        "budgets": _of_buyers(frame, "budget", rows, buyers, path),
        "values": values,
        "weights": _of_buyers(frame, "weight", rows, buyers, path),
        "buyer_names": tuple(map(str, buyers)),
        "seller_names": tuple(map(str, sellers)),
    }


def _numbers(frame: pd.DataFrame, name: str, path: Path) -> np.ndarray:
    numbers = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float)
    bad = ~np.isfinite(numbers)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{path.name}, row {row + 1}: {name} must be a number, got {frame[name].iloc[row]!r}")
    return numbers


def _of_buyers(frame: pd.DataFrame, name: str, rows: np.ndarray, buyers: pd.Index, path: Path) -> np.ndarray:
    """A number of each buyer that all of its rows agree on; 1 where there is no such column."""
    if name not in frame.columns:
        return np.ones(len(buyers))
    numbers = _numbers(frame, name, path)
    answer = np.empty(len(buyers))
    answer[rows] = numbers
    odd = np.flatnonzero(answer[rows] != numbers)
    if odd.size:
        raise ValueError(f"{path.name} must have one {name} per buyer, got two of {buyers[rows[odd[0]]]}")
    return answer


def error_variance(y_true: np.ndarray, y_predicted: np.ndarray) -> float:
    """Variance of the errors of a prediction.

    Parameters
    ----------
    y_true, y_predicted : numpy.ndarray of shape (n_records,)
        Labels as numbers.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.market_sources import error_variance
    >>> error_variance(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0]))
    0.25
    """
    return float(np.var(np.asarray(y_true, dtype=float) - np.asarray(y_predicted, dtype=float)))


def model_values(
    shards: Sequence[ArrayLike],
    tasks: Sequence[tuple[Sequence[ArrayLike], ArrayLike, ArrayLike]],
    scorer: Callable[[np.ndarray, np.ndarray], float] | None = None,
    estimator: Any = None,
    rescale: bool = True,
) -> Float[np.ndarray, "tasks shards"]:
    """Error of a constant guess less the error of a model, for every task and shard; see
    :meth:`DataMarket.from_models`.

    Parameters
    ----------
    shards : sequence of array_like of shape (n_records, n_features)
        Records of each seller.
    tasks : sequence of (labels, X_test, y_test)
        Labels of every shard, and test records with labels, of each buyer.
    scorer : callable, optional
        Error of a prediction, a finite number; by default :func:`error_variance`.
    estimator : scikit-learn classifier, optional
        By default a logistic regression.
    rescale : bool, default=True
        Whether the largest value becomes 1.

    Returns
    -------
    numpy.ndarray of shape (n_tasks, n_shards)
        Not negative.
    """
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression

    records = [as_float_array(shard, f"X_shards[{j}]", ndim=2) for j, shard in enumerate(shards)]
    if not records or not len(tasks):
        raise ValueError(f"there must be a shard and a task at least, got {len(records)} and {len(tasks)}")
    if scorer is not None and not callable(scorer):
        raise TypeError(f"scorer must be callable or None, got {type(scorer).__name__}")
    model = LogisticRegression(max_iter=1000) if estimator is None else estimator
    values = np.zeros((len(tasks), len(records)))
    for i, task in enumerate(tasks):
        if not hasattr(task, "__len__") or len(task) != 3 or len(task[0]) != len(records):
            raise ValueError(f"tasks[{i}] must be labels for each of {len(records)} shards, X_test and y_test")
        test = as_float_array(task[1], f"X_test of tasks[{i}]", ndim=2)
        truth = _as_labels(task[2], f"y_test of tasks[{i}]", len(test))
        for j, shard in enumerate(records):
            labels = _as_labels(task[0][j], f"labels of shard {j} in tasks[{i}]", len(shard))
            classes, counts = np.unique(labels, return_counts=True)
            guess = np.full(truth.shape, classes[np.argmax(counts)])
            # Of records with one label, a model is that guess.
            predicted = clone(model).fit(shard, labels).predict(test) if classes.size > 1 else guess
            values[i, j] = max(0.0, _error(scorer, truth, guess) - _error(scorer, truth, predicted))
    largest = float(values.max())
    return values / largest if rescale and largest > 0 else values


def _error(scorer: Callable[[np.ndarray, np.ndarray], float] | None, truth: np.ndarray, predicted: np.ndarray) -> float:
    if scorer is not None:
        return check_real(scorer(truth, predicted), "what scorer returns")
    if truth.dtype.kind not in "biuf" or predicted.dtype.kind not in "biuf":
        raise TypeError(f"labels must be numbers unless there is a scorer, got dtype {truth.dtype}")
    return error_variance(truth, predicted)


def _as_labels(labels: ArrayLike, name: str, size: int) -> np.ndarray:
    vector = np.asarray(labels)
    if vector.shape != (size,):
        raise ValueError(f"{name} must be a vector of {size} labels, got shape {vector.shape}")
    if vector.dtype.kind in "fc" and not np.isfinite(vector).all():
        raise ValueError(f"{name} must be finite, got {np.count_nonzero(~np.isfinite(vector))} nan or infinite entries")
    return vector
