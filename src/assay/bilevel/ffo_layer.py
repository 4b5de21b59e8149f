r"""A convex problem as a layer, differentiated by one more solve of a simpler problem.

The layer solves a parametrized convex problem and keeps the primal and the dual solution. Its backward pass does not
differentiate the optimality system. It freezes the duals, replaces the active constraints by their tangent, adds
``delta`` times the upstream gradient to the objective and solves once more: this *ghost* problem has equations only.
How the derivatives of the Lagrangian in the parameters change between the two solutions, divided by ``delta``, is the
gradient.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from assay.bilevel.ffo_autograd import differentiable_once
from assay.bilevel.ffo_cone_solvers import solve_cone_program
from assay.bilevel.ffo_cones import program_residual
from assay.bilevel.ffo_cvxpy import CompiledProblem
from assay.bilevel.ffo_faces import ActiveRule, find_faces
from assay.bilevel.ffo_ghost import Ghost
from assay.bilevel.ffo_polish import polished
from assay.bilevel.ffo_record import Instance, LayerRecord
from assay.validation import check_choice, check_integer, check_real

__all__ = ["FFOLayer"]

#: Relative residual above which a solution is no solution, whatever the solver says.
FAR_OFF = 1e-3


class _Solve(torch.autograd.Function):
    """From parameter vectors to variables."""

    @staticmethod
    def forward(ctx: Any, parameters: Tensor, layer: Any, solver_args: Any) -> Tensor:
        call = layer._solved(parameters.detach().numpy(), solver_args)
        ctx.call = layer._last_call = call
        ctx.save_for_backward(parameters)
        points = np.stack([instance.ghost.point for instance in call.instances])
        return torch.from_numpy(call.compiled.recover(points))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None]:
        call = ctx.call
        call.upstream = upstream.detach().numpy().astype(float)
        found = torch.from_numpy(call.gradients(call.upstream, call.delta)[0])
        return *differentiable_once([found], upstream, ctx.saved_tensors), None, None


class FFOLayer(torch.nn.Module):
    r"""A parametrized convex problem as a differentiable layer.

    The layer computes

    .. math:: y^*(x) = \arg\min_y g(x, y) \quad \text{subject to}\quad h(x, y) \le 0,\; e(x, y) = 0

    and its backward pass multiplies an upstream gradient :math:`c` by the transposed Jacobian of :math:`y^*`. With the
    duals :math:`\lambda^*, \nu^*` frozen, :math:`\tilde g = g + \lambda^{*\top} h + \nu^{*\top} e` is minimised
    together with :math:`\delta\, c^\top y` over the tangent of the active constraints, at the cost of one system of
    equations, and

    .. math::

        v = \tfrac1\delta\, \nabla_x \bigl( \tilde g(x, y_\delta) + \lambda_\delta^\top \tilde h(x, y^*)
        - \tilde g(x, y^*) \bigr), \qquad \|v - (\partial y^* / \partial x)^\top c\| = O(\delta).

    It is called like ``cvxpylayers.torch.CvxpyLayer``.

    Parameters
    ----------
    problem : cvxpy.Problem
        Follows the rules of disciplined parametrized programming (DPP). Bounds, second-order cones, exponential cones
        and matrix inequalities; no power cones and no integer variables.
    parameters : list of cvxpy.Parameter
        All parameters, in the order of the tensors.
    variables : list of cvxpy.Variable
        What is returned, in this order.
    alpha : float, default=100.0
        Inverse of ``delta``. The perturbation is ``delta`` times the upstream gradient; on curved cones it is made
        smaller where the solution would move out of the range in which it is nearly linear. No digits are lost when
        ``alpha`` is large, except with ``cone_mode="resolve"``.
    active : {"compare", "threshold"}, default="compare"
        A constraint is active if its multiplier exceeds its slack, in units of rows of norm 1 and of an objective whose
        largest quadratic coefficient is 1; or if the slack is at most ``slack_tol`` and the multiplier at least
        ``dual_cutoff``. The second misses active constraints when the solver is not accurate enough.
    polish : bool, default=True
        Whether to improve what the solver returns by Newton's method on the active constraints, and to exchange those
        that turn out to be wrong. It is kept only where the result is feasible in the primal and the dual to 1e-9 and
        better.
    dual_cutoff : float, default=1e-3
        See ``active``.
    slack_tol : float, default=1e-8
        See ``active``.
    solver : str, default="CLARABEL"
        Clarabel is called directly; other names are those of cvxpy, which is slower.
    solver_args : dict, optional
        Options of the solver.
    backward_solver : str, optional
        Solver of the second solve when ``cone_mode="resolve"``; by default the same.
    difference : {"central", "forward"}, default="central"
        Central differences solve on both sides: the error is of second order in ``delta``, and none for quadratic
        programs. The two share one factorisation.
    cone_mode : {"tangent", "resolve"}, default="tangent"
        ``"resolve"`` solves the perturbed problem itself, cones kept, and takes the difference of the solutions; the
        perturbation then has the size ``delta`` relative to the objective. ``"tangent"`` does so for an exponential
        cone or a matrix whose face or rank is not certain.
    max_workers : int, default=1
        Threads that share the instances of a batch.

    Raises
    ------
    TypeError, ValueError
        If the problem is not convex and DPP, has other parameters or variables, needs a cone that is not supported, or
        an option is out of its range.

    Notes
    -----
    Where the active set changes, where active constraints are dependent, and where the solution is not unique, there
    is no derivative; :func:`~assay.bilevel.certificate` calls the first two doubtful, and the last is
    an error in the backward pass. The gradient can be taken once: differentiating it raises an error.

    Problems are solved on the CPU in float64, whatever the tensors are; results have the type and device of the first
    tensor, gradients those of each tensor. A parameter declared symmetric is read as the mean of it and its transpose,
    where CvxpyLayer reads the upper triangle. Dual variables are not returned. The layer has no state. It keeps its
    last call, for the certificate.

    Per instance a backward pass takes one sparse factorisation of the unknowns and the active rows, and for curved
    cones some ten solves with it.

    References
    ----------
    .. [1] Z. Zhao, K.-C. Mo, S.-H. Ho, B. Amos, K. Wang. A Fully First-Order Layer for Differentiable Optimization.
       ICML 2026, arXiv:2512.02494.

    Examples
    --------
    Projection on a ball:

    >>> import cvxpy as cp
    >>> import torch
    >>> from assay.bilevel import FFOLayer
    >>> x, y = cp.Parameter(3), cp.Variable(3)
    >>> problem = cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [cp.norm(y) <= 1])
    >>> layer = FFOLayer(problem, parameters=[x], variables=[y])
    >>> point = torch.tensor([1.5, -0.7, 0.4], dtype=torch.float64, requires_grad=True)
    >>> (projection,) = layer(point)
    >>> (projection @ torch.tensor([0.3, 1.0, -0.5], dtype=torch.float64)).backward()
    >>> print(point.grad.numpy().round(4))
    [ 0.3128  0.5234 -0.2572]
    """

    def __init__(
        self,
        problem: Any,
        parameters: Any,
        variables: Any,
        alpha: float = 100.0,
        active: str = "compare",
        polish: Any = True,
        dual_cutoff: float = 1e-3,
        slack_tol: float = 1e-8,
        solver: Any = "CLARABEL",
        solver_args: Any = None,
        backward_solver: Any = None,
        difference: str = "central",
        cone_mode: str = "tangent",
        max_workers: int = 1,
    ):
        super().__init__()
        self.alpha = check_real(alpha, "alpha", above=0)
        self._rule = active_rule(active, slack_tol, dual_cutoff)
        self.polish = check_flag(polish, "polish")
        self.solver = _check_solver(solver, "solver")
        self.backward_solver = (
            self.solver if backward_solver is None else _check_solver(backward_solver, "backward_solver")
        )
        self.solver_args = _check_options(solver_args)
        self.difference = check_choice(difference, "difference", ("central", "forward"))
        self.cone_mode = check_choice(cone_mode, "cone_mode", ("tangent", "resolve"))
        self.max_workers = check_integer(max_workers, "max_workers", minimum=1)
        self._compiled = CompiledProblem(problem, parameters, variables)
        self._last_call: LayerRecord | None = None
        self._warned = False

    @torch.compiler.disable
    def forward(self, *params: Any, solver_args: Any = None) -> tuple[Tensor, ...]:
        """Solve.

        Parameters
        ----------
        *params : torch.Tensor
            One per parameter, in its shape or with a leading batch dimension; those without are shared by the batch.
        solver_args : dict, optional
            Options for this call, over those of the constructor.

        Returns
        -------
        tuple of torch.Tensor
            One per variable, with a leading batch dimension if any parameter has one.

        Raises
        ------
        TypeError, ValueError
            If number, shapes or batch sizes do not fit, a parameter is not finite or has not the sign that it was
            declared with, or an instance has no solution; the message names it.
        """
        options = self.solver_args | _check_options(solver_args)
        batch = _check_tensors(self._compiled.parameters, params)
        stacked = self._compiled.stack(params, batch or 1)
        outputs = self._compiled.split(_Solve.apply(stacked, self, options))
        first = params[0]
        return tuple((out if batch else out[0]).to(dtype=first.dtype, device=first.device) for out in outputs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last_call": None}  # holds solvers, which cannot be copied

    def extra_repr(self) -> str:
        """Options that matter, for ``print``."""
        options = f"difference={self.difference!r}, cone_mode={self.cone_mode!r}, solver={self.solver!r}"
        return f"alpha={self.alpha:g}, {options}"

    def _run(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if self.max_workers == 1 or len(items) == 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(self.max_workers) as pool:
            return list(pool.map(work, items))

    def _solved(self, parameters: Float[ndarray, "B p"], options: Mapping[str, Any]) -> LayerRecord:
        compiled, rule, keep = self._compiled, self._rule, self.polish
        solvers = {False: self.solver, True: self.backward_solver}

        def solve(index: int, program: Any, backward: bool = False) -> Instance:
            # options are in the words of the first solver
            used = options if solvers[backward] == solvers[False] else {}
            solution = solve_cone_program(program, solvers[backward], used, index)
            faces = find_faces(program, program.slack(solution.point), solution.dual, rule)
            ghost = Ghost(program, solution.point, solution.dual, faces)
            better = polished(ghost, rule) if keep else None
            # solvers call far-off points solutions where the data are huge
            gap, outside = (0.0, 0.0) if better else program_residual(program, ghost.point, ghost.dual)
            near = gap <= FAR_OFF and outside <= 0.01 * FAR_OFF
            return Instance(index, better or ghost, solution.status, solution.accurate and near, better is not None)

        def of(index: int) -> Instance:
            return solve(index, compiled.program(parameters[index]))

        instances = self._run(of, range(len(parameters)))
        inaccurate = [instance.index for instance in instances if not instance.accurate]
        if inaccurate and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.solver} did not meet its tolerances on instance {inaccurate[0]} "
                f"(status {instances[inaccurate[0]].status!r}); later calls do not repeat this warning",
                UserWarning,
                stacklevel=8,
            )
        return LayerRecord(
            compiled,
            instances,
            1.0 / self.alpha,
            self.difference == "central",
            self.cone_mode == "resolve",
            rule,
            solve,
            self._run,
        )


def active_rule(active: Any, slack_tol: Any, dual_cutoff: Any) -> ActiveRule:
    """Check the options that decide on active constraints."""
    return ActiveRule(
        check_choice(active, "active", ("compare", "threshold")),
        check_real(slack_tol, "slack_tol", minimum=0),
        check_real(dual_cutoff, "dual_cutoff", minimum=0),
    )


def check_flag(flag: Any, name: str) -> bool:
    """Check that an option is True or False."""
    if not isinstance(flag, bool):
        raise TypeError(f"{name} must be True or False, got {flag!r}")
    return flag


def check_tensor(tensor: Any, name: str) -> None:
    """Check that something is a dense tensor of floating-point numbers."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must have a real floating-point dtype, got {tensor.dtype}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {tensor.layout}")
    if tensor.is_meta:
        raise TypeError(f"{name} must be a tensor with values, got one on the meta device")


