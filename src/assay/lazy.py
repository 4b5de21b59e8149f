"""A package whose names are imported when they are first used.

A family brings PyTorch, scikit-learn and compiled kernels with it; someone who wants one method of it should wait for
that one alone. What a package exports stands in the stub ``__init__.pyi`` beside its ``__init__.py``, which editors
and type checkers read too.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import lazy_loader

__all__ = ["attach"]


class _LazyPackage(types.ModuleType):
    """A package that keeps a name for what it exports.

    Importing a submodule binds it as an attribute of its package. Where a function is named like its module, that
    would put the module in the place of the function, depending on what was imported first.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, types.ModuleType) and name in self.__all__):
            super().__setattr__(name, value)


def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """What a package whose exports stand in a stub binds to ``__getattr__``, ``__dir__`` and ``__all__``.

    Parameters
    ----------
    package : str
        ``__name__`` of the package.
    file : str
        ``__file__`` of the package; the stub lies beside it.

    Returns
    -------
    tuple of callable, callable and list of str

    Examples
    --------
    >>> from assay import games
    >>> "prm_plus" in dir(games)
    True
    """
    sys.modules[package].__class__ = _LazyPackage
    return lazy_loader.attach_stub(package, file)
