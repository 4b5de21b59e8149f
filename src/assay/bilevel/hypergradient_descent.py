"""Both levels of a bilevel problem in one loop: some inner steps, then an outer step along a natural hypergradient."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch.optim import Optimizer

from assay.bilevel.hypergradient_certificate import HypergradientReport
from assay.bilevel.natural_hypergradient import NaturalHypergradient
from assay.validation import check_choice, check_integer

__all__ = ["NHGD"]


class NHGD:
    """Natural hypergradient descent with any two torch optimizers.

    Parameters
    ----------
    hypergradient : NaturalHypergradient
        The problem and its Fisher matrix. Its ``burn_in``, if None, becomes half of ``inner_steps``.
    inner_opt : torch.optim.Optimizer
        Of the inner parameters.
    outer_opt : torch.optim.Optimizer
        Of the outer parameters, which must require gradients.
    inner_steps : int, default=10
        Inner steps before every outer step.
    certify : {None, "residual", "bound", "cg"}, default=None
        What is measured beyond the solve and the inner gradient at every outer step: the residual in the system of
        the true Hessian (one product), also a bound on the error, also a comparison with conjugate gradients.

    Attributes
    ----------
    n_outer : int
        Outer steps.

    Raises
    ------
    TypeError, ValueError
        If an argument is not of its type, or an optimizer has other parameters than its level.

    References
    ----------
    .. [1] Kong, Chen, Zhang, Mou. Natural Hypergradient Descent: Algorithm Design, Convergence Analysis, and Parallel
       Implementation. ICML 2026, arXiv:2602.10905.

    Examples
    --------
    Weights of samples, of which the second half is wrong:

    >>> import torch
    >>> from assay.bilevel.hypergradient_descent import NHGD
    >>> from assay.bilevel.natural_hypergradient import NaturalHypergradient
    >>> x = torch.linspace(-1, 1, 40)
    >>> y = torch.where(torch.arange(40) % 2 == 0, 2 * x, -2 * x)
    >>> theta, v = torch.zeros(1, requires_grad=True), torch.zeros(40, requires_grad=True)
    >>> hyper = NaturalHypergradient(
    ...     theta,
    ...     lambda theta, v, index: 0.5 * (theta * x[index] - y[index]) ** 2,
    ...     lambda theta, v, _: 0.5 * (theta * x - 2 * x).square().mean(),
    ...     outer_params=v,
    ...     sample_weight=lambda v, index: torch.sigmoid(v[index]),
    ...     ridge=1e-3,
    ... )
    >>> train = NHGD(hyper, torch.optim.SGD([theta], lr=0.5), torch.optim.Adam([v], lr=0.1))
    >>> batches = [torch.arange(40)] * 10
    >>> losses = [train.step(batches, None)["outer_loss"] for _ in range(30)]
    >>> losses[-1] < 0.1 * losses[0], bool((v[::2] > v[1::2]).all())
    (True, True)
    """

    def __init__(
        self,
        hypergradient: Any,
        inner_opt: Any,
        outer_opt: Any,
        *,
        inner_steps: int = 10,
        certify: str | None = None,
    ):
        if not isinstance(hypergradient, NaturalHypergradient):
            raise TypeError(f"hypergradient must be a NaturalHypergradient, got {type(hypergradient).__name__}")
        for name, optimizer, level in (
            ("inner_opt", inner_opt, hypergradient.problem.inner),
            ("outer_opt", outer_opt, hypergradient.problem.outer),
        ):
            if not isinstance(optimizer, Optimizer):
                raise TypeError(f"{name} must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
            held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            if not held <= {id(tensor) for tensor in level.tensors}:
                raise ValueError(f"{name} must have parameters of its own level only, got others too")
        self.inner_steps = check_integer(inner_steps, "inner_steps", minimum=1)
        self.certify = None if certify is None else check_choice(certify, "certify", ("residual", "bound", "cg"))
        if hypergradient.burn_in is None:
            hypergradient.burn_in = self.inner_steps // 2
        self.hyper, self.inner_opt, self.outer_opt = hypergradient, inner_opt, outer_opt

    @property
    def n_outer(self) -> int:
        """Outer steps."""
        return self.hyper.n_outer

    def step(
        self, inner_iter: Any, outer_batch: Any = None, cross_batch: Any = None
    ) -> dict[str, float | HypergradientReport]:
        """Make the inner steps and one outer step.

        Parameters
        ----------
        inner_iter : iterable
            Batches of the inner problem, at least ``inner_steps``; an iterator is advanced by as many.
        outer_batch : object, optional
            Passed to the outer loss.
        cross_batch : tree of Tensor, optional
            Samples of the mixed derivative, in place of those of the constructor.

        Returns
        -------
        dict
            ``outer_loss`` before the outer step; ``inner_loss``, the mean over the inner steps; ``seconds_inner`` and
            ``seconds_hyper``, of the inner steps and of the outer one without its certificate; ``certificate``, a
            :class:`~assay.bilevel.HypergradientReport`.

        Raises
        ------
        TypeError
            If ``inner_iter`` is no iterable.
        ValueError
            If there are not as many batches, or something is not finite: no outer step is made then.
        """
        if not isinstance(inner_iter, Iterable) and not hasattr(inner_iter, "__getitem__"):
            raise TypeError(f"inner_iter must be an iterable of batches, got {type(inner_iter).__name__}")
        started = time.perf_counter()
        losses = [self._inner_step(batch) for batch in islice(inner_iter, self.inner_steps)]
        if len(losses) < self.inner_steps:
            raise ValueError(f"inner_iter must give {self.inner_steps} batches, got {len(losses)}")
        self._synchronize()
        between = time.perf_counter()
        value, report, measuring = self._outer_step(outer_batch, cross_batch)
        self._synchronize()
        return {
            "outer_loss": value,
            "inner_loss": sum(losses) / len(losses),
            "seconds_inner": between - started,
            "seconds_hyper": time.perf_counter() - between - measuring,
            "certificate": report,
        }

    def _inner_step(self, batch: Any) -> float:
        calls: list[float] = []

        def closure() -> float:
            # An optimizer with a line search evaluates several times: only where the step begins are scores taken in.
            loss = self.hyper.inner_gradient(batch, observe=False) if calls else self.hyper.inner_step(batch)
            calls.append(loss)
            return loss

        self.inner_opt.step(closure)
        return calls[0]

    def _outer_step(self, outer_batch: Any, cross_batch: Any) -> tuple[float, HypergradientReport, float]:
        values: list[float] = []
        reports: list[HypergradientReport] = []
        measuring = [0.0]
        outer = self.hyper.problem.outer

        def closure() -> float:
            found = self.hyper.hypergradient(outer_batch, cross_batch, count=not values)
            values.append(float(self.hyper.outer_loss))
            if not reports:
                begin = time.perf_counter()
                reports.append(self._report())
                measuring[0] = time.perf_counter() - begin
            for parameter, part in zip(outer.tensors, found, strict=True):
                parameter.grad = part
            return values[-1]

        self.outer_opt.step(closure)
        return values[0], reports[0], measuring[0]

    def _report(self) -> HypergradientReport:
        if self.certify is None:
            return self.hyper.certify(residual=False)
        return self.hyper.certify(
            bound=self.certify in ("bound", "cg"), reference="cg" if self.certify == "cg" else None
        )

    def _synchronize(self) -> None:
        device = self.hyper.problem.inner.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def state_dict(self) -> dict[str, Any]:
        """State of the Fisher matrix and of both optimizers, for :func:`torch.save`."""
        return {
            "hypergradient": self.hyper.state_dict(),
            "inner_opt": self.inner_opt.state_dict(),
            "outer_opt": self.outer_opt.state_dict(),
        }

    def load_state_dict(self, state: Any) -> None:
        """Go on from what :meth:`state_dict` returned; the parameters have to be loaded by themselves.

        Raises
        ------
        ValueError
            If it is not of this kind and size.
        """
        names = ("hypergradient", "inner_opt", "outer_opt")
        missing = [name for name in names if not isinstance(state, Mapping) or name not in state]
        if missing:
            raise ValueError(f"state must have {', '.join(missing)}")
        self.hyper.load_state_dict(state["hypergradient"])
        self.inner_opt.load_state_dict(state["inner_opt"])
        self.outer_opt.load_state_dict(state["outer_opt"])
