"""LinearCoreClassifier: the scikit-learn contract, the optimum it finds, and that its gap is one."""

import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from scipy.optimize import minimize, minimize_scalar
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.supervised.linear_core import linear_core, resolve_tail
from assay.supervised.linear_core_classifier import (
    LinearCoreClassifier,
    _joint_probabilities,
    _separate_probabilities,
)
from assay.supervised.linear_core_loss import LinearCoreLoss
from assay.supervised.linear_core_training import TrainingProblem

TAILS = ("exp", "quad", "gamma", "smoothstep")


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [LinearCoreClassifier(), LinearCoreClassifier(solver="nesterov", tail="gamma", tol=0.01, multi_class="joint")]
)
def test_estimator_contract(estimator, check):
    check(estimator)


def objective_of_loss(model, X, y, sample_weight=None):
    """The training objective from the torch loss and the public attributes alone."""
    weights = np.ones(len(y)) if sample_weight is None else sample_weight
    codes = torch.tensor(np.searchsorted(model.classes_, y))
    joint = len(model.classes_) > 2 and model.multi_class == "joint"
    loss = LinearCoreLoss(
        model.tau, model.sigma, model.tail, mode="multiclass" if joint else "binary", reduction="none"
    )
    scores = torch.tensor(model.decision_function(X))
    if scores.ndim == 2 and not joint:
        codes = torch.nn.functional.one_hot(codes)
    losses = loss(scores, codes).numpy()
    losses = losses if losses.ndim == 1 else losses.sum(axis=1)
    return 0.5 * np.sum(model.coef_**2) + model.C * weights @ losses


