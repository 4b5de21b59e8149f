"""Data markets: what is bought, deviations, and schedules that are nearly stable."""

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from assay.games.data_market import PricingResult, pruned, solve_pricing
from assay.games.market_deviation import best_uniform_deviation, plc_best_response
from assay.games.market_model import DataMarket
from assay.games.market_prices import geometric_grid
from assay.games.market_standing import best_to_own, plain_standing
from assay.games.market_uniform import approx_ratio_uniform, uniform_best_response, uniform_revenue
from assay.games.pricing_certificate import any_price_bound, assess
from assay.games.pricing_dynamics import best_prices
from assay.validation import ConvergenceWarning

TENTHS = np.arange(1, 11) / 10
KNOWN = DataMarket([1, 2], [[2, 1], [1, 3]], price_grid=[0.5, 1, 2])
KNOWN_LENGTHS = [[0.5, 0.5, 0], [0, 1, 0]]


def random_market(seed, n_buyers=6, n_sellers=4, grid=TENTHS):
    rng = np.random.default_rng(seed)
    values = rng.random((n_buyers, n_sellers)) * (rng.random((n_buyers, n_sellers)) < 0.8)
    market = DataMarket(rng.uniform(0, 2, n_buyers), values, rng.uniform(0, 3, n_buyers), grid)
    return market, rng.dirichlet(np.full(len(grid), 0.4), n_sellers)


def revenue_by_loops(budgets, values, weights, prices, lengths):
    """In exact fractions: sort the segments of every buyer and pay until the budget ends."""
    earned = [Fraction(0)] * len(prices)
    for budget, worth, weight in zip(budgets, values, weights, strict=True):
        segments = [
            (-Fraction(worth[j]) / Fraction(prices[j][k]), j, k)
            for j in range(len(prices))
            for k in range(len(prices[j]))
            if worth[j] > 0
        ]
        left = Fraction(budget)
        for _, j, k in sorted(segments):
            paid = min(left, Fraction(prices[j][k]) * Fraction(lengths[j][k]))
            earned[j] += Fraction(weight) * paid
            left -= paid
    return np.array([float(amount) for amount in earned])


def loops(market, lengths):
    prices = [row[: market.n_prices[j]] for j, row in enumerate(market.prices)]
    return revenue_by_loops(market.budgets, market.values, market.weights, prices, lengths)


