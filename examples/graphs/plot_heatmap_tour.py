"""
A tour from edge scores, with a guarantee
=========================================

Neural networks, yesterday's route, or votes of heuristics give *scores* on the edges between cities: how likely each
is in a good tour. Turning scores into a tour is usually done greedily, without any promise. Here we decode them so
that the cost is bounded by how wrong the scores are, on the classic instance ``eil51``, whose shortest tour is 426.
"""

import matplotlib.pyplot as plt
import numpy as np

from assay.data.tsplib import load_tsplib
from assay.graphs.heatmap_tour import christofides, decode_heatmap
from assay.graphs.tour_decoders import greedy_decode

instance = load_tsplib("eil51")
distances = instance.distances()

# %%
# Scores that can be trusted less and less
# ----------------------------------------
# As "yesterday's route" we take a tour that local search finds. Its edges get high scores, short edges that are not on
# it low ones; with probability ``noise``, the score of an edge is the wrong way round.

yesterday = christofides(distances, improve="both").tour
rng = np.random.default_rng(0)


def noisy_scores(noise):
    rank = np.argsort(np.argsort(distances, axis=1), axis=1)
    short = (np.minimum(rank, rank.T) <= 5) & (rank > 0)
    on_route = np.zeros_like(short)
    on_route[yesterday, np.roll(yesterday, -1)] = True
    on_route |= on_route.T
    wrong = rng.random(distances.shape) < noise
    scores = np.where(on_route != wrong, rng.beta(8, 2, distances.shape), rng.beta(2, 8, distances.shape))
    scores = np.triu(scores * (short | on_route), 1)
    return scores + scores.T


# %%
# One call, and what it proves
# ----------------------------
# ``reference`` is a tour to state the bound against; ``lower_bound=True`` adds a bound on *every* tour, so that we know
# how far from the optimum we can be at most, without knowing the optimum.

scores = noisy_scores(0.03)
result = decode_heatmap(distances, scores, reference=yesterday, lower_bound=True)
print(f"cost {result.cost:.0f}, found by {result.source!r}")
print(f"at most {100 * (result.ratio_bound - 1):.1f}% above the optimum")
for certificate in result.certificates:
    print(certificate)

# %%
# The scores in grey, the tour on top: where scores are wrong, the tour does not follow them.

x, y = instance.coords.T
figure, axes = plt.subplots(1, 2, figsize=(11, 4.2))
for i, j in zip(*np.nonzero(np.triu(scores)), strict=True):
    axes[0].plot(x[[i, j]], y[[i, j]], color="0.2", alpha=scores[i, j] ** 2, lw=1.2)
axes[0].set_title("scores on edges")
closed = np.append(result.tour, result.tour[0])
axes[1].plot(x[closed], y[closed], color="tab:blue")
axes[1].set_title(f"tour of cost {result.cost:.0f} (optimum {instance.optimal:.0f})")
for axis in axes:
    axis.plot(x, y, "o", color="black", ms=3)
    axis.set_aspect("equal")
    axis.axis("off")

# %%
# Never worse than greedy, never worse than Christofides
# ------------------------------------------------------
# Greedy decoding is excellent while the scores are right, and has no bottom when they are not. Christofides' tour
# ignores the scores. The decoder is at least as good as both, at every noise level.

noise_levels = np.linspace(0, 0.2, 9)
ratios = {"greedy": [], "Christofides": [], "decode_heatmap": []}
bounds = []
baseline = christofides(distances).cost / instance.optimal
for noise in noise_levels:
    drawn = [noisy_scores(noise) for _ in range(6)]
    tours = [greedy_decode(distances, s) for s in drawn]
    ratios["greedy"].append(np.mean([distances[t, np.roll(t, -1)].sum() for t in tours]) / instance.optimal)
    ratios["Christofides"].append(baseline)
    results = [decode_heatmap(distances, s, reference=yesterday) for s in drawn]
    assert all(r.certified for r in results)
    ratios["decode_heatmap"].append(np.mean([r.cost for r in results]) / instance.optimal)
    bounds.append(np.mean([r.bound for r in results]) / instance.optimal)

figure, axis = plt.subplots(figsize=(7, 4))
for name, values in ratios.items():
    axis.plot(noise_levels, values, marker="o", ms=4, label=name, lw=2.5 if name == "decode_heatmap" else 1.2)
axis.plot(noise_levels, np.minimum(bounds, 1.5), color="0.5", ls="--", label="proved: the smaller of both bounds")
axis.set(xlabel="probability that a score is wrong", ylabel="cost / optimum")
axis.legend()
plt.show()

# %%
# The dashed line is what was proved for these very scores: ``c(T) + 2 eta(T)`` against yesterday's route while the
# scores are good, and 1.5 times the optimum when they are not.