class TestOptimum:
    def test_known_value(self, cancer):
        model = LinearCoreClassifier(tol=1e-9).fit(*cancer)
        assert model.objective_ == pytest.approx(29.2674979, abs=2e-7)
        assert 0 <= model.gap_ <= 1e-9 * model.objective_

    @pytest.mark.parametrize("tail", TAILS)
    @pytest.mark.parametrize("fit_intercept", [True, False])
    @pytest.mark.parametrize(("data", "multi_class"), [("cancer", "ovr"), ("iris", "ovr"), ("iris", "joint")])
    def test_gap_bounds_the_distance_to_a_better_optimum(self, data, multi_class, fit_intercept, tail, request):
        X, y = request.getfixturevalue(data)
        settings = {"tail": tail, "fit_intercept": fit_intercept, "C": 0.5, "multi_class": multi_class}
        rough = LinearCoreClassifier(tol=0.05, **settings).fit(X, y)
        fine = LinearCoreClassifier(tol=1e-8, max_iter=3000, **settings).fit(X, y)
        for model in (rough, fine):
            assert objective_of_loss(model, X, y) == pytest.approx(model.objective_, rel=1e-12)
            assert all(certificate.holds for certificate in model.certificates_)
        assert fine.gap_ <= 1e-8 * fine.objective_
        assert -1e-9 <= rough.objective_ - fine.objective_ <= rough.gap_ + 1e-9
        if not fit_intercept:
            assert (fine.intercept_ == 0).all()
        if multi_class == "joint":
            np.testing.assert_allclose(fine.coef_.sum(axis=0), 0, atol=1e-12)
            np.testing.assert_allclose(fine.intercept_.sum(), 0, atol=1e-12)

    @pytest.mark.parametrize("data", ["cancer", "iris"])
    def test_dual_bound_holds_at_any_model(self, data, request):
        X, y = request.getfixturevalue(data)
        best = LinearCoreClassifier(tol=1e-8, multi_class="joint").fit(X, y).objective_
        n_classes = len(np.unique(y))
        problem = TrainingProblem(X, y, n_classes, np.ones(len(y)), 0.7, 0.3, resolve_tail("exp"), True)
        rng = np.random.default_rng(0)
        for scale in (0.0, 0.01, 0.1, 1.0, 10.0):
            shape = (problem.n_outputs, X.shape[1])
            primal, dual = problem.primal_dual(scale * rng.normal(size=shape), 5 * scale * rng.normal(size=shape[0]))
            assert dual <= best * (1 + 1e-7)
            assert primal >= best * (1 - 1e-7)

    @pytest.mark.parametrize("tail", TAILS)
    @pytest.mark.parametrize("n_classes", [2, 4])
    def test_gradient(self, tail, n_classes):
        rng = np.random.default_rng(1)
        X, y = rng.normal(size=(30, 3)) + 2.0, rng.integers(0, n_classes, 30)
        y[:n_classes] = np.arange(n_classes)
        problem = TrainingProblem(X, y, n_classes, rng.uniform(0.5, 2, 30), 0.7, 0.3, resolve_tail(tail), True)
        point = rng.normal(size=problem.size)
        value, gradient = problem.value_and_gradient(point)
        assert value == pytest.approx(problem.primal_dual(*problem.model(point))[0], rel=1e-12) or n_classes > 2
        for i, direction in enumerate(np.eye(problem.size)):
            above, below = (problem.value_and_gradient(point + s * 1e-6 * direction)[0] for s in (1, -1))
            assert gradient[i] == pytest.approx((above - below) / 2e-6, abs=1e-5)

    def test_coordinates_change_nothing_but_the_speed(self, cancer, monkeypatch):
        X, y = cancer
        fast = LinearCoreClassifier(tol=1e-8).fit(X, y)
        monkeypatch.setattr("assay.supervised.linear_core_training._FEW_FEATURES", 0)
        slow = LinearCoreClassifier(tol=1e-8).fit(X, y)
        assert fast.objective_ == pytest.approx(slow.objective_, rel=2e-8)
        np.testing.assert_allclose(fast.coef_, slow.coef_, atol=1e-3)
        assert fast.n_iter_ < slow.n_iter_

    def test_lipschitz_constant_is_one(self, cancer):
        X, y = cancer
        problem = TrainingProblem(X, y, 2, np.ones(len(y)), 0.7, 0.3, resolve_tail("exp"), True)
        constant = problem.lipschitz_constant()
        rng = np.random.default_rng(2)
        for _ in range(50):
            a, b = rng.normal(size=(2, problem.size))
            b = a + 0.01 * b
            change = problem.value_and_gradient(a)[1] - problem.value_and_gradient(b)[1]
            assert np.linalg.norm(change) <= constant * np.linalg.norm(a - b)
        transform = problem.mixing / problem.scale
        hessian = transform @ (np.eye(X.shape[1]) + X.T @ X / 0.3) @ transform.T
        curvature = np.linalg.eigvalsh(hessian)[-1]
        assert curvature <= constant <= 1.02 * max(curvature, 1.0)

    def test_agrees_with_a_general_solver(self):
        rng = np.random.default_rng(3)
        X, y = rng.normal(size=(40, 2)), rng.integers(0, 3, 40)

        def objective(v):
            coef, intercept = v[:6].reshape(3, 2), v[6:]
            scores = X @ coef.T + intercept
            losses = linear_core(scores.mean(axis=1, keepdims=True) - scores)
            return 0.5 * np.sum(coef**2) + losses.sum() - losses[np.arange(40), y].sum()

        reference = minimize(objective, np.zeros(9), method="BFGS", options={"gtol": 1e-7}).fun
        model = LinearCoreClassifier(tol=1e-8, multi_class="joint").fit(X, y)
        assert model.objective_ == pytest.approx(reference, rel=1e-7)

    def test_one_versus_rest_is_a_problem_per_class(self, iris):
        X, y = iris
        model = LinearCoreClassifier(tol=1e-8).fit(X, y)
        parts = [LinearCoreClassifier(tol=1e-8).fit(X, y == k) for k in range(3)]
        for k, part in enumerate(parts):
            np.testing.assert_array_equal(model.coef_[k], part.coef_[0])
            assert (model.history_["output"] == k).sum() == len(part.history_["gap"])
        assert model.objective_ == pytest.approx(sum(part.objective_ for part in parts))
        assert model.gap_ == pytest.approx(sum(part.gap_ for part in parts))

    def test_one_versus_rest_reaches_what_joint_scores_cannot(self, iris):
        X, y = iris
        separate, joint = (LinearCoreClassifier(multi_class=kind).fit(X, y).score(X, y) for kind in ("ovr", "joint"))
        assert separate > joint + 0.1

    @pytest.mark.parametrize("tail", TAILS)
    def test_gap_closes_below_what_a_line_search_resolves(self, cancer, tail):
        model = LinearCoreClassifier(tol=1e-11, tail=tail).fit(*cancer)
        assert model.gap_ <= 1e-11 * model.objective_

    def test_solvers_agree(self, iris):
        first = LinearCoreClassifier(tol=1e-8, multi_class="joint").fit(*iris)
        second = LinearCoreClassifier(tol=1e-8, multi_class="joint", solver="nesterov", max_iter=20_000).fit(*iris)
        assert first.objective_ == pytest.approx(second.objective_, rel=2e-8)
        np.testing.assert_allclose(first.coef_, second.coef_, atol=2e-3)

    def test_lbfgs_needs_few_evaluations(self, cancer):
        X, y = cancer
        model = LinearCoreClassifier(C=1 / (1e-3 * len(y)), tol=1e-6).fit(X, y)
        assert model.history_["evaluations"][-1] <= 100

    def test_history(self, cancer):
        model = LinearCoreClassifier().fit(*cancer)
        history = model.history_
        assert len({len(column) for column in history.values()}) == 1
        assert history["iteration"][0] == 0
        assert history["iteration"][-1] == model.n_iter_
        assert history["objective"][0] == pytest.approx(len(cancer[1]))  # the loss of margin 0 is 1
        assert history["gap"][-1] == pytest.approx(model.gap_)
        assert (np.diff(history["seconds"]) >= 0).all()


