r"""Perturbing one player of a game tree: dilated gradient play in sequence form.

The dilated Euclidean regulariser is both the distance of a step and the perturbation (AsymP-DGDA), so that a step stays
one pass over the tree. As in matrix games, a small enough perturbation of one player is seen to leave an equilibrium
strategy where it is. Here that is not proved, and the regulariser is not strongly convex in the plan, so that the test
of the perturbation is a heuristic: NashConv stays far above the gaps of the perturbed games when it is too large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from assay.certificate import Certificate
from assay.games.asymmetric_result import AsymResult, fitted_rate, warn_last_iterate
from assay.games.asymmetric_run import (
    PlayOptions,
    TwoSidedRun,
    check_strength,
    first_strength,
    history_arrays,
    longest_step,
)
from assay.games.bilinear_saddle import ROUNDING, power_of_two, spectral_norm
from assay.games.sequence_form import SequenceFormGame
from assay.games.treeplex_dynamics import TreePlay

__all__ = ["asym_dgda"]

_Callback = Callable[[Mapping[str, Any]], object] | None

# A perturbation is called too large when NashConv is above so many times the perturbed gaps, so many checks in a row.
_SUSPICIOUS_RATIO, _SUSPICIOUS_CHECKS, _SUSPICIOUS_FLOOR = 10.0, 3, 1e-12
_PLAN_ROUNDING = 1e-10


def asym_dgda(
    game: SequenceFormGame,
    mu: float | str = "auto",
    eta: float | None = None,
    n_iter: int = 20_000,
    check_every: int = 20,
    eps: float = 1e-9,
    *,
    rtol: bool = False,
    callback: _Callback = None,
) -> AsymResult:
    r"""Solve a zero-sum game in sequence form by dilated gradient play with one perturbed player (AsymP-DGDA).

    Each player's plan comes from a run of its own in which it is perturbed:

    .. math::

        x_{t+1} = \arg\min_x \; \eta \langle A y_t + \mu \nabla\psi(x_t), x \rangle + D_\psi(x, x_t), \qquad
        y_{t+1} = \arg\max_y \; \eta \langle A^\top x_{t+1}, y \rangle - D_\psi(y, y_t),

    with the dilated regulariser ``psi(x) = sum_j x_{p(j)} |b_j|^2 / 2`` over information sets ``j``.

    Parameters
    ----------
    game : SequenceFormGame
        The game; player 0 minimises what it pays.
    mu : float or "auto", default="auto"
        Strength of the perturbation, in payoff units. ``"auto"`` starts from the largest entry of the payoff matrix in
        sequence form, or from ``2 L`` if that is less (see ``eta``), and halves it when NashConv is above ten times the
        perturbed gaps at three successive checks.
    eta : float, optional
        Step size, in one over payoff units; ``min(1 / L, 1 / (2 mu))`` by default, where ``L <= ||A||_2`` is the
        largest singular value of ``A`` on differences of plans. Nearly twice as much often works, and is faster. In
        automatic mode it is shortened where ``mu`` is large.
    n_iter : int, default=20_000
        Most steps of each run.
    check_every : int, default=20
        Steps between two evaluations of the certificate.
    eps : float, default=1e-9
        NashConv to reach, in payoff units (see ``rtol``).
    rtol : bool, default=False
        Whether ``eps`` is a multiple of the largest absolute entry of the payoff matrix in sequence form.
    callback : callable, optional
        Called as ``callback(row)`` at every check with a dict of the columns of ``history``. Return True to stop.

    Returns
    -------
    AsymResult
        ``x`` and ``y`` are realisation plans. ``proved_not_invariant`` stays empty: nothing is proved.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If ``eps`` was not reached.
    UserWarning
        If ``eta`` is above ``2 / L``.

    Notes
    -----
    A step costs the non-zeros of the payoff matrix and the sequences of both players. If the perturbed gap rises
    tenfold over 1000 steps, or does not even halve while it should have fallen by a factor of ``exp(25)``, ``eta`` is
    halved. A rise is allowed to steps of at most about ``2 / L`` as long as the gap stays below the first.

    References
    ----------
    .. [1] Abe, Sakamoto, Ariu, Iwasaki. Asymmetric Perturbation in Solving Bilinear Saddle-Point Optimization. ICML
       2026. arXiv:2506.05747.

    Examples
    --------
    >>> from assay.games.asymmetric_trees import asym_dgda
    >>> from assay.games.sequence_form import SequenceFormGame
    >>> pennies = SequenceFormGame.from_arrays(
    ...     parents=([0], [0]), actions=([2], [2]), payoff_triplets=([1, 1, 2, 2], [1, 2, 1, 2], [2.0, -1, -1, 1]))
    >>> result = asym_dgda(pennies, eps=1e-12)
    >>> result.x.round(6), result.certified
    (array([1. , 0.4, 0.6]), True)
    """
    automatic = isinstance(mu, str)
    if automatic and mu != "auto":
        raise ValueError(f"mu must be a positive number or 'auto', got {mu!r}")
    largest = largest_payoff(game)
    strength = None if automatic else check_strength(largest, mu)
    options, unit = checked_options(game, eta, n_iter, eps, check_every, rtol, callback)
    strength = strength or first_strength(largest, options.spectral_norm)
    run = _TreeRun(game, strength, automatic, options, unit)
    run.play(callback)
    result = run.result()
    if not result.converged:
        warn_last_iterate("asym_dgda", result.n_iter, result.nashconv, result.tol, run.describe())
    return result


def largest_payoff(game: Any) -> float:
    """Largest absolute entry of the payoff matrix in sequence form."""
    if not isinstance(game, SequenceFormGame):
        raise TypeError(f"game must be a SequenceFormGame, got {type(game).__name__}")
    return float(abs(game.payoff).max()) if game.payoff.nnz else 0.0


def checked_options(
    game: Any,
    eta: Any,
    n_iter: Any,
    eps: Any,
    check_every: Any,
    rtol: Any,
    callback: Any,
    step: str = "perturbed",
) -> tuple[PlayOptions, float]:
    """Options in payoff units, and the unit in which the largest payoff is about 1."""
    largest = largest_payoff(game)
    unit = power_of_two(largest)
    norm = unit * spectral_norm(game.payoff / unit, game.trees[0].directions, game.trees[1].directions)
    # What the steps of one information set allow; in deep trees more may be stable.
    longest = longest_step(step, norm)
    options = PlayOptions.checked(largest, norm, eta, n_iter, eps, check_every, rtol, callback, longest, stacklevel=4)
    return options, unit


class _TreeSide:
    """One of the two runs."""

    def __init__(self, play: TreePlay):
        self.play = play
        self.gap = math.inf

    def set(self, eta: float, mu: float) -> None:
        self.play.eta, self.play.mu = eta, (mu, 0.0)

    def measure(self) -> float:
        self.gap = self.play.gap(self.play.mu[0])
        return self.gap

    def advance(self, n_iter: int) -> None:
        self.play.advance(n_iter)


class _TreeRun(TwoSidedRun):
    """The runs of a game tree."""

    # The dilated distance is weaker than the Euclidean one, by how much depends on the tree.
    analysed = False

    def __init__(self, game: SequenceFormGame, mu: float, automatic: bool, options: PlayOptions, unit: float):
        self.game = game
        by_row = game.payoff / unit
        by_column = by_row.T.tocsr()
        sides = {
            "x": _TreeSide(TreePlay(game.trees, by_row, by_column, 1.0, "perturbed")),
            "y": _TreeSide(TreePlay(game.trees[::-1], by_column, by_row, -1.0, "perturbed")),
        }
        self._suspicious = 0
        super().__init__(sides, mu / unit, automatic, options, unit, ROUNDING)

    def nash_conv(self) -> float:
        """NashConv of the two perturbed players."""
        return plan_nash_conv(self.game, self.sides["x"].play.x, self.sides["y"].play.x) / self.unit

    def too_large(self, nashconv: float) -> bool:
        """Whether NashConv has been far above the perturbed gaps for some checks."""
        gaps = sum(side.gap for side in self.sides.values())
        self._suspicious = self._suspicious + 1 if nashconv > _SUSPICIOUS_RATIO * gaps + _SUSPICIOUS_FLOOR else 0
        if self._suspicious < _SUSPICIOUS_CHECKS:
            return False
        self._suspicious = 0
        return True

    def one_sided_done(self, tol: float) -> bool:
        """Both sides are always run."""
        return False

    def result(self) -> AsymResult:
        """Recompute NashConv from the plans and the payoffs that were passed in."""
        x_play, y_play = self.sides["x"].play, self.sides["y"].play
        judged, tol = judge_plans(self.game, x_play.x, y_play.x), self.options.tol
        history = history_arrays(self.rows)
        mu = self.mu * self.unit
        return AsymResult(
            x=x_play.x,
            y=y_play.x,
            x_side=x_play.y,
            y_side=y_play.y,
            **judged,
            mu=mu,
            eta=self.eta / self.unit,
            n_iter=self.n_iter,
            tol=tol,
            converged=bool(judged["nashconv"] <= tol),
            halvings=self.halvings,
            rate=fitted_rate(history, mu, 1e3 * self.rounding * self.unit),
            certificates=(plan_certificate(judged["nashconv"], tol),),
            history=history,
        )


def plan_certificate(nashconv: float, tol: float) -> Certificate:
    """NashConv against the tolerance."""
    return Certificate("NashConv of the returned plans", nashconv, tol)


def plan_nash_conv(game: SequenceFormGame, x: np.ndarray, y: np.ndarray) -> float:
    """NashConv of plans that need no check, as what each player gains over the current payoff."""
    received, paid = game.payoff.T @ x, game.payoff @ y
    # Pure best responses against the plans themselves: both differences vanish at an equilibrium.
    gain = received @ (game.trees[1].best_response(-received) - y)
    return float(gain + paid @ (x - game.trees[0].best_response(paid)))


def judge_plans(game: SequenceFormGame, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """NashConv and the enclosure of what player 0 pays, all nan for what are no plans."""
    if not max(game.trees[0].violation(x), game.trees[1].violation(y)) <= _PLAN_ROUNDING:
        return dict.fromkeys(("nashconv", "value_lower", "value_upper"), math.nan)
    return {
        "nashconv": plan_nash_conv(game, x, y),
        "value_lower": game.trees[0].least(game.payoff @ y),
        "value_upper": -game.trees[1].least(-(game.payoff.T @ x)),
    }
