"""
Tuning on a network without a server
====================================

Eight nodes on a ring share a variable ``x`` and have losses of their own data. Below, ``y`` minimises the mean of the
lower losses, which have whole subspaces of minimisers; above, ``x`` and the choice among them minimise the mean of the
upper losses. Nodes send their states and trackers to their two neighbours, and use first derivatives only.
"""

# %%
# A problem whose answer is known
# -------------------------------
# The certificates need no second derivatives, but here the exact hypergradient is known, and the report compares.
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

from assay.bilevel import DecentralizedBilevel, metropolis_weights, quadratic_pl_problem, spectral_gap

problem = quadratic_pl_problem(8)
ring = nx.cycle_graph(8)
result = DecentralizedBilevel.from_problem(problem, ring, sigma=0.1).run(1000)
for certificate in result.certificates:
    print(certificate)

# %%
# The penalty has a bias
# ----------------------
# A smaller penalty parameter gets closer, and is slower. The squared hypergradient levels off at about its square,
# times a constant.
figure, axes = plt.subplots(figsize=(6, 3.5))
for sigma in (0.2, 0.1, 0.05):
    history = DecentralizedBilevel.from_problem(problem, ring, sigma=sigma, refine_steps=20).run(2000, 20).history
    axes.semilogy(history["iteration"], history["true_stationarity"], label=f"sigma = {sigma}")
axes.set(xlabel="iteration", ylabel="squared hypergradient at the mean")
axes.legend()
figure.tight_layout()

# %%
# Why nodes track the mean gradient
# ---------------------------------
# Nodes have different data. If each follows its own gradient they stay apart; with trackers they agree, faster on
# graphs that mix faster.
figure, axes = plt.subplots(figsize=(6, 3.5))
graphs = {"ring": ring, "grid": nx.grid_2d_graph(2, 4), "complete": nx.complete_graph(8)}
for name, graph in graphs.items():
    for tracking in (True, False):
        solver = DecentralizedBilevel.from_problem(problem, graph, sigma=0.2, tracking=tracking, refine_steps=20)
        history = solver.run(600, 5).history
        gap = spectral_gap(metropolis_weights(graph))
        label = f"{name}, gap {gap:.2f}" if tracking else None
        axes.semilogy(history["iteration"][1:], history["consensus_x"][1:], "-" if tracking else ":", label=label)
axes.set(xlabel="iteration", ylabel="disagreement on x", title="with trackers (solid) and without (dotted)")
axes.legend()
figure.tight_layout()

# %%
# A penalty for every feature
# ---------------------------
# Digits with 16 columns of noise, at four nodes. Training rows fit the coefficients, validation rows the penalties:
# noise ends up with larger ones.
from sklearn.datasets import load_digits

from assay.bilevel import ridge_tuning_problem

pixels, labels = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
rows = np.hstack([pixels / 16.0, 0.5 * rng.normal(size=(len(labels), 16))])
order = rng.permutation(len(labels))
train, validation, test = np.split(order, [300, 700])
tuning = ridge_tuning_problem(rows[train], labels[train], rows[validation], labels[validation], n_nodes=4)
solver = DecentralizedBilevel(
    tuning.f, tuning.g, tuning.x0, tuning.y0, nx.cycle_graph(4), sigma=0.1, gamma_x=4.0, gamma_y=2.0, gamma_z=2.0,
    x_bounds=(-8.0, 2.0), sampler=tuning.sampler, rng=0, refine_steps=20,
)  # fmt: skip
tuned = solver.run(600)
loss, accuracy = tuning.score(tuned.x, tuned.y, rows[test], labels[test])
print(f"test cross-entropy {loss:.3f}, accuracy {accuracy:.3f}")
figure, axes = plt.subplots(figsize=(6, 3))
axes.bar(range(64), tuned.x[:64], label="pixels")
axes.bar(range(64, 80), tuned.x[64:], label="noise")
axes.set(xlabel="feature", ylabel="log penalty")
axes.legend(loc="lower left")
figure.tight_layout()
plt.show()
