"""Checks of what users pass in: one place, one wording, nothing silently repaired.

Every function returns its argument in the form in which the methods want it or raises ``ValueError`` or ``TypeError``
that names the argument, says what was wrong and what is accepted.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

__all__ = [
    "ConvergenceWarning",
    "as_distribution",
    "as_float_array",
    "as_generator",
    "check_choice",
    "check_integer",
    "check_real",
    "warn_not_converged",
]


class ConvergenceWarning(UserWarning):
    """An iterative solver stopped before it reached its tolerance; what it returned is its best answer."""


def warn_not_converged(solver: str, n_iter: int, reached: float, tol: float, stacklevel: int = 3) -> None:
    """Warn that ``solver`` did not reach ``tol``.

    Parameters
    ----------
    solver : str
        Name of the public function.
    n_iter : int
        Iterations that were done.
    reached : float
        The certified quantity at the returned answer.
    tol : float
        What was asked for.
    stacklevel : int, default=3
        As in :func:`warnings.warn`: 3 points at the caller of the function that calls this one.

    Examples
    --------
    >>> import warnings
    >>> from assay.validation import warn_not_converged
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_not_converged("solve", 100, reached=1e-3, tol=1e-6)
    >>> str(caught[0].message)
    'solve did not reach tol=1e-06 in 100 iterations (reached 0.001); the best answer is returned'
    """
    warnings.warn(
        f"{solver} did not reach tol={tol:g} in {n_iter} iterations (reached {reached:.3g}); "
        "the best answer is returned",
        ConvergenceWarning,
        stacklevel=stacklevel,
    )


def as_float_array(
    array: Any, name: str, *, ndim: int | Sequence[int], dtype: type = np.float64, allow_empty: bool = False
) -> np.ndarray:
    """Convert to a finite floating-point array.

    Parameters
    ----------
    array : array_like
        Integers, booleans and floats of any precision are cast (never truncated).
    name : str
        Name of the argument, for the message.
    ndim : int or sequence of int
        Accepted numbers of dimensions.
    dtype : type, default=numpy.float64
        What to cast to.
    allow_empty : bool, default=False
        Whether an axis may have length 0.

    Returns
    -------
    numpy.ndarray
        A new array or, when no cast was needed, the argument itself.

    Raises
    ------
    TypeError
        If it is complex, or not numeric.
    ValueError
        If it has the wrong number of dimensions, is empty, or has a nan or an infinity in it.

    Examples
    --------
    >>> from assay.validation import as_float_array
    >>> as_float_array([[1, 2], [3, 4]], "payoff", ndim=2)
    array([[1., 2.],
           [3., 4.]])
    >>> as_float_array([1, 2, 3], "payoff", ndim=2)
    Traceback (most recent call last):
        ...
    ValueError: payoff must be a finite 2-D array, got shape (3,)
    """
    dims = (ndim,) if isinstance(ndim, int) else tuple(ndim)
    wanted = f"a finite {' or '.join(f'{d}-D' for d in dims)} array"
    if hasattr(array, "detach"):  # a tensor that requires grad or lives on another device has no __array__
        array = array.detach().cpu()
        if "bfloat16" in str(array.dtype):  # which numpy does not have
            array = array.float()
        if "strided" not in str(getattr(array, "layout", "strided")):
            raise TypeError(f"{name} must be {wanted}, got a tensor of layout {array.layout}")
        array = array.numpy()
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):  # numpy would unveil what is under the mask
        raise ValueError(f"{name} must be {wanted}, got {np.ma.count_masked(array)} masked entries")
    try:
        raw = np.asarray(array)
    except ValueError as error:  # ragged nested sequences
        raise ValueError(f"{name} must be {wanted}, got rows of different lengths") from error
    if np.iscomplexobj(raw):
        raise TypeError(f"{name} must be {wanted} of real numbers, got dtype {raw.dtype}")
    if raw.dtype.kind not in "biuf":
        if raw.dtype.kind != "O":
            raise TypeError(f"{name} must be {wanted} of real numbers, got dtype {raw.dtype}")
        try:
            if any(item is None or isinstance(item, str | bytes) for item in raw.flat):
                raise TypeError("numpy would turn None into nan and read the number in a string")
            raw = raw.astype(dtype)
        except OverflowError as error:
            raise ValueError(
                f"{name} must be {wanted}, got an integer that is too large for {dtype.__name__}"
            ) from error
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be {wanted} of real numbers, got objects of other types") from error
    if raw.ndim not in dims:
        raise ValueError(f"{name} must be {wanted}, got shape {raw.shape}")
    if not allow_empty and raw.size == 0:
        raise ValueError(f"{name} must be {wanted} and not empty, got shape {raw.shape}")
    with np.errstate(over="ignore"):  # what overflows is infinite, and refused below
        converted = raw.astype(dtype, copy=False)
    n_bad = int(np.count_nonzero(~np.isfinite(converted)))
    if n_bad:
        raise ValueError(f"{name} must be {wanted}, got {n_bad} nan or infinite entries")
    return converted


def as_distribution(weights: Any, name: str, *, size: int | None = None, atol: float = 1e-8) -> np.ndarray:
    """Convert to a probability vector: non-negative, of total mass 1 within ``atol``.

    Parameters
    ----------
    weights : array_like of shape (n,)
        The probabilities.
    name : str
        Name of the argument, for the message.
    size : int, optional
        Required length.
    atol : float, default=1e-8
        Accepted deviation of the sum from 1 and of an entry below 0.

    Returns
    -------
    numpy.ndarray of shape (n,)
        In float64, with entries in ``[-atol, 0)`` set to 0 and rescaled to total mass 1.

    Raises
    ------
    TypeError, ValueError
        If it is not a finite vector of that size, has a negative entry, or does not sum to 1.

    Examples
    --------
    >>> from assay.validation import as_distribution
    >>> as_distribution([0.25, 0.75], "p")
    array([0.25, 0.75])
    """
    vector = as_float_array(weights, name, ndim=1)
    if size is not None and vector.shape != (size,):
        raise ValueError(f"{name} must have length {size}, got {vector.shape[0]}")
    if vector.min() < -atol:
        raise ValueError(f"{name} must be non-negative, got a minimum of {vector.min():g}")
    if abs(vector.sum() - 1.0) > atol:
        raise ValueError(f"{name} must sum to 1 (within {atol:g}), got a sum of {vector.sum():.12g}")
    vector = np.maximum(vector, 0.0)
    return vector / vector.sum()


def as_generator(rng: Any, name: str = "rng") -> np.random.Generator:
    """Turn ``None``, a seed or a generator into a :class:`numpy.random.Generator`.

    Parameters
    ----------
    rng : None, int, numpy.random.SeedSequence or numpy.random.Generator
        None gives fresh entropy. The global state of numpy is never used.
    name : str, default="rng"
        Name of the argument, for the message.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    TypeError
        For anything else, a legacy ``RandomState`` included.
    ValueError
        For a negative seed.

    Examples
    --------
    >>> from assay.validation import as_generator
    >>> float(as_generator(0).random()) == float(as_generator(0).random())
    True
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, bool) or not (rng is None or isinstance(rng, numbers.Integral | np.random.SeedSequence)):
        raise TypeError(f"{name} must be None, a seed or a numpy.random.Generator, got {type(rng).__name__}")
    if isinstance(rng, numbers.Integral) and rng < 0:
        raise ValueError(f"{name} must be a non-negative seed, got {rng}")
    return np.random.default_rng(rng)


