"""A classifier that is trained against shifts of its features, for scikit-learn.

A linear softmax model or a network with smooth activations, trained by :class:`~assay.transport.DROTrainer` on the
worst case near the training data instead of the training data. What it costs in accuracy on data like the training
data it gives back when features are measured a little differently later.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from assay.transport.dro_certificate import certify_robustness
from assay.transport.dro_flow import DROTrainer
from assay.transport.flow_sampler import FlowSampler, WorstCase
from assay.validation import check_integer, check_real

__all__ = ["RobustClassifier"]

_CERTIFIED_POINTS, _CERTIFIED_DRAWS, _CERTIFIED_RUNS = 8, 512, 8


class RobustClassifier(ClassifierMixin, BaseEstimator):
    r"""Softmax classifier that minimises its loss on the worst case near the data.

    Minimises :math:`\max_\rho E_\rho\,\ell(g_\theta(x), y) - W_{2,\varepsilon}^2(\rho, \hat\rho)/2\tau` over the
    parameters of a linear model or a multilayer perceptron :math:`g_\theta`, with the cross-entropy :math:`\ell`.
    Features move, labels stay.

    Parameters
    ----------
    hidden : tuple of int, default=()
        Widths of the hidden layers, with ELU activations; none is a linear model.
    tau : float, default=0.1
        Strength of the shift to be robust to: a move by ``|y - x|`` costs ``|y - x|^2 / (2 tau)``. It has the units of
        the features squared over the loss, so scale the features first.
    epsilon : float, default=0.02
        Entropy of the worst case.
    flow : str, default="wgf"
        How to sample from it, see :class:`~assay.transport.FlowSampler`; ``"erm"`` is ordinary training.
    particles : int, default=4
        Particles for every sample of a batch.
    steps : int, default=50
        Steps of the flow; where the loss is close to linear, 50 of the default size leave 0.5 % of the
        way.
    step_size : float, optional
        Step of the flow.
    radius : float, optional
        Radius of the ball of ``flow="pgd"``.
    smoothness : float, optional
        Lipschitz constant of the gradient of the loss in the features, for ``flow="rgo"``.
    learning_rate : float, default=0.01
        Of Adam.
    batch_size : int, default=128
        Samples for every step.
    max_iter : int, default=50
        Passes over the data.
    alpha : float, default=0.0
        Decoupled weight decay.
    random_state : int, RandomState instance or None, default=None
        Seed of weights, batches and particles.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (n_classes,)
        The labels.
    model_ : torch.nn.Module
        The trained model, from features to logits; float32 if ``X`` was, else float64.
    loss_curve_ : numpy.ndarray of shape (max_iter,)
        Mean robust loss of every pass.
    n_iter_ : int
        Passes over the data.
    certificates_ : tuple of Certificate
        From :func:`~assay.transport.certify_robustness` for the trained model, on up to 8 of the training samples;
        empty without entropy. They say whether ``steps`` are enough for the particles to be the worst case. For a
        larger ``tau`` they often are not: training is robust all the same, and the certificates of the gap fail.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : numpy.ndarray of shape (n_features,)
        Names of the features, when ``X`` had them.

    Notes
    -----
    O(max_iter * n_samples * particles * steps) evaluations of the model and its gradient. For other models, losses,
    optimizers and schedules use :class:`~assay.transport.DROTrainer`.

    References
    ----------
    .. [1] Z. Xu, J.-J. Zhu. Gradient Flow Sampler-based Distributionally Robust Optimization. ICML 2026,
       arXiv:2510.25956.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from assay.transport import RobustClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), RobustClassifier(learning_rate=0.1, max_iter=20, random_state=0))
    >>> model = model.fit(X, y)
    >>> bool(model.score(X, y) > 0.9), all(promise.holds for promise in model[-1].certificates_)
    (True, True)
    """

    def __init__(
        self,
        hidden=(),
        *,
        tau=0.1,
        epsilon=0.02,
        flow="wgf",
        particles=4,
        steps=50,
        step_size=None,
        radius=None,
        smoothness=None,
        learning_rate=0.01,
        batch_size=128,
        max_iter=50,
        alpha=0.0,
        random_state=None,
    ):
        self.hidden = hidden
        self.tau = tau
        self.epsilon = epsilon
        self.flow = flow
        self.particles = particles
        self.steps = steps
        self.step_size = step_size
        self.radius = radius
        self.smoothness = smoothness
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.alpha = alpha
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> RobustClassifier:
        """Train the model.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.
        y : array_like of shape (n_samples,)
            Labels of any kind.

        Returns
        -------
        RobustClassifier
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            If a parameter is outside its range, the data are not finite, or there are fewer than two classes.
        """
        widths = _check_hidden(self.hidden)
        rate = check_real(self.learning_rate, "learning_rate", above=0)
        batch_size = check_integer(self.batch_size, "batch_size", minimum=1)
        max_iter = check_integer(self.max_iter, "max_iter", minimum=1)
        alpha = check_real(self.alpha, "alpha", minimum=0)
        generator = torch.Generator()
        sampler = self._sampler(generator)
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least 2 classes, got {len(self.classes_)} class")
        generator.manual_seed(int(check_random_state(self.random_state).randint(2**31)))

        features, labels = torch.from_numpy(np.array(X)), torch.from_numpy(codes.astype(np.int64))
        self.model_ = _perceptron((X.shape[1], *widths, len(self.classes_)), features.dtype, generator)
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        optimizer = torch.optim.AdamW(self.model_.parameters(), lr=rate, weight_decay=alpha)
        trainer = DROTrainer(self.model_, loss, optimizer, sampler)
        curve = []
        for _ in range(max_iter):
            batches = torch.randperm(len(features), generator=generator).split(batch_size)
            losses = [trainer.step(features[batch], labels[batch]) for batch in batches]
            curve.append(np.average(losses, weights=[len(batch) for batch in batches]))
        self.loss_curve_ = np.array(curve)
        self.n_iter_ = max_iter
        self.model_.eval()
        self.certificates_ = ()
        if sampler.epsilon:
            some = torch.randperm(len(features), generator=generator)[:_CERTIFIED_POINTS]
            self.certificates_ = certify_robustness(
                self.model_,
                loss,
                features[some],
                labels[some],
                sampler,
                draws=_CERTIFIED_DRAWS,
                repeats=_CERTIFIED_RUNS,
                generator=generator,
            ).certificates
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores of samples.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples,) or (n_samples, n_classes)
            Logits; for two classes their difference, positive for the second one.
        """
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n_samples n_classes"]:
        """Class probabilities of samples.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples, n_classes)
            Rows sum to 1.
        """
        logits = self._logits(X).astype(np.float64)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Most likely class of samples.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.

        Returns
        -------
        numpy.ndarray of shape (n_samples,)
            Labels.
        """
        best = self._logits(X).argmax(axis=1)
        return self.classes_[best]

    def worst_case(self, X: Any, y: Any) -> WorstCase:
        """Draw from the worst case near samples, e.g. for a stress test.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.
        y : array_like of shape (n_samples,)
            Labels, of those seen in training.

        Returns
        -------
        WorstCase
            Particles of this flow for the trained model. The draws are those of ``random_state``.

        Raises
        ------
        ValueError
            If a label was not seen in training.
        """
        check_is_fitted(self)
        features = self._features(X)
        y = np.asarray(y)
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if y.shape != (len(features),) or (self.classes_[codes] != y).any():
            raise ValueError(f"y must have one of the classes of training for each of the {len(features)} samples")
        generator = torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31)))
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        return self._sampler(generator).sample(
            lambda moved, labels: loss(self.model_(moved), labels), features, torch.from_numpy(codes)
        )

    def _sampler(self, generator: torch.Generator) -> FlowSampler:
        return FlowSampler(
            self.flow,
            tau=self.tau,
            epsilon=self.epsilon,
            particles=self.particles,
            steps=self.steps,
            step_size=self.step_size,
            radius=self.radius,
            smoothness=self.smoothness,
            generator=generator,
        )

    def _features(self, X: Any) -> Tensor:
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        dtype = next(self.model_.parameters()).dtype
        return torch.from_numpy(np.array(X)).to(dtype)

    def _logits(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        with torch.no_grad():
            return self.model_(self._features(X)).numpy()


def _check_hidden(hidden: Any) -> tuple[int, ...]:
    if not isinstance(hidden, tuple | list):
        raise TypeError(f"hidden must be a tuple of widths, got {hidden!r}")
    return tuple(check_integer(width, "hidden", minimum=1) for width in hidden)


def _perceptron(widths: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.nn.Sequential:
    """Linear layers with ELU between them, initialised as torch does it, but not from the global state."""
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layer = torch.nn.utils.skip_init(torch.nn.Linear, fan_in, fan_out, dtype=dtype)
        bound = 1.0 / math.sqrt(fan_in)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
        layers += [layer, torch.nn.ELU()]
    return torch.nn.Sequential(*layers[:-1])
