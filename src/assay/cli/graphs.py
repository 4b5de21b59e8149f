"""``assay graphs``: tours of cities in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import JsonOption, OutOption, QuietOption, present, reporting_errors, waiting, warn

__all__ = ["graphs_app"]

graphs_app = typer.Typer(help="Graphs and tours.", no_args_is_help=True)


@graphs_app.callback()
def _family() -> None:
    """Graphs and tours."""


@graphs_app.command("tour")
@reporting_errors
def tour(
    cities: Annotated[Path, typer.Argument(help="TSPLIB file.")],
    heatmap: Annotated[
        Path | None,
        typer.Option(
            "--heatmap",
            help="Edge scores in [0, 1], cities from 0: npz (p, or i, j, p), npy or csv (i,j,p); none: Christofides.",
        ),
    ] = None,
    improve: Annotated[str | None, typer.Option("--improve", help="Local search: 2opt, oropt or both.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of what is random.")] = 0,
    as_json: JsonOption = False,
    out_file: OutOption = None,
    quiet: QuietOption = False,
) -> None:
    """Turn edge scores into a tour whose cost is certified against a lower bound on every tour."""
    import scipy.sparse as sp

    from assay.data import read_heatmap, read_tsplib
    from assay.graphs import decode_heatmap

    instance = read_tsplib(cities)
    cost = instance.distances()
    n = cost.shape[0]
    scores = sp.csr_array((n, n)) if heatmap is None else read_heatmap(heatmap, n=n)
    named = {int(city) for ends in scores.nonzero() for city in ends}
    if heatmap is not None and named and 0 not in named:
        warn(f"{heatmap.name} has no score for city 0: cities are numbered from 0 there")
    with waiting(f"decoding {instance.name}, {n} cities", quiet):
        result = decode_heatmap(cost, scores, improve=improve, lower_bound=True, random_state=seed)
    summary = {
        "instance": f"{instance.name}, {n} cities",
        "cost": f"{result.cost:.10g}",
        "lower bound": f"{result.lower_bound:.10g}",
        "at most above the optimum": _percent_above(result.cost, result.lower_bound),
        "found by": "Christofides" if result.source == "empty" else result.source,
        "tour": " ".join(str(city + 1) for city in result.tour[:20]) + (" ..." if n > 20 else ""),
    }
    present(summary, result, result.certificates, as_json=as_json, out_file=out_file)


def _percent_above(cost: float, bound: float) -> str:
    """How far a cost may be above the optimum, when a lower bound on it is known."""
    if cost <= bound:
        return "0 %"
    return f"{100 * (cost / bound - 1):.2f} %" if bound > 0 else "unknown"
