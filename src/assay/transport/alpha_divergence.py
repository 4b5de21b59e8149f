r"""How far apart are the laws of two samples? Amari's alpha-divergence by a kernel critic in linear time.

The divergence is the largest value of a concave functional of a critic (:mod:`assay.transport.amari_divergence`). The
critic here is linear in random Fourier features with a limited band, in a ball of their space: the fit is a concave
problem with one optimum, the same from every start, and a Frank-Wolfe gap proves how close it is. The functional of
the fitted critic on points that were held out is an estimate, and less a sampling error it is a lower bound that holds
for whatever laws the samples are from.
"""

from __future__ import annotations

import math
import numbers
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.linalg import eigvalsh
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import ClassifierTags, Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.transport.amari_divergence import AmariDivergence, CriticDivergence, check_divergence, gives_log_ratio
from assay.transport.ball_newton import hessian_stride, maximise_by_newton
from assay.transport.critic_training import ascend_by_gradient, ascend_by_minibatches
from assay.transport.divergence_bounds import HeldOut, bernstein_lower_bound, choose_clip, evaluate_held_out
from assay.transport.divergence_critic import CriticProblem, Sample, row_numbers
from assay.transport.random_features import SPECTRA, RandomFeatures, draw_random_features, median_distance
from assay.validation import (
    ConvergenceWarning,
    as_float_array,
    as_generator,
    check_choice,
    check_integer,
    check_real,
)

__all__ = ["AlphaDivergence", "AlphaResult", "LinearCritic", "alpha_divergence", "critic_certificates"]

RADII = (1.0, 2.0, 5.0, 10.0, 20.0)

# Largest value that a critic may be able to take: the exponential of it, and of its square root's sums, is finite.
LARGEST_CRITIC = 80.0

_FEWEST_POINTS = 10

# Pipelines hand on whatever is left of a class; the bounds of so few points say nothing, and say so.
_FEWEST_LABELLED = 2
_NEWTON_FEATURES = 1024
_BLOCK_ROWS = 512
_GRADIENT_STEPS = 200

# Stochastic epochs where Newton's method does not end the fit.
_EPOCHS = 20

# The clip is chosen on at most this many training points of each law; it only has to be chosen without the others.
_CLIP_POINTS = 10_000

_COLUMNS = ("iteration", "seconds", "phase", "value", "fw_gap", "step_size")


@dataclass(frozen=True, eq=False)
class LinearCritic:
    """A critic ``g(x) = weights @ features(x) + constant``.

    Parameters
    ----------
    weights : array of shape (D,)
        In the ball of radius ``radius``.
    constant : float
        At most ``offset`` large.
    features : RandomFeatures
        The features.
    radius, offset : float
        The bounds that it was fitted under.
    """

    weights: Float[np.ndarray, " features"]
    constant: float
    features: RandomFeatures
    radius: float
    offset: float

    @property
    def theta(self) -> Float[np.ndarray, " parameters"]:
        """Weights and constant in one vector."""
        return np.append(self.weights, self.constant)

    def __call__(self, X: Float[np.ndarray, "rows dimension"]) -> Float[np.ndarray, " rows"]:
        """Values of the critic at points."""
        return self.on_sample(Sample.whole(X))

    def on_sample(self, sample: Sample) -> Float[np.ndarray, " rows"]:
        """Values of the critic at the points of a sample."""
        return np.concatenate([np.empty(0), *self.in_blocks(sample)])

    def in_blocks(self, sample: Sample) -> Iterator[Float[np.ndarray, " block"]]:
        """The same, a few hundred at a time."""
        for _, points in sample.blocks(_BLOCK_ROWS):
            yield self.features.transform(points) @ self.weights + self.constant


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class AlphaResult(Result):
    """An estimate of a divergence, with what is known about its error.

    Parameters
    ----------
    value : float
        The functional of the critic on the held-out points; on the training points if none were held out.
    lower_bound : float
        The divergence is at least this with 95 % confidence (or what was asked for); nan if nothing was held out.
    normal_lower_bound : float
        The same in the normal approximation.
    fw_gap : float
        On the training points no critic in the ball has a functional more than this above ``train_value``.
    train_value : float
        The functional on the training points.
    holdout : float
        The part of the points that was held out.
    se : float
        Standard error of ``value``; nan if nothing was held out.
    curvature : float
        Smallest over largest eigenvalue of the Hessian at the critic; one less it is the factor by which a gradient
        step in the steepest direction contracts at worst. nan with more than 1024 features.
    length_scale, radius : float
        Those of the critic.
    critic : LinearCritic
        The critic; close to ``log p/q``.
    certificates, history
        As in :class:`assay.result.Result`.
    """

    value: float
    lower_bound: float
    normal_lower_bound: float
    fw_gap: float
    train_value: float
    holdout: float
    se: float
    curvature: float
    length_scale: float
    radius: float
    critic: LinearCritic = field(repr=False)


