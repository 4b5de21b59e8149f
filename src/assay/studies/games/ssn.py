"""Matrix games to ten digits: semismooth Newton steps against linear programming and regret matching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study
from assay.studies.games._matrix_game_measures import warm_up
from assay.studies.games._matrix_game_newton import (
    measure_ablated_newton,
    measure_memory,
    measure_orders,
    measure_ours,
    measure_steps,
)
from assay.studies.games._matrix_game_races import (
    CAP,
    race_highs,
    race_highs_on_squares,
    race_library,
    race_regret_matching,
)
from assay.studies.games._matrix_games import (
    BLOCK_200,
    BLOCK_ALL,
    FULL_STEPS,
    HIGHS,
    HIGHS_SCALING,
    MONOTONE,
    NASHPY,
    OPEN_SPIEL,
    OURS,
    PRM,
    PSSN,
    SIMULTANEOUS,
    SSN,
    random_games,
    structured_games,
)


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
        Claim(
            "C1c",
            "The games of C1 to C5 are solved by Newton steps, without an interior-point step",
            "n_interior",
            OURS,
            "<=",
            0,
            "derived: what the paper is about",
            reduce="max",
        ),
        *(
            Claim(
                f"C2-{shape}{suffix}",
                f"{shape}: to 1e-10 at least 10 times sooner than PRM+ to 1e-8 ({words})",
                "speedup",
                PRM,
                ">=",
                10,
                "paper: an order of magnitude at high precision",
                reduce=reduce,
                case=f"* {shape}",
                sizes=sizes,
                timed=True,
            )
            for shape, sizes in (("200x400", ("quick", "full")), ("400x800", ("full",)), ("600x1200", ("full",)))
            for suffix, words, reduce in (("", "median of games", "median"), ("-every", "every game", "min"))
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
            "The last Newton steps converge with order 2: median of random games (0 where there are too few to tell)",
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
            reduce="mean",
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
            "Memory beside the payoffs themselves is at most 4 n^2 + 4 nm numbers",
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
        warm_up()
        measurement = Measurement()
        if contender in (PRM, SIMULTANEOUS):
            race_regret_matching(measurement, problem, alternating=contender == PRM)
        elif contender == HIGHS:
            race_highs(measurement, problem)
        elif contender == HIGHS_SCALING:
            race_highs_on_squares(measurement, problem)
        elif contender in (OPEN_SPIEL, NASHPY):
            race_library(measurement, problem, contender)
        elif contender in (FULL_STEPS, MONOTONE):
            measure_ablated_newton(measurement, problem, contender)
        else:
            for game in problem["games"]:
                measure_ours(measurement, game, contender)
            if contender == OURS:
                measure_orders(measurement, problem)
                measure_steps(measurement, problem)
                measure_memory(measurement, problem)
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """A random game with 200 actions of each player."""
        from assay.games.ssn import solve_matrix_game

        payoff = np.random.default_rng(0).uniform(-1, 1, (200, 200))  # what the row player pays
        result = solve_matrix_game(payoff)
        print(f"value {result.value:.10f}, {result.support_x.size} rows and {result.support_y.size} columns are played")
        return result.certificates
