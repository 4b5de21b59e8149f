r"""A classifier that learns which of its training labels to believe, from a few that are right.

Every training sample has a weight :math:`\sigma(v_i)`. The inner problem fits a softmax regression to the weighted
samples, the outer one asks for weights with which that fit is good on validation samples:

.. math:: \min_v\ \mathrm{mean}_{\text{val}}\, \ell(\theta^*(v)), \qquad \theta^*(v) = \arg\min_\theta\
          \mathrm{mean}_i\, \sigma(v_i)\,\ell_i(\theta) + \tfrac\alpha2\|\theta\|^2 .

Natural hypergradient descent alternates between both: weights of samples whose labels pull the fit away from the
validation samples sink.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from assay.bilevel.hypergradient_descent import NHGD
from assay.bilevel.natural_hypergradient import NaturalHypergradient
from assay.validation import check_integer, check_real

__all__ = ["HyperCleaningClassifier"]

_WHOLE = 4096
_MOMENTUM = 0.9


class HyperCleaningClassifier(ClassifierMixin, BaseEstimator):
    r"""Softmax regression with a learned weight for every training sample.

    Parameters
    ----------
    fisher : {"kfac", "smoothed", "average", "window"}, default="kfac"
        Curvature of the inner problem, see :class:`~assay.bilevel.NaturalHypergradient`.
    alpha : float, default=1e-4
        Ridge of the coefficients.
    learning_rate : float, optional
        Step of inner stochastic descent with momentum 0.9; by default one over the largest curvature that there can
        be, that of the ridge plus half of the largest eigenvalue of the second moment of the features.
    outer_learning_rate : float, default=0.3
        Step of Adam on the logits of the weights.
    max_iter : int, default=150
        Outer steps.
    inner_steps : int, default=10
        Inner steps before each of them.
    batch_size : int, default=256
        Samples of an inner step.
    damping : float, default=1e-3
        Damping of the curvature.
    beta : float, default=0.1
        Weight of the newest batch in it.
    random_state : int, RandomState instance or None, default=None
        Seed of the batches and of the split.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (n_classes,)
        The labels.
    sample_weight_ : numpy.ndarray of shape (n_samples,)
        Learned weights in [0, 1]; nan for samples that were held out for validation.
    validation_indices_ : numpy.ndarray of shape (n_held,)
        Rows of ``X`` that were held out.
    coef_ : numpy.ndarray of shape (n_classes, n_features)
        Coefficients.
    intercept_ : numpy.ndarray of shape (n_classes,)
        Intercepts.
    outer_loss_curve_ : numpy.ndarray of shape (max_iter,)
        Loss on the validation samples before every outer step.
    n_iter_ : int
        Outer steps.
    report_ : HypergradientReport
        What was measured at the last hypergradient.
    certificates_ : tuple of Certificate
        Those of ``report_``. With wrong labels the Fisher matrix is not the Hessian, and the first one usually fails:
        the direction is useful, but no hypergradient to a tenth.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : numpy.ndarray of shape (n_features,)
        Names of the features, when ``X`` had them.

    Notes
    -----
    Scale the features first. The validation labels are trusted: pass samples whose labels have been looked at as
    ``X_val`` and ``y_val``. Without these a part of ``X`` is held out, whose labels are as wrong as the others; that
    helps against labels that are wrong at random, and not against systematic errors.

    O(max_iter * inner_steps * batch_size * n_features * (n_features + n_classes)) with ``fisher="kfac"``.

    References
    ----------
    .. [1] Kong, Chen, Zhang, Mou. Natural Hypergradient Descent: Algorithm Design, Convergence Analysis, and Parallel
       Implementation. ICML 2026, arXiv:2602.10905.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_blobs
    >>> from assay.bilevel.hyper_cleaning import HyperCleaningClassifier
    >>> X, y = make_blobs(300, centers=3, random_state=0)
    >>> wrong = y[:200].copy()
    >>> wrong[::4] = (wrong[::4] + 1) % 3  # a quarter of the training labels
    >>> model = HyperCleaningClassifier(max_iter=30, random_state=0).fit(X[:200], wrong, X_val=X[200:], y_val=y[200:])
    >>> trusted = model.sample_weight_ > 0.5
    >>> bool(trusted[::4].mean() < 0.3 < 0.8 < trusted[1::4].mean())
    True
    """

    def __init__(
        self,
        fisher="kfac",
        *,
        alpha=1e-4,
        learning_rate=None,
        outer_learning_rate=0.3,
        max_iter=150,
        inner_steps=10,
        batch_size=256,
        damping=1e-3,
        beta=0.1,
        random_state=None,
    ):
        self.fisher = fisher
        self.alpha = alpha
        self.learning_rate = learning_rate
        self.outer_learning_rate = outer_learning_rate
        self.max_iter = max_iter
        self.inner_steps = inner_steps
        self.batch_size = batch_size
        self.damping = damping
        self.beta = beta
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, X_val: Any = None, y_val: Any = None, val_fraction: float = 0.25
    ) -> HyperCleaningClassifier:
        """Learn weights and coefficients.

        Parameters
        ----------
        X : array_like or data frame of shape (n_samples, n_features)
            Features.
        y : array_like of shape (n_samples,)
            Labels of any kind, some of them wrong.
        X_val : array_like or data frame of shape (n_val, n_features), optional
            Features of samples whose labels are right.
        y_val : array_like of shape (n_val,), optional
            Their labels, of those in ``y``.
        val_fraction : float, default=0.25
            Part of every class that is held out for validation when ``X_val`` is not given.

        Returns
        -------
        HyperCleaningClassifier
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            If a parameter is outside its range, data are not finite or too large to be squared, there are fewer than
            two classes, only one of ``X_val`` and ``y_val`` is given, or ``y_val`` has labels that ``y`` has not.
        """
        # Neither mode nor device that the caller has set for tensors of their own concerns those of this fit.
        elsewhere = torch.get_default_device().type != "cpu"
        with torch.inference_mode(mode=False), torch.device("cpu") if elsewhere else nullcontext():
            return self._fit(X, y, X_val, y_val, val_fraction)

    def _fit(self, X: Any, y: Any, X_val: Any, y_val: Any, val_fraction: float) -> HyperCleaningClassifier:
        alpha = check_real(self.alpha, "alpha", minimum=0)
        rate = None if self.learning_rate is None else check_real(self.learning_rate, "learning_rate", above=0)
        outer_rate = check_real(self.outer_learning_rate, "outer_learning_rate", above=0)
        max_iter = check_integer(self.max_iter, "max_iter", minimum=1)
        inner_steps = check_integer(self.inner_steps, "inner_steps", minimum=1)
        batch_size = check_integer(self.batch_size, "batch_size", minimum=1)
        val_fraction = check_real(val_fraction, "val_fraction", above=0, below=1)
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val must be given together, got one of them")
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least 2 classes, got {len(self.classes_)} class")
        seed = int(check_random_state(self.random_state).randint(2**31))
        if X_val is None:
            held = hold_out(codes, val_fraction, np.random.default_rng(seed))
            X_clean, clean = X[held], codes[held]
        else:
            held = np.zeros(0, dtype=np.intp)
            X_clean, clean = self._validation(X_val, y_val)
        kept = np.setdiff1d(np.arange(len(X)), held)

        x, labels = torch.from_numpy(np.array(X[kept])), torch.from_numpy(codes[kept].astype(np.int64))
        x_clean, clean = torch.from_numpy(np.array(X_clean)).to(x.dtype), torch.from_numpy(clean.astype(np.int64))
        generator = torch.Generator().manual_seed(seed)
        net = torch.nn.utils.skip_init(torch.nn.Linear, X.shape[1], len(self.classes_), dtype=x.dtype)
        torch.nn.init.zeros_(net.weight)
        torch.nn.init.zeros_(net.bias)
        logits = torch.zeros(len(kept), dtype=x.dtype, requires_grad=True)
        everything = torch.arange(len(kept))
        hyper = NaturalHypergradient(
            net,
            lambda theta, v, index: cross_entropy(
                functional_call(net, theta, (x[index],)), labels[index], reduction="none"
            ),
            lambda theta, v, _: cross_entropy(functional_call(net, theta, (x_clean,)), clean),
            outer_params=logits,
            sample_weight=lambda v, index: torch.sigmoid(v[index]),
            fisher=self.fisher,
            ridge=alpha,
            damping=self.damping,
            beta=self.beta,
            cross_batch=everything if len(kept) <= _WHOLE else None,
        )
        rate = stable_step(x, alpha) if rate is None else rate
        inner_opt = torch.optim.SGD(net.parameters(), lr=rate, momentum=_MOMENTUM)
        train = NHGD(hyper, inner_opt, torch.optim.Adam([logits], lr=outer_rate), inner_steps=inner_steps)
        count = min(batch_size, len(kept))
        curve = []
        for _ in range(max_iter):
            batches = [torch.randperm(len(kept), generator=generator)[:count] for _ in range(inner_steps)]
            curve.append(train.step(batches)["outer_loss"])
        self.report_ = hyper.certify()
        self.certificates_ = self.report_.certificates
        self.outer_loss_curve_, self.n_iter_ = np.array(curve), max_iter
        self.coef_, self.intercept_ = net.weight.detach().numpy(), net.bias.detach().numpy()
        self.sample_weight_ = np.full(len(X), np.nan)
        self.sample_weight_[kept] = torch.sigmoid(logits.detach()).numpy()
        self.validation_indices_ = held
        return self

    def _validation(self, X_val: Any, y_val: Any) -> tuple[np.ndarray, np.ndarray]:
        X_clean = validate_data(self, X_val, dtype=[np.float64, np.float32], reset=False)
        labels = check_array(np.asarray(y_val), ensure_2d=False, dtype=None, input_name="y_val")
        labels = column_or_1d(labels, warn=True)
        codes = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        if labels.shape != (len(X_clean),) or (self.classes_[codes] != labels).any():
            raise ValueError(f"y_val must have one of the labels of y for each of the {len(X_clean)} samples of X_val")
        return X_clean, codes

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
        logits = self._logits(X)
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

    def _logits(self, X: Any) -> Float[np.ndarray, "n_samples n_classes"]:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return X.astype(np.float64) @ self.coef_.T.astype(np.float64) + self.intercept_


def hold_out(codes: Int[np.ndarray, " samples"], fraction: float, rng: np.random.Generator) -> Int[np.ndarray, " held"]:
    """Rows to hold out: that fraction of every class, and of no class all; at least one row."""
    held = []
    for code in np.unique(codes):
        rows = rng.permutation(np.flatnonzero(codes == code))
        held.append(rows[: min(len(rows) - 1, max(1, round(fraction * len(rows))))])
    found = np.sort(np.concatenate(held))
    if not len(found):
        raise ValueError("y must have at least 2 samples of a class when X_val is not given, got 1 of each")
    return found


def stable_step(x: torch.Tensor, alpha: float) -> float:
    """A step size at which descent of a softmax regression with intercept and ridge is stable."""
    largest = float(x.abs().max())
    if not largest * x.numel() < torch.finfo(x.dtype).max ** 0.5:
        raise ValueError(
            f"X must have entries that can be squared in {x.dtype}, got up to {largest:g}; scale the features"
        )
    with_one = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    # The Hessian of the cross-entropy in the logits is at most 1/2.
    return 1.0 / (0.5 * float(torch.linalg.matrix_norm(with_one, 2)) ** 2 / len(x) + alpha)
