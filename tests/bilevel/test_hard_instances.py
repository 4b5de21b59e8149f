import copy
import itertools
import json
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from assay.bilevel import (
    HardBilevel,
    OracleBudgetError,
    OracleCounter,
    chain_walker,
    f2sa_single_loop,
    finite_difference_hvp,
    hard_instance,
    hard_instance_stochastic,
    nesterov_inner_penalty,
    penalty_f2sa,
    run_method,
    value_function_gd,
)
from assay.bilevel.hard_chain import (
    block_response,
    link_cdf,
    link_cdf_derivative,
    link_gate,
    link_gate_derivative,
)
from assay.lab import Measurement
from assay.studies.bilevel import hard_instances as study_module
from assay.studies.bilevel.hard_instances import HardInstancesStudy, Problem

METHODS = [penalty_f2sa, nesterov_inner_penalty, f2sa_single_loop, value_function_gd, finite_difference_hvp]


def small(length=3, n=3, **kwargs):
    return hard_instance(4 * n**2 + 2, 0.1, T=length, n=n, **kwargs)


def plain_objectives(instance, x, y):
    """Both objectives written out from their definition."""
    c = instance.constants
    n, blocks = c.n, y.reshape(c.T + 1, c.n)
    inflow = np.concatenate([[c.lam / (c.Ce * n)], x])
    matrix = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    matrix[0, 0] = matrix[-1, -1] = 1
    matrix += np.eye(n) / n**2
    g = sum(
        c.Lg * n**2 / (2 * (4 * n**2 + 1)) * block @ matrix @ block - c.Lg * inflow[i] * block[-1]
        for i, block in enumerate(blocks)
    )
    a = c.Cl * blocks[:-1, -1] / c.lam
    b = c.Cr * blocks[1:, 0] / c.lam
    f = c.lam**2 * c.Lf / c.Lc * np.sum(link_gate(-a) * link_cdf(-b) - link_gate(a) * link_cdf(b))
    return f, g


# ------------------------------------------------------------------ known values


@pytest.mark.parametrize(
    "kappa, n, total", [(20, 2, 10), (50, 3, 36), (100, 4, 92), (200, 7, 525), (400, 9, 1134), (800, 14, 4382)]
)
def test_known_lengths(kappa, n, total):
    instance = hard_instance(kappa, 0.1)
    assert (instance.constants.n, instance.lower_bound_calls) == (n, total)


def test_known_length_at_the_largest_kappa():
    instance = hard_instance(1600, 0.1)
    assert (instance.constants.n, instance.lower_bound_calls) == (19, 11115)


@pytest.mark.parametrize("n, lc", [(2, 6.122), (3, 5.922), (5, 5.612), (10, 5.306), (50, 5.024)])
def test_known_curvature_of_a_link(n, lc):
    assert small(1, n).constants.Lc == pytest.approx(lc, abs=0.01)


@pytest.mark.parametrize(
    "n, end, start", [(2, 1.111111, 0.888889), (10, 1.264977, 0.852447), (4000, 1.313035, 0.850918)]
)
def test_known_response_of_a_block(n, end, start):
    response = block_response(n) / n
    assert response[-1] == pytest.approx(end, abs=2e-6 if n < 100 else 2e-4)
    assert response[0] == pytest.approx(start, abs=2e-6 if n < 100 else 2e-4)


def test_response_tends_to_hyperbolic_functions():
    response = block_response(20000) / 20000
    assert response[-1] == pytest.approx(1 / math.tanh(1), abs=1e-4)
    assert response[0] == pytest.approx(1 / math.sinh(1), abs=1e-4)


@pytest.mark.parametrize("kappa, eps", [(20, 0.1), (100, 0.1), (50, 0.03)])
def test_hypergradient_at_zero(kappa, eps):
    instance = hard_instance(kappa, eps)
    value, gradient = instance.H(np.zeros(instance.dim_x))
    c = instance.constants
    assert gradient[0] == pytest.approx(-math.sqrt(math.e) * eps, rel=1e-12)
    assert np.all(gradient[1:] == 0)
    assert value == pytest.approx(-(c.lam**2) * c.Lf / c.Lc * math.sqrt(math.pi * math.e / 2), rel=1e-12)


@pytest.mark.parametrize("length, n, calls", [(1, 3, 5), (2, 3, 8), (6, 3, 20), (4, 5, 22), (3, 10, 32)])
def test_the_walker_takes_two_calls_more_than_the_bound(length, n, calls):
    instance = small(length, n)
    run = run_method(chain_walker(instance), instance, max_calls=10 * calls)
    assert run.calls_last_variable == calls == instance.lower_bound_calls + 2
    assert run.zero_respecting
    assert run.certified
    assert list(run.progress["variables"]) == list(range(length + 1))


