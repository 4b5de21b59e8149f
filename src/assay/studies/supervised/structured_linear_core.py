"""Study of the linear-core loss for label sequences: what a step costs without inference, and what it learns."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study, interleave
from assay.studies.supervised._sequence_layers import torch_layers
from assay.studies.supervised._sequence_tasks import CONTEXTS, LENGTH, Task, english, letter_task, word_task

__all__ = ["StructuredLinearCoreStudy"]

SAMPLES = 8
SAMPLED, COMPLETE, WHOLE = "linear core, sampled", "linear core, all labels", "linear core, whole sequences"
SVM, CROSS_ENTROPY = "structured SVM", "cross-entropy"


@dataclass(frozen=True)
class Problem:
    """The tasks, and the parameters of the size."""

    letters: Task
    words: tuple[Task, ...]
    timed: tuple[Task, ...]
    parameters: dict[str, Any]
    seed: int


class StructuredLinearCoreStudy(Study):
    """Sampled linear-core losses for sequences against losses that need inference or all labels."""

    title = "Linear-core losses for sequences"
    summary = (
        "For those who train sequence labellers with many labels, where every step of a structured SVM or a CRF runs "
        "inference. A loss whose gradient is estimated from a few sampled labels, and a tagger that uses it."
    )
    promise = (
        "The sampled gradient is unbiased, and an excess surrogate risk of e per position means a teacher-forced "
        "excess error of at most e / tau."
    )
    interface = "torch loss and scikit-learn style estimator"
    method = "assay.supervised.StructuredLinearCore"
    paper = Paper(
        title="Linear-Core Surrogates: Smooth Loss Functions with Linear Rates for Classification and Structured "
        "Prediction",
        authors="Mehryar Mohri, Yutao Zhong",
        arxiv="2604.27742",
    )
    data = (
        "The help texts of Python (64 thousand words), in sequences of 20. Letters from the keys of a telephone (27 "
        "letters), and words from their consonants, where a label is one of the K - 1 most frequent words or 'other'."
    )
    contenders = (
        Contender(SAMPLED, "method", f"position-wise, {SAMPLES} sampled wrong labels: SequenceTagger(solver='sgd')"),
        Contender(COMPLETE, "ablation", "position-wise, all labels: SequenceTagger with L-BFGS"),
        Contender(WHOLE, "ablation", f"{SAMPLES} sampled whole sequences: StructuredLinearCore and torch's SGD"),
        Contender(
            SVM,
            "incumbent",
            "margin rescaling with loss-augmented Viterbi; no maintained library has one, so it is written for this "
            "study, compiled and without back pointers",
        ),
        Contender(
            CROSS_ENTROPY,
            "incumbent",
            "given the true label before: LogisticRegression, decoded by Viterbi; as a layer, torch's cross_entropy",
            library="scikit-learn",
        ),
    )
    claims = (
        Claim(
            "C1",
            "with 500 labels a step of the structured SVM takes at least 15 times as long as one of the sampled loss",
            "speedup",
            SVM,
            ">=",
            15,
            "prototype of the method",
            case="500 labels",
            timed=True,
        ),
        Claim(
            "C2",
            "and the speed-up that the paper reports, 23, is reached with them",
            "speedup",
            SVM,
            ">=",
            23,
            "paper: 23x over structured SVMs, number of labels unknown",
            case="500 labels",
            timed=True,
        ),
        Claim(
            "C3",
            "the time of a step of the structured SVM grows about like the square of the number of labels: "
            "with an exponent of at least 1.8",
            "svm_time_exponent",
            SVM,
            ">=",
            1.8,
            "derived: O(L K^2) for Viterbi",
            timed=True,
        ),
        Claim(
            "C4",
            "the time of a sampled step grows at most linearly with the number of labels",
            "sampled_time_exponent",
            SVM,
            "<=",
            1.0,
            "derived: O(m L), next to effects of the cache",
            timed=True,
        ),
        Claim(
            "C5",
            "sampled gradients agree with the enumerated one within four standard errors",
            "standard_errors",
            SAMPLED,
            "<=",
            4.0,
            "derived: uniform draws from a mean",
            reduce="max",
        ),
        Claim(
            "C6",
            "with 8 sequences, excess risk of whole sequences is at least tau / 8 = 0.0875 per excess cost",
            "least_ratio",
            SAMPLED,
            ">=",
            0.0875,
            "derived: proof by moving score from the predicted sequence to the best one",
            reduce="min",
            case="8 whole sequences",
        ),
        Claim(
            "C7",
            "position-wise excess risk is at least tau = 0.7 per teacher-forced excess error, summed over positions",
            "least_ratio",
            SAMPLED,
            ">=",
            0.7,
            "derived: the multi-class bound at every position",
            reduce="min",
            case="position by position",
        ),
        Claim(
            "C8",
            "on the training data the teacher-forced excess error is within 1 / tau times the excess surrogate risk",
            "bound_used",
            SAMPLED,
            "<=",
            1.0,
            "derived: the multi-class bound for the empirical law",
            reduce="max",
        ),
        Claim(
            "C9",
            "a weakness: with 100 words a linear model ends more than 0.05 below the structured SVM, for all its steps",
            "accuracy",
            SAMPLED,
            "<=",
            -0.05,
            "prototype of the method",
            versus=SVM,
            compare="difference",
            reduce="mean",
            case="100 words",
        ),
        Claim(
            "C10",
            "with 500 labels forward and backward of the structured SVM as a layer of torch take at least 15 times as "
            "long as those of StructuredLinearCore, position by position",
            "layer_speedup_sampled",
            SVM,
            ">=",
            15,
            "prototype of the method, whose gradients were sparse",
            case="500 labels",
            timed=True,
        ),
    )
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {
            "letters": 200,
            "words": 300,
            "labels": (100,),
            "timed_labels": (100, 300, 500),
            "passes": (1, 2, 5, 10),
            "settings": 1,
            "max_iter": 100,
            "complete_labels": 27,
            "steps": 150,
            "laws": 40,
        },
        "full": {
            "letters": 600,
            "words": 1000,
            "labels": (100, 300),
            "timed_labels": (100, 200, 500, 1000),
            "passes": (1, 2, 5, 10, 20, 40),
            "settings": 3,
            "max_iter": 200,
            "complete_labels": 100,
            "steps": 1000,
            "laws": 400,
        },
    }
    seeds: ClassVar[dict[str, int]] = {"quick": 1, "full": 2}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """Encode the text for both tasks."""
        parameters = dict(self.sizes[size])
        text = english()
        letters = letter_task(text, parameters["letters"], rng)
        words = tuple(word_task(text, k, parameters["words"], rng) for k in parameters["labels"])
        timed = tuple(word_task(text, k, 200, rng) for k in parameters["timed_labels"])
        return Problem(letters, words, timed, parameters, int(rng.integers(2**31)))

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Train on the tasks, and run the other parts that the contender takes part in."""
        measurement = Measurement()
        {
            SAMPLED: measure_sampled,
            COMPLETE: measure_complete,
            WHOLE: measure_whole,
            SVM: measure_svm,
            CROSS_ENTROPY: measure_cross_entropy,
        }[contender](measurement, problem, rng)
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """Learn to find the words in a text without spaces."""
        from assay.data.text import load_python_topics
        from assay.supervised import SequenceTagger

        topics = load_python_topics(unit="character")
        words = re.findall("[a-z]+", topics.decode(topics.train).lower())[:1000]
        lines = [words[i : i + 8] for i in range(0, 1000, 8)]
        letters = ["".join(line) for line in lines]
        starts = ["".join("|" + "." * (len(word) - 1) for word in line) for line in lines]
        tagger = SequenceTagger(alpha=1e-3, window=4).fit(letters[:100], starts[:100])
        print(letters[110], "".join(tagger.predict(letters[110:111])[0]), tagger.score(letters[100:], starts[100:]))
        return tagger.certificates_


