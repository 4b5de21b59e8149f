r"""Equilibrium policies of a Markov game from a log of it, without bonuses: a pull towards reference policies suffices.

Two players have been logged, and what each should do against a perfect opponent is wanted. Where a reference policy is
known (the one that was logged, or a pre-trained one), both players can be held near it by relative entropy. The best
response to an estimate of the values is then smooth, so that an error of the estimate costs only its square, and plain
least squares, without a penalty for uncertainty, has a gap that falls like one over the number of samples. Backward in
the steps: regress, find the equilibrium of a small matrix game in every state, take its value to the step before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.games.markov_policies import as_betas
from assay.games.offline_certificate import (
    Coverage,
    contraction_certificate,
    coverage_certificate,
    coverage_of,
    estimated_game_certificate,
    estimated_gap,
    halves_certificate,
    stage_certificate,
)
from assay.games.offline_data import OfflineGameData
from assay.games.offline_references import Reference, reference_policy
from assay.games.offline_values import ActionValues, ValueRegression, value_regression
from assay.games.stage_equilibrium import (
    StageSolution,
    half_ranges,
    iterations_needed,
    play_stage,
    solve_stage,
    stage_gaps,
    stage_values,
)
from assay.result import Result
from assay.validation import as_generator, check_choice, check_integer, check_real, warn_not_converged

__all__ = ["OfflineNashResult", "rose", "sos_md"]

_MOST_SELF_PLAY, _SELF_PLAY_TOL = 20_000, 1e-3

Watch = Callable[[int, float], object]
StageSolver = Callable[[int, np.ndarray, np.ndarray, np.ndarray, Watch | None], StageSolution]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class OfflineNashResult(Result):
    """Policies learned from a log, and what the log says about them.

    Parameters
    ----------
    mu : numpy.ndarray of shape (horizon, n_states, A)
        Policy of the max player.
    nu : numpy.ndarray of shape (horizon, n_states, B)
        Policy of the min player.
    V : numpy.ndarray of shape (horizon + 1, n_states)
        Estimated regularised values; the last row is 0.
    Q_hat : list of numpy.ndarray of shape (n_states, A, B)
        Estimated action values, one table per step.
    beta : numpy.ndarray of shape (horizon,)
        Weights of the pull towards the references.
    mu_ref, nu_ref : numpy.ndarray of shape (horizon, n_states, n_actions)
        References that were used.
    opt_gap_per_step : numpy.ndarray of shape (horizon,)
        Regularised gap of the worst stage game of each step, in closed form.
    n_iter_per_step : numpy.ndarray of shape (horizon,)
        Updates in the state that took the most.
    half_range_per_step : numpy.ndarray of shape (horizon,)
        Half of the range of the action values in the state where it is largest.
    coverage : Coverage
        What of the game is in the log.
    n_samples : numpy.ndarray of shape (horizon,)
        Samples per step.
    schedule : {"optimistic", "constant", "harmonic"}
        How the stage games were solved.
    split_half_gap : float
        Regularised gap of policies learned on one half of the log in the game of the other half: an estimate, with the
        noise of half the data on both sides. nan if it was not computed.
    certificates : tuple of Certificate
        The gap of the worst stage game (``rose``); the gap in the game that the log describes (for means of cells); the
        contraction of self-play (``sos_md`` with a constant step and exact gains); coverage (for numbered states); the
        estimate from two halves.
    history : dict of str to numpy.ndarray
        Columns ``step`` (from ``horizon`` down to 1), ``iteration``, ``gap`` (of the worst stage game) and ``seconds``.
    """

    mu: Float[np.ndarray, "steps states rows"]
    nu: Float[np.ndarray, "steps states columns"]
    V: Float[np.ndarray, "steps_and_end states"]
    Q_hat: list
    beta: Float[np.ndarray, " steps"]
    mu_ref: Float[np.ndarray, "steps states rows"]
    nu_ref: Float[np.ndarray, "steps states columns"]
    opt_gap_per_step: Float[np.ndarray, " steps"]
    n_iter_per_step: Int[np.ndarray, " steps"]
    half_range_per_step: Float[np.ndarray, " steps"]
    coverage: Coverage
    n_samples: Int[np.ndarray, " steps"]
    schedule: str
    split_half_gap: float
    eta: float | None = field(default=None, repr=False)
    policy_at: Any = field(default=None, repr=False)

    @property
    def opt_gap(self) -> float:
        """Sum over the steps of the gap of the worst stage game."""
        return float(self.opt_gap_per_step.sum())

    def mu_policy(self, h: int, states: ArrayLike) -> np.ndarray:
        """Policy of the max player at a step and in states, new vectors of features included.

        Parameters
        ----------
        h : int
            Step, from 1.
        states : int or array_like of int, or array_like of shape (n, n_features)
            Numbers of states, or features where the log has features.

        Returns
        -------
        numpy.ndarray of shape (A,) or (n, A)

        Raises
        ------
        TypeError, ValueError
            If there is no such step or state.
        """
        return self._policy(0, h, states)

    def nu_policy(self, h: int, states: ArrayLike) -> np.ndarray:
        """Policy of the min player at a step and in states; see :meth:`mu_policy`.

        Parameters
        ----------
        h : int
            Step, from 1.
        states : int or array_like of int, or array_like of shape (n, n_features)
            Numbers of states, or features where the log has features.

        Returns
        -------
        numpy.ndarray of shape (B,) or (n, B)
        """
        return self._policy(1, h, states)

    def _policy(self, player: int, h: int, states: Any) -> np.ndarray:
        h = check_integer(h, "h", minimum=1)
        horizon, n_states = self.mu.shape[:2]
        if h > horizon:
            raise ValueError(f"h must be at most {horizon}, got {h}")
        if self.policy_at is not None:
            return self.policy_at(h - 1, states)[player]
        numbers = np.asarray(states)
        if numbers.dtype.kind not in "iu":
            raise TypeError(f"states must be integers, got dtype {numbers.dtype}")
        if numbers.size and (numbers.min() < 0 or numbers.max() >= n_states):
            raise ValueError(f"states must be from 0 to {n_states - 1}, got {numbers.min()} to {numbers.max()}")
        return (self.mu, self.nu)[player][h - 1, numbers]

    def iterations_needed(self, tol: float) -> int:
        """Updates of self-play after which the relative entropy to every stage equilibrium is ``tol`` of the start's.

        Parameters
        ----------
        tol : float
            Factor below 1.

        Returns
        -------
        int
            Largest over the steps, with the step size of this run, or the proven one after :func:`rose`.
        """
        needed = [
            iterations_needed(tol, float(radius), float(beta), self.eta)
            for radius, beta in zip(self.half_range_per_step, self.beta, strict=True)
        ]
        return max(needed)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-ready types, without the function for new states."""
        return {name: content for name, content in super().to_dict().items() if name != "policy_at"}


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
    problem = _Problem.checked(data, beta, mu_ref, nu_ref, fit, fill, clip, ref_smoothing, callback)

    def solve(h: int, payoffs: Any, mu_refs: Any, nu_refs: Any, watch: Watch | None) -> StageSolution:
        found = solve_stage(payoffs, mu_refs, nu_refs, float(problem.betas[h]), tol, max_iter)
        if watch is not None:
            watch(found.n_iter, float(found.gap.max()))
        return found

    result = _learn(problem, solve, "optimistic", estimate_coverage, split_half, tol=tol)
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
        Called with a row of the history as a dict, about nine times per decade of updates.

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
    problem = _Problem.checked(data, beta, mu_ref, nu_ref, fit, fill, clip, ref_smoothing, callback)

    def solve(h: int, payoffs: Any, mu_refs: Any, nu_refs: Any, watch: Watch | None) -> StageSolution:
        weight, most = float(problem.betas[h]), n_iter
        if most is None:
            widest = float(half_ranges(payoffs).max())
            most = min(_MOST_SELF_PLAY, iterations_needed(_SELF_PLAY_TOL, widest, weight, eta))
        return play_stage(
            payoffs, mu_refs, nu_refs, weight, most, harmonic=harmonic, eta=eta, sampled=sampled, rng=generator,
            watch=watch,
        )  # fmt: skip

    contracts = not harmonic and sampled is None
    return _learn(problem, solve, schedule, estimate_coverage, split_half, eta=eta, contracts=contracts)