def check_finite(tensor: Tensor, name: str) -> None:
    """Check that all entries are numbers; their sum tells in one pass, unless it overflows."""
    tensor = tensor.detach()
    if not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite, got nan or infinite entries")


def _check_solver(solver: Any, name: str) -> str:
    if not isinstance(solver, str) or not solver:
        raise TypeError(f"{name} must be the name of a solver, got {solver!r}")
    return solver.upper()


def _check_options(options: Any) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise TypeError(f"solver_args must be a dict, got {type(options).__name__}")
    return dict(options)


def _check_tensors(parameters: Sequence[Any], tensors: Sequence[Any]) -> int | None:
    """Batch size, or None when no tensor has a batch dimension."""
    if len(tensors) != len(parameters):
        raise ValueError(f"params must be one tensor per parameter, {len(parameters)}, got {len(tensors)}")
    batch: int | None = None
    for index, (tensor, parameter) in enumerate(zip(tensors, parameters, strict=True)):
        check_tensor(tensor, f"params[{index}]")
        shape, wanted = tuple(tensor.shape), tuple(parameter.shape)
        if shape != wanted:
            if shape[1:] != wanted or len(shape) != len(wanted) + 1:
                raise ValueError(
                    f"params[{index}] must have shape {wanted}, or that after a batch dimension, got {shape}"
                )
            if shape[0] == 0 or (batch is not None and shape[0] != batch):
                raise ValueError(f"params must have one batch size, at least 1, got {shape[0]} for params[{index}]"
                                 + (f" after {batch}" if batch else ""))  # fmt: skip
            batch = shape[0]
        _check_values(tensor.detach(), parameter, index)
    return batch


