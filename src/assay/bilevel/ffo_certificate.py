r"""What a differentiable optimization layer promises about its last call, and whether it was kept.

The gradient of a solution map is what the layer says it is under three conditions: the forward point is optimal, the
active constraints are independent, and none of them is only just active. All three are measured on the instances of
the last call, from the parameters, the point and the duals. How the gradient changes when ``delta`` is halved shows
the order of its error, and on request it is compared with implicit differentiation of the full system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from assay.certificate import Assumption, Certificate
from assay.result import Result
from assay.validation import check_real

__all__ = ["FFOCertificate", "LayerCall", "certificate"]

#: Below this distance from a change of the active set the gradient may be one-sided.
STRICT = 1e-6
#: Relative change of a gradient that rounding explains.
FLOOR = 1e-9


class LayerCall(Protocol):
    """What a layer remembers of a call; arrays have an entry per instance."""

    delta: float
    central: bool
    statuses: tuple[str, ...]
    output_shape: tuple[int, int]
    accurate: Bool[ndarray, " B"]
    polished: Bool[ndarray, " B"]
    capped: Bool[ndarray, " B"]
    upstream: Float[ndarray, "B outputs"] | None
    iterations: Int[ndarray, " B"]
    exact_in_delta: bool

    def measured(self) -> dict[str, Float[ndarray, " B"]]:
        """Residual, independence, margin and number of active constraints, and whether these are confirmed."""

    def gradient(
        self, upstream: Float[ndarray, "B outputs"], delta: float | Float[ndarray, " B"]
    ) -> tuple[Float[ndarray, " n"], Float[ndarray, " B"]]:
        """The gradient by all parameters, in a row, and the sizes of the perturbations that were used."""

    def implicit_gradient(self, upstream: Float[ndarray, "B outputs"]) -> Float[ndarray, " n"]:
        """The same by implicit differentiation with a dense system."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FFOCertificate(Result):
    """What was measured about the last call of a layer.

    Parameters
    ----------
    kkt_residual : numpy.ndarray of shape (B,)
        Largest relative violation of the optimality conditions of the forward solution.
    independence : numpy.ndarray of shape (B,)
        Smallest singular value of the active constraints, with rows of norm 1; infinite without any.
    margin : numpy.ndarray of shape (B,)
        Smallest of all ``max(slack, multiplier)``, in units of constraints with a gradient of norm 1.
    n_active : numpy.ndarray of shape (B,)
        Number of equations of the ghost problem.
    doubtful : numpy.ndarray of shape (B,)
        Whether the gradient of an instance may be one-sided, one of several, or wrong: a margin or an independence
        below 1e-6, more active constraints than unknowns, active constraints that do not determine the solution, or
        a residual above ``tol``.
    differentiable : {"yes", "doubtful"}
        ``"doubtful"`` if any instance is.
    statuses : tuple of str
        What the solver said.
    polished : numpy.ndarray of shape (B,)
        Whether the polished solution was accepted.
    iterations : numpy.ndarray of shape (B,)
        Iterations of the first-order method in the backward pass; 0 when the system was factorised.
    delta : float
        Size of the perturbation, the smallest one of the batch where it had to be made smaller.
    halving_ratio : float
        Change of the gradient from ``delta`` to half of it, over that from half to a quarter; nan when both are at
        rounding level.
    order : float
        Its binary logarithm: the order of the error in ``delta``.
    gradient_error : float
        Relative distance to implicit differentiation; nan unless it was asked for.
    """

    kkt_residual: Float[ndarray, " B"]
    independence: Float[ndarray, " B"]
    margin: Float[ndarray, " B"]
    n_active: Int[ndarray, " B"]
    doubtful: Bool[ndarray, " B"]
    differentiable: str
    statuses: tuple[str, ...]
    polished: Bool[ndarray, " B"]
    iterations: Int[ndarray, " B"]
    delta: float
    halving_ratio: float
    order: float
    gradient_error: float


