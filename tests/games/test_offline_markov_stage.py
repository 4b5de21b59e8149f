"""Stage games with a pull to references: known values, the compiled loops against the formulas, limits, bad input."""

import importlib
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from assay.games.offline_baselines import stage_programs
from assay.games.stage_equilibrium import (
    half_ranges,
    iterations_needed,
    play_stage,
    relative_entropy,
    soft_maximum,
    solve_stage,
    stage_equilibrium,
    stage_gap,
    stage_gaps,
    stage_values,
)
from assay.validation import ConvergenceWarning

PENNIES = [[1, -1], [-1, 1]]
MU_REF, NU_REF = [0.7, 0.3], [0.5, 0.5]


def kl(p, q):
    return float(np.sum(p * np.log(p / q)))


def plain_self_play(Q, mu_ref, nu_ref, beta, n_iter, step=None):
    """The update as it is written down, in log-probabilities."""
    log_mu, log_nu = np.log(mu_ref), np.log(nu_ref)
    for t in range(n_iter):
        eta = beta / ((Q.max() - Q.min()) / 2) ** 2 if step is None else step(t)
        gain, loss = Q @ np.exp(log_nu), Q.T @ np.exp(log_mu)
        log_mu = (log_mu + eta * beta * np.log(mu_ref) + eta * gain) / (1 + eta * beta)
        log_nu = (log_nu + eta * beta * np.log(nu_ref) - eta * loss) / (1 + eta * beta)
        log_mu, log_nu = log_mu - logsumexp(log_mu), log_nu - logsumexp(log_nu)
    return np.exp(log_mu), np.exp(log_nu)


def plain_optimistic(Q, mu_ref, nu_ref, beta, n_iter):
    """Look ahead with the gains of the old look-ahead, move with those of the new one."""
    R = (Q.max() - Q.min()) / 2
    eta = min(1 / (2 * beta + 2 * R), 1 / (4 * R))
    log_mu, log_nu = np.log(mu_ref), np.log(nu_ref)
    ahead_mu, ahead_nu = log_mu, log_nu

    def move(log, log_ref, gain):
        new = (1 - eta * beta) * log + eta * beta * log_ref + eta * gain
        return new - logsumexp(new)

    for _ in range(n_iter):
        gain, loss = Q @ np.exp(ahead_nu), Q.T @ np.exp(ahead_mu)
        ahead_mu, ahead_nu = move(log_mu, np.log(mu_ref), gain), move(log_nu, np.log(nu_ref), -loss)
        gain, loss = Q @ np.exp(ahead_nu), Q.T @ np.exp(ahead_mu)
        log_mu, log_nu = move(log_mu, np.log(mu_ref), gain), move(log_nu, np.log(nu_ref), -loss)
    return np.exp(log_mu), np.exp(log_nu)


def plain_gap(Q, mu, nu, mu_ref, nu_ref, beta):
    upper = beta * logsumexp(Q @ nu / beta, b=mu_ref) + beta * kl(nu, nu_ref)
    lower = -beta * logsumexp(-Q.T @ mu / beta, b=nu_ref) - beta * kl(mu, mu_ref)
    return upper - lower


def random_stage(rng, n_states=6, n_rows=4, n_columns=3, size=3.0):
    Q = rng.uniform(0, size, (n_states, n_rows, n_columns))
    return Q, rng.dirichlet(np.ones(n_rows) * 3, n_states), rng.dirichlet(np.ones(n_columns) * 3, n_states)


