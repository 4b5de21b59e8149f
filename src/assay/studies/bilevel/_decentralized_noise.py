"""Noisy gradients: the floor of the squared hypergradient and its theory, and iterations to a level."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.lab import Measurement
from assay.studies.bilevel._decentralized_quadratic import SIGMA, graph_of

__all__ = ["decentralised_squares", "expected_noise_floor", "measure_noise_floor", "measure_reach", "two_timescales"]

NOISE = 0.5
LEVEL = 1e-2


def measure_noise_floor(
    measurement: Measurement, n_iter: int, sizes: tuple[int, ...], seed: int, estimator: str = "momentum"
) -> None:
    """Mean squared hypergradient above that of the same run without noise, on identical nodes on a ring.

    All is linear here: in expectation the excess is the mean square of the difference of the two hypergradients, which
    needs fewer iterations to be known than the difference of their squares.
    """
    from assay.bilevel import quadratic_pl_problem

    found = []
    for n_nodes in sizes:
        problem = quadratic_pl_problem(n_nodes, heterogeneous=False)
        noisy, free = (_slopes(problem, n_iter, noise, seed, estimator) for noise in (NOISE, 0.0))
        squares = ((noisy - free) ** 2).sum(axis=1)
        found.append(float(squares[len(squares) // 3 :].mean()) * n_nodes)
        measurement.add("excess_times_nodes", found[-1], case=f"{n_nodes} nodes")
    if estimator == "momentum":
        measurement.add("excess_over_theory", float(np.mean(found)) / expected_noise_floor(problem, SIGMA, NOISE))
    if len(sizes) > 1:
        measurement.add("excess_spread", max(found) / min(found))
        measurement.add_curve(
            "noise floor", sizes, np.array(found) / sizes, x_label="nodes", y_label="excess", x_log=True, y_log=True
        )


def _slopes(problem: Any, n_iter: int, noise: float, seed: int, estimator: str) -> np.ndarray:
    """Hypergradients at the mean of the nodes, every 5 iterations from the best point on."""
    from assay.bilevel import DecentralizedBilevel

    solver = DecentralizedBilevel.from_problem(
        problem, graph_of("ring", problem.n_nodes), sigma=SIGMA, noise=noise, estimator=estimator,
        rng=np.random.default_rng([seed, problem.n_nodes]),  # the mean of 16 nodes is not that of 2 of the same stream
        x0=problem.x_star, y0=problem.lower_solution(problem.x_star),
    )  # fmt: skip
    slopes = []
    for done in range(n_iter):
        solver.step()
        if done % 5 == 0:
            slopes.append(problem.F(solver.x_nodes.mean(axis=0))[1])
    return np.array(slopes)


def expected_noise_floor(problem: Any, sigma: float, noise: float, *, eta: float = 0.3, a: float = 3.0) -> float:
    """The floor of the excess times the number of nodes, from the stationary covariance of the linear iteration.

    With momentum and equal nodes the mean of their states follows ``s - eta Gamma u`` and that of their estimators
    ``(1 - a eta) u + a eta (M s + noise)``, whatever the graph; variances fall with the number of nodes.
    """
    import scipy.linalg

    (dx, dy), alone = problem.shape, problem.g_list[0]
    blocks = x, y, z = slice(0, dx), slice(dx, dx + dy), slice(dx + dy, dx + 2 * dy)
    basis = np.eye(dx + dy)
    second = np.array([np.concatenate(alone(row[:dx], row[dx:], None)[1]) for row in basis])
    size = dx + 2 * dy
    M, covariance = np.zeros((size, size)), np.eye(size)
    M[x, x], M[x, y], M[x, z] = 0.1 * np.eye(dx), second[:dx, dx:] / sigma, -second[:dx, dx:] / sigma
    for block in (y, z):
        M[block, x], M[block, block] = second[dx:, :dx], second[dx:, dx:]
    M[y, y] += sigma * np.eye(dy)
    # Noise of the lower gradients is the same for y and z, and gone from the difference for x.
    covariance[y, y] *= 1.0 + sigma**2
    covariance[y, z] = covariance[z, y] = np.eye(dy)
    gammas = (0.2 * sigma / max(problem.L, 1.0), 0.5 / problem.L, 0.5 / problem.L)
    move = -eta * np.diag(np.concatenate([np.full(b.stop - b.start, g) for b, g in zip(blocks, gammas, strict=True)]))
    step = np.block([[np.eye(size), move], [a * eta * M, (1.0 - a * eta) * np.eye(size) + a * eta * M @ move]])
    drive = np.zeros((2 * size, 2 * size))
    drive[size:, size:] = (a * eta * noise) ** 2 * covariance
    # z drifts along the flat directions of the lower loss, which nothing depends on: they are left out.
    flat = np.concatenate([np.zeros((dx + dy, dy)), problem.kernel])
    seen = scipy.linalg.null_space(scipy.linalg.block_diag(flat, flat).T)
    stationary = seen @ scipy.linalg.solve_discrete_lyapunov(seen.T @ step @ seen, seen.T @ drive @ seen) @ seen.T
    curvature = problem.jacobian.T @ problem.jacobian + 0.1 * np.eye(dx)
    return float(np.trace(curvature @ stationary[x, x] @ curvature.T))


def measure_reach(measurement: Measurement, run: Callable[[float], np.ndarray], grid: tuple[float, ...]) -> None:
    """Iterations until the mean of the last 100 squared hypergradients is at most the level, with the best of a grid.

    ``run`` returns the squared hypergradients of every 10th iteration; a run that does not get there counts as long as
    it was.
    """
    reached = []
    for setting in grid:
        squares = np.convolve(run(setting), np.full(10, 0.1), mode="valid")
        there = np.flatnonzero(squares <= LEVEL)
        reached.append(10 * (there[0] + 10) if there.size else math.inf)
        measurement.add("iterations_to_level", reached[-1], case=f"setting {setting:g}")
    measurement.add("iterations_to_level", min(reached), case="best")


def decentralised_squares(step_size: float, n_iter: int, seed: int) -> np.ndarray:
    """Squared hypergradients of our method with noise."""
    from assay.bilevel import DecentralizedBilevel, quadratic_pl_problem

    problem = quadratic_pl_problem(8)
    solver = DecentralizedBilevel.from_problem(
        problem, graph_of("ring", 8), sigma=SIGMA, eta=step_size, noise=NOISE, rng=seed, refine_steps=0
    )
    return solver.run(n_iter, 10).history["true_stationarity"][1:]


def two_timescales(factor: float, n_iter: int, seed: int) -> np.ndarray:
    """Squared hypergradients of a single-agent penalty method whose steps and penalty parameter fall.

    Its scales start at those of our method with a penalty parameter of 1/2, times ``factor``, and are capped where ours
    are stable.
    """
    from assay.bilevel import quadratic_pl_problem

    problem = quadratic_pl_problem(8)
    rng = np.random.default_rng(seed)
    dx, dy = problem.shape
    x, y, z = np.zeros(dx), np.zeros(dy), np.zeros(dy)
    squares = []
    for t in range(1, n_iter + 1):
        sigma = 0.5 * t**-0.25
        gamma_y = min(1.0, factor * t**-0.5) * 0.5 / problem.L
        gamma_x = min(0.2 * sigma / problem.L, factor * 0.1 / problem.L * t**-0.75)
        noise = problem.noise(NOISE, rng)
        rows = [np.tile(part, (problem.n_nodes, 1)) for part in (x, y, z)]
        upper = problem.f(rows[0], rows[1], noise)[1]
        at_y, at_z = (problem.g(rows[0], rows[k], noise)[1] for k in (1, 2))
        x = x - gamma_x * (upper[0] + (at_y[0] - at_z[0]) / sigma).mean(axis=0)
        y = y - gamma_y * (sigma * upper[1] + at_y[1]).mean(axis=0)
        z = z - gamma_y * at_z[1].mean(axis=0)
        if t % 10 == 0:
            squares.append(float((problem.F(x)[1] ** 2).sum()))
    return np.array(squares)
