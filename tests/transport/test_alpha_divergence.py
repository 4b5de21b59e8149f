"""AlphaDivergence: the scikit-learn contract, values in closed form, the lower bound, and its certificates."""

import dataclasses
import json
import math
import pickle
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay import ConvergenceWarning
from assay.transport import AlphaDivergence, AmariDivergence, alpha_divergence
from assay.transport.alpha_divergence import critic_certificates
from assay.transport.divergence_bounds import bernstein_lower_bound, choose_clip, evaluate_held_out
from assay.transport.divergence_critic import Sample
from assay.transport.divergence_error_terms import armijo_rate, divergence_error_terms


def normal_value(alpha, m, variance, d):
    """Between N(0, I) and N(m, variance I) in d dimensions."""
    if alpha == 1:
        return d * 0.5 * (1 / variance + m**2 / variance - 1 + math.log(variance))
    if alpha == 0:
        return d * 0.5 * (variance + m**2 - 1 - math.log(variance))
    scale = alpha * variance + 1 - alpha
    one = variance ** (alpha / 2) / math.sqrt(scale) * math.exp(-alpha * (1 - alpha) * m**2 / (2 * scale))
    return (one**d - 1) / (alpha * (alpha - 1))


def samples(seed, n, m=1.0, variance=1.5, d=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(m, math.sqrt(variance), size=(n, d))


class JensenShannon:
    def p_integrand(self, g):
        odds = np.exp(-np.abs(g))
        share = np.where(g > 0, odds, 1.0) / (1.0 + odds)
        return math.log(2.0) - np.logaddexp(0.0, -g), share, -share * (1.0 - share)

    def q_integrand(self, g):
        value, slope, curvature = self.p_integrand(-np.asarray(g))
        return value, -slope, curvature


class ChiSquared:
    def p_integrand(self, g):
        return g, np.ones_like(g), np.zeros_like(g)

    def q_integrand(self, g):
        return -g - 0.25 * g**2, -1.0 - 0.5 * g, np.full_like(g, -0.5)


@parametrize_with_checks([AlphaDivergence(n_features=16, epochs=2)])
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_formula_of_normal_laws():
    for alpha, value in ((0.3, 0.4547299398), (0.5, 0.4173997539), (0.8, 0.3827353830)):
        assert normal_value(alpha, 1, 1.5, 1) == pytest.approx(value, abs=1e-9)
    assert normal_value(0.5, 0.5, 1, 5) == pytest.approx(0.5786186907, abs=1e-9)
    assert normal_value(0.5, 0.5, 1.44, 2) == pytest.approx(0.2620567, abs=1e-7)
    assert normal_value(1 - 1e-7, 1, 1.5, 1) == pytest.approx(normal_value(1, 1, 1.5, 1), rel=1e-5)
    assert normal_value(1e-7, 1, 1.5, 1) == pytest.approx(normal_value(0, 1, 1.5, 1), rel=1e-5)


@pytest.mark.parametrize("alpha", [0, 0.3, 0.5, 0.8, 1])
def test_values_in_closed_form(alpha):
    exact = normal_value(alpha, 1, 1.5, 1)
    result = alpha_divergence(*samples(0, 6000), alpha, radius=8.0, n_features=128, epochs=2, rng=0)
    assert abs(result.value - exact) <= 4 * result.se + 0.01
    assert 0.0 < result.lower_bound <= exact
    assert result.lower_bound < result.normal_lower_bound < result.value
    assert result.certified
    assert result.fw_gap <= 1e-6


def test_a_ball_too_small_costs_value():
    P, Q = samples(1, 1500)
    values = [alpha_divergence(P, Q, radius=r, epochs=0, n_features=64, rng=0).train_value for r in (0.1, 0.5, 2, 8)]
    assert values == sorted(values)
    assert values[0] < 0.5 * values[-1]


def test_identical_laws():
    rng = np.random.default_rng(2)
    result = alpha_divergence(rng.normal(size=(1400, 3)), rng.normal(size=(1400, 3)), rng=0)
    assert result.fw_gap <= 1e-6
    assert 0.0 <= result.train_value < 0.05
    assert abs(result.value) < 0.05
    assert result.lower_bound < 0.0


def test_the_critic_is_the_log_ratio():
    P, Q = samples(3, 8000, m=1.0, variance=1.0)
    estimator = AlphaDivergence(radius=8.0, n_features=128, epochs=2, random_state=0).fit(P, Q)
    x = np.linspace(-1, 2, 13)[:, None]
    np.testing.assert_allclose(estimator.log_ratio(x), 0.5 - x[:, 0], atol=0.25)


def test_limits_are_the_limits():
    P, Q = samples(4, 600)
    options = {"n_features": 32, "epochs": 0, "rng": 0}
    for end, near in ((0, 1e-8), (1, 1 - 1e-8)):
        one, other = alpha_divergence(P, Q, end, **options), alpha_divergence(P, Q, near, **options)
        assert one.train_value == pytest.approx(other.train_value, rel=1e-5)


def test_swapping_the_laws():
    P, Q = samples(5, 400)
    options = {"holdout": 0.0, "epochs": 0, "n_features": 300, "length_scale": 2.0, "radius": 1.0}
    one = alpha_divergence(P, Q, 0.3, rng=0, **options).train_value
    other = alpha_divergence(Q, P, 0.7, rng=0, **options).train_value
    # The problem is the same with the critic's sign changed; only the features are centred and drawn alike.
    assert one == pytest.approx(other, rel=1e-5)


def test_two_samples_and_labels_are_the_same():
    P, Q = samples(6, 200, d=2)
    X, y = np.concatenate([P, Q]), np.repeat(["new", "before"], 200)
    options = {"n_features": 16, "epochs": 1, "random_state": 0}
    by_samples = AlphaDivergence(**options).fit(P, Q)
    by_labels = AlphaDivergence(**options).fit(X, y)
    assert by_samples.value_ == by_labels.value_
    assert by_labels.classes_.tolist() == ["before", "new"]
    assert by_labels.score(X, y) == by_samples.score(P, Q)
    assert not hasattr(by_labels.fit(P, Q), "classes_")
    one_dimensional = AlphaDivergence(**options).fit(P[:, :1], Q[:, :1])
    assert not hasattr(one_dimensional, "classes_")
    with pytest.warns(DataConversionWarning):
        assert AlphaDivergence(**options).fit(X, y[:, None]).value_ == by_labels.value_


def test_pandas_pipeline_grid_search_clone_and_pickle():
    P, Q = samples(7, 150, d=2)
    frame = pd.DataFrame(np.concatenate([P, Q]), columns=["a", "b"])
    y = np.repeat([1, 0], 150)
    estimator = AlphaDivergence(n_features=16, epochs=1, random_state=0)
    fitted = clone(estimator).fit(frame, y)
    assert fitted.feature_names_in_.tolist() == ["a", "b"]
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.log_ratio(frame), fitted.log_ratio(frame))
    both = clone(estimator).fit(frame[:150], frame[150:])
    assert both.value_ == fitted.value_
    search = GridSearchCV(
        make_pipeline(StandardScaler(), estimator), {"alphadivergence__radius": [0.1, 5.0]}, cv=StratifiedKFold(3)
    ).fit(frame, y)
    assert search.best_params_["alphadivergence__radius"] == 5.0
    assert search.best_score_ > 0.1


