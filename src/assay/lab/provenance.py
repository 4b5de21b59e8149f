"""What produced a number: the code, the versions and the machine.

The code of a study is its module and everything of assay and of the study's own top-level package that the module can
import, found by reading the import statements, with the data files that these modules name. A change in a method that
the study does not use leaves its hash as it was; a change in anything that it runs does not.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import __version__
from assay.lab.study import Study

__all__ = ["code_hash", "environment", "packages"]

# How cells are run and shown does not change what they measure; how they are declared and timed does.
_NOT_MEASURING = ("assay.lab", "assay.cli")
_MEASURING = ("assay.lab.measurement", "assay.lab.timing")

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
    return _hash_of_modules(_modules(study))


def packages(study: type[Study]) -> tuple[str, ...]:
    """Top-level packages whose source a study runs: ``assay``, its own, and those of its base classes."""
    return tuple(dict.fromkeys(["assay", *(module.partition(".")[0] for module in _modules(study))]))


def _modules(study: type[Study]) -> tuple[str, ...]:
    """Modules of a class and of its bases, which may be of another package."""
    modules = dict.fromkeys(base.__module__ for base in study.__mro__)
    return tuple(module for module in modules if module.partition(".")[0] not in sys.stdlib_module_names)


@functools.cache
def _hash_of_modules(modules: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(_sources(*modules).items()):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources(*modules: str) -> dict[str, Path]:
    """Files of modules, and of all that they import from ``assay`` or from their own top-level packages."""
    tops = {"assay", *(module.partition(".")[0] for module in modules)}
    found: dict[str, Path] = {}
    waiting = [*modules, *_MEASURING]
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] not in tops or _is_not_measuring(name):
            continue
        path = _source_file(name)
        if path is not None:
            found[name] = path
            waiting.extend(_imported(name, path))
    for name, path in list(found.items()):
        found |= {f"{name}: {data.relative_to(path.parent).as_posix()}": data for data in _data_files(name, path)}
    return found


def _is_not_measuring(name: str) -> bool:
    return name not in _MEASURING and any(name == part or name.startswith(f"{part}.") for part in _NOT_MEASURING)


def _data_files(name: str, path: Path) -> list[Path]:
    """Files beside a module of a package, or in directories beside it, whose name the module mentions."""
    if path.suffix != ".py" or ("." not in name and path.name != "__init__.py"):
        return []
    source, files = path.read_text(encoding="utf-8", errors="replace"), []
    for beside in sorted(path.parent.iterdir()):
        if beside.name not in source or beside.suffix in (".py", ".pyc") or beside.name == "__pycache__":
            continue
        if beside.is_file():
            files.append(beside)
        elif not (beside / "__init__.py").exists():
            files += sorted(file for file in beside.rglob("*") if file.is_file() and file.suffix != ".pyc")
    return files


def _imported(name: str, path: Path) -> set[str]:
    """Modules that a file imports; a name that a package only passes on counts for the module that it is from."""
    if path.suffix != ".py":  # an extension module
        return set()
    is_package = path.name == "__init__.py"
    source = _read(path)
    modules: set[str] = set()
    for base, imported, _ in source.imports(name if is_package else name.rpartition(".")[0]):
        modules |= _origin(base, imported) if imported else {base}
    if is_package and source.looks_up_names:
        modules |= _modules_of(name, path)
    return modules


def _origin(base: str, name: str) -> set[str]:
    """Modules that ``from base import name`` needs: a sub-module, what a package passes on, or ``base`` itself."""
    if _source_file(f"{base}.{name}") is not None:
        return {f"{base}.{name}"}
    path = _source_file(base)
    if path is None or path.name != "__init__.py":
        return {base}
    source = _read(path)
    passed_on = [(deeper, original) for deeper, original, bound in source.imports(base) if bound == name]
    if not passed_on or name in source.defined or any(deeper == base for deeper, _ in passed_on):
        return {base}
    # Several when one is imported where another is missing.
    return set().union(*(_origin(deeper, original) for deeper, original in passed_on))


@dataclass(frozen=True)
class _Source:
    """What the text of a module says about where its names are from.

    Parameters
    ----------
    statements : tuple of (int, str, str, str)
        ``(level, module, name, bound as)`` of every ``from module import name``, ``(0, module, "", "")`` of every
        ``import module`` and of every call of ``import_module`` with a name that is written out.
    defined : frozenset of str
        Names that are assigned or defined, other than by importing them.
    looks_up_names : bool
        Whether a package decides at run time where its names are from: they may be from any of its modules.
    """

    statements: tuple[tuple[int, str, str, str], ...]
    defined: frozenset[str]
    looks_up_names: bool

    def imports(self, package: str) -> list[tuple[str, str, str]]:
        """The statements, with what is relative resolved."""
        parents, resolved = package.split("."), []
        for level, module, name, bound in self.statements:
            above = parents[: len(parents) - level + 1] if level else []
            resolved.append((".".join([*above, *([module] if module else [])]), name, bound))
        return resolved


def _read(path: Path) -> _Source:
    status = path.stat()
    return _parsed(path, status.st_mtime_ns, status.st_size)


@functools.cache
def _parsed(path: Path, *_: int) -> _Source:
    tree = ast.parse(path.read_bytes())
    statements, defined = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            statements += [(0, alias.name, "", "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(alias.name, alias.asname or alias.name) for alias in node.names]
            statements += [(node.level, node.module or "", name, bound) for name, bound in names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function, called = node.func, node.args[0].value
            caller = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if caller in ("import_module", "__import__") and isinstance(called, str):
                statements.append((0, called, "", ""))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
    looks_up = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)
    return _Source(tuple(statements), frozenset(defined), looks_up)


def _modules_of(package: str, path: Path) -> set[str]:
    files = {file.stem for file in path.parent.glob("*.py")} - {"__init__", "__main__"}
    return {f"{package}.{name}" for name in files | {file.parent.name for file in path.parent.glob("*/__init__.py")}}


def _source_file(name: str) -> Path | None:
    """File of a module, found without importing it."""
    spec = _spec(name)
    if spec is not None and spec.has_location and spec.origin:
        return Path(spec.origin)
    # A script, or a module that something else than the import system has made.
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


@functools.cache
def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    parent = name.rpartition(".")[0]
    if not parent:
        try:
            return importlib.util.find_spec(name)
        except (ImportError, ValueError):  # ValueError: no name, or a module that was made without a spec
            return None
    above = _spec(parent)
    if above is None or above.submodule_search_locations is None:
        return None
    return importlib.machinery.PathFinder.find_spec(name, list(above.submodule_search_locations))


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
    distributions = dict.fromkeys(_LIBRARIES + ((library,) if library else ()))
    return {
        "assay": __version__,  # of the code that runs, which may not be the one that is installed
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
