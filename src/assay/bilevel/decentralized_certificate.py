r"""What a decentralised run promises, evaluated at the mean of its nodes and on all of their data.

Nothing here is read off the run but where it stopped. The lower level is solved further from there, to see how much
the run's own ``y`` and ``z`` lag behind, and again with a half and a quarter of the penalty parameter: if the bias is
of an order of at least 1/2 in :math:`\sigma`, the differences of the hypergradients bound it, so that the norm of the
true one is known up to that bound without a second derivative.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.bilevel.decentralized_oracle import MeanLosses
from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.validation import as_float_array

__all__ = [
    "DecentralizedResult",
    "ReportSettings",
    "Stationarity",
    "bias_law",
    "judge_run",
    "least_pl_ratio",
    "measure_stationarity",
]

# The factor of sigma^p with p >= 1/2 when sigma is halved, and all of sigma^p in terms of what a halving takes away.
_HALVING = 2.0**-0.5
_BIAS_FACTOR = 1.0 / (1.0 - _HALVING)

# Lower losses this close to the least one met, relative to the range, are too close for a ratio to it.
_SAME_LOSS = 1e-6

_LEAST_PL_SHARE = 1e-6
_LEAST_GAP = 1e-12


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class DecentralizedResult(Result):
    r"""Where a decentralised run stopped, and what is promised about it.

    Parameters
    ----------
    x, y, z : numpy.ndarray of shape (d_x,) and (d_y,)
        Means over the nodes.
    x_nodes : numpy.ndarray of shape (K, d_x)
        The ``x`` of every node.
    stationarity : float
        Squared norm of the exact hypergradient at ``x`` if it is known, else ``penalised_stationarity``. With bounds
        on ``x``, of the step of length 1 that stays within them.
    penalised_stationarity : float
        The same of the estimate with ``y`` and ``z`` refined at the end.
    bias : float
        Bound on the distance between the two hypergradients, from the penalty parameter and half of it.
    consensus : dict of str to float
        For ``"x"``, ``"y"`` and ``"z"``, mean over the nodes of the squared distance to their mean.
    lower_residual : float
        Norm of the gradient of the mean lower loss at ``z``.
    lower_gap : float
        Lower loss at ``y`` minus that at ``z``.
    pl_ratio : float
        Least :math:`\|\nabla_y g\|^2 / 2(g - g_{best})` that was met on the way from ``y0`` and from ``z`` to the
        bottom: an estimate, from above, of the modulus of the Polyak-Lojasiewicz inequality.
    spectral_gap : float
        Of the mixing matrix.
    bytes_sent : int
        Size of all messages between nodes.
    n_gradients : int
        Gradients of one loss at one node on one batch; what reports evaluated is not in it.
    n_iter : int
        Iterations since the start.
    sigma : float
        Penalty parameter at the end.
    smoothness : float
        Lipschitz constant of the gradient of the lower loss that default step sizes were taken from, nan if none was
        needed.
    status : {"converged", "budget", "stopped", "diverged"}
        Whether ``tol`` was reached, the iterations were used up, the callback stopped it, or it was given up.
    """

    x: Float[np.ndarray, " dx"]
    y: Float[np.ndarray, " dy"]
    z: Float[np.ndarray, " dy"]
    x_nodes: Float[np.ndarray, "nodes dx"]
    stationarity: float
    penalised_stationarity: float
    bias: float
    consensus: Mapping[str, float]
    lower_residual: float
    lower_gap: float
    pl_ratio: float
    spectral_gap: float
    bytes_sent: int
    n_gradients: int
    n_iter: int
    sigma: float
    smoothness: float
    status: str


@dataclass(frozen=True, eq=False)
class Stationarity:
    """The hypergradient at one ``x``, estimated three ways.

    Parameters
    ----------
    refined : float
        Norm with ``y`` and ``z`` refined.
    halvings : tuple of float
        How far it moves when the penalty parameter is halved, and halved again.
    lag : float
        Distance to the estimate with ``y`` and ``z`` as they were.
    exact : float
        Norm of the exact one, nan if it is not known.
    """

    refined: float
    halvings: tuple[float, float]
    lag: float
    exact: float

    @property
    def bias(self) -> float:
        """Bound on the distance to the exact hypergradient: the first halving, and all that may follow."""
        return self.halvings[0] + _BIAS_FACTOR * self.halvings[1]

    @property
    def is_in_order(self) -> bool:
        """Whether the second halving moved it less than the first one, as much as the bound takes for granted."""
        return self.halvings[1] <= _HALVING * self.halvings[0] + 1e-9 * self.refined

    @property
    def bound(self) -> float:
        """Bound on the square of the exact norm."""
        return (self.refined + self.bias) ** 2


@dataclass(frozen=True, eq=False)
class ReportSettings:
    """What a report needs to know about a run."""

    sigma: float
    gamma_y: float
    gamma_z: float
    refine_steps: int
    bounds: tuple[np.ndarray, np.ndarray] | None
    true_hypergradient: Callable[[np.ndarray], Any] | None

    def move(self, x: Float[np.ndarray, " dx"], gradient: Float[np.ndarray, " dx"]) -> Float[np.ndarray, " dx"]:
        """How far a step of length 1 goes against the gradient: the gradient itself where nothing bounds it."""
        return gradient if self.bounds is None else x - np.clip(x - gradient, *self.bounds)

    def exact(self, x: Float[np.ndarray, " dx"]) -> Float[np.ndarray, " dx"] | None:
        """The same for the exact hypergradient, if it is known."""
        if self.true_hypergradient is None:
            return None
        return self.move(x, np.asarray(self.true_hypergradient(x)[1], dtype=np.float64))


def measure_stationarity(
    losses: MeanLosses,
    settings: ReportSettings,
    x: Float[np.ndarray, " dx"],
    y: Float[np.ndarray, " dy"],
    z: Float[np.ndarray, " dy"],
    *,
    n_halvings: int = 2,
) -> Stationarity:
    """Estimate the hypergradient at the means, with the lower level as it is and refined.

    Parameters
    ----------
    losses : MeanLosses
        Mean losses on all data.
    settings : ReportSettings
        Penalty parameter, step sizes, and what else is known.
    x, y, z : numpy.ndarray
        Means over the nodes.
    n_halvings : int, default=2
        How often to halve the penalty parameter; with less than 2, the bias is not known.

    Returns
    -------
    Stationarity
    """
    sigma = settings.sigma

    def refined_y(start: np.ndarray, parameter: float) -> np.ndarray:
        return _descend(lambda point: losses.penalised(x, point, parameter), start, settings.gamma_y, settings)

    best_z = _descend(lambda point: losses.lower(x, point), z, settings.gamma_z, settings)
    best_y = refined_y(y, sigma)
    estimates = [losses.hypergradient(x, best_y, best_z, sigma)]
    for _ in range(n_halvings):
        best_y, sigma = refined_y(best_y, 0.5 * sigma), 0.5 * sigma
        estimates.append(losses.hypergradient(x, best_y, best_z, sigma))
    now = settings.move(x, losses.hypergradient(x, y, z, settings.sigma))
    moves = [settings.move(x, estimate) for estimate in estimates]
    distances = [float(np.linalg.norm(after - before)) for before, after in itertools.pairwise(moves)]
    exact = settings.exact(x)
    return Stationarity(
        refined=float(np.linalg.norm(moves[0])),
        halvings=(distances[0], distances[1]) if n_halvings >= 2 else (math.nan, math.nan),
        lag=float(np.linalg.norm(moves[0] - now)),
        exact=math.nan if exact is None else float(np.linalg.norm(exact)),
    )


def _descend(
    loss: Callable[[np.ndarray], Any], start: Float[np.ndarray, " dy"], step: float, settings: ReportSettings
) -> Float[np.ndarray, " dy"]:
    """Accelerated gradient steps, which start anew whenever they would go uphill."""
    point = ahead = start.copy()
    momentum = 1.0
    for _ in range(settings.refine_steps):
        slope = loss(ahead).y
        moved = ahead - step * slope
        if float(slope @ (moved - point)) > 0.0:
            momentum = 1.0
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
        ahead = moved + (momentum - 1.0) / following * (moved - point)
        point, momentum = moved, following
    return point


def least_pl_ratio(
    losses: MeanLosses,
    settings: ReportSettings,
    x: Float[np.ndarray, " dx"],
    starts: tuple[np.ndarray, ...],
) -> float:
    """Least ratio of the squared gradient to twice the excess of the lower loss, on the way down from some points.

    A way that ends in a stationary point above another one has a ratio near 0 there.
    """
    slopes, heights = [], []

    def seen(point: np.ndarray) -> Any:
        found = losses.lower(x, point)
        slopes.append(float(found.y @ found.y))
        heights.append(found.value)
        return found

    for start in starts:
        seen(_descend(seen, start, settings.gamma_z, settings))
    excess = np.array(heights) - min(heights)
    far = excess > _SAME_LOSS * max(excess.max(), np.finfo(float).tiny)
    far &= excess > 1e-13 * (1.0 + abs(min(heights)))
    return float((np.array(slopes)[far] / (2.0 * excess[far])).min()) if far.any() else math.inf


def judge_run(
    *,
    stationarity: Stationarity,
    allowed: float,
    penalised_at_y: float,
    penalised_at_z: float,
    disagreement: float,
    consensus_tol: float,
    tracker_error: float | None,
    motion_error: float,
    rounding: float,
    pl_ratio: float,
    smoothness: float,
    gap: float,
) -> tuple[Certificate, ...]:
    """Put both sides of every promise side by side.

    Parameters
    ----------
    stationarity : Stationarity
        At the mean of the nodes.
    allowed : float
        What the squared hypergradient may be.
    penalised_at_y, penalised_at_z : float
        ``sigma f + g`` at the two.
    disagreement : float
        Largest mean squared distance of the nodes to their mean, relative to 1 plus the square of the mean.
    consensus_tol : float
        What that may be.
    tracker_error, motion_error : float
        By how much the mean tracker is not the mean estimator (None without tracking), and the mean state does not move
        along it, both relative to the estimators.
    rounding : float
        What these may be in the precision at hand.
    pl_ratio, smoothness : float
        Estimated modulus and Lipschitz constant of the lower loss.
    gap : float
        Spectral gap of the mixing matrix.

    Returns
    -------
    tuple of Certificate
    """
    pl = Assumption("sigma f + g satisfies the Polyak-Lojasiewicz inequality for small sigma", None)
    order = Assumption("the bias is of an order of at least 1/2 in sigma: halvings agree", stationarity.is_in_order)
    promises = [
        Certificate(
            "squared norm of the hypergradient at the mean x, with the bias of the penalty",
            stationarity.bound,
            allowed,
            assumptions=(pl, order),
        ),
        Certificate(
            "squared distance of the hypergradients with the y and z of the run and with refined ones",
            stationarity.lag**2,
            allowed,
            assumptions=(pl,),
        ),
        Certificate(
            "sigma f + g at y, which minimises it, at most that at z, which minimises g",
            penalised_at_y,
            penalised_at_z + 1e-9 * (1.0 + abs(penalised_at_z)),
        ),
        Certificate(
            "mean squared disagreement of the nodes on x, y and z, relative to 1 plus the squared mean",
            disagreement,
            consensus_tol,
        ),
        Certificate("the mean state moves along the mean estimator, relative error", motion_error, rounding),
        Certificate(
            "least ratio in the Polyak-Lojasiewicz inequality that was met, against 1e-6 of the smoothness",
            pl_ratio,
            _LEAST_PL_SHARE * smoothness,
            ">=",
        ),
        Certificate("spectral gap of the mixing matrix", gap, _LEAST_GAP, ">="),
    ]
    if tracker_error is not None:
        promises.insert(
            4, Certificate("the mean tracker is the mean estimator, relative error", tracker_error, rounding)
        )
    if not math.isnan(stationarity.exact):
        promises.insert(
            1,
            Certificate(
                "squared norm of the exact hypergradient, at most what the first-order estimate and its bias say",
                stationarity.exact**2,
                stationarity.bound * (1.0 + 1e-9) + 1e-18,
                assumptions=(order,),
            ),
        )
    return tuple(promises)


def bias_law(sigmas: ArrayLike, stationarities: ArrayLike) -> tuple[float, float, Certificate]:
    r"""Fit how the stationarity of converged runs falls with the penalty parameter: :math:`C \sigma^p`.

    Parameters
    ----------
    sigmas : array_like of shape (n,)
        At least 2 different penalty parameters.
    stationarities : array_like of shape (n,)
        Squared norms of the exact hypergradient where the runs stopped.

    Returns
    -------
    C, slope : float
        Least-squares fit of the logarithms.
    certificate : Certificate
        That the slope is 2 within 1/2.

    Raises
    ------
    ValueError
        If the arrays differ in length, have fewer than 2 different entries, or one that is not positive.

    Examples
    --------
    >>> from assay.bilevel.decentralized_certificate import bias_law
    >>> C, slope, certificate = bias_law([0.2, 0.05], [5.7e-2, 4.8e-3])
    >>> print(f"{slope:.2f} {certificate.holds}")
    1.78 True
    """
    abscissae = as_float_array(sigmas, "sigmas", ndim=1)
    ordinates = as_float_array(stationarities, "stationarities", ndim=1)
    if abscissae.shape != ordinates.shape or len(np.unique(abscissae)) < 2:
        raise ValueError(
            "sigmas and stationarities must have equal length and at least 2 different sigmas, "
            f"got shapes {abscissae.shape} and {ordinates.shape}"
        )
    for name, entries in (("sigmas", abscissae), ("stationarities", ordinates)):
        if entries.min() <= 0.0:
            raise ValueError(f"{name} must be greater than 0, got {entries.min():g}")
    slope, constant = np.polyfit(np.log(abscissae), np.log(ordinates), 1)
    promise = Certificate("distance of the slope of the bias law from 2", abs(float(slope) - 2.0), 0.5)
    return float(math.exp(constant)), float(slope), promise