def quiet(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return solve_pricing(*arguments, **options)


# Known values.


def test_known_revenue():
    np.testing.assert_array_equal(KNOWN.revenue(KNOWN_LENGTHS), [1.5, 1.25])
    np.testing.assert_array_equal(KNOWN.deviation_revenue(KNOWN_LENGTHS, 0), [1, 2, 2])
    assert KNOWN.incentive_ratio(KNOWN_LENGTHS) == 1.6


def test_known_purchases():
    np.testing.assert_allclose(KNOWN.purchases(KNOWN_LENGTHS)[0], [[0.5, 0.5, 0], [0, 0.25, 0]])
    np.testing.assert_allclose(KNOWN.purchases(KNOWN_LENGTHS)[1], [[0.5, 0.5, 0], [0, 1, 0]])
    np.testing.assert_allclose(KNOWN.buyer_utility(KNOWN_LENGTHS), [2.25, 4])
    np.testing.assert_allclose(KNOWN.spend(KNOWN_LENGTHS).sum(axis=(0, 2)), [1.5, 1.25])


def test_one_seller_and_one_buyer():
    market = DataMarket([2.0], [[1.0]], price_grid=[1, 2, 4])
    revenue, price, attained = best_uniform_deviation(market, [[1, 0, 0]], 0)
    assert (revenue, attained) == (2.0, True)
    assert min(2.0, price) == 2.0
    result = solve_pricing(market, rng=0)
    assert result.incentive_ratio == 1.0
    assert result.revenue[0] == 2.0
    assert result.certified


def test_worthless_data():
    market = DataMarket([1, 2], np.zeros((2, 3)), price_grid=[1, 2])
    result = solve_pricing(market, rng=0)
    np.testing.assert_array_equal(result.revenue, 0)
    assert (result.incentive_ratio, result.any_price_ratio, result.plc_ratio, result.lemma_min_ratio) == (1, 1, 1, 1)
    assert result.certified
    assert best_uniform_deviation(market, market.uniform_lengths([0, 0, 0]), 1).revenue == 0


@pytest.mark.parametrize("seed", range(3))
def test_units_of_money(seed):
    market, lengths = random_market(seed)
    scaled = DataMarket(7.3 * market.budgets, market.values, market.weights, 7.3 * TENTHS)
    np.testing.assert_allclose(scaled.revenue(lengths), 7.3 * market.revenue(lengths), rtol=1e-12)
    assert scaled.incentive_ratio(lengths) == pytest.approx(market.incentive_ratio(lengths))


@pytest.mark.parametrize("seed", range(3))
def test_two_of_every_buyer(seed):
    market, lengths = random_market(seed)
    twice = DataMarket(
        np.tile(market.budgets, 2), np.tile(market.values, (2, 1)), np.tile(market.weights, 2), price_grid=TENTHS
    )
    heavier = DataMarket(market.budgets, market.values, 2 * market.weights, TENTHS)
    for other in (twice, heavier):
        np.testing.assert_allclose(other.revenue(lengths), 2 * market.revenue(lengths), rtol=1e-12)
        assert other.incentive_ratio(lengths) == pytest.approx(market.incentive_ratio(lengths))


@pytest.mark.parametrize("seed, rounds", [(0, 148), (1, 115), (2, 86)])
def test_rounds_of_the_inertial_dynamics(seed, rounds):
    values = np.random.default_rng(seed).random((10, 10))
    result = solve_pricing(DataMarket(np.ones(10), values, price_grid=TENTHS), rng=0)
    assert (result.n_rounds, result.converged) == (rounds, True)
    assert result.incentive_ratio <= 1.0005
    np.testing.assert_array_equal(result.pieces_per_seller, 1)


# Ties, and numbers that are hard to compare.


def test_ties_go_to_the_lower_seller_then_to_the_lower_price():
    market = DataMarket([1], [[2, 1]], price_grid=[[1, 2], [0.5, 1]])
    # Value per money: 2 and 1 of either seller.
    spend = market.spend([[0.5, 0.5], [0.5, 0.5]])[0]
    np.testing.assert_allclose(spend, [[0.5, 0.25], [0.25, 0]])
    assert market.order[0][0].tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize(
    "values, prices", [((0.6, 0.2), (0.3, 0.1)), ((0.2, 0.6), (0.1, 0.3)), ((0.7, 0.1), (2.1, 0.3))]
)
def test_decimal_fractions_tie(values, prices):
    for order in (1, -1):
        market = DataMarket([prices[0] / 2], [values[::order]], price_grid=[[price] for price in prices[::order]])
        earned = market.revenue([[1], [1]])
        assert earned[0] == pytest.approx(min(prices[0] / 2, prices[::order][0]))


def test_tiny_prices_and_huge_values():
    market = DataMarket([1.0], [[1e300, 1e-300]], price_grid=[1e-12, 1.0])
    np.testing.assert_allclose(market.revenue([[1, 0], [0, 1]]), [1e-12, 1 - 1e-12])
    np.testing.assert_allclose(market.deviation_revenue([[1, 0], [0, 1]], 1), [1e-12, 1 - 1e-12])
    small = DataMarket([1e-12], [[1.0, 2.0]], price_grid=[1e-12, 1e-300 + 2e-12])
    np.testing.assert_allclose(small.revenue([[1, 0], [1, 0]]), [0, 1e-12])
    huge = DataMarket([1.0], [[1e308, 1e308 / 2]], price_grid=[1e-12, 1e12])
    np.testing.assert_allclose(huge.revenue([[0, 1], [0, 1]]), [1, 0])
    np.testing.assert_allclose(huge.deviation_revenue([[0, 1], [0, 1]], 1), [1e-12, 0])


def test_nobody_spends_more_than_there_is():
    market, lengths = random_market(5, 20, 8)
    spend = market.spend(lengths).sum(axis=(1, 2))
    assert (spend <= market.budgets * (1 + 1e-12)).all()
    np.testing.assert_allclose(market.weights @ market.spend(lengths).sum(axis=2), market.revenue(lengths), atol=1e-12)
    bought = market.purchases(lengths)
    assert (bought <= lengths + 1e-15).all()
    assert bought[market.values == 0].max() == 0


def test_no_budget_and_no_wish():
    market = DataMarket([0, 1], [[1, 1], [0, 0]], price_grid=[1])
    np.testing.assert_array_equal(market.revenue([[1], [1]]), [0, 0])
    np.testing.assert_array_equal(market.buyer_utility([[1], [1]]), [0, 0])


# Fast, plain and exact.


@given(
    budgets=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_walk_against_loops_with_many_ties(budgets, seed):
    rng = np.random.default_rng(seed)
    n_sellers = int(rng.integers(1, 4))
    grids = [np.sort(rng.choice([0.5, 1, 2, 3, 4], int(rng.integers(1, 4)), replace=False)) for _ in range(n_sellers)]
    market = DataMarket(budgets, rng.integers(0, 4, (len(budgets), n_sellers)), rng.integers(0, 3, len(budgets)), grids)
    lengths = np.zeros(market.prices.shape)
    for j, grid in enumerate(grids):
        parts = rng.multinomial(4, np.full(grid.size, 1 / grid.size)) / 4
        lengths[j, : grid.size] = parts
    standing = market.evaluate(lengths)
    np.testing.assert_allclose(standing.revenue, loops(market, lengths), atol=1e-12)
    for j, grid in enumerate(grids):
        for k in range(grid.size):
            changed = lengths.copy()
            changed[j] = np.eye(lengths.shape[1])[k]
            earned = loops(market, changed)[j]
            assert standing.deviation[j, k] == pytest.approx(earned, abs=1e-12)
    plain = plain_standing(market.budgets, market.weights, market.prices, lengths, market.order)
    np.testing.assert_allclose(standing.deviation, plain.deviation, atol=1e-12)
    np.testing.assert_allclose(standing.revenue, plain.revenue, atol=1e-12)
    np.testing.assert_allclose(standing.randomized, plain.randomized, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_walk_against_prefix_sums(seed):
    market, lengths = random_market(seed, 15, 7, geometric_grid(0.05, 0.01, 2))
    fast = market.evaluate(lengths)
    plain = plain_standing(market.budgets, market.weights, market.prices, lengths, market.order)
    np.testing.assert_allclose(fast.revenue, plain.revenue, atol=1e-12)
    np.testing.assert_allclose(fast.deviation, plain.deviation, atol=1e-12)
    np.testing.assert_allclose(fast.revenue, loops(market, lengths), atol=1e-12)


def test_grids_of_different_lengths():
    ragged = DataMarket([1, 2], [[2, 1], [1, 3]], price_grid=[[0.5, 1, 2], [1]])
    lengths = [[0.5, 0.5, 0], [1, 0, 0]]
    np.testing.assert_array_equal(ragged.revenue(lengths), [1.5, 1.25])
    assert ragged.deviation_revenue(lengths, 1).shape == (1,)
    with pytest.raises(ValueError, match="beyond the grid"):
        ragged.revenue([[0.5, 0.5, 0], [0.5, 0.5, 0]])
    result = solve_pricing(ragged, rng=0)
    np.testing.assert_array_equal(result.lengths[1], [1, 0, 0])
    assert np.isnan(result.prices[1, 1:]).all()


# The lemma.


@given(st.integers(0, 10**6), st.floats(0.05, 3))
@settings(max_examples=60, deadline=None)
def test_a_schedule_earns_half_of_its_random_price(seed, spread):
    rng = np.random.default_rng(seed)
    n_buyers, n_sellers = rng.integers(1, 6, 2)
    market = DataMarket(rng.uniform(0.1, 2, n_buyers), rng.random((n_buyers, n_sellers)), price_grid=TENTHS)
    standing = market.evaluate(rng.dirichlet(np.full(10, spread), n_sellers))
    assert standing.lemma_ratio >= 0.5 - 1e-12
    assert standing.incentive_ratio <= 2 * (1 + standing.fixed_point_residual) + 1e-12


def test_ratios_of_nothing():
    np.testing.assert_array_equal(best_to_own(np.array([0.0, 1.0, 1.0]), np.array([0.0, 0.0, 2.0])), [1, np.inf, 0.5])


# Any uniform price.


def earned_at(market, lengths, seller, price):
    """Revenue at one price, the market being set up anew with it."""
    grids = [row[: market.n_prices[j]] for j, row in enumerate(market.prices)]
    width = market.prices.shape[1]
    grids[seller] = [price]
    profile = np.array(lengths, dtype=float)
    profile[seller] = np.eye(width)[0]
    moved = market.with_prices(grids)
    return moved.revenue(profile[:, : moved.prices.shape[1]])[seller]


@pytest.mark.parametrize("seed", range(4))
def test_best_uniform_price_against_all_candidates(seed):
    market, lengths = random_market(seed, 4, 3, np.array([0.2, 0.5, 1.0, 1.7]))
    for seller in range(3):
        revenue, price, attained = best_uniform_deviation(market, lengths, seller)
        ties = [
            market.values[i, seller] * p / market.values[i, j]
            for i in range(4)
            for j in range(3)
            for p in market.prices[j]
            if j != seller and market.values[i, j] > 0 and market.values[i, seller] > 0
        ]
        candidates = np.array([*ties, *market.budgets[market.budgets > 0], *np.linspace(0.01, 3, 20)])
        around = np.concatenate([candidates, candidates * (1 - 1e-9), candidates * (1 + 1e-9)])
        scanned = max(earned_at(market, lengths, seller, p) for p in around)
        assert revenue >= scanned * (1 - 1e-12)
        at = earned_at(market, lengths, seller, price)
        below = earned_at(market, lengths, seller, price * (1 - 1e-9))
        assert max(at, below) == pytest.approx(revenue, rel=1e-7)
        assert attained == (at >= revenue * (1 - 1e-11))
        assert revenue >= market.deviation_revenue(lengths, seller).max() * (1 - 1e-12)


def test_a_tie_that_must_be_undercut():
    # Seller 0 wins ties: the price 2 is attained for it and not for seller 1.
    for seller, attained in ((0, True), (1, False)):
        values = [[2, 1]] if seller == 0 else [[1, 2]]
        grids = [[5], [1]] if seller == 0 else [[1], [5]]
        market = DataMarket([2.5], values, price_grid=grids)
        answer = best_uniform_deviation(market, [[1], [1]], seller)
        assert (answer.revenue, answer.price, answer.attained) == (2, 2, attained)


def test_a_flat_stretch_is_attained_inside():
    # Below the tie at 8 the buyer's 3 are all spent from price 3 on, above it 1 is left.
    market = DataMarket([3], [[4, 1]], price_grid=[[1], [2]])
    answer = best_uniform_deviation(market, [[1], [1]], 0)
    assert (answer.revenue, answer.price, answer.attained) == (3, 3, True)


def exact_revenue(market, lengths, seller, price):
    """In exact fractions, the price being given as one: who has more value per money, or ties before, comes first."""
    earned = Fraction(0)
    for budget, worth, weight in zip(market.budgets, market.values, market.weights, strict=True):
        left = Fraction(budget) if worth[seller] > 0 else Fraction(0)
        for j, k in zip(*np.nonzero(lengths), strict=True):
            ahead, own = Fraction(worth[j]) * price, Fraction(worth[seller]) * Fraction(market.prices[j, k])
            if j != seller and worth[j] > 0 and (ahead > own or (ahead == own and j < seller)):
                left -= min(left, Fraction(market.prices[j, k]) * Fraction(lengths[j, k]))
        earned += Fraction(weight) * min(left, price)
    return earned


def exact_supremum(market, lengths, seller):
    """Supremum over all prices and whether it is attained: between two candidates the revenue is linear."""
    where = {Fraction(0)}
    for budget, worth in zip(market.budgets, market.values, strict=True):
        others = [(j, k) for j, k in zip(*np.nonzero(lengths), strict=True) if j != seller and worth[j] > 0]
        if worth[seller] > 0:
            left = Fraction(budget)
            where.add(left)
            for j, k in sorted(others, key=lambda s: -Fraction(worth[s[0]]) / Fraction(market.prices[s])):
                left -= min(left, Fraction(market.prices[j, k]) * Fraction(lengths[j, k]))
                where |= {left, Fraction(market.prices[j, k]) * Fraction(worth[seller]) / Fraction(worth[j])}
    where = sorted(where)
    attained = [exact_revenue(market, lengths, seller, price) for price in where if price > 0]
    limits = []
    for low, high in zip(where, [*where[1:], where[-1] + 1], strict=True):
        first, second = (exact_revenue(market, lengths, seller, low + part * (high - low) / 3) for part in (1, 2))
        attained += [first, second]
        limits += [2 * first - second, 2 * second - first]
    return float(max(attained + limits)), max(attained) >= max(limits)


@pytest.mark.parametrize("block", range(4))
def test_best_uniform_price_in_exact_fractions(block):
    rng = np.random.default_rng(block)
    for _ in range(40):
        n_buyers, n_sellers = rng.integers(2, 5), rng.integers(2, 4)
        grids = [np.unique(rng.integers(1, 8, 3)) / 2 for _ in range(n_sellers)]
        market = DataMarket(
            rng.integers(0, 6, n_buyers), rng.integers(0, 4, (n_buyers, n_sellers)), rng.integers(0, 3, n_buyers), grids
        )
        lengths = np.zeros(market.prices.shape)
        for j, grid in enumerate(grids):
            lengths[j, : grid.size] = rng.multinomial(4, np.full(grid.size, 1 / grid.size)) / 4
        for seller in range(n_sellers):
            answer = best_uniform_deviation(market, lengths, seller)
            revenue, attained = exact_supremum(market, lengths, seller)
            assert answer.revenue == pytest.approx(revenue, abs=1e-12)
            assert answer.attained == attained


def test_ties_beyond_all_numbers():
    market = DataMarket([1.0], [[1e300, 1e-300]], price_grid=[[1.0], [1.0]])
    answer = best_uniform_deviation(market, [[1], [1]], 0)
    assert (answer.revenue, answer.price, answer.attained) == (1, 1, True)
    assert best_uniform_deviation(market, [[1], [1]], 1).revenue == 0


@pytest.mark.parametrize("grid", [TENTHS, np.array([0.3, 1.0]), geometric_grid(0.02, 1e-3, 2)])
def test_what_a_grid_says_about_any_price(grid):
    for seed in range(3):
        market, lengths = random_market(seed, 8, 3, grid)
        numbers = assess(market, lengths)
        bound = any_price_bound(market, market.evaluate(lengths))
        assert numbers.incentive_ratio * (1 - 1e-12) <= numbers.any_price_ratio <= bound * (1 + 1e-12)


def test_geometric_grid():
    grid = geometric_grid(0.02, 1e-3, 1)
    assert (grid[0], grid[-1]) == (1e-3, 1)
    assert 1.0199 <= (grid[1:] / grid[:-1]).max() <= 1.02 + 1e-12
    np.testing.assert_array_equal(geometric_grid(0.5, 2, 2), [2])
    np.testing.assert_allclose(geometric_grid(0.5, 1, 1.5**7), 1.5 ** np.arange(8))
    np.testing.assert_allclose(DataMarket([2, 1], [[1], [1]]).prices[0], geometric_grid(0.02, 2e-3, 2))
    for wrong in ((0, 1, 2), (0.1, 0, 2), (0.1, 2, 1), (0.1, 1, np.inf), (1e-12, 0.1, 1), (0.02, 5e-324, 1)):
        with pytest.raises(ValueError, match="must be"):
            geometric_grid(*wrong)


# Any schedule.


@pytest.mark.parametrize("seed", range(4))
def test_a_better_schedule_is_what_it_says(seed):
    market, lengths = random_market(seed)
    for seller in range(2):
        answer = plc_best_response(market, lengths, seller, rng=seed)
        uniform = best_uniform_deviation(market, lengths, seller)
        assert answer.revenue >= uniform.revenue * (1 - 1e-12)
        assert answer.lengths.sum() == pytest.approx(1)
        assert (np.diff(answer.prices) > 0).all()
        # A price just below a tie is played a little lower.
        prices = np.where(answer.prices == uniform.price, uniform.price * (1 - 1e-10), answer.prices)
        grids = [*market.prices]
        grids[seller] = prices
        profile = np.zeros((4, max(10, prices.size)))
        profile[:, :10] = lengths
        profile[seller] = 0
        profile[seller, : prices.size] = answer.lengths
        assert market.with_prices(grids).revenue(profile)[seller] == pytest.approx(answer.revenue, rel=1e-8)


def test_one_start_is_the_best_uniform_price():
    market, lengths = random_market(1)
    answer = plc_best_response(market, lengths, 0, restarts=1)
    assert answer.revenue >= best_uniform_deviation(market, lengths, 0).revenue * (1 - 1e-12)
    with pytest.raises(ValueError, match="restarts"):
        plc_best_response(market, lengths, 0, restarts=0)


# The solver.


@pytest.mark.parametrize("dynamics", ["inertial", "fictitious", "regret"])
def test_solving(dynamics):
    market, _ = random_market(3, 10, 8)
    result = quiet(market, dynamics, rng=0, max_rounds=200)
    assert isinstance(result, PricingResult)
    np.testing.assert_allclose(result.lengths.sum(axis=1), 1)
    np.testing.assert_allclose(result.revenue, market.revenue(result.lengths))
    assert result.incentive_ratio == pytest.approx(market.incentive_ratio(result.lengths))
    assert result.any_price_ratio >= result.incentive_ratio * (1 - 1e-12)
    assert result.plc_ratio >= result.any_price_ratio * (1 - 1e-12)
    assert result.lemma_min_ratio >= 0.5
    assert result.certified
    assert result.incentive_ratio <= result.history["best_ratio"][-1] * (1 + 1e-12)
    np.testing.assert_array_equal(result.history["best_ratio"], np.minimum.accumulate(result.history["ratio"]))
    np.testing.assert_allclose(result.spend.sum(axis=0), result.revenue, atol=1e-12)
    np.testing.assert_allclose(result.buyer_utility, market.buyer_utility(result.lengths))


def test_the_best_profile_on_the_way_is_returned():
    values = np.random.default_rng(1).random((5, 5))
    market = DataMarket(np.ones(5), values, price_grid=TENTHS)
    with pytest.warns(ConvergenceWarning, match="solve_pricing"):
        result = solve_pricing(market, max_rounds=200, rng=0)
    assert not result.converged
    assert result.history["ratio"][-1] > result.incentive_ratio
    assert result.best_round < result.n_rounds == 200


def test_the_answer_does_not_depend_on_the_seed_of_the_search():
    market, _ = random_market(4)
    one, other = (quiet(market, rng=seed, max_rounds=50) for seed in (0, 1))
    np.testing.assert_array_equal(one.lengths, other.lengths)
    assert quiet(market, rng=0, max_rounds=50).plc_ratio == one.plc_ratio
    assert np.isnan(quiet(market, max_rounds=50, plc_restarts=0).plc_ratio)


def test_callback_ends_the_run():
    seen = []

    def stop(row):
        seen.append(row["round"])
        return row["round"] >= 10

    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        result = solve_pricing(random_market(2)[0], rng=0, callback=stop)
    assert seen == [5, 10]
    assert (result.n_rounds, result.converged) == (10, False)


def test_pruning():
    lengths = np.array([[0.005, 0.995, 0], [0.4, 0.3, 0.3], [0.5, 0.495, 0.005]])
    expected = [[0, 1, 0], [0.4, 0.3, 0.3], [0.5 / 0.995, 0.495 / 0.995, 0]]
    np.testing.assert_allclose(pruned(lengths, 0.01), expected)
    np.testing.assert_allclose(pruned(lengths, 0.9), [[0, 1, 0], [1, 0, 0], [1, 0, 0]])


def test_the_lowest_of_equal_prices_is_best():
    assert best_prices(np.array([[1, 2, 2 * (1 - 1e-15), 0], [3, 3, 3, 3], [0, 0, 0, 0]])).tolist() == [1, 0, 0]


# Certificates that fail when the answer is spoilt.


def test_certificates_of_spoilt_schedules():
    values = np.random.default_rng(0).random((10, 10))
    market = DataMarket(np.ones(10), values, price_grid=TENTHS)
    result = solve_pricing(market, rng=0)
    assert all(c.holds for c in assess(market, result.lengths).certificates)
    # Everyone at the top price: some earn nothing and could earn something.
    greedy = assess(market, market.uniform_lengths(np.full(10, 9)))
    assert greedy.incentive_ratio > 2
    assert not greedy.certificates[0].holds
    shuffled = assess(market, np.roll(result.lengths, 5, axis=1))
    assert shuffled.incentive_ratio > 2
    assert not shuffled.certificates[0].holds


@pytest.mark.parametrize("spoil", [lambda x: 1.001 * x, lambda x: x - 0.01, lambda x: x * np.nan, lambda x: 0 * x])
def test_certificates_of_what_is_no_profile(spoil):
    market, lengths = random_market(0)
    numbers = assess(market, spoil(lengths))
    assert np.isnan(numbers.incentive_ratio)
    assert not any(c.holds for c in numbers.certificates)


def test_a_broken_lemma_is_noticed():
    market, lengths = random_market(0)
    assert assess(market, lengths, lemma_ratio=0.4).certificates[3].holds is False


def test_other_prices_break_the_certificate_of_any_price():
    # On a grid of one price, the sellers cannot move; elsewhere they could earn ten times as much.
    market = DataMarket([10], [[1]], price_grid=[1])
    numbers = assess(market, np.ones((1, 1)))
    assert (numbers.incentive_ratio, numbers.any_price_ratio) == (1, 10)
    assert any_price_bound(market, market.evaluate([[1]])) == pytest.approx(10)


# The parts of the interface that are about looking at a market.


def test_price_function():
    cost, kinks = KNOWN.price_function([[0.25, 0.25, 0.5], [0, 1, 0]], 0)
    np.testing.assert_allclose(kinks, [[0, 0], [0.25, 0.125], [0.5, 0.375], [1, 1.375]])
    assert cost(0.125) == pytest.approx(0.0625)
    np.testing.assert_allclose(cost([0, 0.5, 0.75, 1]), [0, 0.375, 0.875, 1.375])
    slopes = np.diff(kinks[:, 1]) / np.diff(kinks[:, 0])
    assert (np.diff(slopes) > 0).all()
    with pytest.raises(ValueError, match=r"fraction must be in \[0, 1\]"):
        cost(1.5)


def test_graph():
    market = DataMarket(
        [1, 2], [[2, 0], [1, 3]], [10, 1], [0.5, 1], seller_names=["news", "maps"], buyer_names=["ann", "bob"]
    )
    lengths = [[0.5, 0.5], [0, 1]]
    graph = market.to_networkx(lengths)
    assert nx.is_bipartite(graph)
    assert not graph.has_edge(("buyer", "ann"), ("seller", "maps"))
    assert graph["buyer", "ann"]["seller", "news"]["spend"] == 7.5
    result = quiet(market, rng=0)
    money = sum(spend for *_, spend in result.to_networkx().edges(data="spend"))
    assert money == pytest.approx(result.revenue.sum())


def test_repr_and_json():
    assert repr(KNOWN) == "DataMarket(2 buyers, 2 sellers, 3 prices)"
    result = quiet(KNOWN, rng=0)
    assert len(repr(result).splitlines()) < 25
    assert result.to_dict()["seller_names"] == ["seller 0", "seller 1"]


def test_uniform_lengths():
    np.testing.assert_array_equal(KNOWN.uniform_lengths([2, 0]), [[0, 0, 1], [1, 0, 0]])
    for wrong in ([0], [0, 3], [-1, 0], [0.0, 1.0]):
        with pytest.raises(ValueError, match="indices must be"):
            KNOWN.uniform_lengths(wrong)


# Files and models.


def test_csv(tmp_path):
    path = tmp_path / "market.csv"
    path.write_text("buyer,seller,value,budget,weight\nNA,s,1,3,2\nNA,t,2,3,2\nb,t,4,1,0.5\n")
    market = DataMarket.from_csv(path, price_grid=[1, 2])
    assert (market.buyer_names, market.seller_names) == (("NA", "b"), ("s", "t"))
    np.testing.assert_array_equal(market.values, [[1, 2], [0, 4]])
    np.testing.assert_array_equal(market.budgets, [3, 1])
    np.testing.assert_array_equal(market.weights, [2, 0.5])
    path.write_text("buyer,seller,value\na,s,1\n")
    np.testing.assert_array_equal(DataMarket.from_csv(path).budgets, [1])


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty"),
        ("buyer,seller\na,s\n", "columns buyer, seller and value"),
        ("buyer,seller,value\n", "no rows"),
        ("buyer,seller,value\na,s,1\na,s,2\n", "one row per buyer and seller"),
        ("buyer,seller,value\na,s,x\n", "row 1: value must be a number"),
        ("buyer,seller,value\na,s,-1\n", "values must be 0 or more"),
        ("buyer,seller,value\n,s,1\n", "a buyer in every row"),
        ("buyer,seller,value,budget\na,s,1,1\na,t,1,2\n", "one budget per buyer"),
        ("buyer,seller,value,budget\na,s,1,\n", "budget must be a number"),
        ("buyer,seller,value\na,s,1,7\n", "as many values in a row"),
    ],
)
def test_bad_csv(tmp_path, text, message):
    path = tmp_path / "market.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        DataMarket.from_csv(path)


def test_missing_csv(tmp_path):
    with pytest.raises(FileNotFoundError):
        DataMarket.from_csv(tmp_path / "none.csv")


def test_models():
    x = np.linspace(-1, 1, 40)[:, None]
    good, even = (x[:, 0] > 0).astype(int), np.ones(40, dtype=int)
    shards, task = [x, x, x], ([good, 1 - good, even], x, good)
    market = DataMarket.from_models(shards, [task, task], [1, 2], price_grid=[1])
    np.testing.assert_allclose(market.values, [[1, 0, 0]] * 2)
    raw = DataMarket.from_models(shards, [task], [1], rescale=False, price_grid=[1])
    assert raw.values[0, 0] == pytest.approx(0.25)
    wrong = DataMarket.from_models(shards, [task], [1], lambda y, p: float(np.mean(y != p)), rescale=False)
    assert wrong.values[0, 0] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="labels for each of 3 shards"):
        DataMarket.from_models(shards, [([good], x, good)], [1])
    with pytest.raises(ValueError, match="vector of 40 labels"):
        DataMarket.from_models(shards, [([good, good, good[:3]], x, good)], [1])
    with pytest.raises(ValueError, match="a shard and a task"):
        DataMarket.from_models([], [], [1])
    words = np.where(good == 1, "good", "bad")
    named = DataMarket.from_models([x], [([words], x, words)], [1], lambda y, p: float(np.mean(y != p)))
    assert named.values[0, 0] == 1
    for one_task, scorer, error, message in (
        (([words], x, words), None, TypeError, "labels must be numbers unless there is a scorer"),
        (([good], x, good), lambda y, p: np.nan, ValueError, "what scorer returns must be finite"),
        (([good], x, good), lambda y, p: None, TypeError, "what scorer returns must be a real number"),
        (([good], x, good), "accuracy", TypeError, "scorer"),
        (([good * np.nan], x, good), None, ValueError, "labels of shard 0 in .* must be finite"),
    ):
        with pytest.raises(error, match=message):
            DataMarket.from_models([x], [one_task], [1], scorer)


