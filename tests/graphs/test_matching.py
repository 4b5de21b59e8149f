"""Perfect matching: against brute force, networkx and rustworkx, and by its own duals."""

import copy
import json
import math
import tracemalloc

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse.csgraph import minimum_spanning_tree as scipy_tree

from assay.graphs.blossom import solve_integer_matching
from assay.graphs.matching import (
    MatchingResult,
    dual_bound,
    matching_lower_bound,
    min_weight_perfect_matching,
    perfect_matching,
)
from assay.graphs.rounded_matching import _preorder, preorder_matching, solve_complete
from assay.graphs.tour_costs import CityCosts, read_costs

METHODS = ("auto", "exact", "sparse", "networkx")


def distances(points):
    difference = np.asarray(points, dtype=float)[:, None] - np.asarray(points, dtype=float)[None]
    return np.sqrt((difference**2).sum(axis=2))


def symmetric(matrix):
    upper = np.triu(np.asarray(matrix), 1)
    return upper + upper.T


def cheapest_by_enumeration(matrix):
    """Minimum cost over all perfect matchings, by recursion over the partner of the first vertex."""

    def best(free):
        if not free:
            return 0
        first, rest = free[0], free[1:]
        return min(matrix[first][other] + best([v for v in rest if v != other]) for other in rest)

    return best(list(range(len(matrix))))


def networkx_cost(matrix):
    graph = nx.Graph()
    n = len(matrix)
    graph.add_weighted_edges_from((i, j, matrix[i][j]) for i in range(n) for j in range(i))
    return math.fsum(float(matrix[i][j]) for i, j in nx.min_weight_matching(graph))