def certificate(layer: Any, *, check_gradient: Any = False, tol: float = 1e-6) -> FFOCertificate:
    r"""Evaluate the promises of a layer on its last call.

    Parameters
    ----------
    layer : FFOLayer or FFOQPLayer
        A layer that has been called. If gradients have been taken, the last upstream gradient is used; otherwise a
        vector of ones.
    check_gradient : bool, default=False
        Whether to compare with implicit differentiation of the dense system (at most 300 unknowns).
    tol : float, default=1e-6
        Bound on the optimality residual, and on the relative error of the gradient where it does not depend on
        ``delta``.

    Returns
    -------
    FFOCertificate
        With the certificates

        1. optimality residual of the forward solution at most ``tol``,
        2. independence of the active constraints at least 1e-6,
        3. strict complementarity: margin at least 1e-6,
        4. active constraints: taken as equations they determine a solution that satisfies all optimality conditions,
        5. order of the error in ``delta``, from three gradients: the ratio at least 1.5 for forward and 3 for central
           differences, or no change beyond rounding,
        6. with ``check_gradient``, distance to implicit differentiation: at most ``tol`` where the gradient does not
           depend on ``delta``, otherwise at most one and a half times what the order leads one to expect.

    Raises
    ------
    TypeError
        If ``layer`` is no such layer.
    ValueError
        If it has not been called yet, or is too large for the check.

    Notes
    -----
    The fifth takes three more backward passes. The sixth factorises a dense system of all constraints per instance.

    References
    ----------
    .. [1] Z. Zhao, K.-C. Mo, S.-H. Ho, B. Amos, K. Wang. A Fully First-Order Layer for Differentiable Optimization.
       ICML 2026, arXiv:2512.02494.

    Examples
    --------
    >>> import torch
    >>> from assay.bilevel import FFOQPLayer, certificate
    >>> layer = FFOQPLayer()
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> target = torch.tensor([-2.0, 0.3], dtype=torch.float64, requires_grad=True)
    >>> box = torch.cat([eye, -eye]), torch.ones(4, dtype=torch.float64)
    >>> layer(eye, -target, *box).sum().backward()  # projection on a box
    >>> report = certificate(layer, check_gradient=True)
    >>> report.differentiable, report.certified, report.margin
    ('yes', True, array([0.7]))
    """
    call = getattr(layer, "_last_call", False)
    if call is False:
        raise TypeError(f"layer must be an FFOLayer or an FFOQPLayer, got {type(layer).__name__}")
    if call is None:
        raise ValueError("layer must have been called before it can be certified")
    tol = check_real(tol, "tol", above=0)
    if not isinstance(check_gradient, bool):
        raise TypeError(f"check_gradient must be True or False, got {check_gradient!r}")
    measured = call.measured()
    upstream = call.upstream
    if upstream is None or not np.any(upstream):
        upstream = np.ones(call.output_shape)
    strict, independent = measured["margin"] >= STRICT, measured["independence"] >= STRICT
    confirmed, optimal = measured["confirmed"] > 0, measured["residual"] <= tol
    doubtful = ~(strict & independent & confirmed & optimal) | call.capped
    assumptions = (
        Assumption("the solver met its tolerances on every instance", bool(call.accurate.all())),
        Assumption("there are no more active constraints than unknowns", not bool(call.capped.any())),
    )
    certificates = [
        Certificate("optimality residual of the forward solution", measured["residual"].max(), tol, "<=", assumptions),
        Certificate("smallest singular value of the active constraints", measured["independence"].min(), STRICT, ">="),
        Certificate("strict complementarity: largest of slack and multiplier", measured["margin"].min(), STRICT, ">="),
    ]
    wrong = float(np.count_nonzero(~confirmed))
    certificates.append(Certificate("solutions that their active constraints do not determine", wrong, 0.0, "<="))
    smooth = (
        Assumption("active constraints are independent", bool(independent.all())),
        Assumption("complementarity is strict", bool(strict.all())),
    )
    used, deltas = call.gradient(upstream, call.delta)
    halving, ratio, change = _halving(call, upstream, used, deltas, smooth)
    certificates.append(halving)
    error = float("nan")
    if check_gradient:
        implicit = call.implicit_gradient(upstream)
        size = _size(implicit, upstream)
        error = float(np.linalg.norm(used - implicit)) / size
        expected = 0.0 if call.exact_in_delta else 1.5 * change / (0.75 if call.central else 0.5)
        certificates.append(
            Certificate("distance to implicit differentiation, relative", error, tol + expected, "<=", smooth)
        )
    return FFOCertificate(
        kkt_residual=measured["residual"],
        independence=measured["independence"],
        margin=measured["margin"],
        n_active=measured["n_active"].astype(int),
        doubtful=doubtful,
        differentiable="doubtful" if doubtful.any() else "yes",
        statuses=call.statuses,
        polished=call.polished,
        iterations=call.iterations,
        delta=float(deltas.min()),
        halving_ratio=ratio,
        order=float(np.log2(ratio)) if ratio > 0 else float("nan"),
        gradient_error=error,
        certificates=tuple(certificates),
    )


def _halving(
    call: Any,
    upstream: Float[ndarray, "B outputs"],
    used: Float[ndarray, " n"],
    deltas: Float[ndarray, " B"],
    assumptions: tuple[Assumption, ...],
) -> tuple[Certificate, float, float]:
    """Certificate of the order, the ratio of changes, and the relative change of the first halving."""
    gradients = [used, *(call.gradient(upstream, deltas * factor)[0] for factor in (0.5, 0.25))]
    size = _size(gradients[-1], upstream)
    changes = [float(np.linalg.norm(gradients[k] - gradients[k + 1])) / size for k in (0, 1)]
    if max(changes) <= FLOOR:
        statement = "relative change of the gradient when delta is halved, at rounding level"
        return Certificate(statement, max(changes), FLOOR, "<=", assumptions), float("nan"), changes[0]
    ratio = changes[0] / changes[1] if changes[1] > 0 else float("inf")
    kind, promised = ("central", 3.0) if call.central else ("forward", 1.5)
    statement = f"ratio of changes of the gradient under halving of delta, {kind} differences"
    return Certificate(statement, ratio, promised, ">=", assumptions), ratio, changes[0]


def _size(gradient: Float[ndarray, " n"], upstream: Float[ndarray, "B outputs"]) -> float:
    """What differences of gradients are relative to: a gradient of 0 is known to rounding of the upstream one."""
    return max(float(np.linalg.norm(gradient)), 1e-6 * float(np.linalg.norm(upstream)), 1e-300)
