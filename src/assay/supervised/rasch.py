r"""Rasch models by Polya-Gamma expectation maximisation: abilities and difficulties at once, to a proven optimum.

A Rasch model says that user ``u`` answers item ``i`` rightly with probability :math:`\sigma(\theta_u - \beta_i)`. With
normal priors the log-posterior of all abilities and difficulties is strongly concave, and one latent Polya-Gamma
variable per response makes it a quadratic that is maximised in closed form. Iterating never decreases it, missing
responses are cells that are left out, and the gradient at the answer bounds how far it is from the best one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from assay.result import Result
from assay.supervised.rasch_calibration import require_comparable_items, require_mixed_answers
from assay.supervised.rasch_certificate import certificates_at, fitted_rate, posterior_at, rate_bound
from assay.supervised.rasch_em import RaschProblem, maximize_posterior
from assay.supervised.rasch_marginal import rasch_mml
from assay.supervised.rasch_responses import Responses, check_responses
from assay.supervised.rasch_spectral import spectral_difficulties
from assay.validation import check_choice, check_integer, check_real, warn_not_converged

__all__ = ["RaschResult", "fit_rasch"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RaschResult(Result):
    """Abilities and difficulties at the maximum of their joint posterior.

    Parameters
    ----------
    abilities, se_abilities : numpy.ndarray of shape (n_users,)
        Abilities and their standard errors, from the inverse of the observed information of all parameters.
    difficulties, se_difficulties : numpy.ndarray of shape (n_items,)
        Difficulties and their standard errors.
    log_posterior : float
        Penalised log-likelihood (without the constants of the normal densities).
    log_likelihood : float
        Log-likelihood of the observed responses.
    v_theta, v_beta : float
        Prior variances that were used.
    n_iter : int
        Iterations.
    converged : bool
        Whether ``tol`` was reached.
    gradient_norm : float
        Largest entry of the gradient of the log-posterior, recomputed from the responses.
    rate : float
        Factor by which the distance to the maximum fell in the last iterations; nan when there were too few.
    rate_bound : float
        Bound on the rate of the joint iteration.
    n_groups : int
        Rows that the iteration worked on; fewer than users where totals repeat.
    n_responses : int
        Observed cells.
    mean_difficulty : float
        What was subtracted from all parameters, 0 unless ``identification="center"``.
    user_names, item_names : list or None
        Labels, when the responses had them.
    """

    abilities: Float[np.ndarray, " users"]
    difficulties: Float[np.ndarray, " items"]
    se_abilities: Float[np.ndarray, " users"]
    se_difficulties: Float[np.ndarray, " items"]
    log_posterior: float
    log_likelihood: float
    v_theta: float
    v_beta: float
    n_iter: int
    converged: bool
    gradient_norm: float
    rate: float
    rate_bound: float
    n_groups: int
    n_responses: int
    mean_difficulty: float = 0.0
    user_names: list[Any] | None = None
    item_names: list[Any] | None = None

    def items(self) -> pd.DataFrame:
        """Table with a row per item."""
        return pd.DataFrame({"difficulty": self.difficulties, "se": self.se_difficulties}, index=self.item_names)

    def users(self) -> pd.DataFrame:
        """Table with a row per user."""
        return pd.DataFrame({"ability": self.abilities, "se": self.se_abilities}, index=self.user_names)


def fit_rasch(
    X: Any,
    *,
    mask: Any = None,
    v_theta: float | str = 1.0,
    v_beta: float = 1.0,
    update: str = "joint",
    init: str = "zeros",
    tol: float = 1e-8,
    max_iter: int = 2000,
    identification: str = "prior",
    accelerate: bool = False,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> RaschResult:
    r"""Fit a Rasch model to right and wrong answers.

    Maximises over abilities :math:`\theta` and difficulties :math:`\beta`

    .. math:: Q(\theta, \beta) = \sum_{\text{observed } ui} \left[x_{ui} (\theta_u - \beta_i)
              - \log(1 + e^{\theta_u - \beta_i})\right]
              - \frac{|\theta|^2}{2 v_\theta} - \frac{|\beta|^2}{2 v_\beta} .

    Parameters
    ----------
    X : array_like, masked array, pandas.DataFrame or scipy.sparse matrix of shape (n_users, n_items)
        1 for right, 0 for wrong, nan for missing. Users are rows: transpose what was made for packages, such as girth,
        that have items as rows. An int8 or boolean array without missing cells is not copied.
    mask : array_like or scipy.sparse matrix of the shape of X, optional
        True where the response was observed. Needed for a sparse ``X``, whose zeros are not all wrong answers.
    v_theta : float or "moment", default=1.0
        Prior variance of an ability, possibly ``inf``. ``"moment"`` takes the variance that marginal maximum likelihood
        estimates. (Learning it within this iteration would let it collapse.)
    v_beta : float, default=1.0
        Prior variance of a difficulty, possibly ``inf`` when every item has a right and a wrong answer. With both
        infinite this is joint maximum likelihood, with mean difficulty 0.
    update : {"joint", "coordinate"}, default="joint"
        All parameters at once, by a linear system of the size of the shorter side; or users, items, and a shift of both
        in turns, which is cheaper per iteration when both sides are long.
    init : {"zeros", "spectral"}, default="zeros"
        Where to begin. The maximum is the same.
    tol : float, default=1e-8
        The iteration ends when no parameter changes by more, and the log-posterior is proven to be within ``tol`` times
        its size of the maximum.
    max_iter : int, default=2000
        Most iterations.
    identification : {"prior", "center"}, default="prior"
        Whether the origin is that of the priors, or the mean difficulty.
    accelerate : bool, default=False
        Extrapolate from pairs of iterations where that does not decrease the log-posterior; about half the iterations.
    callback : callable, optional
        Called with a mapping (``iteration``, ``seconds``, ``log_posterior``, ``gap_bound``, ``change``) per iteration.

    Returns
    -------
    RaschResult

    Raises
    ------
    TypeError
        If ``X`` is sparse without a mask, or an argument is of the wrong type.
    ValueError
        If ``X`` has values other than 0, 1 and nan, or fewer than 2 users or items; an argument is out of range; or
        a variance is infinite and the maximum is not attained, with the name of a user or an item that is to blame.

    Warns
    -----
    assay.validation.ConvergenceWarning
        When ``max_iter`` is reached before ``tol``.

    Notes
    -----
    Per iteration O(n m min(n, m)) with ``n`` users and ``m`` items, and O(m^2 groups) where users share totals: a
    complete table of any length has at most ``m + 1`` different totals. Dense tables are kept as one byte per cell and
    read in blocks; a sparse table takes O(observed cells + min(n, m)^2) memory.

    References
    ----------
    T. Agarwal, K. Shejole, A. Agarwal. An Efficient Joint Learning Approach for Item Response Theory. PMLR
    306:869-899, 2026.
    N. G. Polson, J. G. Scott, J. Windle. Bayesian inference for logistic models using Polya-Gamma latent variables.
    Journal of the American Statistical Association 108, 2013.

    Examples
    --------
    >>> from assay.supervised import fit_rasch
    >>> fit = fit_rasch([[1, 0, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1]])
    >>> fit.difficulties.round(4).tolist()
    [-0.4259, 0.0927, -0.4259]
    >>> round(fit.log_posterior, 6), fit.certified
    (-7.132447, True)
    """
    check_choice(update, "update", ("joint", "coordinate"))
    check_choice(init, "init", ("zeros", "spectral"))
    check_choice(identification, "identification", ("prior", "center"))
    tol = check_real(tol, "tol", above=0)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    v_beta = check_real(v_beta, "v_beta", above=0, allow_infinite=True)
    if not isinstance(accelerate, bool | np.bool_):
        raise TypeError(f"accelerate must be True or False, got {accelerate!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be None or a function of one row of the history, got {callback!r}")
    if isinstance(v_theta, str):
        check_choice(v_theta, "v_theta", ("moment",))
        responses = check_responses(X, mask)
        variance = rasch_mml(responses).ability_scale ** 2
    else:
        variance = check_real(v_theta, "v_theta", above=0, allow_infinite=True)
        responses = check_responses(X, mask)
    _require_maximum(responses, variance, v_beta)

    problem = RaschProblem(responses, variance, v_beta)
    start = (None, _spectral_start(responses)) if init == "spectral" else (None, None)
    trace = maximize_posterior(
        problem,
        *problem.start(*start),
        update=update,
        accelerate=bool(accelerate),
        tol=tol,
        max_iter=max_iter,
        callback=callback,
    )
    abilities, difficulties = problem.unpack(trace.a, trace.b)
    centred = identification == "center"
    se_abilities, se_difficulties = problem.standard_errors(trace.a, trace.b, centred or problem.free)
    at = posterior_at(responses, abilities, difficulties, variance, v_beta)
    values = trace.history["log_posterior"]
    if not trace.converged:
        reached = max(float(trace.history["change"][-1]), at.gap_bound if math.isfinite(at.gap_bound) else 0.0)
        warn_not_converged("fit_rasch", trace.n_iter, reached, tol)
    shift = float(difficulties.mean()) if centred else 0.0
    return RaschResult(
        abilities=abilities - shift,
        difficulties=difficulties - shift,
        se_abilities=se_abilities,
        se_difficulties=se_difficulties,
        log_posterior=at.log_posterior,
        log_likelihood=at.log_likelihood,
        v_theta=variance,
        v_beta=v_beta,
        n_iter=trace.n_iter,
        converged=trace.converged,
        gradient_norm=at.gradient_norm,
        rate=fitted_rate(values, at.log_posterior),
        rate_bound=rate_bound(at.largest_margin),
        n_groups=problem.n_groups,
        n_responses=responses.n_observed,
        mean_difficulty=shift,
        user_names=responses.user_names,
        item_names=responses.item_names,
        certificates=certificates_at(responses, at, tol, values, update == "joint" and not accelerate),
        history=trace.history,
    )


def _require_maximum(responses: Responses, v_theta: float, v_beta: float) -> None:
    """Without a prior on one side, each of that side needs answers of both kinds; without any, a connected graph."""
    if math.isinf(v_theta):
        require_mixed_answers(responses, items=False)
    if math.isinf(v_beta):
        require_mixed_answers(responses, items=True)
    if math.isinf(v_theta) and math.isinf(v_beta):
        require_comparable_items(responses)


def _spectral_start(responses: Responses) -> Float[np.ndarray, " items"]:
    # Half a comparison each way connects items that nobody compared.
    return spectral_difficulties(responses.comparisons() + 0.5)
