"""The pieces of the study of SPECTRA at a tiny size, and the language model that it trains."""

import math

import numpy as np
import pytest
import torch

from assay.data.text import encode_text
from assay.lab import Measurement
from assay.studies.optim import _spectra_measures as measures
from assay.studies.optim._language_model import ByteTransformer, train_language_model, warmup_cosine
from assay.studies.optim.spectra import SpectraStudy

TINY = {
    "model": {"width": 8, "n_layers": 1, "n_heads": 2, "context": 8},
    "loop": {"steps": 10, "warmup": 2, "batch": 2},
    "settings": (2,),
    "step_widths": (8, 16),
    "clip_widths": (8, 16),
}
TRAINED = SpectraStudy.sizes["full"]["trained"]


def scalars(measurement):
    return {(s.metric, s.case): s.value for s in measurement.scalars}


@pytest.mark.parametrize("contender", TRAINED)
def test_every_contender_trains(contender):
    pytest.importorskip("pytorch_optimizer")
    measurement = Measurement()
    measures.train_all_settings(measurement, contender, 0, TINY)
    found = scalars(measurement)
    assert 0 < found["validation_loss", "best of the grid"] < math.log(256)
    assert all(c.holds for _, c in measurement.certificates)
    assert bool(measurement.certificates) == contender.startswith("SPECTRA-")
    assert {curve.name for curve in measurement.curves} >= {"validation loss", "tuning"}


def test_training_is_deterministic_and_shared():
    results = []
    for _ in range(2):
        measurement = Measurement()
        measures.train_all_settings(measurement, "SPECTRA-AdamW", 3, TINY)
        results.append({k: v for k, v in scalars(measurement).items() if k[0] != "training_seconds"})
    assert results[0] == results[1]


def test_grids_are_of_one_size():
    assert {len(grid) for grid in (measures.CLIP_GRID, measures.GRID, *measures.GRIDS.values())} == {4}


def test_the_smaller_measurements():
    measurement, rng = Measurement(), np.random.default_rng(0)
    measures.accuracy(measurement, rng, adaptive=True)
    measures.frank_wolfe(measurement, rng.normal(size=(6, 3)), rng.normal(size=(6, 2)), "soft", 300)
    measures.spikes(measurement, 0, "hard", 5)
    measures.time_steps(measurement, 0, TINY)
    measures.time_clips(measurement, rng, TINY["clip_widths"])
    found = scalars(measurement)
    assert found["clip_error", "auto, ratio 1000"] < 2e-5
    assert found["gap_minus_error", ""] >= -1e-9
    assert found["error_at_100", ""] < 1e-2
    assert found["signal_kept", "rank 1, spike 20"] > 0.9
    assert found["training_step_over_adamw", "built in"] > 0
    assert found["clip_over_svd", "128x512"] > 0


def test_a_gap_that_is_too_small_is_noticed(monkeypatch):
    measurement, rng = Measurement(), np.random.default_rng(0)
    gap = measures.composite_fw_gap
    monkeypatch.setattr(measures, "composite_fw_gap", lambda *a, **k: 0.3 * gap(*a, **k))
    measures.frank_wolfe(measurement, rng.normal(size=(6, 3)), rng.normal(size=(6, 2)), "soft", 300)
    assert scalars(measurement)["gap_minus_error", ""] < -1e-3


def test_claims_name_what_is_measured():
    contenders = {c.name for c in SpectraStudy.contenders}
    for claim in SpectraStudy.claims:
        assert claim.contender in contenders
        assert claim.versus is None or claim.versus in contenders
    assert set(TRAINED) <= contenders


class TestLanguageModel:
    text = encode_text("the quick brown fox jumps over the lazy dog. " * 40)
    shape = {"width": 16, "n_layers": 2, "n_heads": 2, "context": 12}

    def model(self):
        return ByteTransformer(len(self.text.vocabulary), **self.shape, generator=torch.Generator().manual_seed(0))

    def test_it_does_not_look_ahead(self):
        model, tokens = self.model(), torch.from_numpy(self.text.train[:12])[None]
        changed = tokens.clone()
        changed[0, 7] = (changed[0, 7] + 1) % len(self.text.vocabulary)
        first, second = model(tokens), model(changed)
        torch.testing.assert_close(first[:, :7], second[:, :7])
        assert not torch.allclose(first[:, 7:], second[:, 7:])

    def test_at_the_start_every_symbol_is_about_as_likely(self):
        tokens = torch.from_numpy(self.text.train[:13])[None]
        assert self.model().loss(tokens).item() == pytest.approx(math.log(len(self.text.vocabulary)), abs=0.1)

    def test_it_learns(self):
        run = train_language_model(
            self.text,
            lambda model: [torch.optim.AdamW(model.matrices_and_others(0.1), lr=1e-2)],
            seed=0,
            steps=40,
            warmup=4,
            batch=8,
            max_norm=1.0,
            check_every=20,
            **self.shape,
        )
        assert [step for step, _ in run.checks] == [20, 40]
        assert run.checks[-1][1] == run.validation_loss < run.train_loss[0] - 0.5

    def test_the_schedule(self):
        factors = [warmup_cosine(k, steps=10, warmup=2) for k in range(11)]
        assert factors[:3] == [0.5, 1.0, 1.0]
        assert factors[6] == pytest.approx(0.5)
        assert factors[10] == pytest.approx(0)
