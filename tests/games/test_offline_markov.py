"""ROSE, self-play and the baselines on logs: against plain versions, certificates, all ways to fit, bad input."""

import copy
import dataclasses
import json
import math
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor

from assay.certificate import CertificateError
from assay.games import offline_certificate
from assay.games.markov_gap import concentrability, nash_gap, regularized_equilibrium, regularized_gap
from assay.games.markov_model import MarkovGameModel
from assay.games.offline_baselines import pessimistic_equilibrium, plugin_equilibrium
from assay.games.offline_data import OfflineGameData
from assay.games.offline_markov import rose, sos_md
from assay.games.offline_values import value_regression
from assay.games.stage_equilibrium import stage_equilibrium
from assay.validation import ConvergenceWarning

S, A, B, H = 5, 3, 3, 4
UNIFORM = {"mu_ref": "uniform", "nu_ref": "uniform"}


def random_game(seed=0):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(S), size=(H, S, A, B))
    return MarkovGameModel(P, rng.uniform(0, 1, (H, S, A, B)))


@pytest.fixture(scope="module")
def game():
    return random_game()


@pytest.fixture(scope="module")
def data(game):
    return game.sample_dataset(3000, rng=np.random.default_rng(0), noise="bernoulli")


@pytest.fixture(scope="module")
def result(data):
    return rose(data, 0.5, **UNIFORM)


def log_of_first_cell(n=1, horizon=1, n_states=2, n_actions=(2, 2)):
    """A log in which only one pair of actions in one state was ever seen, with reward 1."""
    zeros = np.zeros(n * horizon, dtype=int)
    steps = np.repeat(np.arange(1, horizon + 1), n)
    return OfflineGameData(steps, zeros, zeros, zeros, zeros + 1.0, zeros, horizon, n_states, n_actions)


def plain_rose(data, beta, mu_ref, nu_ref):
    """Cell by cell and state by state."""
    n_rows, n_columns = data.n_actions
    V = np.zeros(data.n_states)
    policies = []
    for h in reversed(range(data.horizon)):
        samples, Q = data.step(h), np.full((data.n_states, n_rows, n_columns), (data.horizon - h) / 2)
        for s in range(data.n_states):
            for a in range(n_rows):
                for b in range(n_columns):
                    here = (samples.s == s) & (samples.a == a) & (samples.b == b)
                    if here.any():
                        Q[s, a, b] = np.mean(samples.r[here] + V[samples.s_next[here]])
        mu, nu, V = stage_equilibrium(Q, mu_ref, nu_ref, beta)
        policies.append((mu, nu, V))
    return [np.stack(one) for one in zip(*reversed(policies), strict=True)]


