"""Study of preference losses: what they aim at, what they assume, and what they do when labels are wrong."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study, interleave
from assay.studies.supervised._preference_pairs import Comparison, diabetes_pairs, digit_pairs, rescaled

__all__ = ["PreferenceStudy"]

UTILITIES = np.array([1.0, 0.5, 0.0, -0.3, -1.0])
REFERENCE = np.array([0.1, 0.3, 0.2, 0.25, 0.15])
BETA = 0.5

CHOICES = ("btl", "thurstone", "cauchit", "abstain(0.5)")

# Contender, its loss, and the verdict that theory gives it.
LOSSES: dict[str, Any] = {
    "savage": ("savage", "compliant & calibrated"),
    "ramp": ("ramp", "compliant, not calibrated"),
    "exp": ("exp", "compliant & calibrated"),
    "probit": ("probit", "compliant & calibrated"),
    "tangent": ("tangent", "compliant on (-inf, 0.5463]"),
    "logistic (DPO)": ("logistic", "compliant & calibrated"),
    "IPO": ("ipo", "compliant on (-inf, 0.5]"),
    "hinge (SLiC)": ("hinge", "compliant, not calibrated"),
    "cDPO": ("cdpo(0.1)", "compliant on (-inf, 2.197]"),
}
# Bounded losses trained with themselves from the first step on, not phased in from the logistic loss.
ABRUPT = {"savage, no continuation": "savage", "ramp, no continuation": "ramp"}
QUICK = ("logistic (DPO)", "savage", "ramp")
# Neither the tabular part nor the verdicts have a claim about these, and the quick size leaves them out.
UNCLAIMED = ("hinge (SLiC)", "cDPO")
# Other scales of the images, on which the comparison under label noise depends.
SCALES = ("standardised", "unscaled")
TRL_LOSSES = {"sigmoid": "logistic", "hinge": "hinge", "ipo": "ipo", "robust": "robust(0.1)", "exo_pair": "exo(0.1)",
              "discopop": "discopop"}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """Pairs, and the parameters of the size."""

    digits: Comparison
    diabetes: Comparison | None
    parameters: dict[str, Any]
    seed: int


def _noise(rate: float) -> str:
    return f"digits, noise {rate:g}"


def _advantage(
    id: str, statement: str, contender: str, number: float, rate: float, relation: Any = ">=", **options: Any
) -> Claim:
    """A claim about the difference of accuracy to the logistic loss."""
    return Claim(
        id,
        statement,
        "accuracy",
        contender,
        relation,
        number,
        "prototype of the method",
        versus="logistic (DPO)",
        compare="difference",
        reduce="mean",
        case=_noise(rate),
        **options,
    )


def _claims() -> tuple[Claim, ...]:
    full = ("full",)
    reached = [
        Claim(
            f"C1{letter}",
            f"five responses, exact preferences: {name} reaches pi* within 1e-5 in L1 distance",
            "distance_to_target",
            name,
            "<=",
            1e-5,
            "derived: pi* is proportional to pi_0 exp(u / beta) for a calibrated loss",
            reduce="max",
        )
        for letter, name in zip("abc", ("logistic (DPO)", "savage", "exp"), strict=True)
    ]
    verdicts = [
        Claim(
            f"C2{letter}",
            f"the certificate's verdict on {name} is '{verdict}' with all four choice models",
            "wrong_verdicts",
            name,
            "<=",
            0.0,
            "derived: signs of the slope and of the rise of the implied choice model",
            reduce="max",
        )
        for letter, (name, (_, verdict)) in zip("abcdefghi", LOSSES.items(), strict=True)
        if name not in UNCLAIMED
    ]
    calibrated = [
        Claim(
            f"C4{letter}",
            f"without noise the calibration error of {name} in 10 bins is at {'most' if relation == '<=' else 'least'} "
            f"{number:g}",
            "calibration_error",
            name,
            relation,
            number,
            "prototype of the method",
            reduce="mean",
            case=_noise(0.0),
            sizes=full,
        )
        for letter, name, relation, number in (
            ("a", "logistic (DPO)", "<=", 0.08),
            ("b", "savage", "<=", 0.08),
            ("c", "ramp", ">=", 0.12),
        )
    ]
    return (
        *reached,
        Claim(
            "C1d",
            "ramp does not reach pi*",
            "distance_to_target",
            "ramp",
            ">=",
            1e-5,
            "derived: its implied choice model is constant",
            reduce="min",
        ),
        Claim(
            "C1e",
            "it collapses to the best response, which gets at least 0.99",
            "best_response",
            "ramp",
            ">=",
            0.99,
            "derived: every margin grows without bound",
            reduce="min",
        ),
        *verdicts,
        _advantage("C3a", "noise 0.2: ramp is at least 0.04 more accurate than logistic", "ramp", 0.04, 0.2),
        _advantage("C3b", "noise 0.2: savage is at least as accurate as logistic", "savage", 0.0, 0.2),
        _advantage(
            "C3c", "noise 0.15: ramp is at least 0.04 more accurate than logistic", "ramp", 0.04, 0.15, sizes=full
        ),
        _advantage("C3d", "noise 0.15: savage is at least as accurate as logistic", "savage", 0.0, 0.15, sizes=full),
        _advantage("C3e", "without noise savage loses at most 0.01 to logistic", "savage", -0.01, 0.0, sizes=full),
        _advantage(
            "C3f",
            "a weakness: without noise ramp is less accurate than logistic",
            "ramp",
            0.0,
            0.0,
            "<=",
            sizes=full,
        ),
        *calibrated,
        Claim(
            "C5",
            "the declared choice model does not enter the training: btl and thurstone give the same parameters",
            "parameter_difference",
            "savage",
            "<=",
            0.0,
            "paper: the choice model disappears from the training loss",
            reduce="max",
        ),
        Claim(
            "C6",
            "sigmoid, hinge, ipo, robust, exo_pair and discopop of TRL's DPOTrainer are special cases, to 1e-12",
            "loss_difference",
            "TRL",
            "<=",
            1e-12,
            "this library",
            reduce="max",
            sizes=full,
        ),
        Claim(
            "C7",
            "forward and backward of a million pairs take at most 1.5 times as long as a hand-written -logsigmoid",
            "loss_time_ratio",
            "logistic (DPO)",
            "<=",
            1.5,
            "this library",
            timed=True,
        ),
        Claim(
            "C8",
            "certifying a loss takes at most 0.5 seconds",
            "certificate_seconds",
            "savage",
            "<=",
            0.5,
            "this library",
            timed=True,
        ),
        Claim(
            "C9",
            "forward and backward hold at most 6 vectors beyond the log-probabilities, results included",
            "peak_vectors",
            "logistic (DPO)",
            "<=",
            6.0,
            "this library",
        ),
    )


class PreferenceStudy(Study):
    """Preference losses with any margin loss and choice model against the usual menu."""

    title = "Preference losses and choice models"
    summary = (
        "For those who fine-tune policies or train rankers on pairwise preferences: any margin loss with any choice "
        "model, in place of DPO's logistic one, and a certificate of what the loss assumes about human choice."
    )
    promise = (
        "Whether a loss is proper for a choice model, which choice model it implies, and the exact policy that it aims "
        "at; on held-out pairs, whether the implied probabilities are calibrated."
    )
    interface = "torch loss, scikit-learn estimator, trainer of language models"
    method = "assay.supervised.PreferenceLoss"
    paper = Paper(
        title="DPO Unchained: Your Training Algorithm is Secretly Disentangled in Human Choice Theory (and its Loss' "
        "Convexity is Dispensable)",
        authors="Wenxuan Zhou, Shujian Zhang, Brice Magdalou, John Lambert, Ehsan Amid, Richard Nock, Andrew Hard",
        arxiv="2507.07855",
    )
    data = (
        "Five responses with exact preferences; handwritten digits (1797 images, the larger digit wins by a logistic "
        "model, clear pairs flipped); diabetes progression (442 patients, Thurstone noise)."
    )
    contenders = (
        Contender("savage", "method", "squared logistic function: bounded, not convex, calibrated"),
        Contender("ramp", "method", "logistic function: bounded, not convex, not calibrated"),
        Contender("exp", "method", "exp(-z/2)"),
        Contender("probit", "method", "-log of the normal distribution function"),
        Contender("tangent", "method", "(2 atan z - 1)^2"),
        Contender("savage, no continuation", "ablation", "savage from the first step on"),
        Contender("ramp, no continuation", "ablation", "ramp from the first step on"),
        Contender("logistic (DPO)", "incumbent", "the loss of DPO"),
        Contender("IPO", "incumbent", "(z - 1/2)^2"),
        Contender("hinge (SLiC)", "incumbent", "(1 - z)_+"),
        Contender("cDPO", "incumbent", "logistic with labels smoothed by 0.1"),
        Contender(
            "TRL",
            "incumbent",
            "DPOTrainer's own code for its losses, on the same margins; its sigmoid trains the scorer",
            library="trl",
        ),
    )
    claims = _claims()
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"rates": (0.2,), "losses": QUICK, "all": False},
        "full": {"rates": (0.0, 0.1, 0.15, 0.2), "losses": tuple(LOSSES), "all": True},
    }
    seeds: ClassVar[dict[str, int]] = {"quick": 2, "full": 4}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """Pairs of digits and of patients."""
        parameters = dict(self.sizes[size])
        digits = digit_pairs(parameters["rates"], rng)
        patients = diabetes_pairs(rng) if parameters["all"] else None
        return Problem(digits, patients, parameters, int(rng.integers(2**31)))

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Run the parts of the study that the contender takes part in."""
        measurement = Measurement()
        complete = problem.parameters["all"]
        if not complete and contender in ("TRL", *ABRUPT, *UNCLAIMED):
            return measurement
        if contender == "TRL":
            measure_trl(measurement, problem, rng)
            return measurement
        if contender in ABRUPT:
            measure_digits(measurement, ABRUPT[contender], problem, continuation=None)
            return measurement
        psi, verdict = LOSSES[contender]
        measure_tabular(measurement, psi)
        measure_verdicts(measurement, psi, verdict)
        if contender in problem.parameters["losses"]:
            measure_digits(measurement, psi, problem)
        if complete:
            measure_diabetes(measurement, psi, problem)
            measure_scales(measurement, psi, problem)
        if contender == "savage":
            measure_disentanglement(measurement, psi, problem)
            time_certificate(measurement, psi)
        if contender == "logistic (DPO)":
            time_loss(measurement)
            measure_memory(measurement)
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """Certify a loss that is not convex, and find the policy that it aims at."""
        from assay.supervised import certify_preference_loss, tabular_policy

        report = certify_preference_loss("savage", "btl")
        print(f"savage: {report.verdict}, convex: {report.convex}, implies the declared model: {report.matches_choice}")
        preferences = [[0.5, 0.7, 0.9], [0.3, 0.5, 0.7941176470588235], [0.1, 0.2058823529411765, 0.5]]
        result = tabular_policy(preferences, reference=[0.2, 0.3, 0.5], psi="savage", beta=0.5)
        print(f"policy {result.policy.round(3)}")
        # In a training loop: loss = assay.supervised.PreferenceLoss("savage"), called like TRL's dpo_loss.
        return (*report.certificates, *result.certificates)


