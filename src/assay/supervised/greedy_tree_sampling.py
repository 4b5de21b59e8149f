"""Growing a decision tree for a function that can only be asked: scores are estimated from random points.

Two ways. Points inside each leaf cost a number of queries that is linear in the number of variables, and each leaf
gets as many as its place in the order needs. Resampled pairs from the whole cube, anew at every step, are what the
analysis of the paper has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from assay.supervised.boolean_influence import BooleanOracle, binomial_interval, flip_indicators
from assay.supervised.greedy_tree_growth import NEGLIGIBLE, Growth, first_of_the_largest, leaves_of

__all__ = ["grow_from_pairs", "grow_from_samples"]

_FIRST_DRAW = 400
_CHUNK = 1 << 16
_MAX_TESTS = 30


@dataclass(eq=False)
class _SampledLeaf:
    """What random points inside a leaf have shown so far."""

    node: int
    path: dict[int, int]
    reach: float
    free: np.ndarray
    flips: np.ndarray
    drawn: int = 0
    ones: int = 0
    sensitivity: float = 0.0
    looks: int = 0
    estimate: float = 0.0
    high: float = math.inf
    variable: int = -1
    resolved: bool = False


def grow_from_samples(
    oracle: BooleanOracle,
    p: Float[np.ndarray, " n"],
    eps: float,
    delta: float,
    max_leaves: int,
    rng: np.random.Generator,
) -> Growth:
    """Grow a tree on scores that are estimated from random points inside each leaf.

    A leaf starts with 400 points, and its sample is doubled for as long as it matters: until the leaf that leads is
    known within half of its estimate, and no other one can have more than twice that estimate. The leaf that is split
    then has at least a quarter of the largest score, with probability 1 - delta / 2 for the whole run.

    Parameters
    ----------
    oracle : BooleanOracle
        The function.
    p : numpy.ndarray of shape (n,)
        Probabilities of the bits.
    eps : float
        Error to stop at, once a fresh sample has shown it.
    delta : float
        Chance of failure.
    max_leaves : int
        Most leaves.
    rng : numpy.random.Generator
        Source of the points.

    Returns
    -------
    Growth

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.boolean_influence import BooleanOracle
    >>> from assay.supervised.greedy_tree_sampling import grow_from_samples
    >>> parity = BooleanOracle(lambda x: x[:, 0] ^ x[:, 1], 30)
    >>> tree = grow_from_samples(parity, np.full(30, 0.5), 0.1, 0.05, 100, np.random.default_rng(0))
    >>> tree.n_leaves, tree.status
    (4, 'reached')
    """
    growth, test = Growth(), _ErrorTest(eps, 0.5 * delta)
    n = len(p)
    factors = 2.0 * p * (1.0 - p)

    def draw(leaf: _SampledLeaf, count: int) -> None:
        for start in range(0, count, _CHUNK):
            points = (rng.random((min(_CHUNK, count - start), n)) < p).astype(np.uint8)
            for variable, bit in leaf.path.items():
                points[:, variable] = bit
            values = oracle(points)
            flips = flip_indicators(oracle, points, values, leaf.free)
            leaf.flips += flips.sum(axis=0, dtype=np.int64)
            leaf.drawn += len(points)
            leaf.ones += int(values.sum())
        scale = leaf.reach * factors[leaf.free]
        leaf.sensitivity = float(scale @ leaf.flips) / leaf.drawn
        leaf.looks += 1
        if len(leaf.free) == 0:
            leaf.high, leaf.resolved = 0.0, True
            return
        # The chances of error of all looks at all variables of all leaves add up to delta / 2 at most.
        alpha = delta / (8.0 * (growth.n_leaves + 1) ** 2 * n * leaf.looks * (leaf.looks + 1))
        lower, upper = binomial_interval(leaf.flips, leaf.drawn, alpha)
        estimates = scale * leaf.flips / leaf.drawn
        best = first_of_the_largest(estimates)
        leaf.variable, leaf.estimate = int(leaf.free[best]), float(estimates[best])
        leaf.high = float((scale * upper).max())
        rate = leaf.flips[best] / leaf.drawn
        leaf.resolved = rate > 0 and max(upper[best] - rate, rate - lower[best]) <= 0.5 * rate

    def add(path: dict[int, int], reach: float) -> _SampledLeaf:
        free = np.setdiff1d(np.arange(n), list(path))
        leaf = _SampledLeaf(-1, path, reach, free, np.zeros(len(free), dtype=np.int64))
        draw(leaf, _FIRST_DRAW)
        leaf.node = growth.add(reach, leaf.ones / leaf.drawn, leaf.sensitivity)
        return leaf

    def double(leaf: _SampledLeaf) -> None:
        draw(leaf, leaf.drawn)
        growth.revise(leaf.node, leaf.ones / leaf.drawn, leaf.sensitivity)

    leaves = [add({}, 1.0)]
    while True:
        if growth.error <= 0.75 * eps and test.passes(oracle, p, growth, rng):
            growth.status = "reached"
        elif growth.n_leaves >= max_leaves:
            growth.status = "budget"
        else:
            chosen = _resolve(leaves, double, eps / (4.0 * n * max(len(leaves), 1)))
            # When no score can be large, neither can the error; then the test was unlucky, or the scores were.
            if chosen is None:
                if test.passes(oracle, p, growth, rng):
                    growth.status = "reached"
                elif test.tests < _MAX_TESTS:
                    continue
                else:
                    growth.status = "stalled"
        if growth.status:
            growth.note(-1, -1, 0.0)
            return growth
        growth.note(chosen.node, chosen.variable, chosen.estimate)
        chance = p[chosen.variable]
        children = tuple(
            add({**chosen.path, chosen.variable: bit}, chosen.reach * share)
            for bit, share in ((0, 1.0 - chance), (1, chance))
        )
        growth.split(chosen.node, chosen.variable, (children[0].node, children[1].node))
        leaves.remove(chosen)
        leaves.extend(leaf for leaf in children if leaf.reach >= NEGLIGIBLE)


def _resolve(leaves: list[_SampledLeaf], double: Any, negligible: float) -> _SampledLeaf | None:
    """Sample until one leaf is known to have a quarter of the largest score, or all scores are negligible."""
    while leaves:
        widest = max((leaf for leaf in leaves if not leaf.resolved), key=lambda leaf: leaf.high, default=None)
        leader = max(leaves, key=lambda leaf: leaf.estimate)
        rest = -math.inf if widest is None else widest.high
        if leader.resolved and leader.estimate > 0.0 and rest <= 2.0 * leader.estimate:
            return leader
        if max(leaf.high for leaf in leaves) <= negligible:
            return None
        double(leader if leader.estimate > 0.0 and not leader.resolved else widest)
    return None


def grow_from_pairs(
    oracle: BooleanOracle,
    p: Float[np.ndarray, " n"],
    eps: float,
    delta: float,
    max_leaves: int,
    rng: np.random.Generator,
) -> Growth:
    """Grow a tree on scores that are estimated from resampled pairs of the whole cube, as the paper does.

    With j leaves and error above ``eps`` the largest score is at least ``eps / (j n)``, so that a fresh sample of
    ``(12 j n / eps) log(4 j (j + 1) j n / delta)`` pairs for each variable finds a leaf and variable with a quarter of
    it.

    Parameters
    ----------
    oracle, p, eps, delta, max_leaves, rng
        As in :func:`grow_from_samples`.

    Returns
    -------
    Growth

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.boolean_influence import BooleanOracle
    >>> from assay.supervised.greedy_tree_sampling import grow_from_pairs
    >>> both = BooleanOracle([0, 0, 0, 1], 2)
    >>> tree = grow_from_pairs(both, np.full(2, 0.5), 0.1, 0.05, 100, np.random.default_rng(0))
    >>> tree.n_leaves, tree.status
    (3, 'reached')
    """
    growth, test = Growth(), _ErrorTest(eps, 0.5 * delta)
    n = len(p)
    reach: list[float] = [1.0]
    growth.add(1.0, 0.5, 0.0)
    while True:
        j = growth.n_leaves
        pairs = math.ceil(12.0 * j * n / eps * math.log(4.0 * j * (j + 1) * j * n / delta))
        nodes = len(growth.feature)
        hits, ones = np.zeros((nodes, n), dtype=np.int64), np.zeros(nodes, dtype=np.int64)
        seen = np.zeros(nodes, dtype=np.int64)
        for start in range(0, pairs, _CHUNK):
            points = (rng.random((min(_CHUNK, pairs - start), n)) < p).astype(np.uint8)
            values, leaf = oracle(points), _leaves(growth, points)
            seen += np.bincount(leaf, minlength=nodes)
            ones += np.bincount(leaf, weights=values, minlength=nodes).astype(np.int64)
            for i in range(n):
                partner = points.copy()
                partner[:, i] = rng.random(len(points)) < p[i]
                changed = partner[:, i] != points[:, i]
                partner = partner[changed]
                same = _leaves(growth, partner) == leaf[changed]
                differ = oracle(partner[same]) != values[changed][same]
                hits[:, i] += np.bincount(leaf[changed][same][differ], minlength=nodes)
        for node in np.flatnonzero(np.array(growth.feature) < 0):
            growth.revise(int(node), float(ones[node] / max(seen[node], 1)), float(hits[node].sum() / pairs))
        node, variable = (int(k) for k in np.unravel_index(hits.argmax(), hits.shape))
        score = hits[node, variable] / pairs
        if (growth.error <= 0.75 * eps or score == 0.0) and test.passes(oracle, p, growth, rng):
            growth.status = "reached"
        elif growth.n_leaves >= max_leaves:
            growth.status = "budget"
        if growth.status:
            growth.note(-1, -1, 0.0)
            return growth
        if score == 0.0:
            if test.tests < _MAX_TESTS:
                continue
            growth.status = "stalled"
            growth.note(-1, -1, 0.0)
            return growth
        growth.note(node, variable, float(score))
        shares = (reach[node] * (1.0 - p[variable]), reach[node] * p[variable])
        reach.extend(shares)
        growth.split(node, variable, (growth.add(shares[0], 0.5, 0.0), growth.add(shares[1], 0.5, 0.0)))


class _ErrorTest:
    """Shows on fresh points that the error is at most eps; the chances of failure of all tests add up to delta."""

    def __init__(self, eps: float, delta: float) -> None:
        self.eps, self.delta, self.tests = eps, delta, 0

    def passes(
        self, oracle: BooleanOracle, p: Float[np.ndarray, " n"], growth: Growth, rng: np.random.Generator
    ) -> bool:
        """Whether the exact upper confidence bound of a fresh sample is at most eps."""
        self.tests += 1
        alpha = self.delta / (self.tests * (self.tests + 1))
        # Enough to tell 3/4 eps from eps.
        size = math.ceil(40.0 * math.log(1.0 / alpha) / self.eps)
        label = np.array(growth.value) >= 0.5
        wrong = 0
        for start in range(0, size, _CHUNK):
            points = (rng.random((min(_CHUNK, size - start), len(p))) < p).astype(np.uint8)
            wrong += int(np.count_nonzero(label[_leaves(growth, points)] != oracle(points)))
        return bool(binomial_interval(wrong, size, alpha)[1] <= self.eps)


def _leaves(growth: Growth, points: UInt8[np.ndarray, "B n"]) -> Int[np.ndarray, " B"]:
    return leaves_of(points, np.array(growth.feature), np.array(growth.left), np.array(growth.right))