class TestROSE:
    def test_against_cells_and_states_one_by_one(self, data, result):
        mu, nu, V = plain_rose(data, 0.5, None, None)
        np.testing.assert_allclose(result.mu, mu, atol=1e-9)
        np.testing.assert_allclose(result.nu, nu, atol=1e-9)
        np.testing.assert_allclose(result.V[:-1], V, atol=1e-9)
        assert (result.V[-1] == 0).all()

    def test_the_true_equilibrium_is_approached(self, game):
        target = regularized_equilibrium(game, 0.5)
        gaps = []
        for n in (500, 8000):
            log = game.sample_dataset(n, rng=np.random.default_rng(1), noise="bernoulli")
            found = rose(log, 0.5, **UNIFORM, split_half=False)
            gaps.append(regularized_gap(game, 0.5, None, None, found.mu, found.nu))
        assert gaps[1] < gaps[0] / 6
        assert abs(found.mu - target.mu).max() <= 0.1
        assert abs(found.V[0] - target.V[0]).max() <= 0.15

    def test_without_noise_and_randomness_the_answer_is_exact(self):
        # every cell once, with one successor each
        rng = np.random.default_rng(2)
        h, s, a, b = (index.ravel() for index in np.indices((H, S, A, B)))
        r, successors = rng.random(h.size), rng.integers(S, size=h.size)
        log = OfflineGameData(h + 1, s, a, b, r, successors, H)
        P = np.eye(S)[successors].reshape(H, S, A, B, S)
        true = MarkovGameModel(P, r.reshape(H, S, A, B))
        found = rose(log, 0.3, **UNIFORM)
        assert regularized_gap(true, 0.3, None, None, found.mu, found.nu) <= 1e-9
        assert found.opt_gap_per_step.max() <= 1e-10
        shares = np.full((H, S, A, B), 1 / (S * A * B))
        assert found.coverage.concentrability == pytest.approx(concentrability(true, found.mu, found.nu, shares))

    def test_certificates(self, result):
        statements = [c.statement for c in result.certificates]
        assert [s.split()[0] for s in statements] == ["regularised", "regularised", "unilateral", "estimate,"]
        assert result.certified
        assert result.require() is result
        assert result.certificates[0].bound == 1e-10

    def test_result(self, result):
        assert result.schedule == "optimistic"
        assert result.n_samples.tolist() == [3000] * H
        assert result.coverage.n_cells == H * S * A * B
        assert result.coverage.n_unseen_cells == 0
        assert result.coverage.min_count >= 20
        assert math.isfinite(result.coverage.concentrability)
        assert len(result.Q_hat) == H
        assert result.history["step"].tolist() == [4, 3, 2, 1]
        assert result.opt_gap == pytest.approx(result.opt_gap_per_step.sum())
        assert result.iterations_needed(1e-3) == math.ceil(
            math.log(1e3) / math.log1p((0.5 / result.half_range_per_step.max()) ** 2)
        )
        content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert content["schedule"] == "optimistic"
        assert "policy_at" not in content
        assert "policy_at" not in repr(result)
        np.testing.assert_array_equal(result.mu_policy(2, 3), result.mu[1, 3])
        np.testing.assert_array_equal(result.nu_policy(4, [0, 1]), result.nu[3, :2])

    def test_callback_sees_the_history(self, data):
        rows = []
        found = rose(data, 1.0, split_half=False, callback=rows.append)
        assert [row["step"] for row in rows] == [4, 3, 2, 1]
        assert [row["gap"] for row in rows] == found.history["gap"].tolist()

    def test_one_sample(self):
        found = rose(log_of_first_cell(), 0.5)
        assert found.n_samples.tolist() == [1]
        assert math.isnan(found.split_half_gap)
        assert found.coverage.concentrability == math.inf

    def test_unseen_states_keep_the_reference(self):
        found = rose(log_of_first_cell(10, 2, 3), 0.2, [0.7, 0.3], [0.4, 0.6])
        np.testing.assert_allclose(found.mu[:, 1:], np.tile([0.7, 0.3], (2, 2, 1)))
        np.testing.assert_allclose(found.nu[:, 1:], np.tile([0.4, 0.6], (2, 2, 1)))
        assert found.coverage.n_unseen_states == 4
        assert found.coverage.n_unseen_cells == 2 * 3 * 4 - 2
        assert found.coverage.min_count == 0

    def test_fill(self):
        mid, zero = (rose(log_of_first_cell(10), 0.2, fill=fill).Q_hat[0][0] for fill in ("mid", "zero"))
        np.testing.assert_allclose(mid, [[1.0, 0.5], [0.5, 0.5]])
        np.testing.assert_allclose(zero, [[1.0, 0.0], [0.0, 0.0]])

    def test_clip(self):
        # an overconfident regressor: what it says is cut to what can be
        log = log_of_first_cell(10, 2)

        class Shouting(LinearRegression):
            def predict(self, X):
                return np.full(len(X), 9.0)

        assert [table.max() for table in rose(log, 1.0, fit=Shouting()).Q_hat] == [2.0, 1.0]
        free = rose(log, 1.0, fit=Shouting(), clip=False)
        assert [table.max() for table in free.Q_hat] == [9.0, 9.0]
        np.testing.assert_allclose(free.V[0], 9.0)

    def test_values_are_cut_too(self, data):
        # far from equilibrium, under a strong pull to pure references, the value can leave the range of rewards
        found = sos_md(data, 50.0, [0.98, 0.01, 0.01], "uniform", n_iter=1, eta=1000.0, split_half=False)
        assert found.V.min() >= 0
        assert all((found.V[h] <= H - h).all() for h in range(H))

    def test_weight_per_step(self, data, result):
        np.testing.assert_array_equal(rose(data, [0.5] * H, **UNIFORM).mu, result.mu)
        other = rose(data, [0.5, 0.5, 0.5, 5.0], **UNIFORM, split_half=False)
        assert abs(other.mu[3] - 1 / 3).max() < abs(result.mu[3] - 1 / 3).max()

    def test_limits_of_the_weight(self, data):
        rng = np.random.default_rng(3)
        mu_ref, nu_ref = rng.dirichlet(np.ones(A) * 5, (H, S)), rng.dirichlet(np.ones(B) * 5, S)
        strong = rose(data, 1e6, mu_ref, nu_ref)
        assert abs(strong.mu - mu_ref).max() <= 1e-5
        assert abs(strong.nu - nu_ref).max() <= 1e-5
        assert strong.certificates[0].holds
        weak, plain = rose(data, 0.003, **UNIFORM, tol=1e-6, split_half=False), plugin_equilibrium(data)
        assert abs(weak.V[0] - plain.V_lower[0]).max() <= 0.03

    def test_warns_when_it_stops_early(self, data):
        with pytest.warns(ConvergenceWarning, match="rose did not reach tol=1e-10 in 4 iterations"):
            found = rose(data, 0.01, max_iter=4)
        assert not found.certificates[0].holds
        with pytest.raises(CertificateError):
            found.require()

    @settings(max_examples=8, deadline=None)
    @given(st.integers(0, 2**31), st.floats(0.1, 10))
    def test_any_log(self, seed, beta):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 40))
        h = np.concatenate((np.arange(1, 4), rng.integers(1, 4, n)))
        columns = [rng.integers(k, size=n + 3) for k in (3, 2, 3)]
        log = OfflineGameData(h, *columns, rng.random(n + 3), rng.integers(-1, 3, size=n + 3), 3, 3, (2, 3))
        found = rose(log, beta)
        assert found.certificates[0].holds
        assert found.certificates[1].holds
        np.testing.assert_allclose(found.mu.sum(axis=-1), 1, atol=1e-12)
        assert (found.mu > 0).all()


