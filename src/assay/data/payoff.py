r"""Payoff matrices from files: delimited text, NumPy, JSON, and the normal-form games of Gambit.

Every reader looks at the size of a file and at the shape that it announces before it reads the numbers, and nothing is
ever unpickled. What is wrong with a file is said in one :class:`ValueError` that names the file and, for text, the
line.
"""

from __future__ import annotations

import json
import math
import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float

from assay.validation import as_float_array, check_integer

__all__ = ["read_game"]


def read_game(path: str | os.PathLike[str], *, max_bytes: int = 2**30) -> Float[np.ndarray, "rows columns"]:
    r"""Read the payoff matrix of a two-player zero-sum game: what the row player pays to the column player.

    Parameters
    ----------
    path : str or path-like
        The kind of file is taken from its suffix:

        - ``.csv``, ``.tsv``, ``.txt``: numbers separated by commas, tabs or white space, a row of the matrix per line;
          what follows a ``#`` is ignored (a ``.txt`` with a comma in its first row is read like a ``.csv``);
        - ``.npy``: a matrix;
        - ``.npz``: a matrix under the key ``A``, or the only array in the file;
        - ``.json``: a list of rows, or an object that has one under ``"A"`` or ``"payoff"``;
        - ``.nfg``: a Gambit game in normal form, in its payoff or outcome version. It must have two players whose
          payoffs sum to zero. Gambit's players maximise, so the matrix returned is what the second player receives.
    max_bytes : int, default=2**30
        Largest file, and largest matrix in memory, that is read.

    Returns
    -------
    numpy.ndarray of shape (n_rows, n_columns)
        In float64.

    Raises
    ------
    OSError
        If the file cannot be opened.
    ValueError
        If the suffix is unknown, the file is too large, damaged or of another kind, it needs unpickling, or it does
        not hold a finite real matrix; for ``.nfg`` also if the game is not of two players or not zero-sum.

    References
    ----------
    .. [1] Gambit: file formats for strategic games. https://gambitproject.readthedocs.io

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from assay.data.payoff import read_game
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pennies.nfg")
    ...     _ = path.write_text('NFG 1 R "Matching pennies" { "Even" "Odd" } { 2 2 } 1 -1 -1 1 -1 1 1 -1')
    ...     read_game(path)
    array([[-1.,  1.],
           [ 1., -1.]])
    """
    file = Path(path)
    max_bytes = check_integer(max_bytes, "max_bytes", minimum=1)
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise ValueError(f"path must end in one of {', '.join(_READERS)}, got {file.name!r}")
    if file.is_dir():
        raise ValueError(f"path must be a file, got the directory {file.name!r}")
    size = file.stat().st_size
    _check_size(file, size, max_bytes, "bytes")
    if size == 0:
        raise ValueError(f"{file.name}: the file is empty")
    return _finite_matrix(file, reader(file, max_bytes))


def _check_size(file: Path, size: int, max_bytes: int, what: str) -> None:
    if size > max_bytes:
        raise ValueError(f"{file.name}: {size} {what} are more than max_bytes={max_bytes}")


def _check_shape(file: Path, shape: tuple[int, ...], max_bytes: int) -> None:
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"{file.name}: a payoff matrix must be 2-D and not empty, got shape {shape}")
    _check_size(file, 8 * math.prod(shape), max_bytes, f"bytes for a matrix of shape {shape}")


def _finite_matrix(file: Path, array: Any) -> np.ndarray:
    try:
        return as_float_array(array, "payoff", ndim=2)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{file.name}: {error}") from None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name}: not a text file in UTF-8 (byte {error.start})") from None


def _read_delimited(delimiter: str | None) -> Callable[[Path, int], np.ndarray]:
    def read(file: Path, max_bytes: int) -> np.ndarray:
        lines = [(number, line.partition("#")[0].strip()) for number, line in enumerate(_text(file).splitlines(), 1)]
        lines = [(number, line) for number, line in lines if line]
        if not lines:
            raise ValueError(f"{file.name}: there is no number in the file")
        separator = "," if delimiter is None and "," in lines[0][1] else delimiter
        rows = [(number, line.split(separator)) for number, line in lines]
        width = len(rows[0][1])
        for number, entries in rows:
            if len(entries) != width:
                raise ValueError(
                    f"{file.name}, line {number}: {len(entries)} numbers in this row, {width} in the first"
                )
        _check_shape(file, (len(rows), width), max_bytes)
        matrix = np.empty((len(rows), width))
        for row, (number, entries) in zip(matrix, rows, strict=True):
            try:
                row[:] = list(map(_number, entries))
            except ValueError:
                wrong = next(entry for entry in entries if not _is_number(entry))
                raise ValueError(f"{file.name}, line {number}: {wrong.strip()!r} is not a number") from None
        return matrix

    return read


