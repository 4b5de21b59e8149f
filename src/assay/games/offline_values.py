r"""Least-squares estimates of action values from a log: cell means, linear regression, or any regressor.

Backward in the steps, the value of a pair of actions is the regression of the reward plus the estimated value of the
next state. Nothing is added or subtracted for uncertainty: the pull towards the references is what keeps the policies
where the data are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from sklearn.base import clone

from assay.games.offline_data import OfflineGameData
from assay.games.stage_equilibrium import LARGEST_PAYOFF
from assay.validation import as_float_array, check_choice

__all__ = ["ActionValues", "ValueRegression", "value_regression"]

Table = Float[np.ndarray, "states rows columns"]

# Features that are made for predictions at a time.
_NUMBERS = 2**24
_RIDGE = 1e-6
# Squares of larger ones might overflow when they are added up.
_LARGEST_FEATURE = 1e145


class ActionValues(NamedTuple):
    """Estimated values of one step: a table, and for states that are vectors of features a function of them."""

    table: Table
    predict: Callable[[np.ndarray], Table] | None = None


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
    accepted = "fit must be 'tabular', 'linear' or an instance with methods fit and predict"
    if isinstance(fit, type) or not (hasattr(fit, "fit") and hasattr(fit, "predict")):
        raise TypeError(f"{accepted}, got {fit.__name__ if isinstance(fit, type) else type(fit).__name__}")
    try:
        clone(fit)
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"{accepted} that scikit-learn can clone, got {type(fit).__name__}: {error}") from error
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
        predict = None if found.predict is None else _Cut(found.predict, most)
        return ActionValues(np.clip(found.table, 0.0, most), predict)


@dataclass(frozen=True)
class _Cut:
    """Predictions cut to ``[0, most]``."""

    predict: Callable[[np.ndarray], np.ndarray]
    most: float

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return np.clip(self.predict(states), 0.0, self.most)


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
        X = _features_of(data, step)
        if abs(X).max() > _LARGEST_FEATURE:
            raise ValueError(f"phi must have entries of size at most {_LARGEST_FEATURE:g}, got {abs(X).max():g}")
        gram = X.T @ X
        gram[np.diag_indices_from(gram)] += _RIDGE * len(X)
        # where the ridge is lost in rounding, features that depend on each other leave a singular matrix
        return _predicted(data, _Linear(np.linalg.lstsq(gram, X.T @ targets, rcond=None)[0]))


@dataclass(frozen=True)
class _Linear:
    weights: np.ndarray

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return rows @ self.weights


class _Regressor:
    """A clone of the user's regressor, fitted to the features of the step."""

    def __init__(self, regressor: Any):
        self.regressor = regressor

    def fit(self, data: OfflineGameData, step: int, targets: np.ndarray) -> ActionValues:
        fitted = clone(self.regressor)
        fitted.fit(_features_of(data, step), targets)
        return _predicted(data, fitted)


def _predicted(data: OfflineGameData, fitted: Any) -> ActionValues:
    """Predictions for all states and actions."""
    by_number = data.state_features is None
    predict = _Predictor(fitted, data.phi, data.n_states if by_number else None, data.n_actions)
    if by_number:
        return ActionValues(predict(np.arange(data.n_states)))
    return ActionValues(predict(data.state_features), predict)


@dataclass(frozen=True)
class _Predictor:
    """Tables of values of any states, from a fitted regressor; ``n_states`` is None where states are features."""

    fitted: Any
    phi: Any
    n_states: int | None
    n_actions: tuple[int, int]

    def __call__(self, states: np.ndarray) -> np.ndarray:
        n_rows, n_columns = self.n_actions
        # indicators of states are long; other features are few
        width = 64 if self.phi is not None or self.n_states is None else self.n_states
        block = max(1, _NUMBERS // (n_rows * n_columns * width))
        table = np.empty((len(states), n_rows, n_columns))
        for start in range(0, len(states), block):
            part = states[start : start + block]
            index = np.repeat(np.arange(len(part)), n_rows * n_columns)
            a = np.tile(np.repeat(np.arange(n_rows), n_columns), len(part))
            b = np.tile(np.arange(n_columns), len(part) * n_rows)
            rows = _features_at(self.phi, self.n_states, self.n_actions, part[index], a, b)
            values = as_float_array(self.fitted.predict(rows), "fit.predict(X)", ndim=(1, 2)).ravel()
            if values.shape != index.shape or abs(values).max() > LARGEST_PAYOFF:
                raise ValueError(
                    f"fit must predict one number of size at most {LARGEST_PAYOFF:g} per row of features, "
                    f"got {values.size} for {len(index)} rows, up to {abs(values).max():g}"
                )
            table[start : start + block] = values.reshape(len(part), n_rows, n_columns)
        return table


def _features_of(data: OfflineGameData, step: int) -> np.ndarray:
    """Features of the samples of a step."""
    samples = data.step(step)
    if data.state_features is None:
        return _features_at(data.phi, data.n_states, data.n_actions, samples.s, samples.a, samples.b)
    return _features_at(data.phi, None, data.n_actions, data.state_features[samples.s], samples.a, samples.b)


def _features_at(
    phi: Any, n_states: int | None, n_actions: tuple[int, int], states: np.ndarray, a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """Features of states, given by number or, without ``n_states``, by their own features, and actions."""
    if phi is None:
        seen = states if n_states is None else np.eye(n_states)[states]
        return np.hstack((seen, np.eye(n_actions[0])[a], np.eye(n_actions[1])[b]))
    if not callable(phi):
        return phi[states, a, b]
    features = as_float_array(phi(states, a, b), "phi(s, a, b)", ndim=2)
    if len(features) != len(a):
        raise ValueError(f"phi(s, a, b) must have one row per sample, {len(a)}, got {len(features)}")
    return features
