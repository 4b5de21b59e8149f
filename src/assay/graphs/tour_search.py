"""Tours from sets of edges, one after the other, and the best of them.

A sweep over thresholds decodes nested sets. What one set has in common with the next is not done again: components and
degrees are updated, the matching of a set of odd cities is remembered, and a set that did not change is skipped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from assay.graphs.matching import perfect_matching
from assay.graphs.tour_costs import CityCosts, EdgeScores
from assay.graphs.tour_fragments import close_fragments, greedy_fragments, greedy_order
from assay.graphs.tour_skeleton import (
    SpanningTree,
    ThresholdSweep,
    connecting_edges,
    eulerian_tour,
    minimum_spanning_tree,
    odd_cities,
)
from assay.graphs.tours import costs_among

__all__ = ["DecodedSet", "SetDecoder", "TourSearch"]

_CANDIDATE = np.dtype([("source", "U9"), ("threshold", float), ("cost", float), ("matching_gap", float)])
_HISTORY = ("threshold", "seconds", "skeleton_cost", "matching_cost", "n_odd", "cost", "best_cost")


@dataclass(frozen=True)
class DecodedSet:
    """One tour, and what it was cut out of."""

    tour: Int[np.ndarray, " cities"]
    cost: float
    skeleton: Int[np.ndarray, "edges 2"]
    pairs: Int[np.ndarray, "matched 2"]
    matching_gap: float


class SetDecoder:
    """Turns sets of edges of one instance into tours; remembers the matching of each set of odd cities."""

    def __init__(self, costs: CityCosts, matching: str, prune: bool, shortcut_best: bool):
        self.costs, self.matching, self.prune, self.shortcut_best = costs, matching, prune, shortcut_best
        self.tree: SpanningTree = minimum_spanning_tree(costs)
        self.exact = True
        self._known: dict[bytes, tuple[np.ndarray, float]] = {}

    def decode_set(self, first: np.ndarray, second: np.ndarray) -> DecodedSet:
        """Tour from any set of edges."""
        joining = connecting_edges(self.costs.n, first, second, self.tree)
        return self.decode_skeleton(np.concatenate([first, joining[0]]), np.concatenate([second, joining[1]]))

    def decode_skeleton(self, first: np.ndarray, second: np.ndarray) -> DecodedSet:
        """Tour from a set of edges that is connected already."""
        pairs, gap = self._match(odd_cities(self.costs.n, first, second))
        tour = eulerian_tour(self.costs, (first, second), pairs, prune=self.prune, shortcut_best=self.shortcut_best)
        return DecodedSet(tour, self.costs.tour_cost(tour), np.column_stack([first, second]), pairs, gap)

    def _match(self, odd: np.ndarray) -> tuple[np.ndarray, float]:
        key = np.packbits(np.isin(np.arange(self.costs.n), odd, assume_unique=True)).tobytes()
        if key not in self._known:
            if odd.size == 0:
                self._known[key] = np.empty((0, 2), dtype=np.int64), 0.0
            else:
                found = perfect_matching(costs_among(self.costs, odd), method=self.matching)
                self.exact = self.exact and found.exact
                self._known[key] = odd[found.pairs], 0.0 if found.exact else found.gap
        return self._known[key]


class TourSearch:
    """The best tour so far, and the list of all."""

    def __init__(
        self,
        costs: CityCosts,
        decoder: SetDecoder,
        patience: int | None,
        callback: Callable[[dict[str, Any]], object] | None,
    ):
        self.costs, self.decoder, self.patience, self.callback = costs, decoder, patience, callback
        self.best: tuple[str, float, DecodedSet] | None = None
        self.candidates: list[tuple[str, float, float, float]] = []
        self.rows: list[tuple[float, ...]] = []
        self.started = time.perf_counter()

    def add(self, source: str, threshold: float, decoded: DecodedSet) -> None:
        """Enter a tour into the competition."""
        self.candidates.append((source, threshold, decoded.cost, decoded.matching_gap))
        if decoded.cost < self.best_cost:
            self.best = source, threshold, decoded

    @property
    def best_cost(self) -> float:
        """Cost of the best tour, infinity before the first."""
        return math.inf if self.best is None else self.best[2].cost

    @property
    def table(self) -> Shaped[np.ndarray, " tours"]:
        """All tours, as records."""
        return np.array(self.candidates, dtype=_CANDIDATE)

    @property
    def history(self) -> dict[str, Float[np.ndarray, " sets"]]:
        """A row for each decoded set."""
        return dict(zip(_HISTORY, np.array(self.rows).T, strict=True))

    def record(self, threshold: float, decoded: DecodedSet) -> None:
        """A row of the history, after everything at one threshold is done."""
        edges, pairs = decoded.skeleton, decoded.pairs
        self.rows.append(
            (
                threshold,
                time.perf_counter() - self.started,
                float(self.costs.between(edges[:, 0], edges[:, 1]).sum()),
                float(self.costs.between(pairs[:, 0], pairs[:, 1]).sum()),
                2 * len(pairs),
                decoded.cost,
                self.best_cost,
            )
        )
        if self.callback is not None:
            self.callback({"threshold": threshold, "cost": decoded.cost, "best_cost": self.best_cost})

    def add_closed(self, source: str, threshold: float, first: np.ndarray, second: np.ndarray) -> None:
        """The tour that joins disjoint paths greedily."""
        tour = close_fragments(self.costs, first, second)
        nothing = np.empty((0, 2), dtype=np.int64)
        self.add(source, threshold, DecodedSet(tour, self.costs.tour_cost(tour), nothing, nothing, math.nan))

    def thresholds(self, scores: EdgeScores, levels: np.ndarray, *, fragments: bool) -> bool:
        """Decode the sets of decreasing thresholds; returns whether it ran out of patience before the last."""
        order = np.lexsort((scores.second, scores.first, -scores.score))
        first, second, score = scores.first[order], scores.second[order], scores.score[order]
        sizes = np.searchsorted(-score, -levels, side="right")
        sweep = ThresholdSweep(self.costs.n, first, second, self.decoder.tree)
        greedy = greedy_order(self.costs, scores) if fragments else None
        previous_size, previous_paths, waited = -1, b"", 0
        for threshold, size in zip(levels.tolist(), sizes.tolist(), strict=True):
            if size == previous_size:
                continue
            previous_size = size
            best_before = self.best_cost
            sweep.advance(size)
            decoded = self.decoder.decode_skeleton(*sweep.skeleton())
            self.add("threshold" if size else "empty", threshold, decoded)
            if greedy is not None:
                inside = np.flatnonzero(greedy.score >= threshold)
                wanted = inside[greedy_fragments(self.costs.n, greedy.first[inside], greedy.second[inside])]
                if wanted.tobytes() != previous_paths or not self.rows:
                    previous_paths = wanted.tobytes()
                    paths = greedy.first[wanted], greedy.second[wanted]
                    if wanted.size < size:
                        self.add("fragment", threshold, self.decoder.decode_set(*paths))
                    self.add_closed("fragment", threshold, *paths)
            self.record(threshold, decoded)
            waited = 0 if self.best_cost < best_before else waited + 1
            if self.patience is not None and waited >= self.patience:
                break
        if greedy is not None:
            wanted = greedy_fragments(self.costs.n, greedy.first, greedy.second)
            self.add_closed("greedy", math.nan, greedy.first[wanted], greedy.second[wanted])
        return bool(previous_size < sizes[-1])

    def modified_cost(self, scores: EdgeScores) -> None:
        """Decode the connected set of least ``sum c (1 - 2 p)``."""
        likely = scores.score > 0.5
        # An edge without a score that is not in the minimum spanning tree is still the dearest of a cycle.
        first = np.concatenate([scores.first[~likely], self.decoder.tree.first])
        second = np.concatenate([scores.second[~likely], self.decoder.tree.second])
        modified = self.costs.between(first, second) * (1 - 2 * scores.of(first, second))
        order = np.lexsort((second, first, modified))
        wanted = SpanningTree(first[order], second[order], modified[order])
        joining = connecting_edges(self.costs.n, scores.first[likely], scores.second[likely], wanted)
        decoded = self.decoder.decode_skeleton(
            np.concatenate([scores.first[likely], joining[0]]), np.concatenate([scores.second[likely], joining[1]])
        )
        self.add("modified", 0.5, decoded)
        self.record(0.5, decoded)
