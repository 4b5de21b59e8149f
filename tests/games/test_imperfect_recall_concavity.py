"""Concave payoffs and monotone games, by sums of squares."""

import numpy as np
import pytest

from assay.games.imperfect_polynomials import CompiledPolynomial
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.games.imperfect_recall_sos import ex_ante_optimum
from assay.games.sos_concavity import is_sos_concave, is_sos_monotone
from assay.studies.games._imperfect_games import concave_game, driver, monotone_game, shootout


def of_one_probability(coefficients):
    u = {(power, 0): float(c) for power, c in enumerate(coefficients) if c}
    return ImperfectRecallGame.from_polynomials([u], [[0, 1]], [0])


def test_the_driver_with_two_exits_is_concave_and_with_three_is_not():
    two, three = is_sos_concave(driver(2).game), is_sos_concave(driver(3).game)
    assert two
    assert two.certified
    assert two.counterexample is None
    assert two.least_eigenvalue == pytest.approx(6 / 4, abs=1e-6)  # of the payoff divided by 4
    assert not three
    assert three.curvature == pytest.approx(-12 / 6, abs=1e-2)
    assert three.counterexample is not None
    assert not three.certified


def test_concave_on_strategies_only():
    """The second derivative of p - p^3 is -6 p: negative for p >= 0 alone."""
    game = of_one_probability([0, 1, 0, -1])
    assert not is_sos_concave(game, on="space")
    inside = is_sos_concave(game, on="simplex")
    assert inside
    assert inside.certified
    assert len(inside.grams) == 3
    assert not is_sos_concave(of_one_probability([0, -1, 0, 1]), on="simplex")


def test_random_concave_payoffs_need_one_relaxation():
    one = concave_game(np.random.default_rng(2))
    assert is_sos_concave(one.game)
    best = ex_ante_optimum(one.game)
    assert best.gap <= 1e-6
    assert best.order == 2
    assert len(best.history["order"]) == 1


def test_the_gram_matrix_is_that_of_the_second_derivative():
    game = of_one_probability([0, 0, 0, 1, -2])  # second derivative 6 p - 24 p^2
    answer = is_sos_concave(game)
    (gram,) = answer.grams
    scale = game.payoff_scale
    for p in (-1.0, 0.0, 0.3, 2.0):
        v = np.array([1.0, p])
        assert v @ gram @ v == pytest.approx((24 * p**2 - 6 * p) / scale, abs=1e-7)


def test_affine_payoffs_are_concave_at_the_boundary():
    answer = is_sos_concave(of_one_probability([0, 2.0]))
    assert answer
    assert answer.least_eigenvalue == pytest.approx(0.0, abs=1e-7)


def test_products_of_own_probabilities_are_not_concave():
    game = ImperfectRecallGame.from_polynomials([{(1, 0, 1, 0): 1.0}], [[0, 1], [2, 3]], [0, 0])
    answer = is_sos_concave(game)
    assert not answer
    assert answer.least_eigenvalue == pytest.approx(-1.0, abs=1e-6)


def test_a_payoff_can_be_concave_in_the_own_strategy_alone():
    """-p^2 (1 + q^2) is concave in p for every q; the other player's own payoff q^2 is not in q."""
    u = {(2, 0, 0, 0): -1.0, (2, 0, 2, 0): -1.0}
    game = ImperfectRecallGame.from_polynomials([u, {(0, 0, 2, 0): 1.0}], [[0, 1], [2, 3]], [0, 1])
    assert is_sos_concave(game, 0)
    assert not is_sos_concave(game, 1)
    assert not is_sos_monotone(game)


def test_monotone_games():
    assert is_sos_monotone(shootout(0.0))
    assert is_sos_monotone(monotone_game(np.random.default_rng(0)))
    bad = is_sos_monotone(shootout(2.0))
    assert not bad
    assert bad.counterexample is not None
    assert is_sos_monotone(monotone_game(np.random.default_rng(0)), on="simplex")


def test_the_form_of_a_monotone_game_is_minus_the_jacobian():
    game = monotone_game(np.random.default_rng(5))
    answer = is_sos_monotone(game)
    (gram,) = answer.grams
    rng = np.random.default_rng(0)
    x, step = rng.uniform(0.2, 0.8, 4), 1e-5
    gradients = [CompiledPolynomial(one, 4) for one in game.reduced]

    def field(point):
        slopes = [one.gradient(point) for one in gradients]
        return np.concatenate([slopes[0][:2], slopes[1][2:]])

    jacobian = np.column_stack([(field(x + step * e) - field(x - step * e)) / (2 * step) for e in np.eye(4)])
    np.testing.assert_allclose(gram, -(jacobian + jacobian.T) / 2, atol=1e-6)


def test_certificates_fail_for_a_game_that_is_not_concave():
    answer = is_sos_concave(driver(3).game)
    assert [certificate.holds for certificate in answer.certificates] == [False, True, False]


def test_options_that_do_not_fit():
    game = driver(2).game
    with pytest.raises(ValueError, match="on must be one of"):
        is_sos_concave(game, on="ball")
    with pytest.raises(ValueError, match="solver must be one of"):
        is_sos_monotone(game, solver="mosek")
    with pytest.raises(ValueError, match="player must be less than 1"):
        is_sos_concave(game, 1)
    idle = ImperfectRecallGame.from_polynomials([{(1, 0): 1.0}, {}], [[0, 1]], [0])
    with pytest.raises(ValueError, match="player must have a decision"):
        is_sos_concave(idle, 1)
    for test in (is_sos_concave, is_sos_monotone):
        with pytest.raises(TypeError):
            test(3)
        with pytest.raises(TypeError):
            test(game, force=1)
