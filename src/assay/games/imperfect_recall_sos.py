r"""The best strategy of a player who forgets, with a proof that no other is better.

A player with imperfect recall commits to one mixture per information set, and the payoff is a polynomial in them. Its
maximum over the strategies is sandwiched: from above by semidefinite relaxations in the moments of a distribution over
strategies, whose multipliers write *bound minus payoff* as sums of squares; from below by the payoff of a strategy
that is read off the moments and improved by local search. Where nobody is absent-minded some pure strategy is optimal;
the monomials that differ on pure strategies are few, and a relaxation in them is exact at the latest when its order is
the number of information sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from assay.games.imperfect_optimum import SOLVERS, ExAnteResult, OwnStrategies
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.validation import check_choice, check_real, warn_not_converged

__all__ = ["ExAnteResult", "ex_ante_optimum"]


def ex_ante_optimum(
    game: ImperfectRecallGame,
    player: int = 0,
    order: int | None = None,
    max_order: int | None = None,
    tol: float = 1e-6,
    vertex: bool | str = "auto",
    kkt: bool = False,
    solver: str = "auto",
    *,
    others: Sequence[ArrayLike] | np.ndarray | None = None,
    force: bool = False,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> ExAnteResult:
    r"""Best behavioural strategy of a player who may forget, and a proved bound on all others.

    .. math:: \max_{x \in \prod_j \Delta_{m_j}} u(x)

    Parameters
    ----------
    game : ImperfectRecallGame
        The game.
    player : int, default=0
        Who maximises.
    order : int, optional
        Order of the only relaxation to solve.
    max_order : int, optional
        Largest order; by default one more than the number of information sets for pure strategies, and two more than
        the least order otherwise.
    tol : float, default=1e-6
        Gap to reach, in payoff units.
    vertex : {"auto", True, False}, default="auto"
        Whether to relax over pure strategies, which is exact where the player is not absent-minded, and refused where
        he is. ``"auto"`` does it where it is exact.
    kkt : bool, default=False
        Whether to add first-order conditions. Relaxations of larger order, but exact at some finite order for almost
        all payoffs.
    solver : {"auto", "clarabel", "cvxopt", "scs"}, default="auto"
        Conic solver that is asked first. ``"auto"``: CVXOPT for pure strategies and for matrices of more than 60 rows,
        Clarabel otherwise. Others follow when the multipliers fail their check.
    others : sequence of array_like, optional
        Profile with the strategies of the other players; needed where there are several. Those of ``player`` in it are
        not read.
    force : bool, default=False
        Whether to try what may not fit into memory.
    callback : callable, optional
        Called after each order with a dict of the columns of ``history``. Return True to stop.

    Returns
    -------
    ExAnteResult
        Its ``history`` has a row per order: ``order``, ``upper_bound`` (of that order alone), ``value``, ``rank``,
        ``side``, ``moments``, ``seconds``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, an order is too small for the polynomials, or the first relaxation takes
        more than half of the memory of the machine.
    MissingExtraError
        If no conic solver is installed.

    Warns
    -----
    ConvergenceWarning
        If the gap is above ``tol``.

    Notes
    -----
    With n free variables a relaxation of order d has a matrix of side binom(n + d, d), or of
    :math:`\sum_{k \le d} e_k(m_1 - 1, \dots, m_l - 1)` for pure strategies, ``e_k`` being the elementary symmetric
    polynomials. With m moments an iteration of CVXOPT costs O(m side^3 + m^2 side^2) and O(m side^2) memory.

    Payoffs are divided by the largest one before they are relaxed, so that no gap below about 1e-10 of it can be
    proved.

    References
    ----------
    .. [1] Zheng, Sim, Varvitsiotis. Solving Imperfect-Recall Games via Sum-of-Squares Optimization. ICML 2026.
       arXiv:2602.21722.
    .. [2] J.-B. Lasserre. Global Optimization with Polynomials and the Problem of Moments. SIAM Journal on Optimization
       11, 2001.

    Examples
    --------
    Chance picks an edge of a triangle, the player colours both ends without remembering the first, and wants different
    colours. Two edges of three are the best that can be had, whatever the mixture:

    >>> from assay.games.imperfect_recall_game import ImperfectRecallGame
    >>> from assay.games.imperfect_recall_sos import ex_ante_optimum
    >>> edge = lambda i, j: {(i, j): 1 / 3, (j, i): 1 / 3}
    >>> unit = lambda k: [int(k == i) for i in range(6)]
    >>> u = {}
    >>> for i, j in ((0, 1), (1, 2), (2, 0)):
    ...     for a, b in ((2 * i, 2 * j + 1), (2 * i + 1, 2 * j)):
    ...         u[tuple(p + q for p, q in zip(unit(a), unit(b)))] = 1 / 3
    >>> game = ImperfectRecallGame.from_polynomials([u], [[0, 1], [2, 3], [4, 5]], [0, 0, 0])
    >>> best = ex_ante_optimum(game)
    >>> round(best.value, 6), best.status, best.order, best.certified
    (0.666667, 'optimal', 2, True)
    """
    player, tol = _checked(game, player, tol)
    check_choice(solver, "solver", SOLVERS)
    for name, flag in (("kkt", kkt), ("force", force)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {flag!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be None or a function of one row of the history, got {callback!r}")
    vertex = _checked_vertex(game, player, vertex)
    profile = _others(game, player, others)
    task = OwnStrategies(game, player, profile, vertex, bool(kkt))
    result = task.solve(order, max_order, tol, solver, bool(force), callback)
    if result.status != "optimal":
        warn_not_converged("ex_ante_optimum", len(result.history.get("order", ())), result.gap, tol)
    return result


def _checked(game: ImperfectRecallGame, player: int, tol: float) -> tuple[int, float]:
    if not isinstance(game, ImperfectRecallGame):
        raise TypeError(f"game must be an ImperfectRecallGame, got {type(game).__name__}")
    return game.player_index(player), check_real(tol, "tol", above=0.0)


def _checked_vertex(game: ImperfectRecallGame, player: int, vertex: bool | str) -> bool:
    absent = game.is_absentminded(player)
    if isinstance(vertex, str) and vertex == "auto":
        return not absent
    if not isinstance(vertex, bool | np.bool_):
        raise ValueError(f"vertex must be 'auto', True or False, got {vertex!r}")
    if vertex and absent:
        raise ValueError(
            "vertex must not be True for an absent-minded player, for whom no pure strategy need be optimal"
        )
    return bool(vertex)


def _others(
    game: ImperfectRecallGame, player: int, others: Sequence[ArrayLike] | np.ndarray | None
) -> tuple[np.ndarray, ...]:
    """A whole profile; where there is nobody else, of uniform strategies."""
    if others is not None:
        return game.strategy(others, "others")
    deciding = {
        infoset.player for infoset, simplex in zip(game.infosets, game.simplices, strict=True) if len(simplex) > 1
    }
    if deciding - {player}:
        raise ValueError(
            f"others must be given where other players decide (here {sorted(deciding - {player})}): a profile with "
            "their strategies, which are held fixed"
        )
    return tuple(np.full(len(simplex), 1.0 / len(simplex)) for simplex in game.simplices)
