"""Text that needs no network: the topics of Python's own ``help()``, as integers for a language model.

Every Python installation carries the module ``pydoc_data.topics``, about 460 thousand characters of technical English
with code, tables and markup. It is small enough for experiments of seconds and real enough that a model of it has
something to learn. The text differs a little from one version of Python to the next, so results name the version.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int

from assay.validation import check_choice, check_real

__all__ = ["EncodedText", "encode_text", "load_python_topics"]


@dataclass(frozen=True, eq=False, repr=False)
class EncodedText:
    """A text as integers, with the last part held out for validation.

    Parameters
    ----------
    tokens : int64 array of shape (length,)
        Index of every symbol in the vocabulary.
    vocabulary : tuple of bytes or of str
        The distinct symbols in ascending order, each a single byte or a single character.
    n_train : int
        Length of the training part.

    Examples
    --------
    >>> from assay.data.text import encode_text
    >>> text = encode_text("abracadabra", train_fraction=0.75)
    >>> text.vocabulary
    (b'a', b'b', b'c', b'd', b'r')
    >>> text.train, text.validation
    (array([0, 1, 4, 0, 2, 0, 3, 0]), array([1, 4, 0]))
    >>> text.decode(text.train)
    'abracada'
    """

    tokens: Int[np.ndarray, " length"]
    vocabulary: tuple[bytes, ...] | tuple[str, ...]
    n_train: int

    @property
    def train(self) -> Int[np.ndarray, " train_length"]:
        """The part to learn from."""
        return self.tokens[: self.n_train]

    @property
    def validation(self) -> Int[np.ndarray, " validation_length"]:
        """The part that comes after it."""
        return self.tokens[self.n_train :]

    def decode(self, tokens: Int[np.ndarray, " some"]) -> str:
        """Turn indices back into text; a cut through a character of several bytes shows as a replacement sign."""
        indices = np.asarray(tokens).tolist()
        if not all(0 <= i < len(self.vocabulary) for i in indices):
            raise ValueError(f"tokens must be in [0, {len(self.vocabulary)}), got {min(indices)} to {max(indices)}")
        symbols = [self.vocabulary[i] for i in indices]
        if isinstance(self.vocabulary[0], bytes):
            return b"".join(symbols).decode("utf-8", errors="replace")
        return "".join(symbols)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"EncodedText({len(self)} symbols, {len(self.vocabulary)} of them distinct, {self.n_train} for training)"


def encode_text(text: str, *, unit: Literal["byte", "character"] = "byte", train_fraction: float = 0.9) -> EncodedText:
    """Number the symbols of a text and split it.

    Parameters
    ----------
    text : str
        At least two symbols.
    unit : {"byte", "character"}, default="byte"
        Symbols are the bytes of the UTF-8 encoding, or the characters.
    train_fraction : float, default=0.9
        Part of the text, from its beginning, that is for training; strictly between 0 and 1.

    Returns
    -------
    EncodedText

    Raises
    ------
    TypeError
        If ``text`` is not a string.
    ValueError
        If there is too little text to split, a part of it is no character, or an option is unknown.

    Examples
    --------
    >>> from assay.data.text import encode_text
    >>> encode_text("naïve", unit="character").vocabulary
    ('a', 'e', 'n', 'v', 'ï')
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}")
    check_choice(unit, "unit", ("byte", "character"))
    fraction = check_real(train_fraction, "train_fraction", above=0, below=1)
    encoding, dtype = ("utf-8", "u1") if unit == "byte" else ("utf-32-le", "<u4")
    try:
        raw = np.frombuffer(text.encode(encoding), dtype=dtype)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text must not have half a surrogate pair in it, got {text[error.start]!r} at {error.start}"
        ) from error
    if len(raw) < 2:
        raise ValueError(f"text must have at least 2 symbols, got {len(raw)}")
    distinct, tokens = np.unique(raw, return_inverse=True)
    vocabulary = tuple(bytes([code]) if unit == "byte" else chr(code) for code in distinct.tolist())
    n_train = min(max(int(fraction * len(raw)), 1), len(raw) - 1)
    return EncodedText(tokens.astype(np.int64), vocabulary, n_train)


def load_python_topics(*, unit: Literal["byte", "character"] = "byte", train_fraction: float = 0.9) -> EncodedText:
    """The help topics of the running Python, as integers.

    Parameters
    ----------
    unit, train_fraction
        As in :func:`encode_text`.

    Returns
    -------
    EncodedText
        The topics one after the other in alphabetical order of their names; the last tenth is for validation.

    Raises
    ------
    ModuleNotFoundError
        If this Python was built without ``pydoc_data``.

    Examples
    --------
    >>> from assay.data.text import load_python_topics
    >>> topics = load_python_topics()
    >>> len(topics) > 400_000, len(topics.vocabulary) > 90
    (True, True)
    """
    topics = importlib.import_module("pydoc_data.topics").topics
    return encode_text("".join(topics[name] for name in sorted(topics)), unit=unit, train_fraction=train_fraction)
