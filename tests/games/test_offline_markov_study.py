"""The study of offline Markov games, on logs that take no time."""

import math

import numpy as np
import pytest

from assay.games.markov_gap import nash_gap
from assay.games.offline_markov import rose
from assay.lab import Measurement
from assay.studies.games import _offline_costs as costs
from assay.studies.games import _offline_measures as measures
from assay.studies.games import _offline_problems as problems
from assay.studies.games import offline_markov as study
from assay.studies.games._offline_names import OPEN_SPIEL, PESSIMISTIC, PLUGIN, ROSE, SOS_MD, TRUE_MODEL

STUDY = study.OfflineMarkovStudy


def scalars(measurement):
    return {(scalar.metric, scalar.case): scalar.value for scalar in measurement.scalars}


def test_declarations():
    STUDY.check_declarations()
    assert STUDY.name == "games/offline_markov"
    assert STUDY.sizes["quick"]["samples"][-1] == 8000
    assert STUDY.sizes["full"]["samples"][-1] == 128_000
    assert dict(STUDY.seeds) == {"quick": 3, "full": 10}


def test_claims_have_their_numbers():
    numbers = {claim.id: (claim.relation, claim.number) for claim in STUDY.claims}
    for beta in ("0.2", "0.5", "1"):
        assert numbers[f"C1 beta={beta}, upper"] == ("<=", -0.85)
        assert numbers[f"C1 beta={beta}, lower"] == (">=", -1.2)
    assert numbers["C2 upper"] == ("<=", -0.4)
    assert numbers["C2 lower"] == (">=", -0.65)
    assert (numbers["C3 lower"], numbers["C3 upper"]) == ((">=", 3), ("<=", 8))
    assert numbers["C4a"] == ("<=", 1.1)
    assert numbers["C5"] == ("<=", 1.5)
    assert numbers["C6"] == ("<=", -0.5)
    assert numbers["C7a"] == (">=", 50)
    assert numbers["C8"] == ("<=", 0.25)
    assert numbers["P1"] == (">=", 20)
    assert numbers["P2"] == ("<=", 20)


def test_problems_depend_on_the_seed_only():
    one, two, other = (STUDY().problem("quick", STUDY.problem_rng("quick", seed)) for seed in (0, 0, 1))
    assert one == two
    assert one.seed != other.seed
    game = problems.random_game(one.seed)
    first, second = (game.sample(10, "uniform", one.seed, 0) for _ in range(2))
    np.testing.assert_array_equal(first.r, second.r)


def test_behaviours():
    game = problems.random_game(0)
    solution = problems.equilibrium(game, 0.5)
    unilateral = problems.unilateral_behaviour(solution)
    np.testing.assert_allclose(unilateral.sum(axis=(2, 3)), 1)
    np.testing.assert_allclose(unilateral.sum(axis=3), 0.475 * solution.mu + 0.525 / 3, atol=1e-12)
    pair = problems.deterministic_behaviour(solution)
    assert ((pair == 0) | (pair == 1)).all()
    np.testing.assert_array_equal(pair.sum(axis=(2, 3)), 1)


@pytest.mark.parametrize("contender", [ROSE, PLUGIN, PESSIMISTIC])
def test_rates(contender):
    measurement = Measurement()
    measures.measure_rates(measurement, contender, 3, (100, 200), 1)
    found = scalars(measurement)
    for beta in ("0.2", "0.5", "1"):
        small, large = (found["gap", f"random, beta={beta}, n={n}"] for n in (100, 200))
        assert found["gap_slope", f"random, beta={beta}"] == pytest.approx(np.log2(large / small))
    assert found["gap_over_that_of_beta_1", "n=100"] == pytest.approx(
        found["gap", "random, beta=0.2, n=100"] / found["gap", "random, beta=1, n=100"]
    )
    assert {curve.name for curve in measurement.curves} == {"regularised gap", "gap without regularisation"}


