r"""Models of human choice: how often one response is preferred when it is better by ``z``.

A choice model is an increasing curve :math:`F` with :math:`P(y \succ y') = F(u(y) - u(y'))` and
:math:`F(z) + F(-z) \le 1`. What is missing to 1 is the probability that nobody is preferred. With the logistic curve it
is the model of Bradley, Terry and Luce that DPO assumes; with the normal one Thurstone's; a logistic curve shifted by
``a`` is the model of Rao and Kupper, in which near-equal responses tie.

A model of your own is an object with two methods, ``probability`` and ``inverse``, or the pair of these functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.supervised.preference_psi import parse_name, resolve_psi
from assay.validation import check_real

__all__ = [
    "BradleyTerry",
    "Cauchit",
    "ChoiceModel",
    "ImpliedChoiceModel",
    "RaoKupper",
    "Thurstone",
    "implied_choice_model",
    "resolve_choice",
]

_BISECTIONS = 80

# Rise of the log-odds per unit of margin below which a link counts as flat.
LEAST_RISE = 1e-6


class ChoiceModel:
    """Base of the choice models; all methods map tensors to tensors of the same shape.

    A subclass, or any object with these methods, has

    - ``probability(margin)``: probability that the first is preferred when it is better by ``margin``; increasing;
    - ``inverse(probability)``: the margin with that probability;

    and may have ``complement(margin)``, one minus the probability without the loss of digits,
    ``log_abstention(margin)`` and ``name``. Write ``probability`` in differentiable torch operations.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised import ChoiceModel
    >>> class Uniform(ChoiceModel):
    ...     name = "uniform"
    ...     def probability(self, margin):
    ...         return (0.5 + margin / 40).clamp(0, 1)
    ...     def inverse(self, probability):
    ...         return 40 * (probability - 0.5)
    >>> Uniform().probability(torch.tensor([1.0]))
    tensor([0.5250])
    """

    name: str = "user-defined"

    def probability(self, margin: Tensor) -> Tensor:
        """Probability that the first response is preferred."""
        raise NotImplementedError("a choice model must define probability(margin)")

    def inverse(self, probability: Tensor) -> Tensor:
        """Margin at which the first response is preferred with this probability."""
        raise NotImplementedError("a choice model must define inverse(probability)")

    def complement(self, margin: Tensor) -> Tensor:
        """Probability that the first response is not preferred."""
        return 1.0 - self.probability(margin)

    def abstention(self, margin: Tensor) -> Tensor:
        """Probability that neither is preferred."""
        return self.complement(margin) - self.probability(-margin)

    def log_abstention(self, margin: Tensor) -> Tensor:
        """Logarithm of :meth:`abstention`."""
        return torch.log(self.abstention(margin))

    @property
    def abstains(self) -> bool:
        """Whether near-equal responses may tie."""
        return float(self.abstention(torch.zeros(1, dtype=torch.float64))) > 1e-12

    def __repr__(self) -> str:
        return f"<choice model {self.name}>"


class _Symmetric(ChoiceModel):
    def complement(self, margin: Tensor) -> Tensor:
        return self.probability(-margin)


class BradleyTerry(_Symmetric):
    """Logistic choice, the model of Bradley, Terry and Luce.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.choice_models import BradleyTerry
    >>> BradleyTerry().probability(torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.7311])
    """

    name = "btl"

    def probability(self, margin: Tensor) -> Tensor:
        """Logistic function of the margin."""
        return torch.sigmoid(margin)

    def inverse(self, probability: Tensor) -> Tensor:
        """Log-odds."""
        return torch.logit(probability)


class Thurstone(_Symmetric):
    """Normal choice: the utilities are seen with independent normal errors of variance 1/2.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.choice_models import Thurstone
    >>> Thurstone().probability(torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.8413])
    """

    name = "thurstone"

    def probability(self, margin: Tensor) -> Tensor:
        """Normal distribution function of the margin."""
        # erfc keeps the digits of small probabilities, and has a gradient.
        return 0.5 * torch.erfc(-margin * math.sqrt(0.5))

    def inverse(self, probability: Tensor) -> Tensor:
        """Normal quantile."""
        return torch.special.ndtri(probability)


class Cauchit(_Symmetric):
    """Choice with heavy tails: even a large lead is overturned now and then.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.choice_models import Cauchit
    >>> Cauchit().probability(torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.7500])
    """

    name = "cauchit"

    def probability(self, margin: Tensor) -> Tensor:
        """Cauchy distribution function of the margin."""
        return torch.atan2(torch.ones_like(margin), -margin) / math.pi

    def inverse(self, probability: Tensor) -> Tensor:
        """Cauchy quantile."""
        return torch.tan(math.pi * (probability - 0.5))


@dataclass(frozen=True, repr=False)
class RaoKupper(ChoiceModel):
    r"""Logistic choice with ties: :math:`F(z) = \sigma(z - a)`.

    Parameters
    ----------
    threshold : float, default=0.0
        ``a``, from 0 to 350: how much better a response has to be to be preferred in half of the cases.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.choice_models import RaoKupper
    >>> RaoKupper(1.0).abstention(torch.tensor([0.0, 5.0]))
    tensor([0.4621, 0.0155])
    """

    threshold: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", check_real(self.threshold, "threshold", minimum=0, maximum=350))

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name with the threshold."""
        return f"abstain({self.threshold:g})"

    def probability(self, margin: Tensor) -> Tensor:
        """Logistic function of the margin minus the threshold."""
        return torch.sigmoid(margin - self.threshold)

    def inverse(self, probability: Tensor) -> Tensor:
        """Log-odds plus the threshold."""
        return torch.logit(probability) + self.threshold

    def complement(self, margin: Tensor) -> Tensor:
        """Logistic function of the threshold minus the margin."""
        return torch.sigmoid(self.threshold - margin)

    def abstention(self, margin: Tensor) -> Tensor:
        """Probability of a tie."""
        lost = torch.sigmoid(margin - self.threshold) * torch.sigmoid(-margin - self.threshold)
        return math.expm1(2.0 * self.threshold) * lost

    def log_abstention(self, margin: Tensor) -> Tensor:
        """Logarithm of the probability of a tie, without underflow."""
        constant = math.log(math.expm1(2.0 * self.threshold)) if self.threshold else -math.inf
        return F.logsigmoid(margin - self.threshold) + F.logsigmoid(-margin - self.threshold) + constant


