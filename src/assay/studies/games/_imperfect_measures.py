"""What is measured of relaxations: bounds, gaps, proofs, and what they cost."""

from __future__ import annotations

import math
import time
import tracemalloc
import warnings
from typing import Any

import numpy as np

from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.lab import Measurement, interleave
from assay.studies.games._imperfect_games import (
    NamedGame,
    concave_game,
    cycle,
    driver,
    forgetful_kuhn,
    monotone_game,
    recalling_tree,
    shootout,
    tensor_game,
    two_player_tree,
)

__all__ = [
    "measure_absent_minded",
    "measure_classes",
    "measure_equilibria",
    "measure_known",
    "measure_pure",
    "measure_speed",
    "optimum",
    "rival_speed",
]


def optimum(game: ImperfectRecallGame, **options: Any) -> Any:
    """The best strategy, without warnings where the gap stays open: the gap is what is measured."""
    from assay.games.imperfect_recall_sos import ex_ante_optimum

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ex_ante_optimum(game, **options)


def measure_pure(measurement: Measurement, games: list[NamedGame], ours: bool, **options: Any) -> None:
    """Games without absent-mindedness: gap, order against the number of information sets, and the bounds by order."""
    for one in games:
        begin = time.perf_counter()
        result = optimum(one.game, **options)
        measurement.add("seconds", time.perf_counter() - begin, case=one.name)
        measurement.add("gap", result.gap, case=one.name)
        measurement.add("order", result.order, case=one.name)
        measurement.add("order_minus_infosets", result.order - len(one.game.infosets), case=one.name)
        bounds = result.history["upper_bound"]
        measurement.add("bound_increase", float(np.diff(bounds).max(initial=-math.inf)) if len(bounds) > 1 else 0.0,
                        case=one.name)  # fmt: skip
        if one.optimum is not None:
            measurement.add("optimum_error", abs(result.value - one.optimum), case=one.name)
        if len(bounds) > 1:
            measurement.add_curve(
                "bounds by order",
                result.history["order"],
                bounds - result.value,
                case=one.name,
                x_label="order",
                y_label="bound minus the best payoff",
            )
        if ours:
            measurement.certify(result.certificates, case=one.name)


def measure_known(measurement: Measurement) -> None:
    """Values that are known exactly, and bounds that others computed."""
    for one in (driver(2), driver(3), driver(4)):
        result = optimum(one.game)
        measurement.add("optimum_error", abs(result.value - (one.optimum or math.nan)), case=one.name)
        measurement.add("gap", result.gap, case=one.name)
        measurement.add("order", result.order, case=one.name)
        measurement.certify(result.certificates, case=one.name)
    pentagon = cycle(5).game
    known = {
        "C5, order 1": ({"order": 1, "vertex": False}, (5 + math.sqrt(5)) / 8),
        "C5, order 2, pure": ({"order": 2, "vertex": True}, 0.8),
        "C5, order 2, mixed": ({"order": 2, "vertex": False}, 0.801316),
        "C3, order 2, mixed": ({"order": 2, "vertex": False}, 0.668559),
    }
    for case, (options, bound) in known.items():
        game = pentagon if case.startswith("C5") else cycle(3).game
        measurement.add("bound_error", abs(optimum(game, **options).upper_bound - bound), case=case)


def measure_absent_minded(measurement: Measurement, games: list[NamedGame], ours: bool, **options: Any) -> None:
    """Games in which pure strategies are not enough: shares of closed gaps, and of games where mixing pays."""
    from assay.games.sos_program import least_order
    from assay.studies.games._imperfect_rivals import enumerate_pure

    closed, pays = [], []
    for one in games:
        least = least_order([one.game.reduced[0]])
        result = optimum(one.game, tol=1e-5, max_order=least + 1, **options)
        measurement.add("gap", result.gap, case=one.name)
        measurement.add("order_above_least", result.order - least, case=one.name)
        closed.append(result.gap <= 1e-5)
        pays.append(result.value > enumerate_pure(one.game) + 1e-6)
        if ours:
            measurement.certify(result.certificates[1:], case=one.name)
    measurement.add("share_closed", float(np.mean(closed)), case="absent-minded")
    measurement.add("share_where_mixing_pays", float(np.mean(pays)), case="absent-minded")


