"""What a study's page shows, and what the index says of it."""

from __future__ import annotations

import datetime
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.lab.figures import contender_styles
from assay.lab.report.listing import example_code
from assay.lab.report.results import Outcomes, SizeResults
from assay.lab.store import Store
from assay.lab.study import Claim, Study
from assay.lab.verdict import Verdict

__all__ = ["StudyPage", "how_measured", "page_names"]

_REDUCTIONS = {"median": "median", "mean": "mean", "min": "lowest", "max": "highest"}


@dataclass(frozen=True)
class StudyPage:
    """Everything about one study.

    Parameters
    ----------
    study : type
        The study class.
    results : list of SizeResults
        Sizes that the store has, the largest first.
    file : str
        Path of the page below the report's directory.
    only_size : str, optional
        When given, claims of other sizes do not count.
    """

    study: type[Study]
    results: list[SizeResults]
    file: str
    only_size: str | None = None

    @classmethod
    def load(cls, study: type[Study], store: Store, file: str, only_size: str | None = None) -> StudyPage:
        """Read a study."""
        declared = list(study.sizes)
        present = [size for size in store.sizes(study.name) if only_size in (None, size)]
        present.sort(key=lambda size: declared.index(size) if size in declared else -1, reverse=True)
        loaded = [SizeResults.load(study, store, size) for size in present]
        return cls(study, [r for r in loaded if r.records or r.table.n_stale], file, only_size)

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.study.name

    @property
    def family(self) -> str:
        """What is before the slash in the name."""
        return self.name.partition("/")[0]

    @property
    def measured(self) -> list[SizeResults]:
        """Sizes with at least one cell of today's code."""
        return [results for results in self.results if results.records]

    @cached_property
    def verdicts(self) -> dict[Claim, Verdict | None]:
        """Claims of the sizes that were run, with the verdict at the largest size that measured them.

        Before anything was run, all claims, without a verdict.
        """
        sizes = {results.size for results in self.measured} or set(self.study.sizes)
        if self.only_size is not None:
            sizes &= {self.only_size}
        found: dict[Claim, Verdict | None] = {
            claim: None for claim in self.study.claims if sizes.intersection(claim.sizes)
        }
        for results in reversed(self.measured):
            found |= {v.claim: v for v in results.verdicts if v.n or found.get(v.claim) is None}
        return found

    @property
    def outcomes(self) -> Outcomes:
        """How the claims fared; each counts once."""
        verdicts = self.verdicts.values()
        return Outcomes.of(v for v in verdicts if v is not None) + Outcomes(
            not_measured=sum(v is None for v in verdicts)
        )

    @property
    def n_elsewhere(self) -> int:
        """Claims that are only judged at sizes that were not run."""
        return 0 if self.only_size is not None else len(self.study.claims) - len(self.verdicts)

    @cached_property
    def certificate_counts(self) -> tuple[int, int]:
        """How many certificates of the method itself hold, and how many there are, over all sizes."""
        ours = [c.name for c in self.study.contenders if c.role == "method"]
        frames = [results.table.certificates for results in self.measured]
        frames = [frame[frame["contender"].isin(ours)] for frame in frames]
        return sum(int(f["holds"].sum()) for f in frames), sum(len(f) for f in frames)

    @property
    def n_failed(self) -> int:
        """Cells that failed, over all sizes."""
        return sum(len(results.failed) for results in self.results)

    @property
    def n_stale(self) -> int:
        """Cells of other code, over all sizes."""
        return sum(results.table.n_stale for results in self.results)

    @property
    def when(self) -> datetime.datetime | None:
        """When the last cell was stored."""
        return max((time for results in self.results for time in results.finished), default=None)

    @property
    def status(self) -> list[str]:
        """Words by which the index filters."""
        if not self.measured:
            return ["not-run"]
        held, total = self.certificate_counts
        words = {
            "all-hold": self.outcomes.holds == self.outcomes.total > 0,
            "not-reproduced": self.outcomes.not_reproduced > 0,
            "not-measured": self.outcomes.not_measured > 0,
            "certificate-fails": held < total,
            "cell-failed": self.n_failed > 0,
        }
        return [word for word, applies in words.items() if applies]

    @cached_property
    def example(self) -> str:
        """Code to copy; empty when the source is not there."""
        try:
            return example_code(self.study)
        except (OSError, TypeError, SyntaxError):
            return ""

    @property
    def statement(self) -> str:
        """Import statement of the method."""
        module, _, name = self.study.method.rpartition(".")
        return f"from {module} import {name}" if module else f"import {name}"

    @property
    def styles(self) -> Mapping[str, Mapping[str, Any]]:
        """Colours of the contenders, the same as in the figures."""
        return contender_styles(self.study)

    @property
    def bibtex(self) -> str:
        """Entry for a bibliography."""
        return self.study.paper.bibtex(re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-"))

    @property
    def links(self) -> list[tuple[str, str]]:
        """Addresses of the paper; only those that a browser cannot take for a script."""
        paper, found = self.study.paper, []
        if paper.arxiv and re.fullmatch(r"[\w.\-/]+", paper.arxiv):
            found.append((f"arXiv:{paper.arxiv}", f"https://arxiv.org/abs/{paper.arxiv}"))
        if paper.code and re.match(r"https?://", paper.code):
            found.append(("the authors' code", paper.code))
        return found


def how_measured(claim: Claim) -> str:
    """Say in words which number decides a claim.

    Examples
    --------
    >>> from assay.lab import Claim
    >>> how_measured(Claim("C1", "is faster", "seconds", "ours", "<=", 0.5, "paper", versus="HiGHS", case="large*"))
    'median of seconds, ours divided by HiGHS, cases large*'
    """
    words = f"{_REDUCTIONS[claim.reduce]} of {claim.metric}, {claim.contender}"
    if claim.versus is not None:
        words += f" {'divided by' if claim.compare == 'ratio' else 'minus'} {claim.versus}"
    return words + (f", cases {claim.case}" if claim.case != "*" else "")


def page_names(studies: Iterable[type[Study]]) -> dict[str, str]:
    """File of every study's page: readable, safe on every file system, and unique."""
    names = {}
    for study in studies:
        readable = re.sub(r"[^a-z0-9_]+", "-", study.name.lower()).strip("-")
        plain = re.fullmatch(r"[a-z0-9_]+/[a-z0-9_]+", study.name)
        mark = "" if plain else f"-{zlib.crc32(study.name.encode()):08x}"
        names[study.name] = f"studies/{readable or 'study'}{mark}.html"
    return names
