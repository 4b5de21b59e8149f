"""Input that is easily taken for something else: masks, formats, diagonals, units, foreign objects."""

import math

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from assay.graphs.edge_heatmap import EdgeHeatmapClassifier, edge_features
from assay.graphs.heatmap_tour import decode_heatmap
from assay.graphs.local_search import or_opt, two_opt
from assay.graphs.matching import dual_bound, perfect_matching
from assay.graphs.tour_bounds import held_karp_bound, one_tree_bound
from assay.graphs.tour_costs import CityCosts, EdgeScores, check_tour, is_tour, read_costs, read_scores
from assay.graphs.tour_decoders import beam_decode, greedy_decode, kopt_decode
from assay.graphs.tour_fragments import greedy_order
from assay.graphs.tour_skeleton import minimum_spanning_tree

RNG = np.random.default_rng(0)
POINTS = RNG.random((8, 2))
MATRIX = np.hypot(*(POINTS[:, None] - POINTS[None]).transpose(2, 0, 1))
UPPER = np.triu(RNG.random((8, 8)), 1)
HEATMAP = UPPER + UPPER.T
NONE = np.empty((0, 0))


def same_scores(first, second):
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ("first", "second", "score"))


# Forms.


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("kind", [sp.coo_array, sp.coo_matrix])
def test_every_sparse_format_is_read(form, kind):
    assert same_scores(read_scores(kind(HEATMAP).asformat(form), 8), read_scores(HEATMAP, 8))


@pytest.mark.parametrize("filler", [math.nan, math.inf, 5.0, None])
def test_diagonals_are_ignored_in_every_form(filler):
    expected = read_scores(HEATMAP, 8)
    listed = {(i, j): HEATMAP[i, j] for i in range(8) for j in range(8)}
    listed.update({(i, i): filler for i in range(8)})
    assert same_scores(read_scores(listed, 8), expected)
    rows = MATRIX.tolist()
    graph = nx.complete_graph(8)
    for i, j in graph.edges:
        graph[i][j]["weight"] = MATRIX[i, j]
    for i in range(8):
        rows[i][i] = filler
        graph.add_edge(i, i, weight=filler)
    np.testing.assert_array_equal(read_costs(rows).matrix, MATRIX)
    np.testing.assert_array_equal(read_costs(graph).matrix, MATRIX)
    assert perfect_matching(rows).cost == perfect_matching(MATRIX).cost
    if filler is not None:
        assert same_scores(read_scores(sp.csr_array(HEATMAP + np.diag(np.full(8, filler))), 8), expected)
        square = torch.tensor(MATRIX)
        square.fill_diagonal_(filler)
        assert perfect_matching(square).cost == perfect_matching(MATRIX).cost


def test_what_is_under_a_mask_is_not_used():
    hidden = np.ma.masked_array(MATRIX, mask=np.eye(8, k=1) + np.eye(8, k=-1))
    for read in (read_costs, held_karp_bound, perfect_matching):
        with pytest.raises(ValueError, match=r"cost must be .*, got 14 masked entries"):
            read(hidden)
    with pytest.raises(ValueError, match=r"cost must be .* masked entries"):
        read_costs(np.ma.masked_array(POINTS, mask=POINTS > 0.9))
    with pytest.raises(ValueError, match=r"heatmap must be .* masked entries"):
        read_scores(np.ma.masked_array(HEATMAP, mask=HEATMAP > 0.9), 8)
    np.testing.assert_array_equal(read_costs(np.ma.masked_array(MATRIX, mask=np.eye(8))).matrix, MATRIX)
    assert hidden.mask.sum() == 14


def test_tensors_of_any_layout_and_precision():
    half = torch.tensor(POINTS).to(torch.bfloat16)
    np.testing.assert_array_equal(read_costs(half).points, half.double().numpy())
    scores = torch.tensor(HEATMAP, requires_grad=True)
    assert same_scores(read_scores(scores, 8), read_scores(HEATMAP, 8))
    for sparse in (torch.tensor(HEATMAP).to_sparse(), torch.tensor(MATRIX).to_sparse()):
        with pytest.raises(TypeError, match=r"heatmap must be .*tensor of layout torch.sparse_coo"):
            read_scores(sparse, 8)
        with pytest.raises(TypeError, match=r"cost must be .*tensor of layout torch.sparse_coo"):
            read_costs(sparse)


