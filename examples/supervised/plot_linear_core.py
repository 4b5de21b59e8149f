"""
Training on wrong labels with the linear-core loss
==================================================

Cross-entropy goes on pulling at an example for as long as its label is not certain, and a network that is pulled at
wrong labels for long enough learns them by heart. The linear-core loss pulls with constant force at what is wrong, like
a hinge, lets go of what is right, and is smooth. This example looks at the loss, at the promise that distinguishes it
from the logistic loss, and at what both do to a network for handwritten digits whose labels are partly wrong.
"""

# %%
# The loss
# --------
# Up to the margin ``tau`` it is a line of slope -1; from there a convex tail of width ``sigma`` takes it to zero. The
# slope, which is what a gradient step sees, has no jump, unlike that of the hinge.
import matplotlib.pyplot as plt
import numpy as np
import torch

from assay.supervised import LinearCoreClassifier, LinearCoreLoss, calibration_gap, consistency_certificate, linear_core


def hinge(margin):
    return np.maximum(1 - margin, 0)


def logistic(margin):
    return np.logaddexp(0, -margin) / np.log(2)


margins = np.linspace(-1.5, 2.5, 401)
losses = {"linear core": linear_core, "hinge": hinge, "logistic": logistic}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
for name, loss in losses.items():
    left.plot(margins, loss(margins), label=name)
    right.plot(margins, np.gradient(loss(margins), margins), label=name)
left.set(xlabel="margin", ylabel="loss")
right.set(xlabel="margin", ylabel="slope")
left.legend()
figure.tight_layout()

# %%
# The promise
# -----------
# When the two labels of an example are almost equally likely, a wrong prediction costs little in error, namely the
# difference ``theta`` of the two probabilities. What does it cost in the loss? With the linear core at least
# ``tau`` times as much. With the logistic loss that ratio vanishes: a tiny excess risk may hide many errors.
theta = np.geomspace(1e-3, 1, 60)
figure, axes = plt.subplots(figsize=(5.5, 3.5))
for name, loss in losses.items():
    axes.loglog(theta, calibration_gap(loss, theta) / theta, label=name)
axes.axhline(0.7, color="gray", linestyle=":", label="tau")
axes.set(xlabel="difference of the label probabilities", ylabel="least excess risk / excess error")
axes.legend()
figure.tight_layout()

# %%
# Digits with wrong labels
# ------------------------
# A third of the training labels is replaced by the label of the nearest image of another class, as a tired
# annotator would. The test labels are left as they are.
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors

images, digits = load_digits(return_X_y=True)
images = images / 16
train, test, y_train, y_test = train_test_split(images, digits, test_size=0.3, random_state=0)

rng = np.random.default_rng(0)
order = NearestNeighbors(n_neighbors=len(train)).fit(train).kneighbors(train, return_distance=False)
other = y_train[order] != y_train[:, None]
lookalike = y_train[order[np.arange(len(train)), other.argmax(axis=1)]]
noisy = np.where(rng.random(len(train)) < 1 / 3, lookalike, y_train)
print(f"{np.mean(noisy != y_train):.0%} of the training labels are wrong")

# %%
# ``LinearCoreLoss`` is called like ``CrossEntropyLoss``: one line of the training loop changes.


def train_network(criterion, epochs=40):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    X, y = torch.tensor(train, dtype=torch.float32), torch.tensor(noisy)
    X_test = torch.tensor(test, dtype=torch.float32)
    accuracies = []
    for _ in range(epochs):
        for batch in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            criterion(network(X[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            scores = network(X_test)
        accuracies.append((scores.argmax(1).numpy() == y_test).mean())
    return scores, accuracies


figure, axes = plt.subplots(figsize=(5.5, 3.5))
for name, criterion in {"CrossEntropyLoss": torch.nn.CrossEntropyLoss(), "LinearCoreLoss": LinearCoreLoss()}.items():
    scores, accuracies = train_network(criterion)
    axes.plot(np.arange(1, len(accuracies) + 1), accuracies, label=f"{name}: {accuracies[-1]:.3f}")
axes.set(xlabel="epoch", ylabel="accuracy on clean test labels")
axes.legend()
figure.tight_layout()

# %%
# The report checks the loss (that it is smooth and convex, and the constant of its promise) and the promise itself on
# the scores of the trained network: the errors above the unavoidable ones, against the excess risk.
report = consistency_certificate(LinearCoreLoss(), scores, y_test)
for certificate in report.certificates:
    print(certificate)

# %%
# A linear model
# --------------
# ``LinearCoreClassifier`` is a scikit-learn estimator. It stops when the duality gap says that the objective is within
# ``tol`` of its least value, and the gap stays with the fitted model.
from sklearn.datasets import load_breast_cancer

X, y = load_breast_cancer(return_X_y=True)
model = LinearCoreClassifier().fit(X, y)
print(f"accuracy {model.score(X, y):.3f} after {model.n_iter_} iterations")
for certificate in model.certificates_:
    print(certificate)

figure, axes = plt.subplots(figsize=(5.5, 3.5))
axes.semilogy(model.history_["evaluations"], model.history_["gap"] / model.history_["objective"])
axes.set(xlabel="evaluations of the gradient", ylabel="duality gap / objective")
figure.tight_layout()
plt.show()
