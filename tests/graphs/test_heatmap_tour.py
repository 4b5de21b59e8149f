"""Decoding edge scores: known tours, the guarantee against all tours, options, forms of input, bad input."""

import functools
import itertools
import json
import math
import warnings

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from assay.certificate import CertificateError
from assay.graphs.heatmap_tour import christofides, decode_heatmap, heatmap_error, heatmap_tsp
from assay.graphs.tour_costs import read_costs
from assay.graphs.tour_decoders import greedy_decode
from assay.graphs.tour_skeleton import eulerian_tour

SQUARE = [[0, 0], [0, 1], [1, 1], [1, 0]]
SIX = [[0, 0], [3, 0], [6, 0.5], [6, 4], [3, 4.2], [0, 4]]
SIX_OPTIMUM = 19.554699816498275


@functools.cache
def all_tours(n):
    return np.array([(0, *rest) for rest in itertools.permutations(range(1, n)) if rest[0] < rest[-1]])


def distance_matrix(points):
    points = np.asarray(points, dtype=float)
    return np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))


def costs_and_errors_of_all_tours(matrix, heatmap):
    """c(T) and eta(T) of every tour T."""
    tours = all_tours(len(matrix))
    following = np.roll(tours, -1, axis=1)
    cost = matrix[tours, following].sum(axis=1)
    upper = np.triu(matrix * heatmap, 1).sum()
    return cost, upper + (matrix * (1 - 2 * heatmap))[tours, following].sum(axis=1)


def symmetric(upper):
    upper = np.triu(upper, 1)
    return upper + upper.T


def random_heatmap(rng, n, integral):
    if integral:
        return symmetric((rng.random((n, n)) < rng.random()).astype(float))
    sparse = symmetric(rng.random((n, n)) * (rng.random((n, n)) < rng.random()))
    return np.round(sparse, 1) if rng.random() < 0.5 else sparse


def noisy_heatmap(rng, points, tour, flip):
    """Mostly high scores on a tour and low ones on edges to near neighbours."""
    matrix = distance_matrix(points)
    n = len(points)
    heatmap = np.zeros((n, n))
    near = np.argsort(matrix + np.diag(np.full(n, np.inf)), axis=1)[:, :5]
    edges = {(min(i, j), max(i, j)) for i in range(n) for j in near[i].tolist()}
    on_tour = {(min(a, b), max(a, b)) for a, b in zip(tour, np.roll(tour, -1), strict=True)}
    for edge in sorted(edges | on_tour):
        right = (edge in on_tour) != (rng.random() < flip)
        heatmap[edge] = rng.beta(8, 2) if right else rng.beta(2, 8)
    return symmetric(heatmap)


def plain_skeleton(matrix, edges):
    """Skeleton and matching by networkx, for one set of edges: its total cost, and the tour of first visits."""
    n = len(matrix)
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges)
    for i, j in sorted(itertools.combinations(range(n), 2), key=lambda e: (matrix[e], e)):
        if not nx.has_path(graph, i, j):
            graph.add_edge(i, j)
    odd = [v for v in graph if graph.degree(v) % 2]
    complete = nx.Graph()
    complete.add_weighted_edges_from((i, j, matrix[i, j]) for i, j in itertools.combinations(odd, 2))
    pairs = nx.min_weight_matching(complete)
    multigraph = nx.MultiGraph(graph)
    multigraph.add_edges_from(pairs)
    tour = list(dict.fromkeys(u for u, _ in nx.eulerian_circuit(multigraph, source=0)))
    skeleton = sum(matrix[e] for e in graph.edges)
    return skeleton, sum(matrix[e] for e in pairs), tour


# Known tours.


def test_two_sides_of_a_square():
    result = decode_heatmap(SQUARE, {(0, 1): 1, (2, 3): 1}, method="integral", reference=[0, 1, 2, 3])
    assert (result.cost, result.tour.tolist()) == (4.0, [0, 1, 2, 3])
    assert (result.skeleton_cost, result.matching_cost, result.n_odd) == (3.0, 1.0, 2)
    assert (result.eta, result.holds, result.source) == (2.0, True, "threshold")