class TestScikitLearn:
    def test_data_frame_and_string_labels(self, cancer):
        X, y = cancer
        frame = pd.DataFrame(X, columns=[f"feature {i}" for i in range(X.shape[1])])
        names = pd.Series(np.where(y == 1, "benign", "malignant"))
        model = LinearCoreClassifier().fit(frame, names)
        assert list(model.feature_names_in_) == list(frame.columns)
        assert model.classes_.tolist() == ["benign", "malignant"]
        assert model.score(frame, names) > 0.97
        reference = LinearCoreClassifier().fit(X, y)
        np.testing.assert_array_equal(model.coef_, -reference.coef_)

    @pytest.mark.parametrize(("n_classes", "multi_class"), [(2, "ovr"), (3, "ovr"), (3, "joint")])
    def test_sample_weights_are_repetitions(self, n_classes, multi_class):
        rng = np.random.default_rng(4)
        X, y, times = rng.normal(size=(60, 4)), rng.integers(0, n_classes, 60), rng.integers(0, 4, 60)
        for class_weight in (None, "balanced"):
            settings = {"class_weight": class_weight, "tol": 1e-8, "multi_class": multi_class}
            weighted = LinearCoreClassifier(**settings).fit(X, y, sample_weight=times)
            repeated = LinearCoreClassifier(**settings).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
            np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-4)
            np.testing.assert_allclose(weighted.objective_, repeated.objective_, rtol=2e-8)

    def test_class_weights_are_sample_weights(self, iris):
        X, y = iris
        by_class = LinearCoreClassifier(class_weight={0: 1.0, 1: 3.0, 2: 0.5}).fit(X, y)
        by_sample = LinearCoreClassifier().fit(X, y, sample_weight=np.array([1.0, 3.0, 0.5])[y])
        np.testing.assert_allclose(by_class.coef_, by_sample.coef_, atol=1e-10)

    def test_balanced_weights_find_the_rare_class(self):
        X, y = make_classification(2000, weights=[0.95], flip_y=0.02, class_sep=0.5, random_state=0)
        recalls = [
            (LinearCoreClassifier(class_weight=weight).fit(X, y).predict(X)[y == 1] == 1).mean()
            for weight in (None, "balanced")
        ]
        assert recalls[1] > recalls[0] + 0.1

    def test_sparse_is_dense(self, iris):
        X, y = iris
        dense = LinearCoreClassifier(tol=1e-8).fit(X, y)
        for kind in (sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix):
            model = LinearCoreClassifier(tol=1e-8).fit(kind(X), y)
            np.testing.assert_allclose(model.coef_, dense.coef_, atol=1e-4)
            np.testing.assert_allclose(model.predict_proba(kind(X)), dense.predict_proba(X), atol=1e-3)

    def test_integer_and_single_precision_input(self):
        X, y = load_digits(n_class=3, return_X_y=True)
        reference = LinearCoreClassifier(C=0.01).fit(X, y)
        for cast in (X.astype(int), X.astype(np.float32), X.tolist()):
            np.testing.assert_allclose(LinearCoreClassifier(C=0.01).fit(cast, y).coef_, reference.coef_, atol=1e-8)

    def test_arguments_are_not_modified(self, iris):
        X, y = (part.copy() for part in iris)
        weights = np.ones(len(y))
        LinearCoreClassifier().fit(X, y, weights).predict_proba(X)
        np.testing.assert_array_equal(X, iris[0])
        np.testing.assert_array_equal(y, iris[1])
        assert (weights == 1).all()

    def test_pipelines_and_searches(self, cancer):
        X, y = cancer
        search = GridSearchCV(
            make_pipeline(StandardScaler(), LinearCoreClassifier()),
            {"linearcoreclassifier__C": [0.01, 1.0], "linearcoreclassifier__tail": ["exp", "gamma"]},
            cv=3,
        ).fit(X, y)
        assert search.best_score_ > 0.96
        assert CalibratedClassifierCV(LinearCoreClassifier(), cv=3).fit(X, y).score(X, y) > 0.96
        assert cross_val_score(LinearCoreClassifier(), X, y, scoring="roc_auc", cv=3).mean() > 0.98

    def test_pickle_and_clone(self, iris):
        model = LinearCoreClassifier(tau=0.5, sigma=0.5).fit(*iris)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict_proba(iris[0]), model.predict_proba(iris[0]))
        assert again.certificates_ == model.certificates_
        assert clone(model).get_params() == model.get_params()


