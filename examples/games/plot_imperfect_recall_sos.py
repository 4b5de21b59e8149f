"""
Players who forget
==================

A player with imperfect recall cannot tell some situations apart, even situations that differ in what he did himself.
The payoff is then a polynomial with many local maxima. This example finds the best strategy together with a proof,
sees how bounds fall, and proves that a game has no equilibrium at all.
"""

# %%
# The absent-minded driver
# ------------------------
# Home is at the second exit of a motorway, and the exits look alike. Leaving at the first pays 0, at the second 4,
# never 1. No pure strategy pays more than 1.
import warnings

import matplotlib.pyplot as plt
import numpy as np

from assay.games.imperfect_nash import find_nash
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.games.imperfect_recall_sos import ex_ante_optimum
from assay.games.sos_concavity import is_sos_concave


def leaf(payoff):
    return {"type": "leaf", "payoffs": [payoff]}


def exit_at(payoff, further):
    actions = [{"label": "continue", "child": further}, {"label": "leave", "child": leaf(payoff)}]
    return {"type": "decision", "infoset": "exit", "actions": actions}


driver = ImperfectRecallGame.from_json({"players": ["driver"], "root": exit_at(0, exit_at(4, leaf(1)))})
best = ex_ante_optimum(driver)
print(best)
for certificate in best.certificates:
    print(certificate)

p = np.linspace(0, 1, 101)
figure, axes = plt.subplots(figsize=(5.5, 3.2))
axes.plot(p, [driver.utility(0, [[q, 1 - q]]) for q in p])
axes.axhline(best.upper_bound, color="gray", linestyle=":", label="proved bound")
axes.plot(best.x[0][0], best.value, "o")
axes.set(xlabel="probability of driving on", ylabel="expected payoff")
axes.legend()
figure.tight_layout()

# %%
# One semidefinite program was enough because the payoff is concave, which another one proves.
print(is_sos_concave(driver).holds)

# %%
# Bounds that fall
# ----------------
# Chance picks an edge of a cycle with five nodes. The player colours one end, forgets it, colours the other, and is
# paid if the colours differ. One edge of five must fail. Over all mixed strategies the bound comes close; over pure
# ones, of which one is optimal as nobody is absent-minded, it is exact.
utility = {}
for j in range(5):
    k = (j + 1) % 5
    for a, b in ((2 * j, 2 * k + 1), (2 * j + 1, 2 * k)):
        utility[tuple(int(i in (a, b)) for i in range(10))] = 1 / 5
cycle = ImperfectRecallGame.from_polynomials([utility], [[2 * j, 2 * j + 1] for j in range(5)], [0] * 5)
figure, axes = plt.subplots(figsize=(5.5, 3.2))
for vertex, name in ((False, "mixed strategies"), (True, "pure strategies")):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the gap stays open, which is the point
        result = ex_ante_optimum(cycle, vertex=vertex, max_order=2)
    print(f"{name}: {result.upper_bound:.7f}, {result.status}")
    axes.plot(result.history["order"], result.history["upper_bound"], "o-", label=name)
axes.axhline(0.8, color="gray", linestyle=":", label="best payoff")
axes.set(xlabel="order", ylabel="proved bound", xticks=[1, 2])
axes.legend()
figure.tight_layout()

# %%
# A game without an equilibrium
# -----------------------------
# A shooter chooses a side, forgets it, and chooses again; if the two differ, that costs. The keeper guesses. Each
# entry of the history is a point that satisfies the first-order conditions of both, and from which the shooter gains;
# the last one is a relaxation without a feasible point.
for cost in (0.0, 2.0):
    u = {}
    for p in (0, 1):
        for q in (0, 1):
            for r in (0, 1):
                u[p, 1 - p, q, 1 - q, r, 1 - r] = (1 - 2 * r) * (p + q - 1) - cost * (p + q - 2 * p * q)
    loss = {key: -payoff for key, payoff in u.items()}
    game = ImperfectRecallGame.from_polynomials([u, loss], [[0, 1], [2, 3], [4, 5]], [0, 0, 1])
    answer = find_nash(game)
    print(f"cost {cost:g}: {answer.status} after {answer.n_cuts} cuts, gains {answer.history['gain']}")
    for certificate in answer.certificates:
        print(" ", certificate)

# %%
# Forgetting a card
# -----------------
# Kuhn poker against an opponent who always bets after a pass and nearly always calls a bet: pass with the lowest card
# and fold, pass with the highest one and call. A first player who forgets the card before the second move cannot do
# both.
try:
    import pyspiel  # noqa: F401
except ImportError:
    print("OpenSpiel is not installed")
else:
    for name, merge in (("remembers", None), ("forgets", lambda state: "pb" if state.endswith("pb") else state)):
        kuhn = ImperfectRecallGame.from_openspiel("kuhn_poker", merge=merge)
        loose = [[0.1, 0.9] if infoset.label.endswith("b") else [0.0, 1.0] for infoset in kuhn.infosets]
        reply = ex_ante_optimum(kuhn, player=0, others=loose)
        print(f"{name}: {reply.value:.6f} <= {reply.upper_bound:.6f}")
plt.show()
