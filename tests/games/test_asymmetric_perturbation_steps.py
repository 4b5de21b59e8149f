"""Step sizes of last-iterate play: how long they may be, and that payoffs of any kind do not make them short."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import null_space

from assay.games import bilinear_saddle
from assay.games.asymmetric_baselines import extragradient, gda, ogda, sym_gda
from assay.games.asymmetric_invariance import invariance_threshold
from assay.games.asymmetric_perturbation import _check_sides as checked_sides
from assay.games.asymmetric_perturbation import asym_gda, exploitability_bound, perturbed_gap
from assay.games.asymmetric_run import GapWatch, first_strength, longest_stable_step, longest_step, settled_step
from assay.games.asymmetric_tree_baselines import dogda
from assay.games.asymmetric_trees import asym_dgda
from assay.games.bilinear_saddle import BilinearSaddle, spectral_norm
from assay.games.matrix_game import duality_gap
from assay.games.polytope import Box, CappedSimplex, Product, Simplex
from assay.games.sequence_form import SequenceFormGame
from assay.games.treeplex import Treeplex
from assay.studies.games._asymmetric_games import random_tree
from assay.validation import ConvergenceWarning

BRPS = np.array([[0.0, -1, 3], [1, 0, -1], [-3, 1, 0]])
RPS = np.array([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]])


def uniform(seed, shape):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def quietly(method, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method(*args, **options)


def as_tree(payoff):
    rows, columns = (index.ravel() for index in np.indices(payoff.shape))
    sizes = ([payoff.shape[0]], [payoff.shape[1]])
    return SequenceFormGame.from_arrays(([0], [0]), sizes, (rows + 1, columns + 1, payoff.ravel()))


# How long a step may be.


def radius(step, eta, s, mu=0.0, other=0.0):
    """Largest eigenvalue of a step along a singular vector with singular value ``s``."""
    if step == "perturbed":
        keep, late = 1 - eta * mu, 1 - eta * other
        matrix = np.array([[keep, -eta * s], [eta * s * keep, late - (eta * s) ** 2]])
    elif step == "optimistic":
        matrix = np.array([[1 - 2j * eta * s, 1j * eta * s], [1, 0]])
    else:
        matrix = np.array([[1 - 1j * eta * s * (1 - 1j * eta * s)]])
    return np.abs(np.linalg.eigvals(matrix)).max()


@pytest.mark.parametrize("seed", range(5))
def test_longer_steps_are_unstable_and_shorter_ones_are_not(seed):
    s, mu, other = np.random.default_rng(seed).uniform(0.1, 3, 3)
    for weak in (0.0, other):
        limit = longest_stable_step(s, mu, weak)
        assert radius("perturbed", 0.999 * limit, s, mu, weak) < 1 < radius("perturbed", 1.001 * limit, s, mu, weak)
    settled = settled_step(s, mu)
    assert min(1 / s, 0.5 / mu) <= settled <= longest_stable_step(s, mu)
    # It settles at least half as fast as the perturbation alone would, if that is what limits it.
    assert radius("perturbed", settled, s, mu) <= max(1 - 0.5 * settled * min(mu, s * s / mu), 0.99)
    for step in ("optimistic", "extragradient"):
        limit = longest_step(step, s)
        assert radius(step, 0.999 * limit, s) < 1 < radius(step, 1.001 * limit, s)
    assert longest_step("perturbed", s) == pytest.approx(2 / s)
    assert longest_stable_step(0.0) == longest_step("optimistic", 0.0) == np.inf


@pytest.mark.parametrize(
    "method, limit, options",
    [
        (asym_gda, 4 / (1 + np.sqrt(1 + 4 * 25 / 3)), {"mu": 1.0}),
        (asym_gda, 2 * np.sqrt(3) / 5, {"mu": "auto"}),
        (sym_gda, 2 / (5 / np.sqrt(3) + 1), {"mu": 1.0}),
        (sym_gda, 2 * np.sqrt(3) / 5, {"mu": 1.0, "decreasing": True}),
        (gda, 2 * np.sqrt(3) / 5, {}),
        (ogda, 1 / 5, {}),
        (extragradient, np.sqrt(3) / 5, {}),
    ],
)
def test_too_long_steps_are_warned_of(method, limit, options):
    # On differences of distributions biased rock-paper-scissors turns, and multiplies by 5 / sqrt(3).
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.warns(UserWarning, match=rf"eta=.* is above {str(limit)[:5]}.*need not converge"):
            method(BRPS, eta=1.01 * limit, n_iter=5, **options)
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        method(BRPS, eta=0.99 * limit, n_iter=5, **options)


@pytest.mark.parametrize("method", [asym_gda, ogda, extragradient])
def test_the_default_step_is_not_at_the_limit(method):
    # All singular values of this game are the largest.
    result = method(RPS, x0=[0.5, 0.3, 0.2], y0=[0.1, 0.1, 0.8], eps=1e-10)
    np.testing.assert_allclose(result.x, 1 / 3, atol=1e-8)


@pytest.mark.parametrize("factor", [1.5, 1.99])
@pytest.mark.parametrize(
    "payoff",
    [
        pytest.param(BRPS, id="biased"),
        pytest.param(np.eye(5), id="identity"),
        pytest.param(-np.diag([1.0, 2, 3]), id="diagonal"),
        pytest.param(np.array([[2.0, -1], [-1, 1]]), id="pennies"),
        pytest.param(uniform(0, (10, 10)), id="random"),
    ],
)
def test_automatic_mode_takes_any_stable_step(payoff, factor):
    # With the strong perturbation at the start these are unstable: play would go in circles and never know.
    eta = factor / np.linalg.norm(payoff, 2)
    start = np.eye(1, len(payoff))[0]
    result = asym_gda(payoff, eta=eta, x0=start, y0=start, n_iter=3000)
    assert result.certified
    assert result.eta <= eta
    tree = asym_dgda(as_tree(payoff), eta=eta, n_iter=3000)
    assert tree.certified


def test_automatic_mode_finds_a_step_that_suits_the_tree():
    pytest.importorskip("pyspiel")
    game = SequenceFormGame.from_openspiel("goofspiel(num_cards=3,imp_info=True)")
    norm = spectral_norm(game.payoff, *(tree.directions for tree in game.trees))
    result = asym_dgda(game, eta=1.9 / norm, n_iter=5000)
    assert result.certified
    assert result.eta < 1.5 / norm
    assert asym_dgda(game, n_iter=500).eta == pytest.approx(1 / norm)


def test_stable_steps_are_not_shortened_where_payoffs_are_of_different_magnitude():
    payoff = np.diag([1.0, 0.03, 30])
    result = asym_gda(payoff, n_iter=40_000)
    assert result.certified
    assert result.eta == pytest.approx(1 / BilinearSaddle.of(payoff, None, None, None, None).spectral_norm(), rel=1e-6)
    # The gap of the perturbed game rises tenfold on the way from one solution to the next.
    gaps, mu = result.history["p_x"] + result.history["p_y"], result.history["mu"]
    last = gaps[mu == result.mu][1:]
    assert last.max() > 5 * last[0]


def test_gaps_that_rise_or_stand_still_are_noticed():
    falling, rising, circling = (GapWatch(0, 100.0) for _ in range(3))
    for n in range(0, 5000, 50):
        assert not falling.rises(n, 0.999**n)
        assert not falling.stalls(n, 0.999**n)
        assert rising.rises(n, 1.003**n) == (n >= 1000)
        assert circling.stalls(n, 2.0 + math.cos(n)) == (n >= 2000 and n % 1000 == 0)


def test_a_step_that_is_too_long_for_a_fixed_perturbation_is_found_out():
    result = quietly(asym_gda, BRPS, mu=2.0, eta=0.6, n_iter=20_000, x0=[1.0, 0, 0])
    assert result.eta < 0.5
    assert result.converged


# The norm that counts.


def projector(basis):
    return basis @ basis.T


@pytest.mark.parametrize(
    "feasible, basis",
    [
        (Simplex(4), null_space(np.ones((1, 4)))),
        (CappedSimplex(4, 0.5), null_space(np.ones((1, 4)))),
        (Box([0, 1, 2, 3], [1, 1, 3, 3]), np.eye(4)[:, [0, 2]]),
        (Product(Simplex(2), Box([0, 0], [1, 1])), null_space(np.array([[1.0, 1, 0, 0]]))),
    ],
)
def test_directions_are_those_of_differences(feasible, basis):
    vectors = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(feasible.directions(vectors), projector(basis) @ vectors, atol=1e-14)
    np.testing.assert_allclose(feasible.directions(vectors[:, 0]), projector(basis) @ vectors[:, 0], atol=1e-14)
    ends = [feasible.minimise(v) for v in np.vstack((vectors.T, -vectors.T))]
    for end in ends:
        np.testing.assert_allclose(feasible.directions(end - ends[0]), end - ends[0], atol=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_directions_of_trees_are_those_of_differences(seed):
    tree = random_tree(12, 10, seed).trees[0] if seed else Treeplex.from_actions([0, 1, 1, 3], [2, 3, 1, 2])
    rows = np.zeros((1 + tree.length.size, tree.size))
    rows[0, 0] = 1
    for j, (parent, start, length) in enumerate(zip(tree.parent, tree.start, tree.length, strict=True)):
        rows[j + 1, parent] = -1
        rows[j + 1, start : start + length] += 1
    basis = null_space(rows)
    vectors = np.random.default_rng(seed).normal(size=(tree.size, 3))
    np.testing.assert_allclose(tree.directions(vectors), projector(basis) @ vectors, atol=1e-12)
    np.testing.assert_allclose(tree.directions(vectors[:, 1]), projector(basis) @ vectors[:, 1], atol=1e-12)
    assert Treeplex.from_actions([], []).directions(np.ones(1)) == 0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", [(7, 9), (35, 30), (30, 35), (2, 600)])
def test_the_norm_on_differences(shape, sparse, monkeypatch):
    monkeypatch.setattr(bilinear_saddle, "_LARGEST_DENSE_SVD", 20)
    payoff = uniform(0, shape) + 0.9
    expected = np.linalg.norm(payoff - payoff.mean(0) - payoff.mean(1, keepdims=True) + payoff.mean(), 2)
    given = sp.csr_array(payoff) if sparse else payoff
    assert BilinearSaddle.of(given, None, None, None, None).spectral_norm() == pytest.approx(expected, rel=1e-5)
    assert np.linalg.norm(payoff, 2) > 1.5 * expected
    # What all rows have in common counts on a box.
    box = Box(np.zeros(shape[1]), np.ones(shape[1]))
    half = BilinearSaddle.of(given, None, None, None, box).spectral_norm()
    assert half == pytest.approx(np.linalg.norm(payoff - payoff.mean(0), 2), rel=1e-5)
    separable = np.add.outer(payoff[:, 0], payoff[0])
    assert BilinearSaddle.of(separable, None, None, None, None).spectral_norm() == 0


# Games that were slow, or not solved.


def test_what_payoffs_have_in_common_costs_no_steps():
    payoff = uniform(1, (20, 20))
    steps = asym_gda(payoff).n_iter
    rows, columns = np.arange(20) < 5, np.arange(20) >= 18
    for changed in (payoff + 0.9, payoff - 0.5, payoff + 10.0, sp.csr_array(payoff + 1e4)):
        assert asym_gda(changed).n_iter <= 1.5 * steps  # the perturbation is another one
    for changed in (payoff + 10.0 * rows[:, None], payoff - 10.0 * columns, payoff + 1e6 * rows[:, None]):
        result = asym_gda(changed, n_iter=20_000)
        assert result.certified
    shifted = asym_dgda(as_tree(BRPS + 1e3))
    assert shifted.certified
    assert shifted.n_iter <= 400
    assert dogda(as_tree(BRPS + 1e3)).n_iter <= 400


@pytest.mark.parametrize(
    "payoff",
    [
        pytest.param(np.vstack((BRPS, np.full(3, 1e6))), id="forbidden row"),
        pytest.param(np.column_stack((BRPS, np.full(3, -1e6))), id="forbidden column"),
        pytest.param(np.array([[1e6 + 1, 1e6 + 2, -3e6]]), id="one row"),
        pytest.param(sp.csr_array(1e6 + np.array([[1.0], [2.0]])), id="one column"),
        pytest.param(np.add.outer([3.0, 1, 7], [1.0, 4, -9]), id="separable"),
        pytest.param(np.add.outer([3.0, 1, 7], [1.0, 4, -9]) + 1e-7 * BRPS, id="nearly separable"),
    ],
)
def test_dominance_takes_no_time(payoff):
    result = asym_gda(payoff)
    dense = payoff.toarray() if sp.issparse(payoff) else payoff
    assert result.certified
    assert result.n_iter <= 200
    assert duality_gap(dense, result.x, result.y) <= 1e-9
    assert asym_dgda(as_tree(dense)).certified


def test_the_first_perturbation():
    assert first_strength(3.0, 2.9) == 3.0
    assert first_strength(1e6, 2.0) == 4.0
    assert 0 < first_strength(1e6, 0.0) < 10
    assert first_strength(0.0, 0.0) == 1.0


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 3e299])
def test_bounds_neither_vanish_nor_overflow(scale):
    good = asym_gda(scale * BRPS, rtol=True)
    assert good.certified
    assert good.mu == pytest.approx(1.5 * scale)
    assert exploitability_bound(1e-16 * scale, scale, 1.0) == pytest.approx(1.4142136e-8 * scale)
    shifted = quietly(asym_gda, scale * BRPS, mu=4.0 * scale, rtol=True)
    assert len(shifted.proved_not_invariant) == 1
    assert not shifted.certificates[1].holds


@pytest.mark.parametrize("kind", range(3))
def test_the_exact_test_against_thresholds_of_degenerate_games(kind):
    pytest.importorskip("clarabel")
    rng, rejections = np.random.default_rng(kind), 0
    for _ in range(15):
        shape = rng.integers(1, 6, 2)
        payoff = [
            lambda shape: rng.integers(-2, 3, shape).astype(float),
            lambda shape: rng.integers(0, 2, shape) * 1e3,
            lambda shape: np.repeat(rng.uniform(-1, 1, (1, shape[1])), shape[0], 0) + rng.integers(-1, 2, shape),
        ][kind](shape)
        result = asym_gda(payoff, rtol=True, eps=1e-8)
        assert result.certified
        if result.proved_not_invariant:
            threshold = min(invariance_threshold(payoff, side=side)[0] for side in "xy")
            assert min(result.proved_not_invariant) >= 0.999 * threshold
            rejections += len(result.proved_not_invariant)
    assert rejections > 0


# Small things.


def test_numpy_says_stop_as_well():
    for method in (asym_gda, ogda):
        result = quietly(method, uniform(0, (10, 10)), callback=lambda row: np.bool_(row["iteration"] >= 40))
        assert result.n_iter == 40
        assert quietly(method, BRPS, callback=lambda row: 1).n_iter > 0  # not every answer means yes


@pytest.mark.parametrize("sides", [3, None])
def test_sides_that_are_none(sides):
    with pytest.raises(TypeError, match="sides must be 'x', 'y' or both"):
        checked_sides(sides)


def test_what_cannot_be_told_from_rounding_is_said():
    with pytest.warns(ConvergenceWarning, match="less cannot be told from rounding"):
        asym_gda(BRPS, eps=1e-300)


def test_the_perturbed_gap_of_affine_payoffs():
    payoff, p, q = uniform(0, (3, 4)), np.array([0.5, -1, 0]), np.array([0.0, 2, 1, -1])
    result = asym_gda(payoff, mu=0.01, p=p, q=q, eps=1e-10)
    gap = perturbed_gap(payoff, result.x, result.x_side, result.mu, p=p, q=q)
    assert 0 <= gap + 1e-15 <= 1e-8
    box, other = Box([0.0] * 3, [1.0] * 3), Box([0.0] * 4, [1.0] * 4)
    x, y, mu = np.array([0.2, 1, 0]), np.array([0.0, 1, 0.5, 1]), 0.7
    most = np.maximum(payoff.T @ x + q, 0).sum() + p @ x + 0.5 * mu * x @ x
    least = np.clip(-(payoff @ y + p) / mu, 0, 1)
    expected = most - ((payoff @ y + p) @ least + q @ y + 0.5 * mu * least @ least)
    assert perturbed_gap(payoff, x, y, mu, X=box, Y=other, p=p, q=q) == pytest.approx(expected)