def measure_tabular(measurement: Measurement, psi: Any) -> None:
    """Distance of the minimiser of the population loss to the policy of the closed form."""
    from scipy.special import expit

    from assay.supervised import tabular_policy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a loss without a minimiser does not converge
        result = tabular_policy(expit(UTILITIES[:, None] - UTILITIES[None, :]), REFERENCE, psi, BETA)
    target = REFERENCE * np.exp(UTILITIES / BETA)
    measurement.add("distance_to_target", np.abs(result.policy - target / target.sum()).sum())
    measurement.add("best_response", result.policy[UTILITIES.argmax()])
    measurement.certify(result.certificates, case="five responses")


def measure_verdicts(measurement: Measurement, psi: Any, expected: str) -> None:
    """Number of choice models with which the verdict is not the expected one."""
    from assay.supervised import certify_preference_loss

    reports = {choice: certify_preference_loss(psi, choice) for choice in CHOICES}
    measurement.add("wrong_verdicts", sum(report.verdict != expected for report in reports.values()))
    for choice, report in reports.items():
        measurement.certify(report.certificates, case=choice)
        measurement.add("link_gap", report.link_gap, case=choice)


def ranker(psi: Any, seed: int, **options: Any) -> Any:
    """The scorer that all losses train."""
    from assay.supervised import PreferenceRanker

    return PreferenceRanker(psi=psi, random_state=seed, **options)


