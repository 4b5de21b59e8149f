r"""Saddle points and monotone equations with an anchor: one call per step, a bound on the last iterate.

The gradient field of a min-max problem rotates around its solution, so that plain descent spirals outwards.
Extragradient asks for the gradient twice per step to turn inwards, and its squared residual falls like :math:`1/k`.
Here every step is pulled a little back to where the run began, with a weight that vanishes like :math:`1/k`, and
extrapolates with the gradient of the step before: one call per step, and the squared residual of the *last* iterate
falls like :math:`1/k^2`, at a constant step size, with a constant that is known. With noise the same anchor, without
extrapolation, gives :math:`1/\sqrt k` even where the noise grows with the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import ArrayLike

from assay.games.goma_noise import StochasticSpec
from assay.games.goma_result import GomaResult
from assay.games.goma_solve import solve

__all__ = ["GomaResult", "StochasticSpec", "goma"]


def goma(
    F: Callable[..., Any],
    z0: ArrayLike,
    L: float | None = None,
    preset: str = "halpern",
    n_iter: int = 1000,
    tol: float | None = None,
    check_every: int = 1,
    noise: StochasticSpec | None = None,
    schedule: str = "paper",
    z_star: ArrayLike | None = None,
    rng: Any = None,
    *,
    step_size: float | None = None,
    distance: float | None = None,
    restart_every: int | None = None,
    allow_unproved: bool = False,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> GomaResult:
    r"""Solve :math:`F(z) = 0` for a monotone Lipschitz operator with anchored optimistic steps.

    For ``min_x max_y f(x, y)``, convex in ``x`` and concave in ``y``, take ``z = (x, y)`` and
    ``F(z) = (grad_x f, -grad_y f)``. With a start :math:`z_0`, :math:`g_{-1} = F(z_0)`, and weights
    :math:`\beta_k \to 0`,

    .. math::
        y_k = \beta_k z_0 + (1 - \beta_k) z_k - \gamma_k g_{k-1}, \quad g_k = F(y_k), \quad
        z_{k+1} = \beta_k z_0 + (1 - \beta_k) z_k - \eta_k g_k .

    With the step size :math:`s`, :math:`D = |z_0 - z^*|` and the operator's constant :math:`L` a ``preset`` is

    - ``"halpern"``: :math:`\beta_k = 1/(k+2)`, :math:`\eta_k = s \le 1/(2L)`, :math:`\gamma_k = (1-\beta_k) s`, with
      :math:`|F(z_k)|^2 \le 17.95\, L^2D^2/(k+1)^2`;
    - ``"paper"``: :math:`\beta_k = 2/(k+6)`, :math:`\eta_k = s < 1/(2\sqrt 3 L)`, :math:`\gamma_k = (1-\beta_k) s`,
      with :math:`|F(z_k)|^2 \le 259.4\, L^2D^2/(k+6)^2`;
    - ``"explore"``: :math:`\beta_k = 1/(k+2)`, :math:`\gamma_k = s \le 1/(4L)`, :math:`\eta_k = s/(1-\beta_k)`, with
      :math:`|F(z_k)|^2 \le 67.95\, L^2D^2/(k+1)^2`.

    The constants are those at the default step; smaller steps have larger ones, growing like :math:`1/s^2`.

    Parameters
    ----------
    F : callable
        Takes a float64 array of shape (d,) and returns one. The array is reused: a function that keeps it has to copy
        it, and may not change it. Vectors of a lower precision are taken, and allowed their rounding in the checks.
    z0 : array_like of shape (d,)
        Start and anchor.
    L : float, optional
        Lipschitz constant, between 1e-75 and 1e75. When not given it is estimated from 20 finite differences around
        ``z0``, and multiplied by 1.2.
    preset : {"halpern", "paper", "explore", "stochastic"}, default="halpern"
        The schedule without noise; with noise leave the default or say "stochastic".
    n_iter : int, default=1000
        Largest number of steps.
    tol : float, optional
        Stop at a check point where the norm of ``F`` is at most so much.
    check_every : int, default=1
        Steps between check points, at which ``F`` is evaluated at the iterate.
    noise : StochasticSpec, optional
        Use a noisy oracle. ``F`` is then evaluated at check points only (and by the simulated noise).
    schedule : {"paper", "horizon"}, default="paper"
        With noise: steps that shrink like :math:`k^{-3/4}`, for any number of them; or steps for exactly ``n_iter``,
        from a bound on the noise by the distance to the zero, which is proved and much tighter.
    z_star : array_like of shape (d,), optional
        A zero, for the bound; it is checked by a call, to a millionth of the operator at the start.
    rng : None, int or numpy.random.Generator, optional
        For the estimate of ``L`` and the noise.
    step_size : float, optional
        Step size; by default the largest that is proved, from the table; with noise the factor of
        :math:`(k+2)^{-3/4}`, by default :math:`1/(L\sqrt\kappa)`.
    distance : float, optional
        Instead of ``z_star``: an upper bound on the distance of a zero from ``z0``.
    restart_every : int, optional
        Make the current iterate the anchor after so many steps, which costs a call. For well-conditioned problems: with
        ``|F(z)| >= m |z - z_star|``, any number of at least ``9 L / m`` halves the norm every time.
    allow_unproved : bool, default=False
        Accept a larger step size, without a bound.
    callback : callable, optional
        Called with every row of the history as a dict; a true answer ends the run.

    Returns
    -------
    GomaResult

    Raises
    ------
    TypeError
        If an argument or what ``F`` returns is of another type.
    ValueError
        If an argument is out of range, a step size is larger than what is proved, ``z_star`` is no zero, or ``F``
        returns another shape or changes its argument.
    FloatingPointError
        If ``F`` returns a nan or an infinity, or a vector so long that its squared length overflows; the message has
        the number of the step.

    Warns
    -----
    RuntimeWarning
        Once, if two iterates show that ``F`` is not monotone.
    ConvergenceWarning
        If ``tol`` was not reached.

    Notes
    -----
    The potential certificate says that the bound's own proof goes through on this run: it needs neither a zero nor a
    distance. Cost: a call and one pass over five vectors per step. Memory: five vectors.

    On problems that are well conditioned (a nonsingular bilinear game, a strongly monotone operator) extragradient
    converges linearly and an anchored method does not, unless ``restart_every`` is given.

    The update of the preset ``"explore"`` is the one for which the bound is proved; how the paper means its case of a
    fixed exploration step is not certain. The paper's theorem about noise supposes a bound on :math:`E|g|^2`, the
    schedule ``"horizon"`` one on the variance, :math:`\sigma^2 + (\kappa - 1) L^2 |z - z^*|^2`, which follows from it.

    References
    ----------
    .. [1] M. Sohrabi, Y. You, S. Lacoste-Julien, E. Gorbunov, G. Gidel. Accelerated and Stable Convergence with
       Anchored (Generalized) Optimistic Method. ICML 2026, arXiv:2606.21528.

    Examples
    --------
    ``min_x max_y x y``, whose gradient field is a rotation:

    >>> import numpy as np
    >>> from assay.games.goma import goma
    >>> rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> result = goma(lambda z: rotation @ z, z0=[1.0, 1.0], L=1.0, n_iter=10, z_star=[0.0, 0.0])
    >>> result.z.round(8), round(result.residual_sq, 8), result.n_calls
    (array([-0.15056818,  0.20454545]), 0.06450962, 11)
    >>> print(result.certificates[0])
    holds: squared norm of F at the returned point: 0.0645096 <= 0.2966 [if F is monotone (0 violations ...
    """
    return solve(
        "goma",
        F,
        z0,
        L,
        preset,
        n_iter,
        tol,
        check_every,
        noise,
        schedule,
        z_star,
        rng,
        step_size=step_size,
        distance=distance,
        restart_every=restart_every,
        allow_unproved=allow_unproved,
        callback=callback,
    )
