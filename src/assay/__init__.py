"""assay: optimization and learning methods that certify their answers.

Each family is a sub-package, imported when it is first used, so that ``import assay`` costs nothing:

========================  ====================================================
``assay.optim``           you have a torch training loop
``assay.bilevel``         you have a problem inside a problem
``assay.games``           you have a game or a saddle point
``assay.supervised``      you have labels, preferences or responses
``assay.transport``       you have distributions
``assay.graphs``          you have a graph
``assay.data``            real data that needs no network, and file readers
``assay.testing``         contracts to check an implementation of your own against
``assay.lab``             what a study is, and how it is run, judged and shown
``assay.studies``         one study per method
========================  ====================================================
"""

import importlib
from typing import Any

from assay.certificate import Assumption, Certificate, CertificateError

__version__ = "0.1.0"

_SUBPACKAGES = ("bilevel", "data", "games", "graphs", "lab", "optim", "studies", "supervised", "testing", "transport")

_HOME = {"ConvergenceWarning": "validation", "MissingExtraError": "extras", "Result": "result"}

__all__ = ["Assumption", "Certificate", "CertificateError", "__version__", *_HOME, *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"assay.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"assay.{_HOME[name]}"), name)
    raise AttributeError(f"module 'assay' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