def test_reproducible_and_kind_to_its_input():
    P, Q = samples(8, 100, d=2)
    copies = P.copy(), Q.copy()
    for state in (0, np.random.RandomState(0)):
        one = AlphaDivergence(n_features=16, epochs=2, random_state=state).fit(P, Q)
    np.testing.assert_array_equal(P, copies[0])
    np.testing.assert_array_equal(Q, copies[1])
    first, second = (alpha_divergence(P, Q, n_features=16, epochs=2, rng=3) for _ in range(2))
    assert first.value == second.value
    assert first.lower_bound == second.lower_bound
    assert math.isfinite(one.value_)


@pytest.mark.parametrize(
    "change", [lambda X: X.astype(np.float32), lambda X: 1e8 * X, lambda X: 1e-8 * X, lambda X: X + 1e6]
)
def test_units_and_precision_do_not_matter(change):
    P, Q = samples(9, 500, d=2)
    options = {"n_features": 32, "epochs": 1, "rng": 0}
    plain, changed = alpha_divergence(P, Q, **options), alpha_divergence(change(P), change(Q), **options)
    assert changed.value == pytest.approx(plain.value, abs=1e-4)
    assert changed.certified


def test_integers_duplicates_constant_columns_and_unbalanced_samples():
    rng = np.random.default_rng(10)
    P, Q = rng.integers(0, 4, size=(2000, 2)), rng.integers(1, 5, size=(60, 2))
    P[:, 1] = Q[:, 1] = 7
    result = alpha_divergence(P, Q, n_features=64, epochs=3, rng=0)
    assert result.certified
    assert result.train_value > 0.3
    duplicated = alpha_divergence(np.repeat(P, 2, axis=0), Q, n_features=16, epochs=1, rng=0)
    assert math.isfinite(duplicated.value)


