"""The learned heatmap: what the features mean, that it learns, and the estimator contract."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import Delaunay
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from assay.graphs.edge_heatmap import EDGE_FEATURES, EdgeHeatmapClassifier, edge_features
from assay.graphs.heatmap_tour import decode_heatmap
from assay.graphs.local_search import or_opt, two_opt
from assay.graphs.tour_costs import read_costs
from assay.graphs.tour_decoders import greedy_decode


def good_tour(points):
    rng = np.random.default_rng(0)
    n = len(points)
    tours = [or_opt(points, two_opt(points, rng.permutation(n))) for _ in range(8)]
    return min(tours, key=read_costs(points).tour_cost)


def instances(n_instances, n, seed):
    rng = np.random.default_rng(seed)
    points = [rng.random((n, 2)) for _ in range(n_instances)]
    return points, [good_tour(p) for p in points]


def logistic():
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


@pytest.fixture(scope="module")
def trained():
    points, tours = instances(12, 40, seed=1)
    return EdgeHeatmapClassifier(HistGradientBoostingClassifier(max_iter=40), random_state=0).fit(points, tours)


# Features.


def test_features_by_their_definitions():
    points = np.random.default_rng(0).random((30, 2))
    first, second, features = edge_features(points, k=6)
    assert features.shape == (len(first), len(EDGE_FEATURES)) == (len(first), 9)
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    order = np.argsort(distance, axis=1)
    rank = np.argsort(order, axis=1)  # 0 is the city itself
    nearest_five = np.sort(distance, axis=1)[:, 1:6].mean(axis=1)
    tree = minimum_spanning_tree(distance).toarray() > 0
    tree |= tree.T
    triangles = Delaunay(points).simplices
    delaunay = {tuple(sorted(map(int, pair))) for t in triangles for pair in itertools.combinations(t, 2)}
    for i, j, row in zip(first.tolist(), second.tolist(), features, strict=True):
        ranks, relative = sorted((rank[i, j], rank[j, i])), sorted(distance[i, j] / nearest_five[[i, j]])
        degrees = sorted((tree[i].sum(), tree[j].sum()))
        scaled = distance[i, j] / nearest_five.mean()
        expected = [*ranks, *relative, scaled, float(tree[i, j]), float((i, j) in delaunay), *degrees]
        assert row == pytest.approx(expected, rel=1e-9)
    candidates = set(zip(first.tolist(), second.tolist(), strict=True))
    near = {(min(i, j), max(i, j)) for i in range(30) for j in order[i, 1:7].tolist()}
    spanning = {tuple(map(int, edge)) for edge in np.argwhere(np.triu(tree))}
    assert candidates == near | delaunay | spanning
    assert list(zip(first, second, strict=True)) == sorted(candidates)


@given(st.integers(0, 1000), st.floats(0, 6.28), st.sampled_from([1e-6, 1.0, 1e7]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_features_do_not_depend_on_the_frame(seed, angle, scale, mirrored):
    points = np.random.default_rng(seed).random((25, 2))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = scale * (points @ turn + [3.0, -5.0])
    if mirrored:
        moved[:, 0] *= -1
    expected, found = edge_features(points), edge_features(moved)
    assert np.array_equal(expected[0], found[0])
    assert np.array_equal(expected[1], found[1])
    assert found[2] == pytest.approx(expected[2], rel=1e-6)


def test_features_follow_a_renumbering():
    points = np.random.default_rng(3).random((25, 2))
    order = np.random.default_rng(4).permutation(25)
    first, second, features = edge_features(points)
    other_first, other_second, other_features = edge_features(points[order])
    named = {frozenset(edge): row for edge, row in zip(zip(first, second, strict=True), features, strict=True)}
    for i, j, row in zip(order[other_first], order[other_second], other_features, strict=True):
        assert row == pytest.approx(named[frozenset((i, j))])
    assert len(first) == len(other_first)


@pytest.mark.parametrize(
    "points",
    [
        np.column_stack([np.arange(10.0), np.zeros(10)]),  # on a line
        np.ones((10, 2)),  # all the same
        np.repeat(np.random.default_rng(0).random((5, 2)), 3, axis=0),  # threefold
        np.array(list(itertools.product(range(4), range(4))), dtype=float),  # a grid
        np.random.default_rng(0).random((3, 2)),
        np.random.default_rng(0).random((4, 2)) * 1e-8,
        np.random.default_rng(0).random((12, 2)) + 1e8,
    ],
)
def test_degenerate_points_have_finite_features(points, trained):
    first, second, features = edge_features(points)
    assert np.all(np.isfinite(features))
    assert np.all(first < second)
    heatmap = trained.predict_heatmap(points)
    assert heatmap.shape == (len(points), len(points))
    assert scipy.sparse.csgraph.connected_components(heatmap)[0] == 1  # the tree is among the candidates


def test_line_counts_consecutive_cities_as_triangulated():
    points = np.column_stack([[0.0, 1.0, 3.0, 6.0, 10.0], np.zeros(5)])
    first, second, features = edge_features(points)
    assert np.array_equal(features[:, EDGE_FEATURES.index("in the Delaunay triangulation")], second - first == 1)


# Learning.


def test_it_learns(trained):
    points, tours = instances(3, 40, seed=2)
    for p, tour in zip(points, tours, strict=True):
        heatmap = trained.predict_heatmap(p)
        first, second, features = edge_features(p)
        following = np.roll(tour, -1)
        used = set(zip(np.minimum(tour, following).tolist(), np.maximum(tour, following).tolist(), strict=True))
        label = np.array([edge in used for edge in zip(first.tolist(), second.tolist(), strict=True)])
        score = np.array([heatmap[i, j] for i, j in zip(first, second, strict=True)])
        precision = average_precision_score(label, score)
        assert precision > 2 * label.mean()
        # Better than the obvious predictor, which is how short an edge is among its neighbours.
        assert precision > average_precision_score(label, -features[:, 1]) + 0.05


def test_heatmap_is_symmetric_sparse_and_fit_for_the_decoders(trained):
    points = np.random.default_rng(5).random((60, 2))
    heatmap = trained.predict_heatmap(points)
    assert isinstance(heatmap, scipy.sparse.csr_array)
    assert abs(heatmap - heatmap.T).max() == 0
    assert 0 <= heatmap.data.min() <= heatmap.data.max() <= 1
    assert heatmap.nnz < 60 * 20
    result = decode_heatmap(points, heatmap)
    assert result.cost <= read_costs(points).tour_cost(greedy_decode(points, heatmap)) + 1e-12


def test_most_edges_of_good_tours_are_candidates(trained):
    assert trained.candidate_recall_ > 0.99
    assert trained.n_instances_ == 12
    points, tours = instances(2, 30, seed=3)
    few = EdgeHeatmapClassifier(logistic(), k=1).fit(points, tours)
    many = EdgeHeatmapClassifier(logistic(), k=29).fit(points, tours)
    assert few.n_edges_ < many.n_edges_ == 2 * 30 * 29 // 2
    assert few.candidate_recall_ <= many.candidate_recall_ == 1.0


# The estimator contract.


def test_parameters_clone_and_repr():
    estimator = logistic()
    model = EdgeHeatmapClassifier(estimator, k=7, random_state=3)
    assert model.get_params(deep=False) == {"estimator": estimator, "k": 7, "random_state": 3}
    assert clone(model).get_params(deep=False)["k"] == 7
    assert model.set_params(k=5).k == 5
    assert model.set_params(estimator__logisticregression__C=2.0).estimator[-1].C == 2.0
    assert "EdgeHeatmapClassifier" in repr(model)


def test_fit_returns_self_and_leaves_the_estimator_alone():
    points, tours = instances(2, 20, seed=4)
    estimator = logistic()
    model = EdgeHeatmapClassifier(estimator)
    assert model.fit(points, tours) is model
    assert not hasattr(estimator[-1], "coef_")
    assert model.estimator_ is not estimator


def test_random_state_makes_it_reproducible():
    points, tours = instances(3, 20, seed=5)
    forest = RandomForestClassifier(n_estimators=5)
    first, second = (
        EdgeHeatmapClassifier(forest, random_state=7).fit(points, tours).predict_heatmap(points[0]) for _ in range(2)
    )
    assert abs(first - second).max() == 0
    assert forest.random_state is None
    own = EdgeHeatmapClassifier(RandomForestClassifier(n_estimators=5, random_state=1), random_state=7)
    assert own.fit(points, tours).estimator_.random_state == 1
    assert EdgeHeatmapClassifier(random_state=7).fit(points, tours).estimator_.random_state == 7


def test_default_estimator_is_gradient_boosting():
    points, tours = instances(2, 20, seed=6)
    assert isinstance(EdgeHeatmapClassifier().fit(points, tours).estimator_, HistGradientBoostingClassifier)


def test_lists_and_stacked_arrays_are_accepted():
    points, tours = instances(3, 20, seed=7)
    expected = EdgeHeatmapClassifier(logistic()).fit(points, tours).predict_heatmap(points[0])
    stacked = EdgeHeatmapClassifier(logistic()).fit(np.array(points), np.array(tours))
    lists = EdgeHeatmapClassifier(logistic()).fit([p.tolist() for p in points], [t.tolist() for t in tours])
    for model in (stacked, lists):
        assert abs(model.predict_heatmap(points[0].tolist()) - expected).max() < 1e-12


def test_not_fitted():
    with pytest.raises(NotFittedError):
        EdgeHeatmapClassifier().predict_heatmap(np.random.default_rng(0).random((5, 2)))


def test_bad_input():
    points, tours = instances(2, 12, seed=8)
    model = EdgeHeatmapClassifier(logistic())
    with pytest.raises(ValueError, match="equal length"):
        model.fit(points, tours[:1])
    with pytest.raises(ValueError, match="not be empty"):
        model.fit([], [])
    with pytest.raises(ValueError, match="list of coordinate arrays"):
        model.fit(points[0], tours)
    with pytest.raises(ValueError, match=r"y\[1\] must be a permutation"):
        model.fit(points, [tours[0], np.zeros(12, dtype=int)])
    with pytest.raises(ValueError, match=r"X\[1\] must have shape \(n, 2\)"):
        model.fit([points[0], np.zeros((12, 3))], tours)
    with pytest.raises(ValueError, match=r"X\[0\] must be a finite 2-D array"):
        model.fit([np.full((12, 2), np.nan), points[1]], tours)
    with pytest.raises(ValueError, match="use some of the candidate edges and leave out others"):
        model.fit([np.random.default_rng(0).random((3, 2))], [[0, 1, 2]])
    with pytest.raises(ValueError, match="k must be at least 1"):
        EdgeHeatmapClassifier(k=0).fit(points, tours)
    with pytest.raises(TypeError, match="k must be an integer"):
        EdgeHeatmapClassifier().set_params(k=2.5).fit(points, tours)
    with pytest.raises(TypeError, match="predict_proba"):
        EdgeHeatmapClassifier(Perceptron()).fit(points, tours)
    model.fit(points, tours)
    with pytest.raises(ValueError, match=r"X must have shape \(n, 2\) with n at least 3"):
        model.predict_heatmap([[0, 0], [1, 1]])
    with pytest.raises(ValueError, match="k must be at least 1"):
        edge_features(points[0], k=0)