def check_choice(option: Any, name: str, choices: Iterable[str]) -> str:
    """Check that an option is one of ``choices`` and return it.

    Parameters
    ----------
    option : str
        What the user passed.
    name : str
        Name of the argument, for the message.
    choices : iterable of str
        What is accepted.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If it is not one of them.

    Examples
    --------
    >>> from assay.validation import check_choice
    >>> check_choice("newton", "method", ("ssn", "prm+"))
    Traceback (most recent call last):
        ...
    ValueError: method must be one of 'ssn', 'prm+', got 'newton'
    """
    accepted = tuple(choices)
    if not isinstance(option, str) or option not in accepted:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, accepted))}, got {option!r}")
    return option


def check_integer(number: Any, name: str, *, minimum: int | None = None) -> int:
    """Check that ``number`` is an integer (a float that happens to be whole is not) and at least ``minimum``.

    Parameters
    ----------
    number : int
        What the user passed.
    name : str
        Name of the argument, for the message.
    minimum : int, optional
        Smallest accepted value.

    Returns
    -------
    int

    Raises
    ------
    TypeError
        If it is not an integer.
    ValueError
        If it is too small.

    Examples
    --------
    >>> from assay.validation import check_integer
    >>> check_integer(0, "max_iter", minimum=1)
    Traceback (most recent call last):
        ...
    ValueError: max_iter must be at least 1, got 0
    """
    if isinstance(number, bool | np.bool_) or not isinstance(number, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {number!r}")
    if minimum is not None and number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return int(number)


def check_real(
    number: Any,
    name: str,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    allow_infinite: bool = False,
) -> float:
    """Check that ``number`` is a real number in an interval.

    Parameters
    ----------
    number : float
        What the user passed.
    name : str
        Name of the argument, for the message.
    above, below : float, optional
        Open ends of the interval.
    minimum, maximum : float, optional
        Closed ends of the interval.
    allow_infinite : bool, default=False
        Whether an infinity is accepted; nan never is.

    Returns
    -------
    float

    Raises
    ------
    TypeError
        If it is not a real number.
    ValueError
        If it is nan, infinite (unless allowed), or outside the interval.

    Examples
    --------
    >>> from assay.validation import check_real
    >>> check_real(-1, "tol", above=0)
    Traceback (most recent call last):
        ...
    ValueError: tol must be greater than 0, got -1
    """
    scalar = number.item() if getattr(number, "ndim", None) == 0 and hasattr(number, "item") else number
    if isinstance(scalar, bool | np.bool_) or not isinstance(scalar, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {number!r}")
    try:
        value = float(scalar)
    except OverflowError:  # an integer
        value = math.inf if scalar > 0 else -math.inf
    if math.isnan(value) or (math.isinf(value) and not allow_infinite):
        raise ValueError(f"{name} must be finite, got {value}")
    if above is not None and not value > above:
        raise ValueError(f"{name} must be greater than {above:g}, got {value:g}")
    if minimum is not None and not value >= minimum:
        raise ValueError(f"{name} must be at least {minimum:g}, got {value:g}")
    if maximum is not None and not value <= maximum:
        raise ValueError(f"{name} must be at most {maximum:g}, got {value:g}")
    if below is not None and not value < below:
        raise ValueError(f"{name} must be less than {below:g}, got {value:g}")
    return value
