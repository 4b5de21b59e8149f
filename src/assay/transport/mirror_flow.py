r"""The density that infinitely many particles of the mirror dynamics have, on an interval.

.. math:: \partial_t\mu = \lambda\,\partial_x\Bigl(\mu H^{-1}\,\partial_x\log\frac{\mu}{\hat\mu}\Bigr), \qquad
          \hat\mu \propto \exp\Bigl(-\frac1\lambda\frac{\delta F}{\delta\mu}(\mu)\Bigr)

Finite volumes keep the structure: the flux between two cells is the difference of :math:`\mu/\hat\mu`, with a
conductance of the metric at the face. Backward Euler steps then keep the mass, and the densities positive, for every
step size. The generator at the fixed point is symmetric with respect to it, and its smallest positive eigenvalue is a
linear rate of the flow that is computed, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.linalg import eigh_tridiagonal, solve_banded

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.transport.langevin_residual import linear_rate
from assay.validation import as_float_array, check_choice, check_integer, check_real, warn_not_converged

__all__ = ["FlowResult", "mirror_flow_1d"]

# The fixed point is found when the divergence from its own Gibbs law is below this, and given up after so many steps.
_FIXED = 1e-15
_MOST_STEPS = 2000

# The part of the decay that is fitted: below the first and above the second share of the objective at the start.
_LATE = 1e-4
_ROUNDING = 1e-10


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FlowResult(Result):
    r"""What :func:`mirror_flow_1d` returns, with ``n`` cells.

    Attributes
    ----------
    edges : numpy.ndarray of shape (n + 1,)
        Ends of the cells.
    centers : numpy.ndarray of shape (n,)
        Their midpoints.
    density : numpy.ndarray of shape (n,)
        Density at the end.
    stationary : numpy.ndarray of shape (n,)
        Density of the fixed point.
    objective : numpy.ndarray of shape (n_steps + 1,)
        :math:`F + \lambda\,\mathrm{Ent}` after every step; nan without a functional.
    excess : numpy.ndarray of shape (n_steps + 1,)
        Objective minus that of the fixed point; without a functional :math:`\lambda\,\mathrm{KL}(\mu_t|\mu^*)`, which
        is at most that.
    time : numpy.ndarray of shape (n_steps + 1,)
        When.
    gap : float
        Smallest positive eigenvalue of :math:`-\nabla\cdot(\mu^* H^{-1}\nabla\,\cdot)` relative to :math:`\mu^*`.
    rate : float
        Fitted rate of the late decay of ``excess``; nan if there is too little of it.
    """

    edges: Float[np.ndarray, " faces"]
    centers: Float[np.ndarray, " cells"]
    density: Float[np.ndarray, " cells"]
    stationary: Float[np.ndarray, " cells"]
    objective: Float[np.ndarray, " times"]
    excess: Float[np.ndarray, " times"]
    time: Float[np.ndarray, " times"]
    gap: float
    rate: float


def mirror_flow_1d(
    first_variation: Callable[[Any, Any], Any],
    grid: int | ArrayLike,
    init: ArrayLike | Callable[[Any], Any],
    *,
    temperature: float,
    barrier: str | Callable[[Any], Any] = "log",
    dt: float = 0.25,
    n_steps: int = 1000,
    functional: Callable[[Any, Any], Any] | None = None,
) -> FlowResult:
    r"""Density flow of mirror mean-field Langevin dynamics on an interval, and its linear rate.

    Parameters
    ----------
    first_variation : callable
        ``first_variation(x, mass)`` returns :math:`\frac{\delta F}{\delta\mu}(\mu)` at the midpoints ``x`` of the
        cells, for a law with these masses in them.
    grid : int or array_like of shape (n + 1,)
        Number of equal cells of (0, 1), at least 3, or the increasing ends of cells of another interval.
    init : array_like of shape (n,) or callable
        Density at the start, or a function of the midpoints; it is scaled to mass one.
    temperature : float
        :math:`\lambda`, positive.
    barrier : {"log", "entropy"} or callable, default="log"
        Barrier of the interval, or its second derivative as a function of the place.
    dt : float, default=0.25
        Step size.
    n_steps : int, default=1000
        Number of steps.
    functional : callable, optional
        ``functional(x, mass)`` returns :math:`F(\mu)`, for the objective.

    Returns
    -------
    FlowResult
        With certificates: the mass is one and the density not negative; the sandwich
        :math:`\lambda\mathrm{KL}(\mu|\mu^*) \le L(\mu) - L^* \le \lambda\mathrm{KL}(\mu|\hat\mu)` along the flow (with
        a functional); and the fitted rate is at least :math:`2\lambda` times the gap, less 2 %.

    Raises
    ------
    TypeError, ValueError
        For a grid that does not increase, a density that is negative or has no mass, or options out of range.

    Warns
    -----
    ConvergenceWarning
        If the fixed point was not found.

    Notes
    -----
    ``O(n)`` per step, and ``O(n)`` for the eigenvalue. Linearizing the flow at :math:`\mu^*` gives
    :math:`-\lambda A - A K` with the generator :math:`A` and the second variation :math:`K` of the functional, which is
    positive semidefinite because the functional is convex. It can only add to the rate that the gap gives.

    References
    ----------
    Mirror Mean-Field Langevin Dynamics. ICML 2026, arXiv:2505.02621.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import mirror_flow_1d
    >>> flow = mirror_flow_1d(
    ...     lambda x, mass: (mass @ x - 0.8) * x,
    ...     200,
    ...     lambda x: np.exp(-0.5 * ((x - 0.3) / 0.08) ** 2),
    ...     temperature=0.05,
    ...     n_steps=1200,
    ...     functional=lambda x, mass: 0.5 * (mass @ x - 0.8) ** 2,
    ... )
    >>> round(flow.gap, 4), flow.rate > 2 * 0.05 * flow.gap, flow.certified
    (0.3848, True, True)
    """
    for function, name in ((first_variation, "first_variation"), (functional, "functional")):
        if not callable(function) and not (function is None and name == "functional"):
            raise TypeError(f"{name} must be callable, got {function!r}")
    edges = _edges(grid)
    cells = _Cells(edges, barrier)
    mass = _masses(init, cells)
    heat, step = check_real(temperature, "temperature", above=0.0), check_real(dt, "dt", above=0.0)
    n_steps = check_integer(n_steps, "n_steps", minimum=0)

    def potential(masses: np.ndarray) -> np.ndarray:
        values = as_float_array(first_variation(cells.centers, masses), "first_variation", ndim=1)
        if values.shape != masses.shape:
            raise ValueError(f"first_variation must return one number per cell, {len(masses)}, got {len(values)}")
        return values

    def objective(masses: np.ndarray) -> float:
        if functional is None:
            return float("nan")
        value = check_real(functional(cells.centers, masses), "functional")
        return value + heat * cells.entropy(masses)

    laws, gibbs = [mass], [cells.gibbs(potential(mass), heat)]
    for _ in range(n_steps):
        mass = cells.implicit_step(mass, gibbs[-1], step * heat)
        laws.append(mass)
        gibbs.append(cells.gibbs(potential(mass), heat))
    stationary = _fixed_point(mass, potential, cells, heat, step)
    values = np.array([objective(law) for law in laws])
    below = heat * np.array([_divergence(law, stationary) for law in laws])
    above = heat * np.array([_divergence(law, target) for law, target in zip(laws, gibbs, strict=True)])
    excess = below if functional is None else values - objective(stationary)
    time = step * np.arange(n_steps + 1)
    gap = cells.spectral_gap(stationary)
    rate = _late_rate(time, excess)
    return FlowResult(
        edges=edges,
        centers=cells.centers,
        density=mass / cells.widths,
        stationary=stationary / cells.widths,
        objective=values,
        excess=excess,
        time=time,
        gap=gap,
        rate=rate,
        certificates=_certificates(mass, below, excess, above, functional is not None, rate, gap, heat, step),
        history={"time": time, "objective": values, "excess": excess, "lower": below, "upper": above},
    )


class _Cells:
    """The interval cut into cells.

    Parameters
    ----------
    edges : array of shape (n + 1,)
        Ends of the cells.
    barrier : str or callable
        As for :func:`mirror_flow_1d`.
    """

    def __init__(self, edges: Float[np.ndarray, " faces"], barrier: str | Callable[[Any], Any]):
        self.widths = np.diff(edges)
        self.centers = 0.5 * (edges[:-1] + edges[1:])
        faces = edges[1:-1]
        if callable(barrier):
            metric = as_float_array(barrier(faces), "barrier", ndim=1)
            if metric.shape != faces.shape or not np.all(metric > 0.0):
                raise ValueError("barrier must return one positive second derivative per place")
        else:
            check_choice(barrier, "barrier", ("log", "entropy"))
            left, right = faces - edges[0], edges[-1] - faces
            metric = left**-2 + right**-2 if barrier == "log" else (1.0 / left + 1.0 / right) / (edges[-1] - edges[0])
        self.mobility = 1.0 / (metric * np.diff(self.centers))

    def gibbs(self, potential: np.ndarray, temperature: float) -> np.ndarray:
        """Masses of the Gibbs law."""
        weights = self.widths * np.exp((potential.min() - potential) / temperature)
        return weights / weights.sum()

    def entropy(self, mass: np.ndarray) -> float:
        positive = mass > 0.0
        return float(np.sum(mass[positive] * np.log(mass[positive] / self.widths[positive])))

    def conductances(self, target: np.ndarray) -> np.ndarray:
        """What flows from a cell to the next per difference of the densities relative to the target."""
        height = target / self.widths
        return np.sqrt(height[:-1] * height[1:]) * self.mobility

    def implicit_step(self, mass: np.ndarray, target: np.ndarray, length: float) -> np.ndarray:
        """Solve ``new - length * G(new / target) = mass`` for a generator ``G`` with column sums zero."""
        flow = length * self.conductances(target)
        # Unknown is new / target: the matrix is symmetric, diagonally dominant, and its inverse not negative.
        bands = np.zeros((3, len(mass)))
        bands[1] = target
        bands[1, :-1] += flow
        bands[1, 1:] += flow
        bands[0, 1:] = bands[2, :-1] = -flow
        new = target * solve_banded((1, 1), bands, mass)
        return new * (mass.sum() / new.sum())

    def spectral_gap(self, target: np.ndarray) -> float:
        """Smallest positive eigenvalue of the generator, symmetric after scaling by the root of its law."""
        flow = self.conductances(target)
        out = np.zeros(len(target))
        out[:-1] += flow
        out[1:] += flow
        return float(
            eigh_tridiagonal(out / target, -flow / np.sqrt(target[:-1] * target[1:]), select="i", select_range=(1, 1))[
                0
            ][0]
        )


def _edges(grid: int | ArrayLike) -> np.ndarray:
    if isinstance(grid, int | np.integer):
        return np.linspace(0.0, 1.0, check_integer(grid, "grid", minimum=3) + 1)
    edges = as_float_array(grid, "grid", ndim=1).copy()
    if len(edges) < 4 or not np.all(np.diff(edges) > 0.0):
        raise ValueError("grid must be a number of cells, at least 3, or increasing ends of so many")
    return edges


def _masses(init: ArrayLike | Callable[[Any], Any], cells: _Cells) -> np.ndarray:
    density = as_float_array(init(cells.centers) if callable(init) else init, "init", ndim=1)
    if density.shape != cells.centers.shape:
        raise ValueError(f"init must have one entry per cell, {len(cells.centers)}, got {len(density)}")
    if density.min() < 0.0 or not density.sum() > 0.0:
        raise ValueError("init must be a non-negative density with positive mass")
    mass = density / density.max() * cells.widths
    return mass / mass.sum()


def _divergence(mass: np.ndarray, target: np.ndarray) -> float:
    """Kullback-Leibler divergence, as a sum of terms that are not negative, so that small values keep their digits."""
    positive = mass > 0.0
    p, q = mass[positive], target[positive]
    relative = (p - q) / q
    # p log(p/q) - p + q, by its series where the two cancel
    terms = np.where(
        np.abs(relative) < 1e-3,
        q * relative**2 * (0.5 - relative / 6.0 + relative**2 / 12.0),
        p * np.log(p / q) - p + q,
    )
    return float(terms.sum() + target[~positive].sum())


def _fixed_point(
    mass: np.ndarray,
    potential: Callable[[np.ndarray], np.ndarray],
    cells: _Cells,
    temperature: float,
    dt: float,
) -> np.ndarray:
    """Go on with the flow, in steps that grow as long as the divergence from the Gibbs law falls."""
    target = cells.gibbs(potential(mass), temperature)
    distance = _divergence(mass, target)
    for _ in range(_MOST_STEPS):
        if distance <= _FIXED**2:
            break
        trial = cells.implicit_step(mass, target, dt * temperature)
        next_target = cells.gibbs(potential(trial), temperature)
        next_distance = _divergence(trial, next_target)
        if next_distance < distance:
            mass, target, distance, dt = trial, next_target, next_distance, 1.5 * dt
        elif distance <= _FIXED:  # rounding
            break
        else:
            dt *= 0.25
    if distance > _FIXED:
        warn_not_converged("mirror_flow_1d", _MOST_STEPS, distance, _FIXED, stacklevel=4)
    return target


def _late_rate(time: np.ndarray, excess: np.ndarray) -> float:
    start = excess[0]
    late = np.flatnonzero(excess <= _LATE * start)
    if not start > 0.0 or not len(late):
        return float("nan")
    return linear_rate(time[late[0] :], excess[late[0] :], floor=_ROUNDING * start)


def _certificates(
    mass: np.ndarray,
    below: np.ndarray,
    excess: np.ndarray,
    above: np.ndarray,
    has_objective: bool,
    rate: float,
    gap: float,
    temperature: float,
    dt: float,
) -> tuple[Certificate, ...]:
    found = [
        Certificate("distance of the mass from 1", abs(float(mass.sum()) - 1.0), 1e-12),
        Certificate("smallest mass of a cell", float(mass.min()), 0.0, ">="),
    ]
    if has_objective:
        rounding = 1e-12 * (1.0 + float(np.abs(above).max()))
        worst = float(np.max(np.maximum(below - excess, excess - above)))
        found.append(
            Certificate(
                "largest violation of temperature KL(law | fixed point) <= excess <= temperature KL(law | Gibbs law)",
                worst,
                rounding,
                assumptions=(Assumption("the functional is convex, and first_variation is its first variation"),),
            )
        )
    resolved = Assumption(
        "a step resolves the slowest mode: dt * temperature * gap <= 0.02", dt * temperature * gap <= 0.02
    )
    found.append(
        Certificate(
            "fitted rate of the late decay of the objective, against 2 * temperature * gap less 2 %",
            rate,
            2.0 * temperature * gap * 0.98,
            ">=",
            assumptions=(Assumption("the functional is convex"), resolved),
        )
    )
    return tuple(found)
