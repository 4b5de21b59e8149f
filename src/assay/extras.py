"""Optional dependencies: imported where they are used, with an error that names the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["MissingExtraError", "import_extra"]


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Parameters
    ----------
    module : str
        Module to import, e.g. ``"ot"``.
    extra : str
        The extra of this distribution that installs it, e.g. ``"peers"``.

    Returns
    -------
    module

    Raises
    ------
    MissingExtraError
        If the module is not installed. The message is one line with the command that installs it.

    Examples
    --------
    >>> from assay.extras import import_extra
    >>> import_extra("json", extra="peers").__name__
    'json'
    >>> import_extra("no_such_module", extra="peers")
    Traceback (most recent call last):
        ...
    assay.extras.MissingExtraError: no_such_module is not installed; install it with: pip install "assay[peers]"
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but misses one of its own dependencies is broken, not absent.
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f'{module} is not installed; install it with: pip install "assay[{extra}]"', name=module
        ) from None
