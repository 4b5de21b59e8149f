"""The solver: known distances, certificates recomputed by other means, every option, every form of input."""

import json
import warnings

import networkx as nx
import numpy as np
import ot
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog
from sklearn.datasets import load_digits

from assay.transport.gromov_wasserstein import lobcd_gw
from assay.transport.gw_bounds import gw_value
from assay.transport.gw_problem import normalize_by_degrees
from assay.validation import ConvergenceWarning

TRIANGLE, PATH3 = nx.complete_graph(3), nx.path_graph(3)


def noisy_copy(graph, noise, seed=0):
    """Relabelled copy with extra edges; node i of the graph is node position[i] of the copy."""
    rng = np.random.default_rng(seed)
    A = nx.to_numpy_array(graph, weight=None)
    n = len(A)
    order = rng.permutation(n)
    B = A[np.ix_(order, order)]
    free = np.argwhere(np.triu(1 - B, 1))
    for i, j in free[rng.permutation(len(free))[: int(noise * graph.number_of_edges())]]:
        B[i, j] = B[j, i] = 1.0
    return sp.csr_array(A), sp.csr_array(B), np.argsort(order)


def distances(x):
    return np.linalg.norm(x[:, None] - x, axis=2)


# --- known values


@pytest.mark.parametrize("init", ["degree", "uniform", "best"])
def test_two_points(init):
    result = lobcd_gw([[0, 1], [1, 0]], [[0, 2], [2, 0]], init=init, rng=0)
    assert result.value == pytest.approx(0.5, abs=1e-15)
    assert result.lower_bound == pytest.approx(0.5, abs=1e-15)
    assert result.certified


@pytest.mark.parametrize("init", ["degree", "uniform", "best"])
def test_triangle_and_path(init):
    result = lobcd_gw(TRIANGLE, PATH3, init=init, normalize=False, rng=0)
    assert result.value == pytest.approx(2 / 9, abs=1e-15)
    assert result.lower_bound == pytest.approx(2 / 9, abs=1e-15)


def test_cycle_and_wheel():
    cycle, wheel = nx.cycle_graph(5), nx.wheel_graph(5)
    best = lobcd_gw(cycle, wheel, init="best", normalize=False, rng=0)
    assert best.value == pytest.approx(0.24, abs=1e-12)


