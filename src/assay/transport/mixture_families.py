r"""Families of distributions whose moments are polynomials in their parameters.

That is all a family needs to have: for a monomial :math:`x^\alpha` the polynomial :math:`p_\alpha(\theta) = E_\theta
x^\alpha`, of degree at most :math:`|\alpha|`. A family of your own is an object with ``dim``, ``n_params`` and
``moment_polynomial``. What else it has is used when it is there:

``rescaled(shift, scale)``
    The family of ``(x - shift) / scale``, and the affine map of its parameters. Without it the data are divided, but
    not shifted.
``default_bounds(moments, data)``
    A box of parameters when the user gives none.
``cdf(x, params)`` and ``partial_mean(x, params)``
    Probability of, and integral of ``y`` over, ``y <= x``, in one dimension: they give the exact distance.
``sample(params, size, rng)``
    Draws, for an estimate of the distance in more dimensions.
``density(x, params)`` and ``log_density(X, params)``
    For the total variation distance, and for the posterior of a component.
``determined``
    Whether a distribution of the family is one point of the parameter space only for low moments, too (default True).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from assay.transport.moment_matrices import Polynomial, multiply_polynomials, polynomial_degree
from assay.validation import as_float_array, check_choice, check_integer

__all__ = [
    "ExponentialFamily",
    "GaussianFamily",
    "MixtureFamily",
    "PoissonFamily",
    "PolynomialFamily",
    "check_family",
    "resolve_family",
]

# A variance below this share of the squared half-width of the data makes moment matrices singular to working precision.
LEAST_VARIANCE = 1e-3


class MixtureFamily(abc.ABC):
    """Base of the families of this library; families of users need not derive from it.

    Attributes
    ----------
    dim : int
        Dimension of the data.
    n_params : int
        Dimension of the parameter.
    determined : bool
        Whether low moments determine the mixing measure; selects the default weight of the tie-break.
    """

    dim: int
    n_params: int
    determined: bool = True

    @abc.abstractmethod
    def moment_polynomial(self, alpha: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        """Expectation of ``x ** alpha`` as a polynomial in the parameters."""


class PolynomialFamily(MixtureFamily):
    """A family that is known by its moments alone.

    Parameters
    ----------
    moments : callable
        Takes a tuple of ``dim`` exponents and returns the polynomial, a dict from tuples of ``n_params`` exponents to
        coefficients.
    dim : int, default=1
        Dimension of the data.
    n_params : int, default=1
        Dimension of the parameter.

    Examples
    --------
    Uniform distributions on ``[0, theta]``:

    >>> from assay.transport import PolynomialFamily
    >>> family = PolynomialFamily(lambda alpha: {alpha: 1 / (alpha[0] + 1)})
    >>> family.moment_polynomial((2,))
    {(2,): 0.3333333333333333}
    """

    def __init__(self, moments: Callable[[tuple[int, ...]], Mapping], dim: int = 1, n_params: int = 1):
        if not callable(moments):
            raise TypeError(f"moments must be callable, got {type(moments).__name__}")
        self.moments = moments
        self.dim = check_integer(dim, "dim", minimum=1)
        self.n_params = check_integer(n_params, "n_params", minimum=1)

    def __repr__(self) -> str:
        return f"PolynomialFamily({getattr(self.moments, '__name__', 'moments')}, {self.dim}, {self.n_params})"

    def moment_polynomial(self, alpha: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        """What the callable returns."""
        return dict(self.moments(alpha))


class GaussianFamily(MixtureFamily):
    r"""Normal distributions with a fixed covariance, or with free variances.

    Parameters
    ----------
    covariance : {"isotropic", "diagonal"} or array_like of shape (), (dim,) or (dim, dim)
        A fixed covariance: a variance, one per coordinate, or a matrix. The parameter is then the mean alone. Or free:
        ``"isotropic"`` appends one variance to the mean, ``"diagonal"`` one per coordinate.
    dim : int, default=1
        Dimension of the data.

    Notes
    -----
    With a free variance the mixing measure is not unique at low orders: a wide component is a mixture of narrow
    ones. A flat solution is then optimal, but need not be the mixture that made the data.

    Examples
    --------
    >>> from assay.transport import GaussianFamily
    >>> GaussianFamily("isotropic").moment_polynomial((4,))
    {(4, 0): 1.0, (2, 1): 6.0, (0, 2): 3.0}
    """

    def __init__(self, covariance: str | ArrayLike, dim: int = 1):
        self.dim = check_integer(dim, "dim", minimum=1)
        self.covariance: str | np.ndarray
        if isinstance(covariance, str):
            self.covariance = check_choice(covariance, "covariance", ("isotropic", "diagonal"))
            self.n_params = self.dim + (1 if covariance == "isotropic" else self.dim)
            self.determined = False
        else:
            given = as_float_array(covariance, "covariance", ndim=(0, 1, 2))
            if given.ndim == 0:
                given = np.full(self.dim, float(given))
            matrix = np.diag(given) if given.ndim == 1 else given
            if matrix.shape != (self.dim, self.dim) or not np.allclose(matrix, matrix.T):
                raise ValueError(
                    f"covariance must be a number, {self.dim} variances or a symmetric {self.dim} x {self.dim} "
                    f"matrix, got shape {given.shape}"
                )
            if np.linalg.eigvalsh(matrix).min() < -1e-12 * max(1.0, abs(matrix).max()):
                raise ValueError("covariance must be positive semidefinite, got a negative eigenvalue")
            self.covariance = matrix
            self.n_params = self.dim
        self._central: dict[tuple[int, ...], float] = {}

    def __repr__(self) -> str:
        kind = self.covariance if isinstance(self.covariance, str) else self.covariance.tolist()
        return f"GaussianFamily({kind!r}, dim={self.dim})"

    def moment_polynomial(self, alpha: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        """Expectation of ``x ** alpha`` as a polynomial in the mean and the free variances."""
        zero = (0,) * self.n_params
        if isinstance(self.covariance, str):
            product: dict[tuple[int, ...], float] = {zero: 1.0}
            for i, power in enumerate(alpha):
                variance = self.dim + (i if self.covariance == "diagonal" else 0)
                factor = {}
                for pairs in range(power // 2 + 1):
                    exponent = [0] * self.n_params
                    exponent[i], exponent[variance] = power - 2 * pairs, pairs
                    factor[tuple(exponent)] = math.comb(power, 2 * pairs) * _pairings(pairs)
                product = multiply_polynomials(product, factor)
            return product
        polynomial: dict[tuple[int, ...], float] = {}
        for gamma in np.ndindex(*(a + 1 for a in alpha)):
            central = self._central_moment(gamma)
            if central:
                count = math.prod(math.comb(a, g) for a, g in zip(alpha, gamma, strict=True))
                polynomial[tuple(a - g for a, g in zip(alpha, gamma, strict=True))] = count * central
        return polynomial

    def _central_moment(self, gamma: tuple[int, ...]) -> float:
        """Wick's formula: pair one factor with each of the others."""
        if sum(gamma) == 0:
            return 1.0
        if sum(gamma) % 2:
            return 0.0
        if gamma not in self._central:
            i = next(k for k, g in enumerate(gamma) if g)
            rest = list(gamma)
            rest[i] -= 1
            total = 0.0
            for j, count in enumerate(rest):
                if count and self.covariance[i, j]:
                    paired = rest.copy()
                    paired[j] -= 1
                    total += count * self.covariance[i, j] * self._central_moment(tuple(paired))
            self._central[gamma] = float(total)
        return self._central[gamma]

    def rescaled(
        self, shift: Float[np.ndarray, " dim"], scale: float
    ) -> tuple[GaussianFamily, Float[np.ndarray, " params"], Float[np.ndarray, " params"]]:
        """The family of ``(x - shift) / scale``, and shift and scale of its parameters."""
        free = self.n_params - self.dim
        parameter_shift = np.concatenate([shift, np.zeros(free)])
        parameter_scale = np.concatenate([np.full(self.dim, scale), np.full(free, scale**2)])
        family = self if isinstance(self.covariance, str) else GaussianFamily(self.covariance / scale**2, self.dim)
        return family, parameter_shift, parameter_scale

    def default_bounds(
        self, moments: Mapping[tuple[int, ...], float], data: Float[np.ndarray, "points dim"] | None
    ) -> Float[np.ndarray, "params 2"]:
        """Means in the range of the data (or twice as far as the highest moment reaches); variances up to the data's.

        Variances begin at 0.001 of the squared half-width of the scaled data.
        """
        if data is not None:
            box = np.column_stack([data.min(axis=0), data.max(axis=0)])
        else:
            box = np.array([_reach(moments, i, self.dim) for i in range(self.dim)])
        if not isinstance(self.covariance, str):
            return box
        half = 0.5 * (box[:, 1] - box[:, 0])
        if self.covariance == "isotropic":
            half = half.max(keepdims=True)
        # In the units of the hierarchy, which the data do not fill.
        reach = half.max() if data is None else 1.2 * float(abs(data - data.mean(axis=0)).max())
        least = np.minimum(LEAST_VARIANCE * reach**2, 0.5 * half**2)
        return np.vstack([box, np.column_stack([least, half**2])])

    def moments_of(self, params: Float[np.ndarray, "components params"]) -> tuple[np.ndarray, np.ndarray]:
        """Means and covariance matrices of components."""
        means = params[:, : self.dim]
        if isinstance(self.covariance, str):
            variances = np.broadcast_to(params[:, self.dim :], means.shape)
            return means, np.array([np.diag(v) for v in variances])
        return means, np.broadcast_to(self.covariance, (len(means), self.dim, self.dim))

    def log_density(
        self, X: Float[np.ndarray, "points dim"], params: Float[np.ndarray, "components params"]
    ) -> Float[np.ndarray, "points components"]:
        """Logarithm of the density of each component at each point; needs a positive definite covariance."""
        means, covariances = self.moments_of(params)
        columns = []
        for mean, covariance in zip(means, covariances, strict=True):
            factor = np.linalg.cholesky(covariance)
            whitened = np.linalg.solve(factor, (X - mean).T)
            log_volume = np.log(np.diag(factor)).sum() + 0.5 * self.dim * math.log(2 * math.pi)
            columns.append(-0.5 * (whitened**2).sum(axis=0) - log_volume)
        return np.column_stack(columns)

    def density(
        self, x: Float[np.ndarray, " points"], params: Float[np.ndarray, "components params"]
    ) -> Float[np.ndarray, "points components"]:
        """Density of each component, in one dimension."""
        return np.exp(self.log_density(x[:, None], params))

    def cdf(
        self, x: Float[np.ndarray, " points"], params: Float[np.ndarray, "components params"]
    ) -> Float[np.ndarray, "points components"]:
        """Distribution function of each component, in one dimension."""
        mean, deviation = self._line(params)
        if (deviation == 0).any():
            return np.where(deviation == 0, x[:, None] >= mean, _normal_cdf(x[:, None], mean, deviation))
        return _normal_cdf(x[:, None], mean, deviation)

    def partial_mean(
        self, x: Float[np.ndarray, " points"], params: Float[np.ndarray, "components params"]
    ) -> Float[np.ndarray, "points components"]:
        """Integral of ``y`` over ``y <= x`` for each component, in one dimension."""
        mean, deviation = self._line(params)
        z = (x[:, None] - mean) / np.where(deviation == 0, 1.0, deviation)
        return mean * self.cdf(x, params) - deviation * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)

    def sample(
        self, params: Float[np.ndarray, "components params"], sizes: Sequence[int], rng: np.random.Generator
    ) -> Float[np.ndarray, "points dim"]:
        """Draws: ``sizes[k]`` of component ``k``, one component after the other."""
        means, covariances = self.moments_of(params)
        return np.vstack(
            [
                rng.multivariate_normal(mean, covariance, size, method="eigh")
                for mean, covariance, size in zip(means, covariances, sizes, strict=True)
            ]
        )

    def _line(self, params: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means, covariances = self.moments_of(params)
        return means[:, 0], np.sqrt(covariances[:, 0, 0])


class ExponentialFamily(MixtureFamily):
    r"""Exponential distributions by their scale: :math:`E x^k = k!\, \theta^k`.

    Examples
    --------
    >>> from assay.transport import ExponentialFamily
    >>> ExponentialFamily().moment_polynomial((3,))
    {(3,): 6.0}
    """

    dim = 1
    n_params = 1

    def __repr__(self) -> str:
        return "ExponentialFamily()"

    def moment_polynomial(self, alpha: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        """Expectation of ``x ** alpha`` as a polynomial in the scale."""
        return {tuple(alpha): float(math.factorial(alpha[0]))}

    def default_bounds(
        self, moments: Mapping[tuple[int, ...], float], data: Float[np.ndarray, "points 1"] | None
    ) -> Float[np.ndarray, "1 2"]:
        """From 0 to the largest observation, or to twice what the highest moment says of the largest scale."""
        if data is not None:
            return np.array([[0.0, float(data.max())]])
        top = max(a for (a,) in moments)
        return np.array([[0.0, 2.0 * (max(moments[top,], 0.0) / math.factorial(top)) ** (1.0 / top)]])

    def cdf(
        self, x: Float[np.ndarray, " points"], params: Float[np.ndarray, "components 1"]
    ) -> Float[np.ndarray, "points components"]:
        """Distribution function of each component."""
        return -np.expm1(-_waits(x, params))

    def partial_mean(
        self, x: Float[np.ndarray, " points"], params: Float[np.ndarray, "components 1"]
    ) -> Float[np.ndarray, "points components"]:
        """Integral of ``y`` over ``y <= x`` for each component."""
        waits = _waits(x, params)
        decay = np.exp(-waits)
        return params[:, 0] * (-np.expm1(-waits) - np.where(decay > 0, waits, 0.0) * decay)

    def density(
        self, x: Float[np.ndarray, " points"], params: Float[np.ndarray, "components 1"]
    ) -> Float[np.ndarray, "points components"]:
        """Density of each component."""
        return np.exp(self.log_density(x[:, None], params))

    def log_density(
        self, X: Float[np.ndarray, "points 1"], params: Float[np.ndarray, "components 1"]
    ) -> Float[np.ndarray, "points components"]:
        """Logarithm of the density of each component at each point."""
        return np.where(X >= 0, -X / params[:, 0] - np.log(params[:, 0]), -np.inf)

    def sample(
        self, params: Float[np.ndarray, "components 1"], sizes: Sequence[int], rng: np.random.Generator
    ) -> Float[np.ndarray, "points 1"]:
        """Draws: ``sizes[k]`` of component ``k``, one component after the other."""
        return np.concatenate([rng.exponential(theta, n) for theta, n in zip(params[:, 0], sizes, strict=True)])[
            :, None
        ]


class PoissonFamily(MixtureFamily):
    r"""Poisson distributions by their rate: :math:`E x^k = \sum_j S(k, j)\, \theta^j` (Stirling numbers).

    Examples
    --------
    >>> from assay.transport import PoissonFamily
    >>> PoissonFamily().moment_polynomial((3,))
    {(1,): 1.0, (2,): 3.0, (3,): 1.0}
    """

    dim = 1
    n_params = 1

    def __repr__(self) -> str:
        return "PoissonFamily()"

    def moment_polynomial(self, alpha: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        """Expectation of ``x ** alpha`` as a polynomial in the rate."""
        numbers = _stirling(alpha[0])
        return {(j,): float(number) for j, number in enumerate(numbers) if number}

    def default_bounds(
        self, moments: Mapping[tuple[int, ...], float], data: Float[np.ndarray, "points 1"] | None
    ) -> Float[np.ndarray, "1 2"]:
        """From 0 to the largest observation, or to twice what the highest moment says of the largest rate."""
        if data is not None:
            return np.array([[0.0, float(data.max())]])
        top = max(a for (a,) in moments)
        # E x^k is at least E theta^k.
        return np.array([[0.0, 2.0 * max(moments[top,], 0.0) ** (1.0 / top)]])

    def cdf(
        self, x: Float[np.ndarray, " points"], params: Float[np.ndarray, "components 1"]
    ) -> Float[np.ndarray, "points components"]:
        """Distribution function of each component."""
        return stats.poisson.cdf(x[:, None], params[:, 0])

    def partial_mean(
        self, x: Float[np.ndarray, " points"], params: Float[np.ndarray, "components 1"]
    ) -> Float[np.ndarray, "points components"]:
        """Integral of ``y`` over ``y <= x`` for each component."""
        return params[:, 0] * stats.poisson.cdf(x[:, None] - 1.0, params[:, 0])

    def density(
        self, x: Float[np.ndarray, " points"], params: Float[np.ndarray, "components 1"]
    ) -> Float[np.ndarray, "points components"]:
        """Probability of each integer."""
        return stats.poisson.pmf(x[:, None], params[:, 0])

    def log_density(
        self, X: Float[np.ndarray, "points 1"], params: Float[np.ndarray, "components 1"]
    ) -> Float[np.ndarray, "points components"]:
        """Logarithm of the probability of each integer."""
        return stats.poisson.logpmf(X, params[:, 0])

    def sample(
        self, params: Float[np.ndarray, "components 1"], sizes: Sequence[int], rng: np.random.Generator
    ) -> Float[np.ndarray, "points 1"]:
        """Draws: ``sizes[k]`` of component ``k``, one component after the other."""
        draws = [rng.poisson(theta, n) for theta, n in zip(params[:, 0], sizes, strict=True)]
        return np.concatenate(draws).astype(float)[:, None]


def resolve_family(family: Any, params: Mapping[str, Any] | None, dim: int) -> Any:
    """Turn a name, a callable or an object into a checked family.

    Parameters
    ----------
    family : {"gaussian", "exponential", "poisson"}, callable or object
        What the user passed.
    params : mapping or None
        For a name, the arguments of its class (``variance`` is another name of ``covariance``); for a callable,
        ``n_params``.
    dim : int
        Dimension of the data.

    Returns
    -------
    object
        With ``dim``, ``n_params`` and ``moment_polynomial``.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, an argument is missing or left over, or the object lacks something.
    """
    options = dict(params or {})
    if isinstance(family, str):
        check_choice(family, "family", ("gaussian", "exponential", "poisson"))
        if family == "gaussian":
            given = [name for name in ("covariance", "variance") if name in options]
            if len(given) != 1:
                raise ValueError(
                    "params must have the covariance of the gaussian family, e.g. {'variance': 0.1} for a fixed one or "
                    f"{{'covariance': 'isotropic'}} for a free one, got {options!r}"
                )
            resolved: Any = GaussianFamily(options.pop(given[0]), dim)
        else:
            resolved = ExponentialFamily() if family == "exponential" else PoissonFamily()
    elif callable(family) and not hasattr(family, "moment_polynomial"):
        resolved = PolynomialFamily(family, dim, options.pop("n_params", 1))
    else:
        resolved = family
    if options:
        raise ValueError(f"params must not have {', '.join(map(repr, options))} for this family")
    check_family(resolved)
    if resolved.dim != dim:
        raise ValueError(f"family must be of dimension {dim} as the data are, got {resolved!r} of {resolved.dim}")
    return resolved


def check_family(family: Any) -> None:
    """Check that an object is a family: it has what is required, and its polynomials have a low enough degree.

    Raises
    ------
    TypeError
        If a method or an attribute is missing; the message names it.
    ValueError
        If ``moment_polynomial`` returns something else than a polynomial of degree at most ``|alpha|``.
    """
    if isinstance(family, type):
        raise TypeError(f"family must be an object, got the class {family.__name__}")
    if not callable(getattr(family, "moment_polynomial", None)):
        raise TypeError(f"family must have a method moment_polynomial(alpha), got {type(family).__name__} without it")
    for attribute in ("dim", "n_params"):
        if not hasattr(family, attribute):
            raise TypeError(f"family must have an attribute {attribute}, got {type(family).__name__} without it")
        check_integer(getattr(family, attribute), f"family.{attribute}", minimum=1)
    for optional in ("rescaled", "default_bounds", "cdf", "partial_mean", "density", "log_density", "sample"):
        if not callable(getattr(family, optional, callable)):
            raise TypeError(f"family.{optional} must be a method, got {getattr(family, optional)!r}")
    constant = moment_polynomial(family, (0,) * family.dim)
    if {key: value for key, value in constant.items() if value} != {(0,) * family.n_params: 1.0}:
        raise ValueError(f"family.moment_polynomial of the constant must be 1, got {constant!r}")


def moment_polynomial(family: Any, alpha: tuple[int, ...]) -> Polynomial:
    """The polynomial of a family, checked: keys, coefficients and total degree."""
    polynomial = family.moment_polynomial(alpha)
    if not isinstance(polynomial, Mapping):
        raise TypeError(f"family.moment_polynomial must return a dict, got {polynomial!r}")
    for exponent, coefficient in polynomial.items():
        well_formed = (
            isinstance(exponent, tuple)
            and len(exponent) == family.n_params
            and all(isinstance(power, int | np.integer) and power >= 0 for power in exponent)
        )
        if not well_formed or not np.isfinite(coefficient):
            raise ValueError(
                f"family.moment_polynomial must map tuples of {family.n_params} exponents to finite coefficients, "
                f"got {exponent!r}: {coefficient!r}"
            )
    if polynomial_degree(polynomial) > sum(alpha):
        raise ValueError(
            f"family.moment_polynomial({alpha}) must have a total degree of at most {sum(alpha)}, "
            f"got {polynomial_degree(polynomial)}"
        )
    return polynomial


def _normal_cdf(x: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    return stats.norm.cdf((x - mean) / np.where(deviation == 0, 1.0, deviation))


def _pairings(pairs: int) -> int:
    """Number of ways to pair ``2 * pairs`` things."""
    return math.prod(range(1, 2 * pairs, 2))


def _stirling(n: int) -> list[int]:
    """Number of partitions of ``n`` things into ``j`` parts, for ``j = 0..n``."""
    row = [1]
    for _ in range(n):
        row = [0] + [j * (row[j] if j < len(row) else 0) + row[j - 1] for j in range(1, len(row) + 1)]
    return row


def _waits(x: np.ndarray, params: np.ndarray) -> np.ndarray:
    """``x / theta``, which for the scale 0 (a point mass at 0) is infinite from 0 on."""
    with np.errstate(divide="ignore", invalid="ignore"):
        waits = np.maximum(x[:, None], 0.0) / params[:, 0]
    return np.where(np.isnan(waits), np.inf, waits)


def _reach(moments: Mapping[tuple[int, ...], float], i: int, dim: int) -> tuple[float, float]:
    """Interval of a coordinate: its mean, plus and minus twice the root of its highest even central moment."""
    top = max(alpha[i] for alpha in moments)
    top -= top % 2
    line = []
    for k in range(top + 1):
        alpha = [0] * dim
        alpha[i] = k
        line.append(moments[tuple(alpha)])
    mean = line[1]
    central = sum(math.comb(top, k) * line[k] * (-mean) ** (top - k) for k in range(top + 1))
    half = 2.0 * max(central, 0.0) ** (1.0 / top)
    return mean - half, mean + half