def test_eigenvalues_of_a_block():
    eigenvalues = np.linalg.eigvalsh(small(1, 3).block_hessian())
    assert eigenvalues[0] == pytest.approx(1 / 37)
    assert eigenvalues[-1] == pytest.approx(28 / 37)


@pytest.mark.parametrize("kappa", [17, 20, 37, 100, 1000, 6400])
def test_the_lower_problem_is_as_conditioned_as_promised(kappa):
    instance = hard_instance(kappa, 0.1, T=1)
    eigenvalues = np.linalg.eigvalsh(instance.block_hessian())
    assert eigenvalues[0] >= instance.constants.mu * (1 - 1e-12)
    assert eigenvalues[-1] <= instance.constants.Lg
    assert 1 < instance.smoothness_g <= (1 + math.sqrt(5)) / 2


def test_link_functions():
    u = np.array([-1.0, 0.5, 0.500001, 0.75, 1.0, 30.0])
    np.testing.assert_allclose(link_gate(u), [0, 0, 0, math.exp(1 - 4), 1.0, math.exp(1 - 1 / 59**2)], rtol=1e-14)
    assert link_cdf(np.array([0.0]))[0] == pytest.approx(math.sqrt(math.e * math.pi / 2))
    t = np.linspace(-3, 3, 61)
    h = 1e-6
    np.testing.assert_allclose(link_gate_derivative(t), (link_gate(t + h) - link_gate(t - h)) / (2 * h), atol=1e-8)
    np.testing.assert_allclose(link_cdf_derivative(t), (link_cdf(t + h) - link_cdf(t - h)) / (2 * h), atol=1e-8)
    assert np.all(link_gate(t) < math.e)
    assert np.all(link_gate_derivative(t) <= math.sqrt(54 / math.e))
    grid = np.linspace(-0.999, 0.999, 101)
    assert np.all(link_gate(np.linspace(1, 20, 50))[:, None] * link_cdf_derivative(grid) > 1)


def test_no_warning_far_out():
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        link_gate(np.array([0.5, 0.5 + 1e-300, 1e300]))
    instance = small()
    value, gradient = instance.H(np.full(3, 1e100))
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


# ------------------------------------------------------------------ the instance


@settings(max_examples=20, deadline=None)
@given(length=st.integers(1, 5), n=st.integers(2, 6), seed=st.integers(0, 1000))
def test_the_oracle_is_the_definition(length, n, seed):
    rng = np.random.default_rng(seed)
    instance = small(length, n)
    scale = instance.constants.lam
    x, y = scale * rng.normal(size=instance.dim_x), scale * rng.normal(size=instance.dim_y)
    answer = instance.oracle(x, y)
    f, g = plain_objectives(instance, x, y)
    assert answer.f == pytest.approx(f, rel=1e-12, abs=1e-15)
    assert answer.g == pytest.approx(g, rel=1e-12, abs=1e-15)
    assert np.all(answer.fx == 0)
    h = 1e-5 * scale
    for point, of_f, of_g in ((x, answer.fx, answer.gx), (y, answer.fy, answer.gy)):
        for i in range(len(point)):
            old = point[i]
            point[i] = old + h
            up = plain_objectives(instance, x, y)
            point[i] = old - h
            down = plain_objectives(instance, x, y)
            point[i] = old
            assert of_f[i] == pytest.approx((up[0] - down[0]) / (2 * h), rel=1e-6, abs=1e-7 * scale)
            assert of_g[i] == pytest.approx((up[1] - down[1]) / (2 * h), rel=1e-6, abs=1e-7 * scale)


@pytest.mark.parametrize("kappa", [20, 100, 400])
def test_the_hypergradient_is_that_of_the_composed_problem(kappa):
    rng = np.random.default_rng(0)
    instance = hard_instance(kappa, 0.1, T=5)
    x = instance.constants.source * rng.uniform(-2, 2, instance.dim_x)
    value, gradient = instance.H(x)
    at_solution = instance.oracle(x, instance.ystar(x))
    assert np.abs(at_solution.gy).max() <= 1e-12
    assert value == pytest.approx(at_solution.f, abs=1e-15)
    # implicit differentiation with a dense Hessian
    blocks = at_solution.fy.reshape(-1, instance.constants.n)[1:]
    solved = np.linalg.solve(instance.block_hessian(), blocks.T).T
    np.testing.assert_allclose(gradient, instance.constants.Lg * solved[:, -1], rtol=1e-9)
    h = 1e-4 * instance.constants.source
    numeric = [(instance.H(x + h * e)[0] - instance.H(x - h * e)[0]) / (2 * h) for e in np.eye(instance.dim_x)]
    np.testing.assert_allclose(numeric, gradient, atol=1e-6 * np.abs(gradient).max())


