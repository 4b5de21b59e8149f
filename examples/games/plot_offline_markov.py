"""
Equilibrium policies from a log
===============================

Two players compete over four steps, and all there is is a log of how they played. What should each have done against
a perfect opponent? A pull towards the policies that were logged makes the answer unique, and the error falls like one
over the number of episodes. This example learns both policies, asks the log how far they can be trusted, and looks at
what happens when the log does not cover what matters.
"""

import matplotlib.pyplot as plt
import numpy as np

from assay.games.markov_gap import nash_gap, regularized_equilibrium, regularized_gap
from assay.games.markov_model import MarkovGameModel
from assay.games.offline_baselines import plugin_equilibrium
from assay.games.offline_markov import rose, sos_md

# %%
# A game and a log of it
# ----------------------
# Five states, three actions for each player. We know the rules, so that we can check the answer; the methods see the
# log only. Rewards in it are 0 or 1.

rng = np.random.default_rng(0)
P = rng.dirichlet(np.ones(5), size=(4, 5, 3, 3))  # step, state, both actions, next state
game = MarkovGameModel(P, rng.uniform(0, 1, (4, 5, 3, 3)))
log = game.sample_dataset(4000, "uniform", rng, noise="bernoulli")
print(log)

# %%
# One call
# --------
# ``beta`` is the weight of the pull, in units of reward. Without references they would be cloned from the log.

beta = 0.5
result = rose(log, beta, mu_ref="uniform", nu_ref="uniform")
print(result)
for certificate in result.certificates:
    print(certificate)
print("true gap:", regularized_gap(game, beta, None, None, result.mu, result.nu))

# %%
# The policies at the first step, next to those of the true game.

target = regularized_equilibrium(game, beta)
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for axis, learned, true, player in (
    (axes[0], result.mu, target.mu, "max player"),
    (axes[1], result.nu, target.nu, "min player"),
):
    for action in range(3):
        axis.bar(np.arange(5) + 0.25 * action, learned[0, :, action], 0.22, label=f"action {action}")
    axis.plot((np.arange(5)[:, None] + 0.25 * np.arange(3)).ravel(), true[0].ravel(), "k_", markersize=14)
    axis.set(xlabel="state", title=f"{player}, first step")
axes[0].set_ylabel("probability (line: true game)")
axes[0].legend()

# %%
# How the error falls
# -------------------
# With the pull like 1/n, without it like one over the square root.

sizes = [250, 500, 1000, 2000, 4000, 8000, 16000]
gaps = {"pull to references, its own gap": [], "plug-in, gap without a pull": []}
for n in sizes:
    samples = game.sample_dataset(n, "uniform", np.random.default_rng(n), noise="bernoulli")
    found = rose(samples, beta, "uniform", "uniform", split_half=False)
    gaps["pull to references, its own gap"].append(regularized_gap(game, beta, None, None, found.mu, found.nu))
    plain = plugin_equilibrium(samples)
    gaps["plug-in, gap without a pull"].append(nash_gap(game, plain.mu, plain.nu))

figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
for name, values in gaps.items():
    slope = np.polyfit(np.log(sizes), np.log(values), 1)[0]
    axis.loglog(sizes, values, marker="o", label=f"{name} (exponent {slope:.2f})")
axis.set(xlabel="episodes", ylabel="gap")
axis.legend()

# %%
# A log that does not cover enough
# --------------------------------
# When both players always took the likeliest action, nobody knows what others would have led to. More data do not
# help, and the certificate of coverage says so.

pure = tuple(np.eye(3)[policy.argmax(axis=-1)] for policy in (target.mu, target.nu))
for n in (500, 16000):
    narrow = game.sample_dataset(n, pure, np.random.default_rng(n), noise="bernoulli")
    found = rose(narrow, beta, "uniform", "uniform", split_half=False)
    print(f"{n} episodes: true gap {regularized_gap(game, beta, None, None, found.mu, found.nu):.4f}")
print(next(c for c in found.certificates if "concentrability" in c.statement))

# %%
# Self-play
# ---------
# When policies are networks one cannot solve stage games, but both players can improve in turn. The last iterate
# converges linearly with constant steps; harmonic steps need no knowledge of the range of values.

figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
for schedule in ("constant", "harmonic"):
    played = sos_md(log, beta, "uniform", "uniform", n_iter=600, schedule=schedule, split_half=False)
    first = played.history["step"] == 1
    axis.loglog(
        played.history["iteration"][first], np.maximum(played.history["gap"][first], 1e-16), marker=".", label=schedule
    )
axis.set(xlabel="updates", ylabel="gap of the worst stage game, first step")
axis.legend(title="steps")
plt.show()
