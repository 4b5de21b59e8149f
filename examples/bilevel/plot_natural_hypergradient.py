"""
Which labels to believe
=======================

Half of the labels of a training set were drawn at random; a few hundred samples are known to be right. A weight for
every training sample is learned such that a fit to the weighted samples is good on those that are right. That is a
problem inside a problem, and its gradient needs the curvature of the inner one. Natural hypergradients take it from the
gradients of single samples, which inner descent computes anyway.
"""

# %%
# A classifier
# ------------
# The estimator learns weights and coefficients together.
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from assay.bilevel.hyper_cleaning import HyperCleaningClassifier

images, digits = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
order = rng.permutation(len(digits))
images, digits = images[order] / 16, digits[order]
train, clean, test = slice(0, 900), slice(900, 1200), slice(1200, None)
given = digits[train].copy()
redrawn = rng.random(900) < 0.5
given[redrawn] = rng.integers(0, 10, redrawn.sum())
right = given == digits[train]

model = HyperCleaningClassifier(max_iter=60, random_state=0)
model.fit(images[train], given, X_val=images[clean], y_val=digits[clean])
believed = model.sample_weight_ > 0.5
print(f"labels judged rightly: {np.mean(believed == right):.3f}")
print(f"test accuracy: {model.score(images[test], digits[test]):.3f}")
for name, samples, labels in (("all labels", train, given), ("the right 300", clean, digits[clean])):
    plain = LogisticRegression(max_iter=1000).fit(images[samples], labels)
    print(f"logistic regression of {name}: {plain.score(images[test], digits[test]):.3f}")

# %%
# On data as easy as these, 300 right labels alone are as good. What is gained is to know which others to look at.
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5))
bins = np.linspace(0, 1, 21)
axes[0].hist([model.sample_weight_[right], model.sample_weight_[~right]], bins, label=["right labels", "wrong labels"])
axes[0].set(xlabel="learned weight", ylabel="training samples")
axes[0].legend()
axes[1].semilogy(model.outer_loss_curve_)
axes[1].set(xlabel="outer step", ylabel="loss on right labels")
figure.tight_layout()

# %%
# Can the hypergradient be relied on?
# -----------------------------------
# The certificates say what was measured at the last one. With wrong labels the Fisher matrix is not the Hessian: the
# solution misses the true system by far. The direction is good enough for descent, the length is not to be trusted.
for certificate in model.certificates_:
    print(certificate)

# %%
# When the model is right
# -----------------------
# Responses with mean ``x'(theta_0 + v)`` and Gaussian noise: the exact hypergradient is known, and the error falls with
# the root of the number of inner samples.
from assay.bilevel.hypergradient_methods import hypergradient

solution, target = torch.ones(10, dtype=torch.float64), torch.zeros(10, dtype=torch.float64)
generator = torch.Generator().manual_seed(0)


def loss_per_sample(theta, v, batch):
    x, noise = batch
    return 0.5 * (x @ (theta - solution - v) - noise) ** 2


def outer_loss(theta, v, _):
    return 0.5 * (theta - target).square().sum()


counts = 2 ** np.arange(7, 17)
errors = []
for count in counts:
    batch = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((count, 10), (count,))]
    answer = hypergradient(solution, torch.zeros_like(solution), loss_per_sample, outer_loss, batch)
    errors.append(float((answer.grad - (solution - target)).norm() / (solution - target).norm()))
print(answer)

figure, axes = plt.subplots(figsize=(5, 3.5))
axes.loglog(counts, errors, "o-", label="natural hypergradient")
axes.loglog(counts, errors[0] * (counts / counts[0]) ** -0.5, "--", color="gray", label=r"$1/\sqrt{N}$")
axes.set(xlabel="inner samples", ylabel="relative error")
axes.legend()
figure.tight_layout()
plt.show()