def test_the_upper_objective_is_as_smooth_as_promised():
    rng = np.random.default_rng(1)
    instance = small(2, 3, Lf=1.0)
    c = instance.constants
    for _ in range(200):
        y = np.zeros(instance.dim_y)
        y[c.n - 1 :: c.n] = c.lam / c.Cl * rng.uniform(-3, 3, c.T + 1)
        y[:: c.n] = c.lam / c.Cr * rng.uniform(-8, 8, c.T + 1)
        move = rng.normal(size=instance.dim_y)
        move *= 1e-3 * c.lam / np.linalg.norm(move)
        change = instance.oracle(np.zeros(c.T), y + move).fy - instance.oracle(np.zeros(c.T), y).fy
        assert np.linalg.norm(change) <= c.Lf * np.linalg.norm(move)


def test_the_objective_cannot_fall_by_more_than_delta():
    instance = hard_instance(50, 0.1, Delta=2.0)
    start = instance.H(np.zeros(instance.dim_x))[0]
    c = instance.constants
    least = -(c.lam**2) * c.Lf / c.Lc * c.T * math.e * math.sqrt(2 * math.pi * math.e)
    assert start - least <= 2.0
    chosen = hard_instance(50, 0.1, T=4)
    assert chosen.constants.Delta == pytest.approx(2.0 * 4 / (2.0 / (12 * c.lam**2 * c.Lf / c.Lc)))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 6))
def test_one_small_variable_keeps_the_hypergradient_large(seed, length):
    rng = np.random.default_rng(seed)
    instance = small(length)
    x = np.exp(rng.uniform(0, 3, length)) * rng.choice([-1.0, 1.0], length)
    x[rng.integers(length)] = rng.uniform(-1, 1)
    assert instance.stationarity(instance.constants.source * x) >= instance.constants.eps


def test_constants_scale():
    instance = hard_instance(50, 0.1, Lf=3.0, Lg=7.0, Ce=2.0, T=3)
    _, gradient = instance.H(np.zeros(3))
    assert gradient[0] == pytest.approx(-math.sqrt(math.e) * 0.1)
    assert np.linalg.eigvalsh(instance.block_hessian())[-1] <= 7.0
    run = run_method(chain_walker(instance), instance, 100)
    assert run.calls_last_variable == 3 * 3 + 2


def test_the_constant_of_the_smoothness_from_differences():
    # second differences of the links, written anew
    def link(a, b):
        up, down = np.maximum(2 * a - 1, 1e-9), np.maximum(-2 * a - 1, 1e-9)
        scale = math.sqrt(2 * math.pi * math.e)
        return scale * (np.exp(1 - 1 / down**2) * ndtr(-b) - np.exp(1 - 1 / up**2) * ndtr(b))

    a, b = np.meshgrid(np.linspace(0.5, 2, 301), np.linspace(-5, 5, 401), indexing="ij")
    d = 1e-4
    aa = (link(a + d, b) - 2 * link(a, b) + link(a - d, b)) / d**2
    bb = (link(a, b + d) - 2 * link(a, b) + link(a, b - d)) / d**2
    ab = (link(a + d, b + d) - link(a + d, b - d) - link(a - d, b + d) + link(a - d, b - d)) / (4 * d**2)
    for n in (None, 2, 9):
        left, right = (1.0, 1.0) if n is None else (small(1, n).constants.Cl, small(1, n).constants.Cr)
        centre, half = (left**2 * aa + right**2 * bb) / 2, (left**2 * aa - right**2 * bb) / 2
        norm = float(np.max(np.abs(centre) + np.hypot(half, left * right * ab)))
        if n is None:
            assert norm == pytest.approx(133.84, abs=0.02)
        else:
            assert small(1, n).constants.Lc == pytest.approx(1.02 * norm, rel=1e-3)


def test_the_hyper_objective_is_as_smooth_as_promised():
    rng = np.random.default_rng(0)
    instance = small(5)
    source = instance.constants.source
    for _ in range(200):
        x = source * rng.choice([-1.0, 1.0], 5) * rng.uniform(0.5, 1.5, 5)
        move = rng.normal(size=5)
        move *= 1e-5 * source / np.linalg.norm(move)
        change = np.linalg.norm(instance.H(x + move)[1] - instance.H(x)[1])
        assert change <= instance.constants.smoothness_h * np.linalg.norm(move)


