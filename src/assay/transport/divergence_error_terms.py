r"""Where the error of a kernel estimate of a divergence comes from, term by term.

The error is at most :math:`A(R) + B(R, D) + S(R, n) + O`: what the ball cannot express, what the random features
cannot, what the sample does not say, and what the optimiser left. The last is certified in every fit. The others are
measured here by fitting again: to parts of the sample, with other features, in other balls. Their promised rates
are :math:`n^{-1/2}` and :math:`D^{-1/2}`.
"""

from __future__ import annotations

import math
import numbers
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.transport.alpha_divergence import AlphaResult, alpha_divergence
from assay.transport.amari_divergence import AmariDivergence, CriticDivergence, check_divergence
from assay.transport.ball_newton import maximise_by_newton
from assay.transport.critic_training import ascend_by_gradient
from assay.transport.divergence_critic import CriticProblem, GivenFeatures, Sample
from assay.transport.random_features import draw_random_features, median_distance
from assay.validation import ConvergenceWarning, as_float_array, as_generator, check_integer, check_real

__all__ = ["ArmijoRate", "ErrorTerms", "armijo_rate", "divergence_error_terms"]

_FRACTIONS = (0.125, 0.25, 0.5, 1.0)
_RADIUS_FACTORS = (0.1, 0.2, 0.4, 1.0)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ErrorTerms(Result):
    """The error terms of an estimate.

    Parameters
    ----------
    statistical : array of shape (4,)
        Mean, over seeds, of the absolute difference of training and held-out value at 1/8, 1/4, 1/2 and all points.
    statistical_slope : float
        Exponent of the number of points in it; promised is -1/2 or less.
    feature : array of shape (2,)
        Standard deviation of the training value over draws of ``n_features`` and twice as many features.
    feature_slope : float
        Exponent of the number of features in it; promised is -1/2 or less, while this term is not negligible.
    radii : array of shape (4,)
        Radii, up to the one asked for.
    shortfall : array of shape (4,)
        Training value at the largest radius less that at these.
    optimisation : float
        Largest Frank-Wolfe gap of all these fits.
    certificates, history
        As in :class:`assay.result.Result`.
    """

    statistical: Float[np.ndarray, " sizes"]
    statistical_slope: float
    feature: Float[np.ndarray, " counts"]
    feature_slope: float
    radii: Float[np.ndarray, " radii"]
    shortfall: Float[np.ndarray, " radii"]
    optimisation: float


