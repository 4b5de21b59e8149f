r"""The policy that a preference loss aims at, for a few responses and exact preferences.

With finitely many responses and the probabilities :math:`P_{ij}` that i is preferred to j, the loss of the whole
population can be minimised and its minimiser compared with what theory says: a calibrated loss whose choice model is
that of the preferences, :math:`P_{ij} = F_\psi(u_i - u_j)`, leads to
:math:`\beta(H(\pi^*_i) - H(\pi_{0,i})) = u_i + c`; for ``H = log``, :math:`\pi^* \propto \pi_0 e^{u/\beta}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.supervised.choice_models import ChoiceModel, ImpliedChoiceModel, resolve_choice
from assay.supervised.policy_links import PolicyLink, resolve_link
from assay.supervised.preference_psi import MarginLoss, shifted, smoothed
from assay.validation import as_distribution, as_float_array, check_integer, check_real, warn_not_converged

__all__ = ["TabularPolicy", "tabular_policy"]

_CONSISTENT = 1e-6
_REACHED = 1e-6
_PHASES = (0.0, 0.25, 0.5, 0.75)
_BISECTIONS = 200


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TabularPolicy(Result):
    """Minimiser of the preference loss of a population.

    Parameters
    ----------
    policy : numpy.ndarray of shape (n_responses,)
        Probabilities of the responses.
    utilities : numpy.ndarray of shape (n_responses,)
        Differences of rewards that minimise the loss, with mean 0.
    target : numpy.ndarray of shape (n_responses,)
        The policy that theory derives from the preferences by the inverse of the implied choice model; nan when the
        loss is not calibrated or a preference is out of its range.
    loss : float
        Loss of the population.
    n_iter : int
        Iterations of the solver.
    converged : bool
        Whether the gradient is below ``tol``.
    certificates : tuple of Certificate
        The gradient at the policy, the relation of its rewards to the utilities, and the distance to the target.
    """

    policy: Float[np.ndarray, " responses"]
    utilities: Float[np.ndarray, " responses"]
    target: Float[np.ndarray, " responses"]
    loss: float
    n_iter: int
    converged: bool


def tabular_policy(
    preferences: ArrayLike,
    reference: ArrayLike,
    psi: Any = "logistic",
    beta: float = 0.1,
    *,
    choice: Any = "btl",
    link: Any = "log",
    margin: float = 0.0,
    label_smoothing: float = 0.0,
    tol: float = 1e-8,
    max_iter: int = 2000,
) -> TabularPolicy:
    r"""Find the policy that minimises a preference loss over all pairs of a few responses.

    .. math:: \min_{\pi} \sum_{i < j} P_{ij}\,\psi(z_{ij}) + P_{ji}\,\psi(-z_{ij}),
              \qquad z_{ij} = \beta\,(\hat r_i - \hat r_j), \quad \hat r_i = H(\pi_i) - H(\pi_{0,i}),

    where, if the choice model abstains, a pair also pays :math:`-(1 - P_{ij} - P_{ji}) \log(1 - F(z) - F(-z))`.

    Parameters
    ----------
    preferences : array_like of shape (n_responses, n_responses)
        Probability that the row's response is preferred to the column's; the diagonal is not read.
    reference : array_like of shape (n_responses,)
        Positive probabilities of the reference policy.
    psi : str, callable or object, default="logistic"
        Loss of a margin.
    beta : float, default=0.1
        How strongly the policy is held to the reference.
    choice : str, ChoiceModel, object or pair of callables, default="btl"
        Declared choice model; only its abstention matters.
    link : str or object, default="log"
        Policy link ``H``.
    margin : float, default=0.0
        By how much a preferred response has to lead.
    label_smoothing : float, default=0.0
        Assumed share of wrong labels.
    tol : float, default=1e-8
        Largest entry of the gradient, for weights that sum to one per pair.
    max_iter : int, default=2000
        Most iterations.

    Returns
    -------
    TabularPolicy

    Raises
    ------
    ValueError, TypeError
        If preferences are not probabilities, those of a pair sum to more than one, the reference has not one positive
        entry per response, or a parameter is out of range.

    Warns
    -----
    ConvergenceWarning
        If the gradient is still above ``tol`` after ``max_iter`` iterations.

    Notes
    -----
    The loss depends on the utilities :math:`\beta \hat r` alone. They are found by L-BFGS from 0, a loss that is not
    convex being phased in from the logistic one; the policy follows from them by one equation for the constant. One
    iteration is O(n_responses^2). For a link with a finite value at 0, responses whose link would be below it get
    probability 0, and the certificate on the rewards, which assumes that there are none, says so.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised import tabular_policy
    >>> utility = np.array([1.0, 0.5, 0.0])
    >>> preferences = 1 / (1 + np.exp(utility[None, :] - utility[:, None]))
    >>> result = tabular_policy(preferences, [0.2, 0.3, 0.5], "savage", beta=0.5)
    >>> result.policy.round(4).tolist()
    [0.5291, 0.2919, 0.179]
    >>> result.certified
    True
    """
    base = resolve_reference(reference)
    matrix = _check_preferences(preferences, len(base))
    beta = check_real(beta, "beta", above=0)
    loss = shifted(smoothed(psi, label_smoothing), check_real(margin, "margin", minimum=0))
    model, policy_link = resolve_choice(choice), resolve_link(link)
    tol = check_real(tol, "tol", minimum=0)
    check_integer(max_iter, "max_iter", minimum=1)

    population = _Population(matrix, loss, model if model.abstains else None)
    utilities, n_iter = _minimise(population, len(base), tol, max_iter)
    policy = _policy_of(utilities, base, beta, policy_link)
    value, gradient = population(utilities)
    worst = float(np.abs(gradient).max())
    if worst > tol:
        warn_not_converged("tabular_policy", n_iter, worst, tol)
    target, consistent = _derived_target(population, loss, base, beta, policy_link)
    return TabularPolicy(
        policy=policy,
        utilities=utilities,
        target=target,
        loss=value,
        n_iter=n_iter,
        converged=worst <= tol,
        certificates=_certificates(population, policy, target, consistent, base, beta, policy_link, tol, utilities),
    )


class _Population:
    """The loss of all pairs as a function of the utilities, and its gradient."""

    def __init__(self, preferences: np.ndarray, loss: MarginLoss, abstaining: ChoiceModel | None) -> None:
        self.preferences, self.loss, self.abstaining = preferences, loss, abstaining
        self.ties = np.maximum(1.0 - preferences - preferences.T, 0.0) if abstaining is not None else None
        if self.ties is not None:
            np.fill_diagonal(self.ties, 0.0)

    @torch.enable_grad()
    def __call__(self, utilities: np.ndarray, phase: float = 1.0) -> tuple[float, Float[np.ndarray, " responses"]]:
        """Value and gradient; ``phase`` below 1 mixes in the logistic loss."""
        at = torch.tensor(utilities, dtype=torch.float64, requires_grad=True)
        margins = at[:, None] - at[None, :]
        losses = self.loss.value(margins)
        if phase < 1.0:
            losses = phase * losses - (1.0 - phase) * torch.nn.functional.logsigmoid(margins)
        total = (torch.tensor(self.preferences) * losses).sum()
        if self.ties is not None:
            total = total - 0.5 * (torch.tensor(self.ties) * self.abstaining.log_abstention(margins)).sum()
        (gradient,) = torch.autograd.grad(total, at)
        return float(total.detach()), gradient.numpy()


def _minimise(population: _Population, n: int, tol: float, max_iter: int) -> tuple[np.ndarray, int]:
    utilities, n_iter = np.zeros(n), 0
    for phase in (*(_PHASES if population.loss.fades else ()), 1.0):
        for _ in range(3):  # started again where the line search gave up on rounding
            answer = minimize(
                population,
                utilities,
                args=(phase,),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": max(1, max_iter - n_iter), "gtol": tol, "ftol": 0.0, "maxcor": 20},
            )
            n_iter += int(answer.nit)
            utilities = answer.x - answer.x.mean()
            if n_iter >= max_iter or np.abs(population(utilities, phase)[1]).max() <= tol:
                break
    return utilities, n_iter


def _policy_of(
    utilities: np.ndarray, reference: np.ndarray, beta: float, link: PolicyLink
) -> Float[np.ndarray, " responses"]:
    """The policy with these differences of rewards; the constant by bisection, as the total rises with it."""
    anchors = link.of_log(torch.tensor(np.log(reference))).numpy() + utilities / beta
    if link.name == "log":
        policy = np.exp(anchors - anchors.max())
        return policy / policy.sum()

    def total(constant: float) -> float:
        return float(link.inverse(torch.tensor(anchors + constant)).sum())

    # At the first of these no response has a probability above its reference, at the second none below.
    low, high = -utilities.max() / beta, -utilities.min() / beta
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if total(middle) < 1.0 else (low, middle)
    policy = link.inverse(torch.tensor(anchors + 0.5 * (low + high))).numpy()
    return policy / policy.sum()


def _derived_target(
    population: _Population, loss: MarginLoss, reference: np.ndarray, beta: float, link: PolicyLink
) -> tuple[np.ndarray, bool | None]:
    """The policy from the inverse of the implied choice model, and whether the preferences are of that model."""
    unknown = np.full(len(reference), math.nan)
    model: ChoiceModel = ImpliedChoiceModel(loss)
    preferences = population.preferences
    if population.ties is not None:
        # With ties the likelihood decides; the utilities come from the declared model.
        model = population.abstaining
    elif not model.calibrated:
        return unknown, None
    both = preferences + preferences.T
    ratio = preferences if population.ties is not None else preferences / np.where(both > 0.0, both, 1.0)
    np.fill_diagonal(ratio := ratio.copy(), 0.5)
    if ratio.min() <= 0.0 or ratio.max() >= 1.0 or (~np.eye(len(both), dtype=bool) & (both == 0.0)).any():
        return unknown, None
    leads = model.inverse(torch.tensor(ratio)).numpy().copy()
    np.fill_diagonal(leads, 0.0)
    utilities = leads.mean(axis=1)
    if not np.isfinite(utilities).all():
        return unknown, False
    margins = torch.tensor(utilities[:, None] - utilities[None, :])
    fitted = model.probability(margins).detach().numpy().copy()
    np.fill_diagonal(fitted, 0.5)
    consistent = bool(np.abs(fitted - ratio).max() <= _CONSISTENT)
    return _policy_of(utilities, reference, beta, link), consistent


def _certificates(
    population: _Population,
    policy: np.ndarray,
    target: np.ndarray,
    consistent: bool | None,
    reference: np.ndarray,
    beta: float,
    link: PolicyLink,
    tol: float,
    utilities: np.ndarray,
) -> tuple[Certificate, ...]:
    """Everything from the policy that is returned: its rewards, not the solver's utilities, enter the loss."""
    inside = bool((policy > 0.0).all())
    log_policy = torch.tensor(np.log(np.maximum(policy, np.finfo(float).tiny)))
    rewards = (link.of_log(log_policy) - link.of_log(torch.tensor(np.log(reference)))).numpy() * beta
    rewards -= rewards.mean()
    gradient = np.abs(population(rewards)[1]).max()
    interior = Assumption("every response has a positive probability", inside)
    scale = max(1.0, float(np.abs(utilities).max()) / beta)
    about_target = [Assumption("the preferences are those of the implied choice model", consistent), interior]
    if population.ties is not None:
        about_target.append(
            Assumption(
                "the loss of a pair with an order is minus the log-probability of the declared choice model, as with "
                "logistic, abstain(a) and margin a",
                _is_likelihood(population),
            )
        )
    return (
        Certificate(
            "largest entry of the gradient of the population loss at the rewards of the policy",
            float(gradient),
            # Rewards recovered from probabilities carry their rounding.
            tol + 1e-13 * scale / float(policy.min() if inside else 1.0),
            "<=",
            (interior,),
        ),
        Certificate(
            "L1 distance to the policy derived from the preferences",
            float(np.abs(policy - target).sum()),
            _REACHED,
            "<=",
            tuple(about_target),
        ),
    )


