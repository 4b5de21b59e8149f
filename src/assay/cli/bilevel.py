"""``assay bilevel``: problems inside problems, from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import JsonOption, OutOption, QuietOption, present, reporting_errors, waiting
from assay.cli.tables import as_numbers, labelled_table

__all__ = ["bilevel_app"]

bilevel_app = typer.Typer(help="Problems inside problems.", no_args_is_help=True)


@bilevel_app.callback()
def _family() -> None:
    """Problems inside problems."""


@bilevel_app.command("clean")
@reporting_errors
def clean(
    data: Annotated[Path, typer.Argument(help="Table whose labels may be wrong: csv, tsv or parquet, with a header.")],
    trusted: Annotated[Path, typer.Option("--trusted", help="Table with the same columns and labels that are right.")],
    target: Annotated[str, typer.Option("--target", help="Column of the labels.")],
    max_iter: Annotated[int, typer.Option("--max-iter", help="Outer steps.")] = 150,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the batches.")] = 0,
    as_json: JsonOption = False,
    out_file: OutOption = None,
    quiet: QuietOption = False,
) -> None:
    """Weigh every row: near 0 where its label looks wrong to a model that has to be right on the trusted rows."""
    import numpy as np

    from assay.bilevel import HyperCleaningClassifier

    (features, labels), (right, right_labels) = labelled_table(data, target), labelled_table(trusted, target)
    if set(right.columns) != set(features.columns):
        raise ValueError(f"--trusted must have the columns of {data.name}, {trusted.name} has {list(right.columns)}")
    numbers = as_numbers()
    X, X_val = numbers.fit_transform(features), numbers.transform(right[features.columns])
    model = HyperCleaningClassifier(max_iter=max_iter, random_state=seed)
    with waiting(f"cleaning {data.name}, {len(X)} rows", quiet):
        model.fit(X, labels.to_numpy(), X_val, right_labels.to_numpy())
    suspect = model.sample_weight_ < 0.5
    summary = {
        "data": f"{data.name}, {len(features)} rows, {features.shape[1]} columns",
        "suspect rows": f"{int(suspect.sum())} with a weight below one half",
        "first of them": ", ".join(str(i) for i in np.flatnonzero(suspect)[:20]),
    }
    content = {"sample_weight": model.sample_weight_, "suspect": suspect, "certificates": model.certificates_}
    present(summary, content, tuple(model.certificates_), as_json=as_json, out_file=out_file)
