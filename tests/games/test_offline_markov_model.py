"""Markov games with known rules: exact solutions and gaps, reachability, sampling, gymnasium, OpenSpiel."""

import importlib
import sys
import types
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.extras import MissingExtraError
from assay.games.markov_gap import concentrability, nash_gap, regularized_equilibrium, regularized_gap
from assay.games.markov_model import MarkovGameModel, as_markov_model
from assay.games.markov_openspiel import openspiel_markov_game
from assay.games.offline_data import OfflineGameData
from assay.validation import ConvergenceWarning

S, A, B, H = 5, 3, 3, 4


def arrays(seed, n_states=S, n_rows=A, n_columns=B, horizon=H):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(n_states), size=(horizon, n_states, n_rows, n_columns))
    return P, rng.uniform(0, 1, (horizon, n_states, n_rows, n_columns))


def random_game(seed, *shape):
    return MarkovGameModel(*arrays(seed, *shape))


def value_by_simulation_of_all_paths(P, r, mu, nu, beta, mu_ref, nu_ref):
    """J of a pair of policies from every first state, summed forward over distributions."""
    horizon, n_states = r.shape[:2]
    values = np.empty(n_states)
    for start in range(n_states):
        d, total = np.eye(n_states)[start], 0.0
        for h in range(horizon):
            joint = mu[h][:, :, None] * nu[h][:, None, :]
            total += d @ (joint * r[h]).sum(axis=(1, 2))
            with np.errstate(divide="ignore", invalid="ignore"):
                total -= beta * (d @ np.nan_to_num(mu[h] * np.log(mu[h] / mu_ref)).sum(axis=1))
                total += beta * (d @ np.nan_to_num(nu[h] * np.log(nu[h] / nu_ref)).sum(axis=1))
            d = np.einsum("s,sab,sabt->t", d, joint, P[h])
        values[start] = total
    return values


class TestKnownValues:
    def test_value_of_a_random_game(self):
        solution = regularized_equilibrium(random_game(0), 0.5, tol=1e-13)
        expected = [1.85584342, 1.82488413, 1.93526862, 2.00545156, 2.03131708]
        np.testing.assert_allclose(solution.V[0], expected, atol=5e-9)
        assert solution.certified
        assert abs(solution.gap) <= 1e-12

    def test_the_exact_solution_has_no_gap(self):
        game = random_game(0)
        solution = regularized_equilibrium(game, 0.5, tol=1e-13)
        assert abs(regularized_gap(game, 0.5, None, None, solution.mu, solution.nu)) <= 1e-12
        assert nash_gap(game, solution.mu, solution.nu) > 0.05

    def test_a_spoilt_solution_has_one(self):
        game = random_game(0)
        solution = regularized_equilibrium(game, 0.5)
        spoilt = 0.9 * solution.mu + 0.1 / A
        assert regularized_gap(game, 0.5, None, None, spoilt, solution.nu) > 1e-4

    def test_limits_of_the_weight(self):
        game = random_game(1)
        rng = np.random.default_rng(0)
        mu_ref, nu_ref = rng.dirichlet(np.ones(A) * 5, (H, S)), rng.dirichlet(np.ones(B) * 5, (H, S))
        strong = regularized_equilibrium(game, 1e6, mu_ref, nu_ref)
        assert abs(strong.mu - mu_ref).max() <= 1e-5
        assert abs(strong.nu - nu_ref).max() <= 1e-5
        gaps = [
            nash_gap(game, *(lambda found: (found.mu, found.nu))(regularized_equilibrium(game, beta, tol=1e-6)))
            for beta in (0.3, 0.03, 0.003)
        ]
        assert gaps[0] > gaps[1] > gaps[2]
        assert gaps[2] <= 0.02


