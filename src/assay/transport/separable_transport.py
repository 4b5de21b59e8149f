r"""Transport coordinate by coordinate, as a scikit-learn estimator.

For a cost that is a sum over coordinates, :math:`c(x, y) = \sum_d c_d(x_d, y_d)`, potentials that are sums as well,
:math:`u(x) = \sum_d u_d(x_d)` with

.. math:: u_d(x) = \min_j \; c_d(x, y_{dj}) - b_{dj},

need one number per coordinate and grid point, and not one per point of the product of the grids. Their conjugates are
minima over a grid, and the dual falls apart into one problem per coordinate, small enough to be solved exactly. What
such potentials can represent is limited: the map treats each coordinate by itself, so that it reaches the marginal
distributions of the target, and the whole distribution only if the coordinates of source and target depend on each
other in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from scipy.sparse.csgraph import dijkstra
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.certificate import Assumption, Certificate
from assay.transport.exact_transport import largest_feasible_potential, network_simplex
from assay.transport.generalized_convex import GCFLayer
from assay.transport.transport_kernels import check_kernel, kernel_scores
from assay.validation import as_float_array, check_integer, check_real

__all__ = ["SeparableTransport"]

# Sources are grouped into this many times as many bins as there are points of the grid.
_BINS_PER_POINT = 4

# Relative to the largest cost, the gap that rounding leaves.
_ROUNDING = 1e-9


class SeparableTransport(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    r"""Transport map that acts on each coordinate alone, of least cost among those for a separable cost.

    Fit it with a sample of sources and one of targets; ``transform`` sends points to where the sources go. **It can
    only represent maps that act coordinate by coordinate.** That is the optimal map when the coordinates of the source,
    and those of the target, are independent (or, more generally, depend on each other in the same way). Otherwise the
    image has the right marginals and not the right joint distribution, and ``dual_`` is a lower bound on the cost of
    transport that is not attained.

    Parameters
    ----------
    cost : str, callable, object or sequence of these, default="sqeuclidean"
        Cost in one coordinate: ``"sqeuclidean"``, ``"power"`` (1.5), a function, or an object with the method
        ``evaluate`` (see :mod:`assay.transport.transport_kernels`), which gets points of length 1. A sequence has one
        for each coordinate.
    n_grid : int, default=256
        Points of the grid of targets, per coordinate. A coordinate of the targets with fewer different values has these
        as its grid.
    radius : float, optional
        The grid is even on ``[-radius, radius]``, by default on the range of the targets.

    Attributes
    ----------
    grids_ : list of numpy.ndarray of shapes (J_d,)
        Points of the grids that have mass.
    intercepts_ : list of numpy.ndarray of shapes (J_d,)
        The ``b_dj``.
    dual_ : float
        Sum over the coordinates of the least cost of transport between the marginals (in bins and on the grid): up to
        the width of these, no coupling costs less.
    certificates_ : tuple of Certificate
        The potentials are optimal in every coordinate, which a plan proves.
    n_features_in_ : int
        Number of coordinates.
    feature_names_in_ : numpy.ndarray of shape (n_features,)
        Names of the coordinates, when the sources have names.

    Notes
    -----
    Fitting takes the network simplex on ``4 n_grid`` bins of sources and ``n_grid`` targets for each coordinate;
    transforming takes ``O(n d n_grid)``. Images lie on the grid.

    References
    ----------
    M. Nehzati. Universal Representation of Generalized Convex Functions and their Gradients. ICML 2026.
    arXiv:2509.04477.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import SeparableTransport
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.normal(size=(2000, 2)), rng.normal(size=(2000, 2)) * [2.0, 0.5]
    >>> transport = SeparableTransport().fit(X, Y)
    >>> bool(abs(transport.transform([[1.0, 1.0]]) - [2.0, 0.5]).max() < 0.2)
    True
    >>> all(promise.holds for promise in transport.certificates_)
    True
    """

    def __init__(self, *, cost: Any = "sqeuclidean", n_grid: Any = 256, radius: Any = None):
        self.cost = cost
        self.n_grid = n_grid
        self.radius = radius

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any) -> SeparableTransport:
        """Find the potentials.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Sample of the sources.
        y : array_like of shape (m, d) or (m,)
            Sample of the targets. A vector is the target of every coordinate.

        Returns
        -------
        SeparableTransport
            Itself.

        Raises
        ------
        TypeError, ValueError
            If a sample is empty or not finite, they differ in their number of coordinates, ``radius`` does not cover
            the targets, or there is not one cost, or one for each coordinate.
        """
        if y is None:
            raise ValueError(
                "SeparableTransport requires y to be passed, but the target y is None: it is the sample to transport to"
            )
        sources = validate_data(self, X, dtype=np.float64)
        targets = self._as_targets(y, sources.shape[1])
        n_grid = check_integer(self.n_grid, "n_grid", minimum=1)
        costs = self._costs(sources.shape[1])
        self.grids_, self.intercepts_ = [], []
        dual, gap, violation, largest = 0.0, 0.0, 0.0, 0.0
        for d, kernel in enumerate(costs):
            x, p = _in_bins(sources[:, d], _BINS_PER_POINT * n_grid)
            grid, q = self._on_grid(targets[:, d], n_grid)
            cost = _cost_matrix(kernel, x, grid)
            rows, columns, mass, _, psi = network_simplex(cost, p, q)
            plan = sp.csr_array((mass, (rows, columns)), shape=cost.shape)
            psi = _centred(cost, plan, psi)
            self.grids_.append(grid)
            self.intercepts_.append(psi - q @ psi)
            with torch.no_grad():
                potential = self._layer(d)(torch.tensor(x[:, None])).numpy()
            value = float(p @ potential + q @ self.intercepts_[d])
            dual, gap = dual + value, gap + float(plan.multiply(cost).sum()) - value
            errors = np.abs(plan.sum(axis=1) - p).max(), np.abs(plan.sum(axis=0) - q).max()
            violation, largest = max(violation, *map(float, errors)), max(largest, float(np.abs(cost).max()))
        self.dual_ = dual
        alike = Assumption("the coordinates of source and target depend on each other in the same way", None)
        bound = _ROUNDING * max(largest, 1e-300) * len(costs)
        self.certificates_ = (
            Certificate(
                "gap: cost of the plans less dual of the potentials, in bins", gap, bound, assumptions=(alike,)
            ),
            Certificate("weak duality: cost of the plans less dual of the potentials", gap, -bound, ">="),
            Certificate("largest error of a marginal of the plans", violation, 1e-12),
        )
        return self

    def transform(self, X: Any) -> Float[np.ndarray, "n d"]:
        """Where points go.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Points.

        Returns
        -------
        numpy.ndarray of shape (n, d)
            Each entry is a point of the grid of its coordinate.
        """
        check_is_fitted(self)
        points = torch.tensor(validate_data(self, X, dtype=np.float64, reset=False))
        with torch.no_grad():
            images = [self._layer(d).choose(points[:, d : d + 1])[0] for d in range(points.shape[1])]
        return torch.cat(images, 1).numpy()

    def potential(self, X: Any) -> Float[np.ndarray, " n"]:
        """Values of the potential at points.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Points.

        Returns
        -------
        numpy.ndarray of shape (n,)
        """
        check_is_fitted(self)
        points = torch.tensor(validate_data(self, X, dtype=np.float64, reset=False))
        with torch.no_grad():
            return sum(self._layer(d)(points[:, d : d + 1]) for d in range(points.shape[1])).numpy()

    def score(self, X: Any, y: Any) -> float:
        """Dual value of the potential on other samples, at most their cost of transport; the higher the better.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Sources.
        y : array_like of shape (m, d) or (m,)
            Targets.

        Returns
        -------
        float

        Notes
        -----
        ``O(n m d)``, in chunks.
        """
        value = float(self.potential(X).mean())
        points = torch.tensor(validate_data(self, X, dtype=np.float64, reset=False))
        targets = torch.tensor(self._as_targets(y, points.shape[1]))
        with torch.no_grad():
            for d in range(points.shape[1]):
                part = slice(d, d + 1)
                value += float(self._layer(d).conjugate(targets[:, part], points[:, part]).mean())
        return value

    def _layer(self, d: int) -> GCFLayer:
        """The potential of one coordinate."""
        return GCFLayer(
            self._costs(self.n_features_in_)[d],
            torch.tensor(self.grids_[d][:, None]),
            mode="concave",
            intercept=torch.tensor(self.intercepts_[d]),
        )

    def _costs(self, n_features: int) -> list[Any]:
        if isinstance(self.cost, Sequence) and not isinstance(self.cost, str):
            if len(self.cost) != n_features:
                raise ValueError(f"cost must be one cost or {n_features} of them, got {len(self.cost)}")
            return [check_kernel(kernel, "cost") for kernel in self.cost]
        return [check_kernel(self.cost, "cost")] * n_features

    @staticmethod
    def _as_targets(y: Any, n_features: int) -> Float[np.ndarray, "m d"]:
        targets = as_float_array(getattr(y, "to_numpy", lambda: y)(), "y", ndim=(1, 2))
        if targets.ndim == 1:
            return np.broadcast_to(targets[:, None], (len(targets), n_features))
        if targets.shape[1] != n_features:
            raise ValueError(f"y must have {n_features} columns, as X has, or be a vector, got shape {targets.shape}")
        return targets

    def _on_grid(
        self, targets: Float[np.ndarray, " m"], n_grid: int
    ) -> tuple[Float[np.ndarray, " J"], Float[np.ndarray, " J"]]:
        """Points of the grid that are nearest to some target, and the share of the targets that each is nearest to."""
        low, high = float(targets.min()), float(targets.max())
        if self.radius is not None:
            radius = check_real(self.radius, "radius", above=0)
            if max(-low, high) > radius:
                raise ValueError(f"radius must cover the targets, which reach {max(-low, high):g}, got {radius:g}")
            low, high = -radius, radius
        values, counts = np.unique(targets, return_counts=True)
        if len(values) <= n_grid and self.radius is None:
            return values, counts / counts.sum()
        step = (high - low) / max(1, n_grid - 1)
        nearest = np.clip(np.rint((values - low) / step), 0, n_grid - 1).astype(np.int64)
        grid = np.linspace(low, high, n_grid) if n_grid > 1 else np.array([0.5 * (low + high)])
        mass = np.bincount(nearest, weights=counts, minlength=n_grid)
        return grid[mass > 0], mass[mass > 0] / mass.sum()


def _in_bins(x: Float[np.ndarray, " n"], n_bins: int) -> tuple[Float[np.ndarray, " bins"], Float[np.ndarray, " bins"]]:
    """The different values and their shares or, if they are too many, means of equally many neighbours."""
    values, counts = np.unique(x, return_counts=True)
    if len(values) <= n_bins:
        return values, counts / len(x)
    groups = np.array_split(np.sort(x), n_bins)
    return np.array([group.mean() for group in groups]), np.array([len(group) for group in groups]) / len(x)


def _cost_matrix(
    kernel: Any, x: Float[np.ndarray, " rows"], y: Float[np.ndarray, " columns"]
) -> Float[np.ndarray, "rows columns"]:
    with torch.no_grad():
        cost = kernel_scores(kernel, torch.tensor(x[:, None]), torch.tensor(y[:, None])).numpy()
    if not np.isfinite(cost).all():
        raise ValueError("cost must be finite between all points, got nan or infinities")
    return np.ascontiguousarray(cost)


def _centred(
    cost: Float[np.ndarray, "rows columns"], plan: sp.csr_array, psi: Float[np.ndarray, " columns"]
) -> Float[np.ndarray, " columns"]:
    """Optimal potentials in the middle between two extreme ones.

    The simplex ends at a vertex, where every source is indifferent between two targets. The potentials that prove a
    plan optimal differ by numbers ``t`` with ``t_j <= t_i + (reduced cost of ij)``, and ``t_i = t_j`` where the plan
    has mass: distances in a graph from a node, or to it with the sign turned around.
    """
    n, m = cost.shape
    phi = largest_feasible_potential(cost, psi)
    reduced = np.maximum(cost - phi[:, None] - psi, 0.0)
    used = plan.tocoo()
    # Entries that are stored are edges, those of length zero included.
    tails = np.concatenate([np.repeat(np.arange(n), m), n + used.col])
    heads = np.concatenate([np.tile(n + np.arange(m), n), used.row])
    lengths = np.concatenate([reduced.ravel(), np.zeros(used.nnz)])
    graph = sp.csr_array((lengths, (tails, heads)), shape=(n + m, n + m))
    middle = n + m // 2
    away, back = (dijkstra(g, indices=middle)[n:] for g in (graph, graph.T.tocsr()))
    return psi + 0.5 * (away - back)
