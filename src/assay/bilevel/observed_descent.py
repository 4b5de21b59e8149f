"""Inner descent that leaves its scores in a Fisher matrix: optimising and approximating at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.bilevel.fisher_kfac import KroneckerFisher
from assay.bilevel.fisher_running import RunningFisher
from assay.bilevel.fisher_states import FisherState
from assay.bilevel.hypergradient_batches import batch_length, copy_of, join_batches, part_of
from assay.bilevel.hypergradient_problem import BilevelProblem, full_precision
from assay.validation import check_integer

__all__ = ["ObservedDescent"]

_DEFAULT_BURN_IN = 5


class ObservedDescent:
    """The inner level of a natural hypergradient.

    Parameters
    ----------
    problem : BilevelProblem
        Both losses.
    running : RunningFisher
        Where the scores go.
    burn_in : int or None
        Steps before the first hypergradient whose scores a sum leaves out; None is 5.
    cross_batch : tree of Tensor, int, or None
        Samples of the mixed derivative: a batch; the last so many of the inner steps since the last hypergradient; all
        of these.
    """

    def __init__(self, problem: BilevelProblem, running: RunningFisher, burn_in: int | None, cross_batch: Any):
        if isinstance(cross_batch, int | np.integer):
            cross_batch = check_integer(cross_batch, "cross_batch", minimum=1)
        elif cross_batch is not None:
            batch_length(cross_batch, "cross_batch")
        self.problem, self.fisher, self.burn_in, self.cross_batch = problem, running.fisher, burn_in, cross_batch
        self.n_outer = self.n_inner = 0
        self._running = running
        self._recent: list[Any] = []

    @property
    def state(self) -> FisherState | KroneckerFisher:
        """The Fisher matrix, with all updates made."""
        return self._running.ready()

    @property
    def n_samples(self) -> int:
        """Scores that the Fisher matrix has."""
        return self.state.n_samples

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
            If the gradient has a nan or an infinity, or scores are too large to be squared, with the number of the step
            (nothing has changed then), the batch is empty, or losses or weights have another shape.
        """
        loss = self.inner_gradient(batch)
        if self.cross_batch is None or isinstance(self.cross_batch, int):
            self._keep(batch)
        self.n_inner += 1
        return loss

    def _keep(self, batch: Any) -> None:
        """Remember samples for the mixed derivative, as many as it takes."""
        self._recent.append(copy_of(batch))
        if self.cross_batch is not None:
            later = sum(batch_length(other) for other in self._recent[1:])
            while len(self._recent) > 1 and later >= self.cross_batch:
                self._recent.pop(0)
                later -= batch_length(self._recent[0])

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
            scores = self._running.scores(theta, v, batch)
            gradient, penalty = scores.gradient.detach(), None
            if problem.ridge.present:
                flat = problem.inner.flat(theta)
                pull = problem.ridge.checked(v) * flat
                gradient, penalty = gradient + pull, 0.5 * (pull @ flat)
        value = scores.checked(f"in inner step {self.n_inner + 1}", penalty)
        if observe and not self._burning_in():
            self._running.take(scores)
        for parameter, part in zip(problem.inner.tensors, problem.inner.split(gradient), strict=True):
            parameter.grad = part
        return value

    def _burning_in(self) -> bool:
        if self.fisher != "average" or self.n_outer:
            return False
        return self.n_inner < (_DEFAULT_BURN_IN if self.burn_in is None else self.burn_in)

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
                scores = self._running.scores(theta, v, part_of(batch, start, batch_size))
                scores.checked("at inner_params")
                self._running.take(scores)

    def observe(self, scores: Any, weights: Any = None) -> None:
        """Take in scores from an inner loop of your own; there is no burn-in for these.

        Parameters
        ----------
        scores : Tensor or array_like of shape (n, d) or (d,)
            Unweighted gradients of single samples, in the order of ``inner_params``.
        weights : Tensor or array_like of shape (n,), optional
            Weights of the samples, at least 0.

        Raises
        ------
        TypeError
            With ``fisher="kfac"``, which needs inputs and output gradients of layers, or if something is no number.
        ValueError
            If the shapes are wrong, or something is nan, infinite, negative, or too large to be squared.
        """
        self._running.observe(scores, weights, f"after inner step {self.n_inner}")

    def cross_samples(self, cross_batch: Any, otherwise: Any) -> Any:
        """Samples of the mixed derivative: those given, or of the settings, or ``otherwise`` if there are none."""
        if cross_batch is not None:
            batch_length(cross_batch, "cross_batch")
            return cross_batch
        if self.cross_batch is not None and not isinstance(self.cross_batch, int):
            return self.cross_batch
        if self._recent:
            return join_batches(self._recent, self.cross_batch)
        if otherwise is None:
            raise ValueError("cross_batch must be given when no inner step has been made, got None")
        # Several hypergradients without an inner step between them share their samples.
        return otherwise

    def state_dict(self) -> dict[str, Any]:
        """The Fisher matrix, the counters and the batches since the last hypergradient."""
        recent = [copy_of(batch) for batch in self._recent]
        return {**self._running.state_dict(), "n_outer": self.n_outer, "n_inner": self.n_inner, "recent": recent}

    def load_state_dict(self, state: Any) -> None:
        """Go on from what :meth:`state_dict` returned."""
        self._running.load_state_dict(state, ("n_outer", "n_inner", "recent"))
        self.n_outer, self.n_inner = int(state["n_outer"]), int(state["n_inner"])
        self._recent = [copy_of(batch) for batch in state["recent"]]
