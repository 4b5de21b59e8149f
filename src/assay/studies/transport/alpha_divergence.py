"""Study of divergence estimates: bias, stability over seeds, the lower bound, error terms, cost, and a GAN."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study
from assay.studies.transport._alpha_laws import DivergenceCase, divergence_cases, normal_divergence
from assay.studies.transport._divergence_costs import (
    measure_error_terms,
    measure_gram_ratio,
    measure_memory,
    measure_rate,
    measure_scaling,
    network_epoch_ratio,
)
from assay.studies.transport._divergence_peers import logistic_value, neighbour_value

__all__ = ["AlphaDivergenceStudy"]

OURS = "kernel critic"
NO_BAND = "no band"
NO_BALL = "no ball"
STOCHASTIC = "stochastic start"
MLP = "MLP critic"
FGAN = "f-GAN critic"
LOGISTIC = "logistic regression"
NEIGHBOURS = "nearest neighbours"
GRAM = "Gram matrix"

OPTIONS: dict[str, dict[str, Any]] = {
    OURS: {},
    NO_BAND: {"band": None},
    # The largest radius whose critics have finite exponentials.
    NO_BALL: {"radius": 53.0},
    STOCHASTIC: {"epochs": 20},
}

# Each GAN critic has the better one of these.
GAN_RATES = (1e-3, 1e-2)


@dataclass(frozen=True)
class Problem:
    """The instances of one size and seed, and its parameters."""

    cases: list[DivergenceCase]
    parameters: dict[str, Any]
    # One for all that is measured of several contenders on the same random points.
    seed: int


class AlphaDivergenceStudy(Study):
    """A kernel critic in a ball against neural critics, a classifier and neighbours."""

    title = "Amari alpha-divergence by random Fourier features"
    summary = (
        "For people who need a number for how far apart two samples are: a concave problem in linear time instead of "
        "an unstable neural critic, with a lower confidence bound that is valid for any laws."
    )
    promise = (
        "No critic in the ball does better on the training points by more than the tolerance, and the divergence is at "
        "least the lower bound with 95 % confidence."
    )
    interface = "scikit-learn estimator, torch module and torch optimizer"
    method = "assay.transport.AlphaDivergence"
    paper = Paper(
        title="Scalable and Stable Estimation of Amari alpha-Divergence using Random Fourier Features",
        authors="Jiaolong Wang, Fode Zhang, Lingrui Wang",
    )
    data = (
        "Normal laws in 1, 2, 5 and 10 dimensions, whose divergence is known; breast cancer of scikit-learn "
        "(standardised, five principal components); a grid of 16 modes."
    )
    contenders = (
        Contender(OURS, "method", "AlphaDivergence with its defaults (radius 8 in one dimension)"),
        Contender(NO_BAND, "ablation", "frequencies without a limit"),
        Contender(NO_BALL, "ablation", "radius 53, the largest with finite exponentials"),
        Contender(STOCHASTIC, "ablation", "20 stochastic Armijo epochs before Newton's method"),
        Contender(MLP, "incumbent", "perceptron (64, 64) for the log-ratio, Adam 1e-3, 1500 steps", library="torch"),
        Contender(FGAN, "incumbent", "the same for T = f'(u), squashed into the domain of f*", library="torch"),
        Contender(
            LOGISTIC, "incumbent", "log-odds of LogisticRegression on coordinates and products", library="scikit-learn"
        ),
        Contender(NEIGHBOURS, "incumbent", "Poczos-Schneider, 5 neighbours", library="scikit-learn"),
        Contender(GRAM, "incumbent", "full kernel: Gram matrix, Cholesky, L-BFGS", library="scipy"),
    )
    claims = (
        Claim(
            "C1",
            "error of the held-out value in one dimension, one sample of 8000 points, alpha .3, .5 and .8",
            "error",
            OURS,
            "<=",
            0.02,
            "prototype of the method: .005",
            reduce="max",
            case="d=1 *",
        ),
        Claim(
            "C2a",
            "standard deviation of the held-out value over seeds in ten dimensions",
            "held_out_sd",
            OURS,
            "<=",
            0.05,
            "prototype of the method: .018",
            case="d=10 alpha=0.5",
            sizes=("full",),
        ),
        Claim(
            "C2b",
            "held-out value over the divergence in ten dimensions, every seed",
            "held_out_share",
            OURS,
            ">=",
            0.7,
            "prototype of the method: .8",
            reduce="min",
            case="d=10 alpha=0.5",
            sizes=("full",),
        ),
        Claim(
            "C2c",
            "share of seeds in which the MLP critic's held-out value is negative or its training value 1.3 times exact",
            "runaway",
            MLP,
            ">=",
            1.0,
            "prototype of the method",
            reduce="min",
            case="d=10 alpha=0.5",
            sizes=("full",),
        ),
        Claim(
            "C3a",
            "held-out value at alpha .9 in ten dimensions, every seed, is positive",
            "held_out_min",
            OURS,
            ">=",
            1e-12,
            "prototype of the method: .918",
            reduce="min",
            case="d=10 alpha=0.9",
            sizes=("full",),
        ),
        Claim(
            "C3b",
            "and at most the divergence (held-out value over it)",
            "held_out_share_max",
            OURS,
            "<=",
            1.0,
            "prototype of the method: .78",
            reduce="max",
            case="d=10 alpha=0.9",
            sizes=("full",),
        ),
        Claim(
            "C3c",
            "held-out value of the MLP critic at alpha .9 in ten dimensions, its best seed",
            "held_out_max",
            MLP,
            "<=",
            -1.0,
            "prototype of the method: -1.7e19",
            reduce="max",
            case="d=10 alpha=0.9",
            sizes=("full",),
        ),
        Claim(
            "C4",
            "lower bound less the divergence, every run (20 seeds for every alpha of a grid)",
            "lower_bound_excess",
            OURS,
            "<=",
            0.0,
            "derived: empirical Bernstein bound",
            reduce="max",
        ),
        Claim(
            "C5a",
            "exponent of the number of points in the training less the population value",
            "statistical_slope",
            OURS,
            "<=",
            -0.5,
            "paper: O(R n^-1/2)",
        ),
        Claim(
            "C5b",
            "exponent of the number of features in the standard deviation over their draws, 16 to 64",
            "feature_slope",
            OURS,
            "<=",
            -0.5,
            "paper: O(R D^-1/2)",
        ),
        Claim(
            "C5c",
            "largest rise of the shortfall from one radius to the next, .5 to 5",
            "shortfall_rise",
            OURS,
            "<=",
            0.0,
            "paper: O(R^-gamma)",
        ),
        Claim(
            "C6",
            "fitted linear factor of full Armijo ascent less 1 - lambda_min / lambda_max",
            "rate_excess",
            OURS,
            "<=",
            0.0,
            "derived: Hessian at the maximum; prototype .9905 against .9994",
        ),
        Claim(
            "C7a",
            "share of samples of the GAN on a mode, over that of the MLP critic",
            "gan_on_mode",
            OURS,
            ">=",
            1.2,
            "prototype of the method: 1.4",
            versus=MLP,
            sizes=("full",),
        ),
        Claim(
            "C7b",
            "error of its characteristic function at high frequencies, over that of the MLP critic",
            "gan_high",
            OURS,
            "<=",
            1.0,
            "paper: better high-frequency capture",
            versus=MLP,
            sizes=("full",),
        ),
        Claim(
            "C8",
            "lower bound between malignant and benign tumours",
            "lower_bound",
            OURS,
            ">=",
            0.0,
            "derived: the classes are known to differ",
            case="cancer across",
        ),
        Claim(
            "C9",
            "lower bound between two halves of the same class",
            "lower_bound",
            OURS,
            "<=",
            0.0,
            "derived: the divergence is 0",
            reduce="max",
            case="cancer same *",
        ),
        Claim(
            "C10",
            "CPU time of an epoch of the MLP critic over ours, ten dimensions",
            "epoch_ratio",
            MLP,
            ">=",
            3.0,
            "prototype of the method",
            case="epoch n=200000",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "C11",
            "CPU time of the Gram-matrix solution over our whole fit, 4000 points",
            "gram_ratio",
            GRAM,
            ">=",
            20.0,
            "derived: n^3 against n D^2",
            case="gram n=4000",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "C12",
            "memory of an epoch at 200 000 points beyond the data, in blocks of features of a minibatch",
            "epoch_blocks",
            OURS,
            "<=",
            4.0,
            "derived: two blocks and small change",
            case="memory n=200000",
            sizes=("full",),
        ),
        Claim(
            "C13",
            "the same of a whole fit",
            "fit_blocks",
            OURS,
            "<=",
            4.0,
            "derived: two blocks and small change",
            case="memory n=200000",
            sizes=("full",),
        ),
        Claim(
            "C14",
            "exponent of the number of points in the time of an epoch, distance from 1",
            "time_slope_error",
            OURS,
            "<=",
            0.1,
            "derived: O(n D d)",
            case="scaling points",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "C15",
            "exponent of the number of features in the time of an epoch, distance from 1",
            "time_slope_error",
            OURS,
            "<=",
            0.15,
            "derived: O(n D d)",
            case="scaling features",
            sizes=("full",),
            timed=True,
        ),
        Claim(
            "C16",
            "certificates of all fits that fail",
            "certificates_failed",
            OURS,
            "<=",
            0.0,
            "derived: concave problem, Newton's method",
            reduce="max",
        ),
    )
    # A case is: dimension, alpha, points, mean, variance, radius, repeats. Networks and ablations get the dear cases.
    sizes: ClassVar = {
        "quick": {
            "cases": [(1, a, 8000, 1.0, 1.5, 8.0, 1) for a in (0.3, 0.5, 0.8)] + [(5, 0.5, 2000, 0.5, 1.0, 5.0, 3)],
            "neural_repeats": 1,
            "dear_cases": ("d=5 alpha=0.5",),
            "coverage_points": 300,
            "coverage_alphas": (0.0, 0.5, 1.0),
            "term_seeds": 2,
            "term_points": 1000,
            "term_sizes": (250, 1000, 4000),
            "population": 20_000,
            "epoch_points": 10_000,
            "gram_points": 1000,
            "memory_points": 5000,
            "scaling": False,
            "gan_steps": 0,
        },
        "full": {
            "cases": [(1, a, 8000, 1.0, 1.5, 8.0, 3) for a in (0.3, 0.5, 0.8)]
            + [(5, 0.5, 2000, 0.5, 1.0, 5.0, 5), (10, 0.5, 2000, 0.5, 1.0, 5.0, 5), (10, 0.9, 2000, 0.5, 1.0, 5.0, 5)],
            "neural_repeats": 2,
            "dear_cases": None,
            "coverage_points": 1000,
            "coverage_alphas": (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0),
            "term_seeds": 5,
            "term_points": 4000,
            "term_sizes": (250, 1000, 4000),
            "population": 50_000,
            "epoch_points": 200_000,
            "gram_points": 4000,
            "memory_points": 200_000,
            "scaling": True,
            "gan_steps": 1500,
        },
    }
    seeds: ClassVar = {"quick": 1, "full": 1}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """Draw the samples."""
        parameters = dict(self.sizes[size])
        return Problem(divergence_cases(parameters["cases"], rng), parameters, int(rng.integers(2**31)))

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Estimate all divergences; measure what only this contender is measured for."""
        import torch

        torch.set_num_threads(1)
        measurement = Measurement()
        parameters, shared = problem.parameters, np.random.default_rng(problem.seed)
        if contender == GRAM:
            measure_gram_ratio(measurement, parameters["gram_points"], shared)
            return measurement
        for case in problem.cases:
            _measure_case(measurement, contender, case, parameters, rng)
        if contender == OURS:
            _measure_coverage(measurement, parameters, rng)
            _measure_cancer(measurement, rng)
            measure_error_terms(measurement, parameters, rng)
            measure_rate(measurement, rng)
            measure_memory(measurement, parameters["memory_points"], rng)
            if parameters["scaling"]:
                measure_scaling(measurement, (25_000, 50_000, 100_000, 200_000), (128, 256, 512, 1024), rng)
        if contender == MLP:
            network_epoch_ratio(measurement, parameters["epoch_points"], shared)
        if contender in (OURS, MLP) and parameters["gan_steps"]:
            _measure_gan(measurement, contender, parameters["gan_steps"], problem.seed)
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """Has the data drifted? A lower bound on how far, at 95 % confidence."""
        import numpy as np

        from assay.transport import alpha_divergence

        rng = np.random.default_rng(0)
        before = rng.normal(size=(2000, 3))
        after = rng.normal(0.5, 1.0, size=(2000, 3))

        result = alpha_divergence(after, before, alpha=0.5, n_features=64, rng=0)
        print(f"estimate {result.value:.3f}, and at least {result.lower_bound:.3f} at 95 % confidence")
        return result.certificates


