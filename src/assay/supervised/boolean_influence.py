r"""How much each input bit of a Boolean function matters, under any product distribution.

Draw the bits independently, bit :math:`i` being 1 with probability :math:`p_i`, and then draw bit :math:`i` once more.
The influence of bit :math:`i` is the probability that the function changes:

.. math::

    \mathrm{Inf}_i(f) = \Pr[f(x) \ne f(x^{(i)})] = 2 p_i (1 - p_i) \Pr[f(x) \ne f(x \oplus e_i)] .

Unlike a correlation with the label, it sees a parity. Here are the oracle that functions are queried through, the exact
influences of a table of values, and their estimates from samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from numba import njit
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from assay.validation import as_float_array, as_generator, check_choice, check_integer

__all__ = [
    "MAX_EXACT",
    "BooleanOracle",
    "as_probabilities",
    "binomial_interval",
    "flip_indicators",
    "influences",
    "points_of",
    "table_influences",
]

MAX_EXACT = 20
"""Most variables of a function that is tabulated."""

_CHUNK = 1 << 16
_LOW_BITS = 10
_REPEATED = 64


class BooleanOracle:
    """A Boolean function that is queried in batches, checked and counted.

    Parameters
    ----------
    f : callable or array_like of shape (2**n,)
        Maps a ``uint8`` array of shape (B, n) to B values 0 or 1, or the table of all values: bit ``i`` of the index is
        ``x_i``.
    n : int
        Number of variables.

    Attributes
    ----------
    queries : int
        Points that were asked for; the entries of a table are free.

    Raises
    ------
    ValueError, TypeError
        If a table has another length, a function returns another shape, or a value is neither 0 nor 1.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.boolean_influence import BooleanOracle
    >>> parity = BooleanOracle(lambda x: x.sum(axis=1) % 2, 3)
    >>> parity(np.array([[1, 0, 0], [1, 1, 0]], dtype=np.uint8)).tolist(), parity.queries
    ([1, 0], 2)
    """

    def __init__(self, f: Callable | ArrayLike, n: int) -> None:
        self.n = check_integer(n, "n", minimum=1)
        self.queries = 0
        self._function = f if callable(f) else None
        self._values = None
        if self._function is None:
            if self.n > 62:
                raise ValueError(f"f must be callable for more than 62 variables, got a table and n={self.n}")
            table = as_float_array(f, "f", ndim=1)
            if len(table) != 1 << self.n:
                raise ValueError(f"f must have 2**n = {1 << self.n} values, got {len(table)}")
            self._values = _as_bits(table, (1 << self.n,))
            self._powers = np.int64(1) << np.arange(self.n, dtype=np.int64)

    @property
    def is_table(self) -> bool:
        """Whether all values are there already."""
        return self._values is not None

    def __call__(self, points: UInt8[np.ndarray, "B n"]) -> UInt8[np.ndarray, " B"]:
        """Values at points."""
        if self._values is not None:
            return self._values[points @ self._powers]
        self.queries += len(points)
        return _as_bits(self._function(points.copy()), (len(points),))

    def check_repeatable(self, p: Float[np.ndarray, " n"], rng: np.random.Generator) -> None:
        """Ask for the same points twice, and refuse a function that answers differently."""
        if self.is_table:
            return
        points = (rng.random((_REPEATED, self.n)) < p).astype(np.uint8)
        changed = int(np.count_nonzero(self(points) != self(points)))
        if changed:
            raise ValueError(f"f must be deterministic, got other values for {changed} of {_REPEATED} repeated points")

    def table(self) -> np.ndarray:
        """All 2**n values, as ``uint8``."""
        if self._values is not None:
            return self._values
        size = 1 << self.n
        values = np.empty(size, dtype=np.uint8)
        for start in range(0, size, _CHUNK):
            indices = np.arange(start, min(start + _CHUNK, size))
            values[start : start + _CHUNK] = self(points_of(indices, self.n))
        return values


def points_of(indices: np.ndarray, n: int) -> UInt8[np.ndarray, "B n"]:
    """Bits of indices of a table.

    Parameters
    ----------
    indices : numpy.ndarray of shape (B,)
        Integers below ``2**n``.
    n : int
        Number of variables.

    Returns
    -------
    numpy.ndarray of shape (B, n)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.boolean_influence import points_of
    >>> points_of(np.array([1, 6]), 3).tolist()
    [[1, 0, 0], [0, 1, 1]]
    """
    return ((indices[:, None] >> np.arange(n)) & 1).astype(np.uint8)


def as_probabilities(p: float | ArrayLike, n: int) -> Float[np.ndarray, " n"]:
    """Check the probabilities of the bits.

    Parameters
    ----------
    p : float or array_like of shape (n,)
        Probability that a bit is 1, strictly between 0 and 1.
    n : int
        Number of variables.

    Returns
    -------
    numpy.ndarray of shape (n,)

    Raises
    ------
    ValueError, TypeError
        If there are not n of them, or one is 0, 1 or outside.

    Examples
    --------
    >>> from assay.supervised.boolean_influence import as_probabilities
    >>> as_probabilities(0.5, 2)
    array([0.5, 0.5])
    """
    vector = as_float_array(p, "p", ndim=(0, 1))
    if vector.ndim == 1 and vector.shape != (n,):
        raise ValueError(f"p must be a number or have length n = {n}, got length {len(vector)}")
    vector = np.broadcast_to(vector, (n,)).copy()
    if vector.min() <= 0.0 or vector.max() >= 1.0:
        raise ValueError(f"p must be strictly between 0 and 1, got {vector.min():g} to {vector.max():g}")
    return vector


def binomial_interval(count: ArrayLike, trials: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact (Clopper-Pearson) bounds of a probability, each wrong with probability at most ``alpha``.

    Parameters
    ----------
    count : array_like of int
        Successes.
    trials : int
        Trials.
    alpha : float
        Chance that a bound is wrong, one side at a time.

    Returns
    -------
    lower, upper : numpy.ndarray

    Examples
    --------
    >>> from assay.supervised.boolean_influence import binomial_interval
    >>> lower, upper = binomial_interval([0, 5, 10], 10, 0.025)
    >>> lower.round(3).tolist(), upper.round(3).tolist()
    ([0.0, 0.187, 0.692], [0.308, 0.813, 1.0])
    """
    hits = np.asarray(count, dtype=float)
    lower = np.where(hits > 0, betaincinv(np.maximum(hits, 1), trials - hits + 1, alpha), 0.0)
    upper = np.where(hits < trials, betaincinv(hits + 1, np.maximum(trials - hits, 1), 1.0 - alpha), 1.0)
    return lower, upper


