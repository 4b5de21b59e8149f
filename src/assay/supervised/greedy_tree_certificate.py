r"""What an influence-greedy tree promises, evaluated anew on the function and the tree.

One walk over all points, or over fresh random ones, gives every node its reach probability, its share of ones and its
cost: the sum of the influences in it. Nodes are numbered in the order in which they were made, so that the trees of
all earlier steps are there too, and the lemmas of the analysis can be checked at each: the error is at most the cost,
and a split lowers the cost by exactly the score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from numba import njit

from assay.certificate import Assumption, Certificate
from assay.supervised.boolean_influence import BooleanOracle, binomial_interval, bit_weights, flip_indicators
from assay.supervised.greedy_tree_growth import ROUNDING

__all__ = ["exact_certificates", "log10_size_bound", "sampled_certificates"]

_COST_POINTS = 2000
_LOW_BITS = 10


def log10_size_bound(eps: float, max_depth: float, average_depth: float, exponent: float = 1.0) -> float:
    r"""Logarithm to base 10 of the promised number of leaves.

    A function that has a tree of depth D and average depth :math:`\Delta` gets a greedy tree of error at most
    ``eps`` with at most :math:`\max\{(e \Delta / (\varepsilon D))^{\Delta D}, e^{\Delta D}\}` leaves.

    Parameters
    ----------
    eps : float
        Error of the greedy tree.
    max_depth, average_depth : float
        Depths of the reference tree.
    exponent : float, default=1.0
        4 when scores are only known within a factor of 4.

    Returns
    -------
    float

    Examples
    --------
    >>> from assay.supervised.greedy_tree_certificate import log10_size_bound
    >>> round(log10_size_bound(0.05, 3, 2.5), 2)
    12.42
    """
    product = exponent * max_depth * average_depth
    if product == 0.0:
        return 0.0
    if eps <= 0.0:
        return math.inf
    return max(product * math.log(math.e * average_depth / (eps * max_depth)), product) / math.log(10.0)


def exact_certificates(
    table: UInt8[np.ndarray, " size"],
    p: Float[np.ndarray, " n"],
    tree: Any,
    reference: tuple[float, float] | None = None,
) -> tuple[Certificate, ...]:
    """Certificates of a tree for a tabulated function.

    Parameters
    ----------
    table : numpy.ndarray of shape (2**n,)
        Values of the function.
    p : numpy.ndarray of shape (n,)
        Probabilities of the bits.
    tree : GreedyTree
        The tree.
    reference : tuple of float, optional
        Depth and average depth of another tree that computes the function.

    Returns
    -------
    tuple of Certificate

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import build_topdown_tree
    >>> from assay.supervised.greedy_tree_certificate import exact_certificates
    >>> table = np.array([0, 0, 0, 1], dtype=np.uint8)
    >>> tree = build_topdown_tree(table, 2)
    >>> all(certificate.holds for certificate in exact_certificates(table, np.full(2, 0.5), tree))
    True
    """
    low = min(len(p), _LOW_BITS)
    prob, ones, cost = _table_moments(
        table,
        bit_weights(p[:low]),
        bit_weights(p[low:]),
        2.0 * p * (1.0 - p),
        tree.feature,
        tree.left,
        tree.right,
    )
    leaf = tree.feature < 0
    error = math.fsum(np.where(tree.label[leaf] == 1, prob[leaf] - ones[leaf], ones[leaf]))
    minority = np.minimum(ones, prob - ones)
    splits = tree.history["node"][:-1]
    error_drop, cost_drop = (
        part[splits] - part[tree.left[splits]] - part[tree.right[splits]] for part in (minority, cost)
    )
    excess = minority[0] - cost[0] - np.concatenate([[0.0], np.cumsum(error_drop - cost_drop)])
    certificates = [
        Certificate("error of the tree, over all points", error, tree.eps + ROUNDING),
        Certificate("error minus cost, the largest over all steps", float(excess.max()), ROUNDING),
    ]
    if tree.influence == "product":
        gap = np.abs(cost_drop - tree.history["score"][:-1]).max(initial=0.0)
        certificates.append(
            Certificate("cost drop of a split against its score, largest difference", float(gap), ROUNDING)
        )
    if error <= ROUNDING:
        certificates.append(
            Certificate(
                "average depth, against what every tree of this function needs",
                tree.average_depth + ROUNDING,
                tree.min_average_depth,
                ">=",
            )
        )
    exact_influence = (Assumption("influences are those of the product distribution", tree.influence == "product"),)
    return (
        *certificates,
        *_reference_certificates(tree, reference, 1.0, float(ones[0]), float(cost[0]), exact_influence),
    )


def sampled_certificates(
    oracle: BooleanOracle,
    p: Float[np.ndarray, " n"],
    tree: Any,
    delta: float,
    rng: np.random.Generator,
    reference: tuple[float, float] | None = None,
) -> tuple[Certificate, ...]:
    """Certificates of a tree for a function that can be queried, on fresh points.

    Parameters
    ----------
    oracle : BooleanOracle
        The function.
    p : numpy.ndarray of shape (n,)
        Probabilities of the bits.
    tree : GreedyTree
        The tree.
    delta : float
        Chance that the bound of the error is wrong.
    rng : numpy.random.Generator
        Source of the points.
    reference : tuple of float, optional
        Depth and average depth of another tree that computes the function.

    Returns
    -------
    tuple of Certificate

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import build_topdown_tree
    >>> from assay.supervised.boolean_influence import BooleanOracle
    >>> from assay.supervised.greedy_tree_certificate import sampled_certificates
    >>> tree = build_topdown_tree([0, 0, 0, 1], 2)
    >>> oracle, rng = BooleanOracle([0, 0, 0, 1], 2), np.random.default_rng(0)
    >>> all(certificate.holds for certificate in sampled_certificates(oracle, np.full(2, 0.5), tree, 0.05, rng))
    True
    """
    wrong, tested = error_count(oracle, p, tree, delta, rng)
    points = (rng.random((_COST_POINTS, len(p))) < p).astype(np.uint8)
    values = oracle(points)
    flips = flip_indicators(oracle, points, values, np.arange(len(p)))
    first, second = _sample_moments(points, values, flips * (2.0 * p * (1.0 - p)), tree)
    splits = tree.history["node"][:-1]
    mean, square = (
        np.cumsum(np.append(part[0], part[tree.left[splits]] + part[tree.right[splits]] - part[splits]))
        for part in (first, second)
    )
    spread = np.sqrt(np.maximum(square - mean**2, 0.0) / _COST_POINTS)
    ratio = np.divide(-mean, spread, out=np.where(mean < -ROUNDING, math.inf, 0.0), where=spread > ROUNDING)
    upper = float(binomial_interval(wrong, tested, delta)[1])
    return (
        Certificate(
            f"error of the tree, upper confidence bound at {100 * (1 - delta):g} % from {tested} fresh points",
            upper,
            tree.eps,
        ),
        Certificate("error minus cost in standard errors, the largest over all steps", float(ratio.max()), 3.0),
        *_reference_certificates(tree, reference, 4.0, math.nan, math.nan, ()),
    )


def error_count(
    oracle: BooleanOracle, p: Float[np.ndarray, " n"], tree: Any, delta: float, rng: np.random.Generator
) -> tuple[int, int]:
    """Errors of a tree on fresh points, twice as many as the tests of the growth use.

    Parameters
    ----------
    oracle, p, tree, delta, rng
        As in :func:`sampled_certificates`.

    Returns
    -------
    wrong, tested : int

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import build_topdown_tree
    >>> from assay.supervised.boolean_influence import BooleanOracle
    >>> from assay.supervised.greedy_tree_certificate import error_count
    >>> tree = build_topdown_tree([0, 0, 0, 1], 2)
    >>> error_count(BooleanOracle([0, 0, 0, 1], 2), np.full(2, 0.5), tree, 0.05, np.random.default_rng(0))
    (0, 4794)
    """
    size = math.ceil(80.0 * math.log(1.0 / delta) / max(tree.eps, 1e-6))
    wrong = 0
    for start in range(0, size, 1 << 16):
        points = (rng.random((min(1 << 16, size - start), len(p))) < p).astype(np.uint8)
        wrong += int(np.count_nonzero(tree.predict(points) != oracle(points)))
    return wrong, size


def _reference_certificates(
    tree: Any,
    reference: tuple[float, float] | None,
    exponent: float,
    ones: float,
    influence: float,
    assumptions: Sequence[Assumption],
) -> tuple[Certificate, ...]:
    """What follows for the greedy tree, and for the function, from a tree that computes it."""
    if reference is None:
        return ()
    depth, average = reference
    certificates = [
        Certificate(
            "log10 of the number of leaves, against the bound from the reference tree",
            math.log10(tree.n_leaves),
            log10_size_bound(tree.eps, depth, average, exponent),
            assumptions=(Assumption("the reference tree computes the function"), *assumptions),
        )
    ]
    if math.isfinite(influence):
        claimed = (Assumption("the reference tree computes the function"),)
        certificates += [
            Certificate(
                "total influence, against twice the variance times the depth of the reference tree",
                influence,
                depth * 2.0 * ones * (1.0 - ones) + ROUNDING,
                assumptions=claimed,
            ),
            Certificate(
                "average depth of the reference tree, against what every tree of this function needs",
                average + ROUNDING,
                tree.min_average_depth,
                ">=",
                assumptions=claimed,
            ),
        ]
    return tuple(certificates)


def _sample_moments(
    points: UInt8[np.ndarray, "B n"], values: UInt8[np.ndarray, " B"], change: Float[np.ndarray, "B n"], tree: Any
) -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, " nodes"]]:
    """Mean and mean square, over all points, of what a point adds to cost minus error at each node on its way."""
    first, second = np.zeros(len(tree.feature)), np.zeros(len(tree.feature))
    majority = tree.value >= 0.5
    rows, node = np.arange(len(points)), np.zeros(len(points), dtype=np.int64)
    sensitivity = change.sum(axis=1)
    while len(rows):
        gain = sensitivity[rows] - (majority[node] != values[rows])
        first += np.bincount(node, weights=gain, minlength=len(first))
        second += np.bincount(node, weights=gain**2, minlength=len(first))
        inner = tree.feature[node] >= 0
        rows, node = rows[inner], node[inner]
        split = tree.feature[node]
        sensitivity[rows] -= change[rows, split]
        node = np.where(points[rows, split] == 1, tree.right[node], tree.left[node])
    return first / len(points), second / len(points)


@njit(cache=True)
def _table_moments(
    table: Any, low_weights: Any, high_weights: Any, factors: Any, feature: Any, left: Any, right: Any
) -> Any:
    """Reach probability, weight of the ones and cost of each node, by compensated sums over all points."""
    nodes, n, block = feature.size, factors.size, low_weights.size
    sums, lost = np.zeros((nodes, 3)), np.zeros((nodes, 3))
    for x in range(table.size):
        weight = low_weights[x % block] * high_weights[x // block]
        sensitivity = 0.0
        for i in range(n):
            if table[x] != table[x ^ (1 << i)]:
                sensitivity += factors[i]
        node = 0
        while True:
            terms = (weight, weight * table[x], weight * sensitivity)
            for k in range(3):
                total = sums[node, k] + terms[k]
                if abs(sums[node, k]) >= abs(terms[k]):
                    lost[node, k] += (sums[node, k] - total) + terms[k]
                else:
                    lost[node, k] += (terms[k] - total) + sums[node, k]
                sums[node, k] = total
            i = feature[node]
            if i < 0:
                break
            if table[x] != table[x ^ (1 << i)]:
                sensitivity -= factors[i]
            node = right[node] if (x >> i) & 1 else left[node]
    return sums[:, 0] + lost[:, 0], sums[:, 1] + lost[:, 1], sums[:, 2] + lost[:, 2]