# Bad input.


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([-1, 2], [[1], [1]]), "budgets must be 0 or more"),
        (([np.nan, 2], [[1], [1]]), "budgets must be a finite"),
        (([np.inf, 2], [[1], [1]]), "budgets must be a finite"),
        (([1e200, 2], [[1], [1]]), "budgets must be at most"),
        (([1, 2], [[1], [-1]]), "values must be 0 or more"),
        (([1, 2], [[1], [np.nan]]), "values must be a finite"),
        (([1, 2], [[1, 1]]), "one row per budget"),
        (([1, 2], [1, 1]), "values must be a finite 2-D"),
        (([1, 2], [[1], [1]], [1]), "weights must have one entry"),
        (([1, 2], [[1], [1]], [1, -1]), "weights must be 0 or more"),
        (([1, 2], [[1], [1]], [1, np.nan]), "weights must be a finite"),
        (([1, 2], [[1], [1]], None, []), "price_grid must be a finite"),
        (([1, 2], [[1], [1]], None, [0, 1]), "price_grid must be greater than 0"),
        (([1, 2], [[1], [1]], None, [-1, 1]), "price_grid must be greater than 0"),
        (([1, 2], [[1], [1]], None, [2, 1]), "price_grid must be increasing"),
        (([1, 2], [[1], [1]], None, [1, 1]), "price_grid must be increasing"),
        (([1, 2], [[1], [1]], None, [1, np.nan]), "price_grid must be a finite"),
        (([1, 2], [[1], [1]], None, [1, 1e200]), "price_grid must be at most"),
        (([1, 2], [[1], [1]], None, [1e-300, 1]), "price_grid must be at least"),
        (([1, 2], [[1], [1]], None, np.ones((1, 1, 2))), "price_grid must be a finite 1-D or 2-D"),
        (([1, 2], [[1], [1]], None, [[1], [2]]), "one per seller"),
        (([1, 2], [[1, 1], [1, 1]], None, [[1], []]), r"price_grid\[1\] must be"),
        (([0, 0], [[1], [1]]), "price_grid must be given"),
        (([1], [[1]], None, None, ["a", "b"]), "seller_names must be 1 different"),
        (([1, 2], [[1], [1]], None, None, None, ["a", "a"]), "buyer_names must be 2 different"),
    ],
)
def test_bad_markets(arguments, message):
    with pytest.raises(ValueError, match=message):
        DataMarket(*arguments)


