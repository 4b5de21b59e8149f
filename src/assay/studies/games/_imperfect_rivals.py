"""What people use today for games with imperfect recall, on games of one player; and two relatives for two players."""

from __future__ import annotations

import importlib.util
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from assay.games.game_tree import CHANCE, LEAF, GameTree
from assay.games.imperfect_ascent import best_response_ascent
from assay.games.imperfect_polynomials import CompiledPolynomial
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.games.matrix_game import project_simplex

__all__ = [
    "Starts",
    "as_efg",
    "block_ascent",
    "counterfactual_regret",
    "enumerate_pure",
    "gambit_equilibria",
    "integer_program",
    "is_there",
    "projected_gradient",
]


@dataclass(frozen=True)
class Starts:
    """Values that a local search reached from many starts."""

    values: np.ndarray

    @property
    def best(self) -> float:
        """The largest one."""
        return float(self.values.max())

    def share_at(self, optimum: float) -> float:
        """Share of the starts that reached the optimum."""
        return float(np.mean(self.values >= optimum - 1e-6))


def enumerate_pure(game: ImperfectRecallGame, player: int = 0, x: Any = None) -> float:
    """Best payoff over all pure strategies of a player."""
    own = game.infosets_of(player)
    profile = list(game.random_strategy(0)) if x is None else list(x)
    compiled = CompiledPolynomial(game.polynomials[player], game.n_variables)
    order = [k for simplex in game.simplices for k in simplex]
    best = -math.inf
    for actions in itertools.product(*(range(len(game.simplices[j])) for j in own)):
        for j, a in zip(own, actions, strict=True):
            profile[j] = np.eye(len(game.simplices[j]))[a]
        flat = np.empty(game.n_variables)
        flat[order] = np.concatenate(profile)
        best = max(best, compiled(flat))
    return best


def integer_program(game: ImperfectRecallGame) -> float:
    """Best pure strategy by ``scipy.optimize.milp``: a binary per action and a variable per partial product.

    The products of a term are those of its variables in their order, shared by all terms that begin alike, which are
    the nodes of a tree. The variable of a node is at most that of its parent and at most that of its last action, and,
    as some payoffs are negative, at least one less than their sum.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    n = game.n_variables
    nodes: dict[tuple[int, ...], int] = {}
    cost = np.zeros(n)
    constant, payoffs = 0.0, {}
    for exponent, coefficient in game.polynomials[0].items():
        path = tuple(k for k, power in enumerate(exponent) if power)
        if not path:
            constant += coefficient
        for length in range(2, len(path) + 1):
            nodes.setdefault(path[:length], n + len(nodes))
        payoffs[path] = payoffs.get(path, 0.0) + coefficient
    cost = np.zeros(n + len(nodes))
    for path, coefficient in payoffs.items():
        if path:
            cost[path[0] if len(path) == 1 else nodes[path]] += coefficient
    rows, lower, upper = [], [], []

    def add(terms: dict[int, float], low: float, high: float) -> None:
        rows.append(terms)
        lower.append(low)
        upper.append(high)

    for simplex in game.simplices:
        add(dict.fromkeys(simplex, 1.0), 1.0, 1.0)
    for path, node in nodes.items():
        parent = path[0] if len(path) == 2 else nodes[path[:-1]]
        add({node: 1.0, parent: -1.0}, -np.inf, 0.0)
        add({node: 1.0, path[-1]: -1.0}, -np.inf, 0.0)
        add({node: 1.0, parent: -1.0, path[-1]: -1.0}, -1.0, np.inf)
    import scipy.sparse as sp

    index = [(i, k, value) for i, terms in enumerate(rows) for k, value in terms.items()]
    i, k, value = (np.array(column) for column in zip(*index, strict=True))
    matrix = sp.csr_array((value, (i, k)), shape=(len(rows), n + len(nodes)))
    answer = milp(
        -cost,
        constraints=LinearConstraint(matrix, lower, upper),
        integrality=np.concatenate([np.ones(n), np.zeros(len(nodes))]),
        bounds=Bounds(0.0, 1.0),
        options={"mip_rel_gap": 0.0},
    )
    return constant - float(answer.fun)


def block_ascent(game: ImperfectRecallGame, n_starts: int, rng: np.random.Generator) -> Starts:
    """Best responses at one information set after another, from random mixtures, where nobody is absent-minded."""
    payoff = CompiledPolynomial(game.reduced[0], sum(len(simplex) - 1 for simplex in game.simplices))
    blocks = [len(simplex) - 1 for simplex in game.simplices]
    values = [
        payoff(best_response_ascent(payoff, blocks, game.free_part(game.random_strategy(rng)))) for _ in range(n_starts)
    ]
    return Starts(game.payoff_scale * np.array(values))


def projected_gradient(
    game: ImperfectRecallGame, n_starts: int, rng: np.random.Generator, n_steps: int = 300, step_size: float = 0.1
) -> Starts:
    """Projected gradient ascent with a constant step size, from random mixtures."""
    payoff = CompiledPolynomial(game.polynomials[0], game.n_variables)
    values = []
    for _ in range(n_starts):
        x = np.empty(game.n_variables)
        for simplex, row in zip(game.simplices, game.random_strategy(rng), strict=True):
            x[list(simplex)] = row
        for _ in range(n_steps):
            moved = x + step_size / game.payoff_scale * payoff.gradient(x)
            for simplex in game.simplices:
                moved[list(simplex)] = project_simplex(moved[list(simplex)])
            done = np.abs(moved - x).max() < 1e-9
            x = moved
            if done:
                break
        values.append(payoff(x))
    return Starts(np.array(values))


def as_efg(tree: GameTree, n_players: int | None = None) -> str:
    """A tree in Gambit's text format; players who never move can be added."""
    n_players = len(tree.players) if n_players is None else n_players
    names = " ".join(f'"player {i}"' for i in range(n_players))
    lines = [f'EFG 2 R "game" {{ {names} }}', '""']
    children: dict[int, list[int]] = {}
    for node in range(1, len(tree.parent)):
        children.setdefault(int(tree.parent[node]), []).append(node)
    number = {}
    for player in range(len(tree.players)):
        for i, j in enumerate(tree.infosets_of(player)):
            number[j] = i + 1
    for node in range(len(tree.parent)):
        if tree.player[node] == LEAF:
            payoffs = [*tree.payoffs[node].tolist(), *[0.0] * (n_players - len(tree.players))]
            lines.append(f't "" {node + 1} "" {{ {", ".join(f"{value:.12g}" for value in payoffs)} }}')
        elif tree.player[node] == CHANCE:
            moves = " ".join(f'"{tree.action[child]}" {_fraction(tree.chance[child])}' for child in children[node])
            lines.append(f'c "" {node + 1} "" {{ {moves} }} 0')
        else:
            infoset = tree.infosets[tree.infoset[node]]
            moves = " ".join(f'"{tree.infoset[node]}.{a}"' for a in range(len(infoset.actions)))
            # A name per information set: OpenSpiel tells them apart by it.
            name, index = f"{infoset.player}.{number[int(tree.infoset[node])]}", number[int(tree.infoset[node])]
            lines.append(f'p "" {infoset.player + 1} {index} "{name}" {{ {moves} }} 0')
    return "\n".join(lines) + "\n"


