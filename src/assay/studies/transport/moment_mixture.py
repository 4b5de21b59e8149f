"""Study of the closest mixture: how many clusters, how good a start for EM, how tight the bound, what it costs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study, interleave
from assay.studies.transport._moment_mixture_cases import (
    Blob,
    ExactMixture,
    data_sets,
    exact_mixtures,
    plain_program,
)

__all__ = ["MomentMixtureStudy"]

OURS = "moment mixture"
OURS_EM = "moment mixture, then EM"
PLAIN = "entry-wise assembly"
BAYES = "BayesianGaussianMixture"
BIC = "GaussianMixture, BIC, 1 start"
BIC10 = "GaussianMixture, BIC, 10 starts"
SILHOUETTE = "KMeans, silhouette"
PLUS_PLUS = "EM from k-means++"
KMEANS = "EM from k-means"

# Numbers of clusters that the incumbents try.
TRIED = range(1, 9)

# Starts over which iterations of EM are taken the median.
N_STARTS = 10

# Lower bounds that are expected for the uniform distribution, to four digits.
UNIFORM_BOUNDS = {3: 0.0119, 4: 0.0134, 5: 0.0146, 6: 0.0147}


@dataclass(frozen=True)
class Problem:
    """Data sets, exact mixtures, and the parameters of the size."""

    sets: list[Blob]
    exact: list[ExactMixture]
    parameters: dict[str, Any]


class MomentMixtureStudy(Study):
    """The closest mixture by moments against the usual ways to choose a number of clusters."""

    title = "Mixtures closest to a measure, by moments"
    summary = (
        "For people who need the number of components of a mixture and a start for EM, or a certified distance between "
        "a distribution and a family. One convex problem, no number of components to try, and a proved lower bound."
    )
    promise = (
        "No mixture of the family is closer than the lower bound; when the rank condition holds, the atoms are those "
        "of an optimal mixing measure, and exact mixtures are recovered."
    )
    interface = "solver and scikit-learn estimator"
    method = "assay.transport.closest_mixture"
    paper = Paper(
        title="Mixtures Closest to a Given Measure: A Semidefinite Programming Approach",
        authors="Srećko Ðurašinović, Jean-Bernard Lasserre, Victor Magron",
        arxiv="2509.22879",
    )
    data = (
        "Four Gaussian blobs, wine (standardised) and iris, the last two by two principal components; a uniform "
        "distribution; exact moments of three normal, exponential and Poisson components."
    )
    contenders = (
        Contender(
            OURS, "method", "MomentMixtureClustering with its defaults (order 3 in the plane), and closest_mixture"
        ),
        Contender(OURS_EM, "method", "the same with refine='em'"),
        Contender(PLAIN, "ablation", "the same program, written entry by entry in cvxpy"),
        Contender(BAYES, "incumbent", "10 components, weight_concentration_prior=0.01", library="scikit-learn"),
        Contender(BIC, "incumbent", "k = 1..8, the lowest BIC", library="scikit-learn"),
        Contender(BIC10, "incumbent", "the same with n_init=10 (when full)", library="scikit-learn"),
        Contender(SILHOUETTE, "incumbent", "k = 2..8, the largest silhouette, n_init=10", library="scikit-learn"),
        Contender(
            PLUS_PLUS, "incumbent", "init_params='k-means++', given the true k, 10 seeds", library="scikit-learn"
        ),
        Contender(
            KMEANS, "incumbent", "GaussianMixture's default start, given the true k, 10 seeds", library="scikit-learn"
        ),
    )
    claims = (
        Claim(
            "C1",
            "blobs: four clusters",
            "k_error",
            OURS,
            "<=",
            0,
            "prototype of the method",
            case="blobs",
            sizes=("full",),
        ),
        Claim(
            "C2",
            "blobs: adjusted Rand index stand-alone",
            "ari",
            OURS,
            ">=",
            0.98,
            "prototype of the method",
            case="blobs",
            sizes=("full",),
        ),
        Claim(
            "C3",
            "wine, variances .04 and .06: three clusters",
            "k_error",
            OURS,
            "<=",
            0,
            "prototype of the method",
            reduce="max",
            case="wine s=*",
        ),
        Claim(
            "C4",
            "wine, variances .04 and .06: adjusted Rand index stand-alone",
            "ari",
            OURS,
            ">=",
            0.83,
            "prototype of the method",
            reduce="min",
            case="wine s=*",
        ),
        Claim(
            "C5",
            "wine, variances .04 and .06: adjusted Rand index after EM",
            "ari",
            OURS_EM,
            ">=",
            0.85,
            "prototype of the method",
            reduce="min",
            case="wine s=*",
        ),
        Claim(
            "C6",
            "wine, variances .04 and .06: EM iterations",
            "em_iterations",
            OURS_EM,
            "<=",
            8,
            "prototype of the method",
            reduce="max",
            case="wine s=*",
        ),
        Claim(
            "C7",
            "iris: two or three clusters",
            "outside_2_3",
            OURS,
            "<=",
            0,
            "prototype of the method",
            case="iris",
            sizes=("full",),
        ),
        Claim(
            "C8",
            "iris: adjusted Rand index after EM",
            "ari",
            OURS_EM,
            ">=",
            0.55,
            "prototype of the method",
            case="iris",
            sizes=("full",),
        ),
        Claim(
            "C9",
            "three Gaussians by exact moments: value at orders 3 and 4",
            "value",
            OURS,
            "<=",
            1e-6,
            "paper: recovery under the rank condition",
            reduce="max",
            case="three gaussian n=*",
        ),
        Claim(
            "C10",
            "three Gaussians: three atoms at order 3 or 4",
            "rank_error",
            OURS,
            "<=",
            0,
            "paper: recovery under the rank condition",
            reduce="min",
            case="three gaussian n=*",
        ),
        Claim(
            "C11",
            "three Gaussians: error of the atoms at order 4",
            "atom_error",
            OURS,
            "<=",
            0.01,
            "paper: recovery under the rank condition",
            reduce="max",
            case="three gaussian n=4",
        ),
        Claim(
            "C12",
            "three exponential or Poisson components at order 3: value",
            "value",
            OURS,
            "<=",
            1e-7,
            "prototype of the method",
            reduce="max",
            case="three [ep]* n=3",
        ),
        Claim(
            "C13",
            "three exponential or Poisson components at order 3: error of the atoms before the polish",
            "raw_atom_error",
            OURS,
            "<=",
            0.025,
            "prototype of the method",
            reduce="max",
            case="three [ep]* n=3",
        ),
        Claim(
            "C14",
            "uniform distribution: the lower bounds of orders 3 to 6 are .0119, .0134, .0146, .0147 to the last digit",
            "lower_error",
            OURS,
            "<=",
            5.1e-5,
            "prototype of the method",
            reduce="max",
            case="uniform n=*",
        ),
        Claim(
            "C15",
            "uniform distribution: lower bound minus distance of the mixture found",
            "lower_above_upper",
            OURS,
            "<=",
            0,
            "paper: lower bounds",
            reduce="max",
            case="uniform n=*",
        ),
        Claim(
            "C16",
            "uniform distribution: relative gap at order 6",
            "relative_gap",
            OURS,
            "<=",
            0.02,
            "prototype of the method",
            case="uniform n=6",
        ),
        Claim(
            "C17",
            "EM from our start takes no more iterations than from k-means++ (medians of 10 seeds, worst data set)",
            "em_iterations",
            OURS_EM,
            "<=",
            0,
            "paper: accelerates local clustering",
            versus=PLUS_PLUS,
            compare="difference",
            reduce="max",
            case="*",
        ),
        Claim(
            "C18",
            "entry-wise assembly takes at least 5 times as long to compile, two dimensions, order 3",
            "compile_ratio",
            PLAIN,
            ">=",
            5.0,
            "this library",
            case="wine n=3",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "C19",
            "seconds of a level in two dimensions at order 3, bound included",
            "level_seconds",
            OURS,
            "<=",
            3.0,
            "this library",
            case="wine n=3",
            timed=True,
        ),
        Claim(
            "C20",
            "growth of resident memory (MB) over that level",
            "memory_mb",
            OURS,
            "<=",
            500.0,
            "this library",
            case="wine n=3",
        ),
        Claim(
            "C21",
            "exponent of the solver's time against rows of the moment matrix",
            "time_exponent",
            OURS,
            "<=",
            5.0,
            "this library",
            timed=True,
            sizes=("full",),
        ),
    )
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"sets": ("wine",), "levels": ((1, 2), (1, 4), (2, 2)), "ratios": False, "defaults": False},
        "full": {
            "sets": ("blobs", "wine", "iris"),
            "levels": ((1, 2), (1, 4), (1, 6), (2, 2), (2, 3), (3, 2)),
            "ratios": True,
            "defaults": True,
        },
    }
    # Everything is exact or one data set: more seeds would repeat it.
    seeds: ClassVar[dict[str, int]] = {"quick": 1, "full": 1}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """The data sets and the exact mixtures; nothing is drawn."""
        parameters = dict(self.sizes[size])
        return Problem(data_sets(parameters["sets"]), exact_mixtures(), parameters)

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Cluster every data set; the method also does the exact cases and the costs."""
        measurement = Measurement()
        if contender == OURS:
            measure_level_cost(measurement, problem)
            measure_exact(measurement, problem)
            measure_uniform(measurement)
        if contender == PLAIN:
            measure_assembly(measurement, problem)
            return measurement
        if contender == BIC10 and not problem.parameters["ratios"]:
            return measurement  # ten starts of eight numbers of components take longer than all the rest
        for blob in problem.sets:
            if contender in (OURS, OURS_EM):
                measure_ours(measurement, contender, blob, problem.parameters["defaults"])
            else:
                measure_incumbent(measurement, contender, blob, problem.parameters["ratios"])
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """Ask how far a uniform distribution is from all mixtures of wide normal ones."""
        from scipy import stats

        from assay.transport import closest_mixture

        result = closest_mixture(target=stats.uniform(-1, 2), params={"variance": 0.3}, bounds=[-1, 1], order=5)
        print(f"{len(result.weights)} components at {result.params[:, 0].round(3)}, value {result.value:.5f}")
        print(f"no mixture is closer than {result.lower:.5f}; this one is at {result.upper:.5f}")
        return result.certificates

    def figures(self, table: Any) -> Sequence[Any]:
        """Number of clusters and agreement per data set, then the bounds."""
        from assay.lab.figures import bar_figure, curve_figures

        return [
            bar_figure(
                self,
                table,
                "ari",
                title="Agreement with the true classes",
                caption="Adjusted Rand index of the clusters that each way finds, its number of clusters included.",
                y_label="adjusted Rand index",
            ),
            bar_figure(
                self,
                table,
                "em_iterations",
                title="Iterations of EM",
                caption="Median of 10 seeds; the incumbents are given the true number of classes.",
                y_label="iterations",
            ),
            *curve_figures(self, table),
        ]