class AlphaDivergence(BaseEstimator):
    r"""Estimate the divergence of two laws from samples, with a certified lower bound.

    Solves, over critics ``g(x) = w @ phi(x) + c`` in random Fourier features,

    .. math:: \max_{|w|_2 \le R,\ |c| \le C}\ \frac1n \sum_i a(g(x_i)) + \frac1m \sum_j b(g(z_j)),

    with the integrands ``a`` and ``b`` of the divergence, by stochastic ascent with an Armijo search and then Newton's
    method to a certified gap, and evaluates the critic on points that were held out.

    Parameters
    ----------
    alpha : float, default=0.5
        Which of Amari's divergences, in ``[0, 1]``: 1 is KL(P|Q), 0 is KL(Q|P), 1/2 twice the squared Hellinger
        distance.
    divergence : object with p_integrand and q_integrand, optional
        Another divergence, see :class:`~assay.transport.amari_divergence.CriticDivergence`; ``alpha`` is ignored then.
    n_features : int, default=256
        Number of random features.
    length_scale : float or "median", default="median"
        Of the kernel; the median distance of the training points when not given. Standardise features that have
        different scales.
    band : float or None, default=4.0
        Frequencies are at most ``band / length_scale``.
    spectrum : {"gaussian", "laplace", "matern32"}, default="gaussian"
        Spectral law of the features.
    orthogonal : bool, default=False
        Whether directions of frequencies are orthogonal in blocks.
    radius : float or "cv", default=5.0
        Radius ``R`` of the ball. ``"cv"`` takes the best of 1, 2, 5, 10 and 20 on 30 % of the training points.
    offset : float, default=5.0
        Bound ``C`` on the constant. ``radius * sqrt(2) + offset`` may be 80 at most.
    batch_size : int, default=512
        Points of each sample in a minibatch.
    epochs : int or "auto", default="auto"
        Stochastic passes over the larger sample; 0 leaves all to the polish. ``"auto"`` is 0 where Newton's method ends
        the fit, since it ends at the same critic from any start, and 20 otherwise.
    average : bool, default=False
        Whether to average the iterates of the last epoch.
    holdout : float, default=0.3
        Part of each sample that is held out for the estimate and the lower bound. At 0 the estimate is that on the
        training points, which is too high, and there is no lower bound.
    confidence : float, default=0.95
        Of the lower bound.
    polish : {"auto", "newton", "gradient", "none"}, default="auto"
        How the fit ends. ``"newton"`` reaches the tolerance in a few steps of ``O(n D^2 + D^3)``; ``"gradient"`` makes
        200 full gradient steps, which as a rule do not; ``"auto"`` is Newton's method up to 1024 features.
    tol : float, default=1e-6
        Frank-Wolfe gap at which Newton's method ends.
    max_iter : int, default=50
        Newton steps at most.
    callback : callable, optional
        Called after every epoch and every step of the polish with the last row of the history as a dict; not while
        ``radius="cv"`` tries the radii. What it raises ends the fit.
    random_state : None, int, numpy.random.Generator or numpy.random.RandomState, default=None
        For the split, the features and the minibatches.

    Attributes
    ----------
    value_ : float
        The estimate.
    train_value_ : float
        The functional on the training points.
    lower_bound_ : float
        Lower confidence bound on the divergence; nan if nothing was held out.
    fw_gap_ : float
        Proved distance of ``train_value_`` from the best critic in the ball.
    critic_ : LinearCritic
        The critic.
    certificates_ : tuple of Certificate
        The gap, the ball, and the lower bound, recomputed from the critic.
    history_ : dict of arrays
        One entry per epoch and step of the polish: ``iteration`` (from 0 in every phase), ``seconds`` since the search
        began, ``phase`` (armijo, newton or gradient), ``value``, ``fw_gap`` (nan where it was not computed) and
        ``step_size``.
    result_ : AlphaResult
        All of it.
    divergence_ : object
        What was estimated.
    classes_ : array of shape (2,)
        The labels, if it was fitted with labels: Q has the first, P the second.
    n_features_in_ : int
        Dimension of the points.
    feature_names_in_ : array of str
        Names of the columns, if they had names.

    Notes
    -----
    ``O((n + m) D d)`` time an epoch and ``O((n + m) D^2 + D^3)`` a Newton step, in memory for the features of two
    minibatches, a few ``D`` by ``D`` matrices and one row number (of four bytes) for every point; there is no Gram
    matrix. ``polish="gradient"`` keeps the values of the critic at all training points.

    Data: ``fit(P, Q)`` takes two samples, ``fit(X, y)`` one array and labels, so that it works in pipelines. A second
    argument with two dimensions is a sample if it has as many columns as the first, and labels otherwise.

    References
    ----------
    J. Wang, F. Zhang, L. Wang. Scalable and Stable Estimation of Amari alpha-Divergence using Random Fourier
    Features. ICML 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import AlphaDivergence
    >>> rng = np.random.default_rng(0)
    >>> P, Q = rng.normal(0.0, 1.0, (2000, 1)), rng.normal(1.0, 1.5, (2000, 1))
    >>> estimator = AlphaDivergence(alpha=0.5, n_features=64, random_state=0).fit(P, Q)
    >>> bool(abs(estimator.value_ - 0.4174) < 0.1), bool(estimator.lower_bound_ < 0.4174)
    (True, True)
    >>> all(certificate.holds for certificate in estimator.certificates_)
    True
    """

    def __init__(
        self,
        alpha: Any = 0.5,
        *,
        divergence: Any = None,
        n_features: Any = 256,
        length_scale: Any = "median",
        band: Any = 4.0,
        spectrum: Any = "gaussian",
        orthogonal: Any = False,
        radius: Any = 5.0,
        offset: Any = 5.0,
        batch_size: Any = 512,
        epochs: Any = "auto",
        average: Any = False,
        holdout: Any = 0.3,
        confidence: Any = 0.95,
        polish: Any = "auto",
        tol: Any = 1e-6,
        max_iter: Any = 50,
        callback: Any = None,
        random_state: Any = None,
    ):
        self.alpha = alpha
        self.divergence = divergence
        self.n_features = n_features
        self.length_scale = length_scale
        self.band = band
        self.spectrum = spectrum
        self.orthogonal = orthogonal
        self.radius = radius
        self.offset = offset
        self.batch_size = batch_size
        self.epochs = epochs
        self.average = average
        self.holdout = holdout
        self.confidence = confidence
        self.polish = polish
        self.tol = tol
        self.max_iter = max_iter
        self.callback = callback
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.classifier_tags = ClassifierTags(multi_class=False)
        return tags

    def fit(self, X: Any, y: Any = None) -> AlphaDivergence:
        """Fit the critic to two samples.

        Parameters
        ----------
        X : array_like of shape (n, d)
            The sample of P, or all points.
        y : array_like of shape (m, d) or (n,)
            The sample of Q, or two labels: points of the larger label are those of P.

        Returns
        -------
        AlphaDivergence
            Itself.

        Raises
        ------
        TypeError, ValueError
            If a parameter is out of range, there are fewer than 10 points of a law (2 with labels), a point is not
            finite, all points are the same, or there are not two labels.
        """
        divergence = self._check_parameters()
        P, Q = self._two_samples(X, y, reset=True)
        fewest = _FEWEST_LABELLED if hasattr(self, "classes_") else _FEWEST_POINTS
        for law, sample in (("P", P), ("Q", Q)):
            if len(sample) < fewest:
                raise ValueError(
                    f"there must be at least {fewest} points of each law, got n_samples = {len(sample)} of {law}"
                )
        rng = as_generator(self._seed(), "random_state")
        train_p, held_p = self._split(P, rng)
        train_q, held_q = self._split(Q, rng)
        pooled = np.concatenate([_points(train_p, 2000), _points(train_q, 2000)])
        scale = self._length_scale(pooled, rng)
        features = draw_random_features(
            P.shape[1],
            self.n_features,
            scale,
            rng,
            band=self.band,
            spectrum=self.spectrum,
            orthogonal=self.orthogonal,
            center=np.median(pooled, axis=0),
        )
        del pooled
        radius = self.radius
        if isinstance(radius, str):
            radius = self._choose_radius(divergence, train_p, train_q, features, rng)
        problem = CriticProblem(
            divergence, train_p, train_q, features, float(radius), float(self.offset), block_rows=self.batch_size
        )
        history = _History(self.callback)
        theta, ratio = self._maximise(problem, rng, history)
        critic = LinearCritic(theta[:-1], float(theta[-1]), features, float(radius), float(self.offset))
        self._conclude(problem, critic, (held_p, held_q), scale, history.columns(), ratio)
        return self

    def log_ratio(self, X: Any) -> Float[np.ndarray, " rows"]:
        """Estimate ``log p/q`` at points: the critic.

        Parameters
        ----------
        X : array_like of shape (n, d)
            The points.

        Returns
        -------
        array of shape (n,)

        Raises
        ------
        NotFittedError
            Before ``fit``.
        ValueError
            If the best critic of the divergence is something else.
        """
        check_is_fitted(self, "critic_")
        if not gives_log_ratio(self.divergence_):
            raise ValueError(
                f"log_ratio must be of a divergence whose best critic is log p/q, got {self.divergence_!r}; "
                "use critic_ instead"
            )
        return self.critic_(validate_data(self, X, reset=False, dtype=np.float64))

    def score(self, X: Any, y: Any = None) -> float:
        """The functional of the critic on new points: in expectation, a lower bound on the divergence.

        Parameters
        ----------
        X, y : array_like
            Two samples, or points and their labels, as in :meth:`fit`.

        Returns
        -------
        float
        """
        check_is_fitted(self, "critic_")
        P, Q = self._two_samples(X, y, reset=False)
        p_terms = self.divergence_.p_integrand(self.critic_(P))[0]
        return float(p_terms.mean() + self.divergence_.q_integrand(self.critic_(Q))[0].mean())

    def _check_parameters(self) -> CriticDivergence:
        if self.divergence is None:
            divergence: CriticDivergence = AmariDivergence(self.alpha)
        else:
            divergence = check_divergence(self.divergence)
        check_integer(self.n_features, "n_features", minimum=1)
        _check_real_or_word(self.length_scale, "length_scale", "median")
        if self.band is not None:
            check_real(self.band, "band", above=0)
        check_choice(self.spectrum, "spectrum", SPECTRA)
        _check_flag(self.orthogonal, "orthogonal")
        _check_flag(self.average, "average")
        _check_real_or_word(self.radius, "radius", "cv")
        offset = check_real(self.offset, "offset", minimum=0)
        largest = (max(RADII) if isinstance(self.radius, str) else float(self.radius)) * math.sqrt(2.0) + offset
        if largest > LARGEST_CRITIC:
            raise ValueError(
                f"radius * sqrt(2) + offset must be at most {LARGEST_CRITIC:g}, so that exponentials of the critic "
                f"stay finite, got {largest:g}"
            )
        check_integer(self.batch_size, "batch_size", minimum=1)
        if not (isinstance(self.epochs, str) and self.epochs == "auto"):
            if isinstance(self.epochs, str):
                raise ValueError(f"epochs must be an integer or 'auto', got {self.epochs!r}")
            check_integer(self.epochs, "epochs", minimum=0)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback must be callable, got {self.callback!r}")
        check_real(self.holdout, "holdout", minimum=0, below=1)
        check_real(self.confidence, "confidence", above=0, below=1)
        check_choice(self.polish, "polish", ("auto", "newton", "gradient", "none"))
        check_real(self.tol, "tol", above=0)
        check_integer(self.max_iter, "max_iter", minimum=0)
        return divergence

    def _seed(self) -> Any:
        """``random_state`` with the legacy generators of scikit-learn's world turned into a seed."""
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31 - 1))
        if isinstance(self.random_state, numbers.Integral | np.random.Generator) or self.random_state is None:
            return self.random_state
        raise TypeError(
            f"random_state must be None, a seed or a random generator, got {type(self.random_state).__name__}"
        )

    def _two_samples(
        self, X: Any, y: Any, *, reset: bool
    ) -> tuple[Float[np.ndarray, "rows_p dimension"], Float[np.ndarray, "rows_q dimension"]]:
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: "
                "pass a second sample or labels"
            )
        P = validate_data(self, X, dtype=np.float64, reset=reset)
        shape = np.shape(y)
        if len(shape) == 2 and shape[1] == P.shape[1]:
            if hasattr(y, "columns") and not hasattr(X, "columns"):
                y = np.asarray(y)
            Q = validate_data(self, y, dtype=np.float64, reset=False)
            if reset and hasattr(self, "classes_"):  # of an earlier fit with labels
                del self.classes_
            return P, Q
        if len(shape) == 2 and shape[1] > 1:
            raise ValueError(
                f"y must be a sample with as many columns as X, {P.shape[1]}, or a vector of labels, got shape {shape}"
            )
        if len(shape) == 2:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected; it is read as labels",
                DataConversionWarning,
                stacklevel=4,
            )
        labels = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"))
        if len(labels) != len(P):
            raise ValueError(f"y must have one label for each of the {len(P)} points, got {len(labels)} labels")
        check_classification_targets(labels)
        classes = np.unique(labels)
        if reset:
            if len(classes) != 2:
                raise ValueError(f"y must have two classes, got {len(classes)} class{'es' * (len(classes) != 1)}")
            self.classes_ = classes
        elif not hasattr(self, "classes_"):
            raise ValueError("y must be a sample of Q, since the estimator was fitted to two samples, got labels")
        elif len(classes) != 2 or (classes != self.classes_).any():
            raise ValueError(f"y must have the two classes {self.classes_.tolist()}, got {classes.tolist()}")
        return P[labels == self.classes_[1]], P[labels == self.classes_[0]]

    def _split(self, points: Float[np.ndarray, "rows dimension"], rng: np.random.Generator) -> tuple[Sample, Sample]:
        """Training and held-out rows; at least one of each, unless nothing is held out."""
        order = rng.permutation(row_numbers(len(points)))
        n_held = 0 if self.holdout == 0 else min(max(round(self.holdout * len(points)), 1), len(points) - 1)
        return Sample(points, order[n_held:]), Sample(points, order[:n_held])

    def _length_scale(self, pooled: Float[np.ndarray, "rows dimension"], rng: np.random.Generator) -> float:
        if not isinstance(self.length_scale, str):
            return float(self.length_scale)
        scale = median_distance(pooled, rng)
        if not scale > 0.0:
            raise ValueError(
                "length_scale must be positive, got a median distance of 0: most points are the same; pass a number"
            )
        if not math.isfinite(scale):
            raise ValueError("length_scale must be finite, got an infinite median distance: rescale the points")
        return scale

    def _choose_radius(
        self,
        divergence: CriticDivergence,
        train_p: Sample,
        train_q: Sample,
        features: RandomFeatures,
        rng: np.random.Generator,
    ) -> float:
        """The radius whose critic does best on 30 % of the training points; the held-out points must not be seen."""
        parts = []
        for sample in (train_p, train_q):
            n_validate = max(round(0.3 * len(sample)), 1)
            if n_validate >= len(sample):
                raise ValueError("radius='cv' must have at least 2 training points of each law")
            parts.append(
                (Sample(sample.points, sample.rows[n_validate:]), Sample(sample.points, sample.rows[:n_validate]))
            )
        (fit_p, validate_p), (fit_q, validate_q) = parts
        values = []
        for radius in RADII:
            problem = CriticProblem(
                divergence, fit_p, fit_q, features, radius, float(self.offset), block_rows=self.batch_size
            )
            theta, _ = self._maximise(problem, rng, _History(None))
            validation = CriticProblem(divergence, validate_p, validate_q, features, radius, float(self.offset))
            values.append(validation.expand(theta, stride=0)[0])
        return RADII[int(np.argmax(values))]

    def _maximise(
        self, problem: CriticProblem, rng: np.random.Generator, history: _History
    ) -> tuple[Float[np.ndarray, " parameters"], float | None]:
        """Stochastic ascent from the critic 0, then the polish; the curvature ratio, if Newton's method knows it."""
        polish = self.polish
        if polish == "auto":
            polish = "newton" if self.n_features <= _NEWTON_FEATURES else "gradient"
        epochs = self.epochs
        if isinstance(epochs, str):
            epochs = 0 if polish == "newton" else _EPOCHS
        theta = ascend_by_minibatches(
            problem,
            np.zeros(problem.n_parameters),
            batch_size=self.batch_size,
            epochs=epochs,
            average=self.average,
            rng=rng,
            record=history.phase("armijo"),
        ).theta
        if polish == "newton":
            newton = maximise_by_newton(
                problem, theta, tol=self.tol, max_iter=self.max_iter, record=history.phase("newton")
            )
            return newton.theta, _curvature_ratio(newton.curvature)
        if polish == "gradient":
            theta = ascend_by_gradient(problem, theta, _GRADIENT_STEPS, self.tol, history.phase("gradient")).theta
        return theta, None

    def _conclude(
        self,
        problem: CriticProblem,
        critic: LinearCritic,
        held: tuple[Sample, Sample],
        scale: float,
        history: dict[str, np.ndarray],
        ratio: float | None,
    ) -> None:
        divergence, theta = problem.divergence, critic.theta
        if ratio is None and self.n_features <= _NEWTON_FEATURES:  # with more it would take longer than the fit
            train_value, gradient, curvature = problem.expand(theta, hessian_stride(problem))
            ratio = _curvature_ratio(curvature)
        else:
            train_value, gradient, _ = problem.expand(theta, stride=0)
        fw_gap = problem.gap(theta, gradient)
        # Chosen on the training points, so that the bound stays valid.
        some = (Sample(sample.points, sample.rows[:_CLIP_POINTS]) for sample in (problem.P, problem.Q))
        scores = tuple(critic.on_sample(sample) for sample in some)
        clip = choose_clip(divergence, *scores, float(self.confidence), (len(held[0]), len(held[1])))
        if len(held[0]):
            held_scores = (critic.in_blocks(sample) for sample in held)
            outcome = evaluate_held_out(divergence, *held_scores, clip, float(self.confidence))
        else:
            outcome = HeldOut(train_value, math.nan, math.nan, math.nan)
        certificates = critic_certificates(
            divergence,
            critic,
            train=(problem.P, problem.Q),
            held_out=held if len(held[0]) else None,
            lower_bound=outcome.lower_bound,
            clip=clip,
            confidence=float(self.confidence),
            tol=float(self.tol),
        )
        self.result_ = AlphaResult(
            value=outcome.value,
            lower_bound=outcome.lower_bound,
            normal_lower_bound=outcome.normal_lower_bound,
            fw_gap=fw_gap,
            train_value=train_value,
            holdout=float(self.holdout),
            se=outcome.standard_error,
            curvature=math.nan if ratio is None else ratio,
            length_scale=scale,
            radius=critic.radius,
            critic=critic,
            certificates=certificates,
            history=history,
        )
        self.divergence_, self.critic_ = divergence, critic
        self.value_, self.train_value_ = outcome.value, train_value
        self.lower_bound_, self.fw_gap_ = outcome.lower_bound, fw_gap
        self.certificates_, self.history_ = certificates, dict(self.result_.history)
        if not fw_gap <= self.tol and self.polish in ("auto", "newton"):
            warnings.warn(
                f"AlphaDivergence did not reach tol={self.tol:g} (Frank-Wolfe gap {fw_gap:.3g}); "
                "the best critic is returned",
                SklearnConvergenceWarning,
                stacklevel=3,
            )