class TestKnownValues:
    @pytest.mark.parametrize(
        "beta, mu, nu, value",
        [
            (0.1, 0.50209849, 0.4790274, -0.00862879),
            (0.5, 0.54267178, 0.41547569, -0.03458202),
            (1.0, 0.6058763, 0.39567829, -0.04231215),
            (5.0, 0.69347246, 0.46138257, -0.01546289),
        ],
    )
    def test_matching_pennies(self, beta, mu, nu, value):
        found_mu, found_nu, found = stage_equilibrium(PENNIES, MU_REF, NU_REF, beta, tol=1e-15)
        assert found_mu[0] == pytest.approx(mu, abs=2e-8)
        assert found_nu[0] == pytest.approx(nu, abs=2e-8)
        assert found == pytest.approx(value, abs=1e-8)
        assert found_mu.sum() == pytest.approx(1, abs=1e-15)

    def test_equal_payoffs_leave_the_references(self):
        for payoff in (0.0, -2.5):
            mu, nu, value = stage_equilibrium(np.full((3, 2, 2), payoff), MU_REF, NU_REF, 0.3)
            np.testing.assert_array_equal(mu, np.tile(MU_REF, (3, 1)))
            np.testing.assert_array_equal(nu, np.tile(NU_REF, (3, 1)))
            np.testing.assert_allclose(value, payoff, atol=1e-15)

    def test_strong_pull_gives_the_references(self):
        for beta, apart in ((1e4, 1e-4), (1e9, 1e-9)):
            mu, nu, value = stage_equilibrium(PENNIES, MU_REF, NU_REF, beta)
            assert abs(mu - MU_REF).max() <= apart
            assert abs(nu - NU_REF).max() <= apart
            assert abs(value) <= apart

    def test_weak_pull_gives_the_value_of_the_game(self):
        rng = np.random.default_rng(5)
        Q, mu_ref, nu_ref = random_stage(rng, 4, 3, 3, 1.0)
        mu, nu, _ = stage_programs(Q)
        exact = np.einsum("sa,sab,sb->s", mu, Q, nu)
        errors = [abs(stage_equilibrium(Q, mu_ref, nu_ref, beta, tol=1e-7)[2] - exact).max() for beta in (0.1, 0.002)]
        assert errors[1] <= 0.01
        assert errors[1] < errors[0] / 10

    def test_harmonic_steps_on_twenty_games(self):
        Q, uniform = np.random.default_rng(3).uniform(0, 4, (20, 5, 5)), np.full((20, 5), 0.2)
        seen = {0.1: (1.53, 0.44, 0.055), 0.3: (7.4e-3, 5.0e-4, 3.2e-5)}
        for beta, gaps in seen.items():
            for updates, gap in zip((160, 640, 2560), gaps, strict=True):
                found = play_stage(Q, uniform, uniform, beta, updates, harmonic=True).gap.max()
                assert found == pytest.approx(gap, rel=0.05)

    def test_optimism_needs_far_fewer_updates(self):
        Q, uniform = np.random.default_rng(3).uniform(0, 4, (20, 5, 5)), np.full((20, 5), 0.2)
        assert solve_stage(Q, uniform, uniform, 0.1, 1e-300, 640).gap.max() <= 1e-7
        assert play_stage(Q, uniform, uniform, 0.1, 640).gap.max() >= 1e-2