@dataclass(frozen=True)
class _Problem:
    """Checked arguments that both methods share."""

    data: OfflineGameData
    betas: np.ndarray
    mu_ref: Reference
    nu_ref: Reference
    regression: ValueRegression
    clip: bool
    tabular: bool
    callback: Callable[[Mapping[str, Any]], object] | None

    @classmethod
    def checked(
        cls,
        data: Any,
        beta: Any,
        mu_ref: Any,
        nu_ref: Any,
        fit: Any,
        fill: Any,
        clip: Any,
        smoothing: Any,
        callback: Any,
    ) -> _Problem:
        if not isinstance(data, OfflineGameData):
            raise TypeError(f"data must be an OfflineGameData, got {type(data).__name__}")
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be None or a function of one row of the history, got {callback!r}")
        return cls(
            data=data,
            betas=as_betas(beta, data.horizon),
            regression=value_regression(fit, fill, clip, data),
            mu_ref=reference_policy(mu_ref, "mu_ref", data, 0, smoothing),
            nu_ref=reference_policy(nu_ref, "nu_ref", data, 1, smoothing),
            clip=bool(clip),
            tabular=isinstance(fit, str) and fit == "tabular",
            callback=callback,
        )


@dataclass
class _Backward:
    """What one pass from the last step to the first found."""

    mu: np.ndarray
    nu: np.ndarray
    V: np.ndarray
    values: list[ActionValues]
    n_iter: np.ndarray
    rows: list[tuple[int, int, float, float]]


