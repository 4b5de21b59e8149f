"""Decision stumps for boosting: the features are sorted once, and each round is one pass over them.

A stump asks whether one feature is above a threshold. The best one under given weights is found from cumulative sums in
the order of each feature; the order never changes, only the weights do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numba import njit
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

__all__ = ["PresortedFeatures", "PresortedStump"]

_TIE = 1e-12


class PresortedFeatures:
    """Features in sorted order, for many stumps on the same data.

    Parameters
    ----------
    X : numpy.ndarray of shape (n_samples, n_features)
        Finite numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.presorted_stump import PresortedFeatures
    >>> PresortedFeatures(np.array([[1.0], [2.0], [4.0]])).best(np.array([-0.4, 0.2, 0.4]))
    (0, 1.5, False, True)
    """

    def __init__(self, X: Float[np.ndarray, "n_samples n_features"]) -> None:
        columns = np.ascontiguousarray(X.T)
        order = np.argsort(columns, axis=1, kind="stable")
        self._sorted = np.take_along_axis(columns, order, axis=1)
        self._order = order.astype(np.int32)

    def best(self, signed: Float[np.ndarray, " n_samples"]) -> tuple[int, float, bool, bool]:
        """Stump with the largest weighted agreement.

        Parameters
        ----------
        signed : numpy.ndarray of shape (n_samples,)
            Weight of a sample, negative if its label is 0.

        Returns
        -------
        feature : int
        threshold : float
            Infinite for a constant stump.
        left, right : bool
            Labels up to the threshold and above.
        """
        feature, position, gain = _best_split(self._sorted, self._order, signed)
        if feature < 0:
            label = bool(signed.sum() > 0.0)
            return 0, np.inf, label, label
        below, above = self._sorted[feature, position], self._sorted[feature, position + 1]
        threshold = below + 0.5 * (above - below)
        return int(feature), float(threshold if threshold < above else below), bool(gain < 0.0), bool(gain > 0.0)


class PresortedStump(ClassifierMixin, BaseEstimator):
    """Decision stump that maximises the weighted share of right answers.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (2,)
        The labels.
    feature_ : int
        Feature that is asked for.
    threshold_ : float
        Threshold; infinite when the stump is constant.
    left_, right_ : bool
        Whether the answer is the second label up to the threshold, and above it.

    Examples
    --------
    >>> from assay.supervised.presorted_stump import PresortedStump
    >>> stump = PresortedStump().fit([[0.0], [1.0], [2.0]], ["a", "b", "b"])
    >>> stump.threshold_, stump.predict([[0.4], [0.6]]).tolist()
    (0.5, ['a', 'b'])
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> PresortedStump:
        """Find the best stump.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Features.
        y : array_like of shape (n_samples,)
            Two labels.
        sample_weight : array_like of shape (n_samples,), optional
            Non-negative weights.

        Returns
        -------
        PresortedStump
            The estimator itself.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        kind = type_of_target(y, input_name="y")
        if kind != "binary":
            check_classification_targets(y)
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_, codes = np.unique(y, return_inverse=True)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if len(self.classes_) < 2:
            raise ValueError("y must have 2 classes, got 1 class")
        total = weights.sum()
        signed = (2.0 * codes - 1.0) * weights / (total if total > 0.0 else 1.0)
        self.feature_, self.threshold_, self.left_, self.right_ = PresortedFeatures(X).best(signed)
        return self

    @classmethod
    def from_split(cls, split: tuple[int, float, bool, bool], classes: np.ndarray, n_features: int) -> PresortedStump:
        """A fitted stump, without data.

        Parameters
        ----------
        split : tuple
            What :meth:`PresortedFeatures.best` returns.
        classes : numpy.ndarray of shape (2,)
            The labels.
        n_features : int
            Number of features.

        Returns
        -------
        PresortedStump
        """
        stump = cls()
        stump.feature_, stump.threshold_, stump.left_, stump.right_ = split
        stump.classes_, stump.n_features_in_ = classes, n_features
        return stump

    def answers(self, X: Float[np.ndarray, "n_samples n_features"]) -> Bool[np.ndarray, " n_samples"]:
        """Whether the answer is the second label, without checks of the data."""
        if self.left_ == self.right_:
            return np.full(len(X), self.right_)
        above = X[:, self.feature_] > self.threshold_
        return above if self.right_ else ~above

    def predict(self, X: Any) -> np.ndarray:
        """Label of each sample.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self.classes_[self.answers(X).astype(int)]


@njit(cache=True)
def _best_split(
    values: Float[np.ndarray, "n_features n_samples"],
    order: Int[np.ndarray, "n_features n_samples"],
    signed: Float[np.ndarray, " n_samples"],
) -> tuple[int, int, float]:
    """Feature, last position below the threshold, and signed agreement; feature -1 when a constant is as good."""
    n_features, n_samples = values.shape
    total = 0.0
    for i in range(n_samples):
        total += signed[i]
    best, best_feature, best_position, best_gain = abs(total) + _TIE, -1, 0, 0.0
    for j in range(n_features):
        below = 0.0
        for r in range(n_samples - 1):
            below += signed[order[j, r]]
            gain = total - 2.0 * below
            if abs(gain) > best and values[j, r] < values[j, r + 1]:
                best, best_feature, best_position, best_gain = abs(gain) + _TIE, j, r, gain
    return best_feature, best_position, best_gain
