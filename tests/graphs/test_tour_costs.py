"""Costs, scores and tours in all their forms."""

import math

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import floyd_warshall

from assay.graphs.tour_costs import check_tour, normalize_tour, read_costs, read_scores

SQUARE = [[0, 0], [0, 1], [1, 1], [1, 0]]


def distance_matrix(points):
    points = np.asarray(points, dtype=float)
    return np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))


def test_points_matrix_and_graph_are_the_same_costs():
    points = np.random.default_rng(0).random((9, 2))
    matrix = distance_matrix(points)
    graph = nx.Graph()
    names = list("abcdefghi")
    graph.add_nodes_from(names)
    graph.add_weighted_edges_from((names[i], names[j], matrix[i, j]) for i in range(9) for j in range(i))
    first, second = np.triu_indices(9, 1)
    forms = [read_costs(points), read_costs(matrix), read_costs(graph), read_costs(points.tolist())]
    for costs in forms:
        np.testing.assert_allclose(costs.between(first, second), matrix[first, second], rtol=1e-15)
        np.testing.assert_allclose(costs.block(np.array([4, 2, 7])), matrix[np.ix_([4, 2, 7], [4, 2, 7])], rtol=1e-15)
    assert forms[2].nodes == tuple(names)
    assert [costs.is_euclidean for costs in forms] == [True, False, False, True]


def test_integers_float32_and_tensors_are_cast_and_left_alone():
    integers = np.array(SQUARE, dtype=np.int8) * 100  # differences would wrap around in int8
    assert read_costs(integers).tour_cost([0, 1, 2, 3]) == 400.0
    matrix = distance_matrix(np.array(SQUARE) * 3).astype(np.float32)
    before = matrix.copy()
    assert read_costs(matrix).matrix.dtype == np.float64
    assert read_costs(torch.tensor(SQUARE, dtype=torch.float32)).tour_cost([0, 1, 2, 3]) == 4.0
    np.testing.assert_array_equal(matrix, before)


def test_diagonal_of_costs_is_ignored():
    matrix = distance_matrix(SQUARE)
    np.fill_diagonal(matrix, np.inf)
    assert read_costs(matrix).matrix.trace() == 0.0
    assert np.isinf(matrix[0, 0])


def test_rounding_in_the_symmetry_is_averaged_out():
    matrix = distance_matrix(SQUARE)
    matrix[0, 1] += 1e-14
    costs = read_costs(matrix)
    assert costs.matrix[0, 1] == costs.matrix[1, 0]


def test_cost_of_a_tour_does_not_depend_on_where_it_starts():
    rng = np.random.default_rng(0)
    costs = read_costs(rng.random((100, 2)))
    tour = rng.permutation(100)
    assert len({costs.tour_cost(np.roll(tour, k)) for k in range(100)} | {costs.tour_cost(tour[::-1])}) == 1


@pytest.mark.parametrize(
    "cost, error, message",
    [
        ([[0, 1], [1, 0]], ValueError, "at least 3 cities, got 2"),
        ([[0.0, 0.0]], ValueError, "at least 3 cities, got 1"),
        (np.ones((3, 4)), ValueError, "square matrix or points"),
        (np.ones((4, 3)), ValueError, "square matrix or points"),
        (np.ones(5), ValueError, "2-D array, got shape"),
        (np.empty((0, 2)), ValueError, "not empty"),
        ([[0, 1, 2], [1, 0, 3], [2, 3]], ValueError, "rows of different lengths"),
        ([[0, -1, 2], [-1, 0, 3], [2, 3, 0]], ValueError, "non-negative, got a minimum of -1"),
        ([[0, 1, 2], [9, 0, 3], [2, 3, 0]], ValueError, "symmetric"),
        ([[0, math.nan, 2], [1, 0, 3], [2, 3, 0]], ValueError, "1 nan or infinite"),
        ([[0, 0], [1, math.inf], [2, 3]], ValueError, "1 nan or infinite"),
        (np.ones((3, 3)) * 1j, TypeError, "real numbers"),
        ([["a", "b"], ["c", "d"], ["e", "f"]], TypeError, "real numbers"),
        (nx.complete_graph(2), ValueError, "at least 3 cities, got 2"),
        (nx.complete_graph(4), ValueError, "attribute 'weight' on every edge"),
        (nx.DiGraph([(0, 1), (1, 2)]), TypeError, "undirected graph without parallel edges, got DiGraph"),
        (nx.MultiGraph([(0, 1), (1, 2)]), TypeError, "got MultiGraph"),
    ],
)
def test_bad_costs(cost, error, message):
    with pytest.raises(error, match=f"cost must.*{message}"):
        read_costs(cost)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_bad_weights_of_a_graph(weight):
    graph = nx.complete_graph(3)
    nx.set_edge_attributes(graph, 1.0, "weight")
    graph[0][1]["weight"] = weight
    with pytest.raises(ValueError, match=r"cost of the edge \(0, 1\) must be finite"):
        read_costs(graph)


def test_incomplete_graph_needs_the_closure():
    graph = nx.cycle_graph(5)
    nx.set_edge_attributes(graph, 2, "length")
    with pytest.raises(ValueError, match='5 edges are missing; metric="closure"'):
        read_costs(graph, weight="length")
    costs = read_costs(graph, weight="length", closure=True)
    assert costs.matrix[0, 2] == 4.0
    graph.add_node("island")
    with pytest.raises(ValueError, match="connected graph"):
        read_costs(graph, weight="length", closure=True)


