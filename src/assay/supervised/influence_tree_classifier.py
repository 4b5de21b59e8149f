"""A small decision tree in place of a black box, as a scikit-learn estimator.

With an oracle, usually the ``predict`` of a trained model, the tree is grown on what the oracle answers all over the
cube of bits, and its error is certified there. Without one it is grown on the labelled data themselves, with a proxy
for the influence that is exact for monotone functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, UInt8
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.certificate import Assumption, Certificate
from assay.supervised.boolean_influence import MAX_EXACT
from assay.supervised.greedy_tree import GreedyTree, build_topdown_tree, tree_from_growth, warn_of_early_end
from assay.supervised.greedy_tree_export import tree_to_dot, tree_to_text
from assay.supervised.greedy_tree_growth import DataLeaves, grow
from assay.supervised.threshold_features import ThresholdFeatures
from assay.validation import as_float_array, check_choice, check_integer, check_real

__all__ = ["InfluenceTreeClassifier", "distill"]

_AUTO_EXACT = 16
_INDEPENDENT = 0.3
_MODES = ("auto", "data", "exact", "sampled", "pairs")


class InfluenceTreeClassifier(ClassifierMixin, BaseEstimator):
    """Decision tree that splits by influence; its only parameter that matters is the error.

    Parameters
    ----------
    eps : float, default=0.05
        Error to reach: of the oracle's answers under the product distribution, or on the training data when there is no
        oracle.
    oracle : callable, object with ``predict``, or None, default=None
        What the tree is to imitate. It is given arrays of shape (B, n_features) (a data frame when it was trained on
        one) and returns labels among those of ``y``. A model that is to survive ``clone``, as in a grid search, goes
        into a ``sklearn.frozen.FrozenEstimator``; :func:`~assay.supervised.distill` does so.
    p : array_like of shape (n_features,), float or None, default=None
        Probability of the bit 1 of each feature; by default the share in the training data. Needs one bit per feature.
    binarize : {"median", "quantile(k)"} or None, default="median"
        How numbers become bits: ``x > threshold``, with one or with k thresholds for each feature. None when X has
        entries 0 and 1 only. Features with two values get the threshold between them.
    mode : {"auto", "data", "exact", "sampled", "pairs"}, default="auto"
        ``"data"`` uses the labels only; the others are those of :func:`~assay.supervised.build_topdown_tree` and need
        an oracle. ``"auto"`` is ``"data"`` without one, else ``"exact"`` for up to 16 bits that vary.
    delta : float, default=0.05
        Chance of failure when sampling.
    max_leaves : int, default=1000
        Most leaves.
    random_state : int, RandomState or None, default=None
        Source of the points when sampling.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (n_classes,)
        The labels: two, or one.
    tree_ : GreedyTree
        The tree over the bits.
    n_leaves_ : int
        Its size.
    error_bound_ : float
        Its error: exact or an upper confidence bound with an oracle, the training error without.
    trace_ : numpy.ndarray of shape (n_leaves, 3)
        Leaves, error and cost at every step.
    p_ : numpy.ndarray of shape (n_bits,)
        Probability that a bit is 1.
    max_correlation_ : float
        Largest correlation between two bits in the data; the promise is about independent ones.
    fidelity_ : float
        Share of the training rows on which the tree says what the oracle says, or ``y`` when there is none.
    certificates_ : tuple of Certificate
        The promises of the tree, with the independence of the features as an assumption.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : numpy.ndarray of shape (n_features,)
        Names of the features, when X had them.

    Warns
    -----
    ConvergenceWarning
        When the error was not reached.
    UserWarning
        When there is an oracle, and features are so correlated that a product distribution is not theirs.

    Notes
    -----
    Without an oracle influences cannot be observed, and ``2 |Cov(x_i, y)|`` inside the leaf takes their place: equal to
    the influence for functions that are monotone in the bit, less otherwise, 0 for parities. The bound on the size does
    not hold then.

    References
    ----------
    A. Soltani Moakhar, F. Ghahremani, K. Banihashem, M. Hajiaghayi. Decision Tree Learning on Product Spaces.
    ICML 2026. arXiv:2605.12983.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from assay.supervised import InfluenceTreeClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = InfluenceTreeClassifier(eps=0.08).fit(X, y)
    >>> model.n_leaves_, round(model.score(X, y), 2)
    (3, 0.92)
    """

    def __init__(
        self,
        eps=0.05,
        oracle=None,
        p=None,
        binarize="median",
        mode="auto",
        delta=0.05,
        max_leaves=1000,
        random_state=None,
    ):
        self.eps = eps
        self.oracle = oracle
        self.p = p
        self.binarize = binarize
        self.mode = mode
        self.delta = delta
        self.max_leaves = max_leaves
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> InfluenceTreeClassifier:
        """Grow the tree.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.
        y : array_like of shape (n_samples,)
            Labels, of one or two kinds.

        Returns
        -------
        InfluenceTreeClassifier
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            If a parameter is outside its range, the data are not finite, there are more than two classes, or the oracle
            answers with other labels or differently when asked again.
        """
        eps = check_real(self.eps, "eps", minimum=0, below=1)
        delta = check_real(self.delta, "delta", above=0, below=1)
        max_leaves = check_integer(self.max_leaves, "max_leaves", minimum=1)
        mode = check_choice(self.mode, "mode", _MODES)
        ask = _as_function(self.oracle)
        if ask is None and mode not in ("auto", "data"):
            raise ValueError(f"oracle must be given for mode={mode!r}, got None")
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        if type_of_target(y) != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {type_of_target(y)}.")
        # An oracle may know a label that is not in y.
        self.classes_ = np.unique(np.concatenate([np.asarray(y), np.asarray(getattr(self.oracle, "classes_", y[:0]))]))
        if len(self.classes_) > 2:
            raise ValueError(f"y and the classes of oracle must be two labels at most, got {len(self.classes_)}")
        labels = np.searchsorted(self.classes_, y)
        self._bits = ThresholdFeatures(X, self.binarize)
        codes = self._bits.encode(X)
        self.p_ = self._probabilities(codes)
        self.max_correlation_ = _largest_correlation(codes)
        if ask is None or mode == "data":
            tree = self._fit_data(codes, labels, eps, max_leaves)
            wanted = labels
        else:
            answer = _OracleOfBits(ask, self._bits, self.classes_)
            tree = self._fit_oracle(answer, eps, mode, delta, max_leaves)
            wanted = answer(codes)
            if self.max_correlation_ > _INDEPENDENT:
                warnings.warn(
                    f"features are correlated up to {self.max_correlation_:.2g}: the error is that under the product "
                    "of their distributions, not under their joint one",
                    UserWarning,
                    stacklevel=2,
                )
        self.tree_ = tree
        self.n_leaves_, self.error_bound_, self.trace_ = tree.n_leaves, tree.error, tree.trace
        self.certificates_ = self._certify(tree, codes, labels)
        self.fidelity_ = float(np.mean(tree.predict(codes) == wanted))
        return self

    def apply(self, X: Any) -> Int[np.ndarray, " n_samples"]:
        """Leaf that each sample reaches.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
            Numbers of nodes of ``tree_``.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self.tree_.apply(self._bits.encode(X))

    def predict(self, X: Any) -> np.ndarray:
        """Label of each sample.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
        """
        leaves = self.apply(X)
        return self.classes_[self.tree_.label[leaves]]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n_samples n_classes"]:
        """Share of each label in the leaf of a sample.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples, n_classes)
            Under the product distribution with an oracle, in the training data without.
        """
        leaves = self.apply(X)
        positive = self.tree_.value[leaves]
        if len(self.classes_) == 1:
            return np.ones((len(positive), 1))
        return np.column_stack([1.0 - positive, positive])

    def export_text(self, max_depth: int = 100) -> str:
        """The tree as indented text, in the names and numbers of the features.

        Parameters
        ----------
        max_depth : int, default=100
            Deeper subtrees are cut.

        Returns
        -------
        str
        """
        check_is_fitted(self)
        return tree_to_text(self.tree_, self._questions(), self._class_names(), max_depth)

    def export_graphviz(self) -> str:
        """The tree as a graph in the language of Graphviz.

        Returns
        -------
        str
            A ``digraph``, which ``dot`` or the package ``graphviz`` draw.
        """
        check_is_fitted(self)
        return tree_to_dot(self.tree_, self._questions(), self._class_names())

    def _probabilities(self, codes: UInt8[np.ndarray, "n_samples n_bits"]) -> Float[np.ndarray, " n_bits"]:
        if self.p is None:
            return codes.mean(axis=0)
        given = as_float_array(self.p, "p", ndim=(0, 1))
        if given.min() <= 0.0 or given.max() >= 1.0:
            raise ValueError(f"p must be strictly between 0 and 1, got {given.min():g} to {given.max():g}")
        if given.ndim == 1:
            if given.shape != (self.n_features_in_,):
                raise ValueError(f"p must be a number or have length {self.n_features_in_}, got length {len(given)}")
            if len(np.unique(self._bits.columns)) < len(self._bits.columns):
                raise ValueError("p must be None when a feature has several thresholds, got a vector")
            given = given[self._bits.columns]
        return np.broadcast_to(given, (codes.shape[1],)).copy()

    def _fit_data(
        self,
        codes: UInt8[np.ndarray, "n_samples n_bits"],
        labels: Int[np.ndarray, " n_samples"],
        eps: float,
        max_leaves: int,
    ) -> GreedyTree:
        growth = grow(DataLeaves(codes, labels), eps, max_leaves)
        tree = tree_from_growth(growth, codes.shape[1], eps, "data", 0)
        warn_of_early_end(tree)
        return tree

    def _fit_oracle(self, answer: _OracleOfBits, eps: float, mode: str, delta: float, max_leaves: int) -> GreedyTree:
        n = len(self.p_)
        if mode == "auto":
            mode = "exact" if n <= _AUTO_EXACT else "sampled"
        if mode == "exact" and n > MAX_EXACT:
            raise ValueError(
                f"X must have at most {MAX_EXACT} bits that vary for mode='exact', got {n}; use mode='sampled'"
            )
        if n == 0:  # every feature is constant, and so is what the oracle says
            constant = answer(np.zeros((1, 0), dtype=np.uint8))
            return replace(build_topdown_tree(np.repeat(constant, 2), 1, 0.5, eps), n_features=0, queries=1)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return build_topdown_tree(answer, n, self.p_, eps, mode=mode, delta=delta, max_leaves=max_leaves, rng=seed)

    def _certify(
        self,
        tree: GreedyTree,
        codes: UInt8[np.ndarray, "n_samples n_bits"],
        labels: Int[np.ndarray, " n_samples"],
    ) -> tuple[Certificate, ...]:
        independence = Assumption(
            f"features are independent: largest correlation {self.max_correlation_:.2g}",
            self.max_correlation_ <= _INDEPENDENT,
        )
        if tree.mode == "data":
            return (data_certificate(tree, codes, labels),)
        return tuple(
            replace(certificate, assumptions=(*certificate.assumptions, independence))
            for certificate in tree.certificates
        )

    def _questions(self) -> list[tuple[str, str]]:
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        pairs = zip(self._bits.columns, self._bits.written(), strict=True)
        return [(f"{names[j]} <= {cut}", f"{names[j]} > {cut}") for j, cut in pairs]

    def _class_names(self) -> list[str]:
        names = [str(label) for label in self.classes_]
        return names if len(names) == 2 else names * 2