@pytest.mark.parametrize("weight", ["3", None, 1 + 1j, np.array([1.0, 2.0]), 10**400, math.nan, True])
def test_weights_of_a_graph_are_real_numbers(weight):
    graph = nx.complete_graph(3)
    nx.set_edge_attributes(graph, 1.0, "weight")
    graph[0][1]["weight"] = weight
    with pytest.raises((TypeError, ValueError), match=r"cost of the edge \(0, 1\) must be"):
        read_costs(graph)


@pytest.mark.parametrize("weight", [np.float32(0.5), torch.tensor(0.5), np.array(0.5)])
def test_weights_of_a_graph_of_other_types(weight):
    graph = nx.complete_graph(3)
    nx.set_edge_attributes(graph, 1.0, "weight")
    graph[0][1]["weight"] = weight
    assert read_costs(graph).matrix[1, 0] == 0.5


def test_tours_that_are_no_sequences():
    with pytest.raises(TypeError, match="reference must be a sequence of nodes, got list: unhashable"):
        check_tour([["a"], "b", "c"], 3, "reference", "abc")
    with pytest.raises(TypeError, match="reference must be a sequence of nodes, got int"):
        check_tour.__wrapped__(5, 3, "reference", "abc")
    with pytest.raises(TypeError, match="reference must be a sequence of integers, got list"):
        check_tour([[0, 1], [2]], 3, "reference")
    assert not is_tour(np.array([0, 1, 1]), 3)
    assert not is_tour(np.array([0, 1]), 3)


@pytest.mark.parametrize("name", ["prune", "lower_bound", "callback"])
def test_flags_are_not_guessed(name):
    with pytest.raises(TypeError, match=name):
        decode_heatmap(POINTS, HEATMAP, **{name: "no"})


def test_improve_is_one_name():
    with pytest.raises((TypeError, ValueError), match="improve"):
        decode_heatmap(POINTS, HEATMAP, improve=np.array(["2opt", "oropt"]))


def test_a_callback_may_end_the_search():
    class Enough(Exception):
        pass

    def stop(row):
        raise Enough

    with pytest.raises(Enough):
        decode_heatmap(POINTS, HEATMAP, callback=stop)


@pytest.mark.parametrize("search", [two_opt, or_opt])
def test_options_are_checked_where_they_are_not_used(search):
    with pytest.raises(ValueError, match="n_neighbors must be at least 1"):
        search(POINTS, np.arange(8), n_neighbors=0, method="plain")


# Objects made by hand.


def test_scores_of_another_instance_are_refused():
    def scores(first, second, score):
        return EdgeScores(np.array(first), np.array(second), np.array(score, dtype=float))

    assert read_scores(scores([0, 0], [1, 2], [0.5, 1]), 8).score.tolist() == [0.5, 1.0]
    for first, second in (([0], [50]), ([2], [1]), ([-1], [1]), ([4, 0], [5, 1]), ([0, 0], [1, 1])):
        with pytest.raises(ValueError, match="heatmap must list edges between 8 cities"):
            read_scores(scores(first, second, np.full(len(first), 0.5)), 8)
    for value in (0, 3, math.nan):
        with pytest.raises(ValueError, match=r"heatmap must list scores in \(0, 1\]"):
            read_scores(scores([0], [1], [value]), 8)


def test_costs_made_by_hand_have_one_form():
    with pytest.raises(ValueError, match="points and matrix must not both be given"):
        CityCosts(POINTS, MATRIX)
    with pytest.raises((TypeError, ValueError), match="matrix"):
        CityCosts(np.empty((0, 2)), MATRIX[:5])
    with pytest.raises((TypeError, ValueError), match="points"):
        CityCosts(np.zeros((4, 3)), NONE)
    with pytest.raises(TypeError, match="matrix"):
        CityCosts(np.empty((0, 2)), MATRIX.astype(int))


# Units.

SOLVERS = (
    lambda cost: decode_heatmap(cost, HEATMAP).tour,
    lambda cost: held_karp_bound(cost).potentials,
    lambda cost: greedy_decode(cost, HEATMAP),
    lambda cost: beam_decode(cost, HEATMAP),
    lambda cost: kopt_decode(cost, HEATMAP, random_state=0),
    lambda cost: two_opt(cost, np.arange(8)),
    lambda cost: or_opt(cost, np.arange(8)),
    lambda cost: perfect_matching(cost).pairs,
    lambda cost: minimum_spanning_tree(read_costs(cost)).first,
)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("solve", SOLVERS)
def test_units_without_squares_or_sums_are_refused(solve):
    # Distances that underflow would all be 0, and every tour optimal; those that overflow end no loop.
    for scale in (1e-300, 1e-170, 1e160, 1e300):
        with pytest.raises(ValueError, match="cost must have distances with squares in the range of floats"):
            solve(POINTS * scale)
    with pytest.raises(ValueError, match="cost must have sums in the range of floats"):
        solve(MATRIX * 1e307)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("solve", [solve for k, solve in enumerate(SOLVERS) if k != 1])
