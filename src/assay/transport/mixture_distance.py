r"""How far a mixture is from a measure that is known as a sample or by its quantiles: the upper end of the certificate.

In one dimension the squared Wasserstein distance is the integral of the squared difference of the quantile functions.
Against a sample it is exact up to the root finding of the quantiles: on each step of the empirical quantile function
the integral of the mixture's is a difference of partial means. In more dimensions two samples are matched exactly; the
mean of that over draws is never below the distance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from assay.transport.exact_transport import exact_transport

__all__ = [
    "mixture_quantiles",
    "sampled_transport",
    "total_variation_on_line",
    "transport_of_sample",
    "transport_of_target",
]

# Beyond this many standard deviations a normal variable has less mass than a unit in the last place.
_LARGEST_DEVIATE = 8.2


def mixture_quantiles(
    levels: Float[np.ndarray, " levels"],
    family: Any,
    params: Float[np.ndarray, "components params"],
    weights: Float[np.ndarray, " components"],
) -> Float[np.ndarray, " levels"]:
    """Quantiles of a mixture on the line, for levels strictly between 0 and 1, by bisection to rounding."""

    def mass(x: np.ndarray) -> np.ndarray:
        return family.cdf(x, params) @ weights

    # The largest weight sums in floating point stay this far below 1.
    levels = np.clip(levels, 1e-300, 1.0 - 1e-14)
    low, high = -1.0, 1.0
    while mass(np.array([low]))[0] >= levels.min():
        low *= 2.0
    while mass(np.array([high]))[0] < levels.max():
        high *= 2.0
    left, right = np.full(len(levels), low), np.full(len(levels), high)
    for _ in range(60):
        middle = 0.5 * (left + right)
        below = mass(middle) < levels
        left, right = np.where(below, middle, left), np.where(below, right, middle)
    return right


def transport_of_sample(
    points: Float[np.ndarray, " points"],
    family: Any,
    params: Float[np.ndarray, "components params"],
    weights: Float[np.ndarray, " components"],
) -> float:
    """Squared Wasserstein distance of a sample on the line to a mixture whose family has ``partial_mean``."""
    ordered = np.sort(points)
    n = len(ordered)
    levels = np.arange(1, n) / n
    first, second = (
        sum(
            w * sum(c * np.prod(theta ** np.array(e)) for e, c in family.moment_polynomial((k,)).items())
            for w, theta in zip(weights, params, strict=True)
        )
        for k in (1, 2)
    )
    integral = np.concatenate([[0.0], np.zeros(n - 1), [first]])
    if n > 1:
        q = mixture_quantiles(levels, family, params, weights)
        # Integral of the quantile function up to each level, also where the distribution function jumps.
        beyond = family.cdf(q, params) @ weights - levels
        integral[1:-1] = family.partial_mean(q, params) @ weights - q * beyond
    return max(float(np.mean(ordered**2) + second - 2.0 * ordered @ np.diff(integral)), 0.0)


def transport_of_target(
    target: Any,
    family: Any,
    params: Float[np.ndarray, "components params"],
    weights: Float[np.ndarray, " components"],
    n_nodes: int = 20_001,
) -> float:
    """The same for a target with a quantile function ``ppf``: trapezoids in the deviates of a normal variable."""
    deviates = np.linspace(-_LARGEST_DEVIATE, _LARGEST_DEVIATE, n_nodes)
    levels = norm.cdf(deviates)
    q = mixture_quantiles(levels, family, params, weights)
    difference = np.asarray(target.ppf(levels), dtype=float) - q
    return float(np.trapezoid(difference**2 * norm.pdf(deviates), deviates))


def total_variation_on_line(
    target: Any,
    family: Any,
    params: Float[np.ndarray, "components params"],
    weights: Float[np.ndarray, " components"],
    n_nodes: int = 20_001,
) -> float:
    """Half the integral of the absolute difference of two densities, or the same for probabilities of integers."""
    ends = np.array([1e-15, 1.0 - 1e-15])
    q = mixture_quantiles(ends, family, params, weights)
    low, high = min(q[0], float(target.ppf(ends[0]))), max(q[1], float(target.ppf(ends[1])))
    if hasattr(target, "pmf") and not hasattr(target, "pdf"):
        x = np.arange(np.floor(low), np.ceil(high) + 1.0)
        return 0.5 * float(abs(target.pmf(x) - family.density(x, params) @ weights).sum())
    # Nodes are denser where the mass is: half of them are quantiles of the target.
    inner = np.asarray(target.ppf(np.linspace(1e-9, 1.0 - 1e-9, n_nodes)), dtype=float)
    x = np.unique(np.concatenate([np.linspace(low, high, n_nodes), inner]))
    middle, width = 0.5 * (x[1:] + x[:-1]), np.diff(x)
    difference = abs(target.pdf(middle) - family.density(middle, params) @ weights)
    return min(0.5 * float(difference @ width), 1.0)


def sampled_transport(
    points: Float[np.ndarray, "points dim"],
    family: Any,
    params: Float[np.ndarray, "components params"],
    weights: Float[np.ndarray, " components"],
    n_samples: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Mean squared distance in the best matching of a sample with draws from a mixture, and its standard error.

    Both have ``n_samples`` points; a sample that is larger is thinned at random, a smaller one repeated. The draws are
    stratified: each component has its share, up to one.
    """
    n = len(points)
    if n >= n_samples:
        chosen = points[rng.permutation(n)[:n_samples]]
    else:
        repeats = np.full(n, n_samples // n)
        repeats[rng.permutation(n)[: n_samples % n]] += 1
        chosen = np.repeat(points, repeats, axis=0)
    sizes = np.floor(weights * n_samples).astype(int)
    rest = n_samples - sizes.sum()
    shares = weights * n_samples - sizes
    if rest:
        extra = rng.choice(len(weights), size=rest, replace=False, p=shares / shares.sum())
        sizes[extra] += 1
    draws = family.sample(params, sizes.tolist(), rng)
    cost = ((chosen[:, None, :] - draws[None, :, :]) ** 2).sum(axis=2)
    uniform = np.full(n_samples, 1.0 / n_samples)
    plan = exact_transport(cost, uniform, uniform).tocoo()
    costs = cost[plan.row, plan.col]
    return float(plan.data @ costs), float(np.std(costs) / np.sqrt(n_samples))
