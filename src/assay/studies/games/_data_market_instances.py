"""Markets on which pricing rules are compared: shards of handwritten digits, random values, and one without stable
uniform prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["NO_EQUILIBRIUM", "TENTHS", "Instance", "digit_values", "instances"]

TENTHS = np.arange(1, 11) / 10
NO_EQUILIBRIUM = "no equilibrium"
_SHARD, _N_TRAINING, _N_DIGITS = 60, 1500, 10


@dataclass(frozen=True)
class Instance:
    """A market, and whether the convergence of schedules is judged on it."""

    name: str
    market: Any
    geometric: bool
    large: bool


def instances(shapes: tuple[tuple[int, int, int, int], ...], rng: np.random.Generator) -> list[Instance]:
    """Markets of every shape (buyers, sellers, random ones, ones of digits), each on two grids, and the last one.

    Budgets are 1; grids are k / 10, as in the paper, and a geometric one with steps of 2 %.
    """
    from assay.games.market_model import DataMarket
    from assay.games.market_no_equilibrium import no_equilibrium_instance

    made = []
    for n_buyers, n_sellers, n_random, n_digits in shapes:
        shape = f"{n_buyers}x{n_sellers}"
        values = {f"random {shape} #{k}": rng.random((n_buyers, n_sellers)) for k in range(n_random)}
        values |= {f"digits {shape} #{k}": digit_values(n_buyers, n_sellers, rng) for k in range(n_digits)}
        for name, worth in values.items():
            large = min(n_buyers, n_sellers) >= 10
            budgets = np.ones(n_buyers)
            made.append(Instance(f"{name}, tenths", DataMarket(budgets, worth, price_grid=TENTHS), False, large))
            made.append(Instance(f"{name}, geometric", DataMarket(budgets, worth), True, large))
    none = no_equilibrium_instance(1000)
    few = [np.append(0.99, np.linspace(100, 1200, 12)), np.linspace(0.1, 1.2, 12)]
    made.append(Instance(f"{NO_EQUILIBRIUM}, geometric", none, True, False))
    made.append(Instance(f"{NO_EQUILIBRIUM}, few prices", none.with_prices(few), False, False))
    return made


def digit_values(n_buyers: int, n_sellers: int, rng: np.random.Generator) -> np.ndarray:
    """Values of shards of 60 handwritten digits, the labels of shard ``j`` wrong at the rate ``j / (2 m)``.

    Buyer ``i`` wants to tell the digit ``i mod 10`` from all others; what a shard is worth is how much the variance of
    errors on the last 297 records falls from a constant guess to a logistic regression that is trained on it.
    """
    from sklearn.datasets import load_digits

    from assay.games.market_sources import model_values

    images, digits = load_digits(return_X_y=True)
    images = images / 16.0
    chosen = rng.permutation(_N_TRAINING)[: _SHARD * n_sellers].reshape(n_sellers, _SHARD)
    labels = []
    for j, shard in enumerate(chosen):
        wrong = rng.random(_SHARD) < j / (2 * n_sellers)
        labels.append(np.where(wrong, rng.integers(0, _N_DIGITS, _SHARD), digits[shard]))
    test, truth = images[_N_TRAINING:], digits[_N_TRAINING:]
    wanted = np.arange(n_buyers) % _N_DIGITS
    tasks = [
        ([(label == digit).astype(int) for label in labels], test, (truth == digit).astype(int))
        for digit in range(min(n_buyers, _N_DIGITS))
    ]
    return model_values([images[shard] for shard in chosen], tasks)[wanted]