@pytest.mark.parametrize("graph", [nx.karate_club_graph(), nx.les_miserables_graph()], ids=["karate", "miserables"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("solver", ["block", "full"])
def test_relabelled_graph_is_recognised(graph, normalize, solver):
    A, B, _ = noisy_copy(graph, 0.0)
    result = lobcd_gw(A, B, normalize=normalize, solver=solver)
    assert result.value <= 1e-12
    assert result.lower_bound == pytest.approx(0.0, abs=1e-15)
    # The mapping is a relabelling up to an automorphism: it keeps every edge.
    mapping = result.mapping
    assert sorted(mapping) == list(range(len(mapping)))
    np.testing.assert_array_equal(B.toarray()[np.ix_(mapping, mapping)], A.toarray())
    assert result.status == "stationary"
    assert result.certified


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_noisy_copy_of_a_scale_free_graph(noise):
    A, B, truth = noisy_copy(nx.barabasi_albert_graph(150, 4, seed=1), noise)
    result = lobcd_gw(A, B)
    assert (result.mapping == truth).mean() >= 0.99
    plan = np.zeros((150, 150))
    plan[np.arange(150), truth] = 1 / 150
    assert result.value <= gw_value(A, B, plan) + 1e-12


# --- certificates, recomputed


def test_everything_that_is_reported_can_be_recomputed():
    rng = np.random.default_rng(1)
    C1, C2 = distances(rng.normal(size=(30, 3))), distances(rng.normal(size=(24, 3)))
    p, q = rng.dirichlet(np.ones(30)), rng.dirichlet(np.ones(24))
    result = lobcd_gw(C1, C2, p, q)
    X = result.plan
    assert max(abs(X.sum(1) - p).max(), abs(X.sum(0) - q).max()) == result.feasibility <= 1e-14
    assert X.min() >= 0.0
    constant = (C1**2 @ p) @ p + (C2**2 @ q) @ q
    assert result.value == pytest.approx(constant - 2 * (C1 @ X @ C2 * X).sum(), abs=1e-13)
    assert result.value_normalized == pytest.approx(result.value / constant)
    gradient = -4 * C1 @ X @ C2
    rows, columns = np.kron(np.eye(30), np.ones(24)), np.kron(np.ones(30), np.eye(24))
    vertex = linprog(gradient.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([p, q]))
    gap = (gradient * X).sum() - vertex.fun
    assert result.fw_gap == pytest.approx(gap, abs=1e-9 * constant)
    assert gap <= 1e-9 * constant
    bound = ot.emd2_1d(C1.ravel(), C2.ravel(), np.outer(p, p).ravel(), np.outer(q, q).ravel(), metric="sqeuclidean")
    assert result.lower_bound == pytest.approx(bound, rel=1e-9)
    np.testing.assert_array_equal(result.mapping, X.argmax(axis=1))
    assert [c.holds for c in result.certificates] == [True] * 4


def test_value_is_not_above_conditional_gradient_from_the_same_start():
    A, B, _ = noisy_copy(nx.barabasi_albert_graph(120, 3, seed=2), 0.3)
    C1, C2 = (normalize_by_degrees(matrix).toarray() for matrix in (A, B))
    w = np.full(120, 1 / 120)
    start = np.outer(w, w)
    ours = lobcd_gw(A, B, init="uniform")
    theirs = ot.gromov.gromov_wasserstein2(C1, C2, w, w, G0=start)
    assert ours.value <= theirs * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), n=st.integers(1, 9), m=st.integers(1, 9), units=st.booleans(), steps=st.integers(1, 40)
)
def test_every_iterate_is_feasible_and_bounded_below(seed, n, m, units, steps):
    rng = np.random.default_rng(seed)
    C1, C2 = distances(rng.normal(size=(n, 2))), distances(rng.normal(size=(m, 2)))
    p = np.full(n, 1 / n) if units else rng.dirichlet(np.ones(n))
    q = np.full(m, 1 / m) if units else rng.dirichlet(np.ones(m))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = lobcd_gw(C1, C2, p, q, max_iter=steps, finish=steps % 2 == 0)
    feasibility, lower_bound = result.certificates[:2]
    assert feasibility.holds
    assert lower_bound.holds
    assert result.value == pytest.approx(min(result.history["value"]), abs=1e-12)


def test_history_ends_at_the_value_and_counts_the_updates():
    A, B, _ = noisy_copy(nx.barabasi_albert_graph(200, 4, seed=1), 0.2)
    result = lobcd_gw(A, B, warm=2, coverage=0.9, inner=2)
    kinds = result.history["kind"].tolist()
    assert kinds[0] == "start"
    assert kinds.count("full") == result.n_full
    assert kinds.count("local") == result.n_local == len(result.active)
    assert kinds.count("finish") == result.n_finish
    kept = result.history["start"] == result.start
    assert result.history["value"][kept][-1] == pytest.approx(result.value, abs=1e-13)
    assert (np.diff(result.history["seconds"]) >= 0).all()
    assert result.history["multiply_adds"].sum() <= result.multiply_adds


# --- the block mechanism


@pytest.mark.parametrize("products", ["sparse", "dense"])
def test_blocks_are_used_and_end_where_full_updates_do(products):
    A, B, truth = noisy_copy(nx.barabasi_albert_graph(400, 4, seed=1), 0.3)
    options = {"products": products, "normalize": True}
    block = lobcd_gw(A, B, coverage=0.95, inner=3, max_frac=0.9, **options)
    full = lobcd_gw(A, B, solver="full", **options)
    assert full.n_local == 0
    assert block.n_local > 0
    assert block.n_full < full.n_full
    assert all(2 <= r <= 400 for r in block.active)
    assert block.value == pytest.approx(full.value, rel=1e-9)
    assert (block.mapping == truth).all()


