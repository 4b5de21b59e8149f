"""Tables of right and wrong answers: what users pass in, as one byte per cell or as the list of observed cells.

A table of responses has a row per user and a column per item, and most tables have holes. Everything that a Rasch model
is estimated from is a sum over the observed cells, so a table is kept as one signed byte per cell (1 right, 0 wrong, -1
missing) or, when it came as a sparse matrix, as its observed cells. Both are read block by block, and no table of
floating-point numbers of the size of the data is ever made.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Int8
from scipy import sparse

__all__ = ["DenseBlock", "Responses", "SparseBlock", "check_responses"]

_BLOCK_CELLS = 1 << 18


_WANTED = "X must be a table of 0, 1 and nan (missing)"


@dataclass(frozen=True, eq=False)
class DenseBlock:
    """Some rows of a dense table; ``observed`` is None where nothing is missing."""

    users: slice
    answers: Int8[np.ndarray, "rows items"]
    observed: np.ndarray | None

    def margins(
        self, abilities: Float[np.ndarray, " users"], difficulties: Float[np.ndarray, " items"]
    ) -> Float[np.ndarray, "rows items"]:
        """Ability minus difficulty in every cell."""
        return abilities[self.users, None] - difficulties

    def sum_items(self, values: np.ndarray) -> Float[np.ndarray, " rows"]:
        """Sum over the observed cells of every row."""
        return (values if self.observed is None else values * self.observed).sum(axis=1, dtype=float)

    def sum_users(self, values: np.ndarray) -> Float[np.ndarray, " items"]:
        """Sum over the observed cells of every column."""
        return (values if self.observed is None else values * self.observed).sum(axis=0, dtype=float)


@dataclass(frozen=True, eq=False)
class SparseBlock:
    """The observed cells of some rows."""

    users: slice
    rows: np.ndarray
    columns: np.ndarray
    answers: np.ndarray
    n_items: int

    def margins(
        self, abilities: Float[np.ndarray, " users"], difficulties: Float[np.ndarray, " items"]
    ) -> Float[np.ndarray, " cells"]:
        """Ability minus difficulty in every observed cell."""
        return abilities[self.users][self.rows] - difficulties[self.columns]

    def sum_items(self, values: np.ndarray) -> Float[np.ndarray, " rows"]:
        """Sum over the observed cells of every row."""
        # Without cells numpy counts in integers.
        return np.bincount(self.rows, values, minlength=self.users.stop - self.users.start).astype(float, copy=False)

    def sum_users(self, values: np.ndarray) -> Float[np.ndarray, " items"]:
        """Sum over the observed cells of every column."""
        return np.bincount(self.columns, values, minlength=self.n_items).astype(float, copy=False)


@dataclass(frozen=True, eq=False)
class Responses:
    """A checked table of responses.

    Parameters
    ----------
    cells : numpy.ndarray of int8 or scipy.sparse.csr_array of int8, of shape (n_users, n_items)
        An array has 1 for right, 0 for wrong and -1 for missing; a sparse array stores the observed cells, those with
        value 0 among them.
    user_names, item_names : list or None
        Labels of the rows and columns of a data frame.
    """

    cells: Any
    user_names: list[Any] | None = field(default=None)
    item_names: list[Any] | None = field(default=None)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of users, number of items."""
        return int(self.cells.shape[0]), int(self.cells.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether only the observed cells are stored."""
        return sparse.issparse(self.cells)

    def blocks(self) -> Iterator[DenseBlock | SparseBlock]:
        """Blocks of consecutive rows, of about a quarter of a million cells."""
        n_users, n_items = self.shape
        if not self.is_sparse:
            for rows in row_slices(n_users, n_items):
                answers = self.cells[rows]
                yield DenseBlock(rows, answers, None if self.is_complete else answers >= 0)
            return
        table = self.cells
        for rows in row_slices(n_users, max(1, table.nnz // max(n_users, 1))):
            start, stop = table.indptr[rows.start], table.indptr[rows.stop]
            counts = np.diff(table.indptr[rows.start : rows.stop + 1])
            local = np.repeat(np.arange(len(counts)), counts)
            yield SparseBlock(rows, local, table.indices[start:stop], table.data[start:stop], n_items)

    @cached_property
    def is_complete(self) -> bool:
        """Whether every cell of a dense table is observed."""
        if self.is_sparse:
            return False
        return all(self.cells[rows].min() >= 0 for rows in row_slices(*self.shape))

    @cached_property
    def totals(
        self,
    ) -> tuple[
        Int[np.ndarray, " users"], Int[np.ndarray, " users"], Int[np.ndarray, " items"], Int[np.ndarray, " items"]
    ]:
        """Observed and right answers of every user, observed and right answers to every item."""
        n_users, n_items = self.shape
        user_counts, user_right = np.zeros(n_users, dtype=np.int64), np.zeros(n_users, dtype=np.int64)
        item_counts, item_right = np.zeros(n_items, dtype=np.int64), np.zeros(n_items, dtype=np.int64)
        for block in self.blocks():
            if isinstance(block, DenseBlock):
                # Sums of bytes: a block of them in wider integers would cost eight times as much.
                right = block.answers if block.observed is None else block.answers * block.observed
                seen = np.ones(right.shape, dtype=bool) if block.observed is None else block.observed
                user_right[block.users], item_totals = right.sum(axis=1), right.sum(axis=0)
                user_counts[block.users], item_seen = seen.sum(axis=1), seen.sum(axis=0)
            else:
                user_right[block.users], item_totals = block.sum_items(block.answers), block.sum_users(block.answers)
                ones = np.ones(len(block.answers))
                user_counts[block.users], item_seen = block.sum_items(ones), block.sum_users(ones)
            item_right += item_totals.astype(np.int64)
            item_counts += item_seen.astype(np.int64)
        return user_counts, user_right, item_counts, item_right

    @property
    def n_observed(self) -> int:
        """Number of observed cells."""
        return int(self.totals[0].sum())

    def name_of_user(self, user: int) -> str:
        """How messages call a user."""
        return f"user {user if self.user_names is None else self.user_names[user]!r}"

    def name_of_item(self, item: int) -> str:
        """How messages call an item."""
        return f"item {item if self.item_names is None else self.item_names[item]!r}"

    def comparisons(self) -> Float[np.ndarray, "items items"]:
        """How many users answered the row's item rightly and the column's item wrongly.

        O(n_users n_items^2) for a dense table, in single precision, which counts to 2^24 per block exactly.
        """
        n_items = self.shape[1]
        if self.is_sparse:
            right, wrong = self.cells.astype(np.float64), self.cells.astype(np.float64)
            wrong.data = 1.0 - wrong.data
            return np.asarray((right.T @ wrong).todense(), dtype=float)
        wins = np.zeros((n_items, n_items))
        for rows in row_slices(self.shape[0], n_items, 16 * _BLOCK_CELLS):
            answers = self.cells[rows]
            wins += (answers == 1).T.astype(np.float32) @ (answers == 0).astype(np.float32)
        return wins


def row_slices(n_rows: int, width: int, cells: int | None = None) -> Iterator[slice]:
    """Slices of consecutive rows with about ``cells`` cells each, by default a quarter of a million."""
    size = max(1, (_BLOCK_CELLS if cells is None else cells) // max(width, 1))
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def check_responses(X: Any, mask: Any = None, *, min_users: int = 2, n_items: int | None = None) -> Responses:
    """Check a table of responses and bring it into the form that the estimators work on.

    Parameters
    ----------
    X : array_like, masked array, pandas.DataFrame or scipy.sparse matrix of shape (n_users, n_items)
        1 for right, 0 for wrong, nan (or masked, or ``pandas.NA``) for missing; booleans, integers and floats. An int8
        or boolean array without missing cells is used as it is and takes one byte per cell.
    mask : array_like or scipy.sparse matrix of the shape of X, optional
        True (non-zero) where the response was observed. Needed for a sparse ``X``, whose zeros would otherwise all be
        wrong answers. What ``X`` has elsewhere is not looked at.
    min_users : int, default=2
        Least number of rows.
    n_items : int, optional
        Required number of columns; by default at least 2.

    Returns
    -------
    Responses

    Raises
    ------
    TypeError
        If ``X`` is sparse and there is no mask, or is not numeric.
    ValueError
        If ``X`` is not two-dimensional, too small, has a value that is none of 0, 1 and nan, or is missing everywhere.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.rasch_responses import check_responses
    >>> check_responses([[1, 0, np.nan], [0, 1, 1]]).cells
    array([[ 1,  0, -1],
           [ 0,  1,  1]], dtype=int8)
    """
    if isinstance(X, Responses):
        return X
    user_names = item_names = None
    if isinstance(X, pd.DataFrame):
        user_names, item_names = X.index.tolist(), X.columns.tolist()
    if sparse.issparse(X):
        if mask is None:
            raise TypeError(
                f"{_WANTED}; a sparse matrix needs mask=, which says what was observed, since its zeros would all be "
                "wrong answers. Or pass X.toarray()"
            )
        cells: Any = _sparse_cells(X, mask)
    else:
        table = X if isinstance(X, pd.DataFrame) else _as_table(X)
        _check_shape(table.shape, min_users, n_items)
        cells = _dense_cells(table, mask)
    responses = Responses(cells, user_names, item_names)
    _check_shape(responses.shape, min_users, n_items)
    if responses.n_observed == 0:
        raise ValueError(f"{_WANTED} with at least one response, got none")
    return responses


def _check_shape(shape: tuple[int, ...], min_users: int, n_items: int | None) -> None:
    if len(shape) != 2:
        hint = " Reshape your data" if len(shape) == 1 else ""
        raise ValueError(f"{_WANTED} with a row per user and a column per item, got shape {shape}.{hint}")
    if shape[0] < min_users:
        raise ValueError(f"{_WANTED} of at least {min_users} users, got {shape[0]} (n_samples = {shape[0]})")
    if n_items is None and shape[1] < 2:
        raise ValueError(
            f"{_WANTED} of at least 2 items, got {shape[1]} feature(s) (shape={tuple(shape)}) while a minimum of 2 is "
            "required."
        )
    if n_items is not None and shape[1] != n_items:
        raise ValueError(f"{_WANTED} with a column for each of the {n_items} items, got {shape[1]} columns")


def _as_table(X: Any) -> Any:
    if hasattr(X, "detach"):  # a tensor
        X = X.detach().cpu().numpy()
    if isinstance(X, np.ma.MaskedArray):
        table = X
    else:
        try:
            table = np.asarray(X)
        except ValueError as error:
            raise ValueError(f"{_WANTED}, got rows of different lengths") from error
    if np.iscomplexobj(table):
        raise ValueError(f"{_WANTED}. Complex data not supported: got dtype {table.dtype}")
    if table.dtype.kind == "O":
        for item in table.flat:
            if not (item is None or item is pd.NA or isinstance(item, int | float | np.number | np.bool_)):
                raise TypeError(
                    f"{_WANTED}, got an entry of another type, {type(item).__name__}: argument must be a string or a "
                    "number is not enough, it must be a number"
                )
        return pd.DataFrame(table) if table.ndim == 2 else table
    if table.dtype.kind not in "biuf":
        raise TypeError(f"{_WANTED}, got dtype {table.dtype}")
    return table


def _dense_cells(table: Any, mask: Any) -> Int8[np.ndarray, "users items"]:
    is_frame = isinstance(table, pd.DataFrame)
    hidden = np.ma.getmaskarray(table) if isinstance(table, np.ma.MaskedArray) and np.ma.is_masked(table) else None
    table = table if is_frame else np.ma.getdata(table)
    if mask is not None:
        mask = sparse.csr_array(mask) if sparse.issparse(mask) else np.asarray(mask)
        _check_mask(mask, table.shape)
    if not is_frame and mask is None and hidden is None and table.dtype in (np.dtype(np.int8), np.dtype(bool)):
        cells = table.view(np.int8)
        if table.size and (cells.min() < 0 or cells.max() > 1):
            raise ValueError(f"{_WANTED}, got {cells.min() if cells.min() < 0 else cells.max()}")
        return cells
    cells = np.empty(table.shape, dtype=np.int8)
    for rows in row_slices(*table.shape):
        block = _frame_block(table.iloc[rows]) if is_frame else table[rows]
        missing = np.isnan(block) if block.dtype.kind == "f" else np.zeros(block.shape, dtype=bool)
        if hidden is not None:
            missing |= hidden[rows]
        if mask is not None:
            seen = mask[rows].toarray() if sparse.issparse(mask) else mask[rows]
            missing |= seen == 0
        bad = ~(missing | (block == 0) | (block == 1))
        if bad.any():
            raise ValueError(f"{_WANTED}, got {block[bad][0]:g}{_infinity_hint(block[bad][0])}")
        cells[rows] = np.where(missing, -1, block == 1)
    return cells


def _infinity_hint(number: Any) -> str:
    return " (infinity)" if np.isinf(number) else ""


def _frame_block(frame: pd.DataFrame) -> np.ndarray:
    words = [(name, column) for name, column in frame.items() if not pd.api.types.is_numeric_dtype(column.dtype)]
    for name, column in words:
        if column.dtype != object or any(isinstance(entry, str | bytes) for entry in column):
            raise TypeError(f"{_WANTED}, got a column that is not numeric, {name!r}")
    if words:
        frame = frame.astype(object).where(frame.notna(), np.nan)
    try:
        return frame.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{_WANTED}, got columns that are not numeric") from error


def _check_mask(mask: Any, shape: tuple[int, ...]) -> None:
    if mask.shape != tuple(shape):
        raise ValueError(f"mask must have the shape of X, {tuple(shape)}, got {mask.shape}")
    if mask.dtype.kind not in "biuf":
        raise TypeError(f"mask must be a table of True and False, got dtype {mask.dtype}")
    if np.isnan(mask.data if sparse.issparse(mask) else mask).any():
        raise ValueError("mask must be a table of True and False, got nan")


def _sparse_cells(X: Any, mask: Any) -> sparse.csr_array:
    observed = sparse.csr_array(mask)
    _check_mask(observed, X.shape)
    observed.eliminate_zeros()
    observed.sort_indices()
    rows = np.repeat(np.arange(observed.shape[0]), np.diff(observed.indptr))
    table = sparse.csr_array(X)
    values = np.zeros(0) if not len(rows) else np.asarray(table[rows, observed.indices]).ravel()
    bad = (values != 0) & (values != 1)
    if bad.any():
        raise ValueError(f"{_WANTED}, got {values[bad][0]:g} where mask says that it was observed")
    return sparse.csr_array((values.astype(np.int8), observed.indices, observed.indptr), shape=observed.shape)
