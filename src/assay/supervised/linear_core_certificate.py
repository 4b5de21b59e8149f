r"""Whether a surrogate loss keeps its promise: how much excess risk does an excess error cost at least?

Take one example whose label is positive with probability :math:`(1 + \theta) / 2`. Predicting the wrong sign costs
``theta`` in error. What it costs at least in the surrogate is the calibration gap

.. math:: \delta(\theta) = \inf_{t \le 0} C_\theta(t) - \inf_t C_\theta(t), \qquad
          C_\theta(t) = \tfrac{1+\theta}{2} \Phi(t) + \tfrac{1-\theta}{2} \Phi(-t) .

A loss is linearly consistent when ``delta(theta) / theta`` stays away from zero. For the hinge it is 1, for the
logistic loss it vanishes with ``theta``, and for the linear core it is at least ``tau``. Everything here is measured:
the infima by numerical minimisation of whatever loss is given, the slopes by differences, the risks on the scores and
labels at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.supervised.linear_core import LinearCoreTail, linear_core, resolve_tail
from assay.supervised.linear_core_loss import LinearCoreLoss
from assay.validation import as_float_array, check_integer, check_real

__all__ = ["ConsistencyReport", "calibration_gap", "consistency_certificate", "consistency_constant_certificate"]

_GOLDEN = 0.5 * (np.sqrt(5.0) - 1.0)
_ROUNDING = 1e-12
_EPSILON = float(np.finfo(float).eps)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ConsistencyReport(Result):
    """What was measured about a loss, and about scores on data.

    Parameters
    ----------
    theta : numpy.ndarray of shape (n_laws,)
        Differences of the probabilities of the two labels.
    calibration : numpy.ndarray of shape (n_laws,)
        Least excess surrogate risk of a wrong prediction at each ``theta``.
    excess_error : float
        Error of the scores above the least possible one under the label probabilities; nan without scores.
    excess_risk : float
        The same for the surrogate risk.
    certificates : tuple of Certificate
        Smoothness, convexity, the constant, and the bound on the data.
    """

    theta: Float[np.ndarray, " n_laws"]
    calibration: Float[np.ndarray, " n_laws"]
    excess_error: float
    excess_risk: float


def calibration_gap(margin_loss: Callable[[np.ndarray], np.ndarray], theta: ArrayLike) -> Float[np.ndarray, " n_laws"]:
    r"""Least excess surrogate risk of predicting the wrong sign, by numerical minimisation.

    Parameters
    ----------
    margin_loss : callable
        Maps an array of margins to their losses; convex.
    theta : array_like of shape (n_laws,)
        Differences ``P(y = 1) - P(y = -1)`` in ``(0, 1]``.

    Returns
    -------
    numpy.ndarray of shape (n_laws,)
        :math:`\inf_{t \le 0} C_\theta(t) - \inf_t C_\theta(t)`.

    Raises
    ------
    TypeError, ValueError
        If ``theta`` is not a finite vector in ``(0, 1]``.

    Notes
    -----
    On each side of 0 a grid of powers of 256, which covers all scales of double precision, and golden-section search
    around its best point, vectorised over ``theta``; about 700 evaluations of the loss on arrays of the size of
    ``theta``. The loss may overflow to infinity at margins of up to 1e300 in size.

    References
    ----------
    P. L. Bartlett, M. I. Jordan, J. D. McAuliffe. Convexity, Classification, and Risk Bounds. Journal of the American
    Statistical Association, 2006.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import calibration_gap
    >>> def hinge(t):
    ...     return np.maximum(1 - t, 0)
    >>> def logistic(t):
    ...     return np.logaddexp(0, -t)
    >>> calibration_gap(hinge, [0.01, 0.1]).round(6).tolist()
    [0.01, 0.1]
    >>> calibration_gap(logistic, [0.01, 0.1]).round(6).tolist()
    [5e-05, 0.005008]
    """
    laws = as_float_array(theta, "theta", ndim=1)
    if laws.min() <= 0.0 or laws.max() > 1.0:
        raise ValueError(f"theta must be in (0, 1], got values in [{laws.min():g}, {laws.max():g}]")

    def risk(margin: np.ndarray) -> np.ndarray:
        # A label that never occurs has no share in the risk, not even an infinite loss.
        rare = np.where(laws < 1.0, 0.5 * (1.0 - laws) * margin_loss(-margin), 0.0)
        return 0.5 * (1.0 + laws) * margin_loss(margin) + rare

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wrong = _least_on_half_line(lambda distance: risk(-distance), laws.shape)
        right = _least_on_half_line(risk, laws.shape)
    return wrong - np.minimum(wrong, right)


def consistency_constant_certificate(
    tau: float = 0.7, sigma: float = 0.3, tail: str | LinearCoreTail = "exp"
) -> Certificate:
    """Certify the linear rate of a linear-core loss on a grid of 1000 label laws.

    Parameters
    ----------
    tau, sigma, tail
        As in :func:`~assay.supervised.linear_core`.

    Returns
    -------
    Certificate
        The least ratio of excess risk to excess error, at least ``tau``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`~assay.supervised.linear_core`.

    Examples
    --------
    >>> from assay.supervised.linear_core_certificate import consistency_constant_certificate
    >>> print(consistency_constant_certificate(tau=0.5))
    holds: least ratio of excess surrogate risk to excess error, over 1000 label laws: 0.5003 >= 0.499999 [if the
    scores can take every value in [-0.5, 0.5] (not checked)]
    """
    tau, sigma, curve = check_real(tau, "tau", above=0), check_real(sigma, "sigma", above=0), resolve_tail(tail)
    theta, gap = _gap_on_grid(tau, sigma, curve)
    return Certificate(
        "least ratio of excess surrogate risk to excess error, over 1000 label laws",
        float(np.min(gap / theta)),
        tau * (1.0 - 1e-6),
        ">=",
        (Assumption(f"the scores can take every value in [-{tau:g}, {tau:g}]"),),
    )


def consistency_certificate(
    loss: LinearCoreLoss,
    scores: ArrayLike | torch.Tensor | None = None,
    y: ArrayLike | torch.Tensor | None = None,
    *,
    probabilities: ArrayLike | torch.Tensor | None = None,
    n_bins: int = 10,
) -> ConsistencyReport:
    r"""Check smoothness, convexity and linear consistency of a loss, and its bound on scores and labels.

    Parameters
    ----------
    loss : LinearCoreLoss
        The loss that was trained with.
    scores : array_like or torch.Tensor of shape (n_samples, n_classes), or (n_samples,) for binary, optional
        Scores on a hold-out set. Without them only the loss itself is checked.
    y : array_like or torch.Tensor of shape (n_samples,), optional
        Labels of the hold-out set: class indices, or for binary in {-1, 1} or {0, 1}. Used when there are no
        ``probabilities``.
    probabilities : array_like or torch.Tensor of shape (n_samples, n_classes), optional
        The true probabilities of the labels of every sample, when they are known, as in a simulation. For binary
        the two columns are of the negative and the positive label.
    n_bins : int, default=10
        Without ``probabilities`` they are estimated: samples of one predicted class are cut into this many bins by
        how far its score is ahead, and get the frequencies of the labels in their bin.

    Returns
    -------
    ConsistencyReport
        With the certificates

        1. greatest difference between the differentiated loss and its difference quotient, as a share of what
           curvature and rounding explain; it fails when the tail is too narrow for double precision to show,
        2. least second difference, relative to the size of the loss (convexity),
        3. least ratio of excess risk to excess error over label laws: for ``constrained=False`` and more than two
           classes, over laws of three classes with a near tie, where it fails,
        4. excess error of the scores at most :math:`1 / \tau` times their excess risk.

    Raises
    ------
    TypeError
        If ``loss`` is not a ``LinearCoreLoss``, or an array is not numeric.
    ValueError
        If shapes do not fit, scores have nan or infinite entries, labels are not classes, or probabilities do not
        sum to 1.

    Notes
    -----
    The least risk that excess is counted from is evaluated at a feasible point, so the excess risk is never
    overstated. The bound is one for every example, hence for every average of them; class weights would change which
    error it is about, so a loss with weights is refused. O(n_samples n_classes log n_classes).

    References
    ----------
    M. Mohri, Y. Zhong. Linear-Core Surrogates: Smooth Loss Functions with Linear Rates for Classification and
    Structured Prediction. ICML 2026. arXiv:2604.27742.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import LinearCoreLoss, consistency_certificate
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=(200, 3))
    >>> report = consistency_certificate(LinearCoreLoss(), scores, rng.integers(0, 3, 200))
    >>> report.certified
    True
    >>> wrong = consistency_certificate(LinearCoreLoss(constrained=False))
    >>> [certificate.holds for certificate in wrong.certificates]
    [True, True, False]
    """
    if not isinstance(loss, LinearCoreLoss):
        raise TypeError(f"loss must be a LinearCoreLoss, got {type(loss).__name__}")
    if loss.weight is not None:
        raise ValueError("loss must have no class weights: with them the bound is about a weighted error")
    n_bins = check_integer(n_bins, "n_bins", minimum=1)
    theta, gap = _gap_on_grid(loss.tau, loss.sigma, loss.tail)
    certificates = list(_smoothness_certificates(loss))
    if loss.constrained or loss.mode == "binary":
        certificates.append(consistency_constant_certificate(loss.tau, loss.sigma, loss.tail))
    else:
        certificates.append(
            Certificate(
                "least ratio of excess surrogate risk to excess error, over laws of three classes near a tie",
                _pairwise_ratio_near_ties(loss),
                loss.tau * (1.0 - 1e-6),
                ">=",
            )
        )
    excess_error = excess_risk = float("nan")
    if scores is not None:
        score_rows = _score_rows(loss, scores)
        if probabilities is not None:
            laws, known = _label_laws(probabilities, score_rows.shape), True
        elif y is not None:
            laws, known = _binned_laws(score_rows, _label_codes(loss, y, score_rows.shape), n_bins), False
        else:
            raise ValueError("y or probabilities must be given with scores, got neither")
        excess_error, excess_risk, rounding = _excess(loss, score_rows, laws)
        how = "are the true ones" if known else f"are their frequencies in {n_bins} bins of the scores per class"
        certificates.append(
            Certificate(
                "excess error of the scores, against excess surrogate risk / tau",
                excess_error,
                (excess_risk + rounding) / loss.tau,
                assumptions=(Assumption(f"the label probabilities {how}"),),
            )
        )
    elif y is not None or probabilities is not None:
        raise ValueError("scores must be given with y or probabilities, got None")
    return ConsistencyReport(
        theta=theta,
        calibration=gap,
        excess_error=excess_error,
        excess_risk=excess_risk,
        certificates=tuple(certificates),
    )


@lru_cache(maxsize=32)
def _gap_on_grid(tau: float, sigma: float, tail: LinearCoreTail) -> tuple[np.ndarray, np.ndarray]:
    theta = np.linspace(0.001, 1.0, 1000)
    gap = calibration_gap(partial(linear_core, tau=tau, sigma=sigma, tail=tail), theta)
    for array in (theta, gap):
        array.setflags(write=False)
    return theta, gap


def _least_on_half_line(function: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Least values of convex functions on ``[0, inf)``, one per entry, by golden section."""
    # The scale of the minimum is not known, and slopes vanish in rounding both far from it and close to 0.
    scales = 256.0 ** np.arange(-124, 125)
    values = np.stack([function(np.full(shape, scale)) for scale in scales])
    around = scales[np.where(np.isnan(values), np.inf, values).argmin(axis=0)]
    low, high = np.where(around == scales[0], 0.0, around / 256.0), 256.0 * around
    inner, outer = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_inner, at_outer = function(inner), function(outer)
    least = np.fmin.reduce([function(np.zeros(shape)), *values, function(high), at_inner, at_outer])
    for _ in range(90):
        left = at_inner <= at_outer
        low, high = np.where(left, low, inner), np.where(left, outer, high)
        new = np.where(left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_new = function(new)
        inner, outer = np.where(left, new, outer), np.where(left, inner, new)
        at_inner, at_outer = np.where(left, at_new, at_outer), np.where(left, at_inner, at_new)
        least = np.fmin(least, at_new)
    return least


def _smoothness_certificates(loss: LinearCoreLoss) -> tuple[Certificate, Certificate]:
    """Difference quotients of the margin loss against autograd, and its second differences."""
    tau, sigma = loss.tau, loss.sigma
    # One grid in units of the margin, and one in units of the tail, which may be much narrower or wider.
    wide, tail = np.linspace(-2.0 - tau, tau + 10.0 * sigma, 4001), tau + sigma * np.linspace(-1.0, 10.0, 4001)
    points = np.concatenate([wide, tail, [tau]])
    size = np.abs(points) + tau + sigma
    # Where errors of curvature, which grow with the step, and of rounding, which fall with it, are alike. Multiples of
    # a power of two are equally spaced to the last bit.
    step = 2.0 ** np.floor(np.log2(np.sqrt(_EPSILON) * np.sqrt(size) * np.sqrt(sigma)))
    # Steps of half a spacing leave no place where the slope could jump unseen.
    shares = [
        _slope_error(loss, np.round(points / step) * step, step),
        _slope_error(loss, tail, np.full(tail.shape, 5.5 / 4000 * sigma)),
    ]
    second = []
    for grid in (wide, tail):
        losses = linear_core(grid, tau, sigma, loss.tail)
        second.append(np.diff(losses, 2).min() / (losses.max() + np.abs(grid).max()))
    return (
        Certificate(
            "greatest difference of slope and difference quotient of the margin loss, over what curvature and "
            "rounding explain",
            max(shares),
            1.0,
        ),
        Certificate(
            "least second difference of the margin loss, relative to its size", float(min(second)), -1e-12, ">="
        ),
    )


def _slope_error(loss: LinearCoreLoss, points: np.ndarray, step: np.ndarray) -> float:
    """Greatest difference of the differentiated loss and its difference quotients, as a share of what it may be."""
    tensor = torch.from_numpy(points).requires_grad_(True)
    (slope,) = torch.autograd.grad(linear_core(tensor, loss.tau, loss.sigma, loss.tail).sum(), tensor)
    below, above = (linear_core(points + shift, loss.tau, loss.sigma, loss.tail) for shift in (-step, step))
    error = np.abs((above - below) / (2.0 * step) - slope.numpy())
    # Central differences of a function whose slope has Lipschitz constant c are within c * step / 2, and slopes are in
    # [-1, 0]: an error that may be large would say nothing.
    rounding = 8.0 * _EPSILON * (np.abs(points) + loss.tau + loss.sigma) / step
    bound = np.minimum(loss.tail.curvature / loss.sigma * step + rounding, 0.1)
    return float((error / bound).max())


def _pairwise_ratio_near_ties(loss: LinearCoreLoss) -> float:
    """Least ratio of excess risk to excess error of scores that tie two nearly equally likely classes."""
    per_sample = _per_sample(loss)
    labels = torch.arange(3)
    ratios = []
    # The ratio falls with the lead, in proportion to the width of the tail.
    nearest = min(1.0, loss.tau / loss.sigma)
    for lead in (1e-1 * nearest, 1e-2 * nearest, 1e-3 * nearest):
        law = torch.tensor([0.4 + lead / 2, 0.4 - lead / 2, 0.2], dtype=torch.float64)

        def risk(point: np.ndarray, basis: torch.Tensor, law: torch.Tensor = law) -> tuple[float, np.ndarray]:
            variables = torch.from_numpy(point).requires_grad_(True)
            value = law @ per_sample((variables @ basis).expand(3, 3), labels)
            (gradient,) = torch.autograd.grad(value, variables)
            return value.item(), gradient.numpy()

        # Scores that tie the first two classes may predict the second; the best scores may do all but shift.
        together = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
        apart = torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]], dtype=torch.float64)
        tied = minimize(risk, np.ones(1), args=(together,), jac=True, method="BFGS", options={"gtol": 1e-12})
        free = minimize(risk, np.append(tied.x, 0.0), args=(apart,), jac=True, method="BFGS", options={"gtol": 1e-12})
        ratios.append(max(tied.fun - free.fun, 0.0) / lead)
    return min(ratios)


