"""Equilibria from logs of Markov games: a pull to references against plug-in equilibria and pessimism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study
from assay.studies.games._offline_names import (
    HARMONIC,
    OPEN_SPIEL,
    PESSIMISTIC,
    PLUGIN,
    ROSE,
    SOS_MD,
    TRUE_MODEL,
)

__all__ = ["OfflineMarkovStudy"]


@dataclass(frozen=True)
class Problem:
    """A seed, from which every contender makes the same games and logs, and the sizes."""

    seed: int
    parameters: dict[str, Any]


def _slopes(beta: float) -> tuple[Claim, Claim]:
    return tuple(
        Claim(
            f"C1 beta={beta:g}, {side}",
            f"regularised gap of ROSE against samples, beta={beta:g}: exponent {words} {number:g}",
            "gap_slope",
            ROSE,
            relation,  # type: ignore[arg-type]
            number,
            "paper: rate 1/n; -1.00 to -1.03 in an early run",
            case=f"random, beta={beta:g}",
        )
        for side, words, relation, number in (("upper", "at most", "<=", -0.85), ("lower", "at least", ">=", -1.2))
    )


class OfflineMarkovStudy(Study):
    """Policies from logs of two-player zero-sum Markov games."""

    title = "Offline Markov games with a pull to references"
    summary = (
        "For teams with logs of a competitive system (bidding, security, self-play) who want equilibrium policies "
        "without new play. Regression and small matrix games only, no bonuses to tune, with an error like 1/n."
    )
    promise = (
        "Every stage game is solved to the tolerance, in closed form; the policies are an equilibrium of the game that "
        "the data describe; and the data cover, or do not, what a player could reach by deviating."
    )
    interface = "solver"
    method = "assay.games.rose"
    paper = Paper(
        "Offline Two-Player Zero-Sum Markov Games with KL Regularization",
        "Chen, Zhang, Liu, Xie, Liu, Jiang",
        arxiv="2605.13025",
    )
    data = (
        "Random Markov games (5 states, 3 x 3 actions, 4 steps) logged by uniform behaviour, by behaviour near the "
        "equilibrium on one side at a time, and by one pair of actions per state; soccer on a 4 x 5 grid (761 states, "
        "12 steps); rock-paper-scissors and Goofspiel with the rules of OpenSpiel. Rewards of random games are 0 or 1."
    )
    contenders = (
        Contender(ROSE, "method", "least squares, stage games to a gap of 1e-10"),
        Contender(SOS_MD, "method", "self-play with constant steps, T = 5, 20, 80, 320 updates; last iterate"),
        Contender(HARMONIC, "ablation", "self-play with steps 1 / (beta (t + 2))"),
        Contender(TRUE_MODEL, "ablation", "the same equilibrium of the true game: the target"),
        Contender(
            PLUGIN, "incumbent", "Nash equilibria of the estimated stage games by linear programming", library="scipy"
        ),
        Contender(
            PESSIMISTIC,
            "incumbent",
            "bonus c sqrt(log(SABHn) / N), c = 0.01, 0.1, 1, the best kept for each number; linear programming",
            library="scipy",
        ),
        Contender(
            OPEN_SPIEL,
            "incumbent",
            "not a rival but a judge: its own exploitability of ROSE's policies under its own rules",
            library="open_spiel",
        ),
    )
    claims = (
        *(claim for beta in (0.2, 0.5, 1.0) for claim in _slopes(beta)),
        Claim(
            "C2 upper",
            "gap without regularisation of the plug-in against samples: exponent at most -0.4",
            "nash_gap_slope",
            PLUGIN,
            "<=",
            -0.4,
            "paper: rate 1/sqrt(n); -0.54 in an early run",
            case="random, beta=1",
        ),
        Claim(
            "C2 lower",
            "and at least -0.65",
            "nash_gap_slope",
            PLUGIN,
            ">=",
            -0.65,
            "paper: rate 1/sqrt(n); -0.54 in an early run",
            case="random, beta=1",
        ),
        Claim(
            "C3 lower",
            "gap of ROSE at beta=0.2 over that at beta=1, equal n: at least 3",
            "gap_over_that_of_beta_1",
            ROSE,
            ">=",
            3,
            "paper: 1/beta, hence 5",
        ),
        Claim(
            "C3 upper",
            "and at most 8",
            "gap_over_that_of_beta_1",
            ROSE,
            "<=",
            8,
            "paper: 1/beta, hence 5",
        ),
        Claim(
            "C4a",
            "80 updates of self-play are within 10 % of ROSE's true gap (beta=0.5, n=32000)",
            "gap_over_rose",
            SOS_MD,
            "<=",
            1.1,
            "early run: 7.9e-4 against 7.7e-4",
            case="random, beta=0.5, n=32000, T=80",
        ),
        Claim(
            "C4b",
            "the optimisation gap of self-play falls geometrically: between any two looks at it at least as fast as is "
            "proven for the distance",
            "decay_over_proven",
            SOS_MD,
            ">=",
            1.0,
            "derived: contraction by 1 + eta beta",
            reduce="min",
        ),
        Claim(
            "C4c",
            "the relative entropy to the equilibrium after 20 updates is within its bound, everywhere",
            "contraction_over_bound",
            SOS_MD,
            "<=",
            1.0,
            "derived: contraction by 1 + eta beta",
            reduce="max",
        ),
        Claim(
            "C5",
            "coverage of unilateral deviations is enough: gap of ROSE at most 1.5 times that with uniform behaviour",
            "gap_over_uniform",
            ROSE,
            "<=",
            1.5,
            "early run: 0.0111 against 0.0131",
            case="unilateral, *",
        ),
        Claim(
            "C6",
            "harmonic steps: worst gap of 20 stage games against updates from 160 to 2560, exponent at most -0.5",
            "gap_slope_in_updates",
            HARMONIC,
            "<=",
            -0.5,
            "paper: 1/sqrt(T)",
            reduce="max",
        ),
        Claim(
            "C7a",
            "without coverage (one pair of actions per state) the gap is at least 50 times that with uniform behaviour",
            "gap_over_uniform",
            ROSE,
            ">=",
            50,
            "early run: 0.254 against 0.0012",
            case="one pair, *",
        ),
        Claim(
            "C7b",
            "and does not fall with n (exponent at least -0.05)",
            "gap_slope",
            ROSE,
            ">=",
            -0.05,
            "early run: 0.254 at 500 and at 32000",
            case="one pair, *",
        ),
        Claim(
            "C7c",
            "and the certificate of coverage says so, every time",
            "coverage_certificate_holds",
            ROSE,
            "<=",
            0,
            "derived: what the log has not has no share in it",
            reduce="max",
        ),
        Claim(
            "C8",
            "ROSE's solver takes at most a quarter of the updates of self-play to a gap of 1e-6, beta at most 0.1",
            "updates_over_self_play",
            ROSE,
            "<=",
            0.25,
            "derived: 4 beta / R",
            reduce="max",
        ),
        Claim(
            "C9",
            "all certificates of ROSE hold where behaviour was uniform",
            "certificates_failed",
            ROSE,
            "<=",
            0,
            "derived",
            reduce="max",
        ),
        Claim(
            "C10",
            "OpenSpiel finds the same exploitability of the learned policies under its own rules",
            "difference_of_gaps",
            OPEN_SPIEL,
            "<=",
            1e-9,
            "derived: the same game",
            reduce="max",
        ),
        Claim(
            "P1",
            "all states at once are at least 20 times as fast as a loop over them in Python (200 states, 10 x 10 "
            "actions, as many updates as by default)",
            "loop_over_compiled",
            SOS_MD,
            ">=",
            20,
            "design target",
            timed=True,
        ),
        Claim(
            "P2",
            "1000 states, 10 x 10 actions, 10 steps, 200 updates take at most 20 s",
            "seconds_large",
            SOS_MD,
            "<=",
            20,
            "design target",
            sizes=("full",),
            timed=True,
        ),
        *(
            Claim(
                f"P3 {what}, {side}",
                f"time against {what}: exponent {words} {number:g}",
                f"seconds_slope_in_{what}",
                SOS_MD,
                relation,  # type: ignore[arg-type]
                number,
                "design target: linear",
                timed=True,
            )
            for what in ("states", "updates")
            for side, words, relation, number in (("upper", "at most", "<=", 1.15), ("lower", "at least", ">=", 0.85))
        ),
        Claim(
            "P4",
            "memory beyond the data is linear in the states (exponent at most 1.15)",
            "memory_slope_in_states",
            SOS_MD,
            "<=",
            1.15,
            "design target",
        ),
    )
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {
            "samples": (500, 1000, 2000, 4000, 8000),
            "replications": 3,
            "soccer": (),
            "real": (500, 8000),
            "betas": (0.1, 0.05),
            "repeats": 3,
        },
        "full": {
            "samples": (500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000),
            "replications": 4,
            "soccer": (8000, 128000),
            "real": (500, 8000, 128000),
            "betas": (0.1, 0.05, 0.02),
            "repeats": 5,
        },
    }
    seeds: ClassVar[dict[str, int]] = {"quick": 3, "full": 10}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """A seed of the game and of its logs."""
        return Problem(int(rng.integers(2**31)), dict(self.sizes[size]))

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Run the parts of the study that the contender takes part in."""
        from assay.studies.games import _offline_costs as costs
        from assay.studies.games import _offline_measures as measures

        measurement, seed, options = Measurement(), problem.seed, problem.parameters
        if contender == OPEN_SPIEL:
            installed = open_spiel_is_there()
            measurement.add("installed", float(installed))
            if installed:
                measures.measure_judge(measurement, seed)
            return measurement
        if contender == TRUE_MODEL:
            measures.measure_true_model(measurement, seed)
            return measurement
        if contender in (ROSE, PLUGIN, PESSIMISTIC):
            replications = options["replications"]
            measures.measure_rates(measurement, contender, seed, options["samples"], replications)
            measures.measure_unilateral(measurement, contender, seed, replications)
            if open_spiel_is_there():
                measures.measure_real_rules(measurement, contender, seed, options["real"])
        measures.measure_soccer(measurement, contender, seed, options["soccer"])
        if contender == ROSE:
            measures.measure_certificates(measurement, seed, max(options["samples"]))
            measures.measure_negative_control(measurement, seed)
            costs.measure_updates(measurement, options["betas"])
        if contender in (SOS_MD, HARMONIC):
            measures.measure_self_play(measurement, contender, seed)
        if contender == HARMONIC:
            costs.measure_harmonic(measurement)
        if contender == SOS_MD:
            costs.measure_speed(measurement, options["repeats"])
            costs.measure_memory(measurement)
            if options["soccer"]:
                costs.measure_large(measurement)
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """Learn both players' policies from 4000 logged episodes of a random game."""
        from assay.games.markov_gap import regularized_gap
        from assay.games.markov_model import MarkovGameModel
        from assay.games.offline_markov import rose

        rng = np.random.default_rng(0)
        P = rng.dirichlet(np.ones(5), size=(4, 5, 3, 3))  # step, state, both actions, next state
        game = MarkovGameModel(P, rng.uniform(0, 1, (4, 5, 3, 3)))
        data = game.sample_dataset(4000, "uniform", rng, noise="bernoulli")
        result = rose(data, beta=0.5, mu_ref="uniform", nu_ref="uniform")
        true_gap = regularized_gap(game, 0.5, None, None, result.mu, result.nu)
        print(f"true gap {true_gap:.5f}, estimated from two halves {result.split_half_gap:.5f}")
        return result.certificates


def open_spiel_is_there() -> bool:
    """Whether OpenSpiel can be imported."""
    import importlib.util

    return importlib.util.find_spec("pyspiel") is not None