@pytest.mark.parametrize("ce", [0.3, 1.0, 100.0])
def test_the_lemma_on_the_boxes(ce):
    rng = np.random.default_rng(0)
    noisy = hard_instance_stochastic(38, 0.1, sigma=1e6, T=3, n=3, Ce=ce, seed=0)
    for _ in range(300):
        x = rng.uniform(-noisy.box_x, noisy.box_x, 3) * rng.choice([1.0, 10.0], 3)
        x = np.clip(x, -noisy.box_x, noisy.box_x)
        x[rng.integers(3)] = rng.uniform(-1, 1) * noisy.constants.source
        assert noisy.stationarity(x) >= 0.1
    assert noisy.variance_bound <= noisy.sigma**2 * (1 + 1e-12)


# ------------------------------------------------------------------ counting


def test_a_violation_is_found_and_dated():
    instance = small()
    zero_x, zero_y = np.zeros(instance.dim_x), np.zeros(instance.dim_y)
    instance.oracle(zero_x, zero_y)
    y = zero_y.copy()
    y[2] = 1.0  # shown by the first call
    instance.oracle(zero_x, y)
    assert instance.counter.zero_respecting
    y[8] = 1.0
    instance.oracle(zero_x, y)
    instance.oracle(np.ones(instance.dim_x), y)
    violation = instance.counter.first_violation
    assert (violation.call, violation.variable, violation.coordinate) == (2, "y", 8)
    instance.reset()
    assert instance.counter.zero_respecting
    assert instance.counter.calls == 0


def test_a_random_start_is_not_zero_respecting():
    instance = small()

    def method(oracle, dim_x, dim_y, budget):
        oracle(np.ones(dim_x), np.ones(dim_y))
        yield np.ones(dim_x)

    run = run_method(method, instance, 10)
    assert not run.zero_respecting
    assert run.first_violation.call == 0
    assert not run.certified
    assert run.certificates[0].violated


def test_a_method_that_knows_the_answer_is_caught_by_its_iterates():
    instance = small()

    def method(oracle, dim_x, dim_y, budget):
        oracle(np.zeros(dim_x), np.zeros(dim_y))
        yield np.full(dim_x, 100 * instance.constants.source)

    run = run_method(method, instance, 10)
    assert not run.zero_respecting
    assert run.first_violation.variable == "x"


@pytest.mark.parametrize("make", METHODS)
def test_methods_reach_the_tolerance_and_respect_zeros(make):
    instance = hard_instance(20, 0.1, T=2)
    run = run_method(make(instance, 100.0), instance, max_calls=20_000)
    assert run.reached
    assert run.zero_respecting
    assert run.certified
    assert run.ratio == run.calls / run.calls_lower >= 1
    assert run.grad_norm == pytest.approx(instance.stationarity(run.x))
    assert run.grad_norm < 0.1
    assert np.all(np.diff(run.history["calls"]) >= 0)


def test_the_bound_is_not_beaten_at_any_iterate():
    instance = hard_instance(50, 0.1, T=2)
    run = run_method(nesterov_inner_penalty(instance, 100.0, inner_steps=1), instance, max_calls=2000)
    before = run.history["calls"] < instance.lower_bound_calls
    assert before.sum() >= 2
    assert run.history["grad_norm"][before].min() >= 0.1


@pytest.mark.parametrize("make", METHODS)
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e12])
def test_no_step_beats_the_bound(make, scale):
    instance = hard_instance(50, 0.1, T=3)
    run = run_method(make(instance, scale), instance, max_calls=600)
    assert run.certified
    assert run.zero_respecting
    assert not run.reached or run.ratio >= 1


def test_the_default_penalty_is_that_of_the_theory():
    instance = hard_instance(50, 0.1, T=2, Lf=3.0, Lg=0.5)
    c = instance.constants
    for make in (penalty_f2sa, nesterov_inner_penalty, f2sa_single_loop, value_function_gd):
        assert make(instance).keywords["penalty"] == pytest.approx(10 * c.Lf / c.mu)
    assert penalty_f2sa(instance).keywords["step_y"] == pytest.approx(1 / (c.Lg + c.mu / 10))
    assert finite_difference_hvp(instance).keywords["step_y"] == 1 / c.Lg
    assert penalty_f2sa(instance, 3.0).keywords["step_x"] == pytest.approx(3 / c.smoothness_h)
    assert f2sa_single_loop(instance, 3.0).keywords["step_x"] == pytest.approx(3 / c.smoothness_h / c.kappa)
    for make, steps in ((penalty_f2sa, 50), (nesterov_inner_penalty, 15), (finite_difference_hvp, 50)):
        assert make(instance).keywords["inner_steps"] == steps


