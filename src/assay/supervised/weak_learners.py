"""Weak learners for boosting: what is asked of one, and how it is trained on weights or on drawn examples."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.utils.validation import has_fit_parameter

from assay.supervised.presorted_stump import PresortedFeatures, PresortedStump

__all__ = ["LearnerRounds", "StumpRounds", "check_weak_learner"]


def check_weak_learner(estimator: Any, weighted: bool = True) -> None:
    """Check that an object can be used as a weak learner.

    Parameters
    ----------
    estimator : object
        Needs ``fit(X, y)``, ``predict(X)`` and ``get_params()``, as every scikit-learn classifier has.
    weighted : bool, default=True
        Whether ``fit`` must take ``sample_weight``.

    Raises
    ------
    TypeError
        If it is a class, or misses a method.
    ValueError
        If its ``fit`` takes no weights.

    Examples
    --------
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from assay.supervised.weak_learners import check_weak_learner
    >>> check_weak_learner(KNeighborsClassifier(), weighted=False)
    >>> check_weak_learner(KNeighborsClassifier())
    Traceback (most recent call last):
        ...
    ValueError: estimator must take sample_weight in fit, got KNeighborsClassifier, which does not; give resample=...
    """
    if isinstance(estimator, type):
        raise TypeError(f"estimator must be an object, got the class {estimator.__name__}")
    for method in ("fit", "predict", "get_params"):
        if not callable(getattr(estimator, method, None)):
            raise TypeError(f"estimator must have a method {method}, got {type(estimator).__name__}, which has none")
    if weighted and not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(
            f"estimator must take sample_weight in fit, got {type(estimator).__name__}, which does not; "
            "give resample=..."
        )


class StumpRounds:
    """Rounds of built-in stumps on features that are sorted once.

    Parameters
    ----------
    X : numpy.ndarray of shape (m, n_features)
        Features.
    codes : numpy.ndarray of shape (m,)
        Whether a label is the second one.
    classes : numpy.ndarray of shape (2,)
        The labels.
    resample : int or None
        Examples to draw, or None for weights.
    """

    def __init__(
        self,
        X: Float[np.ndarray, "m n_features"],
        codes: Bool[np.ndarray, " m"],
        classes: np.ndarray,
        resample: int | None,
    ) -> None:
        self.X, self.classes, self.resample = X, classes, resample
        self.signs = np.where(codes, 1.0, -1.0)
        self.features = PresortedFeatures(X)

    def train(
        self, p: Float[np.ndarray, " m"], rng: np.random.Generator
    ) -> tuple[PresortedStump, Bool[np.ndarray, " m"]]:
        """Best stump under the weights, and its answers on the training examples."""
        if self.resample is not None:
            drawn = rng.choice(len(p), size=self.resample, p=p)
            p = np.bincount(drawn, minlength=len(p)) / self.resample
        stump = PresortedStump.from_split(self.features.best(p * self.signs), self.classes, self.X.shape[1])
        return stump, stump.answers(self.X)

    def again(self, estimator: PresortedStump) -> Bool[np.ndarray, " m"]:
        """Answers of a stump on the training examples."""
        return self.answers(estimator, self.X)

    def answers(
        self, estimator: PresortedStump, X: Float[np.ndarray, "n_samples n_features"]
    ) -> Bool[np.ndarray, " n_samples"]:
        """Whether the answers of a stump are the second label."""
        return estimator.answers(X)

    def without_data(self) -> StumpRounds:
        """What is needed for predictions only."""
        light = copy.copy(self)
        del light.X, light.features, light.signs
        return light


class LearnerRounds:
    """Rounds of any classifier, on weights or on drawn examples.

    Parameters
    ----------
    estimator : object
        The weak learner, which is cloned for each round.
    X : numpy.ndarray of shape (m, n_features)
        Features.
    y : numpy.ndarray of shape (m,)
        Labels.
    classes : numpy.ndarray of shape (2,)
        The two of them.
    resample : int or None
        Examples to draw, or None for weights.
    """

    def __init__(
        self,
        estimator: Any,
        X: Float[np.ndarray, "m n_features"],
        y: np.ndarray,
        classes: np.ndarray,
        resample: int | None,
    ) -> None:
        self.estimator, self.X, self.y, self.classes, self.resample = estimator, X, y, classes, resample
        self.seeded = "random_state" in estimator.get_params()

    def train(self, p: Float[np.ndarray, " m"], rng: np.random.Generator) -> tuple[Any, Bool[np.ndarray, " m"]]:
        """Learner trained under the weights, and its answers on the training examples."""
        learner = clone(self.estimator)
        if self.seeded:
            learner.set_params(random_state=int(rng.integers(2**31 - 1)))
        if self.resample is None:
            # Of mean 1, so that penalties mean what they do without weights.
            learner.fit(self.X, self.y, sample_weight=p * len(p))
        else:
            drawn = rng.choice(len(p), size=self.resample, p=p)
            if len(np.unique(self.y[drawn])) < 2:  # which most classifiers refuse
                learner = DummyClassifier(strategy="most_frequent")
            learner.fit(self.X[drawn], self.y[drawn])
        return learner, self.again(learner)

    def again(self, estimator: Any) -> Bool[np.ndarray, " m"]:
        """Answers of a learner on the training examples."""
        return self.answers(estimator, self.X)

    def answers(self, estimator: Any, X: Float[np.ndarray, "n_samples n_features"]) -> Bool[np.ndarray, " n_samples"]:
        """Whether the answers of a learner are the second label."""
        labels = np.asarray(estimator.predict(X))
        second = labels == self.classes[1]
        if labels.shape != (len(X),) or not (second | (labels == self.classes[0])).all():
            raise ValueError(
                f"estimator must predict one of the labels {self.classes.tolist()} for each of {len(X)} rows, got "
                f"others from {type(estimator).__name__}"
            )
        return second

    def without_data(self) -> LearnerRounds:
        """What is needed for predictions only."""
        light = copy.copy(self)
        del light.X, light.y
        return light
