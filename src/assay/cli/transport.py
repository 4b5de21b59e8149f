"""``assay transport``: alignments of graphs in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import JsonOption, OutOption, QuietOption, present, reporting_errors, waiting

__all__ = ["transport_app"]

transport_app = typer.Typer(help="Distributions and alignments.", no_args_is_help=True)


@transport_app.callback()
def _family() -> None:
    """Distributions and alignments."""


@transport_app.command("align")
@reporting_errors
def align(
    first: Annotated[Path, typer.Argument(help="Graph or distance matrix: graphml, gml, edge list, npy, npz, mtx.")],
    second: Annotated[Path, typer.Argument(help="The other one.")],
    init: Annotated[
        str, typer.Option("--init", help="degree, uniform or best; of several, with commas, the lowest end is kept.")
    ] = "degree,uniform",
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Divide edges by the square roots of the two degrees; by default for graphs and sparse matrices.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random starts of --init best.")] = 0,
    as_json: JsonOption = False,
    out_file: OutOption = None,
    quiet: QuietOption = False,
) -> None:
    """Align two graphs: which node corresponds to which, and how far the two are from being the same graph."""
    from assay.data import read_graph
    from assay.transport import lobcd_gw

    left, right = read_graph(first), read_graph(second)
    with waiting(f"aligning {len(left.nodes)} with {len(right.nodes)} nodes", quiet):
        result = lobcd_gw(
            left.matrix,
            right.matrix,
            init=tuple(name.strip() for name in init.split(",")),
            normalize="auto" if normalize is None else normalize,
            rng=seed,
        )
    pairs = [(left.nodes[i], right.nodes[j]) for i, j in enumerate(result.mapping)]
    summary = {
        "graphs": f"{first.name}, {len(left.nodes)} nodes; {second.name}, {len(right.nodes)} nodes",
        "Gromov-Wasserstein": f"{result.value:.10g}",
        "lower bound": f"{result.lower_bound:.10g}",
        "mapping": ", ".join(f"{a} -> {b}" for a, b in pairs[:12]) + (", ..." if len(pairs) > 12 else ""),
    }
    content = result.to_dict() | {"pairs": [[str(a), str(b)] for a, b in pairs]}
    present(summary, content, result.certificates, as_json=as_json, out_file=out_file)
