"""Dilated gradient play with one perturbed player in game trees."""

import warnings

import numpy as np
import pytest

from assay.games import asymmetric_trees
from assay.games.asymmetric_tree_baselines import dgda, dogda, sym_dgda
from assay.games.asymmetric_trees import asym_dgda
from assay.games.sequence_form import SequenceFormGame
from assay.games.treeplex_dynamics import TreePlay
from assay.studies.games._asymmetric_games import random_tree
from assay.validation import ConvergenceWarning


@pytest.fixture(scope="module")
def kuhn():
    pytest.importorskip("pyspiel")
    return SequenceFormGame.from_openspiel("kuhn_poker")


def quietly(method, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method(*args, **options)


def test_kuhn_poker_with_the_known_settings(kuhn):
    result = asym_dgda(kuhn, mu=0.01, eta=2.0, n_iter=3000, eps=1e-12)
    assert result.certified
    assert result.value_lower == pytest.approx(1 / 18, abs=1e-12)  # what player 0 pays
    assert result.nashconv == pytest.approx(kuhn.nashconv(result.x, result.y), abs=1e-15)
    assert result.proved_not_invariant == ()
    assert result.rate < 1


def test_twice_the_step_is_faster(kuhn):
    assert asym_dgda(kuhn, mu=0.01, eta=4.0, n_iter=3000, eps=1e-15).certified


def test_the_value_of_leduc_poker_is_enclosed():
    pytest.importorskip("pyspiel")
    leduc = SequenceFormGame.from_openspiel("leduc_poker")
    result = quietly(asym_dgda, leduc, mu=1e-3, n_iter=2000, check_every=100)
    assert result.value_lower <= 0.0856064 <= result.value_upper  # what player 0 pays
    assert result.value_upper - result.value_lower < 0.02


def test_the_answer_is_judged_alike_by_openspiel(kuhn):
    from open_spiel.python.algorithms import exploitability

    for mu in (0.01, 0.1):
        result = quietly(asym_dgda, kuhn, mu=mu, eta=2.0, n_iter=500)
        policy = kuhn.to_policy(1, result.y, kuhn.to_policy(0, result.x))
        assert exploitability.nash_conv(kuhn.source, policy) == pytest.approx(result.nashconv, abs=1e-12)


def test_automatic_mode(kuhn):
    result = asym_dgda(kuhn, eps=1e-10)
    assert result.certified
    assert result.halvings >= 1
    assert result.mu < 0.05
    assert set(result.history) == {"iteration", "nashconv", "p_x", "p_y", "mu", "eta", "seconds"}
    assert result.history["mu"][0] == pytest.approx(1 / 3)


def test_too_strong_a_perturbation_is_not_an_equilibrium(kuhn):
    with pytest.warns(ConvergenceWarning, match="solved to rounding"):
        result = asym_dgda(kuhn, mu=0.1, eta=2.0, n_iter=10_000)
    assert result.nashconv == pytest.approx(4.29e-2, abs=1e-4)
    assert not result.certificates[0].holds


def test_symmetric_perturbation_stays_away(kuhn):
    with pytest.warns(ConvergenceWarning, match="sym_dgda did not reach"):
        result = sym_dgda(kuhn, mu=0.01, eta=2.0, n_iter=3000)
    assert result.nashconv == pytest.approx(6.035e-3, abs=1e-5)


def test_optimism_converges_and_plain_play_does_not(kuhn):
    assert dogda(kuhn, eps=1e-8).certified
    assert quietly(dgda, kuhn, n_iter=3000).nashconv > 1e-2


@pytest.mark.parametrize("step, mu", [("perturbed", (0.05, 0.0)), ("perturbed", (0.05, 0.02)), ("optimistic", (0, 0))])
def test_compiled_play_is_plain_play(step, mu):
    game = random_tree(12, 80, 3)
    plays = [
        TreePlay(game.trees[::-1], game.payoff.T.tocsr(), game.payoff, -1.0, step, eta=20.0, mu=mu, compiled=compiled)
        for compiled in (True, False)
    ]
    for play in plays:
        play.advance(10)
        play.advance(3)
    np.testing.assert_allclose(plays[0].x, plays[1].x, atol=1e-12)
    np.testing.assert_allclose(plays[0].y, plays[1].y, atol=1e-12)
    assert not np.allclose(plays[0].x, game.uniform(1))


def test_the_perturbed_gap_is_that_of_its_game(kuhn):
    mu = 0.2
    play = TreePlay(kuhn.trees, kuhn.payoff, kuhn.payoff.T.tocsr(), 1.0, "perturbed", eta=1.0, mu=(mu, 0.0))
    play.advance(5)
    assert play.gap(mu) > 1e-4
    play.advance(2000)
    assert play.gap(mu) == pytest.approx(0, abs=1e-13)
    # At the solution no other plan is better for either player.
    rng = np.random.default_rng(0)
    tree = kuhn.trees[0]
    paid = kuhn.payoff @ play.y
    own = paid @ play.x + mu * tree.psi(play.local_x, play.x)
    for _ in range(20):
        local = tree.uniform
        local[1:] = rng.dirichlet(np.ones(2), 6).ravel()
        plan = tree.plan(local)
        assert own <= paid @ plan + mu * tree.psi(local, plan) + 1e-12


def test_normal_form_games_as_trees():
    payoff = np.array([[0.0, -1, 3], [1, 0, -1], [-3, 1, 0]])
    rows, columns = np.nonzero(payoff)
    game = SequenceFormGame.from_arrays(([0], [0]), ([3], [3]), (rows + 1, columns + 1, payoff[rows, columns]))
    for mu in (0.5, 2.0, "auto"):
        result = asym_dgda(game, mu=mu, eps=1e-11)
        np.testing.assert_allclose(result.x, [1, 0.2, 0.6, 0.2], atol=1e-10)
    shifted = quietly(asym_dgda, game, mu=4.0, n_iter=3000)
    np.testing.assert_allclose(shifted.x, [1, 0.2, 0.525, 0.275], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_unit_of_payoffs_does_not_matter(kuhn, scale):
    game = SequenceFormGame(kuhn.trees, kuhn.payoff * scale, kuhn.labels)
    result = asym_dgda(game, rtol=True, eps=1e-8)
    assert result.certified
    assert result.n_iter == asym_dgda(kuhn, rtol=True, eps=1e-8).n_iter


@pytest.mark.parametrize(
    "parents, actions, triplets",
    [
        pytest.param(([], [0]), ([], [3]), ([0, 0, 0], [1, 2, 3], [1.0, 2, 3]), id="one player never moves"),
        pytest.param(([0], [0]), ([1], [1]), ([1], [1], [5.0]), id="single actions"),
        pytest.param(([0], [0]), ([2], [2]), ([], [], []), id="no payoffs"),
        pytest.param(([0], [0]), ([2], [2]), ([0], [0], [4.0]), id="payoff without moves"),
        pytest.param(([0], [0]), ([4], [4]), ([1, 2, 3, 4] * 2, [1, 1, 2, 2, 3, 3, 4, 4], [1.0] * 8), id="ties"),
        pytest.param(([0, 1], [0]), ([2, 2], [2]), ([3, 4, 2, 3], [1, 1, 1, 2], [1, 2, 0, -1.0]), id="unreached"),
    ],
)
def test_degenerate_trees(parents, actions, triplets):
    game = SequenceFormGame.from_arrays(parents, actions, triplets)
    result = asym_dgda(game, eps=1e-8)
    assert result.certified
    assert game.nashconv(result.x, result.y) <= 1e-8
    for method in (sym_dgda, dgda, dogda):
        assert quietly(method, game, n_iter=50).x[0] == 1


@pytest.mark.parametrize("spoil", [lambda x: 1.01 * x, lambda x: np.roll(x, 1), lambda x: x * np.nan])
def test_spoilt_plans_break_the_certificate(kuhn, spoil):
    result = asym_dgda(kuhn, eps=1e-8)
    good = asymmetric_trees.judge_plans(kuhn, result.x, result.y)["nashconv"]
    assert asymmetric_trees.plan_certificate(good, 1e-8).holds
    bad = asymmetric_trees.judge_plans(kuhn, spoil(result.x), result.y)["nashconv"]
    assert not asymmetric_trees.plan_certificate(bad, 1e-8).holds


def test_callbacks_stop(kuhn):
    for method in (asym_dgda, dgda):
        result = quietly(method, kuhn, callback=lambda row: row["iteration"] >= 40)
        assert result.n_iter == 40


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mu": 0.0}, "mu must be greater than 0"),
        ({"mu": np.nan}, "mu must be finite"),
        ({"mu": "small"}, "mu must be a positive number or 'auto'"),
        ({"mu": 1e-15}, "mu must be between"),
        ({"eta": -1.0}, "eta must be greater than 0"),
        ({"eta": 1e200}, "eta must be at most"),
        ({"eps": -1.0}, "eps must be greater than 0"),
        ({"n_iter": 0}, "n_iter must be at least 1"),
        ({"check_every": 0}, "check_every must be at least 1"),
    ],
)
def test_bad_values_are_named(kuhn, change, message):
    with pytest.raises(ValueError, match=message):
        asym_dgda(kuhn, **change)


def test_too_long_a_step_is_warned_of(kuhn):
    with pytest.warns(UserWarning, match=r"eta=5 is above 4\.8"):
        asym_dgda(kuhn, mu=0.01, eta=5.0, eps=1e-6)
    with pytest.warns(UserWarning, match=r"eta=1\.5 is above 1\.38"):
        quietly_unless_long(dogda, kuhn, eta=1.5)


def quietly_unless_long(method, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return method(*args, n_iter=20, **options)


def test_what_is_no_game():
    with pytest.raises(TypeError, match="game must be a SequenceFormGame"):
        asymmetric_trees.checked_options(np.eye(3), None, 1, 1.0, 1, False, None)
