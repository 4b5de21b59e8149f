r"""Natural hypergradients: the curvature that a hypergradient needs, from the gradients that descent computes anyway.

In a bilevel problem :math:`\min_v f(\theta^*(v), v)` with :math:`\theta^*(v) = \arg\min_\theta g(\theta, v)` the
gradient is

.. math:: \nabla\Phi = \partial_v f - (\partial^2_{v\theta} g)\, w, \qquad w = [\partial^2_{\theta\theta} g]^{-1}
          \partial_\theta f.

When ``g`` is a mean negative log-likelihood and the model is right, its Hessian is the Fisher matrix, the mean outer
product of the scores: the gradients of single samples whose mean is the step of stochastic descent. So the inner loop
optimises and approximates at once, and a hypergradient costs one solve and one mixed derivative; there is no product
with a Hessian. Where the model is wrong (label noise, truncated training) the Fisher matrix is not the Hessian however
many samples there are; the certificate measures by how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.bilevel.fisher_kfac import KroneckerFisher
from assay.bilevel.fisher_scores import LayerScores, Scores, map_scores, micro_batch_scores, refuse_batch_norm
from assay.bilevel.fisher_states import AverageFisher, FisherState, SmoothedFisher, WindowFisher
from assay.bilevel.fisher_worker import UpdateWorker
from assay.bilevel.hypergradient_certificate import HypergradientReport, certify_solution
from assay.bilevel.hypergradient_problem import (
    BilevelProblem,
    ParameterSet,
    batch_length,
    full_precision,
    join_batches,
    part_of,
)
from assay.validation import check_choice, check_integer, check_real

__all__ = ["NaturalHypergradient"]

_DEFAULT_BURN_IN = 5


class NaturalHypergradient:
    r"""Hypergradients from the scores of inner descent, without products with a Hessian.

    The inner problem is :math:`g(\theta, v) = \mathrm{mean}_i\, c_i(v) \ell_i(\theta, v) + \frac12 \sum_j R_j(v)
    \theta_j^2`, the outer one :math:`\min_v f(\theta^*(v), v)`.

    Parameters
    ----------
    inner_params : torch.nn.Module, Tensor, sequence or mapping of Tensor
        :math:`\theta`, in float32 or float64. Of a module, the parameters that require gradients.
    inner_loss_per_sample : callable
        ``inner_loss_per_sample(theta, v, batch)`` returns :math:`\ell_i`, shape ``(n,)``: a negative log-likelihood per
        sample, without weight and ridge. ``theta`` and ``v`` come in the structure of ``inner_params`` and
        ``outer_params`` (a dict for a module, to be used with :func:`torch.func.functional_call`).
    outer_loss : callable
        ``outer_loss(theta, v, outer_batch)`` returns :math:`f`.
    outer_params : torch.nn.Module, Tensor, sequence or mapping of Tensor
        :math:`v`.
    sample_weight : callable, optional
        ``sample_weight(v, batch)`` returns :math:`c_i(v) \ge 0`, shape ``(n,)``. A weight enters the outer product of a
        score once; inside ``inner_loss_per_sample`` it would enter twice.
    fisher : {"smoothed", "average", "kfac", "window"}, default="smoothed"
        Exponential average; sum over all scores (what the theory is about); Kronecker factors of Linear, Conv1d and
        Conv2d layers; the last scores themselves. The first two take ``d^2`` numbers.
    ridge : float, Tensor, structure like ``inner_params``, or callable, default=0.0
        :math:`R`: a number, a vector of one per entry of theta, or a function of ``v``. Its curvature is added exactly
        (in ``"kfac"``, its mean).
    damping : float, default=1e-3
        Added to the diagonal in every solve; not used by ``"average"``.
    gamma0 : float, default=1.0
        Multiple of the identity that the sum of ``"average"`` begins with.
    beta : float, default=0.1
        Weight of the newest batch in ``"smoothed"`` and ``"kfac"``.
    window : int, default=512
        Scores that ``"window"`` keeps.
    burn_in : int, optional
        Inner steps before the first hypergradient whose scores ``"average"`` leaves out. By default 5, half of ten
        inner steps; :class:`~assay.bilevel.NHGD` takes half of the steps that it makes.
    reset : {"never", "outer"}, default="never"
        Whether scores are forgotten after every hypergradient. Old scores belong to an old ``v``.
    parallel : {"sync", "thread", "stream"}, default="sync"
        Where the Fisher matrix is updated: in turn with descent, in a thread, or on a second CUDA stream. The results
        are the same.
    cross_batch : tree of Tensor or int, optional
        Samples of the mixed derivative: a batch, such as all inner data; by default those of the inner steps since the
        last hypergradient; a number takes the last so many of these.
    micro_batch : int, optional
        Take means over so many samples in place of scores, for models in which samples have no gradient of their own.
        Right on average only where the inner gradient vanishes.

    Attributes
    ----------
    w : Tensor of shape (d,)
        The solution that the last hypergradient was made of.
    n_samples : int
        Scores that the Fisher matrix has.
    n_hvp : int
        Products with the Hessian that hypergradients took: always 0. Those of :meth:`certify` are in its report.

    Raises
    ------
    TypeError
        For parameters that are sparse or of another dtype, a model that cannot have scores, or ``"kfac"`` with
        parameters outside its layers.
    ValueError
        For settings out of range, inner parameters without gradients, or a dense matrix for more than 8000 parameters.

    Notes
    -----
    Beyond the gradient, an inner step with ``B`` samples takes ``O(B d^2)`` (dense), ``O(B s^2)`` with the sides ``s``
    of the layers (``"kfac"``), ``O(B d)`` (``"window"``); a solve ``O(d^2)`` (``"average"`` without ridge),
    ``O(d^3)``, ``O(s^3)``, or ``O(m^2 d)``.

    Scores are taken from the inputs and output gradients of layers where the module has Linear and convolutional layers
    only, else by :func:`torch.func.vmap`. Mixed precision is off while they are.

    References
    ----------
    .. [1] Kong, Chen, Zhang, Mou. Natural Hypergradient Descent: Algorithm Design, Convergence Analysis, and Parallel
       Implementation. ICML 2026, arXiv:2602.10905.

    Examples
    --------
    Responses with mean ``x'(1 + v)`` are fitted by ``x'theta``, which should be 0: the hypergradient is ``1 + v``.

    >>> import torch
    >>> from assay.bilevel.natural_hypergradient import NaturalHypergradient
    >>> generator = torch.Generator().manual_seed(0)
    >>> theta = torch.ones(2, dtype=torch.float64, requires_grad=True)
    >>> v = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    >>> def loss_per_sample(theta, v, batch):
    ...     x, noise = batch
    ...     return 0.5 * (x @ theta - (x @ (1 + v) + noise)) ** 2
    >>> hyper = NaturalHypergradient(
    ...     theta, loss_per_sample, lambda theta, v, _: 0.5 * theta.square().sum(), outer_params=v, fisher="average"
    ... )
    >>> optimizer = torch.optim.SGD([theta], lr=0.01)
    >>> for _ in range(200):
    ...     batch = [torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((32, 2), (32,))]
    ...     loss = hyper.inner_step(batch)
    ...     optimizer.step()
    >>> (found,) = hyper.hypergradient()
    >>> bool((found - 1).abs().max() < 0.1), hyper.n_hvp
    (True, 0)
    """

    def __init__(
        self,
        inner_params: Any,
        inner_loss_per_sample: Any,
        outer_loss: Any,
        *,
        outer_params: Any,
        sample_weight: Any = None,
        fisher: str = "smoothed",
        ridge: Any = 0.0,
        damping: float = 1e-3,
        gamma0: float = 1.0,
        beta: float = 0.1,
        window: int = 512,
        burn_in: int | None = None,
        reset: str = "never",
        parallel: str = "sync",
        cross_batch: Any = None,
        micro_batch: int | None = None,
    ):
        self.fisher = check_choice(fisher, "fisher", ("smoothed", "average", "kfac", "window"))
        self.damping = check_real(damping, "damping", minimum=0)
        gamma0 = check_real(gamma0, "gamma0", above=0)
        beta = check_real(beta, "beta", above=0, maximum=1)
        window = check_integer(window, "window", minimum=1)
        self.burn_in = None if burn_in is None else check_integer(burn_in, "burn_in", minimum=0)
        self.reset = check_choice(reset, "reset", ("never", "outer"))
        self.micro_batch = None if micro_batch is None else check_integer(micro_batch, "micro_batch", minimum=1)
        if isinstance(cross_batch, int):
            check_integer(cross_batch, "cross_batch", minimum=1)
        elif cross_batch is not None:
            batch_length(cross_batch)
        self.cross_batch = cross_batch
        inner = ParameterSet(inner_params, "inner_params", require_grad=True)
        outer = ParameterSet(outer_params, "outer_params", require_grad=False)
        self.problem = BilevelProblem(inner, outer, inner_loss_per_sample, outer_loss, sample_weight, ridge)
        self._worker = UpdateWorker(parallel, inner.device)
        self._layers = LayerScores(self.problem)
        self._layers_agree: bool | None = None
        self.state = self._make_state(gamma0, beta, window)
        self.n_hvp = self.n_outer = self.n_inner = 0
        self._recent: list[Any] = []
        self._forget = False
        self._last: dict[str, Any] = {}

    def _make_state(self, gamma0: float, beta: float, window: int) -> FisherState | KroneckerFisher:
        like = self.problem.inner.tensors[0].detach()
        dim = self.problem.inner.dim
        if self.fisher == "kfac":
            if self.micro_batch is not None:
                raise ValueError("micro_batch must be None with fisher='kfac', which needs the gradients of samples")
            if not self._layers.applicable:
                raise TypeError(
                    "inner_params must be a torch.nn.Module of Linear, Conv1d and Conv2d layers with fisher='kfac', "
                    f"but {self._layers.reason}; use 'window'"
                )
            return KroneckerFisher(self._layers, beta)
        if self.fisher == "window":
            return WindowFisher(dim, window, like)
        if self.fisher == "average":
            return AverageFisher(dim, gamma0, not self.problem.has_ridge, like)
        return SmoothedFisher(dim, beta, like)

    @property
    def n_samples(self) -> int:
        """Scores that the Fisher matrix has."""
        self._worker.barrier()
        return self.state.n_samples

    @property
    def w(self) -> Float[Tensor, " dim"]:
        """The solution that the last hypergradient was made of."""
        return self._require_last()["w"]

    def last_point(self) -> dict[str, Any]:
        """Where the last hypergradient was evaluated and what it was made of.

        Returns
        -------
        dict
            ``theta`` and ``v`` (lists of tensors), ``grad`` (outer gradient by theta), ``w``, and ``hypergradient``.
        """
        return {name: self._require_last()[name] for name in ("theta", "v", "grad", "w", "hypergradient")}

    @property
    def outer_loss(self) -> float:
        """Outer loss at the last hypergradient."""
        return float(self._require_last()["outer_loss"])

    def _require_last(self) -> dict[str, Any]:
        if not self._last:
            raise RuntimeError("hypergradient must be called before there is a solution")
        return self._last

    # ------------------------------------------------------------------------------------------------ inner level
    def inner_step(self, batch: Any) -> float:
        """Gradient of the inner objective, into ``.grad``, and scores, into the Fisher matrix.

        The step itself is that of an optimizer of yours.

        Parameters
        ----------
        batch : tree of Tensor
            Samples, along the first dimension of every tensor.

        Returns
        -------
        float
            Inner objective on the batch, ridge included.

        Raises
        ------
        TypeError
            If samples have no gradient of their own.
        ValueError
            If the gradient has a nan or an infinity, with the number of the step (nothing has changed then), the batch
            is empty, or losses or weights have another shape.
        """
        loss = self.inner_gradient(batch)
        self._recent.append(batch)
        self.n_inner += 1
        return loss

    def clear_batches(self) -> None:
        """Forget the batches of inner steps that are kept for the mixed derivative."""
        self._recent = []

    def inner_gradient(self, batch: Any, *, observe: bool = True) -> float:
        """As :meth:`inner_step` without counting a step, for optimizers that evaluate a closure several times.

        Parameters
        ----------
        batch : tree of Tensor
            Samples.
        observe : bool, default=True
            Whether the scores go into the Fisher matrix.

        Returns
        -------
        float
            Inner objective on the batch, ridge included.
        """
        batch_length(batch)
        problem = self.problem
        theta, v = problem.inner.detached(), problem.outer.detached()
        with full_precision(problem.inner.device):
            scores = self._scores(theta, v, batch)
            gradient, penalty = scores.gradient.detach(), None
            if problem.has_ridge:
                ridge, flat = problem.checked_ridge(), problem.inner.flat(theta)
                pull = ridge * flat
                gradient, penalty = gradient + pull, 0.5 * (pull @ flat)
        value = _check_scores(scores, self.n_inner + 1, penalty)
        if observe and not self._burning_in():
            self._update(scores)
        for parameter, part in zip(problem.inner.tensors, problem.inner.split(gradient), strict=True):
            parameter.grad = part
        return value

    def _scores(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> Scores:
        if self.micro_batch is not None:
            return micro_batch_scores(self.problem, theta, v, batch, self.micro_batch)
        refuse_batch_norm(self.problem.inner.module)
        if self._layers.applicable:
            if self._layers_agree is None:
                self._layers_agree = self._layers.agree(theta, v, batch)
            if self._layers_agree:
                return self._layers(theta, v, batch, rows=self.fisher != "kfac")
        if self.fisher == "kfac":
            raise TypeError(
                "inner_loss_per_sample must use its parameters by calling the module of inner_params, with "
                "torch.func.functional_call(module, theta, x), for fisher='kfac'"
            )
        return map_scores(self.problem, theta, v, batch)

    def _burning_in(self) -> bool:
        if self.fisher != "average" or self.n_outer:
            return False
        return self.n_inner < (_DEFAULT_BURN_IN if self.burn_in is None else self.burn_in)

    def _update(self, scores: Scores) -> None:
        self._reset_if_due()
        weights = None if scores.weights is None else scores.weights.detach()
        if self.fisher == "kfac":
            self._worker.submit(self.state.update, scores.layers, weights)
        else:
            self._worker.submit(self.state.update, scores.rows.detach(), weights)  # type: ignore[union-attr]

    def _reset_if_due(self) -> None:
        if self._forget:
            self._worker.barrier()
            self.state.reset()
            self._forget = False

    def take_in(self, batch: Any, batch_size: int) -> None:
        """Take in the scores of samples at the present parameters, without a step and without burn-in.

        Parameters
        ----------
        batch : tree of Tensor
            Samples.
        batch_size : int
            How many of them are in memory as scores at once.
        """
        theta, v = self.problem.inner.detached(), self.problem.outer.detached()
        with full_precision(self.problem.inner.device):
            for start in range(0, batch_length(batch), batch_size):
                scores = self._scores(theta, v, part_of(batch, start, batch_size))
                _check_scores(scores, 0)
                self._update(scores)

    def observe(self, scores: Float[Tensor, "rows dim"] | Float[Tensor, " dim"], weights: Any = None) -> None:
        """Take in scores from an inner loop of your own; there is no burn-in for these.

        Parameters
        ----------
        scores : Tensor of shape (n, d) or (d,)
            Unweighted gradients of single samples, in the order of ``inner_params``.
        weights : Tensor of shape (n,), optional
            Weights of the samples, at least 0.

        Raises
        ------
        TypeError
            With ``fisher="kfac"``, which needs inputs and output gradients of layers.
        ValueError
            If the shapes are wrong, or something is nan, infinite or negative.
        """
        if self.fisher == "kfac":
            raise TypeError("fisher='kfac' must see inputs and output gradients of layers: use inner_step")
        rows = scores.detach()[None] if scores.ndim == 1 else scores.detach()
        dim = self.problem.inner.dim
        if not len(rows) or rows.shape[1] != dim:
            raise ValueError(f"scores must have shape (n, {dim}) with n at least 1, got {tuple(scores.shape)}")
        if not bool(torch.isfinite(rows).all()):
            raise ValueError(f"scores must be finite, got a nan or an infinity after inner step {self.n_inner}")
        if weights is not None:
            weights = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device).detach()
            if weights.shape != (len(rows),) or not bool((weights >= 0).all() & torch.isfinite(weights).all()):
                raise ValueError(f"weights must be finite, at least 0, and of shape ({len(rows)},)")
        self._reset_if_due()
        like = self.problem.inner.tensors[0]
        self._worker.submit(self.state.update, rows.to(like.device, like.dtype).clone(), weights)

    # ------------------------------------------------------------------------------------------------ outer level
    def solve(self, grad: Float[Tensor, " dim"]) -> Float[Tensor, " dim"]:
        """The Fisher matrix, with ridge and damping, inverted on a vector.

        Parameters
        ----------
        grad : Tensor of shape (d,)
            Right-hand side, in the order of ``inner_params``.

        Returns
        -------
        Tensor of shape (d,)

        Raises
        ------
        ValueError
            If there are no scores, or the matrix is singular and neither ridge nor damping is positive.
        """
        self._worker.barrier()
        return self.state.solve(grad.detach(), self.problem.checked_ridge(), self.damping)

    def hypergradient(self, outer_batch: Any = None, cross_batch: Any = None, *, count: bool = True) -> list[Tensor]:
        """Gradient of the outer problem at the present parameters.

        Parameters
        ----------
        outer_batch : object, optional
            Passed to ``outer_loss``.
        cross_batch : tree of Tensor, optional
            Samples of the mixed derivative, in place of those of the constructor.
        count : bool, default=True
            Whether this is a new outer iteration; False for another evaluation in the same one.

        Returns
        -------
        list of Tensor
            One per tensor of ``outer_params``, of its shape.

        Raises
        ------
        ValueError
            If the outer loss does not depend on the inner parameters, the inner one not on the outer parameters, or
            there are no scores or no samples.
        """
        problem = self.problem
        batch = self._cross_samples(cross_batch)
        with full_precision(problem.inner.device):
            theta, v = problem.inner.leaves(), problem.outer.leaves()
            value, grad, direct = problem.outer_gradients(theta, v, outer_batch)
            w = self.solve(grad)
            cross, inner_gradient = problem.cross_term(theta, v, w, batch)
        found = [one - other for one, other in zip(direct, cross, strict=True)]
        self._last = {
            "w": w, "grad": grad, "outer_loss": value, "batch": batch, "outer_batch": outer_batch,
            "theta": [x.detach().clone() for x in theta], "v": [x.detach().clone() for x in v], "hypergradient": found,
            "stationarity": float(inner_gradient.double().norm()), "n_samples": self.state.n_samples,
            "stale": self.reset == "never" and self.n_outer > (not count),
        }  # fmt: skip
        self._recent = []
        self.n_outer += count
        self._forget = self.reset == "outer"
        return found

    def _cross_samples(self, cross_batch: Any) -> Any:
        if cross_batch is not None:
            batch_length(cross_batch)
            return cross_batch
        if self.cross_batch is not None and not isinstance(self.cross_batch, int):
            return self.cross_batch
        if not self._recent:
            # Several hypergradients without an inner step between them share their samples.
            if self._last:
                return self._last["batch"]
            raise ValueError("cross_batch must be given when no inner step has been made, got None")
        return join_batches(self._recent, self.cross_batch)

    def certify(
        self,
        *,
        residual: bool = True,
        bound: bool = False,
        reference: str | None = None,
        tol: float = 0.1,
        max_iter: int | None = None,
    ) -> HypergradientReport:
        """Measure how far the last hypergradient can be relied on, before the next inner step.

        Parameters
        ----------
        residual : bool, default=True
            Put the solution into the system of the true Hessian, for one product with it.
        bound : bool, default=False
            Estimate the norm of the mixed derivative, by 10 power steps, for a bound on the error of the hypergradient.
        reference : {"cg"}, optional
            Compare with conjugate gradients, run to 1e-8.
        tol : float, default=0.1
            Relative error up to which a hypergradient is called accurate.
        max_iter : int, optional
            Most steps of conjugate gradients.

        Returns
        -------
        HypergradientReport
        """
        last = self._require_last()
        if self.n_samples != last["n_samples"]:
            raise RuntimeError("certify must be called before the next inner step, which changes the Fisher matrix")
        return certify_solution(
            self.problem,
            last["theta"],
            last["v"],
            last["w"],
            last["hypergradient"],
            last["batch"],
            last["outer_batch"],
            **self.solve_measurements(),
            stationarity=last["stationarity"],
            per_sample=self.micro_batch is None,
            fresh=not last["stale"],
            residual=residual,
            bound=bound,
            reference=reference,
            tol=tol,
            max_iter=max_iter,
        )

    def solve_measurements(self) -> dict[str, float]:
        """Relative residual of the last solve, in float64, and the root mean square of the norms of scores."""
        last = self._require_last()
        self._worker.barrier()
        ridge = self.problem.ridge(last["v"]).detach()
        return {
            "solve_residual": self.state.residual(last["w"], last["grad"], ridge, self.damping),
            "score_size": self.state.trace() ** 0.5,
        }

    def state_bytes(self) -> int:
        """Memory of the Fisher matrix, in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state.tensors())

    def state_dict(self) -> dict[str, Any]:
        """The Fisher matrix and the counters, for :func:`torch.save`; parameters have their own."""
        self._worker.barrier()
        return {
            "fisher": self.fisher, "state": self.state.state_dict(), "n_outer": self.n_outer, "n_inner": self.n_inner,
            "forget": self._forget,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned.

        Raises
        ------
        ValueError
            If it is of another kind or size of Fisher matrix.
        """
        if state.get("fisher") != self.fisher:
            raise ValueError(f"state must be of fisher={self.fisher!r}, got {state.get('fisher')!r}")
        self._worker.barrier()
        self.state.load_state_dict(state["state"])
        self.n_outer, self.n_inner = int(state["n_outer"]), int(state["n_inner"])
        self._forget, self._recent, self._last = bool(state["forget"]), [], {}


def _check_scores(scores: Scores, step: int, penalty: Tensor | None = None) -> float:
    """Weighted mean loss of a batch and the penalty, if the scores can be used."""
    loss = scores.loss.detach() if penalty is None else scores.loss.detach() + penalty
    least = loss.new_zeros(()) if scores.weights is None else scores.weights.detach().min()
    # One transfer from the device for all that has to be known.
    value, size, lowest = torch.stack([loss, scores.gradient.detach().abs().sum(), least.to(loss.dtype)]).tolist()
    if not size < float("inf"):
        raise ValueError(f"scores must be finite, got a nan or an infinity in inner step {step}")
    if lowest < 0:
        raise ValueError(f"sample_weight must be at least 0, got {lowest:g}")
    return value
