"""Real data that needs no network, and readers of files of the user's own.

Readers never unpickle, check the size of a file before they work on it, and raise ``ValueError`` with the name of
the file for what they cannot read. Each is imported when it is first used.
"""

import importlib
from typing import Any

_HOME = {
    "EncodedText": "text",
    "RelationFile": "graph",
    "TSPInstance": "tsplib",
    "encode_text": "text",
    "load_lsat6": "lsat",
    "load_python_topics": "text",
    "load_tsplib": "tsplib",
    "read_game": "payoff",
    "read_graph": "graph",
    "read_heatmap": "heatmap",
    "read_table": "table",
    "read_tsplib": "tsplib",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"assay.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'assay.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
