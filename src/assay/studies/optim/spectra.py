"""Study of SPECTRA: a byte-level transformer on real text, spikes, Frank-Wolfe, accuracy of the clip, step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study

__all__ = ["SpectraStudy"]

SPECTRA_ADAMW = "SPECTRA-AdamW"
HARD = "SPECTRA-AdamW, hard clip"
TEN_STEPS = "SPECTRA-AdamW, 10 Newton-Schulz steps"
PRE_CLIP = "spectral pre-clip of the gradient only"
SVD = "torch.linalg.svd"


@dataclass(frozen=True)
class Problem:
    """The seed and sizes of the language model, and the two synthetic problems."""

    seed: int
    parameters: Mapping[str, Any]
    design: np.ndarray
    response: np.ndarray
    spike_seed: int


class SpectraStudy(Study):
    """SPECTRA against the optimizers that it wraps, and Muon."""

    title = "SPECTRA: optimizers with a cap on the spectral norm of every update"
    summary = (
        "For people who train transformers with AdamW, Signum, AdEMAMix or MARS and see loss spikes or growing "
        "weights. A wrapper that caps the spectral norm of every update, so that larger learning rates stay stable."
    )
    promise = (
        "Every applied update has a spectral norm of at most scale * lr * clip, and every weight matrix stays below an "
        "explicit bound."
    )
    interface = "torch optimizer"
    method = "assay.optim.SpectraAdamW"
    paper = Paper(
        title="Enhancing LLM Training via Spectral Clipping",
        authors="Xiaowen Jiang, Andrei Semenov, Sebastian U. Stich",
        arxiv="2603.14315",
        code="https://github.com/mlolab/llm-spectral-clipping",
    )
    data = (
        "The help topics of Python, 466 thousand bytes of English and code, the last tenth held out, for a small "
        "transformer; least squares on a ball; gradients with artificial spikes."
    )
    contenders = (
        Contender(SPECTRA_ADAMW, "method", "soft clip, built in; also the adaptive kernels on matrices with a spike"),
        Contender("SPECTRA-Signum", "method", "soft clip, built in, momentum 0.95"),
        Contender("SPECTRA-AdEMAMix", "method", "Spectra around pytorch_optimizer.AdEMAMix"),
        Contender("SPECTRA-MARS", "method", "Spectra around pytorch_optimizer.MARS"),
        Contender(HARD, "ablation", "singular values min(s, c)"),
        Contender(TEN_STEPS, "ablation", "a fixed number of iterations, in float32"),
        Contender(PRE_CLIP, "ablation", "AdamW; gradients clipped at 0.1 before the clip of the global norm"),
        Contender("AdamW", "incumbent", "torch.optim.AdamW, betas 0.8 and 0.999; global norm clip only", "torch"),
        Contender("Muon", "incumbent", "torch.optim.Muon for the blocks, AdamW at 0.01 for the rest", "torch"),
        Contender("Signum", "incumbent", "pytorch_optimizer.SignSGD, momentum 0.95", "pytorch-optimizer"),
        Contender("AdEMAMix", "incumbent", "pytorch_optimizer.AdEMAMix, alpha 5", "pytorch-optimizer"),
        Contender("MARS", "incumbent", "pytorch_optimizer.MARS, gamma 0.025", "pytorch-optimizer"),
        Contender(SVD, "incumbent", "the same clip by a singular value decomposition in float32", "torch"),
    )
    claims = (
        *(
            Claim(
                f"C1 {base}" + (", quick" if size == "quick" else ""),
                f"at equal tuning the clip lowers the validation loss of {base} by {-number:g} nats",
                "validation_loss",
                f"SPECTRA-{base}",
                "<=",
                number,
                "prototype of the method; the paper: every base optimizer improves",
                versus=base,
                compare="difference",
                case="best of the grid",
                sizes=(size,),
            )
            for base, size, number in (
                ("AdamW", "full", -0.15),
                ("AdamW", "quick", -0.05),
                ("Signum", "full", -0.15),
                ("Signum", "quick", -0.05),
                ("AdEMAMix", "full", -0.10),
                ("MARS", "full", -0.10),
            )
        ),
        Claim(
            "C1 Muon",
            "at equal tuning SPECTRA-AdamW is not worse than Muon",
            "validation_loss",
            SPECTRA_ADAMW,
            "<=",
            0.0,
            "the paper: its best variants are the state of the art",
            versus="Muon",
            compare="difference",
            case="best of the grid",
            sizes=("full",),
        ),
        *(
            Claim(
                identifier,
                f"at a learning rate of 0.03 the {words} is at most {number:g} times that of AdamW",
                metric,
                SPECTRA_ADAMW,
                "<=",
                number,
                "prototype of the method",
                versus="AdamW",
                case="lr=0.03",
                sizes=("full",),
            )
            for identifier, words, metric, number in (
                ("C2a", "Frobenius norm of all matrices", "frobenius", 0.7),
                ("C2b", "largest spectral norm of a matrix", "spectral_norm", 0.5),
            )
        ),
        *(
            Claim(
                f"C3 {base}",
                "every observed update is below its cap and every weight below its bound",
                "certificates_failed",
                f"SPECTRA-{base}",
                "<=",
                0,
                "theorem of the paper",
                reduce="max",
                sizes=sizes,
            )
            for base, sizes in (
                ("AdamW", ("quick", "full")),
                ("Signum", ("quick", "full")),
                ("AdEMAMix", ("full",)),
                ("MARS", ("full",)),
            )
        ),
        Claim(
            "C4a",
            "the clip on a CPU is within 2e-5 of the SVD for singular values up to 1000 times the threshold",
            "clip_error",
            SPECTRA_ADAMW,
            "<=",
            2e-5,
            "derived: eigendecomposition of the Gram matrix in float64",
            reduce="max",
            case="auto*",
        ),
        Claim(
            "C4b",
            "the error of Newton-Schulz in float32 is within 5e-6 + 3e-8 (s_max/c)^2",
            "clip_error_over_bound",
            SPECTRA_ADAMW,
            "<=",
            1.0,
            "prototype of the method",
            reduce="max",
        ),
        Claim(
            "C4c",
            "ten Newton-Schulz steps leave small singular values 30 % off when the largest is 100 c",
            "singular_value_error",
            TEN_STEPS,
            ">=",
            0.3,
            "derived: an iteration multiplies small eigenvalues by 9/4",
            reduce="min",
            case="ratio 100",
        ),
        Claim(
            "C4d",
            "and 80 % off when it is 1000 c",
            "singular_value_error",
            TEN_STEPS,
            ">=",
            0.8,
            "derived: an iteration multiplies small eigenvalues by 9/4",
            reduce="min",
            case="ratio 1000",
        ),
        *(
            Claim(
                f"C5{letter} {kind}",
                words,
                metric,
                contender,
                relation,
                number,
                source,
                reduce="max" if relation == "<=" else "min",
            )
            for kind, contender in (("soft", SPECTRA_ADAMW), ("hard", HARD))
            for letter, words, metric, relation, number, source in (
                ("a", "the Frank-Wolfe gap is never below the error", "gap_minus_error", ">=", -1e-9, "theorem"),
                (
                    "b",
                    "the error is within the rate bound",
                    "error_over_rate",
                    "<=",
                    1.0,
                    "derived: rate with constants",
                ),
                ("c", "the error after 100 steps is at most 1e-3", "error_at_100", "<=", 1e-3, "prototype"),
            )
        ),
        Claim(
            "C6a",
            "the hard spectral clip keeps 0.9 of a signal under spikes of rank 1 and 2",
            "signal_kept",
            HARD,
            ">=",
            0.9,
            "prototype; the paper's lemma promises a third",
            reduce="min",
        ),
        Claim("C6b", "the soft one keeps 0.7", "signal_kept", SPECTRA_ADAMW, ">=", 0.7, "prototype", reduce="min"),
        Claim(
            "C6c",
            "the second moment of the hard clip is within the lemma's bound",
            "second_moment_over_bound",
            HARD,
            "<=",
            1.0,
            "lemma of the paper",
            reduce="max",
        ),
        Claim(
            "C6d",
            "a clip of the global norm at the signal's keeps at most 0.25 under a spike of 20",
            "signal_kept",
            "AdamW",
            "<=",
            0.25,
            "derived: it scales the signal down with the spike",
            reduce="max",
            case="*spike 20",
        ),
        Claim(
            "C6e",
            "and at most 0.06 under a spike of 100",
            "signal_kept",
            "AdamW",
            "<=",
            0.06,
            "derived: it scales the signal down with the spike",
            reduce="max",
            case="*spike 100",
        ),
        Claim(
            "P1",
            "a training step of the language model takes at most 1.35 times as long as with AdamW",
            "training_step_over_adamw",
            "AdamW",
            "<=",
            1.35,
            "prototype of the method",
            case="built in",
            timed=True,
            sizes=("full",),
        ),
        Claim(
            "P2",
            "the soft clip of a 128 x 512 matrix takes at most a quarter of the time of an SVD route",
            "clip_over_svd",
            SVD,
            "<=",
            0.25,
            "prototype of the method",
            timed=True,
            case="128x512",
        ),
        *(
            Claim(
                identifier,
                f"the time of the clip of n x n grows {words} n^{number:g}",
                "time_exponent",
                SVD,
                relation,
                number,
                "derived: O(n^3) with a smaller constant for large n",
                timed=True,
                sizes=("full",),
            )
            for identifier, words, relation, number in (
                ("P3a", "at least as", ">=", 2.3),
                ("P3b", "at most as", "<=", 3.2),
            )
        ),
        Claim(
            "P4",
            "the built-in optimizer keeps no more tensors than AdamW",
            "state_over_weights",
            SPECTRA_ADAMW,
            "<=",
            0.0,
            "derived: the update is at hand",
            versus="AdamW",
            compare="difference",
            reduce="max",
            sizes=("full",),
        ),
    )
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {
            "model": {"width": 32, "n_layers": 1, "n_heads": 4, "context": 32},
            "loop": {"steps": 150, "warmup": 15, "batch": 16},
            "trained": ("AdamW", SPECTRA_ADAMW, "Signum", "SPECTRA-Signum", "Muon"),
            "settings": (1, 2),
            "frank_wolfe_steps": 2000,
            "spike_samples": 300,
            "step_widths": (64, 128, 256),
            "clip_widths": (64, 128, 256),
        },
        "full": {
            "model": {"width": 64, "n_layers": 2, "n_heads": 4, "context": 64},
            "loop": {"steps": 250, "warmup": 20, "batch": 16},
            "trained": (
                *("AdamW", SPECTRA_ADAMW, "Signum", "SPECTRA-Signum", "AdEMAMix", "SPECTRA-AdEMAMix"),
                *("MARS", "SPECTRA-MARS", "Muon", HARD, TEN_STEPS, PRE_CLIP),
            ),
            "settings": (0, 1, 2, 3),
            "frank_wolfe_steps": 20000,
            "spike_samples": 300,
            "step_widths": (64, 128, 256, 512, 1024, 2048),
            "clip_widths": (64, 128, 256, 512, 1024),
        },
    }
    seeds: ClassVar[Mapping[str, int]] = {"quick": 1, "full": 2}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """The same weights, batches, least squares and spikes for every contender."""
        return Problem(
            seed=int(rng.integers(2**31)),
            parameters=self.sizes[size],
            design=rng.normal(size=(30, 12)),
            response=rng.normal(size=(30, 8)),
            spike_seed=int(rng.integers(2**31)),
        )

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Train the language model with every setting of a contender, and what else is about it."""
        from assay.studies.optim import _spectra_measures as measures

        measurement, parameters = Measurement(), problem.parameters
        if contender in parameters["trained"]:
            measures.train_all_settings(measurement, contender, problem.seed, parameters)
        if contender == SPECTRA_ADAMW:
            measures.accuracy(measurement, rng, adaptive=True)
        if contender == TEN_STEPS:
            measures.accuracy(measurement, rng, adaptive=False)
        if contender in (SPECTRA_ADAMW, HARD):
            kind = "soft" if contender == SPECTRA_ADAMW else "hard"
            n_steps = parameters["frank_wolfe_steps"]
            measures.frank_wolfe(measurement, problem.design, problem.response, kind, n_steps)
        if contender in (SPECTRA_ADAMW, HARD, "AdamW"):
            how = {SPECTRA_ADAMW: "soft", HARD: "hard", "AdamW": "global"}[contender]
            measures.spikes(measurement, problem.spike_seed, how, parameters["spike_samples"])
        if contender == "AdamW":
            measures.time_steps(measurement, problem.seed, parameters)
        if contender == SVD:
            measures.time_clips(measurement, rng, parameters["clip_widths"])
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """Train a small network at a large learning rate and certify its updates and weights."""
        import torch

        from assay.optim import SpectraAdamW, SpectraCertificate

        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
        optimizer = SpectraAdamW(model.parameters(), lr=3e-2, clip=1.0)
        tracker = SpectraCertificate(optimizer, every=10)
        for x in torch.randn(50, 64, 8, generator=torch.Generator().manual_seed(0)):
            optimizer.zero_grad()
            (model(x) - x.sort().values).square().mean().backward()
            optimizer.step()
        return tracker.result().certificates
