"""HyperCleaningClassifier: the scikit-learn contract, and that it finds wrong labels."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.bilevel.hyper_cleaning import HyperCleaningClassifier, hold_out


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([HyperCleaningClassifier(max_iter=3, inner_steps=3)])
def test_estimator_contract(estimator, check):
    check(estimator)


def fast(**options):
    return HyperCleaningClassifier(**({"max_iter": 8, "inner_steps": 5, "random_state": 0} | options))


@pytest.fixture(scope="module")
def blobs():
    """Training data with a quarter of the labels wrong, and clean samples."""
    X, y = make_blobs(300, centers=3, random_state=0)
    wrong = y[:200].copy()
    wrong[::4] = (wrong[::4] + 1) % 3
    return X[:200], wrong, X[200:], y[200:]


def test_it_finds_wrong_labels_of_digits():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    rng = np.random.default_rng(0)
    given = y[:600].copy()
    redrawn = rng.random(600) < 0.5
    given[redrawn] = rng.integers(0, 10, redrawn.sum())
    model = fast(max_iter=25, inner_steps=10).fit(X[:600], given, X_val=X[600:900], y_val=y[600:900])
    assert np.mean((model.sample_weight_ > 0.5) == (given == y[:600])) > 0.85
    plain = LogisticRegression(max_iter=500).fit(X[:600], given)
    assert model.score(X[900:], y[900:]) > plain.score(X[900:], y[900:]) + 0.05
    assert model.outer_loss_curve_[-1] < 0.5 * model.outer_loss_curve_[0]


@pytest.mark.parametrize("fisher", ["kfac", "smoothed", "average", "window"])
def test_every_fisher_matrix(blobs, fisher):
    X, wrong, X_val, y_val = blobs
    model = fast(fisher=fisher).fit(X, wrong, X_val, y_val)
    assert model.score(X_val, y_val) > 0.85
    assert model.sample_weight_[::4].mean() < model.sample_weight_[1::4].mean() - 0.2
    assert model.report_.n_hvp == 1
    assert len(model.certificates_) == 3
    assert model.certificates_[1].holds


def test_held_out_rows(blobs):
    X, wrong, _, _ = blobs
    model = fast().fit(X, wrong, val_fraction=0.3)
    held = model.validation_indices_
    assert len(held) == pytest.approx(60, abs=2)
    assert np.isnan(model.sample_weight_[held]).all()
    assert np.isfinite(np.delete(model.sample_weight_, held)).all()
    codes = np.array([0, 0, 0, 0, 1, 1, 2])
    rows = hold_out(codes, 0.5, np.random.default_rng(0))
    assert np.bincount(codes[rows], minlength=3).tolist() == [2, 1, 0]  # none of a class of one
    with pytest.raises(ValueError, match="at least 2 samples of a class"):
        hold_out(np.array([0, 1, 2]), 0.5, np.random.default_rng(0))


def test_pipeline_grid_search_pandas_and_strings(blobs):
    X, wrong, _, _ = blobs
    names = np.array(["a", "b", "c"])[wrong]
    frame = pd.DataFrame(X, columns=["left", "right"])
    pipeline = make_pipeline(StandardScaler(), fast(max_iter=3))
    search = GridSearchCV(pipeline, {"hypercleaningclassifier__alpha": [1e-4, 1e-2]}, cv=2).fit(frame, names)
    assert search.best_score_ > 0.5
    model = fast(max_iter=3).fit(frame, names)
    assert model.feature_names_in_.tolist() == ["left", "right"]
    assert set(model.predict(frame)) <= set(names)
    with pytest.raises(ValueError, match="feature names"):
        model.fit(frame, names, X_val=frame[["right", "left"]], y_val=names)


def test_reproducible_and_free_of_the_global_state(blobs):
    X, wrong, X_val, y_val = blobs
    state = torch.get_rng_state()
    one, other = (clone(fast()).fit(X, wrong, X_val, y_val) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    np.testing.assert_array_equal(one.sample_weight_, other.sample_weight_)
    assert not np.array_equal(one.coef_, fast(random_state=1, batch_size=32).fit(X, wrong, X_val, y_val).coef_)
    twin = pickle.loads(pickle.dumps(one))
    np.testing.assert_array_equal(one.predict_proba(X), twin.predict_proba(X))
    np.testing.assert_allclose(one.predict_proba(X).sum(1), 1.0)


def test_binary_and_dtypes(blobs):
    X, wrong, X_val, y_val = blobs
    model = fast(max_iter=3).fit(X.astype(np.float32), wrong == 0, X_val, y_val == 0)
    assert model.coef_.dtype == np.float32
    scores = model.decision_function(X)
    np.testing.assert_array_equal(model.predict(X), scores > 0)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-6)
    huge = fast(max_iter=3).fit(X * 1e6, wrong)
    assert np.isfinite(huge.outer_loss_curve_).all()
    constant = fast(max_iter=3).fit(np.hstack([X, np.ones((200, 1))]), wrong)
    assert np.isfinite(constant.coef_).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fisher": "exact"}, ValueError, "fisher"),
        ({"alpha": -1.0}, ValueError, "alpha"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate"),
        ({"outer_learning_rate": 0.0}, ValueError, "outer_learning_rate"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"inner_steps": 0}, ValueError, "inner_steps"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"damping": -1.0}, ValueError, "damping"),
        ({"beta": 0.0}, ValueError, "beta"),
    ],
)
def test_bad_parameters(blobs, options, error, message):
    X, wrong, X_val, y_val = blobs
    with pytest.raises(error, match=message):
        fast(**options).fit(X, wrong, X_val, y_val)


def test_step_sizes_are_stable_with_any_ridge(blobs):
    X, wrong, X_val, y_val = blobs
    for alpha in (0.0, 1e6):
        model = fast(alpha=alpha).fit(X, wrong, X_val, y_val)
        assert np.abs(model.coef_).max() < 10
        assert model.outer_loss_curve_[-1] < 1.2 * np.log(3)


@pytest.mark.parametrize("size", [0.0, 1e-300])
def test_features_that_say_nothing(blobs, size):
    """Scores of balanced classes cancel up to rounding then."""
    X, _, _, _ = blobs
    model = fast(max_iter=3).fit(size * X, np.arange(200) % 2, size * X, np.arange(200) % 2)
    np.testing.assert_allclose(model.predict_proba(size * X), 0.5, atol=1e-3)


def test_sample_order(blobs):
    """With whole batches it does not matter, and every weight stays with its sample."""
    X, wrong, X_val, y_val = blobs
    order = np.random.default_rng(0).permutation(200)
    one = fast(max_iter=3, batch_size=1000).fit(X, wrong, X_val, y_val)
    other = fast(max_iter=3, batch_size=1000).fit(X[order], wrong[order], X_val, y_val)
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-12)
    np.testing.assert_allclose(one.sample_weight_[order], other.sample_weight_, atol=1e-12)


def test_modes_of_the_caller_do_not_matter(blobs):
    X, wrong, X_val, y_val = blobs
    expected = fast(max_iter=2).fit(X, wrong, X_val, y_val).coef_
    for mode in (torch.no_grad(), torch.inference_mode(), torch.device("meta"), torch.autocast("cpu", torch.bfloat16)):
        with mode:
            found = fast(max_iter=2).fit(X, wrong, X_val, y_val).coef_
        np.testing.assert_array_equal(found, expected)


def test_labels_of_validation_samples(blobs):
    """They may be a column, a series, of strings or objects, and need not be of all classes."""
    X, wrong, X_val, y_val = blobs
    names = np.array(["b", "a", "c"], dtype=object)
    expected = fast(max_iter=2).fit(X, names[wrong], X_val[y_val > 0], names[y_val[y_val > 0]])
    assert expected.classes_.tolist() == ["a", "b", "c"]
    found = fast(max_iter=2).fit(X, names[wrong], X_val[y_val > 0], pd.Series(names[y_val[y_val > 0]]))
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    with pytest.warns(DataConversionWarning):
        fast(max_iter=2).fit(X, wrong, X_val, y_val[:, None])


def test_bad_data(blobs):
    X, wrong, X_val, y_val = blobs
    for arguments, message in (
        ({"X_val": X_val}, "must be given together"),
        ({"y_val": y_val}, "must be given together"),
        ({"X_val": X_val, "y_val": y_val[:5]}, "for each of the 100 samples"),
        ({"X_val": X_val, "y_val": y_val + 7}, "one of the labels of y"),
        ({"X_val": X_val[:, :1], "y_val": y_val}, "1 features"),
        ({"val_fraction": 0.0}, "val_fraction must be greater than 0"),
        ({"val_fraction": 1.0}, "val_fraction must be less than 1"),
    ):
        with pytest.raises(ValueError, match=message):
            fast().fit(X, wrong, **arguments)
    for labels in (np.zeros(200), np.full(200, "a")):
        with pytest.raises(ValueError, match="at least 2 classes"):
            fast().fit(X, labels)
    with pytest.raises(ValueError, match="one of the labels of y"):
        fast().fit(X, wrong, X_val, y_val.astype(str))
    with pytest.raises(ValueError, match="X must have entries that can be squared"):
        fast().fit(1e300 * X, wrong)
    with pytest.raises(ValueError, match="NaN"):
        fast().fit(np.full_like(X, np.nan), wrong)
