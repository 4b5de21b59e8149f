"""Study of linear-core losses: how fast they train, and what they do when labels are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study, interleave
from assay.studies.supervised._linear_core_descent import RIDGE, hinge_subgradient, plain_descent
from assay.studies.supervised._linear_core_noise import LINEAR, NETWORK, Digits, criteria, noisy_digits, train

__all__ = ["LinearCoreStudy"]


@dataclass(frozen=True)
class Problem:
    """Both data sets and the parameters of the size."""

    features: np.ndarray
    labels: np.ndarray
    digits: Digits
    parameters: dict[str, Any]
    split_seed: int


class LinearCoreStudy(Study):
    """Linear-core losses against what classifiers are trained with today."""

    title = "Linear-core losses"
    summary = (
        "For those who train classifiers on labels that are partly wrong, or who want the guarantee of a hinge loss "
        "and the speed of a smooth one. A loss in place of CrossEntropyLoss, a model in place of LogisticRegression."
    )
    promise = (
        "An excess surrogate risk of e means an excess error of at most e / tau; the classifier's objective is within "
        "its duality gap of the optimum."
    )
    interface = "torch loss and scikit-learn estimator"
    method = "assay.supervised.LinearCoreLoss"
    paper = Paper(
        title="Linear-Core Surrogates: Smooth Loss Functions with Linear Rates for Classification and Structured "
        "Prediction",
        authors="Mehryar Mohri, Yutao Zhong",
        arxiv="2604.27742",
    )
    data = (
        "Breast cancer (569 samples, two classes) and handwritten digits (1797 images, ten classes) from scikit-learn. "
        "Digit labels are flipped to the runner-up of a weak logistic model, more often where that is more likely."
    )
    contenders = (
        Contender("linear core", "method", "LinearCoreClassifier with L-BFGS; LinearCoreLoss with its defaults"),
        Contender("linear core, Nesterov", "ablation", "LinearCoreClassifier with accelerated gradient descent"),
        Contender(
            "linear core, plain steps", "ablation", "step 1/L in the given coordinates, with and without momentum"
        ),
        Contender("linear core, gamma tail", "ablation", "twice differentiable"),
        Contender("linear core, pairs", "ablation", "sum over pairs of scores instead of centred scores"),
        Contender(
            "hinge, subgradient",
            "incumbent",
            "best of five rules for the steps, by hindsight",
        ),
        Contender("LogisticRegression", "incumbent", "L-BFGS, max_iter=1000", library="scikit-learn"),
        Contender("LinearSVC", "incumbent", "defaults", library="scikit-learn"),
        Contender("CrossEntropyLoss", "incumbent", library="torch"),
        Contender("label smoothing 0.1", "incumbent", "CrossEntropyLoss(label_smoothing=0.1)", library="torch"),
        Contender("generalised cross-entropy", "incumbent", "(1 - p^0.7) / 0.7"),
        Contender("mean absolute error", "incumbent", "1 - p of the label"),
        Contender("MultiMarginLoss", "incumbent", library="torch"),
        Contender("Lee-Lin-Wahba hinge", "incumbent", "hinge of minus the centred scores of wrong classes"),
    )
    claims = (
        Claim(
            "C1",
            "1000 plain steps of accelerated gradient descent on the smooth loss come within 1e-4 of the optimum",
            "objective_gap",
            "linear core, plain steps",
            "<=",
            1e-4,
            "derived: O(1/T^2) for a smooth loss",
            case="accelerated",
        ),
        Claim(
            "C2",
            "the best of five subgradient methods on the hinge loss is still 1e-3 away after 1000 steps",
            "objective_gap",
            "hinge, subgradient",
            ">=",
            1e-3,
            "prototype of the method, with four sizes of steps: O(1/sqrt(T)) for a loss with a kink",
        ),
        Claim(
            "C3",
            "L-BFGS certifies a relative duality gap of 1e-6 within 100 evaluations",
            "evaluations",
            "linear core",
            "<=",
            100,
            "prototype of the method",
        ),
        Claim(
            "C4",
            "gradient descent keeps the bound L |w*|^2 / (2 T), and with momentum 2 L |w*|^2 / (T + 1)^2, at every T",
            "gap_to_bound",
            "linear core, plain steps",
            "<=",
            1.0,
            "derived: O(1/T) and O(1/T^2) for a smooth loss",
            reduce="max",
        ),
        Claim(
            "C5",
            "the gap of accelerated gradient descent falls like 1/T^2 or faster, fitted to T = 100..1000",
            "gap_exponent",
            "linear core, plain steps",
            "<=",
            -2.0,
            "derived: O(1/T^2) for a smooth loss",
            case="accelerated",
        ),
        Claim(
            "C6",
            "a network trained with 20 % wrong labels is at least 0.026 more accurate than with cross-entropy",
            "accuracy",
            "linear core",
            ">=",
            0.026,
            "paper: + 2.6 % on corrupted CIFAR-10",
            versus="CrossEntropyLoss",
            compare="difference",
            reduce="mean",
            case="network, 20 % wrong labels",
        ),
        Claim(
            "C7",
            "and with 40 % wrong labels at least 0.04 more accurate",
            "accuracy",
            "linear core",
            ">=",
            0.04,
            "prototype of the method",
            versus="CrossEntropyLoss",
            compare="difference",
            reduce="mean",
            case="network, 40 % wrong labels",
        ),
        Claim(
            "C8",
            "with clean labels the network loses at most 0.025 of accuracy",
            "accuracy",
            "linear core",
            ">=",
            -0.025,
            "prototype of the method",
            versus="CrossEntropyLoss",
            compare="difference",
            reduce="mean",
            case="network, 0 % wrong labels",
        ),
        Claim(
            "C9",
            "a weakness: a linear model of ten classes with clean labels loses more than 0.05 to cross-entropy",
            "accuracy",
            "linear core",
            "<=",
            -0.05,
            "prototype of the method",
            versus="CrossEntropyLoss",
            compare="difference",
            reduce="mean",
            case="linear model, 0 % wrong labels",
        ),
        Claim(
            "C10",
            "wrong predictions cost at least tau = 0.7 in excess risk per excess error, over random label laws",
            "least_ratio",
            "linear core",
            ">=",
            0.7,
            "derived: proof by moving score from the predicted class to the best one",
            reduce="min",
        ),
        Claim(
            "C11",
            "the sum over pairs has no such constant: its ratio falls below 0.01 near a tie",
            "least_ratio",
            "linear core, pairs",
            "<=",
            0.01,
            "derived: it is smooth where two classes tie",
        ),
        Claim(
            "C12",
            "on breast cancer the classifier is within 0.01 of LogisticRegression",
            "accuracy",
            "linear core",
            ">=",
            -0.01,
            "this library",
            versus="LogisticRegression",
            compare="difference",
            reduce="mean",
            case="breast cancer, 0 % wrong labels",
        ),
        Claim(
            "C13",
            "forward and backward of 4096 x 1000 scores take at most 2.5 times as long as CrossEntropyLoss",
            "loss_time_ratio",
            "CrossEntropyLoss",
            "<=",
            2.5,
            "this library",
            case="4096 x 1000",
            timed=True,
        ),
        Claim(
            "C14",
            "and their peak memory is at most 3 times that of the scores",
            "peak_memory",
            "linear core",
            "<=",
            3.0,
            "this library",
        ),
    )
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {
            "rates": (0.0, 0.2, 0.4),
            "linear_rates": (0.0,),
            "epochs": 60,
            "steps": 1000,
            "splits": 3,
            "laws": 100,
        },
        "full": {
            "rates": (0.0, 0.2, 0.4),
            "linear_rates": (0.0, 0.2, 0.4),
            "epochs": 60,
            "steps": 1000,
            "splits": 10,
            "laws": 1000,
        },
    }
    seeds: ClassVar[dict[str, int]] = {"quick": 1, "full": 5}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """Standardised breast cancer data, and digits with wrong labels."""
        from sklearn.datasets import load_breast_cancer

        features, labels = load_breast_cancer(return_X_y=True)
        features = (features - features.mean(axis=0)) / features.std(axis=0)
        parameters = dict(self.sizes[size])
        digits = noisy_digits(parameters["rates"], rng)
        return Problem(features, labels, digits, parameters, int(rng.integers(2**31)))

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Run the parts of the study that the contender takes part in."""
        measurement = Measurement()
        if contender in ("linear core", "linear core, Nesterov", "linear core, plain steps", "hinge, subgradient"):
            measure_optimization(measurement, contender, problem)
        if contender in ("linear core", "LogisticRegression", "LinearSVC"):
            measure_classifier(measurement, contender, problem)
        if contender in criteria():
            measure_training(measurement, contender, problem)
        if contender == "linear core":
            measure_memory(measurement)
            measure_consistency(measurement, problem.parameters["laws"], rng)
        if contender == "linear core, pairs":
            measure_pairs(measurement)
        if contender == "CrossEntropyLoss":
            time_losses(measurement)
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """Train a linear classifier and print what it promises."""
        from sklearn.datasets import load_breast_cancer

        from assay.supervised import LinearCoreClassifier

        X, y = load_breast_cancer(return_X_y=True)
        model = LinearCoreClassifier().fit(X, y)
        print(f"accuracy {model.score(X, y):.3f}, within {model.gap_:.2g} of the best objective {model.objective_:.4g}")
        # In a training loop: criterion = assay.supervised.LinearCoreLoss(), in place of CrossEntropyLoss().
        return model.certificates_


