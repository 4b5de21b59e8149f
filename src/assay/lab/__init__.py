"""What a study is, and how one is run, stored, judged and shown.

The parts that a study needs to be declared are imported at once; those that run and show it (pandas, pyarrow,
plotly) when they are used.
"""

import importlib
from typing import Any

from assay.lab.measurement import Curve, Measurement, Scalar
from assay.lab.study import Claim, Contender, Paper, Study
from assay.lab.timing import Ratio, Timings, interleave

_LAZY = {
    "Cell": "cell",
    "CellRecord": "cell",
    "Figure": "figures",
    "Run": "runner",
    "RunInterruptedError": "runner",
    "Store": "store",
    "StoreError": "store",
    "Table": "table",
    "Verdict": "verdict",
    "bar_figure": "figures",
    "contender_styles": "figures",
    "curve_figures": "figures",
    "judge": "verdict",
    "plan": "runner",
    "run": "runner",
    "write_report": "report",
}

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
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"assay.lab.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'assay.lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