def best_setting(settings: Sequence[Any], count: int, score: Callable[[Any], float]) -> Any:
    """The best of the first ``count`` settings on the part that is there to choose with; ties go to the earlier."""
    return max(settings[:count], key=score) if count > 1 else settings[0]


def train_in_passes(
    run: Callable[[np.ndarray], None],
    n: int,
    passes: Sequence[int],
    rng: np.random.Generator,
    look: Callable[[], float],
) -> tuple[list[float], list[float]]:
    """Seconds of training after some numbers of passes over ``n`` items, and what ``look`` sees there."""
    seconds, seen, spent = [], [], 0.0
    for number in range(1, passes[-1] + 1):
        order = rng.permutation(n)
        began = time.perf_counter()
        run(order)
        spent += time.perf_counter() - began
        if number in passes:
            seconds.append(spent)
            seen.append(look())
    return seconds, seen


def record(measurement: Measurement, task: Task, seconds: Sequence[float], accuracy: Sequence[float]) -> None:
    measurement.add("accuracy", accuracy[-1], task.name)
    measurement.add("seconds", seconds[-1], task.name)
    measurement.add_curve(
        "accuracy",
        seconds,
        accuracy,
        case=task.name,
        x_label="seconds of training",
        y_label="accuracy on held-out text",
        x_log=True,
    )