@dataclass(frozen=True, repr=False)
class _UserChoice(ChoiceModel):
    """A pair of functions, or an object that has the methods without the base class."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Tensor]
    name: str = "user-defined"
    rest: Callable[[Tensor], Tensor] | None = None
    log_tie: Callable[[Tensor], Tensor] | None = None

    def probability(self, margin: Tensor) -> Tensor:
        return self.forward(margin)

    def inverse(self, probability: Tensor) -> Tensor:
        return self.backward(probability)

    def complement(self, margin: Tensor) -> Tensor:
        return super().complement(margin) if self.rest is None else self.rest(margin)

    def log_abstention(self, margin: Tensor) -> Tensor:
        return super().log_abstention(margin) if self.log_tie is None else self.log_tie(margin)


class ImpliedChoiceModel(ChoiceModel):
    r"""The choice model that a loss implies: :math:`F_\psi(z) = \psi'(-z) / (\psi'(z) + \psi'(-z))`.

    Parameters
    ----------
    psi : str, callable or MarginLoss
        The loss.

    Attributes
    ----------
    psi : MarginLoss
        The loss.
    reach : float
        The model holds for margins in ``(-reach, reach)``: there the loss decreases and the curve rises. At most 12;
        0 when the curve does not rise at 0.
    calibrated : bool
        Whether ``reach`` is positive: then a trained margin can be read as a probability.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised import implied_choice_model
    >>> implied_choice_model(lambda z: torch.exp(-z)).probability(torch.tensor([1.0], dtype=torch.float64))
    tensor([0.8808], dtype=torch.float64)
    >>> implied_choice_model("ramp").calibrated
    False
    """

    LIMIT = 12.0

    def __init__(self, psi: Any) -> None:
        self.psi = resolve_psi(psi)
        self.reach = self._reach()

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the loss."""
        return f"implied by {self.psi.name}"

    @property
    def calibrated(self) -> bool:
        """Whether a trained margin can be read as a probability."""
        return self.reach > 0.0

    def log_odds(self, margin: Tensor) -> Tensor:
        """Logarithm of ``F(z) / F(-z)``; nan where the loss increases."""
        return torch.log(-self.psi.slope(-margin)) - torch.log(-self.psi.slope(margin))

    def probability(self, margin: Tensor) -> Tensor:
        """Probability that the loss makes of a margin; nan where both slopes are 0."""
        against, towards = self.psi.slope(margin), self.psi.slope(-margin)
        return towards / (against + towards)

    def complement(self, margin: Tensor) -> Tensor:
        """Probability of the opposite order."""
        return self.probability(-margin)

    def inverse(self, probability: Tensor) -> Tensor:
        """Margin with that probability, by bisection; nan for a probability that no margin within reach has.

        Raises
        ------
        ValueError
            If the loss is not calibrated.
        """
        if not self.calibrated:
            raise ValueError(f"psi {self.psi.name!r} must be calibrated for its choice model to have an inverse")
        target = probability.detach().double()
        edge = torch.tensor([self.reach], dtype=torch.float64)
        low, high = torch.full_like(target, -self.reach), torch.full_like(target, self.reach)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            below = self.probability(middle) < target
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        outside = (target < self.probability(-edge)) | (target > self.probability(edge))
        return torch.where(outside, torch.nan, 0.5 * (low + high)).to(probability)

    def _reach(self) -> float:
        """Largest symmetric interval of margins on which the loss decreases and the log-odds rise."""
        grid = torch.linspace(0.0, self.LIMIT, 2401, dtype=torch.float64)
        odds = self.log_odds(grid)
        rising = torch.isfinite(odds[1:]) & (odds[1:] - odds[:-1] > LEAST_RISE * (grid[1] - grid[0]))
        steps = int(rising.long().cumprod(0).sum())
        if steps == 0:
            return 0.0
        if steps == len(rising):
            return self.LIMIT
        low, high = float(grid[steps]), float(grid[steps + 1])
        for _ in range(_BISECTIONS):  # the point at which the loss stops to decrease, or the last point of the grid
            middle = 0.5 * (low + high)
            if float(self.psi.slope(torch.tensor([middle], dtype=torch.float64))) < 0.0:
                low = middle
            else:
                high = middle
        return low