@pytest.mark.parametrize(
    "options",
    [
        {"polish": "none"},
        {"polish": "gradient", "tol": 1.0},
        {"average": True},
        {"spectrum": "laplace", "orthogonal": True},
        {"band": None, "spectrum": "matern32"},
        {"radius": "cv"},
        {"batch_size": 10_000},
        {"holdout": 0.0},
        {"length_scale": 1.5},
    ],
)
def test_options(options):
    P, Q = samples(11, 300, d=2)
    result = alpha_divergence(P, Q, **{"n_features": 32, "epochs": 5, "rng": 0, **options})
    assert result.train_value == pytest.approx(normal_value(0.5, 1, 1.5, 2), rel=0.4)
    assert result.certificates[1].holds
    if "holdout" in options:
        assert result.value == result.train_value
        assert math.isnan(result.lower_bound)
        assert math.isnan(result.se)
        assert len(result.certificates) == 2
    if "radius" in options:
        assert result.radius in (1, 2, 5, 10, 20)
    assert set(result.history["phase"]) <= {"armijo", "newton", "gradient"}
    assert set(result.to_dict()) >= {"value", "lower_bound", "fw_gap", "holdout", "se", "curvature", "history"}
    json.dumps({k: v for k, v in result.to_dict().items() if k != "critic"}, allow_nan=False)
    assert len(repr(result).splitlines()) < 20


def test_no_polish_is_not_certified():
    P, Q = samples(12, 300, d=2)
    assert not alpha_divergence(P, Q, polish="none", epochs=1, rng=0).certified
    with pytest.warns(ConvergenceWarning, match="did not reach tol"):
        assert not alpha_divergence(P, Q, max_iter=0, epochs=1, rng=0).certified
    with pytest.warns(SklearnConvergenceWarning):
        AlphaDivergence(max_iter=0, epochs=1).fit(P, Q)


def test_the_same_certified_value_with_and_without_stochastic_epochs():
    P, Q = samples(20, 900, d=3)
    options = {"n_features": 48, "rng": 0, "tol": 1e-9}
    plain, page = alpha_divergence(P, Q, **options), alpha_divergence(P, Q, epochs=20, **options)
    assert set(plain.history["phase"]) == {"newton"}
    assert np.count_nonzero(page.history["phase"] == "armijo") == 20
    assert plain.certified
    assert page.certified
    # Each is within its gap of the best.
    assert plain.train_value == pytest.approx(page.train_value, abs=2e-9)
    assert plain.value == pytest.approx(page.value, abs=1e-3)
    for polish in ("none", "gradient"):
        other = alpha_divergence(P, Q, polish=polish, **options)
        assert np.count_nonzero(other.history["phase"] == "armijo") == 20


def test_history_and_callback_tell_the_same():
    P, Q = samples(21, 300, d=2)
    for options in ({"epochs": 3}, {"epochs": 2, "polish": "gradient"}, {"epochs": 2, "polish": "none"}):
        rows = []
        result = alpha_divergence(P, Q, n_features=16, rng=0, callback=rows.append, **options)
        assert set(result.history) == {"iteration", "seconds", "phase", "value", "fw_gap", "step_size"}
        for name, column in result.history.items():
            np.testing.assert_array_equal(column, [row[name] for row in rows])
        assert (np.diff(result.history["seconds"]) >= 0.0).all()
        assert result.history["seconds"][0] >= 0.0
        if options.get("polish") != "none":
            assert result.history["fw_gap"][-1] == pytest.approx(result.fw_gap, rel=1e-6, abs=1e-12)
            assert result.history["value"][-1] == pytest.approx(result.train_value, rel=1e-12)

    def stop(row):
        raise KeyboardInterrupt

    estimator = AlphaDivergence(n_features=16, callback=stop)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(P, Q)
    assert not hasattr(estimator, "critic_")


