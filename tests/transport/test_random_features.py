"""The spectral laws of random features, their band, and their kernels."""

import math

import numpy as np
import pytest
from scipy.stats import kstest
from sklearn.gaussian_process.kernels import RBF, Matern

from assay.transport.cosine_kernel import scaled_cosines
from assay.transport.random_features import draw_frequencies, draw_random_features, median_distance

KERNELS = {"gaussian": RBF(1.3), "laplace": Matern(1.3, nu=0.5), "matern32": Matern(1.3, nu=1.5)}


@pytest.mark.parametrize("spectrum", KERNELS)
@pytest.mark.parametrize("orthogonal", [False, True])
def test_products_of_features_are_the_kernel(spectrum, orthogonal):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 3))
    features = draw_random_features(3, 12_000, 1.3, rng, band=None, spectrum=spectrum, orthogonal=orthogonal)
    phi = features.transform(X)
    # The standard error of a product is at most sqrt(1.5 / 12000) = .011.
    np.testing.assert_allclose(phi @ phi.T, KERNELS[spectrum](X), atol=0.05)


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-4), (np.float64, 1e-13)])
def test_cosines_against_numpy(dtype, tolerance):
    rng = np.random.default_rng(7)
    arguments = np.concatenate([rng.normal(scale=100.0, size=(50, 33)), np.pi / 4 * np.arange(-66, 66).reshape(4, 33)])
    arguments, phases = arguments.astype(dtype), rng.uniform(0, 2 * np.pi, 33).astype(dtype)
    expected = 0.3 * np.cos(arguments.astype(float) + phases.astype(float))
    scaled_cosines(arguments, phases, 0.3)
    np.testing.assert_allclose(arguments, expected, atol=tolerance)
    assert np.abs(arguments).max() <= 0.3 * (1 + 10 * np.finfo(dtype).eps)


def test_transform_is_the_formula_and_bounded():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 4)) + 1e8
    center = X.mean(axis=0)
    features = draw_random_features(4, 50, 0.7, rng, center=center)
    expected = math.sqrt(2 / 50) * np.cos((X - center) @ features.frequencies + features.phases)
    np.testing.assert_allclose(features.transform(X), expected, atol=1e-13)
    assert (np.linalg.norm(expected, axis=1) <= math.sqrt(2)).all()
    out = np.empty((30, 50), dtype=np.float32)
    assert features.astype(np.float32).transform(X, out=out) is out
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("spectrum", KERNELS)
@pytest.mark.parametrize("dimension", [1, 2, 7, 40, 3000])
def test_no_frequency_leaves_the_band(spectrum, dimension):
    frequencies = draw_frequencies(dimension, 500, np.random.default_rng(2), band=4.0, spectrum=spectrum)
    lengths = np.linalg.norm(frequencies, axis=0)
    assert frequencies.shape == (dimension, 500)
    assert np.isfinite(frequencies).all()
    assert lengths.max() <= 4.0 * (1 + 1e-12)
    assert lengths.std() > 0.0


@pytest.mark.parametrize("spectrum, freedom", [("gaussian", None), ("laplace", 1), ("matern32", 3)])
@pytest.mark.parametrize("dimension, band", [(1, 1.0), (3, 1.5), (12, 4.0)])
def test_lengths_have_the_law_that_rejection_gives(spectrum, freedom, dimension, band):
    rng = np.random.default_rng(3)
    lengths = np.linalg.norm(draw_frequencies(dimension, 2000, rng, band=band, spectrum=spectrum), axis=0)
    plain = rng.standard_normal((200_000, dimension))
    if freedom is not None:
        plain /= np.sqrt(rng.chisquare(freedom, 200_000) / freedom)[:, None]
    accepted = np.linalg.norm(plain, axis=1)
    accepted = accepted[accepted <= band]
    assert len(accepted) > 1000
    assert kstest(lengths, accepted).pvalue > 1e-3


def test_where_the_distribution_function_underflows_the_edge_of_the_band_is_a_power_law():
    dimension, band = 800, 4.0
    rng = np.random.default_rng(4)
    lengths = np.linalg.norm(draw_frequencies(dimension, 4000, rng, band=band), axis=0)
    # The density of the length is r^(d-1) exp(-r^2/2); its logarithmic distance to the edge has mean 1/(d - band^2).
    assert np.log(band / lengths).mean() == pytest.approx(1 / (dimension - band**2), rel=0.1)


def test_orthogonal_blocks():
    frequencies = draw_frequencies(5, 12, np.random.default_rng(5), band=4.0, orthogonal=True)
    for block in (frequencies[:, :5], frequencies[:, 5:10], frequencies[:, 10:]):
        product = block.T @ block
        np.testing.assert_allclose(product - np.diag(np.diag(product)), 0.0, atol=1e-12)


def test_median_distance():
    rng = np.random.default_rng(6)
    assert median_distance(np.array([[0.0], [1.0], [3.0]]), rng) == 2.0
    assert median_distance(np.ones((1, 2)), rng) == 0.0
    assert median_distance(np.ones((50, 2)), rng) == 0.0
    # of two independent standard normal numbers: sqrt(2) times the median of |N(0, 1)|
    assert median_distance(rng.normal(size=(5000, 1)), rng) == pytest.approx(math.sqrt(2) * 0.67449, rel=0.1)


def test_unknown_spectrum():
    with pytest.raises(ValueError, match="spectrum must be one of 'gaussian', 'laplace', 'matern32'"):
        draw_frequencies(1, 2, np.random.default_rng(0), spectrum="cauchy")