def measure_optimization(measurement: Measurement, contender: str, problem: Problem) -> None:
    """Objective above its least value, in units of the mean loss, against evaluations of the objective."""
    from assay.supervised import LinearCoreClassifier

    features, labels, steps = problem.features, problem.labels, problem.parameters["steps"]
    strength = 1.0 / (RIDGE * len(labels))
    every = np.arange(1, steps + 1)
    if contender == "hinge, subgradient":
        add_descent(measurement, every, hinge_subgradient(features, labels, steps))
        return
    best = LinearCoreClassifier(C=strength, tol=1e-8, max_iter=3000).fit(features, labels)
    least = RIDGE * (best.objective_ - best.gap_)
    if contender == "linear core, plain steps":
        distance = np.sum(best.coef_**2) + np.sum(best.intercept_**2)
        for case, accelerated in (("gradient descent", False), ("accelerated", True)):
            objectives, lipschitz = plain_descent(features, labels, steps, accelerated)
            bound = lipschitz * distance * (2.0 / (every + 1.0) ** 2 if accelerated else 0.5 / every)
            add_descent(measurement, every, objectives - least, case)
            measurement.add("gap_to_bound", np.max((objectives - least) / bound), case=case)
        return
    solver = "nesterov" if contender == "linear core, Nesterov" else "lbfgs"
    model = quiet_fit(LinearCoreClassifier(C=strength, solver=solver, max_iter=steps), features, labels)
    measurement.certify(model.certificates_, case="breast cancer")
    measurement.add("evaluations", model.history_["evaluations"][-1])
    add_descent(measurement, model.history_["evaluations"], RIDGE * model.history_["objective"] - least)


