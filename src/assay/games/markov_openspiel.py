r"""Games of OpenSpiel as tabular Markov games: real rules for methods that want transition probabilities.

A game with simultaneous moves (or with turns) in which nobody has private information is a Markov game whose states are
the texts of its positions after every number of moves. They are enumerated move by move, chance included.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float

from assay.extras import import_extra
from assay.games.markov_model import MarkovGameModel
from assay.games.tree_readers import load_openspiel
from assay.validation import check_integer

__all__ = ["OpenSpielMarkovGame", "openspiel_markov_game"]


class OpenSpielMarkovGame(NamedTuple):
    """A Markov game, the references that are uniform on the legal moves, and what its numbers stand for.

    Parameters
    ----------
    model : MarkovGameModel
        Rewards are mapped from ``[-scale, scale]`` to [0, 1]: ``(r + scale) / (2 scale)`` at the end, 1/2 before.
    mu_ref, nu_ref : numpy.ndarray of shape (n_states, n_actions)
        Uniform on the legal moves.
    scale : float
        Largest utility of the game.
    states : list of str
        Text of each state; the last one is the end of the game. A position that can be reached after different numbers
        of moves has a state for each of them, because a rule may count moves.
    steps : list of int
        Moves before each state.
    moves : list of pair of list of int
        Moves of OpenSpiel that the actions of both players stand for. Where fewer are legal than elsewhere, several
        actions stand for the same move.
    """

    model: MarkovGameModel
    mu_ref: Float[np.ndarray, "states rows"]
    nu_ref: Float[np.ndarray, "states columns"]
    scale: float
    states: list[str]
    steps: list[int]
    moves: list[tuple[list[int], list[int]]]


def openspiel_markov_game(game: Any, *, max_states: int = 20_000) -> OpenSpielMarkovGame:
    """Convert a game of OpenSpiel.

    Parameters
    ----------
    game : str or pyspiel.Game
        A two-player zero-sum game with perfect information, such as ``"goofspiel(num_cards=3,imp_info=False)"`` or
        ``"matrix_rps"``.
    max_states : int, default=20_000
        Most states; a game that may go on and on has too many of them.

    Returns
    -------
    OpenSpielMarkovGame
        Its value for the first player is ``scale * (2 * V - horizon)``, V being the value of the Markov game.

    Raises
    ------
    assay.extras.MissingExtraError
        If OpenSpiel is not installed.
    TypeError
        If it is neither a name nor a game.
    ValueError
        If OpenSpiel does not know the name, the game is of another kind, or it has too many states.

    Examples
    --------
    >>> from assay.games.markov_openspiel import openspiel_markov_game
    >>> openspiel_markov_game("matrix_rps").model  # doctest: +SKIP
    MarkovGameModel(horizon=1, n_states=2, n_actions=(3, 3))
    """
    pyspiel = import_extra("pyspiel", extra="games")
    max_states = check_integer(max_states, "max_states", minimum=1)
    loaded = load_openspiel(game)
    kind = loaded.get_type()
    zero_sum = kind.utility == pyspiel.GameType.Utility.ZERO_SUM
    open_hands = kind.information in (
        pyspiel.GameType.Information.PERFECT_INFORMATION,
        pyspiel.GameType.Information.ONE_SHOT,
    )
    if loaded.num_players() != 2 or not zero_sum or not open_hands:
        raise ValueError(f"game must be zero-sum, of two players and without private information, got {loaded}")
    return _enumerate(loaded, max_states)


def _enumerate(game: Any, max_states: int) -> OpenSpielMarkovGame:
    numbers: dict[tuple[int, str], int] = {}
    pending: list[tuple[int, Any]] = []
    moves: list[tuple[list[int], list[int]]] = []
    transitions: list[tuple[int, int, int, int, float]] = []
    finals: dict[tuple[int, int, int], float] = {}

    def number_of(step: int, state: Any) -> int:
        key = (step, str(state))
        if key not in numbers:
            if len(numbers) >= max_states:
                raise ValueError(
                    f"game must have at most max_states={max_states} states, got more (a position counts once for each "
                    "number of moves after which it can come)"
                )
            numbers[key] = len(numbers)
            pending.append((step, state))
            moves.append(_legal(state))
        return numbers[key]

    first = [(chance, number_of(0, state)) for chance, state in _past_chance(game.new_initial_state())]
    s = 0
    while s < len(pending):
        step, state = pending[s]
        for i, mine in enumerate(moves[s][0]):
            for j, theirs in enumerate(moves[s][1]):
                for chance, successor in _past_chance(_after(state, mine, theirs)):
                    if successor.is_terminal():
                        finals[s, i, j] = finals.get((s, i, j), 0.0) + chance * successor.returns()[0]
                        transitions.append((s, i, j, -1, chance))
                    else:
                        transitions.append((s, i, j, number_of(step + 1, successor), chance))
        s += 1
    scale = max(abs(float(game.max_utility())), abs(float(game.min_utility())))
    return _assemble(list(numbers), moves, transitions, finals, first, scale)


def _assemble(
    keys: list[tuple[int, str]],
    moves: list[tuple[list[int], list[int]]],
    transitions: list[tuple[int, int, int, int, float]],
    finals: dict[tuple[int, int, int], float],
    first: list[tuple[float, int]],
    scale: float,
) -> OpenSpielMarkovGame:
    end, horizon = len(keys), 1 + max(step for step, _ in keys)
    n_rows, n_columns = (max(len(pair[player]) for pair in moves) for player in (0, 1))
    shape = (end + 1, n_rows, n_columns)
    rewards = np.full(shape, 0.5)
    triplets: list[tuple[float, int, int]] = []
    by_cell: dict[tuple[int, int, int], list[tuple[int, float]]] = {}
    for s, i, j, successor, chance in transitions:
        by_cell.setdefault((s, i, j), []).append((end if successor < 0 else successor, chance))
    mu_ref, nu_ref = np.zeros((end + 1, n_rows)), np.zeros((end + 1, n_columns))
    mu_ref[end], nu_ref[end] = 1 / n_rows, 1 / n_columns
    for s, (mine, theirs) in enumerate(moves):
        # Action k is the k-th legal move, counted round and round, and a move shares its probability among its actions.
        row_move, column_move = np.arange(n_rows) % len(mine), np.arange(n_columns) % len(theirs)
        mu_ref[s] = (1 / (len(mine) * np.bincount(row_move)))[row_move]
        nu_ref[s] = (1 / (len(theirs) * np.bincount(column_move)))[column_move]
        for a in range(n_rows):
            for b in range(n_columns):
                cell = (s, int(row_move[a]), int(column_move[b]))
                rewards[s, a, b] += finals.get(cell, 0.0) / (2 * scale)
                flat = (s * n_rows + a) * n_columns + b
                triplets += [(chance, flat, successor) for successor, chance in by_cell[cell]]
    for pair in range(n_rows * n_columns):
        triplets.append((1.0, end * n_rows * n_columns + pair, end))
    chances, rows, columns = (np.array(column) for column in zip(*triplets, strict=True))
    P = sp.csr_array((chances, (rows, columns)), shape=((end + 1) * n_rows * n_columns, end + 1))
    rho = np.zeros(end + 1)
    for chance, s in first:
        rho[s] += chance
    model = MarkovGameModel(P, np.clip(rewards, 0.0, 1.0), horizon=horizon, rho=rho)
    spread = [
        (
            [mine[k % len(mine)] for k in range(n_rows)],
            [theirs[k % len(theirs)] for k in range(n_columns)],
        )
        for mine, theirs in moves
    ]
    steps = [step for step, _ in keys]
    return OpenSpielMarkovGame(
        model, mu_ref, nu_ref, scale, [*(text for _, text in keys), "end"], [*steps, horizon], spread
    )


def _legal(state: Any) -> tuple[list[int], list[int]]:
    if state.is_simultaneous_node():
        return list(state.legal_actions(0)), list(state.legal_actions(1))
    own = list(state.legal_actions())
    return (own, [0]) if state.current_player() == 0 else ([0], own)


def _after(state: Any, mine: int, theirs: int) -> Any:
    child = state.clone()
    if state.is_simultaneous_node():
        child.apply_actions([mine, theirs])
    else:
        child.apply_action(mine if state.current_player() == 0 else theirs)
    return child


def _past_chance(state: Any) -> list[tuple[float, Any]]:
    """States of players or ends of the game that chance leads to, with their probabilities."""
    if not state.is_chance_node():
        return [(1.0, state)]
    return [
        (chance * further, successor)
        for outcome, chance in state.chance_outcomes()
        for further, successor in _past_chance(state.child(outcome))
    ]