def _measure_case(
    measurement: Measurement,
    contender: str,
    case: DivergenceCase,
    parameters: dict[str, Any],
    rng: np.random.Generator,
) -> None:
    """Estimate one divergence from every pair of samples."""
    samples = case.samples
    everywhere = contender in (OURS, LOGISTIC, NEIGHBOURS) or parameters["dear_cases"] is None
    if not everywhere and case.name not in parameters["dear_cases"]:
        return
    if contender in (MLP, FGAN):
        samples = samples[: parameters["neural_repeats"]]
    train, held_out, lower, errors, seconds = [], [], [], [], []
    for P, Q in samples:
        started = time.process_time()
        if contender in OPTIONS:
            from assay.transport import alpha_divergence

            options = {"radius": case.radius, **OPTIONS[contender]}
            result = alpha_divergence(P, Q, case.alpha, rng=rng, **options)
            measurement.certify(result.certificates, case.name)
            estimate = result.train_value, result.value
            lower.append(result.lower_bound)
            errors.append(result.se)
        elif contender in (MLP, FGAN):
            from assay.studies.transport._neural_critics import neural_estimate

            network = neural_estimate(P, Q, case.alpha, rng, f_gan=contender == FGAN)
            estimate = network.train, network.held_out
        elif contender == LOGISTIC:
            estimate = logistic_value(P, Q, case.alpha, rng)
        else:
            value = neighbour_value(P, Q, case.alpha)
            estimate = value, value
        seconds.append(time.process_time() - started)
        train.append(estimate[0])
        held_out.append(estimate[1])
    held, trained, exact = np.array(held_out), np.array(train), case.exact
    measurement.add("exact", exact, case.name)
    measurement.add("held_out", np.median(held), case.name)
    measurement.add("held_out_min", held.min(), case.name)
    measurement.add("held_out_max", held.max(), case.name)
    measurement.add("held_out_share", held.min() / exact, case.name)
    measurement.add("held_out_share_max", held.max() / exact, case.name)
    measurement.add("train", np.median(trained), case.name)
    # Of one sample; what the worst of several shows is mostly the standard error of a mean over held-out points.
    measurement.add("error", abs(held[0] - exact), case.name)
    measurement.add("error_worst", np.abs(held - exact).max(), case.name)
    measurement.add("runaway", np.mean((held < 0.0) | (trained > 1.3 * exact) | ~np.isfinite(held)), case.name)
    measurement.add("cpu_seconds", np.median(seconds), case.name)
    if len(held) > 1:
        measurement.add("held_out_sd", held.std(ddof=1), case.name)
    if lower:
        measurement.add("lower_bound", np.median(lower), case.name)
        measurement.add("lower_bound_excess", np.max(lower) - exact, case.name)
        measurement.add("standard_error", np.median(errors), case.name)
        measurement.add("error_in_standard_errors", np.max(np.abs(held - exact) / np.array(errors)), case.name)