def data_certificate(
    tree: GreedyTree, codes: UInt8[np.ndarray, "n_samples n_bits"], labels: Int[np.ndarray, " n_samples"]
) -> Certificate:
    """Training error of a tree against what was asked for.

    Parameters
    ----------
    tree : GreedyTree
        The tree.
    codes : numpy.ndarray of shape (n_samples, n_bits)
        Bits.
    labels : numpy.ndarray of shape (n_samples,)
        Labels 0 and 1.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import build_topdown_tree
    >>> from assay.supervised.influence_tree_classifier import data_certificate
    >>> print(data_certificate(build_topdown_tree([0, 1], 1), np.array([[0], [1]], dtype=np.uint8), np.array([0, 0])))
    FAILS: training error of the tree: 0.5 <= 0.05
    """
    return Certificate("training error of the tree", float(np.mean(tree.predict(codes) != labels)), tree.eps + 1e-12)


def distill(
    model: Any, X: ArrayLike | pd.DataFrame, eps: float = 0.05, p: float | ArrayLike | None = None, **options: Any
) -> InfluenceTreeClassifier:
    """Replace a trained classifier by a small decision tree.

    The model is asked all over the cube of bits, not only where there are data. Numbers become bits by thresholds, and
    for the model a bit becomes the median of the values on its side of the threshold again.

    Parameters
    ----------
    model : object with ``predict``, or callable
        A classifier of two classes.
    X : array_like or data frame of shape (n_samples, n_features)
        Data like those that the model was trained on. They give thresholds and probabilities; labels are not needed.
    eps : float, default=0.05
        How often the tree may differ from the model.
    p : array_like of shape (n_features,), float or None, default=None
        Probability of the bit 1; by default the share in X.
    **options
        Other parameters of :class:`InfluenceTreeClassifier`.

    Returns
    -------
    InfluenceTreeClassifier
        Fitted.

    Raises
    ------
    ValueError, TypeError
        As :meth:`InfluenceTreeClassifier.fit`, or if the model is neither callable nor has ``predict``.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from assay.supervised import distill
    >>> X, y = make_classification(n_features=8, n_redundant=0, random_state=0)
    >>> forest = RandomForestClassifier(random_state=0).fit(X, y)
    >>> tree = distill(forest, X, eps=0.1)
    >>> tree.error_bound_ <= 0.1, tree.certificates_[0].holds
    (True, True)
    """
    if _as_function(model) is None:
        raise TypeError("model must be callable or have a method predict, got None")
    frame = X if hasattr(X, "columns") else as_float_array(X, "X", ndim=2)
    labels = np.asarray(_as_function(model)(frame))
    # A clone, as in a grid search, would forget what a model has learned.
    oracle = FrozenEstimator(model) if isinstance(model, BaseEstimator) else model
    return InfluenceTreeClassifier(eps, oracle=oracle, p=p, **options).fit(frame, labels)


