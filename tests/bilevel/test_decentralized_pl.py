"""DecentralizedBilevel: the iteration against plain loops, invariants, backends, and runs that stop and go on."""

import copy
import dataclasses
import pickle
import threading
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.bilevel import (
    BatchedLoss,
    DecentralizedBilevel,
    metropolis_weights,
    nonconvex_pl_problem,
    quadratic_pl_problem,
    stochastic_step_size,
)
from assay.validation import ConvergenceWarning

PROBLEM = quadratic_pl_problem(4)
RING = nx.cycle_graph(4)
FAST = {"refine_steps": 5}


def solver(problem=PROBLEM, graph=RING, **options):
    return DecentralizedBilevel.from_problem(problem, graph, **(FAST | options))


def states(run):
    return run.state_dict()["states"]


def plain_run(problem, W, n_iter, *, sigma, eta=0.3, a=3.0, estimator="momentum", tracking=True, rho=0.0, batches=None):
    """The iteration node by node, as it is written down."""
    K, (dx, dy) = problem.n_nodes, problem.shape
    gammas = {"x": 0.2 * sigma / max(problem.L, 1.0), "y": 0.5 / problem.L, "z": 0.5 / problem.L}
    points = [{"x": np.zeros(dx), "y": np.zeros(dy), "z": np.zeros(dy)} for _ in range(K)]
    draw = batches or (lambda: None)

    def gradients(at, batch):
        found = []
        for k in range(K):
            x, y, z = at[k]["x"], at[k]["y"], at[k]["z"]
            own = None if batch is None else batch[k]
            upper, at_y, at_z = (
                problem.f_list[k](x, y, own)[1],
                problem.g_list[k](x, y, own)[1],
                problem.g_list[k](x, z, own)[1],
            )
            found.append(
                {
                    "x": upper[0] + (at_y[0] - at_z[0]) / sigma,
                    "y": sigma * upper[1] + at_y[1] + rho * y,
                    "z": at_z[1] + rho * z,
                }
            )
        return found

    u = gradients(points, draw())
    v = [dict(one) for one in u]
    for _ in range(n_iter):
        direction = v if tracking else u
        new = [
            {
                s: points[k][s]
                + eta * (sum(W[k, j] * points[j][s] for j in range(K)) - gammas[s] * direction[k][s] - points[k][s])
                for s in "xyz"
            }
            for k in range(K)
        ]
        batch = draw()
        G = gradients(new, batch)
        if estimator == "momentum":
            fresh = [{s: (1 - a * eta) * u[k][s] + a * eta * G[k][s] for s in "xyz"} for k in range(K)]
        elif estimator == "storm":
            old = gradients(points, batch)
            fresh = [{s: G[k][s] + (1 - a * eta**2) * (u[k][s] - old[k][s]) for s in "xyz"} for k in range(K)]
        else:
            fresh = G
        v = [{s: sum(W[k, j] * v[j][s] for j in range(K)) + fresh[k][s] - u[k][s] for s in "xyz"} for k in range(K)]
        points, u = new, fresh
    return np.array([np.concatenate([point[s] for s in "xyz"]) for point in points])


@pytest.mark.parametrize("estimator", ["momentum", "storm", "sgd"])
@pytest.mark.parametrize("tracking", [True, False])
def test_iteration_is_the_plain_one(estimator, tracking):
    rng = np.random.default_rng(3)
    batches = [PROBLEM.noise(0.3, rng) for _ in range(9)]
    ours, theirs = iter(batches), iter(batches)
    run = solver(
        sigma=0.1, estimator=estimator, tracking=tracking, lower_regularizer=0.05, sampler=lambda _: next(ours),
        smoothness=PROBLEM.L,
    )  # fmt: skip
    for _ in range(8):
        run.step()
    plain = plain_run(
        PROBLEM, metropolis_weights(RING), 8, sigma=0.1, estimator=estimator, tracking=tracking, rho=0.05,
        batches=lambda: next(theirs),
    )  # fmt: skip
    assert np.allclose(states(run), plain, atol=1e-13)


