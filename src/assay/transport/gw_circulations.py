r"""Steps between two vertices, one cycle at a time: what ends a zigzag of conditional gradient steps.

When a minimiser lies inside a face and not at a vertex, steps towards one vertex after the other zigzag: each takes
mass from every entry of the plan to put a little where it belongs. Moving mass from the *worst* vertex of the
plan's own support to the best one leaves everything else alone (pairwise steps). The difference of the two is a
circulation: it splits into cycles through disjoint rows and columns, and each of them gets its own exact step. A
cycle is a small block of the plan, so the block updates of the product apply. A step that empties an entry removes
it for good, which is why few of them are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from scipy.sparse.csgraph import connected_components

from assay.transport.exact_transport import exact_transport
from assay.transport.gw_products import Sandwich

__all__ = ["Circulated", "best_step", "circulate"]

# Entries below this share of the smallest weight are what subtraction leaves of an entry that was emptied.
_DUST = 1e-13


@dataclass(frozen=True)
class Circulated:
    """What a round of steps along cycles did.

    Attributes
    ----------
    decrease : float
        Of the objective; zero when no cycle lowered it.
    products : int
        Products formed, of the size of a block.
    multiply_adds : int
        Counted in them.
    """

    decrease: float
    products: int
    multiply_adds: int


def best_step(slope: float, curvature: float, limit: float = 1.0) -> float:
    """Step in [0, limit] that maximises ``2 t slope + t^2 curvature``.

    Examples
    --------
    >>> from assay.transport.gw_circulations import best_step
    >>> best_step(1.0, 0.5), best_step(1.0, -4.0), best_step(1.0, -0.5), best_step(-1.0, 3.0), best_step(-1.0, -1.0)
    (1.0, 0.25, 1.0, 1.0, 0.0)
    """
    if curvature < 0.0:
        return min(max(-slope / curvature, 0.0), limit)
    return limit if 2.0 * slope + limit * curvature > 0.0 else 0.0


def circulate(
    sandwich: Sandwich,
    plan: Any,
    product: Any,
    vertex: sp.csr_array,
    p: Float[np.ndarray, " n"],
    q: Float[np.ndarray, " m"],
) -> Circulated:
    """Move mass from the worst vertex of the plan's support to ``vertex``, cycle by cycle, as far as each is worth it.

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

    Returns
    -------
    Circulated

    Notes
    -----
    One linear transport problem, and a block update for every cycle.

    References
    ----------
    S. Lacoste-Julien, M. Jaggi. On the global linear convergence of Frank-Wolfe optimization variants. NeurIPS 2015
    (pairwise steps).

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> from assay.transport.gw_circulations import circulate
    >>> from assay.transport.gw_products import Sandwich
    >>> path, w = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), np.full(3, 1 / 3)
    >>> sandwich, X = Sandwich.of(path, path), np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]) / 6
    >>> circulate(sandwich, X, sandwich.product(X), sp.csr_array(np.eye(3) / 3), w, w).decrease > 0
    True
    """
    scores, entries = _on_cpu(product), _on_cpu(plan)
    low, high = float(scores.min()), float(scores.max())
    # A vertex outside the support would be worse than any inside it, whatever the potentials.
    barred = high + (high - low + abs(high)) * sum(scores.shape)
    worst = exact_transport(np.where(entries > 0.0, scores, barred), p, q)
    ends = worst.tocoo()
    smallest = _DUST * min(float(p.min()), float(q.min()))
    if (entries[ends.row, ends.col][ends.data > smallest] <= 0.0).any():
        return Circulated(0.0, 0, 0)
    decrease, products, spent = 0.0, 0, 0
    for rows, columns, cycle in _cycles(vertex - worst, smallest):
        old = entries[np.ix_(rows, columns)]
        block = _like(cycle, plan)
        slope = float((_block(product, rows, columns) * block).sum())
        curvature = float((sandwich.within_block(rows, columns, block) * block).sum())
        products, spent = products + 1, spent + sandwich.within_block_cost(rows, columns)
        falling = cycle < 0.0
        t = best_step(slope, curvature, float((old[falling] / -cycle[falling]).min()))
        gain = 2.0 * t * slope + t * t * curvature
        if t == 0.0 or gain <= 0.0:
            continue
        new = old + t * cycle
        new[falling & (new <= smallest)] = 0.0
        plan[np.ix_(rows, columns)] = _like(new, plan)
        sandwich.add_block(rows, columns, _like(new - old, plan), product)
        products, spent = products + 1, spent + sandwich.add_block_cost(rows, columns)
        decrease += 2.0 * gain
    return Circulated(decrease, products, spent)


def _cycles(
    circulation: sp.csr_array, smallest: float
) -> Iterator[tuple[np.ndarray, np.ndarray, Float[np.ndarray, "rows columns"]]]:
    """Rows, columns and entries of the connected parts of a circulation."""
    n, m = circulation.shape
    entries = circulation.tocoo()
    kept = np.abs(entries.data) > smallest
    row, column, data = entries.row[kept], entries.col[kept], entries.data[kept]
    graph = sp.coo_array((np.ones(len(row)), (row, column + n)), shape=(n + m, n + m))
    _, part = connected_components(graph, directed=False)
    order = np.argsort(part[row], kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(part[row[order]])) + 1):
        if len(members) < 2 or data[members].min() >= 0.0:
            continue
        rows, at_row = np.unique(row[members], return_inverse=True)
        columns, at_column = np.unique(column[members], return_inverse=True)
        block = np.zeros((len(rows), len(columns)))
        block[at_row, at_column] = data[members]
        yield rows, columns, block


def _on_cpu(matrix: Any) -> np.ndarray:
    return matrix.cpu().numpy() if isinstance(matrix, torch.Tensor) else matrix


def _like(block: np.ndarray, matrix: Any) -> Any:
    return torch.from_numpy(block).to(matrix.device) if isinstance(matrix, torch.Tensor) else block


def _block(matrix: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    return matrix[rows][:, columns] if isinstance(matrix, torch.Tensor) else matrix[np.ix_(rows, columns)]
