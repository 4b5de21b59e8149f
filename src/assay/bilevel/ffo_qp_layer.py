r"""A quadratic program as a layer, differentiated without a factor of its optimality system.

For :math:`\min \frac12 y'Qy + q'y` subject to :math:`Gy \le h`, :math:`Ay = b` the ghost problem is a quadratic
program with the active rows as equations. One factor of ``Q``, which a batch shares, and one of a matrix of the size
of the active set give the move of its minimiser; the gradients by all data are products of that move, its multipliers
and the solution.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from assay.bilevel.ffo_autograd import differentiable_once
from assay.bilevel.ffo_layer import FAR_OFF, active_rule, check_finite, check_flag, check_tensor
from assay.bilevel.qp_active import guessed, polished
from assay.bilevel.qp_batch import DIMS, QPBatch
from assay.bilevel.qp_record import QPOptions, QPRecord
from assay.bilevel.qp_solvers import QPSolution, QPSolver, UserSolver
from assay.validation import check_choice, check_integer, check_real

__all__ = ["FFOQPLayer"]

_NAMES = ("Q", "q", "G", "h", "A", "b")


class _Solve(torch.autograd.Function):
    """From the six data to the minimisers."""

    @staticmethod
    def forward(ctx: Any, layer: Any, size: int, *data: Tensor) -> Tensor:
        ctx.call = layer._last_call = layer._solved([part.detach().numpy() for part in data], size)
        ctx.save_for_backward(*data)
        return torch.from_numpy(ctx.call.solutions.points.copy())

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        call, needed = ctx.call, tuple(ctx.needs_input_grad[2:])
        call.upstream = upstream.detach().numpy().astype(float)
        found = [
            None if part is None else torch.from_numpy(part)
            for part in call.gradients(call.upstream, call.delta, needed)
        ]
        return None, None, *differentiable_once(found, upstream, ctx.saved_tensors)


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
        Added to the diagonal of ``Q``, times its entries, where ``Q`` is singular. Refinement takes its effect out.
    active : {"compare", "threshold"}, default="compare"
        As in :class:`~assay.bilevel.FFOLayer`.
    polish : bool, default=True
        Whether to solve once more on the active rows. The result is kept where it satisfies all optimality conditions
        to 1e-9; otherwise rows that are violated, or have negative multipliers, are exchanged, a few times.
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
        A callable is given ``(Q, q, G, h, A, b)`` as numpy arrays and returns minimiser, multipliers of the
        inequalities and of the equations.
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
    :func:`~assay.bilevel.certificate` says ``"doubtful"``. The gradient can be taken once.

    Problems are solved on the CPU in float64; the solution has the type and device of ``q``, gradients those of each
    tensor. The units of the objective and of the rows do not matter: both are divided by their sizes. The layer has no
    state. It keeps a copy of the data of its last call, for the certificate.

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
    >>> from assay.bilevel import FFOQPLayer
    >>> eye, ones = torch.eye(3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    >>> point = torch.tensor([0.9, 0.5, -1.0], dtype=torch.float64, requires_grad=True)
    >>> projection = FFOQPLayer()(eye, -point, -eye, torch.zeros(3, dtype=torch.float64), ones, ones[0, :1])
    >>> projection[0].backward()
    >>> projection.detach().numpy().round(6) + 0.0, point.grad.numpy().round(6) + 0.0
    (array([0.7, 0.3, 0. ]), array([ 0.5, -0.5,  0. ]))
    """

    def __init__(
        self,
        eps: float = 1e-8,
        active: str = "compare",
        polish: Any = True,
        slack_tol: float = 1e-8,
        dual_cutoff: float = 1e-3,
        inner: str = "direct",
        difference: str = "central",
        solver: Any = "clarabel",
        solver_args: Any = None,
        alpha: float = 100.0,
        tol: float = 1e-8,
        max_iter: int = 10_000,
    ):
        super().__init__()
        if solver_args is not None and not isinstance(solver_args, Mapping):
            raise TypeError(f"solver_args must be a dict, got {type(solver_args).__name__}")
        self._options = QPOptions(
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
        self._last_call: QPRecord | None = None
        self._warned = False

    @torch.compiler.disable
    def forward(self, Q: Any, q: Any, G: Any = None, h: Any = None, A: Any = None, b: Any = None) -> Tensor:
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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last_call": None}  # holds solvers, which cannot be copied

    def extra_repr(self) -> str:
        """Options that matter, for ``print``."""
        solver = self._options.solver if isinstance(self._options.solver, str) else "callable"
        return f"solver={solver!r}, inner={self._options.inner!r}, polish={self._options.polish}"

    def _solved(self, arrays: list[Float[ndarray, " ..."]], size: int) -> QPRecord:
        options = self._options
        batch = QPBatch(arrays, size, options.eps)
        found = self._by_solver(arrays, batch)
        solutions = guessed(
            batch,
            options.rule,
            np.stack([one.point for one in found]),
            np.stack([one.multipliers for one in found]),
            np.stack([one.equality_multipliers for one in found]),
        )
        if options.polish:
            solutions = polished(batch, solutions, exchange=options.rule.mode == "compare")
        for index, active in enumerate(solutions.active):
            if batch.form(index).shifted and not (solutions.systems[index] or batch.system(index, active)).unique:
                raise ValueError(
                    "Q must be positive definite where active constraints leave the solution open, got instance "
                    f"{index} whose solution is not unique"
                )
        if options.inner != "direct":
            solutions.systems = [None] * size
        batch.forget()
        accurate = np.array([one.accurate for one in found])
        rough = np.flatnonzero(~solutions.confirmed)
        if rough.size:  # solvers call far-off points solutions where the data are huge
            parts = (part[rough] for part in (solutions.points, solutions.lam, solutions.nu))
            accurate[rough] &= batch.residuals(*parts, rough)[0] <= FAR_OFF
        if not accurate.all() and not self._warned:
            self._warned = True
            worst = int(np.flatnonzero(~accurate)[0])
            warnings.warn(
                f"the solver did not meet its tolerances on instance {worst} (status {found[worst].status!r}); "
                "later calls do not repeat this warning",
                UserWarning,
                stacklevel=8,
            )
        statuses = tuple(one.status for one in found)
        return QPRecord(batch, options, solutions, statuses, accurate, np.zeros(size, dtype=int))

    def _by_solver(self, arrays: list[Float[ndarray, " ..."]], batch: QPBatch) -> list[QPSolution]:
        """Solutions of all instances as the solver returns them, in the units of the batch."""
        options, found = self._options, []
        solver, known = None, all(batch.shared[position] for position in (0, 2, 4))
        for index in range(batch.size):
            if callable(options.solver):
                Q, q, G, h, A, b = batch.raw(arrays, index)
                found.append(batch.normalised(UserSolver(options.solver, Q, G, A).solve(q, h, b, index), index))
                continue
            if solver is None or not known:
                rows = sp.csc_matrix(batch.rows(index).matrix)
                solver = QPSolver(options.solver, options.solver_args, batch.form(index).upper, rows)
            found.append(batch.solved_by(solver, index))
        return found


def _check_data(arguments: tuple[Any, ...]) -> tuple[list[Tensor], int | None]:
    """The six tensors, absent ones empty, and the batch size if there is one."""
    for name, tensor in zip(_NAMES, arguments, strict=True):
        if tensor is not None or name in ("Q", "q"):
            check_tensor(tensor, name)
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
        for tensor, dims in zip(arguments, DIMS, strict=True)
    ]
    size: int | None = None
    for position in (1, 3, 5, 0, 2, 4):  # vectors say how many rows there are
        name, tensor, dims = _NAMES[position], tensors[position], DIMS[position]
        shape = tuple(tensor.shape)
        if dims == 1:
            if len(shape) not in (1, 2):
                raise ValueError(f"{name} must be a vector, or one after a batch dimension, got shape {shape}")
        else:
            wanted = (tensors[(1, None, 3, None, 5)[position]].shape[-1], n)
            if len(shape) not in (2, 3) or shape[-2:] != wanted:
                raise ValueError(f"{name} must have shape {wanted}, or that after a batch dimension, got {shape}")
        if len(shape) == dims + 1:
            if shape[0] == 0 or (size is not None and shape[0] != size):
                raise ValueError(
                    f"batched arguments must have one batch size, at least 1, got {shape[0]} for {name}"
                    + (f" after {size}" if size else "")
                )
            size = shape[0]
        check_finite(tensor, name)
    return tensors, size
