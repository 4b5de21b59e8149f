"""RobustClassifier: the scikit-learn contract, reproducibility, and that it is robust."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.transport import RobustClassifier

PER_SAMPLE = torch.nn.CrossEntropyLoss(reduction="none")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        RobustClassifier(tau=0.05, steps=1, particles=2, max_iter=10, learning_rate=0.1),
        RobustClassifier((8,), tau=0.05, flow="wrm", epsilon=0.0, steps=1, max_iter=10, learning_rate=0.1),
    ]
)
def test_estimator_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def fast(**options):
    return RobustClassifier(
        **({"tau": 0.1, "steps": 3, "max_iter": 10, "learning_rate": 0.05, "random_state": 0} | options)
    )


def attacked_accuracy(model, X, y, radius):
    """Ascent of the loss in a ball, written out."""
    start, labels = torch.tensor(X), torch.tensor(np.searchsorted(model.classes_, y))
    moved = start.clone()
    for _ in range(15):
        leaf = moved.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(PER_SAMPLE(model.model_(leaf), labels).sum(), leaf)
        moved = moved + radius / 6 * gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-12)
        away = moved - start
        moved = start + away * (radius / away.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
    return float((model.model_(moved).argmax(1) == labels).double().mean())


def test_it_is_more_robust_than_ordinary_training():
    X, y = load_digits(return_X_y=True)
    X, _, y, _ = train_test_split(X / 16, y, train_size=200, random_state=0)
    settings = {
        "max_iter": 8, "batch_size": 64, "random_state": 0, "tau": 0.5, "steps": 10, "learning_rate": 0.05,
    }  # fmt: skip
    robust = RobustClassifier(**settings).fit(X, y)
    plain = RobustClassifier(flow="erm", **settings).fit(X, y)
    assert attacked_accuracy(robust, X, y, 0.5) >= attacked_accuracy(plain, X, y, 0.5) + 0.1
    assert plain.score(X, y) - robust.score(X, y) <= 0.04


@pytest.mark.parametrize("data", [load_iris, load_wine])
def test_the_defaults_reach_the_worst_case_of_scaled_data(data):
    X, y = data(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    model = RobustClassifier(max_iter=10, learning_rate=0.03, random_state=0).fit(X, y)
    assert len(model.certificates_) == 5
    assert all(promise.holds for promise in model.certificates_), model.certificates_
    assert all(assumption.satisfied for promise in model.certificates_ for assumption in promise.assumptions)
    hurried = RobustClassifier(max_iter=10, learning_rate=0.03, random_state=0, tau=0.5, steps=2).fit(X, y)
    assert not hurried.certificates_[1].holds


@pytest.mark.parametrize("flow", ["wgf", "wfr", "svgd", "dual", "wrm", "pgd", "erm"])
def test_every_flow_trains(iris, flow):
    X, y = iris
    model = fast(flow=flow, radius=0.1, learning_rate=0.05).fit(X, y)
    assert model.score(X, y) > 0.8
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert len(model.certificates_) == 5


def test_exact_flow_needs_the_smoothness(iris):
    X, y = iris
    with pytest.raises(ValueError, match="smoothness must be given"):
        fast(flow="rgo").fit(X, y)
    assert fast(flow="rgo", tau=0.01, smoothness=20.0, max_iter=3).fit(X, y).score(X, y) > 0.3


def test_pipeline_grid_search_pandas_and_strings(iris):
    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    frame = pd.DataFrame(X, columns=list("abcd"))
    pipeline = make_pipeline(StandardScaler(), fast())
    search = GridSearchCV(pipeline, {"robustclassifier__tau": [0.01, 0.2]}, cv=2).fit(frame, names)
    assert search.best_score_ > 0.75
    model = fast().fit(frame, names)
    assert model.feature_names_in_.tolist() == list("abcd")
    assert set(model.predict(frame)) <= set(names)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c", "d"]])


def test_reproducible_and_free_of_the_global_state(iris):
    X, y = iris
    state = torch.get_rng_state()
    one, other = fast().fit(X, y), clone(fast()).fit(X, y)
    assert torch.equal(state, torch.get_rng_state())
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    np.testing.assert_array_equal(one.loss_curve_, other.loss_curve_)
    assert not np.array_equal(one.loss_curve_, fast(random_state=1).fit(X, y).loss_curve_)
    twin = pickle.loads(pickle.dumps(one))
    np.testing.assert_array_equal(one.decision_function(X), twin.decision_function(X))


def test_dtypes_and_binary(iris):
    X, y = iris
    single = fast().fit(X.astype(np.float32), y)
    assert next(single.model_.parameters()).dtype == torch.float32
    assert next(fast().fit(X, y).model_.parameters()).dtype == torch.float64
    binary = fast().fit(X, y == 0)
    scores = binary.decision_function(X)
    assert scores.shape == (150,)
    np.testing.assert_array_equal(binary.predict(X), scores > 0)
    np.testing.assert_allclose(binary.predict_proba(X)[:, 1], 1 / (1 + np.exp(-scores)))


def test_worst_case_is_worse(iris):
    X, y = iris
    model = fast(tau=0.3).fit(X, y)
    worst = model.worst_case(X, y)
    assert worst.points.shape == (150, 4, 4)
    with torch.no_grad():
        plain = float(PER_SAMPLE(model.model_(torch.tensor(X)), torch.tensor(y)).mean())
    assert worst.mean_loss > plain
    with pytest.raises(ValueError, match="classes of training"):
        model.worst_case(X[:2], [0, 7])
    with pytest.raises(ValueError, match="for each of the 2 samples"):
        model.worst_case(X[:2], [0])


def test_constant_duplicated_and_scaled_data(iris):
    X, y = iris
    assert fast().fit(np.hstack([X, np.ones((150, 1))]), y).score(np.hstack([X, np.ones((150, 1))]), y) > 0.7
    assert np.isfinite(fast().fit(np.repeat(X[:2], 20, axis=0), np.repeat([0, 1], 20)).loss_curve_).all()
    for scale in (1e8, 1e-8):  # tau in the units of the features
        model = fast(flow="wrm", tau=0.1 * scale**2, epsilon=0.0, max_iter=2).fit(X * scale, y)
        assert np.isfinite(model.loss_curve_).all()
    assert fast().fit(X.astype(int), y).score(X.astype(int), y) > 0.5


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tau": 0.0}, ValueError, "tau"),
        ({"epsilon": -1.0}, ValueError, "epsilon"),
        ({"flow": "adam"}, ValueError, "flow"),
        ({"hidden": 3}, TypeError, "hidden must be a tuple"),
        ({"hidden": (0,)}, ValueError, "hidden must be at least 1"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate"),
        ({"alpha": -1.0}, ValueError, "alpha"),
        ({"flow": "pgd"}, ValueError, "radius must be given"),
    ],
)
def test_bad_parameters(iris, options, error, message):
    with pytest.raises(error, match=message):
        fast(**options).fit(*iris)


def test_bad_data(iris):
    X, y = iris
    with pytest.raises(ValueError, match="at least 2 classes"):
        fast().fit(X, np.zeros(150))
    with pytest.raises(ValueError, match="NaN"):
        fast().fit(np.full_like(X, np.nan), y)
