"""Edmonds' blossom algorithm, primal and dual, on a graph with integer weights: compiled, exact, without tolerances.

The linear programme behind minimum-weight perfect matching has a free variable ``y`` per vertex and one ``z >= 0`` per
odd vertex set; dual feasibility says that no edge has negative slack ``w(u, v) - y(u) - y(v) + sum of z(B)``, the sum
over the sets B that contain both ends. The algorithm keeps the duals feasible and grows a matching of slack-zero
edges, one alternating tree at a time, from a free vertex until it meets another:

- an edge to a matched vertex outside the tree grows it by that vertex (inner) and its partner (outer);
- an edge to a free vertex ends the search: the path to the root is augmented;
- an edge between two outer vertices closes an odd cycle, a *blossom*, which from then on is one outer node;
- an inner blossom whose ``z`` fell to zero is expanded again.

Between events, outer ``y`` rise and inner ``y`` fall at unit speed (``z`` of their blossoms at twice that), so every
event has a time known in advance and one heap holds them all. The duals of the tree are stored relative to that time
and never swept. Even integer weights keep all of it in integers. Inside the code, time is doubled: an edge between
outer vertices becomes tight at twice the speed.
"""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit

__all__ = ["solve_integer_matching"]

NONE, OUTER, INNER = 0, 1, 2
_NEVER = np.int64(2**62)

# The state is one integer array, with a row for each of the following: compiled functions that hand on one array are
# built several times faster than those that hand on two dozen. Per vertex:
MATE = 0  # partner, -1 when free
DUAL = 1  # y; in the tree: relative to the time
TOP = 2  # the outermost node that contains the vertex
FOLLOW = 3  # next vertex in the vertex list of a node
REACH = 4  # smallest weight minus dual over the scanned outer vertices
REACH_TAIL = 5  # outer vertex of that edge
REACH_EDGE = 6  # its position in the adjacency
# Per node, vertices first, then blossoms:
BLOSSOM_DUAL = 7  # z; in the tree: relative to the time
UP = 8  # blossom that contains the node, -1 when outermost
BASE = 9  # the one vertex that is not matched inside
FIRST, LAST = 10, 11  # first and last vertex of the vertex list
LABEL = 12
ENTRY_TAIL, ENTRY_HEAD = 13, 14  # for an inner node: the tree edge that leads to it
NEXT_CHILD, PREV_CHILD = 15, 16  # the cycle of children of a blossom
LINK_TAIL, LINK_HEAD = 17, 18  # the edge from this child to the next
BASE_CHILD = 19
MARK = 20
# Work space:
FREE_NODES = 21  # stack of unused blossom numbers
STACK_NODE, STACK_VERTEX = 22, 23
CYCLE = 24
COUNTER = 25  # single numbers:
STAMP, LIMIT, N_VERTICES, N_FREE = range(4)  # of MARK; earliest known time of an augmentation; sizes


@njit(cache=True)
def _new_forest(n):
    """Every vertex free and on its own."""
    nodes = n + n // 2 + 4
    n_free = nodes - n
    forest = np.full((COUNTER + 1, nodes), -1, np.int64)
    for k in range(nodes):
        forest[TOP, k] = forest[BASE, k] = forest[FIRST, k] = forest[LAST, k] = k
        forest[DUAL, k] = forest[BLOSSOM_DUAL, k] = forest[LABEL, k] = forest[MARK, k] = 0
        forest[REACH, k] = _NEVER
        if k < n_free:
            forest[FREE_NODES, k] = nodes - 1 - k
    forest[COUNTER, STAMP] = 0
    forest[COUNTER, LIMIT] = 0
    forest[COUNTER, N_VERTICES] = n
    forest[COUNTER, N_FREE] = n_free
    return forest


