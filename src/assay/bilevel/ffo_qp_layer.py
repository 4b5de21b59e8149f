r"""A quadratic program as a layer, differentiated without a factor of its optimality system.

For :math:`\min \frac12 y'Qy + q'y` subject to :math:`Gy \le h`, :math:`Ay = b` the ghost problem is a quadratic
program with the active rows as equations. One factor of ``Q``, which a batch shares, and one of a matrix of the size
of the active set give the move of its minimiser; the gradients by all data are products of that move, its multipliers
and the solution.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.bilevel.ffo_cones import ActiveRule
from assay.bilevel.ffo_layer import active_rule, check_flag
from assay.bilevel.qp_ghost import EqualitySystem, QuadraticForm, SingleRows, first_order_move
from assay.bilevel.qp_solvers import QPSolution, QPSolver
from assay.validation import check_choice, check_integer, check_real, warn_not_converged

__all__ = ["FFOQPLayer"]

_NAMES = ("Q", "q", "G", "h", "A", "b")
_DIMS = (2, 1, 2, 1, 2, 1)
_LARGEST_DENSE = 300
_POLISHED = 1e-9


@dataclass(frozen=True)
class _Options:
    """What the constructor was given."""

    delta: float
    eps: float
    rule: ActiveRule
    polish: bool
    inner: str
    central: bool
    solver: str | Callable[..., Any]
    solver_args: Mapping[str, Any]
    tol: float
    max_iter: int


class _Batch:
    """Data of a batch; matrices without a batch dimension are kept once."""

    def __init__(self, arrays: list[Float[ndarray, "..."]], size: int):
        self.arrays, self.size = arrays, size
        self.shared = [array.ndim == dims for array, dims in zip(arrays, _DIMS, strict=True)]
        self._kept: dict[tuple[str, int], Any] = {}

    def at(self, index: int) -> tuple[Float[ndarray, "..."], ...]:
        """Data of one instance."""
        return tuple(
            array if shared else array[index] for array, shared in zip(self.arrays, self.shared, strict=True)
        )

    def once(self, what: str, positions: tuple[int, ...], index: int, make: Callable[[], Any]) -> Any:
        """What depends on some of the data: made once if all of them are shared, otherwise for every instance."""
        key = (what, 0 if all(self.shared[position] for position in positions) else index)
        if key not in self._kept:
            self._kept = {kept: value for kept, value in self._kept.items() if kept[0] != what}
            self._kept[key] = make()
        return self._kept[key]


@dataclass(eq=False)
class _Call:
    """Solutions of a batch, and what the backward pass needs."""

    data: _Batch
    options: _Options
    points: Float[ndarray, "B n"]
    multipliers: Float[ndarray, "B m"]
    equality_multipliers: Float[ndarray, "B p"]
    active: list[Int[ndarray, "..."]]
    systems: list[EqualitySystem | None]
    statuses: tuple[str, ...]
    accurate: Bool[ndarray, "B"]
    polished: Bool[ndarray, "B"]
    capped: Bool[ndarray, "B"]
    iterations: Int[ndarray, "B"]
    upstream: Float[ndarray, "B n"] | None = field(default=None)

    @property
    def delta(self) -> float:
        return self.options.delta

    @property
    def central(self) -> bool:
        return self.options.central

    @property
    def exact_in_delta(self) -> bool:
        return self.central and self.options.inner == "direct"

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.points.shape[0], self.points.shape[1]

    def measured(self) -> dict[str, Float[ndarray, "B"]]:
        columns: dict[str, list[float]] = {"residual": [], "independence": [], "margin": [], "n_active": []}
        for index, (point, lam, nu) in enumerate(
            zip(self.points, self.multipliers, self.equality_multipliers, strict=True)
        ):
            data = self.data.at(index)
            norms = _norms(self.data, index)
            form = _form(self.data, index, self.options.eps)
            columns["residual"].append(_residual(data, form, norms, point, lam, nu))
            slack = (data[3] - data[2] @ point) / norms
            columns["margin"].append(float(np.maximum(slack, lam * norms).min(initial=np.inf)))
            rows = np.vstack([data[4], data[2][self.active[index]]])
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.where(norms > 0, norms, 1.0)
            least = np.inf if not len(rows) else float(np.linalg.svd(rows, compute_uv=False)[-1])
            columns["independence"].append(0.0 if len(rows) > rows.shape[1] else least)
            columns["n_active"].append(len(rows))
        return {name: np.array(column, dtype=float) for name, column in columns.items()}

    def moves(
        self, upstream: Float[ndarray, "B n"]
    ) -> tuple[Float[ndarray, "B n"], Float[ndarray, "B m"], Float[ndarray, "B p"]]:
        """Minimisers and multipliers of the ghost problems, over ``delta``; they are linear in it."""
        step, lam, nu = np.zeros(self.points.shape), np.zeros(self.multipliers.shape), self.equality_multipliers * 0.0
        unfinished, n_equations = 0.0, nu.shape[1]
        for index, row in enumerate(upstream):
            if not row.any():
                continue
            active = self.active[index]
            if self.options.inner == "direct":
                step[index], multipliers = self._system(index).solve(row)
            else:
                data = self.data.at(index)
                form = _form(self.data, index, self.options.eps)
                rows = np.vstack([data[4], data[2][active]])
                step[index], multipliers, self.iterations[index], residual = first_order_move(
                    form, rows, row, self.options.tol, self.options.max_iter
                )
                unfinished = max(unfinished, residual)
            nu[index], lam[index, active] = multipliers[:n_equations], multipliers[n_equations:]
        if unfinished > self.options.tol:
            warn_not_converged("FFOQPLayer", int(self.iterations.max()), unfinished, self.options.tol, stacklevel=5)
        return step, lam, nu

    def _system(self, index: int) -> EqualitySystem:
        if self.systems[index] is None:
            self.systems[index] = _system(self.data, index, self.active[index], self.options.eps)
        return self.systems[index]

    def gradients(
        self, upstream: Float[ndarray, "B n"], delta: float, needed: tuple[bool, ...] = (True,) * 6
    ) -> list[Float[ndarray, "..."] | None]:
        """Gradients by the six data, summed over the batch for those that it shares."""
        step, lam, nu = self.moves(upstream)
        # Central differences: the mean of both sides, in which the second-order term of Q cancels.
        bend = 0.0 if self.central else 0.5 * delta
        middle = self.points + bend * step
        return self._products(step, middle, lam, nu, needed)

    def _products(
        self,
        step: Float[ndarray, "B n"],
        middle: Float[ndarray, "B n"],
        lam: Float[ndarray, "B m"],
        nu: Float[ndarray, "B p"],
        needed: tuple[bool, ...],
    ) -> list[Float[ndarray, "..."] | None]:
        makers: tuple[Callable[[bool], Float[ndarray, "..."]], ...] = (
            lambda shared: 0.5 * (_outer(step, middle, shared) + _outer(middle, step, shared)),
            lambda shared: _total(step, shared),
            lambda shared: _outer(self.multipliers, step, shared) + _outer(lam, self.points, shared),
            lambda shared: -_total(lam, shared),
            lambda shared: _outer(self.equality_multipliers, step, shared) + _outer(nu, self.points, shared),
            lambda shared: -_total(nu, shared),
        )
        return [
            make(shared) if wanted else None
            for make, shared, wanted in zip(makers, self.data.shared, needed, strict=True)
        ]

    def gradient(self, upstream: Float[ndarray, "B n"], delta: float) -> Float[ndarray, "k"]:
        return np.concatenate([np.ravel(part) for part in self.gradients(upstream, delta)])

    def implicit_gradient(self, upstream: Float[ndarray, "B n"]) -> Float[ndarray, "k"]:
        if self.points.shape[1] > _LARGEST_DENSE:
            raise ValueError(f"check_gradient must have at most {_LARGEST_DENSE} unknowns, got {self.points.shape[1]}")
        solved = [
            _dense_kkt(self.data.at(index), *row)
            for index, row in enumerate(
                zip(self.points, self.multipliers, self.equality_multipliers, upstream, strict=True)
            )
        ]
        step, lam, nu = (np.stack(parts) for parts in zip(*solved, strict=True))
        return np.concatenate([np.ravel(part) for part in self._products(step, self.points, lam, nu, (True,) * 6)])


def _outer(left: Float[ndarray, "B k"], right: Float[ndarray, "B n"], shared: bool) -> Float[ndarray, "..."]:
    return left.T @ right if shared else left[:, :, None] * right[:, None, :]


def _total(rows: Float[ndarray, "B k"], shared: bool) -> Float[ndarray, "..."]:
    return rows.sum(axis=0) if shared else rows


def _dense_kkt(
    data: tuple[Float[ndarray, "..."], ...],
    point: Float[ndarray, "n"],
    lam: Float[ndarray, "m"],
    nu: Float[ndarray, "p"],
    upstream: Float[ndarray, "n"],
) -> tuple[Float[ndarray, "n"], Float[ndarray, "m"], Float[ndarray, "p"]]:
    """Implicit differentiation of all optimality conditions; it does not look at an active set."""
    Q, _, G, h, A, _ = data
    n, m, p = point.size, lam.size, nu.size
    matrix = np.block(
        [
            [0.5 * (Q + Q.T), G.T * lam, A.T],
            [G, np.diag(G @ point - h), np.zeros((m, p))],
            [A, np.zeros((p, m)), np.zeros((p, p))],
        ]
    )
    found = np.linalg.lstsq(matrix, np.concatenate([-upstream, np.zeros(m + p)]), rcond=1e-14)[0]
    return found[:n], lam * found[n : n + m], found[n + m :]


def _row_norms(rows: Float[ndarray, "m n"]) -> Float[ndarray, "m"]:
    norms = np.linalg.norm(rows, axis=1)
    return np.where(norms > 0, norms, 1.0)


def _residual(
    data: tuple[Float[ndarray, "..."], ...],
    form: QuadraticForm,
    norms: Float[ndarray, "m"],
    point: Float[ndarray, "n"],
    lam: Float[ndarray, "m"],
    nu: Float[ndarray, "p"],
) -> float:
    """Largest violation of the optimality conditions, relative to the terms that they consist of."""
    _, q, G, h, A, b = data
    pieces = (form.times(point), q, lam @ G, nu @ A)
    size = 1.0 + max(_most(piece) for piece in pieces)
    slack, weight = (h - G @ point) / norms, lam * norms
    reach = 1.0 + _most(point) + _most(h) + _most(b)
    strength = 1.0 + _most(weight)
    return max(
        _most(pieces[0] + pieces[1] + pieces[2] + pieces[3]) / size,
        -float(slack.min(initial=0.0)) / reach,
        _most(A @ point - b) / reach,
        -float(weight.min(initial=0.0)) / strength,
        _most(slack * weight) / (reach * strength),
    )


def _most(vector: Float[ndarray, "k"]) -> float:
    return max(float(vector.max()), -float(vector.min())) if vector.size else 0.0


def _norms(data: _Batch, index: int) -> Float[ndarray, "m"]:
    return data.once("norms", (2,), index, lambda: _row_norms(data.at(index)[2]))


def _form(data: _Batch, index: int, eps: float) -> QuadraticForm:
    return data.once("form", (0,), index, lambda: QuadraticForm(data.at(index)[0], eps))


def _system(data: _Batch, index: int, active: Int[ndarray, "k"], eps: float) -> EqualitySystem:
    """The system of an active set."""
    _, _, G, _, A, _ = data.at(index)
    rows = data.once("rows", (2, 4), index, lambda: np.vstack([A, G]))
    singles = data.once("singles", (2, 4), index, lambda: SingleRows.of(rows))
    picked = np.concatenate([np.arange(len(A)), len(A) + active])
    return EqualitySystem(_form(data, index, eps), rows, singles.column, picked)


def _active_set(
    rule: ActiveRule, slack: Float[ndarray, "m"], weight: Float[ndarray, "m"], room: int
) -> tuple[Int[ndarray, "k"], bool]:
    """Active rows, the strongest ones if there are more than ``room``; and whether that was so."""
    active = np.flatnonzero(rule.active(slack, weight))
    if active.size <= room:
        return active, False
    return np.sort(active[np.argsort(-weight[active], kind="stable")[:room]]), True


def _polished(
    data: tuple[Float[ndarray, "..."], ...],
    norms: Float[ndarray, "m"],
    solution: QPSolution,
    active: Int[ndarray, "k"],
    system: EqualitySystem,
) -> QPSolution | None:
    """The solution on the active rows, if it is feasible in the primal and the dual."""
    _, q, G, h, A, b = data
    point, multipliers = system.solve(q, np.concatenate([b, h[active]]))
    lam = np.zeros(h.size)
    lam[active] = multipliers[b.size :]
    nu = multipliers[: b.size]
    if not np.isfinite(point).all() or _residual(data, system.form, norms, point, lam, nu) > _POLISHED:
        return None
    return QPSolution(point, np.maximum(lam, 0.0), nu, solution.status, solution.accurate)


class _Solve(torch.autograd.Function):
    """From the six data to the minimisers."""

    @staticmethod
    def forward(ctx: Any, layer: Any, size: int, *data: Tensor) -> Tensor:
        batch = _Batch([part.detach().numpy() for part in data], size)
        ctx.call = layer._last_call = layer._solved(batch)
        return torch.from_numpy(ctx.call.points.copy())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        call = ctx.call
        call.upstream = upstream.numpy().astype(float)
        found = call.gradients(call.upstream, call.delta, tuple(ctx.needs_input_grad[2:]))
        return None, None, *(None if part is None else torch.from_numpy(part) for part in found)


class FFOQPLayer(torch.nn.Module):
    r"""A quadratic program as a differentiable layer.

    .. math:: \min_y \tfrac12 y^\top Q y + q^\top y \quad \text{subject to}\quad G y \le h,\; A y = b .

    With the active rows of :math:`G` and :math:`A` as equations :math:`E`, the backward pass solves
    :math:`\min_d \frac12 d^\top Q d + c^\top d` subject to :math:`E d = 0`, with multipliers :math:`m`, for the
    upstream gradient :math:`c`. Then :math:`d` is the gradient by :math:`q`, and with the multipliers
    :math:`\lambda, \nu` of the solution :math:`y` those by :math:`G, h, A, b` are :math:`\lambda d^\top + m_G y^\top`,
    :math:`-m_G`, :math:`\nu d^\top + m_A y^\top`, :math:`-m_A`, and that by :math:`Q` is
    :math:`(y_\delta y_\delta^\top - y y^\top) / 2\delta` with :math:`y_\delta = y + \delta d`.

    Parameters
    ----------
    eps : float, default=1e-8
        Added to the diagonal of ``Q``, in units of its largest entry or 1, where ``Q`` is singular. Refinement takes
        its effect out.
    active : {"compare", "threshold"}, default="compare"
        As in :class:`~assay.bilevel.ffo_layer.FFOLayer`.
    polish : bool, default=True
        Whether to solve once more on the active rows; the result is kept where it satisfies all optimality conditions
        to 1e-9.
    slack_tol : float, default=1e-8
        For ``active="threshold"``.
    dual_cutoff : float, default=1e-3
        For ``active="threshold"``.
    inner : {"direct", "first_order"}, default="direct"
        ``"first_order"`` uses accelerated gradients on the null space of the active rows instead of a factor of ``Q``;
        the certificate has the number of iterations.
    difference : {"central", "forward"}, default="central"
        Central differences are exact. Forward ones have an error of order ``delta`` in the gradient by ``Q``.
    solver : {"clarabel", "osqp"} or callable, default="clarabel"
        A callable is given ``(Q, q, G, h, A, b)`` as numpy arrays and returns minimiser, multipliers of the inequalities
        and of the equations.
    solver_args : dict, optional
        Options in the words of the solver.
    alpha : float, default=100.0
        Inverse of ``delta``.
    tol : float, default=1e-8
        For ``inner="first_order"``: norm of the projected gradient, relative to that of the upstream gradient.
    max_iter : int, default=10000
        For ``inner="first_order"``.

    Raises
    ------
    TypeError, ValueError
        If an option is out of its range.

    Notes
    -----
    Only the symmetric part of ``Q`` counts. A singular ``Q``, or none at all in a linear program, is allowed where the
    active rows determine the solution. Where the active set changes there is no derivative, and
    :func:`~assay.bilevel.ffo_certificate.certificate` says ``"doubtful"``. The gradient can be taken once.

    Problems are solved on the CPU in float64; the solution has the type and device of ``q``, gradients those of each
    tensor. The layer has no state. It keeps its last call, for the certificate.

    With n unknowns and e active rows, a backward pass takes O(n^3 / 3) once per ``Q`` and O(n^2 e + n e^2) per
    instance, and memory O(n^2 + n e). Active bounds on single coordinates and a diagonal ``Q`` make it cheaper.

    References
    ----------
    .. [1] Z. Zhao, K.-C. Mo, S.-H. Ho, B. Amos, K. Wang. A Fully First-Order Layer for Differentiable Optimization.
       ICML 2026, arXiv:2512.02494.

    Examples
    --------
    Projection on the simplex; the gradient is that of the coordinates on the support, less its mean:

    >>> import torch
    >>> from assay.bilevel.ffo_qp_layer import FFOQPLayer
    >>> eye, ones = torch.eye(3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    >>> point = torch.tensor([0.9, 0.5, -1.0], dtype=torch.float64, requires_grad=True)
    >>> projection = FFOQPLayer()(eye, -point, -eye, torch.zeros(3, dtype=torch.float64), ones, ones[0, :1])
    >>> projection[0].backward()
    >>> projection.detach().numpy().round(6).tolist(), point.grad.numpy().round(6).tolist()
    ([0.7, 0.3, 0.0], [0.5, -0.5, 0.0])
    """

    def __init__(
        self,
        eps: float = 1e-8,
        active: str = "compare",
        polish: bool = True,
        slack_tol: float = 1e-8,
        dual_cutoff: float = 1e-3,
        inner: str = "direct",
        difference: str = "central",
        solver: str | Callable[..., Any] = "clarabel",
        solver_args: Mapping[str, Any] | None = None,
        alpha: float = 100.0,
        tol: float = 1e-8,
        max_iter: int = 10_000,
    ):
        super().__init__()
        if solver_args is not None and not isinstance(solver_args, Mapping):
            raise TypeError(f"solver_args must be a dict, got {type(solver_args).__name__}")
        self._options = _Options(
            1.0 / check_real(alpha, "alpha", above=0),
            check_real(eps, "eps", above=0),
            active_rule(active, slack_tol, dual_cutoff),
            check_flag(polish, "polish"),
            check_choice(inner, "inner", ("direct", "first_order")),
            check_choice(difference, "difference", ("central", "forward")) == "central",
            solver if callable(solver) else check_choice(solver, "solver", ("clarabel", "osqp")),
            dict(solver_args or {}),
            check_real(tol, "tol", above=0),
            check_integer(max_iter, "max_iter", minimum=1),
        )
        self._last_call: _Call | None = None
        self._warned = False

    def forward(
        self,
        Q: Tensor,
        q: Tensor,
        G: Tensor | None = None,
        h: Tensor | None = None,
        A: Tensor | None = None,
        b: Tensor | None = None,
    ) -> Tensor:
        """Solve.

        Parameters
        ----------
        Q : torch.Tensor of shape (n, n) or (B, n, n)
            Quadratic form; positive semidefinite.
        q : torch.Tensor of shape (n,) or (B, n)
            Linear form.
        G : torch.Tensor of shape (m, n) or (B, m, n), optional
            Inequalities.
        h : torch.Tensor of shape (m,) or (B, m), optional
            Their right-hand sides.
        A : torch.Tensor of shape (p, n) or (B, p, n), optional
            Equations.
        b : torch.Tensor of shape (p,) or (B, p), optional
            Their right-hand sides.

        Returns
        -------
        torch.Tensor of shape (n,) or (B, n)
            The minimisers; without the batch dimension if no argument has it.

        Raises
        ------
        TypeError, ValueError
            If shapes do not fit, data are not finite, ``Q`` is not positive semidefinite, a solution is not unique, or
            an instance is infeasible or unbounded; the message names it.
        """
        tensors, size = _check_data((Q, q, G, h, A, b))
        doubles = [tensor.to(device="cpu", dtype=torch.float64) for tensor in tensors]
        points = _Solve.apply(self, size or 1, *doubles)
        return (points if size else points[0]).to(dtype=q.dtype, device=q.device)

    def extra_repr(self) -> str:
        """Options that matter, for ``print``."""
        solver = self._options.solver if isinstance(self._options.solver, str) else "callable"
        return f"solver={solver!r}, inner={self._options.inner!r}, polish={self._options.polish}"

    def _solved(self, data: _Batch) -> _Call:
        options = self._options
        solutions, actives, systems = [], [], []
        capped, better = np.zeros(data.size, dtype=bool), np.zeros(data.size, dtype=bool)
        for index in range(data.size):
            own = data.at(index)
            Q, q, G, h, A, b = own
            form = _form(data, index, options.eps)
            solver = data.once(
                "solver",
                (0, 2, 4),
                index,
                lambda Q=Q, G=G, A=A: QPSolver(options.solver, options.solver_args, Q, G, A),
            )
            found = solver.solve(q, h, b, index)
            norms = _norms(data, index)
            active, capped[index] = _active_set(
                options.rule, (h - G @ found.point) / norms, found.multipliers * norms, max(q.size - b.size, 0)
            )
            system = None
            if options.polish or form.shifted:
                system = _system(data, index, active, options.eps)
            if form.shifted and not system.unique:
                raise ValueError(
                    f"Q must be positive definite where active constraints leave the solution open, got instance {index} "
                    "whose solution is not unique"
                )
            if options.polish:
                polished = _polished(own, norms, found, active, system)
                better[index] = polished is not None
                found = polished or found
            solutions.append(found)
            actives.append(active)
            systems.append(system if options.inner == "direct" else None)
        accurate = np.array([one.accurate for one in solutions])
        if not accurate.all() and not self._warned:
            self._warned = True
            worst = int(np.flatnonzero(~accurate)[0])
            warnings.warn(
                f"the solver did not meet its tolerances on instance {worst} (status {solutions[worst].status!r}); "
                "later calls do not repeat this warning",
                UserWarning,
                stacklevel=5,
            )
        return _Call(
            data,
            options,
            np.stack([one.point for one in solutions]),
            np.stack([one.multipliers for one in solutions]),
            np.stack([one.equality_multipliers for one in solutions]),
            actives,
            systems,
            tuple(one.status for one in solutions),
            accurate,
            better,
            capped,
            np.zeros(data.size, dtype=int),
        )


def _check_data(arguments: tuple[Any, ...]) -> tuple[list[Tensor], int | None]:
    """The six tensors, absent ones empty, and the batch size if there is one."""
    for name, tensor in zip(_NAMES, arguments, strict=True):
        if tensor is None and name not in ("Q", "q"):
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must have a real floating-point dtype, got {tensor.dtype}")
    for pair in (("G", "h"), ("A", "b")):
        one, other = (arguments[_NAMES.index(name)] for name in pair)
        if (one is None) != (other is None):
            raise ValueError(f"{pair[0]} and {pair[1]} must be given together, got one of them")
    n = arguments[1].shape[-1] if arguments[1].ndim else 0
    if n == 0:
        raise ValueError(f"q must have shape (n,) or (B, n), got {tuple(arguments[1].shape)}")
    empty = arguments[1].new_zeros(0)
    tensors = [
        (empty.reshape(0, n) if dims == 2 else empty) if tensor is None else tensor
        for tensor, dims in zip(arguments, _DIMS, strict=True)
    ]
    rows = {"Q": n, "G": tensors[3].shape[-1] if tensors[3].ndim else 0, "A": tensors[5].shape[-1] if tensors[5].ndim else 0}
    size: int | None = None
    for name, tensor, dims in zip(_NAMES, tensors, _DIMS, strict=True):
        wanted = (rows[name], n) if dims == 2 else (tensor.shape[-1],) if tensor.ndim else ("k",)
        shape = tuple(tensor.shape)
        if len(shape) not in (dims, dims + 1) or shape[len(shape) - dims :] != wanted:
            raise ValueError(f"{name} must have shape {wanted}, or that after a batch dimension, got {shape}")
        if len(shape) == dims + 1:
            if shape[0] == 0 or (size is not None and shape[0] != size):
                raise ValueError(
                    f"batched arguments must have one batch size, at least 1, got {shape[0]} for {name}"
                    + (f" after {size}" if size else "")
                )
            size = shape[0]
        if not bool(torch.isfinite(tensor.detach()).all()):
            raise ValueError(f"{name} must be finite, got nan or infinite entries")
    return tensors, size