def _is_likelihood(population: _Population) -> bool:
    margins = torch.linspace(-6.0, 6.0, 49, dtype=torch.float64)
    with torch.no_grad():
        rest = population.loss.value(margins) + torch.log(population.abstaining.probability(margins))
    return bool((rest - rest[0]).abs().max() <= _CONSISTENT)


def resolve_reference(reference: ArrayLike) -> Float[np.ndarray, " responses"]:
    """Check a reference policy: positive probabilities of two responses or more.

    Parameters
    ----------
    reference : array_like of shape (n_responses,)
        What the user passed.

    Returns
    -------
    numpy.ndarray of shape (n_responses,)

    Examples
    --------
    >>> from assay.supervised.tabular_policies import resolve_reference
    >>> resolve_reference([0.5, 0.5])
    array([0.5, 0.5])
    """
    base = as_distribution(reference, "reference")
    if len(base) < 2 or base.min() <= 0.0:
        raise ValueError(f"reference must have positive entries for at least 2 responses, got {base.tolist()}")
    return base


def _check_preferences(preferences: ArrayLike, n: int) -> Float[np.ndarray, "responses responses"]:
    matrix = as_float_array(preferences, "preferences", ndim=2).copy()
    if matrix.shape != (n, n):
        raise ValueError(f"preferences must have shape ({n}, {n}), as reference has {n} entries, got {matrix.shape}")
    np.fill_diagonal(matrix, 0.0)
    if matrix.min() < 0.0 or matrix.max() > 1.0:
        raise ValueError(f"preferences must be in [0, 1], got values in [{matrix.min():g}, {matrix.max():g}]")
    most = float((matrix + matrix.T).max())
    if most > 1.0 + 1e-9:
        raise ValueError(f"preferences of a pair must sum to at most 1, got {most:.12g}")
    return matrix
