"""Check shapes and types of the methods while the tests run, and put the probe distribution on the path.

Every function and method of a family that is written in Python is wrapped with jaxtyping and beartype right after
its module is imported. jaxtyping's own import hook cannot be used: it decorates the source, and numba cannot
compile what it leaves.
"""

import dataclasses
import importlib.abc
import importlib.machinery
import os
import sys
import types
from pathlib import Path

from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

PROBE = str(Path(__file__).parent / "tests" / "plugin")
sys.path.insert(0, PROBE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PROBE, os.environ.get("PYTHONPATH")]))

CHECKED = ("bilevel", "games", "graphs", "optim", "supervised", "transport")


# As in PEP 484, an int is accepted where a float is wanted.
_typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))


def _checked(function: types.FunctionType) -> types.FunctionType:
    return jaxtyped(function, typechecker=_typechecker) if function.__annotations__ else function


def _check_module(module: types.ModuleType) -> None:
    for name, thing in list(vars(module).items()):
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        if isinstance(thing, types.FunctionType):
            setattr(module, name, _checked(thing))
        elif isinstance(thing, type):
            _check_class(thing)


def _check_class(owner: type) -> None:
    for name, member in list(vars(owner).items()):
        if isinstance(member, types.FunctionType) and member.__module__ == owner.__module__:
            # the methods that dataclasses write are checked through jaxtyped(owner) below
            if not (dataclasses.is_dataclass(owner) and name.startswith("__")):
                setattr(owner, name, _checked(member))
        elif isinstance(member, staticmethod | classmethod):
            setattr(owner, name, type(member)(_checked(member.__func__)))
    if dataclasses.is_dataclass(owner):
        jaxtyped(owner, typechecker=_typechecker)


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        _check_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith(tuple(f"assay.{family}" for family in CHECKED)):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(fullname, spec.origin)
        return spec


if not any(name.startswith(tuple(f"assay.{family}" for family in CHECKED)) for name in sys.modules):
    sys.meta_path.insert(0, _Finder())
