"""Text as integers: what is encoded comes back, and the split is where it should be."""

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.text import encode_text, load_python_topics

texts = st.text(st.characters(codec="utf-8"), min_size=2, max_size=60)


@given(texts, st.floats(0.01, 0.99))
def test_bytes_come_back(text, fraction):
    encoded = encode_text(text, train_fraction=fraction)
    assert encoded.decode(encoded.tokens) == text
    assert b"".join(encoded.vocabulary[i] for i in encoded.tokens) == text.encode()
    assert len(encoded.train) + len(encoded.validation) == len(encoded) == len(text.encode())
    assert min(len(encoded.train), len(encoded.validation)) >= 1
    assert list(encoded.vocabulary) == sorted(set(encoded.vocabulary))


@given(texts)
def test_characters_come_back(text):
    encoded = encode_text(text, unit="character")
    assert encoded.decode(encoded.tokens) == text
    assert encoded.vocabulary == tuple(sorted(set(text)))


def test_a_cut_character_shows_as_a_replacement():
    encoded = encode_text("aé")
    assert encoded.decode(encoded.tokens[:2]) == "a\ufffd"


def test_the_split():
    encoded = encode_text("abcdefghij", train_fraction=0.8)
    assert encoded.decode(encoded.train) == "abcdefgh"
    assert encoded.decode(encoded.validation) == "ij"
    assert encoded.tokens.dtype == np.int64
    assert repr(encoded) == "EncodedText(10 symbols, 10 of them distinct, 8 for training)"


def test_the_topics_of_python():
    topics = load_python_topics()
    assert 400_000 < len(topics) < 700_000
    assert 80 < len(topics.vocabulary) < 256
    assert topics.tokens.max() == len(topics.vocabulary) - 1
    assert len(topics.train) == int(0.9 * len(topics))
    assert "statement" in topics.decode(topics.train[:5000])
    assert np.array_equal(topics.tokens, load_python_topics().tokens)


def test_bad_input():
    unchecked = inspect.unwrap(encode_text)
    for text in ("", "a"):
        with pytest.raises(ValueError, match=r"^text must have at least 2 symbols"):
            encode_text(text)
    for fraction in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"^train_fraction must"):
            encode_text("abc", train_fraction=fraction)
    with pytest.raises(TypeError, match=r"^text must be a string"):
        unchecked(b"abc")
    for unit in ("byte", "character"):
        with pytest.raises(ValueError, match=r"^text must not have half a surrogate pair .* at 2$"):
            encode_text("ab\ud800", unit=unit)
    for tokens in ([-1], [0, 2]):
        with pytest.raises(ValueError, match=r"^tokens must be in \[0, 2\)"):
            encode_text("ab").decode(np.array(tokens))
    assert encode_text("ab").decode(np.array([], dtype=int)) == ""
    with pytest.raises(ValueError, match=r"^unit must be one of"):
        unchecked("abc", unit="word")
