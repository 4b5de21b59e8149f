r"""What the loss for label sequences promises, evaluated on given scores.

Along a random line through the scores the loss is convex, and its derivative changes no faster than its smoothness
constant allows. The sampled gradient is unbiased: the mean of many draws agrees with the gradient over all labels, as
far as their spread can tell. And where the conditional law of the sequences is known, the excess cost of the prediction
is bounded by the excess surrogate risk.

The last one holds for every vector of scores, whether a chain can express it or not. The expected loss has the form
:math:`\sum_k q_k \Phi(-h_k)` with :math:`\sum_k h_k = 0` and expected costs ``q``. It is least where
:math:`-q_k \Phi'(-h_k)` is the same for all ``k``, namely :math:`q_{\min}`, so that its minimum can be written down.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import norm
from scipy.stats import t as student
from torch import Tensor

from assay.certificate import Assumption, Certificate
from assay.supervised.best_path import viterbi
from assay.supervised.linear_core import LinearCoreTail, linear_core, resolve_tail
from assay.supervised.structured_linear_core import MAX_ENUMERATED, StructuredLinearCore
from assay.validation import as_distribution, as_float_array, as_generator, check_integer

__all__ = ["least_conditional_risk", "structured_certificates", "structured_consistency_certificate"]

_DIRECTIONS = 8
_LINE = np.linspace(-2.0, 2.0, 81)


def structured_certificates(
    loss: StructuredLinearCore,
    unary: Tensor,
    transitions: Tensor | None,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    n_draws: int = 400,
    rng: int | np.random.Generator | None = None,
) -> tuple[Certificate, ...]:
    """Check convexity, smoothness and the unbiasedness of the sampled gradient at given scores.

    Parameters
    ----------
    loss : StructuredLinearCore
        The loss; neither it nor its generator is changed.
    unary, transitions, target, mask : torch.Tensor
        As in :meth:`StructuredLinearCore.forward`. Everything is computed in double precision.
    n_draws : int, default=400
        Sampled gradients that are averaged, at least 2.
    rng : int, numpy.random.Generator or None, default=None
        Draws the line, the directions and the samples.

    Returns
    -------
    tuple of Certificate
        Convexity, smoothness, and unbiasedness. The last is left out when nothing is sampled, and when there are more
        than 4096 sequences to take the exact gradient over; the first two are then about the drawn sequences.

    Raises
    ------
    TypeError, ValueError
        As :meth:`StructuredLinearCore.forward`.

    Notes
    -----
    Unbiasedness is measured in standard errors, the largest of 8 random directions; for a correct sampler it exceeds 4
    in about one of 2000 checks. A standard error that is itself estimated from few draws is unreliable, so the number
    is that of a normal variable as improbable as what was seen is under Student's law.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised import StructuredLinearCore, structured_certificates
    >>> loss = StructuredLinearCore(3, n_samples=4)
    >>> unary = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    >>> target = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2]])
    >>> certificates = structured_certificates(loss, unary, torch.eye(3), target, n_draws=50, rng=0)
    >>> [certificate.holds for certificate in certificates]
    [True, True, True]
    """
    _check_loss(loss)
    for name, scores in (("unary", unary), ("transitions", transitions)):
        if not (isinstance(scores, Tensor) or (scores is None and name == "transitions")):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(scores).__name__}")
    n_draws = check_integer(n_draws, "n_draws", minimum=2)
    generator = as_generator(rng)
    sampled = copy.copy(loss)
    sampled.reduction = "sum"
    sampled.generator = torch.Generator(device=unary.device).manual_seed(int(generator.integers(2**62)))
    unary = unary.detach().double()
    if transitions is None:
        transitions = unary.new_zeros(loss.n_labels, loss.n_labels)
    transitions = transitions.detach().double()
    loss.check(unary, transitions, target, mask)
    exact = copy.copy(sampled)
    enumerable = loss.sampler == "positionwise" or loss.n_labels ** unary.shape[1] <= MAX_ENUMERATED
    if enumerable:
        exact.n_samples = None
    certificates = _line_certificates(exact, unary, transitions, target, mask, generator)
    if enumerable and loss.n_samples is not None:
        z_score = _bias_in_standard_errors(sampled, exact, (unary, transitions, target, mask), n_draws, generator)
        certificates.append(
            Certificate(
                f"mean of {n_draws} sampled gradients against the gradient over all labels, in standard errors, "
                f"largest of {_DIRECTIONS} directions",
                z_score,
                4.0,
            )
        )
    return tuple(certificates)


def structured_consistency_certificate(
    loss: StructuredLinearCore,
    unary: ArrayLike | Tensor,
    transitions: ArrayLike | Tensor | None,
    law: ArrayLike | Tensor,
) -> Certificate:
    r"""Compare excess cost and excess surrogate risk of scores under a known law of the label sequences.

    Parameters
    ----------
    loss : StructuredLinearCore
        The loss; ``n_samples`` plays no part, the expectation is taken exactly.
    unary : array_like or torch.Tensor of shape (positions, labels)
        Scores for one input.
    transitions : array_like or torch.Tensor of shape (labels, labels) or None
        Scores of pairs of neighbours.
    law : array_like or torch.Tensor, with ``labels ** positions`` entries
        Probabilities of the label sequences given the input, the last position running fastest (one axis per
        position, or flat). At most 4096 of them.

    Returns
    -------
    Certificate
        ``value``: expected cost of the predicted sequence minus that of the best one. ``bound``: excess surrogate risk
        times :math:`K^L / \tau` for the loss of whole sequences. For the position-wise loss both are teacher-forced,
        given the true label before each position, and the factor is :math:`1 / (\tau L)`.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, ``law`` is not a probability vector, or there are more than 4096 sequences.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import StructuredLinearCore, structured_consistency_certificate
    >>> law = np.array([[0.4, 0.1], [0.2, 0.3]])  # of the two labels of two positions
    >>> scores = np.array([[0.0, 1.0], [0.0, 1.0]])
    >>> certificate = structured_consistency_certificate(StructuredLinearCore(2), scores, None, law)
    >>> certificate.holds, round(certificate.value, 3)
    (True, 0.1)
    """
    _check_loss(loss)
    scores = as_float_array(unary, "unary", ndim=2)
    n_positions, n_labels = scores.shape
    if n_labels != loss.n_labels:
        raise ValueError(f"unary must be of shape (positions, {loss.n_labels}), got {scores.shape}")
    if n_labels**n_positions > MAX_ENUMERATED:
        raise ValueError(f"law must be over at most {MAX_ENUMERATED} sequences, got {n_labels}^{n_positions}")
    pairs = np.zeros((n_labels, n_labels))
    if transitions is not None:
        pairs = as_float_array(transitions, "transitions", ndim=2)
        if pairs.shape != (n_labels, n_labels):
            raise ValueError(f"transitions must be of shape ({n_labels}, {n_labels}), got {pairs.shape}")
    flat = as_float_array(law, "law", ndim=range(1, n_positions + 1)).reshape(-1)
    probabilities = as_distribution(flat, "law", size=n_labels**n_positions).reshape((n_labels,) * n_positions)
    costs = 1.0 - np.eye(n_labels) if loss.cost is None else loss.cost.double().cpu().numpy()
    if loss.sampler == "uniform":
        target, surrogate, least = _whole_sequence_excess(loss, scores, pairs, probabilities, costs)
        factor = n_labels**n_positions / loss.tau
        statement = (
            "excess expected cost of the predicted sequence, "
            "at most (labels^positions / tau) times the excess surrogate"
        )
    else:
        target, surrogate, least = _positionwise_excess(loss, scores, pairs, probabilities, costs)
        factor = 1.0 / (loss.tau * n_positions)
        statement = (
            "teacher-forced excess cost per position, at most 1 / (tau positions) times the excess surrogate; "
            "Viterbi decoding, which does not know the true label before, is not covered unless transitions are 0"
        )
    # Two risks are subtracted, and scores that tie but for rounding may predict either outcome.
    largest = loss.score_scale * max(float(np.abs(scores).max()), float(np.abs(pairs).max()))
    rounding = 1e-12 + factor * 1e-13 * least + 1e-15 * n_positions * largest
    return Certificate(
        statement,
        target,
        factor * surrogate + rounding,
        assumptions=(Assumption("the law is that of the label sequences given the input"),),
    )


def least_conditional_risk(
    costs: Float[np.ndarray, "cases outcomes"],
    tau: float = 0.7,
    sigma: float = 0.3,
    tail: str | LinearCoreTail = "exp",
) -> Float[np.ndarray, " cases"]:
    r"""Least value of :math:`\sum_k q_k \Phi(-h_k)` over all scores of sum zero.

    Parameters
    ----------
    costs : numpy.ndarray of shape (cases, outcomes)
        Non-negative weights :math:`q`, one problem per row.
    tau, sigma, tail
        As in :func:`assay.supervised.linear_core`.

    Returns
    -------
    numpy.ndarray of shape (cases,)
        The risk of the scores that balance the slopes. It is attained, so it is never below the least one.

    Notes
    -----
    At the optimum :math:`-\Phi'(-h_k) = q_{\min} / q_k`. The cheapest outcome sits on the linear part, where it takes
    up what the sum of the others leaves. When :math:`q_{\min} = 0` the infimum 0 may lie at infinity; the value is then
    0 to working precision.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.structured_consistency import least_conditional_risk
    >>> least_conditional_risk(np.array([[0.5, 0.7, 0.8]])).round(10)
    array([1.62097138])
    """
    curve = resolve_tail(tail)
    cheapest = costs.argmin(axis=1)
    rows = np.arange(len(costs))
    smallest = costs[rows, cheapest][:, None]
    # Where a cost is 0 so is the smallest, and its score does not matter.
    steepness = np.divide(smallest, costs, out=np.ones_like(costs), where=costs > 0)
    margins = tau + sigma * curve.invert(steepness)
    margins[rows, cheapest] = 0.0
    margins[rows, cheapest] = -margins.sum(axis=1)
    return (costs * linear_core(margins, tau, sigma, curve)).sum(axis=1)


def _line_certificates(
    loss: StructuredLinearCore,
    unary: Tensor,
    transitions: Tensor,
    target: Tensor,
    mask: Tensor | None,
    generator: np.random.Generator,
) -> list[Certificate]:
    chain = loss.check(unary, transitions, target, mask)
    labels = loss.draw(chain)
    step_unary, step_transitions = _gaussian_like(unary, generator), _gaussian_like(transitions, generator)
    moved_scores, weights = loss.scores_and_weights(loss.check(step_unary, step_transitions, target, mask), labels)
    curvature = resolve_tail(loss.tail).curvature / loss.sigma
    constant = curvature * loss.score_scale**2 * float((weights * moved_scores**2).sum())
    slopes = []
    for distance in _LINE:
        place = torch.tensor(distance, dtype=unary.dtype, device=unary.device, requires_grad=True)
        moved = loss.check(unary + place * step_unary, transitions + place * step_transitions, target, mask)
        slopes.append(float(torch.autograd.grad(loss.evaluate(moved, labels).sum(), place)[0]))
    rates = np.diff(slopes) / np.diff(_LINE)
    return [
        Certificate(
            "convexity: smallest change of the derivative per unit along a random line",
            float(rates.min()),
            -1e-10 * max(1.0, constant),
            ">=",
        ),
        Certificate(
            "smoothness: largest change of the derivative per unit along a random line, at most its Lipschitz constant",
            float(rates.max()),
            constant * (1.0 + 1e-10) + 1e-10,
        ),
    ]


def _bias_in_standard_errors(
    sampled: StructuredLinearCore,
    exact: StructuredLinearCore,
    arguments: tuple[Tensor, Tensor, Tensor, Tensor | None],
    n_draws: int,
    generator: np.random.Generator,
) -> float:
    unary, transitions, target, mask = arguments
    size = unary.numel() + transitions.numel()
    directions = torch.as_tensor(generator.standard_normal((size, _DIRECTIONS))).to(unary)

    def projected_gradient(loss: StructuredLinearCore) -> np.ndarray:
        leaves = (unary.clone().requires_grad_(), transitions.clone().requires_grad_())
        gradients = torch.autograd.grad(loss(*leaves, target, mask), leaves)
        return (torch.cat([g.reshape(-1) for g in gradients]) @ directions).cpu().numpy()

    reference = projected_gradient(exact)
    draws = np.stack([projected_gradient(sampled) for _ in range(n_draws)])
    bias = np.abs(draws.mean(axis=0) - reference)
    # With two labels there is only one wrong label to draw: no spread, and no more bias than rounding.
    rounding = 1e-12 * np.abs(reference).max()
    deviation = float((bias / np.maximum(draws.std(axis=0, ddof=1) / np.sqrt(n_draws), rounding + 1e-300)).max())
    return float(norm.isf(student.sf(deviation, n_draws - 1)))


def _check_loss(loss: StructuredLinearCore) -> None:
    if not isinstance(loss, StructuredLinearCore):
        raise TypeError(f"loss must be a StructuredLinearCore, got {type(loss).__name__}")


def _gaussian_like(tensor: Tensor, generator: np.random.Generator) -> Tensor:
    return torch.as_tensor(generator.standard_normal(tuple(tensor.shape))).to(tensor)


def _whole_sequence_excess(
    loss: StructuredLinearCore,
    scores: Float[np.ndarray, "positions labels"],
    transitions: Float[np.ndarray, "labels labels"],
    law: Float[np.ndarray, "*labels_of_positions"],
    costs: Float[np.ndarray, "labels labels"],
) -> tuple[float, float, float]:
    """Excess cost, excess surrogate risk, and the least surrogate risk."""
    n_positions, n_labels = scores.shape
    sequences = np.indices((n_labels,) * n_positions).reshape(n_positions, -1)
    totals = scores[np.arange(n_positions)[:, None], sequences].sum(axis=0)
    totals += transitions[sequences[:-1], sequences[1:]].sum(axis=0)
    expected = np.zeros(totals.size)
    for position in range(n_positions):
        marginal = law.sum(axis=tuple(axis for axis in range(n_positions) if axis != position))
        expected += (marginal @ costs)[sequences[position]] / n_positions
    margins = -loss.score_scale * _centred(totals)
    risk = expected @ linear_core(margins, loss.tau, loss.sigma, loss.tail)
    least = least_conditional_risk(expected[None], loss.tau, loss.sigma, loss.tail)[0]
    predicted = np.ravel_multi_index(tuple(viterbi(scores, transitions)), (n_labels,) * n_positions)
    return (
        float(expected[predicted] - expected.min()),
        float((risk - least) / totals.size),
        float(least / totals.size),
    )


def _positionwise_excess(
    loss: StructuredLinearCore,
    scores: Float[np.ndarray, "positions labels"],
    transitions: Float[np.ndarray, "labels labels"],
    law: Float[np.ndarray, "*labels_of_positions"],
    costs: Float[np.ndarray, "labels labels"],
) -> tuple[float, float, float]:
    """Excess cost per position, excess surrogate risk, and the least surrogate risk, given the true labels before."""
    n_positions = len(scores)
    target = surrogate = smallest = 0.0
    for position in range(n_positions):
        others = tuple(axis for axis in range(n_positions) if axis not in (position - 1, position))
        joint = np.atleast_2d(law.sum(axis=others))  # rows: the label before; one row for the first position
        joined = scores[position] + (transitions if position else 0.0 * transitions[:1])
        reached = joint.sum(axis=1) > 0
        chances, joined = joint[reached].sum(axis=1), joined[reached]
        expected = joint[reached] / chances[:, None] @ costs
        margins = -loss.score_scale * _centred(joined)
        risk = (expected * linear_core(margins, loss.tau, loss.sigma, loss.tail)).sum(axis=1)
        least = least_conditional_risk(expected, loss.tau, loss.sigma, loss.tail)
        predicted = joined.argmax(axis=1)
        target += chances @ (expected[np.arange(len(expected)), predicted] - expected.min(axis=1))
        surrogate += chances @ (risk - least)
        smallest += chances @ least
    return float(target / n_positions), float(surrogate), float(smallest)


def _centred(scores: Float[np.ndarray, "*rows columns"]) -> Float[np.ndarray, "*rows columns"]:
    """Scores minus their mean, twice, since the first time leaves a rounding error of the size of the mean."""
    for _ in range(2):
        scores = scores - scores.mean(axis=-1, keepdims=True)
    return scores