def _per_sample(loss: LinearCoreLoss) -> LinearCoreLoss:
    return LinearCoreLoss(
        loss.tau,
        loss.sigma,
        loss.tail,
        mode=loss.mode,
        reduction="none",
        score_scale=loss.score_scale,
        constrained=loss.constrained,
    )


def _excess(loss: LinearCoreLoss, scores: np.ndarray, laws: np.ndarray) -> tuple[float, float, float]:
    """Mean excess error and mean excess risk of scores under the law of every sample, and its rounding."""
    per_sample = _per_sample(loss)
    everyone = np.arange(len(laws))
    best = laws.argmax(axis=1)
    # At the least risk every class has the same product of cost and slope, namely the cost of the best class.
    costs = 1.0 - laws
    steepness = np.divide(costs[everyone, best][:, None], costs, out=np.ones_like(costs), where=costs > 0)
    below = -(loss.tau + loss.sigma * loss.tail.invert(np.clip(steepness, 0.0, 1.0)))
    if loss.mode == "binary":
        predicted = (scores > 0).astype(int)
        best_scores = np.where(best == 1, -below[:, 0], below[:, 1])
        shares = torch.from_numpy(laws)

        def risk(points: np.ndarray) -> np.ndarray:
            tensor = torch.from_numpy(points)
            sides = [per_sample(tensor, torch.full(tensor.shape, side)) for side in (0, 1)]
            return (shares * torch.stack(sides, dim=1)).sum(1).numpy()

    else:
        predicted = scores.argmax(axis=1)
        # Twice, since the first time leaves a rounding error of the size of the offset, which the loss would see.
        for _ in range(2):
            scores = scores - scores.mean(axis=1, keepdims=True)
        below[everyone, best] = 0.0
        below[everyone, best] = -below.sum(axis=1)
        best_scores = below

        def risk(points: np.ndarray) -> np.ndarray:
            return per_sample(torch.from_numpy(points), torch.from_numpy(laws)).numpy()

    excess_error = laws[everyone, best] - laws[everyone, predicted]
    risks, least = risk(scores), risk(best_scores / loss.score_scale)
    rounding = _ROUNDING * max(1.0, float(least.mean()))
    return float(excess_error.mean()), float((risks - least).mean()), rounding


