"""Systems with a Hessian that is known by its products only: what hypergradients are made of today."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

__all__ = ["LinearSolution", "conjugate_gradients", "neumann_series"]


@dataclass(frozen=True)
class LinearSolution:
    """Solution of a linear system, its relative residual, and how many products it took.

    ``indefinite`` says that a direction of negative curvature stopped the iteration.
    """

    solution: Float[Tensor, " dim"]
    residual: float
    n_products: int
    indefinite: bool = False


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Float[Tensor, " dim"], *, tol: float, max_iter: int
) -> LinearSolution:
    """Conjugate gradients from zero.

    Parameters
    ----------
    product : callable
        The matrix, symmetric and positive definite, times a vector.
    right : Tensor of shape (n,)
        Right-hand side.
    tol : float
        Relative residual to stop at.
    max_iter : int
        Most products.

    Returns
    -------
    LinearSolution
        The residual is the one that the iteration keeps.

    Notes
    -----
    A direction along which the matrix is not positive stops the iteration, with the answer so far.

    Examples
    --------
    >>> import torch
    >>> from assay.bilevel.hessian_systems import conjugate_gradients
    >>> A = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
    >>> conjugate_gradients(lambda x: A @ x, torch.ones(3), tol=1e-6, max_iter=10).solution
    tensor([1.0000, 0.5000, 0.2500])
    """
    solution = right.new_zeros(right.shape)
    residual, direction = right.clone(), right.clone()
    squared = float(residual @ residual)
    size = math.sqrt(squared)
    count, indefinite = 0, False
    while count < max_iter and squared > (tol * size) ** 2:
        image = product(direction)
        count += 1
        along = float(direction @ image)
        if not along > 0.0:
            indefinite = True
            break
        step = squared / along
        solution = solution + step * direction
        residual = residual - step * image
        previous, squared = squared, float(residual @ residual)
        direction = residual + (squared / previous) * direction
    return LinearSolution(solution, math.sqrt(squared) / size if size else 0.0, count, indefinite)


def neumann_series(
    product: Callable[[Tensor], Tensor], right: Float[Tensor, " dim"], *, step_size: float, n_terms: int
) -> LinearSolution:
    """Partial sum of the Neumann series of an inverse.

    Parameters
    ----------
    product : callable
        The matrix times a vector.
    right : Tensor of shape (n,)
        Right-hand side.
    step_size : float
        At most 2 over the largest eigenvalue, for the series to converge.
    n_terms : int
        Terms; there is one product fewer.

    Returns
    -------
    LinearSolution
        The residual is not computed (nan).

    Examples
    --------
    >>> import torch
    >>> from assay.bilevel.hessian_systems import neumann_series
    >>> A = torch.diag(torch.tensor([1.0, 0.5]))
    >>> neumann_series(lambda x: A @ x, torch.ones(2), step_size=1.0, n_terms=3).solution
    tensor([1.0000, 1.7500])
    """
    term = right.clone()
    total = term
    for _ in range(n_terms - 1):
        term = term - step_size * product(term)
        total = total + term
    return LinearSolution(step_size * total, math.nan, n_terms - 1)
