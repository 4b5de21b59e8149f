"""
How many components? Ask the moments
====================================

A Gaussian mixture wants to know its number of components, and then a good start. The hierarchy of moments wants
neither: it looks for the closest mixture among all, with any number of components, by one convex problem per level.
When the rank of a matrix stops growing, that rank is the number of components, and their places are read off. This
example clusters, asks for the distance to a family with a proof, brings a family of its own, and restricts the
parameters.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats
from sklearn.datasets import make_blobs

from assay.transport import MomentMixtureClustering, closest_mixture

# %%
# Clusters without their number
# -----------------------------
# Only the 27 moments of degree up to 6 enter. The ranks of the moment matrices of orders 0, 1, 2, 3 say how many
# components there are: when the last two agree, that many.

X, truth = make_blobs(600, centers=[[-3, -3], [3, -2], [0, 3], [4, 4]], cluster_std=0.9, random_state=0)
model = MomentMixtureClustering(s_grid=[0.02]).fit(X)
print(f"{model.n_clusters_} clusters, ranks {model.ranks_}")
print("centres", np.round(model.means_, 2).tolist())

figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
axis.scatter(*X.T, c=model.labels_, cmap="tab10", s=8)
axis.scatter(*model.means_.T, color="black", marker="x", s=80)
axis.set(title="labels, and centres from moments", xlabel="first coordinate", ylabel="second coordinate")
plt.show()

# %%
# The mixture is also where expectation maximisation can start.

mixture = model.gaussian_mixture(random_state=0).fit(X)
print(f"EM: {mixture.n_iter_} iterations from there")

# %%
# How far is a distribution from a family?
# ----------------------------------------
# No mixture of normal distributions of variance 0.3 with means in [-1, 1] is uniform. Each level of the hierarchy
# proves a lower bound on the distance of *all* such mixtures; the one that is found gives the upper end.

orders, lower, upper = range(3, 7), [], []
for order in orders:
    result = closest_mixture(target=stats.uniform(-1, 2), params={"variance": 0.3}, bounds=[-1, 1], order=order)
    lower.append(result.lower)
    upper.append(result.upper)
for promise in result.certificates:
    print(promise)

figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
axis.plot(orders, upper, "o-", color="#B8561C", label="the mixture found")
axis.plot(orders, lower, "o-", color="#145DA8", label="proved for all mixtures")
axis.set(xlabel="order", ylabel="squared distance", xticks=list(orders))
axis.legend()
plt.show()

# %%
# What a level costs is known before it is built, and recorded. A level that would not fit in memory is refused.

sizes = {name: result.history[name].tolist() for name in ("largest_block", "n_variables", "seconds_solve")}
print(sizes)
try:
    closest_mixture(data=X, params={"variance": 1.0}, order=12)
except MemoryError as refusal:
    print(refusal)

# %%
# A family of your own
# --------------------
# A family is an object with ``dim``, ``n_params`` and ``moment_polynomial``: the moments as polynomials in the
# parameters. Here Laplace distributions with a free place and a fixed scale. With ``cdf`` and ``partial_mean`` it would
# also give the distance of the mixture found.


class Laplace:
    dim = 1
    n_params = 1

    def __init__(self, scale):
        self.scale = scale

    def moment_polynomial(self, alpha):
        # E (m + z)^k, where E z^j = j! scale^j for even j, and 0 for odd j.
        (k,) = alpha
        return {(k - j,): math.comb(k, j) * math.factorial(j) * self.scale**j for j in range(0, k + 1, 2)}


family = Laplace(0.1)
places, weights = (-0.5, 0.2, 0.6), (0.3, 0.3, 0.4)
moments = [
    sum(
        w * sum(c * m ** e[0] for e, c in family.moment_polynomial((k,)).items())
        for m, w in zip(places, weights, strict=True)
    )
    for k in range(9)
]
result = closest_mixture(moments, family=family, bounds=[-1, 1])
print(f"order {result.order}: at {result.params[:, 0].round(6)}, weights {result.weights.round(6)}")

# %%
# Restricted parameters
# ---------------------
# Besides the box, polynomial inequalities restrict the parameters: here means outside of the interval (-0.3, 0.3). The
# target is a single normal distribution at 0, which is forbidden; what is allowed is at least this far from it.

outside = [{(0,): -0.09, (2,): 1.0}]  # m^2 - 0.09 >= 0
result = closest_mixture(
    target=stats.norm(0, 0.3), params={"variance": 0.09}, bounds=[-0.6, 0.6], constraints=outside, order=4
)
print(f"means {result.params[:, 0].round(3)}, {result.lower:.5f} <= distance <= {result.upper:.5f}")