def implied_choice_model(psi: Any) -> ImpliedChoiceModel:
    """Which human choice a loss assumes.

    Parameters
    ----------
    psi : str, callable or object
        A loss of the margin, see :func:`~assay.supervised.preference_psi.resolve_psi`.

    Returns
    -------
    ImpliedChoiceModel
        With ``probability``, ``inverse``, ``calibrated`` and ``reach``.

    Notes
    -----
    With a margin or smoothed labels, pass the loss that :func:`~assay.supervised.preference_psi.shifted` or
    :func:`~assay.supervised.preference_psi.smoothed` returns, or ask ``PreferenceLoss.implied_choice_model()``.

    References
    ----------
    W. Zhou, S. Zhang, B. Magdalou, J. Lambert, E. Amid, R. Nock, A. Hard. DPO Unchained: Your Training Algorithm is
    Secretly Disentangled in Human Choice Theory (and its Loss' Convexity is Dispensable). ICML 2026.
    arXiv:2507.07855.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised import implied_choice_model
    >>> model = implied_choice_model("savage")
    >>> torch.allclose(model.probability(torch.tensor([0.5, 2.0])), torch.sigmoid(torch.tensor([0.5, 2.0])))
    True
    >>> round(implied_choice_model("ipo").reach, 6)
    0.5
    """
    return ImpliedChoiceModel(psi)