@njit(cache=True)
def _start(forest, indptr, indices, weights):
    """Feasible duals, tight at every vertex, and a greedy matching of tight edges."""
    n = forest[COUNTER, N_VERTICES]
    for u in range(n):
        smallest = _NEVER
        for e in range(indptr[u], indptr[u + 1]):
            smallest = min(smallest, weights[e])
        forest[DUAL, u] = smallest // 2
    for u in range(n):
        if forest[MATE, u] >= 0:
            continue
        smallest = _NEVER
        for e in range(indptr[u], indptr[u + 1]):
            smallest = min(smallest, weights[e] - forest[DUAL, u] - forest[DUAL, indices[e]])
        forest[DUAL, u] += smallest
        for e in range(indptr[u], indptr[u + 1]):
            v = indices[e]
            if forest[MATE, v] < 0 and weights[e] == forest[DUAL, u] + forest[DUAL, v]:
                forest[MATE, u] = v
                forest[MATE, v] = u
                break


@njit(cache=True)
def _child_with(forest, blossom, vertex):
    node = vertex
    while forest[UP, node] != blossom:
        node = forest[UP, node]
    return node


@njit(cache=True)
def _goes_forward(forest, blossom, child):
    """Direction along the cycle in which the number of steps from ``child`` to the base child is even."""
    forward = False
    node = forest[BASE_CHILD, blossom]
    while node != child:
        node = forest[NEXT_CHILD, node]
        forward = not forward
    return forward


@njit(cache=True)
def _step(forest, node, forward):
    """The neighbour on the cycle and the edge to it: (neighbour, vertex here, vertex there)."""
    if forward:
        return forest[NEXT_CHILD, node], forest[LINK_TAIL, node], forest[LINK_HEAD, node]
    neighbor = forest[PREV_CHILD, node]
    return neighbor, forest[LINK_HEAD, neighbor], forest[LINK_TAIL, neighbor]


@njit(cache=True)
def _rebase(forest, node, vertex):
    """Turn the matching inside ``node`` so that ``vertex`` is the one left over."""
    n = forest[COUNTER, N_VERTICES]
    forest[STACK_NODE, 0], forest[STACK_VERTEX, 0] = node, vertex
    height = 1
    while height > 0:
        height -= 1
        blossom, exposed = forest[STACK_NODE, height], forest[STACK_VERTEX, height]
        if blossom < n:
            continue
        child = _child_with(forest, blossom, exposed)
        forward = _goes_forward(forest, blossom, child)
        forest[STACK_NODE, height], forest[STACK_VERTEX, height] = child, exposed
        height += 1
        node = child
        while node != forest[BASE_CHILD, blossom]:
            left, _, _ = _step(forest, node, forward)
            right, tail, head = _step(forest, left, forward)
            forest[MATE, tail], forest[MATE, head] = head, tail
            forest[STACK_NODE, height], forest[STACK_VERTEX, height] = left, tail
            forest[STACK_NODE, height + 1], forest[STACK_VERTEX, height + 1] = right, head
            height += 2
            node = right
        forest[BASE_CHILD, blossom] = child
        forest[BASE, blossom] = exposed


@njit(cache=True)
def _augment(forest, tail, head):
    """Flip the path from the free node of ``head`` over the outer vertex ``tail`` to the root."""
    _rebase(forest, forest[TOP, head], head)
    while True:
        outer = forest[TOP, tail]
        partner = forest[MATE, forest[BASE, outer]]
        _rebase(forest, outer, tail)
        forest[MATE, tail], forest[MATE, head] = head, tail
        if partner < 0:
            return
        inner = forest[TOP, partner]
        tail, head = forest[ENTRY_TAIL, inner], forest[ENTRY_HEAD, inner]
        _rebase(forest, inner, head)


@njit(cache=True)
def _outer_above(forest, outer):
    """The outer node two levels nearer to the root, -1 at the root."""
    partner = forest[MATE, forest[BASE, outer]]
    return -1 if partner < 0 else forest[TOP, forest[ENTRY_TAIL, forest[TOP, partner]]]


@njit(cache=True)
def _common_outer(forest, left, right):
    forest[COUNTER, STAMP] += 1
    stamp = forest[COUNTER, STAMP]
    while left >= 0:
        forest[MARK, left] = stamp
        left = _outer_above(forest, left)
    while forest[MARK, right] != stamp:
        right = _outer_above(forest, right)
    return right


