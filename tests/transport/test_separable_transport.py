"""Transport by coordinates: the closed form in one dimension, scikit-learn's contract, and limits that are told."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.transport import PowerCost, SeparableTransport


@parametrize_with_checks([SeparableTransport(n_grid=32)])
def test_estimator_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def gaussian():
    rng = np.random.default_rng(0)
    return rng.normal(size=(20000, 2)), rng.normal(size=(20000, 2)) * [2.0, 0.5]


def test_product_of_gaussians(gaussian):
    X, Y = gaussian
    transport = SeparableTransport().fit(X, Y)
    new = np.random.default_rng(1).normal(size=(5000, 2))
    truth = new * [2.0, 0.5]
    assert np.linalg.norm(transport.transform(new) - truth) / np.linalg.norm(truth) <= 0.03
    assert transport.dual_ == pytest.approx(1.25, rel=0.03)
    assert all(promise.holds for promise in transport.certificates_)


@pytest.mark.parametrize("cost, power", [("sqeuclidean", 2.0), ("power", 1.5), (PowerCost(3.0), 3.0)])
def test_convex_costs_match_ranks(cost, power):
    rng = np.random.default_rng(2)
    X, Y = rng.normal(size=(50, 2)), rng.exponential(size=(50, 2))
    transport = SeparableTransport(cost=cost).fit(X, Y)
    ranks = np.argsort(np.argsort(X, axis=0), axis=0)
    np.testing.assert_allclose(transport.transform(X), np.take_along_axis(np.sort(Y, axis=0), ranks, axis=0))
    best = (np.abs(np.sort(X, axis=0) - np.sort(Y, axis=0)) ** power).sum(1).mean()
    assert transport.dual_ == pytest.approx(best)
    assert transport.score(X, Y) == pytest.approx(best)
    assert transport.potential(X).shape == (50,)


def test_concave_costs_do_not():
    # of |x - y|^(1/2), mass that is in both distributions stays
    X, Y = np.array([[0.0], [1.0]]), np.array([[1.0], [2.0]])
    transport = SeparableTransport(cost=lambda x, y: (x - y).abs().sqrt().sum(-1)).fit(X, Y)
    assert transport.transform(X).tolist() == [[2.0], [1.0]]
    assert transport.dual_ == pytest.approx(np.sqrt(2) / 2)


def test_one_cost_for_each_coordinate():
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(40, 2)), rng.normal(size=(40, 2))
    both = SeparableTransport(cost=["sqeuclidean", PowerCost(1.5)]).fit(X, Y)
    parts = [SeparableTransport(cost=c).fit(X[:, [d]], Y[:, [d]]).dual_ for d, c in enumerate(["sqeuclidean", "power"])]
    assert both.dual_ == pytest.approx(sum(parts))
    with pytest.raises(ValueError, match="cost must be one cost or 2 of them, got 1"):
        SeparableTransport(cost=["power"]).fit(X, Y)


def test_is_a_lower_bound_that_dependence_keeps_from_being_attained():
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(4)
    X = rng.normal(size=(100, 2))
    Y = rng.normal(size=(100, 1)) * [1.0, -1.0]
    cost = ((X[:, None] - Y) ** 2).sum(-1)
    exact = cost[linear_sum_assignment(cost)].mean()
    transport = SeparableTransport().fit(X, Y)
    assert transport.dual_ < 0.7 * exact
    assert transport.certificates_[0].assumptions[0].satisfied is None


def test_corrupted_intercepts_score_less(gaussian):
    X, Y = (sample[:500] for sample in gaussian)
    transport = SeparableTransport(n_grid=64).fit(X, Y)
    good = transport.score(X, Y)
    transport.intercepts_[0] = transport.intercepts_[0] + np.linspace(0, 5, len(transport.intercepts_[0]))
    assert transport.score(X, Y) < good - 0.1


def test_grid(gaussian):
    X, Y = (sample[:2000] for sample in gaussian)
    transport = SeparableTransport(n_grid=50, radius=9.0).fit(X, Y)
    assert set(transport.grids_[0]) <= set(np.linspace(-9, 9, 50))
    assert len(transport.grids_[1]) < len(transport.grids_[0])  # points without mass are left out
    with pytest.raises(ValueError, match="radius must cover the targets"):
        SeparableTransport(radius=1.0).fit(X, Y)
    with pytest.raises(ValueError, match="n_grid must be at least 1"):
        SeparableTransport(n_grid=0).fit(X, Y)
    assert len(np.unique(SeparableTransport(n_grid=1).fit(X, Y).transform(X))) == 2


def test_in_a_pipeline_and_a_search():
    rng = np.random.default_rng(5)
    X, Y = rng.normal(size=(120, 2)), rng.normal(size=(120, 2)) + 3.0
    piped = make_pipeline(StandardScaler(), SeparableTransport()).fit(X, Y)
    assert abs(piped.transform(X).mean() - Y.mean()) < 0.05
    search = GridSearchCV(SeparableTransport(), {"n_grid": [2, 64]}, cv=3).fit(X, Y)
    assert search.best_params_ == {"n_grid": 64}
    assert clone(search.best_estimator_).n_grid == 64


def test_data_frames_keep_their_names():
    frame = pd.DataFrame(np.random.default_rng(6).normal(size=(30, 2)), columns=["height", "weight"])
    transport = SeparableTransport().set_output(transform="pandas").fit(frame, frame * 2)
    assert transport.feature_names_in_.tolist() == ["height", "weight"]
    assert transport.transform(frame).columns.tolist() == ["height", "weight"]


def test_constant_coordinates_single_samples_and_scale():
    X = np.random.default_rng(7).normal(size=(30, 2))
    X[:, 1] = 4.0
    Y = np.array([[1.0, 2.0]])
    np.testing.assert_array_equal(SeparableTransport().fit(X, Y).transform(X), np.repeat(Y, 30, axis=0))
    np.testing.assert_array_equal(SeparableTransport().fit(X[:1], Y).transform(X[:1]), Y)
    for scale in (1e-8, 1e8):
        Z = np.random.default_rng(8).normal(size=(30, 2))
        transport = SeparableTransport().fit(Z * scale, 2 * Z * scale)
        np.testing.assert_allclose(transport.transform(Z * scale), 2 * Z * scale)
        assert all(promise.holds for promise in transport.certificates_)


@pytest.mark.parametrize(
    "Y, error, message",
    [
        (None, ValueError, "requires y to be passed"),
        (np.zeros((5, 3)), ValueError, "y must have 2 columns"),
        ([[np.nan, 0.0]], ValueError, "y must be a finite"),
        (np.zeros((0, 2)), ValueError, "not empty"),
        ([["a", "b"]], TypeError, "y must be a finite"),
    ],
)
def test_bad_targets(Y, error, message):
    with pytest.raises(error, match=message):
        SeparableTransport().fit(np.zeros((4, 2)), Y)
    with pytest.raises(ValueError, match="cost must be finite"):
        SeparableTransport(cost=lambda x, y: (x - y).log().sum(-1)).fit(np.zeros((4, 2)), np.ones((4, 2)))