def _number(entry: str) -> float:
    if "_" in entry:  # which Python reads over
        raise ValueError("an underscore is not part of a number")
    return float(entry)


def _is_number(entry: str) -> bool:
    try:
        _number(entry)
    except ValueError:
        return False
    return True


def _read_npy(file: Path, max_bytes: int) -> np.ndarray:
    with file.open("rb") as stream:
        return _load_npy(file, stream, file.stat().st_size, max_bytes)


def _read_npz(file: Path, max_bytes: int) -> np.ndarray:
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if "A" not in members and len(members) != 1:
                raise ValueError(f"{file.name}: there must be an array 'A' or only one array, got {sorted(members)}")
            member = members["A"] if "A" in members else next(iter(members.values()))
            # The directory of the archive says how large a member will be before it is unpacked.
            _check_size(file, member.file_size, max_bytes, "unpacked bytes")
            with archive.open(member) as stream:
                return _load_npy(file, stream, member.file_size, max_bytes)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{file.name}: not a NumPy archive ({error})") from None


def _load_npy(file: Path, stream: BinaryIO, size: int, max_bytes: int) -> np.ndarray:
    """Read an array after its header was found to fit the file."""
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0}.get(version, np.lib.format.read_array_header_2_0)
        shape, fortran_order, dtype = read_header(stream)
    except (ValueError, TypeError, KeyError, SyntaxError, EOFError, tokenize.TokenError) as error:
        raise ValueError(f"{file.name}: not a NumPy array file ({error})") from None
    if dtype.hasobject:
        raise ValueError(f"{file.name}: the array holds Python objects, which are not unpickled")
    if dtype.kind not in "biuf":
        raise ValueError(f"{file.name}: the array must have real numbers, got dtype {dtype}")
    _check_shape(file, shape, max_bytes)
    content = stream.read()
    expected = math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise ValueError(f"{file.name}: damaged, {len(content)} bytes of numbers where {expected} were announced")
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if fortran_order else "C").copy()


def _read_json(file: Path, max_bytes: int) -> list:
    text = _text(file)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name}: not JSON ({error})") from None
    if isinstance(content, dict):
        key = next((key for key in ("A", "payoff") if key in content), None)
        if key is None:
            raise ValueError(
                f"{file.name}: the object must have a matrix under 'A' or 'payoff', got {list(content)[:5]}"
            )
        content = content[key]
    is_matrix = isinstance(content, list) and content and all(isinstance(row, list) for row in content)
    if not is_matrix:
        raise ValueError(f"{file.name}: a payoff matrix must be a non-empty list of rows")
    for number, row in enumerate(content, 1):
        if len(row) != len(content[0]):
            raise ValueError(
                f"{file.name}, row {number}: {len(row)} numbers in this row, {len(content[0])} in the first"
            )
        for entry in row:
            if isinstance(entry, bool) or not isinstance(entry, int | float):
                raise ValueError(f"{file.name}, row {number}: {entry!r} is not a number")
    _check_shape(file, (len(content), len(content[0])), max_bytes)
    return content


