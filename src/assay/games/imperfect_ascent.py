"""Local search over behavioural strategies, from wherever a relaxation left off.

Where nobody is absent-minded, the payoff is linear in the strategy of each information set: best responses, one
information set after another, end in pure strategies in finitely many steps. Otherwise sequential quadratic programming
does the same for all information sets at once. Neither ever returns less than it was given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from assay.games.imperfect_polynomials import CompiledPolynomial
from assay.games.matrix_game import project_simplex

__all__ = ["best_response_ascent", "local_ascent", "project_strategies", "quadratic_ascent"]


def project_strategies(point: Float[np.ndarray, " dim"], blocks: Sequence[int]) -> Float[np.ndarray, " dim"]:
    """Nearest point whose parts are strategies without their last action.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.imperfect_ascent import project_strategies
    >>> project_strategies(np.array([1.2, 0.6, 0.8]), [1, 2]).round(6).tolist()
    [1.0, 0.4, 0.6]
    """
    parts, at = [], 0
    for size in blocks:
        part = point[at : at + size]
        parts.append(project_simplex(np.append(part, 1.0 - part.sum()))[:-1])
        at += size
    return np.concatenate(parts) if parts else np.empty(0)


def local_ascent(
    payoff: CompiledPolynomial, blocks: Sequence[int], start: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, " dim"]:
    """A local maximum, at least as good as the projection of the start.

    Parameters
    ----------
    payoff : CompiledPolynomial
        In the free variables.
    blocks : sequence of int
        Free variables of each information set.
    start : numpy.ndarray of shape (dim,)
        Anywhere.

    Returns
    -------
    numpy.ndarray of shape (dim,)
    """
    point = project_strategies(start, blocks)
    if is_multiaffine(payoff, blocks):
        return best_response_ascent(payoff, blocks, point)
    better = quadratic_ascent(payoff, blocks, point)
    return better if payoff(better) >= payoff(point) else point


def is_multiaffine(payoff: CompiledPolynomial, blocks: Sequence[int]) -> bool:
    """Whether the degree in the variables of each information set is at most one."""
    starts = np.concatenate([[0], np.cumsum(blocks)[:-1]]).astype(int)
    if payoff.exponents.size == 0:
        return True
    return bool(np.add.reduceat(payoff.exponents, starts[np.array(blocks) > 0], axis=1).max() <= 1)


def best_response_ascent(
    payoff: CompiledPolynomial, blocks: Sequence[int], start: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, " dim"]:
    """Best responses at one information set after another, for a payoff that is linear in each."""
    point = start.copy()
    ends = np.cumsum(blocks)
    value = payoff(point)
    while True:
        for size, end in zip(blocks, ends, strict=True):
            slopes = payoff.gradient(point)[end - size : end]
            best = int(np.argmax(slopes)) if size and slopes.max() > 0 else -1
            point[end - size : end] = 0.0
            if best >= 0:
                point[end - size + best] = 1.0
        better = payoff(point)
        if better <= value + 1e-14 * max(1.0, abs(value)):
            return point
        value = better


def quadratic_ascent(
    payoff: CompiledPolynomial, blocks: Sequence[int], start: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, " dim"]:
    """Sequential quadratic programming, its end projected on the strategies."""
    rows = np.repeat(np.arange(len(blocks)), blocks)
    sums = -(rows[None, :] == np.arange(len(blocks))[:, None]).astype(float)
    sums = sums[np.array(blocks) > 1]  # bounds are enough for two actions
    constraints = [{"type": "ineq", "fun": lambda x: 1.0 + sums @ x, "jac": lambda x: sums}] if len(sums) else []
    answer = minimize(
        lambda x: -payoff(x),
        start,
        jac=lambda x: -payoff.gradient(x),
        method="SLSQP",
        bounds=[(0.0, 1.0)] * payoff.dim,
        constraints=constraints,
        options={"ftol": 1e-15, "maxiter": 300},
    )
    found = answer.x if np.all(np.isfinite(answer.x)) else start
    return project_strategies(found, blocks)
