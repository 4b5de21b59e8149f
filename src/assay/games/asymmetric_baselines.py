r"""What asymmetric perturbation is compared with: play with both players perturbed, with none, and with optimism.

All take the arguments of :func:`~assay.games.asymmetric_perturbation.asym_gda` and return the last iterate of a single
run. Symmetric perturbation converges to the equilibrium of another game, unless it is made to vanish; plain alternating
gradient descent ascent does not converge; optimistic play and extragradient do, linearly but with constants that can be
small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import ArrayLike

from assay.certificate import Certificate
from assay.games.asymmetric_perturbation import curvature, starting_points
from assay.games.asymmetric_result import AsymResult, judge, warn_last_iterate
from assay.games.asymmetric_run import PlayOptions, check_strength, longest_step, play_to_tolerance
from assay.games.bilinear_saddle import BilinearSaddle, power_of_two
from assay.games.matrix_game import PayoffLike, check_flag
from assay.games.saddle_dynamics import SaddlePlay

__all__ = ["extragradient", "gda", "ogda", "sym_gda"]

_Callback = Callable[[Mapping[str, Any]], object] | None


def sym_gda(
    A: PayoffLike,
    mu: float = 1.0,
    X: Any = None,
    Y: Any = None,
    p: ArrayLike | None = None,
    q: ArrayLike | None = None,
    eta: float | None = None,
    n_iter: int = 100_000,
    eps: float = 1e-9,
    check_every: int = 20,
    x0: ArrayLike | None = None,
    y0: ArrayLike | None = None,
    *,
    decreasing: bool = False,
    rtol: bool = False,
    callback: _Callback = None,
) -> AsymResult:
    r"""Alternating gradient play with both players perturbed (SymP-GDA).

    Parameters
    ----------
    A, X, Y, p, q, n_iter, eps, check_every, x0, y0, rtol, callback
        As in :func:`~assay.games.asymmetric_perturbation.asym_gda`.
    mu : float, default=1.0
        Strength of the perturbation of both players, in payoff units.
    eta : float, optional
        Step size; ``min(1 / L, 1 / (2 mu))`` by default, with ``L`` as in asym_gda.
    decreasing : bool, default=False
        Whether step ``t`` has the strength ``mu / sqrt(t)``.

    Returns
    -------
    AsymResult
        The last iterate; without companions, and without perturbed gaps.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If ``eps`` was not reached, as is usual for a strength that does not vanish.
    UserWarning
        If ``eta`` is above ``2 / (L + mu)``, from where on steps are unstable; ``2 / L`` if it decreases.

    Examples
    --------
    >>> import warnings
    >>> from assay.games.asymmetric_baselines import sym_gda
    >>> warnings.simplefilter("ignore")
    >>> sym_gda([[0, -1, 3], [1, 0, -1], [-3, 1, 0]], mu=1.0, n_iter=5000).nashconv.__round__(3)
    0.286
    """
    decreasing = check_flag(decreasing, "decreasing")
    saddle = BilinearSaddle.of(A, p, q, X, Y)
    mu = check_strength(saddle.centred().largest, mu)
    return _play(
        "sym_gda", "perturbed", saddle, (mu, decreasing), 1.0, eta, n_iter, eps, check_every, x0, y0, rtol, callback
    )


def gda(
    A: PayoffLike,
    X: Any = None,
    Y: Any = None,
    p: ArrayLike | None = None,
    q: ArrayLike | None = None,
    eta: float | None = None,
    n_iter: int = 100_000,
    eps: float = 1e-9,
    check_every: int = 20,
    x0: ArrayLike | None = None,
    y0: ArrayLike | None = None,
    *,
    rtol: bool = False,
    callback: _Callback = None,
) -> AsymResult:
    r"""Alternating gradient descent ascent, which circles around an equilibrium that is not pure.

    Parameters
    ----------
    A, X, Y, p, q, n_iter, eps, check_every, x0, y0, rtol, callback
        As in :func:`~assay.games.asymmetric_perturbation.asym_gda`.
    eta : float, optional
        Step size; ``1 / L`` by default, with ``L`` as in asym_gda.

    Returns
    -------
    AsymResult
        The last iterate.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If ``eps`` was not reached.
    UserWarning
        If ``eta`` is above ``2 / L``, from where on steps are unstable.

    Examples
    --------
    >>> from assay.games.asymmetric_baselines import gda
    >>> gda([[1, 2], [3, 4]]).x
    array([1., 0.])
    """
    saddle = BilinearSaddle.of(A, p, q, X, Y)
    return _play("gda", "perturbed", saddle, None, 1.0, eta, n_iter, eps, check_every, x0, y0, rtol, callback)


def ogda(
    A: PayoffLike,
    X: Any = None,
    Y: Any = None,
    p: ArrayLike | None = None,
    q: ArrayLike | None = None,
    eta: float | None = None,
    n_iter: int = 100_000,
    eps: float = 1e-9,
    check_every: int = 20,
    x0: ArrayLike | None = None,
    y0: ArrayLike | None = None,
    *,
    rtol: bool = False,
    callback: _Callback = None,
) -> AsymResult:
    r"""Optimistic gradient descent ascent: simultaneous steps along twice the last gradient minus the one before.

    Parameters
    ----------
    A, X, Y, p, q, n_iter, eps, check_every, x0, y0, rtol, callback
        As in :func:`~assay.games.asymmetric_perturbation.asym_gda`.
    eta : float, optional
        Step size; ``1 / (2 L)`` by default, with ``L`` as in asym_gda.

    Returns
    -------
    AsymResult
        The last iterate.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If ``eps`` was not reached.
    UserWarning
        If ``eta`` is above ``1 / (sqrt(3) L)``, from where on steps are unstable.

    References
    ----------
    .. [1] L. D. Popov. A modification of the Arrow-Hurwicz method for search of saddle points. Mathematical Notes 28,
       1980.

    Examples
    --------
    >>> from assay.games.asymmetric_baselines import ogda
    >>> ogda([[0, -1, 3], [1, 0, -1], [-3, 1, 0]]).x.round(6)
    array([0.2, 0.6, 0.2])
    """
    saddle = BilinearSaddle.of(A, p, q, X, Y)
    return _play("ogda", "optimistic", saddle, None, 0.5, eta, n_iter, eps, check_every, x0, y0, rtol, callback)


def extragradient(
    A: PayoffLike,
    X: Any = None,
    Y: Any = None,
    p: ArrayLike | None = None,
    q: ArrayLike | None = None,
    eta: float | None = None,
    n_iter: int = 100_000,
    eps: float = 1e-9,
    check_every: int = 20,
    x0: ArrayLike | None = None,
    y0: ArrayLike | None = None,
    *,
    rtol: bool = False,
    callback: _Callback = None,
) -> AsymResult:
    r"""Extragradient: a trial step, then the step along the gradient there; four products with ``A`` per step.

    Parameters
    ----------
    A, X, Y, p, q, n_iter, eps, check_every, x0, y0, rtol, callback
        As in :func:`~assay.games.asymmetric_perturbation.asym_gda`.
    eta : float, optional
        Step size; ``1 / (sqrt(2) L)`` by default, with ``L`` as in asym_gda.

    Returns
    -------
    AsymResult
        The last iterate.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If ``eps`` was not reached.
    UserWarning
        If ``eta`` is above ``1 / L``, from where on steps are unstable.

    References
    ----------
    .. [1] G. M. Korpelevich. The extragradient method for finding saddle points and other problems. Matecon 12, 1976.

    Examples
    --------
    >>> from assay.games.asymmetric_baselines import extragradient
    >>> extragradient([[0, -1, 3], [1, 0, -1], [-3, 1, 0]]).x.round(6)
    array([0.2, 0.6, 0.2])
    """
    saddle = BilinearSaddle.of(A, p, q, X, Y)
    return _play(
        "extragradient", "extragradient", saddle, None, 0.5**0.5, eta, n_iter, eps, check_every, x0, y0, rtol, callback
    )


def _play(
    solver: str,
    step: str,
    saddle: BilinearSaddle,
    perturbation: tuple[float, bool] | None,
    relative_step: float,
    eta: Any,
    n_iter: Any,
    eps: Any,
    check_every: Any,
    x0: Any,
    y0: Any,
    rtol: Any,
    callback: Any,
) -> AsymResult:
    centred = saddle.centred()
    strength, decreasing = (0.0, False) if perturbation is None else perturbation
    norm, unit = curvature(centred), power_of_two(centred.largest)
    longest = longest_step(step, norm, 0.0 if decreasing else strength)
    options = PlayOptions.checked(
        saddle.largest, norm, eta, n_iter, eps, check_every, rtol, callback, longest, stacklevel=4
    )
    game, spectral_norm, mu = centred.scaled(unit), norm / unit, strength / unit
    if options.eta is not None:
        step_size = options.eta * unit
    else:
        step_size = min(relative_step / spectral_norm if spectral_norm > 0 else 1.0, 0.5 / mu if mu > 0 else math.inf)
    start = starting_points(saddle, x0, y0)
    play = SaddlePlay(game, step, *start, eta=step_size, mu=(mu, mu), decreasing=decreasing)
    done, history = play_to_tolerance(
        play.advance,
        lambda: game.nash_conv(play.x, play.y),
        options,
        unit,
        callback,
        lambda number: play.strengths(number)[0],
        step_size,
    )
    judged = judge(saddle, play.x, play.y)
    result = AsymResult(
        x=play.x,
        y=play.y,
        **judged,
        mu=float(history["mu"][-1]),
        eta=step_size / unit,
        n_iter=done,
        tol=options.tol,
        converged=bool(judged["nashconv"] <= options.tol),
        certificates=(Certificate("NashConv of the returned strategies", judged["nashconv"], options.tol),),
        history=history,
    )
    if not result.converged:
        warn_last_iterate(solver, done, result.nashconv, result.tol, stacklevel=4)
    return result