class TestReferences:
    def test_cloned_with_one_added(self, game):
        behaviour = ([0.6, 0.3, 0.1], [0.2, 0.2, 0.6])
        log = game.sample_dataset(2000, behaviour, np.random.default_rng(0))
        found = rose(log, 1.0, split_half=False)
        counts = log.counts(1)[3]
        expected = (counts.sum(axis=1) + 1) / (counts.sum() + 3)
        np.testing.assert_allclose(found.mu_ref[1, 3], expected)
        np.testing.assert_allclose(found.nu_ref[1, 3], (counts.sum(axis=0) + 1) / (counts.sum() + 3))
        assert abs(found.mu_ref.mean(axis=(0, 1)) - behaviour[0]).max() <= 0.02

    def test_smoothing_lets_them_have_zeros(self, data):
        pure = np.eye(A)[np.zeros((H, S), dtype=int)]
        with pytest.raises(ValueError, match="mu_ref must give every action a positive probability"):
            rose(data, 0.5, pure)
        found = rose(data, 0.5, pure, ref_smoothing=0.03, split_half=False)
        np.testing.assert_allclose(found.mu_ref[0, 0], [0.98, 0.01, 0.01])


class TestSelfPlay:
    def test_approaches_rose(self, data, result):
        gaps, apart = [], []
        for updates in (5, 20, 80, 320):
            found = sos_md(data, 0.5, **UNIFORM, n_iter=updates, split_half=False)
            assert (found.n_iter_per_step == updates).all()
            gaps.append(found.opt_gap)
            apart.append(abs(found.mu - result.mu).max())
            assert all(c.holds for c in found.certificates)
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[-1] <= 1e-7
        assert apart[-1] <= 1e-5

    def test_by_default_as_many_updates_as_needed(self, data, result):
        found = sos_md(data, 0.5, **UNIFORM)
        needed = [math.ceil(math.log(1e3) / math.log1p((0.5 / r) ** 2)) for r in found.half_range_per_step]
        assert found.n_iter_per_step.tolist() == needed
        assert found.certified
        assert sos_md(data, 0.005, split_half=False).n_iter_per_step.max() == 20_000

    def test_certificates(self, data):
        found = sos_md(data, 0.5, **UNIFORM, n_iter=20)
        first_words = [c.statement.split()[0] for c in found.certificates]
        assert first_words == ["regularised", "relative", "unilateral", "estimate,"]
        contraction = found.certificates[1]
        assert contraction.value < contraction.bound / 3
        assert not contraction.violated
        harmonic = sos_md(data, 0.5, **UNIFORM, n_iter=20, schedule="harmonic")
        assert all("relative entropy" not in c.statement for c in harmonic.certificates)

    def test_long_runs_do_not_fail_by_rounding(self, data):
        for beta in (0.5, 5.0):
            found = sos_md(data, beta, **UNIFORM, n_iter=2000, split_half=False)
            assert all(c.holds for c in found.certificates)

    def test_own_steps(self, data):
        short = sos_md(data, 0.5, **UNIFORM, n_iter=50, eta=0.05, split_half=False)
        assert short.certificates[1].holds
        assert not short.certificates[1].violated
        long = sos_md(data, 0.05, **UNIFORM, n_iter=50, eta=50.0, split_half=False)
        assert long.certificates[1].violated
        assert short.iterations_needed(0.1) == math.ceil(math.log(10) / math.log1p(0.05 * 0.5))

    def test_harmonic(self, data):
        gaps = [
            sos_md(data, 0.5, **UNIFORM, n_iter=n, schedule="harmonic", split_half=False).opt_gap for n in (40, 640)
        ]
        assert gaps[1] < gaps[0] / 4

    def test_sampled_actions(self, data, result):
        runs = [
            sos_md(data, 0.5, **UNIFORM, n_iter=3000, schedule="harmonic", sampled=4, rng=seed, split_half=False)
            for seed in (0, 0, 1)
        ]
        np.testing.assert_array_equal(runs[0].mu, runs[1].mu)
        assert not np.array_equal(runs[0].mu, runs[2].mu)
        assert abs(runs[0].mu - result.mu).max() <= 0.06
        assert all("relative entropy" not in c.statement for c in runs[0].certificates)

    def test_callback_sees_the_history(self, data):
        rows = []
        found = sos_md(data, 1.0, n_iter=10, split_half=False, callback=rows.append)
        assert len(rows) == len(found.history["gap"])
        first = [row for row in rows if row["step"] == H]
        assert first[-1]["iteration"] == 10
        assert found.history["gap"][found.history["step"] == 1][-1] == pytest.approx(found.opt_gap_per_step[0])


