"""Tables of the user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

__all__ = ["read_table"]

_MAX_BYTES = 2 * 1024**3


def read_table(path: str | os.PathLike[str], *, label: str | None = None) -> pd.DataFrame:
    r"""Read a table with a header row.

    Parameters
    ----------
    path : path
        ``.csv``, ``.tsv`` or ``.parquet``.
    label : str, optional
        A column of labels: words such as ``NA`` or ``None`` are labels there, and only an empty cell is missing.

    Returns
    -------
    pandas.DataFrame

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the ending is unknown, the file is larger than 2 GiB, cannot be parsed, has no rows, or has two columns of
        one name.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from assay.data import read_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "data.csv"
    >>> _ = path.write_text("x,y\n1,a\n2,b\n")
    >>> read_table(path).shape
    (2, 2)
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (".csv", ".tsv", ".parquet"):
        raise ValueError(f"{path.name} must be a .csv, .tsv or .parquet file")
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ValueError(f"{path.name} must be at most {_MAX_BYTES} bytes, got {size}")
    try:
        if kind == ".parquet":
            frame = pd.read_parquet(path, engine="pyarrow")
        else:
            separator = "," if kind == ".csv" else "\t"
            header = pd.read_csv(path, sep=separator, nrows=1, header=None, dtype=str)
            names = header.iloc[0].tolist() if len(header) else []
            repeated = sorted({str(name) for name in names if names.count(name) > 1})
            if repeated:
                raise ValueError(f"{path.name} must have distinct column names, repeated: {', '.join(repeated)}")
            frame = pd.read_csv(path, sep=separator)
            if label in frame.columns:
                labels = pd.read_csv(path, sep=separator, usecols=[label], keep_default_na=False, na_values=[""])
                frame[label] = labels[label]
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path.name} is empty") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not a table: {' '.join(str(error).split())}") from error
    except OSError as error:
        if kind == ".parquet" and error.errno is None:  # pyarrow raises OSError for a damaged file
            raise ValueError(f"{path.name} is not a Parquet file: {error}") from error
        raise
    if frame.empty:
        raise ValueError(f"{path.name} has no rows")
    return frame
