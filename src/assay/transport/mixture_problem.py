r"""Target, family and parameter set in one system of units, in which the numbers of the hierarchy stay moderate.

Moments of order eight of data at 1000 are of size 1e24. So the data are shifted to mean zero and divided to lie in
``[-1, 1]`` when the family can follow (normal distributions can), and otherwise divided by the largest mean of a
component; each parameter is divided by the larger end of its interval. Everything in the semidefinite program, and all
tolerances, are in these units; what is returned is converted back.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.transport.mixture_families import moment_polynomial, resolve_family
from assay.transport.moment_matrices import (
    MonomialBasis,
    Polynomial,
    evaluate_monomials,
    monomial_exponents,
    polynomial_degree,
    sample_moments,
    substitute_affine,
)
from assay.validation import as_float_array

__all__ = ["MixtureProblem", "prepare_mixture_problem"]

# The data fill this share of [-1, 1].
_MARGIN = 1.2

# A moment matrix with an eigenvalue below this, relative to its trace, is not that of a measure.
_NEGATIVE = 1e-8


@dataclass(frozen=True)
class MixtureProblem:
    """What :func:`prepare_mixture_problem` makes of the arguments.

    Attributes
    ----------
    family : object
        In the units of the user.
    dim, n_params : int
        Dimensions of the data and of the parameter.
    degree : int
        Highest degree up to which moments are known.
    target : dict of tuple of int to float
        Scaled moments.
    points : numpy.ndarray of shape (n_points, dim) or None
        The sample, in the units of the user.
    shift, scale : numpy.ndarray of shape (dim,) and float
        The data in scaled units are ``(x - shift) / scale``.
    scaled_family : object
        Family of the scaled data, whose own parameters are ``(theta - parameter_shift) / parameter_scale`` up to
        ``unit``.
    divisor : float
        Scaled moments of the family are those of ``scaled_family`` divided by this to the power of the degree.
    parameter_shift, parameter_scale : numpy.ndarray of shape (n_params,)
        Scaled parameters are ``(theta - parameter_shift) / parameter_scale``.
    unit : numpy.ndarray of shape (n_params,)
        Of one scaled parameter, in parameters of ``scaled_family``.
    bounds : numpy.ndarray of shape (n_params, 2)
        The box in the units of the user.
    box : numpy.ndarray of shape (n_params, 2)
        The box in scaled units, inside ``[-1, 1]``.
    constraints : tuple of polynomials
        In scaled units, without those of the box, the largest coefficient 1.
    """

    family: Any
    dim: int
    n_params: int
    degree: int
    target: dict[tuple[int, ...], float]
    points: Float[np.ndarray, "points dim"] | None
    shift: Float[np.ndarray, " dim"]
    scale: float
    scaled_family: Any
    divisor: float
    parameter_shift: Float[np.ndarray, " params"]
    parameter_scale: Float[np.ndarray, " params"]
    unit: Float[np.ndarray, " params"]
    bounds: Float[np.ndarray, "params 2"]
    box: Float[np.ndarray, "params 2"]
    constraints: tuple[Polynomial, ...]

    @property
    def inequalities(self) -> list[Polynomial]:
        """Of the box, one per parameter, then the constraints."""
        return [_interval(k, self.n_params, low, high) for k, (low, high) in enumerate(self.box)] + list(
            self.constraints
        )

    @property
    def degrees(self) -> list[int]:
        """Degree of each inequality."""
        return [2] * self.n_params + [polynomial_degree(g) for g in self.constraints]

    def moments(self, order: int) -> Float[np.ndarray, " monomials"]:
        """Scaled moments of the target up to degree ``2 * order``, in graded order."""
        return np.array([self.target[tuple(row)] for row in monomial_exponents(self.dim, 2 * order).tolist()])

    def family_map(self, order: int) -> sp.csr_array:
        """Matrix from moments of the mixing measure to those of the mixture, in scaled units."""
        basis = MonomialBasis(self.n_params, 2 * order)
        rows, columns, entries = [], [], []
        for i, alpha in enumerate(monomial_exponents(self.dim, 2 * order).tolist()):
            for exponent, coefficient in moment_polynomial(self.scaled_family, tuple(alpha)).items():
                rows.append(i)
                columns.append(exponent)
                entries.append(coefficient * np.prod(self.unit ** np.array(exponent)) / self.divisor ** sum(alpha))
        positions = basis.positions(np.array(columns, dtype=np.int64).reshape(-1, self.n_params))
        shape = (math.comb(self.dim + 2 * order, 2 * order), len(basis))
        return sp.csr_array((np.array(entries), (np.array(rows), positions)), shape=shape)

    def to_user(self, params: Float[np.ndarray, "atoms params"]) -> Float[np.ndarray, "atoms params"]:
        """Parameters in the units of the user, inside the box to the last bit."""
        answer = self.parameter_shift + self.parameter_scale * params
        return np.clip(answer, self.bounds[:, 0], self.bounds[:, 1])

    def to_scaled(self, params: Float[np.ndarray, "atoms params"]) -> Float[np.ndarray, "atoms params"]:
        """Inverse of :meth:`to_user`."""
        return (params - self.parameter_shift) / self.parameter_scale

    def own_parameters(self, scaled: Float[np.ndarray, "atoms params"]) -> Float[np.ndarray, "atoms params"]:
        """Parameters of ``scaled_family`` for scaled parameters."""
        return scaled * self.unit

    def set_violation(self, scaled: Float[np.ndarray, "atoms params"]) -> float:
        """By how much atoms leave the parameter set: the most negative value of an inequality."""
        worst = 0.0
        for g in self.inequalities:
            exponents, coefficients = np.array(list(g)), np.array(list(g.values()))
            values = evaluate_monomials(scaled, exponents) @ coefficients
            worst = max(worst, -float(values.min(initial=0.0)))
        return worst


def prepare_mixture_problem(
    moments: Any,
    data: Any,
    target: Any,
    family: Any,
    params: Mapping[str, Any] | None,
    bounds: ArrayLike | None,
    constraints: Sequence[Polynomial],
    degree: int | None,
) -> MixtureProblem:
    """Check the arguments of :func:`~assay.transport.closest_mixture` and choose the units.

    Parameters
    ----------
    moments, data, target, family, params, bounds, constraints : object
        As there.
    degree : int or None
        Moments up to which degree are needed; None for all that are given.

    Returns
    -------
    MixtureProblem
    """
    if sum(source is not None for source in (moments, data)) != 1 and (data is not None or target is None):
        raise ValueError("exactly one of moments and data must be given, or target alone")
    points = None
    if data is not None:
        points = as_float_array(data, "data", ndim=(1, 2))
        points = points[:, None] if points.ndim == 1 else points
        dim = points.shape[1]
        constant = np.flatnonzero(np.ptp(points, axis=0) == 0)
        if len(constant):
            raise ValueError(f"data must not have a constant column, got column {constant[0]}")
        raw: dict[tuple[int, ...], float] = {}
    else:
        raw, dim = _checked_moments(moments if moments is not None else _moments_of(target, degree), degree)
    if dim > 3:
        raise ValueError(f"data must have at most 3 dimensions (reduce them, e.g. with PCA), got {dim}")
    resolved = resolve_family(family, params, dim)
    if degree is None:
        known = {sum(alpha) for alpha in raw}
        degree = max(known) - max(known) % 2 if known else 2
    box_of_user = _checked_bounds(bounds, resolved, raw, points)

    follows = hasattr(resolved, "rescaled")
    if points is not None:
        shift = points.mean(axis=0) if follows else np.zeros(dim)
        spread = float(abs(points - shift).max())
    else:
        units = np.eye(dim, dtype=np.int64)
        shift = np.array([raw[tuple(u)] for u in units.tolist()]) if follows else np.zeros(dim)
        spread = _central_reach(raw, shift, degree)
    if follows:
        if points is None:
            spread = max(spread, float(abs(box_of_user[:dim] - shift[:, None]).max()) / _MARGIN)
        scale = _MARGIN * spread
        scaled_family, parameter_shift, parameter_scale = resolved.rescaled(shift, scale)
        divisor = 1.0
    else:
        scale = _largest_mean(resolved, box_of_user) or spread or 1.0
        scaled_family, divisor = resolved, scale
        parameter_shift, parameter_scale = np.zeros(resolved.n_params), np.ones(resolved.n_params)
    if not np.isfinite(scale) or scale <= 0:
        raise ValueError(f"moments must be those of more than one point, got a spread of {scale:g}")
    box = (box_of_user - parameter_shift[:, None]) / parameter_scale[:, None]
    unit = abs(box).max(axis=1)
    parameter_scale = parameter_scale * unit
    box = np.clip(box / unit[:, None], -1.0, 1.0)

    if points is not None:
        vector = sample_moments((points - shift) / scale, degree)
        exponents = monomial_exponents(dim, degree).tolist()
        scaled = {tuple(alpha): float(v) for alpha, v in zip(exponents, vector, strict=True)}
    else:
        scaled = _shifted_moments(raw, shift, scale, degree, dim)
        _check_moment_sequence(scaled, dim, degree // 2)
    return MixtureProblem(
        family=resolved,
        dim=dim,
        n_params=resolved.n_params,
        degree=degree,
        target=scaled,
        points=points,
        shift=shift,
        scale=float(scale),
        scaled_family=scaled_family,
        divisor=float(divisor),
        parameter_shift=parameter_shift,
        parameter_scale=parameter_scale,
        unit=unit,
        bounds=box_of_user,
        box=box,
        constraints=tuple(
            _checked_constraint(g, resolved.n_params, parameter_shift, parameter_scale) for g in constraints
        ),
    )


def _interval(k: int, n_params: int, low: float, high: float) -> dict[tuple[int, ...], float]:
    """``(theta_k - low) (high - theta_k)``."""
    keys = [tuple(power if i == k else 0 for i in range(n_params)) for power in range(3)]
    return dict(zip(keys, (-low * high, low + high, -1.0), strict=True))


def _moments_of(target: Any, degree: int | None) -> list[float]:
    if not callable(getattr(target, "moment", None)):
        raise TypeError(f"target must have a method moment(k) when no moments are given, got {type(target).__name__}")
    return [1.0] + [float(target.moment(k)) for k in range(1, (8 if degree is None else degree) + 1)]


def _checked_moments(moments: Any, degree: int | None) -> tuple[dict[tuple[int, ...], float], int]:
    if isinstance(moments, Mapping):
        if not moments:
            raise ValueError("moments must not be empty")
        lengths = {len(alpha) if isinstance(alpha, tuple) else -1 for alpha in moments}
        if len(lengths) != 1 or min(lengths) < 1:
            raise ValueError("moments must have tuples of exponents of one length as keys")
        dim = lengths.pop()
        values = as_float_array(list(moments.values()), "moments", ndim=1)
        raw = {tuple(int(a) for a in alpha): float(v) for alpha, v in zip(moments, values, strict=True)}
    else:
        values = as_float_array(moments, "moments", ndim=1)
        dim, raw = 1, {(k,): float(v) for k, v in enumerate(values)}
    top = max(sum(alpha) for alpha in raw)
    needed = top - top % 2 if degree is None else degree
    if needed < 2:
        raise ValueError("moments must go at least to degree 2")
    missing = [row for row in map(tuple, monomial_exponents(dim, needed).tolist()) if row not in raw]
    if missing:
        raise ValueError(
            f"moments must have all exponents of degree at most {needed} (twice the order), got none for {missing[0]}"
        )
    if abs(raw[(0,) * dim] - 1.0) > 1e-8:
        raise ValueError(f"moments must be those of a probability measure, got {raw[(0,) * dim]:g} of degree 0")
    return raw, dim


def _checked_bounds(
    bounds: ArrayLike | None,
    family: Any,
    moments: Mapping[tuple[int, ...], float],
    points: Float[np.ndarray, "points dim"] | None,
) -> Float[np.ndarray, "params 2"]:
    if bounds is None:
        if not hasattr(family, "default_bounds"):
            raise ValueError(
                f"bounds must be given for {type(family).__name__}: the parameters must form a compact set"
            )
        bounds = family.default_bounds(moments, points)
    box = as_float_array(bounds, "bounds", ndim=(1, 2))
    box = box[None, :] if box.ndim == 1 else box
    if box.shape != (family.n_params, 2):
        raise ValueError(
            f"bounds must have a lower and an upper end for each of {family.n_params} parameters, got shape {box.shape}"
        )
    if not (box[:, 0] < box[:, 1]).all():
        k = int(np.argmin(box[:, 1] - box[:, 0]))
        raise ValueError(f"bounds must be non-empty intervals, got {box[k].tolist()} of parameter {k}")
    free = getattr(family, "dim", 0) if isinstance(getattr(family, "covariance", None), str) else None
    if free is not None and (box[free:, 0] < 0).any():
        raise ValueError(f"bounds of a variance must begin at 0 or above, got {box[free:, 0].min():g}")
    return box


def _checked_constraint(
    polynomial: Any, n_params: int, shift: np.ndarray, scale: np.ndarray
) -> dict[tuple[int, ...], float]:
    if not isinstance(polynomial, Mapping) or not polynomial:
        raise TypeError(
            "constraints must be a sequence of dicts from tuples of exponents to coefficients, "
            f"got {type(polynomial).__name__}"
        )
    for exponent, coefficient in polynomial.items():
        if not (
            isinstance(exponent, tuple)
            and len(exponent) == n_params
            and all(isinstance(e, int | np.integer) and e >= 0 for e in exponent)
            and np.isfinite(coefficient)
        ):
            raise ValueError(
                f"constraints must map tuples of {n_params} exponents to finite coefficients, "
                f"got {exponent!r}: {coefficient!r}"
            )
    scaled = substitute_affine(polynomial, shift, scale)
    largest = max(abs(c) for c in scaled.values())
    if largest == 0:
        raise ValueError("constraints must not be zero polynomials")
    return {exponent: c / largest for exponent, c in scaled.items() if c}


def _central_reach(moments: Mapping[tuple[int, ...], float], shift: np.ndarray, degree: int) -> float:
    """Largest root, over coordinates, of the even central moment of the highest known degree."""
    reach = 0.0
    for i, centre in enumerate(shift):
        line = [moments[tuple(k if j == i else 0 for j in range(len(shift)))] for k in range(degree + 1)]
        central = sum(math.comb(degree, k) * line[k] * (-centre) ** (degree - k) for k in range(degree + 1))
        reach = max(reach, max(float(central), 0.0) ** (1.0 / degree))
    return reach


def _largest_mean(family: Any, bounds: np.ndarray) -> float:
    """Largest coordinate of a mean over the corners of the box: means are affine in the parameters."""
    corners = np.array(list(itertools.product(*bounds)))
    largest = 0.0
    for unit in np.eye(family.dim, dtype=np.int64).tolist():
        mean = moment_polynomial(family, tuple(unit))
        if mean:
            values = evaluate_monomials(corners, np.array(list(mean))) @ np.array(list(mean.values()))
            largest = max(largest, float(abs(values).max()))
    return largest


def _shifted_moments(
    moments: Mapping[tuple[int, ...], float], shift: np.ndarray, scale: float, degree: int, dim: int
) -> dict[tuple[int, ...], float]:
    ones = np.full(dim, 1.0 / scale)
    scaled = {}
    for alpha in map(tuple, monomial_exponents(dim, degree).tolist()):
        polynomial = substitute_affine({alpha: 1.0}, -shift / scale, ones)
        scaled[alpha] = float(sum(c * moments[key] for key, c in polynomial.items() if c))
    return scaled


def _check_moment_sequence(moments: Mapping[tuple[int, ...], float], dim: int, order: int) -> None:
    basis = MonomialBasis(dim, 2 * order)
    vector = np.array([moments[tuple(row)] for row in basis.exponents.tolist()])
    size = basis.count(order)
    matrix = (basis.moment_map(order) @ vector).reshape(size, size)
    diagonal = np.diag(matrix)
    least = float(np.linalg.eigvalsh(matrix).min()) if diagonal.min() >= 0 else -np.inf
    if least < -_NEGATIVE * max(1.0, float(diagonal.max())):
        raise ValueError(
            f"moments must be those of a measure, got a moment matrix of order {order} with the eigenvalue {least:.3g} "
            "in scaled units: not a moment sequence"
        )
