"""Timings that can be compared: the functions take turns, and their ratio is taken round by round.

A machine drifts (other processes, clock speed, caches), and two functions timed one after the other see
different machines. Here every round calls each function once, so that the drift cancels in the ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["Ratio", "Timings", "interleave"]


@dataclass(frozen=True)
class Ratio:
    """Ratio of the median times of two functions, with the quartiles of the ratios of the single rounds."""

    median: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.lower:.3g}, {self.upper:.3g}]"


@dataclass(frozen=True)
class Timings:
    """Seconds of every round, by the name of the function; ``answers`` are what the last round returned."""

    seconds: Mapping[str, np.ndarray]
    answers: Mapping[str, Any]

    def median(self, name: str) -> float:
        """Median seconds of one function."""
        return float(np.median(self.seconds[name]))

    def ratio(self, numerator: str, denominator: str) -> Ratio:
        """How many times longer ``numerator`` takes than ``denominator``."""
        above, below = self.seconds[numerator], self.seconds[denominator]
        lower, upper = np.quantile(above / below, [0.25, 0.75])
        return Ratio(float(np.median(above) / np.median(below)), float(lower), float(upper))


def interleave(
    functions: Mapping[str, Callable[[], Any]],
    *,
    repeats: int = 5,
    warmup: int = 1,
    budget: float = float("inf"),
    clock: Literal["wall", "cpu"] = "wall",
) -> Timings:
    """Time functions in turns.

    Parameters
    ----------
    functions : mapping of str to callable
        Called without arguments.
    repeats : int, default=5
        Rounds that count; the order is reversed from one round to the next.
    warmup : int, default=1
        Rounds before them, for compilation and caches.
    budget : float, default=inf
        Seconds after which no further round is started (at least one is made).
    clock : {"wall", "cpu"}, default="wall"
        Elapsed time, or processor time of this process (all its threads).

    Returns
    -------
    Timings

    Examples
    --------
    >>> from assay.lab import interleave
    >>> timings = interleave({"one": lambda: sum(range(1000)), "ten": lambda: sum(range(10000))}, repeats=3)
    >>> timings.answers["one"], len(timings.seconds["one"])
    (499500, 3)
    >>> ratio = timings.ratio("ten", "one")  # median, and the quartiles over the rounds
    >>> ratio.lower <= ratio.upper
    True
    """
    tick = {"wall": time.perf_counter, "cpu": time.process_time}[clock]
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    answers: dict[str, Any] = {}
    for _ in range(warmup):
        for function in functions.values():
            function()
    started = time.perf_counter()
    for round_ in range(max(1, repeats)):
        if round_ and time.perf_counter() - started > budget:
            break
        for name in reversed(functions) if round_ % 2 else functions:
            begin = tick()
            answers[name] = functions[name]()
            seconds[name].append(tick() - begin)
    return Timings({name: np.array(column) for name, column in seconds.items()}, answers)
