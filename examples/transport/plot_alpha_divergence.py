"""
How far has the data drifted?
=============================

Two samples, last month's and this month's: are they from the same law, and if not, how far apart are the two? A
divergence is a number for it. A neural critic can estimate one, with a value that depends on the seed and can explode.
Here the critic is a kernel function in a ball: a concave problem with one solution, a proof that it was found, and a
lower bound that holds for whatever laws the samples are from.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from assay.transport import AlphaDivergence, AmariDivergence, alpha_divergence

# %%
# Tumours
# -------
# Measurements of 569 tumours, standardised and reduced to five principal components. Malignant and benign ones should
# be far apart, two halves of the benign ones should not. At alpha = 1/2 the divergence is twice the squared Hellinger
# distance, so it is between 0 and 4.

X, y = load_breast_cancer(return_X_y=True)
points = PCA(5, random_state=0).fit_transform(StandardScaler().fit_transform(X))
rng = np.random.default_rng(0)
malignant, benign = (rng.permutation(points[y == label]) for label in (0, 1))

for name, first, second in (
    ("malignant, benign", malignant, benign),
    ("benign, benign", benign[::2], benign[1::2]),
):
    result = alpha_divergence(first, second, alpha=0.5, rng=0)
    print(f"{name}: estimate {result.value:.2f}, at least {result.lower_bound:.2f} with 95 % confidence")

# %%
# A negative lower bound says that the samples give no reason to believe that the laws differ. The estimate itself is
# made on points that the critic has not seen, and can be a little below zero for the same reason.
#
# The certificates
# ----------------
# The first proves that no critic in the ball does better on the training points; the third recomputes the lower bound.

estimator = AlphaDivergence(alpha=0.5, random_state=0).fit(malignant, benign)
for promise in estimator.certificates_:
    print(promise)

# %%
# Where are the two different?
# ----------------------------
# The critic is an estimate of ``log p/q``, at every point. For two normal laws it can be compared with the truth.

P, Q = rng.normal(size=(4000, 1)), rng.normal(1.0, np.sqrt(1.5), size=(4000, 1))
grid = np.linspace(-3, 4, 200)[:, None]
truth = -0.5 * grid**2 + 0.5 * (grid - 1) ** 2 / 1.5 + 0.5 * np.log(1.5)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(grid, truth, color="black", label="truth")
for radius, colour in ((1.0, "#B8561C"), (8.0, "#145DA8")):
    fitted = AlphaDivergence(radius=radius, random_state=0).fit(P, Q)
    left.plot(grid, fitted.log_ratio(grid), color=colour, label=f"radius {radius:g}")
left.set(xlabel="x", ylabel="log p/q", title="critic")
left.legend()

# %%
# A small ball makes a timid critic, whose value is too low; ``radius="cv"`` chooses among several.
#
# From one Kullback-Leibler divergence to the other
# -------------------------------------------------
# All alphas from 0, KL(Q|P), to 1, KL(P|Q), are the same concave problem.

alphas = np.linspace(0, 1, 9)
results = [alpha_divergence(P, Q, alpha, radius=8.0, rng=0) for alpha in alphas]
kinds = np.arange(-8, 9, 0.01)
p, q = np.exp(-0.5 * kinds**2), np.exp(-0.5 * (kinds - 1) ** 2 / 1.5)
exact = [AmariDivergence(alpha).between(p / p.sum(), q / q.sum()) for alpha in alphas]
right.plot(alphas, exact, color="black", label="exact")
right.plot(alphas, [result.value for result in results], "o", color="#145DA8", label="estimate")
right.plot(alphas, [result.lower_bound for result in results], "_", color="#145DA8", label="lower bound")
right.set(xlabel="alpha", title="divergence", ylim=(0, None))
right.legend()
plt.show()