class TestProbabilities:
    def test_known_minimiser(self):
        far, near = 0.7 + 0.3 * math.log(0.8 / 0.5), 0.7 + 0.3 * math.log(0.7 / 0.5)
        scores = np.array([[near + far, -near, -far]])
        np.testing.assert_allclose(scores, [[1.64194, -0.80094, -0.84100]], atol=1e-5)
        np.testing.assert_allclose(_joint_probabilities(scores, 0.7, 0.3, "exp"), [[0.5, 0.3, 0.2]], atol=1e-14)

    @pytest.mark.parametrize("tail", TAILS)
    @pytest.mark.parametrize("n_classes", [2, 3, 6])
    def test_joint_inverts_the_minimiser(self, n_classes, tail):
        rng = np.random.default_rng(5)
        loss = LinearCoreLoss(tail=tail)
        for _ in range(5):
            law = rng.dirichlet(np.full(n_classes, 3.0))

            def risk(point, law=law):
                scores = torch.tensor(point[None], requires_grad=True)
                value = loss(scores, torch.tensor(law[None]))
                value.backward()
                return value.item(), scores.grad[0].numpy()

            found = minimize(risk, np.zeros(n_classes), jac=True, method="BFGS", options={"gtol": 1e-10}).x
            ours = _joint_probabilities(found[None] - found.mean(), 0.7, 0.3, tail)
            np.testing.assert_allclose(ours[0], law, atol=2e-4)

    @pytest.mark.parametrize("tail", TAILS)
    def test_separate_inverts_the_minimisers(self, tail):
        law = np.array([0.45, 0.35, 0.2])
        scores = [
            minimize_scalar(
                lambda t, p=p: p * linear_core(t, tail=tail) + (1 - p) * linear_core(-t, tail=tail), bounds=(-4, 4)
            ).x
            for p in law
        ]
        np.testing.assert_allclose(_separate_probabilities(np.array([scores]), 0.7, 0.3, tail)[0], law, atol=1e-4)

    @pytest.mark.parametrize("tail", TAILS)
    @pytest.mark.parametrize("multi_class", ["ovr", "joint"])
    def test_are_probabilities_in_the_order_of_the_scores(self, multi_class, tail):
        rng = np.random.default_rng(6)
        for n_classes in (2, 3, 7):
            n_outputs = 1 if n_classes == 2 else n_classes
            model = LinearCoreClassifier(tail=tail, multi_class=multi_class)
            model.classes_ = np.arange(n_classes)
            # Features that are the scores themselves.
            model.coef_, model.intercept_, model.n_features_in_ = np.eye(n_outputs), np.zeros(n_outputs), n_outputs
            scores = rng.normal(size=(300, n_outputs)) * rng.choice([1e-8, 0.1, 1, 10, 1e4, 1e8], size=(300, 1))
            if multi_class == "joint" and n_classes > 2:
                scores -= scores.mean(axis=1, keepdims=True)
            law = model.predict_proba(scores)
            np.testing.assert_allclose(law.sum(axis=1), 1)
            assert (law >= 0).all()
            visible = (np.ptp(scores, axis=1) if n_classes > 2 else np.abs(scores[:, 0])) > 1e-6
            np.testing.assert_array_equal(law.argmax(axis=1)[visible], model.predict(scores)[visible])
            if n_classes > 2:
                order = np.argsort(scores, axis=1)
                assert (np.diff(np.take_along_axis(law, order, axis=1), axis=1) >= 0).all()

    def test_ties_are_even(self):
        for invert in (_joint_probabilities, _separate_probabilities):
            np.testing.assert_allclose(invert(np.zeros((1, 4)), 0.7, 0.3, "exp"), 0.25)
        np.testing.assert_allclose(_separate_probabilities(np.full((1, 2), -1e9), 0.7, 0.3, "quad"), 0.5)

    def test_recover_a_logistic_law(self):
        rng = np.random.default_rng(7)
        X = rng.normal(size=(20_000, 1))
        law = 1 / (1 + np.exp(-4 * X[:, 0]))
        y = (rng.random(20_000) < law).astype(int)
        error = np.abs(LinearCoreClassifier(C=100.0).fit(X, y).predict_proba(X)[:, 1] - law).mean()
        assert error < 0.15
        assert np.exp(LinearCoreClassifier().fit(X, y).predict_log_proba(X[:5])).sum(axis=1) == pytest.approx(1)


