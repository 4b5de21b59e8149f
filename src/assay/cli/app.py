"""The command line: one file per group of commands, put together here."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

import assay
from assay.cli.bilevel import bilevel_app
from assay.cli.catalogue import list_command, show_command
from assay.cli.console import INTERRUPTED, fail
from assay.cli.games import games_app
from assay.cli.graphs import graphs_app
from assay.cli.studying import check_command, report_command, run_command
from assay.cli.supervised import supervised_app
from assay.cli.transport import transport_app

__all__ = ["app"]


class _OneLineErrors(TyperGroup):
    """What the parser finds wrong is one line on standard error, like everything else that is wrong."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Parse and run; leave the process with an exit code unless told otherwise."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        try:
            code = super().main(*args, standalone_mode=False, **extra)
        except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:
            print(error.format_message())
            sys.exit(error.exit_code)
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            more = f"; see: {context.command_path} --help" if context is not None else ""
            sys.exit(fail(error.format_message().rstrip(".") + more, error.exit_code).exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="assay",
    cls=_OneLineErrors,
    help="Optimization and learning methods that certify their answers.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("list")(list_command)
app.command("show")(show_command)
app.command("run")(run_command)
app.command("check")(check_command)
app.command("report")(report_command)
app.add_typer(games_app, name="games")
app.add_typer(bilevel_app, name="bilevel")
app.add_typer(graphs_app, name="graphs")
app.add_typer(supervised_app, name="supervised")
app.add_typer(transport_app, name="transport")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"assay {assay.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Optimization and learning methods that certify their answers."""
