"""Lower bounds and certificates, recomputed by other means and against all tours of small instances."""

import itertools
import math

import numpy as np
import pytest
from scipy.sparse.csgraph import minimum_spanning_tree

from assay.graphs.tour_bounds import held_karp_bound, one_tree_bound
from assay.graphs.tour_certificates import (
    MetricCheck,
    christofides_certificate,
    divide,
    ratio_certificate,
    reference_certificate,
    score_error,
    set_errors,
    skeleton_certificate,
    structural_certificate,
    threshold_certificate,
    triangle_check,
)
from assay.graphs.tour_costs import read_costs, read_scores

SQUARE = [[0, 0], [0, 1], [1, 1], [1, 0]]
EXACT = MetricCheck(0.0, True, 0.0, 0.0)


def all_tours(n):
    """Each tour once: from city 0, second below last."""
    return [(0, *rest) for rest in itertools.permutations(range(1, n)) if rest[0] < rest[-1]]


def tour_cost(matrix, tour):
    return sum(matrix[a, b] for a, b in zip(tour, np.roll(tour, -1), strict=True))


def random_matrix(rng, n):
    matrix = np.triu(rng.random((n, n)), 1)
    return matrix + matrix.T


@pytest.mark.parametrize("seed", range(5))
def test_bound_is_below_the_optimum_for_any_costs(seed):
    rng = np.random.default_rng(seed)
    for cost in (random_matrix(rng, 7), rng.random((7, 2)), rng.integers(0, 3, size=(7, 2))):
        matrix = read_costs(cost).block(np.arange(7))
        optimum = min(tour_cost(matrix, tour) for tour in all_tours(7))
        result = held_karp_bound(cost)
        assert result.lower_bound <= optimum + 1e-9
        assert result.lower_bound >= 0.8 * optimum
        assert result.certified
        assert result.history["bound"].max() == pytest.approx(result.lower_bound, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_one_tree_bound_is_that_of_a_spanning_tree_of_scipy(seed):
    rng = np.random.default_rng(seed)
    points = rng.random((20, 2))
    potentials = rng.normal(scale=0.05, size=20)
    matrix = read_costs(points).block(np.arange(20)) + potentials[:, None] + potentials[None, :]
    inner = matrix[1:, 1:] + 10.0  # positive, so that no entry looks like a missing edge
    tree = minimum_spanning_tree(inner).sum() - 10.0 * 18
    expected = tree + np.sort(matrix[0, 1:])[:2].sum() - 2 * potentials.sum()
    assert one_tree_bound(points, potentials) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", ["points", "matrix"])
def test_compiled_ascent_agrees_with_the_plain_tree(form):
    points = np.random.default_rng(4).random((30, 2))
    cost = points if form == "points" else read_costs(points).block(np.arange(30))
    result = held_karp_bound(cost, n_iter=50)
    assert one_tree_bound(cost, result.potentials) == result.lower_bound
    assert result.history["bound"].max() == pytest.approx(result.lower_bound, rel=1e-12)
    assert result.history["bound"][0] == pytest.approx(one_tree_bound(cost, np.zeros(30)), rel=1e-12)


def test_bound_of_a_circle_is_the_optimum():
    angle = np.arange(12) * math.pi / 6
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    optimum = 24 * math.sin(math.pi / 12)
    result = held_karp_bound(circle)
    assert result.lower_bound == pytest.approx(optimum, rel=1e-4)
    known = held_karp_bound(circle, upper=optimum)
    assert known.lower_bound <= optimum * (1 + 1e-12)
    assert held_karp_bound(SQUARE).lower_bound == 4.0
    assert held_karp_bound([[0, 3, 4], [3, 0, 5], [4, 5, 0]]).is_tour


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_bound_scales_with_the_costs(scale):
    points = np.random.default_rng(2).random((15, 2))
    assert held_karp_bound(points * scale).lower_bound == pytest.approx(held_karp_bound(points).lower_bound * scale)


def test_bound_of_one_place_is_zero():
    assert held_karp_bound(np.zeros((6, 2))).lower_bound == 0.0


def test_bad_arguments_of_the_bound():
    with pytest.raises(ValueError, match="upper must be the cost of a tour, which is at least 4, got 3"):
        held_karp_bound(SQUARE, upper=3.0)
    with pytest.raises(ValueError, match="n_iter must be at least 1"):
        held_karp_bound(SQUARE, n_iter=0)
    with pytest.raises(TypeError, match="n_iter must be an integer"):
        held_karp_bound(SQUARE, n_iter=True)
    with pytest.raises(ValueError, match="upper must be finite"):
        held_karp_bound(SQUARE, upper=math.nan)
    with pytest.raises(ValueError, match="potentials must have length 4, got 3"):
        one_tree_bound(SQUARE, [0, 0, 0])


def test_triangle_check_finds_the_largest_violation():
    rng = np.random.default_rng(0)
    matrix = random_matrix(rng, 12)
    expected = max(matrix[a, c] - matrix[a, b] - matrix[b, c] for a, b, c in itertools.permutations(range(12), 3))
    check = triangle_check(matrix)
    assert check.violation == pytest.approx(expected)
    assert check.satisfied is False
    assert check.slack == check.violation + check.rounding
    assert "up to" in check.assumption.statement


def test_triangle_check_of_metrics():
    points = np.random.default_rng(0).random((30, 2)) * 50
    assert triangle_check(points).satisfied is True
    exact = read_costs(points).block(np.arange(30))
    assert triangle_check(exact).satisfied is True
    assert triangle_check(exact).violation <= triangle_check(exact).rounding
    rounded = triangle_check(np.rint(exact))
    assert rounded.violation == 1.0
    assert rounded.satisfied is True
    assert triangle_check([[0, 1, 5], [1, 0, 1], [5, 1, 0]]).satisfied is False


def test_large_matrices_are_sampled():
    points = np.random.default_rng(0).random((520, 2))
    matrix = read_costs(points).block(np.arange(520))
    assert triangle_check(matrix).satisfied is None
    assert triangle_check(matrix**4).satisfied is False


def scores_and_incidence(rng, n):
    scores = np.triu(rng.random((n, n)) * (rng.random((n, n)) < 0.6), 1)
    return scores + scores.T


def incidence(tour):
    n = len(tour)
    matrix = np.zeros((n, n))
    following = np.roll(tour, -1)
    matrix[tour, following] = matrix[following, tour] = 1
    return matrix


@pytest.mark.parametrize("seed", range(4))
def test_errors_are_the_sums_over_all_pairs(seed):
    rng = np.random.default_rng(seed)
    n = 9
    costs = read_costs(rng.random((n, 2)))
    matrix = costs.block(np.arange(n))
    dense = np.round(scores_and_incidence(rng, n), 1)
    scores = read_scores(dense, n)
    tour = rng.permutation(n)
    difference = np.abs(dense - incidence(tour))
    weighted, unweighted = score_error(costs, scores, tour)
    assert weighted == pytest.approx((matrix * difference).sum() / 2, rel=1e-12)
    assert unweighted == pytest.approx(difference.sum() / 2, rel=1e-12)
    thresholds = np.array([math.inf, 1.0, 0.95, 0.7, 0.5, 0.1])
    cost, number = set_errors(costs, scores, tour, thresholds)
    for k, threshold in enumerate(thresholds):
        different = (dense >= threshold) != incidence(tour).astype(bool)
        assert cost[k] == pytest.approx((matrix * different).sum() / 2, rel=1e-12)
        assert number[k] == different.sum() / 2


def test_error_is_the_mean_over_uniform_thresholds():
    rng = np.random.default_rng(3)
    costs = read_costs(rng.random((8, 2)))
    scores = read_scores(np.round(scores_and_incidence(rng, 8), 2), 8)
    tour = rng.permutation(8)
    grid = (np.arange(1000) + 0.5) / 1000  # never on a score
    cost, _ = set_errors(costs, scores, tour, grid)
    assert cost.mean() == pytest.approx(score_error(costs, scores, tour)[0], rel=1e-9)


def test_structural_certificate_sees_what_is_wrong():
    costs = read_costs(SQUARE)
    tour = np.arange(4)
    ring = np.array([[0, 1], [1, 2], [2, 3], [0, 3]])
    none = np.empty((0, 2), dtype=np.int64)
    good = structural_certificate(costs, tour, ring, none, EXACT)
    assert (good.value, good.bound, good.violated) == (4.0, 4.0, ())
    odd = structural_certificate(costs, tour, ring[:3], none, EXACT)
    assert not odd.holds
    assert [a.satisfied for a in odd.assumptions] == [False, True]
    apart = np.array([[0, 1], [2, 3]])
    assert structural_certificate(costs, tour, apart, apart, EXACT).violated
    crossing = structural_certificate(costs, np.array([0, 2, 1, 3]), ring, none, EXACT)
    assert not crossing.holds


def test_reference_certificates_state_the_inequality():
    costs = read_costs(SQUARE)
    tour = np.arange(4)
    crossing = np.array([0, 2, 1, 3])
    diagonal = math.sqrt(2)
    certificate = reference_certificate(costs, crossing, tour, 0.25, 1.0, 0.125, MetricCheck(0.5, True, 1.0, 0.0), "it")
    assert certificate.value == pytest.approx(2 + 2 * diagonal)
    assert certificate.bound == 4 + 0.5 + 1.0 + 0.125
    assert certificate.holds is True
    assert not reference_certificate(costs, crossing, tour, 0.25, 0.0, 0.0, EXACT, "it").holds
    scores = read_scores({(0, 1): 1, (0, 2): 0.5}, 4)
    closest = threshold_certificate(
        costs, scores, tour, tour, np.array([math.inf, 1.0, 0.5]), np.array([0.0, 0.25, 0.0]), EXACT
    )
    assert closest.bound == 4 + 2 * 3 + 0.25  # the set of the one side; with the diagonal it is farther
    assert "threshold 1" in closest.statement
    skeleton = np.array([[0, 1], [1, 2], [3, 0], [2, 0]])
    outside = skeleton_certificate(costs, tour, tour, skeleton, 0.0, EXACT)
    assert outside.bound == pytest.approx(4 + 2 * diagonal)
    assert christofides_certificate(costs, tour, 4.0).holds
    assert not christofides_certificate(costs, tour, 3.9).holds


def test_ratio_certificate_recomputes_the_lower_bound():
    costs = read_costs(SQUARE)
    certificate = ratio_certificate(costs, np.arange(4), np.zeros(4), 0.0, EXACT)
    assert (certificate.value, certificate.bound) == (1.0, 1.5)
    flat = read_costs(np.zeros((4, 2)))
    assert ratio_certificate(flat, np.arange(4), np.zeros(4), 0.0, EXACT).value == 1.0
    assert divide(1.0, 0.0) == math.inf
