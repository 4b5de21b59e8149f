import inspect
import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.games import regret_matching
from assay.games.matrix_game import as_payoff, duality_gap
from assay.games.regret_matching import RegretMatching, checkpoints, prm_plus

BIASED_RPS = np.array([[0, -1, 3], [1, 0, -1], [-3, 1, 0]])


def plain_prm_plus(payoff, n_iter, alternating=True, average="quadratic"):
    """The method as one writes it down, one vector at a time."""

    def strategy(vector):
        positive = np.maximum(vector, 0)
        return positive / positive.sum() if positive.sum() > 0 else np.full(vector.size, 1 / vector.size)

    n, m = payoff.shape
    regret = {"x": np.zeros(n), "y": np.zeros(m)}
    prediction = {"x": np.zeros(n), "y": np.zeros(m)}

    def observe(player, gain, played):
        prediction[player] = gain - gain @ played
        regret[player] = np.maximum(regret[player] + prediction[player], 0)

    y = np.full(m, 1 / m)
    plays_x, plays_y = [], []
    for _ in range(n_iter):
        x = strategy(regret["x"] + prediction["x"])
        if alternating:
            observe("y", payoff.T @ x, y)
            y = strategy(regret["y"] + prediction["y"])
        else:
            y = strategy(regret["y"] + prediction["y"])
            observe("y", payoff.T @ x, y)
        observe("x", -payoff @ y, x)
        plays_x.append(x)
        plays_y.append(y)
    if average == "none":
        return x, y
    weights = np.arange(1, n_iter + 1.0) ** {"linear": 1, "quadratic": 2}[average]
    weights /= weights.sum()
    return weights @ plays_x, weights @ plays_y


@pytest.mark.parametrize("alternating", [True, False])
@pytest.mark.parametrize("average", ["quadratic", "linear", "none"])
@pytest.mark.parametrize("shape", [(13, 21), (21, 13), (4, 4), (1, 5), (5, 1), (1, 1)])
def test_fast_equals_plain(alternating, average, shape):
    payoff = np.random.default_rng(0).normal(size=shape)
    for n_iter in (1, 2, 60):
        fast = prm_plus(payoff, n_iter, alternating=alternating, average=average)
        x, y = plain_prm_plus(payoff, n_iter, alternating, average)
        np.testing.assert_allclose(fast.x, x, atol=1e-12)
        np.testing.assert_allclose(fast.y, y, atol=1e-12)


def test_alternating_and_simultaneous_play_differ_and_alternating_is_faster():
    payoff = np.random.default_rng(1).normal(size=(60, 90))
    alternating, simultaneous = (prm_plus(payoff, 300, alternating=choice).gap for choice in (True, False))
    assert alternating < simultaneous


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix, sp.coo_array])
def test_sparse_equals_dense(kind):
    dense = np.random.default_rng(2).normal(size=(30, 40)) * (np.random.default_rng(3).random((30, 40)) < 0.2)
    sparse, full = prm_plus(kind(dense), 200), prm_plus(dense, 200)
    np.testing.assert_allclose(sparse.x, full.x, atol=1e-10)
    np.testing.assert_allclose(sparse.gap, full.gap, atol=1e-12)


def test_sparse_products_are_sparse(monkeypatch):
    def refuse(self, *args, **kwargs):
        raise AssertionError("the payoff matrix was made dense")

    payoff = sp.random_array((300, 200), density=0.01, rng=np.random.default_rng(0), format="csr")
    monkeypatch.setattr(type(payoff), "toarray", refuse)
    monkeypatch.setattr(type(payoff), "todense", refuse)
    assert prm_plus(payoff, 50).gap < 0.2


def test_the_plain_product_and_its_compiled_replacement_agree():
    dense = np.random.default_rng(4).normal(size=(7, 5)) * (np.arange(35).reshape(7, 5) % 3 == 0)
    csr = sp.csr_array(dense)
    weights = np.array([0.5, 0, 0.1, 0.1, 0, 0.2, 0.1])
    for rows in ((dense,), (csr.indptr, csr.indices, csr.data)):
        plain = np.empty(5)
        regret_matching._multiply(rows, weights, None, plain)
        np.testing.assert_allclose(plain, weights @ dense, atol=1e-15)


