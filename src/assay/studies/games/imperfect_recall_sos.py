"""Study of games with imperfect recall: sums of squares against enumeration, integer programs and local search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study

__all__ = ["ImperfectRecallStudy", "Problem"]

OURS = "SOS"
COST = "SOS, cost"
MIXED = "SOS, mixed strategies"
KKT = "SOS, first-order conditions"
ENUMERATION = "enumeration"
MILP = "MILP (HiGHS)"
ASCENT = "block ascent"
GRADIENT = "projected gradient"
CFR = "CFR (OpenSpiel)"
GAMBIT = "Gambit"
CVXPY = "cvxpy + Clarabel"

_LIBRARIES = {CFR: "pyspiel", GAMBIT: "pygambit", CVXPY: "cvxpy"}


@dataclass(frozen=True)
class Problem:
    """Games by family, and the parameters of the size."""

    pure: list[Any]
    tensors: list[Any]
    absent: list[Any]
    parameters: dict[str, Any]
    seed: int


class ImperfectRecallStudy(Study):
    """Games in which players forget."""

    title = "Imperfect-recall games by sums of squares"
    summary = (
        "For games in which a player forgets: abstractions, teams that cannot talk, agents with little memory. The "
        "best strategy with a proof, for one player; an equilibrium or a proof that there is none, for several."
    )
    promise = (
        "The payoff of the returned strategy and a proved bound on all strategies, within the tolerance; the proof is "
        "an identity between polynomials that is checked coefficient by coefficient."
    )
    interface = "solver"
    method = "assay.games.ex_ante_optimum"
    paper = Paper(
        title="Solving Imperfect-Recall Games via Sum-of-Squares Optimization",
        authors="Zheng, Sim, Varvitsiotis",
        arxiv="2602.21722",
    )
    data = (
        "Absent-minded drivers, colourings of odd cycles, random trees in which all is forgotten, random absent-minded "
        "trees, a penalty shoot-out, random trees of two players, Kuhn poker with a card that is forgotten."
    )
    contenders = (
        Contender(OURS, "method", "pure strategies where nobody is absent-minded, all of them elsewhere"),
        Contender(COST, "method", "the same: seconds and memory of single relaxations"),
        Contender(MIXED, "ablation", "all behavioural strategies everywhere, up to order 2 (quick) or 3"),
        Contender(KKT, "ablation", "the same with first-order conditions, at the least order"),
        Contender(ENUMERATION, "incumbent", "all pure strategies, no answer where mixing pays"),
        Contender(MILP, "incumbent", "scipy.optimize.milp: a binary per action, a variable per partial product",
                  library="scipy"),
        Contender(ASCENT, "incumbent", "best responses at one information set after another, 100 random starts"),
        Contender(GRADIENT, "incumbent", "projected gradient ascent, step 0.1 of the largest payoff, 100 starts (10 in "
                  "the quick study)"),
        Contender(CFR, "incumbent", "counterfactual regret minimisation on the tree with merged information sets",
                  library="open_spiel"),
        Contender(GAMBIT, "incumbent", "enumpure_solve and lcp_solve, perfect recall only", library="pygambit"),
        Contender(CVXPY, "incumbent", "the same relaxation modelled with one sparse matrix, default settings",
                  library="cvxpy"),
    )  # fmt: skip
    claims = (
        Claim("C1a", "Nobody absent-minded: gap at most 1e-6, on every game", "gap", OURS, "<=", 1e-6,
              "paper: exact at order l + 1", reduce="max", case="pure *"),
        Claim("C1b", "and at an order of at most the number of information sets", "order_minus_infosets", OURS, "<=", 0,
              "early run", reduce="max", case="pure *"),
        Claim("C1c", "The bound does not grow with the order", "bound_increase", OURS, "<=", 1e-7,
              "paper", reduce="max", case="pure *"),
        Claim("C2a", "Absent-minded driver: optimum 4/3", "optimum_error", OURS, "<=", 1e-6,
              "derived: maximum of 4p - 3p^2", reduce="max", case="driver 2"),
        Claim("C2b", "at order 1", "order", OURS, "<=", 1, "derived: concave", reduce="max", case="driver 2"),
        Claim("C2c", "Three and four exits: optimum to 1e-6", "optimum_error", OURS, "<=", 1e-6,
              "derived: maximum of 6 p^(n-1) (1-p)", reduce="max", case="driver [34]"),
        *(
            Claim(f"C3{letter}", f"{case}: bound {number}", "bound_error", OURS, "<=", 1e-6, "early run",
                  reduce="max", case=case)
            for letter, case, number in (
                ("a", "C5, order 1", "(5 + sqrt 5) / 8"),
                ("b", "C5, order 2, pure", "4/5"),
                ("c", "C5, order 2, mixed", "0.801316"),
                ("d", "C3, order 2, mixed", "0.668559"),
            )
        ),
        Claim("C4a", "Shoot-out with mismatch cost 2 and 3: no equilibrium, proved", "no_equilibrium", OURS, ">=", 1,
              "paper: equilibria need not exist", reduce="min", case="shoot-out [!0]*"),
        Claim("C4a half", "the same for 0.5", "no_equilibrium", OURS, ">=", 1, "early run",
              reduce="min", case="shoot-out 0.5"),
        Claim("C4b", "with at most 3 cuts", "n_cuts", OURS, "<=", 3, "early run", reduce="max", case="shoot-out *"),
        Claim("C4c", "Without a mismatch cost: an equilibrium from which nobody gains 1e-6", "largest_gain", OURS, "<=",
              1e-6, "early run", reduce="max", case="shoot-out 0"),
        Claim("C4d", "Kuhn poker, card forgotten before the second move: no equilibrium, proved", "no_equilibrium",
              OURS, ">=", 1, "measured here: the least exploitability that local search finds is 1/36", reduce="min",
              case="Kuhn poker", sizes=("full",)),
        Claim("C5a", "Random payoffs, 4 information sets: a start of block ascent finds the optimum, probability .17",
              "success", ASCENT, "<=", 0.17, "early run: mean of 10 games", reduce="mean", case="pure tensor 4*",
              sizes=("full",)),
        Claim("C5b", "and .01 in the worst of ten games", "success", ASCENT, "<=", 0.01, "early run", reduce="min",
              case="pure tensor 4*", sizes=("full",)),
        Claim("C5c", "The relaxation closes the gap to 1e-6 on all of them", "gap", OURS, "<=", 1e-6, "early run",
              reduce="max", case="pure tensor *"),
        Claim("C5d", "Its value is the largest payoff", "optimum_error", OURS, "<=", 1e-6, "derived", reduce="max",
              case="pure tensor *"),
        Claim("C5e", "The integer program finds it too", "optimum_error", MILP, "<=", 1e-6, "early run", reduce="max",
              case="pure tensor *"),
        Claim("C5f", "and enumeration", "optimum_error", ENUMERATION, "<=", 1e-9, "derived", reduce="max",
              case="pure tensor *"),
        Claim("C5g", "Both are faster: time of the integer program over ours", "seconds", MILP, "<=", 1.0, "early run",
              versus=OURS, case="pure tensor *", timed=True),
        Claim("C5h", "and of enumeration", "seconds", ENUMERATION, "<=", 1.0, "early run", versus=OURS,
              case="pure tensor *", timed=True),
        Claim("C6a", "Absent-minded trees: mixing pays on at least 20% of them", "share_where_mixing_pays", OURS, ">=",
              0.2, "early run: 33% of 40", reduce="mean", sizes=("full",)),
        Claim("C6b", "The gap is at most 1e-5 on at least 90%, at most one order above the least", "share_closed", OURS,
              ">=", 0.9, "early run", reduce="mean"),
        Claim("C7a", "Concave by a sum of squares: gap at most 1e-6", "gap", OURS, "<=", 1e-6, "paper", reduce="max",
              case="concave *"),
        Claim("C7b", "with one semidefinite program", "n_levels", OURS, "<=", 1, "paper", reduce="max",
              case="concave *"),
        Claim("C7c", "Monotone by a sum of squares: no cut", "n_cuts", OURS, "<=", 0, "paper", reduce="max",
              case="monotone *"),
        Claim("C7d", "The classes are recognised", "certified_class", OURS, ">=", 1, "derived", reduce="min"),
        Claim("C8", "All certificates hold", "certificates_failed", OURS, "<=", 0, "derived", reduce="max"),
        Claim("P1", "131 rows: at least 5 times faster than cvxpy with Clarabel", "time_over_ours", CVXPY, ">=", 5,
              "early run: 75 s against 9 s", case="side 131", sizes=("full",), timed=True),
        Claim("P2a", "Assembly of C7 at order 3 takes at most 2 s", "assembly_seconds", COST, "<=", 2.0,
              "design target", timed=True),
        Claim("P2b", "at least 10 times less than entry by entry in cvxpy", "assembly_over_ours", CVXPY, ">=", 10,
              "design target", sizes=("full",), timed=True),
        Claim("P3a", "6 information sets, order 3: pure strategies have half the rows", "rows_mixed_over_pure", COST,
              ">=", 2.0, "derived: 84 against 42", sizes=("full",)),
        Claim("P3b", "and take at most a third of the time", "time_mixed_over_pure", COST, ">=", 3.0, "design target",
              sizes=("full",), timed=True),
        Claim("P4", "The time grows at most as the number of rows to the fourth", "time_slope", COST, "<=", 4.0,
              "design target: 3 to 4", sizes=("full",), timed=True),
        Claim("P5", "Memory is at most 4 m side^2 numbers", "memory_over_m_side2", COST, "<=", 4.0,
              "design target: O(m side^2)", reduce="max", case="side ???", sizes=("full",)),
    )  # fmt: skip
    sizes: ClassVar = {
        "quick": {
            "cycles": (3, 5),
            "trees": (3, 4),
            "tensors": ((4, 2),),
            "absent": 6,
            "two_player": 1,
            "kuhn": False,
            "classes": 1,
            "starts": 100,
            "gradient_starts": 10,
            "cfr": 100,
            "mixed": 2,
            "speed": ((3, 2), (4, 2)),
            "box": (4, 2),
            "rival": (4, 2),
            "assembly": (5, 2),
        },
        "full": {
            "cycles": (3, 5, 7),
            "trees": (3, 4, 5, 6),
            "tensors": ((4, 10), (5, 2), (6, 1)),
            "absent": 20,
            "two_player": 10,
            "kuhn": True,
            "classes": 5,
            "starts": 100,
            "gradient_starts": 100,
            "cfr": 1000,
            "mixed": 3,
            "speed": ((3, 2), (4, 2), (5, 3), (6, 3)),
            "box": (6, 3),
            "rival": (5, 3),
            "assembly": (7, 3),
        },
    }
    seeds: ClassVar = {"quick": 1, "full": 1}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """All games of one player; those of several are drawn where they are solved, from a seed."""
        from assay.studies.games._imperfect_games import absent_minded_trees, cycle, forgetful_tree, tensor_game

        options = self.sizes[size]
        pure = [cycle(length) for length in options["cycles"]]
        pure += [forgetful_tree(depth, rng) for depth in options["trees"]]
        tensors = [tensor_game(n_infosets, seed) for n_infosets, count in options["tensors"] for seed in range(count)]
        absent = absent_minded_trees(options["absent"], rng)
        return Problem(pure, tensors, absent, dict(options), int(rng.integers(2**31)))

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Solve what the contender can."""
        from assay.studies.games import _imperfect_measures as measures
        from assay.studies.games import _imperfect_rivals as rivals

        measurement = Measurement()
        parameters = problem.parameters
        if contender in _LIBRARIES and not rivals.is_there(_LIBRARIES[contender]):
            measurement.add("installed", 0.0)
            return measurement
        if contender == OURS:
            measures.measure_pure(measurement, problem.pure + problem.tensors, ours=True)
            measures.measure_known(measurement)
            measures.measure_absent_minded(measurement, problem.absent, ours=True)
            measures.measure_equilibria(measurement, parameters["two_player"], problem.seed, parameters["kuhn"])
            measures.measure_classes(measurement, parameters["classes"], problem.seed)
        elif contender == COST:
            measures.measure_speed(measurement, parameters["speed"], parameters["box"])
        elif contender == MIXED:
            games = [one for one in problem.pure if _free(one) <= 5]
            measures.measure_pure(measurement, games, False, vertex=False, max_order=parameters["mixed"])
        elif contender == KKT:
            games = [one for one in problem.pure if _free(one) <= 4]
            measures.measure_pure(measurement, games, False, vertex=False, kkt=True, max_order=2)
            measures.measure_absent_minded(measurement, problem.absent[:3], False, kkt=True)
        elif contender == GAMBIT:
            self._measure_gambit(measurement, problem)
        elif contender == CVXPY:
            measures.rival_speed(measurement, parameters["rival"], parameters["assembly"])
        else:
            self._measure_rival(measurement, contender, problem, rng)
        return measurement

    def _measure_rival(
        self, measurement: Measurement, contender: str, problem: Problem, rng: np.random.Generator
    ) -> None:
        """Value of a solver for one player on all games that it can read, next to the best one by enumeration."""
        from assay.studies.games import _imperfect_rivals as rivals

        parameters = problem.parameters
        games = problem.pure + problem.tensors + problem.absent
        if contender in (ENUMERATION, MILP, ASCENT):  # pure strategies only
            games = problem.pure + problem.tensors
        if contender == CFR:
            games = [one for one in games if one.game.tree is not None and len(one.game.infosets) <= 5]
        for one in games:
            begin = time.perf_counter()
            if contender == ENUMERATION:
                value = rivals.enumerate_pure(one.game)
            elif contender == MILP:
                value = rivals.integer_program(one.game)
            elif contender == CFR:
                value = rivals.counterfactual_regret(one.game.tree, parameters["cfr"])
            else:
                found = (
                    rivals.block_ascent(one.game, parameters["starts"], rng)
                    if contender == ASCENT
                    else rivals.projected_gradient(one.game, parameters["gradient_starts"], rng)
                )
                value = found.best
            measurement.add("seconds", time.perf_counter() - begin, case=one.name)
            measurement.add("value", value, case=one.name)
            best = one.optimum
            if best is None and not one.name.startswith("absent"):
                best = rivals.enumerate_pure(one.game)
            if best is None:
                continue
            measurement.add("optimum_error", abs(value - best), case=one.name)
            if contender in (ASCENT, GRADIENT):
                measurement.add("success", found.share_at(best), case=one.name)

    def _measure_gambit(self, measurement: Measurement, problem: Problem) -> None:
        """Equilibria where recall is perfect; where it is not, whether Gambit says that it cannot."""
        from assay.games.imperfect_nash import find_nash
        from assay.studies.games._imperfect_games import recalling_tree, two_player_tree
        from assay.studies.games._imperfect_rivals import gambit_equilibria

        rng = np.random.default_rng(problem.seed)
        try:
            gambit_equilibria(two_player_tree(rng).tree, "enumpure")
            measurement.add("solves_imperfect_recall", 1.0)
        except RuntimeError:
            measurement.add("solves_imperfect_recall", 0.0)
        for i in range(problem.parameters["two_player"]):
            game = recalling_tree(rng)
            answer = find_nash(game)
            measurement.add("ours_resolved", answer.status == "equilibrium", case=f"recalling {i}")
            for method in ("lcp", "enumpure"):
                begin = time.perf_counter()
                found = gambit_equilibria(game.tree, method)
                measurement.add(f"seconds_{method}", time.perf_counter() - begin, case=f"recalling {i}")
                measurement.add(f"n_{method}", len(found), case=f"recalling {i}")

    def demonstrate(self) -> Sequence[Certificate]:
        """The absent-minded driver, who must mix."""
        from assay.games.imperfect_recall_game import ImperfectRecallGame
        from assay.games.imperfect_recall_sos import ex_ante_optimum

        # p is the probability of driving on at an exit; leaving at the second one pays 4, never leaving 1.
        game = ImperfectRecallGame.from_polynomials([{(1, 1): 4.0, (2, 0): 1.0}], [[0, 1]], [0])
        best = ex_ante_optimum(game)
        print(f"drive on with probability {best.x[0][0]:.4f}, payoff {best.value:.6f}, bound {best.upper_bound:.6f}")
        return best.certificates


def _free(one: Any) -> int:
    """Number of free variables, which decides what relaxations over all strategies cost."""
    return sum(len(simplex) - 1 for simplex in one.game.simplices)