def divergence_error_terms(
    P: ArrayLike,
    Q: ArrayLike,
    alpha: float = 0.5,
    *,
    n_features: int = 256,
    radius: float = 5.0,
    n_seeds: int = 5,
    tol: float = 1e-6,
    rng: Any = None,
    **options: Any,
) -> ErrorTerms:
    """Measure the terms of the error of :func:`assay.transport.alpha_divergence` on two samples.

    Parameters
    ----------
    P : array_like of shape (n, d)
        Sample of the first law, of 80 points or more.
    Q : array_like of shape (m, d)
        Sample of the second.
    alpha : float, default=0.5
        In ``[0, 1]``.
    n_features : int, default=256
        Number of features ``D``; the feature term is measured at ``D`` and ``2 D``.
    radius : float, default=5.0
        Radius of the ball.
    n_seeds : int, default=5
        Fits of every kind.
    tol : float, default=1e-6
        Frank-Wolfe gap of every fit.
    rng : None, int or numpy.random.Generator, default=None
        Where parts of the samples and seeds come from.
    **options
        Other parameters of :class:`assay.transport.AlphaDivergence`.

    Returns
    -------
    ErrorTerms

    Raises
    ------
    TypeError, ValueError
        As in :func:`assay.transport.alpha_divergence`, or if there are fewer than 80 points of a law or 2 seeds.

    Notes
    -----
    The price of ``6 * n_seeds + 4`` fits.

    References
    ----------
    J. Wang, F. Zhang, L. Wang. Scalable and Stable Estimation of Amari alpha-Divergence using Random Fourier
    Features. ICML 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.divergence_error_terms import divergence_error_terms
    >>> rng = np.random.default_rng(0)
    >>> P, Q = rng.normal(0.0, 1.0, (800, 1)), rng.normal(0.5, 1.2, (800, 1))
    >>> terms = divergence_error_terms(P, Q, n_features=16, epochs=0, n_seeds=2, rng=0)
    >>> bool(terms.optimisation <= 1e-6 and np.all(np.diff(terms.shortfall) <= 1e-6))
    True
    """
    first, second = (as_float_array(sample, name, ndim=(1, 2)) for sample, name in ((P, "P"), (Q, "Q")))
    fewest = math.ceil(10 / _FRACTIONS[0])
    for name, sample in (("P", first), ("Q", second)):
        if len(sample) < fewest:
            raise ValueError(f"{name} must have at least {fewest} points, got {len(sample)}")
    check_integer(n_seeds, "n_seeds", minimum=2)
    check_integer(n_features, "n_features", minimum=1)
    check_real(radius, "radius", above=0)
    generator = as_generator(rng)

    def fit(size: float, features: int, bound: float, seed: int, rows: int) -> AlphaResult:
        order = np.random.default_rng(rows)
        parts = (
            sample[order.permutation(len(sample))[: max(10, round(size * len(sample)))]] for sample in (first, second)
        )
        return alpha_divergence(*parts, alpha, n_features=features, radius=bound, tol=tol, random_state=seed, **options)

    gaps, seeds = [], generator.integers(2**31, size=(n_seeds, 2)).tolist()
    statistical = np.zeros((len(_FRACTIONS), n_seeds))
    feature = np.zeros((2, n_seeds))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the certificate says it
        for j, (seed, rows) in enumerate(seeds):
            for i, size in enumerate(_FRACTIONS):
                result = fit(size, n_features, radius, seed, rows)
                statistical[i, j] = abs(result.train_value - result.value)
                gaps.append(result.fw_gap)
            # The same points every time, without a split, so that nothing but the features is another.
            for i, factor in enumerate((1, 2)):
                result = alpha_divergence(
                    first,
                    second,
                    alpha,
                    n_features=factor * n_features,
                    radius=radius,
                    tol=tol,
                    random_state=seed,
                    **{**options, "holdout": 0.0},
                )
                feature[i, j] = result.train_value
                gaps.append(result.fw_gap)
        radii = radius * np.array(_RADIUS_FACTORS)
        by_radius = [fit(1.0, n_features, float(bound), *seeds[0]) for bound in radii]
    gaps.extend(result.fw_gap for result in by_radius)
    reached = np.array([result.train_value for result in by_radius])
    mean_gap, spread = statistical.mean(axis=1), feature.std(axis=1, ddof=1)
    statistical_slope = _slope(np.array(_FRACTIONS), mean_gap)
    feature_slope = _slope(np.array([1.0, 2.0]), spread)
    certificates = (
        Certificate("Frank-Wolfe gap, the largest of all fits", max(gaps), tol),
        Certificate(
            "exponent of the number of points in the difference of training and held-out value",
            statistical_slope,
            -0.5,
            assumptions=(Assumption("the points of each law are independent"),),
        ),
        Certificate(
            "exponent of the number of features in the standard deviation over their draws",
            feature_slope,
            -0.5,
            assumptions=(Assumption("the features are few enough that other terms do not dominate"),),
        ),
    )
    return ErrorTerms(
        statistical=mean_gap,
        statistical_slope=statistical_slope,
        feature=spread,
        feature_slope=feature_slope,
        radii=radii,
        shortfall=reached[-1] - reached,
        optimisation=max(gaps),
        certificates=certificates,
    )


def _slope(x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]) -> float:
    """Exponent of a power law through positive numbers; nan if one is not."""
    if not (y > 0.0).all():
        return math.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ArmijoRate(Result):
    """How fast the Armijo search converges on all points, against what the Hessian predicts.

    Parameters
    ----------
    fitted_factor : float
        Factor by which the distance of the functional to its maximum falls in a step, fitted to the later half.
    predicted_factor : float
        One less the smallest over the largest eigenvalue of the Hessian at the maximum.
    n_iter : int
        Steps that were made.
    certificates, history
        As in :class:`assay.result.Result`; the history has the distance to the maximum.
    """

    fitted_factor: float
    predicted_factor: float
    n_iter: int