def measure_ours(measurement: Measurement, contender: str, blob: Blob, defaults: bool) -> None:
    """Defaults; on wine also the single variances of the claims, and order 2."""
    cases: dict[str, dict[str, Any]] = {blob.name: {}} if defaults else {}
    if blob.name == "wine":
        cases |= {"wine s=0.04": {"s_grid": [0.04]}, "wine s=0.06": {"s_grid": [0.06]}}
        if contender == OURS:
            cases["wine order 2"] = {"order": 2, "s_grid": [0.04]}
    for case, options in cases.items():
        model = fit_ours(blob, **options)
        if contender == OURS:
            add_clusters(measurement, case, blob, model.labels_, model.n_clusters_)
            measurement.add("value", model.value_ / model._scale**2, case=case)
            measurement.add("seconds_per_variance", float(np.mean(model.sweep_["seconds"])), case=case)
            measurement.certify(model.certificates_, case=case)
            continue
        labels, iterations = None, []
        for seed in range(N_STARTS):
            mixture = quiet_fit(model.gaussian_mixture(random_state=seed), blob.points)
            iterations.append(mixture.n_iter_)
            labels = mixture.predict(blob.points) if labels is None else labels
        add_clusters(measurement, case, blob, labels, model.n_clusters_)
        measurement.add("em_iterations", float(np.median(iterations)), case=case)