def add_descent(measurement: Measurement, count: np.ndarray, gap: np.ndarray, case: str = "") -> None:
    """Add the last gap, its exponent over the last nine tenths, and the curve."""
    measurement.add("objective_gap", gap[-1], case=case)
    late = (count >= count[-1] // 10) & (gap > 0)
    measurement.add("gap_exponent", np.polyfit(np.log(count[late]), np.log(gap[late]), 1)[0], case=case)
    seen = (count > 0) & (gap > 0)
    measurement.add_curve(
        "objective gap",
        count[seen],
        gap[seen],
        case=case,
        x_label="evaluations of the gradient",
        y_label="mean objective above its least value",
        x_log=True,
        y_log=True,
    )


def quiet_fit(model: Any, features: np.ndarray, labels: np.ndarray) -> Any:
    """Fit without the warning that the iterations ended first."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(features, labels)


def measure_classifier(measurement: Measurement, contender: str, problem: Problem) -> None:
    """Accuracy on held-out breast cancer samples after random flips, and the time of a fit."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    from assay.supervised import LinearCoreClassifier

    makers: dict[str, Callable[[], Any]] = {
        "linear core": LinearCoreClassifier,
        "LogisticRegression": lambda: LogisticRegression(max_iter=1000),
        "LinearSVC": LinearSVC,
    }
    features, labels = problem.features, problem.labels
    generator = np.random.default_rng(problem.split_seed)
    accuracies: dict[float, list[float]] = {rate: [] for rate in problem.parameters["rates"]}
    for _ in range(problem.parameters["splits"]):
        order, draws = generator.permutation(len(labels)), generator.random(len(labels))
        train, test = order[: int(0.7 * len(order))], order[int(0.7 * len(order)) :]
        for rate, scores in accuracies.items():
            given = np.where(draws < rate, 1 - labels, labels)
            model = quiet_fit(makers[contender](), features[train], given[train])
            scores.append(model.score(features[test], labels[test]))
    for rate, scores in accuracies.items():
        measurement.add("accuracy", float(np.mean(scores)), case=f"breast cancer, {100 * rate:.0f} % wrong labels")
    if contender != "linear core":
        timings = interleave(
            {
                name: lambda name=name: quiet_fit(makers[name](), features, labels)
                for name in (contender, "linear core")
            },
            repeats=7,
            budget=2.0,
        )
        add_ratio(measurement, "fit_speedup", timings.ratio(contender, "linear core"))


def measure_training(measurement: Measurement, contender: str, problem: Problem) -> None:
    """Test accuracy of a network and of a linear model trained on wrong labels."""
    for architecture, rates in ((NETWORK, "rates"), (LINEAR, "linear_rates")):
        wrong = problem.parameters[rates]
        accuracies = train(criteria()[contender](), problem.digits, wrong, architecture, problem.parameters["epochs"])
        for rate, accuracy in zip(wrong, accuracies, strict=True):
            measurement.add("accuracy", accuracy, case=f"{architecture}, {100 * rate:.0f} % wrong labels")
        if len(wrong) > 1:
            measurement.add_curve(
                "accuracy under label noise",
                100 * np.array(wrong),
                accuracies,
                case=architecture,
                x_label="wrong training labels (%)",
                y_label="test accuracy",
            )


def measure_consistency(measurement: Measurement, n_laws: int, rng: np.random.Generator) -> None:
    """Least excess risk per excess error over random laws of three to five classes and random scores."""
    from assay.supervised import LinearCoreLoss, consistency_certificate

    least = math.inf
    for n_classes in (3, 4, 5):
        laws = rng.dirichlet(np.ones(n_classes), n_laws)
        for spread in (0.05, 0.3, 1.0, 3.0):
            scores = spread * rng.normal(size=laws.shape)
            for law, row in zip(laws, scores, strict=True):
                if law.max() - law[row.argmax()] > 1e-3:
                    least = min(least, excess_ratio(law, row))
            report = consistency_certificate(LinearCoreLoss(), scores, probabilities=laws)
            measurement.certify(report.certificates[-1], case=f"{n_classes} classes, spread {spread:g}")
    measurement.add("least_ratio", least)
    measurement.certify(consistency_certificate(LinearCoreLoss()).certificates)


def excess_ratio(law: np.ndarray, scores: np.ndarray) -> float:
    """Excess risk per excess error of one row of scores under one law; least risk by its stationarity condition."""
    from assay.supervised.linear_core import linear_core

    def risk(row: np.ndarray) -> float:
        return float((1.0 - law) @ linear_core(-row))

    best = law.argmax()
    optimal = -(0.7 + 0.3 * np.log((1.0 - law) / (1.0 - law[best])))
    optimal[best] -= optimal.sum()
    return (risk(scores - scores.mean()) - risk(optimal)) / (law[best] - law[scores.argmax()])


def measure_pairs(measurement: Measurement) -> None:
    """The ratio that the sum over pairs of scores reaches near a tie."""
    from assay.supervised import LinearCoreLoss, consistency_certificate

    measurement.add("least_ratio", consistency_certificate(LinearCoreLoss(constrained=False)).certificates[2].value)


def measure_memory(measurement: Measurement) -> None:
    """Most memory that forward and backward hold at a time beyond the scores, in units of the scores."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from assay.supervised import LinearCoreLoss

    scores = torch.zeros(2048, 1000, requires_grad=True)
    labels = torch.zeros(2048, dtype=torch.long)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        LinearCoreLoss()(scores, labels).backward()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    measurement.add("peak_memory", held.max() / (scores.numel() * scores.element_size()))


def time_losses(measurement: Measurement) -> None:
    """Forward and backward of both losses, in turns."""
    import torch

    from assay.supervised import LinearCoreLoss

    generator = torch.Generator().manual_seed(0)
    for rows, classes in ((4096, 1000), (4096, 10)):
        scores = torch.randn(rows, classes, generator=generator).requires_grad_()
        labels = torch.randint(0, classes, (rows,), generator=generator)

        def step(loss: Any, scores: Any = scores, labels: Any = labels) -> None:
            scores.grad = None
            loss(scores, labels).backward()

        ours, theirs = LinearCoreLoss(), torch.nn.CrossEntropyLoss()
        timings = interleave({"ours": lambda: step(ours), "theirs": lambda: step(theirs)}, repeats=9, budget=1.0)  # noqa: B023
        add_ratio(measurement, "loss_time_ratio", timings.ratio("ours", "theirs"), case=f"{rows} x {classes}")


def add_ratio(measurement: Measurement, metric: str, ratio: Any, case: str = "") -> None:
    """Add a ratio of medians with its quartiles."""
    measurement.add(metric, ratio.median, case=case)
    measurement.add(f"{metric}_lower", ratio.lower, case=case)
    measurement.add(f"{metric}_upper", ratio.upper, case=case)
