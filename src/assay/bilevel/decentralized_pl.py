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

from assay.bilevel.decentralized_certificate import DecentralizedResult
from assay.bilevel.decentralized_iteration import IterationOptions, NodeIteration
from assay.bilevel.decentralized_losses import NodeLosses
from assay.bilevel.decentralized_oracle import MeanLosses, PenaltyOracle
from assay.bilevel.decentralized_report import history_row, report_run
from assay.bilevel.decentralized_setup import (
    as_bounds,
    as_network,
    as_starting_point,
    estimate_smoothness,
    losses_at_hand,
    options_of_problem,
    step_scales,
)
from assay.bilevel.decentralized_states import as_vector, copied
from assay.bilevel.decentralized_stationarity import ReportSettings, Stationarity, measure_stationarity
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

# What overflows is refused by name, or ends the run with the status "diverged".
_QUIET = {"over": "ignore", "invalid": "ignore"}

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
        be unstable, and so can this one for ``sigma`` above 0.3. When ``sigma`` is halved, so is this.
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
    compress_messages : bool, default=False
        Only False: messages are whole vectors. With compressed ones the means of states and trackers would not be kept.
    backend : {"numpy", "torch", "dist"}, default="numpy"
        Nodes simulated in this process with numpy or torch, or one process per node with ``torch.distributed``.
    rng : None, int or numpy.random.Generator
        Passed to ``sampler``. Processes need different ones.
    z0 : array_like of shape (d_y,), optional
        Start of ``z``, by default ``y0``.
    x_bounds : pair of float or of arrays of shape (d_x,), optional
        Lower and upper bounds on ``x``, to which every node clips; infinite or None for an open end.
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
    history : dict of str to list
        What was recorded, over all calls of :meth:`run`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not of its form or out of range; the message names it, and the node and iteration of a
        gradient that is not finite.

    Notes
    -----
    In one iteration, with the mixing matrix ``W`` and a state ``s`` for ``x``, ``y`` and ``z``, node ``k`` mixes and
    moves, evaluates three pairs of first derivatives at the new state, averages them and tracks their mean:

    .. math:: s_k &\leftarrow s_k + \eta((Ws)_k - \gamma_s v_k - s_k), \\
              u_k &\leftarrow (1 - a\eta)u_k + a\eta G_k, \\
              v_k &\leftarrow (Wv)_k + u_k^{new} - u_k^{old}.

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
    >>> from assay.bilevel import DecentralizedBilevel, quadratic_pl_problem
    >>> problem = quadratic_pl_problem(8)
    >>> solver = DecentralizedBilevel.from_problem(problem, nx.cycle_graph(8), sigma=0.1)
    >>> result = solver.run(400)
    >>> print(f"{problem.F([0] * 5)[0]:.2f} -> {problem.F(result.x)[0]:.2f}, best {problem.F(problem.x_star)[0]:.2f}")
    7.79 -> 6.42, best 6.40
    >>> result.certified
    True
    """

    @np.errstate(**_QUIET)
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
        compress_messages: bool = False,
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
        self.refine_steps = check_integer(refine_steps, "refine_steps", minimum=0)
        self.consensus_tol = check_real(consensus_tol, "consensus_tol", minimum=0.0)
        for name, function in (("sampler", sampler), ("true_hypergradient", true_hypergradient)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a callable or None, got {type(function).__name__}")
        self.true_hypergradient = true_hypergradient
        for name, flag in (("tracking", tracking), ("compress_messages", compress_messages)):
            if not isinstance(flag, bool | np.bool_):
                raise TypeError(f"{name} must be True or False, got {flag!r}")
        if compress_messages:
            raise ValueError("compress_messages must be False: the means of states and trackers would not be kept")
        regularizer = check_real(lower_regularizer, "lower_regularizer", minimum=0.0)
        start = as_starting_point(x0, y0, z0, self.backend)
        options = IterationOptions(
            sigma=check_real(sigma, "sigma", above=0.0),
            eta=check_real(eta, "eta", above=0.0, maximum=1.0),
            a=check_real(a, "a", above=0.0),
            estimator=check_choice(estimator, "estimator", _ESTIMATORS),
            tracking=bool(tracking),
            sampler=sampler,
            sigma_decay=None if sigma_decay is None else check_integer(sigma_decay, "sigma_decay", minimum=1),
            bounds=as_bounds(x_bounds, start[0]),
        )
        if options.a * options.eta > 1.0 + 1e-12:
            raise ValueError(
                f"a * eta must be at most 1, got {options.a:g} * {options.eta:g} = {options.a * options.eta:g}"
            )

        self.network = as_network(graph, self.backend, start[0])
        pairs = ((f_list, "f_list"), (g_list, "g_list"))
        upper, lower = (
            NodeLosses(losses_at_hand(losses, self.network, name), name, self.network.n_local, self.backend)
            for losses, name in pairs
        )
        first_node = self.network.rank if self.backend == "dist" else 0
        oracle = PenaltyOracle(upper, lower, len(start[0]), len(start[1]), regularizer, first_node)
        self._losses = MeanLosses(oracle, self.network, start[0])
        self._y0 = as_vector(start[1])
        self._iteration = NodeIteration(
            self._losses, _repeated(start, self.network.n_local), options, as_generator(rng)
        )
        self._scales = step_scales(
            (gamma_x, gamma_y, gamma_z),
            options.sigma,
            lower.smoothness if smoothness is None else smoothness,
            lambda: estimate_smoothness(self._losses, as_vector(start[0]), self._y0),
        )
        self.history: dict[str, list[float]] = {}
        self._elapsed = 0.0
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
        x0, y0, options = options_of_problem(problem, noise, options)
        return cls(problem.f, problem.g, x0, y0, graph, **options)

    @np.errstate(**_QUIET)
    def step(self) -> None:
        """Make one iteration.

        Raises
        ------
        ValueError
            If a gradient is not finite; nothing has changed then but the state of ``rng``.
        """
        self._iteration.advance(self._scales)

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
            ``callback(solver)`` is called with every row of the history; if what it returns is true, the run stops.
            Processes must agree on it.

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
        with np.errstate(**_QUIET):
            try:
                status = self._iterate(n_iter, every, tol, callback, began)
            finally:
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
        oracle = self._losses.oracle
        return self._iteration.state_dict() | {
            "messages_sent": self.network.messages_sent,
            "bytes_sent": self.network.bytes_sent,
            "evaluations": (oracle.upper.evaluations, oracle.lower.evaluations),
            "first_square": self._first_square,
            "elapsed": self._elapsed,
            "history": {name: list(column) for name, column in self.history.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned, bit for bit.

        Raises
        ------
        ValueError
            If it lacks a key, or is of another number of nodes, of other dimensions or precision, or of another kind of
            generator; nothing has changed then.
        """
        missing = sorted(set(self.state_dict()) - set(state))
        if missing:
            raise ValueError(f"state must be what state_dict returns, got no {', '.join(missing)}")
        self._iteration.load_state_dict(state)
        self.network.messages_sent, self.network.bytes_sent = state["messages_sent"], state["bytes_sent"]
        oracle = self._losses.oracle
        oracle.upper.evaluations, oracle.lower.evaluations = state["evaluations"]
        self._first_square, self._elapsed = state["first_square"], state["elapsed"]
        self.history = {name: list(column) for name, column in state["history"].items()}

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return self._iteration.count

    @property
    def sigma(self) -> float:
        """Penalty parameter at present."""
        return self._iteration.sigma

    @property
    def gamma_x(self) -> float:
        """Scale of the steps of ``x`` at the present ``sigma``."""
        return self._iteration.gamma_x(self._scales)

    @property
    def x_nodes(self) -> Stack:
        """The ``x`` of the nodes at hand, of shape (K, d_x)."""
        return copied(self._iteration.nodes.states[:, self._losses.oracle.blocks[0]])

    def _iterate(
        self, n_iter: int, every: int, tol: float | None, callback: Callable[..., Any] | None, began: float
    ) -> str:
        """Iterations of one call of :meth:`run`, and why they ended."""
        if self._first_square is None:
            self._first_square = self._stationarity(n_halvings=0).refined ** 2
            self._record(0.0, began)
        for done in range(1, n_iter + 1):
            logs = done % every == 0 or done == n_iter
            motion_error = self._iteration.advance(self._scales, audit=logs)
            # Processes would have to agree on it, so they look at it together and less often.
            if (logs or self.backend != "dist") and self._iteration.has_diverged():
                return "diverged"
            if logs:
                self._record(motion_error, began)
                if callback is not None and callback(self):
                    return "stopped"
                # The estimate of the history costs little; where it is small, the certified one is made.
                if tol is not None and self.history["stationarity"][-1] <= tol and self._stationarity().bound <= tol:
                    return "converged"
        return "budget"

    def _record(self, motion_error: float, began: float) -> None:
        iteration = self._iteration
        row = {"iteration": iteration.count, "seconds": time.perf_counter() - began}
        row |= history_row(iteration.nodes, self._losses, self._settings(), math.sqrt(iteration.first_size))
        row |= {"motion_error": motion_error, "bytes_sent": self.network.traffic()[1]}
        for name, number in row.items():
            self.history.setdefault(name, []).append(number)

    def _settings(self) -> ReportSettings:
        return ReportSettings(
            self.sigma,
            self._scales.y,
            self._scales.z,
            self.refine_steps,
            self._iteration.options.bounds,
            self.true_hypergradient,
        )

    def _stationarity(self, n_halvings: int = 2) -> Stationarity:
        means = self._iteration.nodes.means(self.network, self._losses.oracle.blocks)
        return measure_stationarity(self._losses, self._settings(), *means, n_halvings=n_halvings)

    def _report(self, tol: float | None, status: str) -> DecentralizedResult:
        iteration, oracle = self._iteration, self._losses.oracle
        return report_run(
            iteration.nodes,
            self._losses,
            self._settings(),
            self._stationarity(),
            start=self._y0,
            allowed=_PROGRESS * self._first_square if tol is None else tol,
            consensus_tol=self.consensus_tol,
            smoothness=self._scales.smoothness,
            scale=math.sqrt(iteration.first_size),
            most_bytes=iteration.most_bytes(),
            history=self.history,
            counts={
                "n_gradients": oracle.upper.evaluations + oracle.lower.evaluations,
                "n_iter": iteration.count,
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
    >>> from assay.bilevel import stochastic_step_size
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