def test_answers_are_the_methods_own():
    instance = small()
    answer = instance.oracle(np.zeros(3), np.zeros(12))
    for entry in answer[2:]:
        entry += 1.0
    again = instance.oracle(np.zeros(3), np.zeros(12))
    assert again.gy[2] != answer.gy[2]
    assert np.all(again.fx == 0)


def test_a_limit_of_the_users_comes_back():
    instance = small()
    instance.counter.limit = 12345
    run_method(penalty_f2sa(instance), instance, max_calls=7)
    assert instance.counter.limit == 12345
    with pytest.raises(ZeroDivisionError):
        run_method(lambda *_: 1 / 0, instance, 7)
    assert instance.counter.limit == 12345


def test_instances_results_and_methods_can_be_copied():
    noisy = hard_instance_stochastic(38, 0.1, sigma=100.0, T=2, n=3, seed=4)
    run = run_method(nesterov_inner_penalty(noisy, 100.0), noisy, 50)
    for take in (copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))):
        other = take(noisy)
        y = np.full(9, 0.01)
        np.testing.assert_array_equal(other.oracle(np.zeros(2), y).gy, take(noisy).oracle(np.zeros(2), y).gy)
        assert take(run).calls == run.calls
        assert take(chain_walker(small()))(small().oracle, 3, 12, 1) is not None
    assert json.loads(json.dumps(run.to_dict(), allow_nan=False))["calls"] == 50


def test_a_budget_is_kept():
    instance = small()
    run = run_method(penalty_f2sa(instance), instance, max_calls=7)
    assert run.calls == 7
    assert not run.reached
    assert instance.counter.limit is None
    instance.counter.limit = 7
    with pytest.raises(OracleBudgetError, match="7 oracle calls"):
        instance.oracle(np.zeros(instance.dim_x), np.zeros(instance.dim_y))


def test_runs_repeat():
    instance = hard_instance(20, 0.1, T=2)
    first = run_method(penalty_f2sa(instance, 100.0), instance, 1000)
    second = run_method(penalty_f2sa(instance, 100.0), instance, 1000)
    assert first.calls == second.calls
    np.testing.assert_array_equal(first.x, second.x)


# ------------------------------------------------------------------ noise


def test_the_noise_is_unbiased_and_bounded():
    rng = np.random.default_rng(0)
    noisy = hard_instance_stochastic(38, 0.1, sigma=30.0, T=3, n=3, seed=1)
    exact = small(3, 3)
    x = np.zeros(3)
    y = np.zeros(12)
    y[2:5] = rng.uniform(-1, 1, 3) * noisy.box_y
    samples = [noisy.oracle(x, y) for _ in range(1000)]
    want = exact.oracle(x, y)
    gy = np.array([sample.gy for sample in samples])
    np.testing.assert_allclose(gy.mean(axis=0), want.gy, atol=6 * 30 / math.sqrt(1000))
    changed = np.flatnonzero(gy.std(axis=0) > 1e-12)
    assert list(changed) == [5]
    assert np.mean(np.sum((gy - want.gy) ** 2, axis=1)) <= noisy.variance_bound <= 30.0**2 * (1 + 1e-12)
    assert set(np.round(gy[:, 5] / want.gy[5], 6)) == {0.0, round(1 / noisy.p, 6)}


@pytest.mark.parametrize(
    "x, y, where",
    [
        ([0, 0, 0], {}, ("y", 2)),
        ([0, 0, 0], {2: 1.0}, ("y", 3)),
        ([0, 0, 0], {2: 1.0, 3: 1.0}, ("y", 4)),
        ([0, 0, 0], {5: 1.0}, ("x", 0)),
        ([1, 0, 0], {5: 1.0}, ("y", 6)),
        ([1, 1, 0], {11: 1.0}, ("x", 2)),
    ],
)
def test_where_the_noise_is(x, y, where):
    noisy = hard_instance_stochastic(38, 0.1, sigma=1e9, T=3, n=3, seed=0)  # p is tiny: always hidden
    exact = small(3, 3)
    x = np.asarray(x) * noisy.box_x / 2
    full = np.zeros(12)
    for i, value in y.items():
        full[i] = value * noisy.box_y / 2
    got, want = noisy.oracle(x, full), exact.oracle(x, full)
    hidden = [("x", i) for i in np.flatnonzero(got.gx != want.gx)]
    hidden += [("y", i) for i in np.flatnonzero(got.gy != want.gy)]
    entry = want.gx[where[1]] if where[0] == "x" else want.gy[where[1]]
    assert hidden == ([where] if entry != 0 else [])
    assert got.f == want.f
    np.testing.assert_array_equal(got.fy, want.fy)


