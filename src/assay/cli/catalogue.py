"""``assay list`` and ``assay show``: what there is, and what it promises."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable

from assay.cli.console import (
    JsonOption,
    QuietOption,
    certificate_table,
    is_narrow,
    out,
    print_json,
    reporting_errors,
    waiting,
)

if TYPE_CHECKING:
    from assay.lab.study import Study

__all__ = ["list_command", "show_command"]


@reporting_errors
def list_command(
    family: Annotated[str | None, typer.Option("--family", "-f", help="Only the methods of this family.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the methods."""
    from assay import studies

    known = studies.available()
    families = sorted({name.partition("/")[0] for name in known})
    if family is not None and family not in families:
        raise ValueError(f"--family must be one of {', '.join(families)}, got {family!r}")
    chosen = [study for name, study in known.items() if family in (None, name.partition("/")[0])]
    if as_json:
        print_json([_summary(study) for study in chosen])
        return
    console = out()
    if is_narrow(console):
        for study in chosen:
            console.print(f"[bold]{escape(study.name)}[/]  {escape(study.interface)}", highlight=False)
            for line in (study.promise, study.method):
                console.print(Padding(escape(line), (0, 0, 0, 4)), highlight=False)
    else:
        table = RichTable(box=None, pad_edge=False)
        for column in ("method", "kind", "import", "what it promises"):
            table.add_column(column, overflow="fold")
        for study in chosen:
            name = f"[bold]{escape(study.name)}[/]"
            table.add_row(name, escape(study.interface), escape(study.method), escape(study.promise))
        console.print(table)
    console.print(f"\n{len(chosen)} methods. More about one: assay show {chosen[0].name}", highlight=False)


@reporting_errors
def show_command(
    method: Annotated[str, typer.Argument(help="Name of a method or study, e.g. games/ssn or solve_matrix_game.")],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show what a method is for, how it is called, and what it promises, with a certificate from a live run."""
    from rich.syntax import Syntax

    from assay import studies
    from assay.lab.report import example_code

    study = studies.find(method)
    with waiting(f"running the example of {study.name}", quiet):
        thing = _thing(study)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            certificates = tuple(study().demonstrate())
    signature = thing.__name__ + _signature(thing)
    code = example_code(study)
    if as_json:
        content = _summary(study) | {
            "signature": signature,
            "documentation": inspect.getdoc(thing),
            "example": code,
            "prints": printed.getvalue(),
            "certificates": [c.to_dict() for c in certificates],
            "claims": [f"{c.id}: {c.statement}" for c in study.claims],
        }
        print_json(content)
        return
    console = out()
    console.print(f"[bold]{escape(study.title)}[/]  [dim]{study.name}[/]\n")
    facts = RichTable.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("what for", escape(study.summary))
    facts.add_row("promise", escape(study.promise))
    facts.add_row("kind", escape(study.interface))
    facts.add_row("import", f"from {study.method.rpartition('.')[0]} import {study.method.rpartition('.')[2]}")
    facts.add_row("signature", escape(_wrapped(signature)))
    facts.add_row("paper", escape(study.paper.cite()))
    facts.add_row("compared", escape("; ".join(c.name for c in study.contenders if c.role == "incumbent")))
    facts.add_row("study", f"assay run {study.name}")
    console.print(facts)
    console.print("\n[bold]example[/]")
    console.print(Syntax(code, "python", background_color="default", word_wrap=True))
    if printed.getvalue():
        console.print(f"\n[bold]prints[/]\n{escape(printed.getvalue().rstrip())}", highlight=False)
    console.print()
    console.print(certificate_table(certificates))


def _summary(study: type[Study]) -> dict[str, Any]:
    return {
        "name": study.name,
        "family": study.name.partition("/")[0],
        "title": study.title,
        "summary": study.summary,
        "promise": study.promise,
        "interface": study.interface,
        "method": study.method,
        "paper": study.paper.cite(),
        "contenders": [c.name for c in study.contenders],
    }


def _thing(study: type[Study]) -> Any:
    module, _, name = study.method.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        raise LookupError(
            f"the study {study.name} is about {study.method!r}, which cannot be imported: {error}"
        ) from error


def _signature(thing: Any) -> str:
    """Names and defaults of the arguments; what types they have says the documentation."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _wrapped(signature: str) -> str:
    if len(signature) <= 100:
        return signature
    head, _, tail = signature.partition("(")
    return f"{head}(\n" + textwrap.fill(tail, 100, initial_indent="    ", subsequent_indent="    ")
