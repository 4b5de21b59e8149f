"""Study of Rasch models by Polya-Gamma expectation maximisation against the estimators of item response packages."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study, interleave
from assay.studies.supervised._rasch_contenders import complete_only, fitters, py_irt_is_there

__all__ = ["RaschStudy", "Table", "simulate"]

# Contenders that take part in the races against PG-EM, and the sizes at which they are not run for their time.
_SLOW = {"JML (girth)": 1e5, "CML (girth)": 1e5, "MML (girth)": 6e5, "py-irt": 1e5, "LogisticRegression": 6e5}
_RACED = ("JML", "JML (girth)", "CML (girth)", "MML (girth)", "LogisticRegression")


@dataclass(frozen=True)
class Table:
    """Responses, and the parameters that they were drawn with."""

    responses: np.ndarray
    abilities: np.ndarray
    difficulties: np.ndarray


@dataclass(frozen=True)
class Problem:
    """Tables by the name of their case, and the parameters of the size."""

    tables: dict[str, list[Table]]
    held_out: dict[str, list[tuple[np.ndarray, np.ndarray]]]
    lsat: np.ndarray
    parameters: dict[str, Any]
    seed: int


class RaschStudy(Study):
    """Abilities and difficulties together, by a monotone iteration with a bound on its distance to the best."""

    title = "Rasch models by Polya-Gamma EM"
    summary = (
        "For those who calibrate items and users from right and wrong answers, with few users or many missing cells. "
        "One monotone iteration for abilities and difficulties, with standard errors and fit statistics."
    )
    promise = (
        "The log-posterior never falls, the answer is within a bound of the best one that needs the gradient only, and "
        "the rate of convergence is at most 1 - min psi / sinh(psi)."
    )
    interface = "solver and scikit-learn estimator"
    method = "assay.supervised.fit_rasch"
    paper = Paper(
        title="An Efficient Joint Learning Approach for Item Response Theory",
        authors="Tanish Agarwal, Kaustubh Shejole, Arpit Agarwal",
        venue="PMLR 306:869-899, 2026",
        code="https://github.com/agarwaltanish10/pgem-rasch-model",
    )
    data = (
        "Section 6 of the Law School Admission Test (1000 people, 5 items); handwritten digits as pixels that "
        "are above their mean; responses drawn from the model, also with two groups of abilities at -1.5 and 1.5."
    )
    contenders = (
        Contender("PG-EM", "method", "fit_rasch with both prior variances 1"),
        Contender("PG-EM, wide difficulties", "ablation", "prior variance 10 of difficulties"),
        Contender("PG-EM, moment", "ablation", "prior variance of abilities from marginal likelihood"),
        Contender("PG-EM, accelerated", "ablation", "squared extrapolation"),
        Contender("PG-EM, coordinate", "ablation", "users and items in turns"),
        Contender("JML", "ablation", "joint maximum likelihood: no priors; infinite estimates cut at 6"),
        Contender("JML (girth)", "incumbent", "rasch_jml", library="girth"),
        Contender("CML (girth)", "incumbent", "rasch_conditional, then maximum likelihood abilities", library="girth"),
        Contender("MML (girth)", "incumbent", "onepl_mml and ability_eap", library="girth"),
        Contender("MML", "incumbent", "marginal likelihood maximised to 1e-8, 61 nodes, expected abilities"),
        Contender("spectral", "incumbent", "Markov chain on the items, then maximum likelihood abilities"),
        Contender(
            "LogisticRegression", "incumbent", "an indicator per user and item, C=1: the same optimum", "scikit-learn"
        ),
        Contender("py-irt", "incumbent", "variational, its hierarchical 1pl model; skipped where it is not installed"),
    )
    claims = (
        Claim(
            "C1a",
            "with 30 users and 10 items, error of difficulties at most .9 times that of marginal likelihood",
            "difficulty_rmse",
            "PG-EM",
            "<=",
            0.9,
            "prototype of the method: .389 against .495",
            versus="MML (girth)",
            case="normal 30x10",
        ),
        Claim(
            "C1b",
            "and at most .75 times that of joint maximum likelihood",
            "difficulty_rmse",
            "PG-EM",
            "<=",
            0.75,
            "prototype of the method: .389 against .608",
            versus="JML",
            case="normal 30x10",
        ),
        Claim(
            "C1c",
            "and error of abilities at most .6 times that of joint maximum likelihood",
            "ability_rmse",
            "PG-EM",
            "<=",
            0.6,
            "prototype of the method: .606 against 1.295",
            versus="JML",
            case="normal 30x10",
        ),
        Claim(
            "C2",
            "at no size more than 5 % worse than marginal likelihood in the difficulties",
            "difficulty_rmse",
            "PG-EM",
            "<=",
            1.05,
            "prototype of the method",
            versus="MML (girth)",
            reduce="max",
            case="normal *",
        ),
        Claim(
            "C3",
            "on LSAT6 the centred difficulties are within .06 of conditional likelihood for every item",
            "lsat_distance",
            "CML (girth)",
            "<=",
            0.06,
            "derived from known values",
            reduce="max",
        ),
        Claim(
            "C4a",
            "all certificates hold: distance to the maximum, growth, and rate",
            "certificates_failed",
            "PG-EM",
            "<=",
            0,
            "derived: minorisation by a quadratic",
            reduce="max",
        ),
        Claim(
            "C4b",
            "largest entry of the gradient at most 1e-6",
            "gradient_norm",
            "PG-EM",
            "<=",
            1e-6,
            "prototype of the method",
            reduce="max",
            case="normal *",
        ),
        Claim(
            "C4c",
            "the distance to the maximum shrinks by the square of 1 - min psi / sinh(psi), and 5 %, per iteration",
            "rate_to_bound",
            "PG-EM",
            "<=",
            1.05,
            "derived: ratio of the curvatures of likelihood and minorant",
            reduce="max",
        ),
        Claim(
            "C5a",
            "with 200 users and 40 items at most the time of marginal likelihood",
            "time_ratio",
            "MML (girth)",
            "<=",
            1.0,
            "prototype of the method: 5-30 ms against 35-155 ms",
            case="200x40",
            timed=True,
        ),
        Claim(
            "C5b",
            "and at most .2 times that of conditional likelihood",
            "time_ratio",
            "CML (girth)",
            "<=",
            0.2,
            "prototype of the method",
            case="200x40",
            timed=True,
        ),
        Claim(
            "C5c",
            "a logistic regression on indicators of users and items has the same optimum, to 1e-4",
            "distance_to_pg_em",
            "LogisticRegression",
            "<=",
            1e-4,
            "derived: the same objective",
            reduce="max",
        ),
        Claim(
            "C6a",
            "with 100 users and 5 items, joint maximum likelihood has at least 1.6 times the error (mean over 12 "
            "tables in quick size, 100 in full size)",
            "jml_to_pg_em",
            "JML",
            ">=",
            1.6,
            "prototype of the method: 2.12, 1.53, 1.19, 1.06 for 5, 10, 20, 40 items",
            case="100x5",
        ),
        Claim(
            "C6b",
            "and that ratio falls with the number of items, from each to the next of 5, 10, 20 and 40 (same tables)",
            "least_fall",
            "JML",
            ">=",
            0.0,
            "prototype of the method",
            reduce="min",
        ),
        Claim(
            "P1",
            "a joint iteration on 20000 x 100 cells without groups takes at most .08 s",
            "seconds_per_iteration",
            "PG-EM",
            "<=",
            0.08,
            "prototype of the method: .1 s",
            sizes=("full",),
            case="20000x100",
            timed=True,
        ),
        Claim(
            "P2",
            "grouping users by total is at least 20 times faster with 20000 users and 20 items",
            "group_speedup",
            "PG-EM",
            ">=",
            20.0,
            "derived: 21 groups instead of 20000 users",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "P3",
            "at most the time of girth's rasch_mml with 200 users and 40 items",
            "time_to_rasch_mml",
            "MML (girth)",
            "<=",
            1.0,
            "target",
            timed=True,
        ),
        Claim(
            "P4",
            "at most 4 floating-point numbers of memory per cell",
            "floats_per_cell",
            "PG-EM",
            "<=",
            4.0,
            "derived: bytes per cell, and blocks",
            sizes=("full",),
        ),
        Claim(
            "P5",
            "time grows linearly with the number of users without groups (exponent 1 to .15)",
            "exponent_off_1",
            "PG-EM",
            "<=",
            0.15,
            "derived",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "P6",
            "and not at all with groups (exponent 0 to .2)",
            "exponent_off_0",
            "PG-EM",
            "<=",
            0.2,
            "derived",
            sizes=("full",),
            timed=True,
        ),
    )
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {
            "shapes": ((30, 10), (50, 20)),
            "replications": 5,
            "few_items": 12,
            "variations": False,
            "scale": ((50, 10),),
            "performance": False,
        },
        "full": {
            "shapes": ((30, 10), (50, 20), (200, 10), (200, 40)),
            "replications": 15,
            "few_items": 100,
            "variations": True,
            "scale": ((50, 10), (500, 50), (5000, 100), (20000, 100), (100000, 1000)),
            "performance": True,
        },
    }
    seeds: ClassVar[dict[str, int]] = {"quick": 1, "full": 1}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """Draw all tables but those of the races, which are as large as they are many."""
        from assay.data import load_lsat6

        parameters = dict(self.sizes[size])
        tables: dict[str, list[Table]] = {}
        for shape in parameters["shapes"]:
            tables[f"normal {shape[0]}x{shape[1]}"] = [simulate(*shape, rng) for _ in range(parameters["replications"])]
        if parameters["variations"]:
            repeats = range(parameters["replications"])
            tables["two groups 200x10"] = [simulate(200, 10, rng, two_groups=True) for _ in repeats]
            tables["half missing 200x40"] = [simulate(200, 40, rng, missing=0.5) for _ in repeats]
        held_out = {"lsat6": [hold_out(load_lsat6().astype(float), rng)]}
        held_out["normal 50x20"] = [hold_out(table.responses, rng) for table in tables["normal 50x20"]]
        if parameters["variations"]:
            held_out["digits"] = [hold_out(digits_table(), rng)]
        return Problem(tables, held_out, load_lsat6().astype(float), parameters, int(rng.integers(2**31)))

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Errors, held-out losses and times of one contender."""
        measurement = Measurement()
        if contender == "py-irt" and not py_irt_is_there():
            measurement.add("installed", 0.0)
            return measurement
        measure_errors(measurement, contender, problem)
        measure_held_out(measurement, contender, problem)
        measure_scale(measurement, contender, problem)
        if contender == "PG-EM":
            measure_certificates(measurement, problem)
            if problem.parameters["performance"]:
                measure_performance(measurement, problem)
        if contender == "JML":
            measure_few_items(measurement, problem)
        if contender in _RACED:
            race(measurement, contender, problem)
        if contender == "CML (girth)":
            measure_lsat(measurement, problem)
        if contender == "LogisticRegression":
            measure_agreement(measurement, problem)
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """Calibrate the five items of LSAT6."""
        from assay.data import load_lsat6
        from assay.supervised import fit_rasch, rasch_fit_statistics

        answers = load_lsat6()  # users in rows, 1 right, 0 wrong; nan would be missing
        fit = fit_rasch(answers)
        statistics = rasch_fit_statistics(answers, fit.abilities, fit.difficulties)
        print(fit.items().join(statistics.items()).round(2))
        return fit.certificates