def new_descent(task: Task, alpha: float, learning_rate: float) -> tuple[Any, Callable[[np.ndarray, Any], None]]:
    """Coefficients for sampled steps, and a function that runs over the rows of some sequences."""
    import scipy.sparse as sp

    from assay.supervised.sampled_descent import SampledDescent
    from assay.supervised.sequence_training import training_rows

    design = training_rows(task.rows["train"], task.lengths["train"], task.target["train"], task.n_labels)
    design = sp.csr_array((math.sqrt(task.n_labels) * design.data, design.indices, design.indptr), shape=design.shape)
    descent = SampledDescent(
        design.shape[1],
        task.n_labels,
        alpha=alpha,
        learning_rate=learning_rate * math.sqrt(task.n_labels),
        n_samples=SAMPLES,
    )

    def run(sequences: np.ndarray, rng: np.random.Generator) -> None:
        places = (LENGTH * sequences[:, None] + np.arange(LENGTH)).reshape(-1)
        descent.run(design, task.target["train"], places, rng)

    run(np.arange(0), np.random.default_rng(0))  # compiles
    return descent, run


def measure_sampled(measurement: Measurement, problem: Problem, rng: np.random.Generator) -> None:
    """Accuracy by seconds, and the promises."""
    import warnings

    from assay.supervised import SequenceTagger

    passes, count = problem.parameters["passes"], problem.parameters["settings"]
    for task in (problem.letters, *problem.words):
        n = len(task.lengths["train"])

        def trained(
            setting: tuple[float, float], task: Task = task, n: int = n
        ) -> tuple[list[float], list[float], Any]:
            descent, run = new_descent(task, *setting)
            generator = np.random.default_rng(problem.seed)
            curve = train_in_passes(
                lambda order: run(order, generator),
                n,
                passes,
                generator,
                lambda: task.accuracy("test", descent.coefficients()),
            )
            return *curve, descent

        settings = ((1e-4, 1.0), (1e-4, 0.3), (1e-4, 3.0))
        setting = best_setting(
            settings, count, lambda s, task=task: task.accuracy("choose", trained(s)[2].coefficients())
        )
        seconds, accuracy, _ = trained(setting)
        record(measurement, task, seconds, accuracy)
    task = problem.letters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stochastic steps leave the gap open, and say so
        tagger = SequenceTagger(solver="sgd", max_iter=passes[-1], random_state=problem.seed)
        tagger.fit(task.inputs["train"], task.labels["train"])
    consistency = tagger.certificates_[1]
    measurement.certify(consistency, task.name)
    measurement.add("bound_used", consistency.value / consistency.bound, task.name)
    measurement.add("relative_gap", tagger.gap_ / tagger.objective_, task.name)
    measure_promises(measurement, problem.parameters["laws"], rng)


def measure_promises(measurement: Measurement, n_laws: int, rng: np.random.Generator) -> None:
    """Unbiasedness on random scores, and the ratio of excess risk to excess cost on random laws."""
    import torch

    from assay.supervised import (
        StructuredLinearCore,
        structured_certificates,
        structured_consistency_certificate,
        viterbi,
    )

    for sampler, case in (("uniform", "whole sequences"), ("positionwise", "position by position")):
        unary, transitions = torch.tensor(rng.normal(size=(4, 5, 4))), torch.tensor(rng.normal(size=(4, 4)))
        target = torch.from_numpy(viterbi(rng.normal(size=(4, 5, 4))))
        loss = StructuredLinearCore(4, sampler=sampler, n_samples=SAMPLES)
        certificates = structured_certificates(loss, unary, transitions, target, rng=rng)
        measurement.certify(certificates, case)
        measurement.add("standard_errors", certificates[-1].value, case)
    for sampler, case, factor in (
        ("uniform", "8 whole sequences", 0.7 / 8),
        ("positionwise", "position by position", 0.7),
    ):
        loss, ratios = StructuredLinearCore(2, sampler=sampler), []
        for _ in range(n_laws):
            law = rng.dirichlet(np.ones(8))
            for _ in range(20):
                certificate = structured_consistency_certificate(
                    loss, rng.normal(size=(3, 2)), rng.normal(size=(2, 2)), law
                )
                if certificate.value > 1e-9:
                    ratios.append(factor * certificate.bound / certificate.value)
        measurement.add("least_ratio", min(ratios), case)


