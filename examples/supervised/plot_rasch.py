"""
Difficulties and abilities from right and wrong answers
=======================================================

A Rasch model places users and items on one scale: the farther an ability is above a difficulty, the likelier is a right
answer. This example calibrates a classical test, compares the result with what psychometricians use, looks at items
that do not measure what the others do, and at what happens with few users and with missing answers.
"""

# %%
# A classical test
# ----------------
# Section 6 of the Law School Admission Test: 1000 people, 5 items. The fit carries its promises with it: how far it is
# from the best answer at most, that no iteration made it worse, and how fast it converged.
import matplotlib.pyplot as plt
import numpy as np

from assay.data import load_lsat6
from assay.supervised import (
    RaschPGEM,
    fit_rasch,
    rasch_cml,
    rasch_fit_statistics,
    rasch_jml,
    rasch_mml,
    spectral_rasch,
)

answers = load_lsat6()
fit = fit_rasch(answers)
print(fit.items().round(3))
for certificate in fit.certificates:
    print(certificate)

# %%
# The bound on the distance to the maximum needs the gradient and the prior variances only. It is above the true
# distance all the way, and falls at the same rate.
distance = fit.log_posterior - fit.history["log_posterior"]
figure, axes = plt.subplots(figsize=(5.5, 3.5))
axes.semilogy(fit.history["iteration"], fit.history["gap_bound"], label="certified bound")
axes.semilogy(fit.history["iteration"][distance > 1e-11], distance[distance > 1e-11], label="distance to the maximum")
axes.set(xlabel="iteration", ylabel="log-posterior")
axes.legend()
figure.tight_layout()

# %%
# Other estimators
# ----------------
# Conditional likelihood is the yardstick for difficulties, and has no abilities. Joint likelihood stretches the
# scale of a short test: without priors it is off by a factor of about 5/4 here.
estimates = {
    "conditional": rasch_cml(answers).difficulties,
    "marginal": rasch_mml(answers).difficulties,
    "joint, no priors": rasch_jml(answers).difficulties,
    "spectral": spectral_rasch(answers).difficulties,
    "PG-EM": fit.difficulties,
}
for name, difficulties in estimates.items():
    print(f"{name:18}", (difficulties - difficulties.mean()).round(3))

# %%
# Items that do not fit
# ---------------------
# Infit and outfit compare the size of residuals with what the model says. One item of this test is answered at random,
# and one is solved by those whom the others find weak.
rng = np.random.default_rng(0)
ability, difficulty = rng.normal(size=400), np.sort(rng.normal(size=20))
table = (rng.random((400, 20)) < 1 / (1 + np.exp(difficulty - ability[:, None]))).astype(float)
table[:, 5] = rng.integers(0, 2, 400)
table[:, 12] = rng.random(400) < 1 / (1 + np.exp(ability))
table[rng.random(table.shape) < 0.2] = np.nan  # and a fifth of the answers is missing

fit = fit_rasch(table)
statistics = rasch_fit_statistics(table, fit.abilities, fit.difficulties)
figure, axes = plt.subplots(figsize=(6, 3.5))
axes.errorbar(fit.difficulties, statistics.item_infit, xerr=fit.se_difficulties, fmt="o")
for item in (5, 12):
    axes.annotate(f"item {item}", (fit.difficulties[item], statistics.item_infit[item]), xytext=(6, 4),
                  textcoords="offset points")  # fmt: skip
axes.axhspan(0.7, 1.3, color="gray", alpha=0.2)
axes.set(xlabel="difficulty", ylabel="infit")
figure.tight_layout()

# %%
# Few users
# ---------
# With 30 users the priors matter. The errors are those of 20 simulated tests of 10 items each.
found = {"PG-EM": [], "marginal": [], "joint, no priors": []}
for _ in range(20):
    ability, difficulty = rng.normal(size=30), rng.normal(size=10)
    small = (rng.random((30, 10)) < 1 / (1 + np.exp(difficulty - ability[:, None]))).astype(float)
    try:
        fits = {"PG-EM": fit_rasch(small), "marginal": rasch_mml(small), "joint, no priors": rasch_jml(small)}
    except ValueError:  # an item that all or none solved has no finite estimate without a prior
        continue
    if not np.isfinite(fits["joint, no priors"].difficulties).all():
        continue
    for name, one in fits.items():
        off = one.difficulties - one.difficulties.mean() - (difficulty - difficulty.mean())
        found[name].append(np.sqrt(np.mean(off**2)))
for name, errors in found.items():
    print(f"{name:18} error of difficulties {np.mean(errors):.3f}")

# %%
# As an estimator
# ---------------
# ``RaschPGEM`` is a scikit-learn transformer: abilities are its features. Here it sees digits as a test of 64 pixels,
# each of which an image "solves" or not, a tenth of them hidden, and predicts the hidden ones.
from sklearn.datasets import load_digits

images = load_digits().data[:500]
pixels = (images > images.mean(axis=0)).astype(float)
hidden = rng.random(pixels.shape) < 0.1
model = RaschPGEM(accelerate=True).fit(np.where(hidden, np.nan, pixels))
rows, columns = np.nonzero(hidden)
chance = model.predict_proba(rows, columns)
print(f"hidden pixels guessed: {np.mean((chance > 0.5) == pixels[hidden]):.3f}")
print(f"log-likelihood per hidden pixel: {model.score_cells(np.where(hidden, pixels, np.nan)):.3f}")
plt.show()
