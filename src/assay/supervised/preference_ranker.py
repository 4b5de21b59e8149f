"""Scores of items from comparisons, as a scikit-learn estimator.

A small network scores items, and the difference of two scores is the margin of a preference loss. What to compare can
be said in three ways: pairs of indices of items, grades of items (every item with a higher grade is preferred), or the
pairs themselves as samples, winner first. The last two go through cross-validation and grid search like any data.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, column_or_1d
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from assay.certificate import Assumption, Certificate
from assay.supervised.choice_models import ImpliedChoiceModel, resolve_choice
from assay.supervised.preference import PreferenceLoss
from assay.supervised.preference_certificate import certify_preference_loss
from assay.supervised.preference_fit import check_pairs
from assay.validation import as_generator, check_choice, check_integer, check_real

__all__ = ["PreferenceRanker"]

_ACTIVATIONS = {"tanh": (torch.tanh, np.tanh), "relu": (torch.relu, lambda x: np.maximum(x, 0.0))}
_SCORED_PAIRS = 1_000_000


class PreferenceRanker(BaseEstimator):
    r"""Learn scores of items from pairwise preferences.

    Minimises the mean of :math:`\psi(\beta (s(x_w) - s(x_l)) - m)` over pairs, plus ``alpha`` times half the squared
    weights, by Adam on random batches.

    Parameters
    ----------
    hidden : tuple of int, default=(32,)
        Widths of the hidden layers; ``()`` is a linear score.
    psi : str, callable or object, default="logistic"
        Loss of a margin, see :func:`~assay.supervised.preference_psi.resolve_psi`. With wrong labels on clear pairs
        and a model that can fit them, ``"ramp"`` may be more accurate, without probabilities that mean anything.
    choice : str, ChoiceModel, object or pair of callables, default="btl"
        Declared choice model; it has no influence on the fit.
    beta : float, default=1.0
        Scale of the scores.
    margin : float, default=0.0
        By how much a winner has to lead.
    label_smoothing : float, default=0.0
        Assumed share of wrong labels.
    activation : {"tanh", "relu"}, default="tanh"
        Of the hidden layers.
    alpha : float, default=1e-4
        Weight decay.
    learning_rate : float, default=3e-3
        Of Adam.
    max_iter : int, default=600
        Steps.
    batch_size : int, default=256
        Pairs per step.
    clip : float or None, default=1.0
        Largest norm of the gradient.
    continuation : "auto", float or None, default="auto"
        Part of the steps over which a loss that fades is phased in from the logistic one.
    max_pairs : int, default=20000
        From grades, at most so many pairs are drawn.
    random_state : int, numpy.random.Generator or None, default=None
        Seed of initial weights, batches and pairs.

    Attributes
    ----------
    coefs_, intercepts_ : list of numpy.ndarray
        Weights and biases of the layers.
    loss_ : PreferenceLoss
        The loss that was trained with.
    loss_certificate_ : PreferenceLossCertificate
        What it assumes.
    certificates_ : tuple of Certificate
        Those of the loss, and the misordered training pairs against the training loss.
    history_ : dict of str to numpy.ndarray
        ``iteration`` and ``loss`` (of the batch).
    n_iter_ : int
        Steps taken.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : numpy.ndarray of shape (n_features,)
        Names of the features, when ``X`` had them.

    Notes
    -----
    ``fit(X, y)`` takes

    - ``X`` of shape (n_items, n_features) with ``y`` of shape (n_pairs, 2): indices of winner and loser;
    - ``X`` of shape (n_items, n_features) with ``y`` of shape (n_items,): grades, from which pairs are drawn;
    - ``X`` of shape (n_pairs, 2, n_features) with ``y`` None, the winner first, or ``y`` of shape (n_pairs,), positive
      where the first one won.

    In a search over parameters, which splits ``X`` and ``y`` by rows, use one of the last two. Features should be of
    similar scale. One step costs O(batch_size n_features hidden).

    References
    ----------
    W. Zhou, S. Zhang, B. Magdalou, J. Lambert, E. Amid, R. Nock, A. Hard. DPO Unchained: Your Training Algorithm is
    Secretly Disentangled in Human Choice Theory (and its Loss' Convexity is Dispensable). ICML 2026.
    arXiv:2507.07855.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import PreferenceRanker
    >>> X = np.linspace(-1, 1, 30)[:, None]
    >>> pairs = [(i, j) for i in range(30) for j in range(i)]  # the larger one wins
    >>> PreferenceRanker(psi="savage", max_iter=100, random_state=0).fit(X, pairs).score(X, pairs)
    1.0
    """

    def __init__(
        self,
        hidden=(32,),
        *,
        psi="logistic",
        choice="btl",
        beta=1.0,
        margin=0.0,
        label_smoothing=0.0,
        activation="tanh",
        alpha=1e-4,
        learning_rate=3e-3,
        max_iter=600,
        batch_size=256,
        clip=1.0,
        continuation="auto",
        max_pairs=20000,
        random_state=None,
    ):
        self.hidden = hidden
        self.psi = psi
        self.choice = choice
        self.beta = beta
        self.margin = margin
        self.label_smoothing = label_smoothing
        self.activation = activation
        self.alpha = alpha
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.clip = clip
        self.continuation = continuation
        self.max_pairs = max_pairs
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any = None) -> PreferenceRanker:
        """Train the scores.

        Parameters
        ----------
        X : array_like or data frame of shape (n_items, n_features), or array_like of shape (n_pairs, 2, n_features)
            Items, or pairs of items.
        y : array_like of shape (n_pairs, 2), (n_items,) or (n_pairs,), or None
            Pairs of indices, grades, or which item of a pair won; see the notes of the class.

        Returns
        -------
        PreferenceRanker
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            If a parameter is outside its range, the data are not finite, or no two items are ordered.
        """
        widths = self._check_hidden()
        check_choice(self.activation, "activation", _ACTIVATIONS)
        alpha = check_real(self.alpha, "alpha", minimum=0)
        rate = check_real(self.learning_rate, "learning_rate", above=0)
        max_iter = check_integer(self.max_iter, "max_iter", minimum=1)
        batch_size = check_integer(self.batch_size, "batch_size", minimum=1)
        max_pairs = check_integer(self.max_pairs, "max_pairs", minimum=1)
        clip = None if self.clip is None else check_real(self.clip, "clip", above=0)
        loss = PreferenceLoss(
            self.psi,
            self.choice,
            self.beta,
            self.margin,
            label_smoothing=self.label_smoothing,
            reference_free=True,
            continuation=self.continuation,
        )
        rng = as_generator(self.random_state, "random_state")
        items, pairs = self._items_and_pairs(X, y, max_pairs, rng, reset=True)
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))

        layers = _initial_layers((items.shape[1], *widths, 1), generator)
        losses = self._train(layers, items, pairs, loss, generator, (alpha, rate, max_iter, batch_size, clip))
        self.coefs_ = [weight.detach().numpy().astype(np.float64) for weight in layers[::2]]
        self.intercepts_ = [bias.detach().numpy().astype(np.float64) for bias in layers[1::2]]
        self.loss_ = loss.eval()
        self.n_iter_ = max_iter
        self.history_ = {"iteration": np.arange(1, max_iter + 1), "loss": losses}
        self.loss_certificate_ = certify_preference_loss(loss.effective_psi(), loss.choice)
        scores = self._score_items(items)
        leads = scores[pairs[:, 0]] - scores[pairs[:, 1]]
        self.certificates_ = (*self.loss_certificate_.certificates, self._order_certificate(leads))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Scores of items.

        Parameters
        ----------
        X : array_like or data frame of shape (n_items, n_features), or array_like of shape (n_pairs, 2, n_features)
            Items, or pairs of items.

        Returns
        -------
        numpy.ndarray of shape (n_items,) or (n_pairs, 2)
            Higher is better.
        """
        check_is_fitted(self)
        items = self._check_X(X, reset=False)
        return self._score_items(items.reshape(-1, items.shape[-1])).reshape(items.shape[:-1])

    def predict_preference(self, X: Any, pairs: Any = None, *, implied: bool = True) -> Float[np.ndarray, " pairs"]:
        """Probability that the first item of each pair is preferred.

        Parameters
        ----------
        X : array_like of shape (n_items, n_features) or (n_pairs, 2, n_features)
            Items, or pairs of items.
        pairs : array_like of int of shape (n_pairs, 2), optional
            Indices of items; not for pairs of items.
        implied : bool, default=True
            By the choice model that the loss implies; False: by the declared one.

        Returns
        -------
        numpy.ndarray of shape (n_pairs,)
            Nan where a margin is outside the range of the loss.
        """
        scores = self.predict(X)
        if scores.ndim == 1:
            index = check_pairs(pairs, len(scores))
            scores = scores[index]
        leads = torch.tensor(self.loss_.beta * (scores[:, 0] - scores[:, 1]))
        model = ImpliedChoiceModel(self.loss_.effective_psi()) if implied else resolve_choice(self.choice)
        return model.probability(leads).detach().numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Share of the pairs that are ordered as observed; equal scores count half.

        Parameters
        ----------
        X, y
            As in :meth:`fit`. From grades, all pairs if they are at most a million, else a million of them.

        Returns
        -------
        float
        """
        check_is_fitted(self)
        items, pairs = self._items_and_pairs(X, y, _SCORED_PAIRS, np.random.default_rng(0), reset=False)
        scores = self._score_items(items)
        winner, loser = scores[pairs[:, 0]], scores[pairs[:, 1]]
        return float(np.mean((winner > loser) + 0.5 * (winner == loser)))

    def _check_hidden(self) -> tuple[int, ...]:
        if not isinstance(self.hidden, tuple | list):
            raise TypeError(f"hidden must be a tuple of integers, got {self.hidden!r}")
        return tuple(check_integer(width, "hidden", minimum=1) for width in self.hidden)

    def _check_X(self, X: Any, *, reset: bool) -> np.ndarray:
        """Items, or pairs of items, of which scikit-learn would take the second axis for the features."""
        if np.ndim(X) != 3:
            return validate_data(self, X, dtype=np.float64, reset=reset)
        items = check_array(X, dtype=np.float64, allow_nd=True, ensure_2d=False)
        if items.shape[1] != 2:
            raise ValueError(f"X must have shape (n_pairs, 2, n_features), got {items.shape}")
        if reset:
            self.n_features_in_ = items.shape[2]
            vars(self).pop("feature_names_in_", None)
        if items.shape[2] != self.n_features_in_:
            raise ValueError(
                f"X has {items.shape[2]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input"
            )
        return items

    def _items_and_pairs(
        self, X: Any, y: Any, max_pairs: int, rng: np.random.Generator, *, reset: bool
    ) -> tuple[Float[np.ndarray, "items features"], Int[np.ndarray, "pairs 2"]]:
        if np.ndim(X) == 3:
            items = self._check_X(X, reset=reset)
            return items.reshape(-1, items.shape[2]), _pairs_of_rows(y, len(items))
        if y is None:
            validate_data(self, X, y, dtype=np.float64, reset=reset)  # which refuses, in the words of scikit-learn
        items = self._check_X(X, reset=reset)
        target = np.asarray(y)
        if target.ndim == 2 and target.shape[1] == 2:
            return items, check_pairs(target, len(items))
        grades = column_or_1d(check_array(y, ensure_2d=False, dtype=None), warn=True)
        if len(grades) != len(items):
            raise ValueError(f"y must have one grade per item, {len(items)}, or shape (n_pairs, 2), got {len(grades)}")
        return items, _pairs_of_grades(grades, max_pairs, rng)

    @torch.enable_grad()
    def _train(
        self,
        layers: list[Tensor],
        items: Float[np.ndarray, "items features"],
        pairs: Int[np.ndarray, "pairs 2"],
        loss: PreferenceLoss,
        generator: torch.Generator,
        settings: tuple[float, float, int, int, float | None],
    ) -> Float[np.ndarray, " steps"]:
        alpha, rate, max_iter, batch_size, clip = settings
        features, index = torch.tensor(items, dtype=torch.float32), torch.tensor(pairs)
        if not bool(torch.isfinite(features).all()):
            raise ValueError("X must be within the range of single precision, got larger entries")
        activate = _ACTIVATIONS[self.activation][0]
        optimizer = torch.optim.Adam(layers, lr=rate, weight_decay=alpha, foreach=True)
        losses = np.empty(max_iter)
        loss.train()
        for step in range(max_iter):
            batch = index[torch.randint(len(index), (batch_size,), generator=generator)]
            hidden = features[batch.T.reshape(-1)]
            for depth in range(0, len(layers) - 2, 2):
                hidden = activate(hidden @ layers[depth] + layers[depth + 1])
            scores = (hidden @ layers[-2] + layers[-1])[:, 0]
            loss.set_progress(step / max_iter)
            objective = loss.pair_losses(loss.beta * (scores[:batch_size] - scores[batch_size:]) - loss.margin).mean()
            losses[step] = objective.item()
            if not math.isfinite(losses[step]):
                raise ValueError(
                    f"the training loss must be finite, got {losses[step]} at step {step}: lower learning_rate or beta"
                )
            optimizer.zero_grad()
            objective.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(layers, clip)
            optimizer.step()
        loss.set_progress(1.0)
        return losses

    def _score_items(self, items: Float[np.ndarray, "items features"]) -> Float[np.ndarray, " items"]:
        activate = _ACTIVATIONS[self.activation][1]
        hidden = items
        for weight, bias in zip(self.coefs_[:-1], self.intercepts_[:-1], strict=True):
            hidden = activate(hidden @ weight + bias)
        return (hidden @ self.coefs_[-1] + self.intercepts_[-1])[:, 0]

    def _order_certificate(self, leads: Float[np.ndarray, " pairs"]) -> Certificate:
        """A pair in the wrong order has at least the loss of margin 0, if the loss decreases."""
        psi = self.loss_.effective_psi()
        with torch.no_grad():
            losses = psi.value(torch.tensor(self.loss_.beta * leads))
            at_zero = psi.value(torch.zeros(1, dtype=torch.float64))
        return Certificate(
            "misordered training pairs, against training loss / loss at margin 0",
            float(np.mean((leads < 0) + 0.5 * (leads == 0))),
            float(losses.mean() / at_zero) * (1.0 + 1e-12),
            "<=",
            (
                Assumption("the loss decreases for margins in [-12, 12]", self.loss_certificate_.certificates[0].holds),
                Assumption("the losses of the pairs are not negative", bool((losses >= 0.0).all())),
            ),
        )


def _initial_layers(widths: tuple[int, ...], generator: torch.Generator) -> list[Tensor]:
    """Weights and biases as those of ``torch.nn.Linear``."""
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        for shape in ((inputs, outputs), (outputs,)):
            layers.append(
                (
                    (2.0 * torch.rand(shape, generator=generator, dtype=torch.float32) - 1.0) / inputs**0.5
                ).requires_grad_()
            )
    return layers


def _pairs_of_rows(y: Any, n_pairs: int) -> Int[np.ndarray, "pairs 2"]:
    """Indices into the flattened items, the winner first."""
    index = np.arange(2 * n_pairs).reshape(n_pairs, 2)
    if y is None:
        return index
    first_won = column_or_1d(check_array(y, ensure_2d=False, dtype=np.float64))
    if len(first_won) != n_pairs:
        raise ValueError(f"y must have one entry per pair, {n_pairs}, got {len(first_won)}")
    return np.where((first_won > 0)[:, None], index, index[:, ::-1])


def _pairs_of_grades(grades: np.ndarray, max_pairs: int, rng: np.random.Generator) -> Int[np.ndarray, "pairs 2"]:
    """Pairs with different grades, the higher one first: all of them, or a random part."""
    _, levels = np.unique(grades, return_inverse=True)
    n = len(levels)
    if n * (n - 1) // 2 <= 4 * max_pairs:
        pairs = np.stack(np.triu_indices(n, 1), axis=1)
    else:
        pairs = rng.integers(n, size=(4 * max_pairs, 2))
    pairs = pairs[levels[pairs[:, 0]] != levels[pairs[:, 1]]]
    if len(pairs) == 0:
        raise ValueError(f"y must order at least one pair of items, got {n} sample(s) of one grade (n_samples = {n})")
    if len(pairs) > max_pairs:
        pairs = pairs[rng.choice(len(pairs), max_pairs, replace=False)]
    swapped = levels[pairs[:, 0]] < levels[pairs[:, 1]]
    return np.where(swapped[:, None], pairs[:, ::-1], pairs).astype(np.int64)