def influences(
    f: Callable | ArrayLike,
    n: int,
    p: float | ArrayLike = 0.5,
    method: str = "exact",
    *,
    n_samples: int = 10_000,
    rng: int | np.random.Generator | None = None,
) -> Float[np.ndarray, " n"]:
    r"""Influences of the variables of a Boolean function under a product distribution.

    Parameters
    ----------
    f : callable or array_like of shape (2**n,)
        Maps a ``uint8`` array of shape (B, n) to B values 0 or 1, or the table of all values: bit ``i`` of the index is
        ``x_i``.
    n : int
        Number of variables.
    p : float or array_like of shape (n,), default=0.5
        Probability that a bit is 1, strictly between 0 and 1.
    method : {"exact", "sampled"}, default="exact"
        All ``2**n`` values, up to n = 20, or ``n_samples`` random points with all their neighbours.
    n_samples : int, default=10000
        Points that are drawn when sampling.
    rng : int, numpy.random.Generator or None, default=None
        Source of the points.

    Returns
    -------
    numpy.ndarray of shape (n,)
        :math:`\Pr[f(x) \ne f(x^{(i)})]`, where :math:`x^{(i)}` has bit i drawn anew.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of its range, or a function does not return B values 0 or 1, the same ones when it is
        asked again.

    Notes
    -----
    Exact: O(n 2^n) operations on 2^n bytes. Sampled: ``n_samples (n + 1)`` queries, standard error at most
    ``p_i (1 - p_i) / sqrt(n_samples)``.

    References
    ----------
    A. Soltani Moakhar, F. Ghahremani, K. Banihashem, M. Hajiaghayi. Decision Tree Learning on Product Spaces.
    ICML 2026. arXiv:2605.12983.

    Examples
    --------
    >>> from assay.supervised import influences
    >>> influences(lambda x: x[:, 0] & x[:, 1], 2).tolist()
    [0.25, 0.25]
    >>> influences(lambda x: x.sum(axis=1) >= 2, 3, p=[0.3, 0.5, 0.7]).round(2).tolist()
    [0.21, 0.29, 0.21]
    """
    check_choice(method, "method", ("exact", "sampled"))
    draws = check_integer(n_samples, "n_samples", minimum=1)
    oracle = BooleanOracle(f, n)
    probabilities = as_probabilities(p, n)
    generator = as_generator(rng)
    oracle.check_repeatable(probabilities, generator)
    if method == "exact":
        if n > MAX_EXACT:
            raise ValueError(f"n must be at most {MAX_EXACT} for method='exact', got {n}; use method='sampled'")
        return table_influences(oracle.table(), probabilities)[1]
    points = (generator.random((draws, n)) < probabilities).astype(np.uint8)
    flips = flip_indicators(oracle, points, oracle(points), np.arange(n))
    return 2.0 * probabilities * (1.0 - probabilities) * flips.mean(axis=0)


