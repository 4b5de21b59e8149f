r"""A margin loss that is exactly linear where decisions are made, and smooth everywhere.

A surrogate loss is only as good as what a small surrogate risk says about the error rate. For the logistic loss, an
excess risk of ``eps`` guarantees an excess error of order ``sqrt(eps)``; for the hinge loss it is of order ``eps``,
but the hinge has a kink, and every method that needs a gradient pays for it. The linear-core loss keeps the part of the
hinge that gives the linear rate, slope -1 for every margin up to ``tau``, and lets it end in a convex tail of width
``sigma`` that matches its slope:

.. math::

    \Phi(t) = \begin{cases} \sigma \psi(0) + \tau - t & t \le \tau \\
                            \sigma \psi((t - \tau) / \sigma) & t > \tau, \end{cases}
    \qquad \psi \text{ convex, decreasing to } 0, \quad \psi'(0) = -1 .

An excess surrogate risk of ``eps`` then bounds the excess error by ``eps / tau``, and the gradient is Lipschitz with
constant ``max psi'' / sigma``. This module has the tails, the loss of a margin, its slope and its conjugate;
:class:`~assay.supervised.LinearCoreLoss` makes a training criterion of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from assay.validation import check_real

__all__ = ["LinearCoreTail", "linear_core", "linear_core_conjugate", "linear_core_slope", "resolve_tail"]

_BISECTIONS = 64

# numpy turns arrays without axes into scalars.
Array = np.ndarray | np.floating


@dataclass(frozen=True)
class LinearCoreTail:
    r"""The curve in which the linear core ends.

    Four tails are built in and are known by their names; write another one by giving its value and slope.

    ===============  =====================================  ==========================  ==================
    name             :math:`\psi(z)`                        smoothness of the loss      max :math:`\psi''`
    ===============  =====================================  ==========================  ==================
    ``exp``          :math:`e^{-z}`                         once differentiable         1
    ``quad``         :math:`\frac12 (1-z)_+^2`              once; zero from z = 1 on    1
    ``gamma``        :math:`(2+z) e^{-z}`                   twice                       1/e
    ``smoothstep``   :math:`\frac12 - z + z^3 - z^4/2`      twice; zero from z = 1 on   3/2
    ===============  =====================================  ==========================  ==================

    Parameters
    ----------
    name : str
        For messages.
    evaluate : callable
        Maps ``z`` (a float64 array or a tensor with entries in ``[0, reach]``) to the pair ``psi(z)``, ``-psi'(z)``,
        both non-increasing, with ``-psi'(0) = 1``. It must use operations that arrays and tensors share, or tell them
        apart itself.
    curvature : float
        The largest value of ``psi''``.
    reach : float, default=inf
        Where value and slope have become zero to working precision; larger ``z`` are cut to it before ``evaluate``.
    invert_slope : callable, optional
        Maps slopes ``-psi'(z)`` in ``[0, 1]`` back to finite ``z`` in ``[0, reach]``; by bisection when not given.
    twice_differentiable : bool, default=False
        Whether ``psi''(0) = 0`` and ``psi''`` is continuous, so that the loss has a continuous second derivative.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If ``evaluate`` does not return a convex decreasing curve with slope -1 at 0 that ends at 0, or ``curvature``,
        ``invert_slope`` or ``twice_differentiable`` say of it what is not so. Step sizes, duality gaps and certificates
        rely on them, so they are checked on a grid.

    Examples
    --------
    >>> from assay.supervised.linear_core import LinearCoreTail, linear_core
    >>> heavy = LinearCoreTail("algebraic", lambda z: (1 / (1 + z), 1 / (1 + z) ** 2), curvature=2.0)
    >>> linear_core([0.7, 1.0], tail=heavy).round(3).tolist()
    [0.3, 0.15]
    """

    name: str
    evaluate: Callable[[Any], tuple[Any, Any]]
    curvature: float
    reach: float = math.inf
    invert_slope: Callable[[Array], Array] | None = None
    twice_differentiable: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        # Denser towards 0, where the curvature of most tails is.
        grid = np.linspace(0.0, np.sqrt(min(self.reach, 64.0)), 1025) ** 2
        value, slope = self._pair(grid)
        final_value, final_slope = (float(part[-1]) for part in self._pair(np.array([0.0, self.reach])))
        chord, bend = -np.diff(value) / np.diff(grid), -np.diff(slope) / np.diff(grid)
        # A convex curve has each chord between the slopes at its two ends.
        between = (chord <= slope[:-1] + 1e-9) & (chord >= slope[1:] - 1e-9)
        failures = {
            f"slope -1 at z = 0, got {-slope[0]:g}": abs(slope[0] - 1.0) <= 1e-12,
            f"value and slope 0 at reach, got {final_value:g} and {-final_slope:g}": final_value == final_slope == 0.0,
            "a slope that is the derivative of its value and never decreases": bool(between.all()),
            f"a curvature of at least the rise of its slope, {bend.max():g}, got {self.curvature:g}": (
                bend.max() <= self.curvature * (1.0 + 1e-6) + 1e-8
            ),
            "a second derivative of 0 at z = 0 if twice_differentiable": (
                not self.twice_differentiable or abs(bend[0]) <= 1e-3 * self.curvature
            ),
            "an invert_slope that inverts its slope, with finite z in [0, reach]": self._inverse_is_right(),
        }
        for requirement, met in failures.items():
            if not met:
                raise ValueError(f"tail {self.name!r} must have {requirement}")

    def _check_types(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, got {self.name!r}")
        check_real(self.curvature, "curvature", above=0)
        check_real(self.reach, "reach", above=0, allow_infinite=True)
        for option, name in ((self.evaluate, "evaluate"), (self.invert_slope, "invert_slope")):
            if not (callable(option) or (option is None and name == "invert_slope")):
                raise TypeError(f"{name} must be callable, got {option!r}")
        if not isinstance(self.twice_differentiable, bool):
            raise TypeError(f"twice_differentiable must be True or False, got {self.twice_differentiable!r}")

    def _pair(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Value and steepness at ``z``, for the checks."""
        parts = self.evaluate(z.copy())
        if not isinstance(parts, tuple) or len(parts) != 2 or any(np.shape(part) != z.shape for part in parts):
            raise ValueError(f"evaluate must return a pair of arrays of the shape of z, {z.shape}, got others")
        value, slope = (np.asarray(part, dtype=float) for part in parts)
        return value, slope

    def _inverse_is_right(self) -> bool:
        if self.invert_slope is None:
            return True
        slope = np.concatenate([np.linspace(0.0, 1.0, 257), np.geomspace(1e-12, 1e-3, 19)])
        z = np.asarray(self.invert_slope(slope.copy()), dtype=float)
        if z.shape != slope.shape or not np.isfinite(z).all() or z.min() < 0.0 or z.max() > self.reach:
            return False
        return bool((np.abs(self._pair(z)[1] - slope) <= 1e-9 * slope + 1e-12).all())

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A built-in tail is stored by its name and comes back as the same object.
        if _TAILS.get(self.name) is self:
            return resolve_tail, (self.name,)
        return super().__reduce_ex__(protocol)

    def invert(self, slope: Array) -> Array:
        """Return the ``z`` at which ``-psi'(z)`` is ``slope``; where it is 0, ``reach`` if that is finite, else 1e6."""
        if self.invert_slope is not None:
            return self.invert_slope(slope)
        low, high = np.zeros_like(slope), np.full_like(slope, min(self.reach, 1e6))
        # Tails that fade slowly have small slopes far out.
        with np.errstate(over="ignore"):
            while np.any(short := (slope > 0.0) & (high < self.reach) & (self.evaluate(high)[1] > slope)):
                high = np.where(short, np.minimum(2.0 * high, self.reach), high)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            steeper = self.evaluate(middle)[1] > slope
            low, high = np.where(steeper, middle, low), np.where(steeper, high, middle)
        return np.where(slope >= 1.0, 0.0, 0.5 * (low + high))


