"""
Aligning two networks that share no names
=========================================

Someone publishes a social network with the names removed, and a few ties added to hide it. Is it still the same
network? Gromov-Wasserstein alignment compares the two graphs through their edges alone and says who is who. This
example hides the characters of *Les Miserables*, finds them again, and reads the proofs that come with the answer.
"""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

from assay.transport import GraphAligner, lobcd_gw

# %%
# The novel and its anonymous copy
# --------------------------------
# The copy has its nodes in random order, and 10 % more edges between random pairs.

novel = nx.les_miserables_graph()
names = list(novel.nodes)
n = len(names)
rng = np.random.default_rng(0)

order = rng.permutation(n)
original = nx.to_numpy_array(novel, weight=None)
copy = original[np.ix_(order, order)]
absent = np.argwhere(np.triu(1 - copy, 1))
for i, j in absent[rng.permutation(len(absent))[: novel.number_of_edges() // 10]]:
    copy[i, j] = copy[j, i] = 1
truth = np.argsort(order)  # character i of the novel is node truth[i] of the copy

# %%
# Aligning
# --------
# :class:`~assay.transport.GraphAligner` takes graphs or adjacency matrices and has the interface of scikit-learn.

aligner = GraphAligner().fit(original, copy)
print(f"objective {aligner.value_:.4f}, no coupling is below {aligner.lower_bound_:.4f}")
print(f"{aligner.score(truth):.0%} of the characters are found")

# %%
# Who is not found? Characters with the same acquaintances (twins: think of a group of friends who all know each other
# and no one else) cannot be told apart by any method. Of those without a twin nearly all are recognised.

closed = original + np.eye(n)
twins = [{j for j in range(n) for A in (original, closed) if (A[i] == A[j]).all()} for i in range(n)]
found = aligner.mapping_ == truth
unique = np.array([len(group) == 1 for group in twins])
back = np.argsort(truth)  # node of the copy -> character
among_twins = np.array([back[aligner.mapping_[i]] in twins[i] for i in range(n)])
print(f"without a twin: {found[unique].sum()} of {unique.sum()} found")
print(f"with twins: {among_twins[~unique].sum()} of {(~unique).sum()} matched with themselves or a twin")

# %%
# The certificates
# ----------------
# Each line is a promise, evaluated on this alignment: the plan is a coupling to the last bit; nothing is below the
# lower bound; no coupling is better to first order, which dual potentials prove; and what the run cost.

for promise in aligner.certificates_:
    print(promise)

# %%
# How it got there
# ----------------
# Mirror descent starts from a plan that pairs characters of similar degree, and again from one that knows nothing; what
# is shown is the descent whose end was kept. Updates of the whole plan are followed by
# updates of the block that still moves, and a few exact steps turn the plan into a one-to-one matching.

result = aligner.result_
kept = result.history["start"] == result.start
kind, value = result.history["kind"][kept], result.history["value"][kept]
start = lobcd_gw(original, copy, init=result.start, normalize=True, max_iter=1, finish=False, tol=1.0)

figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
axes[0].plot(value, color="0.7", zorder=1)
for name, colour in (("start", "black"), ("full", "#145DA8"), ("local", "#B8561C"), ("finish", "#118A5E")):
    at = np.flatnonzero(kind == name)
    if len(at) == 0:
        continue
    axes[0].scatter(at, value[at], s=22, color=colour, label=name, zorder=2)
axes[0].axhline(result.lower_bound, color="black", linestyle=":", label="lower bound")
axes[0].set(xlabel="update", ylabel="objective", title="descent")
axes[0].legend()
for axis, plan, title in ((axes[1], start.plan, "after one update"), (axes[2], result.plan, "at the end")):
    # Columns in the true order: a perfect alignment is the diagonal.
    axis.imshow(n * plan[:, truth], cmap="Blues", vmin=0, vmax=0.5)
    axis.set(xlabel="node of the copy, true order", ylabel="character", title=title)
plt.show()

# %%
# How much noise it takes
# -----------------------
# The experiment on a synthetic network of 300 people, with more and more random edges. The alignment is right up to a
# threshold and lost beyond it. One sees it without knowing the truth: there the value leaps away from the lower bound.

people = nx.barabasi_albert_graph(300, 4, seed=1)
A = nx.to_numpy_array(people)
levels, shares, values, bounds = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0), [], [], []
for level in levels:
    order = rng.permutation(300)
    B = A[np.ix_(order, order)]
    absent = np.argwhere(np.triu(1 - B, 1))
    for i, j in absent[rng.permutation(len(absent))[: int(level * people.number_of_edges())]]:
        B[i, j] = B[j, i] = 1
    answer = lobcd_gw(A, B, normalize=True)
    shares.append((answer.mapping == np.argsort(order)).mean())
    values.append(answer.value)
    bounds.append(answer.lower_bound)

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
left.plot(levels, shares, "o-", color="#145DA8")
left.set(xlabel="edges added, share of the edges", ylabel="nodes found", ylim=(-0.05, 1.05))
right.plot(levels, values, "o-", color="#145DA8", label="value")
right.plot(levels, bounds, ":", color="black", label="lower bound")
right.set(xlabel="edges added, share of the edges", ylabel="objective")
right.legend()
plt.show()
