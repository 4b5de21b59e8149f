"""The games on which equilibrium solvers are compared, and the linear programs that solve them today."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

# Names of the contenders.
OURS = "hpssn"
PSSN = "pssn"
SSN = "ssn"
BLOCK_200 = "hpssn, block 200"
BLOCK_ALL = "hpssn, block n + m"
FULL_STEPS = "full steps"
MONOTONE = "monotone acceptance"
PRM = "PRM+"
SIMULTANEOUS = "PRM+, simultaneous"
HIGHS = "HiGHS"
HIGHS_SCALING = "HiGHS, 100 to 2000 actions"
OPEN_SPIEL = "OpenSpiel"
NASHPY = "nashpy"


@dataclass(frozen=True)
class Game:
    """A zero-sum game: what the row player pays."""

    name: str
    payoff: Any

    @property
    def largest(self) -> float:
        """Largest absolute payoff."""
        return float(abs(self.payoff).max())

    @property
    def dense(self) -> np.ndarray:
        """The payoffs as an array."""
        return self.payoff.toarray() if hasattr(self.payoff, "toarray") else self.payoff


def random_games(shapes: tuple[tuple[int, int], ...], rng: np.random.Generator) -> list[Game]:
    """Uniform(-1, 1) and standard normal payoffs of every shape."""
    return [
        Game(f"{kind} {rows}x{columns}", draw((rows, columns)))
        for rows, columns in shapes
        for kind, draw in (("uniform", lambda shape: rng.uniform(-1, 1, shape)), ("normal", rng.standard_normal))
    ]


def structured_games(rng: np.random.Generator) -> list[Game]:
    """Games with ties, zeros and structure."""
    import scipy.sparse as sp

    sparse = sp.random_array((200, 300), density=0.05, rng=rng, data_sampler=rng.standard_normal, format="csr")
    return [
        Game("Blotto 286x286", colonel_blotto(10, 4)),
        Game("sparse 200x300", sparse),
        Game("integers 100x150", rng.integers(-2, 3, (100, 150)).astype(float)),
    ]


@functools.lru_cache(maxsize=4)
def colonel_blotto(soldiers: int, fields: int) -> np.ndarray:
    """Both players distribute soldiers over the fields; whoever wins more fields gets 1 from the other."""
    ranges = itertools.product(range(soldiers + 1), repeat=fields)
    plans = np.array([plan for plan in ranges if sum(plan) == soldiers])
    return np.sign(np.sign(plans[None, :, :] - plans[:, None, :]).sum(axis=2)).astype(float)


def linear_program(payoff: np.ndarray, method: str, side: str, time_limit: float | None = None) -> Any:
    """The linear program of the row or of the column player, by scipy's HiGHS."""
    from scipy.optimize import linprog

    matrix = payoff if side == "row" else -payoff.T
    n_rows, n_columns = matrix.shape
    return linprog(
        np.append(np.zeros(n_rows), 1.0),
        A_ub=np.column_stack((matrix.T, -np.ones(n_columns))),
        b_ub=np.zeros(n_columns),
        A_eq=np.append(np.ones(n_rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * n_rows + [(None, None)],
        method=method,
        options={} if time_limit is None else {"time_limit": time_limit},
    )


def strategies_of(answer: Any, side: str) -> tuple[np.ndarray, np.ndarray]:
    """Both strategies from the primal and dual solutions of one of the programs."""
    own, other = np.maximum(answer.x[:-1], 0.0), np.maximum(-answer.ineqlin.marginals, 0.0)
    own, other = own / own.sum(), other / other.sum()
    return (own, other) if side == "row" else (other, own)


def open_spiel_equilibrium(payoff: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """OpenSpiel's solver of zero-sum matrix games: two linear programs, through cvxpy."""
    from assay.extras import import_extra

    pyspiel = import_extra("pyspiel", extra="peers")
    solver = import_extra("open_spiel.python.algorithms.lp_solver", extra="peers")
    game = pyspiel.create_matrix_game((-payoff).tolist(), payoff.tolist())
    # Its default is ECOS, which is no longer maintained and rarely installed.
    original = solver.LinearProgram.solve
    solver.LinearProgram.solve = functools.partialmethod(original, solver="CLARABEL", solver_kwargs={})
    try:
        x, y, *_ = solver.solve_zero_sum_matrix_game(game)
    finally:
        solver.LinearProgram.solve = original
    x, y = np.maximum(x, 0.0), np.maximum(y, 0.0)
    return x / x.sum(), y / y.sum()


def nashpy_equilibrium(payoff: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The linear program of nashpy."""
    from assay.extras import import_extra

    x, y = import_extra("nashpy", extra="peers").Game(-payoff, payoff).linear_program()
    return x, y
