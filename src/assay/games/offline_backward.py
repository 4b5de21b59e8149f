"""From the last step of a logged Markov game to the first: regress, solve every stage game, take its value back.

How stage games are solved is a function that is passed in; the rest, certificates included, is the same for all.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.games.markov_policies import as_betas
from assay.games.offline_certificate import (
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
from assay.games.offline_result import OfflineNashResult
from assay.games.offline_values import ActionValues, ValueRegression, value_regression
from assay.games.stage_equilibrium import StageSolution, half_ranges, stage_gaps, stage_values
from assay.validation import as_float_array

__all__ = ["OfflineProblem", "learn_backward"]

Watch = Callable[[int, float], object]
StageSolver = Callable[[int, np.ndarray, np.ndarray, np.ndarray, Watch | None], StageSolution]


@dataclass(frozen=True)
class OfflineProblem:
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
    ) -> OfflineProblem:
        """Check what the public functions were called with; see :func:`~assay.games.offline_markov.rose`."""
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
class _Pass:
    """What one pass from the last step to the first found."""

    mu: np.ndarray
    nu: np.ndarray
    V: np.ndarray
    values: list[ActionValues]
    n_iter: np.ndarray
    rows: list[tuple[int, int, float, float]]


def _go_backward(problem: OfflineProblem, data: OfflineGameData, solve: StageSolver, started: float | None) -> _Pass:
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
    return _Pass(mu, nu, V, values, n_iter, rows)


def learn_backward(
    problem: OfflineProblem,
    solve: StageSolver,
    schedule: str,
    estimate_coverage: bool | None,
    split_half: bool,
    *,
    tol: float | None = None,
    eta: float | None = None,
    contracts: bool = False,
) -> OfflineNashResult:
    """Learn policies from all data, and evaluate what is promised about them.

    Parameters
    ----------
    problem : OfflineProblem
        Checked arguments.
    solve : callable
        ``solve(step, payoffs, mu_refs, nu_refs, watch)`` returns a :class:`StageSolution`.
    schedule : str
        Name of the solver, for the result.
    estimate_coverage : bool or None
        Whether to estimate concentrability; None where it is affordable.
    split_half : bool
        Whether to judge policies of half of the data by the other half.
    tol : float, optional
        Gap that every stage game should have.
    eta : float, optional
        Constant step size of self-play, where it was given.
    contracts : bool, default=False
        Whether the contraction of self-play is promised.

    Returns
    -------
    OfflineNashResult

    Raises
    ------
    TypeError
        If a switch is not True or False.
    """
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
        policy_at=None if data.state_features is None else _PolicyAt(problem, found.values, solve),
        certificates=tuple(certificates),
        history={
            name: np.array(column)
            for name, column in zip(("step", "iteration", "gap", "seconds"), columns, strict=True)
        },
    )


def _split_half(problem: OfflineProblem, solve: StageSolver) -> tuple[float, float]:
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


class _PolicyAt:
    """Stage games of new states, given by their features. The same call has the same answer, and can be pickled."""

    def __init__(self, problem: OfflineProblem, values: list[ActionValues], solve: StageSolver):
        self.n_features = problem.data.state_features.shape[1]
        self.references = problem.mu_ref.at, problem.nu_ref.at
        self.predictions = [one.predict for one in values]
        self.solve = copy.deepcopy(solve)  # with the random numbers as they are now

    def __call__(self, h: int, states: Any) -> tuple[np.ndarray, np.ndarray]:
        features = as_float_array(states, "states", ndim=(1, 2))
        rows = np.atleast_2d(features)
        if rows.shape[1] != self.n_features:
            raise ValueError(f"states must be finite rows of {self.n_features} features, got shape {features.shape}")
        mu_refs, nu_refs = (reference(h, rows) for reference in self.references)
        found = copy.deepcopy(self.solve)(h, self.predictions[h](rows), mu_refs, nu_refs, None)
        return (found.mu[0], found.nu[0]) if features.ndim == 1 else (found.mu, found.nu)
