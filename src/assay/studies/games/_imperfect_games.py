"""The games of the study of imperfect recall: classical ones, random trees in which players forget, Kuhn poker."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.games.imperfect_recall_game import ImperfectRecallGame

__all__ = [
    "NamedGame",
    "absent_minded_trees",
    "concave_game",
    "cycle",
    "driver",
    "forgetful_kuhn",
    "forgetful_tree",
    "monotone_game",
    "recalling_tree",
    "shootout",
    "tensor_game",
    "two_player_tree",
]


@dataclass(frozen=True)
class NamedGame:
    """A game of one player, its case, and the value of its optimum where that is known."""

    name: str
    game: ImperfectRecallGame
    optimum: float | None = None


def leaf(*payoffs: float) -> dict[str, Any]:
    """A leaf."""
    return {"type": "leaf", "payoffs": [float(payoff) for payoff in payoffs]}


def decision(infoset: str, children: list[dict[str, Any]], player: int = 0) -> dict[str, Any]:
    """A decision with as many actions as children."""
    actions = [{"label": str(a), "child": child} for a, child in enumerate(children)]
    return {"type": "decision", "player": player, "infoset": infoset, "actions": actions}


def chance(children: list[dict[str, Any]]) -> dict[str, Any]:
    """A uniform chance move."""
    share = 1.0 / len(children)
    actions = [{"label": str(a), "prob": share, "child": child} for a, child in enumerate(children)]
    return {"type": "chance", "actions": actions}


def from_tree(root: dict[str, Any], n_players: int = 1) -> ImperfectRecallGame:
    """The game of a tree."""
    return ImperfectRecallGame.from_json({"players": [f"player {i}" for i in range(n_players)], "root": root})


def driver(n_exits: int) -> NamedGame:
    """The absent-minded driver: home is at the last exit but cannot be told from the others.

    With two exits, leaving at the first pays 0, at the second 4, never 1. With more, leaving at the last but one exit
    pays 6 and all else nothing, so that the payoff is ``6 p^(n-1) (1 - p)``.
    """
    if n_exits == 2:
        root = decision("exit", [decision("exit", [leaf(1), leaf(4)]), leaf(0)])
        return NamedGame("driver 2", from_tree(root), 4 / 3)
    root = leaf(0)
    for k in reversed(range(n_exits)):
        root = decision("exit", [root, leaf(6 if k == n_exits - 1 else 0)])
    p = (n_exits - 1) / n_exits
    return NamedGame(f"driver {n_exits}", from_tree(root), 6 * p ** (n_exits - 1) * (1 - p))


def cycle(length: int) -> NamedGame:
    """Chance picks an edge of an odd cycle; the player colours its ends, having forgotten the first at the second."""
    edges = [(j, (j + 1) % length) for j in range(length)]
    root = chance(
        [decision(f"{i}", [decision(f"{j}", [leaf(int(a != b)) for b in (0, 1)]) for a in (0, 1)]) for i, j in edges]
    )
    return NamedGame(f"pure C{length}", from_tree(root), (length - 1) / length)


def forgetful_tree(n_infosets: int, rng: np.random.Generator) -> NamedGame:
    """Chance picks one of three orders of the information sets; the player forgets all that was played."""
    sizes = rng.integers(2, 4, n_infosets)

    def below(order: tuple[int, ...]) -> dict[str, Any]:
        if not order:
            return leaf(rng.standard_normal())
        return decision(str(order[0]), [below(order[1:]) for _ in range(sizes[order[0]])])

    orders = [tuple(int(j) for j in rng.permutation(n_infosets)) for _ in range(3)]
    return NamedGame(f"pure tree {n_infosets}", from_tree(chance([below(order) for order in orders])))


def tensor_game(n_infosets: int, seed: int, n_actions: int = 3) -> NamedGame:
    """One payoff per combination of actions at information sets that follow one another, drawn from a normal law."""
    payoffs = np.random.default_rng(seed).standard_normal((n_actions,) * n_infosets)
    utility = {}
    for actions in itertools.product(range(n_actions), repeat=n_infosets):
        exponent = [0] * (n_actions * n_infosets)
        for j, a in enumerate(actions):
            exponent[n_actions * j + a] = 1
        utility[tuple(exponent)] = float(payoffs[actions])
    simplices = [list(range(n_actions * j, n_actions * (j + 1))) for j in range(n_infosets)]
    game = ImperfectRecallGame.from_polynomials([utility], simplices, [0] * n_infosets)
    return NamedGame(f"pure tensor {n_infosets}, {seed}", game, float(payoffs.max()))


def absent_minded_trees(n_games: int, rng: np.random.Generator) -> list[NamedGame]:
    """Binary trees of depth 4 to 6 over 2 or 3 information sets, each visited twice or more on some path."""
    games = []
    while len(games) < n_games:
        depth, n_infosets = int(rng.integers(4, 7)), int(rng.integers(2, 4))

        def below(left: int, n_infosets: int = n_infosets) -> dict[str, Any]:
            if left == 0:
                return leaf(rng.standard_normal())
            return decision(str(rng.integers(n_infosets)), [below(left - 1) for _ in (0, 1)])

        game = from_tree(below(depth))
        exponents = np.array(list(game.polynomials[0]))
        visits = [exponents[:, list(simplex)].sum(axis=1).max() for simplex in game.simplices]
        if len(visits) == n_infosets and min(visits) >= 2:
            games.append(NamedGame(f"absent {len(games)}", game))
    return games


def shootout(mismatch: float) -> ImperfectRecallGame:
    """A shooter picks a side twice, having forgotten the first time; the keeper guesses; unequal sides cost."""
    payoff = {}
    for p, q, r in itertools.product((0, 1), repeat=3):
        key = (p, 1 - p, q, 1 - q, r, 1 - r)
        payoff[key] = (1 - 2 * r) * (p + q - 1) - mismatch * (p + q - 2 * p * q)
    loss = {key: -amount for key, amount in payoff.items()}
    return ImperfectRecallGame.from_polynomials([payoff, loss], [[0, 1], [2, 3], [4, 5]], [0, 0, 1])


def two_player_tree(rng: np.random.Generator, remembers: bool = False) -> ImperfectRecallGame:
    """A player moves, the other one without having seen it, then the first one again, who has forgotten or not."""

    def last(a: int) -> dict[str, Any]:
        name = f"again {a}" if remembers else "again"
        return decision(name, [leaf(*rng.standard_normal(2)) for _ in (0, 1)])

    answers = [decision("other", [last(a) for _ in (0, 1)], player=1) for a in (0, 1)]
    return from_tree(decision("first", answers), n_players=2)


def recalling_tree(rng: np.random.Generator) -> ImperfectRecallGame:
    """The same with perfect recall."""
    return two_player_tree(rng, remembers=True)


def forgetful_kuhn() -> tuple[ImperfectRecallGame, tuple[np.ndarray, ...]]:
    """Kuhn poker in which the first player forgets the card before the second move, and a loose opponent.

    The opponent always bets after a pass and calls nine bets of ten, so that it pays to remember the card.
    """

    def forget(label: str) -> str:
        return "pb" if label.endswith("pb") else label

    game = ImperfectRecallGame.from_openspiel("kuhn_poker", merge=forget)
    loose = [[0.1, 0.9] if infoset.label.endswith("b") else [0.0, 1.0] for infoset in game.infosets]
    return game, tuple(np.array(row) for row in loose)


def concave_game(rng: np.random.Generator) -> NamedGame:
    """Minus a sum of squares and fourth powers of affine functions, over two information sets of three actions."""
    from assay.games.imperfect_polynomials import affine, multiply, scaled, total

    utility: dict[tuple[int, ...], float] = {}
    for power in (2, 4):
        for _ in range(4):
            one = affine(rng.standard_normal(), rng.standard_normal(6).tolist())
            square = multiply(one, one)
            utility = total(utility, scaled(square if power == 2 else multiply(square, square), -1.0))
    game = ImperfectRecallGame.from_polynomials([utility], [[0, 1, 2], [3, 4, 5]], [0, 0])
    return NamedGame("concave", game)


def monotone_game(rng: np.random.Generator) -> ImperfectRecallGame:
    """Two players with two binary information sets each, concave quadratic payoffs and a zero-sum coupling."""
    coupling = rng.standard_normal((2, 2))
    payoffs = []
    for own, sign in (((0, 2), 1.0), ((4, 6), -1.0)):
        root = rng.standard_normal((2, 2))
        utility: dict[tuple[int, ...], float] = {}

        def add(amount: float, *variables: int, utility: dict[tuple[int, ...], float] = utility) -> None:
            key = tuple(variables.count(k) for k in range(8))
            utility[key] = utility.get(key, 0.0) + float(amount)

        curvature = root @ root.T
        for i, j in itertools.product((0, 1), repeat=2):
            add(-curvature[i, j], own[i], own[j])
            add(sign * coupling[i, j], (0, 2)[i], (4, 6)[j])
        for k in own:
            add(rng.standard_normal(), k)
        payoffs.append(utility)
    return ImperfectRecallGame.from_polynomials(payoffs, [[0, 1], [2, 3], [4, 5], [6, 7]], [0, 0, 1, 1])
