"""All tour methods at once, on what hypothesis comes up with: zeros, ties, subnormals, clusters, huge coordinates."""

import functools
import itertools
import warnings

import networkx as nx
import numpy as np
import scipy.sparse
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assay.graphs.heatmap_tour import christofides, decode_heatmap, heatmap_error
from assay.graphs.local_search import or_opt, two_opt
from assay.graphs.matching import perfect_matching
from assay.graphs.tour_bounds import held_karp_bound
from assay.graphs.tour_costs import read_costs
from assay.graphs.tour_decoders import beam_decode, greedy_decode, kopt_decode
from assay.graphs.tours import costs_among, nearest_cities

# Sums of up to 30 costs are compared with each other.
ROUNDING = 1e-13

coordinate = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0, 1e-8, 1e8, 1e-300, 1e100]),
    st.floats(-1.0, 1.0),
    st.floats(-1e9, 1e9, allow_subnormal=True),
    st.integers(-3, 3).map(float),
)
score = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 1e-300, 1.0 - 2.0**-53]), st.floats(0.0, 1.0))
edge_cost = st.one_of(
    st.integers(0, 4).map(float), st.sampled_from([1e-8, 1e8, 1e-300, 1e100]), st.floats(0.0, 1e6, allow_subnormal=True)
)


@st.composite
def scored_instances(draw, min_cities=3, max_cities=7):
    """Points or a metric matrix, and a symmetric heatmap."""
    n = draw(st.integers(min_cities, max_cities))
    n_pairs = n * (n - 1) // 2
    pairs = np.triu_indices(n, 1)
    if draw(st.booleans()):
        cost = np.array(draw(st.lists(st.tuples(coordinate, coordinate), min_size=n, max_size=n)))
    else:
        matrix = np.zeros((n, n))
        matrix[pairs] = draw(st.lists(edge_cost, min_size=n_pairs, max_size=n_pairs))
        cost = matrix + matrix.T
        for via in range(n):  # lengths of shortest paths
            cost = np.minimum(cost, cost[:, [via]] + cost[[via]])
        cost = np.minimum(cost, cost.T)
    heatmap = np.zeros((n, n))
    heatmap[pairs] = draw(st.lists(score, min_size=n_pairs, max_size=n_pairs))
    return cost, heatmap + heatmap.T


@functools.cache
def all_tours(n):
    return np.array([(0, *rest) for rest in itertools.permutations(range(1, n)) if rest[0] < rest[-1]])


def costs_of_all_tours(matrix):
    tours = all_tours(len(matrix))
    return matrix[tours, np.roll(tours, -1, axis=1)].sum(axis=1)


def matrix_of(cost):
    costs = read_costs(cost)
    return costs.block(np.arange(costs.n))


def is_normal(tour, n):
    return sorted(tour.tolist()) == list(range(n)) and tour[0] == 0 and tour[1] < tour[-1]


@given(scored_instances(), st.sampled_from(["all", "thresholds"]), st.booleans(), st.sampled_from(["best", "first"]))
@settings(max_examples=120, deadline=None)
def test_guarantee_against_every_tour(instance, candidates, prune, shortcut):
    cost, heatmap = instance
    matrix, n = matrix_of(cost), len(heatmap)
    result = decode_heatmap(cost, heatmap, candidates=candidates, prune=prune, shortcut=shortcut, lower_bound=True)
    lengths = costs_of_all_tours(matrix)
    tours = all_tours(n)
    following = np.roll(tours, -1, axis=1)
    errors = np.triu(matrix * heatmap, 1).sum() + (matrix * (1 - 2 * heatmap))[tours, following].sum(axis=1)
    slack = ROUNDING * matrix.sum()
    assert is_normal(result.tour, n)
    assert result.metric_ok is not False
    assert result.certified
    assert np.all(result.cost <= lengths + 2 * errors + slack)
    assert lengths.min() - slack <= result.cost <= 1.5 * lengths.min() + slack
    assert result.lower_bound <= lengths.min() + slack
    k = len(tours) // 2
    referred = decode_heatmap(
        cost, heatmap, candidates=candidates, prune=prune, shortcut=shortcut, reference=np.roll(tours[k], 2)[::-1]
    )
    assert referred.tour.tolist() == result.tour.tolist()
    assert referred.certified
    assert referred.holds
    assert abs(referred.eta - errors[k]) <= slack
    assert abs(heatmap_error(cost, heatmap, tours[k]) - errors[k]) <= slack