def _check_values(tensor: Tensor, parameter: Any, index: int) -> None:
    check_finite(tensor, f"params[{index}]")
    attributes = parameter.attributes
    for name, wrong in (("nonneg", tensor < 0), ("nonpos", tensor > 0), ("pos", tensor <= 0), ("neg", tensor >= 0)):
        if attributes[name] and bool(wrong.any()):
            raise ValueError(f"params[{index}] must be {name}, as it was declared, got other entries")
    if attributes.get("bounds") is not None:
        lower, upper = (torch.as_tensor(np.asarray(side, dtype=float)) for side in attributes["bounds"])
        here = tensor.to(device="cpu", dtype=torch.float64)
        if bool(((here < lower) | (here > upper)).any()):
            raise ValueError(f"params[{index}] must be within its bounds, as it was declared, got entries outside")
    if any(attributes[name] for name in ("symmetric", "PSD", "NSD")):
        apart = float((tensor - tensor.mT).abs().max())
        if apart > 1e-5 * (1.0 + float(tensor.abs().max())):
            raise ValueError(
                f"params[{index}] must be symmetric, as it was declared, got entries that differ by {apart:g}"
            )
        sign = 1.0 if attributes["PSD"] else -1.0
        if attributes["PSD"] or attributes["NSD"]:
            least = float(torch.linalg.eigvalsh(sign * 0.5 * (tensor + tensor.mT).double()).min())
            if least < -1e-8 * (1.0 + float(tensor.abs().max())):
                raise ValueError(
                    f"params[{index}] must be {'PSD' if sign > 0 else 'NSD'}, as it was declared, "
                    f"got an eigenvalue of {sign * least:g}"
                )
    if attributes["diag"] and bool((tensor - torch.diag_embed(tensor.diagonal(dim1=-2, dim2=-1))).any()):
        raise ValueError(f"params[{index}] must be diagonal, as it was declared, got entries off the diagonal")
