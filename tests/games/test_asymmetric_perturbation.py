"""Gradient play with one perturbed player in matrix games."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from assay.games import asymmetric_run
from assay.games.asymmetric_baselines import extragradient, gda, ogda, sym_gda
from assay.games.asymmetric_invariance import excess, invariance_threshold, perturbed_minimax
from assay.games.asymmetric_perturbation import asym_gda, asymmetric_certificates, perturbed_gap
from assay.games.bilinear_saddle import BilinearSaddle, spectral_norm
from assay.games.matrix_game import duality_gap, nearest_distribution
from assay.games.polytope import Box, CappedSimplex, Polytope, Simplex
from assay.games.saddle_dynamics import STEPS, SaddlePlay, project_in_place
from assay.validation import ConvergenceWarning

RPS = np.array([[0, 1, -1], [-1, 0, 1], [1, -1, 0]])
BRPS = np.array([[0.0, -1, 3], [1, 0, -1], [-3, 1, 0]])
M_NE = np.array([[0.0, -1, 1, 0, 0], [1, 0, -1, 0, 0], [-1, 1, 0, 0, 0], [-1, 1, 0, 2, -1], [-1, 1, 0, -1, 2]])


def uniform(seed, shape):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def quietly(method, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method(*args, **options)


# Known values.


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0])
def test_small_perturbations_do_not_move_the_equilibrium_of_biased_rps(mu):
    result = asym_gda(BRPS, mu=mu, eps=1e-12)
    np.testing.assert_allclose(result.x, [0.2, 0.6, 0.2], atol=1e-11)
    np.testing.assert_allclose(result.y, [0.2, 0.6, 0.2], atol=1e-11)
    np.testing.assert_allclose(result.x_side, [0.2 - 0.08 * mu, 0.6, 0.2 + 0.08 * mu], atol=1e-6)
    assert result.certified
    assert result.rate < 1
    assert result.rate_certificate().holds
    assert result.proved_not_invariant == ()


@pytest.mark.parametrize(
    "payoff, mu, x",
    [
        (BRPS, 3.0, [0.2, 0.56666667, 0.23333333]),
        (BRPS, 4.0, [0.2, 0.525, 0.275]),
        (BRPS, 8.0, [0.2, 0.4625, 0.3375]),
        (M_NE, 2.0, [0.326087, 0.304348, 0.282609, 0.043478, 0.043478]),
    ],
)
def test_larger_perturbations_move_it_and_are_found_out(payoff, mu, x):
    with pytest.warns(ConvergenceWarning, match="is too large for this game"):
        result = asym_gda(payoff, mu=mu, eps=1e-10)
    np.testing.assert_allclose(result.x, x, atol=1e-6)
    assert result.proved_not_invariant == (mu,)
    assert not result.converged
    assert not result.certificates[1].holds
    np.testing.assert_allclose(perturbed_minimax(payoff, mu), x, atol=1e-6)


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_the_solution_of_least_norm_of_a_game_with_many(mu):
    result = asym_gda(M_NE, mu=mu, eps=1e-11)
    np.testing.assert_allclose(result.x, [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=1e-9)
    assert result.value_lower <= 0 <= result.value_upper


@pytest.mark.parametrize("mu", [1e-3, 1.0, 1e3])
def test_nothing_moves_uniform_play_of_rps(mu):
    np.testing.assert_allclose(perturbed_minimax(RPS, mu), 1 / 3, atol=1e-7)
    np.testing.assert_allclose(asym_gda(RPS, mu=mu).x, 1 / 3, atol=1e-12)


@pytest.mark.parametrize("mu", [0.3, 1.0, 10.0])
def test_rps_from_elsewhere(mu):
    result = asym_gda(RPS, mu=mu, x0=[0.5, 0.3, 0.2], y0=[0.1, 0.1, 0.8], eps=1e-10)
    np.testing.assert_allclose(result.x, 1 / 3, atol=1e-9)
    assert result.certified


@pytest.mark.parametrize("mu, nashconv", [(0.1, 0.0320), (1.0, 0.2857143), (2.0, 0.4324324)])
def test_symmetric_perturbation_ends_elsewhere(mu, nashconv):
    with pytest.warns(ConvergenceWarning, match="sym_gda did not reach"):
        result = sym_gda(BRPS, mu=mu, n_iter=5000)
    assert result.nashconv == pytest.approx(nashconv, abs=5e-5)
    assert not result.certified


def test_automatic_mode_finds_a_perturbation_below_the_threshold():
    result = asym_gda(BRPS, eps=1e-12)
    assert result.proved_not_invariant == (3.0,)
    assert (result.mu, result.halvings) == (1.5, 1)
    np.testing.assert_allclose(result.x, [0.2, 0.6, 0.2], atol=1e-11)


@pytest.mark.parametrize(
    "shape, seed, steps", [((20, 20), 1, (2860, 3540, 4240)), ((30, 50), 0, (32400, 40600, 48100))]
)
def test_steps_of_automatic_mode(shape, seed, steps):
    result = asym_gda(uniform(seed, shape), eps=1e-10)
    gaps, iterations = result.history["nashconv"], result.history["iteration"]
    reached = [iterations[np.argmax(gaps <= tol)] for tol in (1e-6, 1e-8, 1e-10)]
    np.testing.assert_allclose(reached, steps, rtol=0.1)
    assert result.converged
    assert result.certified


def test_the_threshold_of_biased_rps():
    for side in ("x", "y"):
        low, high = invariance_threshold(BRPS, side=side)
        assert low == pytest.approx(2.5, rel=0.01)
        assert low < high <= 1.0011 * low
    low, high = invariance_threshold(1e6 * BRPS, rtol=0.01)
    assert low == pytest.approx(2.5e6, rel=0.02)
    low, high = invariance_threshold(M_NE)
    assert low == pytest.approx(1.5, rel=0.01)
    assert linear_threshold(M_NE, np.array([1, 1, 1, 0, 0]) / 3) == pytest.approx(1.5)
    assert linear_threshold(BRPS, np.array([1, 3, 1]) / 5) == pytest.approx(2.5)
    assert invariance_threshold(RPS) == (np.inf, np.inf)
    assert invariance_threshold(np.zeros((2, 3))) == (np.inf, np.inf)


def linear_threshold(payoff, x):
    """The largest mu with -mu x in the subdifferential, for the solution x of least norm: a linear program."""
    received = payoff.T @ x
    active = np.flatnonzero(received >= received.max() - 1e-7)
    played = np.flatnonzero(x > 1e-7)
    n, k = len(x), len(active)
    # variables: weights of active columns, the common level, mu
    rows = np.column_stack((payoff[:, active], -np.ones(n), x))
    idle = np.setdiff1d(np.arange(n), played)
    answer = linprog(
        np.append(np.zeros(k + 1), -1.0),
        A_eq=np.vstack((rows[played], np.append(np.ones(k), [0.0, 0.0]))),
        b_eq=np.append(np.zeros(len(played)), 1.0),
        A_ub=-rows[idle] if len(idle) else None,
        b_ub=np.zeros(len(idle)) if len(idle) else None,
        bounds=[(0, None)] * k + [(None, None), (0, 1e6)],
    )
    return answer.x[-1]


@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_is_that_of_a_linear_program(seed):
    payoff = uniform(seed, (5, 6))
    low, _ = invariance_threshold(payoff)
    assert low == pytest.approx(linear_threshold(payoff, perturbed_minimax(payoff, 0.5 * low)), rel=0.01)


def test_rejected_perturbations_do_move_a_solution():
    checked = 0
    for seed in range(6):
        payoff = uniform(seed, (6, 7))
        value = asym_gda(payoff, eps=1e-12, n_iter=200_000).value_upper
        for mu in quietly(asym_gda, payoff, n_iter=2000).proved_not_invariant:
            losses = (
                excess(payoff, perturbed_minimax(payoff, mu), value),
                excess(-payoff.T, perturbed_minimax(payoff, mu, side="y"), -value),
            )
            assert max(losses) > 1e-8
            checked += 1
    assert checked > 6


# The gap of the perturbed game.


def test_the_perturbed_gap_is_zero_exactly_at_the_solution():
    for mu in (0.5, 1.0, 2.5):
        companion = [0.2 - 0.08 * mu, 0.6, 0.2 + 0.08 * mu]
        assert perturbed_gap(BRPS, [0.2, 0.6, 0.2], companion, mu) == pytest.approx(0, abs=1e-15)
        assert perturbed_gap(BRPS, [0.2, 0.6, 0.2], [0.2, 0.6, 0.2], mu) > 1e-4
        assert perturbed_gap(BRPS, [0.3, 0.5, 0.2], companion, mu) > 1e-2
    companion = [0.2 - 0.08 * 2.6, 0.6, 0.2 + 0.08 * 2.6]  # no distribution any more
    with pytest.raises(ValueError, match=r"^y must be non-negative"):
        perturbed_gap(BRPS, [0.2, 0.6, 0.2], companion, 2.6)


@given(
    payoff=arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(-3, 3, width=16)),
    mu=st.floats(0.01, 10),
    seed=st.integers(0, 100),
)
@settings(max_examples=40, deadline=None)
def test_the_perturbed_gap_is_its_definition(payoff, mu, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.dirichlet(np.ones(payoff.shape[0])), rng.dirichlet(np.ones(payoff.shape[1]))
    best = nearest_distribution(-payoff @ y / mu)
    expected = (payoff.T @ x).max() + 0.5 * mu * x @ x - best @ payoff @ y - 0.5 * mu * best @ best
    gap = perturbed_gap(payoff, x, y, mu)
    assert gap == pytest.approx(expected, abs=1e-11)
    assert gap >= -1e-14
    # It is at least that of any other reply, since the minimum is one.
    other = rng.dirichlet(np.ones(payoff.shape[0]))
    assert gap >= (payoff.T @ x).max() + 0.5 * mu * x @ x - other @ payoff @ y - 0.5 * mu * other @ other - 1e-11


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_the_perturbed_gap_bounds_the_distance_from_the_solution(mu):
    payoff = uniform(5, (6, 8))
    solution = perturbed_minimax(payoff, mu)
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(8))
        assert np.sum((x - solution) ** 2) <= 2 * perturbed_gap(payoff, x, y, mu) / mu + 1e-12


# Fast against plain.


@given(point=arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e3, 1e3)))
@settings(max_examples=100, deadline=None)
def test_the_compiled_projection_is_the_projection(point):
    compiled = point.copy()
    project_in_place(compiled)
    np.testing.assert_allclose(compiled, nearest_distribution(point), atol=1e-12)
    assert compiled.min() >= 0


def test_the_compiled_projection_ends_where_rounding_could_make_it_turn():
    rng = np.random.default_rng(0)
    for _ in range(3000):
        point = np.repeat(rng.normal(size=3), 3) + rng.integers(-1, 2, 9) * 1e-16
        compiled = point.copy()
        project_in_place(compiled)
        assert compiled.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("decreasing", [False, True])
def test_compiled_play_is_plain_play(step, sparse, decreasing):
    payoff = uniform(3, (9, 7)) * (uniform(4, (9, 7)) > -0.5)
    payoff = sp.csr_array(payoff) if sparse else payoff
    rng = np.random.default_rng(0)
    saddle = BilinearSaddle.of(payoff, 0.1 * rng.normal(size=9), 0.1 * rng.normal(size=7), None, None)
    for game in (saddle, saddle.mirrored):
        x, y = (np.full(n, 1 / n) for n in game.by_row.shape)
        plays = [
            SaddlePlay(game, step, x, y, eta=0.2, mu=(0.1, 0.05), decreasing=decreasing, compiled=compiled)
            for compiled in (True, False)
        ]
        for play in plays:
            play.advance(30)
            play.advance(7)
        np.testing.assert_allclose(plays[0].x, plays[1].x, atol=1e-12)
        np.testing.assert_allclose(plays[0].y, plays[1].y, atol=1e-12)


def test_other_sets_that_are_simplices_in_disguise_give_the_same():
    payoff = uniform(0, (5, 6))
    disguised = asym_gda(payoff, X=CappedSimplex(5, 1.0), Y=CappedSimplex(6, 1.0), eps=1e-8)
    result = asym_gda(payoff, eps=1e-8)
    assert disguised.converged
    np.testing.assert_allclose(disguised.x, result.x, atol=1e-7)
    np.testing.assert_allclose(disguised.y, result.y, atol=1e-7)


def test_the_spectral_norm_of_large_matrices():
    payoff = uniform(0, (420, 30))
    assert spectral_norm(payoff) == pytest.approx(np.linalg.norm(payoff, 2), rel=1e-5)
    assert spectral_norm(sp.csr_array(payoff)) == pytest.approx(np.linalg.norm(payoff, 2), rel=1e-5)
    assert spectral_norm(np.zeros((450, 420))) == 0


# Certificates.


def test_certificates_are_recomputed():
    payoff = uniform(2, (8, 9))
    result = asym_gda(payoff, eps=1e-9)
    gap = max(payoff[:, j] @ result.x for j in range(9)) - min(payoff[i] @ result.y for i in range(8))
    assert result.certificates[0].value == result.nashconv == pytest.approx(gap, abs=1e-15)
    assert result.value_upper - result.value_lower == pytest.approx(result.nashconv, abs=1e-15)
    assert result.nashconv <= sum(result.exploitability_bounds) * (1 + 1e-9) + 1e-7
    assert result.nashconv == pytest.approx(duality_gap(payoff, result.x, result.y), abs=1e-15)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda x: np.roll(x, 1), id="exchanged"),
        pytest.param(lambda x: 1.001 * x, id="too much"),
        pytest.param(lambda x: x * np.nan, id="nan"),
        pytest.param(lambda x: x + np.array([-0.5, 0.5, 0]), id="negative"),
        pytest.param(lambda x: nearest_distribution(x + np.array([1e-6, 0, 0])), id="slightly off"),
    ],
)
def test_spoilt_strategies_break_the_certificates(spoil):
    from assay.games.asymmetric_result import judge

    solved = asym_gda(BRPS, mu=1.0, eps=1e-10)
    saddle = BilinearSaddle.of(BRPS, None, None, None, None)
    gaps = dict.fromkeys("xy", 1e-16)
    good = judge(saddle, solved.x, solved.y)["nashconv"]
    assert all(c.holds for c in asymmetric_certificates(saddle, good, 1e-10, gaps, 1.0))
    bad = judge(saddle, spoil(solved.x), solved.y)["nashconv"]
    assert not asymmetric_certificates(saddle, bad, 1e-10, gaps, 1.0)[0].holds


def test_the_history_says_what_happened():
    rows = []
    result = asym_gda(uniform(0, (10, 10)), eps=1e-8, callback=rows.append)
    assert set(result.history) == {"iteration", "nashconv", "p_x", "p_y", "mu", "eta", "seconds"}
    assert [row["iteration"] for row in rows] == result.history["iteration"].tolist()
    assert result.n_iter == result.history["iteration"][-1]
    assert result.history["mu"][0] == pytest.approx(abs(uniform(0, (10, 10))).max())
    assert result.halvings == len(set(result.history["mu"])) - 1
    stopped = quietly(asym_gda, uniform(0, (10, 10)), callback=lambda row: row["iteration"] >= 60)
    assert stopped.n_iter == 60
    assert "AsymResult" in repr(result)
    assert result.to_dict()["halvings"] == result.halvings


def test_a_step_that_is_too_long_is_shortened():
    # Unstable steps leave the neighbourhood of the solution, and the perturbed gap rises.
    start = {"x0": [0.2, 0.6, 0.2], "y0": np.array([0.12, 0.6, 0.28]) + np.array([1e-7, 0, -1e-7])}
    options = {"n_iter": 8000, "eps": 1e-13, "check_every": 100, "sides": "x"}
    with pytest.warns(UserWarning, match=r"eta=0.68 is above 0\.583"):
        result = asym_gda(BRPS, 1.0, eta=0.68, **start, **options)
    assert result.eta == pytest.approx(0.34)
    assert result.history["p_x"].max() > 0.1
    assert result.converged
    np.testing.assert_allclose(result.x, [0.2, 0.6, 0.2], atol=1e-12)


def test_halving_ends_at_the_smallest_perturbation(monkeypatch):
    monkeypatch.setattr(asymmetric_run, "SMALLEST_MU", 0.5)
    with pytest.warns(ConvergenceWarning, match="the smallest that is tried"):
        result = asym_gda(uniform(1, (10, 10)))
    assert not result.converged
    assert result.n_iter < 100_000


# Baselines.


def test_optimism_and_extragradient_converge_and_plain_play_circles():
    for method in (ogda, extragradient):
        result = method(BRPS, eps=1e-10)
        np.testing.assert_allclose(result.x, [0.2, 0.6, 0.2], atol=1e-9)
        assert result.certified
        assert result.x_side is None
        assert np.isnan(result.exploitability_bounds).all()
    with pytest.warns(ConvergenceWarning, match="gda did not reach"):
        assert gda(BRPS, n_iter=2000).nashconv > 0.1
    decreasing = quietly(sym_gda, BRPS, mu=1.0, decreasing=True, n_iter=5000)
    assert 1e-4 < decreasing.nashconv < 0.05
    assert decreasing.mu == pytest.approx(1 / np.sqrt(5000))


# Other sets.


def test_a_linear_program_as_a_saddle_point():
    rng = np.random.default_rng(1)
    cost, matrix = rng.uniform(-1, 1, 4), rng.uniform(-1, 1, (3, 4))
    bound = matrix @ rng.uniform(0, 1, 4) + 0.1
    box, prices = Box(np.zeros(4), np.ones(4)), Box(np.zeros(3), np.full(3, 10.0))
    result = asym_gda(matrix.T, X=box, Y=prices, p=cost, q=-bound, eps=1e-8, n_iter=40_000)
    best = linprog(cost, A_ub=matrix, b_ub=bound, bounds=[(0, 1)] * 4)
    assert result.converged
    assert cost @ result.x == pytest.approx(best.fun, abs=1e-7)
    assert (matrix @ result.x - bound).max() <= 1e-7
    assert result.value_lower - 1e-9 <= best.fun <= result.value_upper + 1e-9
    assert result.certified


def test_a_set_given_by_functions():
    half = Polytope(lambda v: np.clip(v, 0, 0.5), lambda c: np.where(c < 0, 0.5, 0.0), radius=np.sqrt(0.5), size=2)
    result = asym_gda([[1.0, -1.0], [0.5, 1.0]], X=half, Y=Simplex(2), p=[-1.0, -1.0])
    assert result.converged
    grid = np.stack(np.meshgrid(*2 * [np.linspace(0, 0.5, 201)]), -1).reshape(-1, 2)
    worst = (grid @ np.array([[1.0, -1.0], [0.5, 1.0]])).max(axis=1) - grid.sum(axis=1)
    assert result.value_upper == pytest.approx(worst.min(), abs=1e-8)


# Degenerate games.


@pytest.mark.parametrize(
    "payoff",
    [
        pytest.param(np.zeros((3, 4)), id="zero"),
        pytest.param(np.full((3, 3), 7.0), id="constant"),
        pytest.param([[3.0]], id="1x1"),
        pytest.param([[1.0, 5, 3]], id="one row"),
        pytest.param([[1.0], [5], [3]], id="one column"),
        pytest.param(np.vstack([BRPS, BRPS[:2]])[:, [0, 1, 2, 0, 0]], id="duplicated"),
        pytest.param([[1, 2, 3], [2, 3, 4], [0, 0, 5]], id="dominated"),
        pytest.param(np.random.default_rng(1).integers(-1, 2, (6, 7)), id="ties"),
        pytest.param(BRPS.astype(int), id="integers"),
        pytest.param(np.eye(3) > 0, id="booleans"),
        pytest.param(1e8 * BRPS, id="1e8"),
        pytest.param(1e-8 * BRPS, id="1e-8"),
        pytest.param(BRPS + 1e6, id="shifted"),
        pytest.param(sp.csr_array(BRPS), id="sparse"),
        pytest.param(sp.coo_matrix(np.diag([1.0, 2, 3])), id="sparse matrix"),
        pytest.param(sp.csr_array((3, 3)), id="sparse zero"),
    ],
)
def test_degenerate_games_are_solved(payoff):
    result = asym_gda(payoff, rtol=True)
    dense = payoff.toarray() if sp.issparse(payoff) else np.asarray(payoff, dtype=float)
    assert result.converged
    assert result.certified
    assert duality_gap(dense, result.x, result.y) <= 1e-9 * max(abs(dense).max(), 1e-300)
    for method in (ogda, extragradient, gda):
        assert quietly(method, payoff, rtol=True, n_iter=200).x.sum() == pytest.approx(1)


def test_the_zero_matrix_is_answered_with_uniform_play():
    result = asym_gda(np.zeros((2, 4)))
    assert result.nashconv == 0
    assert result.n_iter == 0
    np.testing.assert_array_equal(result.x, [0.5, 0.5])


@given(payoff=arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.integers(-3, 3)))
@settings(max_examples=40, deadline=None)
def test_small_integer_games_are_solved(payoff):
    result = quietly(asym_gda, payoff, eps=1e-7, n_iter=100_000)
    assert result.converged
    assert duality_gap(payoff, result.x, result.y) <= 1e-7


def test_one_side_only():
    result = asym_gda(BRPS, mu=1.0, sides=("x",))
    np.testing.assert_allclose(result.x, [0.2, 0.6, 0.2], atol=1e-9)
    assert result.y is None
    assert result.y_side is None
    assert result.proved_not_invariant == ()
    assert np.isnan(result.exploitability_bounds[1])
    assert result.certified
    other = asym_gda(BRPS, mu=1.0, sides="y")
    np.testing.assert_allclose(other.y, [0.2, 0.6, 0.2], atol=1e-9)
    assert other.x is None


def test_the_arguments_are_left_as_they_were():
    payoff, x0 = BRPS.copy(), np.array([0.5, 0.25, 0.25])
    asym_gda(payoff, x0=x0)
    np.testing.assert_array_equal(payoff, BRPS)
    np.testing.assert_array_equal(x0, [0.5, 0.25, 0.25])
    payoff.setflags(write=False)
    assert asym_gda(payoff).converged


# Bad input.


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mu": 0.0}, "mu must be greater than 0"),
        ({"mu": -1.0}, "mu must be greater than 0"),
        ({"mu": np.nan}, "mu must be finite"),
        ({"mu": "small"}, "mu must be a positive number or 'auto'"),
        ({"mu": 1e-20}, "mu must be between"),
        ({"mu": 1e20}, "mu must be between"),
        ({"eta": 0.0}, "eta must be greater than 0"),
        ({"eta": -0.1}, "eta must be greater than 0"),
        ({"eta": np.inf}, "eta must be finite"),
        ({"eta": 1e200}, "eta must be at most"),
        ({"eps": 0.0}, "eps must be greater than 0"),
        ({"n_iter": 0}, "n_iter must be at least 1"),
        ({"check_every": 0}, "check_every must be at least 1"),
        ({"A": [[np.nan, 1.0]]}, "A must be a finite"),
        ({"A": [[np.inf, 1.0]]}, "A must be a finite"),
        ({"A": [1.0, 2.0]}, "A must be a finite 2-D array"),
        ({"A": np.zeros((0, 2))}, "not empty"),
        ({"A": sp.csr_array([[np.nan, 1.0]])}, "A must be a finite"),
        ({"x0": [1.0, 0.0]}, "x0 must have length 3"),
        ({"x0": [0.5, 0.6, 0.0]}, "x0 must sum to 1"),
        ({"y0": [1.5, -0.5, 0.0]}, "y0 must be non-negative"),
        ({"p": [1.0, 2.0]}, "p must have length 3"),
        ({"q": [1.0, np.nan, 2.0]}, "q must be a finite"),
        ({"q": [1e301, 0, 2.0]}, "q must have entries"),
        ({"X": Simplex(4)}, "X must be a set of dimension 3"),
        ({"sides": ("z",)}, "sides must be"),
        ({"sides": ()}, "sides must be"),
        ({"sides": ("x", "x")}, "sides must be"),
        ({"sides": ("x",), "mu": "auto"}, "sides must be both"),
        ({"X": Box([0.0] * 3, [1.0] * 3), "x0": [2.0, 0, 0]}, "x0 must lie in the feasible set"),
        ({"X": Box([0.0] * 3, [1.0] * 3), "x0": [0.0, 0]}, "x0 must have length 3"),
    ],
)
def test_bad_values_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        asym_gda(**{"A": BRPS, "mu": 1.0} | change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"A": "payoffs"}, "A must be"),
        ({"A": BRPS * 1j}, "A must be"),
        ({"X": object()}, "X must have a method"),
    ],
)
def test_bad_types_are_named(change, message):
    with pytest.raises(TypeError, match=message):
        asym_gda(**{"A": BRPS} | change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"n_iter": 2.5}, "n_iter must be an integer"),
        ({"check_every": "20"}, "check_every must be an integer"),
        ({"eps": "small"}, "eps must be a real number"),
        ({"eta": "long"}, "eta must be a real number"),
        ({"rtol": 1}, "rtol must be True or False"),
        ({"callback": 3}, "callback must be"),
    ],
)
def test_bad_types_of_options_are_named(change, message):
    options = {"eta": None, "n_iter": 10, "eps": 1e-9, "check_every": 5, "rtol": False, "callback": None} | change
    with pytest.raises(TypeError, match=message):
        asymmetric_run.PlayOptions.checked(1.0, 1.0, **options)


def test_bad_arguments_of_the_others():
    with pytest.raises(ValueError, match="mu"):
        sym_gda(BRPS, mu=-1.0)
    with pytest.raises(ValueError, match="side must be"):
        invariance_threshold(BRPS, side="z")
    with pytest.raises(ValueError, match="rtol"):
        invariance_threshold(BRPS, rtol=0.0)
    with pytest.raises(ValueError, match="mu"):
        perturbed_minimax(BRPS, 0.0)
    with pytest.raises(ValueError, match="mu"):
        perturbed_gap(BRPS, [1, 0, 0], [1, 0, 0], 0.0)
