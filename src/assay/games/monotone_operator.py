r"""A monotone operator that is watched: calls are counted, and pairs of points tell whether it is what it should be.

Methods for :math:`F(z) = 0` promise a rate if :math:`\langle F(a) - F(b), a - b\rangle \ge 0` and
:math:`|F(a) - F(b)| \le L |a - b|`. Neither can be proved from calls of a function, but one pair of points can refute
either, and the iterates of a run are pairs that come for free.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from jaxtyping import Float

from assay.certificate import Assumption
from assay.validation import check_real

__all__ = [
    "LARGEST",
    "CheckedOperator",
    "PairCheck",
    "check_lipschitz",
    "check_unchanged",
    "estimate_lipschitz",
    "fitted_slope",
    "length",
    "not_finite",
    "pair_sums",
    "sum_of_squares",
]

Vector = Float[np.ndarray, " d"]

_EPS = float(np.finfo(float).eps)
_SMALLEST = math.sqrt(np.finfo(float).tiny)
# Constants up to here have squares that are numbers, times those of steps and distances.
LARGEST = 1e75


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def sum_of_squares(vector):  # type: ignore[no-untyped-def]
    """Squared length; nothing is said when it overflows.

    Parameters
    ----------
    vector : numpy.ndarray of shape (d,)
        The vector.

    Returns
    -------
    float
    """
    total = 0.0
    for i in range(vector.size):
        total += vector[i] * vector[i]
    return total


def length(vector: Vector) -> float:
    """Length of a vector, also where the squares of its entries are no numbers in double precision."""
    square = sum_of_squares(vector)
    if 1e-280 < square < math.inf:
        return math.sqrt(square)
    largest = float(np.abs(vector).max(initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(sum_of_squares(vector / largest))


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
    eps : float
        Rounding of the coarsest type of numbers that it returned; that of double precision at least.
    """

    def __init__(self, function: Callable[..., Any], size: int, name: str = "F"):
        if not callable(function):
            raise TypeError(f"{name} must be a function of one vector, got {type(function).__name__}")
        self._function, self._size, self.name = function, size, name
        self.n_calls = 0
        self.eps = _EPS

    def raw(self, z: Vector, step: int, *arguments: Any) -> Vector:
        """Evaluate without looking at the entries; never an alias of ``z``."""
        self.n_calls += 1
        value = self._function(z, *arguments)
        if type(value) is not np.ndarray or value.dtype != np.float64 or not value.flags.c_contiguous:
            value = self._converted(value, step)
        if value.shape != (self._size,):
            raise ValueError(
                f"{self.name} must return a vector of length {self._size}, got shape {value.shape} at step {step}"
            )
        return value.copy() if np.may_share_memory(value, z) else value

    def _converted(self, value: Any, step: int) -> np.ndarray:
        """What was returned in double precision, if that can be had without guessing."""
        given = type(value).__name__
        if hasattr(value, "dtype"):
            given = f"{given} of dtype {value.dtype}"
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            if "strided" not in str(value.layout):
                given = f"{given} and layout {value.layout}"
            elif "bfloat16" in str(value.dtype):  # which numpy does not have
                self.eps, value = max(self.eps, 2.0**-7), value.float()
        wrong = TypeError(f"{self.name} must return a vector of real numbers, got {given} at step {step}")
        if np.ma.is_masked(value):  # numpy would unveil what is under the mask
            raise TypeError(f"{self.name} must return a vector of real numbers, got masked entries at step {step}")
        try:
            raw = np.asarray(value)
            if raw.dtype.kind == "O" and not all(isinstance(entry, numbers.Real) for entry in raw.flat):
                raise wrong  # numpy would turn None into nan, and read the number in a string
            if raw.dtype.kind not in "biufO":
                raise wrong
            vector = np.ascontiguousarray(raw, dtype=np.float64) if raw.ndim else raw.astype(np.float64)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise wrong from error
        if raw.dtype.kind == "f":
            self.eps = max(self.eps, float(np.finfo(raw.dtype).eps))
        return vector

    def __call__(self, z: Vector, step: int, *arguments: Any) -> Vector:
        """Evaluate; what has no finite squared length raises FloatingPointError with the number of the step."""
        vector = self.raw(z, step, *arguments)
        if not math.isfinite(sum_of_squares(vector)):
            raise not_finite(step, self.name, vector)
        return vector


def not_finite(step: int, name: str, value: Vector) -> FloatingPointError:
    """What a solver raises for a nan or an infinity, or for a vector that is too long to have its length squared."""
    if np.isfinite(value).all():
        return FloatingPointError(
            f"{name} must return vectors whose squared length is finite, got a length of {length(value):.3g} at step "
            f"{step}: the run diverges, or the problem wants other units"
        )
    return FloatingPointError(f"{name} must return finite numbers, got a nan or an infinity at step {step}")


def check_lipschitz(constant: Any) -> float:
    """Check a Lipschitz constant that a user gives: positive, and with a square that is a number."""
    return check_real(constant, "L", minimum=1.0 / LARGEST, maximum=LARGEST)


def check_unchanged(z: Vector, before: Vector, step: int) -> None:
    """Check that a user's function left its argument as it was, without which there is no iteration to speak of."""
    if not (z == before).all():
        raise ValueError(f"F must not change its argument, which it did at step {step}: let it work on a copy")


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
    radius = math.sqrt(operator.eps) * max(1.0, length(z0))
    direction, largest = rng.standard_normal(z0.size), 0.0
    for _ in range(n_steps):
        direction /= length(direction)
        moved = z0 + radius * direction
        difference = operator(moved, 0) - value
        stretch = length(difference)
        largest = max(largest, stretch / length(moved - z0))
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
    eps : float, optional
        Rounding of the numbers that the operator returns, by default that of double precision; it may be raised when a
        value of lower precision turns up.

    Attributes
    ----------
    n_pairs, n_not_monotone, n_not_lipschitz : int
        Pairs looked at, and those that refute a property.
    """

    lipschitz: float
    eps: float = _EPS
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
                    "the promised rate is one for monotone operators, and F is not monotone: "
                    f"<F(a) - F(b), a - b> = {product:.3g} at two of its iterates",
                    RuntimeWarning,
                    stacklevel=7,  # the caller of the function that the user has called
                )
        if stretch > self.lipschitz * distance * (1.0 + 1e-6) + rounding:
            self.n_not_lipschitz += 1

    def rounding(self, length: float, value: float, size: int) -> float:
        """Error that an evaluation may have from rounding, at a point of some length with a value of some."""
        return self.eps * max(16.0, math.sqrt(size)) * (self.lipschitz * length + value)

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