def torch_losses(problem):
    t = torch.as_tensor(problem.targets)
    H = [torch.as_tensor(loss) for loss in joint_matrices(problem)]
    f = [lambda x, y, batch, k=k: 0.5 * ((y - t[k]) ** 2).sum() + 0.05 * (x**2).sum() for k in range(len(t))]
    g = [lambda x, y, batch, k=k: 0.5 * torch.cat([x, y]) @ H[k] @ torch.cat([x, y]) for k in range(len(t))]
    return f, g


def joint_matrices(problem):
    """Second derivatives of the lower losses of the nodes, column by column."""
    dx, dy = problem.shape
    basis = np.eye(dx + dy)
    return [np.array([np.concatenate(loss(row[:dx], row[dx:], None)[1]) for row in basis]) for loss in problem.g_list]


def test_lists_batches_and_tensors_agree():
    options = {"sigma": 0.1, "smoothness": PROBLEM.L, **FAST}
    start = np.zeros(5), np.ones(12)
    batched = DecentralizedBilevel(PROBLEM.f, PROBLEM.g, *start, RING, **options)
    listed = DecentralizedBilevel(PROBLEM.f_list, PROBLEM.g_list, *start, RING, **options)
    f, g = torch_losses(PROBLEM)
    tensors = tuple(torch.as_tensor(point) for point in start)
    looped = DecentralizedBilevel(f, g, *tensors, RING, backend="torch", **options)
    stacked = torch.stack([torch.as_tensor(matrix) for matrix in joint_matrices(PROBLEM)])

    def lower(x, y, batch):
        both = torch.cat([x, y], dim=1)
        return 0.5 * (both * torch.einsum("kij,kj->ki", stacked, both)).sum(dim=1)

    def upper(x, y, batch):
        return 0.5 * (y - torch.as_tensor(PROBLEM.targets)).square().sum(dim=1) + 0.05 * x.square().sum(dim=1)

    together = DecentralizedBilevel(
        BatchedLoss(upper, 4), BatchedLoss(lower, 4), *tensors, RING, backend="torch", **options
    )
    for run in (batched, listed, looped, together):
        for _ in range(12):
            run.step()
    for run in (listed, looped, together):
        assert np.allclose(states(batched), np.asarray(states(run)), atol=1e-13)


def test_single_precision_stays_in_it():
    f, g = torch_losses(quadratic_pl_problem(2))
    f, g = ([lambda x, y, b, loss=loss: loss(x.double(), y.double(), b) for loss in losses] for losses in (f, g))
    run = DecentralizedBilevel(
        f, g, torch.zeros(5), torch.zeros(12), nx.path_graph(2), backend="torch", sigma=0.1, **FAST
    )
    result = run.run(10, 5)
    assert states(run).dtype == torch.float32
    assert result.x.dtype == np.float64
    invariants = [c for c in result.certificates if "relative error" in c.statement]
    assert len(invariants) == 2
    assert all(c.holds and c.bound == 1e-3 for c in invariants)


@pytest.mark.gpu
def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    matrices = torch.stack([torch.as_tensor(matrix) for matrix in joint_matrices(PROBLEM)]).cuda()
    targets = torch.as_tensor(PROBLEM.targets).cuda()

    def lower(x, y, batch):
        both = torch.cat([x, y], dim=1)
        return 0.5 * (both * torch.einsum("kij,kj->ki", matrices, both)).sum(dim=1)

    def upper(x, y, batch):
        return 0.5 * (y - targets).square().sum(dim=1) + 0.05 * x.square().sum(dim=1)

    start = torch.zeros(5, dtype=torch.float64).cuda(), torch.zeros(12, dtype=torch.float64).cuda()
    losses = BatchedLoss(upper, 4), BatchedLoss(lower, 4)
    run = DecentralizedBilevel(*losses, *start, RING, backend="torch", sigma=0.1, smoothness=PROBLEM.L, **FAST)
    result = run.run(20)
    assert states(run).is_cuda
    assert np.allclose(result.x, solver(sigma=0.1).run(20).x, atol=1e-12)


