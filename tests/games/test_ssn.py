import inspect
import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from assay.games import ssn
from assay.games.matrix_game import duality_gap
from assay.games.semismooth_newton import residual_gap_bound
from assay.games.ssn import METHODS, convergence_order, solve_matrix_game
from assay.validation import ConvergenceWarning

RPS = np.array([[0, 1, -1], [-1, 0, 1], [1, -1, 0]])
BIASED_RPS = np.array([[0, -1, 3], [1, 0, -1], [-3, 1, 0]])


def uniform(seed, shape):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def linear_program(payoff):
    """Value and both strategies by linear programming."""
    n_rows, n_columns = payoff.shape
    answer = linprog(
        np.append(np.zeros(n_rows), 1),
        A_ub=np.column_stack((payoff.T, -np.ones(n_columns))),
        b_ub=np.zeros(n_columns),
        A_eq=np.append(np.ones(n_rows), 0)[None],
        b_eq=[1],
        bounds=[(0, None)] * n_rows + [(None, None)],
        method="highs-ds",
    )
    return answer.fun, answer.x[:-1], -answer.ineqlin.marginals


# Known values.


@pytest.mark.parametrize(
    "payoff, value, x, y",
    [
        (RPS, 0, [1 / 3] * 3, [1 / 3] * 3),
        (BIASED_RPS, 0, [0.2, 0.6, 0.2], [0.2, 0.6, 0.2]),
        (np.diag([1, 2, 3, 4]), 0.48, [0.48, 0.24, 0.16, 0.12], [0.48, 0.24, 0.16, 0.12]),
        (np.eye(5), 0.2, [0.2] * 5, [0.2] * 5),
        ([[3, 1, 4], [2, 0, 1], [5, 6, 7]], 2, [0, 1, 0], [1, 0, 0]),
    ],
)
@pytest.mark.parametrize("method", ["hpssn", "pssn", "ssn"])
def test_known_equilibria(payoff, value, x, y, method):
    result = solve_matrix_game(payoff, method=method)
    assert result.converged
    assert result.value == pytest.approx(value, abs=1e-10)
    np.testing.assert_allclose(result.x, x, atol=1e-9)
    np.testing.assert_allclose(result.y, y, atol=1e-9)


