"""Two tasks on the help texts of Python: letters from the keys of a telephone, and words from their consonants.

A sequence is 20 letters or 20 words. The features of a letter are the runs of keys around it, so that a linear model
can tell what a key stands for; those of a word are its consonants and those of its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["CONTEXTS", "LENGTH", "Task", "english", "letter_task", "word_task"]

LENGTH = 20
KEYS = dict(zip("abcdefghijklmnopqrstuvwxyz ", "222333444555666777788899990", strict=True))
CONTEXTS = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (2, 2), (3, 0), (0, 3))  # keys before and after


@dataclass(frozen=True)
class Task:
    """Sequences to train on, to choose settings with, and to test on, encoded once for all contenders."""

    name: str
    inputs: dict[str, list[Any]]
    labels: dict[str, list[Any]]
    rows: dict[str, Any]
    lengths: dict[str, np.ndarray]
    target: dict[str, np.ndarray]
    n_labels: int

    def accuracy(self, part: str, coefficients: np.ndarray) -> float:
        """Of the best paths; rows of the coefficients: features, labels before, start, constant."""
        from assay.supervised import viterbi

        n_features = self.rows[part].shape[1]
        unary = self.rows[part] @ coefficients[:n_features] + coefficients[-1]
        ends = np.cumsum(self.lengths[part])
        starts = ends - self.lengths[part]
        unary[starts] += coefficients[-2]
        transitions = coefficients[n_features:-2]
        paths = [viterbi(unary[a:b], transitions) for a, b in zip(starts, ends, strict=True)]
        return float((np.concatenate(paths) == self.target[part]).mean())


def english() -> str:
    """The help texts of Python, as lower-case letters and single spaces."""
    from assay.data.text import load_python_topics

    topics = load_python_topics(unit="character")
    return re.sub(r"[^a-z]+", " ", topics.decode(topics.tokens).lower()).strip()


def letter_task(text: str, n_train: int, rng: np.random.Generator) -> Task:
    """Letters from keys; the features of a position are the runs of keys around it."""
    pieces = [list(text[i : i + LENGTH]) for i in range(0, len(text) - LENGTH, LENGTH)]

    def contexts(piece: list[str]) -> list[dict[str, str]]:
        keys = "___" + "".join(KEYS[letter] for letter in piece) + "___"
        return [{f"{a}+{b}": keys[t + 3 - a : t + 4 + b] for a, b in CONTEXTS} for t in range(LENGTH)]

    return encoded("letters", pieces, contexts, lambda piece: piece, sorted(KEYS), n_train, rng)


def word_task(text: str, n_labels: int, n_train: int, rng: np.random.Generator) -> Task:
    """Words from their consonants, with those of the neighbours."""
    words = text.split()
    names, counts = np.unique(words, return_counts=True)
    frequent = set(names[np.argsort(-counts, kind="stable")[: n_labels - 1]].tolist())
    return encoded(
        f"{n_labels} words",
        [words[i : i + LENGTH] for i in range(0, len(words) - LENGTH, LENGTH)],
        lambda piece: [re.sub("[aeiou]", "", word) for word in piece],
        lambda piece: [word if word in frequent else "(other)" for word in piece],
        sorted(frequent | {"(other)"}),
        n_train,
        rng,
    )


def encoded(
    name: str,
    pieces: list[list[str]],
    as_input: Callable[[list[str]], list[Any]],
    as_labels: Callable[[list[str]], list[str]],
    labels: list[str],
    n_train: int,
    rng: np.random.Generator,
) -> Task:
    """Draw the parts, and encode them with the vocabulary of the training part."""
    from assay.supervised.sequence_features import SequenceFeatures

    order = rng.permutation(len(pieces))
    cuts = {"train": order[:n_train], "choose": order[n_train : n_train + 100], "test": order[n_train + 100 :][:300]}
    inputs_of = {part: [as_input(pieces[i]) for i in chosen] for part, chosen in cuts.items()}
    labels_of = {part: [as_labels(pieces[i]) for i in chosen] for part, chosen in cuts.items()}
    features = SequenceFeatures(window=1, min_frequency=1, handle_unknown="ignore").fit(inputs_of["train"])
    numbers = {label: k for k, label in enumerate(labels)}
    rows, lengths, target = {}, {}, {}
    for part in cuts:
        rows[part], lengths[part] = features.transform(inputs_of[part])
        target[part] = np.array([numbers[label] for piece in labels_of[part] for label in piece])
    return Task(name, inputs_of, labels_of, rows, lengths, target, len(numbers))
