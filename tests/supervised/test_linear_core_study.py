"""Pieces of the study of linear-core losses."""

import numpy as np
import pytest
import torch

from assay.studies.supervised import linear_core as study

STUDY = study.LinearCoreStudy


@pytest.fixture(scope="module")
def digits():
    return study.noisy_digits((0.0, 0.2, 0.4), np.random.default_rng(0))


def test_declarations():
    names = {contender.name for contender in STUDY.contenders}
    assert STUDY.name == "supervised/linear_core"
    assert set(study.criteria()) <= names
    for claim in STUDY.claims:
        assert {claim.contender, claim.versus or claim.contender} <= names


def test_noise_has_its_rate(digits):
    clean = digits.labels[0.0]
    assert clean.shape == (len(digits.train),)
    for rate in (0.2, 0.4):
        assert np.mean(digits.labels[rate] != clean) == pytest.approx(rate, abs=0.04)
    # the wrong labels at the lower rate are wrong at the higher one too
    wrong = [digits.labels[rate] != clean for rate in (0.2, 0.4)]
    assert (wrong[1] | ~wrong[0]).all()
    again = study.noisy_digits((0.4,), np.random.default_rng(0))
    np.testing.assert_array_equal(again.labels[0.4], digits.labels[0.4])


def test_every_criterion_trains(digits):
    for make in study.criteria().values():
        (accuracy,) = study.train(make(), digits, (0.0,), study.NETWORK, epochs=3)
        assert 0.5 < accuracy <= 1


@pytest.mark.parametrize("architecture", [study.NETWORK, study.LINEAR])
def test_stacked_models_are_independent(digits, architecture):
    criterion = study.criteria()["linear core"]()
    together = study.train(criterion, digits, (0.0, 0.4), architecture, epochs=2)
    assert together == study.train(criterion, digits, (0.0, 0.4), architecture, epochs=2)
    for rate, accuracy in zip((0.0, 0.4), together, strict=True):
        (alone,) = study.train(criterion, digits, (rate,), architecture, epochs=2)
        assert alone == pytest.approx(accuracy, abs=0.01)


def test_incumbent_losses_are_what_they_are_called():
    scores = torch.randn(5, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0])
    right = scores.softmax(1)[torch.arange(5), labels]
    losses = {name: make() for name, make in study.criteria().items()}
    torch.testing.assert_close(losses["mean absolute error"](scores, labels), (1 - right).mean())
    torch.testing.assert_close(losses["generalised cross-entropy"](scores, labels), ((1 - right**0.7) / 0.7).mean())
    centred = scores - scores.mean(1, keepdim=True)
    hinge = sum(max(0.0, 1 + centred[i, k].item()) for i in range(5) for k in range(4) if k != labels[i]) / 5
    assert losses["Lee-Lin-Wahba hinge"](scores, labels).item() == pytest.approx(hinge)
    assert isinstance(losses["CrossEntropyLoss"], torch.nn.CrossEntropyLoss)


def test_descents():
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(80, 3)), rng.integers(0, 2, 80)
    for accelerated in (False, True):
        objectives, lipschitz = study.plain_descent(features, labels, 60, accelerated)
        assert lipschitz > 0
        assert objectives[-1] < objectives[0]
    gaps = study.hinge_subgradient(features, labels, 60)
    assert (np.diff(gaps) <= 0).all()
    assert gaps[-1] >= -1e-9


def test_the_best_subgradient_method_is_none_of_the_weak_ones():
    problem = STUDY().problem("quick", np.random.default_rng(0))
    gaps = study.hinge_subgradient(problem.features, problem.labels, 300)
    extended = np.column_stack([problem.features, np.ones(len(problem.labels))]) * (2 * problem.labels - 1)[:, None]
    ridge, weights, best = np.append(np.full(30, study.RIDGE), 0.0), np.zeros(31), np.inf
    for t in range(1, 301):  # knows the ridge
        active = extended[extended @ weights < 1.0].sum(axis=0) / len(extended)
        weights = weights - 2.0 / (study.RIDGE * (t + 1)) * (ridge * weights - active)
        best = min(best, 0.5 * ridge @ weights**2 + np.maximum(0.0, 1.0 - extended @ weights).mean())
    assert gaps[-1] <= best - 0.0422 + 1e-9  # less than the least objective, 0.04224


def test_claims_are_not_easier_than_the_paper():
    claims = {claim.metric: claim for claim in STUDY.claims if claim.source.startswith("paper")}
    assert claims["accuracy"].number >= 0.026


def test_excess_ratio_is_at_least_tau():
    rng = np.random.default_rng(2)
    for law in rng.dirichlet(np.ones(4), 50):
        scores = rng.normal(size=4)
        if scores.argmax() != law.argmax():
            assert study.excess_ratio(law, scores) >= 0.7


def test_demonstration():
    certificates = STUDY().demonstrate()
    assert all(certificate.holds for certificate in certificates)
