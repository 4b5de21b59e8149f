"""Pieces of the study of preference losses."""

import numpy as np
import pytest
import torch

from assay.lab import Measurement
from assay.studies.supervised import preference as study
from assay.studies.supervised._preference_pairs import diabetes_pairs, digit_pairs

STUDY = study.PreferenceStudy


@pytest.fixture(scope="module")
def digits():
    return digit_pairs((0.0, 0.2), np.random.default_rng(0))


def test_declarations():
    STUDY.check_declarations()
    assert STUDY.name == "supervised/preference"
    names = {contender.name for contender in STUDY.contenders}
    assert names == {*study.LOSSES, *study.ABRUPT, "TRL"}
    assert set(study.QUICK) <= set(study.LOSSES)


def test_claims_are_not_easier_than_promised():
    claims = {claim.id: claim for claim in STUDY.claims}
    assert all(claims[f"C1{letter}"].number <= 1e-5 for letter in "abc")
    for letter, least in {"a": 0.04, "b": 0.0, "c": 0.04, "d": 0.0, "e": -0.01}.items():
        assert claims[f"C3{letter}"].number >= least
    assert claims["C4a"].number == claims["C4b"].number == 0.08
    assert claims["C4c"].number >= 0.12
    assert claims["C7"].number <= 1.5
    assert claims["C8"].number <= 0.5


def test_noise(digits):
    clean, noisy = digits.train_pairs[0.0], digits.train_pairs[0.2]
    assert clean.shape == (3000, 2)
    # half of the pairs or less are clear, and 40 % of them flipped
    assert 0.1 < np.mean(clean[:, 0] != noisy[:, 0]) <= 0.23
    np.testing.assert_array_equal(np.sort(clean, axis=1), np.sort(noisy, axis=1))
    assert 0.05 < digits.test_flipped.mean() < 0.35
    again = digit_pairs((0.0, 0.2), np.random.default_rng(0))
    np.testing.assert_array_equal(again.train_pairs[0.2], noisy)


def test_test_pairs_are_in_the_true_order(digits):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    lookup = {image.tobytes(): label for image, label in zip(images / 16.0, labels, strict=True)}
    values = np.array([lookup[image.tobytes()] for image in digits.test])
    assert (values[digits.test_pairs[:, 0]] > values[digits.test_pairs[:, 1]]).all()
    observed = digits.observed()
    assert np.mean(observed[:, 0] != digits.test_pairs[:, 0]) == digits.test_flipped.mean()


def test_other_scales_of_the_images(digits):
    from assay.studies.supervised._preference_pairs import rescaled

    unscaled = rescaled(digits, "unscaled")
    assert set(np.unique(unscaled.train)) <= set(range(17))
    standardised = rescaled(digits, "standardised")
    spread = standardised.train.std(axis=0)
    np.testing.assert_allclose(standardised.train.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(spread[spread > 0], 1)
    assert np.isfinite(standardised.test).all()
    assert standardised.train_pairs is digits.train_pairs


def test_the_quick_size_does_what_the_claims_need():
    problem = STUDY().problem("quick", np.random.default_rng(0))
    claimed = {claim.contender for claim in STUDY.claims if "quick" in claim.sizes}
    for name in (*study.UNCLAIMED, *study.ABRUPT, "TRL"):
        assert name not in claimed
        assert not STUDY().measure(name, problem, np.random.default_rng(1)).scalars


def test_patients_are_not_shared():
    data = diabetes_pairs(np.random.default_rng(0))
    assert len(data.train) + len(data.test) == 442
    assert data.train_pairs[0.0].max() < len(data.train)
    assert data.test_pairs.max() < len(data.test)


def test_tabular_part():
    measurement = Measurement()
    study.measure_tabular(measurement, "savage")
    values = {scalar.metric: scalar.value for scalar in measurement.scalars}
    assert values["distance_to_target"] <= 1e-5
    assert values["best_response"] == pytest.approx(0.386478, abs=1e-6)


def test_trl_code_is_called():
    pytest.importorskip("trl")
    from assay.studies.supervised._preference_trl import TrlLoss
    from assay.supervised.preference_psi import resolve_psi

    z = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    theirs, ours = resolve_psi(TrlLoss("sigmoid")), resolve_psi("logistic")
    torch.testing.assert_close(theirs.value(z).mean(), ours.value(z).mean())
    torch.testing.assert_close(theirs.slope(z), ours.slope(z))


def test_memory_is_counted():
    measurement = Measurement()
    study.measure_memory(measurement)
    # margins, both rewards and both gradients are there at the end
    assert measurement.scalars[0].value >= 5


def test_demonstration():
    assert all(certificate.holds for certificate in STUDY().demonstrate())
