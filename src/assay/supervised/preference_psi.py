r"""Losses of a margin: what a pair pays whose chosen response leads by ``z``.

A loss on pairwise preferences is a decreasing curve :math:`\psi(z)` of the margin ``z`` by which the chosen response
leads the rejected one. The usual menu of preference training is a list of such curves, and a new one is a few lines:
an object with the method ``value``, or a torch function. Slopes are taken by automatic differentiation, so that what is
certified is the curve that is trained on.

Training on ordered pairs minimises :math:`p\,\psi(z) + (1-p)\,\psi(-z)` where a response is preferred with probability
``p``; the probability that a trained margin stands for is therefore

.. math:: F_\psi(z) = \frac{\psi'(-z)}{\psi'(z) + \psi'(-z)} .
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.validation import check_real

__all__ = [
    "FunctionLoss",
    "MarginLoss",
    "check_domain",
    "parse_name",
    "resolve_psi",
    "shifted",
    "slope_rounding",
    "smoothed",
]

# Below this margin the exponential losses go on along their tangent: no overflow, and still a decreasing curve.
_EXP_FLOOR = -20.0

# Slopes up to this much of the steepest one count as 0: differentiation leaves so much rounding.
_ROUNDING = 1e-12


class MarginLoss:
    """Base of the losses of a margin.

    A subclass, or any object with this method, has

    - ``value(z)``: the loss of margins, a tensor of the shape of ``z``, written in differentiable torch operations;

    and may have ``name``, for messages.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.preference_psi import MarginLoss
    >>> class Quartic(MarginLoss):
    ...     name = "quartic"
    ...     def value(self, z):
    ...         return (1 - z).clamp_min(0) ** 4
    >>> Quartic().slope(torch.tensor([0.0, 2.0])).tolist()
    [-4.0, -0.0]
    """

    name: str = "user-defined"

    def value(self, z: Tensor) -> Tensor:
        """Loss of margins."""
        raise NotImplementedError("a margin loss must define value(z)")

    def slope(self, z: Tensor) -> Tensor:
        """Derivative of the loss, by automatic differentiation."""
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.value(at).sum(), at)
        return slope

    @property
    def fades(self) -> bool:
        """Whether badly ordered pairs have next to no gradient, as with every bounded loss."""
        far, near = self.slope(torch.tensor([-50.0, 0.0], dtype=torch.float64)).abs().tolist()
        return far < 0.01 * near

    def __repr__(self) -> str:
        return f"<margin loss {self.name}>"


@dataclass(frozen=True, repr=False)
class FunctionLoss(MarginLoss):
    """A loss given by a torch function of the margin.

    Parameters
    ----------
    function : callable
        Maps a tensor of margins to a tensor of losses of the same shape.
    name : str, default="user-defined"
        For messages.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.preference_psi import FunctionLoss
    >>> FunctionLoss(lambda z: torch.exp(-z)).value(torch.zeros(1))
    tensor([1.])
    """

    function: Callable[[Tensor], Tensor]
    name: str = "user-defined"

    def value(self, z: Tensor) -> Tensor:
        """Loss of margins."""
        return self.function(z)


def _logistic(z: Tensor) -> Tensor:
    return -F.logsigmoid(z)


class _Named(FunctionLoss):
    """A built-in loss, which is stored by its name."""

    def __reduce__(self) -> tuple[Callable[[str], MarginLoss], tuple[str]]:
        return resolve_psi, (self.name,)


class _Logistic(_Named):
    """The loss that is used most, with its slope in closed form: fewer temporary vectors."""

    def slope(self, z: Tensor) -> Tensor:
        return torch.neg(z.detach()).sigmoid_().neg_()


def _savage(z: Tensor) -> Tensor:
    return torch.sigmoid(-z).square()


def _exponential(z: Tensor, rate: float) -> Tensor:
    # The slope of the excess is exactly 0 above the floor; written as a difference to z it would leave rounding.
    excess = (_EXP_FLOOR - z).clamp_min(0.0)
    return torch.exp(-rate * z.clamp_min(_EXP_FLOOR)) + excess * (rate * math.exp(-rate * _EXP_FLOOR))


def _probit(z: Tensor) -> Tensor:
    return -torch.special.log_ndtr(z)


def _matusita(z: Tensor) -> Tensor:
    root = torch.sqrt(1.0 + z.square())
    # The difference of two large numbers for z > 0, and its reciprocal form is harmless there.
    return torch.where(z > 0, 1.0 / (root + z.clamp_min(0.0)), root - z)


def _ramp(z: Tensor) -> Tensor:
    return torch.sigmoid(-z)


def _tangent(z: Tensor) -> Tensor:
    return (2.0 * torch.atan(z) - 1.0).square()


def _hinge(z: Tensor) -> Tensor:
    return torch.relu(1.0 - z)


def _ipo(z: Tensor) -> Tensor:
    return (z - 0.5).square()


def _conservative(z: Tensor, rate: float) -> Tensor:
    return -(1.0 - rate) * F.logsigmoid(z) - rate * F.logsigmoid(-z)


def _robust(z: Tensor, rate: float) -> Tensor:
    return (-(1.0 - rate) * F.logsigmoid(z) + rate * F.logsigmoid(-z)) / (1.0 - 2.0 * rate)


def _exo(z: Tensor, rate: float) -> Tensor:
    chosen, rejected = F.logsigmoid(z), F.logsigmoid(-z)
    return torch.sigmoid(z) * (chosen - math.log1p(-rate)) + torch.sigmoid(-z) * (rejected - math.log(rate))


def _discopop(z: Tensor, temperature: float) -> Tensor:
    mix = torch.sigmoid(z / temperature)
    return -F.logsigmoid(z) * (1.0 - mix) + _exponential(z, 1.0) * mix


_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "logistic": _logistic,
    "savage": _savage,
    "probit": _probit,
    "matusita": _matusita,
    "ramp": _ramp,
    "tangent": _tangent,
    "hinge": _hinge,
    "ipo": _ipo,
}

# Name: function, default of its parameter (None: must be given), and the open interval that it lies in.
_WITH_PARAMETER: dict[str, tuple[Callable[..., Tensor], float | None, tuple[float, float]]] = {
    "exp": (_exponential, 0.5, (0.0, 15.0)),
    "cdpo": (_conservative, None, (0.0, 0.5)),
    "robust": (_robust, None, (0.0, 0.5)),
    "exo": (_exo, None, (0.0, 0.5)),
    "discopop": (_discopop, 0.05, (0.0, math.inf)),
}


def parse_name(text: str) -> tuple[str, float | None]:
    """Split ``"cdpo(0.1)"`` into its name and its parameter.

    Parameters
    ----------
    text : str
        A name, possibly followed by one number in brackets.

    Returns
    -------
    tuple of str and float or None
        The name is empty when the text has another form.

    Examples
    --------
    >>> from assay.supervised.preference_psi import parse_name
    >>> parse_name("cdpo(0.1)"), parse_name("ipo"), parse_name("cdpo(a, b)")
    (('cdpo', 0.1), ('ipo', None), ('', None))
    """
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^(),]+)\))?\s*", text)
    if match is None:
        return "", None
    try:
        return match[1], None if match[2] is None else float(match[2])
    except ValueError:
        return "", None


def resolve_psi(psi: Any) -> MarginLoss:
    r"""Return the margin loss of that name, or make one of what the user passed.

    ==================  ====================================================  ==========================================
    name                :math:`\psi(z)`                                       known as
    ==================  ====================================================  ==========================================
    ``logistic``        :math:`\log(1 + e^{-z})`                              DPO
    ``savage``          :math:`\sigma(-z)^2`                                  not convex, bounded
    ``exp``             :math:`e^{-z/2}`; ``exp(r)``: :math:`e^{-rz}`         below -20 along the tangent
    ``probit``          :math:`-\log\Phi(z)`
    ``matusita``        :math:`\sqrt{1+z^2} - z`
    ``ramp``            :math:`\sigma(-z)`                                    not convex, bounded
    ``tangent``         :math:`(2\arctan z - 1)^2`                            decreases up to :math:`\tan\frac12`
    ``hinge``           :math:`(1-z)_+`                                       SLiC
    ``ipo``             :math:`(z-\frac12)^2`                                 IPO times :math:`\beta^2`; up to 1/2
    ``cdpo(e)``         :math:`(1-e)\,\psi_{log}(z) + e\,\psi_{log}(-z)`      conservative DPO; up to logit(1 - e)
    ``robust(e)``       :math:`((1-e)\,\psi_{log}(z) - e\,\psi_{log}(-z))     robust DPO
                        / (1-2e)`
    ``exo(e)``          reverse Kullback-Leibler divergence to (1-e, e)       EXO; up to logit(1 - e)
    ``discopop(t)``     logistic and exponential, mixed by                    DiscoPOP; t = 0.05 by default
                        :math:`\sigma(z/t)`
    ==================  ====================================================  ==========================================

    Parameters
    ----------
    psi : str, callable or object
        A name, a torch function, or an object with the method ``value``.

    Returns
    -------
    MarginLoss

    Raises
    ------
    ValueError
        If there is no such name, its parameter is out of range, or the losses do not have the shape of the margins.
    TypeError
        If it is neither a name nor a function nor an object with ``value``, or does not return a tensor.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.preference_psi import resolve_psi
    >>> resolve_psi("robust(0.1)").value(torch.tensor([0.0]))
    tensor([0.6931])
    >>> resolve_psi(3)
    Traceback (most recent call last):
        ...
    TypeError: psi must be a name, a torch function of the margin, or an object with the method 'value', got int
    """
    if isinstance(psi, str):
        return _by_name(psi)
    if isinstance(psi, type):
        raise TypeError(f"psi must be an object, got the class {psi.__name__}: write {psi.__name__}(...)")
    method = getattr(psi, "value", None)
    if not callable(method) and not callable(psi):
        raise TypeError(
            "psi must be a name, a torch function of the margin, or an object with the method 'value', "
            f"got {type(psi).__name__}"
        )
    if isinstance(psi, MarginLoss):
        loss = psi
    else:
        function = method if callable(method) else psi
        name = getattr(psi, "name", None) or getattr(psi, "__name__", None) or type(psi).__name__
        loss = FunctionLoss(function, str(name))
    _probe(loss)
    return loss


def _probe(loss: MarginLoss) -> None:
    z = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        value = loss.value(z)
    if not isinstance(value, Tensor):
        raise TypeError(f"psi {loss.name!r} must return a torch.Tensor, got {type(value).__name__}")
    if value.shape != z.shape:
        raise ValueError(
            f"psi {loss.name!r} must return losses of the shape of the margins, {tuple(z.shape)}, "
            f"got {tuple(value.shape)}"
        )
    if not value.requires_grad:
        raise ValueError(f"psi {loss.name!r} must be written in differentiable torch operations, got a detached tensor")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"psi {loss.name!r} must be finite at the margins -1, 0 and 1, got {value.tolist()}")


def _by_name(text: str) -> MarginLoss:
    name, parameter = parse_name(text)
    if name in _PLAIN and parameter is None:
        return (_Logistic if name == "logistic" else _Named)(_PLAIN[name], name)
    if name in _WITH_PARAMETER:
        function, default, (low, high) = _WITH_PARAMETER[name]
        number = default if parameter is None else parameter
        if number is not None:
            number = check_real(number, f"the parameter of psi {name!r}", above=low, below=high)
            shown = name if number == default else f"{name}({number!r})"
            return _Named(partial(function, **{_parameter_of(name): number}), shown)
    known = [*_PLAIN, *(f"{one}(number)" if entry[1] is None else one for one, entry in _WITH_PARAMETER.items())]
    raise ValueError(f"psi must be one of {', '.join(known)}, a function or an object, got {text!r}")


def _parameter_of(name: str) -> str:
    return "temperature" if name == "discopop" else "rate"


@dataclass(frozen=True, repr=False)
class _Smoothed(MarginLoss):
    base: MarginLoss
    rate: float

    def value(self, z: Tensor) -> Tensor:
        return (1.0 - self.rate) * self.base.value(z) + self.rate * self.base.value(-z)

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.base.name} with labels smoothed by {self.rate:g}"


@dataclass(frozen=True, repr=False)
class _Shifted(MarginLoss):
    base: MarginLoss
    margin: float

    def value(self, z: Tensor) -> Tensor:
        return self.base.value(z - self.margin)

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.base.name} with margin {self.margin:g}"


def smoothed(psi: Any, rate: float) -> MarginLoss:
    r"""The loss under label smoothing, :math:`(1-e)\,\psi(z) + e\,\psi(-z)`.

    Smoothing does not keep a curve decreasing: the logistic loss decreases only up to ``logit(1 - e)`` afterwards.

    Parameters
    ----------
    psi : str, callable or MarginLoss
        The loss.
    rate : float
        ``e``, in [0, 0.5).

    Returns
    -------
    MarginLoss

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.preference_psi import smoothed
    >>> smoothed("hinge", 0.1).value(torch.tensor([0.5]))
    tensor([0.6000])
    """
    loss, rate = resolve_psi(psi), check_real(rate, "label_smoothing", minimum=0, below=0.5)
    return _Smoothed(loss, rate) if rate else loss


def shifted(psi: Any, margin: float) -> MarginLoss:
    r"""The loss with a margin that the chosen response has to lead by, :math:`\psi(z - m)`.

    A shift keeps the curve decreasing. It changes the choice model that the loss implies, and can cost it its
    calibration: the savage loss keeps that only up to a margin of log 2.

    Parameters
    ----------
    psi : str, callable or MarginLoss
        The loss.
    margin : float
        ``m``.

    Returns
    -------
    MarginLoss

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.preference_psi import shifted
    >>> shifted("hinge", 0.5).value(torch.tensor([1.0]))
    tensor([0.5000])
    """
    loss, margin = resolve_psi(psi), check_real(margin, "margin")
    return _Shifted(loss, margin) if margin else loss


def check_domain(domain: Any) -> tuple[float, float]:
    """Check an interval of margins: two finite numbers with 0 between them.

    Parameters
    ----------
    domain : tuple of float
        What the user passed.

    Returns
    -------
    tuple of float

    Examples
    --------
    >>> from assay.supervised.preference_psi import check_domain
    >>> check_domain([-2, 1])
    (-2.0, 1.0)
    """
    if not isinstance(domain, tuple | list) or len(domain) != 2:
        raise TypeError(f"domain must be a pair of numbers, got {domain!r}")
    low, high = (check_real(end, "domain") for end in domain)
    if not low < 0.0 < high:
        raise ValueError(f"domain must be an interval with 0 inside, got ({low:g}, {high:g})")
    return low, high


def slope_rounding(slopes: Tensor) -> float:
    """How much of a positive slope is rounding, given all slopes of a loss on a grid.

    Parameters
    ----------
    slopes : torch.Tensor
        Slopes; those that are not finite count as 0.

    Returns
    -------
    float

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.preference_psi import slope_rounding
    >>> slope_rounding(torch.tensor([-2.0, -1.0]))
    2e-12
    """
    return _ROUNDING * float(slopes.abs().nan_to_num(0.0, 0.0).max())