def test_identical_nodes_follow_the_centralised_run():
    """Without noise, whatever the graph."""
    problem, alone = quadratic_pl_problem(5, heterogeneous=False), quadratic_pl_problem(1)
    single = solver(alone, [[1.0]], sigma=0.1)
    others = [solver(problem, graph, sigma=0.1) for graph in (nx.path_graph(5), nx.star_graph(4))]
    for run in (single, *others):
        for _ in range(60):
            run.step()
    for run in others:
        assert np.abs(states(run) - states(single)).max() <= 1e-12


def test_one_node_is_a_single_agent_penalty_method():
    problem = quadratic_pl_problem(1)
    run = solver(problem, [[1.0]], sigma=0.1)
    for _ in range(10):
        run.step()
    assert np.allclose(states(run), plain_run(problem, np.eye(1), 10, sigma=0.1), atol=1e-14)
    assert run.network.bytes_sent == 0
    assert run.network.spectral_gap == 1.0


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 50),
    eta=st.floats(0.05, 0.33),
    estimator=st.sampled_from(["momentum", "storm", "sgd"]),
    noise=st.sampled_from([0.0, 0.5]),
)
def test_invariants(seed, eta, estimator, noise):
    run = solver(
        quadratic_pl_problem(3, seed=seed), nx.path_graph(3), eta=eta, estimator=estimator, noise=noise, rng=seed
    )
    steps = np.repeat([run.gamma_x, 0.5 / run._scales.smoothness, 0.5 / run._scales.smoothness], [5, 12, 12])
    for _ in range(12):
        before = run.state_dict()
        run.step()
        after = run.state_dict()
        mean = before["estimators"].mean(axis=0)
        size = np.abs(after["estimators"]).max() + 1.0
        assert np.abs(after["trackers"].mean(axis=0) - after["estimators"].mean(axis=0)).max() <= 1e-12 * size
        moved = after["states"].mean(axis=0) - before["states"].mean(axis=0)
        assert np.abs(moved + eta * steps * mean).max() <= 1e-12 * size


def test_mixing_alone_keeps_the_mean():
    """From any states, with trackers of zero."""
    run = solver(sigma=0.1)
    state = run.state_dict()
    state["states"] = np.random.default_rng(0).normal(size=state["states"].shape)
    state["trackers"] = np.zeros_like(state["trackers"])
    run.load_state_dict(state)
    run.step()
    assert np.allclose(states(run).mean(axis=0), state["states"].mean(axis=0), atol=1e-15)
    zero = solver(sigma=0.1)
    state = zero.state_dict()
    state["trackers"] = np.zeros_like(state["trackers"])
    zero.load_state_dict(state)
    zero.step()
    assert not states(zero).any()


def test_fixed_points_are_stationary_and_agreed_upon():
    result = solver(sigma=0.2).run(500, 500)
    rows = [np.tile(point, (4, 1)) for point in (result.x, result.y, result.z)]
    upper, at_y, at_z = (
        PROBLEM.f(rows[0], rows[1], None)[1],
        PROBLEM.g(rows[0], rows[1], None)[1],
        PROBLEM.g(rows[0], rows[2], None)[1],
    )
    assert np.abs((upper[0] + (at_y[0] - at_z[0]) / 0.2).mean(axis=0)).max() <= 1e-2
    assert np.abs((0.2 * upper[1] + at_y[1]).mean(axis=0)).max() <= 1e-3
    assert np.abs(at_z[1].mean(axis=0)).max() <= 1e-3
    assert np.abs(upper[1]).max() > 0.1  # at every node by itself they are not
    assert max(result.consensus.values()) <= 1e-8


def test_tracking_brings_nodes_together():
    with_tracking, without = (solver(sigma=0.2, tracking=tracking).run(100, 100) for tracking in (True, False))
    assert with_tracking.consensus["x"] < 1e-2 * without.consensus["x"]
    assert without.certificates[4].statement.startswith("mean squared disagreement")
    assert not any("tracker" in c.statement for c in without.certificates)
    assert with_tracking.bytes_sent == 2 * without.bytes_sent


