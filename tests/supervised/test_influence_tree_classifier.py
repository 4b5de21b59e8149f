"""InfluenceTreeClassifier: the scikit-learn contract, distillation, the proxy of the influence, thresholds."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.supervised import InfluenceTreeClassifier, build_topdown_tree, distill, influences
from assay.supervised.boolean_influence import points_of
from assay.supervised.greedy_tree_growth import DataLeaves
from assay.supervised.influence_tree_classifier import data_certificate
from assay.supervised.threshold_features import ThresholdFeatures
from assay.validation import ConvergenceWarning


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(return_X_y=True, as_frame=True)


@pytest.fixture(scope="module")
def bits():
    rng = np.random.default_rng(0)
    return rng.integers(0, 2, (400, 6))


@pytest.mark.filterwarnings("ignore::assay.validation.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([InfluenceTreeClassifier(), InfluenceTreeClassifier(eps=0.2, binarize="quantile(3)")])
def test_estimator_contract(estimator, check):
    check(estimator)


class TestData:
    def test_proxy_equals_influence_of_monotone_functions(self):
        cube = points_of(np.arange(16), 4)
        for f in (lambda x: x.sum(axis=1) >= 2, lambda x: x[:, 0] | (x[:, 1] & x[:, 3]), lambda x: 1 - x[:, 2]):
            labels = np.asarray(f(cube)).astype(int)
            proxy = DataLeaves(cube, labels).evaluate(np.arange(16))[2]
            np.testing.assert_allclose(proxy, influences(f, 4), atol=1e-15)

    def test_proxy_is_a_lower_bound(self):
        rng = np.random.default_rng(1)
        cube = points_of(np.arange(32), 5)
        for _ in range(30):
            labels = rng.integers(0, 2, 32)
            proxy = DataLeaves(cube, labels).evaluate(np.arange(32))[2]
            assert (proxy <= influences(labels, 5) + 1e-15).all()

    def test_monotone_function_gets_the_exact_tree(self):
        cube = points_of(np.arange(32), 5)
        labels = (cube @ [3, 2, 2, 1, 1] >= 5).astype(int)
        exact = build_topdown_tree(labels, 5, 0.5, 0.0)
        fitted = InfluenceTreeClassifier(eps=0.0).fit(cube, labels)
        np.testing.assert_array_equal(fitted.tree_.feature, exact.feature)
        np.testing.assert_allclose(fitted.trace_, exact.trace, atol=1e-12)

    def test_parity_stalls(self):
        cube = points_of(np.arange(8), 3)
        with pytest.warns(ConvergenceWarning, match="no variable has any influence"):
            fitted = InfluenceTreeClassifier().fit(cube, cube.sum(axis=1) % 2)
        assert fitted.tree_.status == "stalled"
        assert not fitted.certificates_[0].holds

    def test_training_error(self, cancer):
        X, y = cancer
        for eps in (0.02, 0.05, 0.1):
            fitted = InfluenceTreeClassifier(eps=eps, binarize="quantile(4)").fit(X, y)
            assert 1 - fitted.score(X, y) == pytest.approx(fitted.error_bound_, abs=1e-12)
            assert fitted.error_bound_ <= eps
            assert fitted.certificates_[0].holds
            assert fitted.fidelity_ == pytest.approx(fitted.score(X, y))

    def test_certificate_notices_other_labels(self, bits):
        y = bits[:, 0] & bits[:, 1]
        fitted = InfluenceTreeClassifier().fit(bits, y)
        codes = fitted._bits.encode(bits.astype(float))
        assert data_certificate(fitted.tree_, codes, y).holds
        assert not data_certificate(fitted.tree_, codes, 1 - y).holds


class TestOracle:
    def test_forest(self, cancer):
        X, y = cancer
        X = X.gt(X.median()).astype(int).iloc[:, :12]
        forest = RandomForestClassifier(20, max_depth=4, random_state=0).fit(X, y)
        with pytest.warns(UserWarning, match="correlated"):
            tree = distill(forest, X, eps=0.05)
        assert tree.tree_.mode == "exact"
        cube = points_of(np.arange(1 << 12), 12)
        points = pd.DataFrame(cube, columns=X.columns)
        wrong = forest.predict(points) != tree.predict(points)
        weight = np.prod(np.where(cube == 1, tree.p_, 1 - tree.p_), axis=1)
        assert weight @ wrong == pytest.approx(tree.error_bound_, abs=1e-12)
        assert tree.error_bound_ <= 0.05
        assert tree.fidelity_ == pytest.approx(np.mean(forest.predict(X) == tree.predict(X)))
        assert all(certificate.holds for certificate in tree.certificates_)
        assert tree.certificates_[0].violated

    def test_numbers(self, cancer):
        X, y = cancer
        forest = RandomForestClassifier(10, max_depth=3, random_state=0).fit(X.iloc[:, :5], y)
        with pytest.warns(UserWarning, match="correlated"):
            tree = distill(forest, X.iloc[:, :5], eps=0.1)
        assert tree.error_bound_ <= 0.1
        assert tree.fidelity_ > 0.8
        assert "mean radius >" in tree.export_text()
        assert tree.export_graphviz().startswith("digraph")

    def test_function_and_frozen_model(self, bits):
        y = np.where(bits[:, 0] ^ bits[:, 4], "odd", "even")

        def oracle(x):
            return np.where(x[:, 0] != x[:, 4], "odd", "even")

        fitted = InfluenceTreeClassifier(oracle=oracle).fit(bits, y)
        assert fitted.n_leaves_ == 4
        assert fitted.score(bits, y) == 1.0
        assert fitted.certificates_[0].value == pytest.approx(0, abs=1e-12)
        frozen = FrozenEstimator(RandomForestClassifier(random_state=0).fit(bits, y))
        search = GridSearchCV(InfluenceTreeClassifier(oracle=frozen), {"eps": [0.3, 0.05]}, cv=3).fit(bits, y)
        assert search.best_params_ == {"eps": 0.05}

    @pytest.mark.parametrize("mode", ["sampled", "pairs"])
    def test_sampled(self, bits, mode):
        fitted = InfluenceTreeClassifier(eps=0.1, oracle=lambda x: x[:, 0] != x[:, 4], mode=mode, random_state=0).fit(
            bits, bits[:, 0] != bits[:, 4]
        )
        assert fitted.n_leaves_ == 4
        assert fitted.error_bound_ <= 0.1
        again = clone(fitted).fit(bits, bits[:, 0] != bits[:, 4])
        assert again.error_bound_ == fitted.error_bound_

    def test_p(self, bits):
        y = bits[:, 0] & bits[:, 1]
        p = np.full(6, 0.1)
        fitted = InfluenceTreeClassifier(eps=0.0, oracle=lambda x: x[:, 0] * x[:, 1], p=p).fit(bits, y)
        assert fitted.trace_[0, 1] == pytest.approx(0.01)

    def test_constant_features(self):
        X = np.column_stack([np.ones(20), np.tile([0, 1], 10)])
        constant = InfluenceTreeClassifier(oracle=lambda x: np.zeros(len(x), int)).fit(X[:, :1], np.zeros(20, int))
        assert constant.n_leaves_ == 1
        assert (constant.predict(X[:, :1]) == 0).all()
        both = InfluenceTreeClassifier(oracle=lambda x: (x[:, 0] * x[:, 1]).astype(int)).fit(X, X[:, 1].astype(int))
        assert both.n_leaves_ == 2
        assert both.tree_.n_features == 1

    @pytest.mark.filterwarnings("ignore:features are correlated")
    def test_model_that_says_one_word_on_the_data(self):
        class Model:
            classes_ = np.array(["no", "yes"])

            def predict(self, X):
                return np.where(X.all(axis=1), "yes", "no")

        tree = distill(Model(), [[0, 1], [1, 0], [0, 0]] * 3, eps=0.05)
        assert list(tree.classes_) == ["no", "yes"]
        assert tree.predict([[1, 1]])[0] == "yes"

    @pytest.mark.parametrize(
        ("settings", "error", "match"),
        [
            ({"oracle": 3}, TypeError, "oracle must be callable or have a method predict"),
            ({"oracle": lambda x: x}, ValueError, "one label per row"),
            ({"oracle": lambda x: np.full(len(x), 7)}, ValueError, "labels among"),
            ({"mode": "exact"}, ValueError, "oracle must be given"),
            ({"mode": "gini"}, ValueError, "mode"),
            ({"eps": 1.5}, ValueError, "eps"),
            ({"delta": 1.0}, ValueError, "delta"),
            ({"max_leaves": 0}, ValueError, "max_leaves"),
            ({"binarize": "mean"}, ValueError, "binarize must be"),
            ({"binarize": "quantile(0)"}, ValueError, "binarize must be"),
            ({"p": 1.0}, ValueError, "p must be strictly"),
            ({"p": [0.5]}, ValueError, "p must be a number or have length 6"),
            ({"oracle": lambda x: np.random.default_rng().integers(0, 2, len(x))}, ValueError, "deterministic"),
        ],
    )
    def test_bad_parameters(self, bits, settings, error, match):
        with pytest.raises(error, match=match):
            InfluenceTreeClassifier(**settings).fit(bits, bits[:, 0])

    def test_bad_data(self, bits):
        with pytest.raises(ValueError, match="Only binary classification"):
            InfluenceTreeClassifier().fit(*load_iris(return_X_y=True))
        with pytest.raises(ValueError, match="binarize is None"):
            InfluenceTreeClassifier(binarize=None).fit(bits + 0.5, bits[:, 0])
        with pytest.raises(ValueError, match="NaN"):
            InfluenceTreeClassifier().fit(np.where(bits == 1, np.nan, 0.0), bits[:, 0])
        with pytest.raises(ValueError, match="at most 20 bits"):
            InfluenceTreeClassifier(oracle=lambda x: x[:, 0], mode="exact").fit(
                np.random.default_rng(0).integers(0, 2, (50, 25)), np.tile([0, 1], 25)
            )
        with pytest.raises(TypeError, match="model must be callable"):
            distill(None, bits)
        with pytest.raises(ValueError, match="several thresholds"):
            InfluenceTreeClassifier(p=[0.5], binarize="quantile(2)").fit(np.arange(9.0)[:, None], [0, 1, 0] * 3)


class TestEcosystem:
    def test_pipeline_search_pickle(self, cancer):
        X, y = cancer
        model = make_pipeline(StandardScaler(), InfluenceTreeClassifier(binarize="quantile(3)"))
        search = GridSearchCV(model, {"influencetreeclassifier__eps": [0.03, 0.1]}, cv=3).fit(X, y)
        assert search.best_score_ > 0.88
        fitted = search.best_estimator_
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(again.predict(X), fitted.predict(X))

    def test_names_and_labels(self, cancer):
        X, y = cancer
        fitted = InfluenceTreeClassifier(eps=0.1).fit(X, np.where(y == 1, "benign", "malignant"))
        assert list(fitted.feature_names_in_) == list(X.columns)
        assert "class: malignant" in fitted.export_text()
        assert set(fitted.predict(X)) == {"benign", "malignant"}
        probabilities = fitted.predict_proba(X)
        np.testing.assert_array_equal(fitted.classes_[probabilities.argmax(axis=1)], fitted.predict(X))
        assert set(fitted.apply(X)) <= set(np.flatnonzero(fitted.tree_.feature < 0))

    @pytest.mark.parametrize("scale", [1e8, 1e-8, -1.0])
    def test_scale_does_not_matter(self, cancer, scale):
        X, y = cancer
        first, second = (InfluenceTreeClassifier(eps=0.08).fit(data, y) for data in (X, scale * X))
        assert second.n_leaves_ == first.n_leaves_
        if scale > 0:
            np.testing.assert_array_equal(first.predict(X), second.predict(scale * X))

    def test_small_and_repeated_data(self):
        one = InfluenceTreeClassifier().fit([[1.0, 2.0]], [5])
        assert one.predict([[0.0, 0.0]])[0] == 5
        assert one.predict_proba([[0.0, 0.0]]).tolist() == [[1.0]]
        X, y = np.array([[0, 1], [1, 0]] * 5), np.array([0, 1] * 5)
        assert InfluenceTreeClassifier().fit(X, y).score(X, y) == 1.0
        assert InfluenceTreeClassifier().fit(X.astype(np.float32), y).n_leaves_ == 2

    def test_no_warning_without_reason(self, bits):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            InfluenceTreeClassifier(oracle=lambda x: x[:, 0]).fit(bits, bits[:, 0])


class TestThresholds:
    def test_both_sides_are_occupied(self):
        rng = np.random.default_rng(0)
        for column in (rng.normal(size=30), np.array([0.0] * 29 + [1.0]), np.array([0.0] + [1.0] * 29)):
            thresholds = ThresholdFeatures(column[:, None], "median")
            assert 0 < thresholds.encode(column[:, None]).mean() < 1

    def test_quantiles(self):
        column = np.arange(100.0)[:, None]
        thresholds = ThresholdFeatures(column, "quantile(3)")
        np.testing.assert_allclose(thresholds.encode(column).mean(axis=0), [0.75, 0.5, 0.25])
        levels = thresholds.decode(np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=np.uint8))
        np.testing.assert_allclose(levels[:, 0], [12, 37, 62, 87])

    def test_neighbouring_floats(self):
        column = np.array([1.0, np.nextafter(1.0, 2.0)])[:, None]
        assert ThresholdFeatures(column, "median").encode(column).tolist() == [[0], [1]]

    def test_round_trip_of_bits(self):
        X = np.random.default_rng(2).normal(size=(50, 4))
        thresholds = ThresholdFeatures(X, "median")
        cube = points_of(np.arange(16), 4)
        np.testing.assert_array_equal(thresholds.encode(thresholds.decode(cube)), cube)


def test_odd_names_stay_on_their_line():
    X = pd.DataFrame([[0, 0], [1, 0], [0, 1], [1, 1]] * 3, columns=['say "hi"\\\nthere', "b\r\nc"])
    y = np.where(X.to_numpy().all(axis=1), 'ye"s\nindeed', "no\\")
    model = InfluenceTreeClassifier(0.0).fit(X, y)
    text = model.export_text()
    assert len(text.splitlines()) == model.n_leaves_ + len(model.tree_.feature) - 1
    assert 'class: ye"s indeed (reach' in text
    dot = model.export_graphviz()
    assert 'label="say \\"hi\\"\\\\ there <= 0.5\\nreach = 1' in dot
    assert len(dot.splitlines()) == 3 + len(model.tree_.feature) * 2 - 1
    with pytest.raises(ValueError, match="max_depth must be at least 0"):
        model.export_text(-1)
    with pytest.raises(ValueError, match="class_names must be two names"):
        model.tree_.export_text(["only one"])


def test_thresholds_are_written_with_the_digits_that_matter():
    X = np.array([[123456789.0, 1e-8], [123456790.0, 2e-8]] * 4)
    y = np.array([0, 1] * 4)
    text = InfluenceTreeClassifier(0.0).fit(X, y).export_text()
    threshold = float(text.splitlines()[0].split("<= ")[1])
    assert 123456789.0 <= threshold < 123456790.0
