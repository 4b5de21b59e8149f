"""Study of generalized convex functions: menus against the known optima, maps against exact transport."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study, interleave
from assay.studies.transport._auction_rivals import (
    best_bundle_price,
    best_prices_by_size,
    best_separate_prices,
    menu_revenue,
    program_on_a_grid,
)
from assay.studies.transport._convex_layer_costs import measure_forward, measure_growth, measure_memory

__all__ = ["GeneralizedConvexStudy"]

OURS = "generalized convex"
LEARNED = "trained bundles"
LOOP = "loop over pieces"
BUNDLE = "one price for all"
SEPARATE = "one price per good"
SIZES = "Nelder-Mead on prices by size"
PROGRAM = "mechanism program"
EMD = "POT emd2"

# Optimal revenue for independent uniform values.
OPTIMUM = {1: 0.25, 2: (12 + 2 * math.sqrt(2)) / 27, 3: 0.87554}

# Points per axis of the grid of types of the linear program, at most what it can take.
GRID = {1: 40, 2: 11, 3: 5, 5: 2}


@dataclass(frozen=True)
class AuctionCase:
    """Types to learn from and to sell to."""

    name: str
    train: np.ndarray
    test: np.ndarray
    exchangeable: bool = False

    @property
    def n_goods(self) -> int:
        """Number of goods."""
        return self.train.shape[1]


@dataclass(frozen=True)
class TransportCase:
    """Two samples and the power of the coordinate differences that is the cost."""

    name: str
    X: np.ndarray
    Y: np.ndarray
    power: float

    @property
    def matrix(self) -> np.ndarray:
        """All costs."""
        return sum(np.abs(x[:, None] - y) ** self.power for x, y in zip(self.X.T, self.Y.T, strict=True))

    @property
    def cost(self) -> Any:
        """The cost as a kernel."""
        from assay.transport import PowerCost

        return "sqeuclidean" if self.power == 2.0 else PowerCost(self.power)


@dataclass(frozen=True)
class Problem:
    """The instances of one size and seed, and its parameters."""

    auctions: list[AuctionCase]
    transports: list[TransportCase]
    new: np.ndarray
    parameters: dict[str, Any]


class GeneralizedConvexStudy(Study):
    """Menus and maps from layers of finitely many pieces."""

    title = "Optimal menus and maps from generalized convex functions"
    summary = (
        "For economists who price menus and for transport with any cost: a layer whose output is generalized convex by "
        "construction, so that the best response is a maximum and everything else is gradient ascent."
    )
    promise = (
        "Every menu is incentive compatible and individually rational to 1e-12, and the cost of transport lies between "
        "the dual and the cost of a plan with exact marginals."
    )
    interface = "torch layer, solvers and scikit-learn estimator"
    method = "assay.transport.GCFLayer"
    paper = Paper(
        title="Universal Representation of Generalized Convex Functions and their Gradients",
        authors="Moeen Nehzati",
        arxiv="2509.04477",
        code="https://github.com/MoeenNehzati/gconvex",
    )
    data = (
        "Uniform values of 1, 2, 3, 5 and 10 goods, equidistributed (uniform) and drawn at random (sample); two "
        "Gaussian samples; the threes and eights of the digits in eight principal components."
    )
    contenders = (
        Contender(OURS, "method", "optimal_auction with its default menu, transport_map, SeparableTransport, GCFLayer"),
        Contender(LEARNED, "ablation", "optimal_auction with bundles that start at random and are trained too"),
        Contender(LOOP, "ablation", "values of the layer a piece at a time"),
        Contender(BUNDLE, "incumbent", "all goods together at the best price of the sample", library="numpy"),
        Contender(SEPARATE, "incumbent", "every good at its best price of the sample", library="numpy"),
        Contender(SIZES, "incumbent", "scipy.optimize.minimize on the revenue of the sample", library="scipy"),
        Contender(PROGRAM, "incumbent", "optimal mechanism on a grid of types by HiGHS, sold to all", library="scipy"),
        Contender(EMD, "incumbent", "emd2 and the barycentric map of EMDTransport", library="POT"),
    )
    claims = (
        Claim(
            "C1",
            "test revenue of one good (optimum 0.25), equidistributed types",
            "revenue",
            OURS,
            ">=",
            0.2495,
            "known optimum less rounding",
            case="uniform k=1",
        ),
        Claim(
            "C2",
            "test revenue of two goods (optimum 0.54920), equidistributed types",
            "revenue",
            OURS,
            ">=",
            0.547,
            "prototype of the method",
            case="uniform k=2",
        ),
        Claim(
            "C3",
            "test revenue of three goods (optimum 0.87554), equidistributed types",
            "revenue",
            OURS,
            ">=",
            0.870,
            "prototype of the method",
            case="uniform k=3",
            sizes=("full",),
        ),
        Claim(
            "C4",
            "test revenue of one good, types drawn at random",
            "revenue",
            OURS,
            ">=",
            0.2495,
            "known optimum less rounding",
            case="sample k=1",
        ),
        Claim(
            "C5",
            "test revenue of two goods, types drawn at random",
            "revenue",
            OURS,
            ">=",
            0.547,
            "prototype of the method",
            case="sample k=2",
        ),
        Claim(
            "C6",
            "test revenue of three goods, types drawn at random",
            "revenue",
            OURS,
            ">=",
            0.870,
            "prototype of the method",
            case="sample k=3",
            sizes=("full",),
        ),
        Claim(
            "C7",
            "no menu earns more than the optimum from equidistributed types (excess)",
            "excess_over_optimum",
            OURS,
            "<=",
            5e-4,
            "derived: optimality, and the error of the quadrature",
            reduce="max",
            case="uniform k=*",
        ),
        Claim(
            "C8",
            "a fixed menu with trained prices earns more than trained bundles, two goods",
            "revenue",
            OURS,
            ">=",
            0.002,
            "prototype of the method",
            versus=LEARNED,
            compare="difference",
            case="* k=2",
        ),
        Claim(
            "C9",
            "gain of any type from the report of another one, every menu",
            "ic_violation",
            OURS,
            "<=",
            1e-12,
            "derived: best responses are exact",
            reduce="max",
        ),
        Claim(
            "C10",
            "the same with trained bundles",
            "ic_violation",
            LEARNED,
            "<=",
            1e-12,
            "derived: best responses are exact",
            reduce="max",
        ),
        Claim(
            "C11",
            "dual over the exact cost of transport, every case",
            "bound",
            OURS,
            ">=",
            0.995,
            "prototype of the method",
            versus=EMD,
            reduce="min",
        ),
        Claim(
            "C12",
            "the dual never exceeds the exact cost: ratio, up to rounding",
            "bound",
            OURS,
            "<=",
            1.0 + 1e-9,
            "derived: weak duality",
            versus=EMD,
            reduce="max",
        ),
        Claim(
            "C13",
            "with two goods the program on a grid earns as much: its revenue (11 points an axis)",
            "revenue",
            PROGRAM,
            ">=",
            0.548,
            "prototype: 0.5483",
            case="uniform k=2",
        ),
        Claim(
            "C14",
            "value of the program on its own grid of 11 points an axis, from which the menu is taken",
            "grid_value",
            PROGRAM,
            ">=",
            0.5859,
            "prototype: 0.5860",
            case="uniform k=2",
        ),
        Claim(
            "C15",
            "and it is faster with two goods: time of our training over that of the program",
            "time_of_ours",
            PROGRAM,
            ">=",
            1.0,
            "prototype of the method",
            case="uniform k=2",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "C16",
            "revenue per good with five exchangeable goods (straight-jacket auction: 0.315)",
            "revenue_per_good",
            OURS,
            ">=",
            0.305,
            "paper, Table I: 0.314",
            case="exchangeable k=5",
            sizes=("full",),
        ),
        Claim(
            "C17",
            "error of the layer for half a square on a grid, over h^2/8: deviation from 1",
            "grid_error_deviation",
            OURS,
            "<=",
            0.01,
            "derived: chords of a parabola",
            reduce="max",
        ),
        Claim(
            "C18",
            "order of that error in the number of pieces: deviation from -2",
            "grid_slope_deviation",
            OURS,
            "<=",
            0.1,
            "derived: chords of a parabola",
        ),
        Claim(
            "C19",
            "that error over the promised bound 2 L delta",
            "grid_error_share",
            OURS,
            "<=",
            1.0,
            "derived: quantitative Theorem 5.1",
            reduce="max",
        ),
        Claim(
            "C20",
            "relative error of the separable map between Gaussians, 20000 samples",
            "separable_error",
            OURS,
            "<=",
            0.03,
            "closed form (2 x_1, x_2 / 2)",
        ),
        Claim(
            "C21",
            "CPU time of the loop over pieces over that of the layer",
            "forward_speedup",
            LOOP,
            ">=",
            20.0,
            "target of this library",
            timed=True,
        ),
        Claim(
            "C22",
            "peak memory of a pass, in matrices of a chunk by the pieces",
            "forward_peak",
            LOOP,
            "<=",
            2.0,
            "derived: chunks",
            sizes=("full",),
        ),
        Claim(
            "C23",
            "peak memory of an ascent by minibatches with 20000 sources and 500 targets, in megabytes",
            "ascent_megabytes",
            LOOP,
            "<=",
            200.0,
            "target of this library",
            sizes=("full",),
        ),
        Claim(
            "C24",
            "growth of the time of a pass with the pieces: deviation of the exponent from 1",
            "growth_deviation",
            LOOP,
            "<=",
            0.15,
            "derived: O(S J d)",
            sizes=("full",),
            timed=True,
        ),
    )
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {
            "goods": (1, 2),
            "exchangeable": (),
            "train": 12,
            "test": 16,
            "steps": 800,
            "points": (150,),
            "times": (),
        },
        "full": {
            "goods": (1, 2, 3),
            "exchangeable": (5, 10),
            "train": 12,
            "test": 18,
            "steps": 1500,
            "points": (300, 1000),
            "times": (500, 1000, 2000),
        },
    }
    seeds: ClassVar[dict[str, int]] = {"quick": 1, "full": 1}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """Draw types and points."""
        parameters = dict(self.sizes[size])
        auctions = [case for k in parameters["goods"] for case in _auction_cases(k, parameters, rng)]
        auctions += [_auction_cases(k, parameters, rng, exchangeable=True)[0] for k in parameters["exchangeable"]]
        transports = [case for n in parameters["points"] for case in _gaussian_cases(n, rng)]
        return Problem(
            auctions, [*transports, *_digit_cases(parameters["points"][0])], rng.normal(size=(1000, 2)), parameters
        )

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Make menus, maps or timings, whichever the contender can."""
        measurement = Measurement()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what did not converge shows in the gap
            if contender in (OURS, LEARNED):
                self._measure_menus(contender, problem, rng, measurement)
            if contender == OURS:
                self._measure_maps(problem, rng, measurement)
                _measure_approximation(measurement)
                _measure_separable(measurement, rng)
            elif contender == LOOP:
                measure_forward(measurement, 20000, 256, repeats=9)
                if problem.parameters["times"]:
                    measure_growth(measurement, 20000, (128, 256, 512, 1024))
                    measure_memory(measurement, 20000, 500)
            elif contender == EMD:
                self._measure_exact(problem, rng, measurement)
            elif contender != LEARNED:
                self._measure_rivals(contender, problem, measurement)
        return measurement

    @staticmethod
    def _measure_menus(contender: str, problem: Problem, rng: np.random.Generator, measurement: Measurement) -> None:
        for case in problem.auctions:
            if contender == LEARNED and case.n_goods != 2:
                continue
            started = time.process_time()
            result = _train(case, problem, rng, learn_y=contender == LEARNED)
            _add_revenue(measurement, case, result.revenue, time.process_time() - started)
            measurement.add("revenue_standard_error", result.revenue_se, case=case.name)
            measurement.add("ic_violation", result.ic_violation, case=case.name)
            measurement.add("ir_violation", result.ir_violation, case=case.name)
            measurement.add("soft_hard_gap", result.soft_hard_gap, case=case.name)
            measurement.certify(result.certificates, case=case.name)
            history = result.history
            measurement.add_curve(
                "revenue while training",
                history["iteration"],
                history["hard"],
                case=case.name,
                x_label="step",
                y_label="revenue of hard choices, training types",
            )

    @staticmethod
    def _measure_maps(problem: Problem, rng: np.random.Generator, measurement: Measurement) -> None:
        from assay.transport import transport_map

        for case in problem.transports:
            started = time.process_time()
            result = transport_map(case.X, case.Y, case.cost, max_iter=_ot_steps(problem), rng=rng)
            measurement.add("cpu_seconds", time.process_time() - started, case=case.name)
            measurement.add("bound", result.dual, case=case.name)
            measurement.add("relative_gap", result.gap / result.primal, case=case.name)
            measurement.add("steps", result.n_iter, case=case.name)
            measurement.certify(result.certificates, case=case.name)
            history = result.history
            measurement.add_curve(
                "gap of plan and dual",
                history["iteration"],
                np.maximum((history["primal"] - history["best"]) / result.primal, 1e-8),
                case=case.name,
                x_label="step",
                y_label="gap, relative to the cost",
                y_log=True,
            )
            if case.name.startswith("gaussian") and case.power == 2.0:
                for kind in ("hard", "smooth"):
                    error = _map_error(result.map(problem.new, kind=kind), problem.new)
                    measurement.add(f"{kind}_map_error", error, case=case.name)

    @staticmethod
    def _measure_exact(problem: Problem, rng: np.random.Generator, measurement: Measurement) -> None:
        import ot

        from assay.transport import transport_map

        for case in problem.transports:
            started = time.process_time()
            exact = ot.emd2([], [], case.matrix, numItermax=10**7)
            measurement.add("cpu_seconds", time.process_time() - started, case=case.name)
            measurement.add("bound", float(exact), case=case.name)
            if case.name.startswith("gaussian") and case.power == 2.0:
                mapped = ot.da.EMDTransport().fit(Xs=case.X, Xt=case.Y).transform(Xs=problem.new)
                measurement.add("hard_map_error", _map_error(mapped, problem.new), case=case.name)
        for n in problem.parameters["times"]:
            case = _gaussian_cases(n, rng)[0]
            timings = interleave(
                {
                    "ours": lambda case=case: transport_map(case.X, case.Y, tol=5e-3, rng=0),
                    "exact": lambda case=case: ot.emd2([], [], case.matrix, numItermax=10**7),
                },
                repeats=1,
                warmup=0,
                clock="cpu",
            )
            measurement.add("time_of_ours", timings.ratio("ours", "exact").median, case=f"gaussian n={n}")

    @staticmethod
    def _measure_rivals(contender: str, problem: Problem, measurement: Measurement) -> None:
        for case in problem.auctions:
            if contender == PROGRAM and (case.n_goods not in GRID or case.name.startswith("sample")):
                continue
            if contender == SEPARATE and case.n_goods > 5:
                continue
            if contender == SIZES and case.n_goods > 5:
                continue
            started = time.process_time()
            if contender == PROGRAM:
                menu, price, value = program_on_a_grid(case.n_goods, GRID[case.n_goods])
                measurement.add("grid_value", value, case=case.name)
            else:
                make = {BUNDLE: best_bundle_price, SEPARATE: best_separate_prices, SIZES: best_prices_by_size}
                menu, price = make[contender](case.train)
            seconds = time.process_time() - started
            _add_revenue(measurement, case, menu_revenue(menu, price, case.test), seconds)
            if contender == PROGRAM and case.name == "uniform k=2" and problem.parameters["times"]:
                timings = interleave(
                    {
                        "ours": lambda case=case: _train(case, problem, np.random.default_rng(0)),
                        "program": lambda: program_on_a_grid(2, GRID[2]),
                    },
                    repeats=2,
                    warmup=0,
                    clock="cpu",
                )
                measurement.add("time_of_ours", timings.ratio("ours", "program").median, case=case.name)

    def demonstrate(self) -> Sequence[Certificate]:
        """Price two goods for a sample of buyers, and move one cloud of points to another."""
        import numpy as np

        from assay.transport import bundle_grid, optimal_auction, transport_map

        rng = np.random.default_rng(0)
        auction = optimal_auction(rng.random((1000, 2)), menu=bundle_grid(2, [0, 1]), max_iter=150, rng=0)
        print(f"revenue {auction.revenue:.3f} from the menu\n{np.c_[auction.menu, auction.price].round(2)}")
        moved = transport_map(rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) + 2.0, "power", tol=5e-3, rng=0)
        print(f"cost of transport between {moved.dual:.4f} and {moved.primal:.4f}")
        return auction.certificates + moved.certificates

    def figures(self, table: Any) -> Sequence[Any]:
        """Revenues and bounds, then the courses of both ascents."""
        from assay.lab.figures import bar_figure, curve_figures

        return [
            bar_figure(
                self,
                table,
                "revenue_per_good",
                title="Revenue per good on fresh types",
                caption="Uniform values. Optimal are 0.25 for one good, 0.2746 for two and 0.2918 for three.",
                y_label="revenue per good",
            ),
            bar_figure(
                self,
                table,
                "revenue_per_second",
                title="Revenue for a second of training",
                caption="Revenue on fresh types over the CPU seconds that the menu took.",
                y_label="revenue per CPU second",
                y_log=True,
            ),
            bar_figure(
                self,
                table,
                "bound",
                title="Cost of transport",
                caption="The dual of ours is a lower bound on the exact cost.",
                y_label="dual or exact cost",
            ),
            *curve_figures(self, table),
        ]