class TestSpoiltAnswers:
    def test_the_gap_in_the_game_of_the_data(self, data, result):
        regression = value_regression("tabular", "mid", True, data)
        references = result.beta, result.mu_ref, result.nu_ref
        good = offline_certificate.estimated_gap(data, regression, *references, result.mu, result.nu)
        assert offline_certificate.estimated_game_certificate(good, result.opt_gap_per_step).holds
        spoilt = 0.99 * result.mu + 0.01 * np.eye(A)[0]
        gap = offline_certificate.estimated_gap(data, regression, *references, spoilt, result.nu)
        assert not offline_certificate.estimated_game_certificate(gap, result.opt_gap_per_step).holds

    def test_contraction(self, data):
        found = sos_md(data, 0.5, **UNIFORM, n_iter=60, split_half=False)

        def certificate(mu):
            return offline_certificate.contraction_certificate(
                found.Q_hat, found.beta, found.mu_ref, found.nu_ref, mu, found.nu, found.n_iter_per_step, None
            )

        assert certificate(found.mu).holds
        assert not certificate(0.9 * found.mu + 0.1 * found.mu_ref).holds
        broken = found.mu.copy()
        broken[1, 2] = np.nan
        assert not certificate(broken).holds

    def test_contraction_from_an_equilibrium_that_is_not_known(self, data):
        options = {"n_iter": 20, "split_half": False, "estimate_coverage": False}
        for beta, known in ((0.5, True), (1e6, True), (1e-7, False)):
            found = sos_md(data, beta, **UNIFORM, **options)
            certificate = found.certificates[-1]
            assert certificate.statement.startswith("relative entropy")
            assert [assumption.satisfied for assumption in certificate.assumptions] == [True, known]
            assert found.certified == known

    def test_stage_gaps(self):
        assert not offline_certificate.stage_certificate(np.array([1e-12, 1e-3]), 1e-10).holds
        assert not offline_certificate.stage_certificate(np.array([1e-12, np.nan]), 1e-10).holds

    def test_halves(self, game):
        # noise only: the policies of one half are worse than the references on the other
        rng = np.random.default_rng(0)
        log = game.sample_dataset(60, rng=rng)
        log.r = rng.integers(0, 2, len(log.r)).astype(float)
        found = rose(log, 0.02, **UNIFORM)
        halves = found.certificates[-1]
        assert halves.value == found.split_half_gap
        assert not halves.holds

    def test_coverage(self, game):
        target = regularized_equilibrium(game, 0.3)
        pure = tuple(np.eye(3)[policy.argmax(axis=-1)] for policy in (target.mu, target.nu))
        gaps = []
        for n in (500, 8000):
            found = rose(game.sample_dataset(n, pure, np.random.default_rng(0)), 0.3, **UNIFORM)
            coverage = next(c for c in found.certificates if "concentrability" in c.statement)
            assert coverage.value == math.inf
            assert not coverage.holds
            assert not found.certified
            gaps.append(regularized_gap(game, 0.3, None, None, found.mu, found.nu))
        assert gaps[1] > 0.9 * gaps[0] > 0.1


