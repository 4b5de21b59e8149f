"""A network of nodes that are simulated in one process: what is averaged, and what is sent for it.

The method asks a network for three things: the weighted mean of every node with its neighbours, the mean over all
nodes (for reports only), and the rows of all nodes. Here all rows are at hand and averaging is one product of
matrices; :class:`~assay.bilevel.decentralized_hook.DecentralizedBilevelHook` does the same with messages between
processes.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.mixing_matrix import spectral_gap

__all__ = ["SimulatedNetwork", "Stack", "Vector"]

Stack = Float[np.ndarray, "nodes size"] | Float[Tensor, "nodes size"]
Vector = Float[np.ndarray, " _"] | Float[Tensor, " _"]

# Below this share of non-zeros, and from this many nodes on, a sparse product is faster than a dense one.
_SPARSE_SHARE, _SPARSE_NODES = 0.1, 64


class SimulatedNetwork:
    """All nodes in one process.

    Parameters
    ----------
    weights : numpy.ndarray of shape (K, K)
        Mixing matrix.
    like : numpy.ndarray or torch.Tensor
        The type, precision and device of what is to be averaged.

    Attributes
    ----------
    n_nodes : int
        The number K of nodes, all of which are here.
    n_links : int
        Ordered pairs of neighbours: the messages of one averaging.
    messages_sent, bytes_sent : int
        Number and size of all messages so far, as they would be between machines.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.bilevel.mixing_network import SimulatedNetwork
    >>> network = SimulatedNetwork(np.full((2, 2), 0.5), like=np.zeros(1))
    >>> network.mix(np.array([[0.0], [1.0]])).tolist(), network.bytes_sent
    ([[0.5], [0.5]], 16)
    """

    def __init__(self, weights: Float[np.ndarray, "nodes nodes"], like: np.ndarray | Tensor):
        self.weights = weights
        self.n_nodes = self.n_local = len(weights)
        links = weights != 0.0
        np.fill_diagonal(links, False)
        self.n_links = int(links.sum())
        self.spectral_gap = spectral_gap(weights)
        self.messages_sent = self.bytes_sent = 0
        sparse = self.n_nodes >= _SPARSE_NODES and np.count_nonzero(weights) < _SPARSE_SHARE * weights.size
        if isinstance(like, Tensor):
            dense = torch.tensor(weights, dtype=like.dtype, device=like.device)
            self._operator = dense.to_sparse() if sparse else dense
        else:
            self._operator = sp.csr_array(weights) if sparse else weights

    def mix(self, rows: Stack) -> Stack:
        """Weighted mean of every node with its neighbours; every link carries a row in both directions."""
        self.messages_sent += self.n_links
        self.bytes_sent += self.n_links * rows.shape[1] * rows.dtype.itemsize
        return self._operator @ rows

    def mean(self, rows: Stack) -> Vector:
        """Mean over all nodes."""
        return rows.mean(0)

    def gather(self, rows: Stack) -> Stack:
        """The rows of all nodes."""
        return rows

    def traffic(self) -> tuple[int, int]:
        """Number and size of all messages of all nodes."""
        return self.messages_sent, self.bytes_sent
