r"""Decision trees grown by influence: small trees with a guarantee, for any function of independent bits.

The usual trees split on the variable that is most correlated with the label, and see nothing in a parity. This one
splits on the variable whose resampling is most likely to change the function. The sum of all influences over the
leaves, the cost, is never less than the error and falls by exactly the score with each split; if the function has a
tree of depth :math:`D` and average depth :math:`\Delta`, error :math:`\varepsilon` is reached with at most
:math:`\exp(\Delta D \log(e / \varepsilon))` leaves. None of these numbers needs to be known: the only parameter is the
error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import networkx as nx
import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy.typing import ArrayLike

from assay.result import Result
from assay.supervised.boolean_influence import (
    MAX_EXACT,
    BooleanOracle,
    as_probabilities,
    table_influences,
)
from assay.supervised.greedy_tree_certificate import exact_certificates, sampled_certificates
from assay.supervised.greedy_tree_export import tree_to_dot, tree_to_text
from assay.supervised.greedy_tree_growth import Growth, TableLeaves, grow, leaves_of
from assay.supervised.greedy_tree_sampling import grow_from_pairs, grow_from_samples
from assay.validation import ConvergenceWarning, as_float_array, as_generator, check_choice, check_integer, check_real

__all__ = ["GreedyTree", "build_topdown_tree", "tree_from_growth", "warn_of_early_end"]

_AUTO_EXACT = 16
_MODES = ("auto", "exact", "sampled", "pairs")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GreedyTree(Result):
    """A binary decision tree over bits, with what it promises.

    Nodes are numbered in the order in which they were made, so that the first ``2 k + 1`` nodes are the tree after
    ``k`` splits.

    Parameters
    ----------
    feature : numpy.ndarray of shape (n_nodes,)
        Variable that a node asks for, -1 at leaves.
    left, right : numpy.ndarray of shape (n_nodes,)
        Child for the bit 0 and for the bit 1, -1 at leaves.
    value : numpy.ndarray of shape (n_nodes,)
        Probability that the function is 1 in the node.
    label : numpy.ndarray of shape (n_nodes,)
        Majority label; 1 when both are equally likely.
    prob : numpy.ndarray of shape (n_nodes,)
        Probability of reaching the node.
    n_features : int
        Number of variables.
    eps : float
        Error that was asked for.
    mode : str
        Where scores came from: ``"exact"``, ``"sampled"``, ``"pairs"`` or ``"data"``.
    influence : {"product", "uniform"}
        Which distribution the influences were of.
    error : float
        Error under the product distribution: exact, or the upper confidence bound from fresh points; of data, the share
        of wrong rows.
    cost : float
        Sum over the leaves of reach probability times total influence: exact or estimated.
    min_average_depth : float
        No tree that computes the function has a smaller average depth; nan when it was not tabulated.
    queries : int
        Points at which the function was asked.
    status : {"reached", "budget", "stalled"}
        Whether the error was reached, the leaves ran out, or every score was 0 before.
    feature_names : tuple of str, optional
        Names of the variables.

    Attributes
    ----------
    n_leaves, max_depth : int
        Size of the tree.
    average_depth : float
        Expected depth of the leaf that is reached.
    trace : numpy.ndarray of shape (n_leaves, 3)
        Leaves, error and cost at every step.
    """

    feature: Int[np.ndarray, " n_nodes"]
    left: Int[np.ndarray, " n_nodes"]
    right: Int[np.ndarray, " n_nodes"]
    value: Float[np.ndarray, " n_nodes"]
    label: Int[np.ndarray, " n_nodes"]
    prob: Float[np.ndarray, " n_nodes"]
    n_features: int
    eps: float
    mode: str
    influence: str = "product"
    error: float
    cost: float
    min_average_depth: float
    queries: int
    status: str
    feature_names: tuple[str, ...] | None = None
    n_leaves: int = field(init=False)
    max_depth: int = field(init=False)
    average_depth: float = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        depth = np.zeros(len(self.feature), dtype=np.int64)
        for node in np.flatnonzero(self.feature >= 0):
            depth[self.left[node]] = depth[self.right[node]] = depth[node] + 1
        leaf = self.feature < 0
        object.__setattr__(self, "n_leaves", int(leaf.sum()))
        object.__setattr__(self, "max_depth", int(depth.max()))
        object.__setattr__(self, "average_depth", float(self.prob[leaf] @ depth[leaf]))

    @property
    def trace(self) -> Float[np.ndarray, "n_leaves 3"]:
        """Leaves, error and cost at every step."""
        return np.column_stack([self.history[name] for name in ("leaves", "error", "cost")]).astype(float)

    def apply(self, X: ArrayLike) -> Int[np.ndarray, " n_samples"]:
        """Leaf that each point reaches.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Bits.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
            Numbers of nodes.

        Raises
        ------
        ValueError, TypeError
            If it has other entries than 0 and 1, or another number of columns.
        """
        bits = as_float_array(X, "X", ndim=2, allow_empty=True)
        if bits.shape[1] != self.n_features:
            raise ValueError(f"X must have {self.n_features} columns, got {bits.shape[1]}")
        if not np.isin(bits, (0.0, 1.0)).all():
            raise ValueError(f"X must have entries 0 and 1, got {bits[~np.isin(bits, (0.0, 1.0))][0]:g}")
        return leaves_of(bits.astype(np.uint8), self.feature, self.left, self.right)

    def predict(self, X: ArrayLike) -> Int[np.ndarray, " n_samples"]:
        """Label of each point.

        Parameters
        ----------
        X : array_like of shape (n_samples, n_features)
            Bits.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
            0 or 1.
        """
        return self.label[self.apply(X)]

    def to_networkx(self) -> nx.DiGraph:
        """The tree as a directed graph from the root.

        Returns
        -------
        networkx.DiGraph
            Nodes have ``feature`` (-1 at leaves), ``value``, ``label`` and ``prob``, edges have ``bit``.
        """
        graph = nx.DiGraph()
        for node in range(len(self.feature)):
            graph.add_node(
                node,
                feature=int(self.feature[node]),
                value=float(self.value[node]),
                label=int(self.label[node]),
                prob=float(self.prob[node]),
            )
        for node in np.flatnonzero(self.feature >= 0).tolist():
            graph.add_edge(node, int(self.left[node]), bit=0)
            graph.add_edge(node, int(self.right[node]), bit=1)
        return graph

    def to_sklearn_like(self) -> dict[str, Any]:
        """The tree in the arrays of ``sklearn.tree``: what ``estimator.tree_`` has as attributes.

        Returns
        -------
        dict
            ``children_left``, ``children_right``, ``feature`` and ``threshold`` (-2 at leaves), ``value`` of shape
            (n_nodes, 1, 2), ``weighted_n_node_samples`` (the reach probabilities), ``node_count``, ``n_leaves``,
            ``max_depth`` and ``n_features``.
        """
        leaf = self.feature < 0
        return {
            "children_left": self.left.copy(),
            "children_right": self.right.copy(),
            "feature": np.where(leaf, -2, self.feature),
            "threshold": np.where(leaf, -2.0, 0.5),
            "value": np.column_stack([1.0 - self.value, self.value])[:, None, :],
            "weighted_n_node_samples": self.prob.copy(),
            "node_count": len(self.feature),
            "n_leaves": self.n_leaves,
            "max_depth": self.max_depth,
            "n_features": self.n_features,
        }

    def export_text(self, class_names: Sequence[str] = ("0", "1"), max_depth: int = 100) -> str:
        """The tree as indented text.

        Parameters
        ----------
        class_names : sequence of str, default=("0", "1")
            Names of the labels.
        max_depth : int, default=100
            Deeper subtrees are cut.

        Returns
        -------
        str
        """
        return tree_to_text(self, self._questions(), class_names, max_depth)

    def export_graphviz(self, class_names: Sequence[str] = ("0", "1")) -> str:
        """The tree as a graph in the language of Graphviz.

        Parameters
        ----------
        class_names : sequence of str, default=("0", "1")
            Names of the labels.

        Returns
        -------
        str
        """
        return tree_to_dot(self, self._questions(), class_names)

    def _questions(self) -> list[tuple[str, str]]:
        names = self.feature_names or tuple(f"x{i}" for i in range(self.n_features))
        return [(f"{name} = 0", f"{name} = 1") for name in names]


def build_topdown_tree(
    f: Callable | ArrayLike,
    n: int,
    p: float | ArrayLike = 0.5,
    eps: float = 0.05,
    *,
    mode: str = "auto",
    delta: float = 0.05,
    max_leaves: int = 100_000,
    rng: int | np.random.Generator | None = None,
    feature_names: Sequence[str] | None = None,
    reference: tuple[float, float] | GreedyTree | None = None,
    influence: str = "product",
) -> GreedyTree:
    r"""Grow a decision tree for a Boolean function of independent bits, by influence.

    Starting from one leaf, the leaf with the largest score,
    :math:`\Pr[\text{leaf}] \max_i \mathrm{Inf}_i(f_\text{leaf})`, is split on its most influential variable, until the
    majority labels of the leaves have an error of at most ``eps``.

    Parameters
    ----------
    f : callable or array_like of shape (2**n,)
        Maps a ``uint8`` array of shape (B, n) to B values 0 or 1 (the same ones whenever it is asked), or the table of
        all values: bit ``i`` of the index is ``x_i``.
    n : int
        Number of variables.
    p : float or array_like of shape (n,), default=0.5
        Probability that a bit is 1, strictly between 0 and 1.
    eps : float, default=0.05
        Error to reach, in [0, 1); positive when sampling.
    mode : {"auto", "exact", "sampled", "pairs"}, default="auto"
        ``"exact"`` tabulates the function (n up to 20). ``"sampled"`` draws points inside each leaf and needs a number
        of queries that is linear in n. ``"pairs"`` draws resampled pairs from the whole cube at every step, as the
        analysis of the paper does, and needs far more queries. ``"auto"`` is exact for a table and for functions of up
        to 16 variables.
    delta : float, default=0.05
        When sampling, the chance that a split variable has less than a quarter of the largest score, or that the error
        bound is wrong.
    max_leaves : int, default=100000
        Most leaves.
    rng : int, numpy.random.Generator or None, default=None
        Source of points.
    feature_names : sequence of str, optional
        Names of the variables, for the exports.
    reference : GreedyTree or tuple of float, optional
        A tree that computes the function, or its depth and average depth: certifies the bound of the size.
    influence : {"product", "uniform"}, default="product"
        Whether influences are those of ``p``, or those of fair coins as in earlier theory (for comparison; exact mode).

    Returns
    -------
    GreedyTree
        With certificates for its error, and for the lemmas of the analysis at every step.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of its range, or the function returns other shapes or values, or other ones when it is
        asked again.

    Notes
    -----
    Exact: O(n 2^n) operations per level of the tree, about ``4 * 2**n`` bytes. Sampled: ``400 (n + 1)`` queries per
    leaf, more for leaves whose largest influence is small.

    When the average depth is that of the reference, :math:`\Delta`, and D its depth, the tree has at most
    :math:`\max\{(e \Delta / (\varepsilon D))^{\Delta D}, e^{\Delta D}\}` leaves; sampled, the exponent is four times
    that.

    References
    ----------
    A. Soltani Moakhar, F. Ghahremani, K. Banihashem, M. Hajiaghayi. Decision Tree Learning on Product Spaces.
    ICML 2026. arXiv:2605.12983.

    Examples
    --------
    >>> from assay.supervised import build_topdown_tree
    >>> tree = build_topdown_tree(lambda x: x[:, 0] & x[:, 1], 2, eps=0.0)
    >>> tree.trace.tolist()
    [[1.0, 0.25, 0.5], [2.0, 0.25, 0.25], [3.0, 0.0, 0.0]]
    >>> print(tree.export_text())
    |--- x0 = 0
    |   |--- class: 0 (reach 0.5)
    |--- x0 = 1
    |   |--- x1 = 0
    |   |   |--- class: 0 (reach 0.25)
    |   |--- x1 = 1
    |   |   |--- class: 1 (reach 0.25)
    """
    oracle = BooleanOracle(f, n)
    probabilities = as_probabilities(p, oracle.n)
    eps = check_real(eps, "eps", minimum=0, below=1)
    delta = check_real(delta, "delta", above=0, below=1)
    max_leaves = check_integer(max_leaves, "max_leaves", minimum=1)
    generator = as_generator(rng)
    names = _as_names(feature_names, oracle.n)
    depths = _as_depths(reference)
    check_choice(influence, "influence", ("product", "uniform"))
    if check_choice(mode, "mode", _MODES) == "auto":
        mode = "exact" if oracle.n <= (MAX_EXACT if oracle.is_table else _AUTO_EXACT) else "sampled"
    if mode == "exact" and oracle.n > MAX_EXACT:
        raise ValueError(f"n must be at most {MAX_EXACT} for mode='exact', got {oracle.n}; use mode='sampled'")
    if mode != "exact" and eps == 0.0:
        raise ValueError(f"eps must be greater than 0 for mode={mode!r}, got 0")
    if mode != "exact" and influence == "uniform":
        raise ValueError(f"influence must be 'product' for mode={mode!r}, got 'uniform'")
    oracle.check_repeatable(probabilities, generator)

    if mode == "exact":
        table = oracle.table()
        assumed = np.full(oracle.n, 0.5) if influence == "uniform" else None
        growth = grow(TableLeaves(table, probabilities, assumed), eps, max_leaves)
        ones, largest = _root_facts(table, probabilities)
        tree = tree_from_growth(
            growth,
            oracle.n,
            eps,
            mode,
            oracle.queries,
            feature_names=names,
            influence=influence,
            min_average_depth=2.0 * ones * (1.0 - ones) / largest if largest > 0.0 else 0.0,
        )
        tree = replace(tree, certificates=exact_certificates(table, probabilities, tree, depths))
        warn_of_early_end(tree)
        return tree
    grow_randomly = grow_from_samples if mode == "sampled" else grow_from_pairs
    growth = grow_randomly(oracle, probabilities, eps, delta, max_leaves, generator)
    tree = tree_from_growth(growth, oracle.n, eps, mode, oracle.queries, feature_names=names)
    certificates = sampled_certificates(oracle, probabilities, tree, delta, generator, depths)
    tree = replace(tree, certificates=certificates, error=certificates[0].value, queries=oracle.queries)
    warn_of_early_end(tree)
    return tree


def warn_of_early_end(tree: GreedyTree) -> None:
    """Warn when a tree has a larger error than was asked for.

    Parameters
    ----------
    tree : GreedyTree
        The tree.

    Examples
    --------
    >>> from assay.supervised import build_topdown_tree
    >>> from assay.supervised.greedy_tree import warn_of_early_end
    >>> warn_of_early_end(build_topdown_tree([0, 1], 1))
    """
    reasons = {"budget": "max_leaves was reached", "stalled": "no variable has any influence that can be seen"}
    if tree.status in reasons:
        warnings.warn(
            f"the tree with {tree.n_leaves} leaves has an error of {tree.error:.3g}, not eps={tree.eps:g}: "
            f"{reasons[tree.status]}",
            ConvergenceWarning,
            stacklevel=3,
        )


def tree_from_growth(growth: Growth, n_features: int, eps: float, mode: str, queries: int, **facts: Any) -> GreedyTree:
    """Freeze a tree that has been grown.

    Parameters
    ----------
    growth : Growth
        Nodes and trace.
    n_features : int
        Number of variables.
    eps : float
        Error that was asked for.
    mode : str
        Where scores came from.
    queries : int
        Points at which the function was asked.
    **facts
        Other fields of :class:`GreedyTree`.

    Returns
    -------
    GreedyTree
        Without certificates.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.greedy_tree import tree_from_growth
    >>> from assay.supervised.greedy_tree_growth import TableLeaves, grow
    >>> growth = grow(TableLeaves(np.array([0, 1], dtype=np.uint8), np.array([0.5])), 0.0, 10)
    >>> tree_from_growth(growth, 1, 0.0, "exact", 0).n_leaves
    2
    """
    value = np.array(growth.value, dtype=float)
    steps = np.array(growth.trace, dtype=float).reshape(-1, 6).T
    names = ("leaves", "error", "cost", "node", "feature", "score")
    history = {
        name: column.astype(np.int64) if name in ("leaves", "node", "feature") else column
        for name, column in zip(names, steps, strict=True)
    }
    return GreedyTree(
        feature=np.array(growth.feature, dtype=np.int64),
        left=np.array(growth.left, dtype=np.int64),
        right=np.array(growth.right, dtype=np.int64),
        value=value,
        label=(value >= 0.5 - 1e-12).astype(np.int64),
        prob=np.array(growth.prob, dtype=float),
        n_features=n_features,
        eps=eps,
        mode=mode,
        error=float(history["error"][-1]),
        cost=float(history["cost"][-1]),
        queries=queries,
        status=growth.status,
        history=history,
        **{"min_average_depth": float("nan"), **facts},
    )


def _root_facts(table: UInt8[np.ndarray, " size"], p: Float[np.ndarray, " n"]) -> tuple[float, float]:
    ones, influences = table_influences(table, p)
    return ones, float(influences.max())


def _as_names(names: Sequence[str] | None, n: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    texts = tuple(str(name) for name in names)
    if len(texts) != n:
        raise ValueError(f"feature_names must have length n = {n}, got {len(texts)}")
    return texts


def _as_depths(reference: tuple[float, float] | GreedyTree | None) -> tuple[float, float] | None:
    if reference is None:
        return None
    if isinstance(reference, GreedyTree):
        return float(reference.max_depth), reference.average_depth
    if not isinstance(reference, tuple | list) or len(reference) != 2:
        raise TypeError(f"reference must be a GreedyTree or a pair (depth, average depth), got {reference!r}")
    depth = check_real(reference[0], "reference depth", minimum=0)
    return depth, check_real(reference[1], "reference average depth", minimum=0, maximum=depth * (1.0 + 1e-9))
