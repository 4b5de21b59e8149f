"""``assay supervised``: classifiers for tables in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.console import JsonOption, OutOption, QuietOption, present, reporting_errors, waiting, warn

__all__ = ["supervised_app"]

# Of a column with more different words, such as an identifier, the rarer ones count as one.
_MOST_WORDS = 50

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
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    from assay.data import read_table
    from assay.supervised import LinearCoreClassifier

    frame = read_table(data, label=target)
    if target not in frame.columns:
        raise ValueError(
            f"--target must be a column of {data.name} ({', '.join(map(str, frame.columns))}), got {target!r}"
        )
    labels = frame[target]
    if labels.isna().any():
        raise ValueError(f"--target must have a label in every row, {int(labels.isna().sum())} are missing")
    features = frame.drop(columns=target)
    if features.shape[1] == 0:
        raise ValueError(f"{data.name} has no column besides {target!r}")
    counts = labels.value_counts()
    if len(counts) < 2:
        raise ValueError(f"--target must have at least 2 classes, got {list(counts.index)}")
    if counts.min() < 2:
        raise ValueError(
            "--target must have at least 2 rows of every class, got 1 of "
            f"{counts.idxmin()} (a classifier needs classes, not measurements)"
        )
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    words = make_pipeline(
        SimpleImputer(strategy="most_frequent"),
        OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=_MOST_WORDS, sparse_output=False),
    )
    model = make_pipeline(
        make_column_transformer(
            (numbers, make_column_selector(dtype_include="number")), remainder=words, verbose_feature_names_out=False
        ),
        LinearCoreClassifier(C=strength, tol=tol),
    )
    if folds > counts.min():
        warn(f"--folds is at most the size of the smallest class: {counts.min()} folds instead of {folds}")
    splits = StratifiedKFold(min(folds, int(counts.min())), shuffle=True, random_state=seed)
    with waiting(f"fitting {len(frame)} rows", quiet):
        model.fit(features, labels)
        scores = cross_val_score(model, features, labels, cv=splits)
    classifier = model[-1]
    names = [str(name) for name in model[:-1].get_feature_names_out()]
    weight = np.abs(classifier.coef_).max(axis=0)
    summary = {
        "data": f"{data.name}, {len(frame)} rows, {features.shape[1]} columns, {len(counts)} classes",
        "accuracy": f"{scores.mean():.4f} +- {scores.std():.4f} ({splits.get_n_splits()}-fold cross-validation)",
        "largest class": f"{counts.max() / len(frame):.4f}",
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