class TestDegenerateData:
    def test_constant_and_repeated_features(self, cancer):
        X, y = cancer
        odd = np.column_stack([X, np.full(len(y), 7.0), X[:, 0], np.zeros(len(y))])
        model = LinearCoreClassifier(tol=1e-10).fit(odd, y)
        assert model.certificates_[0].holds
        assert (model.coef_[0, [-3, -1]] == 0).all()
        assert model.coef_[0, 0] == pytest.approx(model.coef_[0, -2], abs=1e-5)

    @pytest.mark.parametrize("n_classes", [2, 3])
    def test_no_information(self, n_classes):
        y = np.repeat(np.arange(n_classes), 10)
        model = LinearCoreClassifier().fit(np.zeros((len(y), 2)), y)
        assert (model.coef_ == 0).all()
        np.testing.assert_allclose(model.predict_proba([[0.0, 0.0]]), 1 / n_classes, atol=1e-8)
        skewed = LinearCoreClassifier().fit(np.zeros((len(y) + 9, 2)), np.append(y, np.zeros(9, dtype=int)))
        assert (skewed.predict([[0.0, 0.0]]) == 0).all()

    @pytest.mark.parametrize("multi_class", ["ovr", "joint"])
    @pytest.mark.parametrize("solver", ["lbfgs", "nesterov"])
    def test_features_that_say_nothing(self, solver, multi_class):
        y = np.repeat([0, 1, 2], [3, 5, 9])
        for X in (np.ones((17, 4)), np.zeros((17, 1)), sparse.csr_array((17, 3))):
            model = LinearCoreClassifier(solver=solver, multi_class=multi_class).fit(X, y)
            assert model.certificates_[0].holds
            assert not model.coef_.any()
            assert (model.predict(X) == 2).all()

    @pytest.mark.parametrize("as_given", [np.asarray, sparse.csr_array])
    def test_features_whose_squares_overflow(self, as_given):
        X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
        with pytest.raises(ValueError, match="X, C and sample_weight must be so small"):
            LinearCoreClassifier().fit(as_given(1e300 * X), y)

    @pytest.mark.parametrize("strength", [1e-300, 1e-8, 1e8, 1e200])
    def test_extreme_penalties_warn_of_nothing_but_convergence(self, strength):
        X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LinearCoreClassifier(C=strength, max_iter=50).fit(X, y)
        assert model.certificates_[0].holds == (strength <= 1e8)

    @pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid", "ignore::sklearn.exceptions.ConvergenceWarning")
    def test_an_infinite_objective_is_not_certified(self):
        X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
        model = LinearCoreClassifier(C=1e306, sigma=1e8, max_iter=3).fit(X, y)
        assert not np.isfinite(model.objective_)
        assert not model.certificates_[0].holds

    def test_class_without_weight_is_never_predicted(self, iris):
        X, y = iris
        for multi_class in ("ovr", "joint"):
            model = LinearCoreClassifier(multi_class=multi_class).fit(X, y, sample_weight=y != 1)
            assert model.certificates_[0].holds
            assert set(model.predict(X)) == {0, 2}
            assert np.isfinite(model.predict_proba(X)).all()

    def test_two_samples(self):
        model = LinearCoreClassifier().fit([[-1], [1]], ["a", "b"])
        assert model.predict([[-3], [0.2]]).tolist() == ["a", "b"]
        assert model.certificates_[0].holds

    def test_duplicated_rows_are_weights(self, iris):
        X, y = iris
        twice = LinearCoreClassifier(C=0.5).fit(np.vstack([X, X]), np.append(y, y))
        assert twice.objective_ == pytest.approx(LinearCoreClassifier().fit(X, y).objective_, rel=2e-6)

    def test_tiny_features(self, cancer):
        X, y = cancer
        model = LinearCoreClassifier().fit(1e-8 * X, y)
        assert model.certificates_[0].holds
        # The penalty forbids the coefficients that would be needed: one prediction for all.
        assert np.unique(model.predict(1e-8 * X)).tolist() == [1]

    def test_large_features_are_the_unpenalised_model(self):
        rng = np.random.default_rng(8)
        X = rng.normal(size=(300, 3))
        y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
        free = LinearCoreClassifier(C=1e10, tol=1e-8).fit(X, y)
        for size in (1e4, 1e8):
            large = LinearCoreClassifier().fit(size * X + 3 * size, y)
            assert large.certificates_[0].holds
            np.testing.assert_allclose(large.coef_ * size, free.coef_, rtol=1e-3)

    def test_unscaled_features_converge(self):
        X, y = load_breast_cancer(return_X_y=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            model = LinearCoreClassifier().fit(X, y)
        reference = LogisticRegression(max_iter=20_000).fit(X, y)
        assert abs(model.score(X, y) - reference.score(X, y)) < 0.02


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "error"),
        [
            ({"C": 0.0}, ValueError),
            ({"C": "1"}, TypeError),
            ({"tau": -0.1}, ValueError),
            ({"sigma": 0.0}, ValueError),
            ({"tail": "cubic"}, ValueError),
            ({"solver": "saga"}, ValueError),
            ({"multi_class": "multinomial"}, ValueError),
            ({"tol": -1e-3}, ValueError),
            ({"tol": math.nan}, ValueError),
            ({"max_iter": 0}, ValueError),
            ({"max_iter": 1.5}, TypeError),
            ({"fit_intercept": "no"}, TypeError),
            ({"fit_intercept": None}, TypeError),
            ({"class_weight": {0: -1.0, 1: 1.0}}, ValueError),
        ],
    )
    def test_parameters(self, settings, error):
        # Annotations are checked in these tests, so wrong types may be caught before the estimator sees them.
        with pytest.raises(error, match=next(iter(settings))):
            LinearCoreClassifier(**settings).fit([[0.0], [1.0], [2.0]], [0, 1, 1])

    @pytest.mark.parametrize(
        ("X", "y", "weights", "message"),
        [
            ([[0.0], [math.nan]], [0, 1], None, "NaN"),
            ([[0.0], [math.inf]], [0, 1], None, "infinity"),
            ([[0.0], [1.0]], [0, 1, 1], None, "inconsistent"),
            ([[0.0], [1.0]], [1, 1], None, "at least 2 classes"),
            ([[0.0], [1.0]], [0.5, 1.7], None, "Unknown label type"),
            ([[0.0], [1.0]], [0, 1], [1.0, -1.0], "Negative"),
            ([[0.0], [1.0]], [0, 1], [1.0, 0.0], "sample_weight must be positive"),
            ([], [], None, "array"),
        ],
    )
    def test_data(self, X, y, weights, message):
        with pytest.raises(ValueError, match=message):
            LinearCoreClassifier().fit(X, y, sample_weight=weights)

    def test_warns_and_still_answers(self, cancer):
        with pytest.warns(ConvergenceWarning, match="did not reach tol=1e-06 in 3 iterations"):
            model = LinearCoreClassifier(max_iter=3).fit(*cancer)
        assert model.n_iter_ == 3
        assert not model.certificates_[0].holds
        assert model.score(*cancer) > 0.9
        # The gap is honest about it: the optimum is known.
        assert model.objective_ - model.gap_ <= 29.2674979 <= model.objective_
