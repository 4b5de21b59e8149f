"""Matrix games to ten digits: semismooth Newton steps against linear programming and regret matching."""

from __future__ import annotations

import functools
import math
import time
import tracemalloc
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study, Timings, interleave
from assay.studies.games._matrix_games import (
    Game,
    linear_program,
    nashpy_equilibrium,
    open_spiel_equilibrium,
    random_games,
    strategies_of,
    structured_games,
)

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

OVER_TIME = "Duality gap over time"
PROGRAMS = tuple((method, side) for method in ("highs", "highs-ds", "highs-ipm") for side in ("row", "column"))
# With regret matching, stop once it has taken this many times as long as ours.
CAP = 20.0


class MatrixGameStudy(Study):
    """Solvers of zero-sum matrix games."""

    title = "Second-order solver for zero-sum matrix games"
    summary = (
        "For people who need an equilibrium of a matrix game to ten digits: security games, robust planning, inner "
        "loops of double oracle. They get it several times faster than by linear programming, with its duality gap."
    )
    promise = (
        "The duality gap of the returned strategies, recomputed from the payoffs, is at most the tolerance; and at "
        "every Newton step the gap is bounded by the residual."
    )
    interface = "solver"
    method = "assay.games.solve_matrix_game"
    paper = Paper(
        "A Direct Second-Order Method for Solving Two-Player Zero-Sum Games",
        "Yang, Gao, Lin, Kroer",
        arxiv="2512.12910",
    )
    data = (
        "Uniform and normal payoff matrices from 50x100 to 600x1200 (square ones up to 2000x2000), Colonel Blotto with "
        "10 soldiers on 4 fields, a sparse game, and a game of small integers with many ties."
    )
    contenders = (
        Contender(OURS, "method", "blocks of PRM+, a trial of Newton steps after each; default settings"),
        Contender(PSSN, "ablation", "one block of PRM+, then Newton steps only"),
        Contender(SSN, "ablation", "Newton steps from uniform strategies, no PRM+"),
        Contender(BLOCK_200, "ablation", "first block of 200 iterations"),
        Contender(BLOCK_ALL, "ablation", "first block of n + m iterations"),
        Contender(FULL_STEPS, "ablation", "every Newton step in full; step size 30 / ||A||, damping 30 without a cap"),
        Contender(MONOTONE, "ablation", "a Newton step is taken only as far as the residual falls"),
        Contender(PRM, "incumbent", f"alternating PRM+, quadratic averages, up to {CAP:g} times as long as ours"),
        Contender(SIMULTANEOUS, "incumbent", f"simultaneous PRM+, up to {CAP:g} times as long as ours"),
        Contender(
            HIGHS,
            "incumbent",
            "scipy.optimize.linprog: automatic, dual simplex and interior point, each for the program of the row and "
            "of the column player",
            library="scipy",
        ),
        Contender(
            HIGHS_SCALING, "incumbent", "the same on square games, interior point only from 500", library="scipy"
        ),
        Contender(OPEN_SPIEL, "incumbent", "lp_solver.solve_zero_sum_matrix_game, with Clarabel", library="open_spiel"),
        Contender(NASHPY, "incumbent", "Game.linear_program, 8x8 games only", library="nashpy"),
    )
    claims = (
        Claim(
            "C1",
            "The duality gap is at most 1e-10 of the largest payoff, on every game",
            "relative_gap",
            OURS,
            "<=",
            1e-10,
            "paper: high precision on sizes up to 400x800",
            reduce="max",
        ),
        Claim(
            "C1b",
            "All certificates hold, on every game",
            "certificates_failed",
            OURS,
            "<=",
            0,
            "derived: they are what the solver stops by",
            reduce="max",
        ),
        *(
            Claim(
                f"C2-{shape}",
                f"{shape}: to 1e-10 at least 10 times sooner than PRM+ to 1e-8 (median of games)",
                "speedup",
                PRM,
                ">=",
                10,
                "paper: an order of magnitude at high precision",
                case=f"* {shape}",
                sizes=sizes,
                timed=True,
            )
            for shape, sizes in (("200x400", ("quick", "full")), ("400x800", ("full",)), ("600x1200", ("full",)))
        ),
        Claim(
            "C3",
            "At every Newton step the gap is within the bound by the residual",
            "gap_over_bound",
            OURS,
            "<=",
            1.0,
            "derived: proof in the docstring of residual_gap_bound",
            reduce="max",
        ),
        Claim(
            "C4a",
            "400x800: at least 2.5 times faster than the fastest of six ways to call HiGHS",
            "speedup",
            HIGHS,
            ">=",
            2.5,
            "prototype: 1.0 s against 0.36 s",
            case="* 400x800",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "C4b",
            "400x800: at least 4 times faster than linprog with its default settings",
            "speedup_default",
            HIGHS,
            ">=",
            4,
            "prototype: 1.35 s to 1.7 s against 0.36 s",
            case="* 400x800",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "C4c",
            "200x400: at least 2.5 times faster than the fastest of six ways to call HiGHS",
            "speedup",
            HIGHS,
            ">=",
            2.5,
            "the number of C4a, at half the size",
            case="* 200x400",
            timed=True,
        ),
        Claim(
            "C4d",
            "50x100: no slower than the fastest of six ways to call HiGHS",
            "speedup",
            HIGHS,
            ">=",
            1.0,
            "design target (a prototype was half as fast)",
            case="* 50x100",
            timed=True,
        ),
        Claim(
            "C4e",
            "The advantage over HiGHS does not shrink as games grow (slope of its logarithm)",
            "speedup_slope",
            HIGHS_SCALING,
            ">=",
            0.0,
            "design target",
            timed=True,
        ),
        Claim(
            "C5a",
            "The last Newton steps converge with order 2: median of random games",
            "newton_order",
            OURS,
            ">=",
            1.9,
            "paper: quadratic rate",
            case="order *",
        ),
        Claim(
            "C5b",
            "Order at least 1.6 on 85% of random games (those too short to tell count against it)",
            "share_of_order_1.6",
            OURS,
            ">=",
            0.85,
            "prototype: 29 of 32 games",
        ),
        Claim(
            "C6",
            "At least 10 times faster than OpenSpiel's solver of matrix games",
            "speedup",
            OPEN_SPIEL,
            ">=",
            10,
            "design target",
            timed=True,
        ),
        Claim(
            "P1",
            "A Newton step at 400x800 takes at most 10 ms on one thread",
            "newton_step_seconds",
            OURS,
            "<=",
            0.010,
            "design target",
            case="400x800",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "P2",
            "The time of a Newton step grows at most as n to the 3.1",
            "newton_step_slope",
            OURS,
            "<=",
            3.1,
            "design target",
            timed=True,
        ),
        Claim(
            "P3",
            "Memory is at most 4 n^2 + 4 nm numbers",
            "memory_over_target",
            OURS,
            "<=",
            1.0,
            "design target",
            reduce="max",
        ),
        Claim(
            "P4",
            "An iteration of PRM+ takes at most 1.5 times its two matrix-vector products in numpy",
            "iteration_over_products",
            PRM,
            "<=",
            1.5,
            "design target",
            timed=True,
        ),
    )
    sizes: ClassVar = {
        "quick": {
            "shapes": ((50, 100), (100, 200), (200, 400)),
            "squares": (50, 100, 200),
            "steps": (100, 200, 400),
            "orders": 32,
            "seconds": 0.4,
        },
        "full": {
            "shapes": ((50, 100), (100, 200), (200, 400), (400, 800), (600, 1200)),
            "squares": (100, 200, 500, 1000, 2000),
            "steps": (100, 200, 400, 800, 1600),
            "orders": 32,
            "seconds": 4.0,
        },
    }
    seeds: ClassVar = {"quick": 1, "full": 3}

    def problem(self, size: str, rng: np.random.Generator) -> dict[str, Any]:
        """The games; what only one contender needs is drawn there, from a seed."""
        options = self.sizes[size]
        seed = int(rng.integers(2**31))
        return {**options, "games": random_games(options["shapes"], rng) + structured_games(rng), "seed": seed}

    def measure(self, contender: str, problem: dict[str, Any], rng: np.random.Generator) -> Measurement:
        """Solve every game, or those that the contender can solve in the time there is."""
        _warm_up()
        measurement = Measurement()
        if contender in (PRM, SIMULTANEOUS):
            _race_regret_matching(measurement, problem, alternating=contender == PRM)
        elif contender == HIGHS:
            _race_highs(measurement, problem)
        elif contender == HIGHS_SCALING:
            _race_highs_on_squares(measurement, problem)
        elif contender in (OPEN_SPIEL, NASHPY):
            _race_library(measurement, problem, contender)
        elif contender in (FULL_STEPS, MONOTONE):
            _measure_ablated_newton(measurement, problem, contender)
        else:
            for game in problem["games"]:
                _measure_ours(measurement, game, contender)
            if contender == OURS:
                _measure_orders(measurement, problem)
                _measure_steps(measurement, problem)
                _measure_memory(measurement, problem)
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """A random game with 200 actions of each player."""
        from assay.games.ssn import solve_matrix_game

        payoff = np.random.default_rng(0).uniform(-1, 1, (200, 200))  # what the row player pays
        result = solve_matrix_game(payoff)
        print(f"value {result.value:.10f}, {result.support_x.size} rows and {result.support_y.size} columns are played")
        return result.certificates