def _exp(z: Any) -> Any:
    return torch.exp(z) if isinstance(z, torch.Tensor) else np.exp(z)


def _exp_tail(z: Any) -> tuple[Any, Any]:
    decay = _exp(-z)
    return decay, decay


def _quad_tail(z: Any) -> tuple[Any, Any]:
    rest = 1.0 - z
    return 0.5 * rest * rest, rest


def _gamma_tail(z: Any) -> tuple[Any, Any]:
    decay = _exp(-z)
    return (2.0 + z) * decay, (1.0 + z) * decay


def _smoothstep_tail(z: Any) -> tuple[Any, Any]:
    # Written in the distance to the end of the tail: near it the powers of z would cancel.
    rest = 1.0 - z
    return rest * rest * rest * (1.0 - 0.5 * rest), rest * rest * (3.0 - 2.0 * rest)


def _quad_invert(slope: Array) -> Array:
    return 1.0 - slope


def _exp_invert(slope: Array) -> Array:
    return np.minimum(-np.log(np.maximum(slope, np.finfo(float).tiny)), _VANISHED)


# exp(-1000) is zero in double precision, and 1000 * 0 is not nan, as inf * 0 would be.
_VANISHED = 1000.0

_TAILS = {
    "exp": LinearCoreTail("exp", _exp_tail, 1.0, _VANISHED, _exp_invert),
    "quad": LinearCoreTail("quad", _quad_tail, 1.0, 1.0, _quad_invert),
    "gamma": LinearCoreTail("gamma", _gamma_tail, 1.0 / math.e, _VANISHED, twice_differentiable=True),
    "smoothstep": LinearCoreTail("smoothstep", _smoothstep_tail, 1.5, 1.0, twice_differentiable=True),
}

