"""Price schedules for datasets against uniform prices that are set by hand, by rule, or by answering rivals."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study, interleave
from assay.studies.games._data_market_instances import NO_EQUILIBRIUM, TENTHS, Instance, instances
from assay.studies.games._data_market_rules import (
    clearing_prices,
    monopoly_prices,
    naive_round,
    smallest_worst_ratio,
)

__all__ = ["DataMarketStudy"]

INERTIAL, FICTITIOUS, REGRET = "inertial", "fictitious", "regret"
ANSWERS, MONOPOLY, CLEARING = "uniform best response", "monopoly price", "clearing price"
PROOF, NAIVE = "scan and proof", "naive loops"
_ROUNDS_OF_C2 = 150


class DataMarketStudy(Study):
    """Prices of datasets that a sale does not use up."""

    title = "Equilibrium prices in data markets"
    summary = (
        "For those who price datasets, or access to models, for many buyers with budgets. Price schedules that no "
        "seller can better by more than a known factor, and a check of stability for any price list."
    )
    promise = (
        "No seller gains more than a factor of 2 (1 + residual of the fixed point) with a uniform price of its grid, "
        "nor more than the grid allows with any uniform price; all numbers are recomputed from the schedules."
    )
    interface = "solver"
    method = "assay.games.solve_pricing"
    paper = Paper(
        "Equilibrium Pricing in Oligopolistic Data Markets",
        "Ray Chaudhury, Garg, Sharma, Song",
        arxiv="2608.14018",
    )
    data = (
        "Shards of 60 handwritten digits with wrong labels at rates from 0 to 1/2, valued by a logistic regression "
        "trained on them; uniform random values; and a market in which no uniform prices are stable."
    )
    contenders = (
        Contender(INERTIAL, "method", "a tenth of every schedule moves to the best price in each round"),
        Contender(FICTITIOUS, "ablation", "the share that moves falls as 1 / (t + 1)"),
        Contender(REGRET, "ablation", "regret matching, the mean schedule"),
        Contender(PROOF, "method", "scan of uniform prices and branch and bound where none are stable"),
        Contender(
            ANSWERS, "incumbent", "sellers answer each other's uniform prices in turn; the best prices on the way"
        ),
        Contender(MONOPOLY, "incumbent", "the uniform price that is best without rivals"),
        Contender(CLEARING, "incumbent", "money per copy in a market of goods that are used up, rounded to the grid"),
        Contender(NAIVE, "incumbent", "a round of all deviations by loops in Python"),
    )
    claims = (
        Claim(
            "C1a",
            "The incentive ratio is at most 2 on every instance",
            "ratio",
            INERTIAL,
            "<=",
            2.0,
            "paper: a 2-approximate equilibrium exists",
            reduce="max",
        ),
        Claim(
            "C1b",
            "All certificates hold, on every instance",
            "certificates_failed",
            INERTIAL,
            "<=",
            0,
            "derived: proofs in the docstring of pricing_certificate",
            reduce="max",
        ),
        Claim(
            "C1c",
            "With prices k/10, the ratio is 1 on every random and digits instance (to 1e-3)",
            "ratio",
            INERTIAL,
            "<=",
            1.001,
            "paper, section 5: ratio 1 everywhere",
            reduce="max",
            case="*, tenths",
        ),
        Claim(
            "C1d",
            "and schedules settle within 137 rounds",
            "rounds",
            INERTIAL,
            "<=",
            137,
            "paper, section 5",
            reduce="max",
            case="*, tenths",
        ),
        Claim(
            "C1e",
            "and nobody needs more than 2 pieces",
            "most_pieces",
            INERTIAL,
            "<=",
            2,
            "paper, section 5",
            reduce="max",
            case="*, tenths",
        ),
        Claim(
            "C2",
            "With prices k/10 and at least 10 buyers and sellers, at least 80 % of instances have ratio 1.01 within "
            "150 rounds and at most 2 pieces on average",
            "good_within_150",
            INERTIAL,
            ">=",
            0.8,
            "design target",
            reduce="mean",
        ),
        Claim(
            "C3a",
            "Uniform prices that answer each other do not settle in 500 rounds where none are stable",
            "settled",
            ANSWERS,
            "<=",
            0,
            "paper, Theorem 3.2",
            reduce="max",
            case=f"{NO_EQUILIBRIUM}*",
        ),
        Claim(
            "C3b",
            "The smallest ratio of uniform prices there, ties against them, over a grid, is at least 1.3635",
            "smallest_ratio",
            PROOF,
            ">=",
            1.3635,
            "derived: 1.36375 in the limit of many buyers; paper: 1.364",
            reduce="min",
        ),
        Claim(
            "C3c",
            "and at most 1.37",
            "smallest_ratio",
            PROOF,
            "<=",
            1.37,
            "derived: 1.36375 in the limit of many buyers",
            reduce="max",
        ),
        Claim(
            "C3d",
            "That all prices have ratio 1.3637 is proved by branch and bound",
            "proved_1.3637",
            PROOF,
            ">=",
            1,
            "derived",
            reduce="min",
        ),
        Claim(
            "C3e",
            "That all prices have ratio 1.365 is not proved",
            "proved_1.365",
            PROOF,
            "<=",
            0,
            "derived: the paper's 1.364 is rounded",
            reduce="max",
        ),
        Claim(
            "C4",
            "Schedules have ratio at most 1.15 where no uniform prices are stable",
            "ratio",
            INERTIAL,
            "<=",
            1.15,
            "design target",
            reduce="max",
            case=f"{NO_EQUILIBRIUM}*",
        ),
        Claim(
            "C5",
            "A schedule earns at least half of its random price, at 3000 random profiles",
            "least_lemma_ratio",
            INERTIAL,
            ">=",
            0.5,
            "paper, Lemma 4.3",
            reduce="min",
        ),
        Claim(
            "C6a",
            "On a geometric grid with steps of 2 %, the ratio for any uniform price is at most 2.04 (1 + residual)",
            "any_price_over_residual",
            INERTIAL,
            "<=",
            2.04,
            "derived: lowering a price loses no place",
            reduce="max",
        ),
        Claim(
            "C6b",
            "and exceeds that for grid prices by at most 2 %",
            "excess_of_any_price",
            INERTIAL,
            "<=",
            0.02,
            "derived: lowering a price loses no place",
            reduce="max",
        ),
        Claim(
            "P1",
            "A round with 20 buyers, 25 sellers and 10 prices is at least 200 times faster than loops in Python",
            "naive_to_ours",
            NAIVE,
            ">=",
            200,
            "design target",
            timed=True,
        ),
        Claim(
            "P2",
            "and takes at most 3 ms",
            "seconds_per_round",
            NAIVE,
            "<=",
            0.003,
            "design target",
            timed=True,
        ),
        Claim(
            "P3",
            "The time of a round grows linearly with the number of buyers (exponent 1 to .15)",
            "exponent_off_1",
            NAIVE,
            "<=",
            0.15,
            "design target",
            timed=True,
        ),
    )
    sizes: ClassVar = {
        # Shapes: buyers, sellers, random instances, instances of digits.
        "quick": {
            "shapes": ((5, 5, 2, 1), (10, 10, 3, 1)),
            "rounds": 300,
            "scan": (300, 100),
            "buyers": (250, 500, 1000, 2000, 4000, 8000),
        },
        "full": {
            "shapes": ((5, 5, 4, 2), (10, 10, 4, 2), (20, 25, 4, 2)),
            "rounds": 1000,
            "scan": (1500, 1801),
            "buyers": (250, 500, 1000, 2000, 4000, 8000),
        },
    }
    seeds: ClassVar = {"quick": 1, "full": 5}

    def problem(self, size: str, rng: np.random.Generator) -> dict[str, Any]:
        """The markets of a size."""
        options = self.sizes[size]
        return {**options, "instances": instances(options["shapes"], rng)}

    def measure(self, contender: str, problem: dict[str, Any], rng: np.random.Generator) -> Measurement:
        """Price every market, or prove and time what there is to prove and time."""
        measurement = Measurement()
        if contender in (INERTIAL, FICTITIOUS, REGRET):
            for instance in problem["instances"]:
                if contender == INERTIAL or not instance.geometric or instance.name.startswith(NO_EQUILIBRIUM):
                    _measure_schedules(measurement, instance, contender, problem["rounds"], rng)
            if contender == INERTIAL:
                _measure_lemma(measurement, rng)
        elif contender == ANSWERS:
            for instance in problem["instances"]:
                _measure_answers(measurement, instance)
        elif contender == PROOF:
            _measure_proof(measurement, *problem["scan"])
        elif contender == NAIVE:
            _measure_speed(measurement, problem["buyers"], rng)
        else:
            rule = monopoly_prices if contender == MONOPOLY else clearing_prices
            for instance in problem["instances"]:
                _measure_uniform(measurement, instance, instance.market.uniform_lengths(rule(instance.market)))
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """Ten buyers with a budget of 1 and random values for ten datasets; prices 0.1 to 1."""
        from assay.games import DataMarket, solve_pricing

        values = np.random.default_rng(0).random((10, 10))  # of each dataset (columns) to each buyer (rows)
        market = DataMarket(np.ones(10), values, price_grid=np.arange(1, 11) / 10)
        result = solve_pricing(market, rng=0)
        print(f"revenue {result.revenue.round(3)}, no uniform price gains more than {result.incentive_ratio:.3f} times")
        return result.certificates


def _solve(market: Any, dynamics: str, rounds: int, rng: np.random.Generator | None, **options: Any) -> Any:
    from assay.games.data_market import solve_pricing
    from assay.validation import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return solve_pricing(market, dynamics, max_rounds=rounds, rng=rng, **options)


def _measure_schedules(
    measurement: Measurement, instance: Instance, dynamics: str, rounds: int, rng: np.random.Generator
) -> None:
    name = instance.name
    result = _solve(instance.market, dynamics, rounds, rng)
    measurement.certify(result.certificates, case=name)
    measurement.add("ratio", result.incentive_ratio, case=name)
    measurement.add("any_price_ratio", result.any_price_ratio, case=name)
    measurement.add("plc_ratio", result.plc_ratio, case=name)
    measurement.add("residual", result.fixed_point_residual, case=name)
    measurement.add("rounds", result.n_rounds, case=name)
    measurement.add("converged", result.converged, case=name)
    measurement.add("most_pieces", result.pieces_per_seller.max(), case=name)
    measurement.add("mean_pieces", result.pieces_per_seller.mean(), case=name)
    measurement.add("lemma_min_ratio", result.lemma_min_ratio, case=name)
    _add_money(measurement, instance, result.lengths)
    if instance.geometric:
        measurement.add(
            "any_price_over_residual", result.any_price_ratio / (1.0 + result.fixed_point_residual), case=name
        )
        measurement.add("excess_of_any_price", result.any_price_ratio / result.incentive_ratio - 1.0, case=name)
    elif instance.large:
        early = _solve(instance.market, dynamics, _ROUNDS_OF_C2, None, plc_restarts=0)
        good = early.incentive_ratio <= 1.01 and early.pieces_per_seller.mean() <= 2
        measurement.add("good_within_150", good, case=name)
    measurement.add_curve(
        "Incentive ratio",
        result.history["round"],
        result.history["best_ratio"],
        case=name,
        x_label="round",
        y_label="largest gain with a grid price, best so far",
        y_log=True,
    )


def _add_money(measurement: Measurement, instance: Instance, lengths: np.ndarray) -> None:
    market = instance.market
    measurement.add("revenue", market.revenue(lengths).sum(), case=instance.name)
    measurement.add("utility", market.weights @ market.buyer_utility(lengths), case=instance.name)


def _measure_lemma(measurement: Measurement, rng: np.random.Generator) -> None:
    """Random profiles, from even to nearly uniform prices, of random markets of several shapes."""
    from assay.games.market_model import DataMarket

    least = np.inf
    for n_buyers, n_sellers in ((2, 2), (5, 5), (10, 3)) * 10:
        budgets, values = rng.uniform(0.2, 2, n_buyers), rng.random((n_buyers, n_sellers))
        market = DataMarket(budgets, values, price_grid=TENTHS)
        for profile in rng.dirichlet(np.full(TENTHS.size, 0.2), (100, n_sellers)):
            least = min(least, market.evaluate(profile).lemma_ratio)
    measurement.add("least_lemma_ratio", least)


def _measure_answers(measurement: Measurement, instance: Instance) -> None:
    from assay.games.market_uniform import uniform_best_response

    name, market = instance.name, instance.market
    unstable = name.startswith(NO_EQUILIBRIUM)
    result = uniform_best_response(market, method="exact" if unstable and instance.geometric else "grid")
    measurement.add("settled", result.settled, case=name)
    measurement.add("cycle_length", result.cycle_length, case=name)
    measurement.add("last_ratio", result.ratio, case=name)
    measurement.add_curve(
        "Incentive ratio",
        result.history["round"],
        np.minimum.accumulate(result.history["ratio"]),
        case=name,
        x_label="round",
        y_label="largest gain with a grid price, best so far",
        y_log=True,
    )
    posted = market.with_prices([[price] for price in result.best_prices])
    measurement.add("ratio", result.best_ratio, case=name)
    _add_any_price(measurement, name, posted, np.ones((result.prices.size, 1)))
    _add_money(measurement, Instance(name, posted, False, False), np.ones((result.prices.size, 1)))


def _measure_uniform(measurement: Measurement, instance: Instance, lengths: np.ndarray) -> None:
    measurement.add("ratio", instance.market.incentive_ratio(lengths), case=instance.name)
    _add_any_price(measurement, instance.name, instance.market, lengths)
    _add_money(measurement, instance, lengths)


def _add_any_price(measurement: Measurement, name: str, market: Any, lengths: np.ndarray) -> None:
    from assay.games.pricing_certificate import any_price_ratio

    measurement.add("any_price_ratio", any_price_ratio(market, lengths, market.revenue(lengths)), case=name)


def _measure_proof(measurement: Measurement, n_p: int, n_q: int, nu: float = 1000.0) -> None:
    from assay.games.market_no_equilibrium import certify_no_equilibrium, limit_ratio, no_equilibrium_instance

    below_one = 1.0 - np.geomspace(1e-6, 0.6, 400)
    p = np.concatenate((np.geomspace(0.4, 1.2 * nu, n_p), below_one))
    smallest, at_p, at_q = smallest_worst_ratio(no_equilibrium_instance(nu), p, np.linspace(0.3, 1.2, n_q))
    measurement.add("smallest_ratio", smallest)
    measurement.add("smallest_at_p", at_p)
    measurement.add("smallest_at_q", at_q)
    measurement.add("limit_ratio", limit_ratio(0.733, 0.860))
    for c in (1.3637, 1.365):
        proof = certify_no_equilibrium(0.733, 0.860, c)
        measurement.add(f"proved_{c}", proof.holds)
        measurement.add(f"boxes_{c}", proof.n_boxes)
        if c < limit_ratio(0.733, 0.860):
            measurement.certify(proof.certificates, case=f"ratio {c}")


def _measure_speed(measurement: Measurement, buyers: tuple[int, ...], rng: np.random.Generator) -> None:
    from assay.games.market_model import DataMarket

    market = DataMarket(np.ones(20), rng.random((20, 25)), price_grid=TENTHS)
    lengths = rng.dirichlet(np.ones(TENTHS.size), 25)
    fast = market.standing(lengths)  # sorts, and compiles
    timings = interleave(
        {"ours": lambda: market.standing(lengths), "naive": lambda: naive_round(market, lengths)},
        repeats=3,
        warmup=0,
        budget=3.0,
        clock="cpu",
    )
    measurement.add("naive_to_ours", timings.ratio("naive", "ours").median)
    seconds = interleave({"round": lambda: market.standing(lengths)}, repeats=50, clock="cpu").median("round")
    measurement.add("seconds_per_round", seconds)
    revenue, deviation = timings.answers["naive"]
    measurement.add("largest_difference", max(abs(fast.revenue - revenue).max(), abs(fast.deviation - deviation).max()))
    profile = rng.dirichlet(np.ones(TENTHS.size), 10)
    markets = {n: DataMarket(np.ones(n), rng.random((n, 10)), price_grid=TENTHS) for n in buyers}
    rounds = {str(n): lambda m=m: [m.standing(profile) for _ in range(5)] for n, m in markets.items()}
    scaling = interleave(rounds, repeats=9, warmup=1, clock="cpu")
    exponent = np.polyfit(np.log(buyers), np.log([scaling.median(str(n)) for n in buyers]), 1)[0]
    measurement.add("exponent_off_1", abs(float(exponent) - 1.0))
    measurement.add_curve(
        "Time of a round",
        buyers,
        [scaling.median(str(n)) / 5 for n in buyers],
        x_label="buyers",
        y_label="seconds",
        x_log=True,
        y_log=True,
    )