def test_memory_does_not_grow_with_more_than_a_row_number_a_point():
    peaks = []
    for n in (20_000, 60_000):
        P, Q = samples(22, n)
        estimator = AlphaDivergence(n_features=16, random_state=0, max_iter=2, tol=10.0)
        estimator.fit(P[:1000], Q[:1000])
        tracemalloc.start()
        estimator.fit(P, Q)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Row numbers of 4 bytes of both samples, twice over while one is being shuffled.
    assert peaks[1] - peaks[0] <= 4 * 3.2 * 40_000


class TestOwnDivergence:
    def test_jensen_shannon(self):
        P, Q = samples(13, 3000, m=20.0)
        estimator = AlphaDivergence(divergence=JensenShannon(), n_features=64, epochs=1, random_state=0).fit(P, Q)
        # Laws without overlap: 2 log 2.
        assert 1.2 < estimator.lower_bound_ < estimator.value_ <= 2 * math.log(2)
        assert all(c.holds for c in estimator.certificates_)
        assert estimator.log_ratio(P[:5]).shape == (5,)

    def test_chi_squared_has_another_critic(self):
        P, Q = samples(14, 4000, m=0.5, variance=1.0)
        estimator = AlphaDivergence(divergence=ChiSquared(), n_features=64, epochs=1, random_state=0).fit(P, Q)
        assert estimator.value_ == pytest.approx(math.exp(0.25) - 1, abs=0.1)
        with pytest.raises(ValueError, match="log_ratio must be of a divergence whose best critic is log p/q"):
            estimator.log_ratio(P)

    def test_a_wrong_one_is_named(self):
        with pytest.raises(TypeError, match="divergence must have the methods p_integrand and q_integrand; str has no"):
            AlphaDivergence(divergence="kl").fit(*samples(0, 20))


class TestLowerBound:
    def test_it_is_the_formula(self):
        rng = np.random.default_rng(15)
        g, h = rng.normal(size=50), rng.normal(size=80)
        divergence, clip, delta = AmariDivergence(0.3), 1.2, 0.1
        total = 0.0
        for terms, span in (
            ((np.exp(-0.7 * np.clip(g, -1.2, 1.2)) - 1) / -0.7, (math.exp(0.84) - math.exp(-0.84)) / 0.7),
            (-(np.exp(0.3 * np.clip(h, -1.2, 1.2)) - 1) / 0.3, (math.exp(0.36) - math.exp(-0.36)) / 0.3),
        ):
            n, log_term = len(terms), math.log(4 / delta)
            total += terms.mean() - math.sqrt(2 * terms.var(ddof=1) * log_term / n)
            total -= 7 * span * log_term / (3 * (n - 1))
        assert bernstein_lower_bound(divergence, g, h, clip, 1 - delta) == pytest.approx(total, rel=1e-12)

    @pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
    def test_it_is_valid_for_any_critic(self, alpha):
        # Critics that have nothing to do with the laws: the bound may be low, but not above the divergence.
        exact = normal_value(alpha, 1, 1, 1)
        for seed in range(30):
            P, Q = samples(seed, 300, variance=1.0)
            critic = np.random.default_rng(seed).normal(size=2)
            bound = bernstein_lower_bound(
                AmariDivergence(alpha), *(X[:, 0] * critic[0] + critic[1] for X in (P, Q)), 2.0, 0.95
            )
            assert bound <= exact

    def test_it_holds_in_all_of_many_runs(self):
        exact = normal_value(0.5, 0.5, 1, 2)
        bounds = [
            alpha_divergence(*samples(s, 400, 0.5, 1.0, 2), n_features=32, epochs=0, rng=s).lower_bound
            for s in range(20)
        ]
        assert max(bounds) <= exact

    def test_the_clip_is_the_best_of_the_quantiles(self):
        rng = np.random.default_rng(16)
        scores = rng.normal(size=500), 3 * rng.normal(size=500)
        divergence = AmariDivergence(0.5)
        clip = choose_clip(divergence, *scores, 0.95, (200, 200))
        chosen = bernstein_lower_bound(divergence, *scores, clip, 0.95, (200, 200))
        for quantile in (0.5, 0.9, 0.999):
            other = np.quantile(np.abs(np.concatenate(scores)), quantile)
            assert chosen >= bernstein_lower_bound(divergence, *scores, float(other), 0.95, (200, 200))

    def test_parts_give_what_the_whole_gives(self):
        rng = np.random.default_rng(23)
        g, h = 2.0 + rng.normal(size=100), rng.normal(size=77)
        divergence = AmariDivergence(0.4)
        whole = evaluate_held_out(divergence, g, h, 1.5, 0.9)
        parts = evaluate_held_out(divergence, iter(np.array_split(g, 7)), iter([h[:1], h[1:1], h[1:]]), 1.5, 0.9)
        assert dataclasses.astuple(parts) == pytest.approx(dataclasses.astuple(whole), rel=1e-13)
        terms = divergence.p_integrand(g)[0], divergence.q_integrand(h)[0]
        assert whole.value == pytest.approx(sum(t.mean() for t in terms), rel=1e-13)
        assert whole.standard_error == pytest.approx(math.sqrt(sum(t.var(ddof=1) / len(t) for t in terms)), rel=1e-13)

    def test_single_points_have_no_bound(self):
        outcome = evaluate_held_out(AmariDivergence(0.5), np.zeros(1), np.zeros(5), 1.0, 0.95)
        assert outcome.lower_bound == -math.inf
        assert math.isnan(outcome.standard_error)


