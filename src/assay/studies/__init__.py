"""One study per method, found by name.

The studies of this library are the public modules below this package. Other distributions add theirs through the
entry-point group ``assay.studies``: ``"family/method" = "package.module:StudyClass"``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
import warnings
from types import MappingProxyType

from assay.lab.study import Study

__all__ = ["available", "find"]

_GROUP = "assay.studies"


@functools.cache
def available() -> MappingProxyType[str, type[Study]]:
    """All studies, by name, in alphabetical order.

    Returns
    -------
    mapping of str to type
        A plug-in that cannot be loaded is left out with a warning; one that takes the name of another study too.

    Examples
    --------
    >>> from assay import studies
    >>> "games/ssn" in studies.available()
    True
    """
    found: dict[str, type[Study]] = {}
    for module in pkgutil.walk_packages(__path__, prefix=f"{__name__}."):
        if not module.ispkg and not module.name.rpartition(".")[2].startswith("_"):
            for study in _studies_in(module.name):
                found[study.name] = study
    for point in importlib.metadata.entry_points(group=_GROUP):
        try:
            study = point.load()
            if not (isinstance(study, type) and issubclass(study, Study)):
                raise TypeError(f"{point.value} is not a subclass of assay.lab.Study")
            if "name" not in vars(study):  # set here, it would be missing in the workers
                raise ValueError(f"{point.value} must have a name, e.g. name = {point.name!r}")
            study.check_declarations()
            if found.get(study.name, study) is not study:
                raise ValueError(f"there already is a study {study.name!r}")
        except Exception as error:  # noqa: BLE001  a broken plug-in must not take the command line down
            warnings.warn(f"the study {point.name!r} could not be loaded: {error}", RuntimeWarning, stacklevel=2)
            continue
        found[study.name] = study
    return MappingProxyType(dict(sorted(found.items())))


def find(name: str) -> type[Study]:
    """Look up a study.

    Parameters
    ----------
    name : str
        Name of a study (``"games/ssn"``), its last part (``"ssn"``), or the method's import path or its last part
        (``"assay.games.solve_matrix_game"``, ``"solve_matrix_game"``).

    Returns
    -------
    type
        The study class.

    Raises
    ------
    LookupError
        If there is none, or several, of that name; the message lists what comes close.

    Examples
    --------
    >>> from assay import studies
    >>> studies.find("solve_matrix_game").name
    'games/ssn'
    """
    known = available()
    if name in known:
        return known[name]
    wanted = name.lower().replace("-", "_")
    matches = [
        study
        for study in known.values()
        if wanted in (study.name.rpartition("/")[2], study.method.lower(), study.method.lower().rpartition(".")[2])
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise LookupError(f"{name!r} is ambiguous: {', '.join(study.name for study in matches)}")
    import difflib

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(close)}?" if close else "; see: assay list"
    raise LookupError(f"there is no study or method {name!r}{hint}")


def _studies_in(module: str) -> list[type[Study]]:
    return [
        member
        for member in vars(importlib.import_module(module)).values()
        if isinstance(member, type)
        and issubclass(member, Study)
        and member.__module__ == module
        and not inspect.isabstract(member)
    ]
