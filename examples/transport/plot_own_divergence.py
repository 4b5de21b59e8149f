r"""
A divergence of your own
========================

A divergence is the largest value of ``E_P[a(g)] + E_Q[b(g)]`` over critics ``g``, with two concave functions ``a`` and
``b``. Whoever writes these down, with two derivatives, has an estimator with the same certificates as the built-in
ones. This example writes the Jensen-Shannon divergence, whose critic plays the original GAN game.
"""

import matplotlib.pyplot as plt
import numpy as np

from assay.transport import AlphaDivergence

# %%
# Two methods
# -----------
# The log-likelihood of a logistic classifier, moved up by ``log 2`` so that equal laws have the divergence 0. Each
# method returns value, slope and curvature. They are checked when they are given: concave, derivatives that are
# derivatives, and values and slopes that balance at ``g = 0``.


class JensenShannon:
    """Twice the Jensen-Shannon divergence: between 0 and 2 log 2."""

    def p_integrand(self, g):
        odds = np.exp(-np.abs(g))
        slope = np.where(g > 0, odds, 1.0) / (1.0 + odds)  # 1 / (1 + exp(g)), without overflow
        return np.log(2.0) - np.logaddexp(0.0, -g), slope, -slope * (1.0 - slope)

    def q_integrand(self, g):
        value, slope, curvature = self.p_integrand(-g)
        return value, -slope, curvature


# %%
# It saturates
# ------------
# Two normal laws that move apart. Kullback-Leibler divergences grow for ever, and the samples cannot follow. This one
# ends at ``2 log 2``, and the lower bound follows it all the way.

rng = np.random.default_rng(0)
shifts = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
values, bounds = [], []
for shift in shifts:
    P, Q = rng.normal(size=(3000, 1)), rng.normal(shift, 1.0, size=(3000, 1))
    estimator = AlphaDivergence(divergence=JensenShannon(), n_features=64, radius=10.0, random_state=0).fit(P, Q)
    assert all(certificate.holds for certificate in estimator.certificates_)
    values.append(estimator.value_)
    bounds.append(estimator.lower_bound_)

figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
axes.axhline(2 * np.log(2), color="black", linestyle=":", label="2 log 2")
axes.plot(shifts, values, "o-", color="#145DA8", label="estimate")
axes.plot(shifts, bounds, "_", color="#B8561C", markersize=12, label="lower bound, 95 %")
axes.set(xlabel="distance of the means", ylabel="divergence")
axes.legend()
plt.show()

# %%
# What is wrong is named
# ----------------------
# A sign error makes a convex function, which has no largest value.


class SignError(JensenShannon):
    def q_integrand(self, g):
        return tuple(-part for part in super().q_integrand(g))


try:
    AlphaDivergence(divergence=SignError()).fit(P, Q)
except ValueError as error:
    print(error)
