r"""The chain from which the hard bilevel instances are built: its link functions, its constants, its kernels.

A link joins the end of one block of lower-level variables to the start of the next through
:math:`h(a, b) = \Psi(-a) \Phi(-b) - \Psi(a) \Phi(b)`, where :math:`\Psi` vanishes below one half: as long as the
end of a block is zero, the next block does not show in any gradient. Inside a block the lower-level problem is a path
Laplacian, which passes on a signal by one coordinate per gradient. Both together make a method walk.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float
from scipy.linalg import solveh_banded
from scipy.special import erf

__all__ = ["ChainConstants", "chain_constants", "link_cdf", "link_cdf_derivative", "link_gate", "link_gate_derivative"]

_SQRT_E = math.sqrt(math.e)
# sup of the spectral norm of the Hessian of one link, unscaled; 133.84 on a grid of step 1e-3
_LINK_SMOOTHNESS = 133.9
# an instance holds a byte per variable for what has been shown, and a call three numbers
_MOST_VARIABLES = 10**10
# constants beyond these overflow in the products of the kernels
_SMALLEST, _LARGEST = 1e-100, 1e100


def link_gate(u: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    r""":math:`\Psi(u) = \exp(1 - 1/(2u-1)^2)` above one half, and 0 below."""
    return _gate(u)[0]


def link_gate_derivative(u: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    r""":math:`\Psi'(u)`."""
    return _gate(u)[1]


def link_cdf(u: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    r""":math:`\Phi(u) = \sqrt{e} \int_{-\infty}^u e^{-t^2/2} \, dt`."""
    return _SQRT_E * math.sqrt(math.pi / 2) * (1 + erf(u / math.sqrt(2)))


def link_cdf_derivative(u: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    r""":math:`\Phi'(u)`."""
    return _SQRT_E * np.exp(-(u**2) / 2)


def _gate(u: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gate and its first two derivatives."""
    u = np.asarray(u, dtype=np.float64)
    w = 2 * u - 1
    inverse = np.zeros_like(w)
    # below 1e-2 the exponential is under 1e-4342: zero
    np.divide(1.0, w, out=inverse, where=w > 1e-2)
    value = np.where(w > 1e-2, np.exp(1 - np.minimum(inverse**2, 700.0)), 0.0)
    return value, 4 * value * inverse**3, value * (16 * inverse**6 - 24 * inverse**4)


@functools.lru_cache(maxsize=256)
def _link_smoothness(left: float, right: float) -> float:
    r"""1.02 times the largest spectral norm of the Hessian of a link whose arguments are scaled by left and right."""
    a = np.concatenate([np.arange(-300, 301) * 0.01, [-50.0, -10.0, 10.0, 50.0]])[:, None]
    b = (np.arange(-400, 401) * 0.02)[None, :]
    up, down = _gate(a), _gate(-a)
    cdf_up, cdf_down = link_cdf(b), link_cdf(-b)
    slope = link_cdf_derivative(b)
    bend_up, bend_down = -b * slope, b * slope
    aa = left * left * (down[2] * cdf_down - up[2] * cdf_up)
    ab = left * right * (down[1] * slope - up[1] * slope)
    bb = right * right * (down[0] * bend_down - up[0] * bend_up)
    centre, radius = (aa + bb) / 2, np.sqrt(((aa - bb) / 2) ** 2 + ab**2)
    return 1.02 * float(np.max(np.abs(centre) + radius))


@dataclass(frozen=True)
class ChainConstants:
    r"""The numbers that an instance is made of.

    Attributes
    ----------
    n : int
        Length of a block.
    T : int
        Number of upper-level variables; there are ``T + 1`` blocks.
    lam : float
        Scale of the variables, :math:`\lambda`.
    Lc : float
        Bound on the curvature of a scaled link: with it the upper objective is ``Lf``-smooth.
    Cl, Cr : float
        Scales of the arguments of a link: of the end of a block, and of the start of the next.
    Ce : float
        Scale of the upper-level variables.
    mu : float
        What the lower-level problem is promised to be strongly convex with, ``Lg / kappa``.
    Lf, Lg, eps, kappa, Delta : float
        As asked for; ``Delta`` bounds how far the objective can fall from the start.
    """

    n: int
    T: int
    lam: float
    Lc: float
    Cl: float
    Cr: float
    Ce: float
    mu: float
    Lf: float
    Lg: float
    eps: float
    kappa: float
    Delta: float

    @property
    def lower_bound_calls(self) -> int:
        """Calls before which no zero-respecting method has reached ``eps``."""
        return self.T * self.n

    @property
    def single_level_calls(self) -> int:
        """The count for minimising one smooth non-convex function, from the same constants."""
        return math.floor(self.Delta * self.Lf / (12 * self.eps**2 * self.Lc))

    @property
    def minimax_calls(self) -> float:
        """The count for non-convex-strongly-concave min-max problems, from the same constants."""
        return math.sqrt(self.kappa) * self.single_level_calls

    @property
    def smoothness_h(self) -> float:
        """A bound on the smoothness of the hyper-objective: each variable is in two links."""
        return 2 * _LINK_SMOOTHNESS * (self.Ce * self.n) ** 2 * self.Lf / self.Lc

    @property
    def source(self) -> float:
        """The constant that feeds the first block, in the place of an upper-level variable."""
        return self.lam / (self.Ce * self.n)


