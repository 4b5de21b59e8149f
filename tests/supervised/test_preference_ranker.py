"""PreferenceRanker: the scikit-learn contract, the three ways to say what is preferred, and its certificates."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.supervised import PreferenceRanker, certify_preference_fit


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    utility = X @ [1.0, -2.0, 0.5]
    pairs = rng.integers(80, size=(600, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    won = rng.random(len(pairs)) < 1 / (1 + np.exp(utility[pairs[:, 1]] - utility[pairs[:, 0]]))
    return X, utility, np.where(won[:, None], pairs, pairs[:, ::-1])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([PreferenceRanker(max_iter=5), PreferenceRanker((), psi="ramp", max_iter=5)])
def test_estimator_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("psi", ["logistic", "savage", "probit"])
def test_recovers_the_order(data, psi):
    X, utility, pairs = data
    model = PreferenceRanker((), psi=psi, max_iter=300, learning_rate=0.01, random_state=0).fit(X, pairs)
    assert np.corrcoef(model.predict(X), utility)[0, 1] > 0.95
    assert all(certificate.holds for certificate in model.certificates_)
    assert model.history_["loss"][-50:].mean() < model.history_["loss"][:50].mean()


def test_linear_scores_against_logistic_regression(data):
    from sklearn.linear_model import LogisticRegression

    X, _, pairs = data
    difference = X[pairs[:, 0]] - X[pairs[:, 1]]
    both, labels = np.r_[difference, -difference], np.r_[np.ones(len(pairs)), np.zeros(len(pairs))]
    expected = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(both, labels).coef_[0]
    model = PreferenceRanker((), alpha=0.0, max_iter=400, batch_size=600, learning_rate=0.02, random_state=0)
    np.testing.assert_allclose(model.fit(X, pairs).coefs_[0][:, 0], expected, atol=0.15)


def test_three_forms_agree(data):
    X, utility, pairs = data
    by_index = PreferenceRanker(max_iter=60, random_state=0).fit(X, pairs)
    as_rows = X[pairs]
    by_row = PreferenceRanker(max_iter=60, random_state=0).fit(as_rows)
    np.testing.assert_allclose(by_row.predict(X), by_index.predict(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(by_row.predict(as_rows), by_row.predict(X)[pairs])
    assert by_row.score(as_rows) == by_row.score(X, pairs)
    flipped = as_rows[:, ::-1].copy()
    by_label = PreferenceRanker(max_iter=60, random_state=0).fit(flipped, np.full(len(pairs), -1))
    np.testing.assert_array_equal(by_label.predict(X), by_row.predict(X))
    by_grade = PreferenceRanker(max_iter=200, random_state=0).fit(X, utility)
    assert by_grade.score(X, utility) > 0.97


def test_score_counts_ties_half(data):
    X, utility, _ = data
    model = PreferenceRanker(max_iter=5, random_state=0).fit(X, utility)
    scores = model.predict(X)
    index = np.array([(i, j) for i in range(80) for j in range(80) if utility[i] > utility[j]])
    assert model.score(X, utility) == pytest.approx(np.mean(scores[index[:, 0]] > scores[index[:, 1]]))
    assert model.score(np.zeros((2, 3)), [[0, 1]]) == 0.5


def test_grid_search_and_pipeline(data):
    X, utility, pairs = data
    search = GridSearchCV(PreferenceRanker(max_iter=25, random_state=0), {"psi": ["logistic", "savage"]}, cv=3)
    assert search.fit(X[pairs], np.ones(len(pairs))).best_score_ > 0.6
    grades = np.round(utility)
    assert search.fit(X, grades).best_params_["psi"] in ("logistic", "savage")
    piped = make_pipeline(StandardScaler(), PreferenceRanker(max_iter=60, random_state=0))
    assert cross_val_score(piped, X, grades, cv=3).mean() > 0.8
    assert piped.fit(X, pairs).score(X, pairs) > 0.7


def test_clone_pickle_and_repeatability(data):
    X, _, pairs = data
    model = PreferenceRanker(psi="savage", hidden=(4, 3), max_iter=30, random_state=0)
    assert clone(model).get_params() == model.get_params()
    first, second = clone(model).fit(X, pairs), clone(model).fit(X, pairs)
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(first)).predict(X), first.predict(X))


def test_data_frames(data):
    X, _, pairs = data
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = PreferenceRanker(max_iter=5, random_state=0).fit(frame, pairs)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))


def test_declared_choice_model_does_not_matter(data):
    X, _, pairs = data
    models = [PreferenceRanker(choice=c, max_iter=40, random_state=0).fit(X, pairs) for c in ("btl", "thurstone")]
    for one, other in zip(models[0].coefs_, models[1].coefs_, strict=True):
        np.testing.assert_array_equal(one, other)


def test_probabilities(data):
    X, _, pairs = data
    model = PreferenceRanker((), beta=0.5, max_iter=50, random_state=0).fit(X, pairs)
    scores = model.predict(X)
    expected = 1 / (1 + np.exp(-0.5 * (scores[pairs[:, 0]] - scores[pairs[:, 1]])))
    np.testing.assert_allclose(model.predict_preference(X, pairs), expected, rtol=1e-9)
    np.testing.assert_allclose(model.predict_preference(X[pairs]), expected, rtol=1e-9)
    declared = PreferenceRanker((), choice="thurstone", beta=0.5, max_iter=50, random_state=0).fit(X, pairs)
    assert np.abs(declared.predict_preference(X, pairs, implied=False) - expected).max() > 0.01


def test_certificates_notice_corrupted_scores(data):
    X, _, pairs = data
    model = PreferenceRanker((), max_iter=300, learning_rate=0.01, random_state=0).fit(X, pairs)
    fit = certify_preference_fit(model, pairs, X)
    assert fit.accuracy == model.score(X, pairs)
    assert fit.certificates[0].holds
    model.coefs_ = [6 * weight for weight in model.coefs_]
    assert not certify_preference_fit(model, pairs, X).certificates[0].holds
    with pytest.raises(ValueError, match="X and pairs"):
        certify_preference_fit(model, pairs)


def test_uncalibrated_loss_says_so(data):
    X, _, pairs = data
    model = PreferenceRanker(psi="ramp", max_iter=20, random_state=0).fit(X, pairs)
    assert model.loss_certificate_.verdict == "compliant, not calibrated"
    assert not all(certificate.holds for certificate in model.certificates_)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"hidden": 3}, TypeError, "hidden"),
        ({"hidden": (0,)}, ValueError, "hidden"),
        ({"psi": "dpo"}, ValueError, "psi"),
        ({"beta": 0.0}, ValueError, "beta"),
        ({"activation": "gelu"}, ValueError, "activation"),
        ({"alpha": -1}, ValueError, "alpha"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"clip": 0}, ValueError, "clip"),
        ({"random_state": "a"}, TypeError, "random_state"),
    ],
)
def test_bad_parameters(data, options, error, words):
    X, _, pairs = data
    with pytest.raises(error, match=words):
        PreferenceRanker(**options).fit(X, pairs)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([[0, 80]], r"indices in \[0, 80\), got 80"),
        ([[-1, 2]], "got -1"),
        ([[0.0, 1.0]], "integers"),
        ([[3, 3]], "two different items, got the same in pair 0"),
        (np.ones(80), "order at least one pair"),
        (np.ones(7), "one grade per item"),
        (np.empty((0, 2), dtype=int), "shape"),
    ],
)
def test_bad_pairs(data, y, words):
    with pytest.raises(ValueError, match=words):
        PreferenceRanker(max_iter=5).fit(data[0], y)


def test_bad_items(data):
    X, _, pairs = data
    with pytest.raises(ValueError, match=r"\(n_pairs, 2, n_features\)"):
        PreferenceRanker().fit(np.ones((4, 3, 2)))
    with pytest.raises(ValueError, match="single precision"):
        PreferenceRanker().fit(X * 1e300, pairs)
    model = PreferenceRanker(max_iter=5).fit(X, pairs)
    with pytest.raises(ValueError, match="features"):
        model.predict(np.ones((4, 2, 2)))
    for scale in (1e8, 1e-8):
        assert np.isfinite(PreferenceRanker(max_iter=5, random_state=0).fit(X * scale, pairs).predict(X * scale)).all()


def test_a_training_that_diverges_says_so(data):
    X, _, pairs = data
    with pytest.raises(ValueError, match="training loss must be finite"):
        PreferenceRanker((), psi="ipo", learning_rate=1e30, clip=None, max_iter=5, random_state=0).fit(X, pairs)


def test_defaults_of_torch_do_not_matter(data):
    X, _, pairs = data
    expected = PreferenceRanker(max_iter=5, random_state=0).fit(X, pairs).predict(X)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            again = PreferenceRanker(max_iter=5, random_state=0).fit(X, pairs).predict(X)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(again, expected)


def test_a_step_is_that_of_adam_on_the_clipped_gradient(data):
    X, _, pairs = data
    model = PreferenceRanker((), beta=0.7, margin=0.3, alpha=0.1, max_iter=1, batch_size=64, random_state=3)
    model.fit(X, pairs)
    rng = np.random.default_rng(3)
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    weight = (2 * torch.rand(3, 1, generator=generator) - 1) / 3**0.5
    bias = (2 * torch.rand(1, generator=generator) - 1) / 3**0.5
    batch = pairs[torch.randint(len(pairs), (64,), generator=generator).numpy()]
    difference = X[batch[:, 0]] - X[batch[:, 1]]
    start = weight[:, 0].numpy().astype(float)
    lead = 0.7 * difference @ start - 0.3
    gradient = -0.7 * (difference / (1 + np.exp(lead))[:, None]).mean(axis=0)
    gradient *= min(1.0, 1.0 / np.linalg.norm(gradient))
    gradient += 0.1 * start
    np.testing.assert_allclose(model.history_["loss"], [np.log1p(np.exp(-lead)).mean()], rtol=1e-5)
    np.testing.assert_allclose(model.coefs_[0][:, 0], start - 3e-3 * np.sign(gradient), rtol=1e-5)
    np.testing.assert_allclose(model.intercepts_[0], bias.numpy() - 3e-3 * np.sign(0.1 * bias.numpy()), rtol=1e-4)