class TestGap:
    def test_value_between_best_responses(self):
        P, r = arrays(2)
        game = MarkovGameModel(P, r)
        rng = np.random.default_rng(1)
        mu_ref, nu_ref = rng.dirichlet(np.ones(A), S), rng.dirichlet(np.ones(B), S)
        beta = 0.4
        solution = regularized_equilibrium(game, beta, mu_ref, nu_ref, tol=1e-12)
        exact = value_by_simulation_of_all_paths(P, r, solution.mu, solution.nu, beta, mu_ref, nu_ref)
        np.testing.assert_allclose(solution.V[0], exact, atol=1e-10)
        # the gap is what two deviations gain, and no deviation gains more
        mu, nu = rng.dirichlet(np.ones(A), (H, S)), rng.dirichlet(np.ones(B), (H, S))
        gap = regularized_gap(game, beta, mu_ref, nu_ref, mu, nu)
        best = 0.0
        for _ in range(20):
            other_mu, other_nu = rng.dirichlet(np.ones(A), (H, S)), rng.dirichlet(np.ones(B), (H, S))
            gain = value_by_simulation_of_all_paths(P, r, other_mu, nu, beta, mu_ref, nu_ref)
            loss = value_by_simulation_of_all_paths(P, r, mu, other_nu, beta, mu_ref, nu_ref)
            best = max(best, float((gain - loss).mean()))
        assert 0 < best <= gap

    def test_first_states(self):
        game = random_game(3)
        rng = np.random.default_rng(0)
        mu, nu = rng.dirichlet(np.ones(A), (H, S)), rng.dirichlet(np.ones(B), (H, S))
        by_state = [regularized_gap(game, 0.5, None, None, mu, nu, rho) for rho in np.eye(S)]
        assert regularized_gap(game, 0.5, None, None, mu, nu) == pytest.approx(np.mean(by_state))
        assert min(by_state) >= 0
        plain = [nash_gap(game, mu, nu, rho) for rho in np.eye(S)]
        assert nash_gap(game, mu, nu) == pytest.approx(np.mean(plain))

    @settings(max_examples=15, deadline=None)
    @given(st.integers(0, 2**31), st.floats(0.05, 20))
    def test_never_negative(self, seed, beta):
        game = random_game(seed, 3, 2, 3, 2)
        rng = np.random.default_rng(seed)
        mu, nu = rng.dirichlet(np.ones(2), (2, 3)), rng.dirichlet(np.ones(3), (2, 3))
        assert regularized_gap(game, beta, None, None, mu, nu) >= -1e-12
        assert nash_gap(game, mu, nu) >= -1e-12

    def test_weights_per_step(self):
        game = random_game(4)
        same = regularized_equilibrium(game, [0.5] * H)
        np.testing.assert_array_equal(same.mu, regularized_equilibrium(game, 0.5).mu)
        last = regularized_equilibrium(game, [9.0] * (H - 1) + [0.1])
        assert abs(last.mu[0] - 1 / A).max() < abs(last.mu[-1] - 1 / A).max()

    def test_agrees_with_regularisation_that_fades(self):
        game = random_game(5)
        rng = np.random.default_rng(0)
        mu, nu = rng.dirichlet(np.ones(A), (H, S)), rng.dirichlet(np.ones(B), (H, S))
        assert regularized_gap(game, 1e-9, None, None, mu, nu) == pytest.approx(nash_gap(game, mu, nu), abs=1e-6)


