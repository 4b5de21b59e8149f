"""How exact gradients are: order in delta, active sets, iterations of the inner solver, descent on hypergradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.lab import Measurement
from assay.studies.bilevel._ffo_contenders import FORWARD, Program, kkt_gradient, make

__all__ = ["measure_active_sets", "measure_descent", "measure_gradient", "measure_iterations", "measure_order"]


def random_program(rng: np.random.Generator, n: int = 20, m: int = 30, p: int = 5) -> tuple[Any, ...]:
    """A feasible strongly convex program as tensors (Q, q, G, h, A, b)."""
    import torch

    root, point = rng.normal(size=(n, n)), rng.normal(size=n)
    G, A = rng.normal(size=(m, n)), rng.normal(size=(p, n))
    parts = (root @ root.T / n + np.eye(n), 3 * rng.normal(size=n), G, G @ point + rng.random(m), A, A @ point)
    return tuple(torch.as_tensor(part) for part in parts)


def measure_order(measurement: Measurement, contender: str, rng: np.random.Generator) -> None:
    """Slope of the error of gradients against delta."""
    import torch

    from assay.bilevel import FFOQPLayer

    difference = "forward" if contender == FORWARD else "central"
    deltas = np.array([0.04, 0.02, 0.01, 0.005])
    data = [part.requires_grad_() for part in random_program(rng)]
    upstream = torch.as_tensor(rng.normal(size=20))
    layer = FFOQPLayer()
    exact = torch.autograd.grad(layer(*data), data[0], upstream)[0]
    errors = []
    for delta in deltas:
        layer = FFOQPLayer(alpha=1.0 / delta, difference=difference)
        errors.append(float((torch.autograd.grad(layer(*data), data[0], upstream)[0] - exact).norm()))
    _add_order(measurement, "Q of a program", difference, deltas, np.array(errors))
    _ball_orders(measurement, difference, deltas)


def _ball_orders(measurement: Measurement, difference: str, deltas: np.ndarray) -> None:
    """Projection on a ball: by the point, and by the radius."""
    import cvxpy as cp
    import torch

    from assay.bilevel import FFOLayer

    x, r, y = cp.Parameter(3), cp.Parameter(nonneg=True), cp.Variable(3)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y - x)), [cp.norm(y) <= r])
    point, upstream = np.array([1.5, -0.7, 0.4]), np.array([0.3, 1.0, -0.5])
    length = np.linalg.norm(point)
    unit = point / length
    exact = (upstream - unit * (unit @ upstream)) / length, unit @ upstream
    errors: dict[str, list[float]] = {"point to a ball": [], "radius of a ball": []}
    for delta in deltas:
        layer = FFOLayer(problem, [x, r], [y], alpha=1.0 / delta, difference=difference)
        leaves = [torch.tensor(point, requires_grad=True), torch.tensor(1.0, dtype=torch.float64, requires_grad=True)]
        found = torch.autograd.grad(layer(*leaves)[0], leaves, torch.as_tensor(upstream))
        for name, one, other in zip(errors, found, exact, strict=True):
            errors[name].append(float(np.linalg.norm(one.numpy() - other)))
    for name, column in errors.items():
        _add_order(measurement, name, difference, deltas, np.array(column))


def _add_order(measurement: Measurement, case: str, difference: str, deltas: np.ndarray, errors: np.ndarray) -> None:
    promised = 1.0 if difference == "forward" else 2.0
    floor = errors.max() < 1e-10
    slope = promised if floor else float(np.polyfit(np.log(deltas), np.log(np.maximum(errors, 1e-300)), 1)[0])
    measurement.add("order_deviation", abs(slope - promised), case=case)
    measurement.add("error_at_delta_0.01", errors[2], case=case)
    measurement.add_curve(
        "error of a gradient", deltas, errors, case=case, x_label="delta", y_label="error", x_log=True, y_log=True
    )


def measure_gradient(measurement: Measurement, contender: str, rng: np.random.Generator) -> None:
    """Relative error of the gradient by the linear term, against the dense system at a solution of high accuracy."""
    import torch

    from assay.bilevel.qp_solvers import QPSolver

    errors = []
    for _ in range(5):
        Q, q, G, h, A, b = random_program(rng)
        upstream = rng.normal(size=20)
        tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13)
        data = [part.numpy() for part in (Q, q, G, h, A, b)]
        found = QPSolver.of("clarabel", tight, data[0], data[2], data[4]).solve(data[1], data[3], data[5], 0)
        exact = kkt_gradient(data[0], data[2], data[3], data[4], found.point, found.multipliers, upstream)[0]
        leaf = q[None].clone().requires_grad_()
        solved = make(contender, Program(Q, G, h, A, b))(leaf)
        (slope,) = torch.autograd.grad(solved, leaf, torch.as_tensor(upstream)[None])
        errors.append(float(np.linalg.norm(slope[0].numpy() - exact) / np.linalg.norm(exact)))
    measurement.add("gradient_error", float(np.median(errors)), case="random programs")
    measurement.add("worst_gradient_error", max(errors), case="random programs")


def measure_active_sets(measurement: Measurement, contender: str, count: int, rng: np.random.Generator) -> None:
    """Share of random programs whose active rows are not those of a solution of high accuracy."""
    from assay.bilevel import FFOQPLayer

    tight = {"solver_args": dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13)}
    rule = {"active": "threshold", "polish": False} if contender != "FFOQP" else {}
    wrong = 0
    for _ in range(count):
        data = random_program(rng)
        sets = []
        for options in (rule, tight):
            layer = FFOQPLayer(**options)
            layer(*data)
            sets.append(layer._last_call.solutions.active[0].tolist())
        wrong += sets[0] != sets[1]
    measurement.add("wrong_active_sets", wrong / count, case="random programs")


def measure_iterations(measurement: Measurement, sizes: tuple[int, ...], rng: np.random.Generator) -> None:
    """Iterations of the first-order inner solver against digits, with condition number 100."""
    import torch

    from assay.bilevel import FFOQPLayer, certificate

    digits = np.arange(2, 11)
    slopes = []
    for n in sizes:
        turn = np.linalg.qr(rng.normal(size=(n, n)))[0]
        Q = torch.as_tensor(turn * np.geomspace(0.01, 1.0, n) @ turn.T)
        G, q = torch.as_tensor(rng.normal(size=(n, n))), torch.as_tensor(rng.normal(size=n))
        h = torch.as_tensor(rng.random(n))
        upstream = torch.as_tensor(rng.normal(size=n))
        counts = []
        for digit in digits:
            layer = FFOQPLayer(inner="first_order", tol=10.0 ** -float(digit))
            layer(Q, q.clone().requires_grad_(), G, h).backward(upstream)
            counts.append(int(certificate(layer).iterations[0]))
        slope, start = np.polyfit(digits, counts, 1)
        residual = np.array(counts) - slope * digits - start
        slopes.append(slope)
        measurement.add("fit_of_iterations", 1.0 - residual.var() / np.var(counts), case=f"n={n}")
        measurement.add("iterations_per_digit", slope, case=f"n={n}")
        measurement.add_curve(
            "inner iterations", digits, counts, case=f"n={n}", x_label="digits of the tolerance", y_label="iterations"
        )
    measurement.add("spread_of_slopes", max(slopes) / min(slopes))


def measure_descent(
    measurement: Measurement, eps: tuple[float, ...], deltas: tuple[float, ...], rng: np.random.Generator
) -> None:
    """Goldstein descent on half a squared distance of a projection, with hypergradients by the layer."""
    import torch

    from assay.bilevel import FFOQPLayer, goldstein_descent

    fixed = np.random.default_rng(0)
    B, t = fixed.normal(size=(20, 5)), fixed.normal(size=20)
    eye = torch.eye(20, dtype=torch.float64)
    G, h = torch.cat([eye, -eye]), torch.ones(40, dtype=torch.float64)
    matrix, target = torch.as_tensor(B), torch.as_tensor(t)
    layer, x0 = FFOQPLayer(), 2 * np.ones(5)

    def oracle(x: Any) -> Any:
        point = torch.tensor(x, requires_grad=True)
        value = 0.5 * (layer(eye, -matrix @ point, G, h) - target).square().sum() + 0.01 * point.square().sum()
        return torch.autograd.grad(value, point)[0].numpy()

    gap = float(0.5 * ((np.clip(B @ x0, -1, 1) - t) ** 2).sum() + 0.01 * x0 @ x0)
    for delta in deltas:
        used = []
        for tolerance in eps:
            found = goldstein_descent(oracle, x0, delta, tolerance, 13.6, gap, rng=rng)
            case = f"delta={delta:g}, eps={tolerance:g}"
            measurement.add("stationarity_over_eps", found.stationarity / tolerance, case=case)
            measurement.add("calls_over_budget", found.n_calls / found.call_budget, case=case)
            measurement.add("calls", found.n_calls, case=case)
            measurement.certify(found.certificates, case=case)
            used.append(found.n_calls)
        if len(eps) > 1:
            measurement.add("slope_of_calls", np.polyfit(np.log(eps), np.log(used), 1)[0], case=f"delta={delta:g}")
