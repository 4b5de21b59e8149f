r"""The dual value: how large the loss gets in the worst case, as an integral over a Gaussian.

Eliminating the worst-case distribution from the penalised problem leaves

.. math:: V = \frac1n \sum_x \frac{\varepsilon}{2\tau} \log E_{y \sim N(x, (\varepsilon/2) I)}
          \exp\bigl(2\tau f(y)/\varepsilon\bigr) .

Duality is exact, whatever the loss, so this is what a sampler of the worst case has to agree with. The integral is
estimated from draws of :mod:`assay.transport.gibbs_reference`.

Two means enclose the value: that of the loss under the Gaussian is below it (Jensen), that under the worst case above
it (Gibbs' variational principle). The loss at the data itself is a lower bound for convex losses only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from assay.certificate import Certificate
from assay.result import Result
from assay.transport.flow_problem import WorstCaseProblem, check_finite_losses, fresh_generator
from assay.transport.gibbs_reference import LEAST_ESS, GibbsDraws, gibbs_draws
from assay.validation import check_real

__all__ = ["WorstCaseValue", "value_certificates", "worst_case_value"]

_QUADRATURE_TOL = 1e-8


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class WorstCaseValue(Result):
    """Estimate of the dual value, and the two means that enclose it.

    Parameters
    ----------
    value : float
        Estimate of ``V``. The logarithm of a mean is biased downwards.
    standard_error : float
        Its standard error by the delta method, or the error of the quadrature.
    ess : numpy.ndarray of shape (n,)
        Effective number of draws for every data point: of the importance weights, the least over the stages of
        tempering, or the points of the grid.
    lower, upper : float
        Mean loss under the Gaussian, and under the worst case.
    lower_error, upper_error : float
        Their standard errors.
    plain : float
        Mean loss at the data. It is no bound unless the loss is convex.
    transport : float
        Mean squared distance of the worst case from the data.
    values : numpy.ndarray of shape (n,)
        ``V`` for every data point.
    methods : tuple of str
        How it was computed for every data point.
    """

    value: float
    standard_error: float
    ess: Float[np.ndarray, " n"]
    lower: float
    upper: float
    lower_error: float
    upper_error: float
    plain: float
    transport: float
    values: Float[np.ndarray, " n"]
    methods: tuple[str, ...]


def worst_case_value(
    loss: Callable[..., Any],
    x: Any,
    y: Any = None,
    *,
    tau: float,
    epsilon: float,
    draws: int = 4096,
    method: str = "auto",
    generator: torch.Generator | None = None,
) -> WorstCaseValue:
    r"""Estimate the dual value of the worst case.

    That is :math:`\max_\rho E_\rho f - W_{2,\varepsilon}^2(\rho, \hat\rho) / 2\tau`, with the empirical law
    :math:`\hat\rho` of the data.

    Parameters
    ----------
    loss : callable
        ``loss(features, y)`` returns one loss per sample; convex or not.
    x : torch.Tensor or array_like of shape (n, ...)
        Data points.
    y : torch.Tensor or array_like of shape (n, ...), optional
        Labels.
    tau : float
        Strength of the shift.
    epsilon : float
        Entropy, greater than 0.
    draws : int, default=4096
        Draws for every data point.
    method : {"auto", "importance", "tempered", "quadrature"}, default="auto"
        ``"auto"`` weights Gaussian draws by importance, and where fewer than 50 are effective turns to quadrature in
        one dimension and to tempering, with an eighth of the draws, in more.
    generator : torch.Generator, optional
        Source of randomness, on the device of the data; by default fresh entropy.

    Returns
    -------
    WorstCaseValue
        With the certificate that enough draws are effective for every data point, or for quadrature that the digits
        of the grid have settled. Where it fails the value is not known.

    Raises
    ------
    TypeError, ValueError
        If the loss or the data are not of that form, an option is out of range, or a loss is not finite.

    Notes
    -----
    ``draws`` evaluations of the loss for every data point; tempering has 5, with gradients, for every draw and stage.
    Losses are evaluated in the precision of the data, everything else is float64.

    References
    ----------
    .. [1] Z. Xu, J.-J. Zhu. Gradient Flow Sampler-based Distributionally Robust Optimization. ICML 2026,
       arXiv:2510.25956.
    .. [2] J. Wang, R. Gao, Y. Xie. Sinkhorn Distributionally Robust Optimization. Operations Research, 2025.
    .. [3] P. Del Moral, A. Doucet, A. Jasra. Sequential Monte Carlo Samplers. Journal of the Royal Statistical
       Society B, 2006.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import worst_case_value
    >>> def logistic(x, y):
    ...     return torch.nn.functional.softplus(-2.0 * x[:, 0])
    >>> answer = worst_case_value(logistic, [[0.3]], tau=0.5, epsilon=0.2, method="quadrature")
    >>> round(answer.value, 6), round(answer.upper, 6)
    (0.735622, 1.172058)
    """
    problem = WorstCaseProblem(loss, x, y, tau, check_real(epsilon, "epsilon", above=0))
    check_finite_losses(problem.losses(problem.start(1)))
    random = fresh_generator(generator, problem.points.device)
    parts = list(gibbs_draws(problem, draws, method, random, summary=_summary))
    order = np.argsort(np.concatenate([part["rows"] for part in parts]))
    columns = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
    methods = tuple(str(used) for used in columns["method"])
    n = len(problem)
    return WorstCaseValue(
        value=float(columns["value"].mean()),
        standard_error=math.sqrt(columns["variance"].sum()) / n,
        ess=columns["ess"],
        lower=float(columns["lower"].mean()),
        upper=float(columns["upper"].mean()),
        lower_error=math.sqrt(columns["lower_variance"].sum()) / n,
        upper_error=math.sqrt(columns["upper_variance"].sum()) / n,
        plain=float(problem.losses(problem.start(1)).double().mean()),
        transport=float(columns["transport"].mean()),
        values=columns["value"],
        methods=methods,
        certificates=tuple(value_certificates(methods, columns["ess"], columns["variance"])),
    )


def value_certificates(
    methods: tuple[str, ...], ess: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"]
) -> Iterator[Certificate]:
    """Whether the value is known: enough effective draws, and settled digits of quadrature."""
    grid = np.array([method == "quadrature" for method in methods])
    if not grid.all():
        yield Certificate("least effective number of draws of a data point", ess[~grid].min(), LEAST_ESS, ">=")
    if grid.any():
        yield Certificate("change of the value when the grid is halved", np.sqrt(variance[grid].max()), _QUADRATURE_TOL)


def _summary(draws: GibbsDraws) -> dict[str, Any]:
    transport = (draws.weights * draws.problem.squared_moves(draws.cloud).double()).sum(1)
    tensors = {
        "rows": draws.rows,
        "value": draws.value,
        "variance": draws.variance,
        "ess": draws.ess,
        "lower": draws.lower,
        "lower_variance": draws.lower_variance,
        "upper": draws.upper,
        "upper_variance": draws.upper_variance,
        "transport": transport,
    }
    numbers = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    return numbers | {"method": np.full(len(draws.value), draws.method)}