TailName = Literal["exp", "quad", "gamma", "smoothstep"]


def resolve_tail(tail: str | LinearCoreTail) -> LinearCoreTail:
    """Return the tail of that name, or the tail itself.

    Parameters
    ----------
    tail : {"exp", "quad", "gamma", "smoothstep"} or LinearCoreTail
        What the user passed.

    Returns
    -------
    LinearCoreTail

    Raises
    ------
    ValueError
        If there is no tail of that name.
    TypeError
        If it is neither a name nor a tail.

    Examples
    --------
    >>> from assay.supervised.linear_core import resolve_tail
    >>> resolve_tail("quad").reach
    1.0
    """
    if isinstance(tail, LinearCoreTail):
        return tail
    if not isinstance(tail, str):
        raise TypeError(f"tail must be a name or a LinearCoreTail, got {tail!r}")
    if tail not in _TAILS:
        raise ValueError(f"tail must be one of {', '.join(map(repr, _TAILS))} or a LinearCoreTail, got {tail!r}")
    return _TAILS[tail]


def linear_core(
    margin: float | ArrayLike | torch.Tensor, tau: float = 0.7, sigma: float = 0.3, tail: str | LinearCoreTail = "exp"
) -> Array | torch.Tensor:
    r"""Loss of a margin: a line of slope -1 up to ``tau``, then a smooth convex tail.

    Parameters
    ----------
    margin : array_like or torch.Tensor
        Any shape. For binary labels in {-1, 1}, the label times the score. A tensor may live on any device and is
        differentiated through; half precision is computed in single.
    tau : float, default=0.7
        Where the line ends; the loss bounds the excess error with constant ``1 / tau``.
    sigma : float, default=0.3
        Width of the tail; the slope is Lipschitz with constant ``max psi'' / sigma``. As ``sigma`` goes to 0 the loss
        becomes the hinge ``max(tau - margin, 0)``.
    tail : {"exp", "quad", "gamma", "smoothstep"} or LinearCoreTail, default="exp"
        Shape of the tail, see :class:`LinearCoreTail`.

    Returns
    -------
    numpy.ndarray or torch.Tensor
        Of the shape of ``margin``, and of its dtype if that is a floating one (else float64, or the default dtype of
        torch).

    Raises
    ------
    TypeError
        If ``margin`` is not numeric.
    ValueError
        If ``tau`` or ``sigma`` is not positive or, for a tensor, not within the range of its dtype, the tail is
        unknown, or an array has a nan in it. (A nan in a tensor goes through to the loss, as training loops with loss
        scaling need it.)

    Notes
    -----
    With the tail ``exp`` and ``tau + sigma = 1`` the loss is 1 at margin 0, an upper bound of the 0-1 loss. Linear in
    the number of margins.

    References
    ----------
    M. Mohri, Y. Zhong. Linear-Core Surrogates: Smooth Loss Functions with Linear Rates for Classification and
    Structured Prediction. ICML 2026. arXiv:2604.27742.

    Examples
    --------
    >>> from assay.supervised import linear_core
    >>> linear_core([-1.0, 0.0, 0.7, 1.3]).round(4).tolist()
    [2.0, 1.0, 0.3, 0.0406]
    """
    shape = _shape(tau, sigma, tail)
    if isinstance(margin, torch.Tensor):
        working = _to_working_precision(margin)
        check_range(working.dtype, tau=shape[0], sigma=shape[1])
        return tensor_loss(working, *shape).to(margin.dtype if margin.is_floating_point() else working.dtype)
    array, dtype = _as_margin(margin)
    return _array_parts(array, *shape)[0].astype(dtype)


def linear_core_slope(
    margin: float | ArrayLike | torch.Tensor, tau: float = 0.7, sigma: float = 0.3, tail: str | LinearCoreTail = "exp"
) -> Array | torch.Tensor:
    """Derivative of :func:`linear_core`: -1 up to ``tau``, then rising to 0.

    Parameters
    ----------
    margin, tau, sigma, tail
        As in :func:`linear_core`.

    Returns
    -------
    numpy.ndarray or torch.Tensor
        Entries in ``[-1, 0]``, of the shape of ``margin``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`linear_core`.

    Examples
    --------
    >>> from assay.supervised.linear_core import linear_core_slope
    >>> linear_core_slope([-1.0, 0.7, 0.85], tail="quad").round(3).tolist()
    [-1.0, -1.0, -0.5]
    """
    tau, sigma, curve = _shape(tau, sigma, tail)
    if isinstance(margin, torch.Tensor):
        working = _to_working_precision(margin)
        check_range(working.dtype, tau=tau, sigma=sigma)
        slope = -curve.evaluate(((working - tau) / sigma).clamp(0.0, curve.reach))[1]
        return slope.to(margin.dtype if margin.is_floating_point() else working.dtype)
    array, dtype = _as_margin(margin)
    return _array_parts(array, tau, sigma, curve)[1].astype(dtype)


