"""
Preference losses of your own, and what they assume
===================================================

DPO trains on the logistic loss of a margin, and its relatives on other curves. Any decreasing curve will do. This
example certifies some of them, writes a new loss and a new choice model, finds the policy that a loss aims at, and
trains a ranker on comparisons that are partly wrong.
"""

# %%
# What a loss implies
# -------------------
# Both orders of a pair are seen in training, and the loss turns a margin into a probability without being asked. For
# the logistic and the savage loss this is the logistic function. For the ramp it is one half everywhere: it can order,
# but its margins mean nothing.
import matplotlib.pyplot as plt
import numpy as np
import torch

from assay.supervised import (
    ChoiceModel,
    PreferenceLoss,
    PreferenceRanker,
    certify_preference_fit,
    certify_preference_loss,
    implied_choice_model,
    tabular_policy,
)

margins = torch.linspace(-4, 4, 201, dtype=torch.float64)
figure, axes = plt.subplots(figsize=(5.5, 3.5))
for psi in ("logistic", "probit", "matusita", "robust(0.1)", "ramp"):
    axes.plot(margins, implied_choice_model(psi).probability(margins), label=psi)
axes.set(xlabel="margin", ylabel="implied probability")
axes.legend()
figure.tight_layout()

# %%
# The certificate puts this into words.
for psi in ("logistic", "savage", "ramp", "hinge", "ipo", "cdpo(0.1)", "discopop"):
    report = certify_preference_loss(psi)
    print(f"{psi:12} {report.verdict:32} convex: {report.convex}")

# %%
# A loss and a choice model of your own
# -------------------------------------
# A loss needs the method ``value``, a choice model needs ``probability`` and ``inverse``.


class HuberisedHinge:
    name = "huberised hinge"

    def value(self, z):
        return torch.where(z < 0, 1 - 2 * z, (1 - z).clamp_min(0) ** 2)


class Laplace(ChoiceModel):
    name = "laplace"

    def probability(self, margin):
        tail = 0.5 * torch.exp(-margin.abs())
        return torch.where(margin < 0, tail, 1 - tail)

    def complement(self, margin):
        return self.probability(-margin)

    def inverse(self, probability):
        tail = torch.minimum(probability, 1 - probability)
        return -torch.sign(probability - 0.5) * torch.log(2 * tail)


report = certify_preference_loss(HuberisedHinge(), Laplace())
print(report.verdict)
for certificate in report.certificates:
    print(certificate)
loss = PreferenceLoss(HuberisedHinge(), Laplace(), beta=0.1)

# %%
# The policy that a loss aims at
# ------------------------------
# With exact preferences of the logistic model the savage loss, which is not convex, leads to the same policy as DPO.
utility = np.array([1.0, 0.5, 0.0, -0.3, -1.0])
preferences = 1 / (1 + np.exp(utility[None, :] - utility[:, None]))
reference = [0.1, 0.3, 0.2, 0.25, 0.15]
for psi in ("logistic", "savage", "ramp"):
    print(psi, tabular_policy(preferences, reference, psi, beta=0.5).policy.round(4))

# %%
# Comparisons that are partly wrong
# ---------------------------------
# Which of two handwritten digits is larger? A quarter of the answers are wrong.
from sklearn.datasets import load_digits

images, digits = load_digits(return_X_y=True)
images = images / 16
rng = np.random.default_rng(0)


def draw(items, n):
    pairs = rng.choice(items, (n, 2))
    pairs = pairs[digits[pairs[:, 0]] != digits[pairs[:, 1]]]
    larger_first = digits[pairs[:, 0]] > digits[pairs[:, 1]]
    return np.where(larger_first[:, None], pairs, pairs[:, ::-1])


train, test = draw(np.arange(900), 3000), draw(np.arange(900, len(digits)), 3000)
wrong = rng.random(len(train)) < 0.25
answers = np.where(wrong[:, None], train[:, ::-1], train)
for psi in ("logistic", "savage", "ramp"):
    ranker = PreferenceRanker(psi=psi, max_iter=300, random_state=0).fit(images, answers)
    print(f"{psi:9} {ranker.score(images, test):.3f} of unseen pairs in the right order")

# %%
# Are the probabilities right? A model that was trained on wrong answers is less certain than it should be on right
# ones, and the certificate notices.
ranker = PreferenceRanker(psi="savage", max_iter=300, random_state=0).fit(images, answers)
fit = certify_preference_fit(ranker, test, images)
print(fit.certificates[0])
figure, axes = plt.subplots(figsize=(5.5, 3.5))
axes.errorbar(
    fit.bin_predicted,
    fit.bin_frequency,
    [fit.bin_frequency - fit.bin_lower, fit.bin_upper - fit.bin_frequency],
    marker="o",
    linestyle="none",
)
axes.plot([0.5, 1], [0.5, 1], color="gray")
axes.set(xlabel="predicted probability", ylabel="observed frequency")
figure.tight_layout()
plt.show()
