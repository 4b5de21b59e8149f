r"""The block of a plan that is not settled, solved to stationarity on its own.

Near the end a plan and the vertex that its gradient asks for agree in almost all rows. The few rows and columns in
which they differ make a block, and the objective as a function of the block is again quadratic: its gradient is the
block of ``C1 X C2``, and follows a change ``D`` of the block by ``C1[I, I] D C2[J, J]``. So the block can be solved
with its masses kept, by conditional gradient steps and steps along cycles that cost what the block costs; only then
is the whole plan looked at again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float

from assay.transport.exact_transport import NetworkSimplex
from assay.transport.gw_circulations import Circulated, best_step, circulate
from assay.transport.gw_products import Sandwich

__all__ = ["settle_block"]

# Steps in a block before the whole plan is looked at again.
_MOST_STEPS = 60

# A block is small when its two products take no more multiply-adds than this for every entry of the whole plan: about
# what a step on the whole plan costs.
_PRICE = 10


def settle_block(
    sandwich: Sandwich,
    plan: Any,
    product: Any,
    vertex: sp.csr_array,
    p: Float[np.ndarray, " n"],
    q: Float[np.ndarray, " m"],
    gap: float,
) -> Circulated:
    """Make a plan stationary in the block of rows and columns in which it differs from a vertex.

    Parameters
    ----------
    sandwich : Sandwich
        The product with the two matrices.
    plan, product : arrays or tensors of shape (n, m)
        A coupling and ``C1 X C2`` at it; both are updated in place.
    vertex : scipy.sparse.csr_array of shape (n, m)
        The vertex at which the linearised objective is least.
    p, q : numpy.ndarrays of shapes (n,) and (m,)
        Positive weights.
    gap : float
        Frank-Wolfe gap in the block at which it counts as stationary.

    Returns
    -------
    Circulated
        When the block is not small, what one round of :func:`assay.transport.gw_circulations.circulate` did.

    Examples
    --------
    >>> import networkx as nx
    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> from assay.transport.gw_products import Sandwich
    >>> from assay.transport.gw_settle import settle_block
    >>> C, w = nx.to_numpy_array(nx.path_graph(9)), np.full(9, 1 / 9)
    >>> sandwich, X = Sandwich.of(C, C), np.eye(9) / 9
    >>> X[:3, :3] = 1 / 27
    >>> settle_block(sandwich, X, sandwich.product(X), sp.csr_array(np.eye(9) / 9), w, w, 1e-12).decrease > 0
    True
    >>> bool((X == np.eye(9) / 9).all())
    True
    """
    whole = _on_cpu(plan)
    row, column = np.nonzero(whole)
    difference = sp.csr_array((whole[row, column], (row, column)), shape=whole.shape) - vertex
    entries = difference.tocoo()
    moving = np.abs(entries.data) > 0.0
    rows, columns = np.unique(entries.row[moving]), np.unique(entries.col[moving])
    inside = Sandwich(sandwich.left.restricted(rows), sandwich.right.restricted(columns))
    if min(inside.shape) < 2 or inside.full_cost > _PRICE * whole.size:
        return circulate(sandwich, plan, product, vertex, p, q)
    old = whole[np.ix_(rows, columns)]
    masses = old.sum(axis=1), old.sum(axis=0)
    if min(masses[0].min(), masses[1].min()) <= 0.0:
        return circulate(sandwich, plan, product, vertex, p, q)
    block, gradient = old.copy(), _on_cpu(product)[np.ix_(rows, columns)]
    done = _settle(inside, block, gradient, *masses, gap)
    if done.decrease <= 0.0:
        return done
    plan[np.ix_(rows, columns)] = _like(block, plan)
    sandwich.add_block(rows, columns, _like(block - old, plan), product)
    return done + Circulated(0.0, 1, sandwich.add_block_cost(rows, columns))


def _settle(
    sandwich: Sandwich,
    plan: Float[np.ndarray, "n m"],
    product: Float[np.ndarray, "n m"],
    p: Float[np.ndarray, " n"],
    q: Float[np.ndarray, " m"],
    gap: float,
) -> Circulated:
    """Conditional gradient and pairwise steps on a small plan, in place.

    ``product`` need not be ``C1 X C2``: it may differ from it by a constant matrix, the effect of what is outside
    the block.
    """
    simplex = NetworkSimplex(p, q)
    total, segment_next = Circulated(0.0, 0, 0), False
    for _ in range(_MOST_STEPS):
        rows, columns, mass, _, _ = simplex.solve(-product)
        direction = -plan
        direction[rows, columns] += mass
        slope = float((product * direction).sum())
        if 4.0 * slope <= gap:
            break
        change = sandwich.product(direction)
        curvature = float((change * direction).sum())
        total += Circulated(0.0, 1, sandwich.full_cost)
        t = best_step(slope, curvature)
        decrease = 2.0 * (2.0 * t * slope + t * t * curvature)
        if t < 1.0 and not segment_next:
            vertex = sp.csr_array((mass, (rows, columns)), shape=plan.shape)
            cycles = circulate(sandwich, plan, product, vertex, p, q)
            total += cycles
            segment_next = cycles.decrease < decrease
            if cycles.decrease > 0.0:
                continue
        segment_next = False
        if t == 1.0:
            plan[...] = 0.0
            plan[rows, columns] = mass
        else:
            plan += t * direction
        product += t * change
        total += Circulated(decrease, 0, 0)
    return total


def _on_cpu(matrix: Any) -> np.ndarray:
    return matrix.cpu().numpy() if isinstance(matrix, torch.Tensor) else matrix


def _like(block: np.ndarray, matrix: Any) -> Any:
    return torch.from_numpy(block).to(matrix.device) if isinstance(matrix, torch.Tensor) else block
