"""Spanning trees, connection, walks and shortcuts, against plain versions with networkx and sorted lists."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree as scipy_tree

from assay.graphs.tour_costs import read_costs
from assay.graphs.tour_fragments import close_fragments, greedy_fragments
from assay.graphs.tour_skeleton import (
    ThresholdSweep,
    _drop_doubles,
    _incidence,
    connecting_edges,
    eulerian_tour,
    minimum_spanning_tree,
    odd_cities,
)

NONE = np.empty(0, dtype=np.int64)


def random_edges(n, m, rng):
    pairs = np.array(list(itertools.combinations(range(n), 2)))
    chosen = pairs[rng.permutation(len(pairs))[:m]]
    return chosen[:, 0], chosen[:, 1]


def plain_connection(costs, first, second):
    """Kruskal over all pairs, with the components of the set contracted."""
    graph = nx.Graph()
    graph.add_nodes_from(range(costs.n))
    graph.add_edges_from(zip(first.tolist(), second.tolist(), strict=True))
    matrix = costs.block(np.arange(costs.n))
    total = 0.0
    for i, j in sorted(itertools.combinations(range(costs.n), 2), key=lambda e: (matrix[e], e)):
        if not nx.has_path(graph, i, j):
            graph.add_edge(i, j)
            total += matrix[i, j]
    return total


def plain_closure(costs, first, second):
    """Greedy joining of paths over the sorted list of all pairs."""
    n = costs.n
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(zip(first.tolist(), second.tolist(), strict=True))
    matrix = costs.block(np.arange(n))
    for i, j in sorted(itertools.combinations(range(n), 2), key=lambda e: (matrix[e], e)):
        if graph.degree(i) < 2 and graph.degree(j) < 2 and not nx.has_path(graph, i, j):
            graph.add_edge(i, j)
    ends = [v for v in graph if graph.degree(v) < 2]
    return [*nx.shortest_path(graph, *ends)]


def same_cycle(a, b):
    def edges(tour):
        return {frozenset(e) for e in zip(tour, np.roll(tour, -1), strict=True)}

    return edges(np.asarray(a)) == edges(np.asarray(b))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("as_matrix", [False, True])
def test_tree_costs_what_scipy_finds(seed, as_matrix):
    points = np.random.default_rng(seed).normal(size=(30, 2))
    costs = read_costs(points)
    matrix = costs.block(np.arange(30))
    tree = minimum_spanning_tree(read_costs(matrix) if as_matrix else costs)
    assert tree.cost.sum() == pytest.approx(scipy_tree(matrix).sum(), rel=1e-12)
    assert np.all(np.diff(tree.cost) >= 0)
    assert np.all(tree.first < tree.second)
    assert nx.is_tree(nx.Graph(list(zip(tree.first.tolist(), tree.second.tolist(), strict=True))))


@pytest.mark.parametrize(
    "points",
    [
        np.random.default_rng(0).random((200, 2)),
        np.random.default_rng(1).integers(0, 5, size=(120, 2)),  # many duplicates and many ties
        np.column_stack([np.arange(40), np.zeros(40)]),  # on a line
        np.column_stack([np.arange(40), 2.0 * np.arange(40)]) / 3,
        np.zeros((10, 2)),
        np.random.default_rng(2).random((100, 2)) * 1e-8 + 1e8 * np.eye(2)[0],
        np.concatenate([np.random.default_rng(3).random((50, 2)), 1e6 + np.random.default_rng(4).random((50, 2))]),
    ],
    ids=["random", "grid with duplicates", "line", "slanted line", "one place", "far away", "two clusters"],
)
def test_triangulation_gives_the_same_tree_cost(points):
    costs = read_costs(points)
    fast, plain = minimum_spanning_tree(costs, triangulate=True), minimum_spanning_tree(costs, triangulate=False)
    assert fast.cost.size == costs.n - 1
    assert math.fsum(fast.cost) == pytest.approx(math.fsum(plain.cost), rel=1e-12, abs=0)
    # Sorted costs of minimum spanning trees agree one by one, not only in sum.
    np.testing.assert_allclose(fast.cost, plain.cost, rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_connecting_edges_are_the_cheapest(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 14))
    costs = read_costs(rng.integers(0, 6, size=(n, 2)))  # with ties
    tree = minimum_spanning_tree(costs)
    for m in (0, 1, n // 2, n, n * (n - 1) // 2):
        first, second = random_edges(n, m, rng)
        joining = connecting_edges(n, first, second, tree)
        assert costs.between(*joining).sum() == pytest.approx(plain_connection(costs, first, second), abs=1e-12)


def test_sweep_agrees_with_connecting_each_set_anew():
    rng = np.random.default_rng(5)
    costs = read_costs(rng.random((15, 2)))
    tree = minimum_spanning_tree(costs)
    first, second = random_edges(15, 60, rng)
    sweep = ThresholdSweep(15, first, second, tree)
    for size in range(0, 61, 3):
        sweep.advance(size)
        joining = connecting_edges(15, first[:size], second[:size], tree)
        skeleton = sweep.skeleton()
        np.testing.assert_array_equal(skeleton[0], np.concatenate([first[:size], joining[0]]))
        np.testing.assert_array_equal(skeleton[1], np.concatenate([second[:size], joining[1]]))
        assert odd_cities(15, *skeleton).size % 2 == 0
    with pytest.raises(ValueError, match="size must be from 60 to 60, got 59"):
        sweep.advance(59)


@given(st.integers(0, 10**6), st.integers(3, 25), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_tour_visits_each_city_once_and_costs_no_more_than_the_walk(seed, n, prune, shortcut_best, clustered):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 4, size=(n, 2)) if clustered else rng.random((n, 2))
    costs = read_costs(points)
    first, second = random_edges(n, int(rng.integers(0, 2 * n)), rng)
    joining = connecting_edges(n, first, second, minimum_spanning_tree(costs))
    skeleton = np.concatenate([first, joining[0]]), np.concatenate([second, joining[1]])
    pairs = rng.permutation(odd_cities(n, *skeleton)).reshape(-1, 2)  # any perfect matching will do
    tour = eulerian_tour(costs, skeleton, pairs, prune=prune, shortcut_best=shortcut_best)
    assert sorted(tour.tolist()) == list(range(n))
    assert costs.tour_cost(tour) <= costs.between(*skeleton).sum() + costs.between(*pairs.T).sum() + 1e-9


def test_pruning_drops_a_double_edge_only_where_the_rest_stays_connected():
    # A square with one diagonal: the diagonal is in the skeleton and, as the odd cities are its ends, in the matching.
    costs = read_costs([[0, 0], [0, 1], [1, 1], [1, 0]])
    skeleton = np.array([0, 1, 2, 0, 0]), np.array([1, 2, 3, 3, 2])
    pairs = odd_cities(4, *skeleton).reshape(1, 2)
    assert pairs.tolist() == [[0, 2]]
    assert costs.tour_cost(eulerian_tour(costs, skeleton, pairs, prune=True, shortcut_best=False)) == 4.0
    assert costs.tour_cost(eulerian_tour(costs, skeleton, pairs, prune=False, shortcut_best=False)) > 4.8
    # A single edge to a leaf is doubled as well, and must stay.
    line = read_costs([[0, 0], [1, 0], [2, 0]])
    tour = eulerian_tour(line, (np.array([0, 1]), np.array([1, 2])), np.array([[0, 2]]), prune=True)
    assert sorted(tour.tolist()) == [0, 1, 2]
    star = read_costs([[0, 0], [1, 0], [-1, 0], [0, 1]])
    tour = eulerian_tour(star, (np.array([0, 0, 0]), np.array([1, 2, 3])), np.array([[0, 1], [2, 3]]), prune=True)
    assert sorted(tour.tolist()) == [0, 1, 2, 3]


def test_pruning_takes_the_dearest_first():
    # Two doubled edges, 0-1 and 2-3, are all that joins the left half to the right half: one of them must stay.
    skeleton = np.array([0, 1, 2, 0, 0, 1, 2, 3]), np.array([1, 2, 3, 3, 4, 5, 6, 7])
    pairs = np.array([[0, 1], [2, 3], [4, 7], [5, 6]])
    first, second = np.concatenate([skeleton[0], pairs[:, 0]]), np.concatenate([skeleton[1], pairs[:, 1]])
    for width_above, width_below, dropped in ((1.0, 2.0, {2, 9}), (2.0, 1.0, {0, 8})):
        points = np.array([[0, 1], [width_above, 1], [width_below, 0], [0, 0], [0, 2], [3, 2], [3, -1], [0, -1.0]])
        alive = np.ones(12, dtype=bool)
        _drop_doubles(read_costs(points), first, second, alive, *_incidence(8, first, second), 8)
        assert set(np.flatnonzero(~alive).tolist()) == dropped


def test_first_shortcut_keeps_the_first_visits_of_an_eulerian_walk():
    rng = np.random.default_rng(7)
    costs = read_costs(rng.random((20, 2)))
    tree = minimum_spanning_tree(costs)
    pairs = odd_cities(20, tree.first, tree.second).reshape(-1, 2)
    tour = eulerian_tour(costs, (tree.first, tree.second), pairs, prune=False, shortcut_best=False)
    assert tour[0] == 0
    best = eulerian_tour(costs, (tree.first, tree.second), pairs, prune=False, shortcut_best=True)
    assert costs.tour_cost(best) <= costs.tour_cost(tour) + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_fragments_are_disjoint_paths_and_accept_what_the_greedy_rule_accepts(seed):
    rng = np.random.default_rng(seed)
    n = 12
    first, second = random_edges(n, 40, rng)
    accepted = greedy_fragments(n, first, second)
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    expected = []
    for k, (i, j) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        if graph.degree(i) < 2 and graph.degree(j) < 2 and not nx.has_path(graph, i, j):
            graph.add_edge(i, j)
            expected.append(k)
    assert accepted.tolist() == expected


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ties", [False, True])
def test_closing_follows_the_sorted_list_of_all_pairs(seed, ties):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 30))
    costs = read_costs(rng.integers(0, 5, size=(n, 2)) if ties else rng.random((n, 2)))
    first, second = random_edges(n, n, rng)
    accepted = greedy_fragments(n, first, second)[: int(rng.integers(0, n))]
    tour = close_fragments(costs, first[accepted], second[accepted])
    assert sorted(tour.tolist()) == list(range(n))
    assert same_cycle(tour, plain_closure(costs, first[accepted], second[accepted]))


def test_closing_a_path_that_is_complete_changes_nothing():
    costs = read_costs(np.random.default_rng(0).random((6, 2)))
    tour = close_fragments(costs, np.array([3, 1, 0, 2, 5]), np.array([1, 0, 2, 5, 4]))
    assert same_cycle(tour, [3, 1, 0, 2, 5, 4])


def test_closing_nothing_is_the_greedy_tour_of_the_matrix_too():
    points = np.random.default_rng(3).random((50, 2))
    costs = read_costs(points)
    matrix = read_costs(costs.block(np.arange(50)))
    np.testing.assert_array_equal(close_fragments(costs, NONE, NONE), close_fragments(matrix, NONE, NONE))
