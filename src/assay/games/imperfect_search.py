"""Select, verify, cut: the loop behind :func:`assay.games.imperfect_nash.find_nash`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.certificate import Certificate
from assay.games.imperfect_constraints import first_order_conditions, strategy_constraints
from assay.games.imperfect_first_order import FirstOrderPoints
from assay.games.imperfect_optimum import ExAnteResult, OwnStrategies
from assay.games.imperfect_polynomials import (
    CompiledPolynomial,
    Polynomial,
    affine,
    fix_variables,
    scaled,
    total,
)
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.games.imperfect_relaxation import LARGEST_REFUTATION, Level, PolynomialProblem
from assay.games.sos_program import CLARABEL_SIDE, relaxation_size
from assay.result import Result

__all__ = ["NashResult", "SelectVerifyCut"]

# Around an equilibrium, the width of the band of the random quadratic in which no other may lie. It is halved as long
# as it is wider than this multiple of what counts as the same value: a narrower one would prove nothing.
_BAND = 1e-2
_NARROWEST = 2.0
_SAME = 1e-6

# What a cut has to move the selected point by.
_MOVED = 1e-8


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NashResult(Result):
    """Answer of :func:`~assay.games.imperfect_nash.find_nash`.

    Attributes
    ----------
    status : {"equilibrium", "no_equilibrium", "unresolved"}
        What is proved.
    x : tuple of numpy.ndarray
        The first equilibrium, a strategy per information set; the last point that was tried if ``"unresolved"``; empty
        if there is none.
    values : numpy.ndarray of shape (n_players,)
        Payoffs of ``x``; nan if there is none.
    gains : numpy.ndarray of shape (n_players,)
        Proved upper bounds of what each player could gain by deviating from ``x``; nan if there is none.
    equilibria : tuple of tuple of numpy.ndarray
        All that were found.
    complete : bool
        Whether it is proved that there are no others.
    n_cuts : int
        Inequalities that were added.
    order : int
        Order of the last relaxation for a selection.
    refutation : float
        Left-over of the proof that there is no (further) equilibrium, which is one if below 1; inf without a proof.
    sdp_size : tuple of int
        Side of the largest matrix, and number of moments, of the last selection.
    solve_seconds : float
        Time in conic solvers.
    """

    status: str
    x: tuple[np.ndarray, ...]
    values: Float[np.ndarray, " players"]
    gains: Float[np.ndarray, " players"]
    equilibria: tuple[tuple[np.ndarray, ...], ...]
    complete: bool
    n_cuts: int
    order: int
    refutation: float
    sdp_size: tuple[int, int]
    solve_seconds: float


@dataclass(frozen=True, eq=False)
class Selected:
    """Outcome of a selection: a point, or an infeasible relaxation."""

    level: Level
    problem: PolynomialProblem
    point: Float[np.ndarray, " dim"] | None
    certain: bool


class SelectVerifyCut:
    """Select, verify, cut."""

    def __init__(
        self,
        game: ImperfectRecallGame,
        tol: float,
        max_order: int,
        max_cuts: int,
        all_equilibria: bool,
        rng: np.random.Generator,
        solver: str,
        callback: Callable[[Mapping[str, Any]], object] | None,
        force: bool = False,
    ):
        self.game, self.tol, self.max_order, self.max_cuts = game, tol, max_order, max_cuts
        self.all_equilibria, self.solver, self.callback = all_equilibria, solver, callback
        self.scale = game.payoff_scale if game.payoff_scale > 0 else 1.0
        self.deciding = sorted({infoset.player for infoset in game.infosets})
        self.blocks = tuple(len(simplex) - 1 for simplex in game.simplices)
        self.dim = sum(self.blocks)
        self.force = force
        self._refuse_if_too_large()
        ineqs, eqs = strategy_constraints(self.blocks), []
        for player in self.deciding:
            more, equal = first_order_conditions(game.reduced[player], self.blocks, game.infosets_of(player))
            ineqs += [_normalised(g) for g in more]
            eqs += [_normalised(h) for h in equal]
        self.ineqs, self.eqs = ineqs, eqs
        self.objective = _random_quadratic(self.dim, rng)
        self.compiled = CompiledPolynomial(self.objective, self.dim)
        self.first_order = FirstOrderPoints(game)
        self.cuts: list[Polynomial] = []
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0

    def run(self) -> NashResult:
        """Until an equilibrium is found, or all of them, or none can be."""
        found: list[tuple[np.ndarray, ...]] = []
        gains: list[np.ndarray] = []
        floor: list[Polynomial] = []
        tried: tuple[tuple[np.ndarray, ...], np.ndarray] | None = None
        if self.dim == 0:  # nobody has a choice
            only = self.game.profile(np.empty(0))
            return self._result("equilibrium", [only], [np.zeros(len(self.game.players))], tried, None, True)
        while True:
            selected = self._select(floor)
            if selected is None:
                return self._result("unresolved", found, gains, tried, selected, False)
            if selected.point is None:
                status = "equilibrium" if found else "no_equilibrium"
                return self._result(status, found, gains, tried, selected, True)
            profile = self.game.profile(selected.point)
            best = self._deviations(profile)
            bounds = np.array([one.upper_bound - self.game.utility(i, profile) for i, one in best.items()])
            if self._record(selected, float(bounds.max())):
                return self._result("unresolved", found, gains, (profile, bounds), selected, False)
            again = tried is not None and all(
                np.abs(a - b).max() < _MOVED for a, b in zip(profile, tried[0], strict=True)
            )
            tried = profile, bounds
            if bounds.max() <= self.tol:
                found.append(profile)
                gains.append(bounds)
                if not self.all_equilibria:
                    return self._result("equilibrium", found, gains, tried, selected, False)
                above = self._isolate(selected.point, floor) if selected.certain else None
                if above is None:
                    return self._result("unresolved", found, gains, tried, selected, False)
                floor = [above]
            elif again or not self._cut(profile, best):  # a cut that does not move the point is below rounding
                return self._result("unresolved", found, gains, tried, selected, False)

    def _refuse_if_too_large(self) -> None:
        """Before any constraint is made: an equation has one degree more than the payoff that it is of."""
        moving = (sum(e) + 1 for i in self.deciding for e in self.game.reduced[i] if any(e))
        order = math.ceil(max(moving, default=2) / 2)
        relaxation_size(self.blocks, order, False, [], [], self.solver).refuse_if_too_large(self.force)

    # ------------------------------------------------------------------ select

    def _problem(self, objective: Polynomial, more: list[Polynomial]) -> PolynomialProblem:
        return PolynomialProblem(objective, (*self.ineqs, *self.cuts, *more), tuple(self.eqs), self.blocks)

    def _levels(self, problem: PolynomialProblem, enough: Callable[[Level], bool]) -> Iterator[Level]:
        """Relaxations of growing order, as long as they can be solved."""
        if problem.least_order > self.max_order:
            raise ValueError(
                f"max_order must be at least {problem.least_order}, half the largest degree, got {self.max_order}"
            )
        for order in range(problem.least_order, self.max_order + 1):
            try:
                level = problem.solve(order, self.solver, self.force, enough)
            except ValueError:
                if not self.rows and order == problem.least_order:
                    raise
                return
            self.seconds += level.seconds
            if level.status == "failed":
                return
            yield level

    def _select(self, floor: list[Polynomial]) -> Selected | None:
        """The first-order point at which the random quadratic is least, or a relaxation without a feasible point."""
        problem = self._problem(scaled(self.objective, -1.0), floor)
        last: Selected | None = None

        def enough(level: Level) -> bool:
            return not self.all_equilibria or level.bound - level.claimed <= _SAME / 4

        for level in self._levels(problem, enough):
            if level.status == "infeasible":
                selected = Selected(level, problem, None, True)
                self._record(selected, math.nan)
                return selected
            extraction = level.extraction(problem.least_order, problem.half_degree)
            points = [*extraction.points, *level.candidates()[:1]]
            point = self.first_order.polished(points[0])
            exact = self.first_order.regret(point) <= 1e-7
            # The bound is from below: a first-order point that attains it is the one that was looked for.
            attained = exact and self.compiled(point) + level.bound <= _SAME
            last = Selected(level, problem, point, attained)
            if attained or (extraction.flat and not self.all_equilibria):
                return last
            if exact and not self.all_equilibria and self._largest_gain(point) <= self.tol:
                return last
        return last

    # ------------------------------------------------------------------ verify and cut

    def _deviations(self, profile: tuple[np.ndarray, ...]) -> dict[int, ExAnteResult]:
        """The best that each player can do alone."""
        answer = {}
        for player in range(len(self.game.players)):
            vertex = not self.game.is_absentminded(player)
            task = OwnStrategies(self.game, player, profile, vertex, kkt=False)
            answer[player] = task.solve(None, None, 0.25 * self.tol, self.solver, self.force)
            self.seconds += answer[player].solve_seconds
        return answer

    def _largest_gain(self, point: Float[np.ndarray, " dim"]) -> float:
        """Proved bound on what any player gains by leaving a point."""
        profile = self.game.profile(point)
        best = self._deviations(profile)
        return max(one.upper_bound - self.game.utility(i, profile) for i, one in best.items())

    def _cut(self, profile: tuple[np.ndarray, ...], best: dict[int, ExAnteResult]) -> bool:
        """Add the inequalities that ``profile`` violates; whether there are any."""
        added = False
        for player, deviation in best.items():
            if deviation.value - self.game.utility(player, profile) > self.tol and len(self.cuts) < self.max_cuts:
                self.cuts.append(_normalised(self._better_than(player, deviation.x)))
                added = True
        return added

    def _better_than(self, player: int, deviation: tuple[np.ndarray, ...]) -> dict[tuple[int, ...], float]:
        """Payoff of a player minus that of playing ``deviation`` against the others."""
        payoff = self.game.reduced[player]
        free = self.game.free_part(deviation)
        own = {k for j in self.game.infosets_of(player) for k in self.game.free_variables[j]}
        rest = [k for k in range(self.dim) if k not in own]
        against = fix_variables(payoff, {k: float(free[k]) for k in own}, rest)
        embedded = {}
        for exponent, coefficient in against.items():
            whole = [0] * self.dim
            for k, power in zip(rest, exponent, strict=True):
                whole[k] = power
            embedded[tuple(whole)] = coefficient
        return total(payoff, scaled(embedded, -1.0))

    def _isolate(
        self, point: Float[np.ndarray, " dim"], floor: list[Polynomial]
    ) -> dict[tuple[int, ...], float] | None:
        """Inequality that excludes ``point`` and, provably, no other equilibrium that is not below it."""
        value = self.compiled(point)
        width = _BAND
        while width > _NARROWEST * _SAME:
            above = total(self.objective, affine(-value - width, [0.0] * self.dim))
            problem = self._problem(self.objective, [*floor, scaled(above, -1.0)])

            def enough(level: Level) -> bool:
                return level.bound <= value + _SAME or level.claimed > value + 2 * _SAME

            if any(level.bound <= value + _SAME for level in self._levels(problem, enough)):
                return above
            width /= 2
        return None

    # ------------------------------------------------------------------ report

    def _record(self, selected: Selected, gain: float) -> bool:
        objective = math.nan if selected.point is None else self.compiled(selected.point)
        row = (selected.level.order, objective, gain, len(self.cuts), self.seconds)
        self.rows.append(dict(zip(("order", "objective", "gain", "cuts", "seconds"), row, strict=True)))
        return self.callback is not None and self.callback(dict(self.rows[-1])) is True

    def _result(
        self,
        status: str,
        found: list[tuple[np.ndarray, ...]],
        gains: list[np.ndarray],
        tried: tuple[tuple[np.ndarray, ...], np.ndarray] | None,
        selected: Selected | None,
        complete: bool,
    ) -> NashResult:
        nothing = np.full(len(self.game.players), math.nan)
        x: tuple[np.ndarray, ...] = ()
        bounds = nothing
        if found:
            x, bounds = found[0], gains[0]
        elif status == "unresolved" and tried is not None:
            x, bounds = tried
        refuted = selected is not None and selected.level.status == "infeasible"
        return NashResult(
            status=status,
            x=x,
            values=np.array([self.game.utility(i, x) for i in range(len(nothing))]) if x else nothing,
            gains=bounds,
            equilibria=tuple(found),
            complete=complete,
            n_cuts=len(self.cuts),
            order=selected.level.order if selected is not None else 0,
            refutation=selected.level.refutation if selected is not None else math.inf,
            sdp_size=(selected.level.program.side, len(selected.level.program.basis)) if selected else (0, 0),
            solve_seconds=self.seconds,
            certificates=(
                *self._gain_certificates(found, gains, tried, status),
                *(self._refutation_certificates(selected, bool(found)) if refuted and selected else ()),
            ),
            history={name: np.array([row[name] for row in self.rows]) for name in (self.rows[0] if self.rows else ())},
        )

    def _gain_certificates(
        self,
        found: list[tuple[np.ndarray, ...]],
        gains: list[np.ndarray],
        tried: tuple[tuple[np.ndarray, ...], np.ndarray] | None,
        status: str,
    ) -> tuple[Certificate, ...]:
        statement = "largest proved gain of a player from deviating"
        if status == "unresolved" and not found:
            return (Certificate(statement, float(tried[1].max()) if tried is not None else math.inf, self.tol),)
        named = [f"equilibrium {k + 1}: {statement}" for k in range(len(found))] if len(found) > 1 else [statement]
        return tuple(Certificate(one, float(bounds.max()), self.tol) for one, bounds in zip(named, gains, strict=False))

    def _refutation_certificates(self, selected: Selected, some: bool) -> tuple[Certificate, ...]:
        """The proof itself, at random strategies, and again at the next order where that is not too large."""
        kind = "further equilibrium" if some else "equilibrium"
        statement = f"left-over of the identity -1 = sums of squares, which proves that there is no {kind}"
        level, problem = selected.level, replace(selected.problem, objective={})
        assert level.answer.multipliers is not None
        points = problem.random_points(50, np.random.default_rng(0))
        multipliers = level.answer.multipliers
        answer = [
            Certificate(statement, level.refutation, LARGEST_REFUTATION),
            Certificate(
                "the same left-over at 50 random strategies",
                problem.identity_error(level, points) / -multipliers.bound,
                LARGEST_REFUTATION,
            ),
        ]
        further = problem.size(level.order + 1, self.solver)
        if further.side <= CLARABEL_SIDE:
            repeated = problem.solve(level.order + 1, self.solver)
            self.seconds += repeated.seconds
            answer.append(
                Certificate(f"{statement} (order {level.order + 1})", repeated.refutation, LARGEST_REFUTATION)
            )
        return tuple(answer)


def _random_quadratic(dim: int, rng: np.random.Generator) -> dict[tuple[int, ...], float]:
    """A positive definite quadratic with largest coefficient 1."""
    root = rng.standard_normal((dim + 1, dim + 1))
    square = root.T @ root
    units = np.vstack([np.zeros(dim, dtype=int), np.eye(dim, dtype=int)])
    return _normalised(
        {
            tuple((units[a] + units[b]).tolist()): float(square[a, b]) * (1.0 if a == b else 2.0)
            for a in range(dim + 1)
            for b in range(a, dim + 1)
        }
    )


def _normalised(polynomial: Polynomial) -> dict[tuple[int, ...], float]:
    largest = max((abs(c) for c in polynomial.values()), default=1.0)
    return scaled(polynomial, 1.0 / largest)
