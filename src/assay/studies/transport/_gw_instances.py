"""Instances for alignment: graphs and their noisy relabelled copies, point clouds, and two views of labelled data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["AlignmentCase", "TransferCase", "alignment_cases", "transfer_cases"]


@dataclass(frozen=True, eq=False)
class AlignmentCase:
    """Two spaces with a known correspondence.

    Parameters
    ----------
    name : str
        Case in tables.
    first, second : scipy.sparse.csr_array or numpy.ndarray of shape (n, n)
        Adjacency (sparse) or distances (dense).
    truth : numpy.ndarray of shape (n,)
        Which point of the second each point of the first is.
    noise_free : bool
        Whether the second is an exact relabelling of the first.
    samples : pair of numpy.ndarray, optional
        Coordinates of the points, for methods that need them.
    """

    name: str
    first: Any
    second: Any
    truth: np.ndarray
    noise_free: bool = False
    samples: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.truth)

    @cached_property
    def weights(self) -> np.ndarray:
        """Uniform weights."""
        return np.full(self.size, 1.0 / self.size)

    @cached_property
    def checked(self) -> Any:
        """The problem as every contender gets it: normalised if it is a graph."""
        from assay.transport.gw_problem import prepare_problem

        return prepare_problem(self.first, self.second)

    @cached_property
    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """The two matrices, for libraries that take dense ones."""
        matrices = self.checked.C1, self.checked.C2
        first, second = (matrix if isinstance(matrix, np.ndarray) else matrix.toarray() for matrix in matrices)
        return first, second

    def degree_start(self) -> np.ndarray:
        """The plan that pairs points of similar degree, which both sides may start from."""
        from assay.transport.gw_start import degree_plan

        return degree_plan(self.checked)

    def value(self, plan: np.ndarray) -> float:
        """Objective of a plan, divided by what it would be without any agreement."""
        from assay.transport.gw_bounds import gw_value

        return max(gw_value(self.checked.C1, self.checked.C2, plan, normalize=False), 0.0) / self.checked.scale

    def gap(self, plan: np.ndarray) -> float:
        """Frank-Wolfe gap of a plan, proved by dual potentials, on the same scale."""
        from assay.transport.gw_bounds import frank_wolfe_gap

        return frank_wolfe_gap(self.checked.C1, self.checked.C2, plan, normalize=False) / self.checked.scale

    def violation(self, plan: np.ndarray) -> float:
        """By how much the plan misses its marginals."""
        from assay.transport.gw_bounds import coupling_violation

        return coupling_violation(plan, self.weights, self.weights)

    def correctness(self, plan: np.ndarray) -> float:
        """Share of points whose largest entry is at the true partner."""
        return float(np.mean(plan.argmax(axis=1) == self.truth))


@dataclass(frozen=True, eq=False)
class TransferCase:
    """Two views of the same labelled objects; the views share no coordinates.

    Parameters
    ----------
    case : AlignmentCase
        The alignment between the views.
    views : pair of numpy.ndarray
        Coordinates in each view.
    labels : numpy.ndarray of shape (n,)
        Classes, in the order of the first view.
    """

    case: AlignmentCase
    views: tuple[np.ndarray, np.ndarray]
    labels: np.ndarray

    def accuracy(self, plan: np.ndarray) -> float:
        """Accuracy of five nearest neighbours on points carried over by the plan, mean of both directions."""
        from sklearn.neighbors import KNeighborsClassifier

        second_labels = np.empty_like(self.labels)
        second_labels[self.case.truth] = self.labels
        n = self.case.size
        scores = []
        for carried, target, known, wanted in (
            (n * plan @ self.views[1], self.views[1], second_labels, self.labels),
            (n * plan.T @ self.views[0], self.views[0], self.labels, second_labels),
        ):
            scores.append(KNeighborsClassifier(5).fit(target, known).score(carried, wanted))
        return float(np.mean(scores))


def noisy_copy(name: str, graph: Any, noise: float, rng: np.random.Generator) -> AlignmentCase:
    """Relabel a graph at random and add edges at random places."""
    import networkx as nx
    import scipy.sparse as sp

    first = nx.to_scipy_sparse_array(graph, weight=None, dtype=float, format="csr")
    n = first.shape[0]
    order = rng.permutation(n)
    second = sp.csr_array(first[order][:, order])
    edges = set(zip(*second.nonzero(), strict=True))
    wanted = len(edges) + 2 * round(noise * graph.number_of_edges())
    while len(edges) < wanted:
        i, j = rng.integers(n, size=2)
        if i != j:
            edges |= {(i, j), (j, i)}
    rows, columns = np.array(sorted(edges)).T
    second = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n, n))
    return AlignmentCase(name, first, second, np.argsort(order), noise_free=noise == 0.0)


def alignment_cases(graphs: list[tuple[str, int, float]], cloud: int, rng: np.random.Generator) -> list[AlignmentCase]:
    """Make the noisy copies of ``(family, n, noise)``, and a point cloud of the given size.

    ``family`` is ``ba`` (scale-free), ``gp`` (communities), ``ws`` (small world), ``karate`` or ``miserables``.
    """
    import networkx as nx

    makers = {
        "ba": lambda n: nx.barabasi_albert_graph(n, 4, seed=1),
        "gp": lambda n: nx.gaussian_random_partition_graph(n, 50, 5, 0.25, 0.02, seed=1),
        "ws": lambda n: nx.watts_strogatz_graph(n, 8, 0.3, seed=1),
        "karate": lambda n: nx.karate_club_graph(),
        "miserables": lambda n: nx.les_miserables_graph(),
    }
    made: dict[tuple[str, int], Any] = {}
    cases = []
    for family, n, noise in graphs:
        if (family, n) not in made:
            made[family, n] = makers[family](n)
        graph = made[family, n]
        name = f"{family} n={graph.number_of_nodes()} noise {noise:g}"
        cases.append(noisy_copy(name, graph, noise, rng))
    points = rng.normal(size=(cloud, 3))
    order = rng.permutation(cloud)
    moved = points[order] + 0.05 * rng.normal(size=(cloud, 3))
    cases.append(
        AlignmentCase(
            f"cloud n={cloud}", distances(points), distances(moved), np.argsort(order), samples=(points, moved)
        )
    )
    return cases


def transfer_cases(n_digits: int, rng: np.random.Generator) -> list[TransferCase]:
    """Digits at two resolutions and wine in two halves of its features, the second view in random order."""
    from sklearn.datasets import load_digits, load_wine
    from sklearn.neighbors import kneighbors_graph
    from sklearn.preprocessing import StandardScaler

    digits = load_digits()
    images = digits.images[:n_digits]
    pixels = images.reshape(n_digits, -1)
    blocks = images.reshape(n_digits, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(n_digits, -1)
    wine = load_wine()
    features = StandardScaler().fit_transform(wine.data)
    cases = []
    for name, first, second, labels, graph in (
        ("digits distances", pixels, blocks, digits.target[:n_digits], False),
        ("wine distances", features[:, :6], features[:, 6:], wine.target, False),
        ("wine 15-NN graph", features[:, :6], features[:, 6:], wine.target, True),
    ):
        order = rng.permutation(len(labels))
        views = first, second[order]
        if graph:
            neighbours = [kneighbors_graph(view, 15) for view in views]
            relations = [(matrix + matrix.T > 0).astype(float).tocsr() for matrix in neighbours]
        else:
            relations = [distances(view) for view in views]
        case = AlignmentCase(name, *relations, np.argsort(order), samples=views)
        cases.append(TransferCase(case, views, labels))
    return cases


def distances(points: np.ndarray) -> np.ndarray:
    """Euclidean distances between the rows."""
    from scipy.spatial.distance import cdist

    return cdist(points, points)