def measure_equilibria(measurement: Measurement, n_trees: int, seed: int, kuhn: bool = False) -> None:
    """Existence and non-existence of equilibria."""
    from assay.studies.games._imperfect_rivals import is_there

    if kuhn and is_there("pyspiel"):
        answer = _equilibrium(forgetful_kuhn()[0], max_order=2)
        measurement.add("no_equilibrium", answer.status == "no_equilibrium", case="Kuhn poker")
        measurement.add("n_cuts", answer.n_cuts, case="Kuhn poker")
        measurement.add("seconds", answer.solve_seconds, case="Kuhn poker")
        measurement.certify(answer.certificates, case="Kuhn poker, both players")
    for mismatch in (0.0, 0.5, 2.0, 3.0):
        case = f"shoot-out {mismatch:g}"
        answer = _equilibrium(shootout(mismatch))
        measurement.add("no_equilibrium", answer.status == "no_equilibrium", case=case)
        measurement.add("n_cuts", answer.n_cuts, case=case)
        measurement.add("order", answer.order, case=case)
        measurement.add("seconds", answer.solve_seconds, case=case)
        if answer.status == "equilibrium":
            measurement.add("largest_gain", float(answer.gains.max()), case=case)
        measurement.certify(answer.certificates, case=case)
    rng = np.random.default_rng(seed)
    for family, make in (("forgetful trees", two_player_tree), ("recalling trees", recalling_tree)):
        answers = [_equilibrium(make(rng)) for _ in range(n_trees)]
        measurement.add("share_resolved", float(np.mean([a.status != "unresolved" for a in answers])), case=family)
        measurement.add("share_without", float(np.mean([a.status == "no_equilibrium" for a in answers])), case=family)
        for i, answer in enumerate(answers):
            if answer.status != "unresolved":
                measurement.certify(answer.certificates, case=f"{family} {i}")


def measure_classes(measurement: Measurement, n_games: int, seed: int) -> None:
    """Concave payoffs and monotone games, by sums of squares; and Kuhn poker with a forgetful player."""
    from assay.games.sos_concavity import is_sos_concave, is_sos_monotone

    rng = np.random.default_rng(seed)
    for i in range(n_games):
        one = concave_game(rng)
        case = f"concave {i}"
        certificate = is_sos_concave(one.game)
        measurement.add("certified_class", bool(certificate), case=case)
        measurement.certify(certificate.certificates, case=case)
        result = optimum(one.game, max_order=2)
        measurement.add("gap", result.gap, case=case)
        measurement.add("n_levels", len(result.history["order"]), case=case)
    games = [monotone_game(rng) for _ in range(n_games)] + [shootout(0.0)]
    for i, game in enumerate(games):
        case = f"monotone {i}"
        certificate = is_sos_monotone(game)
        measurement.add("certified_class", bool(certificate), case=case)
        measurement.certify(certificate.certificates, case=case)
        answer = _equilibrium(game)
        measurement.add("n_cuts", answer.n_cuts, case=case)
        measurement.add("largest_gain", float(answer.gains.max()), case=case)
    from assay.studies.games._imperfect_rivals import enumerate_pure, is_there

    if is_there("pyspiel"):
        game, loose = forgetful_kuhn()
        result = optimum(game, player=0, others=loose)
        measurement.add("gap", result.gap, case="Kuhn poker")
        measurement.add("optimum_error", abs(result.value - enumerate_pure(game, 0, loose)), case="Kuhn poker")
        measurement.certify(result.certificates, case="Kuhn poker")