def test_threshold_selects_what_moves():
    A, B, truth = noisy_copy(nx.watts_strogatz_graph(300, 8, 0.3, seed=1), 0.1)
    result = lobcd_gw(A, B, select="threshold")
    assert result.n_local > 0
    assert (result.mapping == truth).all()
    assert result.certified
    # Nothing moves by as much as 1: every update is one of the whole plan.
    assert lobcd_gw(A, B, select="threshold", delta=1.0).n_local == 0


def test_a_local_update_is_chosen_only_when_it_costs_half_a_full_one():
    A, B, _ = noisy_copy(nx.barabasi_albert_graph(400, 4, seed=1), 0.3)
    result = lobcd_gw(A, B, coverage=0.95, inner=3)
    work, kind = result.history["work"], result.history["kind"]
    assert result.n_local > 0
    assert work[kind == "local"].max() <= 0.5 * np.median(work[kind == "full"])


def test_refresh_does_not_change_the_answer():
    A, B, _ = noisy_copy(nx.barabasi_albert_graph(300, 4, seed=1), 0.3)
    options = {"coverage": 0.9, "inner": 2, "warm": 0, "finish": False}
    often, never = (lobcd_gw(A, B, refresh=refresh, **options) for refresh in (1, 10**6))
    assert often.n_local > 1
    np.testing.assert_allclose(often.plan, never.plan, atol=1e-12)


# --- options


def test_sparse_and_dense_products_give_the_same_plan():
    A, B, _ = noisy_copy(nx.watts_strogatz_graph(120, 6, 0.3, seed=1), 0.1)
    sparse, dense = (lobcd_gw(A, B, solver="full", products=kind, normalize=True) for kind in ("sparse", "dense"))
    np.testing.assert_allclose(sparse.plan, dense.plan, atol=1e-9)
    assert sparse.multiply_adds < 0.5 * dense.multiply_adds


def test_without_the_finish():
    A, B, truth = noisy_copy(nx.barabasi_albert_graph(150, 4, seed=1), 0.2)
    plain = lobcd_gw(A, B, finish=False)
    assert plain.n_finish == 0
    assert plain.status in ("settled", "stalled")
    assert plain.plan.min() >= 0.0
    assert len(plain.certificates) == 3
    sharp = lobcd_gw(A, B, finish=False, sharpen=True)
    assert sharp.value <= plain.value
    assert sharp.feasibility <= 1e-14
    finished = lobcd_gw(A, B)
    assert finished.value <= plain.value + 1e-15
    assert (finished.mapping == truth).all()


def test_vertex_solver_makes_one_mirror_step():
    A, B, _ = noisy_copy(nx.barabasi_albert_graph(100, 4, seed=1), 0.1)
    result = lobcd_gw(A, B, solver="vertex")
    assert (result.n_full, result.n_local) == (2, 0)  # one from each start
    assert result.n_finish >= 1
    assert result.certified


def test_hungarian_rounding_gives_a_permutation():
    A, B, _ = noisy_copy(nx.watts_strogatz_graph(60, 4, 0.3, seed=1), 0.2)
    soft = lobcd_gw(A, B, finish=False)
    hard = lobcd_gw(A, B, finish=False, round="hungarian")
    np.testing.assert_array_equal(hard.mapping, linear_sum_assignment(-soft.plan)[1])
    np.testing.assert_array_equal(np.sort(hard.mapping), np.arange(60))
    assert hard.value == pytest.approx(gw_value(A, B, hard.plan), abs=1e-14)
    assert sorted(np.unique(hard.plan)) == [0.0, 1 / 60]