class TestAgainstTheFormulas:
    @pytest.mark.parametrize("beta", [0.05, 0.7, 20.0])
    def test_self_play(self, beta):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(0))
        found = play_stage(Q, mu_ref, nu_ref, beta, 37)
        harmonic = play_stage(Q, mu_ref, nu_ref, beta, 37, harmonic=True)
        own = play_stage(Q, mu_ref, nu_ref, beta, 37, eta=0.01)
        for s in range(len(Q)):
            arguments = Q[s], mu_ref[s], nu_ref[s], beta, 37
            for got, step in ((found, None), (harmonic, lambda t: 1 / (beta * (t + 2))), (own, lambda t: 0.01)):
                mu, nu = plain_self_play(*arguments, step)
                np.testing.assert_allclose(got.mu[s], mu, rtol=1e-10, atol=1e-15)
                np.testing.assert_allclose(got.nu[s], nu, rtol=1e-10, atol=1e-15)

    @pytest.mark.parametrize("beta", [0.05, 0.7, 20.0])
    def test_optimistic_weights(self, beta):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(1))
        found = solve_stage(Q, mu_ref, nu_ref, beta, 1e-300, 25)
        assert found.n_iter == 25
        for s in range(len(Q)):
            mu, nu = plain_optimistic(Q[s], mu_ref[s], nu_ref[s], beta, 25)
            np.testing.assert_allclose(found.mu[s], mu, rtol=1e-10, atol=1e-15)
            np.testing.assert_allclose(found.nu[s], nu, rtol=1e-10, atol=1e-15)

    def test_gap_and_history(self):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(2))
        found = play_stage(Q, mu_ref, nu_ref, 0.4, 23)
        gaps = [plain_gap(Q[s], found.mu[s], found.nu[s], mu_ref[s], nu_ref[s], 0.4) for s in range(len(Q))]
        np.testing.assert_allclose(found.gap, gaps, rtol=1e-9, atol=1e-14)
        assert found.worst_gaps[-1] == pytest.approx(max(gaps), rel=1e-9)
        assert found.iterations[-1] == 23
        one = play_stage(Q, mu_ref, nu_ref, 0.4, int(found.iterations[3]))
        assert found.worst_gaps[3] == pytest.approx(one.gap.max(), rel=1e-9)

    def test_states_are_solved_on_their_own(self):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(3), n_states=5)
        mu, nu, value = stage_equilibrium(Q, mu_ref, nu_ref, 0.2)
        for s in range(5):
            alone = stage_equilibrium(Q[s], mu_ref[s], nu_ref[s], 0.2)
            np.testing.assert_array_equal(mu[s], alone[0])
            np.testing.assert_array_equal(nu[s], alone[1])
            assert value[s] == alone[2]

    def test_any_memory_layout(self):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(4))
        Q.setflags(write=False)
        ordered = stage_equilibrium(Q, mu_ref, nu_ref, 0.5)
        other = stage_equilibrium(np.asfortranarray(Q), np.asfortranarray(mu_ref), nu_ref, 0.5)
        for one, two in zip(ordered, other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-13)

    def test_sampled_gains_are_unbiased_and_repeatable(self):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(6), size=1.0)
        exact = solve_stage(Q, mu_ref, nu_ref, 0.5, 1e-12, 10_000)
        runs = [
            play_stage(Q, mu_ref, nu_ref, 0.5, 4000, harmonic=True, sampled=4, rng=np.random.default_rng(seed))
            for seed in (0, 0, 1)
        ]
        np.testing.assert_array_equal(runs[0].mu, runs[1].mu)
        assert not np.array_equal(runs[0].mu, runs[2].mu)
        for run in runs:
            assert abs(run.mu - exact.mu).max() <= 0.03
            assert run.gap.max() <= 5e-3
        many = play_stage(Q, mu_ref, nu_ref, 0.5, 15, sampled=20_000, rng=np.random.default_rng(0))
        assert abs(many.mu - play_stage(Q, mu_ref, nu_ref, 0.5, 15).mu).max() <= 0.01

    def test_numbers_in_pieces(self, monkeypatch):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(6))
        # the name of the module is also that of a function of the package
        monkeypatch.setattr(importlib.import_module("assay.games.stage_equilibrium"), "_UNIFORMS", 1)
        found = play_stage(Q, mu_ref, nu_ref, 0.5, 9, sampled=3, rng=np.random.default_rng(0))
        assert found.mu.sum(axis=1) == pytest.approx(1)