def test_the_walker_needs_as_many_calls_as_promised_with_noise():
    n, length, p = 3, 4, 0.1
    lam = small(length, n).constants.lam
    instance = hard_instance_stochastic(38, 0.1, 2 * 20 * lam / math.sqrt(p), T=length, n=n, seed=0)
    assert instance.p == pytest.approx(p)
    assert instance.lower_bound_calls_at(0.5) == pytest.approx((2 * 4 - 1 - math.log(2)) / 0.2)

    def to_the_end(*arguments):
        for x in chain_walker(instance)(*arguments):
            yield x
            if x[-1] != 0:
                return

    calls = [run_method(to_the_end, instance, 1000).calls for _ in range(9)]
    assert np.median(calls) >= instance.lower_bound_calls
    assert len(set(calls)) > 1


def test_without_noise_the_stochastic_instance_is_the_deterministic_one():
    quiet = hard_instance_stochastic(38, 0.1, sigma=0.0, T=2, n=3, seed=0)
    assert quiet.p == 1.0
    exact = small(2, 3)
    y = np.linspace(-1, 1, 9) * quiet.box_y
    np.testing.assert_array_equal(quiet.oracle(np.zeros(2), y).gy, exact.oracle(np.zeros(2), y).gy)


def test_queries_outside_of_the_boxes_are_projected_and_counted():
    noisy = hard_instance_stochastic(38, 0.1, sigma=0.0, T=2, n=3, seed=0)
    far = noisy.oracle(np.full(2, 1e6), np.full(9, -1e6))
    edge = noisy.oracle(np.full(2, noisy.box_x), np.full(9, -noisy.box_y))
    assert far.g == edge.g
    assert noisy.projected == 1
    assert noisy.counter.calls == 2


def test_stationarity_on_the_box_is_the_gradient_inside():
    noisy = hard_instance_stochastic(38, 0.1, sigma=1.0, T=2, n=3, seed=0)
    assert noisy.stationarity(np.zeros(2)) == pytest.approx(math.sqrt(math.e) * 0.1)


def test_the_bound_with_noise_has_its_slopes():
    kappas = np.array([100, 400, 1600, 6400])
    bounds = [hard_instance_stochastic(float(k), 0.05, 1000.0, seed=0).lower_bound_calls_at() for k in kappas]
    assert 2.5 <= np.polyfit(np.log(kappas), np.log(bounds), 1)[0] <= 2.95


# ------------------------------------------------------------------ torch


def test_torch_objectives_differentiate_and_count():
    instance = small(2, 3)
    f, g = instance.as_torch()
    x = torch.full((2,), 0.01, dtype=torch.float64, requires_grad=True)
    y = torch.linspace(-0.1, 0.1, 9, dtype=torch.float64, requires_grad=True)
    (3 * f(x, y) + g(x, y)).backward()
    answer = instance.oracle(x.detach(), y.detach())
    np.testing.assert_allclose(x.grad, 3 * answer.fx + answer.gx)
    np.testing.assert_allclose(y.grad, 3 * answer.fy + answer.gy)
    assert instance.counter.calls == 2  # one for both objectives, one for the comparison
    f(x, y + 1)
    g(x, y + 1)
    assert instance.counter.calls == 3
    assert torch.autograd.gradcheck(lambda x, y: f(x, y) + g(x, y), (x, y), eps=1e-7, atol=1e-6)


def test_torch_draws_afresh_where_the_oracle_is_noisy():
    noisy = hard_instance_stochastic(38, 0.1, sigma=60.0, T=1, n=3, seed=0)
    f, g = noisy.as_torch()
    x = torch.zeros(1, dtype=torch.float64)
    draws = set()
    for _ in range(300):  # always at the same point, until the first entry shows
        y = torch.zeros(6, dtype=torch.float64, requires_grad=True)
        (f(x, y) + g(x, y)).backward()
        draws.add(float(y.grad[2]))
    assert len(draws) == 2
    assert noisy.counter.calls == 300