def test_nodes_of_a_complete_graph_differ_by_their_trackers():
    run = solver(graph=nx.complete_graph(4))
    assert run.network.spectral_gap == pytest.approx(1.0)
    run.step()
    assert np.ptp(states(run), axis=0).max() > 1e-6
    shift = states(run) - states(run).mean(axis=0)
    start = solver(graph=nx.complete_graph(4)).state_dict()["trackers"]
    assert np.corrcoef(shift[:, 5:17].ravel(), (start - start.mean(axis=0))[:, 5:17].ravel())[0, 1] < -0.999999


def test_messages_are_two_vectors_per_link():
    result = solver(graph=nx.star_graph(3)).run(7)
    assert result.messages_sent == 7 * 6 * 2
    assert result.bytes_sent == 7 * 6 * 2 * (5 + 2 * 12) * 8
    assert result.n_gradients == 4 * 3 * 8  # the first ones, and three pairs in every iteration
    assert result.spectral_gap == pytest.approx(0.25)


def test_penalty_parameter_that_is_halved():
    run = solver(sigma=0.4, sigma_decay=10)
    first = run.gamma_x
    result = run.run(25, 5)
    assert result.history["sigma"].tolist() == [0.4, 0.4, 0.4, 0.2, 0.2, 0.1]
    assert run.gamma_x == pytest.approx(first / 4)
    assert result.sigma == pytest.approx(0.1)
    # trackers start anew from the gradients at the states
    run = solver(sigma=0.4, sigma_decay=1, eta=1e-9, a=1.0)
    run.step()
    run.step()
    state = run.state_dict()
    reference = solver(sigma=0.2).state_dict()
    assert np.allclose(state["estimators"], reference["estimators"], atol=1e-6)


def test_bounds():
    run = solver(sigma=0.2, x_bounds=(-0.1, np.full(5, 0.2)))
    result = run.run(300, 300)
    assert result.x_nodes.min() >= -0.1
    assert result.x_nodes.max() <= 0.2
    assert (np.isclose(result.x, -0.1) | np.isclose(result.x, 0.2)).any()
    exact = PROBLEM.F(result.x)[1]
    step = result.x - np.clip(result.x - exact, -0.1, 0.2)
    assert result.stationarity == pytest.approx(step @ step)
    assert result.stationarity < 1e-2 < exact @ exact
    assert all(c.holds for c in result.certificates if "relative error" in c.statement)
    one_sided = [
        solver(sigma=0.2, x_bounds=bounds).run(40, 40).x
        for bounds in (
            (None, 0.02),
            (-np.inf, torch.full((5,), 0.02, dtype=torch.float64)),
            (np.full(5, -np.inf), 0.02),
        )
    ]
    assert all(np.array_equal(x, one_sided[0]) for x in one_sided[1:])
    assert one_sided[0].min() < -0.02 < 0.02 == one_sided[0].max()


def test_nonconvex_lower_loss():
    problem = nonconvex_pl_problem(2)
    result = solver(problem, nx.path_graph(2), sigma=0.8, y0=np.full(12, 3.0), refine_steps=20).run(550, 550)
    best = problem.F(problem.x_star)[0]
    assert problem.F(result.x)[0] - best < 0.3 * (problem.F(np.zeros(5))[0] - best)
    assert np.abs(problem.lower_map @ result.z - problem.upper_map @ result.x).max() < 0.1
    assert result.pl_ratio >= problem.mu


def test_noise_and_generators():
    runs = [solver(noise=0.5, rng=seed, sigma=0.2).run(20) for seed in (0, 0, 1)]
    assert np.array_equal(runs[0].x, runs[1].x)
    assert not np.array_equal(runs[0].x, runs[2].x)


