"""What a study is: a method, what it is compared with, and what its paper says that can be measured.

A study is a class that derives from :class:`Study`. It declares the paper, the contenders and the claims, and
it has two methods that work: :meth:`Study.problem` makes the instances and :meth:`Study.measure` lets one
contender solve them. The unit of work is a *cell*, one call of ``measure`` for one (study, size, contender,
seed). Cells know nothing of each other, so they can run in any order, in any process, on any machine.

Importing a module of studies must be cheap, since ``assay list`` imports all of them: heavy libraries are
imported inside the methods.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from assay.certificate import Certificate
from assay.lab.measurement import Measurement, cell_rng

if TYPE_CHECKING:
    from assay.lab.figures import Figure
    from assay.lab.table import Table

__all__ = ["Claim", "Contender", "Paper", "Study"]

Role = Literal["method", "ablation", "incumbent"]
Reduction = Literal["median", "mean", "min", "max"]

# Names become directories of the store, on every file system.
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"


@dataclass(frozen=True)
class Paper:
    """Where a method comes from.

    Parameters
    ----------
    title, authors, venue : str
        As in the citation; authors separated by commas.
    arxiv : str, optional
        Identifier such as ``"2512.12910"``.
    code : str, optional
        Address of the authors' code.
    """

    title: str
    authors: str
    venue: str = "ICML 2026"
    arxiv: str | None = None
    code: str | None = None

    @property
    def year(self) -> str:
        """The last four digits in a row of the venue, or nothing."""
        return next(reversed(re.findall(r"\d{4}", self.venue)), "")

    def cite(self) -> str:
        """One line: authors, title, venue, arXiv."""
        source = f" arXiv:{self.arxiv}." if self.arxiv else ""
        return " ".join(f"{part.rstrip('.')}." for part in (self.authors, self.title, self.venue)) + source

    def bibtex(self, key: str) -> str:
        """The entry for a bibliography."""
        fields = {
            "title": "{" + _for_latex(self.title) + "}",
            "author": _for_latex(self.authors).replace(", ", " and "),
            "booktitle": _for_latex(self.venue),
            "year": self.year,
        }
        if self.arxiv:
            fields |= {"eprint": self.arxiv, "archiveprefix": "arXiv"}
        body = ",\n".join(f"  {name} = {{{content}}}" for name, content in fields.items())
        return f"@inproceedings{{{key},\n{body}\n}}"


@dataclass(frozen=True)
class Contender:
    """One of those that are compared.

    Parameters
    ----------
    name : str
        Short and unique within the study; it is what tables and figures show.
    role : {"method", "ablation", "incumbent"}
        Ours; ours with a part taken out or exchanged; what people use today.
    description : str, default=""
        What is run, with the settings that matter.
    library : str, optional
        The distribution that is called, e.g. ``"POT"``; its version is stored with every cell.
    """

    name: str
    role: Role
    description: str = ""
    library: str | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper (or of this library) with the number that decides it.

    The measured number is taken from the scalars of the cells: those of ``contender`` called ``metric`` whose case
    matches ``case``; with ``versus``, each is first divided by (or diminished by) the scalar of the other contender
    with the same seed and case; then they are reduced to one number.

    Parameters
    ----------
    id : str
        Short label, e.g. ``"C1"``.
    statement : str
        What is claimed, in words.
    metric : str
        Name of a scalar. Every cell has ``certificates_failed`` and ``seconds_total`` without adding them.
    contender : str
        Whose scalar.
    relation : {"<=", ">="}
        How the measured number must compare with ``number``.
    number : float
        What is promised.
    source : str
        Where the number comes from, e.g. ``"paper, Table 2"`` or ``"derived: proof in the docstring"``.
    versus : str, optional
        The contender to compare with.
    compare : {"ratio", "difference"}, default="ratio"
        How to compare with ``versus``. A ratio to a negative number is nan, since its order is turned around.
    reduce : {"median", "mean", "min", "max"}, default="median"
        How to reduce over seeds and cases. A promise for every run is ``"max"`` with ``"<="`` or ``"min"``
        with ``">="``.
    case : str, default="*"
        Name of the case that counts, or shell pattern for several.
    sizes : tuple of str, default=("quick", "full")
        The sizes at which the claim is judged.
    timed : bool, default=False
        Whether it is about seconds: then it depends on the machine and is never asserted by a test.
    """

    id: str
    statement: str
    metric: str
    contender: str
    relation: Literal["<=", ">="]
    number: float
    source: str
    versus: str | None = None
    compare: Literal["ratio", "difference"] = "ratio"
    reduce: Reduction = "median"
    case: str = "*"
    sizes: tuple[str, ...] = ("quick", "full")
    timed: bool = False

    def __post_init__(self) -> None:
        if self.relation not in ("<=", ">="):
            raise ValueError(f"relation must be '<=' or '>=', got {self.relation!r}")
        if self.compare not in ("ratio", "difference"):
            raise ValueError(f"compare must be 'ratio' or 'difference', got {self.compare!r}")
        if self.reduce not in ("median", "mean", "min", "max"):
            raise ValueError(f"reduce must be 'median', 'mean', 'min' or 'max', got {self.reduce!r}")


