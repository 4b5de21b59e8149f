r"""Last-iterate equilibria by perturbing one player only.

Gradient descent ascent circles around an equilibrium. Adding ``mu / 2`` times the squared norm to the payoffs of both
players stops the circling but moves the equilibrium, so that ``mu`` has to go to zero. If only the minimiser is
perturbed, the maximiser still answers with best responses, and the minimiser's worst-case loss keeps its kinks: below a
threshold, no perturbation moves its minimiser at all. Play then converges linearly to an exact equilibrium strategy of
the perturbed player, with a fixed ``mu``. The other player's strategy comes from the mirror image of the game.

The threshold is unknown. But at every moment the gap of the perturbed game bounds how far from equilibrium the pair of
both strategies can be if ``mu`` is below it, so that a pair that is farther away proves that ``mu`` is too large. Then
``mu`` is halved, and nothing has to be tuned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.games.asymmetric_result import AsymResult, fitted_rate, judge, members, warn_last_iterate
from assay.games.asymmetric_run import (
    PlayOptions,
    TwoSidedRun,
    check_strength,
    first_strength,
    history_arrays,
    longest_stable_step,
)
from assay.games.bilinear_saddle import BilinearSaddle, power_of_two
from assay.games.matrix_game import PayoffLike
from assay.games.polytope import Simplex, first_point, is_member
from assay.games.saddle_dynamics import SaddlePlay
from assay.validation import as_distribution, as_float_array, check_real

__all__ = ["AsymResult", "asym_gda", "perturbed_gap"]

SIDES = ("x", "y")


def asym_gda(
    A: PayoffLike,
    mu: float | str = "auto",
    X: Any = None,
    Y: Any = None,
    p: ArrayLike | None = None,
    q: ArrayLike | None = None,
    eta: float | None = None,
    n_iter: int = 100_000,
    eps: float = 1e-9,
    check_every: int = 20,
    x0: ArrayLike | None = None,
    y0: ArrayLike | None = None,
    sides: Sequence[str] = SIDES,
    *,
    rtol: bool = False,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> AsymResult:
    r"""Solve a bilinear saddle point by gradient play with one perturbed player (AsymP-GDA).

    Finds ``x`` and ``y`` that solve ``min_{x in X} max_{y in Y} x'Ay + p'x + q'y``, each from a run of its own:

    .. math::

        x_{t+1} = \Pi_X(x_t - \eta (A y_t + p + \mu x_t)), \qquad
        y_{t+1} = \Pi_Y(y_t + \eta (A^\top x_{t+1} + q)),

    and the same with the players exchanged.

    Parameters
    ----------
    A : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the minimiser pays to the maximiser.
    mu : float or "auto", default="auto"
        Strength of the perturbation, in payoff units. ``"auto"`` starts from the largest absolute payoff, or from
        ``2 L`` if that is less (see ``eta``), and halves it whenever it is proved too large. A fixed one that is too
        large gives the solution of the perturbed game.
    X, Y : FeasibleSet, optional
        What the players choose from: an object with ``project``, ``minimise``, ``radius`` and ``size`` (see
        :mod:`assay.games.polytope`). By default the distributions over rows and over columns.
    p, q : array_like of shape (n_rows,) and (n_columns,), optional
        Linear terms of the payoff.
    eta : float, optional
        Step size, in one over payoff units; ``min(1 / L, 1 / (2 mu))`` by default, where ``L <= ||A||_2`` is the
        largest singular value of ``A`` on differences of strategies. Nearly twice as much saves nearly half of the
        steps. In automatic mode it is shortened where ``mu`` is so large that it would be unstable.
    n_iter : int, default=100_000
        Most steps of each run.
    eps : float, default=1e-9
        NashConv to reach, in payoff units (see ``rtol``).
    check_every : int, default=20
        Steps between two evaluations of the certificate.
    x0, y0 : array_like, optional
        Where play starts; by default at the points closest to the origin, which are uniform strategies.
    sides : sequence of {"x", "y"}, default=("x", "y")
        Which runs are made. ``"auto"`` needs both.
    rtol : bool, default=False
        Whether ``eps`` is a multiple of the largest absolute payoff.
    callback : callable, optional
        Called as ``callback(row)`` at every check with a dict of the columns of ``history``. Return True to stop.

    Returns
    -------
    AsymResult
        The last iterates.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If ``eps`` was not reached.
    UserWarning
        If ``eta`` is above ``4 / (mu + sqrt(mu^2 + 4 L^2))``, which is ``2 / L`` for weak perturbations: alternating
        steps are unstable from there on.

    Notes
    -----
    Let ``g(x)`` be what ``x`` pays to a best response, ``v`` the value of the game, and ``alpha`` its sharpness:
    ``g(x) - v >= alpha dist(x, X*)``. With ``M`` the largest norm in ``X``, the solution of the perturbed game is an
    equilibrium strategy for all ``mu < alpha / M``. The gap of the perturbed game

    .. math::

        p(x, y) = \max_{y'} f(x, y') + \tfrac{\mu}{2} \|x\|^2 - \min_{x'} [f(x', y) + \tfrac{\mu}{2} \|x'\|^2]

    can be computed, the inner minimum being at a projection, and bounds the squared distance from that solution by
    ``2 p / mu``. So below the threshold ``g(x) - v <= p + M sqrt(2 mu p)``. Where the sum of these bounds over both
    sides is less than NashConv, ``mu`` is above the threshold of one of them: it is listed in
    ``proved_not_invariant`` and, in automatic mode, halved. Should both perturbed games be solved to rounding with
    NashConv still above ``eps``, ``mu`` is halved too, without a proof.

    No gap below about 1e-15 of the largest payoff can be told from rounding; ``rtol=True`` asks for what can be had.
    The threshold can be arbitrarily small. Halving ends at 1e-12 of the largest payoff.

    What all rows or all columns of ``A`` have in common moves no projection, so that it does not count in ``L``. If all
    entries of a dense ``A`` have one sign, the middle of their range is subtracted before play.

    Steps of the default size are stable. The time they take is that of the worst direction: where ``sigma`` is the
    least singular value among the actions that are played, the distance from equilibrium falls by a share of about
    ``eta min(mu / 2, sigma^2 / mu)`` per step. Payoffs of very different magnitude, and games in which only a tiny
    ``mu`` leaves the equilibrium in place, take accordingly many.

    A step costs two products with ``A`` and two projections, and memory is that of ``A``, twice. If the perturbed gap
    rises tenfold over 1000 steps, or does not even halve while it should have fallen by a factor of ``exp(25)``,
    ``eta`` is halved; with a stable step only if it rises above the first gap.

    References
    ----------
    .. [1] Abe, Sakamoto, Ariu, Iwasaki. Asymmetric Perturbation in Solving Bilinear Saddle-Point Optimization. ICML
       2026. arXiv:2506.05747.

    Examples
    --------
    >>> from assay.games.asymmetric_perturbation import asym_gda
    >>> biased_rock_paper_scissors = [[0, -1, 3], [1, 0, -1], [-3, 1, 0]]
    >>> result = asym_gda(biased_rock_paper_scissors, eps=1e-12)
    >>> result.x.round(9), result.converged
    (array([0.2, 0.6, 0.2]), True)
    >>> len(result.proved_not_invariant), result.mu  # the threshold is 2.5
    (1, 1.5)
    """
    saddle = BilinearSaddle.of(A, p, q, X, Y)
    sides = _check_sides(sides)
    automatic = isinstance(mu, str)
    if automatic and mu != "auto":
        raise ValueError(f"mu must be a positive number or 'auto', got {mu!r}")
    if automatic and len(sides) < 2:
        raise ValueError(f"sides must be both for mu='auto', got {sides}: the test needs a pair of strategies")
    centred = saddle.centred()
    norm = curvature(centred)
    strength = first_strength(centred.largest, norm) if automatic else check_strength(centred.largest, mu)
    longest = longest_stable_step(norm, 0.0 if automatic else strength)
    options = PlayOptions.checked(saddle.largest, norm, eta, n_iter, eps, check_every, rtol, callback, longest)
    starts = starting_points(saddle, x0, y0)

    run = AsymmetricRun(saddle, centred, sides, strength, automatic, options, starts)
    run.play(callback)
    result = run.result()
    if not result.converged:
        warn_last_iterate("asym_gda", result.n_iter, result.nashconv, result.tol, run.describe())
    return result


def _check_sides(sides: Any) -> tuple[str, ...]:
    try:
        chosen = (sides,) if isinstance(sides, str) else tuple(sides)
    except TypeError as error:
        raise TypeError(f"sides must be 'x', 'y' or both, got {sides!r}") from error
    for side in chosen:
        if side not in SIDES:
            raise ValueError(f"sides must be 'x', 'y' or both, got {side!r}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"sides must be 'x', 'y' or both, got {chosen}")
    return tuple(side for side in SIDES if side in chosen)


def curvature(saddle: BilinearSaddle) -> float:
    """Largest singular value on differences of strategies, in payoff units; squares of payoffs may overflow."""
    unit = power_of_two(saddle.largest)
    return unit * saddle.scaled(unit).spectral_norm()


def starting_points(
    saddle: BilinearSaddle, x0: Any, y0: Any, names: tuple[str, str] = ("x0", "y0")
) -> tuple[np.ndarray, np.ndarray]:
    """Where play starts: what was passed in, or the points closest to the origin."""
    points = []
    for feasible, point, name in ((saddle.x_set, x0, names[0]), (saddle.y_set, y0, names[1])):
        if point is None:
            points.append(first_point(feasible))
        elif isinstance(feasible, Simplex):
            points.append(as_distribution(point, name, size=feasible.size))
        else:
            start = as_float_array(point, name, ndim=1)
            if start.size != feasible.size:
                raise ValueError(f"{name} must have length {feasible.size}, got {start.size}")
            if not is_member(feasible, start, 1e-8):
                raise ValueError(f"{name} must lie in the feasible set, got a point outside of it")
            points.append(start)
    return points[0], points[1]


class _Side:
    """One of the two runs: its player is perturbed, the other is not."""

    def __init__(self, saddle: BilinearSaddle, own: np.ndarray, other: np.ndarray):
        self.saddle = saddle
        self.play = SaddlePlay(saddle, "perturbed", own, other, eta=1.0)
        self.radius = float(saddle.x_set.radius)
        self.gap = math.inf

    def set(self, eta: float, mu: float) -> None:
        self.play.eta, self.play.mu = eta, (mu, 0.0)

    def measure(self) -> float:
        self.gap = self.saddle.perturbed_gap(self.play.x, self.play.y, self.play.mu[0])
        return self.gap

    def advance(self, n_iter: int) -> None:
        self.play.advance(n_iter)

    def bound(self, rounding: float) -> float:
        return exploitability_bound(self.gap, self.play.mu[0], self.radius, rounding)


def exploitability_bound(gap: float, mu: float, radius: float, rounding: float = 0.0) -> float:
    """What a strategy can lose to a best response if ``mu`` is below the threshold: ``p + M sqrt(2 mu p)``."""
    gap = max(gap, 0.0) + rounding
    # In units of payoff the product of the two may overflow, or vanish.
    return gap + radius * math.sqrt(2.0 * mu) * math.sqrt(gap)


def gap_rounding(saddle: BilinearSaddle) -> float:
    """What rounding may take from a perturbed gap, with payoffs of magnitude 1."""
    return 2.0**-52 * (4.0 + math.sqrt(sum(saddle.by_row.shape))) * saddle.magnitude


class AsymmetricRun(TwoSidedRun):
    """The runs of a matrix game, where too large a perturbation can be proved.

    Parameters
    ----------
    saddle : BilinearSaddle
        The game as it was passed in, by which the answer is judged.
    centred : BilinearSaddle
        The game that is played.
    chosen : tuple of str
        The runs that are made.
    mu : float
        Strength of the perturbation at the start, in payoff units.
    automatic : bool
        Whether it is halved when it is too large.
    options : PlayOptions
    starts : tuple of numpy.ndarray
        First strategies of both players.
    """

    def __init__(
        self,
        saddle: BilinearSaddle,
        centred: BilinearSaddle,
        chosen: tuple[str, ...],
        mu: float,
        automatic: bool,
        options: PlayOptions,
        starts: tuple[np.ndarray, np.ndarray],
    ):
        self.original = saddle
        unit = power_of_two(centred.largest)
        self.game = centred.scaled(unit)
        views = {"x": (self.game, *starts), "y": (self.game.mirrored, *starts[::-1])}
        sides = {name: _Side(*views[name]) for name in chosen}
        super().__init__(sides, mu / unit, automatic, options, unit, gap_rounding(self.game))

    @property
    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        """Strategies of both players; of a side that was not run, the companion of the other."""
        x = self.sides["x"].play.x if "x" in self.sides else self.sides["y"].play.y
        y = self.sides["y"].play.x if "y" in self.sides else self.sides["x"].play.y
        return x, y

    def nash_conv(self) -> float:
        """NashConv of the current pair."""
        return self.game.nash_conv(*self.pair)

    def too_large(self, nashconv: float) -> bool:
        """Whether the pair is farther from equilibrium than the perturbed gaps allow; what is proved is kept."""
        bound = sum(side.bound(self.rounding) for side in self.sides.values())
        proved = nashconv > bound * (1 + 1e-9) + 1e-14 * self.game.magnitude
        if proved and self.rejected[-1:] != [self.mu]:
            self.rejected.append(self.mu)
        return proved

    def one_sided_done(self, tol: float) -> bool:
        """Whether the strategy can lose at most ``tol``, if the perturbation is small enough."""
        return all(side.bound(0.0) <= tol for side in self.sides.values())

    def result(self) -> AsymResult:
        """Recompute everything that is promised from the strategies and the payoffs that were passed in."""
        x, y = self.pair
        tol, mu = self.options.tol, self.mu * self.unit
        judged = judge(self.original, x, y)
        history = history_arrays(self.rows)
        runs = {name: (side.play.x, side.play.y) for name, side in self.sides.items()}
        gaps = _gaps(self.original, runs, mu)
        bounds = {
            name: exploitability_bound(gaps[name], mu, self.sides[name].radius) if name in runs else math.nan
            for name in SIDES
        }
        if len(self.sides) == 2:
            converged = judged["nashconv"] <= tol
            certificates = asymmetric_certificates(self.original, judged["nashconv"], tol, gaps, mu)
        else:
            ((name, gap),) = gaps.items()
            converged = gap <= tol
            certificates = (Certificate(f"gap of the perturbed game of the {name} side", gap, tol),)
        return AsymResult(
            x=runs["x"][0] if "x" in runs else None,
            y=runs["y"][0] if "y" in runs else None,
            x_side=runs["x"][1] if "x" in runs else None,
            y_side=runs["y"][1] if "y" in runs else None,
            **judged,
            mu=mu,
            eta=self.eta / self.unit,
            n_iter=self.n_iter,
            tol=tol,
            converged=bool(converged),
            halvings=self.halvings,
            proved_not_invariant=tuple(rejected * self.unit for rejected in self.rejected),
            exploitability_bounds=(bounds["x"], bounds["y"]),
            rate=fitted_rate(history, mu, 10.0 * self.rounding * self.unit),
            certificates=certificates,
            history=history,
        )


def _gaps(saddle: BilinearSaddle, runs: dict[str, tuple[np.ndarray, np.ndarray]], mu: float) -> dict[str, float]:
    """Perturbed gaps of the runs, in payoff units; nan for what are no strategies."""
    views = {"x": saddle, "y": saddle.mirrored}
    return {
        name: views[name].perturbed_gap(own, other, mu) if members(views[name], own, other) else math.nan
        for name, (own, other) in runs.items()
    }


def asymmetric_certificates(
    saddle: BilinearSaddle, nashconv: float, tol: float, gaps: Mapping[str, float], mu: float
) -> tuple[Certificate, ...]:
    """NashConv against the tolerance, and against what the perturbed gaps allow."""
    unit = power_of_two(saddle.largest)
    rounding = gap_rounding(saddle) * unit
    radii = {"x": float(saddle.x_set.radius), "y": float(saddle.y_set.radius)}
    bound = sum(exploitability_bound(gaps[name], mu, radii[name], rounding) for name in SIDES)
    return (
        Certificate("NashConv of the returned strategies", nashconv, tol),
        Certificate(
            "NashConv, within the sum of p + M sqrt(2 mu p) over both sides (if not, mu is too large)",
            nashconv,
            bound * (1 + 1e-9) + 1e-14 * saddle.magnitude * unit,
        ),
    )


def perturbed_gap(
    A: PayoffLike,
    x: ArrayLike,
    y: ArrayLike,
    mu: float,
    *,
    X: Any = None,
    Y: Any = None,
    p: ArrayLike | None = None,
    q: ArrayLike | None = None,
) -> float:
    r"""Gap of a pair of strategies in the game in which the minimiser also pays ``mu / 2`` times its squared norm.

    Parameters
    ----------
    A : array_like, torch.Tensor or scipy.sparse matrix of shape (n_rows, n_columns)
        What the minimiser pays to the maximiser.
    x, y : array_like of shape (n_rows,) and (n_columns,)
        The strategies.
    mu : float
        Strength of the perturbation, above 0.
    X, Y : FeasibleSet, optional
        What the players choose from; distributions by default.
    p, q : array_like of shape (n_rows,) and (n_columns,), optional
        Linear terms of the payoff.

    Returns
    -------
    float
        Non-negative up to rounding, and 0 exactly at the solution of the perturbed game.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    Two products with ``A`` and a projection.

    Examples
    --------
    >>> from assay.games.asymmetric_perturbation import perturbed_gap
    >>> biased_rock_paper_scissors = [[0, -1, 3], [1, 0, -1], [-3, 1, 0]]
    >>> abs(round(perturbed_gap(biased_rock_paper_scissors, [0.2, 0.6, 0.2], [0.12, 0.6, 0.28], 1.0), 12))
    0.0
    """
    saddle = BilinearSaddle.of(A, p, q, X, Y)
    mu = check_real(mu, "mu", above=0.0)
    x, y = starting_points(saddle, x, y, ("x", "y"))
    return saddle.perturbed_gap(x, y, mu)
