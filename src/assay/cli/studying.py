"""``assay run``, ``assay check`` and ``assay report``: compute studies, judge their claims, show them."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from assay.cli.console import (
    FAILED,
    INTERRUPTED,
    QuietOption,
    is_narrow,
    out,
    reporting_errors,
    stderr,
    waiting,
    warn,
)

if TYPE_CHECKING:
    from assay.lab.study import Study
    from assay.lab.verdict import Verdict

__all__ = ["check_command", "report_command", "run_command"]

DEFAULT_STORE = Path("assay-out")

_MARKS = {"holds": "green", "not reproduced": "bold red", "not measured": "yellow"}

_Engine = Annotated[str, typer.Option("--engine", help="Where cells are computed: local or ray.")]
_Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Cells at a time; default: all cores.")]
_Address = Annotated[str | None, typer.Option("--address", help="Ray cluster, e.g. ray://head:10001 or auto.")]
_Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads per cell.")]
_Timeout = Annotated[float | None, typer.Option("--timeout", help="Seconds after which a cell is given up.")]
_Store = Annotated[Path, typer.Option("--out", help="Directory of the results.")]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Compute everything again.")]
_FailOnClaims = Annotated[bool, typer.Option(help="Exit with 1 when a claim does not hold; a failed cell always does.")]


@reporting_errors
def run_command(
    study: Annotated[list[str], typer.Argument(help="Names of studies, e.g. games/ssn.")],
    size: Annotated[str, typer.Option("--size", help="quick or full.")] = "quick",
    seeds: Annotated[str | None, typer.Option("--seeds", help="A range 0:5 or a list 0,3,7.")] = None,
    engine: _Engine = "local",
    workers: _Workers = None,
    threads: _Threads = 1,
    address: _Address = None,
    timeout: _Timeout = None,
    out_dir: _Store = DEFAULT_STORE,
    fresh: _Fresh = False,
    fail_on_claims: _FailOnClaims = True,
    quiet: QuietOption = False,
) -> None:
    """Run studies; what is stored already is kept, so that the same command resumes a run."""
    chosen = _chosen(study)
    how = {"engine": engine, "address": address, "workers": workers, "threads": threads, "timeout": timeout}
    again = _command("run", *(s.name for s in chosen), size=size, seeds=seeds, out=out_dir, **how)
    numbers = _parse_seeds(seeds)
    failed = _run(chosen, again, quiet, size=size, seeds=numbers, out=out_dir, fresh=fresh, **how)
    claims_fail = _print_verdicts(chosen, size, out_dir, numbers)
    if failed or (claims_fail and fail_on_claims):
        raise typer.Exit(FAILED)


@reporting_errors
def check_command(
    study: Annotated[list[str] | None, typer.Argument(help="Names of studies; all by default.")] = None,
    engine: _Engine = "local",
    workers: _Workers = None,
    threads: _Threads = 1,
    address: _Address = None,
    timeout: _Timeout = None,
    out_dir: _Store = DEFAULT_STORE,
    fresh: _Fresh = False,
    fail_on_claims: _FailOnClaims = True,
    quiet: QuietOption = False,
) -> None:
    """Run the quick studies and say of every claim what was promised, what was measured, and whether it holds."""
    chosen = _chosen(study or [])
    how = {"engine": engine, "address": address, "workers": workers, "threads": threads, "timeout": timeout}
    again = _command("check", *(study or []), out=out_dir, **how)
    failed = _run(chosen, again, quiet, size="quick", out=out_dir, fresh=fresh, **how)
    claims_fail = _print_verdicts(chosen, "quick", out_dir)
    if failed or (claims_fail and fail_on_claims):
        raise typer.Exit(FAILED)


@reporting_errors
def report_command(
    out_dir: _Store = DEFAULT_STORE,
    to: Annotated[Path | None, typer.Option("--to", help="Where to write the pages; default: OUT/report.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Write the report: a static site that opens from disk."""
    from assay import studies
    from assay.lab import Store, write_report

    store = Store(out_dir)
    with waiting("writing the report", quiet):
        index = write_report(studies.available().values(), store, to or out_dir / "report")
    for path, why in store.set_aside:
        warn(f"{path} is {why}; it is left out")
    if not any(store.sizes(name) for name in studies.available()):
        warn(f"there are no results in {out_dir} yet: run studies first, for example with assay check")
    out().print(f"report: {escape(str(index.resolve()))}", highlight=False)


