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
from collections import namedtuple

import numpy as np
from numba import njit

__all__ = ["BlossomForest", "solve_integer_matching"]

NONE, OUTER, INNER = 0, 1, 2
_NEVER = np.int64(2**62)

BlossomForest = namedtuple(
    "BlossomForest",
    [
        # Per vertex.
        "mate",  # partner, -1 when free
        "dual",  # y; in the tree: relative to the time
        "top",  # the outermost node that contains the vertex
        "follow",  # next vertex in the vertex list of a node
        "reach",  # smallest weight minus dual over the scanned outer vertices
        "reach_tail",  # outer vertex of that edge
        "reach_edge",  # its position in the adjacency
        # Per node: vertices first, then blossoms.
        "blossom_dual",  # z; in the tree: relative to the time
        "up",  # blossom that contains the node, -1 when outermost
        "base",  # the one vertex that is not matched inside
        "first",  # first and last vertex of the vertex list
        "last",
        "label",
        "entry_tail",  # for an inner node: the tree edge that leads to it
        "entry_head",
        "next_child",  # the cycle of children of a blossom
        "prev_child",
        "link_tail",  # the edge from this child to the next
        "link_head",
        "base_child",
        "mark",
        # Work space.
        "free_nodes",  # stack of unused blossom numbers, its height in the last entry
        "stack_node",
        "stack_vertex",
        "cycle",
        "counter",  # 0: stamp of mark, 1: earliest known time of an augmentation
    ],
)