_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([{}])|([^\s{}",]+)|(,))', re.DOTALL)


class _GambitTokens:
    """The words of a Gambit file, one after the other: strings, braces, numbers; commas are white space."""

    def __init__(self, file: Path):
        self._file = file
        self._text = _text(file)
        self._position = 0
        self._next: tuple[str, str] | None = None

    def fail(self, message: str) -> ValueError:
        line = self._text.count("\n", 0, self._position) + 1
        return ValueError(f"{self._file.name}, line {line}: {message}")

    def peek(self) -> tuple[str, str]:
        """Kind (string, brace, word or end) and text of the next token."""
        while self._next is None:
            match = _TOKEN.match(self._text, self._position)
            if match is None:
                if self._text[self._position :].strip():
                    raise self.fail("a string is not closed")
                self._next = ("end", "the end of the file")
                break
            self._position = match.end()
            # Groups are in the order of the pattern; a comma leaves nothing to return.
            kind = ("string", "brace", "word", None)[match.lastindex - 1]
            if kind is not None:
                self._next = (kind, match[match.lastindex])
        return self._next

    def take(self, kind: str, text: str | None = None) -> str:
        """The next token, which must be of this kind (and text)."""
        found_kind, found = self.peek()
        if found_kind != kind or (text is not None and found != text):
            raise self.fail(f"expected {text or 'a ' + kind}, found {found}")
        self._next = None
        return found

    def take_if(self, kind: str, text: str | None = None) -> bool:
        """Take the next token if it is of this kind (and text)."""
        found_kind, found = self.peek()
        if found_kind != kind or (text is not None and found != text):
            return False
        self._next = None
        return True

    def take_strings(self) -> list[str]:
        """A list of strings in braces."""
        self.take("brace", "{")
        strings = []
        while not self.take_if("brace", "}"):
            strings.append(self.take("string"))
        return strings

    def take_number(self) -> float:
        """A decimal or a fraction."""
        word = self.take("word")
        try:
            # Only what is written as a fraction: an exponent could ask for a number with a billion digits.
            return float(Fraction(word)) if "/" in word else _number(word)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise self.fail(f"{word!r} is not a number") from None

    def take_count(self) -> int:
        word = self.take("word")
        if not word.isascii() or not word.isdigit():
            raise self.fail(f"expected a whole number, found {word}")
        return int(word)


def _read_nfg(file: Path, max_bytes: int) -> np.ndarray:
    tokens = _GambitTokens(file)
    tokens.take("word", "NFG")
    tokens.take("word", "1")
    if not (tokens.take_if("word", "R") or tokens.take_if("word", "D")):
        raise tokens.fail(f"expected R or D, found {tokens.peek()[1]}")
    tokens.take("string")
    players = tokens.take_strings()
    if len(players) != 2:
        raise ValueError(f"{file.name}: a zero-sum game has two players, this one has {len(players)}")
    shape = _strategies(tokens)
    if len(shape) != 2:
        raise ValueError(f"{file.name}: strategies must be given for two players, got {len(shape)}")
    _check_shape(file, shape, max_bytes)
    tokens.take_if("string")  # a comment
    by_outcome = tokens.peek() == ("brace", "{")
    profiles = _outcomes(tokens, math.prod(shape)) if by_outcome else _payoffs(tokens, math.prod(shape))
    if tokens.peek()[0] != "end":
        raise tokens.fail(f"there is more than the {math.prod(shape)} pairs of strategies need: {tokens.peek()[1]}")
    total = profiles.sum(axis=1)
    worst = int(np.argmax(abs(total)))
    if abs(total[worst]) > 1e-9 * max(1.0, float(abs(profiles).max())):
        # The first player's strategy runs fastest.
        row, column = worst % shape[0] + 1, worst // shape[0] + 1
        raise ValueError(
            f"{file.name}: the game is not zero-sum, payoffs sum to {total[worst]:g} at strategies {row} and {column}"
        )
    return -profiles[:, 0].reshape(shape, order="F") + 0.0  # + 0.0 turns -0.0 into 0.0


def _strategies(tokens: _GambitTokens) -> tuple[int, ...]:
    """Numbers of strategies, given as such or as lists of names."""
    tokens.take("brace", "{")
    counts = []
    while not tokens.take_if("brace", "}"):
        counts.append(len(tokens.take_strings()) if tokens.peek() == ("brace", "{") else tokens.take_count())
    return tuple(counts)


def _payoffs(tokens: _GambitTokens, n_profiles: int) -> np.ndarray:
    """Two payoffs for every pair of strategies."""
    return np.array([[tokens.take_number(), tokens.take_number()] for _ in range(n_profiles)])


def _outcomes(tokens: _GambitTokens, n_profiles: int) -> np.ndarray:
    """A list of outcomes with two payoffs each, and the number of an outcome (0 for none) for every pair."""
    tokens.take("brace", "{")
    outcomes = [[0.0, 0.0]]
    while not tokens.take_if("brace", "}"):
        tokens.take("brace", "{")
        tokens.take("string")
        outcomes.append([tokens.take_number(), tokens.take_number()])
        tokens.take("brace", "}")
    chosen = []
    for _ in range(n_profiles):
        number = tokens.take_count()
        if number >= len(outcomes):
            raise tokens.fail(f"outcome {number} is not among the {len(outcomes) - 1} that are listed")
        chosen.append(number)
    return np.array(outcomes)[chosen]


_READERS: dict[str, Callable[[Path, int], Any]] = {
    ".csv": _read_delimited(","),
    ".tsv": _read_delimited("\t"),
    ".txt": _read_delimited(None),
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".json": _read_json,
    ".nfg": _read_nfg,
}
