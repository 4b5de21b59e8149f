"""``.. study:: family/method``: what a study declares, as tables of a documentation page.

The page says in prose when the method is of use and what the study found; the facts (interface, promise,
contenders, claims, example, citation) come from the study itself, so that they cannot differ from what is run.
"""

from __future__ import annotations

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from assay import studies
from assay.lab.report import example_code

_PARTS = ("facts", "example", "contenders", "claims", "citation")


class StudyDirective(SphinxDirective):
    """Render one part of a study, or all of them."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write reStructuredText and let Sphinx read it."""
        study = studies.find(self.arguments[0])
        parts = self.arguments[1:] or _PARTS
        lines: list[str] = []
        for part in parts:
            if part not in _PARTS:
                raise self.error(f"part must be one of {', '.join(_PARTS)}, got {part!r}")
            lines += [*getattr(self, f"_{part}")(study), ""]
        container = nodes.Element()
        source = self.get_source_info()[0]
        self.state.nested_parse(StringList(lines, source), self.content_offset, container)
        return container.children

    @staticmethod
    def _facts(study) -> list[str]:
        return _table(
            "Facts",
            ("", ""),
            [
                ("import", f":py:obj:`{study.method}`"),
                ("kind", study.interface),
                ("what for", study.summary),
                ("promise", study.promise),
                ("data", study.data),
                ("run it", f"``assay run {study.name} --size full``"),
            ],
            header=False,
        )

    @staticmethod
    def _example(study) -> list[str]:
        return [".. code-block:: python", "", *(f"   {line}" for line in example_code(study).splitlines())]

    @staticmethod
    def _contenders(study) -> list[str]:
        rows = [(c.name, c.role, c.library or "", c.description) for c in study.contenders]
        return _table("Contenders", ("contender", "role", "library", "what is run"), rows)

    @staticmethod
    def _claims(study) -> list[str]:
        rows = [(c.id, c.statement, f"{c.relation} {c.number:g}", ", ".join(c.sizes), c.source) for c in study.claims]
        return _table("Claims", ("", "claim", "promised", "judged at", "from"), rows)

    @staticmethod
    def _citation(study) -> list[str]:
        key = study.name.rpartition("/")[2]
        return [
            _escaped(study.paper.cite()),
            "",
            ".. code-block:: bibtex",
            "",
            *(f"   {line}" for line in study.paper.bibtex(key).splitlines()),
        ]


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]], header: bool = True) -> list[str]:
    lines = [f".. list-table:: {title}", *(["   :header-rows: 1"] if header else []), "   :widths: auto", ""]
    for row in [columns, *rows] if header else rows:
        for index, cell in enumerate(row):
            keep = cell.startswith((":py:obj:", "``"))
            lines.append(f"   {'*' if index == 0 else ' '} - {cell if keep else _escaped(cell)}")
    return lines


def _escaped(words: str) -> str:
    words = " ".join(words.split())
    for mark in "\\*`|_":
        words = words.replace(mark, "\\" + mark)
    return words


def setup(app: Sphinx) -> dict:
    """Register the directive."""
    app.add_directive("study", StudyDirective)
    return {"parallel_read_safe": True}