class TestCoverage:
    def test_estimate_on_the_game_of_the_data(self, game, data, result):
        P, r = np.zeros((H, S, A, B, S)), np.zeros((H, S, A, B))
        for h in range(H):
            samples = data.step(h)
            np.add.at(P[h], (samples.s, samples.a, samples.b, samples.s_next), 1.0)
        rho = np.bincount(data.step(0).s, minlength=S) / 3000
        empirical = MarkovGameModel(P / P.sum(axis=-1, keepdims=True), r, rho=rho)
        shares = np.stack([data.counts(h) for h in range(H)]) / 3000
        expected = concentrability(empirical, result.mu, result.nu, shares)
        assert result.coverage.concentrability == pytest.approx(expected)
        true = concentrability(game, result.mu, result.nu, np.full((H, S, A, B), 1 / (S * A * B)))
        assert result.coverage.concentrability == pytest.approx(true, rel=0.5)

    def test_what_cannot_be_reached_does_not_count(self):
        # state 1 and its second action are unseen, and no action leads there
        log = OfflineGameData([1] * 4, [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1], [0] * 4, 1, 2)
        found = rose(log, 0.5)
        assert found.coverage.n_unseen_states == 1
        assert found.coverage.concentrability == pytest.approx(2.0, rel=0.2)

    def test_on_demand(self, data, monkeypatch):
        assert math.isnan(rose(data, 1.0, estimate_coverage=False, split_half=False).coverage.concentrability)
        monkeypatch.setattr(offline_certificate, "_AFFORDABLE", 0)
        found = rose(data, 1.0, split_half=False)
        assert math.isnan(found.coverage.concentrability)
        assert all("concentrability" not in c.statement for c in found.certificates)
        assert math.isfinite(rose(data, 1.0, estimate_coverage=True, split_half=False).coverage.concentrability)


