"""What a study is, and how one is run, stored, judged and shown."""

from assay.lab.study import Claim, Contender, Curve, Measurement, Paper, Scalar, Study
from assay.lab.timing import Ratio, Timings, interleave

__all__ = [
    "Claim",
    "Contender",
    "Curve",
    "Measurement",
    "Paper",
    "Ratio",
    "Scalar",
    "Study",
    "Timings",
    "interleave",
]
