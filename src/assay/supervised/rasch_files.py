"""Right and wrong answers from files of the user's own."""

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

__all__ = ["read_responses"]

_MAX_BYTES = 2 * 1024**3

_USER_NAMES = ("user", "user_id", "person", "person_id", "student", "student_id", "respondent", "subject", "id")
_ITEM_NAMES = ("item", "item_id", "question", "question_id", "task", "problem", "problem_id")
_RESPONSE_NAMES = ("response", "correct", "answer", "score", "value", "x")


def read_responses(
    path: str | os.PathLike[str],
    *,
    user: str | None = None,
    item: str | None = None,
    response: str | None = None,
) -> pd.DataFrame:
    r"""Read right and wrong answers from a csv file, wide or long.

    A wide file has a row per user and a column per item, and empty cells where there is no answer. A long file has a
    row per answer, with columns for the user, the item and the response. A file is taken for long when it has all three
    columns, under the names given or under usual ones (user, person, student, ...; item, question, ...; response,
    correct, ...).

    Parameters
    ----------
    path : path
        ``.csv``, or ``.tsv`` with tabulators, with a header row.
    user : str, optional
        Column with the users; in a wide file they become the index.
    item, response : str, optional
        Columns of a long file.

    Returns
    -------
    pandas.DataFrame of shape (n_users, n_items)
        Of dtype ``Int8``, with ``pandas.NA`` for what is missing; users and items in order of appearance.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is larger than 2 GiB, is no table, lacks a column, has two columns of one name or more values in a row
        than names, an answer other than 0, 1 and empty, or two rows of one user (in a long file, for one item).

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from assay.supervised import read_responses
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "answers.csv"
    >>> _ = path.write_text("user,item,response\nann,q1,1\nann,q2,0\nbob,q2,1\n")
    >>> read_responses(path)
    item    q1  q2
    user
    ann      1   0
    bob   <NA>   1
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise ValueError(f"{path.name} must be a .csv or .tsv file")
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ValueError(f"{path.name} must be at most {_MAX_BYTES} bytes, got {size}")
    separator = "," if path.suffix.lower() == ".csv" else "\t"
    try:
        header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0].dropna()
        with warnings.catch_warnings():
            # Of a row that is too long, values would otherwise be lost or taken for labels.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, sep=separator, index_col=False)
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path.name} is empty") from error
    except pd.errors.ParserWarning as error:
        raise ValueError(f"{path.name} must have at most as many values in a row as names in its header") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not a table: {' '.join(str(error).split())}") from error
    if header.duplicated().any():
        twice = header[header.duplicated()].iloc[0]
        raise ValueError(f"{path.name} must have a header of different names, got {twice!r} twice")
    if frame.empty:
        raise ValueError(f"{path.name} has no rows")
    columns = [
        _find_column(frame, name, usual, words, path.name)
        for name, usual, words in (
            (user, _USER_NAMES, "user"),
            (item, _ITEM_NAMES, "item"),
            (response, _RESPONSE_NAMES, "response"),
        )
    ]
    if None not in columns:
        return _pivot(frame, *columns, path.name)  # type: ignore[arg-type]
    for given, name in ((item, "item"), (response, "response")):
        if given is not None:
            missing = ("user", "item", "response")[columns.index(None)]
            raise ValueError(f"{path.name} has no column for the {missing}, which a long file with {name}= needs")
    if columns[0] is not None:
        if frame[columns[0]].isna().any():
            raise ValueError(f"{path.name} must have a user in every row of column {columns[0]!r}")
        frame = frame.set_index(columns[0])
    hint = "" if columns[0] is not None else " (if the column says who answered, name it with user=)"
    wide = pd.DataFrame(
        {name: _as_answers(column, f"column {name!r} of {path.name}", hint) for name, column in frame.items()},
        index=frame.index,
    )
    twice = wide.index.duplicated()
    if twice.any():
        raise ValueError(f"{path.name} must have one row per user, got two of {wide.index[twice][0]}")
    return wide


def _find_column(frame: pd.DataFrame, given: str | None, usual: tuple[str, ...], words: str, file: str) -> str | None:
    if given is not None:
        if given not in frame.columns:
            raise ValueError(
                f"{words} must be a column of {file} ({', '.join(map(str, frame.columns))}), got {given!r}"
            )
        return given
    found = [name for name in frame.columns if str(name).strip().lower() in usual]
    return found[0] if found else None


def _pivot(frame: pd.DataFrame, user: str, item: str, response: str, file: str) -> pd.DataFrame:
    if len({user, item, response}) < 3:
        raise ValueError(f"user, item and response must be different columns of {file}, got {user}, {item}, {response}")
    for column in (user, item):
        if frame[column].isna().any():
            raise ValueError(f"column {column!r} of {file} must have a value in every row")
    twice = frame.duplicated([user, item])
    if twice.any():
        one = frame[twice].iloc[0]
        raise ValueError(f"{file} must have one response per user and item, got two of {one[user]} to {one[item]}")
    rows, users = pd.factorize(frame[user])
    columns, items = pd.factorize(frame[item])
    answers = _as_answers(frame[response], f"column {response!r} of {file}")
    cells = np.full((len(users), len(items)), -1, dtype=np.int8)
    cells[rows, columns] = answers.fillna(-1)
    wide = {name: pd.array(np.maximum(column, 0), dtype="Int8") for name, column in zip(items, cells.T, strict=True)}
    table = pd.DataFrame(wide, index=pd.Index(users, name=user))
    table.columns.name = item
    return table.mask(cells < 0)


def _as_answers(column: pd.Series, words: str, hint: str = "") -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce") if column.dtype != bool else column.astype("Int8")
    bad = (numbers.isna() & column.notna()) | (numbers.notna() & (numbers != 0) & (numbers != 1))
    if bad.any():
        one = column[bad].iloc[0]
        raise ValueError(
            f"{words} must have 0, 1 or nothing in every row, got {repr(one) if isinstance(one, str) else one}{hint}"
        )
    return numbers.astype("Int8")
