"""What all commands share: where they print, how they fail, and how they show a result.

Results go to standard output, everything else (progress, warnings, errors) to standard error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from assay.certificate import Certificate, CertificateError, side_by_side
from assay.extras import MissingExtraError

if TYPE_CHECKING:
    from assay.result import Result

__all__ = [
    "BAD_INPUT",
    "FAILED",
    "INTERRUPTED",
    "JsonOption",
    "OutOption",
    "QuietOption",
    "certificate_table",
    "fail",
    "is_narrow",
    "out",
    "present",
    "print_json",
    "reporting_errors",
    "stderr",
    "waiting",
    "warn",
]

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130

JsonOption = Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")]
_NARROW = 110


def _check_out(path: Path | None) -> Path | None:
    # Before the work starts, and not when there is an answer that cannot be written.
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{path} is a directory, and must be a file.")
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {path.parent}.")
    return path


OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Also write the whole result as JSON to this file.", callback=_check_out),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Go on without a reader (``head`` has seen enough): the exit code still says what came of the command."""
        self.quiet = True
        _discard_stdout()


def _discard_stdout() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def out() -> Console:
    """Console on standard output; wide when it is not a terminal, so that nothing is cut off in a file."""
    return _Console(width=None if sys.stdout.isatty() else 160, soft_wrap=not sys.stdout.isatty())


def is_narrow(console: Console) -> bool:
    """Whether a table of several columns of words would be squeezed."""
    return console.width < _NARROW


def print_json(content: Any) -> None:
    """Print one line of strict JSON; pure ASCII where standard output is not in UTF-8."""
    in_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    try:
        print(json.dumps(content, allow_nan=False, ensure_ascii=not in_utf8), flush=True)
    except BrokenPipeError:
        _discard_stdout()


def stderr() -> Console:
    """Console on standard error."""
    return Console(stderr=True, soft_wrap=True)


def fail(message: str, code: int = BAD_INPUT) -> typer.Exit:
    """Print one line on standard error and return the exception that ends the command."""
    line = " ".join(str(message).split())
    stderr().print(f"[bold red]error:[/] {escape(line)}", highlight=False)
    return typer.Exit(code)


def reporting_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what users can cause into one line and an exit code (a traceback with ``ASSAY_TRACEBACK=1``)."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        shown_before = warnings.showwarning
        warnings.showwarning = _show_warning
        try:
            return command(*args, **kwargs)
        except CertificateError as error:
            if os.environ.get("ASSAY_TRACEBACK"):
                raise
            raise fail(str(error), FAILED) from None
        except (ValueError, TypeError, LookupError, OSError, MissingExtraError, MemoryError) as error:
            if os.environ.get("ASSAY_TRACEBACK"):
                raise
            raise fail(_in_words(error)) from None
        except KeyboardInterrupt:
            stderr().print("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            warnings.showwarning = shown_before

    return wrapped


def _in_words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, LookupError) and error.args:
        return str(error.args[0])
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    return str(error) or type(error).__name__


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    warn(str(message))


def warn(message: str) -> None:
    """Print one line of warning on standard error."""
    line = " ".join(message.split())
    stderr().print(f"[yellow]warning:[/] {escape(line)}", highlight=False)


@contextlib.contextmanager
def waiting(what: str, quiet: bool) -> Iterator[None]:
    """Show that something is going on, when standard error is a terminal."""
    console = stderr()
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(escape(what)):
        yield


def certificate_table(certificates: list[Certificate] | tuple[Certificate, ...]) -> RichTable:
    """Table of certificates for a terminal."""
    table = RichTable(title="certificates", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("promise", ratio=1, overflow="fold")
    table.add_column("measured", justify="right")
    table.add_column("bound", justify="right")
    for certificate in certificates:
        mark = "[green]holds[/]" if certificate.holds else "[bold red]FAILS[/]"
        words = escape(certificate.statement)
        for assumption in certificate.assumptions:
            style = "bold red" if assumption.satisfied is False else "dim"
            words += f"\n  [{style}]if {escape(str(assumption))}[/]"
        value, bound = side_by_side(certificate.value, certificate.bound)
        table.add_row(mark, words, value, f"{certificate.relation} {bound}")
    return table


def present(
    summary: dict[str, Any],
    content: Result | dict[str, Any],
    certificates: tuple[Certificate, ...],
    *,
    as_json: bool,
    out_file: Path | None,
) -> None:
    """Print a result, write it where it was asked for, and leave with 1 when a certificate fails.

    Parameters
    ----------
    summary : dict
        What a person wants to see: words to values.
    content : Result or dict
        Everything, for ``--json`` and ``--out``.
    certificates : tuple of Certificate
        Of the result.
    as_json : bool
        Print ``content`` and not ``summary``.
    out_file : pathlib.Path or None
        Where to write ``content``.
    """
    from assay.result import to_jsonable

    whole = to_jsonable(content)
    if out_file is not None:
        _write(out_file, json.dumps(whole, allow_nan=False, ensure_ascii=False) + "\n")
    if as_json:
        print_json(whole)
    else:
        console = out()
        facts = RichTable.grid(padding=(0, 2))
        for words, value in summary.items():
            facts.add_row(f"[bold]{escape(words)}[/]", escape(str(value)))
        console.print(facts)
        if certificates:
            console.print()
            console.print(certificate_table(certificates))
        if out_file is not None:
            console.print(f"\nwritten to {escape(str(out_file))}")
    if not all(c.holds and not c.violated for c in certificates):
        raise typer.Exit(FAILED)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all; what is no file, a pipe for example, is written to as it is."""
    try:
        target = path.resolve()  # a link stays a link
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