class TestGap:
    def test_zero_at_the_equilibrium_only(self):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(7))
        found = solve_stage(Q, mu_ref, nu_ref, 0.3, 1e-13, 100_000)
        assert abs(stage_gap(Q, found.mu, found.nu, mu_ref, nu_ref, 0.3)).max() <= 1e-12
        spoilt = 0.99 * found.mu + 0.01 * np.eye(4)[0]
        assert (stage_gap(Q, spoilt, found.nu, mu_ref, nu_ref, 0.3) > 1e-6).all()

    def test_bounds_the_distance(self):
        rng = np.random.default_rng(8)
        Q, mu_ref, nu_ref = random_stage(rng)
        best = solve_stage(Q, mu_ref, nu_ref, 0.3, 1e-13, 100_000)
        mu, nu = rng.dirichlet(np.ones(4), 6), rng.dirichlet(np.ones(3), 6)
        distance = relative_entropy(mu, best.mu) + relative_entropy(nu, best.nu)
        assert (0.3 * distance <= stage_gap(Q, mu, nu, mu_ref, nu_ref, 0.3) + 1e-12).all()

    def test_what_is_no_distribution_has_none(self):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(9))
        mu = mu_ref.copy()
        mu[2, 0] += 1e-3
        gaps = stage_gaps(Q, mu, nu_ref, mu_ref, nu_ref, 1.0)
        assert np.isnan(gaps[2])
        assert np.isfinite(np.delete(gaps, 2)).all()

    def test_pure_policies(self):
        gap = stage_gap(PENNIES, [1, 0], [0, 1], MU_REF, NU_REF, 0.2)
        plain = plain_gap(np.array(PENNIES), np.array([1, 1e-300]), np.array([1e-300, 1]), MU_REF, NU_REF, 0.2)
        assert gap == pytest.approx(plain)

    def test_extreme_weights_keep_their_digits(self):
        gains, reference = np.array([[1.0, 0.0]]), np.array([[0.25, 0.75]])
        assert soft_maximum(gains, reference, 1e12)[0] == pytest.approx(0.25, abs=1e-11)
        assert soft_maximum(gains, reference, 1e-12)[0] == pytest.approx(1.0, abs=1e-10)
        assert soft_maximum(gains, reference, 5e-324)[0] == 1.0
        near = np.array([[0.25 + 1e-9, 0.75 - 1e-9]])
        exact = 0.5 * 1e-18 * (1 / 0.25 + 1 / 0.75)
        assert relative_entropy(near, reference)[0] == pytest.approx(exact, rel=1e-5)
        assert relative_entropy(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))[0] == np.inf

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 2**31), st.floats(0.01, 100))
    def test_non_negative_and_values_between_best_responses(self, seed, beta):
        rng = np.random.default_rng(seed)
        Q, mu_ref, nu_ref = random_stage(rng, 3, 2, 4)
        mu, nu = rng.dirichlet(np.ones(2), 3), rng.dirichlet(np.ones(4), 3)
        assert (stage_gap(Q, mu, nu, mu_ref, nu_ref, beta) >= -1e-12).all()
        found = solve_stage(Q, mu_ref, nu_ref, beta, 1e-8, 200_000)
        assert found.gap.max() <= 1e-8
        # a constant that is added to the payoffs is added to the value
        values = stage_values(Q, found.mu, found.nu, mu_ref, nu_ref, beta)
        np.testing.assert_allclose(stage_equilibrium(Q + 7, mu_ref, nu_ref, beta)[2], values + 7, atol=1e-7)


class TestContraction:
    @pytest.mark.parametrize("beta", [0.3, 1.0])
    def test_self_play_contracts_as_promised(self, beta):
        Q, mu_ref, nu_ref = random_stage(np.random.default_rng(10))
        best = solve_stage(Q, mu_ref, nu_ref, beta, 1e-14, 100_000)
        start = relative_entropy(best.mu, mu_ref) + relative_entropy(best.nu, nu_ref)
        rate = 1 + (beta / half_ranges(Q)) ** 2
        for updates in (1, 3, 10):
            found = play_stage(Q, mu_ref, nu_ref, beta, updates)
            left = relative_entropy(best.mu, found.mu) + relative_entropy(best.nu, found.nu)
            assert (left <= rate**-updates * start + 1e-12).all()

    def test_iterations_needed(self):
        assert iterations_needed(1e-3, 2.0, 0.5) == int(np.ceil(np.log(1e3) / np.log1p(0.0625)))
        assert iterations_needed(1e-3, 2.0, 0.5, eta=0.125) == iterations_needed(1e-3, 2.0, 0.5)
        assert iterations_needed(0.5, 0.0, 1.0) == 1
        assert iterations_needed(1e-3, 1.0, 1e-200) == 2**62
        assert iterations_needed(1e-3, 1.0, 1e308, eta=1e308) == 1  # and not none at all
        assert iterations_needed(1e-320, 1.0, 1.0) == int(np.ceil(-np.log(1e-320) / np.log(2)))

    @pytest.mark.filterwarnings("error")
    def test_extreme_numbers(self):
        Q = np.random.default_rng(0).uniform(-1, 1, (2, 3, 4))
        _, _, value = stage_equilibrium(Q, None, None, 0.5)
        for scale in (1e-300, 1e-100, 1e100, 1e299):
            _, _, scaled = stage_equilibrium(Q * scale, None, None, 0.5 * scale, tol=1e-10 * scale)
            np.testing.assert_allclose(scaled / scale, value, atol=1e-9)
        for half_range in (0.0, 1e-300, 1.0, 1e300):
            for beta in (1e-300, 1.0, 1e308):
                assert 1 <= iterations_needed(1e-3, half_range, beta) <= 2**62

    def test_tensors_and_whole_numbers(self):
        torch = pytest.importorskip("torch")
        plain = stage_equilibrium(PENNIES, MU_REF, NU_REF, 0.5)
        tensor = torch.tensor(PENNIES, dtype=torch.float32, requires_grad=True)
        for Q in (tensor, np.array(PENNIES, dtype=np.int8), np.array(PENNIES, dtype=np.float32)):
            for one, two in zip(plain, stage_equilibrium(Q, MU_REF, NU_REF, 0.5), strict=True):
                np.testing.assert_array_equal(one, two)

    def test_steps_are_capped(self):
        Q = np.array([[[1e-9, 0.0], [0.0, 0.0]]])
        uniform = np.full((1, 2), 0.5)
        found = play_stage(Q, uniform, uniform, 1e-6, 10, harmonic=True)
        assert np.isfinite(found.mu).all()
        assert play_stage(Q, uniform, uniform, 1.0, 3).gap[0] <= 1e-9


