"""Section 6 of the Law School Admission Test, the data set on which models of item responses are compared."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int8

__all__ = ["load_lsat6"]

# How many people gave each of the 32 patterns of answers, from 00000 to 11111; the first item is the leftmost digit.
_COUNTS = (3, 6, 2, 11, 1, 1, 3, 4, 1, 8, 0, 16, 0, 3, 2, 15,
           10, 29, 14, 81, 3, 28, 15, 80, 16, 56, 21, 173, 11, 61, 28, 298)  # fmt: skip


def load_lsat6() -> Int8[np.ndarray, "1000 5"]:
    """Answers of 1000 people to the five items of section 6 of the Law School Admission Test.

    Returns
    -------
    numpy.ndarray of shape (1000, 5)
        1 where the answer was right and 0 where it was wrong, in the order of the patterns of answers. A new array at
        every call.

    References
    ----------
    R. D. Bock, M. Lieberman. Fitting a response model for n dichotomously scored items. Psychometrika 35, 1970.

    Examples
    --------
    >>> from assay.data.lsat import load_lsat6
    >>> load_lsat6().sum(axis=0, dtype=int).tolist()
    [924, 709, 553, 763, 870]
    """
    patterns = (np.arange(32)[:, None] >> np.arange(4, -1, -1)) & 1
    return np.repeat(patterns, _COUNTS, axis=0).astype(np.int8)
