"""Counting what an algorithm asks for, and checking that it touches only what it has been told of.

A *zero-respecting* algorithm moves a coordinate away from zero only after some gradient it has received was nonzero
there. Gradient descent, momentum, Adam, conjugate gradients and penalty methods are; an algorithm that draws a random
start is not. Lower bounds on oracle calls are statements about these algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from assay.bilevel.hard_chain import first_not_shown
from assay.validation import check_integer

__all__ = ["OracleBudgetError", "OracleCounter", "OracleOutput", "Violation"]


class OracleBudgetError(RuntimeError):
    """An algorithm asked for more oracle calls than it was given."""


class OracleOutput(NamedTuple):
    """What one call of a first-order bilevel oracle returns.

    Attributes
    ----------
    f, g : float
        Upper and lower objective.
    fx, fy, gx, gy : numpy.ndarray
        Their gradients in the upper variable (shape ``(dim_x,)``) and in the lower one (shape ``(dim_y,)``).
    """

    f: float
    g: float
    fx: np.ndarray
    fy: np.ndarray
    gx: np.ndarray
    gy: np.ndarray


@dataclass(frozen=True)
class Violation:
    """A coordinate that was moved away from zero before any gradient showed it.

    Attributes
    ----------
    call : int
        Number of calls that had been answered.
    variable : str
        ``"x"`` or ``"y"``.
    coordinate : int
    """

    call: int
    variable: str
    coordinate: int


class OracleCounter:
    """Counts the calls of an oracle and follows which coordinates have been shown.

    Parameters
    ----------
    dim_x, dim_y : int
        Numbers of upper and lower variables.

    Attributes
    ----------
    calls : int
        Calls so far.
    limit : int or None
        Calls that are allowed.
    shown_x, shown_y : numpy.ndarray of bool
        Coordinates that a zero-respecting method may have moved by now.
    first_violation : Violation or None

    Examples
    --------
    >>> from assay.bilevel import hard_instance
    >>> instance = hard_instance(kappa=50, eps=0.1)
    >>> out = instance.oracle([0.0] * instance.dim_x, [0.0] * instance.dim_y)
    >>> instance.counter.calls, int(instance.counter.shown_y.sum()), instance.counter.zero_respecting
    (1, 1, True)
    """

    def __init__(self, dim_x: int, dim_y: int) -> None:
        self.dim_x = check_integer(dim_x, "dim_x", minimum=1)
        self.dim_y = check_integer(dim_y, "dim_y", minimum=1)
        self.limit: int | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything but the limit."""
        self.calls = 0
        self.shown_x: Bool[np.ndarray, " dim_x"] = np.zeros(self.dim_x, dtype=np.bool_)
        self.shown_y: Bool[np.ndarray, " dim_y"] = np.zeros(self.dim_y, dtype=np.bool_)
        self.first_violation: Violation | None = None

    @property
    def zero_respecting(self) -> bool:
        """Whether no query has moved a coordinate that had not been shown."""
        return self.first_violation is None

    def check(self, x: Float[np.ndarray, " dim_x"], y: Float[np.ndarray, " dim_y"] | None = None) -> None:
        """Check a point against what has been shown, without counting it.

        Parameters
        ----------
        x : numpy.ndarray of shape (dim_x,)
        y : numpy.ndarray of shape (dim_y,), optional
        """
        if self.first_violation is not None:
            return
        for name, point, shown in (("x", x, self.shown_x), ("y", y, self.shown_y)):
            if point is not None:
                coordinate = int(first_not_shown(point, shown))
                if coordinate >= 0:
                    self.first_violation = Violation(self.calls, name, coordinate)
                    return

    def ask(self) -> None:
        """Count one call.

        Raises
        ------
        OracleBudgetError
            If the limit has been reached.
        """
        if self.limit is not None and self.calls >= self.limit:
            raise OracleBudgetError(f"the budget of {self.limit} oracle calls is used up")
        self.calls += 1