def test_the_best_bonus_counts():
    game = problems.random_game(1)
    data = game.sample(50, "uniform", 1, 0)
    found = measures.learn(PESSIMISTIC, game, data, 0.5)
    assert len(found) == 3
    gaps = [game.gaps(0.5, one.mu, one.nu) for one in found]
    assert measures.best_gaps(game, 0.5, found) == (min(g for g, _ in gaps), min(g for _, g in gaps))


def test_true_model():
    measurement = Measurement()
    measures.measure_true_model(measurement, 0)
    assert all(certificate.holds for _, certificate in measurement.certificates)
    assert all(value <= 1e-9 for (metric, _), value in scalars(measurement).items() if metric == "gap")


def test_self_play(monkeypatch):
    monkeypatch.setattr(measures, "MANY", 300)
    measurement = Measurement()
    measures.measure_self_play(measurement, SOS_MD, 2)
    found = scalars(measurement)
    assert found["gap_over_rose", "random, beta=1, n=300, T=320"] == pytest.approx(1, abs=1e-3)
    assert found["opt_gap", "random, beta=0.2, n=300, T=5"] > found["opt_gap", "random, beta=0.2, n=300, T=80"]
    assert found["contraction_over_bound", "beta=0.5, T=20"] <= 1
    assert math.isfinite(found["decay_over_proven", "random, beta=1"])


def test_negative_control(monkeypatch):
    monkeypatch.setattr(measures, "MANY", 4000)
    measurement = Measurement()
    measures.measure_negative_control(measurement, 0)
    found = scalars(measurement)
    assert found["coverage_certificate_holds", "one pair, beta=0.3"] == 0
    assert found["gap_over_uniform", "one pair, beta=0.3, n=4000"] > 10


def test_unilateral(monkeypatch):
    monkeypatch.setattr(measures, "SOME", 300)
    for contender in (ROSE, PLUGIN):
        measurement = Measurement()
        measures.measure_unilateral(measurement, contender, 1, 1)
        found = scalars(measurement)
        assert 0.05 < found["gap_over_uniform", "unilateral, beta=0.5, n=300"] < 20


class TestSoccer:
    def test_rules(self):
        game = problems.soccer()
        assert game.model.n_states == 4 * 5 * 19 * 2 + 1
        assert game.model.n_actions == (5, 5)
        np.testing.assert_allclose(game.mu_ref.sum(axis=1), 1)
        assert (game.mu_ref > 0).all()
        cells = [(row, column) for row in range(4) for column in range(5)]
        numbers = {
            state: k
            for k, state in enumerate(
                (one, two, ball) for one in cells for two in cells if one != two for ball in (0, 1)
            )
        }

        def outcome(state, a, b):
            row = game.model.transition_matrix(0)[[(numbers[state] * 5 + a) * 5 + b]].toarray()[0]
            names = {k: state for state, k in numbers.items()} | {760: "end"}
            return {names[k]: row[k] for k in np.flatnonzero(row)}, game.model.rewards[0, numbers[state], a, b]

        up, down, left, right, stay = range(5)
        assert outcome(((1, 4), (3, 0), 0), right, stay) == ({"end": 1.0}, 1.0)
        assert outcome(((0, 4), (3, 0), 0), right, stay) == ({((0, 4), (3, 0), 0): 1.0}, 0.5)
        assert outcome(((1, 4), (3, 0), 1), right, stay)[1] == 0.5  # without the ball there is no goal
        assert outcome(((0, 2), (1, 0), 1), stay, left) == ({"end": 1.0}, 0.0)
        # running into the other one leaves the ball to it
        assert outcome(((1, 1), (1, 2), 0), right, stay) == ({((1, 1), (1, 2), 1): 1.0}, 0.5)
        # who is first decides
        moved, _ = outcome(((1, 1), (1, 2), 0), right, up)
        assert moved == {((1, 1), (0, 2), 1): 0.5, ((1, 2), (0, 2), 0): 0.5}
        # in a corner two directions and standing still are one and the same
        np.testing.assert_allclose(game.mu_ref[numbers[(0, 0), (3, 3), 0]], [1 / 9, 1 / 3, 1 / 9, 1 / 3, 1 / 9])
        assert down == 1

    def test_the_game_is_fair(self):
        game = problems.soccer()
        solution = problems.equilibrium(game, 0.5)
        assert float(game.model.rho @ solution.V[0]) == pytest.approx(6.0, abs=1e-9)