def test_diagonal_of_a_square():
    result = decode_heatmap(SQUARE, {(0, 2): 1}, method="integral", reference=[0, 1, 2, 3])
    assert result.skeleton_cost == pytest.approx(3.4142136, abs=1e-7)
    assert result.bound == pytest.approx(4 + 2 * 5.4142136, abs=1e-6)
    assert result.eta == pytest.approx(5.4142136, abs=1e-7)
    assert result.certified


def test_six_points():
    edges = {(0, 1): 1, (1, 2): 1, (3, 4): 1, (4, 5): 1}
    result = decode_heatmap(SIX, edges, method="integral", reference=range(6))
    assert result.skeleton_cost == pytest.approx(15.554699816498275, rel=1e-14)
    assert result.matching_cost == 4.0
    assert result.cost == pytest.approx(SIX_OPTIMUM, rel=1e-14)
    assert result.tour.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("method", ["auto", "integral", "modified_cost", "random"])
def test_the_edges_of_an_optimal_tour_give_it_back(method):
    heatmap = {(k, (k + 1) % 6): 1 for k in range(6)}
    result = decode_heatmap(SIX, heatmap, method=method, reference=range(6), random_state=0)
    assert result.cost == pytest.approx(SIX_OPTIMUM, rel=1e-14)
    assert result.eta == 0.0
    if method != "auto":  # there, the tour of the empty set is as good
        assert (result.n_odd, result.matching_cost) == (0, 0.0)
    assert result.cost <= result.bound <= result.cost * (1 + 1e-12)
    assert result.certified


@pytest.mark.parametrize("edges", [{}, {(0, 1): 1}, {(0, 1): 0.2, (1, 2): 0.9}, {(0, 1): 1, (1, 2): 1, (0, 2): 1}])
@pytest.mark.parametrize("method", ["auto", "random", "modified_cost"])
def test_three_cities_have_one_tour(edges, method):
    result = decode_heatmap([[0, 0], [3, 0], [0, 4]], edges, method=method, reference=[0, 1, 2], random_state=1)
    assert (result.tour.tolist(), result.cost, result.certified) == ([0, 1, 2], 12.0, True)


def test_no_edges_are_christofides():
    points = np.random.default_rng(0).random((25, 2))
    result = christofides(points, lower_bound=True)
    skeleton, matching, _ = plain_skeleton(distance_matrix(points), [])
    assert result.skeleton_cost == pytest.approx(skeleton, rel=1e-12)
    assert result.matching_cost == pytest.approx(matching, rel=1e-12)
    assert (result.source, result.threshold, result.n_thresholds) == ("empty", math.inf, 1)
    assert decode_heatmap(points, {}, candidates="thresholds").cost == result.cost
    assert decode_heatmap(points, {}, method="integral").source == "empty"
    assert result.ratio_bound <= 1.5
    assert result.certified


def test_constant_scores_decode_all_edges_or_none():
    points = np.random.default_rng(1).random((9, 2))
    constant = np.full((9, 9), 0.3)
    result = decode_heatmap(points, constant, candidates="thresholds")
    everything = decode_heatmap(points, np.ones((9, 9)), method="integral")
    assert result.cost == min(everything.cost, christofides(points).cost)
    assert result.candidates["source"].tolist() == ["empty", "threshold"]
    assert everything.n_odd == 0  # each city has 8 edges
    assert decode_heatmap(points[:8], np.ones((8, 8)), method="integral").n_odd == 8


# The guarantee, against every tour.