@njit(cache=True)
def _scan(forest, heap, tail, indptr, indices, weights, reached):
    """Record the edges of a vertex that has become outer, and when they will be tight."""
    limit = forest[COUNTER, LIMIT]
    own = forest[TOP, tail]
    own_dual = forest[DUAL, tail]
    for e in range(indptr[tail], indptr[tail + 1]):
        head = indices[e]
        node = forest[TOP, head]
        distance = weights[e] - own_dual
        if forest[LABEL, node] == OUTER:
            if node != own:
                time = distance - forest[DUAL, head]
                if time < limit:
                    heapq.heappush(heap, (time, tail, e))
        elif distance < forest[REACH, head]:
            if forest[REACH_TAIL, head] < 0:
                reached.append(head)
            forest[REACH, head] = distance
            forest[REACH_TAIL, head] = tail
            forest[REACH_EDGE, head] = e
            if forest[LABEL, node] == NONE:
                time = 2 * (distance - forest[DUAL, head])
                if time < limit:
                    heapq.heappush(heap, (time, tail, e))
                    if forest[MATE, forest[BASE, node]] < 0:
                        limit = time
    forest[COUNTER, LIMIT] = limit


@njit(cache=True)
def _make_outer(forest, node, shift, outer):
    """Append the vertices of a node to the outer ones; ``shift`` makes their duals relative to the time."""
    vertex = forest[FIRST, node]
    while True:
        forest[DUAL, vertex] -= shift
        outer.append(vertex)
        if vertex == forest[LAST, node]:
            return
        vertex = forest[FOLLOW, vertex]


@njit(cache=True)
def _make_inner(forest, heap, node, tail, head, inner):
    """Label a node inner, reached over the edge (tail, head), and note when it is to be expanded."""
    forest[LABEL, node] = INNER
    forest[ENTRY_TAIL, node], forest[ENTRY_HEAD, node] = tail, head
    inner.append(node)
    if node >= forest[COUNTER, N_VERTICES] and forest[BLOSSOM_DUAL, node] < forest[COUNTER, LIMIT]:
        heapq.heappush(heap, (forest[BLOSSOM_DUAL, node], np.int64(-1), node))


@njit(cache=True)
def _shift_vertices(forest, node, shift):
    vertex = forest[FIRST, node]
    while True:
        forest[DUAL, vertex] += shift
        if vertex == forest[LAST, node]:
            return
        vertex = forest[FOLLOW, vertex]


@njit(cache=True)
def _set_top(forest, node):
    vertex = forest[FIRST, node]
    while True:
        forest[TOP, vertex] = node
        if vertex == forest[LAST, node]:
            return
        vertex = forest[FOLLOW, vertex]


@njit(cache=True)
def _grow(forest, heap, tail, head, time, outer, inner):
    """Add the matched node of ``head`` to the tree, and its partner below it."""
    half = time // 2
    node = forest[TOP, head]
    _shift_vertices(forest, node, half)
    forest[BLOSSOM_DUAL, node] += time
    _make_inner(forest, heap, node, tail, head, inner)
    partner = forest[TOP, forest[MATE, forest[BASE, node]]]
    forest[LABEL, partner] = OUTER
    forest[BLOSSOM_DUAL, partner] -= time
    _make_outer(forest, partner, half, outer)