def fit_ours(blob: Blob, **options: Any) -> Any:
    """The estimator, without its warning when nothing is flat."""
    from assay.transport import MomentMixtureClustering

    return quiet_fit(MomentMixtureClustering(**options), blob.points)


def quiet_fit(model: Any, points: np.ndarray) -> Any:
    """Fit without warnings about convergence."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(points)


def measure_incumbent(measurement: Measurement, contender: str, blob: Blob, ratios: bool) -> None:
    """Labels of an incumbent, or the iterations of EM from its start, given the true number of classes."""
    from sklearn.mixture import GaussianMixture

    if contender in (PLUS_PLUS, KMEANS):
        start = "k-means++" if contender == PLUS_PLUS else "kmeans"
        fits = [
            quiet_fit(GaussianMixture(blob.n_classes, init_params=start, random_state=seed), blob.points)
            for seed in range(N_STARTS)
        ]
        scores = [agreement(blob, fit.predict(blob.points)) for fit in fits]
        for case in (blob.name, "wine s=0.04", "wine s=0.06") if blob.name == "wine" else (blob.name,):
            measurement.add("ari", float(np.median(scores)), case=case)
            measurement.add("em_iterations", float(np.median([fit.n_iter_ for fit in fits])), case=case)
        return
    labels, k = cluster(contender, blob)
    add_clusters(measurement, blob.name, blob, labels, k)
    if ratios:
        timings = interleave(
            {"theirs": lambda: cluster(contender, blob), "ours": lambda: fit_ours(blob)},
            repeats=2,
            budget=8.0,
            warmup=0,
        )
        measurement.add("time_over_ours", timings.ratio("theirs", "ours").median, case=blob.name)


def cluster(contender: str, blob: Blob) -> tuple[np.ndarray, int]:
    """Labels and number of clusters of an incumbent."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score
    from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

    X = blob.points
    if contender == BAYES:
        labels = quiet_fit(
            BayesianGaussianMixture(n_components=10, weight_concentration_prior=0.01, random_state=0), X
        ).predict(X)
        return labels, len(np.unique(labels))
    if contender == SILHOUETTE:
        fits = [KMeans(k, n_init=10, random_state=0).fit(X) for k in TRIED if k > 1]
        best = max(fits, key=lambda fit: silhouette_score(X, fit.labels_))
        return best.labels_, best.n_clusters
    n_init = 10 if contender == BIC10 else 1
    mixtures = [quiet_fit(GaussianMixture(k, n_init=n_init, random_state=0), X) for k in TRIED]
    chosen = min(mixtures, key=lambda mixture: mixture.bic(X))
    return chosen.predict(X), chosen.n_components


