r"""The mixture closest to a measure, by a hierarchy of semidefinite programs.

How many components, where, and how far is the best mixture of a family from these data? Over all mixing measures at
once the question is a linear program over measures, and with moments in place of measures a semidefinite program. Each
level of the hierarchy bounds the distance to the *whole* family from below; when the moment matrix of the mixing
measure is flat, its atoms are read off, and their number is the number of components. No number of components goes in,
and there are no restarts.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.extras import import_extra
from assay.result import Result, to_jsonable
from assay.transport.atom_extraction import Atoms
from assay.transport.mixture_certificates import mixture_certificates
from assay.transport.mixture_distance import (
    sampled_transport,
    total_variation_on_line,
    transport_of_sample,
    transport_of_target,
)
from assay.transport.mixture_level import ZERO, Level, rank_step, solve_level
from assay.transport.mixture_problem import MixtureProblem, prepare_mixture_problem
from assay.transport.moment_matrices import Polynomial, evaluate_monomials
from assay.transport.moment_relaxation import LevelSize, level_size
from assay.transport.sample_files import read_moments, read_points
from assay.validation import ConvergenceWarning, as_generator, check_choice, check_integer, check_real

__all__ = ["MixtureResult", "closest_mixture"]

# Highest order by default, by the dimension of the data.
DEFAULT_ORDER = {1: 4, 2: 3, 3: 2}

# Weight of the tie-break when low moments determine the mixing measure, and when they do not.
TIE_BREAK = {True: 1e-6, False: 1e-4}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MixtureResult(Result):
    """What :func:`closest_mixture` returns.

    Attributes
    ----------
    weights : numpy.ndarray of shape (n_components,)
        Weights of the components; empty when no level was flat.
    params : numpy.ndarray of shape (n_components, n_params)
        Parameter of each component, in the units of the data.
    order : int
        Level that this is the answer of.
    value : float
        Value of the relaxation at the returned moments, without the tie-break: squared Wasserstein distance in the
        units of the data, or total variation.
    lower : float
        No mixture of the family is closer than this: the best bound over the levels. It is computed from dual
        multipliers, not from ``value``, which is above the optimum of the relaxation.
    upper : float
        Distance of the returned mixture to the measure; nan when the measure is known by its moments alone, when there
        is no mixture, or when the family does not say enough.
    upper_se : float
        Standard error of ``upper``, 0 where it is exact.
    relative_gap : float
        ``(upper - lower) / upper``.
    value_sd : float
        Standard deviation of the value over samples like this one, to first order: that of the mean of the dual
        polynomial over the points. nan without data.
    ranks : tuple of int
        Ranks of the moment matrix of the mixing measure of orders 0 to ``order``.
    flat : bool
        Whether the rank condition holds.
    residual : float
        Largest difference of a moment of the measure and of the mixture up to degree ``2 * order``, in scaled units; of
        the relaxation when there is no mixture.
    in_family : bool
        Whether the measure is, by its moments, the returned mixture: value and residual are at most 1e-6.
    status : {"flat", "loose", "not_flat"}
        Whether the rank condition holds. ``"loose"``: it does, but the relaxation puts the distance to its mixture at 0
        although their moments differ; the order is too low, and the mixture a candidate at best. ``value`` and
        ``lower`` are valid in any case.
    distance : {"W2", "TV"}
        The distance.
    family : object
        The family.
    bounds : numpy.ndarray of shape (n_params, 2)
        Box of the parameters.
    shift, scale : numpy.ndarray of shape (dim,) and float
        Scaled data are ``(x - shift) / scale``.
    moments : numpy.ndarray
        Moments of the mixing measure, in scaled parameters, in graded order.
    problem : cvxpy.Problem
        The last semidefinite program, for inspection.
    history : dict
        One row per level: ``order``, ``value``, ``lower``, ``rank``, ``flat``, ``largest_block`` (rows of the largest
        semidefinite matrix), ``n_variables``, ``n_equations``, ``n_bytes`` (estimate of the memory needed),
        ``seconds_build``, ``seconds_solve``.
    """

    weights: Float[np.ndarray, " components"]
    params: Float[np.ndarray, "components params"]
    order: int
    value: float
    lower: float
    upper: float
    upper_se: float
    relative_gap: float
    value_sd: float
    ranks: tuple[int, ...]
    flat: bool
    residual: float
    in_family: bool
    status: str
    distance: str
    family: Any
    bounds: Float[np.ndarray, "params 2"]
    shift: Float[np.ndarray, " dim"]
    scale: float
    moments: Float[np.ndarray, " monomials"]
    problem: Any = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """All fields but the semidefinite program, as JSON-ready types."""
        names = [name for name in self.__dataclass_fields__ if name != "problem"]
        return {name: to_jsonable(getattr(self, name)) for name in names}


def closest_mixture(
    moments: Mapping | ArrayLike | str | os.PathLike | None = None,
    *,
    data: Any = None,
    target: Any = None,
    family: Any = "gaussian",
    distance: str = "W2",
    order: int | None = None,
    order_max: int | None = None,
    params: Mapping[str, Any] | None = None,
    bounds: ArrayLike | None = None,
    constraints: Sequence[Polynomial] = (),
    rank_tol: float | None = None,
    trace_weight: float | None = None,
    solver: str = "CLARABEL",
    polish: bool = True,
    upper_samples: int = 2000,
    memory_limit: float | None = None,
    rng: Any = 0,
) -> MixtureResult:
    r"""Mixture of a parametric family that is closest to a measure, with a proved lower bound on the distance.

    .. math:: \min_{\phi \in \mathcal P(S)} D\Big(\mu, \int f(\cdot\,; \theta)\, d\phi(\theta)\Big), \qquad
              D \in \{W_2^2, \mathrm{TV}\}, \quad S = \{\theta : g_j(\theta) \ge 0\}

    The mixing measure :math:`\phi` may be any probability on the compact set S. Level n of the hierarchy keeps moments
    up to degree 2n; its value rises with n to the minimum.

    Parameters
    ----------
    moments : dict, array_like or path, optional
        Exact moments of the measure: by tuple of exponents, or in one dimension a vector
        :math:`(1, E x, E x^2, \dots)`. All of degree up to twice the order are needed. Or an npz file with an array
        ``moments`` and, for more than one dimension, an array ``exponents`` with a row for each of them.
    data : array_like of shape (n_samples,) or (n_samples, dim), or path, optional
        A sample instead, or a csv file with one point per row (with or without names of columns); what is said is then
        about the empirical measure. At most 3 dimensions.
    target : object, optional
        The measure itself, in one dimension, for ``upper`` (and, without ``moments`` and ``data``, for the moments): an
        object with ``ppf``, for total variation also ``pdf`` or ``pmf``, and ``moment``, e.g. a frozen distribution of
        ``scipy.stats``.
    family : {"gaussian", "exponential", "poisson"}, object or callable, default="gaussian"
        An object with ``dim``, ``n_params`` and ``moment_polynomial`` (see :class:`~assay.transport.MixtureFamily`), or
        a callable that is the last of them.
    distance : {"W2", "TV"}, default="W2"
        Squared Wasserstein distance, or total variation.
    order : int, optional
        The only level, or the first one when ``order_max`` is given, too. By default levels 2, 3, ... are tried until
        one is flat.
    order_max : int, optional
        The last level; by default 4, 3, 2 in one, two, three dimensions, less when fewer moments are given or there are
        fewer points than monomials.
    params : dict, optional
        What the family needs by name: ``{"variance": 0.1}`` (or ``"covariance"``: a number, variances, a matrix,
        ``"isotropic"`` or ``"diagonal"``) for a Gaussian one, ``{"n_params": 2}`` for a callable.
    bounds : array_like of shape (n_params, 2), optional
        Box that S lies in. The shipped families have a default: the range of the data, or twice as far as the highest
        moment reaches.
    constraints : sequence of dict, default=()
        More polynomials :math:`g_j \ge 0`, from tuples of ``n_params`` exponents to coefficients, in the units of the
        data: ``{(0, 0): 1.0, (2, 0): -1.0, (0, 2): -1.0}`` is the unit disk.
    rank_tol : float, optional
        Eigenvalues up to this share of the largest one count as zero; 1e-3 for exact moments, 1e-2 for a sample.
    trace_weight : float, optional
        Weight of the tie-break, the trace of the moment matrix of the mixing measure; 1e-6, or 1e-4 for a family with
        ``determined = False`` (free variances).
    solver : str, default="CLARABEL"
        A conic solver of cvxpy. When Clarabel fails, SCS takes over.
    polish : bool, default=True
        Whether atoms and weights are fitted to the moments after the extraction.
    upper_samples : int, default=2000
        Points that are matched with draws for ``upper`` in two and more dimensions; 0 for none.
    memory_limit : float, optional
        Bytes that a level may take by estimate; by default half of the memory of the machine.
    rng : None, int or numpy.random.Generator, default=0
        For the draws, and for the random combination in the extraction.

    Returns
    -------
    MixtureResult
        With certificates: the lower bound against the distance of the returned mixture, the rise of the bounds with
        the level, how close the level is solved, the rank condition, and that atoms lie in S and have the moments of
        the relaxation.

    Raises
    ------
    FileNotFoundError
        If a path leads nowhere.
    TypeError, ValueError
        If an argument is not what it must be: moments are missing or not those of a measure, a column is constant, a
        family lacks something, S is empty or not compact, there are more than 3 dimensions or too few points.
    MemoryError
        If a level would not fit into ``memory_limit``; nothing has been built then.
    RuntimeError
        If no solver solved the first level to the accuracy that is needed.
    MissingExtraError
        If cvxpy or Clarabel is not installed.

    Warns
    -----
    assay.validation.ConvergenceWarning
        If a level after the first was not solved; the answer is that of the level before.

    Notes
    -----
    The largest semidefinite matrix of level n has :math:`\binom{2d+n}{n}` rows for the Wasserstein distance; time is
    at worst that to the power 6. A mixture found with free variances need not be the one that made the data: at low
    orders the mixing measure is not unique, and the rank condition says that the answer is optimal, not that it is
    the only one.

    References
    ----------
    S. Durasinovic, J.-B. Lasserre, V. Magron. Mixtures Closest to a Given Measure: A Semidefinite Programming
    Approach. ICML 2026. arXiv:2509.22879.

    Examples
    --------
    How far is the uniform distribution from all mixtures of normal distributions of variance 0.3?

    >>> from scipy import stats
    >>> from assay.transport import closest_mixture
    >>> result = closest_mixture(target=stats.uniform(-1, 2), params={"variance": 0.3}, bounds=[-1, 1], order=5)
    >>> print(f"{len(result.weights)} components, {result.lower:.4f} <= {result.upper:.4f}")
    2 components, 0.0146 <= 0.0149
    """
    check_choice(distance, "distance", ("W2", "TV"))
    solver = checked_solver(solver)
    rank_tol = None if rank_tol is None else check_real(rank_tol, "rank_tol", above=0, below=1)
    trace_weight = None if trace_weight is None else check_real(trace_weight, "trace_weight", minimum=0)
    upper_samples = check_integer(upper_samples, "upper_samples", minimum=0)
    rng = as_generator(rng)
    first = None if order is None else check_integer(order, "order", minimum=1)
    last = None if order_max is None else check_integer(order_max, "order_max", minimum=1)
    if first is not None and last is None:
        last = first
    if first is not None and last is not None and last < first:
        raise ValueError(f"order_max must be at least order = {first}, got {last}")
    if isinstance(constraints, Mapping):
        raise TypeError("constraints must be a sequence of dicts, got one dict")

    if isinstance(moments, str | os.PathLike):
        moments = read_moments(moments)
    if isinstance(data, str | os.PathLike):
        data = read_points(data)
    dim = _dimension(moments, data)
    if last is None and (data is not None or moments is None):
        degree: int | None = 2 * DEFAULT_ORDER.get(dim, 2)
    else:
        degree = None if last is None else 2 * last
    problem = prepare_mixture_problem(moments, data, target, family, params, bounds, constraints, degree)
    orders = _orders(problem, first, last)
    sizes = [level_size(problem.dim, problem.n_params, problem.degrees, n, distance) for n in orders]
    check_memory(orders, sizes, memory_limit)
    if trace_weight is None:
        trace_weight = TIE_BREAK[bool(getattr(problem.family, "determined", True))]

    levels: list[Level] = []
    for n, size in zip(orders, sizes, strict=True):
        try:
            level = solve_level(
                problem,
                n,
                size,
                distance=distance,
                rank_tol=rank_tol,
                trace_weight=trace_weight,
                solver=solver,
                polish=polish,
            )
        except RuntimeError as error:
            if not levels:
                raise
            warnings.warn(
                f"closest_mixture: {error}; the answer is that of order {orders[len(levels) - 1]}",
                ConvergenceWarning,
                stacklevel=2,
            )
            break
        levels.append(level)
        if level.atoms.flat and not level.loose:
            break
    return answer_of_levels(problem, levels, distance, trace_weight, target, upper_samples, rng)


def answer_of_levels(
    problem: MixtureProblem,
    levels: Sequence[Level],
    distance: str,
    trace_weight: float,
    target: Any,
    upper_samples: int,
    rng: np.random.Generator,
) -> MixtureResult:
    """The last level as the user's answer, in the user's units, with its certificates."""
    level = levels[-1]
    order, phi, atoms = level.relaxation.order, level.solution.phi, level.atoms
    exact = problem.points is None
    # A distance is at least 0, and the bound of every level is valid.
    lower = max(0.0, *(one.lower for one in levels))
    unit = problem.scale**2 if distance == "W2" else 1.0
    upper, upper_se = np.nan, 0.0
    params = problem.to_user(atoms.points)
    if atoms.flat:
        upper, upper_se = _distance_of_mixture(problem, atoms, params, distance, target, upper_samples, rng)
    # Rounding may leave a distance of 0 just below it.
    value = max(level.solution.value, 0.0) * unit
    sd = np.nan
    if not exact:
        scaled_points = (problem.points - problem.shift) / problem.scale
        polynomial = evaluate_monomials(scaled_points, level.relaxation.data_basis.exponents) @ level.potential
        sd = float(np.std(polynomial)) / math.sqrt(len(scaled_points)) * unit
    return MixtureResult(
        weights=atoms.weights,
        params=params,
        order=order,
        value=value,
        lower=lower * unit,
        upper=float(upper),
        upper_se=float(upper_se),
        relative_gap=float((upper - lower * unit) / upper) if upper > 0 else (0.0 if upper == 0 else np.nan),
        value_sd=sd,
        ranks=atoms.ranks,
        flat=atoms.flat,
        residual=level.residual,
        in_family=bool(atoms.flat and level.solution.value <= ZERO and level.residual <= ZERO),
        status=("loose" if level.loose else "flat") if atoms.flat else "not_flat",
        distance=distance,
        family=problem.family,
        bounds=problem.bounds,
        shift=problem.shift,
        scale=problem.scale,
        moments=phi,
        problem=level.relaxation.problem,
        certificates=mixture_certificates(problem, levels, lower, upper / unit, upper_se / unit, trace_weight),
        history=_history(levels, unit),
    )


def _distance_of_mixture(
    problem: MixtureProblem,
    atoms: Atoms,
    params: Float[np.ndarray, "atoms params"],
    distance: str,
    target: Any,
    upper_samples: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Distance of the mixture in the units of the user, and its standard error; nan when it cannot be computed."""
    family, weights = problem.family, atoms.weights
    on_line = problem.dim == 1 and hasattr(family, "cdf")
    if distance == "TV":
        densities = hasattr(target, "pdf") or hasattr(target, "pmf")
        if on_line and densities and hasattr(family, "density"):
            return total_variation_on_line(target, family, params, weights), 0.0
        return np.nan, 0.0
    if problem.points is None:
        if on_line and hasattr(target, "ppf"):
            return transport_of_target(target, family, params, weights), 0.0
        return np.nan, 0.0
    points, unit = problem.points, 1.0
    if hasattr(family, "rescaled"):
        # Far from the origin squares would lose the digits of the distance.
        points, unit = (points - problem.shift) / problem.scale, problem.scale**2
        family, params = problem.scaled_family, problem.own_parameters(atoms.points)
    if on_line and hasattr(family, "partial_mean"):
        return unit * transport_of_sample(points[:, 0], family, params, weights), 0.0
    if upper_samples and hasattr(family, "sample"):
        upper, se = sampled_transport(points, family, params, weights, upper_samples, rng)
        return unit * upper, unit * se
    return np.nan, 0.0