def test_units_that_are_powers_of_two_change_nothing(solve):
    for exponent in (-480, -40, 40, 480):
        np.testing.assert_array_equal(solve(np.ldexp(POINTS, exponent)), solve(POINTS))
    for exponent in (-900, 900):
        np.testing.assert_array_equal(solve(np.ldexp(MATRIX, exponent)), solve(MATRIX))


def test_clusters_inside_of_an_ordinary_instance_may_be_tiny():
    points = np.concatenate([POINTS[:4] * 1e-200, POINTS[4:]])
    result = decode_heatmap(points, HEATMAP, reference=np.arange(8), lower_bound=True)
    assert result.certified
    assert result.cost > 1.0


def test_greedy_order_is_by_score_per_cost_down_to_the_smallest_floats():
    scores = read_scores(HEATMAP, 8)
    tiny = np.rint(MATRIX * 1e6) * 5e-324
    order = greedy_order(read_costs(tiny), scores)
    ratio = [order.score[k] / np.rint(MATRIX * 1e6)[order.first[k], order.second[k]] for k in range(28)]
    assert ratio == sorted(ratio, reverse=True)
    free = MATRIX.copy()
    free[2, 5] = free[5, 2] = 0.0
    order = greedy_order(read_costs(free), scores)
    assert (order.first[0], order.second[0]) == (2, 5)


def test_sums_of_duals_and_potentials_must_be_floats():
    with pytest.raises(ValueError, match="vertex_duals and blossom_duals must have sums in the range of floats"):
        dual_bound(POINTS, np.full(8, 1e308))
    with pytest.raises(ValueError, match="potentials must have sums in the range of floats"):
        one_tree_bound(POINTS, np.full(8, 1e308))
    with pytest.raises(TypeError, match="blossoms"):
        dual_bound(POINTS, np.zeros(8), 5, [1.0])


# The learned heatmap.


@pytest.mark.parametrize("exponent", [-480, 480])
def test_features_do_not_depend_on_the_unit(exponent):
    points = np.random.default_rng(1).random((60, 2))
    for own, scaled in zip(edge_features(points), edge_features(np.ldexp(points, exponent)), strict=True):
        np.testing.assert_array_equal(own, scaled)


@pytest.mark.parametrize("exponent", [-480, 480])
def test_triangulation_does_not_depend_on_the_unit(exponent):
    points = np.random.default_rng(2).random((60, 2))
    own = minimum_spanning_tree(read_costs(points), triangulate=True)
    scaled = minimum_spanning_tree(read_costs(np.ldexp(points, exponent)), triangulate=True)
    np.testing.assert_array_equal(own.first, scaled.first)
    np.testing.assert_array_equal(own.second, scaled.second)


class Constant:
    """The simplest classifier: every edge is in the tour with probability 1/2."""

    def get_params(self, deep=True):
        return {}

    def fit(self, rows, target):
        return self

    def predict_proba(self, rows):
        return np.full((len(rows), 2), 0.5)


def test_a_classifier_predicts_with_what_it_was_fitted_with():
    instances = [np.random.default_rng(seed).random((20, 2)) for seed in range(2)]
    tours = [two_opt(points, np.arange(20)) for points in instances]
    model = EdgeHeatmapClassifier(Constant(), k=3).fit(instances, tours)
    before = model.predict_heatmap(instances[0]).nnz
    assert model.set_params(k=12).predict_heatmap(instances[0]).nnz == before
    assert model.fit(instances, tours).predict_heatmap(instances[0]).nnz > before
    for bad in ((None, tours, "X"), (instances, 4, "y"), (iter(instances), tours, "X")):
        with pytest.raises(TypeError, match=bad[2]):
            model.fit(bad[0], bad[1])
    with pytest.raises(ValueError, match="X must have distances with squares in the range"):
        model.predict_heatmap(instances[0] * 1e-200)
