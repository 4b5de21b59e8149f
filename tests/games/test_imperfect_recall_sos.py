"""The best strategy of one player who forgets."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.games import imperfect_relaxation, sos_program
from assay.games.imperfect_ascent import best_response_ascent, local_ascent
from assay.games.imperfect_optimum import OwnStrategies
from assay.games.imperfect_polynomials import CompiledPolynomial
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.games.imperfect_recall_sos import ex_ante_optimum
from assay.games.sos_solvers import ConicAnswer
from assay.studies.games._imperfect_games import absent_minded_trees, cycle, driver, forgetful_tree, tensor_game
from assay.studies.games._imperfect_rivals import enumerate_pure
from assay.validation import ConvergenceWarning


def binary(coefficients, n_infosets):
    """A payoff that is affine in the first action of each of some binary information sets."""
    u = {}
    for exponent, c in zip(itertools.product((0, 1), repeat=n_infosets), coefficients, strict=True):
        full = [0] * (2 * n_infosets)
        full[::2] = exponent
        u[tuple(full)] = float(c)
    return ImperfectRecallGame.from_polynomials([u], [[2 * j, 2 * j + 1] for j in range(n_infosets)], [0] * n_infosets)


@pytest.mark.parametrize("n_exits, value, order", [(2, 4 / 3, 1), (3, 8 / 9, 2), (4, 6 * 27 / 256, 2)])
def test_absent_minded_drivers(n_exits, value, order):
    best = ex_ante_optimum(driver(n_exits).game)
    assert best.value == pytest.approx(value, abs=1e-9)
    assert best.order == order
    assert best.status == "optimal"
    assert best.certified
    assert best.theoretical_order is None
    assert not best.vertex
    assert best.flat
    assert best.rank == 1
    if n_exits < 4:
        np.testing.assert_allclose(best.x[0], [2 / 3, 1 / 3], atol=1e-6)


@pytest.mark.parametrize(
    "length, options, bound",
    [
        (3, {"order": 1}, 0.75),
        (3, {"order": 2, "vertex": False}, 0.668559),
        (3, {"order": 2}, 2 / 3),
        (5, {"order": 1}, (5 + math.sqrt(5)) / 8),
        (5, {"order": 1, "vertex": False}, (5 + math.sqrt(5)) / 8),
        (5, {"order": 2, "vertex": False}, 0.801316),
        (5, {"order": 2}, 0.8),
    ],
)
@pytest.mark.filterwarnings("ignore::assay.validation.ConvergenceWarning")
def test_bounds_of_odd_cycles(length, options, bound):
    best = ex_ante_optimum(cycle(length).game, **options)
    assert best.upper_bound == pytest.approx(bound, abs=1e-6)
    assert best.value == pytest.approx((length - 1) / length)
    assert best.value <= best.upper_bound


def test_affine_payoffs_of_the_generator_with_seed_0():
    rng = np.random.default_rng(0)
    for n_infosets, order, value in ((2, 1, 0.76615287), (3, 2, 2.07700669)):
        game = binary(rng.standard_normal(2**n_infosets), n_infosets)
        best = ex_ante_optimum(game, vertex=False)
        assert best.value == pytest.approx(value, abs=1e-8)
        assert best.order == order
        assert best.status == "optimal"


def test_a_tensor_of_payoffs():
    one = tensor_game(4, 0)
    best = ex_ante_optimum(one.game)
    assert best.value == pytest.approx(one.optimum, abs=1e-12)
    assert best.sdp_size == (33, 81)
    assert best.order == 2
    assert best.theoretical_order == 5
    assert best.solver == "cvxopt"
    assert best.certified


def test_the_bound_falls_with_the_order_and_the_history_says_so():
    rows = []
    best = ex_ante_optimum(cycle(5).game, callback=lambda row: rows.append(row))
    assert best.history["order"].tolist() == [1, 2]
    assert np.all(np.diff(best.history["upper_bound"]) <= 1e-9)
    assert [row["order"] for row in rows] == [1, 2]
    assert best.history["side"].tolist() == [6, 16]
    assert best.upper_bound == best.history["upper_bound"].min()
    with pytest.warns(ConvergenceWarning):
        assert ex_ante_optimum(cycle(5).game, callback=lambda row: True).order == 1


def test_several_optimal_strategies_are_found():
    same = {(1, 0, 1, 0): 1.0, (0, 1, 0, 1): 1.0}  # coordination with oneself
    game = ImperfectRecallGame.from_polynomials([same], [[0, 1], [2, 3]], [0, 0])
    best = ex_ante_optimum(game)
    assert best.value == 1.0
    played = {tuple(int(np.argmax(row)) for row in x) for x in best.optimisers}
    assert played == {(0, 0), (1, 1)}
    assert best.rank == 2


def test_two_interior_optima_are_extracted():
    """The payoff -((p - 1/4)(p - 3/4))^2 is largest at two mixtures."""
    square = {(4,): -1.0, (3,): 2.0, (2,): -(1.0 + 2 * 3 / 16), (1,): 2 * 3 / 16, (0,): -9 / 256}
    u = {(power, 0): c for (power,), c in square.items()}
    best = ex_ante_optimum(ImperfectRecallGame.from_polynomials([u], [[0, 1]], [0]))
    assert best.value == pytest.approx(0.0, abs=1e-9)
    assert best.flat
    assert sorted(round(float(x[0][0]), 4) for x in best.optimisers) == [0.25, 0.75]


@pytest.mark.filterwarnings("ignore::assay.validation.ConvergenceWarning")
def test_first_order_conditions_lose_no_optimum_and_tighten_the_bound():
    driving = ex_ante_optimum(driver(3).game, kkt=True)
    assert driving.value == pytest.approx(8 / 9)
    assert driving.certified
    plain, tight = (ex_ante_optimum(cycle(3).game, order=2, vertex=False, kkt=kkt) for kkt in (False, True))
    assert tight.value == pytest.approx(2 / 3)
    assert 2 / 3 <= tight.upper_bound < plain.upper_bound - 1e-4
    assert all(certificate.holds for certificate in tight.certificates[1:])


def test_mixing_pays_where_enumeration_says_otherwise():
    game = driver(2).game
    assert enumerate_pure(game) == 1.0
    assert ex_ante_optimum(game).value > 1.3


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_the_answer_is_the_best_pure_strategy_where_nobody_is_absent_minded(seed):
    game = forgetful_tree(3, np.random.default_rng(seed)).game
    best = ex_ante_optimum(game)
    assert best.value == pytest.approx(enumerate_pure(game), abs=1e-7)
    assert best.upper_bound >= enumerate_pure(game) - 1e-12
    assert best.certified


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6))
def test_no_strategy_is_above_the_bound(seed):
    rng = np.random.default_rng(seed)
    game = absent_minded_trees(1, rng)[0].game
    task = OwnStrategies(game, 0, game.random_strategy(rng), vertex=False, kkt=False)
    best = task.solve(None, task.problem.least_order, 1e-6, "auto", False)
    values = [game.utility(0, game.random_strategy(rng)) for _ in range(200)]
    assert max(values) <= best.upper_bound + 1e-12
    assert max(values) <= best.value + 1e-9 or best.status == "unresolved"


@pytest.mark.parametrize("solver", ["clarabel", "cvxopt", "scs"])
def test_every_solver_can_be_asked(solver):
    best = ex_ante_optimum(cycle(3).game, solver=solver, tol=1e-4)
    assert best.value == pytest.approx(2 / 3)
    assert best.gap <= 1e-4


def test_scale_and_shift_of_payoffs():
    u = {(1, 1): 4.0, (2, 0): 1.0}
    for factor, tol in ((1e-6, 1e-12), (1e6, 1.0)):
        game = ImperfectRecallGame.from_polynomials([{e: factor * c for e, c in u.items()}], [[0, 1]], [0])
        best = ex_ante_optimum(game, tol=tol)
        assert best.value == pytest.approx(factor * 4 / 3)
        assert best.status == "optimal"
    for factor in (1e300, 1e-300, 1e-320):  # the inverse of the last one is infinite
        game = ImperfectRecallGame.from_polynomials([{(1, 1): factor, (2, 0): factor / 4}], [[0, 1]], [0])
        best = ex_ante_optimum(game, tol=max(1e-6 * factor, 1e-322))
        assert best.value == pytest.approx(factor / 3, rel=1e-2 if factor == 1e-320 else 1e-6)
        assert best.x[0][0] == pytest.approx(2 / 3, abs=1e-3)
    for constant in (1e6, -1e6, 1e9):  # takes no digits from what can be decided
        game = ImperfectRecallGame.from_polynomials([{**u, (0, 0): constant}], [[0, 1]], [0])
        best = ex_ante_optimum(game)
        assert best.status == "optimal"
        assert constant + 4 / 3 <= best.upper_bound <= constant + 4 / 3 + 1e-6
    shifted = ImperfectRecallGame.from_polynomials([{**u, (0, 0): -10.0}], [[0, 1]], [0])
    assert ex_ante_optimum(shifted).value == pytest.approx(4 / 3 - 10)


def test_the_best_reply_to_others():
    pennies = {(1, 0, 1, 0): 1.0, (0, 1, 0, 1): 1.0, (1, 0, 0, 1): -1.0, (0, 1, 1, 0): -1.0}
    game = ImperfectRecallGame.from_polynomials(
        [pennies, {e: -c for e, c in pennies.items()}], [[0, 1], [2, 3]], [0, 1]
    )
    best = ex_ante_optimum(game, player=1, others=[[0.9, 0.1], [0.5, 0.5]])
    assert best.value == pytest.approx(0.8)
    np.testing.assert_allclose(best.x[1], [0, 1], atol=1e-9)
    np.testing.assert_allclose(best.x[0], [0.9, 0.1])
    indifferent = ex_ante_optimum(game, player=1, others=[[0.5, 0.5], [0.5, 0.5]])
    assert indifferent.value == pytest.approx(0.0, abs=1e-12)
    assert indifferent.gap == 0.0
    assert indifferent.certified
    with pytest.raises(ValueError, match="others must be given where other players decide"):
        ex_ante_optimum(game)
    with pytest.raises(ValueError, match="others must have 2 distributions"):
        ex_ante_optimum(game, others=[[0.5, 0.5]])


def test_information_sets_that_do_not_matter_are_left_alone():
    game = ImperfectRecallGame.from_polynomials([{(1, 0, 0, 0): 1.0}], [[0, 1], [2, 3]], [0, 0])
    best = ex_ante_optimum(game)
    assert best.value == pytest.approx(1.0)
    assert best.sdp_size == (2, 2)
    np.testing.assert_allclose(best.x[1], [0.5, 0.5])


# ---------------------------------------------------------------------------------------------------- certificates


@pytest.fixture(scope="module")
def pentagon_task():
    game = cycle(5).game
    return OwnStrategies(game, 0, game.random_strategy(0), vertex=True, kkt=False)


def test_certificates_fail_when_the_proof_is_spoilt(pentagon_task):
    level = pentagon_task.problem.solve(2)
    good = pentagon_task._certificates(level, 0.8, pentagon_task.upper(level.bound), 1e-6)
    assert all(certificate.holds for certificate in good)
    (gram,) = level.answer.multipliers.grams
    for spoilt, failing in ((gram - 0.1 * np.eye(len(gram)), {2, 3, 4}), (gram + 0.1 * np.eye(len(gram)), {3, 4})):
        multipliers = dataclasses.replace(level.answer.multipliers, grams=(spoilt,))
        answer = dataclasses.replace(level.answer, multipliers=multipliers)
        identity = sos_program.check_identity(level.program, multipliers)
        bad = dataclasses.replace(level, answer=answer, identity=identity)
        certificates = pentagon_task._certificates(bad, 0.8, pentagon_task.upper(bad.bound), 1e-6)
        assert {i for i, certificate in enumerate(certificates) if not certificate.holds} >= failing | {0}


def test_certificates_fail_when_the_value_is_wrong(pentagon_task):
    level = pentagon_task.problem.solve(2)
    low = pentagon_task._certificates(level, 0.7, pentagon_task.upper(level.bound), 1e-6)
    high = pentagon_task._certificates(level, 0.9, pentagon_task.upper(level.bound), 1e-6)
    assert [certificate.holds for certificate in low][:2] == [False, True]
    assert [certificate.holds for certificate in high][:2] == [True, False]


def test_a_failed_solver_gives_no_bound(monkeypatch):
    asked = []

    def fails(program, solver):
        asked.append(solver)
        return ConicAnswer("failed", False, None, None, solver, "no", 0.0)

    monkeypatch.setattr(imperfect_relaxation, "solve_conic", fails)
    with pytest.warns(ConvergenceWarning, match="did not reach"):
        best = ex_ante_optimum(driver(2).game)
    assert asked == ["clarabel", "cvxopt", "scs"]
    assert best.status == "unresolved"
    assert best.upper_bound == math.inf
    assert not best.certified
    assert best.value == pytest.approx(4 / 3)  # of local search, without a proof
    assert best.history == {}


def test_scs_is_asked_when_interior_point_methods_fail(monkeypatch):
    solve, asked = imperfect_relaxation.solve_conic, []

    def only_scs(program, solver):
        asked.append(solver)
        if solver == "scs":
            return solve(program, solver)
        return ConicAnswer("failed", False, None, None, solver, "no", 0.0)

    monkeypatch.setattr(imperfect_relaxation, "solve_conic", only_scs)
    best = ex_ante_optimum(driver(2).game, tol=1e-4)
    assert asked == ["clarabel", "cvxopt", "scs"]
    assert best.solver == "scs"
    assert best.status == "optimal"


def test_multipliers_that_do_not_pass_are_not_believed(monkeypatch):
    solve = imperfect_relaxation.solve_conic

    def wrong(program, solver):
        answer = solve(program, solver)
        multipliers = dataclasses.replace(answer.multipliers, bound=answer.multipliers.bound - 0.1)
        return dataclasses.replace(answer, multipliers=multipliers)

    monkeypatch.setattr(imperfect_relaxation, "solve_conic", wrong)
    with pytest.warns(ConvergenceWarning):
        best = ex_ante_optimum(driver(2).game)
    assert best.status == "unresolved"
    assert best.upper_bound == math.inf


def test_what_does_not_fit_into_memory_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr(sos_program, "machine_memory", lambda: 2**21)
    monkeypatch.setattr(imperfect_relaxation, "build_relaxation", lambda *arguments: pytest.fail("was built"))
    with pytest.raises(ValueError, match=r"side 33, 81 moments.*force=True"):
        ex_ante_optimum(tensor_game(4, 0).game)
    monkeypatch.undo()
    monkeypatch.setattr(sos_program, "machine_memory", lambda: 2**21)
    assert ex_ante_optimum(tensor_game(4, 0).game, force=True).status == "optimal"


def test_a_later_order_that_does_not_fit_ends_the_search(monkeypatch):
    monkeypatch.setattr(sos_program, "machine_memory", lambda: 2**16)
    with pytest.warns(ConvergenceWarning):
        best = ex_ante_optimum(cycle(5).game)
    assert best.order == 1
    assert best.status == "unresolved"
    assert best.upper_bound == pytest.approx((5 + math.sqrt(5)) / 8, abs=1e-6)


# ---------------------------------------------------------------------------------------------------- local search


def test_local_search_never_loses():
    rng = np.random.default_rng(0)
    for game in (tensor_game(3, 1).game, absent_minded_trees(1, rng)[0].game):
        blocks = [len(simplex) - 1 for simplex in game.simplices]
        payoff = CompiledPolynomial(game.reduced[0], sum(blocks))
        for _ in range(5):
            start = game.free_part(game.random_strategy(rng))
            assert payoff(local_ascent(payoff, blocks, start)) >= payoff(start) - 1e-12


def test_best_responses_end_in_pure_strategies():
    one = tensor_game(3, 2)
    payoff = CompiledPolynomial(one.game.reduced[0], 6)
    end = best_response_ascent(payoff, [2, 2, 2], np.full(6, 1 / 3))
    assert set(end) <= {0.0, 1.0}
    for k in range(0, 6, 2):  # no single information set can be improved
        assert max(0.0, payoff.gradient(end)[k : k + 2].max()) == pytest.approx(
            payoff.gradient(end)[k : k + 2] @ end[k : k + 2]
        )


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "options, match",
    [
        ({"order": 1}, "order must be at least 2"),
        ({"max_order": 1}, "max_order must be at least 2"),
        ({"player": 1}, "player must be less than 1"),
        ({"player": -1}, "player must be at least 0"),
        ({"vertex": True}, "vertex must not be True for an absent-minded player"),
        ({"vertex": "no"}, "vertex must be 'auto', True or False"),
        ({"tol": 0.0}, "tol must be greater than 0"),
        ({"tol": math.nan}, "tol must be finite"),
        ({"solver": "mosek"}, "solver must be one of"),
    ],
)
def test_options_that_do_not_fit(options, match):
    with pytest.raises(ValueError, match=match):
        ex_ante_optimum(driver(3).game, **options)


@pytest.mark.parametrize("options", [{"kkt": "yes"}, {"order": 2.5}, {"callback": 3}, {"force": 1}])
def test_options_of_other_types(options):
    with pytest.raises(TypeError):
        ex_ante_optimum(driver(3).game, **options)


def test_a_game_of_another_type():
    with pytest.raises(TypeError):
        ex_ante_optimum({"players": []})


def test_the_result_becomes_json():
    content = ex_ante_optimum(driver(2).game).to_dict()
    assert content["status"] == "optimal"
    assert content["x"][0] == pytest.approx([2 / 3, 1 / 3], abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_is_above_a_fine_grid(seed):
    rng = np.random.default_rng(seed)
    u = {
        (i, j, k, m): float(rng.standard_normal())
        for i, j, k, m in itertools.product(range(2), range(3), range(3), (0,))
    }
    game = ImperfectRecallGame.from_polynomials([u], [[0, 1], [2, 3]], [0, 0])
    best = ex_ante_optimum(game)
    p, q = np.meshgrid(np.linspace(0, 1, 201), np.linspace(0, 1, 201))
    values = sum(c * p**i * (1 - p) ** j * q**k * (1 - q) ** m for (i, j, k, m), c in u.items())
    assert values.max() <= best.upper_bound
    assert values.max() >= best.value - 1e-3
    assert best.status == "optimal"


def test_powers_that_leave_no_digits_or_too_many_terms_are_refused_before_they_are_built():
    high = ImperfectRecallGame.from_polynomials([{(0, 3000): 1.0}], [[0, 1]], [0])
    with pytest.raises(ValueError, match="smaller powers of the last actions"):
        ex_ante_optimum(high)
    n = 60
    wide = ImperfectRecallGame.from_polynomials([{(0, 1) * n: 1.0}], [[2 * i, 2 * i + 1] for i in range(n)], [0] * n)
    with pytest.raises(ValueError, match=r"fit into half of the memory.*without the last actions"):
        ex_ante_optimum(wide)
