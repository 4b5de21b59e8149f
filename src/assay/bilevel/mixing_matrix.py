r"""How nodes average with their neighbours: mixing matrices of a network, and how fast they forget.

Nodes without a server agree by averaging: every node replaces what it has by a weighted mean over itself and its
neighbours, :math:`s \leftarrow W s`. With weights that are symmetric and sum to one, the mean over the nodes stays what
it was, and the disagreement shrinks by the second largest modulus of an eigenvalue of :math:`W`. Metropolis weights
need nothing but the degrees at both ends of a link.
"""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.validation import as_float_array

__all__ = ["as_mixing_matrix", "metropolis_weights", "spectral_gap"]

_TOLERANCE = 1e-10
_SMALLEST_GAP = 1e-12

# Above this many nodes the second eigenvalue comes from Lanczos iterations.
_DENSE_EIGENVALUES = 600


def metropolis_weights(G: nx.Graph) -> Float[np.ndarray, "nodes nodes"]:
    r"""Mixing matrix of a graph from the degrees of its nodes.

    .. math:: W_{ij} = \frac{1}{1 + \max(\deg i, \deg j)} \text{ on links}, \qquad
              W_{ii} = 1 - \sum_{j \ne i} W_{ij}.

    Parameters
    ----------
    G : networkx.Graph
        Undirected and connected. Node ``k`` of a method is the ``k``-th of ``G.nodes``. Attributes of the links are not
        read, and a link of a node with itself does not count.

    Returns
    -------
    numpy.ndarray of shape (K, K)
        Symmetric, non-negative, rows and columns sum to 1, and the modulus of the second eigenvalue is less than 1.

    Raises
    ------
    TypeError
        If it is not a networkx graph.
    ValueError
        If it has no nodes, is directed, has parallel links, or is not connected.

    Notes
    -----
    Takes time :math:`O(K^2)` for the matrix and :math:`O(|E|)` for its entries.

    References
    ----------
    L. Xiao, S. Boyd, S. Lall. Distributed average consensus with time-varying Metropolis weights. 2006.

    Examples
    --------
    >>> import networkx as nx
    >>> from assay.bilevel import metropolis_weights
    >>> metropolis_weights(nx.path_graph(3)).round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    if not isinstance(G, nx.Graph):
        raise TypeError(f"graph must be a networkx.Graph, got {type(G).__name__}")
    if G.is_directed():
        raise ValueError("graph must be undirected, got a directed graph")
    if G.is_multigraph():
        raise ValueError(
            "graph must have at most one link between two nodes, got a multigraph (a ring of 2 nodes has one link)"
        )
    if not len(G):
        raise ValueError("graph must have at least 1 node, got none")
    if not nx.is_connected(G):
        raise ValueError(f"graph must be connected, got {nx.number_connected_components(G)} components")
    place = {node: k for k, node in enumerate(G.nodes)}
    links = np.array([(place[a], place[b]) for a, b in G.edges if a != b], dtype=int).reshape(-1, 2)
    degrees = np.bincount(links.ravel(), minlength=len(place))
    weights = np.zeros((len(place), len(place)))
    first, second = links.T
    weights[first, second] = weights[second, first] = 1.0 / (1.0 + np.maximum(degrees[first], degrees[second]))
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


def spectral_gap(W: ArrayLike) -> float:
    r"""One minus the second largest modulus of an eigenvalue of a mixing matrix.

    Parameters
    ----------
    W : array_like of shape (K, K)
        Symmetric and doubly stochastic.

    Returns
    -------
    float
        1 for a complete graph with equal weights and for a single node; 0 if the graph is not connected, or if
        averaging swaps two groups of nodes for ever.

    Raises
    ------
    ValueError
        If it is not square, symmetric and doubly stochastic (within 1e-10).

    Notes
    -----
    Takes :math:`O(K^3)` operations up to 600 nodes, and Lanczos iterations above.

    Examples
    --------
    >>> import networkx as nx
    >>> from assay.bilevel import metropolis_weights, spectral_gap
    >>> print(f"{1 - spectral_gap(metropolis_weights(nx.cycle_graph(8))):.7f}")
    0.8047379
    """
    weights = _checked_weights(W)
    n_nodes = len(weights)
    if n_nodes <= _DENSE_EIGENVALUES:
        moduli = np.abs(np.linalg.eigvalsh(weights - 1.0 / n_nodes))
        return float(1.0 - moduli.max())
    linked = sp.csr_array(weights)
    # Without the mean, the largest eigenvalue is the second one of the matrix, also where 1 is a double eigenvalue.
    without_mean = spla.LinearOperator(linked.shape, matvec=lambda v: linked @ v - v.mean(), dtype=float)
    start = np.random.default_rng(0).normal(size=n_nodes)
    second = spla.eigsh(without_mean, k=1, which="LM", v0=start, return_eigenvectors=False)
    return float(1.0 - abs(second[0]))


def as_mixing_matrix(graph: Any, name: str = "graph") -> Float[np.ndarray, "nodes nodes"]:
    """Mixing matrix from a graph (by Metropolis weights) or from a matrix that is one already.

    Parameters
    ----------
    graph : networkx.Graph or array_like of shape (K, K)
        A connected graph, or weights.
    name : str, default="graph"
        Name of the argument, for the message.

    Returns
    -------
    numpy.ndarray of shape (K, K)
        An array of its own, exactly symmetric: both ends of a link know of it.

    Raises
    ------
    TypeError, ValueError
        If the graph is not undirected, simple and connected, or the matrix not square, symmetric and doubly stochastic
        (within 1e-10) with a second eigenvalue of modulus less than 1.

    Examples
    --------
    >>> from assay.bilevel.mixing_matrix import as_mixing_matrix
    >>> as_mixing_matrix([[1.0, 0.0], [0.0, 1.0]])
    Traceback (most recent call last):
        ...
    ValueError: graph must be connected and not periodic, got a second eigenvalue of modulus 1
    """
    if isinstance(graph, nx.Graph):
        return metropolis_weights(graph)
    weights = _checked_weights(graph, name)
    weights = 0.5 * (weights + weights.T)
    gap = spectral_gap(weights)
    if gap <= _SMALLEST_GAP:
        raise ValueError(
            f"{name} must be connected and not periodic, got a second eigenvalue of modulus {1.0 - gap:.12g}"
        )
    return weights


def _checked_weights(W: Any, name: str = "W") -> Float[np.ndarray, "nodes nodes"]:
    weights = as_float_array(W.toarray() if sp.issparse(W) else W, name, ndim=2)
    if weights.shape[0] != weights.shape[1]:
        raise ValueError(f"{name} must be a square matrix, got shape {weights.shape}")
    asymmetry = float(np.abs(weights - weights.T).max())
    if asymmetry > _TOLERANCE:
        raise ValueError(f"{name} must be symmetric (within {_TOLERANCE:g}), got a difference of {asymmetry:g}")
    if weights.min() < -_TOLERANCE:
        raise ValueError(f"{name} must be doubly stochastic, got a weight of {weights.min():g}")
    off = float(np.abs(weights.sum(axis=1) - 1.0).max())
    if off > _TOLERANCE:
        raise ValueError(f"{name} must be doubly stochastic (within {_TOLERANCE:g}), got a row that is off by {off:g}")
    return weights
