r"""Equilibrium policies of a Markov game from a log of it, without bonuses: a pull towards reference policies suffices.

Two players have been logged, and what each should do against a perfect opponent is wanted. Where a reference policy is
known (the one that was logged, or a pre-trained one), both players can be held near it by relative entropy. The best
response to an estimate of the values is then smooth, so that an error of the estimate costs only its square, and plain
least squares, without a penalty for uncertainty, has a gap that falls like one over the number of samples. Backward in
the steps: regress, find the equilibrium of a small matrix game in every state, take its value to the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from assay.games.offline_backward import OfflineProblem, Watch, learn_backward
from assay.games.offline_data import OfflineGameData
from assay.games.offline_result import OfflineNashResult
from assay.games.stage_equilibrium import StageSolution, half_ranges, iterations_needed, play_stage, solve_stage
from assay.validation import as_generator, check_choice, check_integer, check_real, warn_not_converged

__all__ = ["OfflineNashResult", "rose", "sos_md"]

_MOST_SELF_PLAY, _SELF_PLAY_TOL = 20_000, 1e-3


def rose(
    data: OfflineGameData,
    beta: ArrayLike,
    mu_ref: Any = None,
    nu_ref: Any = None,
    fit: Any = "tabular",
    fill: str = "mid",
    clip: bool = True,
    tol: float = 1e-10,
    *,
    max_iter: int = 200_000,
    ref_smoothing: float = 0.0,
    estimate_coverage: bool | None = None,
    split_half: bool = True,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> OfflineNashResult:
    r"""Equilibrium policies from a log of a Markov game: regress, solve every stage game, go one step back.

    Estimates the equilibrium of

    .. math:: \max_\mu \min_\nu E \sum_{h=1}^H r_h - \beta\, \mathrm{KL}(\mu_h \| \mu_{ref,h})
              + \beta\, \mathrm{KL}(\nu_h \| \nu_{ref,h}) .

    Parameters
    ----------
    data : OfflineGameData
        The log.
    beta : float or array_like of shape (horizon,)
        Weight of the pull towards the references, in units of reward; the larger, the closer.
    mu_ref, nu_ref : None, "uniform", array_like or callable, optional
        Reference policies of the max and of the min player, of shape (n_actions,), (n_states, n_actions) or
        (horizon, n_states, n_actions), with full support. None clones the behaviour in the log, adding one to every
        count. For states that are vectors of features: a vector, or a function ``mu_ref(h, features)``.
    fit : "tabular", "linear" or regressor, default="tabular"
        Means of cells; ridge regression on ``data.phi``; or any regressor of scikit-learn's kind, on ``data.phi`` or on
        states and actions side by side (numbers as indicators).
    fill : {"mid", "zero"}, default="mid"
        What a cell without data is worth: half of the largest possible value, or nothing. It matters where coverage
        fails, and only there.
    clip : bool, default=True
        Cut values to the possible range ``[0, H - h + 1]``.
    tol : float, default=1e-10
        Gap to reach in every stage game.
    max_iter : int, default=200_000
        Most updates per stage game.
    ref_smoothing : float, default=0.0
        Share of the uniform policy that is mixed into references, which lets them have zeros.
    estimate_coverage : bool, optional
        Whether to estimate concentrability, which takes O(horizon^2 * n_states * n) operations with n samples per step;
        by default if that is a matter of seconds.
    split_half : bool, default=True
        Whether to repeat everything on half of the data and judge it by the other half.
    callback : callable, optional
        Called after every step with a row of the history as a dict.

    Returns
    -------
    OfflineNashResult

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    assay.validation.ConvergenceWarning
        When a stage game did not reach ``tol``.

    See Also
    --------
    sos_md : The same with a given number of self-play updates per stage game.

    Notes
    -----
    Per step, the regression and about :math:`4R/\beta \log(1/tol)` updates of O(A B) in every state, R being half the
    range of its values; memory O(horizon * n_states * A B). In a state without data the values are all equal and the
    policies are the references.

    The gap falls like :math:`C / (\beta n)` where the concentrability C (see :func:`~assay.games.concentrability`) is
    finite. A state after which an episode ended is worth nothing.

    References
    ----------
    C. Chen, Q. Zhang, Z. Liu, X. Xie, J. Liu, N. Jiang. Offline Two-Player Zero-Sum Markov Games with KL
    Regularization. ICML 2026. arXiv:2605.13025.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.markov_gap import regularized_gap
    >>> from assay.games.markov_model import MarkovGameModel
    >>> from assay.games.offline_markov import rose
    >>> rng = np.random.default_rng(0)
    >>> P = rng.dirichlet(np.ones(5), size=(4, 5, 3, 3))
    >>> game = MarkovGameModel(P, rng.uniform(0, 1, (4, 5, 3, 3)))
    >>> result = rose(game.sample_dataset(4000, rng=rng), beta=0.5, mu_ref="uniform", nu_ref="uniform")
    >>> result.mu.shape, result.certified
    ((4, 5, 3), True)
    >>> regularized_gap(game, 0.5, None, None, result.mu, result.nu) < 0.01
    True
    """
    tol = check_real(tol, "tol", above=0.0)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    problem = OfflineProblem.checked(data, beta, mu_ref, nu_ref, fit, fill, clip, ref_smoothing, callback)

    solve = _Optimistic(problem.betas, tol, max_iter)
    result = learn_backward(problem, solve, "optimistic", estimate_coverage, split_half, tol=tol)
    if not result.opt_gap_per_step.max() <= tol:
        warn_not_converged("rose", int(result.n_iter_per_step.max()), float(result.opt_gap_per_step.max()), tol)
    return result


def sos_md(
    data: OfflineGameData,
    beta: ArrayLike,
    mu_ref: Any = None,
    nu_ref: Any = None,
    fit: Any = "tabular",
    fill: str = "mid",
    clip: bool = True,
    *,
    n_iter: int | None = None,
    schedule: str = "constant",
    eta: float | None = None,
    sampled: int | None = None,
    rng: Any = None,
    ref_smoothing: float = 0.0,
    estimate_coverage: bool | None = None,
    split_half: bool = True,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> OfflineNashResult:
    r"""Equilibrium policies from a log of a Markov game by self-play: regress, let both players improve, go back.

    In every state, from the references on and both players at once,

    .. math:: \log \mu_{t+1} = \frac{\log \mu_t + \eta \beta \log \mu_{ref} + \eta \hat Q \nu_t}{1 + \eta \beta} + c,
              \qquad
              \log \nu_{t+1} = \frac{\log \nu_t + \eta \beta \log \nu_{ref} - \eta \hat Q' \mu_t}{1 + \eta \beta} + c' .

    The last iterate is kept, and its value goes to the step before.

    Parameters
    ----------
    data : OfflineGameData
        The log.
    beta : float or array_like of shape (horizon,)
        Weight of the pull towards the references, in units of reward; the larger, the closer.
    mu_ref, nu_ref : None, "uniform", array_like or callable, optional
        Reference policies; see :func:`rose`.
    fit : "tabular", "linear" or regressor, default="tabular"
        How values are estimated; see :func:`rose`.
    fill : {"mid", "zero"}, default="mid"
        What a cell without data is worth: half of the largest possible value, or nothing.
    clip : bool, default=True
        Cut values to the possible range ``[0, H - h + 1]``.
    n_iter : int, optional
        Updates per stage game. By default as many as bring the relative entropy to the equilibrium to a thousandth, at
        each step on its own, but at most 20,000. That grows like the square of (half the range of values) / beta.
    schedule : {"constant", "harmonic"}, default="constant"
        Step size ``beta / R**2`` in a state with half-range R, which converges linearly; or ``1 / (beta (t + 2))``,
        which needs no range. Neither is ever above 1000.
    eta : float, optional
        A constant step size of one's own. Contraction is proven up to ``beta / R**2``.
    sampled : int, optional
        Estimate gains from so many sampled actions of the opponent, for large sets of actions. With a constant step the
        last iterate then keeps a noise of the order of the step; prefer ``schedule="harmonic"``.
    rng : None, int or numpy.random.Generator
        Source of random numbers for ``sampled``.
    ref_smoothing : float, default=0.0
        Share of the uniform policy that is mixed into references, which lets them have zeros.
    estimate_coverage : bool, optional
        Whether to estimate concentrability; see :func:`rose`.
    split_half : bool, default=True
        Whether to repeat everything on half of the data and judge it by the other half.
    callback : callable, optional
        Called with a row of the history as a dict, about six times per decade of updates.

    Returns
    -------
    OfflineNashResult
        ``opt_gap_per_step`` and ``opt_gap`` say how far from equilibrium self-play stopped.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    O(n_iter * n_states * A B) per step and the regression; with ``sampled=K``, O(n_iter * n_states * K (A + B)).

    References
    ----------
    C. Chen, Q. Zhang, Z. Liu, X. Xie, J. Liu, N. Jiang. Offline Two-Player Zero-Sum Markov Games with KL
    Regularization. ICML 2026. arXiv:2605.13025.

    S. Sokota, R. D'Orazio, J. Z. Kolter, N. Loizou, M. Lanctot, I. Mitliagkas, N. Brown, C. Kroer. A Unified Approach
    to Reinforcement Learning, Quantal Response Equilibria, and Two-Player Zero-Sum Games. ICLR 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.markov_model import MarkovGameModel
    >>> from assay.games.offline_markov import sos_md
    >>> rng = np.random.default_rng(0)
    >>> P = rng.dirichlet(np.ones(5), size=(4, 5, 3, 3))
    >>> game = MarkovGameModel(P, rng.uniform(0, 1, (4, 5, 3, 3)))
    >>> result = sos_md(game.sample_dataset(4000, rng=rng), beta=0.5, mu_ref="uniform", nu_ref="uniform", n_iter=80)
    >>> result.opt_gap < 1e-3, result.certified
    (True, True)
    """
    n_iter = None if n_iter is None else check_integer(n_iter, "n_iter", minimum=1)
    harmonic = check_choice(schedule, "schedule", ("constant", "harmonic")) == "harmonic"
    if eta is not None:
        eta = check_real(eta, "eta", above=0.0)
        if harmonic:
            raise ValueError(f"eta must be None with schedule='harmonic', got {eta:g}")
    sampled = None if sampled is None else check_integer(sampled, "sampled", minimum=1)
    generator = as_generator(rng)
    problem = OfflineProblem.checked(data, beta, mu_ref, nu_ref, fit, fill, clip, ref_smoothing, callback)

    solve = _SelfPlay(problem.betas, n_iter, harmonic, eta, sampled, generator)
    contracts = not harmonic and sampled is None
    return learn_backward(problem, solve, schedule, estimate_coverage, split_half, eta=eta, contracts=contracts)


@dataclass(frozen=True)
class _Optimistic:
    """Solves the stage games of a step, counted from 0, to a tolerance."""

    betas: np.ndarray
    tol: float
    max_iter: int

    def __call__(self, h: int, payoffs: Any, mu_refs: Any, nu_refs: Any, watch: Watch | None) -> StageSolution:
        found = solve_stage(payoffs, mu_refs, nu_refs, float(self.betas[h]), self.tol, self.max_iter)
        if watch is not None:
            watch(found.n_iter, float(found.gap.max()))
        return found


@dataclass(frozen=True)
class _SelfPlay:
    """Plays the stage games of a step, counted from 0, for a number of updates."""

    betas: np.ndarray
    n_iter: int | None
    harmonic: bool
    eta: float | None
    sampled: int | None
    rng: np.random.Generator

    def __call__(self, h: int, payoffs: Any, mu_refs: Any, nu_refs: Any, watch: Watch | None) -> StageSolution:
        beta, most = float(self.betas[h]), self.n_iter
        if most is None:
            widest = float(half_ranges(payoffs).max())
            most = min(_MOST_SELF_PLAY, iterations_needed(_SELF_PLAY_TOL, widest, beta, self.eta))
        return play_stage(
            payoffs, mu_refs, nu_refs, beta, most, harmonic=self.harmonic, eta=self.eta, sampled=self.sampled,
            rng=self.rng, watch=watch,
        )  # fmt: skip