# Ours and its variants.


@functools.lru_cache(maxsize=1)
def _warm_up() -> None:
    """Compile, so that no one pays for it in a measurement."""
    from assay.games.ssn import solve_matrix_game

    payoff = np.random.default_rng(0).normal(size=(6, 9))
    import scipy.sparse as sp

    for kind in (payoff, sp.csr_array(payoff)):
        solve_matrix_game(kind)


def _solve(payoff: Any, **options: Any) -> Any:
    from assay.games.ssn import solve_matrix_game
    from assay.validation import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return solve_matrix_game(payoff, rtol=True, **options)


def _measure_ours(measurement: Measurement, game: Game, contender: str) -> None:
    options: dict[str, Any] = {
        OURS: {},
        PSSN: {"method": "pssn"},
        SSN: {"method": "ssn"},
        BLOCK_200: {"block": 200},
        BLOCK_ALL: {"block": sum(game.payoff.shape)},
    }[contender]
    begin = time.perf_counter()
    result = _solve(game.payoff, **options)
    measurement.add("seconds", time.perf_counter() - begin, case=game.name)
    measurement.add("relative_gap", result.gap / game.largest, case=game.name)
    for name in ("n_prm", "n_newton", "n_trials"):
        measurement.add(name, getattr(result, name), case=game.name)
    _add_gap_curve(measurement, game, result.history["seconds"], result.history["gap"])
    if contender != OURS:
        return
    measurement.certify(result.certificates, case=game.name)
    measurement.add("gap_over_bound", _gap_over_bound(game, result), case=game.name)
    last = (result.history["trial"] == result.n_trials) & (result.history["phase"] == "newton")
    measurement.add_curve(
        "Residual of the last trial",
        result.history["iteration"][last],
        result.history["residual"][last],
        case=game.name,
        x_label="Newton step",
        y_label="norm of the residual",
        y_log=True,
    )


