"""``assay supervised``: classifiers and response models for tables in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from assay.cli.console import JsonOption, OutOption, QuietOption, present, reporting_errors, waiting, warn
from assay.cli.tables import as_numbers, labelled_table

__all__ = ["supervised_app"]

# Of a longer test the table on a terminal shows the first items; --out and --json have all of them.
_MOST_ITEMS = 100

supervised_app = typer.Typer(help="Labels, preferences and responses.", no_args_is_help=True)


@supervised_app.callback()
def _family() -> None:
    """Labels, preferences and responses."""


@supervised_app.command("linear-core")
@reporting_errors
def linear_core(
    data: Annotated[Path, typer.Argument(help="Table with a header: csv, tsv or parquet.")],
    target: Annotated[str, typer.Option("--target", help="Column with the labels.")],
    strength: Annotated[float, typer.Option("-C", help="Inverse strength of the regularization.")] = 1.0,
    tol: Annotated[float, typer.Option("--tol", help="Relative duality gap to reach.")] = 1e-6,
    folds: Annotated[int, typer.Option("--folds", min=2, help="Folds of the cross-validated accuracy.")] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the folds.")] = 0,
    as_json: JsonOption = False,
    out_file: OutOption = None,
    quiet: QuietOption = False,
) -> None:
    """Fit a linear classifier with the linear-core loss.

    Columns of words are one-hot encoded, numbers scaled; missing values become the most frequent word or the mean.
    """
    import numpy as np
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline

    from assay.supervised import LinearCoreClassifier

    features, labels = labelled_table(data, target)
    counts = labels.value_counts()
    if counts.min() < 2:
        raise ValueError(
            "--target must have at least 2 rows of every class, got 1 of "
            f"{counts.idxmin()} (a classifier needs classes, not measurements)"
        )
    model = make_pipeline(as_numbers(), LinearCoreClassifier(C=strength, tol=tol))
    if folds > counts.min():
        warn(f"--folds is at most the size of the smallest class: {counts.min()} folds instead of {folds}")
    splits = StratifiedKFold(min(folds, int(counts.min())), shuffle=True, random_state=seed)
    with waiting(f"fitting {len(features)} rows", quiet):
        model.fit(features, labels)
        scores = cross_val_score(model, features, labels, cv=splits)
    classifier = model[-1]
    names = [str(name) for name in model[:-1].get_feature_names_out()]
    weight = np.abs(classifier.coef_).max(axis=0)
    summary = {
        "data": f"{data.name}, {len(features)} rows, {features.shape[1]} columns, {len(counts)} classes",
        "accuracy": f"{scores.mean():.4f} +- {scores.std():.4f} ({splits.get_n_splits()}-fold cross-validation)",
        "largest class": f"{counts.max() / len(features):.4f}",
        "heaviest columns": ", ".join(names[i] for i in np.argsort(-weight, kind="stable")[:5]),
    }
    content = {
        "classes": classifier.classes_,
        "features": names,
        "coef": classifier.coef_,
        "intercept": classifier.intercept_,
        "accuracy": scores,
        "certificates": classifier.certificates_,
    }
    present(summary, content, tuple(classifier.certificates_), as_json=as_json, out_file=out_file)


@supervised_app.command("rasch")
@reporting_errors
def rasch(
    data: Annotated[Path, typer.Argument(help="Right (1) and wrong (0) answers: csv or tsv, wide or long.")],
    user: Annotated[str | None, typer.Option("--user", help="Column with the users.")] = None,
    item: Annotated[str | None, typer.Option("--item", help="Column with the items, of a long file.")] = None,
    response: Annotated[str | None, typer.Option("--response", help="Column with the answers, of a long file.")] = None,
    v_theta: Annotated[
        str, typer.Option("--v-theta", help="Prior variance of abilities: a number, inf, or moment to estimate it.")
    ] = "1",
    v_beta: Annotated[float, typer.Option("--v-beta", help="Prior variance of difficulties: a number, or inf.")] = 1.0,
    update: Annotated[str, typer.Option("--update", help="joint or coordinate.")] = "joint",
    center: Annotated[bool, typer.Option("--center", help="Report difficulties with mean 0.")] = False,
    accelerate: Annotated[bool, typer.Option("--accelerate", help="Extrapolate from pairs of iterations.")] = False,
    tol: Annotated[float, typer.Option("--tol", help="Largest change, and relative distance to the maximum.")] = 1e-8,
    max_iter: Annotated[int, typer.Option("--max-iter", min=1, help="Most iterations.")] = 2000,
    as_json: JsonOption = False,
    out_file: OutOption = None,
    quiet: QuietOption = False,
) -> None:
    """Fit a Rasch model: difficulties of items, abilities of users, and how well each item fits.

    A wide file has a row per user and a column per item, and empty cells where there is no answer. A long file has
    columns for the user, the item and the response; they are found by their usual names, or named by the options.
    """
    import numpy as np
    from rich.table import Table

    from assay.cli.console import out
    from assay.supervised import fit_rasch, rasch_fit_statistics, read_responses

    table = read_responses(data, user=user, item=item, response=response)
    try:
        variance = v_theta if v_theta == "moment" else float(v_theta)
    except ValueError:
        raise ValueError(f"--v-theta must be a number, inf or moment, got {v_theta!r}") from None
    with waiting(f"fitting {table.shape[0]} users and {table.shape[1]} items", quiet):
        fit = fit_rasch(
            table,
            v_theta=variance,
            v_beta=v_beta,
            update=update,
            identification="center" if center else "prior",
            accelerate=accelerate,
            tol=tol,
            max_iter=max_iter,
        )
        statistics = rasch_fit_statistics(table, fit.abilities, fit.difficulties)
    items = fit.items().join(statistics.items())
    if not as_json:
        shown = Table(title="items", title_justify="left", title_style="bold", box=None, pad_edge=False)
        shown.add_column("item", overflow="fold")
        for name in ("answers", "difficulty", "se", "infit", "z", "outfit", "z"):
            shown.add_column(name, justify="right")
        answers = table.notna().sum(axis=0).to_numpy()
        for position, (name, row) in enumerate(items.head(_MOST_ITEMS).iterrows()):
            numbers = (row["difficulty"], row["se"], row["infit"], row["infit_z"], row["outfit"], row["outfit_z"])
            shown.add_row(escape(str(name)), str(answers[position]), *(f"{number:.3f}" for number in numbers))
        console = out()
        console.print(shown)
        if len(items) > _MOST_ITEMS:
            console.print(f"and {len(items) - _MOST_ITEMS} more, which --out writes")
        console.print()
    spread = f"mean {np.mean(fit.abilities):.3f}, standard deviation {np.std(fit.abilities):.3f}"
    summary = {
        "data": f"{data.name}, {table.shape[0]} users, {table.shape[1]} items, {fit.n_responses} responses",
        "prior variances": f"{fit.v_theta:g} of abilities, {fit.v_beta:g} of difficulties",
        "log-posterior": f"{fit.log_posterior:.6f}",
        "abilities": f"{spread}, mean standard error {np.mean(fit.se_abilities):.3f}",
        "iterations": f"{fit.n_iter}, on {fit.n_groups} different rows",
    }
    content = fit.to_dict() | {"fit_statistics": statistics}
    present(summary, content, fit.certificates, as_json=as_json, out_file=out_file)
