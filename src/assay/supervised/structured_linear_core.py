r"""A smooth convex loss for label sequences whose gradient can be sampled, so that training needs no inference.

A structured SVM asks in every step for the worst label sequence, one run of the Viterbi recursion. The linear-core
loss averages instead over *all* sequences: each wrong one pays the margin loss of its negative centred score, weighed
by its cost. An average can be sampled: a few sequences, drawn uniformly, give an unbiased gradient. The centring keeps
the scores from falling together, and the mean score of all ``K^L`` sequences is a sum of ``L`` means of ``K`` numbers.

The position-wise form applies the multi-class loss at every position, given the true label before it. It sums ``L K``
terms instead of averaging ``K^L``, can be sampled as well, and is what one trains with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from torch import Tensor, nn

from assay.supervised.best_path import viterbi
from assay.supervised.linear_core import LinearCoreTail, check_range, linear_core, resolve_tail
from assay.validation import as_float_array, check_choice, check_integer, check_real

__all__ = ["StructuredLinearCore"]

#: Largest number of label sequences that is enumerated.
MAX_ENUMERATED = 4096


class Chain(NamedTuple):
    """Checked arguments of the loss: scores in one floating-point type, and where there is a position."""

    unary: Float[Tensor, "batch positions labels"]
    transitions: Float[Tensor, "labels labels"]
    target: Int[Tensor, "batch positions"]
    present: Bool[Tensor, "batch positions"]
    linked: Bool[Tensor, "batch positions"]  # this position and the one before are both there
    previous: Int[Tensor, "batch positions"]  # the true label before, 0 where there is none


class StructuredLinearCore(nn.Module):
    r"""Linear-core loss for label sequences with unary and transition scores.

    A sequence :math:`y'` of ``L`` of ``K`` labels scores :math:`h(y') = \sum_t s_t(y'_t) + \sum_t A[y'_t, y'_{t+1}]`
    and costs :math:`\ell(y, y') = \frac1L \sum_t c(y_t, y'_t)`. With the linear-core margin loss :math:`\Phi` and
    :math:`\bar h` the mean score of all sequences, the loss of the whole sequence (``sampler="uniform"``) is

    .. math:: \frac{1}{K^L} \sum_{y'} \ell(y, y')\, \Phi\bigl(-(h(y') - \bar h)\bigr),

    and the position-wise loss (``sampler="positionwise"``), given the true label before each position, is

    .. math:: \sum_t \sum_k c(y_t, k)\, \Phi\Bigl(-\bigl(s_t(k) + A[y_{t-1}, k] - \text{mean over } k\bigr)\Bigr).

    Both are convex in the scores and smooth. ``n_samples`` draws estimate them without bias, and so is the gradient.

    Parameters
    ----------
    n_labels : int
        Number ``K`` of labels, at least 2.
    cost : "hamming" or array_like of shape (n_labels, n_labels), default="hamming"
        Cost :math:`c` of predicting a label (column) where another (row) is true, in [0, 1] and 0 on the diagonal.
    sampler : {"uniform", "positionwise"}, default="uniform"
        The loss of whole sequences, or the position-wise loss. Prefer the second for training: its consistency
        constant is :math:`1/(\tau L)` per sequence against :math:`K^L/\tau`, which is what averaging over all
        sequences costs.
    n_samples : int or None, default=8
        Sequences drawn per sequence, or wrong labels drawn per position. None takes all of them: the position-wise
        loss in ``O(L K)``, the loss of whole sequences for at most 4096 of them.
    tau : float, default=0.7
        Where the linear part of the margin loss ends; the constant of the consistency bound.
    sigma : float, default=0.3
        Width of the smooth tail; its inverse is the smoothness.
    tail : {"exp", "quad", "gamma", "smoothstep"} or LinearCoreTail, default="exp"
        As in :func:`assay.supervised.linear_core`.
    score_scale : float, default=1.0
        The centred scores are multiplied by it. About :math:`\sqrt K` speeds up training with many labels.
    reduction : {"mean", "sum", "none"}, default="mean"
        Over the sequences of the batch.
    generator : torch.Generator, optional
        Draws the samples. By default the module makes one, with a fresh seed, for the device of the scores.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or outside its range.

    Notes
    -----
    A step costs ``O(batch * L * n_samples)`` and the centring ``O(batch * L * K + K^2)``, against
    ``O(batch * L * K^2)`` of Viterbi. Half-precision scores are computed in single precision. The margin loss can be
    differentiated twice; its second derivative is continuous for the tails ``"gamma"`` and ``"smoothstep"``.

    The position-wise loss does not see a constant that is added to a row of the transitions; :meth:`decode` takes the
    rows centred.

    References
    ----------
    M. Mohri, Y. Zhong. Linear-Core Surrogates: Smooth Loss Functions with Linear Rates for Classification and
    Structured Prediction. ICML 2026. arXiv:2604.27742.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised import StructuredLinearCore
    >>> loss = StructuredLinearCore(3, sampler="positionwise", n_samples=None)
    >>> unary = torch.zeros(1, 4, 3, requires_grad=True)
    >>> transitions = torch.zeros(3, 3)
    >>> value = loss(unary, transitions, torch.tensor([[0, 1, 1, 2]]))
    >>> value.backward()
    >>> round(value.item(), 4), [round(g, 4) for g in unary.grad[0, 0].tolist()]
    (8.0, [-0.6667, 0.3333, 0.3333])
    """

    def __init__(
        self,
        n_labels: int,
        cost: str | ArrayLike | Tensor = "hamming",
        sampler: str = "uniform",
        n_samples: int | None = 8,
        tau: float = 0.7,
        sigma: float = 0.3,
        tail: str | LinearCoreTail = "exp",
        score_scale: float = 1.0,
        reduction: str = "mean",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.n_labels = check_integer(n_labels, "n_labels", minimum=2)
        self.sampler = check_choice(sampler, "sampler", ("uniform", "positionwise"))
        self.n_samples = None if n_samples is None else check_integer(n_samples, "n_samples", minimum=1)
        self.tau = check_real(tau, "tau", above=0)
        self.sigma = check_real(sigma, "sigma", above=0)
        resolve_tail(tail)
        self.tail = tail
        self.score_scale = check_real(score_scale, "score_scale", above=0)
        self.reduction = check_choice(reduction, "reduction", ("mean", "sum", "none"))
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be None or a torch.Generator, got {type(generator).__name__}")
        self.generator = generator
        self.register_buffer("cost", _as_cost(cost, self.n_labels))

    def extra_repr(self) -> str:
        """Settings that ``print(module)`` shows."""
        return (
            f"{self.n_labels}, sampler={self.sampler!r}, n_samples={self.n_samples}, tau={self.tau:g}, "
            f"sigma={self.sigma:g}, tail={resolve_tail(self.tail).name!r}"
        )

    def forward(self, unary: Tensor, transitions: Tensor | None, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Evaluate the loss.

        Parameters
        ----------
        unary : torch.Tensor of shape (batch, positions, n_labels)
            Scores of the labels at the positions.
        transitions : torch.Tensor of shape (n_labels, n_labels) or None
            Scores of a label (row) being followed by a label (column); None means zero.
        target : torch.Tensor of int64, of shape (batch, positions)
            The true labels; what stands at padding is not read.
        mask : torch.Tensor of bool, of shape (batch, positions), optional
            True where there is a position; the others are padding. Neighbours count as a pair when both are there.

        Returns
        -------
        torch.Tensor
            A scalar, or one number per sequence with ``reduction="none"``.

        Raises
        ------
        TypeError, ValueError
            If shapes do not fit, ``target`` has other labels than 0 to ``n_labels - 1``, a sequence has no position,
            the scores hold a nan or an infinity, or there are too many sequences to take all of them.
        """
        chain = self.check(unary, transitions, target, mask)
        losses = self.evaluate(chain, self.draw(chain))
        if bool(torch.isnan(losses).any()):
            raise ValueError("unary and transitions must be finite, got nan or infinite entries")
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()

    @torch.no_grad()
    def decode(self, unary: Tensor, transitions: Tensor | None, mask: Tensor | None = None) -> Tensor:
        """Predict the label sequences of highest score.

        Parameters
        ----------
        unary, transitions, mask : torch.Tensor
            As in :meth:`forward`.

        Returns
        -------
        torch.Tensor of int64, of shape (batch, positions)
            The labels, with -1 at padding.
        """
        if transitions is not None and self.sampler == "positionwise":
            transitions = transitions - transitions.mean(dim=1, keepdim=True)
        return viterbi(unary, transitions, mask)

    def draw(self, chain: Chain) -> Int[Tensor, "batch positions samples"] | None:
        """Labels whose scores a step looks at; None stands for all labels of the position-wise loss."""
        batch, n_positions, n_labels = chain.unary.shape
        if self.n_samples is None:
            return (
                None if self.sampler == "positionwise" else _all_sequences(n_labels, n_positions, chain.target.device)
            )
        shape = (batch, n_positions, self.n_samples)
        if self.sampler == "uniform":
            return self._random_integers(n_labels, shape, chain.target.device)
        # A right label costs nothing, so it is not drawn: numbers from the true one on move up by one.
        wrong = self._random_integers(n_labels - 1, shape, chain.target.device)
        return wrong + (wrong >= chain.target[..., None])

    def evaluate(self, chain: Chain, labels: Int[Tensor, "#batch positions samples"] | None) -> Float[Tensor, " batch"]:
        """Loss of each sequence on the drawn labels."""
        scores, weights = self.scores_and_weights(chain, labels)
        losses = linear_core(-self.score_scale * scores, self.tau, self.sigma, self.tail)
        return (weights * losses).flatten(1).sum(dim=1)

    def scores_and_weights(
        self, chain: Chain, labels: Int[Tensor, "#batch positions samples"] | None
    ) -> tuple[Float[Tensor, "batch ..."], Float[Tensor, "batch ..."]]:
        """Centred scores that enter the margin loss, and the factor of each term in the sum over them."""
        if self.sampler == "positionwise":
            return self._position_scores(chain, labels)
        return self._sequence_scores(chain, labels)

    def _position_scores(self, chain: Chain, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        transitions, linked = chain.transitions, chain.linked[..., None]
        centre = _mean(chain.unary, 2) + _mean(transitions, 1)[chain.previous] * chain.linked
        if labels is None:
            scores = chain.unary + transitions[chain.previous] * linked
            every = torch.arange(self.n_labels, device=chain.target.device).expand(*chain.target.shape, -1)
            weights = self._costs(chain, every)
        else:
            scores = chain.unary.gather(2, labels) + _pairs(transitions, chain.previous[..., None], labels) * linked
            weights = self._costs(chain, labels) * ((self.n_labels - 1) / labels.shape[2])
        return scores - centre[..., None], weights

    def _sequence_scores(self, chain: Chain, labels: Tensor) -> tuple[Tensor, Tensor]:
        labels = labels.expand(len(chain.unary), -1, -1)
        present, linked = chain.present[..., None], chain.linked[:, 1:, None]
        picked = (chain.unary.gather(2, labels) * present).sum(dim=1)
        joined = (_pairs(chain.transitions, labels[:, :-1], labels[:, 1:]) * linked).sum(dim=1)
        centre = (_mean(chain.unary, 2) * chain.present).sum(dim=1)
        centre = centre + chain.linked.sum(dim=1) * _mean(chain.transitions, (0, 1))
        costs = self._costs(chain, labels).sum(dim=1) / chain.present.sum(dim=1, keepdim=True)
        return picked + joined - centre[:, None], costs / labels.shape[2]

    def _costs(self, chain: Chain, labels: Tensor) -> Tensor:
        target = chain.target[..., None]
        costs = target != labels if self.cost is None else self.cost[target, labels]
        return costs.to(chain.unary.dtype) * chain.present[..., None]

    def _random_integers(self, high: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        if self.generator is None:
            self.generator = torch.Generator(device=device)
            self.generator.seed()
        source = self.generator.device
        return torch.randint(high, shape, generator=self.generator, device=source).to(device)

    def check(self, unary: Any, transitions: Any, target: Any, mask: Any) -> Chain:
        """Arguments of :meth:`forward` in the form in which the loss is evaluated."""
        for name, tensor in (("unary", unary), ("transitions", transitions), ("target", target), ("mask", mask)):
            optional = name in ("transitions", "mask")
            if not (isinstance(tensor, Tensor) or (optional and tensor is None)):
                raise TypeError(f"{name} must be a torch.Tensor{' or None' * optional}, got {type(tensor).__name__}")
        if unary.ndim != 3 or unary.shape[2] != self.n_labels or unary.numel() == 0:
            raise ValueError(
                f"unary must be of shape (batch, positions, {self.n_labels}) and not empty, got {tuple(unary.shape)}"
            )
        if not unary.is_floating_point() or (transitions is not None and not transitions.is_floating_point()):
            raise TypeError("unary and transitions must be floating-point tensors")
        if transitions is not None and transitions.shape != (self.n_labels, self.n_labels):
            raise ValueError(
                f"transitions must be of shape ({self.n_labels}, {self.n_labels}), got {tuple(transitions.shape)}"
            )
        if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
            raise TypeError(f"target must be a tensor of integers, got dtype {target.dtype}")
        if mask is not None and mask.dtype != torch.bool:
            raise TypeError(f"mask must be a tensor of bool, got dtype {mask.dtype}")
        for name, tensor in (("target", target), ("mask", mask)):
            if tensor is not None and tensor.shape != unary.shape[:2]:
                raise ValueError(f"{name} must be of shape {tuple(unary.shape[:2])}, got {tuple(tensor.shape)}")
        present = torch.ones_like(target, dtype=torch.bool) if mask is None else mask
        if not bool(present.any(dim=1).all()):
            raise ValueError("mask must leave every sequence at least one position")
        target = torch.where(present, target, 0).long()
        if bool(((target < 0) | (target >= self.n_labels)).any()):
            raise ValueError(
                f"target must have labels from 0 to {self.n_labels - 1}, "
                f"got labels from {int(target.min())} to {int(target.max())}"
            )
        if mask is not None:
            unary = unary.masked_fill(~present[..., None], 0.0)  # padding may hold anything, nan included
        precision = torch.float32 if unary.dtype in (torch.float16, torch.bfloat16) else unary.dtype
        check_range(precision, tau=self.tau, sigma=self.sigma, score_scale=self.score_scale)
        if transitions is None:
            transitions = unary.new_zeros(self.n_labels, self.n_labels)
        linked = torch.zeros_like(present)
        linked[:, 1:] = present[:, 1:] & present[:, :-1]
        previous = torch.where(linked, target.roll(1, dims=1), 0)
        return Chain(unary.to(precision), transitions.to(precision), target, present, linked, previous)


def _as_cost(cost: Any, n_labels: int) -> Float[Tensor, "labels labels"] | None:
    """The matrix of costs; None for the Hamming cost, which needs none."""
    if isinstance(cost, str):
        check_choice(cost, "cost", ("hamming",))
        return None
    costs = as_float_array(cost, "cost", ndim=2)
    if costs.shape != (n_labels, n_labels):
        raise ValueError(f"cost must be of shape ({n_labels}, {n_labels}), got {costs.shape}")
    if costs.min() < 0 or costs.max() > 1 or costs.diagonal().any():
        raise ValueError("cost must have entries in [0, 1] and zeros on its diagonal")
    return torch.tensor(costs)


def _mean(scores: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Mean over some axes; unlike that of torch, its gradient does not divide every entry of a full-sized tensor."""
    total = scores.sum(dim=dims)
    return total * (total.numel() / scores.numel())


def _pairs(transitions: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """``transitions[before, after]``; a gather, whose gradient is much faster than that of an index."""
    n_labels = len(transitions)
    positions = before * n_labels + after
    return transitions.reshape(-1).gather(0, positions.reshape(-1)).reshape(positions.shape)


def _all_sequences(n_labels: int, n_positions: int, device: torch.device) -> Int[Tensor, "1 positions sequences"]:
    """All label sequences, the last position running fastest."""
    if n_labels**n_positions > MAX_ENUMERATED:
        raise ValueError(
            f"n_samples must be given for {n_labels}^{n_positions} label sequences; "
            f"at most {MAX_ENUMERATED} are enumerated"
        )
    index = torch.arange(n_labels**n_positions, device=device)
    digits = [index // n_labels**power % n_labels for power in range(n_positions - 1, -1, -1)]
    return torch.stack(digits)[None]