def measure_speed(measurement: Measurement, shapes: tuple[tuple[int, int], ...], box: tuple[int, int]) -> None:
    """Seconds and memory against the side of the matrix; pure strategies against all; assembly."""
    from assay.games.imperfect_optimum import OwnStrategies
    from assay.games.sos_program import build_relaxation

    optimum(tensor_game(3, 1).game, order=2)  # imports, thread pools
    sides, seconds = [], []
    for n_infosets, order in shapes:
        one = tensor_game(n_infosets, 0)
        tracemalloc.start()
        result = optimum(one.game, order=order)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        side, n_moments = result.sdp_size
        case = f"side {side}"
        measurement.add("solve_seconds", result.solve_seconds, case=case)
        measurement.add("memory_over_m_side2", peak / (8.0 * n_moments * side**2), case=case)
        measurement.add("gap", result.gap, case=f"speed, {case}")
        sides.append(side)
        seconds.append(result.solve_seconds)
    measurement.add("time_slope", float(np.polyfit(np.log(sides), np.log(seconds), 1)[0]))
    measurement.add_curve(
        "time of a relaxation",
        sides,
        seconds,
        case="pure strategies",
        x_label="rows of the matrix",
        y_label="seconds",
        x_log=True,
        y_log=True,
    )

    n_infosets, order = box
    game = tensor_game(n_infosets, 0, n_actions=2).game
    pure, mixed = (optimum(game, order=order, vertex=vertex) for vertex in (True, False))
    measurement.add("rows_mixed_over_pure", mixed.sdp_size[0] / pure.sdp_size[0])
    measurement.add("time_mixed_over_pure", mixed.solve_seconds / pure.solve_seconds)

    problem = OwnStrategies(cycle(7).game, 0, cycle(7).game.random_strategy(0), vertex=False, kkt=False).problem
    timings = interleave(
        {"build": lambda: build_relaxation(problem.objective, problem.ineqs, problem.eqs, problem.blocks, 3)},
        repeats=3,
        clock="cpu",
    )
    measurement.add("assembly_seconds", timings.median("build"), case="C7, order 3")


def rival_speed(measurement: Measurement, shape: tuple[int, int], assembly: tuple[int, int]) -> None:
    """The same relaxation modelled in cvxpy and solved by Clarabel; and assembled entry by entry."""
    import cvxpy as cp

    from assay.games.imperfect_optimum import OwnStrategies
    from assay.games.imperfect_relaxation import PolynomialProblem
    from assay.games.moment_basis import triangle
    from assay.games.sos_program import build_relaxation
    from assay.games.sos_solvers import solve_conic

    n_infosets, order = shape
    game = tensor_game(n_infosets, 0).game
    pure: PolynomialProblem = OwnStrategies(game, 0, game.random_strategy(0), vertex=True, kkt=False).problem

    def program() -> Any:
        return build_relaxation(pure.objective, pure.ineqs, pure.eqs, pure.blocks, order, vertex=True)

    def modelled() -> float:
        built = program()
        moments = cp.Variable(len(built.basis))
        block = built.blocks[0]
        rows, columns = triangle(block.side)
        where = np.empty((block.side, block.side), dtype=np.int64)
        where[rows, columns] = where[columns, rows] = np.arange(len(rows))
        matrix = cp.reshape(block.entries[where.ravel()] @ moments, (block.side, block.side), order="C")
        whole = cp.Problem(cp.Maximize(built.objective @ moments), [moments[0] == 1, matrix >> 0])
        return float(whole.solve(solver="CLARABEL", max_threads=1))

    timings = interleave({"ours": lambda: solve_conic(program(), "cvxopt"), "cvxpy": modelled}, repeats=1, warmup=0)
    side = program().side
    measurement.add("time_over_ours", timings.ratio("cvxpy", "ours").median, case=f"side {side}")

    length, order = assembly
    game = cycle(length).game
    problem = OwnStrategies(game, 0, game.random_strategy(0), vertex=False, kkt=False).problem

    def sparse() -> Any:
        return build_relaxation(problem.objective, problem.ineqs, problem.eqs, problem.blocks, order)

    def scalar() -> Any:
        built = sparse()
        moments = cp.Variable(len(built.basis))
        constraints = []
        for block in built.blocks:
            rows = [[0.0] * block.side for _ in range(block.side)]
            for entry, (i, j) in enumerate(zip(*triangle(block.side), strict=True)):
                span = slice(block.entries.indptr[entry], block.entries.indptr[entry + 1])
                terms = zip(block.entries.indices[span], block.entries.data[span], strict=True)
                rows[i][j] = rows[j][i] = sum(float(c) * moments[int(k)] for k, c in terms)
            constraints.append(cp.bmat(rows) >> 0)
        return cp.Problem(cp.Maximize(built.objective @ moments), constraints)

    timings = interleave({"sparse": sparse, "scalar": scalar}, repeats=1, warmup=0)
    measurement.add("assembly_over_ours", timings.ratio("scalar", "sparse").median, case=f"C{length}, order {order}")


def _equilibrium(game: ImperfectRecallGame, **options: Any) -> Any:
    from assay.games.imperfect_nash import find_nash

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return find_nash(game, **options)
