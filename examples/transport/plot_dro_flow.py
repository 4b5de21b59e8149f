"""
Training against the worst case near the data
=============================================

A model is robust to shifts of its features when it does well on the worst distribution near its data. That
distribution can be sampled from: particles start at the data and flow uphill in the loss, held back by the distance
they have come. This example looks at the particles, trains with them, writes a loss of its own, and asks whether the
worst case that a sampler delivers really is the worst case.
"""

# %%
# Particles of four flows
# -----------------------
# The loss below is not convex. From one data point, the Langevin flow (``wgf``) and the flow with births and deaths
# (``wfr``) spread over the worst-case law, the Stein flow (``svgd``) fills it evenly, and ascent without noise
# (``wrm``) ends in one point. A loss is any function of features and labels that returns one value per sample.
import matplotlib.pyplot as plt
import numpy as np
import torch

from assay.transport import DROTrainer, FlowSampler, RobustClassifier, certify_robustness, worst_case_value


def bumps(features, y):
    return torch.sin(2 * features[:, 0]) + 0.5 * torch.cos(3 * features[:, 1])


start = torch.tensor([[0.2, 0.3]], dtype=torch.float64)
tau, epsilon = 0.3, 0.1
side = torch.linspace(-1, 1.6, 100, dtype=torch.float64)
grid = torch.cartesian_prod(side, side)
log_density = (2 * tau * bumps(grid, None) - (grid - start).square().sum(1)) / epsilon
density = torch.exp(log_density - log_density.max()).reshape(100, 100).T

figure, panels = plt.subplots(1, 4, figsize=(12, 3.2), sharey=True)
for panel, flow in zip(panels, ("wgf", "wfr", "svgd", "wrm"), strict=True):
    generator = torch.Generator().manual_seed(0)
    sampler = FlowSampler(flow, tau=tau, epsilon=epsilon, particles=60, steps=60, generator=generator)
    worst = sampler.sample(bumps, start)
    panel.contour(side, side, density, levels=6, cmap="Greys")
    panel.scatter(*worst.points[0].T, s=400 * worst.weights[0].clamp_max(0.1), alpha=0.6)
    panel.plot(*start[0], "k+", markersize=12)
    panel.set(title=f"{flow}: loss {worst.mean_loss:.3f}", xlabel="first feature")
panels[0].set(ylabel="second feature")
figure.tight_layout()

# %%
# The dual value lies below the loss on the worst case, and above the mean loss under a Gaussian around the data. The
# loss at the data is not a bound.
answer = worst_case_value(bumps, start, tau=tau, epsilon=epsilon, generator=generator)
print(f"{answer.lower:.3f} <= {answer.value:.3f} <= {answer.upper:.3f}; at the data {answer.plain:.3f}")

# %%
# A training loop
# ---------------
# ``DROTrainer`` takes a model, a loss with ``reduction="none"``, any optimizer, and a sampler. Here no training point
# is in the first quadrant.
rng = np.random.default_rng(0)
points = rng.normal(size=(3000, 2))
radius = np.linalg.norm(points, axis=1) / np.sqrt(2)
points = points[(radius < 1 / 1.3) | (radius > 1.3)]
labels = torch.tensor((np.linalg.norm(points, axis=1) > np.sqrt(2)).astype(np.int64))
points = torch.tensor(points, dtype=torch.float32)
unseen = (points > 0).all(1)
x, y = points[~unseen][:500], labels[~unseen][:500]


def fit(flow):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ELU(), torch.nn.Linear(8, 2))
    sampler = FlowSampler(flow, tau=0.2, epsilon=0.05, steps=10, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trainer = DROTrainer(model, torch.nn.CrossEntropyLoss(reduction="none"), optimizer, sampler)
    return trainer.fit([(x[i::4], y[i::4]) for i in range(4)], epochs=20)


figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True)
plane = torch.cartesian_prod(torch.linspace(-3, 3, 120), torch.linspace(-3, 3, 120))
trainers = {"ordinary training": fit("erm"), "robust training": fit("wgf")}
for panel, (name, trainer) in zip(panels, trainers.items(), strict=True):
    with torch.no_grad():
        share = trainer.model(plane).softmax(1)[:, 1].reshape(120, 120).T
        accuracy = (trainer.model(points[unseen]).argmax(1) == labels[unseen]).double().mean()
    panel.contourf(np.linspace(-3, 3, 120), np.linspace(-3, 3, 120), share, levels=10, cmap="RdBu", alpha=0.6)
    panel.scatter(*x.T, c=y, s=6, cmap="RdBu", edgecolors="k", linewidths=0.2)
    panel.set(title=f"{name}: {accuracy:.2f} in the unseen quadrant")
figure.tight_layout()

# %%
# Was it the worst case?
# ----------------------
# The report compares the particles with draws that no flow made. With few steps they are still on their way; with more
# they have arrived, if the loss is smooth enough for its ``tau``.
trainer = trainers["robust training"]
for steps in (2, 100):
    sampler = FlowSampler("wgf", tau=0.05, epsilon=0.02, steps=steps, generator=torch.Generator().manual_seed(0))
    report = certify_robustness(
        trainer.model,
        trainer.loss,
        x[:10],
        y[:10],
        sampler,
        draws=1000,
        repeats=8,
        generator=torch.Generator().manual_seed(1),
    )
    print(f"{steps} steps: gap {report.sampler_gap:.2g}, tau L about {0.05 * report.smoothness:.2g}")
    print(report.certificates[1])

# %%
# For scikit-learn
# ----------------
# ``RobustClassifier`` is a linear softmax model or a network. A larger ``tau`` trades accuracy on clean data for
# accuracy on shifted data.
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

images, digits = load_digits(return_X_y=True)
train, test, y_train, y_test = train_test_split(images / 16, digits, train_size=400, test_size=400, random_state=0)
loss = torch.nn.CrossEntropyLoss(reduction="none")
strengths, curves = (0.0, 0.25, 0.5, 0.75), {}
for tau in (0.01, 0.5):
    model = RobustClassifier(tau=tau, steps=10, learning_rate=0.03, max_iter=8, random_state=0).fit(train, y_train)
    curves[tau] = []
    for strength in strengths:
        attack = FlowSampler("pgd", tau=1.0, epsilon=0.0, radius=max(strength, 1e-9), steps=15)
        moved = attack.sample(lambda a, b, model=model: loss(model.model_(a), b), test, y_test).points[:, 0]
        curves[tau].append(model.score(moved.numpy(), y_test))

figure, axes = plt.subplots(figsize=(5.5, 3.5))
for tau, accuracies in curves.items():
    axes.plot(strengths, accuracies, marker="o", label=f"tau = {tau:g}")
axes.set(xlabel="radius of the attack", ylabel="test accuracy")
axes.legend()
figure.tight_layout()
plt.show()
