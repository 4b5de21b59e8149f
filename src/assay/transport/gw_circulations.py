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
from numba import njit
from scipy.sparse.csgraph import connected_components

from assay.transport.exact_transport import exact_transport
from assay.transport.gw_products import Sandwich

__all__ = ["Circulated", "best_step", "circulate", "exchange"]

# Entries of a difference of vertices below this share of the largest weight are rounding, not mass that moves.
_DUST = 1e-14

# An entry that keeps less than this share of its mass is emptied.
_EMPTY = 1e-14

# Gains below this share of the scale are rounding.
_NOTHING = 1e-14


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

    def __add__(self, other: Circulated) -> Circulated:
        return Circulated(
            self.decrease + other.decrease, self.products + other.products, self.multiply_adds + other.multiply_adds
        )


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
    >>> sandwich, X = Sandwich.of(path, path), np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 2.0]]) / 6
    >>> circulate(sandwich, X, sandwich.product(X), sp.csr_array(np.eye(3) / 3), w, w).decrease > 0
    True
    """
    smallest = _DUST * max(float(p.max()), float(q.max()))
    change = vertex - _worst_vertex(_on_cpu(product), _on_cpu(plan), p, q)
    total = Circulated(0.0, 0, 0)
    for rows, columns, cycle in _cycles(change, smallest):
        total += _follow(sandwich, plan, product, rows, columns, cycle)
    return total


def exchange(sandwich: Sandwich, plan: Any, product: Any, scale: float) -> Circulated:
    """Exchange the partners of two points where that lowers the objective, in a one-to-one plan that is stationary.

    Parameters
    ----------
    sandwich : Sandwich
        The product with the two matrices.
    plan, product : arrays or tensors of shape (n, n)
        A permutation matrix times a weight and ``C1 X C2`` at it; both are updated in place.
    scale : float
        The objective without agreement: gains below its rounding are none.

    Returns
    -------
    Circulated

    Notes
    -----
    To first order no exchange lowers the objective of a stationary plan. To second order one can, where the two
    points are related and so are their partners: the relation between them survives the exchange, which its
    linearisation does not see. For graphs these are the edges that the plan keeps, ``O(edges)`` pairs; for dense
    matrices all pairs.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.gw_circulations import exchange
    >>> from assay.transport.gw_products import Sandwich
    >>> paw = np.array([[0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    >>> sandwich, X = Sandwich.of(paw, paw), np.eye(4)[[3, 1, 2, 0]] / 4
    >>> exchange(sandwich, X, sandwich.product(X), 1.0).decrease > 0, X.argmax(axis=1)
    (True, array([0, 1, 2, 3]))
    """
    scores, entries = _on_cpu(product), _on_cpu(plan)
    partner = entries.argmax(axis=1)
    weight = float(entries[0, partner[0]])
    total = Circulated(0.0, 0, 0)
    used: set[int] = set()
    swap = weight * np.array([[-1.0, 1.0], [1.0, -1.0]])
    least = 0.5 * _NOTHING * scale
    for pair in zip(*_worthwhile_exchanges(sandwich, scores, partner, weight, least), strict=True):
        # A point that has moved has new partners, and what the others would gain has changed a little: ask again.
        if used.isdisjoint(pair):
            rows = np.array(pair, dtype=np.int64)
            step = _follow(sandwich, plan, product, rows, partner[rows], swap)
            total += step
            if step.decrease > 0.0:
                used.update(pair)
    return total


def _follow(
    sandwich: Sandwich,
    plan: Any,
    product: Any,
    rows: np.ndarray,
    columns: np.ndarray,
    cycle: Float[np.ndarray, "rows columns"],
) -> Circulated:
    """Move the plan along a cycle as far as the objective falls."""
    old = _on_cpu(_block(plan, rows, columns))
    block = _like(cycle, plan)
    slope = float((_block(product, rows, columns) * block).sum())
    curvature = float((sandwich.within_block(rows, columns, block) * block).sum())
    spent = sandwich.within_block_cost(rows, columns)
    falling = cycle < 0.0
    t = best_step(slope, curvature, float((old[falling] / -cycle[falling]).min()))
    gain = 2.0 * t * slope + t * t * curvature
    if t == 0.0 or gain <= 0.0:
        return Circulated(0.0, 1, spent)
    new = old + t * cycle
    new[falling & (new <= _EMPTY * old)] = 0.0
    plan[np.ix_(rows, columns)] = _like(new, plan)
    sandwich.add_block(rows, columns, _like(new - old, plan), product)
    return Circulated(2.0 * gain, 2, spent + sandwich.add_block_cost(rows, columns))


def _worst_vertex(
    scores: Float[np.ndarray, "n m"],
    entries: Float[np.ndarray, "n m"],
    p: Float[np.ndarray, " n"],
    q: Float[np.ndarray, " m"],
) -> sp.csr_array:
    """Vertex inside the support of the plan with the least total score, one connected part of the support at a time."""
    n, m = scores.shape
    row, column = np.nonzero(entries)
    alone = (np.bincount(row)[row] == 1) & (np.bincount(column)[column] == 1)
    row_parts, column_parts = [row[alone]], [column[alone]]
    mass_parts = [entries[row[alone], column[alone]]]
    row, column = row[~alone], column[~alone]
    for members in _parts(row, column, n, m):
        rows, at_row = np.unique(row[members], return_inverse=True)
        columns, at_column = np.unique(column[members], return_inverse=True)
        inside = scores[row[members], column[members]]
        low, high = float(inside.min()), float(inside.max())
        # An entry outside the support is worse than any path through it, whatever the potentials.
        costs = np.full((len(rows), len(columns)), high + (high - low + abs(high)) * (len(rows) + len(columns)))
        costs[at_row, at_column] = inside
        part = exact_transport(costs, p[rows], q[columns]).tocoo()
        row_parts.append(rows[part.row])
        column_parts.append(columns[part.col])
        mass_parts.append(part.data)
    where = np.concatenate(row_parts), np.concatenate(column_parts)
    return sp.csr_array((np.concatenate(mass_parts), where), shape=(n, m))


def _worthwhile_exchanges(
    sandwich: Sandwich, scores: Float[np.ndarray, "n n"], partner: np.ndarray, weight: float, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of points that lower half the objective by more than ``least`` when they exchange partners, best first."""
    C1, C2 = sandwich.left.on_cpu(), sandwich.right.on_cpu()
    if sp.issparse(C1) and sp.issparse(C2) and not (C1.diagonal().any() or C2.diagonal().any()):
        kept = sp.triu(C1.multiply(C2[partner][:, partner]), format="coo")
        own = scores[np.arange(len(partner)), partner]
        first, second = kept.row, kept.col
        slope = scores[first, partner[second]] + scores[second, partner[first]] - own[first] - own[second]
        gain = 2.0 * weight * slope + 4.0 * weight * weight * kept.data
        kept_gain = gain > least
        first, second, gain = first[kept_gain], second[kept_gain], gain[kept_gain]
    else:
        C1, C2 = (matrix.toarray() if sp.issparse(matrix) else matrix for matrix in (C1, C2))
        first, second, gain = _exchanges_of_all(C1, C2, scores, partner, weight, least)
    best_first = np.argsort(-gain, kind="stable")
    return first[best_first], second[best_first]


@njit(cache=True)
def _exchanges_of_all(C1, C2, scores, partner, weight, least):
    n = len(partner)
    room, count = 16, 0
    first, second, gains = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room)
    for i in range(n):
        a = partner[i]
        for j in range(i + 1, n):
            b = partner[j]
            slope = scores[i, b] + scores[j, a] - scores[i, a] - scores[j, b]
            curvature = (C1[i, i] + C1[j, j] - 2.0 * C1[i, j]) * (C2[a, a] + C2[b, b] - 2.0 * C2[a, b])
            gain = 2.0 * weight * slope + weight * weight * curvature
            if gain > least:
                if count == room:
                    first = np.concatenate((first, np.empty(room, np.int64)))
                    second = np.concatenate((second, np.empty(room, np.int64)))
                    gains = np.concatenate((gains, np.empty(room)))
                    room *= 2
                first[count], second[count], gains[count] = i, j, gain
                count += 1
    return first[:count], second[:count], gains[:count]


def _cycles(
    circulation: sp.csr_array, smallest: float
) -> Iterator[tuple[np.ndarray, np.ndarray, Float[np.ndarray, "rows columns"]]]:
    """Rows, columns and entries of the connected parts of a circulation."""
    entries = circulation.tocoo()
    kept = np.abs(entries.data) > smallest
    row, column, data = entries.row[kept], entries.col[kept], entries.data[kept]
    for members in _parts(row, column, *circulation.shape):
        if len(members) < 2 or data[members].min() >= 0.0:
            continue
        rows, at_row = np.unique(row[members], return_inverse=True)
        columns, at_column = np.unique(column[members], return_inverse=True)
        block = np.zeros((len(rows), len(columns)))
        block[at_row, at_column] = data[members]
        yield rows, columns, block


def _parts(row: np.ndarray, column: np.ndarray, n: int, m: int) -> list[np.ndarray]:
    """Indices of the entries in each connected part of a bipartite graph."""
    if len(row) == 0:
        return []
    graph = sp.coo_array((np.ones(len(row)), (row, column + n)), shape=(n + m, n + m))
    _, part = connected_components(graph, directed=False)
    order = np.argsort(part[row], kind="stable")
    return np.split(order, np.flatnonzero(np.diff(part[row[order]])) + 1)


def _on_cpu(matrix: Any) -> np.ndarray:
    return matrix.cpu().numpy() if isinstance(matrix, torch.Tensor) else matrix


def _like(block: np.ndarray, matrix: Any) -> Any:
    return torch.from_numpy(block).to(matrix.device) if isinstance(matrix, torch.Tensor) else block


def _block(matrix: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    return matrix[rows][:, columns] if isinstance(matrix, torch.Tensor) else matrix[np.ix_(rows, columns)]