@pytest.mark.parametrize(
    "grid",
    [
        torch.tensor([0.5, 1.0]),
        [torch.tensor(0.5), torch.tensor(1.0)],
        pd.Series([0.5, 1.0], index=[4, 7]),
        torch.tensor([[0.5, 1.0], [0.5, 1.0]], requires_grad=True),
        pd.DataFrame([[0.5, 1.0], [0.5, 1.0]]),
        [torch.tensor([0.5, 1.0]), (0.5, 1)],
        np.array([0.5, 1.0], dtype=np.float32),
    ],
)
def test_grids_of_every_kind(grid):
    np.testing.assert_array_equal(DataMarket([1], [[1, 2]], price_grid=grid).prices, [[0.5, 1.0]] * 2)


def test_inputs_of_every_kind():
    budgets, values = [1, 2], [[2, 1], [1, 3]]
    for kind in (np.array, torch.tensor, lambda x: pd.DataFrame(x).squeeze(), lambda x: np.array(x, dtype=np.float32)):
        market = DataMarket(kind(budgets), kind(values), price_grid=[0.5, 1, 2])
        np.testing.assert_array_equal(market.revenue(kind(KNOWN_LENGTHS)), [1.5, 1.25])
    values = np.asfortranarray(np.repeat(values, 2, axis=1))[:, ::2]
    values.setflags(write=False)
    lengths = np.broadcast_to([0.0, 1.0, 0.0], (2, 3))
    np.testing.assert_array_equal(DataMarket(budgets, values, price_grid=[0.5, 1, 2]).revenue(lengths), [2, 1])


