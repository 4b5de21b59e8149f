"""
A convex problem inside a network
=================================

A layer that solves an optimization problem passes gradients through its solution. This example differentiates a
projection, looks at how the error depends on the size of the perturbation, trains a model of returns for the
portfolios that are chosen with it, and descends on a function with kinks.
"""

# %%
# A projection
# ------------
# The layer takes a parametrized problem of cvxpy. The certificate says whether the gradient can be relied on.
import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from assay.bilevel import FFOLayer, FFOQPLayer, certificate, goldstein_descent

x, radius, y = cp.Parameter(3), cp.Parameter(nonneg=True), cp.Variable(3)
problem = cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [cp.norm(y) <= radius])
layer = FFOLayer(problem, parameters=[x, radius], variables=[y])

point = torch.tensor([1.5, -0.7, 0.4], dtype=torch.float64, requires_grad=True)
size = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
upstream = torch.tensor([0.3, 1.0, -0.5], dtype=torch.float64)
(projection,) = layer(point, size)
(projection @ upstream).backward()
print("by the point:", point.grad.numpy().round(5), " by the radius:", round(float(size.grad), 5))
for promise in certificate(layer, check_gradient=True).certificates:
    print(promise)

# %%
# The size of the perturbation
# ----------------------------
# The backward pass solves once more, with the upstream gradient times ``delta = 1 / alpha`` in the objective. The error
# is of first order in delta, of second order with central differences. Differences are taken without cancellation, so
# that ``delta`` may be as small as one likes; where it is too large for a curved constraint the layer makes it smaller.
stretch = np.array([1.0, 2.0, 0.5])
stretched = cp.Problem(cp.Minimize(cp.sum_squares(cp.multiply(stretch, y) - x)), [cp.norm(y) <= radius])


def by_radius(**options):
    """Derivative by the radius."""
    (projection,) = FFOLayer(stretched, [x, radius], [y], **options)(2 * point, size)
    return float(torch.autograd.grad(projection @ upstream, size)[0])


exact = by_radius(alpha=1e9)
deltas = np.geomspace(1e-3, 0.1, 9)
figure, axes = plt.subplots(figsize=(5.5, 3.5))
for difference in ("forward", "central"):
    errors = [abs(by_radius(alpha=1 / delta, difference=difference) - exact) for delta in deltas]
    axes.loglog(deltas, errors, "o-", label=difference)
axes.set(xlabel="delta", ylabel="error of the gradient by the radius")
axes.legend()
figure.tight_layout()

# %%
# Learning to decide
# ------------------
# Returns of eight assets depend on five signals. A linear model is fitted in two ways: to the returns, and to what is
# earned with the portfolio that is chosen by its forecast. The model is too simple, so that the two differ.
generator = torch.Generator().manual_seed(0)
signals = torch.randn(300, 5, generator=generator, dtype=torch.float64)
weights = torch.randn(5, 8, generator=generator, dtype=torch.float64)
returns = (signals @ weights - 2).clamp(min=0) - 0.3 * signals[:, :1].square()

eye, zeros = torch.eye(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
box = torch.cat([-eye, eye]), torch.cat([zeros, zeros + 0.45])
whole = torch.ones(1, 8, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
choose = FFOQPLayer()


def earned(forecast, truth):
    """Mean return, less a penalty for concentration."""
    chosen = choose(0.5 * eye, -forecast, *box, *whole)
    return ((chosen * truth).sum(1) - 0.25 * chosen.square().sum(1)).mean()


curves = {}
for name in ("least squares", "decisions"):
    model = torch.nn.Linear(5, 8, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    curve = []
    for _ in range(20):
        optimizer.zero_grad()
        forecast = model(signals[:32])
        gain = earned(forecast, returns[:32])
        loss = (forecast - returns[:32]).square().mean() if name == "least squares" else -gain
        loss.backward()
        optimizer.step()
        curve.append(float(gain.detach()))
    curves[name] = curve
    with torch.no_grad():
        new = float(earned(model(signals[250:]), returns[250:]))
    print(f"{name:14} earns {curve[-1]:.3f} in training and {new:.3f} on new signals")
figure, axes = plt.subplots(figsize=(5.5, 3.5))
for name, curve in curves.items():
    axes.plot(curve, label=name)
axes.set(xlabel="step", ylabel="earned, training")
axes.legend()
figure.tight_layout()

# %%
# A function with kinks
# ---------------------
# The distance of a projected point to a target is neither smooth nor convex in what the point depends on. The descent
# ends where a mean of gradients within a radius of 0.5 is small, and certifies it.
rng = np.random.default_rng(0)
matrix, target = torch.from_numpy(rng.normal(size=(20, 5))), torch.from_numpy(rng.normal(size=20))
eye = torch.eye(20, dtype=torch.float64)
bounds = torch.cat([eye, -eye]), torch.ones(40, dtype=torch.float64)


def value(z):
    """Half the squared distance, and a small ridge."""
    return 0.5 * (choose(eye, -matrix @ z, *bounds) - target).square().sum() + 0.01 * z.square().sum()


def hypergradient(z):
    """Its gradient, through the projection."""
    z = torch.tensor(z, requires_grad=True)
    return torch.autograd.grad(value(z), z)[0].numpy()


start = 2 * np.ones(5)
with torch.no_grad():
    gap = float(value(torch.from_numpy(start)))
result = goldstein_descent(hypergradient, start, delta=0.5, eps=2.0, lipschitz=13.6, f_gap=gap, rng=0)
print(result)
for promise in result.certificates:
    print(promise)
plt.show()