def block_response(n: int) -> Float[np.ndarray, " n"]:
    r"""Last column of :math:`(A + I/n^2)^{-1}`, with :math:`A` the Laplacian of a path of n nodes."""
    bands = np.empty((2, n))
    bands[0] = -1.0
    bands[1] = 2 + 1 / n**2
    bands[1, [0, -1]] = 1 + 1 / n**2
    end = np.zeros(n)
    end[-1] = 1.0
    return solveh_banded(bands, end)


def _check_sizes(numbers: tuple[float, ...], asked: str) -> None:
    if not all(_SMALLEST < number < _LARGEST for number in numbers):
        raise ValueError(
            "eps, Lf, Lg and Ce must be of moderate size, so that all constants lie between "
            f"{_SMALLEST:g} and {_LARGEST:g}; got {asked}"
        )


def chain_constants(
    kappa: float,
    eps: float,
    delta: float,
    lf: float,
    lg: float,
    length: int | None,
    n: int | None,
    ce: float,
) -> ChainConstants:
    """The constants of an instance; arguments are checked by the caller, all but what follows from several."""
    longest = math.floor(math.sqrt((kappa - 1) / 4))
    if n is None:
        n = longest
        if n < 2:
            raise ValueError(f"kappa must be at least 17, so that a block has two variables, got {kappa:g}")
    elif not 2 <= n <= longest:
        raise ValueError(f"n must be between 2 and {longest} at kappa={kappa:g}, got {n}")
    if n > _MOST_VARIABLES:
        raise ValueError(f"kappa must be at most {4 * _MOST_VARIABLES**2:.0e}, or n be given, got {kappa:g}")
    asked = f"eps={eps:g}, Lf={lf:g}, Lg={lg:g}, Ce={ce:g}"
    _check_sizes((eps, lf, lg, lg / kappa, ce), asked)
    response = (4 * n**2 + 1) / n**2 * block_response(n)
    left, right = float(ce * n / response[-1]), float(ce * n / response[0])
    lc = _link_smoothness(left, right)
    lam = eps * lc / (lf * ce * n)
    depth = 12 * lam * (lam * lf / lc)  # that a link can let the objective fall by
    _check_sizes((lc, lam, lam / (ce * n), depth), asked)
    if length is None:
        if delta < depth:
            raise ValueError(f"Delta must be at least {depth:.3g} at eps={eps:g}, so that T >= 1, got {delta:g}")
        longest = delta / depth
    else:
        longest = length
        delta = depth * length
    if not (longest + 1) * n <= _MOST_VARIABLES:
        raise ValueError(
            f"{'Delta / eps^2' if length is None else 'T'} must give at most {_MOST_VARIABLES:.0e} lower variables, "
            f"got {longest:.3g} blocks of {n}"
        )
    return ChainConstants(
        n=n,
        T=math.floor(longest),
        lam=lam,
        Lc=lc,
        Cl=left,
        Cr=right,
        Ce=ce,
        mu=lg / kappa,
        Lf=lf,
        Lg=lg,
        eps=eps,
        kappa=kappa,
        Delta=delta,
    )


@numba.njit(cache=True)
def _gate_scalar(u: float) -> tuple[float, float]:
    w = 2 * u - 1
    if w <= 1e-2:
        return 0.0, 0.0
    value = math.exp(1 - 1 / (w * w))
    return value, 4 * value / (w * w * w)


@numba.njit(cache=True)
def _links(a: float, b: float) -> tuple[float, float, float]:
    """A link and its two derivatives."""
    up, up_slope = _gate_scalar(a)
    down, down_slope = _gate_scalar(-a)
    if up == 0.0 and down == 0.0:
        return 0.0, 0.0, 0.0
    scale = math.sqrt(math.e) * math.sqrt(math.pi / 2)
    cdf_up = scale * (1 + math.erf(b / math.sqrt(2.0)))
    cdf_down = scale * (1 + math.erf(-b / math.sqrt(2.0)))
    slope = math.sqrt(math.e) * math.exp(-b * b / 2)
    return (
        down * cdf_down - up * cdf_up,
        -down_slope * cdf_down - up_slope * cdf_up,
        -down * slope - up * slope,
    )


