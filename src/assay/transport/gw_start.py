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

_NAMES = ("degree", "uniform", "best")

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
    if not _tells_apart(problem, mean):
        return np.outer(problem.p, problem.q)
    kernel = np.empty((len(d1), len(d2)))
    _degree_exponents(d1, d2, 1.0 / (_DEGREE_WIDTH * mean), kernel)
    np.exp(kernel, out=kernel)
    return scale_and_round(kernel, problem.p, problem.q, _DEGREE_SCALINGS, kernel)


def initial_plans(
    problem: GWProblem, init: Any, rng: np.random.Generator
) -> Iterator[tuple[str, Float[np.ndarray, "n m"]]]:
    """Starts for the descent, one after the other.

    Parameters
    ----------
    problem : GWProblem
        The problem.
    init : {"degree", "uniform", "best"}, sequence of these, or array_like
        Which plans to make, or a plan between all the caller's points.
    rng : numpy.random.Generator
        For the random plans of ``"best"``.

    Yields
    ------
    name : str
        ``"degree"``, ``"uniform"``, ``"random 1"`` and so on, or ``"given"``.
    plan : numpy.ndarray of shape (n, m)
        A new array every time. No start comes twice: when all degrees agree, the degree start is the uniform one.

    Raises
    ------
    TypeError, ValueError
        If ``init`` is none of these, or is not a coupling of the two distributions.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_problem import prepare_problem
    >>> from assay.transport.gw_start import initial_plans
    >>> path = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> problem = prepare_problem(path, 1 - np.eye(3))
    >>> [name for name, _ in initial_plans(problem, "best", np.random.default_rng(0))]
    ['degree', 'uniform', 'random 1', 'random 2', 'random 3']
    """
    names = [init] if isinstance(init, str) else init
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        if isinstance(names, list | tuple) and any(isinstance(name, str) for name in names):
            raise TypeError(f"init must hold names of starts only, got {init!r}")
        yield "given", _given_plan(problem, init)
        return
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        raise ValueError(f"init must be 'degree', 'uniform', 'best' or a plan, got {unknown[0]!r}")
    if not names:
        raise ValueError("init must name at least one start, got none")
    expanded: list[str] = []
    for name in names:
        randoms = [f"random {k + 1}" for k in range(_RANDOM_STARTS)]
        expanded += ["degree", "uniform", *randoms] if name == "best" else [name]
    product_tried = False
    for name in dict.fromkeys(expanded):
        if name.startswith("random"):
            start = rng.random((len(problem.p), len(problem.q)))
            yield name, round_to_marginals(start, problem.p, problem.q, start)
            continue
        is_product = name == "uniform" or not _tells_apart(
            problem, _mean_difference(problem.degrees1, problem.degrees2)
        )
        if not (is_product and product_tried):
            yield name, np.outer(problem.p, problem.q) if name == "uniform" else degree_plan(problem)
        product_tried = product_tried or is_product


def _tells_apart(problem: GWProblem, mean_difference: float) -> bool:
    """Whether degrees differ by more than rounding."""
    largest = max(float(np.abs(problem.degrees1).max()), float(np.abs(problem.degrees2).max()))
    return mean_difference > 1e-12 * largest


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