def _train(case: AuctionCase, problem: Problem, rng: np.random.Generator, learn_y: bool = False) -> Any:
    from assay.transport import bundle_grid, optimal_auction

    # The full grid of three goods has 125 bundles; amounts 0, 1/2 and 1 are enough for the revenue that is claimed.
    menu = bundle_grid(3, (0.0, 0.5, 1.0)) if case.n_goods == 3 and not learn_y else None
    return optimal_auction(
        case.train,
        menu=menu,
        test_types=case.test,
        exchangeable=case.exchangeable,
        learn_y=learn_y,
        max_iter=problem.parameters["steps"],
        rng=rng,
    )


def _ot_steps(problem: Problem) -> int:
    return 3000 if problem.parameters["times"] else 800


def _auction_cases(
    k: int, parameters: dict[str, Any], rng: np.random.Generator, exchangeable: bool = False
) -> list[AuctionCase]:
    """Uniform types, first as a scrambled Sobol sequence and then at random."""
    from scipy.stats import qmc

    train, test = (qmc.Sobol(k, rng=rng).random_base2(parameters[which]) for which in ("train", "test"))
    if exchangeable:
        return [AuctionCase(f"exchangeable k={k}", train, test, exchangeable=True)]
    random = (rng.random(sample.shape) for sample in (train, test))
    return [AuctionCase(f"uniform k={k}", train, test), AuctionCase(f"sample k={k}", *random)]


