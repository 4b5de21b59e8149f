"""What a study measured at one size, as the parts of its page; nothing here knows HTML."""

from __future__ import annotations

import datetime
import html
import json
import re
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from assay.certificate import Certificate
from assay.lab.cell import CellRecord
from assay.lab.figures import Figure
from assay.lab.store import Store
from assay.lab.study import Contender, Study
from assay.lab.table import Table
from assay.lab.verdict import Verdict, judge

__all__ = ["CertificateGroup", "FigureBlock", "NumberRow", "Outcomes", "SizeResults"]

_FACTS = ("assay", "python", "platform", "processor", "cores", "threads")

_OUTCOMES = ("holds", "not reproduced", "not measured")


@dataclass(frozen=True)
class Outcomes:
    """How many claims hold, are not reproduced, and were not measured."""

    holds: int = 0
    not_reproduced: int = 0
    not_measured: int = 0

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Outcomes:
        """Count verdicts."""
        counts = Counter(verdict.outcome for verdict in verdicts)
        return cls(*(counts[outcome] for outcome in _OUTCOMES))

    @property
    def total(self) -> int:
        """All claims."""
        return self.holds + self.not_reproduced + self.not_measured

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes(
            self.holds + other.holds,
            self.not_reproduced + other.not_reproduced,
            self.not_measured + other.not_measured,
        )


@dataclass(frozen=True)
class FigureBlock:
    """A figure as the page's script takes it.

    Parameters
    ----------
    title, caption : str
        Words.
    data : dict
        ``data``, ``layout`` and ``menus`` for the script, JSON-ready.
    menus : list of dict
        ``label``, ``options`` and ``active`` of every menu.
    """

    title: str
    caption: str
    data: dict[str, Any]
    menus: list[dict[str, Any]]

    @classmethod
    def of(cls, figure: Figure) -> FigureBlock:
        """Take a figure apart: the page has menus of its own, which a keyboard and a narrow screen can use."""
        content = json.loads(figure.plot.to_json())
        layout = content.get("layout", {})
        layout.pop("template", None)
        menus, of_page = [], []
        for menu in layout.pop("updatemenus", []):
            buttons = [b for b in menu.get("buttons", []) if b.get("method") in ("update", "restyle", "relayout")]
            if not buttons:
                continue
            label = "case" if menu.get("name") is None else str(menu["name"])
            options = [_as_text(str(button.get("label", ""))) for button in buttons]
            active = min(max(int(menu.get("active", 0)), 0), len(buttons) - 1)
            menus.append([{"method": b["method"], "args": b.get("args", [])} for b in buttons])
            of_page.append({"label": label, "options": options, "active": active})
        return cls(figure.title, figure.caption, {"data": content["data"], "layout": layout, "menus": menus}, of_page)


@dataclass(frozen=True)
class CertificateGroup:
    """All evaluations of one certificate.

    Parameters
    ----------
    statement : str
        What it promises.
    contenders : list of (str, int, int)
        Whose answers it was evaluated on, how many of them fulfil it, and how many there are.
    n_violated : int
        How many evaluations had an assumption that is known to be false.
    broken : bool
        Whether the method itself, not one that it is compared with, breaks it.
    example : str
        The evaluation that came closest to failing, or failed most; of the method where it has one.
    """

    statement: str
    contenders: list[tuple[str, int, int]]
    n_violated: int
    broken: bool
    example: str

    @property
    def n_holds(self) -> int:
        """How many evaluations hold."""
        return sum(held for _, held, _ in self.contenders)

    @property
    def n_fails(self) -> int:
        """How many do not."""
        return sum(total - held for _, held, total in self.contenders)


@dataclass(frozen=True)
class NumberRow:
    """A metric in one case: for each contender the median, lowest and highest over the seeds, or None."""

    metric: str
    case: str
    cells: list[tuple[float, float, float] | None]


