"""Clusters without their number: the closest Gaussian mixture by moments, as a scikit-learn estimator.

Moments up to order six of two-dimensional data are 28 numbers, however many points there are. From them alone one
semidefinite program per variance says how many components the closest mixture has and where they are; no restarts, no
number of clusters to try. The mixture assigns labels itself, or is where expectation maximisation or k-means starts.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.transport.closest_mixture import DEFAULT_ORDER, MixtureResult, answer_of_levels, check_memory, checked_solver
from assay.transport.mixture_families import GaussianFamily
from assay.transport.mixture_level import Level, solve_level, tighten_bound
from assay.transport.mixture_problem import MixtureProblem, prepare_mixture_problem
from assay.transport.moment_relaxation import level_size
from assay.validation import as_float_array, as_generator, check_choice, check_integer, check_real

__all__ = ["MomentMixtureClustering"]

# Data fill this share of [-1, 1]: variances of the grid are in these units.
_MARGIN = 1.2

# Weight of the variance against the value when a variance is chosen.
_WIDTH_PENALTY = 1e-3

# Directions with less than this share of the largest standard deviation are rounding.
_FLAT_DIRECTION = 1e-10


def _has_posterior(estimator: MomentMixtureClustering) -> bool:
    if estimator.refine == "kmeans":
        raise AttributeError("predict_proba is not available with refine='kmeans'")
    return True


class MomentMixtureClustering(ClusterMixin, BaseEstimator):
    r"""Cluster by the closest mixture of isotropic Gaussians of one common variance, found from moments.

    Parameters
    ----------
    n_components : int or None, default=2
        Dimension to which data with more features are reduced by principal components, at most 3. None leaves them as
        they are.
    order : int, optional
        Order of the relaxation; by default 4, 3, 2 in one, two, three dimensions, less when there are fewer samples
        than monomials. Order n can tell apart about as many components as there are monomials of degree n - 1.
    s_grid : sequence of float, default=(0.02, 0.04, 0.06)
        Variances to try, in units in which the reduced data, centred, lie in ``[-1, 1]`` and fill 5/6 of it. Of those
        with a flat solution, the one with the smallest ``value + 0.001 * s`` is kept.
    refine : {"em", "kmeans"} or None, default=None
        Whether :class:`sklearn.mixture.GaussianMixture` or :class:`sklearn.cluster.KMeans` starts from the mixture and
        gives the labels.
    rank_tol : float, default=0.01
        Eigenvalues up to this share of the largest one count as zero: smaller ones are noise of the sample.
    trace_weight : float, default=1e-6
        Weight of the tie-break.
    solver : str, default="CLARABEL"
        A conic solver of cvxpy.
    memory_limit : float, optional
        As in :func:`~assay.transport.closest_mixture`.
    random_state : None, int or numpy.random.Generator, default=0
        For the covariances from which expectation maximisation starts.

    Attributes
    ----------
    n_clusters_ : int
        Number of components that some sample belongs to; others are dropped.
    labels_ : numpy.ndarray of shape (n_samples,)
        Cluster of each sample.
    means_ : numpy.ndarray of shape (n_clusters, n_features)
        Means of the components in the space of the data.
    weights_ : numpy.ndarray of shape (n_clusters,)
        Weights of the components.
    variance_ : float
        Their common variance, in squared units of the data.
    value_, lower_bound_ : float
        Squared Wasserstein distance by the relaxation, and what it proves: no mixture of this variance is closer to the
        (reduced) data.
    ranks_ : tuple of int
        Ranks of the moment matrices of the mixing measure.
    order_ : int
        Order that was used.
    converged_ : bool
        Whether some variance had a flat solution. If none had there is one cluster, and a warning.
    sweep_ : dict of str to numpy.ndarray
        For each variance of the grid: ``s``, ``variance`` (squared units of the data), ``value``, ``flat``,
        ``n_clusters``, ``largest_block`` (rows of the largest semidefinite matrix), ``seconds``.
    certificates_ : tuple of Certificate
        As those of :class:`~assay.transport.MixtureResult`.
    result_ : MixtureResult
        The mixture in the reduced space; without the semidefinite program, so that the estimator can be pickled.
    mixture_ : sklearn.mixture.GaussianMixture or sklearn.cluster.KMeans
        What was refined, in the reduced space; its ``n_iter_`` counts the iterations. Only with ``refine``.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : numpy.ndarray of shape (n_features,)
        Names of the features, when ``X`` had them.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If no variance had a flat solution.

    Notes
    -----
    After one pass over the data the time does not depend on the number of samples: below a second per variance in two
    dimensions at order 3. Scale the features as for any method that sees distances.

    References
    ----------
    S. Durasinovic, J.-B. Lasserre, V. Magron. Mixtures Closest to a Given Measure: A Semidefinite Programming
    Approach. ICML 2026. arXiv:2509.22879.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import MomentMixtureClustering
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(centre, 0.5, size=100) for centre in (-4.0, 0.0, 5.0)])[:, None]
    >>> model = MomentMixtureClustering(s_grid=[0.02]).fit(X)
    >>> model.n_clusters_, np.bincount(model.labels_).tolist()
    (3, [100, 100, 100])
    """

    def __init__(
        self,
        *,
        n_components=2,
        order=None,
        s_grid=(0.02, 0.04, 0.06),
        refine=None,
        rank_tol=0.01,
        trace_weight=1e-6,
        solver="CLARABEL",
        memory_limit=None,
        random_state=0,
    ):
        self.n_components = n_components
        self.order = order
        self.s_grid = s_grid
        self.refine = refine
        self.rank_tol = rank_tol
        self.trace_weight = trace_weight
        self.solver = solver
        self.memory_limit = memory_limit
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> MomentMixtureClustering:
        """Find the clusters.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Data.
        y : object, optional
            Ignored.

        Returns
        -------
        MomentMixtureClustering
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            If a parameter is outside its range, the data are not finite, a column is constant, there are more than 3
            features without reduction, or too few samples.
        MemoryError
            If the semidefinite program would not fit into ``memory_limit``.
        """
        if self.refine is not None:
            check_choice(self.refine, "refine", ("em", "kmeans"))
        grid = as_float_array(self.s_grid, "s_grid", ndim=1)
        if grid.min() <= 0:
            raise ValueError(f"s_grid must be positive, got {grid.min():g}")
        rank_tol = check_real(self.rank_tol, "rank_tol", above=0, below=1)
        trace_weight = check_real(self.trace_weight, "trace_weight", minimum=0)
        solver = checked_solver(self.solver)
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        Z = self._reduce(X)
        dim = Z.shape[1]
        order = self._choose_order(len(Z), dim)
        size = level_size(dim, dim, [2] * dim, order, "W2")
        check_memory([order], [size], self.memory_limit)

        options = {"rank_tol": rank_tol, "trace_weight": trace_weight, "solver": solver, "bound": False}
        solved: list[tuple[float, MixtureProblem, Level | None]] = []
        for s in grid.tolist():
            problem = prepare_mixture_problem(None, Z, None, GaussianFamily(s, dim), None, None, (), 2 * order)
            try:
                solved.append((s, problem, solve_level(problem, order, size, **options)))
            except RuntimeError:
                solved.append((s, problem, None))
        usable = [one for one in solved if one[2] is not None]
        if not usable:
            raise RuntimeError(f"the relaxation of order {order} was not solved for any variance in s_grid")
        flat = [one for one in usable if one[2].atoms.flat]
        tight = [one for one in flat if not one[2].loose]
        # Among solutions that say 0, which a low order may do wrongly, the value cannot choose; the penalty can.
        s, problem, level = min(
            tight or flat or usable, key=lambda one: one[2].solution.value + _WIDTH_PENALTY * one[0]
        )
        level = tighten_bound(level, solver)
        result = answer_of_levels(problem, [level], "W2", trace_weight, None, 0, as_generator(0))

        squared = self._scale**2
        self.order_ = order
        self.converged_ = bool(flat)
        self.sweep_ = _sweep(solved, squared, size.largest_block)
        self.result_ = _without_program(result)
        self.certificates_ = result.certificates
        self.ranks_ = result.ranks
        self.variance_ = s * squared
        self.value_, self.lower_bound_ = result.value * squared, result.lower * squared
        if flat:
            self._means, self.weights_ = result.params, result.weights
        else:
            warnings.warn(
                f"MomentMixtureClustering found no flat solution of order {order} for any variance in s_grid, and "
                "returns one cluster. Try other variances, another order or a larger rank_tol.",
                ConvergenceWarning,
                stacklevel=2,
            )
            self._means, self.weights_ = Z.mean(axis=0, keepdims=True), np.ones(1)
        # Where components overlap, one may be the likeliest nowhere.
        owners = np.unique(self._scores(Z).argmax(axis=1))
        self._means, self.weights_ = self._means[owners], self.weights_[owners] / self.weights_[owners].sum()
        self.n_clusters_ = len(self.weights_)
        self.means_ = self._expand(self._means)
        if self.refine is not None:
            self.mixture_ = self._refined(Z)
        self.labels_ = self._assign(Z)
        return self

    def fit_predict(self, X: Any, y: Any = None) -> Int[np.ndarray, " n_samples"]:
        """Find the clusters and return the label of each sample.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Data.
        y : object, optional
            Ignored.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
        """
        return self.fit(X).labels_

    def predict(self, X: Any) -> Int[np.ndarray, " n_samples"]:
        """Most likely component of new samples.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Data.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
        """
        return self._assign(self._embed(X))

    @available_if(_has_posterior)
    def predict_proba(self, X: Any) -> Float[np.ndarray, "n_samples n_clusters"]:
        """Posterior probability of each component for new samples.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Data.

        Returns
        -------
        numpy.ndarray of shape (n_samples, n_clusters)
            Rows sum to 1.
        """
        Z = self._embed(X)
        if self.refine == "em":
            return self.mixture_.predict_proba(Z)
        scores = self._scores(Z)
        joint = np.exp(scores - scores.max(axis=1, keepdims=True))
        return joint / joint.sum(axis=1, keepdims=True)

    def gaussian_mixture(self, **options: Any) -> GaussianMixture:
        """A GaussianMixture that is to start from this solution, to be fitted to the same features.

        Parameters
        ----------
        **options : object
            Passed on, such as ``covariance_type`` or ``tol``; they win over the start.

        Returns
        -------
        sklearn.mixture.GaussianMixture
            Not fitted, with ``n_components``, ``means_init`` and ``weights_init`` set.
        """
        check_is_fitted(self)
        start = {"n_components": self.n_clusters_, "means_init": self.means_, "weights_init": self.weights_}
        return GaussianMixture(**(start | options))

    def _choose_order(self, n_samples: int, dim: int) -> int:
        if dim > 3:
            raise ValueError(f"n_components must be 1, 2 or 3 for data of {dim} features, got {self.n_components!r}")
        if self.order is not None:
            order = check_integer(self.order, "order", minimum=1)
            least = order
        else:
            order, least = DEFAULT_ORDER[dim], 2
        while order > least and n_samples < math.comb(dim + order, order):
            order -= 1
        if n_samples < math.comb(dim + order, order):
            raise ValueError(
                f"X must have at least {math.comb(dim + order, order)} samples for order {order} in {dim} dimensions, "
                f"got n_samples = {n_samples}"
            )
        return order

    def _reduce(self, X: Float[np.ndarray, "n_samples n_features"]) -> Float[np.ndarray, "n_samples dim"]:
        """Learn and apply the reduction; coordinates are centred and lie in [-1, 1]."""
        wanted = None
        if self.n_components is not None:
            wanted = check_integer(self.n_components, "n_components", minimum=1)
            if wanted > 3:
                raise ValueError(f"n_components must be at most 3, got {wanted}")
        self._pca = None
        reduced = X
        if wanted is not None and X.shape[1] > wanted:
            if np.ptp(X, axis=0).max() == 0:
                raise ValueError("X must have at least 2 different samples, got copies of one")
            pca = PCA(n_components=min(wanted, len(X) - 1), svd_solver="full").fit(X)
            deviations = np.sqrt(pca.explained_variance_)
            kept = int(np.count_nonzero(deviations > _FLAT_DIRECTION * max(deviations[0], abs(X).max())))
            if kept == 0:
                raise ValueError("X must have at least 2 samples that differ by more than rounding")
            self._pca = pca if kept == pca.n_components_ else PCA(n_components=kept, svd_solver="full").fit(X)
            reduced = self._pca.transform(X)
        else:
            constant = np.flatnonzero(np.ptp(X, axis=0) == 0)
            if len(constant):
                raise ValueError(f"X must not have a constant column, got column {constant[0]}")
        self._shift = reduced.mean(axis=0)
        self._scale = _MARGIN * float(abs(reduced - self._shift).max())
        return (reduced - self._shift) / self._scale

    def _embed(self, X: Any) -> Float[np.ndarray, "n_samples dim"]:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        reduced = X if self._pca is None else self._pca.transform(X)
        return (reduced - self._shift) / self._scale

    def _expand(self, Z: Float[np.ndarray, "points dim"]) -> Float[np.ndarray, "points n_features"]:
        reduced = self._shift + self._scale * Z
        return reduced if self._pca is None else self._pca.inverse_transform(reduced)

    def _scores(self, Z: Float[np.ndarray, "points dim"]) -> Float[np.ndarray, "points n_clusters"]:
        """Logarithm of weight times density, up to what all components have in common."""
        distances = ((Z[:, None, :] - self._means[None, :, :]) ** 2).sum(axis=2)
        return np.log(self.weights_) - 0.5 * distances * self._scale**2 / self.variance_

    def _assign(self, Z: Float[np.ndarray, "points dim"]) -> Int[np.ndarray, " points"]:
        if self.refine is not None:
            return self.mixture_.predict(Z)
        return self._scores(Z).argmax(axis=1)

    def _refined(self, Z: Float[np.ndarray, "points dim"]) -> GaussianMixture | KMeans:
        if self.refine == "kmeans":
            return KMeans(self.n_clusters_, init=self._means, n_init=1).fit(Z)
        seed = int(as_generator(self.random_state, "random_state").integers(2**31))
        start = self.gaussian_mixture(means_init=self._means, random_state=seed)
        return start.fit(Z)


def _sweep(
    solved: list[tuple[float, MixtureProblem, Level | None]], squared: float, largest_block: int
) -> dict[str, np.ndarray]:
    def column(read: Any, missing: float) -> np.ndarray:
        return np.array([missing if level is None else read(level, problem) for _, problem, level in solved])

    grid = np.array([s for s, _, _ in solved])
    return {
        "s": grid,
        "variance": grid * squared,
        "value": column(lambda level, problem: level.solution.value * problem.scale**2 * squared, np.nan),
        "flat": column(lambda level, problem: level.atoms.flat, False),
        "n_clusters": column(lambda level, problem: len(level.atoms.weights), 0),
        "largest_block": np.full(len(solved), largest_block),
        "seconds": column(lambda level, problem: level.relaxation.seconds_build + level.seconds, np.nan),
    }


def _without_program(result: MixtureResult) -> MixtureResult:
    return dataclasses.replace(result, problem=None)