class TestForms:
    def test_dense_sparse_stationary_and_lists(self):
        P, r = arrays(6)
        reference = regularized_equilibrium(MarkovGameModel(P, r), 0.5).V
        matrices = [sp.csr_array(P[h].reshape(-1, S)) for h in range(H)]
        for model in (MarkovGameModel(matrices, r), MarkovGameModel(P.tolist(), r.tolist(), horizon=H)):
            np.testing.assert_allclose(regularized_equilibrium(model, 0.5).V, reference, atol=1e-12)
        still = MarkovGameModel(P[0], r[0], horizon=H)
        repeated = MarkovGameModel(np.stack([P[0]] * H), np.stack([r[0]] * H))
        sparse = MarkovGameModel(matrices[0], r[0], horizon=H)
        values = [regularized_equilibrium(model, 0.5).V for model in (still, repeated, sparse)]
        np.testing.assert_allclose(values[0], values[1], atol=1e-12)
        np.testing.assert_allclose(values[0], values[2], atol=1e-12)

    def test_anything_with_arrays(self):
        P, r = arrays(7)
        for thing in (types.SimpleNamespace(P=P, r=r), types.SimpleNamespace(model=MarkovGameModel(P, r))):
            assert as_markov_model(thing).horizon == H
        still = types.SimpleNamespace(P=P[0], r=r[0], horizon=3, rho=np.eye(S)[1])
        assert as_markov_model(still).horizon == 3
        with pytest.raises(TypeError, match="model must be a MarkovGameModel"):
            as_markov_model(3)

    def test_transition_lists(self):
        P, r = arrays(8)
        table = {
            s: {
                (a, b): [(P[0, s, a, b, t], t, r[0, s, a, b], False) for t in range(S)]
                for a in range(A)
                for b in range(B)
            }
            for s in range(S)
        }
        model = MarkovGameModel.from_transition_lists(table, H)
        expected = regularized_equilibrium(MarkovGameModel(P[0], r[0], horizon=H), 0.5)
        np.testing.assert_allclose(regularized_equilibrium(model, 0.5).V, expected.V, atol=1e-12)

    def test_transition_lists_that_end(self):
        table = {0: {(0, 0): [(0.25, 0, 1.0, False), (0.75, 0, 1.0, True)]}}
        model = MarkovGameModel.from_transition_lists(table, 3, rho=[1.0])
        assert model.n_states == 2
        assert regularized_equilibrium(model, 1.0).V[0, 0] == pytest.approx(1 + 0.25 + 0.25**2)
        with pytest.raises(ValueError, match="all 1 x 1 pairs"):
            MarkovGameModel.from_transition_lists({0: table[0], 1: {}}, 3)
        with pytest.raises(ValueError, match="the states 0 to 0"):
            MarkovGameModel.from_transition_lists({1: table[0]}, 3)
        with pytest.raises(ValueError, match="next states"):
            MarkovGameModel.from_transition_lists({0: {(0, 0): [(1.0, 4, 0.0, False)]}}, 3)


class TestConcentrability:
    def all_policies(self, horizon, n_states, n_actions):
        import itertools

        for choice in itertools.product(range(n_actions), repeat=horizon * n_states):
            yield np.eye(n_actions)[np.array(choice).reshape(horizon, n_states)]

    def distributions(self, game, mu, nu):
        d = [game.rho]
        for h in range(game.horizon - 1):
            joint = (d[-1][:, None, None] * mu[h][:, :, None] * nu[h][:, None, :]).ravel()
            d.append(joint @ game.transition_matrix(h))
        return np.array([d[h][:, None, None] * mu[h][:, :, None] * nu[h][:, None, :] for h in range(game.horizon)])

    def test_against_all_deterministic_deviations(self):
        game = random_game(9, 2, 2, 2, 3)
        rng = np.random.default_rng(0)
        mu, nu = rng.dirichlet(np.ones(2), (3, 2)), rng.dirichlet(np.ones(2), (3, 2))
        data = rng.dirichlet(np.ones(8), 3).reshape(3, 2, 2, 2)
        worst = 0.0
        for deviation in self.all_policies(3, 2, 2):
            worst = max(worst, (self.distributions(game, deviation, nu) / data).max())
            worst = max(worst, (self.distributions(game, mu, deviation) / data).max())
        assert concentrability(game, mu, nu, data) == pytest.approx(worst)

    def test_what_cannot_be_reached_need_not_be_covered(self):
        P = np.zeros((2, 2, 1, 1, 2))
        P[..., 0] = 1.0
        game = MarkovGameModel(P, np.zeros((2, 2, 1, 1)), rho=[1.0, 0.0])
        data = np.zeros((2, 2, 1, 1))
        data[:, 0] = 1.0
        assert concentrability(game, [1.0], [1.0], data) == 1.0
        wider = MarkovGameModel(P, np.zeros((2, 2, 1, 1)))
        assert concentrability(wider, [1.0], [1.0], data) == np.inf

    def test_many_targets_in_blocks(self, monkeypatch):
        game = random_game(10)
        data = np.full((H, S, A, B), 1 / (S * A * B))
        whole = concentrability(game, [1 / 3] * 3, [1 / 3] * 3, data)
        monkeypatch.setattr("assay.games.markov_gap._TARGETS", 2)
        assert concentrability(game, [1 / 3] * 3, [1 / 3] * 3, data) == pytest.approx(whole)
        assert whole >= 1

    def test_refused(self):
        game = random_game(10)
        with pytest.raises(ValueError, match="d_data must be of shape"):
            concentrability(game, [1 / 3] * 3, [1 / 3] * 3, np.ones((1, S, A, B)))
        with pytest.raises(ValueError, match="d_data must be non-negative and sum to 1"):
            concentrability(game, [1 / 3] * 3, [1 / 3] * 3, np.ones((H, S, A, B)))