def measure_complete(measurement: Measurement, problem: Problem, rng: np.random.Generator) -> None:
    """The same objective with all labels, by L-BFGS."""
    import warnings

    from assay.supervised import SequenceTagger

    parameters = problem.parameters
    for task in (problem.letters, *problem.words):
        if task.n_labels > parameters["complete_labels"]:
            continue

        def trained(alpha: float, task: Task = task) -> tuple[float, Any]:
            tagger = SequenceTagger(alpha, handle_unknown="ignore", max_iter=parameters["max_iter"])
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tagger.fit(task.inputs["train"], task.labels["train"])
            return time.perf_counter() - began, tagger

        alpha = best_setting(
            (1e-4, 1e-5, 1e-3),
            parameters["settings"],
            lambda a, task=task, trained=trained: trained(a)[1].score(task.inputs["choose"], task.labels["choose"]),
        )
        seconds, tagger = trained(alpha)
        record(measurement, task, [seconds], [tagger.score(task.inputs["test"], task.labels["test"])])
        measurement.add("relative_gap", tagger.gap_ / tagger.objective_, task.name)
        measurement.certify(tagger.certificates_[1], task.name)


def measure_whole(measurement: Measurement, problem: Problem, rng: np.random.Generator) -> None:
    """Samples from all 27^20 sequences of letters, in a training loop of torch."""
    import torch

    from assay.supervised import StructuredLinearCore

    task, steps = problem.letters, problem.parameters["steps"]
    rows, n_features = task.rows["train"], task.rows["train"].shape[1]
    n, width = len(task.lengths["train"]), len(CONTEXTS)
    columns = torch.from_numpy(rows.indices.astype(np.int64)).reshape(n, LENGTH * width)
    target = torch.from_numpy(task.target["train"]).reshape(n, LENGTH)

    def trained(learning_rate: float) -> tuple[float, np.ndarray]:
        generator = torch.Generator().manual_seed(problem.seed)
        loss = StructuredLinearCore(task.n_labels, n_samples=SAMPLES, score_scale=0.1, generator=generator)
        weights = torch.zeros(n_features, task.n_labels, requires_grad=True)
        others = torch.zeros(task.n_labels + 2, task.n_labels, requires_grad=True)
        optimizer = torch.optim.SGD([weights, others], lr=learning_rate)
        began = time.perf_counter()
        for _ in range(steps):
            batch = torch.randint(n, (32,), generator=generator)
            bags = columns[batch].reshape(-1, width)
            unary = torch.nn.functional.embedding_bag(bags, weights, mode="sum") + others[-1]
            optimizer.zero_grad()
            loss(unary.reshape(32, LENGTH, -1), others[:-2], target[batch]).backward()
            optimizer.step()
        seconds = time.perf_counter() - began
        return seconds, torch.cat([weights, others]).detach().double().numpy()

    rate = best_setting(
        (10.0, 3.0, 30.0), problem.parameters["settings"], lambda r: task.accuracy("choose", trained(r)[1])
    )
    seconds, coefficients = trained(rate)
    record(measurement, task, [seconds], [task.accuracy("test", coefficients)])


def new_svm(task: Task, alpha: float, learning_rate: float) -> Any:
    from assay.studies.supervised._structured_svm import StructuredSVM

    return StructuredSVM(
        task.rows["train"].shape[1], task.n_labels, alpha=alpha, learning_rate=learning_rate, scale=1.0
    )


def measure_svm(measurement: Measurement, problem: Problem, rng: np.random.Generator) -> None:
    """Accuracy by seconds, and the time of a step next to one of the sampled loss."""
    passes, count = problem.parameters["passes"], problem.parameters["settings"]
    for task in (problem.letters, *problem.words):
        n = len(task.lengths["train"])

        def trained(
            setting: tuple[float, float], task: Task = task, n: int = n
        ) -> tuple[list[float], list[float], Any]:
            svm = new_svm(task, *setting)
            svm.run(task.rows["train"], task.lengths["train"], task.target["train"], np.arange(0))  # compile
            curve = train_in_passes(
                lambda order: svm.run(task.rows["train"], task.lengths["train"], task.target["train"], order),
                n,
                passes,
                np.random.default_rng(problem.seed),
                lambda: task.accuracy("test", svm.coefficients()),
            )
            return *curve, svm

        settings = ((1e-4, 0.1), (1e-4, 0.3), (1e-4, 1.0))
        setting = best_setting(
            settings, count, lambda s, task=task: task.accuracy("choose", trained(s)[2].coefficients())
        )
        seconds, accuracy, _ = trained(setting)
        record(measurement, task, seconds, accuracy)
    time_steps(measurement, problem.timed, rng)


