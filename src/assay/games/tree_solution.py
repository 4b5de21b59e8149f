"""One call for a game tree of any kind: which method it wants, and the strategies by the names of the game.

A game of two players who forget nothing and share no interest is solved in sequence form; one player who may forget,
by a hierarchy of relaxations with a proved bound; whatever else, by the search for an equilibrium in behavioural
strategies, which may also prove that there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.certificate import Certificate
from assay.games.game_tree import GameTree
from assay.result import Result
from assay.validation import check_choice, check_integer, check_real

__all__ = ["TreeSolution", "solve_game_tree"]

METHODS = ("auto", "asymmetric", "sos")
# Below, squares of differences and shares of a tolerance are lost to underflow.
_SMALLEST_PAYOFF = 1e-100
_TOL = {"asymmetric": 1e-9, "optimum": 1e-6, "equilibrium": 1e-5}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TreeSolution(Result):
    """Strategies of a game tree, by the names that the game gives.

    Attributes
    ----------
    method : {"asymmetric", "sos"}
        What solved it: gradient play with one perturbed player, or moment relaxations.
    status : {"equilibrium", "optimal", "no_equilibrium", "unresolved"}
        What the strategies are. With ``"no_equilibrium"`` it is proved that behavioural strategies have none.
    players : tuple of str
    strategies : dict
        From the player's name to the label of the information set to the action to its probability.
    payoffs : numpy.ndarray of shape (n_players,)
        What each player receives on average, computed on the tree.
    gains : numpy.ndarray of shape (n_players,)
        What each player could gain at most by deviating alone; in an optimum of one player, the distance to the
        proved bound.
    answer : Result
        What the method returned.
    """

    method: str
    status: str
    players: tuple[str, ...]
    strategies: dict[str, dict[str, dict[str, float]]]
    payoffs: Float[np.ndarray, " players"]
    gains: Float[np.ndarray, " players"]
    answer: Any = field(repr=False)


def solve_game_tree(
    tree: Any, method: str = "auto", tol: float | None = None, *, max_iter: int = 100_000
) -> TreeSolution:
    r"""Solve a game in extensive form with the method that its kind wants.

    Parameters
    ----------
    tree : GameTree
        From OpenSpiel, Gambit or JSON.
    method : {"auto", "asymmetric", "sos"}, default="auto"
        ``"asymmetric"`` is for two players with perfect recall in a zero-sum game, and what ``"auto"`` takes there;
        ``"sos"`` is for small games of any other kind.
    tol : float, optional
        What all players together may gain (``"asymmetric"``, 1e-9 of the largest payoff by default), the gap to the
        proved bound (one player, 1e-6 of it), or what each may gain (several, 1e-5 of it), in units of the payoffs.
    max_iter : int, default=100_000
        Steps of each run of ``"asymmetric"``.

    Returns
    -------
    TreeSolution

    Raises
    ------
    TypeError
        If ``tree`` is no game tree.
    ValueError
        If ``"asymmetric"`` is asked for and the game is not of its kind, payoffs are too small to compute with, or a
        relaxation does not fit into memory.

    See Also
    --------
    asym_dgda, ex_ante_optimum, find_nash

    Examples
    --------
    >>> from assay.games import GameTree, solve_game_tree
    >>> leaf = lambda payoff: {"type": "leaf", "payoffs": [payoff, -payoff]}
    >>> guess = lambda left, right: {
    ...     "type": "decision", "player": "Odd", "infoset": "guess",
    ...     "actions": [{"label": "heads", "child": leaf(left)}, {"label": "tails", "child": leaf(right)}]}
    >>> tree = GameTree.from_json({"players": ["Even", "Odd"], "root": {
    ...     "type": "decision", "player": "Even", "infoset": "hide",
    ...     "actions": [{"label": "heads", "child": guess(3, -1)}, {"label": "tails", "child": guess(-1, 1)}]}})
    >>> solution = solve_game_tree(tree)
    >>> {action: round(p, 6) for action, p in solution.strategies["Even"]["hide"].items()}
    {'heads': 0.333333, 'tails': 0.666667}
    >>> solution.payoffs.round(6), solution.certified
    (array([ 0.333333, -0.333333]), True)
    """
    if not isinstance(tree, GameTree):
        raise TypeError(f"tree must be a GameTree, got {type(tree).__name__}")
    check_choice(method, "method", METHODS)
    tol = None if tol is None else check_real(tol, "tol", above=0.0)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    if method == "auto":
        remembers = all(tree.recall_violation(player) is None for player in range(len(tree.players)))
        method = "asymmetric" if len(tree.players) == 2 and tree.is_zero_sum() and remembers else "sos"
    largest = float(np.abs(tree.payoffs).max())
    if 0 < largest < _SMALLEST_PAYOFF:
        raise ValueError(f"payoffs must be 0 or at least {_SMALLEST_PAYOFF:g} somewhere, got at most {largest:g}")
    if method == "sos":
        method = "optimum" if len(tree.players) == 1 else "equilibrium"
    if tol is None:
        tol = _TOL[method] * (largest or 1.0)
    if method == "asymmetric":
        return _asymmetric(tree, tol, max_iter)
    return _optimum(tree, tol) if method == "optimum" else _equilibrium(tree, tol)


def _asymmetric(tree: GameTree, tol: float, max_iter: int) -> TreeSolution:
    from assay.games.asymmetric_trees import asym_dgda
    from assay.games.sequence_form import SequenceFormGame

    game = SequenceFormGame.from_tree(tree)
    answer = asym_dgda(game, n_iter=max_iter, eps=tol)
    local: list[np.ndarray] = [np.empty(0)] * len(tree.infosets)
    for player, plan in ((0, answer.x), (1, answer.y)):
        behaviour = game.behaviour(player, plan)
        for index in tree.infosets_of(player):
            local[index] = behaviour[tree.infosets[index].label]
    at_play = game.value(answer.x, answer.y)
    gains = np.array([at_play - answer.value_lower, answer.value_upper - at_play])
    status = "equilibrium" if answer.converged else "unresolved"
    return _solution(tree, "asymmetric", status, local, gains, answer)


def _optimum(tree: GameTree, tol: float) -> TreeSolution:
    from assay.games import ImperfectRecallGame, ex_ante_optimum

    answer = ex_ante_optimum(ImperfectRecallGame.from_tree(tree), tol=tol)
    return _solution(tree, "sos", answer.status, answer.x, np.array([answer.gap]), answer)


def _equilibrium(tree: GameTree, tol: float) -> TreeSolution:
    from assay.games import ImperfectRecallGame, find_nash

    answer = find_nash(ImperfectRecallGame.from_tree(tree), tol=tol)
    gains = np.full(len(tree.players), np.nan) if answer.gains is None else np.asarray(answer.gains, dtype=np.float64)
    return _solution(tree, "sos", answer.status, answer.x, gains, answer)


def _solution(tree: GameTree, method: str, status: str, local: Any, gains: np.ndarray, answer: Any) -> TreeSolution:
    strategies: dict[str, dict[str, dict[str, float]]] = {player: {} for player in tree.players}
    payoffs = np.full(len(tree.players), np.nan)
    if local is not None and len(local):
        payoffs = tree.expected_payoffs(local)
        for infoset, row in zip(tree.infosets, local, strict=True):
            by_action = {action: float(p) for action, p in zip(infoset.actions, row, strict=True)}
            strategies[tree.players[infoset.player]][infoset.label] = by_action
    certificates: tuple[Certificate, ...] = answer.certificates
    return TreeSolution(
        method=method,
        status=status,
        players=tree.players,
        strategies=strategies,
        payoffs=payoffs,
        gains=gains,
        answer=answer,
        certificates=certificates,
    )