def agreement(blob: Blob, labels: np.ndarray) -> float:
    """Adjusted Rand index against the true classes."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(blob.labels, labels))


def add_clusters(measurement: Measurement, case: str, blob: Blob, labels: np.ndarray, k: int) -> None:
    """Number of clusters, how wrong it is, and the agreement."""
    measurement.add("k", k, case=case)
    measurement.add("k_error", abs(k - blob.n_classes), case=case)
    measurement.add("outside_2_3", max(2 - k, k - 3, 0), case=case)
    measurement.add("ari", agreement(blob, labels), case=case)


def measure_exact(measurement: Measurement, problem: Problem) -> None:
    """Recovery of exact mixtures at orders 3 and 4."""
    from assay.transport import closest_mixture

    for mixture in problem.exact:
        for order in (3, 4):
            case = f"{mixture.name} n={order}"
            result = closest_mixture(mixture.moments, family=mixture.family, order=order, **mixture.options)
            raw = closest_mixture(mixture.moments, family=mixture.family, order=order, polish=False, **mixture.options)
            measurement.add("value", result.value, case=case)
            measurement.add("rank_error", abs(result.ranks[-1] - 3) + abs(len(result.weights) - 3), case=case)
            measurement.add("atom_error", atom_error(mixture, result), case=case)
            measurement.add("raw_atom_error", atom_error(mixture, raw), case=case)
            measurement.certify(result.certificates, case=case)


def atom_error(mixture: ExactMixture, result: Any) -> float:
    """Largest error of a parameter or a weight; infinite when their number is wrong."""
    if len(result.weights) != len(mixture.weights):
        return float("inf")
    errors = abs(result.params[:, 0] - mixture.params), abs(result.weights - mixture.weights)
    return float(max(errors[0].max(), errors[1].max()))


def measure_uniform(measurement: Measurement) -> None:
    """Bounds for the uniform distribution by order."""
    from scipy import stats

    from assay.transport import closest_mixture

    orders, lowers, uppers = sorted(UNIFORM_BOUNDS), [], []
    for order in orders:
        case = f"uniform n={order}"
        result = closest_mixture(target=stats.uniform(-1, 2), params={"variance": 0.3}, bounds=[-1, 1], order=order)
        measurement.add("lower", result.lower, case=case)
        measurement.add("lower_error", abs(result.lower - UNIFORM_BOUNDS[order]), case=case)
        measurement.add("lower_above_upper", result.lower - result.upper, case=case)
        measurement.add("relative_gap", result.relative_gap, case=case)
        measurement.certify(result.certificates, case=case)
        lowers.append(result.lower)
        uppers.append(result.upper)
    for name, values in (("proved lower bound", lowers), ("distance of the mixture found", uppers)):
        measurement.add_curve(
            "uniform distribution against normal mixtures of variance .3",
            orders,
            values,
            case=name,
            x_label="order",
            y_label="squared Wasserstein distance",
        )


def measure_level_cost(measurement: Measurement, problem: Problem) -> None:
    """Memory and time of the level of the claims, then time against size."""
    from assay.transport.mixture_level import solve_level
    from assay.transport.moment_relaxation import level_size

    wine = next(blob for blob in problem.sets if blob.name == "wine")
    before = resident_megabytes()
    scaled = scaled_problem(wine.points, 3)
    level = solve_level(scaled, 3, level_size(2, 2, scaled.degrees, 3, "W2"))
    measurement.add("memory_mb", resident_megabytes() - before, case="wine n=3")
    measurement.add("level_seconds", level.relaxation.seconds_build + level.seconds, case="wine n=3")
    rows, seconds = [], []
    points = np.random.default_rng(0).normal(size=(500, 3))
    for dim, order in problem.parameters["levels"]:
        scaled = scaled_problem(points[:, :dim], order)
        size = level_size(dim, dim, scaled.degrees, order, "W2")
        level = solve_level(scaled, order, size, bound=False)
        rows.append(size.largest_block)
        seconds.append(level.solution.seconds)
    order_of_size = np.argsort(rows)
    rows, seconds = np.array(rows)[order_of_size], np.array(seconds)[order_of_size]
    measurement.add("time_exponent", np.polyfit(np.log(rows), np.log(seconds), 1)[0])
    measurement.add_curve(
        "time of the solver",
        rows,
        seconds,
        x_label="rows of the moment matrix",
        y_label="seconds",
        x_log=True,
        y_log=True,
    )


def measure_assembly(measurement: Measurement, problem: Problem) -> None:
    """Time to build and compile the program, entry by entry over sparse maps."""
    import cvxpy as cp

    from assay.transport.moment_relaxation import MomentRelaxation

    order = 3 if problem.parameters["ratios"] else 2
    wine = next(blob for blob in problem.sets if blob.name == "wine")
    scaled = scaled_problem(wine.points, order)

    def sparse() -> Any:
        relaxation = MomentRelaxation(scaled.moments(order), 2, scaled.family_map(order), 2, scaled.inequalities, order)
        return relaxation.problem.get_problem_data(cp.CLARABEL)

    timings = interleave(
        {"plain": lambda: plain_program(scaled, order).get_problem_data(cp.CLARABEL), "sparse": sparse},
        repeats=3,
        warmup=0,
        budget=20.0,
    )
    measurement.add("compile_ratio", timings.ratio("plain", "sparse").median, case=f"wine n={order}")


def scaled_problem(points: np.ndarray, order: int) -> Any:
    """The relaxation's input for a variance of .04 in scaled units."""
    from assay.transport.mixture_problem import prepare_mixture_problem

    centred = points - points.mean(axis=0)
    centred = centred / (1.2 * abs(centred).max())
    return prepare_mixture_problem(None, centred, None, "gaussian", {"variance": 0.04}, None, (), 2 * order)


def resident_megabytes() -> float:
    """Largest resident memory of this process so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
