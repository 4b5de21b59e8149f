r"""Nash equilibria in behavioural strategies of players who may forget, or a proof that there are none.

With imperfect recall a game need not have an equilibrium in behavioural strategies. All that there are satisfy the
first-order conditions of all players, which are polynomial equations and inequalities. *Select* the point of that set
at which a random quadratic is least, by semidefinite relaxations; *verify* for each player, by others, that no
strategy gains; if one does, *cut*: every equilibrium gives the player at least what that deviation would, which is one
more polynomial inequality that the point violates. When a relaxation has no feasible point, its multipliers prove that
no equilibrium exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from assay.games.imperfect_optimum import SOLVERS
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.games.imperfect_search import NashResult, SelectVerifyCut
from assay.validation import as_generator, check_choice, check_integer, check_real, warn_not_converged

__all__ = ["NashResult", "find_nash"]


def find_nash(
    game: ImperfectRecallGame,
    tol: float = 1e-5,
    max_order: int = 4,
    max_cuts: int = 50,
    all_equilibria: bool = False,
    rng: Any = 0,
    *,
    solver: str = "auto",
    force: bool = False,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> NashResult:
    r"""Nash equilibrium in behavioural strategies, or a proof that there is none.

    Finds ``x`` with :math:`u_i(x) \ge u_i(x_i', x_{-i})` for every player and every strategy of the player, where all
    information sets of a player may deviate together.

    Parameters
    ----------
    game : ImperfectRecallGame
        The game.
    tol : float, default=1e-5
        Gain from deviating that is accepted, in payoff units.
    max_order : int, default=4
        Largest order of a relaxation.
    max_cuts : int, default=50
        Most inequalities to add.
    all_equilibria : bool, default=False
        Whether to go on until it is proved that there are no others. Only for games with finitely many, which the
        random quadratic then tells apart.
    rng : None, int or numpy.random.Generator, default=0
        For the random quadratic.
    solver : {"auto", "clarabel", "cvxopt", "scs"}, default="auto"
        Conic solver that is asked first.
    force : bool, default=False
        Whether to try what may not fit into memory.
    callback : callable, optional
        Called after each selection with a dict of the columns of ``history``. Return True to stop.

    Returns
    -------
    NashResult
        Its ``history`` has a row per selection: ``order``, ``objective`` (of the random quadratic), ``gain`` (largest
        proved gain, nan for an infeasible relaxation), ``cuts``, ``seconds``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, ``max_order`` is too small for the polynomials, or the first relaxation
        takes more than half of the memory of the machine.

    Warns
    -----
    ConvergenceWarning
        If it remains ``"unresolved"``.

    Notes
    -----
    A relaxation of order d has a matrix of side binom(n + d, d) for n free variables of all players together, so that
    about a dozen binary information sets are possible. With perfect recall, linear programming is far better.

    References
    ----------
    .. [1] Zheng, Sim, Varvitsiotis. Solving Imperfect-Recall Games via Sum-of-Squares Optimization. ICML 2026.
       arXiv:2602.21722.
    .. [2] J. Nie, X. Tang. Convex Generalized Nash Equilibrium Problems and Polynomial Optimization. Mathematical
       Programming 198, 2023.

    Examples
    --------
    A shooter picks a side of the goal twice, having forgotten the first time, and pays if the two differ; the keeper
    guesses. No pair of mixtures is an equilibrium:

    >>> from assay.games.imperfect_nash import find_nash
    >>> from assay.games.imperfect_recall_game import ImperfectRecallGame
    >>> u = {}
    >>> for p in (0, 1):
    ...     for q in (0, 1):
    ...         for r in (0, 1):
    ...             key = (p, 1 - p, q, 1 - q, r, 1 - r)
    ...             u[key] = (1 - 2 * r) * (p + q - 1) - 2.0 * (p + q - 2 * p * q)
    >>> loss = {key: -payoff for key, payoff in u.items()}
    >>> game = ImperfectRecallGame.from_polynomials([u, loss], [[0, 1], [2, 3], [4, 5]], [0, 0, 1])
    >>> answer = find_nash(game)
    >>> answer.status, answer.certified
    ('no_equilibrium', True)
    """
    if not isinstance(game, ImperfectRecallGame):
        raise TypeError(f"game must be an ImperfectRecallGame, got {type(game).__name__}")
    tol = check_real(tol, "tol", above=0.0)
    max_order = check_integer(max_order, "max_order", minimum=1)
    max_cuts = check_integer(max_cuts, "max_cuts", minimum=0)
    for name, flag in (("all_equilibria", all_equilibria), ("force", force)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {flag!r}")
    check_choice(solver, "solver", SOLVERS)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be None or a function of one row of the history, got {callback!r}")
    rng = as_generator(rng)
    search = SelectVerifyCut(game, tol, max_order, max_cuts, bool(all_equilibria), rng, solver, callback, bool(force))
    result = search.run()
    if result.status == "unresolved":
        reached = float(result.gains.max()) if len(result.x) else math.nan
        warn_not_converged("find_nash", len(search.rows), reached, tol)
    return result