def measure_digits(measurement: Measurement, psi: Any, problem: Problem, **options: Any) -> None:
    """Accuracy on clean pairs of unseen images, and calibration on pairs as humans would order them."""
    from assay.supervised import certify_preference_fit

    accuracies = []
    data = problem.digits
    for rate, pairs in data.train_pairs.items():
        model = ranker(psi, problem.seed, **options).fit(data.train, pairs)
        accuracies.append(model.score(data.test, data.test_pairs))
        measurement.add("accuracy", accuracies[-1], case=_noise(rate))
        fit = certify_preference_fit(model, data.observed(), data.test, choice="btl")
        measurement.add("calibration_error", fit.calibration_error, case=_noise(rate))
        measurement.certify(fit.certificates, case=_noise(rate))
    if len(accuracies) > 1:
        measurement.add_curve(
            "accuracy under label noise",
            list(data.train_pairs),
            accuracies,
            x_label="label noise",
            y_label="share of clean test pairs in the right order",
        )


def measure_scales(measurement: Measurement, psi: Any, problem: Problem) -> None:
    """Accuracy when the same images are scaled in other ways, under the noise that the claims are about."""
    for scale in SCALES:
        data = rescaled(problem.digits, scale)
        for rate in (0.15, 0.2):
            model = ranker(psi, problem.seed).fit(data.train, data.train_pairs[rate])
            measurement.add("accuracy", model.score(data.test, data.test_pairs), case=f"{_noise(rate)}, {scale}")


def measure_diabetes(measurement: Measurement, psi: Any, problem: Problem) -> None:
    """The same for patients, where the choices are Thurstone's."""
    from assay.supervised import certify_preference_fit

    data = problem.diabetes
    model = ranker(psi, problem.seed, hidden=()).fit(data.train, data.train_pairs[0.0])
    measurement.add("accuracy", model.score(data.test, data.test_pairs), case="diabetes")
    fit = certify_preference_fit(model, data.observed(), data.test)
    measurement.add("calibration_error", fit.calibration_error, case="diabetes, implied choice model")


def measure_disentanglement(measurement: Measurement, psi: Any, problem: Problem) -> None:
    """Largest difference of parameters between two declared choice models."""
    data = problem.digits
    rate = max(data.train_pairs)
    models = [
        ranker(psi, problem.seed, choice=choice, max_iter=30).fit(data.train, data.train_pairs[rate])
        for choice in ("btl", "thurstone")
    ]
    difference = max(
        np.abs(one - other).max()
        for name in ("coefs_", "intercepts_")
        for one, other in zip(*(getattr(model, name) for model in models), strict=True)
    )
    measurement.add("parameter_difference", difference)


def measure_trl(measurement: Measurement, problem: Problem, rng: np.random.Generator) -> None:
    """Difference to the losses of TRL on random log-probabilities, and the scorer trained with TRL's own code."""
    import torch

    from assay.studies.supervised._preference_trl import TrlLoss, trl_loss
    from assay.supervised import PreferenceLoss

    beta, n = 0.1, 500
    logps = tuple(torch.tensor(-60.0 * rng.random(n)) for _ in range(4))
    lengths = torch.tensor(rng.integers(1, 30, 2 * n))
    for theirs, ours in TRL_LOSSES.items():
        options = {}
        if theirs == "ipo":
            options = {"chosen_lengths": lengths[:n], "rejected_lengths": lengths[n:]}
        loss = PreferenceLoss(ours, beta=beta, length_power=float(theirs == "ipo"))(*logps, **options).loss
        # TRL's squared loss is about margins that are not multiplied by beta.
        scale = beta**2 if theirs == "ipo" else 1.0
        expected = trl_loss(theirs, logps, beta, 0.1, lengths) * scale
        measurement.add("loss_difference", abs(loss - expected) / max(1.0, abs(expected)), case=theirs)
    measure_digits(measurement, TrlLoss("sigmoid"), problem)


def time_loss(measurement: Measurement) -> None:
    """Forward and backward of a million pairs, against the loss written by hand."""
    import torch
    import torch.nn.functional as F

    from assay.supervised import PreferenceLoss

    generator = torch.Generator().manual_seed(0)
    chosen, rejected, reference_chosen, reference_rejected = (
        -10.0 * torch.rand(1_000_000, generator=generator) for _ in range(4)
    )
    chosen.requires_grad_(), rejected.requires_grad_()
    loss = PreferenceLoss()

    def ours() -> None:
        chosen.grad = rejected.grad = None
        loss(chosen, rejected, reference_chosen, reference_rejected).loss.backward()

    def by_hand() -> None:
        chosen.grad = rejected.grad = None
        margins = 0.1 * ((chosen - reference_chosen) - (rejected - reference_rejected))
        (-F.logsigmoid(margins)).mean().backward()

    ratio = interleave({"ours": ours, "by hand": by_hand}, repeats=7, budget=0.7).ratio("ours", "by hand")
    measurement.add("loss_time_ratio", ratio.median)
    measurement.add("loss_time_ratio_lower", ratio.lower)
    measurement.add("loss_time_ratio_upper", ratio.upper)


def measure_memory(measurement: Measurement) -> None:
    """Most memory that forward and backward hold at a time beyond their input, in vectors of its length."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from assay.supervised import PreferenceLoss

    n = 100_000
    logps = [torch.full((n,), -float(value)) for value in (5, 7, 6, 6)]
    logps[0].requires_grad_(), logps[1].requires_grad_()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        PreferenceLoss()(*logps).loss.backward()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    measurement.add("peak_vectors", held.max() / (n * logps[0].element_size()))


def time_certificate(measurement: Measurement, psi: Any) -> None:
    """Median seconds of a certificate."""
    from assay.supervised import certify_preference_loss

    timings = interleave({"certificate": lambda: certify_preference_loss(psi, "thurstone")}, repeats=3, budget=0.5)
    measurement.add("certificate_seconds", timings.median("certificate"))