class Study(abc.ABC):
    """Base class of all studies.

    Attributes
    ----------
    name : str
        ``"family/method"``; taken from the module when it is ``assay.studies.family.method``.
    title : str
        The method's name in words.
    summary : str
        For whom it is and what they gain, in at most two sentences.
    promise : str
        What its certificate says.
    interface : str
        Its kind: ``"solver"``, ``"torch optimizer"``, ``"scikit-learn estimator"``, ...
    method : str
        Import path of the class or function, e.g. ``"assay.games.solve_matrix_game"``.
    paper : Paper
        The source.
    data : str
        The real data and the generators that it runs on.
    contenders : tuple of Contender
        The method, its ablations, the incumbents.
    claims : tuple of Claim
        What is checked.
    sizes : mapping of str to mapping
        Parameters of ``"quick"`` (15 s on two cores for all cells together) and ``"full"`` (10 minutes).
    seeds : mapping of str to int
        Number of seeds that a run of each size takes by default.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    promise: ClassVar[str]
    interface: ClassVar[str]
    method: ClassVar[str]
    paper: ClassVar[Paper]
    data: ClassVar[str] = ""
    contenders: ClassVar[tuple[Contender, ...]]
    claims: ClassVar[tuple[Claim, ...]]
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]]
    seeds: ClassVar[Mapping[str, int]] = {"quick": 1, "full": 3}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        prefix = "assay.studies."
        if "name" not in cls.__dict__ and cls.__module__.startswith(prefix):
            cls.name = cls.__module__.removeprefix(prefix).replace(".", "/")

    @abc.abstractmethod
    def problem(self, size: str, rng: np.random.Generator) -> Any:
        """Make what the contenders are to solve: the same object for all of them at one (size, seed).

        Parameters
        ----------
        size : str
            A key of ``sizes``.
        rng : numpy.random.Generator
            Depends on the study, the size and the seed only.
        """

    @abc.abstractmethod
    def measure(self, contender: str, problem: Any, rng: np.random.Generator) -> Measurement:
        """Let one contender solve the problem.

        Parameters
        ----------
        contender : str
            Name of one of ``contenders``.
        problem : object
            What :meth:`problem` returned.
        rng : numpy.random.Generator
            Depends on the study, the size, the seed and the contender only.
        """

    @abc.abstractmethod
    def demonstrate(self) -> Sequence[Certificate]:
        """Use the method as a user would, in a few lines and under a second, and return its certificates.

        The source of this function is what ``assay show`` and the report give people to copy.
        """

    def figures(self, table: Table) -> Sequence[Figure]:
        """Draw the results; by default one figure per name of a curve.

        Parameters
        ----------
        table : Table
            All finished cells of this study at one size.
        """
        from assay.lab.figures import curve_figures

        return curve_figures(self, table)

    @classmethod
    def check_declarations(cls) -> None:
        """Check that what the class declares fits together; a run does this before it computes anything.

        Raises
        ------
        ValueError
            If the name or a size cannot name a directory, names of contenders or claims repeat, a claim is about a
            contender that there is not, or a size has no number of seeds.
        """
        name = getattr(cls, "name", None)
        if not isinstance(name, str) or not re.fullmatch(rf"{_WORD}/{_WORD}", name):
            raise ValueError(
                f"name of {cls.__qualname__} must be family/method in letters, digits, _, . and -, got {name!r}"
            )
        for size in cls.sizes:
            if not re.fullmatch(_WORD, size):
                raise ValueError(f"sizes of {name} must be named in letters, digits, _, . and -, got {size!r}")
            if size not in cls.seeds:
                raise ValueError(f"seeds of {name} must say how many seeds the size {size!r} has")
        contenders = [contender.name for contender in cls.contenders]
        for what, names in (("contenders", contenders), ("claims", [claim.id for claim in cls.claims])):
            repeated = sorted({one for one in names if names.count(one) > 1})
            if repeated:
                raise ValueError(
                    f"{what} of {name} must have different names, got {', '.join(repeated)} more than once"
                )
        for claim in cls.claims:
            for about in (claim.contender, claim.versus):
                if about is not None and about not in contenders:
                    raise ValueError(f"claim {claim.id} of {name} is about {about!r}, which is not a contender")

    @classmethod
    def contender(cls, name: str) -> Contender:
        """Look up a contender by its name."""
        for contender in cls.contenders:
            if contender.name == name:
                return contender
        raise KeyError(f"{cls.name} has no contender {name!r}; it has {[c.name for c in cls.contenders]}")

    @classmethod
    def problem_rng(cls, size: str, seed: int) -> np.random.Generator:
        """Generator that makes the problem of a (size, seed)."""
        return cell_rng(cls.name, size, seed=seed)

    @classmethod
    def measure_rng(cls, size: str, seed: int, contender: str) -> np.random.Generator:
        """Generator that a contender may use on the problem of a (size, seed)."""
        return cell_rng(cls.name, size, contender, seed=seed)


def _for_latex(words: str) -> str:
    return re.sub(r"([&%$#_{}])", r"\\\1", words)