def test_torch_counts_anew_after_a_reset():
    instance = small(2, 3)
    f, g = instance.as_torch()
    x, y = torch.zeros(2, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    f(x, y)
    instance.reset()
    instance.oracle(np.zeros(2), np.ones(9))
    g(x, y)
    assert instance.counter.calls == 2


def test_torch_with_what_is_no_tensor():
    f, _ = small(2, 3).as_torch()
    for x in (np.zeros(2), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(TypeError, match="x"):
            f(x, torch.zeros(9))


def test_torch_single_precision_keeps_its_dtype():
    instance = small(2, 3)
    f, g = instance.as_torch()
    x = torch.zeros(2, requires_grad=True)
    y = torch.full((9,), 0.1, requires_grad=True)
    loss = f(x, y) + g(x, y)
    loss.backward()
    assert loss.dtype == x.grad.dtype == y.grad.dtype == torch.float32


def test_double_backward_is_refused():
    f, _ = small(2, 3).as_torch()
    y = torch.full((9,), 0.1, dtype=torch.float64, requires_grad=True)
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(f(x, y), y, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gradients_stay_on_their_device():
    _, g = small(2, 3).as_torch()
    y = torch.full((9,), 0.1, device="cuda", requires_grad=True)
    g(torch.zeros(2, device="cuda"), y).backward()
    assert y.grad.device == y.device


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"kappa": 10}, "kappa must be at least 17"),
        ({"kappa": 0.5}, "kappa must be at least 17"),
        ({"kappa": float("nan")}, "kappa"),
        ({"eps": 0.0}, "eps"),
        ({"eps": -1.0}, "eps"),
        ({"Delta": 0.01}, "Delta must be at least .* so that T >= 1"),
        ({"Delta": -1.0}, "Delta"),
        ({"Lf": 0.0}, "Lf"),
        ({"Lg": -2.0}, "Lg"),
        ({"Ce": 0.0}, "Ce"),
        ({"T": 0}, "T"),
        ({"n": 1}, "n"),
        ({"n": 9}, "n must be between 2 and 3"),
        ({"kappa": 1e300}, "kappa must be at most"),
        ({"kappa": 1e12}, "at most 1e.10 lower variables"),
        ({"eps": 1e-8}, "Delta / eps.2 must give at most"),
        ({"T": 2**70}, "T must give at most"),
        ({"eps": 1e-300}, "moderate size"),
        ({"eps": 1e300, "T": 1}, "moderate size"),
        ({"Lf": 1e-300}, "moderate size"),
        ({"Lg": 1e300}, "moderate size"),
        ({"Ce": 1e-300}, "moderate size"),
        ({"Ce": 1e150}, "moderate size"),
    ],
)
def test_bad_constants(arguments, message):
    with pytest.raises(ValueError, match=message):
        hard_instance(**({"kappa": 50, "eps": 0.1} | arguments))


def test_bad_noise():
    with pytest.raises(ValueError, match="sigma"):
        hard_instance_stochastic(50, 0.1, sigma=-1.0)
    with pytest.raises(ValueError, match="sigma must be at most"):
        hard_instance_stochastic(50, 0.1, sigma=1e200)
    assert hard_instance_stochastic(50, 0.1, sigma=1e-300).p == 1.0
    for delta in (0.0, 1.5):
        with pytest.raises(ValueError, match="delta"):
            hard_instance_stochastic(50, 0.1, sigma=1.0).lower_bound_calls_at(delta)


def test_bad_queries_are_not_counted():
    instance = small()
    x, y = np.zeros(instance.dim_x), np.zeros(instance.dim_y)
    for bad_x, bad_y, message in [
        (x[:-1], y, r"x must have shape \(3,\), got \(2,\)"),
        (x, y[:-1], r"y must have shape \(12,\), got \(11,\)"),
        (x + np.nan, y, "x must be a finite 1-D array"),
        (x, y + np.inf, "y must be a finite 1-D array"),
        (x[None], y, "x must be a finite 1-D array"),
    ]:
        with pytest.raises(ValueError, match=message):
            instance.oracle(bad_x, bad_y)
    assert instance.counter.calls == 0
    with pytest.raises(ValueError, match="x must have shape"):
        instance.H(x[:-1])
    with pytest.raises(TypeError):
        instance.oracle("x", y)


def test_single_precision_and_lists_are_taken():
    instance = small()
    single = instance.oracle(np.zeros(3, dtype=np.float32), np.full(12, 0.5, dtype=np.float32))
    listed = instance.oracle([0, 0, 0], [0.5] * 12)
    np.testing.assert_array_equal(single.gy, listed.gy)
    assert single.gy.dtype == np.float64
    wide = np.zeros((24,))
    wide[::2] = 0.5
    wide.setflags(write=False)
    np.testing.assert_array_equal(instance.oracle(torch.zeros(3, requires_grad=True), wide[::2]).gy, listed.gy)


def test_huge_queries_leak_no_warning():
    instance = small()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(instance.oracle(np.full(3, 1e300), np.full(12, 1e300)).gy).all()
        assert instance.stationarity(np.full(3, 1e308)) < 1e-12


