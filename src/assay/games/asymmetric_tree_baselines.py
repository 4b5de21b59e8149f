"""What perturbing one player of a game tree is compared with: both players perturbed, none, and optimism.

All take the arguments of :func:`~assay.games.asymmetric_trees.asym_dgda` and return the last iterate of a single run of
dilated gradient play.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from assay.games.asymmetric_result import AsymResult, warn_last_iterate
from assay.games.asymmetric_run import PlayOptions, check_strength, play_to_tolerance
from assay.games.asymmetric_trees import (
    checked_options,
    judge_plans,
    largest_payoff,
    plan_certificate,
    plan_nash_conv,
)
from assay.games.sequence_form import SequenceFormGame
from assay.games.treeplex_dynamics import TreePlay

__all__ = ["dgda", "dogda", "sym_dgda"]

_Callback = Callable[[Mapping[str, Any]], object] | None


def sym_dgda(
    game: SequenceFormGame,
    mu: float = 0.01,
    eta: float | None = None,
    n_iter: int = 20_000,
    check_every: int = 20,
    eps: float = 1e-9,
    *,
    rtol: bool = False,
    callback: _Callback = None,
) -> AsymResult:
    """Dilated gradient play with both players perturbed: converges to the equilibrium of another game.

    Parameters
    ----------
    game, eta, n_iter, check_every, eps, rtol, callback
        As in :func:`~assay.games.asymmetric_trees.asym_dgda`.
    mu : float, default=0.01
        Strength of the perturbation of both players, in payoff units.

    Returns
    -------
    AsymResult
        The last iterate of a single run.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If ``eps`` was not reached, as is usual.

    Examples
    --------
    >>> import warnings
    >>> from assay.games.asymmetric_tree_baselines import sym_dgda
    >>> from assay.games.sequence_form import SequenceFormGame
    >>> pennies = SequenceFormGame.from_arrays(
    ...     parents=([0], [0]), actions=([2], [2]), payoff_triplets=([1, 1, 2, 2], [1, 2, 1, 2], [2.0, -1, -1, 1]))
    >>> warnings.simplefilter("ignore")
    >>> sym_dgda(pennies, mu=0.5).nashconv > 0.01
    True
    """
    mu = check_strength(largest_payoff(game), mu)
    options, unit = checked_options(game, eta, n_iter, eps, check_every, rtol, callback)
    return _single("sym_dgda", game, "perturbed", mu / unit, 1.0, options, unit, callback)


def dgda(
    game: SequenceFormGame,
    eta: float | None = None,
    n_iter: int = 20_000,
    check_every: int = 20,
    eps: float = 1e-9,
    *,
    rtol: bool = False,
    callback: _Callback = None,
) -> AsymResult:
    """Dilated gradient descent ascent without perturbation, alternating; it need not converge.

    Parameters
    ----------
    game, eta, n_iter, check_every, eps, rtol, callback
        As in :func:`~assay.games.asymmetric_trees.asym_dgda`.

    Returns
    -------
    AsymResult
        The last iterate of a single run.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If ``eps`` was not reached.

    Examples
    --------
    >>> from assay.games.asymmetric_tree_baselines import dgda
    >>> from assay.games.sequence_form import SequenceFormGame
    >>> dominated = SequenceFormGame.from_arrays(([0], [0]), ([2], [1]), ([1, 2], [1, 1], [1.0, 3.0]))
    >>> dgda(dominated).x
    array([1., 1., 0.])
    """
    options, unit = checked_options(game, eta, n_iter, eps, check_every, rtol, callback)
    return _single("dgda", game, "perturbed", 0.0, 1.0, options, unit, callback)


def dogda(
    game: SequenceFormGame,
    eta: float | None = None,
    n_iter: int = 20_000,
    check_every: int = 20,
    eps: float = 1e-9,
    *,
    rtol: bool = False,
    callback: _Callback = None,
) -> AsymResult:
    """Dilated optimistic gradient descent ascent, simultaneous; the default step is ``1 / (2 L)``.

    Parameters
    ----------
    game, eta, n_iter, check_every, eps, rtol, callback
        As in :func:`~assay.games.asymmetric_trees.asym_dgda`.

    Returns
    -------
    AsymResult
        The last iterate of a single run.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Warns
    -----
    ConvergenceWarning
        If ``eps`` was not reached.

    References
    ----------
    .. [1] C.-W. Lee, C. Kroer, H. Luo. Last-iterate convergence in extensive-form games. NeurIPS 2021.

    Examples
    --------
    >>> from assay.games.asymmetric_tree_baselines import dogda
    >>> from assay.games.sequence_form import SequenceFormGame
    >>> pennies = SequenceFormGame.from_arrays(
    ...     parents=([0], [0]), actions=([2], [2]), payoff_triplets=([1, 1, 2, 2], [1, 2, 1, 2], [2.0, -1, -1, 1]))
    >>> dogda(pennies).x.round(6)
    array([1. , 0.4, 0.6])
    """
    options, unit = checked_options(game, eta, n_iter, eps, check_every, rtol, callback, "optimistic")
    return _single("dogda", game, "optimistic", 0.0, 0.5, options, unit, callback)


def _single(
    solver: str,
    game: SequenceFormGame,
    step: str,
    mu: float,
    relative_step: float,
    options: PlayOptions,
    unit: float,
    callback: _Callback,
) -> AsymResult:
    by_row = game.payoff / unit
    norm = options.spectral_norm / unit
    if options.eta is not None:
        eta = options.eta * unit
    else:
        eta = min(relative_step / norm if norm > 0 else 1.0, 0.5 / mu if mu > 0 else math.inf)
    play = TreePlay(game.trees, by_row, by_row.T.tocsr(), 1.0, step, eta=eta, mu=(mu, mu))
    done, history = play_to_tolerance(
        play.advance,
        lambda: plan_nash_conv(game, play.x, play.y) / unit,
        options,
        unit,
        callback,
        lambda number: mu,
        eta,
    )
    judged = judge_plans(game, play.x, play.y)
    result = AsymResult(
        x=play.x,
        y=play.y,
        **judged,
        mu=mu * unit,
        eta=eta / unit,
        n_iter=done,
        tol=options.tol,
        converged=bool(judged["nashconv"] <= options.tol),
        certificates=(plan_certificate(judged["nashconv"], options.tol),),
        history=history,
    )
    if not result.converged:
        warn_last_iterate(solver, done, result.nashconv, result.tol, stacklevel=4)
    return result
