"""
A small tree in place of a random forest
========================================

A forest of fifty trees cannot be read. A single tree can, if it is small enough; but the usual trees are grown on
labels, and here there is more: the forest can be asked anything. This example asks it all over the cube of bits, grows
a tree by influence, and looks at what both the forest and the tree do on real patients. It ends with a function that
shows what is different about influence.
"""

# %%
# The forest
# ----------
# Eight features of breast cancer, each compared with its median, so that a patient is eight bits.
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

from assay.supervised import InfluenceTreeClassifier, build_topdown_tree, distill, influences

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
columns = [name for name in X.columns if name.startswith("worst")][:8]
X = (X[columns] > X[columns].median()).astype(int)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
forest = RandomForestClassifier(50, max_depth=6, random_state=0).fit(X_train, y_train)

# %%
# The tree
# --------
# ``distill`` needs no labels. It warns that these features are correlated: its promise is about independent bits with
# the same means, so that it also says how often tree and forest agree on the patients.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)
    tree = distill(forest, X_train, eps=0.05)
print(tree.export_text(max_depth=3))
print(f"{tree.n_leaves_} leaves, agree with the forest on {tree.fidelity_:.1%} of the training patients")
print(f"accuracy on new patients: forest {forest.score(X_test, y_test):.3f}, tree {tree.score(X_test, y_test):.3f}")
for certificate in tree.certificates_:
    print(certificate)

# %%
# The string for Graphviz is there too: ``graphviz.Source(tree.export_graphviz())`` draws it.
print("\n".join(tree.export_graphviz().splitlines()[:5]))

# %%
# The run
# -------
# The cost, the sum of all influences in all leaves, is an upper bound of the error at every step.
leaves, error, cost = tree.trace_.T
figure, axes = plt.subplots(figsize=(5.5, 3.5))
axes.semilogy(leaves, cost, label="cost")
axes.semilogy(leaves, error, label="error")
axes.axhline(tree.eps, color="gray", linestyle=":", label="eps")
axes.set(xlabel="leaves", ylabel="under the product distribution")
axes.legend()
figure.tight_layout()

# %%
# Without a model to ask, the labels alone have to do; the estimator then is a classifier like any other.
for eps in (0.12, 0.1, 0.08):
    model = InfluenceTreeClassifier(eps).fit(X_train, y_train)
    print(f"eps {eps}: {model.n_leaves_} leaves, accuracy {model.score(X_test, y_test):.3f}")

# %%
# A parity
# --------
# The parity of three of twelve bits is the tree of 8 leaves that asks for these three. No single bit is correlated
# with it, so that CART guesses; every one of the three has the largest influence there is.


def parity(x):
    return x[:, 3] ^ x[:, 7] ^ x[:, 10]


print("influences:", influences(parity, 12))
exact = build_topdown_tree(parity, 12, eps=0.0)
print(f"by influence: {exact.n_leaves} leaves, error {exact.error}")

points = ((np.arange(1 << 12)[:, None] >> np.arange(12)) & 1).astype(np.uint8)
sizes, errors = 2 ** np.arange(1, 11), []
for size in sizes:
    cart = DecisionTreeClassifier(max_leaf_nodes=size, random_state=0).fit(points, parity(points))
    errors.append(1 - cart.score(points, parity(points)))
figure, axes = plt.subplots(figsize=(5.5, 3.5))
axes.semilogx(sizes, errors, label="CART")
axes.semilogx(exact.trace[:, 0], exact.trace[:, 1], label="by influence")
axes.set(xlabel="leaves", ylabel="error")
axes.legend()
figure.tight_layout()
plt.show()