def test_known_random_games():
    result = solve_matrix_game(np.random.default_rng(7).uniform(-1, 1, (50, 70)))
    assert result.value == pytest.approx(0.038481742785, abs=1e-10)
    assert (result.support_x.size, result.support_y.size) == (28, 28)
    ties = solve_matrix_game(np.random.default_rng(5).integers(-2, 3, (25, 40)))
    assert ties.value == pytest.approx(0.092718380616, abs=1e-10)


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (40, 40), (3, 200), (200, 3), (2, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_the_value_is_that_of_the_linear_program(shape, seed):
    payoff = np.random.default_rng(seed).normal(size=shape)
    result = solve_matrix_game(payoff)
    assert result.converged
    assert result.value == pytest.approx(linear_program(payoff)[0], abs=1e-9)


# Certificates, recomputed by other means.


@pytest.mark.parametrize("seed", range(4))
def test_the_gap_certificate_is_the_gap(seed):
    payoff = uniform(seed, (40, 60))
    result = solve_matrix_game(payoff)
    gap = max(payoff[:, j] @ result.x for j in range(60)) - min(payoff[i] @ result.y for i in range(40))
    certificate = result.certificates[0]
    assert certificate.value == result.gap == pytest.approx(gap, abs=1e-15)
    assert certificate.bound == result.tol == 1e-10
    assert gap <= 1e-10
    assert result.certified
    assert result.require() is result


@pytest.mark.parametrize("shape", [(30, 50), (50, 30)])
def test_the_residual_bounds_the_gap_at_every_newton_step(shape):
    for seed in range(4):
        payoff = uniform(seed, shape)
        # From the uniform start with little damping: residuals of all magnitudes, failed steps included.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            result = solve_matrix_game(payoff, method="ssn", damping=1.0)
        centred = payoff - payoff.mean()
        bounds = [
            residual_gap_bound(r, result.step_size, np.linalg.norm(centred, 2)) for r in result.history["residual"]
        ]
        assert len(bounds) > 3
        assert (result.history["gap"] <= np.array(bounds) * (1 + 1e-9) + 1e-14).all()


def test_a_broken_answer_breaks_its_certificates():
    payoff = uniform(0, (20, 30))
    splitting = ssn.GameSplitting(payoff)
    x, y = np.eye(20)[0], np.eye(30)[0]
    result = ssn._result(payoff, x, y, 1e-10)
    assert not result.converged
    assert not result.certificates[0].holds
    assert result.gap == pytest.approx(payoff[0].max() - payoff[:, 0].min())
    # The bound by the residual holds for every pair: it is a theorem, not a property of good answers.
    assert ssn._residual_certificate(splitting, x, y, 1.0).holds


@pytest.mark.parametrize(
    "corrupt",
    [
        pytest.param(lambda x, y: (0 * x, 0 * y), id="nothing"),
        pytest.param(lambda x, y: (1.001 * x, y), id="too much"),
        pytest.param(lambda x, y: (x, 0.999 * y), id="too little"),
        pytest.param(lambda x, y: (x - 0.1 + 0.1 * x.size * (np.arange(x.size) == 0), y), id="negative"),
        pytest.param(lambda x, y: (x, np.where(y == y.max(), np.nan, y)), id="nan"),
        pytest.param(lambda x, y: (np.roll(x, 1), y), id="exchanged rows"),
        pytest.param(lambda x, y: (x, y[::-1]), id="exchanged columns"),
        pytest.param(lambda x, y: ((x + 1e-6 * np.eye(x.size)[0]) / (1 + 1e-6), y), id="slightly off"),
    ],
)
def test_corrupted_strategies_break_the_certificate_of_the_gap(corrupt):
    payoff = uniform(0, (20, 30))
    solved = solve_matrix_game(payoff)
    assert ssn._result(payoff, solved.x, solved.y, 1e-10).certified
    result = ssn._result(payoff, *corrupt(solved.x, solved.y), 1e-10)
    assert not result.certified
    assert not result.converged


@given(payoff=arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 8)), elements=st.floats(-5, 5, width=16)))
@settings(max_examples=150, deadline=None)
def test_any_small_game_is_solved(payoff):
    result = solve_matrix_game(payoff)
    assert result.converged
    assert result.certified
    assert duality_gap(payoff, result.x, result.y) <= 1e-10
    assert result.value == pytest.approx(linear_program(payoff)[0], abs=1e-9)


@given(
    payoff=arrays(np.int64, st.tuples(st.integers(2, 9), st.integers(2, 9)), elements=st.integers(-2, 2)),
    shift=st.integers(-50, 50),
    factor=st.integers(1, 50),
)
@settings(max_examples=40, deadline=None)
def test_exchanging_players_shifting_and_scaling(payoff, shift, factor):
    value = solve_matrix_game(payoff).value
    assert solve_matrix_game(-payoff.T).value == pytest.approx(-value, abs=1e-9)
    assert solve_matrix_game(factor * payoff + shift).value == pytest.approx(factor * value + shift, abs=1e-9)


# Degenerate games are solved, not refused.


def blocks(base, rows, columns):
    return np.repeat(np.repeat(base, rows, axis=0), columns, axis=1)


