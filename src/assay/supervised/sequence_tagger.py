r"""Tag sequences with a linear model trained on the position-wise linear-core loss.

Given the features ``x`` of a position and the true tag before it, the tags score ``x W + A[previous] + b``. That is a
multi-class linear model whose features are those of the position, an indicator of the tag before, and a constant. The
loss is convex and smooth, so L-BFGS solves the training problem to a duality gap that the estimator reports. With
hundreds of tags one would rather look at a few: stochastic steps on sampled wrong tags take as many operations whatever
their number. New sequences are tagged by their best path, with Viterbi.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from assay.certificate import Certificate
from assay.supervised.best_path import viterbi
from assay.supervised.linear_core import LinearCoreTail, resolve_tail
from assay.supervised.sampled_descent import SAMPLED_TAILS
from assay.supervised.sequence_features import SequenceFeatures, without_tensors
from assay.supervised.sequence_training import TaggingProblem, training_rows
from assay.validation import as_generator, check_choice, check_integer, check_real

__all__ = ["SequenceTagger"]


class SequenceTagger(BaseEstimator):
    r"""Linear-chain tagger with the linear-core loss.

    Minimises over the coefficients :math:`\theta = (W, A, b)`

    .. math:: \frac1N \sum_{i=1}^N \sum_{k \ne y_i} \Phi\bigl(-s (z_{ik} - \bar z_i)\bigr) + \frac\alpha2 |\theta|^2,
              \qquad z_i = x_i W + A[\text{tag before}] + b,

    over the ``N`` positions of all sequences, with the linear-core margin loss :math:`\Phi` and a scale ``s``.

    Parameters
    ----------
    alpha : float, default=1e-4
        Ridge penalty, on all coefficients.
    tau, sigma : float, default=0.7, 0.3
        Length of the linear part of the loss past 0, and width of its smooth tail.
    tail : {"exp", "quad", "gamma", "smoothstep"} or LinearCoreTail, default="exp"
        As in :func:`assay.supervised.linear_core`.
    score_scale : float or None, default=None
        The scale ``s`` of the scores. The loss asks the right one of ``K`` tags for a scaled score of ``(K - 1) tau``;
        a larger scale lets smaller coefficients, which the penalty prefers, give it. None: the square root of ``K``.
    use_transitions : bool, default=True
        Whether a tag depends on the one before. Without, every position is tagged on its own, and the consistency
        certificate is about the predictions themselves.
    window : int, default=1
        Tokens only: how many neighbours on each side are features of a position.
    min_frequency : int, default=1
        Tokens that are seen less often share one feature; named features that are seen less often are dropped.
    handle_unknown : {"error", "ignore"}, default="error"
        What to do in ``predict`` with tokens and named features that were not seen in ``fit``: raise an error, or
        treat them as rare ones (without a feature, if there were none).
    solver : {"lbfgs", "sgd"}, default="lbfgs"
        All tags at every step, to a small duality gap; or stochastic steps on sampled wrong tags, whose operations do
        not grow in number with the tags (their time does once the coefficients outgrow the cache).
    n_samples : int, default=8
        ``"sgd"``: wrong tags drawn per position.
    learning_rate : float, default=1.0
        ``"sgd"``: length of the first step of a feature, in units of ``n_tags / score_scale``, the size of the score
        that the loss asks of a right tag.
    max_iter : int or None, default=None
        Iterations of L-BFGS (None: 1000), or passes over the data (None: 20).
    tol : float, default=1e-2
        Wanted duality gap, relative to the objective.
    random_state : int, numpy.random.Generator or None, default=None
        ``"sgd"``: order of the positions and draws of the tags.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (n_tags,)
        The tags, sorted.
    coef_ : numpy.ndarray of shape (n_features, n_tags)
        Weights of the features of a position.
    transitions_ : numpy.ndarray of shape (n_tags, n_tags)
        Weights of a tag (row) being followed by a tag (column); 0 without transitions.
    start_ : numpy.ndarray of shape (n_tags,)
        Weights of a sequence starting with a tag; 0 without transitions.
    intercept_ : numpy.ndarray of shape (n_tags,)
        Weights of the tags themselves.
    features_ : SequenceFeatures
        The encoder of sequences; ``features_.vocabulary`` maps tokens and names to columns.
    objective_, gap_ : float
        Objective and duality gap at the coefficients.
    n_iter_ : int
        Iterations, or passes.
    history_ : dict of str to numpy.ndarray
        ``iteration``, ``objective`` and ``gap`` of every iteration of L-BFGS; empty for ``"sgd"``, which never sees
        the whole objective.
    certificates_ : tuple of Certificate
        The duality gap, and the consistency bound on the training data: the excess error of the teacher-forced
        predictions over the best function of the same features is at most ``1 / tau`` times the excess surrogate risk.

    Notes
    -----
    An iteration of L-BFGS costs ``O(N n_tags)`` per feature of a position, a stochastic step ``O(n_samples)`` per
    feature; tagging a sequence of length ``L`` costs ``O(L n_tags^2)``.

    The loss wants the scores of all wrong tags below ``-tau`` at once, which a linear model of few features cannot
    always give. Features that name what is around a position (a window, or dicts of word and neighbours) bring the
    accuracy close to that of a structured SVM; with a hundred tags that one still learns more from the same data.

    The bound is for predictions from the true tag before. With transitions, tagging replaces it by a predicted one.

    References
    ----------
    M. Mohri, Y. Zhong. Linear-Core Surrogates: Smooth Loss Functions with Linear Rates for Classification and
    Structured Prediction. ICML 2026. arXiv:2604.27742.

    Examples
    --------
    A position is a token, a dict of features as for ``sklearn_crfsuite``, or a row of a matrix:

    >>> from assay.supervised import SequenceTagger
    >>> X = [["the", "dog", "runs"], ["a", "cat", "sleeps"], ["the", "cat", "runs"]]
    >>> y = [["DET", "NOUN", "VERB"]] * 3
    >>> tagger = SequenceTagger().fit(X, y)
    >>> tagger.predict([["a", "dog", "sleeps"]])
    [['DET', 'NOUN', 'VERB']]
    >>> all(certificate.holds for certificate in tagger.certificates_)
    True
    """

    def __init__(
        self,
        alpha: float = 1e-4,
        *,
        tau: float = 0.7,
        sigma: float = 0.3,
        tail: str | LinearCoreTail = "exp",
        score_scale: float | None = None,
        use_transitions: bool = True,
        window: int = 1,
        min_frequency: int = 1,
        handle_unknown: str = "error",
        solver: str = "lbfgs",
        n_samples: int = 8,
        learning_rate: float = 1.0,
        max_iter: int | None = None,
        tol: float = 1e-2,
        random_state: Any = None,
    ) -> None:
        self.alpha = alpha
        self.tau = tau
        self.sigma = sigma
        self.tail = tail
        self.score_scale = score_scale
        self.use_transitions = use_transitions
        self.window = window
        self.min_frequency = min_frequency
        self.handle_unknown = handle_unknown
        self.solver = solver
        self.n_samples = n_samples
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> SequenceTagger:
        """Learn the coefficients.

        Parameters
        ----------
        X : list of sequences
            Each a sequence of hashable tokens (a string is a sequence of letters), a sequence of dicts of named
            features (words or numbers), or a matrix of numeric features with one row per position (dense or sparse).
        y : list of sequences
            The tags of the positions, any hashable values; at least two different ones.

        Returns
        -------
        SequenceTagger

        Raises
        ------
        TypeError, ValueError
            If there is no sequence, one is empty, lengths differ, kinds are mixed, a parameter is out of range, or the
            coefficients diverge.
        """
        max_iter, generator = self._check_parameters(), as_generator(self._seed(), "random_state")
        self.features_ = SequenceFeatures(self.window, self.min_frequency, self.handle_unknown).fit(X)
        rows, lengths = self.features_.transform(X)
        tags = _flat_tags(y, lengths)
        self.classes_ = _sorted_classes(tags)
        numbers_of = {tag: number for number, tag in enumerate(self.classes_.tolist())}
        target = np.array([numbers_of[tag] for tag in tags])
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two different tags, got only {tags[0]!r}")
        design = training_rows(rows, lengths, target, len(self.classes_) if self.use_transitions else None)
        problem = TaggingProblem(
            design,
            target,
            len(self.classes_),
            alpha=self.alpha,
            tau=self.tau,
            sigma=self.sigma,
            tail=resolve_tail(self.tail),
            scale=float(self.score_scale or np.sqrt(len(self.classes_))),
        )
        if self.solver == "lbfgs":
            coefficients, self.history_ = problem.solve(max_iter, self.tol)
            self.n_iter_ = len(self.history_["iteration"])
        else:
            coefficients = problem.descend(max_iter, self.n_samples, self.learning_rate, generator)
            self.history_, self.n_iter_ = {}, max_iter
            if not np.abs(coefficients).max() < 1e150:
                raise ValueError(
                    f"learning_rate must be smaller, the coefficients diverged with {self.learning_rate:g}"
                )
        self._store(coefficients, rows.shape[1])
        self._certify(problem)
        if not self.certificates_[0].holds:
            warnings.warn(
                f"SequenceTagger did not reach tol={self.tol:g} in {self.n_iter_} iterations (the duality gap is "
                f"{self.gap_ / max(self.objective_, 1e-300):.3g} of the objective); the best answer is returned",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def predict(self, X: Any) -> list[list[Any]]:
        """Tag sequences by their best path.

        Parameters
        ----------
        X : list of sequences
            Of the kind that the tagger was fitted on.

        Returns
        -------
        list of list
            The tags of every position.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before ``fit``.
        TypeError, ValueError
            If ``X`` is of another kind or empty, or has tokens or features that were not seen in ``fit``, unless
            ``handle_unknown="ignore"``.
        """
        check_is_fitted(self, "coef_")
        tags = self.classes_.tolist()
        transitions = self.transitions_ if self.use_transitions else None
        return [[tags[k] for k in viterbi(unary, transitions)] for unary in self.decision_function(X)]

    def decision_function(self, X: Any) -> list[np.ndarray]:
        """Scores of the tags at every position, without what the transitions add.

        Parameters
        ----------
        X : list of sequences
            As in :meth:`predict`.

        Returns
        -------
        list of numpy.ndarray of shape (positions, n_tags)
            Their best path under ``transitions_`` is what :meth:`predict` returns.
        """
        check_is_fitted(self, "coef_")
        rows, lengths = self.features_.transform(X)
        scores, first = [], 0
        for length in lengths:
            unary = rows[first : first + length] @ self.coef_ + self.intercept_
            unary[0] += self.start_
            scores.append(unary)
            first += length
        return scores

    def score(self, X: Any, y: Any) -> float:
        """Fraction of positions that are tagged right.

        Parameters
        ----------
        X, y : list of sequences
            As in :meth:`fit`; a tag that was not seen there counts as an error.

        Returns
        -------
        float
        """
        predicted = self.predict(X)
        tags = _flat_tags(y, np.array([len(sequence) for sequence in predicted]))
        guesses = [tag for sequence in predicted for tag in sequence]
        return float(np.mean([guess == tag for guess, tag in zip(guesses, tags, strict=True)]))

    def _check_parameters(self) -> int:
        check_real(self.alpha, "alpha", above=0)
        check_real(self.tau, "tau", above=0)
        check_real(self.sigma, "sigma", above=0)
        curve = resolve_tail(self.tail)
        if self.score_scale is not None:
            check_real(self.score_scale, "score_scale", above=0)
        check_integer(self.window, "window", minimum=0)
        check_integer(self.min_frequency, "min_frequency", minimum=1)
        check_choice(self.handle_unknown, "handle_unknown", ("error", "ignore"))
        check_choice(self.solver, "solver", ("lbfgs", "sgd"))
        check_integer(self.n_samples, "n_samples", minimum=1)
        check_real(self.learning_rate, "learning_rate", above=0)
        check_real(self.tol, "tol", above=0)
        if not isinstance(self.use_transitions, bool | np.bool_):
            raise TypeError(f"use_transitions must be True or False, got {self.use_transitions!r}")
        if self.solver == "sgd" and not any(curve is resolve_tail(name) for name in SAMPLED_TAILS):
            raise ValueError(
                f"tail must be one of {SAMPLED_TAILS} with solver='sgd', got the tail {curve.name!r} of your own"
            )
        if self.max_iter is None:
            return 1000 if self.solver == "lbfgs" else 20
        return check_integer(self.max_iter, "max_iter", minimum=1)

    def _store(self, coefficients: np.ndarray, n_features: int) -> None:
        n_tags = len(self.classes_)
        self.coef_ = coefficients[:n_features]
        self.intercept_ = coefficients[-1]
        if self.use_transitions:
            self.transitions_ = coefficients[n_features : n_features + n_tags]
            self.start_ = coefficients[n_features + n_tags]
        else:
            self.transitions_ = np.zeros((n_tags, n_tags))
            self.start_ = np.zeros(n_tags)

    def _certify(self, problem: TaggingProblem) -> None:
        """Evaluate the promises at the coefficients that were stored."""
        joint = [self.transitions_, self.start_[None]] if self.use_transitions else []
        coefficients = np.vstack([self.coef_, *joint, self.intercept_[None]])
        self.objective_, self.gap_ = problem.objective_and_gap(coefficients)
        excess_error, excess_loss = problem.excess_risks(coefficients)
        teacher_forced = "teacher-forced " if self.use_transitions else ""
        note = "; tagging by the best path replaces the true tag before, which is not covered" * self.use_transitions
        self.certificates_ = (
            # Infinity is not within infinity of anything.
            Certificate(
                "duality gap of the training problem",
                self.gap_,
                self.tol * self.objective_ if np.isfinite(self.gap_) else np.nan,
            ),
            Certificate(
                f"excess {teacher_forced}training error over the best function of the features, "
                f"at most 1/tau times the excess surrogate risk{note}",
                excess_error,
                excess_loss / self.tau + 1e-9,
            ),
        )

    def _seed(self) -> Any:
        """``random_state`` with the legacy generators of scikit-learn's world turned into a seed."""
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31 - 1))
        if isinstance(self.random_state, numbers.Integral | np.random.Generator) or self.random_state is None:
            return self.random_state
        raise TypeError(
            f"random_state must be None, a seed or a random generator, got {type(self.random_state).__name__}"
        )


