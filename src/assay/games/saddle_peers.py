r"""What people use for monotone operators today: extragradient, optimistic gradients, and anchored extragradient.

All of them look ahead before they move, since the step that goes straight down the operator spirals out of a saddle.
Extragradient pays for the look with a second call, optimistic gradients reuse the call of the step before. An anchor
makes the squared residual of the last iterate fall like :math:`1/k^2` instead of :math:`1/k`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.games.goma_certificate import Monitor
from assay.games.goma_result import GomaResult
from assay.games.goma_solve import solve
from assay.games.monotone_operator import CheckedOperator, check_lipschitz, fitted_slope
from assay.result import Result
from assay.validation import as_float_array, check_integer, check_real, warn_not_converged

__all__ = [
    "OperatorResult",
    "anchored_extragradient_operator",
    "anchored_popov",
    "extragradient_operator",
    "gradient_operator",
    "optimistic_operator",
]

Vector = Float[np.ndarray, " d"]
# A step from one iterate to the next; it keeps what it needs from call to call.
Step = Callable[[Vector, int], Vector]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class OperatorResult(Result):
    """Where a method for monotone operators has come to.

    Parameters
    ----------
    z, z0 : numpy.ndarray of shape (d,)
        The last iterate, and the start.
    residual_sq : float
        Squared norm of the operator at ``z``.
    n_iter, n_calls, n_check_calls : int
        Steps, evaluations that the method made, and those for checking.
    slope : float
        Exponent of the decay of the squared norm, as in :class:`~assay.games.goma.GomaResult`.
    step_size : float
        What was used.
    converged : bool
        Whether ``tol`` was reached.
    certificates : tuple of Certificate
        The tolerance, if there is one.
    history : dict of str to numpy.ndarray
        ``iteration``, ``calls``, ``residual_sq`` and ``seconds`` at the check points.
    """

    z: Vector
    z0: Vector
    residual_sq: float
    n_iter: int
    n_calls: int
    n_check_calls: int
    slope: float
    step_size: float
    converged: bool


def extragradient_operator(
    F: Callable[[Any], Any],
    z0: ArrayLike,
    L: float | None = None,
    n_iter: int = 1000,
    tol: float | None = None,
    check_every: int = 1,
    *,
    step_size: float | None = None,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> OperatorResult:
    r"""Extragradient: :math:`z_{k+1} = z_k - \eta F(z_k - \eta F(z_k))`, two calls per step.

    Parameters
    ----------
    F : callable
        Monotone operator, from arrays of shape (d,) to such arrays.
    z0 : array_like of shape (d,)
        Start.
    L : float, optional
        Lipschitz constant, for the default step.
    n_iter : int, default=1000
        Largest number of steps.
    tol : float, optional
        Stop at a check point where the norm of ``F`` is at most so much.
    check_every : int, default=1
        Steps between check points.
    step_size : float, optional
        By default ``1 / (2 L)``.
    callback : callable, optional
        Called with every row of the history as a dict; a true answer ends the run.

    Returns
    -------
    OperatorResult

    Raises
    ------
    TypeError, ValueError
        If an argument is of another type or out of range, or neither ``L`` nor ``step_size`` is given.
    FloatingPointError
        If ``F`` returns a nan or an infinity.

    Notes
    -----
    Converges linearly where the operator is strongly monotone or bilinear and nonsingular, and like :math:`1/k` in the
    squared norm for every monotone operator.

    References
    ----------
    .. [1] G. M. Korpelevich. The extragradient method for finding saddle points and other problems. 1976.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.saddle_peers import extragradient_operator
    >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> result = extragradient_operator(lambda z: rotation @ z, [1.0, 1.0], L=1.0, n_iter=100)
    >>> result.n_calls, result.residual_sq < 1e-8
    (200, True)
    """

    def build(operator: CheckedOperator, start: Vector, eta: float) -> Step:
        return lambda z, k: z - eta * operator(z - eta * operator(z, k), k)

    return _run("extragradient_operator", build, F, z0, n_iter, tol, check_every, _chosen(step_size, L, 0.5), callback)


def optimistic_operator(
    F: Callable[[Any], Any],
    z0: ArrayLike,
    L: float | None = None,
    n_iter: int = 1000,
    tol: float | None = None,
    check_every: int = 1,
    *,
    step_size: float | None = None,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> OperatorResult:
    r"""Optimistic gradient (OGDA): :math:`z_{k+1} = z_k - 2\eta F(z_k) + \eta F(z_{k-1})`, one call per step.

    Parameters
    ----------
    F, z0, L, n_iter, tol, check_every, callback
        As in :func:`extragradient_operator`.
    step_size : float, optional
        By default ``1 / (2 L)``.

    Returns
    -------
    OperatorResult

    Raises
    ------
    TypeError, ValueError, FloatingPointError
        As in :func:`extragradient_operator`.

    References
    ----------
    .. [1] L. D. Popov. A modification of the Arrow-Hurwicz method for search of saddle points. 1980.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.saddle_peers import optimistic_operator
    >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> result = optimistic_operator(lambda z: rotation @ z, [1.0, 1.0], L=1.0, n_iter=100)
    >>> result.n_calls, result.residual_sq < 1e-8
    (100, True)
    """

    def build(operator: CheckedOperator, start: Vector, eta: float) -> Step:
        before: list[Vector] = []

        def step(z: Vector, k: int) -> Vector:
            gradient = operator(z, k).copy()
            moved = z - 2.0 * eta * gradient + eta * (before.pop() if before else gradient)
            before.append(gradient)
            return moved

        return step

    return _run("optimistic_operator", build, F, z0, n_iter, tol, check_every, _chosen(step_size, L, 0.5), callback)


def anchored_extragradient_operator(
    F: Callable[[Any], Any],
    z0: ArrayLike,
    L: float | None = None,
    n_iter: int = 1000,
    tol: float | None = None,
    check_every: int = 1,
    *,
    step_size: float | None = None,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> OperatorResult:
    r"""Extra anchored gradient with a constant step (EAG-C): both half steps pulled to the start, two calls per step.

    With :math:`w_k = \beta_k z_0 + (1-\beta_k) z_k` and :math:`\beta_k = 1/(k+2)` the look is
    :math:`w_k - \eta F(z_k)` and the step :math:`w_k - \eta F(w_k - \eta F(z_k))`.

    Parameters
    ----------
    F, z0, L, n_iter, tol, check_every, callback
        As in :func:`extragradient_operator`.
    step_size : float, optional
        By default ``1 / (8 L)``, the largest that its rate is proved for.

    Returns
    -------
    OperatorResult

    Raises
    ------
    TypeError, ValueError, FloatingPointError
        As in :func:`extragradient_operator`.

    References
    ----------
    .. [1] T. Yoon, E. K. Ryu. Accelerated Algorithms for Smooth Convex-Concave Minimax Problems with O(1/k^2) Rate on
       Squared Gradient Norm. ICML 2021, arXiv:2102.07922.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.saddle_peers import anchored_extragradient_operator
    >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> result = anchored_extragradient_operator(lambda z: rotation @ z, [1.0, 1.0], L=1.0, n_iter=100)
    >>> result.n_calls, result.residual_sq < 0.02
    (200, True)
    """

    def build(operator: CheckedOperator, start: Vector, eta: float) -> Step:
        def step(z: Vector, k: int) -> Vector:
            pulled = z + (start - z) / (k + 2)
            return pulled - eta * operator(pulled - eta * operator(z, k), k)

        return step

    name = "anchored_extragradient_operator"
    return _run(name, build, F, z0, n_iter, tol, check_every, _chosen(step_size, L, 0.125), callback)


def gradient_operator(
    F: Callable[[Any], Any],
    z0: ArrayLike,
    L: float | None = None,
    n_iter: int = 1000,
    tol: float | None = None,
    check_every: int = 1,
    *,
    step_size: float | None = None,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> OperatorResult:
    r"""Simultaneous descent and ascent: :math:`z_{k+1} = z_k - \eta_k F(z_k)`, which a rotation drives outwards.

    Parameters
    ----------
    F, z0, L, n_iter, tol, check_every, callback
        As in :func:`extragradient_operator`.
    step_size : float, optional
        Numerator of :math:`\eta_k = s / \sqrt{k + 1}`, by default ``1 / (2 L)``.

    Returns
    -------
    OperatorResult

    Raises
    ------
    TypeError, ValueError, FloatingPointError
        As in :func:`extragradient_operator`.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.saddle_peers import gradient_operator
    >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> result = gradient_operator(lambda z: rotation @ z, [1.0, 1.0], L=1.0, n_iter=100)
    >>> result.n_calls, result.residual_sq > 2.0
    (100, True)
    """

    def build(operator: CheckedOperator, start: Vector, eta: float) -> Step:
        return lambda z, k: z - eta / math.sqrt(k + 1) * operator(z, k)

    return _run("gradient_operator", build, F, z0, n_iter, tol, check_every, _chosen(step_size, L, 0.5), callback)


def anchored_popov(F: Callable[..., Any], z0: ArrayLike, step_size: float, **options: Any) -> GomaResult:
    r"""Popov's method with an anchor, at a step size of the user's own: :func:`~assay.games.goma` without its limit.

    Parameters
    ----------
    F : callable
        Monotone operator, from arrays of shape (d,) to such arrays.
    z0 : array_like of shape (d,)
        Start.
    step_size : float
        Step size, between 1e-74 and 1e74; beyond ``1 / (2 L)`` nothing is promised.
    **options
        Further arguments of :func:`~assay.games.goma`, other than ``preset``, ``noise`` and ``schedule``. Without ``L``
        it is taken to be ``1 / (2 step_size)``, the largest for which the step is proved.

    Returns
    -------
    GomaResult

    Raises
    ------
    TypeError, ValueError, FloatingPointError
        As in :func:`~assay.games.goma`.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.saddle_peers import anchored_popov
    >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> anchored_popov(lambda z: rotation @ z, [1.0, 1.0], step_size=0.5, n_iter=10).z.round(8)
    array([-0.15056818,  0.20454545])
    """
    fixed = sorted({"preset", "noise", "schedule"} & options.keys())
    if fixed:
        raise TypeError(f"options must leave out what anchored_popov fixes, got {', '.join(fixed)}")
    unknown = sorted(options.keys() - set(inspect.signature(solve).parameters))
    if unknown:
        raise TypeError(f"options must be arguments of goma, got {', '.join(unknown)}")
    step_size = check_real(step_size, "step_size", minimum=1e-74, maximum=1e74)
    settings = {"allow_unproved": True, "L": None, **options}
    if settings["L"] is None:
        settings["L"] = 0.5 / step_size
    return solve("anchored_popov", F, z0, step_size=step_size, **settings)


def _chosen(step_size: float | None, lipschitz: float | None, largest: float) -> float:
    """The step size that was given, or that which belongs to the Lipschitz constant."""
    if lipschitz is not None:
        lipschitz = check_lipschitz(lipschitz)
    if step_size is not None:
        return check_real(step_size, "step_size", above=0.0)
    if lipschitz is None:
        raise ValueError("step_size must be given when L is not")
    return largest / lipschitz


def _run(
    name: str,
    build: Callable[[CheckedOperator, Vector, float], Step],
    F: Callable[[Any], Any],
    z0: ArrayLike,
    n_iter: int,
    tol: float | None,
    check_every: int,
    step_size: float,
    callback: Callable[[Mapping[str, Any]], object] | None,
) -> OperatorResult:
    """Make the steps of a method, with the operator at the iterates watched as in :func:`~assay.games.goma`."""
    start = as_float_array(z0, "z0", ndim=1).copy()
    n_iter = check_integer(n_iter, "n_iter", minimum=1)
    check_every = check_integer(check_every, "check_every", minimum=1)
    if tol is not None:
        tol = check_real(tol, "tol", minimum=0.0)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be None or a function of one row of the history, got {callback!r}")
    operator, watched = CheckedOperator(F, start.size), CheckedOperator(F, start.size)
    monitor = Monitor(watched, None, None, callback)
    step = build(operator, start, step_size)

    def small() -> bool:
        return tol is not None and monitor.norm <= tol

    z = start.copy()
    stop = monitor.look(0, 0, z, start, None, 0)
    for iteration in range(n_iter):
        if stop or small():
            break
        z = step(z, iteration)
        if iteration + 1 == n_iter or (iteration + 1) % check_every == 0:
            stop = monitor.look(iteration + 1, iteration + 1, z, start, None, operator.n_calls)
    reached, converged = monitor.rows[-1]["iteration"], small()
    residual_sq, norm = monitor.evaluate_anew(z)
    certificates: tuple[Certificate, ...] = ()
    if tol is not None:
        certificates = (Certificate("norm of F at the returned point", norm, tol),)
        if not converged:
            warn_not_converged(name, reached, norm, tol, stacklevel=4)
    history = monitor.history()
    del history["potential"]
    return OperatorResult(
        z=z,
        z0=start,
        residual_sq=residual_sq,
        n_iter=reached,
        n_calls=operator.n_calls,
        n_check_calls=monitor.n_calls,
        slope=fitted_slope(history["iteration"], history["residual_sq"]),
        step_size=step_size,
        converged=converged,
        certificates=certificates,
        history=history,
    )