class TestSampling:
    def test_frequencies(self):
        game = random_game(11)
        data = game.sample_dataset(40_000, rng=0, noise="bernoulli")
        assert isinstance(data, OfflineGameData)
        assert data.n_samples.tolist() == [40_000] * H
        frequencies = data.counts(1).sum(axis=0) / 40_000
        np.testing.assert_allclose(frequencies, 1 / 9, atol=0.01)
        samples = data.step(2)
        where = (samples.s == 1) & (samples.a == 2) & (samples.b == 0)
        chances = np.bincount(samples.s_next[where], minlength=S) / where.sum()
        np.testing.assert_allclose(chances, game.transition_matrix(2)[(1 * A + 2) * B], atol=0.05)
        assert set(data.r) == {0.0, 1.0}
        assert samples.r[where].mean() == pytest.approx(game.rewards[2, 1, 2, 0], abs=0.05)
        np.testing.assert_array_equal(data.step(1).s_next, data.step(2).s)

    def test_behaviours(self):
        game = random_game(12)
        pure = game.sample_dataset(50, ([0, 1, 0], [0, 0, 1.0]), rng=0)
        assert set(pure.a) == {1}
        assert set(pure.b) == {2}
        joint = np.zeros((S, A, B))
        joint[:, 2, 0] = joint[:, 0, 2] = 0.5
        correlated = game.sample_dataset(50, joint, rng=0)
        assert set(correlated.a + correlated.b) == {2}
        np.testing.assert_array_equal(pure.r, game.rewards[pure.h - 1, pure.s, pure.a, pure.b])

    def test_repeatable(self):
        game = random_game(13)
        one, two, other = (game.sample_dataset(30, rng=np.random.default_rng(seed)) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one.s_next, two.s_next)
        assert not np.array_equal(one.s_next, other.s_next)

    @pytest.mark.parametrize(
        "change, error, message",
        [
            ({"n": 0}, ValueError, "n must be at least 1"),
            ({"behaviour": "expert"}, ValueError, "behaviour must be one of 'uniform'"),
            ({"behaviour": (np.ones(3) / 3,)}, ValueError, "behaviour must be a pair"),
            ({"behaviour": np.ones((2, 2)) / 4}, ValueError, "behaviour must have shape"),
            ({"behaviour": np.ones((3, 3))}, ValueError, "sum to 1"),
            ({"noise": "normal"}, ValueError, "noise must be one of"),
            ({"rng": "seed"}, TypeError, "rng must be None"),
        ],
    )
    def test_refused(self, change, error, message):
        with pytest.raises(error, match=message):
            random_game(0).sample_dataset(**({"n": 5} | change))


def test_models_keep_copies():
    P, r = np.full((S, A, B, S), 1 / S), np.full((S, A, B), 0.5)
    matrix = sp.csr_array(P.reshape(S * A * B, S))
    dense, sparse = MarkovGameModel(P, r, horizon=2), MarkovGameModel(matrix, r, horizon=2)
    P[:], r[:], matrix.data[:] = 0.0, 0.0, 0.0
    for model in (dense, sparse):
        np.testing.assert_allclose(model.backup(0, np.ones(S)), 1.5)
    # explicit zeros and repeated entries are the user's, and stay as they are
    columns, ends = np.array([0, 1, 0, 0, 1, 0]), np.array([0, 3, 6])
    twice = sp.csr_array((np.array([0.5, 0.0, 0.5] * 2), columns, ends), shape=(2, 2))
    model = MarkovGameModel(twice, np.zeros((2, 1, 1)), horizon=2)
    model.sample_dataset(5, rng=0)
    assert twice.nnz == 6
    assert model.transition_matrix(0).nnz == 2


