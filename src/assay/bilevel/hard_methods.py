"""First-order bilevel methods on the hard instances, and how near each comes to the least number of calls.

A method is a function ``method(oracle, dim_x, dim_y, budget)`` that yields its upper iterates; everything it learns
goes through ``oracle``, which counts. Those below take their step sizes from the constants of the instance; a user's
own is run in the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.bilevel.hard_instances import HardBilevel, HardBilevelStochastic
from assay.bilevel.oracle_counter import OracleBudgetError, OracleOutput, Violation
from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.validation import as_float_array, check_integer, check_real

__all__ = [
    "HardRunResult",
    "chain_walker",
    "f2sa_single_loop",
    "finite_difference_hvp",
    "nesterov_inner_penalty",
    "penalty_f2sa",
    "run_method",
    "value_function_gd",
]

Oracle = Callable[[Any, Any], OracleOutput]
Method = Callable[[Oracle, int, int, int], Iterable[Any]]


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
        ``calls / calls_lower``.
    reached : bool
        Whether the tolerance was reached.
    grad_norm : float
        Stationarity of the last iterate: exact, and not counted.
    calls_last_variable : int or None
        Calls after which an iterate first had its last upper variable away from zero.
    progress : dict of str to numpy.ndarray
        ``calls`` and ``variables``: after how many calls how many upper variables had been moved.
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
        Stationarity at which it is stopped; the ``eps`` of the instance by default.

    Returns
    -------
    HardRunResult
        Certificates: that the stationarity is at least ``eps`` at every iterate before the lower bound; that the
        calls to ``eps`` are at least the lower bound, when it was reached.

    Raises
    ------
    ValueError
        If an iterate or a query has a wrong shape or a nan.

    Examples
    --------
    >>> from assay.bilevel import chain_walker, hard_instance, run_method
    >>> instance = hard_instance(kappa=37, eps=0.1, T=2, n=3)
    >>> result = run_method(chain_walker(instance), instance, max_calls=100)
    >>> result.calls_last_variable, result.calls_lower, result.zero_respecting
    (8, 6, True)
    """
    max_calls = check_integer(max_calls, "max_calls", minimum=1)
    eps = instance.constants.eps
    tol = eps if tol is None else check_real(tol, "tol", above=0.0)
    if not callable(method):
        raise TypeError(f"method must be callable, got {type(method).__name__}")
    if not isinstance(instance, HardBilevel):
        raise TypeError(f"instance must be a HardBilevel, got {type(instance).__name__}")
    counter = instance.counter
    instance.reset()
    counter.limit = max_calls
    x = np.zeros(instance.dim_x)
    norm = instance.stationarity(x)
    trace = [(0, norm)]
    moved = [(0, 0)]
    last_variable = None
    try:
        iterates = method(instance.oracle, instance.dim_x, instance.dim_y, max_calls)
        for iterate in iterates:
            x = as_float_array(iterate, "iterate of the method", ndim=1).copy()
            if len(x) != instance.dim_x:
                raise ValueError(f"iterate of the method must have shape ({instance.dim_x},), got {x.shape}")
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
        counter.limit = None
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
    certificates = [
        Certificate(
            f"smallest stationarity before {bound} oracle calls", float(before.min()), eps, ">=", tuple(assumptions)
        )
    ]
    below = np.flatnonzero(norms < eps)
    if below.size:
        certificates.append(
            Certificate(
                "oracle calls to a stationarity below eps", float(calls[below[0]]), bound, ">=", tuple(assumptions)
            )
        )
    return tuple(certificates)


# ---------------------------------------------------------------------- methods


def chain_walker(instance: HardBilevel) -> Method:
    """The fastest zero-respecting way along the chain: every call moves every coordinate that has been shown.

    It does not minimise anything. On the deterministic instance its last upper variable moves after exactly
    ``T n + 2`` calls, so that the lower bound ``T n`` cannot be raised by more than two calls with this argument.

    Parameters
    ----------
    instance : HardBilevel

    Returns
    -------
    callable
        A method for :func:`run_method`.
    """
    return functools.partial(_walk, size_x=instance.constants.source, size_y=_gate_opener(instance))


def _gate_opener(instance: HardBilevel) -> float:
    """A lower variable of this size opens the link after its block."""
    return instance.constants.lam / instance.constants.Cl


