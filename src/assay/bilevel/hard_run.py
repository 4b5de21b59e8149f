"""Running a method on a hard bilevel instance, and comparing its calls with the least number.

A method is a function ``method(oracle, dim_x, dim_y, budget)`` that yields its upper iterates; everything it learns
goes through ``oracle``, which counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.bilevel.hard_instances import HardBilevel, HardBilevelStochastic
from assay.bilevel.oracle_counter import OracleBudgetError, OracleOutput, Violation
from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.validation import as_float_array, check_integer, check_real

__all__ = ["HardRunResult", "Method", "Oracle", "check_instance", "run_method"]

Oracle = Callable[[Any, Any], OracleOutput]
Method = Callable[[Oracle, int, int, int], Iterable[Any]]

# iterates in a row without a call, after which a method is taken to be caught in a loop
_MOST_IDLE = 1_000


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HardRunResult(Result):
    """How a method fared on a hard instance.

    Attributes
    ----------
    calls : int
        Oracle calls until the tolerance was reached, or all that were used.
    calls_lower : int
        Calls before which no zero-respecting method has reached ``eps``.
    ratio : float
        ``calls / calls_lower``; at least 1 for every zero-respecting method that reached the tolerance.
    reached : bool
        Whether the tolerance was reached.
    grad_norm : float
        Stationarity of the last iterate: exact, and not counted.
    calls_last_variable : int or None
        Calls after which an iterate first had its last upper variable away from zero.
    progress : dict of str to numpy.ndarray
        ``calls`` and ``variables``: after how many calls which upper variable was the furthest that had been moved.
    zero_respecting : bool
        Whether no query and no iterate had moved a coordinate that had not been shown.
    first_violation : Violation or None
    projected : int
        Queries that left the boxes of a stochastic instance.
    single_level_calls, minimax_calls : float
        The counts for smooth minimisation and for min-max problems from the same constants, to compare orders.
    x : numpy.ndarray of shape (dim_x,)
        The last iterate.
    history : dict of str to numpy.ndarray
        ``calls`` and ``grad_norm`` at every iterate that was yielded.
    """

    calls: int
    calls_lower: int
    ratio: float
    reached: bool
    grad_norm: float
    calls_last_variable: int | None
    zero_respecting: bool
    first_violation: Violation | None
    projected: int
    single_level_calls: float
    minimax_calls: float
    x: Float[np.ndarray, " dim_x"]
    progress: dict[str, np.ndarray] = field(default_factory=dict)


def run_method(method: Method, instance: HardBilevel, max_calls: int, tol: float | None = None) -> HardRunResult:
    r"""Run a method on a hard instance and compare its calls with the lower bound.

    Parameters
    ----------
    method : callable
        ``method(oracle, dim_x, dim_y, budget)`` yields upper iterates of shape ``(dim_x,)``, as often as it likes;
        ``oracle(x, y)`` returns an :class:`OracleOutput`. It has to start at zero.
    instance : HardBilevel or HardBilevelStochastic
        Its counter is reset.
    max_calls : int
        The method is stopped when it asks for more.
    tol : float, optional
        Stationarity at which it is stopped, at most the ``eps`` of the instance, which is the default: above it the
        lower bound says nothing.

    Returns
    -------
    HardRunResult
        Certificates: that the stationarity is at least ``eps`` at every iterate before the lower bound; that the
        calls to ``eps`` are at least the lower bound, when it was reached.

    Raises
    ------
    ValueError
        If an iterate or a query has a wrong shape or a nan, or a thousand iterates in a row come without a call.
    TypeError
        If the method is not callable or gives no iterates, or the instance is something else.

    Examples
    --------
    >>> from assay.bilevel import chain_walker, hard_instance, run_method
    >>> instance = hard_instance(kappa=37, eps=0.1, T=2, n=3)
    >>> result = run_method(chain_walker(instance), instance, max_calls=100)
    >>> result.calls_last_variable, result.calls_lower, result.zero_respecting
    (8, 6, True)
    """
    if not callable(method):
        raise TypeError(f"method must be callable, got {type(method).__name__}")
    check_instance(instance)
    max_calls = check_integer(max_calls, "max_calls", minimum=1)
    eps = instance.constants.eps
    tol = eps if tol is None else check_real(tol, "tol", above=0.0, maximum=eps)
    counter, limit = instance.counter, instance.counter.limit
    instance.reset()
    counter.limit = max_calls
    x = np.zeros(instance.dim_x)
    norm = instance.stationarity(x)
    trace = [(0, norm)]
    moved = [(0, 0)]
    last_variable, idle = None, 0
    try:
        iterates = method(instance.oracle, instance.dim_x, instance.dim_y, max_calls)
        if not isinstance(iterates, Iterable):
            raise TypeError(f"method must yield its upper iterates, or return them, got {type(iterates).__name__}")
        for iterate in iterates:
            x = as_float_array(iterate, "iterate of the method", ndim=1).copy()
            if len(x) != instance.dim_x:
                raise ValueError(f"iterate of the method must have shape ({instance.dim_x},), got {x.shape}")
            idle = idle + 1 if counter.calls == trace[-1][0] else 0
            if idle > _MOST_IDLE:
                raise ValueError(f"method must call the oracle, got {idle} iterates without a call")
            counter.check(x)
            norm = instance.stationarity(x)
            trace.append((counter.calls, norm))
            furthest = int(np.flatnonzero(x)[-1]) + 1 if np.any(x) else 0
            if furthest > moved[-1][1]:
                moved.append((counter.calls, furthest))
            if last_variable is None and x[-1] != 0:
                last_variable = counter.calls
            if norm < tol:
                break
    except OracleBudgetError:
        pass
    finally:
        counter.limit = limit
    calls, norms = (np.asarray(column) for column in zip(*trace, strict=True))
    return HardRunResult(
        calls=int(counter.calls),
        calls_lower=instance.lower_bound_calls,
        ratio=counter.calls / max(instance.lower_bound_calls, 1),
        reached=bool(norm < tol),
        grad_norm=norm,
        calls_last_variable=last_variable,
        zero_respecting=counter.zero_respecting,
        first_violation=counter.first_violation,
        projected=instance.projected if isinstance(instance, HardBilevelStochastic) else 0,
        single_level_calls=float(instance.constants.single_level_calls),
        minimax_calls=instance.constants.minimax_calls,
        x=x,
        progress={"calls": np.array([c for c, _ in moved]), "variables": np.array([v for _, v in moved])},
        certificates=_certificates(instance, calls, norms),
        history={"calls": calls, "grad_norm": norms},
    )


def _certificates(instance: HardBilevel, calls: np.ndarray, norms: np.ndarray) -> tuple[Certificate, ...]:
    """Both sides of the lower bound, from the iterates alone."""
    bound, eps = instance.lower_bound_calls, instance.constants.eps
    assumptions = [Assumption("the method moves only coordinates it was shown", instance.counter.zero_respecting)]
    if isinstance(instance, HardBilevelStochastic):
        assumptions.append(Assumption("the noise is not among the luckiest half", None))
    before = norms[calls < bound] if np.any(calls < bound) else norms[:1]
    statement = f"smallest stationarity of an iterate before {bound} oracle calls"
    certificates = [Certificate(statement, float(before.min()), eps, ">=", tuple(assumptions))]
    below = np.flatnonzero(norms < eps)
    if below.size:
        statement = "oracle calls to a stationarity below eps"
        certificates.append(Certificate(statement, float(calls[below[0]]), bound, ">=", tuple(assumptions)))
    return tuple(certificates)


def check_instance(instance: HardBilevel) -> None:
    """Refuse what is not a hard instance."""
    if not isinstance(instance, HardBilevel):
        raise TypeError(f"instance must be a HardBilevel, got {type(instance).__name__}")
