"""Certificates notice answers that are wrong, and survive rounding."""

import itertools
import math

import numpy as np
import pytest

from assay.graphs.heatmap_tour import decode_heatmap
from assay.graphs.tour_bounds import held_karp_bound, one_tree_bound
from assay.graphs.tour_certificates import (
    christofides_certificate,
    ratio_certificate,
    reference_certificate,
    skeleton_certificate,
    structural_certificate,
    threshold_certificate,
    triangle_check,
)
from assay.graphs.tour_costs import read_costs, read_scores

RNG = np.random.default_rng(0)
POINTS = RNG.random((8, 2))
HEATMAP = np.triu(RNG.random((8, 8)), 1)
COSTS = read_costs(POINTS)
METRIC = triangle_check(COSTS)
REFERENCE = np.arange(8)
RESULT = decode_heatmap(POINTS, HEATMAP, reference=REFERENCE, lower_bound=True)


def certificates_of(tour, reference=REFERENCE):
    scores = read_scores(HEATMAP, 8)
    levels, gaps = np.array([math.inf, 0.5]), np.zeros(2)
    return {
        "structural": structural_certificate(COSTS, tour, RESULT.skeleton, RESULT.pairs, METRIC),
        "reference": reference_certificate(COSTS, tour, reference, 10.0, 1.0, 0.0, METRIC, "an error"),
        "threshold": threshold_certificate(COSTS, scores, tour, REFERENCE, levels, gaps, METRIC),
        "skeleton": skeleton_certificate(COSTS, tour, REFERENCE, RESULT.skeleton, 0.0, METRIC),
        "christofides": christofides_certificate(COSTS, tour, 100.0),
        "ratio": ratio_certificate(COSTS, tour, np.zeros(8), 100.0, METRIC),
    }


def test_the_answer_itself_is_certified():
    assert len(RESULT.skeleton)
    assert all(certificate.holds for certificate in certificates_of(RESULT.tour).values())


@pytest.mark.parametrize(
    "tour", [np.zeros(8, dtype=np.int64), np.array([0, 1, 2, 3, 4, 5, 6, 6]), np.arange(1, 9), np.arange(-1, 7)]
)
def test_what_is_not_a_tour_is_never_certified(tour):
    for name, certificate in certificates_of(tour).items():
        assert not certificate.holds, name


def test_a_reference_that_is_not_a_tour_bounds_nothing():
    assert not certificates_of(RESULT.tour, reference=np.zeros(8, dtype=np.int64))["reference"].holds


def test_a_skeleton_that_is_not_connected_or_even_is_noticed():
    ring = np.column_stack([np.arange(8), np.roll(np.arange(8), -1)])
    two_rings = np.array([[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4]])
    nothing = np.empty((0, 2), dtype=np.int64)
    statement = "skeleton and matching together are connected and even"
    for skeleton, pairs, sound in (
        (ring, nothing, True),
        (ring[:-1], ring[-1:], True),
        (two_rings, nothing, False),
        (ring[:-1], nothing, False),
    ):
        certificate = structural_certificate(COSTS, RESULT.tour, skeleton, pairs, METRIC)
        assert [a.satisfied for a in certificate.assumptions if a.statement == statement] == [sound]


@pytest.mark.filterwarnings("ignore:the triangle inequality")
@pytest.mark.parametrize("shortcut", ["best", "first"])
def test_structure_is_certified_where_the_violation_is_just_used_up(shortcut):
    # The shortcut that saves nothing, and costs exactly the largest violation, must not fail for a last digit.
    for seed in range(300):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(4, 8))
        matrix = rng.random((n, n))
        matrix = matrix + matrix.T
        result = decode_heatmap(matrix, {}, candidates="thresholds", shortcut=shortcut, prune=False)
        assert result.certificates[0].holds, seed


def test_a_lower_bound_is_one_whatever_the_spread_of_costs():
    # With costs from 1e-10 to 1e10, sums that are rounded on the way are wrong by more than the smallest tour.
    exceeded = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        matrix = np.triu(10.0 ** rng.uniform(-10, 10, (6, 6)), 1)
        matrix = matrix + matrix.T
        costs = read_costs(matrix)
        optimum = min(costs.tour_cost(tour) for tour in all_tours_of_six())
        result = held_karp_bound(matrix)
        assert result.lower_bound <= optimum
        assert one_tree_bound(matrix, result.potentials) == result.lower_bound
        assert one_tree_bound(matrix, result.potentials + 1e6) <= optimum
        exceeded += rounded_one_tree(matrix, result.potentials + 1e6) > optimum
    assert exceeded > 0  # the test would notice


def all_tours_of_six():
    return [np.array((0, *rest)) for rest in itertools.permutations(range(1, 6)) if rest[0] < rest[-1]]


def rounded_one_tree(matrix, potentials):
    """The same bound in ordinary arithmetic, by Kruskal."""
    modified = matrix + potentials[:, None] + potentials
    edges = sorted((modified[i, j], i, j) for j in range(2, 6) for i in range(1, j))
    group = list(range(6))
    total = sum(sorted(modified[0, 1:])[:2])
    for cost, i, j in edges:
        if group[i] != group[j]:
            total += cost
            group = [group[i] if label == group[j] else label for label in group]
    return total - 2 * potentials.sum()


def test_exact_costs_lose_nothing():
    square = [[0, 0], [0, 1], [1, 1], [1, 0]]
    assert held_karp_bound(square).lower_bound == 4.0
    assert one_tree_bound([[0, 3, 4], [3, 0, 5], [4, 5, 0]], [1, 2, 4]) == 12.0


def test_slack_is_the_violation_and_the_rounding():
    check = triangle_check([[0, 1, 5], [1, 0, 1], [5, 1, 0]])
    assert check.violation == 3.0
    assert check.slack == 3.0 + check.rounding
    assert triangle_check(POINTS).slack == triangle_check(POINTS).rounding
