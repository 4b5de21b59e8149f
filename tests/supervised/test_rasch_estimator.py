"""RaschPGEM: the scikit-learn contract, and what it says of users and cells that it has not seen."""

import copy
import math
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.data import load_lsat6
from assay.supervised import RaschPGEM, fit_rasch, rasch_fit_statistics

# These checks fit to numbers other than 0, 1 and nan, which are no responses and are refused.
REFUSED = dict.fromkeys(
    (
        "check_dict_unchanged",
        "check_dont_overwrite_parameters",
        "check_estimators_dtypes",
        "check_estimators_fit_returns_self",
        "check_estimators_overwrite_params",
        "check_f_contiguous_array_estimator",
        "check_fit2d_predict1d",
        "check_fit_check_is_fitted",
        "check_fit_idempotent",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_n_features_in",
        "check_n_features_in_after_fitting",
        "check_positive_only_tag_during_fit",
        "check_readonly_memmap_input",
        "check_transformer_data_not_an_array",
        "check_transformer_general",
        "check_transformer_preserve_dtypes",
    ),
    "the check fits to numbers that are neither right nor wrong answers",
)
# A pipeline fits the very objects in its parameter ``steps``, as these two checks forbid.
PIPELINE = dict.fromkeys(
    ("check_dont_overwrite_parameters", "check_estimators_overwrite_params"), "pipelines fit their steps in place"
)


def expected_failures(estimator):
    return REFUSED if isinstance(estimator, RaschPGEM) else PIPELINE


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [RaschPGEM(), make_pipeline(Binarizer(), RaschPGEM(update="coordinate"))],
    expected_failed_checks=expected_failures,
)
def test_estimator_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = (rng.random((120, 8)) < expit(rng.normal(size=(120, 1)) - rng.normal(size=8))).astype(float)
    X[rng.random(X.shape) < 0.2] = np.nan
    return X


@pytest.mark.parametrize("identification", ["prior", "center"])
def test_is_fit_rasch(table, identification):
    model = RaschPGEM(identification=identification).fit(table)
    fit = fit_rasch(table, identification=identification)
    np.testing.assert_array_equal(model.abilities_, fit.abilities)
    np.testing.assert_array_equal(model.se_difficulties_, fit.se_difficulties)
    np.testing.assert_array_equal(model.trace_, fit.history["log_posterior"])
    assert model.log_posterior_ == fit.log_posterior
    assert model.groups_ == fit.n_groups
    assert all(certificate.holds for certificate in model.certificates_)
    np.testing.assert_allclose(model.transform(table)[:, 0], model.abilities_, atol=1e-7)
    np.testing.assert_allclose(model.fit_transform(table), model.transform(table), atol=1e-12)


def test_known_value():
    assert RaschPGEM().fit(load_lsat6()).difficulties_[0] == pytest.approx(-2.59475, abs=6e-6)


class TestUnseen:
    def test_probabilities(self, table):
        model = RaschPGEM().fit(table)
        expected = expit(model.abilities_[3] - model.difficulties_[[0, 5]])
        np.testing.assert_array_equal(model.predict_proba(3, [0, 5]), expected)
        np.testing.assert_array_equal(model.predict_proba([3, 3], [0, 5]), expected)
        assert model.predict_proba(np.arange(4)[:, None], np.arange(8)).shape == (4, 8)
        whole = model.predict_proba(table)
        np.testing.assert_allclose(whole, expit(model.abilities_[:, None] - model.difficulties_), atol=1e-7)
        with pytest.raises(IndexError):
            model.predict_proba(500, 0)
        with pytest.raises(TypeError, match="integers"):
            model.predict_proba([0.5], [1])

    @pytest.mark.parametrize("identification", ["prior", "center"])
    def test_score_integrates_the_ability(self, table, identification):
        model = RaschPGEM(v_theta=0.7, identification=identification).fit(table)
        beta, row = fit_rasch(table, v_theta=0.7).difficulties, np.array([1, 0, np.nan, 1, 1, 0, np.nan, 0])
        seen = ~np.isnan(row)

        def density(theta):
            p = expit(theta - beta[seen])
            return np.prod(np.where(row[seen] == 1, p, 1 - p)) * norm.pdf(theta, scale=math.sqrt(0.7))

        expected = math.log(quad(density, -10, 10)[0]) / seen.sum()
        assert model.score(row[None]) == pytest.approx(expected, rel=1e-7)
        mixed = table[(np.nanmean(table, axis=1) > 0) & (np.nanmean(table, axis=1) < 1)]
        flat = RaschPGEM(v_theta=math.inf).fit(mixed)
        with pytest.raises(ValueError, match="v_theta"):
            flat.score(row[None])

    def test_held_out_cells(self, table):
        held = np.random.default_rng(1).random(table.shape) < 0.1
        train, test = np.where(held, np.nan, table), np.where(held, table, np.nan)
        model = RaschPGEM().fit(train)
        p = expit(model.abilities_[:, None] - model.difficulties_)
        expected = np.nanmean(np.where(np.isnan(test), np.nan, np.log(np.where(test == 1, p, 1 - p))))
        assert model.score_cells(test) == pytest.approx(expected)
        assert expected > math.log(0.5)
        filled = sparse.csr_array(np.nan_to_num(test))
        assert model.score_cells(filled, mask=~np.isnan(test)) == pytest.approx(expected)
        with pytest.raises(ValueError, match="users of fit"):
            model.score_cells(table[:5])

    def test_fit_statistics(self, table):
        model = RaschPGEM().fit(table)
        expected = rasch_fit_statistics(table, model.abilities_, model.difficulties_)
        np.testing.assert_allclose(model.fit_statistics(table).item_infit, expected.item_infit, atol=1e-7)
        assert model.fit_statistics(table[:7]).user_infit.shape == (7,)


class TestEcosystem:
    def test_grid_search(self, table):
        search = GridSearchCV(RaschPGEM(), {"v_theta": [1e-4, 1.0], "v_beta": [1.0, math.inf]}, cv=3).fit(table)
        assert search.best_params_["v_theta"] == 1.0

    def test_pipeline(self, table):
        y = np.nanmean(table, axis=1)
        assert make_pipeline(RaschPGEM(), LinearRegression()).fit(table, y).score(table, y) > 0.7

    def test_frames_and_names(self, table):
        frame = pd.DataFrame(table, columns=[f"q{i}" for i in range(8)])
        model = RaschPGEM().fit(frame)
        assert model.feature_names_in_.tolist() == list(frame.columns)
        assert model.n_features_in_ == 8
        assert model.get_feature_names_out().tolist() == ["ability"]
        assert list(model.set_output(transform="pandas").transform(frame).columns) == ["ability"]
        with pytest.raises(ValueError, match="feature names"):
            model.transform(frame[frame.columns[::-1]])

    def test_copies(self, table):
        model = RaschPGEM(v_theta="moment", accelerate=True).fit(table)
        for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            np.testing.assert_array_equal(copied.transform(table), model.transform(table))
        assert clone(model).get_params() == model.get_params()

    def test_errors(self, table):
        with pytest.raises(NotFittedError):
            RaschPGEM().transform(table)
        with pytest.raises(NotFittedError):
            RaschPGEM().predict_proba([0], [0])
        with pytest.raises(ValueError, match="8"):
            RaschPGEM().fit(table).transform(table[:, :5])
        with pytest.raises(TypeError, match="mask"):
            RaschPGEM().fit(sparse.csr_array(np.nan_to_num(table)))