class TestBadInput:
    @pytest.mark.parametrize(
        "change, message",
        [
            ({"beta": 0.0}, "beta must be greater than 0"),
            ({"beta": -1.0}, "beta must be greater than 0"),
            ({"beta": np.nan}, "beta must be finite"),
            ({"Q": [1.0, 2.0]}, "Q must be a finite 2-D or 3-D array"),
            ({"Q": [[np.nan, 0], [0, 1]]}, "Q must be a finite"),
            ({"Q": [[1e301, 0], [0, 1]]}, "Q must have entries of size at most 1e.300, got 1e.301"),
            ({"mu_ref": [1.0, 0.0]}, "mu_ref must give every action a positive probability"),
            ({"mu_ref": [0.5, 0.4]}, "mu_ref must have probabilities that sum to 1"),
            ({"nu_ref": [0.5, 0.6, -0.1]}, "nu_ref must be of shape"),
            ({"nu_ref": [1.1, -0.1]}, "nu_ref must be non-negative"),
            ({"tol": 0}, "tol must be greater than 0"),
            ({"max_iter": 0}, "max_iter must be at least 1"),
        ],
    )
    def test_stage_equilibrium(self, change, message):
        arguments = {"Q": PENNIES, "mu_ref": MU_REF, "nu_ref": NU_REF, "beta": 0.5} | change
        with pytest.raises(ValueError, match=message):
            stage_equilibrium(**arguments)

    def test_iterations_needed(self):
        for arguments in ((1.0, 1, 1), (0.0, 1, 1), (0.1, -1, 1), (0.1, 1, 0)):
            with pytest.raises(ValueError, match="must be"):
                iterations_needed(*arguments)

    def test_warns_when_it_stops_early(self):
        with pytest.warns(ConvergenceWarning, match="stage_equilibrium did not reach tol"):
            stage_equilibrium(PENNIES, MU_REF, NU_REF, 1e-3, max_iter=10)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stage_equilibrium(PENNIES, MU_REF, NU_REF, 0.1)


def test_linear_programs_of_stage_games():
    rng = np.random.default_rng(11)
    Q = rng.uniform(0, 1, (40, 3, 4))
    Q[0] = 0.5
    mu, nu, gap = stage_programs(Q)
    assert gap <= 1e-9
    np.testing.assert_allclose(mu[0], 1 / 3)
    from assay.games.ssn import solve_matrix_game

    for s in (1, 5, 9):
        exact = solve_matrix_game(-Q[s])
        assert mu[s] @ Q[s] @ nu[s] == pytest.approx(-exact.value, abs=1e-8)
