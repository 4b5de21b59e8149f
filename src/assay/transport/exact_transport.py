r"""Exact linear transport: the coupling of least total cost, with dual potentials that prove it.

Conditional gradient methods on the transport polytope need the vertex at which a linear cost is least. Two cases:

- equal numbers of points with equal weights: an assignment, for which scipy has a fast solver;
- any weights: the network simplex. A vertex of the polytope is a spanning tree of the complete bipartite graph of
  rows and columns, and the potentials are the sums of costs along the tree. An entry whose cost is less than the
  two potentials say enters the tree, mass goes round the cycle that it closes, and the entry that runs empty
  leaves.

The second solver needs no library. The costs here are dense, of a thousand rows and more, where a general linear
programming solver with a million variables takes minutes, and an answer should not depend on what else is installed.

Ties are what makes a simplex method cycle. The tree is kept *strongly feasible* (Cunningham): an entry of the tree
without mass always points towards the root, and among several entries that run empty the last one round the cycle
leaves. With that rule no tree comes back.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numba import njit
from scipy.optimize import linear_sum_assignment

__all__ = ["NetworkSimplex", "exact_transport", "largest_feasible_potential", "network_simplex"]

# An entry enters the tree when it gains more than this share of the range of the costs: below it is rounding.
_GAIN = 1e-14


def exact_transport(
    cost: Float[np.ndarray, "rows columns"],
    p: Float[np.ndarray, " rows"],
    q: Float[np.ndarray, " columns"],
    *,
    maximize: bool = False,
) -> sp.csr_array:
    r"""Vertex of the transport polytope with the least total cost.

    .. math:: \min_P \sum_{ij} C_{ij} P_{ij} \quad\text{s.t.}\quad P \ge 0,\ P 1 = p,\ P^\top 1 = q

    Parameters
    ----------
    cost : numpy.ndarray of shape (rows, columns)
        Finite costs.
    p, q : numpy.ndarrays of shapes (rows,) and (columns,)
        Positive weights of equal total.
    maximize : bool, default=False
        Look for the largest total instead.

    Returns
    -------
    scipy.sparse.csr_array of shape (rows, columns)
        The optimal plan, with at most ``rows + columns - 1`` entries. For equal weights and as many rows as columns
        it is a permutation matrix times the weight.

    Notes
    -----
    The assignment takes ``O(n^3)`` in the worst case, and much less when the costs separate the rows.

    References
    ----------
    D. F. Crouse. On implementing 2D rectangular assignment algorithms. IEEE Transactions on Aerospace and Electronic
    Systems 52, 2016 (the assignment). W. H. Cunningham. A network simplex method. Mathematical Programming 11, 1976.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.exact_transport import exact_transport
    >>> exact_transport(np.array([[0.0, 1.0], [1.0, 3.0]]), np.array([0.5, 0.5]), np.array([0.25, 0.75])).toarray()
    array([[0.  , 0.5 ],
           [0.25, 0.25]])
    """
    n, m = cost.shape
    if n == m and p.min() == p.max() and q.min() == q.max():
        rows, columns = linear_sum_assignment(cost, maximize=maximize)
        return sp.csr_array((np.full(n, p[0]), (rows, columns)), shape=(n, m))
    rows, columns, mass, _, _ = network_simplex(-cost if maximize else cost, p, q)
    return sp.csr_array((mass, (rows, columns)), shape=(n, m))


def network_simplex(
    cost: Float[np.ndarray, "rows columns"], p: Float[np.ndarray, " rows"], q: Float[np.ndarray, " columns"]
) -> tuple[
    Int[np.ndarray, " entries"],
    Int[np.ndarray, " entries"],
    Float[np.ndarray, " entries"],
    Float[np.ndarray, " rows"],
    Float[np.ndarray, " columns"],
]:
    """Optimal transport plan for any weights, with the potentials that prove it optimal.

    Parameters
    ----------
    cost : numpy.ndarray of shape (rows, columns)
        Finite costs.
    p, q : numpy.ndarrays of shapes (rows,) and (columns,)
        Positive weights of equal total.

    Returns
    -------
    rows, columns, mass : numpy.ndarrays of shape (entries,)
        The non-zeros of the plan, at most ``rows + columns - 1``.
    phi, psi : numpy.ndarrays of shapes (rows,) and (columns,)
        Potentials with ``phi_i + psi_j <= cost_ij`` for all entries, and equality (up to rounding) where the plan
        has mass.

    Notes
    -----
    A pivot costs ``O(rows + columns)``, less where the tree is flat; there are some ten pivots a node.

    References
    ----------
    W. H. Cunningham. A network simplex method. Mathematical Programming 11, 1976.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.exact_transport import network_simplex
    >>> cost, p, q = np.array([[0.0, 1.0], [1.0, 3.0]]), np.array([0.5, 0.5]), np.array([0.25, 0.75])
    >>> rows, columns, mass, phi, psi = network_simplex(cost, p, q)
    >>> float(cost[rows, columns] @ mass), float(p @ phi + q @ psi)
    (1.5, 1.5)
    """
    return NetworkSimplex(p, q).solve(cost)


class NetworkSimplex:
    """The network simplex for one pair of distributions and a sequence of costs, each solved from where the last
    one ended.

    Parameters
    ----------
    p, q : numpy.ndarrays of shapes (rows,) and (columns,)
        Positive weights of equal total.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.exact_transport import NetworkSimplex
    >>> simplex = NetworkSimplex(np.array([0.5, 0.5]), np.array([0.25, 0.75]))
    >>> for cost in (np.array([[0.0, 1.0], [1.0, 3.0]]), np.array([[0.0, 1.0], [1.0, 1.5]])):
    ...     rows, columns, mass, phi, psi = simplex.solve(cost)
    ...     print(cost[rows, columns] @ mass)
    1.5
    1.0
    """

    def __init__(self, p: Float[np.ndarray, " rows"], q: Float[np.ndarray, " columns"]):
        self.p, self.q = np.array(p, dtype=np.float64), np.array(q, dtype=np.float64)
        self._tree: tuple[np.ndarray, np.ndarray, int] | None = None

    def solve(
        self, cost: Float[np.ndarray, "rows columns"]
    ) -> tuple[
        Int[np.ndarray, " entries"],
        Int[np.ndarray, " entries"],
        Float[np.ndarray, " entries"],
        Float[np.ndarray, " rows"],
        Float[np.ndarray, " columns"],
    ]:
        """As :func:`network_simplex`, from the tree of the last call."""
        cost = np.ascontiguousarray(cost, dtype=np.float64)
        n, m = cost.shape
        if self._tree is None:
            self._tree = _greedy_tree(cost, self.p.copy(), self.q.copy())
        parent, flow, root = self._tree
        phi, psi = np.empty(n), np.empty(m)
        gain = _GAIN * (float(cost.max()) - float(cost.min()))
        _pivot_until_optimal(cost, parent, flow, root, phi, psi, gain)
        child = np.flatnonzero(flow > 0.0)
        child = child[child != root]
        above = parent[child]
        rows, columns = np.minimum(child, above), np.maximum(child, above) - n
        # The largest phi that is feasible for psi: exactly feasible, not up to the tolerance.
        return rows, columns, flow[child], largest_feasible_potential(cost, psi), psi


@njit(cache=True)
def largest_feasible_potential(cost, psi):
    """``phi_i = min_j (cost_ij - psi_j)``, which makes ``p phi + q psi`` a lower bound on the cost for any ``psi``."""
    n, m = cost.shape
    phi = np.full(n, np.inf)
    for i in range(n):
        for j in range(m):
            phi[i] = min(phi[i], cost[i, j] - psi[j])
    return phi


@njit(cache=True)
def _greedy_tree(cost, supply, demand):
    """Spanning tree of a feasible plan: row by row, each sends to the nearest columns that have room.

    Nodes are the rows, then the columns. An entry of the plan exhausts its row or its column, which becomes the
    child of the other; the mass is stored with the child. When an entry exhausts both, the column becomes the child
    and the row goes on with nothing left, so that every entry without mass leads from a row up to its parent:
    strongly feasible.
    """
    n, m = cost.shape
    parent, flow = np.full(n + m, -1), np.zeros(n + m)
    room = np.arange(m)  # columns that are not exhausted: the first `n_room`
    n_room = m
    for i in range(n - 1):
        while True:
            best, at = np.inf, 0
            for k in range(n_room):
                if cost[i, room[k]] < best:
                    best, at = cost[i, room[k]], k
            j = room[at]
            # The last column must stay for the rows that follow, whatever rounding has left of its room.
            if demand[j] <= supply[i] and n_room > 1:
                parent[n + j], flow[n + j] = i, demand[j]
                supply[i] -= demand[j]
                n_room -= 1
                room[at] = room[n_room]
            else:
                parent[i], flow[i] = n + j, supply[i]
                demand[j] = max(demand[j] - supply[i], 0.0)
                break
    for k in range(n_room):
        parent[n + room[k]], flow[n + room[k]] = n - 1, demand[room[k]]
    return parent, flow, n - 1


@njit(cache=True)
def _pivot_until_optimal(cost, parent, flow, root, phi, psi, gain):
    n, m = cost.shape
    size = n + m
    child, after, before = np.full(size, -1), np.full(size, -1), np.full(size, -1)
    depth = np.zeros(size, np.int64)
    for v in range(size):
        if v != root:
            _attach(v, parent[v], child, after, before)
    _walk_from_root(cost, root, parent, child, after, depth, phi, psi)
    block = max(1, int(np.sqrt(n / m)))  # rows that are priced before the best of them enters
    row, priced, fresh = 0, 0, True
    while True:
        best, enter_row, enter_column = -gain, -1, -1
        for _ in range(block):
            costs, base = cost[row], phi[row]
            for j in range(m):
                reduced = costs[j] - base - psi[j]
                if reduced < best:
                    best, enter_row, enter_column = reduced, row, j
            row = row + 1 if row + 1 < n else 0
        priced += block
        if enter_row < 0:
            if priced < n + block:
                continue
            if fresh:
                return
            # Nothing enters, but the potentials were updated many times: confirm it with exact ones.
            _walk_from_root(cost, root, parent, child, after, depth, phi, psi)
            priced, fresh = 0, True
            continue
        priced, fresh = 0, False

        # Mass flows out of the row and into the column that enter. On the way up from the row the entries of rows lose
        # mass, on the way up from the column those of columns; the others gain it.
        low, high = enter_row, n + enter_column
        amount, leave, leave_below_row = np.inf, -1, True
        while low != high:
            if depth[low] >= depth[high]:
                if low < n and flow[low] < amount:
                    amount, leave, leave_below_row = flow[low], low, True
                low = parent[low]
            else:
                high = parent[high]
        apex = low
        v = n + enter_column
        while v != apex:
            if v >= n and flow[v] <= amount:
                amount, leave, leave_below_row = flow[v], v, False
            v = parent[v]
        if amount > 0.0:
            v = enter_row
            while v != apex:
                flow[v] += amount if v >= n else -amount
                v = parent[v]
            v = n + enter_column
            while v != apex:
                flow[v] += amount if v < n else -amount
                v = parent[v]

        # The part of the tree below the entry that leaves is hung up again by the entry that enters.
        hook, new_parent = enter_row, n + enter_column
        if not leave_below_row:
            hook, new_parent = new_parent, hook
        v, above, carried = hook, new_parent, amount
        while True:
            old_parent, old_flow = parent[v], flow[v]
            _detach(v, old_parent, child, after, before)
            _attach(v, above, child, after, before)
            parent[v], flow[v] = above, carried
            if v == leave:
                break
            above, carried, v = v, old_flow, old_parent
        shift_rows = best if leave_below_row else -best
        v = hook
        while True:
            depth[v] = depth[parent[v]] + 1
            if v < n:
                phi[v] += shift_rows
            else:
                psi[v - n] -= shift_rows
            if child[v] >= 0:
                v = child[v]
                continue
            while v != hook and after[v] < 0:
                v = parent[v]
            if v == hook:
                break
            v = after[v]


@njit(cache=True)
def _walk_from_root(cost, root, parent, child, after, depth, phi, psi):
    """Depths and potentials from the tree alone; the root is a row, of potential zero."""
    n = cost.shape[0]
    depth[root] = 0
    phi[root] = 0.0
    v = child[root]
    while v >= 0:
        above = parent[v]
        depth[v] = depth[above] + 1
        if v < n:
            phi[v] = cost[v, above - n] - psi[above - n]
        else:
            psi[v - n] = cost[above, v - n] - phi[above]
        if child[v] >= 0:
            v = child[v]
            continue
        while v != root and after[v] < 0:
            v = parent[v]
        v = -1 if v == root else after[v]


@njit(cache=True)
def _attach(v, above, child, after, before):
    after[v] = child[above]
    before[v] = -1
    if child[above] >= 0:
        before[child[above]] = v
    child[above] = v


@njit(cache=True)
def _detach(v, above, child, after, before):
    if before[v] >= 0:
        after[before[v]] = after[v]
    else:
        child[above] = after[v]
    if after[v] >= 0:
        before[after[v]] = before[v]
