"""Points that satisfy the first-order conditions of all players, and how to get closer to one.

At such a point every action that is played is a best one, given the mixture at all information sets, the others of its
owner included. An equilibrium is one; with imperfect recall the converse fails.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares

from assay.games.imperfect_ascent import project_strategies
from assay.games.imperfect_polynomials import CompiledPolynomial, Polynomial, scaled
from assay.games.imperfect_recall_game import ImperfectRecallGame

__all__ = ["FirstOrderPoints"]

# Steps of a proximal method, the weight of staying where it is, and how far it may go in total.
_STEPS = 8
_STAY = 1e-2
_NEARBY = 1e-2


class FirstOrderPoints:
    """First-order conditions of a game, as functions of the free variables.

    Parameters
    ----------
    game : ImperfectRecallGame
        The game; payoffs of each player are in units of the largest one of all, or of his own coefficients where
        these are smaller.
    """

    def __init__(self, game: ImperfectRecallGame):
        self.game = game
        self.blocks = tuple(len(simplex) - 1 for simplex in game.simplices)
        self.dim = sum(self.blocks)
        self.payoffs = [CompiledPolynomial(_without_scale(one), self.dim) for one in game.reduced]

    def polished(self, point: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """A nearby point that satisfies the first-order conditions to more digits, if there is one."""
        point = project_strategies(point, self.blocks)
        sizes = np.array(self.blocks) + 1
        ends = np.cumsum(sizes)

        def split(unknown: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
            return np.split(unknown[: ends[-1]], ends[:-1]), unknown[ends[-1] :]

        def conditions(unknown: np.ndarray) -> np.ndarray:
            rows, multipliers = split(unknown)
            slopes = self.slopes(np.concatenate([row[:-1] for row in rows]))
            answer = []
            for row, multiplier, slope in zip(rows, multipliers, slopes, strict=True):
                slack = multiplier - slope
                answer += [row + slack - np.hypot(row, slack), [row.sum() - 1.0]]
            return np.concatenate(answer)

        profile = self.game.profile(point)
        multipliers = [row @ slope for row, slope in zip(profile, self.slopes(point), strict=True)]
        current = np.concatenate([*profile, multipliers])
        # Where first-order points are not isolated, a full step may end at one that is far away.
        for _ in range(_STEPS):
            centre = current
            fit = least_squares(
                lambda unknown, centre=centre: np.append(conditions(unknown), _STAY * (unknown - centre)), centre
            )
            current = fit.x
            if np.abs(current - centre).max() < 1e-14:
                break
        rows, _ = split(current)
        better = project_strategies(np.concatenate([row[:-1] for row in rows]), self.blocks)
        close = np.abs(better - point).max(initial=0.0) <= _NEARBY
        return better if close and self.regret(better) < self.regret(point) else point

    def slopes(self, point: Float[np.ndarray, " dim"]) -> list[np.ndarray]:
        """What each action of each information set adds to its owner's payoff, next to the last action."""
        gradients = [payoff.gradient(point) for payoff in self.payoffs]
        return [
            np.append(gradients[infoset.player][list(variables)], 0.0)
            for infoset, variables in zip(self.game.infosets, self.game.free_variables, strict=True)
        ]

    def regret(self, point: Float[np.ndarray, " dim"]) -> float:
        """Violation of the first-order conditions: the best action at one information set against the mixture."""
        profile = self.game.profile(point)
        return max(float(slope.max() - row @ slope) for row, slope in zip(profile, self.slopes(point), strict=True))


def _without_scale(payoff: Polynomial) -> dict[tuple[int, ...], float]:
    """A payoff with a largest coefficient of at least 1, its constant aside."""
    largest = max((abs(c) for exponent, c in payoff.items() if any(exponent)), default=1.0)
    return scaled(payoff, 1.0 / min(1.0, largest))
