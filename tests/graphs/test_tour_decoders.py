"""Greedy, beam and guided k-opt decoding: by independent plain versions, and on bad input."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.graphs.local_search import two_opt
from assay.graphs.tour_costs import normalize_tour, read_costs
from assay.graphs.tour_decoders import _draw, _largest, _propose, beam_decode, greedy_decode, kopt_decode

DECODERS = [greedy_decode, beam_decode, lambda *args, **options: kopt_decode(*args, random_state=0, **options)]
SQUARE = np.array([[0, 0], [0, 1], [1, 1], [1, 0]])


def random_instance(seed, n=None):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 12)) if n is None else n
    points = rng.random((n, 2)) if seed % 2 else rng.integers(0, 4, (n, 2)).astype(float)
    heatmap = np.triu(rng.random((n, n)) * (rng.random((n, n)) < rng.uniform(0.1, 1)), 1)
    return points, heatmap + heatmap.T


def noisy_heatmap(rng, points, tour, flip):
    """Confident on the edges of a tour and not on other short ones, wrong with probability ``flip``."""
    n = len(tour)
    edges = {(min(a, b), max(a, b)) for a, b in zip(tour.tolist(), np.roll(tour, -1).tolist(), strict=True)}
    near = np.argsort(np.linalg.norm(points[:, None] - points[None], axis=2), axis=1)[:, 1:6].tolist()
    heatmap = np.zeros((n, n))
    short = {(min(a, b), max(a, b)) for a in range(n) for b in near[a]}
    for i, j in sorted(edges | short):
        likely = ((i, j) in edges) != (rng.random() < flip)
        heatmap[i, j] = heatmap[j, i] = rng.beta(8, 2) if likely else rng.beta(2, 8)
    return heatmap


def optimal_cost(points):
    n = len(points)
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    tours = np.array([(0, *order) for order in itertools.permutations(range(1, n))])
    return distance[tours, np.roll(tours, -1, axis=1)].sum(axis=1).min()


# Greedy.


def plain_greedy(points, heatmap):
    """Sort all pairs: scored ones by score per cost, then the others by cost."""
    n = len(points)
    cost = [[math.dist(p, q) for q in points] for p in points]
    pairs = list(itertools.combinations(range(n), 2))
    scored = [e for e in pairs if heatmap[e] > 0]
    scored.sort(key=lambda e: (-heatmap[e] / cost[e[0]][e[1]] if cost[e[0]][e[1]] > 0 else -math.inf, e))
    graph = nx.empty_graph(n)
    for u, v in scored + sorted(pairs, key=lambda e: (cost[e[0]][e[1]], e)):
        if graph.degree[u] < 2 and graph.degree[v] < 2 and not nx.has_path(graph, u, v):
            graph.add_edge(u, v)
    graph.add_edge(*[v for v in graph if graph.degree[v] < 2])
    return normalize_tour(np.array(nx.cycle_basis(graph)[0]))


@pytest.mark.parametrize("seed", range(60))
def test_greedy_is_the_plain_rule(seed):
    points, heatmap = random_instance(seed)
    assert greedy_decode(points, heatmap).tolist() == plain_greedy(points, heatmap).tolist()


def test_greedy_follows_scores_per_cost_not_scores():
    # The diagonal has the higher score but costs more.
    assert greedy_decode(SQUARE, {(0, 2): 1.0, (0, 1): 0.8, (1, 2): 0.8}).tolist() == [0, 1, 2, 3]
    assert greedy_decode(SQUARE, {(0, 2): 1.0, (0, 1): 0.7, (1, 2): 0.7, (2, 3): 0.7}).tolist() == [0, 1, 3, 2]


def test_greedy_without_scores_is_the_greedy_edge_tour():
    points = np.random.default_rng(0).random((30, 2))
    assert greedy_decode(points, {}).tolist() == plain_greedy(points, np.zeros((30, 30))).tolist()


def test_greedy_takes_free_edges_first():
    points = [[0, 0], [0, 0], [1, 0], [1, 1], [0, 1]]
    tour = greedy_decode(points, {(0, 1): 1e-6, (0, 2): 1.0, (1, 2): 1.0}).tolist()
    assert {tour[1], tour[-1]} >= {1}


# Beam.


def plain_beam(points, heatmap, width):
    beam = [([0], 0.0)]
    n = len(points)
    for _ in range(n - 1):
        extended = [
            ([*tour, city], score + math.log(heatmap[tour[-1], city] + 1e-12))
            for tour, score in beam
            for city in range(n)
            if city not in tour
        ]
        extended.sort(key=lambda item: -item[1])
        beam = extended[:width]
    length = [sum(math.dist(points[a], points[b]) for a, b in zip(t, t[1:] + t[:1], strict=True)) for t, _ in beam]
    return min(length)


@pytest.mark.parametrize("seed", range(1, 41, 2))
@pytest.mark.parametrize("width", [1, 3, 20])
def test_beam_is_the_plain_rule(seed, width):
    points, _ = random_instance(seed)
    # Scores without ties, so that the beam does not depend on rounding.
    heatmap = np.triu(np.random.default_rng(seed).random((len(points),) * 2), 1)
    heatmap += heatmap.T
    found = read_costs(points).tour_cost(beam_decode(points, heatmap, width))
    assert found == pytest.approx(plain_beam(points, heatmap, width), rel=1e-12)


def test_wide_beam_finds_the_optimum_and_width_one_the_likeliest_neighbour():
    points, heatmap = random_instance(5, 7)
    optimum = optimal_cost(points)
    assert read_costs(points).tour_cost(beam_decode(points, heatmap, width=720)) == pytest.approx(optimum)
    chain = {(0, 3): 1.0, (3, 1): 1.0, (1, 5): 1.0, (5, 2): 1.0, (2, 6): 1.0, (6, 4): 1.0}
    assert beam_decode(points, chain, width=1).tolist() == normalize_tour(np.array([0, 3, 1, 5, 2, 6, 4])).tolist()


def test_beam_certain_tour_is_returned():
    rng = np.random.default_rng(1)
    tour = rng.permutation(40)
    heatmap = {(int(a), int(b)): 1.0 for a, b in zip(tour, np.roll(tour, -1), strict=True)}
    assert beam_decode(rng.random((40, 2)), heatmap, width=1).tolist() == normalize_tour(tour).tolist()


@given(st.lists(st.sampled_from([-np.inf, 0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=30), st.integers(1, 12))
def test_largest_keeps_the_first_of_equals(values, count):
    values = np.array(values)
    expected = [k for k in np.argsort(-values, kind="stable") if values[k] > -np.inf][:count]
    assert _largest(values, count).tolist() == expected


# Guided k-opt.


@pytest.mark.parametrize("seed", range(20))
def test_kopt_is_never_worse_than_its_start_and_deterministic(seed):
    points, heatmap = random_instance(seed, 20)
    costs = read_costs(points)
    start = two_opt(points, greedy_decode(points, heatmap))
    found = kopt_decode(points, heatmap, random_state=seed)
    assert sorted(found.tolist()) == list(range(20))
    assert costs.tour_cost(found) <= costs.tour_cost(start) + 1e-12
    assert found.tolist() == kopt_decode(points, heatmap, random_state=seed).tolist()
    assert kopt_decode(points, heatmap, n_actions=0, random_state=seed).tolist() == start.tolist()


def test_kopt_improves_and_more_actions_help():
    rng = np.random.default_rng(2)
    few, many, starts = [], [], []
    for _ in range(5):
        points = rng.random((60, 2))
        heatmap = noisy_heatmap(rng, points, two_opt(points, rng.permutation(60)), 0.3)
        costs = read_costs(points)
        starts.append(costs.tour_cost(two_opt(points, greedy_decode(points, heatmap))))
        few.append(costs.tour_cost(kopt_decode(points, heatmap, n_actions=60, random_state=0)))
        many.append(costs.tour_cost(kopt_decode(points, heatmap, n_actions=6000, random_state=0)))
    assert np.mean(many) < np.mean(few) < np.mean(starts)


def test_kopt_finds_the_optimum_of_small_instances():
    for seed in range(6):
        points, heatmap = random_instance(2 * seed + 1, 8)
        optimum = optimal_cost(points)
        assert read_costs(points).tour_cost(kopt_decode(points, heatmap, random_state=0)) == pytest.approx(optimum)


def test_kopt_batches_do_not_change_the_sample():
    points, heatmap = random_instance(3, 40)
    whole = kopt_decode(points, heatmap, random_state=0)
    assert kopt_decode(points, heatmap, time_limit=1e6, random_state=0).tolist() == whole.tolist()


def test_kopt_stops_at_the_time_limit():
    points, heatmap = random_instance(3, 40)
    start = two_opt(points, greedy_decode(points, heatmap))
    assert kopt_decode(points, heatmap, time_limit=1e-9, random_state=0).tolist() == start.tolist()


def test_kopt_learns_nothing_from_coinciding_cities():
    points = np.ones((9, 2))
    assert sorted(kopt_decode(points, {(0, 1): 0.5}, random_state=0).tolist()) == list(range(9))


@pytest.mark.parametrize("scale", [2.0**-30, 2.0**27])
def test_kopt_scale_does_not_matter(scale):
    points, heatmap = random_instance(7, 30)
    expected = kopt_decode(points, heatmap, random_state=1)
    assert kopt_decode(points * scale, heatmap, random_state=1).tolist() == expected.tolist()


def test_proposals_are_the_ten_of_largest_potential():
    rng = np.random.default_rng(4)
    n = 25
    points = rng.random((n, 2))
    weight = np.round(3 * rng.random((n, n)))  # with ties
    weight += weight.T
    np.fill_diagonal(weight, 0.0)
    tried = rng.integers(0, 3, (n, n))
    rarity = 1 / np.sqrt(tried + 1)
    closest = np.argsort(np.linalg.norm(points[:, None] - points[None], axis=2), axis=1)[:, 1:]
    exploration = np.sqrt(np.log(8.0))
    for city, banned, last in ((0, 1, 2), (5, 9, 3), (24, 0, 11)):
        proposed, preference = np.empty(10, np.int64), np.empty(10)
        count = _propose(closest, weight, rarity, exploration, city, banned, last, proposed, preference)
        potential = weight[city] / (weight[city].sum() / (n - 1)) + np.sqrt(np.log(8.0) / (tried[city] + 1))
        allowed = [int(j) for j in closest[city] if j not in (banned, last)]
        expected = sorted(allowed, key=lambda j: -round(potential[j], 9))[:10]
        assert count == 10
        assert proposed.tolist() == expected
        assert preference == pytest.approx(potential[expected])


def test_draw_is_proportional():
    preference = np.array([1.0, 0.0, 3.0])
    drawn = [_draw(preference, 3, u) for u in np.linspace(0, 1, 1000, endpoint=False)]
    assert np.bincount(drawn, minlength=3).tolist() == [250, 0, 750]
    drawn = [_draw(np.zeros(4), 4, u) for u in np.linspace(0, 1, 1000, endpoint=False)]
    assert np.bincount(drawn).tolist() == [250] * 4


# All of them.


@pytest.mark.parametrize("decode", DECODERS)
def test_certain_tour_is_returned(decode):
    points = np.random.default_rng(6).random((30, 2))
    tour = two_opt(points, np.arange(30))
    heatmap = {(int(a), int(b)): 1.0 for a, b in zip(tour, np.roll(tour, -1), strict=True)}
    assert read_costs(points).tour_cost(decode(points, heatmap)) <= read_costs(points).tour_cost(tour)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("n", [3, 4, 5, 6])
def test_small_and_unscored_instances(decode, n):
    points = np.random.default_rng(n).random((n, 2))
    for heatmap in (np.zeros((n, n)), np.ones((n, n)), {(0, n - 1): 0.5}):
        tour = decode(points, heatmap)
        assert sorted(tour.tolist()) == list(range(n))
        assert tour[0] == 0
        assert tour[1] < tour[-1]


@pytest.mark.parametrize("decode", DECODERS)
def test_forms_of_input_agree(decode):
    points, heatmap = random_instance(9, 16)
    expected = decode(points, heatmap).tolist()
    matrix = read_costs(points).block(np.arange(16))
    assert decode(matrix, heatmap).tolist() == expected
    assert decode(points.tolist(), heatmap.tolist()).tolist() == expected
    assert decode(points, scipy.sparse.csr_array(heatmap)).tolist() == expected
    assert decode(points, scipy.sparse.coo_matrix(heatmap)).tolist() == expected
    assert decode(points, scipy.sparse.csr_array(np.triu(heatmap))).tolist() == expected
    as_dict = {(i, j): heatmap[i, j] for i in range(16) for j in range(i) if heatmap[i, j] > 0}
    assert decode(points, as_dict).tolist() == expected
    graph = nx.relabel_nodes(nx.complete_graph(16), {k: f"city {k}" for k in range(16)})
    for i, j in itertools.combinations(range(16), 2):
        graph.edges[f"city {i}", f"city {j}"]["km"] = matrix[i, j]
    named = {(f"city {i}", f"city {j}"): score for (i, j), score in as_dict.items()}
    assert decode(graph, named, weight="km").tolist() == expected
    with_diagonal = heatmap + np.eye(16)
    assert decode(points, with_diagonal).tolist() == expected


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_always_a_tour_and_input_is_not_modified(seed):
    points, heatmap = random_instance(seed)
    before = points.copy(), heatmap.copy()
    for decode in DECODERS:
        assert sorted(decode(points, heatmap).tolist()) == list(range(len(points)))
    assert np.array_equal(points, before[0])
    assert np.array_equal(heatmap, before[1])


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    ("cost", "heatmap", "message"),
    [
        ([[0, 0], [1, 1]], {}, "at least 3"),
        ([[0, 1, 2], [1, 0, 1], [3, 1, 0]], {}, "symmetric"),
        ([[0, -1, 2], [-1, 0, 1], [2, 1, 0]], {}, "non-negative"),
        ([[0, np.nan], [1, 1], [2, 2]], {}, "nan or infinite"),
        (SQUARE, np.ones((3, 3)), r"heatmap must have shape \(4, 4\)"),
        (SQUARE, {(0, 1): 2.0}, r"scores in \[0, 1\]"),
        (SQUARE, {(0, 1): -0.5}, r"scores in \[0, 1\]"),
        (SQUARE, {(0, 7): 0.5}, "pairs of the 4 cities"),
        (SQUARE, {(0, 1): np.nan}, "nan or infinite"),
    ],
)
def test_bad_input(decode, cost, heatmap, message):
    with pytest.raises(ValueError, match=message):
        decode(cost, heatmap)


@pytest.mark.parametrize("decode", DECODERS)
def test_directed_scores_warn(decode):
    with pytest.warns(UserWarning, match="two different scores"):
        decode(SQUARE, [[0, 0.5, 0, 0], [0.25, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])


def test_bad_options():
    with pytest.raises(ValueError, match="width must be at least 1"):
        beam_decode(SQUARE, {}, width=0)
    with pytest.raises(TypeError, match="width"):
        beam_decode(SQUARE, {}, width=2.5)
    with pytest.raises(ValueError, match="n_actions must be at least 0"):
        kopt_decode(SQUARE, {}, n_actions=-1)
    with pytest.raises(ValueError, match="time_limit must be greater than 0"):
        kopt_decode(SQUARE, {}, time_limit=0)
    with pytest.raises(ValueError, match="random_state must be a non-negative seed"):
        kopt_decode(SQUARE, {}, random_state=-1)
    with pytest.raises(TypeError, match="random_state"):
        kopt_decode(SQUARE, {}, random_state="seed")
