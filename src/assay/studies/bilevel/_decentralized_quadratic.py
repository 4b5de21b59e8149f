"""Problems with a closed form: bias of the penalty, consensus, regularisation, Hessian products, and costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave

__all__ = [
    "graph_of",
    "measure_convergence",
    "measure_costs",
    "measure_first_order",
    "measure_hessian_method",
    "measure_local",
    "measure_nonconvex",
    "measure_stationary_point",
]

SIGMA, RHO_SIGMAS = 0.05, (0.05, 0.01)


def graph_of(kind: str, n_nodes: int, seed: int = 0) -> Any:
    """A connected networkx graph of one of four kinds."""
    import networkx as nx

    if kind == "ring":
        return nx.cycle_graph(n_nodes)
    if kind == "complete":
        return nx.complete_graph(n_nodes)
    if kind == "grid":
        rows = int(math.sqrt(n_nodes))
        while n_nodes % rows:
            rows -= 1
        return nx.grid_2d_graph(rows, n_nodes // rows)
    while True:  # Erdos-Renyi
        graph = nx.gnp_random_graph(n_nodes, 0.5, seed=seed)
        if nx.is_connected(graph):
            return graph
        seed += 1


def measure_convergence(
    measurement: Measurement, n_iter: int, sigmas: dict[float, int], graphs: tuple[tuple[str, int], ...], **options: Any
) -> None:
    """Runs without noise: what is left of the hypergradient, and how far apart the nodes are."""
    from assay.bilevel import DecentralizedBilevel, bias_law, nonconvex_pl_problem, quadratic_pl_problem

    centralised = options.pop("centralised", False)
    found = {}
    for sigma, iterations in sigmas.items():
        problem = quadratic_pl_problem(8)
        W = np.full((8, 8), 1 / 8) if centralised else graph_of("ring", 8)
        result = DecentralizedBilevel.from_problem(problem, W, sigma=sigma, **options).run(iterations)
        case = f"ring 8, sigma={sigma:g}"
        found[sigma] = result.stationarity
        measurement.add("gradient_square", result.stationarity, case=case)
        measurement.add("excess_value", problem.F(result.x)[0] - problem.F(problem.x_star)[0], case=case)
        measurement.add("consensus_x", result.consensus["x"], case=case)
        measurement.certify(result.certificates, case=case)
        for name, label in (("true_stationarity", "squared hypergradient"), ("consensus_x", "disagreement on x")):
            measurement.add_curve(
                label, result.history["iteration"], result.history[name], case=case, y_label=label, y_log=True
            )
    if len(found) > 1:
        measurement.add("bias_slope", bias_law(list(found), list(found.values()))[1])
    for kind, n_nodes in graphs:
        for name, make, sigma in (("", quadratic_pl_problem, SIGMA), ("not convex, ", nonconvex_pl_problem, 0.1)):
            W = np.full((n_nodes, n_nodes), 1 / n_nodes) if centralised else graph_of(kind, n_nodes)
            result = DecentralizedBilevel.from_problem(make(n_nodes), W, sigma=sigma, **options).run(n_iter)
            case = f"{name}{kind} {n_nodes}"
            measurement.add("gradient_square", result.stationarity, case=case)
            measurement.add("consensus_x", result.consensus["x"], case=case)
            measurement.add("spectral_gap", result.spectral_gap, case=case)


def measure_local(measurement: Measurement, n_iter: int) -> None:
    """Every node by itself, on its own losses; the exact hypergradient at the mean of what they find."""
    from assay.bilevel import DecentralizedBilevel, quadratic_pl_problem

    problem = quadratic_pl_problem(8)
    dx, dy = problem.shape
    found = np.array(
        [
            DecentralizedBilevel(
                [upper], [lower], np.zeros(dx), np.zeros(dy), [[1.0]], sigma=SIGMA, smoothness=2.0 * problem.L,
                refine_steps=0,
            ).run(n_iter, n_iter).x
            for upper, lower in zip(problem.f_list, problem.g_list, strict=True)
        ]
    )  # fmt: skip
    case = f"ring 8, sigma={SIGMA:g}"
    measurement.add("gradient_square", float((problem.F(found.mean(axis=0))[1] ** 2).sum()), case=case)
    measurement.add("consensus_x", float(((found - found.mean(axis=0)) ** 2).sum(axis=1).mean()), case=case)


def measure_stationary_point(measurement: Measurement, rho: float) -> None:
    """The squared exact hypergradient where the penalised, regularised problem is stationary, by linear algebra."""
    from assay.bilevel import quadratic_pl_problem

    problem = quadratic_pl_problem(8)
    (dx, dy), target = problem.shape, problem.targets.mean(axis=0)
    H, C = problem.lower_map + rho * np.eye(problem.shape[1]), problem.upper_map
    for sigma in RHO_SIGMAS:
        # y and z are affine in x, and so is the hypergradient.
        at_y = np.linalg.solve(sigma * np.eye(dy) + H, np.column_stack([sigma * target, C]))
        at_z = np.column_stack([np.zeros(dy), np.linalg.pinv(H, rcond=1e-10) @ C])
        slope = C.T @ (at_z - at_y) / sigma
        x = np.linalg.solve(slope[:, 1:] + 0.1 * np.eye(dx), -slope[:, 0])
        measurement.add("stationary_point_square", float((problem.F(x)[1] ** 2).sum()), case=f"sigma={sigma:g}")


def measure_nonconvex(measurement: Measurement, sigmas: dict[float, int], **options: Any) -> None:
    """The lower loss that is not convex, from a start where it is not."""
    from assay.bilevel import DecentralizedBilevel, nonconvex_pl_problem

    problem = nonconvex_pl_problem(8)
    for sigma, n_iter in sigmas.items():
        solver = DecentralizedBilevel.from_problem(
            problem, graph_of("ring", 8), sigma=sigma, y0=np.full(problem.shape[1], 3.0), **options
        )
        curvatures = []

        def watch(run: Any, curvatures: list = curvatures) -> None:
            dx, dy = problem.shape
            states = run.state_dict()["states"].mean(axis=0)
            off = problem.lower_map @ states[dx + dy :] - problem.upper_map @ states[:dx]
            curvatures.append((2.0 + 6.0 * np.cos(2.0 * off)).min())

        # The way through the region that is not convex is short.
        solver.run(min(400, n_iter), 1, callback=watch)
        result = solver.run(max(0, n_iter - 400), 100, callback=watch)
        case = f"not convex, sigma={sigma:g}"
        measurement.add("gradient_square", result.stationarity, case=case)
        measurement.add("excess_value", problem.F(result.x)[0] - problem.F(problem.x_star)[0], case=case)
        measurement.add("least_curvature", min(curvatures), case=case)
        off = problem.lower_map @ result.z - problem.upper_map @ result.x
        measurement.add("lower_residual", float(np.abs(off).max()), case=case)
        measurement.certify(result.certificates, case=case)


def hessian_descent(
    upper: Callable[..., tuple],
    lower: Callable[..., tuple],
    x: np.ndarray,
    y: np.ndarray,
    W: np.ndarray,
    n_iter: int,
    gamma_x: float,
    gamma_y: float,
    *,
    length: float = 1.0,
    rounds: int = 5,
    damping: float = 0.0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    batches: Callable[[], Any] = lambda: None,
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Implicit differentiation on a network: at every iteration 5 steps of conjugate gradients with products of the
    lower Hessian, each averaged by ``rounds`` of gossip, and tracked gradients for ``x`` and ``y``.

    A product is a difference of two gradients, exact if the loss is quadratic. Returns the states of the nodes, and how
    many products and floating-point numbers (per link and direction) it took.
    """
    products = numbers = 0

    def gossip(rows: np.ndarray) -> np.ndarray:
        nonlocal numbers
        numbers += rounds * rows.shape[1]
        for _ in range(rounds):
            rows = W @ rows
        return rows

    def gradients(batch: Any) -> tuple[np.ndarray, np.ndarray]:
        nonlocal products
        up, base = upper(x, y, batch)[1], lower(x, y, batch)[1]
        solution, residual = np.zeros_like(y), gossip(up[1])
        direction = residual
        first = squared = (residual**2).sum(axis=1, keepdims=True)
        for _ in range(5):
            size = length / np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-30)
            product = gossip((lower(x, y + size * direction, batch)[1][1] - base[1]) / size) + damping * direction
            products += 1
            curvature = (direction * product).sum(axis=1, keepdims=True)
            # A node is done where the rest is rounding, or no curvature is left.
            going = (squared > 1e-20 * first) & (curvature > 1e-10 * (direction**2).sum(axis=1, keepdims=True))
            step = np.where(going, squared, 0.0) / np.where(going, curvature, 1.0)
            solution = solution + step * direction
            residual = residual - step * product
            before, squared = squared, (residual**2).sum(axis=1, keepdims=True)
            direction = residual + squared / np.where(before > 0.0, before, 1.0) * direction
        size = length / np.maximum(np.linalg.norm(solution, axis=1, keepdims=True), 1e-30)
        crossed = (lower(x, y + size * solution, batch)[1][0] - base[0]) / size
        products += 1
        return up[0] - crossed, base[1]

    old = gradients(batches())
    trackers = list(old)
    for _ in range(n_iter):
        x = np.clip(W @ x - gamma_x * trackers[0], *bounds)
        y = W @ y - gamma_y * trackers[1]
        new = gradients(batches())
        trackers = [W @ tracker + after - before for tracker, after, before in zip(trackers, new, old, strict=True)]
        old = new
        numbers += 2 * (x.shape[1] + y.shape[1])
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            break
    return x, y, {"products": products, "numbers": numbers}


