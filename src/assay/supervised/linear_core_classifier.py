"""Linear classification with the linear-core loss, in place of ``LogisticRegression`` or ``LinearSVC``.

The loss is smooth, so that a quasi-Newton method trains the model in tens of iterations, as it does a logistic
regression, and has the linear consistency of the hinge loss of a support vector machine. Training stops by a duality
gap: the distance to the best objective is bounded by numbers that are recomputed from the fitted coefficients.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from assay.certificate import Certificate
from assay.supervised.linear_core import LinearCoreTail, linear_core, linear_core_slope, resolve_tail
from assay.supervised.linear_core_certificate import consistency_constant_certificate
from assay.supervised.linear_core_training import TrainingProblem, minimize_lbfgs, minimize_nesterov
from assay.validation import check_choice, check_integer, check_real

__all__ = ["LinearCoreClassifier"]

_SOLVERS = {"lbfgs": minimize_lbfgs, "nesterov": minimize_nesterov}

# Where the loss is linear, all scores would get the same probability. This small a slope keeps them in order.
_ORDERING = 1e-9

# Keeps quotients of slopes finite where the tail has vanished.
_STEEP_ENOUGH = 1e-200


class LinearCoreClassifier(ClassifierMixin, BaseEstimator):
    r"""Linear classifier trained with the linear-core loss.

    Minimises :math:`\tfrac12 \|W\|^2 + C \sum_i w_i \ell(W x_i + b, y_i)` with an intercept that is not penalised. For
    two classes there is one score and :math:`\ell` is :func:`~assay.supervised.linear_core` of its margin. For more
    there are as many such problems, each class against the rest, or one joint problem with the loss of
    :class:`~assay.supervised.LinearCoreLoss`.

    Parameters
    ----------
    C : float, default=1.0
        Inverse strength of the penalty, as in ``LogisticRegression``.
    tau : float, default=0.7
        Where the linear part of the loss ends; excess risk bounds excess error with the constant ``1 / tau``.
    sigma : float, default=0.3
        Width of the smooth tail.
    tail : {"exp", "quad", "gamma", "smoothstep"} or LinearCoreTail, default="exp"
        Shape of the tail.
    solver : {"lbfgs", "nesterov"}, default="lbfgs"
        Quasi-Newton, or accelerated gradient descent with a fixed step.
    tol : float, default=1e-6
        Training stops when the duality gap is at most ``tol`` times the objective.
    max_iter : int, default=1000
        Most iterations.
    fit_intercept : bool, default=True
        Whether there is an intercept.
    class_weight : dict, "balanced" or None, default=None
        Factors of ``C`` by class, as in ``LogisticRegression``.
    multi_class : {"ovr", "joint"}, default="ovr"
        What to train for more than two classes. ``"joint"`` has the linear bound ``1 / tau`` for the error of all
        classes together, but against the best *measurable* rule; it wants every wrong class below the average of
        the scores, and a linear model often cannot do that: on iris and on handwritten digits it makes several times
        the errors of ``"ovr"``, for which the bound is one for each class against the rest.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (n_classes,)
        The labels.
    coef_ : numpy.ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients; of a joint problem they sum to zero over the classes.
    intercept_ : numpy.ndarray of shape (1,) or (n_classes,)
        Intercepts.
    n_iter_ : int
        Iterations of the solver, the most over the problems.
    objective_ : float
        Value of the objective, summed over the problems.
    gap_ : float
        Duality gap: how far at most the objective is above its least value.
    certificates_ : tuple of Certificate
        The duality gap against ``tol`` times the objective; the training error against the training loss; the
        constant of linear consistency.
    history_ : dict of str to numpy.ndarray
        ``output`` (the row of ``coef_`` that was trained, 0 for a joint problem), ``iteration``, ``evaluations``,
        ``seconds``, ``objective`` and ``gap``, each time that the gap of a problem was computed.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : numpy.ndarray of shape (n_features,)
        Names of the features, when ``X`` had them.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When ``max_iter`` is reached before ``tol``.

    Notes
    -----
    Sparse matrices are used as they are. Features need not be standardised for the solver's sake; it works in
    coordinates that are centred, scaled and, up to 128 dense features, decorrelated. The penalty, as in all such
    models, does depend on their scale. One iteration is O(n_samples n_features n_classes), or that of the non-zeros.

    ``predict_proba`` inverts the condition of optimality of the loss at a point; it is exact where the scores minimise
    the expected loss. Scores inside the linear part are what no law minimises but a tie; their probabilities are equal
    up to a difference of about 1e-9 that keeps their order.

    References
    ----------
    M. Mohri, Y. Zhong. Linear-Core Surrogates: Smooth Loss Functions with Linear Rates for Classification and
    Structured Prediction. ICML 2026. arXiv:2604.27742.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from assay.supervised import LinearCoreClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearCoreClassifier().fit(X, y)
    >>> round(model.score(X, y), 2)
    0.95
    >>> model.certificates_[0].holds
    True
    """

    def __init__(
        self,
        C=1.0,
        *,
        tau=0.7,
        sigma=0.3,
        tail="exp",
        solver="lbfgs",
        tol=1e-6,
        max_iter=1000,
        fit_intercept=True,
        class_weight=None,
        multi_class="ovr",
    ):
        self.C = C
        self.tau = tau
        self.sigma = sigma
        self.tail = tail
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.multi_class = multi_class

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> LinearCoreClassifier:
        """Train the model.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_samples, n_features)
            Features.
        y : array_like of shape (n_samples,)
            Labels of any kind.
        sample_weight : array_like of shape (n_samples,), optional
            Non-negative factors of the losses.

        Returns
        -------
        LinearCoreClassifier
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            If a parameter is outside its range, the data are not finite, or there are fewer than two classes.
        """
        strength = check_real(self.C, "C", above=0)
        tau = check_real(self.tau, "tau", above=0)
        sigma = check_real(self.sigma, "sigma", above=0)
        tail = resolve_tail(self.tail)
        tol = check_real(self.tol, "tol", minimum=0)
        max_iter = check_integer(self.max_iter, "max_iter", minimum=1)
        minimize = _SOLVERS[check_choice(self.solver, "solver", _SOLVERS)]
        check_choice(self.multi_class, "multi_class", ("ovr", "joint"))
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise TypeError(f"fit_intercept must be True or False, got {self.fit_intercept!r}")

        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least 2 classes, got {len(self.classes_)} class")
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        costs = strength * weights * self._class_weights(labels, weights)[labels]
        used = costs > 0
        if len(np.unique(labels[used])) < 2:
            raise ValueError("sample_weight must be positive for at least 2 classes, got a positive weight for fewer")

        X, labels, costs = X[used], labels[used], costs[used]
        n_classes = len(self.classes_)
        if n_classes == 2 or self.multi_class == "joint":
            parts = [(labels, n_classes)]
        else:
            parts = [((labels == k).astype(int), 2) for k in range(n_classes)]
        coefs, intercepts, histories = [], [], []
        self.n_iter_, self.objective_, self.gap_ = 1, 0.0, 0.0
        for output, (codes, n_codes) in enumerate(parts):
            problem = TrainingProblem(X, codes, n_codes, costs, tau, sigma, tail, bool(self.fit_intercept))
            point, n_iter, history = minimize(problem, tol, max_iter)
            coef, intercept = problem.model(point)
            if self.fit_intercept and not codes.any():
                # All samples of this class have weight 0, and the best intercept is as far down as the tail reaches.
                coef, intercept = 0.0 * coef, np.array([-tau - sigma * min(tail.reach, 1e6)])
            primal, dual = problem.primal_dual(coef, intercept)
            self.n_iter_ = max(self.n_iter_, n_iter)
            self.objective_ += primal
            self.gap_ += primal - dual
            coefs.append(coef)
            intercepts.append(intercept)
            histories.append({"output": np.full(len(history["gap"]), output), **history})
        self.coef_, self.intercept_ = np.concatenate(coefs), np.concatenate(intercepts)
        self.history_ = {name: np.concatenate([history[name] for history in histories]) for name in histories[0]}
        scores = X @ self.coef_.T + self.intercept_
        self.certificates_ = (
            # Infinity is not within infinity of anything.
            Certificate(
                "duality gap of the fitted coefficients",
                self.gap_,
                tol * self.objective_ if np.isfinite(self.gap_) else np.nan,
            ),
            _training_error_certificate(scores, labels, costs, tau, sigma, tail, joint=len(parts) == 1),
            consistency_constant_certificate(tau, sigma, tail),
        )
        if not self.certificates_[0].holds:
            warnings.warn(
                f"LinearCoreClassifier did not reach tol={tol:g} in {self.n_iter_} iterations: the duality gap is "
                f"{self.gap_ / self.objective_:.3g} of the objective. Increase max_iter, or scale the features.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores of samples.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples,) or (n_samples, n_classes)
            For two classes, positive for the second one; else one score per class.
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True, reset=False)
        scores = X @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Most likely class of samples.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
            Labels.
        """
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n_samples n_classes"]:
        """Class probabilities for which the scores of a sample minimise the expected loss.

        One-versus-rest scores give one probability each; they are divided by their sum.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples, n_classes)
            Rows sum to 1, and the largest entry is that of the predicted class.
        """
        scores = self.decision_function(X)
        columns = np.column_stack([-scores, scores]) if scores.ndim == 1 else scores
        invert = _joint_probabilities if self.multi_class == "joint" or scores.ndim == 1 else _separate_probabilities
        probabilities = invert(columns, float(self.tau), float(self.sigma), self.tail)
        lead = columns.max(axis=1, keepdims=True) - columns
        probabilities *= 1.0 - _ORDERING * lead / (lead + float(self.sigma))
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "n_samples n_classes"]:
        """Logarithm of :meth:`predict_proba`, minus infinity where that is 0.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples, n_classes)
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _class_weights(self, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
        n_classes = len(self.classes_)
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            totals = np.bincount(labels, weights=weights, minlength=n_classes)
            return np.divide(totals.sum() / n_classes, totals, out=np.zeros(n_classes), where=totals > 0)
        factors = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[labels])
        if not np.isfinite(factors).all() or factors.min() < 0:
            raise ValueError(f"class_weight must be finite and non-negative, got {self.class_weight!r}")
        return factors


def _training_error_certificate(
    scores: np.ndarray,
    labels: np.ndarray,
    costs: np.ndarray,
    tau: float,
    sigma: float,
    tail: LinearCoreTail,
    joint: bool,
) -> Certificate:
    """Whoever predicts wrongly has a margin of at most 0 somewhere, and so at least the loss of margin 0."""
    own = np.arange(len(labels)), labels
    if scores.shape[1] == 1:
        losses = linear_core((2 * labels - 1) * scores[:, 0], tau, sigma, tail)
        wrong = (scores[:, 0] > 0) != (labels == 1)
    else:
        margins = (scores.mean(axis=1, keepdims=True) if joint else 0.0) - scores
        if not joint:
            margins[own] *= -1.0
        losses = linear_core(margins, tau, sigma, tail)
        if joint:
            losses[own] = 0.0
        losses = losses.sum(axis=1)
        wrong = scores.argmax(axis=1) != labels
    total = costs.sum()
    return Certificate(
        "weighted training error, against training loss / loss at margin 0",
        float(costs @ wrong / total),
        float(costs @ losses / total / linear_core(0.0, tau, sigma, tail)) * (1.0 + 1e-12),
    )


def _joint_probabilities(
    scores: np.ndarray, tau: float, sigma: float, tail: str | LinearCoreTail
) -> Float[np.ndarray, "n_samples n_classes"]:
    r"""Invert the stationarity condition: ``(1 - p_k) * steepness_k`` is the same for all classes.

    With ``e_k = 1 / steepness_k`` and S the sum of them over all but the best class, whose steepness is 1, the
    probabilities sum to one for ``1 - p_max = (K - 1) / (S + 1)``.
    """
    inverse = 1.0 / np.maximum(-linear_core_slope(-scores, tau, sigma, tail), _STEEP_ENOUGH)
    np.put_along_axis(inverse, scores.argmax(axis=1)[:, None], 1.0, axis=1)
    missing = (scores.shape[1] - 1.0) / inverse.sum(axis=1, keepdims=True)
    probabilities = np.clip(1.0 - missing * inverse, 0.0, 1.0)
    return probabilities / probabilities.sum(axis=1, keepdims=True)


def _separate_probabilities(
    scores: np.ndarray, tau: float, sigma: float, tail: str | LinearCoreTail
) -> Float[np.ndarray, "n_samples n_classes"]:
    """Invert ``p * steepness(score) = (1 - p) * steepness(-score)`` for every class against the rest."""
    for_class, for_rest = (
        np.maximum(-linear_core_slope(side, tau, sigma, tail), _STEEP_ENOUGH) for side in (scores, -scores)
    )
    probabilities = for_rest / (for_class + for_rest)
    return probabilities / probabilities.sum(axis=1, keepdims=True)