def _history(levels: Sequence[Level], unit: float) -> dict[str, np.ndarray]:
    return {
        "order": np.array([level.relaxation.order for level in levels]),
        "value": np.array([level.solution.value * unit for level in levels]),
        "lower": np.array([level.lower * unit for level in levels]),
        "rank": np.array([level.atoms.ranks[-1] for level in levels]),
        "flat": np.array([level.atoms.flat for level in levels]),
        "largest_block": np.array([level.size.largest_block for level in levels]),
        "n_variables": np.array([level.size.n_variables for level in levels]),
        "n_equations": np.array([level.size.n_equations for level in levels]),
        "n_bytes": np.array([level.size.n_bytes for level in levels]),
        "seconds_build": np.array([level.relaxation.seconds_build for level in levels]),
        "seconds_solve": np.array([level.seconds for level in levels]),
    }


def _dimension(moments: Any, data: Any) -> int:
    """Dimension as far as the form of the arguments tells; they are checked later."""
    if data is not None:
        shape = np.shape(data)
        return int(shape[1]) if len(shape) == 2 else 1
    if isinstance(moments, Mapping) and moments:
        key = next(iter(moments))
        return len(key) if isinstance(key, tuple) else 1
    return 1


def _orders(problem: MixtureProblem, first: int | None, last: int | None) -> list[int]:
    """Levels to try."""
    known = problem.degree // 2
    least = rank_step(problem)
    if first is not None and first < least:
        raise ValueError(f"order must be at least {least}, half the degree of a constraint, got {first}")
    if first is None:
        first = max(min(2, known if last is None else last), least)
    if last is None:
        last = max(min(DEFAULT_ORDER[problem.dim], known), first)
    if last > known:
        raise ValueError(f"moments must go to degree {2 * last} for order {last}, got {problem.degree}")
    if problem.points is not None:
        n_points = len(problem.points)
        if n_points < math.comb(problem.dim + first, first):
            raise ValueError(
                f"data must have at least {math.comb(problem.dim + first, first)} points, one per monomial of degree "
                f"{first}, got n_samples = {n_points}"
            )
        while n_points < math.comb(problem.dim + last, last):
            last -= 1
    return list(range(first, last + 1))


def check_memory(orders: Sequence[int], sizes: Sequence[LevelSize], memory_limit: float | None) -> None:
    if memory_limit is None:
        limit = _half_of_memory()
    else:
        limit = check_real(memory_limit, "memory_limit", above=0, allow_infinite=True)
    for order, size in zip(orders, sizes, strict=True):
        if size.n_bytes > limit:
            raise MemoryError(
                f"order {order} has a semidefinite matrix of {size.largest_block} x {size.largest_block} rows and "
                f"{size.n_variables} unknown moments, which takes about {size.n_bytes / 2**30:.3g} GiB; "
                f"memory_limit is {limit / 2**30:.3g} GiB. Lower the order or the dimension, or raise memory_limit"
            )


def _half_of_memory() -> float:
    try:
        return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return 4.0 * 2**30


def checked_solver(solver: Any) -> str:
    cp = import_extra("cvxpy", extra="cvxpy")
    if isinstance(solver, str) and solver.upper() == "CLARABEL":
        import_extra("clarabel", extra="cvxpy")
    return check_choice(solver.upper() if isinstance(solver, str) else solver, "solver", cp.installed_solvers())
