r"""Gromov-Wasserstein couplings by localized block coordinate descent.

Align two spaces that share no coordinates: each is known only through a symmetric matrix of relations between its
own points (the edges of a graph, distances, a kernel). The coupling sought is the one under which related pairs
match related pairs.

The descent is mirror descent in the entropy, whose iterates are brought to the exact marginals at every step. Three
things make it fast:

1. products with a graph are sparse (:mod:`assay.transport.gw_products`);
2. when only few rows and columns of the plan still move, only that block is solved, with its masses kept, so that
   the marginals of the whole plan cannot change (:mod:`assay.transport.gw_mirror`);
3. when the plan says who goes with whom, exact conditional gradient steps take it to a vertex
   (:mod:`assay.transport.gw_finish`) instead of letting the entropy take the last digits.

What comes back carries proofs: the marginals, a lower bound on the objective over all couplings, and a bound on how
far the plan is from first-order stationarity (:mod:`assay.transport.gw_bounds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Int
from scipy.optimize import linear_sum_assignment

from assay.certificate import Certificate
from assay.result import Result
from assay.transport.gw_bounds import coupling_violation, gw_certificates, gw_value
from assay.transport.gw_descent import Descent, DescentSettings, history_of
from assay.transport.gw_mirror import MirrorDescent
from assay.transport.gw_problem import GWProblem, Relation, prepare_problem
from assay.transport.gw_products import Sandwich
from assay.transport.gw_start import initial_plans
from assay.transport.sinkhorn import round_to_marginals
from assay.validation import as_generator, check_choice, check_integer, check_real, warn_not_converged

__all__ = ["GWResult", "lobcd_gw"]

# Marginals that are off by less than a few units in the last place are left as they are.
_EXACT = 1e-15

# Ends of two starts whose objectives differ by no more than this share of the scale are equally low.
_TIE = 1e-14

# Plans with at most this share of non-zeros are stored sparse while another start is tried.
_FEW = 0.1


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GWResult(Result):
    """What :func:`lobcd_gw` returns.

    Attributes
    ----------
    plan : numpy.ndarray or torch.Tensor of shape (n, m)
        The coupling, in the type of the input.
    value : float
        Objective at the plan.
    value_normalized : float
        Objective divided by what it would be without any agreement between the spaces.
    lower_bound : float
        No coupling has a smaller objective. nan without certificates.
    fw_gap : float
        Proved upper bound on the Frank-Wolfe gap of the plan; zero exactly at first-order stationary points. nan
        without certificates.
    feasibility : float
        Largest error of a marginal or of a sign.
    start : str
        The start whose end was kept: ``"degree"``, ``"uniform"``, ``"random 1"`` and so on, or ``"given"``.
    start_values : dict
        Objective at the end of the descent from each start that was tried, before any rounding to a permutation.
    n_full, n_local, n_finish : int
        Updates of the whole plan, of a block, and conditional gradient steps. These and the other counts are of the
        whole call: sums over all starts.
    n_backtracks : int
        Steps that were taken again with twice the temperature.
    active : tuple of int
        Larger side of the block, for each local update.
    multiply_adds : int
        Multiply-adds of all products, counted from the sizes.
    status : {"stationary", "stationary_gap", "settled", "stalled", "max_iter", "trivial"}
        Why it ended: the gap reached its tolerance; or it did not in the steps given to the finish; without the
        finish, the plan settled or the objective stalled, or neither happened; or there is only one coupling.
    converged : bool
        False for ``"stationary_gap"`` and ``"max_iter"``.
    mapping : numpy.ndarray of shape (n,)
        Column of the largest entry of each row of the plan, -1 for a point without weight.
    history : dict
        ``start`` (whose descent it is, one after the other), ``iteration`` (from 0 in each), ``seconds`` since the
        first began, ``value``, ``kind`` (start, full, local, finish), ``multiply_adds`` of the products of the
        update, ``work`` (the same plus what its mirror steps cost, in multiply-adds). The course of the plan that
        was kept is in the rows with ``history["start"] == result.start``.
    """

    plan: np.ndarray | torch.Tensor
    value: float
    value_normalized: float
    lower_bound: float
    fw_gap: float
    feasibility: float
    start: str
    start_values: dict[str, float]
    n_full: int
    n_local: int
    n_finish: int
    n_backtracks: int
    active: tuple[int, ...]
    multiply_adds: int
    status: str
    converged: bool
    mapping: Int[np.ndarray, " n"]


def lobcd_gw(
    C1: Relation,
    C2: Relation,
    p: Any = None,
    q: Any = None,
    *,
    init: Any = ("degree", "uniform"),
    rho: float = 0.02,
    warm: int = 5,
    select: str = "coverage",
    coverage: float = 0.99,
    delta: float | None = None,
    max_frac: float = 0.5,
    inner: int = 5,
    sinkhorn_iters: int = 10,
    max_iter: int = 500,
    tol: float = 1e-7,
    probe: int = 3,
    refresh: int = 50,
    finish: bool = True,
    finish_steps: int = 200,
    gap_tol: float = 1e-10,
    solver: str = "block",
    products: str = "auto",
    normalize: bool | str = "auto",
    sharpen: bool = False,
    round: str = "none",
    backend: str = "auto",
    certificate: bool = True,
    callback: Callable[[Mapping[str, Any]], None] | None = None,
    rng: Any = None,
) -> GWResult:
    r"""Gromov-Wasserstein coupling of two spaces, with the square loss.

    .. math:: \min_{X \ge 0,\ X1 = p,\ X^\top 1 = q}\ \sum_{ikjl} (C^1_{ik} - C^2_{jl})^2\, X_{ij} X_{kl}

    The problem is not convex. What is found is a first-order stationary point, in most cases a vertex (for equal
    numbers of points with equal weights: a one-to-one matching). When the lower bound that comes with it meets its
    value, it is a global optimum.

    Parameters
    ----------
    C1, C2 : array_like, torch.Tensor, sparse matrix or networkx.Graph
        Symmetric relations (adjacency, kernel, distances), of shapes (n, n) and (m, m).
    p, q : array_like of shapes (n,) and (m,), optional
        Distributions; uniform by default. Points of weight zero get a row or column of zeros.
    init : {"degree", "uniform", "best"}, sequence of these, or array_like of shape (n, m)
        Where to start: a plan that pairs points of similar row sums; the product ``p q'``; five starts (these two
        and three random plans); or a coupling of yours. From several starts the lowest end is kept, and the first
        of them when they agree to rounding. By default ``("degree", "uniform")``, for the time of two descents: row
        sums say nothing on a regular graph (where the two starts are one plan, which is tried once) and can mislead
        on a small world, and from the uniform start alone many copies are missed. Use ``"best"`` for regular graphs.
        A start with zeros is mixed with 0.001 of ``p q'``, since mirror steps cannot leave a zero.
    rho : float, default=0.02
        Temperature of a mirror step, relative to the range of the gradient.
    warm : int, default=5
        Updates of the whole plan before the first block.
    select : {"coverage", "threshold"}, default="coverage"
        Which rows and columns make a block: the fewest that make up the share ``coverage`` of the movement, or
        those with an entry that moves by more than ``delta``.
    coverage : float, default=0.99
        Share of the movement.
    delta : float, optional
        Movement of an entry; by default ``0.01 / max(n, m)``.
    max_frac : float, default=0.5
        A block with more than this share of the rows or columns is not used.
    inner : int, default=5
        Mirror steps in a block at most.
    sinkhorn_iters : int, default=10
        Scalings before the rounding of each step.
    max_iter : int, default=500
        Updates, of the plan or of a block, at most.
    tol : float, default=1e-7
        Mirror steps end when one changes the objective by less than this share of its scale.
    probe : int, default=3
        Number of updates between two looks at the largest entry of every row; mirror steps end when 98 % of them stay.
    refresh : int, default=50
        Number of block updates after which the product is computed anew.
    finish : bool, default=True
        Whether to end with conditional gradient steps.
    finish_steps : int, default=200
        Number of them at most.
    gap_tol : float, default=1e-10
        They end when the Frank-Wolfe gap is at most this share of the scale of the objective.
    solver : {"block", "full", "vertex"}, default="block"
        With blocks; without; or one mirror step and conditional gradient steps from there.
    products : {"auto", "sparse", "dense"}, default="auto"
        How to multiply; by default sparse for a matrix with at most a tenth of its entries stored.
    normalize : bool or "auto", default="auto"
        Whether to divide every entry by the square roots of its two degrees. ``"auto"``: for graphs and sparse
        matrices.
    sharpen : bool, default=False
        Without the finish: raise the plan to the power 1.5 at the end, and keep that if it is better.
    round : {"none", "hungarian"}, default="none"
        ``"hungarian"`` turns the plan into the permutation with the largest sum of its entries (equal numbers of
        points with equal weights).
    backend : {"auto", "numpy", "torch"}, default="auto"
        ``"auto"`` computes with torch for tensors that are not on the CPU, and with numpy and compiled loops for
        everything else. Linear transport problems and certificates are always computed on the CPU. All in float64.
    certificate : bool, default=True
        Whether to evaluate the certificates (a few sorts and a linear transport problem).
    callback : callable, optional
        Called after every update, from every start, with a mapping of ``start``, ``iteration``, ``seconds``,
        ``value`` and ``kind``, as in ``history``.
    rng : None, int or numpy.random.Generator, optional
        For the random starts of ``init="best"``.

    Returns
    -------
    GWResult
        With certificates for the marginals, the lower bound, the count of multiply-adds, and (with the finish)
        stationarity. The plan has the type, device and dtype of the input tensors, or is a float64 array.

    Raises
    ------
    TypeError, ValueError
        For matrices that are not square, symmetric and finite, directed graphs, distributions that are not, or
        unknown options.

    Warns
    -----
    ConvergenceWarning
        When the gap (or without the finish: the objective) did not reach its tolerance. The plan is the best one found.

    Notes
    -----
    An update of the whole plan costs ``O(e1 m + e2 n + nm)`` for graphs with ``e1`` and ``e2`` stored entries and
    ``O(n^2 m + n m^2)`` for dense matrices; a block of ``r`` rows and columns ``O(r^3 + n r^2 + n^2 r)`` at most.
    Each start has such a descent; checks, normalisation and certificates are once for all. Memory: four arrays of
    shape (n, m), five for dense matrices; one more if the objective ever rises. A finished plan waits in sparse form
    while the next start is tried; without the finish it takes one more array.

    References
    ----------
    J. Song, J. Huang, K. Cheng, B. Han, H. Ding. LoBCD-GW: A Fast and Data-Dependent Algorithm for Computing
    Gromov-Wasserstein Distance via Localized Block Coordinate Descent. ICML 2026.

    Examples
    --------
    >>> import networkx as nx
    >>> import numpy as np
    >>> from assay.transport import lobcd_gw
    >>> club = nx.karate_club_graph()
    >>> hidden = np.random.default_rng(0).permutation(34)
    >>> copy = nx.relabel_nodes(club, dict(enumerate(hidden.tolist())))
    >>> copy = nx.from_numpy_array(nx.to_numpy_array(copy, nodelist=range(34)))
    >>> result = lobcd_gw(club, copy)
    >>> result.status, result.value < 1e-12, result.certified
    ('stationary', True, True)
    """
    settings = _check_settings(
        rho=rho, warm=warm, select=select, coverage=coverage, delta=delta, max_frac=max_frac, inner=inner,
        max_iter=max_iter, tol=tol, probe=probe, refresh=refresh, finish=finish, finish_steps=finish_steps,
        gap_tol=gap_tol, solver=solver, sharpen=sharpen, callback=callback, certificate=certificate,
    )  # fmt: skip
    sinkhorn_iters = check_integer(sinkhorn_iters, "sinkhorn_iters", minimum=1)
    check_choice(products, "products", ("auto", "sparse", "dense"))
    check_choice(round, "round", ("none", "hungarian"))
    check_choice(backend, "backend", ("auto", "numpy", "torch"))
    generator = as_generator(rng)
    problem = prepare_problem(C1, C2, p, q, normalize)
    n, m = len(problem.p), len(problem.q)
    one_to_one = n == m and np.ptp(problem.p) == 0.0 and np.ptp(problem.q) == 0.0
    if round == "hungarian" and not one_to_one:
        raise ValueError("round must be 'none' unless both spaces have equally many points with equal weights")

    use_torch = backend == "torch" or (
        backend == "auto" and problem.like is not None and problem.like.device.type != "cpu"
    )
    device = None
    if use_torch:
        device = problem.like.device if problem.like is not None else torch.device("cpu")
    sandwich = Sandwich.of(problem.C1, problem.C2, products, device)
    vectors = [problem.p, problem.q, problem.left, problem.right]
    if use_torch:
        vectors = [torch.from_numpy(vector).to(device) for vector in vectors]
    mirror = MirrorDescent(sandwich, *vectors, sinkhorn_iters)

    descents = []
    best: Descent | None = None
    began = time.perf_counter()
    for name, start in initial_plans(problem, init, generator):
        plan = torch.from_numpy(start).to(device) if use_torch else start
        del start  # the descent reuses its memory
        descent = Descent(mirror, problem, settings, plan, start=name, began=began)
        del plan
        descent.run()
        descents.append(descent)
        if best is None or descent.value < best.value - _TIE * problem.scale:
            if best is not None:
                best.plan = None
            best = descent
            best.plan = _stored(best.plan)
        else:
            descent.plan = None
    if not best.converged:
        reached = best.gap if settings.finish else best.change
        target = settings.gap_tol if settings.finish else settings.tol
        warn_not_converged("lobcd_gw", len(best.rows) - 1, reached / problem.scale, target)
    return _result(best, descents, problem, round == "hungarian", certificate)


def _stored(plan: np.ndarray | torch.Tensor) -> np.ndarray | sp.csr_array:
    """A plan on the CPU, sparse when that is smaller by far, as it is for a vertex."""
    if isinstance(plan, torch.Tensor):
        plan = plan.cpu().numpy()
    return sp.csr_array(plan) if np.count_nonzero(plan) <= _FEW * plan.size else plan


def _result(
    descent: Descent, descents: list[Descent], problem: GWProblem, to_permutation: bool, certificate: bool
) -> GWResult:
    """Take the plan out of the descent that is kept, round and certify it, and add up the books of all."""
    plan, descent.plan = descent.plan, None
    plan = plan.toarray() if sp.issparse(plan) else plan
    multiply_adds = sum(each.multiply_adds for each in descents)
    start_values = {each.start: max(each.value, 0.0) for each in descents}
    if to_permutation:
        rows, columns = linear_sum_assignment(plan, maximize=True)
        plan = np.zeros_like(plan)
        plan[rows, columns] = problem.p
        descent.value = gw_value(problem.C1, problem.C2, plan, problem.p, problem.q, normalize=False)
    violation = coupling_violation(plan, problem.p, problem.q)
    if violation > _EXACT:
        plan = round_to_marginals(plan, problem.p, problem.q, plan)
        violation = coupling_violation(plan, problem.p, problem.q)
    value, bound, gap = max(descent.value, 0.0), float("nan"), float("nan")
    certificates: tuple[Certificate, ...] = ()
    if certificate:
        stationary = descent.settings.finish and not to_permutation
        value, bound, gap, violation, proofs = gw_certificates(problem, plan, finished=stationary)
        dense = float(sum(each.n_products for each in descents)) * descent.mirror.sandwich.dense_cost
        work = Certificate("multiply-adds of all products, against dense ones", multiply_adds, dense)
        certificates = (*proofs, work)
    mapping = np.full(problem.shape[0], -1)
    mapping[problem.kept1] = problem.kept2[plan.argmax(axis=1)]
    return GWResult(
        plan=problem.restore(plan),
        value=value,
        value_normalized=value / problem.scale if problem.scale > 0.0 else 0.0,
        lower_bound=bound,
        fw_gap=gap,
        feasibility=violation,
        start=descent.start,
        start_values=start_values,
        n_full=sum(each.n_full for each in descents),
        n_local=sum(each.n_local for each in descents),
        n_finish=sum(each.n_finish for each in descents),
        n_backtracks=sum(each.n_backtracks for each in descents),
        active=tuple(side for each in descents for side in each.active),
        multiply_adds=multiply_adds,
        status=descent.status,
        converged=descent.converged,
        mapping=mapping,
        certificates=certificates,
        history=history_of(descents),
    )


def _check_settings(
    *, rho, warm, select, coverage, delta, max_frac, inner, max_iter, tol, probe, refresh, finish, finish_steps,
    gap_tol, solver, sharpen, callback, certificate,
) -> DescentSettings:  # fmt: skip
    for flag, name in ((finish, "finish"), (sharpen, "sharpen"), (certificate, "certificate")):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {flag!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    if sharpen and finish:
        raise ValueError("sharpen must be False with the finish: a vertex cannot be made sharper")
    return DescentSettings(
        rho=check_real(rho, "rho", above=0.0),
        warm=check_integer(warm, "warm", minimum=0),
        select=check_choice(select, "select", ("coverage", "threshold")),
        coverage=check_real(coverage, "coverage", above=0.0, maximum=1.0),
        delta=None if delta is None else check_real(delta, "delta", minimum=0.0),
        max_frac=check_real(max_frac, "max_frac", minimum=0.0, maximum=1.0),
        inner=check_integer(inner, "inner", minimum=1),
        max_iter=check_integer(max_iter, "max_iter", minimum=1),
        tol=check_real(tol, "tol", minimum=0.0),
        probe=check_integer(probe, "probe", minimum=1),
        refresh=check_integer(refresh, "refresh", minimum=1),
        finish=bool(finish),
        finish_steps=check_integer(finish_steps, "finish_steps", minimum=0),
        gap_tol=check_real(gap_tol, "gap_tol", minimum=0.0),
        solver=check_choice(solver, "solver", ("block", "full", "vertex")),
        sharpen=bool(sharpen),
        callback=callback,
    )
