r"""The central path of a matrix game: for games that defeat first-order and semismooth Newton steps alike.

Payoffs of very different magnitude (a forbidden pair of actions written as 1e6, rows in different units) or actions
that differ in the eighth digit only make the pieces of the Douglas-Rachford map so thin that Newton steps get lost
between them. An interior-point method does not see the unit of a row or column. It keeps every action at a positive
probability and follows the strategies for which, at every action, the probability times the loss against the best
response is the same number, while that number goes to zero:

    x_i ((A y)_i - u) = y_j (v - (A' x)_j) = barrier,        with lower and upper bounds u and v of the value.

One iteration costs a Cholesky factorisation, like a Newton step with all columns played, and the number of iterations
(10 to 40) hardly depends on the size of the game.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import lapack

from assay.games.semismooth_newton import GameSplitting

__all__ = ["CentralPath"]

# Share of the way to the boundary that a step may go, and of their mean that no product may fall below.
_INWARD, _NEIGHBOURHOOD = 0.9995, 1e-4
# Where a step along the path leads too far from it: the share of the barrier to aim at, and halvings of such a step.
_CENTRE, _MOST_HALVINGS = 0.3, 20
_MOST_SOLVES = 4
# Added to the unit diagonal of the scaled system when it is singular to working precision, and how it grows.
_FIRST_SHIFT, _SHIFT_GROWTH, _LARGEST_SHIFT = 1e-14, 100.0, 1e-3


class CentralPath:
    """Predictor-corrector steps along the central path of one game, from uniform strategies.

    Parameters
    ----------
    splitting : GameSplitting
        The game, with the player first who has fewer actions, and with payoffs of magnitude 1.

    Attributes
    ----------
    x, y : numpy.ndarray
        Strategies, in the order of the splitting, with every entry positive.
    gap : float
        Their duality gap.

    References
    ----------
    .. [1] S. Mehrotra. On the implementation of a primal-dual interior point method. SIAM J. Optim. 2, 1992.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.interior_point import CentralPath
    >>> from assay.games.semismooth_newton import GameSplitting
    >>> path = CentralPath(GameSplitting(np.diag([1e-6, 1e-3, 1.0])))
    >>> while path.gap > 1e-15 and path.advance():
    ...     pass
    >>> path.x.round(6)
    array([9.99e-01, 9.99e-04, 1.00e-06])
    """

    def __init__(self, splitting: GameSplitting):
        self._splitting = splitting
        self.x = np.full(splitting.n_small, 1.0 / splitting.n_small)
        self.y = np.full(splitting.n_large, 1.0 / splitting.n_large)
        self._shift = 0.0
        self._measure()
        # Losses in proportion to the numbers of actions, for products of about the same size.
        margin = max(self.gap, 1e-3)
        self._lower = float(self._cost.min()) - margin
        self._upper = float(self._gain.max()) + margin * splitting.n_large / splitting.n_small
        self._loss_y, self._loss_x = self._upper - self._gain, self._cost - self._lower

    def advance(self) -> bool:
        """Do one step; False, and nothing changed, if rounding errors leave no step to be done."""
        with np.errstate(all="ignore"):
            return self._advance()

    def _measure(self) -> None:
        self._cost, self._gain = self._splitting.payoff_dot(self.y), self._splitting.payoff_transpose_dot(self.x)
        self.gap = float(self._gain.max() - self._cost.min())

    def _advance(self) -> bool:
        x, y, loss_x, loss_y = self.x, self.y, self._loss_x, self._loss_y
        if not self._factorise():
            return False
        barrier = (x @ loss_x + y @ loss_y) / (x.size + y.size)
        # The predictor aims at the end of the path; how far it gets says how close to it the corrector may aim.
        predictor = self._direction(-x * loss_x, -y * loss_y)
        if predictor is None:
            return False
        own, other = (min(1.0, length) for length in self._room(predictor))
        dx, dy, dloss_x, dloss_y, _, _ = predictor
        reached = (x + own * dx) @ (loss_x + other * dloss_x) + (y + other * dy) @ (loss_y + own * dloss_y)
        aim = barrier * min(1.0, max(0.0, reached / (x.size + y.size) / barrier)) ** 3
        step = self._direction(aim - x * loss_x - dx * dloss_x, aim - y * loss_y - dy * dloss_y)
        if step is not None:
            # Each player's strategy moves together with the loss that it inflicts.
            own, other = (min(1.0, _INWARD * length) for length in self._room(step))
            if self._go(step, own, other, barrier):
                return True
        # Too close to the boundary somewhere: a shorter step towards the middle, which there always is.
        step = self._direction(_CENTRE * barrier - x * loss_x, _CENTRE * barrier - y * loss_y)
        if step is None:
            return False
        length = min(1.0, _INWARD * min(self._room(step)))
        return any(self._go(step, length * 0.5**k, length * 0.5**k, barrier) for k in range(_MOST_HALVINGS))

    def _go(self, step: tuple[np.ndarray | float, ...], own: float, other: float, barrier: float) -> bool:
        """Take a step if it leads on along the path and not too far from it."""
        dx, dy, dloss_x, dloss_y, dlower, dupper = step
        x, y = self.x + own * dx, self.y + other * dy
        loss_x, loss_y = self._loss_x + other * dloss_x, self._loss_y + own * dloss_y
        products = np.concatenate((x * loss_x, y * loss_y))
        mean = float(products.mean())
        if not (mean < barrier and products.min() >= _NEIGHBOURHOOD * mean):
            return False
        self.x, self.y, self._loss_x, self._loss_y = x / x.sum(), y / y.sum(), loss_x, loss_y
        self._lower, self._upper = self._lower + other * dlower, self._upper + own * dupper
        self._measure()
        return True

    def _room(self, step: tuple[np.ndarray | float, ...]) -> tuple[float, float]:
        """Lengths at which the first positive quantity becomes zero: of ``x, loss_y`` and of ``y, loss_x``."""
        dx, dy, dloss_x, dloss_y, _, _ = step
        sides = ((self.x, dx), (self._loss_y, dloss_y)), ((self.y, dy), (self._loss_x, dloss_x))
        return tuple(min(_room_of(now, change) for now, change in side) for side in sides)

    def _factorise(self) -> bool:
        """Cholesky factor of ``diag(loss_x / x) + A diag(y / loss_y) A'``, scaled to a unit diagonal."""
        self._ratio_x, self._ratio_y = self._loss_x / self.x, self.y / self._loss_y
        while self._shift <= _LARGEST_SHIFT:
            system = self._splitting.weighted_gram(self._ratio_y)
            diagonal = system.diagonal() + self._ratio_x
            if not np.isfinite(diagonal).all():
                return False
            self._unit = 1.0 / np.sqrt(diagonal)
            system *= self._unit
            system *= self._unit[:, None]
            system.flat[:: diagonal.size + 1] = 1.0 + self._shift
            self._factor, info = lapack.dpotrf(system, lower=1, overwrite_a=1, clean=0)
            if info == 0:
                # What a change of the bounds does to the strategies is the same for predictor and corrector.
                self._towards_lower = self._solve(np.ones_like(self.x))
                self._towards_upper = self._solve(self._splitting.payoff_dot(self._ratio_y))
                return True
            self._shift = max(_FIRST_SHIFT, _SHIFT_GROWTH * self._shift)
        return False

    def _solve(self, right: np.ndarray) -> np.ndarray:
        """Solve with the factor, and refine: it may be of a shifted system, and its entries range widely."""
        best, smallest, solution, residual = np.zeros_like(right), math.inf, np.zeros_like(right), right
        for _ in range(_MOST_SOLVES):
            size = float(np.linalg.norm(residual * self._unit))
            if not size < 0.5 * smallest:
                break
            best, smallest = solution, size
            change, _ = lapack.dpotrs(self._factor, residual * self._unit, lower=1)
            solution = solution + change * self._unit
            inner = self._ratio_y * self._splitting.payoff_transpose_dot(solution)
            residual = right - self._ratio_x * solution - self._splitting.payoff_dot(inner)
        return best

    def _direction(self, aim_x: np.ndarray, aim_y: np.ndarray) -> tuple[np.ndarray | float, ...] | None:
        """Changes of ``x, y, loss_x, loss_y`` and of the bounds, such that the products change by the aims.

        The losses are carried along, and what rounding has put between them and the strategies is taken back here.
        """
        splitting, ratio_y = self._splitting, self._ratio_y
        drift_x, drift_y = self._cost - self._lower - self._loss_x, self._upper - self._gain - self._loss_y
        free_y = ratio_y * (aim_y / self.y - drift_y)
        fixed = self._solve(aim_x / self.x - drift_x - splitting.payoff_dot(free_y))
        gain_lower, gain_upper, gain_fixed = map(
            splitting.payoff_transpose_dot, (self._towards_lower, self._towards_upper, fixed)
        )
        # The bounds move such that both strategies keep a sum of one.
        totals = np.array(
            [
                [self._towards_lower.sum(), self._towards_upper.sum()],
                [ratio_y @ gain_lower, ratio_y @ gain_upper - ratio_y.sum()],
            ]
        )
        missing = np.array([1.0 - self.x.sum() - fixed.sum(), 1.0 - self.y.sum() - free_y.sum() - ratio_y @ gain_fixed])
        try:
            lower, upper = np.linalg.solve(totals, missing)
        except np.linalg.LinAlgError:
            return None
        dx = fixed + lower * self._towards_lower + upper * self._towards_upper
        dgain = gain_fixed + lower * gain_lower + upper * gain_upper
        dy = free_y + ratio_y * (dgain - upper)
        dloss_x, dloss_y = splitting.payoff_dot(dy) - lower + drift_x, upper - dgain + drift_y
        changes = dx, dy, dloss_x, dloss_y, float(lower), float(upper)
        return changes if all(np.isfinite(change).all() for change in changes) else None


def _room_of(now: np.ndarray, change: np.ndarray) -> float:
    falling = change < 0
    return float((now[falling] / -change[falling]).min(initial=math.inf))
