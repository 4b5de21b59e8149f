"""
The last iterate, by perturbing one player
==========================================

Two players who learn by following gradients circle around the equilibrium of a zero-sum game. Perturbing both stops the
circling, but somewhere else. Perturbing one of them only stops it at an equilibrium strategy of that player, exactly,
as long as the perturbation is not too strong. We watch this in rock-paper-scissors with unequal stakes, let the
perturbation choose itself, and then play poker.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from assay.games.asymmetric_baselines import gda, ogda, sym_gda
from assay.games.asymmetric_perturbation import asym_gda
from assay.games.asymmetric_trees import asym_dgda
from assay.games.game_tree import GameTree
from assay.games.sequence_form import SequenceFormGame

warnings.simplefilter("ignore")  # some of these are not meant to converge

payoff = np.array([[0, -1, 3], [1, 0, -1], [-3, 1, 0]])  # what the row player pays

# %%
# One call
# --------
# With ``mu="auto"``, the default, the perturbation is halved when it is proved to be too strong. Here the largest
# payoff is: the threshold is 2.5.

result = asym_gda(payoff, eps=1e-12)
print(result)
for certificate in result.certificates:
    print(certificate)
print("proved too strong:", result.proved_not_invariant)

# %%
# Who arrives
# -----------
# All take the same step size. What is plotted is NashConv: what both players together could gain by deviating from the
# strategies of that very step.

step = 1 / np.linalg.norm(payoff, 2)
options = {"n_iter": 600, "eps": 1e-15, "check_every": 5}
runs = {
    "one player perturbed": asym_gda(payoff, mu=1.0, eta=step, **options),
    "both perturbed": sym_gda(payoff, mu=1.0, eta=step, **options),
    "both, ever less": sym_gda(payoff, mu=1.0, eta=step, decreasing=True, **options),
    "optimistic": ogda(payoff, eta=step / 2, **options),
    "plain": gda(payoff, eta=step, **options),
}
figure, axis = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, run in runs.items():
    axis.semilogy(run.history["iteration"], np.maximum(run.history["nashconv"], 1e-16), label=name)
axis.set(xlabel="steps", ylabel="NashConv of the last iterate", title="Biased rock-paper-scissors")
axis.legend()

# %%
# Where the perturbed player ends
# -------------------------------
# Below the threshold, nothing moves. Above it the strategy slides towards uniform play.

strengths = np.linspace(0.25, 6, 24)
ends = np.array([asym_gda(payoff, mu=mu, eps=1e-10).x for mu in strengths])
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
for column, name in zip(ends.T, ("rock", "paper", "scissors"), strict=True):
    axis.plot(strengths, column, marker=".", label=name)
axis.axvline(2.5, color="0.6", linestyle=":")
axis.set(xlabel="perturbation mu", ylabel="probability", title="The solution of the perturbed game")
axis.legend()

# %%
# Poker with three cards
# ----------------------
# A game tree needs no OpenSpiel: it can be written down. Both put one chip in; the first player passes or bets another;
# who has bet against is called or folded to; the higher card wins.


def poker(cards, history=""):
    """Kuhn poker, from the moves so far: p for pass or fold, b for bet or call."""
    won = 1 if cards[0] > cards[1] else -1
    ends_at = {"pp": won, "bp": 1, "bb": 2 * won, "pbp": -1, "pbb": 2 * won}
    if history in ends_at:
        return {"type": "leaf", "payoffs": [ends_at[history], -ends_at[history]]}
    player = len(history) % 2
    actions = [{"label": move, "child": poker(cards, history + move)} for move in "pb"]
    return {
        "type": "decision",
        "player": player,
        "infoset": f"{cards[player]}{history} of {player}",
        "actions": actions,
    }


deals = [(a, b) for a in range(3) for b in range(3) if a != b]
chance = [{"label": str(deal), "prob": 1 / 6, "child": poker(deal)} for deal in deals]
tree = GameTree.from_json({"players": ["first", "second"], "root": {"type": "chance", "actions": chance}})
kuhn = SequenceFormGame.from_tree(tree)
print(kuhn)

answer = asym_dgda(kuhn, eps=1e-11)
print("the first player pays", round(answer.value_upper, 9), "= 1 / 18, after", answer.n_iter, "steps of each run")
for infoset, local in kuhn.behaviour(0, answer.x).items():
    print(f"{infoset}: bets with probability {local[1]:.4f}")

figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
history = answer.history
axis.semilogy(history["iteration"], np.maximum(history["nashconv"], 1e-16), label="NashConv")
axis.semilogy(history["iteration"], np.maximum(history["p_x"] + history["p_y"], 1e-16), label="perturbed gaps")
for change in history["iteration"][1:][np.diff(history["mu"]) != 0]:
    axis.axvline(change, color="0.8", linewidth=1)
axis.set(xlabel="steps of each run", title="Kuhn poker; grey: the perturbation is halved")
axis.legend()

plt.show()