@pytest.mark.parametrize("integral", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_no_tour_contradicts_the_guarantee(seed, integral):
    rng = np.random.default_rng([seed, integral])
    points = rng.random((7, 2)) if seed % 3 else rng.integers(0, 4, size=(7, 2)).astype(float)
    matrix = distance_matrix(points)
    heatmap = random_heatmap(rng, 7, integral)
    cost, eta = costs_and_errors_of_all_tours(matrix, heatmap)
    methods = ["thresholds", "integral"] if integral else ["thresholds"]
    for method, candidates, shortcut in itertools.product(methods, ("all", "thresholds"), ("best", "first")):
        result = decode_heatmap(points, heatmap, method=method, candidates=candidates, shortcut=shortcut)
        assert result.cost <= (cost + 2 * eta).min() + 1e-9
        assert result.certified
        if method == "thresholds":
            assert result.cost <= 1.5 * cost.min() + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_modified_cost_is_bounded_by_the_edges_that_a_tour_does_not_have(seed):
    rng = np.random.default_rng(seed)
    points = rng.random((7, 2))
    matrix = distance_matrix(points)
    heatmap = random_heatmap(rng, 7, integral=False)
    result = decode_heatmap(points, heatmap, method="modified_cost", reference=[3, 0, 2, 1, 6, 5, 4])
    skeleton = np.zeros((7, 7))
    skeleton[result.skeleton[:, 0], result.skeleton[:, 1]] = 1
    skeleton = np.maximum(skeleton, skeleton.T)
    # No connected set has a smaller modified cost: for weights of both signs, that is the negative ones plus Kruskal.
    weight = matrix * (1 - 2 * heatmap)
    graph = nx.Graph([(i, j) for i, j in itertools.combinations(range(7), 2) if weight[i, j] < 0])
    graph.add_nodes_from(range(7))
    for i, j in sorted(itertools.combinations(range(7), 2), key=lambda e: weight[e]):
        if not nx.has_path(graph, i, j):
            graph.add_edge(i, j)
    assert (weight * skeleton).sum() / 2 == pytest.approx(sum(weight[e] for e in graph.edges), abs=1e-12)
    tours = all_tours(7)
    following = np.roll(tours, -1, axis=1)
    total = (matrix * skeleton).sum() / 2
    outside = total - (matrix * skeleton)[tours, following].sum(axis=1)
    assert result.cost <= (matrix[tours, following].sum(axis=1) + 2 * outside).min() + 1e-9
    assert result.certified
    assert len(result.certificates) == 2


@pytest.mark.parametrize("seed", range(8))
def test_costs_that_are_not_metric_keep_the_bound_with_its_slack(seed):
    """Every tour as the reference: the bound has a term for the violation, so it must still hold."""
    rng = np.random.default_rng(seed)
    matrix = symmetric(rng.random((6, 6))) if seed % 2 else np.rint(distance_matrix(rng.random((6, 2)) * 4))
    heatmap = random_heatmap(rng, 6, integral=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tour in all_tours(6)[::7]:
            result = decode_heatmap(matrix, heatmap, reference=tour)
            assert all(certificate.holds for certificate in result.certificates)
            assert result.holds is (True if result.metric_ok else None)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_recomputed_by_hand(seed):
    rng = np.random.default_rng(seed)
    points = rng.random((12, 2))
    matrix = distance_matrix(points)
    tour = rng.permutation(12)
    heatmap = noisy_heatmap(rng, points, tour, 0.2)
    result = decode_heatmap(points, heatmap, reference=tour)
    incidence = np.zeros((12, 12))
    incidence[tour, np.roll(tour, -1)] = 1
    incidence = np.maximum(incidence, incidence.T)
    reference_cost = (matrix * incidence).sum() / 2
    eta = (matrix * np.abs(heatmap - incidence)).sum() / 2
    assert result.eta == pytest.approx(eta, rel=1e-12)
    assert heatmap_error(points, heatmap, tour) == result.eta
    sets = [math.inf, *np.unique(heatmap[heatmap > 0])]
    by_set = min((matrix * ((heatmap >= theta) != incidence)).sum() / 2 for theta in sets)
    assert by_set <= eta
    assert result.bound == pytest.approx(reference_cost + 2 * by_set, rel=1e-9)
    against_scores, against_set = result.certificates[-2:]
    assert against_scores.bound == pytest.approx(reference_cost + 2 * eta, rel=1e-9)
    assert against_set.bound == result.bound
    assert result.cost == pytest.approx(matrix[result.tour, np.roll(result.tour, -1)].sum(), rel=1e-12)
    assert all(certificate.value == result.cost for certificate in result.certificates)


# Against the plain version.


@pytest.mark.parametrize("seed", range(3))
def test_every_set_costs_what_an_independent_decode_finds(seed):
    rng = np.random.default_rng(seed)
    points = rng.random((14, 2))
    matrix = distance_matrix(points)
    heatmap = noisy_heatmap(rng, points, rng.permutation(14), 0.3)
    result = decode_heatmap(points, heatmap, candidates="thresholds", shortcut="first", prune=False)
    thresholds = result.history["threshold"]
    assert len(thresholds) == result.n_thresholds == 1 + len(np.unique(heatmap[heatmap > 0]))
    for k, theta in enumerate(thresholds):
        edges = [(i, j) for i, j in itertools.combinations(range(14), 2) if heatmap[i, j] >= theta]
        skeleton, matching, tour = plain_skeleton(matrix, edges)
        assert result.history["skeleton_cost"][k] == pytest.approx(skeleton, rel=1e-12)
        assert result.history["matching_cost"][k] == pytest.approx(matching, rel=1e-12)
        assert matrix[tour, np.roll(tour, -1)].sum() <= skeleton + matching + 1e-9
    assert result.candidates["cost"].min() == result.cost
    assert np.all(np.diff(result.history["best_cost"]) <= 0)


def test_winner_can_be_rebuilt_from_what_the_result_holds():
    rng = np.random.default_rng(5)
    points = rng.random((30, 2))
    heatmap = noisy_heatmap(rng, points, christofides(points, improve="2opt").tour, 0.05)
    result = decode_heatmap(points, heatmap, candidates="thresholds")
    costs = read_costs(points)
    rebuilt = eulerian_tour(costs, (result.skeleton[:, 0], result.skeleton[:, 1]), result.pairs)
    assert costs.tour_cost(rebuilt) == result.cost
    matrix = distance_matrix(points)
    assert result.skeleton_cost == pytest.approx(sum(matrix[i, j] for i, j in result.skeleton), rel=1e-12)
    assert result.matching_cost == pytest.approx(sum(matrix[i, j] for i, j in result.pairs), rel=1e-12)


# Candidates and options.


@pytest.mark.parametrize("flip", [0.0, 0.1, 0.3])
def test_more_candidates_are_never_worse_than_each_decoder(flip):
    rng = np.random.default_rng(int(100 * flip))
    points = rng.random((40, 2))
    heatmap = noisy_heatmap(rng, points, christofides(points, improve="2opt").tour, flip)
    everything = decode_heatmap(points, heatmap)
    thresholds = decode_heatmap(points, heatmap, candidates="thresholds")
    costs = read_costs(points)
    assert everything.cost <= thresholds.cost
    assert everything.cost <= costs.tour_cost(greedy_decode(points, heatmap))
    assert everything.cost <= christofides(points).cost
    by_source = {
        source: everything.candidates["cost"][everything.candidates["source"] == source].min()
        for source in ("empty", "threshold", "fragment", "greedy")
    }
    assert everything.cost == min(by_source.values())
    assert by_source["greedy"] == costs.tour_cost(greedy_decode(points, heatmap))
    assert min(by_source["empty"], by_source["threshold"]) == thresholds.cost


def test_integral_never_adds_candidates():
    result = decode_heatmap(SQUARE, {(0, 2): 1}, method="integral", candidates="all")
    assert result.candidates["source"].tolist() == ["threshold"]
    with pytest.raises(ValueError, match="heatmap must have scores 0 and 1 only"):
        decode_heatmap(SQUARE, {(0, 2): 0.5}, method="integral")


def test_a_closed_fragment_has_no_skeleton():
    # Two crossing edges: the greedy paths inside of them win, or tie, only when closed greedily.
    rng = np.random.default_rng(0)
    for _ in range(60):
        points = rng.random((12, 2))
        result = decode_heatmap(points, noisy_heatmap(rng, points, rng.permutation(12), 0.2))
        if math.isnan(result.skeleton_cost):
            break
    assert result.source in ("fragment", "greedy")
    assert math.isnan(result.matching_cost)
    assert math.isnan(result.matching_gap)
    assert result.skeleton.shape == result.pairs.shape == (0, 2)
    assert result.certified
    json.dumps(result.to_dict(), allow_nan=False)


def test_fewer_thresholds_are_quantiles_and_promise_only_their_own_sets():
    rng = np.random.default_rng(3)
    points = rng.random((20, 2))
    tour = christofides(points, improve="2opt").tour
    heatmap = noisy_heatmap(rng, points, tour, 0.1)
    complete = decode_heatmap(points, heatmap, reference=tour, candidates="thresholds")
    few = decode_heatmap(points, heatmap, reference=tour, candidates="thresholds", max_thresholds=5)
    assert few.n_thresholds <= 7
    assert {math.inf, 0.5} <= set(few.history["threshold"])
    assert few.cost >= complete.cost
    assert few.bound >= complete.bound
    assert len(few.certificates) == len(complete.certificates) - 1  # none about the error of the scores
    assert few.certified
    same = decode_heatmap(points, heatmap, reference=tour, candidates="thresholds", max_thresholds=10**6)
    assert same.cost == complete.cost
    assert len(same.certificates) == len(complete.certificates)


def test_too_many_thresholds_are_capped_with_a_message():
    rng = np.random.default_rng(0)
    points = rng.random((70, 2))
    heatmap = symmetric(rng.random((70, 70)))
    with pytest.warns(UserWarning, match=r"2415 different scores, 2000 quantiles .* max_thresholds=2415 uses all"):
        result = decode_heatmap(points, heatmap, candidates="thresholds", patience=3)
    assert result.n_thresholds < 10


def test_patience_stops_early_and_weakens_the_promise():
    rng = np.random.default_rng(4)
    points = rng.random((25, 2))
    tour = christofides(points, improve="2opt").tour
    heatmap = noisy_heatmap(rng, points, tour, 0.05)
    patient = decode_heatmap(points, heatmap, reference=tour)
    hasty = decode_heatmap(points, heatmap, reference=tour, patience=2)
    assert hasty.n_thresholds < patient.n_thresholds
    assert len(hasty.certificates) < len(patient.certificates)
    assert hasty.certified
    assert hasty.candidates["source"][-1] == "greedy"
    assert decode_heatmap(points, heatmap, reference=tour, patience=10**6).cost == patient.cost


def test_random_thresholds_are_reproducible_and_promise_their_sets():
    rng = np.random.default_rng(6)
    points = rng.random((15, 2))
    tour = rng.permutation(15)
    heatmap = noisy_heatmap(rng, points, tour, 0.2)
    options = {"method": "random", "candidates": "thresholds", "reference": tour}
    one = decode_heatmap(points, heatmap, random_state=7, n_samples=4, **options)
    again = decode_heatmap(points, heatmap, random_state=np.random.default_rng(7), n_samples=4, **options)
    np.testing.assert_array_equal(one.candidates, again.candidates)
    assert 1 <= one.n_thresholds <= 4
    assert np.all((one.history["threshold"] > 0) & (one.history["threshold"] <= 1))
    assert one.certified
    costs = [decode_heatmap(points, heatmap, random_state=k, n_samples=1, **options).cost for k in range(40)]
    assert np.mean(costs) <= read_costs(points).tour_cost(tour) + 2 * heatmap_error(points, heatmap, tour)


def test_callback_sees_every_set():
    seen = []
    result = decode_heatmap(SIX, {(0, 1): 0.9, (2, 3): 0.4}, callback=seen.append)
    assert [row["threshold"] for row in seen] == [math.inf, 0.9, 0.4]
    assert [row["best_cost"] for row in seen] == result.history["best_cost"].tolist()


@pytest.mark.parametrize("improve", ["2opt", "oropt", "both"])
def test_polish_never_costs_more(improve):
    rng = np.random.default_rng(8)
    improved = False
    for _ in range(5):
        points = rng.random((40, 2))
        heatmap = symmetric(rng.random((40, 40)) * (rng.random((40, 40)) < 0.1))
        plain = decode_heatmap(points, heatmap, reference=range(40), max_thresholds=6)
        polished = decode_heatmap(points, heatmap, improve=improve, reference=range(40), max_thresholds=6)
        assert polished.cost <= plain.cost
        assert sorted(polished.tour.tolist()) == list(range(40))
        assert polished.certified
        improved |= polished.cost < plain.cost
    assert improved


def test_both_is_a_tour_that_neither_move_improves():
    points = np.random.default_rng(2).random((50, 2))
    both = christofides(points, improve="both")
    assert both.cost <= christofides(points, improve="2opt").cost


@pytest.mark.parametrize("matching", ["exact", "networkx", "sparse"])
def test_matching_engines(matching):
    rng = np.random.default_rng(9)
    points = rng.random((40, 2))
    tour = rng.permutation(40)
    heatmap = noisy_heatmap(rng, points, tour, 0.2)
    result = decode_heatmap(points, heatmap, matching=matching, candidates="thresholds", reference=tour)
    exact = decode_heatmap(points, heatmap, candidates="thresholds", reference=tour)
    assert result.certified
    np.testing.assert_array_equal(result.history["skeleton_cost"], exact.history["skeleton_cost"])
    if matching == "sparse":
        assert np.all(result.history["matching_cost"] >= exact.history["matching_cost"] - 1e-12)
        assert np.all(result.candidates["matching_gap"] >= 0)
        excess = result.history["matching_cost"] - exact.history["matching_cost"]
        assert np.all(result.candidates["matching_gap"] >= excess - 1e-9)
    else:
        np.testing.assert_allclose(result.history["matching_cost"], exact.history["matching_cost"], rtol=1e-12)
        assert result.exact_matching
        assert np.all(result.candidates["matching_gap"] == 0)


def test_lower_bound_certifies_a_ratio_without_a_reference():
    points = np.random.default_rng(3).random((30, 2))
    result = decode_heatmap(points, {(0, 1): 0.5}, lower_bound=True)
    assert result.ratio_bound == result.cost / result.lower_bound
    assert 1 <= result.ratio_bound <= 1.5
    assert (result.eta, result.bound, result.holds) == (None, None, None)
    assert result.certificates[-1].value == pytest.approx(result.ratio_bound)
    assert result.certified


# Forms of input.


def test_all_forms_of_input_give_the_same_tour():
    rng = np.random.default_rng(10)
    points = rng.random((12, 2))
    matrix = distance_matrix(points)
    heatmap = noisy_heatmap(rng, points, rng.permutation(12), 0.2)
    graph = nx.Graph()
    names = [f"city {k}" for k in range(12)]
    graph.add_nodes_from(names)
    for i, j in itertools.combinations(range(12), 2):
        graph.add_edge(names[i], names[j], weight=matrix[i, j], p=heatmap[i, j])
    expected = decode_heatmap(points, heatmap)
    for cost in (matrix, points.tolist(), torch.tensor(points)):
        assert decode_heatmap(cost, heatmap).tour.tolist() == expected.tour.tolist()
    for scores in (sp.csr_array(heatmap), sp.coo_matrix(np.triu(heatmap)), torch.tensor(heatmap), heatmap.tolist()):
        assert decode_heatmap(points, scores).tour.tolist() == expected.tour.tolist()
    by_graph = decode_heatmap(graph, reference=names)
    assert by_graph.nodes == [names[k] for k in expected.tour]
    assert by_graph.tour.tolist() == expected.tour.tolist()
    by_name = {(names[i], names[j]): heatmap[i, j] for i, j in itertools.combinations(range(12), 2)}
    assert decode_heatmap(graph, by_name).nodes == by_graph.nodes
    assert decode_heatmap(graph, heatmap).nodes == by_graph.nodes
    assert expected.nodes is None


def test_results_do_not_depend_on_chance_and_inputs_are_left_alone():
    rng = np.random.default_rng(11)
    points = rng.random((15, 2))
    heatmap = noisy_heatmap(rng, points, rng.permutation(15), 0.2)
    before = points.copy(), heatmap.copy()
    first, second = decode_heatmap(points, heatmap), decode_heatmap(points, heatmap)
    np.testing.assert_array_equal(first.tour, second.tour)
    np.testing.assert_array_equal(points, before[0])
    np.testing.assert_array_equal(heatmap, before[1])


def test_integer_costs_and_scores():
    result = decode_heatmap(np.array(SQUARE, dtype=np.int16) * 100, np.ones((4, 4), dtype=int), reference=[0, 1, 2, 3])
    assert result.cost == 400.0


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_scaled_costs(scale):
    rng = np.random.default_rng(12)
    points = rng.random((20, 2))
    heatmap = noisy_heatmap(rng, points, rng.permutation(20), 0.2)
    plain = decode_heatmap(points, heatmap, reference=range(20), lower_bound=True)
    scaled = decode_heatmap(points * scale, heatmap, reference=range(20), lower_bound=True)
    assert scaled.cost == pytest.approx(plain.cost * scale, rel=1e-12)
    assert scaled.bound == pytest.approx(plain.bound * scale, rel=1e-12)
    assert scaled.certified


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((7, 2)),
        np.column_stack([np.arange(9), np.zeros(9)]),
        np.repeat(np.random.default_rng(0).random((4, 2)), 3, axis=0),
        np.random.default_rng(1).random((12, 2)) + 1e8,
    ],
    ids=["one place", "line", "duplicates", "far from the origin"],
)
def test_degenerate_points(points):
    n = len(points)
    rng = np.random.default_rng(0)
    heatmap = symmetric(rng.random((n, n)))
    result = decode_heatmap(points, heatmap, reference=range(n), lower_bound=True)
    assert sorted(result.tour.tolist()) == list(range(n))
    assert result.certified
    assert decode_heatmap(points, heatmap, method="modified_cost", reference=range(n)).certified