_NAMED: dict[str, Callable[[], ChoiceModel]] = {"btl": BradleyTerry, "thurstone": Thurstone, "cauchit": Cauchit}


def resolve_choice(choice: Any) -> ChoiceModel:
    """Return the choice model of that name, or check the one that was passed.

    Parameters
    ----------
    choice : str, ChoiceModel, object or pair of callables
        ``"btl"``, ``"thurstone"``, ``"cauchit"``, ``"abstain(a)"`` with ``a >= 0``; an object with the methods
        ``probability`` and ``inverse``; or the two as functions.

    Returns
    -------
    ChoiceModel

    Raises
    ------
    ValueError
        If there is no such name, the probabilities do not increase or leave [0, 1], or ``inverse`` does not invert.
    TypeError
        If a method is missing.

    Examples
    --------
    >>> from assay.supervised.choice_models import resolve_choice
    >>> resolve_choice("abstain(0.5)")
    <choice model abstain(0.5)>
    >>> resolve_choice(object())
    Traceback (most recent call last):
        ...
    TypeError: choice must have the methods 'probability' and 'inverse', got object without 'probability', 'inverse'
    """
    if isinstance(choice, str):
        name, parameter = parse_name(choice)
        if name == "abstain" and parameter is not None:
            return RaoKupper(parameter)
        if name in _NAMED and parameter is None:
            return _NAMED[name]()
        raise ValueError(
            f"choice must be one of {', '.join(_NAMED)}, abstain(number), a pair of functions or an object, "
            f"got {choice!r}"
        )
    if isinstance(choice, BradleyTerry | Thurstone | Cauchit | RaoKupper | ImpliedChoiceModel):
        return choice
    if isinstance(choice, type):
        raise TypeError(f"choice must be an object, got the class {choice.__name__}: write {choice.__name__}(...)")
    if isinstance(choice, tuple):
        if len(choice) != 2 or not all(map(callable, choice)):
            raise TypeError(f"choice must be a pair of functions (probability, inverse), got {choice!r}")
        model: ChoiceModel = _UserChoice(*choice)
    else:
        missing = [name for name in ("probability", "inverse") if not callable(getattr(choice, name, None))]
        if missing:
            raise TypeError(
                "choice must have the methods 'probability' and 'inverse', got "
                f"{type(choice).__name__} without {', '.join(map(repr, missing))}"
            )
        if isinstance(choice, ChoiceModel):
            model = choice
        else:
            model = _UserChoice(
                choice.probability,
                choice.inverse,
                str(getattr(choice, "name", type(choice).__name__)),
                getattr(choice, "complement", None),
                getattr(choice, "log_abstention", None),
            )
    _check_curve(model)
    return model


def _check_curve(model: ChoiceModel) -> None:
    margin = torch.linspace(-8.0, 8.0, 321, dtype=torch.float64)
    probability = model.probability(margin)
    if not isinstance(probability, Tensor) or probability.shape != margin.shape:
        raise ValueError(f"choice {model.name!r} must return probabilities of the shape of the margins, got others")
    if not bool(((probability >= 0.0) & (probability <= 1.0)).all()):
        raise ValueError(f"choice {model.name!r} must have probabilities in [0, 1], got others")
    # In the flat ends neither the rise nor the inverse has digits left.
    inner = (probability > 1e-6) & (probability < 1.0 - 1e-6)
    if int(inner.sum()) < 2 or not bool((probability[inner].diff() > 0.0).all()):
        raise ValueError(f"choice {model.name!r} must have a probability that increases with the margin, got another")
    back = model.inverse(probability[inner])
    if not isinstance(back, Tensor) or not bool((back - margin[inner]).abs().max() <= 1e-6 * 8.0):
        raise ValueError(f"choice {model.name!r} must have an inverse that inverts its probability, got another")