def _fraction(probability: float) -> str:
    """A probability as a ratio of integers; Gambit wants sums of exactly one."""
    return str(Fraction(float(probability)).limit_denominator(10**6))


def is_there(module: str) -> bool:
    """Whether a library is installed."""
    return importlib.util.find_spec(module) is not None


def counterfactual_regret(tree: GameTree, n_iter: int = 1000) -> float:
    """Payoff of the first player after regret matching by OpenSpiel on a tree in which only he moves.

    The average strategy is what regret matching promises something about where recall is perfect; the better of it and
    the last one counts.
    """
    import pyspiel
    from open_spiel.python.algorithms import cfr, expected_game_score

    game = pyspiel.load_efg_game(as_efg(tree, n_players=max(2, len(tree.players))))
    solver = cfr.CFRSolver(game)
    for _ in range(n_iter):
        solver.evaluate_and_update_policy()
    values = []
    for found in (solver.average_policy(), solver.current_policy()):
        policies = [found] * game.num_players()
        values.append(expected_game_score.policy_value(game.new_initial_state(), policies)[0])
    return float(max(values))


def gambit_equilibria(tree: GameTree, method: str) -> list[list[np.ndarray]]:
    """Equilibria that pygambit finds, a distribution per information set of ``tree`` each."""
    import io

    import pygambit

    game = pygambit.read_efg(io.BytesIO(as_efg(tree).encode()))
    solve = {"enumpure": pygambit.nash.enumpure_solve, "lcp": pygambit.nash.lcp_solve}[method]
    options = {"rational": False} if method == "lcp" else {}
    found = solve(game, **options).equilibria
    answer = []
    for profile in found:
        behaviour = profile.as_behavior() if hasattr(profile, "as_behavior") else profile
        rows: list[np.ndarray] = [np.empty(0)] * len(tree.infosets)
        for player in game.players:
            own = tree.infosets_of(player.number)
            for j, infoset in zip(own, player.infosets, strict=True):
                row = np.array([float(behaviour[action]) for action in infoset.actions])
                # What is not reached by the player's own moves is left open.
                rows[j] = row if row.sum() > 0 else np.full(len(row), 1.0 / len(row))
        answer.append(rows)
    return answer
