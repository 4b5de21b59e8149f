"""Section 6 of the Law School Admission Test."""

import numpy as np

from assay.data import load_lsat6


def test_counts():
    answers = load_lsat6()
    assert answers.shape == (1000, 5)
    assert answers.dtype == np.int8
    np.testing.assert_array_equal(answers.sum(axis=0, dtype=int), [924, 709, 553, 763, 870])
    np.testing.assert_array_equal(np.bincount(answers.sum(axis=1)), [3, 20, 85, 237, 357, 298])
    assert (answers == [0, 1, 0, 1, 1]).all(axis=1).sum() == 16


def test_is_a_new_array_every_time():
    load_lsat6()[:] = 0
    assert load_lsat6().any()