class TestFits:
    def with_phi(self, data, phi):
        return OfflineGameData(data.h, data.s, data.a, data.b, data.r, data.s_next, H, S, (A, B), phi=phi)

    def test_linear_with_indicators_is_tabular(self, data, result):
        phi = np.eye(S * A * B).reshape(S, A, B, -1)
        linear = rose(self.with_phi(data, phi), 0.5, **UNIFORM, fit="linear")
        np.testing.assert_allclose(linear.mu, result.mu, atol=2e-3)
        # the data's game is not a table then, and nothing is certified about it
        assert [c.statement.split()[0] for c in linear.certificates] == ["regularised", "unilateral", "estimate,"]
        as_function = rose(self.with_phi(data, lambda s, a, b: phi[s, a, b]), 0.5, **UNIFORM, fit="linear")
        np.testing.assert_allclose(as_function.mu, linear.mu, atol=1e-12)

    def test_linear_in_the_true_features(self):
        # rewards and transitions that are linear in few features need few samples
        rng = np.random.default_rng(4)
        phi = rng.dirichlet(np.ones(3), size=(20, A, B))
        P = np.einsum("sabd,hdt->hsabt", phi, rng.dirichlet(np.ones(20), size=(3, 3)))
        model = MarkovGameModel(P, np.einsum("sabd,hd->hsab", phi, rng.random((3, 3))))
        log = model.sample_dataset(600, rng=rng)
        gaps = {}
        for fit in ("tabular", "linear"):
            rich = OfflineGameData(log.h, log.s, log.a, log.b, log.r, log.s_next, 3, 20, (A, B), phi=phi)
            found = rose(rich, 0.1, **UNIFORM, fit=fit, split_half=False)
            gaps[fit] = regularized_gap(model, 0.1, None, None, found.mu, found.nu)
        assert gaps["linear"] < gaps["tabular"] / 3

    def test_a_tree_of_all_cells_is_tabular(self, data, result):
        tree = rose(data, 0.5, **UNIFORM, fit=DecisionTreeRegressor(random_state=0))
        np.testing.assert_allclose(tree.mu, result.mu, atol=1e-9)

    def features(self, data):
        place = np.column_stack((np.arange(S), np.arange(S) ** 2)).astype(float)
        after = place[data.s_next]
        return OfflineGameData(data.h, place[data.s], data.a, data.b, data.r, after, H, None, (A, B)), place

    def test_states_with_features(self, data, result):
        rich, place = self.features(data)
        found = rose(rich, 0.5, **UNIFORM, fit=DecisionTreeRegressor(random_state=0))
        np.testing.assert_array_equal(rich.state_features, place)
        np.testing.assert_allclose(found.mu, result.mu, atol=1e-9)
        assert found.coverage.n_cells == H * A * B
        assert math.isnan(found.coverage.concentrability)
        np.testing.assert_allclose(found.mu_policy(2, place), found.mu[1], atol=1e-9)
        np.testing.assert_allclose(found.nu_policy(2, place[3]), found.nu[1, 3], atol=1e-9)
        between = found.mu_policy(1, [[2.4, 5.0]])
        assert between.shape == (1, A)
        assert between.sum() == pytest.approx(1)
        assert "policy_at" not in json.dumps(found.to_dict())
        with pytest.raises(ValueError, match="finite rows of 2 features"):
            found.mu_policy(1, [[1.0]])
        with pytest.raises(ValueError, match="h must be at most 4"):
            found.mu_policy(5, place)

    def test_references_of_features(self, data):
        rich, place = self.features(data)

        def lean(h, states):
            weight = 1 / (1 + np.exp(-states[:, 0] / h))
            return np.column_stack((weight, (1 - weight) / 2, (1 - weight) / 2))

        options = {"fit": DecisionTreeRegressor(max_depth=3, random_state=0), "split_half": False}
        found = rose(rich, 1e6, lean, None, **options)
        np.testing.assert_allclose(found.mu_policy(3, place), lean(3, place), atol=1e-5)
        cloned = rose(rich, 1e6, None, [0.2, 0.3, 0.5], **options)
        frequencies = (np.bincount(data.step(0).a, minlength=A) + 1) / (3000 + 3)
        np.testing.assert_allclose(cloned.mu_ref[0], np.tile(frequencies, (S, 1)))
        played = sos_md(rich, 0.5, **UNIFORM, n_iter=30, sampled=2, rng=0, **options)
        assert played.mu_policy(1, place).shape == (S, A)
        with pytest.raises(ValueError, match="mu_ref must be a vector or a function"):
            rose(rich, 1.0, np.full((S, A), 1 / 3), **options)
        with pytest.raises(ValueError, match=r"mu_ref\(h, s\) must be of shape"):
            rose(rich, 1.0, lambda h, states: np.ones((2, 2)), **options)

    def test_features_of_states_and_actions_by_a_function(self, data):
        rich, _ = self.features(data)
        rich.phi = lambda s, a, b: np.column_stack((s, a == b, np.ones(len(a))))
        found = rose(rich, 0.5, **UNIFORM, fit="linear", split_half=False)
        assert found.mu_policy(1, [[7.0, 49.0]]).shape == (1, A)
        rich.phi = lambda s, a, b: np.ones((3, 1))
        with pytest.raises(ValueError, match="one row per sample"):
            rose(rich, 0.5, fit="linear")

    def test_many_cells_in_blocks(self, data, monkeypatch):
        whole = rose(data, 0.5, fit=DecisionTreeRegressor(random_state=0), split_half=False)
        monkeypatch.setattr("assay.games.offline_values._NUMBERS", 20)
        parts = rose(data, 0.5, fit=DecisionTreeRegressor(random_state=0), split_half=False)
        np.testing.assert_array_equal(whole.mu, parts.mu)


class TestBaselines:
    def test_plug_in(self, game, data):
        found = plugin_equilibrium(data)
        assert found.certified
        weak = rose(data, 0.002, **UNIFORM, tol=1e-5, split_half=False)
        assert nash_gap(game, found.mu, found.nu) <= nash_gap(game, weak.mu, weak.nu) + 0.05
        np.testing.assert_array_equal(found.V_lower, found.V_upper)

    def test_pessimism_brackets_the_value(self, game, data):
        true = regularized_equilibrium(game, 1e-3, tol=1e-5)
        found = pessimistic_equilibrium(data, 0.5)
        assert found.certified
        assert (found.V_lower[0] <= true.V[0]).all()
        assert (found.V_upper[0] >= true.V[0]).all()
        np.testing.assert_allclose(
            pessimistic_equilibrium(data, 0.0).V_lower, plugin_equilibrium(data).V_lower, atol=1e-9
        )

    def test_what_was_never_seen_is_avoided(self):
        # the max player has seen a sure 0.4; of the other action nothing is known
        log = OfflineGameData([1] * 9, [0] * 9, [0] * 9, [0] * 9, [0.4] * 9, [0] * 9, 1, 1, (2, 1))
        assert plugin_equilibrium(log).mu[0, 0].tolist() == [0, 1]
        assert pessimistic_equilibrium(log, 0.1).mu[0, 0].tolist() == [1, 0]

    def test_refused(self, data):
        with pytest.raises(ValueError, match="c must be at least 0"):
            pessimistic_equilibrium(data, -1.0)
        with pytest.raises(ValueError, match="fill must be one of"):
            plugin_equilibrium(data, fill="max")