def test_closure_is_that_of_scipy():
    rng = np.random.default_rng(1)
    matrix = rng.random((12, 12)) ** 3 + 1e-3
    matrix = matrix + matrix.T
    np.fill_diagonal(matrix, 0)
    closed = read_costs(matrix, closure=True).matrix
    np.testing.assert_allclose(closed, floyd_warshall(matrix), rtol=1e-14)
    np.testing.assert_array_equal(closed, closed.T)
    np.testing.assert_allclose(read_costs(closed, closure=True).matrix, closed, rtol=1e-14)
    points = read_costs(SQUARE, closure=True)
    assert points.is_euclidean


def dense_scores():
    scores = np.zeros((4, 4))
    scores[0, 1] = scores[1, 0] = 0.5
    scores[2, 3] = scores[3, 2] = 1.0
    return scores


@pytest.mark.parametrize(
    "heatmap",
    [
        dense_scores(),
        dense_scores().tolist(),
        np.triu(dense_scores()),
        np.tril(dense_scores()),
        dense_scores() + np.eye(4),
        dense_scores() + 7 * np.eye(4),
        torch.tensor(dense_scores(), requires_grad=True),
        sp.csr_array(dense_scores()),
        sp.csc_matrix(np.triu(dense_scores())),
        sp.coo_array(([0.25, 0.25, 1], ([0, 0, 2], [1, 1, 3])), shape=(4, 4)),  # duplicates are summed
        {(0, 1): 0.5, (3, 2): 1},
        {(0, 1): 0.5, (1, 0): 0.5, (3, 2): 1, (1, 1): 9.0},
        dense_scores().astype(np.float32),
        np.where(dense_scores() == 1, 1 + 1e-10, dense_scores()),
    ],
)
def test_forms_of_scores(heatmap, recwarn):
    scores = read_scores(heatmap, 4)
    assert (scores.first.tolist(), scores.second.tolist()) == ([0, 2], [1, 3])
    assert scores.score.tolist() == [0.5, 1.0]
    assert not recwarn
    assert scores.of(np.array([3, 1, 0]), np.array([2, 0, 3])).tolist() == [1.0, 0.5, 0.0]


def test_scores_by_the_names_of_nodes():
    scores = read_scores({("b", "a"): 0.25}, 3, nodes=["a", "b", "c"])
    assert (scores.first[0], scores.second[0], scores.score[0]) == (0, 1, 0.25)


@pytest.mark.parametrize("empty", [{}, np.zeros((3, 3)), sp.csr_array((3, 3))])
def test_no_scores(empty):
    scores = read_scores(empty, 3)
    assert scores.first.size == 0
    assert scores.of(np.array([0]), np.array([1])).tolist() == [0.0]


@pytest.mark.parametrize(
    "heatmap",
    [
        [[0, 0.9, 0], [0.2, 0, 0], [0, 0, 0]],
        sp.csr_array([[0, 0.9, 0], [0.2, 0, 0], [0, 0, 0]]),
        {(0, 1): 0.9, (1, 0): 0.2},
    ],
)
def test_directed_scores_take_the_larger_with_a_warning(heatmap):
    with pytest.warns(UserWarning, match="not symmetric: 1 edges have two different scores, the larger one counts"):
        assert read_scores(heatmap, 3).score.tolist() == [0.9]


def test_one_missing_direction_among_others_counts_as_zero():
    with pytest.warns(UserWarning, match="not symmetric: 1 edges"):
        read_scores([[0, 0.9, 0.5], [0.9, 0, 0], [0, 0, 0]], 3)


@pytest.mark.parametrize(
    "heatmap, error, message",
    [
        (np.full((3, 3), 1.1), ValueError, r"scores in \[0, 1\], got values from 1.1 to 1.1; apply a sigmoid"),
        ({(0, 1): -0.1}, ValueError, r"scores in \[0, 1\]"),
        (np.zeros((4, 4)), ValueError, r"shape \(3, 3\), got \(4, 4\)"),
        (np.zeros((3, 2)), ValueError, r"shape \(3, 3\), got \(3, 2\)"),
        (sp.csr_array((4, 4)), ValueError, r"shape \(3, 3\), got \(4, 4\)"),
        (np.full((3, 3), np.nan), ValueError, "nan or infinite"),
        (sp.csr_array([[0, np.nan, 0]] * 3), ValueError, "nan or infinite"),
        ({(0, 1): math.nan}, ValueError, "nan or infinite"),
        ({0: 0.5}, TypeError, "pairs of cities to scores, got the key 0"),
        ({(0, 3): 0.5}, ValueError, "pairs of the 3 cities as keys"),
        ({(0, 1): "high"}, TypeError, "real numbers"),
    ],
)
def test_bad_scores(heatmap, error, message):
    with pytest.raises(error, match=f"heatmap must.*{message}"):
        read_scores(heatmap, 3)


def test_tours_are_checked():
    assert check_tour([2, 0, 1, 2], 3, "reference").tolist() == [2, 0, 1]
    assert check_tour("cab", 3, "reference", nodes="abc").tolist() == [2, 0, 1]
    for bad in ([0, 1], [0, 1, 1], [1, 2, 3], [0, 1, 2, 1]):
        with pytest.raises(ValueError, match=r"reference must be a permutation of 0\.\.2"):
            check_tour(bad, 3, "reference")
    with pytest.raises(TypeError, match="reference must be a sequence of integers"):
        check_tour([0.0, 1.0, 2.0], 3, "reference")
    with pytest.raises(ValueError, match="reference must list nodes of the graph, got 'z'"):
        check_tour("abz", 3, "reference", nodes="abc")


def test_tours_are_normalized():
    for tour in ([0, 3, 1, 2], [1, 3, 0, 2], [2, 1, 3, 0]):
        before = np.array(tour)
        assert normalize_tour(before).tolist() == [0, 2, 1, 3]
        assert before.tolist() == tour
