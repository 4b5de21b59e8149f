"""``assay run``, ``assay check`` and ``assay report``: compute studies, judge their claims, show them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from assay.cli.console import BAD_INPUT, FAILED, INTERRUPTED, QuietOption, fail, out, reporting_errors, stderr
from assay.lab.study import Study

__all__ = ["check_command", "report_command", "run_command"]

DEFAULT_STORE = Path("assay-out")

_Engine = Annotated[str, typer.Option("--engine", help="Where cells are computed: local or ray.")]
_Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Cells at a time; default: all cores.")]
_Address = Annotated[str | None, typer.Option("--address", help="Ray cluster, e.g. ray://head:10001 or auto.")]
_Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads per cell.")]
_Timeout = Annotated[float | None, typer.Option("--timeout", help="Seconds after which a cell is given up.")]
_Store = Annotated[Path, typer.Option("--out", help="Directory of the results.")]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Compute everything again.")]


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
    quiet: QuietOption = False,
) -> None:
    """Run studies; what is stored already is kept, so that the same command resumes a run."""
    chosen = _chosen(study)
    again = f"assay run {' '.join(s.name for s in chosen)} --size {size}"
    again += (f" --seeds {seeds}" if seeds else "") + (f" --out {out_dir}" if out_dir != DEFAULT_STORE else "")
    failed = _run(
        chosen,
        again,
        quiet,
        size=size,
        seeds=_parse_seeds(seeds),
        engine=engine,
        workers=workers,
        threads=threads,
        address=address,
        timeout=timeout,
        out=out_dir,
        fresh=fresh,
    )
    claims_fail = _print_verdicts(chosen, size, out_dir, _parse_seeds(seeds))
    if failed or claims_fail:
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
    quiet: QuietOption = False,
) -> None:
    """Run the quick studies and say of every claim what was promised, what was measured, and whether it holds."""
    chosen = _chosen(study or [])
    again = f"assay check {' '.join(study or [])}".strip()
    again += f" --out {out_dir}" if out_dir != DEFAULT_STORE else ""
    failed = _run(
        chosen,
        again,
        quiet,
        size="quick",
        engine=engine,
        workers=workers,
        threads=threads,
        address=address,
        timeout=timeout,
        out=out_dir,
        fresh=fresh,
    )
    claims_fail = _print_verdicts(chosen, "quick", out_dir)
    if failed or claims_fail:
        raise typer.Exit(FAILED)


@reporting_errors
def report_command(
    out_dir: _Store = DEFAULT_STORE,
    to: Annotated[Path | None, typer.Option("--to", help="Where to write the pages; default: OUT/report.")] = None,
) -> None:
    """Write the report: a static site that opens from disk."""
    from assay import studies
    from assay.lab import Store, write_report

    index = write_report(studies.available().values(), Store(out_dir), to or out_dir / "report")
    out().print(f"report: {escape(str(index.resolve()))}", highlight=False)


def _chosen(names: Sequence[str]) -> list[type[Study]]:
    from assay import studies

    if not names:
        return list(studies.available().values())
    return list(dict.fromkeys(studies.find(name) for name in names))


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
    except lab.StoreError as error:
        raise fail(str(error), BAD_INPUT) from None
    except lab.RunInterruptedError as error:
        console.print(f"{error}\nresume with: {again}", highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    for path, why in result.set_aside:
        line = f"{path} is {why}; it was set aside and computed again"
        console.print(f"[yellow]warning:[/] {escape(line)}", highlight=False)
    if result.n_stale:
        console.print(f"{result.n_stale} cells were made by other code and computed again", highlight=False)
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

    table = RichTable(title=f"claims ({size})", title_justify="left", title_style="bold", pad_edge=False, box=None)
    table.add_column("study", no_wrap=True)
    table.add_column("claim", overflow="fold", ratio=1)
    table.add_column("promised", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("range", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    counts = {"holds": 0, "not reproduced": 0, "not measured": 0}
    marks = {"holds": "green", "not reproduced": "bold red", "not measured": "yellow"}
    store = Store(out_dir)
    for study in chosen:
        for verdict in judge(study, Table.load(store, study, size, seeds)):
            counts[verdict.outcome] += 1
            spread = f"{verdict.lowest:.3g} .. {verdict.highest:.3g}" if verdict.n > 1 else ""
            table.add_row(
                study.name,
                f"{escape(verdict.claim.id)} {escape(verdict.claim.statement)}",
                verdict.promised,
                f"{verdict.measured:.4g}",
                spread,
                f"[{marks[verdict.outcome]}]{verdict.outcome}[/]",
            )
    console = out()
    console.print(table)
    console.print("\n" + ", ".join(f"{count} {words}" for words, count in counts.items()), highlight=False)
    return counts["holds"] < sum(counts.values())
