"""
An equilibrium to ten digits
============================

Two commanders distribute ten soldiers each over four battlefields; whoever wins more fields wins. This is Colonel
Blotto, a zero-sum game with 286 plans for each side. Who plays it well mixes plans at random, and the duality gap says
how well: it is what both sides together could gain by a better plan. We look at how fast a first-order method and a
second-order method bring it down, on this game and on a random one, and at what certifies the answer.
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np

from assay.games import duality_gap, solve_matrix_game

plans = np.array([plan for plan in itertools.product(range(11), repeat=4) if sum(plan) == 10])
payoff = np.sign(np.sign(plans[None] - plans[:, None]).sum(axis=2)).astype(float)
print(payoff.shape, "payoffs to the column player")

# %%
# One call
# --------
# The row player pays, so it minimises. The certificates are recomputed from the strategies and the payoffs.

result = solve_matrix_game(payoff)
print(result)
for certificate in result.certificates:
    print(certificate)

# %%
# Anyone can check the gap, of any pair of strategies: two matrix-vector products.

print("by hand:", max(payoff.T @ result.x) - min(payoff @ result.y))
uniform = np.full(286, 1 / 286)
print("of uniform strategies:", duality_gap(payoff, uniform, uniform))

# %%
# What is played
# --------------
# The equilibrium splits the soldiers unevenly and never sends them one way only. Plans that only reorder the fields
# are equally good, so we add them up.

kinds, kind_of = np.unique(np.sort(plans, axis=1)[:, ::-1], axis=0, return_inverse=True)
probability = np.bincount(kind_of.ravel(), weights=result.x)
order = np.argsort(probability)[::-1]
played = [k for k in order if probability[k] > 1e-9]

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
axes.barh([" ".join(map(str, kinds[k])) for k in played][::-1], probability[played][::-1])
axes.set(xlabel="probability", ylabel="soldiers per field, in some order", title="An equilibrium of Colonel Blotto")

# %%
# First order, second order
# -------------------------
# Regret matching alone has the first digits at once and then takes several times as long for every further one. The
# default method starts in the same way, switches to Newton steps, and is done after a few of them.

rng = np.random.default_rng(0)
games = {"Colonel Blotto": payoff, "random payoffs, 200 x 400": rng.standard_normal((200, 400))}
figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
for axis, (name, game) in zip(axes, games.items(), strict=True):
    for method, label in (("prm+", "regret matching only"), ("hpssn", "with Newton steps")):
        answer = solve_matrix_game(game, method=method, tol=1e-6 if method == "prm+" else 1e-10)
        axis.loglog(answer.history["seconds"], answer.history["gap"], label=label, marker=".", markersize=4)
    axis.set(xlabel="seconds", title=name)
axes[0].set_ylabel("duality gap")
axes[0].legend()

# %%
# The last Newton steps
# ---------------------
# Far from the solution the residual of the operator splitting wanders; near it, the number of correct digits about
# doubles with every step. ``newton_order`` is the order of convergence that was observed, 2 being quadratic. It counts
# residuals between 1e-2 and 1e-12 only, so that a run which leaps below 1e-12, like this one, is not credited with its
# last step: the certificate of the rate may fail on a game that is solved, and is therefore not among
# ``certificates``.

answer = solve_matrix_game(games["random payoffs, 200 x 400"])
newton = answer.history["phase"] == "newton"
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
axis.semilogy(answer.history["residual"][newton], marker="o")
axis.set(xlabel="Newton step", ylabel="norm of the residual", title=f"Observed order {answer.newton_order:.2f}")
print(answer.rate_certificate())

plt.show()
