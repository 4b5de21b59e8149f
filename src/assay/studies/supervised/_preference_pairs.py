"""Pairs with known preferences: digits by value, and diabetes patients by progression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

__all__ = ["Comparison", "diabetes_pairs", "digit_pairs", "rescaled"]


@dataclass(frozen=True)
class Comparison:
    """Items for training and for testing, and pairs of them.

    ``train_pairs`` maps the strength of the label noise to pairs (winner, loser); ``test_pairs`` are in the true order,
    and ``test_flipped`` says which of them a human would have called the other way round.
    """

    train: np.ndarray
    test: np.ndarray
    train_pairs: dict[float, np.ndarray]
    test_pairs: np.ndarray
    test_flipped: np.ndarray

    def observed(self) -> np.ndarray:
        """Test pairs as a human would have ordered them."""
        return np.where(self.test_flipped[:, None], self.test_pairs[:, ::-1], self.test_pairs)


def digit_pairs(rates: tuple[float, ...], rng: np.random.Generator) -> Comparison:
    """Handwritten digits, the larger one preferred by a logistic model; clear pairs are flipped at twice the rate."""
    from scipy.special import expit

    images, digits = _digits()
    order = rng.permutation(len(digits))
    images, utility = images[order] / 16.0, (digits[order] - 4.5) / 3.0
    half = len(digits) // 2
    pairs = distinct_pairs(utility[:half], 3000, rng)
    lead = utility[pairs[:, 0]] - utility[pairs[:, 1]]
    swapped = rng.random(len(pairs)) >= expit(2.0 * lead)
    clear = np.abs(lead) > np.median(np.abs(lead))
    draw = rng.random(len(pairs))
    train_pairs = {}
    for rate in rates:
        wrong = swapped ^ (clear & (draw < 2.0 * rate))
        train_pairs[rate] = np.where(wrong[:, None], pairs[:, ::-1], pairs)
    test_utility = utility[half:]
    test_pairs = in_order(distinct_pairs(test_utility, 5000, rng), test_utility)
    test_lead = test_utility[test_pairs[:, 0]] - test_utility[test_pairs[:, 1]]
    flipped = rng.random(len(test_pairs)) >= expit(2.0 * test_lead)
    return Comparison(images[:half], images[half:], train_pairs, test_pairs, flipped)


def rescaled(data: Comparison, how: str) -> Comparison:
    """The same pairs of digits with pixels from 0 to 16, or standardised by the training images."""
    if how == "unscaled":
        return replace(data, train=16.0 * data.train, test=16.0 * data.test)
    centre, spread = data.train.mean(axis=0), data.train.std(axis=0)
    spread[spread == 0.0] = 1.0
    return replace(data, train=(data.train - centre) / spread, test=(data.test - centre) / spread)


@lru_cache(maxsize=1)
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """The images, read once per process: every cell wants them."""
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def diabetes_pairs(rng: np.random.Generator) -> Comparison:
    """Diabetes patients, the faster progression preferred by Thurstone's model."""
    from scipy.special import ndtr
    from sklearn.datasets import load_diabetes

    features, target = load_diabetes(return_X_y=True)
    order = rng.permutation(len(target))
    features = (features / features.std(axis=0))[order]
    utility = ((target - target.mean()) / target.std())[order]
    cut = int(0.7 * len(target))

    def draw(utility: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = in_order(distinct_pairs(utility, n, rng), utility)
        lead = utility[pairs[:, 0]] - utility[pairs[:, 1]]
        return pairs, rng.random(len(pairs)) >= ndtr(lead)

    train, wrong = draw(utility[:cut], 2000)
    test, flipped = draw(utility[cut:], 2000)
    observed = np.where(wrong[:, None], train[:, ::-1], train)
    return Comparison(features[:cut], features[cut:], {0.0: observed}, test, flipped)


def distinct_pairs(utility: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Random pairs of items of different utility."""
    pairs = rng.integers(len(utility), size=(3 * n, 2))
    return pairs[utility[pairs[:, 0]] != utility[pairs[:, 1]]][:n]


def in_order(pairs: np.ndarray, utility: np.ndarray) -> np.ndarray:
    """The same pairs, the better item first."""
    swapped = utility[pairs[:, 0]] < utility[pairs[:, 1]]
    return np.where(swapped[:, None], pairs[:, ::-1], pairs)