def _curvature_ratio(curvature: Any) -> float:
    """Smallest over largest eigenvalue; the matrix is overwritten."""
    eigenvalues = eigvalsh(curvature.T, check_finite=False, overwrite_a=True)
    return float(max(eigenvalues[0], 0.0) / eigenvalues[-1]) if eigenvalues[-1] > 0.0 else math.nan


class _History:
    """Rows of the history, handed to the callback as they come."""

    def __init__(self, callback: Callable[[dict[str, Any]], Any] | None):
        self.callback, self.rows, self.started = callback, [], time.perf_counter()

    def phase(self, name: str) -> Callable[[float, float, float], None]:
        """What records the iterates of a phase."""
        first = len(self.rows)

        def record(value: float, gap: float, step_size: float) -> None:
            row = (len(self.rows) - first, time.perf_counter() - self.started, name, value, gap, step_size)
            self.rows.append(row)
            if self.callback is not None:
                self.callback(dict(zip(_COLUMNS, row, strict=True)))

        return record

    def columns(self) -> dict[str, np.ndarray]:
        """The history as arrays of equal length."""
        dtypes = (int, float, "<U8", float, float, float)
        return {
            name: np.array([row[i] for row in self.rows], dtype=dtype)
            for i, (name, dtype) in enumerate(zip(_COLUMNS, dtypes, strict=True))
        }


