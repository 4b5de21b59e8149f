r"""Nodes that are processes: neighbours exchange flat buffers, point to point, and nobody else hears.

:class:`DecentralizedBilevelHook` is a network of :class:`~assay.bilevel.decentralized_pl.DecentralizedBilevel` with
one process per node, and by itself a communication hook of ``DistributedDataParallel``: instead of an all-reduce of
the gradients, every process sends its tracker of the mean gradient to its neighbours,
:math:`v \leftarrow Wv + u^{new} - u^{old}`, and the optimizer gets the tracker for a gradient.
"""

# No postponed annotations here: DistributedDataParallel looks at those of a communication hook.

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.mixing_matrix import as_mixing_matrix, spectral_gap
from assay.validation import check_real

__all__ = ["DecentralizedBilevelHook"]


class DecentralizedBilevelHook:
    """Exchange with neighbours in a process group, for whole states or for the gradients of a model.

    Parameters
    ----------
    graph : networkx.Graph or array_like of shape (K, K)
        Who talks to whom, as for :class:`DecentralizedBilevel`; node ``k`` is rank ``k`` of the group.
    process_group : torch.distributed.ProcessGroup, optional
        By default the group of all processes. It has one process for each node.
    weight : float, default=1.0
        Weight of a new gradient in the estimator of the model's gradient, ``a * eta``; in (0, 1].

    Attributes
    ----------
    rank : int
        The node of this process.
    neighbours : tuple of int
        The other end of its links.
    n_links : int
        Ordered pairs of neighbours in the whole graph.
    messages_sent, bytes_sent : int
        What this process has sent to neighbours.

    Raises
    ------
    RuntimeError
        If ``torch.distributed`` has not been initialised.
    ValueError
        If the group has not a process for each node, or the graph is refused.

    Notes
    -----
    A step of training with ``DistributedDataParallel`` is ``loss.backward()``, :meth:`mix_parameters`, and
    ``optimizer.step()``. The model stays that of its process, so wrap it with ``forward_sync_buffers=False``, and note
    that the constructor of the wrapper copies the parameters of rank 0 to all.

    References
    ----------
    .. [1] Convergence Analysis of Decentralized Hessian-/Jacobian-Free Algorithm for Nonconvex Stochastic Bilevel
       Optimization. ICML 2026.

    Examples
    --------
    A group of one process, which has no neighbours:

    >>> import tempfile, torch
    >>> import torch.distributed as dist
    >>> from assay.bilevel import DecentralizedBilevelHook
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    ...     hook = DecentralizedBilevelHook([[1.0]])
    ...     mixed = hook.mix(torch.ones(1, 3))
    ...     dist.destroy_process_group()
    >>> mixed, hook.bytes_sent
    (tensor([[1., 1., 1.]]), 0)
    """

    def __init__(self, graph: Any, process_group: Any = None, *, weight: float = 1.0):
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("DecentralizedBilevelHook needs torch.distributed.init_process_group to be called first")
        self.weights = as_mixing_matrix(graph)
        self.weight = check_real(weight, "weight", above=0.0, maximum=1.0)
        self.process_group = process_group
        self.n_nodes, self.n_local = len(self.weights), 1
        size = dist.get_world_size(process_group)
        if size != self.n_nodes:
            raise ValueError(f"graph must have a node for each of the {size} processes, got {self.n_nodes}")
        self.rank = dist.get_rank(process_group)
        row = self.weights[self.rank]
        self.neighbours = tuple(k for k in range(self.n_nodes) if k != self.rank and row[k] != 0.0)
        self.n_links = int(np.count_nonzero(self.weights)) - int(np.count_nonzero(self.weights.diagonal()))
        self.spectral_gap = spectral_gap(self.weights)
        self.messages_sent = self.bytes_sent = 0
        self._device = torch.device("cpu")  # of what was sent last
        self._trackers: dict[Tensor, tuple[Tensor, Tensor]] = {}

    def mix(self, rows: Float[Tensor, "nodes size"]) -> Float[Tensor, "nodes size"]:
        """Weighted mean of this node's row with those of its neighbours."""
        return self._exchange(rows.reshape(-1)).reshape(rows.shape)

    def mean(self, rows: Float[Tensor, "nodes size"]) -> Float[Tensor, " size"]:
        """Mean over all nodes, by an all-reduce: for reports, not for the iteration."""
        total = rows.sum(0)
        dist.all_reduce(total, group=self.process_group)
        return total / self.n_nodes

    def gather(self, rows: Float[Tensor, "nodes size"]) -> Float[Tensor, "all size"]:
        """The rows of all nodes, by an all-gather: for reports."""
        own = rows[0].contiguous()
        every = [torch.empty_like(own) for _ in range(self.n_nodes)]
        dist.all_gather(every, own, group=self.process_group)
        return torch.stack(every)

    def traffic(self) -> tuple[int, int]:
        """Number and size of the messages that all processes have sent to neighbours, by an all-reduce."""
        totals = torch.tensor([self.messages_sent, self.bytes_sent], device=self._device)
        dist.all_reduce(totals, group=self.process_group)
        return int(totals[0]), int(totals[1])

    def register(self, model: torch.nn.parallel.DistributedDataParallel) -> "DecentralizedBilevelHook":
        """Make a wrapped model send trackers to neighbours in place of its all-reduce.

        Parameters
        ----------
        model : torch.nn.parallel.DistributedDataParallel
            A model that has no other communication hook.

        Returns
        -------
        DecentralizedBilevelHook
            The hook itself.
        """
        if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise TypeError(f"model must be a DistributedDataParallel, got {type(model).__name__}")
        model.register_comm_hook(self, DecentralizedBilevelHook.communicate)
        return self

    @staticmethod
    def communicate(hook: "DecentralizedBilevelHook", bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """The communication hook: the gradients of a bucket come back as trackers of their mean over all nodes."""
        buffer = bucket.buffer()
        # By parameter and not by bucket, because the wrapper packs its buckets anew after the first step.
        parameters, gradients = bucket.parameters(), bucket.gradients()
        known = [hook._trackers.get(parameter) for parameter in parameters]
        if any(pair is None for pair in known):
            fresh = trackers = [gradient.clone() for gradient in gradients]
        else:
            fresh = [
                torch.lerp(estimator, gradient, hook.weight)
                for (estimator, _), gradient in zip(known, gradients, strict=True)
            ]
            mixed = hook._exchange(torch.cat([tracker.reshape(-1) for _, tracker in known]))
            parts = mixed.split([gradient.numel() for gradient in gradients])
            trackers = [part.view_as(new) + new - old for part, new, (old, _) in zip(parts, fresh, known, strict=True)]
        for parameter, new, tracker in zip(parameters, fresh, trackers, strict=True):
            hook._trackers[parameter] = (new, tracker)
        # Through the views of the bucket, whose layout they share.
        for gradient, tracker in zip(gradients, trackers, strict=True):
            gradient.copy_(tracker)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    @torch.no_grad()
    def mix_parameters(self, parameters: Iterable[Tensor], eta: float = 0.3) -> None:
        """Move parameters towards those of the neighbours, to be called before the step of the optimizer.

        Parameters
        ----------
        parameters : iterable of torch.Tensor
            Of one dtype and device.
        eta : float, default=0.3
            How far: 1 replaces them by the weighted mean.
        """
        eta = check_real(eta, "eta", above=0.0, maximum=1.0)
        own = list(parameters)
        flat = torch.cat([parameter.reshape(-1) for parameter in own])
        mixed = torch.lerp(flat, self._exchange(flat), eta)
        for parameter, part in zip(own, mixed.split([parameter.numel() for parameter in own]), strict=True):
            parameter.copy_(part.view_as(parameter))

    def _exchange(self, flat: Float[Tensor, " size"]) -> Float[Tensor, " size"]:
        """Send a vector to all neighbours, receive theirs, and take the weighted mean."""
        row, self._device = self.weights[self.rank], flat.device
        mixed = flat * float(row[self.rank])
        if not self.neighbours:
            return mixed
        sent = flat.contiguous()
        received = [torch.empty_like(sent) for _ in self.neighbours]
        operations = []
        for other, buffer in zip(self.neighbours, received, strict=True):
            peer = other if self.process_group is None else dist.get_global_rank(self.process_group, other)
            operations.append(dist.P2POp(dist.isend, sent, peer, self.process_group))
            operations.append(dist.P2POp(dist.irecv, buffer, peer, self.process_group))
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        self.messages_sent += len(self.neighbours)
        self.bytes_sent += len(self.neighbours) * sent.numel() * sent.element_size()
        for other, buffer in zip(self.neighbours, received, strict=True):
            mixed += float(row[other]) * buffer
        return mixed