@njit(cache=True)
def _shrink(forest, tail, head, time, outer):
    """Contract the cycle that the edge between two outer vertices closes in the tree into an outer blossom."""
    left, right = forest[TOP, tail], forest[TOP, head]
    common = _common_outer(forest, left, right)
    height = forest[COUNTER, N_FREE] - 1
    forest[COUNTER, N_FREE] = height
    blossom = forest[FREE_NODES, height]

    # The cycle runs from the common ancestor down to the tail and back up from the head.
    depth = 0
    node = left
    while node != common:
        depth += 2
        node = _outer_above(forest, node)
    length = depth + 1
    forest[CYCLE, 0] = common
    node = left
    while node != common:
        partner = forest[MATE, forest[BASE, node]]
        inner = forest[TOP, partner]
        forest[CYCLE, depth], forest[CYCLE, depth - 1] = node, inner
        forest[LINK_TAIL, inner], forest[LINK_HEAD, inner] = partner, forest[BASE, node]
        node = forest[TOP, forest[ENTRY_TAIL, inner]]
        forest[LINK_TAIL, node], forest[LINK_HEAD, node] = forest[ENTRY_TAIL, inner], forest[ENTRY_HEAD, inner]
        depth -= 2
    forest[LINK_TAIL, left], forest[LINK_HEAD, left] = tail, head
    node = right
    while node != common:
        partner = forest[MATE, forest[BASE, node]]
        inner = forest[TOP, partner]
        forest[LINK_TAIL, node], forest[LINK_HEAD, node] = forest[BASE, node], partner
        forest[LINK_TAIL, inner], forest[LINK_HEAD, inner] = forest[ENTRY_HEAD, inner], forest[ENTRY_TAIL, inner]
        forest[CYCLE, length], forest[CYCLE, length + 1] = node, inner
        length += 2
        node = forest[TOP, forest[ENTRY_TAIL, inner]]

    for position in range(length):
        child = forest[CYCLE, position]
        after = forest[CYCLE, position + 1 if position + 1 < length else 0]
        forest[NEXT_CHILD, child] = after
        forest[PREV_CHILD, after] = child
        forest[UP, child] = blossom
        if position + 1 < length:
            forest[FOLLOW, forest[LAST, child]] = forest[FIRST, after]
        if forest[LABEL, child] == INNER:
            # The vertices change from relative inner to relative outer duals: twice the elapsed time.
            forest[BLOSSOM_DUAL, child] -= time
            _make_outer(forest, child, time, outer)
        else:
            forest[BLOSSOM_DUAL, child] += time
        forest[LABEL, child] = NONE
    forest[FIRST, blossom] = forest[FIRST, common]
    forest[LAST, blossom] = forest[LAST, forest[CYCLE, length - 1]]
    forest[BASE, blossom] = forest[BASE, common]
    forest[BASE_CHILD, blossom] = common
    forest[UP, blossom] = -1
    forest[LABEL, blossom] = OUTER
    forest[BLOSSOM_DUAL, blossom] = -time
    _set_top(forest, blossom)


