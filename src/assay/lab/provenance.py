"""What produced a number: the code, the versions and the machine.

The code of a study is its module and everything of the same distribution that the module can import, found by
reading the import statements. A change in a method that the study does not use leaves its hash as it was; a
change in anything that it runs does not.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any

from assay.lab.study import Study

__all__ = ["code_hash", "environment"]

# How cells are run and shown does not change what they measure; how they are declared and timed does.
_NOT_MEASURING = "assay.lab"
_MEASURING = ("assay.lab.study", "assay.lab.timing")

_LIBRARIES = ("numpy", "scipy", "torch", "numba", "scikit-learn", "networkx")


def code_hash(study: type[Study]) -> str:
    """Hash of the source that a study runs.

    Parameters
    ----------
    study : type
        The study class.

    Returns
    -------
    str
        64 hexadecimal digits; equal on two machines exactly when the source files are equal.
    """
    return _hash_of_module(study.__module__)


@functools.cache
def _hash_of_module(module: str) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(_sources(module).items()):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources(module: str) -> dict[str, Path]:
    """Files of ``module`` and of all that it imports from ``assay`` or from its own top-level package."""
    tops = {"assay", module.partition(".")[0]}
    found: dict[str, Path] = {}
    waiting = [module, *_MEASURING]
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] not in tops:
            continue
        if name.startswith(_NOT_MEASURING) and name not in _MEASURING:
            continue
        path = _source_file(name)
        if path is not None:
            found[name] = path
            waiting.extend(_imported(name, path))
    return found


def _imported(name: str, path: Path) -> set[str]:
    """Modules that a file imports; a name that a package only passes on counts for the module that it is from."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    modules: set[str] = set()
    for base, imported in _import_statements(path, package):
        modules |= _origin(base, imported) if imported else {base}
    return modules


def _import_statements(path: Path, package: str) -> list[tuple[str, str]]:
    """``(module, name)`` for every ``from module import name``, ``(module, "")`` for every ``import module``."""
    statements = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            statements += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
            statements += [(base, alias.name) for alias in node.names]
    return statements


def _origin(base: str, name: str) -> set[str]:
    """Modules that ``from base import name`` needs: a sub-module, what a package passes on, or ``base`` itself."""
    if _source_file(f"{base}.{name}") is not None:
        return {f"{base}.{name}"}
    path = _source_file(base)
    if path is None or path.name != "__init__.py":
        return {base}
    for deeper, passed_on in _import_statements(path, base):
        if passed_on == name and deeper != base:
            return _origin(deeper, name)
    tree = ast.parse(path.read_bytes())
    if any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
        # The package decides at run time where the name is from: it may be any of its modules.
        return {base, *(f"{base}.{file.stem}" for file in path.parent.glob("*.py") if file.stem != "__init__")}
    return {base}


@functools.cache
def _source_file(name: str) -> Path | None:
    """File of a module, found without importing it."""
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None):
        return Path(loaded.__file__)
    parent, _, last = name.rpartition(".")
    if not parent:
        spec = importlib.util.find_spec(name)
        return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None
    above = _source_file(parent)
    if above is None or above.name != "__init__.py":
        return None
    for candidate in (above.parent / f"{last}.py", above.parent / last / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def environment(threads: int, library: str | None = None) -> dict[str, Any]:
    """Versions, processor and threads of this process.

    Parameters
    ----------
    threads : int
        What the cell was allowed to use.
    library : str, optional
        A further distribution whose version matters.

    Returns
    -------
    dict
        JSON-ready.
    """
    distributions = _LIBRARIES + ((library,) if library else ())
    return {
        "assay": importlib.metadata.version("assay"),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "versions": {name: version for name in distributions if (version := _version(name))},
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.lru_cache(maxsize=1)
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