def time_steps(measurement: Measurement, tasks: Sequence[Task], rng: np.random.Generator) -> None:
    """Steps of one sequence, the SVM and the sampled loss in turns; and both as layers of torch."""
    sizes, svm_times, sampled_times, ratios = [], [], [], []
    for task in tasks:
        svm, (_, run) = new_svm(task, 1e-4, 0.1), new_descent(task, 1e-4, 1.0)
        train = (task.rows["train"], task.lengths["train"], task.target["train"])
        for _ in range(2):  # where nothing is learned yet, an SVM has other sequences to correct than later
            svm.run(*train, np.arange(100))
            run(np.arange(100), rng)
        sequences = np.arange(100, 110)
        timings = interleave(
            {"svm": lambda s=svm, t=train, q=sequences: s.run(*t, q), "sampled": lambda r=run, q=sequences: r(q, rng)},
            repeats=15,
            budget=3.0,
        )
        case = f"{task.n_labels} labels"
        ratio = timings.ratio("svm", "sampled")
        measurement.add("speedup", ratio.median, case)
        measurement.add("speedup_lower", ratio.lower, case)
        measurement.add("speedup_upper", ratio.upper, case)
        measurement.add("svm_step_seconds", timings.median("svm") / len(sequences), case)
        measurement.add("sampled_step_seconds", timings.median("sampled") / len(sequences), case)
        sizes.append(task.n_labels)
        svm_times.append(timings.median("svm"))
        sampled_times.append(timings.median("sampled"))
        ratios.append(ratio.median)
    measurement.add("svm_time_exponent", np.polyfit(np.log(sizes), np.log(svm_times), 1)[0])
    measurement.add("sampled_time_exponent", np.polyfit(np.log(sizes), np.log(sampled_times), 1)[0])
    measurement.add_curve(
        "speedup",
        sizes,
        ratios,
        x_label="number of labels",
        y_label="time of a step of the structured SVM / of the sampled loss",
        x_log=True,
        y_log=True,
    )
    for n_labels in sizes:
        layers = torch_layers(n_labels, SAMPLES, int(rng.integers(2**31)))
        timings = interleave({name: layers[name] for name in ("svm", "sampled", "whole")}, repeats=7, budget=2.0)
        for name in ("sampled", "whole"):
            measurement.add(f"layer_speedup_{name}", timings.ratio("svm", name).median, f"{n_labels} labels")


def measure_cross_entropy(measurement: Measurement, problem: Problem, rng: np.random.Generator) -> None:
    """Softmax regression on the same features, and its loss as a layer."""
    from sklearn.linear_model import LogisticRegression

    from assay.supervised.sequence_training import training_rows

    parameters = problem.parameters
    for task in (problem.letters, *problem.words):
        if task.n_labels > max(parameters["complete_labels"], 100):
            continue
        design = training_rows(task.rows["train"], task.lengths["train"], task.target["train"], task.n_labels)

        def trained(inverse_penalty: float, task: Task = task, design: Any = design) -> tuple[float, np.ndarray]:
            began = time.perf_counter()
            model = LogisticRegression(C=inverse_penalty, max_iter=200).fit(design, task.target["train"])
            seconds = time.perf_counter() - began
            coefficients = np.full((design.shape[1], task.n_labels), -1e3)  # a label that never occurs is not predicted
            coefficients[:, model.classes_] = model.coef_.T
            coefficients[-1, model.classes_] += model.intercept_
            coefficients[:-1, np.setdiff1d(np.arange(task.n_labels), model.classes_)] = 0.0
            return seconds, coefficients

        inverse_penalty = best_setting(
            (10.0, 1.0, 100.0),
            parameters["settings"],
            lambda c, task=task, trained=trained: task.accuracy("choose", trained(c)[1]),
        )
        seconds, coefficients = trained(inverse_penalty)
        record(measurement, task, [seconds], [task.accuracy("test", coefficients)])
    for n_labels in parameters["timed_labels"]:
        layers = torch_layers(n_labels, SAMPLES, int(rng.integers(2**31)))
        chosen = {name: layers[name] for name in ("cross-entropy", "sampled", "all labels")}
        timings = interleave(chosen, repeats=7, budget=2.0)
        for name in ("sampled", "all labels"):
            ratio = timings.ratio(name, "cross-entropy").median
            measurement.add(f"layer_time_ratio_{name.split()[0]}", ratio, f"{n_labels} labels")
