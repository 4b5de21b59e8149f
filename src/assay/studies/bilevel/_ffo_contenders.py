"""Layers that are compared: each maps a batch of linear terms of a quadratic program to its solutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "CVXPY",
    "FFOCP",
    "FIRST",
    "FORWARD",
    "KKT",
    "OURS",
    "PEER",
    "PROX",
    "THRESHOLD",
    "UNROLLED",
    "Program",
    "make",
]

OURS, FFOCP = "FFOQP", "FFOCP"
FORWARD, THRESHOLD, FIRST = "forward differences", "threshold active set", "first-order inner solver"
CVXPY, PROX, PEER = "cvxpylayers", "proxsuite", "ffolayer"
KKT, UNROLLED = "dense KKT", "unrolled"
#: Import name of the library that a contender calls.
MODULES = {CVXPY: "cvxpylayers", PROX: "proxsuite", PEER: "ffolayer"}


@dataclass(frozen=True, eq=False)
class Program:
    """Matrices and right-hand sides that a batch shares, as float64 tensors; there may be no equations."""

    Q: Any
    G: Any
    h: Any
    A: Any = None
    b: Any = None

    @property
    def n(self) -> int:
        """Number of unknowns."""
        return len(self.Q)


def box_program(n: int) -> Program:
    """Identity, between -1 and 0, and a sum of at most 3."""
    import torch

    eye = torch.eye(n, dtype=torch.float64)
    G = torch.cat([eye, -eye, torch.ones(1, n, dtype=torch.float64)])
    h = torch.cat([torch.zeros(n), torch.ones(n), torch.tensor([3.0])]).double()
    return Program(eye, G, h)


def installed(name: str) -> bool:
    """Whether the library of a contender is there."""
    import importlib.util

    return name not in MODULES or importlib.util.find_spec(MODULES[name]) is not None


def make(name: str, program: Program) -> Callable[..., Any]:
    """A function of linear terms ``(B, n)``, and optionally of other equations ``A, b``."""
    return {
        OURS: _native,
        FORWARD: _native,
        THRESHOLD: _native,
        FIRST: _native,
        FFOCP: _conic,
        CVXPY: _conic,
        PROX: _proximal,
        PEER: _authors,
        KKT: _dense,
        UNROLLED: _unrolled,
    }[name](name, program)


def _native(name: str, program: Program) -> Callable[..., Any]:
    from assay.bilevel import FFOQPLayer

    options = {
        FORWARD: {"difference": "forward"},
        THRESHOLD: {"active": "threshold", "polish": False},
        FIRST: {"inner": "first_order"},
    }
    layer = FFOQPLayer(**options.get(name, {}))

    def solve(q: Any, A: Any = None, b: Any = None) -> Any:
        A, b = (program.A, program.b) if A is None else (A, b)
        return layer(program.Q, q, program.G, program.h, A, b)

    solve.layer = layer  # type: ignore[attr-defined]
    return solve


def _conic(name: str, program: Program) -> Callable[..., Any]:
    import cvxpy as cp

    y, q = cp.Variable(program.n), cp.Parameter(program.n)
    root = np.linalg.cholesky(program.Q.numpy()).T
    constraints = [program.G.numpy() @ y <= program.h.numpy()]
    if program.A is not None:
        constraints.append(program.A.numpy() @ y == program.b.numpy())
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(root @ y) + q @ y), constraints)
    if name == FFOCP:
        from assay.bilevel import FFOLayer

        layer: Any = FFOLayer(problem, [q], [y])
    else:
        from cvxpylayers.torch import CvxpyLayer

        layer = CvxpyLayer(problem, parameters=[q], variables=[y])

    def solve(q: Any) -> Any:
        return layer(q)[0]

    solve.layer = layer  # type: ignore[attr-defined]
    return solve


def _proximal(name: str, program: Program) -> Callable[..., Any]:
    import torch
    from proxsuite.torch.qplayer import QPFunction

    layer = QPFunction()
    lower = torch.full_like(program.h, -1e20)
    nothing = torch.empty(0, dtype=torch.float64)

    def solve(q: Any, A: Any = None, b: Any = None) -> Any:
        A, b = (program.A, program.b) if A is None else (A, b)
        if A is None:
            A = b = nothing
        return layer(program.Q, q, A, b, program.G, lower, program.h)[0]

    return solve


def _authors(name: str, program: Program) -> Callable[..., Any]:
    import torch

    precision = torch.get_float32_matmul_precision()
    import ffolayer

    torch.set_float32_matmul_precision(precision)  # which its import lowers for everybody
    # With its default of 1e-8 it misses nearly every active row at the tolerance of its own solver, 1e-5.
    layer = ffolayer.FFOQPLayer(solver="OSQP_NATIVE", slack_cutoff=1e-4)
    nothing = torch.empty(0, dtype=torch.float64)

    def solve(q: Any, A: Any = None, b: Any = None) -> Any:
        A, b = (program.A, program.b) if A is None else (A, b)
        if A is None:
            A = b = nothing
        return layer(program.Q, q, program.G, program.h, A, b)

    return solve


def kkt_gradient(
    Q: np.ndarray, G: np.ndarray, h: np.ndarray, A: np.ndarray, point: np.ndarray, lam: np.ndarray, upstream: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three parts of the adjoint of all optimality conditions, as qpth computes them."""
    n, m, p = point.size, lam.size, len(A)
    matrix = np.zeros((n + m + p, n + m + p))
    matrix[:n, :n], matrix[:n, n : n + m], matrix[:n, n + m :] = Q, G.T * lam, A.T
    matrix[n : n + m, :n], matrix[n + m :, :n] = G, A
    matrix[np.arange(n, n + m), np.arange(n, n + m)] = np.minimum(G @ point - h, -1e-12)
    right = np.zeros(n + m + p)
    right[:n] = -upstream
    found = np.linalg.solve(matrix, right)
    return found[:n], lam * found[n : n + m], found[n + m :]


