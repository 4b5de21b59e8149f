"""Data, exact moments and the plain assembly that the study of the closest mixture uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Blob", "ExactMixture", "data_sets", "exact_mixtures", "plain_program"]


@dataclass(frozen=True)
class Blob:
    """Points in the plane with true labels."""

    name: str
    points: np.ndarray
    labels: np.ndarray
    n_classes: int


@dataclass(frozen=True)
class ExactMixture:
    """A mixture that is given by its moments."""

    name: str
    family: str
    options: dict[str, Any]
    params: np.ndarray
    weights: np.ndarray
    moments: list[float]


def data_sets(names: tuple[str, ...]) -> list[Blob]:
    """Blobs of scikit-learn's generator, wine (standardised) and iris, the last two reduced to the plane."""
    from sklearn.datasets import load_iris, load_wine, make_blobs
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    def blobs() -> tuple[np.ndarray, np.ndarray]:
        return make_blobs(600, centers=[[-3, -3], [3, -2], [0, 3], [4, 4]], cluster_std=0.9, random_state=0)

    def wine() -> tuple[np.ndarray, np.ndarray]:
        X, y = load_wine(return_X_y=True)
        return PCA(2).fit_transform(StandardScaler().fit_transform(X)), y

    def iris() -> tuple[np.ndarray, np.ndarray]:
        X, y = load_iris(return_X_y=True)
        return PCA(2).fit_transform(X), y

    makers: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {"blobs": blobs, "wine": wine, "iris": iris}
    sets = []
    for name in names:
        points, labels = makers[name]()
        sets.append(Blob(name, points, labels, len(np.unique(labels))))
    return sets


def exact_mixtures() -> list[ExactMixture]:
    """Three components of each shipped family, by their moments up to degree 8."""
    from assay.transport import ExponentialFamily, GaussianFamily, PoissonFamily

    cases = [
        ("gaussian", GaussianFamily(0.02), {"params": {"variance": 0.02}}, (-0.6, 0.1, 0.7), (0.5, 0.3, 0.2)),
        ("exponential", ExponentialFamily(), {"bounds": [0, 1]}, (0.2, 0.5, 0.9), (0.3, 0.5, 0.2)),
        ("poisson", PoissonFamily(), {"bounds": [0, 1]}, (0.2, 0.5, 0.9), (0.3, 0.5, 0.2)),
    ]
    mixtures = []
    for name, family, options, params, weights in cases:
        moments = [
            sum(
                w * sum(c * theta ** e[0] for e, c in family.moment_polynomial((k,)).items())
                for theta, w in zip(params, weights, strict=True)
            )
            for k in range(9)
        ]
        mixtures.append(ExactMixture(f"three {name}", name, options, np.array(params), np.array(weights), moments))
    return mixtures


def plain_program(problem: Any, order: int) -> Any:
    """The relaxation written entry by entry, as one writes it in a modelling language at first."""
    import cvxpy as cp

    from assay.transport.moment_matrices import MonomialBasis

    joint = MonomialBasis(2 * problem.dim, 2 * order)
    mixing = MonomialBasis(problem.n_params, 2 * order)
    moments, phi = cp.Variable(len(joint)), cp.Variable(len(mixing))
    constraints = [phi[0] == 1]

    def entry(basis: Any, variable: Any, exponent: Any) -> Any:
        return variable[int(basis.positions(np.array([exponent]))[0])]

    def block(basis: Any, variable: Any, size: int, polynomial: Any) -> None:
        matrix = cp.Variable((size, size), PSD=True)
        for i in range(size):
            for j in range(i, size):
                total = basis.exponents[i] + basis.exponents[j]
                terms = [c * entry(basis, variable, total + np.array(e)) for e, c in polynomial.items() if c]
                constraints.append(matrix[i, j] == sum(terms))

    block(joint, moments, joint.count(order), {(0,) * (2 * problem.dim): 1.0})
    block(mixing, phi, mixing.count(order), {(0,) * problem.n_params: 1.0})
    for g in problem.inequalities:
        block(mixing, phi, mixing.count(order - 1), g)
    family_map = problem.family_map(order).toarray()
    nothing = (0,) * problem.dim
    target = problem.moments(order)
    for k, alpha in enumerate(MonomialBasis(problem.dim, 2 * order).exponents.tolist()):
        constraints.append(entry(joint, moments, (*alpha, *nothing)) == target[k])
        row = [family_map[k, b] * phi[b] for b in np.flatnonzero(family_map[k]).tolist()]
        constraints.append(entry(joint, moments, (*nothing, *alpha)) == sum(row))
    cost = 0
    for i in range(problem.dim):
        x, y = np.zeros(2 * problem.dim, dtype=int), np.zeros(2 * problem.dim, dtype=int)
        x[i], y[problem.dim + i] = 1, 1
        cost += entry(joint, moments, 2 * x) - 2 * entry(joint, moments, x + y) + entry(joint, moments, 2 * y)
    return cp.Problem(cp.Minimize(cost), constraints)
