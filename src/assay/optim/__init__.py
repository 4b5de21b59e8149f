"""You have a torch training loop: optimizers that keep a promise at every step, and what checks it."""

from assay.optim.spectra import Spectra, SpectraAdamW, SpectraSignum
from assay.optim.spectra_analysis import SpikeReport, composite_fw_gap, spike_report
from assay.optim.spectra_certificate import SpectraCertificate, SpectraReport
from assay.optim.spectral import (
    clip_gradients_spectral_,
    hard_spectral_clip,
    soft_spectral_clip,
    spectral_normalize,
)

__all__ = [
    "Spectra",
    "SpectraAdamW",
    "SpectraCertificate",
    "SpectraReport",
    "SpectraSignum",
    "SpikeReport",
    "clip_gradients_spectral_",
    "composite_fw_gap",
    "hard_spectral_clip",
    "soft_spectral_clip",
    "spectral_normalize",
    "spike_report",
]
