"""
A menu that sells best, and transport with a cost of your own
=============================================================

Who wants what at which price, and who goes where at which cost, are the same question. Its answers are maxima of
finitely many pieces. This example prices two goods, compares the menu with the optimal one, and then moves people to
jobs at a cost that no library has heard of.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from assay.transport import GCFLayer, bundle_grid, optimal_auction, transport_map

# %%
# Two goods, uniform values
# -------------------------
# Buyers value each of two goods independently and uniformly on [0, 1]. The optimal mechanism is known: each good by
# itself at 2/3, both together at (4 - sqrt(2)) / 3 = 0.862. From a sample of buyers, train the prices of all bundles:

rng = np.random.default_rng(0)
values, fresh = rng.random((20000, 2)), rng.random((20000, 2))
auction = optimal_auction(values, menu=bundle_grid(2, [0, 1]), test_types=fresh, max_iter=500, rng=0)
for bundle, price, share in zip(auction.menu, auction.price, auction.share, strict=True):
    print(f"goods {bundle.astype(int)} at {price:.3f}, taken by {share:.0%}")

low, high = auction.revenue_interval
print(f"revenue {auction.revenue:.4f} [{low:.4f}, {high:.4f}]; optimal is {(12 + 2 * np.sqrt(2)) / 27:.4f}")
for promise in auction.certificates:
    print(promise)

# %%
# Each region of the square of values takes one bundle. The utility that buyers are left with is a convex function, and
# its slope is the bundle.

menu = GCFLayer("dot", torch.tensor(auction.menu[1:]), intercept=torch.tensor(auction.price[1:]), outside=True)
axis = torch.linspace(0, 1, 200, dtype=torch.float64)
grid = torch.cartesian_prod(axis, axis)
with torch.no_grad():
    taken, utility = menu.choose(grid)[1].reshape(200, 200).T, menu(grid).reshape(200, 200).T

figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
left.imshow(taken, origin="lower", extent=(0, 1, 0, 1), cmap="Pastel1")
left.contour(axis, axis, utility, levels=8, colors="black", linewidths=0.6)
left.set(xlabel="value of the first good", ylabel="value of the second", title="bundles, and utility as contours")
right.plot(auction.history["iteration"], auction.history["soft"], color="0.6", label="softened choices")
right.plot(auction.history["iteration"], auction.history["hard"], color="#145DA8", label="hard choices")
right.set(xlabel="step", ylabel="revenue, training types", title="training", ylim=(0.45, 0.6))
right.legend()
plt.show()

# %%
# A cost of your own
# ------------------
# A hundred people look for a job. A commute costs its distance along the streets, but only half of it beyond the first
# five kilometres, where the motorway begins; and who is overqualified by one level minds it four times as much as
# someone who has to learn. The cost is an object with one method, from tensors of shapes ``(S, 1, 3)`` and
# ``(1, J, 3)`` to ``(S, J)`` values. It is neither convex nor symmetric, and no metric.


class Employment:
    """Cost of a job for a person; both are (east, north, level)."""

    def evaluate(self, x, y):
        """Costs of all pairs."""
        streets = (x[..., :2] - y[..., :2]).abs().sum(-1)
        commute = streets.clamp(max=5.0) + 0.5 * (streets - 5.0).clamp(min=0.0)
        above = x[..., 2] - y[..., 2]
        return commute + 4.0 * above.clamp(min=0.0) + (-above).clamp(min=0.0)


people = np.c_[rng.normal(0.0, 3.0, (100, 2)), rng.normal(0.0, 1.0, 100)]
jobs = np.c_[rng.normal([4.0, 1.0], 1.5, (100, 2)), rng.normal(0.3, 1.0, 100)]
result = transport_map(people, jobs, Employment(), rng=0)
print(f"the least mean cost is between {result.dual:.4f} and {result.primal:.4f}")
for promise in result.certificates:
    print(promise)

# %%
# The potential was trained on these hundred people, and it sends newcomers somewhere as well: to the job whose cost
# less its intercept is least.

newcomers = np.c_[rng.normal(0.0, 3.0, (300, 2)), rng.normal(0.0, 1.0, 300)]
offered = result.map(newcomers)

figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.8), layout="constrained")
pairs = result.plan.tocoo()
for i, j, mass in zip(pairs.row, pairs.col, pairs.data, strict=True):
    left.plot(*zip(people[i, :2], jobs[j, :2], strict=True), color="0.6", linewidth=100 * mass, zorder=1)
left.scatter(*people.T[:2], c=people[:, 2], cmap="viridis", s=18, zorder=2)
left.scatter(*jobs.T[:2], c=jobs[:, 2], cmap="viridis", marker="s", s=18, zorder=2)
left.set(xlabel="east (km)", ylabel="north (km)", title="people (dots), jobs (squares), and the plan")
right.scatter(newcomers[:, 2], offered[:, 2], s=12, color="#145DA8")
right.plot([-3, 3], [-3, 3], color="0.6")
right.set(xlabel="level of a newcomer", ylabel="level of the job", title="hardly anyone is overqualified")
plt.show()

# %%
# How the bounds close
# --------------------
# Every vector of intercepts is a lower bound, and every plan an upper one.

figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
axis.plot(result.history["iteration"], result.history["primal"], "o-", color="#B8561C", label="cost of the plan")
axis.plot(result.history["iteration"], result.history["best"], "o-", color="#145DA8", label="dual")
axis.set(xlabel="step", ylabel="cost")
axis.legend()
plt.show()