def test_step_size_for_noise():
    assert stochastic_step_size(8, 10) == 0.3
    assert stochastic_step_size(4, 40000, 2.0) == pytest.approx(0.02)
    with pytest.raises(ValueError, match="n_iter"):
        stochastic_step_size(4, 0)


def test_smoothness_is_estimated():
    run = DecentralizedBilevel(PROBLEM.f_list, PROBLEM.g_list, np.zeros(5), np.zeros(12), RING, **FAST)
    assert run._scales.smoothness == pytest.approx(PROBLEM.L, rel=1e-3)
    assert run.gamma_x == pytest.approx(0.2 * 0.05 / PROBLEM.L, rel=1e-3)
    flat = [lambda x, y, batch: (0.0, (0 * x, 0 * y))] * 4
    with pytest.raises(ValueError, match="smoothness must be given"):
        DecentralizedBilevel(flat, flat, np.zeros(5), np.zeros(12), RING)


def test_only_first_derivatives_are_taken():
    graphs = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return tensor.clone()

        @staticmethod
        def backward(ctx, gradient):
            graphs.append(torch.is_grad_enabled())
            return gradient

    f, g = torch_losses(PROBLEM)
    probed = [
        [lambda x, y, b, loss=loss: loss(Probe.apply(x), Probe.apply(y), b) for loss in losses] for losses in (f, g)
    ]
    start = torch.zeros(5, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    DecentralizedBilevel(*probed, *start, RING, backend="torch", refine_steps=2).run(3)
    assert graphs
    assert not any(graphs)


def test_a_loss_that_does_not_depend_on_x():
    _, g = torch_losses(PROBLEM)
    only_y = [lambda x, y, b, k=k: (y - k).square().sum() for k in range(4)]
    constant = [lambda x, y, b: 1.0 + 0.0 * y.sum()] * 4
    start = torch.zeros(5, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    for upper in (only_y, constant):
        run = DecentralizedBilevel(upper, g, *start, RING, backend="torch", **FAST)
        run.step()
        assert bool(torch.isfinite(states(run)).all())


def test_tolerance_and_callback():
    run = solver(sigma=0.1, refine_steps=40)
    result = run.run(600, 100, tol=0.5)
    assert result.status == "converged"
    assert result.n_iter < 600
    assert result.certificates[0].holds
    assert result.certificates[0].bound == 0.5
    with pytest.warns(ConvergenceWarning, match="did not reach tol=1e-09"):
        assert solver(sigma=0.1).run(5, tol=1e-9).status == "budget"
    seen = []
    stopped = solver(sigma=0.1).run(
        50, 5, callback=lambda one: seen.append(one.iteration) or np.bool_(one.iteration >= 10)
    )
    assert seen == [5, 10]
    assert stopped.status == "stopped"
    assert stopped.n_iter == 10


def test_divergence_is_noticed():
    run = solver(sigma=0.2, gamma_x=1.0)
    with pytest.warns(ConvergenceWarning, match="lower gamma_x"):
        result = run.run(500, 500)
    assert result.status == "diverged"
    assert result.n_iter < 500
    assert not result.certified
    # also where one step leaves the range of numbers
    with pytest.raises(ValueError, match="gamma_x must be smaller: the states are not finite any more in iteration"):
        solver(sigma=1e300).run(5, 5)


def test_runs_go_on():
    whole = solver(noise=0.2, rng=1, sigma=0.2).run(20, 5)
    parts = solver(noise=0.2, rng=1, sigma=0.2)
    parts.run(10, 5)
    state = parts.state_dict()
    other = solver(noise=0.2, rng=99, sigma=0.2)
    other.load_state_dict(state)
    for run in (parts, other):
        result = run.run(10, 5)
        assert np.array_equal(result.x_nodes, whole.x_nodes)
        assert result.history["iteration"].tolist() == [0, 5, 10, 15, 20]
        assert (result.bytes_sent, result.messages_sent) == (whole.bytes_sent, whole.messages_sent)
        assert np.diff(result.history["seconds"]).min() >= 0.0
        assert result.n_gradients == whole.n_gradients
    with pytest.raises(ValueError, match="got no sigma"):
        other.load_state_dict({name: value for name, value in state.items() if name != "sigma"})
    with pytest.raises(ValueError, match="states of state must be ndarray of shape"):
        solver(quadratic_pl_problem(3), nx.path_graph(3)).load_state_dict(state)
    with pytest.raises(ValueError, match="trackers of state"):
        solver(tracking=False).load_state_dict(state)
    with pytest.raises(ValueError, match=r"states of state must be .* got ndarray of shape .* and float32"):
        other.load_state_dict(state | {"states": state["states"].astype(np.float32)})
    for again in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert np.array_equal(again.run(3, 3).x, copy.deepcopy(other).run(3, 3).x)


def test_interrupted_runs_go_on():
    def interrupt(run):
        raise KeyboardInterrupt

    run = solver(sigma=0.2)
    with pytest.raises(KeyboardInterrupt):
        run.run(6, 3, callback=interrupt)
    result = run.run(3, 3)
    assert np.array_equal(result.x, solver(sigma=0.2).run(6, 3).x)
    assert result.history["iteration"].tolist() == [0, 3, 6]
    assert np.diff(result.history["seconds"]).min() >= 0.0


def test_threads_do_not_meet():
    found = {}

    def work(seed):
        found[seed] = solver(noise=0.5, rng=seed % 2, sigma=0.2).run(15, 15).x

    before = np.random.get_state()[1].copy()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(found[1], found[3])
    assert not np.array_equal(found[0], found[1])
    assert np.array_equal(np.random.get_state()[1], before)


def test_arguments_are_not_kept():
    """What callers, losses and reports do to their arrays changes nothing."""
    W, x0 = metropolis_weights(RING), np.zeros(5)
    buffers = np.zeros((4, 5)), np.zeros((4, 12))

    def again(x, y, batch):
        values, grads = PROBLEM.g(x, y, batch)
        for buffer, grad in zip(buffers, grads, strict=True):
            buffer[:] = grad
        x += 1.0
        return values, buffers

    def exact(x):
        value, grad = PROBLEM.F(x)
        x += 1.0
        return value, grad

    run = DecentralizedBilevel(
        PROBLEM.f, BatchedLoss(again, 4), x0, np.zeros(12), W, smoothness=PROBLEM.L, true_hypergradient=exact, **FAST
    )
    W[:], x0[:] = 0.0, 9.0
    plain = DecentralizedBilevel(PROBLEM.f, PROBLEM.g, np.zeros(5), np.zeros(12), RING, smoothness=PROBLEM.L, **FAST)
    assert np.array_equal(run.run(10, 10).x, plain.run(10, 10).x)


def test_defaults_of_torch_do_not_matter():
    f, g = torch_losses(quadratic_pl_problem(2))
    start = torch.zeros(5, dtype=torch.float64, requires_grad=True), torch.zeros(12, dtype=torch.float64)
    options = {"backend": "torch", "sigma": 0.1, "smoothness": 2.0, "x_bounds": (-1.0, 1.0), **FAST}
    plain = DecentralizedBilevel(f, g, *start, nx.path_graph(2), **options).run(3, 3).x
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float16)
    try:
        with torch.no_grad():
            other = DecentralizedBilevel(f, g, *start, nx.path_graph(2), **options).run(3, 3).x
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.array_equal(plain, other)
    assert torch.equal(torch.get_rng_state(), state)
    y = torch.zeros(12, dtype=torch.float64)
    simple = [lambda x, y, b: (x.sum() - y).square().sum()] * 2
    with torch.device("meta"):
        run = DecentralizedBilevel(simple, simple, start[0], y, nx.path_graph(2), **options)
        assert run.run(2, 2).n_iter == 2
    with torch.inference_mode(), pytest.raises(RuntimeError, match="f_list cannot be differentiated within"):
        run.step()


def test_results_are_frozen():
    result = solver().run(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.x = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solver().run(0).n_iter == 0
