"""Polynomials in the probabilities of actions: arithmetic on sparse ones, and fast evaluation.

The payoff of a behavioural strategy is a sum over leaves of a payoff times the probabilities of the actions on the way:
a polynomial, with one variable per action. As the probabilities at an information set sum to one, the last of them can
be eliminated; what is left is the *reduced* polynomial, in which the relaxations work.

A polynomial is a dict from tuples of exponents to coefficients. For evaluation it is compiled to arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.validation import check_integer

__all__ = [
    "CompiledPolynomial",
    "Polynomial",
    "affine",
    "checked_polynomial",
    "differentiate",
    "eliminate_last",
    "fix_variables",
    "listed",
    "multiply",
    "polynomial_degree",
    "scaled",
    "total",
]

Polynomial = Mapping[tuple[int, ...], float]


def listed(value: Any, name: str, of: str) -> list[Any]:
    """The items of a list, a tuple or an array."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a list of {of}, got {type(value).__name__}")
    return list(value)


def checked_polynomial(polynomial: Any, n: int, name: str) -> dict[tuple[int, ...], float]:
    """A polynomial of the user's with exponents as tuples of ``n`` integers and finite coefficients."""
    if not isinstance(polynomial, Mapping):
        raise TypeError(f"{name} must be a dict from exponents to coefficients, got {type(polynomial).__name__}")
    answer = {}
    for exponent, coefficient in polynomial.items():
        if not isinstance(exponent, tuple) or len(exponent) != n:
            raise ValueError(f"{name} must have tuples of {n} exponents as keys, got {exponent!r}")
        powers = tuple(check_integer(power, f"exponents of {name}", minimum=0) for power in exponent)
        if isinstance(coefficient, bool) or not isinstance(coefficient, int | float | np.integer | np.floating):
            raise TypeError(f"coefficients of {name} must be real numbers, got {coefficient!r}")
        try:
            number = float(coefficient)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ValueError(f"coefficients of {name} must be finite numbers of 64 bits, got {coefficient!r:.40}")
        answer[powers] = number
    return answer


def total(*polynomials: Polynomial) -> dict[tuple[int, ...], float]:
    """Sum of polynomials in the same variables, terms that cancel exactly left out.

    Examples
    --------
    >>> from assay.games.imperfect_polynomials import total
    >>> total({(1,): 2.0, (0,): 1.0}, {(1,): -2.0})
    {(0,): 1.0}
    """
    answer: dict[tuple[int, ...], float] = {}
    for polynomial in polynomials:
        for exponent, coefficient in polynomial.items():
            answer[exponent] = answer.get(exponent, 0.0) + coefficient
    return {exponent: coefficient for exponent, coefficient in answer.items() if coefficient != 0}


def scaled(polynomial: Polynomial, factor: float) -> dict[tuple[int, ...], float]:
    """A polynomial times a number."""
    return {exponent: factor * coefficient for exponent, coefficient in polynomial.items()}


def multiply(first: Polynomial, second: Polynomial) -> dict[tuple[int, ...], float]:
    """Product of two polynomials in the same variables.

    Examples
    --------
    >>> from assay.games.imperfect_polynomials import multiply
    >>> multiply({(0,): 1.0, (1,): -1.0}, {(0,): 1.0, (1,): 1.0})
    {(0,): 1.0, (2,): -1.0}
    """
    answer: dict[tuple[int, ...], float] = {}
    for left, a in first.items():
        for right, b in second.items():
            exponent = tuple(map(sum, zip(left, right, strict=True)))
            answer[exponent] = answer.get(exponent, 0.0) + a * b
    return {exponent: coefficient for exponent, coefficient in answer.items() if coefficient != 0}


def affine(constant: float, slopes: Sequence[float]) -> dict[tuple[int, ...], float]:
    """The polynomial ``constant + slopes . x``.

    Examples
    --------
    >>> from assay.games.imperfect_polynomials import affine
    >>> affine(1.0, [0.0, -2.0])
    {(0, 0): 1.0, (0, 1): -2.0}
    """
    n = len(slopes)
    terms = {(0,) * n: float(constant)}
    terms |= {tuple(int(i == k) for i in range(n)): float(slope) for k, slope in enumerate(slopes)}
    return {exponent: coefficient for exponent, coefficient in terms.items() if coefficient != 0}


def polynomial_degree(polynomial: Polynomial) -> int:
    """Largest total degree of a term; 0 for a constant and for zero."""
    return max((sum(exponent) for exponent in polynomial), default=0)


