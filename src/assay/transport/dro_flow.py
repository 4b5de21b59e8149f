r"""Distributionally robust training of any torch model, by sampling from its worst case.

The robust loss is :math:`V(\theta) = \max_\rho E_\rho f_\theta - W_{2,\varepsilon}^2(\rho, \hat\rho) / 2\tau`. Its
gradient is that of the ordinary loss, averaged over the worst case (the envelope theorem),

.. math:: \nabla V(\theta) = \frac1n \sum_x E_{y \sim p_x} \nabla_\theta f_\theta(y),

so training alternates two things that are both at hand: draw particles from :math:`p_x` with the model frozen, and make
one step of whatever optimizer is in use on the weighted loss of the particles. Nothing is derived for the model at
hand, and the loss need not be convex.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.transport.flow_problem import WorstCaseProblem, as_features, as_labels, evaluate_loss
from assay.transport.flow_sampler import FlowSampler, WorstCase
from assay.validation import check_integer

__all__ = ["DROTrainer", "frozen_evaluation", "loss_of_features"]


class DROTrainer:
    r"""Train a model against the worst case near its data.

    Parameters
    ----------
    model : torch.nn.Module
        Any model; it is trained in place.
    loss : callable
        ``loss(model(x), y)`` returns one loss per sample, e.g. ``torch.nn.CrossEntropyLoss(reduction="none")``.
    optimizer : torch.optim.Optimizer
        Any optimizer of the model's parameters, also one that evaluates a closure more than once.
    sampler : FlowSampler
        How to draw from the worst case.
    project : callable, optional
        ``project(model)`` is called without gradients after every step, to bring the parameters back into a set.

    Attributes
    ----------
    history : dict of str to numpy.ndarray
        ``epoch``, ``loss`` (mean robust loss of the epoch) and ``seconds``, over all calls of :meth:`fit`.

    Raises
    ------
    TypeError
        If an argument is not of its type.

    Notes
    -----
    While particles are drawn the model is in evaluation mode: dropout is off, batch normalisation uses its running
    statistics and does not update them. For the step itself every module is back in the mode that it had. Cost of a
    step with Langevin flows: as many forward and backward passes as the sampler has steps, on batches ``particles``
    times as large, and one more for the parameters.

    Learning rate schedulers belong to ``optimizer`` as usual. Data go to the device and dtype of the model's first
    parameter if they are arrays or integers; floating-point tensors are used as they are.

    References
    ----------
    .. [1] Z. Xu, J.-J. Zhu. Gradient Flow Sampler-based Distributionally Robust Optimization. ICML 2026,
       arXiv:2510.25956.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import DROTrainer, FlowSampler
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(64, 2, generator=generator)
    >>> y = (x[:, 0] > 0).long()
    >>> model = torch.nn.Linear(2, 2)
    >>> trainer = DROTrainer(
    ...     model,
    ...     torch.nn.CrossEntropyLoss(reduction="none"),
    ...     torch.optim.Adam(model.parameters(), lr=0.1),
    ...     FlowSampler("wgf", tau=0.3, epsilon=0.05, generator=generator),
    ... )
    >>> losses = [trainer.step(x, y) for _ in range(20)]
    >>> losses[-1] < losses[0]
    True
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        sampler: FlowSampler,
        project: Callable[[torch.nn.Module], Any] | None = None,
    ):
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if not callable(loss):
            raise TypeError(f"loss must be a callable loss(output, y), got {type(loss).__name__}")
        # Wrappers of optimizers need not derive from Optimizer.
        if not all(callable(getattr(optimizer, name, None)) for name in ("step", "zero_grad")):
            raise TypeError(f"optimizer must have step and zero_grad, got {type(optimizer).__name__}")
        if not isinstance(sampler, FlowSampler):
            raise TypeError(f"sampler must be a FlowSampler, got {type(sampler).__name__}")
        if project is not None and not callable(project):
            raise TypeError(f"project must be a callable project(model) or None, got {type(project).__name__}")
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.sampler = sampler
        self.project = project
        self.history: dict[str, np.ndarray] = {name: np.zeros(0) for name in ("epoch", "loss", "seconds")}

    def worst_case(self, x: Any, y: Any = None) -> WorstCase:
        """Draw from the worst case of the model as it is, e.g. for a stress test.

        Parameters
        ----------
        x : torch.Tensor or array_like of shape (n, ...)
            Data points.
        y : torch.Tensor or array_like of shape (n, ...), optional
            Labels.

        Returns
        -------
        WorstCase
        """
        return self._draw(x, y)[1]

    def step(self, x: Any, y: Any = None) -> float:
        """Draw particles for a batch and make one step of the optimizer.

        Parameters
        ----------
        x : torch.Tensor or array_like of shape (batch, ...)
            Data points.
        y : torch.Tensor or array_like of shape (batch, ...), optional
            Labels.

        Returns
        -------
        float
            Mean loss over the particles before the step.

        Raises
        ------
        TypeError, ValueError
            As :meth:`FlowSampler.sample`.
        """
        problem, worst = self._draw(x, y)
        particles = worst.weights.shape[1]
        features = problem.features(worst.points.flatten(2))
        labels = problem.repeated_labels(particles)
        shares = worst.weights.flatten() / len(problem)

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            with torch.enable_grad():
                values = evaluate_loss(self._loss_of_output, features, labels)
                robust = (shares * values).sum()
                robust.backward()
            return robust.detach()

        robust = self.optimizer.step(closure)
        if self.project is not None:
            with torch.no_grad():
                self.project(self.model)
        return float(robust)

    def fit(self, loader: Iterable[Any], epochs: int = 1, *, scheduler: Any = None) -> DROTrainer:
        """Train for some epochs.

        Parameters
        ----------
        loader : iterable
            Batches ``(x, y)`` or ``x``, such as a ``torch.utils.data.DataLoader``; gone through once every epoch.
        epochs : int, default=1
            How often.
        scheduler : torch.optim.lr_scheduler.LRScheduler, optional
            Stepped after every epoch.

        Returns
        -------
        DROTrainer
            The trainer itself.

        Raises
        ------
        ValueError
            If ``loader`` has no batches, or cannot be gone through as often as there are epochs.
        """
        epochs = check_integer(epochs, "epochs", minimum=0)
        if iter(loader) is loader and epochs > 1:
            raise ValueError("loader must give its batches again in every epoch, got an iterator")
        for _ in range(epochs):
            started = time.perf_counter()
            losses, sizes = [], []
            for batch in loader:
                x, y = batch if isinstance(batch, tuple | list) else (batch, None)
                losses.append(self.step(x, y))
                sizes.append(len(x))
            if not losses:
                raise ValueError("loader must have at least 1 batch, got none")
            row = (len(self.history["epoch"]), np.average(losses, weights=sizes), time.perf_counter() - started)
            self.history = {
                name: np.append(column, entry) for (name, column), entry in zip(self.history.items(), row, strict=True)
            }
            if scheduler is not None:
                scheduler.step()
        return self

    def state_dict(self) -> dict[str, Any]:
        """State of the model, the optimizer, the generator and the history, for :func:`torch.save`."""
        generator = self.sampler.generator
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": None if generator is None else generator.get_state(),
            "history": {name: torch.from_numpy(column.copy()) for name, column in self.history.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["generator"] is not None and self.sampler.generator is not None:
            self.sampler.generator.set_state(state["generator"])
        self.history = {name: column.numpy().copy() for name, column in state["history"].items()}

    def _draw(self, x: Any, y: Any) -> tuple[WorstCaseProblem, WorstCase]:
        features = for_model(self.model, x)
        problem = WorstCaseProblem(
            loss_of_features(self.model, self.loss),
            features,
            as_labels(y, features),
            self.sampler.tau,
            self.sampler.epsilon,
        )
        with frozen_evaluation(self.model):
            return problem, self.sampler.sample_problem(problem)

    def _loss_of_output(self, features: Tensor, labels: Tensor | None) -> Any:
        return self.loss(self.model(features), labels)


def loss_of_features(model: torch.nn.Module, loss: Callable[..., Any]) -> Callable[[Tensor, Any], Any]:
    """The loss of a model as a function of the features."""

    def composed(features: Tensor, labels: Any) -> Any:
        return loss(model(features), labels)

    return composed


def for_model(model: torch.nn.Module, x: Any) -> Tensor:
    """Data points where the model is, and in its dtype unless they are floating-point tensors already."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        return as_features(x)
    if isinstance(x, Tensor) and x.is_floating_point():
        return as_features(x.to(parameter.device))
    return as_features(x).to(parameter.device, parameter.dtype)


@contextmanager
def frozen_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, after which every module is back in its own."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
