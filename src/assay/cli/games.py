"""``assay games``: equilibria of games in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import JsonOption, OutOption, QuietOption, present, reporting_errors, waiting

__all__ = ["games_app"]

games_app = typer.Typer(help="Games and saddle points.", no_args_is_help=True)


@games_app.callback()
def _family() -> None:
    """Games and saddle points."""


@games_app.command("solve")
@reporting_errors
def solve(
    payoff: Annotated[
        Path,
        typer.Argument(
            help="Payoffs to the column player (the row player pays): csv, tsv, txt, npy, npz, json or nfg."
        ),
    ],
    method: Annotated[str, typer.Option("--method", help="hpssn, pssn, ssn or prm+.")] = "hpssn",
    tol: Annotated[float, typer.Option("--tol", help="Duality gap to reach, in units of the payoffs.")] = 1e-10,
    rtol: Annotated[bool, typer.Option("--rtol", help="Let --tol be relative to the largest payoff.")] = False,
    max_iter: Annotated[int, typer.Option("--max-iter", help="First-order iterations at most.")] = 100_000,
    as_json: JsonOption = False,
    out_file: OutOption = None,
    quiet: QuietOption = False,
) -> None:
    """Solve a two-player zero-sum matrix game: equilibrium strategies, value, and a certified duality gap."""
    from assay.data import read_game
    from assay.games import solve_matrix_game

    game = read_game(payoff)
    with waiting(f"solving {payoff.name}, {game.shape[0]} x {game.shape[1]}", quiet):
        result = solve_matrix_game(game, method=method, tol=tol, rtol=rtol, max_iter=max_iter)
    summary = {
        "game": f"{payoff.name}, {game.shape[0]} x {game.shape[1]}",
        "value": f"{result.value:.12g}",
        "duality gap": f"{result.gap:.3g}",
        "row strategy": _strategy(result.x),
        "column strategy": _strategy(result.y),
        "iterations": f"{result.n_prm} first-order, {result.n_newton} Newton, {result.n_interior} interior-point",
    }
    present(summary, result, result.certificates, as_json=as_json, out_file=out_file)


def _strategy(probabilities, most: int = 8) -> str:
    """The actions that are played, most likely first."""
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
    played = [i for i in order if probabilities[i] > 0]
    shown = ", ".join(f"{i}: {probabilities[i]:.6g}" for i in played[:most])
    return shown + (f", ... ({len(played)} actions)" if len(played) > most else "")