def test_single_precision_is_made_exact():
    P = np.random.default_rng(0).dirichlet(np.ones(S), size=(S, A, B)).astype(np.float32)
    for matrix in (P, sp.csr_array(P.reshape(-1, S))):
        model = MarkovGameModel(matrix, np.zeros((S, A, B)), horizon=2)
        np.testing.assert_allclose(model.backup(0, np.ones(S)), 1, atol=1e-15)


@pytest.mark.parametrize(
    "table, error, message",
    [
        ({}, ValueError, "table must have at least one state"),
        (3, TypeError, "table must be a mapping"),
        ({0: 3}, TypeError, "table must be a mapping"),
        ({1: {(0, 0): []}}, ValueError, "table must have the states 0 to 0"),
        ({0: {}}, ValueError, "all 1 x 1 pairs"),
        ({0: {0: []}}, TypeError, "pairs of integers as actions, got 0"),
        ({0: {(0, 0): [(1.0, 0, 0.5)]}}, TypeError, "entries .probability, next state, reward, ended., got"),
        ({0: {(0, 0): [(1.0, 0.5, 0.5, False)]}}, ValueError, "next states in 0 to 0, got 0.5 in state 0"),
        ({0: {(0, 0): [(1.0, -1, 0.5, False)]}}, ValueError, "next states in 0 to 0, got -1"),
        ({0: {(0, 0): [(2.0, 0, 0.5, False), (-1.0, 0, 0.5, False)]}}, ValueError, "not negative, got -1"),
        ({0: {(0, 0): []}}, ValueError, "sum to 1"),
    ],
)
def test_bad_transition_lists(table, error, message):
    with pytest.raises(error, match=message):
        MarkovGameModel.from_transition_lists(table, 1)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"P": sp.csr_array(np.ones((S * A * B, S)) * (1 / S + 0j))}, "P must be of real numbers, got dtype complex"),
        ({"r": [["a"]]}, "r must be"),
        ({"horizon": True}, "horizon must be an integer"),
    ],
)
def test_models_of_other_types(change, message):
    good = {"P": np.full((S, A, B, S), 1 / S), "r": np.zeros((S, A, B)), "horizon": H}
    with pytest.raises(TypeError, match=message):
        MarkovGameModel(**(good | change))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"P": np.ones((S, A, B, S))}, "P must have probabilities that sum to 1"),
        ({"P": -np.ones((S, A, B, S))}, "P must be non-negative"),
        ({"P": np.ones((S, A, B, S + 1)) / (S + 1)}, "P must be of shape"),
        ({"P": np.full((S, A, B, S), np.nan)}, "P must be a finite"),
        ({"P": sp.eye_array(S)}, "P must be of shape .* when sparse"),
        ({"r": np.full((S, A, B), 2.0)}, "r must be in .0, 1."),
        ({"r": np.ones((A, B))}, "r must be a finite 3-D or 4-D"),
        ({"horizon": None}, "horizon must be given"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"r": np.ones((3, S, A, B))}, "horizon must agree"),
        ({"rho": np.ones(S)}, "rho must have probabilities that sum to 1"),
        ({"rho": [1.0]}, "rho must be of shape"),
    ],
)
def test_bad_models(change, message):
    good = {"P": np.full((S, A, B, S), 1 / S), "r": np.zeros((S, A, B)), "horizon": H}
    with pytest.raises(ValueError, match=message):
        MarkovGameModel(**(good | change))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"beta": 0}, "beta must be greater than 0"),
        ({"beta": [0.1, 0.2]}, "beta must be a number or one per step, 4 of them"),
        ({"beta": [1, 1, 1, -1]}, "beta must be greater than 0"),
        ({"mu_ref": [1, 0, 0]}, "mu_ref must give every action a positive probability"),
        ({"nu_ref": np.ones((S, B))}, "nu_ref must have probabilities that sum to 1"),
        ({"mu": [0.5, 0.5]}, "mu must be of shape"),
        ({"nu": [1.5, -0.5, 0.0]}, "nu must be non-negative"),
        ({"rho": np.ones(S)}, "rho must have probabilities that sum to 1"),
    ],
)
def test_bad_arguments_of_the_gap(change, message):
    good = {"beta": 1.0, "mu_ref": None, "nu_ref": None, "mu": [1, 0, 0], "nu": [0, 0, 1]}
    with pytest.raises(ValueError, match=message):
        regularized_gap(random_game(0), **(good | change))


