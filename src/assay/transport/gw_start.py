"""Where a Gromov-Wasserstein descent may start: plans with exact marginals and without zeros."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from numba import njit

from assay.transport.gw_problem import GWProblem
from assay.transport.sinkhorn import round_to_marginals, scale_and_round
from assay.validation import as_float_array

__all__ = ["degree_plan", "initial_plans"]

# Scalings of the plan that pairs degrees.
_DEGREE_SCALINGS = 50

# Width of the kernel of degree differences, relative to their mean.
_DEGREE_WIDTH = 0.1

# Random plans among the starts of init="best".
_RANDOM_STARTS = 3

# Share of the product plan that is mixed into a start with zeros.
_ESCAPE = 1e-3

_MARGINAL_TOL = 1e-8


def degree_plan(problem: GWProblem) -> Float[np.ndarray, "n m"]:
    r"""Plan that pairs points of similar degree: ``exp(-|d_i - d_j| / (0.1 mean))``, brought to the marginals.

    Parameters
    ----------
    problem : GWProblem
        The degrees are the row sums of its matrices before normalisation.

    Returns
    -------
    numpy.ndarray of shape (n, m)
        The product plan when all degrees agree.

    Notes
    -----
    ``O(nm)``.

    Examples
    --------
    >>> import networkx as nx
    >>> from assay.transport.gw_problem import prepare_problem
    >>> from assay.transport.gw_start import degree_plan
    >>> degree_plan(prepare_problem(nx.path_graph(3), nx.path_graph(3))).round(3)
    array([[0.167, 0.   , 0.167],
           [0.   , 0.333, 0.   ],
           [0.167, 0.   , 0.167]])
    """
    d1, d2 = problem.degrees1, problem.degrees2
    mean = _mean_difference(d1, d2)
    if mean <= 1e-12 * max(float(np.abs(d1).max()), float(np.abs(d2).max())):
        return np.outer(problem.p, problem.q)
    kernel = np.empty((len(d1), len(d2)))
    _degree_exponents(d1, d2, 1.0 / (_DEGREE_WIDTH * mean), kernel)
    np.exp(kernel, out=kernel)
    return scale_and_round(kernel, problem.p, problem.q, _DEGREE_SCALINGS, kernel)


def initial_plans(problem: GWProblem, init: Any, rng: np.random.Generator) -> Iterator[Float[np.ndarray, "n m"]]:
    """Starts for the descent, one after the other.

    Parameters
    ----------
    problem : GWProblem
        The problem.
    init : {"degree", "uniform", "best"} or array_like
        A plan between all the caller's points, or which plans to make.
    rng : numpy.random.Generator
        For the random plans of ``"best"``.

    Yields
    ------
    numpy.ndarray of shape (n, m)
        A new array every time.

    Raises
    ------
    TypeError, ValueError
        If ``init`` is none of these, or is not a coupling of the two distributions.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_problem import prepare_problem
    >>> from assay.transport.gw_start import initial_plans
    >>> problem = prepare_problem(1 - np.eye(3), 1 - np.eye(3))
    >>> len(list(initial_plans(problem, "best", np.random.default_rng(0))))
    5
    """
    if not isinstance(init, str):
        yield _given_plan(problem, init)
        return
    if init not in ("degree", "uniform", "best"):
        raise ValueError(f"init must be 'degree', 'uniform', 'best' or a plan, got {init!r}")
    if init in ("degree", "best"):
        yield degree_plan(problem)
    if init in ("uniform", "best"):
        yield np.outer(problem.p, problem.q)
    if init == "best":
        for _ in range(_RANDOM_STARTS):
            start = rng.random((len(problem.p), len(problem.q)))
            yield round_to_marginals(start, problem.p, problem.q, start)


def _given_plan(problem: GWProblem, init: Any) -> np.ndarray:
    plan = as_float_array(init, "init", ndim=2)
    if plan.shape != problem.shape:
        raise ValueError(f"init must have shape {problem.shape}, got {plan.shape}")
    p, q = np.zeros(problem.shape[0]), np.zeros(problem.shape[1])
    p[problem.kept1], q[problem.kept2] = problem.p, problem.q
    if plan.min() < -_MARGINAL_TOL:
        raise ValueError(f"init must be non-negative, got a minimum of {plan.min():g}")
    error = max(float(np.abs(plan.sum(axis=1) - p).max()), float(np.abs(plan.sum(axis=0) - q).max()))
    if error > _MARGINAL_TOL:
        raise ValueError(
            f"init must have the marginals p and q (within {_MARGINAL_TOL:g}), got an error of {error:.3g}"
        )
    plan = np.maximum(plan[np.ix_(problem.kept1, problem.kept2)], 0.0)
    if plan.min() == 0.0:
        plan = (1.0 - _ESCAPE) * plan + _ESCAPE * np.outer(problem.p, problem.q)
    return round_to_marginals(plan, problem.p, problem.q, plan)


@njit(cache=True)
def _mean_difference(d1, d2):
    total = 0.0
    for x in d1:
        for y in d2:
            total += abs(x - y)
    return total / (len(d1) * len(d2))


@njit(cache=True)
def _degree_exponents(d1, d2, rate, out):
    """Each row less its smallest difference: the scaling takes that back, and no row underflows."""
    for i in range(len(d1)):
        nearest = np.inf
        for j in range(len(d2)):
            out[i, j] = abs(d1[i] - d2[j])
            nearest = min(nearest, out[i, j])
        for j in range(len(d2)):
            out[i, j] = (nearest - out[i, j]) * rate