@pytest.mark.parametrize(
    "payoff",
    [
        pytest.param(blocks(uniform(0, (8, 12)), 3, 2), id="duplicated actions"),
        pytest.param(np.vstack((uniform(0, (10, 15)), uniform(0, (10, 15)) + 0.5)), id="dominated rows"),
        pytest.param(np.hstack((uniform(0, (10, 15)), uniform(0, (10, 15)) - 0.5)), id="dominated columns"),
        pytest.param(uniform(1, (40, 3)) @ uniform(2, (3, 60)), id="rank 3"),
        pytest.param(np.outer(uniform(1, 40), uniform(2, 60)), id="rank 1"),
        pytest.param(np.random.default_rng(0).integers(-1, 2, (60, 60)), id="ties"),
        pytest.param(np.random.default_rng(0).integers(0, 2, (50, 80)), id="zeros and ones"),
        pytest.param(np.sign(uniform(0, (30, 30)) - uniform(0, (30, 30)).T), id="tournament"),
        pytest.param(np.eye(60), id="identity"),
        pytest.param(np.triu(np.ones((30, 30)), 1) - np.tril(np.ones((30, 30)), -1), id="higher number wins"),
        pytest.param(np.roll(np.eye(9), 1, 0) - np.roll(np.eye(9), -1, 0), id="long rock-paper-scissors"),
        pytest.param(np.kron(np.eye(12), BIASED_RPS), id="many equal parts"),
        pytest.param(np.linspace(0, 1, 40)[:, None] ** np.arange(8), id="nearly singular"),
    ],
)
def test_degenerate_games(payoff):
    result = solve_matrix_game(payoff)
    assert result.converged, str(result.certificates[0])
    assert result.certified
    assert result.value == pytest.approx(linear_program(payoff.astype(float))[0], abs=1e-9)


def rescaled(rows, columns, digits):
    units = 10.0 ** np.random.default_rng(1).uniform(-digits, digits, (rows, columns))
    return units * uniform(0, (30, 40))


def with_barriers(size):
    payoff = uniform(0, (30, 40))
    payoff[3], payoff[:, 5] = size, -size
    return payoff


def with_forbidden_pairs(size):
    return np.where(np.random.default_rng(1).random((30, 40)) < 0.05, size, uniform(0, (30, 40)))


def with_one_huge_payoff(size):
    payoff = uniform(0, (30, 40))
    payoff[0, 0] = size
    return payoff


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e8])
@pytest.mark.parametrize("kind", [with_barriers, with_forbidden_pairs, with_one_huge_payoff])
def test_a_few_huge_payoffs(kind, size):
    payoff = kind(size)
    result = solve_matrix_game(payoff, rtol=True)
    assert result.certified
    assert duality_gap(payoff, result.x, result.y) <= 1e-10 * size
    # By default, too, the small payoffs are not lost under the huge ones.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = solve_matrix_game(payoff)
    assert result.gap <= max(1e-10, 1e-14 * size)
    assert result.value == pytest.approx(linear_program(payoff)[0], abs=1e-6)


@pytest.mark.parametrize("digits", [1, 2, 4, 6])
@pytest.mark.parametrize("rows, columns", [(30, 1), (1, 40), (30, 40)])
def test_rows_columns_and_entries_in_different_units(rows, columns, digits):
    payoff = rescaled(rows, columns, digits)
    for kind in (payoff, sp.csr_array(payoff), payoff.T):
        result = solve_matrix_game(kind, rtol=True)
        assert result.certified, str(result.certificates[0])


@pytest.mark.parametrize("noise", [1e-12, 1e-10, 1e-6, 1e-5, 1e-4, 1e-2])
def test_nearly_equal_actions(noise):
    payoff = np.tile(uniform(0, (10, 10)), (3, 3)) + noise * uniform(1, (30, 30))
    assert solve_matrix_game(payoff, rtol=True).certified