@given(scored_instances(), st.sampled_from(["integral", "modified_cost", "random"]), st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_other_methods_keep_their_own_promises(instance, method, seed):
    cost, heatmap = instance
    if method == "integral":
        heatmap = (heatmap >= 0.5).astype(float)
    matrix, n = matrix_of(cost), len(heatmap)
    reference = np.random.default_rng(seed).permutation(n)
    result = decode_heatmap(cost, heatmap, method=method, n_samples=4, reference=reference, random_state=seed)
    slack = ROUNDING * matrix.sum()
    assert is_normal(result.tour, n)
    assert result.certified
    lengths = costs_of_all_tours(matrix)
    assert result.cost >= lengths.min() - slack
    if method == "modified_cost":
        tours = all_tours(n)
        following = np.roll(tours, -1, axis=1)
        outside = np.zeros((n, n))
        outside[result.skeleton[:, 0], result.skeleton[:, 1]] = 1
        outside = np.maximum(outside, outside.T)
        wrong = np.triu(matrix * outside, 1).sum() - (matrix * outside)[tours, following].sum(axis=1)
        assert np.all(result.cost <= lengths + 2 * wrong + slack)


@given(scored_instances(max_cities=12))
@settings(max_examples=60, deadline=None)
def test_no_decoder_beats_the_bounds_and_all_tours_are_tours(instance):
    cost, heatmap = instance
    costs, n = read_costs(cost), len(heatmap)
    slack = ROUNDING * matrix_of(cost).sum()
    lower = held_karp_bound(cost).lower_bound
    ours = decode_heatmap(cost, heatmap)
    decoded = {
        "greedy": greedy_decode(cost, heatmap),
        "beam": beam_decode(cost, heatmap, width=5),
        "k-opt": kopt_decode(cost, heatmap, n_actions=100, random_state=0),
        "christofides": christofides(cost).tour,
        "ours": ours.tour,
    }
    for name, tour in decoded.items():
        assert is_normal(tour, n), name
        assert costs.tour_cost(tour) >= lower - slack, name
        for improve in (two_opt, or_opt):
            assert costs.tour_cost(improve(cost, tour)) <= costs.tour_cost(tour), name
    assert ours.cost <= min(costs.tour_cost(decoded["greedy"]), costs.tour_cost(decoded["christofides"])) + slack
    assert costs.tour_cost(decoded["k-opt"]) <= costs.tour_cost(decoded["greedy"]) + slack


@given(scored_instances(max_cities=9), st.integers(0, 1000), st.integers(-20, 20))
@settings(max_examples=50, deadline=None)
def test_bound_and_error_do_not_depend_on_numbering_or_unit(instance, seed, exponent):
    cost, heatmap = instance
    matrix, n = matrix_of(cost), len(heatmap)
    assume(matrix[matrix > 0].min(initial=1.0) > 1e-290)  # a power of two is to be exact
    order = np.random.default_rng(seed).permutation(n)
    reference = np.random.default_rng(seed + 1).permutation(n)
    expected = decode_heatmap(matrix, heatmap, reference=reference)
    scale = 2.0**exponent
    renumbered = decode_heatmap(
        scale * matrix[np.ix_(order, order)], heatmap[np.ix_(order, order)], reference=np.argsort(order)[reference]
    )
    slack = ROUNDING * matrix.sum()
    assert abs(renumbered.bound / scale - expected.bound) <= slack
    assert abs(renumbered.eta / scale - expected.eta) <= slack
    # With the numbering kept, a power of two changes no comparison.
    scaled = decode_heatmap(scale * matrix, heatmap)
    assert scaled.tour.tolist() == expected.tour.tolist()
    assert scaled.cost == scale * expected.cost


@given(scored_instances(min_cities=4, max_cities=9))
@settings(max_examples=50, deadline=None)
def test_every_form_of_input_decodes_to_the_same_tour(instance):
    cost, heatmap = instance
    n = len(heatmap)
    matrix = matrix_of(cost)
    expected = decode_heatmap(matrix, heatmap)
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    for i, j in itertools.combinations(range(n), 2):
        graph.add_edge(i, j, weight=matrix[i, j], p=heatmap[i, j])
    upper = np.triu(heatmap)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for form in (
            decode_heatmap(graph),
            decode_heatmap(matrix, scipy.sparse.csr_array(heatmap)),
            decode_heatmap(matrix, upper),
            decode_heatmap(matrix, {(j, i): upper[i, j] for i, j in itertools.combinations(range(n), 2)}),
        ):
            assert form.tour.tolist() == expected.tour.tolist()
            assert form.cost == expected.cost


@given(scored_instances(min_cities=4, max_cities=8), st.sampled_from(["exact", "sparse", "networkx"]))
@settings(max_examples=60, deadline=None)
def test_matching_of_any_even_set_is_bracketed(instance, method):
    matrix = matrix_of(instance[0])
    matrix = matrix[: len(matrix) // 2 * 2, : len(matrix) // 2 * 2]

    def cheapest(free):
        if not free:
            return 0.0
        rest = free[1:]
        return min(matrix[free[0], v] + cheapest([w for w in rest if w != v]) for v in rest)

    optimum = cheapest(list(range(len(matrix))))
    result = perfect_matching(matrix, method)
    slack = ROUNDING * matrix.sum()
    assert result.lower_bound - slack <= optimum <= result.cost + slack
    if result.exact:
        assert result.cost <= optimum + slack


@given(scored_instances(max_cities=12), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_neighbour_lists_are_sorted_by_cost_then_number(instance, n_neighbors):
    costs = read_costs(instance[0])
    matrix = matrix_of(instance[0])
    found = nearest_cities(costs, n_neighbors)
    assert found.shape == (costs.n, min(n_neighbors, costs.n - 1))
    for city, row in enumerate(found.tolist()):
        others = sorted((c for c in range(costs.n) if c != city), key=lambda c: (matrix[city, c], c))
        assert row == others[:n_neighbors]


def test_neighbour_lists_by_tree_agree_with_those_by_matrix():
    rng = np.random.default_rng(0)
    for points in (rng.random((1100, 2)), np.repeat(rng.random((220, 2)), 5, axis=0)):
        by_tree = nearest_cities(read_costs(points), 8)
        matrix = matrix_of(points)
        by_matrix = nearest_cities(read_costs(matrix), 8)
        rows = np.arange(len(points))[:, None]
        assert np.all(by_tree != rows)
        assert np.allclose(matrix[rows, by_tree], matrix[rows, by_matrix], rtol=1e-12, atol=0)


def test_many_neighbours_begin_with_the_few():
    points = np.random.default_rng(2).integers(0, 8, (90, 2)).astype(float)
    every = nearest_cities(read_costs(points), 89)
    for k in (1, 7, 40, 41):
        assert np.array_equal(nearest_cities(read_costs(points), k), every[:, :k])
    assert np.array_equal(np.sort(every, axis=1), [[c for c in range(90) if c != city] for city in range(90)])


def test_costs_among_some_cities():
    points = np.random.default_rng(1).random((9, 2))
    some = np.array([7, 0, 3])
    for cost in (points, matrix_of(points)):
        among = costs_among(read_costs(cost), some)
        assert among.is_euclidean == (cost is points)
        assert np.array_equal(among.block(np.arange(3)), matrix_of(points)[np.ix_(some, some)])
