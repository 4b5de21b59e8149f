r"""Two runs side by side, in each of which one player is perturbed: when to stop, when to halve what.

The loop is the same for matrix games and for game trees. What differs is how a step is taken and a gap is measured (a
*side*), and what shows that the perturbation is too large.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from assay.games.matrix_game import check_flag
from assay.validation import check_integer, check_real

__all__ = ["PlayOptions", "TwoSidedRun", "play_to_tolerance"]

SMALLEST_MU = 1e-12
LARGEST_STRENGTH = 1e12
# The perturbed gap rising by this factor over so many steps means that the step is too long.
_DIVERGENCE, _DIVERGENCE_STEPS = 10.0, 1000
# And so does a gap that does not even halve in a time in which it should fall by a factor of exp(25).
_STALL, _STALL_TIMES = 0.5, 50.0
# From where on steps without a perturbation are unstable, in one over the spectral norm.
_LONGEST = {"optimistic": 3.0**-0.5, "extragradient": 1.0}

Callback = Callable[[Mapping[str, Any]], object] | None


@dataclass(frozen=True)
class PlayOptions:
    """Checked options of all methods of play, in payoff units.

    Parameters
    ----------
    eta : float or None
        Step size, None for the default.
    n_iter : int
        Most steps.
    tol : float
        NashConv to reach.
    check_every : int
        Steps between two checks.
    spectral_norm : float
        Largest singular value of the payoff matrix on differences of strategies.
    """

    eta: float | None
    n_iter: int
    tol: float
    check_every: int
    spectral_norm: float

    @classmethod
    def checked(
        cls,
        largest: float,
        spectral_norm: float,
        eta: Any,
        n_iter: Any,
        eps: Any,
        check_every: Any,
        rtol: Any,
        callback: Any,
        longest: float | None = None,
        stacklevel: int = 3,
    ) -> PlayOptions:
        """Check the options, and warn of a step size above ``longest``, by default what alternating steps allow."""
        eps = check_real(eps, "eps", above=0.0)
        if check_flag(rtol, "rtol") and largest > 0:
            eps *= largest
        n_iter = check_integer(n_iter, "n_iter", minimum=1)
        check_every = check_integer(check_every, "check_every", minimum=1)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be None or a function of one row of the history, got {callback!r}")
        if eta is not None:
            eta = check_real(eta, "eta", above=0.0)
            if largest > 0 and eta > LARGEST_STRENGTH / largest:
                raise ValueError(f"eta must be at most {LARGEST_STRENGTH:g} over the largest payoff, got {eta:g}")
            longest = longest_stable_step(spectral_norm) if longest is None else longest
            if eta > longest * (1 + 1e-9):
                warnings.warn(
                    f"eta={eta:g} is above {longest:g}, from where on steps are unstable: they need not converge",
                    UserWarning,
                    stacklevel=stacklevel,
                )
        return cls(eta, n_iter, eps, check_every, spectral_norm)


def longest_stable_step(spectral_norm: float, mu: float = 0.0, other: float = 0.0) -> float:
    """From where on alternating steps are unstable, with perturbations ``mu`` and ``other`` of the players.

    Along a singular vector of the payoff matrix a step multiplies the distances of both players from equilibrium by a
    matrix of two rows. One of its eigenvalues is -1 when ``(2 - eta mu) (2 - eta other) = (eta s)^2``.
    """
    total, root = mu + other, math.hypot(mu - other, 2.0 * spectral_norm)
    return 4.0 / (total + root) if total + root > 0 else math.inf


def longest_step(step: str, spectral_norm: float, mu: float = 0.0) -> float:
    """From where on a method of one run, both players perturbed, is unstable; steps as in ``SaddlePlay``."""
    if step == "perturbed":
        return longest_stable_step(spectral_norm, mu, mu)
    return _LONGEST[step] / spectral_norm if spectral_norm > 0 else math.inf


def settled_step(spectral_norm: float, mu: float) -> float:
    """Up to where alternating steps with one perturbed player also settle as fast as the perturbation allows.

    As :func:`longest_stable_step` for a perturbation of twice the strength.
    """
    return longest_stable_step(spectral_norm, 2.0 * mu)


def asks_to_stop(callback: Callback, row: dict[str, Any]) -> bool:
    """Hand a copy of the row to the callback; True of Python and of NumPy stop."""
    answer = None if callback is None else callback(dict(row))
    return isinstance(answer, bool | np.bool_) and bool(answer)


def check_strength(largest: float, mu: Any, name: str = "mu") -> float:
    """A perturbation that can be told from nothing, and that steps do not overflow with."""
    strength = check_real(mu, name, above=0.0)
    if largest > 0 and not SMALLEST_MU * largest <= strength <= LARGEST_STRENGTH * largest:
        raise ValueError(
            f"{name} must be between {SMALLEST_MU:g} and {LARGEST_STRENGTH:g} times the largest payoff, {largest:g}, "
            f"got {strength:g}"
        )
    return strength


def first_strength(largest: float, spectral_norm: float) -> float:
    """The perturbation to begin with, from the largest payoff: no stronger one is faster, and steps must be shorter."""
    # Without curvature any step is stable, and only rounding speaks against long ones.
    return min(largest, 2.0 * spectral_norm if spectral_norm > 0 else 2.0**-20 * largest) or 1.0


class Side(Protocol):
    """One of the two runs: its own player is perturbed, the other is not."""

    gap: float

    def set(self, eta: float, mu: float) -> None:
        """Use this step size and this perturbation from now on."""

    def measure(self) -> float:
        """Compute the gap of the perturbed game, and keep it as ``gap``."""

    def advance(self, n_iter: int) -> None:
        """Take steps."""


class GapWatch:
    """Tells from the gaps of one perturbation whether steps are too long: they rise, or they stand still.

    Parameters
    ----------
    start : int
        Number of steps at which it begins to watch.
    patience : float
        Steps in which a gap should have fallen.
    """

    def __init__(self, start: int, patience: float):
        self._recent: list[tuple[int, float]] = []
        self._patience = max(float(_DIVERGENCE_STEPS), patience)
        self._block, self._best, self._best_before = start, math.inf, math.inf

    def rises(self, n_iter: int, gap: float) -> bool:
        """Whether the gap has risen tenfold over 1000 steps."""
        self._recent.append((n_iter, gap))
        # Keep what is younger than the window, and one row that is older.
        while len(self._recent) > 1 and self._recent[1][0] <= n_iter - _DIVERGENCE_STEPS:
            self._recent.pop(0)
        first, before = self._recent[0]
        return n_iter - first >= _DIVERGENCE_STEPS and gap > _DIVERGENCE * before

    def stalls(self, n_iter: int, gap: float) -> bool:
        """Whether the least gap since then is hardly less than that of as many steps before."""
        self._best = min(self._best, gap)
        if n_iter - self._block < self._patience:
            return False
        stalled = self._best > _STALL * self._best_before
        self._block, self._best, self._best_before = n_iter, math.inf, self._best
        return stalled


class TwoSidedRun:
    """Both runs, and the record of what happened. Inside, the largest payoff is about 1.

    Parameters
    ----------
    sides : dict of str to Side
        The runs that are made, by ``"x"`` and ``"y"``.
    mu : float
        Strength of the perturbation at the start, in units of ``unit``.
    automatic : bool
        Whether it is halved when it is too large.
    options : PlayOptions
        In payoff units.
    unit : float
        The payoff that counts as 1.
    rounding : float
        What rounding may take from a perturbed gap.
    """

    # Whether steps that are not too long by the analysis of a singular vector are known to be stable.
    analysed = True

    def __init__(
        self, sides: dict[str, Any], mu: float, automatic: bool, options: PlayOptions, unit: float, rounding: float
    ):
        self.sides, self.mu, self.automatic = sides, mu, automatic
        self.options, self.unit, self.rounding = options, unit, rounding
        self.n_iter = self.halvings = 0
        self.rejected: list[float] = []
        self.rows: list[dict[str, Any]] = []
        self.solved = self.exhausted = self.rounded = False
        self._shortened = 1.0
        self._first_gap: float | None = None
        self._restart()

    def nash_conv(self) -> float:
        """NashConv of the current pair."""
        raise NotImplementedError

    def too_large(self, nashconv: float) -> bool:
        """Whether the perturbation is seen to be too large."""
        raise NotImplementedError

    def one_sided_done(self, tol: float) -> bool:
        """Whether a run of one side only is as good as its tolerance asks."""
        raise NotImplementedError

    def _restart(self) -> None:
        """Use the current perturbation, and forget what was seen with the last one."""
        spectral_norm = self.options.spectral_norm / self.unit
        if self.options.eta is None:
            eta = min(1.0 / spectral_norm if spectral_norm > 0 else math.inf, 0.5 / self.mu)
        else:
            eta = self.options.eta * self.unit
            if self.automatic:
                # Steps that are right for a weak perturbation are unstable with the strong ones at the start, which
                # then would never be seen to be too strong.
                eta = min(eta, settled_step(min(spectral_norm, 2.0 / eta), self.mu))
                eta = eta if self.analysed else min(eta, 0.5 / self.mu)
        self.eta = eta * self._shortened
        self._trusted = self.eta <= settled_step(spectral_norm, self.mu) * (1 + 1e-9)
        for side in self.sides.values():
            side.set(self.eta, self.mu)
        self._since = self.n_iter
        self._solved_after: int | None = None
        self._watch = GapWatch(self.n_iter, _STALL_TIMES / (self.eta * self.mu))

    def play(self, callback: Callback) -> None:
        """Advance both runs until the tolerance is reached or there is nothing to gain."""
        started = time.perf_counter()
        while True:
            nashconv = self.nash_conv()
            gaps = {name: side.measure() for name, side in self.sides.items()}
            row = {
                "iteration": self.n_iter,
                "nashconv": nashconv * self.unit,
                "p_x": gaps.get("x", math.nan) * self.unit,
                "p_y": gaps.get("y", math.nan) * self.unit,
                "mu": self.mu * self.unit,
                "eta": self.eta / self.unit,
                "seconds": time.perf_counter() - started,
            }
            self.rows.append(row)
            if asks_to_stop(callback, row):
                return
            if self._finished(nashconv) or self.n_iter >= self.options.n_iter:
                return
            self._adapt(nashconv)
            if self.exhausted:
                return
            n_steps = min(self.options.check_every, self.options.n_iter - self.n_iter)
            for side in self.sides.values():
                side.advance(n_steps)
            self.n_iter += n_steps

    def _finished(self, nashconv: float) -> bool:
        tol = self.options.tol / self.unit
        if len(self.sides) == 2:
            if nashconv <= max(tol, 0.25 * self.rounding):
                self.too_large(nashconv)
                self.rounded = nashconv > tol
                return True
        elif self.one_sided_done(tol):
            return True
        # A perturbed gap falls like the square of the distance from the solution. So when the gaps have fallen to
        # rounding, strategies have half their digits, and get the others in as many steps as it has taken so far.
        waited = self.n_iter - self._since
        if self._solved_after is None and all(side.gap <= self.rounding for side in self.sides.values()):
            self._solved_after = waited
        patience = 50 * self.options.check_every
        self.solved = self._solved_after is not None and waited >= 2 * self._solved_after + patience
        if not self.solved or self.automatic:
            return False
        if len(self.sides) == 2:
            self.too_large(nashconv)
        return True

    def _adapt(self, nashconv: float) -> None:
        """Halve the perturbation if it is too large, the step if it is too long."""
        too_large = len(self.sides) == 2 and self.too_large(nashconv)
        if self.automatic and (too_large or self.solved):
            if 0.5 * self.mu < SMALLEST_MU:
                self.exhausted = True
                return
            self.mu *= 0.5
            self.halvings += 1
            self.solved = False
            self._restart()
            return
        gap = sum(side.gap for side in self.sides.values())
        self._first_gap = gap if self._first_gap is None else self._first_gap
        # Stable steps let the gap rise as well, on the way from one solution to the next, but not above the first.
        rises = self._watch.rises(self.n_iter, gap) and not (self._trusted and gap <= self._first_gap)
        stalls = self._watch.stalls(self.n_iter, gap) and not (self._trusted and self.analysed)
        if (rises or stalls) and gap > 1e3 * self.rounding:
            self._shortened *= 0.5
            self._restart()

    def describe(self) -> str:
        """Why the tolerance was not reached, for the warning."""
        mu = self.mu * self.unit
        if self.exhausted:
            return f": mu was halved to {mu:.3g}, the smallest that is tried"
        if self.rejected and self.rejected[-1] == self.mu:
            return f": mu={mu:g} is too large for this game"
        if self.rounded:
            return ": less cannot be told from rounding"
        return ": the perturbed games are solved to rounding" if self.solved else ""


def play_to_tolerance(
    advance: Callable[[int], None],
    nash_conv: Callable[[], float],
    options: PlayOptions,
    unit: float,
    callback: Callback,
    strength: Callable[[int], float],
    eta: float,
) -> tuple[int, dict[str, np.ndarray]]:
    """Advance a single run until NashConv is at most the tolerance; return the number of steps and the history."""
    started, done, rows = time.perf_counter(), 0, []
    while True:
        nashconv = nash_conv()
        rows.append(
            {
                "iteration": done,
                "nashconv": nashconv * unit,
                "p_x": math.nan,
                "p_y": math.nan,
                "mu": strength(max(done, 1)) * unit,
                "eta": eta / unit,
                "seconds": time.perf_counter() - started,
            }
        )
        if asks_to_stop(callback, rows[-1]) or nashconv <= options.tol / unit or done >= options.n_iter:
            return done, history_arrays(rows)
        n_steps = min(options.check_every, options.n_iter - done)
        advance(n_steps)
        done += n_steps


def history_arrays(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Columns from rows."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