@pytest.mark.parametrize("alternating", [True, False])
def test_gaps_that_come_with_the_iteration_are_those_of_the_strategies(alternating):
    payoff = np.random.default_rng(5).normal(size=(15, 25))
    run = RegretMatching(payoff, alternating=alternating)
    for pieces in (1, 4, 95):
        run.advance(pieces)
        assert run.last_gap == pytest.approx(duality_gap(payoff, *run.last), abs=1e-12)
        assert run.averaged_gap == pytest.approx(duality_gap(payoff, *run.averaged), abs=1e-12)
        assert run.gap == pytest.approx(duality_gap(payoff, *run.better), abs=1e-12)
    assert run.n_iter == 100


def test_advancing_in_pieces_changes_nothing():
    payoff = np.random.default_rng(6).normal(size=(15, 25))
    pieces, whole = RegretMatching(payoff), RegretMatching(payoff)
    for n_iter in (1, 2, 30, 67):
        pieces.advance(n_iter)
    whole.advance(100)
    np.testing.assert_array_equal(pieces.averaged[0], whole.averaged[0])
    np.testing.assert_array_equal(pieces.last[1], whole.last[1])
    assert pieces.regret_bound == whole.regret_bound


def test_it_stops_at_the_target():
    payoff = np.random.default_rng(7).normal(size=(15, 25))
    run = RegretMatching(payoff)
    done = run.advance(100_000, target=1e-3)
    assert done == run.n_iter < 100_000
    assert run.gap <= 1e-3
    almost = RegretMatching(payoff)
    almost.advance(done - 1)
    assert almost.gap > 1e-3


@pytest.mark.parametrize("alternating", [True, False])
@given(
    payoff=arrays(np.float64, st.tuples(st.integers(1, 7), st.integers(1, 7)), elements=st.floats(-10, 10)),
    n_iter=st.integers(1, 60),
)
@settings(max_examples=40, deadline=None)
def test_regrets_bound_the_gap(alternating, payoff, n_iter):
    for average in ("linear", "quadratic"):
        result = prm_plus(payoff, n_iter, alternating=alternating, average=average)
        (certificate,) = result.certificates
        assert certificate.holds, str(certificate)
        assert certificate.value == pytest.approx(duality_gap(payoff, result.x, result.y), abs=1e-12)
        assert result.x.min() >= 0
        assert result.x.sum() == pytest.approx(1)


def test_regret_bound_falls_with_the_worst_case_rate_in_simultaneous_play():
    payoff = np.random.default_rng(8).uniform(-1, 1, (10, 20))
    spread = payoff.max() - payoff.min()
    for n_iter in (10, 100, 1000):
        run = RegretMatching(payoff, alternating=False)
        run.advance(n_iter)
        assert run.regret_bound <= 6 * spread * (math.sqrt(10) + math.sqrt(20)) / math.sqrt(n_iter)


def test_the_last_strategies_come_without_a_promise():
    result = prm_plus(BIASED_RPS, 10, average="none")
    assert result.certificates == ()
    assert not result.certified


@pytest.mark.parametrize("factor", [0.0, 0.9, 1.1, np.nan])
def test_what_is_not_a_strategy_breaks_the_certificate(monkeypatch, factor):
    averaged = RegretMatching.averaged
    monkeypatch.setattr(
        RegretMatching, "averaged", property(lambda run: tuple(factor * part for part in averaged.fget(run)))
    )
    result = prm_plus(BIASED_RPS, 50)
    assert math.isnan(result.gap)
    assert not result.certificates[0].holds


def test_known_equilibria():
    result = prm_plus(BIASED_RPS, 5000)
    np.testing.assert_allclose(result.x, [0.2, 0.6, 0.2], atol=1e-3)
    np.testing.assert_allclose(result.y, [0.2, 0.6, 0.2], atol=1e-3)
    np.testing.assert_allclose(prm_plus(np.diag([1.0, 2, 3, 4]), 5000).value, 0.48, atol=1e-4)


@pytest.mark.parametrize("factor", [1e-8, 1.0, 1e8, 1e150])
def test_the_unit_of_the_payoffs_does_not_matter(factor):
    result = prm_plus(factor * BIASED_RPS, 500)
    assert math.isclose(result.gap, factor * prm_plus(BIASED_RPS, 500).gap, rel_tol=1e-6)
    assert result.certified


