"""How the temperature of a soft choice rises while a layer of generalized convex functions is trained.

A low temperature lets the gradient reach pieces that nobody chooses yet; a high one makes what is trained close to what
is used, where everyone takes the best piece.
"""

from __future__ import annotations

import math

from assay.validation import check_integer, check_real

__all__ = ["cosine_temperature", "geometric_temperature"]


def cosine_temperature(step: int, *, start: float = 5.0, end: float = 60.0, warmup: int = 1000) -> float:
    """Temperature that rises along half a cosine, and then stays.

    Parameters
    ----------
    step : int
        Number of the step, from 0.
    start, end : float, default=5.0 and 60.0
        First and last temperature, positive.
    warmup : int, default=1000
        Steps that it takes.

    Returns
    -------
    float

    Examples
    --------
    >>> from assay.transport.temperature_schedules import cosine_temperature
    >>> [cosine_temperature(step) for step in (0, 500, 1000, 5000)]
    [5.0, 32.5, 60.0, 60.0]
    """
    done = _progress(step, start, end, warmup)
    return end - (end - start) * 0.5 * (1.0 + math.cos(math.pi * done))


def geometric_temperature(step: int, *, start: float = 10.0, end: float = 200.0, warmup: int = 1200) -> float:
    """Temperature that rises by the same factor at every step, and then stays.

    Parameters
    ----------
    step : int
        Number of the step, from 0.
    start, end : float, default=10.0 and 200.0
        First and last temperature, positive.
    warmup : int, default=1200
        Steps that it takes.

    Returns
    -------
    float

    Examples
    --------
    >>> from assay.transport.temperature_schedules import geometric_temperature
    >>> [round(geometric_temperature(step, start=1.0, end=100.0, warmup=10), 6) for step in (0, 5, 10, 20)]
    [1.0, 10.0, 100.0, 100.0]
    """
    done = _progress(step, start, end, warmup)
    return start * (end / start) ** done


def _progress(step: int, start: float, end: float, warmup: int) -> float:
    """Share of the warm-up that is done."""
    check_real(start, "start", above=0)
    check_real(end, "end", above=0)
    return min(1.0, check_integer(step, "step", minimum=0) / check_integer(warmup, "warmup", minimum=1))
