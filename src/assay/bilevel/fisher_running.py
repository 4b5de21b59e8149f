"""A Fisher matrix that is fed while descent goes on: how scores are taken, when they count, and where they go.

The first batch decides between the layers of a module and mapping over samples. Scores of the burn-in are left out, old
ones are forgotten where that is asked for, and the update itself may run beside descent, on copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from assay.bilevel.fisher_kfac import KroneckerFisher
from assay.bilevel.fisher_layers import LayerScores
from assay.bilevel.fisher_scores import Scores, map_scores, micro_batch_scores, refuse_batch_norm
from assay.bilevel.fisher_states import AverageFisher, FisherState, SmoothedFisher, WindowFisher
from assay.bilevel.fisher_worker import UpdateWorker
from assay.bilevel.hypergradient_problem import BilevelProblem

__all__ = ["RunningFisher"]


class RunningFisher:
    """One of the four Fisher matrices, with the scores that it is made of.

    Parameters
    ----------
    problem : BilevelProblem
        Both losses.
    fisher : {"smoothed", "average", "kfac", "window"}
        Which of them.
    gamma0, beta, window : float, float, int
        Their settings.
    micro_batch : int or None
        Means over so many samples in place of scores.
    parallel : {"sync", "thread", "stream"}
        Where it is updated.

    Attributes
    ----------
    n_updates : int
        Batches that were taken in; tells two states of the matrix apart.

    Raises
    ------
    TypeError
        If Kronecker factors are asked of parameters outside Linear and convolutional layers.
    ValueError
        If they are asked of micro-batches, a dense matrix would be too large, or there is no second CUDA stream.
    """

    def __init__(
        self,
        problem: BilevelProblem,
        fisher: str,
        *,
        gamma0: float,
        beta: float,
        window: int,
        micro_batch: int | None,
        parallel: str,
    ):
        self.problem, self.fisher, self.micro_batch = problem, fisher, micro_batch
        self._worker = UpdateWorker(parallel, problem.inner.device)
        self._layers = LayerScores(problem)
        self._layers_agree: bool | None = None
        self.state = self._make_state(gamma0, beta, window)
        self.n_updates = 0
        self._forget = False

    def _make_state(self, gamma0: float, beta: float, window: int) -> FisherState | KroneckerFisher:
        like, dim = self.problem.inner.tensors[0].detach(), self.problem.inner.dim
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
            return AverageFisher(dim, gamma0, not self.problem.ridge.present, like)
        return SmoothedFisher(dim, beta, like)

    # ------------------------------------------------------------------------------------------------ scores
    def scores(self, theta: Sequence[Tensor], v: Sequence[Tensor], batch: Any) -> Scores:
        """Scores of a batch, in the form that the matrix takes."""
        if self.micro_batch is not None:
            return micro_batch_scores(self.problem, theta, v, batch, self.micro_batch)
        refuse_batch_norm(self.problem.inner.module)
        if self._layers.applicable:
            if self._layers_agree is None:
                self._layers_agree = self._layers.agree(theta, v, batch)
            if self._layers_agree is not False:
                return self._layers(theta, v, batch, rows=self.fisher != "kfac")
        if self.fisher == "kfac":
            raise TypeError(
                "inner_loss_per_sample must use its parameters by calling the module of inner_params, with "
                "torch.func.functional_call(module, theta, x), for fisher='kfac'"
            )
        return map_scores(self.problem, theta, v, batch)

    def take(self, scores: Scores) -> None:
        """Take in what :meth:`scores` returned, now or beside descent."""
        if self._forget:
            self.forget()
        weights = None if scores.weights is None else scores.weights.detach()
        taken = scores.layers if self.fisher == "kfac" else scores.rows.detach()  # type: ignore[union-attr]
        if self._worker.kind != "sync":
            # Weights and inputs of layers may be views of what the user goes on to change.
            weights = None if weights is None else weights.clone()
            if self.fisher == "kfac":
                taken = [replace(record, inputs=record.inputs.clone()) for record in scores.layers]
        self._submit(taken, weights)

    def observe(self, scores: Any, weights: Any, where: str) -> None:
        """Take in scores from outside; ``where`` is said in messages."""
        if self.fisher == "kfac":
            raise TypeError("fisher='kfac' must see inputs and output gradients of layers: use inner_step")
        inner = self.problem.inner
        rows = inner.numbers(scores, "scores", where)
        rows = rows[None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != inner.dim:
            raise ValueError(f"scores must have shape (n, {inner.dim}) with n at least 1, got {tuple(rows.shape)}")
        if weights is not None:
            weights = inner.numbers(weights, "weights", where)
            if weights.shape != (len(rows),) or not bool((weights >= 0).all()):
                raise ValueError(f"weights must be finite, at least 0, and of shape ({len(rows)},)")
        flat = rows.reshape(-1)
        if not float(flat @ flat) < math.inf:
            raise ValueError(f"scores must have squares that are finite in {rows.dtype}, got larger ones {where}")
        if self._forget:
            self.forget()
        self._submit(rows, weights)

    def _submit(self, *arguments: Any) -> None:
        self.n_updates += 1
        self._worker.submit(self.state.update, *arguments)

    def forget(self) -> None:
        """Leave nothing of the scores so far."""
        self._worker.barrier()
        self.state.reset()
        self._forget = False

    def forget_before_next(self) -> None:
        """Forget all scores when the next ones come."""
        self._forget = True

    # ----------------------------------------------------------------------------------------------- results
    def ready(self) -> FisherState | KroneckerFisher:
        """The matrix with all updates made."""
        self._worker.barrier()
        return self.state

    def state_dict(self) -> dict[str, Any]:
        """Everything that was learned."""
        return {"fisher": self.fisher, "state": self.ready().state_dict(), "forget": self._forget}

    def load_state_dict(self, state: Any, others: Sequence[str] = ()) -> None:
        """Go on from what :meth:`state_dict` returned; ``others`` are names that must be there too."""
        found = state.get("fisher") if isinstance(state, Mapping) else type(state).__name__
        if found != self.fisher:
            raise ValueError(f"state must be of fisher={self.fisher!r}, got {found!r}")
        missing = [name for name in ("state", "forget", *others) if name not in state]
        if missing:
            raise ValueError(f"state must have {', '.join(missing)}, got {', '.join(state)}")
        self.ready().load_state_dict(state["state"])
        self._forget = bool(state["forget"])
        self.n_updates += 1
