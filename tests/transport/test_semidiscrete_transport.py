"""Transport to finitely many targets: bounds against exact solvers, the map, and plain versions of the fast loops."""

import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from assay.transport import GCFLayer, PowerCost, TransportResult, transport_map
from assay.transport.semidiscrete_transport import _certificates, _Problem
from assay.transport.semidual_ascent import dual_value_and_slope, fill_rows, soft_plan_rows
from assay.validation import ConvergenceWarning


def clouds(n=40, m=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=(m, 2)) @ np.array([[1.0, 0.5], [0.0, 2.0]]) + 1.0


def exact_cost(cost):
    rows, columns = linear_sum_assignment(cost)
    return cost[rows, columns].mean()


class TestLoops:
    @given(st.integers(0, 10**6), st.sampled_from([1.0, 30.0, 1000.0]))
    @settings(max_examples=15, deadline=None)
    def test_slope_is_that_of_the_layer(self, seed, temperature):
        rng = np.random.default_rng(seed)
        X, Y, b = rng.normal(size=(9, 2)), rng.normal(size=(6, 2)), rng.normal(size=6)
        p, q = rng.dirichlet(np.ones(9)), rng.dirichlet(np.ones(6))
        layer = GCFLayer(
            PowerCost(1.5), Y, mode="concave", selection="soft", lse=True, temperature=temperature, intercept=b
        )
        soft = torch.tensor(p) @ layer(torch.tensor(X)) + torch.tensor(q) @ layer.intercept
        soft.backward()
        cost = (np.abs(X[:, None] - Y) ** 1.5).sum(-1)
        hard, value, slope = dual_value_and_slope(cost, p, q, b, temperature)
        assert value == pytest.approx(float(soft.detach()), rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(slope, layer.intercept.grad.numpy(), atol=1e-13)
        assert hard == pytest.approx(p @ (cost - b).min(1) + q @ b, abs=1e-12)
        assert 0.0 <= hard - value + 1e-12 <= math.log(6) / temperature + 2e-12

    @pytest.mark.parametrize("temperature", [2.0, 500.0, np.inf])
    def test_soft_plan(self, temperature):
        rng = np.random.default_rng(1)
        cost, b, p = rng.random((8, 5)), rng.random(5), rng.dirichlet(np.ones(8))
        cost[3, 2] = cost[3, 4] - b[4] + b[2]  # a tie
        reduced = cost - b - (cost - b).min(1, keepdims=True)
        weights = np.exp(-temperature * reduced) if np.isfinite(temperature) else (reduced == 0.0) * 1.0
        wanted = p[:, None] * weights / weights.sum(1, keepdims=True)
        counts, columns, mass = soft_plan_rows(cost, p, b, temperature)
        plan = np.zeros((8, 5))
        plan[np.repeat(np.arange(8), counts), columns] = mass
        np.testing.assert_allclose(plan, wanted, atol=1e-14)

    def test_filling_takes_the_cheapest_that_has_room(self):
        cost = np.array([[1.0, 2.0, 3.0], [0.0, 5.0, 1.0]])
        room = np.array([0.5, 0.25, 0.25])
        rows, columns, mass = fill_rows(cost, np.zeros(3), np.array([0.6, 0.4]), room)
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 2), (1, 1)]
        np.testing.assert_allclose(mass, [0.5, 0.1, 0.25, 0.15])
        np.testing.assert_allclose(room, 0.0, atol=1e-15)


