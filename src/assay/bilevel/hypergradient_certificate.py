r"""How far a hypergradient can be relied on: residuals, and what follows from them.

A solution ``w`` of an approximate system is put into the true one, :math:`Hw = \partial_\theta f`. The residual
contains everything that went wrong with the curvature: a Fisher matrix that is not the Hessian, too few samples,
damping. With :math:`H \succeq mI` it bounds the error,

.. math:: \|w - H^{-1}\partial_\theta f\| \le \frac{\|Hw - \partial_\theta f\|}{m}, \qquad
          \|\hat\nabla - \nabla\| \le \|\partial^2_{v\theta} g\|\,\frac{\|Hw - \partial_\theta f\|}{m},

both at the inner parameters at hand; their own distance to the minimum is at most that of the inner gradient over
``m``. The smallest entry of the ridge is such an ``m`` when losses are convex in the inner variable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from assay.bilevel.hessian_systems import conjugate_gradients
from assay.bilevel.hypergradient_problem import BilevelProblem, HessianOperator, full_precision
from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.validation import check_choice, check_integer, check_real

__all__ = ["HypergradientReport", "certify_solution", "cross_norm"]

_POWER_STEPS = 10
_REFERENCE_TOL = 1e-8
_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HypergradientReport(Result):
    """What was measured at one hypergradient.

    Attributes
    ----------
    system_residual : float
        Residual of the solution in the system of the true Hessian, relative to the outer gradient; nan if not asked.
    solve_residual : float
        Relative residual in the system that was solved; nan where none was.
    stationarity : float
        Norm of the gradient of the inner objective.
    curvature : float
        Lower bound of the Hessian when losses are convex: the smallest entry of the ridge.
    solution_bound : float
        Bound on the distance of the solution to that of the true system, for convex losses; inf without a ridge.
    error_bound : float
        Bound on the error of the hypergradient at these inner parameters, for convex losses; nan if not asked.
    cosine_to_reference, relative_error : float
        Of the hypergradient, against that of conjugate gradients; nan if not asked.
    n_hvp : int
        Products with the Hessian that these measurements took.
    """

    system_residual: float
    solve_residual: float
    stationarity: float
    curvature: float
    solution_bound: float
    error_bound: float
    cosine_to_reference: float
    relative_error: float
    n_hvp: int


def certify_solution(
    problem: BilevelProblem,
    theta: Sequence[Tensor],
    v: Sequence[Tensor],
    w: Float[Tensor, " dim"] | None,
    hypergradient: Sequence[Tensor],
    batch: Any,
    outer_batch: Any,
    *,
    solve_residual: float = math.nan,
    stationarity: float | None = None,
    score_size: float = math.nan,
    per_sample: bool = True,
    fresh: bool = True,
    residual: bool = True,
    bound: bool = False,
    reference: str | None = None,
    tol: float = 0.1,
    max_iter: int | None = None,
) -> HypergradientReport:
    """Measure a solution and the hypergradient that was made of it.

    Parameters
    ----------
    problem : BilevelProblem
        Both losses.
    theta, v : sequence of Tensor
        Where.
    w : Tensor of shape (d,), or None
        The solution; None where the hypergradient was found without one, so that only a comparison can be made.
    hypergradient : sequence of Tensor
        What was made of it.
    batch, outer_batch : object
        Samples of the inner objective, and what the outer loss is given.
    solve_residual : float, default=nan
        Relative residual in the system that was solved.
    stationarity : float, optional
        Norm of the gradient of the inner objective there, if it was evaluated for the mixed derivative; it is evaluated
        anew when the Hessian is.
    score_size : float, default=nan
        Root mean square of the norms of scores: the scale of the inner gradient.
    per_sample, fresh : bool, default=True
        Whether scores were those of single samples, and all taken at this ``v``.
    residual, bound, reference, tol, max_iter : optional
        As in :meth:`NaturalHypergradient.certify`.

    Returns
    -------
    HypergradientReport
        Evaluated in float64 if the losses accept it, else in the dtype of the parameters.
    """
    tol = check_real(tol, "tol", above=0)
    if reference is not None:
        check_choice(reference, "reference", ("cg",))
    if max_iter is not None:
        max_iter = check_integer(max_iter, "max_iter", minimum=1)

    measurable = (residual or bound or reference is not None) if w is not None else reference is not None
    if not measurable and (stationarity is not None or w is None):
        curvature, stationarity = float(problem.ridge(v).min()), math.nan if stationarity is None else stationarity
        certificates = _own_certificates(problem, solve_residual, stationarity, score_size, tol)
        return _report(certificates, solve_residual, stationarity, curvature)

    def measure(dtype: torch.dtype) -> HypergradientReport:
        with full_precision(problem.inner.device):
            return _measure(
                problem, _as(theta, dtype), _as(v, dtype), w if w is None else w.to(dtype), _as(hypergradient, dtype),
                tree_map(lambda leaf: _cast(leaf, dtype), batch),
                tree_map(lambda leaf: _cast(leaf, dtype), outer_batch),
                solve_residual, score_size, per_sample, fresh, residual, bound, reference, tol, max_iter,
            )  # fmt: skip

    return in_double(measure, problem.inner.dtype)


def in_double(measure: Callable[[torch.dtype], _Found], dtype: torch.dtype) -> _Found:
    """Evaluate in float64, or in ``dtype`` where a loss has constants of that dtype in it."""
    if dtype == torch.float64:
        return measure(dtype)
    try:
        return measure(torch.float64)
    except (RuntimeError, TypeError) as error:
        if "dtype" not in str(error) and "float" not in str(error).lower():
            raise
        return measure(dtype)


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _as(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [tensor.detach().to(dtype) for tensor in tensors]


def _measure(
    problem: BilevelProblem,
    theta: list[Tensor],
    v: list[Tensor],
    w: Tensor | None,
    hypergradient: list[Tensor],
    batch: Any,
    outer_batch: Any,
    solve_residual: float,
    score_size: float,
    per_sample: bool,
    fresh: bool,
    residual: bool,
    bound: bool,
    reference: str | None,
    tol: float,
    max_iter: int | None,
) -> HypergradientReport:
    leaves, outer_leaves = [x.requires_grad_() for x in theta], [x.requires_grad_() for x in v]
    _, grad, direct = problem.outer_gradients(leaves, outer_leaves, outer_batch)
    size = float(grad.norm())
    hessian = HessianOperator(problem, leaves, v, batch)
    stationarity = float(hessian.gradient().norm())
    ridge = problem.ridge([x.detach() for x in v], grad.dtype).detach()
    curvature = float(ridge.min())

    needed = w is not None and (residual or bound or reference is not None)
    off = float((hessian(w) - grad).norm()) if needed and w is not None else math.nan
    system_residual = (off / size if size else (0.0 if off == 0.0 else math.inf)) if needed else math.nan
    solution_bound = (off / curvature if curvature > 0 else math.inf) if needed else math.nan
    norm = cross_norm(problem, leaves, outer_leaves, batch) if bound and w is not None else math.nan
    error_bound = norm * solution_bound

    cosine = relative_error = solution_error = hypergradient_error = own = math.nan
    if reference is not None:
        solved = conjugate_gradients(hessian, grad, tol=_REFERENCE_TOL, max_iter=max_iter or 10 * len(grad))
        cross, _ = problem.cross_term(leaves, outer_leaves, solved.solution, batch)
        exact = _joined([one - other for one, other in zip(direct, cross, strict=True)])
        found = _joined(hypergradient)
        cosine, relative_error = _agreement(found, exact)
        solution_error = math.nan if w is None else float((w - solved.solution).norm())
        hypergradient_error = float((found - exact).norm())
        left = float((hessian(solved.solution) - grad).norm())
        own = left / curvature if curvature > 0 else math.inf
        reached = Assumption(f"conjugate gradients reached {_REFERENCE_TOL:g}", left <= 2.0 * _REFERENCE_TOL * size)

    sampled = Assumption("scores are those of single samples, not means of micro-batches", per_sample)
    recent = Assumption("all scores were taken at the present outer parameters", True if fresh else None)
    certificates = []
    if needed:
        name = "relative residual of the solution in the system of the true Hessian"
        certificates.append(Certificate(name, system_residual, tol, assumptions=(sampled, recent)))
    certificates += _own_certificates(problem, solve_residual, stationarity, score_size, tol)
    if reference is not None:
        certificates += [
            Certificate("relative error against conjugate gradients", relative_error, tol, assumptions=(reached,)),
            Certificate(
                "cosine to conjugate gradients", cosine, math.sqrt(max(0.0, 1.0 - tol**2)), ">=", assumptions=(reached,)
            ),
        ]
        if curvature > 0 and w is not None:
            convex = Assumption("losses are convex in the inner parameters")
            certificates.append(
                Certificate(
                    "distance to the solution of conjugate gradients, against residuals over curvature",
                    solution_error, solution_bound + own, assumptions=(convex,),
                )
            )  # fmt: skip
            if bound:
                powers = Assumption("10 power steps find the norm of the mixed derivative")
                certificates.append(
                    Certificate(
                        "distance to the hypergradient of conjugate gradients, against the bound",
                        hypergradient_error, error_bound + norm * own, assumptions=(convex, powers),
                    )
                )  # fmt: skip
    return _report(
        certificates,
        solve_residual,
        stationarity,
        curvature,
        system_residual=system_residual,
        solution_bound=solution_bound,
        error_bound=error_bound,
        cosine_to_reference=cosine,
        relative_error=relative_error,
        n_hvp=hessian.count,
    )


def _own_certificates(
    problem: BilevelProblem, solve_residual: float, stationarity: float, score_size: float, tol: float
) -> list[Certificate]:
    """What can be said without the Hessian."""
    certificates = []
    if not math.isnan(solve_residual):
        accepted = math.sqrt(torch.finfo(problem.inner.dtype).eps)
        certificates.append(Certificate("relative residual in the system that was solved", solve_residual, accepted))
    if not math.isnan(score_size):
        name = f"norm of the inner gradient, against {tol:g} of the root mean square of the scores"
        certificates.append(Certificate(name, stationarity, tol * score_size))
    return certificates


def _report(
    certificates: Sequence[Certificate],
    solve_residual: float,
    stationarity: float,
    curvature: float,
    *,
    system_residual: float = math.nan,
    solution_bound: float = math.nan,
    error_bound: float = math.nan,
    cosine_to_reference: float = math.nan,
    relative_error: float = math.nan,
    n_hvp: int = 0,
) -> HypergradientReport:
    return HypergradientReport(
        system_residual=system_residual,
        solve_residual=solve_residual,
        stationarity=stationarity,
        curvature=curvature,
        solution_bound=solution_bound,
        error_bound=error_bound,
        cosine_to_reference=cosine_to_reference,
        relative_error=relative_error,
        n_hvp=n_hvp,
        certificates=tuple(certificates),
    )


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _agreement(found: Tensor, exact: Tensor) -> tuple[float, float]:
    """Cosine and relative error; of two zeros 1 and 0."""
    sizes = float(found.norm()), float(exact.norm())
    if not any(sizes):
        return 1.0, 0.0
    cosine = float(found @ exact) / (sizes[0] * sizes[1]) if all(sizes) else 0.0
    return cosine, float((found - exact).norm()) / sizes[1] if sizes[1] else math.inf


def cross_norm(
    problem: BilevelProblem, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any, steps: int = _POWER_STEPS
) -> float:
    """Spectral norm of the mixed derivative of the inner objective, by power steps from below.

    Parameters
    ----------
    problem : BilevelProblem
        Both losses.
    theta, v : sequence of Tensor
        Where; both must require gradients.
    batch : tree of Tensor
        Samples.
    steps : int, default=10
        Products with the derivative and its transpose.

    Returns
    -------
    float
    """
    gradient = problem.inner_gradient(theta, v, batch, create_graph=True)
    if problem.ridge.present:
        gradient = gradient + problem.ridge(v, gradient.dtype) * problem.inner.flat(theta)
    # The product with the transpose is linear in its direction, so differentiating it gives the product itself.
    direction = torch.zeros_like(gradient, requires_grad=True)
    by_v = torch.autograd.grad(gradient, list(v), grad_outputs=direction, create_graph=True, allow_unused=True)
    used = [(part, x) for part, x in zip(by_v, v, strict=True) if part is not None]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(len(gradient), dtype=torch.float64, generator=generator, device=generator.device)
    current = drawn.to(gradient)
    norm = 0.0
    for _ in range(steps):
        current = current / current.norm().clamp_min(torch.finfo(current.dtype).tiny)
        back = torch.autograd.grad(gradient, [x for _, x in used], grad_outputs=current, retain_graph=True)
        norm = math.sqrt(sum(float(part.square().sum()) for part in back))
        (current,) = torch.autograd.grad(
            [part for part, _ in used], [direction], grad_outputs=list(back), retain_graph=True
        )
    return norm