def test_a_market_cannot_be_changed_behind_its_order():
    values = np.array([[2.0, 1.0], [1.0, 3.0]])
    market = DataMarket([1, 2], values, price_grid=[0.5, 1, 2])
    values[0, 0] = 0.0
    np.testing.assert_array_equal(market.revenue(KNOWN_LENGTHS), [1.5, 1.25])
    for array in (market.values, market.budgets, market.weights, market.prices, market.n_prices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    for other in (pickle.loads(pickle.dumps(market)), copy.deepcopy(market)):
        np.testing.assert_array_equal(other.revenue(KNOWN_LENGTHS), [1.5, 1.25])


def test_what_is_bought_is_the_best_that_can_be():
    rng = np.random.default_rng(0)
    for seed in range(5):
        market, lengths = random_market(seed, 4, 3, np.array([0.2, 0.5, 0.9]))
        cost, utility = np.tile(market.prices[0], 3), market.buyer_utility(lengths)
        for i in rng.permutation(4)[:2]:
            best = linprog(
                -np.repeat(market.values[i], 3),
                A_ub=[cost],
                b_ub=[market.budgets[i]],
                bounds=[(0, length) for length in lengths.ravel()],
            )
            assert utility[i] == pytest.approx(-best.fun, abs=1e-9)


def test_a_fraction_that_is_next_to_none():
    market = DataMarket([1.0], [[1.0]], price_grid=[1e-290, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bought = market.purchases([[1e-300, 1.0]])[0, 0]
    np.testing.assert_allclose(bought, [0, 1], atol=1e-15)


def test_two_threads():
    market, _ = random_market(3)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: quiet(market, rng=0, max_rounds=60), range(2))
    np.testing.assert_array_equal(first.lengths, second.lengths)
    assert first.plc_ratio == second.plc_ratio


def test_markets_of_the_wrong_type():
    for grid in (3.0, {0.5: 1, 1: 2}, {0.5, 1.0}, "12", (p for p in (1, 2))):
        with pytest.raises(TypeError, match="price_grid"):
            DataMarket([1], [[1]], price_grid=grid)
    with pytest.raises(TypeError, match="seller_names"):
        DataMarket([1], [[1]], price_grid=[1], seller_names=5)
    for question in (
        lambda market: solve_pricing(market),
        lambda market: best_uniform_deviation(market, [[1]], 0),
        lambda market: plc_best_response(market, [[1]], 0),
        lambda market: uniform_best_response(market),
        lambda market: uniform_revenue(market, [1]),
        lambda market: approx_ratio_uniform(market, [1]),
    ):
        with pytest.raises(TypeError, match="market"):
            question({})
    with pytest.raises(TypeError, match="budgets"):
        DataMarket(["1"], [[1]])


@pytest.mark.parametrize(
    "lengths, message",
    [
        ([[0.5, 0.4, 0], [0, 1, 0]], r"lengths\[0\] must sum to 1"),
        ([[0.5, 0.5 + 2e-8, 0], [0, 1, 0]], r"lengths\[0\] must sum to 1"),
        ([[1, 0, 0], [-0.5, 1.5, 0]], r"lengths\[1\] must be non-negative"),
        ([[1, 0], [0, 1]], "a row per seller and a column per price"),
        ([[1, 0, 0]], "a row per seller"),
        ([[np.nan, 1, 0], [0, 1, 0]], "lengths must be a finite"),
    ],
)
def test_bad_lengths(lengths, message):
    for question in (KNOWN.revenue, KNOWN.incentive_ratio, KNOWN.purchases, KNOWN.spend, KNOWN.evaluate):
        with pytest.raises(ValueError, match=message):
            question(lengths)
    with pytest.raises(ValueError, match=message):
        best_uniform_deviation(KNOWN, lengths, 0)


def test_lengths_within_rounding_are_accepted():
    np.testing.assert_allclose(KNOWN.revenue([[0.5, 0.5 + 5e-9, 0], [0, 1, 0]]), [1.5, 1.25], atol=1e-7)


def test_bad_sellers():
    for seller in (2, -1):
        for question in (best_uniform_deviation, plc_best_response):
            with pytest.raises(ValueError, match="j must be"):
                question(KNOWN, KNOWN_LENGTHS, seller)
        for question in (KNOWN.deviation_revenue, KNOWN.price_function):
            with pytest.raises(ValueError, match="j must be"):
                question(KNOWN_LENGTHS, seller)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"dynamics": "newton"}, ValueError),
        ({"lr": 0}, ValueError),
        ({"lr": 1.5}, ValueError),
        ({"tol": -1}, ValueError),
        ({"max_rounds": 0}, ValueError),
        ({"check_every": 0}, ValueError),
        ({"prune": 1}, ValueError),
        ({"prune": -0.1}, ValueError),
        ({"plc_restarts": -1}, ValueError),
        ({"rng": -1}, ValueError),
        ({"max_rounds": 2.5}, TypeError),
        ({"callback": 5}, TypeError),
    ],
)
def test_bad_options(options, error):
    with pytest.raises(error, match=next(iter(options))):
        solve_pricing(KNOWN, **options)