def _go_backward(problem: _Problem, data: OfflineGameData, solve: StageSolver, started: float | None) -> _Backward:
    """Regress, solve and go one step back, on all data or on a part of them (then nobody watches)."""
    mu, nu = np.empty_like(problem.mu_ref.table), np.empty_like(problem.nu_ref.table)
    V = np.zeros((data.horizon + 1, data.n_states))
    values: list[Any] = [None] * data.horizon
    n_iter, rows = np.zeros(data.horizon, dtype=np.int64), []
    for h in reversed(range(data.horizon)):
        mu_refs, nu_refs = problem.mu_ref.table[h], problem.nu_ref.table[h]

        def watch(iteration: int, gap: float, step: int = h + 1) -> None:
            row = (step, iteration, gap, time.perf_counter() - started)
            rows.append(row)
            if problem.callback is not None:
                problem.callback(dict(zip(("step", "iteration", "gap", "seconds"), row, strict=True)))

        values[h] = problem.regression.fit(data, h, data.targets(h, V[h + 1]))
        found = solve(h, values[h].table, mu_refs, nu_refs, None if started is None else watch)
        mu[h], nu[h], n_iter[h] = found.mu, found.nu, found.n_iter
        V[h] = stage_values(values[h].table, mu[h], nu[h], mu_refs, nu_refs, float(problem.betas[h]))
        if problem.clip:
            np.clip(V[h], 0.0, data.horizon - h, out=V[h])
    return _Backward(mu, nu, V, values, n_iter, rows)


