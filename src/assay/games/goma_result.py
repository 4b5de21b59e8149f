"""What a run of an anchored method returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from assay.result import Result

__all__ = ["GomaResult"]

Vector = Float[np.ndarray, " d"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GomaResult(Result):
    """A point where a monotone operator is small.

    Parameters
    ----------
    z, z0 : numpy.ndarray of shape (d,)
        The last iterate, and the start.
    residual_sq : float
        Squared norm of the operator at ``z``.
    n_iter : int
        Steps.
    n_calls : int
        Evaluations that the method made: one more than steps, and one more per restart; with noise, as many as steps.
    n_check_calls : int
        Evaluations for checking (one more with ``z_star``), and for estimating the Lipschitz constant.
    bound : float or None
        What is promised for ``residual_sq`` (with noise: for its expected value); None when the distance or the
        Lipschitz constant is not known, an assumption was refuted, or the run was restarted.
    slope : float
        Exponent of the decay of the squared norm, fitted to the check points on the last three quarters of a
        logarithmic grid; nan where there are too few.
    lipschitz, step_size : float
        What was used; with the schedule ``"horizon"``, whose steps shrink, the second is the strength of the anchor.
    converged : bool
        Whether ``tol`` was reached; False without one.
    certificates : tuple of Certificate
        The operator against the bound, the potential, and the tolerance if there is one.
    history : dict of str to numpy.ndarray
        ``iteration``, ``calls``, ``residual_sq``, ``potential`` (nan with noise) and ``seconds`` (without the checks)
        at the check points.
    """

    z: Vector
    z0: Vector
    residual_sq: float
    n_iter: int
    n_calls: int
    n_check_calls: int
    bound: float | None
    slope: float
    lipschitz: float
    step_size: float
    converged: bool