@given(st.integers(0, 10**6), st.integers(3, 11), st.booleans())
@settings(max_examples=40, deadline=None)
def test_certificates_hold_on_any_metric_instance(seed, n, grid):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 3, size=(n, 2)).astype(float) if grid else rng.normal(size=(n, 2))
    heatmap = random_heatmap(rng, n, integral=bool(rng.random() < 0.3))
    result = decode_heatmap(points, heatmap, reference=rng.permutation(n), lower_bound=True)
    assert result.certified
    assert result.tour[0] == 0
    assert result.tour[1] < result.tour[-1]


def test_star_of_scores():
    n = 12
    points = np.random.default_rng(2).random((n, 2))
    star = {(0, k): 1 for k in range(1, n)}  # a city of degree n - 1
    result = decode_heatmap(points, star, method="integral", reference=range(n))
    assert sorted(result.tour.tolist()) == list(range(n))
    assert result.certified


def test_reference_may_be_closed():
    scores = {(0, 1): 1.0}
    closed = decode_heatmap(SQUARE, scores, reference=[1, 2, 3, 0, 1])
    assert closed.bound == decode_heatmap(SQUARE, scores, reference=[0, 1, 2, 3]).bound


# The triangle inequality.


def test_violations_are_announced_and_the_closure_repairs_them():
    matrix = distance_matrix(SIX)
    matrix[0, 3] = matrix[3, 0] = 1000.0
    with pytest.warns(UserWarning, match='triangle inequality is violated by up to 99.*metric="closure"'):
        result = decode_heatmap(matrix, {(0, 1): 1.0}, reference=range(6))
    assert result.metric_ok is False
    assert result.holds is None
    assert not result.certified
    with pytest.raises(CertificateError, match="VIOLATED"):
        result.require()
    closed = decode_heatmap(matrix, {(0, 1): 1.0}, reference=range(6), metric="closure")
    assert closed.metric_ok is True
    assert closed.certified