def _learn(
    problem: _Problem,
    solve: StageSolver,
    schedule: str,
    estimate_coverage: bool | None,
    split_half: bool,
    *,
    tol: float | None = None,
    eta: float | None = None,
    contracts: bool = False,
) -> OfflineNashResult:
    for name, flag in (("estimate_coverage", estimate_coverage), ("split_half", split_half)):
        if not isinstance(flag, bool | np.bool_) and not (flag is None and name == "estimate_coverage"):
            raise TypeError(f"{name} must be True or False, got {flag!r}")
    data, betas = problem.data, problem.betas
    mu_ref, nu_ref = problem.mu_ref.table, problem.nu_ref.table
    found = _go_backward(problem, data, solve, time.perf_counter())
    tables = [values.table for values in found.values]
    gaps = np.array([
        stage_gaps(tables[h], found.mu[h], found.nu[h], mu_ref[h], nu_ref[h], float(betas[h])).max()
        for h in range(data.horizon)
    ])  # fmt: skip
    coverage = coverage_of(data, found.mu, found.nu, estimate_coverage)
    split, split_of_references = _split_half(problem, solve) if split_half else (float("nan"), float("nan"))

    certificates = []
    if tol is not None:
        certificates.append(stage_certificate(gaps, tol))
    if problem.tabular:
        gap = estimated_gap(data, problem.regression, betas, mu_ref, nu_ref, found.mu, found.nu)
        certificates.append(estimated_game_certificate(gap, gaps))
    if contracts:
        policies = mu_ref, nu_ref, found.mu, found.nu
        certificates.append(contraction_certificate(tables, betas, *policies, found.n_iter, eta))
    if not np.isnan(coverage.concentrability):
        certificates.append(coverage_certificate(coverage))
    if not np.isnan(split):
        certificates.append(halves_certificate(split, split_of_references))
    columns = zip(*found.rows, strict=True)
    return OfflineNashResult(
        mu=found.mu,
        nu=found.nu,
        V=found.V,
        Q_hat=tables,
        beta=betas,
        mu_ref=mu_ref,
        nu_ref=nu_ref,
        opt_gap_per_step=gaps,
        n_iter_per_step=found.n_iter,
        half_range_per_step=np.array([half_ranges(table).max() for table in tables]),
        coverage=coverage,
        n_samples=data.n_samples,
        schedule=schedule,
        split_half_gap=split,
        eta=eta,
        policy_at=None if data.state_features is None else _policy_at(problem, found.values, solve),
        certificates=tuple(certificates),
        history={
            name: np.array(column)
            for name, column in zip(("step", "iteration", "gap", "seconds"), columns, strict=True)
        },
    )


def _split_half(problem: _Problem, solve: StageSolver) -> tuple[float, float]:
    """Gap on one half of the data of policies of the other half, and of the references."""
    halves = problem.data.halves()
    if halves is None:
        return float("nan"), float("nan")
    learned = _go_backward(problem, halves[0], solve, None)
    mu_ref, nu_ref = problem.mu_ref.table, problem.nu_ref.table
    judged = [
        estimated_gap(halves[1], problem.regression, problem.betas, mu_ref, nu_ref, mu, nu)
        for mu, nu in ((learned.mu, learned.nu), (mu_ref, nu_ref))
    ]
    return judged[0], judged[1]


def _policy_at(problem: _Problem, values: list[ActionValues], solve: StageSolver) -> Callable[[int, Any], Any]:
    """Solve the stage games of new states, given by their features."""
    n_features = problem.data.state_features.shape[1]

    def policies(h: int, states: Any) -> tuple[np.ndarray, np.ndarray]:
        features = np.asarray(states, dtype=np.float64)
        single = features.ndim == 1
        rows = np.atleast_2d(features)
        if rows.ndim != 2 or rows.shape[1] != n_features or not np.isfinite(rows).all():
            raise ValueError(f"states must be finite rows of {n_features} features, got shape {features.shape}")
        mu_refs, nu_refs = problem.mu_ref.at(h, rows), problem.nu_ref.at(h, rows)
        found = solve(h, values[h].predict(rows), mu_refs, nu_refs, None)
        return (found.mu[0], found.nu[0]) if single else (found.mu, found.nu)

    return policies