def _add_gap_curve(measurement: Measurement, game: Game, seconds: np.ndarray, gaps: np.ndarray) -> None:
    """Best gap so far, and when it passed 1e-4, 1e-8 and 1e-10."""
    best = np.minimum.accumulate(gaps) / game.largest
    for digits in (4, 8, 10):
        reached = np.flatnonzero(best <= 10.0**-digits)
        if reached.size:
            measurement.add(f"seconds_to_1e-{digits}", seconds[reached[0]], case=game.name)
    measurement.add_curve(
        OVER_TIME,
        seconds,
        np.maximum(best, 1e-17),
        case=game.name,
        x_label="seconds",
        y_label="duality gap / largest payoff",
        x_log=True,
        y_log=True,
    )


def _gap_over_bound(game: Game, result: Any) -> float:
    """Largest ratio of the gap to its bound by the residual, over all Newton steps; rounding is allowed for."""
    from assay.games.semismooth_newton import residual_gap_bound

    # Dense games are solved with their mean payoff subtracted, which leaves gaps and equilibria as they are.
    payoff = game.dense if hasattr(game.payoff, "toarray") else game.payoff - game.payoff.mean()
    norm = float(np.linalg.norm(payoff, 2))
    steps = result.history["phase"] == "newton"
    rounding = 64 * np.finfo(float).eps * game.largest
    bounds = [residual_gap_bound(r, result.step_size, norm) + rounding for r in result.history["residual"][steps]]
    return float(np.max(result.history["gap"][steps] / bounds, initial=0.0))


