"""Lies and absences, found in the table of a mechanism."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.transport.mechanism_certificates import incentive_violation, mechanism_certificates, participation_violation

AWAY = (torch.zeros(2, dtype=torch.float64), 0.0)


def table(seed, n=40):
    rng = np.random.default_rng(seed)
    types = torch.tensor(rng.random((n, 2)))
    menu, price = torch.tensor(rng.random((6, 2))), torch.tensor(rng.random(6))
    menu[0], price[0] = 0.0, 0.0
    index = (types @ menu.T - price).argmax(1)
    return types, menu[index], price[index]


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_menus_are_incentive_compatible(seed):
    assert all(promise.holds for promise in mechanism_certificates("dot", *table(seed), outside=AWAY))


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_brute_force(seed):
    rng = np.random.default_rng(seed)
    types, allocation, payment = rng.random((9, 2)), rng.random((9, 2)), rng.random(9)
    gain = max(
        types[i] @ allocation[j] - payment[j] - types[i] @ allocation[i] + payment[i]
        for i in range(9)
        for j in range(9)
    )
    loss = max(0.0, *(payment[i] - types[i] @ allocation[i] for i in range(9)))
    arguments = "dot", *map(torch.tensor, (types, allocation, payment))
    assert incentive_violation(*arguments) == pytest.approx(gain, abs=1e-15)
    assert participation_violation(*arguments, AWAY) == pytest.approx(loss, abs=1e-15)


def test_a_corrupted_table_is_noticed():
    types, allocation, payment = table(0)
    dearer = payment.clone()
    dearer[3] += 0.01
    incentive, rationality = mechanism_certificates("dot", types, allocation, dearer, outside=AWAY)
    assert not incentive.holds
    assert incentive.value == pytest.approx(0.01)
    everyone_pays = mechanism_certificates("dot", types, allocation, payment + 0.5, outside=AWAY)
    assert [promise.holds for promise in everyone_pays] == [True, False]
    unknown = payment.clone()
    unknown[5] = float("nan")
    assert not any(promise.holds for promise in mechanism_certificates("dot", types, allocation, unknown, outside=AWAY))
    assert rationality.bound == 1e-12


def test_bad_tables():
    types, allocation, payment = table(1)
    with pytest.raises((ValueError, TypeError)):  # the checks of shapes in the tests are the first to see it
        incentive_violation("dot", types[:3], allocation, payment)
    with pytest.raises(ValueError, match="at least one"):
        incentive_violation("dot", types[:0], allocation[:0], payment[:0])
