"""The Markov games of the study: random ones, soccer on a grid, and games of OpenSpiel."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.games.markov_gap import MarkovEquilibrium, nash_gap, regularized_equilibrium, regularized_gap
from assay.games.markov_model import MarkovGameModel
from assay.games.offline_data import OfflineGameData

BETAS = (0.2, 0.5, 1.0)
ROWS, COLUMNS, STEPS = 4, 5, 12
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))
_GOAL_ROWS = (1, 2)


@dataclass(frozen=True, eq=False)
class RuledGame:
    """A game with known rules, and the references that both players are pulled to (None is uniform)."""

    name: str
    model: MarkovGameModel
    mu_ref: Any = None
    nu_ref: Any = None
    noise: str | None = "bernoulli"

    @property
    def references(self) -> tuple[Any, Any]:
        """As the methods take them."""
        given = (self.mu_ref, self.nu_ref)
        return tuple("uniform" if reference is None else reference for reference in given)

    def gaps(self, beta: float, mu: np.ndarray, nu: np.ndarray) -> tuple[float, float]:
        """The gap with the pull to the references, and without."""
        return (
            regularized_gap(self.model, beta, self.mu_ref, self.nu_ref, mu, nu),
            nash_gap(self.model, mu, nu),
        )

    def sample(self, n: int, behaviour: Any, seed: int, replication: int) -> OfflineGameData:
        """The same log for every contender."""
        rng = np.random.default_rng([seed, n, replication])
        return self.model.sample_dataset(n, behaviour, rng, noise=self.noise)


def random_game(seed: int, n_states: int = 5, n_actions: int = 3, horizon: int = 4) -> RuledGame:
    """Dirichlet transitions and uniform rewards."""
    rng = np.random.default_rng(seed)
    shape = (horizon, n_states, n_actions, n_actions)
    P = rng.dirichlet(np.ones(n_states), size=shape)
    return RuledGame("random", MarkovGameModel(P, rng.uniform(0, 1, shape)))


def equilibrium(game: RuledGame, beta: float) -> MarkovEquilibrium:
    """What is to be found: the solution of the true game."""
    return regularized_equilibrium(game.model, beta, game.mu_ref, game.nu_ref)


def unilateral_behaviour(solution: MarkovEquilibrium) -> np.ndarray:
    """One player at equilibrium and the other uniform, in turns, with 5 % of both uniform."""
    mu, nu = solution.mu, solution.nu
    flat_mu, flat_nu = np.full_like(mu, 1 / mu.shape[-1]), np.full_like(nu, 1 / nu.shape[-1])
    one, other = _together(mu, flat_nu), _together(flat_mu, nu)
    return 0.475 * one + 0.475 * other + 0.05 * _together(flat_mu, flat_nu)


def deterministic_behaviour(solution: MarkovEquilibrium) -> np.ndarray:
    """In every state the likeliest actions of the equilibrium, and nothing else."""
    mu, nu = (np.eye(policy.shape[-1])[policy.argmax(axis=-1)] for policy in (solution.mu, solution.nu))
    return _together(mu, nu)


def _together(mu: np.ndarray, nu: np.ndarray) -> np.ndarray:
    return mu[..., :, None] * nu[..., None, :]


@functools.lru_cache(maxsize=1)
def soccer() -> RuledGame:
    """Two players on 4 x 5 cells, one of whom has the ball; who carries it off the far side between the posts scores.

    Both choose at once among four directions and standing still, and move in random order; who runs into the other
    leaves the ball to it. The reward is 1 for a goal, 0 for one against, and 1/2 otherwise; after a goal the game is
    over. A direction that leads off the field is standing still, and the references are uniform on what is different.
    """
    cells = [(row, column) for row in range(ROWS) for column in range(COLUMNS)]
    states = [(one, two, ball) for one in cells for two in cells if one != two for ball in (0, 1)]
    numbers = {state: k for k, state in enumerate(states)}
    # Whoever has scored, the game stays where it is, and rewards of 1/2 cancel.
    end = len(states)
    table: dict[int, dict[tuple[int, int], list[tuple[float, int, float, bool]]]] = {}
    references = np.full((2, end + 1, len(_MOVES)), 1 / len(_MOVES))
    for state, s in numbers.items():
        for player in (0, 1):
            legal = np.array([_is_legal(state, player, move) for move in _MOVES])
            standing = ~legal | (np.arange(len(_MOVES)) == len(_MOVES) - 1)
            references[player, s] = np.where(standing, 1 / standing.sum(), 1.0) / legal.sum()
        table[s] = {
            (a, b): [(0.5, *_play(state, a, b, first, numbers, end), False) for first in (0, 1)]
            for a in range(len(_MOVES))
            for b in range(len(_MOVES))
        }
    table[end] = {pair: [(1.0, end, 0.5, False)] for pair in table[0]}
    rho = np.zeros(end + 1)
    for ball in (0, 1):
        rho[numbers[(1, 1), (2, 3), ball]] = 0.5
    model = MarkovGameModel.from_transition_lists(table, STEPS, rho=rho)
    return RuledGame("soccer", model, references[0], references[1], noise=None)


def _is_legal(state: tuple, player: int, move: tuple[int, int]) -> bool:
    return _scores(state, player, move) or _target(state[player], move) is not None


def _target(cell: tuple[int, int], move: tuple[int, int]) -> tuple[int, int] | None:
    row, column = cell[0] + move[0], cell[1] + move[1]
    return (row, column) if 0 <= row < ROWS and 0 <= column < COLUMNS else None


def _scores(state: tuple, player: int, move: tuple[int, int]) -> bool:
    row, column = state[player]
    beyond = COLUMNS if player == 0 else -1
    return state[2] == player and row in _GOAL_ROWS and move[0] == 0 and column + move[1] == beyond


def _play(state: tuple, a: int, b: int, first: int, numbers: dict[tuple, int], end: int) -> tuple[int, float]:
    """Next state and reward when ``first`` moves first."""
    now = list(state)
    for player in (first, 1 - first):
        move = _MOVES[(a, b)[player]]
        if _scores(tuple(now), player, move):
            return end, 1.0 - player
        target = _target(now[player], move)
        if target == now[1 - player]:
            now[2] = 1 - player  # a collision leaves the ball with the one who was there
        elif target is not None:
            now[player] = target
    return numbers[tuple(now)], 0.5


def real_rules() -> list[tuple[str, Any]]:
    """Games of OpenSpiel as Markov games, by their OpenSpiel names."""
    from assay.games.markov_openspiel import openspiel_markov_game

    names = ("matrix_rps", "goofspiel(num_cards=3,imp_info=False,points_order=descending)")
    return [(name, openspiel_markov_game(name)) for name in names]