class TestCertificates:
    @pytest.fixture
    def fitted(self):
        P, Q = samples(17, 500, d=2)
        return P, Q, alpha_divergence(P, Q, n_features=32, epochs=1, holdout=0.0, rng=0)

    def evaluate(self, fitted, critic, lower_bound=-1.0):
        P, Q, _ = fitted
        return critic_certificates(
            AmariDivergence(0.5),
            critic,
            train=(Sample.whole(P), Sample.whole(Q)),
            held_out=(Sample.whole(P), Sample.whole(Q)),
            lower_bound=lower_bound,
            clip=1.0,
            confidence=0.95,
            tol=1e-6,
        )

    def test_the_answer_holds(self, fitted):
        gap, ball, bound = self.evaluate(fitted, fitted[2].critic)
        assert gap.holds
        assert ball.holds
        assert bound.holds
        # The gap of the solver is of the whole sample in another order.
        assert gap.value == pytest.approx(fitted[2].fw_gap, abs=1e-10)

    def test_corrupted_critics_are_noticed(self, fitted):
        critic = fitted[2].critic
        moved = dataclasses.replace(critic, weights=critic.weights + 0.01)
        assert not self.evaluate(fitted, moved)[0].holds
        long = dataclasses.replace(
            critic, weights=critic.weights * (1.1 * critic.radius / np.linalg.norm(critic.weights))
        )
        assert not self.evaluate(fitted, long)[1].holds
        assert not self.evaluate(fitted, dataclasses.replace(critic, constant=5.1))[1].holds
        broken = dataclasses.replace(critic, constant=math.nan)
        assert not any(c.holds for c in self.evaluate(fitted, broken))

    def test_a_lower_bound_that_is_too_high_is_noticed(self, fitted):
        value = self.evaluate(fitted, fitted[2].critic)[2].value
        assert self.evaluate(fitted, fitted[2].critic, value)[2].holds
        assert not self.evaluate(fitted, fitted[2].critic, value + 1e-6)[2].holds


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"alpha": 1.5}, ValueError, r"alpha must be in \[0, 1\], where 1 is KL\(P\|Q\) and 0 is KL\(Q\|P\), got 1.5"),
        ({"alpha": -0.1}, ValueError, "alpha must be in"),
        ({"radius": 0.0}, ValueError, "radius must be greater than 0"),
        ({"radius": -1}, ValueError, "radius must be greater than 0"),
        ({"radius": "auto"}, ValueError, "radius must be a positive number or 'cv'"),
        ({"radius": 60.0}, ValueError, r"radius \* sqrt\(2\) \+ offset must be at most 80"),
        ({"offset": -1.0}, ValueError, "offset must be at least 0"),
        ({"length_scale": 0}, ValueError, "length_scale must be greater than 0"),
        ({"length_scale": "mean"}, ValueError, "length_scale must be a positive number or 'median'"),
        ({"band": 0}, ValueError, "band must be greater than 0"),
        ({"n_features": 0}, ValueError, "n_features must be at least 1"),
        ({"n_features": 2.5}, TypeError, "n_features must be an integer"),
        ({"holdout": 1.0}, ValueError, "holdout must be less than 1"),
        ({"confidence": 1.0}, ValueError, "confidence must be less than 1"),
        ({"polish": "lbfgs"}, ValueError, "polish must be one of"),
        ({"spectrum": "rbf"}, ValueError, "spectrum must be one of"),
        ({"orthogonal": 1}, TypeError, "orthogonal must be True or False"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"epochs": -1}, ValueError, "epochs must be at least 0"),
        ({"epochs": "all"}, ValueError, "epochs must be an integer or 'auto'"),
        ({"epochs": 2.5}, TypeError, "epochs must be an integer"),
        ({"callback": 3}, TypeError, "callback must be callable"),
        ({"tol": 0}, ValueError, "tol must be greater than 0"),
        ({"rng": "seed"}, TypeError, "rng must be"),
        ({"rngs": 1}, TypeError, "options must be parameters of AlphaDivergence, got rngs"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        alpha_divergence(*samples(0, 20), **options)


@pytest.mark.parametrize(
    "P, Q, message",
    [
        (np.zeros((20, 2)), np.zeros((20, 3)), "Q must have as many columns as P"),
        (np.arange(9.0), np.arange(20.0), "at least 10 points of each law, got n_samples = 9 of P"),
        (np.arange(20.0), np.arange(9.0), "at least 10 points of each law, got n_samples = 9 of Q"),
        (np.full(20, np.nan), np.arange(20.0), "P must be a finite"),
        (np.arange(20.0), np.full(20, np.inf), "Q must be a finite"),
        (np.ones(20), np.ones(30), "length_scale must be positive, got a median distance of 0"),
        (np.zeros((0, 2)), np.zeros((20, 2)), "P must be"),
    ],
)
def test_bad_samples(P, Q, message):
    with pytest.raises(ValueError, match=message):
        alpha_divergence(P, Q)


def test_bad_labels():
    X = np.random.default_rng(0).normal(size=(40, 3))
    estimator = AlphaDivergence(n_features=8, epochs=0)
    for y, message in (
        (np.zeros(40), "y must have two classes, got 1 class"),
        (np.arange(40) % 3, "y must have two classes, got 3 classes"),
        (np.zeros(39), "y must have one label for each"),
        (np.zeros((40, 2)), "y must be a sample with as many columns as X"),
        (None, "requires y to be passed, but the target y is None"),
    ):
        with pytest.raises(ValueError, match=message):
            estimator.fit(X, y)
    with pytest.raises(NotFittedError):
        estimator.log_ratio(X)
    estimator.fit(X[:20], X[20:])
    with pytest.raises(ValueError, match="y must be a sample of Q"):
        estimator.score(X, np.arange(40) % 2)


class TestErrorTerms:
    def test_terms_fall(self):
        P, Q = samples(18, 1600, 0.5, 1.44, 2)
        terms = divergence_error_terms(P, Q, n_features=16, epochs=0, n_seeds=3, rng=0)
        assert terms.optimisation <= 1e-6
        assert terms.statistical.shape == (4,)
        assert terms.statistical[0] > terms.statistical[-1]
        assert (np.diff(terms.shortfall) <= 1e-6).all()
        assert terms.shortfall[-1] == 0.0
        assert [c.value for c in terms.certificates] == [
            terms.optimisation,
            terms.statistical_slope,
            terms.feature_slope,
        ]
        assert terms.statistical_slope == pytest.approx(
            np.polyfit(np.log([0.125, 0.25, 0.5, 1]), np.log(terms.statistical), 1)[0]
        )

    def test_armijo_is_linear_and_within_the_prediction(self):
        rate = armijo_rate(*samples(19, 800), n_features=8, max_iter=400, rng=0)
        assert 0.0 < rate.fitted_factor <= rate.predicted_factor < 1.0
        assert rate.certified
        assert (np.diff(rate.history["distance"]) <= 1e-15).all()
        assert not armijo_rate(*samples(19, 100), n_features=8, radius=0.1, rng=0).certified

    def test_bad_input(self):
        with pytest.raises(ValueError, match="P must have at least 80 points, got 79"):
            divergence_error_terms(np.arange(79.0), np.arange(100.0))
        with pytest.raises(ValueError, match="n_seeds must be at least 2"):
            divergence_error_terms(np.arange(100.0), np.arange(100.0), n_seeds=1)
        with pytest.raises(ValueError, match="ridge must be greater than 0"):
            armijo_rate(np.arange(20.0), np.arange(20.0), ridge=0.0)
        with pytest.raises(ValueError, match="positive finite median distance"):
            armijo_rate(np.ones(20), np.ones(20))