@pytest.mark.parametrize("payoff", [np.zeros((3, 4)), np.full((3, 4), 7), [[5]], [[1, 2, 3]], [[1], [2]]])
def test_trivial_games(payoff):
    result = prm_plus(payoff, 50)
    # The first, uniform play keeps its weight of 1 / (1 + 4 + ... + 50**2).
    assert result.gap <= 1e-4
    assert result.certified


def test_other_kinds_of_arrays():
    expected = prm_plus(BIASED_RPS.astype(float), 50).x
    for payoff in (BIASED_RPS, BIASED_RPS.tolist(), BIASED_RPS.astype(np.float32), torch.tensor(BIASED_RPS)):
        np.testing.assert_array_equal(prm_plus(payoff, 50).x, expected)
    gradient = torch.tensor(BIASED_RPS, dtype=torch.float32, requires_grad=True)
    np.testing.assert_array_equal(prm_plus(gradient, 50).x, expected)
    np.testing.assert_array_equal(prm_plus(np.asfortranarray(BIASED_RPS.astype(float)), 50).x, expected)


def test_arguments_are_left_alone():
    payoff = np.random.default_rng(0).normal(size=(5, 6))
    before = payoff.copy()
    start = np.full(5, 0.2), np.full(6, 1 / 6)
    prm_plus(payoff, 20)
    RegretMatching(payoff, x=start[0], y=start[1]).advance(20)
    np.testing.assert_array_equal(payoff, before)
    assert (start[0] == 0.2).all()
    unsorted = sp.csr_array((np.array([1.0, 2.0, 3.0]), np.array([1, 0, 0]), np.array([0, 3, 3])), shape=(2, 2))
    prm_plus(unsorted, 5)
    assert unsorted.data.tolist() == [1.0, 2.0, 3.0]
    assert as_payoff(unsorted).toarray().tolist() == [[5.0, 1.0], [0.0, 0.0]]


def test_a_start_is_played_first():
    start = np.array([0.1, 0.2, 0.7]), np.array([0.5, 0.5, 0.0])
    run = RegretMatching(BIASED_RPS.astype(float), alternating=False, x=start[0], y=start[1])
    run.advance(1)
    np.testing.assert_allclose(run.last[0], start[0], atol=1e-15)
    np.testing.assert_allclose(run.last[1], start[1], atol=1e-15)


def test_history_and_checkpoints():
    result = prm_plus(BIASED_RPS, 1000)
    assert result.history["iteration"][-1] == result.n_prm == 1000
    assert result.history["gap"][-1] == result.gap
    assert math.isnan(result.tol)
    assert checkpoints(5) == [1, 2, 3, 4, 5]
    assert checkpoints(1000)[-1] == 1000
    assert len(checkpoints(100_000)) < 60
    assert checkpoints(14, start=10) == [12, 14]


@pytest.mark.parametrize(
    "payoff, error, message",
    [
        ([1, 2, 3], ValueError, r"payoff must be a finite 2-D array, got shape \(3,\)"),
        (np.zeros((0, 3)), ValueError, "payoff must be a finite 2-D array and not empty"),
        ([[1, np.nan]], ValueError, "1 nan or infinite entries"),
        ([[1, 2], [3]], ValueError, "rows of different lengths"),
        ([[1j]], TypeError, "of real numbers, got dtype complex128"),
        (sp.csr_array(np.array([[1j]])), TypeError, "of real numbers, got dtype complex128"),
        (sp.csr_array(np.array([[1.0, np.inf]])), ValueError, "1 nan or infinite entries"),
        (sp.csr_array((0, 3)), ValueError, "not empty"),
    ],
)
def test_bad_payoffs(payoff, error, message):
    with pytest.raises(error, match=message):
        prm_plus(payoff, 10)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"n_iter": 0}, ValueError, "n_iter must be at least 1, got 0"),
        ({"n_iter": 1, "average": "cubic"}, ValueError, "average must be one of 'none', 'linear', 'quadratic'"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        prm_plus(BIASED_RPS, **options)


def test_a_switch_is_true_or_false():
    with pytest.raises(TypeError, match="alternating must be True or False, got 1"):
        inspect.unwrap(prm_plus)(BIASED_RPS, 1, alternating=1)  # without the type checks of the tests
