r"""Random Fourier features with a limited band: cosines whose mean product is a smooth kernel.

A stationary kernel is the characteristic function of its spectral law. With frequencies ``w`` drawn from that law and
uniform phases ``b``,

.. math:: \phi_j(x) = \sqrt{2/D}\,\cos(w_j^\top x + b_j), \qquad
          E\,\phi(x)^\top\phi(y) = k(x - y), \qquad |\phi(x)|_2 \le \sqrt 2,

so a linear function of ``D`` features stands for a function of the kernel's space without a Gram matrix. The band
limit conditions the spectral law on ``|w| <= band / length_scale``: no function of the features oscillates faster.

All spectral laws here are isotropic. A direction and a length are drawn apart, the length by inverting its truncated
distribution function, which costs the same in every dimension; rejection would never end in a few dozen dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import pdist
from scipy.special import betainc, betaincinv, gammainc, gammaincinv

from assay.transport.cosine_kernel import scaled_cosines
from assay.validation import check_choice

__all__ = ["SPECTRA", "RandomFeatures", "draw_frequencies", "draw_random_features", "median_distance"]

# Degrees of freedom of the multivariate Student law that is the spectrum of the kernel; infinite for the Gaussian.
SPECTRA = {"gaussian": math.inf, "laplace": 1.0, "matern32": 3.0}

# Points whose distances the median is taken of: their number is a quadratic one.
_MEDIAN_POINTS = 600

# Below this the inverse of a distribution function has no digits left.
_UNDERFLOW = 1e-250


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """A draw of random Fourier features.

    Parameters
    ----------
    frequencies : array of shape (d, D)
        One column per feature.
    phases : array of shape (D,)
        In ``[0, 2 pi)``.
    center : array of shape (d,)
        Subtracted from the points first: a phase, and what keeps the digits of data far from the origin.
    """

    frequencies: Float[np.ndarray, "dimension features"]
    phases: Float[np.ndarray, " features"]
    center: Float[np.ndarray, " dimension"]

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.phases)

    def transform(
        self,
        X: Float[np.ndarray, "rows dimension"],
        out: Float[np.ndarray, "rows features"] | None = None,
    ) -> Float[np.ndarray, "rows features"]:
        """Features of points.

        Parameters
        ----------
        X : array of shape (n, d)
            The points.
        out : array of shape (n, D), optional
            Where to write them.

        Returns
        -------
        array of shape (n, D)
        """
        # Centred before it is rounded: data far from the origin keeps its digits in single precision too.
        features = np.matmul((X - self.center).astype(self.frequencies.dtype, copy=False), self.frequencies, out=out)
        scaled_cosines(features, self.phases, math.sqrt(2.0 / self.n_features))
        return features

    def astype(self, dtype: type) -> RandomFeatures:
        """The same features in another precision, with the centre as it is."""
        return RandomFeatures(self.frequencies.astype(dtype), self.phases.astype(dtype), self.center)


def draw_random_features(
    dimension: int,
    n_features: int,
    length_scale: float,
    rng: np.random.Generator,
    *,
    band: float | None = 4.0,
    spectrum: str = "gaussian",
    orthogonal: bool = False,
    center: Float[np.ndarray, " dimension"] | None = None,
) -> RandomFeatures:
    """Draw random Fourier features.

    Parameters
    ----------
    dimension : int
        Of the points.
    n_features : int
        Number of features.
    length_scale : float
        Of the kernel.
    rng : numpy.random.Generator
        Where frequencies and phases come from.
    band : float or None, default=4.0
        Frequencies are at most ``band / length_scale`` long; None does not limit them.
    spectrum : {"gaussian", "laplace", "matern32"}, default="gaussian"
        Spectral law: of the Gaussian kernel, the exponential kernel, or the Matern kernel of smoothness 3/2.
    orthogonal : bool, default=False
        Make the directions of every ``dimension`` frequencies in a row orthogonal.
    center : array of shape (dimension,), optional
        The origin of the phases; 0 when not given.

    Returns
    -------
    RandomFeatures

    Raises
    ------
    ValueError
        If the spectrum is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport.random_features import draw_random_features
    >>> features = draw_random_features(2, 4000, 1.5, np.random.default_rng(0), band=None)
    >>> x, y = features.transform(np.array([[0.0, 0.0], [1.0, 0.5]]))
    >>> bool(abs(x @ y - np.exp(-1.25 / (2 * 1.5**2))) < 0.05)
    True
    """
    frequencies = draw_frequencies(
        dimension, n_features, rng, band=math.inf if band is None else band, spectrum=spectrum, orthogonal=orthogonal
    )
    phases = rng.uniform(0.0, 2.0 * math.pi, n_features)
    return RandomFeatures(
        frequencies / length_scale, phases, np.zeros(dimension) if center is None else np.array(center, dtype=float)
    )


def draw_frequencies(
    dimension: int,
    n_features: int,
    rng: np.random.Generator,
    *,
    band: float = math.inf,
    spectrum: str = "gaussian",
    orthogonal: bool = False,
) -> Float[np.ndarray, "dimension features"]:
    """Frequencies for the length scale 1, conditioned on a length of at most ``band``.

    Parameters
    ----------
    dimension, n_features, rng, spectrum, orthogonal
        As in :func:`draw_random_features`.
    band : float, default=inf
        Largest length.

    Returns
    -------
    array of shape (dimension, n_features)

    Raises
    ------
    ValueError
        If the spectrum is unknown.
    """
    freedom = SPECTRA[check_choice(spectrum, "spectrum", SPECTRA)]
    if orthogonal:
        rotations = _rotations(-(-n_features // dimension), dimension, rng)
        directions = np.concatenate(rotations, axis=1)[:, :n_features]
    else:
        directions = rng.standard_normal((dimension, n_features))
        directions /= np.linalg.norm(directions, axis=0)
    return directions * _lengths(dimension, freedom, band, rng.random(n_features))


def _rotations(count: int, dimension: int, rng: np.random.Generator) -> Float[np.ndarray, "count dimension dimension"]:
    """Rotations (or reflections) from the uniform law."""
    Q, R = np.linalg.qr(rng.standard_normal((count, dimension, dimension)))
    return Q * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]


def _lengths(
    dimension: int, freedom: float, band: float, uniform: Float[np.ndarray, " features"]
) -> Float[np.ndarray, " features"]:
    """Lengths of frequencies from their law conditioned on ``[0, band]``, by inversion of uniform numbers.

    The squared length ``s`` is chi-squared for the Gaussian; for Student's, ``s / (s + freedom)`` has a beta law.
    """
    half = 0.5 * dimension
    if math.isinf(freedom):
        below = float(gammainc(half, 0.5 * band**2)) if math.isfinite(band) else 1.0
        if below > _UNDERFLOW:
            return np.minimum(np.sqrt(2.0 * gammaincinv(half, uniform * below)), band)
        steepness = dimension - band**2
    else:
        share = band**2 / (band**2 + freedom) if math.isfinite(band) else 1.0
        below = float(betainc(half, 0.5 * freedom, share))
        if below > _UNDERFLOW:
            quantile = betaincinv(half, 0.5 * freedom, uniform * below)
            # A quantile that rounds to 1 would be an infinite frequency.
            squared = freedom * quantile / np.maximum(1.0 - quantile, np.finfo(float).epsneg)
            return np.minimum(np.sqrt(squared), band)
        steepness = dimension - (freedom + dimension) * share
    # All mass is at the edge of the band, where the density is a power of the length to working precision.
    return band * uniform ** (1.0 / steepness)


def median_distance(X: Float[np.ndarray, "rows dimension"], rng: np.random.Generator) -> float:
    """Median distance of the points, of at most 600 of them.

    Parameters
    ----------
    X : array of shape (n, d)
        The points.
    rng : numpy.random.Generator
        Chooses among more points than 600.

    Returns
    -------
    float
        0 for a single point.
    """
    if len(X) > _MEDIAN_POINTS:
        X = X[rng.choice(len(X), _MEDIAN_POINTS, replace=False)]
    if len(X) < 2:
        return 0.0
    distances = pdist(X)
    return float(np.median(distances, overwrite_input=True))