def _walk(
    oracle: Oracle, dim_x: int, dim_y: int, budget: int, *, size_x: float, size_y: float
) -> Iterator[Float[np.ndarray, " dim_x"]]:
    x, y = np.zeros(dim_x), np.zeros(dim_y)
    for _ in range(budget):
        answer = oracle(x, y)
        x[(answer.fx != 0) | (answer.gx != 0)] = size_x
        y[(answer.fy != 0) | (answer.gy != 0)] = size_y
        yield x


def penalty_f2sa(
    instance: HardBilevel, scale: float = 1.0, penalty: float | None = None, inner_steps: int | None = None
) -> Method:
    r"""The penalty method with inner loops (F2SA): two lower problems are solved anew for each upper step.

    :math:`y` follows :math:`f/\lambda + g`, :math:`z` follows :math:`g`, and
    :math:`x` moves along :math:`\nabla_x f + \lambda (\nabla_x g(x, y) - \nabla_x g(x, z))`.

    Parameters
    ----------
    instance : HardBilevel
    scale : float, default=1.0
        Upper step in units of the inverse smoothness of the hyper-objective.
    penalty : float, optional
        :math:`\lambda`; by default ten times the condition number.
    inner_steps : int, optional
        Gradient steps on each lower problem per upper step; by default the condition number, rounded up.

    Returns
    -------
    callable
        A method for :func:`run_method`.
    """
    return functools.partial(_penalty, **_theory(instance, scale, penalty, inner_steps, 1.0), momentum=0.0)


def nesterov_inner_penalty(
    instance: HardBilevel, scale: float = 1.0, penalty: float | None = None, inner_steps: int | None = None
) -> Method:
    r"""The penalty method whose lower problems are solved by Nesterov's method.

    Parameters
    ----------
    instance, scale, penalty
        As for :func:`penalty_f2sa`.
    inner_steps : int, optional
        Accelerated steps on each lower problem per upper step; by default twice the root of the condition number.

    Returns
    -------
    callable
        A method for :func:`run_method`.
    """
    root = float(np.sqrt(instance.constants.kappa))
    parameters = _theory(instance, scale, penalty, inner_steps, 2 / root)
    return functools.partial(_penalty, **parameters, momentum=(root - 1) / (root + 1))


def f2sa_single_loop(instance: HardBilevel, scale: float = 1.0, penalty: float | None = None) -> Method:
    """The penalty method in a single loop: one step on each lower problem per upper step.

    Parameters
    ----------
    instance, penalty
        As for :func:`penalty_f2sa`.
    scale : float, default=1.0
        Upper step in units of the inverse smoothness of the hyper-objective over the condition number.

    Returns
    -------
    callable
        A method for :func:`run_method`.
    """
    scale = check_real(scale, "scale", above=0.0)
    parameters = _theory(instance, scale / instance.constants.kappa, penalty, 1, 1.0)
    return functools.partial(_penalty, **parameters, momentum=0.0)


def value_function_gd(instance: HardBilevel, scale: float = 1.0, penalty: float | None = None) -> Method:
    r"""Gradient descent on :math:`f(x, y) + \lambda (g(x, y) - \min g(x, \cdot))` in both variables at once.

    Parameters
    ----------
    instance, penalty
        As for :func:`penalty_f2sa`.
    scale : float, default=1.0
        Step in ``x`` in units of the inverse smoothness of the penalised objective.

    Returns
    -------
    callable
        A method for :func:`run_method`.
    """
    parameters = _theory(instance, scale, penalty, None, 1.0)
    c = instance.constants
    # the lower value min g(x, .) is Lg (1 + kappa)-smooth
    smoothness = parameters["penalty"] * (instance.smoothness_g + c.Lg * (1 + c.kappa)) + c.Lf
    parameters["step_x"] = parameters.pop("step_x") * c.smoothness_h / smoothness
    return functools.partial(_value_function, **parameters)


