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

from typing import Any, NoReturn

from jaxtyping import Float
from torch import Tensor

from assay.bilevel.fisher_running import RunningFisher
from assay.bilevel.hypergradient_certificate import HypergradientReport, certify_solution
from assay.bilevel.hypergradient_parameters import ParameterSet
from assay.bilevel.hypergradient_problem import BilevelProblem, full_precision
from assay.bilevel.observed_descent import ObservedDescent
from assay.validation import check_choice, check_integer, check_real

__all__ = ["NaturalHypergradient"]


class NaturalHypergradient(ObservedDescent):
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
        check_choice(fisher, "fisher", ("smoothed", "average", "kfac", "window"))
        self.damping = check_real(damping, "damping", minimum=0)
        gamma0 = check_real(gamma0, "gamma0", above=0)
        beta = check_real(beta, "beta", above=0, maximum=1)
        window = check_integer(window, "window", minimum=1)
        burn_in = None if burn_in is None else check_integer(burn_in, "burn_in", minimum=0)
        self.reset = check_choice(reset, "reset", ("never", "outer"))
        self.micro_batch = None if micro_batch is None else check_integer(micro_batch, "micro_batch", minimum=1)
        inner = ParameterSet(inner_params, "inner_params", require_grad=True)
        outer = ParameterSet(outer_params, "outer_params", require_grad=False)
        problem = BilevelProblem(inner, outer, inner_loss_per_sample, outer_loss, sample_weight, ridge)
        running = RunningFisher(
            problem, fisher, gamma0=gamma0, beta=beta, window=window, micro_batch=self.micro_batch, parallel=parallel
        )
        super().__init__(problem, running, burn_in, cross_batch)
        self.n_hvp = 0
        self._last: dict[str, Any] = {}

    # The calls of the inner level are as much part of the use as those below, and are documented with them.
    inner_step = ObservedDescent.inner_step
    inner_gradient = ObservedDescent.inner_gradient
    observe = ObservedDescent.observe
    clear_batches = ObservedDescent.clear_batches

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "NaturalHypergradient must not be copied or pickled, since its losses are functions of the tensors that it "
            "was made with; make a new one and use state_dict and load_state_dict"
        )

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

    # ------------------------------------------------------------------------------------------------ outer level
    def solve(self, grad: Any) -> Float[Tensor, " dim"]:
        """The Fisher matrix, with ridge and damping, inverted on a vector.

        Parameters
        ----------
        grad : Tensor or array_like of shape (d,)
            Right-hand side, in the order of ``inner_params``.

        Returns
        -------
        Tensor of shape (d,)

        Raises
        ------
        TypeError, ValueError
            If it is no finite vector of that shape, there are no scores, or the matrix is singular and neither ridge
            nor damping is positive.
        """
        right = self.problem.inner.vector(grad, "grad")
        return self.state.solve(right, self.problem.ridge.checked(self.problem.outer.detached()), self.damping)

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
        batch = self.cross_samples(cross_batch, self._last.get("batch"))
        with full_precision(problem.inner.device):
            theta, v = problem.inner.leaves(), problem.outer.leaves()
            value, grad, direct = problem.outer_gradients(theta, v, outer_batch)
            w = self.solve(grad)
            cross, inner_gradient = problem.cross_term(theta, v, w, batch)
        found = [one - other for one, other in zip(direct, cross, strict=True)]
        self._last = {
            "w": w, "grad": grad, "outer_loss": value, "batch": batch, "outer_batch": outer_batch,
            "theta": [x.detach().clone() for x in theta], "v": [x.detach().clone() for x in v],
            "hypergradient": [part.clone() for part in found],  # what is returned may be clipped or zeroed in place
            "stationarity": float(inner_gradient.double().norm()), "n_updates": self._running.n_updates,
            "stale": self.reset == "never" and self.n_outer > (not count),
        }  # fmt: skip
        self.clear_batches()
        self.n_outer += count
        if self.reset == "outer":
            self._running.forget_before_next()
        return found

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
        if self._running.n_updates != last["n_updates"]:
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
        last, state = self._require_last(), self.state
        ridge = self.problem.ridge(last["v"]).detach()
        return {
            "solve_residual": state.residual(last["w"], last["grad"], ridge, self.damping),
            "score_size": state.trace() ** 0.5,
        }

    def state_bytes(self) -> int:
        """Memory of the Fisher matrix, in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state.tensors())

    def state_dict(self) -> dict[str, Any]:
        """The Fisher matrix, the counters and the batches since the last hypergradient, for :func:`torch.save`.

        Parameters have their own. :func:`torch.load` reads it with ``weights_only=True`` when batches are tensors, in
        lists, tuples or dicts.
        """
        return super().state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on from what :meth:`state_dict` returned.

        Raises
        ------
        ValueError
            If it is of another kind or size of Fisher matrix, or has parts missing.
        """
        super().load_state_dict(state)
        self._last = {}