def _gaussian_cases(n: int, rng: np.random.Generator) -> list[TransportCase]:
    X, Y = rng.normal(size=(n, 2)), rng.normal(size=(n, 2)) * [2.0, 0.5]
    return [TransportCase(f"gaussian n={n} power {power:g}", X, Y, power) for power in (2.0, 1.5)]


def _digit_cases(limit: int) -> list[TransportCase]:
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    digits = load_digits()
    points = PCA(8, random_state=0).fit_transform(digits.data)
    X, Y = (points[digits.target == digit][:limit] for digit in (3, 8))
    return [TransportCase(f"digits 3 to 8 power {power:g}", X, Y, power) for power in (2.0, 1.5)]


def _map_error(mapped: np.ndarray, new: np.ndarray) -> float:
    """Relative error against the optimal map between the Gaussian laws."""
    truth = new * [2.0, 0.5]
    return float(np.linalg.norm(mapped - truth) / np.linalg.norm(truth))


def _add_revenue(measurement: Measurement, case: AuctionCase, revenue: float, seconds: float) -> None:
    measurement.add("revenue", revenue, case=case.name)
    measurement.add("revenue_per_good", revenue / case.n_goods, case=case.name)
    measurement.add("cpu_seconds", seconds, case=case.name)
    measurement.add("revenue_per_second", revenue / max(seconds, 1e-6), case=case.name)
    if case.n_goods in OPTIMUM:
        measurement.add("excess_over_optimum", revenue - OPTIMUM[case.n_goods], case=case.name)