def measure_hessian_method(measurement: Measurement, n_iter: int) -> None:
    """The method with Hessian products on the quadratic problem, best of three dampings of the singular Hessian."""
    from assay.bilevel import metropolis_weights, quadratic_pl_problem

    problem = quadratic_pl_problem(8)
    W = metropolis_weights(graph_of("ring", 8))
    dx, dy = problem.shape
    case = f"ring 8, sigma={SIGMA:g}"
    squares = []
    for damping in (0.01, 0.03, 0.1):
        with np.errstate(all="ignore"):  # with too little damping it overflows
            x, _, cost = hessian_descent(
                problem.f, problem.g, np.zeros((8, dx)), np.zeros((8, dy)), W, n_iter, 0.01, 0.15 / problem.L,
                rounds=20, damping=damping,
            )  # fmt: skip
        mean = x.mean(axis=0)
        squares.append(float((problem.F(mean)[1] ** 2).sum()) if np.isfinite(mean).all() else math.inf)
        measurement.add("gradient_square", squares[-1], case=f"{case}, damping {damping:g}")
    measurement.add("gradient_square", min(squares), case=case)
    measurement.add("hessian_products", cost["products"], case=case)
    measurement.add("numbers_per_link_and_iteration", cost["numbers"] / n_iter, case=case)


