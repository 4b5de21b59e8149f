"""Writing the report: pages from templates, assets beside them, every file whole or not there."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup

from assay.lab.figures import DARK_TWINS
from assay.lab.report.listing import highlight
from assay.lab.report.numbers import duration, format_number, plain_number
from assay.lab.report.pages import StudyPage, how_measured, page_names
from assay.lab.report.results import Outcomes
from assay.lab.store import Store
from assay.lab.study import Study

__all__ = ["write_report"]

# Marks pages as ours (it is in the template): a page of a study that is gone is removed, other files are not.
_GENERATOR = '<meta name="generator" content="assay report">'


def write_report(
    studies: Iterable[type[Study]],
    store: Store,
    out: str | os.PathLike[str],
    *,
    size: str | None = None,
) -> Path:
    """Write a static site that opens from disk: an index, and a page per study.

    Parameters
    ----------
    studies : iterable of type
        Study classes; one without results gets a page that says how to run it.
    store : Store
        The results.
    out : path
        Directory to write to; created when it is not there. Files of an earlier report are replaced.
    size : str, optional
        Show only this size; by default every size that the store has.

    Returns
    -------
    pathlib.Path
        The index page.

    Raises
    ------
    ValueError
        If two studies have one name, or no study has the size.
    OSError
        If the directory cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from assay.lab import Store, write_report
    >>> index = write_report([], Store(tempfile.mkdtemp()), tempfile.mkdtemp())
    >>> index.name
    'index.html'
    """
    studies = list(studies)
    names = [study.name for study in studies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"studies must have different names, got {', '.join(twice)} more than once")
    sizes = list(dict.fromkeys(s for study in studies for s in study.sizes))
    if size is not None and studies and size not in sizes:
        raise ValueError(f"size must be one of {', '.join(sizes)}, got {size!r}")

    root = Path(out)
    files = page_names(studies)
    pages = [StudyPage.load(study, store, files[study.name], size) for study in studies]
    for directory in ("assets", "studies"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    _write_assets(root / "assets")

    environment = _environment()
    template = environment.get_template("study.html.j2")
    for index, page in enumerate(pages):
        text = template.render(
            page=page,
            root="../",
            previous=pages[index - 1] if index else None,
            following=pages[index + 1] if index + 1 < len(pages) else None,
        )
        _write(root / page.file, text)
    _remove_left_over(root / "studies", {root / page.file for page in pages})
    # The index comes last: once it is there, all that it links to is there too.
    index_page = root / "index.html"
    _write(index_page, environment.get_template("index.html.j2").render(pages=pages, root="", totals=_Totals(pages)))
    return index_page


@dataclass(frozen=True)
class _Totals:
    """What the strip at the top of the index says."""

    pages: list[StudyPage]

    @property
    def outcomes(self) -> Outcomes:
        return sum((page.outcomes for page in self.pages), Outcomes())

    @property
    def n_elsewhere(self) -> int:
        return sum(page.n_elsewhere for page in self.pages)

    @property
    def n_measured(self) -> int:
        return sum(bool(page.measured) for page in self.pages)

    @property
    def certificates(self) -> tuple[int, int]:
        counts = [page.certificate_counts for page in self.pages]
        return sum(held for held, _ in counts), sum(total for _, total in counts)

    @property
    def n_failed(self) -> int:
        return sum(page.n_failed for page in self.pages)

    @property
    def n_stale(self) -> int:
        return sum(page.n_stale for page in self.pages)

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(page.family for page in self.pages))

    @property
    def environment(self) -> list[tuple[str, str]]:
        """Facts that are shown of the machine, over all cells."""
        found: dict[str, dict[str, None]] = {}
        for results in (results for page in self.pages for results in page.measured):
            for key, value in results.provenance:
                found.setdefault(key, {}).update(dict.fromkeys(value.split(", ") if key != "processor" else [value]))
        wanted = {"processor": "", "threads": "threads per cell", "python": "Python", "numpy": "NumPy"}
        wanted |= {"scipy": "SciPy", "torch": "PyTorch", "assay": "assay"}
        return [(label, ", ".join(found[key])) for key, label in wanted.items() if key in found]


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.lab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": format_number,
        "plain": plain_number,
        "duration": duration,
        "highlight": highlight,
        "how_measured": how_measured,
        "script_json": _script_json,
        "day": lambda time: time.strftime("%Y-%m-%d"),
        "minute": lambda time: time.strftime("%Y-%m-%d %H:%M UTC"),
    }
    environment.globals |= {
        "version": importlib.metadata.version("assay"),
        "written": datetime.datetime.now(datetime.UTC),
        "dark_twins": DARK_TWINS,
    }
    return environment


def _script_json(content: Any) -> Markup:
    """JSON that can stand in a script element: nothing in it can end the element or start another."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704  ASCII, and without the three characters that HTML gives a meaning


def _write_assets(directory: Path) -> None:
    for asset in (resources.files("assay.lab.report") / "assets").iterdir():
        _write(directory / asset.name, asset.read_text(encoding="utf-8"))
    _write(directory / "plotly.min.js", plotly.offline.get_plotlyjs())


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_left_over(directory: Path, kept: set[Path]) -> None:
    for path in sorted(directory.glob("*.html")):
        if path not in kept and _GENERATOR in path.read_text(encoding="utf-8", errors="replace")[:2000]:
            path.unlink()
