"""MomentMixtureClustering: scikit-learn's contract, the clusters it finds, and where it says that it did not."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_clustering, parametrize_with_checks

from assay.transport import MomentMixtureClustering, closest_mixture

pytest.importorskip("cvxpy")


@pytest.fixture(scope="module")
def line():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [120, 60, 90])
    return rng.normal(np.array([-4.0, 0.0, 5.0])[labels], 0.5)[:, None], labels


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(600, centers=[[-3, -3], [3, -2], [0, 3], [4, 4]], cluster_std=0.9, random_state=0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        MomentMixtureClustering(n_components=1, s_grid=(0.02,)),
        MomentMixtureClustering(n_components=1, order=3, s_grid=(0.04,), refine="em"),
    ]
)
def test_estimator_contract(estimator, check):
    check(estimator)


def test_clustering_contract_in_the_plane():
    check_clustering("MomentMixtureClustering", MomentMixtureClustering(s_grid=(0.04,)))


def test_four_blobs(blobs):
    X, y = blobs
    model = MomentMixtureClustering(s_grid=(0.02,)).fit(X)
    assert model.n_clusters_ == 4
    assert model.ranks_ == (1, 3, 4, 4)
    assert adjusted_rand_score(y, model.labels_) >= 0.98
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    centres = np.array([X[y == k].mean(axis=0) for k in range(4)])
    nearest = np.linalg.norm(model.means_[:, None] - centres[None], axis=2).min(axis=1)
    assert nearest.max() <= 0.5
    assert model.lower_bound_ <= model.value_ + 1e-9
    assert model.variance_ == pytest.approx(model.sweep_["variance"][0])
    assert all(c.holds for c in model.certificates_)
    # The same by the function, in the units of the data.
    result = closest_mixture(data=X, params={"variance": model.variance_}, order=3, upper_samples=0)
    assert result.value == pytest.approx(model.value_, rel=1e-4)
    np.testing.assert_allclose(result.params, model.result_.params * model._scale + model._shift, atol=1e-3)
    # EM starts from it.
    mixture = model.gaussian_mixture(random_state=0).fit(X)
    assert adjusted_rand_score(y, mixture.predict(X)) >= 0.98
    np.testing.assert_array_equal(mixture.means_init, model.means_)
    assert model.gaussian_mixture(covariance_type="spherical").covariance_type == "spherical"


@pytest.mark.parametrize("refine", [None, "em", "kmeans"])
def test_refinements(line, refine):
    X, y = line
    model = MomentMixtureClustering(refine=refine, s_grid=[0.02]).fit(X)
    assert model.n_clusters_ == 3
    assert adjusted_rand_score(y, model.labels_) == 1.0
    np.testing.assert_array_equal(model.fit_predict(X), model.labels_)
    if refine == "kmeans":
        with pytest.raises(AttributeError, match="predict_proba"):
            model.predict_proba(X)
        assert model.mixture_.n_iter_ <= 3
    else:
        posterior = model.predict_proba(X)
        np.testing.assert_allclose(posterior.sum(axis=1), 1.0)
        np.testing.assert_array_equal(posterior.argmax(axis=1), model.labels_)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.labels_)


def test_sweep_keeps_the_smallest_value(line):
    X, _ = line
    model = MomentMixtureClustering(s_grid=[0.3, 0.02, 0.01]).fit(X)
    flat = np.flatnonzero(model.sweep_["flat"])
    score = model.sweep_["value"] / model._scale**2 + 1e-3 * model.sweep_["s"]
    assert model.variance_ == pytest.approx(model.sweep_["variance"][flat[score[flat].argmin()]])
    assert (model.sweep_["seconds"] > 0).all()
    assert model.sweep_["largest_block"].tolist() == [15, 15, 15]
    assert set(model.sweep_) == {"s", "variance", "value", "flat", "n_clusters", "largest_block", "seconds"}


def test_more_features_are_reduced():
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = MomentMixtureClustering(order=2, s_grid=[0.05]).set_params(n_components=1, order=4)
    model.fit(X)
    assert model.feature_names_in_.tolist() == list(X.columns)
    assert model.means_.shape == (model.n_clusters_, 4)
    assert model.n_clusters_ in (2, 3)
    assert adjusted_rand_score(y, model.labels_) >= 0.5
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_pipeline_grid_search_and_clone(line):
    X, y = line
    pipeline = make_pipeline(StandardScaler(), MomentMixtureClustering(s_grid=[0.02]))
    assert adjusted_rand_score(y, pipeline.fit_predict(pd.DataFrame(X, columns=["a"]))) == 1.0
    search = GridSearchCV(
        MomentMixtureClustering(s_grid=[0.02]), {"order": [2, 4]}, scoring="adjusted_rand_score", cv=2
    )
    shuffled = np.random.default_rng(0).permutation(len(y))
    search.fit(X[shuffled], y[shuffled])
    assert search.best_params_["order"] == 4
    model = MomentMixtureClustering(order=3, s_grid=[0.1], refine="em", rank_tol=0.02)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(NotFittedError):
        model.gaussian_mixture()


def test_kinds_of_data(line):
    X, y = line
    labels = MomentMixtureClustering(s_grid=[0.02]).fit_predict(X)
    for moved in (X.astype(np.float32), 1e8 + X, 1e8 * X, 1e-8 * X, np.hstack([X, X]), np.repeat(X, 2, axis=0)):
        found = MomentMixtureClustering(n_components=1, s_grid=[0.02]).fit_predict(moved)
        assert adjusted_rand_score(np.repeat(labels, len(found) // len(labels)), found) == 1.0
    integers = np.round(10 * X).astype(int)
    assert adjusted_rand_score(y, MomentMixtureClustering(s_grid=[0.02]).fit_predict(integers)) == 1.0


def test_it_says_when_nothing_is_flat():
    X = np.random.default_rng(0).uniform(-1, 1, size=(200, 1))
    with pytest.warns(ConvergenceWarning, match="no flat solution of order 3"):
        model = MomentMixtureClustering(s_grid=[0.001], order=3, rank_tol=1e-6).fit(X)
    assert not model.converged_
    assert model.n_clusters_ == 1
    np.testing.assert_array_equal(model.labels_, 0)
    np.testing.assert_allclose(model.means_, X.mean(axis=0, keepdims=True))
    assert not all(c.holds for c in model.certificates_)


X5 = np.random.default_rng(0).normal(size=(20, 5))


@pytest.mark.parametrize(
    "options, X, error, message",
    [
        ({"n_components": None}, X5, ValueError, "n_components must be 1, 2 or 3"),
        ({"n_components": 4}, X5, ValueError, "n_components must be at most 3"),
        ({"n_components": 0}, X5, ValueError, "n_components must be at least 1"),
        ({"refine": "gmm"}, X5, ValueError, "refine must be one of"),
        ({"s_grid": []}, X5, ValueError, "s_grid must be a finite"),
        ({"s_grid": [0.1, -0.1]}, X5, ValueError, "s_grid must be positive"),
        ({"rank_tol": 0.0}, X5, ValueError, "rank_tol must be"),
        ({"trace_weight": -1.0}, X5, ValueError, "trace_weight must be"),
        ({"solver": "GUESS"}, X5, ValueError, "solver must be one of"),
        ({"order": 0}, X5, ValueError, "order must be at least 1"),
        ({"order": 7}, X5, ValueError, "at least 36 samples for order 7"),
        ({}, X5[:5], ValueError, "n_samples = 5"),
        ({}, X5[:1], ValueError, "minimum of 2 is required"),
        ({}, np.ones((20, 5)), ValueError, "at least 2 different samples"),
        ({}, np.ones((20, 1)), ValueError, "constant column, got column 0"),
        ({}, np.full((20, 2), np.nan), ValueError, "NaN"),
        ({"memory_limit": 1e4}, X5, MemoryError, "order 3 has a semidefinite matrix of 35 x 35"),
    ],
)
def test_bad_input(options, X, error, message):
    with pytest.raises(error, match=message):
        MomentMixtureClustering(**options).fit(X)


def test_no_warning_by_default(line):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MomentMixtureClustering(s_grid=[0.02]).fit(line[0])