def measure_first_order(measurement: Measurement) -> None:
    """Backward passes that keep a graph, without which no second derivative can be taken."""
    import torch

    from assay.bilevel import BatchedLoss, DecentralizedBilevel

    seen = 0

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            nonlocal seen
            seen += torch.is_grad_enabled()
            return gradient

    A = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def lower(x: torch.Tensor, y: torch.Tensor, batch: Any) -> torch.Tensor:
        residual = torch.bmm(A, Probe.apply(y)[:, :, None])[:, :, 0] - Probe.apply(x).sum(dim=1, keepdim=True)
        return 0.5 * residual.square().sum(dim=1)

    def upper(x: torch.Tensor, y: torch.Tensor, batch: Any) -> torch.Tensor:
        return 0.5 * (Probe.apply(y) - 1.0).square().sum(dim=1) + 0.05 * Probe.apply(x).square().sum(dim=1)

    start = torch.zeros(2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    losses = BatchedLoss(upper, 4), BatchedLoss(lower, 4)
    DecentralizedBilevel(*losses, *start, graph_of("ring", 4), backend="torch", refine_steps=5).run(20)
    measurement.add("hessian_products", seen, case="torch, 4 nodes")


def measure_costs(measurement: Measurement, repeats: int, sizes: tuple[int, ...]) -> None:
    """Batched against looped nodes; messages and memory; time against the number of nodes."""
    from assay.bilevel import DecentralizedBilevel, quadratic_pl_problem

    def steps(solver: DecentralizedBilevel) -> Callable[[], None]:
        def several() -> None:
            for _ in range(20):
                solver.step()

        return several

    problem = quadratic_pl_problem(16)
    dx, dy = problem.shape
    start = np.zeros(dx), np.zeros(dy)
    looped = DecentralizedBilevel(problem.f_list, problem.g_list, *start, graph_of("ring", 16), smoothness=problem.L)
    batched = DecentralizedBilevel.from_problem(problem, graph_of("ring", 16))
    timings = interleave({"looped": steps(looped), "batched": steps(batched)}, repeats=repeats)
    measurement.add("loop_speedup", timings.ratio("looped", "batched").median)
    links = 2 * graph_of("ring", 16).number_of_edges()
    sent = batched.state_dict()["bytes_sent"] / 8 / links / batched.iteration
    measurement.add("numbers_per_link_and_iteration", sent, case="ring 16")
    measurement.add("message_off", abs(sent - 2 * (dx + 2 * dy)))
    state = batched.state_dict()
    held = sum(state[name].size for name in ("states", "estimators", "trackers"))
    measurement.add("vectors_per_node", 3 * held / 16 / (dx + 2 * dy))
    if len(sizes) > 1:
        solvers = {
            str(n): steps(DecentralizedBilevel.from_problem(quadratic_pl_problem(n, n=10), graph_of("ring", n)))
            for n in sizes
        }
        timings = interleave(solvers, repeats=repeats)
        seconds = [timings.median(str(n)) for n in sizes]
        measurement.add("time_exponent", float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]))
