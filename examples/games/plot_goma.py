"""
A saddle point with one call per step
=====================================

Two players, one minimizing and one maximizing: the gradient field turns around the solution, and plain descent spirals
away from it. This example compares anchored optimistic steps with what is used instead, looks at the certificate that
the run carries, at noise, at a problem where an anchor is the wrong choice, and at the same steps in torch.
"""

# %%
# A bilinear game
# ---------------
# ``min_x max_y x' A y`` with singular values from 0.01 to 1, so that some directions turn a hundred times slower than
# others. All methods may call the operator 4000 times.
import matplotlib.pyplot as plt
import numpy as np
import torch

from assay.games.goma import StochasticSpec, goma
from assay.games.goma_optimizer import GOMA
from assay.games.saddle_peers import anchored_extragradient_operator, extragradient_operator, optimistic_operator

rng = np.random.default_rng(0)
left, right = (np.linalg.qr(rng.normal(size=(50, 50)))[0] for _ in range(2))
payoff = left * np.linspace(0.01, 1, 50) @ right.T


def field(z):
    x, y = z[:50], z[50:]
    return np.concatenate([payoff @ y, -payoff.T @ x])


start, zero = rng.normal(size=100), np.zeros(100)
result = goma(field, start, L=1.0, n_iter=3999, check_every=5, z_star=zero)
print(result)

runs = {
    "GOMA": result,
    "extragradient": extragradient_operator(field, start, L=1.0, n_iter=2000, check_every=5),
    "optimistic": optimistic_operator(field, start, L=1.0, n_iter=4000, check_every=5),
    "anchored extragradient": anchored_extragradient_operator(field, start, L=1.0, n_iter=2000, check_every=5),
}
figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
for name, run in runs.items():
    axes.loglog(run.history["calls"][1:], run.history["residual_sq"][1:], label=f"{name}, exponent {run.slope:.2f}")
k = result.history["iteration"][1:]
axes.loglog(k, result.bound * (k[-1] + 1.0) ** 2 / (k + 1.0) ** 2, "k--", linewidth=1, label="bound of GOMA")
axes.set(xlabel="calls of the operator", ylabel="squared norm of the operator")
axes.legend()

# %%
# The certificates
# ----------------
# The bound needs the Lipschitz constant and the distance to a solution. The potential needs no solution at all: it is
# computed from the iterates, and that it never grows is what the bound follows from.
for certificate in result.certificates:
    print(certificate)
figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
potential = result.history["potential"]
axes.semilogx(result.history["iteration"] + 1, potential, drawstyle="steps-post")
axes.set(xlabel="iteration + 1", ylabel="potential")

# %%
# Noise that grows with the operator
# ----------------------------------
# Here the second moment of an estimate is 0.25 + 4 times the squared operator. The paper's schedule works for any
# number of steps, the other one is for a number that is known.
noise = StochasticSpec(sigma=0.5, kappa=4.0)
for schedule in ("paper", "horizon"):
    noisy = goma(
        field, start, L=1.0, n_iter=4000, noise=noise, schedule=schedule, z_star=zero, rng=0, check_every=4000
    )  # fmt: skip
    print(f"{schedule:8} squared norm {noisy.residual_sq:.3f}, bound on its mean {noisy.bound:.1f}")

# %%
# Where an anchor is wrong
# ------------------------
# With singular values that are all alike extragradient converges linearly, and the anchor is in the way. Restarts help.
turns = left @ right.T


def well_conditioned(z):
    return np.concatenate([turns @ z[50:], -turns.T @ z[:50]])


figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
for name, run in {
    "GOMA": goma(well_conditioned, start, L=1.0, n_iter=199),
    "GOMA, restarted every 9 steps": goma(well_conditioned, start, L=1.0, n_iter=199, restart_every=9),
    "extragradient": extragradient_operator(well_conditioned, start, L=1.0, n_iter=100),
}.items():
    axes.semilogy(run.history["calls"], run.history["residual_sq"], label=name)
axes.set(xlabel="calls of the operator", ylabel="squared norm of the operator")
axes.legend()

# %%
# The same in torch
# -----------------
# A regression against shifts of the targets that pay their squares. While training, the parameters hold the point where
# the next gradient is taken; ``eval_mode`` puts the iterate there. ``measure`` evaluates the gradient field at the
# iterate, for the certificates.
torch.manual_seed(0)  # for the weights of the model
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(200, 5, generator=generator, dtype=torch.float64)
targets = inputs.sum(dim=1) + torch.randn(200, generator=generator, dtype=torch.float64)
model = torch.nn.Linear(5, 1, dtype=torch.float64)
shift = torch.nn.Parameter(torch.zeros(200, dtype=torch.float64))


def objective():
    errors = model(inputs)[:, 0] - targets - shift
    return errors.square().mean() - 2 * shift.square().mean()


def closure():
    optimizer.zero_grad()
    loss = objective()
    loss.backward()
    return loss


optimizer = GOMA([{"params": model.parameters()}, {"params": [shift], "maximize": True}], lr=0.15)
for step in range(401):
    optimizer.step(closure)
    if step % 100 == 0:
        print(f"update {step:3}: squared norm of the gradients {optimizer.measure(closure):.2e}")
optimizer.eval_mode()
print(model.weight.detach().numpy().round(3))
for certificate in optimizer.certificates():
    print(certificate)
plt.show()