@numba.njit(cache=True)
def furthest_in_chain(x: np.ndarray, y: np.ndarray, n: int) -> int:
    """Place in the chain of the furthest nonzero coordinate, -1 if there is none.

    The chain runs y^0_n (place 0), then for each block i >= 1 its n coordinates and x_i.
    """
    length = x.shape[0]
    for block in range(length, 0, -1):
        place = 1 + (block - 1) * (n + 1)
        if x[block - 1] != 0.0:
            return place + n
        for j in range(n - 1, -1, -1):
            if y[block * n + j] != 0.0:
                return place + j
    return 0 if y[n - 1] != 0.0 else -1


@numba.njit(cache=True)
def oracle_kernel(
    x: np.ndarray,
    y: np.ndarray,
    n: int,
    source: float,
    link_scale: float,
    left: float,
    right: float,
    lg: float,
    noise: float,
    fy: np.ndarray,
    gx: np.ndarray,
    gy: np.ndarray,
    shown_x: np.ndarray,
    shown_y: np.ndarray,
) -> tuple[float, float]:
    """Both objectives, their gradients into ``fy``, ``gx``, ``gy``, and what they show into ``shown_x``, ``shown_y``.

    One pass over the chain. The entry of the lower gradient that follows the furthest nonzero coordinate is
    multiplied by ``noise``.
    """
    length = x.shape[0]
    stiffness = lg * n * n / (4.0 * n * n + 1.0)
    shift = 1.0 / (n * n)
    lower = 0.0
    for block in range(length + 1):
        start = block * n
        inflow = source if block == 0 else x[block - 1]
        for j in range(n):
            here = y[start + j]
            flow = shift * here
            if j > 0:
                flow += here - y[start + j - 1]
            if j < n - 1:
                flow += here - y[start + j + 1]
            lower += 0.5 * stiffness * here * flow
            gy[start + j] = stiffness * flow
            fy[start + j] = 0.0
        end = start + n - 1
        lower -= lg * inflow * y[end]
        gy[end] -= lg * inflow
        if block > 0:
            gx[block - 1] = -lg * y[end]
    upper = 0.0
    for link in range(1, length + 1):
        end, begin = link * n - 1, link * n
        value, by_end, by_start = _links(left * y[end], right * y[begin])
        upper += value
        fy[end] += link_scale * left * by_end
        fy[begin] += link_scale * right * by_start
    if noise != 1.0:
        place = furthest_in_chain(x, y, n) + 1
        if place == 0:
            gy[n - 1] *= noise
        elif place <= length * (n + 1):
            block, within = (place - 1) // (n + 1), (place - 1) % (n + 1)
            if within == n:
                gx[block] *= noise
            else:
                gy[(block + 1) * n + within] *= noise
    for i in range(length):
        if x[i] != 0.0 or gx[i] != 0.0:
            shown_x[i] = True
    for i in range(y.shape[0]):
        if y[i] != 0.0 or fy[i] != 0.0 or gy[i] != 0.0:
            shown_y[i] = True
    return link_scale * upper, lower


@numba.njit(cache=True)
def hyper_kernel(x: np.ndarray, source: float, scale: float, link_scale: float, gradient: np.ndarray) -> float:
    """The hyper-objective and its gradient; the arguments of the links are ``scale`` times the variables."""
    length = x.shape[0]
    value = 0.0
    for i in range(length):
        gradient[i] = 0.0
    for link in range(length):
        before = source if link == 0 else x[link - 1]
        term, by_end, by_start = _links(scale * before, scale * x[link])
        value += term
        if link > 0:
            gradient[link - 1] += link_scale * scale * by_end
        gradient[link] += link_scale * scale * by_start
    return link_scale * value


@numba.njit(cache=True)
def all_finite(point: np.ndarray) -> bool:
    """Whether there is neither a nan nor an infinity."""
    finite = True
    for i in range(point.shape[0]):
        finite &= math.isfinite(point[i])
    return finite


@numba.njit(cache=True)
def project_to_box(point: np.ndarray, half_width: float, inside: np.ndarray) -> bool:
    """Write the nearest point of the box into ``inside``; whether that is another point."""
    moved = False
    for i in range(point.shape[0]):
        inside[i] = min(max(point[i], -half_width), half_width)
        moved |= inside[i] != point[i]
    return moved


@numba.njit(cache=True)
def step_on_box(point: np.ndarray, slope: np.ndarray, smoothness: float, half_width: float) -> float:
    """Length of a step of projected gradient descent, times the smoothness."""
    total = 0.0
    for i in range(point.shape[0]):
        move = min(max(point[i] - slope[i] / smoothness, -half_width), half_width) - point[i]
        total += move * move
    return smoothness * math.sqrt(total)


@numba.njit(cache=True)
def first_not_shown(query: np.ndarray, shown: np.ndarray) -> int:
    """First nonzero coordinate of a query that has not been shown (-1 if none)."""
    for i in range(query.shape[0]):
        if query[i] != 0.0 and not shown[i]:
            return i
    return -1