class TestBadInput:
    @pytest.mark.parametrize(
        "change, message",
        [
            ({"beta": 0.0}, "beta must be greater than 0"),
            ({"beta": -0.1}, "beta must be greater than 0"),
            ({"beta": [0.1, 0.2]}, "beta must be a number or one per step, 4 of them"),
            ({"beta": np.nan}, "beta must be a finite"),
            ({"mu_ref": [1.0, 0.0, 0.0]}, "mu_ref must give every action a positive probability"),
            ({"mu_ref": [0.5, 0.2, 0.2]}, "mu_ref must have probabilities that sum to 1"),
            ({"mu_ref": [0.5, 0.6, -0.1]}, "mu_ref must be non-negative"),
            ({"nu_ref": np.full((H, S, 2), 0.5)}, "nu_ref must be of shape"),
            ({"nu_ref": "logged"}, "nu_ref must be None, 'uniform'"),
            ({"fit": "forest"}, "fit must be one of"),
            ({"fit": "linear"}, "fit must not be 'linear' without features"),
            ({"fill": "max"}, "fill must be one of"),
            ({"tol": 0.0}, "tol must be greater than 0"),
            ({"max_iter": 0}, "max_iter must be at least 1"),
            ({"ref_smoothing": 1.0}, "ref_smoothing must be less than 1"),
        ],
    )
    def test_values(self, data, change, message):
        with pytest.raises(ValueError, match=message):
            rose(data, **({"beta": 0.5} | change))

    @pytest.mark.parametrize(
        "change",
        [
            {"data": np.zeros(3)},
            {"beta": "small"},
            {"fit": 3},
            {"clip": 1},
            {"mu_ref": lambda h, s: s},
            {"callback": 3},
            {"split_half": "yes"},
            {"estimate_coverage": "yes"},
            {"tol": "small"},
        ],
    )
    def test_types(self, data, change):
        with pytest.raises(TypeError, match=next(iter(change))):
            rose(**({"data": data, "beta": 0.5} | change))

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"n_iter": 0}, "n_iter must be at least 1"),
            ({"schedule": "cosine"}, "schedule must be one of"),
            ({"eta": 0.0}, "eta must be greater than 0"),
            ({"eta": 0.1, "schedule": "harmonic"}, "eta must be None with schedule='harmonic'"),
            ({"sampled": 0}, "sampled must be at least 1"),
            ({"rng": -1}, "rng must be a non-negative seed"),
        ],
    )
    def test_self_play(self, data, change, message):
        with pytest.raises(ValueError, match=message):
            sos_md(data, 0.5, **change)

    def test_states_of_policies(self, result):
        for states in (9, [-1], [[0, 7]]):
            with pytest.raises(ValueError, match="states must be from 0 to 4"):
                result.mu_policy(1, states)
        with pytest.raises(TypeError, match="states must be integers"):
            result.nu_policy(1, 0.5)
        with pytest.raises(ValueError, match="h must be at least 1"):
            result.mu_policy(0, 1)

    def test_tables_need_numbered_states(self):
        log = OfflineGameData([1], [[0.5]], [0], [0], [1.0], [[0.5]], 1)
        with pytest.raises(ValueError, match="fit must be 'linear' or a regressor"):
            rose(log, 1.0)

    def test_regressors_that_predict_nonsense(self, data):
        class Nothing(LinearRegression):
            def predict(self, X):
                return np.full(len(X), np.nan)

        with pytest.raises(ValueError, match=r"fit.predict\(X\) must be a finite"):
            rose(data, 1.0, fit=Nothing())

        class Few(LinearRegression):
            def predict(self, X):
                return [0.5]

        class Complex(LinearRegression):
            def predict(self, X):
                return np.full(len(X), 1j)

        class Huge(LinearRegression):
            def predict(self, X):
                return np.full(len(X), 1e305)

        with pytest.raises(ValueError, match=r"one number of size at most 1e.300 per row of features, got 1 for 45"):
            rose(data, 1.0, fit=Few())
        with pytest.raises(TypeError, match="real numbers"):
            rose(data, 1.0, fit=Complex())
        with pytest.raises(ValueError, match="size at most"):
            rose(data, 1.0, fit=Huge(), clip=False)

    def test_what_cannot_be_cloned(self, data):
        class Plain:
            def fit(self, X, y):
                return self

            def predict(self, X):
                return np.zeros(len(X))

        for fit, message in ((LinearRegression, "an instance"), (Plain(), "that scikit-learn can clone, got Plain")):
            with pytest.raises(TypeError, match=message):
                rose(data, 1.0, fit=fit)

    def test_very_small_weights(self, data):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for beta in (1e-9, 1e-300):
                found = rose(data, beta, max_iter=50, split_half=False)
                assert np.isfinite(found.mu).all()
                assert np.isfinite(found.V).all()
                played = sos_md(data, beta, n_iter=50, schedule="harmonic", split_half=False)
                assert np.isfinite(played.mu).all()


