"""Pieces of the study of Rasch models."""

import numpy as np
import pytest

from assay.studies.supervised import rasch as study
from assay.studies.supervised._rasch_contenders import fitters, logistic_regression, pg_em, py_irt_is_there

STUDY = study.RaschStudy


@pytest.fixture(scope="module")
def problem():
    return STUDY().problem("quick", np.random.default_rng(0))


def test_declarations():
    STUDY.check_declarations()
    assert STUDY.name == "supervised/rasch"
    assert set(fitters()) == {contender.name for contender in STUDY.contenders}


def test_claims_have_their_numbers():
    numbers = {claim.id: (claim.relation, claim.number) for claim in STUDY.claims}
    assert numbers["C1a"] == ("<=", 0.9)
    assert numbers["C1b"] == ("<=", 0.75)
    assert numbers["C1c"] == ("<=", 0.6)
    assert numbers["C2"] == ("<=", 1.05)
    assert numbers["C3"] == ("<=", 0.06)
    assert numbers["C4b"] == ("<=", 1e-6)
    assert numbers["C5a"] == ("<=", 1.0)
    assert numbers["C5b"] == ("<=", 0.2)
    assert numbers["C6a"] == (">=", 1.6)
    assert numbers["P1"] == ("<=", 0.08)
    assert numbers["P2"] == (">=", 20.0)


def test_tables_come_from_the_model():
    rng = np.random.default_rng(1)
    table = study.simulate(4000, 6, rng)
    chance = 1 / (1 + np.exp(table.difficulties - table.abilities[:, None]))
    np.testing.assert_allclose(table.responses.mean(axis=0), chance.mean(axis=0), atol=0.03)
    assert set(np.unique(study.simulate(50, 4, rng, two_groups=True).abilities)) == {-1.5, 1.5}
    assert np.isnan(study.simulate(400, 10, rng, missing=0.5).responses).mean() == pytest.approx(0.5, abs=0.05)
    large = study.simulate_bytes(2500, 20, 3)
    assert large.responses.dtype == np.int8
    chance = 1 / (1 + np.exp(large.difficulties - large.abilities[:, None]))
    np.testing.assert_allclose(large.responses.mean(axis=0), chance.mean(axis=0), atol=0.04)


def test_held_out_cells_are_apart(problem):
    for pairs in problem.held_out.values():
        for train, test in pairs:
            assert (np.isnan(train) != np.isnan(test)).all()


def test_errors_do_not_depend_on_the_origin():
    table = study.Table(np.zeros((2, 2)), np.array([1.0, 2.0]), np.array([0.0, 1.0]))
    assert study.errors(table, table.difficulties + 7, table.abilities + 7) == (0, 0)
    by_item, by_user = study.errors(table, np.array([1.0, 0.0]), table.abilities)
    assert by_item == pytest.approx(1)
    assert by_user == 0


@pytest.mark.parametrize("name", sorted(fitters()))
def test_every_contender_fits(name):
    if name == "py-irt" and not py_irt_is_there():
        pytest.skip("py-irt is not installed")
    if "girth" in name:
        pytest.importorskip("girth")
    table = study.simulate(150, 8, np.random.default_rng(2))
    difficulties, abilities = fitters()[name](table.responses)
    by_item, by_user = study.errors(table, difficulties, abilities)
    assert by_item < 0.6
    assert by_user < 1.3


def test_logistic_regression_has_the_same_optimum():
    table = study.simulate(40, 8, np.random.default_rng(3), missing=0.2).responses
    for one, other in zip(logistic_regression(table), pg_em(table), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_measurements(problem):
    measurement = STUDY().measure("PG-EM", problem, np.random.default_rng(0))
    assert all(certificate.holds for _, certificate in measurement.certificates)
    metrics = {scalar.metric for scalar in measurement.scalars}
    assert {"difficulty_rmse", "ability_rmse", "held_out_log_loss", "fit_seconds", "rate_to_bound"} <= metrics


def test_py_irt_is_skipped_with_a_reason(problem, monkeypatch):
    monkeypatch.setattr(study, "py_irt_is_there", lambda: False)
    (scalar,) = STUDY().measure("py-irt", problem, np.random.default_rng(0)).scalars
    assert (scalar.metric, scalar.value) == ("installed", 0.0)


def test_demonstration():
    assert all(certificate.holds for certificate in STUDY().demonstrate())
