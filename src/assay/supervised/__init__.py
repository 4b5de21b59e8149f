"""You have labels, preferences or responses: losses, estimators, and what their training losses promise."""

from assay.supervised.best_path import viterbi
from assay.supervised.linear_core import (
    LinearCoreTail,
    linear_core,
    linear_core_conjugate,
    linear_core_slope,
)
from assay.supervised.linear_core_certificate import (
    ConsistencyReport,
    calibration_gap,
    consistency_certificate,
    consistency_constant_certificate,
)
from assay.supervised.linear_core_classifier import LinearCoreClassifier
from assay.supervised.linear_core_loss import LinearCoreLoss
from assay.supervised.sequence_tagger import SequenceTagger
from assay.supervised.structured_consistency import structured_certificates, structured_consistency_certificate
from assay.supervised.structured_linear_core import StructuredLinearCore

__all__ = [
    "ConsistencyReport",
    "LinearCoreClassifier",
    "LinearCoreLoss",
    "LinearCoreTail",
    "SequenceTagger",
    "StructuredLinearCore",
    "calibration_gap",
    "consistency_certificate",
    "consistency_constant_certificate",
    "linear_core",
    "linear_core_conjugate",
    "linear_core_slope",
    "structured_certificates",
    "structured_consistency_certificate",
    "viterbi",
]
