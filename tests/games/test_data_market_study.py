"""Pieces of the study of data markets."""

import numpy as np
import pytest

from assay.games.market_model import DataMarket
from assay.studies.games import data_market as study
from assay.studies.games._data_market_instances import TENTHS, Instance, digit_values
from assay.studies.games._data_market_rules import (
    clearing_prices,
    monopoly_prices,
    naive_round,
    nearest,
    smallest_worst_ratio,
)

STUDY = study.DataMarketStudy


def small_market(seed=0):
    return DataMarket(np.ones(4), np.random.default_rng(seed).random((4, 3)), price_grid=TENTHS)


def test_declarations():
    STUDY.check_declarations()
    assert STUDY.name == "games/data_market"


def test_claims_have_their_numbers():
    numbers = {claim.id: (claim.relation, claim.number) for claim in STUDY.claims}
    assert numbers["C1a"] == ("<=", 2.0)
    assert numbers["C1d"] == ("<=", 137)
    assert numbers["C2"] == (">=", 0.8)
    assert numbers["C3b"] == (">=", 1.3635)
    assert numbers["C3c"] == ("<=", 1.37)
    assert numbers["C4"] == ("<=", 1.15)
    assert numbers["C5"] == (">=", 0.5)
    assert numbers["C6a"] == ("<=", 2.04)
    assert numbers["C6b"] == ("<=", 0.02)
    assert numbers["P1"] == (">=", 200)
    assert numbers["P2"] == ("<=", 0.003)
    assert numbers["P3"] == ("<=", 0.15)


def test_naive_round_is_ours():
    market = small_market()
    lengths = np.random.default_rng(1).dirichlet(np.ones(10), 3)
    revenue, deviation = naive_round(market, lengths)
    standing = market.evaluate(lengths)
    np.testing.assert_allclose(revenue, standing.revenue, atol=1e-13)
    np.testing.assert_allclose(deviation, standing.deviation, atol=1e-13)


def test_rules():
    market = small_market()
    assert monopoly_prices(market).tolist() == [9, 9, 9]
    prices = market.prices[np.arange(3), clearing_prices(market)]
    assert 0.1 <= prices.min() <= prices.max() <= 1
    assert nearest(market, np.array([0.14, 0.15, 7.0])).tolist() == [0, 1, 9]


def test_money_clears():
    # Three equal datasets for one buyer of budget 1.
    market = DataMarket([1], [[1, 1, 1]], price_grid=[0.1, 1 / 3, 1])
    assert clearing_prices(market).tolist() == [1, 1, 1]


def test_digits_with_fewer_wrong_labels_are_worth_more():
    values = digit_values(10, 6, np.random.default_rng(0))
    assert values.max() == 1
    assert values[:, :2].mean() > values[:, 4:].mean()


def test_scan():
    from assay.games.market_no_equilibrium import no_equilibrium_instance

    ratio, p, q = smallest_worst_ratio(no_equilibrium_instance(100), np.array([70.0, 86.0]), np.array([0.6, 0.733]))
    assert (p, q) == (86.0, 0.733)
    assert ratio == pytest.approx(1.36426, abs=1e-5)


@pytest.mark.parametrize("contender", [study.INERTIAL, study.ANSWERS, study.MONOPOLY, study.CLEARING])
def test_measuring(contender, monkeypatch):
    monkeypatch.setattr(study, "_measure_lemma", lambda measurement, rng: None)
    market = small_market()
    made = [
        Instance("small, tenths", market, False, True),
        Instance("small, geometric", DataMarket(np.ones(4), market.values), True, True),
    ]
    measurement = STUDY().measure(contender, {"instances": made, "rounds": 40}, np.random.default_rng(0))
    scalars = {(scalar.metric, scalar.case): scalar.value for scalar in measurement.scalars}
    assert scalars["ratio", "small, tenths"] >= 0.99
    assert scalars["any_price_ratio", "small, geometric"] >= scalars["ratio", "small, geometric"] * (1 - 1e-12)
    assert all(certificate.holds for _, certificate in measurement.certificates)
    if contender == study.INERTIAL:
        assert scalars["good_within_150", "small, tenths"] in (0, 1)
        assert "excess_of_any_price" in {metric for metric, _ in scalars}


def test_proof_and_lemma():
    measurement = study.Measurement()
    study._measure_proof(measurement, 20, 20)
    study._measure_lemma(measurement, np.random.default_rng(0))
    scalars = {scalar.metric: scalar.value for scalar in measurement.scalars}
    assert (scalars["proved_1.3637"], scalars["proved_1.365"]) == (1, 0)
    assert scalars["smallest_ratio"] >= 1.3635
    assert scalars["least_lemma_ratio"] >= 0.5


def test_demonstration():
    assert all(certificate.holds for certificate in STUDY().demonstrate())
