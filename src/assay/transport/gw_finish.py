r"""The exact end of a Gromov-Wasserstein descent: conditional gradient steps from vertex to vertex.

The last digits are what costs a mirror method its time: an entry of the plan that should be zero only decays. Once
the plan says who goes with whom, a few Frank-Wolfe steps end the matter. Each finds the vertex ``P`` of the
polytope at which the linearised objective is least (an assignment, or a network simplex for general weights) and
goes there along the segment as far as the objective falls, which for a quadratic objective is known in closed form.
A plan whose gap is zero but whose vertex is strictly lower is a saddle point (the product of the marginals on a
regular graph is one); it is left for that vertex. A one-to-one plan is also left when exchanging the partners of
two points lowers it, which no first-order step sees. When the steps zigzag, the rows and columns that do not settle
are solved on their own (:mod:`assay.transport.gw_settle`). The objective never rises, the marginals stay exact, and
a run that stops after a full step stands on a vertex: its Frank-Wolfe gap is zero, not small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from assay.transport.exact_transport import NetworkSimplex
from assay.transport.gw_circulations import best_step, exchange
from assay.transport.gw_products import Sandwich
from assay.transport.gw_settle import settle_block

__all__ = ["Finish", "vertex_finish"]

# A vertex is lower than the plan when it is so by more than this share of the scale: less is rounding.
_LOWER = 1e-14

# Steps towards vertices; when they have not arrived by then they zigzag, and steps between vertices follow.
_SEGMENTS = 10

# A block is solved to this share of the gap of the whole plan: more would be lost again in the next one.
_COARSE = 0.1


@dataclass(frozen=True)
class Finish:
    """Where the conditional gradient steps ended.

    Attributes
    ----------
    plan : array or tensor of shape (n, m)
        The last plan.
    value : float
        Objective at it.
    gap : float
        Frank-Wolfe gap at it.
    steps : int
        Steps that changed the plan.
    stationary : bool
        Whether the gap reached the tolerance.
    products : int
        Vertices for which the product was formed.
    multiply_adds : int
        Counted in the products.
    """

    plan: Any
    value: float
    gap: float
    steps: int
    stationary: bool
    products: int
    multiply_adds: int


def vertex_finish(
    sandwich: Sandwich,
    plan: Any,
    product: Any,
    p: Float[np.ndarray, " n"],
    q: Float[np.ndarray, " m"],
    *,
    scale: float,
    max_steps: int,
    gap_tol: float,
    record: Callable[[str, float, int], None],
) -> Finish:
    """Conditional gradient steps until the Frank-Wolfe gap is at most ``gap_tol * scale``.

    Parameters
    ----------
    sandwich : Sandwich
        The product with the two matrices.
    plan, product : arrays or tensors of shape (n, m)
        A coupling and ``C1 X C2`` at it; both are overwritten.
    p, q : numpy.ndarrays of shapes (n,) and (m,)
        Positive weights.
    scale : float
        The objective without agreement, what gaps and values are compared with.
    max_steps : int
        Number of steps at most.
    gap_tol : float
        Relative gap to reach.
    record : callable
        Called with ``("finish", value, multiply_adds)`` after every step.

    Returns
    -------
    Finish

    Notes
    -----
    A step costs one linear transport problem, the product at a vertex, and ``O(nm)``.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_finish import vertex_finish
    >>> from assay.transport.gw_products import Sandwich
    >>> path = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    >>> sandwich, w = Sandwich.of(path, path), np.full(3, 1 / 3)
    >>> X = np.outer(w, w)
    >>> end = vertex_finish(sandwich, X, sandwich.product(X), w, w, scale=8 / 9, max_steps=9, gap_tol=1e-10,
    ...                     record=lambda *step: None)
    >>> end.gap, end.stationary
    (0.0, True)
    """
    products, spent = 0, 0
    one_to_one = len(p) == len(q) and np.ptp(p) == 0.0 and np.ptp(q) == 0.0
    simplex = NetworkSimplex(p, q)
    segment_next = False  # whether the last round of cycles did less than a segment would have
    for steps in range(max_steps + 1):
        scores = _on_cpu(product)
        if one_to_one and steps < _SEGMENTS:
            rows, columns = linear_sum_assignment(scores, maximize=True)
            mass = np.full(len(p), p[0])
        else:
            # Later costs differ little from one step to the next: the simplex goes on from its last vertex.
            rows, columns, mass, _, _ = simplex.solve(-scores)
        vertex = sp.csr_array((mass, (rows, columns)), shape=scores.shape)
        inner = float((product * plan).sum()) if isinstance(plan, torch.Tensor) else float(np.vdot(product, plan))
        at_vertex = float(scores[rows, columns] @ mass)
        slope = at_vertex - inner
        gap = 4.0 * slope
        stationary = gap <= gap_tol * scale
        if steps == max_steps:
            break
        product_there = sandwich.of_vertex(vertex)
        cost = sandwich.vertex_cost(vertex)
        products, spent = products + 1, spent + cost
        inner_there = float(_entries(product_there, rows, columns) @ mass)
        curvature = inner - 2.0 * at_vertex + inner_there
        # At a saddle point the slope is zero and the vertex still lower: there only the curvature shows the way out.
        if stationary and 2.0 * (2.0 * slope + curvature) <= _LOWER * scale:
            if not one_to_one or len(np.flatnonzero(_on_cpu(plan))) > len(p):
                break
            swaps = exchange(sandwich, plan, product, scale)
            products, spent = products + swaps.products, spent + swaps.multiply_adds
            if swaps.decrease == 0.0:
                break
            record("finish", scale - 2.0 * inner - swaps.decrease, cost + swaps.multiply_adds)
            continue
        t = best_step(slope, curvature)
        predicted = 2.0 * (2.0 * t * slope + t * t * curvature)
        if t < 1.0 and steps >= _SEGMENTS and not segment_next:
            cycles = settle_block(sandwich, plan, product, vertex, p, q, _COARSE * max(gap_tol * scale, gap))
            products, spent = products + cycles.products, spent + cycles.multiply_adds
            segment_next = cycles.decrease < predicted
            if cycles.decrease > 0.0:
                record("finish", scale - 2.0 * inner - cycles.decrease, cost + cycles.multiply_adds)
                continue
        segment_next = False
        _move(plan, t, rows, columns, mass)
        if sp.issparse(product_there):
            entries = product_there.tocoo()
            _move(product, t, entries.row, entries.col, entries.data)
        else:
            product *= 1.0 - t
            product_there *= t
            product += product_there
        record("finish", scale - 2.0 * inner - predicted, cost)
    return Finish(plan, scale - 2.0 * inner, max(gap, 0.0), steps, stationary, products, spent)


def _on_cpu(matrix: Any) -> np.ndarray:
    return matrix.cpu().numpy() if isinstance(matrix, torch.Tensor) else matrix


def _entries(matrix: Any, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    entries = matrix[rows, columns]
    if isinstance(entries, torch.Tensor):
        return entries.cpu().numpy()
    return np.asarray(entries.todense()).ravel() if sp.issparse(entries) else np.asarray(entries).ravel()


def _move(matrix: Any, t: float, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
    """``matrix <- (1 - t) matrix + t V`` for the matrix ``V`` with these non-zeros."""
    if t == 1.0:
        matrix[...] = 0.0  # the plan becomes the vertex itself, without what multiplying by zero would leave
    else:
        matrix *= 1.0 - t
    if isinstance(matrix, torch.Tensor):
        matrix[rows, columns] += torch.from_numpy(t * values).to(matrix.device)
    else:
        matrix[rows, columns] += t * values
