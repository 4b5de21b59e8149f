r"""Bilevel problems that are as hard as a first-order method can meet.

.. math::

    \min_x H(x) = f(x, y^*(x)), \qquad y^*(x) = \arg\min_y g(x, y),

with :math:`f` smooth and non-convex, :math:`g` a quadratic that is strongly convex in :math:`y` with condition number
:math:`\kappa`. The upper variables sit on a chain, and between two of them lies a block of about
:math:`\sqrt{\kappa}/2` lower variables that a gradient crosses one by one. As long as the last upper variable is zero
the hypergradient is at least :math:`\epsilon`, so that every method that starts at zero and moves only what it has
seen needs :math:`T n = \Theta(\kappa^{3/2} \epsilon^{-2})` oracle calls. The hypergradient is known in closed form,
so that one sees how far from that count a method is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.bilevel.hard_chain import (
    ChainConstants,
    all_finite,
    block_response,
    chain_constants,
    hyper_kernel,
    oracle_kernel,
    project_to_box,
    step_on_box,
)
from assay.bilevel.oracle_counter import OracleCounter, OracleOutput
from assay.validation import as_float_array, as_generator, check_integer, check_real

__all__ = ["HardBilevel", "HardBilevelStochastic", "hard_instance", "hard_instance_stochastic"]

_RX = 2.0
_RY = 20.0
# below it the inverse is no number to multiply a gradient with
_LEAST_PROBABILITY = 1e-100


class HardBilevel:
    r"""A worst-case bilevel problem with a counting oracle; :func:`hard_instance` makes it.

    Parameters
    ----------
    constants : ChainConstants
        The numbers that it is made of.

    Attributes
    ----------
    constants : ChainConstants
    dim_x, dim_y : int
        Numbers of upper and lower variables, ``T`` and ``(T + 1) n``. The lower ones are stored block by block.
    counter : OracleCounter
        What has been asked so far.
    smoothness_g : float
        Smoothness of the lower objective in both variables together; at most 1.62 times ``Lg``.

    References
    ----------
    .. [1] Kaiyi Ji. Lower Complexity Bounds for Nonconvex-Strongly-Convex Bilevel Optimization with First-Order
       Oracles. ICML 2026. arXiv:2511.19656.
    """

    def __init__(self, constants: ChainConstants) -> None:
        if not isinstance(constants, ChainConstants):
            raise TypeError(f"constants must be ChainConstants, as hard_instance makes, got {type(constants).__name__}")
        self.constants = constants
        self.dim_x = constants.T
        self.dim_y = (constants.T + 1) * constants.n
        self.counter = OracleCounter(self.dim_x, self.dim_y)
        self._link_scale = constants.lam**2 * constants.Lf / constants.Lc
        self._left = constants.Cl / constants.lam
        self._right = constants.Cr / constants.lam

    def __repr__(self) -> str:
        c = self.constants
        return (
            f"{type(self).__name__}(kappa={c.kappa:g}, eps={c.eps:g}, T={c.T}, n={c.n}, "
            f"lower_bound_calls={self.lower_bound_calls})"
        )

    @property
    def lower_bound_calls(self) -> int:
        """Calls before which no zero-respecting method has a hypergradient below ``eps``."""
        return self.constants.lower_bound_calls

    @cached_property
    def _response(self) -> Float[np.ndarray, " n"]:
        n = self.constants.n
        return (4 * n**2 + 1) / n**2 * block_response(n)

    @cached_property
    def smoothness_g(self) -> float:
        """Largest eigenvalue, in modulus, of the Hessian of the lower objective in both variables."""
        n, lg = self.constants.n, self.constants.Lg
        joint = np.zeros((n + 1, n + 1))
        joint[:n, :n] = self.block_hessian()
        joint[n, n - 1] = joint[n - 1, n] = -lg
        return float(np.abs(np.linalg.eigvalsh(joint)).max())

    def block_hessian(self) -> Float[np.ndarray, "n n"]:
        """Hessian of the lower objective in one block of the lower variables, as a dense matrix."""
        n = self.constants.n
        laplacian = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
        laplacian[0, 0] = laplacian[-1, -1] = 1.0
        return self.constants.Lg * n**2 / (4 * n**2 + 1) * (laplacian + np.eye(n) / n**2)

    def _upper(self, x: ArrayLike) -> Float[np.ndarray, " dim_x"]:
        return _vector(x, "x", self.dim_x)

    def _lower(self, y: ArrayLike) -> Float[np.ndarray, " dim_y"]:
        return _vector(y, "y", self.dim_y)

    def oracle(self, x: ArrayLike, y: ArrayLike) -> OracleOutput:
        """One call: both objectives and all first gradients at a point.

        Parameters
        ----------
        x : array_like of shape (dim_x,)
        y : array_like of shape (dim_y,)

        Returns
        -------
        OracleOutput

        Raises
        ------
        ValueError
            If a shape is wrong or an entry is nan or infinite; such a query is not counted.
        OracleBudgetError
            If the counter has a limit and it has been reached.
        """
        x, y = self._upper(x), self._lower(y)
        self.counter.check(x, y)  # first, so that a violation is dated by the calls that were answered before
        self.counter.ask()
        c, shown = self.constants, self.counter
        fy, gx, gy = np.empty(self.dim_y), np.empty(self.dim_x), np.empty(self.dim_y)
        f, g = oracle_kernel(
            x,
            y,
            c.n,
            c.source,
            self._link_scale,
            self._left,
            self._right,
            c.Lg,
            self._noise(),
            fy,
            gx,
            gy,
            shown.shown_x,
            shown.shown_y,
        )
        return OracleOutput(f, g, np.zeros(self.dim_x), fy, gx, gy)

    @property
    def is_noisy(self) -> bool:
        """Whether two calls at one point may differ."""
        return False

    def _noise(self) -> float:
        """What the next entry of the lower gradient is multiplied by."""
        return 1.0

    def ystar(self, x: ArrayLike) -> Float[np.ndarray, " dim_y"]:
        """The lower solution.

        Parameters
        ----------
        x : array_like of shape (dim_x,)

        Returns
        -------
        numpy.ndarray of shape (dim_y,)
        """
        inflow = np.concatenate([[self.constants.source], self._upper(x)])
        return np.outer(inflow, self._response).ravel()

    def H(self, x: ArrayLike) -> tuple[float, Float[np.ndarray, " dim_x"]]:
        """The hyper-objective and its gradient, exact and not counted.

        Parameters
        ----------
        x : array_like of shape (dim_x,)

        Returns
        -------
        value : float
        gradient : numpy.ndarray of shape (dim_x,)
        """
        c = self.constants
        gradient = np.empty(self.dim_x)
        value = hyper_kernel(self._upper(x), c.source, c.Ce * c.n / c.lam, self._link_scale, gradient)
        return float(value), gradient

    def stationarity(self, x: ArrayLike) -> float:
        """What has to fall below ``eps``: the norm of the hypergradient.

        Parameters
        ----------
        x : array_like of shape (dim_x,)

        Returns
        -------
        float
        """
        return float(np.linalg.norm(self.H(x)[1]))

    def reset(self) -> None:
        """Count from zero again."""
        self.counter.reset()

    def as_torch(self) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
        """The two objectives as differentiable functions of PyTorch tensors.

        Returns
        -------
        f, g : callable
            Each takes tensors ``(x, y)`` and returns a scalar. Evaluating both at one point, one after the other, is
            one call; a new point is a new one, and so is the same objective at the same point where the oracle is
            noisy. They can be differentiated once.
        """
        from assay.bilevel.hard_torch import torch_objectives

        return torch_objectives(self)


class HardBilevelStochastic(HardBilevel):
    r"""A worst-case problem whose lower gradient is noisy just where the method has to go next.

    The variables are kept in boxes, and the entry of the lower gradient that follows the furthest nonzero coordinate
    in the chain is multiplied by :math:`\xi / p`, with :math:`\xi` a fresh Bernoulli variable of mean :math:`p`: it
    shows only once in :math:`1/p` calls.

    Parameters
    ----------
    constants : ChainConstants
    sigma : float
        Bound on the standard deviation of the noise.
    rng : numpy.random.Generator
    rx, ry : float
        Half widths of the boxes in units of :math:`\lambda / n` and :math:`\lambda`.

    Attributes
    ----------
    p : float
        Probability with which the next coordinate shows.
    box_x, box_y : float
        Half widths of the boxes.
    projected : int
        Queries that lay outside of the boxes and were projected.
    variance_bound : float
        Bound on the variance of the noise, at most ``sigma**2``.
    """

    def __init__(
        self, constants: ChainConstants, sigma: float, rng: np.random.Generator, rx: float = _RX, ry: float = _RY
    ) -> None:
        self.sigma = sigma
        self.box_x = rx * constants.lam / constants.n
        self.box_y = ry * constants.lam
        spread = 2 * ry * constants.Lg * constants.lam  # the most that an entry of the lower gradient can be
        self.p = (spread / sigma) * (spread / sigma) if spread < sigma else 1.0
        if self.p < _LEAST_PROBABILITY:
            most = spread / math.sqrt(_LEAST_PROBABILITY)
            raise ValueError(
                f"sigma must be at most {most:.3g} at these constants, so that the next coordinate ever shows, "
                f"got {sigma:g}"
            )
        self.variance_bound = spread * spread * ((1 - self.p) / self.p)
        self._rng = rng
        self.projected = 0
        super().__init__(constants)

    def reset(self) -> None:
        """Count from zero again; the random numbers go on."""
        super().reset()
        self.projected = 0

    def lower_bound_calls_at(self, delta: float = 0.5) -> float:
        """Calls for which the last variable is still zero, with probability at least ``1 - delta``.

        Parameters
        ----------
        delta : float, default=0.5

        Returns
        -------
        float
        """
        delta = check_real(delta, "delta", above=0.0, maximum=1.0)
        c = self.constants
        return max(0.0, ((c.n - 1) * c.T - 1 - math.log(1 / delta)) / (2 * self.p))

    @property
    def lower_bound_calls(self) -> int:
        """Calls for which the last variable is still zero, with probability at least one half."""
        return math.floor(self.lower_bound_calls_at(0.5))

    def oracle(self, x: ArrayLike, y: ArrayLike) -> OracleOutput:
        """One call; a query outside of the boxes is projected, counted, and counted in ``projected``."""
        x, y = self._upper(x), self._lower(y)
        inside_x, inside_y = np.empty(self.dim_x), np.empty(self.dim_y)
        left_x, left_y = project_to_box(x, self.box_x, inside_x), project_to_box(y, self.box_y, inside_y)
        answer = super().oracle(inside_x, inside_y)
        self.projected += left_x or left_y
        return answer

    @property
    def is_noisy(self) -> bool:
        """Whether two calls at one point may differ."""
        return self.p < 1.0

    def _noise(self) -> float:
        if not self.is_noisy:
            return 1.0
        return 1 / self.p if self._rng.random() < self.p else 0.0

    def stationarity(self, x: ArrayLike) -> float:
        """What has to fall below ``eps``: the step of projected gradient descent on the box, times the smoothness.

        Parameters
        ----------
        x : array_like of shape (dim_x,)

        Returns
        -------
        float
        """
        x = self._upper(x)
        return float(step_on_box(x, self.H(x)[1], self.constants.smoothness_h, self.box_x))


def hard_instance(
    kappa: float,
    eps: float,
    Delta: float = 1.0,
    Lf: float = 1.0,
    Lg: float = 1.0,
    T: int | None = None,
    n: int | None = None,
    Ce: float = 1.0,
) -> HardBilevel:
    r"""Make the bilevel problem on which no first-order method is fast.

    Parameters
    ----------
    kappa : float
        Condition number of the lower problem, at least 17.
    eps : float
        Norm of the hypergradient to be reached.
    Delta : float, default=1.0
        How far the hyper-objective may fall from the start; it decides the length of the chain.
    Lf, Lg : float, default=1.0
        Smoothness of the upper objective, and of the lower one in its own variable.
    T : int, optional
        Number of upper variables, in the place of the one that follows from ``Delta``.
    n : int, optional
        Length of a block, at most the default :math:`\lfloor \sqrt{(\kappa - 1)/4} \rfloor`.
    Ce : float, default=1.0
        Scale of the upper variables.

    Returns
    -------
    HardBilevel

    Raises
    ------
    ValueError
        If ``kappa`` is too small for a block of two variables, ``Delta`` too small for one upper variable, or an
        argument is not positive.

    Notes
    -----
    A call costs ``O(n T)`` operations and memory: the lower problem is tridiagonal and is never formed.

    References
    ----------
    .. [1] Kaiyi Ji. Lower Complexity Bounds for Nonconvex-Strongly-Convex Bilevel Optimization with First-Order
       Oracles. ICML 2026. arXiv:2511.19656.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.bilevel import hard_instance
    >>> instance = hard_instance(kappa=100, eps=0.1)
    >>> instance
    HardBilevel(kappa=100, eps=0.1, T=23, n=4, lower_bound_calls=92)
    >>> value, gradient = instance.H(np.zeros(instance.dim_x))
    >>> print(f"{gradient[0]:.7f}, {np.count_nonzero(gradient)} entry")
    -0.1648721, 1 entry
    """
    return HardBilevel(_constants(kappa, eps, Delta, Lf, Lg, T, n, Ce))


def hard_instance_stochastic(
    kappa: float,
    eps: float,
    sigma: float,
    Delta: float = 1.0,
    Lf: float = 1.0,
    Lg: float = 1.0,
    T: int | None = None,
    n: int | None = None,
    Ce: float = 1.0,
    seed: int | np.random.Generator | None = None,
) -> HardBilevelStochastic:
    r"""Make the bilevel problem on which no stochastic first-order method is fast.

    Parameters
    ----------
    kappa, eps, Delta, Lf, Lg, T, n, Ce
        As for :func:`hard_instance`.
    sigma : float
        Standard deviation of the noise in the lower gradient; 0 for none.
    seed : int or numpy.random.Generator, optional
        Source of the noise.

    Returns
    -------
    HardBilevelStochastic

    Raises
    ------
    ValueError
        As for :func:`hard_instance`, and if ``sigma`` is negative.

    References
    ----------
    .. [1] Kaiyi Ji. Lower Complexity Bounds for Nonconvex-Strongly-Convex Bilevel Optimization with First-Order
       Oracles. ICML 2026. arXiv:2511.19656.

    Examples
    --------
    >>> from assay.bilevel import hard_instance_stochastic
    >>> instance = hard_instance_stochastic(kappa=50, eps=0.1, sigma=100.0, seed=0)
    >>> round(instance.p, 3), instance.lower_bound_calls
    (0.006, 1788)
    """
    sigma = check_real(sigma, "sigma", minimum=0.0)
    constants = _constants(kappa, eps, Delta, Lf, Lg, T, n, Ce)
    return HardBilevelStochastic(
        constants, sigma, as_generator(seed, "seed"), rx=_RX / constants.Ce, ry=_RY / constants.Ce
    )


def _vector(point: ArrayLike, name: str, length: int) -> Float[np.ndarray, " length"]:
    if not (  # what a method asks with, call after call
        isinstance(point, np.ndarray)
        and point.dtype == np.float64
        and point.shape == (length,)
        and point.flags.c_contiguous
        and all_finite(point)
    ):
        point = np.ascontiguousarray(as_float_array(point, name, ndim=1))
        if len(point) != length:
            raise ValueError(f"{name} must have shape ({length},), got {point.shape}")
    return point


def _constants(
    kappa: float, eps: float, delta: float, lf: float, lg: float, length: int | None, n: int | None, ce: float
) -> ChainConstants:
    numbers = {"kappa": kappa, "eps": eps, "Delta": delta, "Lf": lf, "Lg": lg, "Ce": ce}
    kappa, eps, delta, lf, lg, ce = (check_real(value, name, above=0.0) for name, value in numbers.items())
    if kappa < 1:
        raise ValueError(f"kappa must be at least 17, so that a block has two variables, got {kappa:g}")
    length = None if length is None else check_integer(length, "T", minimum=1)
    n = None if n is None else check_integer(n, "n", minimum=2)
    return chain_constants(kappa, eps, delta, lf, lg, length, n, ce)
