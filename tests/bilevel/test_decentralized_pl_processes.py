"""One process per node: what neighbours exchange gives what the simulation gives."""

import os
import subprocess
import sys

import pytest

WORKER = """
import os, sys
import networkx as nx
import numpy as np
import torch
import torch._dynamo  # which DistributedDataParallel would import in every process
import torch.distributed as dist
from assay.bilevel import BatchedLoss, DecentralizedBilevel, DecentralizedBilevelHook, metropolis_weights

folder, rank = sys.argv[1], 0
for other in (1, 2):  # what is imported once serves all; no thread has been started yet
    if rank == 0 and os.fork() == 0:
        rank = other
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=3)
graph = nx.path_graph(3)
W = metropolis_weights(graph)

# losses of three nodes: the lower one has rank 2 in 3 dimensions
data = np.random.default_rng(0)
A = [torch.as_tensor(data.normal(size=(4, 2)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])) for _ in range(3)]
B = [torch.as_tensor(data.normal(size=(4, 2))) for _ in range(3)]
T = [torch.as_tensor(data.normal(size=3)) for _ in range(3)]
f = [lambda x, y, batch, k=k: 0.5 * ((y - T[k]) ** 2).sum() + 0.05 * (x**2).sum() for k in range(3)]
g = [lambda x, y, batch, k=k: 0.5 * ((A[k] @ y - B[k] @ x) ** 2).sum() for k in range(3)]
options = dict(sigma=0.1, smoothness=8.0, eta=0.3, refine_steps=5)
start = torch.zeros(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

plain = DecentralizedBilevel(f, g, *start, graph, backend="torch", **options).run(12, 6)
own = [BatchedLoss(lambda x, y, batch, loss=one[rank]: loss(x[0], y[0], batch)[None], 1) for one in (f, g)]
for losses in ((f, g), own):
    ours = DecentralizedBilevel(*losses, *start, graph, backend="dist", **options).run(12, 6)
    assert np.allclose(ours.x_nodes, plain.x_nodes, atol=1e-13), np.abs(ours.x_nodes - plain.x_nodes).max()
    assert np.allclose(ours.z, plain.z, atol=1e-13)
    assert ours.bytes_sent == plain.bytes_sent == 4 * 12 * 2 * 8 * 8
    assert ours.messages_sent == plain.messages_sent == 4 * 12 * 2
    assert abs(ours.stationarity - plain.stationarity) <= 1e-10 * plain.stationarity
    assert [c.holds for c in ours.certificates] == [c.holds for c in plain.certificates]
    assert np.array_equal(ours.history["iteration"], [0, 6, 12])

# a loss of its own as a list of one, and weights whose two triangles differ by rounding, so that only one end of a
# link would know of it
W_off = W.copy()
W_off[0, 2] = 1e-17
one = DecentralizedBilevel(f[rank : rank + 1], g[rank : rank + 1], *start, W_off, backend="dist", **options)
one.step()
assert one.network.neighbours == tuple(k for k in range(3) if k != rank)
try:
    DecentralizedBilevel(BatchedLoss(lambda x, y, batch: y.sum(1), 3), g, *start, graph, backend="dist", **options)
except ValueError as error:
    assert "f_list must be the loss of this process with backend='dist', got 3 nodes" in str(error)
else:
    raise AssertionError("losses of other processes were accepted")

try:
    DecentralizedBilevelHook(nx.path_graph(4))
except ValueError as error:
    assert "a node for each of the 3 processes" in str(error)
else:
    raise AssertionError("a graph of another size was accepted")

# as a communication hook: a model per process, whose gradients come back as trackers
hook = DecentralizedBilevelHook(W, weight=0.5)
assert hook.neighbours == ((1,), (0, 2), (1,))[rank]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
local = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double() for _ in range(3)]
for copy in local:
    copy.load_state_dict(model.state_dict())
X = [torch.as_tensor(data.normal(size=(5, 3))) for _ in range(3)]
y = [torch.as_tensor(data.normal(size=(5, 1))) for _ in range(3)]
wrapped = torch.nn.parallel.DistributedDataParallel(model, forward_sync_buffers=False, bucket_cap_mb=1e-4)
assert hook.register(wrapped) is hook
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    (wrapped(X[rank]) - y[rank]).square().mean().backward()
    hook.mix_parameters(wrapped.parameters(), eta=0.3)
    optimizer.step()

# the same by matrices, all nodes here
def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

mixing, states = torch.as_tensor(W), torch.stack([flat(copy) for copy in local])
estimators = trackers = None
for _ in range(6):
    rows = []
    for k, copy in enumerate(local):
        torch.nn.utils.vector_to_parameters(states[k], copy.parameters())
        grads = torch.autograd.grad((copy(X[k]) - y[k]).square().mean(), list(copy.parameters()))
        rows.append(torch.cat([grad.reshape(-1) for grad in grads]))
    rows = torch.stack(rows)
    if estimators is None:
        fresh = trackers = rows
    else:
        fresh = 0.5 * estimators + 0.5 * rows
        trackers = mixing @ trackers + fresh - estimators
    estimators = fresh
    states = states + 0.3 * (mixing @ states - states) - 0.1 * trackers
assert torch.allclose(flat(wrapped), states[rank], atol=1e-12), (flat(wrapped) - states[rank]).abs().max()
n_parameters, links = states.shape[1], len(hook.neighbours)
assert hook.bytes_sent == links * (5 + 6) * n_parameters * 8, hook.bytes_sent  # nothing to track in the first step

try:
    hook.register(model)
except TypeError as error:
    assert "DistributedDataParallel" in str(error)
else:
    raise AssertionError("a model that is not wrapped was accepted")
dist.destroy_process_group()
if rank == 0:
    assert [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)] == [0, 0]
os._exit(0)  # all was asserted above; torch's gloo threads sometimes abort the interpreter when it shuts down
"""


@pytest.mark.processes
def test_three_processes(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