def test_best_is_no_worse_than_any_of_its_starts():
    graph = nx.random_regular_graph(4, 30, seed=1)
    A, B, _ = noisy_copy(graph, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        best = lobcd_gw(A, B, init="best", rng=0)
        again = lobcd_gw(A, B, init="best", rng=np.random.default_rng(0))
        for init in ("degree", "uniform"):
            assert best.value <= lobcd_gw(A, B, init=init).value + 1e-12
    np.testing.assert_array_equal(best.plan, again.plan)


def quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return lobcd_gw(*args, **options)


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_of_several_starts_the_lowest_end_is_kept(finish, backend):
    A, B, _ = noisy_copy(nx.watts_strogatz_graph(100, 6, 0.3, seed=1), 0.3)
    options = {"finish": finish, "backend": backend}
    degree, uniform = (quiet(A, B, init=init, **options) for init in ("degree", "uniform"))
    assert degree.value != uniform.value
    both = quiet(A, B, **options)
    better = min(degree, uniform, key=lambda result: result.value)
    np.testing.assert_array_equal(both.plan, better.plan)
    assert both.value == better.value
    assert both.start == better.start
    assert both.start_values == pytest.approx({"degree": degree.value, "uniform": uniform.value}, abs=1e-14)
    assert (both.status, both.converged) == (better.status, better.converged)
    for name in ("n_full", "n_local", "n_finish", "n_backtracks", "active", "multiply_adds"):
        assert getattr(both, name) == getattr(degree, name) + getattr(uniform, name)
    for one in (degree, uniform):
        rows = both.history["start"] == one.start
        for column in ("iteration", "value", "kind", "multiply_adds", "work"):
            np.testing.assert_array_equal(both.history[column][rows], one.history[column])
    # The order of the names changes what is tried first, not what is kept.
    np.testing.assert_array_equal(quiet(A, B, init=["uniform", "degree"], **options).plan, both.plan)


def test_a_small_world_that_degrees_do_not_find():
    A, B, truth = noisy_copy(nx.watts_strogatz_graph(200, 8, 0.3, seed=1), 0.2)
    assert (quiet(A, B, init="degree").mapping == truth).mean() < 0.5
    result = quiet(A, B)
    assert result.start == "uniform"
    assert (result.mapping == truth).all()


def test_starts_that_are_one_plan_are_tried_once():
    cycle = nx.cycle_graph(6)
    assert list(quiet(cycle, cycle).start_values) == ["degree"]
    assert list(quiet(cycle, cycle, init=("uniform", "degree")).start_values) == ["uniform"]
    assert list(quiet(cycle, cycle, init="best", rng=0).start_values) == ["degree", "random 1", "random 2", "random 3"]
    path = nx.path_graph(6)
    assert list(quiet(path, path, init=("uniform", "uniform")).start_values) == ["uniform"]
    names = list(quiet(path, path, init=("uniform", "best"), rng=0).start_values)
    assert names == ["uniform", "degree", "random 1", "random 2", "random 3"]


def test_spaces_are_checked_and_certified_once_for_all_starts():
    lonely = nx.path_graph(4)
    lonely.add_node(9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = lobcd_gw(lonely, lonely)
    assert len(caught) == 2  # one for each graph
    assert len(result.start_values) == 2
    assert len(result.certificates) == 4


def test_start_with_zeros_is_left():
    A, B, truth = noisy_copy(nx.karate_club_graph(), 0.0)
    wrong = np.eye(34) / 34
    right = np.zeros((34, 34))
    right[np.arange(34), truth] = 1 / 34
    assert lobcd_gw(A, B, init=right).value <= 1e-15
    start = lobcd_gw(A, B, init=wrong, max_iter=1, finish=False, tol=1.0)
    assert (start.plan > 0).mean() > 0.99


def test_callback_sees_every_update():
    seen = []
    A, B, _ = noisy_copy(nx.karate_club_graph(), 0.1)
    result = lobcd_gw(A, B, callback=seen.append)
    assert [state["kind"] for state in seen] == result.history["kind"].tolist()
    assert [state["value"] for state in seen] == result.history["value"].tolist()
    assert [state["start"] for state in seen] == result.history["start"].tolist()
    assert {state["start"] for state in seen} == {"degree", "uniform"}


def test_no_certificates_on_request():
    A, B, _ = noisy_copy(nx.karate_club_graph(), 0.1)
    bare, full = (lobcd_gw(A, B, certificate=flag) for flag in (False, True))
    assert bare.certificates == ()
    assert np.isnan(bare.fw_gap)
    assert np.isnan(bare.lower_bound)
    assert bare.value == pytest.approx(full.value, abs=1e-14)
    np.testing.assert_array_equal(bare.plan, full.plan)


def test_a_run_that_is_cut_short_says_so():
    rng = np.random.default_rng(0)
    A, B = nx.watts_strogatz_graph(60, 6, 0.3, seed=1), nx.watts_strogatz_graph(60, 6, 0.3, seed=2)
    with pytest.warns(ConvergenceWarning, match="lobcd_gw did not reach tol=1e-10"):
        result = lobcd_gw(A, B, max_iter=1, finish_steps=1)
    assert result.status == "stationary_gap"
    assert not result.converged
    assert result.fw_gap > 0.0
    assert not result.certified
    C = distances(rng.normal(size=(20, 2)))
    with pytest.warns(ConvergenceWarning, match="lobcd_gw did not reach tol=0"):
        assert lobcd_gw(C, C, max_iter=1, finish=False, tol=0.0).status == "max_iter"


def test_objective_that_rises_is_taken_again_and_the_best_plan_is_kept():
    rng = np.random.default_rng(3)
    C1, C2 = distances(rng.normal(size=(40, 1))), distances(rng.normal(size=(40, 1)))
    result = lobcd_gw(C1, C2, rho=1e-3, finish=False, max_iter=60)
    values = result.history["value"]
    assert result.n_backtracks > 0
    assert (np.diff(values) > 0).any()
    assert result.value == pytest.approx(values.min(), abs=1e-14)


# --- kinds of input


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_tensors_in_tensors_out(dtype, backend):
    rng = np.random.default_rng(4)
    C1, C2 = distances(rng.normal(size=(25, 2))), distances(rng.normal(size=(20, 2)))
    tensors = torch.tensor(C1, dtype=dtype), torch.tensor(C2, dtype=dtype)
    result = lobcd_gw(*tensors, backend=backend)
    assert isinstance(result.plan, torch.Tensor)
    assert result.plan.dtype == dtype
    assert result.certified
    plain = lobcd_gw(*(tensor.numpy() for tensor in tensors))
    np.testing.assert_allclose(result.plan.numpy(), plain.plan, atol=1e-7 if dtype == torch.float32 else 1e-12)
    assert result.value == pytest.approx(plain.value, abs=1e-12)


@pytest.mark.parametrize("products", ["sparse", "dense"])
def test_torch_backend_takes_the_same_steps(products):
    A, B, _ = noisy_copy(nx.barabasi_albert_graph(300, 4, seed=1), 0.3)
    options = {"products": products, "normalize": True, "coverage": 0.9, "inner": 2}
    ours, torch_ = (lobcd_gw(A, B, backend=backend, **options) for backend in ("numpy", "torch"))
    assert isinstance(torch_.plan, np.ndarray)
    assert torch_.n_local == ours.n_local > 0
    assert torch_.active == ours.active
    np.testing.assert_allclose(torch_.plan, ours.plan, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("products", ["sparse", "dense"])
def test_cuda_stays_on_the_device(products):
    A, B, truth = noisy_copy(nx.barabasi_albert_graph(200, 4, seed=1), 0.2)
    tensors = [torch.tensor(matrix.toarray(), device="cuda") for matrix in (A, B)]
    result = lobcd_gw(*tensors, normalize=True, products=products)
    assert result.plan.device.type == "cuda"
    assert (result.mapping == truth).all()


def test_integers_and_floats_are_the_same():
    A = nx.to_numpy_array(nx.karate_club_graph(), weight=None)
    order = np.random.default_rng(0).permutation(34)
    B = A[np.ix_(order, order)]
    wanted = lobcd_gw(A, B, normalize=True)
    for dtype in (int, np.uint8, np.float32, bool):
        got = lobcd_gw(A.astype(dtype), B.astype(dtype), normalize=True)
        np.testing.assert_array_equal(got.plan, wanted.plan)


def test_arguments_are_only_read():
    rng = np.random.default_rng(5)
    C1, C2 = distances(rng.normal(size=(12, 2))), distances(rng.normal(size=(10, 2)))
    p, q = rng.dirichlet(np.ones(12)), rng.dirichlet(np.ones(10))
    init = np.outer(p, q)
    copies = [array.copy() for array in (C1, C2, p, q, init)]
    lobcd_gw(C1, C2, p, q, init=init)
    for array, copy in zip((C1, C2, p, q, init), copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    A = nx.to_scipy_sparse_array(nx.karate_club_graph(), format="csr")
    data, indices = A.data.copy(), A.indices.copy()
    lobcd_gw(A, A)
    np.testing.assert_array_equal(A.data, data)
    np.testing.assert_array_equal(A.indices, indices)


def test_points_without_weight_get_zeros():
    rng = np.random.default_rng(6)
    C1, C2 = distances(rng.normal(size=(12, 2))), distances(rng.normal(size=(10, 2)))
    p = rng.dirichlet(np.ones(12))
    p[[2, 7]] = 0.0
    p /= p.sum()
    result = lobcd_gw(C1, C2, p, init="uniform")
    kept = np.flatnonzero(p)
    reduced = lobcd_gw(C1[np.ix_(kept, kept)], C2, p[kept], init="uniform")
    np.testing.assert_array_equal(result.plan[[2, 7]], 0.0)
    np.testing.assert_allclose(result.plan[kept], reduced.plan, atol=1e-12)
    assert result.mapping[2] == result.mapping[7] == -1
    np.testing.assert_array_equal(result.mapping[kept], reduced.mapping)


@pytest.mark.parametrize("n, m", [(1, 1), (1, 5), (5, 1)])
def test_single_point(n, m):
    rng = np.random.default_rng(7)
    C1, C2 = distances(rng.normal(size=(n, 2))), distances(rng.normal(size=(m, 2)))
    q = rng.dirichlet(np.ones(m))
    result = lobcd_gw(C1, C2, q=q)
    np.testing.assert_allclose(result.plan, np.outer(np.full(n, 1 / n), q))
    assert result.status == "trivial"
    assert result.certified


def test_nothing_to_tell_apart():
    for C1, C2 in ((np.zeros((4, 4)), np.zeros((3, 3))), (np.ones((5, 5)), np.ones((5, 5)))):
        result = lobcd_gw(C1, C2)
        assert result.value == pytest.approx(0.0, abs=1e-15)
        assert result.status == "stationary"
        assert result.certified


@pytest.mark.parametrize("factor", [1e-8, 1e8, 1e100])
def test_units_do_not_matter(factor):
    A, B, _ = noisy_copy(nx.barabasi_albert_graph(80, 3, seed=1), 0.1)
    plain = lobcd_gw(A, B, normalize=False)
    scaled = lobcd_gw(factor * A, factor * B, normalize=False)
    np.testing.assert_array_equal(scaled.mapping, plain.mapping)
    assert scaled.value == pytest.approx(factor**2 * plain.value, rel=1e-9)
    assert scaled.certified


def test_duplicated_points():
    rng = np.random.default_rng(8)
    x = np.repeat(rng.normal(size=(8, 2)), 3, axis=0)
    C = distances(x)
    order = rng.permutation(24)
    result = lobcd_gw(C, C[np.ix_(order, order)])
    assert result.value <= 1e-12
    assert result.feasibility <= 1e-14


def test_very_unequal_weights():
    rng = np.random.default_rng(9)
    C1, C2 = distances(rng.normal(size=(20, 2))), distances(rng.normal(size=(15, 2)))
    p, q = 10.0 ** rng.uniform(-10, 0, 20), 10.0 ** rng.uniform(-10, 0, 15)
    result = lobcd_gw(C1, C2, p / p.sum(), q / q.sum())
    assert result.feasibility <= 1e-14
    assert np.isfinite(result.plan).all()


@pytest.mark.parametrize("steps", [3, 17, 40])
def test_marginals_are_exact_wherever_it_stops(steps):
    rng = np.random.default_rng(10)
    C1, C2 = distances(rng.normal(size=(60, 3))), distances(rng.normal(size=(45, 3)))
    p, q = rng.dirichlet(np.ones(60)), rng.dirichlet(np.ones(45))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        stopped = lobcd_gw(C1, C2, p, q, max_iter=steps, finish=False, tol=0.0)
    assert stopped.feasibility <= 1e-15
    assert lobcd_gw(C1, C2, p, q).value < stopped.value


def test_images_across_two_resolutions():
    images = load_digits().images[:80]
    C1 = distances(images.reshape(80, -1))
    C2 = distances(images.reshape(80, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(80, -1))
    result = lobcd_gw(C1, C2, init="uniform")
    w = np.full(80, 1 / 80)
    assert result.certified
    assert result.value <= ot.gromov.gromov_wasserstein2(C1, C2, w, w) * (1 + 1e-9)


def test_result_goes_to_json_and_fits_on_a_screen():
    result = lobcd_gw(TRIANGLE, PATH3)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["status"] == "stationary"
    assert len(repr(lobcd_gw(nx.karate_club_graph(), nx.karate_club_graph())).splitlines()) < 25


# --- bad input


@pytest.mark.parametrize(
    "option, error, message",
    [
        ({"init": "spectral"}, ValueError, "init must be 'degree', 'uniform', 'best' or a plan"),
        ({"init": ("degree", "spectral")}, ValueError, "init must be .*, got 'spectral'"),
        ({"init": ("degree", 3)}, TypeError, "init must hold names of starts only"),
        ({"init": ()}, ValueError, "init must name at least one start"),
        ({"init": None}, TypeError, "init"),
        ({"init": np.ones((2, 2)) / 4}, ValueError, "init must have shape"),
        ({"init": np.ones((3, 3))}, ValueError, "init must have the marginals"),
        ({"init": np.eye(3) * 2 / 3 - 1 / 9}, ValueError, "init must be non-negative"),
        ({"init": np.full((3, 3), np.nan)}, ValueError, "init must be a finite"),
        ({"rho": 0.0}, ValueError, "rho must be greater than 0"),
        ({"rho": "small"}, TypeError, "rho"),
        ({"warm": -1}, ValueError, "warm must be at least 0"),
        ({"select": "all"}, ValueError, "select must be one of"),
        ({"coverage": 1.5}, ValueError, "coverage must be at most 1"),
        ({"coverage": 0.0}, ValueError, "coverage must be greater than 0"),
        ({"delta": -1e-6}, ValueError, "delta must be at least 0"),
        ({"max_frac": 2.0}, ValueError, "max_frac must be at most 1"),
        ({"inner": 0}, ValueError, "inner must be at least 1"),
        ({"inner": 2.0}, TypeError, "inner"),
        ({"sinkhorn_iters": 0}, ValueError, "sinkhorn_iters must be at least 1"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1"),
        ({"tol": -1.0}, ValueError, "tol must be at least 0"),
        ({"tol": np.nan}, ValueError, "tol must be finite"),
        ({"certificate": "no"}, TypeError, "certificate"),
        ({"certificate": None}, TypeError, "certificate"),
        ({"probe": 0}, ValueError, "probe must be at least 1"),
        ({"refresh": 0}, ValueError, "refresh must be at least 1"),
        ({"finish_steps": -1}, ValueError, "finish_steps must be at least 0"),
        ({"gap_tol": -1.0}, ValueError, "gap_tol must be at least 0"),
        ({"solver": "newton"}, ValueError, "solver must be one of"),
        ({"products": "fast"}, ValueError, "products must be one of"),
        ({"round": "up"}, ValueError, "round must be one of"),
        ({"backend": "jax"}, ValueError, "backend must be one of"),
        ({"sharpen": True}, ValueError, "sharpen must be False with the finish"),
        ({"rng": "seed", "init": "best"}, TypeError, "rng must be"),
        ({"normalize": "maybe"}, ValueError, "normalize must be"),
        ({"p": [0.2, 0.2, 0.2]}, ValueError, "p must sum to 1"),
        ({"q": [0.5, 0.5]}, ValueError, "q must have length 3"),
        ({"round": "hungarian", "p": [0.5, 0.25, 0.25]}, ValueError, "round must be 'none' unless"),
    ],
)
def test_bad_options(option, error, message):
    with pytest.raises(error, match=message):
        lobcd_gw(TRIANGLE, PATH3, **option)
