"""First-order bilevel methods to run on the hard instances, with step sizes from the constants of the instance.

A method is a function ``method(oracle, dim_x, dim_y, budget)`` that yields its upper iterates; a user's own is run in
the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.bilevel.hard_instances import HardBilevel
from assay.bilevel.hard_run import HardRunResult, Method, Oracle, check_instance, run_method
from assay.bilevel.oracle_counter import OracleOutput
from assay.validation import check_integer, check_real

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
    check_instance(instance)
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
        :math:`\lambda`; by default ten times ``Lf / mu``, above which the problem in :math:`y` is strongly convex.
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
    check_instance(instance)
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
    check_instance(instance)
    scale = check_real(scale, "scale", above=0.0)
    parameters = _theory(instance, scale / instance.constants.kappa, penalty, 1, 1.0)
    return functools.partial(_penalty, **parameters, momentum=0.0)


def value_function_gd(instance: HardBilevel, scale: float = 1.0, penalty: float | None = None) -> Method:
    r"""Gradient descent on :math:`f(x, y) + \lambda (g(x, y) - \min g(x, \cdot))` in both variables at once.

    The lower minimum at the new :math:`x` is found anew for each step, by as many gradient steps as the condition
    number, from where the last one ended. The step in :math:`y` is the inverse of the smoothness in :math:`y`.

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
    parameters["step_y"] = 1 / instance.constants.Lg
    return functools.partial(_finite_difference, **parameters, width=instance.constants.lam)


def _theory(
    instance: HardBilevel, scale: float, penalty: float | None, inner_steps: int | None, share: float
) -> dict[str, Any]:
    """Steps, penalty and inner steps from the constants that a user of the method knows.

    The upper step is ``scale`` over the smoothness of the hyper-objective, the lower one the inverse of that of
    ``f / penalty + g``, which is strongly convex in ``y`` as soon as the penalty is above ``Lf / mu``: by default it is
    ten times that. A lower problem gets ``share`` times the condition number of steps.
    """
    check_instance(instance)
    c = instance.constants
    scale = check_real(scale, "scale", above=0.0)
    penalty = 10 * c.Lf / c.mu if penalty is None else check_real(penalty, "penalty", above=0.0)
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
