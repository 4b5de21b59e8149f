"""
Prices for data that do not go round in circles
===============================================

A dataset is not used up by a sale, so sellers of data compete for the budgets of their buyers only, and whoever asks a
little less than a rival is served first. Uniform prices then chase each other for ever. This example looks at a market
where that is proved to happen, at price schedules that hold still there, and at a market of digit images in which the
value of a dataset is what a classifier learns from it.
"""

# %%
# A market without stable prices
# ------------------------------
# A thousand poor buyers like dataset 0 much better than dataset 1; one rich buyer wants dataset 0 only. Sellers who
# answer each other with their best price never come to rest: seller 0 skims the rich buyer, the poor go to seller 1,
# who raises its price, until seller 0 undercuts it and has them back.
import warnings

import matplotlib.pyplot as plt
import numpy as np

from assay.games import (
    DataMarket,
    best_uniform_deviation,
    certify_no_equilibrium,
    limit_ratio,
    no_equilibrium_instance,
    solve_pricing,
    uniform_best_response,
)
from assay.validation import ConvergenceWarning

market = no_equilibrium_instance(1000)
chase = uniform_best_response(market, method="grid")
print(f"the same prices are back after {chase.cycle_length} rounds")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for axis, j, unit in zip(axes, (0, 1), (1000, 1), strict=True):
    axis.step(chase.history["round"], chase.history["prices"][:, j] / unit, where="mid")
    axis.set(xlabel="round", ylabel=f"price / {unit}", title=market.seller_names[j])

# %%
# That there is nothing to find is a theorem, and the proof can be run: boxes of prices, each with a lower bound on what
# some seller gains by moving. In the limit of many poor buyers no prices are better than this ratio.
proof = certify_no_equilibrium(0.733, 0.860, c=1.3637)
print(f"limit {limit_ratio(0.733, 0.860):.5f}; 1.3637 proved with {proof.n_boxes} boxes: {proof.holds}")
print("1.365:", certify_no_equilibrium(0.733, 0.860, c=1.365).holds)

# %%
# Schedules
# ---------
# A schedule sells parts of a dataset at increasing unit prices. Sellers who move a tenth of theirs to the best price in
# every round do not come to rest here either, but on the way they are nearly stable, and the best profile is kept. A
# warning says that the rounds ended first; the certificates say what the profile is worth.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    result = solve_pricing(market, rng=0)
for certificate in result.certificates:
    print(certificate)

figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
rounds = result.history["round"]
axes.semilogy(rounds, result.history["ratio"], alpha=0.4, label="schedules, now")
axes.semilogy(rounds, result.history["best_ratio"], label="schedules, best so far")
axes.semilogy(chase.history["round"], chase.history["ratio"], label="uniform prices")
axes.axhline(limit_ratio(0.733, 0.860), color="gray", linestyle=":", label="no uniform prices below")
axes.set(xlabel="round", ylabel="largest gain of a seller")
axes.legend()

# %%
# The promise is about deviations to uniform prices. What a seller could gain with another schedule has only a lower
# bound, which here is larger.
print(f"uniform price: {result.any_price_ratio:.3f}, schedule: at least {result.plc_ratio:.3f}")

# %%
# Shards of digits
# ----------------
# Six sellers have 60 images each, with more and more wrong labels. Ten buyers each want to recognise one digit; a
# shard is worth the error that a classifier trained on it avoids.
from sklearn.datasets import load_digits

images, digits = load_digits(return_X_y=True)
images, rng = images / 16, np.random.default_rng(0)
shards = rng.permutation(1500)[:360].reshape(6, 60)
labels = [np.where(rng.random(60) < j / 12, rng.integers(0, 10, 60), digits[shard]) for j, shard in enumerate(shards)]
tasks = [([(label == d).astype(int) for label in labels], images[1500:], (digits[1500:] == d).astype(int))
         for d in range(10)]  # fmt: skip
market = DataMarket.from_models(
    [images[shard] for shard in shards],
    tasks,
    budgets=np.ones(10),
    seller_names=[f"{j / 12:.0%} wrong" for j in range(6)],
    buyer_names=[f"digit {d}" for d in range(10)],
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    result = solve_pricing(market, rng=0, max_rounds=300)
print(f"incentive ratio {result.incentive_ratio:.3f}, any price {result.any_price_ratio:.3f}")

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for j, name in enumerate(market.seller_names):
    cost, kinks = market.price_function(result.lengths, j)
    axes[0].plot(kinks[:, 0], kinks[:, 1], marker=".", label=name)
axes[0].set(xlabel="fraction of the dataset", ylabel="cost", title="Price schedules")
axes[0].legend(fontsize=8)
axes[1].bar(market.seller_names, result.revenue)
axes[1].set(ylabel="revenue", title="What the sellers earn")
axes[1].tick_params(axis="x", rotation=30)

# %%
# Any price list can be checked: which uniform price would be best for one seller, others staying where they are?
best = best_uniform_deviation(market, result.lengths, 0)
attained = "attained" if best.attained else "approached from below"
print(f"seller 0 earns {result.revenue[0]:.3f} and could earn {best.revenue:.3f} at {best.price:.3f} ({attained})")

# %%
# Who buys from whom is a bipartite graph.
graph = result.to_networkx()
largest = sorted(graph.edges(data="spend"), key=lambda edge: -edge[2])[:3]
for (_, buyer), (_, seller), spend in largest:
    print(f"{buyer} pays {spend:.3f} for the shard with {seller}")
plt.show()
