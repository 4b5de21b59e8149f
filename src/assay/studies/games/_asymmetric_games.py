"""Games on which last-iterate play is compared, and the names of those who play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# Names of the contenders.
AUTO = "AsymP, auto"
FIXED = "AsymP, fixed mu"
SYM = "SymP, fixed mu"
DECREASING = "SymP, decreasing mu"
GDA = "GDA"
OGDA = "OGDA"
EXTRA = "extragradient"
HIGHS = "HiGHS"
CFR = "CFR"
CFR_PLUS = "CFR+"
DCFR = "DCFR"

# The threshold of the first is exactly 5/2, that of the second 1.
BIASED_RPS = np.array([[0.0, -1, 3], [1, 0, -1], [-3, 1, 0]])
MULTIPLE_EQUILIBRIA = np.array(
    [[0.0, -1, 1, 0, 0], [1, 0, -1, 0, 0], [-1, 1, 0, 0, 0], [-1, 1, 0, 2, -1], [-1, 1, 0, -1, 2]]
)
SMALL_GAMES = {"BRPS": BIASED_RPS, "M-Ne": MULTIPLE_EQUILIBRIA}


@dataclass(frozen=True)
class TreeCase:
    """A game of OpenSpiel, and how it is played.

    Parameters
    ----------
    name, openspiel : str
    steps : int
        Of each run of asymmetric play. Methods of one run take twice as many.
    mu, eta : float
    regret_iterations : int
        Most iterations of CFR and CFR+ (compiled), which update both players as a step does.
    discounted_iterations : int
        Most iterations of discounted CFR, which is written in Python.
    """

    name: str
    openspiel: str
    steps: int
    mu: float
    eta: float
    regret_iterations: int
    discounted_iterations: int


KUHN = TreeCase("Kuhn", "kuhn_poker", 3000, 0.01, 2.0, 6000, 1000)
LARGE_TREES = (
    TreeCase("Leduc", "leduc_poker", 10_000, 3e-4, 3.0, 3000, 200),
    TreeCase("Liar's dice", "liars_dice(numdice=1,dice_sides=4)", 10_000, 3e-3, 4.0, 3000, 300),
    TreeCase("Goofspiel-4", "goofspiel(num_cards=4,imp_info=True)", 10_000, 3e-3, 3.0, 500, 60),
)


def uniform_game(n_rows: int, n_columns: int, seed: int) -> np.ndarray:
    """Payoffs between -1 and 1."""
    return np.random.default_rng(seed).uniform(-1, 1, (n_rows, n_columns))


def uniform_games(shapes: tuple[tuple[int, int], ...], seeds: tuple[int, ...]) -> dict[str, np.ndarray]:
    """By name."""
    return {f"{r}x{c} #{seed}": uniform_game(r, c, seed) for r, c in shapes for seed in seeds}


@dataclass(frozen=True)
class LinearProgram:
    """Minimise ``cost @ x`` subject to ``matrix @ x <= bound`` and ``0 <= x <= 1``."""

    cost: np.ndarray
    matrix: np.ndarray
    bound: np.ndarray
    largest_price: float = 10.0

    @classmethod
    def random(cls, n: int, m: int, seed: int) -> LinearProgram:
        """A feasible one."""
        rng = np.random.default_rng(seed)
        matrix, cost = rng.uniform(-1, 1, (m, n)), rng.uniform(-1, 1, n)
        return cls(cost, matrix, matrix @ rng.uniform(0, 1, n) + 0.1)

    def saddle(self) -> dict[str, Any]:
        """Arguments of the saddle point in which prices between 0 and ``largest_price`` are put on the constraints."""
        from assay.games.polytope import Box

        m, n = self.matrix.shape
        return {
            "A": self.matrix.T,
            "X": Box(np.zeros(n), np.ones(n)),
            "Y": Box(np.zeros(m), np.full(m, self.largest_price)),
            "p": self.cost,
            "q": -self.bound,
        }

    def solve(self) -> float:
        """The optimal value, by HiGHS."""
        from scipy.optimize import linprog

        answer = linprog(self.cost, A_ub=self.matrix, b_ub=self.bound, bounds=[(0, 1)] * self.cost.size, method="highs")
        return float(answer.fun)


def random_tree(n_infosets: int, n_leaves: int, seed: int) -> Any:
    """A game of two players with random information sets and random payoffs, for measuring costs."""
    from assay.games.sequence_form import SequenceFormGame

    rng = np.random.default_rng(seed)
    parents, actions = [], []
    for _ in range(2):
        lengths = rng.integers(2, 4, n_infosets)
        starts = 1 + np.concatenate(([0], np.cumsum(lengths)[:-1]))
        # A parent near the root, so that depth grows like a logarithm.
        parents.append([int(rng.integers(0, max(1, start // 2 + 1))) if start > 1 else 0 for start in starts])
        actions.append(lengths.tolist())
    sizes = [1 + sum(row) for row in actions]
    rows, columns = (rng.integers(1, size, n_leaves) for size in sizes)
    return SequenceFormGame.from_arrays(parents, actions, (rows, columns, rng.uniform(-1, 1, n_leaves) / n_leaves))