def finite_difference_hvp(instance: HardBilevel, scale: float = 1.0, inner_steps: int | None = None) -> Method:
    r"""Implicit differentiation whose Hessian products are differences of gradients.

    Parameters
    ----------
    instance, scale
        As for :func:`penalty_f2sa`.
    inner_steps : int, optional
        Gradient steps on the lower problem, and on the linear system, per upper step; by default the condition
        number, rounded up.

    Returns
    -------
    callable
        A method for :func:`run_method`.
    """
    parameters = _theory(instance, scale, None, inner_steps, 1.0)
    del parameters["penalty"]
    return functools.partial(_finite_difference, **parameters, width=instance.constants.lam)


def _theory(
    instance: HardBilevel, scale: float, penalty: float | None, inner_steps: int | None, share: float
) -> dict[str, Any]:
    """Steps and penalty from the constants that a user of the method knows."""
    c = instance.constants
    scale = check_real(scale, "scale", above=0.0)
    penalty = 10 * c.kappa if penalty is None else check_real(penalty, "penalty", above=0.0)
    if inner_steps is None:
        inner_steps = int(np.ceil(share * c.kappa))
    return {
        "penalty": penalty,
        "inner_steps": check_integer(inner_steps, "inner_steps", minimum=1),
        "step_x": scale / c.smoothness_h,
        "step_y": 1 / (c.Lf / penalty + c.Lg),
    }


def _penalty(
    oracle: Oracle,
    dim_x: int,
    dim_y: int,
    budget: int,
    *,
    penalty: float,
    inner_steps: int,
    step_x: float,
    step_y: float,
    momentum: float,
) -> Iterator[Float[np.ndarray, " dim_x"]]:
    x, y, z = np.zeros(dim_x), np.zeros(dim_y), np.zeros(dim_y)
    while True:
        y_ahead, z_ahead = y, z
        for _ in range(inner_steps):
            at_y, at_z = oracle(x, y_ahead), oracle(x, z_ahead)
            y_next = y_ahead - step_y * (at_y.fy / penalty + at_y.gy)
            z_next = z_ahead - step_y * at_z.gy
            y_ahead, z_ahead = y_next + momentum * (y_next - y), z_next + momentum * (z_next - z)
            y, z = y_next, z_next
        if inner_steps > 1:  # in a single loop the gradients at hand are used
            at_y, at_z = oracle(x, y), oracle(x, z)
        x = x - step_x * (at_y.fx + penalty * (at_y.gx - at_z.gx))
        yield x


def _value_function(
    oracle: Oracle,
    dim_x: int,
    dim_y: int,
    budget: int,
    *,
    penalty: float,
    inner_steps: int,
    step_x: float,
    step_y: float,
) -> Iterator[Float[np.ndarray, " dim_x"]]:
    x, y, z = np.zeros(dim_x), np.zeros(dim_y), np.zeros(dim_y)
    while True:
        for _ in range(inner_steps):
            z = z - step_y * oracle(x, z).gy
        at_y, at_z = oracle(x, y), oracle(x, z)
        x_next = x - step_x * (at_y.fx + penalty * (at_y.gx - at_z.gx))
        y = y - step_y * (at_y.fy / penalty + at_y.gy)
        x = x_next
        yield x


def _finite_difference(
    oracle: Oracle,
    dim_x: int,
    dim_y: int,
    budget: int,
    *,
    inner_steps: int,
    step_x: float,
    step_y: float,
    width: float,
) -> Iterator[Float[np.ndarray, " dim_x"]]:
    x, y, w = np.zeros(dim_x), np.zeros(dim_y), np.zeros(dim_y)
    while True:
        for _ in range(inner_steps):
            y = y - step_y * oracle(x, y).gy
        here = oracle(x, y)
        for _ in range(inner_steps):
            ahead, size = _ahead(oracle, x, y, w, width)
            w = w - step_y * ((ahead.gy - here.gy) * size - here.fy)
        ahead, size = _ahead(oracle, x, y, w, width)
        x = x - step_x * (here.fx - (ahead.gx - here.gx) * size)
        yield x


def _ahead(
    oracle: Oracle, x: np.ndarray, y: np.ndarray, direction: np.ndarray, width: float
) -> tuple[OracleOutput, float]:
    """The oracle at a point ahead, and what a difference to it has to be multiplied by."""
    norm = float(np.linalg.norm(direction))
    if norm == 0:
        return oracle(x, y), 0.0
    return oracle(x, y + (width / norm) * direction), norm / width
