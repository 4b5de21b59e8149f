"""Rows of a history and the final report, from the states of the nodes and their losses on all data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.bilevel.decentralized_certificate import DecentralizedResult, judge_run
from assay.bilevel.decentralized_oracle import MeanLosses
from assay.bilevel.decentralized_setup import estimate_smoothness
from assay.bilevel.decentralized_states import NodeStates, as_vector
from assay.bilevel.decentralized_stationarity import ReportSettings, Stationarity, least_pl_ratio

__all__ = ["history_row", "report_run"]


def history_row(nodes: NodeStates, losses: MeanLosses, settings: ReportSettings, scale: float) -> dict[str, float]:
    """What is recorded about one iteration, at the means of the nodes as they are."""
    network, blocks = losses.network, losses.oracle.blocks
    x, y, z = nodes.means(network, blocks)
    upper, at_y, at_z = losses.upper(x, y), losses.lower(x, y), losses.lower(x, z)
    move = settings.move(x, upper.x + (at_y.x - at_z.x) / settings.sigma)
    row = {
        "sigma": settings.sigma,
        "upper_loss": upper.value,
        "stationarity": float(move @ move),
        "lower_residual": float(np.linalg.norm(at_z.y)),
        "lower_gap": at_y.value - at_z.value,
        **{f"consensus_{name}": value for name, value in nodes.consensus(network, blocks).items()},
        "tracker_error": nodes.tracker_error(network, scale),
    }
    exact = settings.exact(x)
    return row if exact is None else row | {"true_stationarity": float(exact @ exact)}


def report_run(
    nodes: NodeStates,
    losses: MeanLosses,
    settings: ReportSettings,
    stationarity: Stationarity,
    *,
    start: Float[np.ndarray, " dy"],
    allowed: float,
    consensus_tol: float,
    smoothness: float,
    scale: float,
    most_bytes: int,
    history: Mapping[str, Sequence[float]],
    counts: Mapping[str, Any],
) -> DecentralizedResult:
    """Evaluate every promise where a run stopped.

    Parameters
    ----------
    nodes, losses, settings
        States of the nodes, their mean losses, and how to refine.
    stationarity : Stationarity
        At the mean of the nodes.
    start : numpy.ndarray of shape (d_y,)
        Where ``y`` started.
    allowed : float
        What the squared hypergradient may be.
    consensus_tol, smoothness, scale : float
        As in :func:`judge_run`; nan if the smoothness is not known, and the size of the first estimators.
    most_bytes : int
        What nodes may have sent.
    history : mapping of str to sequence of float
        All rows so far.
    counts : mapping
        Further fields of the result.
    """
    network, blocks = losses.network, losses.oracle.blocks
    x, y, z = nodes.means(network, blocks)
    at_y, at_z = losses.lower(x, y), losses.lower(x, z)
    penalised = [losses.penalised(x, point, settings.sigma).value for point in (y, z)]
    consensus = nodes.consensus(network, blocks)
    sizes = {"x": x, "y": y, "z": z}
    traffic = network.traffic()
    pl_ratio = least_pl_ratio(losses, settings, x, (start, z))
    tracker_errors = [*history["tracker_error"], nodes.tracker_error(network, scale)]
    certificates = judge_run(
        stationarity=stationarity,
        allowed=allowed,
        penalised_at_y=penalised[0],
        penalised_at_z=penalised[1],
        disagreement=max(consensus[name] / (1.0 + float(mean @ mean)) for name, mean in sizes.items()),
        consensus_tol=consensus_tol,
        tracker_error=None if nodes.trackers is None else float(np.max(tracker_errors)),
        motion_error=float(np.max(history["motion_error"])),
        rounding=1e-10 if nodes.is_double else 1e-3,
        pl_ratio=pl_ratio,
        smoothness=estimate_smoothness(losses, x, z) if math.isnan(smoothness) else smoothness,
        gap=network.spectral_gap,
        bytes_sent=traffic[1],
        most_bytes=most_bytes,
    )
    exact = stationarity.exact
    return DecentralizedResult(
        x=x,
        y=y,
        z=z,
        x_nodes=as_vector(network.gather(nodes.states[:, blocks[0]])),
        stationarity=stationarity.refined**2 if exact is None else exact**2,
        penalised_stationarity=stationarity.refined**2,
        bias=stationarity.bias,
        consensus=consensus,
        lower_residual=float(np.linalg.norm(at_z.y)),
        lower_gap=at_y.value - at_z.value,
        pl_ratio=pl_ratio,
        spectral_gap=network.spectral_gap,
        messages_sent=traffic[0],
        bytes_sent=traffic[1],
        sigma=settings.sigma,
        smoothness=smoothness,
        certificates=certificates,
        history={name: np.array(column) for name, column in history.items()},
        **counts,
    )
