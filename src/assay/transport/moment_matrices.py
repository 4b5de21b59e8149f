"""Monomials, polynomials and the matrices that moments fill.

A sequence ``y`` of numbers, one per monomial of degree at most ``2 n``, can be the moments of a measure only if its
moment matrix ``M_n(y)``, with entry ``y[a + b]`` in row ``a`` and column ``b``, is positive semidefinite; and of a
measure on ``{g >= 0}`` only if the localizing matrix ``M(g y)`` is, too. Both are linear in ``y``. Here these linear
maps are built once as sparse matrices, which is what makes a semidefinite program of a hundred thousand coefficients
assemble in milliseconds.

Monomials are rows of exponents, ordered by total degree, those of equal degree with the powers of the first variable
descending. A polynomial is a dict from tuples of exponents to coefficients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.validation import as_float_array, check_integer

__all__ = [
    "MonomialBasis",
    "Polynomial",
    "evaluate_monomials",
    "monomial_exponents",
    "multiply_polynomials",
    "polynomial_degree",
    "raw_moments",
    "substitute_affine",
]

Polynomial = Mapping[tuple[int, ...], float]


def monomial_exponents(dim: int, degree: int) -> Int[np.ndarray, "monomials dim"]:
    """Exponents of all monomials in ``dim`` variables of degree at most ``degree``, in graded order.

    Examples
    --------
    >>> from assay.transport.moment_matrices import monomial_exponents
    >>> monomial_exponents(2, 2).tolist()
    [[0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [0, 2]]
    """
    rows = [
        [chosen.count(i) for i in range(dim)]
        for total in range(degree + 1)
        for chosen in itertools.combinations_with_replacement(range(dim), total)
    ]
    return np.array(rows, dtype=np.int64).reshape(len(rows), dim)


def evaluate_monomials(
    points: Float[np.ndarray, "points dim"], exponents: Int[np.ndarray, "monomials dim"]
) -> Float[np.ndarray, "points monomials"]:
    """Value of each monomial at each point."""
    values = np.ones((len(points), len(exponents)))
    for i in range(points.shape[1]):
        powers = points[:, i : i + 1] ** np.arange(exponents[:, i].max(initial=0) + 1)
        values *= powers[:, exponents[:, i]]
    return values


def multiply_polynomials(first: Polynomial, second: Polynomial) -> dict[tuple[int, ...], float]:
    """Product of two polynomials in the same variables."""
    product: dict[tuple[int, ...], float] = {}
    for a, left in first.items():
        for b, right in second.items():
            exponent = tuple(i + j for i, j in zip(a, b, strict=True))
            product[exponent] = product.get(exponent, 0.0) + left * right
    return product


def polynomial_degree(polynomial: Polynomial) -> int:
    """Largest total degree of a monomial with a coefficient other than zero; 0 for the zero polynomial."""
    return max((sum(exponent) for exponent, coefficient in polynomial.items() if coefficient), default=0)


def substitute_affine(
    polynomial: Polynomial, shift: Float[np.ndarray, " dim"], scale: Float[np.ndarray, " dim"]
) -> dict[tuple[int, ...], float]:
    """The polynomial ``t -> polynomial(shift + scale * t)``.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.moment_matrices import substitute_affine
    >>> substitute_affine({(2,): 1.0}, np.array([3.0]), np.array([2.0]))
    {(0,): 9.0, (1,): 12.0, (2,): 4.0}
    """
    answer: dict[tuple[int, ...], float] = {}
    for exponent, coefficient in polynomial.items():
        term: dict[tuple[int, ...], float] = {(0,) * len(exponent): float(coefficient)}
        for i, power in enumerate(exponent):
            unit = [0] * len(exponent)
            expanded = {}
            for k in range(power + 1):
                unit[i] = k
                expanded[tuple(unit)] = math.comb(power, k) * float(shift[i]) ** (power - k) * float(scale[i]) ** k
            term = multiply_polynomials(term, expanded)
        for key, number in term.items():
            answer[key] = answer.get(key, 0.0) + number
    return answer


class MonomialBasis:
    """All monomials up to a degree, with the linear maps from coefficients to moment and localizing matrices.

    Parameters
    ----------
    dim : int
        Number of variables.
    degree : int
        Largest total degree, ``2 n`` for a relaxation of order ``n``.

    Attributes
    ----------
    exponents : numpy.ndarray of shape (monomials, dim)
        In graded order.

    Examples
    --------
    >>> from assay.transport.moment_matrices import MonomialBasis
    >>> basis = MonomialBasis(1, 4)
    >>> (basis.moment_map(2) @ [1.0, 0.0, 2.0, 0.0, 4.0]).reshape(3, 3)
    array([[1., 0., 2.],
           [0., 2., 0.],
           [2., 0., 4.]])
    """

    def __init__(self, dim: int, degree: int):
        self.dim = dim
        self.degree = degree
        self.exponents = monomial_exponents(dim, degree)
        # Each monomial is a number in base degree + 1; sums of exponents are looked up by sorted search.
        self._base = (degree + 1) ** np.arange(dim, dtype=np.int64)
        codes = self.exponents @ self._base
        self._order = np.argsort(codes)
        self._sorted = codes[self._order]

    def __len__(self) -> int:
        return len(self.exponents)

    def positions(self, exponents: Int[np.ndarray, "*some dim"]) -> Int[np.ndarray, "*some"]:
        """Position of each monomial, all of which must be in the basis."""
        return self._order[np.searchsorted(self._sorted, exponents @ self._base)]

    def count(self, degree: int) -> int:
        """Number of monomials up to ``degree``: they are the first ones of the basis."""
        return math.comb(self.dim + degree, degree)

    def moment_map(self, order: int) -> sp.csr_array:
        """Matrix that takes coefficients to the entries, row by row, of the moment matrix of an order."""
        return self.localizing_map({(0,) * self.dim: 1.0}, order)

    def localizing_map(self, polynomial: Polynomial, order: int) -> sp.csr_array:
        """The same for the localizing matrix: entry ``(a, b)`` is the sum of ``g_c y[a + b + c]`` over ``c``."""
        small = self.exponents[: self.count(order)]
        sums = small[:, None, :] + small[None, :, :]
        n_entries = len(small) ** 2
        matrix = sp.csr_array((n_entries, len(self)))
        for exponent, coefficient in polynomial.items():
            columns = self.positions(sums + np.array(exponent, dtype=np.int64)).ravel()
            entries = np.full(n_entries, float(coefficient))
            matrix = matrix + sp.csr_array((entries, (np.arange(n_entries), columns)), shape=matrix.shape)
        return matrix


def raw_moments(X: ArrayLike, order: int) -> dict[tuple[int, ...], float]:
    r"""Moments of a sample, all that a relaxation of an order needs.

    .. math:: \mu_\alpha = \frac1N \sum_i x_i^\alpha, \qquad |\alpha| \le 2 \cdot \text{order}

    Parameters
    ----------
    X : array_like of shape (n_samples,) or (n_samples, n_features)
        Points.
    order : int
        Order of the relaxation; moments of degree up to ``2 * order`` are returned.

    Returns
    -------
    dict of tuple of int to float
        Moment by exponent, in graded order.

    Raises
    ------
    TypeError, ValueError
        If the points are not a finite array, the order is not a positive integer, or a power overflows.

    Notes
    -----
    O(n_samples n_moments). Far from the origin high moments lose all digits of what distinguishes the points; pass
    the points themselves to :func:`~assay.transport.closest_mixture`, which centres and scales them first.

    Examples
    --------
    >>> from assay.transport import raw_moments
    >>> raw_moments([0.0, 1.0, 2.0], 1)
    {(0,): 1.0, (1,): 1.0, (2,): 1.6666666666666667}
    """
    points = as_float_array(X, "X", ndim=(1, 2))
    order = check_integer(order, "order", minimum=1)
    points = points[:, None] if points.ndim == 1 else points
    return _as_dict(monomial_exponents(points.shape[1], 2 * order), sample_moments(points, 2 * order))


def sample_moments(points: Float[np.ndarray, "points dim"], degree: int) -> Float[np.ndarray, " monomials"]:
    """Moments of a sample as a vector in graded order."""
    exponents = monomial_exponents(points.shape[1], degree)
    with np.errstate(over="ignore", invalid="ignore"):
        moments = evaluate_monomials(points, exponents).mean(axis=0)
    if not np.isfinite(moments).all():
        raise ValueError(f"X must have finite moments up to degree {degree}, got entries up to {abs(points).max():g}")
    return moments


def _as_dict(exponents: Sequence[Sequence[int]] | np.ndarray, values: np.ndarray) -> dict[tuple[int, ...], float]:
    return {tuple(int(i) for i in exponent): float(v) for exponent, v in zip(exponents, values, strict=True)}