def critic_certificates(
    divergence: CriticDivergence,
    critic: LinearCritic,
    *,
    train: tuple[Sample, Sample],
    held_out: tuple[Sample, Sample] | None,
    lower_bound: float,
    clip: float,
    confidence: float,
    tol: float,
) -> tuple[Certificate, ...]:
    """Evaluate what is promised of a critic, from the critic and the points alone.

    Parameters
    ----------
    divergence : object with p_integrand and q_integrand
        What was estimated.
    critic : LinearCritic
        The critic.
    train : tuple of Sample
        The points of P and Q that it was fitted to.
    held_out : tuple of Sample or None
        Those that it was not.
    lower_bound : float
        The bound that was reported.
    clip : float
        Where the critic was cut for it.
    confidence : float
        That of the bound.
    tol : float
        The Frank-Wolfe gap that was asked for.

    Returns
    -------
    tuple of Certificate
        The Frank-Wolfe gap, the norm of the weights and the constant relative to their bounds and, if points were held
        out, the lower bound.
    """
    gradient_w, gradient_c, concave = np.zeros_like(critic.weights), 0.0, True
    buffer = np.empty((_BLOCK_ROWS, len(critic.weights)))
    for sample, integrand in zip(train, (divergence.p_integrand, divergence.q_integrand), strict=True):
        for _, points in sample.blocks(_BLOCK_ROWS):
            features = critic.features.transform(points, out=buffer[: len(points)])
            _, slope, curvature = integrand(features @ critic.weights + critic.constant)
            concave &= bool((curvature <= 0.0).all())
            gradient_w += slope @ features / len(sample)
            gradient_c += float(slope.sum()) / len(sample)
    gap = critic.radius * float(np.linalg.norm(gradient_w)) - float(gradient_w @ critic.weights)
    gap += critic.offset * abs(gradient_c) - gradient_c * critic.constant
    excess = np.max([np.linalg.norm(critic.weights) / critic.radius - 1.0, abs(critic.constant) - critic.offset])
    certificates = [
        Certificate(
            "Frank-Wolfe gap: no critic in the ball has a training value that is higher by more",
            gap,
            tol,
            assumptions=(Assumption("the integrands are concave at the values of the critic", concave),),
        ),
        Certificate(
            "relative excess of the weights over the ball, or excess of the constant over its bound", excess, 1e-12
        ),
    ]
    if held_out is not None:
        scores = (critic.in_blocks(sample) for sample in held_out)
        recomputed = bernstein_lower_bound(divergence, *scores, clip, confidence)
        certificates.append(
            Certificate(
                f"lower bound on the divergence at {confidence:.4g} confidence, recomputed from the held-out points",
                recomputed,
                # The two sums are made in different order.
                lower_bound - 1e-9 * (1.0 + abs(lower_bound)),
                ">=",
                assumptions=(
                    Assumption("the points of each law are independent"),
                    Assumption("the held-out points are not among those that the critic was fitted to"),
                ),
            )
        )
    return tuple(certificates)