def test_rounded_distances_are_tolerated(recwarn):
    points = np.random.default_rng(5).random((40, 2)) * 30
    matrix = np.rint(distance_matrix(points))
    result = decode_heatmap(matrix, {(0, 1): 0.5}, reference=range(40), lower_bound=True)
    assert result.metric_ok is True
    assert result.certified
    assert not recwarn


# networkx.


def test_as_a_method_of_networkx():
    rng = np.random.default_rng(13)
    graph = nx.random_geometric_graph(15, 0.6, seed=3)
    assert nx.is_connected(graph)
    for u, v in graph.edges:
        graph[u][v]["length"] = math.dist(graph.nodes[u]["pos"], graph.nodes[v]["pos"])
    heatmap = {edge: rng.random() for edge in graph.edges}
    method = functools.partial(heatmap_tsp, heatmap=heatmap, improve="2opt")
    walk = nx.approximation.traveling_salesman_problem(graph, weight="length", method=method)
    assert walk[0] == walk[-1]
    assert set(walk) == set(graph)
    assert all(graph.has_edge(u, v) for u, v in itertools.pairwise(walk))


def test_closure_of_an_incomplete_graph():
    ring = nx.cycle_graph(6)
    nx.set_edge_attributes(ring, 2.0, "weight")
    result = decode_heatmap(ring, {(0, 1): 0.9}, metric="closure")
    assert result.nodes == [0, 1, 2, 3, 4, 5]
    assert result.cost == 12.0
    with pytest.raises((TypeError, TypeCheckError), match="graph"):  # the second where annotations are checked
        heatmap_tsp(SQUARE, heatmap={})


