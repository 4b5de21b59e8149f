r"""Boosting that never puts much weight on one example, and projects only now and then.

AdaBoost multiplies the weights of what is wrong, without limit; one wrong label can end up with most of the weight.
Smooth boosting projects the weights, after each round, onto distributions that put at most
:math:`1 / (\varepsilon m)` on each of ``m`` examples. Between projections :math:`1 / \gamma` rounds may pass, for
learners with an edge of :math:`\gamma`, and every promise is kept up to a constant. That makes a projection worth the
while of a quantum algorithm, which needs a number of queries that does not depend on ``m``. Here the subroutine is
drawn from its exact law, and its queries are counted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from assay.supervised.bregman_projection import METHODS
from assay.supervised.lazy_boosting import BoostingRun, BoostingTask, boost
from assay.supervised.quantum_boost_certificate import boosting_certificates
from assay.supervised.weak_learners import LearnerRounds, StumpRounds, check_weak_learner
from assay.validation import check_choice, check_integer, check_real

__all__ = ["QuantumBoostClassifier", "boosting_rounds"]

_FIRST_GAMMA = 0.2
_LEAST_GAMMA = 1e-3


def boosting_rounds(epsilon: float, gamma: float) -> int:
    r"""Rounds after which learners with an edge of ``gamma`` leave a training error below ``epsilon``.

    Parameters
    ----------
    epsilon : float
        Training error.
    gamma : float
        Edge: every learner is right on a weight of at least ``1/2 + gamma``.

    Returns
    -------
    int
        :math:`\lceil 2 \ln(1 / \varepsilon) / \gamma^2 \rceil`.

    Examples
    --------
    >>> from assay.supervised.quantum_boost import boosting_rounds
    >>> boosting_rounds(0.1, 0.1), boosting_rounds(0.25, 0.2)
    (461, 70)
    """
    return math.ceil(2.0 * math.log(1.0 / epsilon) / gamma**2)


class QuantumBoostClassifier(ClassifierMixin, BaseEstimator):
    r"""Smooth boosting with lazy projections of the example weights.

    In each round a weak learner is trained on the current weights, and what it gets right loses the factor
    :math:`1 - \gamma`. Every ``lazy_period`` rounds the weights are projected onto the measures of density
    :math:`\varepsilon` with entries of at most 1. The prediction is the majority vote.

    Parameters
    ----------
    estimator : classifier, "stump" or None, default=None
        The weak learner: any object with ``fit``, ``predict`` and ``get_params``. None or ``"stump"`` is a stump that
        sorts the features once for all rounds.
    epsilon : float, default=0.1
        Training error to get below, in (0, 1/2]; also the smoothness, no example has more than about
        ``1 / (epsilon n_samples)`` of the weight. The larger, the less wrong labels can do.
    gamma : float or "auto", default=0.1
        Edge of the weak learner, in (0, 1/2]. ``"auto"`` starts with 0.2 and halves it, starting again, when three
        edges in a row are below a quarter of it.
    lazy_period : int, inf or "auto", default="auto"
        Rounds from one projection to the next: ``ceil(1 / gamma)`` for ``"auto"``; 1 projects in every round, as
        earlier smooth boosters do; ``inf`` never projects.
    projection : {"exact", "approx", "quantum_sim"}, default="exact"
        As in :func:`~assay.supervised.bregman_project`.
    delta : float, default=0.2
        Relative accuracy of the density in the two projections that are not exact, in (0, 1].
    n_rounds : int or None, default=None
        Most rounds, ``ceil(2 log(1 / epsilon) / gamma**2)`` by default, which is enough for learners with an edge of
        ``gamma``.
    resample : int or None, default=None
        Number of examples that are drawn from the weights for each weak learner, for learners that take no weights;
        also what a quantum computer would do.
    early_stop : bool, default=True
        Whether to stop in the first round in which the certificate holds.
    random_state : int, RandomState or None, default=None
        Source of the seeds of the weak learners, of the drawn examples, and of the outcomes of amplitude estimation.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (2,)
        The labels.
    estimators_ : list of classifiers
        One per round.
    edges_ : numpy.ndarray of shape (n_rounds,)
        Weight that each one was right on, minus 1/2.
    constants_ : numpy.ndarray of shape (n_projections,)
        Logarithm of the constant of each projection.
    projected_rounds_ : numpy.ndarray of shape (n_projections,)
        The round after which it was done, from 1 on.
    densities_ : numpy.ndarray of shape (n_projections,)
        Density after it.
    measure_ : numpy.ndarray of shape (n_samples,)
        Final measure of the training examples; see :meth:`measure` for others. Examples of weight 0 have a nan.
    certificate_ : Certificate
        The potential, which bounds the training error.
    certificates_ : tuple of Certificate
        The potential; the training error against the bound that it implies; the smoothness in all rounds; the number of
        projections and their densities. All are computed anew from the learners and the constants.
    queries_ : BoostingQueries
        Evaluations of weak hypotheses, classical and quantum.
    gamma_, lazy_period_ : float
        What was used.
    n_rounds_ : int
        Rounds that were done.
    n_restarts_ : int
        How often ``gamma`` was halved.
    weak_rounds_ : numpy.ndarray of int
        Rounds in which the edge was below ``gamma``.
    history_ : dict of str to numpy.ndarray
        ``round``, ``edge``, ``potential``, ``error`` and ``largest_weight`` (times ``epsilon n_samples``).
    n_features_in_ : int
        Number of features.
    feature_names_in_ : numpy.ndarray of shape (n_features,)
        Names of the features, when X had them.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When the rounds end before the certificate holds, as they do when three edges in a row are not positive.

    Notes
    -----
    Only two classes; ``sklearn.multiclass.OneVsRestClassifier`` makes more of them. With the built-in stump a round
    takes O(n_samples n_features). Memory is O(n_samples) beyond the data and the learners.

    ``sample_weight`` says how often an example counts. It must not put more than ``1 / (epsilon n_samples)`` on one.

    Let q be uniform on as many wrong examples as :math:`\varepsilon' m`. Each round changes the divergence of the
    weights from q by a known amount, a projection does not increase it, it is :math:`\ln(1 / \varepsilon')` at first
    and never negative, so that

    .. math::

        \sum_t -\ln(1 - \gamma \alpha_t) - \frac{T}{2} \ln \frac{1}{1 - \gamma} > \ln \frac{1}{\varepsilon'}

    with the realised agreements :math:`\alpha_t` leaves no room for that many. It needs no assumption, and holds for
    any period; :math:`\varepsilon'` is the largest density after a projection.

    References
    ----------
    A. Abbas, Y. Chen, T. Nguyen, R. de Wolf. QuantumBoost: A lazy, yet fast, quantum algorithm for learning with weak
    hypotheses. ICML 2026. arXiv:2510.05089.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from assay.supervised import QuantumBoostClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = QuantumBoostClassifier().fit(X, y)
    >>> model.n_rounds_ < 461, model.certificate_.holds, round(model.score(X, y), 2)
    (True, True, 0.99)
    """

    def __init__(
        self,
        estimator=None,
        epsilon=0.1,
        gamma=0.1,
        lazy_period="auto",
        projection="exact",
        delta=0.2,
        n_rounds=None,
        resample=None,
        early_stop=True,
        random_state=None,
    ):
        self.estimator = estimator
        self.epsilon = epsilon
        self.gamma = gamma
        self.lazy_period = lazy_period
        self.projection = projection
        self.delta = delta
        self.n_rounds = n_rounds
        self.resample = resample
        self.early_stop = early_stop
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> QuantumBoostClassifier:
        """Train the ensemble.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.
        y : array_like of shape (n_samples,)
            Labels of two kinds.
        sample_weight : array_like of shape (n_samples,), optional
            How often each example counts.

        Returns
        -------
        QuantumBoostClassifier
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            If a parameter is outside its range, the weak learner misses a method or takes no weights, the data are not
            finite, there are not two classes, ``epsilon`` is below one example, or a weight is too large.
        """
        automatic = isinstance(self.gamma, str)
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        if type_of_target(y) != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {type_of_target(y)}.")
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        used = weights > 0.0
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2 or len(np.unique(y[used])) < 2:
            raise ValueError(f"y must have 2 classes (with positive weight), got {len(np.unique(y[used]))} class")
        codes = y == self.classes_[1]
        share = self._shares(weights[used])
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1, size=4))
        gamma, self.n_restarts_ = (_FIRST_GAMMA if automatic else float(self.gamma)), 0
        while True:
            task = self._task(X[used], y[used], codes[used], share, gamma, rng, automatic)
            run = boost(task)
            if not (run.weak and automatic) or gamma / 2.0 < _LEAST_GAMMA:
                break
            gamma /= 2.0
            self.n_restarts_ += 1
        self._keep(task, run, used)
        if not self.certificate_.holds:
            reason = "three edges in a row were too small" if run.weak else "there were not enough rounds"
            warnings.warn(
                f"QuantumBoostClassifier cannot certify a training error below {task.epsilon:g} after "
                f"{self.n_rounds_} rounds: {reason}. Use a better weak learner, or a smaller gamma.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def decision_function(self, X: Any) -> Float[np.ndarray, " n_samples"]:
        """Votes for the second class minus those for the first, as a share of all.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
            Between -1 and 1.
        """
        return 2.0 * self._votes(X) / self.n_rounds_ - 1.0

    def predict(self, X: Any) -> np.ndarray:
        """Majority vote; the first class when the votes are even.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
            Labels.
        """
        votes = self._votes(X)
        return self.classes_[(2 * votes > self.n_rounds_).astype(int)]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n_samples 2"]:
        """Share of the votes for each class.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples, 2)
        """
        share = self._votes(X) / self.n_rounds_
        return np.column_stack([1.0 - share, share])

    def staged_predict(self, X: Any) -> Iterator[np.ndarray]:
        """Majority votes of the first one, two, ... learners.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Yields
        ------
        numpy.ndarray of shape (n_samples,)
            Labels.
        """
        X = self._checked(X)
        votes = np.zeros(len(X), dtype=np.int64)
        for count, estimator in enumerate(self.estimators_, start=1):
            votes += self._rounds.answers(estimator, X)
            yield self.classes_[(2 * votes > count).astype(int)]

    def measure(self, X: Any, y: Any) -> Float[np.ndarray, " n_samples"]:
        """Final measure of labelled examples, from the learners and the constants of the projections alone.

        This is how a quantum computer has it: nothing is stored per example, and each look costs one evaluation of
        every learner.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.
        y : array_like of shape (n_samples,)
            Labels among ``classes_``.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
            In [0, 1]; of the training examples, ``measure_``.

        Raises
        ------
        ValueError
            If a label is not among ``classes_``, or there are not as many as rows.
        """
        X = self._checked(X)
        labels = np.asarray(y)
        if labels.shape != (len(X),) or not np.isin(labels, self.classes_).all():
            raise ValueError(f"y must have one of the labels {self.classes_.tolist()} for each of {len(X)} rows")
        codes = labels == self.classes_[1]
        log_measure = np.full(len(X), math.log(float(self.epsilon)))
        constants = dict(zip(self.projected_rounds_.tolist(), self.constants_, strict=True))
        for t, estimator in enumerate(self.estimators_, start=1):
            log_measure += math.log1p(-self.gamma_) * (self._rounds.answers(estimator, X) == codes)
            if t in constants:
                log_measure = np.minimum(0.0, log_measure + constants[t])
        return np.exp(np.minimum(log_measure, 0.0))

    def _checked(self, X: Any) -> Float[np.ndarray, "n_samples n_features"]:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _votes(self, X: Any) -> Int[np.ndarray, " n_samples"]:
        X = self._checked(X)
        votes = np.zeros(len(X), dtype=np.int64)
        for estimator in self.estimators_:
            votes += self._rounds.answers(estimator, X)
        return votes

    def _check_parameters(self) -> None:
        check_real(self.epsilon, "epsilon", above=0, maximum=0.5)
        if isinstance(self.gamma, str):
            check_choice(self.gamma, "gamma", ("auto",))
        else:
            check_real(self.gamma, "gamma", above=0, maximum=0.5)
        if isinstance(self.lazy_period, str):
            check_choice(self.lazy_period, "lazy_period", ("auto",))
        elif not (isinstance(self.lazy_period, float | np.floating) and self.lazy_period == math.inf):
            check_integer(self.lazy_period, "lazy_period", minimum=1)
        check_choice(self.projection, "projection", METHODS)
        check_real(self.delta, "delta", above=0, maximum=1)
        for option, name in ((self.n_rounds, "n_rounds"), (self.resample, "resample")):
            if option is not None:
                check_integer(option, name, minimum=1)
        if not isinstance(self.early_stop, bool | np.bool_):
            raise TypeError(f"early_stop must be True or False, got {self.early_stop!r}")
        if isinstance(self.estimator, str):
            check_choice(self.estimator, "estimator", ("stump",))
        elif self.estimator is not None:
            check_weak_learner(self.estimator, weighted=self.resample is None)

    def _shares(self, weights: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        share = weights / weights.max()  # the sum of huge weights would overflow
        share /= share.sum()
        if self.epsilon < share.min() * (1.0 - 1e-12):
            raise ValueError(
                f"epsilon must be at least the weight of one example, 1 / n_samples, got {self.epsilon:g} with a "
                f"least weight of {share.min():.4g}, n_samples={len(share)}"
            )
        limit = 1.0 / (self.epsilon * len(share))
        if share.max() > limit * (1.0 + 1e-9):
            raise ValueError(
                f"sample_weight must put at most 1 / (epsilon n_samples) = {limit:.4g} of the weight on one example, "
                f"got {share.max():.4g}"
            )
        return share

    def _task(
        self,
        X: Float[np.ndarray, "m n_features"],
        y: np.ndarray,
        codes: Bool[np.ndarray, " m"],
        share: Float[np.ndarray, " m"],
        gamma: float,
        rng: np.random.Generator,
        automatic: bool,
    ) -> BoostingTask:
        if self.estimator is None or isinstance(self.estimator, str):
            rounds = StumpRounds(X, codes, self.classes_, self.resample)
        else:
            rounds = LearnerRounds(clone(self.estimator), X, y, self.classes_, self.resample)
        period = math.ceil(1.0 / gamma - 1e-9) if isinstance(self.lazy_period, str) else self.lazy_period
        epsilon = float(self.epsilon)
        return BoostingTask(
            rounds=rounds,
            codes=codes,
            share=share,
            epsilon=epsilon,
            gamma=gamma,
            period=float(period),
            projection=self.projection,
            delta=float(self.delta),
            n_rounds=boosting_rounds(epsilon, gamma) if self.n_rounds is None else self.n_rounds,
            resample=self.resample,
            early_stop=bool(self.early_stop),
            least_edge=0.25 * gamma if automatic else 0.0,
            rng=rng,
        )

    def _keep(self, task: BoostingTask, run: BoostingRun, used: Bool[np.ndarray, " n_samples"]) -> None:
        self._rounds = task.rounds.without_data()
        self.estimators_ = run.estimators
        self.n_rounds_ = len(run.estimators)
        self.gamma_, self.lazy_period_ = task.gamma, task.period
        self.history_ = run.history()
        self.edges_ = self.history_["edge"]
        self.constants_ = np.array(run.constants, dtype=float)
        self.projected_rounds_ = np.array(run.projected_rounds, dtype=np.int64)
        self.densities_ = np.array(run.densities, dtype=float)
        self.weak_rounds_ = np.flatnonzero(self.edges_ < task.gamma) + 1
        self.measure_ = np.full(len(used), np.nan)
        self.measure_[used] = np.exp(np.minimum(run.log_measure, 0.0))
        self.queries_ = run.queries()
        self.certificates_ = boosting_certificates(task, run.estimators, run.constants, run.projected_rounds, run.tests)
        self.certificate_ = self.certificates_[0]