def flip_indicators(
    oracle: BooleanOracle, points: UInt8[np.ndarray, "B n"], values: UInt8[np.ndarray, " B"], free: np.ndarray
) -> UInt8[np.ndarray, "B k"]:
    """Whether flipping a bit of a point changes the function.

    Parameters
    ----------
    oracle : BooleanOracle
        The function.
    points : numpy.ndarray of shape (B, n)
        Points.
    values : numpy.ndarray of shape (B,)
        The function there.
    free : numpy.ndarray of shape (k,)
        Which bits to flip.

    Returns
    -------
    numpy.ndarray of shape (B, k)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.boolean_influence import BooleanOracle, flip_indicators
    >>> both = BooleanOracle([0, 0, 0, 1], 2)
    >>> points = np.array([[1, 0], [1, 1]], dtype=np.uint8)
    >>> flip_indicators(both, points, both(points), np.arange(2)).tolist()
    [[0, 1], [1, 1]]
    """
    n_points, n = points.shape
    flips = np.empty((n_points, len(free)), dtype=np.uint8)
    # As many bits at a time as keep the neighbours at about 16 million entries.
    together = max(1, (1 << 24) // max(1, n_points * n))
    for start in range(0, len(free), together):
        bits = free[start : start + together]
        neighbours = np.repeat(points[None], len(bits), axis=0)
        neighbours[np.arange(len(bits)), :, bits] ^= 1
        answers = oracle(neighbours.reshape(-1, n)).reshape(len(bits), n_points)
        flips[:, start : start + together] = (answers != values).T
    return flips


def table_influences(
    values: UInt8[np.ndarray, " size"], p: Float[np.ndarray, " k"]
) -> tuple[float, Float[np.ndarray, " k"]]:
    """Probability of 1, and influences, of a function given by its table.

    Parameters
    ----------
    values : numpy.ndarray of shape (2**k,)
        The table; bit ``i`` of the index is ``x_i``.
    p : numpy.ndarray of shape (k,)
        Probabilities of the bits.

    Returns
    -------
    ones : float
        Probability that the function is 1.
    influences : numpy.ndarray of shape (k,)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.boolean_influence import table_influences
    >>> table_influences(np.array([0, 0, 0, 1], dtype=np.uint8), np.array([0.5, 0.5]))
    (0.25, array([0.25, 0.25]))
    """
    ones, flips = _weighted_flips(values, p, min(len(p), _LOW_BITS))
    return ones, 2.0 * p * (1.0 - p) * flips


def bit_weights(p: Float[np.ndarray, " k"]) -> Float[np.ndarray, " size"]:
    """Probabilities of all ``2**k`` points.

    Parameters
    ----------
    p : numpy.ndarray of shape (k,)
        Probabilities of the bits.

    Returns
    -------
    numpy.ndarray of shape (2**k,)

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.boolean_influence import bit_weights
    >>> bit_weights(np.array([0.25, 0.5])).tolist()
    [0.375, 0.125, 0.375, 0.125]
    """
    return _products(p)


@njit(cache=True)
def _products(p: Any) -> Any:
    weights = np.ones(1 << p.size)
    for i in range(p.size):
        half = 1 << i
        for j in range(half):
            weights[j + half] = weights[j] * p[i]
            weights[j] *= 1.0 - p[i]
    return weights


@njit(cache=True, fastmath={"reassoc", "contract"})
def _weighted_flips(values: Any, p: Any, low: int) -> Any:
    """Weight of the ones, and of the points at which a flip changes the function.

    A weight is the product of one for the low bits and one for the high bits. Sums over the low bits are added up over
    the high bits, which needs no table of weights and keeps rounding errors near machine precision.
    """
    k = p.size
    low_weights, high_weights = _products(p[:low]), _products(p[low:])
    block = low_weights.size
    flips = np.zeros(k)
    ones = 0.0
    for high in range(high_weights.size):
        base = high * block
        total = 0.0
        for j in range(block):
            total += low_weights[j] * values[base + j]
        ones += high_weights[high] * total
        for bit in range(low):
            step = 1 << bit
            total = 0.0
            for start in range(0, block, 2 * step):
                for j in range(start, start + step):
                    changed = values[base + j] ^ values[base + j + step]
                    total += (low_weights[j] + low_weights[j + step]) * changed
            flips[bit] += high_weights[high] * total
        for bit in range(low, k):
            step = 1 << (bit - low)
            if high & step:
                continue
            other = (high + step) * block
            total = 0.0
            for j in range(block):
                total += low_weights[j] * (values[base + j] ^ values[other + j])
            flips[bit] += (high_weights[high] + high_weights[high + step]) * total
    return ones, flips


def _as_bits(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        try:
            array = array.astype(float)
        except (TypeError, ValueError) as error:
            raise TypeError(f"f must have values 0 and 1, got dtype {array.dtype}") from error
    if array.shape != shape:
        raise ValueError(f"f must return one value per point, shape {shape}, got shape {array.shape}")
    bits = (array == 1).astype(np.uint8)
    if not np.array_equal(bits, array):
        odd = array[(array != 0) & (array != 1)]
        raise ValueError(f"f must have values 0 and 1, got {odd.flat[0]!r}")
    return bits