@dataclass(frozen=True)
class SizeResults:
    """Results of a study at one size, and where they come from.

    Parameters
    ----------
    study : type
        The study class.
    size : str
        The size.
    table : Table
        Cells that today's code has made.
    """

    study: type[Study]
    size: str
    table: Table

    @classmethod
    def load(cls, study: type[Study], store: Store, size: str) -> SizeResults:
        """Read the cells of a study at one size."""
        return cls(study, size, Table.load(store, study, size))

    @property
    def records(self) -> tuple[CellRecord, ...]:
        """The cells as they are stored."""
        return self.table.records

    @property
    def finished(self) -> list[datetime.datetime]:
        """When each of the cells was computed."""
        return [datetime.datetime.fromisoformat(record.finished) for record in self.records]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Of the claims that are made at this size."""
        return judge(self.study, self.table)

    @property
    def outcomes(self) -> Outcomes:
        """Count of the verdicts."""
        return Outcomes.of(self.verdicts)

    @cached_property
    def done(self) -> list[CellRecord]:
        """Cells that were computed."""
        return [r for r in self.records if r.status == "done"]

    @cached_property
    def failed(self) -> list[CellRecord]:
        """Cells that were not, with the reason in their message."""
        return [r for r in self.records if r.status != "done"]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the cells."""
        return sorted({r.cell.seed for r in self.records})

    @property
    def command(self) -> str:
        """What to type to get these results."""
        command = f"assay run {self.study.name} --size {self.size}"
        usual = list(range(self.study.seeds.get(self.size, 0)))
        if self.seeds and self.seeds != usual:
            command += f" --seeds {','.join(map(str, self.seeds))}"
        return command

    @cached_property
    def figures(self) -> tuple[list[FigureBlock], str]:
        """What the study draws, and the traceback if it could not."""
        if not self.done:
            return [], ""
        try:
            return [FigureBlock.of(figure) for figure in self.study().figures(self.table)], ""
        except Exception:  # noqa: BLE001  one study that cannot draw must not take the report down
            return [], traceback.format_exc()

    @cached_property
    def certificates(self) -> list[CertificateGroup]:
        """Every distinct certificate; those that the method breaks first."""
        groups: dict[tuple[str, str], list[tuple[str, Certificate]]] = {}
        for row in self.table.certificates.itertuples():
            key = (row.certificate.statement, row.certificate.relation)
            groups.setdefault(key, []).append((row.contender, row.certificate))
        ours = {c.name for c in self.study.contenders if c.role == "method"}
        found = [_group(statement, members, ours) for (statement, _), members in groups.items()]
        return sorted(found, key=lambda group: not group.broken)

    @cached_property
    def numbers(self) -> list[NumberRow]:
        """All scalars, a row per metric and case, a column per contender of :attr:`columns`."""
        scalars = self.table.scalars
        if scalars.empty:
            return []
        grouped = scalars.groupby(["metric", "case", "contender"], sort=False)["value"]
        ranges = {key: (float(v.median()), float(v.min()), float(v.max())) for key, v in grouped}
        pairs = dict.fromkeys(zip(scalars["metric"], scalars["case"], strict=True))
        metrics = {metric: index for index, metric in enumerate(dict.fromkeys(scalars["metric"]))}
        ordered = sorted(pairs, key=lambda pair: metrics[pair[0]])
        return [NumberRow(m, case, [ranges.get((m, case, c)) for c in self.columns]) for m, case in ordered]

    @cached_property
    def columns(self) -> list[str]:
        """Contenders that have numbers."""
        return list(dict.fromkeys(self.table.scalars["contender"]))

    @cached_property
    def provenance(self) -> list[tuple[str, str]]:
        """Where the numbers come from, as pairs of words; what differs between cells is listed."""
        environments = [r.environment for r in self.records if r.environment]
        facts = [(key, _all_values(e.get(key) for e in environments)) for key in _FACTS]
        versions: dict[str, list[str]] = {}
        for environment in environments:
            for name, version in environment.get("versions", {}).items():
                versions.setdefault(name, []).append(version)
        facts += [(name, _all_values(found)) for name, found in sorted(versions.items(), key=lambda i: i[0].lower())]
        return [(key, value) for key, value in facts if value]

    @property
    def computed(self) -> str:
        """When the cells were stored, to the minute."""
        ends = (min(self.finished), max(self.finished)) if self.finished else ()
        return " to ".join(dict.fromkeys(f"{time:%Y-%m-%d %H:%M} UTC" for time in ends))

    @property
    def code(self) -> str:
        """Hash of the code of these cells; empty when no cell got as far as having one."""
        return next((r.code for r in self.records if r.code), "")

    @property
    def seconds(self) -> float:
        """Time that the cells took together."""
        return float(sum(r.seconds for r in self.records))

    def library_version(self, contender: Contender) -> str:
        """Version of a contender's library in its cells, or an empty string."""
        if contender.library is None:
            return ""
        return _all_values(
            r.environment.get("versions", {}).get(contender.library)
            for r in self.records
            if r.cell.contender == contender.name
        )

    def cell_seconds(self, contender: Contender) -> float:
        """Median time of a contender's cells, nan when it has none."""
        own = [r.seconds for r in self.done if r.cell.contender == contender.name]
        return float(np.median(own)) if own else float("nan")


def _group(statement: str, members: list[tuple[str, Certificate]], ours: set[str]) -> CertificateGroup:
    of_contender: dict[str, list[Certificate]] = {}
    for contender, certificate in members:
        of_contender.setdefault(contender, []).append(certificate)
    own = [certificate for contender, certificate in members if contender in ours]
    return CertificateGroup(
        statement,
        [(contender, sum(c.holds for c in several), len(several)) for contender, several in of_contender.items()],
        sum(bool(certificate.violated) for _, certificate in members),
        not all(certificate.holds for certificate in own),
        str(min(own or [certificate for _, certificate in members], key=_relative_slack)),
    )


def _relative_slack(certificate: Certificate) -> float:
    """Slack in units of the bound, so that certificates of different sizes compare; nan is the worst."""
    slack = certificate.slack / max(abs(certificate.bound), np.finfo(float).tiny)
    return float("-inf") if np.isnan(slack) else slack


def _all_values(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _as_text(label: str) -> str:
    """What plotly would show of a label: without tags, entities resolved."""
    return html.unescape(re.sub(r"<[^>]*>", "", label))