def _dense(name: str, program: Program) -> Callable[..., Any]:
    import torch

    from assay.bilevel.qp_solvers import QPSolver

    class Dense(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, A: Any, b: Any) -> Any:
            data = [part.detach().numpy() for part in (program.Q, program.G, program.h, A, b)]
            solver = QPSolver.of("clarabel", {}, data[0], data[1], data[3])
            ctx.data = data
            ctx.found = [solver.solve(row, data[2], data[4], k) for k, row in enumerate(q.detach().numpy())]
            return torch.from_numpy(np.stack([one.point for one in ctx.found]))

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            Q, G, h, A, b = ctx.data
            by_q, by_A, by_b = np.zeros(upstream.shape), np.zeros(A.shape), np.zeros(b.shape)
            for k, (one, row) in enumerate(zip(ctx.found, upstream.numpy(), strict=True)):
                step, _, moved = kkt_gradient(Q, G, h, A, one.point, one.multipliers, row)
                by_q[k] = step
                by_A += np.outer(one.equality_multipliers, step) + np.outer(moved, one.point)
                by_b -= moved
            return tuple(torch.from_numpy(part) for part in (by_q, by_A, by_b))

    nothing = torch.zeros(0, program.n, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)

    def solve(q: Any, A: Any = None, b: Any = None) -> Any:
        A, b = (program.A, program.b) if A is None else (A, b)
        return Dense.apply(q, *(nothing if A is None else (A, b)))

    return solve


def _unrolled(name: str, program: Program, steps: int = 200) -> Callable[..., Any]:
    """Projected gradient on the dual, differentiated step by step."""
    import torch

    rows = program.G if program.A is None else torch.cat([program.G, program.A])
    sides = program.h if program.A is None else torch.cat([program.h, program.b])
    inverse = torch.linalg.inv(program.Q)
    lower = torch.full_like(sides, -torch.inf)
    lower[: len(program.h)] = 0.0
    size = 1.0 / float(torch.linalg.matrix_norm(rows @ inverse @ rows.T, 2))

    def solve(q: Any) -> Any:
        dual = torch.zeros(len(q), len(sides), dtype=torch.float64)
        point = -q @ inverse
        for _ in range(steps):
            dual = torch.maximum(dual + size * (point @ rows.T - sides), lower)
            point = -(q + dual @ rows) @ inverse
        return point

    return solve