@pytest.mark.parametrize("digits", [2, 4, 6])
def test_diagonal_games_have_their_closed_form_in_any_unit(digits):
    units = np.logspace(-digits, digits, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = solve_matrix_game(np.diag(units), rtol=True, tol=1e-15)
    assert result.gap <= 1e-14 * units[-1]
    assert result.value == pytest.approx(1 / (1 / units).sum(), abs=result.gap)


def test_the_central_path_is_followed_when_trials_fail():
    payoff = with_forbidden_pairs(1e6)
    with pytest.warns(ConvergenceWarning):
        without = solve_matrix_game(payoff, rtol=True, interior_after=None, max_iter=2000)
    assert (without.n_interior, without.converged) == (0, False)
    for after in (1, 2, 3):
        result = solve_matrix_game(payoff, rtol=True, interior_after=after)
        assert result.converged
        assert result.n_interior > 0
        assert result.n_trials >= after
        interior = result.history["phase"] == "interior"
        assert interior.sum() == result.n_interior
        assert (result.history["trial"][interior] == after).all()
        assert np.isnan(result.history["residual"][interior]).all()
    # Or when there is no iteration left for another trial.
    assert solve_matrix_game(payoff, rtol=True, max_iter=50).n_interior > 0


def test_the_callback_can_stop_the_central_path():
    with pytest.warns(ConvergenceWarning):
        result = solve_matrix_game(with_forbidden_pairs(1e6), callback=lambda row: row["phase"] == "interior")
    assert result.n_interior == 1
    assert result.history["phase"][-1] == "interior"


@pytest.mark.parametrize("payoff", [np.zeros((4, 6)), np.full((4, 6), 3), [[5]], np.full((3, 7), 0.1)])
def test_constant_games_get_uniform_strategies_at_once(payoff):
    for method in METHODS:
        result = solve_matrix_game(payoff, method=method)
        assert (result.n_prm, result.n_newton) == (0, 0)
        assert np.ptp(result.x) == np.ptp(result.y) == 0
        assert result.certified


def test_a_huge_constant_is_not_spoiled_by_rounding():
    result = solve_matrix_game(np.full((3, 7), 1e17 / 3))
    assert result.gap == 0
    assert result.converged


@pytest.mark.parametrize("method", METHODS)
def test_one_row_and_one_column_have_a_closed_form(method):
    row = solve_matrix_game([[3, 7, 5]], method=method)
    assert (row.value, row.gap, row.y.tolist(), row.n_prm) == (7, 0, [0, 1, 0], 0)
    column = solve_matrix_game([[3], [7], [2]], method=method)
    assert (column.value, column.gap, column.x.tolist(), column.n_prm) == (2, 0, [0, 0, 1], 0)


@pytest.mark.parametrize("scale", [1e-300, 1e-8, 1e-3, 1e8, 1e12, 1e300])
def test_relative_tolerance_at_any_scale(scale):
    payoff = uniform(3, (30, 40))
    result = solve_matrix_game(scale * payoff, rtol=True)
    assert result.converged
    assert result.tol == pytest.approx(1e-10 * scale * abs(payoff).max())
    assert result.value == pytest.approx(scale * solve_matrix_game(payoff).value, rel=1e-7)


def test_a_power_of_two_changes_nothing():
    payoff = uniform(3, (30, 40))
    plain, scaled = solve_matrix_game(payoff, rtol=True), solve_matrix_game(2.0**40 * payoff, rtol=True)
    np.testing.assert_array_equal(plain.x, scaled.x)
    assert plain.n_newton == scaled.n_newton


def test_a_large_offset_is_removed():
    payoff = uniform(3, (30, 40))
    result = solve_matrix_game(payoff + 1e5, rtol=True, tol=1e-14)
    assert result.value - 1e5 == pytest.approx(solve_matrix_game(payoff).value, abs=1e-8)
    # The step follows the spread of the payoffs, not their size.
    assert result.step_size == pytest.approx(solve_matrix_game(payoff).step_size, rel=1e-6)


def test_a_tolerance_below_rounding_stops_early_and_says_so():
    payoff = 1e8 * uniform(3, (30, 40))
    with pytest.warns(ConvergenceWarning, match="did not reach tol=1e-12"):
        result = solve_matrix_game(payoff, tol=1e-12)
    assert not result.converged
    assert not result.certificates[0].holds
    assert result.gap <= 1e-6
    assert result.n_prm + result.n_newton < 500


# Methods, options and the contract of the result.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(20, 30), (30, 20)])
def test_every_method(method, shape):
    payoff = uniform(4, shape)
    result = solve_matrix_game(payoff, method=method, tol=1e-5)
    assert result.converged
    assert result.gap <= 1e-5
    assert (result.n_prm > 0) == (method != "ssn")
    assert (result.n_newton > 0) == (method in ("ssn", "pssn") or result.n_trials > 0)
    assert (result.n_trials == 0) == (method == "prm+")
    assert len(result.certificates) == (1 if method == "prm+" else 2)


def test_prm_plus_alone_warns_when_it_runs_out_of_iterations():
    with pytest.warns(ConvergenceWarning, match="did not reach tol=1e-10 in 50 iterations"):
        result = solve_matrix_game(uniform(4, (20, 30)), method="prm+", max_iter=50)
    assert not result.converged
    assert not result.certified
    assert result.n_prm == 50
    assert result.gap == pytest.approx(result.history["gap"].min(), rel=1e-9)


def test_a_failed_trial_is_discarded_and_regret_matching_goes_on():
    payoff = uniform(5, (40, 60))
    result = solve_matrix_game(payoff, block=5, max_newton=3, growth=3.0, max_iter=5000, interior_after=None)
    assert result.converged
    phases, trials, iterations = (result.history[name] for name in ("phase", "trial", "iteration"))
    assert result.n_trials == trials.max() > 1
    assert result.n_newton <= 3 * result.n_trials
    # Trials after 5, 5 + 15, 5 + 15 + 45, ... iterations, on the same path that regret matching takes alone.
    starts = [iterations[phases == "prm+"][trials[phases == "prm+"] == k].max() for k in range(result.n_trials)]
    assert starts == np.cumsum(5 * 3 ** np.arange(result.n_trials)).tolist()[: len(starts)]
    alone = ssn.RegretMatching(payoff - payoff.mean())
    alone.advance(int(starts[-1]))
    last = np.flatnonzero(phases == "prm+")[-1]
    assert result.history["gap"][last] == pytest.approx(alone.gap, rel=1e-6)


def test_max_iter_is_kept():
    with pytest.warns(ConvergenceWarning):
        result = solve_matrix_game(uniform(5, (40, 60)), block=30, max_newton=1, max_iter=100, interior_after=None)
    assert result.n_prm == 100


def test_pssn_switches_at_a_gap():
    payoff = uniform(6, (30, 40))
    result = solve_matrix_game(payoff, method="pssn", switch_gap=1e-3)
    phase, gap = result.history["phase"], result.history["gap"]
    assert result.converged
    assert gap[phase == "prm+"][-1] <= 1e-3 < gap[phase == "prm+"][-2]
    assert result.n_trials == 1
    relative = solve_matrix_game(1000 * payoff, method="pssn", switch_gap=1e-3 / abs(payoff).max(), rtol=True)
    assert relative.n_prm == result.n_prm


def test_pssn_runs_one_block():
    result = solve_matrix_game(uniform(6, (30, 40)), method="pssn", block=123)
    assert result.n_prm == 123
    assert result.n_trials == 1


def test_a_start_at_the_equilibrium_is_recognised():
    payoff = uniform(7, (30, 40))
    solved = solve_matrix_game(payoff)
    for method in ("hpssn", "ssn"):
        again = solve_matrix_game(payoff, method=method, x0=solved.x, y0=solved.y, tol=1e-9)
        assert again.n_newton <= 1
        assert again.n_prm == 0
        assert again.converged


def test_a_start_near_the_equilibrium_saves_steps():
    payoff = uniform(7, (60, 80))
    solved = solve_matrix_game(payoff)
    near = solve_matrix_game(payoff + 1e-5 * uniform(8, (60, 80)), x0=solved.x, y0=solved.y)
    assert near.converged
    assert near.n_prm == 0
    assert near.n_newton < solved.n_newton


def test_only_one_start_may_be_given():
    payoff = uniform(7, (10, 12))
    for start in ({"x0": np.eye(10)[0]}, {"y0": np.full(12, 1 / 12)}):
        for method in METHODS:
            assert solve_matrix_game(payoff, method=method, tol=1e-4, **start).converged


def test_the_history_has_one_row_per_look():
    result = solve_matrix_game(uniform(9, (30, 40)))
    history = result.history
    newton = history["phase"] == "newton"
    assert set(history) == {"phase", "trial", "iteration", "gap", "residual", "regularization", "seconds"}
    assert newton.sum() == result.n_newton + result.n_trials
    assert np.isnan(history["residual"][~newton]).all()
    assert np.isfinite(history["residual"][newton]).all()
    assert (np.diff(history["seconds"]) >= 0).all()
    assert history["gap"].min() == pytest.approx(result.gap, abs=1e-14)


def test_the_callback_sees_every_row_and_can_stop():
    rows = []
    result = solve_matrix_game(uniform(9, (30, 40)), callback=rows.append)
    assert [row["gap"] for row in rows] == result.history["gap"].tolist()
    assert {row["phase"] for row in rows} == {"prm+", "newton"}
    for phase in ("prm+", "newton"):
        with pytest.warns(ConvergenceWarning):
            stopped = solve_matrix_game(uniform(9, (30, 40)), callback=lambda row, phase=phase: row["phase"] == phase)
        assert stopped.history["phase"][-1] == phase
        assert len(stopped.history["phase"]) < len(rows)


def test_the_callback_may_return_a_boolean_of_numpy():
    with pytest.warns(ConvergenceWarning):
        result = solve_matrix_game(uniform(9, (30, 40)), callback=lambda row: np.float64(row["gap"]) < 1e3)
    assert result.n_prm == 1


def test_an_error_in_the_callback_is_the_users():
    with pytest.raises(KeyError, match="mine"):
        solve_matrix_game(uniform(9, (30, 40)), callback=lambda row: {}["mine"])


def test_the_order_is_that_of_the_trial_that_solved_the_game():
    payoff = uniform(5, (40, 60))
    with pytest.warns(ConvergenceWarning):
        failed = solve_matrix_game(payoff, method="pssn", block=5, max_newton=8)
    assert failed.n_newton == 8
    assert math.isnan(failed.newton_order)
    assert not failed.rate_certificate().holds
    solved = solve_matrix_game(payoff)
    last = (solved.history["phase"] == "newton") & (solved.history["trial"] == solved.n_trials)
    assert solved.newton_order == convergence_order(solved.history["residual"][last])


@pytest.mark.parametrize("residuals", [[[1.0]], [math.nan], "abc", [1j]])
def test_an_order_is_of_a_finite_vector(residuals):
    with pytest.raises((TypeError, ValueError), match="residuals must be a finite 1-D array"):
        convergence_order(residuals)


def test_threads_do_not_disturb_each_other():
    payoffs = [uniform(seed, (40, 60)) for seed in range(8)]
    with ThreadPoolExecutor(4) as executor:
        for payoff, result in zip(payoffs, executor.map(solve_matrix_game, payoffs), strict=True):
            np.testing.assert_array_equal(result.x, solve_matrix_game(payoff).x)


def test_the_answer_does_not_depend_on_chance():
    payoff = uniform(10, (70, 90))
    first, second = solve_matrix_game(payoff), solve_matrix_game(payoff)
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.history["residual"], second.history["residual"])