def test_the_exact_solver_warns_when_it_stops_early():
    with pytest.warns(ConvergenceWarning, match="regularized_equilibrium did not reach"):
        solution = regularized_equilibrium(random_game(0), 0.01, max_iter=3)
    assert not solution.certified


class TestEnvironment:
    @pytest.fixture
    def env(self):
        pytest.importorskip("gymnasium")
        from assay.games.markov_env import MatrixMarkovGame

        P, r = arrays(14)
        return MatrixMarkovGame(P, r)

    def test_passes_the_checker(self, env):
        from gymnasium.utils.env_checker import check_env

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about not being registered
            check_env(env)

    def test_an_episode(self, env):
        state, info = env.reset(seed=3)
        assert info == {"h": 1}
        for h in range(H):
            before = state
            state, reward, terminated, truncated, info = env.step(np.array([1, 2]))
            assert reward == env.model.rewards[h, before, 1, 2]
            assert terminated == (h == H - 1)
            assert not truncated
            assert info == {"h": h + 2}
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step([0, 0])
        assert env.reset(options={"state": 4})[0] == 4

    def test_seeds(self, env):
        def play(seed):
            states = [env.reset(seed=seed)[0]]
            states += [env.step(np.array([0, 0]))[0] for _ in range(H)]
            return states

        assert play(5) == play(5)
        assert len({tuple(play(seed)) for seed in range(5)}) > 1

    def test_logs_and_gaps(self, env):
        data = env.sample_dataset(10, rng=0)
        assert data.n_samples.tolist() == [10] * H
        assert regularized_gap(env, 1.0, None, None, [1 / 3] * 3, [1 / 3] * 3) > 0

    def test_noise(self):
        pytest.importorskip("gymnasium")
        from assay.games.markov_env import MatrixMarkovGame

        env = MatrixMarkovGame(random_game(15), noise="bernoulli")
        env.reset(seed=0)
        rewards = []
        for _ in range(200):
            _, reward, ended, _, _ = env.step((0, 0))
            rewards.append(reward)
            if ended:
                env.reset()
        assert set(rewards) == {0.0, 1.0}
        assert set(env.sample_dataset(30, rng=0).r) == {0.0, 1.0}

    def test_refused(self, env):
        from assay.games.markov_env import MatrixMarkovGame

        env.reset(seed=0)
        for action in ([0], [0, 3], [0.0, 1.0], [-1, 0], 2):
            with pytest.raises(ValueError, match="action must be a pair"):
                env.step(action)
        with pytest.raises(ValueError, match="options must have no other key"):
            env.reset(options={"start": 1})
        with pytest.raises(ValueError, match=r"options\['state'\] must be in 0 to 4"):
            env.reset(options={"state": 9})
        with pytest.raises(ValueError, match="r must be given"):
            MatrixMarkovGame(arrays(0)[0])
        with pytest.raises(ValueError, match="must be None when P is a MarkovGameModel"):
            MatrixMarkovGame(env.model, horizon=3)
        with pytest.raises(ValueError, match="noise must be"):
            MatrixMarkovGame(env.model, noise="normal")

    def test_without_gymnasium(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gymnasium", None)
        monkeypatch.delitem(sys.modules, "assay.games.markov_env", raising=False)
        module = importlib.import_module("assay.games.markov_env")
        with pytest.raises(MissingExtraError, match=r"assay\[games\]"):
            module.MatrixMarkovGame(random_game(0))
        monkeypatch.delitem(sys.modules, "assay.games.markov_env")


class TestOpenSpiel:
    @pytest.fixture(autouse=True)
    def _needed(self):
        pytest.importorskip("pyspiel")

    def test_symmetric_games_have_value_zero(self):
        for name in ("matrix_rps", "goofspiel(num_cards=3,imp_info=False,points_order=descending)"):
            converted = openspiel_markov_game(name)
            solution = regularized_equilibrium(converted.model, 0.05, converted.mu_ref, converted.nu_ref)
            value = float(converted.model.rho @ solution.V[0])
            assert converted.scale * (2 * value - converted.model.horizon) == pytest.approx(0, abs=1e-9)

    def test_rock_paper_scissors(self):
        converted = openspiel_markov_game("matrix_rps")
        np.testing.assert_allclose(converted.model.rewards[0, 0], [[0.5, 0, 1], [1, 0.5, 0], [0, 1, 0.5]])
        solution = regularized_equilibrium(converted.model, 0.1, converted.mu_ref, converted.nu_ref)
        np.testing.assert_allclose(solution.mu[0, 0], 1 / 3, atol=1e-6)

    def test_references_are_uniform_on_moves(self):
        converted = openspiel_markov_game("goofspiel(num_cards=3,imp_info=False,points_order=descending)")
        for s, (mine, theirs) in enumerate(converted.moves):
            for reference, moves in ((converted.mu_ref[s], mine), (converted.nu_ref[s], theirs)):
                chances = {move: reference[np.array(moves) == move].sum() for move in set(moves)}
                assert list(chances.values()) == pytest.approx([1 / len(chances)] * len(chances))

    def test_turns_and_chance(self):
        converted = openspiel_markov_game("goofspiel(num_cards=3,imp_info=False,points_order=random)")
        assert converted.model.rho.sum() == pytest.approx(1)
        assert (converted.model.rho > 0).sum() == 3
        for piles, value in (("1;2", 1.0), ("1;2;3", -1.0)):  # whoever takes the last one wins
            turns = openspiel_markov_game(f"nim(pile_sizes={piles},is_misere=false)")
            assert set(turns.moves[0][1]) == {0}
            solution = regularized_equilibrium(turns.model, 0.01, turns.mu_ref, turns.nu_ref, tol=1e-6)
            found = 2 * float(turns.model.rho @ solution.V[0]) - turns.model.horizon
            assert found == pytest.approx(value, abs=0.2)

    def test_refused(self):
        for name in ("kuhn_poker", "matching_pennies_3p", "matrix_pd"):
            with pytest.raises(ValueError, match="game must be zero-sum"):
                openspiel_markov_game(name)
        with pytest.raises(ValueError, match="at most max_states=100"):
            openspiel_markov_game("tic_tac_toe", max_states=100)
        with pytest.raises(ValueError, match="a position counts once for each number of moves"):
            openspiel_markov_game("oshi_zumo(coins=4)", max_states=500)
        with pytest.raises(ValueError, match="game must be one that OpenSpiel has, got 'no_such_game'"):
            openspiel_markov_game("no_such_game")
        with pytest.raises(TypeError, match=r"game must be a name or a pyspiel.Game, got int"):
            openspiel_markov_game(3)

    @pytest.mark.parametrize("name", ["oshi_zumo(coins=3,horizon=3)", "nim(pile_sizes=3;4)"])
    def test_rules_that_count_moves(self, name):
        # positions of oshi_zumo come again, but its number of moves is limited
        import pyspiel
        from open_spiel.python import policy
        from open_spiel.python.algorithms import exploitability

        converted = openspiel_markov_game(name)
        assert converted.steps[-1] == converted.model.horizon == 1 + max(converted.steps[:-1])
        turns = pyspiel.load_game(name)
        if turns.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
            turns = pyspiel.convert_to_turn_based(turns)
        theirs = exploitability.nash_conv(turns, policy.UniformRandomPolicy(turns))
        gap = nash_gap(converted.model, converted.mu_ref, converted.nu_ref)
        assert 2 * converted.scale * gap == pytest.approx(theirs, abs=1e-12)