def test_bad_methods():
    instance = small()
    with pytest.raises(TypeError):
        run_method(3, instance, 10)
    with pytest.raises(TypeError):
        run_method(chain_walker(instance), 3, 10)
    with pytest.raises(ValueError, match="max_calls"):
        run_method(chain_walker(instance), instance, 0)
    with pytest.raises(ValueError, match="iterate of the method must have shape"):
        run_method(lambda *_: [np.zeros(2)], instance, 10)
    with pytest.raises(ValueError, match="iterate of the method must be"):
        run_method(lambda *_: [np.full(3, np.nan)], instance, 10)
    with pytest.raises(ValueError, match="scale"):
        penalty_f2sa(instance, scale=0.0)
    with pytest.raises(ValueError, match="inner_steps"):
        penalty_f2sa(instance, inner_steps=0)
    with pytest.raises(ValueError, match="tol must be at most"):
        run_method(chain_walker(instance), instance, 10, tol=0.2)
    with pytest.raises(TypeError, match="method must yield"):
        run_method(lambda *_: None, instance, 10)
    with pytest.raises(ValueError, match="method must call the oracle"):
        run_method(lambda *_: itertools.repeat(np.zeros(3)), instance, 10)
    for make in (chain_walker, *METHODS):
        with pytest.raises(TypeError, match="instance"):
            make(5)
    for dimensions, error in (((0, 1), ValueError), ((1.5, 1), TypeError)):
        with pytest.raises(error, match="dim_x"):
            OracleCounter(*dimensions)
    with pytest.raises(TypeError, match="constants"):
        HardBilevel(3)
    assert instance.counter.limit is None


def test_the_study_is_complete():
    study = HardInstancesStudy()
    study.check_declarations()
    problem = study.problem("quick", study.problem_rng("quick", 0))
    small_problem = type(problem)({**problem.parameters, "kappas": (20,), "max_calls": 3000}, problem.seed)
    measured = study.measure("F2SA, accelerated", small_problem, np.random.default_rng(0))
    scalars = {(scalar.metric, scalar.case): scalar.value for scalar in measured.scalars}
    assert scalars["reached", "kappa=20"] == 1.0
    assert scalars["violations", ""] == 0.0
    assert scalars["calls_any_step", "kappa=20"] <= scalars["calls", "kappa=20"]
    # every run is certified, not only the best
    assert len({case for case, _ in measured.certificates}) == 10
    assert all(certificate.holds for _, certificate in measured.certificates)
    assert all(certificate.holds for certificate in study.demonstrate())


def test_the_study_notices_a_method_that_peeks(monkeypatch):
    def peeking(instance, scale):
        def run(oracle, dim_x, dim_y, budget):
            oracle(np.zeros(dim_x), np.zeros(dim_y))
            yield np.full(dim_x, 100 * instance.constants.source)

        return run

    monkeypatch.setattr("assay.bilevel.penalty_f2sa", peeking, raising=False)
    measurement = Measurement()
    study_module._measure_method(measurement, "F2SA", Problem({"kappas": (20,), "max_calls": 100}, 0))
    scalars = {scalar.metric: scalar.value for scalar in measurement.scalars}
    assert scalars["violations"] == 1.0
    assert scalars["bound_over_calls"] > 1
    assert not all(certificate.holds for _, certificate in measurement.certificates)


def test_the_study_does_not_hide_errors(monkeypatch):
    monkeypatch.setattr("assay.bilevel.penalty_f2sa", lambda instance, scale: lambda *_: [np.zeros(1)], raising=False)
    with pytest.raises(ValueError, match="must have shape"):
        study_module._measure_method(Measurement(), "F2SA", Problem({"kappas": (20,), "max_calls": 100}, 0))


def test_slopes_are_of_what_is_known():
    assert study_module._slope([1, 10, 100], [2, 200, math.nan]) == pytest.approx(2)
    assert study_module._growth([2, 200, math.nan]) == 100
    assert math.isnan(study_module._slope([1, 10], [2, math.nan]))
    assert math.isnan(study_module._growth([math.nan, 1]))


def test_claims_have_their_numbers():
    numbers = {claim.id: (claim.relation, claim.number) for claim in HardInstancesStudy.claims}
    assert (numbers["C3a"], numbers["C3b"]) == ((">=", 1.45), ("<=", 1.75))
    assert (numbers["C3c"], numbers["C3d"]) == ((">=", -2.1), ("<=", -1.9))
    assert all(numbers[f"C2{letter}"] == ("<=", 1.0) for letter in "abcde")
    assert all(numbers[f"C4{letter}"] == (">=", 1.5) for letter in "abcde")
    assert (numbers["C5b"], numbers["C5c"]) == ((">=", 2.5), ("<=", 2.9))
    assert (numbers["P1"], numbers["P2"], numbers["P3"]) == ((">=", 20.0), (">=", 50.0), ("<=", 1.1))
