r"""What a preference loss assumes about human choice, measured.

A loss of the margin is legitimate when it decreases: then for every choice model there is a proper loss of
probabilities behind it. It is calibrated when moreover the choice model that it implies rises strictly, so that a
trained margin can be read as a probability. Neither has to do with convexity. :func:`certify_preference_loss` measures
these properties of a loss; :func:`~assay.supervised.certify_preference_fit` asks whether data agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.supervised.choice_models import LEAST_RISE, ChoiceModel, ImpliedChoiceModel, resolve_choice
from assay.supervised.preference_psi import MarginLoss, check_domain, resolve_psi, slope_rounding
from assay.supervised.proper_losses import ProperLoss
from assay.validation import check_integer

__all__ = ["PreferenceLossCertificate", "certify_preference_loss"]

_LAWS = np.linspace(0.05, 0.95, 19)
_N_PAIRS = 50
# Probabilities of abstention are differences of numbers near 1.
_NEGATIVE = 1e-12
_IDENTITY = 1e-6
_SAME = 1e-6


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PreferenceLossCertificate(Result):
    """What was measured about a loss of the margin under a choice model.

    Parameters
    ----------
    psi, choice : str
        Names of the loss and of the choice model.
    domain : tuple of float
        Margins on which it was measured.
    verdict : str
        ``"compliant & calibrated"``, ``"compliant, not calibrated"``, ``"compliant on (-inf, z0]"`` (with
        ``", not calibrated"`` where that is so), or ``"not compliant"``.
    compliant : bool
        Whether the loss decreases on the domain, and the proper loss behind it is one.
    calibrated : bool
        Whether the implied choice model rises strictly where the loss decreases.
    compliant_until : float
        The margin from which on the loss increases; infinite when it nowhere does on the domain, nan when it does from
        the left end on.
    convex : bool
        Whether the loss is convex on the domain. Nothing depends on it.
    link_gap : float
        Largest difference between the implied choice model and the declared one where the loss decreases.
    matches_choice : bool
        Whether they are the same.
    most_abstention : float
        Largest probability that the declared model gives to a tie.
    constant_known : bool
        Whether the loss of the other outcome has a finite integral from minus infinity.
    certificates : tuple of Certificate
        The loss decreases; the proper loss is proper, and its regret a Bregman divergence; the implied log-odds rise;
        the declared model leaves no negative probability.
    """

    psi: str
    choice: str
    domain: tuple[float, float]
    verdict: str
    compliant: bool
    calibrated: bool
    compliant_until: float
    convex: bool
    link_gap: float
    matches_choice: bool
    most_abstention: float
    constant_known: bool


def certify_preference_loss(
    psi: Any, choice: Any = "btl", domain: tuple[float, float] = (-12.0, 12.0), n: int = 4801
) -> PreferenceLossCertificate:
    r"""Find out whether a loss of the margin is legitimate, and which human choice it assumes.

    Parameters
    ----------
    psi : str, callable or object
        Loss of a margin, see :func:`~assay.supervised.preference_psi.resolve_psi`.
    choice : str, ChoiceModel, object or pair of callables, default="btl"
        Declared choice model.
    domain : tuple of float, default=(-12.0, 12.0)
        Margins that training may reach; 0 is inside.
    n : int, default=4801
        Grid points.

    Returns
    -------
    PreferenceLossCertificate

    Raises
    ------
    ValueError, TypeError
        If a name is unknown, an object has not the methods that it needs, or the domain is none.

    Notes
    -----
    The slopes are those of the loss as it is trained on, in float64. That the loss is proper is measured by minimising
    the expected loss on the grid for 19 probabilities from 0.05 to 0.95. About 100000 evaluations of the loss; a tenth
    of a second.

    What is *not* promised: that people choose by a model of this kind.

    References
    ----------
    W. Zhou, S. Zhang, B. Magdalou, J. Lambert, E. Amid, R. Nock, A. Hard. DPO Unchained: Your Training Algorithm is
    Secretly Disentangled in Human Choice Theory (and its Loss' Convexity is Dispensable). ICML 2026.
    arXiv:2507.07855.

    Examples
    --------
    >>> from assay.supervised import certify_preference_loss
    >>> for psi in ("savage", "ramp", "ipo"):
    ...     print(psi, "-", certify_preference_loss(psi).verdict)
    savage - compliant & calibrated
    ramp - compliant, not calibrated
    ipo - compliant on (-inf, 0.5]
    """
    loss, model = resolve_psi(psi), resolve_choice(choice)
    low, high = check_domain(domain)
    grid = torch.linspace(low, high, check_integer(n, "n", minimum=101), dtype=torch.float64)
    step = float(grid[1] - grid[0])
    between = model.probability(grid)
    if not bool(((between >= _LAWS[0]) & (between <= _LAWS[-1])).any()):
        raise ValueError(
            f"domain must have margins of probabilities between {_LAWS[0]:g} and {_LAWS[-1]:g} of choice "
            f"{model.name!r}, got ({low:g}, {high:g}): widen it"
        )
    slopes = loss.slope(grid)
    until = _decreases_until(loss, grid, slopes)

    proper = ProperLoss(loss, model)
    gap = _argmin_gap(proper, grid, _risks(proper, grid))
    identity = _identity_residual(proper, low, high)
    # Both halves of a pair are seen, and so the implied model needs the loss to decrease at z and at -z.
    reach = min(-low, high, until) if until > 0 else math.nan
    rise, link_gap = _implied_link(loss, model, reach, step)
    abstention = model.abstention(grid)

    certificates = (
        Certificate("largest slope of the loss on the domain", float(slopes.max()), slope_rounding(slopes)),
        Certificate(
            "distance from the minimiser of the expected loss to the probability it should express, in margins",
            gap,
            step,
        ),
        Certificate("difference of the regret and the Bregman divergence of the proper loss", identity, _IDENTITY),
        Certificate(
            "least rise of the log-odds of the implied choice model",
            rise,
            LEAST_RISE,
            ">=",
            (Assumption("the loss decreases on the domain", math.isinf(until)),),
        ),
        Certificate(
            "least probability of abstention of the declared choice model", float(abstention.min()), -_NEGATIVE, ">="
        ),
    )
    calibrated = certificates[3].holds
    honest = certificates[2].holds and certificates[4].holds
    compliant = honest and all(certificate.holds for certificate in certificates[:2])
    if compliant:
        verdict = "compliant & calibrated" if calibrated else "compliant, not calibrated"
    elif honest and 0.0 < until < math.inf and _proper_until(proper, grid, until, step):
        verdict = f"compliant on (-inf, {until:.4g}]" + ("" if calibrated else ", not calibrated")
    else:
        verdict = "not compliant"
    return PreferenceLossCertificate(
        psi=loss.name,
        choice=model.name,
        domain=(low, high),
        verdict=verdict,
        compliant=compliant,
        calibrated=calibrated,
        compliant_until=until,
        convex=bool((slopes.diff() >= -slope_rounding(slopes)).all()),
        link_gap=link_gap,
        matches_choice=link_gap <= _SAME,
        most_abstention=float(abstention.max()),
        constant_known=proper.constant_known,
        certificates=certificates,
    )


def _decreases_until(loss: MarginLoss, grid: Tensor, slopes: Tensor) -> float:
    """The margin at which the loss begins to increase, by bisection between the points of the grid."""
    wrong = ~(slopes <= slope_rounding(slopes))
    if not bool(wrong.any()):
        return math.inf
    first = int(wrong.long().argmax())
    if first == 0:
        return math.nan
    low, high = float(grid[first - 1]), float(grid[first])
    for _ in range(60):
        middle = 0.5 * (low + high)
        if float(loss.slope(torch.tensor([middle], dtype=torch.float64))) <= 0.0:
            low = middle
        else:
            high = middle
    return low


def _risks(proper: ProperLoss, grid: Tensor) -> Float[np.ndarray, "outcomes laws points"]:
    """Both parts of the expected losses at all margins of the grid, one row per probability."""
    with torch.no_grad():
        chosen, rejected = proper.psi.value(grid).numpy(), proper.l0_of_margin(grid).numpy()
    return np.stack([_LAWS[:, None] * chosen, (1.0 - _LAWS[:, None]) * rejected])


def _argmin_gap(proper: ProperLoss, grid: Tensor, risks: Float[np.ndarray, "outcomes laws points"]) -> float:
    """Largest distance from the margin of a probability to the minimisers of its expected loss; nan if none is inside.

    Where the expected loss is flat all its minimisers count: then the loss is proper, though not strictly.
    """
    margins, points = proper.choice.inverse(torch.tensor(_LAWS)).numpy(), grid.numpy()
    worst = math.nan
    for margin, won, lost in zip(margins, *risks, strict=True):
        if not points[0] <= margin <= points[-1]:
            continue
        risk = won + lost
        if np.isnan(risk).any():
            return math.nan
        least = risk.argmin()
        # Rounding of the two parts there, far below what one step away from a minimum costs.
        best = points[risk <= risk[least] + 1e-14 * (abs(won[least]) + abs(lost[least]))]
        inside = best[0] <= margin <= best[-1] and best[-1] - best[0] <= (len(best) - 0.5) * (points[1] - points[0])
        apart = 0.0 if inside else float(np.abs(best - margin).min())
        worst = apart if math.isnan(worst) else max(worst, apart)
    return worst


def _proper_until(proper: ProperLoss, grid: Tensor, until: float, step: float) -> bool:
    kept = grid[grid <= until]
    return len(kept) > 1 and _argmin_gap(proper, kept, _risks(proper, kept)) <= step


def _identity_residual(proper: ProperLoss, low: float, high: float) -> float:
    """Largest difference of regret and divergence over random pairs of probabilities, relative to losses above 1."""
    ends = proper.choice.probability(torch.tensor([low, high], dtype=torch.float64)).tolist()
    rng = np.random.default_rng(0)
    pairs = rng.uniform(max(ends[0], 0.02), min(ends[1], 0.98), (2, _N_PAIRS))
    regret, divergence = proper.regret(*pairs), proper.bregman(*pairs)
    size = np.abs(proper.risk(*pairs)) + np.abs(proper.bayes_risk(pairs[0]))
    return float(np.max(np.abs(regret - divergence) / np.maximum(1.0, size)))


def _implied_link(loss: MarginLoss, model: ChoiceModel, reach: float, step: float) -> tuple[float, float]:
    """Least rise of the implied log-odds per unit of margin, and the largest distance to the declared model."""
    if not reach > 0.0:
        return math.nan, math.nan
    half = torch.linspace(0.0, reach, max(3, math.ceil(reach / step)), dtype=torch.float64)
    if reach < ImpliedChoiceModel.LIMIT:
        half = half[:-1]  # at the end of the range the odds are infinite
    implied = ImpliedChoiceModel(loss)
    odds = implied.log_odds(half)
    finite = torch.isfinite(odds)
    # A loss that is flat from some margin on makes certain choices there, which is a limit and no fault.
    certain = torch.isposinf(odds)
    if not bool((finite | certain).all()) or int(finite.sum()) < 2:
        return math.nan, math.nan
    rise = float((odds[finite].diff() / half[finite].diff()).min())
    both = torch.cat([half, -half])
    with torch.no_grad():
        distance = (implied.probability(both) - model.probability(both)).abs()
    return rise, float(distance.max())
