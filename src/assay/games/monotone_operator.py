r"""A monotone operator that is watched: calls are counted, and pairs of points tell whether it is what it should be.

Methods for :math:`F(z) = 0` promise a rate if :math:`\langle F(a) - F(b), a - b\rangle \ge 0` and
:math:`|F(a) - F(b)| \le L |a - b|`. Neither can be proved from calls of a function, but one pair of points can refute
either, and the iterates of a run are pairs that come for free.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from jaxtyping import Float

from assay.certificate import Assumption

__all__ = ["CheckedOperator", "PairCheck", "estimate_lipschitz", "fitted_slope", "not_finite", "pair_sums"]

Vector = Float[np.ndarray, " d"]

_EPS = float(np.finfo(float).eps)
_SMALLEST = math.sqrt(np.finfo(float).tiny)


class CheckedOperator:
    """An operator whose values have the right shape and are finite, and the number of its calls.

    Parameters
    ----------
    function : callable
        Takes a vector of length ``size`` and returns one.
    size : int
        The length.
    name : str, default="F"
        What the user calls it.

    Attributes
    ----------
    n_calls : int
        How often it was called.
    """

    def __init__(self, function: Callable[..., Any], size: int, name: str = "F"):
        if not callable(function):
            raise TypeError(f"{name} must be a function of one vector, got {type(function).__name__}")
        self._function, self._size, self._name = function, size, name
        self.n_calls = 0

    def raw(self, z: Vector, step: int, *arguments: Any) -> Vector:
        """Evaluate without looking at the entries; never an alias of ``z``."""
        self.n_calls += 1
        value = self._function(z, *arguments)
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        try:
            vector = np.ascontiguousarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{self._name} must return a vector of real numbers, got {type(value).__name__} at step {step}"
            ) from error
        if vector.shape != (self._size,):
            raise ValueError(
                f"{self._name} must return a vector of length {self._size}, got shape {vector.shape} at step {step}"
            )
        return vector.copy() if np.may_share_memory(vector, z) else vector

    def __call__(self, z: Vector, step: int, *arguments: Any) -> Vector:
        """Evaluate; a nan or an infinity raises FloatingPointError with the number of the step."""
        vector = self.raw(z, step, *arguments)
        if not np.isfinite(vector).all():
            raise not_finite(step)
        return vector


def not_finite(step: int) -> FloatingPointError:
    """What a solver raises for a nan or an infinity."""
    return FloatingPointError(f"F must return finite numbers, got a nan or an infinity at step {step}")


def estimate_lipschitz(
    operator: CheckedOperator, z0: Vector, value: Vector, rng: np.random.Generator, n_steps: int = 20
) -> float:
    """Largest stretch of finite differences around a point, by power iteration.

    Parameters
    ----------
    operator : CheckedOperator
        The operator.
    z0, value : numpy.ndarray of shape (d,)
        The point and the operator there.
    rng : numpy.random.Generator
        For the first direction.
    n_steps : int, default=20
        Evaluations.

    Returns
    -------
    float
        A lower bound on the Lipschitz constant, close to the local one for operators whose Jacobian is normal.
    """
    # The square root of the precision balances rounding against curvature.
    length = math.sqrt(_EPS) * max(1.0, float(np.linalg.norm(z0)))
    direction, largest = rng.standard_normal(z0.size), 0.0
    for _ in range(n_steps):
        direction /= np.linalg.norm(direction)
        moved = z0 + length * direction
        difference = operator(moved, 0) - value
        stretch = float(np.linalg.norm(difference))
        largest = max(largest, stretch / float(np.linalg.norm(moved - z0)))
        if stretch == 0.0:
            break
        direction = difference
    return largest


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def pair_sums(a, at_a, b, at_b):  # type: ignore[no-untyped-def]
    """Inner product of the differences of two points and of two values, and squares, in one pass without copies.

    Parameters
    ----------
    a, at_a, b, at_b : numpy.ndarray of shape (d,)
        Two points and the operator at them.

    Returns
    -------
    tuple of float
        The inner product; squared lengths of the difference of points and of values, and of all four vectors.
    """
    product = distance = stretch = first = at_first = second = at_second = 0.0
    for i in range(a.size):
        apart, change = a[i] - b[i], at_a[i] - at_b[i]
        product += apart * change
        distance += apart * apart
        stretch += change * change
        first += a[i] * a[i]
        at_first += at_a[i] * at_a[i]
        second += b[i] * b[i]
        at_second += at_b[i] * at_b[i]
    return product, distance, stretch, first, at_first, second, at_second


@dataclass
class PairCheck:
    """Counts the pairs of points at which an operator is not monotone, or stretches more than it should.

    Parameters
    ----------
    lipschitz : float
        Constant that is claimed.

    Attributes
    ----------
    n_pairs, n_not_monotone, n_not_lipschitz : int
        Pairs looked at, and those that refute a property.
    """

    lipschitz: float
    n_pairs: int = 0
    n_not_monotone: int = 0
    n_not_lipschitz: int = 0

    def look(self, first: Vector, at_first: Vector, second: Vector, at_second: Vector) -> None:
        """Look at one pair of points with the operator at both; warns once if they refute monotonicity."""
        product, *squares = pair_sums(first, at_first, second, at_second)
        distance, stretch, *lengths = (math.sqrt(square) for square in squares)
        if distance == 0.0 and stretch == 0.0:
            return
        self.n_pairs += 1
        # Squares below the smallest number are zero, and have no sign to speak of.
        rounding = self.rounding(lengths[0], lengths[1], first.size) + _SMALLEST
        rounding += self.rounding(lengths[2], lengths[3], first.size)
        if product < -(1e-10 * stretch * distance + rounding * distance + _SMALLEST**2):
            self.n_not_monotone += 1
            if self.n_not_monotone == 1:
                warnings.warn(
                    "goma promises a rate for monotone operators, and F is not one: "
                    f"<F(a) - F(b), a - b> = {product:.3g} at two of its iterates",
                    RuntimeWarning,
                    stacklevel=6,
                )
        if stretch > self.lipschitz * distance * (1.0 + 1e-6) + rounding:
            self.n_not_lipschitz += 1

    def rounding(self, length: float, value: float, size: int) -> float:
        """Error that an evaluation in double precision may have, at a point of some length with a value of some."""
        return _EPS * max(16.0, math.sqrt(size)) * (self.lipschitz * length + value)

    def assumptions(self, lipschitz_given: bool) -> tuple[Assumption, Assumption]:
        """Both properties: refuted, or not checked, since no number of pairs proves them."""
        origin = "" if lipschitz_given else ", estimated"
        counted = f"on {self.n_pairs} pairs of iterates"
        return (
            Assumption(
                f"F is monotone ({self.n_not_monotone} violations {counted})", False if self.n_not_monotone else None
            ),
            Assumption(
                f"F is {self.lipschitz:.6g}-Lipschitz{origin} ({self.n_not_lipschitz} violations {counted})",
                False if self.n_not_lipschitz else None,
            ),
        )


def fitted_slope(iteration: np.ndarray, residual_sq: np.ndarray) -> float:
    """Exponent of the decay: slope of the logarithms on the last three quarters of a logarithmic grid.

    Parameters
    ----------
    iteration, residual_sq : numpy.ndarray of shape (m,)
        Positive iterations in increasing order, and what decays.

    Returns
    -------
    float
        nan with fewer than three points, or where something is not positive.
    """
    iteration, residual_sq = np.asarray(iteration, dtype=float), np.asarray(residual_sq, dtype=float)
    inside = iteration >= 1
    iteration, residual_sq = iteration[inside], residual_sq[inside]
    if iteration.size < 3 or iteration[-1] <= iteration[0] or not (residual_sq > 0.0).all():
        return math.nan
    start, end = np.log(iteration[0]), np.log(iteration[-1])
    grid = np.linspace(start + 0.25 * (end - start), end, 150)
    return float(np.polyfit(grid, np.interp(grid, np.log(iteration), np.log(residual_sq)), 1)[0])
