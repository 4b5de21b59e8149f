"""2-opt and Or-opt: local optima by definition, never worse, fast against plain."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.graphs.local_search import _exchange, _reverse, or_opt, two_opt
from assay.graphs.tour_costs import normalize_tour, read_costs

SEARCHES = [two_opt, or_opt]


def random_costs(rng, n, kind):
    if kind == "points":
        return rng.random((n, 2))
    if kind == "lattice":
        return rng.integers(0, 4, (n, 2)).astype(float)
    if kind == "same point":
        return np.ones((n, 2))
    upper = np.triu(rng.random((n, n)) if kind == "matrix" else rng.integers(0, 3, (n, n)).astype(float), 1)
    return upper + upper.T


KINDS = ["points", "lattice", "same point", "matrix", "ties"]


def best_two_opt_gain(matrix, tour):
    """Largest gain of any exchange of two edges, by rebuilding every neighbour tour."""
    n, total = len(tour), tour_length(matrix, tour)
    gains = [0.0]
    for i in range(n):
        for j in range(i + 2, n + 1):
            gains.append(total - tour_length(matrix, np.concatenate([tour[:i], tour[i:j][::-1], tour[j:]])))
    return max(gains)


def best_or_opt_gain(matrix, tour):
    """Largest gain of moving any path of at most three cities, by rebuilding every neighbour tour."""
    n, total = len(tour), tour_length(matrix, tour)
    gains = [0.0]
    for start in range(n):
        rolled = np.roll(tour, -start)
        for length in range(1, min(3, n - 3) + 1):
            segment, rest = rolled[:length], rolled[length:]
            for place in range(1, len(rest)):
                for moved in (segment, segment[::-1]):
                    neighbour = np.concatenate([rest[:place], moved, rest[place:]])
                    gains.append(total - tour_length(matrix, neighbour))
    return max(gains)


def tour_length(matrix, tour):
    return matrix[tour, np.roll(tour, -1)].sum()


@pytest.mark.parametrize("search", SEARCHES)
def test_known_square(search):
    square = [[0, 0], [0, 1], [1, 1], [1, 0]]
    for tour in ([0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 3, 2]):
        found = search(square, tour)
        if search is two_opt:
            assert found.tolist() == [0, 1, 2, 3]
        assert read_costs(square).tour_cost(found) <= read_costs(square).tour_cost(tour)


def test_known_hexagon_of_the_spanning_example():
    points = [(0, 0), (3, 0), (6, 0.5), (6, 4), (3, 4.2), (0, 4)]
    for seed in range(20):
        tour = np.random.default_rng(seed).permutation(6)
        assert read_costs(points).tour_cost(two_opt(points, tour)) == pytest.approx(19.554699816498275, rel=1e-12)


@pytest.mark.parametrize("search", SEARCHES)
def test_three_cities_have_one_tour(search):
    assert search([[0, 0], [1, 0], [0, 1]], [2, 1, 0]).tolist() == [0, 1, 2]


@pytest.mark.parametrize("method", ["neighbors", "plain"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("search", "best_gain"), [(two_opt, best_two_opt_gain), (or_opt, best_or_opt_gain)])
def test_local_optimum_by_definition(search, best_gain, kind, method):
    for seed in range(25):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(4, 13))
        cost, tour = random_costs(rng, n, kind), rng.permutation(n)
        costs = read_costs(cost)
        found = search(cost, tour, n_neighbors=n, method=method)
        matrix = costs.block(np.arange(n))
        assert sorted(found.tolist()) == list(range(n))
        assert best_gain(matrix, found) <= 1e-11
        assert costs.tour_cost(found) <= costs.tour_cost(tour)


@given(st.integers(0, 2**32 - 1), st.integers(3, 40), st.sampled_from(KINDS), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_never_worse_and_always_a_tour(seed, n, kind, n_neighbors):
    rng = np.random.default_rng(seed)
    cost, tour = random_costs(rng, n, kind), rng.permutation(n)
    costs = read_costs(cost)
    before = tour.copy(), cost.copy()
    for search in SEARCHES:
        found = search(cost, tour, n_neighbors=n_neighbors)
        assert sorted(found.tolist()) == list(range(n))
        assert costs.tour_cost(found) <= costs.tour_cost(tour)
        assert found.tolist() == normalize_tour(found).tolist()
        assert search(cost, found, n_neighbors=n_neighbors).tolist() == found.tolist()
    assert np.array_equal(before[0], tour)
    assert np.array_equal(before[1], cost)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("scale", [1e-8, 1e-150, 1e8, 1e140])
def test_scale_does_not_matter(search, scale):
    rng = np.random.default_rng(0)
    points, tour = rng.random((80, 2)), rng.permutation(80)
    scale = 2.0 ** np.round(np.log2(scale))
    assert search(points * scale, tour).tolist() == search(points, tour).tolist()


@pytest.mark.parametrize("search", SEARCHES)
def test_a_huge_cost_among_small_ones_does_not_make_it_cycle(search):
    rng = np.random.default_rng(1)
    for _ in range(30):
        upper = np.triu(10.0 ** rng.uniform(-6, 16, (12, 12)), 1)
        matrix, tour = upper + upper.T, rng.permutation(12)
        found = search(matrix, tour)
        assert read_costs(matrix).tour_cost(found) <= read_costs(matrix).tour_cost(tour)


@pytest.mark.parametrize("search", SEARCHES)
def test_forms_of_input_agree(search):
    rng = np.random.default_rng(2)
    points, tour = rng.integers(0, 1000, (60, 2)), rng.permutation(60)
    expected = search(points, tour)
    for form in (
        points.astype(np.float32),
        points.tolist(),
        read_costs(points),
        read_costs(points).block(np.arange(60)),
    ):
        assert search(form, tour.tolist()).tolist() == expected.tolist()


def test_neighbour_lists_lose_little_against_the_complete_neighbourhood():
    rng = np.random.default_rng(3)
    points = rng.random((300, 2))
    costs = read_costs(points)
    ratios = []
    for _ in range(6):
        tour = rng.permutation(300)
        ratios.append(costs.tour_cost(two_opt(points, tour)) / costs.tour_cost(two_opt(points, tour, n_neighbors=299)))
    assert np.mean(ratios) < 1.03


def test_points_need_no_matrix():
    rng = np.random.default_rng(4)
    points, tour = rng.random((3000, 2)), rng.permutation(3000)
    two_opt(points[:500], np.arange(500))
    tracemalloc.start()
    two_opt(points, tour)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 8 / 4


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7])
def test_turning_a_path_round_gives_the_same_tour_from_either_side(n):
    rng = np.random.default_rng(n)
    for _ in range(200):
        tour = rng.permutation(n)
        first, last = rng.integers(0, n, 2)
        turned, position = tour.copy(), np.argsort(tour)
        _reverse(turned, position, first, last)
        rolled = np.roll(tour, -first)
        length = (last - first) % n + 1
        expected = np.concatenate([rolled[:length][::-1], rolled[length:]])
        assert normalize_tour(turned).tolist() == normalize_tour(expected).tolist()
        assert np.array_equal(position[turned], np.arange(n))


def test_exchange_replaces_the_two_edges_it_names():
    rng = np.random.default_rng(5)

    def edges(tour):
        return {frozenset(edge) for edge in zip(tour.tolist(), np.roll(tour, -1).tolist(), strict=True)}

    for _ in range(300):
        n = int(rng.integers(4, 10))
        tour = rng.permutation(n)
        i, j = sorted(rng.choice(n, 2, replace=False))
        a, b, c, d = (int(tour[k % n]) for k in (i, i + 1, j, j + 1))
        if len({a, b, c, d}) < 4:
            continue
        before = edges(tour)
        position = np.argsort(tour)
        if rng.random() < 0.5:
            _exchange(tour, position, a, b, c, d)
        else:  # seen from the other direction, the ends swap roles
            _exchange(tour, position, b, a, d, c)
        removed, added = {frozenset((a, b)), frozenset((c, d))}, {frozenset((a, c)), frozenset((b, d))}
        assert edges(tour) == before - removed | added
        assert np.array_equal(position[tour], np.arange(n))


@pytest.mark.parametrize("search", SEARCHES)
def test_bad_input(search):
    square = [[0, 0], [0, 1], [1, 1], [1, 0]]
    with pytest.raises(ValueError, match="tour must be a permutation"):
        search(square, [0, 1, 2, 2])
    with pytest.raises(ValueError, match="tour must be a permutation"):
        search(square, [0, 1, 2])
    with pytest.raises(TypeError, match="tour must be a sequence of integers"):
        search(square, [0.0, 1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="n_neighbors must be at least 1, got 0"):
        search(square, [0, 1, 2, 3], n_neighbors=0)
    with pytest.raises(TypeError, match="n_neighbors"):
        search(square, [0, 1, 2, 3], n_neighbors=2.0)
    with pytest.raises(ValueError, match="method must be one of 'neighbors', 'plain', got 'fast'"):
        search(square, [0, 1, 2, 3], method="fast")
    with pytest.raises(ValueError, match="at least 3"):
        search([[0, 0], [1, 1]], [0, 1])
    with pytest.raises(ValueError, match="nan or infinite"):
        search([[0, 0], [1, np.nan], [2, 2]], [0, 1, 2])
    with pytest.raises(ValueError, match="symmetric"):
        search([[0, 1, 2], [1, 0, 1], [3, 1, 0]], [0, 1, 2])