class _OracleOfBits:
    """Asks an oracle for numbers with given bits, and reads its labels as 0 and 1."""

    def __init__(self, ask: Callable, bits: ThresholdFeatures, classes: np.ndarray) -> None:
        self.ask, self.bits, self.classes = ask, bits, classes

    def __call__(self, codes: UInt8[np.ndarray, "B n_bits"]) -> UInt8[np.ndarray, " B"]:
        answers = np.asarray(self.ask(self.bits.decode(codes)))
        if answers.shape != (len(codes),):
            raise ValueError(f"oracle must return one label per row, shape ({len(codes)},), got {answers.shape}")
        unknown = ~np.isin(answers, self.classes)
        if unknown.any():
            raise ValueError(f"oracle must return labels among {self.classes.tolist()}, got {answers[unknown][0]!r}")
        return (answers == self.classes[-1]).astype(np.uint8) * np.uint8(len(self.classes) == 2)


def _as_function(oracle: Any) -> Callable | None:
    """What maps rows to labels, given rows under the names that the oracle learned."""
    if oracle is None:
        return None
    if not hasattr(oracle, "predict"):
        if not callable(oracle):
            raise TypeError(f"oracle must be callable or have a method predict, got {type(oracle).__name__}")
        return oracle
    names = getattr(oracle, "feature_names_in_", None)
    if names is None:
        return oracle.predict
    return lambda rows: oracle.predict(rows if hasattr(rows, "columns") else pd.DataFrame(rows, columns=names))


def _largest_correlation(codes: UInt8[np.ndarray, "n_samples n_bits"]) -> float:
    if codes.shape[1] < 2:
        return 0.0
    centred = codes - codes.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=0)
    correlation = np.abs(centred.T @ centred)
    np.fill_diagonal(correlation, 0.0)
    return float(correlation.max())