def simulate(
    n_users: int, n_items: int, rng: np.random.Generator, *, two_groups: bool = False, missing: float = 0.0
) -> Table:
    """Responses of users with standard normal abilities, or of two groups, to items of normal difficulty."""
    difficulties = rng.normal(size=n_items)
    abilities = rng.normal(size=n_users)
    if two_groups:
        abilities = np.where(rng.random(n_users) < 0.5, -1.5, 1.5)
    chance = 1.0 / (1.0 + np.exp(difficulties - abilities[:, None]))
    responses = (rng.random((n_users, n_items)) < chance).astype(float)
    responses[rng.random(responses.shape) < missing] = np.nan
    return Table(responses, abilities, difficulties)


def simulate_bytes(n_users: int, n_items: int, seed: int) -> Table:
    """As :func:`simulate`, a byte per cell and drawn in blocks."""
    rng = np.random.default_rng(seed)
    difficulties, abilities = rng.normal(size=n_items), rng.normal(size=n_users)
    responses = np.empty((n_users, n_items), dtype=np.int8)
    for start in range(0, n_users, 1000):
        part = slice(start, start + 1000)
        chance = 1.0 / (1.0 + np.exp(difficulties - abilities[part, None]))
        responses[part] = rng.random(chance.shape, dtype=np.float32) < chance
    return Table(responses, abilities, difficulties)