def _measure_approximation(measurement: Measurement) -> None:
    """Half a square from its tangents on grids of more and more points."""
    import torch

    from assay.transport import GCFLayer

    several, errors = (5, 9, 17, 33, 65), []
    x = torch.linspace(-1, 1, 2**17 + 1, dtype=torch.float64)[:, None]
    for pieces in several:
        y = torch.linspace(-1, 1, pieces, dtype=torch.float64)[:, None]
        layer = GCFLayer("dot", y, intercept=y[:, 0] ** 2 / 2)
        promise = layer.approximation(lambda x: x[:, 0] ** 2 / 2, x, lipschitz=1.0, delta=1 / (pieces - 1))
        step = 2.0 / (pieces - 1)
        errors.append(promise.value)
        measurement.add("grid_error_deviation", abs(promise.value / (step**2 / 8) - 1.0), case=f"J={pieces}")
        measurement.add("grid_error_share", promise.value / promise.bound, case=f"J={pieces}")
        measurement.certify(promise, case=f"J={pieces}")
    slope = np.polyfit(np.log(np.array(several) - 1), np.log(errors), 1)[0]
    measurement.add("grid_slope_deviation", abs(slope + 2.0))
    measurement.add_curve(
        "error of half a square", several, errors, x_label="pieces", y_label="largest error", x_log=True, y_log=True
    )


def _measure_separable(measurement: Measurement, rng: np.random.Generator) -> None:
    from assay.transport import SeparableTransport

    X, Y, new = rng.normal(size=(20000, 2)), rng.normal(size=(20000, 2)) * [2.0, 0.5], rng.normal(size=(5000, 2))
    transport = SeparableTransport().fit(X, Y)
    measurement.add("separable_error", _map_error(transport.transform(new), new))
    measurement.add("separable_dual", transport.dual_)
    measurement.certify(transport.certificates_)
