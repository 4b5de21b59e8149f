"""QuantumBoostClassifier: the scikit-learn contract, known runs, the implicit measure, certificates that notice."""

import itertools
import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.supervised import QuantumBoostClassifier, bregman_project
from assay.supervised.lazy_boosting import boost
from assay.supervised.presorted_stump import PresortedFeatures, PresortedStump
from assay.supervised.quantum_boost import boosting_rounds
from assay.supervised.quantum_boost_certificate import boosting_certificates
from assay.supervised.weak_learners import check_weak_learner


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return train_test_split(X, y, test_size=0.4, random_state=0)


@pytest.fixture(scope="module")
def noisy(cancer):
    X, _, y, _ = cancer
    return X, np.where(np.random.default_rng(0).random(len(y)) < 0.1, 1 - y, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([QuantumBoostClassifier(n_rounds=40), PresortedStump()])
def test_estimator_contract(estimator, check):
    check(estimator)


class OnlyRight(ClassifierMixin, BaseEstimator):
    """Knows the labels of the training data."""

    def fit(self, X, y, sample_weight=None):
        self.classes_ = np.unique(y)
        self.known_ = {tuple(row): label for row, label in zip(X, y, strict=True)}
        return self

    def predict(self, X):
        return np.array([self.known_[tuple(row)] for row in X])


class OnlyWrong(OnlyRight):
    """Says the other label."""

    def predict(self, X):
        right = super().predict(X)
        return np.where(right == self.classes_[0], self.classes_[1], self.classes_[0])


def plain_boosting(X, y, epsilon, gamma, period, rounds):
    """The method word by word, with weights instead of logarithms and a stump by exhaustive search."""
    m = len(y)
    measure = np.full(m, epsilon)
    signs = np.where(y == 1, 1.0, -1.0)
    votes, agreements = np.zeros(m), []
    for t in range(1, rounds + 1):
        p = measure / measure.sum()
        best = (-1.0, None)
        for j in range(X.shape[1]):
            values = np.unique(X[:, j])
            for low, high in itertools.pairwise(values):
                side = np.where(X[:, j] > (low + high) / 2, 1.0, -1.0)
                for sign in (1, -1):
                    gain = p @ (signs * sign * side)
                    if gain > best[0] + 1e-12:
                        best = gain, sign * side
        right = best[1] == signs
        agreements.append(p @ right)
        votes += right
        measure = measure * np.where(right, 1 - gamma, 1.0)
        if t % period == 0:
            measure = bregman_project(measure, epsilon).measure
    return measure, np.array(agreements), votes


class TestRuns:
    @pytest.mark.parametrize("period", [1, 3, math.inf])
    def test_plain_version(self, period):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(40, 3))
        y = (X[:, 0] + X[:, 1] + 0.5 * rng.normal(size=40) > 0).astype(int)
        model = QuantumBoostClassifier(epsilon=0.2, gamma=0.15, lazy_period=period, n_rounds=25, early_stop=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
        measure, agreements, votes = plain_boosting(X, y, 0.2, 0.15, period, 25)
        np.testing.assert_allclose(model.edges_, agreements - 0.5, atol=1e-12)
        np.testing.assert_allclose(model.measure_, measure, rtol=1e-9)
        np.testing.assert_array_equal(model.predict(X) == y, 2 * votes > 25)

    def test_rounds(self):
        assert boosting_rounds(0.1, 0.1) == 461
        assert boosting_rounds(0.25, 0.2) == 70

    def test_known_run(self, cancer):
        X, X_test, y, y_test = cancer
        model = QuantumBoostClassifier(early_stop=False).fit(X, y)
        assert (model.n_rounds_, len(model.constants_), model.lazy_period_) == (461, 46, 10)
        assert model.projected_rounds_.tolist() == list(range(10, 461, 10))
        assert model.score(X, y) > 0.98
        assert model.score(X_test, y_test) > 0.96
        assert all(certificate.holds for certificate in model.certificates_)
        np.testing.assert_allclose(model.densities_, 0.1, rtol=1e-9)

    @pytest.mark.parametrize(("period", "projections"), [(1, 461), (5, 92), (20, 23), (math.inf, 0)])
    def test_periods(self, cancer, period, projections):
        X, _, y, _ = cancer
        model = QuantumBoostClassifier(lazy_period=period, early_stop=False).fit(X, y)
        assert len(model.constants_) == projections
        assert all(certificate.holds for certificate in model.certificates_)
        largest = model.history_["largest_weight"].max()
        assert largest == pytest.approx(model.certificates_[2].value)
        assert (largest <= 1 + 1e-9) == (period == 1)

    def test_early_stop(self, cancer):
        X, _, y, _ = cancer
        model = QuantumBoostClassifier().fit(X, y)
        assert model.n_rounds_ < 200
        potential = model.history_["potential"]
        assert (potential[:-1] <= math.log(10)).all()
        assert potential[-1] > math.log(10)

    def test_perfect_learner(self):
        # What is right everywhere changes no weight, and gains half of log(1 / (1 - gamma)) in each round.
        X, y = np.arange(20.0)[:, None], np.arange(20) > 9
        model = QuantumBoostClassifier(OnlyRight(), gamma=0.1, early_stop=False, n_rounds=3, lazy_period=math.inf)
        with pytest.warns(ConvergenceWarning):
            model.fit(X, y)
        np.testing.assert_allclose(model.history_["potential"], 0.5 * math.log(1 / 0.9) * np.arange(1, 4))
        np.testing.assert_allclose(model.measure_, model.measure_[0])
        assert model.score(X, y) == 1.0

    def test_learner_that_is_always_wrong(self):
        X, y = np.arange(20.0)[:, None], np.arange(20) > 9
        with pytest.warns(ConvergenceWarning, match="three edges in a row"):
            model = QuantumBoostClassifier(OnlyWrong()).fit(X, y)
        assert model.n_rounds_ == 3
        assert not model.certificate_.holds
        assert model.certificates_[1].violated

    def test_automatic_gamma(self):
        # Labels without a pattern leave little edge.
        rng = np.random.default_rng(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = QuantumBoostClassifier(gamma="auto", n_rounds=200)
            model.fit(rng.normal(size=(300, 2)), rng.integers(0, 2, 300))
        assert model.gamma_ == 0.2 * 0.5**model.n_restarts_
        assert model.lazy_period_ == math.ceil(1 / model.gamma_ - 1e-9)
        assert model.n_restarts_ >= 1

    def test_many_rounds_do_not_underflow(self):
        X, y = np.arange(30.0)[:, None], np.arange(30) > 14
        model = QuantumBoostClassifier(
            gamma=0.5, epsilon=0.5, n_rounds=2000, lazy_period=math.inf, early_stop=False
        ).fit(X, y)
        assert np.isfinite(model.edges_).all()
        assert model.score(X, y) == 1.0

    def test_ties_are_errors_and_the_first_class(self):
        X, y = np.array([[0.0], [1.0], [2.0], [3.0]] * 5), np.array([0, 1, 0, 1] * 5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = QuantumBoostClassifier(n_rounds=2, gamma=0.5, early_stop=False, epsilon=0.3).fit(X, y)
        votes = model.predict_proba(X)[:, 1]
        assert (votes == 0.5).any()
        assert (model.predict(X)[votes == 0.5] == 0).all()
        expected = np.mean((votes == 0.5) | (model.predict(X) != y))
        assert model.certificates_[1].value == pytest.approx(expected)


class TestMeasure:
    @pytest.mark.parametrize("engine", ["exact", "approx", "quantum_sim"])
    def test_implicit_measure_is_the_explicit_one(self, noisy, engine):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = QuantumBoostClassifier(projection=engine, n_rounds=60, random_state=0).fit(*noisy)
        np.testing.assert_allclose(model.measure(*noisy), model.measure_, rtol=1e-12)
        assert model.measure_.max() <= 1.0
        with pytest.raises(ValueError, match="y must have one of the labels"):
            model.measure(noisy[0], np.full(len(noisy[0]), 7))

    def test_simulated_densities(self, cancer):
        X, _, y, _ = cancer
        model = QuantumBoostClassifier(projection="quantum_sim", early_stop=False, random_state=0).fit(X, y)
        assert np.mean((model.densities_ >= 0.1) & (model.densities_ <= 0.12)) >= 0.9
        assert model.certificates_[0].holds
        queries = model.queries_
        assert len(queries.estimation_per_projection) == 46
        assert queries.quantum_estimation == sum(
            t * count for t, count in zip(model.projected_rounds_, queries.estimation_per_projection, strict=True)
        )
        assert queries.classical == 341 * 461 + 46 * 341 * 9
        assert queries.quantum_sampling == 0
        crossover = queries.crossover
        assert crossover * (461 + 46 * math.log2(crossover)) == pytest.approx(queries.quantum, rel=1e-6)

    def test_drawn_examples(self, cancer):
        X, _, y, _ = cancer
        settings = {"resample": 30, "random_state": 3, "epsilon": 0.3, "gamma": 0.3}
        first, second = (
            QuantumBoostClassifier(KNeighborsClassifier(1), **settings).fit(X[:80], y[:80]) for _ in range(2)
        )
        np.testing.assert_array_equal(first.edges_, second.edges_)
        assert first.certificate_.holds
        # a density of 0.3 and one hypothesis in the first round
        assert first.queries_.quantum_sampling >= 30 * math.ceil(math.pi / 4 / math.sqrt(0.3))
        one_class = QuantumBoostClassifier(LogisticRegression(), resample=1, random_state=0, n_rounds=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert one_class.fit(X, y).n_rounds_ <= 4


class TestWeights:
    def test_multiplicities(self, cancer):
        X, _, y, _ = cancer
        counts = np.random.default_rng(0).integers(1, 4, len(y))
        weighted = QuantumBoostClassifier(n_rounds=30, early_stop=False)
        repeated = clone(weighted)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            weighted.fit(X, y, sample_weight=counts)
            repeated.fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
        np.testing.assert_allclose(weighted.edges_, repeated.edges_, atol=1e-10)
        for one, other in zip(weighted.certificates_, repeated.certificates_, strict=True):
            assert one.value == pytest.approx(other.value, rel=1e-9)

    def test_zero_weights_are_left_out(self, cancer):
        X, _, y, _ = cancer
        used = np.arange(len(y)) % 3 > 0
        model = QuantumBoostClassifier().fit(X, y, sample_weight=used.astype(float))
        np.testing.assert_array_equal(model.edges_, QuantumBoostClassifier().fit(X[used], y[used]).edges_)
        assert np.isnan(model.measure_[~used]).all()

    def test_too_heavy(self, cancer):
        X, _, y, _ = cancer
        weights = np.ones(len(y))
        weights[0] = 1000.0
        with pytest.raises(ValueError, match="sample_weight must put at most"):
            QuantumBoostClassifier().fit(X, y, sample_weight=weights)


class TestCertificatesNotice:
    @pytest.fixture
    def run(self, cancer):
        X, _, y, _ = cancer
        model = QuantumBoostClassifier()
        task = model._task
        model.classes_ = np.array([0, 1])
        share = np.full(len(y), 1 / len(y))
        made = task(X, y, y == 1, share, 0.1, np.random.default_rng(0), False)
        return made, boost(made)

    def certify(self, run, **changes):
        task, done = run
        arguments = {
            "estimators": done.estimators,
            "constants": done.constants,
            "projected_rounds": done.projected_rounds,
            **changes,
        }
        return boosting_certificates(task, **arguments)

    def test_untouched(self, run):
        assert all(certificate.holds for certificate in self.certify(run))

    def test_other_learners(self, run):
        flipped = [clone(stump) for stump in run[1].estimators]
        for stump, original in zip(flipped, run[1].estimators, strict=True):
            stump.__dict__.update(original.__dict__)
            stump.left_, stump.right_ = original.right_, original.left_
        potential, error, *_, largest_density = self.certify(run, estimators=flipped)
        assert not potential.holds
        assert error.violated
        assert not largest_density.holds

    def test_other_constants(self, run):
        low = self.certify(run, constants=[constant - 0.1 for constant in run[1].constants])
        high = self.certify(run, constants=[constant + 0.1 for constant in run[1].constants])
        assert not low[4].holds
        assert not high[5].holds

    def test_missing_projections(self, run):
        heavy = self.certify((replace(run[0], period=1.0), run[1]), constants=[], projected_rounds=[])
        assert not heavy[2].holds

    def test_more_projections(self, run):
        twice = self.certify(run, constants=[0.0] * 50, projected_rounds=list(range(1, 51)))
        assert not twice[3].holds


class TestStump:
    def test_exhaustive_search(self):
        rng = np.random.default_rng(0)
        for _ in range(20):
            X = rng.integers(0, 5, (15, 3)).astype(float)
            signed = rng.normal(size=15)
            feature, threshold, left, right = PresortedFeatures(X).best(signed)
            answer = np.where(X[:, feature] > threshold, right, left)
            gain = signed @ np.where(answer, 1.0, -1.0)
            gains = [abs(signed.sum())]
            for j in range(3):
                for cut in np.unique(X[:, j]):
                    gains.append(abs(signed @ np.where(X[:, j] > cut, 1.0, -1.0)))
            assert gain == pytest.approx(max(gains), abs=1e-12)

    def test_constant_features(self):
        stump = PresortedStump().fit(np.ones((5, 2)), [0, 1, 1, 1, 0])
        assert stump.threshold_ == np.inf
        assert (stump.predict(np.zeros((3, 2))) == 1).all()

    def test_same_as_a_tree_when_one_stump_is_right(self):
        X, y = np.arange(10.0)[:, None], np.arange(10) > 6
        assert PresortedStump().fit(X, y).threshold_ == DecisionTreeClassifier(max_depth=1).fit(X, y).tree_.threshold[0]

    @pytest.mark.parametrize("scale", [1e8, 1e-8])
    def test_scale(self, cancer, scale):
        X, _, y, _ = cancer
        first, second = (QuantumBoostClassifier().fit(data, y) for data in (X, scale * X))
        np.testing.assert_allclose(first.edges_, second.edges_, atol=1e-12)


class TestEcosystem:
    def test_pipeline_search_pickle(self, cancer):
        X, X_test, y, y_test = cancer
        model = make_pipeline(StandardScaler(), QuantumBoostClassifier())
        grid = {"quantumboostclassifier__epsilon": [0.1, 0.3], "quantumboostclassifier__lazy_period": [1, "auto"]}
        search = GridSearchCV(model, grid, cv=3).fit(X, y)
        assert search.score(X_test, y_test) > 0.93
        again = pickle.loads(pickle.dumps(search.best_estimator_))
        np.testing.assert_array_equal(again.predict(X_test), search.predict(X_test))

    def test_one_versus_rest(self):
        X, y = load_iris(return_X_y=True)
        with pytest.raises(ValueError, match="Only binary classification"):
            QuantumBoostClassifier().fit(X, y)
        # One stump cannot tell the middle class from both others.
        model = OneVsRestClassifier(QuantumBoostClassifier(DecisionTreeClassifier(max_depth=2), gamma=0.2))
        assert model.fit(X, y).score(X, y) > 0.9

    def test_any_learner(self, cancer):
        X, _, y, _ = cancer
        names = np.where(y == 1, "benign", "malignant")
        for learner in (DecisionTreeClassifier(max_depth=1), GaussianNB()):
            model = QuantumBoostClassifier(learner, epsilon=0.2, random_state=0).fit(X, names)
            assert model.certificate_.holds
            assert model.score(X, names) > 0.8
            assert set(model.predict(X)) <= {"benign", "malignant"}

    def test_staged(self, cancer):
        X, X_test, y, _ = cancer
        model = QuantumBoostClassifier().fit(X, y)
        stages = list(model.staged_predict(X_test))
        assert len(stages) == model.n_rounds_
        np.testing.assert_array_equal(stages[-1], model.predict(X_test))
        errors = [np.mean(stage != y) for stage in model.staged_predict(X)]
        assert errors[-1] == pytest.approx(1 - model.score(X, y))

    def test_probabilities(self, cancer):
        X, _, y, _ = cancer
        model = QuantumBoostClassifier().fit(X, y)
        share = model.predict_proba(X)
        np.testing.assert_allclose(share.sum(axis=1), 1)
        np.testing.assert_allclose(model.decision_function(X), share[:, 1] - share[:, 0], atol=1e-12)
        np.testing.assert_array_equal(model.classes_[share.argmax(axis=1)], model.predict(X))


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "error", "match"),
        [
            ({"epsilon": 0.0}, ValueError, "epsilon"),
            ({"epsilon": 0.6}, ValueError, "epsilon"),
            ({"epsilon": 0.001}, ValueError, "epsilon must be at least the weight of one example"),
            ({"gamma": 0.0}, ValueError, "gamma"),
            ({"gamma": 0.6}, ValueError, "gamma"),
            ({"gamma": "guess"}, ValueError, "gamma"),
            ({"lazy_period": 0}, ValueError, "lazy_period"),
            ({"lazy_period": 2.5}, TypeError, "lazy_period"),
            ({"lazy_period": "never"}, ValueError, "lazy_period"),
            ({"projection": "newton"}, ValueError, "projection"),
            ({"delta": 0.0}, ValueError, "delta"),
            ({"n_rounds": 0}, ValueError, "n_rounds"),
            ({"resample": 0}, ValueError, "resample"),
            ({"early_stop": "yes"}, TypeError, "early_stop"),
            ({"estimator": "tree"}, ValueError, "estimator"),
            ({"estimator": KNeighborsClassifier()}, ValueError, "estimator must take sample_weight"),
            ({"estimator": 3}, TypeError, "estimator must have a method fit"),
            ({"estimator": StandardScaler()}, TypeError, "estimator must have a method predict"),
            ({"estimator": DecisionTreeClassifier}, TypeError, "estimator must be an object, got the class"),
        ],
    )
    def test_parameters(self, cancer, settings, error, match):
        X, _, y, _ = cancer
        with pytest.raises(error, match=match):
            QuantumBoostClassifier(**settings).fit(X, y)

    def test_learner_with_other_labels(self, cancer):
        class Odd(OnlyRight):
            def predict(self, X):
                return np.full(len(X), 7)

        X, _, y, _ = cancer
        with pytest.raises(ValueError, match="estimator must predict one of the labels"):
            QuantumBoostClassifier(Odd()).fit(X, y)

    def test_learner_is_checked_by_name(self):
        class NoParameters:
            def fit(self, X, y, sample_weight=None):
                return self

            def predict(self, X):
                return X

        with pytest.raises(TypeError, match="estimator must have a method get_params"):
            check_weak_learner(NoParameters())

    def test_data(self, cancer):
        X, _, y, _ = cancer
        with pytest.raises(ValueError, match="y must have 2 classes"):
            QuantumBoostClassifier().fit(X, np.ones(len(y)))
        with pytest.raises(ValueError, match="NaN"):
            QuantumBoostClassifier().fit(np.where(X > 20, np.nan, X), y)
        with pytest.raises(ValueError, match="positive weight"):
            QuantumBoostClassifier().fit(X, y, sample_weight=(y == 1).astype(float))


def test_huge_and_tiny_weights_are_shares():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X[:, 0] + 0.3 * X[:, 1] > 0
    plain = QuantumBoostClassifier().fit(X, y)
    for weight in (1e308, 1e-320):
        model = QuantumBoostClassifier().fit(X, y, sample_weight=np.full(60, weight))
        np.testing.assert_allclose(model.edges_, plain.edges_, atol=1e-12)


def test_infinite_period_of_numpy():
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = QuantumBoostClassifier(lazy_period=np.float32(np.inf)).fit(X, X[:, 0] > 0)
    assert len(model.constants_) == 0
