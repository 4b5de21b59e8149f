"""One player's strategies against those of the others, and the loop over relaxations that finds the best of them.

Only the information sets that matter are variables. Each relaxation gives a bound; its moments give strategies, which
are improved by local search and evaluated exactly; the order grows until bound and value meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.certificate import Assumption, Certificate
from assay.games.imperfect_ascent import local_ascent
from assay.games.imperfect_constraints import first_order_conditions, strategy_constraints
from assay.games.imperfect_polynomials import CompiledPolynomial, fix_variables
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.games.imperfect_relaxation import LARGEST_RESIDUAL, LEAST_EIGENVALUE, Level, PolynomialProblem
from assay.result import Result
from assay.validation import check_integer

__all__ = ["SOLVERS", "ExAnteResult", "OwnStrategies"]

SOLVERS = ("auto", "clarabel", "cvxopt", "scs")

# Orders that are tried beyond the least one where nothing says at which one the bound is exact.
_FURTHER_ORDERS = 2

# How far below its bound a value may be said to be above it by rounding.
_ROUNDING = 1e-7

_EPSILON = float(np.finfo(np.float64).eps)
_SMALLEST = float(np.finfo(np.float64).tiny)

_GAP = "proved bound on all strategies minus the payoff of the returned one"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExAnteResult(Result):
    """Answer of :func:`~assay.games.imperfect_recall_sos.ex_ante_optimum`.

    Attributes
    ----------
    x : tuple of numpy.ndarray
        A strategy per information set of the game; those of other players are the ones that were held fixed.
    value : float
        Payoff of ``x``, a lower bound of the optimum.
    upper_bound : float
        Proved upper bound.
    gap : float
        Their difference.
    status : {"optimal", "unresolved"}
        Whether the gap is at most ``tol``.
    order : int
        Order of the last relaxation.
    theoretical_order : int or None
        Order at which the relaxation is exact for certain: one more than the number of information sets for pure
        strategies; None where no order is known.
    vertex : bool
        Whether the relaxation was over pure strategies.
    rank : int
        Numerical rank of the moment matrix.
    flat : bool
        Whether the rank says that the moments are those of optimal strategies.
    optimisers : tuple of tuple of numpy.ndarray
        All optimal strategies that were found, ``x`` first.
    sdp_size : tuple of int
        Side of the largest matrix, and number of moments.
    solver : str
        Whose multipliers prove the bound.
    solve_seconds : float
        Time in conic solvers.
    """

    x: tuple[np.ndarray, ...]
    value: float
    upper_bound: float
    gap: float
    status: str
    order: int
    theoretical_order: int | None
    vertex: bool
    rank: int
    flat: bool
    optimisers: tuple[tuple[np.ndarray, ...], ...]
    sdp_size: tuple[int, int]
    solver: str
    solve_seconds: float


class OwnStrategies:
    """The strategies of one player at those information sets that matter, the others' being fixed.

    Parameters
    ----------
    game : ImperfectRecallGame
        The game.
    player : int
        Who maximises.
    profile : tuple of numpy.ndarray
        Strategies of all; those of ``player`` are kept where they do not matter.
    vertex, kkt : bool
        As in :func:`~assay.games.imperfect_recall_sos.ex_ante_optimum`.
    """

    def __init__(
        self, game: ImperfectRecallGame, player: int, profile: tuple[np.ndarray, ...], vertex: bool, kkt: bool
    ):
        self.game, self.player, self.profile, self.vertex = game, player, profile, vertex
        self.scale = game.payoff_scale if game.payoff_scale > 0 else 1.0
        free = game.free_part(profile)
        own = [k for j in game.infosets_of(player) for k in game.free_variables[j]]
        values = {k: float(free[k]) for k in range(len(free)) if k not in set(own)}
        payoff = fix_variables(game.reduced[player], values, own)
        # A constant, or a payoff that is small next to those of other players, must not take digits from what matters.
        constant = payoff.pop((0,) * len(own), 0.0)
        largest = min(1.0, max(map(abs, payoff.values()), default=1.0))
        if self.scale * largest < _SMALLEST:
            largest = 1.0
        payoff = {e: c / largest for e, c in payoff.items()}
        self.shift = self.scale * constant
        self.rounding = _EPSILON * self.scale * sum(map(abs, game.reduced[player].values()))
        self.scale *= largest
        seen = {k for exponent in payoff for k, power in zip(own, exponent, strict=True) if power}
        self.infosets = [j for j in game.infosets_of(player) if seen.intersection(game.free_variables[j])]
        kept = [k for j in self.infosets for k in game.free_variables[j]]
        self.payoff = {tuple(e[own.index(k)] for k in kept): c for e, c in payoff.items()}
        self.blocks = tuple(len(game.free_variables[j]) for j in self.infosets)
        ineqs = [] if vertex else strategy_constraints(self.blocks)
        eqs: list[dict[tuple[int, ...], float]] = []
        if kkt:
            more, eqs = first_order_conditions(self.payoff, self.blocks, range(len(self.blocks)))
            ineqs += more
        self.problem = PolynomialProblem(self.payoff, tuple(ineqs), tuple(eqs), self.blocks, vertex)
        self.compiled = CompiledPolynomial(self.payoff, sum(self.blocks))

    def full(self, point: np.ndarray) -> tuple[np.ndarray, ...]:
        """The profile in which the player plays ``point``."""
        answer, at = list(self.profile), 0
        for j, size in zip(self.infosets, self.blocks, strict=True):
            part = point[at : at + size]
            row = np.append(part, max(0.0, 1.0 - part.sum()))
            answer[j] = row / row.sum()
            at += size
        return tuple(answer)

    def upper(self, bound: float) -> float:
        """A bound in payoff units, with what rounding of the coefficients may cost."""
        return self.scale * bound + self.shift + self.rounding

    def orders(self, order: int | None, max_order: int | None) -> range:
        """Orders to try."""
        least = self.problem.least_order
        for name, number in (("order", order), ("max_order", max_order)):
            if number is not None and check_integer(number, name) < least:
                raise ValueError(f"{name} must be at least {least}, half the largest degree, got {number}")
        if order is not None:
            return range(order, order + 1)
        if max_order is None:
            max_order = max(least, len(self.blocks) + 1) if self.vertex else least + _FURTHER_ORDERS
        return range(least, max_order + 1)

    def solve(
        self,
        order: int | None,
        max_order: int | None,
        tol: float,
        solver: str,
        force: bool,
        callback: Callable[[Mapping[str, Any]], object] | None = None,
    ) -> ExAnteResult:
        """Increase the order until the gap is closed."""
        if not self.blocks:
            return self._nothing_to_decide(tol)
        rows: list[dict[str, Any]] = []
        found: list[np.ndarray] = []
        best: Level | None = None
        rank, flat, seconds = 0, False, 0.0
        bound = math.inf
        orders = self.orders(order, max_order)

        def enough(level: Level) -> bool:
            """Whether the gap is closed, or not for a lack of accuracy."""
            self._improve(found, level, tol)
            value = self.compiled(found[0])
            return level.bound - value <= tol / self.scale or level.claimed - value > 2 * tol / self.scale

        for d in orders:
            try:
                level = self.problem.solve(d, solver, force, enough)
            except ValueError:
                if d == orders[0]:
                    raise
                break
            seconds += level.seconds
            if level.status != "solved":
                break
            extraction = level.extraction(self.problem.least_order, self.problem.half_degree)
            if level.bound < bound:
                best, bound, rank, flat = level, level.bound, extraction.rank, extraction.flat
            value = self.game.utility(self.player, self.full(found[0]))
            size = level.program.side, len(level.program.basis)
            row = (d, self.upper(level.bound), value, extraction.rank, *size, level.seconds)
            rows.append(
                dict(zip(("order", "upper_bound", "value", "rank", "side", "moments", "seconds"), row, strict=True))
            )
            stop = callback is not None and callback(dict(rows[-1])) is True
            if stop or self.upper(bound) - value <= tol:
                break
        return self._result(rows, found, best, level, rank, flat, seconds, tol)

    def _improve(self, found: list[np.ndarray], level: Level, tol: float) -> None:
        """Keep the best points of those that were found and those that a relaxation suggests, best first, each once."""
        extraction = level.extraction(self.problem.least_order, self.problem.half_degree)
        starts = [*extraction.points, *level.candidates()]
        points = [*found, *(local_ascent(self.compiled, self.blocks, start) for start in starts)]
        ordered = sorted(points, key=lambda point: -self.compiled(point))
        found.clear()
        for point in ordered:
            if self.compiled(ordered[0]) - self.compiled(point) > tol / self.scale:
                break
            if all(np.abs(point - other).max() > 1e-4 for other in found):
                found.append(point)

    def _result(
        self,
        rows: list[dict[str, Any]],
        found: list[np.ndarray],
        best: Level | None,
        last: Level,
        rank: int,
        flat: bool,
        seconds: float,
        tol: float,
    ) -> ExAnteResult:
        if best is None:  # no relaxation was solved: a strategy without a bound
            middle = np.concatenate([np.full(size, 1.0 / (size + 1)) for size in self.blocks])
            found = [local_ascent(self.compiled, self.blocks, middle)]
        optimisers = tuple(self.full(point) for point in found)
        value = self.game.utility(self.player, optimisers[0])
        upper = self.upper(best.bound) if best is not None else math.inf
        used = best if best is not None else last
        return ExAnteResult(
            x=optimisers[0],
            value=value,
            upper_bound=upper,
            gap=upper - value,
            status="optimal" if upper - value <= tol else "unresolved",
            order=used.order,
            theoretical_order=len(self.blocks) + 1 if self.vertex else None,
            vertex=self.vertex,
            rank=rank,
            flat=flat,
            optimisers=optimisers,
            sdp_size=(used.program.side, len(used.program.basis)),
            solver=used.answer.solver,
            solve_seconds=seconds,
            certificates=self._certificates(best, value, upper, tol),
            history={name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())},
        )

    def _certificates(self, best: Level | None, value: float, upper: float, tol: float) -> tuple[Certificate, ...]:
        pure = ()
        if self.vertex:
            pure = (Assumption("some pure strategy is optimal: the player is never absent-minded", True),)
        gap = Certificate(_GAP, upper - value, tol, assumptions=pure)
        below = Certificate(
            "payoff of the returned strategy, at most the bound (and rounding)",
            value,
            upper + _ROUNDING * self.scale + self.rounding,
        )
        if best is None or best.identity is None:
            return gap, below
        points = self.problem.random_points(50, np.random.default_rng(0))
        return (
            gap,
            below,
            Certificate(
                "least eigenvalue of the Gram matrices, relative to their entries",
                best.identity.least_eigenvalue,
                LEAST_EIGENVALUE,
                relation=">=",
            ),
            Certificate(
                "largest coefficient of bound minus payoff minus sums of squares, with payoffs of at most 1",
                best.identity.residual,
                LARGEST_RESIDUAL,
            ),
            Certificate(
                "the same difference at 50 random strategies",
                self.problem.identity_error(best, points),
                LARGEST_RESIDUAL * len(best.program.basis),
            ),
        )

    def _nothing_to_decide(self, tol: float) -> ExAnteResult:
        """No decision of the player changes his payoff."""
        value = self.game.utility(self.player, self.profile)
        return ExAnteResult(
            x=self.profile,
            value=value,
            upper_bound=value,
            gap=0.0,
            status="optimal",
            order=0,
            theoretical_order=1 if self.vertex else None,
            vertex=self.vertex,
            rank=1,
            flat=True,
            optimisers=(self.profile,),
            sdp_size=(1, 1),
            solver="none",
            solve_seconds=0.0,
            certificates=(Certificate(_GAP, 0.0, tol),),
        )