class TestUse:
    """From several threads and processes, with warnings as errors, and with the same random numbers again."""

    @pytest.mark.filterwarnings("error")
    def test_extreme_weights_warn_of_nothing_else(self, data):
        for beta in (1e308, 1e300, 1e150):
            assert rose(data, beta, split_half=False).certified
            assert sos_md(data, beta, n_iter=3).certified
            assert sos_md(data, beta, eta=1e308, split_half=False).n_iter_per_step.min() >= 1
        for beta in (5e-324, 1e-300):
            for schedule in ("constant", "harmonic"):
                assert np.isfinite(sos_md(data, beta, n_iter=5, schedule=schedule).mu).all()

    def test_features_that_depend_on_each_other(self, data):
        # at this scale the ridge is lost in rounding
        phi = 1e10 * np.ones((S, A, B, 6))
        columns = {name: getattr(data, name) for name in ("h", "s", "a", "b", "r", "s_next")}
        for scale in (1.0, 1e100):
            log = OfflineGameData(**columns, horizon=H, phi=scale * phi)
            found = rose(log, 0.5, fit="linear", split_half=False)
            assert found.V[-2] == pytest.approx(data.step(H - 1).r.mean(), rel=1e-6)
        with pytest.raises(ValueError, match=r"phi must have entries of size at most 1e.145, got 1e.160"):
            rose(OfflineGameData(**columns, horizon=H, phi=1e150 * phi), 0.5, fit="linear")

    def test_policies_of_features_can_be_sent_to_processes(self, data):
        places = np.random.default_rng(0).normal(size=(S, 2))
        log = OfflineGameData(data.h, places[data.s], data.a, data.b, data.r, places[data.s_next], H)
        new = np.array([[0.3, -0.2], [1.0, 0.0]])
        for method, options in (
            (rose, {}),
            (sos_md, {"n_iter": 20}),
            (sos_md, {"n_iter": 20, "sampled": 2, "rng": np.random.default_rng(3)}),
        ):
            found = method(log, 0.5, **UNIFORM, fit=LinearRegression(), split_half=False, **options)
            there = pickle.loads(pickle.dumps(found))
            first = found.mu_policy(2, new)
            np.testing.assert_array_equal(first, found.mu_policy(2, new))  # sampled or not
            np.testing.assert_array_equal(first, there.mu_policy(2, new))
            np.testing.assert_array_equal(found.nu_policy(1, new), copy.deepcopy(found).nu_policy(1, new))
        with pytest.raises(ValueError, match="states must be finite rows of 2 features"):
            found.mu_policy(1, np.zeros(3))

    def test_two_threads_at_once(self, data, result):
        def learn(_):
            return rose(data, 0.5, **UNIFORM), sos_md(data, 0.5, **UNIFORM, n_iter=9, sampled=2, rng=5)

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(learn, range(4)))
        for one, two in answers:
            np.testing.assert_array_equal(one.mu, result.mu)
            np.testing.assert_array_equal(two.mu, answers[0][1].mu)

    def test_nothing_of_the_users_is_touched(self, data):
        before = {name: getattr(data, name).copy() for name in ("h", "s", "a", "b", "r", "s_next")}
        reference, state = np.full((H, S, A), 1 / A), np.random.get_state()[1].copy()
        found = rose(data, 0.5, reference, ref_smoothing=0.1)
        sos_md(data, 0.5, n_iter=5, sampled=2)
        for name, column in before.items():
            np.testing.assert_array_equal(getattr(data, name), column)
        np.testing.assert_array_equal(reference, 1 / A)
        np.testing.assert_array_equal(np.random.get_state()[1], state)
        found.mu_policy(1, 0)[:] = 7.0
        assert found.mu[0, 0].sum() == pytest.approx(1)

    def test_an_interrupted_callback(self, data):
        def stop(row):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            rose(data, 0.5, callback=stop)
        assert rose(data, 0.5, **UNIFORM).certified


def test_results_are_frozen(result):
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.mu = None
