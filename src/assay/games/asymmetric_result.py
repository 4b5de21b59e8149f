"""What asymmetrically perturbed play, and the methods that it is compared with, return."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from assay.certificate import Certificate
from assay.games.bilinear_saddle import BilinearSaddle
from assay.games.polytope import Simplex, is_member
from assay.result import Result
from assay.validation import ConvergenceWarning

__all__ = ["AsymResult"]

_NO_BOUNDS = (math.nan, math.nan)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class AsymResult(Result):
    """Strategies of the last iteration, with the proof of how close they are to equilibrium.

    Parameters
    ----------
    x : numpy.ndarray of shape (n_rows,) or None
        Strategy of the minimiser, from the run in which it is perturbed; a realisation plan in a game tree. None if
        that run was not asked for.
    y : numpy.ndarray of shape (n_columns,) or None
        Strategy of the maximiser, from the run in which it is perturbed.
    x_side : numpy.ndarray of shape (n_columns,) or None
        What the maximiser played against ``x``: together they are the equilibrium of the perturbed game. It is no
        equilibrium strategy of the game itself. None for methods of one run.
    y_side : numpy.ndarray of shape (n_rows,) or None
        What the minimiser played against ``y``.
    nashconv : float
        What both players together could gain by deviating from ``(x, y)``, recomputed from the payoffs that were
        passed in. With one side only, the opponent is its companion.
    value_lower, value_upper : float
        The value of the game is between them: what ``y`` is sure to receive and ``x`` to pay at most.
    mu : float
        Perturbation at the end, in payoff units; 0 for methods without.
    eta : float
        Step size at the end, in one over payoff units.
    n_iter : int
        Steps of each run.
    tol : float
        The NashConv that was asked for, in payoff units.
    converged : bool
        Whether it was reached; with one side only, whether the gap of the perturbed game is at most ``tol``.
    halvings : int
        How often ``mu`` was halved.
    proved_not_invariant : tuple of float
        Perturbations of which the exact test proved that they move the solution of a side.
    exploitability_bounds : tuple of float
        What either strategy can lose to a best response at most, if ``mu`` is small enough:
        ``p + M sqrt(2 mu p)`` with the perturbed gap ``p`` and the radius ``M`` of the set. nan where nothing of the
        kind is known: for a side that was not run, and in game trees.
    rate : float
        Factor per step by which the perturbed gaps fell over the last half of the run, at the last ``mu``; nan where
        too little was recorded to tell.
    certificates : tuple of Certificate
        NashConv against ``tol``; for matrix games also NashConv against the sum of both bounds, which fails exactly
        when ``mu`` is proved to be too large.
    history : dict of str to numpy.ndarray
        Columns ``iteration``, ``nashconv``, ``p_x`` and ``p_y`` (perturbed gaps of both runs), ``mu``, ``eta`` and
        ``seconds``.

    Examples
    --------
    >>> from assay.games.asymmetric_perturbation import asym_gda
    >>> result = asym_gda([[0, -1, 3], [1, 0, -1], [-3, 1, 0]], mu=1.0, eps=1e-12)
    >>> result.x.round(6), result.y.round(6)
    (array([0.2, 0.6, 0.2]), array([0.2, 0.6, 0.2]))
    >>> result.x_side.round(6)
    array([0.12, 0.6 , 0.28])
    >>> result.certified, result.rate < 1
    (True, True)
    """

    x: Float[np.ndarray, " rows"] | None
    y: Float[np.ndarray, " columns"] | None
    x_side: Float[np.ndarray, " columns"] | None = None
    y_side: Float[np.ndarray, " rows"] | None = None
    nashconv: float
    value_lower: float
    value_upper: float
    mu: float
    eta: float
    n_iter: int
    tol: float
    converged: bool
    halvings: int = 0
    proved_not_invariant: tuple[float, ...] = ()
    exploitability_bounds: tuple[float, float] = _NO_BOUNDS
    rate: float = math.nan

    def rate_certificate(self) -> Certificate:
        """Whether the perturbed gaps fell at least by the factor ``1 - eta mu / 10`` per step at the end.

        It is not among ``certificates``: that the rate is linear is proved, how fast it is depends on the game.

        Returns
        -------
        Certificate
        """
        return Certificate(
            "factor per step of the perturbed gaps, over the last half of the run",
            self.rate,
            1.0 - self.eta * self.mu / 10.0,
        )


def fitted_rate(history: dict[str, np.ndarray], mu: float, floor: float) -> float:
    """Factor per step from a line through the logarithms of the perturbed gaps, above rounding and at the last mu."""
    gaps = np.nansum([history["p_x"], history["p_y"]], axis=0)
    usable = np.flatnonzero((history["mu"] == mu) & (gaps > floor))
    half = usable[usable.size // 2 :]
    if half.size < 3:
        return math.nan
    return float(np.exp(np.polyfit(history["iteration"][half], np.log(gaps[half]), 1)[0]))


def members(saddle: BilinearSaddle, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether both points lie in their sets: the gap of what does not would prove nothing."""
    pairs = ((saddle.x_set, x), (saddle.y_set, y))
    return all(
        is_member(feasible, point, 1e-12 if isinstance(feasible, Simplex) else 1e-9) for feasible, point in pairs
    )


def judge(saddle: BilinearSaddle, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """NashConv and the enclosure of the value, all nan for what are no strategies."""
    if not members(saddle, x, y):
        return dict.fromkeys(("nashconv", "value_lower", "value_upper"), math.nan)
    return {
        "nashconv": saddle.nash_conv(x, y),
        "value_lower": saddle.best_case(y),
        "value_upper": saddle.worst_case(x),
    }


def warn_last_iterate(solver: str, n_iter: int, reached: float, tol: float, why: str = "", stacklevel: int = 3) -> None:
    """Warn that ``tol`` was not reached; these methods return the last iterate and not the best."""
    warnings.warn(
        f"{solver} did not reach eps={tol:g} in {n_iter} steps (NashConv {reached:.3g}){why}; the last iterate is "
        "returned",
        ConvergenceWarning,
        stacklevel=stacklevel,
    )
