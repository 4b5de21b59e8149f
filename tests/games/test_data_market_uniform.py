"""Uniform prices: how far from stable, sellers who answer each other, and a proof that nothing is stable."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.games.market_deviation import best_uniform_deviation
from assay.games.market_model import DataMarket
from assay.games.market_no_equilibrium import (
    certify_no_equilibrium,
    limit_ratio,
    limit_ratio_at,
    no_equilibrium_instance,
)
from assay.games.market_uniform import approx_ratio_uniform, uniform_best_response, uniform_revenue
from assay.validation import ConvergenceWarning

A, B = 0.733, 0.860


def scan(nu, p, q):
    """Worst-tie ratios over a grid of prices of the two sellers."""
    market = no_equilibrium_instance(nu)

    def best(seller, price):
        posted = market.with_prices([[price], [price]])
        return best_uniform_deviation(posted, [[1], [1]], seller).revenue

    first, second = np.array([best(0, y) for y in q]), np.array([best(1, x) for x in p])
    own = uniform_revenue(market, np.array([(x, y) for x in p for y in q]), ties="worst").reshape(p.size, q.size, 2)
    with np.errstate(divide="ignore"):
        return np.maximum(first / own[:, :, 0], second[:, None] / own[:, :, 1])


# Known values.


@pytest.mark.parametrize("nu, revenue", [(10, (11.269, 7.331)), (1000, (1126.9, 733.1))])
def test_known_revenue(nu, revenue):
    market = no_equilibrium_instance(nu)
    np.testing.assert_allclose(uniform_revenue(market, [0.86 * nu, 0.7331]), revenue, rtol=1e-12)


@pytest.mark.parametrize("nu", [10, 100, 1000])
def test_known_ratio_above_one(nu):
    p = np.linspace(0.258, 0.86, 40) * nu
    q = np.concatenate((np.arange(0.5, 1.2, 0.02), np.arange(0.72, 0.74, 0.001)))
    ratio = scan(nu, p, q)
    at = np.unravel_index(np.argmin(ratio), ratio.shape)
    assert ratio[at] == pytest.approx(1.36426, abs=2e-5)
    assert (p[at[0]], q[at[1]]) == pytest.approx((0.86 * nu, 0.733), abs=2e-3)
    assert approx_ratio_uniform(no_equilibrium_instance(nu), [p[at[0]], q[at[1]]]) == pytest.approx(ratio[at])


@pytest.mark.parametrize("nu, p, ratio", [(10, 4.96, 1.36412), (100, 0.9901, 1.36399), (1000, 0.99899, 1.36394)])
def test_known_smallest_ratio(nu, p, ratio):
    q = np.concatenate((np.arange(0.48, 0.52, 5e-4), np.arange(0.3, 1.2, 0.02)))
    near = np.concatenate((np.linspace(0.995, 1.005, 101) * p, np.geomspace(0.3, 1.2 * nu, 30)))
    found = scan(nu, near, q)
    assert found.min() == pytest.approx(ratio, abs=1.5e-4)
    assert found.min() >= 1.363


def test_known_limits():
    assert limit_ratio(A, B) == pytest.approx(1.36375, abs=5e-6)
    assert limit_ratio(0.5, 0.9) == pytest.approx(1.26128, abs=5e-6)
    assert limit_ratio(0.7, 0.85) == pytest.approx(1.35, abs=1e-14)
    assert limit_ratio(0.7332, 0.8604) == pytest.approx(1.36395, abs=5e-6)


def closed_forms(a, b):
    skim = a / (-1 + math.sqrt(1 + a * (1 + b)))
    q = b / (1 + a)
    p = (-(1 - q) + math.sqrt((1 - q) ** 2 + 4 * a * q * (1 + a * q))) / 2
    return skim, p / (a * q), 1 + a * b / (1 + a)


def test_limit_is_the_smallest_of_three_closed_forms():
    np.testing.assert_allclose(closed_forms(A, B), [1.364155, 1.363918, 1.363751], atol=5e-7)
    for a, b in ((A, B), (0.7332, 0.8604), (0.74, 0.86), (0.72, 0.855), (0.5, 0.9), (0.7, 0.85)):
        assert limit_ratio(a, b) == pytest.approx(min(closed_forms(a, b)), abs=1e-12)


def test_largest_limit_is_the_constant_of_the_paper():
    grid = [(limit_ratio(a, b), a, b) for a in np.arange(0.6, 0.9, 0.05) for b in np.arange(0.7, 1.0, 0.05)]
    assert max(grid)[0] <= limit_ratio(0.7332, 0.8604) <= 1.3645


@given(st.floats(0.1, 2), st.floats(0.1, 2))
@settings(max_examples=15, deadline=None)
def test_limit_against_a_scan(a, b):
    p, q = np.meshgrid(np.linspace(0.002, max(2, a, b), 300), np.linspace(0.002, 1.5, 300), indexing="ij")
    scanned = min(limit_ratio_at(a, b, p, q).min(), max(1 + a * b / (1 + a), b))
    limit = limit_ratio(a, b)
    assert limit <= scanned + 1e-12
    assert scanned <= limit * 1.03
    assert limit >= 1


def test_ties_count_against_the_seller():
    market = DataMarket([1], [[2, 1]], price_grid=[1])
    for ties, revenue in (("fixed", (1, 0)), ("worst", (0.5, 0)), ("best", (1, 0.5))):
        np.testing.assert_allclose(uniform_revenue(market, [1, 0.5], ties=ties), revenue)
    assert approx_ratio_uniform(market, [1, 0.5], ties="worst") == math.inf


@pytest.mark.parametrize("seed", range(4))
def test_uniform_revenue_is_that_of_the_market(seed):
    rng = np.random.default_rng(seed)
    market = DataMarket(rng.uniform(0, 2, 7), rng.random((7, 4)), rng.uniform(0, 2, 7), price_grid=[1])
    prices = rng.uniform(0.1, 1, (5, 4))
    answer = uniform_revenue(market, prices)
    for row, vector in zip(answer, prices, strict=True):
        posted = market.with_prices([[price] for price in vector])
        np.testing.assert_allclose(row, posted.revenue(np.ones((4, 1))), atol=1e-13)
    least, most = uniform_revenue(market, prices, ties="worst"), uniform_revenue(market, prices, ties="best")
    assert (least <= answer).all()
    assert (answer <= most).all()


def test_stable_prices_have_ratio_one():
    # Two buyers who want one dataset each.
    market = DataMarket([1, 2], [[1, 0], [0, 1]], price_grid=[1, 2])
    assert approx_ratio_uniform(market, [1, 2]) == 1
    assert approx_ratio_uniform(market, [1, 1]) == 2


# Best answers.


@pytest.mark.parametrize("method", ["exact", "grid"])
def test_answers_do_not_settle_where_nothing_is_stable(method):
    result = uniform_best_response(no_equilibrium_instance(1000), method=method, max_rounds=120)
    assert not result.settled
    assert result.n_rounds == 120 or result.cycle_length > 0
    assert result.history["ratio"].min() >= 1.36
    assert result.best_ratio <= result.history["ratio"].min()
    assert not result.certificates[0].holds


@pytest.mark.parametrize("method", ["exact", "grid"])
def test_answers_settle_where_sellers_do_not_meet(method):
    market = DataMarket([1, 2], [[1, 0], [0, 1]], price_grid=[0.5, 1, 2])
    result = uniform_best_response(market, [0.5, 0.5], method=method)
    assert result.settled
    np.testing.assert_array_equal(result.revenue, [1, 2])
    assert result.ratio == 1
    assert result.certified


def test_a_cycle_on_the_grid_is_a_cycle():
    market = no_equilibrium_instance(100)
    result = uniform_best_response(market, method="grid")
    again = uniform_best_response(market, result.prices, method="grid", max_rounds=result.cycle_length)
    np.testing.assert_array_equal(again.prices, result.prices)
    assert again.cycle_length == result.cycle_length


def test_an_undercut_is_reported():
    # Seller 0 goes to 11; seller 1 then must stay below the tie at 5.5, which seller 0 wins.
    market = DataMarket([12, 10], [[1, 0.5], [1, 0]], price_grid=[1, 10])
    result = uniform_best_response(market, [10, 1], max_rounds=1)
    assert result.undercut
    np.testing.assert_allclose(result.prices, [11, 5.5 * (1 - 1e-6)], rtol=1e-12)
    assert not uniform_best_response(market, [10, 1], max_rounds=1, method="grid").undercut


def test_bad_input():
    market = no_equilibrium_instance(10)
    for prices, message in (([1], "one entry per seller"), ([1, 0], "greater than 0"), ([1, np.nan], "finite")):
        with pytest.raises(ValueError, match=message):
            uniform_revenue(market, prices)
        with pytest.raises(ValueError, match=message):
            approx_ratio_uniform(market, prices)
        with pytest.raises(ValueError, match=message):
            uniform_best_response(market, prices)
    with pytest.raises(ValueError, match="ties must be one of"):
        uniform_revenue(market, [1, 1], ties="none")
    with pytest.raises(ValueError, match="on the grids"):
        uniform_best_response(market, [1.01, 0.5], method="grid")
    for options in ({"method": "sgd"}, {"max_rounds": 0}, {"tol": -1}, {"undercut": 0}, {"undercut": 1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            uniform_best_response(market, **options)
    for wrong in ({"nu": 0}, {"nu": 1, "alpha": -1}, {"nu": 1, "beta": np.inf}):
        with pytest.raises(ValueError, match=list(wrong)[-1]):
            no_equilibrium_instance(**wrong)


# The proof.


def test_the_proof():
    holds, n_boxes = proof = certify_no_equilibrium(A, B, 1.3637)
    assert holds
    assert 5000 < n_boxes < 10_000
    assert proof.certified
    assert proof.witness is None
    assert limit_ratio(A, B) >= 1.3637


def test_the_disproof_has_a_witness():
    proof = certify_no_equilibrium(A, B, 1.365)
    assert not proof.holds
    assert not proof.certified
    assert proof.witness_ratio < 1.365
    # Just below price 1, the market itself has the ratio.
    nu = 1e6
    assert approx_ratio_uniform(no_equilibrium_instance(nu), [1 - 1e-5, proof.witness[1]]) < 1.365


@pytest.mark.parametrize("a, b, c", [(0.5, 0.9, 1.27), (0.2, 0.5, 1.1), (1.5, 0.7, 1.42), (0.3, 2.0, 1.6)])
def test_proof_and_disproof_agree_with_the_limit(a, b, c):
    limit = limit_ratio(a, b)
    if limit > 1.001:
        assert certify_no_equilibrium(a, b, 0.5 * (1 + limit)).holds
        assert certify_no_equilibrium(a, b, 0.999 * limit).holds
    proof = certify_no_equilibrium(a, b, max(c, 1.01 * limit))
    assert not proof.holds
    p, q = proof.witness
    at = limit_ratio_at(a, b, p, q) if p > 0 else max(1 + a * b / (1 + a), b)
    assert float(at) == pytest.approx(proof.witness_ratio)
    assert proof.witness_ratio < max(c, 1.01 * limit)


def test_an_open_question_is_said_to_be_open():
    with pytest.warns(ConvergenceWarning, match="left c=1.3637 open"):
        proof = certify_no_equilibrium(A, B, 1.3637, max_boxes=100)
    assert not proof.holds
    assert proof.witness is None
    assert not proof.certified


def test_bounds_are_bounds():
    from assay.games.market_no_equilibrium import _box_bounds

    rng = np.random.default_rng(0)
    corners = np.sort(rng.uniform(0.01, 1.5, (300, 2, 2)), axis=2).reshape(300, 4)
    bounds = _box_bounds(A, B, corners)
    inside = rng.random((300, 20, 2))
    p = corners[:, :1] + inside[:, :, 0] * (corners[:, 1:2] - corners[:, :1])
    q = corners[:, 2:3] + inside[:, :, 1] * (corners[:, 3:] - corners[:, 2:3])
    assert (limit_ratio_at(A, B, p, q) >= bounds[:, None]).all()


def test_bad_input_of_the_proof():
    for arguments, name in (((0, 1, 1.2), "alpha"), ((1, -1, 1.2), "beta"), ((1, 1, 0.5), "c"), ((1, 1, np.nan), "c")):
        with pytest.raises(ValueError, match=name):
            certify_no_equilibrium(*arguments)
    with pytest.raises(ValueError, match="max_boxes"):
        certify_no_equilibrium(1, 1, 1.2, max_boxes=0)
    with pytest.raises(ValueError, match="alpha"):
        limit_ratio(0, 1)
    for arguments, message in (
        ((A, B, 0.0, [1, 2]), "p must be greater than 0"),
        ((A, B, 1.0, [1, -2]), "q must be greater than 0"),
        ((A, B, np.nan, 1.0), "p must be"),
        ((0, B, 1.0, 1.0), "alpha"),
    ):
        with pytest.raises(ValueError, match=message):
            limit_ratio_at(*arguments)
