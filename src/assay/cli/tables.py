"""What commands on tables share: labels apart from features, and features as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["as_numbers", "labelled_table"]

# Of a column with more different words, such as an identifier, the rarer ones count as one.
_MOST_WORDS = 50


def labelled_table(path: Path, target: str) -> tuple[pd.DataFrame, pd.Series]:
    """Read a table and take the column of labels out of it."""
    from assay.data import read_table

    frame = read_table(path, label=target)
    if target not in frame.columns:
        raise ValueError(
            f"--target must be a column of {path.name} ({', '.join(map(str, frame.columns))}), got {target!r}"
        )
    labels = frame[target]
    if labels.isna().any():
        raise ValueError(f"--target must have a label in every row, {int(labels.isna().sum())} are missing")
    features = frame.drop(columns=target)
    if features.shape[1] == 0:
        raise ValueError(f"{path.name} has no column besides {target!r}")
    if labels.nunique() < 2:
        raise ValueError(f"--target must have at least 2 classes, got {list(labels.unique())}")
    return features, labels


def as_numbers() -> Any:
    """Columns of words one-hot encoded, numbers scaled, what is missing the most frequent word or the mean."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    words = make_pipeline(
        SimpleImputer(strategy="most_frequent"),
        OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=_MOST_WORDS, sparse_output=False),
    )
    return make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")), remainder=words, verbose_feature_names_out=False
    )