def _measure_orders(measurement: Measurement, problem: dict[str, Any]) -> None:
    rng = np.random.default_rng([problem["seed"], 1])
    orders = []
    for index in range(problem["orders"]):
        payoff = rng.uniform(-1, 1, (50, 100) if index % 2 else (100, 200))
        orders.append(_solve(payoff).newton_order)
        if math.isfinite(orders[-1]):
            measurement.add("newton_order", orders[-1], case=f"order {index}")
    measurement.add("share_of_order_1.6", float(np.mean(np.array(orders) >= 1.6)))


def _measure_steps(measurement: Measurement, problem: dict[str, Any]) -> None:
    """Time of a Newton step at the strategies where a trial would start."""
    from assay.games.regret_matching import RegretMatching
    from assay.games.semismooth_newton import GameSplitting

    seconds = {}
    for rows in problem["steps"]:
        payoff = np.random.default_rng([problem["seed"], rows]).uniform(-1, 1, (rows, 2 * rows))
        splitting, matching = GameSplitting(payoff), RegretMatching(payoff)
        matching.advance(100)
        point = splitting.evaluate(*splitting.lift(*matching.better))
        step = functools.partial(splitting.newton, point.x, point.y, *point.scaled, 1e-3)
        seconds[rows] = _race({"step": step}, repeats=9).median("step")
        measurement.add("newton_step_seconds", seconds[rows], case=f"{rows}x{2 * rows}")
    measurement.add("newton_step_slope", _slope(seconds))
    measurement.add_curve(
        "Time of a Newton step",
        list(seconds),
        list(seconds.values()),
        x_label="rows (half of the columns)",
        y_label="seconds",
        x_log=True,
        y_log=True,
    )


def _slope(points: Mapping[int, float]) -> float:
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])


def _measure_memory(measurement: Measurement, problem: dict[str, Any]) -> None:
    """Peak of what numpy allocates in a solve, against the target."""
    for rows, columns in ((200, 400), (300, 300)):
        payoff = np.random.default_rng(problem["seed"]).uniform(-1, 1, (rows, columns))
        tracemalloc.start()
        try:
            _solve(payoff)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        target = 8 * (4 * rows**2 + 4 * rows * columns)
        measurement.add("memory_over_target", peak / target, case=f"{rows}x{columns}")


def _measure_ablated_newton(measurement: Measurement, problem: dict[str, Any], contender: str) -> None:
    for game in problem["games"]:
        begin = time.perf_counter()
        rows, n_newton = _ablated_hpssn(game, monotone=contender == MONOTONE)
        measurement.add("seconds", time.perf_counter() - begin, case=game.name)
        seconds, gaps = (np.array(column) for column in zip(*rows, strict=True))
        measurement.add("relative_gap", gaps.min() / game.largest, case=game.name)
        measurement.add("n_newton", n_newton, case=game.name)
        _add_gap_curve(measurement, game, seconds, gaps)


