"""
Optimizing a distribution that has to stay in a set
===================================================

A mixture of three materials is to be 70 % of the first and 20 % of the second on average, and as varied as possible
otherwise. What is sought is a *law* on the simplex of mixtures. Mirror Langevin particles find it without ever leaving
the simplex; particles that are projected onto it pile up on its edges. The example then writes a set of its own, and
looks at the rate at which a law is approached.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from assay.transport import Polytope, Simplex, mirror_flow_1d, mirror_langevin, projected_langevin

# %%
# A law on the simplex
# --------------------
# The functional is the squared distance of the mean from the target, plus the entropy times a temperature. The method
# asks for the gradient of the first variation at the particles. With the first variation itself, it also certifies
# that the particles have arrived.

target = np.array([0.7, 0.2, 0.1])


def pull(x):
    return np.tile(2 * (x.mean(axis=0) - target), (len(x), 1))


def first_variation(points, x):
    return 2 * points @ (x.mean(axis=0) - target)


settings = {"domain": Simplex(3), "temperature": 0.05, "rng": 0, "first_variation": first_variation}
mirror = mirror_langevin(pull, 600, lr=0.2, n_steps=300, **settings)
projected = projected_langevin(pull, 600, lr=0.01, n_steps=1500, **settings)
for name, run in (("mirror", mirror), ("projected", projected)):
    print(name, run.mean.round(3), f"{np.mean(run.particles.min(axis=1) <= 1e-3):.1%} at the boundary")
    for promise in run.certificates:
        print("   ", promise)

# %%
# In the plane of the simplex the difference is plain to see.

corners = np.array([[0, 0], [1, 0], [0.5, 0.75**0.5]])
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for axis, (name, run) in zip(axes, (("mirror", mirror), ("projected", projected)), strict=True):
    axis.plot(*corners[[0, 1, 2, 0]].T, color="black", linewidth=0.8)
    axis.scatter(*(run.particles @ corners).T, s=5, color="#145DA8" if name == "mirror" else "#B8561C")
    axis.set(title=f"{name} particles", aspect="equal", xticks=[], yticks=[])
plt.show()

# %%
# Any polytope
# ------------
# A law in a pentagon, drawn to a corner. ``Polytope`` takes the inequalities as they are.

angles = 2 * np.pi * np.arange(5) / 5
pentagon = Polytope(np.column_stack([np.cos(angles), np.sin(angles)]), np.ones(5))
run = mirror_langevin(
    lambda x: np.tile([-0.2, 0.0], (len(x), 1)), 400, domain=pentagon, temperature=0.1, lr=0.1, n_steps=150, rng=0
)
print(f"all particles at least {run.inside:.1e} inside")

# %%
# A set of your own
# -----------------
# Four methods on tensors make a set: the gradient of a barrier, its inverse, noise with the covariance of its Hessian,
# and how far inside a particle is. Here it is a half-line; a method that is missing is reported by name.


class HalfLine:
    def mirror(self, x):
        return x - 1 / x  # of the barrier x^2 / 2 - log x

    def inverse(self, y):
        return 0.5 * (y + torch.sqrt(y**2 + 4))

    def noise(self, x, xi):
        return xi * torch.sqrt(1 + x**-2)

    def slack(self, x):
        return x[:, 0]


waiting = mirror_langevin(
    lambda x: np.ones_like(x), np.ones((2000, 1)), domain=HalfLine(), temperature=1.0, lr=0.02, n_steps=400, rng=0
)
print(f"an exponential law: mean {waiting.mean[0]:.2f}, standard deviation {waiting.particles.std():.2f}")

try:
    mirror_langevin(lambda x: x, np.ones((5, 1)), domain=object(), temperature=1.0)
except TypeError as error:
    print(error)

# %%
# How fast, and down to what
# --------------------------
# On an interval the law of infinitely many particles can be computed. Its objective falls linearly (in the logarithm),
# at least at the rate that the spectral gap at the fixed point gives. Particles follow it until they reach the floor
# of their number.


def start(n, rng):
    return np.clip(rng.normal(0.3, 0.08, (n, 1)), 0.02, 0.98)


flow = mirror_flow_1d(
    lambda x, mass: (mass @ x - 0.8) * x,
    200,
    lambda x: np.exp(-0.5 * ((x - 0.3) / 0.08) ** 2),
    temperature=0.05,
    n_steps=1200,
    functional=lambda x, mass: 0.5 * (mass @ x - 0.8) ** 2,
)
print(flow.certificates[-1])

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
left.semilogy(flow.time, flow.excess, color="#145DA8", label="flow")
left.semilogy(
    flow.time, flow.excess[480] * np.exp(-2 * 0.05 * flow.gap * (flow.time - 120)), ":", color="black", label="gap"
)
left.set(xlabel="time", ylabel="objective above its minimum")
left.legend()
limit = flow.stationary @ flow.centers / 200
for n, colour in ((30, "#B8561C"), (300, "#118A5E"), (3000, "#145DA8")):
    run = mirror_langevin(
        lambda x: np.full_like(x, x.mean() - 0.8),
        start(n, np.random.default_rng(n)),
        domain="box",
        temperature=0.05,
        lr=0.2,
        n_steps=500,
        rng=n,
    )
    right.semilogy(run.history["time"], (run.history["mean"][:, 0] - limit) ** 2, color=colour, label=f"N = {n}")
right.set(xlabel="time", ylabel="squared error of the mean", ylim=(1e-9, None))
right.legend()
plt.show()