def test_newton_steps_converge_superlinearly():
    orders = [solve_matrix_game(uniform(seed, (50, 100))).newton_order for seed in range(10)]
    assert np.nanmedian(orders) >= 1.6
    result = solve_matrix_game(uniform(0, (50, 100)))
    certificate = result.rate_certificate()
    assert certificate.value == result.newton_order
    assert certificate.holds == (result.newton_order >= 1.3)
    assert certificate.assumptions[0].satisfied is True


@pytest.mark.parametrize(
    "residuals, order",
    [
        ([1e-1, 1e-2, 1e-4, 1e-8], 2.0),
        ([1e-2, 1e-3, 1e-4, 1e-5], 1.0),
        ([5e-3, 1e-6, 3e-3, 1e-3, 1e-4, 1e-7], math.log(1e-3) / math.log(1e-1)),
        ([1e-3, 1e-6], math.nan),
        ([1e-3, 1e-6, 1e-3], math.nan),
        # As it is defined: a step that gained next to nothing makes the one after it look superlinear.
        ([1e-3, 0.99e-3, 1e-8], math.log(1e-8 / 0.99e-3) / math.log(0.99)),
        ([1e-2, 1e-4, 1e-8, 1e-16], 2.0),
        # What is above 1e-2 or below 1e-12 does not count.
        ([1e-1, 1e-3, 1e-5, 1e-15], math.nan),
        ([1e-3, 1e-5, 1e-12, 1e-15], 3.5),
        # Of the last two triples the larger counts, of those before none.
        ([1e-2, 0.5e-2, 1e-5, 1e-7, 1e-8], math.log(1e-2) / math.log(1e-5 / 0.5e-2)),
        ([1e-3, 1e-3, 1e-5, 1e-9], 2.0),
        ([], math.nan),
    ],
)
def test_order_of_convergence(residuals, order):
    assert convergence_order(residuals) == pytest.approx(order, nan_ok=True)


