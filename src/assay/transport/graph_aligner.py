"""Which node of one graph is which node of another: Gromov-Wasserstein alignment as an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from assay.transport.gromov_wasserstein import lobcd_gw
from assay.transport.gw_problem import Relation
from assay.validation import ConvergenceWarning

__all__ = ["GraphAligner"]


class GraphAligner(BaseEstimator):
    """Align the nodes of two graphs by the Gromov-Wasserstein distance.

    Parameters
    ----------
    init : {"degree", "uniform", "best"}, sequence of these, or array_like, default=("degree", "uniform")
        Where to start, as in :func:`assay.transport.lobcd_gw`; of several starts the lowest end is kept. Use
        ``"best"`` for graphs in which all nodes have the same degree.
    solver : {"block", "full", "vertex"}, default="block"
        As in :func:`assay.transport.lobcd_gw`.
    normalize : bool, default=True
        Whether to divide edge weights by the square roots of the two degrees.
    finish : bool, default=True
        Whether to end with exact steps, which make the plan one-to-one in most cases.
    max_iter : int, default=500
        Mirror descent updates at most.
    tol : float, default=1e-7
        Relative change of the objective at which mirror descent ends.
    random_state : None, int or numpy.random.Generator, default=None
        For the random starts of ``init="best"``.

    Attributes
    ----------
    plan_ : array or tensor of shape (n, m)
        The coupling of the two sets of nodes.
    mapping_ : numpy.ndarray of shape (n,)
        Position, among the nodes of the second graph, of the partner of each node of the first.
    pairs_ : dict
        The same with the names of the nodes; positions for matrices.
    value_ : float
        The objective: zero exactly when the graphs are relabellings of each other.
    lower_bound_ : float
        No coupling has a smaller objective.
    certificates_ : tuple of Certificate
        Feasibility, the lower bound, stationarity and the work done, evaluated on this alignment.
    result_ : GWResult
        Everything that :func:`assay.transport.lobcd_gw` returned.

    References
    ----------
    J. Song, J. Huang, K. Cheng, B. Han, H. Ding. LoBCD-GW: A Fast and Data-Dependent Algorithm for Computing
    Gromov-Wasserstein Distance via Localized Block Coordinate Descent. ICML 2026.

    Examples
    --------
    >>> import networkx as nx
    >>> from assay.transport import GraphAligner
    >>> novel = nx.les_miserables_graph()
    >>> anonymous = nx.convert_node_labels_to_integers(novel, ordering="sorted")
    >>> aligner = GraphAligner().fit(novel, anonymous)
    >>> anonymous.degree[aligner.pairs_["Valjean"]] == novel.degree["Valjean"]
    True
    """

    def __init__(
        self,
        *,
        init: Any = ("degree", "uniform"),
        solver: str = "block",
        normalize: bool = True,
        finish: bool = True,
        max_iter: int = 500,
        tol: float = 1e-7,
        random_state: Any = None,
    ):
        self.init = init
        self.solver = solver
        self.normalize = normalize
        self.finish = finish
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(
        self, G1: Relation, G2: Relation, *, p: ArrayLike | None = None, q: ArrayLike | None = None
    ) -> GraphAligner:
        """Align two graphs.

        Parameters
        ----------
        G1, G2 : networkx.Graph, array_like, torch.Tensor or sparse matrix
            Undirected graphs, or their symmetric adjacency matrices, of n and m nodes.
        p, q : array_like of shapes (n,) and (m,), optional
            Weights of the nodes, of sum 1; uniform by default.

        Returns
        -------
        GraphAligner
            Itself.

        Raises
        ------
        TypeError, ValueError
            If a graph is directed, or a matrix is not square, symmetric, finite and (to be normalised) non-negative.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = lobcd_gw(
                G1,
                G2,
                p,
                q,
                init=self.init,
                solver=self.solver,
                normalize=self.normalize,
                finish=self.finish,
                max_iter=self.max_iter,
                tol=self.tol,
                rng=self.random_state,
            )
        for warning in caught:
            # Estimators speak of convergence in scikit-learn's words.
            ours = issubclass(warning.category, ConvergenceWarning)
            warnings.warn(str(warning.message), SklearnConvergenceWarning if ours else warning.category, stacklevel=2)
        self.result_ = result
        self.plan_ = result.plan
        self.mapping_ = result.mapping
        self.value_ = result.value
        self.lower_bound_ = result.lower_bound
        self.certificates_ = result.certificates
        self._names1, self._names2 = _names(G1, len(result.mapping)), _names(G2, int(result.plan.shape[1]))
        self.pairs_ = {self._names1[i]: self._names2[j] for i, j in enumerate(result.mapping.tolist()) if j >= 0}
        return self

    def score(self, true_mapping: Mapping[Any, Any] | ArrayLike) -> float:
        """Node correctness: the share of nodes whose partner is the true one.

        Parameters
        ----------
        true_mapping : mapping or array_like of int
            From names of nodes of the first graph to names of the second, for the nodes whose partner is known; or
            the position of the partner of every node, -1 where there is none.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If it has another length, or names a node that is not there.
        """
        check_is_fitted(self, "mapping_")
        if isinstance(true_mapping, Mapping):
            unknown = [a for a in true_mapping if a not in self.pairs_]
            if unknown:
                raise ValueError(f"true_mapping must map aligned nodes of the first graph, got {unknown[0]!r}")
            if not true_mapping:
                raise ValueError("true_mapping must not be empty")
            return float(np.mean([self.pairs_[a] == b for a, b in true_mapping.items()]))
        truth = np.asarray(true_mapping)
        if truth.shape != self.mapping_.shape or truth.dtype.kind not in "iu":
            raise ValueError(
                f"true_mapping must be a mapping or {len(self.mapping_)} integers, "
                f"got shape {truth.shape} and dtype {truth.dtype}"
            )
        known = truth >= 0
        if not known.any():
            raise ValueError("true_mapping must have at least one node with a partner")
        return float(np.mean(self.mapping_[known] == truth[known]))


def _names(relation: Relation, size: int) -> list:
    return list(relation.nodes) if isinstance(relation, nx.Graph) else list(range(size))