def test_open_spiel_judges():
    pytest.importorskip("pyspiel")
    measurement = Measurement()
    measures.measure_judge(measurement, 0)
    found = scalars(measurement)
    assert found["difference_of_gaps", "goofspiel"] <= 1e-9
    assert found["nash_conv", "goofspiel"] > 1e-3
    other = Measurement()
    measures.measure_real_rules(other, ROSE, 0, (50, 2000))
    assert scalars(other)["gap", "goofspiel, n=2000"] <= scalars(other)["gap", "goofspiel, n=50"]


def test_without_open_spiel(monkeypatch):
    monkeypatch.setattr(study, "open_spiel_is_there", lambda: False)
    problem = STUDY().problem("quick", STUDY.problem_rng("quick", 0))
    measurement = STUDY().measure(OPEN_SPIEL, problem, np.random.default_rng(0))
    assert scalars(measurement) == {("installed", ""): 0.0}


def test_true_model_through_the_study():
    problem = STUDY().problem("quick", STUDY.problem_rng("quick", 0))
    measurement = STUDY().measure(TRUE_MODEL, problem, np.random.default_rng(0))
    assert ("gap", "random, beta=0.5") in scalars(measurement)


class TestCosts:
    def test_the_loop_is_the_same_method(self):
        payoffs, uniform = costs.fixed_stage_games()
        loop = costs.loop_over_states(payoffs, uniform, 0.5, 7)
        np.testing.assert_allclose(loop, costs.play_stage(payoffs, uniform, uniform, 0.5, 7).mu, atol=1e-12)

    def test_updates(self):
        measurement = Measurement()
        costs.measure_updates(measurement, (0.5,))
        found = scalars(measurement)
        case = "stage games, beta=0.5"
        ratio = found["updates_of_rose", case] / found["updates_of_self_play", case]
        assert found["updates_over_self_play", case] == ratio
        payoffs, uniform = costs.fixed_stage_games()
        n = int(found["updates_of_self_play", case])
        assert costs.play_stage(payoffs, uniform, uniform, 0.5, n).gap.max() <= 1e-6
        assert costs.play_stage(payoffs, uniform, uniform, 0.5, int(0.9 * n)).gap.max() > 1e-6

    def test_harmonic(self):
        measurement = Measurement()
        costs.measure_harmonic(measurement)
        assert scalars(measurement)["stage_gap", "stage games, beta=0.1, T=640"] == pytest.approx(0.44, rel=0.05)

    def test_memory(self):
        measurement = Measurement()
        costs.measure_memory(measurement)
        assert scalars(measurement)["numbers_per_cell", "S=400"] > 1


def test_slope():
    assert measures.slope({1: 3.0, 10: 0.3}) == pytest.approx(-1)
    assert math.isnan(measures.slope({1: 3.0, 10: 0.0}))


def test_the_demonstration_certifies_its_answer(capsys):
    assert all(certificate.holds for certificate in STUDY().demonstrate())
    assert "true gap" in capsys.readouterr().out


def test_references_reach_the_methods():
    game = problems.soccer()
    data = game.sample(20, "uniform", 0, 0)
    found = rose(data, 0.5, *game.references, split_half=False, estimate_coverage=False)
    np.testing.assert_array_equal(found.mu_ref[3], game.mu_ref)
    assert nash_gap(game.model, found.mu, found.nu) <= 1