def _chosen(names: Sequence[str]) -> list[type[Study]]:
    from assay import studies

    if not names:
        return list(studies.available().values())
    return list(dict.fromkeys(studies.find(name) for name in names))


def _command(*words: str, **options: object) -> str:
    """Line that a shell understands, with the options that are not what they are by default."""
    usual = {"engine": "local", "threads": 1, "out": DEFAULT_STORE}
    for name, value in options.items():
        if value is not None and value != usual.get(name):
            words += (f"--{name}", str(value))
    return shlex.join(["assay", *words])


def _parse_seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    span = re.fullmatch(r"(\d+):(\d+)", text)
    if span and int(span[1]) < int(span[2]):
        return list(range(int(span[1]), int(span[2])))
    if re.fullmatch(r"\d+(,\d+)*", text):
        return [int(part) for part in text.split(",")]
    raise ValueError(f"--seeds must be a range such as 0:5 or a list such as 0,3,7, got {text!r}")


def _run(chosen: list[type[Study]], again: str, quiet: bool, **settings: object) -> bool:
    """Run with progress; say what went wrong. True when a cell failed."""
    from assay import lab

    console = stderr()
    try:
        with _progress(quiet) as callback:
            result = lab.run(chosen, progress=callback, **settings)  # type: ignore[arg-type]
    except lab.RunInterruptedError as error:
        console.print(f"{error}\nresume with: {again}", highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    for path, why in result.set_aside:
        warn(f"{path} is {why}; it was set aside and computed again")
    if result.n_stale:
        line = f"{result.n_stale} cells were made by other code or with other threads and computed again"
        console.print(line, highlight=False)
    for record in result.failures:
        line = f"{record.cell}: {record.status}: {record.reason}"
        console.print(f"[bold red]failed:[/] {escape(line)}", highlight=False)
    if not quiet:
        console.print(
            f"{len(result.computed)} cells computed, {result.n_reused} reused, {len(result.failures)} failed",
            highlight=False,
        )
    return bool(result.failures)


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable | None]:
    console = stderr()
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("cells", total=None)

        def update(run: object, record: object) -> None:
            last = f"{record.cell.study} {record.cell.contender}" if record is not None else "cells"
            progress.update(task, total=len(run.cells), completed=run.n_finished, description=escape(last[:50]))

        yield update


def _print_verdicts(chosen: list[type[Study]], size: str, out_dir: Path, seeds: list[int] | None = None) -> bool:
    """Print the table of claims; True when one does not hold."""
    from assay.lab import Store, Table, judge

    store, console = Store(out_dir), out()
    verdicts = [verdict for study in chosen for verdict in judge(study, Table.load(store, study, size, seeds))]
    console.print(f"[bold]claims ({escape(size)})[/]", highlight=False)
    if is_narrow(console):
        _print_in_lines(verdicts, console)
    else:
        console.print(_verdict_table(verdicts))
    counts = dict.fromkeys(_MARKS, 0) | Counter(verdict.outcome for verdict in verdicts)
    console.print("\n" + ", ".join(f"{count} {words}" for words, count in counts.items()), highlight=False)
    return counts["holds"] < len(verdicts)


def _verdict_table(verdicts: Sequence[Verdict]) -> RichTable:
    table = RichTable(pad_edge=False, box=None)
    table.add_column("study", no_wrap=True)
    table.add_column("claim", overflow="fold", ratio=1)
    for column in ("promised", "measured", "range"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for verdict in verdicts:
        words = f"{escape(verdict.claim.id)} {escape(verdict.claim.statement)}"
        table.add_row(verdict.study, words, *verdict.shown, _range(verdict), _mark(verdict))
    return table


def _print_in_lines(verdicts: Sequence[Verdict], console: Console) -> None:
    for verdict in verdicts:
        promised, measured = verdict.shown
        spread = f" ({_range(verdict)})" if _range(verdict) else ""
        console.print(f"[bold]{verdict.study}[/] {escape(verdict.claim.id)}  {_mark(verdict)}", highlight=False)
        for line in (verdict.claim.statement, f"promised {promised}, measured {measured}{spread}"):
            console.print(Padding(escape(line), (0, 0, 0, 4)), highlight=False)


def _range(verdict: Verdict) -> str:
    return f"{verdict.lowest:.3g} .. {verdict.highest:.3g}" if verdict.n > 1 else ""


def _mark(verdict: Verdict) -> str:
    failed = f", {verdict.n_failed} failed" if verdict.n_failed else ""
    return f"[{_MARKS[verdict.outcome]}]{verdict.outcome}{failed}[/]"
