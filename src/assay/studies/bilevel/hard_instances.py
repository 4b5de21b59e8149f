"""Study of the hard bilevel instances: how many oracle calls first-order methods need, against the least number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Contender, Measurement, Paper, Study, interleave
from assay.studies.bilevel._hard_instances_claims import CLAIMS, METHODS

if TYPE_CHECKING:
    from assay.bilevel import HardBilevel, HardRunResult

__all__ = ["HardInstancesStudy"]

_EPS = 0.1
# steps in units of what theory allows
_SCALES = (100.0, 30.0, 10.0, 3.0, 1.0)
_LONG_SCALES = (1e3, 1e4, 1e6, 1e9, 1e12)


@dataclass(frozen=True)
class Problem:
    """What is run at one size."""

    parameters: Mapping[str, Any]
    seed: int


class HardInstancesStudy(Study):
    """Lower bounds on oracle calls that can be run."""

    title = "Hard bilevel instances"
    summary = (
        "For those who design or use first-order bilevel methods. A worst-case problem with exact hypergradients, an "
        "oracle that counts and checks that a method moves only what it has seen, and the least number of calls."
    )
    promise = (
        "A zero-respecting method has a hypergradient of at least eps for the first T n calls, of order "
        "kappa^1.5 / eps^2; with noise, of order kappa^2.5 sigma^2 / eps^4."
    )
    interface = "problem generator and oracle counter"
    method = "assay.bilevel.hard_instance"
    paper = Paper(
        title="Lower Complexity Bounds for Nonconvex-Strongly-Convex Bilevel Optimization with First-Order Oracles",
        authors="Kaiyi Ji",
        arxiv="2511.19656",
    )
    data = "The instances themselves: eps = .1, all other constants 1, condition numbers from 20 to 400."
    contenders = (
        Contender("chain walker", "method", "moves all that it has been shown: the fastest way along the chain"),
        Contender("F2SA", "incumbent", "penalty method with inner loops, best of five steps, as all that follow"),
        Contender("F2SA, accelerated", "incumbent", "penalty method, inner loops by Nesterov's method"),
        Contender("F2SA, single loop", "incumbent", "penalty method, one inner step"),
        Contender("value function", "incumbent", "gradient descent on the penalised value function"),
        Contender("finite differences", "incumbent", "implicit differentiation, Hessian products by differences"),
    )
    claims = CLAIMS
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {
            "kappas": (20, 50, 100),
            "walker_kappas": (20, 50, 100, 200, 400),
            "max_calls": 20_000,
            "dense_length": 80,
        },
        "full": {
            "kappas": (20, 50, 100, 200, 400),
            "walker_kappas": (20, 50, 100, 200, 400),
            "max_calls": 3_000_000,
            "dense_length": 200,  # a matrix of 0.8 GB
        },
    }
    # nothing but the noise and the points of the lemma is random, and of these there are many in one cell
    seeds: ClassVar[dict[str, int]] = {"quick": 1, "full": 1}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """The parameters of the size; the instances are made where they are used."""
        return Problem(self.sizes[size], int(rng.integers(2**31)))

    def demonstrate(self) -> Sequence[Certificate]:
        """How many calls of a penalty method it takes to the end of a short chain, against the least number."""
        from assay.bilevel import hard_instance, nesterov_inner_penalty, run_method

        instance = hard_instance(kappa=20, eps=0.1)
        result = run_method(nesterov_inner_penalty(instance, scale=100.0), instance, max_calls=10_000)
        return result.certificates

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Count the calls of one method on all instances."""
        measurement = Measurement()
        if contender == "chain walker":
            _measure_walker(measurement, problem)
        else:
            _measure_method(measurement, contender, problem)
        return measurement


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent with which what is known of ``y`` grows."""
    known = np.isfinite(y)
    if np.count_nonzero(known) < 2:
        return math.nan
    return float(np.polyfit(np.log(np.asarray(x)[known]), np.log(np.asarray(y)[known]), 1)[0])


def _growth(y: Sequence[float]) -> float:
    """The last that is known over the first."""
    known = [entry for entry in y if math.isfinite(entry)]
    return known[-1] / known[0] if len(known) > 1 else math.nan


def _runs(instance: HardBilevel, name: str, scales: Sequence[float], max_calls: int) -> dict[float, HardRunResult]:
    """A run for each step size that did not diverge; none may use more calls than the best before it."""
    import assay.bilevel as bilevel

    make, runs = getattr(bilevel, METHODS[name]), {}
    for scale in scales:
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                runs[scale] = bilevel.run_method(make(instance, scale), instance, max_calls)
            except ValueError as error:
                if "nan or infinite" not in str(error):
                    raise
                continue  # the step was too long
        if runs[scale].reached:
            max_calls = min(max_calls, runs[scale].calls)
    return runs


def _fewest(runs: Mapping[float, HardRunResult]) -> HardRunResult | None:
    reached = [run for run in runs.values() if run.reached]
    return min(reached, key=lambda run: run.calls) if reached else None


def _measure_method(measurement: Measurement, name: str, problem: Problem) -> None:
    from assay.bilevel import hard_instance

    kappas, respected = problem.parameters["kappas"], True
    calls: dict[str, list[float]] = {"": [], "_any_step": []}
    ratios: dict[str, list[float]] = {"": [], "_any_step": []}
    for kappa in kappas:
        case = f"kappa={kappa}"
        instance = hard_instance(kappa, _EPS)
        runs = _runs(instance, name, _SCALES, problem.parameters["max_calls"])
        best = _fewest(runs)
        limit = problem.parameters["max_calls"] if best is None else best.calls
        runs |= _runs(instance, name, _LONG_SCALES, limit)
        measurement.add("reached", float(best is not None), case=case)
        for suffix, run in (("", best), ("_any_step", _fewest(runs))):
            calls[suffix].append(math.nan if run is None else run.calls)
            ratios[suffix].append(math.nan if run is None else run.ratio)
            if run is not None:
                measurement.add(f"calls{suffix}", run.calls, case=case)
                measurement.add(f"calls_over_bound{suffix}", run.ratio, case=case)
        for scale, run in runs.items():
            respected &= run.zero_respecting
            if run.reached:
                measurement.add("bound_over_calls", 1 / run.ratio, case=f"{case}, step {scale:g}")
            for certificate in run.certificates:
                measurement.certify(certificate, case=f"{case}, step {scale:g}")
        if kappa == 100 and best is not None:
            _add_progress(measurement, best, case)
    measurement.add("violations", float(not respected))
    for suffix in calls:
        measurement.add(f"slope_in_kappa{suffix}", _slope(kappas, calls[suffix]))
        measurement.add(f"ratio_growth{suffix}", _growth(ratios[suffix]))
    _add_calls(measurement, kappas, calls[""])


def _add_progress(measurement: Measurement, run: HardRunResult, case: str) -> None:
    measurement.add_curve(
        "progress",
        run.progress["calls"] + 1,
        run.progress["variables"],
        case=case,
        x_label="oracle calls",
        y_label="upper variables moved",
        x_log=True,
    )


def _add_calls(measurement: Measurement, kappas: Sequence[int], calls: Sequence[float]) -> None:
    measurement.add_curve(
        "calls", kappas, calls, x_label="condition number", y_label="oracle calls", x_log=True, y_log=True
    )


def _measure_walker(measurement: Measurement, problem: Problem) -> None:
    from assay.bilevel import chain_walker, hard_instance, run_method

    deviations, respected, bounds = [], True, []
    kappas = problem.parameters["walker_kappas"]
    for kappa in kappas:
        instance = hard_instance(kappa, _EPS)
        run = run_method(chain_walker(instance), instance, instance.lower_bound_calls + 2)
        deviations.append(abs(run.calls_last_variable - instance.lower_bound_calls - 2))
        respected &= run.zero_respecting
        bounds.append(instance.lower_bound_calls)
        measurement.add("lower_bound", instance.lower_bound_calls, case=f"kappa={kappa}")
        for certificate in run.certificates:
            measurement.certify(certificate, case=f"kappa={kappa}")
        if kappa == 100:
            _add_progress(measurement, run, f"kappa={kappa}")
    measurement.add("walker_deviation", max(deviations))
    measurement.add("violations", float(not respected))
    _add_calls(measurement, kappas, bounds)
    _measure_bounds(measurement)
    _measure_noise(measurement, problem.seed)
    measurement.add("lemma_over_eps", _lemma(problem.seed))
    _measure_time(measurement, problem.parameters["dense_length"])


def _measure_bounds(measurement: Measurement) -> None:
    """Slopes of the two lower bounds in kappa and eps."""
    from assay.bilevel import hard_instance, hard_instance_stochastic

    kappas = 100 * 2 ** np.arange(7)
    measurement.add("lower_slope_kappa", _slope(kappas, [hard_instance(k, 0.05).lower_bound_calls for k in kappas]))
    tolerances = 0.2 / 2 ** np.arange(5)
    measurement.add(
        "lower_slope_eps", _slope(tolerances, [hard_instance(400, e).lower_bound_calls for e in tolerances])
    )
    noisy = [hard_instance_stochastic(k, 0.05, 1000.0, seed=0).lower_bound_calls_at(0.5) for k in kappas]
    measurement.add("noisy_slope_kappa", _slope(kappas, noisy))
    noisy = [hard_instance_stochastic(400, e, 1000.0, seed=0).lower_bound_calls_at(0.5) for e in tolerances]
    measurement.add("noisy_slope_eps", _slope(tolerances, noisy))


def _measure_noise(measurement: Measurement, seed: int) -> None:
    """Calls of the walker on small instances with noise, 50 times."""
    from assay.bilevel import hard_instance, hard_instance_stochastic

    for length, n, p in ((4, 3, 0.1), (10, 7, 0.02)):
        kappa = 4 * n**2 + 2
        quiet = hard_instance(kappa, _EPS, T=length, n=n)
        sigma = 2 * 20 * quiet.constants.lam / math.sqrt(p)  # so that the probability is p
        instance = hard_instance_stochastic(kappa, _EPS, sigma, T=length, n=n, seed=seed)
        calls = [_calls_to_the_end(instance) for _ in range(50)]
        case = f"T={length}, n={n}, p={p:g}"
        measurement.add("median_over_bound", float(np.median(calls)) / instance.lower_bound_calls_at(0.5), case=case)
        measurement.add("smallest_over_bound", min(calls) / instance.lower_bound_calls_at(0.5), case=case)


def _calls_to_the_end(instance: HardBilevel) -> int:
    """Calls after which the walker moves its last variable."""
    from assay.bilevel import chain_walker

    instance.reset()
    for x in chain_walker(instance)(instance.oracle, instance.dim_x, instance.dim_y, 100_000):
        if x[-1] != 0:
            break
    return instance.counter.calls


def _lemma(seed: int) -> float:
    """Smallest hypergradient, over eps, at points with one variable below its scale."""
    from assay.bilevel import hard_instance

    rng = np.random.default_rng(seed)
    smallest = math.inf
    for length in (1, 2, 3, 5):
        instance = hard_instance(100, _EPS, T=length)
        scale = instance.constants.source
        for _ in range(5_000):
            # around the scale, where the links change, and far above it, where they are flat
            sizes = np.exp(rng.uniform(0, 3, length)) * rng.choice([-1.0, 1.0], length)
            sizes[rng.integers(length)] = rng.uniform(-1, 1)
            smallest = min(smallest, instance.stationarity(scale * sizes))
    return smallest / _EPS


def _measure_time(measurement: Measurement, dense_length: int) -> None:
    """Time of a call: against dense matrices, and as the chain grows."""
    from assay.bilevel import hard_instance

    instance = hard_instance(4 * 50**2 + 2, _EPS, T=dense_length, n=50)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=instance.dim_x), rng.normal(size=instance.dim_y)
    hessian = np.kron(np.eye(instance.dim_x + 1), instance.block_hessian())
    dense = _DenseOracle(instance, hessian)
    times = interleave({"banded": lambda: instance.oracle(x, y), "dense": lambda: dense(x, y)}, repeats=9)
    measurement.add("dense_over_banded", times.ratio("dense", "banded").median)
    sizes, seconds = [], []
    for length in (100, 400, 1600, 6400):
        instance = hard_instance(402, _EPS, T=length, n=10)
        x, y = rng.normal(size=instance.dim_x), rng.normal(size=instance.dim_y)
        many = _repeated(instance, x, y, 200)
        sizes.append(instance.dim_y)
        seconds.append(interleave({"call": many}, repeats=5, clock="cpu").median("call") / 200)
    measurement.add("kilocalls_per_second", 1e-3 / seconds[0])
    measurement.add("time_slope", _slope(sizes, seconds))
    measurement.add_curve(
        "time", sizes, seconds, x_label="lower variables", y_label="seconds per call", x_log=True, y_log=True
    )


def _repeated(instance: HardBilevel, x: np.ndarray, y: np.ndarray, times: int) -> Any:
    def run() -> None:
        for _ in range(times):
            instance.oracle(x, y)

    return run


class _DenseOracle:
    """The reference: the lower problem as one dense matrix."""

    def __init__(self, instance: HardBilevel, hessian: np.ndarray) -> None:
        self.instance, self.hessian = instance, hessian

    def __call__(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        c = self.instance.constants
        inflow = np.concatenate([[c.source], x])
        ends = y[c.n - 1 :: c.n]
        product = self.hessian @ y
        value = 0.5 * y @ product - c.Lg * inflow @ ends
        gradient = product.copy()
        gradient[c.n - 1 :: c.n] -= c.Lg * inflow
        return value, gradient, -c.Lg * ends[1:]