def check(matrix, result):
    """Everything that a result claims, recomputed here by dense linear algebra."""
    matrix = np.array(matrix, dtype=float)
    np.fill_diagonal(matrix, 0.0)
    n = len(matrix)
    assert result.pairs.shape == (n // 2, 2)
    assert sorted(result.pairs.ravel().tolist()) == list(range(n))
    assert np.all(result.pairs[:, 0] < result.pairs[:, 1])
    assert np.all(np.diff(result.pairs[:, 0]) > 0)
    assert result.cost == pytest.approx(matrix[result.pairs[:, 0], result.pairs[:, 1]].sum(), rel=1e-12, abs=1e-300)
    assert result.gap == result.cost - result.lower_bound >= 0
    if result.method == "networkx":
        return
    assert np.all(result.blossom_duals > 0)
    slack = matrix - result.vertex_duals[:, None] - result.vertex_duals[None]
    for members, dual in zip(result.blossoms, result.blossom_duals, strict=True):
        assert len(members) % 2 == 1
        assert len(members) >= 3
        slack[np.ix_(members, members)] += dual
    np.fill_diagonal(slack, 0.0)
    sizes = np.array([len(members) for members in result.blossoms])
    bound = result.vertex_duals.sum() - (result.blossom_duals * (sizes - 1) / 2).sum()
    # Sums of duals of either sign are exact to the size of the duals, not of their sum.
    rounding = 1e-11 * (np.abs(result.vertex_duals).sum() + result.blossom_duals.sum() + np.abs(result.cost))
    if result.method == "exact":
        assert slack.min() >= -rounding
        assert bound == pytest.approx(result.cost, abs=rounding)
        assert result.exact
        assert result.gap == 0
    else:  # feasible on the candidate edges only, hence lowered for the bound
        assert result.lower_bound <= bound + rounding


# Known values.


def test_known_values_on_100_random_points():
    points = np.random.default_rng(0).random((100, 2))
    result = min_weight_perfect_matching(points)
    assert result.cost == pytest.approx(3.3717841, abs=5e-8)
    assert matching_lower_bound(points) == pytest.approx(3.0783594, abs=5e-8)
    check(distances(points), result)
    # The best matching that uses only edges to one of the 8 nearest is worse than what the fallback edges and the
    # exchange of pairs allow.
    matrix = distances(points)
    graph = nx.Graph()
    for i in range(100):
        graph.add_weighted_edges_from((i, int(j), matrix[i, j]) for j in np.argsort(matrix[i])[1:9])
    nearest_only = sum(matrix[i, j] for i, j in nx.min_weight_matching(graph))
    assert nearest_only == pytest.approx(3.3842538, abs=5e-8)
    assert result.cost <= perfect_matching(points, "sparse").cost <= nearest_only


def test_known_values_on_50_random_points():
    points = np.random.default_rng(0).random((50, 2))
    assert min_weight_perfect_matching(points).cost == pytest.approx(2.3441947, abs=5e-8)
    assert perfect_matching(points, "sparse").cost == pytest.approx(2.3441947, abs=5e-8)
    assert perfect_matching(points, "networkx").cost == pytest.approx(2.3441947, abs=5e-8)
    assert matching_lower_bound(points) == pytest.approx(2.1693603, abs=5e-8)


def test_two_triangles_need_a_blossom_dual():
    # Two triangles of unit sides, far apart: one pair must cross, and no vertex duals alone prove it.
    matrix = np.full((6, 6), 10.0)
    matrix[:3, :3] = matrix[3:, 3:] = 1.0
    np.fill_diagonal(matrix, 0.0)
    result = min_weight_perfect_matching(matrix)
    assert result.cost == 12.0
    assert result.gap == 0.0
    assert matching_lower_bound(matrix) == 3.0  # two directed triangles
    assert (
        dual_bound(matrix, result.vertex_duals)
        < 12.0
        == dual_bound(matrix, result.vertex_duals, result.blossoms, result.blossom_duals)
    )
    assert {frozenset(members.tolist()) for members in result.blossoms} & {frozenset({0, 1, 2}), frozenset({3, 4, 5})}


@pytest.mark.parametrize("method", METHODS)
def test_two_vertices_and_none(method):
    pair = perfect_matching([[0, 7], [7, 0]], method)
    assert pair.pairs.tolist() == [[0, 1]]
    assert (pair.cost, pair.gap, pair.exact) == (7.0, 0.0, True)
    empty = perfect_matching(np.empty((0, 0)), method)
    assert empty.pairs.shape == (0, 2)
    assert (empty.cost, empty.gap, empty.exact) == (0.0, 0.0, True)
    assert empty.certified
    assert matching_lower_bound(np.empty((0, 2))) == 0.0


def test_two_points_of_a_plane_as_costs_object():
    points = CityCosts(np.array([[0.0, 0.0], [3.0, 4.0]]), np.empty((0, 0)))
    assert perfect_matching(points).cost == 5.0


# Against other algorithms.


def instances(rng, n):
    """One instance of each kind that may be hard: ties, degenerate geometry, scales, signs."""
    uniform = symmetric(rng.random((n, n)))
    yield "uniform", uniform
    yield "small integers", symmetric(rng.integers(0, 4, (n, n)))
    yield "zero or one", symmetric(rng.integers(0, 2, (n, n)))
    yield "large integers", symmetric(rng.integers(0, 10**12, (n, n)))
    yield "points", distances(rng.random((n, 2)))
    yield "lattice", distances(rng.integers(0, 3, (n, 2)))
    yield "line", distances(np.column_stack([rng.integers(0, 5, n), np.zeros(n)]))
    yield "constant", symmetric(np.full((n, n), 0.3))
    yield "zero", np.zeros((n, n))
    yield "tiny", 1e-8 * uniform
    yield "denormal", 1e-310 * uniform
    yield "huge", 1e12 * uniform
    yield "extreme", 1e290 * uniform
    yield "shifted", 1e9 + uniform
    yield "any sign", uniform - 0.5
    yield "negative", -uniform
    yield "wide range", symmetric(10.0 ** rng.uniform(-8, 8, (n, n)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n", [2, 4, 6, 8])
def test_optimal_by_enumeration(n, seed):
    for name, matrix in instances(np.random.default_rng([n, seed]), n):
        result = min_weight_perfect_matching(matrix)
        expected = cheapest_by_enumeration(matrix.tolist())
        assert result.cost == pytest.approx(expected, rel=1e-12, abs=1e-300), name
        if name not in ("wide range", "shifted", "denormal"):  # there, small differences drown in rounding
            check(matrix, result)


@pytest.mark.parametrize("seed", range(12))
def test_optimal_against_networkx(seed):
    rng = np.random.default_rng(seed)
    for name, matrix in instances(rng, 2 * int(rng.integers(5, 12))):
        if name in ("denormal", "wide range", "extreme"):  # networkx compares slacks of floats with zero
            continue
        result = min_weight_perfect_matching(matrix)
        assert result.cost == pytest.approx(networkx_cost(matrix), rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("n", [40, 120])
def test_optimal_against_rustworkx(n):
    rustworkx = pytest.importorskip("rustworkx")
    rng = np.random.default_rng(n)
    for matrix in (
        symmetric(rng.integers(0, 10, (n, n))),
        symmetric(rng.integers(0, 10**6, (n, n))),
        np.rint(1e5 * distances(rng.random((n, 2)))).astype(int),
        np.rint(distances(rng.integers(0, 8, (n, 2)))).astype(int),
    ):
        graph = rustworkx.PyGraph()
        graph.add_nodes_from(range(n))
        graph.add_edges_from([(i, j, int(matrix[i, j])) for i in range(n) for j in range(i)])
        pairs = rustworkx.max_weight_matching(graph, max_cardinality=True, weight_fn=lambda weight: -weight)
        result = min_weight_perfect_matching(matrix)
        assert result.cost == sum(matrix[i, j] for i, j in pairs)
        check(matrix, result)


@given(
    arrays(np.int64, st.integers(1, 5).map(lambda half: (2 * half, 2 * half)), elements=st.integers(-5, 5)),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_integers_are_solved_without_any_gap_in_any_order(square, seed):
    matrix = symmetric(square)
    result = min_weight_perfect_matching(matrix)
    assert result.cost == cheapest_by_enumeration(matrix.tolist())
    assert dual_bound(matrix, result.vertex_duals, result.blossoms, result.blossom_duals) == result.cost
    order = np.random.default_rng(seed).permutation(len(matrix))
    assert min_weight_perfect_matching(matrix[np.ix_(order, order)]).cost == result.cost


@pytest.mark.parametrize("seed", range(4))
def test_many_ties_at_size_make_nested_blossoms(seed):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 12, (150, 2))
    matrix = np.abs(points[:, None] - points[None]).sum(axis=2)
    result = min_weight_perfect_matching(matrix)
    check(matrix, result)
    assert dual_bound(matrix, result.vertex_duals, result.blossoms, result.blossom_duals) == result.cost
    sets = [set(members.tolist()) for members in result.blossoms]
    assert all(a <= b or b <= a or not a & b for a in sets for b in sets)


def test_nested_blossoms_occur():
    points = np.random.default_rng(3).random((200, 2))
    sets = [set(members.tolist()) for members in min_weight_perfect_matching(points).blossoms]
    assert any(a < b for a in sets for b in sets)


# The integer algorithm on graphs that are not complete.


def adjacency(graph):
    indptr, indices, weights = [0], [], []
    for node in range(graph.number_of_nodes()):
        for neighbor in sorted(graph[node]):
            indices.append(neighbor)
            weights.append(graph[node][neighbor]["weight"])
        indptr.append(len(indices))
    return tuple(np.array(column, dtype=np.int64) for column in (indptr, indices, weights))


@pytest.mark.parametrize("seed", range(60))
def test_sparse_graphs_against_networkx(seed):
    rng = np.random.default_rng(seed)
    n = 2 * int(rng.integers(2, 13))
    graph = nx.gnp_random_graph(n, rng.uniform(0.1, 0.6), seed=seed)
    for edge in graph.edges:
        graph.edges[edge]["weight"] = 2 * int(rng.integers(-6, 7))
    found, mate, dual, blossom_dual, up = solve_integer_matching(*adjacency(graph))
    expected = nx.min_weight_matching(graph)
    assert found == (2 * len(expected) == n)
    if found:
        assert np.array_equal(mate[mate], np.arange(n))
        cost = sum(graph[v][int(mate[v])]["weight"] for v in range(n)) // 2
        assert cost == sum(graph.edges[edge]["weight"] for edge in expected)
        around = [set() for _ in range(n)]
        for v in range(n):
            node = up[v]
            while node >= 0:
                around[v].add(int(node))
                node = up[node]
        for u, v, weight in graph.edges(data="weight"):
            slack = weight - dual[u] - dual[v] + sum(int(blossom_dual[b]) for b in around[u] & around[v])
            assert slack >= 0
            assert slack == 0 or mate[u] != v
        used = set().union(*around)
        sizes = {b: sum(b in sets for sets in around) for b in used}
        assert all(blossom_dual[b] >= 0 and sizes[b] % 2 == 1 for b in used)
        assert cost == dual.sum() - sum(int(blossom_dual[b]) * (sizes[b] - 1) // 2 for b in used)


@pytest.mark.parametrize(
    "graph", [nx.star_graph(3), nx.disjoint_union(nx.complete_graph(3), nx.complete_graph(3)), nx.empty_graph(2)]
)
def test_a_graph_without_perfect_matching_is_recognised(graph):
    nx.set_edge_attributes(graph, 2, "weight")
    assert not solve_integer_matching(*adjacency(graph))[0]


# Candidate edges and pricing.


@pytest.mark.parametrize("kind", ["points", "clusters", "matrix", "ties", "line"])
def test_pricing_reaches_the_optimum_of_the_complete_graph(kind):
    rng = np.random.default_rng(5)
    n = 130
    if kind == "points":
        costs = read_costs(rng.random((n, 2)))
    elif kind == "clusters":  # odd clusters of coinciding points: no candidate edge leaves most of them
        costs = read_costs(np.repeat(rng.random((10, 2)), 13, axis=0))
    elif kind == "line":
        costs = read_costs(np.column_stack([rng.random(n), np.zeros(n)]))
    else:
        costs = read_costs(symmetric(rng.random((n, n)) if kind == "matrix" else rng.integers(0, 4, (n, n))))
    assert costs.n == n
    few, every = (solve_complete(costs, complete_limit=limit, n_neighbors=2) for limit in (0, n))
    vertices = np.arange(n)
    assert costs.between(vertices, few.mate).sum() == pytest.approx(
        costs.between(vertices, every.mate).sum(), rel=1e-12
    )


def test_large_instances_are_priced_and_proven():
    points = np.random.default_rng(8).random((900, 2))
    result = perfect_matching(points)
    check(distances(points), result)
    assert result.exact


def test_points_need_no_matrix():
    points = np.random.default_rng(9).random((3000, 2))
    perfect_matching(points[:600], "sparse")
    tracemalloc.start()
    result = perfect_matching(points, "sparse")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 8 / 4
    assert result.lower_bound <= result.cost


@pytest.mark.parametrize("seed", range(5))
def test_sparse_is_bracketed_by_its_bound_and_the_fallback_and_has_no_exchange_left(seed):
    rng = np.random.default_rng(seed)
    for matrix in (
        distances(rng.random((60, 2))),
        symmetric(rng.random((60, 60))),
        symmetric(rng.random((60, 60)) - 1),
    ):
        sparse, exact = perfect_matching(matrix, "sparse"), perfect_matching(matrix, "exact")
        check(matrix, sparse)
        assert sparse.lower_bound <= exact.cost + 1e-12
        assert exact.cost <= sparse.cost + 1e-12
        assert sparse.exact == (sparse.gap == 0)
        (certificate,) = sparse.certificates
        fallback = preorder_matching(CityCosts(np.empty((0, 2)), matrix))
        assert certificate.bound == pytest.approx(matrix[np.arange(60), fallback].sum() / 2)
        assert certificate.holds
        for k, (a, b) in enumerate(sparse.pairs):
            for c, d in sparse.pairs[:k]:
                exchanged = min(matrix[a, c] + matrix[b, d], matrix[a, d] + matrix[b, c])
                assert exchanged >= matrix[a, b] + matrix[c, d] - 1e-11


@pytest.mark.parametrize("seed", range(5))
def test_fallback_follows_the_preorder_of_a_minimum_spanning_tree(seed):
    points = np.random.default_rng(seed).random((40, 2))
    matrix = distances(points)
    tree = nx.from_scipy_sparse_array(scipy_tree(matrix))
    order = _preorder(points, np.empty((0, 0)), 40)
    position = {int(v): k for k, v in enumerate(order)}
    assert sorted(position) == list(range(40))
    # Preorder: the vertices below any vertex follow it without a gap.
    rooted = nx.bfs_tree(tree, int(order[0]))
    for vertex in rooted:
        below = sorted(position[v] for v in nx.descendants(rooted, vertex) | {vertex})
        assert below == list(range(position[vertex], position[vertex] + len(below)))
    mate = preorder_matching(read_costs(points))
    assert all(mate[order[k]] == order[k + 1] for k in range(0, 40, 2))


# Bounds.


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_any_duals_give_a_valid_bound(seed):
    rng = np.random.default_rng(seed)
    n = 2 * int(rng.integers(1, 5))
    matrix = symmetric(rng.normal(size=(n, n)))
    sets, free = [], rng.permutation(n)
    while len(free) >= 3:
        size = 3 if len(free) < 5 or rng.random() < 0.5 else 5
        sets.append(np.sort(free[:size]))
        if size == 5 and rng.random() < 0.5:
            sets.append(np.sort(free[:3]))
        free = free[size:]
    bound = dual_bound(matrix, rng.normal(size=n), tuple(sets), rng.random(len(sets)))
    assert bound <= cheapest_by_enumeration(matrix.tolist()) + 1e-12


def test_half_the_assignment_is_a_lower_bound():
    rng = np.random.default_rng(1)
    for _, matrix in instances(rng, 8):
        expected = cheapest_by_enumeration(matrix.tolist())
        assert matching_lower_bound(matrix) <= expected + 1e-12 * abs(expected)


def test_networkx_engine_is_exact_and_its_gap_is_the_assignment_bound():
    points = np.random.default_rng(2).random((24, 2))
    result = perfect_matching(points, "networkx")
    assert result.method == "networkx"
    assert result.exact
    assert result.cost == pytest.approx(min_weight_perfect_matching(points).cost)
    assert result.gap == pytest.approx(result.cost - matching_lower_bound(points))
    check(distances(points), result)


# Precision.


def test_a_few_enormous_costs_do_not_spoil_the_precision_of_the_rest():
    rng = np.random.default_rng(3)
    points = rng.random((40, 2))
    matrix = distances(points)
    expected = min_weight_perfect_matching(matrix)
    forbidden = np.ones((40, 40), dtype=bool)
    forbidden[expected.pairs[:, 0], expected.pairs[:, 1]] = False
    forbidden &= forbidden.T & (rng.permutation(1600).reshape(40, 40) % 2 == 0)
    forbidden |= forbidden.T
    matrix[forbidden] = 1e200
    np.fill_diagonal(matrix, 0.0)
    result = min_weight_perfect_matching(matrix)
    assert result.pairs.tolist() == expected.pairs.tolist()
    assert result.gap == 0.0
    check(matrix, result)


@pytest.mark.parametrize("method", ["exact", "networkx"])
@pytest.mark.parametrize("scale", [1e-8, 1e-300, 1.0, 1e8, 1e250])
def test_scale_does_not_matter(scale, method):
    matrix = symmetric(np.random.default_rng(4).random((30, 30)))
    expected = min_weight_perfect_matching(matrix)
    result = perfect_matching(matrix * scale, method)
    assert result.pairs.tolist() == expected.pairs.tolist()
    assert result.exact


def test_integers_beyond_44_bits_are_exact_to_rounding():
    matrix = symmetric(np.random.default_rng(5).integers(0, 2**53, (12, 12)))
    result = min_weight_perfect_matching(matrix)
    assert result.cost == pytest.approx(cheapest_by_enumeration(matrix.tolist()), rel=1e-12)


# Input and output.


def test_all_forms_of_input_agree_and_are_not_modified():
    points = np.random.default_rng(6).integers(0, 50, (20, 2))
    matrix = distances(points)
    expected = perfect_matching(points.astype(float))
    with_infinite_diagonal = matrix.copy()
    np.fill_diagonal(with_infinite_diagonal, np.inf)
    for form in (
        points,
        points.astype(np.float32),
        points.tolist(),
        torch.tensor(points),
        matrix,
        matrix.tolist(),
        np.asfortranarray(matrix),
        with_infinite_diagonal,
        read_costs(points),
        read_costs(matrix),
    ):
        before = None if isinstance(form, CityCosts) else np.asarray(copy.deepcopy(form))
        result = perfect_matching(form)
        assert result.cost == pytest.approx(expected.cost, rel=1e-12)
        if before is not None:
            assert np.array_equal(before, np.asarray(form))
    integers = np.rint(10 * matrix).astype(np.int32)
    assert perfect_matching(integers).cost == perfect_matching(integers.astype(float)).cost


def test_result_is_short_to_read_and_complete_in_json():
    result = perfect_matching(np.random.default_rng(7).random((30, 2)))
    assert isinstance(result, MatchingResult)
    assert result.certified
    assert result.require() is result
    assert len(repr(result).splitlines()) < 16
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["pairs"] == result.pairs.tolist()
    assert len(content["blossoms"]) == len(result.blossom_duals)


@pytest.mark.parametrize("function", [perfect_matching, min_weight_perfect_matching, matching_lower_bound])
@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (np.zeros((3, 3)), "even number of vertices, got 3"),
        (np.zeros((5, 2)), "even number of vertices, got 5"),
        ([[0, 1], [2, 0]], "symmetric"),
        ([[0, np.nan], [np.nan, 0]], "nan or infinite"),
        (np.where(np.eye(4) == 1, 0.0, np.inf), "nan or infinite"),
        (np.zeros((4, 3)), r"shape \(k, k\) or \(k, 2\)"),
        (np.zeros(4), "2-D"),
        ([[0, 1], [1]], "different lengths"),
        (np.array([[0, 1e308], [1e308, 0]]), "range of floats"),
        (np.array([[0, 0], [1e160, 0], [0, 1], [1, 1]]), "range of floats"),
    ],
)
def test_bad_costs(function, cost, message):
    with pytest.raises(ValueError, match=message):
        function(cost)


def test_bad_types_and_options():
    with pytest.raises(ValueError, match="method must be one of 'auto', 'exact', 'sparse', 'networkx', got 'blossom'"):
        perfect_matching(np.zeros((2, 2)), "blossom")
    with pytest.raises(TypeError, match="real numbers"):
        perfect_matching([["a", "b"], ["b", "a"]])
    with pytest.raises(TypeError, match="real numbers"):
        perfect_matching(np.zeros((2, 2), dtype=complex))


@pytest.mark.parametrize(
    ("duals", "message"),
    [
        (([0, 0, 0],), "vertex_duals must have length 4"),
        (([0, 0, 0, 0], ([0, 1, 2],), []), "blossom_duals must have length 1"),
        (([0, 0, 0, 0], ([0, 1, 2],), [-1]), "non-negative"),
        (([0, 0, 0, 0], ([0, 1],), [1]), "odd sets"),
        (([0, 0, 0, 0], ([0, 1, 1],), [1]), "odd sets"),
        (([0, 0, 0, 0], ([0, 1, 4],), [1]), "from 0 to 3"),
        (([0, 0, 0, 0], ([0, 1, 2], [1, 2, 3]), [1, 1]), "disjoint or nested"),
    ],
)
def test_bad_duals(duals, message):
    with pytest.raises(ValueError, match=message):
        dual_bound(np.ones((4, 4)), *duals)