def test_the_result_can_be_shown_and_stored():
    result = solve_matrix_game(BIASED_RPS)
    content = result.to_dict()
    assert content["support_x"] == [0, 1, 2]
    assert content["certificates"][0]["holds"] is True
    assert content["history"]["phase"][0] == "prm+"
    assert "certificates: 2 of 2 hold" in repr(result)
    with pytest.raises(AttributeError):
        result.x = None


# Kinds of input.


def test_other_kinds_of_arrays():
    payoff = np.random.default_rng(0).integers(-9, 10, (12, 15))
    expected = solve_matrix_game(payoff.astype(float))
    kinds = [
        payoff,
        payoff.tolist(),
        payoff.astype(np.float32),
        payoff.astype(object),
        np.asfortranarray(payoff.astype(float)),
        np.repeat(payoff, 2, axis=1).astype(float)[:, ::2],
        torch.tensor(payoff),
        torch.tensor(payoff, dtype=torch.float32, requires_grad=True),
    ]
    for kind in kinds:
        np.testing.assert_allclose(solve_matrix_game(kind).x, expected.x, atol=1e-10)


@pytest.mark.parametrize("density", [0.03, 0.3])
@pytest.mark.parametrize("shape", [(40, 70), (70, 40)])
def test_sparse_games(density, shape):
    payoff = sp.random_array(shape, density=density, rng=np.random.default_rng(1), data_sampler=None, format="coo")
    payoff.data -= 0.5
    for kind in (sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix):
        result = solve_matrix_game(kind(payoff))
        assert result.converged
        assert result.certified
        assert duality_gap(payoff.toarray(), result.x, result.y) <= 1e-10
    assert result.value == pytest.approx(linear_program(payoff.toarray())[0], abs=1e-9)