def hold_out(responses: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A table with a tenth of the cells missing, and those cells."""
    held = rng.random(responses.shape) < 0.1
    return np.where(held, np.nan, responses), np.where(held, responses, np.nan)


def digits_table() -> np.ndarray:
    """Images as users, pixels as items: whether a pixel is above its mean; pixels that always are the same left out."""
    from sklearn.datasets import load_digits

    images = load_digits().data
    table = (images > images.mean(axis=0)).astype(float)
    return table[:, (table.mean(axis=0) > 0) & (table.mean(axis=0) < 1)]


def errors(table: Table, difficulties: np.ndarray, abilities: np.ndarray) -> tuple[float, float]:
    """Root mean squared errors after the mean difficulty is taken to 0, as no data say where the origin is."""
    shift = table.difficulties.mean() - difficulties.mean()
    by_item = difficulties + shift - table.difficulties
    by_user = abilities + shift - table.abilities
    return float(np.sqrt(np.mean(by_item**2))), float(np.sqrt(np.mean(by_user**2)))


def measure_errors(measurement: Measurement, contender: str, problem: Problem) -> None:
    """Mean over the replications of the errors; tables without a finite estimate are left out and counted."""
    fit = fitters()[contender]
    for case, tables in problem.tables.items():
        if "missing" in case and contender in complete_only:
            continue
        if contender == "py-irt":  # a minute per table
            tables = tables[:2]
        found, failed = [], 0
        for table in tables:
            try:
                found.append(errors(table, *fit(table.responses)))
            except ValueError:
                failed += 1
        measurement.add("tables_without_estimate", failed, case=case)
        if found:
            by_item, by_user = np.mean(found, axis=0)
            measurement.add("difficulty_rmse", by_item, case=case)
            measurement.add("ability_rmse", by_user, case=case)


def measure_held_out(measurement: Measurement, contender: str, problem: Problem) -> None:
    """Mean negative log-likelihood of cells that were not shown."""
    if contender in complete_only:
        return
    fit = fitters()[contender]
    for case, pairs in problem.held_out.items():
        if contender == "py-irt" and case == "digits":
            continue
        losses = []
        for train, test in pairs[:2] if contender == "py-irt" else pairs:
            try:
                difficulties, abilities = fit(train)
            except ValueError:
                continue
            margins = abilities[:, None] - difficulties
            loss = np.logaddexp(0.0, margins) - np.nan_to_num(test) * margins
            losses.append(loss[~np.isnan(test)].mean())
        if losses:
            measurement.add("held_out_log_loss", float(np.mean(losses)), case=case)


def measure_scale(measurement: Measurement, contender: str, problem: Problem) -> None:
    """Seconds and errors of one fit each to complete tables of growing size."""
    if contender not in ("PG-EM", "JML", "MML", "spectral", *_SLOW):
        return
    fit = fitters()[contender]
    cells, seconds = [], []
    for n_users, n_items in problem.parameters["scale"]:
        if n_users * n_items > _SLOW.get(contender, 1e9 if contender == "PG-EM" else 1e7):
            continue
        case = f"{n_users}x{n_items}"
        table = simulate_bytes(n_users, n_items, problem.seed)
        responses = table.responses if contender in ("PG-EM", "JML") else table.responses.astype(float)
        begin = time.perf_counter()
        try:
            difficulties, abilities = fit(responses)
        except ValueError:
            continue
        cells.append(n_users * n_items)
        seconds.append(time.perf_counter() - begin)
        by_item, by_user = errors(table, difficulties, abilities)
        measurement.add("fit_seconds", seconds[-1], case=case)
        measurement.add("difficulty_rmse", by_item, case=f"scale {case}")
        measurement.add("ability_rmse", by_user, case=f"scale {case}")
    if len(cells) > 1:
        measurement.add_curve(
            "time of a fit",
            cells,
            seconds,
            x_label="responses (complete tables, 50 x 10 to 100,000 x 1,000)",
            y_label="seconds",
            x_log=True,
            y_log=True,
        )


def measure_certificates(measurement: Measurement, problem: Problem) -> None:
    """Certificates, gradients and rates of all tables."""
    from assay.supervised import fit_rasch

    cases = {case: [table.responses for table in tables] for case, tables in problem.tables.items()}
    cases["lsat6"] = [problem.lsat]
    for case, tables in cases.items():
        gradient, iterations, rates = [], [], []
        for responses in tables:
            fit = fit_rasch(responses)
            measurement.certify(fit.certificates, case=case)
            gradient.append(fit.gradient_norm)
            iterations.append(fit.n_iter)
            rates.append(fit.rate / fit.rate_bound**2)
        measurement.add("gradient_norm", max(gradient), case=case)
        measurement.add("iterations", float(np.median(iterations)), case=case)
        measurement.add("rate_to_bound", max(rates), case=case)
    fit = fit_rasch(problem.lsat)
    gap = fit.log_posterior - fit.history["log_posterior"]
    for name, values in (("log-posterior below its maximum", gap), ("bound", fit.history["gap_bound"])):
        seen = values > 1e-9
        measurement.add_curve(
            "convergence on LSAT6",
            fit.history["iteration"][seen],
            values[seen],
            case=name,
            y_label="distance to the maximum of the log-posterior",
            y_log=True,
        )


def measure_lsat(measurement: Measurement, problem: Problem) -> None:
    """Largest distance of centred difficulties from PG-EM's."""
    estimates = [fitters()[name](problem.lsat)[0] for name in ("CML (girth)", "PG-EM")]
    conditional, joint = (estimate - estimate.mean() for estimate in estimates)
    measurement.add("lsat_distance", np.abs(conditional - joint).max())


def measure_agreement(measurement: Measurement, problem: Problem) -> None:
    """Largest difference of any parameter from PG-EM's, where both have the same objective."""
    tables = {case: tables[0].responses for case, tables in problem.tables.items()} | {"lsat6": problem.lsat}
    for case, responses in tables.items():
        pairs = [np.concatenate(fitters()[name](responses)) for name in ("LogisticRegression", "PG-EM")]
        measurement.add("distance_to_pg_em", np.abs(pairs[0] - pairs[1]).max(), case=case)


def measure_few_items(measurement: Measurement, problem: Problem) -> None:
    """Error of joint maximum likelihood over that of PG-EM as the test gets longer."""
    rng = np.random.default_rng(problem.seed)
    ratios = []
    lengths = (5, 10, 20, 40)
    for n_items in lengths:
        found = []
        for _ in range(problem.parameters["few_items"]):
            table = simulate(100, n_items, rng)
            try:
                found.append([errors(table, *fitters()[name](table.responses))[0] for name in ("JML", "PG-EM")])
            except ValueError:
                continue
        with_jml, with_priors = np.mean(found, axis=0)
        ratios.append(with_jml / with_priors)
        measurement.add("jml_to_pg_em", ratios[-1], case=f"100x{n_items}")
    measurement.add("least_fall", float(-np.diff(ratios).max()))
    measurement.add_curve(
        "joint maximum likelihood needs long tests",
        lengths,
        ratios,
        x_label="items (100 users)",
        y_label="error of difficulties, over that with priors",
    )


def race(measurement: Measurement, contender: str, problem: Problem) -> None:
    """Time of PG-EM over that of the contender, in turns, on a table of floating-point numbers."""
    table = simulate(200, 40, np.random.default_rng(problem.seed)).responses
    functions = {name: lambda name=name: fitters()[name](table) for name in ("PG-EM", contender)}
    if contender == "MML (girth)":
        import girth

        integers = table.astype(int).T
        functions["rasch_mml"] = lambda: girth.rasch_mml(integers)
    timings = interleave(functions, repeats=9, budget=3.0)
    ratio = timings.ratio("PG-EM", contender)
    measurement.add("time_ratio", ratio.median, case="200x40")
    measurement.add("time_ratio_lower", ratio.lower, case="200x40")
    measurement.add("time_ratio_upper", ratio.upper, case="200x40")
    if contender == "MML (girth)":
        measurement.add("time_to_rasch_mml", timings.ratio("PG-EM", "rasch_mml").median)


def measure_performance(measurement: Measurement, problem: Problem) -> None:
    """Seconds per iteration, what grouping gains, memory, and how time grows with the number of users."""
    from assay.supervised import fit_rasch
    from assay.supervised.rasch_em import RaschProblem, maximize_posterior
    from assay.supervised.rasch_responses import check_responses

    def iterations(n_users: int, n_items: int, grouped: bool, count: int = 10) -> Any:
        responses = check_responses(simulate_bytes(n_users, n_items, problem.seed).responses)
        tables = RaschProblem(responses, 1.0, 1.0, grouped)

        def run() -> None:
            maximize_posterior(
                tables, *tables.start(None, None), update="joint", accelerate=False, tol=1e-300, max_iter=count
            )

        return run

    # Processor time of one thread: the number of seconds is claimed, and no other function takes turns with this one.
    dense = interleave({"dense": iterations(20000, 100, False)}, repeats=5, budget=15.0, clock="cpu")
    measurement.add("seconds_per_iteration", dense.median("dense") / 10, case="20000x100")
    grouping = interleave(
        {"grouped": iterations(20000, 20, True), "dense": iterations(20000, 20, False)}, repeats=5, budget=15.0
    )
    measurement.add("group_speedup", grouping.ratio("dense", "grouped").median)

    missing = simulate(20000, 100, np.random.default_rng(problem.seed), missing=0.1).responses
    tracemalloc.start()
    fit_rasch(missing)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    measurement.add("floats_per_cell", peak / (8.0 * missing.size))

    users = np.array([2500, 5000, 10000, 20000, 40000])
    for grouped, name, expected in ((False, "exponent_off_1", 1.0), (True, "exponent_off_0", 0.0)):
        functions = {str(count): iterations(int(count), 50, grouped, 5) for count in users}
        timings = interleave(functions, repeats=5, budget=25.0, clock="cpu")
        seconds = np.array([timings.median(str(count)) for count in users])
        slope = float(np.polyfit(np.log(users), np.log(seconds), 1)[0])
        measurement.add(name, abs(slope - expected))
        measurement.add_curve(
            "five iterations with 50 items",
            users,
            seconds,
            case="users grouped by total" if grouped else "every user",
            x_label="users",
            y_label="seconds",
            x_log=True,
            y_log=True,
        )