# Bad input.


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"cost": [[0, 0], [1, 1]]}, ValueError, "cost must describe at least 3 cities"),
        ({"cost": [[0, 1, 2], [1, 0, 3], [9, 3, 0]]}, ValueError, "cost must be symmetric"),
        ({"cost": -distance_matrix(SQUARE)}, ValueError, "cost must be non-negative"),
        ({"cost": np.full((4, 2), np.nan)}, ValueError, "cost must be a finite"),
        ({"heatmap": np.full((4, 4), 2.0)}, ValueError, "apply a sigmoid"),
        ({"heatmap": np.zeros((5, 5))}, ValueError, r"heatmap must have shape \(4, 4\), got \(5, 5\)"),
        ({"heatmap": "p"}, TypeError, "heatmap must hold scores unless cost is a networkx.Graph, got 'p'"),
        ({"reference": [0, 1, 2, 2]}, ValueError, "reference must be a permutation of 0..3"),
        ({"reference": [0, 1, 2]}, ValueError, "reference must be a permutation"),
        ({"method": "greedy"}, ValueError, "method must be one of 'auto', 'thresholds'"),
        ({"candidates": "some"}, ValueError, "candidates must be one of 'all', 'thresholds'"),
        ({"matching": "rustworkx"}, ValueError, "matching must be one of"),
        ({"shortcut": "last"}, ValueError, "shortcut must be one of"),
        ({"metric": "none"}, ValueError, "metric must be one of"),
        ({"improve": "3opt"}, ValueError, "improve must be one of None, '2opt', 'oropt', 'both', got '3opt'"),
        ({"max_thresholds": 0}, ValueError, "max_thresholds must be at least 1"),
        ({"n_samples": 0}, ValueError, "n_samples must be at least 1"),
        ({"patience": 0}, ValueError, "patience must be at least 1"),
        ({"random_state": -1}, ValueError, "random_state must be a non-negative seed"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        decode_heatmap(**{"cost": SQUARE, "heatmap": {(0, 1): 1.0}} | arguments)


def test_graph_without_scores():
    graph = nx.complete_graph(4)
    nx.set_edge_attributes(graph, 1.0, "weight")
    with pytest.raises(ValueError, match="heatmap must name an edge attribute of the graph, no edge has 'p'"):
        decode_heatmap(graph)
