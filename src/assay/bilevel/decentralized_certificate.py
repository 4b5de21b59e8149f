r"""What a decentralised run promises: its result, both sides of every promise, and the law of its bias."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.bilevel.decentralized_stationarity import Stationarity
from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.validation import as_float_array

__all__ = ["DecentralizedResult", "bias_law", "judge_run"]

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
    messages_sent, bytes_sent : int
        Number and size of all messages between nodes.
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
    messages_sent: int
    bytes_sent: int
    n_gradients: int
    n_iter: int
    sigma: float
    smoothness: float
    status: str


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
    bytes_sent: int,
    most_bytes: int,
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
    bytes_sent, most_bytes : int
        Size of all messages, and of two vectors per link, direction and iteration (one without tracking).

    Returns
    -------
    tuple of Certificate
    """
    pl = Assumption("sigma f + g satisfies the Polyak-Lojasiewicz inequality for small sigma", None)
    order = Assumption("the bias is of an order of at least 1/2 in sigma: halvings agree", stationarity.is_in_order)
    if not math.isfinite(allowed):  # an infinite start promises nothing
        allowed = math.nan
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
        Certificate(
            f"bytes sent, {'one vector' if tracker_error is None else 'two vectors'} of d_x + 2 d_y numbers per link, "
            "direction and iteration",
            bytes_sent,
            most_bytes,
        ),
    ]
    if tracker_error is not None:
        promises.insert(
            4, Certificate("the mean tracker is the mean estimator, relative error", tracker_error, rounding)
        )
    if stationarity.exact is not None:
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
    >>> from assay.bilevel import bias_law
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
