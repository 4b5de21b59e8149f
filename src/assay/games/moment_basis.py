"""Monomials of the probabilities of actions, and the sparse maps from their moments to matrices.

Two sets of monomials. For behavioural strategies all of them, up to a degree. For pure strategies those that are left
when ``x_a^2 = x_a`` and ``x_a x_b = 0`` for two actions of one information set: a choice of at most one action at each
of a few information sets. There are far fewer of the second kind, and they are closed under multiplication, so that a
matrix with entry ``y[a b]`` in row ``a`` and column ``b`` is as easily filled.

Sums of exponents are looked up by a hash that is linear in them (random weights, modulo 2^64): the hash of a product is
the sum of two hashes, and no table of products is ever made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int

from assay.games.imperfect_polynomials import Polynomial

__all__ = ["MatrixMap", "MonomialBasis", "count_monomials", "triangle"]


def count_monomials(blocks: Sequence[int], degree: int, vertex: bool = False) -> int:
    """Number of monomials up to a degree, without making them.

    Parameters
    ----------
    blocks : sequence of int
        Free variables of each information set.
    degree : int
        Largest total degree.
    vertex : bool, default=False
        Whether at most one action per information set, to the power one.

    Returns
    -------
    int

    Examples
    --------
    >>> from assay.games.moment_basis import count_monomials
    >>> count_monomials([1] * 6, 3), count_monomials([1] * 6, 3, vertex=True)
    (84, 42)
    >>> count_monomials([2] * 5, 3, vertex=True)
    131
    """
    if degree < 0:
        return 0
    if not vertex:
        return math.comb(sum(blocks) + degree, degree)
    by_degree = [1] + [0] * degree
    for size in blocks:
        for k in range(degree, 0, -1):
            by_degree[k] += size * by_degree[k - 1]
    return sum(by_degree)


@dataclass(frozen=True, eq=False)
class MatrixMap:
    """A symmetric matrix whose entries are linear in the moments.

    Attributes
    ----------
    side : int
        Rows of the matrix.
    entries : scipy.sparse.csr_array of shape (side * (side + 1) / 2, n_moments)
        From moments to the entries on and above the diagonal, column by column.
    """

    side: int
    entries: sp.csr_array

    def matrix(self, moments: Float[np.ndarray, " moments"]) -> Float[np.ndarray, "side side"]:
        """The matrix at given moments."""
        filled = np.zeros((self.side, self.side))
        rows, columns = triangle(self.side)
        filled[rows, columns] = filled[columns, rows] = self.entries @ moments
        return filled

    def adjoint(self, matrix: Float[np.ndarray, "side side"]) -> Float[np.ndarray, " moments"]:
        """Coefficients of the polynomial that is the inner product of ``matrix`` with the matrix of monomials."""
        rows, columns = triangle(self.side)
        return self.entries.T @ (matrix[rows, columns] * np.where(rows == columns, 1.0, 2.0))


def triangle(side: int) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    """Rows and columns of the entries on and above the diagonal, column by column.

    Examples
    --------
    >>> from assay.games.moment_basis import triangle
    >>> [one.tolist() for one in triangle(3)]
    [[0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]]
    """
    columns, rows = np.tril_indices(side)
    return rows.astype(np.int64), columns.astype(np.int64)


class MonomialBasis:
    """Monomials up to a degree, in order of their degree.

    Parameters
    ----------
    blocks : sequence of int
        Free variables of each information set.
    degree : int
        Largest total degree.
    vertex : bool, default=False
        Whether to work modulo the equations of pure strategies.

    Attributes
    ----------
    exponents : numpy.ndarray of shape (n_monomials, dim)
        A row per monomial.

    Examples
    --------
    >>> from assay.games.moment_basis import MonomialBasis
    >>> MonomialBasis([2, 1], 2, vertex=True).exponents.tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]]
    """

    def __init__(self, blocks: Sequence[int], degree: int, vertex: bool = False):
        self.blocks = tuple(blocks)
        self.dim = sum(self.blocks)
        self.degree = degree
        self.vertex = vertex
        self.exponents = _choices(self.blocks, degree) if vertex else _powers(self.dim, degree)
        self._block_of = np.repeat(np.arange(len(self.blocks)), self.blocks)
        weights = np.random.default_rng(20260221).integers(0, 2**64, self.dim, dtype=np.uint64)
        self._weights = weights
        codes = self._codes(self.exponents)
        self._order = np.argsort(codes)
        self._sorted = codes[self._order]
        if np.any(self._sorted[1:] == self._sorted[:-1]):  # one chance in some 10^12
            raise RuntimeError("two monomials have the same hash")

    def __len__(self) -> int:
        return len(self.exponents)

    def count(self, degree: int) -> int:
        """Number of monomials up to ``degree``, which are the first ones."""
        return count_monomials(self.blocks, min(degree, self.degree), self.vertex)

    def positions(self, exponents: Int[np.ndarray, "some dim"]) -> Int[np.ndarray, " some"]:
        """Where each monomial is in the basis; -1 for one that is zero on all pure strategies.

        Raises
        ------
        KeyError
            If a monomial has too high a degree.
        """
        if self.vertex:
            exponents, vanishing = self._at_vertices(exponents)
        found = self._find(self._codes(exponents))
        if self.vertex:
            found[vanishing] = -1
        return found

    def vector(self, polynomial: Polynomial) -> Float[np.ndarray, " monomials"]:
        """Coefficients of a polynomial."""
        answer = np.zeros(len(self))
        if polynomial:
            where = self.positions(np.array(list(polynomial), dtype=np.int64).reshape(-1, self.dim))
            there = where >= 0
            np.add.at(answer, where[there], np.array(list(polynomial.values()), dtype=np.float64)[there])
        return answer

    def evaluate(self, points: Float[np.ndarray, "points dim"]) -> Float[np.ndarray, "points monomials"]:
        """Value of each monomial at each point."""
        values = np.ones((len(points), len(self)))
        for k in range(self.dim):
            powers = points[:, k : k + 1] ** np.arange(self.exponents[:, k].max(initial=0) + 1)
            values *= powers[:, self.exponents[:, k]]
        return values

    def localizing(self, polynomial: Polynomial, order: int) -> MatrixMap:
        """The matrix with entry ``sum_c g_c y[a + b + c]`` for monomials ``a`` and ``b`` up to degree ``order``."""
        side = self.count(order)
        rows, columns = triangle(side)
        small = self.exponents[:side]
        n_entries = len(rows)
        entry, moment, value = [], [], []
        codes = self._codes(small)
        products = codes[rows] + codes[columns]
        for exponent, coefficient in polynomial.items():
            shift = np.array(exponent, dtype=np.int64)
            if self.vertex:
                where = self.positions(small[rows] + small[columns] + shift)
            else:
                where = self._find(products + self._codes(shift[None, :]))
            there = np.flatnonzero(where >= 0)
            entry.append(there)
            moment.append(where[there])
            value.append(np.full(len(there), float(coefficient)))
        # zero polynomials have nothing to concatenate
        stacked = [np.concatenate(part) if part else np.empty(0, dtype=np.int64) for part in (entry, moment, value)]
        entries = sp.csr_array((stacked[2].astype(float), (stacked[0], stacked[1])), shape=(n_entries, len(self)))
        entries.sum_duplicates()
        return MatrixMap(side, entries)

    def shifted(self, polynomial: Polynomial, degree: int) -> sp.csr_array:
        """Rows with the coefficients of ``polynomial`` times each monomial up to ``degree``."""
        small = self.exponents[: self.count(degree)]
        row, moment, value = [], [], []
        for exponent, coefficient in polynomial.items():
            where = self.positions(small + np.array(exponent, dtype=np.int64))
            there = np.flatnonzero(where >= 0)
            row.append(there)
            moment.append(where[there])
            value.append(np.full(len(there), float(coefficient)))
        stacked = [np.concatenate(part) if part else np.empty(0, dtype=np.int64) for part in (row, moment, value)]
        return sp.csr_array((stacked[2].astype(float), (stacked[0], stacked[1])), shape=(len(small), len(self)))

    def _codes(self, exponents: Int[np.ndarray, "some dim"]) -> np.ndarray:
        return (exponents.astype(np.uint64) * self._weights).sum(axis=1, dtype=np.uint64)

    def _find(self, codes: np.ndarray) -> Int[np.ndarray, " some"]:
        place = np.minimum(np.searchsorted(self._sorted, codes), len(self._sorted) - 1)
        if not np.array_equal(self._sorted[place], codes):
            raise KeyError(f"a monomial of degree above {self.degree}")
        return self._order[place]

    def _at_vertices(self, exponents: Int[np.ndarray, "some dim"]) -> tuple[np.ndarray, np.ndarray]:
        """The same function on pure strategies, squarefree; and where it is zero there."""
        squarefree = np.minimum(exponents, 1)
        chosen = np.zeros((len(squarefree), len(self.blocks)), dtype=np.int64)
        for k in range(self.dim):
            chosen[:, self._block_of[k]] += squarefree[:, k]
        vanishing = np.any(chosen > 1, axis=1)
        squarefree[vanishing] = 0
        return squarefree, vanishing


def _powers(dim: int, degree: int) -> Int[np.ndarray, "monomials dim"]:
    rows = []
    for total in range(degree + 1):
        chosen = np.array(list(itertools.combinations_with_replacement(range(dim), total)), dtype=np.int64)
        exponents = np.zeros((len(chosen), dim), dtype=np.int64)
        for column in chosen.reshape(len(chosen), total).T:
            exponents[np.arange(len(chosen)), column] += 1
        rows.append(exponents)
    return np.concatenate(rows)


def _choices(blocks: Sequence[int], degree: int) -> Int[np.ndarray, "monomials dim"]:
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(int)
    rows = []
    for total in range(min(degree, len(blocks)) + 1):
        for subset in itertools.combinations(range(len(blocks)), total):
            for actions in itertools.product(*(range(starts[j], starts[j + 1]) for j in subset)):
                exponents = np.zeros(starts[-1], dtype=np.int64)
                exponents[list(actions)] = 1
                rows.append(exponents)
    return np.array(rows, dtype=np.int64).reshape(len(rows), starts[-1])