def linear_core_conjugate(
    slope: float | ArrayLike, tau: float = 0.7, sigma: float = 0.3, tail: str | LinearCoreTail = "exp"
) -> Array:
    r"""Convex conjugate :math:`\Phi^*(-s) = \sup_t (-s t - \Phi(t))`, from which dual bounds are made.

    Parameters
    ----------
    slope : array_like
        The steepness ``s``, any shape. The conjugate is infinite outside ``[0, 1]``.
    tau, sigma, tail
        As in :func:`linear_core`.

    Returns
    -------
    numpy.ndarray
        In float64, of the shape of ``slope``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`linear_core`.

    Notes
    -----
    The supremum is at the margin ``tau + sigma z`` where the tail has steepness ``s``. That gives
    ``-s tau + sigma (s log s - s)`` for the tail ``exp`` and ``-s tau - sigma (s - s^2 / 2)`` for ``quad``; the
    others find ``z`` by bisection.

    Examples
    --------
    >>> from assay.supervised.linear_core import linear_core_conjugate
    >>> linear_core_conjugate([0.0, 1.0, 1.5]).tolist()
    [0.0, -1.0, inf]
    """
    tau, sigma, curve = _shape(tau, sigma, tail)
    steepness, _ = _as_margin(slope, "slope")
    inside = np.clip(steepness, 0.0, 1.0)
    z = curve.invert(inside)
    conjugate = -inside * tau - sigma * (inside * z + curve.evaluate(z)[0])
    conjugate = np.where(inside == 0.0, 0.0, conjugate)
    return np.where((steepness < 0.0) | (steepness > 1.0), np.inf, conjugate)[()]


def tensor_loss(margin: torch.Tensor, tau: float, sigma: float, tail: LinearCoreTail) -> torch.Tensor:
    """Loss of a floating tensor of margins with checked parameters, in operations that autograd can follow twice."""
    # Both terms have the right one-sided derivatives at tau: relu' = 0 there, and clamp lets the slope -1 through.
    # Selecting between the two branches instead would give inf * 0 = nan in the backward pass of the unused one.
    z = ((margin - tau) / sigma).clamp(0.0, tail.reach)
    return torch.relu(tau - margin) + sigma * tail.evaluate(z)[0]


def check_range(dtype: torch.dtype, **settings: float) -> None:
    """Raise if a positive setting is zero or infinite in the precision of the scores, which would make nan of them."""
    limits = torch.finfo(dtype)
    for name, value in settings.items():
        if not limits.tiny <= value <= limits.max:
            raise ValueError(
                f"{name} must be between {limits.tiny:.3g} and {limits.max:.3g} for scores in {dtype}, got {value:g}"
            )


def _array_parts(margin: Array, tau: float, sigma: float, tail: LinearCoreTail) -> tuple[Array, Array]:
    """Loss and slope of an array of margins."""
    value, slope = tail.evaluate(np.clip((margin - tau) / sigma, 0.0, tail.reach))
    return np.maximum(tau - margin, 0.0) + sigma * value, -slope


def _shape(tau: float, sigma: float, tail: str | LinearCoreTail) -> tuple[float, float, LinearCoreTail]:
    return check_real(tau, "tau", above=0), check_real(sigma, "sigma", above=0), resolve_tail(tail)


def _as_margin(margin: float | ArrayLike, name: str = "margin") -> tuple[Array, np.dtype]:
    """``margin`` in float64 and the dtype of the answer; infinities have a loss, nan has none."""
    try:
        raw = np.asarray(margin)
    except ValueError as error:  # ragged nested sequences
        raise ValueError(f"{name} must be a real array, got rows of different lengths") from error
    if raw.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be a real array, got dtype {raw.dtype}")
    if np.isnan(raw).any():
        raise ValueError(f"{name} must have no nan, got {int(np.isnan(raw).sum())}")
    return raw.astype(np.float64), raw.dtype if raw.dtype.kind == "f" else np.dtype(np.float64)


def _to_working_precision(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        raise TypeError(f"margin must be a real tensor, got dtype {tensor.dtype}")
    if not tensor.is_floating_point():
        return tensor.to(torch.get_default_dtype())
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor
