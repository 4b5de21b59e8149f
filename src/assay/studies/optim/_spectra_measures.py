"""What the study of SPECTRA measures: training runs, accuracy of the clip, Frank-Wolfe, spikes, step times."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from assay.data.text import load_python_topics
from assay.extras import import_extra
from assay.lab import Measurement, interleave
from assay.optim.spectra import Spectra, SpectraAdamW, SpectraSignum
from assay.optim.spectra_analysis import composite_fw_gap, spike_report
from assay.optim.spectra_certificate import SpectraCertificate
from assay.optim.spectral import (
    clip_gradients_spectral_,
    hard_spectral_clip,
    soft_spectral_clip,
)
from assay.studies.optim._language_model import ByteTransformer, train_language_model

DECAY, MAX_NORM, PRE_CLIP, BETAS = 0.1, 0.5, 0.1, (0.8, 0.999)


@dataclass(frozen=True)
class Setting:
    """A point of a tuning grid."""

    lr: float
    clip: float | None = None

    def __str__(self) -> str:
        return f"lr={self.lr:g}" if self.clip in (None, 1.0) else f"lr={self.lr:g}, c={self.clip:g}"


# Four settings for everyone, around what is best for it.
CLIP_GRID = (Setting(1e-2, 5.0), Setting(3e-2, 5.0), Setting(3e-2, 1.0), Setting(1e-1, 1.0))
GRIDS = {
    "Signum": tuple(map(Setting, (3e-4, 1e-3, 3e-3, 1e-2))),
    "Muon": tuple(map(Setting, (1e-2, 2e-2, 5e-2, 1e-1))),
}
GRID = tuple(map(Setting, (1e-3, 3e-3, 1e-2, 3e-2)))


def make_optimizers(contender: str, setting: Setting, model: ByteTransformer, loop: Mapping[str, int]) -> list[Any]:
    """The optimizers of a contender for a model; they all step."""
    groups, lr = model.matrices_and_others(DECAY), setting.lr
    spectral = {"clip": setting.clip, "warmup_steps": loop["warmup"]}
    match contender:
        case "AdamW" | "spectral pre-clip of the gradient only":
            return [torch.optim.AdamW(groups, lr=lr, betas=BETAS)]
        case "Signum":
            return [_peer().SignSGD(groups, lr=lr, momentum=0.95, weight_decouple=True)]
        case "AdEMAMix":
            betas, horizon = (0.9, 0.999, 0.9999), loop["steps"]
            return [
                _peer().AdEMAMix(groups, lr=lr, betas=betas, alpha=5.0, t_alpha_beta3=horizon, weight_decouple=True)
            ]
        case "MARS":
            # optimize_1d: one rule and one learning rate for all parameters, as for the other contenders
            return [_peer().MARS(groups, lr=lr, betas=(0.95, 0.99), gamma=0.025, optimize_1d=True)]
        case "Muon":
            blocks = [p for p in model.blocks.parameters() if p.ndim == 2]
            chosen = set(map(id, blocks))
            rest = [{**group, "params": [p for p in group["params"] if id(p) not in chosen]} for group in groups]
            muon = torch.optim.Muon(blocks, lr=lr, weight_decay=DECAY)
            return [muon, torch.optim.AdamW(rest, lr=1e-2, betas=BETAS)]
        case "SPECTRA-AdamW":
            return [SpectraAdamW(groups, lr=lr, betas=BETAS, **spectral)]
        case "SPECTRA-AdamW, hard clip":
            return [SpectraAdamW(groups, lr=lr, betas=BETAS, method="hard", **spectral)]
        case "SPECTRA-AdamW, 10 Newton-Schulz steps":
            return [SpectraAdamW(groups, lr=lr, betas=BETAS, method="newton_schulz", ns_steps=10, **spectral)]
        case "SPECTRA-Signum":
            return [SpectraSignum(groups, lr=lr, momentum=0.95, nesterov=False, **spectral)]
        case "SPECTRA-AdEMAMix" | "SPECTRA-MARS":
            (base,) = make_optimizers(contender.removeprefix("SPECTRA-"), setting, model, loop)
            return [Spectra(base, **spectral)]
    raise ValueError(f"contender must be one that trains, got {contender!r}")


def _peer() -> ModuleType:
    return import_extra("pytorch_optimizer", extra="peers")


def train_all_settings(measurement: Measurement, contender: str, seed: int, parameters: Mapping[str, Any]) -> None:
    """Train once per setting; the best one gives the loss that counts and the curve that is drawn."""
    grid = CLIP_GRID if contender.startswith("SPECTRA-") else GRIDS.get(contender, GRID)
    runs, seconds = {}, 0.0
    for setting in (grid[i] for i in parameters["settings"]):
        runs[setting], spent = _train(measurement, contender, setting, seed, parameters)
        seconds += spent
    best = min(runs, key=lambda setting: runs[setting][-1][1])
    measurement.add("validation_loss", runs[best][-1][1], case="best of the grid")
    measurement.add("training_seconds", seconds / len(runs))
    steps, losses = zip(*runs[best], strict=True)
    measurement.add_curve(
        "validation loss", steps, losses, case=str(best), x_label="step", y_label="validation loss (nats per byte)"
    )
    for clip in sorted({setting.clip for setting in runs}, key=str):
        points = sorted((setting.lr, checks[-1][1]) for setting, checks in runs.items() if setting.clip == clip)
        measurement.add_curve(
            "tuning",
            [lr for lr, _ in points],
            [loss for _, loss in points],
            case="" if clip is None else f"c={clip:g}",
            x_label="learning rate",
            y_label="validation loss after training (nats per byte)",
            x_log=True,
        )


def _train(
    measurement: Measurement, contender: str, setting: Setting, seed: int, parameters: Mapping[str, Any]
) -> tuple[list[tuple[int, float]], float]:
    """One run: its validation losses by step, and its seconds."""
    loop, case = parameters["loop"], str(setting)
    made: list[Any] = []
    trackers: list[SpectraCertificate] = []

    def prepare(model: ByteTransformer) -> list[Any]:
        made.extend(make_optimizers(contender, setting, model, loop))
        if contender.startswith("SPECTRA-"):
            trackers.append(SpectraCertificate(made[0], every=25))
        return made

    def clip_gradients(model: ByteTransformer) -> None:
        if contender == "spectral pre-clip of the gradient only":
            clip_gradients_spectral_(model.parameters(), PRE_CLIP)

    run = train_language_model(
        load_python_topics(),
        prepare,
        seed=seed,
        max_norm=MAX_NORM,
        before_clip=clip_gradients,
        n_validation=128,
        check_every=loop["steps"] // 10,
        **loop,
        **parameters["model"],
    )
    weights = [p.detach() for p in run.model.parameters()]
    matrices = [w for w in weights if w.ndim == 2]
    measurement.add("validation_loss", run.validation_loss, case=case)
    measurement.add("frobenius", math.sqrt(sum(float(w.square().sum()) for w in matrices)), case=case)
    measurement.add("spectral_norm", max(float(torch.linalg.matrix_norm(w, 2)) for w in matrices), case=case)
    kept = sum(_entries(optimizer.state) for optimizer in made)
    measurement.add("state_over_weights", kept / sum(w.numel() for w in weights), case=case)
    for tracker in trackers:
        report = tracker.result()
        measurement.certify(report.certificates, case=case)
        measurement.add("clipped_fraction", report.clipped_fraction, case=case)
        measurement.add_curve(
            "weights and their bound",
            report.history["step"],
            (report.norms / report.bounds).max(axis=1),
            case=case,
            x_label="step",
            y_label="largest spectral norm of a weight over its bound",
            y_log=True,
        )
    if contender == "SPECTRA-AdamW":
        _network_gap(measurement, run.model, setting, seed, case)
    return run.checks, run.seconds


def _entries(state: Mapping[Any, Any]) -> int:
    """Numbers that an optimizer keeps in tensors of more than one entry."""
    return sum(
        tensor.numel()
        for of_parameter in state.values()
        for tensor in of_parameter.values()
        if isinstance(tensor, Tensor) and tensor.ndim
    )


def _network_gap(measurement: Measurement, model: ByteTransformer, setting: Setting, seed: int, case: str) -> None:
    """The Frank-Wolfe gap of the blocks' matrices at the end, for the gradient of a large batch.

    It is zero at a stationary point, but it bounds no error: the loss is not convex.
    """
    tokens = torch.from_numpy(load_python_topics().train)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - model.context, (128,), generator=generator)
    model.zero_grad()
    model.loss(tokens[starts[:, None] + torch.arange(model.context + 1)]).backward()
    gap = 0.0
    for p in model.blocks.parameters():
        if p.ndim == 2:
            alpha = math.sqrt(max(1.0, p.shape[0] / p.shape[1]))
            gap += composite_fw_gap(p.detach(), p.grad, decay=DECAY, alpha=alpha, clip=setting.clip)
    measurement.add("frank_wolfe_gap_of_the_network", gap, case=case)


def accuracy(measurement: Measurement, rng: np.random.Generator, *, adaptive: bool) -> None:
    """Errors of the soft clip of a matrix with one large singular value, in float32, against a float64 SVD."""
    ratios, curves = (10, 100, 300, 1000), {}
    left = np.linalg.qr(rng.normal(size=(64, 64)))[0]
    right = np.linalg.qr(rng.normal(size=(256, 64)))[0]
    for ratio in ratios:
        values = np.concatenate([[ratio], np.linspace(2.0, 0.1, 63)])
        x = torch.tensor((left * values) @ right.T, dtype=torch.float32)
        left_exact, exact, right_exact = torch.linalg.svd(x.double(), full_matrices=False)
        clipped = exact / torch.sqrt(1 + exact**2)
        reference = (left_exact * clipped) @ right_exact
        kernels: dict[str, Callable[[Tensor], Tensor]] = {
            "ten": lambda x: soft_spectral_clip(x, 1.0, method="newton_schulz", ns_steps=10)
        }
        if adaptive:
            kernels = {
                "auto": lambda x: soft_spectral_clip(x, 1.0),
                "newton_schulz": lambda x: soft_spectral_clip(x, 1.0, method="newton_schulz"),
            }
        for name, kernel in kernels.items():
            result = kernel(x).double()
            error = float(torch.linalg.matrix_norm(result - reference, 2) / clipped[0])
            measured = (left_exact.mT @ result @ right_exact.mT).diagonal()
            case = f"ratio {ratio}" if name == "ten" else f"{name}, ratio {ratio}"
            measurement.add("clip_error", error, case=case)
            measurement.add("singular_value_error", float(((measured - clipped).abs() / clipped).max()), case=case)
            if name == "newton_schulz":
                measurement.add("clip_error_over_bound", error / (5e-6 + 3e-8 * ratio**2), case=case)
            curves.setdefault(name, []).append(error)
    for name, errors in curves.items():
        measurement.add_curve(
            "accuracy of the clip",
            ratios,
            errors,
            case={"auto": "eigendecomposition", "newton_schulz": "Newton-Schulz"}.get(name, ""),
            x_label="largest singular value over the threshold",
            y_label="relative error",
            x_log=True,
            y_log=True,
        )


def frank_wolfe(
    measurement: Measurement, design: np.ndarray, response: np.ndarray, kind: Literal["soft", "hard"], n_steps: int
) -> None:
    """Least squares on the ball of spectral norm 1 by exact gradients and steps 2 / (k + 2)."""
    decay, alpha, clip = 0.1, 1.0, 0.1
    a, b = torch.from_numpy(design), torch.from_numpy(response)
    n, rank = len(a), min(a.shape[1], b.shape[1])
    lipschitz = float(torch.linalg.matrix_norm(a, 2)) ** 2 / n
    clip_matrix = soft_spectral_clip if kind == "soft" else hard_spectral_clip

    def objective(x: Tensor) -> float:
        s = torch.linalg.svdvals(x)
        penalty = (1 - torch.sqrt((1 - s**2).clamp_min(0))).sum() if kind == "soft" else 0.5 * s.square().sum()
        return float(0.5 * (a @ x - b).square().sum() / n + decay / alpha * penalty)

    x = torch.zeros(a.shape[1], b.shape[1], dtype=torch.float64)
    late = set(np.geomspace(101, n_steps, 60).astype(int).tolist())
    steps, values, gaps = [], [], []
    for k in range(n_steps + 1):
        gradient = a.T @ (a @ x - b) / n
        if k <= 100 or k in late or k > n_steps - 20:
            steps.append(k)
            values.append(objective(x))
            gaps.append(composite_fw_gap(x, gradient, decay=decay, alpha=alpha, clip=clip, kind=kind))
        vertex = -alpha / decay * clip_matrix(gradient, clip)
        x = x + 2 / (k + 2) * (vertex - x)
    step, value, gap = np.array(steps), np.array(values), np.array(gaps)
    errors = value - float((value - gap).max())  # to the best lower bound
    bound = 2 * lipschitz * 4 * rank / (step + 2)
    # Against the best point that was found: against a bound that comes from the gaps themselves it could not fail.
    measurement.add("gap_minus_error", float((gap - (value - value.min())).min()))
    measurement.add("error_over_rate", float((errors / bound)[1:].max()))
    measurement.add("error_at_100", float(errors[step == 100][0]))
    measurement.add("minimum", float((value - gap).max()))
    for name, column in (("gap", gap), ("error", errors), ("rate bound", bound)):
        shown = (step > 0) & (column > 1e-13)
        measurement.add_curve(
            "Frank-Wolfe on a spectral ball",
            step[shown],
            column[shown],
            case=name,
            x_label="step",
            y_label="objective above its minimum",
            x_log=True,
            y_log=True,
        )


def spikes(measurement: Measurement, seed: int, how: Literal["soft", "hard", "global"], n_samples: int) -> None:
    """What a clip keeps of a gradient of spectral norm 1 under spikes of low rank."""
    for rank, size in ((1, 20), (1, 100), (2, 20)):
        rng = np.random.default_rng(seed)
        gradient = rng.normal(size=(64, 48))
        gradient /= np.linalg.norm(gradient, 2)
        left = np.linalg.qr(rng.normal(size=(n_samples, 64, rank)))[0]
        right = np.linalg.qr(rng.normal(size=(n_samples, 48, rank)))[0]
        samples = gradient + size * left @ right.swapaxes(1, 2)
        case = f"rank {rank}, spike {size}"
        if how == "global":
            report = spike_report(gradient, samples, 1.0, max_norm=float(np.linalg.norm(gradient)))
            measurement.add("signal_kept", report.global_signal_kept, case=case)
            continue
        report = spike_report(gradient, samples, 1.0, kind=how)
        measurement.add("signal_kept", report.signal_kept, case=case)
        measurement.add("second_moment_over_bound", report.second_moment / report.bound, case=case)
        if how == "hard":  # the lemma is about it
            measurement.certify(report.certificates, case=case)


def time_steps(measurement: Measurement, seed: int, parameters: Mapping[str, Any]) -> None:
    """Seconds of a whole training step, and of the optimizer's step for one square matrix, over those of AdamW."""
    text = load_python_topics()
    generator = torch.Generator().manual_seed(seed)
    shape, batch = parameters["model"], parameters["loop"]["batch"]
    model = ByteTransformer(len(text.vocabulary), **shape, generator=generator)
    starts = torch.randint(len(text.train) - shape["context"], (batch,), generator=generator)
    tokens = torch.from_numpy(text.train)[starts[:, None] + torch.arange(shape["context"] + 1)]

    def training_step(make: Callable[[Any], torch.optim.Optimizer]) -> Callable[[], None]:
        own = copy.deepcopy(model)
        optimizer = make(own.matrices_and_others(DECAY))

        def step() -> None:
            optimizer.zero_grad()
            own.loss(tokens).backward()
            nn.utils.clip_grad_norm_(own.parameters(), MAX_NORM)
            optimizer.step()

        return step

    timings = interleave(
        {
            "AdamW": training_step(lambda groups: torch.optim.AdamW(groups, lr=1e-2)),
            "built in": training_step(lambda groups: SpectraAdamW(groups, lr=1e-2, clip=5.0)),
            "wrapper": training_step(lambda groups: Spectra(torch.optim.AdamW(groups, lr=1e-2), clip=5.0)),
        },
        repeats=40,
        warmup=3,
        budget=10.0,
    )
    for name in ("built in", "wrapper"):
        _add_ratio(measurement, "training_step_over_adamw", timings.ratio(name, "AdamW"), name)

    widths, rows = parameters["step_widths"], {"built in": [], "wrapper": [], "Muon": []}
    for width in widths:
        gradient = torch.randn(width, width, generator=generator)

        def step_of(make: Callable[[Any], torch.optim.Optimizer], gradient: Tensor = gradient) -> Callable[[], None]:
            weight = nn.Parameter(torch.zeros_like(gradient))
            weight.grad = gradient
            return make([weight]).step

        timings = interleave(
            {
                "AdamW": step_of(lambda p: torch.optim.AdamW(p, lr=1e-2)),
                "built in": step_of(lambda p: SpectraAdamW(p, lr=1e-2)),
                "wrapper": step_of(lambda p: Spectra(torch.optim.AdamW(p, lr=1e-2))),
                "Muon": step_of(lambda p: torch.optim.Muon(p, lr=1e-2)),
            },
            repeats=20 if width <= 256 else 3,
            warmup=1 if width <= 1024 else 0,
            budget=5.0,
        )
        for name, column in rows.items():
            ratio = timings.ratio(name, "AdamW")
            _add_ratio(measurement, "optimizer_step_over_adamw", ratio, f"{name}, {width} x {width}")
            column.append(ratio.median)
    for name, column in rows.items():
        measurement.add_curve(
            "time of the optimizer's step",
            widths,
            column,
            case=name,
            x_label="width of a square matrix",
            y_label="seconds over those of AdamW",
            x_log=True,
            y_log=True,
        )


def time_clips(measurement: Measurement, rng: np.random.Generator, widths: tuple[int, ...]) -> None:
    """Seconds of the soft clip against an SVD, and how they grow."""

    def by_svd(x: Tensor) -> Tensor:
        left, values, right = torch.linalg.svd(x, full_matrices=False)
        return (left * (values / torch.sqrt(1 + (values / 5.0) ** 2))) @ right

    seconds = []
    for rows, columns in ((128, 512), *((n, n) for n in widths)):
        x = torch.tensor(rng.normal(size=(rows, columns)), dtype=torch.float32)
        timings = interleave(
            {"clip": lambda x=x: soft_spectral_clip(x, 5.0), "svd": lambda x=x: by_svd(x)},
            repeats=15,
            budget=4.0,
        )
        _add_ratio(measurement, "clip_over_svd", timings.ratio("clip", "svd"), f"{rows}x{columns}")
        if rows == columns:
            seconds.append(timings.median("clip"))
    measurement.add("time_exponent", float(np.polyfit(np.log(widths), np.log(seconds), 1)[0]))
    measurement.add_curve(
        "time of the soft clip",
        widths,
        seconds,
        x_label="width of a square matrix",
        y_label="seconds",
        x_log=True,
        y_log=True,
    )


def _add_ratio(measurement: Measurement, metric: str, ratio: Any, case: str) -> None:
    measurement.add(metric, ratio.median, case=case)
    measurement.add(f"{metric}_lower", ratio.lower, case=case)
    measurement.add(f"{metric}_upper", ratio.upper, case=case)
