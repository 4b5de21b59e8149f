r"""One function for hypergradients by every method: natural, conjugate gradients, Neumann series, unrolled, exact.

All but the unrolled one have the form :math:`\partial_v f - (\partial^2_{v\theta} g)\,w` and differ in how ``w``, the
solution of :math:`[\partial^2_{\theta\theta} g]\,w = \partial_\theta f`, is found or approximated, so that they can be
compared at one point, with one certificate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from assay.bilevel.fisher_states import check_dense, solve_cholesky
from assay.bilevel.hessian_systems import conjugate_gradients, neumann_series
from assay.bilevel.hypergradient_batches import batch_length
from assay.bilevel.hypergradient_certificate import certify_solution
from assay.bilevel.hypergradient_parameters import ParameterSet
from assay.bilevel.hypergradient_problem import BilevelProblem, HessianOperator, full_precision, require_finite
from assay.bilevel.natural_hypergradient import NaturalHypergradient
from assay.certificate import Certificate
from assay.result import Result
from assay.validation import check_choice, check_integer, check_real, warn_not_converged

__all__ = ["HypergradResult", "hypergradient"]

METHODS = ("nhgd", "cg", "neumann", "unroll", "exact")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HypergradResult(Result):
    """A hypergradient and how far it can be relied on.

    Attributes
    ----------
    grad : Tensor or numpy.ndarray, or a list or dict of these
        Gradient of the outer problem, in the structure of ``outer_params``.
    w : Tensor or numpy.ndarray of shape (d,), or None
        Solution of the inner system; None for ``"unroll"``.
    method : str
        How it was found.
    residual : float
        Relative residual of ``w`` in the system of the true Hessian; nan for ``"unroll"`` or if not asked.
    cosine_to_reference : float
        Of ``grad``, to that of conjugate gradients; nan if not asked.
    error_bound : float
        Bound on the error of ``grad`` at these inner parameters, for losses that are convex in the inner variable; nan
        if not asked.
    n_hvp : int
        Products with the Hessian that the method took; those of the certificates are not counted.
    n_samples : int
        Inner samples that were looked at.
    seconds : float
        Time of the method, without the certificates.
    """

    grad: Any
    w: Any
    method: str
    residual: float
    cosine_to_reference: float
    error_bound: float
    n_hvp: int
    n_samples: int
    seconds: float

    @property
    def certificate(self) -> Certificate | None:
        """The first of ``certificates``: the residual in the system of the true Hessian, if it was asked for."""
        return self.certificates[0] if self.certificates else None


@torch.inference_mode(mode=False)
def hypergradient(
    inner_params: Any,
    outer_params: Any,
    inner_loss_per_sample: Any,
    outer_loss: Any,
    inner_batch: Any,
    outer_batch: Any = None,
    *,
    method: str = "nhgd",
    sample_weight: Any = None,
    ridge: Any = 0.0,
    fisher: str = "smoothed",
    damping: float = 1e-3,
    gamma0: float = 1.0,
    beta: float = 0.1,
    window: int = 512,
    micro_batch: int | None = None,
    batch_size: int | None = None,
    cross_batch: Any = None,
    tol: float = 1e-8,
    max_iter: int | None = None,
    n_terms: int = 10,
    step_size: float | None = None,
    n_steps: int = 10,
    residual: bool = True,
    bound: bool = False,
    reference: str | None = None,
    accuracy: float = 0.1,
) -> HypergradResult:
    r"""Gradient of an outer problem through the minimum of an inner one, at given parameters.

    For :math:`\min_v f(\theta^*(v), v)` with :math:`\theta^*(v) = \arg\min_\theta g(\theta, v)` it is
    :math:`\partial_v f - (\partial^2_{v\theta} g) w`, :math:`w = [\partial^2_{\theta\theta} g]^{-1} \partial_\theta f`.
    Losses are written with torch; variables and batches may be numpy arrays, and then the answer is numpy too.

    Parameters
    ----------
    inner_params, outer_params : numpy.ndarray, Tensor, sequence or mapping of these, or torch.nn.Module
        :math:`\theta`, near its minimum, and :math:`v`. They are not changed.
    inner_loss_per_sample, outer_loss : callable
        As for :class:`~assay.bilevel.NaturalHypergradient`.
    inner_batch : tree of Tensor or numpy.ndarray
        Inner samples.
    outer_batch : object, optional
        Passed to ``outer_loss``.
    method : {"nhgd", "cg", "neumann", "unroll", "exact"}, default="nhgd"
        Fisher matrix of the scores at ``inner_params``; conjugate gradients with products with the Hessian; a
        partial Neumann series; differentiation through ``n_steps`` gradient steps from ``inner_params``; the Hessian
        itself.
    sample_weight, ridge, fisher, damping, gamma0, beta, window, micro_batch : optional
        As for :class:`~assay.bilevel.NaturalHypergradient`; all but the first two for ``"nhgd"`` only.
    batch_size : int, optional
        Samples whose scores are in memory at once; all by default.
    cross_batch : tree of Tensor or numpy.ndarray, optional
        Samples of the mixed derivative (and of the products with the Hessian), ``inner_batch`` by default.
    tol : float, default=1e-8
        Relative residual of conjugate gradients.
    max_iter : int, optional
        Most of their products; by default ten times the number of inner parameters.
    n_terms : int, default=10
        Terms of the Neumann series.
    step_size : float
        Of ``"neumann"`` and ``"unroll"``, for which it must be given.
    n_steps : int, default=10
        Steps of ``"unroll"``.
    residual, bound, reference : optional
        What is measured for the certificates, as in :meth:`NaturalHypergradient.certify`. For ``"unroll"``, which
        solves no system, there is the comparison with ``reference="cg"`` only.
    accuracy : float, default=0.1
        Relative error up to which a hypergradient is called accurate.

    Returns
    -------
    HypergradResult

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, a loss, weight or derivative is not finite, or the Hessian is not positive
        definite (``"exact"``).

    Warns
    -----
    ConvergenceWarning
        If conjugate gradients do not reach ``tol``, within ``max_iter`` products or since they meet negative curvature.

    Notes
    -----
    Products with the Hessian: none, up to ``max_iter``, ``n_terms - 1``, ``n_steps``, and ``d``.

    References
    ----------
    .. [1] Kong, Chen, Zhang, Mou. Natural Hypergradient Descent: Algorithm Design, Convergence Analysis, and Parallel
       Implementation. ICML 2026, arXiv:2602.10905.

    Examples
    --------
    A ridge per parameter: the inner problem is ``mean (theta - x)^2 / 2`` with one.

    >>> import numpy as np
    >>> from assay.bilevel.hypergradient_methods import hypergradient
    >>> x = np.array([[2.0, 1.0], [4.0, 1.0]])
    >>> answer = hypergradient(
    ...     np.array([2.0, 0.5]), np.array([0.5, 1.0]),
    ...     lambda theta, v, batch: 0.5 * (theta - batch).square().sum(1),
    ...     lambda theta, v, batch: 0.5 * theta.square().sum(),
    ...     x, method="exact", ridge=lambda v: v,
    ... )
    >>> answer.grad.round(3).tolist()
    [-2.667, -0.125]
    >>> bool(answer.certificate.holds)
    True
    """
    check_choice(method, "method", METHODS)
    if batch_size is not None:
        check_integer(batch_size, "batch_size", minimum=1)
    check_real(tol, "tol", above=0)
    if max_iter is not None:
        check_integer(max_iter, "max_iter", minimum=1)
    check_integer(n_terms, "n_terms", minimum=1)
    check_integer(n_steps, "n_steps", minimum=1)
    if method in ("neumann", "unroll"):
        if step_size is None:
            raise ValueError(f"step_size must be given for method={method!r}, got None")
        step_size = check_real(step_size, "step_size", above=0)
    like_numpy = _has_arrays(outer_params)
    inner_given = _as_parameters(inner_params, "inner_params")
    outer_given = _as_parameters(outer_params, "outer_params")
    inner_batch, outer_batch = as_tensors(inner_batch, "inner_batch"), as_tensors(outer_batch, "outer_batch")
    cross_batch = inner_batch if cross_batch is None else as_tensors(cross_batch, "cross_batch")
    count = batch_length(inner_batch, "inner_batch")
    batch_length(cross_batch, "cross_batch")
    problem = BilevelProblem(
        ParameterSet(inner_given, "inner_params", require_grad=False),
        ParameterSet(outer_given, "outer_params", require_grad=False),
        inner_loss_per_sample,
        outer_loss,
        sample_weight,
        ridge,
    )
    problem.ridge.checked(problem.outer.detached())
    for batch in (inner_batch, cross_batch):
        problem.check_weights(batch)

    settings: dict[str, Any] = {"solve_residual": math.nan, "score_size": math.nan, "per_sample": micro_batch is None}
    started = time.perf_counter()
    if method == "nhgd":
        own = NaturalHypergradient(
            _requiring(inner_given), inner_loss_per_sample, outer_loss, outer_params=outer_given,
            sample_weight=sample_weight, fisher=fisher, ridge=ridge, damping=damping, gamma0=gamma0, beta=beta,
            window=window, micro_batch=micro_batch, burn_in=0,
        )  # fmt: skip
        own.take_in(inner_batch, batch_size or count)
        parts = own.hypergradient(outer_batch, cross_batch)
        found = _Found(parts, own.w, 0, count)
        seconds = time.perf_counter() - started
        settings |= own.solve_measurements()
    else:
        with full_precision(problem.inner.device):
            if method == "unroll":
                found = _unrolled(problem, inner_batch, outer_batch, float(step_size or 0.0), n_steps)
            else:
                found = _implicit(problem, method, cross_batch, outer_batch, tol, max_iter, n_terms, step_size)
        seconds = time.perf_counter() - started

    report = certify_solution(
        problem, problem.inner.detached(), problem.outer.detached(), found.w, found.parts, cross_batch, outer_batch,
        residual=residual, bound=bound, reference=reference, tol=accuracy, **settings,
    )  # fmt: skip
    return HypergradResult(
        grad=as_given(problem.outer.structured(found.parts), like_numpy),
        w=None if found.w is None else as_given(found.w, like_numpy),
        method=method,
        residual=report.system_residual,
        cosine_to_reference=report.cosine_to_reference,
        error_bound=report.error_bound,
        n_hvp=found.n_hvp,
        n_samples=found.n_samples,
        seconds=seconds,
        certificates=report.certificates,
    )


@dataclass(frozen=True)
class _Found:
    """Hypergradient, solution, products with the Hessian, and samples."""

    parts: list[Tensor]
    w: Tensor | None
    n_hvp: int
    n_samples: int


def _implicit(
    problem: BilevelProblem,
    method: str,
    batch: Any,
    outer_batch: Any,
    tol: float,
    max_iter: int | None,
    n_terms: int,
    step_size: float | None,
) -> _Found:
    """Hypergradient by a system with the true Hessian."""
    theta, v = problem.inner.leaves(), problem.outer.leaves()
    _, grad, direct = problem.outer_gradients(theta, v, outer_batch)
    hessian = HessianOperator(problem, theta, v, batch)
    require_finite("inner_loss_per_sample must have finite gradients", hessian.gradient())
    if method == "cg":
        solved = conjugate_gradients(hessian, grad, tol=tol, max_iter=max_iter or 10 * len(grad))
        if solved.residual > tol:
            warn_not_converged("hypergradient", solved.n_products, solved.residual, tol, stacklevel=5)
        w = solved.solution
    elif method == "neumann":
        w = neumann_series(hessian, grad, step_size=float(step_size or 0.0), n_terms=n_terms).solution
    else:
        check_dense(problem.inner.dim, "exact")
        identity = torch.eye(problem.inner.dim, dtype=grad.dtype, device=grad.device)
        matrix = torch.stack([hessian(column) for column in identity])
        solution = solve_cholesky((matrix + matrix.T) / 2, grad)
        if solution is None:
            raise ValueError(
                "inner_params must be where the Hessian of the inner objective is positive definite, got one that is "
                f"not in {grad.dtype}; raise ridge"
            )
        w = solution
    cross, _ = problem.cross_term(theta, v, w, batch)
    parts = [one - other for one, other in zip(direct, cross, strict=True)]
    return _Found(parts, w, hessian.count, batch_length(batch))


def _unrolled(problem: BilevelProblem, batch: Any, outer_batch: Any, step_size: float, n_steps: int) -> _Found:
    """Reverse differentiation through gradient steps on the whole batch."""
    v = problem.outer.leaves()
    theta: Sequence[Tensor] = problem.inner.leaves()
    for _ in range(n_steps):
        loss = problem.inner_loss(theta, v, batch)
        gradients = torch.autograd.grad(loss, list(theta), create_graph=True, allow_unused=True)
        theta = [
            x if gradient is None else x - step_size * gradient for x, gradient in zip(theta, gradients, strict=True)
        ]
    value = problem.outer_value(theta, v, outer_batch)
    if not value.requires_grad:
        raise ValueError("outer_loss must depend on the inner parameters, got one that depends on nothing")
    require_finite(f"step_size and inner_batch must keep {n_steps} inner steps finite", *theta, value)
    found = torch.autograd.grad(value, v, allow_unused=True)
    if all(part is None for part in found):
        raise ValueError("inner_loss_per_sample, sample_weight or ridge must depend on outer_params, got none")
    parts = [torch.zeros_like(x) if part is None else part for part, x in zip(found, v, strict=True)]
    require_finite("inner_loss_per_sample, sample_weight and ridge must have finite derivatives", *parts)
    # One product with the Hessian for each step on the way back.
    return _Found(parts, None, n_steps, batch_length(batch))


def as_tensors(content: Any, name: str) -> Any:
    """Numpy arrays in nested content as tensors; anything else as it is."""
    if isinstance(content, torch.nn.Module):
        return content

    def converted(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        if leaf.dtype.kind not in "biufc":
            raise TypeError(f"{name} must have arrays of numbers, got dtype {leaf.dtype}")
        return torch.from_numpy(np.array(leaf, dtype=leaf.dtype.newbyteorder("=")))

    return tree_map(converted, content)


def _as_parameters(content: Any, name: str) -> Any:
    """The same for variables, of which there may be any iterable, such as that of a module."""
    plain = torch.nn.Module | Tensor | np.ndarray | Mapping | list | str | bytes
    return as_tensors(
        list(content) if isinstance(content, Iterable) and not isinstance(content, plain) else content, name
    )


def as_given(content: Any, numpy: bool) -> Any:
    """Tensors as numpy arrays if that is what the user works with."""
    return tree_map(lambda leaf: leaf.detach().cpu().numpy(), content) if numpy else content


def _has_arrays(content: Any) -> bool:
    if isinstance(content, torch.nn.Module | Tensor):
        return False
    parts = content.values() if isinstance(content, Mapping) else content
    held = isinstance(parts, Iterable) and not isinstance(parts, Iterator)
    return isinstance(content, np.ndarray) or (held and any(isinstance(part, np.ndarray) for part in parts))


def _requiring(parameters: Any) -> Any:
    """The same with gradients required, without changing what the user holds."""
    if isinstance(parameters, torch.nn.Module):
        return parameters
    return tree_map(lambda leaf: leaf.detach().clone().requires_grad_(), parameters)
