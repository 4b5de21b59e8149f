r"""Least-squares estimates of action values from a log: cell means, linear regression, or any regressor.

Backward in the steps, the value of a pair of actions is the regression of the reward plus the estimated value of the
next state. Nothing is added or subtracted for uncertainty: the pull towards the references is what keeps the policies
where the data are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from sklearn.base import clone

from assay.games.offline_data import OfflineGameData
from assay.validation import as_float_array, check_choice

__all__ = ["ActionValues", "ValueRegression", "value_regression"]

Table = Float[np.ndarray, "states rows columns"]

# Features that are made for predictions at a time.
_NUMBERS = 2**24
_RIDGE = 1e-6


class ActionValues(NamedTuple):
    """Estimated values of one step: a table, and for states that are vectors of features a function of them."""

    table: Table
    predict: Callable[[np.ndarray], np.ndarray] | None = None


@runtime_checkable
class ValueRegression(Protocol):
    """What estimates the action values of a step from targets."""

    def fit(self, data: OfflineGameData, step: int, targets: np.ndarray) -> ActionValues:
        """Regress the targets of the samples of a step, counted from 0, on states and actions."""


def value_regression(fit: Any, fill: Any, clip: bool, data: OfflineGameData) -> ValueRegression:
    """Check ``fit``, ``fill`` and ``clip`` and return the estimator that they name.

    Parameters
    ----------
    fit : "tabular", "linear" or regressor
        A regressor has ``fit(X, y)`` and ``predict(X)`` and can be cloned by scikit-learn.
    fill : "mid" or "zero"
        Value of cells without data, in table fits: the middle of the possible values, or 0.
    clip : bool
        Whether values are cut to the possible range ``[0, H - h + 1]``.
    data : OfflineGameData
        What will be fitted.

    Returns
    -------
    ValueRegression

    Raises
    ------
    TypeError, ValueError
        If an option is none of them, or does not go with the data.
    """
    if not isinstance(clip, bool | np.bool_):
        raise TypeError(f"clip must be True or False, got {clip!r}")
    check_choice(fill, "fill", ("mid", "zero"))
    if isinstance(fit, str):
        check_choice(fit, "fit", ("tabular", "linear"))
        if fit == "tabular":
            if data.state_features is not None:
                raise ValueError("fit must be 'linear' or a regressor when states are vectors of features")
            return _Clipped(_CellMeans(0.5 if fill == "mid" else 0.0), clip)
        if data.phi is None:
            raise ValueError("fit must not be 'linear' without features phi(s, a, b): give phi to OfflineGameData")
        return _Clipped(_Ridge(), clip)
    if not (hasattr(fit, "fit") and hasattr(fit, "predict")):
        raise TypeError(f"fit must be 'tabular', 'linear' or have methods fit and predict, got {type(fit).__name__}")
    return _Clipped(_Regressor(fit), clip)


class _Clipped:
    """An estimator whose values are cut to what rewards in [0, 1] can add up to."""

    def __init__(self, inner: Any, clip: bool):
        self.inner, self.clip = inner, clip

    def fit(self, data: OfflineGameData, step: int, targets: np.ndarray) -> ActionValues:
        found = self.inner.fit(data, step, targets)
        if not self.clip:
            return found
        most = float(data.horizon - step)
        predict = found.predict
        clipped = None if predict is None else lambda states: np.clip(predict(states), 0.0, most)
        return ActionValues(np.clip(found.table, 0.0, most), clipped)


class _CellMeans:
    """Means of the targets of every cell; cells without data get a share of the largest possible value."""

    def __init__(self, share: float):
        self.share = share

    def fit(self, data: OfflineGameData, step: int, targets: np.ndarray) -> ActionValues:
        cells = data.cells(step)
        n_cells = data.n_states * data.n_actions[0] * data.n_actions[1]
        counts = np.bincount(cells, minlength=n_cells)
        sums = np.bincount(cells, weights=targets, minlength=n_cells)
        table = np.where(counts > 0, sums / np.maximum(counts, 1), self.share * (data.horizon - step))
        return ActionValues(table.reshape(data.n_states, *data.n_actions))


class _Ridge:
    """Linear regression on ``phi`` with a trace of ridge, by the normal equations."""

    def fit(self, data: OfflineGameData, step: int, targets: np.ndarray) -> ActionValues:
        samples = data.step(step)
        X = _features(data, samples.s, samples.a, samples.b)
        gram = X.T @ X
        gram[np.diag_indices_from(gram)] += _RIDGE * len(X)
        weights = np.linalg.solve(gram, X.T @ targets)
        return _predicted(data, lambda rows: rows @ weights)


class _Regressor:
    """A clone of the user's regressor, fitted to the features of the step."""

    def __init__(self, regressor: Any):
        self.regressor = regressor

    def fit(self, data: OfflineGameData, step: int, targets: np.ndarray) -> ActionValues:
        samples = data.step(step)
        fitted = clone(self.regressor)
        fitted.fit(_features(data, samples.s, samples.a, samples.b), targets)
        return _predicted(data, lambda rows: np.asarray(fitted.predict(rows), dtype=np.float64).ravel())


def _predicted(data: OfflineGameData, predict: Callable[[np.ndarray], np.ndarray]) -> ActionValues:
    """Predictions for all states and actions, in blocks of states."""
    n_rows, n_columns = data.n_actions
    # indicators of states are long; other features are few
    width = data.n_states if data.phi is None and data.state_features is None else 64
    block = max(1, _NUMBERS // (n_rows * n_columns * width))

    def table_of(states: np.ndarray) -> np.ndarray:
        table = np.empty((len(states), n_rows, n_columns))
        for start in range(0, len(states), block):
            part = states[start : start + block]
            index = np.repeat(np.arange(len(part)), n_rows * n_columns)
            a = np.tile(np.repeat(np.arange(n_rows), n_columns), len(part))
            b = np.tile(np.arange(n_columns), len(part) * n_rows)
            values = predict(_features_at(data, part[index], a, b))
            if values.shape != index.shape or not np.isfinite(values).all():
                raise ValueError("fit must predict one finite number per row of features")
            table[start : start + block] = values.reshape(len(part), n_rows, n_columns)
        return table

    if data.state_features is None:
        return ActionValues(table_of(np.arange(data.n_states)))
    return ActionValues(table_of(data.state_features), table_of)


def _features(data: OfflineGameData, s: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _features_at(data, s if data.state_features is None else data.state_features[s], a, b)


def _features_at(data: OfflineGameData, states: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Features of states, given by number or by their own features, and actions."""
    if data.phi is None:
        by_number = data.state_features is None
        seen = np.eye(data.n_states)[states] if by_number else states
        return np.hstack((seen, np.eye(data.n_actions[0])[a], np.eye(data.n_actions[1])[b]))
    if not callable(data.phi):
        return data.phi[states, a, b]
    features = as_float_array(data.phi(states, a, b), "phi(s, a, b)", ndim=2)
    if len(features) != len(a):
        raise ValueError(f"phi(s, a, b) must have one row per sample, {len(a)}, got {len(features)}")
    return features
