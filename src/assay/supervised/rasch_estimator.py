"""The Rasch model as a scikit-learn estimator: users are samples, items are features, abilities are what it learns."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.supervised.rasch import fit_rasch
from assay.supervised.rasch_ability import AbilityMixture, solve_abilities
from assay.supervised.rasch_fit import RaschFitStatistics, rasch_fit_statistics
from assay.supervised.rasch_responses import DenseBlock, Responses, check_responses

__all__ = ["RaschPGEM"]

_SCORE_NODES = 61


class RaschPGEM(TransformerMixin, BaseEstimator):
    r"""Rasch model for right and wrong answers, fitted by Polya-Gamma expectation maximisation.

    Samples are users (or images, or anything that is right or wrong at things), features are items. ``fit`` maximises
    the joint posterior of all abilities and difficulties, as :func:`~assay.supervised.fit_rasch` does; ``transform``
    gives the abilities of users, with the difficulties held fixed.

    Parameters
    ----------
    v_theta : float or "moment", default=1.0
        Prior variance of an ability, possibly ``inf``; ``"moment"`` takes what marginal maximum likelihood estimates.
    v_beta : float, default=1.0
        Prior variance of a difficulty, possibly ``inf``.
    update : {"joint", "coordinate"}, default="joint"
        All parameters at once, or users, items and a common shift in turns.
    init : {"zeros", "spectral"}, default="zeros"
        Where to begin.
    tol : float, default=1e-8
        Largest change of a parameter, and relative distance of the log-posterior to its maximum.
    max_iter : int, default=2000
        Most iterations.
    identification : {"prior", "center"}, default="prior"
        Whether the origin is that of the priors, or the mean difficulty.
    accelerate : bool, default=False
        Extrapolate from pairs of iterations.

    Attributes
    ----------
    abilities_, se_abilities_ : numpy.ndarray of shape (n_users,)
        Abilities of the users in ``fit``, and their standard errors.
    difficulties_, se_difficulties_ : numpy.ndarray of shape (n_items,)
        Difficulties and their standard errors.
    log_posterior_ : float
        Penalised log-likelihood at the answer.
    trace_ : numpy.ndarray of shape (n_recorded,)
        Penalised log-likelihood of every iteration.
    n_iter_ : int
        Iterations.
    converged_ : bool
        Whether ``tol`` was reached.
    rate_ : float
        Factor by which the distance to the maximum fell in the last iterations.
    gradient_norm_ : float
        Largest entry of the gradient, recomputed from the responses.
    groups_ : int
        Rows that the iteration worked on; fewer than users where totals repeat.
    certificates_ : tuple of Certificate
        Distance to the maximum, growth, and rate.
    result_ : RaschResult
        Everything that was found.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : numpy.ndarray of shape (n_items,)
        Names of the items, when ``X`` had them.

    Notes
    -----
    ``X`` has a right answer as 1, a wrong one as 0 and a missing one as nan; anything else is refused. A sparse matrix
    needs ``mask``, since its zeros are not all wrong answers. girth and other packages have items as rows: transpose.

    References
    ----------
    T. Agarwal, K. Shejole, A. Agarwal. An Efficient Joint Learning Approach for Item Response Theory. PMLR
    306:869-899, 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import RaschPGEM
    >>> X = np.array([[1, 0, 1], [1, 1, 0], [0, 0, np.nan], [1, 1, 1]])
    >>> model = RaschPGEM().fit(X)
    >>> model.difficulties_.round(3).tolist()
    [-0.461, 0.065, -0.117]
    >>> model.transform([[1, 0, np.nan]]).round(3).tolist()
    [[-0.065]]
    """

    def __init__(
        self,
        v_theta=1.0,
        v_beta=1.0,
        update="joint",
        init="zeros",
        tol=1e-8,
        max_iter=2000,
        identification="prior",
        accelerate=False,
    ):
        self.v_theta = v_theta
        self.v_beta = v_beta
        self.update = update
        self.init = init
        self.tol = tol
        self.max_iter = max_iter
        self.identification = identification
        self.accelerate = accelerate

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.positive_only = True
        return tags

    def fit(self, X: Any, y: Any = None, *, mask: Any = None) -> "RaschPGEM":
        """Estimate abilities and difficulties.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_users, n_items)
            Responses.
        y : None
            Not used.
        mask : array_like or sparse matrix of the shape of X, optional
            True where the response was observed.

        Returns
        -------
        RaschPGEM
            The estimator itself.
        """
        responses = check_responses(X, mask)
        self._remember_items(X, reset=True)
        result = fit_rasch(
            responses,
            v_theta=self.v_theta,
            v_beta=self.v_beta,
            update=self.update,
            init=self.init,
            tol=self.tol,
            max_iter=self.max_iter,
            identification=self.identification,
            accelerate=self.accelerate,
        )
        self.result_ = result
        self.abilities_, self.se_abilities_ = result.abilities, result.se_abilities
        self.difficulties_, self.se_difficulties_ = result.difficulties, result.se_difficulties
        self.log_posterior_, self.trace_ = result.log_posterior, result.history["log_posterior"]
        self.n_iter_, self.converged_, self.rate_ = result.n_iter, result.converged, result.rate
        self.gradient_norm_, self.groups_ = result.gradient_norm, result.n_groups
        self.certificates_ = result.certificates
        return self

    def _remember_items(self, X: Any, reset: bool) -> None:
        validate_data(self, X if hasattr(X, "shape") else np.asarray(X), skip_check_array=True, reset=reset)

    def _check(self, X: Any, mask: Any) -> Responses:
        check_is_fitted(self)
        self._remember_items(X, reset=False)
        return check_responses(X, mask, min_users=1, n_items=len(self.difficulties_))

    def transform(self, X: Any, *, mask: Any = None) -> Any:
        """Abilities of users, with the difficulties held fixed.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_users, n_items)
            Responses.
        mask : array_like or sparse matrix, optional
            True where the response was observed.

        Returns
        -------
        numpy.ndarray of shape (n_users, 1)
            For the users in ``fit`` these are ``abilities_``.
        """
        return self._abilities(self._check(X, mask))[:, None]

    def _abilities(self, responses: Responses) -> Float[np.ndarray, " users"]:
        shift = self.result_.mean_difficulty
        return solve_abilities(responses, self.difficulties_ + shift, self.result_.v_theta)[0] - shift

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> np.ndarray:
        """Name of the one column of :meth:`transform`.

        Parameters
        ----------
        input_features : ignored
            For the interface.

        Returns
        -------
        numpy.ndarray of str
        """
        check_is_fitted(self)
        return np.array(["ability"], dtype=object)

    def predict_proba(self, rows: Any, items: ArrayLike | None = None) -> Float[np.ndarray, "..."]:
        """Probability that users answer items rightly.

        Parameters
        ----------
        rows : array_like of int, or a table of responses
            Users, by their row in ``fit``. Without ``items``, the responses of any users, as for :meth:`transform`.
        items : array_like of int, optional
            Items, by their column; the two are broadcast against each other.

        Returns
        -------
        numpy.ndarray
            Probabilities, of the shape that ``rows`` and ``items`` have together, or of shape (n_users, n_items).

        Raises
        ------
        IndexError
            If there is no such user or item.
        """
        check_is_fitted(self)
        if items is None:
            return expit(self._abilities(self._check(rows, None))[:, None] - self.difficulties_)
        users, columns = np.asarray(rows), np.asarray(items)
        if users.dtype.kind not in "iu" or columns.dtype.kind not in "iu":
            raise TypeError(f"rows and items must be integers, got dtypes {users.dtype} and {columns.dtype}")
        return np.asarray(expit(self.abilities_[users] - self.difficulties_[columns]))

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:
        """Mean log-likelihood per response of users who need not have been there at ``fit``.

        Abilities are integrated over their prior, so that users with few responses are no easier to predict. For cells
        that were held out of users in ``fit``, see :meth:`score_cells`.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_users, n_items)
            Responses.
        y : None
            Not used.
        mask : array_like or sparse matrix, optional
            True where the response was observed.

        Returns
        -------
        float
            Greater is better.

        Raises
        ------
        ValueError
            If ``v_theta`` is infinite, when there is no distribution of new users.
        """
        responses = self._check(X, mask)
        if math.isinf(self.result_.v_theta):
            raise ValueError(
                "v_theta must be finite for a score, since an infinite variance is no distribution of users"
            )
        total = AbilityMixture.of_size(_SCORE_NODES).log_likelihood(
            responses, self.difficulties_ + self.result_.mean_difficulty, math.sqrt(self.result_.v_theta)
        )
        return total / responses.n_observed

    def score_cells(self, X: Any, *, mask: Any = None) -> float:
        """Mean log-likelihood per response of cells of the users in ``fit``, with their fitted abilities.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_users, n_items)
            The responses that were held out, and nan elsewhere; rows as in ``fit``.
        mask : array_like or sparse matrix, optional
            True where the response was observed.

        Returns
        -------
        float
            Greater is better.
        """
        responses = self._check(X, mask)
        if responses.shape[0] != len(self.abilities_):
            raise ValueError(f"X must have the {len(self.abilities_)} users of fit, got {responses.shape[0]} rows")
        total = 0.0
        for block in responses.blocks():
            margins = block.margins(self.abilities_, self.difficulties_)
            terms = block.answers * margins - np.logaddexp(0.0, margins)
            if isinstance(block, DenseBlock) and block.observed is not None:
                terms = terms[block.observed]
            total += float(terms.sum())
        return total / responses.n_observed

    def fit_statistics(self, X: Any, *, mask: Any = None) -> RaschFitStatistics:
        """Infit and outfit of items and users, see :func:`~assay.supervised.rasch_fit_statistics`.

        Parameters
        ----------
        X : array_like, data frame or sparse matrix of shape (n_users, n_items)
            The responses of ``fit``, or of other users, whose abilities are then estimated.
        mask : array_like or sparse matrix, optional
            True where the response was observed.

        Returns
        -------
        RaschFitStatistics
        """
        responses = self._check(X, mask)
        return rasch_fit_statistics(responses, self._abilities(responses), self.difficulties_)
