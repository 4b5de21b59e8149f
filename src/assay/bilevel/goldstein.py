r"""Descent for a function that is Lipschitz but neither smooth nor convex, to a Goldstein stationary point.

The value of a bilevel problem with constraints below has kinks wherever the active set changes, and the gradient at a
point says little about its neighbourhood. A :math:`(\delta, \epsilon)`-Goldstein point is one around which some convex
combination of gradients, taken within :math:`\delta`, has norm at most :math:`\epsilon`. The method treats the moves
as an online learning problem: over a block of steps whose total length is :math:`\delta`, online gradient descent
makes the moves as good as the best fixed one, and that is the direction of the mean gradient. Either the function has
fallen, or the mean is small.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import ArrayLike

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.validation import as_float_array, as_generator, check_integer, check_real, warn_not_converged

__all__ = ["GoldsteinResult", "goldstein_descent"]

_LARGEST_BLOCK = 200_000_000


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GoldsteinResult(Result):
    """A point with a small mean of gradients around it.

    Parameters
    ----------
    x : numpy.ndarray of shape (d,)
        Mean of the points of the block.
    mean_gradient : numpy.ndarray of shape (d,)
        Mean of the gradients at them.
    stationarity : float
        Its norm plus ``eps / 8``, the error that the oracle may have.
    points, gradients : numpy.ndarray of shape (M, d)
        The block.
    block_length : int
        M, the number of steps of a block.
    n_calls : int
        Calls of the oracle.
    call_budget : int
        Calls that suffice in expectation.
    n_blocks : int
        Blocks that were used.
    """

    x: Float[ndarray, " d"]
    mean_gradient: Float[ndarray, " d"]
    stationarity: float
    points: Float[ndarray, "M d"]
    gradients: Float[ndarray, "M d"]
    block_length: int
    n_calls: int
    call_budget: int
    n_blocks: int


def goldstein_descent(
    oracle: Any,
    x0: ArrayLike,
    delta: float,
    eps: float,
    lipschitz: float,
    f_gap: float,
    *,
    max_blocks: int | None = None,
    rng: Any = None,
    callback: Any = None,
) -> GoldsteinResult:
    r"""Find a :math:`(\delta, \epsilon)`-Goldstein stationary point of a Lipschitz function.

    Parameters
    ----------
    oracle : callable
        Takes a point of shape (d,) and returns a gradient there, of the same shape, with an error of norm at most
        ``eps / 8``. A function that is not differentiable everywhere is so at almost every point that is asked for.
    x0 : array_like of shape (d,)
        Where to start.
    delta : float
        Radius around the answer within which the gradients are taken.
    eps : float
        Bound on the norm of their mean.
    lipschitz : float
        Lipschitz constant of the function.
    f_gap : float
        Value at the start minus the infimum, or an upper bound of it.
    max_blocks : int, optional
        Stop after so many blocks; by default when the budget of calls is used up.
    rng : None, int or numpy.random.Generator
        Draws where along each move the gradient is taken.
    callback : callable, optional
        Called after every block with a dict of its row of the history; a true return value stops the descent.

    Returns
    -------
    GoldsteinResult
        With the certificates

        1. norm of the mean gradient plus ``eps / 8`` at most ``eps``,
        2. points of the block within ``delta`` of their mean,
        3. calls at most the budget.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the oracle returns something else than a finite vector of the size of ``x0``.

    Warns
    -----
    ConvergenceWarning
        If no block passed; the best one is returned.

    Notes
    -----
    With :math:`G` the Lipschitz constant plus :math:`\epsilon / 8`, a block has :math:`M = \lceil (2 G / \epsilon)^2
    \rceil` steps of length at most :math:`D = \delta / M`, so that all its points lie within :math:`\delta` of each
    other. A step is ``x + Delta``; the gradient is taken at a uniform point of it, which makes its product with
    ``Delta`` equal to the change of the function in expectation; and ``Delta`` takes a step of online gradient descent,
    of size :math:`D / (G \sqrt M)`, and is clipped to norm :math:`D`. The regret against the best fixed move is at most
    :math:`D G \sqrt M` per block. Summed over blocks,

    .. math::

        \frac1K \sum_k \Bigl\|\frac1M \sum_i g_i\Bigr\| \le \frac{\mathtt{f\_gap}\, M}{\delta T} + \frac{G}{\sqrt M}
        + \frac{\epsilon}{8}
        \le \frac{\epsilon}{4} + \frac{\epsilon}{2} + \frac{\epsilon}{8}

    for :math:`T = \lceil 4\, \mathtt{f\_gap}\, M / (\delta \epsilon) \rceil = O(\delta^{-1} \epsilon^{-3})` calls, in
    expectation over the points. The descent stops at the first block that passes. Blocks are whole: what is left of the
    budget after the last one is not used.

    References
    ----------
    .. [1] Z. Zhao, K.-C. Mo, S.-H. Ho, B. Amos, K. Wang. A Fully First-Order Layer for Differentiable Optimization.
       ICML 2026, arXiv:2512.02494.
    .. [2] A. Cutkosky, H. Mehta, F. Orabona. Optimal Stochastic Non-smooth Non-convex Optimization through
       Online-to-Non-convex Conversion. ICML 2023, arXiv:2302.03775.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.bilevel import goldstein_descent
    >>> result = goldstein_descent(np.sign, [1.0, -2.0], delta=0.5, eps=0.5, lipschitz=2 ** 0.5, f_gap=3.0, rng=0)
    >>> result.certified, bool(np.abs(result.x).max() < 0.5)
    (True, True)
    """
    if not callable(oracle):
        raise TypeError(f"oracle must be a callable, got {type(oracle).__name__}")
    start = as_float_array(x0, "x0", ndim=1)
    delta, eps = check_real(delta, "delta", above=0), check_real(eps, "eps", above=0)
    lipschitz, f_gap = check_real(lipschitz, "lipschitz", above=0), check_real(f_gap, "f_gap", minimum=0)
    random = as_generator(rng)
    bound = lipschitz + eps / 8
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a callable, got {type(callback).__name__}")
    length = math.ceil((2 * bound / eps) ** 2)
    if length * start.size > _LARGEST_BLOCK:
        raise ValueError(
            f"eps must be so large that a block has at most {_LARGEST_BLOCK:g} numbers, got {eps:g}, "
            f"with which it has {length} points of {start.size}"
        )
    budget = max(math.ceil(4 * f_gap * length / (delta * eps)), length)
    n_blocks = budget // length
    if max_blocks is not None:
        n_blocks = min(n_blocks, check_integer(max_blocks, "max_blocks", minimum=1))
    best: tuple[Float[ndarray, "M d"], Float[ndarray, "M d"]] | None = None
    least, x, largest = math.inf, start.copy(), 0.0
    history: dict[str, list[float]] = {"iteration": [], "seconds": [], "stationarity": [], "largest_gradient": []}
    begin = time.perf_counter()
    for block in range(1, n_blocks + 1):
        points, gradients, x = _block(oracle, x, length, delta / length, bound, random)
        reached = float(np.linalg.norm(gradients.mean(axis=0))) + eps / 8
        largest = max(largest, float(np.linalg.norm(gradients, axis=1).max()))
        if best is None or reached < least:
            best, least = (points, gradients), reached
        row = {
            "iteration": block,
            "seconds": time.perf_counter() - begin,
            "stationarity": reached,
            "largest_gradient": largest,
        }
        for name, entry in row.items():
            history[name].append(entry)
        if reached <= eps or (callback is not None and callback(row)):
            break
    if least > eps:
        warn_not_converged("goldstein_descent", block, least, eps)
    points, gradients = best
    centre, mean = points.mean(axis=0), gradients.mean(axis=0)
    steep = Assumption("gradients are not longer than the Lipschitz constant says", largest <= bound * (1 + 1e-12))
    close = Assumption("the oracle is within eps / 8 of a gradient")
    spread = float(np.linalg.norm(points - centre, axis=1).max())
    certificates = (
        Certificate("norm of the mean gradient of a block, plus eps / 8", least, eps, "<=", (steep, close)),
        Certificate("distance of its points to their mean", spread, delta),
        Certificate("calls of the oracle", block * length, budget),
    )
    return GoldsteinResult(
        x=centre,
        mean_gradient=mean,
        stationarity=float(np.linalg.norm(mean)) + eps / 8,
        points=points,
        gradients=gradients,
        block_length=length,
        n_calls=block * length,
        call_budget=budget,
        n_blocks=block,
        certificates=certificates,
        history={name: np.array(column) for name, column in history.items()},
    )


def _block(
    oracle: Callable[[Any], Any],
    x: Float[ndarray, " d"],
    length: int,
    longest: float,
    bound: float,
    random: np.random.Generator,
) -> tuple[Float[ndarray, "M d"], Float[ndarray, "M d"], Float[ndarray, " d"]]:
    """One block of online gradient descent on the moves, which starts from no move."""
    step_size = longest / (bound * math.sqrt(length))
    move = np.zeros(x.size)
    points, gradients = np.empty((length, x.size)), np.empty((length, x.size))
    for i in range(length):
        points[i] = x + random.random() * move
        x = x + move
        gradients[i] = _checked(oracle(points[i].copy()), x.size)
        move = move - step_size * gradients[i]
        norm = float(np.linalg.norm(move))
        if norm > longest:
            move *= longest / norm
    return points, gradients, x


def _checked(gradient: Any, size: int) -> Float[ndarray, " d"]:
    found = as_float_array(gradient, "the gradient of oracle", ndim=1)
    if found.size != size:
        raise ValueError(f"oracle must return a gradient of shape ({size},), got {found.shape}")
    return found