def _score_rows(loss: LinearCoreLoss, scores: ArrayLike | torch.Tensor) -> np.ndarray:
    if loss.mode == "binary":
        return as_float_array(scores, "scores", ndim=1)
    if not loss.constrained:
        raise ValueError("scores must be None for a loss with constrained=False: it has no bound to check on them")
    rows = as_float_array(scores, "scores", ndim=2)
    if rows.shape[1] < 2:
        raise ValueError(f"scores must have at least 2 columns, got shape {rows.shape}")
    return rows


def _label_codes(loss: LinearCoreLoss, y: ArrayLike | torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    labels = as_float_array(y, "y", ndim=1)
    if labels.shape[0] != shape[0]:
        raise ValueError(f"y must have length {shape[0]}, got {labels.shape[0]}")
    values = set(np.unique(labels))
    if loss.mode == "binary":
        if not (values <= {0.0, 1.0} or values <= {-1.0, 1.0}):
            raise ValueError(f"y must have values in {{-1, 1}} or in {{0, 1}}, got {sorted(values)[:5]}")
        return (labels == 1.0).astype(int)
    if not values <= set(map(float, range(shape[1]))):
        raise ValueError(f"y must have integer labels in [0, {shape[1]}), got {sorted(values)[:5]}")
    return labels.astype(int)


def _label_laws(probabilities: ArrayLike | torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    laws = as_float_array(probabilities, "probabilities", ndim=2)
    wanted = shape if len(shape) == 2 else (shape[0], 2)
    if laws.shape != wanted:
        raise ValueError(f"probabilities must have shape {wanted}, got {laws.shape}")
    if laws.min() < 0.0 or np.abs(laws.sum(axis=1) - 1.0).max() > 1e-6:
        raise ValueError("probabilities must be non-negative with rows that sum to 1 (within 1e-06), got others")
    return laws / laws.sum(axis=1, keepdims=True)


def _binned_laws(scores: np.ndarray, labels: np.ndarray, n_bins: int) -> np.ndarray:
    """Frequencies of the labels among the samples of the same predicted class with a similar lead."""
    columns = np.column_stack([-scores, scores]) if scores.ndim == 1 else scores
    predicted = columns.argmax(axis=1)
    ordered = np.sort(columns, axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    laws = np.empty(columns.shape)
    for label in np.unique(predicted):
        members = np.flatnonzero(predicted == label)
        members = members[np.argsort(lead[members], kind="stable")]
        for cell in np.array_split(members, min(n_bins, len(members))):
            laws[cell] = np.bincount(labels[cell], minlength=columns.shape[1]) / len(cell)
    return laws
