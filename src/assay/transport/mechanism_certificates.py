"""Whether buyers have a reason to lie to a mechanism, or to stay away from it, computed from what it does to them.

A mechanism is known here by its table alone: the type of every buyer, what the buyer gets, and what the buyer pays. No
matter how the table was made, truth is a best report for all of them exactly when nobody prefers the row of another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.certificate import Certificate
from assay.transport.transport_kernels import check_kernel, kernel_scores

__all__ = ["incentive_violation", "mechanism_certificates", "participation_violation"]

# Rounding of a utility in float64, relative to the largest one.
_ROUNDING = 1e-12

_BLOCK = 4096


def incentive_violation(
    kernel: Any, types: Float[Tensor, "S d"], allocation: Float[Tensor, "S k"], payment: Float[Tensor, " S"]
) -> float:
    """Largest gain of a type that reports to be another one.

    Parameters
    ----------
    kernel : str, callable or object
        Utility of a type from an allocation, before it pays.
    types, allocation, payment : tensors of shapes (S, d), (S, k) and (S,)
        Who the buyers are, what each gets and what each pays.

    Returns
    -------
    float
        Zero for an incentive compatible mechanism.

    Notes
    -----
    ``O(S U d)`` for ``U`` different rows of the table.

    Examples
    --------
    The second buyer would rather have the first one's price:

    >>> import torch
    >>> from assay.transport.mechanism_certificates import incentive_violation
    >>> types, good = torch.tensor([[0.6], [0.9]]), torch.tensor([[1.0], [1.0]])
    >>> round(incentive_violation("dot", types, good, torch.tensor([0.5, 0.7])), 6)
    0.2
    """
    return _violations(kernel, types, allocation, payment, None)[0]


def participation_violation(
    kernel: Any,
    types: Float[Tensor, "S d"],
    allocation: Float[Tensor, "S k"],
    payment: Float[Tensor, " S"],
    outside: tuple[Float[Tensor, " k"], float],
) -> float:
    """Largest loss of a type that takes part instead of taking the outside option.

    Parameters
    ----------
    kernel, types, allocation, payment
        As in :func:`incentive_violation`.
    outside : pair of a tensor of shape (k,) and a float
        What one gets and pays when one stays away.

    Returns
    -------
    float
        Zero for an individually rational mechanism.

    Examples
    --------
    >>> import torch
    >>> from assay.transport.mechanism_certificates import participation_violation
    >>> types, good = torch.tensor([[0.6], [0.9]]), torch.tensor([[1.0], [1.0]])
    >>> loss = participation_violation("dot", types, good, torch.tensor([0.7, 0.7]), (torch.zeros(1), 0.0))
    >>> round(loss, 6)
    0.1
    """
    return _violations(kernel, types, allocation, payment, outside)[1]


def mechanism_certificates(
    kernel: Any,
    types: Float[Tensor, "S d"],
    allocation: Float[Tensor, "S k"],
    payment: Float[Tensor, " S"],
    *,
    outside: tuple[Float[Tensor, " k"], float] | None = None,
) -> tuple[Certificate, ...]:
    """Incentive compatibility and, with an outside option, individual rationality of a mechanism.

    Parameters
    ----------
    kernel, types, allocation, payment
        As in :func:`incentive_violation`.
    outside : pair, optional
        As in :func:`participation_violation`.

    Returns
    -------
    tuple of Certificate
        Violations against 1e-12, relative to the largest payment or 1.

    Examples
    --------
    >>> import torch
    >>> from assay.transport.mechanism_certificates import mechanism_certificates
    >>> types, bundle = torch.tensor([[0.6], [0.9]]), torch.tensor([[1.0], [1.0]])
    >>> for promise in mechanism_certificates("dot", types, bundle, torch.tensor([0.5, 0.5])):
    ...     print(promise)
    holds: incentive compatibility: largest gain from the report of another type: 0 <= 1e-12
    """
    gain, loss = _violations(kernel, types, allocation, payment, outside)
    bound = _ROUNDING * max(1.0, float(payment.abs().max()))
    promises = (
        Certificate("incentive compatibility: largest gain from the report of another type", gain, bound),
        Certificate("individual rationality: largest loss against the outside option", loss, bound),
    )
    return promises[:1] if outside is None else promises


def _violations(
    kernel: Any, types: Tensor, allocation: Tensor, payment: Tensor, outside: tuple[Tensor, float] | None
) -> tuple[float, float]:
    """Largest gain by a lie and largest loss against the outside option (nan without one)."""
    kernel = check_kernel(kernel)
    _check_table(types, allocation, payment)
    rows, own = _different_rows(torch.cat([allocation, payment[:, None]], 1).detach().double())
    gains, losses = [0.0], [0.0]
    with torch.no_grad():
        for first in range(0, len(types), _BLOCK):
            part = slice(first, first + _BLOCK)
            x = types[part].double()
            utility = kernel_scores(kernel, x, rows[:, :-1]) - rows[:, -1]
            truth = utility.gather(1, own[part, None])[:, 0]
            gains.append(float((utility.amax(1) - truth).max()))
            if outside is not None:
                away = kernel_scores(kernel, x, outside[0].double()[None])[:, 0] - outside[1]
                losses.append(float((away - truth).max()))
    # numpy lets a nan through, which max() may drop.
    return float(np.max(gains)), float(np.max(losses)) if outside is not None else float("nan")


def _different_rows(table: Float[Tensor, "S columns"]) -> tuple[Float[Tensor, "U columns"], Int[Tensor, " S"]]:
    """The rows of a table without repetitions, and which of them each row is. By hashing, sorting rows is slow."""
    frame = pd.DataFrame(table.cpu().numpy())
    own = frame.groupby(list(frame.columns), sort=False, dropna=False).ngroup().to_numpy()
    first = np.unique(own, return_index=True)[1]
    return table[torch.as_tensor(first, device=table.device)], torch.tensor(own, device=table.device)


def _check_table(types: Tensor, allocation: Tensor, payment: Tensor) -> None:
    if types.ndim != 2 or allocation.ndim != 2 or payment.ndim != 1:
        raise ValueError("types, allocation and payment must have shapes (S, d), (S, k) and (S,)")
    if not len(types) == len(allocation) == len(payment) or len(types) == 0:
        raise ValueError(
            f"types, allocation and payment must have the same number of rows and at least one, got {len(types)}, "
            f"{len(allocation)} and {len(payment)}"
        )
