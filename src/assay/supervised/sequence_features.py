"""From what users call a sequence to the rows of one sparse matrix.

A position of a sequence is described by a token (anything hashable), by a dict of named features, or by a row of a
matrix. Tokens and names become columns when they are first seen. A token also describes its neighbours: with a window
of ``w`` there is one block of columns for each of the ``2 w + 1`` places where it can stand.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Int

from assay.validation import as_float_array

__all__ = ["SequenceFeatures", "without_tensors"]


class SequenceFeatures:
    """Encoder of sequences, fitted on the sequences of the training set.

    Parameters
    ----------
    window : int
        Tokens: how many neighbours on each side describe a position too.
    min_frequency : int
        Tokens seen less often share one column; dict features seen less often are dropped.
    handle_unknown : {"error", "ignore"}
        What :meth:`transform` does with tokens and names that were not seen: complain, or treat them as rare ones (no
        column at all if there were none).

    Attributes
    ----------
    kind : {"tokens", "dicts", "matrix"}
        What describes a position.
    vocabulary : dict
        Column of each token (within its block) or name; empty for matrices.
    n_columns : int
        Columns of the encoded matrix.

    Examples
    --------
    >>> from assay.supervised.sequence_features import SequenceFeatures
    >>> encoder = SequenceFeatures(window=0, min_frequency=1, handle_unknown="ignore")
    >>> rows, lengths = encoder.fit(["ab", "b"]).transform(["ba", "xb"])
    >>> rows.toarray().tolist(), lengths.tolist()
    ([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], [2, 2])
    """

    def __init__(self, window: int, min_frequency: int, handle_unknown: str) -> None:
        self.window = window
        self.min_frequency = min_frequency
        self.handle_unknown = handle_unknown

    def fit(self, sequences: Any) -> SequenceFeatures:
        """Learn the kind of the sequences and their vocabulary."""
        checked = _as_sequences(sequences)
        self.kind = _kind(checked[0], 0)
        self.vocabulary: dict[Hashable, int] = {}
        self.rare_column: int | None = None
        if self.kind == "matrix":
            self.n_columns = _as_matrix(checked[0], 0).shape[1]
            return self
        counts: Counter[Hashable] = Counter()
        for names in self._names(checked):
            counts.update(list(names))  # of a dict, Counter would add up the values
        kept = [name for name, count in counts.items() if count >= self.min_frequency]
        self.vocabulary = {name: column for column, name in enumerate(kept)}
        self.n_columns = len(kept)
        if self.kind == "tokens":
            if len(kept) < len(counts):
                self.rare_column = len(kept)
            self.block = len(kept) + (self.rare_column is not None)
            self.n_columns = self.block * (2 * self.window + 1)
        return self

    def transform(self, sequences: Any) -> tuple[sp.csr_array, Int[np.ndarray, " sequences"]]:
        """Encode sequences as the rows of one matrix, and return how many rows each of them has."""
        checked = _as_sequences(sequences)
        if self.kind == "matrix":
            return self._stack(checked)
        lengths = np.array([len(sequence) for sequence in checked])
        if self.kind == "tokens":
            return self._token_rows(checked, lengths), lengths
        return self._dict_rows(checked), lengths

    def _names(self, sequences: Sequence[Any]) -> Iterable[Iterable[Hashable]]:
        """Tokens of each sequence, or names of the features of each position."""
        for index, sequence in enumerate(sequences):
            self._check_kind(sequence, index)
            if self.kind == "tokens":
                yield [_as_token(token, index) for token in sequence]
            else:
                for position in sequence:
                    yield _named_values(position, index)

    def _check_kind(self, sequence: Any, index: int) -> None:
        kind = _kind(sequence, index)
        if kind != self.kind:
            raise TypeError(f"X must be sequences of one kind; fitted on {self.kind}, X[{index}] is of {kind}")

    def _token_rows(self, sequences: Sequence[Any], lengths: Int[np.ndarray, " sequences"]) -> sp.csr_array:
        columns = np.empty(lengths.sum(), dtype=np.int64)
        unknown: list[tuple[int, Hashable]] = []
        row = 0
        for index, tokens in enumerate(self._names(sequences)):
            for token in tokens:
                column = self.vocabulary.get(token, -1)
                if column < 0:
                    column = -1 if self.rare_column is None else self.rare_column
                    unknown.append((index, token))
                columns[row] = column
                row += 1
        # With rare tokens in the training set one cannot tell a rare one from a new one, and need not.
        if self.rare_column is None:
            self._complain("tokens", unknown)
        ends = np.cumsum(lengths)
        start, stop = np.repeat(ends - lengths, lengths), np.repeat(ends, lengths)
        neighbours = np.full((len(columns), 2 * self.window + 1), -1)
        for offset in range(-self.window, self.window + 1):
            place = np.arange(len(columns)) + offset
            inside = (place >= start) & (place < stop)
            found = np.where(inside, columns[np.where(inside, place, 0)], -1)
            block = offset + self.window
            neighbours[:, block] = np.where(found >= 0, found + block * self.block, -1)
        present = neighbours >= 0
        pointers = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
        indices = neighbours[present]
        return sp.csr_array((np.ones(len(indices)), indices, pointers), shape=(len(columns), self.n_columns))

    def _dict_rows(self, sequences: Sequence[Any]) -> sp.csr_array:
        values: list[float] = []
        indices: list[int] = []
        pointers = [0]
        unknown: list[tuple[int, Hashable]] = []
        for index, sequence in enumerate(sequences):
            self._check_kind(sequence, index)
            for position in sequence:
                for name, value in _named_values(position, index).items():
                    column = self.vocabulary.get(name)
                    if column is None:
                        unknown.append((index, name))
                    else:
                        indices.append(column)
                        values.append(value)
                pointers.append(len(indices))
        if self.min_frequency == 1:
            self._complain("features", unknown)
        shape = (len(pointers) - 1, self.n_columns)
        rows = sp.csr_array((np.array(values, dtype=float), np.array(indices, dtype=np.int64), pointers), shape=shape)
        return _canonical(rows)

    def _complain(self, what: str, unknown: list[tuple[int, Hashable]]) -> None:
        if unknown and self.handle_unknown == "error":
            index, first = unknown[0]
            raise ValueError(
                f"X must have {what} that were seen in fit, got {len({name for _, name in unknown})} others, "
                f"the first is {first!r} in X[{index}]; handle_unknown='ignore' accepts them"
            )

    def _stack(self, sequences: Sequence[Any]) -> tuple[sp.csr_array, Int[np.ndarray, " sequences"]]:
        matrices = []
        for index, sequence in enumerate(sequences):
            self._check_kind(sequence, index)
            matrix = _as_matrix(sequence, index)
            if matrix.shape[1] != self.n_columns:
                raise ValueError(f"X[{index}] must have {self.n_columns} columns, got {matrix.shape[1]}")
            matrices.append(matrix)
        rows = _canonical(sp.csr_array(sp.vstack(matrices, format="csr"), copy=True))
        return rows, np.array([matrix.shape[0] for matrix in matrices])


def _canonical(rows: sp.csr_array) -> sp.csr_array:
    """The same rows, changed in place, so that equal ones are stored alike."""
    rows.sum_duplicates()
    rows.eliminate_zeros()
    rows.data += 0.0  # there is a negative zero too
    return rows


def _as_sequences(sequences: Any) -> list[Any]:
    """The argument ``X`` as a list of sequences, none of them empty."""
    if isinstance(sequences, str | bytes | Mapping) or sp.issparse(sequences) or not hasattr(sequences, "__len__"):
        raise TypeError(f"X must be a list of sequences, got {type(sequences).__name__}")
    if hasattr(sequences, "columns"):  # iterating over a data frame gives the names of its columns
        raise TypeError("X must be a list of sequences; one data frame is one sequence, pass [X]")
    sequences = without_tensors(sequences)
    if getattr(sequences, "ndim", 3) == 2 and sequences.dtype.kind == "f":
        raise TypeError("X must be a list of sequences; one matrix of features is one sequence, pass [X]")
    if len(sequences) == 0:
        raise ValueError("X must have at least one sequence, got none")
    checked = [without_tensors(sequence) for sequence in sequences]
    for index, sequence in enumerate(checked):
        sized = hasattr(sequence, "__len__") and not isinstance(sequence, Mapping | set | frozenset)
        if not (sp.issparse(sequence) or (sized and getattr(sequence, "ndim", 1) > 0)):
            raise TypeError(f"X[{index}] must be a sequence of tokens, dicts or feature rows, got {sequence!r:.60}")
        if (sequence.shape[0] if sp.issparse(sequence) else len(sequence)) == 0:
            raise ValueError(f"X[{index}] must have at least one position, got an empty sequence")
    return checked


def _kind(sequence: Any, index: int) -> str:
    if sp.issparse(sequence):
        return "matrix"
    if hasattr(sequence, "ndim") and not isinstance(sequence, Sequence):
        if sequence.ndim > 2:
            raise ValueError(f"X[{index}] must be a vector of tokens or a matrix of features, got {sequence.ndim} axes")
        return "matrix" if sequence.ndim == 2 else "tokens"
    first = sequence[0]
    if isinstance(first, Mapping):
        return "dicts"
    if isinstance(first, list | np.ndarray) or hasattr(first, "detach"):
        return "matrix"
    return "tokens"


def _as_token(token: Any, index: int) -> Hashable:
    if isinstance(token, np.generic):
        token = token.item()
    if isinstance(token, float) or (isinstance(token, tuple) and any(isinstance(part, float) for part in token)):
        raise TypeError(
            f"X[{index}] must have hashable tokens that compare exactly, got a float in {token!r:.60}; "
            "numeric features are passed as a matrix with one row per position"
        )
    if not isinstance(token, Hashable):
        raise TypeError(f"X[{index}] must have hashable tokens, got {type(token).__name__}")
    return token


def _named_values(position: Any, index: int) -> dict[str, float]:
    """Features of a position with numeric values; a feature that is a word becomes an indicator ``name=word``."""
    if not isinstance(position, Mapping):
        raise TypeError(f"X[{index}] must have a dict at every position, got {type(position).__name__}")
    named: dict[str, float] = {}
    for name, value in position.items():
        key, number = (f"{name}={value}", 1.0) if isinstance(value, str) else (str(name), _finite(value))
        if number is None:
            raise TypeError(
                f"X[{index}] must have features that are words or finite numbers, got {name!r}: {value!r:.60}"
            )
        if key in named:
            raise ValueError(f"X[{index}] must have features of different names, got {key!r} twice at one position")
        named[key] = number
    return named


def _finite(value: Any) -> float | None:
    """The value as a float; None if it is not a finite real number."""
    if not isinstance(value, numbers.Real | np.bool_):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def without_tensors(sequence: Any) -> Any:
    """A tensor, or a list of tensors that are single numbers, with numbers in their place; anything else as it is.

    Tensors are hashable by what object they are, so that no two would be the same token or tag.
    """
    if hasattr(sequence, "detach"):
        tensor = sequence.detach().cpu()
        # numpy has no bfloat16.
        return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    if isinstance(sequence, list | tuple) and any(hasattr(item, "detach") and item.ndim == 0 for item in sequence):
        return [item.item() if hasattr(item, "detach") and item.ndim == 0 else item for item in sequence]
    return sequence


def _as_matrix(sequence: Any, index: int) -> sp.csr_array:
    name = f"X[{index}]"
    if not sp.issparse(sequence):
        rows = [without_tensors(row) for row in sequence] if isinstance(sequence, list) else sequence
        return sp.csr_array(as_float_array(rows, name, ndim=2))
    matrix = sp.csr_array(sequence)
    values = as_float_array(matrix.data, name, ndim=1, allow_empty=True)
    return sp.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
