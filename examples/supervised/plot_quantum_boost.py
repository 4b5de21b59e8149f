"""
Boosting on wrong labels, with a weak learner of your own
=========================================================

AdaBoost puts ever more weight on what it gets wrong, and a wrong label is something that it has to get wrong. Smooth
boosting caps the weight of every example. This example looks at both on labels of which a tenth is wrong, at what the
run certifies about itself, at a weak learner that is written in a few lines, and at what the projections would cost a
quantum computer.
"""

# %%
# Wrong labels
# ------------
# A tenth of the training labels is flipped. Both boosters get the same number of stumps.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import AdaBoostClassifier
from sklearn.model_selection import train_test_split

from assay.supervised import QuantumBoostClassifier, amplitude_estimate, bregman_project

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
wrong = np.random.default_rng(0).random(len(y_train)) < 0.1
y_noisy = np.where(wrong, 1 - y_train, y_train)

smooth = QuantumBoostClassifier(epsilon=0.25).fit(X_train, y_noisy)
adaboost = AdaBoostClassifier(n_estimators=smooth.n_rounds_, random_state=0).fit(X_train, y_noisy)
figure, axes = plt.subplots(figsize=(5.5, 3.5))
for name, model in {"smooth, lazy": smooth, "AdaBoost": adaboost}.items():
    errors = [np.mean(labels != y_test) for labels in model.staged_predict(X_test)]
    axes.plot(errors, label=f"{name}: {errors[-1]:.3f}")
axes.set(xlabel="round", ylabel="error on clean test labels")
axes.legend()
figure.tight_layout()

# %%
# What is certain
# ---------------
# The run says itself how many training labels can be missed at most, whatever the weak learner was. It stopped in the
# first round in which that was below ``epsilon``. No example ever had much weight, and the weights were projected only
# every tenth round.
for certificate in smooth.certificates_:
    print(certificate)

figure, axes = plt.subplots(figsize=(5.5, 3.5))
axes.plot(smooth.history_["round"], smooth.history_["largest_weight"], drawstyle="steps-mid")
axes.axhline(smooth.certificates_[2].bound, color="gray", linestyle=":", label="bound")
axes.set(xlabel="round", ylabel="largest weight, times epsilon m")
axes.legend()
figure.tight_layout()

# %%
# The projection itself: entries above the cap are cut to 1, the others are scaled up.
projection = bregman_project([0.9, 0.5, 0.3, 0.1, 0.05], eps=0.5)
print(f"constant {projection.constant:.4f}, measure {projection.measure.round(3)}")

# %%
# A weak learner of your own
# --------------------------
# Anything with ``fit(X, y, sample_weight)``, ``predict`` and ``get_params`` will do; the last one comes with
# ``BaseEstimator``. This one looks at two random features and draws the line between the weighted class means. What is
# missing is said by name.


class TwoFeatureMeans(ClassifierMixin, BaseEstimator):
    def __init__(self, random_state=None):
        self.random_state = random_state

    def fit(self, X, y, sample_weight):
        rng = np.random.default_rng(self.random_state)
        self.classes_ = np.unique(y)
        self.pair_ = rng.choice(X.shape[1], size=2, replace=False)
        Z = X[:, self.pair_]
        self.scale_ = Z.std(axis=0)
        low, high = (
            np.average(Z / self.scale_, axis=0, weights=sample_weight * (y == label) + 1e-12) for label in self.classes_
        )
        self.direction_, self.middle_ = high - low, 0.5 * (high + low)
        return self

    def predict(self, X):
        side = (X[:, self.pair_] / self.scale_ - self.middle_) @ self.direction_ > 0
        return self.classes_[side.astype(int)]


own = QuantumBoostClassifier(TwoFeatureMeans(), epsilon=0.25, random_state=0).fit(X_train, y_train)
print(f"{own.n_rounds_} rounds, edges from {own.edges_.min():.2f} to {own.edges_.max():.2f}")
print(f"certified: {own.certificate_.holds}, test error {1 - own.score(X_test, y_test):.3f}")


class Forgetful:
    def fit(self, X, y, sample_weight=None):
        return self


try:
    QuantumBoostClassifier(Forgetful()).fit(X_train, y_train)
except TypeError as error:
    print(error)

# %%
# Quantum queries
# ---------------
# A quantum computer would estimate densities by amplitude estimation. The law of its outcome is known exactly and can
# be drawn from: here 2000 estimates of 0.1 with 64 evaluations each.
rng = np.random.default_rng(0)
estimates = [amplitude_estimate(0.1, 64, rng) for _ in range(2000)]
figure, axes = plt.subplots(figsize=(5.5, 3.5))
axes.hist(estimates, bins=60)
axes.axvline(0.1, color="black")
axes.set(xlabel="estimate", ylabel="runs", xlim=(0, 0.3))
figure.tight_layout()

# %%
# The queries of a projection grow like one over the root of the density, and do not depend on the number of examples:
# there is a number of examples from which on the quantum count is the smaller one.
for epsilon in (0.25, 0.1):
    model = QuantumBoostClassifier(epsilon=epsilon, projection="quantum_sim", resample=100, random_state=0)
    queries = model.fit(X_train, y_train).queries_
    print(
        f"epsilon {epsilon}: quantum {queries.quantum:.2g}, classical {queries.classical:.2g} for {queries.n_samples} "
        f"examples; level at {queries.crossover:.2g} examples"
    )
plt.show()
