"""Whether held-out pairs agree with what a trained preference model says about them.

A trained difference of rewards stands for a probability, that of the choice model which the loss implies.
:func:`certify_preference_fit` holds these probabilities against the frequencies that were observed, bin by bin, and
looks for margins at which the loss is not what it should be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.stats import norm

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.supervised.choice_models import ImpliedChoiceModel, resolve_choice
from assay.supervised.preference_psi import MarginLoss, resolve_psi, slope_rounding
from assay.validation import as_float_array, check_integer, check_real

__all__ = ["PreferenceFit", "certify_preference_fit", "check_pairs"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PreferenceFit(Result):
    """How well a trained model describes held-out pairs.

    Parameters
    ----------
    n_pairs : int
        Pairs with an order.
    accuracy : float
        Share of them that the model orders as observed; a tie of the model counts half.
    calibration_error : float
        Mean distance between the predicted probability and the observed frequency of the response that the model
        favours, over bins, weighted by the number of pairs.
    outside : float
        Share of pairs with so large a margin, to whichever side, that the loss increases with it.
    abstention_rate : float
        Share of all pairs that tie.
    bin_count : numpy.ndarray of shape (n_bins,)
        Pairs in each bin of the predicted probability, bins of equal width from 1/2 to 1.
    bin_predicted, bin_frequency : numpy.ndarray of shape (n_bins,)
        Mean prediction and observed frequency; nan for an empty bin.
    bin_lower, bin_upper : numpy.ndarray of shape (n_bins,)
        Wilson interval of the frequency.
    certificates : tuple of Certificate
        Calibration, range, misordered pairs against the loss and, with ties, their rate.
    """

    n_pairs: int
    accuracy: float
    calibration_error: float
    outside: float
    abstention_rate: float
    bin_count: Int[np.ndarray, " bins"]
    bin_predicted: Float[np.ndarray, " bins"]
    bin_frequency: Float[np.ndarray, " bins"]
    bin_lower: Float[np.ndarray, " bins"]
    bin_upper: Float[np.ndarray, " bins"]


def certify_preference_fit(
    model: Any,
    pairs: ArrayLike | None = None,
    X: Any = None,
    *,
    psi: Any = None,
    choice: Any = None,
    tie: ArrayLike | None = None,
    n_bins: int = 10,
    confidence: float = 0.95,
    tol: float | None = None,
) -> PreferenceFit:
    """Hold the probabilities of a trained model against held-out pairs.

    Parameters
    ----------
    model : array_like or estimator
        Differences of rewards, chosen minus rejected, one per pair (``pairs=None``); scores of items; or an estimator
        such as :class:`~assay.supervised.PreferenceRanker` whose ``predict(X)`` gives them.
    pairs : array_like of int of shape (n_pairs, 2), optional
        Winner and loser of each pair, as indices of items.
    X : array_like, optional
        Items, for an estimator.
    psi : str, callable or object, optional
        The loss that was trained with, with its margin and smoothing (``PreferenceLoss.effective_psi()``); that of the
        estimator by default, else logistic.
    choice : str, ChoiceModel, object or pair of callables, optional
        What turns a difference of rewards into a probability; the model implied by the loss by default. Give the
        declared model when it was trained on ties, too.
    tie : array_like of bool of shape (n_pairs,), optional
        Pairs without an order.
    n_bins : int, default=10
        Bins of the predicted probability.
    confidence : float, default=0.95
        Of the intervals.
    tol : float, optional
        Calibration error that is accepted. By default what chance explains: the error of a calibrated model is below
        it with probability ``confidence``.

    Returns
    -------
    PreferenceFit

    Raises
    ------
    ValueError, TypeError
        If pairs are not pairs of indices of items, there is no pair with an order, or something is not finite.

    Notes
    -----
    A pair enters once, seen from the response that the model favours, so that the bins hold independent pairs. The
    bound by chance takes Wilson intervals that hold for all bins together, and adds up their half-widths.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import certify_preference_fit
    >>> rng = np.random.default_rng(0)
    >>> lead = rng.normal(size=2000)
    >>> observed = np.where(rng.random(2000) < 1 / (1 + np.exp(-lead)), lead, -lead)
    >>> fit = certify_preference_fit(observed)
    >>> fit.certified, certify_preference_fit(5 * observed).certified
    (True, False)
    """
    leads, effective = _leads(model, pairs, X, psi)
    ties = np.zeros(len(leads), dtype=bool) if tie is None else _check_ties(tie, len(leads))
    if ties.all():
        raise ValueError("tie must leave at least one pair with an order, got none")
    check_integer(n_bins, "n_bins", minimum=1)
    check_real(confidence, "confidence", above=0, below=1)
    tol = None if tol is None else check_real(tol, "tol", minimum=0)
    implied = ImpliedChoiceModel(effective)
    declared = implied if choice is None else resolve_choice(choice)
    ordered = leads[~ties]
    won = np.where(ordered == 0.0, 0.5, ordered > 0.0)
    favoured = torch.tensor(np.abs(ordered))
    with torch.no_grad():
        ahead, behind = declared.probability(favoured), declared.probability(-favoured)
        predicted = (ahead / (ahead + behind)).numpy()
    count, mean, frequency, lower, upper = _bins(predicted, won, n_bins, confidence)
    filled = count > 0
    share = count[filled] / len(ordered)
    # A prediction that is no number, as where the loss increases, is in no bin.
    complete = count.sum() == len(ordered)
    error = float(share @ np.abs(mean - frequency)[filled]) if complete else math.nan
    _, _, _, low, high = _bins(predicted, won, n_bins, 1.0 - (1.0 - confidence) / n_bins)
    by_chance = float(share @ np.maximum(high - frequency, frequency - low)[filled])

    with torch.no_grad():
        losses, at_zero = effective.value(torch.tensor(ordered)), effective.value(torch.zeros(1, dtype=torch.float64))
    slopes = effective.slope(torch.linspace(-12, 12, 2401, dtype=torch.float64))
    rounding = slope_rounding(slopes)
    monotone = bool((slopes <= rounding).all())
    outside = float((effective.slope(favoured) > rounding).double().mean())
    independent = Assumption("the pairs are independent of each other and of the training")
    certificates = [
        Certificate(
            "calibration error of the predicted probabilities",
            error,
            by_chance if tol is None else tol,
            "<=",
            (independent,),
        ),
        Certificate("share of pairs with margins at which the loss increases", outside, 0.0),
        Certificate(
            "misordered pairs, against mean loss / loss at margin 0",
            float(1.0 - won.mean()),
            float(losses.mean() / at_zero) * (1.0 + 1e-12),
            "<=",
            (
                Assumption("the loss decreases for margins in [-12, 12]", monotone),
                Assumption("the losses of the pairs are not negative", bool((losses >= 0.0).all())),
            ),
        ),
    ]
    if ties.any():
        rate = float(ties.mean())
        with torch.no_grad():
            abstention = float(declared.abstention(torch.tensor(leads)).mean())
        low_rate, high_rate = _wilson(rate, len(ties), confidence)
        certificates.append(
            Certificate(
                "difference of the predicted and the observed rate of ties",
                abs(abstention - rate),
                float(max(high_rate - rate, rate - low_rate)),
                "<=",
                (independent,),
            )
        )
    return PreferenceFit(
        n_pairs=len(ordered),
        accuracy=float(won.mean()),
        calibration_error=error,
        outside=outside,
        abstention_rate=float(ties.mean()),
        bin_count=count,
        bin_predicted=mean,
        bin_frequency=frequency,
        bin_lower=lower,
        bin_upper=upper,
        certificates=tuple(certificates),
    )


def _leads(model: Any, pairs: Any, X: Any, psi: Any) -> tuple[np.ndarray, MarginLoss]:
    """Differences of rewards, chosen minus rejected, and the loss."""
    estimator = callable(getattr(model, "predict", None))
    if estimator:
        if X is None or pairs is None:
            raise ValueError("X and pairs must be given for an estimator, got None")
        scores = as_float_array(model.predict(X), "the predictions of model", ndim=1)
        trained = getattr(model, "loss_", None)
        if trained is not None:
            scores = scores * trained.beta
            psi = trained.effective_psi() if psi is None else psi
    else:
        scores = as_float_array(model, "model", ndim=1)
    loss = resolve_psi("logistic" if psi is None else psi)
    if pairs is None:
        return scores, loss
    index = check_pairs(pairs, len(scores))
    return scores[index[:, 0]] - scores[index[:, 1]], loss


def check_pairs(pairs: Any, n_items: int) -> Int[np.ndarray, "pairs 2"]:
    """Check pairs of indices of items.

    Parameters
    ----------
    pairs : array_like of int of shape (n_pairs, 2)
        What the user passed.
    n_items : int
        Number of items.

    Returns
    -------
    numpy.ndarray of int64 of shape (n_pairs, 2)

    Examples
    --------
    >>> from assay.supervised.preference_fit import check_pairs
    >>> check_pairs([(2, 0)], 3)
    array([[2, 0]])
    """
    index = np.asarray(pairs)
    if index.ndim != 2 or index.shape[1] != 2 or len(index) == 0 or index.dtype.kind not in "iu":
        raise ValueError(
            f"pairs must be integers of shape (n_pairs, 2), got dtype {index.dtype} and shape {index.shape}"
        )
    if index.min() < 0 or index.max() >= n_items:
        wrong = index.min() if index.min() < 0 else index.max()
        raise ValueError(f"pairs must be indices in [0, {n_items}), got {wrong}")
    same = index[:, 0] == index[:, 1]
    if same.any():
        raise ValueError(f"pairs must have two different items, got the same in pair {int(same.argmax())}")
    return index.astype(np.int64)


def _check_ties(tie: Any, n_pairs: int) -> np.ndarray:
    ties = np.asarray(tie)
    if ties.dtype != bool or ties.shape != (n_pairs,):
        raise ValueError(f"tie must be bool of shape ({n_pairs},), got dtype {ties.dtype} and shape {ties.shape}")
    return ties


def _bins(predicted: np.ndarray, won: np.ndarray, n_bins: int, confidence: float) -> tuple[np.ndarray, ...]:
    """Count, mean prediction, frequency and Wilson interval of each bin of [1/2, 1]."""
    known = np.isfinite(predicted)
    place = np.clip(((predicted[known] - 0.5) * 2.0 * n_bins).astype(int), 0, n_bins - 1)
    count = np.bincount(place, minlength=n_bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(place, weights=predicted[known], minlength=n_bins) / count
        frequency = np.bincount(place, weights=won[known], minlength=n_bins) / count
        lower, upper = _wilson(frequency, count, confidence)
    return count, mean, frequency, lower, upper


def _wilson(frequency: Any, count: Any, confidence: float) -> tuple[Any, Any]:
    """Interval of a proportion by inverting the score test."""
    quantile = norm.ppf(0.5 + 0.5 * confidence)
    spread = quantile**2 / count
    centre = (frequency + 0.5 * spread) / (1.0 + spread)
    half = np.sqrt(spread * (frequency * (1.0 - frequency) + 0.25 * spread)) / (1.0 + spread)
    return centre - half, centre + half
