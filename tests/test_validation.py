import fractions

import numpy as np
import pytest
import torch

from assay.validation import (
    as_distribution,
    as_float_array,
    as_generator,
    check_choice,
    check_integer,
    check_real,
)


@pytest.mark.parametrize(
    "array",
    [
        [[1, 2]],
        np.array([[1, 2]], dtype=np.int8),
        np.array([[1, 2]], dtype=np.float16),
        np.array([[True, True]]) + np.array([[0, 1]]),
        torch.tensor([[1.0, 2.0]], requires_grad=True),
        torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16),
        np.array([[fractions.Fraction(1), fractions.Fraction(2)]]),
        np.ma.array([[1.0, 2.0]]),
    ],
)
def test_numbers_of_every_kind_are_cast(array):
    cast = as_float_array(array, "a", ndim=2)
    assert cast.dtype == np.float64
    np.testing.assert_array_equal(cast, [[1.0, 2.0]])


def test_an_array_that_needs_no_cast_is_not_copied():
    array = np.ones((2, 2))
    assert as_float_array(array, "a", ndim=2) is array


@pytest.mark.parametrize(
    "array, kind, message",
    [
        ([1, 2], ValueError, r"a must be a finite 2-D array, got shape \(2,\)"),
        ([[1], [2, 3]], ValueError, "different lengths"),
        ([[np.nan, 1], [2, np.inf]], ValueError, "got 2 nan or infinite entries"),
        (np.empty((0, 3)), ValueError, "not empty"),
        ([[1j]], TypeError, "real numbers, got dtype complex"),
        ([["x"]], TypeError, "real numbers, got dtype"),
        ([[None]], TypeError, "real numbers"),
        (None, TypeError, "real numbers"),
        (np.array([["1", 2]], dtype=object), TypeError, "real numbers"),
        ([[10**400]], ValueError, "too large for float64"),
        (np.ma.array([[1.0, 2.0]], mask=[[True, False]]), ValueError, "a must be .*, got 1 masked entries"),
        (torch.eye(2).to_sparse(), TypeError, "a must be .*, got a tensor of layout torch.sparse_coo"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), TypeError, "real numbers, got dtype"),
    ],
)
def test_what_is_no_finite_matrix_is_refused_by_name(array, kind, message):
    with pytest.raises(kind, match=message):
        as_float_array(array, "a", ndim=2)


@pytest.mark.filterwarnings("error")
def test_a_number_that_does_not_fit_is_infinite_and_refused():
    with pytest.raises(ValueError, match="got 1 nan or infinite"):
        as_float_array([1e300], "a", ndim=1, dtype=np.float32)


def test_several_dimensions_may_be_accepted():
    assert as_float_array([1, 2], "a", ndim=(1, 2)).ndim == 1
    with pytest.raises(ValueError, match="1-D or 2-D"):
        as_float_array(3.0, "a", ndim=(1, 2))


def test_distributions():
    np.testing.assert_allclose(as_distribution([1 + 1e-10, -1e-12], "p").sum(), 1, rtol=1e-15)
    assert as_distribution(np.array([1], dtype=np.int64), "p").dtype == np.float64
    for bad, message in (
        ([0.5, 0.6], "sum to 1"),
        ([1.5, -0.5], "non-negative"),
        ([[1.0]], "1-D"),
        ([], "not empty"),
    ):
        with pytest.raises(ValueError, match=message):
            as_distribution(bad, "p")
    with pytest.raises(ValueError, match="length 3, got 1"):
        as_distribution([1.0], "p", size=3)


def test_generators():
    generator = np.random.default_rng(0)
    assert as_generator(generator) is generator
    assert as_generator(np.int64(3)).random() == np.random.default_rng(3).random()
    assert as_generator(np.random.SeedSequence(1)).random() == np.random.default_rng(np.random.SeedSequence(1)).random()
    for bad in (np.random.RandomState(0), "0", 1.5, True):
        with pytest.raises(TypeError, match=r"rng must be None, a seed or"):
            as_generator(bad)
    with pytest.raises(ValueError, match="non-negative"):
        as_generator(-1)


def test_numbers_in_intervals():
    assert check_real(np.float32(0.5), "a", above=0, maximum=0.5) == 0.5
    assert check_real(torch.tensor(2), "a") == 2.0
    assert check_real(float("inf"), "a", allow_infinite=True) == float("inf")
    for bad in (0, 2, float("nan"), float("inf"), 10**400, -(10**400)):
        with pytest.raises(ValueError, match=r"^a must be"):
            check_real(bad, "a", above=0, below=2)
    for bad in ("1", None, True, [1], 1j):
        with pytest.raises(TypeError, match="a must be a real number"):
            check_real(bad, "a")


def test_integers_and_choices():
    assert check_integer(np.int32(3), "n", minimum=3) == 3
    for bad in (3.0, True, "3", None):
        with pytest.raises(TypeError, match="n must be an integer"):
            check_integer(bad, "n")
    with pytest.raises(ValueError, match="at least 1"):
        check_integer(0, "n", minimum=1)
    assert check_choice("a", "m", ["a", "b"]) == "a"
    for bad in ("c", None, 1):
        with pytest.raises(ValueError, match="m must be one of 'a', 'b'"):
            check_choice(bad, "m", ("a", "b"))