def _measure_coverage(measurement: Measurement, parameters: dict[str, Any], rng: np.random.Generator) -> None:
    """Lower bounds of 20 seeds for every alpha, one dimension."""
    from assay.transport import alpha_divergence

    n = parameters["coverage_points"]
    for alpha in parameters["coverage_alphas"]:
        exact, excess = normal_divergence(alpha, 1.0, 1.5, 1), []
        for _ in range(20):
            P, Q = rng.normal(size=(n, 1)), rng.normal(1.0, np.sqrt(1.5), size=(n, 1))
            excess.append(alpha_divergence(P, Q, alpha, n_features=64, rng=rng).lower_bound - exact)
        measurement.add("lower_bound_excess", max(excess), f"coverage alpha={alpha:g}")


def _measure_cancer(measurement: Measurement, rng: np.random.Generator) -> None:
    """Malignant against benign, and each class against itself."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    from assay.transport import alpha_divergence

    X, y = load_breast_cancer(return_X_y=True)
    points = PCA(5, random_state=0).fit_transform(StandardScaler().fit_transform(X))
    malignant, benign = (rng.permutation(points[y == label]) for label in (0, 1))
    for case, first, second in (
        ("cancer across", malignant, benign),
        ("cancer same malignant", malignant[::2], malignant[1::2]),
        ("cancer same benign", benign[::2], benign[1::2]),
    ):
        result = alpha_divergence(first, second, rng=rng)
        measurement.add("held_out", result.value, case)
        measurement.add("train", result.train_value, case)
        measurement.add("lower_bound", result.lower_bound, case)
        measurement.certify(result.certificates, case)


def _measure_gan(measurement: Measurement, contender: str, steps: int, seed: int) -> None:
    """The generator of the better of two learning rates of the critic, by the share of samples on a mode."""
    import torch

    from assay.studies.transport._mixture_gan import score_samples, train_generator
    from assay.studies.transport._neural_critics import perceptron
    from assay.transport import RFFCritic

    scores, started = [], time.process_time()
    for rate in GAN_RATES:
        if contender == OURS:
            critic: Any = RFFCritic(2, generator=torch.Generator().manual_seed(seed))
            samples = train_generator(critic, critic.project_, rate, steps, np.random.default_rng(seed))
            measurement.certify(critic.certificates(), "gan")
        else:
            critic = perceptron(2, seed)
            samples = train_generator(critic, lambda: None, rate, steps, np.random.default_rng(seed))
        scores.append(score_samples(samples, np.random.default_rng(seed)))
    best = max(scores, key=lambda score: score.on_mode)
    measurement.add("gan_on_mode", best.on_mode, "gan")
    measurement.add("gan_high", best.high, "gan")
    measurement.add("gan_low", best.low, "gan")
    measurement.add("gan_cpu_seconds", (time.process_time() - started) / len(GAN_RATES), "gan")