def _flat_tags(y: Any, lengths: Int[np.ndarray, " sequences"]) -> list[Any]:
    """The tags of all positions in one list."""
    if isinstance(y, str | bytes | Mapping) or not hasattr(y, "__len__") or hasattr(y, "columns"):
        raise TypeError(f"y must be a list of sequences of tags, got {type(y).__name__}")
    if len(y) != len(lengths):
        raise ValueError(f"y must have one sequence of tags per sequence of X, {len(lengths)}, got {len(y)}")
    tags: list[Any] = []
    for index, given in enumerate(without_tensors(y)):
        sequence = without_tensors(given)
        if not hasattr(sequence, "__len__") or isinstance(sequence, Mapping | set | frozenset):
            raise TypeError(f"y[{index}] must be a sequence of tags, got {sequence!r:.60}")
        if len(sequence) != lengths[index]:
            raise ValueError(f"y[{index}] must have one tag per position, {lengths[index]}, got {len(sequence)}")
        listed = [tag.item() if isinstance(tag, np.generic) else tag for tag in sequence]
        for tag in listed:
            try:
                hash(tag)
            except TypeError as error:
                raise TypeError(f"y[{index}] must have hashable tags, got {type(tag).__name__}") from error
            if tag is None or tag != tag:
                raise ValueError(f"y[{index}] must have a tag at every position, got {tag!r}")
        tags.extend(listed)
    return tags


def _sorted_classes(tags: list[Any]) -> np.ndarray:
    """Different tags in order; tags of mixed types are ordered by type and then by what they look like."""
    different = set(tags)
    kinds = {type(tag) for tag in different}
    if len(kinds) == 1 and kinds <= {str, int, bool}:
        return np.array(sorted(different))
    classes = np.empty(len(different), dtype=object)
    classes[:] = sorted(different, key=lambda tag: (type(tag).__name__, repr(tag)))
    return classes