def differentiate(polynomial: Polynomial, k: int) -> dict[tuple[int, ...], float]:
    """Partial derivative with respect to variable ``k``."""
    return {
        (*exponent[:k], exponent[k] - 1, *exponent[k + 1 :]): coefficient * exponent[k]
        for exponent, coefficient in polynomial.items()
        if exponent[k]
    }


def fix_variables(
    polynomial: Polynomial, values: Mapping[int, float], kept: Sequence[int]
) -> dict[tuple[int, ...], float]:
    """The polynomial in the variables ``kept`` that remains when all others are replaced by ``values``."""
    answer: dict[tuple[int, ...], float] = {}
    for exponent, coefficient in polynomial.items():
        number = coefficient
        for k, value in values.items():
            if exponent[k]:
                number *= value ** exponent[k]
        rest = tuple(exponent[k] for k in kept)
        answer[rest] = answer.get(rest, 0.0) + number
    return {exponent: coefficient for exponent, coefficient in answer.items() if coefficient != 0}


def eliminate_last(polynomial: Polynomial, simplices: Iterable[Sequence[int]]) -> dict[tuple[int, ...], float]:
    """Replace the last variable of each simplex by one minus the sum of its other ones.

    Parameters
    ----------
    polynomial : mapping
        In all variables.
    simplices : iterable of sequence of int
        Variables of each simplex; together all of them, in any order.

    Returns
    -------
    dict
        In the variables that remain, simplex by simplex.

    Examples
    --------
    >>> from assay.games.imperfect_polynomials import eliminate_last
    >>> eliminate_last({(1, 1): 4.0, (2, 0): 1.0}, [[0, 1]])
    {(1,): 4.0, (2,): -3.0}
    """
    simplices = [tuple(simplex) for simplex in simplices]
    current = dict(polynomial)
    for simplex in simplices:
        last, others = simplex[-1], simplex[:-1]
        n = len(next(iter(current), ()))
        powers: list[dict[tuple[int, ...], float]] = []
        answer: dict[tuple[int, ...], float] = {}
        for exponent, coefficient in current.items():
            while len(powers) <= exponent[last]:
                slopes = [-1.0 if k in others else 0.0 for k in range(n)]
                unit = affine(1.0, [0.0] * n)
                powers.append(multiply(powers[-1], affine(1.0, slopes)) if powers else unit)
            rest = (*exponent[:last], 0, *exponent[last + 1 :])
            for shift, factor in powers[exponent[last]].items():
                key = tuple(map(sum, zip(rest, shift, strict=True)))
                answer[key] = answer.get(key, 0.0) + coefficient * factor
        current = answer
    kept = [k for simplex in simplices for k in simplex[:-1]]
    # What cancels leaves a rounding error, which would be a term of high degree.
    noise = 1e-14 * max((abs(c) for c in polynomial.values()), default=0.0)
    return {tuple(e[k] for k in kept): c for e, c in current.items() if abs(c) > noise}


class CompiledPolynomial:
    """A polynomial as arrays, for evaluation.

    Parameters
    ----------
    polynomial : mapping
        From exponents to coefficients.
    dim : int
        Number of variables.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.imperfect_polynomials import CompiledPolynomial
    >>> square = CompiledPolynomial({(2, 0): 1.0, (1, 1): 3.0}, 2)
    >>> square(np.array([2.0, 1.0])), square.gradient(np.array([2.0, 1.0])).tolist()
    (10.0, [7.0, 6.0])
    """

    def __init__(self, polynomial: Polynomial, dim: int):
        self.dim = dim
        self.exponents: Int[np.ndarray, "terms dim"] = np.array(list(polynomial), dtype=np.int64).reshape(
            len(polynomial), dim
        )
        self.coefficients: Float[np.ndarray, " terms"] = np.array(list(polynomial.values()), dtype=np.float64)

    def __call__(self, x: Float[np.ndarray, " dim"]) -> float:
        """Value at a point, summed without loss of digits."""
        return math.fsum(self.coefficients * np.prod(x**self.exponents, axis=1))

    def gradient(self, x: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """Gradient at a point, O(terms dim)."""
        factors = x**self.exponents
        before, after = np.ones_like(factors), np.ones_like(factors)
        np.cumprod(factors[:, :-1], axis=1, out=before[:, 1:])
        after[:, :-1] = np.cumprod(factors[:, :0:-1], axis=1)[:, ::-1]
        slopes = self.exponents * x ** np.maximum(self.exponents - 1, 0)
        return self.coefficients @ (before * after * slopes)