class TestBounds:
    @pytest.mark.parametrize("name, power", [("sqeuclidean", 2.0), ("power", 1.5)])
    def test_near_the_assignment(self, name, power):
        X, Y = clouds()
        exact = exact_cost((np.abs(X[:, None] - Y) ** power).sum(-1))
        result = transport_map(X, Y, name, rng=0)
        assert result.dual <= exact * (1 + 1e-12)
        assert result.primal >= exact * (1 - 1e-12)
        assert result.dual >= exact * (1 - 1e-3)
        assert result.certified
        assert result.converged
        assert result.gap == result.primal - result.dual

    @given(st.integers(0, 10**6), st.integers(2, 12), st.integers(2, 9))
    @settings(max_examples=10, deadline=None)
    def test_bracket_the_linear_program(self, seed, n, m):
        ot = pytest.importorskip("ot")
        rng = np.random.default_rng(seed)
        X, Y = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
        p, q = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))
        exact = ot.emd2(p, q, (X[:, None] * Y).sum(-1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            result = transport_map(X, Y, "dot", p=p, q=q, max_iter=300, rng=0)
        assert result.dual <= exact + 1e-10
        assert result.primal >= exact - 1e-10
        assert result.certificates[0].holds
        assert result.certificates[1].holds
        np.testing.assert_allclose(result.plan.sum(axis=1), p, atol=1e-14)
        np.testing.assert_allclose(result.plan.sum(axis=0), q, atol=1e-14)

    @pytest.mark.parametrize("cost", ["sqeuclidean", PowerCost(1.0), lambda x, y: (x - y).norm(dim=-1).sqrt()])
    def test_nothing_moves_to_itself(self, cost):
        X = clouds(30)[0]
        X[5] = X[6]
        result = transport_map(X, X, cost, rng=0)
        assert result.dual == 0.0
        assert result.gap == 0.0
        assert result.n_iter == 0
        np.testing.assert_array_equal(result.intercept, 0.0)
        np.testing.assert_array_equal(result.map(X), X)

    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    def test_any_scale(self, scale):
        X, Y = clouds()
        plain, scaled = transport_map(X, Y, rng=0), transport_map(X * scale, Y * scale, rng=0)
        assert scaled.dual / scale**2 == pytest.approx(plain.dual, rel=1e-6)
        assert scaled.certified

    def test_one_source_or_target(self):
        result = transport_map([[0.0, 0.0]], [[3.0, 4.0], [0.0, 1.0]], rng=0)
        assert result.primal == pytest.approx(13.0)
        assert 0.0 <= result.gap <= 1e-3 * 13.0
        assert transport_map([[0, 0], [0, 2]], [[0, 1]]).dual == pytest.approx(1.0)

    def test_asymmetric_costs(self):
        def uphill(x, y):
            return (y - x).clamp_min(0).sum(-1)

        X, Y = clouds()
        exact = exact_cost(np.maximum(Y[None] - X[:, None], 0.0).sum(-1))
        assert transport_map(X, Y, uphill, rng=0).dual == pytest.approx(exact, rel=2e-3)

    def test_minibatches_of_a_large_sample(self):
        X, Y = clouds(500, 30)
        whole = transport_map(X, Y, rng=0, tol=2e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            batches = transport_map(X, Y, rng=0, batch_size=100, max_iter=1500, tol=2e-3)
        assert batches.dual <= whole.primal
        assert batches.dual == pytest.approx(whole.dual, rel=5e-3)
        assert batches.certificates[1].holds

    def test_cluster_centres_with_their_masses(self):
        ot = pytest.importorskip("ot")
        X, Y = clouds(120, 150)
        result = transport_map(X, Y, n_pieces=25, rng=0)
        assert result.targets.shape == (25, 2)
        assert result.masses.sum() == pytest.approx(1.0)
        exact = ot.emd2([], [], ((X[:, None] - Y) ** 2).sum(-1))
        assert result.dual - result.quantization_error <= exact <= result.primal + result.quantization_error
        distance = np.sqrt(((Y[:, None] - result.targets) ** 2).sum(-1)).min(1)
        assert result.quantization_error >= 0.1 * distance.mean()
        assert transport_map(X, Y[:9], n_pieces=9, rng=0, tol=0.1).quantization_error == 0.0


class TestMap:
    def test_is_the_best_target_of_new_points(self):
        X, Y = clouds()
        result = transport_map(X, Y, PowerCost(1.5), rng=0)
        new = np.random.default_rng(5).normal(size=(50, 2))
        reduced = (np.abs(new[:, None] - Y) ** 1.5).sum(-1) - result.intercept
        np.testing.assert_array_equal(result.map(new), Y[reduced.argmin(1)])
        np.testing.assert_allclose(result.potential(new), reduced.min(1))

    def test_smooth_map_of_the_squared_distance_is_an_average(self):
        X, Y = clouds()
        result = transport_map(X, Y, rng=0)
        reduced = ((X[:, None] - Y) ** 2).sum(-1) - result.intercept
        weights = np.exp(-result.temperature * (reduced - reduced.min(1, keepdims=True)))
        weights /= weights.sum(1, keepdims=True)
        np.testing.assert_allclose(result.map(X, kind="smooth"), weights @ Y, atol=1e-9)

    def test_smooth_map_of_another_cost_is_near_the_hard_one(self):
        X, Y = clouds()
        result = transport_map(X, Y, PowerCost(3.0), rng=0, temperature=2000.0)
        error = np.linalg.norm(result.map(X, kind="smooth") - result.map(X), axis=1)
        assert np.median(error) < 0.2

        def uphill(x, y):
            return (y - x).clamp_min(0).sum(-1)

        without = transport_map(X, Y, uphill, max_iter=0, tol=9.0)
        with pytest.raises(TypeError, match="'inverse_gradient', and uphill has none"):
            without.map(X, kind="smooth")

    def test_of_a_gaussian(self):
        rng = np.random.default_rng(0)
        X, Y = rng.normal(size=(600, 2)), rng.normal(size=(600, 2)) * [2.0, 0.5]
        result = transport_map(X, Y, rng=0, tol=5e-3)
        # of the sample: that of the law is 1.25
        assert result.dual == pytest.approx(exact_cost(((X[:, None] - Y) ** 2).sum(-1)), rel=5e-3)
        new = rng.normal(size=(400, 2))
        truth = new * [2.0, 0.5]
        smooth = result.map(new, kind="smooth")
        assert np.linalg.norm(smooth - truth) / np.linalg.norm(truth) < 0.25


class TestCertificates:
    def test_corrupted_answers_are_noticed(self):
        X, Y = clouds()
        result = transport_map(X, Y, rng=0)
        uniform = np.full(40, 1 / 40)
        problem = _Problem(result.cost, X, Y, uniform, uniform, np.random.default_rng(0))
        good = _certificates(problem, result.plan, result.dual, result.primal, 1e-3)
        assert all(promise.holds for promise in good)
        plan = result.plan.copy()
        plan.data[0] *= 1.5
        assert not _certificates(problem, plan, result.dual, result.primal, 1e-3)[0].holds
        shifted = problem.dual(result.intercept + np.linspace(0, 3, 40))
        assert not _certificates(problem, result.plan, shifted, result.primal, 1e-3)[2].holds
        assert not _certificates(problem, result.plan, result.primal + 0.1, result.primal, 1e-3)[1].holds
        assert not any(p.holds for p in _certificates(problem, result.plan, np.nan, result.primal, 1e-3)[1:])

    def test_too_few_steps_are_told(self):
        X, Y = clouds()
        with pytest.warns(ConvergenceWarning, match="transport_map did not reach tol=0.001 in 3 iterations"):
            result = transport_map(X, Y, max_iter=3, rng=0)
        assert not result.converged
        assert not result.certified

    def test_history_and_callback(self):
        rows = []
        X, Y = clouds()
        result = transport_map(X, Y, rng=0, callback=rows.append)
        assert [row["iteration"] for row in rows] == result.history["iteration"].tolist()
        assert (np.diff(result.history["best"]) >= 0).all()
        assert (np.diff(result.history["primal"]) <= 0).all()
        assert result.to_dict()["primal"] == result.primal
        assert "certificates: 3 of 3 hold" in repr(result)


def test_is_deterministic_and_leaves_its_input_alone():
    X, Y = clouds()
    before = X.copy(), Y.copy()
    one, other = (transport_map(X, Y, rng=3) for _ in range(2))
    np.testing.assert_array_equal(one.intercept, other.intercept)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(Y, before[1])
    assert isinstance(pickle.loads(pickle.dumps(one)), TransportResult)


def test_other_types_of_input():
    X, Y = clouds()
    wanted = transport_map(X.astype(np.float32), Y.astype(np.float32), rng=0).dual
    for form in (lambda A: torch.tensor(A, dtype=torch.float32), lambda A: A.astype(np.float32).tolist()):
        assert transport_map(form(X), form(Y), rng=0).dual == pytest.approx(wanted, rel=1e-9)
    whole = transport_map([[0, 0], [2, 2]], [[0, 0], [2, 2]])
    assert whole.dual == 0.0


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"X": np.zeros((0, 2))}, ValueError, "X must be a finite 2-D array and not empty"),
        ({"Y": [[0.0, np.nan]]}, ValueError, "Y must be a finite 2-D array"),
        ({"X": [1.0, 2.0]}, ValueError, "X must be a finite 2-D array"),
        ({"q": np.full(40, 1 / 39)}, ValueError, "q must sum to 1"),
        ({"q": [2.0, -1.0] + [0.0] * 38}, ValueError, "q must be non-negative"),
        ({"q": [1.0]}, ValueError, "q must have length 40"),
        ({"p": np.full(40, 1.0)}, ValueError, "p must sum to 1"),
        ({"temperature": 0.0}, ValueError, "temperature must be greater than 0"),
        ({"lr": -1.0}, ValueError, "lr must be greater than 0"),
        ({"max_iter": -1}, ValueError, "max_iter must be at least 0"),
        ({"max_iter": 10.0}, TypeError, "max_iter"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"n_pieces": 0}, ValueError, "n_pieces must be at least 1"),
        ({"rng": "seed"}, TypeError, "rng must be"),
        ({"cost": "manhattan"}, ValueError, "cost must be one of"),
        ({"cost": 2.0}, TypeError, "cost must be a name, a callable or an object with the method 'evaluate'"),
        ({"cost": lambda x, y: (x - y).sum()}, ValueError, r"kernel must return \(S, J\)"),
        ({"cost": lambda x, y: (x - y).log().sum(-1)}, ValueError, "cost must be finite"),
        ({"callback": 3}, TypeError, "callback"),
    ],
)
def test_bad_input(options, error, message):
    X, Y = clouds()
    with pytest.raises(error, match=message):
        transport_map(**({"X": X, "Y": Y} | options))
    assert transport_map(X, Y, max_iter=0, tol=9.0).map(X).shape == (40, 2)
    with pytest.raises(ValueError, match="kind must be one of"):
        transport_map(X, Y, max_iter=0, tol=9.0).map(X, kind="soft")