@njit(cache=True)
def _new_forest(n):
    """Every vertex free and on its own."""
    nodes = n + n // 2 + 1
    forest = BlossomForest(
        np.full(n, -1, np.int64),
        np.zeros(n, np.int64),
        np.arange(n),
        np.full(n, -1, np.int64),
        np.full(n, _NEVER, np.int64),
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.zeros(nodes, np.int64),
        np.full(nodes, -1, np.int64),
        np.arange(nodes),
        np.arange(nodes),
        np.arange(nodes),
        np.zeros(nodes, np.int8),
        np.full(nodes, -1, np.int64),
        np.full(nodes, -1, np.int64),
        np.full(nodes, -1, np.int64),
        np.full(nodes, -1, np.int64),
        np.full(nodes, -1, np.int64),
        np.full(nodes, -1, np.int64),
        np.full(nodes, -1, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(nodes - n + 1, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(2, np.int64),
    )
    n_free = nodes - n
    for k in range(n_free):
        forest.free_nodes[k] = nodes - 1 - k
    forest.free_nodes[n_free] = n_free
    return forest


@njit(cache=True)
def _start(forest, indptr, indices, weights):
    """Feasible duals, tight at every vertex, and a greedy matching of tight edges."""
    n = forest.mate.shape[0]
    for u in range(n):
        smallest = _NEVER
        for e in range(indptr[u], indptr[u + 1]):
            smallest = min(smallest, weights[e])
        forest.dual[u] = smallest // 2
    for u in range(n):
        if forest.mate[u] >= 0:
            continue
        smallest = _NEVER
        for e in range(indptr[u], indptr[u + 1]):
            smallest = min(smallest, weights[e] - forest.dual[u] - forest.dual[indices[e]])
        forest.dual[u] += smallest
        for e in range(indptr[u], indptr[u + 1]):
            v = indices[e]
            if forest.mate[v] < 0 and weights[e] == forest.dual[u] + forest.dual[v]:
                forest.mate[u] = v
                forest.mate[v] = u
                break


@njit(cache=True)
def _child_with(forest, blossom, vertex):
    node = vertex
    while forest.up[node] != blossom:
        node = forest.up[node]
    return node


@njit(cache=True)
def _goes_forward(forest, blossom, child):
    """Direction along the cycle in which the number of steps from ``child`` to the base child is even."""
    forward = False
    node = forest.base_child[blossom]
    while node != child:
        node = forest.next_child[node]
        forward = not forward
    return forward


@njit(cache=True)
def _step(forest, node, forward):
    """The neighbour on the cycle and the edge to it: (neighbour, vertex here, vertex there)."""
    if forward:
        return forest.next_child[node], forest.link_tail[node], forest.link_head[node]
    neighbor = forest.prev_child[node]
    return neighbor, forest.link_head[neighbor], forest.link_tail[neighbor]


@njit(cache=True)
def _rebase(forest, node, vertex):
    """Turn the matching inside ``node`` so that ``vertex`` is the one left over."""
    n = forest.mate.shape[0]
    forest.stack_node[0], forest.stack_vertex[0] = node, vertex
    height = 1
    while height > 0:
        height -= 1
        blossom, exposed = forest.stack_node[height], forest.stack_vertex[height]
        if blossom < n:
            continue
        child = _child_with(forest, blossom, exposed)
        forward = _goes_forward(forest, blossom, child)
        forest.stack_node[height], forest.stack_vertex[height] = child, exposed
        height += 1
        node = child
        while node != forest.base_child[blossom]:
            left, _, _ = _step(forest, node, forward)
            right, tail, head = _step(forest, left, forward)
            forest.mate[tail], forest.mate[head] = head, tail
            forest.stack_node[height], forest.stack_vertex[height] = left, tail
            forest.stack_node[height + 1], forest.stack_vertex[height + 1] = right, head
            height += 2
            node = right
        forest.base_child[blossom] = child
        forest.base[blossom] = exposed


@njit(cache=True)
def _augment(forest, tail, head):
    """Flip the path from the free node of ``head`` over the outer vertex ``tail`` to the root."""
    _rebase(forest, forest.top[head], head)
    while True:
        outer = forest.top[tail]
        partner = forest.mate[forest.base[outer]]
        _rebase(forest, outer, tail)
        forest.mate[tail], forest.mate[head] = head, tail
        if partner < 0:
            return
        inner = forest.top[partner]
        tail, head = forest.entry_tail[inner], forest.entry_head[inner]
        _rebase(forest, inner, head)


@njit(cache=True)
def _outer_above(forest, outer):
    """The outer node two levels nearer to the root, -1 at the root."""
    partner = forest.mate[forest.base[outer]]
    return -1 if partner < 0 else forest.top[forest.entry_tail[forest.top[partner]]]


@njit(cache=True)
def _common_outer(forest, left, right):
    forest.counter[0] += 1
    stamp = forest.counter[0]
    while left >= 0:
        forest.mark[left] = stamp
        left = _outer_above(forest, left)
    while forest.mark[right] != stamp:
        right = _outer_above(forest, right)
    return right


@njit(cache=True)
def _scan(forest, heap, tail, indptr, indices, weights, reached):
    """Record the edges of a vertex that has become outer, and when they will be tight."""
    limit = forest.counter[1]
    own = forest.top[tail]
    own_dual = forest.dual[tail]
    for e in range(indptr[tail], indptr[tail + 1]):
        head = indices[e]
        node = forest.top[head]
        distance = weights[e] - own_dual
        if forest.label[node] == OUTER:
            if node != own:
                time = distance - forest.dual[head]
                if time < limit:
                    heapq.heappush(heap, (time, tail, e))
        elif distance < forest.reach[head]:
            if forest.reach_tail[head] < 0:
                reached.append(head)
            forest.reach[head] = distance
            forest.reach_tail[head] = tail
            forest.reach_edge[head] = e
            if forest.label[node] == NONE:
                time = 2 * (distance - forest.dual[head])
                if time < limit:
                    heapq.heappush(heap, (time, tail, e))
                    if forest.mate[forest.base[node]] < 0:
                        limit = time
    forest.counter[1] = limit


@njit(cache=True)
def _make_outer(forest, node, shift, outer):
    """Append the vertices of a node to the outer ones; ``shift`` makes their duals relative to the time."""
    vertex = forest.first[node]
    while True:
        forest.dual[vertex] -= shift
        outer.append(vertex)
        if vertex == forest.last[node]:
            return
        vertex = forest.follow[vertex]


@njit(cache=True)
def _make_inner(forest, heap, node, tail, head, inner):
    """Label a node inner, reached over the edge (tail, head), and note when it is to be expanded."""
    forest.label[node] = INNER
    forest.entry_tail[node], forest.entry_head[node] = tail, head
    inner.append(node)
    if node >= forest.mate.shape[0] and forest.blossom_dual[node] < forest.counter[1]:
        heapq.heappush(heap, (forest.blossom_dual[node], np.int64(-1), node))


@njit(cache=True)
def _shift_vertices(forest, node, shift):
    vertex = forest.first[node]
    while True:
        forest.dual[vertex] += shift
        if vertex == forest.last[node]:
            return
        vertex = forest.follow[vertex]


@njit(cache=True)
def _set_top(forest, node):
    vertex = forest.first[node]
    while True:
        forest.top[vertex] = node
        if vertex == forest.last[node]:
            return
        vertex = forest.follow[vertex]


@njit(cache=True)
def _grow(forest, heap, tail, head, time, outer, inner):
    """Add the matched node of ``head`` to the tree, and its partner below it."""
    half = time // 2
    node = forest.top[head]
    _shift_vertices(forest, node, half)
    forest.blossom_dual[node] += time
    _make_inner(forest, heap, node, tail, head, inner)
    partner = forest.top[forest.mate[forest.base[node]]]
    forest.label[partner] = OUTER
    forest.blossom_dual[partner] -= time
    _make_outer(forest, partner, half, outer)


@njit(cache=True)
def _shrink(forest, tail, head, time, outer):
    """Contract the cycle that the edge between two outer vertices closes in the tree into an outer blossom."""
    left, right = forest.top[tail], forest.top[head]
    common = _common_outer(forest, left, right)
    height = forest.free_nodes[-1] - 1
    forest.free_nodes[-1] = height
    blossom = forest.free_nodes[height]

    # The cycle runs from the common ancestor down to the tail and back up from the head.
    depth = 0
    node = left
    while node != common:
        depth += 2
        node = _outer_above(forest, node)
    length = depth + 1
    forest.cycle[0] = common
    node = left
    while node != common:
        partner = forest.mate[forest.base[node]]
        inner = forest.top[partner]
        forest.cycle[depth], forest.cycle[depth - 1] = node, inner
        forest.link_tail[inner], forest.link_head[inner] = partner, forest.base[node]
        node = forest.top[forest.entry_tail[inner]]
        forest.link_tail[node], forest.link_head[node] = forest.entry_tail[inner], forest.entry_head[inner]
        depth -= 2
    forest.link_tail[left], forest.link_head[left] = tail, head
    node = right
    while node != common:
        partner = forest.mate[forest.base[node]]
        inner = forest.top[partner]
        forest.link_tail[node], forest.link_head[node] = forest.base[node], partner
        forest.link_tail[inner], forest.link_head[inner] = forest.entry_head[inner], forest.entry_tail[inner]
        forest.cycle[length], forest.cycle[length + 1] = node, inner
        length += 2
        node = forest.top[forest.entry_tail[inner]]

    for position in range(length):
        child = forest.cycle[position]
        after = forest.cycle[position + 1 if position + 1 < length else 0]
        forest.next_child[child] = after
        forest.prev_child[after] = child
        forest.up[child] = blossom
        if position + 1 < length:
            forest.follow[forest.last[child]] = forest.first[after]
        if forest.label[child] == INNER:
            # The vertices change from relative inner to relative outer duals: twice the elapsed time.
            forest.blossom_dual[child] -= time
            _make_outer(forest, child, time, outer)
        else:
            forest.blossom_dual[child] += time
        forest.label[child] = NONE
    forest.first[blossom] = forest.first[common]
    forest.last[blossom] = forest.last[forest.cycle[length - 1]]
    forest.base[blossom] = forest.base[common]
    forest.base_child[blossom] = common
    forest.up[blossom] = -1
    forest.label[blossom] = OUTER
    forest.blossom_dual[blossom] = -time
    _set_top(forest, blossom)


@njit(cache=True)
def _expand(forest, heap, blossom, time, outer, inner):
    """Open an inner blossom with z = 0: the even part of its cycle stays in the tree, the other part leaves it."""
    tail, head = forest.entry_tail[blossom], forest.entry_head[blossom]
    entry = _child_with(forest, blossom, head)
    base_child = forest.base_child[blossom]
    forward = _goes_forward(forest, blossom, entry)
    child = base_child
    while True:
        forest.up[child] = -1
        forest.label[child] = NONE
        _set_top(forest, child)
        child = forest.next_child[child]
        if child == base_child:
            break
    # The vertices have relative inner duals, which those that stay inner keep.
    node = entry
    while True:
        forest.blossom_dual[node] += time
        _make_inner(forest, heap, node, tail, head, inner)
        if node == base_child:
            break
        below, _, _ = _step(forest, node, forward)
        node, tail, head = _step(forest, below, forward)
        forest.label[below] = OUTER
        forest.blossom_dual[below] -= time
        _make_outer(forest, below, time, outer)
    child = forest.next_child[base_child]
    while child != base_child:
        if forest.label[child] == NONE:
            _release(forest, heap, child, time // 2)
        child = forest.next_child[child]
    height = forest.free_nodes[-1]
    forest.free_nodes[height] = blossom
    forest.free_nodes[-1] = height + 1
    forest.label[blossom] = NONE


@njit(cache=True)
def _release(forest, heap, node, half):
    """Take a former part of an inner blossom out of the tree and let its vertices be reached again."""
    vertex = forest.first[node]
    while True:
        forest.dual[vertex] -= half
        if forest.reach_tail[vertex] >= 0:
            time = 2 * (forest.reach[vertex] - forest.dual[vertex])
            if time < forest.counter[1]:
                heapq.heappush(heap, (time, forest.reach_tail[vertex], forest.reach_edge[vertex]))
        if vertex == forest.last[node]:
            return
        vertex = forest.follow[vertex]


@njit(cache=True)
def _search(forest, root, indptr, indices, weights):
    """Grow a tree from a free vertex until the matching can be augmented; False if that is impossible."""
    heap = [(np.int64(0), np.int64(0), np.int64(0)) for _ in range(0)]
    outer = [np.int64(0) for _ in range(0)]
    inner = [np.int64(0) for _ in range(0)]
    reached = [np.int64(0) for _ in range(0)]
    time = np.int64(0)
    forest.counter[1] = _NEVER
    forest.label[forest.top[root]] = OUTER
    _make_outer(forest, forest.top[root], time, outer)
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
            if forest.label[e] == INNER and forest.blossom_dual[e] == due:
                time = due
                _expand(forest, heap, e, time, outer, inner)
            continue
        head = indices[e]
        node = forest.top[head]
        distance = weights[e] - forest.dual[tail] - forest.dual[head]
        if forest.label[node] == NONE and due == 2 * distance:
            time = due
            if forest.mate[forest.base[node]] < 0:
                _augment(forest, tail, head)
                found = True
            else:
                _grow(forest, heap, tail, head, time, outer, inner)
        elif forest.label[node] == OUTER and node != forest.top[tail] and due == distance:
            time = due
            _shrink(forest, tail, head, time, outer)
    _leave_tree(forest, time, outer, inner, reached)
    return found


@njit(cache=True)
def _leave_tree(forest, time, outer, inner, reached):
    """Make all duals absolute again and forget the labels."""
    for vertex in outer:
        forest.dual[vertex] += time // 2
        node = forest.top[vertex]
        if forest.label[node] == OUTER:
            forest.blossom_dual[node] += time
            forest.label[node] = NONE
    for node in inner:
        if forest.label[node] == INNER:
            _shift_vertices(forest, node, -(time // 2))
            forest.blossom_dual[node] -= time
            forest.label[node] = NONE
    for vertex in reached:
        forest.reach[vertex] = _NEVER
        forest.reach_tail[vertex] = -1


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
    blossom_dual : numpy.ndarray of shape (n + n // 2 + 1,)
        Duals of the nodes, 0 for vertices.
    up : numpy.ndarray of shape (n + n // 2 + 1,)
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
        if found and forest.mate[u] < 0:
            found = _search(forest, u, indptr, indices, weights)
    forest.blossom_dual[:n] = 0
    return found, forest.mate, forest.dual, forest.blossom_dual, forest.up