def _ablated_hpssn(game: Game, *, monotone: bool, max_newton: int = 60) -> tuple[list[tuple[float, float]], int]:
    """The schedule of hpssn around plainer Newton steps, for at most four trials: (seconds, gap) and number of steps.

    With ``monotone``, steps are damped as ours and halved until the residual falls, and replaced by a step of the
    splitting where it does not; otherwise every step is taken in full, with the constants of a first prototype.
    """
    from assay.games.matrix_game import as_payoff
    from assay.games.regret_matching import RegretMatching
    from assay.games.semismooth_newton import GameSplitting

    begin = time.perf_counter()
    payoff = as_payoff(game.payoff)
    splitting = GameSplitting(payoff, relative_step=3.0 if monotone else 30.0)
    by_size = 20.0 * math.sqrt(max(1.0, min(payoff.shape) / 100))
    damping, largest_regularization = (by_size, 0.3) if monotone else (30.0, math.inf)
    matching, tol = RegretMatching(payoff), 1e-10 * game.largest
    length, n_newton, rows = max(100, sum(payoff.shape) // 3), 0, []
    for _ in range(4):
        matching.advance(length, tol)
        length *= 2
        rows.append((time.perf_counter() - begin, matching.gap))
        point = splitting.evaluate(*splitting.lift(*splitting.players(*matching.better)))
        for _ in range(max_newton):
            rows.append((time.perf_counter() - begin, point.gap))
            if min(point.gap, matching.gap) <= tol:
                return rows, n_newton
            regularization = min(max(damping * point.norm, 1e-10), largest_regularization)
            try:
                direction = splitting.newton(point.x, point.y, *point.scaled, regularization)
            except np.linalg.LinAlgError:
                break
            n_newton += 1
            falls = False
            for step in (1.0, 0.5, 0.25, 0.125) if monotone else (1.0,):
                candidate = splitting.evaluate(point.u + step * direction[0], point.v + step * direction[1])
                falls = candidate.norm < point.norm
                if falls:
                    break
            if monotone and not falls:
                candidate = splitting.evaluate(point.u - point.residual[0], point.v - point.residual[1])
            point = candidate
    return rows, n_newton


# The others. One thread each, so that processor time is what a quiet machine takes.


def _race(functions: Mapping[str, Callable[[], Any]], **options: Any) -> Timings:
    return interleave(functions, clock="cpu", **options)


def _our_seconds(game: Game, repeats: int = 3) -> float:
    return _race({OURS: lambda: _solve(game.payoff)}, repeats=repeats, warmup=0).median(OURS)


def _race_regret_matching(measurement: Measurement, problem: dict[str, Any], *, alternating: bool) -> None:
    """Regret matching to 1e-8 while ours goes to 1e-10, in the same process."""
    from assay.games.matrix_game import as_payoff
    from assay.games.regret_matching import RegretMatching

    for game in problem["games"]:
        ours = _our_seconds(game)
        begin = time.process_time()
        matching = RegretMatching(as_payoff(game.payoff), alternating=alternating)
        seconds, gaps = [], []
        while not gaps or (gaps[-1] > 1e-8 * game.largest and seconds[-1] < CAP * ours):
            matching.advance(max(20, matching.n_iter // 10), 1e-8 * game.largest)
            seconds.append(time.process_time() - begin)
            gaps.append(matching.gap)
        measurement.add("speedup", seconds[-1] / ours, case=game.name)
        measurement.add("gap_when_stopped", gaps[-1] / game.largest, case=game.name)
        measurement.add("n_prm", matching.n_iter, case=game.name)
        _add_gap_curve(measurement, game, np.array(seconds), np.array(gaps))
    if alternating:
        _measure_iteration(measurement, problem)


def _measure_iteration(measurement: Measurement, problem: dict[str, Any]) -> None:
    from assay.games.regret_matching import RegretMatching

    payoff = np.random.default_rng(problem["seed"]).uniform(-1, 1, (400, 800))
    x, y = np.full(400, 1 / 400), np.full(800, 1 / 800)
    matching = RegretMatching(payoff)
    matching.advance(100)

    def products() -> None:
        for _ in range(100):
            payoff.T @ x
            payoff @ y

    timings = _race({"iterations": lambda: matching.advance(100), "products": products}, repeats=7)
    ratio = timings.ratio("iterations", "products")
    measurement.add("iteration_over_products", ratio.median)
    measurement.add("iteration_over_products_lower", ratio.lower)
    measurement.add("iteration_over_products_upper", ratio.upper)


def _race_highs(measurement: Measurement, problem: dict[str, Any]) -> None:
    """Ours and six ways to call HiGHS take turns; the fastest of the six is the one to beat."""
    from assay.games.matrix_game import duality_gap

    for game in problem["games"]:
        # The simplex method is never the fastest of the six on large games, and takes minutes there.
        programs = PROGRAMS if max(game.payoff.shape) <= 800 else [p for p in PROGRAMS if p[0] == "highs-ipm"]
        functions: dict[str, Callable[[], Any]] = {OURS: functools.partial(_solve, game.payoff)}
        for method, side in programs:
            functions[f"{method} {side}"] = functools.partial(linear_program, game.dense, method, side)
        timings = _race(functions, repeats=3, warmup=0, budget=problem["seconds"])
        names = [name for name in functions if name != OURS]
        fastest = min(names, key=timings.median)
        _add_ratio(measurement, "speedup", timings.ratio(fastest, OURS), game.name)
        if "highs row" in functions:
            _add_ratio(measurement, "speedup_default", timings.ratio("highs row", OURS), game.name)
        for name in names:
            measurement.add("seconds", timings.median(name), case=f"{game.name}, {name}")
        measurement.add("seconds_ours", timings.median(OURS), case=game.name)
        answer = strategies_of(timings.answers[fastest], fastest.rpartition(" ")[2])
        measurement.add("relative_gap", duality_gap(game.payoff, *answer) / game.largest, case=game.name)


def _add_ratio(measurement: Measurement, name: str, ratio: Any, case: str) -> None:
    measurement.add(name, ratio.median, case=case)
    measurement.add(f"{name}_lower", ratio.lower, case=case)
    measurement.add(f"{name}_upper", ratio.upper, case=case)


def _race_highs_on_squares(measurement: Measurement, problem: dict[str, Any]) -> None:
    """How the ratio to the fastest of HiGHS changes with the number of actions of each player."""
    speedups = {}
    for size in problem["squares"]:
        payoff = np.random.default_rng([problem["seed"], size]).uniform(-1, 1, (size, size))
        programs = PROGRAMS if size < 500 else [("highs-ipm", "column")]
        functions: dict[str, Callable[[], Any]] = {OURS: functools.partial(_solve, payoff)}
        for method, side in programs:
            # A program that is stopped counts with the time it had.
            functions[f"{method} {side}"] = functools.partial(linear_program, payoff, method, side, time_limit=100.0)
        timings = _race(functions, repeats=3, warmup=0, budget=problem["seconds"])
        fastest = min((name for name in functions if name != OURS), key=timings.median)
        ratio = timings.ratio(fastest, OURS)
        speedups[size] = ratio.median
        _add_ratio(measurement, "speedup", ratio, f"square {size}")
        measurement.add("seconds", timings.median(fastest), case=f"square {size}")
        measurement.add("seconds_ours", timings.median(OURS), case=f"square {size}")
        measurement.add("relative_gap_ours", timings.answers[OURS].gap / abs(payoff).max(), case=f"square {size}")
    measurement.add("speedup_slope", _slope(speedups))
    measurement.add_curve(
        "How many times faster than the fastest HiGHS",
        list(speedups),
        list(speedups.values()),
        x_label="actions of each player",
        y_label="seconds of HiGHS / seconds of ours",
        x_log=True,
        y_log=True,
    )


def _race_library(measurement: Measurement, problem: dict[str, Any], contender: str) -> None:
    from assay.games.matrix_game import duality_gap

    rng = np.random.default_rng([problem["seed"], 2])
    if contender == OPEN_SPIEL:
        games, theirs = random_games(problem["shapes"][: 1 + (len(problem["shapes"]) > 3)], rng), open_spiel_equilibrium
        theirs(rng.uniform(-1, 1, (3, 3)))  # imports cvxpy
    else:
        games, theirs = random_games(((8, 8),), rng), nashpy_equilibrium
        theirs(rng.uniform(-1, 1, (3, 3)))
    for game in games:
        functions = {OURS: functools.partial(_solve, game.payoff), "theirs": functools.partial(theirs, game.payoff)}
        timings = _race(functions, repeats=5, warmup=0, budget=problem["seconds"])
        _add_ratio(measurement, "speedup", timings.ratio("theirs", OURS), game.name)
        measurement.add("seconds", timings.median("theirs"), case=game.name)
        measurement.add("relative_gap", duality_gap(game.payoff, *timings.answers["theirs"]) / game.largest, game.name)