@njit(cache=True)
def _expand(forest, heap, blossom, time, outer, inner):
    """Open an inner blossom with z = 0: the even part of its cycle stays in the tree, the other part leaves it."""
    tail, head = forest[ENTRY_TAIL, blossom], forest[ENTRY_HEAD, blossom]
    entry = _child_with(forest, blossom, head)
    base_child = forest[BASE_CHILD, blossom]
    forward = _goes_forward(forest, blossom, entry)
    child = base_child
    while True:
        forest[UP, child] = -1
        forest[LABEL, child] = NONE
        _set_top(forest, child)
        child = forest[NEXT_CHILD, child]
        if child == base_child:
            break
    # The vertices have relative inner duals, which those that stay inner keep.
    node = entry
    while True:
        forest[BLOSSOM_DUAL, node] += time
        _make_inner(forest, heap, node, tail, head, inner)
        if node == base_child:
            break
        below, _, _ = _step(forest, node, forward)
        node, tail, head = _step(forest, below, forward)
        forest[LABEL, below] = OUTER
        forest[BLOSSOM_DUAL, below] -= time
        _make_outer(forest, below, time, outer)
    child = forest[NEXT_CHILD, base_child]
    while child != base_child:
        if forest[LABEL, child] == NONE:
            _release(forest, heap, child, time // 2)
        child = forest[NEXT_CHILD, child]
    height = forest[COUNTER, N_FREE]
    forest[FREE_NODES, height] = blossom
    forest[COUNTER, N_FREE] = height + 1
    forest[LABEL, blossom] = NONE


@njit(cache=True)
def _release(forest, heap, node, half):
    """Take a former part of an inner blossom out of the tree and let its vertices be reached again."""
    vertex = forest[FIRST, node]
    while True:
        forest[DUAL, vertex] -= half
        if forest[REACH_TAIL, vertex] >= 0:
            time = 2 * (forest[REACH, vertex] - forest[DUAL, vertex])
            if time < forest[COUNTER, LIMIT]:
                heapq.heappush(heap, (time, forest[REACH_TAIL, vertex], forest[REACH_EDGE, vertex]))
        if vertex == forest[LAST, node]:
            return
        vertex = forest[FOLLOW, vertex]


@njit(cache=True)
def _search(forest, root, indptr, indices, weights):
    """Grow a tree from a free vertex until the matching can be augmented; False if that is impossible."""
    heap = [(np.int64(0), np.int64(0), np.int64(0)) for _ in range(0)]
    outer = [np.int64(0) for _ in range(0)]
    inner = [np.int64(0) for _ in range(0)]
    reached = [np.int64(0) for _ in range(0)]
    time = np.int64(0)
    forest[COUNTER, LIMIT] = _NEVER
    forest[LABEL, forest[TOP, root]] = OUTER
    _make_outer(forest, forest[TOP, root], time, outer)
    n_scanned = 0
    found = False
    while not found:
        while n_scanned < len(outer):
            _scan(forest, heap, outer[n_scanned], indptr, indices, weights, reached)
            n_scanned += 1
        if len(heap) == 0:
            break
        # Entries that later events made obsolete are recognised by their time.
        due, tail, e = heapq.heappop(heap)
        if tail < 0:
            if forest[LABEL, e] == INNER and forest[BLOSSOM_DUAL, e] == due:
                time = due
                _expand(forest, heap, e, time, outer, inner)
            continue
        head = indices[e]
        node = forest[TOP, head]
        distance = weights[e] - forest[DUAL, tail] - forest[DUAL, head]
        if forest[LABEL, node] == NONE and due == 2 * distance:
            time = due
            if forest[MATE, forest[BASE, node]] < 0:
                _augment(forest, tail, head)
                found = True
            else:
                _grow(forest, heap, tail, head, time, outer, inner)
        elif forest[LABEL, node] == OUTER and node != forest[TOP, tail] and due == distance:
            time = due
            _shrink(forest, tail, head, time, outer)
    _leave_tree(forest, time, outer, inner, reached)
    return found


@njit(cache=True)
def _leave_tree(forest, time, outer, inner, reached):
    """Make all duals absolute again and forget the labels."""
    for vertex in outer:
        forest[DUAL, vertex] += time // 2
        node = forest[TOP, vertex]
        if forest[LABEL, node] == OUTER:
            forest[BLOSSOM_DUAL, node] += time
            forest[LABEL, node] = NONE
    for node in inner:
        if forest[LABEL, node] == INNER:
            _shift_vertices(forest, node, -(time // 2))
            forest[BLOSSOM_DUAL, node] -= time
            forest[LABEL, node] = NONE
    for vertex in reached:
        forest[REACH, vertex] = _NEVER
        forest[REACH_TAIL, vertex] = -1


@njit(cache=True)
def solve_integer_matching(indptr, indices, weights):
    """Minimum-weight perfect matching of a graph whose weights are even integers.

    Parameters
    ----------
    indptr : numpy.ndarray of shape (n + 1,), int64
        Adjacency lists of a symmetric graph, without loops, in compressed rows.
    indices : numpy.ndarray of shape (m,), int64
    weights : numpy.ndarray of shape (m,), int64
        Even, of absolute value below ``2**46``.

    Returns
    -------
    found : bool
        False if the graph has no perfect matching; the other values are then without meaning.
    mate : numpy.ndarray of shape (n,)
        The partner of each vertex.
    dual : numpy.ndarray of shape (n,)
        Vertex duals.
    blossom_dual : numpy.ndarray of shape (n + n // 2 + 4,)
        Duals of the nodes, 0 for vertices.
    up : numpy.ndarray of shape (n + n // 2 + 4,)
        The blossom that contains a node, -1 if there is none.
    """
    n = indptr.shape[0] - 1
    forest = _new_forest(n)
    found = True
    for u in range(n):
        if indptr[u] == indptr[u + 1]:
            found = False
    if found:
        _start(forest, indptr, indices, weights)
    for u in range(n):
        if found and forest[MATE, u] < 0:
            found = _search(forest, u, indptr, indices, weights)
    for u in range(n):
        forest[BLOSSOM_DUAL, u] = 0
    return found, forest[MATE, :n].copy(), forest[DUAL, :n].copy(), forest[BLOSSOM_DUAL].copy(), forest[UP].copy()
