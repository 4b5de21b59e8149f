r"""Bilevel optimisation on a network of nodes, with first derivatives only and a lower level that is merely PL.

Nodes share :math:`x` and :math:`y`, have losses :math:`f_k, g_k` of data that they keep, and talk to neighbours only:

.. math:: \min_x F(x) = \min_{y \in S(x)} \tfrac1K \sum_k f_k(x, y), \qquad
          S(x) = \arg\min_y \tfrac1K \sum_k g_k(x, y).

The value is replaced by a penalty, :math:`f(x, y) + (g(x, y) - g(x, z)) / \sigma` with :math:`z` a minimiser of
:math:`g` and :math:`y` one of :math:`\sigma f + g`, whose derivative in :math:`x` needs first derivatives only. All
three variables move at once with one constant step size; nothing is added to :math:`g`, which need not be strongly
convex nor have one minimiser, as long as it satisfies the Polyak-Lojasiewicz inequality. Every node follows a tracker,
its running guess of the mean gradient of all nodes, so that nodes with different data come to the same answer.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.bilevel.decentralized_certificate import (
    DecentralizedResult,
    ReportSettings,
    Stationarity,
    measure_stationarity,
)
from assay.bilevel.decentralized_losses import NodeLosses
from assay.bilevel.decentralized_oracle import MeanLosses, PenaltyOracle
from assay.bilevel.decentralized_report import history_row, report_run
from assay.bilevel.decentralized_setup import (
    as_bounds,
    as_network,
    as_starting_point,
    estimate_smoothness,
    losses_at_hand,
    step_scales,
)
from assay.bilevel.decentralized_states import NodeStates, as_vector, copied
from assay.bilevel.mixing_network import Stack, Vector
from assay.validation import (
    ConvergenceWarning,
    as_generator,
    check_choice,
    check_integer,
    check_real,
    warn_not_converged,
)

__all__ = ["DecentralizedBilevel", "stochastic_step_size"]

_ESTIMATORS = ("momentum", "storm", "sgd")
_BACKENDS = ("numpy", "torch", "dist")

# A run is given up when the squared mean gradient is this many times that at the start.
_DIVERGED = 1e6

# Without a tolerance, the squared hypergradient is to fall to this share of that at the start.
_PROGRESS = 0.01


class DecentralizedBilevel:
    r"""Single-loop, first-order bilevel optimisation over a graph of nodes.

    Parameters
    ----------
    f_list, g_list : sequence of K callables, or BatchedLoss
        Upper and lower losses, ``loss(x, y, batch)`` with vectors ``x`` and ``y``. With ``backend="numpy"`` they return
        ``(value, (grad_x, grad_y))``, with the others a torch scalar. ``batch`` is the entry of that node of what
        ``sampler`` returned, and None for all data of the node. A :class:`BatchedLoss` evaluates all nodes in one call,
        which is several times faster. With ``backend="dist"``, the losses of this process: one, or all K of which its
        own is taken.
    x0, y0 : array_like or torch.Tensor of shape (d_x,) and (d_y,)
        Where all nodes start. With torch, the precision and device of ``x0`` are those of the run.
    graph : networkx.Graph, array_like of shape (K, K), or DecentralizedBilevelHook
        Who talks to whom: a connected graph, which gets Metropolis weights, or a symmetric, doubly stochastic matrix. A
        matrix with all entries ``1/K`` is the centralised method. A hook for ``backend="dist"`` only.
    sigma : float, default=0.05
        Penalty parameter: the bias of the hypergradient is proportional to it.
    eta : float, default=0.3
        The step size, in (0, 1], common to all variables and constant. For noisy gradients, see
        :func:`stochastic_step_size`.
    gamma_x : float, optional
        Scale of the steps of ``x``, by default ``0.2 sigma / max(L, 1)`` with the smoothness ``L``; a larger one can
        be unstable. When ``sigma`` is halved, so is this.
    gamma_y, gamma_z : float, optional
        Scale of the steps of ``y`` and ``z``, by default ``0.5 / L``.
    a : float, default=3.0
        Weight of a new gradient in the estimators, times ``eta``; ``a * eta`` must be at most 1.
    estimator : {"momentum", "storm", "sgd"}, default="momentum"
        Moving average of gradients; recursive variance reduction, with a second gradient on the same data at the
        last point; the latest gradient by itself.
    tracking : bool, default=True
        Whether nodes track the mean gradient. Without, they follow their own and stay apart where data differ.
    sampler : callable, optional
        ``sampler(rng)`` returns a sequence with the batch of every node (of this one with ``backend="dist"``); by
        default all data are used. Both derivatives of ``g`` in ``x`` are taken on the same batch.
    lower_regularizer : float, default=0.0
        Factor of :math:`\frac12\|y\|^2` to add to the lower loss. It makes it strongly convex, as other methods want
        it, and the answer biased.
    backend : {"numpy", "torch", "dist"}, default="numpy"
        Nodes simulated in this process with numpy or torch, or one process per node with ``torch.distributed``.
    rng : None, int or numpy.random.Generator
        Passed to ``sampler``. Processes need different ones.
    z0 : array_like of shape (d_y,), optional
        Start of ``z``, by default ``y0``.
    x_bounds : pair of float or of arrays of shape (d_x,), optional
        Lower and upper bounds on ``x``, to which every node clips.
    sigma_decay : int, optional
        Halve ``sigma`` after every so many iterations and restart estimators and trackers. Constant by default.
    smoothness : float, optional
        Lipschitz constant ``L`` of the gradient of the mean lower loss in ``y``. By default that of ``g_list``, if it
        has one, or an estimate by power iteration on differences of gradients at the start; the latter can be too small
        for a loss whose curvature changes.
    true_hypergradient : callable, optional
        ``true_hypergradient(x)`` returns the value and gradient of ``F``, where they are known, for the report.
    refine_steps : int, default=200
        Gradient steps by which a report refines ``y`` and ``z``.
    consensus_tol : float, default=1e-4
        What the mean squared disagreement of the nodes may be at the end, relative to 1 plus the squared mean.

    Attributes
    ----------
    iteration : int
        Iterations done.
    sigma : float
        Penalty parameter at present.
    history : dict of str to list
        What was recorded, over all calls of :meth:`run`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not of its form or out of range; the message names it, and the node and iteration of a
        gradient that is not finite.

    Notes
    -----
    In one iteration, with the mixing matrix ``W`` and a state ``s`` for ``x``, ``y`` and ``z``, node ``k``

    1. mixes and moves, :math:`s_k \leftarrow s_k + \eta((Ws)_k - \gamma_s v_k - s_k)`;
    2. evaluates its gradients at the new state, three pairs of first derivatives;
    3. averages them, :math:`u_k \leftarrow (1 - a\eta)u_k + a\eta G_k`;
    4. tracks their mean, :math:`v_k \leftarrow (Wv)_k + u_k^{new} - u_k^{old}`.

    That makes two messages of :math:`d_x + 2d_y` numbers to each neighbour, which are never compressed, and nine
    vectors of memory at a node. Time is linear in nodes and links.

    References
    ----------
    .. [1] Convergence Analysis of Decentralized Hessian-/Jacobian-Free Algorithm for Nonconvex Stochastic Bilevel
       Optimization. ICML 2026. The iteration is derived from its setting: first-order, a lower level that is PL and
       not regularised, one constant step size.

    Examples
    --------
    Least squares of deficient rank at eight nodes on a ring:

    >>> import networkx as nx
    >>> from assay.bilevel.decentralized_pl import DecentralizedBilevel
    >>> from assay.bilevel.pl_problems import quadratic_pl_problem
    >>> problem = quadratic_pl_problem(8)
    >>> solver = DecentralizedBilevel.from_problem(problem, nx.cycle_graph(8), sigma=0.1)
    >>> result = solver.run(400)
    >>> print(f"{problem.F([0] * 5)[0]:.2f} -> {problem.F(result.x)[0]:.2f}, best {problem.F(problem.x_star)[0]:.2f}")
    7.79 -> 6.42, best 6.40
    >>> result.certified
    True
    """

    def __init__(
        self,
        f_list: Any,
        g_list: Any,
        x0: Any,
        y0: Any,
        graph: Any,
        *,
        sigma: float = 0.05,
        eta: float = 0.3,
        gamma_x: float | None = None,
        gamma_y: float | None = None,
        gamma_z: float | None = None,
        a: float = 3.0,
        estimator: str = "momentum",
        tracking: bool = True,
        sampler: Callable[[np.random.Generator], Any] | None = None,
        lower_regularizer: float = 0.0,
        backend: str = "numpy",
        rng: int | np.random.Generator | np.random.SeedSequence | None = None,
        z0: Any = None,
        x_bounds: Any = None,
        sigma_decay: int | None = None,
        smoothness: float | None = None,
        true_hypergradient: Callable[..., Any] | None = None,
        refine_steps: int = 200,
        consensus_tol: float = 1e-4,
    ):
        self.backend = check_choice(backend, "backend", _BACKENDS)
        self.sigma = self.first_sigma = check_real(sigma, "sigma", above=0.0)
        self.eta = check_real(eta, "eta", above=0.0, maximum=1.0)
        self.a = check_real(a, "a", above=0.0)
        if self.a * self.eta > 1.0 + 1e-12:
            raise ValueError(f"a * eta must be at most 1, got {self.a:g} * {self.eta:g} = {self.a * self.eta:g}")
        self.estimator = check_choice(estimator, "estimator", _ESTIMATORS)
        if not isinstance(tracking, bool):
            raise TypeError(f"tracking must be True or False, got {tracking!r}")
        self.tracking = tracking
        for name, function in (("sampler", sampler), ("true_hypergradient", true_hypergradient)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a callable or None, got {type(function).__name__}")
        self.sampler, self.true_hypergradient = sampler, true_hypergradient
        regularizer = check_real(lower_regularizer, "lower_regularizer", minimum=0.0)
        self.sigma_decay = None if sigma_decay is None else check_integer(sigma_decay, "sigma_decay", minimum=1)
        self.refine_steps = check_integer(refine_steps, "refine_steps", minimum=0)
        self.consensus_tol = check_real(consensus_tol, "consensus_tol", minimum=0.0)
        self.rng = as_generator(rng)

        start = as_starting_point(x0, y0, z0, self.backend)
        self.network = as_network(graph, self.backend, start[0])
        pairs = ((f_list, "f_list"), (g_list, "g_list"))
        upper, lower = (
            NodeLosses(losses_at_hand(losses, self.network, name), name, self.network.n_local, self.backend)
            for losses, name in pairs
        )
        first_node = self.network.rank if self.backend == "dist" else 0
        self._oracle = PenaltyOracle(upper, lower, len(start[0]), len(start[1]), regularizer, first_node)
        self._losses = MeanLosses(self._oracle, self.network, start[0])
        self._bounds = as_bounds(x_bounds, len(start[0]))
        self._y0 = as_vector(start[1])
        self._scales = step_scales(
            (gamma_x, gamma_y, gamma_z),
            self.sigma,
            lower.smoothness if smoothness is None else smoothness,
            lambda: estimate_smoothness(self._losses, as_vector(start[0]), self._y0),
        )

        self.iteration = 0
        self.history: dict[str, list[float]] = {}
        self._elapsed = 0.0
        self._steps_known: tuple[float, Any] = (math.nan, None)
        self._nodes = self._started(_repeated(start, self.network.n_local))
        self._first_size = self._nodes.size(self.network)
        self._first_square: float | None = None

    @classmethod
    def from_problem(cls, problem: Any, graph: Any, *, noise: float = 0.0, **options: Any) -> DecentralizedBilevel:
        """Set up a run on a problem with a closed form, from the origin and with its own smoothness.

        Parameters
        ----------
        problem : PLProblem
            From :func:`quadratic_pl_problem` or :func:`nonconvex_pl_problem`.
        graph : networkx.Graph or array_like of shape (K, K)
            Who talks to whom.
        noise : float, default=0.0
            Standard deviation of the noise in every entry of a gradient.
        **options
            As for the class; ``x0`` and ``y0`` are 0 by default.

        Returns
        -------
        DecentralizedBilevel
        """
        noise = check_real(noise, "noise", minimum=0.0)
        dx, dy = problem.shape
        x0, y0 = options.pop("x0", np.zeros(dx)), options.pop("y0", np.zeros(dy))
        if noise:
            options.setdefault("sampler", lambda rng: problem.noise(noise, rng))
        options.setdefault("true_hypergradient", problem.F)
        return cls(problem.f, problem.g, x0, y0, graph, **options)

    def step(self) -> None:
        """Make one iteration.

        Raises
        ------
        ValueError
            If a gradient is not finite; nothing has changed then but the state of ``rng``.
        """
        self._advance()

    def run(
        self,
        n_iter: int,
        log_every: int | None = None,
        *,
        tol: float | None = None,
        callback: Callable[[DecentralizedBilevel], Any] | None = None,
    ) -> DecentralizedResult:
        """Make some iterations, and report on where they lead.

        Parameters
        ----------
        n_iter : int
            How many, at most.
        log_every : int, optional
            Iterations between two rows of the history, by default a hundredth of ``n_iter``.
        tol : float, optional
            Stop when the bound on the squared norm of the hypergradient is at most this. By default all iterations are
            made, and the bound is to fall to a hundredth of that at the first start.
        callback : callable, optional
            ``callback(solver)`` is called with every row of the history; if it returns True, the run stops.

        Returns
        -------
        DecentralizedResult
            With certificates of the hypergradient, the lower level, consensus, the invariants of mixing and tracking,
            and the conditions on the lower loss and the graph.

        Raises
        ------
        ValueError
            If a gradient is not finite.

        Warns
        -----
        ConvergenceWarning
            If ``tol`` was not reached, or the run diverged: ``gamma_x`` must be smaller then.
        """
        n_iter = check_integer(n_iter, "n_iter", minimum=0)
        every = max(1, n_iter // 100) if log_every is None else check_integer(log_every, "log_every", minimum=1)
        tol = None if tol is None else check_real(tol, "tol", minimum=0.0)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be a callable or None, got {type(callback).__name__}")
        began = time.perf_counter() - self._elapsed
        if self._first_square is None:
            self._first_square = self._stationarity(n_halvings=0).refined ** 2
            self._record(0.0, began)
        status = "budget"
        for done in range(1, n_iter + 1):
            logs = done % every == 0 or done == n_iter
            motion_error = self._advance(audit=logs)
            # Processes would have to agree on it, so they look at it together and less often.
            if (logs or self.backend != "dist") and self._has_diverged():
                status = "diverged"
                break
            if logs:
                self._record(motion_error, began)
                if callback is not None and callback(self) is True:
                    status = "stopped"
                    break
                # The estimate of the history costs little; where it is small, the certified one is made.
                if tol is not None and self.history["stationarity"][-1] <= tol and self._stationarity().bound <= tol:
                    status = "converged"
                    break
        self._elapsed = time.perf_counter() - began
        result = self._report(tol, status)
        if status == "diverged":
            warnings.warn(
                f"DecentralizedBilevel diverged in iteration {self.iteration}; "
                f"lower gamma_x (it is {self.gamma_x:.3g})",
                ConvergenceWarning,
                stacklevel=2,
            )
        elif tol is not None and status == "budget" and not result.certificates[0].holds:
            warn_not_converged("DecentralizedBilevel", self.iteration, result.certificates[0].value, tol)
        return result

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run goes on from, as arrays or tensors and plain numbers."""
        nodes = self._nodes
        return {
            "states": copied(nodes.states),
            "estimators": copied(nodes.estimators),
            "trackers": None if nodes.trackers is None else copied(nodes.trackers),
            "iteration": self.iteration,
            "sigma": self.sigma,
            "bytes_sent": self.network.bytes_sent,
            "evaluations": (self._oracle.upper.evaluations, self._oracle.lower.evaluations),
            "first_size": self._first_size,
            "first_square": self._first_square,
            "elapsed": self._elapsed,
            "history": {name: list(column) for name, column in self.history.items()},
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned, bit for bit.

        Raises
        ------
        ValueError
            If it lacks a key, or is of another number of nodes, of other dimensions or of another kind of generator;
            nothing has changed then.
        """
        missing = sorted(set(self.state_dict()) - set(state))
        if missing:
            raise ValueError(f"state must be what state_dict returns, got no {', '.join(missing)}")
        names = ("states", "estimators", "trackers")
        for name in names:
            shapes = [getattr(rows, "shape", None) for rows in (getattr(self._nodes, name), state[name])]
            if shapes[0] != shapes[1]:
                raise ValueError(f"{name} of state must have shape {shapes[0]}, got {shapes[1]}")
        self.rng.bit_generator.state = state["rng"]  # refuses that of another kind, before anything else has changed
        self._nodes = NodeStates(*(None if state[name] is None else copied(state[name]) for name in names))
        self.iteration, self.sigma = state["iteration"], state["sigma"]
        self.network.bytes_sent = state["bytes_sent"]
        self._oracle.upper.evaluations, self._oracle.lower.evaluations = state["evaluations"]
        self._first_size, self._first_square = state["first_size"], state["first_square"]
        self._elapsed = state["elapsed"]
        self.history = {name: list(column) for name, column in state["history"].items()}

    @property
    def x_nodes(self) -> Stack:
        """The ``x`` of the nodes at hand, of shape (K, d_x)."""
        return copied(self._nodes.states[:, self._oracle.blocks[0]])

    @property
    def gamma_x(self) -> float:
        """Scale of the steps of ``x`` at the present ``sigma``."""
        return self._scales.x * self.sigma / self.first_sigma

    def _advance(self, audit: bool = False) -> float:
        """One iteration; with ``audit``, by how much the mean state did not move along the mean estimator."""
        if self.sigma_decay and self.iteration and self.iteration % self.sigma_decay == 0:
            self.sigma *= 0.5
            self._nodes = self._started(self._nodes.states)
        nodes, eta = self._nodes, self.eta
        steps = self._steps()
        moved = self.network.mix(nodes.states)
        moved -= nodes.states
        moved *= eta
        moved += nodes.states
        moved -= steps * (nodes.estimators if nodes.trackers is None else nodes.trackers)
        error = nodes.motion_error(self.network, moved, steps) if audit else 0.0
        if self._bounds is not None:
            self._clip(moved)
        batches = self._batches()
        fresh = self._oracle.directions(moved, batches, self.sigma, self.iteration + 1)
        if self.estimator == "momentum":
            fresh *= self.a * eta
            fresh += (1.0 - self.a * eta) * nodes.estimators
        elif self.estimator == "storm":
            before = self._oracle.directions(nodes.states, batches, self.sigma, self.iteration + 1)
            fresh += (1.0 - self.a * eta**2) * (nodes.estimators - before)
        trackers = None
        if nodes.trackers is not None:
            trackers = self.network.mix(nodes.trackers)
            trackers += fresh
            trackers -= nodes.estimators
        self._nodes = NodeStates(moved, fresh, trackers)
        self.iteration += 1
        return error

    def _started(self, states: Stack) -> NodeStates:
        """Estimators and trackers from the gradients at these states."""
        estimators = self._oracle.directions(states, self._batches(), self.sigma, self.iteration)
        return NodeStates(states, estimators, copied(estimators) if self.tracking else None)

    def _steps(self) -> Vector:
        """What an entry of a state moves by, for a gradient of 1."""
        if self._steps_known[0] != self.sigma:
            steps = np.empty(self._nodes.states.shape[1])
            scales = (self.gamma_x, self._scales.y, self._scales.z)
            for block, scale in zip(self._oracle.blocks, scales, strict=True):
                steps[block] = self.eta * scale
            states = self._nodes.states
            self._steps_known = (self.sigma, torch.as_tensor(steps).to(states) if isinstance(states, Tensor) else steps)
        return self._steps_known[1]

    def _clip(self, states: Stack) -> None:
        block, (lower, upper) = self._oracle.blocks[0], self._bounds
        if isinstance(states, Tensor):
            lower, upper = (torch.as_tensor(bound).to(states) for bound in (lower, upper))
            states[:, block] = states[:, block].clamp(lower, upper)
        else:
            states[:, block] = np.clip(states[:, block], lower, upper)

    def _batches(self) -> Any:
        if self.sampler is None:
            return None
        batches, n_local = self.sampler(self.rng), self.network.n_local
        if not hasattr(batches, "__len__") or len(batches) != n_local:
            got = f"{len(batches)}" if hasattr(batches, "__len__") else type(batches).__name__
            raise ValueError(f"sampler must return a batch for each of the {n_local} nodes, got {got}")
        for k, batch in enumerate(batches):
            if hasattr(batch, "__len__") and len(batch) == 0:
                raise ValueError(f"sampler must return data for every node, got none for node {k}")
        return batches

    def _has_diverged(self) -> bool:
        size = self._nodes.size(self.network)
        return not size <= _DIVERGED * (self._first_size if self._first_size > 0.0 else 1.0)

    def _record(self, motion_error: float, began: float) -> None:
        row = {"iteration": self.iteration, "seconds": time.perf_counter() - began}
        row |= history_row(self._nodes, self._losses, self._settings(), math.sqrt(self._first_size))
        row |= {"motion_error": motion_error, "bytes_sent": self.network.total_bytes()}
        for name, number in row.items():
            self.history.setdefault(name, []).append(number)

    def _settings(self) -> ReportSettings:
        return ReportSettings(
            self.sigma, self._scales.y, self._scales.z, self.refine_steps, self._bounds, self.true_hypergradient
        )

    def _stationarity(self, n_halvings: int = 2) -> Stationarity:
        means = self._nodes.means(self.network, self._oracle.blocks)
        return measure_stationarity(self._losses, self._settings(), *means, n_halvings=n_halvings)

    def _report(self, tol: float | None, status: str) -> DecentralizedResult:
        oracle = self._oracle
        with np.errstate(over="ignore", invalid="ignore"):  # where a run has diverged
            return report_run(
                self._nodes,
                self._losses,
                self._settings(),
                self._stationarity(),
                start=self._y0,
                allowed=_PROGRESS * self._first_square if tol is None else tol,
                consensus_tol=self.consensus_tol,
                smoothness=self._scales.smoothness,
                scale=math.sqrt(self._first_size),
                history=self.history,
                counts={
                    "bytes_sent": self.network.total_bytes(),
                    "n_gradients": oracle.upper.evaluations + oracle.lower.evaluations,
                    "n_iter": self.iteration,
                    "status": status,
                },
            )


def stochastic_step_size(n_nodes: int, n_iter: int, scale: float = 1.0) -> float:
    r"""Step size for noisy gradients, :math:`\min(0.3, c\sqrt{K/T})`: constant, and known before the run.

    Parameters
    ----------
    n_nodes, n_iter : int
        The numbers K of nodes and T of iterations.
    scale : float, default=1.0
        The factor c.

    Returns
    -------
    float
        With it the mean squared hypergradient falls as :math:`1/\sqrt{KT}`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not positive.

    Examples
    --------
    >>> from assay.bilevel.decentralized_pl import stochastic_step_size
    >>> stochastic_step_size(8, 80000)
    0.01
    """
    n_nodes, n_iter = (
        check_integer(number, name, minimum=1) for name, number in (("n_nodes", n_nodes), ("n_iter", n_iter))
    )
    return min(0.3, check_real(scale, "scale", above=0.0) * math.sqrt(n_nodes / n_iter))


def _repeated(start: tuple[Vector, Vector, Vector], times: int) -> Stack:
    """The same row for all nodes."""
    if isinstance(start[0], Tensor):
        return torch.cat(start).repeat(times, 1)
    return np.tile(np.concatenate(start), (times, 1))