def alpha_divergence(P: ArrayLike, Q: ArrayLike, alpha: float = 0.5, **options: Any) -> AlphaResult:
    """Estimate Amari's alpha-divergence of the laws of two samples.

    Parameters
    ----------
    P : array_like of shape (n, d)
        Sample of the first law; a vector is one of dimension 1.
    Q : array_like of shape (m, d)
        Sample of the second.
    alpha : float, default=0.5
        In ``[0, 1]``: 1 is KL(P|Q), 0 is KL(Q|P).
    **options
        Parameters of :class:`AlphaDivergence`, and ``rng`` for its ``random_state``.

    Returns
    -------
    AlphaResult

    Raises
    ------
    TypeError, ValueError
        As in :meth:`AlphaDivergence.fit`.

    Notes
    -----
    See :class:`AlphaDivergence`.

    References
    ----------
    J. Wang, F. Zhang, L. Wang. Scalable and Stable Estimation of Amari alpha-Divergence using Random Fourier
    Features. ICML 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import alpha_divergence
    >>> rng = np.random.default_rng(0)
    >>> same = alpha_divergence(rng.normal(size=1000), rng.normal(size=1000), n_features=32, rng=0)
    >>> bool(same.lower_bound < 0 and abs(same.value) < 0.1)
    True
    """
    if "rng" in options:
        if "random_state" in options:
            raise TypeError("rng must not be given together with random_state")
        options["random_state"] = as_generator(options.pop("rng"))
    unknown = sorted(set(options) - set(AlphaDivergence().get_params()))
    if unknown:
        raise TypeError(f"options must be parameters of AlphaDivergence, got {', '.join(unknown)}")
    first, second = (as_float_array(sample, name, ndim=(1, 2)) for sample, name in ((P, "P"), (Q, "Q")))
    first, second = (sample[:, None] if sample.ndim == 1 else sample for sample in (first, second))
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"Q must have as many columns as P, {first.shape[1]}, got {second.shape[1]}")
    estimator = AlphaDivergence(alpha, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(first, second)
    for warning in caught:
        # Functions of this library speak of convergence in its own words, estimators in scikit-learn's.
        theirs = issubclass(warning.category, SklearnConvergenceWarning)
        warnings.warn(str(warning.message), ConvergenceWarning if theirs else warning.category, stacklevel=2)
    return estimator.result_


def _points(sample: Sample, limit: int) -> Float[np.ndarray, "rows dimension"]:
    """The first rows of a sample in random order, as many as there may be."""
    return sample.points[sample.rows[:limit]]


def _check_flag(flag: Any, name: str) -> None:
    if not isinstance(flag, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {flag!r}")


def _check_real_or_word(option: Any, name: str, word: str) -> None:
    if isinstance(option, str):
        if option != word:
            raise ValueError(f"{name} must be a positive number or {word!r}, got {option!r}")
    else:
        check_real(option, name, above=0)