def test_sparse_matrices_stay_sparse(monkeypatch):
    payoff = sp.random_array((300, 400), density=0.02, rng=np.random.default_rng(2), format="csr")
    payoff.data -= 0.5
    original = sp.csr_array.toarray

    def only_square(self, *args, **kwargs):
        assert self.shape[0] == self.shape[1], "a payoff matrix was made dense"
        return original(self, *args, **kwargs)

    monkeypatch.setattr(sp.csr_array, "toarray", only_square)
    assert solve_matrix_game(payoff, rtol=True).converged


def test_arguments_are_left_alone():
    payoff, x0, y0 = uniform(1, (8, 9)), np.full(8, 1 / 8), np.full(9, 1 / 9)
    copies = payoff.copy(), x0.copy(), y0.copy()
    for array in (payoff, x0, y0):
        array.flags.writeable = False
    solve_matrix_game(payoff, x0=x0, y0=y0)
    for array, copy in zip((payoff, x0, y0), copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    sparse = sp.csr_array(payoff)
    before = sparse.data.copy()
    solve_matrix_game(sparse)
    np.testing.assert_array_equal(sparse.data, before)


@pytest.mark.parametrize(
    "payoff, error, message",
    [
        ([1, 2, 3], ValueError, r"payoff must be a finite 2-D array, got shape \(3,\)"),
        (np.zeros((2, 2, 2)), ValueError, "payoff must be a finite 2-D array, got shape"),
        (np.zeros((0, 3)), ValueError, "not empty"),
        ([[0, np.nan], [1, 2]], ValueError, "1 nan or infinite entries"),
        ([[0, np.inf], [1, 2]], ValueError, "1 nan or infinite entries"),
        ([[1j, 0]], TypeError, "real numbers"),
        ([["a", "b"]], TypeError, "real numbers"),
        ([[1e305, -1e305], [0, 1]], ValueError, r"payoff must have entries of at most 1e\+300, got 1e\+305"),
    ],
)
def test_bad_payoffs(payoff, error, message):
    with pytest.raises(error, match=message):
        solve_matrix_game(payoff)
    with pytest.raises(error, match=message):
        duality_gap(payoff, [1], [1])


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"method": "newton"}, ValueError, "method must be one of 'hpssn', 'pssn', 'ssn', 'prm[+]', got 'newton'"),
        ({"tol": 0.0}, ValueError, "tol must be greater than 0"),
        ({"tol": math.nan}, ValueError, "tol must be finite"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1"),
        ({"max_newton": 0}, ValueError, "max_newton must be at least 1"),
        ({"block": 0}, ValueError, "block must be at least 1"),
        ({"growth": 0.5}, ValueError, "growth must be at least 1"),
        ({"step_size": 0.0}, ValueError, "step_size must be greater than 0"),
        ({"step_size": 1e-9}, ValueError, "step_size must be at least 1e-08 over the largest singular value"),
        ({"step_size": 1e12}, ValueError, "step_size must be at most 1e[+]08 over the largest singular value"),
        ({"interior_after": 0}, ValueError, "interior_after must be at least 1"),
        ({"damping": -1.0}, ValueError, "damping must be greater than 0"),
        ({"switch_gap": 1e-3}, ValueError, "switch_gap must be None unless method is 'pssn', got 0.001 with 'hpssn'"),
        ({"switch_gap": 0.0, "method": "pssn"}, ValueError, "switch_gap must be greater than 0"),
        ({"x0": [0.5, 0.5]}, ValueError, "x0 must have length 3, got 2"),
        ({"y0": [2, -1, 0]}, ValueError, "y0 must be non-negative"),
        ({"x0": [0.5, 0.5, 0.1]}, ValueError, "x0 must sum to 1"),
        ({"y0": [np.nan, 0.5, 0.5]}, ValueError, "y0 must be a finite 1-D array"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        solve_matrix_game(RPS, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rtol": 1e-6}, "rtol must be True or False, got 1e-06"),
        ({"alternating": "no"}, "alternating must be True or False, got 'no'"),
        ({"callback": 5}, "callback must be None or a function of one row of the history, got 5"),
    ],
)
def test_what_would_count_as_true_or_fail_late_is_refused(options, message):
    with pytest.raises(TypeError, match=message):
        inspect.unwrap(solve_matrix_game)(RPS, **options)  # without the type checks of the tests


def test_bad_strategies():
    for x, y, message in (([1, 0], [1, 0, 0], "x must have length 3"), ([1, 0, 0], [0.5, 0, 0], "y must sum to 1")):
        with pytest.raises(ValueError, match=message):
            duality_gap(RPS, x, y)