def armijo_rate(
    P: ArrayLike,
    Q: ArrayLike,
    alpha: float | CriticDivergence = 0.5,
    *,
    n_features: int = 20,
    ridge: float = 1e-3,
    radius: float = 50.0,
    max_iter: int = 1000,
    rng: Any = None,
) -> ArmijoRate:
    """Compare the linear rate of full Armijo ascent with the condition of the Hessian.

    Parameters
    ----------
    P, Q : array_like of shapes (n, d) and (m, d)
        The samples.
    alpha : float or object with p_integrand and q_integrand, default=0.5
        In ``[0, 1]``, or another divergence.
    n_features : int, default=20
        Few, so that the Hessian is definite.
    ridge : float, default=1e-3
        Half of it times the squared norm of the parameters is subtracted.
    radius : float, default=50.0
        Of a ball that should not be active.
    max_iter : int, default=1000
        Steps of the ascent.
    rng : None, int or numpy.random.Generator, default=None
        For the features.

    Returns
    -------
    ArmijoRate

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.divergence_error_terms import armijo_rate
    >>> rng = np.random.default_rng(0)
    >>> rate = armijo_rate(rng.normal(0, 1, 500), rng.normal(0.5, 1, 500), n_features=5, max_iter=200, rng=0)
    >>> rate.certified
    True
    """
    first, second = (as_float_array(sample, name, ndim=(1, 2)) for sample, name in ((P, "P"), (Q, "Q")))
    first, second = (sample[:, None] if sample.ndim == 1 else sample for sample in (first, second))
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"Q must have as many columns as P, {first.shape[1]}, got {second.shape[1]}")
    divergence: Any = AmariDivergence(alpha) if isinstance(alpha, numbers.Real) else check_divergence(alpha, "alpha")
    check_integer(n_features, "n_features", minimum=1)
    check_integer(max_iter, "max_iter", minimum=4)
    check_real(ridge, "ridge", above=0)
    check_real(radius, "radius", above=0)
    generator = as_generator(rng)
    pooled = np.concatenate([first, second])
    scale = median_distance(pooled, generator)
    if not 0.0 < scale < math.inf:
        raise ValueError(f"P and Q must have points at a positive finite median distance, got {scale:g}")
    features = draw_random_features(first.shape[1], n_features, scale, generator, center=np.median(pooled, axis=0))
    # So few features fit into memory, and every one of the many steps needs them.
    problem = CriticProblem(
        divergence,
        Sample.whole(features.transform(first)),
        Sample.whole(features.transform(second)),
        GivenFeatures(n_features),
        radius,
        5.0,
        ridge,
        block_rows=4096,
    )
    start = np.zeros(problem.n_parameters)
    optimum = maximise_by_newton(problem, start, tol=1e-13, max_iter=100)
    scores = problem.scores(optimum.theta)
    eigenvalues = np.linalg.eigvalsh(optimum.curvature)
    run = ascend_by_gradient(problem, start, max_iter)
    distance = problem.value(optimum.theta, scores) - run.values
    # Below this the distance is made of rounding.
    resolved = np.flatnonzero(distance > 1e-11)
    last = int(resolved[-1]) if len(resolved) else 0
    middle = last // 2
    fitted = float((distance[last] / distance[middle]) ** (1.0 / (last - middle))) if last > middle else math.nan
    predicted = 1.0 - float(eigenvalues[0] / eigenvalues[-1])
    # On the boundary up to rounding is on the boundary.
    used = max(float(np.linalg.norm(optimum.theta[:-1])) / radius, abs(float(optimum.theta[-1])) / 5.0)
    inside = used < 1.0 - 1e-9
    return ArmijoRate(
        fitted_factor=fitted,
        predicted_factor=predicted,
        n_iter=len(run.values) - 1,
        certificates=(
            Certificate(
                "factor of the distance to the maximum in an Armijo step, against that of the Hessian",
                fitted,
                predicted,
                assumptions=(Assumption("the maximum is inside the ball", inside),),
            ),
        ),
        history={"iteration": np.arange(len(distance)), "distance": distance},
    )
